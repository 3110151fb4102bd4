"""ConvEM: two simultaneous clusterings; each row is a sum of two centres and noise.

Row x of cluster i in the first and cluster j in the second clustering is mu_i + nu_j + noise. Sizes
with padding: N rows of P features, K clusters in each clustering.
"""

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
    PaddedRows,
    Run,
    SimultaneousClusterer,
    SimultaneousTask,
    keep_best_trace,
    solve_ridge,
)

_FLOOR = 1e-6  # minimum noise variance as a share of the mean variance
_MIN_SIZE = 1e-8  # clusters of a smaller size are empty
_ROUNDING = 16  # changes below this many units in the last place count as rounding
_dot = partial(jnp.matmul, precision=HIGHEST)


class Parameters(NamedTuple):
    """Parameters of the model of ConvEM.

    Attributes
    ----------
    log_weights : (2, K) log weights of both clusterings; -inf for padding clusters
    centres : (2, K, P) centres mu and nu
    noise : variance of the noise, which is the same for all features
    """

    log_weights: jax.Array
    centres: jax.Array
    noise: jax.Array


class ExpectedSums(NamedTuple):
    """Expected sufficient statistics, from the memberships p_ij of every row.

    p_ij is the posterior probability that the row is in cluster i of the first and in cluster j of
    the second clustering.

    Attributes
    ----------
    size : (K, K) sums of the memberships p_ij over rows
    first : (K, P) sums of the rows, weighted by their memberships in the first clustering
    second : (K, P) sums of the rows, weighted by their memberships in the second clustering
    """

    size: jax.Array
    first: jax.Array
    second: jax.Array


class Hyperparameters(NamedTuple):
    """Settings of `_solve_restarts`. JAX traces all of them, so new values need no compilation.

    Attributes
    ----------
    n, d : numbers of rows and features, without padding
    lam : penalty weight lambda of the inner products of centres
    tol : convergence tolerance per row, in nats
    max_iter : maximum number of iterations
    """

    n: Any
    d: Any
    lam: Any
    tol: Any
    max_iter: Any


def log_joint_densities(padded: PaddedRows, t: Parameters, d: jax.Array) -> jax.Array:
    """Log weights plus log densities (N, K, K) of rows in all pairs of clusters.

    ``t`` are the parameters, and ``d`` is the number of features, without padding.
    """
    first, second = t.centres
    inner = _dot(padded.x, first.T)[:, :, None] + _dot(padded.x, second.T)[:, None]
    square_norms = ((first[:, None] + second) ** 2).sum(-1)
    square = jnp.maximum((padded.x**2).sum(1)[:, None, None] - 2 * inner + square_norms, 0)
    log_w = t.log_weights[0][:, None] + t.log_weights[1]
    return log_w - 0.5 * (square / t.noise + d * jnp.log(2 * math.pi * t.noise))


def e_step(
    padded: PaddedRows, t: Parameters, h: Hyperparameters
) -> tuple[ExpectedSums, jax.Array, jax.Array]:
    """E-step: expected sufficient statistics, memberships (2, N, K), penalised log likelihood."""
    log_p = log_joint_densities(padded, t, h.d)
    total = jax.nn.logsumexp(log_p, (1, 2))
    p = jnp.exp(log_p - total[:, None, None])
    memberships = jnp.stack([p.sum(2), p.sum(1)])
    mass = padded.mass
    sums = jnp.einsum("vnk,n,np->vkp", memberships, mass, padded.x, precision=HIGHEST)
    size = jnp.einsum("nij,n->ij", p, mass, precision=HIGHEST)
    products = _dot(t.centres[0], t.centres[1].T).astype(jnp.float64)
    likelihood = (mass * total).astype(jnp.float64).sum()
    value = likelihood - 0.5 * h.lam * (products**2).sum()
    return ExpectedSums(size, *sums), memberships, value


def m_step(padded: PaddedRows, t: Parameters, e: ExpectedSums, h: Hyperparameters) -> Parameters:
    """M-step: update centres mu, centres nu, noise variance and weights of ``t``, in this order.

    ``e`` are the expected sufficient statistics.
    """
    first, second = t.centres
    sizes = e.size.sum(1), e.size.sum(0)

    def update_centres(size, sums, previous, other):
        occupied = size > _MIN_SIZE
        new = solve_ridge(jnp.where(occupied, size, 1), sums, other, h.lam * t.noise)
        return jnp.where(occupied[:, None], new, previous)

    first = update_centres(sizes[0], e.first - _dot(e.size, second), first, second)
    second = update_centres(sizes[1], e.second - _dot(e.size.T, first), second, first)
    # Noise variance from the expected squared residuals.
    inner = (first * e.first).sum() + (second * e.second).sum()
    square_norms = (e.size * ((first[:, None] + second) ** 2).sum(-1)).sum()
    square = (padded.mass * (padded.x**2).sum(1)).sum() - 2 * inner + square_norms
    noise = jnp.maximum(square / (h.n * h.d), _FLOOR / h.d)
    return Parameters(jnp.log(jnp.stack(sizes) / h.n), jnp.stack([first, second]), noise)


def initial_parameters(padded: PaddedRows, rows: jax.Array, d: jax.Array) -> Parameters:
    """Initial parameters from two sets of K random ``rows`` (2, K, P).

    The first set is the initial mu. The second set, minus the nearest mu, is the initial nu. ``d``
    is the number of features, without padding.
    """
    first = jnp.where(padded.active[:, None], rows[0], 0)
    distances = ((rows[1][:, None] - first) ** 2).sum(-1)
    assigned = jnp.where(padded.active, distances, jnp.inf).argmin(1)
    second = jnp.where(padded.active[:, None], rows[1] - first[assigned], 0)
    log_w = jnp.where(padded.active, -jnp.log(padded.active.sum().astype(rows.dtype)), -jnp.inf)
    unit = jnp.ones((), rows.dtype)
    t = Parameters(jnp.stack([log_w, log_w]), jnp.stack([first, second]), unit)
    square = -2 * log_joint_densities(padded, t, 0 * d).max((1, 2)) + 4 * log_w.max()
    noise = (padded.mass * square).sum() / padded.mass.sum() / d
    return t._replace(noise=jnp.maximum(noise, _FLOOR / d).astype(rows.dtype))


@jit_by_size("together")
def _solve_restarts(
    padded: PaddedRows, starts: jax.Array, h: Hyperparameters, *, together: int
) -> Run:
    """Run all restarts of ConvEM, ``together`` of them in parallel.

    ``starts`` (restarts, 2, K, P) are rows, from which `initial_parameters` computes the centres.
    """

    def run_restart(rows):
        def step(state, _):
            t, e, old = state
            t = m_step(padded, t, e, h)
            e, _, value = e_step(padded, t, h)
            rounding = _ROUNDING * jnp.finfo(rows.dtype).eps * jnp.abs(value)
            return (t, e, value), value - old <= jnp.maximum(h.tol * h.n, rounding), -value

        t = initial_parameters(padded, rows, h.d)
        e, _, value = e_step(padded, t, h)
        result = iterate(step, (t, e, value), h.max_iter, trace=empty_trace(TRACE, jnp.float64))
        t, _, value = result.state
        memberships = e_step(padded, t, h)[1]
        labels = memberships.argmax(-1).astype(jnp.int32)
        return Run(labels, -value, result.done, result.n_iter, result.trace, (t, memberships))

    return keep_best_trace(map_restarts(run_restart, (starts,), together))


@parameters.constructor
class ConvEM(SimultaneousClusterer):
    r"""Two simultaneous clusterings by convolution EM.

    The model of a row, centred at the mean of all rows, is :math:`x = \mu_i + \nu_j + \varepsilon`.
    Cluster i has weight :math:`\pi_i`, cluster j has weight :math:`\tau_j`, and the noise is
    Gaussian with variance :math:`s^2` in every feature. EM minimises the penalised negative log
    likelihood

    .. math::
        - \sum_x \log \sum_{ij} \pi_i \tau_j N(x; \mu_i + \nu_j, s^2 I)
        + \frac{\lambda}{2} \sum_{ij} (\mu_i' \nu_j)^2

    over :math:`\pi, \tau, \mu, \nu` and :math:`s^2`. The penalty weight :math:`\lambda` favours
    orthogonal centres :math:`\mu_i` and :math:`\nu_j`. The penalty also identifies the model:
    without a penalty, a vector added to all :math:`\mu_i` and subtracted from all :math:`\nu_j`
    changes no density.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters of each of the two clusterings.
    lam : float, default=1.0
        Penalty weight. Its unit is the number of rows times the number of features, divided by the
        mean fourth power of the lengths of the centred rows. Raise it if the two clusterings are
        similar. From 0 to 10**6.
    n_init : int, default=10
        Number of restarts from random rows; the solution with the best objective is kept. At most
        10**6.
    max_iter : int, default=500
        Maximum number of iterations of a restart; at most 10**6.
    tol : float, default=1e-6
        A restart has converged if the objective improves by less than ``tol`` nats per sample,
        from 0 to 1.
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
        Posterior probabilities of the clusters of ``labels_``.
    <n_clusters_>
    objective_ : float
        Penalised negative log likelihood in nats, for the rows in their units.
    objective_trace_ : ndarray of shape (n_iter,)
        Objective of the best restart after each iteration, with at most 512 entries; the last entry
        is the last iteration.
    weights_ : ndarray of shape (2, n_clusters)
        :math:`\pi` and :math:`\tau`.
    means_ : ndarray of shape (2, n_clusters, n_features)
        :math:`\mu` and :math:`\nu`, relative to the mean of all rows.
    noise_ : float
        :math:`s^2`, at least 1e-6 times the mean variance of the features.
    <cluster_centers_>
    n_iter_ : int
        Iterations of the best restart.
    <converged_>
    restarts_ : xarray.Dataset
        Labels, ``alternatives``, objective and convergence of all restarts.
    <n_features_in_>
    <feature_names_in_>

    See Also
    --------
    DecKMeans : The hard-assignment variant, with two k-means clusterings.
    CAMI : Two Gaussian mixtures with a penalty on their mutual information.

    Notes
    -----
    The algorithm, for every restart:

    1. Initialise :math:`\mu` at random rows, and :math:`\nu` at other random rows minus the nearest
       :math:`\mu_i`.
    2. E-step: compute the joint membership of every row in the pairs (i, j).
    3. M-step: update :math:`\mu`, then :math:`\nu` (each a ridge regression), then :math:`s^2` and
       the weights. Repeat from step 2.

    The objective never increases. An iteration takes O(nk(k + p)) time and O(nk^2) memory for n
    rows, k clusters and p features.

    Known labels only select one of the two clusterings. The noise variance is the same in all
    features, so standardise features of different scales.

    References
    ----------
    Jain, P., Meka, R. and Dhillon, I. S. (2008), "Simultaneous unsupervised learning of disparate
    clusterings", SIAM International Conference on Data Mining, 858-869,
    doi:10.1137/1.9781611972788.77.

    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", ACM SIGKDD, 573-582,
    doi:10.1145/1835804.1835878. This paper describes the variant that ConvEM implements.

    The unit of ``lam``, the initial values and the minimum of ``noise_`` are specific to this
    package.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConvEM, metrics
    >>> rng = np.random.default_rng(0)
    >>> known, target = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * known, 6 * target], 1) + rng.normal(size=(100, 2))
    >>> model = ConvEM(2, random_state=0).fit(X, known=known)
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, target):.2f}")
    1.00
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    lam: Annotated[float, parameters.Number(0, 1e6)] = 1.0
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 500
    tol: parameters.Tolerance = 1e-6
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def _run_restarts(self, task: SimultaneousTask, together: int) -> Run:
        starts = task.draw_starts(self.n_init, self.n_clusters)
        n, d = task.X.shape
        fourth = float(((task.data.x**2).sum(1) ** 2).mean()) or 1.0
        scalars = np.array([n, d, self.lam * n * d / fourth, self.tol], task.padded.x.dtype)
        hyperparameters = Hyperparameters._make([*scalars, np.int32(self.max_iter)])
        return _solve_restarts(task.padded, starts, hyperparameters, together=together)

    def _unscaled_objective(self, objective: np.ndarray, task: SimultaneousTask) -> np.ndarray:
        return objective + task.X.size * math.log(task.data.scale)

    def _store_estimates(self, task: SimultaneousTask, fit: Any) -> np.ndarray:
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
        """Posterior probabilities of the clusters of ``labels_`` for new rows.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return softmax(self._log_membership(*self._split_known(X, known)), axis=1)
