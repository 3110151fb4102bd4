"""Express values of prepared features in the units of the table, and format numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["TableUnits", "format_numbers"]

_N_DIGITS = 3  # significant digits of the largest of several numbers
_MOST_DECIMALS = 9  # smaller numbers have an exponent
_MOST_PLACES = 15  # larger numbers have an exponent
_ROUNDING = 1e-9  # smaller differences, relative to the largest number, are rounding errors


def format_numbers(values: Iterable[float]) -> list[str]:
    """Format numbers that are compared with each other, with the same number of decimals.

    The largest number has three significant digits, or more if the difference of the smallest and
    the largest number needs more decimals. Integers have no decimals. Thousands are separated by
    commas. NaN becomes "missing".
    """
    array = np.array([*values], float)
    seen = array[~np.isnan(array)]
    largest, spread = (np.abs(seen).max(), np.ptp(seen)) if seen.size else (0.0, 0.0)
    decimals = 0
    if (np.abs(seen - np.round(seen)) > _ROUNDING * largest).any():
        decimals = _N_DIGITS - 1 - _exponent(largest)
        if spread > _ROUNDING * largest:
            decimals = max(decimals, -_exponent(spread))
    kind = f"z,.{max(decimals, 0)}f"
    if decimals > _MOST_DECIMALS or (largest and _exponent(largest) > _MOST_PLACES):
        kind = f"z.{_N_DIGITS - 1}e"
    return ["missing" if number != number else format(number, kind) for number in array.tolist()]


def _exponent(number: float) -> int:
    """Exponent of a positive number in scientific notation."""
    return int(np.floor(np.log10(number)))


@dataclass(frozen=True)
class TableUnits:
    """Relation of features to the columns of the table from which they were prepared.

    Attributes
    ----------
    indicators : by name of a binary feature, the tuple (column of the table, value at 0, value
        at 1); the mean of the feature is the share of the value at 1
    scales : by name of a standardised feature, the tuple (mean, standard deviation)
    logarithms : by name of a feature log(x + a), the tuple (name of the column x, a)
    symbols : by name of a column with a unit, the unit
    """

    indicators: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scales: Mapping[str, Sequence[float]] = field(default_factory=dict)
    logarithms: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    symbols: Mapping[str, str] = field(default_factory=dict)

    def column(self, name: str) -> str:
        """Name of the column x of a feature log(x + a); the name of any other feature."""
        return self.logarithms[name][0] if name in self.logarithms else name

    def label(self, name: str) -> str:
        """Name of the column of a feature, with its unit in brackets if the unit is known."""
        column = self.column(name)
        return f"{column} [{self.symbols[column]}]" if column in self.symbols else column

    def restore(self, name: str, values: Any) -> np.ndarray:
        """Convert values of a feature to the unit of its column.

        The mean of logarithms becomes the geometric mean.
        """
        mean, deviation = self.scales.get(name, (0.0, 1.0))
        result = np.asarray(values) * deviation + mean
        return np.exp(result) - self.logarithms[name][1] if name in self.logarithms else result

    def format_means(self, name: str, means: Sequence[float]) -> list[str]:
        """Format means of a feature, in the unit of its column; means of indicators in percent."""
        if name in self.indicators:
            return [f"{100 * mean:.0f} %" for mean in means]
        return format_numbers(self.restore(name, means))

    def describe_means(self, name: str, means: Sequence[float]) -> list[str]:
        """Format means of a feature with their unit; the type of mean precedes the first mean."""
        texts = self.format_means(name, means)
        if name in self.indicators:
            return texts
        symbol = self.symbols.get(self.column(name), "")
        texts = [f"{text} {symbol}" if symbol else text for text in texts]
        # A mean in percent must not look like a share of rows.
        which = "geometric mean " if name in self.logarithms else "mean " * (symbol in ("%", "‰"))
        return [f"{which}{texts[0]}", *texts[1:]]
