"""M-steps of the penalised Bernoulli mixture, by coordinates or jointly.

The parameters theta (R, K, p) are the probabilities of the features in the clusters, for R
restarts, K clusters and p statistics of a row (the features, padding, and 1). The statistics
``cells`` (R, K, p) of the E-step are sums over the rows of every cluster, divided by the number of
rows; their last entry is the share of the cluster.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nrprob.engines.optimise.iterate import iterate
from nrprob.methods.cmbc.penalty import Penalty, penalty_slope, penalty_value
from nrprob.statistics.rows import Dense, Rows

UPDATES = ("joint", "batch", "partial", "exact")

_NEWTON_STEPS = 20  # maximum number of Newton steps of a joint M-step
_EMPTY_SHARE = 1e-8  # clusters with a smaller share of the rows keep their parameters

# theta has shape (R, K, p) for R restarts.


def parameter_bound(dtype: Any) -> float:
    """Minimum distance of the probabilities theta from 0 and 1, in arithmetic of type ``dtype``."""
    return 1e-6 if dtype == jnp.float32 else 1e-10


def log_likelihood_coefficients(theta: jax.Array, real: jax.Array) -> jax.Array:
    """Coefficients (..., K, p) of the log likelihood of a row in every cluster.

    The log likelihood is the inner product of the coefficients and the statistics of the row, of
    which the last is 1. ``theta`` (..., K, p) are the parameters, and ``real`` (p,) states whether
    a statistic is a feature.
    """
    rest = jnp.where(real, jnp.log1p(-theta), 0)
    coefficients = jnp.where(real, jnp.log(theta), 0) - rest
    return coefficients.at[..., -1].set(rest.sum(-1))


def maximise_coordinate(
    a: jax.Array, b: jax.Array, n: jax.Array, s: jax.Array, low: float
) -> jax.Array:
    """Maximise the penalised log likelihood over a single parameter t.

    The objective is strictly concave in t: the log likelihood s log t + (n - s) log(1 - t) minus
    the penalty a t^2 / 2 + b t. The derivative times t (1 - t) is the polynomial
    a t^3 + (b - a) t^2 - (n + b) t + s. The maximum is the root of this polynomial in (low, 1 -
    low). Bisection remains stable as a approaches 0, for features that are independent of the known
    groups; the closed form does not. Every step tests three points at once, and a final Newton step
    doubles the number of correct digits.

    Parameters
    ----------
    a, b : coefficients of the penalty
    n : share of the rows in the cluster
    s : share of the rows that are in the cluster and have the feature
    low : smallest distance of t from 0 and 1
    """
    shape = jnp.broadcast_shapes(*(jnp.shape(v) for v in (a, b, n, s)))
    left = jnp.full(shape, low, jnp.result_type(s))
    steps = 7 if left.dtype == jnp.float32 else 13

    # A loop, since the compiler fuses unrolled steps into expressions of exponential size.
    def bisection_step(step, left):
        width = (1 - 2 * low) * jnp.asarray(0.25, left.dtype) ** (step + 1)
        for t in [left + i * width for i in (1, 2, 3)]:
            rising = ((a * t + (b - a)) * t - (n + b)) * t + s > 0
            left = left + jnp.where(rising, width, 0)
        return left

    left = jax.lax.fori_loop(0, steps, bisection_step, left)
    width = (1 - 2 * low) * 0.25**steps
    t = left + 0.5 * width
    value = ((a * t + (b - a)) * t - (n + b)) * t + s
    slope = jnp.minimum((3 * a * t + 2 * (b - a)) * t - (n + b), -1e-30)
    return jnp.clip(t - value / slope, left, jnp.minimum(left + width, 1 - low))


class _CoordinateUpdates:
    """Updates of one parameter theta_kj after another, with features j in the outer loop.

    A visit is the update of one parameter, for all R restarts. The fields e (K, R, S) are the
    values E of `Penalty` for S known groups. ``strength`` is the penalty weight, and ``width`` the
    number K of clusters with padding.
    """

    def __init__(self, tables: Penalty, strength: jax.Array, width: int):
        self.width, self.k, self.tables = width, tables.cluster_count(width), tables
        self.d = tables.differences.T
        self.u, self.v = self.d * tables.spread, self.d * tables.centre
        self.offset = tables.offset
        self.strength = strength / self.k
        within, across = (self.u * self.d).sum(1), (self.v * self.d).sum(1)
        self.curvature = self.strength * (within * (1 - 1 / self.k) + across / self.k)

    def to_visit_order(self, values: jax.Array) -> jax.Array:
        """Reshape values (R, K, p) of the parameters to the order of the visits, (p K, R)."""
        return jnp.moveaxis(values, 0, 2).swapaxes(0, 1).reshape(-1, values.shape[0])

    def from_visit_order(self, flat: jax.Array) -> jax.Array:
        """Reshape values (p K, R) in the order of the visits to (R, K, p)."""
        return jnp.moveaxis(flat.reshape(-1, self.width, flat.shape[-1]).swapaxes(0, 1), 2, 0)

    def penalty_fields(self, theta: jax.Array) -> jax.Array:
        """Fields e (K, R, S) at the parameters theta (R, K, p)."""
        return jnp.moveaxis(theta @ self.d, 0, 1)

    def locate_visit(self, i):
        """Feature and cluster of visit ``i``, and its index in the order of `to_visit_order`."""
        j, k = i // self.k, i % self.k
        return j, k, i if self.tables.active is None else j * self.width + k

    def update_coordinate(self, j, k, t, e, n, s):
        """Update the parameter ``t`` (R,) of feature ``j`` in cluster ``k``, and the fields ``e``.

        ``n`` and ``s`` (R,) are as in `maximise_coordinate`. The method returns the new parameter
        (R,) and the new fields (K, R, S).
        """
        mine, mean = e[k], self.tables.cluster_mean(e, -3)
        slope = ((mine - mean) * self.u[j] + (self.offset + mean) * self.v[j]).sum(-1)
        a = self.curvature[j]
        new = maximise_coordinate(a, self.strength * slope - a * t, n, s, parameter_bound(t.dtype))
        # The barrier prevents a recomputation for each use.
        new = jax.lax.optimization_barrier(jnp.where(n > _EMPTY_SHARE, new, t))
        return new, put_at(e, k, mine + (new - t)[:, None] * self.d[j])


def put_at(array: jax.Array, i: jax.Array, values: jax.Array) -> jax.Array:
    """Return ``array`` with ``values`` at index i of the first axis; in place within a loop."""
    return jax.lax.dynamic_update_index_in_dim(array, values, i, 0)


def coordinate_pass(
    theta: jax.Array, cells: jax.Array, tables: Penalty, strength: jax.Array, m: jax.Array
) -> jax.Array:
    """Maximise the penalised log likelihood over one parameter after another, at fixed memberships.

    Parameters
    ----------
    theta : (R, K, p) parameters before the pass
    cells : (R, K, p) statistics of the clusters, from the E-step
    tables : the penalty
    strength : penalty weight
    m : number of features, without padding

    Returns
    -------
    (R, K, p) parameters after the pass
    """
    updates = _CoordinateUpdates(tables, strength, theta.shape[1])
    old, s, n = updates.to_visit_order(theta), updates.to_visit_order(cells), cells[..., -1].T

    def visit_parameter(i, carry):
        # Read from the old parameters: reading the array that the loop writes would copy it.
        flat, e = carry
        j, k, position = updates.locate_visit(i)
        new, e = updates.update_coordinate(j, k, old[position], e, n[k], s[position])
        return put_at(flat, position, new), e

    carry = old, updates.penalty_fields(theta)
    carry = jax.lax.fori_loop(0, m * updates.k, visit_parameter, carry)
    return updates.from_visit_order(carry[0])


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
    """Maximise the penalised log likelihood over one parameter after another.

    The memberships are updated before each parameter.

    Features are binary, so a new parameter multiplies the unnormalised membership of a row by one
    of two factors. Memberships are recomputed from the log likelihoods often enough to avoid
    overflow and underflow.

    Parameters
    ----------
    rows : the rows
    theta : (R, K, p) parameters before the pass
    temperature : temperature of the memberships
    real : (p,) whether a statistic is a feature
    barred : mask that is added to log memberships, -inf for excluded clusters
    tables, strength, m : as in `coordinate_pass`

    Returns
    -------
    (R, K, p) parameters after the pass
    """
    updates = _CoordinateUpdates(tables, strength, theta.shape[1])
    k = updates.k
    assert isinstance(rows.x, Dense)
    columns = rows.x.x.reshape(-1, rows.x.n_statistics).T
    mass = rows.mass.reshape(-1)
    mass = mass / mass.sum()
    score = rows.adjoint(log_likelihood_coefficients(theta, real)[None]) / temperature + barred
    score = jnp.moveaxis(score.reshape(mass.size, *score.shape[2:]), 0, -1).swapaxes(0, 1)
    old = updates.to_visit_order(theta)
    block_length = 2 * k if theta.dtype == jnp.float32 else 8 * k

    def visit_parameter(i, carry):
        flat, e, score, share = carry
        j, c, position = updates.locate_visit(i)
        y = columns[j]
        q = mass * share[c] / share.sum(0)
        t = old[position]
        new, e = updates.update_coordinate(j, c, t, e, q.sum(-1), q @ y)
        log_factor_0 = (jnp.log1p(-new) - jnp.log1p(-t)) / temperature
        log_factor_1 = (jnp.log(new) - jnp.log(t)) / temperature
        is_one = y > 0.5
        change = jnp.where(is_one, log_factor_1[:, None], log_factor_0[:, None])
        factor = jnp.where(is_one, jnp.exp(log_factor_1)[:, None], jnp.exp(log_factor_0)[:, None])
        return put_at(flat, position, new), e, score.at[c].add(change), share.at[c].multiply(factor)

    def visit_block(j, carry):
        flat, e, score = carry
        share = jnp.exp(score - score.max(0))
        end = jnp.minimum((j + 1) * block_length, m * k)
        return jax.lax.fori_loop(j * block_length, end, visit_parameter, (flat, e, score, share))[
            :3
        ]

    carry = old, updates.penalty_fields(theta), score
    n_parts = (m * k + block_length - 1) // block_length
    return updates.from_visit_order(jax.lax.fori_loop(0, n_parts, visit_block, carry)[0])


def joint_step(
    theta: jax.Array,
    cells: jax.Array,
    tables: Penalty,
    strength: jax.Array,
    real: jax.Array,
    tol: jax.Array,
) -> jax.Array:
    """Joint M-step: maximise over all parameters (K, p) of one restart, given the memberships.

    The method is a damped projected Newton method for a concave function. With S known groups, the
    Hessian is diagonal plus a matrix of rank K S, so a step solves K S equations. Parameters at a
    bound whose gradient points outwards do not change. The distance of the other parameters from 0
    or 1 falls by a factor of at most 20 per step.

    Parameters
    ----------
    theta : (K, p) parameters before the step
    cells : (K, p) statistics of the clusters, from the E-step
    tables : the penalty
    strength : penalty weight
    real : (p,) whether a statistic is a feature
    tol : the iteration ends when the Newton decrement is at most ``tol``

    Returns
    -------
    (K, p) parameters after the step
    """
    k, dtype = tables.cluster_count(theta.shape[0]), theta.dtype
    d = tables.differences
    low = jnp.asarray(parameter_bound(dtype), dtype)
    share = cells[:, -1:]
    s = jnp.clip(cells, 0, share)
    f = share - s
    moves = real & (share > _EMPTY_SHARE)
    weight = strength / k

    def penalised_likelihood(theta):
        likely = jnp.where(real, s * jnp.log(theta) + f * jnp.log1p(-theta), 0).sum()
        return likely - strength * penalty_value(tables, theta)

    # Square root of the Hessian of the penalty in the fields E of pairs (cluster, z); it is
    # diagonal in z.
    centring = jnp.eye(theta.shape[0], dtype=dtype) - 1 / k
    root = centring[..., None] * jnp.sqrt(tables.spread) + jnp.sqrt(tables.centre) / k
    root = jnp.sqrt(weight) * root
    if tables.active is not None:
        root = root * (tables.active[:, None] * tables.active)[..., None]

    def step(state, _):
        theta, old, length = state
        # Gradient, and parameters that stay at their bounds.
        g = s / theta - f / (1 - theta) - weight * penalty_slope(tables, theta)
        stuck = ((theta <= low) & (g < 0)) | ((theta >= 1 - low) & (g > 0))
        # Newton direction: the diagonal part, then the correction of rank K S.
        h = s / theta**2 + f / (1 - theta) ** 2
        free = moves & ~stuck
        inverse = jnp.where(free, 1 / jnp.where(free, h, 1), 0)
        x = inverse * g
        inner = jnp.einsum("kp,zp,yp->kzy", inverse, d, d)
        inner = jnp.einsum("kmz,mzy,mly->kzly", root, inner, root)
        inner = inner.reshape(root.shape[0] * root.shape[2], -1)
        factor = jnp.linalg.cholesky(inner + jnp.eye(inner.shape[0], dtype=dtype))
        right = jnp.einsum("klz,lz->kz", root, x @ d.T).reshape(-1)
        solved = jax.scipy.linalg.cho_solve((factor, True), right).reshape(len(theta), -1)
        x = x - inverse * (jnp.einsum("klz,lz->kz", root, solved) @ d)
        # Step within the bounds, accepted if it improves the objective sufficiently.
        decrement = jnp.where(free, g * x, 0).sum()
        trial = jnp.clip(
            theta + length * x,
            jnp.maximum(low, 0.05 * theta),
            jnp.minimum(1 - low, 1 - 0.05 * (1 - theta)),
        )
        trial = jnp.where(free, trial, theta)
        new = penalised_likelihood(trial)
        gain = jnp.maximum(0.1 * (g * (trial - theta)).sum(), 0)
        better = new >= old + gain - 4 * jnp.finfo(dtype).eps * jnp.abs(old)
        theta = jnp.where(better, trial, theta)
        old = jnp.where(better, new, old)
        length = jnp.where(better, jnp.minimum(1, 4 * length), length / 2)
        return (theta, old, length), ~(decrement > tol), ()

    # Start from the better of the current and the unpenalised solution.
    plain = jnp.clip(s / jnp.where(share > _EMPTY_SHARE, share, 1), low, 1 - low)
    plain = jnp.where(moves, plain, theta)
    old_value, plain_value = penalised_likelihood(theta), penalised_likelihood(plain)
    theta = jnp.where(plain_value > old_value, plain, theta)
    start = theta, jnp.maximum(old_value, plain_value), jnp.ones((), dtype)
    return iterate(step, start, _NEWTON_STEPS).state[0]
