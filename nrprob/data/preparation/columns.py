"""Types of the columns of a table of n rows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from nrprob.data.frames import kind_of_value

MOST_VALUES = 20  # maximum number of distinct values of a text column that becomes binary columns
_FEW = 10  # minimum number of values for the checks of suspicious columns
_FAR = 10  # minimum distance of a code for missing values, in ranges of all other values

_TIME = r"\d{1,2}:\d{2}(:\d{2}(\.\d*)?)?\s*(Z|[+-]\d{2}:?\d{2})?"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec|january|february|march|april|"
_MONTH += r"june|july|august|september|october|november|december)"
_DAYS = (
    r"\d{4}-\d{1,2}-\d{1,2}", r"\d{4}/\d{1,2}/\d{1,2}",
    r"\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})",
    rf"\d{{1,2}}(st|nd|rd|th)?[ .-]*{_MONTH}[ .,-]*(\d{{2}}|\d{{4}})",
    rf"{_MONTH}[ .]*(\d{{1,2}}(st|nd|rd|th)?[ ,]+)?\d{{4}}",
    r"(18|19|20)\d{2}[-/](0[1-9]|1[0-2])", r"(18|19|20)\d{2}[ -]?q[1-4]",
)  # fmt: skip
_HOUR = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d*)?)?"  # two digits, since 1:10 may be a ratio
_DATE = re.compile(rf"\s*(({'|'.join(_DAYS)})([t ]{_TIME})?|{_HOUR})\s*", re.IGNORECASE)
_IDENTIFIER = re.compile(
    r"(.*[\s_.:-])?(id|ids|idx|uuid|guid|rowid|rownum|identifier)([\s_.:-].*)?|unnamed: \d+"
    r"|(.*[\s_.:-])?(zip|zipcode|postcode|post[\s_]code|postal[\s_]code|plz)([\s_.:-].*)?"
)
# Columns with these names may also be features, such as the counts of these words in documents.
_PERHAPS = re.compile(
    r"(.*[\s_.:-])?(index|key|row|nr|no|number|code|barcode|account|serial)([\s_.:-].*)?"
    r"|.*(number|nummer|kennung|schlüssel)"  # also at the end of a compound, as Kundennummer
)
_YEAR = re.compile(r"(.*[\s_.:-])?(year|years|yr)([\s_.:-].*)?")


def kind_of_column(column: Any) -> str:
    """Type of the values of a column of a frame.

    The type is "number", "boolean", "text", "date", "object" (values of one other type, such as
    lists), "mixed" (values of several types), or "empty". Categorical columns are "text".
    """
    import pandas as pd

    kind = getattr(column.dtype, "kind", "O")
    if isinstance(column.dtype, pd.CategoricalDtype):
        return "text" if column.notna().any() else "empty"
    if kind in "mM" or isinstance(column.dtype, pd.PeriodDtype):
        return "date"
    if kind in "biuf":
        return "boolean" if kind == "b" else "number"
    values = column.dropna()
    kinds = {kind_of_value(value) for value in values}
    if kinds == {"text"}:
        return "date" if all(_DATE.fullmatch(value) for value in values) else "text"
    if kinds == {"boolean", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "empty"


def is_float(column: Any) -> bool:
    """Whether a column contains floats."""
    return getattr(column.dtype, "kind", "O") == "f"


def as_numbers(column: Any) -> np.ndarray:
    """Values (n,) of a column of numbers or booleans; missing values become NaN.

    Raises
    ------
    ValueError
        If a value exceeds the range of floats.
    """
    single = column.dtype == np.float32
    try:
        return column.to_numpy(np.float32 if single else np.float64, na_value=np.nan)
    except OverflowError as error:
        raise ValueError(
            f"X must hold numbers within the range of floats; got others in {column.name!r}: "
            f"{error}; divide them"
        ) from None


def is_binary(values: np.ndarray) -> bool:
    """Whether all values are 0, 1 or missing."""
    return bool(((values == 0) | (values == 1) | np.isnan(values)).all())


def differs_in_every_row(values: Any) -> bool:
    """Whether all non-missing values of a text column are distinct."""
    return len(values) > 2 and values.is_unique


def is_identifier(name: str, values: np.ndarray) -> bool:
    """Whether a column of integers looks like row identifiers, by its name or by its order."""
    is_whole = len(values) >= _FEW and bool((values == np.round(values)).all())
    if not is_whole or is_binary(values):
        return False
    # A name in camel case consists of several words.
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    if _IDENTIFIER.fullmatch(words):
        return True
    if _PERHAPS.fullmatch(words) and len(np.unique(values)) == len(values):
        return True
    steps = np.diff(values)
    return bool((steps > 0).all() or (steps < 0).all())


def is_index(name: str, values: np.ndarray) -> bool:
    """Whether integers are a row index: all values differ, and they look like identifiers."""
    return is_identifier(name, values) and len(np.unique(values)) == len(values)


def is_year(name: str, values: np.ndarray) -> bool:
    """Whether integers look like years: by the column name, or if all lie in 1900 to 2100."""
    is_whole = len(values) >= _FEW and bool((values == np.round(values)).all())
    if not is_whole or not 1000 <= values.min() <= values.max() <= 3000:
        return False
    modern = 1900 <= values.min() and values.max() <= 2100
    return bool(_YEAR.fullmatch(name.lower())) or bool(modern)


def missing_value_code(values: np.ndarray) -> float | None:
    """Return the lowest or the highest value if it is probably a code for missing values.

    Such a value is farther from all other values than ten times the range of the other values. An
    example is -9999 among shares. The result is None if there is no such value.
    """
    if len(values) < _FEW or values.min() == values.max():
        return None
    for end in (values.min(), values.max()):
        others = values[values != end]
        low, high = float(others.min()), float(others.max())
        away = max(low - float(end), float(end) - high)
        if away / _FAR > high - low and len(np.unique(others)) >= _FEW:
            return float(end)
    return None
