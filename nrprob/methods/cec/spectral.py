"""Spectral clustering with pairwise constraints."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any

import numpy as np
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax
from sklearn.utils.validation import check_is_fitted

from nrprob.estimator import parameters
from nrprob.estimator.base import row_means
from nrprob.estimator.pairs import PairEstimator, PairTask
from nrprob.links import Components
from nrprob.methods.cec.centres import codes, keep, lay_out
from nrprob.methods.cec.partition_kmeans import kmeans_calls
from nrprob.settings import few_threads
from nrprob.statistics.features import check_range
from nrprob.statistics.rows import coarse, rounded

_MOST = 10_000  # rows, for n^2 affinities
_BLOCK = 1000  # new rows at a time


def linked(told: np.ndarray, must_link: np.ndarray, cannot_link: np.ndarray) -> np.ndarray:
    """Signs (n, n): 1 for rows that share a class or a must-link, -1 for those kept apart, else 0.

    Classes (n,) are -1 where unknown.
    """
    known = told >= 0
    signs = np.where(told[:, None] == told, 1.0, -1.0)
    signs[~known] = signs[:, ~known] = 0
    for pairs, sign in ((must_link, 1), (cannot_link, -1)):
        signs[pairs[:, 0], pairs[:, 1]] = signs[pairs[:, 1], pairs[:, 0]] = sign
    np.fill_diagonal(signs, 0)
    return signs


def laplacian(weights: np.ndarray) -> np.ndarray:
    """I - D^(-1/2) A D^(-1/2) of weights A (n, n) of any sign, D being the sums of their sizes.

    Rows without weights are 0, on the diagonal too.
    """
    degree = np.abs(weights).sum(1)
    root = np.where(degree > 0, 1 / np.sqrt(np.where(degree > 0, degree, 1)), 0)
    return np.diag((degree > 0).astype(float)) - root[:, None] * weights * root


@parameters.constructor
class SemiSupervisedSpectral(PairEstimator):
    r"""Spectral clustering whose affinities, and whose graph, are told of links.

    Affinities of rows are

    .. math:: W_{ij} = \exp\left(-\sum_l \frac{(x_{il} - x_{jl})^2}{2 \rho^2 \sigma_l^2}\right)

    with the variances :math:`\sigma_l^2` of the columns, 0 on the diagonal, 1 across must-links
    and 0 across cannot-links. Labels are links between all labelled rows. Rows are clustered by
    k-means in the space of as many eigenvectors as there are clusters, their lengths made 1.

    Links are wishes: none has to be kept.

    Parameters
    ----------
    <n_clusters>
    mode : {"penalty", "kamvar"}, default="penalty"
        Matrix whose eigenvectors are taken. "penalty": the smallest of
        :math:`\eta L(W) + (1 - \eta) L(A)`, with the graph A of links, 1 across must-links and -1
        across cannot-links, and :math:`L(A) = I - D^{-1/2} A D^{-1/2}`, where the degrees D are
        sums of absolute values. "kamvar": the largest of :math:`(W + d_{max} I - D) / d_{max}`. In
        six dimensions and more it takes single rows, of hardly any affinity, for clusters.
    eta : float, default=0.7
        What the affinities count beside the links, from 0 to 1 ("penalty" only); 1 is spectral
        clustering of the affinities.
    rho : float, default=1.0
        Range of the affinities, in deviations of the columns, from 1e-6 to 10**6.
    n_init : int, default=10
        Number of restarts of k-means, by k-means++, at most 10**6; the best by objective is kept.
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
    embedding_ : ndarray of shape (n_samples, n_clusters)
        The rows among the eigenvectors. Signs, and rotations within equal eigenvalues, are
        arbitrary.
    eigenvalues_ : ndarray of shape (n_clusters,)
        Of these eigenvectors.
    objective_ : float
        Sum of squared distances in this space to the nearest centre, which k-means minimises: not
        in nats, and not comparable between other matrices.
    objective_trace_ : ndarray
        The same after every iteration of the best restart; it never rises.
    n_iter_ : int
        Iterations of the best restart.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    classes_ : ndarray
        Sorted labels seen in ``y``, if there were any. Cluster i is the one that agrees best with
        class ``classes_[i]``, and further clusters are free.

    Notes
    -----
    The matrices have n^2 entries, in float64 whatever ``X`` is: more than 10,000 rows are refused.

    New rows have no place among the eigenvectors. They go to clusters as the rows of the fit are
    spread over these, weighted by affinities, which is a vote: p(c given x) is proportional to the
    sum of the affinities of x to the rows of c. The rows of `fit` are kept for that.

    References
    ----------
    Qian et al. (2016), "Affinity and penalty jointly constrained spectral clustering", of which
    "penalty" is a reading: how the published graph of links is normalised could not be confirmed.
    Kamvar, Klein and Manning (2003), who classify in the space in which "kamvar" clusters. The
    affinities are those of Śmieja and Geiger (2017), equation (16).

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import SemiSupervisedSpectral
    >>> X = np.concatenate([np.random.default_rng(0).normal(c, 1, (20, 2)) for c in (0, 8)])
    >>> labels = SemiSupervisedSpectral(2, random_state=0).fit(X).labels_
    >>> bool((labels[:20] == labels[0]).all())
    True
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    mode: Annotated[str, parameters.Choice(("penalty", "kamvar"))] = "penalty"
    eta: Annotated[float, parameters.Number(0, 1)] = 0.7
    rho: Annotated[float, parameters.Number(1e-6, 1e6)] = 1.0
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 300
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    _classes_share = True

    def fit(self, X, y=None, *, must_link=None, cannot_link=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        y : array-like of shape (n_samples,), optional
            Labels, -1 where unknown, of as many classes as there are: links between all labelled
            rows.
        must_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that should share a cluster.
        cannot_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that should not.

        Returns
        -------
        self

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if links contradict each other; the message says which.
        ValueError
            If there are more than 10,000 rows, if pairs are no pairs of rows, or if the data do not
            fit the parameters.
        TypeError
            If pairs are not integers.
        """
        return self._fit(X, y, must_link=must_link, cannot_link=cannot_link)

    def prepare(self, X, y, known=None, *, must_link=None, cannot_link=None) -> PairTask:
        """Check the input; see `Clusterer.prepare`."""
        task = super().prepare(X, y, must_link=must_link, cannot_link=cannot_link)
        n = len(task.X)
        if n > _MOST:
            raise ValueError(
                f"spectral clustering needs memory for n^2 affinities; got {n} rows; pass at most "
                f"{_MOST}, or use ConstrainedMixture"
            )
        check_range(task.X)
        Components(n, *task.kept(), "one of them only")
        return task

    def compute(self, task):
        """Find the eigenvectors, and run k-means among them; see `Clusterer.compute`."""
        X = task.X.astype(np.float64)
        deviation = X.std(0)
        varies = (task.X != task.X[:1]).any(0)
        # In units in which an affinity is exp(-d^2 / 2).
        self._scale = np.where(varies, 1 / np.where(varies, deviation, 1), 0) / self.rho
        self._centre = X.mean(0)
        self._kept = (X - self._centre) * self._scale
        with few_threads(len(X)):
            self.eigenvalues_, vectors = self._eigenvectors(task)
        length = np.sqrt((vectors**2).sum(1, keepdims=True))
        self.embedding_ = vectors / np.where(length > 0, length, 1)
        least = rounded(self.n_clusters, coarse(len(X), 64) * coarse(self.n_clusters, 16))
        features, among = lay_out(self.embedding_, codes(None, len(X)), least)
        among.calls = kmeans_calls(self, among, 0.0)
        result = super().compute(among)
        # Clusters are named after classes of the rows, which k-means is not told.
        among.X, among.fixed = task.X, task.fixed
        return [(features.scale**2, among, result)]

    def _eigenvectors(self, task: PairTask) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues (k,) and eigenvectors (n, k) of the chosen matrix."""
        signs = linked(codes(task.fixed, len(task.X)), task.must_link, task.cannot_link)
        weights = np.exp(-0.5 * cdist(self._kept, self._kept, "sqeuclidean"))
        np.fill_diagonal(weights, 0)
        weights = np.where(signs == 0, weights, np.maximum(signs, 0))
        n, k = len(weights), self.n_clusters
        if self.mode == "penalty":
            matrix = self.eta * laplacian(weights) + (1 - self.eta) * laplacian(signs)
            return eigh(matrix, subset_by_index=(0, k - 1))
        degree = weights.sum(1)
        most = degree.max() or 1.0
        matrix = (weights + np.diag(most - degree)) / most
        return eigh(matrix, subset_by_index=(n - k, n - 1))

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        unit, among, solutions = result[0]
        keep(self, among, solutions, unit=unit)
        self.cluster_centers_ = row_means(task.X, self.membership_)
        return self

    # New rows

    def predict_proba(self, X):  # type: ignore[override]
        """Shares of the affinities of new rows to the rows of each cluster of the fit.

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
        x = (self._validate(X, reset=False).astype(np.float64) - self._centre) * self._scale
        scores = np.full((len(x), self.n_clusters), -np.inf)
        for first in range(0, len(x), _BLOCK):
            block = slice(first, first + _BLOCK)
            near = -0.5 * cdist(x[block], self._kept, "sqeuclidean")
            for c in np.unique(self.labels_):
                scores[block, c] = logsumexp(near[:, self.labels_ == c], axis=1)
        return scores
