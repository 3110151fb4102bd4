"""JAX settings of all computations, independent of the caller's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

_FEW = 4096  # rows for which the threads of other libraries cost more than they gain


@contextmanager
def standard(wide: bool = True) -> Iterator[None]:
    """Enter JAX's standard settings, with 64 bits if ``wide``, and restore the caller's after.

    Products of matrices have the precision of their factors: by default an accelerator rounds
    those of single precision to 10 bits, and differences of objectives are lost. The settings
    belong to a thread: a new one has those of the process.
    """
    with (
        jax.enable_x64(wide),
        jax.default_matmul_precision("highest"),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def few_threads(n_rows: int) -> Any:
    """Context in which other libraries treat few rows in one thread.

    scikit-learn's k-means hands 256 rows to a thread at a time, and LAPACK less; threads that wait
    for work hold up whatever else runs on a busy machine, themselves first.
    """
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1 if n_rows <= _FEW else None)
