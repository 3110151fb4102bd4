r"""Splitting: increase the number of clusters one by one, each at its critical temperature.

To split a cluster at inverse temperature beta:

1. Replace the cluster by two equal copies and iterate to a fixed point.
2. Let u be the difference of the log memberships of the copies. The derivative of the update maps
   u to beta B u, for a linear map B. Compute the eigenvalue lambda of B with the largest absolute
   value by a dense or Arnoldi solver, and let mu = beta lambda.
3. If abs(mu) < 1, the copies are stable: multiply beta by 1.01 / abs(mu), and go to step 1. The
   critical value is beta = 1 / abs(lambda).
4. Otherwise perturb the copies along the eigenvectors whose eigenvalues of beta B exceed 1 in
   absolute value, and iterate until the copies separate.

The method supplies an update with the interface of `nrprob.engines.optimise.limit_cycles`;
`TermCycle` makes such an update from terms. A *cycle* is one update. A *copy* is one of the two
equal clusters of step 1. A *level* is a solution with a given number of clusters.

Shapes: B blocks of r rows; K *columns* of the memberships, one per cluster, the last ones padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

from nrprob.engines.hash_rng import fold_in, hashed_noise
from nrprob.engines.optimise.anneal import normalise_masses, term_update
from nrprob.engines.optimise.limit_cycles import (
    CONVERGED,
    OSCILLATING,
    LimitResult,
    Make,
    find_limit,
)
from nrprob.engines.programs import jit_by_size

SPLIT, MERGED, VANISHED = "split", "merged", "vanished"

MIN_SHARE = 1e-6  # a cluster with a smaller share of the mass has vanished
TRIALS = 30  # maximum number of temperatures per split
_N_CANDIDATES = 3  # number of clusters that may be split at one temperature
_DENSE_ROWS = 64  # up to so many rows, the derivative is computed as a matrix
_N_EIGENVALUES = 4  # number of eigenvalues that Arnoldi's iteration computes for more rows
_ARNOLDI_RESTARTS = 20  # maximum number; an unconverged last estimate is used as well
ROUNDING = 1e-8  # rounding error of eigenvalues times beta
_MARGIN = 1.01  # ratio to the critical inverse temperature; separation is slow at smaller ratios
_PERTURBATION = 0.05  # initial standard deviation of the log ratio of two copies' memberships
_MIN_STEP_EXPONENT = -6  # the shortest damped step is 2 to this power
_SAME = 1e-2  # maximum total variation distance of the rows of two clusters that count as equal


class Trial(NamedTuple):
    """Attempt to split a cluster at one temperature.

    Attributes
    ----------
    n_clusters : number of clusters after the split
    beta : inverse temperature
    status : "split", "merged", "vanished", "oscillating" or "max_iter"
    step : damping factor of the steps in log memberships; 1 if undamped
    growth : factor by which a small difference of two equal copies grows per cycle: abs(mu), or the
        real part of mu for damped steps
    eigenvalue : lambda = mu / beta, the leading eigenvalue of the linearised update at equal
        copies. For ``beta > 1 / abs(eigenvalue)``, copies separate if the eigenvalue is positive,
        and oscillate if the eigenvalue is complex or negative. NaN if the equal copies have no
        fixed point.
    period, width : period and width of a limit cycle, see `LimitResult`
    n_iter : number of cycles
    """

    n_clusters: int
    beta: float
    status: str
    step: float
    growth: float
    eigenvalue: complex
    period: float
    width: float
    n_iter: int


class Level(NamedTuple):
    """Solution with a given number of clusters.

    Attributes
    ----------
    carry : state and log memberships (B, r, 1, K); the columns after the clusters are padding
    beta : inverse temperature
    critical : critical inverse temperature of the split that made this level
    parent : the cluster of the previous level that was split
    values : (cycles, T) trace of the run
    """

    carry: Any
    beta: float
    critical: float
    parent: int
    values: np.ndarray


class Path(NamedTuple):
    """Solutions with 1, 2, ... clusters, each made from the previous one by a split.

    ``levels`` are these solutions, and ``trials`` are all attempts to split. ``complete`` states
    whether the last level has the number of clusters of the `SplittingSchedule`.
    """

    levels: list[Level]
    trials: list[Trial]
    complete: bool


Report = Callable[[Trial], None]


class SplittingSchedule(NamedTuple):
    """Parameters of the splitting algorithm.

    Attributes
    ----------
    n_clusters : number of clusters of the last level
    growth : ratio of successive inverse temperatures, if the next one is not a predicted critical
        value
    tol : largest change of a membership at which a run has converged
    max_iter : maximum number of cycles per run
    damped : whether to shorten the steps of a run that oscillates, down to 1/64
    curvature : number c that sets the first damping factor ``1 / (1 + beta c)`` of a run
    seed : seed of random perturbations of the copies; None to perturb the copies along the growing
        eigenvectors instead
    """

    n_clusters: int
    growth: float
    tol: float
    max_iter: int
    damped: bool = False
    curvature: float = 0.0
    seed: int | None = None

    def step_lengths(self, beta: float) -> Iterator[float]:
        """Damping factors to try at ``beta``, for steps in log memberships; descending."""
        first = 1 / (1 + beta * self.curvature)
        exponents = range(0, _MIN_STEP_EXPONENT - 1, -1) if self.damped else [0]
        return (first * 2.0**exponent for exponent in exponents)


@dataclass(frozen=True)
class TermCycle:
    """Factory of the update for an objective that is a sum of terms; see `limit_cycles`.

    The data of the update are the terms, the rows and the compression, which are defined in
    `nrprob.engines.optimise.anneal.term_update`.
    """

    def __call__(self, data: Any, active: jax.Array) -> Callable[..., Any]:
        """Make the update from its data and the mask ``active`` (K,) of existing clusters."""
        terms, rows, compression = data
        mass_update = term_update(terms, compression)

        def update(state, log_q, beta):
            w = normalise_masses(log_q, rows.mass, active=active)
            state, log_r = mass_update.em_step((rows,), state, w, beta)
            value = mass_update.evaluate_objective((rows,), state, w, beta)
            return state, log_r, value[:, None]

        return update


@jit_by_size("shape", "dtype")
def _random_array(seed, index, *, shape, dtype):
    return hashed_noise(fold_in(seed, index), shape, dtype)


@jit_by_size("make")
def _copy_derivative(data, carry, beta, active, sign, mass, u, *, make):
    """Log ratio (B, r) of the memberships of two copies of a cluster after one cycle.

    The ratio before the cycle is ``u`` (B, r), and the result is exact to first order in ``u``.
    ``sign`` (K,) is 1 for one copy, -1 for the other copy and 0 for other clusters.
    `nrprob.engines.optimise.limit_cycles` defines the other arguments. The mean over the rows is
    subtracted, since the prior of the update preserves any ratio of the copies' masses.
    """
    update, (state, log_q) = make(data, active), carry

    def new_log_memberships(log_q):
        return jnp.where(active, update(state, log_q, beta)[1], 0)

    change = jax.jvp(new_log_memberships, (log_q,), (0.5 * u[..., None, None] * sign,))[1]
    ratio = (change * sign).sum(-1)[..., 0]
    return jnp.where(mass > 0, ratio - (mass * ratio).sum() / mass.sum(), 0)


@dataclass(frozen=True)
class SplittingEngine:
    """Steps of the splitting algorithm for one method and one data set.

    `follow_path` describes the attributes. In the methods, ``carry``, ``start`` and ``equal`` are
    pairs of the state and the log memberships (B, r, 1, K) of an update, and ``active`` (K,) is the
    mask of existing clusters.
    """

    make: Make
    data: Any
    mass: jax.Array
    schedule: SplittingSchedule

    def leading_difference(
        self, carry: Any, beta: float, active: np.ndarray, pair: tuple[int, int], rightmost: bool
    ) -> tuple[complex, np.ndarray]:
        """Leading eigenvalue mu of step 2 of the algorithm, and a growing direction (B, r).

        ``pair`` are the columns of the two equal copies. Eigenvalues are ordered by absolute value
        or, if ``rightmost``, by real part; use ``rightmost`` for damped steps, which suppress the
        imaginary part. The direction is a difference of the log memberships of the copies: the sum
        of the growing eigenvectors, scaled to unit variance.
        """
        mass = np.asarray(self.mass)
        slots = np.flatnonzero(mass.ravel() > 0)
        sign = np.zeros(active.size, mass.dtype)
        sign[list(pair)] = 1, -1
        beta_array = np.full(1, beta, mass.dtype)

        def pad_rows(values: np.ndarray) -> np.ndarray:
            u = np.zeros(mass.size, mass.dtype)
            u[slots] = values
            return u.reshape(mass.shape)

        def apply_derivative(values: np.ndarray) -> np.ndarray:
            out = _copy_derivative(
                self.data, carry, beta_array, active, sign, mass, pad_rows(values.ravel()),
                make=self.make,
            )  # fmt: skip
            return np.asarray(out, float).ravel()[slots]

        # Eigenvalues of the derivative: dense for few rows, else by Arnoldi's iteration.
        start = self._random_difference(0, 1, mass.dtype).astype(float).ravel()[slots]
        if np.abs(apply_derivative(start)).max() < ROUNDING:
            return 0j, pad_rows(start)
        if slots.size <= _DENSE_ROWS:
            matrix = np.stack([apply_derivative(row) for row in np.eye(slots.size)], 1)
            values, vectors = np.linalg.eig(matrix)
        else:
            operator = LinearOperator((slots.size,) * 2, apply_derivative, dtype=float)
            which = "LR" if rightmost else "LM"
            try:
                values, vectors = eigs(
                    operator,
                    _N_EIGENVALUES,
                    which=which,
                    v0=start,
                    tol=1e-6,
                    maxiter=_ARNOLDI_RESTARTS,
                )
            except ArpackNoConvergence as error:
                values, vectors = error.eigenvalues, error.eigenvectors
            if not values.size:
                values, vectors = np.zeros(1, complex), start[:, None]
        # Sum of the growing eigenvectors, each with its largest entry scaled to 1.
        rank = values.real if rightmost else np.abs(values)
        best = int(rank.argmax())
        grows = rank >= min(rank[best], 1)
        vectors = vectors[:, grows]
        peaks = vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])]
        direction = (vectors / peaks).real.sum(1)
        share = mass.ravel()[slots] / mass.sum()
        direction = direction - share @ direction
        deviation = np.sqrt(share @ direction**2)
        return complex(values[best]), pad_rows(direction / (deviation or 1))

    def _random_difference(self, seed: int, index: Any, dtype: Any) -> np.ndarray:
        key = np.uint32(seed), np.uint32(index)
        return np.asarray(_random_array(*key, shape=self.mass.shape, dtype=dtype))

    def trial_status(self, result: LimitResult, n_clusters: int) -> str:
        """Status of a run with ``n_clusters`` clusters: a value of ``Trial.status``."""
        if result.status != CONVERGED:
            return result.status
        mass = np.asarray(self.mass, float)
        q = np.exp(np.asarray(result.carry[1], float)[..., 0, :n_clusters])
        joint = (mass[..., None] * q).reshape(-1, n_clusters)
        size = joint.sum(0)
        if (size < MIN_SHARE * mass.sum()).any():
            return VANISHED
        joint = joint / size
        distances = [
            0.5 * np.abs(joint[:, c, None] - joint[:, c + 1 :]).sum(0)
            for c in range(n_clusters - 1)
        ]
        return SPLIT if not distances or np.concatenate(distances).min() > _SAME else MERGED

    def cluster_sizes(self, carry: Any, n_clusters: int) -> np.ndarray:
        """Masses (n_clusters,) of the clusters: sums of memberships, weighted by row masses."""
        q = np.exp(np.asarray(carry[1], float)[..., 0, :n_clusters])
        return (np.asarray(self.mass, float)[..., None] * q).sum((0, 1))

    def single_cluster(self, state: Any, width: int) -> Level:
        """Make the level of one cluster from the initial ``state``, which has ``width`` columns."""
        log_q = np.full((*self.mass.shape, 1, width), -np.inf, self.mass.dtype)
        log_q[..., 0] = 0
        single, _ = self.run_to_limit((state, log_q), 1.0, np.arange(width) < 1)
        return Level(single.carry, 1.0, 0.0, 0, single.values)

    def keep_start(
        self,
        start: Any,
        beta: float,
        n: int,
        score: Callable[[np.ndarray], float],
        trials: list[Trial],
        report: Report,
    ) -> Level | None:
        """Return the best level of n clusters from the start; None if no run keeps n clusters.

        The inverse temperature rises from ``beta`` until all clusters remain apart, and then as
        long as ``score`` of the log memberships increases. All attempts are appended to ``trials``
        and passed to ``report``.
        """
        active = np.arange(start[1].shape[-1]) < n
        level, best, critical = None, -np.inf, beta
        for _ in range(TRIALS):
            result, step = self.run_to_limit(start, beta, active)
            status = self.trial_status(result, n)
            trial = Trial(
                n, beta, status, step, np.nan, np.nan, result.period, result.width, result.n_iter
            )
            trials.append(trial)
            report(trial)
            value = score(np.asarray(result.carry[1])) if status == SPLIT else -np.inf
            if level is None:
                critical = beta
            elif value <= best:
                break
            if status == SPLIT:
                level, best = Level(result.carry, beta, critical, 0, result.values), value
            beta *= self.schedule.growth
        return level

    def split_level(
        self, level: Level, n: int, trials: list[Trial], report: Report
    ) -> Level | None:
        """Make the level of n + 1 clusters from a level of n clusters; None if all trials fail.

        The largest cluster is split. The next largest clusters are tried in two cases. Either the
        rows of the largest cluster are all equal, or its copies are unstable but the run from the
        perturbed copies does not end in a split.
        """
        growth = self.schedule.growth
        order = np.argsort(-self.cluster_sizes(level.carry, n), kind="stable").tolist()
        equal = {c: jax.tree.map(partial(_duplicate_column, a=c, b=n), level.carry) for c in order}
        below: dict[int, tuple[float, float]] = {}
        beta = level.beta
        for _ in range(TRIALS):
            for cluster in order[:_N_CANDIDATES]:
                trial, equal[cluster], result = self._try_split(equal[cluster], beta, (cluster, n))
                trials.append(trial)
                report(trial)
                if trial.status == SPLIT:
                    critical = _interpolate_critical(below.get(cluster), (beta, trial.growth))
                    return Level(result.carry, beta, critical, cluster, result.values)
                if trial.growth < ROUNDING:
                    order.remove(cluster)
                elif trial.growth < 1:
                    below[cluster] = beta, trial.growth
                    break
            if not order:
                return None
            # The next inverse temperature: the predicted critical value, within limits.
            factor = growth
            if trial.growth < 1 and cluster == order[0]:
                factor = _MARGIN / trial.growth
                if n > 1:  # a single cluster is the same at all temperatures
                    factor = float(np.clip(factor, growth**0.2, growth**3))
            beta *= factor
        return None

    def _try_split(
        self, equal: Any, beta: float, pair: tuple[int, int]
    ) -> tuple[Trial, Any, LimitResult]:
        """Try to separate two equal copies, in the columns ``pair``, at one temperature.

        Copies are perturbed only if small differences of them grow. Returns the trial; ``equal``
        after convergence, with equal copies; and the result of the last run.
        """
        k, n = equal[1].shape[-1], pair[1] + 1
        active = np.arange(k) < n
        value, growth = complex(np.nan, np.nan), np.nan
        result, step = self.run_to_limit(equal, beta, active)
        status, cycles = self.trial_status(result, n), result.n_iter
        if status == MERGED:
            equal = jax.tree.map(partial(_average_columns, a=pair[0], b=pair[1]), result.carry)
            value, direction = self.leading_difference(equal, beta, active, pair, step < 1)
            growth = value.real if step < 1 else abs(value)
            if growth >= 1:
                difference = self._copy_difference(direction, pair, k, beta)
                start = equal[0], equal[1] + _PERTURBATION * difference
                result, step = self.run_to_limit(start, beta, active)
                status, cycles = self.trial_status(result, n), cycles + result.n_iter
        elif status == SPLIT:  # two other clusters, which had merged before, have separated
            status = MERGED
        trial = Trial(
            n, beta, status, step, growth, value / beta, result.period, result.width, cycles
        )
        return trial, equal, result

    def run_to_limit(
        self, start: Any, beta: float, active: np.ndarray
    ) -> tuple[LimitResult, float]:
        """Run to a fixed point or a limit cycle; return the result and the damping factor.

        Oscillating runs are repeated with shorter steps. If no run converges, the result of the
        first run is returned.
        """
        first = None
        for step in self.schedule.step_lengths(beta):
            result = find_limit(
                self.make, self.data, self.mass, start, beta, active,
                step=step, tol=self.schedule.tol, max_iter=self.schedule.max_iter,
            )  # fmt: skip
            if first is None:
                first = result, step
            if result.status == CONVERGED:
                return result, step
            if first[0].status != OSCILLATING:
                break
        assert first is not None
        return first

    def _copy_difference(
        self, direction: np.ndarray, pair: tuple[int, int], k: int, beta: float
    ) -> np.ndarray:
        """Perturbation (B, r, 1, K) of log memberships that separates two copies.

        The log ratio of the copies, in the columns ``pair``, changes by ``direction`` (B, r), or by
        random numbers if the schedule has a seed.
        """
        if self.schedule.seed is not None:
            index = np.float32(beta).view(np.uint32)
            direction = self._random_difference(self.schedule.seed, index, direction.dtype)
        out = np.zeros((*direction.shape, 1, k), direction.dtype)
        out[..., 0, pair[0]], out[..., 0, pair[1]] = direction / 2, -direction / 2
        return out


def _duplicate_column(logs: Any, a: int, b: int) -> np.ndarray:
    """Split column ``a`` of log weights (..., K) into two equal columns ``a`` and ``b``."""
    logs = np.array(logs)
    logs[..., a] -= np.log(2)
    logs[..., b] = logs[..., a]
    return logs


def _average_columns(logs: Any, a: int, b: int) -> np.ndarray:
    """Replace columns ``a`` and ``b`` of log weights (..., K) by the log of their mean weight."""
    logs = np.array(logs)
    logs[..., a] = np.logaddexp(logs[..., a], logs[..., b]) - np.log(2)
    logs[..., b] = logs[..., a]
    return logs


def _interpolate_critical(below: tuple[float, float] | None, above: tuple[float, float]) -> float:
    """Interpolate the critical inverse temperature beta, at which ``Trial.growth`` is 1.

    ``below`` is a pair (beta, growth) with a growth below 1, and ``above`` a pair with a growth of
    at least 1. If ``below`` is None, growth is taken as proportional to beta.
    """
    (beta, growth) = above
    if below is None:
        return beta / growth
    return below[0] + (beta - below[0]) * (1 - below[1]) / (growth - below[1])


def iterate_levels(
    make: Make,
    data: Any,
    mass: jax.Array,
    state: Any,
    schedule: SplittingSchedule,
    width: int,
    trials: list[Trial],
    report: Report = lambda trial: None,
) -> Iterator[Level]:
    """Yield the levels of a path with 1, 2, ... clusters, until all attempts to split fail.

    All attempts are appended to ``trials``. See `follow_path` for the other arguments.
    """
    engine = SplittingEngine(make, data, mass, schedule)
    level: Level | None = engine.single_cluster(state, width)
    for n in range(1, schedule.n_clusters + 1):
        if level is None:
            return
        yield level
        if n < schedule.n_clusters:
            level = engine.split_level(level, n, trials, report)


def follow_path(
    make: Make,
    data: Any,
    mass: jax.Array,
    state: Any,
    schedule: SplittingSchedule,
    width: int,
    report: Report = lambda trial: None,
) -> Path:
    """Split clusters until the number of the schedule is reached, or all attempts to split fail.

    Parameters
    ----------
    make : hashable factory of the method's update; see `nrprob.engines.optimise.limit_cycles`
    data : data of the update
    mass : (B, r) masses of the rows, 0 on padding
    state : initial state of the update for one cluster, with ``width`` columns
    schedule : parameters of the path
    width : number of columns, at least the number of clusters; further columns are padding
    report : callback, called with every trial
    """
    trials: list[Trial] = []
    levels = list(iterate_levels(make, data, mass, state, schedule, width, trials, report))
    return Path(levels, trials, len(levels) == schedule.n_clusters)


def follow_starts(
    make: Make,
    data: Any,
    mass: jax.Array,
    state: Any,
    schedule: SplittingSchedule,
    width: int,
    starts: Sequence[np.ndarray],
    score: Callable[[np.ndarray], float],
    report: Report = lambda trial: None,
) -> Path:
    """Make a path whose levels start from given memberships rather than from splits.

    See `follow_path` for the parameters that are not listed here.

    Parameters
    ----------
    starts : log memberships (B, r, 1, K) of two clusters, of three clusters, and so on
    score : function of log memberships (B, r, 1, K); the inverse temperature of a level rises as
        long as the score increases
    """
    engine = SplittingEngine(make, data, mass, schedule)
    levels = [engine.single_cluster(state, width)]
    trials: list[Trial] = []
    # The critical temperature of the first split.
    equal = jax.tree.map(partial(_duplicate_column, a=0, b=1), levels[0].carry)
    value, _ = engine.leading_difference(equal, 1.0, np.arange(width) < 2, (0, 1), False)
    growth = abs(value)
    beta = _MARGIN / max(growth, ROUNDING)
    for n, start in enumerate(starts, 2):
        level = engine.keep_start((state, start), beta, n, score, trials, report)
        if level is None:
            break
        levels.append(level if n > 2 else level._replace(critical=1 / growth))
        beta = level.beta
    return Path(levels, trials, len(levels) == schedule.n_clusters)
