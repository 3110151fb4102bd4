"""Relations of a partition to partial labels.

The functions test whether clusters mix classes, whether clusters divide classes, and whether the
share of labelled samples is equal in all clusters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nrprob.data.labels import are_minus_one
from nrprob.metrics.partitions import Labels, _encode_pair

__all__ = ["is_coarsening", "is_consistent", "is_proportional"]

_NAMES = ("labels", "partial")


def is_consistent(labels: Labels, partial: ArrayLike) -> bool:
    r"""Whether every cluster has samples of at most one class.

    Then the conditional entropy :math:`H(Z|C)` is 0 for the classes Z and the clusters C of the
    labelled samples. With labels of all samples, the clusters are a refinement of the classes.

    Parameters
    ----------
    labels : sequence of hashable of shape (n_samples,)
        Clusters of all samples.
    partial : array-like of shape (n_samples,)
        Classes, -1 where unknown.

    Returns
    -------
    bool

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    is_coarsening : Whether no class is divided among clusters.
    is_proportional : Whether the labels are spread evenly over the clusters.

    References
    ----------
    Śmieja, M. and Geiger, B. C. (2017), "Semi-supervised cross-entropy clustering with information
    bottleneck constraint", Information Sciences 421, doi:10.1016/j.ins.2017.07.016,
    definition 3.2.

    Examples
    --------
    >>> from nrprob.metrics import is_consistent
    >>> is_consistent([0, 0, 1, 2], ["a", -1, "b", "b"])
    True
    """
    return bool((_count_labels(labels, partial)[0] > 0).sum(1).max(initial=0) <= 1)


def is_coarsening(labels: Labels, partial: ArrayLike) -> bool:
    r"""Whether all samples of every class are in one cluster.

    Then the conditional entropy :math:`H(C|Z)` is 0 for the clusters C and the classes Z of the
    labelled samples. With labels of all samples, the clusters are unions of classes.

    Parameters
    ----------
    labels : sequence of hashable of shape (n_samples,)
        Clusters of all samples.
    partial : array-like of shape (n_samples,)
        Classes, -1 where unknown.

    Returns
    -------
    bool

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    is_consistent : Whether no cluster mixes classes.
    is_proportional : Whether the labels are spread evenly over the clusters.

    References
    ----------
    Śmieja, M. and Geiger, B. C. (2017), "Semi-supervised cross-entropy clustering with information
    bottleneck constraint", Information Sciences 421, doi:10.1016/j.ins.2017.07.016,
    definition 4.1.

    Examples
    --------
    >>> from nrprob.metrics import is_coarsening
    >>> is_coarsening([0, 0, 0, 1], ["a", -1, "b", "c"])
    True
    """
    return bool((_count_labels(labels, partial)[0] > 0).sum(0).max(initial=0) <= 1)


def is_proportional(labels: Labels, partial: ArrayLike) -> bool:
    r"""Whether every cluster has the same share of the labelled samples as of all samples.

    Then the entropies H of the clusters C and the classes Z obey the chain rule
    :math:`H(Z|C) = H(Z) + H(C|Z) - H(C)`, although only some samples are labelled. With labels of
    all samples, all clusterings are proportional.

    Parameters
    ----------
    labels : sequence of hashable of shape (n_samples,)
        Clusters of all samples.
    partial : array-like of shape (n_samples,)
        Classes, -1 where unknown.

    Returns
    -------
    bool
        Shares are compared exactly. False without labelled samples.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    is_consistent : Whether no cluster mixes classes.
    is_coarsening : Whether no class is divided among clusters.

    References
    ----------
    Śmieja, M. and Geiger, B. C. (2017), "Semi-supervised cross-entropy clustering with information
    bottleneck constraint", Information Sciences 421, doi:10.1016/j.ins.2017.07.016,
    definition 4.1.

    Examples
    --------
    >>> from nrprob.metrics import is_proportional
    >>> is_proportional([0, 0, 1, 1], ["a", -1, "b", -1])
    True
    """
    counts, sizes = _count_labels(labels, partial)
    labelled = counts.sum(1)
    is_equal = labelled * sizes.sum() == sizes * labelled.sum()  # avoids divisions
    return bool(labelled.any() and is_equal.all())


def _count_labels(
    labels: Labels, partial: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the labelled samples by cluster and class, and all samples by cluster.

    Returns arrays of shapes (n_clusters, n_classes) and (n_clusters,).
    """
    values: Any = list(partial) if isinstance(partial, list | tuple) else np.asarray(partial)
    clusters, classes = _encode_pair(labels, values, _NAMES)
    labelled = ~are_minus_one(np.asarray(values, object))
    counts = np.zeros((clusters.max() + 1, classes.max() + 1), np.int64)
    np.add.at(counts, (clusters[labelled], classes[labelled]), 1)
    return counts, np.bincount(clusters)
