"""Compactness and separation of the clusters of one partition."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nrprob.data.validation import check_choice, check_rows
from nrprob.metrics.partitions import BLOCK_SIZE, Codes, Labels, _check_same_length, _encode_labels

__all__ = ["dunn_index", "silhouette_width", "vector_quantization_error"]


def _rows_and_codes(X: ArrayLike, labels: Labels) -> tuple[NDArray[np.float64], Codes]:
    """Validate samples ``X`` (n, m) and labels (n,); return floats (n, m) and integers (n,)."""
    from sklearn.utils import check_array

    from nrprob.statistics.features import check_range

    points = check_rows(X, check_array, dtype=np.float64, input_name="X")
    check_range(points)
    codes = _encode_labels(labels, "labels")
    _check_same_length(len(points), len(codes), ("X", "labels"))
    return points, codes


def dunn_index(
    X: ArrayLike,
    labels: Labels,
    *,
    separation: Literal["single", "average", "centroid"] = "single",
    diameter: Literal["max", "mean", "radius"] = "max",
) -> float:
    r"""Dunn index: smallest separation of two clusters, divided by the largest cluster diameter.

    .. math:: \min_{i \ne j} \delta(c_i, c_j) \,/\, \max_l \Delta(c_l)

    Here :math:`\delta` is the separation of two clusters, and :math:`\Delta` the diameter of a
    cluster.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Samples. Distances are Euclidean.
    labels : sequence of hashable of shape (n_samples,)
        Clusters.
    separation : {"single", "average", "centroid"}, default="single"
        Distance between two clusters: the distance of their nearest samples, the mean distance over
        pairs of samples, or the distance of their means.
    diameter : {"max", "mean", "radius"}, default="max"
        Diameter of a cluster: the largest or the mean distance of two samples, or the mean distance
        of the samples to their mean. A cluster of one sample has diameter 0.

    Returns
    -------
    float
        Non-negative, larger is better. `nan` for fewer than two clusters, if every cluster has one
        sample, or if all diameters and the smallest separation are 0. `inf` if all diameters are 0,
        but the smallest separation is not 0.

    Raises
    ------
    ValueError
        As for `contingency`; also if `X` is not a finite two-dimensional array with one sample per
        label, or for another `separation` or `diameter`.
    TypeError
        As for `contingency`.

    See Also
    --------
    silhouette_width : Mean separation of samples.
    score_solutions : Quality of several clusterings.

    Notes
    -----
    Dang and Bailey (2010) define neither distance. Their values have the magnitude of the index
    with ``separation="average", diameter="mean"``. The computation takes O(n_samples^2) time and
    bounded memory.

    References
    ----------
    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", KDD 2010, doi:10.1145/1835804.1835878, section
    5.1.

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

    # Sort by cluster, so that sums and extremes over clusters are over contiguous blocks.
    order = np.argsort(codes, kind="stable")
    points, codes = points[order], codes[order]
    starts = np.cumsum(sizes) - sizes
    centroids = np.add.reduceat(points, starts) / sizes[:, None]
    nearest, farthest, total = np.full((k, k), np.inf), np.zeros((k, k)), np.zeros((k, k))
    # Smallest, largest and summed distance for every pair of clusters, in blocks of samples.
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
    smallest, largest = between[~np.eye(k, dtype=bool)].min(), within.max()
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(smallest / largest)


def silhouette_width(X: ArrayLike, labels: Labels) -> float:
    r"""Silhouette width: how much nearer samples are to their cluster than to the next cluster.

    .. math:: \frac{1}{N} \sum_i \frac{b_i - a_i}{\max(a_i, b_i)}

    For sample i of N, a_i is the mean distance to the other samples of its cluster. b_i is the
    smallest mean distance to the samples of another cluster.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Samples. Distances are Euclidean.
    labels : sequence of hashable of shape (n_samples,)
        Clusters.

    Returns
    -------
    float
        Between -1 and 1, larger is better. `nan` for fewer than two clusters, or if every cluster
        has one sample.

    Raises
    ------
    ValueError
        As for `contingency`; also if `X` is not a finite two-dimensional array with one sample per
        label.
    TypeError
        As for `contingency`.

    See Also
    --------
    dunn_index : Smallest separation divided by largest diameter.
    vector_quantization_error : Mean squared distance to the mean of the cluster.

    Notes
    -----
    The term of a sample that is alone in its cluster is 0. scikit-learn computes the width in
    O(n_samples^2) time and bounded memory.

    References
    ----------
    Rousseeuw, P. J. (1987), "Silhouettes: a graphical aid to the interpretation and validation of
    cluster analysis", Journal of Computational and Applied Mathematics 20, 53-65,
    doi:10.1016/0377-0427(87)90125-7.

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
    r"""Mean squared distance of samples to the mean of their cluster.

    .. math:: \frac{1}{N} \sum_k \sum_{i \in c_k} \lVert x_i - m_k \rVert^2

    Here N is the number of samples, x_i are the samples, and m_k is the mean of cluster c_k.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Samples. Distances are Euclidean.
    labels : sequence of hashable of shape (n_samples,)
        Clusters.

    Returns
    -------
    float
        Error in squared units of `X`, smaller is better. 0 if all samples of every cluster are
        equal. For one cluster, the sum of the variances of the features. Splitting a cluster never
        increases the error, so report the number of clusters as well.

    Raises
    ------
    ValueError, TypeError
        As for `silhouette_width`.

    See Also
    --------
    dunn_index : Smallest separation divided by largest diameter.
    silhouette_width : Mean separation of samples.

    Notes
    -----
    The error is the objective of k-means (Lloyd, 1982) divided by N. Papers often print the sum,
    which is N times as large.

    References
    ----------
    Lloyd, S. P. (1982), "Least squares quantization in PCM", IEEE Transactions on Information
    Theory 28, 129-137, doi:10.1109/TIT.1982.1056489.

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
