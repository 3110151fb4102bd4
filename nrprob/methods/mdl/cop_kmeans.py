"""COP-K-means: assign each sample to the nearest centre that no constraint forbids."""

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
from nrprob.methods.mdl.codes import APART, Nodes, cluster_statistics, squared_distances
from nrprob.methods.mdl.linked_search import ConstrainedSearch
from nrprob.methods.mdl.problem import lay_out, place_components
from nrprob.methods.mdl.search import SearchResult, assign_in_order
from nrprob.statistics.features import ALIKE, StandardisedRows
from nrprob.statistics.rows import cluster_means, coarse_bucket, pad_columns


@jit_by_size("together", "n_trace")
def _run_cop_kmeans(
    nodes: Nodes,
    first: jax.Array,
    starts: jax.Array,
    n_clusters: jax.Array,
    max_iter: jax.Array,
    *,
    together: int,
    n_trace: int,
) -> SearchResult:
    """Run all restarts of COP-K-means.

    Parameters
    ----------
    nodes : C must-link components, in the order of assignment
    first : (C, d) first row of every component; the component joins the cluster nearest to it
    starts : (restarts, K, d) initial centres
    n_clusters : number of clusters, without padding
    max_iter : maximum number of iterations
    together : number of restarts that run in parallel
    n_trace : length of the trace
    """
    b, k = nodes.near.shape[0], starts.shape[1]
    active = jnp.arange(k) < n_clusters
    order = jnp.arange(b, dtype=jnp.int32)

    def assignment_step(state, _):
        z, centres, *_ = state
        cost = jnp.where(active, squared_distances(first, centres), jnp.inf)
        inside, ok = assign_in_order(order, cost[:b], nodes.near, nodes.kind == APART, n_clusters)
        new = cost.argmin(1).astype(jnp.int32).at[:b].set(inside)
        _, centres, scatter = cluster_statistics(nodes, new, k, centres)
        same, value = (new == z).all(), scatter.sum()
        return (new, centres, value, same, ok), same | ~ok, value

    def run_restart(centres):
        z, no = jnp.full(nodes.mass.size, -1, jnp.int32), jnp.array(False)
        start = z, centres, jnp.zeros((), centres.dtype), no, no
        result = iterate(
            assignment_step, start, max_iter, trace=empty_trace(n_trace, centres.dtype)
        )
        z, _, value, same, ok = result.state
        return SearchResult(z, value, result.trace, result.n_iter, same, ok)

    return map_restarts(run_restart, (starts,), together)


@parameters.constructor
class COPKMeans(ConstrainedSearch):
    r"""k-means with hard must-links and cannot-links (COP-K-means).

    The algorithm approximately minimises over cluster labels z and centres m, subject to all links,

    .. math:: \sum_i \|x_i - m_{z_i}\|^2 \quad \text{such that} \quad
        z_i = z_j \;\forall (i, j) \in M, \quad z_i \ne z_j \;\forall (i, j) \in C

    where M are the must-links and C the cannot-links. Rows are assigned in their order. Each row
    joins the nearest centre whose cluster no earlier row excludes by a link. A restart fails if no
    cluster is left for a row, as published, even if a clustering exists that satisfies all links.
    `MDLConstrained` finds such a clustering in most cases, because it varies the order.

    Parameters
    ----------
    <n_clusters>
    n_init : int, default=10
        Number of restarts, each from randomly chosen rows; of the restarts that did not fail, the
        one of the smallest objective is kept. Raise it if all restarts fail. At most 10**6.
    max_iter : int, default=300
        Maximum number of iterations per restart; at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the initial centres.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot.
    <n_clusters_>
    objective_ : float
        Sum of squared distances to the centres, in squared units of the features: not in nats.
    objective_trace_ : ndarray of shape (n_iter_,)
        Objective after every iteration of the best restart. It may increase, since rows are
        assigned one after another.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the clusters; the mean of all rows for an empty cluster.
    n_failed_ : int
        Number of restarts that failed.
    n_iter_ : int
        Number of iterations of the best restart.
    <converged_>
    restarts_ : xarray.Dataset
        Labels and objectives of the restarts that did not fail.
    <n_features_in_>
    <classes_>

    See Also
    --------
    MDLConstrained : Clustering by description length with hard or soft links.
    ConstrainedMixture : Gaussian mixture with hard links.
    SemiSupervisedSpectral : Spectral clustering with soft links.

    Notes
    -----
    Must-links are closed transitively, and a cannot-link of one row holds for its whole must-link
    component. The first row of a component chooses the cluster of the component by its own
    distance. An iteration has two steps:

    1. Assign components, in the order of their first rows, to the nearest centre allowed.
    2. Set centres to the means of the clusters.

    With n rows, m features and k clusters, an iteration costs :math:`O(n m k)`. Memory per restart
    is :math:`O(n k)` values plus the table of cannot-links.

    References
    ----------
    K. Wagstaff, C. Cardie, S. Rogers and S. Schroedl (2001), "Constrained k-means clustering with
    background knowledge", International Conference on Machine Learning, Table 1. Restarts are an
    addition of this package.

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
            Continuous features. Float32 input is computed in float32, and all other input in
            float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. They imply links between all labelled rows. Cluster i
            is the i-th of the sorted labels; further clusters have no class.
        must_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that share a cluster. Duplicates, and pairs of a row with itself, have no
            effect.
        cannot_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows in different clusters. Duplicates have no effect.

        Returns
        -------
        self

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if links contradict each other, or if all restarts failed and no
            clustering satisfies all links; the message lists links in conflict.
        ValueError
            If all restarts failed, or if an index of a pair is out of range.
        TypeError
            If pairs are not integers.
        """
        return self._fit(X, y, must_link=must_link, cannot_link=cannot_link)

    def compute(self, task):
        """Run all restarts; see `Clusterer.compute`."""
        data, parts = (
            StandardisedRows.from_rows(task.X),
            Components(len(task.X), *task.hard_pairs()),
        )
        k, n = self.n_clusters, len(data.x)
        # Component indices follow their first rows, which is the order of assignment.
        nodes, index = lay_out(data, parts, np.arange(parts.n_nodes))
        first = pad_columns(data.x[np.unique(parts.node, return_index=True)[1]])
        random = check_random_state(self.random_state)
        chosen = np.stack([random.choice(n, k, replace=False) for _ in range(self.n_init)])
        starts = np.zeros((self.n_init, coarse_bucket(k, 4), first.shape[1]), data.dtype)
        starts[:, :k] = pad_columns(data.x)[chosen]
        limits = np.asarray(k, np.int32), np.asarray(self.max_iter, np.int32)
        first = place_components(first, index, data.dtype)
        runs = self._run_restarts(
            partial(_run_cop_kmeans, nodes, first, starts, *limits), nodes, k, 4, self.max_iter
        )
        if not runs.feasible.any():
            self._raise_failure(parts)
        return [(data, runs._replace(labels=runs.labels[:, index][:, parts.node]))]

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
        self._store_results(
            Restarts(labels, objectives, runs.converged[done]),
            membership=membership,
            trace=runs.trace[best][: runs.n_iter[best]].astype(float) * data.scale**2,
            n_iter=runs.n_iter[best],
            nothing_left=ALIKE if data.all_equal else "",
        )
        means = cluster_means(membership.T @ data.x, membership.sum(0))
        self.cluster_centers_ = means * data.scale + data.centre
        return self

    def _raise_failure(self, parts: Components) -> None:
        """Raise ValueError, and state whether a clustering exists that satisfies all links."""
        start, q = feasible_start(parts, self.n_clusters)
        existence = "may or may not" if start is None else "does"
        raise ValueError(
            f"COP-K-means met a row with no cluster left in all restarts, though a clustering that "
            f"satisfies all links {existence} exist; got n_clusters={self.n_clusters} and "
            f"n_init={self.n_init} for cannot-links of degeneracy {q}; raise n_init or n_clusters, "
            "or use MDLConstrained"
        )

    # New rows

    def score(self, X, y=None):
        r"""Negative mean squared distance of new rows to the nearest centre.

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
