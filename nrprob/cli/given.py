"""What the commands that cluster a file are given: its rows, and labelings of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from nrprob.cli.terminal import note
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    import numpy as np

    from nrprob.batch.tables import Table

__all__ = [
    "Columns",
    "Data",
    "Drop",
    "Given",
    "Known",
    "Out",
    "Seed",
    "Standardize",
    "listed",
    "read_given",
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
Out = Annotated[Path, Option(help="Folder to write to.")]
Columns = Annotated[
    str | None, Option(help="Feature columns, separated by commas; default all numeric.")
]
Drop = Annotated[str | None, Option(help="Columns to leave out, separated by commas.")]
Seed = Annotated[int | None, Option(help="Makes the run repeatable.")]
Standardize = Annotated[bool, Option(help="Give every feature mean 0 and standard deviation 1.")]


def listed(text: str | None) -> list[str]:
    """Parts of a text between commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


@dataclass
class Given:
    """Rows, what is known of them, and what a result is compared with.

    Attributes
    ----------
    table : rows, and all labelings of them
    known, names : what is known; the names of those of them that are labelings
    y, classes : wanted labels, -1 where unknown, and the names of the classes; None for none
    """

    table: Table
    known: list[np.ndarray] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    y: np.ndarray | None = None
    classes: list[str] = field(default_factory=list)

    def tell_left_out(self) -> None:
        """Say which columns are no features."""
        if self.table.left_out:
            note(f"not numeric and left out: {', '.join(self.table.left_out)}")

    def all_known(self) -> np.ndarray | None:
        """What is known, as estimators take it."""
        from nrprob.batch import sources

        if len(self.known) > 1 and any(z.ndim > 1 for z in self.known):
            raise InputError(
                "several --known have to be labelings, one column each; one of them is a matrix; "
                "give the matrix alone"
            )
        return sources.known_array(self.known)


def read_given(
    data: Path,
    options: dict[str, list[str]],
    columns: list[str],
    drop: list[str],
    standardize: bool,
) -> Given:
    """Read the rows, and the columns that the options --known, --compare and --labels name."""
    from nrprob.batch import sources, tables

    places = {option: [_place(text, data) for text in texts] for option, texts in options.items()}
    if data.suffix != ".npz":
        everything = [place for group in places.values() for place in group]
        drop += [column for file, column in everything if file.resolve() == data.resolve()]
    table = tables.read(data, columns=columns, drop=drop)
    sources.require_numbers(table)
    if standardize:
        table.X = tables.scaler(table.X).transform(table.X)
    given = Given(table)

    def read(option: str, file: Path, column: str) -> np.ndarray:
        values, n = tables.read_column(file, column), table.X.shape[0]
        if len(values) != n:
            raise InputError(
                f"--{option} {column} does not go with the data; {len(values)} values for {n} "
                "rows; give one value per row, in the same order"
            )
        return values

    def label(option: str, file: Path, column: str, values: np.ndarray) -> str:
        name = column if column not in table.labelings else f"{file}:{column}"
        table.labelings[name] = tables.as_labels(values, f"--{option} {column}")
        return name

    for place in places["known"]:
        values = read("known", *place)
        # A float matrix is continuous known structure: what to do is the method's business.
        if values.ndim == 1:
            given.names.append(label("known", *place, values))
            values = table.labelings[given.names[-1]]
        given.known.append(values)
    for place in places["compare"]:
        label("compare", *place, read("compare", *place))
    for place in places["labels"]:
        given.y, given.classes = _classes(read("labels", *place))
    return given


def _place(text: str, data: Path) -> tuple[Path, str]:
    """Split FILE:COLUMN; a bare COLUMN is one of DATA."""
    file, _, column = text.rpartition(":")
    if not column:
        raise InputError(f"a labeling is FILE:COLUMN; {text!r}; name the column after the colon")
    return (Path(file) if file else data), column


def _classes(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Partial labels as integers with -1 where unknown, and the names of the classes."""
    import numpy as np
    import pandas as pd

    unknown = pd.isna(values) | np.isin(np.asarray(values, dtype=str), ("", "-1", "-1.0"))
    # A column of whole numbers with gaps is read as real numbers: 1.0 is the class "1".
    names = pd.Series([f"{v:g}" if isinstance(v, float) else str(v) for v in values], dtype=object)
    y, classes = pd.factorize(names.mask(unknown), sort=True)
    return y, classes.tolist()
