"""Solve an objective made of terms: the best of many restarts, one program per solver.

A method gives ``build(rows, settings) -> Problem``: a hashable function of arrays that makes its
terms, including weights that depend on the data. Numbers travel in ``settings`` and are traced, so
that a sweep over them compiles once. A method whose update is not the gradient of one sum of terms
may give `solve_anneal` any object with an ``iteration`` in place of a `Problem`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.hash_rng import fold_in
from nrprob.engines.optimise.anneal import (
    AnnealingSchedule,
    FixedWeights,
    Update,
    WeightRule,
    anneal,
    leading_curvatures,
    normalise_masses,
    random_log_memberships,
    term_update,
)
from nrprob.engines.optimise.merge import MergeResult, agglomerate
from nrprob.engines.optimise.reassign import (
    ReassignmentResult,
    assign_empty_rows,
    balanced_random_labels,
    reassign_batched,
    reassign_sequentially,
)
from nrprob.engines.placement import small_steps_on_cpu
from nrprob.engines.programs import jit_by_size
from nrprob.engines.sharding import fetch_to_host
from nrprob.statistics.costs import mass_cost as mass_cost
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Term, Terms, objective, one_hot, row_costs
from nrprob.statistics.xlogx import safe_log, xlogx


class Settings(NamedTuple):
    """Numbers that the solvers read, all traced.

    Attributes
    ----------
    n_clusters : clusters that exist; others are padding
    max_iter : updates per temperature, sweeps, or steps
    method : record of the numbers that the method's builder reads
    beta : final inverse temperature; infinite to anneal until the labels are hard
    compression : weight of H(C), see `nrprob.engines.optimise.anneal.term_update`
    quench : ratio of the first inverse temperatures of the last restart and of the first
    cooling, noise, tol : see `nrprob.engines.optimise.anneal.AnnealingSchedule`
    init : (B, r, K) log memberships to start from, or None
    """

    n_clusters: Any
    max_iter: Any
    method: Any = ()
    beta: Any = np.inf
    compression: Any = 1.0
    quench: Any = 1.0
    cooling: Any = 1.15
    noise: Any = 0.0
    tol: Any = 0.0
    init: Any = None


def make_settings(
    dtype: Any, *, n_clusters: int, max_iter: int, method: Any = (), **numbers: float
) -> Settings:
    """Settings as arrays: counts as int32, all other numbers in the type of the data."""
    given = {name: Settings._field_defaults[name] for name in FLOATS} | numbers
    return Settings(
        np.asarray(n_clusters, np.int32),
        np.asarray(max_iter, np.int32),
        jax.tree.map(lambda value: np.asarray(value, dtype), method),
        **{name: np.asarray(value, dtype) for name, value in given.items()},
    )


FLOATS = ("beta", "compression", "quench", "cooling", "noise", "tol")


class AnnealingProblem(NamedTuple):
    """What an annealing iterates, and how it ends; see `nrprob.engines.optimise.anneal.anneal`.

    Attributes
    ----------
    update, blocks, state : the update, the blocks of rows that it takes, and the state at the start
    critical : inverse temperature of the first split
    weights : (terms,) weights of the terms
    curvature : of the part that is not concave, relative to the entropy
    anneal : False starts at the final temperature, from more unequal memberships
    finish : from the final state and masses, and the hard masses (B, r, S, K), the objective (S,)
        of these in float64, and what gives the slopes of one of the restarts; see `TermFit`
    """

    update: Update
    blocks: tuple[Any, ...]
    state: Any
    critical: jax.Array
    weights: jax.Array
    curvature: jax.Array | float
    anneal: bool
    finish: Callable[[Any, jax.Array, jax.Array], tuple[jax.Array, Callable[[Any], jax.Array]]]


class Problem(NamedTuple):
    """What a method wants minimised, as terms.

    Attributes
    ----------
    terms : the objective, but for the weights
    weigh : weights (terms,) from the terms' leading curvatures (terms,)
    n_start : the first split of that many terms sets the start of an annealing; None for all
    curvature : of the part that is not concave, relative to the entropy
    anneal : False starts at the final temperature, from more unequal memberships
    """

    terms: Terms
    weigh: WeightRule
    n_start: int | None = None
    curvature: jax.Array | float = 0.0
    anneal: bool = True

    def iteration(
        self, rows: Rows, compression: Any, n_clusters: int, n_init: int
    ) -> AnnealingProblem:
        """Descent along the gradient of the terms; see `term_update`."""
        terms, weights, critical = weight_terms(self, rows)

        def finish(state, w, hard):
            slopes = row_costs(terms, rows.cells(w))
            return exact_objective(terms, rows.cells(hard)), lambda best: slopes[:, best]

        update = term_update(terms, compression)
        return AnnealingProblem(
            update, (rows,), None, critical, weights, self.curvature, self.anneal, finish
        )


Build = Callable[[Rows, Settings], Any]


_FACTORISING = threading.Lock()


def lapack_lock(factorises: bool) -> contextlib.AbstractContextManager[Any]:
    """Let one program that calls LAPACK run at a time, whichever thread asks for it.

    On a CPU, XLA runs programs and the parts of LAPACK's batches on the same few threads. Two such
    programs at a time can each hold a thread and wait for the other's, forever.
    """
    return _FACTORISING if factorises else contextlib.nullcontext()


@dataclass(frozen=True)
class SolverCall:
    """One run of a compiled solver: its arrays, and what it is compiled for.

    Calls with the same `signature` can share a compiled program; see `nrprob.engines.batching`.
    ``size`` is what the run takes on a device, in bytes. ``factorises`` says that the program calls
    LAPACK; see `lapack_lock`. ``stepwise`` says that it is a chain of tiny steps; see
    `nrprob.engines.placement`.
    """

    solver: Callable[..., Solution]
    arrays: tuple[Any, ...]
    static: tuple[tuple[str, Any], ...]
    size: int
    factorises: bool = False
    stepwise: bool = False

    def __call__(self) -> Solution:
        """Run it alone."""
        with lapack_lock(self.factorises), small_steps_on_cpu(self.stepwise):
            return fetch_to_host(self.solver(*self.arrays, **dict(self.static)))

    @property
    def signature(self) -> Hashable:
        """What has to agree for two calls to run in one compiled program."""
        leaves, tree = jax.tree.flatten(self.arrays)
        shapes = tuple((a.shape, np.dtype(a.dtype).str) for a in leaves)
        return self.solver, self.static, tree, shapes


class Solution(NamedTuple):
    """All restarts, and what is needed of the best.

    Attributes
    ----------
    labels : (B, r, S)
    objective : (S,) in nats of the whole data set, evaluated in float64
    converged : (S,)
    n_iter : updates of all restarts side by side; sweeps or steps of the best one
    w : (B, r, K) masses of the best restart
    trace : (steps,) objective of the best restart, NaN beyond the last
    fit : what the method adds of the best restart, a record of its own; `TermFit` of terms
    """

    labels: jax.Array
    objective: jax.Array
    converged: jax.Array
    n_iter: jax.Array
    w: jax.Array
    trace: jax.Array
    fit: Any


class TermFit(NamedTuple):
    """What a sum of terms says of the best restart.

    Attributes
    ----------
    slope : (groups, K, p) what a row adds to F, linearly, in every cell
    log_prior : (K,) compression times the log mass of the clusters; -inf for empty ones
    beta : final inverse temperature
    critical_beta : inverse temperature of the first split; NaN where that was not asked
    weights : (terms,) weights of the terms
    """

    slope: jax.Array
    log_prior: jax.Array
    beta: jax.Array
    critical_beta: jax.Array
    weights: jax.Array


def weight_terms(
    problem: Problem, rows: Rows, *, whether: bool = False
) -> tuple[Terms, jax.Array, jax.Array]:
    """Terms with their weights, the weights, and the inverse temperature of the first split.

    Asked only ``whether`` there is a split, the temperature is NaN if so, and infinite if not.
    """
    _, weights, largest = leading_curvatures(
        problem.terms, rows, problem.weigh, problem.n_start, whether=whether
    )
    terms = tuple(replace(t, weight=weights[i]) for i, t in enumerate(problem.terms))
    critical = jnp.nan if whether else 1 / jnp.maximum(largest, 1e-30)
    return terms, weights, jnp.where(largest > 0, critical, jnp.inf)


@jit_by_size("build")
def first_split_beta(rows: Rows, settings: Settings, *, build: Build) -> jax.Array:
    """Inverse temperature of the first split."""
    return weight_terms(build(rows, settings), rows)[2]


def exact_objective(terms: Terms, cells: jax.Array) -> jax.Array:
    """Return F (S,) with the costs evaluated in float64."""
    wide = jax.tree.map(lambda a: a.astype(jnp.float64), terms)
    return objective(wide, cells.astype(jnp.float64))


def add_compression_term(terms: Terms, rows: Rows, weight: jax.Array) -> Terms:
    """Add n H(C) times ``weight``, which is compression / beta for hard labels."""
    total = rows.mass.sum().astype(jnp.float64)
    return (*terms, Term(weight, xlogx(total), None, mass_cost, False))


def _minimised(
    build: Build, rows: Rows, settings: Settings, compressed: bool
) -> tuple[Terms, jax.Array, jax.Array]:
    """As `weight_terms`, of what ``build`` makes; with n H(C)/beta if hard labels pay for it.

    Where the weights do not need the temperature, nothing else does: see `first_split_beta`.
    """
    problem = build(rows, settings)
    whether = isinstance(problem.weigh, FixedWeights)
    terms, weights, critical = weight_terms(problem, rows, whether=whether)
    if compressed:
        terms = add_compression_term(terms, rows, settings.compression / settings.beta)
    return terms, weights, critical


@jit_by_size("build", "n_clusters", "n_init", "damped", "soft")
def solve_anneal(
    rows: Rows,
    settings: Settings,
    seed: jax.Array,
    fixed: jax.Array | None,
    *,
    build: Build,
    n_clusters: int,
    n_init: int,
    damped: bool = False,
    soft: bool = False,
) -> Solution:
    """Anneal ``n_init`` starts side by side and keep the best.

    The first starts just below the first split. Annealing is so nearly free of its start that more
    like it would find the same, and where the leading direction is an outlier's they would all be
    caught by it; so the others start at inverse temperatures that rise geometrically to
    ``settings.quench`` times the first one's, the last ones being hardly annealed at all.
    """
    dtype = rows.mass.dtype
    run = build(rows, settings).iteration(rows, settings.compression, n_clusters, n_init)
    active = jnp.arange(n_clusters) < settings.n_clusters
    begin = jnp.where(run.critical < jnp.inf, 0.95 * run.critical, 1).astype(dtype)
    if not run.anneal:
        begin = jnp.full_like(begin, jnp.inf)  # the schedule goes no further than its end
    schedule = AnnealingSchedule(
        begin * settings.quench ** np.linspace(0, 1, n_init, dtype=dtype),
        settings.cooling,
        settings.beta,
        settings.noise,
        settings.tol,
        settings.max_iter,
        jnp.asarray(run.curvature, dtype),
    )
    scale = 0.1 if run.anneal else 1.0
    start = random_log_memberships(fold_in(seed, 1), rows, n_init, n_clusters, scale)
    if settings.init is not None:
        start = jnp.broadcast_to(settings.init[:, :, None], start.shape)
    elif fixed is not None and not run.anneal:
        # What the labelled rows alone say of the others. All that start there end as one, with
        # nothing in clusters that no label has; if there are such, only the first does.
        labelled = one_hot(fixed[..., None], rows.mass, n_clusters)
        said = run.update.em_step(run.blocks, run.state, labelled, jnp.ones(1, dtype))[1]
        empty = (active & (labelled.sum((0, 1, 2)) == 0)).any()
        at_random = empty & (jnp.arange(n_init) > 0)[:, None]
        start = jnp.where(at_random, start, 0.01 * start + said)
    start = normalise_masses(start, rows.mass, fixed, active)
    result = anneal(
        run.update, run.blocks, run.state, start, schedule, fold_in(seed, 2),
        fixed=fixed, active=active, damped=damped,
    )  # fmt: skip
    labels = result.w.argmax(-1).astype(jnp.int32)
    hard = one_hot(labels, rows.mass, n_clusters)
    reached, slope = run.finish(result.state, result.w, hard)
    if soft:
        reached = run.update.evaluate_objective(run.blocks, result.state, result.w, result.beta)
        reached = reached.astype(jnp.float64)
    best = reached.argmin()
    w = jax.lax.dynamic_index_in_dim(result.w, best, 2, keepdims=False)
    q = w.sum((0, 1))
    prior = settings.compression * safe_log(q)
    # Of hard clusters, those that hold rows; of soft ones, those that hold a part of any.
    held = q if soft else one_hot(labels[..., best, None], rows.mass, n_clusters).sum((0, 1, 2))
    trace = result.trace[:, best]
    if not soft:
        trace = jnp.append(trace, reached[best])  # the hard limit
    return Solution(
        labels,
        reached,
        result.converged,
        result.n_iter,
        w,
        trace,
        TermFit(
            slope(best),
            jnp.where(active & (held > 0), prior, -jnp.inf),
            result.beta[best],
            run.critical,
            run.weights,
        ),
    )


@jit_by_size("build", "n_clusters", "n_init", "solver", "compressed")
def solve_reassign(
    rows: Rows,
    settings: Settings,
    seed: jax.Array,
    fixed: jax.Array | None,
    *,
    build: Build,
    n_clusters: int,
    n_init: int,
    solver: str,
    compressed: bool = False,
) -> Solution:
    """Reassign rows from ``n_init`` random balanced starts and keep the best."""
    terms, weights, critical = _minimised(build, rows, settings, compressed)
    active = jnp.arange(n_clusters) < settings.n_clusters
    starts = jax.lax.map(
        lambda start: balanced_random_labels(start, rows, fixed, active),
        fold_in(fold_in(seed, 1), jnp.arange(n_init)),
    )
    engine = {"sequential": reassign_sequentially, "batched": reassign_batched}[solver]
    result = engine(
        terms, rows, starts, fold_in(seed, 2),
        max_iter=settings.max_iter, n_clusters=n_clusters, fixed=fixed, active=active,
    )  # fmt: skip

    return _from_labels(terms, rows, result, critical, weights, n_clusters, active, fixed)


def _from_labels(
    terms: Terms,
    rows: Rows,
    result: ReassignmentResult,
    critical: jax.Array,
    weights: jax.Array,
    n_clusters: int,
    active: jax.Array,
    fixed: jax.Array | None,
) -> Solution:
    """Evaluate hard labels (S, B, r) and keep the best."""
    result = result._replace(
        labels=assign_empty_rows(terms, rows, result.labels, n_clusters, fixed)
    )

    def evaluate(labels):
        w = one_hot(labels[..., None], rows.mass, n_clusters)
        return exact_objective(terms, rows.cells(w))[0]

    reached = jax.lax.map(evaluate, result.labels)
    best = reached.argmin()
    w = one_hot(result.labels[best][..., None], rows.mass, n_clusters)
    q = w.sum((0, 1, 2))
    return Solution(
        jnp.moveaxis(result.labels, 0, -1),
        reached,
        result.converged,
        result.n_iter[best],
        w[:, :, 0],
        result.trace[best],
        TermFit(
            row_costs(terms, rows.cells(w))[:, 0],
            jnp.where(active & (q > 0), safe_log(q), -jnp.inf),
            jnp.asarray(jnp.inf, q.dtype),
            critical,
            weights,
        ),
    )


@jit_by_size("build", "compressed")
def solve_merge(
    rows: Rows,
    settings: Settings,
    cells: jax.Array,
    alive: jax.Array,
    classes: jax.Array,
    *,
    build: Build,
    compressed: bool = False,
) -> MergeResult:
    """Merge from the clusters ``cells`` (groups, 1, n, p); see `agglomerate`."""
    terms, _, _ = _minimised(build, rows, settings, compressed)
    return agglomerate(terms, cells, alive, classes)


@jit_by_size("build", "n_clusters", "compressed")
def evaluate_labels(
    rows: Rows,
    settings: Settings,
    labels: jax.Array,
    fixed: jax.Array | None = None,
    *,
    build: Build,
    n_clusters: int,
    compressed: bool = False,
) -> Solution:
    """Objective and slope of given labels (B, r), as a `Solution` of one restart."""
    terms, weights, critical = _minimised(build, rows, settings, compressed)
    one = jnp.ones(1, int)
    nothing = jnp.full((1, 1), jnp.nan)
    result = ReassignmentResult(labels[None], nothing, nothing, one, one > 0)
    active = jnp.ones(n_clusters, bool)
    return _from_labels(terms, rows, result, critical, weights, n_clusters, active, fixed)
