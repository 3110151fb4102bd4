"""Load features and labels for the command line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nrprob.batch.registry import METHODS
from nrprob.cli.options import Asked, Column
from nrprob.cli.terminal import note, warn
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    import numpy as np

    from nrprob.batch.tables import Table

__all__ = ["Given", "check_groups", "check_known", "check_sparse", "command", "read_given"]


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

    @property
    def measured(self) -> np.ndarray | None:
        """Known numbers (n, m); None where there are none."""
        import numpy as np

        if hasattr(self.known, "select_dtypes"):
            numbers = self.known.select_dtypes("float").to_numpy()
            return numbers if numbers.size else None
        known = np.asarray(self.known)
        return known if known.ndim == 2 and known.dtype.kind == "f" else None

    def tell(self) -> None:
        """Say what was done to the rows."""
        for line in self.notes:
            note(line)
        for line in self.warnings:
            warn(line)


def read_given(asked: Asked) -> Given:
    """Read the rows, and the columns that the options --known, --compare and --labels name."""
    import numpy as np
    import pandas as pd
    import scipy.sparse

    from nrprob.batch import tables
    from nrprob.data.preparation.prepare import prepared
    from nrprob.data.preparation.record import as_option
    from nrprob.files import digest

    files = dict.fromkeys([asked.data, *(file for file, _ in asked.others)])
    sources = {file: tables.read_contents(file) for file in files}
    X, row_names, names = _rows(asked, sources[asked.data])
    n, scaled = X.shape[0], asked.standardize
    read = {place: _column(sources[place[0]], place, n) for place in asked.others}
    units = asked.data.suffix.lower() != ".h5ad"  # which has one for all genes
    known = _named(asked.labelings["known"], read)
    if scipy.sparse.issparse(X):
        tables.check_values(tables.Table(X, names))
        X, scaled = tables.fit_scaler(X).transform(X) if scaled is True else X, False
    told = _together(known, getattr(X, "index", None))
    ready = prepared(
        X, known=told, missing=asked.missing, standardize=scaled, names=names, say=as_option,
        units=units,
    )  # fmt: skip
    rows = ready.rows_
    if row_names is None and len(rows) < n:
        row_names = np.arange(n)
    table = tables.Table(
        ready.X,
        None if names is None else ready.feature_names_,
        row_names=None if row_names is None else row_names[rows],
    )
    given = Given(table, ready.known, notes=ready.notes, warnings=ready.warnings)
    labels = {n: v for n, v in known.items() if v.ndim == 1 and not _is_measured(ready.known, n)}
    given.names = list(labels)
    for name, values in (labels | _named(asked.labelings["compare"], read, known)).items():
        where = f"--{'known' if name in labels else 'compare'} {name}"
        own = values[rows]
        if name not in labels and asked.missing != "error" and (gaps := int(pd.isna(own).sum())):
            own = np.where(pd.isna(own), "(missing)", pd.Series(own).astype(str))
            given.notes.append(f"{where}: rows without a value ({gaps}) are a group of their own")
        table.labelings[name] = tables.as_labels(own, where)
    for place in asked.labelings["labels"]:
        given.y, given.classes = _classes(read[place][rows])
        if not given.classes:
            raise InputError(
                f"no row has a label; --labels {place[1]} holds only empty cells or -1; name "
                "another column, or leave the option out"
            )
    given.origin = {
        "command": command(),
        "files": {str(file): digest(file) for file in files},
        "prepared": {
            "missing": asked.missing,
            "features": ready.feature_names_,
            "known": list(known),
            "rows_left_out": np.setdiff1d(np.arange(n), rows).tolist(),
            "scales": ready.scales_,
            "indicators": ready.indicators_,
            "notes": ready.notes,
            "warnings": ready.warnings,
        },
    }
    if given.y is not None:
        told = int((given.y >= 0).sum())
        given.origin["wanted"] = {"rows": told, "classes": given.classes}
    return given


def command() -> str:
    """The command as it was typed."""
    return shlex.join(["nrprob", *sys.argv[1:]])


def _rows(asked: Asked, source: Any) -> tuple[Any, np.ndarray | None, list[str] | None]:
    """Features; names of the rows, and of the features of a matrix, where there are any."""
    from nrprob.batch import tables
    from nrprob.data.annotated import matrix_of, names_of, rows_of
    from nrprob.data.frames import is_frame

    if is_frame(source):
        left = asked.columns or [c for c in source if c not in {*asked.drop, *asked.own}]
        return source[left], source.index.to_numpy(), left
    names, row_names = None, None
    if isinstance(source, Mapping):
        X = tables.find_matrix(source, asked.data)
        if asked.names is not None:
            names = _feature_names(asked.names, source, asked.data, X.shape[1])
    else:
        cells = rows_of(source, **asked.part)
        X, names, row_names = matrix_of(cells), names_of(cells), source.obs_names.to_numpy()
    if names is not None:
        X, names = tables.select_columns(X, names, asked.columns, asked.drop, asked.data)
    return X, row_names, names


def _feature_names(
    place: Column, source: Mapping[str, Any], data: Path, n_features: int
) -> list[str]:
    """Names of the columns of a matrix, from a column or from the lines of a file."""
    from nrprob.batch import tables

    file, column = place
    if column:
        source = source if file.resolve() == data.resolve() else tables.read_contents(file)
        names = [str(name) for name in tables.read_column(source, column, file).tolist()]
    else:
        names = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    if len(names) != n_features or len(set(names)) < n_features:
        raise InputError(
            f"--feature-names do not go with the data; {len(names)} names, {len(set(names))} of "
            f"them different, for {n_features} columns; give a name of its own to each"
        )
    return names


def _column(source: Any, place: Column, n: int) -> np.ndarray:
    """Values of a column (n,)."""
    from nrprob.batch import tables

    file, column = place
    values = tables.read_column(source, column, file)
    if len(values) != n:
        raise InputError(
            f"{column} of {file} does not go with the data; {len(values)} values for {n} rows; "
            "give one value per row, in the same order"
        )
    return values


def _named(
    places: list[Column],
    read: dict[Column, np.ndarray],
    others: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Columns by their names, with the file where a name is taken."""
    result: dict[str, np.ndarray] = {}
    for file, column in places:
        name = column if column not in {*result, *others} else f"{file}:{column}"
        result[name] = read[file, column]
    return result


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


def _classes(values: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Partial labels as integers with -1 where unknown, and the names of the classes."""
    import pandas as pd

    from nrprob.data.labels import are_blank, are_minus_one

    unknown = pd.isna(values) | are_blank(values) | are_minus_one(values)
    # A column of whole numbers with gaps is read as real numbers: 1.0 is the class "1".
    names = pd.Series([f"{v:g}" if isinstance(v, float) else str(v) for v in values], dtype=object)
    y, classes = pd.factorize(names.mask(unknown), sort=True)
    return y, classes.tolist()


def check_sparse(given: Given, method: str) -> None:
    """Refuse rows of a sparse matrix for a method that takes none."""
    is_sparse = getattr(given.table.X, "format", None) is not None
    if is_sparse and not METHODS[method].capabilities.sparse:
        able = ", ".join(name for name, one in METHODS.items() if one.capabilities.sparse)
        raise InputError(
            f"{method} takes no sparse rows; --method {method}; store the rows as a dense matrix, "
            f"or use one of {able}"
        )


def check_known(given: Given, why: str, instead: str) -> None:
    """Refuse known continuous covariates; ``why`` says what takes labels only."""
    if given.known is not None and given.measured is not None:
        told = given.origin["prepared"]["known"]
        numbers = ", ".join(f"--known {name}" for name in told if name not in given.names)
        raise InputError(f"{why}; numbers in {numbers}; cut them into groups, or use {instead}")


def check_groups(given: Given, method: str | None = None) -> None:
    """Refuse a known labeling with a group for each row, unless the method takes it."""
    from nrprob.data.labels import refuse_own_groups

    allowed = method is not None and METHODS[method].capabilities.singleton_groups
    if given.measured is None and not allowed:
        for name in given.names:
            labels = given.table.labelings[name].tolist()
            refuse_own_groups(len(set(labels)), len(labels), f"; --known {name}")
