"""Cells of several labelings at once, without a list of the cells of every row.

A row belongs to the cell (i_1, ..., i_V) with a weight T[i_1, ..., i_V] f_1[i_1] ... f_V[i_V]: a
table that all rows share, and factors of its own. To draw a cell, to find the best one or to sum
over all of them, labelings are eliminated from the last to the first, and then chosen from the
first to the last. With two labelings that takes n (K_1 + K_2) exponentials and a matrix product
instead of n K_1 K_2 exponentials.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

NEVER = -1e30
"""Logarithm of the probability of a cell that cannot be; finite, so that 0 times it is 0."""

_PRECISION = jax.lax.Precision.HIGHEST


# Loops over at most so many clusters are unrolled: XLA's reductions of a leading axis are not
# vectorised on a CPU, and took three times as long as maxima of pairs.
_UNROLLED = 64


def top(x: jax.Array) -> jax.Array:
    """Maximum over the first axis."""
    if x.shape[0] > _UNROLLED:
        return x.max(0)
    highest = functools.reduce(jnp.maximum, [x[k] for k in range(x.shape[0])])
    return jax.lax.optimization_barrier(highest)  # else it is computed again for every cluster


def _running(weight: jax.Array) -> list[jax.Array]:
    """Cumulative sums (n,) over the first axis."""
    if weight.shape[0] > _UNROLLED:
        return list(jnp.cumsum(weight, 0))
    return list(itertools.accumulate([weight[k] for k in range(weight.shape[0])]))


def _one_hot(at: jax.Array, k: int, dtype: jnp.dtype) -> jax.Array:
    """One-hot (k, n) of places (n,)."""
    at = jax.lax.optimization_barrier(at)  # as in `top`
    return (np.arange(k, dtype=np.int32)[:, None] == at).astype(dtype)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=_PRECISION)


def _sums(table: jax.Array, factors: Sequence[jax.Array]) -> list[jax.Array]:
    """Tables (K_1, n), (K_1, K_2, n), ... with the later labelings summed out; then the table."""
    left = [table]
    for factor in reversed(factors[1:]):
        if len(left) == 1:
            summed = _product(table.reshape(-1, table.shape[-1]), factor)
            summed = summed.reshape(*table.shape[:-1], -1)
        else:
            summed = (left[0] * factor).sum(-2)
        left.insert(0, summed)
    return left


def _maxima(table: jax.Array, scores: Sequence[jax.Array]) -> list[jax.Array]:
    """As `_sums`: sums of logarithms instead of products, and maxima instead of sums."""
    left = [table]
    for score in reversed(scores[1:]):
        last = left[0][..., None] if len(left) == 1 else left[0]
        left.insert(0, top(jnp.moveaxis(last + score, -2, 0)))
    return left


def _choose(
    left: list[jax.Array],
    factors: Sequence[jax.Array],
    choose: Callable[[int, jax.Array, jax.Array], jax.Array],
) -> list[jax.Array]:
    """Choose one labeling after the other; ``choose`` and the result are one-hot (K_v, n)."""
    table = left[-1]
    left = [*left[:-1], table[..., None]]  # the table is the same for all rows
    ones = []
    for v, factor in enumerate(factors):
        one = choose(v, left[0], factor)
        ones.append(one)
        given = [(one.reshape(-1, *(1,) * (t.ndim - 2), one.shape[1]) * t).sum(0) for t in left[1:]]
        if v == 0 and given:
            flat = table.reshape(table.shape[0], -1)
            given[-1] = _product(flat.T, one).reshape(*table.shape[1:], -1)
        left = given
    return ones


def draw(table: jax.Array, factors: Sequence[jax.Array], u: jax.Array) -> list[jax.Array]:
    """Draw a cell for every row.

    Parameters
    ----------
    table : (K_1, ..., K_V), not negative
    factors : of (K_v, n), not negative; the weight of some cell has to be positive in every row
    u : (V, n) uniform numbers in [0, 1)

    Returns
    -------
    one-hot (K_v, n) of every labeling
    """

    def choose(v, left, factor):
        weight = left * factor
        k = weight.shape[0]
        running = _running(weight)
        # Below the total even after rounding, so that no cluster of weight 0 is drawn.
        level = u[v] * (1 - 1e-6) * running[-1]
        at = jnp.zeros(level.shape, jnp.int32)
        for r in running[:-1]:
            at = at + (r <= level).astype(jnp.int32)
        return _one_hot(at, k, weight.dtype)

    return _choose(_sums(table, factors), factors, choose)


def best(table: jax.Array, scores: Sequence[jax.Array]) -> list[jax.Array]:
    """Cell of the largest log weight in every row; the first of equals.

    Parameters
    ----------
    table : (K_1, ..., K_V) logarithms, `NEVER` where there are none
    scores : of (K_v, n) logarithms

    Returns
    -------
    one-hot (K_v, n) of every labeling
    """

    def choose(v, left, score):
        weight = left + score
        k = weight.shape[0]
        if k > _UNROLLED:
            at = weight.argmax(0).astype(jnp.int32)
        else:
            highest, at = top(weight), jnp.full(weight.shape[1], k - 1, jnp.int32)
            for i in range(k - 2, -1, -1):
                at = jnp.where(weight[i] == highest, np.int32(i), at)
        return _one_hot(at, k, weight.dtype)

    return _choose(_maxima(table, scores), scores, choose)


def expect(
    table: jax.Array, factors: Sequence[jax.Array], mass: jax.Array
) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """Sum over the cells.

    Parameters
    ----------
    table, factors : as in `draw`
    mass : (n,) weight of the rows

    Returns
    -------
    total weights (n,), memberships times mass (K_v, n) of every labeling, and the expected mass
    (K_1, ..., K_V) of the cells
    """

    def total(table, factors):
        left = _sums(table, factors)[0]
        return ((left[:, None] if len(factors) == 1 else left) * factors[0]).sum(0)

    # The derivative of the log of the total by the log of a factor is the share of its cells.
    totals, pull = jax.vjp(total, table, list(factors))
    by_table, by_factors = pull(mass / totals)
    memberships = [f * g for f, g in zip(factors, by_factors, strict=True)]
    return totals, memberships, table * by_table


def count(ones: Sequence[jax.Array], mass: jax.Array) -> jax.Array:
    """Mass (K_1, ..., K_V) of the cells, from one-hot (K_v, n) labelings."""
    left = ones[0] * mass
    if len(ones) == 1:
        return left.sum(1)
    for one in ones[1:-1]:
        left = (left[:, None] * one).reshape(-1, left.shape[1])
    return _product(left, ones[-1].T).reshape([one.shape[0] for one in ones])
