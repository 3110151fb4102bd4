"""ADFT: alternative clustering with the inverse of a metric learnt from known groups.

Sizes: n rows of m features.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from nrprob.data.design import Design
from nrprob.estimator import parameters
from nrprob.exceptions import warn
from nrprob.methods.alternatives.transforms import TransformClusterer
from nrprob.statistics.groups import group_means

_PAIRS = 4000  # pairs of rows from different groups
_RANK = 1e-10  # directions below this share of the largest singular value are constant
_RIDGE = 1e-6  # share of the mean variance that is added to the within-group scatter
_LIMIT_REACHED = 1  # status of L-BFGS-B after max_iter iterations, or too many evaluations
_TINY = 1e-300  # added to squared lengths, so that the square root has a derivative


def within_scatter(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Within-group scatter (m, m): the mean of d d' over all pairs of rows of one known group.

    ``x`` (n, m) are the rows, ``codes`` (n,) their groups, and d is the difference of two rows.
    """
    centred = x - group_means(x, codes)[codes]
    sizes = np.bincount(codes)
    return (centred * sizes[codes][:, None]).T @ centred / (sizes * (sizes - 1) / 2).sum()


def across_differences(
    x: np.ndarray, codes: np.ndarray, n_pairs: int, random: np.random.RandomState
) -> np.ndarray:
    """Differences (pairs, m) of two rows in different known groups.

    All such pairs are used if n^2 <= 4 ``n_pairs``, else a random sample of ``n_pairs`` pairs with
    replacement. ``x`` (n, m) are the rows, and ``codes`` (n,) their groups.
    """
    n = len(x)
    if n * n <= 4 * n_pairs:
        first, second = np.triu_indices(n, 1)
        different = codes[first] != codes[second]
        return x[first[different]] - x[second[different]]
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    others = (n - sizes)[codes[order]]
    # Sample the first row of a pair with probability proportional to the number of rows in other
    # groups.
    first = random.choice(n, n_pairs, p=others / others.sum())
    # Sort rows by group and arrange them in a circle: the rows of other groups follow the last row
    # of this group.
    end = np.cumsum(sizes)[codes[order[first]]]
    second = (end + random.randint(0, others[first])) % n
    return x[order[first]] - x[order[second]]


class Metric(NamedTuple):
    """Learnt metric, the result of `learn_metric`.

    Attributes
    ----------
    a : (m, m) positive semidefinite matrix A of the squared distances d' A d
    trace : objective after each iteration; it never decreases
    converged : whether the optimiser converged
    """

    a: np.ndarray
    trace: np.ndarray
    converged: bool


def learn_metric(within: np.ndarray, across: np.ndarray, max_iter: int, tol: float) -> Metric:
    r"""Find the metric A with the largest mean distance between rows of different groups.

    The mean of sqrt(d' A d) over differences d is maximised subject to tr(A W) = 1. The problem is
    concave in A, so every local maximum is global. The substitution :math:`A = V L L' V'` with
    :math:`V V' = W^{-1}` removes the constraint.

    Parameters
    ----------
    within : (m, m) positive definite within-group scatter W
    across : (pairs, m) differences d of rows in different groups
    max_iter, tol : maximum number of iterations and relative tolerance of L-BFGS
    """
    # Whiten the differences by W.
    variances, eigenvectors = np.linalg.eigh(within)
    white = eigenvectors / np.sqrt(variances)
    e = across @ white
    m = len(within)

    def negative_log_objective(flat):
        """Negative log objective at the matrix L with the entries ``flat``, and its gradient.

        The objective does not depend on the scale of L.
        """
        root = flat.reshape(m, m)
        projected = e @ root
        lengths = np.sqrt((projected**2).sum(1) + _TINY)
        size, mean = (root**2).sum(), lengths.mean()
        slope = e.T @ (projected / lengths[:, None]) / (len(e) * mean)
        return 0.5 * np.log(size) - np.log(mean), (root / size - slope).ravel()

    # Start from the Euclidean metric, in whitened coordinates.
    start = np.linalg.inv(white)
    trace = [np.exp(-negative_log_objective(start.ravel())[0])]
    result = minimize(
        negative_log_objective, start.ravel(), jac=True, method="L-BFGS-B",
        callback=lambda flat: trace.append(np.exp(-negative_log_objective(flat)[0])),
        options={"maxiter": max_iter, "maxfun": 10 * max_iter, "ftol": tol, "gtol": 0.0},
    )  # fmt: skip
    # Return to the original coordinates, with tr(A W) = 1.
    root = white @ result.x.reshape(m, m)
    root /= np.linalg.norm(result.x)
    return Metric(root @ root.T, np.array(trace), result.status != _LIMIT_REACHED)


def invert_metric(a: np.ndarray, floor: float) -> np.ndarray:
    """Inverse square root of a metric ``a`` (m, m), scaled to a largest eigenvalue of 1.

    Before the inversion, the eigenvalues of the square root of ``a`` are raised to at least
    ``floor`` times the largest of them.
    """
    square, eigenvectors = np.linalg.eigh(a)
    stretch = np.sqrt(np.maximum(square, 0))
    stretch = np.maximum(stretch, floor * stretch.max())
    return (eigenvectors * (stretch.min() / stretch)) @ eigenvectors.T


@parameters.constructor
class ADFT(TransformClusterer):
    r"""Alternative distance function transformation (ADFT).

    ADFT learns the metric :math:`A \succeq 0` that separates the known groups,

    .. math::
        \max_A \; \operatorname{mean}_{z_i \ne z_j} \sqrt{d_{ij}' A d_{ij}}
        \quad \text{subject to} \quad
        \operatorname{mean}_{z_i = z_j} d_{ij}' A d_{ij} \le 1, \qquad d_{ij} = x_i - x_j,

    where :math:`x_i` is row i and :math:`z_i` its known group. With the eigendecomposition
    :math:`A^{1/2} = H S H'`, ADFT transforms every row by the inverse,
    :math:`x \leftarrow H S^{-1} H' x`. The transformation shrinks the directions that separate the
    known groups. A base clusterer then clusters the transformed rows.

    Parameters
    ----------
    <n_clusters>
    base : {"em", "kmeans"} or clusterer, default="em"
        Clusterer of the transformed rows. "em" is a spherical Gaussian mixture, initialised at
        random rows, and "kmeans" is k-means, both from scikit-learn. Any clusterer with
        ``fit_predict`` is accepted; ADFT sets the number of clusters of this clusterer, and
        ``random_state`` of this clusterer if it is None.
    floor : float, default=1e-3
        Lower bound of the eigenvalues S, as a share of the largest. A is often singular, so
        ``floor`` bounds how strongly the remaining directions are stretched. Raise it if noise
        dominates the transformed rows; 1 disables the transformation. From 1e-9 to 1.
    n_init : int, default=10
        Number of restarts of the base; the solution with the best objective is kept. A base that
        you pass is fitted once. At most 10**6.
    max_iter : int, default=300
        Maximum number of iterations of the metric, and of the base; at most 10**6.
    tol : float, default=1e-4
        Convergence tolerance of the base, as scikit-learn defines it; from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the sampled pairs and the initial values of the base.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        Posterior probabilities of the clusters for base "em"; one-hot for all other bases.
    <n_clusters_>
    metric_ : ndarray of shape (n_features, n_features)
        A, per squared unit of the features; 0 along directions in which the rows are constant.
    metric_trace_ : ndarray of shape (n_metric_iter + 1,)
        Mean distance across known groups after each iteration of A; it never decreases. Empty
        without two known groups.
    transformation_ : ndarray of shape (n_features, n_features)
        Matrix that multiplies the centred rows. Its largest eigenvalue is 1.
    objective_ : float
        For base "em", the negative log likelihood of the transformed rows in nats. For all other
        bases, the sum of squared distances to the cluster means of the transformed rows.
    objective_trace_ : ndarray of shape (1,)
        ``objective_``; the bases report no earlier iterations.
    <cluster_centers_>
    n_iter_ : int
        Iterations of the best restart of the base; 1 for a base that you pass.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>

    See Also
    --------
    Orthogonalization : Removes the directions of the known means instead.
    NACI : Alternative clusters of any shape.
    ConditionalMixture : Gaussian mixture of the residuals from known structure.

    Notes
    -----
    Algorithm:

    1. Average :math:`d_{ij} d_{ij}'` over all pairs within known groups, and add a ridge of 1e-6
       times the mean variance. Without the ridge, a direction that is constant within groups would
       make A unbounded.
    2. Maximise the mean distance over pairs of rows from different groups by L-BFGS. For more than
       126 rows, ADFT samples 4000 such pairs.
    3. Transform the rows by the inverse square root of A, and fit the base.

    An iteration of step 2 takes O(4000 p^2) time for p features. Memory is O((n + 4000) p) for n
    rows.

    With several known labelings, two rows belong to the same group if they agree in all labelings.
    Without ``known``, or with one group, ADFT fits the base to the rows without transformation.

    References
    ----------
    Davidson, I. and Qi, Z. (2008), "Finding alternative clusterings using constraints", IEEE
    International Conference on Data Mining, 773-778, doi:10.1109/ICDM.2008.141.

    Xing, E. P., Ng, A. Y., Jordan, M. I. and Russell, S. (2002), "Distance metric learning, with
    application to clustering with side-information", Advances in Neural Information Processing
    Systems 15.

    Averaging over pairs, ``floor`` and the optimiser are specific to this package.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ADFT, metrics
    >>> rng = np.random.default_rng(0)
    >>> known, target = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * known, 6 * target], 1) + rng.normal(size=(100, 2))
    >>> model = ADFT(2, random_state=0).fit(X, known=known)
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, target):.2f}")
    1.00
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    base: Any = "em"
    floor: Annotated[float, parameters.Number(1e-9, 1)] = 1e-3
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 300
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def _learn_transform(
        self, x: np.ndarray, design: Design, random: np.random.RandomState
    ) -> np.ndarray:
        m, scale = x.shape[1], self._scaled.scale
        self.metric_, self.metric_trace_ = np.eye(m) / scale**2, np.empty(0)
        self.transformation_ = np.eye(m)
        codes = design.codes
        if design.n_groups == 1 or not x.any():
            return x
        if m == 1:
            raise ValueError(
                "a metric of one feature only sets its unit, so there is no metric to invert; "
                "got n_features=1; pass more features"
            )
        # Restrict the rows to the directions in which they vary.
        _, singular, axes = np.linalg.svd(x, full_matrices=False)
        axes = axes[singular > _RANK * singular[0]]
        y = x @ axes.T
        p = len(axes)
        # Learn the metric from pairs within and across known groups.
        within = within_scatter(y, codes) + _RIDGE / p * np.eye(p)
        across = across_differences(y, codes, _PAIRS, random)
        result = learn_metric(within, across, self.max_iter, 1e-9)
        if not result.converged:
            warn(
                f"the metric did not converge; got max_iter={self.max_iter}; raise max_iter",
                ConvergenceWarning,
            )
        self.metric_ = axes.T @ result.a @ axes / scale**2
        self.metric_trace_ = result.trace
        self.transformation_ = axes.T @ invert_metric(result.a, self.floor) @ axes
        return x @ self.transformation_

    def _apply_transform(self, x: np.ndarray, known: Any) -> np.ndarray:
        return x @ self.transformation_

    def predict(self, X, *, known=None):
        """Transform new rows, and assign them to clusters by the base clusterer.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored
            The transformation is the same for all rows.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)
