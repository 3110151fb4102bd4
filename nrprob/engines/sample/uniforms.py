"""Random variates that are computed from uniform variates of one call of the generator.

A program with a dozen calls of the generator takes long to compile. Sampling along one axis
compiles up to six times as fast as along three axes.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Primes above any number of samples n, so that each prime is coprime to n.
_PRIMES = 2**31 - np.asarray([1, 19, 61, 69, 85, 99, 105, 151, 159, 171, 225, 249, 295, 325, 379])


def uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any = float) -> jax.Array:
    """Sample uniform variates between 0 and 1 along one axis, equal to `jax.random.uniform`."""
    return jax.random.uniform(key, (math.prod(shape),), dtype).reshape(shape)


def normal(key: jax.Array, shape: tuple[int, ...], dtype: Any = float) -> jax.Array:
    """Sample standard normal variates along one axis, equal to `jax.random.normal`."""
    return jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def below(u: jax.Array, n: jax.Array | int) -> jax.Array:
    """Random integer from 0 to ``n`` - 1, from a uniform variate ``u`` between 0 and 1."""
    return jnp.minimum((u * n).astype(int), n - 1)


def in_order(u: jax.Array, size: int, n: jax.Array) -> jax.Array:
    """Indices 0 .. n - 1 in random order, then n .. ``size`` - 1; faster than sorting.

    The order is an arithmetic progression modulo n with random start and step, from uniform
    variates (2,). The order is not a uniform random permutation. This is valid, since the
    distribution of the order does not depend on the state of the chain.
    """
    t = jnp.arange(size)
    step = jnp.asarray(_PRIMES)[below(u[0], len(_PRIMES))] % n
    return jnp.where(t < n, (below(u[1], n) + t * step) % n, t)


def draw_categories(log_p: jax.Array, u: jax.Array) -> jax.Array:
    """Sample one of K categories for each of b samples, by inversion of uniform variates (b,).

    ``log_p`` (K, b) are unnormalised log probabilities of the categories.
    """
    p = jnp.exp(log_p - log_p.max(0))
    if p.shape[0] <= _FEW:
        return _invert_weights(p, u)[0]
    # With many categories: first choose a block of adjacent categories, then one of the block.
    groups = jnp.pad(p, ((0, -len(p) % _GROUP_SIZE), (0, 0))).reshape(-1, _GROUP_SIZE, p.shape[1])
    first, rest = _invert_weights(groups.sum(1), u)
    among = jnp.take_along_axis(groups, first[None, None], 0)[0]
    return jnp.minimum(first * _GROUP_SIZE + _invert_weights(among, rest)[0], len(p) - 1)


_FEW, _GROUP_SIZE = 64, 16


def _invert_weights(p: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sample categories (b,) with weights ``p`` (K, b), by inversion of uniform variates (b,).

    Also returns the positions (b,) of u within the shares of the sampled categories. A position is
    between 0 and 1, and is a new uniform variate.
    """
    sums = np.tril(np.ones((p.shape[0], p.shape[0]))) @ p
    target = u * sums[-1]
    # The sums are rounded separately. So the sums before and after a weight of 0 may differ in the
    # last bit.
    category = jnp.minimum((sums <= target).sum(0), p.shape[0] - 1).astype(jnp.int32)
    share, below_sum = (jnp.take_along_axis(a, category[None], 0)[0] for a in (p, sums))
    position = 1 - (below_sum - target) / jnp.where(share > 0, share, 1)
    return category, jnp.clip(position, 0, 1)
