"""Gaussian mixtures under must-links and cannot-links."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from nrprob.engines.hash_rng import fold_in
from nrprob.engines.optimise.iterate import IterationResult, empty_trace, iterate, map_restarts
from nrprob.engines.optimise.solve import Solution
from nrprob.engines.programs import jit_by_size
from nrprob.estimator import parameters
from nrprob.estimator.calls import restart_calls
from nrprob.estimator.pairs import PairEstimator
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
from nrprob.methods.cec.link_posterior import SETS, Links, posterior, settle
from nrprob.methods.cec.must_link_components import read_units
from nrprob.statistics.gaussians import log_normals
from nrprob.statistics.matrices import whitener
from nrprob.statistics.rows import Rows, existing

_COVARIANCES = ("full", "diag", "spherical")
_EMPTY = 1e-8  # rows, below which a component keeps its place


class Numbers(NamedTuple):
    """Numbers that `solve_constrained_mixture` reads.

    Attributes
    ----------
    links : what is said of the rows
    named : whether every class is one unit, and the start of one cluster
    ridge : (p,) added to the diagonal of every scatter; 0 on padding
    variance : (p,) of all rows; 0 on padding and for columns of one value
    tol : fall of the objective, in nats per row, below which a restart has converged
    max_iter : most steps
    """

    links: Links
    named: Any
    ridge: Any
    variance: Any
    tol: Any
    max_iter: Any


class Mixture(NamedTuple):
    """Parameters of the components.

    Attributes
    ----------
    log_weights : (k,)
    means : (k, p)
    covariances : (k, p, p), or (k, p) where they are diagonal; 1 on padding
    """

    log_weights: jax.Array
    means: jax.Array
    covariances: jax.Array


@jit_by_size("n_clusters", "n_init", "covariance")
def solve_constrained_mixture(
    rows: Rows,
    numbers: Numbers,
    seed: jax.Array,
    fixed: jax.Array,
    *,
    n_clusters: int,
    n_init: int,
    covariance: str,
) -> Solution:
    """Run ``n_init`` starts side by side and keep the best.

    They start from the nearest centres, in units of the columns' deviations. Where the classes
    ``fixed`` (B, r), -1 for none, are one unit each, their means come first, and their rows start
    there.
    """
    x, mass = table(rows)
    links, ridge, k = numbers.links, numbers.ridge, n_clusters
    exist = links.exist
    varies = numbers.variance > 0
    n_features = varies.sum()
    n, dtype = mass.sum(), x.dtype
    least = 16 * jnp.finfo(dtype).eps * numbers.variance

    def maximise(w, log_weights, old):
        """Parameters that suit masses (N, k) of rows, with their log weights."""
        size = jnp.maximum(w.sum(0), _EMPTY)
        means = weighted_means(x, w, old)
        away = x[:, None] - means
        if covariance == "full":
            scatter = jnp.einsum("nk,nkp,nkq->kpq", w, away, away, precision="highest")
            scatter = (scatter + jnp.diag(ridge)) / size[:, None, None]
            return Mixture(log_weights, means, scatter + jnp.diag(jnp.where(varies, least, 1)))
        scatter = (jnp.einsum("nk,nkp->kp", w, away**2) + ridge) / size[:, None]
        if covariance == "spherical":
            mean = scatter.sum(1, keepdims=True) / jnp.maximum(n_features, 1)
            scatter = jnp.broadcast_to(mean, scatter.shape)
        return Mixture(log_weights, means, jnp.where(varies, scatter + least, 1))

    def densities(mixture, x):
        """Log density (N, k) of rows, and the penalties of the covariances (k,)."""
        away = x[:, None] - mixture.means
        if covariance == "full":
            inverse, log_det = whitener(mixture.covariances)
            white = jnp.einsum("kqp,nkp->nkq", inverse, away, precision="highest")
            half = 0.5 * log_det
            penalty = 0.5 * (inverse**2 @ ridge.astype(x.dtype)).sum(-1)
        else:
            white = away / jnp.sqrt(mixture.covariances)
            half = 0.5 * jnp.log(mixture.covariances).sum(-1)
            penalty = 0.5 * (ridge / mixture.covariances).sum(-1)
        square = 0.5 * (white**2).sum(-1)
        return -square - half - 0.5 * n_features * math.log(2 * math.pi), penalty

    def expect(mixture, x, solve):
        """Objective, and what ``solve`` says of the units beside the log of their sum."""
        log_p, penalty = densities(mixture, x)
        units = jax.ops.segment_sum(mass[:, None] * log_p, links.unit, mass.size)
        scores = (units + mixture.log_weights) * links.real[:, None].astype(x.dtype)
        scores = links.bar(scores, 0.0)
        if exist is not None:
            penalty = jnp.where(exist, penalty, 0)
        value, *result = solve(scores, links)
        return penalty.sum() - value, *result

    def step(state, _):
        mixture, old = state
        value, shares = expect(mixture, x, posterior)
        weights = (shares * links.real[:, None]).sum(0) / links.real.sum()
        log_weights = jnp.log(jnp.maximum(weights, jnp.finfo(dtype).tiny)).astype(dtype)
        mixture = maximise(mass[:, None] * shares[links.unit], log_weights, mixture.means)
        rounding = 16 * jnp.finfo(dtype).eps * jnp.abs(value)
        still = jnp.abs(old - value) <= jnp.maximum(n * numbers.tol, rounding)
        return (mixture, value), still, value

    def run(seed):
        unit = jnp.where(varies, 1 / jnp.sqrt(jnp.where(varies, numbers.variance, 1)), 0)
        code = jnp.where(numbers.named, fixed[0], -1)
        centres = first_centres(x * unit, mass, code, k, seed, exist)
        nearest = squares(x * unit, centres).argmin(1)
        w = one_hot(jnp.where(code >= 0, code, nearest), mass, k)
        log_weights = jnp.log((w.sum(0) + 1) / (n + (k if exist is None else exist.sum())))
        start = maximise(w, log_weights, jnp.zeros_like(centres)), jnp.asarray(jnp.inf, dtype)
        return iterate(step, start, numbers.max_iter, trace=empty_trace(CAPACITY, dtype))

    def end(mixture):
        wide = jax.tree.map(lambda a: a.astype(jnp.float64), mixture)
        value, shares, labels = expect(wide, x.astype(jnp.float64), settle)
        return value, shares[links.unit], labels[links.unit]

    result: IterationResult = map_restarts(run, (fold_in(seed, jnp.arange(n_init)),), n_init)
    mixture = result.state[0]
    objective, shares, labels = jax.vmap(end)(mixture)
    return best_of(
        rows, result, labels, objective, lambda best: mass[:, None] * shares[best], mixture
    )


@parameters.constructor
class ConstrainedMixture(PairEstimator):
    r"""Gaussian mixture with must-links and cannot-links.

    Rows that must be together are one unit, which draws its component once. With units c, weights
    :math:`\pi` and densities :math:`N_i`, minimises minus the log probability of the rows and of
    the event that no cannot-link is violated,

    .. math:: -\log \sum_{z} \prod_c \pi_{z_c} \prod_{x \in c} N_{z_c}(x)
        + \frac12 \sum_i \operatorname{tr} \Sigma_i^{-1} R

    where the sum runs over all labels z of the units that keep all cannot-links, and R, a diagonal
    matrix of ``reg`` times the variances of the columns, keeps covariances from vanishing.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of components.
    covariance : {"full", "diag", "spherical"}, default="full"
        Of the components, each of which has its own.
    links : {"both", "must", "cannot"}, default="both"
        What labels ``y`` say: that rows of one class are together ("must"), that rows of different
        classes are not ("cannot": a class may have several clusters), or both. Pairs say what they
        say in any case.
    reg : float, default=1e-3
        What is added to the scatter of every component, in units of the columns' variances: as if
        by a row that lies :math:`\sqrt{reg}` deviations from the mean in each column; at most
        10**6.
    n_init : int, default=10
        Number of restarts, by k-means++, at most 10**6; the best by objective is kept. With
        links="both" all begin with the means of the classes.
    max_iter : int, default=500
        Most iterations of a restart; at most 10**6.
    tol : float, default=1e-7
        Fall of the objective, in nats per row, below which a restart has converged, from 0 to 1.
    <random_state>
    <verbose>

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Most probable labels that keep all links.
    membership_ : ndarray of shape (n_samples, n_clusters)
        p(cluster given all rows and links) of every row; rows sum to 1.
    <n_clusters_>
    weights_ : ndarray of shape (n_clusters,)
        Weights of the components: shares of units, not of rows.
    means_ : ndarray of shape (n_clusters, n_features)
        Means.
    covariances_ : ndarray
        Covariances, (n_clusters, n_features, n_features), (n_clusters, n_features) or
        (n_clusters,); 0 for columns of one value, which say nothing and are left out.
    n_approximated_ : int
        Number of units whose posterior is approximated by a mean field.
    <objective_>
    objective_trace_ : ndarray
        Objective of the best restart after every iteration; it never rises, but for a mean field.
    <n_iter_>
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    classes_ : ndarray
        Sorted labels seen in ``y``, if there were any. With links="both", cluster i is class
        ``classes_[i]``; else it is the one that agrees best with it.

    Notes
    -----
    The posterior is exact where units that are connected by cannot-links can be labelled in at most
    50,000 ways. It is exact as well for what labels alone say, with at most k = 10 clusters and
    10**6 / 2**k labelled units: the sum then runs over the sets of clusters that the classes use.
    Where neither holds, a mean field is used with a warning: a unit is in a cluster as far as its
    neighbours are not. Its labels keep the links all the same.

    Weights are updated by the shares of units, as published. That is exact for the objective above.
    It is not for the probability of the rows given that the links hold, which divides by the
    probability that they do, and depends on the weights as well.

    References
    ----------
    Shental, Bar-Hillel, Hertz and Weinshall (2003), "Computing Gaussian mixture models with EM
    using equivalence constraints". The sum over sets of clusters is this package's own.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ConstrainedMixture
    >>> X = np.concatenate([np.random.default_rng(0).normal(c, 1, (50, 2)) for c in (0, 5)])
    >>> model = ConstrainedMixture(2, random_state=0).fit(X, must_link=[[0, 99]])
    >>> bool(model.labels_[0] == model.labels_[99])
    True
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    covariance: Annotated[str, parameters.Choice(_COVARIANCES)] = "full"
    links: Annotated[str, parameters.Choice(("both", "must", "cannot"))] = "both"
    reg: Annotated[float, parameters.Number(0, 1e6)] = 1e-3
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 500
    tol: parameters.Tolerance = 1e-7
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    @property
    def _classes_share(self) -> bool:  # type: ignore[override]
        return self.links == "must"

    def fit(self, X, y=None, *, must_link=None, cannot_link=None):  # type: ignore[override]
        """Fit the mixture to the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Float32 input is computed in float32, all else in float64.
        y : array-like of shape (n_samples,), optional
            Labels, -1 where unknown, which are links between rows: see ``links``.
        must_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that share a cluster. Repeats, and a row with itself, say nothing.
        cannot_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that do not. Repeats say nothing.

        Returns
        -------
        self

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if the links contradict each other, or cannot be kept with so many
            clusters; the message says which are in conflict.
        ValueError
            If pairs are no pairs of rows, or the data do not fit the parameters.
        TypeError
            If pairs are not integers.
        """
        return self._fit(X, y, must_link=must_link, cannot_link=cannot_link)

    def prepare(self, X, y, known=None, *, must_link=None, cannot_link=None):
        """Check the input and lay it out; see `Clusterer.prepare`."""
        given = super().prepare(X, y, must_link=must_link, cannot_link=cannot_link)
        X, told = given.X, codes(given.fixed, len(given.X))
        self._features, task = lay_out(X, told)
        links, self.n_approximated_ = read_units(
            given.must_link,
            given.cannot_link,
            told,
            self.links,
            self.n_clusters,
            task.rows.mass.size,
            existing(self.n_clusters, task.rows.x.x.size),
        )
        self._varies = (X != X[:1]).any(0)
        variance = np.zeros(task.rows.x.n_statistics)
        variance[: X.shape[1]] = np.where(self._varies, task.x.astype(np.float64).var(0), 0)
        dtype, (n, p) = task.x.dtype, (task.rows.mass.size, len(variance))
        numbers = Numbers(
            links,
            np.asarray(self.links == "both"),
            (self.reg * variance).astype(dtype),
            variance.astype(dtype),
            np.asarray(self.tol, dtype),
            np.asarray(self.max_iter, np.int32),
        )
        k = self.n_clusters if links.exist is None else links.exist.size
        each = k * (n * (4 * p + 8) + 4 * p * p + 4 * links.edges.size)
        each += 4 * links.labelings.size + links.members.size * 4 * 2 ** min(k, SETS)
        task.calls = restart_calls(
            solve_constrained_mixture,
            {"n_clusters": k, "covariance": self.covariance},
            task.rows, task.layout, task.fixed, [numbers],
            n_init=self.n_init, random_state=self.random_state, each=each,
        )  # fmt: skip
        return task

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        # Densities are per unit of the features.
        shift = len(task.X) * self._varies.sum() * math.log(self._features.scale)
        best, order = keep(self, task, result, shift=shift)
        self._mixture = Mixture(*(a[order].astype(np.float64) for a in best.fit))
        self._describe(self._mixture)
        return self

    def _describe(self, mixture: Mixture) -> None:
        """Set the components' parameters in units of the features."""
        m, scale, varies = self.n_features_in_, self._features.scale, self._varies
        weights = np.exp(mixture.log_weights)
        self.weights_ = weights / weights.sum()
        self.means_ = mixture.means[:, :m] * scale + self._features.centre
        spread = mixture.covariances
        if self.covariance == "full":
            spread = np.where(varies[:, None] & varies, spread[:, :m, :m], 0)
        else:
            spread = np.where(varies, spread[:, :m], 0)
        if self.covariance == "spherical":
            spread = spread.max(1)
        self.covariances_ = spread * scale**2

    # New rows

    def predict_proba(self, X):  # type: ignore[override]
        """p(cluster given row) of new rows, which are in no link.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return softmax(self._log_membership(X, None), axis=1)

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        x = self._features(self._validate(X, reset=False)).astype(np.float64)[:, self._varies]
        (log_weights, means, spread), at = self._mixture, np.flatnonzero(self._varies)
        if self.covariance == "full":
            roots = np.linalg.cholesky(spread[:, at[:, None], at])
        else:
            roots = np.sqrt(spread[:, at])
        return log_weights + log_normals(x, means[:, at], roots)
