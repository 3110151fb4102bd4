"""Many fits of one shape in one compiled program, over all devices.

Calls that agree in their signature differ in nothing but numbers: data, settings, seeds. They are
laid out as (devices, steps, lanes): every device walks through its own steps without waiting for
the others, and the lanes of a step run side by side. The number of steps is traced, so that one
program, compiled for its capacity, serves fewer calls at no cost.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nrprob.engines.solve import Call, Solution

_MEMORY = 1.5e9  # bytes that the calls of one program may take on a device
_AXIS = "device"


@dataclass
class Program:
    """A compiled program for up to ``capacity`` calls of one signature."""

    compiled: Any
    sharding: NamedSharding
    n_devices: int
    n_steps: int
    n_lanes: int
    seconds: float  # that compiling took

    @property
    def capacity(self) -> int:
        """Most calls of one run."""
        return self.n_devices * self.n_steps * self.n_lanes


@dataclass
class Lanes:
    """Compiles one program per signature, and runs calls through it.

    Attributes
    ----------
    devices : the devices to spread calls over
    programs : those compiled so far, by signature
    """

    devices: Sequence[jax.Device]
    programs: dict[Hashable, Program] = field(default_factory=dict)

    def __post_init__(self):
        self._mesh = Mesh(np.asarray(self.devices), (_AXIS,))
        self._wide = any(d.platform != "cpu" for d in self.devices)

    def capacity(self, call: Call, wanted: int) -> tuple[int, int, int]:
        """Devices, steps and lanes of a program for about ``wanted`` calls like this one."""
        n_devices = len(self.devices)
        fit = int(max(_MEMORY // call.size, 1))
        share = -(-wanted // n_devices)
        # Lanes wait for the slowest of them: worth it only where one call leaves a device idle.
        n_lanes = min(share, fit, 64) if self._wide else 1
        n_steps = min(-(-share // n_lanes), max(fit // n_lanes, 1))
        return n_devices, n_steps, n_lanes

    def program(self, call: Call, wanted: int) -> Program:
        """Compile for calls like this one, unless that has been done."""
        key = call.signature
        if key not in self.programs:
            start = time.perf_counter()
            shape = self.capacity(call, wanted)
            sharding = NamedSharding(self._mesh, PartitionSpec(_AXIS))

            def abstract(a):
                return jax.ShapeDtypeStruct((*shape, *a.shape), a.dtype, sharding=sharding)

            arrays = jax.tree.map(abstract, call.arrays)
            counts = jax.ShapeDtypeStruct(shape[:1], np.int32, sharding=sharding)
            run = partial(_run, call.solver, call.static)
            spec = PartitionSpec(_AXIS)
            run = jax.shard_map(
                run, mesh=self._mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False
            )
            compiled = jax.jit(run).lower(arrays, counts).compile()
            seconds = time.perf_counter() - start
            self.programs[key] = Program(compiled, sharding, *shape, seconds)
        return self.programs[key]

    def __call__(self, calls: Sequence[Call], wanted: int | None = None) -> list[Solution]:
        """Run calls of one signature; at most the program's capacity of them."""
        program = self.program(calls[0], wanted or len(calls))
        shape = program.n_devices, program.n_steps, program.n_lanes
        if len(calls) > program.capacity:
            raise ValueError(f"{len(calls)} calls for a program that takes {program.capacity}")
        # Calls go round the devices, so that each has about as many; what is left of a last step
        # repeats a call.
        share = -(-len(calls) // program.n_devices)
        at = np.zeros(shape, np.int32).reshape(program.n_devices, -1)
        for device in range(program.n_devices):
            own = np.arange(len(calls))[device :: program.n_devices]
            if own.size:
                at[device] = own[np.minimum(np.arange(at.shape[1]), own.size - 1)]
        counts = np.asarray(
            [
                -(-len(range(d, len(calls), program.n_devices)) // program.n_lanes)
                for d in range(program.n_devices)
            ],
            np.int32,
        )
        del share

        def stack(*leaves):
            leaves = np.stack([np.asarray(leaf) for leaf in leaves])[at.ravel()]
            return jax.device_put(leaves.reshape(*shape, *leaves.shape[1:]), program.sharding)

        arrays = jax.tree.map(stack, *[call.arrays for call in calls])
        counts = jax.device_put(counts, program.sharding)
        found = jax.device_get(program.compiled(arrays, counts))
        place = {int(i): j for j, i in reversed(list(enumerate(at.ravel())))}
        flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[3:]), found)
        return [jax.tree.map(lambda a, i=i: a[place[i]], flat) for i in range(len(calls))]


def _run(solver: Any, static: Any, arrays: Any, count: jax.Array) -> Solution:
    """Walk through the steps of one device: arrays (1, steps, lanes, ...), count (1,)."""
    solve = partial(solver, **dict(static))
    n_lanes = jax.tree.leaves(arrays)[0].shape[2]

    def one(i):
        now = jax.tree.map(lambda a: a[0, i], arrays)
        if n_lanes > 1:
            return jax.vmap(solve)(*now)
        return jax.tree.map(lambda a: a[None], solve(*jax.tree.map(lambda a: a[0], now)))

    shapes = jax.eval_shape(one, 0)
    n_steps = jax.tree.leaves(arrays)[0].shape[1]
    out = jax.tree.map(lambda a: jnp.zeros((n_steps, *a.shape), a.dtype), shapes)

    def step(i, out):
        return jax.tree.map(
            lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, i, 0), out, one(i)
        )

    out = jax.lax.fori_loop(0, count[0], step, out)
    return jax.tree.map(lambda a: a[None], out)
