"""M-steps of the penalised Bernoulli mixture: coordinate-wise or joint."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nrprob.engines.optimise.iterate import iterate
from nrprob.methods.cmbc.penalty import Penalty, penalty_slope, penalty_value
from nrprob.statistics.rows import Dense, Rows

UPDATES = ("joint", "batch", "partial", "exact")

_NEWTON = 20  # steps of one joint M-step
_EMPTY = 1e-8  # share of the rows below which a cluster keeps its parameters

# theta is (R, K, p), for R restarts.


def bounds(dtype: Any) -> float:
    """Distance of the parameters from 0 and 1."""
    return 1e-6 if dtype == jnp.float32 else 1e-10


def linear(theta: jax.Array, real: jax.Array) -> jax.Array:
    """Coefficients (..., K, p) of the log-likelihood of a row, the constant being the last."""
    rest = jnp.where(real, jnp.log1p(-theta), 0)
    coefficients = jnp.where(real, jnp.log(theta), 0) - rest
    return coefficients.at[..., -1].set(rest.sum(-1))


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

    def __init__(self, tables: Penalty, strength: jax.Array, width: int):
        self.width, self.k, self.tables = width, tables.count(width), tables
        self.d = tables.differences.T
        self.u, self.v = self.d * tables.spread, self.d * tables.centre
        self.offset = tables.offset
        self.strength = strength / self.k
        own = (self.u * self.d).sum(1) * (1 - 1 / self.k) + (self.v * self.d).sum(1) / self.k
        self.curvature = self.strength * own

    def flat(self, values: jax.Array) -> jax.Array:
        """(R, K, p) in the order of the visits: (p K, R)."""
        return jnp.moveaxis(values, 0, 2).swapaxes(0, 1).reshape(-1, values.shape[0])

    def back(self, flat: jax.Array) -> jax.Array:
        """Undo `flat`."""
        return jnp.moveaxis(flat.reshape(-1, self.width, flat.shape[-1]).swapaxes(0, 1), 2, 0)

    def pull(self, theta: jax.Array) -> jax.Array:
        """E, as (K, R, S)."""
        return jnp.moveaxis(theta @ self.d, 0, 1)

    def place(self, i):
        """Feature and cluster of the ``i``-th visit, and its place among all parameters."""
        j, k = i // self.k, i % self.k
        return j, k, i if self.tables.active is None else j * self.width + k

    def visit(self, j, k, t, e, n, s):
        """New value (R,) of feature ``j`` in cluster k, now ``t``, and what follows for ``e``."""
        mine, mean = e[k], self.tables.mean(e, -3)
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
    old, s, n = visits.flat(theta), visits.flat(cells), cells[..., -1].T

    def visit(i, carry):
        # Parameters are read from the old ones: a loop that reads what it writes copies it.
        flat, e = carry
        j, k, at = visits.place(i)
        new, e = visits.visit(j, k, old[at], e, n[k], s[at])
        return put(flat, at, new), e

    return visits.back(jax.lax.fori_loop(0, m * visits.k, visit, (old, visits.pull(theta)))[0])


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
        j, c, at = visits.place(i)
        y = columns[j]
        q = mass * share[c] / share.sum(0)
        t = old[at]
        new, e = visits.visit(j, c, t, e, q.sum(-1), q @ y)
        rest = (jnp.log1p(-new) - jnp.log1p(-t)) / temperature
        one = (jnp.log(new) - jnp.log(t)) / temperature
        is_one = y > 0.5
        change = jnp.where(is_one, one[:, None], rest[:, None])
        factor = jnp.where(is_one, jnp.exp(one)[:, None], jnp.exp(rest)[:, None])
        return put(flat, at, new), e, score.at[c].add(change), share.at[c].multiply(factor)

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
    k, dtype = tables.count(theta.shape[0]), theta.dtype
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
    apart = jnp.eye(theta.shape[0], dtype=dtype) - 1 / k
    root = apart[..., None] * jnp.sqrt(tables.spread) + jnp.sqrt(tables.centre) / k
    root = jnp.sqrt(weight) * root
    if tables.active is not None:
        root = root * (tables.active[:, None] * tables.active)[..., None]

    def step(state, _):
        theta, old, length = state
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
        solved = jax.scipy.linalg.cho_solve((factor, True), right).reshape(len(theta), -1)
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
        return (theta, old, length), ~(decrement > tol), ()

    # Without a penalty this is the solution; with one it may be nearer than the last parameters.
    plain = jnp.clip(s / jnp.where(share > _EMPTY, share, 1), low, 1 - low)
    plain = jnp.where(moves, plain, theta)
    here, there = value(theta), value(plain)
    theta = jnp.where(there > here, plain, theta)
    start = theta, jnp.maximum(here, there), jnp.ones((), dtype)
    return iterate(step, start, _NEWTON).state[0]
