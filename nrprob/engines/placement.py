"""Choose the device of a program, and limit its memory.

A program runs on the device of its committed arrays, or else on the default device of JAX. Chains
of small steps are the exception, since an accelerator would mostly wait: they run on the CPU unless
``jax.default_device`` is set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

MEMORY = 1.5e9  # bytes available to the runs of one program on a CPU
_MEMORY_SHARE = 0.25  # share of an accelerator's memory, since sizes of runs are estimates


def device_of(*arrays: Any) -> jax.Device:
    """Device on which a program with these arrays runs; the first one if it runs on several."""
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array) and leaf.committed:
            return min(leaf.devices(), key=lambda device: device.id)
    default = jax.config.jax_default_device
    return default if isinstance(default, jax.Device) else jax.local_devices(backend=default)[0]


def on_cpu(*arrays: Any) -> bool:
    """Whether a program with these arrays as arguments runs on a CPU."""
    return device_of(*arrays).platform == "cpu"


def memory_budget(device: jax.Device | None = None) -> float:
    """Bytes available to the runs of one program on a device, by default the current device.

    On an accelerator, the budget is a share of the memory. On a CPU, the budget is the constant
    `MEMORY`, not the memory of the machine. Random numbers are drawn per chunk of restarts that
    fits in the budget, so the result for a seed depends on the budget.
    """
    device = device or device_of()
    if device.platform != "cpu" and (limit := (device.memory_stats() or {}).get("bytes_limit")):
        return _MEMORY_SHARE * limit
    return MEMORY


def cpu_for_small_steps() -> jax.Device | None:
    """Return the CPU if programs run on an accelerator by default; else None.

    The result is None if ``jax.default_device`` is set.

    If the result is the CPU, chains of small steps run on it.
    """
    if jax.config.jax_default_device is not None or on_cpu():
        return None
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX is configured without a CPU
        return None


@contextlib.contextmanager
def small_steps_on_cpu(stepwise: bool = True) -> Iterator[None]:
    """Run programs inside the ``with`` on the CPU if they are ``stepwise``.

    A program is stepwise if it is a chain of small steps. `cpu_for_small_steps` states when the CPU
    is used.
    """
    cpu = cpu_for_small_steps() if stepwise else None
    with contextlib.nullcontext() if cpu is None else jax.default_device(cpu):
        yield
