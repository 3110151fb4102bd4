"""Compactness and separation of the clusters of one partition."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nrprob.data.validation import check_choice, check_rows
from nrprob.metrics.partitions import BLOCK_SIZE, Codes, Labels, _encode, _same_length

__all__ = ["dunn_index", "silhouette_width", "vector_quantization_error"]


def _rows_and_codes(X: ArrayLike, labels: Labels) -> tuple[NDArray[np.float64], Codes]:
    from sklearn.utils import check_array

    from nrprob.statistics.features import check_range

    points = check_rows(X, check_array, dtype=np.float64, input_name="X")
    check_range(points)
    codes = _encode(labels, "labels")
    _same_length(len(points), len(codes), ("X", "labels"))
    return points, codes


def dunn_index(
    X: ArrayLike,
    labels: Labels,
    *,
    separation: Literal["single", "average", "centroid"] = "single",
    diameter: Literal["max", "mean", "radius"] = "max",
) -> float:
    r"""Smallest separation of two clusters over the largest diameter of one.

    .. math:: \min_{i \ne j} \delta(c_i, c_j) \,/\, \max_l \Delta(c_l)

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Points; distances are Euclidean.
    labels : sequence of hashable of shape (n_samples,)
        Clusters.
    separation : {"single", "average", "centroid"}, default="single"
        Distance of two clusters: of their nearest points, the mean over pairs of points, or of
        their means.
    diameter : {"max", "mean", "radius"}, default="max"
        Extent of a cluster: the largest or the mean distance of two of its points, or the mean
        distance of its points to their mean. A single point has diameter 0.

    Returns
    -------
    float
        Non-negative, larger is better; `nan` for fewer than two clusters or if every cluster is
        a single point; `inf` if every cluster collapses to a point but they lie apart.

    Raises
    ------
    ValueError
        As for `contingency`; also if `X` is not a finite two-dimensional array with a row per
        label, or for another `separation` or `diameter`.
    TypeError
        As for `contingency`.

    Notes
    -----
    Dang and Bailey (2010), section 5.1, leave both distances open; values of the size of theirs
    need ``separation="average", diameter="mean"``. Takes O(n_samples^2) time; memory is bounded.

    Examples
    --------
    >>> from nrprob.metrics import dunn_index
    >>> dunn_index([[0], [1], [5], [6]], [0, 0, 1, 1])
    4.0
    """
    from scipy.spatial.distance import cdist

    check_choice("separation", separation, ("single", "average", "centroid"))
    check_choice("diameter", diameter, ("max", "mean", "radius"))
    points, codes = _rows_and_codes(X, labels)
    sizes = np.bincount(codes)
    k = len(sizes)
    if k < 2 or sizes.max() == 1:
        return math.nan

    order = np.argsort(codes, kind="stable")
    points, codes = points[order], codes[order]
    starts = np.cumsum(sizes) - sizes
    centroids = np.add.reduceat(points, starts) / sizes[:, None]
    nearest, farthest, total = np.full((k, k), np.inf), np.zeros((k, k)), np.zeros((k, k))
    if separation != "centroid" or diameter != "radius":
        rows = max(1, BLOCK_SIZE // len(points))
        for first in range(0, len(points), rows):
            block = slice(first, first + rows)
            distances = cdist(points[block], points)
            np.minimum.at(nearest, codes[block], np.minimum.reduceat(distances, starts, axis=1))
            np.maximum.at(farthest, codes[block], np.maximum.reduceat(distances, starts, axis=1))
            np.add.at(total, codes[block], np.add.reduceat(distances, starts, axis=1))

    if separation == "single":
        between = nearest
    elif separation == "average":
        between = total / np.outer(sizes, sizes)
    else:
        between = cdist(centroids, centroids)
    if diameter == "max":
        within = farthest.diagonal()
    elif diameter == "mean":
        within = total.diagonal() / np.maximum(sizes * (sizes - 1), 1)
    else:
        radii = np.linalg.norm(points - centroids[codes], axis=1)
        within = np.bincount(codes, weights=radii) / sizes
    gap, extent = between[~np.eye(k, dtype=bool)].min(), within.max()
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(gap / extent)


def silhouette_width(X: ArrayLike, labels: Labels) -> float:
    r"""Mean over points of how much nearer they are to their own cluster than to another.

    .. math:: \frac{1}{N} \sum_i \frac{b_i - a_i}{\max(a_i, b_i)}

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Points; distances are Euclidean.
    labels : sequence of hashable of shape (n_samples,)
        Clusters.

    Returns
    -------
    float
        Between -1 and 1, larger is better; `nan` for fewer than two clusters or if every cluster
        is a single point.

    Raises
    ------
    ValueError
        As for `contingency`; also if `X` is not a finite two-dimensional array with a row per
        label.
    TypeError
        As for `contingency`.

    Notes
    -----
    Rousseeuw (1987), by scikit-learn: a is the mean distance to the other points of the own
    cluster, b the smallest mean distance to those of another; a single point counts 0. Takes
    O(n_samples^2) time; memory is bounded.

    Examples
    --------
    >>> from nrprob.metrics import silhouette_width
    >>> round(silhouette_width([[0], [1], [5], [6]], [0, 0, 1, 1]), 4)
    0.798
    """
    from sklearn.metrics import silhouette_score

    points, codes = _rows_and_codes(X, labels)
    if not 2 <= codes.max() + 1 < len(codes):
        return math.nan
    return float(silhouette_score(points, codes))


def vector_quantization_error(X: ArrayLike, labels: Labels) -> float:
    r"""Mean squared distance of points to the mean of their cluster.

    .. math:: \frac{1}{N} \sum_k \sum_{i \in c_k} \lVert x_i - m_k \rVert^2

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Points; distances are Euclidean.
    labels : sequence of hashable of shape (n_samples,)
        Clusters.

    Returns
    -------
    float
        In squared units of `X`, smaller is better: 0 if every cluster collapses to a point, the
        sum of the features' variances for one cluster. Never rises when a cluster is split, so
        report the number of clusters beside it.

    Raises
    ------
    ValueError, TypeError
        As for `silhouette_width`.

    Notes
    -----
    What k-means minimises (Lloyd, 1982), per point; papers that print the sum have n_samples times
    as much.

    Examples
    --------
    >>> from nrprob.metrics import vector_quantization_error
    >>> vector_quantization_error([[0], [1], [5], [6]], [0, 0, 1, 1])
    0.25
    """
    points, codes = _rows_and_codes(X, labels)
    sizes = np.bincount(codes)
    order = np.argsort(codes, kind="stable")
    means = np.add.reduceat(points[order], np.cumsum(sizes) - sizes) / sizes[:, None]
    return float(np.square(points - means[codes]).sum() / len(points))
