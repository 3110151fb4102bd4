"""Cell costs: what a set of rows costs, as a function of the sum of their statistics.

A statistic is an array whose last axis holds the sums of the features over the cell and, in its
last place, the mass of the cell (its number of rows when every row has weight 1). A cost maps it to
nats of the whole cell, is 0 for the empty cell, and is homogeneous of degree 1, so that splitting a
cell into parts of equal composition changes nothing. Leading axes are free.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from nrprob.statistics.xlogx import xlogx

Cost = Callable[[jax.Array], jax.Array]


def multinomial(cell: jax.Array) -> jax.Array:
    """Entropy of the pooled draws: ``-sum_y T_y log(T_y / T)``, with T the sum of the T_y."""
    x = cell[..., :-1]
    return xlogx(x.sum(-1)) - xlogx(x).sum(-1)


def bernoulli(cell: jax.Array) -> jax.Array:
    """Sum over features of the mass times the binary entropy of the feature's mean."""
    x, w = cell[..., :-1], cell[..., -1:]
    rest = w - x
    # Where a feature is 1 throughout a large cell, a sliver of other rows is lost to rounding in
    # ``w`` and ``x`` alike. It is put back into the value; the derivative passes unchanged.
    rest = rest + jax.lax.stop_gradient(jnp.maximum(1e-12 * w - rest, 0))
    return (xlogx(w) - xlogx(x) - xlogx(rest)).sum(-1)


def gaussian(cell: jax.Array) -> jax.Array:
    """Half the scatter about the cell's mean, at unit variance, less half the sum of squares.

    The sum of squares of the rows does not depend on the partition; ``Term.constant`` adds it.
    """
    x, w = cell[..., :-1], cell[..., -1]
    return -0.5 * (x * x).sum(-1) / jnp.where(w > 1e-14, w, jnp.inf)  # an empty cell costs 0


def mass(cell: jax.Array) -> jax.Array:
    """``-w log w``: summed over clusters it is n H(C) - n log n, over (cluster, group) n H(C,Z)."""
    return -xlogx(cell[..., -1])


FEATURES: dict[str, Cost] = {
    "multinomial": multinomial,
    "bernoulli": bernoulli,
    "gaussian": gaussian,
}
