"""Base class of estimators of two clusterings at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob import metrics
from nrprob.data.validation import check_random_state
from nrprob.engines.optimise.solve import lapack_lock
from nrprob.estimator.base import Restarts, row_means
from nrprob.estimator.calls import at_once
from nrprob.known import Known
from nrprob.methods.alternatives.inputs import AlternativeClusterer
from nrprob.statistics.features import ALIKE, Scaled
from nrprob.statistics.rows import coarse

TRACE = 512  # entries of the trace
HIGHEST = jax.lax.Precision.HIGHEST


class Plane(NamedTuple):
    """Rows as the programs take them, of mean 0 and total variance 1; P counts their columns.

    Attributes
    ----------
    x : (N, P), 0 on padding
    mass : (N,) 1, or 0 on padding, which follows the rows
    real : (P,) which columns are features
    active : (K,) which clusters exist, of both clusterings
    """

    x: jax.Array
    mass: jax.Array
    real: jax.Array
    active: jax.Array

    def squares(self, centres: jax.Array) -> jax.Array:
        """Squared distances (N, K) to centres (K, P); infinite to clusters that do not exist."""
        own = (self.x**2).sum(1)[:, None] + (centres**2).sum(1)
        inner = jnp.matmul(self.x, centres.T, precision=HIGHEST)
        return jnp.where(self.active, jnp.maximum(own - 2 * inner, 0), jnp.inf)

    def nearest(self, centres: jax.Array, open_: jax.Array | bool = True) -> jax.Array:
        """Nearest (N,) of the centres (K, P) that are open; 0 on padding."""
        square = jnp.where(open_, self.squares(centres), jnp.inf)
        return jnp.where(self.mass > 0, square.argmin(1), 0).astype(jnp.int32)


class Run(NamedTuple):
    """One restart; or all of them, with a leading axis of restarts but for ``fit`` and ``trace``.

    Attributes
    ----------
    labels : (2, N) of both clusterings
    objective : minimised
    converged : whether it came to rest
    n_iter : steps
    trace : (steps,) of the best restart where there are all, NaN beyond the last
    fit : what the method found, of the best restart where there are all
    """

    labels: Any
    objective: Any
    converged: Any
    n_iter: Any
    trace: Any
    fit: Any


def best_of(runs: Run) -> Run:
    """All restarts, but trace and fit of the best alone."""
    best = runs.objective.argmin()
    trace, fit = jax.tree.map(lambda a: a[best], (runs.trace, runs.fit))
    return runs._replace(trace=trace, fit=fit)


def ridge(
    size: jax.Array, sums: jax.Array, others: jax.Array, weight: jax.Array | float
) -> jax.Array:
    """Return (size_i I + weight B'B)^-1 sums_i (K, P) of every cluster i; B = ``others`` (K, P).

    By Woodbury's identity and the eigenvalues of BB', which all clusters share: whatever the
    weight, what is divided by is at least the size, which must be positive. In float64.
    """
    dtype = sums.dtype
    size, sums, others = (a.astype(jnp.float64) for a in (size, sums, others))
    dot = partial(jnp.matmul, precision=HIGHEST)
    values, turn = jnp.linalg.eigh(dot(others, others.T))
    inside = dot(dot(sums, others.T), turn) / (size[:, None] + weight * jnp.maximum(values, 0))
    return ((sums - weight * dot(dot(inside, turn.T), others)) / size[:, None]).astype(dtype)


@dataclass
class PairTask:
    """Checked and laid out input of one fit; nothing of it is compiled ahead.

    Attributes
    ----------
    X : (n, m) rows
    data : the same, scaled
    known : what is known
    plane : the same rows as programs take them
    random : source of the starts
    """

    X: np.ndarray
    data: Scaled
    known: Known
    plane: Plane
    random: np.random.RandomState
    calls: tuple = ()

    def draw(self, n_init: int, k: int) -> np.ndarray:
        """Rows (n_init, 2, K, P) that start the restarts: ``k`` for each clustering, then 0."""
        x, n = self.plane.x, len(self.X)
        starts = np.zeros((n_init, 2, len(self.plane.active), x.shape[1]), x.dtype)
        for start in starts.reshape(-1, *starts.shape[2:]):
            start[:k] = x[self.random.choice(n, k, replace=False)]
        return starts


class PairClusterer(AlternativeClusterer):
    """Clusterer that finds two clusterings, of ``n_clusters`` each.

    A class that derives from it gives

    ``_search(task, together)``
        A `Run` of all restarts, of which ``together`` run side by side.
    ``_value(objective, task)``
        Objectives in the units of the features, from those of the scaled rows.
    ``_keep(task, fit)``
        Keeps what `_log_memberships` needs, and sets attributes of its own; returns memberships
        (2, n, k) of the rows.
    ``_log_memberships(x)``
        Scores (2, n, k) of rows (n, m) that are scaled as those of the fit.
    """

    n_init: int
    max_iter: int
    random_state: Any
    _further: int  # which of the two clusterings is ``labels_``

    def _search(self, task: PairTask, together: int) -> Run:
        raise NotImplementedError

    def _value(self, objective: np.ndarray, task: PairTask) -> np.ndarray:
        raise NotImplementedError

    def _keep(self, task: PairTask, fit: Any) -> np.ndarray:
        raise NotImplementedError

    def _log_memberships(self, x: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    # Fitting

    def prepare(self, X, y, known=None) -> PairTask:
        """Check the input and lay it out; see `Clusterer.prepare`."""
        X, data, known, _ = self._take_rows(X, y, known)
        (n, m), k = X.shape, self.n_clusters
        few = n <= 4096
        x = np.zeros((coarse(n, 64), coarse(m, 4)), X.dtype)
        x[:n, :m] = data.x
        plane = Plane(
            x,
            (np.arange(len(x)) < n).astype(X.dtype),
            np.arange(x.shape[1]) < m,
            np.arange(coarse(k, 4) if few else k) < k,
        )
        return PairTask(X, data, known, plane, check_random_state(self.random_state))

    def compute(self, task):
        """Run all restarts; see `Clusterer.compute`."""
        k = len(task.plane.active)
        size = task.plane.mass.size * k * (k + 6) * task.plane.x.dtype.itemsize
        with lapack_lock(True):
            result = jax.device_get(self._search(task, at_once(self.n_init, size)))
        n = len(task.X)
        return [result._replace(labels=np.moveaxis(result.labels[:, :, :n], 1, 2))]

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        runs = result[0]
        objective = self._value(runs.objective.astype(float), task)
        if self.verbose:
            print(f"restarts {self.n_init}/{self.n_init}: objective {objective.min():.6g}")
        further = np.array([_further(pair, task.known) for pair in runs.labels])
        best = int(objective.argmin())
        self._further = int(further[best])
        self._pairs = runs.labels.astype(np.int64)
        self.alternatives_ = self._pairs[best]
        memberships = self._keep(task, runs.fit)
        self._scaled = task.data.emptied()
        membership = memberships[self._further].astype(np.float64)
        self._store(
            Restarts(self._pairs[np.arange(len(further)), :, further], objective, runs.converged),
            membership=membership / membership.sum(1, keepdims=True),
            trace=self._value(runs.trace.astype(float), task),
            n_iter=runs.n_iter[best],
            nothing_left=ALIKE if task.data.alike else "",
        )
        self.cluster_centers_ = row_means(task.X, self.membership_)
        sizes = np.bincount(self.alternatives_[:, 1 - self._further])
        self._tell_small(sizes, " of the other clustering")
        other = (sizes > 0).sum()
        if other < self.n_clusters and not task.data.alike:
            self._degenerate(
                f"the other clustering has {other} clusters, fewer than "
                f"n_clusters={self.n_clusters}; see alternatives_"
            )
        return self

    @property
    def restarts_(self):
        """All restarts: an `xarray.Dataset` over restart and sample, and over both clusterings."""
        both = ("restart", "sample", "clustering")
        return super().restarts_.assign(alternatives=(both, self._pairs))

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        scores = self._log_memberships(self._scaled(X))[self._further]
        return np.where(self._holds_rows, scores, -np.inf)

    def predict(self, X, *, known=None):
        """Cluster of new rows, in the clustering that is ``labels_``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored
            It has only chosen between two clusterings that were found without it.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)


def _further(pair: np.ndarray, known: Known) -> int:
    """Which of two clusterings (n, 2) shares less with the known labelings; 0 where none does."""
    shared = [
        sum(metrics.normalized_mutual_information(labels, z) for z in known.labelings.T)
        for labels in pair.T
    ]
    return int(np.argmin(shared))
