"""Test for a low-density gap between clusters on held-out samples."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from nrprob.statistics.groups import cross_table, group_sums

_BINS = 24  # of equal width, between the quantiles
_ENDS = (0.02, 0.98)  # of the rows along a direction
_VALLEYS = range(2, 7)  # widths that are tried, in bins
_SIDES = range(3, 9)
_RIDGE = 1e-3  # of the covariance within clusters, in units of its mean variance
_SMOOTH = 0.5  # share of what clusters expect in the counts by which intervals are chosen
_NEAR, _FAR = 0.02, 0.2  # standard deviations within which rows are compared for ties
_SMOOTH_PAIRS, _TIED = 0.1, 0.13  # of the latter, that are the former: smooth rows, and too many
_SURE = 6.0  # standard deviations by which they have to be more, for many fits are looked at


class Count(NamedTuple):
    """Rows held out on the side that has fewer of them, by known group, and in the valley.

    ``share`` is what the side has of both at most, in the mean, where there is no gap.
    """

    side: int
    valley: int
    share: float


@dataclass(frozen=True)
class Cut:
    """Direction from all other clusters to one, and two sides about a valley along it.

    Attributes
    ----------
    cluster : its label
    direction : (p,) of unit variance within clusters
    edges : (4,) ends of the three intervals, in their order; both sides are equally wide
    """

    cluster: int
    direction: np.ndarray
    edges: np.ndarray

    @property
    def middle(self) -> float:
        """Middle of the valley."""
        return float(self.edges[1:3].mean())

    @property
    def share(self) -> float:
        """Width of a side, of a side and the valley together."""
        first, second, third, _ = self.edges
        return float((second - first) / (third - first))

    def __call__(self, y: np.ndarray, codes: np.ndarray) -> Count:
        """Count rows (n, p) of known groups (n,)."""
        place = np.searchsorted(self.edges, y @ self.direction)
        table = cross_table(codes, place, (codes.max(initial=0) + 1, 5))
        return Count(int(table[:, [1, 3]].min(1).sum()), int(table[:, 2].sum()), self.share)


NO_CUT = Count(0, 0, 0.5)


def choose_cut(
    y: np.ndarray, labels: np.ndarray, codes: np.ndarray, cluster: int | None = None
) -> Cut | None:
    """Direction and intervals in which the rows of a fit speak most for a gap.

    A direction is W^-1 (centre of one cluster - mean of the centres of the others), W the
    covariance within clusters. Rows are counted half as they are, and half as normal clusters have
    them; of all intervals these are taken whose sides exceed most, in standard deviations, what
    they have where there is no gap.

    Parameters
    ----------
    y : (n, p) rows, about the means of their known groups
    labels : (n,) cluster of every row
    codes : (n,) known group of every row
    cluster : the one to tell from the others, if it has rows; by default that which is told best

    Returns
    -------
    Cut, or None for fewer than two clusters.
    """
    names, labels = np.unique(labels, return_inverse=True)
    n, k = len(y), names.size
    if k < 2:
        return None
    membership = np.eye(k)[labels]
    size = membership.sum(0)
    centres = membership.T @ y / size[:, None]
    within = (y.T @ y - (centres.T * size) @ centres) / n
    within += _RIDGE * np.trace(within) / len(within) * np.eye(len(within))
    shares = group_sums(membership, codes)
    best, cut = -math.inf, None
    tried = range(k if k > 2 else 1) if cluster not in names else np.flatnonzero(names == cluster)
    for j in tried:
        direction = np.linalg.solve(within, centres[j] - np.delete(centres, j, 0).mean(0))
        length = math.sqrt(direction @ within @ direction)
        if not length > 0:
            continue
        direction /= length
        place = y @ direction
        low, high = np.quantile(place, _ENDS)
        edges = np.linspace(low, high, _BINS + 1)
        expected = shares @ np.diff(stats.norm.cdf(edges - (centres @ direction)[:, None]), axis=1)
        seen = cross_table(codes, np.searchsorted(edges, place), (len(shares), _BINS + 2))
        excess, ends = _widest((1 - _SMOOTH) * seen[:, 1:-1] + _SMOOTH * expected)
        if excess > best:
            best, cut = excess, Cut(int(names[j]), direction, edges[list(ends)])
    return cut


def _widest(counts: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """Largest excess of the sides over a valley in counts (L, bins), and where they end."""
    sums = np.pad(np.cumsum(counts, 1), ((0, 0), (1, 0)))
    best: tuple[float, tuple[int, ...]] = -math.inf, ()
    for valley, side in itertools.product(_VALLEYS, _SIDES):
        start = np.arange(side, _BINS - valley - side + 1)
        if not start.size:
            continue
        ends = start - side, start, start + valley, start + valley + side
        left, middle, right = (sums[:, b] - sums[:, a] for a, b in itertools.pairwise(ends))
        least, share = np.minimum(left, right).sum(0), side / (side + valley)
        both = least + middle.sum(0)
        # One more, so that a handful of rows cannot lead.
        excess = (least - share * both) / np.sqrt(share * (1 - share) * both + 1)
        i = int(excess.argmax())
        if excess[i] > best[0]:
            best = float(excess[i]), tuple(int(end[i]) for end in ends)
    return best


def tail(counts: Sequence[Count]) -> float:
    """Probability that independent binomials, of the shares of the counts, reach their sides."""
    law = np.ones(1)
    for side, valley, share in counts:
        law = np.convolve(law, stats.binom.pmf(np.arange(side + valley + 1), side + valley, share))
    return float(min(law[sum(count.side for count in counts) :].sum(), 1.0))


def p_value(splits: Sequence[Sequence[Count]]) -> float:
    """p-value of several splits, each of the counts of its folds.

    It is that of the mean of their normal scores, as if it had the variance of one of them: that of
    a mean is no larger, however splits depend on each other, if scores are normal together.
    """
    p = np.clip([tail(counts) for counts in splits], 1e-300, 1 - 1e-12)
    return float(stats.norm.sf(stats.norm.isf(p).mean()))


def pairs(y: np.ndarray, cut: Cut, codes: np.ndarray) -> np.ndarray:
    """Pairs (2,) of rows of one known group: nearly tied along the direction, and not far apart."""
    place = y @ cut.direction
    result = np.zeros(2)
    for g in range(codes.max() + 1):
        own = np.sort(place[codes == g])
        after = np.arange(own.size) + 1
        result += [
            (np.searchsorted(own, own + width, "right") - after).sum() for width in (_NEAR, _FAR)
        ]
    return result


def tied(near: float, far: float) -> bool:
    """Whether rows lie on a lattice, in steps that intervals do not average; by `pairs`.

    That is where more of the pairs that are not far are nearly tied than chance makes so.
    """
    return near > _TIED * far + _SURE * math.sqrt(_SMOOTH_PAIRS * far)
