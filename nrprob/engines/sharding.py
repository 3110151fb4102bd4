"""Distribute rows over several devices, and sum their statistics.

Every device holds its own blocks of rows. Cell statistics are summed on each device and then over
the devices; a step communicates only statistics per cluster. Scores of a row are computed on the
device that holds it.
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
_current_mesh: ContextVar[Mesh | None] = ContextVar("sharded", default=None)

T = TypeVar("T")


@contextmanager
def sharded(devices: Sequence[jax.Device] | None = None) -> Iterator[None]:
    """Distribute the rows of every fit inside the ``with`` over devices.

    Use this context with ``solver="anneal"`` for data larger than the memory of one device. The
    result equals the result of one device up to rounding, which may permute the labels. The result
    may differ from the result of one device if several devices run more restarts in parallel. A JAX
    array that is already sharded keeps its devices without this context. All input passes through
    the memory of the host.

    Under `jax.distributed` every process makes the same calls with the same data. Each device
    receives its part of the rows, and every process returns the complete result.

    Parameters
    ----------
    devices : sequence of jax.Device, optional
        By default all devices of JAX; under `jax.distributed`, the devices of all processes.

    Raises
    ------
    TypeError
        If ``devices`` is not a list or tuple of devices.
    ValueError
        If ``devices`` is empty, has duplicates, or has no device of this process.

    See Also
    --------
    nrprob.stored : Fit data that are larger than memory, from files.
    nrprob.cache : Store compiled programs on disk for later processes.

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
            f"devices must include one of every process that fits; got {short_repr(devices)} in "
            f"process {jax.process_index()}; pass jax.devices(), or fit in the other processes only"
        )
    token = _current_mesh.set(_device_mesh(devices))
    try:
        yield
    finally:
        _current_mesh.reset(token)


def _device_mesh(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.asarray(devices), (_AXIS,))


def active_mesh() -> Mesh | None:
    """Devices of the innermost `sharded` context, or None outside of one."""
    return _current_mesh.get()


def mesh_of(x: Any) -> Mesh | None:
    """Devices of a sharded array ``x``; None if ``x`` is not sharded."""
    if not isinstance(x, jax.Array) or x.is_fully_replicated:
        return None
    return _device_mesh(sorted(x.devices(), key=lambda device: device.id))


@node
class ShardedRows(Rows):
    """Rows whose arrays are split along their first axis, one part per device of ``mesh``.

    Sums over rows use explicit collective operations: automatic partitioning by XLA may copy all
    rows to one device.
    """

    mesh: Mesh = field(metadata={"static": True})

    def cells(self, w: jax.Array) -> jax.Array:
        """Sum the statistics over all rows, with the same result on all devices; see `Rows`."""
        return self._sum_over_devices(Rows.cells, w, _SPLIT)

    def adjoint(self, g: jax.Array) -> jax.Array:
        """Products of coefficients ``g`` and statistics of every row; see `Rows.adjoint`."""
        return self._map_devices(Rows.adjoint, g, _WHOLE, _SPLIT)

    def _raw_scatter(self, centre: jax.Array) -> jax.Array:
        return self._sum_over_devices(Rows._raw_scatter, centre, _WHOLE)

    def _sum_over_devices(
        self, method: Callable, values: jax.Array, spec: PartitionSpec
    ) -> jax.Array:
        def sum_method(rows, values):
            return jax.lax.psum(method(rows, values), _AXIS)

        return self._map_devices(sum_method, values, spec, _WHOLE)

    def _map_devices(
        self, method: Callable, values: jax.Array, spec: PartitionSpec, out: PartitionSpec
    ) -> jax.Array:
        """Apply a method of `Rows` to the rows and values of each device.

        ``spec`` and ``out`` state how ``values`` and the result are split over the devices.
        """
        run = jax.shard_map(
            method, mesh=self.mesh, in_specs=(_SPLIT, spec), out_specs=out, check_vma=False
        )
        return run(
            Rows(self.x, self.mass, self.number, self.group, self.share, self.n_groups), values
        )


def shard_arrays(arrays: T, mesh: Mesh) -> T:
    """Split host arrays along their first axis into equal parts, one per device."""
    sharding = NamedSharding(mesh, _SPLIT)

    def shard_array(a):
        a = np.asarray(a)
        return jax.make_array_from_callback(a.shape, sharding, lambda index: a[index])

    return jax.tree.map(shard_array, arrays)


def shard_rows(rows: Rows, mesh: Mesh) -> ShardedRows:
    """Move rows to the devices of ``mesh``; the layout of the rows must have a shard per device."""
    rows = shard_arrays(rows, mesh)
    return ShardedRows(rows.x, rows.mass, rows.number, rows.group, rows.share, rows.n_groups, mesh)


def fetch_to_host(arrays: T) -> T:
    """Copy complete arrays to host memory, including the parts on devices of other processes."""

    def replicate(a):
        if isinstance(a, jax.Array) and not (a.is_fully_addressable or a.is_fully_replicated):
            assert isinstance(a.sharding, NamedSharding)
            return jax.jit(lambda a: a, out_shardings=NamedSharding(a.sharding.mesh, _WHOLE))(a)
        return a

    return jax.device_get(jax.tree.map(replicate, arrays))


def _values_of_devices(value: int, mesh: Mesh) -> np.ndarray:
    """Gather the values (devices,) that the processes of the devices passed as ``value``."""
    values = jax.make_array_from_callback(
        (mesh.size,), NamedSharding(mesh, _SPLIT), lambda _: np.asarray([value], np.uint32)
    )
    return fetch_to_host(values)


def agree_on_value(value: int, mesh: Mesh) -> int:
    """Return, in every process, the ``value`` passed by the process of the first device."""
    return int(_values_of_devices(value, mesh)[0]) if mesh.is_multi_process else value


def check_same(arrays: Any, mesh: Mesh) -> None:
    """Raise ValueError, in every process, unless all processes pass equal host arrays."""
    if not mesh.is_multi_process:
        return
    code = 0
    for a in jax.tree.leaves(arrays):
        code = zlib.crc32(np.ascontiguousarray(a).data, code)
    if len(set(_values_of_devices(code, mesh).tolist())) > 1:
        raise ValueError(
            "every process must fit the same data with the same parameters; got different ones "
            f"in the processes of {mesh.size} devices; pass all rows, in one order, in each"
        )
