"""COP-K-means: assign each sample to the nearest centre that no constraint forbids.

Sizes, with padding: C must-link components of rows with d features, and K clusters. The first B
components include all components with cannot-links; a component has cannot-links with at most D
others. There are e cannot-links.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.data.validation import check_random_state
from nrprob.engines.optimise.iterate import empty_trace, iterate, map_restarts
from nrprob.engines.placement import small_steps_on_cpu
from nrprob.engines.programs import jit_by_size
from nrprob.estimator import parameters
from nrprob.estimator.base import Restarts
from nrprob.estimator.calls import at_once
from nrprob.estimator.pairs import PairEstimator
from nrprob.links import Components, cluster_order, feasible_start
from nrprob.statistics.features import ALIKE, StandardisedRows
from nrprob.statistics.groups import group_means
from nrprob.statistics.rows import cluster_means, coarse_bucket, pad_columns

_MAX_ENTRIES = 100_000_000  # entries of the table of neighbours


class Nodes(NamedTuple):
    """C must-link components of rows with d features, in the order of assignment to clusters.

    Components with cannot-links are among the first B, in the order of their first rows. All other
    components and padding follow.

    Attributes
    ----------
    first : (C, d) features of the first row of every component; the nearest centre to this row
        determines the cluster of the component
    mean : (C, d) mean of the rows of every component
    mass : (C,) number of rows of every component, 0 for padding
    within : (C,) sum of squared distances of the rows from the mean of their component
    near : (B, D) for each of the first B components, indices of at most D components with a
        cannot-link to this component
    apart : (B, D) mask of ``near``, False for padding
    """

    first: jax.Array
    mean: jax.Array
    mass: jax.Array
    within: jax.Array
    near: jax.Array
    apart: jax.Array


class Runs(NamedTuple):
    """Results of all restarts; every array has a leading axis of restarts.

    Attributes
    ----------
    labels : (C,) clusters of the must-link components
    objective : sum of squared distances of the rows from their centres
    trace : objective after every iteration
    n_iter : number of iterations
    converged : whether the restart converged
    feasible : whether, in the last iteration, every component had a cluster that no cannot-link
        forbids; if not, the restart has failed
    """

    labels: jax.Array
    objective: jax.Array
    trace: jax.Array
    n_iter: jax.Array
    converged: jax.Array
    feasible: jax.Array


def lay_out_components(data: StandardisedRows, parts: Components) -> tuple[Nodes, np.ndarray]:
    """Arrange must-link components in padded arrays, in the order of assignment to clusters.

    Returns
    -------
    nodes : the components as padded arrays
    index : (n_nodes,) position in these arrays of every component of ``parts``
    """
    x, node, n = data.x, parts.node, parts.n_nodes
    ends, start = np.unique(parts.edges), np.unique(node, return_index=True)[1]
    index = np.empty(n, np.int64)
    index[np.append(ends, np.setdiff1d(np.arange(n), ends))] = np.arange(n)

    def place_components(values: np.ndarray) -> np.ndarray:
        result = np.zeros((coarse_bucket(n, 64), *values.shape[1:]), data.dtype)
        result[index] = values
        return result

    mean = group_means(x, node, n)
    within = np.bincount(node, ((x - mean[node]) ** 2).sum(1), minlength=n)
    values = pad_columns(x[start]), pad_columns(mean), np.bincount(node, minlength=n), within
    near, apart = neighbour_table(index[parts.edges], n)
    first, mean, mass, within = map(place_components, values)
    return Nodes(first, mean, mass, within, near, apart), index


def neighbour_table(edges: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours of the first B of ``n`` components across cannot-links.

    ``edges`` (e, 2) are the pairs of cannot-linked components.

    Returns
    -------
    near : (B, D) indices of the neighbours of every component, padded to D
    apart : (B, D) mask of ``near``, False for padding
    """
    b = min(coarse_bucket(int(edges.max(initial=-1)) + 1, 16), coarse_bucket(n, 64))
    source, target = np.concatenate([edges, edges[:, ::-1]]).T
    order = np.argsort(source, kind="stable")
    source, target = source[order], target[order]
    degree = np.bincount(source, minlength=b)
    width = coarse_bucket(int(degree.max()), 8)
    if b * width > _MAX_ENTRIES:
        raise ValueError(
            f"constraints are too dense; got {len(edges)} pairs among {b} components, of which one "
            f"has {degree.max()}; use fewer constraints or rows"
        )
    column = np.arange(source.size) - (np.cumsum(degree) - degree)[source]
    near, apart = np.zeros((b, width), np.int32), np.zeros((b, width), bool)
    near[source, column] = target
    apart[source, column] = True
    return near, apart


def assign_in_order(
    cost: jax.Array, near: jax.Array, apart: jax.Array, n_clusters: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Assign components in order to the nearest cluster without a cannot-linked component.

    Parameters
    ----------
    cost : (B, K) squared distances of the components from the centres
    near, apart : (B, D) indices of the cannot-linked components of every component, and mask of
        these indices, as in `Nodes`
    n_clusters : number of clusters, without padding

    Returns
    -------
    z : (B,) clusters of the components
    ok : whether every component had a cluster without a cannot-linked component
    """
    b, k = cost.shape
    active = jnp.arange(k) < n_clusters

    def assign_node(v, state):
        z, taken, ok = state
        open_ = (taken[v] == 0) & active
        c = jnp.where(open_, cost[v], jnp.inf).argmin().astype(z.dtype)
        taken = taken.at[near[v], c].add(apart[v].astype(taken.dtype))
        return z.at[v].set(c), taken, ok & open_.any()

    state = jnp.zeros(b, jnp.int32), jnp.zeros((b, k), jnp.int32), jnp.array(True)
    z, _, ok = jax.lax.fori_loop(0, b, assign_node, state)
    return z, ok


@jit_by_size("together", "n_trace")
def _run_cop_kmeans(
    nodes: Nodes,
    starts: jax.Array,
    n_clusters: jax.Array,
    max_iter: jax.Array,
    *,
    together: int,
    n_trace: int,
) -> Runs:
    """Run all restarts of COP-K-means.

    Parameters
    ----------
    nodes : C must-link components, in the order of assignment
    starts : (restarts, K, d) initial centres, including padding
    n_clusters : number of clusters, without padding
    max_iter : maximum number of iterations
    together : number of restarts that run in parallel
    n_trace : number of entries of the trace
    """
    b, k = nodes.near.shape[0], starts.shape[1]
    active = jnp.arange(k) < n_clusters

    def assignment_step(state, _):
        z, centres, *_ = state
        inner = jnp.matmul(nodes.first, centres.T, precision=jax.lax.Precision.HIGHEST)
        cost = (nodes.first**2).sum(1)[:, None] - 2 * inner + (centres**2).sum(1)
        cost = jnp.where(active, cost, jnp.inf)
        inside, ok = assign_in_order(cost[:b], nodes.near, nodes.apart, n_clusters)
        new = cost.argmin(1).astype(jnp.int32).at[:b].set(inside)
        # Empty clusters retain their centres.
        size = jax.ops.segment_sum(nodes.mass, new, k)
        total = jax.ops.segment_sum(nodes.mass[:, None] * nodes.mean, new, k)
        means = total / jnp.where(size > 0, size, 1)[:, None]
        centres = jnp.where(size[:, None] > 0, means, centres)
        square = nodes.within + nodes.mass * ((nodes.mean - centres[new]) ** 2).sum(1)
        same, value = (new == z).all(), square.sum()
        return (new, centres, value, same, ok), same | ~ok, value

    def run_restart(centres):
        z, no = jnp.full(nodes.mass.size, -1, jnp.int32), jnp.array(False)
        start = z, centres, jnp.zeros((), centres.dtype), no, no
        result = iterate(
            assignment_step, start, max_iter, trace=empty_trace(n_trace, centres.dtype)
        )
        z, _, value, same, ok = result.state
        return Runs(z, value, result.trace, result.n_iter, same, ok)

    return map_restarts(run_restart, (starts,), together)


@parameters.constructor
class COPKMeans(PairEstimator):
    r"""k-means with hard must-links and cannot-links (COP-K-means).

    The algorithm approximately minimises over cluster labels z and centres m, subject to all links,

    .. math:: \sum_i \|x_i - m_{z_i}\|^2 \quad \text{such that} \quad
        z_i = z_j \;\forall (i, j) \in M, \quad z_i \ne z_j \;\forall (i, j) \in C

    where M are the must-links and C the cannot-links. Rows are assigned in the order of ``X``. Each
    row joins the nearest centre whose cluster no earlier row excludes by a link. As published, a
    restart fails if no cluster is left for a row, even if a clustering exists that satisfies all
    links. `MDLConstrained` finds such a clustering in most cases, because it orders rows by their
    cannot-links and searches for a feasible clustering.

    Parameters
    ----------
    <n_clusters>
    n_init : int, default=10
        Number of restarts, each from randomly chosen rows. The result is the restart with the
        smallest objective among the restarts that did not fail. Raise ``n_init`` if all restarts
        fail. At most 10**6.
    max_iter : int, default=300
        Maximum number of iterations per restart; at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the initial centres.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot form of ``labels_``.
    <n_clusters_>
    objective_ : float
        Sum of squared distances to the centres, in squared units of the features: not in nats.
    objective_trace_ : ndarray of shape (n_iter_,)
        Objective after every iteration of the best restart. The objective may increase, since rows
        are assigned one after another.
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
            Partial labels, -1 where unknown. The labels imply links between all labelled rows.
            Cluster i has the i-th of the sorted labels; further clusters have no class.
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
        # Components are numbered in the order of their first rows: the order of assignment.
        nodes, index = lay_out_components(data, parts)
        random = check_random_state(self.random_state)
        chosen = np.stack([random.choice(n, k, replace=False) for _ in range(self.n_init)])
        starts = np.zeros((self.n_init, coarse_bucket(k, 4), nodes.first.shape[1]), data.dtype)
        starts[:, :k] = pad_columns(data.x)[chosen]
        # As many restarts run in parallel as fit into memory; traces of similar lengths share a
        # program.
        entries = nodes.mass.size * 4 + nodes.near.size * 6
        with small_steps_on_cpu():
            runs = jax.device_get(
                _run_cop_kmeans(
                    nodes, starts, np.asarray(k, np.int32), np.asarray(self.max_iter, np.int32),
                    together=at_once(self.n_init, entries * starts.shape[1] * starts.itemsize),
                    n_trace=64 * math.ceil(self.max_iter / 64),
                )
            )  # fmt: skip
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
        """Raise ValueError if all restarts failed.

        The message states whether a clustering exists that satisfies all links. If none exists, the
        error is InfeasibleConstraints.
        """
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

        where x_i are the n rows, and m_c the centres.

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
