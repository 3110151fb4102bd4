"""Deterministic annealing of out-of-core rows: memory for cell statistics only.

The schedule is the same as in `nrprob.engines.optimise.anneal`. The rows are stored in chunks
(`KnownBlock`), which fit in memory one at a time. For each chunk, one pass over the rows computes
memberships from the current parameters (E-step), adds the weighted statistics of the rows to the
cell statistics, and discards the memberships. The M-step needs the statistics only. Random numbers
are hashed from the row index, so that every pass can recompute the same numbers. All restarts share
a pass, which costs O(n S K p) time; memory is O(S K p) and one chunk of rows.

Shapes: n rows in all chunks; a chunk has B blocks of r rows, as in `nrprob.statistics.rows.Rows`; S
restarts; K clusters; p statistics of a row; ``groups`` known groups. A *level* is one temperature.
The argument ``block`` of a function is one chunk, and ``active`` (K,) is False for clusters that
are padding. F is the objective, a sum of terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.data.storage.blocks import Blocks
from nrprob.engines.hash_rng import fold_in, hashed_noise
from nrprob.engines.optimise.anneal import CAPACITY, RANGE, normalise_masses
from nrprob.engines.optimise.power_iteration import leading_eigenvalues
from nrprob.engines.optimise.solve import Problem, Settings, TermFit, exact_objective
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms, centred_gradient, objective, row_costs

# A level has converged if the root mean square change of all rows is at most this share of tol. The
# change of single rows then rarely exceeds tol.
_TOL_SHARE = 0.25
_ROUNDING = 1e-7  # relative change of cell statistics by rounding errors


class KnownBlock(NamedTuple):
    """One chunk of rows, sorted by known group, and their partial labels.

    Attributes
    ----------
    rows : the rows of the chunk, in blocks
    fixed : (B, r) labels of the rows, -1 where unknown; None if no row is labelled
    """

    rows: Rows
    fixed: np.ndarray | None


class Moments(NamedTuple):
    """Sums over all rows that determine terms and temperatures.

    Attributes
    ----------
    totals : (groups, p) statistics of the known groups
    products : (groups, p, p) sums of products of two statistics
    """

    totals: np.ndarray
    products: np.ndarray


class SummedRows:
    """Substitute for `nrprob.statistics.rows.Rows` in functions that build terms.

    This class has only the attributes that these functions read, computed from sums over all rows.
    """

    def __init__(self, moments: Moments):
        self._moments = moments
        self.n_groups, n_statistics = moments.totals.shape
        self.x = _StatisticsShape(n_statistics)
        self.mass = jnp.asarray(moments.totals[:, -1])

    def totals(self) -> jax.Array:
        """Sums (groups, p) of the statistics over the rows of every known group."""
        return jnp.asarray(self._moments.totals)

    def scatter(self, centre: jax.Array) -> jax.Array:
        """Weighted sums of squares (p,) of the statistics about ``centre`` (groups, p)."""
        totals, products = self._moments
        squares = jnp.diagonal(products, axis1=1, axis2=2)
        scatter = squares - 2 * centre * totals + centre**2 * totals[:, -1:]
        return jnp.maximum(scatter.sum(0), 0)


class _StatisticsShape(NamedTuple):
    n_statistics: int


class MembershipParameters(NamedTuple):
    """Parameters of the E-step.

    Attributes
    ----------
    slopes : (groups, S, K, p) derivatives of F by the statistics of the cells
    log_prior : (S, K) compression times the log masses of the clusters
    beta : (S,) inverse temperature
    """

    slopes: Any
    log_prior: Any
    beta: Any


class Perturbation(NamedTuple):
    """Random perturbation of log memberships at the end of a level.

    Attributes
    ----------
    seed : seed of the random numbers
    size : (S,) standard deviation of the perturbation in every restart
    """

    seed: Any
    size: Any


class PassSummary(NamedTuple):
    """Sums over all rows at the end of a level, that is, at one temperature.

    Attributes
    ----------
    cells : (groups, S, K, p) statistics under perturbed memberships, which start the next level
    negative_entropy : (S,) sums of w log r over rows and clusters, for masses w and memberships r
    hard : (S,) total mass of the rows whose largest membership exceeds 0.999
    checksum : (S,) checksums of the most likely labels
    """

    cells: Any
    negative_entropy: Any
    hard: Any
    checksum: Any


class StoredAnnealingResult(NamedTuple):
    """Result of `anneal_cells`.

    Attributes
    ----------
    state : `MembershipParameters` of the final memberships
    cells : (groups, S, K, p) statistics of the cells under the final memberships
    hard : (groups, S, K, p) statistics of the cells if every row is in its most likely cluster
    objective : (S,) objective of the hard labels; if the final inverse temperature is finite, free
        energy of the memberships
    converged : (S,) whether a restart has converged
    n_iter : number of passes over the rows that changed memberships
    trace : (levels, S) objective at the end of every level
    critical : inverse temperature at which clusters first separate
    weights : (terms,) weights of the terms
    best : index of the best restart
    """

    state: MembershipParameters
    cells: np.ndarray
    hard: np.ndarray
    objective: np.ndarray
    converged: np.ndarray
    n_iter: int
    trace: np.ndarray
    critical: float
    weights: np.ndarray
    best: int

    def fit(self, terms: Terms, compression: float) -> TermFit:
        """Return the parameters of the best restart, as the engines in memory do."""
        best = slice(self.best, self.best + 1)
        q = self.cells[:, self.best, :, -1].sum(0)
        held = self.hard[:, self.best, :, -1].sum(0)
        prior = np.full_like(q, -np.inf)
        prior[held > 0] = compression * np.log(q[held > 0])
        slopes = np.asarray(row_costs(terms, jnp.asarray(self.cells[:, best])))[:, 0]
        beta = np.asarray(self.state.beta)[self.best]
        return TermFit(slopes, prior, beta, self.critical, self.weights)  # type: ignore[arg-type]


@jax.jit
def _block_moments(block: KnownBlock) -> Moments:
    rows = block.rows
    p = rows.x.n_statistics

    def add_products(total, part):
        x, mass, group = part
        square = jnp.matmul(x.T * mass, x, precision=jax.lax.Precision.HIGHEST)
        return total.at[group].add(square), None

    products = jnp.zeros((rows.n_groups, p, p), rows.mass.dtype)
    products, _ = jax.lax.scan(add_products, products, (rows.x.x, rows.mass, rows.group))
    return Moments(rows.totals(), products)


def sum_moments(blocks: Blocks) -> Moments:
    """Compute the `Moments` of all rows."""
    return blocks.map_sum(_block_moments)


def _e_step(
    block: KnownBlock, state: MembershipParameters | None, active: jax.Array, seed: Any, scale: Any
) -> jax.Array:
    """Masses (B, r, S, K) of the rows of a chunk in the clusters of every restart.

    The masses follow from the parameters ``state``. If ``state`` is None, the masses are random
    initial values, with log memberships of the standard deviation ``scale`` (S,).
    """
    rows = block.rows
    if state is None:
        shape = scale.shape[0], active.shape[0]
        log_r = scale[:, None] * hashed_noise(fold_in(seed, rows.number), shape, rows.mass.dtype)
    else:
        log_r = -state.beta[:, None] * rows.adjoint(state.slopes) + state.log_prior
    return normalise_masses(log_r, rows.mass, block.fixed, active)


@jax.jit
def _cells_of_block(block: KnownBlock, state: MembershipParameters, active: jax.Array) -> jax.Array:
    """Cell statistics (groups, S, K, p) of a chunk, for memberships from ``state``."""
    return block.rows.cells(_e_step(block, state, active, jnp.uint32(0), 0.0))


@jax.jit
def _summarise_block(
    block: KnownBlock,
    state: MembershipParameters | None,
    active: jax.Array,
    seed: jax.Array,
    scale: jax.Array,
    noise: Perturbation,
) -> PassSummary:
    """Compute the `PassSummary` of one chunk, whose memberships follow from ``state``."""
    rows = block.rows
    w = _e_step(block, state, active, seed, scale)
    # Checksum of the labels, to compare them with the labels of the previous level.
    labels = w.argmax(-1).astype(jnp.uint32)
    code = fold_in(fold_in(jnp.uint32(1), rows.number)[..., None], labels)
    checksum = jnp.where(rows.mass[..., None] > 0, code, 0).sum((0, 1), dtype=jnp.uint32)
    # Mass of hard rows, and the sum of w log r.
    hard = jnp.where(w.max(-1) > 0.999 * rows.mass[..., None], rows.mass[..., None], 0)
    r = w / jnp.where(rows.mass > 0, rows.mass, 1)[..., None, None]
    negative_entropy = jnp.where(w > 0, w * jnp.log(jnp.where(r > 0, r, 1)), 0).sum((0, 1, 3))
    # Perturbed memberships for the next level.
    draw = hashed_noise(fold_in(noise.seed, rows.number), w.shape[2:], w.dtype)
    w = w * jnp.exp(noise.size[:, None] * draw)
    w = w * (rows.mass[..., None, None] / jnp.maximum(w.sum(-1, keepdims=True), 1e-30))
    return PassSummary(rows.cells(w), negative_entropy, hard.sum((0, 1)), checksum)


@jax.jit
def _hard_cells_of_block(
    block: KnownBlock, state: MembershipParameters, active: jax.Array
) -> jax.Array:
    """Sums (groups, S, K, p) of statistics over a chunk, by known group and most likely cluster."""
    w = _e_step(block, state, active, jnp.uint32(0), 0.0)
    hits = w.argmax(-1)[..., None] == jnp.arange(w.shape[-1])
    return block.rows.cells(jnp.where(hits, block.rows.mass[..., None, None], 0))


@partial(jax.jit, static_argnames="soft")
def _labels_of_block(
    block: KnownBlock, state: MembershipParameters, active: jax.Array, soft: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Row indices (B, r), labels (B, r, S) and memberships (B, r, S, K) of a chunk.

    Rows must have weight 1, so that their masses are memberships. The label of padding is -1. The
    memberships are None unless ``soft``.
    """
    w = _e_step(block, state, active, jnp.uint32(0), 0.0)
    labels = jnp.where(block.rows.mass[..., None] > 0, w.argmax(-1), -1).astype(jnp.int32)
    return block.rows.number, labels, w if soft else None


@jax.jit
def _m_step(
    terms: Terms, cells: jax.Array, active: jax.Array, compression: Any
) -> tuple[jax.Array, ...]:
    """Derivatives (groups, S, K, p) of F by cell statistics, and log prior (S, K) of clusters."""
    q = cells[..., -1].sum(0)
    prior = compression * jnp.log(jnp.where(q > 0, q, 1))
    return centred_gradient(terms, cells), jnp.where(
        active & ((q > 0) | (compression == 0)), prior, -jnp.inf
    )


def _free_energy(
    terms: Terms,
    cells: np.ndarray,
    negative_entropy: np.ndarray,
    beta: np.ndarray,
    compression: float,
) -> np.ndarray:
    """Free energy (S,) of every restart, defined in `nrprob.engines.optimise.anneal`.

    ``negative_entropy`` (S,) is -H(C|X), summed over all rows.
    """
    q = cells[..., -1].sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        q_log_p = np.where(q > 0, q * np.log(q / q.sum(-1, keepdims=True)), 0)
    information = negative_entropy - compression * q_log_p.sum(-1)
    return np.asarray(objective(terms, jnp.asarray(cells))) + information / beta


def weight_terms(problem: Problem, all_rows: Moments) -> tuple[Terms, np.ndarray, float]:
    """Return the terms with weights, the weights, and the inverse temperature of the first split.

    The computation is as in `nrprob.engines.optimise.anneal.leading_curvatures`, but the power
    iteration acts on derivatives by cell statistics instead of on rows. The iteration needs only
    sums of products of the statistics of rows.
    """
    terms, n = problem.terms, len(problem.terms)
    counts = jnp.arange(n) < (n if problem.n_start is None else problem.n_start)
    totals = jnp.broadcast_to(
        jnp.asarray(all_rows.totals)[:, None, None],
        (len(all_rows.totals), n + 1, 1, all_rows.totals.shape[1]),
    )
    # The vectors of the power iteration are derivatives by the statistics of the groups. The maps
    # have the same eigenvalues as the maps of `leading_curvatures`.
    products = jnp.asarray(all_rows.products)
    eps = np.finfo(np.float64).eps
    scale = jnp.stack([jnp.asarray(t.scale, jnp.float64) for t in terms])

    def drop_rounding(values):
        return jnp.where(values > 20 * eps * scale, values, 0)

    def change_cells(u):  # maps are on the last axis in the power iteration
        return jnp.einsum("gps,gpq->gsq", u, products)[:, :, None]

    def apply_all(u, values):
        total = jnp.where(counts, problem.weigh(drop_rounding(values[:n])), 0)
        map_weights = jnp.concatenate([jnp.eye(n), total[:, None]], 1)
        weighted = tuple(replace(t, weight=map_weights[i]) for i, t in enumerate(terms))
        gradient = jax.grad(lambda c: objective(weighted, c).sum())
        change = jax.jvp(gradient, (totals,), (change_cells(u),))[1]
        return -jnp.moveaxis(change[:, :, 0], 1, 2)

    @jax.jit
    def solve_eigenvalues():
        g, _, _, p = totals.shape
        start = hashed_noise(fold_in(jnp.uint32(0), jnp.arange(g)), (p, n + 1), jnp.float64)

        def inner_product(a, b):
            return (jnp.moveaxis(a, 2, 1) * change_cells(b)[:, :, 0]).sum((0, 2))

        return leading_eigenvalues(apply_all, start, inner_product, accuracy=1e-9, max_iter=10000)

    # Weights, and the inverse temperature of the first split.
    values = solve_eigenvalues()
    weights = problem.weigh(drop_rounding(values[:n]))
    floor = 20 * eps * jnp.where(counts, jnp.abs(weights) * scale, 0).sum()
    largest = float(jnp.where(values[n] > floor, values[n], 0))
    weighted = tuple(replace(t, weight=jnp.asarray(weights[i])) for i, t in enumerate(terms))
    return weighted, np.asarray(weights), 1 / max(largest, 1e-30) if largest > 0 else np.inf


def anneal_cells(
    blocks: Blocks,
    problem: Problem,
    all_rows: Moments,
    settings: Settings,
    seed: int,
    *,
    n_clusters: int,
    n_init: int,
    dtype: Any,
    report: Callable[[int, float], None] = lambda n_iter, beta: None,
) -> tuple[StoredAnnealingResult, Terms]:
    """Anneal ``n_init`` restarts in parallel; see `nrprob.engines.optimise.solve.solve_anneal`.

    A level has converged when the root mean square change of the rows' log memberships is at most a
    quarter of ``settings.tol``, or when the cell statistics change by rounding errors only. The
    first rule approximates the criterion of `nrprob.engines.optimise.anneal.anneal`, the largest
    change of a membership.
    """
    # Temperatures of the restarts; see `solve_anneal`.
    terms, weights, critical = weight_terms(problem, all_rows)
    active = np.arange(n_clusters) < settings.n_clusters
    final = float(settings.beta)
    begin = 0.95 * critical if np.isfinite(critical) and problem.anneal else 1.0
    if not problem.anneal:
        begin = np.inf
    start = begin * float(settings.quench) ** np.linspace(0, 1, n_init)
    beta = np.minimum(start, final)
    stop = beta * RANGE
    cooling, tol = float(settings.cooling), float(settings.tol)
    # Scales of the initial perturbation, and of the statistics for the rounding criterion.
    scale = np.full(n_init, 0.1 if problem.anneal else 1.0, dtype)
    mass = all_rows.totals[:, -1]
    diagonal = np.diagonal(all_rows.products, axis1=1, axis2=2)
    spans = np.sqrt(np.maximum(mass[:, None] * diagonal, 1e-300))[:, None, None]
    seeds = [np.asarray(fold_in(seed, i)) for i in (1, 2)]

    def cast_parameters(state):
        return MembershipParameters(*(np.asarray(a, dtype) for a in state))

    def summarise_rows(state, beta, index):
        size = np.where(beta >= final, 0, float(settings.noise)).astype(dtype)
        noise = Perturbation(np.asarray(fold_in(seeds[1], index)), size)
        cast = None if state is None else cast_parameters(state)
        return blocks.map_sum(_summarise_block, cast, active, seeds[0], scale, noise)

    state: MembershipParameters | None = None
    summary = summarise_rows(state, beta, 0)
    trace, done, n_iter, checksum = [], np.zeros(n_init, bool), 0, None
    for index in range(1, CAPACITY + 1):
        last = beta >= final
        finish = bool(last.all())
        cells = summary.cells
        level_tol = tol * _TOL_SHARE * (1e-3 if finish else 1)
        # Updates at one temperature, with one pass over the rows each, until the restarts converge.
        for _ in range(int(settings.max_iter) * (100 if finish else 1)):
            slopes, prior = map(
                np.asarray, _m_step(terms, jnp.asarray(cells), active, settings.compression)
            )
            new = MembershipParameters(slopes, prior, beta)
            change = np.full(n_init, np.inf)
            if state is not None:
                change = _membership_change(state, new, all_rows, active)
            old, state = cells, new
            cells = blocks.map_sum(_cells_of_block, cast_parameters(state), active)
            n_iter += 1
            constant = (np.abs(cells - old) / spans).max((0, 2, 3)) <= _ROUNDING
            quiet = (change <= level_tol) | constant
            if quiet.all():
                break
        # One pass summarises the level and perturbs the memberships for the next one.
        next_beta = np.minimum(beta * cooling, final)
        summary = summarise_rows(state, next_beta, index)
        same = np.zeros(n_init, bool) if checksum is None else summary.checksum == checksum
        checksum = summary.checksum
        # A restart is done when its labels are unchanged, and hard or at the end of the range.
        ends = beta * cooling > stop
        done = np.where(last, quiet, same & ((summary.hard >= 0.999 * mass.sum()) | ends))
        energy = _free_energy(terms, cells, summary.negative_entropy, beta, settings.compression)
        trace.append(energy)
        report(n_iter, float(beta.max()))
        hardened = (last | done).all() or ends.all()
        if hardened if np.isinf(final) else finish:
            break
        beta = next_beta
    assert state is not None
    # Objective of the hard labels, and the best restart.
    final_state = cast_parameters(state)
    hard_cells = blocks.map_sum(_hard_cells_of_block, final_state, active)
    reached = np.asarray(exact_objective(terms, jnp.asarray(hard_cells)))
    if np.isfinite(final):
        reached = trace[-1]
    else:
        trace.append(reached)
    best = int(reached.argmin())
    return StoredAnnealingResult(
        final_state,
        cells,
        hard_cells,
        reached,
        done,
        n_iter,
        np.array(trace),
        critical,
        weights,
        best,
    ), terms


def _membership_change(
    old: MembershipParameters, new: MembershipParameters, all_rows: Moments, active: np.ndarray
) -> np.ndarray:
    """Change (S,) of the log memberships between two sets of parameters.

    The change is the largest over clusters and known groups. For one cluster and group, it is the
    root mean square over the rows of the group, plus the absolute change of the log prior.
    """
    beta = np.asarray(new.beta)[:, None, None]
    step = (beta * (new.slopes - old.slopes))[:, :, active]
    with np.errstate(invalid="ignore"):
        prior = np.nan_to_num(new.log_prior - old.log_prior, posinf=np.inf, neginf=np.inf)[
            :, active
        ]
    step = step - step.mean(2, keepdims=True)
    square = np.einsum("gskp,gpq,gskq->gsk", step, all_rows.products, step)
    mass = np.maximum(all_rows.totals[:, -1], 1e-300)[:, None, None]
    return (np.sqrt(np.maximum(square / mass, 0)) + np.abs(prior)).max((0, 2))


def iterate_labels(
    blocks: Blocks, result: StoredAnnealingResult, active: np.ndarray, soft: bool
) -> Any:
    """Yield row indices (B, r), labels (B, r) and memberships (B, r, K) of every chunk.

    Labels and memberships belong to the best restart. The label of padding is -1. The memberships
    are None unless ``soft``. ``active`` (K,) is False for clusters that are padding.
    """
    restart, state = slice(result.best, result.best + 1), result.state
    best = MembershipParameters(
        state.slopes[:, restart], state.log_prior[restart], state.beta[restart]
    )
    for number, labels, w in blocks.map_blocks(partial(_labels_of_block, soft=soft), best, active):
        yield number, labels[..., 0], None if w is None else w[..., 0, :]
