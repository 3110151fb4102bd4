"""Terms: an objective as a weighted sum of cell costs, its gradient, and its differences.

F(W) = sum over terms of weight * sum over cells of cost(cell), where W = p(x) p(c given x) are the
masses of the rows in the clusters. A term uses the (known group, cluster) cells, or clusters pooled
over the groups, possibly through a linear view of the statistics.
"""

from __future__ import annotations

import functools
from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.statistics.costs import Cost
from nrprob.statistics.rows import Rows
from nrprob.trees import node

SMOOTHING = 1e-12
_UNIT = np.float64(1)


@node
class Residual:
    """View of the features as deviations from the mean of their known group.

    ``mean`` (groups, p) is 0 in its last place, so that the mass passes through unchanged.
    """

    mean: jax.Array

    def __call__(self, cells: jax.Array, mean: jax.Array) -> jax.Array:
        """Apply to statistics (..., p) given the mean of their group, broadcast against them."""
        return cells - cells[..., -1:] * mean

    def half_square(self) -> jax.Array:
        """Half the square of a row's deviation, less that of the row: its coefficients (groups, p).

        That is what the row adds to `Term.constant`.
        """
        m = self.mean
        return jnp.where(np.arange(m.shape[1]) < m.shape[1] - 1, -m, 0.5 * (m * m).sum(1)[:, None])


@node
class Term:
    """One weighted sum of cell costs.

    Attributes
    ----------
    weight : scalar, or one per restart
    constant : part of the cost that no partition changes, before weighting, in float64
    view : linear view of the statistics, or None for the statistics themselves
    cost : cell cost
    by_group : cells are (known group, cluster) if True, else clusters
    scale : what the leading curvature would be without cancellation; rounding is relative to it
    """

    weight: jax.Array
    constant: jax.Array
    view: Residual | None
    cost: Cost = field(metadata={"static": True})
    by_group: bool = field(metadata={"static": True})
    scale: jax.Array | np.float64 = _UNIT

    def cells(self, cells: jax.Array) -> jax.Array:
        """The term's own cells (1 or groups, S, K, p) from all cells (groups, S, K, p)."""
        if self.view is not None:
            cells = self.view(cells, self.view.mean[:, None, None])
        return cells if self.by_group else cells.sum(0, keepdims=True)

    def row(self, row: jax.Array, group: jax.Array) -> jax.Array:
        """The term's statistics of rows (..., p) that lie in one known group."""
        return row if self.view is None else self.view(row, self.view.mean[group])


@node
class TracedTerm(Term):
    """A `Term` whose cell cost has arrays of its own."""

    cost: Cost


Terms = tuple[Term, ...]


@jax.jit
def objective(terms: Terms, cells: jax.Array) -> jax.Array:
    """Return F, shape (S,), from the cells (groups, S, K, p)."""
    parts = [
        t.weight * (t.cost(t.cells(cells)).sum((0, 2)) + t.constant.astype(cells.dtype))
        for t in terms
    ]
    return functools.reduce(jnp.add, parts)


def cell_gradient(terms: Terms, cells: jax.Array) -> jax.Array:
    """Derivative of the cells' costs by the cells.

    A sliver of the group's mean statistics goes into every cell first: costs that are homogeneous
    of degree 1 have no derivative at the empty cell, and the sliver makes it that of the group.
    """
    cells = cells + SMOOTHING * cells.sum(2, keepdims=True)
    return jax.grad(lambda c: objective(terms, c).sum())(cells)


@jax.jit
def centred_gradient(terms: Terms, cells: jax.Array) -> jax.Array:
    """Derivative of F by the cells, less its mean over the clusters.

    Taking off what is common to the clusters leaves every difference between them as it was, and
    keeps float32 accurate when a large inverse temperature multiplies the score.
    """
    g = cell_gradient(terms, cells)
    return g - g.mean(2, keepdims=True)


@jax.jit
def row_costs(terms: Terms, cells: jax.Array) -> jax.Array:
    """What a row adds to F in every cluster: coefficients (groups, S, K, p) of its statistics.

    Half the sum of its squares (for gaussian costs) comes on top, and what it adds to other
    constants of the terms.
    """
    views = [t.weight * t.view.half_square()[:, None, None] for t in terms if t.view is not None]
    return functools.reduce(jnp.add, views, cell_gradient(terms, cells))


def membership_gradient(terms: Terms, rows: Rows, w: jax.Array) -> jax.Array:
    """Return dF/dW (B, r, S, K), up to a constant in every row and restart."""
    return rows.adjoint(centred_gradient(terms, rows.cells(w)))


def one_hot(labels: jax.Array, mass: jax.Array, n_clusters: int) -> jax.Array:
    """Masses (B, r, S, K) of hard labels (B, r, S)."""
    return jnp.where(labels[..., None] == np.arange(n_clusters), mass[..., None, None], 0)
