"""EM for a mixture of residuals with one covariance, from many starts side by side."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines import solve
from nrprob.engines.iterate import blank, iterate, restarts
from nrprob.engines.shuffle import stream
from nrprob.methods.residual.starts import align, kmeans, name_classes
from nrprob.statistics.xlogx import xlogx

CAPACITY = 512  # entries of the trace
_SWEEPS = 5  # of balancing, in every step
_WARM = 30  # steps of a balanced warm-up at most
_CERTAIN = 0.95  # membership of a row in its cluster at the start
_TINY = 1e-30  # share of a cluster that balancing takes for none
_CLEARER = 0.1  # of log K: fall of the memberships' mean entropy for which weights are freed
_ALIKE = 0.8  # adjusted Rand index at which they are freed all the same
_LARGEST = 80.0  # logarithm of a weight that balances
_HIGHEST = jax.lax.Precision.HIGHEST
_dot = partial(jnp.matmul, precision=_HIGHEST)


class Residuals(NamedTuple):
    """Residuals in coordinates in which their ridged covariance is the identity.

    Attributes
    ----------
    y : (B, r, p) rows, 0 on padding
    mass : (B, r), 0 on padding
    number : (B, r) places of the rows among the user's
    group : (B,) of every block
    sizes : (L,) of the groups, 0 on padding
    maps : (M, p, p) from y to what each metric of the starts sees
    inverse_scale : (p,) 1/D, where D are the variances of the coordinates before; 0 on padding
    active : (K,) False for clusters that are padding; None where there are none
    """

    y: jax.Array
    mass: jax.Array
    number: jax.Array
    group: jax.Array
    sizes: jax.Array
    maps: jax.Array
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


class Fit(NamedTuple):
    """What `nrprob.engines.solve.Solution` adds.

    Attributes
    ----------
    log_likelihood, penalty : of the best restart, in nats
    centres : (K, p) of the best restart
    covariance : (p, p) scale matrix Sigma; (p,) unless tied
    offset : (K, L) log weights that balance the known groups
    log_weights : (K,) log of K times the clusters' weights
    steps : (S,) EM steps of every restart
    free : whether the weights were fitted
    """

    log_likelihood: jax.Array
    penalty: jax.Array
    centres: jax.Array
    covariance: jax.Array
    offset: jax.Array
    log_weights: jax.Array
    steps: jax.Array
    free: jax.Array


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


class State(NamedTuple):
    """What one restart has after a step.

    Attributes
    ----------
    w : (K, n) masses
    weight : (K, n) of t errors; None for normal ones
    u : (K, L) log weights that balance the known groups
    t : parameters
    objective, penalty : what is maximised, and the penalty in it
    """

    w: jax.Array
    weight: jax.Array | None
    u: jax.Array
    t: Parameters
    objective: jax.Array
    penalty: jax.Array


class Model:
    """The steps of EM on one set of rows, of one restart. Memberships are (K, n)."""

    def __init__(
        self,
        data: Residuals,
        numbers: Numbers,
        covariance: str,
        robust: bool,
        k: int,
        free: jax.Array,
    ):
        b, r, p = data.y.shape
        self.data, self.h, self.k = data, numbers, k
        self.blocks, self.n_groups = (b, r), data.sizes.shape[0]
        self.covariance, self.robust, self.free = covariance, robust, free
        self.y = data.y.reshape(b * r, p).T
        self.mass = data.mass.reshape(-1)
        self.real = jnp.arange(p) < numbers.d
        self.active = data.active
        self.log_k = math.log(k) if self.active is None else jnp.log(self.active.sum())
        self.log_k = jnp.asarray(self.log_k, data.y.dtype)
        self.scatter = self._scatter(self.mass)

    def _scatter(self, mass: jax.Array) -> jax.Array:
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
        return State(w, jnp.ones_like(w) if self.robust else None, u, t, least, least)

    def maximise(self, w: jax.Array, weight: jax.Array | None, s0: jax.Array) -> Parameters:
        """M-step: parameters that are best for masses ``w``; ``weight`` (K, n) of t errors."""
        h, data = self.h, self.data
        a = w if weight is None else w * weight
        size = a.sum(-1)[:, None]
        sums = _dot(a, self.y.T)
        b = jnp.where(size > 1e-10, sums / jnp.maximum(size, 1e-10), 0)
        scatter = self.scatter if weight is None else self._scatter(a.sum(0))
        target = h.nu0 * s0 * data.inverse_scale + h.floor * h.dof
        total = h.dof + h.nu0
        if self.covariance == "tied":
            eye = jnp.eye(len(self.real), dtype=b.dtype)
            sigma = (scatter - _dot(sums.T, b) + target[:, None] * eye) / total
            # Padded coordinates have unit variance and no part in anything.
            sigma = jnp.where(self.real[:, None] & self.real, sigma, eye)
            root = jnp.linalg.cholesky(sigma)
            log_det = 2 * jnp.log(jnp.diagonal(root)).sum()
            half = jax.scipy.linalg.solve_triangular(root, eye, lower=True)
            precision = _dot(half.T, half)
            variances = jnp.diagonal(precision)
        else:
            sigma = jnp.maximum(scatter - (sums * b).sum(0), 0) + target
            if self.covariance == "spherical":
                # In these coordinates a sphere has variances proportional to 1/D.
                scale = jnp.where(self.real, 1 / jnp.where(self.real, data.inverse_scale, 1), 0)
                sigma = (sigma * scale).sum() / h.d * data.inverse_scale
            sigma = jnp.where(self.real, sigma / total, 1)
            log_det = jnp.log(sigma).sum()
            precision = variances = 1 / sigma
        s0 = h.d / (variances * data.inverse_scale).sum()
        share = jnp.maximum(w.sum(-1) / self.mass.sum(), _TINY)
        log_weights = jnp.where(self.free, self.log_k + jnp.log(share), 0)
        return Parameters(b, sigma, precision, log_det, s0, log_weights)

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
        self, t: Parameters, u: jax.Array, damp: jax.Array, barred: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None, jax.Array, jax.Array]:
        """E-step: masses w, weights, log weights u (K, L) of balance, and the free energy.

        ``damp`` is kappa / (1 + kappa). What balances the groups is found by scaling, as in
        unbalanced transport; it is exact when it no longer changes.
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

        u, f = jax.lax.cond(damp > 0, balanced, lambda u: (u, e), u)
        total = f.sum(0)
        each = self.mass * (top + jnp.log(total))
        return f * (self.mass / total), weight, u, each.astype(jnp.float64).sum()

    def value(
        self, t: Parameters, w: jax.Array, u: jax.Array, free: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What is maximised, Psi, and the penalty in it; ``free`` is that of `expect`."""
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
            p = self.shares(w).astype(wide)
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
        t = self.maximise(state.w, state.weight, state.t.s0)
        w, weight, u, free = self.expect(t, state.u, damp, barred)
        reached, penalty = self.value(t, w, u, free)
        change = jnp.abs(w - state.w).max() / self.mass.max()
        rounding = 16 * jnp.finfo(w.dtype).eps * jnp.abs(reached)
        still = jnp.abs(reached - state.objective) <= jnp.maximum(tol, rounding)
        return State(w, weight, u, t, reached, penalty), (change <= tol) & still


def make_starts(
    data: Residuals, fixed: jax.Array | None, seed: jax.Array, k: int, each: int, aligned: bool
) -> jax.Array:
    """Labels (S, B, r): in every metric ``each`` of all rows, then as many of aligned groups."""
    z = jnp.einsum("brp,mpq->mbrq", data.y, data.maps, precision=_HIGHEST)
    # In turn, so that k-means is compiled once: here all rows are one group among empty ones.
    groups = jnp.stack([jnp.zeros_like(data.group), data.group][: 2 if aligned else 1])
    labels, centres, sizes = jax.lax.map(
        lambda part: kmeans(z, data._replace(group=part[0]), k, each, part[1]),
        (groups, stream(seed, jnp.arange(len(groups)))),
    )
    if aligned:
        again = align(labels[1], centres[1], sizes[1], data, stream(seed, 2))
        labels = jnp.stack([labels[0], again])
    labels = labels.reshape(-1, *labels.shape[2:])
    return labels if fixed is None else name_classes(labels, fixed, k, data.active)


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
    ``side_by_side`` restarts run at a time, until the last of them has converged. Where weights
    both equal and free are asked for, the best of the former is one more start of the latter; the
    former have their first start twice.
    """
    dtype, k = data.y.dtype, n_clusters
    n = data.mass.size
    n_kinds = data.maps.shape[0] * (2 if aligned else 1) * (2 if warm_up else 1)
    each, kept = schedule(n_init, n_kinds)
    starts = make_starts(data, fixed, seed, k, each, aligned).reshape(-1, n)
    barred = None
    if fixed is not None:
        flat = fixed.reshape(-1)
        other = (flat >= 0) & (flat != jnp.arange(k)[:, None])
        barred = jnp.where(other, -jnp.inf, jnp.zeros((), dtype))
    s = len(starts)
    one = jnp.ones((), dtype)
    damp = jnp.where(jnp.isinf(numbers.kappa), 1, numbers.kappa / (1 + numbers.kappa)).astype(dtype)

    def run(model, labels, warm):
        """EM from labels (n,); ``warm`` says whether they are to be warmed up."""
        hit = labels == jnp.arange(k)[:, None]
        w = jnp.where(hit, _CERTAIN, 0) + (1 - _CERTAIN) / jnp.exp(model.log_k)
        if data.active is not None:
            w = jnp.where(data.active[:, None], w, 0)
        if fixed is not None:
            w = jnp.where(flat >= 0, hit, w)
        state = model.start((w * model.mass).astype(dtype))
        if warm_up:

            def warming(state, _):
                return *model.step(state, one, barred), ()

            ready = iterate(warming, state, _WARM, done=~warm).state
            # It begins again, from the memberships and the weights that it has.
            state = ready._replace(u=state.u, objective=state.objective)

        def step(state, _):
            state, quiet = model.step(state, damp, barred)
            return state, quiet, state.objective

        found = iterate(step, state, numbers.max_iter, trace=blank(CAPACITY, jnp.float64))
        end = found.state
        labels = end.w.argmax(0).astype(jnp.int32)
        return labels, end.objective, end.penalty, end.t, end.u, found._replace(state=None)

    both = len(numbers.free) > 1
    flags = jnp.asarray(np.append(kept >= s, False) if both else kept >= s)
    starts = starts[kept % s]

    def fit(winner, free):
        """All restarts, by equal weights or free ones; ``winner`` (n,) is one more start."""
        model = Model(data, numbers, covariance, robust, k, free)
        own = jnp.concatenate([starts, winner[None]]) if both else starts
        labels, reached, penalty, t, u, found = restarts(
            partial(run, model), (own, flags), side_by_side
        )
        best = reached.argmax()
        t, u, penalty = jax.tree.map(lambda a: a[best], (t, u, penalty))
        logits = model.logits(t)[0] + model.expand(u)
        w = model.mass * jax.nn.softmax(model.bar(logits, barred), axis=0)
        b, r = model.blocks
        solution = solve.Solution(
            labels=jnp.moveaxis(labels.reshape(-1, b, r), 0, -1),
            objective=-reached,
            converged=found.done,
            n_iter=found.n_iter[best],
            w=jnp.moveaxis(w.reshape(k, b, r), 0, -1),
            trace=-found.trace[best],
            fit=Fit(
                reached[best] + penalty, penalty, t.b, t.sigma, u, t.log_weights, found.n_iter, free
            ),
        )
        return labels[best], solution

    _, solutions = jax.lax.scan(fit, starts[0], numbers.free)
    chosen = freed(solutions, data) if both else 0
    return jax.tree.map(lambda a: a[chosen], solutions)


def freed(solutions: solve.Solution, data: Residuals) -> jax.Array:
    """Which of two solutions to take: 0 by equal weights, or 1 by free ones.

    Free weights have to pay for themselves, by half the log of the rows each, and to make what is
    unclear clear or leave it alone: equal weights that miss a minority cut the majority in half,
    which shows in the memberships, while free ones lose clusters that were clear already.
    """
    k = solutions.w.shape[-1] if data.active is None else data.active.sum()
    real = (data.mass > 0)[..., None]
    n = real.sum()
    share = solutions.w / jnp.maximum(solutions.w.sum(-1, keepdims=True), _TINY)
    entropy = -(jnp.where(real, xlogx(share), 0)).sum((1, 2, 3)) / n
    best = solutions.objective.argmin(-1)
    one, other = (solutions.labels[i, ..., best[i]][..., None] for i in (0, 1))
    names = jnp.arange(solutions.w.shape[-1])
    hits = [jnp.where(real, labels == names, False) for labels in (one, other)]
    table = jnp.einsum("brk,brl->kl", *(hit.astype(jnp.float64) for hit in hits))
    gain = solutions.objective[0, best[0]] - solutions.objective[1, best[1]]
    clearer = entropy[0] - entropy[1] > _CLEARER * jnp.log(k)
    alike = _adjusted_rand(table) > _ALIKE
    return ((gain > 0.5 * (k - 1) * jnp.log(n)) & (clearer | alike)).astype(jnp.int32)


def _adjusted_rand(table: jax.Array) -> jax.Array:
    """Adjusted Rand index of two partitions by their contingency table."""

    def pairs(counts):
        return (counts * (counts - 1)).sum() / 2

    rows, columns, total = pairs(table.sum(1)), pairs(table.sum(0)), pairs(table.sum())
    chance = rows * columns / jnp.maximum(total, 1)
    most = (rows + columns) / 2
    return jnp.where(most > chance, (pairs(table) - chance) / (most - chance), 1.0)
