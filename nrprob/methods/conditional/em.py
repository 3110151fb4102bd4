"""E-step and M-step of a conditional mixture with one covariance.

The errors have a normal or a multivariate t distribution. The mass of a row is the weight of the
row in the objective. The mass w of a row in a cluster is the membership in the cluster times the
mass of the row. Under t errors, every row also has a weight in every cluster, which is low for
outliers.

Sizes: B blocks of r rows, n = B r rows, L known groups, K clusters and p coordinates, all with
padding. Rows are processed in pieces of m rows, one piece after another.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.placement import on_cpu
from nrprob.statistics.matrices import inverse_and_log_det

_SWEEPS = 5  # balancing sweeps per E-step
_TINY = 1e-30  # lower bound of shares in balancing
_LARGEST = 80.0  # bound of the log weights that balance the groups
_NEAR = 1 << 16  # values per piece of the rows, which fit into the cache of one core
_MANY = 1 << 19  # number of values from which on rows are split into pieces
_HIGHEST = jax.lax.Precision.HIGHEST
_dot = partial(jnp.matmul, precision=_HIGHEST)


class Residuals(NamedTuple):
    """Residuals in coordinates in which their covariance plus the ridge is the identity.

    Attributes
    ----------
    y : (B, r, p) residuals of the rows, in B blocks of r rows of one known group; 0 on padding
    mass : (B, r) masses of the rows, 0 on padding
    group : (B,) known group of every block
    sizes : (L,) total masses of the groups, 0 on padding
    inverse_scale : (p,) 1 / D, where D are the ridged variances of the residuals along the
        coordinates, before they are scaled to 1; 0 on padding
    active : (K,) False for clusters that are padding; None if no cluster is padding
    """

    y: jax.Array
    mass: jax.Array
    group: jax.Array
    sizes: jax.Array
    inverse_scale: jax.Array
    active: jax.Array | None


class Hyperparameters(NamedTuple):
    """Settings of `solve_residuals`. JAX traces all of them, so new values need no compilation.

    Attributes
    ----------
    d : number of coordinates, without padding
    dof : residual degrees of freedom
    n : number of rows, or sum of their weights
    nu0, s0 : weight of the ridge, and initial variance towards which the ridge shrinks
    floor : the M-step adds floor * dof / (dof + nu0) to the variances
    rounding : (p, p) covariance of rounding errors; (p,) variances unless the covariance is "tied"
    log_scale : sum of log D, where D are the variances in `Residuals`
    log_det : log determinant of the ridged covariance of the residuals, in units of the data
    constant : constant part of the log densities in the objective
    kappa : weight of the penalty on unequal cluster shares in a known group
    free : (1,) whether the weights of the clusters are fitted; or (2,) False and True, to run a fit
        with equal and a fit with fitted weights, and select one of them
    nu : degrees of freedom of t errors
    tol, max_iter : convergence criterion, and maximum number of EM steps
    """

    d: Any
    dof: Any
    n: Any
    nu0: Any
    s0: Any
    floor: Any
    rounding: Any
    log_scale: Any
    log_det: Any
    constant: Any
    kappa: Any
    free: Any
    nu: Any
    tol: Any
    max_iter: Any


class Parameters(NamedTuple):
    """Parameters of one restart: K clusters in p coordinates.

    Attributes
    ----------
    b : (K, p) centres
    sigma : (p, p) scale matrix; (p,) if it is diagonal
    precision : inverse of ``sigma``, of the same shape
    log_det : log determinant of ``sigma``
    s0 : variance towards which the ridge shrinks
    log_weights : (K,) log of K times the clusters' weights; 0 if the weights are equal
    """

    b: jax.Array
    sigma: jax.Array
    precision: jax.Array
    log_det: jax.Array
    s0: jax.Array
    log_weights: jax.Array


class Sums(NamedTuple):
    """Sufficient statistics of rows for the M-step.

    The factor of a row in a cluster is the mass of the row in the cluster. Under t errors, the
    factor is the mass times the weight of the row in the cluster.

    Attributes
    ----------
    held : (K,) total masses of the clusters
    size : (K,) sums of the factors; equal to ``held`` for normal errors
    sums : (K, p) sums of the rows times their factors
    scatter : sums over rows and clusters of (p, p) products of the coordinates, or of (p,) squares,
        times the factors; None for normal errors, whose sums do not depend on the clusters
    """

    held: jax.Array
    size: jax.Array
    sums: jax.Array
    scatter: jax.Array | None


class State(NamedTuple):
    """State of one restart after an EM step.

    Attributes
    ----------
    w : (pieces, K, m) masses of the rows in K clusters, in pieces of m rows
    sums : sufficient statistics for the next M-step
    u : (K, L) log weights that balance the shares of the clusters in every known group
    t : parameters
    objective, penalty : the maximised objective, and the penalty that it contains
    """

    w: jax.Array
    sums: Sums
    u: jax.Array
    t: Parameters
    objective: jax.Array
    penalty: jax.Array


class EStep(NamedTuple):
    """Result of an E-step: ``w``, ``sums`` and ``u`` of the next `State`.

    ``free`` is the free energy: the sum over rows of mass times log density, up to constants.
    ``change`` is the largest change of a membership in this E-step.
    """

    w: jax.Array
    sums: Sums
    u: jax.Array
    free: jax.Array
    change: jax.Array


def piece_length(n: int, width: int) -> int:
    """Number of rows that an E-step processes at a time, of ``n`` rows with ``width`` values each.

    The number is ``n`` if there are few rows. The number is also ``n`` on accelerators, which would
    wait between pieces.
    """
    if n * width < _MANY or not on_cpu():
        return n
    return 1 << max(int(math.log2(_NEAR / width)), 7)


def largest_change(new: jax.Array, old: jax.Array, mass: jax.Array) -> jax.Array:
    """Largest absolute change of the membership of a row in a cluster.

    ``old`` and ``new`` are the masses of the rows in the clusters before and after the change.
    ``mass`` are the masses of the rows.
    """
    share = jnp.where(mass > 0, 1 / jnp.where(mass > 0, mass, 1), 0)
    return (jnp.abs(new - old) * share).max()


def _inverse_parts(sigma: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Inverse of a covariance, diagonal of the inverse, and log determinant of the covariance.

    ``sigma`` is the covariance (p, p), or its diagonal (p,) if it is diagonal.
    """
    if sigma.ndim == 1:
        return 1 / sigma, 1 / sigma, jnp.log(sigma).sum()
    precision, log_det, _ = inverse_and_log_det(sigma)
    return precision, jnp.diagonal(precision), log_det


class Model:
    """EM steps of one restart on one set of rows.

    Parameters
    ----------
    data : the rows
    hyperparameters : settings
    covariance : "tied", "diag" or "spherical"
    robust : whether errors have a t distribution
    k : number of clusters, K
    free : whether the weights of the clusters are fitted
    total, scatter : total mass of all rows, and sums of their products (p, p) or squares (p,), if
        ``data`` has only a part of the rows; computed from ``data`` by default
    """

    def __init__(
        self,
        data: Residuals,
        hyperparameters: Hyperparameters,
        covariance: str,
        robust: bool,
        k: int,
        free: jax.Array,
        total: jax.Array | None = None,
        scatter: jax.Array | None = None,
    ):
        b, r, p = data.y.shape
        self.data, self.h, self.k = data, hyperparameters, k
        self.blocks, self.n_groups = (b, r), data.sizes.shape[0]
        self.piece_rows = piece_length(b * r, p + 2 * k)
        self.covariance, self.robust, self.free = covariance, robust, free
        self.y = data.y.reshape(b * r, p).T
        self.mass = data.mass.reshape(-1)
        self.real = jnp.arange(p) < hyperparameters.d
        self.active = data.active
        self.log_k = math.log(k) if self.active is None else jnp.log(self.active.sum())
        self.log_k = jnp.asarray(self.log_k, data.y.dtype)
        self.total = self.mass.sum() if total is None else total
        self.scatter = self.sum_products(self.mass) if scatter is None else scatter

    def sum_products(self, mass: jax.Array) -> jax.Array:
        """Sums over rows of (p, p) products of coordinates times ``mass`` (n,).

        Unless the covariance is "tied", the sums are (p,) squares times the masses.
        """
        if self.covariance == "tied":
            return _dot(self.y * mass, self.y.T)
        return (self.y * mass * self.y).sum(-1)

    def initial_state(self, w: jax.Array) -> State:
        """State before the first EM step, from the masses ``w`` (K, n) of rows in clusters.

        Of the parameters of this state, the first step uses only ``s0``.
        """
        p, dtype = len(self.real), self.y.dtype
        square = jnp.zeros((p, p) if self.covariance == "tied" else p, dtype)
        centres, equal = jnp.zeros((self.k, p), dtype), jnp.zeros(self.k, dtype)
        t = Parameters(centres, square, square, square.sum(), self.h.s0, equal)
        least = jnp.full((), -jnp.inf, jnp.float64)
        u = jnp.zeros((self.k, self.n_groups), dtype)
        sums = self.sufficient_statistics(w, jnp.ones_like(w) if self.robust else None)
        return State(self.to_pieces(w), sums, u, t, least, least)

    def to_pieces(self, values: jax.Array) -> jax.Array:
        """Split values (K, n) of n rows into pieces of m rows: (pieces, K, m)."""
        padded = jnp.pad(values, ((0, 0), (0, -values.shape[1] % self.piece_rows)))
        return jnp.moveaxis(padded.reshape(len(values), -1, self.piece_rows), 1, 0)

    def from_pieces(self, values: jax.Array) -> jax.Array:
        """Join values (pieces, K, m) to values (K, n) of rows; inverse of `to_pieces`."""
        n = self.mass.shape[0]
        return jnp.moveaxis(values, 0, 1).reshape(values.shape[1], -1)[:, :n]

    def row_labels(self, w: jax.Array) -> jax.Array:
        """Labels (n,) of the rows: the clusters with the largest masses ``w`` (pieces, K, m)."""
        return w.argmax(1).reshape(-1)[: self.mass.shape[0]].astype(jnp.int32)

    def sufficient_statistics(self, w: jax.Array, weight: jax.Array | None) -> Sums:
        """Sufficient statistics of all rows for the M-step.

        ``w`` (K, n) are the masses of the rows in the clusters. ``weight`` (K, n) are the weights
        under t errors; None for normal errors.
        """
        a = w if weight is None else w * weight
        scatter = None if weight is None else self.sum_products(a.sum(0))
        return Sums(w.sum(-1), a.sum(-1), _dot(a, self.y.T), scatter)

    def m_step(self, sums: Sums, s0: jax.Array) -> Parameters:
        """M-step: parameters that maximise the objective, given the sufficient statistics.

        ``s0`` is the variance towards which the ridge shrank in the previous step.
        """
        h, data = self.h, self.data
        size, row_sums = sums.size[:, None], sums.sums
        b = jnp.where(size > 1e-10, row_sums / jnp.maximum(size, 1e-10), 0)
        scatter = self.scatter if sums.scatter is None else sums.scatter
        target = h.nu0 * s0 * data.inverse_scale + h.floor * h.dof
        total = h.dof + h.nu0
        if self.covariance == "tied":
            eye = jnp.eye(len(self.real), dtype=b.dtype)
            scatter = scatter + h.dof * h.rounding
            sigma = (scatter - _dot(row_sums.T, b) + target[:, None] * eye) / total
            # Padded coordinates have unit variance and no influence.
            sigma = jnp.where(self.real[:, None] & self.real, sigma, eye)
        else:
            sigma = jnp.maximum(scatter - (row_sums * b).sum(0), 0) + h.dof * h.rounding + target
            if self.covariance == "spherical":
                # In these coordinates a sphere has variances proportional to 1/D.
                scale = jnp.where(self.real, 1 / jnp.where(self.real, data.inverse_scale, 1), 0)
                sigma = (sigma * scale).sum() / h.d * data.inverse_scale
            sigma = jnp.where(self.real, sigma / total, 1)
        precision, variances, log_det = _inverse_parts(sigma)
        s0 = h.d / (variances * data.inverse_scale).sum()
        share = jnp.maximum(sums.held / self.total, _TINY)
        log_weights = jnp.where(self.free, self.log_k + jnp.log(share), 0)
        return Parameters(b, sigma, precision, log_det, s0, log_weights)

    def cast_parameters(self, t: Parameters) -> Parameters:
        """Convert parameters to the floating-point type of the rows of this model.

        If this type is wider, the method computes determinants and weights again. Their rounding
        errors, multiplied by the number of rows, would be as large as the gain of an EM step.
        """
        t = jax.tree.map(lambda a: a.astype(self.y.dtype), t)
        precision, _, log_det = _inverse_parts(t.sigma)
        share = jnp.exp(t.log_weights - self.log_k)
        share = share if self.active is None else jnp.where(self.active, share, 0)
        log_weights = jnp.where(self.free, t.log_weights - jnp.log(share.sum()), 0)
        return t._replace(precision=precision, log_det=log_det, log_weights=log_weights)

    def row_logits(self, t: Parameters) -> tuple[jax.Array, jax.Array | None]:
        """Log weight plus log density (K, n) of every row in every cluster.

        The log densities lack terms that all clusters have in common. The method also returns the
        weights (K, n) of the rows under t errors; None for normal errors.
        """
        h = self.h
        diagonal = t.precision.ndim == 1
        slope = t.precision * t.b if diagonal else _dot(t.b, t.precision)
        linear = _dot(slope, self.y)
        centre_square = (slope * t.b).sum(-1)[:, None]
        prior = t.log_weights[:, None]
        if not self.robust:
            return linear - 0.5 * centre_square + prior, None
        scaled = t.precision[:, None] * self.y if diagonal else _dot(t.precision, self.y)
        q = jnp.maximum((scaled * self.y).sum(0) - 2 * linear + centre_square, 0)
        nu, d = h.nu, h.d
        return prior - 0.5 * (nu + d) * jnp.log1p(q / nu), (nu + d) / (nu + q)

    def expand_groups(self, values: jax.Array) -> jax.Array:
        """Repeat values (K, L) of the known groups for the rows of every group: (K, n)."""
        if self.n_groups == 1:
            return values
        return jnp.repeat(values[:, self.data.group], self.blocks[1], 1)

    def group_shares(self, w: jax.Array) -> jax.Array:
        """Shares (K, L) of the clusters in every known group, from masses ``w`` (K, n)."""
        if self.n_groups == 1:
            sums = w.sum(-1, keepdims=True)
        else:
            by_block = w.reshape(-1, *self.blocks).sum(-1).T
            sums = jax.ops.segment_sum(
                by_block, self.data.group, self.n_groups, indices_are_sorted=True
            ).T
        return sums / jnp.maximum(self.data.sizes, _TINY)

    def mask_logits(self, logits: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Set logits (K, n) to -inf for padding clusters, and where ``mask`` (K, n) is -inf."""
        if mask is not None:
            logits = logits + mask
        return logits if self.active is None else jnp.where(self.active[:, None], logits, -jnp.inf)

    def e_step(
        self, t: Parameters, u: jax.Array, damp: Any, mask: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array]:
        """E-step: masses (K, n), weights (K, n) under t errors, ``u``, and the free energy.

        Scaling iterations, as in unbalanced optimal transport, make the shares of the clusters more
        equal in every known group. Their result is exact when EM has converged.

        Parameters
        ----------
        t : parameters
        u : (K, L) log weights that balance the shares of the clusters in every known group; the
            E-step updates them
        damp : kappa / (1 + kappa), with the weight kappa of the penalty on unequal cluster shares;
            None without this penalty
        mask : (K, n) -inf for clusters that the label of a row excludes, else 0; None without
            labels
        """
        logits, weight = self.row_logits(t)
        logits = self.mask_logits(logits, mask)
        top = logits.max(0)
        e = jnp.exp(logits - top)

        def balance_sweep(_, u):
            # In every group, every cluster needs a positive share.
            f = jnp.maximum(e, _TINY)
            if mask is not None or self.active is not None:
                f = jnp.where(jnp.isinf(logits), 0, f)
            f = f * self.expand_groups(jnp.exp(u))
            p = self.group_shares(f * (self.mass / f.sum(0)))
            u = damp * (u - self.log_k - jnp.log(jnp.maximum(p, _TINY)))
            # Only differences within a group matter.
            u = jnp.where(damp < 1, u, u - self.mask_logits(u, None).max(0))
            return jnp.clip(u, -_LARGEST, _LARGEST)

        def apply_balance(u):
            u = jax.lax.fori_loop(0, _SWEEPS, balance_sweep, u)
            return u, e * self.expand_groups(jnp.exp(u))

        f = e
        if damp is not None:
            u, f = jax.lax.cond(damp > 0, apply_balance, lambda u: (u, e), u)
        total = f.sum(0)
        row_energy = self.mass * (top + jnp.log(total))
        return f * (self.mass / total), weight, u, row_energy.astype(jnp.float64).sum()

    def evaluate_rows(
        self, t: Parameters, u: jax.Array, old: jax.Array | None, damp: Any,
        mask: jax.Array | None,
    ) -> EStep:  # fmt: skip
        """E-step of all rows, with sufficient statistics.

        ``old`` are the previous masses (pieces, K, m) of the rows in the clusters; None counts as
        masses of 0. The other arguments are as in `e_step`.
        """
        n = self.mass.shape[0]
        old = self.to_pieces(jnp.zeros((self.k, n), self.y.dtype)) if old is None else old

        def all_rows() -> EStep:
            w, weight, after, free = self.e_step(t, u, damp, mask)
            new = self.to_pieces(w)
            change = largest_change(new, old, self.to_pieces(self.mass[None]))
            return EStep(new, self.sufficient_statistics(w, weight), after, free, change)

        def by_pieces() -> EStep:
            data, m = self.data, self.piece_rows
            p, pad = data.y.shape[2], -n % m
            y = jnp.pad(data.y.reshape(n, p), ((0, pad), (0, 0))).reshape(-1, m, p)
            mass = jnp.pad(self.mass, (0, pad)).reshape(-1, m)
            pieces = y, mass, None if mask is None else self.to_pieces(mask), old

            def piece_sums(y, mass, mask, old):
                some = data._replace(y=y[None], mass=mass[None], group=data.group[:1])
                part = Model(
                    some, self.h, self.covariance, self.robust, self.k, self.free,
                    self.total, self.scatter,
                )  # fmt: skip
                w, weight, _, free = part.e_step(t, u, None, mask)
                change = largest_change(w, old, mass)
                return (part.sufficient_statistics(w, weight), free), change, w

            def add_piece(total, piece):
                result, change, w = piece_sums(*piece)
                return (jax.tree.map(jnp.add, total[0], result), jnp.maximum(total[1], change)), w

            shape = jax.eval_shape(piece_sums, *jax.tree.map(lambda a: a[0], pieces))
            nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape[:2])
            ((sums, free), change), w = jax.lax.scan(add_piece, nothing, pieces)
            return EStep(w, sums, u, free, change)

        if len(old) == 1:
            return all_rows()
        return by_pieces() if damp is None else jax.lax.cond(damp > 0, all_rows, by_pieces)

    def objective_value(
        self, t: Parameters, w: jax.Array, u: jax.Array, free: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Maximised objective, and the penalty that it contains.

        Parameters
        ----------
        t : parameters
        w : (pieces, K, m) masses of the rows in the clusters
        u : (K, L) log weights that balance the shares of the clusters in every known group
        free : free energy from `evaluate_rows`
        """
        h, wide = self.h, jnp.float64
        precision, d = t.precision.astype(wide), h.d.astype(wide)
        variances = precision if precision.ndim == 1 else jnp.diagonal(precision)
        if not self.robust:
            free = free - 0.5 * (precision * self.scatter).sum()
        s0 = t.s0.astype(wide)
        trace = (variances * self.data.inverse_scale).sum()
        log_det = t.log_det.astype(wide) + h.log_det
        # The divergence D[N(0, s0 I) || N(0, Sigma)], in which the units of the data cancel.
        ridge = 0.5 * (s0 * trace - d + t.log_det + h.log_scale - d * jnp.log(s0))
        floor = 0.5 * h.floor * h.dof * jnp.where(self.real, variances, 0).sum()
        rounding = 0.5 * h.dof.astype(wide) * (precision * h.rounding).sum()

        def balance_terms():
            p = self.group_shares(self.from_pieces(w)).astype(wide)
            log_p = jnp.log(jnp.maximum(p, _TINY))
            kappa = jnp.where(jnp.isinf(h.kappa), 0, h.kappa)
            off = (self.data.sizes * (p * u).sum(0)).sum()
            cost = (self.data.sizes * (p * (log_p + self.log_k)).sum(0)).sum()
            return off, kappa * cost

        none = jnp.zeros_like(free)
        off, cost = jax.lax.cond(h.kappa > 0, balance_terms, lambda: (none, none))
        penalty = h.nu0 * ridge + floor + rounding + cost
        return free - off + h.constant - 0.5 * h.dof * log_det - penalty, penalty

    def em_step(
        self, state: State, damp: jax.Array, mask: jax.Array | None
    ) -> tuple[State, jax.Array]:
        """Take an EM step; return the state, and whether EM has converged.

        EM has converged if no membership changed by more than ``tol``, and the objective changed by
        no more than ``tol`` or its rounding error. ``damp`` and ``mask`` are as in `e_step`.
        """
        tol = self.h.tol
        t = self.m_step(state.sums, state.t.s0)
        result = self.evaluate_rows(t, state.u, state.w, damp, mask)
        objective, penalty = self.objective_value(t, result.w, result.u, result.free)
        rounding = 16 * jnp.finfo(result.w.dtype).eps * jnp.abs(objective)
        stationary = jnp.abs(objective - state.objective) <= jnp.maximum(tol, rounding)
        converged = (result.change <= tol) & stationary
        return State(*result[:3], t, objective, penalty), converged
