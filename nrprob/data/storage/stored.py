"""Stored rows: the user's description, and statistics of one pass over the data."""

from __future__ import annotations

import contextlib
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
from nrprob.data.storage.blocks import Blocks, Here, Processes, Workers, gathered_bytes
from nrprob.data.storage.sources import Source, asked, find, pieces
from nrprob.data.validation import LARGEST, check_flag
from nrprob.exceptions import InputError, short_repr
from nrprob.files import as_path, try_write
from nrprob.scheduler import check_scheduler

_LIBRARIES = ("pyarrow", "dask", "zarr")


@dataclass(frozen=True)
class Stored:
    """Rows that are not in memory; made by `stored`."""

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
    """Rows that need not fit into memory, to be passed as ``X``.

    `CCIB` and `IB` (``solver="anneal"``) and `ResidualMixture` take them. Every pass over
    the rows adds up what blocks of them give: what is kept is a number per row for what is known,
    and one for its label. `known` and `y` are names of columns, or arrays in memory.

    Parameters
    ----------
    source : path, Arrow dataset, array or dask collection
        A Parquet, Arrow or ``.npy`` file, a folder of such, a list of them; a
        ``pyarrow.dataset.Dataset``; a memory-mapped or zarr array; a ``dask.array`` or
        ``dask.dataframe``. An array has shape (n_samples, n_features). Datasets, zarr and dask are
        also taken as ``X`` without `stored`.
    columns : sequence of str, optional
        Columns that are features; by default all that are neither known nor wanted labels, which
        have to be numbers.
    scheduler : str or distributed.Client, optional
        Workers that hold the rows and do the sums: "local" for those of this machine, the address
        of a scheduler, or a client. Files have to be where workers see them. Rows that are no
        more than the memory of all workers.
    processes : bool, default=False
        Under `jax.distributed`: every process has rows of its own, and the fit is that of all of
        them, in the order of the processes. ``labels_`` are of the own rows. Rows or labels that
        one process refuses leave the others waiting.
    memory : int, default=2**29
        Bytes of rows that are kept in memory as they are laid out; beyond, they go to a scratch
        file of about the size of the rows. At most 2**50.
    scratch : path, optional
        Folder of the scratch file; that of `tempfile` by default.
    membership : bool, default=False
        Whether ``membership_`` (n_samples, n_clusters) is made.
    labels : path, optional
        A ``.npy`` file that ``labels_`` are written to block by block, of which they are then a
        map.

    Returns
    -------
    Stored

    Raises
    ------
    InputError
        If nothing is there, or a column is not.

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
            f"memory is a number of bytes from 0 to 2**50; got {short_repr(memory)}; pass one"
        )
    check_flag("processes", processes)
    check_flag("membership", membership)
    if scheduler is not None:
        check_scheduler(scheduler)
    if processes and scheduler is not None:
        raise InputError(
            "rows are with processes or with workers; got processes=True and "
            f"scheduler={short_repr(scheduler)}; leave one of them out"
        )
    if isinstance(columns, str):
        columns = (columns,)
    return Stored(
        find(source, columns), scheduler, int(memory),
        None if scratch is None else str(as_path(scratch, "scratch")),
        bool(processes), bool(membership),
        None if labels is None else str(as_path(labels, "labels")),
    )  # fmt: skip


def as_stored(X: Any) -> Stored | None:
    """Stored rows that ``X`` is, or stands for; None where it is an array in memory."""
    if isinstance(X, Stored):
        return X
    kind = type(X).__module__.split(".")[0]
    table = kind == "pyarrow" and type(X).__name__ in ("Table", "RecordBatch")
    return stored(X) if kind in _LIBRARIES and not table else None


def in_pieces(rows: Stored, known: Any) -> Iterator[tuple[Any, Any]]:
    """Some rows after the others, with what is known of them: names of columns, or an array."""
    import pandas as pd

    names = column_names(known)
    source, start = asked(rows.source, names), 0
    for part in source.parts:
        for piece in pieces(part, source, names):
            stop = start + len(piece.x)
            own = None if known is None else known[start:stop] if not names else None
            if len(names) == 1:
                own = piece.named[names[0]]
            elif names:
                own = np.column_stack([piece.named[name].astype(object) for name in names])
            x: Any = piece.x
            if source.features is not None:
                x = pd.DataFrame(x, columns=list(source.features))
            yield x, own
            start = stop


def over_pieces(call: Callable[[Any, Any], np.ndarray], rows: Stored, known: Any) -> np.ndarray:
    """What ``call(x, known)`` says of every row, a few of them at a time."""
    return np.concatenate([call(x, own) for x, own in in_pieces(rows, known)])


def refuse_stored(X: Any, who: str) -> None:
    """Refuse stored rows where something has to look at all of them at once."""
    if isinstance(X, Stored):
        raise TypeError(
            f"{who} looks at rows in memory; got rows that are stored; pass an array of some of "
            "them, and fit the estimator that it finds to all"
        )


class Moments(NamedTuple):
    """Of rows: number, means (m,), sums of squares about them (m,), and what values there are.

    Attributes
    ----------
    n_rows, mean, square : as said, in float64
    largest : absolute value of the largest entry
    whole, small : whether all entries are whole numbers from 0, and at most 1
    """

    n_rows: int
    mean: np.ndarray
    square: np.ndarray
    largest: float
    whole: bool
    small: bool

    @classmethod
    def of(cls, x: np.ndarray) -> Moments:
        """Those of rows in memory."""
        wide = x.astype(np.float64)
        mean = wide.mean(0)
        whole = bool(((x >= 0) & (x == np.round(x))).all())
        square = ((wide - mean) ** 2).sum(0)
        return cls(len(x), mean, square, float(np.abs(x).max()), whole, bool((x <= 1).all()))

    def join(self, other: Moments) -> Moments:
        """Those of both."""
        n = self.n_rows + other.n_rows
        apart = other.mean - self.mean
        return Moments(
            n,
            self.mean + apart * (other.n_rows / n),
            self.square + other.square + apart**2 * (self.n_rows * other.n_rows / n),
            max(self.largest, other.largest),
            self.whole and other.whole,
            self.small and other.small,
        )


class Chunk(NamedTuple):
    """Rows that make a block; all chunks are of one size.

    Attributes
    ----------
    x : (size, m) features, 0 on padding
    real : (size,) False on padding, which is at the end
    number : (size,) place of the row among all
    given : (size,) what else is there of every row, by name; 0 on padding
    """

    x: np.ndarray
    real: np.ndarray
    number: np.ndarray
    given: dict[str, np.ndarray]


Lay = Callable[[Chunk], Any]


@dataclass
class Survey:
    """What one look at all rows tells, and what makes blocks of them.

    Attributes
    ----------
    rows : the rows
    source : the same, features and other columns being told apart
    sizes : rows of every part
    n_samples, first, n_all : rows of this process, those before them, and those of all processes
    moments : of the rows of all processes
    design, encoder : known structure of the rows of this process, by groups of all processes, and
        its encoder
    wanted : labels (n_samples,) that are wanted, or None
    client : of a cluster, or None
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
    wanted: Any
    client: Any = None

    def blocks(self, size: int, lay: Lay, given: Mapping[str, np.ndarray]) -> Blocks:
        """Blocks of ``size`` rows, as ``lay`` makes them of a `Chunk`.

        ``given`` are arrays (n_samples,) of which every chunk has its part.
        """
        starts = list(itertools.accumulate(self.sizes, initial=0))
        if self.client is not None:
            shares = [
                (
                    part,
                    self.source,
                    lay,
                    size,
                    self.first + a,
                    {k: v[a:b] for k, v in given.items()},
                )
                for part, (a, b) in zip(self.source.parts, itertools.pairwise(starts), strict=True)
                if b > a
            ]
            return Workers.of(self.client, _made, shares)
        every = itertools.chain.from_iterable(
            pieces(part, self.source) for part in self.source.parts
        )
        chunks = _chunks(every, size, self.first, given)
        here = Here.of((lay(chunk) for chunk in chunks), self.rows.memory, self.rows.scratch)
        return Processes(here) if self.rows.processes else here


@contextlib.contextmanager
def survey(rows: Stored, known: Any, y: Any) -> Iterator[Survey]:
    """Look at all rows once: their number, their moments, and the columns that are asked for.

    Raises
    ------
    InputError, ValueError
        If there are no rows, a value is missing, lengths differ, or ``known`` is no labels.
    """
    names = column_names(known)
    wanted = [y] if isinstance(y, str) else []
    if len(set(names)) < len(names):
        raise InputError(f"a column is known once; got {names}; name each column once")
    source = asked(rows.source, [*names, *wanted])
    if rows.labels is not None:
        try_write(Path(rows.labels))
    with contextlib.ExitStack() as stack:
        client = None
        if rows.scheduler is not None:
            from nrprob.scheduler import connect

            client = stack.enter_context(connect(rows.scheduler))
        look = partial(_look, source=source, known=names, wanted=wanted)
        if client is None:
            looks = [look(part) for part in source.parts]
        else:
            import dask

            lazy = [dask.delayed(look, pure=False)(part) for part in source.parts]
            looks = client.gather(client.compute(lazy, optimize_graph=False))
        seen = [moments for moments, _ in looks if moments is not None]
        sizes = [0 if moments is None else moments.n_rows for moments, _ in looks]
        n, first = sum(sizes), 0
        columns = [_joined([c[j] for _, c in looks]) for j in range(len(names) + len(wanted))]
        everyone: list[Any] = [(n, _all_moments(seen))]
        if rows.processes:
            everyone = [pickle.loads(said) for said in gathered_bytes(pickle.dumps(everyone[0]))]
            first = sum(said[0] for said in everyone[: jax.process_index()])
        moments = _all_moments([said[1] for said in everyone if said[1] is not None])
        if moments is None or n == 0:
            raise InputError("there are no rows; the source is empty; pass another")
        if moments.largest > LARGEST:
            raise ValueError(
                f"X must lie between {-LARGEST} and {LARGEST}, or squares leave float64; got a "
                f"value of size {moments.largest:.3g}; multiply X by a power of ten"
            )
        encoder = DesignEncoder("product")
        if names:
            codes = np.stack([codes for codes, _ in columns[: len(names)]], 1)
            design = encoder.fit_labelings(codes, [own for _, own in columns[: len(names)]], names)
        else:
            design = encoder.fit(known, n)
        if design.kind not in ("nothing", "labels"):
            raise ValueError(
                f"known structure of stored rows must be labels; got {design.description}; "
                "pass labels, or rows in memory"
            )
        if wanted:
            codes, categories = columns[-1]
            y = np.array([*categories, -1], object)[codes]
        if rows.processes:
            design = _join_processes(design, encoder)
        yield Survey(
            rows, source, sizes, n, first, moments.n_rows, moments, design, encoder, y, client
        )


def _look(
    part: Any, *, source: Source, known: Sequence[str], wanted: Sequence[str]
) -> tuple[Moments | None, list[Any]]:
    """Moments of a part, and codes and categories of its columns ``known`` and ``wanted``."""
    named = [*known, *wanted]
    moments: Moments | None = None
    columns: list[list[Any]] = [[] for _ in named]
    start = 0
    for piece in pieces(part, source, named):
        if not len(piece.x):
            continue
        bad = ~np.isfinite(piece.x)
        if bad.any():
            row, column = np.argwhere(bad)[0]
            name = column if source.features is None else repr(source.features[column])
            raise ValueError(
                f"Input X contains NaN or infinity; found {piece.x[row, column]} in column {name}, "
                f"row {start + row} of a part of the rows; remove or impute those values"
            )
        own = Moments.of(piece.x)
        moments = own if moments is None else moments.join(own)
        for j, name in enumerate(named):
            columns[j].append(_coded(piece.named[name], name, gaps=j >= len(known)))
        start += len(piece.x)
    return moments, [_joined(parts) for parts in columns]


def _coded(values: np.ndarray, name: str, gaps: bool) -> tuple[np.ndarray, dict[Any, int]]:
    """Codes (n,) of the labels of a column, and their categories.

    An empty cell has the code -1 if ``gaps`` are allowed, and is refused otherwise.
    """
    import pandas as pd

    if gaps:
        values = pd.Series(values, dtype=object).mask(are_blank(values)).infer_objects().to_numpy()
    codes, categories = pd.factorize(values)
    if (codes < 0).any() and not gaps:
        raise ValueError(
            f"labels must be non-missing; found one missing in column {name!r}; drop those "
            "rows or give them a group of their own"
        )
    if values.dtype.kind == "f" and not (categories == np.round(categories)).all():
        raise ValueError(
            f"column {name!r} holds numbers that are no labels; got fractions; of stored rows, "
            "what is known has to be labels"
        )
    names = np.asarray(categories).tolist()
    return codes.astype(np.int32), {value: i for i, value in enumerate(names)}


def _joined(
    parts: Sequence[tuple[np.ndarray, dict[Any, int]]],
) -> tuple[np.ndarray, dict[Any, int]]:
    """Codes of all parts, by categories in the order of their first appearance."""
    categories: dict[Any, int] = {}
    out = []
    for codes, own in parts:
        to = np.array([categories.setdefault(v, len(categories)) for v in own], np.int32)
        out.append(np.where(codes < 0, -1, to[codes]) if len(own) else codes)
    return np.concatenate(out) if out else np.empty(0, np.int32), categories


def _all_moments(every: Sequence[Moments]) -> Moments | None:
    out: Moments | None = None
    for own in every:
        out = own if out is None else out.join(own)
    return out


def _join_processes(design: Design, encoder: DesignEncoder) -> Design:
    """Encode the same labels by the categories of all processes."""
    labelings = [list(categories) for categories in encoder.categories_]
    everyone = [pickle.loads(sent) for sent in gathered_bytes(pickle.dumps(labelings))]
    if any(len(sent) != len(labelings) for sent in everyone):
        raise ValueError(
            "every process must pass known, or none; got it in some of them; pass the same kinds"
        )
    if len(labelings) > 1:
        raise ValueError(
            f"rows of several processes take one labeling; got {len(labelings)}; join them into one"
        )
    if not labelings:
        return design
    categories: dict[Any, int] = {}
    for (labels,) in everyone:
        for label in labels:
            categories.setdefault(label, len(categories))
    codes = np.array([categories[label] for label in labelings[0]], np.int32)[design.codes]
    return encoder.fit_labelings(codes[:, None], [categories], design.label_names)


def _made(
    part: Any, source: Source, lay: Lay, size: int, first: int, given: Mapping[str, np.ndarray]
) -> Iterator[Any]:
    """Blocks of one part."""
    return (lay(chunk) for chunk in _chunks(pieces(part, source), size, first, given))


def _chunks(
    every: Iterator[Any], size: int, first: int, given: Mapping[str, np.ndarray]
) -> Iterator[Chunk]:
    """Chunks of equal size, the last of them padded."""
    waiting: list[np.ndarray] = []
    there = done = 0

    def cut(count: int) -> Chunk:
        nonlocal waiting, there, done
        rows = np.concatenate(waiting)
        waiting, there = [rows[count:]], len(rows) - count
        pad = size - count
        x = np.pad(rows[:count], ((0, pad), (0, 0))) if pad else rows[:count]
        number = np.arange(first + done, first + done + size).astype(np.uint32)
        own = {
            name: np.pad(values[done : done + count], (0, pad)) for name, values in given.items()
        }
        done += count
        return Chunk(x, np.arange(size) < count, number, own)

    for piece in every:
        waiting.append(piece.x)
        there += len(piece.x)
        while there >= size:
            yield cut(size)
    if there:
        yield cut(there)
