"""ConvEM: two clusterings at once; each sample is a sum of two centres and noise."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax

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

_FLOOR = 1e-6  # of the rows' mean variance: the least noise
_TINY = 1e-8  # rows of a cluster that holds nothing
_ROUNDING = 16  # units in the last place of the objective that are no change
_dot = partial(jnp.matmul, precision=HIGHEST)


class Sums(NamedTuple):
    """Parameters of rows that are sums of two centres and noise.

    Attributes
    ----------
    log_weights : (2, K) of the clusters of both clusterings; -inf where there is none
    centres : (2, K, P) mu and nu
    noise : variance of every feature
    """

    log_weights: jax.Array
    centres: jax.Array
    noise: jax.Array


class Expected(NamedTuple):
    """What the memberships p_ij of the rows sum to.

    Attributes
    ----------
    size : (K, K) sums over rows
    first, second : (K, P) sums of rows, by the cluster of either clustering
    """

    size: jax.Array
    first: jax.Array
    second: jax.Array


class Numbers(NamedTuple):
    """Numbers that the program reads.

    Attributes
    ----------
    n, d : rows and features, without padding
    lam : weight of the penalty
    tol : gain per row, in nats, of a step that is none
    max_iter : most steps
    """

    n: Any
    d: Any
    lam: Any
    tol: Any
    max_iter: Any


def log_cells(plane: Plane, t: Sums, d: jax.Array) -> jax.Array:
    """Log densities (N, K, K) of rows in every pair of clusters, with the clusters' weights."""
    first, second = t.centres
    inner = _dot(plane.x, first.T)[:, :, None] + _dot(plane.x, second.T)[:, None]
    own = ((first[:, None] + second) ** 2).sum(-1)
    square = jnp.maximum((plane.x**2).sum(1)[:, None, None] - 2 * inner + own, 0)
    log_w = t.log_weights[0][:, None] + t.log_weights[1]
    return log_w - 0.5 * (square / t.noise + d * jnp.log(2 * math.pi * t.noise))


def expect(plane: Plane, t: Sums, h: Numbers) -> tuple[Expected, jax.Array, jax.Array]:
    """E-step: sums over the rows, memberships (2, N, K), and the penalised log likelihood."""
    log_p = log_cells(plane, t, h.d)
    total = jax.nn.logsumexp(log_p, (1, 2))
    p = jnp.exp(log_p - total[:, None, None])
    memberships = jnp.stack([p.sum(2), p.sum(1)])
    mass = plane.mass
    sums = jnp.einsum("vnk,n,np->vkp", memberships, mass, plane.x, precision=HIGHEST)
    size = jnp.einsum("nij,n->ij", p, mass, precision=HIGHEST)
    products = _dot(t.centres[0], t.centres[1].T).astype(jnp.float64)
    likelihood = (mass * total).astype(jnp.float64).sum()
    value = likelihood - 0.5 * h.lam * (products**2).sum()
    return Expected(size, *sums), memberships, value


def maximise(plane: Plane, t: Sums, e: Expected, h: Numbers) -> Sums:
    """M-step: the first centres, then the second, the noise, and the weights."""
    first, second = t.centres
    sizes = e.size.sum(1), e.size.sum(0)

    def centres(size, sums, own, other):
        some = size > _TINY
        new = ridge(jnp.where(some, size, 1), sums, other, h.lam * t.noise)
        return jnp.where(some[:, None], new, own)

    first = centres(sizes[0], e.first - _dot(e.size, second), first, second)
    second = centres(sizes[1], e.second - _dot(e.size.T, first), second, first)
    inner = (first * e.first).sum() + (second * e.second).sum()
    own = (e.size * ((first[:, None] + second) ** 2).sum(-1)).sum()
    square = (plane.mass * (plane.x**2).sum(1)).sum() - 2 * inner + own
    noise = jnp.maximum(square / (h.n * h.d), _FLOOR / h.d)
    return Sums(jnp.log(jnp.stack(sizes) / h.n), jnp.stack([first, second]), noise)


def begin(plane: Plane, rows: jax.Array, d: jax.Array) -> Sums:
    """First parameters, of rows (2, K, P): some are centres, what is left of others the second."""
    first = jnp.where(plane.active[:, None], rows[0], 0)
    apart = ((rows[1][:, None] - first) ** 2).sum(-1)
    nearest = jnp.where(plane.active, apart, jnp.inf).argmin(1)
    second = jnp.where(plane.active[:, None], rows[1] - first[nearest], 0)
    log_w = jnp.where(plane.active, -jnp.log(plane.active.sum().astype(rows.dtype)), -jnp.inf)
    unit = jnp.ones((), rows.dtype)
    t = Sums(jnp.stack([log_w, log_w]), jnp.stack([first, second]), unit)
    square = -2 * log_cells(plane, t, 0 * d).max((1, 2)) + 4 * log_w.max()
    noise = (plane.mass * square).sum() / plane.mass.sum() / d
    return t._replace(noise=jnp.maximum(noise, _FLOOR / d).astype(rows.dtype))


@jit_by_size("together")
def _solve(plane: Plane, starts: jax.Array, h: Numbers, *, together: int) -> Run:
    """Run restarts from rows ``starts`` (restarts, 2, K, P)."""

    def one(rows):
        def step(state, _):
            t, e, old = state
            t = maximise(plane, t, e, h)
            e, _, value = expect(plane, t, h)
            still = _ROUNDING * jnp.finfo(rows.dtype).eps * jnp.abs(value)
            return (t, e, value), value - old <= jnp.maximum(h.tol * h.n, still), -value

        t = begin(plane, rows, h.d)
        e, _, value = expect(plane, t, h)
        result = iterate(step, (t, e, value), h.max_iter, trace=empty_trace(TRACE, jnp.float64))
        t, _, value = result.state
        memberships = expect(plane, t, h)[1]
        labels = memberships.argmax(-1).astype(jnp.int32)
        return Run(labels, -value, result.done, result.n_iter, result.trace, (t, memberships))

    return best_of(map_restarts(one, (starts,), together))


@parameters.constructor
class ConvEM(PairClusterer):
    r"""Convolution EM: two clusterings at once, of rows that are the sum of a centre of each.

    Rows, from their mean, are taken for :math:`x = \mu_i + \nu_j + \varepsilon`, with i drawn with
    weights :math:`\pi`, j with :math:`\tau`, and normal noise of variance :math:`s^2` in every
    feature. EM minimises minus the log likelihood, with a penalty where centres are not orthogonal,

    .. math::
        - \sum_x \log \sum_{ij} \pi_i \tau_j N(x; \mu_i + \nu_j, s^2 I)
        + \frac{\lambda}{2} \sum_{ij} (\mu_i' \nu_j)^2

    It never rises. The penalty also decides what the likelihood leaves open: a vector added to all
    :math:`\mu_i` and taken from all :math:`\nu_j` changes no density.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters of each of the two clusterings.
    lam : float, default=1.0
        Weight :math:`\lambda` of the penalty, in units of the number of rows times that of features
        over the mean fourth power of the rows' lengths, from 0 to 10**6.
    n_init : int, default=10
        Number of restarts, from random rows, at most 10**6; the best by objective is kept.
    max_iter : int, default=500
        Most steps of a restart; at most 10**6.
    tol : float, default=1e-6
        Gain per row, in nats, below which a restart has converged, from 0 to 1.
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
        p(cluster given row) in the clustering that is ``labels_``.
    <n_clusters_>
    objective_ : float
        Minus the penalised log likelihood in nats, of the rows in their units.
    objective_trace_ : ndarray
        The same after every step (of at most 512) of the best restart.
    weights_ : ndarray of shape (2, n_clusters)
        :math:`\pi` and :math:`\tau`.
    means_ : ndarray of shape (2, n_clusters, n_features)
        :math:`\mu` and :math:`\nu`, which count from the mean of all rows.
    noise_ : float
        :math:`s^2`, at least a millionth of the features' mean variance.
    <cluster_centers_>
    n_iter_ : int
        Steps of the best restart.
    <converged_>
    restarts_ : xarray.Dataset
        Labels, objective and convergence of all restarts; and their ``alternatives``.
    <n_features_in_>
    <feature_names_in_>

    Notes
    -----
    Known labels choose between the two clusterings, and have no part in finding them. The noise is
    the same in all features: put them on a common scale.

    References
    ----------
    Jain, Meka and Dhillon (2008), "Simultaneous unsupervised learning of disparate clusterings",
    from what Dang and Bailey (2010) say of it. The unit of the weight, the starts, and the floor of
    the noise are this package's own.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConvEM
    >>> rng = np.random.default_rng(0)
    >>> one, other = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * one, 6 * other], 1) + rng.normal(size=(100, 2))
    >>> labels = ConvEM(2, random_state=0).fit(X, known=one).labels_
    >>> bool(max((labels == other).mean(), (labels != other).mean()) > 0.95)
    True
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    lam: Annotated[float, parameters.Number(0, 1e6)] = 1.0
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 500
    tol: parameters.Tolerance = 1e-6
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def _search(self, task: PairTask, together: int) -> Run:
        starts = task.draw(self.n_init, self.n_clusters)
        n, d = task.X.shape
        fourth = float(((task.data.x**2).sum(1) ** 2).mean()) or 1.0
        dtype = task.plane.x.dtype
        numbers = Numbers(
            n=np.asarray(n, dtype),
            d=np.asarray(d, dtype),
            lam=np.asarray(self.lam * n * d / fourth, dtype),
            tol=np.asarray(self.tol, dtype),
            max_iter=np.asarray(self.max_iter, np.int32),
        )
        return _solve(task.plane, starts, numbers, together=together)

    def _value(self, objective: np.ndarray, task: PairTask) -> np.ndarray:
        return objective + task.X.size * math.log(task.data.scale)

    def _keep(self, task: PairTask, fit: Any) -> np.ndarray:
        t, memberships = fit
        (n, m), k = task.X.shape, self.n_clusters
        self._log_weights = t.log_weights[:, :k].astype(np.float64)
        self._centres = t.centres[:, :k, :m].astype(np.float64)
        self._noise = float(t.noise)
        self.weights_ = np.exp(self._log_weights)
        self.means_ = self._centres * task.data.scale
        self.noise_ = self._noise * task.data.scale**2
        return memberships[:, :n, :k]

    def _log_memberships(self, x: np.ndarray) -> np.ndarray:
        first, second = self._centres
        sums = first[:, None] + second
        square = cdist(x, sums.reshape(-1, x.shape[1]), "sqeuclidean")
        log_w = self._log_weights[0][:, None] + self._log_weights[1]
        log_p = log_w - 0.5 * square.reshape(-1, *log_w.shape) / self._noise
        return np.stack([logsumexp(log_p, axis=2), logsumexp(log_p, axis=1)])

    def predict_proba(self, X, *, known=None):
        """p(cluster given row) of new rows, in the clustering that is ``labels_``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return softmax(self._log_membership(*self._take_out(X, known)), axis=1)
