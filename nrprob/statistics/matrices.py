"""Factors of small positive definite matrices, many side by side, without LAPACK.

LAPACK takes small matrices one by one, and must not run in two programs at a time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def whitener(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inverse (m, m) of the lower root of a matrix (m, m), and the log of its determinant.

    So ``w @ matrix @ w.T`` is the identity, and ``w.T @ w`` the inverse of ``matrix``.
    """
    m = matrix.shape[0]
    place = jnp.arange(m)
    # Elimination without pivots, of the matrix and of the identity beside it.
    both = jnp.concatenate([matrix, jnp.eye(m, dtype=matrix.dtype)], 1)

    def eliminate(i, carry):
        both, log_det = carry
        own = (place == i).astype(both.dtype)
        row, column = own @ both, both[:, :m] @ own
        pivot = jnp.maximum(column @ own, 1e-300)
        row = row / jnp.sqrt(pivot)
        column = jnp.where(place > i, column / jnp.sqrt(pivot), 0)
        both = jnp.where((place == i)[:, None], row, both - column[:, None] * row)
        return both, log_det + jnp.log(pivot)

    both, log_det = jax.lax.fori_loop(0, m, eliminate, (both, jnp.zeros((), both.dtype)))
    return both[:, m:], log_det
