"""What a number that a person passes may be."""

from __future__ import annotations

import math
import numbers
from typing import Any

MOST = 2**31 - 1  # that a number of things may be
ITERATIONS = 10**6  # restarts, or steps of a loop
LARGEST = 1e140  # of a feature: sums of the squares of larger ones are no numbers


def check_number(
    name: str,
    value: Any,
    *,
    low: float,
    high: float,
    integer: bool = False,
    infinite: bool = False,
) -> None:
    """Refuse what is no number from ``low`` to ``high``, both included.

    ``infinite`` says that infinity has a meaning of its own.

    Raises
    ------
    TypeError
        If it is no number, or no integer where one is needed.
    ValueError
        If it is out of these bounds.
    """
    kind: Any = numbers.Integral if integer else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind):
        what = "an integer" if integer else "a number"
        raise TypeError(f"{name} must be {what}; got {value!r}; pass {what}")
    if not low <= value <= high and not (infinite and value == math.inf):
        besides = ", or infinite" if infinite else ""
        raise ValueError(
            f"{name} must be at least {low} and at most {high}{besides}; got {value}; "
            "choose a number in between"
        )
