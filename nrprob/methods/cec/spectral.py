"""Spectral clustering with pairwise constraints.

Sizes: n rows, k clusters.
"""

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
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.pairs import PairEstimator, PairTask
from nrprob.links import Components
from nrprob.methods.cec.centres import class_codes, lay_out, store_result
from nrprob.methods.cec.partition_kmeans import kmeans_calls
from nrprob.settings import few_threads
from nrprob.statistics.rows import coarse_bucket, padded_count

_MAX_ROWS = 10_000  # maximum number of rows of a fit, which has n^2 affinities
_BLOCK = 1000  # new rows per block


def link_signs(codes: np.ndarray, must_link: np.ndarray, cannot_link: np.ndarray) -> np.ndarray:
    """Sign of every pair of rows (n, n): 1 if must-linked, -1 if cannot-linked, else 0.

    ``codes`` (n,) are the classes, -1 where unknown. Rows of one class are must-linked, and rows of
    different classes cannot-linked. ``must_link`` and ``cannot_link`` (pairs, 2) are further pairs.
    """
    known = codes >= 0
    signs = np.where(codes[:, None] == codes, 1.0, -1.0)
    signs[~known] = signs[:, ~known] = 0
    for pairs, sign in ((must_link, 1), (cannot_link, -1)):
        signs[pairs[:, 0], pairs[:, 1]] = signs[pairs[:, 1], pairs[:, 0]] = sign
    np.fill_diagonal(signs, 0)
    return signs


def normalised_laplacian(weights: np.ndarray) -> np.ndarray:
    """Signed normalised Laplacian I - D^(-1/2) A D^(-1/2) of weights A (n, n).

    D is the diagonal matrix of the row sums of absolute weights. If all weights of a row are 0, the
    row of the Laplacian is 0 as well, even on the diagonal.
    """
    degree = np.abs(weights).sum(1)
    root = np.where(degree > 0, 1 / np.sqrt(np.where(degree > 0, degree, 1)), 0)
    return np.diag((degree > 0).astype(float)) - root[:, None] * weights * root


@parameters.constructor
class SemiSupervisedSpectral(PairEstimator):
    r"""Spectral clustering with soft pairwise constraints.

    The affinity of rows i and j is

    .. math:: W_{ij} = \exp\left(-\sum_l \frac{(x_{il} - x_{jl})^2}{2 \rho^2 \sigma_l^2}\right)

    where :math:`\sigma_l` is the standard deviation of column l and :math:`\rho` (``rho``) the
    range. W is 0 on the diagonal, 1 for must-linked rows and 0 for cannot-linked rows. Labels act
    as must-links within classes and cannot-links between classes. With ``mode="penalty"``, the
    embedding U (n_samples, n_clusters) solves

    .. math:: \min_{U^\top U = I} \operatorname{tr} U^\top
        \left[\eta L(W) + (1 - \eta) L(A)\right] U,
        \qquad L(A) = I - D^{-1/2} A D^{-1/2}

    where A is the matrix of links, 1 for must-linked and -1 for cannot-linked rows. :math:`\eta`
    (``eta``) weighs the affinities against the links. D is the diagonal matrix of the degrees,
    which are the row sums of the absolute values of A. L(W) is defined like L(A). The rows of U are
    scaled to length 1 and clustered by k-means. Links are soft: the clusters may violate them.

    Parameters
    ----------
    <n_clusters>
    mode : {"penalty", "kamvar"}, default="penalty"
        Matrix of the embedding. "penalty" takes the eigenvectors of the smallest eigenvalues of
        the matrix above. "kamvar" takes eigenvectors of the largest eigenvalues of
        :math:`(W + d_{max} I - D) / d_{max}`, where D are the degrees of W and :math:`d_{max}` is
        the largest degree. From six dimensions on, "kamvar" tends to isolate single rows of low
        degree.
    eta : float, default=0.7
        Weight of the affinities against the links, used with ``mode="penalty"`` only. Lower it to
        follow the links more closely; 1 is spectral clustering of W. From 0 to 1.
    rho : float, default=1.0
        Range of the affinities in standard deviations of the columns. Lower it for clusters of
        irregular shape. From 1e-6 to 10**6.
    n_init : int, default=10
        Number of k-means++ restarts; the restart of the smallest objective is kept. At most 10**6.
    max_iter : int, default=300
        Maximum number of k-means iterations per restart; at most 10**6.
    <random_state>
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot form of ``labels_``.
    <n_clusters_>
    <cluster_centers_>
    embedding_ : ndarray of shape (n_samples, n_clusters)
        Rows of U, scaled to length 1. Signs, and rotations within equal eigenvalues, are
        arbitrary.
    eigenvalues_ : ndarray of shape (n_clusters,)
        Eigenvalues of the columns of U.
    objective_ : float
        Objective of k-means: the sum of squared distances of the embedded rows to their centres.
        The objective is not in nats, and not comparable between different ``eta``, ``rho`` or
        ``mode``.
    objective_trace_ : ndarray of shape (n_iter_,)
        Objective after every iteration of the best restart; non-increasing.
    n_iter_ : int
        Number of iterations of the best restart.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    classes_ : ndarray of shape (n_classes,)
        Sorted labels in ``y``, if ``y`` is given. Clusters are matched to classes one-to-one and
        numbered in the order of their classes: cluster i is matched to class ``classes_[i]`` if
        there are at most ``n_clusters`` classes, and further clusters have no class.

    See Also
    --------
    ConstrainedMixture : Gaussian mixture with hard must-links and cannot-links.
    COPKMeans : k-means with hard must-links and cannot-links.
    MDLConstrained : Information-based clustering with hard or soft links.

    Notes
    -----
    The algorithm has four steps:

    1. Compute W, and replace the entries of linked pairs.
    2. Compute ``n_clusters`` eigenvectors of the matrix of ``mode``.
    3. Scale the rows of the embedding to length 1.
    4. Run k-means with ``n_init`` restarts, and match clusters to classes.

    The matrices have n² entries in float64 whatever the type of ``X``: memory is
    :math:`O(n^2)`, the eigenvectors cost up to :math:`O(n^3)`, and a k-means iteration costs
    :math:`O(n k^2)`. `fit` raises ValueError for more than 10,000 rows.

    New rows have no eigenvector entries. p(c given x) is proportional to the sum of the affinities
    of x to the fitted rows of cluster c. Therefore the model stores the rows of `fit`.

    References
    ----------
    P. Qian et al. (2016), "Affinity and penalty jointly constrained spectral clustering with
    all-compatibility, flexibility, and robustness", IEEE Transactions on Neural Networks and
    Learning Systems. ``mode="penalty"`` interprets this paper: the normalisation of the published
    graph of links could not be confirmed.

    S. D. Kamvar, D. Klein and C. D. Manning (2003), "Spectral learning", International Joint
    Conference on Artificial Intelligence. The paper classifies rows in the embedding of
    ``mode="kamvar"``.

    M. Śmieja and B. C. Geiger (2017), "Semi-supervised cross-entropy clustering with information
    bottleneck constraint", Information Sciences 421. Equation (16) defines the affinities.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import SemiSupervisedSpectral
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(centre, 1, (20, 2)) for centre in (0, 8)])
    >>> model = SemiSupervisedSpectral(2, random_state=0).fit(X, must_link=[[0, 1]])
    >>> np.bincount(model.labels_).tolist()
    [20, 20]
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

    capabilities = Capabilities(known=(), pairs=True, alone=True, arrays=("nn", "nkr"))
    _classes_share = True

    def fit(self, X, y=None, *, must_link=None, cannot_link=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
            Continuous features.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. Labels act as must-links within classes and
            cannot-links between classes. There may be more or fewer classes than ``n_clusters``.
        must_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that should share a cluster.
        cannot_link : int array-like of shape (n_pairs, 2), optional
            Pairs of rows that should be in different clusters.

        Returns
        -------
        self

        Raises
        ------
        InfeasibleConstraints
            A ValueError, if links contradict each other; the message lists the rows in conflict.
        ValueError
            If ``X`` has more than 10,000 rows, if an index of a pair is out of range, or if the
            data do not fit the parameters.
        TypeError
            If pairs are not integers.
        """
        return self._fit(X, y, must_link=must_link, cannot_link=cannot_link)

    def prepare(self, X, y, known=None, *, must_link=None, cannot_link=None) -> PairTask:
        """Check the input; see `Clusterer.prepare`."""
        task = super().prepare(X, y, must_link=must_link, cannot_link=cannot_link)
        n = len(task.X)
        if n > _MAX_ROWS:
            raise ValueError(
                f"spectral clustering needs memory for n^2 affinities; got {n} rows; pass at most "
                f"{_MAX_ROWS}, or use ConstrainedMixture"
            )
        Components(n, *task.hard_pairs(), "one of them only")
        return task

    def compute(self, task):
        """Compute the embedding and run k-means on it; see `Clusterer.compute`."""
        X = task.X.astype(np.float64)
        deviation = X.std(0)
        varies = (task.X != task.X[:1]).any(0)
        # Scale columns so that an affinity is exp(-d^2 / 2).
        self._scale = np.where(varies, 1 / np.where(varies, deviation, 1), 0) / self.rho
        self._centre = X.mean(0)
        self._kept = (X - self._centre) * self._scale
        with few_threads(len(X)):
            self.eigenvalues_, vectors = self._leading_eigenvectors(task)
        # Scale the rows of the embedding to length 1.
        length = np.sqrt((vectors**2).sum(1, keepdims=True))
        self.embedding_ = vectors / np.where(length > 0, length, 1)
        least = padded_count(
            self.n_clusters, coarse_bucket(len(X), 64) * coarse_bucket(self.n_clusters, 16)
        )
        features, among = lay_out(self.embedding_, class_codes(None, len(X)), least)
        among.calls = kmeans_calls(self, among, 0.0)
        result = super().compute(among)
        # k-means ignores the classes; `finish` matches its clusters to them.
        among.X, among.fixed = task.X, task.fixed
        return [(features.scale**2, among, result)]

    def _leading_eigenvectors(self, task: PairTask) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues (k,) and eigenvectors (n, k) of the matrix that ``mode`` selects."""
        signs = link_signs(class_codes(task.fixed, len(task.X)), task.must_link, task.cannot_link)
        # Affinities, replaced by 1 or 0 where a pair is linked.
        weights = np.exp(-0.5 * cdist(self._kept, self._kept, "sqeuclidean"))
        np.fill_diagonal(weights, 0)
        weights = np.where(signs == 0, weights, np.maximum(signs, 0))
        n, k = len(weights), self.n_clusters
        if self.mode == "penalty":
            matrix = self.eta * normalised_laplacian(weights) + (
                1 - self.eta
            ) * normalised_laplacian(signs)
            return eigh(matrix, subset_by_index=(0, k - 1))
        degree = weights.sum(1)
        most = degree.max() or 1.0
        matrix = (weights + np.diag(most - degree)) / most
        return eigh(matrix, subset_by_index=(n - k, n - 1))

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        unit, among, solutions = result[0]
        store_result(self, among, solutions, unit=unit)
        self.cluster_centers_ = row_means(task.X, self.membership_)
        return self

    # New rows

    def predict_proba(self, X):  # type: ignore[override]
        """p(cluster given row) of new rows, from their affinities to the fitted rows.

        The probability of a cluster is proportional to the sum of the affinities of the new row to
        the fitted rows of the cluster.

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
