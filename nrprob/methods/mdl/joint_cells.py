"""Joint distributions of several labelings, without a list of all cells for every row.

Labeling v of V has K_v clusters. A *cell* (i_1, ..., i_V) is a combination of clusters, one of each
labeling. The probability that a row belongs to a cell is proportional to the weight
T[i_1, ..., i_V] f_1[i_1] ... f_V[i_V]. The n rows share the table T; every row has separate factors
f_v (K_v,).

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
    """Maximum (...) of an array (k, ...) over its first axis."""
    if x.shape[0] > _UNROLLED:
        return x.max(0)
    highest = functools.reduce(jnp.maximum, [x[k] for k in range(x.shape[0])])
    return jax.lax.optimization_barrier(highest)  # prevents recomputation for every cluster


def _cumulative_sums(weight: jax.Array) -> list[jax.Array]:
    """Cumulative sums of weights (k, n) over the first axis, as a list of k arrays (n,)."""
    if weight.shape[0] > _UNROLLED:
        return list(jnp.cumsum(weight, 0))
    return list(itertools.accumulate([weight[k] for k in range(weight.shape[0])]))


def _one_hot(index: jax.Array, k: int, dtype: jnp.dtype) -> jax.Array:
    """One-hot encoding (k, n) of the integers ``index`` (n,), which are below ``k``."""
    index = jax.lax.optimization_barrier(index)  # as in `leading_maximum`
    return (np.arange(k, dtype=np.int32)[:, None] == index).astype(dtype)


def _exact_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=_PRECISION)


def _marginal_sums(table: jax.Array, factors: Sequence[jax.Array]) -> list[jax.Array]:
    """Sum the table times the factors over the clusters of the later labelings.

    Parameters
    ----------
    table : (K_1, ..., K_V) table T
    factors : for every labeling v, factors (K_v, n)

    Returns
    -------
    list of V arrays. Element v = 1 .. V - 1, of shape (K_1, ..., K_v, n), is the sum over the
        clusters of labelings v + 1 .. V of ``table`` times the factors of these labelings. The last
        element is ``table``
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
    """Maximise the log table plus the log factors over the clusters of the later labelings.

    The function corresponds to `_marginal_sums`, with maxima instead of sums. ``table``
    (K_1, ..., K_V) and ``scores``, arrays (K_v, n), are logarithms of T and of the factors.
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
    """Choose the cluster of every row in the first labeling, then in the second, and so on.

    Parameters
    ----------
    left : result of `_marginal_sums` or `_marginal_maxima`
    factors : for every labeling v, factors (K_v, n) or their logarithms
    choose : function that chooses the clusters in one labeling. Its arguments are v; the sums or
        maxima (K_v, n), given the chosen clusters of the previous labelings; and the factors
        (K_v, n). The function returns one-hot clusters (K_v, n)

    Returns
    -------
    list of one-hot clusters (K_v, n), one array per labeling
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
    """Sample a cell for every row, with probabilities proportional to the weights of the cells.

    Parameters
    ----------
    table : (K_1, ..., K_V) non-negative table T
    factors : for every labeling v, non-negative factors f_v (K_v, n); every row needs a cell of
        positive weight
    u : (V, n) uniform random numbers in [0, 1)

    Returns
    -------
    list of one-hot clusters (K_v, n), one array per labeling
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
    """Find the cell of the largest log weight for every row; ties go to the first cell.

    Parameters
    ----------
    table : (K_1, ..., K_V) logarithms of T, `NEVER` for impossible cells
    scores : for every labeling v, logarithms (K_v, n) of the factors f_v

    Returns
    -------
    list of one-hot clusters (K_v, n), one array per labeling
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
    """Compute the normalising constants of the rows, and expected masses of clusters and cells.

    Parameters
    ----------
    table, factors : table and factors as in `sample_cells`
    mass : (n,) masses (weights) of the rows

    Returns
    -------
    totals : (n,) for every row, the sum of the weights of all cells
    memberships : for every labeling v, probabilities (K_v, n) of the clusters of every row, times
        the mass of the row
    cells : (K_1, ..., K_V) expected mass of every cell, summed over the rows
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
    """Total masses (K_1, ..., K_V) of the rows in every cell.

    ``indicators`` are one-hot clusters (K_v, n), one array per labeling, and ``mass`` (n,) are the
    masses of the rows.
    """
    left = indicators[0] * mass
    if len(indicators) == 1:
        return left.sum(1)
    for indicator in indicators[1:-1]:
        left = (left[:, None] * indicator).reshape(-1, left.shape[1])
    return _exact_matmul(left, indicators[-1].T).reshape(
        [indicator.shape[0] for indicator in indicators]
    )
