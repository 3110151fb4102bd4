"""Sums over a short axis of long arrays, faster on a CPU than XLA's built-in sums.

With XLA's sums, sampler iterations on 5,000 samples of two columns spent 40 to 60 % of their time
in such sums.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_MAX_UNROLLED = 8  # largest length of an axis whose sum is unrolled
_FACTORS = 8  # number of factors of a product whose logarithm is computed
_MATMUL_ROWS = 2048  # with more samples, a matrix product is faster than a sum


def sum_of_squares(x: jax.Array) -> jax.Array:
    """Sum the squares of an array over its first axis."""
    if x.shape[0] > _MAX_UNROLLED:
        return jnp.square(x).sum(0)
    return sum((jnp.square(x[i]) for i in range(x.shape[0])), jnp.zeros_like(x[0]))


def sum_of_logs(x: jax.Array, axis: int = 0) -> jax.Array:
    """Sum the logarithms of an array over one axis.

    One logarithm per product of eight factors is faster than eight logarithms.
    """
    axis = axis % x.ndim
    total = jnp.zeros(x.shape[:axis] + x.shape[axis + 1 :], x.dtype)
    for i in range(0, x.shape[axis], _FACTORS):
        factors = jax.lax.slice_in_dim(x, i, min(i + _FACTORS, x.shape[axis]), axis=axis)
        total = total + jnp.log(factors.prod(axis))
    return total


def sum_of_products(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Sum ``weights[i, k, j] * x[i, j]`` over i, for k and j: shape (K, b).

    ``x`` has the shape (m, b), and ``weights`` the shape (m, K, b) or (m, K, 1).
    """
    if weights.shape[-1] == 1 and x.shape[-1] > _MATMUL_ROWS:
        return jnp.matmul(weights[..., 0].T, x, precision=jax.lax.Precision.HIGHEST)
    return (weights * x[:, None]).sum(0)
