"""Similarity of two soft partitions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nrprob.data.validation import check_not_masked
from nrprob.metrics.partitions import (
    BLOCK_SIZE,
    LABELS_TRUTH,
    Labels,
    _check_same_length,
    _encode_labels,
)

__all__ = ["soft_jaccard_index"]


def soft_jaccard_index(
    labels: Labels | ArrayLike, truth: Labels | ArrayLike, *, subsets: Labels | None = None
) -> float:
    r"""Jaccard index of two soft partitions.

    .. math:: \frac{\sum_{i<j} \min(s_{ij}, t_{ij})}{\sum_{i<j} \max(s_{ij}, t_{ij})}, \qquad
        s_{ij} = \sum_c q_{ic} q_{jc}

    :math:`q_{ic}` is the membership of sample i in cluster c of the first partition. If every
    sample is assigned to a random cluster by its memberships, :math:`s_{ij}` is the probability
    that samples i and j share a cluster. :math:`t_{ij}` is this probability in the second
    partition.

    Parameters
    ----------
    labels, truth : array-like of shape (n_samples, n_clusters) or (n_samples,)
        Non-negative memberships, or labels. The memberships of a sample are divided by their sum.
        In an indicator matrix, a sample may belong to several classes, with equal shares. A sample
        without any membership in one of the partitions, such as a term that an expert has not
        classified, is left out.
    subsets : sequence of hashable of shape (n_samples,), optional
        If given, only pairs of samples from different subsets count.

    Returns
    -------
    float
        Index between 0 and 1, symmetric; 1 if all :math:`s_{ij}` and :math:`t_{ij}` are 0. For
        labels, the index equals `jaccard_index`.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`; also for memberships that are negative or not finite, or if no
        sample has memberships in both partitions.

    See Also
    --------
    jaccard_index : Index of two labelings.
    pairwise_agreement : Agreement of every pair of labelings.

    Notes
    -----
    The index needs O(n^2 k) time and little memory. To compare several experts, compute the index
    of every pair of experts, over the samples that both experts have classified.

    References
    ----------
    Marx, Z., "Structure-based computational aspects of similarity and analogy in natural language",
    PhD thesis, The Hebrew University of Jerusalem, section 5.4.2.2. The thesis describes the soft
    index in words; the equation is a choice of this package.

    Examples
    --------
    >>> from nrprob.metrics import soft_jaccard_index
    >>> round(soft_jaccard_index([[1, 0], [0.5, 0.5], [0, 1]], [0, 0, 1]), 4)
    0.3333
    """
    q, r = _read_memberships(labels, "labels"), _read_memberships(truth, "truth")
    _check_same_length(len(q), len(r), LABELS_TRUTH)
    groups = None if subsets is None else _encode_labels(subsets, "subsets")
    if groups is not None:
        _check_same_length(len(q), len(groups), ("labels", "subsets"))
    assigned = (q.sum(1) > 0) & (r.sum(1) > 0)
    if not assigned.any():
        raise ValueError(
            "no sample has memberships in both partitions; got 0 common samples; pass partitions "
            "of the same samples"
        )
    q, r = (m[assigned] / m[assigned].sum(1, keepdims=True) for m in (q, r))
    groups = None if groups is None else groups[assigned]
    n, shared, united = len(q), 0.0, 0.0
    step = max(1, BLOCK_SIZE // n)
    for first in range(0, n, step):
        rows = np.arange(first, min(first + step, n))
        counts = np.arange(n) > rows[:, None]
        if groups is not None:
            counts &= groups != groups[rows][:, None]
        together = (q[rows] @ q.T)[counts], (r[rows] @ r.T)[counts]
        shared += float(np.minimum(*together).sum())
        united += float(np.maximum(*together).sum())
    return shared / united if united else 1.0


def _read_memberships(values: Labels | ArrayLike, name: str) -> NDArray[np.float64]:
    """Validate a soft partition or a labeling of n samples; return memberships (n, k).

    Memberships are not normalised. ``name`` is the name of the argument, for error messages.
    """
    check_not_masked(values, name)
    if np.ndim(values) != 2:  # type: ignore[arg-type]
        codes = _encode_labels(values, name)  # type: ignore[arg-type]
        return np.eye(codes.max() + 1)[codes]
    result = np.asarray(values, float)
    if not (np.isfinite(result).all() and (result >= 0).all()):
        raise ValueError(
            f"memberships must be finite and 0 or larger; {name} has other values; pass "
            "probabilities, or an indicator matrix"
        )
    return result
