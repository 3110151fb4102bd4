"""Execute many fits of one shape in one compiled program, over all devices.

A *call* is one run of a solver (`nrprob.engines.optimise.solve.SolverCall`). Calls with the same
signature differ in the values of their arrays only: data, settings, seeds. One program arranges
them as an array (devices, steps, lanes). Each device executes its steps one after another, without
waiting for other devices. The lanes of a step are calls that run in parallel on one device. The
number of steps is traced, so a program for many calls can also run fewer calls, in less time.
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
from nrprob.engines.stored_programs import NotStorableError, load_or_compile, type_of
from nrprob.settings import standard
from nrprob.statistics.rows import bucket_size

_LANES = 64  # maximum number of lanes
# Maximum number of programs in the cache. The system limits the number of memory maps, of which
# each program has dozens.
_MAX_PROGRAMS = 128
_AXIS = "device"
# Devices -> signature -> program, for the lifetime of the process, like the cache of `jax.jit`.
_PROGRAMS: dict[tuple[jax.Device, ...], dict[Hashable, Program]] = {}


@dataclass(frozen=True)
class Program:
    """A compiled program for up to prod(``shape``) calls of one signature.

    Attributes
    ----------
    run : function ``(arrays, steps) -> solutions``; arrays and solutions of all calls have the
        leading axes ``shape``, and ``steps`` (devices,) is the number of steps of each device
    sharding : sharding of arguments and solutions over devices
    shape : numbers of devices, steps and lanes
    seconds : compilation time
    """

    run: Callable[..., Solution]
    sharding: NamedSharding
    shape: tuple[int, int, int]
    seconds: float

    @property
    def n_slots(self) -> int:
        """Maximum number of calls per run."""
        return math.prod(self.shape)

    def __call__(self, calls: Sequence[SolverCall]) -> list[Solution]:
        """Run at most ``n_slots`` calls; return their solutions in the same order."""
        n_devices, n_steps, n_lanes = self.shape
        # Calls are assigned to the devices in turn; unused slots repeat the first call.
        i = np.arange(len(calls))
        slot = i % n_devices * (n_steps * n_lanes) + i // n_devices
        call_of_slot = np.zeros(n_devices * n_steps * n_lanes, np.intp)
        call_of_slot[slot] = i
        steps = -(-np.bincount(i % n_devices, minlength=n_devices) // n_lanes)

        def stack_calls(*leaves):
            stacked = np.stack([np.asarray(a) for a in leaves])[call_of_slot]
            return jax.device_put(stacked.reshape(*self.shape, *leaves[0].shape), self.sharding)

        arrays = jax.tree.map(stack_calls, *[call.arrays for call in calls])
        with lapack_lock(calls[0].factorises):
            result = self.run(arrays, jax.device_put(steps.astype(np.int32), self.sharding))
            result = jax.device_get(result)
        flat = jax.tree.map(lambda a: a.reshape(call_of_slot.size, *a.shape[3:]), result)
        return [jax.tree.map(lambda a, j=j: a[j], flat) for j in slot]


@dataclass
class Batcher:
    """Run calls by one compiled program per signature, and cache the programs.

    Attributes
    ----------
    devices : devices over which calls are distributed
    threads : concurrent programs on a single CPU device; by default the number of cores
    compiled : programs compiled by this batcher
    stepwise : device for calls that are chains of tiny steps; None to run them on ``devices``
    """

    devices: Sequence[jax.Device]
    threads: int | None = None
    compiled: list[Program] = field(default_factory=list)
    stepwise: jax.Device | None = None

    def __post_init__(self):
        self._stepwise_batcher = None
        if self.stepwise is not None:
            self._stepwise_batcher = Batcher([self.stepwise], self.threads, self.compiled)
        self._programs = _PROGRAMS.setdefault(tuple(self.devices), {})

    def program_for(self, call: SolverCall, n_calls: int = 1) -> Program:
        """Return a compiled program for the signature of ``call``, sized for ``n_calls`` calls.

        If the cache has a smaller program, and each worker needs at most four runs of it for all
        calls, that program is returned instead.
        """
        if self._stepwise_batcher is not None and call.stepwise:
            return self._stepwise_batcher.program_for(call, n_calls)
        program = self._programs.get(call.signature)
        if program is None or (
            n_calls > 4 * program.n_slots * self._n_workers
            and self._program_shape(call, n_calls) != program.shape
        ):
            program = self._compile_program(call, n_calls)
            self.compiled.append(program)
            if len(self._programs) >= _MAX_PROGRAMS:
                del self._programs[next(iter(self._programs))]  # the oldest
            self._programs[call.signature] = program
        return program

    def __call__(self, calls: Sequence[SolverCall]) -> Iterator[tuple[SolverCall, Solution, float]]:
        """Run calls of any signatures; yield each call with its solution and device time.

        The time in seconds is the run time of a program on one device, divided by the number of
        calls that this device ran.
        """
        groups: dict[Hashable, list[SolverCall]] = {}
        for call in calls:
            groups.setdefault(call.signature, []).append(call)
        wide = jax.config.jax_enable_x64  # the setting is per thread

        def run_timed(program, part):
            start = time.perf_counter()
            with standard(wide):
                result = program(part)
            return result, (time.perf_counter() - start) * min(len(part), len(self.devices))

        with ThreadPoolExecutor(self._n_workers) as pool:
            for group in groups.values():
                if self._stepwise_batcher is not None and group[0].stepwise:
                    yield from self._stepwise_batcher(group)
                    continue
                program = self.program_for(group[0], len(group))
                size = min(-(-len(group) // self._n_workers), program.n_slots)
                parts = [group[i : i + size] for i in range(0, len(group), size)]
                runs = pool.map(partial(run_timed, program), parts)
                for part, (result, seconds) in zip(parts, runs, strict=True):
                    for call, solution in zip(part, result, strict=True):
                        yield call, solution, seconds / len(part)

    @property
    def _n_workers(self) -> int:
        """Number of concurrent programs: several on a CPU, since one leaves most cores idle."""
        alone = len(self.devices) == 1 and self.devices[0].platform == "cpu"
        return (self.threads or os.cpu_count() or 1) if alone else 1

    def _program_shape(self, call: SolverCall, n_calls: int) -> tuple[int, int, int]:
        share = -(-n_calls // (len(self.devices) * self._n_workers))
        fit = int(max(memory_budget(self.devices[0]) // call.size, 1))
        # All lanes wait for the slowest. Several lanes help if one call leaves a device idle. On a
        # CPU one step of four lanes took 1.4 times as long as four steps.
        n_lanes = min(share, fit, _LANES) if self.devices[0].platform != "cpu" else 1
        n_steps = min(bucket_size(-(-share // n_lanes), 1 << 20), max(fit // n_lanes, 1))
        return len(self.devices), n_steps, n_lanes

    def _compile_program(self, call: SolverCall, n_calls: int) -> Program:
        start = time.perf_counter()
        shape = self._program_shape(call, n_calls)
        mesh = Mesh(np.asarray(self.devices), (_AXIS,))
        spec = PartitionSpec(_AXIS)
        sharding = NamedSharding(mesh, spec)

        def abstract_array(a):
            return jax.ShapeDtypeStruct((*shape, *a.shape), a.dtype, sharding=sharding)

        arguments = (
            jax.tree.map(abstract_array, call.arrays),
            jax.ShapeDtypeStruct(shape[:1], np.int32, sharding=sharding),
        )
        run = jax.shard_map(
            partial(_run_device, partial(call.solver, **dict(call.static))),
            mesh=mesh,
            in_specs=(spec, spec),
            out_specs=spec,
            check_vma=False,
        )

        def lower():
            return jax.jit(run).lower(*arguments)

        function = getattr(call.solver, "__wrapped__", call.solver)
        variant = "batch", shape, jax.tree.map(type_of, call.arrays), call.static
        try:
            if len(self.devices) > 1:
                raise NotStorableError("programs of several devices refer to all of them")
            compiled = load_or_compile(lower, function, variant, self.devices[0])
        except NotStorableError:
            compiled = lower().compile()
        return Program(compiled, sharding, shape, time.perf_counter() - start)


def _run_device(solve: Callable[..., Solution], arrays: Any, steps: jax.Array) -> Solution:
    """Run the calls of one device by ``solve``: ``steps`` (1,) steps, one after another.

    ``arrays`` are the arrays of the calls, with the leading axes (1, steps, lanes).
    """
    _, n_steps, n_lanes = jax.tree.leaves(arrays)[0].shape[:3]

    def solve_lanes(i):
        now = jax.tree.map(lambda a: a[0, i], arrays)
        if n_lanes > 1:
            return jax.vmap(solve)(*now)
        return jax.tree.map(lambda a: a[None], solve(*jax.tree.map(lambda a: a[0], now)))

    def run_step(i, out):
        write = partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=0)
        return jax.tree.map(write, out, solve_lanes(i))

    shapes = jax.eval_shape(solve_lanes, 0)
    out = jax.tree.map(lambda a: jnp.zeros((n_steps, *a.shape), a.dtype), shapes)
    return jax.tree.map(lambda a: a[None], jax.lax.fori_loop(0, steps[0], run_step, out))
