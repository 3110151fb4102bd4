"""Annealed EM for a Bernoulli mixture with a penalty on the information about known groups.

Sizes: B blocks of r rows, p statistics of a row (the features, padding, and 1), K clusters, R
restarts.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.hash_rng import fold_in, hashed_noise, hashed_uniform
from nrprob.engines.optimise.iterate import empty_trace, iterate
from nrprob.engines.optimise.power_iteration import leading_eigenvalues
from nrprob.engines.optimise.solve import Solution
from nrprob.engines.programs import jit_by_size
from nrprob.methods.cmbc.penalty import Penalty, exact_penalty, penalty_value
from nrprob.methods.cmbc.updates import (
    coordinate_pass,
    joint_step,
    log_likelihood_coefficients,
    parameter_bound,
    partial_pass,
)
from nrprob.statistics.rows import Rows

CAPACITY = 2048  # maximum length of a trace; its last entry always belongs to the last step
_COOLING = 2.0  # ratio of successive temperatures
_NOISE = 1e-3  # relative perturbation of the parameters at every temperature
_ADAM_STEPS = 400  # Adam steps of update="exact"
_ADAM_RATE = 0.05
# Nearly equal clusters may still separate if their squared relative distance is below the first
# number, and if the critical temperature exceeds the temperature by more than the second factor.
_SADDLE_DISTANCE = 0.01
_SADDLE_TEMPERATURE = 1.05
_EQUAL_MEMBERSHIPS = 0.01  # clusters whose memberships differ from 1/K by less are merged


class CMBCParameters(NamedTuple):
    """Settings of `solve_cmbc`. JAX traces all of them, so new values need no compilation.

    Attributes
    ----------
    n_features : number of features, without padding
    max_iter : maximum number of EM iterations per temperature
    tol : convergence tolerance of the objective per row
    anneal : whether to begin above the critical temperature; else at temperature 1
    strength : penalty weight c
    tables : the penalty, as arrays
    """

    n_features: Any
    max_iter: Any
    tol: Any
    anneal: Any
    strength: Any
    tables: Penalty


class Fit(NamedTuple):
    """Estimates of the best restart, in addition to `nrprob.engines.optimise.solve.Solution`.

    Attributes
    ----------
    slope : (1, K, p) coefficients; the inner product with the statistics of a row is minus the log
        likelihood of the row in every cluster
    critical_beta : inverse of the critical temperature
    log_likelihood : log likelihood in nats
    penalty : penalty P
    theta : (K, p) probabilities of the features in the clusters
    temperature : (steps,) temperature of each entry of the trace
    """

    slope: jax.Array
    critical_beta: jax.Array
    log_likelihood: jax.Array
    penalty: jax.Array
    theta: jax.Array
    temperature: jax.Array


# Steps of an iteration. theta has shape (R, K, p) for R restarts.


def membership_mask(
    fixed: jax.Array | None, k: int, dtype: Any, active: jax.Array | None = None
) -> jax.Array | float:
    """Mask that is added to log memberships: -inf for excluded clusters, else 0.

    Padding clusters, which have 0 in ``active`` (K,), are excluded. For a labelled row, all
    clusters except its class in ``fixed`` (B, r) are also excluded. The mask has the shape
    (B, r, 1, K), or (K,) if ``fixed`` is None. If ``active`` is None as well, the mask is the
    number 0.
    """
    none = 0.0 if active is None else jnp.where(active > 0, jnp.zeros((), dtype), -jnp.inf)
    if fixed is None:
        return none
    is_other = (fixed[..., None] >= 0) & (fixed[..., None] != jnp.arange(k))
    return jnp.where(is_other, -jnp.inf, jnp.zeros((), dtype))[:, :, None] + none


def e_step(
    rows: Rows,
    theta: jax.Array,
    temperature: jax.Array,
    real: jax.Array,
    barred: jax.Array | float,
    log_k: jax.Array | float | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """E-step of all restarts.

    Parameters
    ----------
    rows : the rows
    theta : (R, K, p) probabilities of the features in the clusters
    temperature : temperature T
    real : (p,) whether a statistic is a feature
    barred : mask from `membership_mask`
    log_k : logarithm of the number of clusters without padding; by default log K

    Returns
    -------
    free : (R,) negative free energy per row, the mean of T log((1/K) sum_k p(row | k)^(1/T)); at
        T = 1, it is the mean log likelihood
    cells : (R, K, p) sums of the statistics over the rows of every cluster, divided by the total
        mass of the rows
    w : (B, r, R, K) memberships times masses of the rows
    """
    log_k = math.log(theta.shape[-2]) if log_k is None else log_k
    score = rows.adjoint(log_likelihood_coefficients(theta, real)[None]) / temperature + barred
    top = score.max(-1, keepdims=True)
    e = jnp.exp(score - top)
    total = e.sum(-1, keepdims=True)
    log_sum = (top + jnp.log(total))[..., 0] - log_k
    w = e * (rows.mass[..., None, None] / total)
    n = rows.mass.sum()
    free = temperature * (rows.mass[..., None] * log_sum).sum((0, 1)) / n
    return free, rows.cells(w)[0] / n, w


def critical_temperature(
    rows: Rows, tables: Penalty, strength: jax.Array, real: jax.Array, max_iter: int = 300
) -> jax.Array:
    """Critical temperature, below which identical clusters separate.

    The critical temperature is the largest generalised eigenvalue T, with Q w = T (I + c Q_Z) w for
    a vector w. Here Q is the correlation matrix of the features, and c the ``strength``. Q_Z
    follows from the weights u and the differences D of `Penalty`; for the form "chi2", Q_Z is the
    part of Q between the known groups. ``real`` (p,) states whether a statistic is a feature.
    """
    dtype = rows.mass.dtype
    n = rows.mass.sum()
    # Means and standard deviations of the features; constant features are excluded.
    mean = rows.cells(rows.mass[..., None, None])[0, 0, 0] / n
    variance = jnp.where(real, mean * (1 - mean), 0)
    alive = variance > 4 * jnp.finfo(dtype).eps
    deviation = jnp.sqrt(jnp.where(alive, variance, 0))
    scale = jnp.where(alive, 1 / jnp.where(alive, deviation, 1), 0)
    # I + c R_Z = I + f' f, inverted by Woodbury's identity.
    f = jnp.sqrt(strength * tables.spread)[:, None] * tables.differences * deviation
    factor = jnp.linalg.cholesky(jnp.eye(f.shape[0], dtype=dtype) + f @ f.T)

    def apply_correlation(w):
        view = scale * w
        view = view.at[-1].set(-(view * mean).sum())
        e = rows.adjoint(view[None, None, None])
        back = rows.cells(rows.mass[..., None, None] * e)[0, 0, 0]
        return scale * (back - mean * back[-1]) / n

    def apply_linear_map(w, _):
        r = apply_correlation(w)
        return r - f.T @ jax.scipy.linalg.cho_solve((factor, True), f @ r)

    return leading_eigenvalues(
        apply_linear_map,
        jnp.where(alive, hashed_noise(fold_in(0, 0), mean.shape, dtype), 0),
        # Inner product I + c R_Z, in which the map is symmetric.
        lambda w, v: (w * v).sum() + (f @ w) @ (f @ v),
        accuracy=1e-9 if dtype == jnp.float64 else 1e-6,
        max_iter=max_iter,
    )


@jit_by_size("n_clusters", "n_init", "update")
def solve_cmbc(
    rows: Rows,
    settings: CMBCParameters,
    seed: jax.Array,
    fixed: jax.Array | None,
    *,
    n_clusters: int,
    n_init: int,
    update: str,
) -> Solution:
    """Run ``n_init`` restarts of annealed EM in one batch, and return the best.

    The temperature falls from 1.2 times the critical temperature to 1; every level is half the
    previous one. All clusters start at the means of the features, the limit of high temperatures,
    with a perturbation. Random initial parameters would give nearly hard memberships for many
    features, from which coordinate updates may need thousands of iterations. Without
    ``settings.anneal``, or with a critical temperature below 1 / 1.2, the temperature is 1 and the
    initial parameters are random. Converged restarts stay unchanged until all restarts have
    converged.
    """
    dtype = rows.mass.dtype
    k, p = n_clusters, rows.x.n_statistics
    m, strength, tables = settings.n_features, settings.strength, settings.tables
    n = rows.mass.sum()
    low = parameter_bound(dtype)
    real = jnp.arange(p) < m
    barred, log_k = membership_mask(fixed, k, dtype, tables.active), tables.log_cluster_count(k)
    critical = critical_temperature(rows, tables, strength, real)
    first = jnp.where(settings.anneal, jnp.maximum(1.2 * critical, 1), 1).astype(dtype)

    def penalised_objective(theta, free):
        return strength * penalty_value(tables, theta) - free

    def m_step(theta, cells, temperature, tol, done):
        if update == "batch":
            return coordinate_pass(theta, cells, tables, strength, m)
        if update == "partial":

            def partial_one(theta):
                theta = theta[None]
                args = rows, theta, temperature, real, barred, tables, strength, m
                return partial_pass(*args)[0]

            # Run restarts one after another: this uses the cache better, and skips converged ones.
            return jax.lax.map(
                lambda restart: jax.lax.cond(restart[1], lambda t: t, partial_one, restart[0]),
                (theta, done),
            )
        step = partial(joint_step, tables=tables, strength=strength, real=real, tol=1e-3 * tol)
        return jax.vmap(step)(theta, cells)

    def on_saddle(theta, temperature):
        # Nearly identical clusters below the critical temperature still separate. Rounding can hide
        # the change of the objective, which is quadratic in the difference of memberships.
        mean = tables.cluster_mean(theta, -2)[:, None]
        square = (theta - mean) ** 2 / (mean * (1 - mean))
        if tables.active is not None:
            square = square * tables.active[:, None]
        near = (square.sum(-1) / temperature**2).max(-1) < _SADDLE_DISTANCE
        return near & (tables.cluster_count(k) > 1) & (temperature < critical / _SADDLE_TEMPERATURE)

    def anneal_level(carry):
        temperature, index, theta, _, count, trace = carry
        noise = _NOISE * hashed_noise(fold_in(fold_in(seed, 2), index), theta.shape, dtype)
        theta = jnp.clip(theta + jnp.where(real, noise, 0), low, 1 - low)
        last = temperature <= 1
        tol = jnp.where(last, 1e-2, 1) * settings.tol
        limit = count + jnp.where(last, 10, 1) * settings.max_iter

        def em_iteration(state, _):
            theta, cells, old, done = state
            new = m_step(theta, cells, temperature, tol, done)
            theta = jnp.where(done[:, None, None], theta, new)
            free, cells, _ = e_step(rows, theta, temperature, real, barred, log_k)
            objective = penalised_objective(theta, free)
            change = jnp.abs(old - objective)
            rounding = 16 * jnp.finfo(dtype).eps * jnp.abs(objective)
            stays = (rounding > tol) & on_saddle(theta, temperature)
            done = done | ((change <= jnp.maximum(tol, rounding)) & ~stays)
            return (theta, cells, objective, done), done, (n * objective, temperature)

        free, cells, _ = e_step(rows, theta, temperature, real, barred, log_k)
        state = theta, cells, penalised_objective(theta, free), not_done
        result = iterate(em_iteration, state, limit, done=not_done, count=count, trace=trace)
        cooler = jnp.where(last, 0, jnp.maximum(temperature / _COOLING, 1))
        return cooler, index + 1, result.state[0], result.done, result.n_iter, result.trace

    # Initial values: the means of the features, or random parameters without annealing.
    start = 0.05 + 0.9 * hashed_uniform(fold_in(seed, 1), (n_init, k, p), dtype)
    marginal = rows.cells(rows.mass[..., None, None])[0, 0, 0] / n
    start = jnp.where(real, jnp.where(first > 1, marginal, start), 0.5)
    not_done, count = jnp.zeros(n_init, bool), jnp.zeros((), jnp.int32)
    traces = empty_trace(CAPACITY, dtype, n_init), empty_trace(CAPACITY, dtype)
    carry = first, 0, start, not_done, count, traces
    carry = jax.lax.while_loop(lambda carry: carry[0] > 0, anneal_level, carry)
    _, _, theta, done, count, (trace, temperatures) = carry
    if update == "exact":
        theta, trace = _minimise_exact(rows, theta, tables, strength, m, real, barred)
        trace, count = n * trace, count + _ADAM_STEPS
        temperatures = jnp.where(jnp.arange(CAPACITY) <= _ADAM_STEPS, 1, jnp.nan).astype(dtype)
    return _evaluate_restarts(
        rows, theta, settings, barred, done, count, trace, temperatures, critical, update
    )


def _minimise_exact(rows, theta, tables, strength, m, real, barred):
    """Minimise the objective with the exact I(C;Z) by Adam on the logits of theta.

    ``theta`` (R, K, p) are initial values, and the other arguments are as in `e_step` and
    `coordinate_pass`. The function returns the parameters (R, K, p) of the smallest objective of
    every restart, and the trace of the objectives (2048, R).
    """
    import optax

    dtype = theta.dtype
    width, low = theta.shape[1], parameter_bound(dtype)
    k, log_k = tables.cluster_count(width), tables.log_cluster_count(width)
    adam = optax.scale_by_adam()

    def clipped_parameters(logits):
        return jnp.clip(jax.nn.sigmoid(logits), low, 1 - low)

    def step(i, carry):
        logits, state, best, lowest, trace = carry
        theta = jnp.where(i == 0, best, clipped_parameters(logits))
        free, cells, _ = e_step(rows, theta, jnp.ones((), dtype), real, barred, log_k)
        information, slope = exact_penalty(tables, theta, m)
        objective = strength * information - free
        better = objective < lowest
        best = jnp.where(better[:, None, None], theta, best)
        lowest = jnp.where(better, objective, lowest)
        # Gradient with respect to the logits, and an Adam step.
        g = cells[..., -1:] * theta - cells + strength / k * theta * (1 - theta) * slope
        change, state = adam.update(jnp.where(real, g, 0), state)
        # Cosine decay of the learning rate.
        rate = (0.5 * _ADAM_RATE) * (1 + jnp.cos(jnp.pi * i / _ADAM_STEPS)).astype(dtype)
        return logits - rate * change, state, best, lowest, trace.at[i].set(objective)

    logits = jnp.log(theta) - jnp.log1p(-theta)
    trace = jnp.full((CAPACITY, theta.shape[0]), jnp.nan, dtype)
    worst = jnp.full(theta.shape[0], jnp.inf, dtype)
    carry = logits, adam.init(logits), theta, worst, trace
    carry = jax.lax.fori_loop(0, _ADAM_STEPS + 1, step, carry)
    return carry[2], carry[4]


def _evaluate_restarts(
    rows, theta, settings, barred, done, count, trace, temperatures, critical, update
):
    """Evaluate the objectives of all restarts in float64, and return the best restart.

    The arguments are the results of the annealing in `solve_cmbc`.
    """
    m, strength = settings.n_features, settings.strength.astype(jnp.float64)
    tables = settings.tables
    k = tables.cluster_count(theta.shape[1])
    real = jnp.arange(rows.x.n_statistics) < m
    # Merge clusters that have equal memberships; rounding would decide their labels.
    w = e_step(rows, theta, jnp.ones((), theta.dtype), real, barred)[2]
    deviation = jnp.abs(w - rows.mass[..., None, None] / k)
    if tables.active is not None:
        deviation = deviation * tables.active
    is_collapsed = deviation.max((0, 1, 3)) < _EQUAL_MEMBERSHIPS * rows.mass.max()
    theta = jnp.where(is_collapsed[:, None, None], tables.cluster_mean(theta, -2)[:, None], theta)
    # Log likelihood, penalty and objective of all restarts.
    coefficients = log_likelihood_coefficients(theta, real)
    score = rows.adjoint(coefficients[None]) + barred
    wide = score.astype(jnp.float64)
    tables = tables.astype(jnp.float64)
    log_p = jax.nn.logsumexp(wide, -1) - tables.log_cluster_count(theta.shape[1])
    likelihood = (rows.mass.astype(jnp.float64)[..., None] * log_p).sum((0, 1))
    if update == "exact":
        penalty = exact_penalty(tables, theta.astype(jnp.float64), m)[0]
    else:
        penalty = penalty_value(tables, theta.astype(jnp.float64))
    objective = rows.mass.sum() * strength * penalty - likelihood
    best = objective.argmin()
    best_score = jax.lax.dynamic_index_in_dim(score, best, 2, keepdims=False)
    return Solution(
        score.argmax(-1).astype(jnp.int32),
        objective,
        done,
        count,
        rows.mass[..., None] * jax.nn.softmax(best_score, -1),
        trace[:, best],
        Fit(
            -coefficients[best][None],
            jnp.where(critical > 0, 1 / jnp.maximum(critical, 1e-30), jnp.inf),
            likelihood[best],
            penalty[best] / m.astype(jnp.float64) ** 2,
            theta[best],
            temperatures,
        ),
    )
