r"""Cell costs: conditional entropies of a cell, as functions of its additive statistics.

The last axis of an array of p statistics has the sums T_y of the features y over the samples of the
cell, followed by the mass w of the cell. If all samples have weight 1, the mass is their number. T
is the sum of all T_y. A cost maps these statistics to the entropy of the cell in nats, multiplied
by its mass (by T for counts):

======================= ==================================================================
`multinomial_cost`      :math:`-\sum_y T_y \log (T_y / T)`, for counts or proportions
`bernoulli_cost`        :math:`w \sum_y h(T_y / w)`, for binary features; h: binary entropy
`gaussian_cost`         :math:`-\frac{1}{2w} \sum_y T_y^2`, unit variance, up to a constant
`mass_cost`             :math:`-w \log w`, entropy of the clusters
======================= ==================================================================

A cost is 0 for the empty cell. All costs but `mass_cost` are homogeneous of degree 1. Therefore,
splitting a cell into parts with the same distribution does not change the sum of these costs.
Leading axes are arbitrary. Costs with full and diagonal covariances are in
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
    """Cost that is a sum of functions of single features, plus a function of their total.

    The cost is ``sum_y column(T_y) + rest(T, w)``. ``column(0)`` must be 0. The time for moving a
    sparse sample then depends on its non-zero features only.

    Attributes
    ----------
    column : function from T_y (...) to a cost (...), or None for 0
    rest : function from T (...) and w (...) to a cost (...)
    uses_mass : False if samples whose features are all 0 do not change the cost
    """

    column: Callable[[jax.Array], jax.Array] | None
    rest: Callable[[jax.Array, jax.Array], jax.Array]
    uses_mass: bool = True

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Costs (...) of cells with statistics (..., p)."""
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
# -w log w. Its sum over clusters is n H(C) - n log n. With one cell per pair of cluster and group,
# H(C,Z) replaces H(C).
mass_cost = SeparableCost(None, _negative_mass_xlogx)


def bernoulli_cost(cell: jax.Array) -> jax.Array:
    """Mass of a cell times the binary entropy of the feature mean, summed over features."""
    x, w = cell[..., :-1], cell[..., -1:]
    rest = w - x
    # If a feature is nearly always 1 in a large cell, rounding errors of ``w`` and ``x`` lose the
    # tiny mass of zeros. This mass is therefore raised to at least 1e-12 times ``w``; derivatives
    # treat the increase as a constant.
    rest = rest + jax.lax.stop_gradient(jnp.maximum(1e-12 * w - rest, 0))
    return (xlogx(w) - xlogx(x) - xlogx(rest)).sum(-1)


def gaussian_cost(cell: jax.Array) -> jax.Array:
    """Half the scatter about the mean of the cell, minus half the sum of squares of its samples.

    The sum of squares does not depend on the partition: `nrprob.statistics.terms.Term.constant`
    contains half of it.
    """
    x, w = cell[..., :-1], cell[..., -1]
    return -0.5 * (x * x).sum(-1) / jnp.where(w > 1e-14, w, jnp.inf)  # an empty cell costs 0
