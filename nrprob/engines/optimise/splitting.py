"""Splitting: increase the number of clusters one by one, each at its critical temperature.

The engine duplicates the largest cluster, follows the two equal copies to a fixed point, and asks
the exact derivative of the update whether a difference between them grows. If it does not, the
engine moves to the temperature at which it will; if it does, the copies separate. A method supplies
what `nrprob.engines.optimise.limit_cycles` asks for; `TermCycle` builds it from an annealing's
terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

NOTHING = 1e-6  # share of the mass below which a cluster has vanished
TRIALS = 30  # temperatures that are tried for one split
_CHOICES = 3  # clusters that may be split at one of them
_EXPLICIT = 64  # rows up to which the derivative is written out as a matrix
_LEADING = 4  # eigenvalues that are looked for beyond
_RESTARTED = 20  # times that Arnoldi's iteration is; beyond, its best guess has to do
ROUNDING = 1e-8  # of eigenvalues times beta
_MARGIN = 1.01  # how far beyond a critical temperature copies are let go: nearer, they take ages
_APART = 0.05  # standard deviation of the log ratio of two copies at their start
_SHORTEST = -6  # power of two of the shortest step that damping takes
_SAME = 1e-2  # total variation of two clusters' rows up to which they are the same


class Trial(NamedTuple):
    """One temperature that was tried.

    Attributes
    ----------
    n_clusters : clusters that there were to be
    beta : inverse temperature
    status : "split", "merged", "vanished", "oscillating" or "max_iter"
    step : the part of every step in log memberships that was taken; below 1 where it is damped
    growth : of a difference of two equal copies in a cycle, at first; beta times the eigenvalue
    eigenvalue : of the linearised update at equal copies, divided by beta; the leading one. Copies
        separate from ``beta = 1 / abs(eigenvalue)`` on if it is real, and loop if it is complex or
        negative. NaN where the equal copies found no fixed point.
    period, width : of a loop, see `LimitResult`
    n_iter : cycles
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
    """A solution of so many clusters.

    Attributes
    ----------
    carry : state and log memberships (B, r, 1, K), of which the first columns exist
    beta : inverse temperature
    critical : inverse temperature at which the split that led here became possible
    parent : cluster of the level before that was split
    values : (cycles, T) trace of the run that ended here
    """

    carry: Any
    beta: float
    critical: float
    parent: int
    values: np.ndarray


class Path(NamedTuple):
    """All levels from one cluster on, all that was tried, and whether it came to its end."""

    levels: list[Level]
    trials: list[Trial]
    complete: bool


Report = Callable[[Trial], None]


class SplittingSchedule(NamedTuple):
    """How a path is followed.

    Attributes
    ----------
    n_clusters : at its end
    growth : ratio of successive inverse temperatures where there is nothing better to go by
    tol : largest change of a membership at which a run has converged
    max_iter : most cycles of a run
    damped : shorten the steps of a run that loops, down to 1/64
    curvature : steps are shortened to 1 / (1 + beta curvature) from the outset
    seed : of random differences between copies; None for the ones that grow
    """

    n_clusters: int
    growth: float
    tol: float
    max_iter: int
    damped: bool = False
    curvature: float = 0.0
    seed: int | None = None

    def steps(self, beta: float) -> Iterator[float]:
        """Parts of a step to try, one after the other."""
        whole = 1 / (1 + beta * self.curvature)
        halvings = range(0, _SHORTEST - 1, -1) if self.damped else [0]
        return (whole * 2.0**power for power in halvings)


@dataclass(frozen=True)
class TermCycle:
    """The update of an objective made of terms, for this engine.

    The data are the terms, the rows and the compression; see
    `nrprob.engines.optimise.anneal.term_update`.
    """

    def __call__(self, data: Any, active: jax.Array) -> Callable[..., Any]:
        """Make the update."""
        terms, rows, compression = data
        of_masses = term_update(terms, compression)

        def update(state, log_q, beta):
            w = normalise_masses(log_q, rows.mass, active=active)
            state, log_r = of_masses.em_step((rows,), state, w, beta)
            return state, log_r, of_masses.evaluate_objective((rows,), state, w, beta)[:, None]

        return update


@jit_by_size("shape", "dtype")
def _spread(seed, index, *, shape, dtype):
    return hashed_noise(fold_in(seed, index), shape, dtype)


@jit_by_size("make")
def _derivative(data, carry, beta, active, sign, mass, u, *, make):
    """What a log ratio (B, r) of two copies, those of ``sign`` (K,) 1 and -1, becomes in a cycle.

    Modulo constants: a prior keeps any share of the mass between copies.
    """
    update, (state, log_q) = make(data, active), carry

    def respond(log_q):
        return jnp.where(active, update(state, log_q, beta)[1], 0)

    change = jax.jvp(respond, (log_q,), (0.5 * u[..., None, None] * sign,))[1]
    ratio = (change * sign).sum(-1)[..., 0]
    return jnp.where(mass > 0, ratio - (mass * ratio).sum() / mass.sum(), 0)


@dataclass(frozen=True)
class SplittingEngine:
    """The method, its data and masses, and how its path is followed."""

    make: Make
    data: Any
    mass: jax.Array
    schedule: SplittingSchedule

    def leading(
        self, carry: Any, beta: float, active: np.ndarray, pair: tuple[int, int], rightmost: bool
    ) -> tuple[complex, np.ndarray]:
        """Leading eigenvalue of the difference of two equal copies, and a direction that grows.

        By absolute value; if ``rightmost``, by its real part, which is what damping leaves. The
        direction (B, r) is the sum of the growing eigenvectors, of unit variance.
        """
        mass = np.asarray(self.mass)
        places = np.flatnonzero(mass.ravel() > 0)
        sign = np.zeros(active.size, mass.dtype)
        sign[list(pair)] = 1, -1
        beta_array = np.full(1, beta, mass.dtype)

        def spread_out(values: np.ndarray) -> np.ndarray:
            u = np.zeros(mass.size, mass.dtype)
            u[places] = values
            return u.reshape(mass.shape)

        def respond(values: np.ndarray) -> np.ndarray:
            out = _derivative(
                self.data, carry, beta_array, active, sign, mass, spread_out(values.ravel()),
                make=self.make,
            )  # fmt: skip
            return np.asarray(out, float).ravel()[places]

        start = self._noise(0, 1, mass.dtype).astype(float).ravel()[places]
        if np.abs(respond(start)).max() < ROUNDING:
            return 0j, spread_out(start)
        if places.size <= _EXPLICIT:
            matrix = np.stack([respond(row) for row in np.eye(places.size)], 1)
            values, vectors = np.linalg.eig(matrix)
        else:
            operator = LinearOperator((places.size,) * 2, respond, dtype=float)
            which = "LR" if rightmost else "LM"
            try:
                values, vectors = eigs(
                    operator, _LEADING, which=which, v0=start, tol=1e-6, maxiter=_RESTARTED
                )
            except ArpackNoConvergence as error:
                values, vectors = error.eigenvalues, error.eigenvectors
            if not values.size:
                values, vectors = np.zeros(1, complex), start[:, None]
        rank = values.real if rightmost else np.abs(values)
        best = int(rank.argmax())
        grows = rank >= min(rank[best], 1)
        vectors = vectors[:, grows]
        peaks = vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])]
        direction = (vectors / peaks).real.sum(1)
        share = mass.ravel()[places] / mass.sum()
        direction = direction - share @ direction
        spread_of = np.sqrt(share @ direction**2)
        return complex(values[best]), spread_out(direction / (spread_of or 1))

    def _noise(self, seed: int, index: Any, dtype: Any) -> np.ndarray:
        """Random numbers (B, r)."""
        numbers = np.uint32(seed), np.uint32(index)
        return np.asarray(_spread(*numbers, shape=self.mass.shape, dtype=dtype))

    def judge(self, result: LimitResult, n_clusters: int) -> str:
        """Status of a run of ``n_clusters``."""
        if result.status != CONVERGED:
            return result.status
        mass = np.asarray(self.mass, float)
        q = np.exp(np.asarray(result.carry[1], float)[..., 0, :n_clusters])
        joint = (mass[..., None] * q).reshape(-1, n_clusters)
        size = joint.sum(0)
        if (size < NOTHING * mass.sum()).any():
            return VANISHED
        joint = joint / size
        apart = [
            0.5 * np.abs(joint[:, c, None] - joint[:, c + 1 :]).sum(0)
            for c in range(n_clusters - 1)
        ]
        return SPLIT if not apart or np.concatenate(apart).min() > _SAME else MERGED

    def sizes(self, carry: Any, n_clusters: int) -> np.ndarray:
        """Masses of the clusters."""
        q = np.exp(np.asarray(carry[1], float)[..., 0, :n_clusters])
        return (np.asarray(self.mass, float)[..., None] * q).sum((0, 1))

    def split(self, level: Level, n: int, trials: list[Trial], report: Report) -> Level | None:
        """Make n + 1 clusters of n; None if no temperature that is tried does.

        The largest cluster is split; the next ones only where a split of it was possible and came
        to nothing, or its rows are all alike.
        """
        growth = self.schedule.growth
        order = np.argsort(-self.sizes(level.carry, n), kind="stable").tolist()
        equal = {c: jax.tree.map(partial(_doubled, a=c, b=n), level.carry) for c in order}
        below: dict[int, tuple[float, float]] = {}
        beta = level.beta
        for _ in range(TRIALS):
            for cluster in order[:_CHOICES]:
                trial, equal[cluster], result = self._try(equal[cluster], beta, (cluster, n))
                trials.append(trial)
                report(trial)
                if trial.status == SPLIT:
                    critical = _crossing(below.get(cluster), (beta, trial.growth))
                    return Level(result.carry, beta, critical, cluster, result.values)
                if trial.growth < ROUNDING:
                    order.remove(cluster)
                elif trial.growth < 1:
                    below[cluster] = beta, trial.growth
                    break
            if not order:
                return None
            factor = growth
            if trial.growth < 1 and cluster == order[0]:
                factor = _MARGIN / trial.growth
                if n > 1:  # one cluster is the same at all temperatures
                    factor = float(np.clip(factor, growth**0.2, growth**3))
            beta *= factor
        return None

    def _try(
        self, equal: Any, beta: float, pair: tuple[int, int]
    ) -> tuple[Trial, Any, LimitResult]:
        """Let two copies go where a difference between them grows.

        Returns what was tried, the equal copies to start from elsewhere, and where it ended.
        """
        k, n = equal[1].shape[-1], pair[1] + 1
        active = np.arange(k) < n
        value, growth = complex(np.nan, np.nan), np.nan
        result, step = self.settle(equal, beta, active)
        status, cycles = self.judge(result, n), result.n_iter
        if status == MERGED:
            equal = jax.tree.map(partial(_equalised, a=pair[0], b=pair[1]), result.carry)
            value, direction = self.leading(equal, beta, active, pair, step < 1)
            growth = value.real if step < 1 else abs(value)
            if growth >= 1:
                start = equal[0], equal[1] + _APART * self._towards(direction, pair, k, beta)
                result, step = self.settle(start, beta, active)
                status, cycles = self.judge(result, n), cycles + result.n_iter
        elif status == SPLIT:  # another two have merged before, and are no longer one
            status = MERGED
        trial = Trial(
            n, beta, status, step, growth, value / beta, result.period, result.width, cycles
        )
        return trial, equal, result

    def settle(self, start: Any, beta: float, active: np.ndarray) -> tuple[LimitResult, float]:
        """Run, with shorter steps where it loops and they are allowed; and the part of a step.

        Where none of these comes to rest, it is the loop that is reported.
        """
        first = None
        for step in self.schedule.steps(beta):
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

    def _towards(
        self, direction: np.ndarray, pair: tuple[int, int], k: int, beta: float
    ) -> np.ndarray:
        """Difference (B, r, 1, K) of two copies; random where the schedule has a seed."""
        if self.schedule.seed is not None:
            index = np.float32(beta).view(np.uint32)
            direction = self._noise(self.schedule.seed, index, direction.dtype)
        out = np.zeros((*direction.shape, 1, k), direction.dtype)
        out[..., 0, pair[0]], out[..., 0, pair[1]] = direction / 2, -direction / 2
        return out


def _doubled(logs: Any, a: int, b: int) -> np.ndarray:
    """Log weights (..., K) where column ``b`` is a copy of ``a``, and both have half of it."""
    logs = np.array(logs)
    logs[..., a] -= np.log(2)
    logs[..., b] = logs[..., a]
    return logs


def _equalised(logs: Any, a: int, b: int) -> np.ndarray:
    """Log weights (..., K) of which two columns have their mean."""
    logs = np.array(logs)
    logs[..., a] = np.logaddexp(logs[..., a], logs[..., b]) - np.log(2)
    logs[..., b] = logs[..., a]
    return logs


def _crossing(below: tuple[float, float] | None, above: tuple[float, float]) -> float:
    """Where growth passes 1, from points (beta, growth) on both sides, or above alone."""
    (beta, growth) = above
    if below is None:
        return beta / growth
    return below[0] + (beta - below[0]) * (1 - below[1]) / (growth - below[1])


def follow_path(
    make: Make,
    data: Any,
    mass: jax.Array,
    state: Any,
    schedule: SplittingSchedule,
    width: int,
    report: Report = lambda trial: None,
) -> Path:
    """Split until there are so many clusters as the schedule says, or no temperature splits.

    Parameters
    ----------
    make : update of the method, hashable; see above
    data : what it looks at
    mass : (B, r) masses of the rows, 0 on padding
    state : what it carries at one cluster, with ``width`` columns
    schedule : how the path is followed
    width : columns for clusters; those that never are clusters are padding
    report : called with every trial
    """
    engine = SplittingEngine(make, data, mass, schedule)
    log_q = np.full((*mass.shape, 1, width), -np.inf, mass.dtype)
    log_q[..., 0] = 0
    one, _ = engine.settle((state, log_q), 1.0, np.arange(width) < 1)
    levels = [Level(one.carry, 1.0, 0.0, 0, one.values)]
    trials: list[Trial] = []
    for n in range(1, schedule.n_clusters):
        level = engine.split(levels[-1], n, trials, report)
        if level is None:
            return Path(levels, trials, False)
        levels.append(level)
    return Path(levels, trials, True)
