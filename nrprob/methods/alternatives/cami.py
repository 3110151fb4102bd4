"""CAMI: two Gaussian mixtures with a penalty on the mutual information of their clusters.

Sizes with padding: N rows of P features, K clusters in each of the two mixtures.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

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
)
from nrprob.statistics.gaussians import log_normals
from nrprob.statistics.xlogx import xlogx

COVARIANCES = ("diag", "spherical")
_FLOOR = {4: 1e-5, 8: 1e-6}  # minimum variance as a share of the mean variance, by bytes of dtype
_START_MEMBERSHIP = 0.9  # initial membership of a row in its nearest cluster
_MIN_MEMBERSHIP = 1e-12
_MAX_HALVINGS = 12  # largest number of halvings of an E-step that lowers the objective
_ROUNDING = 16  # changes below this many units in the last place count as rounding
_MAX_PLACEMENT_STEPS = 100  # fixed-point iterations for new rows


class Mixtures(NamedTuple):
    """Parameters of both Gaussian mixtures.

    Attributes
    ----------
    log_weights : (2, K) log weights of the components; -inf for padding clusters
    means : (2, K, P) means of the P features
    variances : (2, K, P) variances; 1 on padding
    """

    log_weights: jax.Array
    means: jax.Array
    variances: jax.Array


class Hyperparameters(NamedTuple):
    """Settings of `_solve_restarts`. JAX traces all of them, so new values need no compilation.

    Attributes
    ----------
    n, d : numbers of rows and features, without padding
    eta : penalty weight of the mutual information
    floor : minimum variance
    tol : convergence tolerance per row, in nats
    tied : whether the clusters of a mixture share their variances
    spherical : whether features share their variances
    max_iter : maximum number of iterations
    """

    n: Any
    d: Any
    eta: Any
    floor: Any
    tol: Any
    tied: Any
    spherical: Any
    max_iter: Any


def log_densities(padded: PaddedRows, t: Mixtures, d: jax.Array) -> jax.Array:
    """Log weight plus log density (2, N, K) of rows in the clusters of both mixtures.

    The result is -inf for padding clusters. ``t`` are the parameters of the mixtures, and ``d`` is
    the number of features, without padding.
    """
    precision = 1 / t.variances
    slope = precision * t.means
    x = padded.x
    quadratic = jnp.einsum("np,vkp->vnk", x * x, precision, precision=HIGHEST)
    linear = jnp.einsum("np,vkp->vnk", x, slope, precision=HIGHEST)
    constants = (slope * t.means + jnp.log(t.variances)).sum(-1) + d * math.log(2 * math.pi)
    log_p = t.log_weights[:, None] - 0.5 * (quadratic - 2 * linear + constants[:, None])
    return jnp.where(padded.active, log_p, -jnp.inf)


def m_step(padded: PaddedRows, log_r: jax.Array, h: Hyperparameters) -> Mixtures:
    """M-step: parameters of both mixtures, from log memberships ``log_r`` (2, N, K)."""
    # Weighted sums and scatters of both mixtures.
    w = jnp.exp(log_r) * padded.mass[:, None]
    size = w.sum(1)
    some = jnp.maximum(size, _MIN_MEMBERSHIP)[..., None]
    sums = jnp.einsum("vnk,np->vkp", w, padded.x, precision=HIGHEST)
    squares = jnp.einsum("vnk,np->vkp", w, padded.x**2, precision=HIGHEST)
    means = sums / some
    scatter = squares - sums * means
    # Pool variances over clusters (tied) and features (spherical), and bound them below.
    variances = jnp.where(h.tied, scatter.sum(1, keepdims=True) / h.n, scatter / some)
    variances = jnp.where(h.spherical, variances.sum(-1, keepdims=True) / h.d, variances)
    variances = jnp.where(padded.real, jnp.maximum(variances, h.floor), 1)
    return Mixtures(jnp.log(size / h.n), means, jnp.broadcast_to(variances, means.shape))


def mutual_information(
    padded: PaddedRows, log_r: jax.Array, log_s: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mutual information in nats of two clusterings, and the log ratios (K, K) in its sum.

    ``log_r`` and ``log_s`` (N, K) are the log memberships in the two clusterings. The log ratios
    are log(P_ij / (p_i q_j)). P_ij is the share of the rows in cluster i of the first and cluster j
    of the second clustering. p_i and q_j are the shares of the rows in each of these clusters.
    """
    r = jnp.exp(log_r) * padded.mass[:, None]
    joint = jnp.matmul(r.T, jnp.exp(log_s), precision=HIGHEST) / padded.mass.sum()
    p, q = joint.sum(1), joint.sum(0)
    value = xlogx(joint).sum() - xlogx(p).sum() - xlogx(q).sum()
    some = joint > 0
    outer = p[:, None] * q
    return value, jnp.log(jnp.where(some, joint, 1) / jnp.where(some, outer, 1))


def free_energy(padded: PaddedRows, log_r: jax.Array, log_p: jax.Array) -> jax.Array:
    """Negative free energy of one mixture: expected log density plus entropy of memberships.

    The log density includes the log weight of the cluster. ``log_r`` (N, K) are log memberships,
    and ``log_p`` (N, K) log weights plus log densities.
    """
    r = jnp.exp(log_r)
    gain = r * (jnp.where(r > 0, log_p, 0) - jnp.where(r > 0, log_r, 0))
    return (padded.mass * jnp.where(r > 0, gain, 0).sum(1)).astype(jnp.float64).sum()


def clip_memberships(log_r: jax.Array, active: jax.Array) -> jax.Array:
    """Normalise log memberships ``log_r`` (N, K), and raise memberships to at least 1e-12.

    ``active`` (K,) is False for padding clusters, whose memberships are 0.
    """
    log_r = jax.nn.log_softmax(jnp.where(active, log_r, -jnp.inf), -1)
    return jnp.where(active, jnp.maximum(log_r, math.log(_MIN_MEMBERSHIP)), -jnp.inf)


def e_step(
    padded: PaddedRows, log_r: jax.Array, log_s: jax.Array, log_p: jax.Array, h: Hyperparameters
) -> jax.Array:
    """E-step of one mixture: log memberships (N, K) that do not lower the maximised objective.

    The penalised objective is not concave in the memberships, so the fixed-point step can
    overshoot. The step is halved until the objective does not fall.

    Parameters
    ----------
    padded : the rows
    log_r : (N, K) log memberships before the step
    log_s : (N, K) log memberships in the other mixture, which are fixed
    log_p : (N, K) log weights plus log densities
    h : hyperparameters
    """

    def penalised_fit(log_r):
        information, _ = mutual_information(padded, log_r, log_s)
        return free_energy(padded, log_r, log_p) - h.eta * h.n * information

    # Fixed point of the penalised objective.
    ratios = mutual_information(padded, log_r, log_s)[1]
    penalty = jnp.matmul(jnp.exp(log_s), ratios.T, precision=HIGHEST)
    target = clip_memberships(log_p - h.eta * penalty, padded.active)
    # Backtracking line search from the old memberships to the fixed point.
    before = penalised_fit(log_r)
    slack = _ROUNDING * jnp.finfo(log_r.dtype).eps * jnp.abs(before)

    def try_step(_, count):
        way = jnp.asarray(0.5, log_r.dtype) ** count
        from_, to = (jnp.where(padded.active, a, 0) for a in (log_r, target))
        new = clip_memberships((1 - way) * from_ + way * to, padded.active)
        accepted = penalised_fit(new) >= before - slack
        return jnp.where(accepted, new, log_r), accepted, ()

    return iterate(try_step, log_r, _MAX_HALVINGS).state


@jit_by_size("together")
def _solve_restarts(
    padded: PaddedRows, starts: jax.Array, h: Hyperparameters, *, together: int
) -> Run:
    """Run all restarts of CAMI, ``together`` of them in parallel.

    ``starts`` (restarts, 2, K, P) are rows, which are the initial centres.
    """
    k = padded.active.sum()

    def total_objective(log_r, log_p):
        information, _ = mutual_information(padded, *log_r)
        first, second = (free_energy(padded, r, p) for r, p in zip(log_r, log_p, strict=True))
        return first + second - h.eta * h.n * information

    def run_restart(rows):
        def step(state, _):
            log_r, _, log_p, old = state
            first = e_step(padded, log_r[0], log_r[1], log_p[0], h)
            second = e_step(padded, log_r[1], first, log_p[1], h)
            log_r = jnp.stack([first, second])
            t = m_step(padded, log_r, h)
            log_p = log_densities(padded, t, h.d)
            value = total_objective(log_r, log_p)
            rounding = _ROUNDING * jnp.finfo(rows.dtype).eps * jnp.abs(value)
            done = value - old <= jnp.maximum(h.tol * h.n, rounding)
            return (log_r, t, log_p, value), done, -value

        nearest = jax.vmap(padded.nearest_centre)(rows)[..., None]
        others = (1 - _START_MEMBERSHIP) / jnp.maximum(k - 1, 1)
        r = jnp.where(nearest == jnp.arange(len(padded.active)), _START_MEMBERSHIP, others)
        log_r = clip_memberships(jnp.log(r).astype(rows.dtype), padded.active)
        t = m_step(padded, log_r, h)
        log_p = log_densities(padded, t, h.d)
        state = log_r, t, log_p, total_objective(log_r, log_p)
        result = iterate(step, state, h.max_iter, trace=empty_trace(TRACE, jnp.float64))
        log_r, t, _, value = result.state
        fit = t, jnp.exp(log_r), mutual_information(padded, *log_r)
        labels = log_r.argmax(-1).astype(jnp.int32)
        return Run(labels, -value, result.done, result.n_iter, result.trace, fit)

    return keep_best_trace(map_restarts(run_restart, (starts,), together))


@parameters.constructor
class CAMI(SimultaneousClusterer):
    r"""Two Gaussian mixtures with a penalty on their mutual information (CAMI).

    CAMI fits two Gaussian mixtures to the same rows. CAMI minimises the penalised free energy

    .. math::
        - \sum_{li} r_{li} \log \frac{\pi_i N(x_l | \theta_i)}{r_{li}}
        - \sum_{lj} s_{lj} \log \frac{\tau_j N(x_l | \varphi_j)}{s_{lj}}
        + \eta n I(P), \qquad P = r's / n,

    where :math:`x_l` is row l of n. The memberships of row l are :math:`r_{li}` in cluster i of the
    first mixture, and :math:`s_{lj}` in cluster j of the second. :math:`\pi` and :math:`\tau` are
    the weights of the clusters, and :math:`\theta` and :math:`\varphi` their means and variances.
    P are the shares of the rows in pairs of clusters, I(P) is the mutual information of the two
    clusterings, and :math:`\eta` its penalty weight.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters of each of the two clusterings.
    eta : float, default=0.5
        Penalty weight of the mutual information, relative to the log likelihoods. Lower it if the
        two clusterings share information by nature. With 0, both mixtures are independent EM fits,
        which may coincide. From 0 to 10**6.
    covariance : {"diag", "spherical"}, default="diag"
        Diagonal or spherical covariances. The choice often has a larger effect than ``eta``.
    tied : bool, default=True
        Whether the clusters of a mixture share their variances.
    n_init : int, default=20
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
        Penalised free energy in nats, for the rows in their units.
    objective_trace_ : ndarray of shape (n_iter,)
        Objective of the best restart after each iteration, with at most 512 entries; the last entry
        is the last iteration.
    information_ : float
        I(P) in nats.
    weights_ : ndarray of shape (2, n_clusters)
        :math:`\pi` and :math:`\tau`.
    means_ : ndarray of shape (2, n_clusters, n_features)
        Means of the components.
    variances_ : ndarray of shape (2, n_clusters, n_features)
        Variances of the components, at least 1e-6 times the mean variance of the features (1e-5 in
        float32).
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
    DecKMeans : Two k-means clusterings with orthogonal centres.
    ConvEM : Two clusterings whose centres add up.
    MixtureEM : One Gaussian mixture.

    Notes
    -----
    The algorithm, for every restart:

    1. Initialise both clusterings: membership 0.9 in the cluster of the nearest random row. Uniform
       memberships would be a saddle point.
    2. E-step: update r given s, then s given r, each by a fixed-point step with backtracking.
    3. M-step: update weights, means and variances in closed form. Repeat from step 2.

    The objective never increases. An iteration takes O(nkp) time for k clusters and p features, and
    a restart O(n(k + p)) memory.

    Known labels only select one of the two clusterings. New rows get memberships at the fixed point
    of the E-step with the parameters fixed.

    Two clusterings can share information by nature, for example two ways to pair the neighbours in
    a ring. Such clusterings need a lower ``eta``, and may need ``covariance="spherical"``.

    References
    ----------
    Dang, X. H. and Bailey, J. (2010), "Generation of alternative clusterings using the CAMI
    approach", SIAM International Conference on Data Mining, 118-129,
    doi:10.1137/1.9781611972801.11.

    The objective follows the goal of the paper: high likelihoods and low mutual information. The
    estimate of the mutual information and the optimiser are specific to this package.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import CAMI, metrics
    >>> rng = np.random.default_rng(0)
    >>> known, target = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * known, 6 * target], 1) + rng.normal(size=(100, 2))
    >>> model = CAMI(2, random_state=0).fit(X, known=known)
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, target):.2f}")
    1.00
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    eta: Annotated[float, parameters.Number(0, 1e6)] = 0.5
    covariance: Annotated[str, parameters.Choice(COVARIANCES)] = "diag"
    tied: parameters.Flag = True
    n_init: parameters.Count = 20
    max_iter: parameters.Count = 500
    tol: parameters.Tolerance = 1e-6
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def _run_restarts(self, task: SimultaneousTask, together: int) -> Run:
        starts = task.draw_starts(self.n_init, self.n_clusters)
        (n, d), dtype = task.X.shape, task.padded.x.dtype
        scalars = [n, d, self.eta, _FLOOR[dtype.itemsize] / d, self.tol]
        flags = np.bool_(self.tied), np.bool_(self.covariance == "spherical")
        hyperparameters = Hyperparameters._make(
            [*np.array(scalars, dtype), *flags, np.int32(self.max_iter)]
        )
        return _solve_restarts(task.padded, starts, hyperparameters, together=together)

    def _unscaled_objective(self, objective: np.ndarray, task: SimultaneousTask) -> np.ndarray:
        return objective + 2 * task.X.size * math.log(task.data.scale)

    def _store_estimates(self, task: SimultaneousTask, fit: Any) -> np.ndarray:
        t, memberships, (information, ratios) = fit
        (n, m), k, scale = task.X.shape, self.n_clusters, task.data.scale
        self._log_weights = t.log_weights[:, :k].astype(np.float64)
        self._means = t.means[:, :k, :m].astype(np.float64)
        self._variances = t.variances[:, :k, :m].astype(np.float64)
        self._penalty = self.eta * ratios[:k, :k].astype(np.float64)
        self.information_ = max(float(information), 0.0)  # up to rounding
        self.weights_ = np.exp(self._log_weights)
        self.means_ = self._means * scale + task.data.centre
        self.variances_ = self._variances * scale**2
        return memberships[:, :n, :k]

    def _log_memberships(self, x: np.ndarray) -> np.ndarray:
        components = zip(self._log_weights, self._means, np.sqrt(self._variances), strict=True)
        log_p = np.stack(
            [log_w + log_normals(x, means, roots) for log_w, means, roots in components]
        )
        first, second = log_p
        for _ in range(_MAX_PLACEMENT_STEPS):
            before = first
            first = log_p[0] - softmax(second, axis=1) @ self._penalty.T
            second = log_p[1] - softmax(first, axis=1) @ self._penalty
            if np.abs(softmax(first, axis=1) - softmax(before, axis=1)).max() < 1e-9:
                break
        return np.stack([first, second])

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
