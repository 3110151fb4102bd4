"""Sources of stored rows, as parts that any process reads one after another.

A part is an object that can be sent to a worker of a cluster; `pieces` reads it. Files, datasets
and arrays are read by their own libraries, which are imported only when needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from nrprob.data.frames import listed
from nrprob.exceptions import InputError, short_repr
from nrprob.files import as_path

_PIECE = 1 << 16  # rows that are read at once
_SUFFIXES = (".parquet", ".arrow", ".feather", ".npy")


class Piece(NamedTuple):
    """Some rows.

    Attributes
    ----------
    x : (b, m) features
    named : other columns (b,) that were asked for, by name
    """

    x: np.ndarray
    named: dict[str, np.ndarray]


@dataclass(frozen=True)
class Slice:
    """Rows ``start`` to ``stop`` of anything that is indexed like an array (memmap, zarr)."""

    array: Any
    start: int
    stop: int


@dataclass(frozen=True)
class NpyFile:
    """Rows of a ``.npy`` file of C order, read and not mapped: what is mapped counts as memory."""

    path: str
    shape: tuple[int, int]
    dtype: np.dtype
    offset: int
    start: int
    stop: int


@dataclass(frozen=True)
class Source:
    """Rows in parts.

    Attributes
    ----------
    parts : fragments of an Arrow dataset, blocks of dask, `Slice` or `NpyFile`
    names : of all columns; None where they have none
    features : names of the columns that are features; None for all, of arrays
    dtype : of the features
    kinds : types of named columns of numbers, None of others
    chosen : whether the features are those that were asked for
    """

    parts: Sequence[Any]
    names: tuple[str, ...] | None
    features: tuple[str, ...] | None
    dtype: np.dtype
    kinds: Mapping[str, np.dtype | None] = field(default_factory=dict)
    chosen: bool = False


def find(source: Any, columns: Sequence[str] | None) -> Source:
    """Look where the rows lie, and which columns there are; without reading them.

    Raises
    ------
    InputError
        If nothing is known of such a source, a file is missing, or a column is.
    """
    kind = type(source).__module__.split(".")[0]
    if kind == "dask":
        return _of_dask(source, columns)
    if isinstance(source, str | os.PathLike):
        path = as_path(source, "source")
        if not path.exists():
            raise InputError(f"there are no rows; {path} does not exist; check the path")
        if path.suffix == ".npy":
            return _of_npy(path, columns)
    if kind == "pyarrow" or isinstance(source, str | os.PathLike):
        return _of_arrow(source, columns)
    if isinstance(source, list | tuple) and all(isinstance(s, str | os.PathLike) for s in source):
        return _of_arrow([os.fspath(s) for s in source], columns)
    several = hasattr(source, "shape") and not sparse.issparse(source)
    if several and hasattr(source, "dtype") and hasattr(source, "__getitem__"):
        return _of_array(source, columns)
    raise InputError(
        f"rows are a path ({', '.join(_SUFFIXES)}, or a folder of them), an Arrow dataset, a "
        f"memory-mapped or zarr array, or one of dask; got {type(source).__name__}; pass one of "
        "these, or fit an array that is in memory as it is"
    )


def asked(source: Source, others: Sequence[str]) -> Source:
    """Leave columns of other names out of the features.

    Raises
    ------
    InputError
        If there is no such column, no feature is left, or a column that holds no numbers is.
    """
    if others and (source.names is None or source.features is None):
        raise InputError(
            f"rows of an array have no columns with names; got {short_repr(list(others))}; pass "
            "an array"
        )
    names = source.names or ()
    for name in others:
        if name not in names:
            raise InputError(
                f"there is no column {short_repr(name)}; the rows have {listed(names)}; choose "
                "of these"
            )
    texts = [n for n, kind in source.kinds.items() if kind is None and n not in others]
    if texts and not source.chosen:
        raise InputError(
            f"features are numbers; columns {listed(texts)} hold none; name the features by "
            "columns=, or what is known by known="
        )
    if source.features is None:
        return source
    features = tuple(name for name in source.features if name not in others)
    if not features:
        raise InputError("no feature is left; all columns are known or wanted; pass columns=")
    return replace(source, features=features, dtype=_common(source.kinds, features))


def pieces(part: Any, source: Source, named: Sequence[str] = ()) -> Iterator[Piece]:
    """Read a part, some rows at a time, in order.

    Parameters
    ----------
    part : one of ``source.parts``, or what a block of dask has become
    source : Source
    named : columns that are wanted beside the features
    """
    if isinstance(part, Slice):
        for start in range(part.start, part.stop, _PIECE):
            x = part.array[start : min(start + _PIECE, part.stop)]
            yield Piece(np.ascontiguousarray(x, source.dtype), {})
    elif isinstance(part, NpyFile):
        width = part.shape[1]
        with open(part.path, "rb") as file:
            for start in range(part.start, part.stop, _PIECE):
                file.seek(part.offset + start * width * part.dtype.itemsize)
                count = (min(start + _PIECE, part.stop) - start) * width
                x = np.fromfile(file, part.dtype, count).reshape(-1, width)
                yield Piece(x.astype(source.dtype, copy=False), {})
    elif type(part).__module__.startswith("dask"):  # has whatever attribute one asks for
        yield from pieces(part.compute(scheduler="synchronous"), source, named)
    elif hasattr(part, "to_batches"):
        assert source.features is not None
        # Read ahead by one: by default a scanner holds far more.
        batches = part.to_batches(
            columns=[*source.features, *named], batch_size=_PIECE, batch_readahead=1,
            fragment_readahead=1,
        )  # fmt: skip
        for batch in batches:
            if batch.num_rows:
                x = np.empty((batch.num_rows, len(source.features)), source.dtype)
                for j, name in enumerate(source.features):
                    x[:, j] = batch.column(name).to_numpy(zero_copy_only=False)
                yield Piece(x, {n: _labels(batch.column(n)) for n in named})
    elif source.features is not None:  # a pandas frame
        for start in range(0, len(part), _PIECE):
            rows = part.iloc[start : start + _PIECE]
            x = rows[list(source.features)].to_numpy(source.dtype, na_value=np.nan)
            yield Piece(np.ascontiguousarray(x), {n: rows[n].to_numpy() for n in named})
    else:
        yield from pieces(Slice(part, 0, len(part)), source)


def _labels(column: Any) -> np.ndarray:
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _of_npy(path: Path, columns: Sequence[str] | None) -> Source:
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise InputError(
            f"cannot read rows; {path}: {error}; pass a .npy file of a table"
        ) from error
    shape, dtype, offset = mapped.shape, mapped.dtype, mapped.offset
    if len(shape) != 2 or not mapped.flags.c_contiguous:
        return _of_array(mapped, columns)
    del mapped
    result = _of_array(_Shape(shape, dtype), columns)
    parts = [NpyFile(os.fspath(path), shape, dtype, offset, p.start, p.stop) for p in result.parts]
    return replace(result, parts=parts)


class _Shape(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype


def _of_array(array: Any, columns: Sequence[str] | None) -> Source:
    shape, dtype = array.shape, np.dtype(array.dtype)
    if columns is not None:
        raise InputError("columns= needs rows whose columns have names; got an array; leave it out")
    if len(shape) != 2 or min(shape) == 0 or dtype.kind not in "biuf":
        raise InputError(
            f"rows are a 2-D table of numbers; got shape {tuple(shape)} of {dtype}; pass one"
        )
    size = 16 * _PIECE
    parts = [Slice(array, i, min(i + size, shape[0])) for i in range(0, shape[0], size)]
    return Source(parts, None, None, _float(dtype))


def _of_arrow(given: Any, columns: Sequence[str] | None) -> Source:
    try:
        import pyarrow as pa
        import pyarrow.dataset as ds
    except ImportError as error:
        raise InputError(
            "stored rows need the package pyarrow, which is not there; run "
            "pip install 'nrprob[parquet]'"
        ) from error
    try:
        if isinstance(given, pa.Table):
            given = ds.dataset(given)
        if not isinstance(given, ds.Dataset):
            first = Path(given[0] if isinstance(given, list) else given)
            if first.is_dir():
                first = next((p for p in sorted(first.rglob("*")) if p.suffix in _SUFFIXES), first)
            kind = "parquet" if first.suffix not in (".arrow", ".feather") else "feather"
            given = ds.dataset(given, format=kind)
        parts: list[Any] = []
        for fragment in given.get_fragments():
            split = getattr(fragment, "split_by_row_group", None)
            parts += split() if split else [fragment]
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"cannot read rows; {given}: {reason}; pass Parquet or Arrow files"
        ) from error
    schema = given.schema
    kinds = {field.name: _arrow_type(field.type, pa) for field in schema}
    return _chosen(parts, kinds, columns)


def _arrow_type(kind: Any, pa: Any) -> np.dtype | None:
    """NumPy's type of an Arrow column of numbers; None of others."""
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    return None


def _of_dask(given: Any, columns: Sequence[str] | None) -> Source:
    if hasattr(given, "dtypes") and hasattr(given, "partitions"):
        kinds = {}
        for name, kind in given.dtypes.items():
            numeric = getattr(kind, "kind", "O") in "biuf" and name not in kinds
            own = getattr(kind, "numpy_dtype", kind)
            kinds[str(name)] = np.dtype(own) if numeric else None
        return _chosen(given.to_delayed(), kinds, columns)
    if not hasattr(given, "chunks") or given.ndim != 2:
        raise InputError(
            f"of dask, rows are a frame or a 2-D array; got {type(given).__name__}; pass one"
        )
    result = _of_array(_Shape(tuple(1 for _ in given.shape), given.dtype), columns)
    whole = given.rechunk({1: -1})
    return replace(result, parts=list(whole.to_delayed()[:, 0]))


def _chosen(
    parts: Sequence[Any], kinds: dict[str, np.dtype | None], columns: Sequence[str] | None
) -> Source:
    """Features among named columns: those asked for, else all that are numbers."""
    names = tuple(kinds)
    features = tuple(name for name in names if kinds[name] is not None)
    if columns is not None:
        features = tuple(columns)
        for name in features:
            if name not in kinds:
                raise InputError(
                    f"there is no column {short_repr(name)}; the rows have {listed(names)}; "
                    "choose of these"
                )
            if kinds[name] is None:
                raise InputError(
                    f"column {short_repr(name)} does not hold numbers; leave it out of columns=, "
                    "or name it as known="
                )
    if not features:
        raise InputError(f"no column holds numbers; got {listed(names)}; pass others")
    dtype = _common(kinds, features)
    return Source(list(parts), names, features, dtype, kinds, columns is not None)


def _common(kinds: Mapping[str, np.dtype | None], features: Sequence[str]) -> np.dtype:
    """Type of all features together."""
    return np.result_type(*(_float(kinds[name]) for name in features))


def _float(kind: Any) -> np.dtype:
    """Type in which numbers of a kind are computed with: float32 where they come in it."""
    return np.dtype(np.float32 if np.dtype(kind) == np.float32 else np.float64)
