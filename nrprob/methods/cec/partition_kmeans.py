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
from nrprob.estimator.calls import padded, restart_calls
from nrprob.estimator.dense import PlainClusterer
from nrprob.estimator.linear import Task
from nrprob.methods.cec.centres import (
    CAPACITY,
    best_of,
    codes,
    first_centres,
    keep,
    lay_out,
    one_hot,
    squares,
    table,
    weighted_means,
)
from nrprob.statistics.groups import cross_table
from nrprob.statistics.rows import Rows, coarse


class Numbers(NamedTuple):
    """Numbers that `solve_partition_kmeans` reads.

    Attributes
    ----------
    n_clusters : clusters that exist; others are padding
    strength : weight of the labels, in squared units of the rows
    max_iter : most steps
    """

    n_clusters: Any
    strength: Any
    max_iter: Any


@jit_by_size("n_clusters", "n_classes", "n_init")
def solve_partition_kmeans(
    rows: Rows,
    numbers: Numbers,
    seed: jax.Array,
    fixed: jax.Array,
    *,
    n_clusters: int,
    n_classes: int,
    n_init: int,
) -> Solution:
    """Run ``n_init`` starts side by side and keep the best; ``fixed`` (B, r) are classes, or -1.

    A first step looks at the rows alone, since a start says nothing of labels.
    """
    x, mass = table(rows)
    code = fixed[0]
    told = jnp.where(code >= 0, mass, 0)

    def means(x, labels, centres):
        centres = weighted_means(x, one_hot(labels, mass.astype(x.dtype), n_clusters), centres)
        count = jnp.zeros((n_clusters, n_classes), x.dtype).at[labels, code].add(told)
        return centres, count / jnp.maximum(count.sum(1, keepdims=True), 1)

    def costs(x, centres, shares):
        missed = 1 - 2 * shares[:, code].T + (shares**2).sum(1)
        away = jnp.where(told[:, None] > 0, numbers.strength.astype(x.dtype) * missed, 0)
        return squares(x, centres) + away

    def step(state, _):
        labels, centres = state
        centres, shares = means(x, labels, centres)
        cost = costs(x, centres, shares)
        own = jnp.take_along_axis(cost, labels[:, None], 1)[:, 0]
        new = jnp.where(own <= cost.min(1), labels, cost.argmin(1))  # equals stay
        value = (mass * jnp.minimum(own, cost.min(1))).sum()
        return (new, centres), (new == labels).all(), value

    def run(seed):
        exist = jnp.arange(n_clusters) < numbers.n_clusters
        centres = first_centres(x, mass, jnp.full_like(code, -1), n_clusters, seed, exist)
        start = squares(x, centres).argmin(1), centres
        return iterate(step, start, numbers.max_iter, trace=empty_trace(CAPACITY, x.dtype))

    def value(labels, centres):
        wide = x.astype(jnp.float64)
        centres, shares = means(wide, labels, centres.astype(wide.dtype))
        cost = jnp.take_along_axis(costs(wide, centres, shares), labels[:, None], 1)[:, 0]
        return (mass * cost).sum()

    result: IterationResult = map_restarts(run, (fold_in(seed, jnp.arange(n_init)),), n_init)
    labels, centres = result.state
    objective = jax.vmap(value)(labels, centres)
    return best_of(
        rows, result, labels, objective, lambda best: one_hot(labels[best], mass, n_clusters)
    )


def kmeans_calls(model: Any, task: Task, strength: float) -> list[SolverCall]:
    """Restarts that an estimator asks for, with labels of a weight in squared units of the rows."""
    fixed = codes(task.fixed, len(task.X))
    count, most = (np.asarray(value, np.int32) for value in (model.n_clusters, model.max_iter))
    numbers = Numbers(count, np.asarray(strength, task.x.dtype), most)
    k = padded(task.rows, task.layout, model.n_clusters)
    return restart_calls(
        solve_partition_kmeans,
        {"n_clusters": k, "n_classes": coarse(fixed.max() + 1, 4)},
        task.rows, task.layout, fixed, [numbers],
        n_init=model.n_init, random_state=model.random_state,
        each=task.rows.mass.size * (k + 3) * 4,
    )  # fmt: skip


@parameters.constructor
class PartitionKMeans(PlainClusterer):
    r"""k-means with partition-level side information: labels of some rows count as features.

    With the labels s_i, one-hot, of the labelled rows L, minimises over clusters z, centres c and
    centres t of labels

    .. math:: \sum_i \|x_i - c_{z_i}\|^2 + \lambda \sum_{i \in L} \|s_i - t_{z_i}\|^2,
        \qquad \lambda = \text{strength} \cdot \operatorname{tr} \Sigma

    where Sigma is the covariance of all rows: what labels count does not depend on the units. The
    centre of labels of a cluster is the mean of those that it has, and 0 where it has none. Several
    clusters may share a class, at no price, and several classes a cluster.

    Parameters
    ----------
    <n_clusters>
    strength : float, default=100.0
        Weight of the labels, at most 10**9; 0 is k-means. The default is that of Śmieja and Geiger
        and leaves hardly any cluster that holds labels of two classes.
    n_init : int, default=10
        Number of restarts, by k-means++, at most 10**6; the best by objective is kept.
    max_iter : int, default=300
        Most iterations of a restart; at most 10**6.
    <random_state>
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot.
    <n_clusters_>
    <cluster_centers_>
    label_shares_ : ndarray of shape (n_clusters, n_classes)
        Centres of labels: of the labelled rows of a cluster, the share of each class. 0 where it
        has none; no columns where nothing is labelled.
    objective_ : float
        The minimised sum, in squared units of the features: not in nats.
    objective_trace_ : ndarray
        The same after every iteration of the best restart; it never rises.
    n_iter_ : int
        Iterations of the best restart.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    classes_ : ndarray
        Sorted labels seen in ``y``, if there were any: the columns of ``label_shares_``. Cluster i
        is the one that agrees best with class ``classes_[i]``, and further clusters are free.

    References
    ----------
    Liu and Fu (2015), "Clustering with partition level side information"; the weight relative to
    the trace is that of Śmieja and Geiger (2017), section 5.1.

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
            Float32 input is computed in float32, all else in float64.
        y : array-like of shape (n_samples,), optional
            Labels, -1 where unknown; of as many classes as there are.

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
        X, fixed = self._take_in(X, y)
        self._features, task = lay_out(X, codes(fixed, len(X)))
        trace = float(task.x.astype(np.float64).var(0).sum())
        task.calls = kmeans_calls(self, task, self.strength * trace)
        return task

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        keep(self, task, result, unit=self._features.scale**2)
        self.cluster_centers_ = row_means(task.X, self.membership_)
        fixed, some = task.fixed, task.fixed >= 0
        told = cross_table(self.labels_[some], fixed[some], (self.n_clusters, fixed.max() + 1))
        self.label_shares_ = told / np.maximum(told.sum(1, keepdims=True), 1)
        return self
