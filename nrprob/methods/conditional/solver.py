"""Search for the best mixture of residuals: EM from many initial labels, successive halving.

Successive halving begins with a few EM steps of all restarts on a subsample of the rows. The best
restarts continue on all rows.

Sizes: n rows in B blocks of r rows, p coordinates, L known groups, K clusters, S restarts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.optimise import solve
from nrprob.engines.optimise.iterate import IterationResult, empty_trace, iterate, map_restarts
from nrprob.engines.programs import jit_by_size
from nrprob.methods.conditional.em import Hyperparameters, Model, Parameters, Residuals, State
from nrprob.statistics.xlogx import xlogx

CAPACITY = 512  # entries of the trace
_WARM = 30  # maximum number of steps of a warm-up with equal cluster shares in every group
_CERTAIN = 0.95  # initial membership of a row in the cluster of its label
_TINY = 1e-30  # lower bound of divisors
# Free weights are selected only if one of these two conditions holds.
_CLEARER = 0.1  # the mean entropy of memberships, over log K, falls by more than this
_ALIKE = 0.8  # the adjusted Rand index to the clusters with equal weights is above this
_SAMPLE_STEPS = 10  # EM steps on the subsample, and of the warm-up before them
_LEADER_STEPS = 20  # EM steps of the leaders on all rows
_FINALISTS = 2  # restarts that run to convergence
_SAME = 0.95  # adjusted Rand index from which on two restarts count as equal


class Sample(NamedTuple):
    """Subsample of the rows, on which successive halving begins.

    Attributes
    ----------
    data : rows of the subsample, with masses that add up to the mass of all rows
    hyperparameters : hyperparameters in the floating-point type of ``data``
    fixed : (B, r) classes of labelled rows, else -1; None without labels
    place : (B, r) positions of the rows of the subsample among all rows in blocks
    """

    data: Residuals
    hyperparameters: Hyperparameters
    fixed: jax.Array | None
    place: jax.Array


class Fit(NamedTuple):
    """Parameters of the best restart, in addition to `nrprob.engines.optimise.solve.Solution`.

    Attributes
    ----------
    log_likelihood, penalty : the two parts of the objective, in nats
    centres : (K, p) centres of the clusters in the coordinates
    covariance : (p, p) scale matrix Sigma; its diagonal (p,) unless the covariance is tied
    offset : (K, L) log weights that balance the shares of the clusters in every known group
    log_weights : (K,) log of K times the clusters' weights
    steps : (S,) EM steps of every restart, without steps on the subsample
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


class EMResult(NamedTuple):
    """Result of EM for one restart.

    Attributes
    ----------
    labels : (n,) labels of all rows
    objective, penalty : the maximised objective, and the penalty that it contains
    t : parameters
    u : (K, L) log weights that balance the shares of the clusters in every known group
    done : whether EM has converged
    n_iter : number of EM steps
    trace : objective after every EM step
    """

    labels: jax.Array
    objective: jax.Array
    penalty: jax.Array
    t: Parameters
    u: jax.Array
    done: jax.Array
    n_iter: jax.Array
    trace: jax.Array

    @classmethod
    def from_result(cls, model: Model, result: IterationResult) -> EMResult:
        """Make an `EMResult` from the result of the EM loop of a restart."""
        state = result.state
        labels = model.row_labels(state.w)
        return cls(labels, state.objective, state.penalty, state.t, state.u, *result[1:])


class RestartEM:
    """EM of one restart on all rows or on a subsample, from initial labels or initial parameters.

    Parameters
    ----------
    model : E-step, M-step and objective for these rows
    fixed : (B, r) classes of labelled rows, else -1; None without labels
    """

    def __init__(self, model: Model, fixed: jax.Array | None):
        self.model = model
        kappa = model.h.kappa
        self.damp = jnp.where(jnp.isinf(kappa), 1, kappa / (1 + kappa)).astype(model.y.dtype)
        self.fixed = self.mask = None
        if fixed is not None:
            self.fixed = fixed.reshape(-1)
            other = (self.fixed >= 0) & (self.fixed != jnp.arange(model.k)[:, None])
            self.mask = jnp.where(other, -jnp.inf, jnp.zeros((), model.y.dtype))

    def initial_state(self, labels: jax.Array, warm: jax.Array | None, most: int) -> State:
        """State before the first EM step.

        Parameters
        ----------
        labels : (n,) initial labels
        warm : whether a warm-up comes first, with equal cluster shares in every known group; None
            if no restart has a warm-up
        most : maximum number of steps of the warm-up
        """
        model = self.model
        hit = labels == jnp.arange(model.k)[:, None]
        w = jnp.where(hit, _CERTAIN, 0) + (1 - _CERTAIN) / jnp.exp(model.log_k)
        if model.active is not None:
            w = jnp.where(model.active[:, None], w, 0)
        if self.fixed is not None:
            w = jnp.where(self.fixed >= 0, hit, w)
        state = model.initial_state((w * model.mass).astype(model.y.dtype))
        if warm is None:
            return state

        def warm_up_step(state, _):
            return *model.em_step(state, jnp.ones_like(self.damp), self.mask), ()

        ready = iterate(warm_up_step, state, most, done=~warm).state
        # EM starts from the memberships and the sufficient statistics of the warm-up.
        return ready._replace(u=state.u, objective=state.objective)

    def warm_up(self, labels: jax.Array, warm: jax.Array | None, most: int, max_iter: Any) -> State:
        """State after an optional warm-up and EM, from initial labels (n,).

        ``warm`` tells whether there is a warm-up, as in `initial_state`. The warm-up has at most
        ``most`` steps, and the EM after it at most min(``most``, ``max_iter``) steps.
        """
        state = self.initial_state(labels, warm, most)
        return self.run_em(state, jnp.minimum(most, max_iter)).state

    def resume_from(self, t: Parameters, u: jax.Array) -> State:
        """State of the rows of this model, under parameters ``t`` and ``u``.

        The parameters may result from EM on other rows, such as a subsample.
        """
        t, u = self.model.cast_parameters(t), u.astype(self.model.y.dtype)
        w, sums, u, free, _ = self.model.evaluate_rows(t, u, None, self.damp, self.mask)
        return State(w, sums, u, t, *self.model.objective_value(t, w, u, free))

    def run_em(
        self, state: State, most: Any, done: Any = False, count: Any = 0, trace: Any = None
    ) -> IterationResult:
        """Take EM steps until convergence, or until there are ``most`` steps.

        ``done``, ``count`` and ``trace`` are the results of an earlier loop that this loop
        continues, as in `iterate`.
        """

        def em_step(state, _):
            state, quiet = self.model.em_step(state, self.damp, self.mask)
            return state, quiet, state.objective

        trace = empty_trace(CAPACITY, jnp.float64) if trace is None else trace
        return iterate(em_step, state, most, done=done, count=count, trace=trace)


@jit_by_size("n_clusters", "warm_up", "covariance", "robust", "side_by_side", "n_leaders")
def solve_residuals(
    data: Residuals,
    hyperparameters: Hyperparameters,
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
    """Run EM from all initial labels, and return the best restart.

    With a subsample, the search uses successive halving. All restarts take a few EM steps on the
    subsample. Up to ``n_leaders`` distinct restarts with the best objective on all rows take
    further steps on all rows. The best two of these run to convergence.

    If ``hyperparameters.free`` has two entries, the search runs twice: with equal weights of the
    clusters, and then with free (fitted) weights. In the second search, the labels of the best
    restart with equal weights replace the last initial labels. `choose_weights` selects one of the
    two results.

    Parameters
    ----------
    data, hyperparameters : all rows, and the settings
    starts : (S, B, r) initial labels of all rows, or of the subsample if there is one
    warm : (S,) whether a warm-up with equal cluster shares in every known group comes first
    fixed : (B, r) classes of labelled rows, else -1; None without labels
    sample : subsample of the rows; None to run all restarts on all rows
    n_clusters : number of clusters, with padding
    warm_up : whether any restart has a warm-up
    covariance : "tied", "diag" or "spherical"
    robust : whether errors have a t distribution
    side_by_side : number of restarts that run in parallel; a batch ends when all have converged
    n_leaders : maximum number of restarts that continue after the subsample
    """
    k = n_clusters
    starts = starts.reshape(len(starts), -1)

    def run_restarts(last, free):
        """Run all restarts with equal or free (fitted) weights of the clusters.

        ``last`` is a pair for the last restart: initial labels, and whether there is a warm-up. The
        function returns the last pair of the next search (labels of the best restart, no warm-up),
        and the `Solution`.
        """
        model = Model(data, hyperparameters, covariance, robust, k, free)
        full_em = RestartEM(model, fixed)
        initial = jax.tree.map(lambda a, b: a.at[-1].set(b), (starts, warm), last)

        def run_restart(labels, warm):
            state = full_em.initial_state(labels, warm if warm_up else None, _WARM)
            return EMResult.from_result(model, full_em.run_em(state, hyperparameters.max_iter))

        if sample is None:
            ends = map_restarts(run_restart, initial, side_by_side)
        else:
            sample_model = Model(sample.data, sample.hyperparameters, covariance, robust, k, free)
            sample_em = RestartEM(sample_model, sample.fixed)

            def run_on_sample(labels, warm):
                end = sample_em.warm_up(
                    labels, warm if warm_up else None, _SAMPLE_STEPS, hyperparameters.max_iter
                )
                return end.t, end.u

            sample_results = map_restarts(run_on_sample, initial, side_by_side)
            ends = _successive_halving(
                full_em, sample, sample_results, hyperparameters.max_iter, n_leaders, side_by_side
            )
        best = ends.objective.argmax()
        t, u, penalty, labels, trace, n_iter = jax.tree.map(
            lambda a: a[best], (ends.t, ends.u, ends.penalty, ends.labels, ends.trace, ends.n_iter)
        )
        logits = model.row_logits(t)[0] + model.expand_groups(u)
        w = model.mass * jax.nn.softmax(model.mask_logits(logits, full_em.mask), axis=0)
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

    _, solutions = jax.lax.scan(run_restarts, (starts[-1], warm[-1]), hyperparameters.free)
    several = len(hyperparameters.free) > 1
    chosen = choose_weights(solutions, data, hyperparameters.n) if several else 0
    return jax.tree.map(lambda a: a[chosen], solutions)


def _successive_halving(
    full: RestartEM,
    sample: Sample,
    sample_results: tuple[Parameters, jax.Array],
    max_iter: jax.Array,
    n_leaders: int,
    side_by_side: int,
) -> EMResult:
    """Evaluate the restarts of the subsample on all rows, and continue the best distinct restarts.

    In the first round, the leaders (the best distinct restarts) take a few EM steps. In the second
    round, the best two take EM steps until convergence or ``max_iter``. An EM step may lower the
    objective of a leader by a rounding error. A restart that stopped because its clusters equal the
    clusters of a leader can then have the largest objective. In this case, further rounds continue
    the best restart.

    Parameters
    ----------
    full : EM on all rows
    sample : the subsample
    sample_results : parameters ``t`` and ``u`` of all restarts after the subsample
    max_iter : maximum number of EM steps
    n_leaders : maximum number of restarts of the first round
    side_by_side : number of restarts that run in parallel
    """
    place, k = sample.place.reshape(-1), full.model.k
    real = sample.data.mass.reshape(-1) > 0

    def evaluate_start(t, u):
        none = jnp.zeros((), jnp.int32)
        no_steps = IterationResult(
            full.resume_from(t, u), none > 0, none, empty_trace(CAPACITY, jnp.float64)
        )
        return EMResult.from_result(full.model, no_steps)

    # Numbers of restarts that continue in the first, the second, and every later round.
    n_continuing = jnp.asarray([n_leaders, _FINALISTS, 1])

    def halving_round(carry):
        """Continue the leaders of a round; return all restarts, and the index of the next round."""
        ends, round_number = carry
        most = jnp.where(round_number == 0, jnp.minimum(_LEADER_STEPS, max_iter), max_iter)
        n_leading = n_continuing[jnp.minimum(round_number, len(n_continuing) - 1)]
        leaders, exists = distinct_leaders(
            ends.labels[:, place], ends.objective, real, k, n_leaders
        )
        stops = ~exists | (jnp.arange(n_leaders) >= n_leading)

        def continue_em(end):
            result = full.run_em(
                full.resume_from(end.t, end.u), most, end.done, end.n_iter, end.trace
            )
            return EMResult.from_result(full.model, result)

        def continue_or_stop(end, stops):
            return jax.lax.cond(stops | end.done, lambda end: end, continue_em, end)

        continued = map_restarts(
            continue_or_stop, (jax.tree.map(lambda a: a[leaders], ends), stops), side_by_side
        )
        ends = jax.tree.map(lambda a, b: a.at[leaders].set(b, mode="drop"), ends, continued)
        return ends, round_number + 1

    def is_unfinished(carry):
        ends, round_number = carry
        best = ends.objective.argmax()
        return (round_number < len(n_continuing) - 1) | ~(
            ends.done[best] | (ends.n_iter[best] >= max_iter)
        )

    ends = map_restarts(evaluate_start, sample_results, side_by_side)
    return jax.lax.while_loop(is_unfinished, halving_round, (ends, jnp.zeros((), jnp.int32)))[0]


def distinct_leaders(
    labels: jax.Array, objective: jax.Array, real: jax.Array, k: int, most: int
) -> tuple[jax.Array, jax.Array]:
    """Select at most ``most`` of S restarts with distinct clusters, the best first.

    Parameters
    ----------
    labels : (S, n) labels of the rows of the subsample
    objective : (S,) maximised objectives
    real : (n,) False for padding
    k : number of clusters
    most : maximum number of restarts

    Returns
    -------
    lead : (most,) indices of the selected restarts; if there are fewer than ``most``, the remaining
        entries are S
    exists : (most,) False for these remaining entries
    """
    s = len(labels)
    indicators = ((labels[:, None] == jnp.arange(k)[:, None]) & real).astype(jnp.float32)

    def choose_next(available, _):
        """Select the best of the restarts in the mask ``available`` (S,).

        Restarts with the same clusters as the selected restart become unavailable.
        """
        best = jnp.where(available, objective, -jnp.inf).argmax()
        exists = available.any()
        tables = jnp.einsum("skn,jn->skj", indicators, indicators[best]).astype(jnp.float64)
        is_distinct = jax.vmap(adjusted_rand)(tables) < _SAME
        return available & is_distinct, (jnp.where(exists, best, s), exists)

    return jax.lax.scan(choose_next, jnp.ones(s, bool), None, most)[1]


def choose_weights(solutions: solve.Solution, data: Residuals, n: jax.Array) -> jax.Array:
    """Choose between solutions with equal weights (0) and with free weights (1).

    Free weights must lower the objective by more than log(n) / 2 per free weight, as in BIC. Free
    weights must also lower the mean entropy of the memberships, or leave the clusters almost
    unchanged. Without this second criterion, free weights might lose clear clusters. If equal
    weights miss a minority cluster, they split the majority, and the memberships have a high
    entropy; free weights then lower the entropy.

    Parameters
    ----------
    solutions : solutions with a leading axis of length 2
    data : all rows
    n : number of rows, or sum of their weights
    """
    k = solutions.w.shape[-1] if data.active is None else data.active.sum()
    # The masses add up to the degrees of freedom. Rescale them to add up to n.
    mass = data.mass.astype(jnp.float64)
    row_weight = (mass * (n / mass.sum()))[..., None]
    share = solutions.w / jnp.maximum(solutions.w.sum(-1, keepdims=True), _TINY)
    entropy = -(row_weight * xlogx(share)).sum((1, 2, 3)) / n
    best = solutions.objective.argmin(-1)
    equal, free = (solutions.labels[i, ..., best[i]][..., None] for i in (0, 1))
    names = jnp.arange(solutions.w.shape[-1])
    hits = [(labels == names).astype(jnp.float64) for labels in (equal, free)]
    table = jnp.einsum("brk,brl->kl", row_weight * hits[0], hits[1])
    gain = solutions.objective[0, best[0]] - solutions.objective[1, best[1]]
    return free_weights_improve(gain, entropy, table, k, n).astype(jnp.int32)


def free_weights_improve(gain: Any, entropy: Any, table: Any, k: Any, n: Any, xp: Any = jnp) -> Any:
    """Whether free weights are better than equal weights, by the criteria of `choose_weights`.

    Parameters
    ----------
    gain : decrease of the objective by free weights, in nats
    entropy : (2,) mean entropies of the memberships with equal and with free weights
    table : (K, K) contingency table of the clusters with equal and with free weights
    k : number of clusters
    n : number of rows, or sum of their weights
    xp : `numpy` or `jax.numpy`
    """
    clearer = entropy[0] - entropy[1] > _CLEARER * xp.log(k)
    alike = adjusted_rand(table, xp) > _ALIKE
    return (gain > 0.5 * (k - 1) * xp.log(n)) & (clearer | alike)


def adjusted_rand(table: Any, xp: Any = jnp) -> Any:
    """Adjusted Rand index of two partitions, from their contingency table.

    ``xp`` is the module of the computation, `numpy` or `jax.numpy`.
    """

    def count_pairs(counts):
        return (counts * (counts - 1)).sum() / 2

    rows, columns, total = (
        count_pairs(table.sum(1)),
        count_pairs(table.sum(0)),
        count_pairs(table.sum()),
    )
    chance = rows * columns / xp.maximum(total, 1)
    most = (rows + columns) / 2
    apart = most > chance
    return xp.where(apart, (count_pairs(table) - chance) / xp.where(apart, most - chance, 1), 1.0)
