"""Generalised linear models of the features on known structure, one per cluster and feature.

Gaussian features have the identity link, bernoulli ones the logit, and proportions of a row the
logarithm, as Poisson counts with the row's total as offset and every row of weight 1. A saturated
model, on the indicators of one labeling, then costs what the cells by known group cost.

Coefficients follow the memberships by damped Newton steps, which are iteratively reweighted least
squares, and are kept from one update to the next. Every step lowers

    sum over clusters, rows, features of  w loss(y; eta)  +  ridge / 2 sum of squared coefficients

so that the penalised free energy falls within a temperature, however few the steps.
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
from nrprob.engines.optimise.power import leading_eigenvalues
from nrprob.engines.optimise.solve import AnnealingProblem, exact_objective
from nrprob.statistics.families import get_family
from nrprob.statistics.links import Link
from nrprob.statistics.matrices import whitener
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Term, centred_gradient, objective, row_costs
from nrprob.statistics.xlogx import safe_log

STEPS = 1  # Newton steps at every update of the memberships
_INTERCEPT = 1e-4  # of the ridge, on the intercept: a cluster may be all zeros
_FARTHEST = 10.0  # that a step may move a linear predictor
_ELEMENTS = 1 << 20  # linear predictors that are computed at once


class ModelData(NamedTuple):
    """What the models are fitted to: a block of rows.

    Attributes
    ----------
    y : (C, N, J) features, in C chunks
    used : (C, J) whether a feature has anything to explain; of all blocks alike
    design : (N, d) columns of the models, the first of them 1
    penalty : (d,) ridge of every coefficient; of all blocks alike
    base : (N,) part of the loss that no coefficient changes
    rows : the rows as the coordination looks at them
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
        """Places (B, r) of the rows among the user's."""
        return self.rows.number

    def flat(self, w: jax.Array) -> jax.Array:
        """Masses (N, k) of the rows in all clusters of all restarts."""
        return w.reshape(self.base.size, -1)


def potential(features: str, eta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cumulant function, mean and variance of a feature at linear predictor ``eta``."""
    return _link(features).potential(eta)


def _link(features: str) -> Link:
    link = get_family(features, "link").link
    assert link is not None
    return link


def chunk(
    features: str,
    rows: Rows,
    design: jax.Array,
    ridge: jax.Array,
    n_models: int,
    pooled: Rows | None = None,
) -> ModelData:
    """Lay out the features so that few linear predictors of ``n_models`` clusters exist at once.

    ``pooled`` holds the rows as the coordination looks at them, if not as they are.
    """
    d = design.shape[-1]
    design = design.reshape(-1, d)
    y = rows.x.x[..., :-1].reshape(design.shape[0], -1)  # type: ignore[union-attr]
    real = rows.mass.reshape(-1, 1) > 0
    link = _link(features)
    used = jnp.stack([jnp.any(real & (y != value), 0) for value in link.idle]).all(0)
    base = link.base(y)
    size = max(_ELEMENTS // (y.shape[0] * n_models), 1)
    n_chunks = -(-y.shape[1] // size)
    size = -(-y.shape[1] // n_chunks)
    spare = n_chunks * size - y.shape[1]
    y = jnp.pad(y, ((0, 0), (0, spare))).reshape(-1, n_chunks, size)
    used = jnp.pad(used, (0, spare)).reshape(n_chunks, size)
    penalty = ridge * jnp.where(np.arange(d) == 0, _INTERCEPT, 1.0).astype(ridge.dtype)
    pooled = rows if pooled is None else pooled
    return ModelData(jnp.moveaxis(y, 1, 0), used, design, penalty, base, pooled)


_times = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def _solve(h: jax.Array, g: jax.Array) -> jax.Array:
    """Solve positive definite systems (..., d, d), scaled to unit diagonals, for (..., d)."""
    scale = 1 / jnp.sqrt(jnp.diagonal(h, axis1=-2, axis2=-1))
    jitter = 20 * jnp.finfo(h.dtype).eps * jnp.eye(h.shape[-1], dtype=h.dtype)
    white, _ = whitener(h * scale[..., None] * scale[..., None, :] + jitter)
    g = g * scale
    x = _times("...ji,...j->...i", white, _times("...ij,...j->...i", white, g))
    return jnp.where(jnp.isfinite(x), x, g) * scale


def _curvature(data: ModelData, weight: jax.Array) -> jax.Array:
    """Second derivatives (k, J or 1, d, d) of the loss, for weights (N, k, J or 1)."""
    n, d = data.design.shape
    squares = (data.design[:, :, None] * data.design[:, None]).reshape(n, d * d)
    h = jnp.einsum("ne,nkj->kje", squares, weight)
    return h.reshape(*h.shape[:2], d, d)


def _predictor(data: ModelData, coef: jax.Array) -> jax.Array:
    """Linear predictors (N, k, J) of coefficients (k, J, d)."""
    return jnp.einsum("nd,kjd->nkj", data.design, coef)


def _losses(features: str, data: ModelData, at: jax.Array, eta: jax.Array) -> jax.Array:
    """Losses (N, k, J) of a chunk's features at linear predictors ``eta``."""
    each = potential(features, eta)[0] - data.y[at][:, None] * eta
    return jnp.where(data.used[at], each, 0)


def _newton(
    features: str, sums: BlockSums, at: jax.Array, coef: jax.Array
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """One step of all models of a chunk.

    Returns the coefficients (k, J, d), their cost (k,), and the rows' losses (N, k) in every block.
    """
    used, penalty = sums.blocks[0].used[at], sums.blocks[0].penalty
    identity = _link(features).identity

    def derivatives(data, w):
        w, y, eta = data.flat(w), data.y[at][:, None], _predictor(data, coef)
        _, mean, variance = potential(features, eta)
        rest = jnp.where(used, w[..., None] * (mean - y), 0)
        gradient = jnp.einsum("nd,nkj->kjd", data.design, rest)
        weight = w[..., None] if identity else jnp.where(used, w[..., None] * variance, 0)
        cost = jnp.einsum("nk,nkj->kj", w, _losses(features, data, at, eta))
        return gradient, _curvature(data, weight), cost, w.sum(0)

    def ridge(coef):
        return 0.5 * (penalty * coef * coef).sum(-1)

    gradient, h, old, mass = sums(derivatives)
    step = -_solve(h + jnp.diag(penalty), gradient + penalty * coef)
    old = old + ridge(coef)
    # Losses of separate rows cancel in their sum, which sets the size of its rounding.
    slack = 8 * jnp.finfo(old.dtype).eps * (jnp.abs(old) + mass[:, None])
    size = jnp.ones_like(old)
    if not identity:
        farthest = sums(lambda data, _: jnp.abs(_predictor(data, step)).max(0), jnp.maximum)
        size = jnp.minimum(size, _FARTHEST / jnp.maximum(farthest, 1e-30))

    def attempt(size):
        def part(data, w):
            eta = _predictor(data, coef) + size * _predictor(data, step)
            each = _losses(features, data, at, eta)
            return jnp.einsum("nk,nkj->kj", data.flat(w), each), each.sum(-1)

        costs, losses = zip(*sums.each(part), strict=True)
        new = functools.reduce(jnp.add, costs) + ridge(coef + size[..., None] * step)
        return ~(new <= old + slack), new, losses

    def worse(carry):
        bad, *_, count = carry
        return jnp.any(bad) & (count < 20)

    def halve(carry):
        bad, _, _, size, count = carry
        size = jnp.where(bad, 0.25 * size, size)
        return *attempt(size), size, count + 1

    _, new, losses, size, _ = jax.lax.while_loop(worse, halve, (*attempt(size), size, 0))
    return coef + size[..., None] * step, new.sum(-1), losses


def fit(
    features: str, sums: BlockSums, coef: jax.Array, n_steps: int = STEPS
) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """Improve the coefficients (C, k, J, d) of all chunks; see `_newton`."""

    def one(total, inputs):
        at, coef = inputs
        for _ in range(n_steps):
            coef, *result = _newton(features, sums, at, coef)
        return jax.tree.map(jnp.add, total, tuple(result)), coef

    k = coef.shape[1]
    losses = sums.each(lambda data, _: jnp.zeros((data.base.size, k), coef.dtype))
    start = jnp.zeros(k, coef.dtype), losses
    (cost, losses), coef = jax.lax.scan(one, start, (jnp.arange(len(coef)), coef))
    return coef, cost, losses


def row_losses(features: str, data: ModelData, coef: jax.Array) -> jax.Array:
    """Loss (N, k) of every row under every cluster's models, less ``ModelData.base``."""

    def one(total, inputs):
        at, coef = inputs
        return total + _losses(features, data, at, _predictor(data, coef)).sum(-1), None

    start = jnp.zeros((data.base.size, coef.shape[1]), coef.dtype)
    return jax.lax.scan(one, start, (jnp.arange(len(coef)), coef))[0]


def converge(
    features: str, sums: BlockSums, coef: jax.Array, max_iter: int = 100
) -> tuple[jax.Array, jax.Array]:
    """Coefficients (C, k, J, d) of least penalised cost, and that cost (k,)."""
    tol = 10 * jnp.finfo(coef.dtype).eps

    def step(carry, count):
        coef, old = carry
        coef, new, _ = fit(features, sums, coef)
        same = ~(jnp.abs(old - new) > tol * (jnp.abs(new) + 1))
        return (coef, new), (count > 0) & same, ()

    zero = jnp.zeros(coef.shape[1], coef.dtype)
    return iterate(step, (coef, zero), max_iter, done=jnp.zeros_like(zero, bool)).state


def null_model(features: str, data: ModelData, mass: jax.Array) -> jax.Array:
    """Coefficients (C, 1, J, d) of one cluster of masses ``mass`` (N,)."""
    mean = jnp.einsum("n,cnj->cj", mass, data.y) / mass.sum()
    mean = _link(features).predictor(mean)
    start = jnp.zeros((*mean.shape, data.design.shape[1]), mean.dtype)
    start = start.at[..., 0].set(jnp.where(data.used, mean, 0))
    return converge(features, BlockSums((data,), mass), start[:, None])[0]


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

    At ``n_clusters`` identical clusters, whose models have the coefficients ``coef``, a change e of
    log r in one of them changes its masses by mass e / n_clusters, its coefficients by Newton's
    step for those, and so its scores by -B e, with

    .. math:: B e(x) = \sum_j r_{xj} a_x^T H_j^{-1} \sum_{x'} p(x') a_{x'} r_{x'j} e(x')

    r being the residuals y - mean and H_j the second derivatives of the null model's penalised loss
    (whose ridge is that of all ``n_clusters``). Clusters first separate at the inverse of the
    largest eigenvalue of B and the like of the coordination, weighed; see
    `nrprob.engines.optimise.anneal.leading_curvatures` for the latter, and for the power iteration.
    """
    dtype = mass.dtype
    eps = jnp.finfo(dtype).eps
    flat = mass.reshape(-1)

    def prepare(inputs):
        y, used, coef = inputs
        _, mean, variance = potential(features, jnp.einsum("nd,jd->nj", data.design, coef[0]))
        rest = jnp.where(used, y - mean, 0)
        weight = jnp.where(used, variance, 0) * flat[:, None]
        return rest, _curvature(data, weight[:, None])[0] + jnp.diag(data.penalty * n_clusters)

    residual, h = jax.lax.map(prepare, (data.y, data.used, coef))
    # What the curvature would be if the known structure explained nothing.
    varying, base = jnp.where(data.used, 1.0, 0.0).sum(), (flat * data.base).sum() / flat.sum()
    scale = _link(features).scale(varying, base)
    term = problem.coordination
    floor = jnp.stack([1e-8 + 20 * eps, 20 * eps]) * jnp.stack([scale, term.scale]).astype(dtype)

    def models(e):
        def one(total, inputs):
            rest, h = inputs
            change = jnp.einsum("nd,nj,ns->sjd", data.design, rest, flat[:, None] * e)
            change = _solve(h, change)
            return total + jnp.einsum("nd,nj,sjd->ns", data.design, rest, change), None

        return jax.lax.scan(one, jnp.zeros_like(e), (residual, h))[0]

    totals = problem.pooled.cells(mass[..., None, None])
    totals = jnp.broadcast_to(totals, (totals.shape[0], 3, *totals.shape[2:]))
    gradient = jax.grad(lambda c: objective((term,), c).sum())

    def apply(e, weights):
        cells = problem.pooled.cells((mass[..., None] * e)[..., None])
        second = -problem.pooled.adjoint(jax.jvp(gradient, (totals,), (cells,))[1])[..., 0]
        first = models(e.reshape(flat.size, 3)).reshape(e.shape)
        return weights[0] * first + weights[1] * second

    def weigh(value):
        return problem.weigh(jnp.where(value[:2] > floor, value[:2], 0))

    def step(e, value):
        each = jnp.concatenate([jnp.eye(2, dtype=dtype), weigh(value)[:, None]], 1)
        return apply(e, each)

    value = leading_eigenvalues(
        step,
        hashed_noise(fold_in(fold_in(0, 0), data.number), (3,), dtype),
        lambda a, b: (mass[..., None] * a * b).sum((0, 1)),
        accuracy=1e-6 if dtype == jnp.float64 else 1e-5,
        max_iter=max_iter,
    )
    weights = weigh(value)
    largest = jnp.where(value[2] > (jnp.abs(weights) * floor).sum(), value[2], 0)
    return weights, jnp.where(largest > 0, 1 / jnp.maximum(largest, 1e-30), jnp.inf)


def model_update(features: str, coordination: Term) -> Update:
    """Update of `ModelData`; the state are the coefficients (C, k, J, d) of all restarts.

    Minimises sum of w loss + penalty + coordination + I(C;X)/beta over memberships and coefficients
    in turn; the trace holds its value at the coefficients of the last update.
    """
    terms = (coordination,)

    def settle(coef, sums, beta):
        coef, _, losses = fit(features, sums, coef)
        cells, q = sums(lambda data, w: (data.rows.cells(w), w.sum((0, 1))))
        return coef, (centred_gradient(terms, cells), safe_log(q)), losses

    def log_memberships(settled, data, losses, beta):
        slopes, log_prior = settled
        each = data.rows.adjoint(slopes)
        return log_prior - beta[:, None] * (losses.reshape(each.shape) + each)

    def value(coef, sums, beta):
        def part(data, w):
            losses = row_losses(features, data, coef).reshape(w.shape) + data.base.reshape(
                *data.mass.shape, 1, 1
            )
            return (w * losses).sum((0, 1, 3)), data.rows.cells(w)

        losses, cells = sums(part)
        penalty = 0.5 * (sums.blocks[0].penalty * coef * coef).sum((0, 2, 3))
        losses += penalty.reshape(losses.size, -1).sum(-1)
        return losses + objective(terms, cells) + compression_cost(1.0, sums) / beta

    return Update(settle, log_memberships, value)


class GLMProblem(NamedTuple):
    """What is minimised: losses of models of the features, and a coordination beside them.

    The ``slope`` (d + 1, K, p) of a solution (see `nrprob.engines.optimise.solve.TermFit`) has the
    coefficients of the restart's labels in its first d places, and the derivative of the
    coordination by the clusters' statistics in its last.

    Attributes
    ----------
    features : model of the features
    design : (B, r, d) columns of the models, the first of them 1
    ridge : their penalty
    coordination : cost of clusters pooled over the known structure
    pooled : the rows that it looks at
    weigh : weights (2,) of models and coordination from their leading curvatures (2,)
    count : number of clusters
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
        """Newton steps of the models and memberships in turn; see `model_update`."""
        features, mass, dtype = self.features, rows.mass, rows.mass.dtype
        count = self.count.astype(dtype)
        n_models = n_init * n_clusters
        data = chunk(features, rows, self.design, self.ridge, n_models, self.pooled)
        null = null_model(features, data, mass.reshape(-1) / count)
        weights, critical = leading_curvatures(features, data, self, null, mass, count)
        # The losses of the models have the weight 1.
        term = replace(self.coordination, weight=weights[1])
        update = model_update(features, term)
        active = jnp.arange(n_clusters) < self.count
        start = jnp.where(jnp.tile(active, n_init)[:, None, None], null, 0)

        def finish(coef, w, hard):
            # In float64, as everywhere, so that the best restart is not a matter of rounding.
            wide = {
                name: getattr(data, name).astype(jnp.float64)
                for name in ("y", "design", "penalty", "base")
            }
            exact = data._replace(**wide)
            sums = BlockSums((exact,), hard.astype(jnp.float64))
            coef, losses = converge(features, sums, coef.astype(jnp.float64))
            losses = losses.reshape(hard.shape[2:]).sum(-1)
            losses += (mass.reshape(-1) * exact.base).sum()
            cells = self.pooled.cells(hard)
            coef = jnp.moveaxis(coef, 0, 1)
            coef = coef.reshape(n_init, n_clusters, -1, coef.shape[-1])

            def slope(best):
                own = coef[best, :, : rows.x.n_statistics - 1]
                own = jnp.moveaxis(jnp.pad(own, ((0, 0), (0, 1), (0, 0))), -1, 0)
                last = row_costs((term,), cells)[:, best]
                return jnp.concatenate([own, last.astype(own.dtype)])

            return losses + exact_objective((term,), cells), slope

        return AnnealingProblem(update, (data,), start, critical, weights, 0.0, True, finish)
