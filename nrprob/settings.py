"""The settings of JAX that all computations run under, whatever those of the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax


@contextmanager
def standard(wide: bool = True) -> Iterator[None]:
    """Enter JAX's standard settings, with 64 bits if ``wide``, and restore the caller's after.

    They belong to a thread: a new one has the settings of the process.
    """
    with (
        jax.enable_x64(wide),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield
