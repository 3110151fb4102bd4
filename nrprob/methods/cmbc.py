"""Constrained model-based clustering: a Bernoulli mixture that avoids the known structure."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from nrprob.engines import sharding, solve
from nrprob.engines.shuffle import spread, stream, uniform
from nrprob.estimator import Task, TermEstimator
from nrprob.known import Groups, KnownEncoder, Memberships
from nrprob.metrics import independence_test
from nrprob.statistics.features import refuse
from nrprob.statistics.rows import Dense, Rows, bucket

__all__ = ["CMBC", "gamma_to_strength", "strength_to_gamma"]

FORMS = ("chi2", "balanced", "pairs", "printed")
UPDATES = ("joint", "batch", "partial", "exact")
GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of strength="auto"
FALLBACK = 2.0

CAPACITY = 2048  # steps that a trace may have; the last entry is always that of the last step
_NEWTON = 20  # steps of one joint M-step
_ADAM = 400  # steps of update="exact"
_RATE = 0.05
_EMPTY = 1e-8  # share of the rows below which a cluster keeps its parameters
_ALIKE = 0.01  # difference of all memberships to 1/K below which the clusters are one
_MEMORY = 1.5e9  # bytes that the restarts of one compiled run may take on a device


def gamma_to_strength(gamma: float, n_features: int) -> float:
    r"""Strength that equals the thesis's weight gamma of the penalty.

    .. math:: c = \frac{\gamma}{(1 - \gamma) M^2}

    Parameters
    ----------
    gamma : float
        In [0, 1).
    n_features : int
        M. The values of gamma near 1 that are in print suit M = 1, whatever the data: they belong
        to a penalty whose sum over features was not divided by their number.
    """
    return gamma / ((1 - gamma) * n_features**2)


def strength_to_gamma(strength: float, n_features: int) -> float:
    r"""Invert `gamma_to_strength`.

    .. math:: \gamma = \frac{c M^2}{1 + c M^2}
    """
    weight = strength * n_features**2
    return weight / (1 + weight)


class Penalty(NamedTuple):
    r"""The known structure as the M-step sees it; rows of several labelings are stacked.

    With E_k = ``differences`` @ theta_k and their mean E over the clusters, the penalty is

    .. math:: M^2 P = \frac{1}{2K} \sum_{kz} u_z (E_{kz} - E_z)^2
        + \frac{1}{2} \sum_z v_z \left[(a_z + E_z)^2 - M^2 p(z)^2\right]

    Attributes
    ----------
    differences : (S, p) p(z given y_j = 1) - p(z given y_j = 0), 0 on padding
    offset : (S,) a, sum over features of p(z given y_j = 0)
    share : (S,) M p(z)
    spread : (S,) u, weight of the differences between clusters
    centre : (S,) v, weight of the mean of the clusters; 0 where it is free
    """

    differences: Any
    offset: Any
    share: Any
    spread: Any
    centre: Any


class Found(NamedTuple):
    """`nrprob.engines.solve.Solution`, with parameters and temperatures.

    Attributes
    ----------
    weights : (2,) log-likelihood in nats, and penalty P
    theta : (K, p) parameters of the best restart
    temperature : (steps,) of every entry of ``trace``
    """

    labels: jax.Array
    objective: jax.Array
    converged: jax.Array
    n_iter: jax.Array
    w: jax.Array
    slope: jax.Array
    log_prior: jax.Array
    trace: jax.Array
    beta: jax.Array
    critical_beta: jax.Array
    weights: jax.Array
    theta: jax.Array
    temperature: jax.Array


# The known structure as tables


def _chord(cells: int) -> float:
    """Slope of the chord of entropy against the sum of squares, next to uniform cells."""
    k = max(cells, 1)
    return k * (k + 1) * np.log1p(1 / k)


def form_weights(form: str, k: int, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights u and v of a labeling with shares ``p`` (S,), for ``k`` clusters; see `Penalty`."""
    s = p.size
    if form == "chi2":
        return 1 / p, np.zeros(s)
    beta = _chord(s if form == "printed" else k * s - 1)
    kappa = s * np.log(s) / (s - 1) if s > 1 else 1.0
    centre = 0.0 if form == "balanced" else 2 * (beta / k - kappa)
    return np.full(s, 2 * beta / k), np.full(s, centre)


def make_penalty(x: Any, labelings: list[np.ndarray], form: str, k: int, width: int) -> Penalty:
    """Tables of labelings, each (n,) codes, over the features of ``x`` (n, m); in float64.

    Features are padded to ``width``, values of the labelings to a bucketed number.
    """
    n, m = x.shape
    parts = []
    for codes in labelings:
        sizes = np.bincount(codes).astype(float)
        if isinstance(x, jax.Array):
            ones = np.asarray(jax.ops.segment_sum(x.astype(jnp.float64), codes, sizes.size))
        else:
            member = sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=(sizes.size, n))
            ones = member @ x
            ones = ones.toarray() if sparse.issparse(ones) else np.asarray(ones)
        total = ones.sum(0)
        varies = (total > 0) & (total < n)
        share = (sizes / n)[:, None]
        # A constant feature says nothing of z, under either of its values.
        given_1 = np.where(varies, ones / np.where(varies, total, 1), share)
        given_0 = np.where(varies, (sizes[:, None] - ones) / np.where(varies, n - total, 1), share)
        u, v = form_weights(form, k, sizes / n)
        parts.append((given_1 - given_0, given_0.sum(1), m * sizes / n, u, v))
    n_values = sum(part[1].size for part in parts)
    padded = max(bucket(n_values, 512), 2)
    differences = np.zeros((padded, width))
    rest = np.zeros((4, padded))
    if parts:
        differences[:n_values, :m] = np.concatenate([part[0] for part in parts])
        rest[:, :n_values] = [np.concatenate([part[i] for part in parts]) for i in range(1, 5)]
    return Penalty(differences, *rest)


# Pieces of an iteration. theta is (R, K, p), for R restarts.


def bounds(dtype: Any) -> float:
    """Distance of the parameters from 0 and 1."""
    return 1e-6 if dtype == jnp.float32 else 1e-10


def penalty_value(tables: Penalty, theta: jax.Array) -> jax.Array:
    """M^2 P of parameters (..., K, p)."""
    e = theta @ tables.differences.T
    mean = e.mean(-2)
    apart = (tables.spread * ((e - mean[..., None, :]) ** 2).mean(-2)).sum(-1)
    centre = (tables.centre * ((tables.offset + mean) ** 2 - tables.share**2)).sum(-1)
    return 0.5 * (apart + centre)


def penalty_slope(tables: Penalty, theta: jax.Array) -> jax.Array:
    """Derivative of `penalty_value` by theta, times K."""
    e = theta @ tables.differences.T
    mean = e.mean(-2, keepdims=True)
    pull = tables.spread * (e - mean) + tables.centre * (tables.offset + mean)
    return pull @ tables.differences


def exact_penalty(tables: Penalty, theta: jax.Array, m: jax.Array) -> tuple[jax.Array, jax.Array]:
    """M^2 I(C;Z) under the model, and its derivative by theta times K."""
    r = jnp.maximum(tables.offset + theta @ tables.differences.T, 1e-30)
    log_ratio = jnp.log(r) - jnp.log(r.mean(-2, keepdims=True))
    return m * (r * log_ratio).mean(-2).sum(-1), m * (log_ratio @ tables.differences)


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
    """Root in (low, 1 - low) of a t^3 + (b - a) t^2 - (n + b) t + s, by bisection.

    The polynomial is t (1 - t) times the derivative of a strictly concave function of t. Bisection
    does not mind that a vanishes with features that know nothing of z, as a closed form would.
    """
    shape = jnp.broadcast_shapes(*(jnp.shape(v) for v in (a, b, n, s)))
    left = jnp.full(shape, low, jnp.result_type(s))
    right = 1 - left
    # Unrolled: one fused kernel instead of fifty tiny ones.
    for _ in range(27 if left.dtype == jnp.float32 else 52):
        t = 0.5 * (left + right)
        rising = ((a * t + (b - a)) * t - (n + b)) * t + s > 0
        left, right = jnp.where(rising, t, left), jnp.where(rising, right, t)
    return 0.5 * (left + right)


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

    def visit(self, i, flat, e, n, s):
        """New value (R,) of parameter ``i``, and what follows for ``flat`` and ``e``."""
        j, k = i // self.k, i % self.k
        t, mine, mean = flat[i], e[k], e.mean(0)
        slope = (mine - mean) @ self.u[j] + (self.offset + mean) @ self.v[j]
        a = self.curvature[j]
        new = maximiser(a, self.strength * slope - a * t, n, s, bounds(flat.dtype))
        new = jnp.where(n > _EMPTY, new, t)
        return t, new, flat.at[i].set(new), e.at[k].add((new - t)[:, None] * self.d[j])


def coordinate_pass(
    theta: jax.Array, cells: jax.Array, tables: Penalty, strength: jax.Array, m: jax.Array
) -> jax.Array:
    """Gauss-Seidel pass: every parameter at its best, given the memberships and the others."""
    visits = _Visits(tables, strength, theta.shape[1])
    k = visits.k
    s, n = visits.flat(cells), cells[..., -1].T

    def visit(i, carry):
        flat, e = carry
        return visits.visit(i, flat, e, n[i % k], s[i])[2:]

    carry = visits.flat(theta), visits.pull(theta)
    return visits.back(jax.lax.fori_loop(0, m * k, visit, carry)[0])


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
    """One pass over the parameters, with new memberships before every one of them."""
    visits = _Visits(tables, strength, theta.shape[1])
    k = visits.k
    assert isinstance(rows.x, Dense)
    columns = rows.x.x.reshape(-1, rows.x.n_statistics).T
    mass = rows.mass.reshape(-1)
    mass = mass / mass.sum()
    score = rows.adjoint(linear(theta, real)[None]) / temperature + barred
    score = jnp.moveaxis(score.reshape(mass.size, *score.shape[2:]), 0, -1).swapaxes(0, 1)

    def visit(i, carry):
        flat, e, score = carry
        y, at = columns[i // k], i % k
        q = mass * jnp.exp(score[at] - jax.nn.logsumexp(score, axis=0))
        t, new, flat, e = visits.visit(i, flat, e, q.sum(-1), q @ y)
        rest = jnp.log1p(-new) - jnp.log1p(-t)
        one = jnp.log(new) - jnp.log(t)
        change = rest[:, None] + (one - rest)[:, None] * y
        return flat, e, score.at[at].add(change / temperature)

    carry = visits.flat(theta), visits.pull(theta), score
    return visits.back(jax.lax.fori_loop(0, m * k, visit, carry)[0])


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

    def move(carry):
        w, new, _, count = carry
        size = jnp.sqrt((w * w).sum() + ((f @ w) ** 2).sum())
        w = w / jnp.maximum(size, 1e-30)
        r = correlate(w)
        solved = jax.scipy.linalg.cho_solve((factor, True), f @ r)
        return r - f.T @ solved, (w * r).sum(), new, count + 1

    def moving(carry):
        _, new, old, count = carry
        accuracy = 1e-9 if dtype == jnp.float64 else 1e-6
        return (count < max_iter) & (jnp.abs(new - old) > accuracy * jnp.abs(new))

    w = jnp.where(alive, spread(stream(0, 0), mean.shape, dtype), 0)
    start = w, jnp.ones((), dtype), jnp.zeros((), dtype), 0
    return jnp.maximum(jax.lax.while_loop(moving, move, start)[1], 0)


@partial(jax.jit, static_argnames=("n_clusters", "n_init", "update"))
def solve_cmbc(
    rows: Rows,
    hyper: solve.Hyper,
    seed: jax.Array,
    fixed: jax.Array | None,
    *,
    n_clusters: int,
    n_init: int,
    update: str,
) -> Found:
    """Anneal ``n_init`` starts side by side, by expectation maximisation, and keep the best.

    The temperature falls by ``hyper["cooling"]`` from 1.2 times the critical one to 1; without
    ``hyper["anneal"]`` it is 1. A restart that has converged waits for the others.
    """
    dtype = rows.mass.dtype
    k, p = n_clusters, rows.x.n_statistics
    m, strength = hyper["n_features"], hyper["strength"]
    tables = Penalty(*(hyper[name] for name in Penalty._fields))
    n = rows.mass.sum()
    low = bounds(dtype)
    real = jnp.arange(p) < m
    barred = allowed(fixed, k, dtype)
    critical = critical_temperature(rows, tables, strength, real)
    first = jnp.where(hyper["anneal"], jnp.maximum(1.2 * critical, 1), 1).astype(dtype)

    def value(theta, free):
        return strength * penalty_value(tables, theta) - free

    def improve(theta, cells, temperature, tol):
        if update == "batch":
            return coordinate_pass(theta, cells, tables, strength, m)
        if update == "partial":
            return partial_pass(rows, theta, temperature, real, barred, tables, strength, m)
        step = partial(joint_step, tables=tables, strength=strength, real=real, tol=1e-3 * tol)
        return jax.vmap(step)(theta, cells)

    def write(buffer, count, values):
        at = jnp.minimum(count, CAPACITY - 1)
        return jax.lax.dynamic_update_index_in_dim(buffer, values, at, 0)

    def level(carry):
        temperature, index, theta, _, count, trace, at = carry
        noise = hyper["noise"] * spread(stream(stream(seed, 2), index), theta.shape, dtype)
        theta = jnp.clip(theta + jnp.where(real, noise, 0), low, 1 - low)
        last = temperature <= 1
        tol = jnp.where(last, 1e-2, 1) * hyper["tol"]
        limit = jnp.where(last, 10, 1) * hyper["max_iter"]

        def moving(inner):
            return (inner[4] < limit) & ~jnp.all(inner[3])

        def move(inner):
            theta, cells, old, done, steps, count, trace, at = inner
            new = improve(theta, cells, temperature, tol)
            theta = jnp.where(done[:, None, None], theta, new)
            free, cells, _ = expectation(rows, theta, temperature, real, barred)
            reached = value(theta, free)
            rounding = 16 * jnp.finfo(dtype).eps * jnp.abs(reached)
            done = done | (jnp.abs(old - reached) <= jnp.maximum(tol, rounding))
            trace, at = write(trace, count, n * reached), write(at, count, temperature)
            return theta, cells, reached, done, steps + 1, count + 1, trace, at

        free, cells, _ = expectation(rows, theta, temperature, real, barred)
        none = jnp.zeros(n_init, bool)
        inner = theta, cells, value(theta, free), none, 0, count, trace, at
        theta, _, _, done, _, count, trace, at = jax.lax.while_loop(moving, move, inner)
        cooler = jnp.where(last, 0, jnp.maximum(temperature / hyper["cooling"], 1))
        return cooler, index + 1, theta, done, count, trace, at

    start = 0.05 + 0.9 * uniform(stream(seed, 1), (n_init, k, p), dtype)
    carry = (
        first,
        0,
        jnp.where(real, start, 0.5),
        jnp.zeros(n_init, bool),
        0,
        jnp.full((CAPACITY, n_init), jnp.nan, dtype),
        jnp.full(CAPACITY, jnp.nan, dtype),
    )
    carry = jax.lax.while_loop(lambda carry: carry[0] > 0, level, carry)
    _, _, theta, done, count, trace, at = carry
    if update == "exact":
        theta, trace = _ascend(rows, theta, tables, strength, m, real, barred)
        trace, count = n * trace, count + _ADAM
        at = jnp.where(jnp.arange(CAPACITY) <= _ADAM, 1, jnp.nan).astype(dtype)
    return _finish(rows, theta, tables, hyper, barred, done, count, trace, at, critical, update)


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


def _finish(rows, theta, tables, hyper, barred, done, count, trace, at, critical, update):
    """Evaluate all restarts and keep what is needed of the best."""
    m, strength = hyper["n_features"], hyper["strength"].astype(jnp.float64)
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
    tables = jax.tree.map(lambda a: a.astype(jnp.float64), tables)
    if update == "exact":
        penalty = exact_penalty(tables, theta.astype(jnp.float64), m)[0]
    else:
        penalty = penalty_value(tables, theta.astype(jnp.float64))
    objective = rows.mass.sum() * strength * penalty - likelihood
    best = objective.argmin()
    dtype = theta.dtype
    own = jax.lax.dynamic_index_in_dim(score, best, 2, keepdims=False)
    return Found(
        score.argmax(-1).astype(jnp.int32),
        objective,
        done,
        count,
        rows.mass[..., None] * jax.nn.softmax(own, -1),
        -coefficients[best][None],
        jnp.zeros(k, dtype),
        trace[:, best],
        jnp.ones((), dtype),
        jnp.where(critical > 0, 1 / jnp.maximum(critical, 1e-30), jnp.inf),
        jnp.stack([likelihood[best], penalty[best] / m.astype(jnp.float64) ** 2]),
        theta[best],
        at,
    )


@dataclass
class KnownTask(Task):
    """A task, and codes (n,) of the known labelings."""

    labelings: list[np.ndarray] = field(default_factory=list)


class CMBC(TermEstimator):
    r"""Constrained model-based clustering: a Bernoulli mixture that is not the known structure.

    Minimises, in nats of the whole data set of n rows with M binary features,

    .. math:: -\sum_i \log \frac{1}{K} \sum_k p(y_i|\theta_k) + c\, n M^2 P(\theta), \qquad
        p(y|\theta_k) = \prod_j \theta_{kj}^{y_j} (1 - \theta_{kj})^{1 - y_j}

    where the penalty P stands for the information I(C;Z), in nats, that the clusters carry about
    the known structure Z. In the model p(c) = 1/K and p(z|y) is the mean over features of the
    observed p(z|y_j), so that p(z|c_k) is linear in theta_k.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, K.
    strength : float or "auto", default=2.0
        The weight c. It has no unit: whatever M, n and K, c = 1 is where the part of the features'
        correlations that Z explains linearly drops out of the mixture's own dynamics (with
        form="chi2"), and larger values push clusters actively away from Z. 0 is the Bernoulli
        mixture with uniform weights. The thesis's gamma is c M^2 / (1 + c M^2), see
        `gamma_to_strength`. "auto" fits c = 0.25, 0.5, 1, 2, 4, 8 and takes the smallest that
        leaves K clusters which a G test at 5 % cannot tell from independent of Z, else 2 with a
        warning.
    form : {"chi2", "balanced", "pairs", "printed"}, default="chi2"
        The quadratic form P. "chi2" is the second-order expansion of I(C;Z) at independence.
        The others follow from chords of the entropy: "printed" with the thesis's constants, which
        reward a common mean of the clusters that is away from the data's and fail with many
        features; "pairs" with the constant that suits the number of (cluster, z) cells; "balanced"
        without the part that depends on the common mean.
    update : {"joint", "batch", "partial", "exact"}, default="joint"
        M-step. "joint" solves for all parameters at once. "batch" and "partial" are the thesis's
        coordinate updates (CMBC-bu, CMBC-pm), one pass over the parameters per E-step and one
        E-step per parameter; they are less reliable with many features and many clusters. "exact"
        goes on from the joint solution with I(C;Z) itself for P, by gradient steps, and keeps the
        better of the two.
    anneal : bool, default=True
        Start at 1.2 times the critical temperature and halve it until 1 (daCMBC); else start at 1.
    multi : {"product", "sum"}, default="product"
        How several known labelings combine: "product" avoids every combination that occurs, "sum"
        adds the penalties of the labelings and suits many of them.
    binarize : float, optional
        Threshold above which a feature counts as 1. None takes features 0 and 1 only.
    n_init : int, default=10
        Number of restarts; the best by objective is kept.
    max_iter : int, default=200
        Most EM iterations per temperature; ten times as many at the last.
    tol : float, default=1e-6
        Change of the objective, in nats per row, below which a temperature has converged; a
        hundredth of it at the last.
    random_state : int, RandomState instance or None, default=None
        Determines starts and perturbations.
    verbose : int, default=0
        Whether to print progress.

    Attributes
    ----------
    theta_ : ndarray of shape (n_clusters, n_features)
        Probability of a 1.
    strength_ : float
        The c that was used.
    log_likelihood_ : float
        Of all rows, in nats.
    penalty_ : float
        P, in nats; ``objective_`` is ``strength_ * n * M**2 * penalty_ - log_likelihood_``. With
        form="chi2" or "balanced" it is 0 exactly where all clusters have the same p(z|c), with the
        others where they all have p(z).
    redundancy_ : nrprob.metrics.IndependenceTest or None
        Information between ``labels_`` and the known structure, and the G test of independence.
        With multi="sum" that of the labeling with the smallest p-value, which is multiplied by the
        number of labelings. None without known structure.
    critical_temperature_ : float
        Temperature below which identical clusters separate.
    temperatures_ : ndarray
        Temperature of every entry of ``objective_trace_``.
    strength_path_ : pandas.DataFrame
        With strength="auto": strength, objective, log-likelihood, information and p-value of the
        G test, and number of clusters.
    labels_, membership_, n_clusters_, objective_, objective_trace_, n_iter_, converged_, beta_, \
critical_beta_, n_features_in_, classes_
        As in `nrprob.IB`. Within one temperature the trace never rises, but for update="exact",
        whose trace is that of the gradient steps.

    References
    ----------
    Gondek (2005), "Non-redundant clustering", chapter 5: objective (5.1.8), M-step (5.1.39) and
    appendix B.4, with their errata corrected. The joint M-step, the scale of ``strength``, its
    automatic choice and the forms other than "printed" are this package's own.

    Examples
    --------
    >>> from nrprob.datasets import make_binary_partitions
    >>> from nrprob import CMBC
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> model = CMBC(2, random_state=0).fit(X, known=labels[:, 0])
    """

    # What the base reads and this method does not leave to the user.
    solver = "anneal"
    _solvers: tuple[str, ...] = ("anneal",)
    features = "bernoulli"
    cooling = 2.0
    noise = 1e-3
    quench = 1.0
    _weight_names = ("log_likelihood_", "penalty_")

    def __init__(
        self,
        n_clusters=2,
        *,
        strength=2.0,
        form="chi2",
        update="joint",
        anneal=True,
        multi="product",
        binarize=None,
        n_init=10,
        max_iter=200,
        tol=1e-6,
        random_state=None,
        verbose=0,
    ):
        self.n_clusters = n_clusters
        self.strength = strength
        self.form = form
        self.update = update
        self.anneal = anneal
        self.multi = multi
        self.binarize = binarize
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self):
        """Return scikit-learn's description of what the estimator accepts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.update != "partial"
        return tags

    # Parameters and input

    def _check_common(self) -> None:
        super()._check_common()
        self._check_choice("form", self.form, FORMS)
        self._check_choice("update", self.update, UPDATES)
        self._check_choice("multi", self.multi, ("product", "sum"))
        if isinstance(self.strength, str):
            self._check_choice("strength", self.strength, ("auto",), "or a number")
        else:
            self._check_number("strength", self.strength, low=0)
            if not np.isfinite(self.strength):
                raise ValueError(f"strength must be finite; got {self.strength}; pass a number")
        if not isinstance(self.anneal, bool | np.bool_):
            raise TypeError(f"anneal must be True or False; got {self.anneal!r}; pass one of them")
        if self.binarize is not None:
            self._check_number("binarize", self.binarize, low=-np.inf)
        if self.form == "printed" and self.update in ("joint", "exact"):
            raise ValueError(
                "form='printed' is not concave in all parameters together; got "
                f"update={self.update!r}; use update='batch' or 'partial', or another form"
            )

    def _validate(self, X, *, reset: bool):
        X = super()._validate(X, reset=reset)
        if self.binarize is None:
            refuse(
                X,
                lambda v: (v != 0) & (v != 1),
                "CMBC needs binary features",
                "set binarize= to a threshold, or use another estimator",
            )
        return X

    def _problem(self, features, groups, known):
        return None, {}

    def _check_solver(self, x, groups, build) -> None:
        if self.update == "partial" and (sparse.issparse(x) or self._mesh(x) is not None):
            raise ValueError(
                "update='partial' walks through the columns of X; got sparse or sharded rows; "
                "use another update, or pass a dense array"
            )

    def _prepare(self, X, y, known) -> KnownTask:
        if isinstance(known, Memberships):
            raise ValueError(
                "CMBC needs known labels; got soft Memberships; pass hard labels instead"
            )
        # The rows need no order: the known structure enters through tables only.
        task = KnownTask(**vars(super()._prepare(X, y, None)))
        n, m = task.x.shape
        task.labelings, task.groups = self._labelings(known, n)
        for codes in task.labelings:
            sizes = np.bincount(codes)
            # Single rows are no trouble here, unless all are.
            if sizes.min() > 1 or sizes.max() == 1 or sizes.size == 1:
                self._check_groups(Groups(codes, sizes.size), known)
        tables = make_penalty(
            task.x, task.labelings, self.form, self.n_clusters, task.rows.x.n_statistics
        )
        dtype = task.rows.mass.dtype
        task.hyper |= {
            "n_features": np.asarray(m, np.int32),
            "anneal": np.asarray(bool(self.anneal)),
            **{f: np.asarray(a, dtype) for f, a in zip(tables._fields, tables, strict=True)},
        }
        if self.strength == "auto":
            strengths = GRID if task.labelings else (FALLBACK,)
        else:
            strengths = (self.strength,)
        task.calls = self._calls(task, strengths)
        return task

    def _restarts(self, task) -> list[solve.Call]:
        return []  # they need the tables: see `_calls`

    def _labelings(self, known, n: int) -> tuple[list[np.ndarray], Groups]:
        """Codes of what is to be avoided, and the groups that all labelings make together."""
        groups = KnownEncoder().fit(known, n)
        if known is None:
            return [], groups
        if np.asarray(known).dtype.kind == "f" and n / 2 < groups.n_groups < n:
            raise ValueError(
                f"CMBC takes labels or binary columns as known; got {groups.n_groups} different "
                f"numbers in {n} rows; cut them into groups"
            )
        columns = KnownEncoder().columns(known, n)
        if self.multi == "sum":
            return list(columns.T), groups
        if columns.shape[1] > 1 and groups.n_groups > n / 20:
            warnings.warn(
                f"known has {groups.n_groups} combinations of labels in {n} rows, too many for "
                "their probabilities to be known; consider multi='sum'",
                UserWarning,
                stacklevel=5,
            )
        return [groups.codes], groups

    def _calls(self, task: KnownTask, strengths: tuple[float, ...]) -> list[solve.Call]:
        """Calls for every strength, each with the same starts."""
        rows, layout = task.rows, task.layout
        mesh = rows.mesh if isinstance(rows, sharding.ShardedRows) else None
        random = check_random_state(self.random_state)
        k, p = self.n_clusters, rows.x.n_statistics
        cells = k * task.hyper["spread"].size
        each = 5 * k * rows.mass.size // layout.n_shards + 12 * k * p + 4 * cells**2 + 2 * CAPACITY
        each *= rows.mass.dtype.itemsize
        fits = int(max(_MEMORY // each, 1))
        size = max(d for d in range(1, self.n_init + 1) if self.n_init % d == 0 and d <= fits)
        fixed = None if task.fixed is None else layout.spread(task.fixed, -1)
        seeds = [random.randint(2**31 - 1) for _ in range(self.n_init // size)]
        if mesh is not None:
            fixed = sharding.split(fixed, mesh)
            seeds = [sharding.agree(seed, mesh) for seed in seeds]
        data = sum(a.nbytes for a in jax.tree.leaves(rows)) // layout.n_shards
        static = (("n_clusters", k), ("n_init", size), ("update", self.update))
        return [
            solve.Call(
                solve_cmbc,
                (
                    rows,
                    {**task.hyper, "strength": np.asarray(strength, rows.mass.dtype)},
                    np.asarray(seed, np.uint32),
                    fixed,
                ),
                static,
                data + each * size,
            )
            for strength in strengths
            for seed in seeds
        ]

    # Results

    def _finish(self, task, found):
        """Choose the strength and set the fitted attributes."""
        groups: dict[float, list[Found]] = {}
        for call, solution in zip(task.calls, found, strict=True):
            groups.setdefault(float(call.arrays[1]["strength"]), []).append(solution)
        self.__dict__.pop("strength_path_", None)
        self.strength_ = next(iter(groups))
        if len(groups) > 1:
            self.strength_ = self._choose(task, groups)
        chosen = groups[self.strength_]
        self._store(chosen, task.layout, task.groups, task.x.shape[1])
        best = min(chosen, key=lambda c: c.objective.min())
        self.theta_ = np.asarray(best.theta[:, : task.x.shape[1]], np.float64)
        self.temperatures_ = best.temperature[~np.isnan(best.temperature)].astype(float)
        self.critical_temperature_ = 1 / self.critical_beta_
        self.redundancy_ = _redundancy(self.labels_, task.labelings)
        return self

    def _choose(self, task: KnownTask, groups: dict[float, list[Found]]) -> float:
        """Return the smallest strength whose labels are independent of what is known."""
        import pandas as pd

        path = []
        for strength, solutions in groups.items():
            best = min(solutions, key=lambda c: c.objective.min())
            labels = task.layout.collect(best.labels)[:, int(best.objective.argmin())]
            test = _redundancy(labels, task.labelings)
            path.append(
                {
                    "strength": strength,
                    "objective": float(best.objective.min()),
                    "log_likelihood": float(best.weights[0]),
                    "information": test.information,
                    "p_value": test.p_chi2,
                    "n_clusters": np.unique(labels).size,
                }
            )
        self.strength_path_ = pd.DataFrame(path)
        table = self.strength_path_
        passed = table[(table.p_value >= 0.05) & (table.n_clusters == self.n_clusters)]
        if len(passed):
            return float(passed.strength.iloc[0])
        warnings.warn(
            "no strength gave clusters that are independent of known, so the structures may be "
            f"correlated; tried {', '.join(f'{c:g}' for c in table.strength)}; "
            f"strength={FALLBACK:g} is used",
            UserWarning,
            stacklevel=5,
        )
        return FALLBACK

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        return super()._log_membership(X, None)

    def predict(self, X, *, known=None):
        """Cluster of new rows: the one under which they are most probable.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : ignored
            The clusters of this model say nothing about the known structure.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X)

    def predict_proba(self, X, *, known=None):
        """p(cluster given row) of new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : ignored
            The clusters of this model say nothing about the known structure.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return super().predict_proba(X)


def _redundancy(labels: np.ndarray, labelings: list[np.ndarray]) -> Any:
    """Test of independence of the most dependent of the labelings, corrected for their number."""
    if not labelings:
        return None
    tests = [independence_test(labels, codes, n_permutations=0) for codes in labelings]
    worst = min(tests, key=lambda t: t.p_chi2)
    return worst._replace(p_chi2=min(1.0, worst.p_chi2 * len(tests)))
