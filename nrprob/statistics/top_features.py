"""Features that distinguish clusters, adjusted for known structure, and typical samples.

Shapes: n samples; p features, or d features in a block of them; c compared clusters; g groups of a
labeling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.statistics.groups import cross_table, group_means, within_group_inverse
from nrprob.statistics.table_units import TableUnits

__all__ = [
    "Crossing",
    "TopFeatures",
    "cross_labels",
    "features_in_turn",
    "find_nearest_counts",
    "find_top_features",
]

_ENTRIES = 2**20  # entries of a block of features: it fits the cache, and avoids a dense copy of X
_NOTABLE = 0.3  # smallest difference in a description, in standard deviations
_MOST_VALUES = 3  # largest number of values of a column in a description
_ROUNDING = 1e-12  # smaller differences of means, relative to the largest entry, count as 0


@dataclass(frozen=True)
class TopFeatures:
    """Distinguishing features and typical samples of c clusters.

    Attributes
    ----------
    differences : (c, p) difference of the means of the cluster and of all other samples, adjusted
        for known structure, in standard deviations
    inside, outside : (c, p) unadjusted means of the cluster, and of all other samples
    overall : (p,) unadjusted means of all samples
    nearest : for every cluster, indices of the samples nearest to its centre, nearest first
    """

    differences: np.ndarray
    inside: np.ndarray
    outside: np.ndarray
    overall: np.ndarray
    nearest: list[np.ndarray]

    def most_different(self, cluster: int, n: int) -> np.ndarray:
        """Indices of at most ``n`` features with the largest non-zero differences of a cluster."""
        size = np.abs(self.differences[cluster])
        order = np.argsort(-size, kind="stable")[:n]
        return order[size[order] > 0]

    def describe(
        self, cluster: int, names: Sequence[str], units: TableUnits, n_columns: int = 5
    ) -> str:
        """Describe the columns by which a cluster differs most from all other samples.

        For every column, the text states the mean or share in the cluster and, in brackets, the
        mean or share in all samples.

        Parameters
        ----------
        cluster : position of the cluster in ``differences``
        names : (p,) names of the features
        units : units of the features
        n_columns : largest number of columns in the description
        """
        size = np.abs(self.differences[cluster])
        columns: dict[str, list[str]] = {}
        for j in self.most_different(cluster, len(size)):
            if size[j] < _NOTABLE:
                break
            name = names[j]
            column, _, value = units.indicators.get(name, (units.column(name), "", ""))
            texts = columns.setdefault(column, [])
            is_first = len(columns) == 1 and not texts
            means = self.inside[cluster, j], self.overall[j]
            inside, overall = units.describe_means(name, means)
            # The share of ones in a column of 0 and 1 needs no value: "1 78 %" is hard to read.
            text = f"{value} " if value and (column, value) != (name, "1") else ""
            text += f"{inside} ({overall}{' overall' * is_first})"
            if len(texts) < _MOST_VALUES:
                texts.append(text)
        shown = list(columns.items())[:n_columns]
        return "; ".join(f"{column}: {', '.join(texts)}" for column, texts in shown)


def find_top_features(
    X: Any,
    codes: np.ndarray,
    clusters: Sequence[int],
    groups: np.ndarray,
    measured: np.ndarray | None = None,
    n_nearest: int = 5,
) -> TopFeatures:
    """Find features that distinguish clusters, adjusted for known groups and covariates.

    Parameters
    ----------
    X : (n, p) samples, dense or sparse; NaN where values are missing
    codes : (n,) clusters as integers; at least two clusters are not empty
    clusters : the clusters to compare with all other samples, as integers in ``codes``
    groups : (n,) known groups as integers, whose effects are subtracted; zeros without known groups
    measured : (n, m) continuous covariates, whose linear effects are subtracted
    n_nearest : number of typical samples per cluster
    """
    n, p = X.shape
    member, sizes = _indicator_matrix(codes), np.bincount(codes)
    known = _KnownStructure(groups, measured, member.T.toarray())
    differences, inside, outside = np.zeros((3, len(clusters), p))
    overall, distances, n_seen = np.zeros(p), np.zeros(n), np.zeros(n)
    for columns, block in iterate_feature_blocks(X):
        # Missing values count neither in sums nor in numbers of samples.
        seen = ~np.isnan(block)
        counts = np.broadcast_to(sizes[:, None], (len(sizes), block.shape[1]))
        if not seen.all():
            counts = member @ seen
        n_in, n_out = counts[clusters], counts.sum(0) - counts[clusters]
        raw = member @ np.where(seen, block, 0.0)
        overall[columns] = _divide(raw.sum(0), counts.sum(0))
        inside[:, columns] = _divide(raw[clusters], n_in)
        outside[:, columns] = _divide(raw.sum(0) - raw[clusters], n_out)
        # Mean differences of residuals, in pooled standard deviations of cluster and other samples.
        rest = known.residuals(block, seen)
        sums, squares = member @ rest, member @ rest**2
        sums_in, sums_out = sums[clusters], sums.sum(0) - sums[clusters]
        difference = np.nan_to_num(_divide(sums_in, n_in) - _divide(sums_out, n_out))
        largest = np.abs(np.where(seen, block, 0.0)).max(0)
        difference[np.abs(difference) <= _ROUNDING * largest] = 0
        scatter = squares.sum(0) - np.nan_to_num(_divide(sums_in**2, n_in))
        scatter = scatter - np.nan_to_num(_divide(sums_out**2, n_out))
        freedom = np.maximum(counts.sum(0) - 2, 1)
        deviation = np.sqrt(np.maximum(scatter, 0) / freedom)
        differences[:, columns] = _standardised_difference(difference, deviation)
        centres = sums / np.maximum(counts, 1)
        # Squared distances to the centres, with features scaled by their spread within clusters.
        spread = np.sqrt(np.maximum(squares.sum(0) - (sums * centres).sum(0), 0))
        varies = spread > np.sqrt(_ROUNDING) * largest
        within = spread[varies] / np.sqrt(counts.sum(0)[varies])
        scaled = ((rest - centres[codes]) * seen)[:, varies] / within
        distances += (scaled**2).sum(1)
        n_seen += seen[:, varies].sum(1)
    # Mean squared distance over observed features, and the nearest samples of every cluster.
    distances /= np.maximum(n_seen, 1)
    nearest = []
    for cluster in clusters:
        rows = np.flatnonzero(codes == cluster)
        nearest.append(rows[np.argsort(distances[rows], kind="stable")[:n_nearest]])
    return TopFeatures(differences, inside, outside, overall, nearest)


def features_in_turn(sizes: np.ndarray, n: int) -> np.ndarray:
    """Indices of at most ``n`` features with non-zero sizes: the largest of each cluster in turn.

    ``sizes`` (c, p) are sizes of p features in c clusters, at least 0. Every cluster selects its
    largest feature that no other cluster has selected, then every cluster selects the next one.
    """
    orders = np.argsort(-sizes, axis=1, kind="stable")
    queues = [order[size[order] > 0] for order, size in zip(orders, sizes, strict=True)]
    selected: dict[int, None] = {}
    positions = [0] * len(queues)
    while len(selected) < n and any(i < len(q) for i, q in zip(positions, queues, strict=True)):
        for cluster, queue in enumerate(queues):
            while positions[cluster] < len(queue) and queue[positions[cluster]] in selected:
                positions[cluster] += 1
            if positions[cluster] < len(queue) and len(selected) < n:
                selected[int(queue[positions[cluster]])] = None
    return np.array([*selected], int)


def find_nearest_counts(
    X: Any,
    codes: np.ndarray,
    clusters: Sequence[int],
    groups: np.ndarray,
    measured: np.ndarray | None = None,
    n_nearest: int = 5,
) -> list[np.ndarray]:
    """Find the samples of counts that are nearest to the centres of their clusters.

    Counts are divided by the sum of their sample, and multiplied by the median sum; log(1 + count)
    is then adjusted for known structure. Distances are measured in the span of the differences of
    cluster centres. Otherwise, samples with the smallest or largest sums would be nearest, since
    the noise of counts depends on the sum.

    `find_top_features` describes the arguments; ``X`` must not have missing values. For every
    cluster, the result has the indices of the samples, nearest first.
    """
    total = np.asarray(X.sum(axis=1), float).ravel()
    factors = np.divide(np.median(total), total, out=np.zeros_like(total), where=total > 0)
    member, sizes = _indicator_matrix(codes), np.maximum(np.bincount(codes), 1)[:, None]
    known = _KnownStructure(groups, measured, member.T.toarray())
    k = len(sizes)
    # Inner products of samples and centres, and of centres: together they determine distances in
    # the span of the centres.
    products, gram = np.zeros((len(codes), k)), np.zeros((k, k))
    for _, block in iterate_feature_blocks(X):
        rest = known.residuals(np.log1p(block * factors[:, None]), np.ones(block.shape, bool))
        rest -= rest.mean(0)
        centres = member @ rest / sizes
        products += rest @ centres.T
        gram += centres @ centres.T
    offsets = products - gram[codes]
    # One eigenvalue is 0 up to rounding, since the centres are differences from the mean.
    inverse = np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
    distances = np.einsum("ij,ij->i", offsets @ inverse, offsets)
    rows = [np.flatnonzero(codes == cluster) for cluster in clusters]
    return [r[np.argsort(distances[r], kind="stable")[:n_nearest]] for r in rows]


class _KnownStructure:
    """Regression of blocks of features on known groups, continuous covariates and clusters.

    The effects of known structure are fitted together with effects of ``clusters`` (n, k), which
    are indicators of the clusters. Effects of known structure therefore do not absorb differences
    between clusters if cluster shares differ between groups.
    """

    def __init__(self, groups: np.ndarray, measured: np.ndarray | None, clusters: np.ndarray):
        self.groups, self.n_clusters = groups, clusters.shape[1]
        parts = [clusters] if measured is None else [clusters, np.asarray(measured, float)]
        self.design = np.column_stack(parts)
        self.inverse = within_group_inverse(self.design, groups)

    def residuals(self, block: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """Features ``block`` (n, d) without the effects of known structure.

        ``seen`` (n, d) masks observed values; the result is 0 where a value is missing.
        """
        rest, complete = np.zeros_like(block), seen.all(0)
        everything = slice(None)
        rest[:, complete] = self._subtract_effects(block[:, complete], everything, self.inverse)
        for j in np.flatnonzero(~complete & seen.any(0)):
            rows = np.flatnonzero(seen[:, j])
            groups = np.unique(self.groups[rows], return_inverse=True)[1]
            inverse = within_group_inverse(self.design[rows], groups)
            rest[rows, j] = self._subtract_effects(block[rows, j][:, None], rows, inverse)[:, 0]
        return rest

    def _subtract_effects(self, block: np.ndarray, rows: Any, inverse: np.ndarray) -> np.ndarray:
        coefficients, k = inverse @ block, self.n_clusters
        rest = block - self.design[rows] @ coefficients
        groups = np.unique(self.groups[rows], return_inverse=True)[1]
        rest = rest - group_means(rest, groups)[groups]
        return rest + self.design[rows, :k] @ coefficients[:k]


def _indicator_matrix(codes: np.ndarray) -> scipy.sparse.csr_array:
    """Sparse matrix of indicators of ``codes`` (n,): one row per code and one column per sample.

    The product of this matrix and samples (n, d) has the sums of the samples of every code.
    """
    n = len(codes)
    return scipy.sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=(codes.max() + 1, n))


def iterate_feature_blocks(X: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield every block of columns of ``X`` (n, p): the slice of columns, and a dense array."""
    n, p = X.shape
    sparse = scipy.sparse.issparse(X)
    X = X.tocsc() if sparse else X
    width = max(1, _ENTRIES // n)
    for start in range(0, p, width):
        columns = slice(start, min(start + width, p))
        block = X[:, columns]
        yield columns, np.asarray(block.toarray() if sparse else block, float)


def _divide(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Divide sums by counts; NaN where a count is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums / counts


def _standardised_difference(values: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Divide differences ``values`` by standard deviations; the result is 0 for 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values == 0, 0.0, values / deviation)


@dataclass(frozen=True)
class Crossing:
    """Contingency table of clusters and the groups of a labeling.

    Attributes
    ----------
    name : name of the labeling
    groups : names of the g groups; the last name stands for all merged groups, if any
    counts : (c, g) numbers of samples
    joined : number of merged groups
    """

    name: str
    groups: list[str]
    counts: np.ndarray
    joined: int = 0


def cross_labels(
    name: str, labels: np.ndarray, codes: np.ndarray, clusters: Sequence[int], most: int
) -> Crossing:
    """Cross-tabulate clusters and the groups of a labeling, with at most ``most`` columns.

    If there are more groups, the largest group of every cluster is selected, then the second
    largest group of every cluster, and so on. The columns of the selected groups are in the order
    of the names of the groups. The remaining groups are merged into the last column.

    Parameters
    ----------
    name : name of the labeling
    labels : (n,) labeling
    codes : (n,) clusters as integers
    clusters : the clusters of the rows of the table, as integers in ``codes``
    most : largest number of columns
    """
    values, group = np.unique(labels, return_inverse=True)
    names = [str(value) for value in values]
    # Row of every cluster in the table; samples of other clusters are in an additional last row.
    row = np.full(max(codes.max(initial=-1), max(clusters, default=-1)) + 1, len(clusters))
    row[np.asarray(clusters, int)] = np.arange(len(clusters))
    shape = (len(clusters) + 1, len(names))
    counts = cross_table(row[codes], group.ravel(), shape)[:-1]
    if len(names) <= most:
        return Crossing(name, names, counts)
    order = np.argsort(-counts, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    rank[counts == 0] = len(names)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # Sort groups by their best rank in any cluster, then by their largest share of a cluster.
    first = np.lexsort((-share.max(axis=0, initial=0), rank.min(axis=0, initial=len(names))))
    retained, rest = np.sort(first[: most - 1]), first[most - 1 :]
    together = counts[:, rest].sum(axis=1, keepdims=True)
    groups = [*(names[g] for g in retained), f"{len(rest)} others"]
    return Crossing(name, groups, np.hstack([counts[:, retained], together]), len(rest))
