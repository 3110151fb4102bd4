"""Sources of stored rows, divided into parts that any process can read in order.

A part can be sent to a worker of a cluster; `read_pieces` reads the rows of a part. The libraries
that read files, datasets and arrays are imported only when needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from nrprob.data.frames import quote_names
from nrprob.exceptions import InputError, short_repr
from nrprob.files import as_path

_PIECE_ROWS = 1 << 16  # maximum number of rows of a piece
_SUFFIXES = (".parquet", ".arrow", ".feather", ".npy")


class Piece(NamedTuple):
    """Consecutive rows of a part of a source.

    Attributes
    ----------
    x : ndarray of shape (n_rows, n_features)
        Features.
    columns : dict of str to ndarray of shape (n_rows,)
        Other columns, by name.
    """

    x: np.ndarray
    columns: dict[str, np.ndarray]


@dataclass(frozen=True)
class Slice:
    """Rows ``start`` to ``stop`` of an object indexed like an array (memmap, zarr)."""

    array: Any
    start: int
    stop: int


@dataclass(frozen=True)
class NpyFile:
    """Rows ``start`` to ``stop`` of the array in a ``.npy`` file.

    The whole array has the given ``shape`` and ``dtype``, is in C order, and begins at byte
    ``offset`` of the file ``path``.
    The rows are read explicitly, since the pages of a memory map would count as used memory.
    """

    path: str
    shape: tuple[int, int]
    dtype: np.dtype
    offset: int
    start: int
    stop: int


@dataclass(frozen=True)
class Source:
    """Stored rows, divided into parts.

    Attributes
    ----------
    parts : fragments of an Arrow dataset, blocks of dask, `Slice` or `NpyFile`
    names : names of all columns; None for arrays
    features : names of the feature columns; None for arrays
    dtype : dtype of the features in computations, float32 or float64
    dtypes : for every named column, its dtype, or None if the column is not numeric
    is_selected : whether the user selected the features
    """

    parts: Sequence[Any]
    names: tuple[str, ...] | None
    features: tuple[str, ...] | None
    dtype: np.dtype
    dtypes: Mapping[str, np.dtype | None] = field(default_factory=dict)
    is_selected: bool = False

    def as_table(self, x: np.ndarray) -> Any:
        """Return rows ``x`` as a frame with feature names; unchanged if features have no names."""
        if self.features is None:
            return x
        import pandas as pd

        return pd.DataFrame(x, columns=list(self.features))


def find_source(source: Any, columns: Sequence[str] | None) -> Source:
    """Find the parts and the columns of ``source`` without reading rows.

    ``columns`` are the names of the features; by default, all numeric columns are features.

    Raises
    ------
    InputError
        If the source has an unknown type, or a file or a column is missing.
    """
    library = type(source).__module__.split(".")[0]
    if library == "dask":
        return _source_from_dask(source, columns)
    if isinstance(source, str | os.PathLike):
        path = as_path(source, "source")
        if not path.exists():
            raise InputError(f"there are no rows; {path} does not exist; check the path")
        if path.suffix == ".npy":
            return _source_from_npy(path, columns)
    if library == "pyarrow" or isinstance(source, str | os.PathLike):
        return _source_from_arrow(source, columns)
    if isinstance(source, list | tuple) and all(isinstance(s, str | os.PathLike) for s in source):
        return _source_from_arrow([os.fspath(s) for s in source], columns)
    has_shape = hasattr(source, "shape") and not sparse.issparse(source)
    if has_shape and hasattr(source, "dtype") and hasattr(source, "__getitem__"):
        return _source_from_array(source, columns)
    raise InputError(
        f"rows must be a path ({', '.join(_SUFFIXES)}, or a folder of them), an Arrow dataset, a "
        f"memory-mapped or zarr array, or a dask collection; got {type(source).__name__}; pass one "
        "of these, or fit an array in memory directly"
    )


def exclude_columns(source: Source, others: Sequence[str]) -> Source:
    """Return the source whose features exclude the named columns.

    Raises
    ------
    InputError
        If a named column is missing, or if no feature or a non-numeric feature remains.
    """
    if others and (source.names is None or source.features is None):
        raise InputError(
            f"an array has no named columns; got {short_repr(list(others))}; pass an array of "
            "labels"
        )
    names = source.names or ()
    for name in others:
        if name not in names:
            raise InputError(
                f"there is no column {short_repr(name)}; the rows have {quote_names(names)}; "
                "choose one of these"
            )
    texts = [n for n, dtype in source.dtypes.items() if dtype is None and n not in others]
    if texts and not source.is_selected:
        raise InputError(
            f"features must be numeric; columns {quote_names(texts)} are not; name the features by "
            "columns=, or known columns by known="
        )
    if source.features is None:
        return source
    features = tuple(name for name in source.features if name not in others)
    if not features:
        raise InputError(
            "no feature is left; all columns are known or target labels; pass columns="
        )
    return replace(source, features=features, dtype=_common_dtype(source.dtypes, features))


def read_pieces(part: Any, source: Source, others: Sequence[str] = ()) -> Iterator[Piece]:
    """Read a part in order, in pieces of at most ``_PIECE_ROWS`` rows.

    Parameters
    ----------
    part : one of ``source.parts``, or a computed block of dask
    source : Source
    others : names of further columns to read
    """
    if isinstance(part, Slice):
        for start in range(part.start, part.stop, _PIECE_ROWS):
            x = part.array[start : min(start + _PIECE_ROWS, part.stop)]
            yield Piece(np.ascontiguousarray(x, source.dtype), {})
    elif isinstance(part, NpyFile):
        width = part.shape[1]
        with open(part.path, "rb") as file:
            for start in range(part.start, part.stop, _PIECE_ROWS):
                file.seek(part.offset + start * width * part.dtype.itemsize)
                count = (min(start + _PIECE_ROWS, part.stop) - start) * width
                x = np.fromfile(file, part.dtype, count).reshape(-1, width)
                yield Piece(x.astype(source.dtype, copy=False), {})
    elif type(part).__module__.startswith("dask"):  # before `hasattr`, always true for dask
        yield from read_pieces(part.compute(scheduler="synchronous"), source, others)
    elif hasattr(part, "to_batches"):
        assert source.features is not None
        # Read one batch ahead, since the default readahead takes much more memory.
        batches = part.to_batches(
            columns=[*source.features, *others], batch_size=_PIECE_ROWS, batch_readahead=1,
            fragment_readahead=1,
        )  # fmt: skip
        for batch in batches:
            if batch.num_rows:
                x = np.empty((batch.num_rows, len(source.features)), source.dtype)
                for j, name in enumerate(source.features):
                    x[:, j] = batch.column(name).to_numpy(zero_copy_only=False)
                yield Piece(x, {n: _column_values(batch.column(n)) for n in others})
    elif source.features is not None:  # a pandas frame
        for start in range(0, len(part), _PIECE_ROWS):
            rows = part.iloc[start : start + _PIECE_ROWS]
            x = rows[list(source.features)].to_numpy(source.dtype, na_value=np.nan)
            yield Piece(np.ascontiguousarray(x), {n: rows[n].to_numpy() for n in others})
    else:
        yield from read_pieces(Slice(part, 0, len(part)), source)


def _column_values(column: Any) -> np.ndarray:
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _source_from_npy(path: Path, columns: Sequence[str] | None) -> Source:
    """Make the source of a ``.npy`` file; an array in Fortran order is read by a memory map."""
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise InputError(
            f"cannot read rows; {path}: {error}; pass a .npy file of a table"
        ) from error
    shape, dtype, offset = mapped.shape, mapped.dtype, mapped.offset
    if len(shape) != 2 or not mapped.flags.c_contiguous:
        return _source_from_array(mapped, columns)
    del mapped
    result = _source_from_array(_Shape(shape, dtype), columns)
    parts = [NpyFile(os.fspath(path), shape, dtype, offset, p.start, p.stop) for p in result.parts]
    return replace(result, parts=parts)


class _Shape(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


def _source_from_array(array: Any, columns: Sequence[str] | None) -> Source:
    """Make the source of a memory-mapped or zarr array, or of an object with shape and dtype."""
    shape, dtype = array.shape, np.dtype(array.dtype)
    if columns is not None:
        raise InputError("columns= needs named columns; got an array; leave columns= out")
    if len(shape) != 2 or min(shape) == 0 or dtype.kind not in "biuf":
        raise InputError(
            f"rows must be a 2-D array of numbers; got shape {tuple(shape)} of {dtype}; pass such "
            "an array"
        )
    size = 16 * _PIECE_ROWS
    parts = [Slice(array, i, min(i + size, shape[0])) for i in range(0, shape[0], size)]
    return Source(parts, None, None, _float_dtype(dtype))


def _source_from_arrow(source: Any, columns: Sequence[str] | None) -> Source:
    """Make the source of Parquet or Arrow files, or of an Arrow dataset; parts are row groups."""
    try:
        import pyarrow as pa
        import pyarrow.dataset as ds
    except ImportError as error:
        raise InputError(
            "stored rows need the package pyarrow, which is missing; run "
            "pip install 'nrprob[parquet]'"
        ) from error
    # Open the dataset, and use its row groups (Parquet) or fragments as parts.
    try:
        if isinstance(source, pa.Table):
            source = ds.dataset(source)
        if not isinstance(source, ds.Dataset):
            first = Path(source[0] if isinstance(source, list) else source)
            if first.is_dir():
                first = next((p for p in sorted(first.rglob("*")) if p.suffix in _SUFFIXES), first)
            suffix_format = "parquet" if first.suffix not in (".arrow", ".feather") else "feather"
            source = ds.dataset(source, format=suffix_format)
        parts: list[Any] = []
        for fragment in source.get_fragments():
            split = getattr(fragment, "split_by_row_group", None)
            parts += split() if split else [fragment]
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"cannot read rows; {source}: {reason}; pass Parquet or Arrow files"
        ) from error
    schema = source.schema
    dtypes = {field.name: _arrow_dtype(field.type, pa) for field in schema}
    return _select_features(parts, dtypes, columns)


def _arrow_dtype(arrow_type: Any, pa: Any) -> np.dtype | None:
    """NumPy type of a numeric Arrow column; None for other columns."""
    types = pa.types
    if (
        types.is_boolean(arrow_type)
        or types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
    ):
        return np.dtype(arrow_type.to_pandas_dtype())
    return None


def _source_from_dask(source: Any, columns: Sequence[str] | None) -> Source:
    """Make the source of a dask frame or array; a part is a partition, or a chunk of rows."""
    if hasattr(source, "dtypes") and hasattr(source, "partitions"):
        dtypes = {}
        for name, dtype in source.dtypes.items():
            is_numeric = getattr(dtype, "kind", "O") in "biuf" and name not in dtypes
            numpy_dtype = getattr(dtype, "numpy_dtype", dtype)
            dtypes[str(name)] = np.dtype(numpy_dtype) if is_numeric else None
        return _select_features(source.to_delayed(), dtypes, columns)
    if not hasattr(source, "chunks") or source.ndim != 2:
        raise InputError(
            f"rows of dask must be a frame or a 2-D array; got {type(source).__name__}; pass a "
            "frame or such an array"
        )
    result = _source_from_array(_Shape(tuple(1 for _ in source.shape), source.dtype), columns)
    row_chunks = source.rechunk({1: -1})
    return replace(result, parts=list(row_chunks.to_delayed()[:, 0]))


def _select_features(
    parts: Sequence[Any], dtypes: dict[str, np.dtype | None], columns: Sequence[str] | None
) -> Source:
    """Make a source whose features are the named ``columns``; by default, all numeric columns.

    ``dtypes`` has the dtype of every column, or None if the column is not numeric.
    """
    names = tuple(dtypes)
    features = tuple(name for name in names if dtypes[name] is not None)
    if columns is not None:
        features = tuple(columns)
        for name in features:
            if name not in dtypes:
                raise InputError(
                    f"there is no column {short_repr(name)}; the rows have {quote_names(names)}; "
                    "choose among these"
                )
            if dtypes[name] is None:
                raise InputError(
                    f"features must be numeric; column {short_repr(name)} is not; leave it out of "
                    "columns=, or name it as known="
                )
    if not features:
        raise InputError(
            f"no column is numeric; got {quote_names(names)}; pass rows with numeric columns"
        )
    dtype = _common_dtype(dtypes, features)
    return Source(list(parts), names, features, dtype, dtypes, columns is not None)


def _common_dtype(dtypes: Mapping[str, np.dtype | None], features: Sequence[str]) -> np.dtype:
    """Common dtype, float32 or float64, in which computations use the named features."""
    return np.result_type(*(_float_dtype(dtypes[name]) for name in features))


def _float_dtype(dtype: Any) -> np.dtype:
    """Dtype in which computations use a feature: float32 for float32, else float64."""
    return np.dtype(np.float32 if np.dtype(dtype) == np.float32 else np.float64)
