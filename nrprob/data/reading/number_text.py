"""Numbers that are written as text: decimal commas, thousands separators, percent, currency.

A comma or a point may be the decimal separator, or separate thousands. The whole column decides:

1. A separator that is not followed by groups of three digits is the decimal separator. The same
   holds for a separator after a leading zero, and in a column whose whole numbers of four or more
   digits have no separator.
2. A separator that occurs twice in a number, or precedes the other separator, separates thousands.
3. If a column admits both readings, such as 1,234, the other columns of the table decide, and then
   the separator of the columns of the file: a semicolon suggests decimal commas, and a comma
   suggests decimal points. Otherwise the column is ambiguous.

pandas reads points as decimal points. In a file with semicolons, the points of a column without
commas separate thousands only if the column also has integers below 1000 without a point
(`NumberColumn.mixes_lengths`).

The module imports no package that loads slowly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "DECIMALS", "MISSING_TEXT", "MISSING_WORDS", "NumberColumn", "Reading", "analyse_texts",
    "read_number",
]  # fmt: skip

DECIMALS = ".,"  # decimal separators, in the order of the readings of a number

# In a column of numbers, these texts stand for missing values (compared in lower case).
MISSING_TEXT = frozenset(
    ["?", "-", "--", "–", "—", ".", "..", "*", "na", "n/a", "n.a.", "#n/a", "#na", "<na>", "nan",
     "-nan", "null", "none", "nil", "missing", "#div/0!", "#value!", "#ref!", "#num!", "#name?",
     "#null!"]
)  # fmt: skip
# In a column of text, only these words stand for missing values, since others may be categories.
MISSING_WORDS = frozenset(
    ["NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null"]
)
_MOSTLY = 0.8  # minimum share of numbers in a column that was meant to be numeric

_CURRENCY = (
    r"[€$£¥₹₽₩₪₺]|US\$|R\$|kr\.?|zł|Kč|Fr\.|(?:USD|EUR|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|"
    r"CAD|AUD|NZD|HKD|SGD|KRW|BRL|MXN|ZAR|RUB|TRY)\b"
)
_SPACES = " \u00a0\u202f\u2009'’"
_NUMBER = re.compile(
    rf"\s*(?P<open>\()?\s*(?P<sign>[+\-\u2212]?)\s*(?P<before>{_CURRENCY})?\s*(?P<inner>[\-\u2212]?)"
    rf"(?P<body>\d[\d.,{_SPACES}]*|[.,]\d+)(?P<power>[eE][+-]?\d+)?"
    rf"\s*(?P<after>%|‰|{_CURRENCY})?\s*(?P<close>\))?\s*"
)
# Thousands never begin with a zero. A number has one kind of separator between thousands.
_BY_COMMAS = re.compile(r"[1-9]\d{0,2}(,\d{3})+")
_BY_POINTS = re.compile(r"[1-9]\d{0,2}(\.\d{3})+")
_BY_SPACES = re.compile(rf"[1-9]\d{{0,2}}(([{_SPACES}])\d{{3}})(\2\d{{3}})*")
_PLAIN = re.compile(r"\d+")
_SHORT = re.compile(r"\s*[+\-\u2212]?\d{1,3}\s*")


def _read_body(body: str, decimal: str) -> tuple[str, bool] | None:
    """Read the digits and separators ``body`` of an unsigned number.

    Returns the number as text with a decimal point, and whether its thousands are separated. The
    result is None if ``body`` is not a number with the decimal separator ``decimal``.
    """
    integer, separator, fraction = body.partition(decimal)
    if separator and not (fraction.isdigit() if fraction else integer):
        return None
    is_grouped = bool(integer) and _PLAIN.fullmatch(integer) is None
    if is_grouped:
        thousands = _BY_COMMAS if decimal == "." else _BY_POINTS
        if not (thousands.fullmatch(integer) or _BY_SPACES.fullmatch(integer)):
            return None
        integer = re.sub(r"\D", "", integer)
    return (f"{integer or '0'}.{fraction or '0'}" if separator else integer), is_grouped


class Reading(NamedTuple):
    """The number that a text stands for, under each of the two decimal separators.

    Attributes
    ----------
    values : two numbers: with the point, and with the comma, as decimal separator; None if the text
        is not a number with this separator
    unit : percent or currency sign; empty without a sign
    is_bare : whether the text is a whole number of four digits or more, without separators
    is_grouped : for each decimal separator, whether the thousands of the number are separated
    is_negative : whether parentheses mark a negative number
    """

    values: tuple[float | None, float | None]
    unit: str
    is_bare: bool
    is_grouped: tuple[bool, bool]
    is_negative: bool


def read_number(text: str) -> Reading | None:
    """Read a text as a number, with a point and with a comma as decimal separator.

    Returns None if the text is not a number with a point, and not a number with a comma either.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    parts = match.groupdict(default="")
    body = parts["body"].rstrip(_SPACES)
    unit = parts["before"] or parts["after"]
    if (parts["before"] and parts["after"]) or bool(parts["open"]) != bool(parts["close"]):
        return None
    if parts["inner"] and (parts["sign"] or not parts["before"]):
        return None
    minus = bool(parts["open"]) + (parts["sign"] in "-\u2212") * bool(parts["sign"])
    minus += bool(parts["inner"])
    if minus > 1:
        return None
    values: list[float | None] = []
    is_grouped = []
    for decimal in DECIMALS:
        digits, grouped = _read_body(body, decimal) or ("", False)
        sign = "-" * minus
        values.append(float(f"{sign}{digits}{parts['power']}") if digits else None)
        is_grouped.append(grouped)
    if values == [None, None]:
        return None
    is_bare = len(body) > 3 and _PLAIN.fullmatch(body) is not None
    return Reading(
        (values[0], values[1]), unit.strip("."), is_bare, (is_grouped[0], is_grouped[1]),
        bool(parts["open"]),
    )  # fmt: skip


@dataclass
class NumberColumn:
    """Result of `analyse_texts`: distinct texts of a column as numbers.

    Attributes
    ----------
    readings : for every distinct text that is a number, its `Reading`
    missing : distinct texts that stand for missing values
    others : all other distinct texts; the column can be read as numbers only if there are none
    decimals : admissible decimal separators
    is_ambiguous : whether two decimal separators are admissible and give different numbers
    units : percent and currency signs; an empty text stands for numbers without a sign
    counts : for every distinct text, its number of rows
    """

    readings: dict[str, Reading]
    missing: list[str]
    others: list[str]
    decimals: str = ""
    is_ambiguous: bool = False
    units: list[str] = field(default_factory=list)
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all texts consist of digits only, such as codes stored as text."""
        return not (self.missing or self.others) and all(map(_PLAIN.fullmatch, self.readings))

    @property
    def mixes_lengths(self) -> bool:
        """Whether the column is ambiguous, and has integers of up to three digits as well.

        Numbers such as 547 and 2.593 in one column suggest separators of thousands: with decimal
        points, 547 would have three decimals like the other numbers.
        """
        return self.is_ambiguous and any(_SHORT.fullmatch(text) for text in self.readings)

    def differing(self) -> list[str]:
        """Texts whose value depends on the decimal separator, or that fit only one separator."""
        return [t for t, r in self.readings.items() if r.values[0] != r.values[1]]

    def odd_texts(self, decimal: str = "") -> list[str]:
        """Return the texts that keep the column from being read as numbers; empty if none does.

        ``decimal`` is the required decimal separator; empty if every separator is admissible. If
        the column has decimal points and decimal commas, the result has the texts of the notation
        with fewer rows, and then one text of the other notation.
        """
        if self.others:
            return self.others
        if len(self.units) > 1:  # an example of every unit
            first = {r.unit: text for text, r in reversed(self.readings.items()) if any(r.values)}
            return [first[unit] for unit in self.units]
        if decimal and decimal not in self.decimals:
            i = DECIMALS.index(decimal)
            return [text for text, r in self.readings.items() if r.values[i] is None]
        if self.decimals:
            return []
        # No decimal separator fits all numbers. A text belongs to the notation with points or with
        # commas if it is a number in this notation only. If all texts are numbers in both
        # notations, such as 1,234 and 1.234, the mark in the text decides.
        texts = self.differing()
        sole = [[t for t in texts if self.readings[t].values[1 - i] is None] for i in range(2)]
        sole = sole if any(sole) else [[t for t in texts if mark in t] for mark in DECIMALS]
        rare, common = sorted(sole, key=lambda group: sum(self.counts[t] for t in group))
        return [*rare, max(common, key=self.counts.__getitem__)]


def analyse_texts(counts: Mapping[str, int]) -> NumberColumn | None:
    """Read the distinct texts of a column as numbers; None if the column is text.

    A column is text unless at least 80 % of its values, except missing values, are numbers.
    ``counts`` maps every distinct text to its number of rows.
    """
    readings, missing, others = dict[str, Reading](), list[str](), list[str]()
    total = sum(counts.values())
    n_numbers = n_others = 0
    for text, count in counts.items():
        if (reading := read_number(text)) is not None:
            readings[text] = reading
            n_numbers += count
        elif text.strip().lower() in MISSING_TEXT:
            missing.append(text)
        else:
            others.append(text)
            n_others += count
            if n_others > (1 - _MOSTLY) * total:
                return None
    if not readings or n_numbers < _MOSTLY * (n_numbers + n_others):
        return None
    column = NumberColumn(readings, missing, others, counts=counts)
    column.units = sorted({r.unit for r in readings.values() if any(r.values)}) or [""]
    column.decimals = "".join(
        decimal
        for i, decimal in enumerate(DECIMALS)
        if all(r.values[i] is not None for r in readings.values())
    )
    texts = column.differing()
    if len(column.decimals) == 2 and texts:
        marks = {mark for mark in DECIMALS for text in texts if mark in text}
        if len(marks) == 2:  # such as 1,234 and 1.234
            column.decimals = ""
        elif any(r.is_bare for r in readings.values()):
            # Either all numbers of a column have thousands separators, or none has.
            column.decimals = marks.pop()
        else:
            column.is_ambiguous = True
    return column
