"""Joint distributions of several labelings, without a list of all cells for every row.

Labeling v of V has K_v clusters. A *cell* (i_1, ..., i_V) is a combination of clusters, one of each
labeling. Each of n rows belongs to a cell with the weight T[i_1, ..., i_V] f_1[i_1] ... f_V[i_V].
The table T is the same for all rows, and the factors f differ by row.

To sample a cell, to find the best cell or to sum over cells, the labelings are eliminated from the
last to the first. Clusters are then assigned from the first labeling to the last. Two labelings
take n (K_1 + K_2) exponentials and a matrix product, instead of n K_1 K_2 exponentials.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

NEVER = -1e30
"""Log probability of an impossible cell; finite, so that its product with 0 is 0."""

_PRECISION = jax.lax.Precision.HIGHEST


# Loops over up to this number of clusters are unrolled: XLA does not vectorise reductions of a
# leading axis on a CPU, and they took three times as long as pairwise maxima.
_UNROLLED = 64


def leading_maximum(x: jax.Array) -> jax.Array:
    """Maximum over the first axis."""
    if x.shape[0] > _UNROLLED:
        return x.max(0)
    highest = functools.reduce(jnp.maximum, [x[k] for k in range(x.shape[0])])
    return jax.lax.optimization_barrier(highest)  # prevents recomputation for every cluster


def _cumulative_sums(weight: jax.Array) -> list[jax.Array]:
    """Cumulative sums over the first axis of weights (k, n): k arrays (n,)."""
    if weight.shape[0] > _UNROLLED:
        return list(jnp.cumsum(weight, 0))
    return list(itertools.accumulate([weight[k] for k in range(weight.shape[0])]))


def _one_hot(index: jax.Array, k: int, dtype: jnp.dtype) -> jax.Array:
    """One-hot encoding (k, n) of indices (n,) below ``k``."""
    index = jax.lax.optimization_barrier(index)  # as in `leading_maximum`
    return (np.arange(k, dtype=np.int32)[:, None] == index).astype(dtype)


def _exact_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=_PRECISION)


def _marginal_sums(table: jax.Array, factors: Sequence[jax.Array]) -> list[jax.Array]:
    """Sum the later labelings out of the table times the factors (K_v, n).

    Returns
    -------
    list of arrays (K_1, n), (K_1, K_2, n), ..., and at last ``table`` (K_1, ..., K_V)
    """
    left = [table]
    for factor in reversed(factors[1:]):
        if len(left) == 1:
            summed = _exact_matmul(table.reshape(-1, table.shape[-1]), factor)
            summed = summed.reshape(*table.shape[:-1], -1)
        else:
            summed = (left[0] * factor).sum(-2)
        left.insert(0, summed)
    return left


def _marginal_maxima(table: jax.Array, scores: Sequence[jax.Array]) -> list[jax.Array]:
    """Maximise over the later labelings, as `_marginal_sums` sums over them.

    ``table`` and ``scores`` are logarithms, which are added.
    """
    left = [table]
    for score in reversed(scores[1:]):
        last = left[0][..., None] if len(left) == 1 else left[0]
        left.insert(0, leading_maximum(jnp.moveaxis(last + score, -2, 0)))
    return left


def _choose_labelings(
    left: list[jax.Array],
    factors: Sequence[jax.Array],
    choose: Callable[[int, jax.Array, jax.Array], jax.Array],
) -> list[jax.Array]:
    """Choose a cluster for every row in one labeling after another.

    Parameters
    ----------
    left : tables from `_marginal_sums` or `_marginal_maxima`
    factors : arrays (K_v, n) of factors or their logarithms
    choose : function of v, of a table (K_v, n) given the clusters of the previous labelings, and of
        the factors of labeling v; the result has the chosen clusters in one-hot form (K_v, n)

    Returns
    -------
    list of one-hot arrays (K_v, n)
    """
    table = left[-1]
    left = [*left[:-1], table[..., None]]  # the table is the same for all rows
    indicators = []
    for v, factor in enumerate(factors):
        indicator = choose(v, left[0], factor)
        indicators.append(indicator)
        # Restrict the remaining tables to the chosen cluster of every row.
        chosen = [
            (indicator.reshape(-1, *(1,) * (t.ndim - 2), indicator.shape[1]) * t).sum(0)
            for t in left[1:]
        ]
        if v == 0 and chosen:
            flat = table.reshape(table.shape[0], -1)
            chosen[-1] = _exact_matmul(flat.T, indicator).reshape(*table.shape[1:], -1)
        left = chosen
    return indicators


def sample_cells(table: jax.Array, factors: Sequence[jax.Array], u: jax.Array) -> list[jax.Array]:
    """Sample a cell for every row.

    Parameters
    ----------
    table : (K_1, ..., K_V) non-negative table T
    factors : non-negative arrays (K_v, n); every row needs a cell of positive weight
    u : (V, n) uniform random numbers in [0, 1)

    Returns
    -------
    one-hot (K_v, n) of every labeling
    """

    def sample_label(v, left, factor):
        weight = left * factor
        k = weight.shape[0]
        cumulative = _cumulative_sums(weight)
        # Strictly below the total even after rounding: clusters of weight 0 are never sampled.
        level = u[v] * (1 - 1e-6) * cumulative[-1]
        index = jnp.zeros(level.shape, jnp.int32)
        for r in cumulative[:-1]:
            index = index + (r <= level).astype(jnp.int32)
        return _one_hot(index, k, weight.dtype)

    return _choose_labelings(_marginal_sums(table, factors), factors, sample_label)


def maximise_cells(table: jax.Array, scores: Sequence[jax.Array]) -> list[jax.Array]:
    """Cell of the largest log weight for every row; ties go to the first cell.

    Parameters
    ----------
    table : (K_1, ..., K_V) logarithms, `NEVER` for impossible cells
    scores : arrays (K_v, n) of logarithms

    Returns
    -------
    one-hot (K_v, n) of every labeling
    """

    def best_label(v, left, score):
        weight = left + score
        k = weight.shape[0]
        if k > _UNROLLED:
            index = weight.argmax(0).astype(jnp.int32)
        else:
            highest, index = leading_maximum(weight), jnp.full(weight.shape[1], k - 1, jnp.int32)
            for i in range(k - 2, -1, -1):
                index = jnp.where(weight[i] == highest, np.int32(i), index)
        return _one_hot(index, k, weight.dtype)

    return _choose_labelings(_marginal_maxima(table, scores), scores, best_label)


def expected_cells(
    table: jax.Array, factors: Sequence[jax.Array], mass: jax.Array
) -> tuple[jax.Array, list[jax.Array], jax.Array]:
    """Sum the weights of the cells of every row, and compute probabilities of clusters and cells.

    Parameters
    ----------
    table, factors : as in `sample_cells`
    mass : (n,) masses of the rows

    Returns
    -------
    totals : (n,) sums of the weights of all cells
    memberships : arrays (K_v, n) of probabilities of the clusters, times the mass of the row
    cells : (K_1, ..., K_V) expected mass of every cell, over all rows
    """

    def total_weights(table, factors):
        left = _marginal_sums(table, factors)[0]
        return ((left[:, None] if len(factors) == 1 else left) * factors[0]).sum(0)

    # The derivative of the log total by the log of a factor is the probability of its cluster.
    totals, pullback = jax.vjp(total_weights, table, list(factors))
    by_table, by_factors = pullback(mass / totals)
    memberships = [f * g for f, g in zip(factors, by_factors, strict=True)]
    return totals, memberships, table * by_table


def count_cells(indicators: Sequence[jax.Array], mass: jax.Array) -> jax.Array:
    """Total masses (K_1, ..., K_V) of the cells, from one-hot labelings (K_v, n).

    ``mass`` (n,) are the masses of the rows.
    """
    left = indicators[0] * mass
    if len(indicators) == 1:
        return left.sum(1)
    for indicator in indicators[1:-1]:
        left = (left[:, None] * indicator).reshape(-1, left.shape[1])
    return _exact_matmul(left, indicators[-1].T).reshape(
        [indicator.shape[0] for indicator in indicators]
    )
