"""Options of the commands that cluster a file, checked before the file is read.

Nothing heavy is imported, so that a wrong name is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from nrprob.cli.validation import check_at_least
from nrprob.exceptions import InputError

__all__ = [
    "Alpha",
    "Asked",
    "Columns",
    "Data",
    "Drop",
    "Known",
    "Layer",
    "Missing",
    "Names",
    "Number",
    "Obsm",
    "Seed",
    "Standardize",
    "Test",
    "as_number",
    "ask",
    "level",
]

# Options of every such command.
Data = Annotated[Path, Argument(help="Rows: a CSV, TSV, Parquet, NPZ or H5AD file.")]
Known = Annotated[
    list[str] | None,
    Option(
        help="What is known, FILE:COLUMN (FILE:KEY for NPZ, a column of obs for H5AD; COLUMN alone "
        "is one of DATA). "
        "Repeat for several labelings."
    ),
]
Columns = Annotated[
    list[str] | None,
    Option(help="Feature columns, separated by commas, or repeated; all others by default."),
]
Drop = Annotated[
    list[str] | None, Option(help="Columns to leave out, separated by commas, or repeated.")
]
Names = Annotated[
    str | None,
    Option(
        help="Names of the columns of an NPZ file: a file of one a line, FILE:COLUMN, or KEY of "
        "DATA."
    ),
]
Layer = Annotated[
    str | None, Option(help="Layer of an H5AD file that holds the rows; X by default.")
]
Obsm = Annotated[str | None, Option(help="Entry of obsm of an H5AD file that holds the rows.")]
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
Test = Annotated[
    bool,
    Option("--test", help="Test whether the clusters are there, and how sure rows are."),
]
Alpha = Annotated[
    float | None,
    Option(help="p-value up to which a test counts as evidence of clusters; 0.05 by default."),
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
    part : which part of annotated data the rows are, as `nrprob.rows_of` takes it
    standardize, missing : as `nrprob.prepare` takes them
    """

    data: Path
    labelings: dict[str, list[Column]]
    columns: list[str]
    drop: list[str]
    names: Column | None
    part: dict[str, str]
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
    columns: list[str] | None,
    drop: list[str] | None,
    names: str | None,
    part: dict[str, str | None],
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
    asked = Asked(
        data,
        {option: [_place(text, data) for text in texts] for option, texts in labelings.items()},
        _listed(columns),
        _listed(drop),
        None if names is None else _names_place(names, data),
        {kind: name for kind, name in part.items() if name is not None},
        "auto" if standardize is None else standardize,
        missing,
    )
    for kind, name in asked.part.items():
        formats.require_part(data, kind, name)
    if len(asked.part) > 1:
        raise InputError("rows are of a layer or of obsm; got --layer and --obsm; choose one")
    if formats.is_table(data):
        formats.require_columns([*asked.columns, *asked.drop], there[data], data)
        if not asked.columns and not set(there[data]) - {*asked.drop, *asked.own}:
            raise InputError(f"no column is left; {data}; drop fewer, or choose with --columns")
    elif (asked.columns or asked.drop) and asked.names is None:
        if data.suffix == ".npz":
            raise InputError(
                f"columns of an NPZ file have no names; {data}; name them with --feature-names, or "
                "cut the array itself"
            )
        if "obsm" in asked.part:
            raise InputError(
                f"columns of obsm have no names; --obsm {asked.part['obsm']}; leave out --columns "
                "and --drop"
            )
    for option, places in asked.labelings.items():
        for file, name in places:
            if places.count((file, name)) > 1:
                given = f"{file}:{name}, more than once"
                raise InputError(f"a column is named once; --{option} {given}; leave out the rest")
    others = [*asked.others, *([asked.names] if asked.names and asked.names[1] else [])]
    for file, name in others:
        if file not in there:
            there[file] = formats.column_names(file)
        formats.require_columns([name], there[file], file)
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
        number = int(k)
    except ValueError:
        raise InputError(f"--k is a number or auto; got {k!r}; pass for example --k 3") from None
    check_at_least(1, number, "--k")
    return number


def level(alpha: float | None, tested: bool) -> float:
    """Level of the tests, which --alpha says.

    Raises
    ------
    nrprob.exceptions.InputError
        If it is no probability, or nothing is tested.
    """
    if alpha is None:
        return 0.05
    if not 0 <= alpha <= 1:
        raise InputError(f"--alpha is a probability; got {alpha}; pass a number from 0 to 1")
    if not tested:
        raise InputError(
            f"--alpha is the level of tests, and nothing is tested; got --alpha {alpha}; add --test"
        )
    return alpha


def _listed(texts: list[str] | None) -> list[str]:
    """Parts of texts between commas, each once."""
    parts = ",".join(texts or []).split(",")
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


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
