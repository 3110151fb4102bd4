"""Deterministic annealing of out-of-core rows: cell statistics are kept, memberships are not.

The temperatures are those of `nrprob.engines.optimise.anneal`. Each block of rows gets its scores
and memberships, is added to the cells, and is discarded. Random numbers are hashed from the row
index, so that they can be computed again whenever they are needed. A pass over the rows is a sum
over blocks, wherever these are stored, and all restarts share it.
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
from nrprob.engines.optimise.power import leading_eigenvalues
from nrprob.engines.optimise.solve import Problem, Settings, TermFit, exact_objective
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms, centred_gradient, objective, row_costs

_SHARE = 0.25  # of the tolerance that all rows together may still move, for none to move by more
_ROUNDING = 1e-7  # relative change of cells in which nothing moves any more


class KnownBlock(NamedTuple):
    """Some rows, by known group, and their clusters where these are given, else -1; or None."""

    rows: Rows
    fixed: np.ndarray | None


class Moments(NamedTuple):
    """What terms and temperatures need to know of all rows.

    Attributes
    ----------
    totals : (groups, p) statistics of the known groups
    products : (groups, p, p) sums of products of statistics
    """

    totals: np.ndarray
    products: np.ndarray


class SummedRows:
    """All rows, to who makes the terms of an objective: sums that are there already.

    It stands for `nrprob.statistics.rows.Rows`, of which it has what such a builder may ask for.
    """

    def __init__(self, moments: Moments):
        self._moments = moments
        self.n_groups, n_statistics = moments.totals.shape
        self.x = _Width(n_statistics)
        self.mass = jnp.asarray(moments.totals[:, -1])

    def totals(self) -> jax.Array:
        """See `Rows.totals`."""
        return jnp.asarray(self._moments.totals)

    def scatter(self, centre: jax.Array) -> jax.Array:
        """See `Rows.scatter`."""
        own = self._moments
        squares = jnp.diagonal(own.products, axis1=1, axis2=2)
        about = squares - 2 * centre * own.totals + centre**2 * own.totals[:, -1:]
        return jnp.maximum(about.sum(0), 0)


class _Width(NamedTuple):
    n_statistics: int


class MembershipParameters(NamedTuple):
    """What memberships follow from.

    Attributes
    ----------
    slopes : (groups, S, K, p)
    log_prior : (S, K)
    beta : (S,) inverse temperature
    """

    slopes: Any
    log_prior: Any
    beta: Any


class Perturbation(NamedTuple):
    """``seed`` of the perturbation, and its standard deviation ``size`` (S,), 0 for none."""

    seed: Any
    size: Any


class PassSummary(NamedTuple):
    """What a look at memberships tells.

    Attributes
    ----------
    cells : (groups, S, K, p) of the memberships, perturbed
    sure : (S,) sums of w log r
    hard : (S,) masses of the rows that are in one cluster
    check : (S,) checksums of the labels
    """

    cells: Any
    sure: Any
    hard: Any
    check: Any


class StoredAnnealingResult(NamedTuple):
    """What annealing found.

    Attributes
    ----------
    state : `State` of which memberships follow
    cells : (groups, S, K, p) of these memberships
    hard : (groups, S, K, p) of the most likely clusters
    objective : (S,) at these, or at a finite temperature that of the memberships
    converged : (S,)
    n_iter : passes over the rows that changed memberships
    trace : (levels, S)
    critical, weights : see `TermFit`
    best : number of the best restart
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
        """What the terms say of the best restart."""
        at = slice(self.best, self.best + 1)
        q = self.cells[:, self.best, :, -1].sum(0)
        held = self.hard[:, self.best, :, -1].sum(0)
        prior = np.full_like(q, -np.inf)
        prior[held > 0] = compression * np.log(q[held > 0])
        slopes = np.asarray(row_costs(terms, jnp.asarray(self.cells[:, at])))[:, 0]
        beta = np.asarray(self.state.beta)[self.best]
        return TermFit(slopes, prior, beta, self.critical, self.weights)  # type: ignore[arg-type]


@jax.jit
def _moments(block: KnownBlock) -> Moments:
    rows = block.rows
    p = rows.x.n_statistics

    def add(total, own):
        x, mass, group = own
        square = jnp.matmul(x.T * mass, x, precision=jax.lax.Precision.HIGHEST)
        return total.at[group].add(square), None

    products = jnp.zeros((rows.n_groups, p, p), rows.mass.dtype)
    products, _ = jax.lax.scan(add, products, (rows.x.x, rows.mass, rows.group))
    return Moments(rows.totals(), products)


def sum_moments(blocks: Blocks) -> Moments:
    """Sums over all rows."""
    return blocks.map_sum(_moments)


def _memberships(
    block: KnownBlock, state: MembershipParameters | None, active: jax.Array, seed: Any, scale: Any
) -> jax.Array:
    """Masses (B, r, S, K) that follow from a state, or those of the start."""
    rows = block.rows
    if state is None:
        shape = scale.shape[0], active.shape[0]
        log_r = scale[:, None] * hashed_noise(fold_in(seed, rows.number), shape, rows.mass.dtype)
    else:
        log_r = -state.beta[:, None] * rows.adjoint(state.slopes) + state.log_prior
    return normalise_masses(log_r, rows.mass, block.fixed, active)


@jax.jit
def _pass(block: KnownBlock, state: MembershipParameters, active: jax.Array) -> jax.Array:
    """Cells (groups, S, K, p) of the memberships of a block."""
    return block.rows.cells(_memberships(block, state, active, jnp.uint32(0), 0.0))


@jax.jit
def _look(
    block: KnownBlock,
    state: MembershipParameters | None,
    active: jax.Array,
    seed: jax.Array,
    scale: jax.Array,
    noise: Perturbation,
) -> PassSummary:
    """What a look at the memberships adds up, and the cells of the perturbed ones."""
    rows = block.rows
    w = _memberships(block, state, active, seed, scale)
    labels = w.argmax(-1).astype(jnp.uint32)
    code = fold_in(fold_in(jnp.uint32(1), rows.number)[..., None], labels)
    check = jnp.where(rows.mass[..., None] > 0, code, 0).sum((0, 1), dtype=jnp.uint32)
    hard = jnp.where(w.max(-1) > 0.999 * rows.mass[..., None], rows.mass[..., None], 0)
    r = w / jnp.where(rows.mass > 0, rows.mass, 1)[..., None, None]
    sure = jnp.where(w > 0, w * jnp.log(jnp.where(r > 0, r, 1)), 0).sum((0, 1, 3))
    drawn = hashed_noise(fold_in(noise.seed, rows.number), w.shape[2:], w.dtype)
    w = w * jnp.exp(noise.size[:, None] * drawn)
    w = w * (rows.mass[..., None, None] / jnp.maximum(w.sum(-1, keepdims=True), 1e-30))
    return PassSummary(rows.cells(w), sure, hard.sum((0, 1)), check)


@jax.jit
def _hard(block: KnownBlock, state: MembershipParameters, active: jax.Array) -> jax.Array:
    """Cells of the most likely clusters."""
    w = _memberships(block, state, active, jnp.uint32(0), 0.0)
    names = jnp.arange(w.shape[-1])
    hits = w.argmax(-1)[..., None] == names
    return block.rows.cells(jnp.where(hits, block.rows.mass[..., None, None], 0))


@partial(jax.jit, static_argnames="soft")
def _labels(
    block: KnownBlock, state: MembershipParameters, active: jax.Array, soft: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Numbers, labels (..., S) and memberships (..., S, K) of a block's rows; masses are 1 or 0."""
    w = _memberships(block, state, active, jnp.uint32(0), 0.0)
    labels = jnp.where(block.rows.mass[..., None] > 0, w.argmax(-1), -1).astype(jnp.int32)
    return block.rows.number, labels, w if soft else None


@jax.jit
def _follow(
    terms: Terms, cells: jax.Array, active: jax.Array, compression: Any
) -> tuple[jax.Array, ...]:
    """Slopes and log prior that follow from cells."""
    q = cells[..., -1].sum(0)
    prior = compression * jnp.log(jnp.where(q > 0, q, 1))
    return centred_gradient(terms, cells), jnp.where(
        active & ((q > 0) | (compression == 0)), prior, -jnp.inf
    )


def _value(
    terms: Terms, cells: np.ndarray, sure: np.ndarray, beta: np.ndarray, compression: float
) -> np.ndarray:
    """Objective (S,) of memberships, as `nrprob.engines.optimise.anneal.term_update` has it."""
    q = cells[..., -1].sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        q_log_p = np.where(q > 0, q * np.log(q / q.sum(-1, keepdims=True)), 0)
    paid = sure - compression * q_log_p.sum(-1)
    return np.asarray(objective(terms, jnp.asarray(cells))) + paid / beta


def weight_terms(problem: Problem, all_rows: Moments) -> tuple[Terms, np.ndarray, float]:
    """Terms with their weights, the weights, and the inverse temperature of the first split.

    As `nrprob.engines.optimise.anneal.leading_curvatures`, by the same maps on slopes instead of
    rows: rows only enter by the sums of products of their statistics.
    """
    terms, n = problem.terms, len(problem.terms)
    counts = jnp.arange(n) < (n if problem.n_start is None else problem.n_start)
    totals = jnp.broadcast_to(
        jnp.asarray(all_rows.totals)[:, None, None],
        (len(all_rows.totals), n + 1, 1, all_rows.totals.shape[1]),
    )
    products = jnp.asarray(all_rows.products)
    eps = np.finfo(np.float64).eps
    scale = jnp.stack([jnp.asarray(t.scale, jnp.float64) for t in terms])

    def real(values):
        return jnp.where(values > 20 * eps * scale, values, 0)

    def cells(u):  # maps come last, as the power iteration has them
        return jnp.einsum("gps,gpq->gsq", u, products)[:, :, None]

    def step(u, value):
        total = jnp.where(counts, problem.weigh(real(value[:n])), 0)
        every = jnp.concatenate([jnp.eye(n), total[:, None]], 1)
        own = tuple(replace(t, weight=every[i]) for i, t in enumerate(terms))
        gradient = jax.grad(lambda c: objective(own, c).sum())
        return -jnp.moveaxis(jax.jvp(gradient, (totals,), (cells(u),))[1][:, :, 0], 1, 2)

    @jax.jit
    def solve():
        g, _, _, p = totals.shape
        start = hashed_noise(fold_in(jnp.uint32(0), jnp.arange(g)), (p, n + 1), jnp.float64)

        def inner(a, b):
            return (jnp.moveaxis(a, 2, 1) * cells(b)[:, :, 0]).sum((0, 2))

        return leading_eigenvalues(step, start, inner, accuracy=1e-9, max_iter=10000)

    value = solve()
    weights = problem.weigh(real(value[:n]))
    floor = 20 * eps * jnp.where(counts, jnp.abs(weights) * scale, 0).sum()
    largest = float(jnp.where(value[n] > floor, value[n], 0))
    own = tuple(replace(t, weight=jnp.asarray(weights[i])) for i, t in enumerate(terms))
    return own, np.asarray(weights), 1 / max(largest, 1e-30) if largest > 0 else np.inf


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
    tell: Callable[[int, float], None] = lambda n_iter, beta: None,
) -> tuple[StoredAnnealingResult, Terms]:
    """Anneal ``n_init`` starts side by side; see `nrprob.engines.optimise.solve.solve_anneal`.

    A level has converged when the log memberships of the rows, in the root of their mean square,
    move by no more than a part of ``settings.tol``, or the cells by no more than rounding; which is
    about what no membership moving by more comes to.
    """
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
    scale = np.full(n_init, 0.1 if problem.anneal else 1.0, dtype)
    mass = all_rows.totals[:, -1]
    diagonal = np.diagonal(all_rows.products, axis1=1, axis2=2)
    spans = np.sqrt(np.maximum(mass[:, None] * diagonal, 1e-300))[:, None, None]
    seeds = [np.asarray(fold_in(seed, i)) for i in (1, 2)]

    def narrow(state):
        return MembershipParameters(*(np.asarray(a, dtype) for a in state))

    def look(state, beta, index):
        size = np.where(beta >= final, 0, float(settings.noise)).astype(dtype)
        noise = Perturbation(np.asarray(fold_in(seeds[1], index)), size)
        own = None if state is None else narrow(state)
        return blocks.map_sum(_look, own, active, seeds[0], scale, noise)

    state: MembershipParameters | None = None
    seen = look(state, beta, 0)
    trace, done, n_iter, check = [], np.zeros(n_init, bool), 0, None
    for index in range(1, CAPACITY + 1):
        last = beta >= final
        finish = bool(last.all())
        cells = seen.cells
        least = tol * _SHARE * (1e-3 if finish else 1)
        for _ in range(int(settings.max_iter) * (100 if finish else 1)):
            following = _follow(terms, jnp.asarray(cells), active, settings.compression)
            slopes, prior = map(np.asarray, following)
            new = MembershipParameters(slopes, prior, beta)
            moved = (
                np.full(n_init, np.inf) if state is None else _moved(state, new, all_rows, active)
            )
            old, state = cells, new
            cells = blocks.map_sum(_pass, narrow(state), active)
            n_iter += 1
            still = (np.abs(cells - old) / spans).max((0, 2, 3)) <= _ROUNDING
            quiet = (moved <= least) | still
            if quiet.all():
                break
        # One look tells how the level ended, and begins the next.
        following = np.minimum(beta * cooling, final)
        seen = look(state, following, index)
        same = np.zeros(n_init, bool) if check is None else seen.check == check
        check = seen.check
        ends = beta * cooling > stop
        done = np.where(last, quiet, same & ((seen.hard >= 0.999 * mass.sum()) | ends))
        trace.append(_value(terms, cells, seen.sure, beta, settings.compression))
        tell(n_iter, float(beta.max()))
        hardened = (last | done).all() or ends.all()
        if hardened if np.isinf(final) else finish:
            break
        beta = following
    assert state is not None
    ended = narrow(state)
    firm = blocks.map_sum(_hard, ended, active)
    reached = np.asarray(exact_objective(terms, jnp.asarray(firm)))
    if np.isfinite(final):
        reached = trace[-1]
    else:
        trace.append(reached)
    best = int(reached.argmin())
    return StoredAnnealingResult(
        ended, cells, firm, reached, done, n_iter, np.array(trace), critical, weights, best
    ), terms


def _moved(
    old: MembershipParameters, new: MembershipParameters, all_rows: Moments, active: np.ndarray
) -> np.ndarray:
    """Root of the mean square (S,) of the largest change of rows' log memberships."""
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
    """Block by block, numbers, labels, -1 on padding, and memberships or None, by the best."""
    at, state = slice(result.best, result.best + 1), result.state
    best = MembershipParameters(state.slopes[:, at], state.log_prior[at], state.beta[at])
    for number, labels, w in blocks.map_blocks(partial(_labels, soft=soft), best, active):
        yield number, labels[..., 0], None if w is None else w[..., 0, :]
