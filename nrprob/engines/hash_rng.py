"""Hash-based pseudo-random numbers for initial values, perturbations and orders of rows.

A counter is hashed with a seed. JAX's generator has better statistical properties than these uses
need, but its compilation would dominate a small fit. Code that samples from a distribution must use
`jax.random`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def _mix_bits(h: jax.Array) -> jax.Array:
    """Mix the bits of 32-bit integers ``h``: every input bit affects every output bit.

    The function is the finaliser of the public-domain MurmurHash3.
    """
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def fold_in(seed: jax.Array, index: jax.Array | int) -> jax.Array:
    """Derive the seed of the ``index``-th of many independent random streams from ``seed``."""
    index = jnp.asarray(index).astype(jnp.uint32) + jnp.uint32(1)
    return _mix_bits(jnp.asarray(seed).astype(jnp.uint32) ^ (index * jnp.uint32(0x9E3779B9)))


def hashed_uniform(seed: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Uniform pseudo-random numbers in [0, 1) with 24 random bits.

    ``seed`` (...) is an array of seeds; the result has the shape (..., *shape), with an array of
    the shape ``shape`` for every seed. A number depends on its seed and its indices in this array,
    not on the lengths of the axes, so padding changes no other number.
    """
    h = _mix_bits(jnp.asarray(seed).astype(jnp.uint32) ^ jnp.uint32(0x68BC21EB))
    for length in shape:
        h = fold_in(h[..., None], jax.lax.iota(jnp.uint32, length))
    return (h >> 8).astype(dtype) * 2.0**-24


def hashed_noise(seed: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Uniform pseudo-random numbers of mean 0 and variance 1; see `hashed_uniform`."""
    return (2 * hashed_uniform(seed, shape, dtype) - 1) * 3**0.5
