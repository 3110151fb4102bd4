"""Expectation maximisation of a Bernoulli mixture that pays for telling of the known structure."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.iterate import blank, iterate
from nrprob.engines.power import leading_eigenvalues
from nrprob.engines.shuffle import spread, stream, uniform
from nrprob.engines.solve import Solution
from nrprob.methods.cmbc.penalty import (
    Penalty,
    exact_penalty,
    penalty_slope,
    penalty_value,
)
from nrprob.statistics.rows import Dense, Rows

UPDATES = ("joint", "batch", "partial", "exact")

CAPACITY = 2048  # steps that a trace may have; the last entry is always that of the last step
_COOLING = 2.0  # ratio of successive temperatures
_NOISE = 1e-3  # of the parameters, at every temperature
_NEWTON = 20  # steps of one joint M-step
_ADAM = 400  # steps of update="exact"
_RATE = 0.05
_EMPTY = 1e-8  # share of the rows below which a cluster keeps its parameters
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
    """What `nrprob.engines.solve.Solution` adds of the best restart.

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


def bounds(dtype: Any) -> float:
    """Distance of the parameters from 0 and 1."""
    return 1e-6 if dtype == jnp.float32 else 1e-10


def linear(theta: jax.Array, real: jax.Array) -> jax.Array:
    """Coefficients (..., K, p) of the log-likelihood of a row, the constant being the last."""
    rest = jnp.where(real, jnp.log1p(-theta), 0)
    coefficients = jnp.where(real, jnp.log(theta), 0) - rest
    return coefficients.at[..., -1].set(rest.sum(-1))


def allowed(fixed: jax.Array | None, k: int, dtype: Any) -> jax.Array | float:
    """0, or -inf for the clusters that a labelled row cannot belong to: (B, r, 1, K)."""
    if fixed is None:
        return 0.0
    other = (fixed[..., None] >= 0) & (fixed[..., None] != jnp.arange(k))
    return jnp.where(other, -jnp.inf, jnp.zeros((), dtype))[:, :, None]


def expectation(
    rows: Rows,
    theta: jax.Array,
    temperature: jax.Array,
    real: jax.Array,
    barred: jax.Array | float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """E-step: free energy per row (R,), statistics per row (R, K, p), and masses (B, r, R, K).

    The free energy at temperature T is the mean of T log((1/K) sum_k p(row given k)^(1/T)), which
    is the mean log-likelihood at T = 1.
    """
    k = theta.shape[-2]
    score = rows.adjoint(linear(theta, real)[None]) / temperature + barred
    top = score.max(-1, keepdims=True)
    e = jnp.exp(score - top)
    total = e.sum(-1, keepdims=True)
    log_sum = (top + jnp.log(total))[..., 0] - math.log(k)
    w = e * (rows.mass[..., None, None] / total)
    n = rows.mass.sum()
    free = temperature * (rows.mass[..., None] * log_sum).sum((0, 1)) / n
    return free, rows.cells(w)[0] / n, w


def maximiser(a: jax.Array, b: jax.Array, n: jax.Array, s: jax.Array, low: float) -> jax.Array:
    """Root in (low, 1 - low) of a t^3 + (b - a) t^2 - (n + b) t + s.

    The polynomial is t (1 - t) times the derivative of a strictly concave function of t. Bisection
    does not mind that a vanishes with features that know nothing of z, as a closed form would. It
    tries three points at once, which a processor does in the time of one; and a step of Newton's
    method, within what bisection leaves, doubles the digits.
    """
    shape = jnp.broadcast_shapes(*(jnp.shape(v) for v in (a, b, n, s)))
    left = jnp.full(shape, low, jnp.result_type(s))
    steps = 7 if left.dtype == jnp.float32 else 13

    # A loop: unrolled, every step writes out the one before once for each of its uses where a
    # compiler fuses them all, which took JAX 0.12 more memory than there is.
    def bisect(step, left):
        width = (1 - 2 * low) * jnp.asarray(0.25, left.dtype) ** (step + 1)
        for t in [left + i * width for i in (1, 2, 3)]:
            rising = ((a * t + (b - a)) * t - (n + b)) * t + s > 0
            left = left + jnp.where(rising, width, 0)
        return left

    left = jax.lax.fori_loop(0, steps, bisect, left)
    width = (1 - 2 * low) * 0.25**steps
    t = left + 0.5 * width
    value = ((a * t + (b - a)) * t - (n + b)) * t + s
    slope = jnp.minimum((3 * a * t + 2 * (b - a)) * t - (n + b), -1e-30)
    return jnp.clip(t - value / slope, left, jnp.minimum(left + width, 1 - low))


class _Visits:
    """What coordinate updates share: one parameter after another, features outermost."""

    def __init__(self, tables: Penalty, strength: jax.Array, k: int):
        self.k = k
        self.d = tables.differences.T
        self.u, self.v = self.d * tables.spread, self.d * tables.centre
        self.offset = tables.offset
        self.strength = strength / k
        own = (self.u * self.d).sum(1) * (1 - 1 / k) + (self.v * self.d).sum(1) / k
        self.curvature = self.strength * own

    def flat(self, values: jax.Array) -> jax.Array:
        """(R, K, p) in the order of the visits: (p K, R)."""
        return jnp.moveaxis(values, 0, 2).swapaxes(0, 1).reshape(-1, values.shape[0])

    def back(self, flat: jax.Array) -> jax.Array:
        """Undo `flat`."""
        return jnp.moveaxis(flat.reshape(-1, self.k, flat.shape[-1]).swapaxes(0, 1), 2, 0)

    def pull(self, theta: jax.Array) -> jax.Array:
        """E, as (K, R, S)."""
        return jnp.moveaxis(theta @ self.d, 0, 1)

    def visit(self, i, t, e, n, s):
        """New value (R,) of parameter ``i``, now ``t``, and what follows for ``e``."""
        j, k = i // self.k, i % self.k
        mine, mean = e[k], e.mean(0)
        slope = ((mine - mean) * self.u[j] + (self.offset + mean) * self.v[j]).sum(-1)
        a = self.curvature[j]
        new = maximiser(a, self.strength * slope - a * t, n, s, bounds(t.dtype))
        # Kept from being computed once more for each of its uses.
        new = jax.lax.optimization_barrier(jnp.where(n > _EMPTY, new, t))
        return new, put(e, k, mine + (new - t)[:, None] * self.d[j])


def put(array: jax.Array, i: jax.Array, values: jax.Array) -> jax.Array:
    """``array`` with ``values`` at index i, in place within a loop."""
    return jax.lax.dynamic_update_index_in_dim(array, values, i, 0)


def coordinate_pass(
    theta: jax.Array, cells: jax.Array, tables: Penalty, strength: jax.Array, m: jax.Array
) -> jax.Array:
    """Gauss-Seidel pass: every parameter at its best, given the memberships and the others."""
    visits = _Visits(tables, strength, theta.shape[1])
    k = visits.k
    old, s, n = visits.flat(theta), visits.flat(cells), cells[..., -1].T

    def visit(i, carry):
        # Parameters are read from the old ones: a loop that reads what it writes copies it.
        flat, e = carry
        new, e = visits.visit(i, old[i], e, n[i % k], s[i])
        return put(flat, i, new), e

    return visits.back(jax.lax.fori_loop(0, m * k, visit, (old, visits.pull(theta)))[0])


def partial_pass(
    rows: Rows,
    theta: jax.Array,
    temperature: jax.Array,
    real: jax.Array,
    barred: jax.Array | float,
    tables: Penalty,
    strength: jax.Array,
    m: jax.Array,
) -> jax.Array:
    """One pass over the parameters, with new memberships before every one of them.

    Features are 0 or 1, so a new parameter multiplies its cluster's share of a row by one of two
    numbers. Shares are taken from the log-likelihoods again so often that none leaves the range
    of numbers in between.
    """
    visits = _Visits(tables, strength, theta.shape[1])
    k = visits.k
    assert isinstance(rows.x, Dense)
    columns = rows.x.x.reshape(-1, rows.x.n_statistics).T
    mass = rows.mass.reshape(-1)
    mass = mass / mass.sum()
    score = rows.adjoint(linear(theta, real)[None]) / temperature + barred
    score = jnp.moveaxis(score.reshape(mass.size, *score.shape[2:]), 0, -1).swapaxes(0, 1)
    old = visits.flat(theta)
    several = 2 * k if theta.dtype == jnp.float32 else 8 * k  # visits; one is a factor of 1 / low

    def visit(i, carry):
        flat, e, score, share = carry
        y, at = columns[i // k], i % k
        q = mass * share[at] / share.sum(0)
        t = old[i]
        new, e = visits.visit(i, t, e, q.sum(-1), q @ y)
        rest = (jnp.log1p(-new) - jnp.log1p(-t)) / temperature
        one = (jnp.log(new) - jnp.log(t)) / temperature
        is_one = y > 0.5
        change = jnp.where(is_one, one[:, None], rest[:, None])
        factor = jnp.where(is_one, jnp.exp(one)[:, None], jnp.exp(rest)[:, None])
        return put(flat, i, new), e, score.at[at].add(change), share.at[at].multiply(factor)

    def some(j, carry):
        flat, e, score = carry
        share = jnp.exp(score - score.max(0))
        end = jnp.minimum((j + 1) * several, m * k)
        return jax.lax.fori_loop(j * several, end, visit, (flat, e, score, share))[:3]

    carry = old, visits.pull(theta), score
    n_parts = (m * k + several - 1) // several
    return visits.back(jax.lax.fori_loop(0, n_parts, some, carry)[0])


def joint_step(
    theta: jax.Array,
    cells: jax.Array,
    tables: Penalty,
    strength: jax.Array,
    real: jax.Array,
    tol: jax.Array,
) -> jax.Array:
    """All parameters (K, p) of one restart at their joint best, given the memberships.

    Damped Newton on a concave function. Its Hessian is diagonal plus one of rank K S, so that a
    step takes the solution of K S equations. Parameters at a bound that want to leave the box
    stay; the others come no nearer to 0 or 1 than by a factor of 20 in one step.
    """
    k, dtype = theta.shape[0], theta.dtype
    d = tables.differences
    low = jnp.asarray(bounds(dtype), dtype)
    share = cells[:, -1:]
    s = jnp.clip(cells, 0, share)
    f = share - s
    moves = real & (share > _EMPTY)
    weight = strength / k

    def value(theta):
        likely = jnp.where(real, s * jnp.log(theta) + f * jnp.log1p(-theta), 0).sum()
        return likely - strength * penalty_value(tables, theta)

    # Root of the penalty's Hessian between (cluster, z) cells; it is diagonal in z.
    apart = jnp.eye(k, dtype=dtype) - 1 / k
    root = apart[..., None] * jnp.sqrt(tables.spread) + jnp.sqrt(tables.centre) / k
    root = jnp.sqrt(weight) * root

    def step(carry):
        theta, old, length, _, count = carry
        g = s / theta - f / (1 - theta) - weight * penalty_slope(tables, theta)
        stuck = ((theta <= low) & (g < 0)) | ((theta >= 1 - low) & (g > 0))
        h = s / theta**2 + f / (1 - theta) ** 2
        free = moves & ~stuck
        inverse = jnp.where(free, 1 / jnp.where(free, h, 1), 0)
        x = inverse * g
        inner = jnp.einsum("kp,zp,yp->kzy", inverse, d, d)
        inner = jnp.einsum("kmz,mzy,mly->kzly", root, inner, root)
        inner = inner.reshape(root.shape[0] * root.shape[2], -1)
        factor = jnp.linalg.cholesky(inner + jnp.eye(inner.shape[0], dtype=dtype))
        right = jnp.einsum("klz,lz->kz", root, x @ d.T).reshape(-1)
        solved = jax.scipy.linalg.cho_solve((factor, True), right).reshape(k, -1)
        x = x - inverse * (jnp.einsum("klz,lz->kz", root, solved) @ d)
        decrement = jnp.where(free, g * x, 0).sum()
        trial = jnp.clip(
            theta + length * x,
            jnp.maximum(low, 0.05 * theta),
            jnp.minimum(1 - low, 1 - 0.05 * (1 - theta)),
        )
        trial = jnp.where(free, trial, theta)
        new = value(trial)
        gain = jnp.maximum(0.1 * (g * (trial - theta)).sum(), 0)
        better = new >= old + gain - 4 * jnp.finfo(dtype).eps * jnp.abs(old)
        theta = jnp.where(better, trial, theta)
        old = jnp.where(better, new, old)
        length = jnp.where(better, jnp.minimum(1, 4 * length), length / 2)
        return theta, old, length, decrement, count + 1

    def moving(carry):
        return (carry[-1] < _NEWTON) & (carry[-2] > tol)

    # Without a penalty this is the solution; with one it may be nearer than the last parameters.
    plain = jnp.clip(s / jnp.where(share > _EMPTY, share, 1), low, 1 - low)
    plain = jnp.where(moves, plain, theta)
    here, there = value(theta), value(plain)
    theta = jnp.where(there > here, plain, theta)
    infinite = jnp.asarray(jnp.inf, dtype)
    start = theta, jnp.maximum(here, there), jnp.ones((), dtype), infinite, 0
    return jax.lax.while_loop(moving, step, start)[0]


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
        jnp.where(alive, spread(stream(0, 0), mean.shape, dtype), 0),
        # In which the map is symmetric, I + c R_Z: of w with the image of v it is w R v.
        lambda w, v: (w * v).sum() + (f @ w) @ (f @ v),
        accuracy=1e-9 if dtype == jnp.float64 else 1e-6,
        max_iter=max_iter,
    )


@partial(jax.jit, static_argnames=("n_clusters", "n_init", "update"))
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
    barred = allowed(fixed, k, dtype)
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

    def level(carry):
        temperature, index, theta, _, count, trace = carry
        noise = _NOISE * spread(stream(stream(seed, 2), index), theta.shape, dtype)
        theta = jnp.clip(theta + jnp.where(real, noise, 0), low, 1 - low)
        last = temperature <= 1
        tol = jnp.where(last, 1e-2, 1) * numbers.tol
        limit = count + jnp.where(last, 10, 1) * numbers.max_iter

        def move(state, _):
            theta, cells, old, done = state
            new = improve(theta, cells, temperature, tol, done)
            theta = jnp.where(done[:, None, None], theta, new)
            free, cells, _ = expectation(rows, theta, temperature, real, barred)
            reached = value(theta, free)
            rounding = 16 * jnp.finfo(dtype).eps * jnp.abs(reached)
            done = done | (jnp.abs(old - reached) <= jnp.maximum(tol, rounding))
            return (theta, cells, reached, done), done, (n * reached, temperature)

        free, cells, _ = expectation(rows, theta, temperature, real, barred)
        state = theta, cells, value(theta, free), none
        found = iterate(move, state, limit, done=none, count=count, trace=trace)
        cooler = jnp.where(last, 0, jnp.maximum(temperature / _COOLING, 1))
        return cooler, index + 1, found.state[0], found.done, found.n_iter, found.trace

    start = 0.05 + 0.9 * uniform(stream(seed, 1), (n_init, k, p), dtype)
    alike = rows.cells(rows.mass[..., None, None])[0, 0, 0] / n
    start = jnp.where(real, jnp.where(first > 1, alike, start), 0.5)
    none, count = jnp.zeros(n_init, bool), jnp.zeros((), jnp.int32)
    room = blank(CAPACITY, dtype, n_init), blank(CAPACITY, dtype)
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
    k, low = theta.shape[1], bounds(dtype)
    adam = optax.scale_by_adam()

    def parameters(logits):
        return jnp.clip(jax.nn.sigmoid(logits), low, 1 - low)

    def step(i, carry):
        logits, state, best, lowest, trace = carry
        theta = jnp.where(i == 0, best, parameters(logits))
        free, cells, _ = expectation(rows, theta, jnp.ones((), dtype), real, barred)
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
    k = theta.shape[1]
    real = jnp.arange(rows.x.n_statistics) < m
    # Clusters that no row can tell apart are one; else their labels would be the last rounding.
    w = expectation(rows, theta, jnp.ones((), theta.dtype), real, barred)[2]
    alike = jnp.abs(w - rows.mass[..., None, None] / k).max((0, 1, 3)) < _ALIKE * rows.mass.max()
    theta = jnp.where(alike[:, None, None], theta.mean(1, keepdims=True), theta)
    coefficients = linear(theta, real)
    score = rows.adjoint(coefficients[None]) + barred
    wide = score.astype(jnp.float64)
    log_p = jax.nn.logsumexp(wide, -1) - math.log(k)
    likelihood = (rows.mass.astype(jnp.float64)[..., None] * log_p).sum((0, 1))
    tables = numbers.tables.astype(jnp.float64)
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
