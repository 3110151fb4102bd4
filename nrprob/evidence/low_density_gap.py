"""Test for a low-density gap between clusters on held-out samples.

Training samples determine a candidate: a direction and three adjacent intervals along it, two outer
ones of equal width and the gap between them. Held-out samples are counted in the intervals. If a
known group has a single mode along the direction, one of the outer intervals has at most the
density of the gap. The smaller outer count is then bounded by a binomial distribution.
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

_N_BINS = 24  # of equal width, between the quantiles
_QUANTILES = (0.02, 0.98)  # of the training samples along a direction
_GAP_WIDTHS = range(2, 7)  # candidates, in bins
_SIDE_WIDTHS = range(3, 9)
_RIDGE = 1e-3  # added to the covariance within clusters, in units of its mean variance
_MODEL_WEIGHT = 0.5  # weight of the expected counts in the counts by which intervals are chosen
_NEAR, _FAR = 0.02, 0.2  # distances of near and of all pairs, in standard deviations
# Share of near pairs among all pairs: for continuous values, and from which values are discrete.
_CONTINUOUS_SHARE, _DISCRETE_SHARE = 0.1, 0.13
_N_SIGMAS = 6.0  # standard deviations above the latter, since many fits are tested


class GapCount(NamedTuple):
    """Held-out samples in the less populated outer interval, by known group, and in the gap.

    ``share`` bounds the expected share of the outer interval in both if there is no gap.
    """

    side: int
    gap: int
    share: float


NO_SAMPLES = GapCount(0, 0, 0.5)


@dataclass(frozen=True)
class GapCandidate:
    """Discriminant direction of a cluster against all others, with two sides and a gap.

    Attributes
    ----------
    cluster : label of the cluster
    direction : (p,) of unit variance within clusters
    edges : (4,) ends of the three intervals, ascending; the outer intervals are equally wide
    """

    cluster: int
    direction: np.ndarray
    edges: np.ndarray

    @property
    def gap_centre(self) -> float:
        """Centre of the gap."""
        return float(self.edges[1:3].mean())

    @property
    def side_share(self) -> float:
        """Width of an outer interval relative to the interval and the gap together."""
        first, second, third, _ = self.edges
        return float((second - first) / (third - first))

    def count_samples(self, y: np.ndarray, codes: np.ndarray) -> GapCount:
        """Count held-out samples (n, p) of known groups (n,)."""
        interval = np.searchsorted(self.edges, y @ self.direction)
        table = cross_table(codes, interval, (codes.max(initial=0) + 1, 5))
        return GapCount(int(table[:, [1, 3]].min(1).sum()), int(table[:, 2].sum()), self.side_share)


def choose_candidate(
    y: np.ndarray, labels: np.ndarray, codes: np.ndarray, cluster: int | None = None
) -> GapCandidate | None:
    """Choose the direction and the intervals with the strongest indication of a gap.

    The direction of cluster j is ``W^-1 (c_j - mean of the other centres)``, with the covariance W
    within clusters. Counts per bin are averages of the observed counts and of the counts expected
    for Gaussian clusters. The intervals maximise the standardised excess of the outer counts over
    their expectation without a gap.

    Parameters
    ----------
    y : (n, p) residuals of training samples
    labels : (n,) cluster of every sample
    codes : (n,) known group of every sample
    cluster : the cluster to separate from the others, if it has samples; by default the best one

    Returns
    -------
    GapCandidate, or None for fewer than two clusters.
    """
    clusters, labels = np.unique(labels, return_inverse=True)
    n, k = len(y), clusters.size
    if k < 2:
        return None
    # Covariance within clusters, with a ridge.
    membership = np.eye(k)[labels]
    size = membership.sum(0)
    centres = membership.T @ y / size[:, None]
    within = (y.T @ y - (centres.T * size) @ centres) / n
    within += _RIDGE * np.trace(within) / len(within) * np.eye(len(within))
    sizes_by_group = group_sums(membership, codes)
    best_excess, best = -math.inf, None
    # The directions of two clusters differ in their sign only.
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
        # Observed and expected counts per bin.
        score = y @ direction
        low, high = np.quantile(score, _QUANTILES)
        edges = np.linspace(low, high, _N_BINS + 1)
        probability = np.diff(stats.norm.cdf(edges - (centres @ direction)[:, None]), axis=1)
        expected = sizes_by_group @ probability
        shape = len(sizes_by_group), _N_BINS + 2
        observed = cross_table(codes, np.searchsorted(edges, score), shape)[:, 1:-1]
        counts = (1 - _MODEL_WEIGHT) * observed + _MODEL_WEIGHT * expected
        excess, ends = _best_intervals(counts)
        if excess > best_excess:
            best_excess = excess
            best = GapCandidate(int(clusters[j]), direction, edges[list(ends)])
    return best


def _best_intervals(counts: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """Largest standardised excess of the outer counts (groups, bins), and the interval ends."""
    sums = np.pad(np.cumsum(counts, 1), ((0, 0), (1, 0)))
    best: tuple[float, tuple[int, ...]] = -math.inf, ()
    for gap, side in itertools.product(_GAP_WIDTHS, _SIDE_WIDTHS):
        start = np.arange(side, _N_BINS - gap - side + 1)
        if not start.size:
            continue
        ends = start - side, start, start + gap, start + gap + side
        left, middle, right = (sums[:, b] - sums[:, a] for a, b in itertools.pairwise(ends))
        smaller, share = np.minimum(left, right).sum(0), side / (side + gap)
        total = smaller + middle.sum(0)
        # The 1 in the variance keeps intervals with a handful of samples from winning.
        excess = (smaller - share * total) / np.sqrt(share * (1 - share) * total + 1)
        i = int(excess.argmax())
        if excess[i] > best[0]:
            best = float(excess[i]), tuple(int(end[i]) for end in ends)
    return best


def tail_probability(counts: Sequence[GapCount]) -> float:
    """Probability that the sum of independent binomials is at least the sum of the side counts."""
    pmf = np.ones(1)
    for side, gap, share in counts:
        pmf = np.convolve(pmf, stats.binom.pmf(np.arange(side + gap + 1), side + gap, share))
    return float(min(pmf[sum(count.side for count in counts) :].sum(), 1.0))


def combined_p_value(splits: Sequence[Sequence[GapCount]]) -> float:
    """Combine the p-values of several splits, each given by the counts of its folds.

    The normal scores of the splits are averaged, and the mean is compared with the distribution of
    a single score. The variance of the mean is at most 1, however the splits depend on each other.
    """
    p = np.clip([tail_probability(counts) for counts in splits], 1e-300, 1 - 1e-12)
    return float(stats.norm.sf(stats.norm.isf(p).mean()))


def count_near_pairs(y: np.ndarray, candidate: GapCandidate, codes: np.ndarray) -> np.ndarray:
    """Count pairs (2,) of samples of one known group within two distances along the direction."""
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
    """Whether values along a direction are discrete, in steps too large for the intervals.

    Discrete values have more near pairs among all pairs (see `count_near_pairs`) than continuous
    values have by chance.
    """
    return near > _DISCRETE_SHARE * far + _N_SIGMAS * math.sqrt(_CONTINUOUS_SHARE * far)
