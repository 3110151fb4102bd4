"""Gaussian mixtures under must-links and cannot-links.

A *unit* is a set of rows that must-links connect. Sizes: N rows with padding, p columns with
padding, k components.
"""

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
from nrprob.methods.cec.link_posterior import SETS, Links, posterior_and_labels, unit_posterior
from nrprob.methods.cec.must_link_components import read_units
from nrprob.statistics.gaussians import log_normals
from nrprob.statistics.matrices import whitener
from nrprob.statistics.rows import Rows, active_mask

_COVARIANCES = ("full", "diag", "spherical")
_MIN_SIZE = 1e-8  # lower bound of a component's number of rows in divisions


class EMParameters(NamedTuple):
    """Settings of `solve_constrained_mixture`.

    JAX traces all settings, so that new values need no compilation.

    Attributes
    ----------
    links : units and cannot-links
    named : whether all rows of a class form one unit; cluster c then starts from the mean of class
        c
    ridge : (p,) diagonal that is added to every scatter; 0 on padding
    variance : (p,) variances of the columns; 0 on padding and for constant columns
    tol : change of the objective, in nats per sample, up to which a restart has converged
    max_iter : maximum number of iterations
    """

    links: Links
    named: Any
    ridge: Any
    variance: Any
    tol: Any
    max_iter: Any


class Mixture(NamedTuple):
    """Parameters of the Gaussian components.

    Attributes
    ----------
    log_weights : (k,) log weights
    means : (k, p) means
    covariances : (k, p, p) covariances for "full", (k, p) variances for "diag" and "spherical";
        variances are 1 on padding
    """

    log_weights: jax.Array
    means: jax.Array
    covariances: jax.Array


@jit_by_size("n_clusters", "n_init", "covariance")
def solve_constrained_mixture(
    rows: Rows,
    settings: EMParameters,
    seed: jax.Array,
    fixed: jax.Array,
    *,
    n_clusters: int,
    n_init: int,
    covariance: str,
) -> Solution:
    """Run ``n_init`` restarts of EM in parallel and keep the best.

    Every row starts in the cluster of the nearest initial centre, on standardised columns. With
    ``settings.named``, all rows of a class form one unit. The first centres are then the means of
    the classes, and labelled rows start in the cluster of their class. ``fixed`` (1, N) are the
    classes of the N rows of the single block, -1 where unknown.
    """
    x, mass = block_table(rows)
    links, ridge, k = settings.links, settings.ridge, n_clusters
    exist = links.exist
    varies = settings.variance > 0
    n_features = varies.sum()
    n, dtype = mass.sum(), x.dtype
    least = 16 * jnp.finfo(dtype).eps * settings.variance

    def m_step(w, log_weights, old):
        """Parameters that maximise the penalised expected log density of the rows.

        ``w`` (N, k) are the masses of rows in components. A component without rows keeps its row of
        ``old`` (k, p), the previous means.
        """
        size = jnp.maximum(w.sum(0), _MIN_SIZE)
        means = weighted_means(x, w, old)
        away = x[:, None] - means
        if covariance == "full":
            # Weighted scatter plus ridge; a multiple of the rounding error keeps it regular.
            scatter = jnp.einsum("nk,nkp,nkq->kpq", w, away, away, precision="highest")
            scatter = (scatter + jnp.diag(ridge)) / size[:, None, None]
            return Mixture(log_weights, means, scatter + jnp.diag(jnp.where(varies, least, 1)))
        scatter = (jnp.einsum("nk,nkp->kp", w, away**2) + ridge) / size[:, None]
        if covariance == "spherical":
            mean = scatter.sum(1, keepdims=True) / jnp.maximum(n_features, 1)
            scatter = jnp.broadcast_to(mean, scatter.shape)
        return Mixture(log_weights, means, jnp.where(varies, scatter + least, 1))

    def log_densities(mixture, x):
        """Log densities (N, k) of rows in components, and ridge penalties (k,) of components."""
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

    def e_step(mixture, x, solve):
        """Objective at the parameters ``mixture``, and the posterior of the units.

        ``solve`` is `unit_posterior` or `posterior_and_labels`. The function returns the objective,
        and all results of ``solve`` except log Z.
        """
        log_p, penalty = log_densities(mixture, x)
        # The score of a unit adds the log densities of its rows and one log weight.
        units = jax.ops.segment_sum(mass[:, None] * log_p, links.unit, mass.size)
        scores = (units + mixture.log_weights) * links.real[:, None].astype(x.dtype)
        scores = links.mask_scores(scores, 0.0)
        if exist is not None:
            penalty = jnp.where(exist, penalty, 0)
        value, *result = solve(scores, links)
        return penalty.sum() - value, *result

    def em_step(state, _):
        mixture, old = state
        value, shares = e_step(mixture, x, unit_posterior)
        # Weights are shares of units; means and covariances take all rows of a unit.
        weights = (shares * links.real[:, None]).sum(0) / links.real.sum()
        log_weights = jnp.log(jnp.maximum(weights, jnp.finfo(dtype).tiny)).astype(dtype)
        mixture = m_step(mass[:, None] * shares[links.unit], log_weights, mixture.means)
        rounding = 16 * jnp.finfo(dtype).eps * jnp.abs(value)
        converged = jnp.abs(old - value) <= jnp.maximum(n * settings.tol, rounding)
        return (mixture, value), converged, value

    def run_restart(seed):
        unit = jnp.where(varies, 1 / jnp.sqrt(jnp.where(varies, settings.variance, 1)), 0)
        code = jnp.where(settings.named, fixed[0], -1)
        centres = first_centres(x * unit, mass, code, k, seed, exist)
        nearest = squared_distances(x * unit, centres).argmin(1)
        w = one_hot(jnp.where(code >= 0, code, nearest), mass, k)
        log_weights = jnp.log((w.sum(0) + 1) / (n + (k if exist is None else exist.sum())))
        start = m_step(w, log_weights, jnp.zeros_like(centres)), jnp.asarray(jnp.inf, dtype)
        return iterate(em_step, start, settings.max_iter, trace=empty_trace(CAPACITY, dtype))

    def final_state(mixture):
        wide = jax.tree.map(lambda a: a.astype(jnp.float64), mixture)
        value, shares, labels = e_step(wide, x.astype(jnp.float64), posterior_and_labels)
        return value, shares[links.unit], labels[links.unit]

    result: IterationResult = map_restarts(
        run_restart, (fold_in(seed, jnp.arange(n_init)),), n_init
    )
    mixture = result.state[0]
    objective, shares, labels = jax.vmap(final_state)(mixture)
    return best_solution(
        rows, result, labels, objective, lambda best: mass[:, None] * shares[best], mixture
    )


@parameters.constructor
class ConstrainedMixture(PairEstimator):
    r"""Gaussian mixture with hard must-links and cannot-links.

    A unit c is a set of rows x connected by must-links, and belongs to one component. The fit
    minimises minus the log joint probability of the rows and of the event that all cannot-links
    hold, plus a ridge penalty,

    .. math:: -\log \sum_{z} \prod_c \pi_{z_c} \prod_{x \in c} N_{z_c}(x)
        + \frac12 \sum_i \operatorname{tr} \Sigma_i^{-1} R

    The sum runs over all labels z of the units that satisfy the cannot-links. Component i has the
    weight :math:`\pi_i`, the normal density :math:`N_i` and the covariance :math:`\Sigma_i`. The
    diagonal matrix R, ``reg`` times the variances of the columns, keeps covariances regular.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of components.
    covariance : {"full", "diag", "spherical"}, default="full"
        Covariance family; every component has its own covariance. "diag" and "spherical" need
        fewer rows per component.
    links : {"both", "must", "cannot"}, default="both"
        Links implied by the labels ``y``: "must" links rows of one class, "cannot" separates rows
        of different classes (a class may then have several clusters), "both" does both. ``links``
        has no effect on the pairs in ``must_link`` and ``cannot_link``.
    reg : float, default=1e-3
        Ridge added to the scatter of every component, in units of the columns' variances. Raise it
        if components collapse onto few rows. At most 10**6.
    n_init : int, default=10
        Number of restarts by k-means++; the restart of the smallest objective is kept. With
        ``links="both"``, the clusters of labelled classes start from the class means in all
        restarts. At most 10**6.
    max_iter : int, default=500
        Maximum number of EM iterations per restart; at most 10**6.
    tol : float, default=1e-7
        A restart has converged when the objective changes by at most ``tol`` nats per sample in an
        iteration. From 0 to 1.
    <random_state>
    <verbose>

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Most probable labels that satisfy all links.
    membership_ : ndarray of shape (n_samples, n_clusters)
        Posterior p(cluster given all rows and links); rows sum to 1.
    <n_clusters_>
    weights_ : ndarray of shape (n_clusters,)
        Weights of the components: expected shares of units, not of rows.
    means_ : ndarray of shape (n_clusters, n_features)
        Means of the components.
    covariances_ : ndarray
        Covariances: (n_clusters, n_features, n_features) for "full", (n_clusters, n_features) for
        "diag", (n_clusters,) for "spherical". 0 for constant columns, which the fit ignores.
    n_approximated_ : int
        Number of units whose posterior is a mean-field approximation.
    <objective_>
    objective_trace_ : ndarray of shape (n_iter_,)
        Objective of the best restart after every iteration; non-increasing, except with a mean
        field.
    <n_iter_>
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    classes_ : ndarray of shape (n_classes,)
        Sorted labels in ``y``, if ``y`` is given. With ``links="both"``, cluster i contains all
        rows of class ``classes_[i]``. Otherwise clusters are matched to classes one-to-one, and
        numbered in the order of their classes.

    See Also
    --------
    COPKMeans : k-means with hard must-links and cannot-links.
    MDLConstrained : Clustering by description length with hard or soft links.
    CECIB : Cross-entropy clustering with labels, some of which may be wrong.

    Notes
    -----
    An EM iteration has two steps:

    1. E-step: compute the scores of units (log weight plus log densities of their rows), and the
       posterior of the units given the cannot-links.
    2. M-step: weights are expected shares of units; means and covariances are weighted by the
       posteriors of the rows.

    The E-step is exact if units connected by cannot-links have at most 50,000 joint labelings, and
    if the tables of these labelings have at most 5,000,000 entries together. If all cannot-links of
    labelled rows follow from ``y``, the E-step is also exact with at most k = 10 clusters and 10**6
    / 2**k labelled units; the E-step then sums over the sets of clusters that each class occupies.
    In all other cases, `fit` warns and approximates the posterior by a mean field. The labels
    satisfy all links in every case.

    With n rows, m features and k components, an iteration costs :math:`O(n k m^2)` for "full" and
    :math:`O(n k m)` otherwise, plus the exact sums. Memory is :math:`O(n k m)` per restart.

    The weights minimise the objective above. The weights do not maximise the probability of the
    rows conditional on the cannot-links: conditioning divides by the probability that all
    cannot-links hold, which depends on the weights.

    References
    ----------
    N. Shental, A. Bar-Hillel, T. Hertz and D. Weinshall (2003), "Computing Gaussian mixture models
    with EM using equivalence constraints", Advances in Neural Information Processing Systems 16.
    The sum over sets of clusters is an addition of this package.

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
            Continuous features. Float32 input is computed in float32, and all other input in
            float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. The parameter ``links`` states which links between
            rows the labels imply.
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
            A ValueError, if links contradict each other, or if no labels with ``n_clusters``
            clusters satisfy them; the message lists the links in conflict.
        ValueError
            If an index of a pair is out of range, or if the data do not fit the parameters.
        TypeError
            If pairs are not integers.
        """
        return self._fit(X, y, must_link=must_link, cannot_link=cannot_link)

    def prepare(self, X, y, known=None, *, must_link=None, cannot_link=None):
        """Check the input and lay it out; see `Clusterer.prepare`."""
        pairs = super().prepare(X, y, must_link=must_link, cannot_link=cannot_link)
        X, codes = pairs.X, class_codes(pairs.fixed, len(pairs.X))
        self._features, task = lay_out(X, codes)
        links, self.n_approximated_ = read_units(
            pairs.must_link,
            pairs.cannot_link,
            codes,
            self.links,
            self.n_clusters,
            task.rows.mass.size,
            active_mask(self.n_clusters, task.rows.x.x.size),
        )
        self._varies = (X != X[:1]).any(0)
        variance = np.zeros(task.rows.x.n_statistics)
        variance[: X.shape[1]] = np.where(self._varies, task.x.astype(np.float64).var(0), 0)
        dtype, (n, p) = task.x.dtype, (task.rows.mass.size, len(variance))
        settings = EMParameters(
            links,
            np.asarray(self.links == "both"),
            (self.reg * variance).astype(dtype),
            variance.astype(dtype),
            np.asarray(self.tol, dtype),
            np.asarray(self.max_iter, np.int32),
        )
        k = self.n_clusters if links.exist is None else links.exist.size
        nbytes = k * (n * (4 * p + 8) + 4 * p * p + 4 * links.edges.size)
        nbytes += 4 * links.labelings.size + links.members.size * 4 * 2 ** min(k, SETS)
        task.calls = restart_calls(
            solve_constrained_mixture,
            {"n_clusters": k, "covariance": self.covariance},
            task.rows, task.layout, task.fixed, [settings],
            n_init=self.n_init, random_state=self.random_state, n_elements=nbytes,
        )  # fmt: skip
        return task

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        # Densities refer to the original units of the columns.
        shift = len(task.X) * self._varies.sum() * math.log(self._features.scale)
        best, order = store_result(self, task, result, shift=shift)
        self._mixture = Mixture(*(a[order].astype(np.float64) for a in best.fit))
        self._set_parameters(self._mixture)
        return self

    def _set_parameters(self, mixture: Mixture) -> None:
        """Set the fitted parameters of the components, converted to the original units."""
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
        """p(cluster given row) of new rows without links.

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
        (log_weights, means, spread), columns = self._mixture, np.flatnonzero(self._varies)
        if self.covariance == "full":
            roots = np.linalg.cholesky(spread[:, columns[:, None], columns])
        else:
            roots = np.sqrt(spread[:, columns])
        return log_weights + log_normals(x, means[:, columns], roots)
