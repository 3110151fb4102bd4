"""Search for the best residual mixture: EM from many starts, with successive halving."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.optimise import solve
from nrprob.engines.optimise.iterate import IterationResult, empty_trace, iterate, map_restarts
from nrprob.engines.programs import jit_by_size
from nrprob.methods.conditional.em import Model, Numbers, Parameters, Residuals, State
from nrprob.statistics.xlogx import xlogx

CAPACITY = 512  # entries of the trace
_WARM = 30  # steps of a balanced warm-up at most
_CERTAIN = 0.95  # membership of a row in its cluster at the start
_TINY = 1e-30
_CLEARER = 0.1  # of log K: fall of the memberships' mean entropy for which weights are freed
_ALIKE = 0.8  # adjusted Rand index at which they are freed all the same
_HEAT = 10  # EM steps on the sample, and of the warm-up before them
_LAP = 20  # steps of those that lead then, on all rows
_LAST = 2  # restarts that go to the end
_SAME = 0.95  # adjusted Rand index of restarts of which one goes on


class Sample(NamedTuple):
    """A sample of the rows, for the first round of successive halving.

    Attributes
    ----------
    data : as many times heavier as there are fewer
    numbers : in the type of ``data``
    fixed : (B, r) as of all rows
    place : (B, r) where they are among all slots
    """

    data: Residuals
    numbers: Numbers
    fixed: jax.Array | None
    place: jax.Array


class Fit(NamedTuple):
    """What `nrprob.engines.optimise.solve.Solution` adds.

    Attributes
    ----------
    log_likelihood, penalty : of the best restart, in nats
    centres : (K, p) of the best restart
    covariance : (p, p) scale matrix Sigma; (p,) unless tied
    offset : (K, L) log weights that balance the known groups
    log_weights : (K,) log of K times the clusters' weights
    steps : (S,) EM steps of every restart, without those on the sample
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


class End(NamedTuple):
    """Where a restart ended; its clusters, and what `IterationResult` has."""

    labels: jax.Array
    objective: jax.Array
    penalty: jax.Array
    t: Parameters
    u: jax.Array
    done: jax.Array
    n_iter: jax.Array
    trace: jax.Array

    @classmethod
    def of(cls, model: Model, result: IterationResult) -> End:
        """What is kept of a loop."""
        state = result.state
        labels = model.labels(state.w)
        return cls(labels, state.objective, state.penalty, state.t, state.u, *result[1:])


class Climb:
    """EM of one restart on one set of rows, from labels or from parameters."""

    def __init__(self, model: Model, fixed: jax.Array | None):
        self.model = model
        kappa = model.h.kappa
        self.damp = jnp.where(jnp.isinf(kappa), 1, kappa / (1 + kappa)).astype(model.y.dtype)
        self.fixed = self.barred = None
        if fixed is not None:
            self.fixed = fixed.reshape(-1)
            other = (self.fixed >= 0) & (self.fixed != jnp.arange(model.k)[:, None])
            self.barred = jnp.where(other, -jnp.inf, jnp.zeros((), model.y.dtype))

    def begin(self, labels: jax.Array, warm: jax.Array | None, most: int) -> State:
        """State that labels (n,) give; ``warm`` says whether they are warmed up first."""
        model = self.model
        hit = labels == jnp.arange(model.k)[:, None]
        w = jnp.where(hit, _CERTAIN, 0) + (1 - _CERTAIN) / jnp.exp(model.log_k)
        if model.active is not None:
            w = jnp.where(model.active[:, None], w, 0)
        if self.fixed is not None:
            w = jnp.where(self.fixed >= 0, hit, w)
        state = model.start((w * model.mass).astype(model.y.dtype))
        if warm is None:
            return state

        def warming(state, _):
            return *model.step(state, jnp.ones_like(self.damp), self.barred), ()

        ready = iterate(warming, state, most, done=~warm).state
        # It begins again, from the memberships and the weights that it has.
        return ready._replace(u=state.u, objective=state.objective)

    def warm_up(self, labels: jax.Array, warm: jax.Array | None, most: int, max_iter: Any) -> State:
        """State after ``most`` steps from labels, and as many of a warm-up before them."""
        state = self.begin(labels, warm, most)
        return self.rise(state, jnp.minimum(most, max_iter)).state

    def resume(self, t: Parameters, u: jax.Array) -> State:
        """State that parameters give, which may be those of other rows."""
        t, u = self.model.precise(t), u.astype(self.model.y.dtype)
        w, sums, u, free, _ = self.model.look(t, u, None, self.damp, self.barred)
        return State(w, sums, u, t, *self.model.value(t, w, u, free))

    def rise(
        self, state: State, most: Any, done: Any = False, count: Any = 0, trace: Any = None
    ) -> IterationResult:
        """Take EM steps, until there are ``most``; see `iterate` for the others."""

        def step(state, _):
            state, quiet = self.model.step(state, self.damp, self.barred)
            return state, quiet, state.objective

        trace = empty_trace(CAPACITY, jnp.float64) if trace is None else trace
        return iterate(step, state, most, done=done, count=count, trace=trace)


@jit_by_size("n_clusters", "warm_up", "covariance", "robust", "side_by_side", "n_leaders")
def solve_residuals(
    data: Residuals,
    numbers: Numbers,
    starts: jax.Array,
    warm: jax.Array,
    fixed: jax.Array | None,
    sample: Sample | None,
    *,
    n_clusters: int,
    warm_up: bool,
    covariance: str,
    robust: bool,
    side_by_side: int,
    n_leaders: int,
) -> solve.Solution:
    """Run EM from all starts, and keep the best.

    Starts are labels (S, B, r), of the rows of the ``sample`` if there is one; those of which
    ``warm`` (S,) is true run with balanced groups first. On a sample, all take a few steps; of
    those that lead by the objective of all rows, and differ from each other, ``n_leaders`` at most
    take a few more on all rows, and the best of these go on to the end. ``side_by_side`` restarts
    run at a time, until the last of them has converged. Where weights both equal and free are asked
    for, the best of the former is the last start of the latter.
    """
    k = n_clusters
    starts = starts.reshape(len(starts), -1)

    def fit(last, free):
        """All restarts, by equal weights or free ones; ``last`` is the last start."""
        model = Model(data, numbers, covariance, robust, k, free)
        whole = Climb(model, fixed)
        own = jax.tree.map(lambda a, b: a.at[-1].set(b), (starts, warm), last)

        def run(labels, warm):
            state = whole.begin(labels, warm if warm_up else None, _WARM)
            return End.of(model, whole.rise(state, numbers.max_iter))

        if sample is None:
            ends = map_restarts(run, own, side_by_side)
        else:
            part = Model(sample.data, sample.numbers, covariance, robust, k, free)
            few = Climb(part, sample.fixed)

            def heat(labels, warm):
                end = few.warm_up(labels, warm if warm_up else None, _HEAT, numbers.max_iter)
                return end.t, end.u

            heats = map_restarts(heat, own, side_by_side)
            ends = _race(whole, sample, heats, numbers.max_iter, n_leaders, side_by_side)
        best = ends.objective.argmax()
        t, u, penalty, labels, trace, n_iter = jax.tree.map(
            lambda a: a[best], (ends.t, ends.u, ends.penalty, ends.labels, ends.trace, ends.n_iter)
        )
        logits = model.logits(t)[0] + model.expand(u)
        w = model.mass * jax.nn.softmax(model.bar(logits, whole.barred), axis=0)
        b, r = model.blocks
        reached = ends.objective[best]
        solution = solve.Solution(
            labels=jnp.moveaxis(ends.labels.reshape(-1, b, r), 0, -1),
            objective=-ends.objective,
            converged=ends.done,
            n_iter=n_iter,
            w=jnp.moveaxis(w.reshape(k, b, r), 0, -1),
            trace=-trace,
            fit=Fit(reached + penalty, penalty, t.b, t.sigma, u, t.log_weights, ends.n_iter, free),
        )
        labels = labels if sample is None else labels[sample.place.reshape(-1)]
        return (labels, jnp.zeros_like(warm[-1])), solution

    _, solutions = jax.lax.scan(fit, (starts[-1], warm[-1]), numbers.free)
    chosen = freed(solutions, data) if len(numbers.free) > 1 else 0
    return jax.tree.map(lambda a: a[chosen], solutions)


def _race(
    whole: Climb,
    sample: Sample,
    heats: tuple[Parameters, jax.Array],
    max_iter: jax.Array,
    n_leaders: int,
    side_by_side: int,
) -> End:
    """Judge by all rows what was found on a sample, and let those that lead go on.

    Of restarts with the same clusters one goes on; should another one turn out to have been better
    by a little, it goes on, too: the best of all has always seen all rows to the end.
    """
    place, k = sample.place.reshape(-1), whole.model.k
    real = sample.data.mass.reshape(-1) > 0

    def look(t, u):
        none = jnp.zeros((), jnp.int32)
        no_steps = IterationResult(
            whole.resume(t, u), none > 0, none, empty_trace(CAPACITY, jnp.float64)
        )
        return End.of(whole.model, no_steps)

    turns = jnp.asarray([n_leaders, _LAST, 1])

    def lap(carry):
        ends, turn = carry
        most = jnp.where(turn == 0, jnp.minimum(_LAP, max_iter), max_iter)
        on = turns[jnp.minimum(turn, len(turns) - 1)]
        lead, there = leading(ends.labels[:, place], ends.objective, real, k, n_leaders)
        stay = ~there | (jnp.arange(n_leaders) >= on)

        def rise(end):
            result = whole.rise(whole.resume(end.t, end.u), most, end.done, end.n_iter, end.trace)
            return End.of(whole.model, result)

        def go_on(end, stay):
            return jax.lax.cond(stay | end.done, lambda end: end, rise, end)

        further = map_restarts(go_on, (jax.tree.map(lambda a: a[lead], ends), stay), side_by_side)
        ends = jax.tree.map(lambda a, b: a.at[lead].set(b, mode="drop"), ends, further)
        return ends, turn + 1

    def unfinished(carry):
        ends, turn = carry
        best = ends.objective.argmax()
        return (turn < len(turns) - 1) | ~(ends.done[best] | (ends.n_iter[best] >= max_iter))

    ends = map_restarts(look, heats, side_by_side)
    return jax.lax.while_loop(unfinished, lap, (ends, jnp.zeros((), jnp.int32)))[0]


def leading(
    labels: jax.Array, objective: jax.Array, real: jax.Array, k: int, most: int
) -> tuple[jax.Array, jax.Array]:
    """Numbers (most,) of restarts whose clusters differ, the best first, and which there are.

    A number that is not there is beyond the last. ``labels`` (S, n) are of a sample of the rows.
    """
    s = len(labels)
    hits = ((labels[:, None] == jnp.arange(k)[:, None]) & real).astype(jnp.float32)

    def choose(open_, _):
        best = jnp.where(open_, objective, -jnp.inf).argmax()
        there = open_.any()
        tables = jnp.einsum("skn,jn->skj", hits, hits[best]).astype(jnp.float64)
        other = jax.vmap(adjusted_rand)(tables) < _SAME
        return open_ & other, (jnp.where(there, best, s), there)

    return jax.lax.scan(choose, jnp.ones(s, bool), None, most)[1]


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
    return pays(gain, entropy, table, k, n).astype(jnp.int32)


def pays(gain: Any, entropy: Any, table: jax.Array, k: Any, n: Any) -> jax.Array:
    """Whether to take free weights; see `freed`.

    By the nats (gain) that they save, the mean entropies (2,) of memberships by equal weights and
    by free ones, and the contingency table (K, K) of the two.
    """
    clearer = entropy[0] - entropy[1] > _CLEARER * jnp.log(k)
    alike = adjusted_rand(table) > _ALIKE
    return (gain > 0.5 * (k - 1) * jnp.log(n)) & (clearer | alike)


def adjusted_rand(table: Any, xp: Any = jnp) -> Any:
    """Adjusted Rand index of two partitions by their contingency table, in NumPy's or JAX's."""

    def pairs(counts):
        return (counts * (counts - 1)).sum() / 2

    rows, columns, total = pairs(table.sum(1)), pairs(table.sum(0)), pairs(table.sum())
    chance = rows * columns / xp.maximum(total, 1)
    most = (rows + columns) / 2
    apart = most > chance
    return xp.where(apart, (pairs(table) - chance) / xp.where(apart, most - chance, 1), 1.0)
