"""EM for a mixture of residuals with one covariance, from many starts side by side."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines import solve
from nrprob.engines.shuffle import stream
from nrprob.methods.residual.starts import align, kmeans, name_classes

CAPACITY = 512  # entries of the trace
_SWEEPS = 5  # of balancing, in every step
_WARM = 30  # steps of a balanced warm-up at most
_CERTAIN = 0.95  # membership of a row in its cluster at the start
_TINY = 1e-30  # share of a cluster that balancing takes for none
_LARGEST = 80.0  # logarithm of a weight that balances
_HIGHEST = jax.lax.Precision.HIGHEST


class Residuals(NamedTuple):
    """Residuals in coordinates in which their ridged covariance is the identity.

    Attributes
    ----------
    y : (B, r, p) rows, 0 on padding
    mass : (B, r), 0 on padding
    group : (B,) of every block
    sizes : (L,) of the groups
    maps : (M, p, p) from y to what each metric of the starts sees
    inverse_scale : (p,) 1/D, where D are the variances of the coordinates before; 0 on padding
    """

    y: jax.Array
    mass: jax.Array
    group: jax.Array
    sizes: jax.Array
    maps: jax.Array
    inverse_scale: jax.Array


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
    nu: Any
    tol: Any
    max_iter: Any


class Fit(NamedTuple):
    """What `nrprob.engines.solve.Solution` adds.

    Attributes
    ----------
    log_likelihood, penalty : of the best restart, in nats
    centres : (K, p) of the best restart
    covariance : (p, p) scale matrix Sigma; (p,) unless tied
    offset : (K, L) log weights that balance the known groups
    steps : (S,) EM steps of every restart
    """

    log_likelihood: jax.Array
    penalty: jax.Array
    centres: jax.Array
    covariance: jax.Array
    offset: jax.Array
    steps: jax.Array


class Parameters(NamedTuple):
    """Of C restarts side by side.

    Attributes
    ----------
    b : (C, K, p) centres
    sigma : (C, p, p) scale matrix; (C, p) where it is diagonal
    precision : its inverse, of the same shape
    log_det : (C,) log determinant of ``sigma``
    s0 : (C,) variance that the ridge shrinks to, in the units of the residuals
    """

    b: jax.Array
    sigma: jax.Array
    precision: jax.Array
    log_det: jax.Array
    s0: jax.Array


class Model:
    """The steps of EM on one set of rows. Memberships are (C, K, n), for C restarts."""

    def __init__(self, data: Residuals, numbers: Numbers, covariance: str, robust: bool, k: int):
        b, r, p = data.y.shape
        self.data, self.h, self.k = data, numbers, k
        self.blocks, self.n_groups = (b, r), data.sizes.shape[0]
        self.covariance, self.robust = covariance, robust
        self.y = data.y.reshape(b * r, p).T
        self.mass = data.mass.reshape(-1)
        self.real = jnp.arange(p) < numbers.d
        masked = self.y * self.mass
        if covariance == "tied":
            self.scatter = jnp.einsum("dn,en->de", masked, self.y, precision=_HIGHEST)
        else:
            self.scatter = (masked * self.y).sum(-1)
        self.n = self.mass.sum()

    def maximise(self, w: jax.Array, weight: jax.Array | None, s0: jax.Array) -> Parameters:
        """M-step: parameters that are best for masses ``w``; ``weight`` (C, K, n) of t errors."""
        h, data = self.h, self.data
        a = w if weight is None else w * weight
        size = a.sum(-1)[..., None]
        sums = jnp.einsum("ckn,dn->ckd", a, self.y, precision=_HIGHEST)
        b = jnp.where(size > 1e-10, sums / jnp.maximum(size, 1e-10), 0)
        tied = self.covariance == "tied"
        if tied:
            scatter = self.scatter
            if weight is not None:
                v = self.y * a.sum(1)[:, None]  # (C, d, n)
                scatter = jnp.einsum("cdn,en->cde", v, self.y, precision=_HIGHEST)
            between = jnp.einsum("ckd,cke->cde", sums, b, precision=_HIGHEST)
        else:
            scatter = self.scatter
            if weight is not None:
                scatter = jnp.einsum("cn,dn->cd", a.sum(1), self.y**2, precision=_HIGHEST)
            between = (sums * b).sum(1)
        target = h.nu0 * s0[:, None] * data.inverse_scale + h.floor * h.dof
        total = h.dof + h.nu0
        if tied:
            eye = jnp.eye(len(self.real), dtype=b.dtype)
            sigma = (scatter - between + target[:, None] * eye) / total
            # Padded coordinates have unit variance and no part in anything.
            sigma = jnp.where(self.real[:, None] & self.real, sigma, eye)
            root = jnp.linalg.cholesky(sigma)
            log_det = 2 * jnp.log(jnp.diagonal(root, axis1=1, axis2=2)).sum(-1)
            wide = jnp.broadcast_to(eye, sigma.shape)
            half = jax.scipy.linalg.solve_triangular(root, wide, lower=True)
            precision = jnp.einsum("cij,cik->cjk", half, half, precision=_HIGHEST)
            variances = jnp.diagonal(precision, axis1=1, axis2=2)
        else:
            sigma = jnp.maximum(scatter - between, 0) + target
            if self.covariance == "spherical":
                # In these coordinates a sphere has variances proportional to 1/D.
                scale = jnp.where(self.real, 1 / jnp.where(self.real, data.inverse_scale, 1), 0)
                sigma = (sigma * scale).sum(-1, keepdims=True) / h.d * data.inverse_scale
            sigma = jnp.where(self.real, sigma / total, 1)
            log_det = jnp.log(sigma).sum(-1)
            precision = variances = 1 / sigma
        s0 = h.d / (variances * data.inverse_scale).sum(-1)
        return Parameters(b, sigma, precision, log_det, s0)

    def blank(self, c: int) -> Parameters:
        """What the first M-step of c restarts begins with."""
        p, dtype = len(self.real), self.y.dtype
        square = jnp.zeros((c, p, p) if self.covariance == "tied" else (c, p), dtype)
        s0 = jnp.broadcast_to(self.h.s0, (c,))
        return Parameters(jnp.zeros((c, self.k, p), dtype), square, square, jnp.zeros_like(s0), s0)

    def _times(self, precision: jax.Array, b: jax.Array) -> jax.Array:
        if precision.ndim == 2:
            return precision[:, None] * b
        return jnp.einsum("cij,ckj->cki", precision, b, precision=_HIGHEST)

    def logits(self, t: Parameters) -> tuple[jax.Array, jax.Array | None]:
        """Log densities (C, K, n) up to what all clusters share, and the weights of t errors."""
        h = self.h
        slope = self._times(t.precision, t.b)
        linear = jnp.einsum("ckd,dn->ckn", slope, self.y, precision=_HIGHEST)
        own = (slope * t.b).sum(-1)[..., None]
        if not self.robust:
            return linear - 0.5 * own, None
        if t.precision.ndim == 2:
            square = jnp.einsum("cd,dn->cn", t.precision, self.y**2, precision=_HIGHEST)
        else:
            turned = jnp.einsum("cij,jn->cin", t.precision, self.y, precision=_HIGHEST)
            square = (turned * self.y).sum(1)
        q = jnp.maximum(square[:, None] - 2 * linear + own, 0)
        nu, d = h.nu, h.d
        return -0.5 * (nu + d) * jnp.log1p(q / nu), (nu + d) / (nu + q)

    def expand(self, values: jax.Array) -> jax.Array:
        """Values (C, K, L) of the groups, for every row: (C, K, n)."""
        if self.n_groups == 1:
            return values
        out = jnp.repeat(values[:, :, self.data.group, None], self.blocks[1], 3)
        return out.reshape(*values.shape[:2], -1)

    def shares(self, w: jax.Array) -> jax.Array:
        """p(cluster given group), (C, K, L)."""
        c, k, _ = w.shape
        if self.n_groups == 1:
            sums = w.sum(-1, keepdims=True)
        else:
            by_block = w.reshape(c * k, *self.blocks).sum(-1).T
            sums = jax.ops.segment_sum(
                by_block, self.data.group, self.n_groups, indices_are_sorted=True
            ).T.reshape(c, k, -1)
        return sums / self.data.sizes

    def expect(
        self, t: Parameters, u: jax.Array, damp: jax.Array, barred: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array]:
        """E-step: masses w, weights, log weights u (C, K, L) of balance, and the free energy (C,).

        ``damp`` (C,) is kappa / (1 + kappa). What balances the groups is found by scaling, as in
        unbalanced transport; it is exact when it no longer changes.
        """
        logits, weight = self.logits(t)
        if barred is not None:
            logits = logits + barred
        top = logits.max(1, keepdims=True)
        e = jnp.exp(logits - top)
        force = damp[:, None, None]

        def sweep(_, u):
            # A group that is far from a cluster has to have some share of it all the same.
            f = jnp.maximum(e, _TINY)
            if barred is not None:
                f = jnp.where(jnp.isinf(barred), 0, f)
            f = f * self.expand(jnp.exp(u))
            p = self.shares(f * (self.mass / f.sum(1, keepdims=True)))
            u = force * (u - math.log(self.k) - jnp.log(jnp.maximum(p, _TINY)))
            # Only differences within a group matter.
            u = jnp.where(force < 1, u, u - u.max(1, keepdims=True))
            return jnp.clip(u, -_LARGEST, _LARGEST)

        def balanced(u):
            u = jax.lax.fori_loop(0, _SWEEPS, sweep, u)
            return u, e * self.expand(jnp.exp(u))

        u, f = jax.lax.cond((damp > 0).any(), balanced, lambda u: (u, e), u)
        total = f.sum(1, keepdims=True)
        each = self.mass * (top + jnp.log(total))[:, 0]
        return f * (self.mass / total), weight, u, each.astype(jnp.float64).sum(-1)

    def value(
        self, t: Parameters, w: jax.Array, u: jax.Array, free: jax.Array, kappa: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What is maximised, Psi (C,), and the penalty in it; ``free`` is that of `expect`."""
        h, wide = self.h, jnp.float64
        precision, d = t.precision.astype(wide), h.d.astype(wide)
        variances = precision
        if precision.ndim == 3:
            variances = jnp.diagonal(precision, axis1=1, axis2=2)
        if not self.robust:
            free = free - 0.5 * (precision * self.scatter).sum(range(1, precision.ndim))
        s0 = t.s0.astype(wide)
        trace = (variances * self.data.inverse_scale).sum(-1)
        log_det = t.log_det.astype(wide) + h.log_det
        # The divergence of N(0, Sigma) from N(0, s0 I), in which units cancel.
        ridge = 0.5 * (s0 * trace - d + t.log_det + h.log_scale - d * jnp.log(s0))
        floor = 0.5 * h.floor * h.dof * jnp.where(self.real, variances, 0).sum(-1)

        def imbalance():
            p = self.shares(w).astype(wide)
            log_p = jnp.log(jnp.maximum(p, _TINY))
            pull = jnp.where(jnp.isinf(kappa), 0, kappa)
            off = (self.data.sizes * (p * u).sum(1)).sum(-1)
            cost = (self.data.sizes * (p * (log_p + math.log(self.k))).sum(1)).sum(-1)
            return off, pull * cost

        none = jnp.zeros_like(free)
        off, cost = jax.lax.cond(kappa > 0, imbalance, lambda: (none, none))
        penalty = h.nu0 * ridge + floor + cost
        return free - off + h.constant - 0.5 * h.dof * log_det - penalty, penalty


def make_starts(
    data: Residuals, fixed: jax.Array | None, seed: jax.Array, k: int, each: int, aligned: bool
) -> jax.Array:
    """Labels (S, B, r): in every metric ``each`` of all rows, then as many of aligned groups."""
    z = jnp.einsum("brp,mpq->mbrq", data.y, data.maps, precision=_HIGHEST)
    n_groups = data.sizes.shape[0]
    # In turn, so that k-means is compiled once: here all rows are one group among empty ones.
    groups = jnp.stack([jnp.zeros_like(data.group), data.group][: 2 if aligned else 1])
    labels, centres, sizes = jax.lax.map(
        lambda part: kmeans(z, data.mass, part[0], n_groups, k, each, part[1]),
        (groups, stream(seed, jnp.arange(len(groups)))),
    )
    if aligned:
        again = align(labels[1], centres[1], sizes[1], data.group, stream(seed, 2))
        labels = jnp.stack([labels[0], again])
    labels = labels.reshape(-1, *labels.shape[2:])
    return labels if fixed is None else name_classes(labels, fixed, k)


def schedule(n_init: int, n_kinds: int) -> tuple[int, np.ndarray]:
    """Starts of every one of ``n_kinds`` kinds, and which of all these make ``n_init`` restarts.

    The kinds take turns, so that none has two more than another; what is drawn is kind by kind.
    """
    each = -(-n_init // n_kinds)
    turn = np.arange(each) * n_kinds + np.arange(n_kinds)[:, None]
    return each, np.flatnonzero(turn.reshape(-1) < n_init)


@partial(
    jax.jit,
    static_argnames=(
        "n_clusters", "n_init", "aligned", "warm_up", "covariance", "robust", "side_by_side",
    ),
)  # fmt: skip
def solve_residuals(
    data: Residuals,
    numbers: Numbers,
    seed: jax.Array,
    fixed: jax.Array | None,
    *,
    n_clusters: int,
    n_init: int,
    aligned: bool,
    warm_up: bool,
    covariance: str,
    robust: bool,
    side_by_side: int,
) -> solve.Solution:
    """Make the starts, run EM from all of them, and keep the best.

    With ``warm_up`` every start is used twice: as it is, and after EM with balanced groups.
    ``side_by_side`` restarts run at a time, until the last of them has converged.
    """
    model = Model(data, numbers, covariance, robust, n_clusters)
    dtype, k = data.y.dtype, n_clusters
    n = model.mass.size
    n_kinds = data.maps.shape[0] * (2 if aligned else 1) * (2 if warm_up else 1)
    each, kept = schedule(n_init, n_kinds)
    starts = make_starts(data, fixed, seed, k, each, aligned).reshape(-1, n)
    barred = None
    if fixed is not None:
        flat = fixed.reshape(-1)
        other = (flat >= 0) & (flat != jnp.arange(k)[:, None])
        barred = jnp.where(other, -jnp.inf, jnp.zeros((), dtype))
    s = len(starts)
    final = numbers.kappa
    damp = jnp.where(jnp.isinf(final), 1, final / (1 + final)).astype(dtype)

    def run(labels, warm):
        """EM from labels (C, n); ``warm`` (C,) says which are to be warmed up."""
        c = len(labels)
        lane = jnp.arange(c)
        hit = labels[:, None] == jnp.arange(k)[:, None]
        w = jnp.where(hit, _CERTAIN, 0) + (1 - _CERTAIN) / k
        if fixed is not None:
            w = jnp.where(flat >= 0, hit, w)
        w = (w * model.mass).astype(dtype)
        weight = jnp.ones((c, k, n), dtype) if robust else None
        u = jnp.zeros((c, k, data.sizes.shape[0]), dtype)
        t = model.blank(c)
        count = jnp.zeros(c, jnp.int32)
        none = jnp.zeros(c, bool)
        old = jnp.full(c, -jnp.inf, jnp.float64)
        trace = jnp.full((CAPACITY, c), jnp.nan, jnp.float64)

        def keep(when, a, b):
            """``a`` where ``when`` (C,), else ``b``."""
            return jax.tree.map(
                lambda a, b: jnp.where(when.reshape(-1, *[1] * (a.ndim - 1)), a, b), a, b
            )

        def step(carry):
            w, weight, u, t, warm, count, done, settled, (old, _), trace = carry
            new = keep(done, t, model.maximise(w, weight, t.s0))
            force = jnp.where(warm, 1, damp).astype(dtype)
            next_w, next_weight, next_u, free = model.expect(new, u, force, barred)
            reached, penalty = model.value(new, next_w, next_u, free, final)
            change = jnp.abs(next_w - w).max((1, 2)) / model.mass.max()
            rounding = 16 * jnp.finfo(dtype).eps * jnp.abs(reached)
            still = jnp.abs(reached - old) <= jnp.maximum(numbers.tol, rounding)
            quiet = (change <= numbers.tol) & still
            at = jnp.minimum(count, CAPACITY - 1)
            shown = jnp.where(done, trace[at, lane], jnp.where(warm, jnp.nan, reached))
            trace = trace.at[at, lane].set(shown)
            w, u = keep(done, (w, u), (next_w, next_u))
            if robust:
                weight = keep(done, weight, next_weight)
            count = count + ~done
            # A start that has been warmed up begins again, from the memberships it has.
            over = warm & (quiet | (count >= _WARM))
            settled = settled | (quiet & ~warm)
            done = settled | (~warm & (count >= numbers.max_iter))
            old = jnp.where(over, -jnp.inf, reached)
            count = jnp.where(over, 0, count)
            u = keep(over, jnp.zeros_like(u), u)
            values = old, penalty
            return w, weight, u, new, warm & ~over, count, done, settled, values, trace

        carry = w, weight, u, t, warm, count, none, none, (old, old), trace
        carry = jax.lax.while_loop(lambda carry: ~carry[6].all(), step, carry)
        w, _, u, t, _, count, _, settled, values, trace = carry
        return w.argmax(1).astype(jnp.int32), *values, settled, count, trace.T, t, u

    size = max(d for d in range(1, min(side_by_side, n_init) + 1) if n_init % d == 0)
    split = starts[kept % s].reshape(-1, size, n)
    flags = jnp.asarray(kept >= s).reshape(-1, size)
    found = jax.lax.map(lambda part: run(*part), (split, flags))
    found = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), found)
    labels, reached, penalty, settled, count, trace, t, u = found
    best = reached.argmax()
    t, u = jax.tree.map(lambda a: a[best][None], (t, u))
    logits = model.logits(t)[0] + model.expand(u)
    w = model.mass * jax.nn.softmax(logits if barred is None else logits + barred, axis=1)
    penalty = penalty[best]
    b, r = model.blocks
    return solve.Solution(
        labels=jnp.moveaxis(labels.reshape(-1, b, r), 0, -1),
        objective=-reached,
        converged=settled,
        n_iter=count[best],
        w=jnp.moveaxis(w[0].reshape(k, b, r), 0, -1),
        trace=-trace[best],
        fit=Fit(reached[best] + penalty, penalty, t.b[0], t.sigma[0], u[0], count),
    )
