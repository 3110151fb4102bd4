r"""Terms: an objective as a weighted sum of cell costs, and its gradient.

.. math:: F(W) = \sum_t \lambda_t \sum_a g_t(S_a), \qquad S_a = \sum_x W(x, a) s(x)

W(x, c) = p(x) r(c|x) are the masses of the rows in the clusters, and s(x) are the additive
statistics of a row. g_t is the cell cost and lambda_t the weight of term t. The cells a of a term
are pairs of a known group and a cluster, or clusters pooled over the groups, possibly through a
linear view of the statistics. The gradient by the masses is linear in the statistics of a row x of
group z:

.. math:: \frac{\partial F}{\partial W(x, c)} = \sum_t \lambda_t \,
    \nabla g_t(S_{zc}) \cdot s(x).
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

    The last entry of ``mean`` (groups, p) is 0, so that the mass does not change.
    """

    mean: jax.Array

    def __call__(self, cells: jax.Array, mean: jax.Array) -> jax.Array:
        """Apply to statistics (..., p) given the mean of their group, broadcast against them."""
        return cells - cells[..., -1:] * mean

    def half_square(self) -> jax.Array:
        """Coefficients (groups, p) of half the squared deviation of a row, minus half its square.

        The row adds this linear function of its statistics to `Term.constant`.
        """
        m = self.mean
        return jnp.where(np.arange(m.shape[1]) < m.shape[1] - 1, -m, 0.5 * (m * m).sum(1)[:, None])


@node
class Term:
    """One weighted sum of cell costs.

    Attributes
    ----------
    weight : scalar, or one per restart
    constant : part of the cost that does not depend on the partition, unweighted, in float64
    view : linear view of the statistics, or None for the statistics themselves
    cost : cell cost
    by_group : cells are (known group, cluster) if True, else clusters
    scale : leading curvature without cancellation, to which rounding errors are relative
    """

    weight: jax.Array
    constant: jax.Array
    view: Residual | None
    cost: Cost = field(metadata={"static": True})
    by_group: bool = field(metadata={"static": True})
    scale: jax.Array | np.float64 = _UNIT

    def cells(self, cells: jax.Array) -> jax.Array:
        """Cells of the term (1 or groups, S, K, p) from all cells (groups, S, K, p)."""
        if self.view is not None:
            cells = self.view(cells, self.view.mean[:, None, None])
        return cells if self.by_group else cells.sum(0, keepdims=True)

    def row(self, row: jax.Array, group: jax.Array) -> jax.Array:
        """Statistics of rows (..., p) of one known group, through the view of the term."""
        return row if self.view is None else self.view(row, self.view.mean[group])


@node
class TracedTerm(Term):
    """A `Term` whose cell cost holds arrays."""

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
    """Derivative of F by the statistics of the cells.

    Costs that are homogeneous of degree 1 have no derivative at the empty cell. A tiny multiple of
    the group's statistics is therefore added to every cell, and the derivative at an empty cell
    becomes the derivative at the group.
    """
    cells = cells + SMOOTHING * cells.sum(2, keepdims=True)
    return jax.grad(lambda c: objective(terms, c).sum())(cells)


@jax.jit
def centred_gradient(terms: Terms, cells: jax.Array) -> jax.Array:
    """Derivative of F by the statistics of the cells, minus its mean over the clusters.

    Centring does not change differences between clusters, and keeps float32 accurate when a large
    inverse temperature multiplies the gradient.
    """
    g = cell_gradient(terms, cells)
    return g - g.mean(2, keepdims=True)


@jax.jit
def row_costs(terms: Terms, cells: jax.Array) -> jax.Array:
    """Change of F when a row is added to a cluster: coefficients (groups, S, K, p).

    The change is linear in the statistics of the row, up to constants of the terms such as half its
    sum of squares for Gaussian costs.
    """
    views = [t.weight * t.view.half_square()[:, None, None] for t in terms if t.view is not None]
    return functools.reduce(jnp.add, views, cell_gradient(terms, cells))


def membership_gradient(terms: Terms, rows: Rows, w: jax.Array) -> jax.Array:
    """Return dF/dW (B, r, S, K), up to a constant per row and restart."""
    return rows.adjoint(centred_gradient(terms, rows.cells(w)))


def one_hot(labels: jax.Array, mass: jax.Array, n_clusters: int) -> jax.Array:
    """Masses (B, r, S, K) of hard labels (B, r, S)."""
    return jnp.where(labels[..., None] == np.arange(n_clusters), mass[..., None, None], 0)
