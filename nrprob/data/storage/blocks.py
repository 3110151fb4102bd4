"""Blocks of rows of one shape, and sums over them: local, on a cluster, or multi-process.

A step keeps only what it returns for a block. A caller that needs sums over all rows defines the
contribution of one block, and does not depend on the location of the blocks: in memory, in a
scratch file, with the workers of a ``dask.distributed`` cluster, or with the processes of
`jax.distributed`.
"""

from __future__ import annotations

import collections
import functools
import importlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from nrprob.exceptions import InputError
from nrprob.settings import standard

_N_THREADS = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)

_TOGETHER = 16  # sums of parts that a worker joins

Step = Callable[..., Any]


class Blocks(Protocol):
    """Blocks of rows, each a tree of arrays.

    A step is a function of a module, or a `functools.partial` of one: it travels to where the
    blocks are. What it is given beside a block is the same for all of them.
    """

    def total(self, step: Step, *given: Any) -> Any:
        """Sum of the trees of arrays that ``step(block, *given)`` gives; floats in float64."""

    def each(self, step: Step, *given: Any) -> Iterator[Any]:
        """What ``step(block, *given)`` gives of every block of this process, in order."""

    def mapped(self, step: Step, *given: Any) -> Blocks:
        """Blocks of what ``step(block, *given)`` gives, in place of these, which are gone."""


def add(one: Any, other: Any) -> Any:
    """Sum of two trees of arrays; floats in float64, and unsigned integers wrap."""
    return jax.tree.map(lambda a, b: _wide(a) + _wide(b), one, other)


def _wide(a: Any) -> np.ndarray:
    a = np.asarray(a)
    return a.astype(np.float64, copy=False) if a.dtype.kind == "f" else a


def _run(step: Step, block: Any, *given: Any) -> Any:
    """Apply a step where a block lies, and bring back what it gives."""
    with standard():
        return jax.tree.map(_wide, step(block, *given))


@dataclass
class Here:
    """Blocks of this process: in memory up to a number of bytes, the others in a scratch file.

    The file has no name, so that nothing of it is left however the process ends.
    """

    memory: int
    folder: str | None
    kept: list[Any] = field(default_factory=list)
    file: Any = None

    @classmethod
    def of(cls, blocks: Iterable[Any], memory: int, folder: str | None) -> Here:
        """Keep blocks as they come."""
        here = cls(memory, folder)
        left = memory
        for block in blocks:
            leaves, tree = jax.tree.flatten(block)
            leaves = [np.ascontiguousarray(leaf) for leaf in leaves]
            left -= sum(leaf.nbytes for leaf in leaves)
            if left >= 0:
                # Where programs run, or every pass would copy them.
                with standard():
                    here.kept.append(jax.device_put(jax.tree.unflatten(tree, leaves)))
            else:
                here.kept.append(here._write(leaves, tree))
        return here

    def _write(self, leaves: list[np.ndarray], tree: Any) -> _Written:
        try:
            if self.file is None:
                self.file = tempfile.TemporaryFile(dir=self.folder)
            offset = self.file.tell()
            for leaf in leaves:
                self.file.write(leaf.data.cast("B"))
            self.file.flush()
        except OSError as error:
            raise InputError(
                f"cannot write the scratch file; {self.folder or tempfile.gettempdir()}: "
                f"{error.strerror}; choose another folder by scratch=, or raise memory="
            ) from error
        return _Written(offset, tree, [(leaf.shape, leaf.dtype) for leaf in leaves])

    def each(self, step: Step, *given: Any) -> Iterator[Any]:
        """See `Blocks`; as many blocks at a time as there are processors."""
        descriptor = None if self.file is None else self.file.fileno()
        ahead: collections.deque[Any] = collections.deque()
        with ThreadPoolExecutor(_N_THREADS) as pool:
            for block in self.kept:
                ahead.append(pool.submit(_read_and_run, descriptor, block, step, given))
                if len(ahead) > _N_THREADS:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()

    def total(self, step: Step, *given: Any) -> Any:
        """See `Blocks`."""
        return functools.reduce(add, self.each(step, *given))

    def mapped(self, step: Step, *given: Any) -> Here:
        """See `Blocks`."""
        new = Here.of(self.each(step, *given), self.memory, self.folder)
        self.kept, self.file = [], None
        return new


@dataclass(frozen=True)
class _Written:
    """Where a block is in the scratch file."""

    offset: int
    tree: Any
    arrays: list[tuple[tuple[int, ...], np.dtype]]


def _read_and_run(descriptor: int | None, block: Any, step: Step, given: tuple[Any, ...]) -> Any:
    if isinstance(block, _Written):
        assert descriptor is not None
        block = _fetched(descriptor, block)
    return _run(step, block, *given)


def _fetched(descriptor: int, block: _Written) -> Any:
    leaves, offset = [], block.offset
    for shape, dtype in block.arrays:
        leaf = np.empty(shape, dtype)
        view, done = leaf.data.cast("B") if leaf.size else b"", 0
        while done < leaf.nbytes:  # one call reads 2 GiB at most
            got = os.preadv(descriptor, [view[done:]], offset + done)
            if not got:
                raise InputError(
                    "the scratch file has lost its end; something has cut it; fit anew"
                )
            done += got
        offset += leaf.nbytes
        leaves.append(leaf)
    return jax.tree.unflatten(block.tree, leaves)


@dataclass
class Workers:
    """Blocks that the workers of a cluster hold, several of a part of the source together."""

    client: Any
    held: list[Any]

    @classmethod
    def of(cls, client: Any, make: Step, parts: Sequence[tuple[Any, ...]]) -> Workers:
        """Let workers make the blocks: ``make(*part)`` gives those of one part of the rows."""
        import dask

        lazy = [dask.delayed(_listed, pure=False)(make, *part) for part in parts]
        return cls(client, client.compute(lazy, optimize_graph=False))

    def total(self, step: Step, *given: Any) -> Any:
        """See `Blocks`; sums of a few parts are made where these are."""
        submit = self.client.submit
        named = _Named.of(step)
        sums = [submit(_sum_of, held, named, *given, pure=False) for held in self.held]
        while len(sums) > 1:
            few = [sums[i : i + _TOGETHER] for i in range(0, len(sums), _TOGETHER)]
            sums = [submit(_all, own, pure=False) if len(own) > 1 else own[0] for own in few]
        return jax.tree.map(_wide, sums[0].result())

    def each(self, step: Step, *given: Any) -> Iterator[Any]:
        """See `Blocks`."""
        named = _Named.of(step)
        for held in self.held:
            yield from self.client.submit(_every, held, named, *given, pure=False).result()

    def mapped(self, step: Step, *given: Any) -> Workers:
        """See `Blocks`."""
        submit, named = self.client.submit, _Named.of(step)
        return Workers(
            self.client, [submit(_every, held, named, *given, pure=False) for held in self.held]
        )


@dataclass(frozen=True)
class _Named:
    """A step by its name: of a compiled function, a worker would compile every copy anew."""

    module: str
    name: str
    settings: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, step: Step) -> _Named:
        """Name a function of a module, or a `functools.partial` of one."""
        settings: dict[str, Any] = {}
        if isinstance(step, functools.partial):
            settings, step = step.keywords, step.func
        return cls(step.__module__, step.__name__, tuple(settings.items()))

    def __call__(self, *given: Any) -> Any:
        """Do the step."""
        return getattr(importlib.import_module(self.module), self.name)(
            *given, **dict(self.settings)
        )


def _listed(make: Step, *part: Any) -> list[Any]:
    with standard():
        return [jax.tree.map(np.asarray, block) for block in make(*part)]


def _every(blocks: list[Any], step: Step, *given: Any) -> list[Any]:
    return [_run(step, block, *given) for block in blocks]


def _all(sums: list[Any]) -> Any:
    return functools.reduce(add, sums)


def _sum_of(blocks: list[Any], step: Step, *given: Any) -> Any:
    out = None
    for block in blocks:
        new = _run(step, block, *given)
        out = jax.tree.map(_wide, new) if out is None else add(out, new)
    return out


@dataclass
class Processes:
    """Blocks of this process among those of all processes of `jax.distributed`."""

    own: Here

    def total(self, step: Step, *given: Any) -> Any:
        """See `Blocks`; the same in every process."""
        return summed(self.own.total(step, *given))

    def each(self, step: Step, *given: Any) -> Iterator[Any]:
        """See `Blocks`."""
        return self.own.each(step, *given)

    def mapped(self, step: Step, *given: Any) -> Processes:
        """See `Blocks`."""
        return Processes(self.own.mapped(step, *given))


def summed(tree: Any) -> Any:
    """Sum of the trees of arrays of all processes, the same in every one."""
    return jax.tree.map(lambda a: gathered(a).sum(0, dtype=np.asarray(a).dtype), tree)


def gathered(a: Any) -> np.ndarray:
    """Arrays of all processes, along a new first axis."""
    from jax.experimental.multihost_utils import process_allgather

    with standard():
        return np.asarray(process_allgather(np.asarray(a))).reshape(-1, *np.shape(a))


def gathered_bytes(content: bytes) -> list[bytes]:
    """What every process has said, in their order."""
    sizes = gathered(np.asarray(len(content)))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return [row[:size].tobytes() for row, size in zip(gathered(padded), sizes, strict=True)]
