"""E-step and M-step of a residual mixture with one covariance."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.placement import on_cpu
from nrprob.statistics.matrices import inverse_and_log_det

_SWEEPS = 5  # of balancing, in every step
_TINY = 1e-30  # share of a cluster that balancing takes for none
_LARGEST = 80.0  # logarithm of a weight that balances
_NEAR = 1 << 16  # numbers of a piece of the rows, so that they stay in the cache of one core
_MANY = 1 << 19  # numbers of all rows from which there are pieces
_HIGHEST = jax.lax.Precision.HIGHEST
_dot = partial(jnp.matmul, precision=_HIGHEST)


class Residuals(NamedTuple):
    """Residuals in coordinates in which their ridged covariance is the identity.

    Attributes
    ----------
    y : (B, r, p) rows, 0 on padding
    mass : (B, r), 0 on padding
    group : (B,) of every block
    sizes : (L,) of the groups, 0 on padding
    inverse_scale : (p,) 1/D, where D are the variances of the coordinates before; 0 on padding
    active : (K,) False for clusters that are padding; None where there are none
    """

    y: jax.Array
    mass: jax.Array
    group: jax.Array
    sizes: jax.Array
    inverse_scale: jax.Array
    active: jax.Array | None


class Numbers(NamedTuple):
    """Numbers that `solve_residuals` reads.

    Attributes
    ----------
    d : coordinates, without the padding
    dof : degrees of freedom that are left
    nu0, s0 : weight of the ridge, and the variance that it shrinks to
    floor : least variance
    log_scale : log determinant of the scales of the coordinates
    log_det : the same in units of the rows
    constant : what the objective has of densities and does not depend on parameters
    kappa : weight of the balance
    free : (1,) whether the clusters have weights of their own; (2,) to fit both, and choose
    nu : degrees of freedom of t errors
    tol, max_iter : when to end
    """

    d: Any
    dof: Any
    nu0: Any
    s0: Any
    floor: Any
    log_scale: Any
    log_det: Any
    constant: Any
    kappa: Any
    free: Any
    nu: Any
    tol: Any
    max_iter: Any


class Parameters(NamedTuple):
    """Of one restart.

    Attributes
    ----------
    b : (K, p) centres
    sigma : (p, p) scale matrix; (p,) where it is diagonal
    precision : its inverse, of the same shape
    log_det : log determinant of ``sigma``
    s0 : variance that the ridge shrinks to, in the units of the residuals
    log_weights : (K,) log of K times the clusters' weights; 0 where these are equal
    """

    b: jax.Array
    sigma: jax.Array
    precision: jax.Array
    log_det: jax.Array
    s0: jax.Array
    log_weights: jax.Array


class Sums(NamedTuple):
    """What rows add to the parameters that are best for their memberships.

    Attributes
    ----------
    held : (K,) masses
    size : (K,) masses times the weights of t errors
    sums : (K, p) sums of rows, by these
    scatter : sums of products or squares of rows, by these; None for normal errors, which need but
        those of all rows
    """

    held: jax.Array
    size: jax.Array
    sums: jax.Array
    scatter: jax.Array | None


class State(NamedTuple):
    """What one restart has after a step.

    Attributes
    ----------
    w : (pieces, K, m) masses
    sums : what these add to the parameters that follow
    u : (K, L) log weights that balance the known groups
    t : parameters
    objective, penalty : what is maximised, and the penalty in it
    """

    w: jax.Array
    sums: Sums
    u: jax.Array
    t: Parameters
    objective: jax.Array
    penalty: jax.Array


class Look(NamedTuple):
    """What rows have to say to parameters: ``w``, ``sums`` and ``u`` of the next `State`.

    And the ``free`` energy, and the largest ``change`` of a mass.
    """

    w: jax.Array
    sums: Sums
    u: jax.Array
    free: jax.Array
    change: jax.Array


def piece(n: int, width: int) -> int:
    """Rows that are looked at together, of ``n`` with ``width`` numbers each.

    All if they are few, and on an accelerator, which would wait between pieces.
    """
    if n * width < _MANY or not on_cpu():
        return n
    return 1 << max(int(math.log2(_NEAR / width)), 7)


def _inverse(sigma: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Inverse of a covariance, whole or its diagonal, the inverse's diagonal, and log det."""
    if sigma.ndim == 1:
        return 1 / sigma, 1 / sigma, jnp.log(sigma).sum()
    precision, log_det, _ = inverse_and_log_det(sigma)
    return precision, jnp.diagonal(precision), log_det


class Model:
    """The steps of EM on one set of rows, of one restart. Memberships are (K, n).

    Many rows are looked at by pieces, which are read once in a step. Where the rows are but some of
    all, ``total`` is the mass and ``scatter`` the sums of products or squares of all.
    """

    def __init__(
        self,
        data: Residuals,
        numbers: Numbers,
        covariance: str,
        robust: bool,
        k: int,
        free: jax.Array,
        total: jax.Array | None = None,
        scatter: jax.Array | None = None,
    ):
        b, r, p = data.y.shape
        self.data, self.h, self.k = data, numbers, k
        self.blocks, self.n_groups = (b, r), data.sizes.shape[0]
        self.each = piece(b * r, p + 2 * k)
        self.covariance, self.robust, self.free = covariance, robust, free
        self.y = data.y.reshape(b * r, p).T
        self.mass = data.mass.reshape(-1)
        self.real = jnp.arange(p) < numbers.d
        self.active = data.active
        self.log_k = math.log(k) if self.active is None else jnp.log(self.active.sum())
        self.log_k = jnp.asarray(self.log_k, data.y.dtype)
        self.total = self.mass.sum() if total is None else total
        self.scatter = self.products(self.mass) if scatter is None else scatter

    def products(self, mass: jax.Array) -> jax.Array:
        """Sums of products, or of squares, of rows with masses (n,)."""
        if self.covariance == "tied":
            return _dot(self.y * mass, self.y.T)
        return (self.y * mass * self.y).sum(-1)

    def start(self, w: jax.Array) -> State:
        """State before the first step, from masses; its parameters are not there yet."""
        p, dtype = len(self.real), self.y.dtype
        square = jnp.zeros((p, p) if self.covariance == "tied" else p, dtype)
        centres, equal = jnp.zeros((self.k, p), dtype), jnp.zeros(self.k, dtype)
        t = Parameters(centres, square, square, square.sum(), self.h.s0, equal)
        least = jnp.full((), -jnp.inf, jnp.float64)
        u = jnp.zeros((self.k, self.n_groups), dtype)
        sums = self.gather(w, jnp.ones_like(w) if self.robust else None)
        return State(self.cut(w), sums, u, t, least, least)

    def cut(self, values: jax.Array) -> jax.Array:
        """Values (K, n) of rows, by pieces (pieces, K, m)."""
        wide = jnp.pad(values, ((0, 0), (0, -values.shape[1] % self.each)))
        return jnp.moveaxis(wide.reshape(len(values), -1, self.each), 1, 0)

    def joined(self, values: jax.Array) -> jax.Array:
        """Values (K, n) of rows from those of pieces."""
        n = self.mass.shape[0]
        return jnp.moveaxis(values, 0, 1).reshape(values.shape[1], -1)[:, :n]

    def labels(self, w: jax.Array) -> jax.Array:
        """Clusters (n,) of rows from masses by pieces."""
        return w.argmax(1).reshape(-1)[: self.mass.shape[0]].astype(jnp.int32)

    def gather(self, w: jax.Array, weight: jax.Array | None) -> Sums:
        """What masses ``w`` (K, n) add to the parameters; ``weight`` (K, n) of t errors."""
        a = w if weight is None else w * weight
        scatter = None if weight is None else self.products(a.sum(0))
        return Sums(w.sum(-1), a.sum(-1), _dot(a, self.y.T), scatter)

    def best(self, result: Sums, s0: jax.Array) -> Parameters:
        """Parameters that are best by what all rows add."""
        h, data = self.h, self.data
        size, sums = result.size[:, None], result.sums
        b = jnp.where(size > 1e-10, sums / jnp.maximum(size, 1e-10), 0)
        scatter = self.scatter if result.scatter is None else result.scatter
        target = h.nu0 * s0 * data.inverse_scale + h.floor * h.dof
        total = h.dof + h.nu0
        if self.covariance == "tied":
            eye = jnp.eye(len(self.real), dtype=b.dtype)
            sigma = (scatter - _dot(sums.T, b) + target[:, None] * eye) / total
            # Padded coordinates have unit variance and no part in anything.
            sigma = jnp.where(self.real[:, None] & self.real, sigma, eye)
        else:
            sigma = jnp.maximum(scatter - (sums * b).sum(0), 0) + target
            if self.covariance == "spherical":
                # In these coordinates a sphere has variances proportional to 1/D.
                scale = jnp.where(self.real, 1 / jnp.where(self.real, data.inverse_scale, 1), 0)
                sigma = (sigma * scale).sum() / h.d * data.inverse_scale
            sigma = jnp.where(self.real, sigma / total, 1)
        precision, variances, log_det = _inverse(sigma)
        s0 = h.d / (variances * data.inverse_scale).sum()
        share = jnp.maximum(result.held / self.total, _TINY)
        log_weights = jnp.where(self.free, self.log_k + jnp.log(share), 0)
        return Parameters(b, sigma, precision, log_det, s0, log_weights)

    def precise(self, t: Parameters) -> Parameters:
        """Parameters in the precision of these rows, which may be higher than their own.

        What follows from others is computed anew: times the number of rows, the rounding of a
        determinant, or of weights that should add up to 1, would be of the size of what EM gains.
        """
        t = jax.tree.map(lambda a: a.astype(self.y.dtype), t)
        precision, _, log_det = _inverse(t.sigma)
        share = jnp.exp(t.log_weights - self.log_k)
        share = share if self.active is None else jnp.where(self.active, share, 0)
        log_weights = jnp.where(self.free, t.log_weights - jnp.log(share.sum()), 0)
        return t._replace(precision=precision, log_det=log_det, log_weights=log_weights)

    def logits(self, t: Parameters) -> tuple[jax.Array, jax.Array | None]:
        """Log densities (K, n), times the clusters' weights, and the weights of t errors.

        Without what all clusters share.
        """
        h = self.h
        diagonal = t.precision.ndim == 1
        slope = t.precision * t.b if diagonal else _dot(t.b, t.precision)
        linear = _dot(slope, self.y)
        own = (slope * t.b).sum(-1)[:, None]
        prior = t.log_weights[:, None]
        if not self.robust:
            return linear - 0.5 * own + prior, None
        turned = t.precision[:, None] * self.y if diagonal else _dot(t.precision, self.y)
        q = jnp.maximum((turned * self.y).sum(0) - 2 * linear + own, 0)
        nu, d = h.nu, h.d
        return prior - 0.5 * (nu + d) * jnp.log1p(q / nu), (nu + d) / (nu + q)

    def expand(self, values: jax.Array) -> jax.Array:
        """Values (K, L) of the groups, for every row: (K, n)."""
        if self.n_groups == 1:
            return values
        return jnp.repeat(values[:, self.data.group], self.blocks[1], 1)

    def shares(self, w: jax.Array) -> jax.Array:
        """p(cluster given group), (K, L)."""
        if self.n_groups == 1:
            sums = w.sum(-1, keepdims=True)
        else:
            by_block = w.reshape(-1, *self.blocks).sum(-1).T
            sums = jax.ops.segment_sum(
                by_block, self.data.group, self.n_groups, indices_are_sorted=True
            ).T
        return sums / jnp.maximum(self.data.sizes, _TINY)

    def bar(self, logits: jax.Array, barred: jax.Array | None) -> jax.Array:
        """Without the clusters that do not exist, and those that a row is ``barred`` from."""
        if barred is not None:
            logits = logits + barred
        return logits if self.active is None else jnp.where(self.active[:, None], logits, -jnp.inf)

    def expect(
        self, t: Parameters, u: jax.Array, damp: Any, barred: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array]:
        """E-step: masses w, weights, log weights u (K, L) of balance, and the free energy.

        ``damp`` is kappa / (1 + kappa); None for no balance. What balances the groups is found by
        scaling, as in unbalanced transport; it is exact when it no longer changes.
        """
        logits, weight = self.logits(t)
        logits = self.bar(logits, barred)
        top = logits.max(0)
        e = jnp.exp(logits - top)

        def sweep(_, u):
            # A group that is far from a cluster has to have some share of it all the same.
            f = jnp.maximum(e, _TINY)
            if barred is not None or self.active is not None:
                f = jnp.where(jnp.isinf(logits), 0, f)
            f = f * self.expand(jnp.exp(u))
            p = self.shares(f * (self.mass / f.sum(0)))
            u = damp * (u - self.log_k - jnp.log(jnp.maximum(p, _TINY)))
            # Only differences within a group matter.
            u = jnp.where(damp < 1, u, u - self.bar(u, None).max(0))
            return jnp.clip(u, -_LARGEST, _LARGEST)

        def balanced(u):
            u = jax.lax.fori_loop(0, _SWEEPS, sweep, u)
            return u, e * self.expand(jnp.exp(u))

        f = e
        if damp is not None:
            u, f = jax.lax.cond(damp > 0, balanced, lambda u: (u, e), u)
        total = f.sum(0)
        each = self.mass * (top + jnp.log(total))
        return f * (self.mass / total), weight, u, each.astype(jnp.float64).sum()

    def look(
        self, t: Parameters, u: jax.Array, old: jax.Array | None, damp: Any,
        barred: jax.Array | None,
    ) -> Look:  # fmt: skip
        """E-step of all rows, and what follows from it.

        ``old`` are the masses before, by pieces, or None; see `expect` for the others.
        """
        n = self.mass.shape[0]
        old = self.cut(jnp.zeros((self.k, n), self.y.dtype)) if old is None else old

        def whole() -> Look:
            w, weight, after, free = self.expect(t, u, damp, barred)
            new = self.cut(w)
            return Look(new, self.gather(w, weight), after, free, jnp.abs(new - old).max())

        def by_pieces() -> Look:
            data, m = self.data, self.each
            p, pad = data.y.shape[2], -n % m
            y = jnp.pad(data.y.reshape(n, p), ((0, pad), (0, 0))).reshape(-1, m, p)
            mass = jnp.pad(self.mass, (0, pad)).reshape(-1, m)
            pieces = y, mass, None if barred is None else self.cut(barred), old

            def one(y, mass, barred, old):
                some = data._replace(y=y[None], mass=mass[None], group=data.group[:1])
                part = Model(
                    some, self.h, self.covariance, self.robust, self.k, self.free,
                    self.total, self.scatter,
                )  # fmt: skip
                w, weight, _, free = part.expect(t, u, None, barred)
                return (part.gather(w, weight), free), jnp.abs(w - old).max(), w

            def add(total, piece):
                result, change, w = one(*piece)
                return (jax.tree.map(jnp.add, total[0], result), jnp.maximum(total[1], change)), w

            shape = jax.eval_shape(one, *jax.tree.map(lambda a: a[0], pieces))
            nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape[:2])
            ((sums, free), change), w = jax.lax.scan(add, nothing, pieces)
            return Look(w, sums, u, free, change)

        if len(old) == 1:
            return whole()
        return by_pieces() if damp is None else jax.lax.cond(damp > 0, whole, by_pieces)

    def value(
        self, t: Parameters, w: jax.Array, u: jax.Array, free: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What is maximised, Psi, and the penalty in it; ``free`` is that of `look`."""
        h, wide = self.h, jnp.float64
        precision, d = t.precision.astype(wide), h.d.astype(wide)
        variances = precision if precision.ndim == 1 else jnp.diagonal(precision)
        if not self.robust:
            free = free - 0.5 * (precision * self.scatter).sum()
        s0 = t.s0.astype(wide)
        trace = (variances * self.data.inverse_scale).sum()
        log_det = t.log_det.astype(wide) + h.log_det
        # The divergence of N(0, Sigma) from N(0, s0 I), in which units cancel.
        ridge = 0.5 * (s0 * trace - d + t.log_det + h.log_scale - d * jnp.log(s0))
        floor = 0.5 * h.floor * h.dof * jnp.where(self.real, variances, 0).sum()

        def imbalance():
            p = self.shares(self.joined(w)).astype(wide)
            log_p = jnp.log(jnp.maximum(p, _TINY))
            pull = jnp.where(jnp.isinf(h.kappa), 0, h.kappa)
            off = (self.data.sizes * (p * u).sum(0)).sum()
            cost = (self.data.sizes * (p * (log_p + self.log_k)).sum(0)).sum()
            return off, pull * cost

        none = jnp.zeros_like(free)
        off, cost = jax.lax.cond(h.kappa > 0, imbalance, lambda: (none, none))
        penalty = h.nu0 * ridge + floor + cost
        return free - off + h.constant - 0.5 * h.dof * log_det - penalty, penalty

    def step(
        self, state: State, damp: jax.Array, barred: jax.Array | None
    ) -> tuple[State, jax.Array]:
        """One step, and whether it changed no more than rounding or the tolerance."""
        tol = self.h.tol
        t = self.best(state.sums, state.t.s0)
        result = self.look(t, state.u, state.w, damp, barred)
        reached, penalty = self.value(t, result.w, result.u, result.free)
        rounding = 16 * jnp.finfo(result.w.dtype).eps * jnp.abs(reached)
        still = jnp.abs(reached - state.objective) <= jnp.maximum(tol, rounding)
        quiet = (result.change / self.mass.max() <= tol) & still
        return State(*result[:3], t, reached, penalty), quiet
