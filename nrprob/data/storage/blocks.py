"""Blocks of rows of equal shape, and sums over blocks: local, on a cluster, or in processes.

A caller that needs a sum over all rows defines a *step*: a function that returns the contribution
of one block. The step does not depend on the location of the blocks: in memory, in a scratch file,
with the workers of a ``dask.distributed`` cluster, or with the processes of `jax.distributed`.
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

_SUMS_PER_TASK = 16  # number of partial sums that a worker adds in one task

Step = Callable[..., Any]


class Blocks(Protocol):
    """Blocks of rows; each block is a tree of arrays, as in `jax.tree`.

    A step is a function of a module, or a `functools.partial` of such a function with keyword
    arguments. It can therefore be sent to the workers that hold the blocks. The first argument of a
    step is a block, and all further arguments are the same for all blocks.
    """

    def map_sum(self, step: Step, *arguments: Any) -> Any:
        """Sum the trees of arrays ``step(block, *arguments)`` over all blocks, in float64."""

    def map_blocks(self, step: Step, *arguments: Any) -> Iterator[Any]:
        """Yield ``step(block, *arguments)`` for the blocks of this process, in order."""

    def transform_blocks(self, step: Step, *arguments: Any) -> Blocks:
        """Return the blocks ``step(block, *arguments)``, and free the old blocks."""


def add_trees(left: Any, right: Any) -> Any:
    """Add two trees of arrays; floats are added in float64, and unsigned integers wrap around."""
    return jax.tree.map(lambda a, b: _as_float64(a) + _as_float64(b), left, right)


def _as_float64(a: Any) -> np.ndarray:
    """Convert an array of floats to float64; return any other array unchanged."""
    a = np.asarray(a)
    return a.astype(np.float64, copy=False) if a.dtype.kind == "f" else a


def _run_step(step: Step, block: Any, *arguments: Any) -> Any:
    """Apply a step to a block; return its tree of arrays in host memory, floats in float64."""
    with standard():
        return jax.tree.map(_as_float64, step(block, *arguments))


@dataclass
class LocalBlocks:
    """Blocks of this process; blocks beyond the first ``memory`` bytes are in a scratch file.

    ``blocks`` has, for every block, its tree of arrays or its `_FileBlock`. ``file`` is the scratch
    file in ``folder``, or None if all blocks are in memory. The file is unnamed, so the
    operating system removes it whenever the process ends.
    """

    memory: int
    folder: str | None
    blocks: list[Any] = field(default_factory=list)
    file: Any = None

    @classmethod
    def from_blocks(cls, blocks: Iterable[Any], memory: int, folder: str | None) -> LocalBlocks:
        """Store blocks in order: up to ``memory`` bytes in memory, the rest in a scratch file.

        ``folder`` is the folder of the scratch file, or None for the folder of `tempfile`.
        """
        result = cls(memory, folder)
        free = memory
        for block in blocks:
            leaves, tree = jax.tree.flatten(block)
            leaves = [np.ascontiguousarray(leaf) for leaf in leaves]
            free -= sum(leaf.nbytes for leaf in leaves)
            if free >= 0:
                # Store the arrays on the device of JAX, so that passes do not copy them from the
                # host.
                with standard():
                    result.blocks.append(jax.device_put(jax.tree.unflatten(tree, leaves)))
            else:
                result.blocks.append(result._write_block(leaves, tree))
        return result

    def _write_block(self, leaves: list[np.ndarray], tree: Any) -> _FileBlock:
        """Append the arrays ``leaves`` of a block to the scratch file.

        ``tree`` is the structure of the block, as returned by `jax.tree.flatten`.
        """
        try:
            if self.file is None:
                self.file = tempfile.TemporaryFile(dir=self.folder)
            offset = self.file.tell()
            for leaf in leaves:
                if leaf.size:
                    self.file.write(leaf.data.cast("B"))
            self.file.flush()
        except OSError as error:
            raise InputError(
                f"cannot write the scratch file; {self.folder or tempfile.gettempdir()}: "
                f"{error.strerror}; choose another folder by scratch=, or raise memory="
            ) from error
        return _FileBlock(offset, tree, [(leaf.shape, leaf.dtype) for leaf in leaves])

    def map_blocks(self, step: Step, *arguments: Any) -> Iterator[Any]:
        """Yield ``step(block, *arguments)`` of all blocks in order, from several threads."""
        descriptor = None if self.file is None else self.file.fileno()
        pending: collections.deque[Any] = collections.deque()
        with ThreadPoolExecutor(_N_THREADS) as pool:
            for block in self.blocks:
                pending.append(pool.submit(_load_and_run, descriptor, block, step, arguments))
                if len(pending) > _N_THREADS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

    def map_sum(self, step: Step, *arguments: Any) -> Any:
        """Sum the trees of arrays ``step(block, *arguments)`` over all blocks, in float64."""
        return functools.reduce(add_trees, self.map_blocks(step, *arguments))

    def transform_blocks(self, step: Step, *arguments: Any) -> LocalBlocks:
        """Return the blocks ``step(block, *arguments)``, and free the old blocks."""
        result = LocalBlocks.from_blocks(
            self.map_blocks(step, *arguments), self.memory, self.folder
        )
        self.blocks, self.file = [], None
        return result


@dataclass(frozen=True)
class _FileBlock:
    """Position and content of a block in the scratch file.

    ``offset`` is the position of the block in bytes, ``tree`` the structure of its tree of arrays,
    and ``arrays`` has the shape and dtype of every array.
    """

    offset: int
    tree: Any
    arrays: list[tuple[tuple[int, ...], np.dtype]]


def _load_and_run(
    descriptor: int | None, block: Any, step: Step, arguments: tuple[Any, ...]
) -> Any:
    if isinstance(block, _FileBlock):
        assert descriptor is not None
        block = _load_block(descriptor, block)
    return _run_step(step, block, *arguments)


def _load_block(descriptor: int, block: _FileBlock) -> Any:
    """Read a block from the scratch file, whose file descriptor is ``descriptor``."""
    leaves, offset = [], block.offset
    for shape, dtype in block.arrays:
        leaf = np.empty(shape, dtype)
        view, n_read = leaf.data.cast("B") if leaf.size else b"", 0
        while n_read < leaf.nbytes:  # a system call reads at most 2 GiB
            count = os.preadv(descriptor, [view[n_read:]], offset + n_read)
            if not count:
                raise InputError(
                    "the scratch file is truncated; another program has shortened it; repeat fit"
                )
            n_read += count
        offset += leaf.nbytes
        leaves.append(leaf)
    return jax.tree.unflatten(block.tree, leaves)


@dataclass
class WorkerBlocks:
    """Blocks in the memory of the workers of a ``dask.distributed`` cluster.

    ``client`` is connected to the cluster. ``futures`` has one future per part of the source; the
    result of the future is the list of the blocks of this part.
    """

    client: Any
    futures: list[Any]

    @classmethod
    def from_parts(
        cls, client: Any, make_blocks: Step, parts: Sequence[tuple[Any, ...]]
    ) -> WorkerBlocks:
        """Let workers create the blocks of each of the ``parts`` by ``make_blocks(*part)``."""
        import dask

        lazy = [dask.delayed(_collect_blocks, pure=False)(make_blocks, *part) for part in parts]
        return cls(client, client.compute(lazy, optimize_graph=False))

    def map_sum(self, step: Step, *arguments: Any) -> Any:
        """Sum ``step(block, *arguments)`` over all blocks; workers add partial sums in a tree."""
        submit, named = self.client.submit, _NamedStep.from_step(step)
        sums = [submit(_sum_step, blocks, named, *arguments, pure=False) for blocks in self.futures]
        while len(sums) > 1:
            chunks = [sums[i : i + _SUMS_PER_TASK] for i in range(0, len(sums), _SUMS_PER_TASK)]
            sums = [
                submit(_add_sums, chunk, pure=False) if len(chunk) > 1 else chunk[0]
                for chunk in chunks
            ]
        return jax.tree.map(_as_float64, sums[0].result())

    def map_blocks(self, step: Step, *arguments: Any) -> Iterator[Any]:
        """Yield ``step(block, *arguments)`` for all blocks, in order; workers run the step."""
        named = _NamedStep.from_step(step)
        for blocks in self.futures:
            yield from self.client.submit(_map_step, blocks, named, *arguments, pure=False).result()

    def transform_blocks(self, step: Step, *arguments: Any) -> WorkerBlocks:
        """Return the blocks ``step(block, *arguments)``.

        Workers free the old blocks when nothing refers to this object any more.
        """
        submit, named = self.client.submit, _NamedStep.from_step(step)
        return WorkerBlocks(
            self.client,
            [submit(_map_step, blocks, named, *arguments, pure=False) for blocks in self.futures],
        )


@dataclass(frozen=True)
class _NamedStep:
    """A step that is sent to workers by its name and imported there.

    ``module`` and ``name`` are the names of the function and its module, and ``settings`` its
    keyword arguments. If the function itself were sent, a worker would compile every received copy
    again.
    """

    module: str
    name: str
    settings: tuple[tuple[str, Any], ...]

    @classmethod
    def from_step(cls, step: Step) -> _NamedStep:
        """Describe ``step`` by names, so that a worker can import its function."""
        settings: dict[str, Any] = {}
        if isinstance(step, functools.partial):
            settings, step = step.keywords, step.func
        return cls(step.__module__, step.__name__, tuple(settings.items()))

    def __call__(self, *arguments: Any) -> Any:
        """Import and run the step."""
        step = getattr(importlib.import_module(self.module), self.name)
        return step(*arguments, **dict(self.settings))


def _collect_blocks(make_blocks: Step, *part: Any) -> list[Any]:
    with standard():
        return [jax.tree.map(np.asarray, block) for block in make_blocks(*part)]


def _map_step(blocks: list[Any], step: Step, *arguments: Any) -> list[Any]:
    return [_run_step(step, block, *arguments) for block in blocks]


def _add_sums(sums: list[Any]) -> Any:
    return functools.reduce(add_trees, sums)


def _sum_step(blocks: list[Any], step: Step, *arguments: Any) -> Any:
    return functools.reduce(add_trees, (_run_step(step, block, *arguments) for block in blocks))


@dataclass
class ProcessBlocks:
    """Blocks of this process; the other processes of `jax.distributed` have further blocks."""

    local: LocalBlocks

    def map_sum(self, step: Step, *arguments: Any) -> Any:
        """Sum ``step(block, *arguments)`` over the blocks of all processes, in every process."""
        return sum_processes(self.local.map_sum(step, *arguments))

    def map_blocks(self, step: Step, *arguments: Any) -> Iterator[Any]:
        """Yield ``step(block, *arguments)`` for the blocks of this process, in order."""
        return self.local.map_blocks(step, *arguments)

    def transform_blocks(self, step: Step, *arguments: Any) -> ProcessBlocks:
        """Return the blocks ``step(block, *arguments)``, and free the old blocks."""
        return ProcessBlocks(self.local.transform_blocks(step, *arguments))


def sum_processes(tree: Any) -> Any:
    """Sum ``tree``, a tree of arrays, over all processes; every process receives the sum."""
    return jax.tree.map(lambda a: gather_arrays(a).sum(0, dtype=np.asarray(a).dtype), tree)


def gather_arrays(a: Any) -> np.ndarray:
    """Gather the arrays ``a`` of all processes, stacked along a new first axis."""
    from jax.experimental.multihost_utils import process_allgather

    with standard():
        gathered = np.asarray(process_allgather(np.asarray(a)))
        return gathered.reshape(jax.process_count(), *np.shape(a))


def gather_bytes(content: bytes) -> list[bytes]:
    """Gather the bytes ``content`` of all processes, in the order of the processes."""
    sizes = gather_arrays(np.asarray(len(content)))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    rows = zip(gather_arrays(padded), sizes, strict=True)
    return [row[:size].tobytes() for row, size in rows]
