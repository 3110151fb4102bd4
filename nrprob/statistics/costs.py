r"""Cell costs: conditional entropies of a cell, as functions of its additive statistics.

The last axis of an array of statistics holds the sums T of the features over the cell, followed by
the mass w of the cell (its number of rows if every row has weight 1). A cost maps it to nats of the
whole cell:

======================= ==================================================================
`multinomial_cost`      :math:`-\sum_y T_y \log (T_y / T)`, counts or proportions
`bernoulli_cost`        :math:`w \sum_y h(T_y / w)`, binary features, h the binary entropy
`gaussian_cost`         :math:`-\frac{1}{2w} \sum_y T_y^2`, unit variance, up to a constant
`mass_cost`             :math:`-w \log w`, entropy of the clusters
======================= ==================================================================

A cost is 0 for the empty cell, and homogeneous of degree 1: splitting a cell into parts of equal
composition does not change it. Leading axes are arbitrary. Full and diagonal covariances are in
`nrprob.statistics.gaussians`.
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
    """Sum over features of a function, plus a function of their total and the mass.

    ``column(0)`` is 0, so the time for moving a sparse row depends on its non-zero entries only.

    Attributes
    ----------
    column : ``T_y (...) -> (...)``, or None
    rest : ``(T (...), w (...)) -> (...)``, of the total T of all features and the mass
    uses_mass : False if the cost does not depend on rows whose features are all 0
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


def _total_xlogx(total: jax.Array, w: jax.Array) -> jax.Array:
    return xlogx(total)


def _negative_mass_xlogx(total: jax.Array, w: jax.Array) -> jax.Array:
    return -xlogx(w)


# -sum_y T_y log(T_y / T), with T the sum of the T_y.
multinomial_cost = SeparableCost(_negative_xlogx, _total_xlogx, uses_mass=False)
# -w log w: its sum over clusters is n H(C) - n log n; over (cluster, group) cells, H(C,Z) replaces
# H(C).
mass_cost = SeparableCost(None, _negative_mass_xlogx)


def bernoulli_cost(cell: jax.Array) -> jax.Array:
    """Mass times the binary entropy of the mean, summed over features."""
    x, w = cell[..., :-1], cell[..., -1:]
    rest = w - x
    # In a large cell where a feature is nearly always 1, rounding in ``w`` and ``x`` loses a tiny
    # mass of zeros. It is added to the value; the derivative does not change.
    rest = rest + jax.lax.stop_gradient(jnp.maximum(1e-12 * w - rest, 0))
    return (xlogx(w) - xlogx(x) - xlogx(rest)).sum(-1)


def gaussian_cost(cell: jax.Array) -> jax.Array:
    """Half the scatter about the mean of the cell, minus half the sum of squares of its rows.

    The sum of squares does not depend on the partition; `Term.constant` adds it.
    """
    x, w = cell[..., :-1], cell[..., -1]
    return -0.5 * (x * x).sum(-1) / jnp.where(w > 1e-14, w, jnp.inf)  # an empty cell costs 0
