"""Cases of a test that are slow ones, while its others are among the fast."""

from collections.abc import Iterable
from typing import Any

import pytest

SLOW = (pytest.mark.slow, pytest.mark.contract)  # for they compile more than they compute


def slowly(*cases: Any) -> list[Any]:
    """Cases, each a value or a tuple of values, of which only the slow tests have a test."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=SLOW) for case in cases
    ]


def first_fast(cases: Iterable[Any]) -> list[Any]:
    """Cases of which the first has a fast test."""
    first, *others = cases
    return [first, *slowly(*others)]
