"""Cell costs: what a set of rows costs, as a function of the sum of their statistics.

A statistic is an array whose last axis holds the sums of the features over the cell and, in its
last place, the mass of the cell (its number of rows when every row has weight 1). A cost maps it to
nats of the whole cell, is 0 for the empty cell, and is homogeneous of degree 1, so that splitting a
cell into parts of equal composition changes nothing. Leading axes are free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from nrprob.statistics.xlogx import xlogx

Cost = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class SeparableCost:
    """Cost that looks at every feature by itself, and at their sum and the mass together.

    The cost of a cell is the sum over features of ``column``, plus ``rest`` of their sum and the
    mass. It is 0 where a feature is, so that a row costs the time of what is not 0 in it.

    Attributes
    ----------
    column : (...) of sums of a feature; 0 at 0. None for no part of this kind.
    rest : (...) of the sums of all features, and of masses
    uses_mass : False where rows without any feature say nothing
    """

    column: Callable[[jax.Array], jax.Array] | None
    rest: Callable[[jax.Array, jax.Array], jax.Array]
    uses_mass: bool = True

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p)."""
        x, w = cell[..., :-1], cell[..., -1]
        if self.column is None:
            return self.rest(x.sum(-1), w)
        return self.rest(x.sum(-1), w) + self.column(x).sum(-1)


def _negative_xlogx(x: jax.Array) -> jax.Array:
    return -xlogx(x)


def _of_total(total: jax.Array, w: jax.Array) -> jax.Array:
    return xlogx(total)


def _of_mass(total: jax.Array, w: jax.Array) -> jax.Array:
    return -xlogx(w)


# Entropy of the pooled draws: ``-sum_y T_y log(T_y / T)``, with T the sum of the T_y.
multinomial_cost = SeparableCost(_negative_xlogx, _of_total, uses_mass=False)
# ``-w log w``: summed over clusters it is n H(C) - n log n, over (cluster, group) n H(C,Z).
mass_cost = SeparableCost(None, _of_mass)


def bernoulli_cost(cell: jax.Array) -> jax.Array:
    """Sum over features of the mass times the binary entropy of the feature's mean."""
    x, w = cell[..., :-1], cell[..., -1:]
    rest = w - x
    # Where a feature is 1 throughout a large cell, a sliver of other rows is lost to rounding in
    # ``w`` and ``x`` alike. It is put back into the value; the derivative passes unchanged.
    rest = rest + jax.lax.stop_gradient(jnp.maximum(1e-12 * w - rest, 0))
    return (xlogx(w) - xlogx(x) - xlogx(rest)).sum(-1)


def gaussian_cost(cell: jax.Array) -> jax.Array:
    """Half the scatter about the cell's mean, at unit variance, less half the sum of squares.

    The sum of squares of the rows does not depend on the partition; ``Term.constant`` adds it.
    """
    x, w = cell[..., :-1], cell[..., -1]
    return -0.5 * (x * x).sum(-1) / jnp.where(w > 1e-14, w, jnp.inf)  # an empty cell costs 0
