"""Dec-kmeans: two k-means clusterings at once with orthogonal centres."""

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
    PairClusterer,
    PairTask,
    Plane,
    Run,
    best_of,
    ridge,
)

_RETURNS = 20  # steps in which clusters without rows look for some


class Statistics(NamedTuple):
    """Of two clusterings.

    Attributes
    ----------
    size : (2, K) numbers of rows
    mean : (2, K, P) means of the clusters; 0 where there are no rows
    """

    size: jax.Array
    mean: jax.Array


def statistics(plane: Plane, labels: jax.Array) -> Statistics:
    """Sizes and means of the clusters of labels (2, N)."""
    hit = labels[..., None] == jnp.arange(len(plane.active))
    w = jnp.where(hit, plane.mass[:, None], 0)
    size = w.sum(1)
    sums = jnp.einsum("vnk,np->vkp", w, plane.x, precision=HIGHEST)
    return Statistics(size, sums / jnp.maximum(size, 1)[..., None])


def representatives(of: Statistics, lam: jax.Array) -> jax.Array:
    """Representatives (2, K, P) that are best for two clusterings: exactly, as they do not meet."""

    def one(size, mean, other):
        full = jnp.maximum(size, 1)
        return ridge(full, full[:, None] * mean, other, lam)

    # In one call of LAPACK: two at a time could wait for each other.
    return jax.vmap(one)(of.size, of.mean, of.mean[::-1])


def objective(plane: Plane, of: Statistics, centres: jax.Array, lam: jax.Array) -> jax.Array:
    """Sums of squares about representatives, and the penalty of those that are not orthogonal."""
    of, centres = jax.tree.map(lambda a: a.astype(jnp.float64), (of, centres))
    total = 2 * (plane.mass * (plane.x**2).sum(1).astype(jnp.float64)).sum()
    inner = (of.mean * centres).sum(-1)
    squares = total + (of.size * ((centres**2).sum(-1) - 2 * inner)).sum()
    products = jnp.einsum("vip,vjp->vij", centres, of.mean[::-1], precision=HIGHEST)
    return squares + lam * (products**2).sum()


@jit_by_size("together")
def _solve(
    plane: Plane,
    starts: jax.Array,
    seeds: jax.Array,
    lam: jax.Array,
    max_iter: jax.Array,
    *,
    together: int,
) -> Run:
    """Run restarts from the first representatives ``starts`` (restarts, 2, K, P)."""
    n = plane.mass.sum()
    nearest = jax.vmap(plane.nearest)

    def one(start, seed):
        def step(state, count):
            labels, best = state
            of = statistics(plane, labels)
            centres = representatives(of, lam)
            value, held = objective(plane, of, centres, lam), (of.size > 0).sum()
            # A pair with a cluster that has just lost its rows escapes a part of the penalty.
            better = (held > best[0]) | ((held == best[0]) & (value < best[1]))
            best = jax.tree.map(
                lambda new, old: jnp.where(better, new, old), (held, value, labels, centres), best
            )
            # What has no rows looks for some at a random one; but rows alike would go to and fro.
            drawn = (hashed_uniform(fold_in(seed, count), of.size.shape, plane.x.dtype) * n).astype(
                int
            )
            seats = jnp.where((of.size > 0)[..., None], centres, plane.x[drawn])
            new = nearest(seats, (of.size > 0) | (count < _RETURNS))
            return (new, best), (new == labels).all(), value

        labels = nearest(start, jnp.ones(start.shape[:2], bool))
        worst = jnp.zeros((), int), jnp.asarray(jnp.inf, jnp.float64), labels, start
        result = iterate(step, (labels, worst), max_iter, trace=empty_trace(TRACE, jnp.float64))
        held, value, labels, centres = result.state[1]
        return held, Run(labels, value, result.done, result.n_iter, result.trace, centres)

    held, runs = map_restarts(one, (starts, seeds), together)
    return best_of(runs._replace(objective=jnp.where(held < held.max(), jnp.inf, runs.objective)))


@parameters.constructor
class DecKMeans(PairClusterer):
    r"""Decorrelated k-means: two k-means clusterings at once, with orthogonal centres.

    Two clusterings :math:`C, D` of the same rows, from their mean, with means :math:`a_i, b_j` and
    representatives :math:`\mu_i, \nu_j`, that minimise

    .. math::
        \sum_i \sum_{x \in C_i} |x - \mu_i|^2 + \sum_j \sum_{x \in D_j} |x - \nu_j|^2 +
        \lambda \sum_{ij} \left[ (b_j' \mu_i)^2 + (a_i' \nu_j)^2 \right]

    In turn, rows go to the nearest representatives, and these to their best places,
    :math:`\mu_i = (n_i I + \lambda \sum_j b_j b_j')^{-1} n_i a_i`, and :math:`\nu_j` likewise. That
    is no descent: rows that move change the means in the penalty. The best pair of clusterings on
    the way is kept.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters of each of the two clusterings.
    lam : float, default=1.0
        Weight :math:`\lambda` of the penalty, in units of the number of rows over their mean
        square, from 0 to 10**6. With 0 the clusterings are two k-means that may be the same.
    n_init : int, default=20
        Number of restarts, from random rows, at most 10**6; the best by objective is kept.
    max_iter : int, default=100
        Most steps of a restart; at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines the starts.
    <verbose>

    Attributes
    ----------
    alternatives_ : ndarray of shape (n_samples, 2)
        Cluster of every row, in both clusterings.
    labels_ : ndarray of shape (n_samples,)
        The clustering of the two that shares less with what is known, by normalised mutual
        information (its sum over several known labelings); the first where nothing is known.
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot form of ``labels_``.
    <n_clusters_>
    objective_ : float
        Sum of squares with penalty, in squared units of the features: not in nats.
    objective_trace_ : ndarray
        The same after every step (of at most 512) of the best restart. It may rise;
        ``objective_`` is the least of it.
    representatives_ : ndarray of shape (2, n_clusters, n_features)
        :math:`\mu` and :math:`\nu`, which count from the mean of all rows; 0 for a cluster without
        rows.
    <cluster_centers_>
    n_iter_ : int
        Steps of the best restart.
    converged_ : bool
        Whether the best restart ended in clusters that no longer changed.
    restarts_ : xarray.Dataset
        Labels, objective and convergence of all restarts; and their ``alternatives``.
    <n_features_in_>
    <feature_names_in_>

    Notes
    -----
    Known labels choose between the two clusterings, and have no part in finding them.

    Rows of the fit need not be nearest to their own representatives in the pair that is kept, so
    `predict` may give some of them another cluster. The search is not scale-free in the features:
    put them on a common scale. Two clusters in each clustering of one feature cannot be
    decorrelated. A cluster that loses all its rows begins again at a random one, in the first 20
    steps. Pairs in which fewer clusters hold rows escape a part of the penalty, and come after all
    others, in the restarts with an infinite objective.

    References
    ----------
    Jain, Meka and Dhillon (2008), "Simultaneous unsupervised learning of disparate clusterings",
    from what Dang and Bailey (2010) say of it. The unit of the weight is this package's own.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import DecKMeans
    >>> rng = np.random.default_rng(0)
    >>> one, other = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * one, 6 * other], 1) + rng.normal(size=(100, 2))
    >>> labels = DecKMeans(2, random_state=0).fit(X, known=one).labels_
    >>> bool(max((labels == other).mean(), (labels != other).mean()) > 0.95)
    True
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    lam: Annotated[float, parameters.Number(0, 1e6)] = 1.0
    n_init: parameters.Count = 20
    max_iter: parameters.Count = 100
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def _search(self, task: PairTask, together: int) -> Run:
        starts = task.draw(self.n_init, self.n_clusters)
        seeds = task.random.randint(2**31 - 1, size=self.n_init).astype(np.uint32)
        lam = np.asarray(self.lam * len(task.X), task.plane.x.dtype)
        limit = np.asarray(self.max_iter, np.int32)
        return _solve(task.plane, starts, seeds, lam, limit, together=together)

    def _value(self, objective: np.ndarray, task: PairTask) -> np.ndarray:
        return objective * task.data.scale**2

    def _keep(self, task: PairTask, fit: Any) -> np.ndarray:
        m = task.X.shape[1]
        centres = fit[:, : self.n_clusters, :m].astype(np.float64)
        self._centres = centres
        self.representatives_ = centres * task.data.scale
        return np.moveaxis(np.eye(self.n_clusters)[self.alternatives_], 1, 0)

    def _log_memberships(self, x: np.ndarray) -> np.ndarray:
        return np.stack([-cdist(x, centres, "sqeuclidean") for centres in self._centres])
