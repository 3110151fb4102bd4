"""Base class of estimators that fit two clusterings simultaneously.

Shapes: n rows of m features, and k clusters in each clustering; N, P and K are these numbers with
padding. An axis of length 2 has one entry per clustering.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob import metrics
from nrprob.data.design import Design
from nrprob.data.validation import check_random_state
from nrprob.engines.optimise.solve import lapack_lock
from nrprob.estimator.base import Restarts, row_means
from nrprob.estimator.calls import at_once
from nrprob.methods.alternatives.inputs import AlternativeClusterer
from nrprob.statistics.features import ALIKE, StandardisedRows
from nrprob.statistics.rows import coarse_bucket

TRACE = 512  # maximum number of entries of the trace; the last entry is of the last iteration
HIGHEST = jax.lax.Precision.HIGHEST


class PaddedRows(NamedTuple):
    """Padded rows of mean 0 and total variance 1.

    Attributes
    ----------
    x : (N, P) rows; 0 on padding
    mass : (N,) 1 for rows, 0 for padding; padding follows the rows
    real : (P,) True for features, False for padding
    active : (K,) True for clusters, False for padding; the same for both clusterings
    """

    x: jax.Array
    mass: jax.Array
    real: jax.Array
    active: jax.Array

    def squared_distances(self, centres: jax.Array) -> jax.Array:
        """Squared distances (N, K) of rows from ``centres`` (K, P); inf for padding clusters."""
        square_norms = (self.x**2).sum(1)[:, None] + (centres**2).sum(1)
        inner = jnp.matmul(self.x, centres.T, precision=HIGHEST)
        return jnp.where(self.active, jnp.maximum(square_norms - 2 * inner, 0), jnp.inf)

    def nearest_centre(self, centres: jax.Array, open_: jax.Array | bool = True) -> jax.Array:
        """Index (N,) of the nearest of the ``centres`` (K, P) for every row; 0 on padding.

        Only centres for which the mask ``open_`` (K,) is True are considered.
        """
        square = jnp.where(open_, self.squared_distances(centres), jnp.inf)
        return jnp.where(self.mass > 0, square.argmin(1), 0).astype(jnp.int32)


class Run(NamedTuple):
    """Result of one restart, or of all restarts.

    For all restarts, every array has a leading axis of restarts. `keep_best_trace` then reduces
    ``trace`` and ``fit`` to the best restart.

    Attributes
    ----------
    labels : (2, N) clusters of the rows in both clusterings
    objective : minimised objective
    converged : whether the restart converged
    n_iter : number of iterations
    trace : (512,) objective after every iteration, NaN after the last iteration
    fit : estimates of the method
    """

    labels: Any
    objective: Any
    converged: Any
    n_iter: Any
    trace: Any
    fit: Any


def keep_best_trace(runs: Run) -> Run:
    """Results ``runs`` of all restarts, with ``trace`` and ``fit`` of the best restart only."""
    best = runs.objective.argmin()
    trace, fit = jax.tree.map(lambda a: a[best], (runs.trace, runs.fit))
    return runs._replace(trace=trace, fit=fit)


def solve_ridge(
    size: jax.Array, sums: jax.Array, others: jax.Array, weight: jax.Array | float
) -> jax.Array:
    """Ridge regression of every cluster i: (size_i I + weight B'B)^-1 sums_i.

    Woodbury's identity reduces all inversions to one eigendecomposition of BB'. The computation
    uses float64, and is stable, since no divisor is smaller than ``size``.

    Parameters
    ----------
    size : (K,) positive sizes of the clusters
    sums : (K, P) sums of rows
    others : (K, P) matrix B, the cluster centres in the other clustering
    weight : penalty weight

    Returns
    -------
    (K, P) solutions
    """
    dtype = sums.dtype
    size, sums, others = (a.astype(jnp.float64) for a in (size, sums, others))
    dot = partial(jnp.matmul, precision=HIGHEST)
    values, turn = jnp.linalg.eigh(dot(others, others.T))
    inside = dot(dot(sums, others.T), turn) / (size[:, None] + weight * jnp.maximum(values, 0))
    return ((sums - weight * dot(dot(inside, turn.T), others)) / size[:, None]).astype(dtype)


@dataclass
class SimultaneousTask:
    """Validated and padded input of one fit.

    Attributes
    ----------
    X : (n, m) rows
    data : scaled rows
    design : known structure
    padded : scaled rows, padded
    random : generator of the initial values
    calls : empty; tasks of other estimators list the calls of compiled programs here
    """

    X: np.ndarray
    data: StandardisedRows
    design: Design
    padded: PaddedRows
    random: np.random.RandomState
    calls: tuple = ()

    def draw_starts(self, n_init: int, k: int) -> np.ndarray:
        """Sample ``k`` rows (n_init, 2, K, P) per restart and clustering; 0 on padding."""
        x, n = self.padded.x, len(self.X)
        starts = np.zeros((n_init, 2, len(self.padded.active), x.shape[1]), x.dtype)
        for start in starts.reshape(-1, *starts.shape[2:]):
            start[:k] = x[self.random.choice(n, k, replace=False)]
        return starts


class SimultaneousClusterer(AlternativeClusterer):
    """Base class of estimators that fit two clusterings of ``n_clusters`` clusters each.

    A subclass implements

    ``_run_restarts(task, together)``
        Return a `Run` of all restarts; ``together`` restarts run in one batch.
    ``_unscaled_objective(objective, task)``
        Convert objectives of the scaled rows to the units of the features.
    ``_store_estimates(task, fit)``
        Set the fitted attributes of the method; return memberships (2, n, k).
    ``_log_memberships(x)``
        Return log memberships (2, n, k) of scaled rows (n, m), up to a constant per row.
    """

    n_init: int
    max_iter: int
    random_state: Any
    _chosen: int  # index of the clustering that is ``labels_``

    def _run_restarts(self, task: SimultaneousTask, together: int) -> Run:
        raise NotImplementedError

    def _unscaled_objective(self, objective: np.ndarray, task: SimultaneousTask) -> np.ndarray:
        raise NotImplementedError

    def _store_estimates(self, task: SimultaneousTask, fit: Any) -> np.ndarray:
        raise NotImplementedError

    def _log_memberships(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    # Fitting

    def prepare(self, X, y, known=None) -> SimultaneousTask:
        """Validate and pad the input; see `Clusterer.prepare`."""
        X, data, design = self._take_rows(X, y, known)
        (n, m), k = X.shape, self.n_clusters
        few_rows = n <= 4096
        x = np.zeros((coarse_bucket(n, 64), coarse_bucket(m, 4)), X.dtype)
        x[:n, :m] = data.x
        padded = PaddedRows(
            x,
            (np.arange(len(x)) < n).astype(X.dtype),
            np.arange(x.shape[1]) < m,
            np.arange(coarse_bucket(k, 4) if few_rows else k) < k,
        )
        return SimultaneousTask(X, data, design, padded, check_random_state(self.random_state))

    def compute(self, task):
        """Run all restarts; see `Clusterer.compute`."""
        k = len(task.padded.active)
        size = task.padded.mass.size * k * (k + 6) * task.padded.x.dtype.itemsize
        with lapack_lock(True):
            result = jax.device_get(self._run_restarts(task, at_once(self.n_init, size)))
        n = len(task.X)
        return [result._replace(labels=np.moveaxis(result.labels[:, :, :n], 1, 2))]

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        runs = result[0]
        objective = self._unscaled_objective(runs.objective.astype(float), task)
        if self.verbose:
            print(f"restarts {self.n_init}/{self.n_init}: objective {objective.min():.6g}")
        chosen = np.array([_choose_clustering(pair, task.design) for pair in runs.labels])
        best = int(objective.argmin())
        self._chosen = int(chosen[best])
        self._pairs = runs.labels.astype(np.int64)
        self.alternatives_ = self._pairs[best]
        memberships = self._store_estimates(task, runs.fit)
        self._scaled = task.data.without_rows()
        membership = memberships[self._chosen].astype(np.float64)
        self._store_results(
            Restarts(self._pairs[np.arange(len(chosen)), :, chosen], objective, runs.converged),
            membership=membership / membership.sum(1, keepdims=True),
            trace=self._unscaled_objective(runs.trace.astype(float), task),
            n_iter=runs.n_iter[best],
            nothing_left=ALIKE if task.data.all_equal else "",
        )
        self.cluster_centers_ = row_means(task.X, self.membership_)
        sizes = np.bincount(self.alternatives_[:, 1 - self._chosen])
        self._warn_small_clusters(sizes, " of the other clustering")
        other = (sizes > 0).sum()
        if other < self.n_clusters and not task.data.all_equal:
            self._warn_degenerate(
                f"the other clustering has {other} clusters, fewer than "
                f"n_clusters={self.n_clusters}; see alternatives_"
            )
        return self

    @property
    def restarts_(self):
        """All restarts: an `xarray.Dataset` with dimensions restart, sample and clustering."""
        both = ("restart", "sample", "clustering")
        return super().restarts_.assign(alternatives=(both, self._pairs))

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        scores = self._log_memberships(self._scaled(X))[self._chosen]
        return np.where(self._holds_rows, scores, -np.inf)

    def predict(self, X, *, known=None):
        """Assign new rows to the clusters of ``labels_``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored
            Known labels only select one of the two clusterings in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)


def _choose_clustering(pair: np.ndarray, design: Design) -> int:
    """Index of the clustering that shares less information with the known labelings; 0 for a tie.

    The criterion is the normalised mutual information of the clustering and a known labeling,
    summed over known labelings. ``pair`` (n, 2) are the labels of both clusterings.
    """
    shared = [
        sum(metrics.normalized_mutual_information(labels, z) for z in design.labelings.T)
        for labels in pair.T
    ]
    return int(np.argmin(shared))
