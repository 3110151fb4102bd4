"""Where programs run, and how much memory they may take there.

Arrays that lie on a device are computed with there. All others go to JAX's default device, but for
chains of tiny steps, in which an accelerator would mostly wait: without a device asked for by
``jax.default_device``, those run on the CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

MEMORY = 1.5e9  # bytes that the runs of one program may take on a CPU
_SHARE = 0.25  # of an accelerator's memory that they may: what a run takes is an estimate


def device_of(*arrays: Any) -> jax.Device:
    """The device that a program of these arrays runs on, or the first of several."""
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array) and leaf.committed:
            return min(leaf.devices(), key=lambda device: device.id)
    asked = jax.config.jax_default_device
    return asked if isinstance(asked, jax.Device) else jax.local_devices(backend=asked)[0]


def on_cpu(*arrays: Any) -> bool:
    """Whether a program of these arrays runs on a CPU."""
    return device_of(*arrays).platform == "cpu"


def memory_budget(device: jax.Device | None = None) -> float:
    """Bytes that the runs of one program may take on a device, by default where they would run.

    A share of an accelerator's memory. On a CPU it is a number, however much there is: restarts are
    drawn by parts, so that it has a say in what a seed gives.
    """
    device = device or device_of()
    if device.platform != "cpu" and (limit := (device.memory_stats() or {}).get("bytes_limit")):
        return _SHARE * limit
    return MEMORY


def cpu_for_small_steps() -> jax.Device | None:
    """The CPU, where chains of tiny steps would run on an accelerator nobody asked for."""
    if jax.config.jax_default_device is not None or on_cpu():
        return None
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was told to see no CPU
        return None


@contextlib.contextmanager
def small_steps_on_cpu(really: bool = True) -> Iterator[None]:
    """Run programs that are chains of tiny steps where that is fast, if they ``really`` are."""
    cpu = cpu_for_small_steps() if really else None
    with contextlib.nullcontext() if cpu is None else jax.default_device(cpu):
        yield
