r"""Deterministic annealing of an objective over soft partitions.

A soft partition assigns row x, of mass p(x), to cluster c with membership r(c|x). The mass of row x
in cluster c is W(x, c) = p(x) r(c|x). At inverse temperature beta the engine minimises the free
energy

.. math:: F(W) + \frac{1}{\beta} \left( \alpha H(C) - H(C|X) \right),

where F is the objective of the method, alpha the weight ``compression``, C the cluster and X the
index of a row, and H is the entropy. Masses of all rows have the shape (B, r, S, K): B blocks of r
rows, S restarts, K clusters. Cell statistics have the shape (groups, S, K, p) for the known groups
and p statistics. The argument ``fixed`` (B, r) has the clusters of labelled rows, and -1 for all
other rows. The argument ``active`` (K,) is False for clusters that are padding. A *level* is one
temperature.

`term_update` derives the fixed-point iteration: an M-step computes the cell statistics and dF/dW
from all rows, an E-step the log memberships ``alpha log p(c) - beta dF/dW``. The engine handles the
temperatures, the perturbation away from the symmetric saddle point, normalisation, labelled rows,
stopping and the trace. A method whose objective is not a sum of terms supplies its own `Update`.

References
----------
K. Rose (1998), "Deterministic annealing for clustering, compression, classification, regression,
and related optimization problems", Proceedings of the IEEE 86(11), doi:10.1109/5.726788.
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
from nrprob.engines.optimise.power_iteration import leading_eigenvalues
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms, centred_gradient, objective
from nrprob.statistics.xlogx import safe_log

CAPACITY = 2048  # maximum number of temperatures
RANGE = 1e5  # maximum ratio of the last and first inverse temperature, as tied rows stay soft
_PATIENCE = 25  # after so many comparisons without a smaller change, changes are rounding errors

WeightRule = Callable[[jax.Array], jax.Array]


@dataclass(frozen=True)
class FixedWeights:
    """Weight rule that ignores the curvatures of the terms, and returns ``weights`` (terms,).

    `leading_curvatures` defines the curvatures and calls the rule.
    """

    weights: jax.Array

    def __call__(self, curvatures: jax.Array) -> jax.Array:
        """Return the fixed weights (terms,)."""
        return self.weights


class BlockSums:
    """Sums over all rows, accumulated over several records of rows.

    ``blocks`` are records such as `Rows`, with attributes ``mass`` and ``number`` (B, r) for the
    rows of the record. ``w`` (B, r, S, K) holds the masses of all rows in the clusters; its first
    axis concatenates the records.
    """

    def __init__(self, blocks: tuple[Any, ...], w: jax.Array):
        self.blocks = blocks
        sizes = [block.mass.shape[0] for block in blocks[:-1]]
        self.w = jnp.split(w, np.cumsum(sizes)) if sizes else [w]

    def __call__(self, part: Callable[[Any, jax.Array], Any], join: Any = jnp.add) -> Any:
        """Combine ``part(block, w)`` of all records by ``join``, which is addition by default."""
        return functools.reduce(lambda a, b: jax.tree.map(join, a, b), self.map_blocks(part))

    def map_blocks(self, part: Callable[[Any, jax.Array], Any]) -> tuple[Any, ...]:
        """Return ``part(block, w)`` for every record ``block`` and the masses ``w`` of its rows."""
        return tuple(part(block, w) for block, w in zip(self.blocks, self.w, strict=True))


class Update(NamedTuple):
    """One iteration of a method: an M-step over all rows, then an E-step per record of rows.

    In all functions, ``state`` is the state of the method between iterations, ``sums`` is the
    `BlockSums` of all rows, and ``beta`` (S,) is the inverse temperature. ``block`` is one record
    of rows, which has B blocks of r rows.

    Attributes
    ----------
    m_step : ``(state, sums, beta) -> (state, parameters, row_records)``. ``state`` is the state of
        the next iteration, and ``parameters`` determine the memberships. ``row_records`` has one
        ``row_record`` per record of rows, with quantities that the E-step needs, or is None
    e_step : ``(parameters, block, row_record, beta) -> (B, r, S, K)``, log memberships of the rows
        of a record, up to a constant per row
    objective : ``(state, sums, beta) -> (S,)``, the objective recorded in the trace
    """

    m_step: Callable[[Any, BlockSums, jax.Array], tuple[Any, Any, tuple[Any, ...] | None]]
    e_step: Callable[[Any, Any, Any, jax.Array], jax.Array]
    objective: Callable[[Any, BlockSums, jax.Array], jax.Array]

    def em_step(
        self, blocks: tuple[Any, ...], state: Any, w: jax.Array, beta: jax.Array
    ) -> tuple[Any, jax.Array]:
        """Return state and log memberships (B, r, S, K) after one iteration from masses ``w``."""
        state, parameters, row_records = self.m_step(state, BlockSums(blocks, w), beta)
        log_r = [
            self.e_step(parameters, block, record, beta)
            for block, record in zip(blocks, row_records or [None] * len(blocks), strict=True)
        ]
        return state, jnp.concatenate(log_r) if len(log_r) > 1 else log_r[0]

    def evaluate_objective(
        self, blocks: tuple[Any, ...], state: Any, w: jax.Array, beta: jax.Array
    ) -> jax.Array:
        """Objective (S,) that is recorded in the trace, at the masses ``w``."""
        return self.objective(state, BlockSums(blocks, w), beta)


class AnnealingSchedule(NamedTuple):
    """Temperatures and tolerances, all traced.

    Attributes
    ----------
    start : (S,) first inverse temperature of every restart
    factor : ratio of successive inverse temperatures
    final : last inverse temperature; infinite to anneal until the labels are hard
    noise : standard deviation of the perturbation of log memberships at the start of every level
    tol : largest change of a membership at which a level has converged
    max_iter : maximum number of updates per level
    curvature : a number c for which F minus c times the sum of W log W is concave in W; 0 if F is
        concave. `anneal` shortens damped steps accordingly
    """

    start: jax.Array
    factor: jax.Array
    final: jax.Array
    noise: jax.Array
    tol: jax.Array
    max_iter: jax.Array
    curvature: jax.Array


class RoundingMonitor(NamedTuple):
    """Detect that memberships change only by rounding errors of unknown size.

    Attributes
    ----------
    smallest : smallest change so far; updated only if it decreases by more than a tenth
    n_since : number of comparisons since ``smallest`` decreased
    """

    smallest: jax.Array
    n_since: jax.Array

    @classmethod
    def start(cls, dtype: Any) -> RoundingMonitor:
        """Make a monitor that has observed no changes; ``dtype`` is the dtype of the changes."""
        return cls(jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32))

    def add_change(self, change: jax.Array) -> RoundingMonitor:
        """Add the observation ``change``, which is infinite if no change was computed."""
        lower = change < 0.9 * self.smallest
        n_since = jnp.where(lower, 0, self.n_since + jnp.isfinite(change))
        return self._replace(smallest=jnp.where(lower, change, self.smallest), n_since=n_since)

    def is_rounding(self, change: jax.Array) -> jax.Array:
        """Whether ``change`` is a rounding error.

        The method returns true if ``smallest`` is at most the square root of the machine precision,
        has not been updated for 25 comparisons, and ``change`` is at most twice ``smallest``.
        """
        stalled = (self.n_since >= _PATIENCE) & (change <= 2 * self.smallest)
        return stalled & (self.smallest <= jnp.finfo(self.smallest.dtype).eps ** 0.5)


class AnnealingResult(NamedTuple):
    """Final partitions of all restarts.

    Attributes
    ----------
    w : (B, r, S, K) final masses
    state : final state of the method
    beta : (S,) final inverse temperature
    trace : (CAPACITY, S) objective at the end of every level, NaN after the last level
    converged : (S,) whether the restart has converged. With a finite ``AnnealingSchedule.final``, a
        restart has converged if memberships are constant. With an infinite ``final``, a restart has
        converged if labels are unchanged since the previous level, and are hard or at the end of
        the range of temperatures
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

    ``mass`` (B, r) are the masses of the rows. ``fixed`` (B, r) is the cluster of a labelled row,
    and -1 for all other rows. ``active`` (K,) is False for clusters that do not exist (padding).
    """
    if active is not None:
        log_r = jnp.where(active, log_r, -jnp.inf)
    if fixed is not None:
        fixed = fixed[..., None, None]
        log_label = jnp.where(jnp.arange(log_r.shape[-1]) == fixed, 0.0, -jnp.inf)
        log_r = jnp.where(fixed >= 0, log_label.astype(log_r.dtype), log_r)
    e = jnp.exp(log_r - log_r.max(-1, keepdims=True))
    return e * (mass[..., None, None] / e.sum(-1, keepdims=True))


def compression_cost(compression: Any, sums: BlockSums) -> jax.Array:
    """Return ``compression * n H(C) - n H(C|X)`` (S,), in nats, for rows of total mass n.

    C is the cluster and X the index of a row. With a compression of 1, the cost is n times the
    mutual information I(C;X).
    """

    def add_block(block, w):
        log_r = safe_log(w) - safe_log(block.mass)[..., None, None]
        return jnp.where(w > 0, w * log_r, 0).sum((0, 1, 3)), w.sum((0, 1)), block.mass.sum()

    negative_entropy, q, total = sums(add_block)
    return negative_entropy - compression * (q * (safe_log(q) - safe_log(total))).sum(-1)


def term_update(terms: Terms, compression: Any) -> Update:
    r"""Make the `Update` of an objective F that is a sum of terms.

    The records of the update are `Rows`, and its state is None. The update decreases the free
    energy, which the docstring of this module defines. The E-step is

    .. math:: \log r(c|x) = \alpha \log p(c) - \beta \frac{\partial F}{\partial W(x, c)} + const,

    where p(c) is the share of cluster c in the total mass, and alpha is ``compression``: 1 gives
    the information bottleneck, 0 a mixture or information distortion. H(C) is concave in p(c), so
    its tangent at the current p(c) is an upper bound. Therefore no update raises the free energy if
    F is concave. The masses W sum to the weights of the rows, not to 1: F and the entropies are
    totals over all rows, in nats.
    """

    def m_step(state, sums, beta):
        cells, q = sums(lambda rows, w: (rows.cells(w), w.sum((0, 1))))
        return state, (centred_gradient(terms, cells), safe_log(q)), None

    def e_step(parameters, rows, _, beta):
        slopes, log_prior = parameters
        log_r = -beta[:, None] * rows.adjoint(slopes)
        return log_r + compression * log_prior

    def free_energy(state, sums, beta):
        cells = sums(lambda rows, w: rows.cells(w))
        return objective(terms, cells) + compression_cost(compression, sums) / beta

    return Update(m_step, e_step, free_energy)


def random_log_memberships(
    seed: jax.Array, rows: Rows, n_restarts: int, n_clusters: int, scale: float = 0.1
) -> jax.Array:
    """Random log memberships (B, r, S, K), up to a constant per row.

    Their standard deviation is ``scale``. If ``scale`` is small, a row belongs to all clusters
    nearly equally.
    """
    noise = hashed_noise(fold_in(seed, rows.number), (n_restarts, n_clusters), rows.mass.dtype)
    return scale * noise


def anneal(
    update: Update,
    blocks: tuple[Any, ...],
    state: Any,
    w: jax.Array,
    schedule: AnnealingSchedule,
    seed: jax.Array,
    *,
    fixed: jax.Array | None = None,
    active: jax.Array | None = None,
    damped: bool = False,
) -> AnnealingResult:
    """Raise the inverse temperature until the labels are hard and unchanged, or to its final value.

    Every level perturbs the masses, iterates the update to convergence, and compares the labels
    with the labels of the previous level. One update costs O(n S K p) for n rows of p statistics.

    If F is not concave in the masses, the plain update may overshoot. With ``damped``, only a
    fraction of each step in log r is taken. The fraction is doubled after a step that decreases the
    objective. Otherwise the step is undone, and the fraction is divided by 4. The fraction is at
    least ``1 / (1 + beta * schedule.curvature)``, at which a step always decreases the objective.
    """
    n_restarts = w.shape[2]
    mass = jnp.concatenate([block.mass for block in blocks])
    number = jnp.concatenate([block.number for block in blocks])
    total = mass.sum()
    share = jnp.where(mass > 0, 1 / jnp.where(mass > 0, mass, 1), 0)[..., None, None]
    tiny = jnp.finfo(w.dtype).tiny
    real = mass > 0
    stop = jnp.minimum(schedule.start, schedule.final) * RANGE

    evaluate = functools.partial(update.evaluate_objective, blocks)

    def run_level(carry, index):
        beta, state, w, labels, _, n_iter = carry
        last = beta >= schedule.final
        # Perturb the masses: equal clusters are a saddle point that the update never leaves.
        noise = jnp.where(last, 0, schedule.noise)[:, None]
        level_seed = fold_in(fold_in(seed, index), number)
        w = w * jnp.exp(noise * hashed_noise(level_seed, w.shape[2:], w.dtype))
        w = w * (mass[..., None, None] / jnp.maximum(w.sum(-1, keepdims=True), 1e-30))
        # The final level of a finite schedule runs to a tighter tolerance.
        finish = jnp.all(last)
        tol = jnp.where(finish, schedule.tol * 1e-3, schedule.tol)
        tol = jnp.maximum(tol, 8 * jnp.finfo(w.dtype).eps)
        max_iter = jnp.where(finish, 100 * schedule.max_iter, schedule.max_iter)
        shortest = 1 / (1 + beta * schedule.curvature)

        def has_converged(change, monitor):
            return (change <= tol) | monitor.is_rounding(change)

        def continues(inner):
            _, _, count, change, monitor, _, _ = inner
            return (count < max_iter) & ~has_converged(change, monitor)

        def take_step(inner):
            state, w, count, _, monitor, step, reached = inner
            state, log_r = update.em_step(blocks, state, w, beta)
            if not damped:
                new = normalise_masses(log_r, mass, fixed, active)
                # A comparison of all memberships takes a large part of the time of an update, so
                # only every second update has one.
                change = jax.lax.cond(
                    (count & 1 == 1) | (count + 1 >= max_iter),
                    lambda: (jnp.abs(new - w) * share).max(),
                    lambda: jnp.asarray(jnp.inf, w.dtype),
                )
                return state, new, count + 1, change, monitor.add_change(change), step, reached
            # Damped step in log memberships, per restart.
            log_r = log_r - jax.nn.logsumexp(log_r, -1, keepdims=True)
            old = jnp.log(jnp.maximum(w, tiny)) - jnp.log(jnp.maximum(mass, tiny))[..., None, None]
            new = normalise_masses(old + step[:, None] * (log_r - old), mass, fixed, active)
            goal = evaluate(state, new, beta)
            # Accept a descent up to rounding, or the shortest step; then adapt the step length.
            slack = 16 * jnp.finfo(w.dtype).eps * jnp.abs(reached)
            accept = (goal <= reached + slack) | (step <= shortest)
            change = (jnp.abs(new - w) * share).max((0, 1, 3))
            change = jnp.where(accept, change / step, jnp.inf).max()
            w = jnp.where(accept[:, None], new, w)
            reached = jnp.where(accept, goal, reached)
            step = jnp.clip(jnp.where(accept, 2 * step, step / 4), shortest, 1)
            return state, w, count + 1, change, monitor.add_change(change), step, reached

        reached = evaluate(state, w, beta) if damped else jnp.zeros_like(beta)
        unknown = jnp.asarray(jnp.inf, w.dtype)
        monitor = RoundingMonitor.start(w.dtype)
        start = state, w, 0, unknown, monitor, jnp.ones_like(beta), reached
        state, w, steps, change, monitor, _, _ = jax.lax.while_loop(continues, take_step, start)
        # Labels are hard if 99.9 % of the mass is in rows with a membership above 0.999.
        new_labels = w.argmax(-1).astype(labels.dtype)
        sharp = (w.max(-1) > 0.999 * mass[..., None]) & real[..., None]
        hard = (sharp * mass[..., None]).sum((0, 1)) >= 0.999 * total
        same = jnp.all((new_labels == labels) | ~real[..., None], (0, 1))
        # Rows with two equally good clusters never become hard. At the end of the range, unchanged
        # labels are enough.
        ends = beta * schedule.factor > stop
        done = jnp.where(last, has_converged(change, monitor), same & (hard | ends))
        reached = evaluate(state, w, beta)
        over = jnp.all(last | done) | jnp.all(beta * schedule.factor > stop)
        over = jnp.where(schedule.final == jnp.inf, over, finish) | (index + 1 >= CAPACITY)
        beta = jnp.where(over, beta, jnp.minimum(beta * schedule.factor, schedule.final))
        return (beta, state, w, new_labels, done, n_iter + steps), over, reached

    no_labels, not_done = jnp.full(w.shape[:3], -1, jnp.int32), jnp.zeros(n_restarts, bool)
    start = jnp.minimum(schedule.start, schedule.final), state, w, no_labels, not_done, 0
    result = iterate(run_level, start, CAPACITY, trace=empty_trace(CAPACITY, w.dtype, n_restarts))
    beta, state, w, _, done, n_iter = result.state
    return AnnealingResult(w, state, beta, result.trace, done, n_iter)


def leading_curvatures(
    terms: Terms,
    rows: Rows,
    weigh: WeightRule,
    n_start: int | None = None,
    max_iter: int = 300,
    *,
    existence_only: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Curvatures and weights of the terms, and the curvature of their weighted sum.

    Let all clusters be identical, and let e be a perturbation of the log memberships of one
    cluster. The linearised update maps e to beta B e, where the linear map B gives minus the change
    of dF/dW. Clusters therefore first separate at the inverse temperature
    1 / (largest eigenvalue of B). This eigenvalue is called the curvature of F. The curvature of a
    term is the eigenvalue if F is this term alone. ``weigh`` computes the weights (terms,) from the
    curvatures (terms,). One power iteration on the exact derivative of dF/dW computes the
    curvatures of all terms and of the weighted sum of the first ``n_start`` terms. Costs are
    homogeneous of degree 1, so one cluster of all rows represents K identical clusters. With
    ``existence_only``, the iteration stops as soon as the curvature of the weighted sum is known to
    be positive. The returned value is then a lower bound.

    Returns
    -------
    curvatures (terms,), weights (terms,), and the curvature of the weighted sum
    """
    dtype = rows.mass.dtype
    n = len(terms)
    counts = jnp.arange(n) < (n if n_start is None else n_start)
    # One cell with all rows per problem: n single terms, and their weighted sum.
    mass = rows.mass[..., None]
    totals = rows.cells(rows.mass[..., None, None])
    totals = jnp.broadcast_to(totals, (totals.shape[0], n + 1, *totals.shape[2:]))
    eps = jnp.finfo(dtype).eps
    scale = jnp.stack([t.scale for t in terms]).astype(dtype)

    def drop_rounding(values):
        """Curvatures (terms,), 0 where they are rounding errors of cancelling parts."""
        return jnp.where(values > 20 * eps * scale, values, 0)

    # B e for n + 1 perturbations e, by a Jacobian-vector product of the gradient of F.
    def apply_curvature(e, weights):
        weighted = tuple(replace(t, weight=weights[i]) for i, t in enumerate(terms))
        gradient = jax.grad(lambda c: objective(weighted, c).sum())
        cells = rows.cells((mass * e)[..., None])
        return -rows.adjoint(jax.jvp(gradient, (totals,), (cells,))[1])[..., 0]

    def apply_all(e, values):
        total = jnp.where(counts, weigh(drop_rounding(values[:n])), 0)
        weights = jnp.concatenate([jnp.eye(n, dtype=dtype), total[:, None]], 1)
        return apply_curvature(e, weights)

    # The eigenvalue of the weighted sum counts as 0 below its rounding error.
    def rounding_floor(weights):
        return 20 * eps * jnp.where(counts, jnp.abs(weights) * scale, 0).sum()

    def has_positive_sum(values):
        return values[n] > rounding_floor(weigh(drop_rounding(values[:n])))

    # Power iteration in the inner product of the masses, where B is self-adjoint.
    values = leading_eigenvalues(
        apply_all,
        hashed_noise(fold_in(fold_in(0, 0), rows.number), (n + 1,), dtype),
        lambda a, b: (mass * a * b).sum((0, 1)),
        accuracy=1e-6 if dtype == jnp.float64 else 1e-5,
        max_iter=max_iter,
        enough=has_positive_sum if existence_only else None,
    )
    single = drop_rounding(values[:n])
    weights = weigh(single)
    return single, weights, jnp.where(values[n] > rounding_floor(weights), values[n], 0)
