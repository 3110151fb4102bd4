"""Features that distinguish clusters, adjusted for known groups, and example rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.statistics.groups import cross_table

__all__ = ["Crossing", "Findings", "cross_labels", "find_top_features"]

_ENTRIES = 2**20  # of a block of features at a time: never a dense copy, nor out of the cache
_ROUNDING = 1e-12  # of the largest entry: a difference of means below it is none


@dataclass(frozen=True)
class Findings:
    """Features and rows of some clusters.

    Attributes
    ----------
    differences : (c, p) mean of the cluster's rows less that of all others, in pooled standard
        deviations of the two, after what is known is taken off
    inside, outside : (c, p) means of the cluster's rows and of all others, nothing taken off
    nearest : rows of every cluster, those nearest to its centre first
    """

    differences: np.ndarray
    inside: np.ndarray
    outside: np.ndarray
    nearest: list[np.ndarray]

    def most_different(self, cluster: int, n: int) -> np.ndarray:
        """The features by which a cluster differs most, at most ``n``, those of no use left out."""
        size = np.abs(self.differences[cluster])
        order = np.argsort(-size, kind="stable")[:n]
        return order[size[order] > 0]


def find_top_features(
    X: Any,
    codes: np.ndarray,
    clusters: Sequence[int],
    groups: np.ndarray,
    measured: np.ndarray | None = None,
    n_nearest: int = 5,
) -> Findings:
    """Compare clusters in what known groups, and known numbers, leave of the features.

    Parameters
    ----------
    X : (n, p) rows, dense or sparse
    codes : (n,) numbers of their clusters, at least two of which have rows
    clusters : those to compare with all other rows
    groups : (n,) numbers of known groups, whose means are taken off; zeros for none
    measured : (n, m) known numbers, whose least-squares fit within groups is taken off as well
    n_nearest : how many rows to name of every cluster
    """
    n, p = X.shape
    member, sizes = _indicator_matrix(codes), np.bincount(codes)
    rest_of_known = _KnownStructure(groups, measured)
    own, away = sizes[clusters, None], n - sizes[clusters, None]
    differences, inside, outside = np.zeros((3, len(clusters), p))
    distances = np.zeros(n)
    for columns, block in iterate_feature_blocks(X):
        raw = member @ block
        inside[:, columns] = raw[clusters] / own
        outside[:, columns] = (raw.sum(0) - raw[clusters]) / away
        rest = rest_of_known.residuals(block)
        sums, squares = member @ rest, member @ rest**2
        ours, theirs = sums[clusters], sums.sum(0) - sums[clusters]
        gap = ours / own - theirs / away
        largest = np.abs(block).max(0)
        gap[np.abs(gap) <= _ROUNDING * largest] = 0
        spread = squares.sum(0) - ours**2 / own - theirs**2 / away
        differences[:, columns] = _standardised_difference(
            gap, np.sqrt(np.maximum(spread, 0) / max(n - 2, 1))
        )
        centres = sums / np.maximum(sizes, 1)[:, None]
        # Per degree of freedom or not makes no difference to who is nearest.
        within = np.sqrt(np.maximum(squares.sum(0) - (sums * centres).sum(0), 0))
        varies = within > np.sqrt(_ROUNDING) * largest
        away_from_centre = (rest - centres[codes])[:, varies] / within[varies]
        distances += (away_from_centre**2).sum(1)
    nearest = []
    for cluster in clusters:
        rows = np.flatnonzero(codes == cluster)
        nearest.append(rows[np.argsort(distances[rows], kind="stable")[:n_nearest]])
    return Findings(differences, inside, outside, nearest)


class _KnownStructure:
    """What is known, to be taken off blocks of features."""

    def __init__(self, groups: np.ndarray, measured: np.ndarray | None):
        self.groups, self.member = groups, _indicator_matrix(groups)
        self.sizes = np.maximum(np.bincount(groups), 1)[:, None]
        self.design = (
            None if measured is None else self._centre_within_groups(np.asarray(measured, float))
        )
        self.inverse = None if self.design is None else np.linalg.pinv(self.design)

    def _centre_within_groups(self, block: np.ndarray) -> np.ndarray:
        return block - (self.member @ block / self.sizes)[self.groups]

    def residuals(self, block: np.ndarray) -> np.ndarray:
        rest = self._centre_within_groups(block)
        return rest if self.design is None else rest - self.design @ (self.inverse @ rest)


def _indicator_matrix(codes: np.ndarray) -> scipy.sparse.csr_array:
    """A matrix (k, n) that sums the rows of every number."""
    n = len(codes)
    return scipy.sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=(codes.max() + 1, n))


def iterate_feature_blocks(X: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Some features of all rows at a time, dense."""
    n, p = X.shape
    sparse = scipy.sparse.issparse(X)
    X = X.tocsc() if sparse else X
    width = max(1, _ENTRIES // n)
    for start in range(0, p, width):
        columns = slice(start, min(start + width, p))
        block = X[:, columns]
        yield columns, np.asarray(block.toarray() if sparse else block, float)


def _standardised_difference(values: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Values in units of a spread; 0 where they are 0 by all means."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values == 0, 0.0, values / spread)


@dataclass(frozen=True)
class Crossing:
    """How many rows of every cluster are in every group of a labeling.

    Attributes
    ----------
    name : of the labeling
    groups : names of the groups, the last one of those that are counted as one
    counts : (c, g) rows
    joined : how many groups are counted as one
    """

    name: str
    groups: list[str]
    counts: np.ndarray
    joined: int = 0


def cross_labels(
    name: str, labels: np.ndarray, codes: np.ndarray, clusters: Sequence[int], most: int
) -> Crossing:
    """Cross clusters with the groups of a labeling, at most so many of which are told apart.

    They are the largest of every cluster, then the second largest of every cluster, and so on.
    """
    values, group = np.unique(labels, return_inverse=True)
    names = [str(value) for value in values]
    place = np.full(max(codes.max(initial=-1), max(clusters, default=-1)) + 1, len(clusters))
    place[np.asarray(clusters, int)] = np.arange(len(clusters))
    shape = (len(clusters) + 1, len(names))
    counts = cross_table(place[codes], group.ravel(), shape)[:-1]
    if len(names) <= most:
        return Crossing(name, names, counts)
    order = np.argsort(-counts, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    rank[counts == 0] = len(names)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # Of those that are as far ahead in some cluster, the ones with more of a cluster go first.
    first = np.lexsort((-share.max(axis=0, initial=0), rank.min(axis=0, initial=len(names))))
    kept, rest = np.sort(first[: most - 1]), first[most - 1 :]
    together = counts[:, rest].sum(axis=1, keepdims=True)
    groups = [*(names[g] for g in kept), f"{len(rest)} others"]
    return Crossing(name, groups, np.hstack([counts[:, kept], together]), len(rest))
