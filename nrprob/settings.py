"""JAX settings for the computations of this package, independent of the caller's settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

_FEW = 4096  # number of rows up to which the threads of other libraries are slower than one thread


@contextmanager
def standard(wide: bool = True) -> Iterator[None]:
    """Use standard settings of JAX inside the ``with``, with 64 bits if ``wide``.

    The settings of the caller are restored at the end. Matrix products are computed in the
    precision of their factors. By default, an accelerator rounds factors in single precision to 10
    bits, which is too inaccurate for differences of objectives. The settings belong to a thread; a
    new thread has the settings of the process.
    """
    with (
        jax.enable_x64(wide),
        jax.default_matmul_precision("highest"),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def few_threads(n_rows: int) -> Any:
    """Context in which other libraries process few rows in one thread.

    The context has no effect if ``n_rows`` is large. A thread processes 256 rows at a time in
    scikit-learn's k-means, and fewer rows in LAPACK. With few rows, most threads would only wait,
    and waiting threads slow down a busy machine.
    """
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1 if n_rows <= _FEW else None)
