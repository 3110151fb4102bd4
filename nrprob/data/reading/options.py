"""Options of the command line that say how a text file or a spreadsheet is to be read.

The module imports no package that loads slowly, since ``--help`` imports it.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from nrprob.exceptions import InputError

__all__ = ["WHITESPACE", "ReadingOptions", "parse_options"]

WHITESPACE = r"\s+"  # the separator of columns that are separated by any number of spaces


@dataclass(frozen=True)
class ReadingOptions:
    """The user's options for reading a file; None for properties that are detected.

    Attributes
    ----------
    sep, decimal : separator of the columns, and decimal separator
    encoding : encoding of a text file
    na_values : texts that stand for missing values, besides empty cells
    sheet : name or number (from 1) of the sheet of a spreadsheet
    """

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    na_values: tuple[str, ...] = ()
    sheet: str | None = None


def parse_options(
    sep: str | None, decimal: str | None, encoding: str | None, na_values: Sequence[str],
    sheet: str | None,
) -> ReadingOptions:  # fmt: skip
    """Parse the options of the command line that say how a file is to be read.

    Raises
    ------
    InputError
        If the value of an option is invalid.
    """
    words = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|",
             "space": WHITESPACE, " ": WHITESPACE}  # fmt: skip
    separator = None if sep is None else words.get(sep.lower(), sep)
    if (
        separator is not None
        and separator != WHITESPACE
        and (len(separator) != 1 or separator in '"\r\n')
    ):
        raise InputError(
            f"--sep must be one character, or one of {', '.join(w for w in words if w.isalpha())}; "
            f"got {sep!r}; pass for example --sep semicolon"
        )
    marks = {"comma": ",", "point": ".", ",": ",", ".": "."}
    if decimal is not None and decimal.lower() not in marks:
        raise InputError(
            f"--decimal must be a comma or a point; got {decimal!r}; pass for example --decimal ,"
        )
    if encoding is not None:
        try:
            encoding = codecs.lookup(encoding).name
        except LookupError:
            raise InputError(
                f"there is no such encoding; --encoding {encoding}; use for example utf-8, utf-16, "
                "cp1252 or mac_roman"
            ) from None
    return ReadingOptions(
        separator, None if decimal is None else marks[decimal.lower()], encoding,
        tuple(na_values), sheet,
    )  # fmt: skip
