r"""Terms of an objective that is a weighted sum of cell costs, and the gradient of the objective.

.. math:: F(W) = \sum_t \lambda_t \sum_a g_t(S_a), \qquad S_a = \sum_x W(x, a) s(x)

W(x, c) = p(x) r(c|x) is the mass of sample x in cluster c, for its weight p(x) and its membership
r(c|x). s(x) are the additive statistics of the sample. g_t is the cell cost and lambda_t the weight
of term t. The cells a of a term are pairs of a known group and a cluster, or clusters pooled over
groups. A term may view the statistics through a linear map. The gradient with respect to the masses
is linear in the statistics of a sample x of group z:

.. math:: \frac{\partial F}{\partial W(x, c)} = \sum_t \lambda_t \,
    \nabla g_t(S_{zc}) \cdot s(x).

Shapes: B blocks of r samples, S restarts, K clusters, p statistics of a sample, ``groups`` known
groups. Arrays ``cells`` (groups, S, K, p) hold the statistics S_a of all cells.
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

SMOOTHING = 1e-12  # share of the statistics of a group that is added to every cell
_UNIT = np.float64(1)


@node
class Residual:
    """Linear view of the statistics: features minus the mean of their known group.

    ``mean`` (groups, p) are the means of the groups. The last entry of a mean is 0, so that the
    view does not change the mass.
    """

    mean: jax.Array

    def __call__(self, cells: jax.Array, mean: jax.Array) -> jax.Array:
        """Subtract the mass times ``mean`` (..., p), the group mean, from statistics (..., p)."""
        return cells - cells[..., -1:] * mean

    def half_square(self) -> jax.Array:
        """Coefficients (groups, p) of the linear part of half the squared deviation of a sample.

        A sample adds half its squared deviation from the mean of its group to `Term.constant`. Half
        the squared deviation is half the squared norm of the sample, plus a linear function of its
        statistics. The result has the coefficients of this function.
        """
        m = self.mean
        return jnp.where(np.arange(m.shape[1]) < m.shape[1] - 1, -m, 0.5 * (m * m).sum(1)[:, None])


@node
class Term:
    """Term of an objective: a weighted sum of the costs of all cells.

    Attributes
    ----------
    weight : weight lambda_t; a scalar, or (S,) for S restarts
    constant : part of the sum of costs that does not depend on the partition, before it is
        multiplied by ``weight``, in float64
    view : linear view of the statistics, or None for the statistics themselves
    cost : cell cost
    by_group : whether cells are pairs of known group and cluster; otherwise, cells are clusters
    scale : order of magnitude of the leading curvature of the term, to which rounding errors are
        relative; see `nrprob.engines.optimise.anneal.leading_curvatures`
    """

    weight: jax.Array
    constant: jax.Array
    view: Residual | None
    cost: Cost = field(metadata={"static": True})
    by_group: bool = field(metadata={"static": True})
    scale: jax.Array | np.float64 = _UNIT

    def cells(self, cells: jax.Array) -> jax.Array:
        """Statistics (1 or groups, S, K, p) of the cells of this term.

        ``cells`` (groups, S, K, p) are the statistics by known group and cluster.
        """
        if self.view is not None:
            cells = self.view(cells, self.view.mean[:, None, None])
        return cells if self.by_group else cells.sum(0, keepdims=True)

    def row(self, row: jax.Array, group: jax.Array) -> jax.Array:
        """Apply ``view`` to statistics ``row`` (..., p) of samples in the known group ``group``."""
        return row if self.view is None else self.view(row, self.view.mean[group])


@node
class TracedTerm(Term):
    """`Term` whose cell cost contains arrays, which are arguments of compiled programs."""

    cost: Cost


Terms = tuple[Term, ...]


@jax.jit
def objective(terms: Terms, cells: jax.Array) -> jax.Array:
    """Objective F (S,) of each of S restarts.

    ``cells`` (groups, S, K, p) are the statistics by known group and cluster.
    """
    parts = [
        t.weight * (t.cost(t.cells(cells)).sum((0, 2)) + t.constant.astype(cells.dtype))
        for t in terms
    ]
    return functools.reduce(jnp.add, parts)


def cell_gradient(terms: Terms, cells: jax.Array) -> jax.Array:
    """Derivative (groups, S, K, p) of F with respect to the statistics of the cells.

    Costs that are homogeneous of degree 1 have no derivative at the empty cell. A tiny multiple of
    the group's statistics is therefore added to every cell. The derivative at an empty cell is then
    the derivative at the statistics of the group.
    """
    cells = cells + SMOOTHING * cells.sum(2, keepdims=True)
    return jax.grad(lambda c: objective(terms, c).sum())(cells)


@jax.jit
def centred_gradient(terms: Terms, cells: jax.Array) -> jax.Array:
    """Gradient (groups, S, K, p) of the objective F, minus its mean over the clusters.

    The derivative is with respect to the statistics of every pair of a cluster and a known group.

    Centring does not change differences between clusters. Centring keeps float32 accurate when a
    large inverse temperature multiplies the gradient.
    """
    g = cell_gradient(terms, cells)
    return g - g.mean(2, keepdims=True)


@jax.jit
def row_costs(terms: Terms, cells: jax.Array) -> jax.Array:
    """Coefficients (groups, S, K, p) of the change of F if a sample is added to a cluster.

    The change to first order is the product of the coefficients and the statistics of the sample,
    plus parts that are the same for all clusters. An example of such a part is half the sum of
    squares of the sample, for Gaussian costs.
    """
    views = [t.weight * t.view.half_square()[:, None, None] for t in terms if t.view is not None]
    return functools.reduce(jnp.add, views, cell_gradient(terms, cells))


def membership_gradient(terms: Terms, rows: Rows, w: jax.Array) -> jax.Array:
    """Gradient dF/dW (B, r, S, K) at masses ``w``, up to a constant per sample and restart."""
    return rows.adjoint(centred_gradient(terms, rows.cells(w)))


def one_hot(labels: jax.Array, mass: jax.Array, n_clusters: int) -> jax.Array:
    """Masses (B, r, S, K) for hard labels (B, r, S) and sample masses (B, r)."""
    return jnp.where(labels[..., None] == np.arange(n_clusters), mass[..., None, None], 0)
