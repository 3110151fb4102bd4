"""Hierarchies of clusters by successive splits, and estimators with the solver "split".

A path (`nrprob.engines.optimise.splitting.Path`) has one level per number K of clusters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.optimise import limit_cycles, solve, splitting
from nrprob.engines.programs import jit_by_size
from nrprob.estimator.linear import Task
from nrprob.estimator.terms import TermEstimator
from nrprob.statistics.rows import Layout, padded_count
from nrprob.statistics.terms import row_costs
from nrprob.statistics.xlogx import safe_log


class Granularity(NamedTuple):
    """Clusters at one level of the hierarchy, in descending size.

    Attributes
    ----------
    n_clusters : number K of clusters
    beta : inverse temperature
    critical_beta : inverse temperature at which the split that leads to this level becomes
        possible; 0 for K = 1
    membership : (n_samples, K) probability p(c|x) of cluster c, given sample x
    weights : (K,) share p(c) of the samples in every cluster
    parents : (K,) for every cluster, the cluster of the previous level with the largest overlap
    """

    n_clusters: int
    beta: float
    critical_beta: float
    membership: np.ndarray
    weights: np.ndarray
    parents: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """Most probable cluster (n_samples,) of each sample."""
        return self.membership.argmax(1)


def path_granularities(
    path: splitting.Path, layout: Layout, mass: np.ndarray
) -> tuple[list[Granularity], np.ndarray]:
    """Return the clusterings of a path, by number of clusters, and the order of the last clusters.

    The clusters of every clustering are sorted by size.

    Entry c of the order (K,) is the column of the c-th largest cluster in the memberships of the
    path. ``mass`` (n_samples,) are the weights of the samples, which sum to 1.
    """
    result: list[Granularity] = []
    for k, level in enumerate(path.levels, 1):
        q = np.exp(layout.from_blocks(np.asarray(level.carry[1], np.float64))[:, 0, :k])
        q = q / q.sum(1, keepdims=True)
        # Rows of weight 0 get the cluster weights as memberships.
        weights = mass @ q
        q[mass == 0] = weights
        # Sort clusters by weight, and find the parent with the largest joint mass.
        order = np.argsort(-weights, kind="stable")
        q, weights = q[:, order], weights[order]
        before = result[-1].membership if result else np.ones((len(q), 1))
        parents = ((mass[:, None] * q).T @ before).argmax(1)
        result.append(Granularity(k, level.beta, level.critical, q, weights, parents))
    return result, order


def path_status(path: splitting.Path) -> tuple[str, str]:
    """Return the status of a path, and the reason why the path ended early.

    The status is "converged" and the reason is empty if the path is complete. Otherwise, the status
    is a value of ``Trial.status``.
    """
    if path.complete:
        return limit_cycles.CONVERGED, ""
    next_size = len(path.levels) + 1
    trials = [t for t in path.trials if t.n_clusters == next_size]
    last = trials[-1]
    if last.growth < splitting.ROUNDING:
        what = "all rows are alike" if next_size == 2 else "the rows of every cluster are alike"
        return splitting.MERGED, f"there is no structure left; {what}"
    reasons = {
        limit_cycles.OSCILLATING: "the update oscillated",
        splitting.VANISHED: "a cluster vanished",
        splitting.MERGED: "the parts of a split merged again",
        limit_cycles.UNFINISHED: "the update did not converge within max_iter",
    }
    counts = {status: sum(t.status == status for t in trials) for status in reasons}
    status = max(reasons, key=lambda name: (counts[name], name == last.status))
    what = reasons[status]
    if status == limit_cycles.OSCILLATING:
        loop = [t for t in trials if t.status == status][-1]
        what += f" with a period of {loop.period:.3g} and a range of {loop.width:.2g}"
    return status, (
        f"found {next_size - 1} clusters, fewer than n_clusters; {what} from "
        f"beta={trials[0].beta:.4g} to {last.beta:.4g}; see trials_, or lower n_clusters"
    )


def trials_frame(path: splitting.Path) -> Any:
    """Return all trials of a path as a `pandas.DataFrame`; see `splitting.Trial`."""
    import pandas as pd

    return pd.DataFrame(path.trials, columns=splitting.Trial._fields)


class SplittingEstimator(TermEstimator):
    """Estimator whose objective is a sum of terms, with the additional solver "split"."""

    def _calls(self, task: Task) -> list[solve.SolverCall]:
        return [] if self.solver == "split" else super()._calls(task)

    def prepare(self, X, y, known=None, sample_weight=None) -> Task:
        """Validate and encode the data; return the task of the fit."""
        task = super().prepare(X, y, known, sample_weight)
        if self.solver == "split" and task.fixed is not None and (task.fixed >= 0).any():
            raise ValueError(
                "solver='split' takes no partial labels; got labels in y; use solver='anneal', or "
                "leave y out"
            )
        return task

    def compute(self, task: Task) -> list[solve.Solution]:
        """Run the calls of the task; with the solver "split", split clusters one by one instead."""
        return [self._split(task)] if self.solver == "split" else super().compute(task)

    def _split(self, task: Task) -> solve.Solution:
        """Split clusters in float64, up to ``n_clusters``; return the last level as a solution."""
        descent, rows = self._minimised, task.rows
        rows, settings = jax.tree.map(_to_float64, (rows, task.settings))
        terms, weights, critical, curvature = _weighted_terms(rows, settings, build=task.build)
        path = splitting.follow_path(
            splitting.TermCycle(),
            (terms, rows, settings.compression),
            rows.mass,
            (),
            # Every level is a result, so every level has the final tolerance of an annealing.
            splitting.SplittingSchedule(
                self.n_clusters,
                descent.cooling,
                1e-3 * descent.tol,
                100 * self.max_iter,
                curvature=float(curvature) if descent.damped else 0.0,
            ),
            padded_count(self.n_clusters, task.layout.n_slots * rows.x.n_statistics),
        )
        last = path.levels[-1]
        w = jnp.exp(last.carry[1]) * rows.mass[..., None, None]
        held = w.sum((0, 1, 2))
        prior = settings.compression * safe_log(held)
        self._path = path
        self._minimised = descent._replace(beta=last.beta)
        objective = np.array([level.values[-1, 0] for level in path.levels])
        return solve.Solution(
            np.asarray(w.argmax(-1)),
            objective[-1:],
            np.array([path_status(path)[0] != limit_cycles.UNFINISHED]),
            np.asarray(max(sum(trial.n_iter for trial in path.trials), 1)),
            np.asarray(w[:, :, 0]),
            objective,
            solve.TermFit(
                np.asarray(_cell_costs(terms, rows, w)[:, 0]),
                np.asarray(jnp.where(held > 0, prior, -jnp.inf)),
                np.asarray(last.beta),
                np.asarray(critical),
                np.asarray(weights),
            ),
        )

    def finish(self, task: Task, result: list[solve.Solution]):
        """Set the fitted attributes; see `Clusterer.finish`."""
        super().finish(task, result)
        if self.solver == "split":
            mass = np.ones(len(self.labels_)) if task.weights is None else task.weights
            self.path_, _ = path_granularities(self._path, task.layout, mass / mass.sum())
            self.trials_ = trials_frame(self._path)
            self.status_ = path_status(self._path)[0]
            del self._path
        return self

    def _nothing_left(self, has_structure: bool) -> str:
        return super()._nothing_left(has_structure) or (
            path_status(self._path)[1] if self.solver == "split" else ""
        )


@jit_by_size("build")
def _weighted_terms(rows, settings, *, build):
    problem = build(rows, settings)
    return *solve.weight_terms(problem, rows), problem.curvature


@jit_by_size()
def _cell_costs(terms, rows, w):
    return row_costs(terms, rows.cells(w))


def _to_float64(a: Any) -> Any:
    return a.astype(np.float64) if a.dtype == np.float32 else a
