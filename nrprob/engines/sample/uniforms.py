"""Random draws by inversion of uniform numbers that one call generates.

A program with a dozen calls to a generator takes long to compile. Numbers are drawn along one axis,
which compiles up to six times as fast as along three.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# More than any number of rows, and prime: coprime to every one of them.
_PRIMES = 2**31 - np.asarray([1, 19, 61, 69, 85, 99, 105, 151, 159, 171, 225, 249, 295, 325, 379])


def uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any = float) -> jax.Array:
    """Numbers of a shape, uniform between 0 and 1: those of `jax.random.uniform`."""
    return jax.random.uniform(key, (math.prod(shape),), dtype).reshape(shape)


def normal(key: jax.Array, shape: tuple[int, ...], dtype: Any = float) -> jax.Array:
    """Numbers of a shape from the standard normal law: those of `jax.random.normal`."""
    return jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def below(u: jax.Array, n: jax.Array | int) -> jax.Array:
    """Whole number below ``n`` from a uniform one."""
    return jnp.minimum((u * n).astype(int), n - 1)


def in_order(u: jax.Array, size: int, n: jax.Array) -> jax.Array:
    """Numbers 0 .. n - 1 in a random order, then others up to ``size``; cheaper than by sorting.

    An arithmetic progression with random start and step, from uniforms (2,). Any law will do that
    does not look at the state.
    """
    t = jnp.arange(size)
    step = jnp.asarray(_PRIMES)[below(u[0], len(_PRIMES))] % n
    return jnp.where(t < n, (below(u[1], n) + t * step) % n, t)


def draw_categories(log_p: jax.Array, u: jax.Array) -> jax.Array:
    """Categories (b,) of unnormalised log probabilities (K, b), by inversion of uniforms (b,)."""
    p = jnp.exp(log_p - log_p.max(0))
    if p.shape[0] <= _FEW:
        return _inverted(p, u)[0]
    # Of many, some are looked at together, and then those among which the one is.
    parts = jnp.pad(p, ((0, -len(p) % _TOGETHER), (0, 0))).reshape(-1, _TOGETHER, p.shape[1])
    first, rest = _inverted(parts.sum(1), u)
    among = jnp.take_along_axis(parts, first[None, None], 0)[0]
    return jnp.minimum(first * _TOGETHER + _inverted(among, rest)[0], len(p) - 1)


_FEW, _TOGETHER = 64, 16


def _inverted(p: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Categories (b,) of weights (K, b), and where in their share of it the uniforms (b,) are."""
    sums = np.tril(np.ones((p.shape[0], p.shape[0]))) @ p
    whole = u * sums[-1]
    # A sum of rounded products may fall short of the next one by a bit where p is 0.
    at = jnp.minimum((sums <= whole).sum(0), p.shape[0] - 1).astype(jnp.int32)
    share, under = (jnp.take_along_axis(a, at[None], 0)[0] for a in (p, sums))
    return at, jnp.clip(1 - (under - whole) / jnp.where(share > 0, share, 1), 0, 1)
