"""Test for a low-density gap between clusters on held-out samples.

Training samples determine a candidate: a direction and three adjacent intervals along it. The
middle interval is the gap; the two outer intervals are its sides, which have equal widths. The test
counts held-out samples in the intervals. If a known group has a single mode along the direction,
one of the sides has at most the density of the gap. A binomial distribution then bounds the count
of the less populated side.

Shapes: n samples, p coordinates of residuals, which are samples minus the means of their known
groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from nrprob.statistics.groups import cross_table, group_sums

_N_BINS = 24  # number of bins of equal width, between two quantiles of the training samples
_QUANTILES = (0.02, 0.98)  # levels of these quantiles, along the direction
_GAP_WIDTHS = range(2, 7)  # candidate widths of the gap, in bins
_SIDE_WIDTHS = range(3, 9)  # candidate widths of a side, in bins
_RIDGE = 1e-3  # ridge of the covariance within clusters, in units of its mean variance
_MODEL_WEIGHT = 0.5  # weight of expected counts in the choice of the intervals; the rest: observed
_NEAR, _FAR = 0.02, 0.2  # largest distances of near and of all pairs, in standard deviations
# Share of near pairs among all pairs of continuous values, and the share above which values count
# as discrete.
_CONTINUOUS_SHARE, _DISCRETE_SHARE = 0.1, 0.13
_N_SIGMAS = 6.0  # margin above _DISCRETE_SHARE, in standard deviations: many fits are tested


class GapCount(NamedTuple):
    """Numbers of held-out samples on one side of the gap and in the gap, summed over known groups.

    Attributes
    ----------
    side : number on the side that is less populated, which may differ between known groups
    gap : number in the gap
    share : width of a side divided by the width of this side and the gap together. If there is no
        gap, the expected value of ``side / (side + gap)`` is at most ``share``
    """

    side: int
    gap: int
    share: float


NO_SAMPLES = GapCount(0, 0, 0.5)


@dataclass(frozen=True)
class GapCandidate:
    """Discriminant direction of one cluster against all others, with a gap and its two sides.

    Attributes
    ----------
    cluster : label of the cluster
    direction : (p,) linear discriminant; scores have unit variance within clusters
    edges : (4,) ends of the three intervals, ascending; the first and the last are the sides, which
        have equal widths
    """

    cluster: int
    direction: np.ndarray
    edges: np.ndarray

    @property
    def gap_centre(self) -> float:
        """Centre of the gap along the direction."""
        return float(self.edges[1:3].mean())

    @property
    def side_share(self) -> float:
        """Width of a side divided by the width of this side and the gap together."""
        first, second, third, _ = self.edges
        return float((second - first) / (third - first))

    def count_samples(self, y: np.ndarray, codes: np.ndarray) -> GapCount:
        """Count held-out samples ``y`` (n, p) with the known groups ``codes`` (n,)."""
        interval = np.searchsorted(self.edges, y @ self.direction)
        table = cross_table(codes, interval, (codes.max(initial=0) + 1, 5))
        return GapCount(int(table[:, [1, 3]].min(1).sum()), int(table[:, 2].sum()), self.side_share)


def choose_candidate(
    y: np.ndarray, labels: np.ndarray, codes: np.ndarray, cluster: int | None = None
) -> GapCandidate | None:
    """Choose the direction and the intervals with the strongest indication of a gap.

    The direction of cluster j is the linear discriminant ``W^-1 (c_j - c_-j)``. W is the covariance
    within clusters, c_j the centre of cluster j, and c_-j the mean of the other centres. Samples
    are counted in bins along the direction; a count is the average of the observed count and the
    count expected for Gaussian clusters. The intervals maximise the excess of the count on the less
    populated side over the largest expected count without a gap, in standard deviations.

    Parameters
    ----------
    y : (n, p) residuals of training samples
    labels : (n,) cluster of every sample
    codes : (n,) known group of every sample
    cluster : label of the cluster whose direction is used, if it has samples; by default, the
        cluster with the strongest indication

    Returns
    -------
    GapCandidate, or None for fewer than two clusters, or if the centres of the clusters agree.
    """
    clusters, labels = np.unique(labels, return_inverse=True)
    k = clusters.size
    if k < 2:
        return None
    centres, within = covariance_within(y, labels)
    membership = np.eye(k)[labels]
    sizes_by_group = group_sums(membership, codes)
    best_excess, best = -math.inf, None
    # With two clusters, the two directions differ in sign only: one is enough.
    candidates = np.arange(k if k > 2 else 1)
    if cluster in clusters:
        candidates = np.flatnonzero(clusters == cluster)
    for j in candidates:
        # Discriminant direction, of unit variance within clusters.
        direction = np.linalg.solve(within, centres[j] - np.delete(centres, j, 0).mean(0))
        length = math.sqrt(direction @ within @ direction)
        if not length > 0:
            continue
        direction /= length
        score = y @ direction
        excess, edges = choose_intervals(score, codes, centres @ direction, sizes_by_group, score)
        if excess > best_excess:
            best_excess = excess
            best = GapCandidate(int(clusters[j]), direction, edges)
    return best


def covariance_within(y: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the centres (k, p) of the clusters, and the covariance (p, p) within clusters.

    The covariance has a ridge. ``labels`` (n,) are the clusters, from 0 to k - 1, without gaps.
    """
    membership = np.eye(labels.max() + 1)[labels]
    size = membership.sum(0)
    centres = membership.T @ y / size[:, None]
    within = (y.T @ y - (centres.T * size) @ centres) / len(y)
    within += _RIDGE * np.trace(within) / len(within) * np.eye(len(within))
    return centres, within


def choose_intervals(
    score: np.ndarray,
    codes: np.ndarray,
    centres: np.ndarray,
    sizes: np.ndarray,
    spanning: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Choose the gap and its sides along a direction; see `choose_candidate`.

    Parameters
    ----------
    score : (n,) scores of training samples along the direction
    codes : (n,) known group of every sample
    centres : (k,) scores of the centres of the clusters, which have unit variance
    sizes : (groups, k) number of samples of every cluster in every known group
    spanning : scores whose quantiles are the ends of the bins

    Returns
    -------
    The standardised excess of samples on the sides, and the four ends of the intervals.
    """
    # Observed and expected counts per bin and known group, with the two tails left out.
    low, high = np.quantile(spanning, _QUANTILES)
    edges = np.linspace(low, high, _N_BINS + 1)
    probability = np.diff(stats.norm.cdf(edges - centres[:, None]), axis=1)
    expected = sizes @ probability
    shape = len(sizes), _N_BINS + 2
    observed = cross_table(codes, np.searchsorted(edges, score), shape)[:, 1:-1]
    excess, ends = _best_intervals((1 - _MODEL_WEIGHT) * observed + _MODEL_WEIGHT * expected)
    return excess, edges[list(ends)]


def _best_intervals(counts: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """Choose the gap and its sides by the largest standardised excess of samples on the sides.

    ``counts`` (groups, bins) are numbers of samples by known group and bin. Returns the excess, and
    the four ends of the intervals as indices of bin edges; see `choose_candidate`.
    """
    sums = np.pad(np.cumsum(counts, 1), ((0, 0), (1, 0)))
    best: tuple[float, tuple[int, ...]] = -math.inf, ()
    for gap, side in itertools.product(_GAP_WIDTHS, _SIDE_WIDTHS):
        start = np.arange(side, _N_BINS - gap - side + 1)
        if not start.size:
            continue
        ends = start - side, start, start + gap, start + gap + side
        left, middle, right = (sums[:, b] - sums[:, a] for a, b in itertools.pairwise(ends))
        # Count of the less populated side per group, and its binomial mean and variance.
        smaller, share = np.minimum(left, right).sum(0), side / (side + gap)
        total = smaller + middle.sum(0)
        # The added 1 in the variance lowers the excess of intervals with few samples.
        excess = (smaller - share * total) / np.sqrt(share * (1 - share) * total + 1)
        i = int(excess.argmax())
        if excess[i] > best[0]:
            best = float(excess[i]), tuple(int(end[i]) for end in ends)
    return best


def tail_probability(counts: Sequence[GapCount]) -> float:
    """p-value of the total count on the less populated sides, over all elements of ``counts``.

    Without a gap, the total is stochastically at most a sum of independent binomial variables. The
    p-value is the probability that this sum is at least the total.
    """
    pmf = np.ones(1)
    for side, gap, share in counts:
        pmf = np.convolve(pmf, stats.binom.pmf(np.arange(side + gap + 1), side + gap, share))
    return float(min(pmf[sum(count.side for count in counts) :].sum(), 1.0))


def combined_p_value(splits: Sequence[Sequence[GapCount]]) -> float:
    """Combine the p-values of several splits into one p-value.

    Each element of ``splits`` holds the counts of the folds of one split. The p-value of every
    split is converted to a normal score, and the mean score is compared with the standard normal
    distribution. A single score has this distribution. The mean score has at most the variance of a
    single score, for any dependence between the splits.
    """
    p = np.clip([tail_probability(counts) for counts in splits], 1e-300, 1 - 1e-12)
    return float(stats.norm.sf(stats.norm.isf(p).mean()))


def count_near_pairs(y: np.ndarray, candidate: GapCandidate, codes: np.ndarray) -> np.ndarray:
    """Count pairs of samples with similar scores along the direction of the candidate.

    Returns two numbers of pairs. The scores of near pairs differ by at most 0.02 standard
    deviations, and the scores of all pairs by at most 0.2. The samples of a pair belong to the same
    known group. ``y`` (n, p) are samples, and ``codes`` (n,) their known groups.
    """
    score = y @ candidate.direction
    pairs = np.zeros(2)
    for g in range(codes.max() + 1):
        ordered = np.sort(score[codes == g])
        successor = np.arange(ordered.size) + 1
        pairs += [
            (np.searchsorted(ordered, ordered + width, "right") - successor).sum()
            for width in (_NEAR, _FAR)
        ]
    return pairs


def has_discrete_values(near: float, far: float) -> bool:
    """Return whether values along a direction are discrete, so that the intervals are invalid.

    ``near`` and ``far`` are the numbers of near pairs and of all pairs; see `count_near_pairs`.
    The ratio of both numbers is larger for discrete values than for continuous values.
    """
    return near > _DISCRETE_SHARE * far + _N_SIGMAS * math.sqrt(_CONTINUOUS_SHARE * far)
