"""Data sets of batch runs and the command line: a feature matrix and named labelings of its rows.

There are three sources: a file, a data set by name
(:func:`nrprob.datasets.load`), or a generator.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.batch import formats
from nrprob.batch.formats import ROWS, require_columns
from nrprob.batch.registry import refuse_unknown
from nrprob.data.annotated import feature_names_of, is_annotated, matrix_of
from nrprob.data.labels import are_blank
from nrprob.data.reading.conversion import Problem, ReadingRecord
from nrprob.data.reading.frames import read_frame
from nrprob.data.reading.options import ReadingOptions
from nrprob.data.reading.text_files import format_of
from nrprob.exceptions import InputError
from nrprob.files import read_npz, read_sparse, reading

__all__ = [
    "Table", "as_labels", "check_values", "find_matrix", "fit_scaler", "generate_set", "load_set",
    "read_column", "read_contents", "read_table", "select_columns",
    "size_in_memory", "take_rows",
]  # fmt: skip


@dataclass
class Table:
    """Features and labelings of n rows.

    Attributes
    ----------
    X : (n, p) features: an array, a sparse matrix or a frame
    feature_names : names of the p features; None without names
    labelings : labels (n,) of every labeling, by name of the labeling
    image_shape : height and width of the images if rows are images, else None
    row_names : names of the rows; None without names
    identifier : name of the column that has the names of the rows; "row" without such a column
    left_out : names of text columns of the file that are not features
    views : for every view, the indices of its columns; None without views
    notes : what was detected and changed while the file was read
    units : units of columns, by name, such as "%"
    """

    X: Any
    feature_names: list[str] | None = None
    labelings: dict[str, np.ndarray] = field(default_factory=dict)
    image_shape: tuple[int, int] | None = None
    row_names: np.ndarray | None = None
    identifier: str = "row"
    left_out: list[str] = field(default_factory=list)
    views: list[np.ndarray] | None = None
    notes: list[str] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)

    def rows(self, chosen: np.ndarray) -> Table:
        """Return the table with the rows ``chosen``, a boolean mask (n,) or indices, only."""
        return replace(
            self,
            X=take_rows(self.X, chosen),
            labelings={name: labels[chosen] for name, labels in self.labelings.items()},
            row_names=None if self.row_names is None else self.row_names[chosen],
        )


def take_rows(X: Any, chosen: np.ndarray) -> Any:
    """Select the rows ``chosen`` (mask or indices) of an array, a sparse matrix or a frame."""
    return X.iloc[np.arange(len(X))[chosen]] if hasattr(X, "iloc") else X[chosen]


def load_set(name: str, parameters: Mapping[str, Any] | None = None) -> Table:
    """Load a data set by its name; raises the errors of :func:`nrprob.datasets.load`."""
    from nrprob import datasets

    data = datasets.load(name, **(parameters or {}))
    return Table(data.X, data.feature_names, data.labelings, data.image_shape)


def generate_set(name: str, parameters: Mapping[str, Any], seed: int | None) -> Table:
    """Sample a data set from a generator of :mod:`nrprob.datasets`.

    Views are placed side by side. Must-links and partial labels of the generator are not used,
    since model files sample them from labelings.
    """
    from nrprob import datasets

    generators = [g for g in dir(datasets) if g.startswith("make_")]
    refuse_unknown(name, generators, f"unknown data.generator; {name!r}")
    try:
        result = getattr(datasets, name)(**parameters, random_state=seed)
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise InputError(f"data.parameters do not fit {name}; {error}; see its docstring") from None
    labelings = {}
    if isinstance(result, datasets.InformedViews):
        labelings["known"] = result.known
        result = np.hstack(result.views), result.clusters
    X, labels = result
    labelings |= {f"partition_{j}": labels[:, j] for j in range(labels.shape[1])}
    return Table(X, None, labelings)


def _read_npz(path: Path) -> dict[str, Any]:
    arrays = read_npz(path)
    if formats.npz_names(list(arrays)) == list(arrays):
        return arrays
    return {ROWS: read_sparse(path)}


def _read_h5ad(path: Path) -> Any:
    import anndata

    with warnings.catch_warnings(action="ignore"):  # warnings about files of earlier versions
        return anndata.read_h5ad(path)


def read_contents(
    path: Path,
    options: ReadingOptions | None = None,
    record: ReadingRecord | None = None,
    *,
    exclude: Collection[str] = (),
    relevant: Collection[str] | None = None,
) -> Any:
    """Contents of a file: a pandas frame, a dictionary of arrays, or annotated data.

    See `nrprob.data.reading.frames.read_frame` for the arguments. Without a ``record``, the
    function raises InputError for columns that cannot be used.
    """
    options, problems = options or ReadingOptions(), record or ReadingRecord()
    formats.column_names(path, options)  # raises for invalid names
    suffix = format_of(path)
    with reading(path, f"the file as {suffix[1:].upper()}", "check its contents"):
        if suffix == ".npz":
            return _read_npz(path)
        if suffix == ".h5ad":
            return _read_h5ad(path)
        frame = read_frame(path, options, problems, exclude=exclude, relevant=relevant)
    if record is None:
        _refuse_problems(problems.problems, path)
    return frame


def _refuse_problems(problems: Sequence[Problem], path: Path) -> None:
    """Raise InputError if columns of a file cannot be used as they are."""
    if problems:
        got = ", ".join(problem.got for problem in problems)
        remedies = ", ".join(dict.fromkeys(problem.remedy for problem in problems))
        raise InputError(
            f"columns must hold numbers or text; {path} has {got}; {remedies}, or leave columns out"
        )


def find_matrix(arrays: Mapping[str, Any], path: Path) -> Any:
    """Find the feature matrix among the arrays of an NPZ file: "X", or the only matrix.

    Raises InputError if there is no such matrix, or several.
    """
    name = ROWS
    if name not in arrays:
        matrices = [key for key, value in arrays.items() if value.ndim == 2]
        if len(matrices) != 1:
            raise InputError(
                f"cannot tell which array holds the rows; {path} has "
                f"{', '.join(arrays) or 'none'}; call it {ROWS!r}"
            )
        name = matrices[0]
    X = arrays[name]
    if X.ndim != 2 or 0 in X.shape or X.dtype.kind not in "biuf":
        raise InputError(
            f"rows are a numeric matrix; {name} of {path} has shape {X.shape} and type "
            f"{X.dtype}; store such a matrix"
        )
    return X.astype(np.int8) if X.dtype == bool else X


def select_columns(
    X: Any, names: list[str], columns: Collection[str], drop: Collection[str], path: Path
) -> tuple[Any, list[str]]:
    """Select columns of a matrix by name; return them with their names.

    See `read_table` for ``columns`` and ``drop``. ``path`` is the file, for messages.
    """
    require_columns([*columns, *drop], names, path)
    indices = [names.index(name) for name in columns] or [
        j for j, name in enumerate(names) if name not in drop
    ]
    if not indices:
        raise InputError(f"no column is left; {path}; drop fewer columns, or name other columns")
    return (X if len(indices) == len(names) else X[:, indices]), [names[j] for j in indices]


def read_table(
    path: Path,
    *,
    columns: Collection[str] = (),
    drop: Collection[str] = (),
    labelings: Collection[str] = (),
) -> Table:
    """Read features and labelings of rows from a file.

    The file is text, a spreadsheet or Parquet with named columns; NPZ by ``numpy.savez`` (array
    ``X``, or the only matrix) or by ``scipy.sparse.save_npz``; or H5AD (``X`` and columns of
    ``obs``). Features are the ``columns``. By default, all numeric columns except the columns to
    ``drop`` and the ``labelings`` are features.
    """
    # Problems of columns that are neither features nor labelings do not matter.
    used = {*columns, *labelings} if columns else None
    record = ReadingRecord()
    source = read_contents(path, None, record, relevant=used)
    _refuse_problems([p for p in record.problems if not {*p.columns} <= {*drop}], path)
    if is_annotated(source):
        X, names = select_columns(
            matrix_of(source), feature_names_of(source) or [], columns, drop, path
        )
        labels = {name: read_column(source, name, path) for name in labelings}
        return Table(X, names, labels, row_names=source.obs_names.to_numpy())
    if isinstance(source, dict):
        if columns or drop:
            raise InputError(
                f"columns of an NPZ file have no names; {path}; leave out columns of the array "
                "itself"
            )
        X = find_matrix(source, path)
        require_columns(labelings, source, path)
        return Table(X, labelings={name: np.asarray(source[name]) for name in labelings})

    import pandas as pd

    # Features of a table: the named columns, or all numeric columns that are not dropped.
    frame = source
    require_columns([*columns, *drop, *labelings], list(frame.columns), path)
    candidates = list(dict.fromkeys(columns))
    candidates = candidates or [c for c in frame.columns if c not in {*drop, *labelings}]
    numeric = [c for c in candidates if pd.api.types.is_numeric_dtype(frame[c])]
    text = [c for c in candidates if c not in numeric]
    if columns and text:
        raise InputError(
            f"features must be numeric; {', '.join(text)} in {path}; encode these columns, or "
            "leave them out"
        )
    if not numeric:
        raise InputError(f"no numeric column is left; {path}; name numeric columns as features")
    X = frame[numeric].to_numpy()
    if X.dtype == object:  # nullable integers and booleans
        X = frame[numeric].to_numpy(dtype=float, na_value=np.nan)
    elif X.dtype == bool:
        X = X.astype(np.int8)
    labels = {name: frame[name].to_numpy() for name in labelings}
    return Table(
        X, numeric, labels, row_names=frame.index.to_numpy(), left_out=text,
        notes=[*record.notes, *record.warnings],
        units={name: record.units[name] for name in numeric if name in record.units},
    )  # fmt: skip


def read_column(source: Any, name: str, path: Path) -> np.ndarray:
    """Return the column or array called ``name`` of a file.

    ``source`` has the contents of the file, from `read_contents`; ``path`` is for messages.
    """
    source = source.obs if is_annotated(source) else source
    require_columns([name], list(source), path)
    if not isinstance(source, dict):
        return source[name].to_numpy()
    values = source[name]
    if scipy.sparse.issparse(values) or not values.ndim:
        raise InputError(
            f"{name} of {path} must be an array with one value per row; got another array; store "
            "one value per row"
        )
    return values


def check_values(table: Table) -> None:
    """Raise InputError for missing or infinite features.

    The message names the columns of these values or, without column names, the first position.
    """
    values = table.X.data if scipy.sparse.issparse(table.X) else np.asarray(table.X)
    bad = ~np.isfinite(values)
    if not bad.any():
        return
    where, how = f"{bad.sum()} of {values.size}", "leave them out"
    if values.ndim == 2 and table.feature_names is not None:
        counts = zip(bad.sum(0).tolist(), table.feature_names, strict=True)
        columns = [f"{count} in {name!r}" for count, name in counts if count]
        where = f"{', '.join(columns[:8])}{', ...' * (len(columns) > 8)}"
        where += f" ({bad.any(1).sum()} of {len(bad)} rows)"
        how = "leave out the columns with data.drop"
    elif values.ndim == 2:
        row, column = np.argwhere(bad)[0]
        where += f", the first in row {row}, column {column}"
    raise InputError(f"the data have missing or infinite values; {where}; fill them in, or {how}")


def as_labels(values: np.ndarray, what: str, *, is_partial: bool = False) -> np.ndarray:
    """Validate a column (n,) as a labeling; return the labels (n,).

    A labeling is text, integers, or at most 20 distinct floats. ``what`` names the column in
    messages. If ``is_partial``, labels may be missing; if some are
    missing, all labels are returned as text, which is empty where a label is missing.
    """
    import pandas as pd

    values = np.asarray(values)
    if is_partial and (unknown := pd.isna(values) | are_blank(values)).any():
        text = np.full(len(values), "", object)
        text[~unknown] = [str(label) for label in as_labels(values[~unknown], what).tolist()]
        return text.astype(str)
    if values.ndim != 1:
        raise InputError(
            f"{what} must have one label per row; got shape {values.shape}; pass one column"
        )
    if values.dtype.kind in "biuUS":
        return values
    if missing := int(pd.isna(values).sum()):
        raise InputError(
            f"{what} has missing values; {missing} of {len(values)}; "
            "give these rows a group of their own or drop them"
        )
    if values.dtype.kind != "f":
        return np.asarray([str(v) for v in values])
    if (values == np.round(values)).all():
        return values.astype(np.int64)
    distinct = len(np.unique(values))
    if distinct > 20:
        raise InputError(
            f"{what} is a measurement and not a labeling; {distinct} distinct floats in "
            f"{len(values)} rows; cut the values into groups first"
        )
    return values


def fit_scaler(X: Any) -> Any:
    """Fit a transformer that gives every feature mean 0 and standard deviation 1.

    Sparse features are only scaled, not centred.
    """
    from sklearn.preprocessing import StandardScaler

    return StandardScaler(with_mean=not scipy.sparse.issparse(X)).fit(X)


def size_in_memory(X: Any) -> int:
    """Bytes of a matrix, dense or sparse."""
    parts = (X.data, X.indices, X.indptr) if scipy.sparse.issparse(X) else (X,)
    return sum(part.nbytes for part in parts)
