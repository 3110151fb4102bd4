"""CAMI: two Gaussian mixtures at once, with little mutual information between their clusters."""

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
    PairClusterer,
    PairTask,
    Plane,
    Run,
    best_of,
)
from nrprob.statistics.gaussians import log_normals
from nrprob.statistics.xlogx import xlogx

COVARIANCES = ("diag", "spherical")
_FLOOR = {4: 1e-5, 8: 1e-6}  # by bytes of a number, of the rows' mean variance: the least variance
_SHARP = 0.9  # membership of a row in its cluster at the start
_LEAST = 1e-12  # membership of a row in a cluster
_HALVINGS = 12  # of a step, at most
_ROUNDING = 16  # units in the last place of the objective that are no change
_PLACING = 100  # most steps of placing a new row


class Mixtures(NamedTuple):
    """Parameters of both mixtures.

    Attributes
    ----------
    log_weights : (2, K)
    means : (2, K, P)
    variances : (2, K, P); 1 on padding
    """

    log_weights: jax.Array
    means: jax.Array
    variances: jax.Array


class Numbers(NamedTuple):
    """Numbers that the program reads.

    Attributes
    ----------
    n, d : rows and features, without padding
    eta : price of the mutual information
    tied, spherical : whether clusters share their variances, and features theirs
    floor : least variance
    tol : gain per row, in nats, of a step that is none
    max_iter : most steps
    """

    n: Any
    d: Any
    eta: Any
    tied: Any
    spherical: Any
    floor: Any
    tol: Any
    max_iter: Any


def log_densities(plane: Plane, t: Mixtures, d: jax.Array) -> jax.Array:
    """Log densities (2, N, K) of rows in the clusters, with their weights; -inf where none is."""
    precision = 1 / t.variances
    slope = precision * t.means
    x = plane.x
    quadratic = jnp.einsum("np,vkp->vnk", x * x, precision, precision=HIGHEST)
    linear = jnp.einsum("np,vkp->vnk", x, slope, precision=HIGHEST)
    own = (slope * t.means + jnp.log(t.variances)).sum(-1) + d * math.log(2 * math.pi)
    log_p = t.log_weights[:, None] - 0.5 * (quadratic - 2 * linear + own[:, None])
    return jnp.where(plane.active, log_p, -jnp.inf)


def maximise(plane: Plane, log_r: jax.Array, h: Numbers) -> Mixtures:
    """M-step of both mixtures, from log memberships (2, N, K)."""
    w = jnp.exp(log_r) * plane.mass[:, None]
    size = w.sum(1)
    some = jnp.maximum(size, _LEAST)[..., None]
    sums = jnp.einsum("vnk,np->vkp", w, plane.x, precision=HIGHEST)
    squares = jnp.einsum("vnk,np->vkp", w, plane.x**2, precision=HIGHEST)
    means = sums / some
    scatter = squares - sums * means
    variances = jnp.where(h.tied, scatter.sum(1, keepdims=True) / h.n, scatter / some)
    variances = jnp.where(h.spherical, variances.sum(-1, keepdims=True) / h.d, variances)
    variances = jnp.where(plane.real, jnp.maximum(variances, h.floor), 1)
    return Mixtures(jnp.log(size / h.n), means, jnp.broadcast_to(variances, means.shape))


def shared(plane: Plane, log_r: jax.Array, log_s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mutual information of two clusterings in nats, and its log ratios log(P/pq) (K, K)."""
    r = jnp.exp(log_r) * plane.mass[:, None]
    joint = jnp.matmul(r.T, jnp.exp(log_s), precision=HIGHEST) / plane.mass.sum()
    p, q = joint.sum(1), joint.sum(0)
    value = xlogx(joint).sum() - xlogx(p).sum() - xlogx(q).sum()
    some = joint > 0
    outer = p[:, None] * q
    return value, jnp.log(jnp.where(some, joint, 1) / jnp.where(some, outer, 1))


def fit_of(plane: Plane, log_r: jax.Array, log_p: jax.Array) -> jax.Array:
    """Free energy of one mixture, of memberships and densities (N, K): their fit and entropy."""
    r = jnp.exp(log_r)
    each = jnp.where(r > 0, r * (jnp.where(r > 0, log_p, 0) - jnp.where(r > 0, log_r, 0)), 0)
    return (plane.mass * each.sum(1)).astype(jnp.float64).sum()


def clipped(log_r: jax.Array, active: jax.Array) -> jax.Array:
    """Log memberships of rows that sum to 1, none of them too small."""
    log_r = jax.nn.log_softmax(jnp.where(active, log_r, -jnp.inf), -1)
    return jnp.where(active, jnp.maximum(log_r, math.log(_LEAST)), -jnp.inf)


def expect(
    plane: Plane, log_r: jax.Array, log_s: jax.Array, log_p: jax.Array, h: Numbers
) -> jax.Array:
    """E-step of one mixture: log memberships that raise the objective, the other ones ``log_s``.

    The price of the mutual information is concave in them, so that its slope overshoots: the way to
    what it asks for is halved until the objective does not fall.
    """

    def value(log_r):
        return fit_of(plane, log_r, log_p) - h.eta * h.n * shared(plane, log_r, log_s)[0]

    ratios = shared(plane, log_r, log_s)[1]
    price = jnp.matmul(jnp.exp(log_s), ratios.T, precision=HIGHEST)
    target = clipped(log_p - h.eta * price, plane.active)
    before = value(log_r)
    slack = _ROUNDING * jnp.finfo(log_r.dtype).eps * jnp.abs(before)

    def attempt(_, count):
        way = jnp.asarray(0.5, log_r.dtype) ** count
        from_, to = (jnp.where(plane.active, a, 0) for a in (log_r, target))
        new = clipped((1 - way) * from_ + way * to, plane.active)
        fine = value(new) >= before - slack
        return jnp.where(fine, new, log_r), fine, ()

    return iterate(attempt, log_r, _HALVINGS).state


@jit_by_size("together")
def _solve(plane: Plane, starts: jax.Array, h: Numbers, *, together: int) -> Run:
    """Run restarts from the nearest of rows ``starts`` (restarts, 2, K, P)."""
    k = plane.active.sum()

    def total(log_r, log_p):
        return (
            fit_of(plane, log_r[0], log_p[0])
            + fit_of(plane, log_r[1], log_p[1])
            - h.eta * h.n * shared(plane, *log_r)[0]
        )

    def one(rows):
        def step(state, _):
            log_r, _, log_p, old = state
            first = expect(plane, log_r[0], log_r[1], log_p[0], h)
            second = expect(plane, log_r[1], first, log_p[1], h)
            log_r = jnp.stack([first, second])
            t = maximise(plane, log_r, h)
            log_p = log_densities(plane, t, h.d)
            value = total(log_r, log_p)
            still = _ROUNDING * jnp.finfo(rows.dtype).eps * jnp.abs(value)
            done = value - old <= jnp.maximum(h.tol * h.n, still)
            return (log_r, t, log_p, value), done, -value

        near = jax.vmap(plane.nearest)(rows)[..., None] == jnp.arange(len(plane.active))
        rest = jnp.where(near, _SHARP, (1 - _SHARP) / jnp.maximum(k - 1, 1))
        log_r = clipped(jnp.log(rest).astype(rows.dtype), plane.active)
        t = maximise(plane, log_r, h)
        log_p = log_densities(plane, t, h.d)
        state = log_r, t, log_p, total(log_r, log_p)
        result = iterate(step, state, h.max_iter, trace=empty_trace(TRACE, jnp.float64))
        log_r, t, _, value = result.state
        fit = t, jnp.exp(log_r), shared(plane, *log_r)
        labels = log_r.argmax(-1).astype(jnp.int32)
        return Run(labels, -value, result.done, result.n_iter, result.trace, fit)

    return best_of(map_restarts(one, (starts,), together))


@parameters.constructor
class CAMI(PairClusterer):
    r"""CAMI: two Gaussian mixtures of the same rows, at a price of their mutual information.

    Two mixtures with memberships r, s of the rows minimise the free energy

    .. math::
        - \sum_{ni} r_{ni} \log \frac{\pi_i N(x_n | \theta_i)}{r_{ni}}
        - \sum_{nj} s_{nj} \log \frac{\tau_j N(x_n | \varphi_j)}{s_{nj}}
        + \eta n I(P), \qquad P = r's / n

    by turns in r, in s and in the parameters; it never rises. This form has the published goal, a
    high likelihood of both mixtures and little mutual information between their clusters; how the
    published method estimates that information is not known to it.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters of each of the two clusterings.
    eta : float, default=0.5
        Price of the mutual information, beside the log likelihoods, from 0 to 10**6. With 0 the two
        are mixtures by EM that may be the same.
    covariance : {"diag", "spherical"}, default="diag"
        Variances of the features, or one for all. It matters more than ``eta``: a spherical mixture
        of two clusters can be worse than one sphere for all rows.
    tied : bool, default=True
        Whether the clusters of a mixture share their variances.
    n_init : int, default=20
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
        The free energy in nats, of the rows in their units.
    objective_trace_ : ndarray
        The same after every step (of at most 512) of the best restart.
    information_ : float
        I(P) in nats.
    weights_ : ndarray of shape (2, n_clusters)
        :math:`\pi` and :math:`\tau`.
    means_ : ndarray of shape (2, n_clusters, n_features)
        Of the components.
    variances_ : ndarray of shape (2, n_clusters, n_features)
        Of the components, at least a millionth of the features' mean variance, or ten in float32.
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
    Known labels choose between the two clusterings, and have no part in finding them. Restarts
    begin with sharp memberships; soft ones lead to a saddle, where both mixtures are one component.
    New rows get the memberships that are best for them as the clusters are. Two clusterings that
    share some information by their nature, such as two ways to pair the neighbours in a ring, need
    a lower ``eta``, and may need ``covariance="spherical"``.

    References
    ----------
    Dang and Bailey (2010), "Generation of alternative clusterings using the CAMI approach", for the
    goal alone.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import CAMI
    >>> rng = np.random.default_rng(0)
    >>> one, other = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * one, 6 * other], 1) + rng.normal(size=(100, 2))
    >>> labels = CAMI(2, random_state=0).fit(X, known=one).labels_
    >>> bool(max((labels == other).mean(), (labels != other).mean()) > 0.95)
    True
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

    def _search(self, task: PairTask, together: int) -> Run:
        starts = task.draw(self.n_init, self.n_clusters)
        (n, d), dtype = task.X.shape, task.plane.x.dtype
        numbers = Numbers(
            n=np.asarray(n, dtype),
            d=np.asarray(d, dtype),
            eta=np.asarray(self.eta, dtype),
            tied=np.asarray(bool(self.tied)),
            spherical=np.asarray(self.covariance == "spherical"),
            floor=np.asarray(_FLOOR[dtype.itemsize] / d, dtype),
            tol=np.asarray(self.tol, dtype),
            max_iter=np.asarray(self.max_iter, np.int32),
        )
        return _solve(task.plane, starts, numbers, together=together)

    def _value(self, objective: np.ndarray, task: PairTask) -> np.ndarray:
        return objective + 2 * task.X.size * math.log(task.data.scale)

    def _keep(self, task: PairTask, fit: Any) -> np.ndarray:
        t, memberships, (information, ratios) = fit
        (n, m), k, scale = task.X.shape, self.n_clusters, task.data.scale
        self._log_weights = t.log_weights[:, :k].astype(np.float64)
        self._means = t.means[:, :k, :m].astype(np.float64)
        self._variances = t.variances[:, :k, :m].astype(np.float64)
        self._prices = self.eta * ratios[:k, :k].astype(np.float64)
        self.information_ = max(float(information), 0.0)  # up to rounding
        self.weights_ = np.exp(self._log_weights)
        self.means_ = self._means * scale + task.data.centre
        self.variances_ = self._variances * scale**2
        return memberships[:, :n, :k]

    def _log_memberships(self, x: np.ndarray) -> np.ndarray:
        each = zip(self._log_weights, self._means, np.sqrt(self._variances), strict=True)
        log_p = np.stack([log_w + log_normals(x, means, roots) for log_w, means, roots in each])
        first, second = log_p
        for _ in range(_PLACING):
            before = first
            first = log_p[0] - softmax(second, axis=1) @ self._prices.T
            second = log_p[1] - softmax(first, axis=1) @ self._prices
            if np.abs(softmax(first, axis=1) - softmax(before, axis=1)).max() < 1e-9:
                break
        return np.stack([first, second])

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
