"""Rows over several devices: where they go, and how their statistics come together.

Every device holds its share of the blocks and nothing of the others. Cells are summed over its own
rows and then over the devices; a step moves nothing else but numbers per cluster, and a score is
computed where its row lies.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nrprob.exceptions import short_repr
from nrprob.statistics.rows import Rows
from nrprob.trees import node

_AXIS = "rows"
_SPLIT, _WHOLE = PartitionSpec(_AXIS), PartitionSpec()
_asked: ContextVar[Mesh | None] = ContextVar("sharded", default=None)

T = TypeVar("T")


@contextmanager
def sharded(devices: Sequence[jax.Device] | None = None) -> Iterator[None]:
    """Spread the rows of every fit inside the ``with`` over devices.

    For data that are larger than one device, and ``solver="anneal"``. Up to rounding, which may
    exchange the names of clusters, the result is that of one device, unless restarts that do not
    fit on one side by side do so on several. A JAX array that several devices share already is
    sharded over these without being asked for. All input passes through the memory of the host.

    Under `jax.distributed` every process makes the same calls with the same data, of which each of
    its devices receives its own part, and ends with the complete result.

    Parameters
    ----------
    devices : sequence of jax.Device, optional
        All that JAX sees by default: under `jax.distributed`, those of all processes.

    Raises
    ------
    ValueError
        If there is no device, or one is given twice, or none belongs to this process.

    Examples
    --------
    >>> import nrprob
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> with nrprob.sharded():
    ...     model = nrprob.CCIB(2, random_state=0).fit(X, known=labels[:, 0])
    """
    devices = jax.devices() if devices is None else devices
    several = isinstance(devices, list | tuple)
    if not several or not all(isinstance(device, jax.Device) for device in devices):
        raise TypeError(
            f"devices must be a list of JAX's devices; got {short_repr(devices)}; pass a part of "
            "jax.devices(), or nothing for all of them"
        )
    if not devices or len(set(devices)) < len(devices):
        raise ValueError(
            f"devices must be one or more different devices; got {short_repr(devices)}; "
            "pass a part of jax.devices(), or nothing for all of them"
        )
    if not any(d.process_index == jax.process_index() for d in devices):
        raise ValueError(
            f"devices must hold one of every process that fits; got {short_repr(devices)} in "
            f"process {jax.process_index()}; pass jax.devices(), or fit in the other processes only"
        )
    token = _asked.set(_mesh(devices))
    try:
        yield
    finally:
        _asked.reset(token)


def _mesh(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.asarray(devices), (_AXIS,))


def active_mesh() -> Mesh | None:
    """Devices of the innermost `sharded`, or None outside of it."""
    return _asked.get()


def mesh_of(x: Any) -> Mesh | None:
    """Devices that share the elements of ``x``, if it is such an array, else None."""
    if not isinstance(x, jax.Array) or x.is_fully_replicated:
        return None
    return _mesh(sorted(x.devices(), key=lambda device: device.id))


@node
class ShardedRows(Rows):
    """Rows whose arrays are split by their first axis, each part being the rows of one device.

    What depends on where a row lies is written out, rather than left to XLA, which gathers what it
    fails to see through.
    """

    mesh: Mesh = field(metadata={"static": True})

    def cells(self, w: jax.Array) -> jax.Array:
        """Cells of all rows, the same on all devices; see `Rows.cells`."""
        return self._sum(Rows.cells, w, _SPLIT)

    def adjoint(self, g: jax.Array) -> jax.Array:
        """Score of every row, on the device of the row; see `Rows.adjoint`."""
        return self._map(Rows.adjoint, g, _WHOLE, _SPLIT)

    def _raw_scatter(self, centre: jax.Array) -> jax.Array:
        return self._sum(Rows._raw_scatter, centre, _WHOLE)

    def _sum(self, method: Callable, values: jax.Array, spec: PartitionSpec) -> jax.Array:
        def total(rows, values):
            return jax.lax.psum(method(rows, values), _AXIS)

        return self._map(total, values, spec, _WHOLE)

    def _map(
        self, method: Callable, values: jax.Array, spec: PartitionSpec, out: PartitionSpec
    ) -> jax.Array:
        """Apply a method of `Rows` to every device's rows and its part of the values."""
        run = jax.shard_map(
            method, mesh=self.mesh, in_specs=(_SPLIT, spec), out_specs=out, check_vma=False
        )
        return run(
            Rows(self.x, self.mass, self.number, self.group, self.share, self.n_groups), values
        )


def shard_arrays(arrays: T, mesh: Mesh) -> T:
    """Put host arrays on the devices, each getting an equal part of their first axis."""
    sharding = NamedSharding(mesh, _SPLIT)

    def put(a):
        a = np.asarray(a)
        return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])

    return jax.tree.map(put, arrays)


def shard_rows(rows: Rows, mesh: Mesh) -> ShardedRows:
    """Rows of a layout made for as many shards as there are devices, put on these devices."""
    rows = shard_arrays(rows, mesh)
    return ShardedRows(rows.x, rows.mass, rows.number, rows.group, rows.share, rows.n_groups, mesh)


def fetch_to_host(arrays: T) -> T:
    """Bring arrays to the host whole, also those of which other processes hold a part."""

    def whole(a):
        if isinstance(a, jax.Array) and not (a.is_fully_addressable or a.is_fully_replicated):
            assert isinstance(a.sharding, NamedSharding)
            return jax.jit(lambda a: a, out_shardings=NamedSharding(a.sharding.mesh, _WHOLE))(a)
        return a

    return jax.device_get(jax.tree.map(whole, arrays))


def _of_devices(value: int, mesh: Mesh) -> np.ndarray:
    """Return the number that the process of every device gave."""
    given = jax.make_array_from_callback(
        (mesh.size,), NamedSharding(mesh, _SPLIT), lambda _: np.asarray([value], np.uint32)
    )
    return fetch_to_host(given)


def agree_on_value(value: int, mesh: Mesh) -> int:
    """Return the first device's number, in every process."""
    return int(_of_devices(value, mesh)[0]) if mesh.is_multi_process else value


def check_same(arrays: Any, mesh: Mesh) -> None:
    """Raise in every process unless all of them gave the same host arrays."""
    if not mesh.is_multi_process:
        return
    code = 0
    for a in jax.tree.leaves(arrays):
        code = zlib.crc32(np.ascontiguousarray(a).data, code)
    if len(set(_of_devices(code, mesh).tolist())) > 1:
        raise ValueError(
            "every process must fit the same data with the same parameters; got different ones "
            f"in the processes of {mesh.size} devices; pass all rows, in one order, in each"
        )
