"""What the commands that cluster a file are given: its rows, and labelings of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from nrprob.cli.terminal import note, warn
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
    "Missing",
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
    str | None, Option(help="Feature columns, separated by commas; all others by default.")
]
Drop = Annotated[str | None, Option(help="Columns to leave out, separated by commas.")]
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


def listed(text: str | None) -> list[str]:
    """Parts of a text between commas."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


@dataclass
class Given:
    """Rows, what is known of them, and what a result is compared with.

    Attributes
    ----------
    table : rows, and all labelings of them
    known, names : what is known, as estimators take it; the names of what of it is labelings
    y, classes : wanted labels, -1 where unknown, and the names of the classes; None for none
    origin : what `result.json` says of the data: the command, files, and how they were prepared
    notes, warnings : what was done to the rows, and what looks wrong about them
    """

    table: Table
    known: Any = None
    names: list[str] = field(default_factory=list)
    y: np.ndarray | None = None
    classes: list[str] = field(default_factory=list)
    origin: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def tell(self) -> None:
        """Say what was done to the rows."""
        for line in self.notes:
            note(line)
        for line in self.warnings:
            warn(line)


def read_given(
    data: Path,
    options: dict[str, list[str]],
    columns: list[str],
    drop: list[str],
    standardize: bool | None,
    missing: str,
) -> Given:
    """Read the rows, and the columns that the options --known, --compare and --labels name."""
    import numpy as np
    import pandas as pd
    import scipy.sparse

    from nrprob.batch import sources, tables
    from nrprob.files import digest
    from nrprob.preparation.prepare import prepared

    if missing not in ("error", "drop", "mean"):
        raise InputError(
            f"--missing is error, drop or mean; got {missing!r}; pass for example --missing drop"
        )
    places = {option: [_place(text, data) for text in texts] for option, texts in options.items()}
    everything = [place for group in places.values() for place in group]
    named = [column for file, column in everything if file.resolve() == data.resolve()]
    X, row_names = _rows(data, columns, drop, named)
    n, scaled = X.shape[0], "auto" if standardize is None else standardize
    read = {place: _column(*place, n) for place in dict.fromkeys(everything)}
    known = _named(places["known"], read)
    if scipy.sparse.issparse(X):
        sources.require_numbers(tables.Table(X))
        X, scaled = tables.scaler(X).transform(X) if standardize else X, False
    told = _together(known, getattr(X, "index", None))
    ready = prepared(X, known=told, missing=missing, standardize=scaled, say=_as_option)
    rows = ready.rows_
    if row_names is None and len(rows) < n:
        row_names = np.arange(n)
    table = tables.Table(
        ready.X,
        ready.feature_names_ if hasattr(X, "columns") else None,
        row_names=None if row_names is None else row_names[rows],
    )
    given = Given(table, ready.known, notes=ready.notes, warnings=ready.warnings)
    labels = {n: v for n, v in known.items() if v.ndim == 1 and not _is_measured(ready.known, n)}
    given.names = list(labels)
    for name, values in (labels | _named(places["compare"], read, known)).items():
        where = f"--{'known' if name in labels else 'compare'} {name}"
        own = values[rows]
        if name not in labels and missing != "error" and (gaps := int(pd.isna(own).sum())):
            own = np.where(pd.isna(own), "(missing)", pd.Series(own).astype(str))
            given.notes.append(f"{where}: rows without a value ({gaps}) are a group of their own")
        table.labelings[name] = tables.as_labels(own, where)
    for place in places["labels"]:
        given.y, given.classes = _classes(read[place][rows])
    given.origin = {
        "command": shlex.join(["nrprob", *sys.argv[1:]]),
        "files": {str(file): digest(file) for file in [data, *(file for file, _ in everything)]},
        "prepared": {
            "missing": missing,
            "features": ready.feature_names_,
            "known": list(known),
            "rows_left_out": np.setdiff1d(np.arange(n), rows).tolist(),
            "scales": ready.scales_,
            "notes": ready.notes,
            "warnings": ready.warnings,
        },
    }
    return given


def _rows(
    data: Path, columns: list[str], drop: list[str], named: list[str]
) -> tuple[Any, np.ndarray | None]:
    """Rows of a file: features with their names, and names of the rows; or a matrix, and None."""
    from nrprob.batch import tables

    frame = tables.contents(data)
    if isinstance(frame, dict):
        return tables.read(data, columns=columns, drop=drop).X, None
    tables.require_columns([*columns, *drop, *named], list(frame.columns), data)
    left = list(dict.fromkeys(columns)) or [c for c in frame if c not in {*drop, *named}]
    if not left:
        raise InputError(f"no column is left; {data}; drop fewer, or choose with --columns")
    return frame[left], frame.index.to_numpy()


def _column(file: Path, column: str, n: int) -> np.ndarray:
    from nrprob.batch import tables

    values = tables.read_column(file, column)
    if len(values) != n:
        raise InputError(
            f"{column} of {file} does not go with the data; {len(values)} values for {n} rows; "
            "give one value per row, in the same order"
        )
    return values


def _named(
    places: list[tuple[Path, str]],
    read: dict[tuple[Path, str], np.ndarray],
    others: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Columns by their names, with the file where a name is taken."""
    found: dict[str, np.ndarray] = {}
    for file, column in places:
        name = column if column not in {*found, *others} else f"{file}:{column}"
        found[name] = read[file, column]
    return found


def _together(known: dict[str, np.ndarray], index: Any) -> Any:
    """What is known as one table, or a matrix, which is numbers."""
    import pandas as pd

    if not known:
        return None
    matrices = [values for values in known.values() if values.ndim > 1]
    if matrices and len(known) > 1:
        raise InputError(
            "several --known have to be columns; one of them is a matrix; "
            f"{', '.join(known)}; give the matrix alone, or its columns"
        )
    return matrices[0] if matrices else pd.DataFrame(known, index=index)


def _is_measured(known: Any, name: str) -> bool:
    """Whether a known column is one of numbers."""
    return hasattr(known, "columns") and known[name].dtype.kind == "f"


def _as_option(option: str, value: Any) -> str:
    """How an argument of `nrprob.prepare` is written here."""
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    text = ",".join(value) if isinstance(value, list) else value
    return f"--{option} {shlex.quote(text)}"


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
