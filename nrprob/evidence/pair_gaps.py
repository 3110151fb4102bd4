"""Density between every pair of clusters, on held-out samples.

The measure is descriptive: it has no p-value. It uses the intervals of
`nrprob.evidence.low_density_gap` along the line through the centres of two clusters.

Shapes: n samples, p coordinates of residuals, which are samples minus the means of their known
groups; k clusters.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from nrprob.evidence.low_density_gap import GapCandidate, choose_intervals, covariance_within
from nrprob.statistics.groups import group_sums

__all__ = ["PairCounts", "count_between_pairs", "density_between_pairs"]

_TUBE = 0.95  # share of the samples of a pair that are near the line through its centres
_LEAST_COUNT = 10  # smallest number of samples on the side or in the gap, for a density

# For a pair of clusters: number on the less populated side, and number in the gap as it would be if
# the gap had the width of a side.
PairCounts = dict[tuple[int, int], np.ndarray]


def count_between_pairs(
    y: np.ndarray, labels: np.ndarray, codes: np.ndarray, train: np.ndarray, test: np.ndarray
) -> PairCounts:
    """Count held-out samples in and about the gap of every pair of clusters.

    The line of a pair goes through the centres of both clusters, in coordinates with unit variance
    within clusters. Training samples of the pair determine the three intervals along the line.
    Samples of all clusters count, if they are as near to the line as the samples of the pair. A
    third cluster between two others therefore fills their gap.

    Parameters
    ----------
    y : (n, p) residuals of all samples
    labels : (n,) cluster of every training sample; other entries are ignored
    codes : (n,) known group of every sample
    train, test : indices of the training samples and of the held-out samples
    """
    clusters, members = np.unique(labels[train], return_inverse=True)
    if clusters.size < 3:
        return {}
    centres, within = covariance_within(y[train], members)
    whitening = np.linalg.inv(np.linalg.cholesky(within)).T
    centres = centres @ whitening
    z = y @ whitening
    products, lengths = z @ centres.T, np.einsum("ij,ij->i", z, z)
    sizes_by_group = group_sums(np.eye(clusters.size)[members], codes[train])
    counts: PairCounts = {}
    for a, b in itertools.combinations(range(clusters.size), 2):
        distance = np.linalg.norm(centres[b] - centres[a])
        if not distance > 0:
            continue
        direction = (centres[b] - centres[a]) / distance
        score = (products[:, b] - products[:, a]) / distance
        # Squared distances of the samples from the line.
        along = score - centres[a] @ direction
        off_line = lengths - 2 * products[:, a] + centres[a] @ centres[a] - along**2
        in_pair = (members == a) | (members == b)
        near = off_line <= np.quantile(off_line[train[in_pair]], _TUBE)
        chosen = train[near[train]]
        _, edges = choose_intervals(
            score[chosen], codes[chosen], centres[[a, b]] @ direction, sizes_by_group[:, [a, b]],
            score[train[in_pair]],
        )  # fmt: skip
        if not edges[-1] > edges[0]:
            continue
        candidate = GapCandidate(int(clusters[a]), whitening @ direction, edges)
        side, gap, share = candidate.count_samples(y[test[near[test]]], codes[test[near[test]]])
        counts[int(clusters[a]), int(clusters[b])] = np.array([side, gap * share / (1 - share)])
    return counts


def density_between_pairs(
    folds: Sequence[PairCounts], names: np.ndarray | None
) -> np.ndarray | None:
    """Density in the gap of every pair, divided by the density on the less populated side.

    Returns a symmetric matrix whose indices are labels of clusters; None without pairs. The matrix
    is NaN on the diagonal, and for pairs with too few samples. ``folds`` are the counts of
    `count_between_pairs`. ``names`` (k,) are the labels of the clusters of the counts; by default,
    0 to k - 1.
    """
    pairs = [pair for counts in folds for pair in counts]
    if not pairs:
        return None
    names = np.arange(np.max(pairs) + 1) if names is None else names
    total = np.zeros((names.max() + 1, names.max() + 1, 2))
    for counts in folds:
        for pair, pair_counts in counts.items():
            a, b = names[list(pair)]
            if min(a, b) >= 0:  # negative labels mark outliers
                total[a, b] += pair_counts
                total[b, a] += pair_counts
    side, gap = total[..., 0], total[..., 1]
    return np.where(np.maximum(side, gap) >= _LEAST_COUNT, gap / np.maximum(side, 1), np.nan)
