"""EM for a Bernoulli mixture with a penalty on the information about known groups."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.hash_rng import fold_in, hashed_noise, hashed_uniform
from nrprob.engines.optimise.iterate import empty_trace, iterate
from nrprob.engines.optimise.power import leading_eigenvalues
from nrprob.engines.optimise.solve import Solution
from nrprob.engines.programs import jit_by_size
from nrprob.methods.cmbc.penalty import Penalty, exact_penalty, penalty_value
from nrprob.methods.cmbc.updates import bounds, coordinate_pass, joint_step, linear, partial_pass
from nrprob.statistics.rows import Rows

CAPACITY = 2048  # steps that a trace may have; the last entry is always that of the last step
_COOLING = 2.0  # ratio of successive temperatures
_NOISE = 1e-3  # of the parameters, at every temperature
_ADAM = 400  # steps of update="exact"
_RATE = 0.05
_NEAR = 0.01  # square of relative differences of memberships below which clusters may yet separate
_SLOW = 1.05  # ratio of the critical temperature to one at which they do so within few steps
_ALIKE = 0.01  # difference of all memberships to 1/K below which the clusters are one


class Numbers(NamedTuple):
    """Numbers that `solve_cmbc` reads.

    Attributes
    ----------
    n_features : features, without the padding
    max_iter : most steps at a temperature
    tol : change of the objective per row below which a temperature has converged
    anneal : whether to begin at the critical temperature; else at 1
    strength : weight of the penalty
    tables : the known structure
    """

    n_features: Any
    max_iter: Any
    tol: Any
    anneal: Any
    strength: Any
    tables: Penalty


class Fit(NamedTuple):
    """What `nrprob.engines.optimise.solve.Solution` adds of the best restart.

    Attributes
    ----------
    slope : (1, K, p) minus the log-likelihood of a row, linearly, in every cluster
    critical_beta : inverse of the temperature below which identical clusters separate
    log_likelihood : in nats
    penalty : P
    theta : (K, p) parameters
    temperature : (steps,) of every entry of the trace
    """

    slope: jax.Array
    critical_beta: jax.Array
    log_likelihood: jax.Array
    penalty: jax.Array
    theta: jax.Array
    temperature: jax.Array


# Pieces of an iteration. theta is (R, K, p), for R restarts.


def allowed(
    fixed: jax.Array | None, k: int, dtype: Any, active: jax.Array | None = None
) -> jax.Array | float:
    """0, or -inf for the clusters that a row cannot belong to: (B, r, 1, K), or (K,).

    Those are the other ones of a labelled row, and those that are padding, 0 in ``active``.
    """
    none = 0.0 if active is None else jnp.where(active > 0, jnp.zeros((), dtype), -jnp.inf)
    if fixed is None:
        return none
    other = (fixed[..., None] >= 0) & (fixed[..., None] != jnp.arange(k))
    return jnp.where(other, -jnp.inf, jnp.zeros((), dtype))[:, :, None] + none


def expectation(
    rows: Rows,
    theta: jax.Array,
    temperature: jax.Array,
    real: jax.Array,
    barred: jax.Array | float,
    log_k: jax.Array | float | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """E-step: free energy per row (R,), statistics per row (R, K, p), and masses (B, r, R, K).

    The free energy at temperature T is the mean of T log((1/K) sum_k p(row given k)^(1/T)), which
    is the mean log-likelihood at T = 1. ``log_k`` is log K, if some clusters of ``theta`` are
    padding.
    """
    log_k = math.log(theta.shape[-2]) if log_k is None else log_k
    score = rows.adjoint(linear(theta, real)[None]) / temperature + barred
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
    """Temperature below which identical clusters separate.

    It is the largest T for which R w = T (I + c R_Z) w, where R is the correlation matrix of the
    features and R_Z, for the chi2 form, the part of it that lies between the values of z.
    """
    dtype = rows.mass.dtype
    n = rows.mass.sum()
    mean = rows.cells(rows.mass[..., None, None])[0, 0, 0] / n
    variance = jnp.where(real, mean * (1 - mean), 0)
    alive = variance > 4 * jnp.finfo(dtype).eps
    deviation = jnp.sqrt(jnp.where(alive, variance, 0))
    scale = jnp.where(alive, 1 / jnp.where(alive, deviation, 1), 0)
    f = jnp.sqrt(strength * tables.spread)[:, None] * tables.differences * deviation
    factor = jnp.linalg.cholesky(jnp.eye(f.shape[0], dtype=dtype) + f @ f.T)

    def correlate(w):
        view = scale * w
        view = view.at[-1].set(-(view * mean).sum())
        e = rows.adjoint(view[None, None, None])
        back = rows.cells(rows.mass[..., None, None] * e)[0, 0, 0]
        return scale * (back - mean * back[-1]) / n

    def apply(w, _):
        r = correlate(w)
        return r - f.T @ jax.scipy.linalg.cho_solve((factor, True), f @ r)

    return leading_eigenvalues(
        apply,
        jnp.where(alive, hashed_noise(fold_in(0, 0), mean.shape, dtype), 0),
        # In which the map is symmetric, I + c R_Z: of w with the image of v it is w R v.
        lambda w, v: (w * v).sum() + (f @ w) @ (f @ v),
        accuracy=1e-9 if dtype == jnp.float64 else 1e-6,
        max_iter=max_iter,
    )


@jit_by_size("n_clusters", "n_init", "update")
def solve_cmbc(
    rows: Rows,
    numbers: Numbers,
    seed: jax.Array,
    fixed: jax.Array | None,
    *,
    n_clusters: int,
    n_init: int,
    update: str,
) -> Solution:
    """Anneal ``n_init`` starts side by side, by expectation maximisation, and keep the best.

    The temperature falls by `_COOLING` from 1.2 times the critical one to 1, and what
    starts is the limit of high temperatures: clusters alike, but for the perturbation. Random
    parameters would not be that: with many features they leave memberships nearly hard, from which
    coordinate updates may need thousands of iterations, or never come back. Without
    ``numbers.anneal``, or where nothing separates above 1, the temperature is 1 and the start
    random. A restart that has converged waits for the others.
    """
    dtype = rows.mass.dtype
    k, p = n_clusters, rows.x.n_statistics
    m, strength, tables = numbers.n_features, numbers.strength, numbers.tables
    n = rows.mass.sum()
    low = bounds(dtype)
    real = jnp.arange(p) < m
    barred, log_k = allowed(fixed, k, dtype, tables.active), tables.log_count(k)
    critical = critical_temperature(rows, tables, strength, real)
    first = jnp.where(numbers.anneal, jnp.maximum(1.2 * critical, 1), 1).astype(dtype)

    def value(theta, free):
        return strength * penalty_value(tables, theta) - free

    def improve(theta, cells, temperature, tol, done):
        if update == "batch":
            return coordinate_pass(theta, cells, tables, strength, m)
        if update == "partial":

            def partial_one(theta):
                theta = theta[None]
                args = rows, theta, temperature, real, barred, tables, strength, m
                return partial_pass(*args)[0]

            # One by one: what a visit touches stays in the cache, and what is done costs nothing.
            return jax.lax.map(
                lambda one: jax.lax.cond(one[1], lambda t: t, partial_one, one[0]), (theta, done)
            )
        step = partial(joint_step, tables=tables, strength=strength, real=real, tol=1e-3 * tol)
        return jax.vmap(step)(theta, cells)

    def on_saddle(theta, temperature):
        # Clusters that are nearly alike, where they separate: objectives of few digits do not show
        # it yet, since they gain by the square of how far memberships are apart.
        mean = tables.mean(theta, -2)[:, None]
        square = (theta - mean) ** 2 / (mean * (1 - mean))
        if tables.active is not None:
            square = square * tables.active[:, None]
        near = (square.sum(-1) / temperature**2).max(-1) < _NEAR
        return near & (tables.count(k) > 1) & (temperature < critical / _SLOW)

    def level(carry):
        temperature, index, theta, _, count, trace = carry
        noise = _NOISE * hashed_noise(fold_in(fold_in(seed, 2), index), theta.shape, dtype)
        theta = jnp.clip(theta + jnp.where(real, noise, 0), low, 1 - low)
        last = temperature <= 1
        tol = jnp.where(last, 1e-2, 1) * numbers.tol
        limit = count + jnp.where(last, 10, 1) * numbers.max_iter

        def move(state, _):
            theta, cells, old, done = state
            new = improve(theta, cells, temperature, tol, done)
            theta = jnp.where(done[:, None, None], theta, new)
            free, cells, _ = expectation(rows, theta, temperature, real, barred, log_k)
            reached = value(theta, free)
            change, rounding = jnp.abs(old - reached), 16 * jnp.finfo(dtype).eps * jnp.abs(reached)
            stays = (rounding > tol) & on_saddle(theta, temperature)
            done = done | ((change <= jnp.maximum(tol, rounding)) & ~stays)
            return (theta, cells, reached, done), done, (n * reached, temperature)

        free, cells, _ = expectation(rows, theta, temperature, real, barred, log_k)
        state = theta, cells, value(theta, free), none
        result = iterate(move, state, limit, done=none, count=count, trace=trace)
        cooler = jnp.where(last, 0, jnp.maximum(temperature / _COOLING, 1))
        return cooler, index + 1, result.state[0], result.done, result.n_iter, result.trace

    start = 0.05 + 0.9 * hashed_uniform(fold_in(seed, 1), (n_init, k, p), dtype)
    alike = rows.cells(rows.mass[..., None, None])[0, 0, 0] / n
    start = jnp.where(real, jnp.where(first > 1, alike, start), 0.5)
    none, count = jnp.zeros(n_init, bool), jnp.zeros((), jnp.int32)
    room = empty_trace(CAPACITY, dtype, n_init), empty_trace(CAPACITY, dtype)
    carry = first, 0, start, none, count, room
    carry = jax.lax.while_loop(lambda carry: carry[0] > 0, level, carry)
    _, _, theta, done, count, (trace, at) = carry
    if update == "exact":
        theta, trace = _ascend(rows, theta, tables, strength, m, real, barred)
        trace, count = n * trace, count + _ADAM
        at = jnp.where(jnp.arange(CAPACITY) <= _ADAM, 1, jnp.nan).astype(dtype)
    return _evaluate(rows, theta, numbers, barred, done, count, trace, at, critical, update)


def _ascend(rows, theta, tables, strength, m, real, barred):
    """Minimise the objective with I(C;Z) itself by Adam on the logits, and keep the best seen."""
    import optax

    dtype = theta.dtype
    width, low = theta.shape[1], bounds(dtype)
    k, log_k = tables.count(width), tables.log_count(width)
    adam = optax.scale_by_adam()

    def parameters(logits):
        return jnp.clip(jax.nn.sigmoid(logits), low, 1 - low)

    def step(i, carry):
        logits, state, best, lowest, trace = carry
        theta = jnp.where(i == 0, best, parameters(logits))
        free, cells, _ = expectation(rows, theta, jnp.ones((), dtype), real, barred, log_k)
        information, slope = exact_penalty(tables, theta, m)
        reached = strength * information - free
        better = reached < lowest
        best = jnp.where(better[:, None, None], theta, best)
        lowest = jnp.where(better, reached, lowest)
        g = cells[..., -1:] * theta - cells + strength / k * theta * (1 - theta) * slope
        change, state = adam.update(jnp.where(real, g, 0), state)
        rate = (0.5 * _RATE) * (1 + jnp.cos(jnp.pi * i / _ADAM)).astype(dtype)
        return logits - rate * change, state, best, lowest, trace.at[i].set(reached)

    logits = jnp.log(theta) - jnp.log1p(-theta)
    trace = jnp.full((CAPACITY, theta.shape[0]), jnp.nan, dtype)
    worst = jnp.full(theta.shape[0], jnp.inf, dtype)
    carry = logits, adam.init(logits), theta, worst, trace
    carry = jax.lax.fori_loop(0, _ADAM + 1, step, carry)
    return carry[2], carry[4]


def _evaluate(rows, theta, numbers, barred, done, count, trace, at, critical, update):
    """Evaluate all restarts and keep what is needed of the best."""
    m, strength = numbers.n_features, numbers.strength.astype(jnp.float64)
    tables = numbers.tables
    k = tables.count(theta.shape[1])
    real = jnp.arange(rows.x.n_statistics) < m
    # Clusters that no row can tell apart are one; else their labels would be the last rounding.
    w = expectation(rows, theta, jnp.ones((), theta.dtype), real, barred)[2]
    apart = jnp.abs(w - rows.mass[..., None, None] / k)
    if tables.active is not None:
        apart = apart * tables.active
    alike = apart.max((0, 1, 3)) < _ALIKE * rows.mass.max()
    theta = jnp.where(alike[:, None, None], tables.mean(theta, -2)[:, None], theta)
    coefficients = linear(theta, real)
    score = rows.adjoint(coefficients[None]) + barred
    wide = score.astype(jnp.float64)
    tables = tables.astype(jnp.float64)
    log_p = jax.nn.logsumexp(wide, -1) - tables.log_count(theta.shape[1])
    likelihood = (rows.mass.astype(jnp.float64)[..., None] * log_p).sum((0, 1))
    if update == "exact":
        penalty = exact_penalty(tables, theta.astype(jnp.float64), m)[0]
    else:
        penalty = penalty_value(tables, theta.astype(jnp.float64))
    objective = rows.mass.sum() * strength * penalty - likelihood
    best = objective.argmin()
    own = jax.lax.dynamic_index_in_dim(score, best, 2, keepdims=False)
    return Solution(
        score.argmax(-1).astype(jnp.int32),
        objective,
        done,
        count,
        rows.mass[..., None] * jax.nn.softmax(own, -1),
        trace[:, best],
        Fit(
            -coefficients[best][None],
            jnp.where(critical > 0, 1 / jnp.maximum(critical, 1e-30), jnp.inf),
            likelihood[best],
            penalty[best] / m.astype(jnp.float64) ** 2,
            theta[best],
            at,
        ),
    )
