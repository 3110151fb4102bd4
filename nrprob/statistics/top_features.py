"""Features that distinguish clusters, adjusted for known structure, and example rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.statistics.groups import cross_table, observed_means

__all__ = ["Crossing", "Findings", "cross_labels", "find_top_features"]

_ENTRIES = 2**20  # per block of features, to fit the cache and avoid a dense copy
_NOTABLE = 0.3  # smallest difference of a description, in standard deviations
_MOST_VALUES = 3  # values of a column in a description
_ROUNDING = 1e-12  # relative to the largest entry; smaller differences of means are 0


@dataclass(frozen=True)
class Findings:
    """Features and example rows of several clusters.

    Attributes
    ----------
    differences : (c, p) standardised mean differences of the cluster and all other rows, adjusted
        for known structure
    inside, outside : (c, p) unadjusted means of the cluster and of all other rows
    overall : (p,) unadjusted means of all rows
    nearest : per cluster, indices of its rows nearest to its centre, in ascending distance
    """

    differences: np.ndarray
    inside: np.ndarray
    outside: np.ndarray
    overall: np.ndarray
    nearest: list[np.ndarray]

    def most_different(self, cluster: int, n: int) -> np.ndarray:
        """At most ``n`` features by which a cluster differs most, without zero differences."""
        size = np.abs(self.differences[cluster])
        order = np.argsort(-size, kind="stable")[:n]
        return order[size[order] > 0]

    def describe(
        self,
        cluster: int,
        names: Sequence[str],
        indicators: Mapping[str, Sequence[str]],
        scales: Mapping[str, Sequence[float]],
        n_columns: int = 5,
    ) -> str:
        """The columns by which a cluster differs most: its means and shares, and those of all rows.

        Parameters
        ----------
        cluster : position among the clusters
        names : (p,) names of the features
        indicators : name of a binary feature -> (column of the table, value at 0, value at 1)
        scales : name of a standardised feature -> (mean, standard deviation)
        n_columns : largest number of columns
        """
        size = np.abs(self.differences[cluster])
        columns: dict[str, list[str]] = {}
        for j in self.most_different(cluster, len(size)):
            if size[j] < _NOTABLE:
                break
            name = names[j]
            column, _, value = indicators.get(name, (name, "", ""))
            texts = columns.setdefault(column, [])
            of_all = " of all" * (len(columns) == 1 and not texts)
            inside, overall = self.inside[cluster, j], self.overall[j]
            if name in indicators:
                text = f"{value} {100 * inside:.0f} % ({100 * overall:.0f} %{of_all})"
            else:
                mean, deviation = scales.get(name, (0.0, 1.0))
                means = inside * deviation + mean, overall * deviation + mean
                # As many decimals as two digits of the difference need.
                difference = max(abs(means[0] - means[1]), 1e-300)
                decimals = int(np.clip(1 - np.floor(np.log10(difference)), 0, 9))
                text = f"{means[0]:.{decimals}f} ({means[1]:.{decimals}f}{of_all})"
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
) -> Findings:
    """Compare clusters by features adjusted for known groups and continuous covariates.

    Parameters
    ----------
    X : (n, p) rows, dense or sparse; NaN where values are missing
    codes : (n,) codes of the clusters, at least two of them non-empty
    clusters : codes of the clusters to compare with all other rows
    groups : (n,) codes of known groups, whose means are subtracted; zeros for none
    measured : (n, m) continuous covariates, regressed out within groups
    n_nearest : number of example rows per cluster
    """
    n, p = X.shape
    member, sizes = _indicator_matrix(codes), np.bincount(codes)
    known = _KnownStructure(groups, measured)
    differences, inside, outside = np.zeros((3, len(clusters), p))
    overall, distances, n_seen = np.zeros(p), np.zeros(n), np.zeros(n)
    for columns, block in iterate_feature_blocks(X):
        # Missing values count neither in numbers of rows nor in sums.
        seen = ~np.isnan(block)
        complete = bool(seen.all())
        counts = np.broadcast_to(sizes[:, None], (len(sizes), block.shape[1]))
        if not complete:
            block, counts = known.fill_missing(block, seen), member @ seen
        n_in, n_out = counts[clusters], counts.sum(0) - counts[clusters]
        raw = member @ np.where(seen, block, 0.0)
        overall[columns] = _divide(raw.sum(0), counts.sum(0))
        inside[:, columns] = _divide(raw[clusters], n_in)
        outside[:, columns] = _divide(raw.sum(0) - raw[clusters], n_out)
        # Mean differences of residuals, in pooled standard deviations of the two sets of rows.
        rest = known.residuals(block)
        if not complete:
            rest = np.where(seen, rest, 0.0)
        sums, squares = member @ rest, member @ rest**2
        sums_in, sums_out = sums[clusters], sums.sum(0) - sums[clusters]
        difference = np.nan_to_num(_divide(sums_in, n_in) - _divide(sums_out, n_out))
        largest = np.abs(block).max(0)
        difference[np.abs(difference) <= _ROUNDING * largest] = 0
        scatter = squares.sum(0) - np.nan_to_num(_divide(sums_in**2, n_in))
        scatter = scatter - np.nan_to_num(_divide(sums_out**2, n_out))
        freedom = np.maximum(counts.sum(0) - 2, 1)
        deviation = np.sqrt(np.maximum(scatter, 0) / freedom)
        differences[:, columns] = _standardised_difference(difference, deviation)
        centres = sums / np.maximum(counts, 1)
        # Squared distances to the centres in within-cluster deviations; their unit is irrelevant.
        within = np.sqrt(np.maximum(squares.sum(0) - (sums * centres).sum(0), 0))
        varies = within > np.sqrt(_ROUNDING) * largest
        scaled = ((rest - centres[codes]) * seen)[:, varies] / within[varies]
        distances += (scaled**2).sum(1)
        n_seen += seen[:, varies].sum(1)
    distances /= np.maximum(n_seen, 1)
    nearest = []
    for cluster in clusters:
        rows = np.flatnonzero(codes == cluster)
        nearest.append(rows[np.argsort(distances[rows], kind="stable")[:n_nearest]])
    return Findings(differences, inside, outside, overall, nearest)


class _KnownStructure:
    """Regression of blocks of features on known groups and continuous covariates."""

    def __init__(self, groups: np.ndarray, measured: np.ndarray | None):
        self.groups, self.member = groups, _indicator_matrix(groups)
        self.sizes = np.maximum(np.bincount(groups), 1)[:, None]
        self.design = (
            None if measured is None else self._centre_within_groups(np.asarray(measured, float))
        )
        self.inverse = None if self.design is None else np.linalg.pinv(self.design)

    def _centre_within_groups(self, block: np.ndarray) -> np.ndarray:
        return block - (self.member @ block / self.sizes)[self.groups]

    def fill_missing(self, block: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """The block with the mean of its group in place of a missing value."""
        means = observed_means(block, self.groups)
        means = np.where(
            np.isnan(means), _divide(np.where(seen, block, 0).sum(0), seen.sum(0)), means
        )
        return np.where(seen, block, np.nan_to_num(means)[self.groups])

    def residuals(self, block: np.ndarray) -> np.ndarray:
        rest = self._centre_within_groups(block)
        return rest if self.design is None else rest - self.design @ (self.inverse @ rest)


def _indicator_matrix(codes: np.ndarray) -> scipy.sparse.csr_array:
    """Matrix (k, n) that sums the rows of each code."""
    n = len(codes)
    return scipy.sparse.csr_array((np.ones(n), (codes, np.arange(n))), shape=(codes.max() + 1, n))


def iterate_feature_blocks(X: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield blocks of features of all rows, dense."""
    n, p = X.shape
    sparse = scipy.sparse.issparse(X)
    X = X.tocsc() if sparse else X
    width = max(1, _ENTRIES // n)
    for start in range(0, p, width):
        columns = slice(start, min(start + width, p))
        block = X[:, columns]
        yield columns, np.asarray(block.toarray() if sparse else block, float)


def _divide(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Means; NaN of nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums / counts


def _standardised_difference(values: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Values divided by standard deviations; 0 / 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values == 0, 0.0, values / deviation)


@dataclass(frozen=True)
class Crossing:
    """Contingency table of clusters and the groups of a labeling.

    Attributes
    ----------
    name : name of the labeling
    groups : names of the groups; the last one stands for the merged groups, if any
    counts : (c, g) numbers of rows
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

    Columns are the largest group of each cluster, then the second largest of each, and so on; the
    remaining groups are merged.
    """
    values, group = np.unique(labels, return_inverse=True)
    names = [str(value) for value in values]
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
    # Sort by the best rank in any cluster; ties by the largest share of a cluster.
    first = np.lexsort((-share.max(axis=0, initial=0), rank.min(axis=0, initial=len(names))))
    retained, rest = np.sort(first[: most - 1]), first[most - 1 :]
    together = counts[:, rest].sum(axis=1, keepdims=True)
    groups = [*(names[g] for g in retained), f"{len(rest)} others"]
    return Crossing(name, groups, np.hstack([counts[:, retained], together]), len(rest))
