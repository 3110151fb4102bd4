"""k-means with partial labels as additional features."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.hash_rng import fold_in
from nrprob.engines.optimise.iterate import IterationResult, empty_trace, iterate, map_restarts
from nrprob.engines.optimise.solve import Solution, SolverCall
from nrprob.engines.programs import jit_by_size
from nrprob.estimator import parameters
from nrprob.estimator.base import row_means
from nrprob.estimator.calls import padded_n_clusters, restart_calls
from nrprob.estimator.dense import PlainClusterer
from nrprob.estimator.linear import Task
from nrprob.methods.cec.centres import (
    CAPACITY,
    best_solution,
    block_table,
    class_codes,
    first_centres,
    lay_out,
    one_hot,
    squared_distances,
    store_result,
    weighted_means,
)
from nrprob.statistics.groups import cross_table
from nrprob.statistics.rows import Rows, coarse_bucket


class KMeansParameters(NamedTuple):
    """Settings of `solve_partition_kmeans`.

    JAX traces all settings, so that new values need no compilation.

    Attributes
    ----------
    n_clusters : number of clusters, without padding
    strength : weight of the labels, in squared units of the rows
    max_iter : maximum number of iterations
    """

    n_clusters: Any
    strength: Any
    max_iter: Any


@jit_by_size("n_clusters", "n_classes", "n_init")
def solve_partition_kmeans(
    rows: Rows,
    settings: KMeansParameters,
    seed: jax.Array,
    fixed: jax.Array,
    *,
    n_clusters: int,
    n_classes: int,
    n_init: int,
) -> Solution:
    """Run ``n_init`` restarts of k-means with partial labels in parallel, and keep the best.

    ``fixed`` (1, N) are the classes of the N rows of the single block, -1 where unknown. The first
    assignment ignores the classes, because initial centres have no label shares. ``n_clusters`` and
    ``n_classes`` include padding.
    """
    x, mass = block_table(rows)
    code = fixed[0]
    labelled = jnp.where(code >= 0, mass, 0)

    def update_centres(x, labels, centres):
        centres = weighted_means(x, one_hot(labels, mass.astype(x.dtype), n_clusters), centres)
        count = jnp.zeros((n_clusters, n_classes), x.dtype).at[labels, code].add(labelled)
        return centres, count / jnp.maximum(count.sum(1, keepdims=True), 1)

    def row_costs(x, centres, shares):
        # Squared distance of a one-hot label from the label shares of each cluster.
        mismatch = 1 - 2 * shares[:, code].T + (shares**2).sum(1)
        penalty = jnp.where(labelled[:, None] > 0, settings.strength.astype(x.dtype) * mismatch, 0)
        return squared_distances(x, centres) + penalty

    def lloyd_step(state, _):
        # Update centres and label shares, then move rows to the cheapest cluster.
        labels, centres = state
        centres, shares = update_centres(x, labels, centres)
        cost = row_costs(x, centres, shares)
        current = jnp.take_along_axis(cost, labels[:, None], 1)[:, 0]
        new = jnp.where(current <= cost.min(1), labels, cost.argmin(1))  # ties do not move
        value = (mass * jnp.minimum(current, cost.min(1))).sum()
        return (new, centres), (new == labels).all(), value

    def run_restart(seed):
        exist = jnp.arange(n_clusters) < settings.n_clusters
        centres = first_centres(x, mass, jnp.full_like(code, -1), n_clusters, seed, exist)
        start = squared_distances(x, centres).argmin(1), centres
        return iterate(lloyd_step, start, settings.max_iter, trace=empty_trace(CAPACITY, x.dtype))

    def exact_objective(labels, centres):
        wide = x.astype(jnp.float64)
        centres, shares = update_centres(wide, labels, centres.astype(wide.dtype))
        cost = jnp.take_along_axis(row_costs(wide, centres, shares), labels[:, None], 1)[:, 0]
        return (mass * cost).sum()

    result: IterationResult = map_restarts(
        run_restart, (fold_in(seed, jnp.arange(n_init)),), n_init
    )
    labels, centres = result.state
    objective = jax.vmap(exact_objective)(labels, centres)
    return best_solution(
        rows, result, labels, objective, lambda best: one_hot(labels[best], mass, n_clusters)
    )


def kmeans_calls(model: Any, task: Task, strength: float) -> list[SolverCall]:
    """Calls of the compiled program `solve_partition_kmeans` for the restarts of an estimator.

    Parameters
    ----------
    model : estimator with the parameters of k-means
    task : rows in a single block, and their classes
    strength : weight of the labels, in squared units of the standardised rows
    """
    fixed = class_codes(task.fixed, len(task.X))
    count, most = (np.asarray(value, np.int32) for value in (model.n_clusters, model.max_iter))
    settings = KMeansParameters(count, np.asarray(strength, task.x.dtype), most)
    k = padded_n_clusters(task.rows, task.layout, model.n_clusters)
    return restart_calls(
        solve_partition_kmeans,
        {"n_clusters": k, "n_classes": coarse_bucket(fixed.max() + 1, 4)},
        task.rows, task.layout, fixed, [settings],
        n_init=model.n_init, random_state=model.random_state,
        n_elements=task.rows.mass.size * (k + 3) * 4,
    )  # fmt: skip


@parameters.constructor
class PartitionKMeans(PlainClusterer):
    r"""k-means with partial labels as additional features.

    The fit minimises over cluster labels z, centres :math:`\mu` and label shares t

    .. math:: \sum_i \|x_i - \mu_{z_i}\|^2 + \lambda \sum_{i \in L} \|s_i - t_{z_i}\|^2,
        \qquad \lambda = \text{strength} \cdot \operatorname{tr} \Sigma

    where L are the labelled rows, :math:`s_i` is the one-hot label of row i, and :math:`\Sigma` is
    the covariance of all rows. The weight of labels therefore does not depend on the units. The
    label shares :math:`t_c` are the mean of the one-hot labels in cluster c, or 0 if cluster c has
    no labels. A class may be split over several clusters at no cost, and a cluster may hold several
    classes.

    Parameters
    ----------
    <n_clusters>
    strength : float, default=100.0
        Weight of the labels. The default, from Śmieja and Geiger (2017), allows almost no cluster
        with labels of two classes; lower it if labels may be wrong. 0 is k-means; at most 10**9.
    n_init : int, default=10
        Number of k-means++ restarts; the restart of the smallest objective is kept. At most 10**6.
    max_iter : int, default=300
        Maximum number of iterations per restart; at most 10**6.
    <random_state>
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot form of ``labels_``.
    <n_clusters_>
    <cluster_centers_>
    label_shares_ : ndarray of shape (n_clusters, n_classes)
        Share of each class among the labelled rows of a cluster: t. 0 for clusters without
        labelled rows; no columns if ``y`` has no labels.
    objective_ : float
        The minimised sum, in squared units of the features: not in nats.
    objective_trace_ : ndarray of shape (n_iter_,)
        Objective after every iteration of the best restart; non-increasing.
    n_iter_ : int
        Number of iterations of the best restart.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    classes_ : ndarray of shape (n_classes,)
        Sorted labels in ``y``, if ``y`` is given: the columns of ``label_shares_``. Clusters are
        matched to classes one-to-one and numbered in the order of their classes: cluster i is
        matched to class ``classes_[i]`` if there are at most ``n_clusters`` classes, and further
        clusters have no class.

    See Also
    --------
    SemiSupervisedFCM : Fuzzy c-means with partial labels.
    CECIB : Cross-entropy clustering, whose clusters differ in size and shape.
    COPKMeans : k-means with hard must-links and cannot-links.

    Notes
    -----
    An iteration has two exact steps:

    1. Centres and label shares become means over the rows of each cluster.
    2. Each row moves to the cluster of the smallest squared distance plus label penalty.

    With n rows, m features and k clusters, an iteration costs :math:`O(n m k)`, and a restart
    takes memory for :math:`O(n m k)` numbers. As with k-means, clusters are spherical and of
    similar size: standardise columns of different units beforehand.

    References
    ----------
    H. Liu and Y. Fu (2015), "Clustering with partition level side information", IEEE International
    Conference on Data Mining.

    M. Śmieja and B. C. Geiger (2017), "Semi-supervised cross-entropy clustering with information
    bottleneck constraint", Information Sciences 421. Section 5.1 sets the weight relative to the
    trace.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import PartitionKMeans
    >>> X = np.array([[0.0], [0.4], [0.6], [1.0]])
    >>> PartitionKMeans(2, random_state=0).fit(X, [0, 1, -1, 1]).labels_
    array([0, 1, 1, 1])
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    strength: Annotated[float, parameters.Number(0, 1e9)] = 100.0
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 300
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    _classes_share = True

    def fit(self, X, y=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Continuous features. Float32 input is computed in float32, and all other input in
            float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. There may be more or fewer classes than clusters.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y)

    def prepare(self, X, y, known=None):
        """Check the input and lay it out; see `Clusterer.prepare`."""
        X, fixed = self._check_input(X, y)
        self._features, task = lay_out(X, class_codes(fixed, len(X)))
        trace = float(task.x.astype(np.float64).var(0).sum())
        task.calls = kmeans_calls(self, task, self.strength * trace)
        return task

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        store_result(self, task, result, unit=self._features.scale**2)
        self.cluster_centers_ = row_means(task.X, self.membership_)
        fixed, some = task.fixed, task.fixed >= 0
        count = cross_table(self.labels_[some], fixed[some], (self.n_clusters, fixed.max() + 1))
        self.label_shares_ = count / np.maximum(count.sum(1, keepdims=True), 1)
        return self
