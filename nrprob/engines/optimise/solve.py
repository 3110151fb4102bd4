"""Solve an objective made of terms by the best of many restarts; one program per solver.

A method supplies ``build(rows, settings) -> Problem``, a hashable function that makes its terms,
including weights that depend on the data. Parameters in ``settings`` are traced, so that a grid of
values compiles once. The update of a method may differ from the gradient of a sum of terms. Then
``build`` returns, instead of a `Problem`, another object with a method ``iteration`` that makes an
`AnnealingProblem`; `solve_anneal` is its only solver.

F is the objective, a sum of terms, and W are the masses of the rows in the clusters.

Shapes: n rows, in B blocks of r rows; S restarts; K clusters; p statistics of a row; ``terms``
terms; ``groups`` known groups.
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
    """Parameters of the solvers, all traced.

    Attributes
    ----------
    n_clusters : number of clusters without padding; arrays may have K > n_clusters clusters
    max_iter : maximum number of updates per temperature (annealing), of sweeps (sequential
        reassignment) or of steps (batched reassignment)
    method : record of the parameters that the function ``build`` of the method reads
    beta : final inverse temperature; infinite to anneal until the labels are hard
    compression : weight of H(C), see `nrprob.engines.optimise.anneal.term_update`
    quench : ratio of the initial inverse temperatures of the last and the first restart
    cooling, noise, tol : attributes ``factor``, ``noise`` and ``tol`` of
        `nrprob.engines.optimise.anneal.AnnealingSchedule`
    init : (B, r, K) initial log memberships, or None
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
    dtype: Any, *, n_clusters: int, max_iter: int, method: Any = (), **floats: float
) -> Settings:
    """Make `Settings` of arrays: counts are int32, and ``floats`` have the dtype of the data."""
    values = {name: Settings._field_defaults[name] for name in FLOATS} | floats
    return Settings(
        np.asarray(n_clusters, np.int32),
        np.asarray(max_iter, np.int32),
        jax.tree.map(lambda value: np.asarray(value, dtype), method),
        **{name: np.asarray(value, dtype) for name, value in values.items()},
    )


FLOATS = ("beta", "compression", "quench", "cooling", "noise", "tol")


class AnnealingProblem(NamedTuple):
    """Input of an annealing; see `nrprob.engines.optimise.anneal.anneal`.

    Attributes
    ----------
    update, blocks, state : the update, the records of rows that it takes, and the initial state
    critical : inverse temperature at which clusters first separate
    weights : (terms,) weights of the terms
    curvature : see ``curvature`` of `nrprob.engines.optimise.anneal.AnnealingSchedule`
    anneal : if False, start at the final temperature, from less uniform initial memberships
    finish : function ``(state, w, hard) -> (objective, slope)``. ``state`` is the final state;
        ``w`` and ``hard`` (B, r, S, K) are the final masses and the masses of the hard labels.
        ``objective`` (S,) is the objective of the hard labels in float64. ``slope`` is a function
        from the index of a restart to its ``TermFit.slope``
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
    """Objective of a method, as terms.

    Attributes
    ----------
    terms : terms of the objective, without their weights
    weigh : function from the curvatures (terms,) of the terms to their weights (terms,); see
        `nrprob.engines.optimise.anneal.leading_curvatures`
    n_start : annealing starts at the temperature at which clusters first separate under the
        weighted sum of the first ``n_start`` terms; None for all terms
    curvature : see ``curvature`` of `nrprob.engines.optimise.anneal.AnnealingSchedule`
    anneal : if False, start at the final temperature, from less uniform initial memberships
    """

    terms: Terms
    weigh: WeightRule
    n_start: int | None = None
    curvature: jax.Array | float = 0.0
    anneal: bool = True

    def iteration(
        self, rows: Rows, compression: Any, n_clusters: int, n_init: int
    ) -> AnnealingProblem:
        """Make the `AnnealingProblem` whose update follows the gradient of F; see `term_update`."""
        terms, weights, critical = weight_terms(self, rows)

        def finish(state, w, hard):
            slopes = row_costs(terms, rows.cells(w))
            return exact_objective(terms, rows.cells(hard)), lambda best: slopes[:, best]

        update = term_update(terms, compression)
        return AnnealingProblem(
            update, (rows,), None, critical, weights, self.curvature, self.anneal, finish
        )


Build = Callable[[Rows, Settings], Any]


_LAPACK_LOCK = threading.Lock()


def lapack_lock(factorises: bool) -> contextlib.AbstractContextManager[Any]:
    """Context in which only one program that calls LAPACK runs at a time, over all threads.

    ``factorises`` states whether the program calls LAPACK. On a CPU, XLA runs programs and the
    batches of LAPACK on the same threads. Two such programs can each hold a thread and wait for the
    thread of the other program, which is a deadlock.
    """
    return _LAPACK_LOCK if factorises else contextlib.nullcontext()


@dataclass(frozen=True)
class SolverCall:
    """One run of a compiled solver: its arrays and static arguments.

    Calls with the same `signature` can share a compiled program; see `nrprob.engines.batching`.

    Attributes
    ----------
    solver : compiled solver
    arrays, static : positional arguments, and static keyword arguments
    size : memory that the run takes on a device, in bytes
    factorises : whether the program calls LAPACK; such programs run one at a time
    stepwise : whether the program is a chain of tiny steps, which are faster on a CPU
    """

    solver: Callable[..., Solution]
    arrays: tuple[Any, ...]
    static: tuple[tuple[str, Any], ...]
    size: int
    factorises: bool = False
    stepwise: bool = False

    def __call__(self) -> Solution:
        """Run this call alone."""
        with lapack_lock(self.factorises), small_steps_on_cpu(self.stepwise):
            return fetch_to_host(self.solver(*self.arrays, **dict(self.static)))

    @property
    def signature(self) -> Hashable:
        """Key of the compiled program: equal for calls that can share one."""
        leaves, tree = jax.tree.flatten(self.arrays)
        shapes = tuple((a.shape, np.dtype(a.dtype).str) for a in leaves)
        return self.solver, self.static, tree, shapes


class Solution(NamedTuple):
    """Results of all restarts, and details of the best one.

    Attributes
    ----------
    labels : (B, r, S) clusters of the rows
    objective : (S,) objective of the whole data set in nats, evaluated in float64
    converged : (S,) whether a restart has converged
    n_iter : for annealing, number of updates, each of which updates all restarts; for reassignment,
        number of sweeps or steps of the best restart
    w : (B, r, K) masses of the best restart
    trace : (steps,) objective of the best restart after every step, NaN after the last step
    fit : parameters of the best restart; a `TermFit` for objectives made of terms
    """

    labels: jax.Array
    objective: jax.Array
    converged: jax.Array
    n_iter: jax.Array
    w: jax.Array
    trace: jax.Array
    fit: Any


class TermFit(NamedTuple):
    """Parameters of the best restart, for objectives made of terms.

    Attributes
    ----------
    slope : (groups, K, p) derivative of F by the statistics of every cell
    log_prior : (K,) log mass of the clusters, multiplied by the compression if the solver is an
        annealing; -inf for empty clusters
    beta : final inverse temperature
    critical_beta : inverse temperature of the first split; NaN if it was not computed
    weights : (terms,) weights of the terms
    """

    slope: jax.Array
    log_prior: jax.Array
    beta: jax.Array
    critical_beta: jax.Array
    weights: jax.Array


def weight_terms(
    problem: Problem, rows: Rows, *, existence_only: bool = False
) -> tuple[Terms, jax.Array, jax.Array]:
    """Return the terms with weights, the weights, and the inverse temperature of the first split.

    With ``existence_only``, the inverse temperature is not computed. The third result is then NaN
    if the clusters split at some temperature, and infinite if the clusters never split.
    """
    _, weights, largest = leading_curvatures(
        problem.terms, rows, problem.weigh, problem.n_start, existence_only=existence_only
    )
    terms = tuple(replace(t, weight=weights[i]) for i, t in enumerate(problem.terms))
    critical = jnp.nan if existence_only else 1 / jnp.maximum(largest, 1e-30)
    return terms, weights, jnp.where(largest > 0, critical, jnp.inf)


@jit_by_size("build")
def first_split_beta(rows: Rows, settings: Settings, *, build: Build) -> jax.Array:
    """Inverse temperature at which clusters first separate; infinite if they never do."""
    return weight_terms(build(rows, settings), rows)[2]


def exact_objective(terms: Terms, cells: jax.Array) -> jax.Array:
    """Return F (S,) at cell statistics (groups, S, K, p), evaluated in float64."""
    wide = jax.tree.map(lambda a: a.astype(jnp.float64), terms)
    return objective(wide, cells.astype(jnp.float64))


def add_compression_term(terms: Terms, rows: Rows, weight: jax.Array) -> Terms:
    """Add the term ``weight * n H(C)``: the entropy of the clusters C, for rows of total mass n.

    The free energy of hard labels is F plus this term with the weight compression / beta.
    """
    total = rows.mass.sum().astype(jnp.float64)
    return (*terms, Term(weight, xlogx(total), None, mass_cost, False))


def _build_terms(
    build: Build, rows: Rows, settings: Settings, compressed: bool
) -> tuple[Terms, jax.Array, jax.Array]:
    """Return the terms with weights, the weights, and the inverse temperature of the first split.

    With ``compressed``, the term n H(C) compression / beta is added; see `add_compression_term`.
    The inverse temperature is computed only if the weights depend on curvatures. If not, the
    returned value is NaN or infinite; see `weight_terms`.
    """
    problem = build(rows, settings)
    existence_only = isinstance(problem.weigh, FixedWeights)
    terms, weights, critical = weight_terms(problem, rows, existence_only=existence_only)
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
    """Anneal ``n_init`` restarts in parallel, and return the best.

    The first restart begins just below the inverse temperature at which clusters first separate.
    Annealing hardly depends on its random initial values, so further restarts from the same
    temperature would give the same result. If the first separation isolates an outlier, all of
    these restarts would isolate the outlier. The other restarts therefore begin at higher inverse
    temperatures, which increase geometrically up to ``settings.quench`` times the first one.
    ``fixed`` (B, r) are the clusters of labelled rows, -1 for all other rows. With ``soft``, the
    memberships determine the best restart, instead of the hard labels.
    `nrprob.engines.optimise.anneal.anneal` explains ``damped``.
    """
    # First inverse temperatures of the restarts.
    dtype = rows.mass.dtype
    run = build(rows, settings).iteration(rows, settings.compression, n_clusters, n_init)
    active = jnp.arange(n_clusters) < settings.n_clusters
    begin = jnp.where(run.critical < jnp.inf, 0.95 * run.critical, 1).astype(dtype)
    if not run.anneal:
        begin = jnp.full_like(begin, jnp.inf)  # clipped at the final temperature
    schedule = AnnealingSchedule(
        begin * settings.quench ** np.linspace(0, 1, n_init, dtype=dtype),
        settings.cooling,
        settings.beta,
        settings.noise,
        settings.tol,
        settings.max_iter,
        jnp.asarray(run.curvature, dtype),
    )
    # Initial memberships: nearly equal, given, or from the labelled rows.
    scale = 0.1 if run.anneal else 1.0
    start = random_log_memberships(fold_in(seed, 1), rows, n_init, n_clusters, scale)
    if settings.init is not None:
        start = jnp.broadcast_to(settings.init[:, :, None], start.shape)
    elif fixed is not None and not run.anneal:
        # Start from one update of the labelled rows only. This update is deterministic and leaves
        # clusters without labels empty, so if there are any, only the first restart begins this
        # way.
        labelled = one_hot(fixed[..., None], rows.mass, n_clusters)
        from_labels = run.update.em_step(run.blocks, run.state, labelled, jnp.ones(1, dtype))[1]
        empty = (active & (labelled.sum((0, 1, 2)) == 0)).any()
        at_random = empty & (jnp.arange(n_init) > 0)[:, None]
        start = jnp.where(at_random, start, 0.01 * start + from_labels)
    start = normalise_masses(start, rows.mass, fixed, active)
    result = anneal(
        run.update, run.blocks, run.state, start, schedule, fold_in(seed, 2),
        fixed=fixed, active=active, damped=damped,
    )  # fmt: skip
    # Evaluate the hard labels (or the memberships if ``soft``), and select the best restart.
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
    # Clusters exist if they hold rows (hard) or mass (soft).
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
    """Reassign rows from ``n_init`` random balanced labelings, and return the best result.

    ``fixed`` (B, r) are the clusters of labelled rows, -1 for all other rows. ``solver`` is
    "sequential" or "batched"; see `nrprob.engines.optimise.reassign`. With ``compressed``, the
    term (``settings.compression`` / ``settings.beta``) n H(C) is added to the objective, where H(C)
    is the entropy of the clusters.
    """
    terms, weights, critical = _build_terms(build, rows, settings, compressed)
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
    """Make the `Solution` of a reassignment; the objective is evaluated in float64.

    ``critical`` and ``weights`` are the attributes ``critical_beta`` and ``weights`` of `TermFit`.
    ``active`` (K,) marks the clusters that are not padding. ``fixed`` (B, r) are the clusters of
    labelled rows, -1 for all other rows.
    """
    result = result._replace(
        labels=assign_empty_rows(terms, rows, result.labels, n_clusters, fixed)
    )

    def evaluate_restart(labels):
        w = one_hot(labels[..., None], rows.mass, n_clusters)
        return exact_objective(terms, rows.cells(w))[0]

    # Exact objective of all restarts; details of the best one only.
    reached = jax.lax.map(evaluate_restart, result.labels)
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
    """Merge n initial clusters with the statistics ``cells`` (groups, 1, n, p); see `agglomerate`.

    `agglomerate` explains ``alive`` (n,) and ``classes`` (n,).
    """
    terms, _, _ = _build_terms(build, rows, settings, compressed)
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
    """Evaluate the objective and its gradient at ``labels`` (B, r), without optimising them.

    The result is a `Solution` with one restart. See `solve_reassign` for ``fixed`` and
    ``compressed``.
    """
    terms, weights, critical = _build_terms(build, rows, settings, compressed)
    n_iter = jnp.ones(1, int)
    trace = jnp.full((1, 1), jnp.nan)
    result = ReassignmentResult(labels[None], trace, trace, n_iter, n_iter > 0)
    active = jnp.ones(n_clusters, bool)
    return _from_labels(terms, rows, result, critical, weights, n_clusters, active, fixed)
