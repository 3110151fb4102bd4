"""Record of a preparation, and its messages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nrprob.data.frames import quote_names

Say = Callable[[str, Any], str]


class MissingValues(ValueError):
    """Values are missing, or infinite, and rows with such were not to be left out."""


class UnfitColumns(ValueError):
    """Columns cannot be features, nor is it clear what to do with them.

    Attributes
    ----------
    columns : list of str
    """

    def __init__(self, message: str, columns: Sequence[str] = ()) -> None:
        super().__init__(message)  # by which alone a pickle makes it again
        self.columns = list(columns)


def as_python(option: str, value: Any) -> str:
    """How an argument is written."""
    return f"{option}={value!r}"


def as_option(option: str, value: Any) -> str:
    """How an argument is written on the command line."""
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    text = ",".join(value) if isinstance(value, list) else value
    return f"--{option} {shlex.quote(text)}"


@dataclass
class Record:
    """Sentences about a table.

    Attributes
    ----------
    say : writes what to ask for, by the name of an argument and its value
    named : whether columns have names, by which they can be left out
    categories : "keep" or "indicators", what becomes of text
    notes : what was done
    warnings : what looks wrong
    indicators : of columns of 0 and 1, the column of the table and its values at 0 and 1
    """

    say: Say = as_python
    named: bool = True
    categories: str = "keep"
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    indicators: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    @property
    def keeps(self) -> bool:
        """Whether text is kept as categories."""
        return self.categories == "keep"

    def note_columns(self, names: list[str], line: str) -> None:
        """Add a sentence about columns, whose subject and verb replace ``{}``."""
        if names:
            verb = "is" if len(names) == 1 else "are"
            self.notes.append(line.format(f"{quote_names(names)} {verb}"))
