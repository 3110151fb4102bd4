"""Decorrelated k-means: two simultaneous k-means clusterings with orthogonal centres.

Rows are assigned to the nearest *representative* of a cluster. The penalty on inner products moves
the representative away from the mean of the cluster. Sizes with padding: N rows of P features, K
clusters in each clustering.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import cdist

from nrprob.engines.hash_rng import fold_in, hashed_uniform
from nrprob.engines.optimise.iterate import empty_trace, iterate, map_restarts
from nrprob.engines.programs import jit_by_size
from nrprob.estimator import parameters
from nrprob.methods.alternatives.simultaneous import (
    HIGHEST,
    TRACE,
    PaddedRows,
    Run,
    SimultaneousClusterer,
    SimultaneousTask,
    keep_best_trace,
    solve_ridge,
)

_RESEED_STEPS = 20  # iterations in which empty clusters are re-initialised


class ClusterMeans(NamedTuple):
    """Sizes and means of the clusters of two clusterings.

    Attributes
    ----------
    size : (2, K) numbers of rows
    mean : (2, K, P) means; 0 for empty clusters
    """

    size: jax.Array
    mean: jax.Array


def cluster_means(padded: PaddedRows, labels: jax.Array) -> ClusterMeans:
    """Compute sizes and means of all clusters, for the labels (2, N) of the two clusterings."""
    hit = labels[..., None] == jnp.arange(len(padded.active))
    w = jnp.where(hit, padded.mass[:, None], 0)
    size = w.sum(1)
    sums = jnp.einsum("vnk,np->vkp", w, padded.x, precision=HIGHEST)
    return ClusterMeans(size, sums / jnp.maximum(size, 1)[..., None])


def update_representatives(clusters: ClusterMeans, lam: jax.Array) -> jax.Array:
    """Representatives (2, K, P) that minimise the objective for fixed labels.

    Every representative solves a ridge regression. ``clusters`` are the sizes and means
    for the labels, and ``lam`` is the penalty weight.
    """

    def solve_side(size, mean, other):
        full = jnp.maximum(size, 1)
        return solve_ridge(full, full[:, None] * mean, other, lam)

    # One batched LAPACK call: two concurrent calls can deadlock.
    return jax.vmap(solve_side)(clusters.size, clusters.mean, clusters.mean[::-1])


def penalised_objective(
    padded: PaddedRows, clusters: ClusterMeans, centres: jax.Array, lam: jax.Array
) -> jax.Array:
    """Objective: squared distances of rows from their representatives, plus the penalty.

    ``clusters`` are the sizes and means of the clusters, ``centres`` (2, K, P) the representatives,
    and ``lam`` is the penalty weight. The sum of squared distances includes both clusterings.
    """
    clusters, centres = jax.tree.map(lambda a: a.astype(jnp.float64), (clusters, centres))
    total = 2 * (padded.mass * (padded.x**2).sum(1).astype(jnp.float64)).sum()
    inner = (clusters.mean * centres).sum(-1)
    squares = total + (clusters.size * ((centres**2).sum(-1) - 2 * inner)).sum()
    products = jnp.einsum("vip,vjp->vij", centres, clusters.mean[::-1], precision=HIGHEST)
    return squares + lam * (products**2).sum()


@jit_by_size("together")
def _solve_restarts(
    padded: PaddedRows,
    starts: jax.Array,
    seeds: jax.Array,
    lam: jax.Array,
    max_iter: jax.Array,
    *,
    together: int,
) -> Run:
    """Run all restarts of DecKMeans, ``together`` of them in parallel.

    Parameters
    ----------
    padded : the rows
    starts : (restarts, 2, K, P) initial representatives
    seeds : (restarts,) random seeds, for the re-initialisation of empty clusters
    lam : penalty weight
    max_iter : maximum number of iterations
    together : number of restarts that run in parallel
    """
    n = padded.mass.sum()
    nearest_centre = jax.vmap(padded.nearest_centre)

    def run_restart(start, seed):
        def step(state, count):
            labels, best = state
            clusters = cluster_means(padded, labels)
            centres = update_representatives(clusters, lam)
            value = penalised_objective(padded, clusters, centres, lam)
            occupied = clusters.size > 0
            n_occupied = occupied.sum()
            # A pair with an empty cluster avoids a part of the penalty.
            better = (n_occupied > best[0]) | ((n_occupied == best[0]) & (value < best[1]))
            new = n_occupied, value, labels, centres
            best = jax.tree.map(lambda new, old: jnp.where(better, new, old), new, best)
            # Move empty clusters to random rows, in the first iterations only: ties would cycle.
            draws = hashed_uniform(fold_in(seed, count), occupied.shape, padded.x.dtype)
            candidates = padded.x[(draws * n).astype(int)]
            candidates = jnp.where(occupied[..., None], centres, candidates)
            new_labels = nearest_centre(candidates, occupied | (count < _RESEED_STEPS))
            return (new_labels, best), (new_labels == labels).all(), value

        labels = nearest_centre(start, jnp.ones(start.shape[:2], bool))
        worst = jnp.zeros((), int), jnp.asarray(jnp.inf, jnp.float64), labels, start
        result = iterate(step, (labels, worst), max_iter, trace=empty_trace(TRACE, jnp.float64))
        n_occupied, value, labels, centres = result.state[1]
        return n_occupied, Run(labels, value, result.done, result.n_iter, result.trace, centres)

    n_occupied, runs = map_restarts(run_restart, (starts, seeds), together)
    objective = jnp.where(n_occupied < n_occupied.max(), jnp.inf, runs.objective)
    return keep_best_trace(runs._replace(objective=objective))


@parameters.constructor
class DecKMeans(SimultaneousClusterer):
    r"""Decorrelated k-means: two k-means clusterings with orthogonal centres.

    DecKMeans fits two clusterings :math:`C` and :math:`D` to the same rows, after the mean of all
    rows is subtracted. DecKMeans minimises

    .. math::
        \sum_i \sum_{x \in C_i} |x - \mu_i|^2 + \sum_j \sum_{x \in D_j} |x - \nu_j|^2 +
        \lambda \sum_{ij} \left[ (b_j' \mu_i)^2 + (a_i' \nu_j)^2 \right],

    where :math:`a_i` and :math:`b_j` are the cluster means, :math:`\mu_i` and :math:`\nu_j` are the
    representatives that rows are assigned to, and :math:`\lambda` is the penalty weight.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters of each of the two clusterings.
    lam : float, default=1.0
        Penalty weight, in units of the number of rows divided by the mean square of the rows. Raise
        it if the two clusterings are similar. With 0, both are k-means clusterings, which may
        coincide. From 0 to 10**6.
    n_init : int, default=20
        Number of restarts from random rows; the solution with the best objective is kept. At most
        10**6.
    max_iter : int, default=100
        Maximum number of iterations of a restart; at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the initial values.
    <verbose>

    Attributes
    ----------
    alternatives_ : ndarray of shape (n_samples, 2)
        Cluster of every row in both clusterings.
    labels_ : ndarray of shape (n_samples,)
        The clustering with the smaller normalised mutual information with the known labels, summed
        over labelings; the first clustering without ``known``.
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot form of ``labels_``.
    <n_clusters_>
    objective_ : float
        Penalised sum of squares, in squared units of the features.
    objective_trace_ : ndarray of shape (n_iter,)
        Objective of the best restart after each iteration, with at most 512 entries; the last entry
        is the last iteration. The objective may increase. ``objective_`` is the minimum over the
        iterations with the most non-empty clusters.
    representatives_ : ndarray of shape (2, n_clusters, n_features)
        :math:`\mu` and :math:`\nu`, relative to the mean of all rows; 0 for an empty cluster.
    <cluster_centers_>
    n_iter_ : int
        Iterations of the best restart.
    converged_ : bool
        Whether the labels of the best restart stopped changing.
    restarts_ : xarray.Dataset
        Labels, ``alternatives``, objective and convergence of all restarts.
    <n_features_in_>
    <feature_names_in_>

    See Also
    --------
    ConvEM : The probabilistic variant, in which the centres add up.
    CAMI : Two Gaussian mixtures with a penalty on their mutual information.

    Notes
    -----
    The algorithm, for every restart:

    1. Initialise the representatives at random rows.
    2. Assign every row to the nearest representative of each clustering.
    3. Update the representatives,
       :math:`\mu_i = (n_i I + \lambda \sum_j b_j b_j')^{-1} n_i a_i` with :math:`n_i` the size of
       cluster i. The update of :math:`\nu_j` has the roles of the two clusterings exchanged. Repeat
       from step 2.

    Step 2 changes the means in the penalty, so the objective may increase. DecKMeans keeps the best
    pair of clusterings of all iterations. `predict` can therefore assign a training row to another
    cluster than ``labels_``. An iteration takes O(nkp) time and O(nk) memory for n rows, k clusters
    and p features.

    An empty cluster is re-initialised at a random row in the first 20 iterations. A pair with fewer
    non-empty clusters avoids a part of the penalty, so it ranks behind all others; its objective in
    ``restarts_`` is infinite.

    Known labels only select one of the two clusterings. The objective depends on the units of the
    features, so standardise features of different scales. Two clusterings of one feature cannot be
    decorrelated.

    References
    ----------
    Jain, P., Meka, R. and Dhillon, I. S. (2008), "Simultaneous unsupervised learning of disparate
    clusterings", SIAM International Conference on Data Mining, 858-869,
    doi:10.1137/1.9781611972788.77.

    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", ACM SIGKDD, 573-582,
    doi:10.1145/1835804.1835878. This paper describes the variant that DecKMeans implements.

    The unit of ``lam`` is specific to this package.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import DecKMeans, metrics
    >>> rng = np.random.default_rng(0)
    >>> known, target = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * known, 6 * target], 1) + rng.normal(size=(100, 2))
    >>> model = DecKMeans(2, random_state=0).fit(X, known=known)
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, target):.2f}")
    1.00
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    lam: Annotated[float, parameters.Number(0, 1e6)] = 1.0
    n_init: parameters.Count = 20
    max_iter: parameters.Count = 100
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def _run_restarts(self, task: SimultaneousTask, together: int) -> Run:
        starts = task.draw_starts(self.n_init, self.n_clusters)
        seeds = task.random.randint(2**31 - 1, size=self.n_init).astype(np.uint32)
        lam = np.asarray(self.lam * len(task.X), task.padded.x.dtype)
        limit = np.asarray(self.max_iter, np.int32)
        return _solve_restarts(task.padded, starts, seeds, lam, limit, together=together)

    def _unscaled_objective(self, objective: np.ndarray, task: SimultaneousTask) -> np.ndarray:
        return objective * task.data.scale**2

    def _store_estimates(self, task: SimultaneousTask, fit: Any) -> np.ndarray:
        m = task.X.shape[1]
        centres = fit[:, : self.n_clusters, :m].astype(np.float64)
        self._centres = centres
        self.representatives_ = centres * task.data.scale
        return np.moveaxis(np.eye(self.n_clusters)[self.alternatives_], 1, 0)

    def _log_memberships(self, x: np.ndarray) -> np.ndarray:
        return np.stack([-cdist(x, centres, "sqeuclidean") for centres in self._centres])
