"""Mark cases of a test as slow, while others are fast."""

from collections.abc import Iterable
from typing import Any

import pytest

SLOW = (pytest.mark.slow, pytest.mark.contract)  # which compile longer than they compute


def slowly(*cases: Any) -> list[Any]:
    """Cases, each a value or a tuple of values, for slow tests only."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=SLOW) for case in cases
    ]


def first_fast(cases: Iterable[Any]) -> list[Any]:
    """Cases of which the first has a fast test."""
    first, *others = cases
    return [first, *slowly(*others)]
