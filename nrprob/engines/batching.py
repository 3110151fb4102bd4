"""Execute many fits of one shape in one compiled program, over all devices.

Calls with the same signature differ only in numbers: data, settings, seeds. They are laid out as
(devices, steps, lanes). Each device works through its own steps without waiting for the others, and
the lanes of a step run side by side. The number of steps is traced, so that one program, compiled
for its capacity, serves fewer calls at no extra cost.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nrprob.engines.optimise.solve import Solution, SolverCall, lapack_lock
from nrprob.engines.placement import memory_budget
from nrprob.settings import standard
from nrprob.statistics.rows import bucket_size

_LANES = 64
_KEPT = 128  # programs; each holds dozens of memory maps, and the system limits those
_AXIS = "device"
# Devices -> signature -> program, for the life of the process, as `jax.jit` keeps its own.
_PROGRAMS: dict[tuple[jax.Device, ...], dict[Hashable, Program]] = {}


@dataclass(frozen=True)
class Program:
    """A compiled program for up to prod(``shape``) calls of one signature.

    Attributes
    ----------
    run : (arrays, steps of every device) -> solutions, all with leading axes ``shape``
    sharding : of arguments and solutions, over devices
    shape : devices, steps, lanes
    seconds : that compiling took
    """

    run: Callable[..., Solution]
    sharding: NamedSharding
    shape: tuple[int, int, int]
    seconds: float

    @property
    def room(self) -> int:
        """Most calls of one run."""
        return math.prod(self.shape)

    def __call__(self, calls: Sequence[SolverCall]) -> list[Solution]:
        """Run at most as many calls as the program has room for."""
        n_devices, n_steps, n_lanes = self.shape
        i = np.arange(len(calls))
        place = i % n_devices * (n_steps * n_lanes) + i // n_devices
        at = np.zeros(n_devices * n_steps * n_lanes, np.intp)  # room to spare repeats the first
        at[place] = i
        steps = -(-np.bincount(i % n_devices, minlength=n_devices) // n_lanes)

        def stack(*leaves):
            stacked = np.stack([np.asarray(a) for a in leaves])[at]
            return jax.device_put(stacked.reshape(*self.shape, *leaves[0].shape), self.sharding)

        arrays = jax.tree.map(stack, *[call.arrays for call in calls])
        with lapack_lock(calls[0].factorises):
            result = self.run(arrays, jax.device_put(steps.astype(np.int32), self.sharding))
            result = jax.device_get(result)
        flat = jax.tree.map(lambda a: a.reshape(at.size, *a.shape[3:]), result)
        return [jax.tree.map(lambda a, j=j: a[j], flat) for j in place]


@dataclass
class Batcher:
    """Compiles one program per signature, unless there is one already, and runs calls through it.

    Attributes
    ----------
    devices : the devices to spread calls over
    threads : programs to run at a time on a single CPU device; as many as it has cores by default
    compiled : the programs that had to be compiled
    stepwise : the device for chains of tiny steps, where it is not one of these
    """

    devices: Sequence[jax.Device]
    threads: int | None = None
    compiled: list[Program] = field(default_factory=list)
    stepwise: jax.Device | None = None

    def __post_init__(self):
        self._beside = None
        if self.stepwise is not None:
            self._beside = Batcher([self.stepwise], self.threads, self.compiled)
        self._programs = _PROGRAMS.setdefault(tuple(self.devices), {})

    def program(self, call: SolverCall, wanted: int = 1) -> Program:
        """Program for calls like this one, with room for about ``wanted`` of them.

        One that is too small by less than a factor of four runs several times instead.
        """
        if self._beside is not None and call.stepwise:
            return self._beside.program(call, wanted)
        program = self._programs.get(call.signature)
        if program is None or (
            wanted > 4 * program.room * self._workers and self._shape(call, wanted) != program.shape
        ):
            program = self._compile(call, wanted)
            self.compiled.append(program)
            if len(self._programs) >= _KEPT:
                del self._programs[next(iter(self._programs))]  # the oldest
            self._programs[call.signature] = program
        return program

    def __call__(self, calls: Sequence[SolverCall]) -> Iterator[tuple[SolverCall, Solution, float]]:
        """Run calls of any signatures; yields every call with its solution and device time.

        The time, in seconds, is that of the program on one device, divided among its calls.
        """
        groups: dict[Hashable, list[SolverCall]] = {}
        for call in calls:
            groups.setdefault(call.signature, []).append(call)
        wide = jax.config.jax_enable_x64  # the setting belongs to a thread, not to the process

        def timed(program, part):
            start = time.perf_counter()
            with standard(wide):
                result = program(part)
            return result, (time.perf_counter() - start) * min(len(part), len(self.devices))

        with ThreadPoolExecutor(self._workers) as pool:
            for group in groups.values():
                if self._beside is not None and group[0].stepwise:
                    yield from self._beside(group)
                    continue
                program = self.program(group[0], len(group))
                size = min(-(-len(group) // self._workers), program.room)
                parts = [group[i : i + size] for i in range(0, len(group), size)]
                runs = pool.map(partial(timed, program), parts)
                for part, (result, seconds) in zip(parts, runs, strict=True):
                    for call, solution in zip(part, result, strict=True):
                        yield call, solution, seconds / len(part)

    @property
    def _workers(self) -> int:
        """Programs to run at a time: a single CPU device leaves most cores of a machine idle."""
        alone = len(self.devices) == 1 and self.devices[0].platform == "cpu"
        return (self.threads or os.cpu_count() or 1) if alone else 1

    def _shape(self, call: SolverCall, wanted: int) -> tuple[int, int, int]:
        share = -(-wanted // (len(self.devices) * self._workers))
        fit = int(max(memory_budget(self.devices[0]) // call.size, 1))
        # Lanes wait for the slowest of them. That pays where one call leaves a device idle; on a
        # CPU, a step with four lanes took 1.4 times as long as four steps.
        n_lanes = min(share, fit, _LANES) if self.devices[0].platform != "cpu" else 1
        n_steps = min(bucket_size(-(-share // n_lanes), 1 << 20), max(fit // n_lanes, 1))
        return len(self.devices), n_steps, n_lanes

    def _compile(self, call: SolverCall, wanted: int) -> Program:
        start = time.perf_counter()
        shape = self._shape(call, wanted)
        mesh = Mesh(np.asarray(self.devices), (_AXIS,))
        spec = PartitionSpec(_AXIS)
        sharding = NamedSharding(mesh, spec)

        def abstract(a):
            return jax.ShapeDtypeStruct((*shape, *a.shape), a.dtype, sharding=sharding)

        arguments = (
            jax.tree.map(abstract, call.arrays),
            jax.ShapeDtypeStruct(shape[:1], np.int32, sharding=sharding),
        )
        run = jax.shard_map(
            partial(_walk, partial(call.solver, **dict(call.static))),
            mesh=mesh,
            in_specs=(spec, spec),
            out_specs=spec,
            check_vma=False,
        )
        compiled = jax.jit(run).lower(*arguments).compile()
        return Program(compiled, sharding, shape, time.perf_counter() - start)


def _walk(solve: Callable[..., Solution], arrays: Any, steps: jax.Array) -> Solution:
    """Take the steps of one device: ``arrays`` (1, steps, lanes, ...), number of ``steps`` (1,)."""
    _, n_steps, n_lanes = jax.tree.leaves(arrays)[0].shape[:3]

    def take(i):
        now = jax.tree.map(lambda a: a[0, i], arrays)
        if n_lanes > 1:
            return jax.vmap(solve)(*now)
        return jax.tree.map(lambda a: a[None], solve(*jax.tree.map(lambda a: a[0], now)))

    def step(i, out):
        put = partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=0)
        return jax.tree.map(put, out, take(i))

    shapes = jax.eval_shape(take, 0)
    out = jax.tree.map(lambda a: jnp.zeros((n_steps, *a.shape), a.dtype), shapes)
    return jax.tree.map(lambda a: a[None], jax.lax.fori_loop(0, steps[0], step, out))
