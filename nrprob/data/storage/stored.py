"""Describe rows outside memory, and compute their statistics in a first pass."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.frames import column_names
from nrprob.data.labels import are_blank
from nrprob.data.storage.blocks import (
    Blocks,
    LocalBlocks,
    ProcessBlocks,
    WorkerBlocks,
    gather_bytes,
)
from nrprob.data.storage.sources import Piece, Source, exclude_columns, find_source, read_pieces
from nrprob.data.validation import LARGEST, check_flag
from nrprob.exceptions import InputError, short_repr
from nrprob.files import as_path, try_write
from nrprob.scheduler import check_scheduler

_LIBRARIES = ("pyarrow", "dask", "zarr")


@dataclass(frozen=True)
class Stored:
    """Description of rows outside memory: the source and the options of `stored`."""

    source: Source
    scheduler: Any
    memory: int
    scratch: str | None
    processes: bool
    membership: bool
    labels: str | None


def stored(
    source: Any,
    *,
    columns: Sequence[str] | None = None,
    scheduler: Any = None,
    processes: bool = False,
    memory: int = 2**29,
    scratch: str | os.PathLike | None = None,
    membership: bool = False,
    labels: str | os.PathLike | None = None,
) -> Stored:
    """Describe rows that need not fit into memory, to be passed as ``X``.

    `CCIB` and `IB` (``solver="anneal"``) and `ConditionalMixture` accept such rows. Every iteration
    reads the rows block by block and sums the statistics of the blocks. Memory holds the known
    group and the label of every row as integers. In `fit`, ``known`` and ``y`` are names of
    columns, or arrays in memory.

    Parameters
    ----------
    source : path, Arrow dataset, array or dask collection
        A Parquet, Arrow or ``.npy`` file, a folder or a list of files; a
        ``pyarrow.dataset.Dataset``; a memory-mapped or zarr array; a ``dask.array`` or
        ``dask.dataframe``. Arrays have shape (n_samples, n_features). Datasets, zarr arrays and
        dask collections may also be passed as ``X`` directly.
    columns : sequence of str, optional
        Feature columns. By default all columns that are neither known nor target labels. Feature
        columns must hold numbers; the values of a categorical column are numeric codes.
    scheduler : str or distributed.Client, optional
        Workers that hold the rows and compute the sums: "local" for workers of this machine, the
        address of a scheduler, or a client. Workers need access to the files, and together enough
        memory for the rows.
    processes : bool, default=False
        Whether every process of `jax.distributed` passes different rows. The fit uses all rows, in
        the order of the processes, and ``labels_`` are the labels of the rows of this process. If
        one process raises an error because of its rows, all other processes wait forever.
    memory : int, default=2**29
        Bytes of rows to hold in memory, from 0 to 2**50. All other rows are written to a scratch
        file.
    scratch : path, optional
        Folder of the scratch file; by default the folder of `tempfile`.
    membership : bool, default=False
        Whether to compute ``membership_`` of shape (n_samples, n_clusters).
    labels : path, optional
        A ``.npy`` file for ``labels_``, which are written block by block and memory-mapped.

    Returns
    -------
    Stored

    Raises
    ------
    InputError
        If the source or a column does not exist.

    See Also
    --------
    CCIB : Conditional information bottleneck, which fits stored rows.
    ConditionalMixture : Mixture model given known groups, which fits stored rows.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> import nrprob
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(400, (10, 4), random_state=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/rows.npy", X)
    ...     rows = nrprob.stored(f"{folder}/rows.npy")
    ...     model = nrprob.CCIB(2, n_init=1, random_state=0).fit(rows, known=labels[:, 0])
    >>> model.labels_.shape
    (400,)
    """
    if not isinstance(memory, int | np.integer) or not 0 <= memory <= 2**50:
        raise InputError(
            f"memory must be a number of bytes from 0 to 2**50; got {short_repr(memory)}; pass for "
            "example 2**29"
        )
    check_flag("processes", processes)
    check_flag("membership", membership)
    if scheduler is not None:
        check_scheduler(scheduler)
    if processes and scheduler is not None:
        raise InputError(
            "rows are held by processes or by workers; got processes=True and "
            f"scheduler={short_repr(scheduler)}; leave one of them out"
        )
    if isinstance(columns, str):
        columns = (columns,)
    return Stored(
        find_source(source, columns), scheduler, int(memory),
        None if scratch is None else str(as_path(scratch, "scratch")),
        bool(processes), bool(membership),
        None if labels is None else str(as_path(labels, "labels")),
    )  # fmt: skip


def as_stored(X: Any) -> Stored | None:
    """Return ``X`` as stored rows if it is outside memory, otherwise None."""
    if isinstance(X, Stored):
        return X
    library = type(X).__module__.split(".")[0]
    is_in_memory = library == "pyarrow" and type(X).__name__ in ("Table", "RecordBatch")
    return stored(X) if library in _LIBRARIES and not is_in_memory else None


def iterate_pieces(rows: Stored, known: Any) -> Iterator[tuple[Any, Any]]:
    """Yield pieces of consecutive rows, each with its known structure.

    ``known`` names columns of the rows, or is an array with one entry per row, or None.
    """
    names = column_names(known)
    source, start = exclude_columns(rows.source, names), 0
    for part in source.parts:
        for piece in read_pieces(part, source, names):
            stop = start + len(piece.x)
            piece_known = None if known is None or names else known[start:stop]
            if len(names) == 1:
                piece_known = piece.columns[names[0]]
            elif names:
                columns = [piece.columns[name].astype(object) for name in names]
                piece_known = np.column_stack(columns)
            yield source.as_table(piece.x), piece_known
            start = stop


def apply_to_pieces(
    function: Callable[[Any, Any], np.ndarray], rows: Stored, known: Any
) -> np.ndarray:
    """Concatenate ``function(x, known)`` over the pieces of the rows; see `iterate_pieces`."""
    return np.concatenate([function(*piece) for piece in iterate_pieces(rows, known)])


def refuse_stored(X: Any, who: str) -> None:
    """Raise an error if ``X`` are stored rows; ``who`` names the caller, which needs an array."""
    if isinstance(X, Stored):
        raise TypeError(
            f"{who} needs rows in memory; got stored rows; pass an array with a sample of the "
            "rows, and fit the resulting estimator to all rows"
        )


class Moments(NamedTuple):
    """Moments of rows of m features, in float64, and the type of their values.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    mean : ndarray of shape (m,)
        Mean of every feature.
    square : ndarray of shape (m,)
        Sums of squared deviations from the mean.
    largest : float
        Largest absolute value.
    is_count : bool
        Whether all values are non-negative integers.
    is_binary : bool
        Whether all values are at most 1. Counts with this property are binary.
    """

    n_rows: int
    mean: np.ndarray
    square: np.ndarray
    largest: float
    is_count: bool
    is_binary: bool

    @classmethod
    def from_rows(cls, x: np.ndarray) -> Moments:
        """Compute the moments of rows in memory."""
        values = x.astype(np.float64)
        mean = values.mean(0)
        is_count = bool(((x >= 0) & (x == np.round(x))).all())
        square = ((values - mean) ** 2).sum(0)
        is_binary = bool((x <= 1).all())
        return cls(len(x), mean, square, float(np.abs(x).max()), is_count, is_binary)

    def merge(self, other: Moments) -> Moments:
        """Combine with the moments of other rows (Chan, Golub and LeVeque's update)."""
        n = self.n_rows + other.n_rows
        difference = other.mean - self.mean
        return Moments(
            n,
            self.mean + difference * (other.n_rows / n),
            self.square + other.square + difference**2 * (self.n_rows * other.n_rows / n),
            max(self.largest, other.largest),
            self.is_count and other.is_count,
            self.is_binary and other.is_binary,
        )


class Chunk(NamedTuple):
    """Rows from which a block is made, with m features; all chunks have the same size.

    Attributes
    ----------
    x : ndarray of shape (size, m)
        Features; 0 on padding.
    is_row : bool ndarray of shape (size,)
        Whether an entry is a row; False on padding, which comes last.
    number : ndarray of shape (size,)
        Position of the row among all rows.
    arrays : dict of str to ndarray of shape (size,)
        Known groups and labels of the rows as integers, by name; 0 on padding.
    """

    x: np.ndarray
    is_row: np.ndarray
    number: np.ndarray
    arrays: dict[str, np.ndarray]


MakeBlock = Callable[[Chunk], Any]


@dataclass
class Survey:
    """Statistics of the first pass over the rows.

    Attributes
    ----------
    rows : Stored
    source : the source, whose features exclude known columns and target labels
    sizes : number of rows of every part
    n_samples : number of rows of this process
    first : position of the first row of this process, the number of rows of all earlier processes
    n_all : number of rows of all processes
    moments : moments of the rows of all processes
    design : known structure of the rows of this process, with the groups of all processes
    encoder : encoder of the design
    target_labels : labels of shape (n_samples,), or None
    client : client of a cluster, or None
    """

    rows: Stored
    source: Source
    sizes: list[int]
    n_samples: int
    first: int
    n_all: int
    moments: Moments
    design: Design
    encoder: DesignEncoder
    target_labels: Any
    client: Any = None

    def make_blocks(
        self, size: int, make_block: MakeBlock, arrays: Mapping[str, np.ndarray]
    ) -> Blocks:
        """Divide the rows into chunks of ``size`` rows, and apply ``make_block`` to every chunk.

        ``arrays`` has arrays (n_samples,) by name. They are divided like the rows, and become
        ``Chunk.arrays``.
        """
        starts = list(itertools.accumulate(self.sizes, initial=0))
        if self.client is not None:
            parts = [
                (
                    part, self.source, make_block, size, self.first + start,
                    {name: values[start:stop] for name, values in arrays.items()},
                )
                for part, (start, stop) in zip(
                    self.source.parts, itertools.pairwise(starts), strict=True
                )
                if stop > start
            ]  # fmt: skip
            return WorkerBlocks.from_parts(self.client, _make_part_blocks, parts)
        pieces = itertools.chain.from_iterable(
            read_pieces(part, self.source) for part in self.source.parts
        )
        chunks = _make_chunks(pieces, size, self.first, arrays)
        local = LocalBlocks.from_blocks(
            map(make_block, chunks), self.rows.memory, self.rows.scratch
        )
        return ProcessBlocks(local) if self.rows.processes else local


@contextlib.contextmanager
def survey_rows(rows: Stored, known: Any, y: Any) -> Iterator[Survey]:
    """Read all rows once: count them, compute moments, and encode known and label columns.

    Raises
    ------
    InputError, ValueError
        If there are no rows, a value is missing, lengths differ, or ``known`` holds no labels.
    """
    known_names = column_names(known)
    label_names = [y] if isinstance(y, str) else []
    if len(set(known_names)) < len(known_names):
        raise InputError(f"known columns must differ; got {known_names}; name each column once")
    source = exclude_columns(rows.source, [*known_names, *label_names])
    if rows.labels is not None:
        try_write(Path(rows.labels))
    with contextlib.ExitStack() as stack:
        client = None
        if rows.scheduler is not None:
            from nrprob.scheduler import connect

            client = stack.enter_context(connect(rows.scheduler))
        # Read every part once, in this process or on the workers.
        survey_part = partial(
            _survey_part, source=source, known_names=known_names, label_names=label_names
        )
        if client is None:
            results = [survey_part(part) for part in source.parts]
        else:
            import dask

            lazy = [dask.delayed(survey_part, pure=False)(part) for part in source.parts]
            results = client.gather(client.compute(lazy, optimize_graph=False))
        # Join the codes and the moments of all parts, then of all processes.
        sizes = [0 if moments is None else moments.n_rows for moments, _ in results]
        n, first = sum(sizes), 0
        columns = [
            _join_codes([codes[j] for _, codes in results])
            for j in range(len(known_names) + len(label_names))
        ]
        totals: list[Any] = [(n, _merge_moments([moments for moments, _ in results]))]
        if rows.processes:
            totals = [pickle.loads(sent) for sent in gather_bytes(pickle.dumps(totals[0]))]
            first = sum(sent[0] for sent in totals[: jax.process_index()])
        moments = _merge_moments([sent[1] for sent in totals])
        if moments is None or n == 0:
            raise InputError("there are no rows; the source is empty; pass a source with rows")
        if moments.largest > LARGEST:
            raise ValueError(
                f"X must lie between {-LARGEST} and {LARGEST}, since its squares would overflow; "
                f"got a value of size {moments.largest:.3g}; divide X by a power of ten"
            )
        # Encode the known structure and the target labels.
        encoder = DesignEncoder("product")
        if known_names:
            codes, categories = zip(*columns[: len(known_names)], strict=True)
            design = encoder.fit_labelings(np.stack(codes, 1), list(categories), known_names)
        else:
            design = encoder.fit(known, n)
        if design.kind not in ("nothing", "labels"):
            raise ValueError(
                f"known structure of stored rows must be labels; got {design.description}; "
                "pass labels, or rows in memory"
            )
        if label_names:
            codes, labels = columns[-1]
            y = np.array([*labels, -1], object)[codes]
        if rows.processes:
            design = _join_processes(design, encoder)
        yield Survey(
            rows, source, sizes, n, first, moments.n_rows, moments, design, encoder, y, client
        )


def _survey_part(
    part: Any, *, source: Source, known_names: Sequence[str], label_names: Sequence[str]
) -> tuple[Moments | None, list[Any]]:
    """Return the moments of a part, and its encoded known columns and label columns.

    The moments are None if the part has no rows. `_encode_column` encodes every named column.
    """
    names = [*known_names, *label_names]
    moments: Moments | None = None
    columns: list[list[Any]] = [[] for _ in names]
    start = 0
    for piece in read_pieces(part, source, names):
        if not len(piece.x):
            continue
        is_bad = ~np.isfinite(piece.x)
        if is_bad.any():
            row, column = np.argwhere(is_bad)[0]
            name = column if source.features is None else repr(source.features[column])
            raise ValueError(
                f"Input X contains NaN or infinity; found {piece.x[row, column]} in column {name}, "
                f"row {start + row} of a part of the rows; remove or impute those values"
            )
        moments = _merge_moments([moments, Moments.from_rows(piece.x)])
        for j, name in enumerate(names):
            is_label = j >= len(known_names)
            columns[j].append(_encode_column(piece.columns[name], name, allow_missing=is_label))
        start += len(piece.x)
    return moments, [_join_codes(pieces) for pieces in columns]


def _encode_column(
    values: np.ndarray, name: str, allow_missing: bool
) -> tuple[np.ndarray, dict[Any, int]]:
    """Encode the labels of a column as integers; return the codes, and a dict from labels to codes.

    Missing labels and empty text have the code -1 if ``allow_missing``, and otherwise raise
    ValueError.
    """
    import pandas as pd

    if allow_missing:
        values = pd.Series(values, dtype=object).mask(are_blank(values)).infer_objects().to_numpy()
    codes, categories = pd.factorize(values)
    if (codes < 0).any() and not allow_missing:
        raise ValueError(
            f"labels must be non-missing; found one missing in column {name!r}; drop those "
            "rows or give them a group of their own"
        )
    if values.dtype.kind == "f" and not (categories == np.round(categories)).all():
        raise ValueError(
            f"known structure of stored rows must be labels; got fractions in column {name!r}; "
            "pass labels, or rows in memory"
        )
    labels = np.asarray(categories).tolist()
    return codes.astype(np.int32), {label: i for i, label in enumerate(labels)}


def _join_codes(
    parts: Sequence[tuple[np.ndarray, dict[Any, int]]],
) -> tuple[np.ndarray, dict[Any, int]]:
    """Join the encoded labels of all parts; return codes, and a dict from labels to codes.

    Labels are numbered in the order of their first appearance in any part.
    """
    categories: dict[Any, int] = {}
    result = []
    for codes, labels in parts:
        joint_code = [categories.setdefault(label, len(categories)) for label in labels]
        joint = np.array(joint_code, np.int32)[codes] if labels else codes
        result.append(np.where(codes < 0, -1, joint))
    return np.concatenate(result) if result else np.empty(0, np.int32), categories


def _merge_moments(parts: Sequence[Moments | None]) -> Moments | None:
    moments = [part for part in parts if part is not None]
    return functools.reduce(Moments.merge, moments) if moments else None


def _join_processes(design: Design, encoder: DesignEncoder) -> Design:
    """Encode known labels again, such that all processes use the same code for a label.

    ``design`` and ``encoder`` encode the labels of this process. Returns the new design.
    """
    labelings = [list(categories) for categories in encoder.categories_]
    everyone = [pickle.loads(sent) for sent in gather_bytes(pickle.dumps(labelings))]
    if any(len(sent) != len(labelings) for sent in everyone):
        raise ValueError(
            "all processes must pass the same number of known labelings; got different numbers; "
            "pass known in every process, or in none"
        )
    if len(labelings) > 1:
        raise ValueError(
            f"rows of several processes take one known labeling; got {len(labelings)}; combine the "
            "labelings into one"
        )
    if not labelings:
        return design
    categories: dict[Any, int] = {}
    for (labels,) in everyone:
        for label in labels:
            categories.setdefault(label, len(categories))
    codes = np.array([categories[label] for label in labelings[0]], np.int32)[design.codes]
    return encoder.fit_labelings(codes[:, None], [categories], design.label_names)


def _make_part_blocks(
    part: Any,
    source: Source,
    make_block: MakeBlock,
    size: int,
    first: int,
    arrays: Mapping[str, np.ndarray],
) -> Iterator[Any]:
    """Make the blocks of one part of a source; see `Survey.make_blocks`.

    ``first`` is the position of the first row of the part among all rows. ``arrays`` has arrays
    with one entry per row of the part, by name.
    """
    return map(make_block, _make_chunks(read_pieces(part, source), size, first, arrays))


def _make_chunks(
    pieces: Iterator[Piece], size: int, first: int, arrays: Mapping[str, np.ndarray]
) -> Iterator[Chunk]:
    """Divide rows into chunks of ``size`` rows; the last chunk is padded.

    ``first`` is the position of the first of these rows among all rows. ``arrays`` has arrays with
    one entry per row, by name.
    """
    buffer: list[np.ndarray] = []
    n_buffered = n_done = 0

    def cut_chunk(count: int) -> Chunk:
        """Cut the first ``count`` buffered rows into a chunk, padded to ``size`` rows."""
        nonlocal buffer, n_buffered, n_done
        rows = np.concatenate(buffer)
        buffer, n_buffered = [rows[count:]], len(rows) - count
        pad = size - count
        x = np.pad(rows[:count], ((0, pad), (0, 0))) if pad else rows[:count]
        number = np.arange(first + n_done, first + n_done + size).astype(np.uint32)
        stop = n_done + count
        chunk_arrays = {
            name: np.pad(values[n_done:stop], (0, pad)) for name, values in arrays.items()
        }
        n_done = stop
        return Chunk(x, np.arange(size) < count, number, chunk_arrays)

    for piece in pieces:
        buffer.append(piece.x)
        n_buffered += len(piece.x)
        while n_buffered >= size:
            yield cut_chunk(size)
    if n_buffered:
        yield cut_chunk(n_buffered)
