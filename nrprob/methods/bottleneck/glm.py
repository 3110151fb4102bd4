"""Generalised linear models of the features on known structure, one per cluster and feature.

Gaussian features have the identity link and bernoulli features the logit link. Multinomial
proportions have the log link, as Poisson counts with the total of the row as offset and weight 1
per row. A saturated model, on the indicators of one labeling, has the same cost as the conditional
entropy of the features given clusters and known groups.

Every M-step updates the coefficients by a damped Newton step (iteratively reweighted least squares)
from their last values. Every step lowers

    sum over clusters, rows, features of  w loss(y; eta)  +  ridge / 2 sum of squared coefficients

so the penalised free energy decreases at fixed temperature for any number of steps. Here y is the
value of a feature, and eta its linear predictor. The loss is minus the log likelihood, without a
part that does not depend on eta. The mass w of a row in a cluster is the membership times the
weight of the row.

Sizes: N rows in B blocks of r rows; d columns of the design matrix; K clusters of a restart, and k
clusters of all restarts together. The features are processed in C chunks of J features, one chunk
after another, because the linear predictors (N, k, J) of all features would need too much memory.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.hash_rng import fold_in, hashed_noise
from nrprob.engines.optimise.anneal import BlockSums, Update, WeightRule, compression_cost
from nrprob.engines.optimise.iterate import iterate
from nrprob.engines.optimise.power_iteration import leading_eigenvalues
from nrprob.engines.optimise.solve import AnnealingProblem, exact_objective
from nrprob.statistics.families import get_family
from nrprob.statistics.links import Link
from nrprob.statistics.matrices import whitener
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Term, centred_gradient, objective, row_costs
from nrprob.statistics.xlogx import safe_log

_NEWTON_STEPS = 1  # Newton steps per M-step
_INTERCEPT_RIDGE = 1e-4  # ridge of intercepts, relative to slopes: bounds them if all y are 0
_MAX_PREDICTOR_STEP = 10.0  # maximum change of a linear predictor in one step
_MAX_PREDICTORS = 1 << 20  # maximum number of linear predictors in memory


class ModelData(NamedTuple):
    """Features, design matrix and ridge penalties of the generalised linear models of one fit.

    Attributes
    ----------
    y : (C, N, J) features, in chunks
    used : (C, J) whether a feature has a model; a feature with constant value 0 (or 1, if
        bernoulli) has none
    design : (N, d) design matrix with a first column of 1
    penalty : (d,) ridge penalty of every coefficient of a model
    base : (N,) part of minus the log likelihood of a row that does not depend on the coefficients
    rows : rows of the coordination term
    """

    y: jax.Array
    used: jax.Array
    design: jax.Array
    penalty: jax.Array
    base: jax.Array
    rows: Rows

    @property
    def mass(self) -> jax.Array:
        """Masses (B, r) of the rows."""
        return self.rows.mass

    @property
    def number(self) -> jax.Array:
        """Indices (B, r) of the rows in the input."""
        return self.rows.number

    def flatten_masses(self, w: jax.Array) -> jax.Array:
        """Reshape masses (B, r, restarts, K) of the rows in the clusters to (N, k)."""
        return w.reshape(self.base.size, -1)


def link_potential(features: str, eta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cumulant function, mean and variance of features at linear predictors ``eta``.

    All three arrays have the shape of ``eta``. ``features`` is the name of the family.
    """
    return _link_of(features).potential(eta)


def _link_of(features: str) -> Link:
    link = get_family(features, "link").link
    assert link is not None
    return link


def chunk_features(
    features: str,
    rows: Rows,
    design: jax.Array,
    ridge: jax.Array,
    n_models: int,
    pooled: Rows | None = None,
) -> ModelData:
    """Split the features into chunks, and collect the data of the models.

    Parameters
    ----------
    features : name of the family of the features
    rows : rows of the models
    design : (B, r, d) design matrix
    ridge : ridge penalty of the coefficients
    n_models : total number k of clusters over all restarts; it determines the size of a chunk
    pooled : rows of the coordination term; by default ``rows``
    """
    d = design.shape[-1]
    design = design.reshape(-1, d)
    y = rows.x.x[..., :-1].reshape(design.shape[0], -1)  # type: ignore[union-attr]
    real = rows.mass.reshape(-1, 1) > 0
    link = _link_of(features)
    # Features that are constant at the boundary of their range need no model.
    used = jnp.stack([jnp.any(real & (y != value), 0) for value in link.idle]).all(0)
    base = link.base(y)
    size = max(_MAX_PREDICTORS // (y.shape[0] * n_models), 1)
    # Chunks of equal size; the last one is padded.
    n_chunks = -(-y.shape[1] // size)
    size = -(-y.shape[1] // n_chunks)
    spare = n_chunks * size - y.shape[1]
    y = jnp.pad(y, ((0, 0), (0, spare))).reshape(-1, n_chunks, size)
    used = jnp.pad(used, (0, spare)).reshape(n_chunks, size)
    penalty = ridge * jnp.where(np.arange(d) == 0, _INTERCEPT_RIDGE, 1.0).astype(ridge.dtype)
    pooled = rows if pooled is None else pooled
    return ModelData(jnp.moveaxis(y, 1, 0), used, design, penalty, base, pooled)


_einsum = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def _solve_systems(h: jax.Array, g: jax.Array) -> jax.Array:
    """Solve linear systems h x = g with positive definite matrices h (..., d, d).

    ``g`` (..., d) are the right-hand sides. The matrices are first scaled to unit diagonals.
    """
    scale = 1 / jnp.sqrt(jnp.diagonal(h, axis1=-2, axis2=-1))
    jitter = 20 * jnp.finfo(h.dtype).eps * jnp.eye(h.shape[-1], dtype=h.dtype)
    white, _ = whitener(h * scale[..., None] * scale[..., None, :] + jitter)
    g = g * scale
    x = _einsum("...ji,...j->...i", white, _einsum("...ij,...j->...i", white, g))
    return jnp.where(jnp.isfinite(x), x, g) * scale


def _curvature_matrices(data: ModelData, weight: jax.Array) -> jax.Array:
    """Second derivatives (k, J, d, d) of the summed loss of every model by its coefficients.

    ``weight`` (N, k, J) are the masses of the rows times the variances of the features. The axis J
    has length 1 if all features have the same derivatives.
    """
    n, d = data.design.shape
    squares = (data.design[:, :, None] * data.design[:, None]).reshape(n, d * d)
    h = jnp.einsum("ne,nkj->kje", squares, weight)
    return h.reshape(*h.shape[:2], d, d)


def _linear_predictor(data: ModelData, coef: jax.Array) -> jax.Array:
    """Linear predictors (N, k, J) from coefficients (k, J, d) of the models of a chunk."""
    return jnp.einsum("nd,kjd->nkj", data.design, coef)


def _feature_losses(
    features: str, data: ModelData, chunk_index: jax.Array, eta: jax.Array
) -> jax.Array:
    """Losses (N, k, J) of the features of a chunk at linear predictors ``eta`` (N, k, J)."""
    losses = link_potential(features, eta)[0] - data.y[chunk_index][:, None] * eta
    return jnp.where(data.used[chunk_index], losses, 0)


def _newton_step(
    features: str, sums: BlockSums, chunk_index: jax.Array, coef: jax.Array
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """Damped Newton step for all models of a chunk of features.

    Parameters
    ----------
    features : name of the family of the features
    sums : masses of the rows in the clusters, and the `ModelData` records over which sums run
    chunk_index : index of the chunk
    coef : (k, J, d) coefficients before the step

    Returns
    -------
    coef : (k, J, d) coefficients after the step
    cost : (k,) penalised cost of these coefficients, summed over the features of the chunk
    losses : for every record of ``sums``, the losses (N, k) of its rows
    """
    used, penalty = sums.blocks[0].used[chunk_index], sums.blocks[0].penalty
    identity = _link_of(features).identity

    def block_derivatives(data, w):
        w, y = data.flatten_masses(w), data.y[chunk_index][:, None]
        eta = _linear_predictor(data, coef)
        _, mean, variance = link_potential(features, eta)
        rest = jnp.where(used, w[..., None] * (mean - y), 0)
        gradient = jnp.einsum("nd,nkj->kjd", data.design, rest)
        weight = w[..., None] if identity else jnp.where(used, w[..., None] * variance, 0)
        cost = jnp.einsum("nk,nkj->kj", w, _feature_losses(features, data, chunk_index, eta))
        return gradient, _curvature_matrices(data, weight), cost, w.sum(0)

    def ridge_penalty(coef):
        return 0.5 * (penalty * coef * coef).sum(-1)

    # Newton direction of the penalised loss.
    gradient, h, old, mass = sums(block_derivatives)
    step = -_solve_systems(h + jnp.diag(penalty), gradient + penalty * coef)
    old = old + ridge_penalty(coef)
    # Tolerance of the comparison: losses cancel in the sum, so rounding scales with the mass.
    slack = 8 * jnp.finfo(old.dtype).eps * (jnp.abs(old) + mass[:, None])
    size = jnp.ones_like(old)
    # Bound the change of the linear predictors.
    if not identity:
        farthest = sums(lambda data, _: jnp.abs(_linear_predictor(data, step)).max(0), jnp.maximum)
        size = jnp.minimum(size, _MAX_PREDICTOR_STEP / jnp.maximum(farthest, 1e-30))

    # Backtracking: quarter the steps of models whose cost increases.
    def try_step(size):
        def block_losses(data, w):
            eta = _linear_predictor(data, coef) + size * _linear_predictor(data, step)
            losses = _feature_losses(features, data, chunk_index, eta)
            return jnp.einsum("nk,nkj->kj", data.flatten_masses(w), losses), losses.sum(-1)

        costs, losses = zip(*sums.map_blocks(block_losses), strict=True)
        new = functools.reduce(jnp.add, costs) + ridge_penalty(coef + size[..., None] * step)
        return ~(new <= old + slack), new, losses

    def any_increased(carry):
        bad, *_, count = carry
        return jnp.any(bad) & (count < 20)

    def backtrack(carry):
        bad, _, _, size, count = carry
        size = jnp.where(bad, 0.25 * size, size)
        return *try_step(size), size, count + 1

    carry = *try_step(size), size, 0
    _, new, losses, size, _ = jax.lax.while_loop(any_increased, backtrack, carry)
    return coef + size[..., None] * step, new.sum(-1), losses


def fit_models(
    features: str, sums: BlockSums, coef: jax.Array, n_steps: int = _NEWTON_STEPS
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """Update the coefficients ``coef`` (C, k, J, d) of all models by damped Newton steps.

    The other arguments are as in `_newton_step`; ``n_steps`` is the number of steps.

    Returns
    -------
    coef : (C, k, J, d) coefficients after the steps
    cost : (k,) penalised cost of these coefficients, summed over all features
    losses : for every record of ``sums``, the losses (N, k) of its rows
    """

    def step_chunk(total, inputs):
        chunk_index, coef = inputs
        for _ in range(n_steps):
            coef, *result = _newton_step(features, sums, chunk_index, coef)
        return jax.tree.map(jnp.add, total, tuple(result)), coef

    k = coef.shape[1]
    losses = sums.map_blocks(lambda data, _: jnp.zeros((data.base.size, k), coef.dtype))
    start = jnp.zeros(k, coef.dtype), losses
    (cost, losses), coef = jax.lax.scan(step_chunk, start, (jnp.arange(len(coef)), coef))
    return coef, cost, losses


def row_losses(features: str, data: ModelData, coef: jax.Array) -> jax.Array:
    """Losses (N, k) of the rows in every cluster, summed over features, without ``ModelData.base``.

    ``coef`` (C, k, J, d) are the coefficients of the models.
    """

    def add_chunk_losses(total, inputs):
        chunk_index, coef = inputs
        eta = _linear_predictor(data, coef)
        return total + _feature_losses(features, data, chunk_index, eta).sum(-1), None

    start = jnp.zeros((data.base.size, coef.shape[1]), coef.dtype)
    return jax.lax.scan(add_chunk_losses, start, (jnp.arange(len(coef)), coef))[0]


def converge_models(
    features: str, sums: BlockSums, coef: jax.Array, max_iter: int = 100
) -> tuple[jax.Array, jax.Array]:
    """Minimise the penalised cost over the coefficients, for fixed masses of the rows in clusters.

    ``coef`` (C, k, J, d) are initial values, and ``sums`` holds the masses. The function returns
    the coefficients (C, k, J, d) and their cost (k,).
    """
    tol = 10 * jnp.finfo(coef.dtype).eps

    def step(carry, count):
        coef, old = carry
        coef, new, _ = fit_models(features, sums, coef)
        same = ~(jnp.abs(old - new) > tol * (jnp.abs(new) + 1))
        return (coef, new), (count > 0) & same, ()

    zero = jnp.zeros(coef.shape[1], coef.dtype)
    return iterate(step, (coef, zero), max_iter, done=jnp.zeros_like(zero, bool)).state


def null_model(features: str, data: ModelData, mass: jax.Array) -> jax.Array:
    """Coefficients (C, 1, J, d) of the models of a single cluster of all rows.

    ``mass`` (N,) are the masses of the rows in this cluster.
    """
    mean = jnp.einsum("n,cnj->cj", mass, data.y) / mass.sum()
    mean = _link_of(features).predictor(mean)
    start = jnp.zeros((*mean.shape, data.design.shape[1]), mean.dtype)
    start = start.at[..., 0].set(jnp.where(data.used, mean, 0))
    return converge_models(features, BlockSums((data,), mass), start[:, None])[0]


def leading_curvatures(
    features: str,
    data: ModelData,
    problem: Any,
    coef: jax.Array,
    mass: jax.Array,
    n_clusters: jax.Array,
    max_iter: int = 300,
) -> tuple[jax.Array, jax.Array]:
    r"""Weights (2,) of models and coordination, and inverse temperature of the first split.

    The objective is expanded about ``n_clusters`` identical clusters, which have the coefficients
    ``coef`` (C, 1, J, d) of the null model. A change e of the log memberships of one cluster
    changes the masses of the cluster by mass e / n_clusters. The coefficients of the cluster change
    by the corresponding Newton step. The losses of the rows in the cluster then change by -B e,
    with the linear map

    .. math:: B e(x) = \sum_j r_{xj} a_x^T H_j^{-1} \sum_{x'} p(x') a_{x'} r_{x'j} e(x')

    where row x has the mass p(x) and the row :math:`a_x` of the design matrix. :math:`r_{xj}` is
    the residual y - mean of feature j. :math:`H_j` are the second derivatives of the penalised loss
    of the null model, with ``n_clusters`` times the ridge. Clusters first separate at the inverse
    of the largest eigenvalue of the weighted sum of B and the linear map of the coordination term,
    as in `nrprob.engines.optimise.anneal.leading_curvatures`.
    """
    dtype = mass.dtype
    eps = jnp.finfo(dtype).eps
    flat = mass.reshape(-1)

    def chunk_curvatures(inputs):
        y, used, coef = inputs
        _, mean, variance = link_potential(features, jnp.einsum("nd,jd->nj", data.design, coef[0]))
        rest = jnp.where(used, y - mean, 0)
        weight = jnp.where(used, variance, 0) * flat[:, None]
        h = _curvature_matrices(data, weight[:, None])[0]
        return rest, h + jnp.diag(data.penalty * n_clusters)

    # Residuals and curvature matrices of the null model.
    residual, h = jax.lax.map(chunk_curvatures, (data.y, data.used, coef))
    # Scale of the curvature without known structure, which determines the floor for rounding.
    varying, base = jnp.where(data.used, 1.0, 0.0).sum(), (flat * data.base).sum() / flat.sum()
    scale = _link_of(features).scale(varying, base)
    term = problem.coordination
    floor = jnp.stack([1e-8 + 20 * eps, 20 * eps]) * jnp.stack([scale, term.scale]).astype(dtype)

    def apply_models(e):
        def add_chunk(total, inputs):
            rest, h = inputs
            change = jnp.einsum("nd,nj,ns->sjd", data.design, rest, flat[:, None] * e)
            change = _solve_systems(h, change)
            return total + jnp.einsum("nd,nj,sjd->ns", data.design, rest, change), None

        return jax.lax.scan(add_chunk, jnp.zeros_like(e), (residual, h))[0]

    totals = problem.pooled.cells(mass[..., None, None])
    totals = jnp.broadcast_to(totals, (totals.shape[0], 3, *totals.shape[2:]))
    gradient = jax.grad(lambda c: objective((term,), c).sum())

    def apply_curvature(e, weights):
        cells = problem.pooled.cells((mass[..., None] * e)[..., None])
        second = -problem.pooled.adjoint(jax.jvp(gradient, (totals,), (cells,))[1])[..., 0]
        first = apply_models(e.reshape(flat.size, 3)).reshape(e.shape)
        return weights[0] * first + weights[1] * second

    def curvature_weights(value):
        return problem.weigh(jnp.where(value[:2] > floor, value[:2], 0))

    def step(e, value):
        weights = curvature_weights(value)[:, None]
        return apply_curvature(e, jnp.concatenate([jnp.eye(2, dtype=dtype), weights], 1))

    value = leading_eigenvalues(
        step,
        hashed_noise(fold_in(fold_in(0, 0), data.number), (3,), dtype),
        lambda a, b: (mass[..., None] * a * b).sum((0, 1)),
        accuracy=1e-6 if dtype == jnp.float64 else 1e-5,
        max_iter=max_iter,
    )
    weights = curvature_weights(value)
    largest = jnp.where(value[2] > (jnp.abs(weights) * floor).sum(), value[2], 0)
    return weights, jnp.where(largest > 0, 1 / jnp.maximum(largest, 1e-30), jnp.inf)


def model_update(features: str, coordination: Term) -> Update:
    """Update of memberships and coefficients; the state is the coefficients (C, k, J, d).

    The update alternately lowers the penalised free energy over memberships and coefficients. The
    free energy is the sum of the losses times w, plus the ridge penalty, the ``coordination`` term
    and I(C;X) / beta. Here I(C;X) is the mutual information of clusters C and rows X, and beta the
    inverse temperature. The trace records the free energy at the updated coefficients.
    """
    terms = (coordination,)

    def m_step(coef, sums, beta):
        coef, _, losses = fit_models(features, sums, coef)
        cells, q = sums(lambda data, w: (data.rows.cells(w), w.sum((0, 1))))
        return coef, (centred_gradient(terms, cells), safe_log(q)), losses

    def e_step(parameters, data, losses, beta):
        slopes, log_prior = parameters
        coordination = data.rows.adjoint(slopes)
        return log_prior - beta[:, None] * (losses.reshape(coordination.shape) + coordination)

    def penalised_free_energy(coef, sums, beta):
        def block_terms(data, w):
            losses = row_losses(features, data, coef).reshape(w.shape) + data.base.reshape(
                *data.mass.shape, 1, 1
            )
            return (w * losses).sum((0, 1, 3)), data.rows.cells(w)

        losses, cells = sums(block_terms)
        penalty = 0.5 * (sums.blocks[0].penalty * coef * coef).sum((0, 2, 3))
        losses += penalty.reshape(losses.size, -1).sum(-1)
        return losses + objective(terms, cells) + compression_cost(1.0, sums) / beta

    return Update(m_step, e_step, penalised_free_energy)


class GLMProblem(NamedTuple):
    """Objective of an annealing: losses of generalised linear models plus a coordination term.

    A solution has a ``slope`` (d + 1, K, p) (see `nrprob.engines.optimise.solve.TermFit`), with p
    statistics of a row: the features, and 1. Its first d entries are the coefficients of the best
    restart, fitted to hard labels. Its last entry is the derivative of the coordination term by the
    statistics of the clusters.

    Attributes
    ----------
    features : name of the family of the features
    design : (B, r, d) design matrix with a first column of 1
    ridge : ridge penalty of the coefficients
    coordination : coordination term
    pooled : rows of the coordination term
    weigh : function from the leading curvatures (2,) of models and coordination to their weights
    count : number of clusters, without padding
    """

    features: str
    design: jax.Array
    ridge: jax.Array
    coordination: Term
    pooled: Rows
    weigh: WeightRule
    count: jax.Array

    def iteration(
        self, rows: Rows, compression: Any, n_clusters: int, n_init: int
    ) -> AnnealingProblem:
        """Annealing problem that alternates Newton steps of the models and membership updates.

        Parameters
        ----------
        rows : rows of the models
        compression : not used; the weight of the entropy of the clusters is 1
        n_clusters : number of clusters of a restart, with padding
        n_init : number of restarts
        """
        features, mass, dtype = self.features, rows.mass, rows.mass.dtype
        count = self.count.astype(dtype)
        n_models = n_init * n_clusters
        data = chunk_features(features, rows, self.design, self.ridge, n_models, self.pooled)
        null = null_model(features, data, mass.reshape(-1) / count)
        weights, critical = leading_curvatures(features, data, self, null, mass, count)
        # The losses of the models have weight 1.
        term = replace(self.coordination, weight=weights[1])
        update = model_update(features, term)
        active = jnp.arange(n_clusters) < self.count
        start = jnp.where(jnp.tile(active, n_init)[:, None, None], null, 0)

        def finish(coef, w, hard):
            # Compare restarts in float64, so that rounding errors do not decide between them.
            wide = {
                name: getattr(data, name).astype(jnp.float64)
                for name in ("y", "design", "penalty", "base")
            }
            exact = data._replace(**wide)
            sums = BlockSums((exact,), hard.astype(jnp.float64))
            coef, losses = converge_models(features, sums, coef.astype(jnp.float64))
            losses = losses.reshape(hard.shape[2:]).sum(-1)
            losses += (mass.reshape(-1) * exact.base).sum()
            cells = self.pooled.cells(hard)
            coef = jnp.moveaxis(coef, 0, 1)
            coef = coef.reshape(n_init, n_clusters, -1, coef.shape[-1])

            def restart_slopes(best):
                coefficients = coef[best, :, : rows.x.n_statistics - 1]
                coefficients = jnp.moveaxis(jnp.pad(coefficients, ((0, 0), (0, 1), (0, 0))), -1, 0)
                last = row_costs((term,), cells)[:, best]
                return jnp.concatenate([coefficients, last.astype(coefficients.dtype)])

            return losses + exact_objective((term,), cells), restart_slopes

        return AnnealingProblem(update, (data,), start, critical, weights, 0.0, True, finish)
