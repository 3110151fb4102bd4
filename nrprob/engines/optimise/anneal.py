"""Deterministic annealing: one schedule of temperatures for every method and all restarts.

The engine owns the schedule, the perturbation away from the symmetric saddle point, normalisation,
fixed rows, stopping and the trace. A method supplies an `Update`, which reads rows one block at a
time: the contribution of a block to sums over rows, the quantities that follow from the sums, and
the memberships of a block given these quantities. `term_update` builds it from terms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.hash_rng import fold_in, hashed_noise
from nrprob.engines.optimise.iterate import empty_trace, iterate
from nrprob.engines.optimise.power import leading_eigenvalues
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms, centred_gradient, objective
from nrprob.statistics.xlogx import safe_log

CAPACITY = 2048  # temperatures that a ladder may have
RANGE = 1e5  # of inverse temperatures; rows that are tied between clusters never harden
_PATIENCE = 25  # comparisons without a smaller change after which it is rounding

WeightRule = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class FixedWeights:
    """Weights (terms,), whatever the terms' curvatures."""

    weights: jax.Array

    def __call__(self, curvatures: jax.Array) -> jax.Array:
        """Weights from curvatures (terms,)."""
        return self.weights


class BlockSums:
    """Sums over all rows, made of what every block of them gives.

    ``blocks`` are records with ``mass`` and ``number`` (B, r) as `Rows` have them, and
    ``w`` (B, r, S, K) the masses of the rows of all blocks in the clusters, in their order.
    """

    def __init__(self, blocks: tuple[Any, ...], w: jax.Array):
        self.blocks = blocks
        sizes = [block.mass.shape[0] for block in blocks[:-1]]
        self.w = jnp.split(w, np.cumsum(sizes)) if sizes else [w]

    def __call__(self, part: Callable[[Any, jax.Array], Any], join: Any = jnp.add) -> Any:
        """Join what ``part(block, w)`` gives, arrays of any tree, of all blocks."""
        return functools.reduce(lambda a, b: jax.tree.map(join, a, b), self.each(part))

    def each(self, part: Callable[[Any, jax.Array], Any]) -> tuple[Any, ...]:
        """What ``part(block, w)`` gives of every block."""
        return tuple(part(block, w) for block, w in zip(self.blocks, self.w, strict=True))


class Update(NamedTuple):
    """One step of a method: what follows from the memberships, and the memberships from that.

    Attributes
    ----------
    settle : ``(state, sums, beta) -> (state, settled, kept)``, by `BlockSums` over the rows: the
        state of the next step; the parameters that determine memberships; and one record per block
        of quantities of its rows that the memberships need, or None
    log_memberships : ``(settled, block, kept, beta) -> (B, r, S, K)`` of the rows of a block, up to
        a constant in every row
    value : ``(state, sums, beta) -> (S,)``, the objective of the trace
    """

    settle: Callable[[Any, BlockSums, jax.Array], tuple[Any, Any, tuple[Any, ...] | None]]
    log_memberships: Callable[[Any, Any, Any, jax.Array], jax.Array]
    value: Callable[[Any, BlockSums, jax.Array], jax.Array]

    def step(
        self, blocks: tuple[Any, ...], state: Any, w: jax.Array, beta: jax.Array
    ) -> tuple[Any, jax.Array]:
        """State and log memberships (B, r, S, K) that follow from the masses ``w``."""
        state, settled, kept = self.settle(state, BlockSums(blocks, w), beta)
        each = [
            self.log_memberships(settled, block, own, beta)
            for block, own in zip(blocks, kept or [None] * len(blocks), strict=True)
        ]
        return state, jnp.concatenate(each) if len(each) > 1 else each[0]

    def reached(
        self, blocks: tuple[Any, ...], state: Any, w: jax.Array, beta: jax.Array
    ) -> jax.Array:
        """Objective (S,) of the trace at the masses ``w``."""
        return self.value(state, BlockSums(blocks, w), beta)


class AnnealingSchedule(NamedTuple):
    """Temperatures and tolerances, all traced.

    Attributes
    ----------
    start : (S,) first inverse temperature of every restart
    factor : ratio of successive inverse temperatures
    final : the last inverse temperature; infinite to anneal until the labels are hard
    noise : standard deviation of the log of the perturbation at every level
    tol : largest change of a membership at which a level has converged
    max_iter : most updates at one level
    curvature : how convex F may be relative to the entropy, 0 where F is concave; see `anneal`
    """

    start: jax.Array
    factor: jax.Array
    final: jax.Array
    noise: jax.Array
    tol: jax.Array
    max_iter: jax.Array
    curvature: jax.Array


class RoundingMonitor(NamedTuple):
    """Whether memberships change by rounding alone, whose size no tolerance knows.

    Attributes
    ----------
    least : the least change so far, less what it fell by since by less than a tenth
    since : comparisons since it fell by more
    small : what a change by rounding is below
    """

    least: jax.Array
    since: jax.Array
    small: jax.Array

    @classmethod
    def begin(cls, heaviest: jax.Array) -> RoundingMonitor:
        """Nothing seen, of masses up to the ``heaviest``."""
        dtype = heaviest.dtype
        none = jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32)
        return cls(*none, jnp.finfo(dtype).eps ** 0.5 * heaviest)

    def after(self, change: jax.Array) -> RoundingMonitor:
        """With another change, infinite where none was computed."""
        lower = change < 0.9 * self.least
        since = jnp.where(lower, 0, self.since + jnp.isfinite(change))
        return self._replace(least=jnp.where(lower, change, self.least), since=since)

    def for_good(self, change: jax.Array) -> jax.Array:
        """Whether it neither falls nor grows."""
        return (self.since >= _PATIENCE) & (change <= 2 * self.least) & (self.least <= self.small)


class AnnealingResult(NamedTuple):
    """What annealing found.

    Attributes
    ----------
    w : (B, r, S, K) final masses
    state : the method's final state
    beta : (S,) final inverse temperature
    trace : (CAPACITY, S) value at the end of every level, NaN beyond the last
    converged : (S,) hard and unchanged; at a finite ``final``, memberships unchanged
    n_iter : number of updates, over all levels
    """

    w: jax.Array
    state: Any
    beta: jax.Array
    trace: jax.Array
    converged: jax.Array
    n_iter: jax.Array


def normalise_masses(
    log_r: jax.Array,
    mass: jax.Array,
    fixed: jax.Array | None = None,
    active: jax.Array | None = None,
) -> jax.Array:
    """Masses (B, r, S, K) proportional to ``exp(log_r)`` in every row.

    ``fixed`` (B, r) holds the cluster of rows whose membership is given, else -1; ``active`` (K,)
    is False for clusters that do not exist (padding).
    """
    if active is not None:
        log_r = jnp.where(active, log_r, -jnp.inf)
    if fixed is not None:
        fixed = fixed[..., None, None]
        given = jnp.where(jnp.arange(log_r.shape[-1]) == fixed, 0.0, -jnp.inf)
        log_r = jnp.where(fixed >= 0, given.astype(log_r.dtype), log_r)
    e = jnp.exp(log_r - log_r.max(-1, keepdims=True))
    return e * (mass[..., None, None] / e.sum(-1, keepdims=True))


def compression_cost(compression: Any, sums: BlockSums) -> jax.Array:
    """Return compression H(C) - H(C|X) (S,), in nats of the whole data set; 1 gives I(C;X)."""

    def part(block, w):
        log_r = safe_log(w) - safe_log(block.mass)[..., None, None]
        return jnp.where(w > 0, w * log_r, 0).sum((0, 1, 3)), w.sum((0, 1)), block.mass.sum()

    value, q, total = sums(part)
    return value - compression * (q * (safe_log(q) - safe_log(total))).sum(-1)


def term_update(terms: Terms, compression: Any) -> Update:
    """Update of an objective made of terms; blocks are `Rows`, and there is no state.

    It minimises F + (compression H(C) - H(C|X)) / beta by log r = compression log p(c) - beta
    score. H(C) is concave in p(c), so that its tangent at the current p(c) bounds it from above and
    no update raises the objective. 1 is the information bottleneck, 0 a mixture or information
    distortion. All rows have mass 1, so that F and H are in nats of the whole data set.
    """

    def settle(state, sums, beta):
        cells, q = sums(lambda rows, w: (rows.cells(w), w.sum((0, 1))))
        return state, (centred_gradient(terms, cells), safe_log(q)), None

    def log_memberships(settled, rows, _, beta):
        slopes, log_prior = settled
        log_r = -beta[:, None] * rows.adjoint(slopes)
        return log_r + compression * log_prior

    def value(state, sums, beta):
        cells = sums(lambda rows, w: rows.cells(w))
        return objective(terms, cells) + compression_cost(compression, sums) / beta

    return Update(settle, log_memberships, value)


def random_log_memberships(
    seed: jax.Array, rows: Rows, n_restarts: int, n_clusters: int, scale: float = 0.1
) -> jax.Array:
    """Nearly equal log memberships (B, r, S, K)."""
    return scale * hashed_noise(
        fold_in(seed, rows.number), (n_restarts, n_clusters), rows.mass.dtype
    )


def anneal(
    update: Update,
    blocks: tuple[Any, ...],
    state: Any,
    w: jax.Array,
    ladder: AnnealingSchedule,
    seed: jax.Array,
    *,
    fixed: jax.Array | None = None,
    active: jax.Array | None = None,
    damped: bool = False,
) -> AnnealingResult:
    """Follow the ladder until the labels are hard and unchanged, or to its final temperature.

    Where F is not concave in the masses, the plain update may overshoot. ``damped`` takes only a
    part of each step in log r: as much as lowers the value, by halving and doubling, and at least
    1 / (1 + beta curvature), which is sure to be a descent if ``ladder.curvature`` bounds the
    convex part of F relative to the entropy.
    """
    n_restarts = w.shape[2]
    mass = jnp.concatenate([block.mass for block in blocks])
    number = jnp.concatenate([block.number for block in blocks])
    total = mass.sum()
    heaviest = mass.max()
    tiny = jnp.finfo(w.dtype).tiny
    real = mass > 0
    stop = jnp.minimum(ladder.start, ladder.final) * RANGE

    value = functools.partial(update.reached, blocks)

    def level(carry, index):
        beta, state, w, labels, _, n_iter = carry
        last = beta >= ladder.final
        noise = jnp.where(last, 0, ladder.noise)[:, None]
        w = w * jnp.exp(
            noise * hashed_noise(fold_in(fold_in(seed, index), number), w.shape[2:], w.dtype)
        )
        w = w * (mass[..., None, None] / jnp.maximum(w.sum(-1, keepdims=True), 1e-30))
        finish = jnp.all(last)
        tol = jnp.where(finish, ladder.tol * 1e-3, ladder.tol)
        tol = jnp.maximum(tol, 8 * jnp.finfo(w.dtype).eps) * heaviest
        max_iter = jnp.where(finish, 100 * ladder.max_iter, ladder.max_iter)
        shortest = 1 / (1 + beta * ladder.curvature)

        def settled(change, quiet):
            return (change <= tol) | quiet.for_good(change)

        def moving(inner):
            _, _, count, change, quiet, _, _ = inner
            return (count < max_iter) & ~settled(change, quiet)

        def move(inner):
            state, w, count, _, quiet, step, reached = inner
            state, log_r = update.step(blocks, state, w, beta)
            if not damped:
                new = normalise_masses(log_r, mass, fixed, active)
                # Comparing all memberships takes a good part of an update: every other time.
                change = jax.lax.cond(
                    (count & 1 == 1) | (count + 1 >= max_iter),
                    lambda: jnp.abs(new - w).max(),
                    lambda: jnp.asarray(jnp.inf, w.dtype),
                )
                return state, new, count + 1, change, quiet.after(change), step, reached
            log_r = log_r - jax.nn.logsumexp(log_r, -1, keepdims=True)
            old = jnp.log(jnp.maximum(w, tiny)) - jnp.log(jnp.maximum(mass, tiny))[..., None, None]
            new = normalise_masses(old + step[:, None] * (log_r - old), mass, fixed, active)
            goal = value(state, new, beta)
            slack = 16 * jnp.finfo(w.dtype).eps * jnp.abs(reached)
            accept = (goal <= reached + slack) | (step <= shortest)
            change = jnp.where(accept, jnp.abs(new - w).max((0, 1, 3)) / step, jnp.inf).max()
            w = jnp.where(accept[:, None], new, w)
            reached = jnp.where(accept, goal, reached)
            step = jnp.clip(jnp.where(accept, 2 * step, step / 4), shortest, 1)
            return state, w, count + 1, change, quiet.after(change), step, reached

        reached = value(state, w, beta) if damped else jnp.zeros_like(beta)
        begin = jnp.asarray(jnp.inf, w.dtype)
        start = state, w, 0, begin, RoundingMonitor.begin(heaviest), jnp.ones_like(beta), reached
        state, w, steps, change, quiet, _, _ = jax.lax.while_loop(moving, move, start)
        new_labels = w.argmax(-1).astype(labels.dtype)
        sharp = (w.max(-1) > 0.999 * mass[..., None]) & real[..., None]
        hard = (sharp * mass[..., None]).sum((0, 1)) >= 0.999 * total
        same = jnp.all((new_labels == labels) | ~real[..., None], (0, 1))
        # Rows that are tied never harden; at the end of the range, unchanged labels are enough.
        ends = beta * ladder.factor > stop
        done = jnp.where(last, settled(change, quiet), same & (hard | ends))
        reached = value(state, w, beta)
        over = jnp.all(last | done) | jnp.all(beta * ladder.factor > stop)
        over = jnp.where(ladder.final == jnp.inf, over, finish) | (index + 1 >= CAPACITY)
        beta = jnp.where(over, beta, jnp.minimum(beta * ladder.factor, ladder.final))
        return (beta, state, w, new_labels, done, n_iter + steps), over, reached

    nowhere, none = jnp.full(w.shape[:3], -1, jnp.int32), jnp.zeros(n_restarts, bool)
    start = jnp.minimum(ladder.start, ladder.final), state, w, nowhere, none, 0
    result = iterate(level, start, CAPACITY, trace=empty_trace(CAPACITY, w.dtype, n_restarts))
    beta, state, w, _, done, n_iter = result.state
    return AnnealingResult(w, state, beta, result.trace, done, n_iter)


def leading_curvatures(
    terms: Terms,
    rows: Rows,
    weigh: WeightRule,
    n_start: int | None = None,
    max_iter: int = 300,
    *,
    whether: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Largest eigenvalues of the linearised update at identical clusters, and the terms' weights.

    A perturbation e of log r maps to beta B e with B e = -(d score), so that clusters first
    separate at beta = 1 / (largest eigenvalue of B). ``weigh`` gives the weights (terms,) from the
    eigenvalues (terms,) of the single terms. All these problems, and the one of the first
    ``n_start`` terms together at those weights, are solved by one power iteration on the exact
    derivative of the score. Costs are homogeneous of degree 1, so one cluster that holds everything
    stands for K identical ones. Asked ``whether`` clusters separate at all, it stops when they do:
    all but the sign of the last eigenvalue is then too small.

    Returns
    -------
    curvatures (terms,), weights (terms,), and the largest eigenvalue of the weighted sum
    """
    dtype = rows.mass.dtype
    n = len(terms)
    counts = jnp.arange(n) < (n if n_start is None else n_start)
    mass = rows.mass[..., None]
    totals = rows.cells(rows.mass[..., None, None])
    totals = jnp.broadcast_to(totals, (totals.shape[0], n + 1, *totals.shape[2:]))
    eps = jnp.finfo(dtype).eps
    scale = jnp.stack([t.scale for t in terms]).astype(dtype)

    def real(values):
        """Curvatures (terms,), 0 where they are but the rounding of what cancels in them."""
        return jnp.where(values > 20 * eps * scale, values, 0)

    def apply(e, weights):
        weighted = tuple(replace(t, weight=weights[i]) for i, t in enumerate(terms))
        gradient = jax.grad(lambda c: objective(weighted, c).sum())
        cells = rows.cells((mass * e)[..., None])
        return -rows.adjoint(jax.jvp(gradient, (totals,), (cells,))[1])[..., 0]

    def step(e, value):
        total = jnp.where(counts, weigh(real(value[:n])), 0)
        return apply(e, jnp.concatenate([jnp.eye(n, dtype=dtype), total[:, None]], 1))

    def floor(weights):
        return 20 * eps * jnp.where(counts, jnp.abs(weights) * scale, 0).sum()

    value = leading_eigenvalues(
        step,
        hashed_noise(fold_in(fold_in(0, 0), rows.number), (n + 1,), dtype),
        lambda a, b: (mass * a * b).sum((0, 1)),
        accuracy=1e-6 if dtype == jnp.float64 else 1e-5,
        max_iter=max_iter,
        enough=(lambda v: v[n] > floor(weigh(real(v[:n])))) if whether else None,
    )
    single = real(value[:n])
    weights = weigh(single)
    return single, weights, jnp.where(value[n] > floor(weights), value[n], 0)
