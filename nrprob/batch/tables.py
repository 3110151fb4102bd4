"""Data as the runner sees them: rows, and named labelings of the rows.

Three sources: a file (CSV, Parquet, NPZ), a data set by name (:func:`nrprob.datasets.load`), a
generator.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.batch.registry import nearest
from nrprob.exceptions import InputError

__all__ = ["Table", "as_labels", "generate", "load", "read", "read_column"]

_NPZ_DEFAULT = "X"


@dataclass
class Table:
    """Rows X (n, p), dense or sparse, with what is known to go with them.

    ``views`` holds the numbers of the columns of every view; None where there is only one.
    """

    X: Any
    feature_names: list[str] | None = None
    labelings: dict[str, np.ndarray] = field(default_factory=dict)
    image_shape: tuple[int, int] | None = None
    row_names: np.ndarray | None = None
    left_out: list[str] = field(default_factory=list)
    views: list[np.ndarray] | None = None

    def rows(self, chosen: np.ndarray) -> Table:
        """The same table with only the chosen rows."""
        names = None if self.row_names is None else self.row_names[chosen]
        labelings = {name: labels[chosen] for name, labels in self.labelings.items()}
        return Table(
            self.X[chosen],
            self.feature_names,
            labelings,
            self.image_shape,
            names,
            self.left_out,
            self.views,
        )


def load(name: str, parameters: Mapping[str, Any] | None = None) -> Table:
    """Load a data set by its name.

    Raises
    ------
    nrprob.exceptions.InputError
        As :func:`nrprob.datasets.load`, about the name, the parameters or a damaged file; its
        subclass `DataUnavailable` if the set is not on this machine nor to be had.
    """
    from nrprob import datasets

    data = datasets.load(name, **(parameters or {}))
    return Table(data.X, data.feature_names, data.labelings, data.image_shape)


def generate(name: str, parameters: Mapping[str, Any], seed: int | None) -> Table:
    """Draw a data set from a generator of :mod:`nrprob.datasets`."""
    from nrprob import datasets

    generators = [g for g in dir(datasets) if g.startswith("make_")]
    if name not in generators:
        raise InputError(f"unknown data.generator; {name!r}; {nearest(name, generators)}")
    try:
        X, labels = getattr(datasets, name)(**parameters, random_state=seed)
    except TypeError as error:
        raise InputError(f"data.parameters do not fit {name}; {error}; see its docstring") from None
    return Table(X, None, {f"partition_{j}": labels[:, j] for j in range(labels.shape[1])})


def _read_frame(path: Path) -> Any:
    import pandas as pd

    if path.suffix == ".parquet":
        try:
            return pd.read_parquet(path)
        except ImportError:
            raise InputError(
                f"reading Parquet needs pyarrow, which is not installed; {path}; "
                "run pip install 'nrprob[parquet]'"
            ) from None
    separator = "\t" if path.suffix == ".tsv" else ","
    frame = pd.read_csv(path, sep=separator)
    if len(frame.columns) and str(frame.columns[0]).startswith("Unnamed: 0"):
        # A first column without a name is the index that pandas writes by default.
        frame = frame.set_index(frame.columns[0])
    return frame


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as stored:
        if {"format", "shape", "data"} <= set(stored.files):
            return {_NPZ_DEFAULT: scipy.sparse.csr_array(scipy.sparse.load_npz(path))}
        return {key: stored[key] for key in stored.files}


def _open(path: Path) -> Any:
    """Contents of a file: a pandas frame, or a dictionary of arrays."""
    readers = {
        ".csv": _read_frame,
        ".tsv": _read_frame,
        ".parquet": _read_frame,
        ".npz": _read_npz,
    }
    if not path.is_file():
        raise InputError(f"no such data file; {path}; check the path")
    if path.suffix not in readers:
        raise InputError(
            f"cannot tell the format from the file's name; {path}; use one of {', '.join(readers)}"
        )
    try:
        return readers[path.suffix](path)
    except InputError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        reason = str(error).strip().splitlines()
        raise InputError(
            f"cannot read the file as {path.suffix[1:].upper()}; {path}: "
            f"{reason[0] if reason else type(error).__name__}; check its contents"
        ) from error


def _matrix(arrays: Mapping[str, Any], path: Path) -> Any:
    if _NPZ_DEFAULT in arrays:
        return arrays[_NPZ_DEFAULT]
    matrices = [key for key, value in arrays.items() if value.ndim == 2]
    if len(matrices) != 1:
        raise InputError(
            f"cannot tell which array holds the rows; {path} has {', '.join(arrays) or 'none'}; "
            f"call it {_NPZ_DEFAULT!r}"
        )
    return arrays[matrices[0]]


def _require(names: Collection[str], available: Collection[str], path: Path) -> None:
    for name in names:
        if name not in available:
            raise InputError(f"{path} has no such column; {name!r}; {nearest(name, available)}")


def read(
    path: Path,
    *,
    columns: Collection[str] = (),
    drop: Collection[str] = (),
    labelings: Collection[str] = (),
) -> Table:
    """Read rows from a file.

    Parameters
    ----------
    path : Path
        CSV, TSV or Parquet with named columns; or NPZ, as written by ``numpy.savez`` (array ``X``,
        or the only matrix) or by ``scipy.sparse.save_npz``.
    columns : collection of str
        Columns to use as features; all numeric ones when empty.
    drop : collection of str
        Columns to leave out.
    labelings : collection of str
        Columns (arrays, in NPZ) that label the rows; never features.

    Returns
    -------
    Table
        With ``left_out`` naming the columns that are neither numeric nor labelings.
    """
    source = _open(path)
    if isinstance(source, dict):
        if columns or drop:
            raise InputError(f"columns of an NPZ file have no names; {path}; cut the array itself")
        X = _matrix(source, path)
        _require(labelings, source, path)
        return Table(X, labelings={name: np.asarray(source[name]) for name in labelings})

    import pandas as pd

    frame = source
    frame.columns = [str(c) for c in frame.columns]
    _require([*columns, *drop, *labelings], list(frame.columns), path)
    wanted = list(columns) or [c for c in frame.columns if c not in {*drop, *labelings}]
    numeric = [c for c in wanted if pd.api.types.is_numeric_dtype(frame[c])]
    text = [c for c in wanted if c not in numeric]
    if columns and text:
        raise InputError(
            f"features have to be numeric; {', '.join(text)} in {path}; encode or leave them out"
        )
    if not numeric:
        raise InputError(f"no numeric column is left; {path}; choose with --columns")
    X = frame[numeric].to_numpy()
    if X.dtype == object:  # nullable integers and booleans
        X = frame[numeric].to_numpy(dtype=float, na_value=np.nan)
    elif X.dtype == bool:
        X = X.astype(np.int8)
    return Table(
        X,
        numeric,
        {name: frame[name].to_numpy() for name in labelings},
        row_names=frame.index.to_numpy(),
        left_out=text,
    )


def read_column(path: Path, name: str) -> np.ndarray:
    """Read one column of a table, or one array of an NPZ file."""
    source = _open(path)
    _require([name], list(source if isinstance(source, dict) else map(str, source.columns)), path)
    if isinstance(source, dict):
        return np.asarray(source[name])
    source.columns = [str(c) for c in source.columns]
    return source[name].to_numpy()


def as_labels(values: np.ndarray, what: str) -> np.ndarray:
    """Check that a column is a labeling, that is, names or numbers of groups."""
    values = np.asarray(values)
    if values.ndim != 1:
        raise InputError(f"{what} is not one label per row; its shape is {values.shape}")
    if values.dtype.kind == "f":
        if np.isnan(values).any():
            raise InputError(
                f"{what} has missing values; {int(np.isnan(values).sum())} of {len(values)}; "
                "give these rows a group of their own or drop them"
            )
        if (values == np.round(values)).all():
            return values.astype(np.int64)
        distinct = len(np.unique(values))
        if distinct > 20:
            raise InputError(
                f"{what} is a measurement and not a labeling; {distinct} different real numbers "
                f"in {len(values)} rows; cut it into groups first"
            )
    elif values.dtype.kind not in "biuUS":
        missing = [i for i, v in enumerate(values) if v is None or v != v]
        if missing:
            raise InputError(
                f"{what} has missing values; {len(missing)} of {len(values)}; "
                "give these rows a group of their own or drop them"
            )
        return np.asarray([str(v) for v in values])
    return values
