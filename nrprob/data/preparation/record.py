"""Record of a preparation, and its messages."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nrprob.data.frames import quote_names
from nrprob.data.reading.conversion import Problem, as_command_options

Say = Callable[[str, Any], str]


class MissingValues(ValueError):
    """Error for missing or infinite values that the argument ``missing`` does not allow.

    `nrprob.prepare` describes ``missing``.
    """


class NoFeatureLeft(ValueError):
    """Error for a table of which no column can be a feature."""


class UnfitColumns(ValueError):
    """Error for columns that cannot be features, and whose treatment the user has to choose.

    Attributes
    ----------
    problems : list of Problem
        The columns that cannot be features, and why.
    """

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)  # arguments from which a pickle restores the exception
        self.problems = list(problems)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that cannot be features."""
        return [name for problem in self.problems for name in problem.columns]


def unfit_columns(problems: Sequence[Problem], texts: str, say: Say) -> UnfitColumns:
    """Make one error for all columns that cannot be features.

    ``problems`` are these columns, ``texts`` describes the admissible text, and ``say`` is as in
    `Record`.
    """
    # Columns with the same remedy share one advice, which names them in the option "drop".
    columns: dict[str, list[str]] = {}
    for problem in problems:
        remedy = problem.remedy
        if say is as_option and "drop" not in problem.options:
            remedy += f", or pass {as_command_options([problem])}"
        columns.setdefault(remedy, []).extend(problem.columns)
    advice = [
        f"{remedy}, or leave the column{'s' * (len(names) > 1)} out with {say('drop', names)}"
        for remedy, names in columns.items()
    ]
    message = (
        f"columns must hold numbers, booleans or {texts}; got "
        f"{', '.join(problem.got for problem in problems)}; {'; '.join(advice)}"
    )
    return UnfitColumns(message, problems)


def as_python(option: str, value: Any) -> str:
    """Format an argument of `nrprob.prepare` as in Python code."""
    return f"{option}={value!r}"


def as_option(option: str, value: Any) -> str:
    """Format an argument of `nrprob.prepare` as on the command line."""
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    text = ",".join(value) if isinstance(value, list) else value
    return f"--{option} {shlex.quote(text)}"


@dataclass
class Record:
    """Record of what the preparation of a table has changed, and of suspicious columns.

    Attributes
    ----------
    say : function that formats an argument (name and value) for the advice in messages, such as
        `as_python`
    named : whether columns have names, so that they can be dropped by name
    categories : treatment of text, "keep" or "indicators"
    notes : descriptions of the changes
    warnings : descriptions of suspicious columns
    identifiers : columns that are left out since they identify rows
    indicators : by name of a binary column, the column of the table from which it was made, the
        value that became 0, and the value that became 1
    """

    say: Say = as_python
    named: bool = True
    categories: str = "keep"
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    identifiers: list[str] = field(default_factory=list)
    indicators: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    @property
    def keeps(self) -> bool:
        """Whether text is kept as categories."""
        return self.categories == "keep"

    def note_columns(self, names: list[str], line: str) -> None:
        """Add the note ``line`` about the columns ``names``.

        The names, followed by "is" or "are", replace ``{}`` in the line. Without names, no note is
        added.
        """
        if names:
            verb = "is" if len(names) == 1 else "are"
            self.notes.append(line.format(f"{quote_names(names)} {verb}"))
