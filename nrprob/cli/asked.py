"""What the commands that cluster a file are asked for, refused where it is wrong before it is read.

Nothing heavy is imported: a wrong name is told of at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nrprob.exceptions import InputError

__all__ = [
    "Asked",
    "Columns",
    "Data",
    "Drop",
    "Known",
    "Missing",
    "Names",
    "Number",
    "Seed",
    "Standardize",
    "as_number",
    "ask",
]

# Options of every such command.
Data = Annotated[Path, Argument(help="Rows: a CSV, TSV, Parquet or NPZ file.")]
Known = Annotated[
    list[str] | None,
    Option(
        help="What is known, FILE:COLUMN (FILE:KEY for NPZ; COLUMN alone is one of DATA). "
        "Repeat for several labelings."
    ),
]
Columns = Annotated[
    str | None, Option(help="Feature columns, separated by commas; all others by default.")
]
Drop = Annotated[str | None, Option(help="Columns to leave out, separated by commas.")]
Names = Annotated[
    str | None,
    Option(
        help="Names of the columns of an NPZ file: a file of one a line, FILE:COLUMN, or KEY of "
        "DATA."
    ),
]
Number = Annotated[
    str | None,
    Option("--k", help="Number of clusters, or auto; 2 by default. The most, where it is sampled."),
]
Seed = Annotated[int | None, Option(help="Makes the run repeatable.")]
Missing = Annotated[
    str, Option(help="Missing values: error, drop (their rows), or mean (fill them in).")
]
Standardize = Annotated[
    bool | None,
    Option(
        "--standardize/--no-standardize",
        help="Give features mean 0 and standard deviation 1; by default measurements of a table "
        "whose scales differ tenfold.",
    ),
]

Column = tuple[Path, str]  # a file, and the name of a column


@dataclass
class Asked:
    """Rows, and labelings of them, as the options name them.

    Attributes
    ----------
    data : file of the rows
    labelings : option -> the columns that it names
    columns, drop : features to take, all where there are none; and to leave out
    names : where the names of the features are; no column where they are lines of a file
    standardize, missing : as `nrprob.prepare` takes them
    """

    data: Path
    labelings: dict[str, list[Column]]
    columns: list[str]
    drop: list[str]
    names: Column | None
    standardize: bool | str
    missing: str

    @property
    def others(self) -> list[Column]:
        """All columns that are no features, each once."""
        return list(dict.fromkeys(one for own in self.labelings.values() for one in own))

    @property
    def own(self) -> list[str]:
        """Those of them that are columns of the data."""
        return [name for file, name in self.others if file.resolve() == self.data.resolve()]


def ask(
    data: Path,
    labelings: dict[str, list[str]],
    columns: str | None,
    drop: str | None,
    names: str | None,
    standardize: bool | None,
    missing: str,
) -> Asked:
    """Read the options, which say FILE:COLUMN of labelings, and hold them against the files.

    Raises
    ------
    nrprob.exceptions.InputError
        If a file or a column is not there.
    """
    from nrprob.batch import formats

    if missing not in ("error", "drop", "mean"):
        raise InputError(
            f"--missing is error, drop or mean; got {missing!r}; pass for example --missing drop"
        )
    there = {data: formats.column_names(data)}
    scaled = "auto" if standardize is None else standardize
    places = {option: [_place(text, data) for text in texts] for option, texts in labelings.items()}
    asked = Asked(data, places, _listed(columns), _listed(drop), None, scaled, missing)
    if names is not None:
        asked.names = _names_place(names, data)
    arrays = data.suffix == ".npz"
    if not arrays:
        formats.require_columns([*asked.columns, *asked.drop], there[data], data)
    elif (asked.columns or asked.drop) and names is None:
        raise InputError(
            f"columns of an NPZ file have no names; {data}; name them with --feature-names, or cut "
            "the array itself"
        )
    for file, name in [*asked.others, *([asked.names] if asked.names and asked.names[1] else [])]:
        if file not in there:
            there[file] = formats.column_names(file)
        formats.require_columns([name], there[file], file)
    if not arrays and not asked.columns and not set(there[data]) - {*asked.drop, *asked.own}:
        raise InputError(f"no column is left; {data}; drop fewer, or choose with --columns")
    return asked


def as_number(k: str | None) -> int | str | None:
    """What --k says: a number, "auto", or nothing.

    Raises
    ------
    nrprob.exceptions.InputError
        If it is another word.
    """
    if k is None or k == "auto":
        return k
    try:
        return int(k)
    except ValueError:
        raise InputError(f"--k is a number or auto; got {k!r}; pass for example --k 3") from None


def _listed(text: str | None) -> list[str]:
    """Parts of a text between commas, each once."""
    return list(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def _place(text: str, data: Path) -> Column:
    """Split FILE:COLUMN; a bare COLUMN is one of DATA."""
    file, _, column = text.rpartition(":")
    if not column:
        raise InputError(f"a labeling is FILE:COLUMN; {text!r}; name the column after the colon")
    return (Path(file) if file else data), column


def _names_place(text: str, data: Path) -> Column:
    """Where names of features are: lines of a file, or a column."""
    if data.suffix != ".npz":
        raise InputError(
            f"columns of {data} have names of their own; --feature-names {text}; leave it out"
        )
    lines = Path(text)
    return (lines, "") if lines.is_file() else _place(text, data)
