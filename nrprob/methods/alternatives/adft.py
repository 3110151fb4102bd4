"""ADFT: learn the metric behind the known groups, invert it, and cluster again."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

from nrprob.estimator import parameters
from nrprob.exceptions import warn
from nrprob.known import Groups, Known
from nrprob.methods.alternatives.transforms import MovedClusterer
from nrprob.statistics.groups import group_means

_PAIRS = 4000  # of rows of different groups
_RANK = 1e-10  # of the largest singular value: a direction in which rows do not vary
_RIDGE = 1e-6  # of the rows' mean variance, added to that within groups
_TINY = 1e-300  # a squared length whose root still has a derivative


def within_groups(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Mean (m, m) of d d' over all pairs of rows (n, m) of one group, with differences d."""
    apart = x - group_means(x, codes)[codes]
    sizes = np.bincount(codes)
    return (apart * sizes[codes][:, None]).T @ apart / (sizes * (sizes - 1) / 2).sum()


def across_groups(
    x: np.ndarray, codes: np.ndarray, most: int, random: np.random.RandomState
) -> np.ndarray:
    """Differences of rows (n, m) of different groups: of all pairs, or of ``most`` drawn ones."""
    n = len(x)
    if n * n <= 4 * most:
        one, other = np.triu_indices(n, 1)
        apart = codes[one] != codes[other]
        return x[one[apart]] - x[other[apart]]
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    others = (n - sizes)[codes[order]]
    first = random.choice(n, most, p=others / others.sum())
    # Of rows sorted by group, those of other groups follow the last of the own one, in a circle.
    end = np.cumsum(sizes)[codes[order[first]]]
    second = (end + random.randint(0, others[first])) % n
    return x[order[first]] - x[order[second]]


class Metric(NamedTuple):
    """A learnt metric.

    Attributes
    ----------
    a : (m, m) positive semidefinite A
    trace : mean distance across groups after every step; it rises
    converged : bool
    """

    a: np.ndarray
    trace: np.ndarray
    converged: bool


def learn_metric(within: np.ndarray, across: np.ndarray, max_iter: int, tol: float) -> Metric:
    r"""Metric A that maximises the mean of sqrt(d' A d) across groups where tr(A W) = 1.

    The problem is concave in A, so that all ways to its maximum lead to the same. With
    :math:`A = V L L' V'` and V V' the inverse of W, scale-free in L, it has no constraint.

    Parameters
    ----------
    within : (m, m) positive definite W
    across : (pairs, m) differences d
    max_iter, tol : of L-BFGS; ``tol`` is the relative gain of a step that is none
    """
    variances, turn = np.linalg.eigh(within)
    white = turn / np.sqrt(variances)
    e = across @ white
    m = len(within)

    def loss(flat):
        """Minus the log of the objective, whatever the scale of L, and its derivative."""
        root = flat.reshape(m, m)
        along = e @ root
        lengths = np.sqrt((along**2).sum(1) + _TINY)
        size, mean = (root**2).sum(), lengths.mean()
        slope = e.T @ (along / lengths[:, None]) / (len(e) * mean)
        return 0.5 * np.log(size) - np.log(mean), (root / size - slope).ravel()

    # The Euclidean metric, in white coordinates.
    start = np.linalg.inv(white)
    trace = [np.exp(-loss(start.ravel())[0])]
    result = minimize(
        loss, start.ravel(), jac=True, method="L-BFGS-B",
        callback=lambda flat: trace.append(np.exp(-loss(flat)[0])),
        options={"maxiter": max_iter, "maxfun": 10 * max_iter, "ftol": tol, "gtol": 0.0},
    )  # fmt: skip
    root = white @ result.x.reshape(m, m)
    root /= np.linalg.norm(result.x)
    return Metric(root @ root.T, np.array(trace), bool(result.nit < max_iter))


def inverted(a: np.ndarray, floor: float) -> np.ndarray:
    """Inverse square root of A, its largest eigenvalue being 1.

    Stretches, the eigenvalues of the root of A, count as ``floor`` of the largest at least.
    """
    square, turn = np.linalg.eigh(a)
    stretch = np.sqrt(np.maximum(square, 0))
    stretch = np.maximum(stretch, floor * stretch.max())
    return (turn * (stretch.min() / stretch)) @ turn.T


@parameters.constructor
class ADFT(MovedClusterer):
    r"""Alternative distance function transformation: invert the metric behind what is known.

    The metric :math:`A \succeq 0` in which the known groups are apart and hang together,

    .. math::
        \max_A \; \operatorname{mean}_{z_i \ne z_j} \sqrt{d_{ij}' A d_{ij}} \quad \text{where} \quad
        \operatorname{mean}_{z_i = z_j} d_{ij}' A d_{ij} \le 1, \qquad d_{ij} = x_i - x_j

    stretches the directions that tell them from each other. With :math:`A^{1/2} = H S H'` the rows
    are moved by the inverse, :math:`x \leftarrow H S^{-1} H' x`, which shrinks these and stretches
    the others, and a base clusterer sees them so.

    Parameters
    ----------
    <n_clusters>
    base : {"em", "kmeans"} or clusterer, default="em"
        What clusters the moved rows: a mixture of spherical normal components from random rows, or
        k-means, both of scikit-learn, or a clusterer with ``fit_predict``, which gets
        ``n_clusters``, and a seed if it has none.
    floor : float, default=1e-3
        Least stretch, as a share of the largest, from 1e-9 to 1. A is often singular, and this is
        how far the directions that the known groups say nothing of are blown up; 1 moves nothing.
    n_init : int, default=10
        Number of restarts of the base, at most 10**6; the best by objective is kept. A clusterer of
        your own brings its own number.
    max_iter : int, default=300
        Most steps to the metric, and most iterations of the base; at most 10**6.
    tol : float, default=1e-4
        When the base has converged, in its own terms; from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the pairs that are drawn, and the starts of the base.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        p(cluster given row) by the base "em"; else one-hot.
    <n_clusters_>
    metric_ : ndarray of shape (n_features, n_features)
        A, per squared unit of the features, 0 along directions in which rows do not vary.
    metric_trace_ : ndarray
        Mean distance across groups after every step to A; it rises. Empty if there is no metric to
        learn.
    transformation_ : ndarray of shape (n_features, n_features)
        By which rows, from their mean, are multiplied: it shrinks nothing but what A stretches
        less than most, and has 1 for its largest stretch.
    objective_ : float
        Of the moved rows: minus the log likelihood in nats of the base "em"; the sum of squared
        distances to the centres of any other base, whatever it minimises.
    objective_trace_ : ndarray
        ``objective_`` alone, as the base tells of no step before.
    <cluster_centers_>
    n_iter_ : int
        Iterations of the best restart of the base; 1 of a clusterer of your own.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>

    Notes
    -----
    Of several known labelings, rows that share all their labels are alike, and all others differ.
    Means are over all pairs of alike rows, and over all pairs of others or 4000 that are drawn.
    A millionth of the mean variance is added to that within groups, without which there is no
    maximum where a group does not vary in all directions. Without ``known``, or with one group, the
    base clusters the rows as they are.

    References
    ----------
    Davidson and Qi (2008), "Finding alternative clusterings using constraints"; the metric is that
    of Xing, Ng, Jordan and Russell (2002). Means over pairs, the floor, and the way to the maximum
    are this package's own.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ADFT
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = np.stack([8 * known, 6 * sought], 1) + rng.normal(size=(100, 2))
    >>> labels = ADFT(2, random_state=0).fit(X, known=known).labels_
    >>> bool(max((labels == sought).mean(), (labels != sought).mean()) > 0.95)
    True
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

    def _learn(
        self, x: np.ndarray, known: Known, groups: Groups, random: np.random.RandomState
    ) -> np.ndarray:
        m, scale = x.shape[1], self._scaled.scale
        self.metric_, self.metric_trace_ = np.eye(m) / scale**2, np.empty(0)
        self.transformation_ = np.eye(m)
        codes = groups.codes
        if groups.n_groups == 1 or not x.any():
            return x
        if m == 1:
            raise ValueError(
                "a metric of one feature says nothing but a unit, so there is nothing to invert; "
                "got n_features=1; pass more features"
            )
        _, singular, axes = np.linalg.svd(x, full_matrices=False)
        axes = axes[singular > _RANK * singular[0]]
        y = x @ axes.T
        p = len(axes)
        within = within_groups(y, codes) + _RIDGE / p * np.eye(p)
        across = across_groups(y, codes, _PAIRS, random)
        result = learn_metric(within, across, self.max_iter, 1e-9)
        if not result.converged:
            warn(
                f"the metric did not converge; got max_iter={self.max_iter}; raise max_iter",
                ConvergenceWarning,
            )
        self.metric_ = axes.T @ result.a @ axes / scale**2
        self.metric_trace_ = result.trace
        self.transformation_ = axes.T @ inverted(result.a, self.floor) @ axes
        return x @ self.transformation_

    def _move(self, x: np.ndarray, known: Any) -> np.ndarray:
        return x @ self.transformation_

    def predict(self, X, *, known=None):
        """Cluster of new rows: moved as those of the fit, and placed by the base.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        known : ignored
            All rows are moved alike.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)
