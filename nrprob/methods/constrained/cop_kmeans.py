"""COP-K-means: assign each sample to the nearest centre that no pair forbids."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.data.validation import check_random_state
from nrprob.engines.optimise.iterate import empty_trace, iterate, map_restarts
from nrprob.engines.programs import jit_by_size
from nrprob.estimator import parameters
from nrprob.estimator.base import Restarts
from nrprob.links import Components, cluster_order, feasible_start
from nrprob.methods.constrained.base import ConstrainedSearch
from nrprob.methods.constrained.codes import APART, Nodes, squares, statistics
from nrprob.methods.constrained.problem import lay_out, place
from nrprob.methods.constrained.search import SearchResult, assign_in_order
from nrprob.statistics.features import ALIKE, StandardisedRows
from nrprob.statistics.rows import cluster_means, coarse_bucket, pad_columns


@jit_by_size("together", "n_trace")
def _search(
    nodes: Nodes,
    first: jax.Array,
    starts: jax.Array,
    n_clusters: jax.Array,
    max_iter: jax.Array,
    *,
    together: int,
    n_trace: int,
) -> SearchResult:
    """Run restarts from the first centres ``starts`` (restarts, K, d), ``together`` at a time.

    The components come in the order of their first rows (C, d), which choose for all.
    """
    b, k = nodes.near.shape[0], starts.shape[1]
    active = jnp.arange(k) < n_clusters
    order = jnp.arange(b, dtype=jnp.int32)

    def step(state, _):
        z, centres, *_ = state
        cost = jnp.where(active, squares(first, centres), jnp.inf)
        inside, ok = assign_in_order(order, cost[:b], nodes.near, nodes.kind == APART, n_clusters)
        new = cost.argmin(1).astype(jnp.int32).at[:b].set(inside)
        _, centres, scatter = statistics(nodes, new, k, centres)
        same, value = (new == z).all(), scatter.sum()
        return (new, centres, value, same, ok), same | ~ok, value

    def one(centres):
        z, no = jnp.full(nodes.mass.size, -1, jnp.int32), jnp.array(False)
        start = z, centres, jnp.zeros((), centres.dtype), no, no
        result = iterate(step, start, max_iter, trace=empty_trace(n_trace, centres.dtype))
        z, _, value, same, ok = result.state
        return SearchResult(z, value, result.trace, result.n_iter, same, ok)

    return map_restarts(one, (starts,), together)


@parameters.constructor
class COPKMeans(ConstrainedSearch):
    """COP-K-means: k-means that never violates a pair, and gives up where it would have to.

    Rows are visited in their order. Each goes to the nearest centre whose cluster no earlier row
    forbids, be it by a must-link to another cluster or by a cannot-link to this one. Centres then
    move to the means, and so on until nothing changes. A restart in which some row has no cluster
    left has failed, as published, even where a clustering exists that keeps all pairs:
    `MDLConstrained`, which visits rows in another order, mostly finds it.

    Parameters
    ----------
    <n_clusters>
    n_init : int, default=10
        Number of restarts, from random rows, at most 10**6; the best that did not fail is kept.
    max_iter : int, default=300
        Most iterations of a restart; at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the starts.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot.
    <n_clusters_>
    objective_ : float
        Sum of squared distances to the centres: not in nats.
    objective_trace_ : ndarray
        The same after every iteration of the best restart. It may rise, since rows do not choose
        their clusters together.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the clusters; that of all rows for one without rows.
    n_failed_ : int
        Number of restarts that failed.
    n_iter_ : int
        Iterations of the best restart.
    <converged_>
    restarts_ : xarray.Dataset
        Labels and objectives of the restarts that did not fail.
    <n_features_in_>
    <classes_>

    Notes
    -----
    Pairs are closed under entailment first: rows linked through others are linked, and are apart
    from all that one of them is apart from. So only the first row of linked ones chooses, by its
    own distance, and only there can it fail.

    References
    ----------
    Wagstaff, Cardie, Rogers and Schroedl (2001), Table 1, with restarts, which are not published.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import COPKMeans
    >>> X = np.array([[0.0], [0.1], [1.0], [1.1]])
    >>> labels = COPKMeans(2, random_state=0).fit(X, cannot_link=[[0, 1]]).labels_
    >>> bool(labels[0] == labels[1])
    False
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 300
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def fit(self, X, y=None, *, must_link=None, cannot_link=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Float32 input is computed in float32, all else in float64.
        y : array-like of shape (n_samples,), optional
            Wanted labels, -1 where unknown: as pairs, see `MDLConstrained`.
        must_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that share a cluster. Repeats, and a row with itself, say nothing.
        cannot_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that do not. Repeats say nothing.

        Returns
        -------
        self

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if the pairs contradict each other, or if all restarts failed and no
            clustering keeps all pairs; the message says which are in conflict.
        ValueError
            If all restarts failed; or if pairs are no pairs of rows.
        TypeError
            If pairs are not integers.
        """
        return self._fit(X, y, must_link=must_link, cannot_link=cannot_link)

    def compute(self, task):
        """Run all restarts; see `Clusterer.compute`."""
        data, parts = StandardisedRows.from_rows(task.X), Components(len(task.X), *task.kept())
        k, n = self.n_clusters, len(data.x)
        # Components are numbered by their first rows, which is the order of visiting.
        nodes, at = lay_out(data, parts, np.arange(parts.n_nodes))
        first = pad_columns(data.x[np.unique(parts.node, return_index=True)[1]])
        random = check_random_state(self.random_state)
        chosen = np.stack([random.choice(n, k, replace=False) for _ in range(self.n_init)])
        starts = np.zeros((self.n_init, coarse_bucket(k, 4), first.shape[1]), data.dtype)
        starts[:, :k] = pad_columns(data.x)[chosen]
        numbers = np.asarray(k, np.int32), np.asarray(self.max_iter, np.int32)
        first = place(first, at, data.dtype)
        runs = self._run(partial(_search, nodes, first, starts, *numbers), nodes, 4, self.max_iter)
        if not runs.feasible.any():
            self._refuse(parts)
        return [(data, runs._replace(labels=runs.labels[:, at][:, parts.node]))]

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        data, runs = result[0]
        k, done = self.n_clusters, np.flatnonzero(runs.feasible)
        self.n_failed_ = self.n_init - done.size
        objectives = runs.objective[done].astype(float) * data.scale**2
        if self.verbose:
            print(f"restarts {done.size}/{self.n_init}: objective {objectives.min():.6g}")
        best = done[objectives.argmin()]
        labels = runs.labels[done].astype(np.int64)
        order = cluster_order(labels[objectives.argmin()], task.fixed, k)
        labels = np.argsort(order)[labels]
        membership = np.eye(k)[labels[objectives.argmin()]]
        self._store(
            Restarts(labels, objectives, runs.converged[done]),
            membership=membership,
            trace=runs.trace[best][: runs.n_iter[best]].astype(float) * data.scale**2,
            n_iter=runs.n_iter[best],
            nothing_left=ALIKE if data.all_equal else "",
        )
        means = cluster_means(membership.T @ data.x, membership.sum(0))
        self.cluster_centers_ = means * data.scale + data.centre
        return self

    def _refuse(self, parts: Components) -> None:
        """Say why all restarts failed: there is nothing to find, or they did not find it."""
        start, q = feasible_start(parts, self.n_clusters)
        what = "may or may not" if start is None else "does"
        raise ValueError(
            f"COP-K-means met a row with no cluster left in all restarts, though a clustering that "
            f"keeps all pairs {what} exist; got n_clusters={self.n_clusters} and "
            f"n_init={self.n_init} for cannot-links of degeneracy {q}; raise n_init or n_clusters, "
            "or use MDLConstrained"
        )

    # New rows

    def score(self, X, y=None):
        r"""Minus the mean squared distance of new rows to the nearest centroid.

        .. math:: -\frac{1}{n} \sum_i \min_c \|x_i - m_c\|^2

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        float
            In squared units of the features; higher is better.
        """
        return float(self._log_membership(X, None).max(1).mean())
