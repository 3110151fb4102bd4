"""Test whether one discrete feature determines the clusters, by I(c; y) / H(c)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.stats import entropy

from nrprob.data.feature_types import FEW_VALUES, guess_features
from nrprob.data.frames import as_codes, is_frame
from nrprob.exceptions import SingleFeatureWarning, warn
from nrprob.information import mutual_information
from nrprob.statistics.top_features import iterate_feature_blocks

__all__ = ["SingleFeature", "single_feature", "warn_of_single_feature"]

THRESHOLD = 0.7  # of I(c; y) / H(c)
_MAX_ROWS = 2**13  # larger tables are sampled, with equal numbers of rows per cluster
_MIN_ROWS_PER_CLUSTER = 2**6  # in that sample
_MIN_ROWS_PER_VALUE = 5  # of a discrete column, on average
_PREVIEW_ROWS = 2**8  # rows in which most continuous columns are recognised


@dataclass(frozen=True)
class SingleFeature:
    """A discrete feature that determines the clusters.

    ``str(feature)`` is a clause for messages.

    Attributes
    ----------
    column : name of the column; "column 3" if columns have no names
    share : I(c; y) / H(c)
    cluster : the cluster that agrees best with a set of values of the feature
    values : this set of values
    one_of_several : whether the feature determines this cluster only
    """

    column: str
    share: float
    cluster: int
    values: tuple[str, ...]
    one_of_several: bool = False

    def __str__(self) -> str:
        which = "this cluster" if self.one_of_several else "the clusters"
        return (
            f"cluster {self.cluster} is {self.column} = {' or '.join(self.values)}: this one "
            f"feature determines {which} (I(c; y) / H(c) = {self.share:.2f})"
        )


@dataclass
class _DiscreteFeature:
    """A discrete feature: its column, the code (n,) of each row, and the values by code."""

    column: str
    codes: np.ndarray
    values: list[str]

    def joint_weights(self, clusters: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Joint weights (v, k) of values and clusters."""
        shape = len(self.values), clusters.max() + 1
        cell = np.ravel_multi_index((self.codes, clusters), shape)
        return np.bincount(cell, weights, shape[0] * shape[1]).reshape(shape)


def warn_of_single_feature(X: Any, labels: np.ndarray) -> None:
    """Warn if one discrete feature of ``X`` determines the clusters; see `single_feature`."""
    feature = single_feature(X, labels)
    if feature is not None:
        warn(f"{feature}; drop this column, or pass it as known", SingleFeatureWarning)


def single_feature(
    X: Any,
    labels: np.ndarray,
    names: Sequence[str] | None = None,
    indicators: Mapping[str, Sequence[str]] | None = None,
    scales: Mapping[str, Sequence[float]] | None = None,
) -> SingleFeature | None:
    r"""Find a discrete feature that determines the clusters; None if there is none.

    The feature y maximises

    .. math:: \frac{I(c; y) - e}{H(c) - e}, \qquad e = \frac{(k - 1)(v - 1)}{2n}

    for the clusters c, and this share must exceed 0.7. Here e is the expected mutual information of
    independent labelings with k and v values. If no feature does, and there are three or more
    clusters, each cluster is compared with all others. A feature is a column with 2 to 19 distinct
    values and on average 5 rows per value (2 values if all data are counts), or all indicator
    columns of one column of a table. Continuous columns are not tested.

    If all columns are discrete, several correlated features may exceed 0.7. The feature is then
    returned only if its share is twice the second largest, and single clusters are not compared.

    Parameters
    ----------
    X : array, sparse matrix or pandas frame of shape (n_samples, n_features)
    labels : ndarray of shape (n_samples,)
    names : names of the columns of an array
    indicators : name of an indicator column -> (column of the table, value at 0 or "" for any
        other, value at 1); by default names ``column=value`` and boolean columns of a frame
    scales : name of a standardised column -> (mean, standard deviation)
    """
    clusters, codes = np.unique(labels, return_inverse=True)
    codes = codes.ravel()
    if clusters.size < 2:
        return None
    sizes = np.bincount(codes) / codes.size
    entropy_c = float(entropy(sizes))
    # Sample rows of large tables, and convert the columns to an array with names.
    rows = _sample_rows(codes)
    codes = codes[rows]
    weights = (sizes / np.bincount(codes))[codes]  # preserves H(c) of all rows
    booleans: dict[str, Sequence[str]] = {}
    texts: dict[Any, list[str]] = {}
    if is_frame(X):
        names = [str(name) for name in X.columns]
        kinds = zip(names, X.dtypes, strict=True)
        booleans = {n: (n, "false", "true") for n, kind in kinds if kind.kind == "b"}
        frame, texts = as_codes(X.iloc[rows])
        X = _fill_missing(frame.to_numpy(np.float64, na_value=np.nan), list(X.columns), texts)
    else:
        X = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X)
        X = X if X.dtype.kind in "fiu" else X.astype(np.float64)  # booleans and objects
        X = X if rows.size == X.shape[0] else X[rows]
        X = X if sparse.issparse(X) else _fill_missing(X, [], {})
    names = [f"column {j}" for j in range(X.shape[1])] if names is None else names
    indicators = _indicators_by_name(names) | booleans if indicators is None else indicators
    # Discrete features, their joint tables with the clusters, and the best share.
    most = 2 if guess_features(X) == "multinomial" else FEW_VALUES - 1
    if sparse.issparse(X):
        columns = _informative_columns(X, THRESHOLD / 2 * entropy_c)
        X, names = X.tocsc()[:, columns], [names[j] for j in columns]
    features, continuous = _discrete_features(X, names, indicators, scales or {}, most, texts)
    tables = [feature.joint_weights(codes, weights) for feature in features]
    shares = [_explained_share(joint, entropy_c, codes.size) for joint in tables]
    second, share = sorted([0.0, 0.0, *shares])[-2:]
    if share > (THRESHOLD if continuous else max(THRESHOLD, 2 * second)):
        joint, best = tables[shares.index(share)], features[shares.index(share)]
        c, values = _best_agreement(joint)
        return _make_single_feature(best, share, int(clusters[c]), values)
    if continuous and clusters.size > 2:
        return _single_cluster(features, tables, clusters, codes.size)
    return None


def _fill_missing(X: np.ndarray, names: list[Any], texts: dict[Any, list[str]]) -> np.ndarray:
    """The table with missing values as one more value of their column."""
    missing = np.isnan(X) if X.dtype.kind == "f" else np.zeros(1, bool)
    if not missing.any():
        return X
    X = X.copy()
    for j in np.flatnonzero(missing.any(0)):
        gone = missing[:, j]
        largest = X[~gone, j].max(initial=-1.0)
        X[gone, j] = largest + 1
        if names and names[j] in texts:
            texts[names[j]] += [""] * (int(largest) + 1 - len(texts[names[j]])) + ["missing"]
    return X


def _single_cluster(
    features: Sequence[_DiscreteFeature], tables: Sequence[np.ndarray], clusters: np.ndarray, n: int
) -> SingleFeature | None:
    """Find the feature that determines one of several clusters: I(1_c; y) / H(1_c) above 0.7.

    A feature of two values cannot determine three clusters of similar size, but may determine one
    of them.
    """
    best = None
    for feature, joint in zip(features, tables, strict=True):
        for c in range(clusters.size):
            two = np.column_stack([joint[:, c], joint.sum(1) - joint[:, c]])
            share = _explained_share(two, float(entropy(two.sum(0))), n)
            if share > max(THRESHOLD, best.share if best else 0.0):
                values = np.flatnonzero(two[:, 0] > two[:, 1])
                best = _make_single_feature(feature, share, int(clusters[c]), values, several=True)
    return best


def _explained_share(joint: np.ndarray, entropy_c: float, n: int) -> float:
    """I(c; y) / H(c) of a table (v, k) of probabilities, adjusted for chance."""
    v, k = np.count_nonzero(joint.sum(1)), joint.shape[1]
    chance = (k - 1) * (v - 1) / (2 * n)
    if entropy_c <= chance:
        return 0.0
    return float((mutual_information(joint) - chance) / (entropy_c - chance))


def _make_single_feature(
    feature: _DiscreteFeature, share: float, cluster: int, values: np.ndarray, several: bool = False
) -> SingleFeature:
    """Make the result for a feature, a cluster and the values of that cluster."""
    names = tuple(feature.values[v] for v in values)
    return SingleFeature(feature.column, share, cluster, names, several)


def _indicators_by_name(names: Sequence[str]) -> dict[str, Sequence[str]]:
    """Indicators from column names of the form that `nrprob.prepare` creates."""
    parts = {name: name.partition("=") for name in names}
    return {name: (column, "", value) for name, (column, equals, value) in parts.items() if equals}


def _sample_rows(codes: np.ndarray) -> np.ndarray:
    """Row indices of a sample in ascending order; all rows of a small table."""
    if codes.size <= _MAX_ROWS:
        return np.arange(codes.size)
    order = np.random.default_rng(0).permutation(codes.size)
    order = order[np.argsort(codes[order], kind="stable")]
    sizes = np.bincount(codes)
    place = np.arange(codes.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[place < max(_MAX_ROWS // sizes.size, _MIN_ROWS_PER_CLUSTER)])


def _informative_columns(X: Any, least: float) -> np.ndarray:
    """Indices of sparse columns whose entropy, a bound of I(c; y), may exceed ``least``."""
    filled = X.astype(bool).sum(0) / X.shape[0]
    bound = entropy([filled, 1 - filled]) + filled * np.log(FEW_VALUES)
    return np.flatnonzero(bound > least)


def _discrete_features(
    X: Any,
    names: Sequence[str],
    indicators: Mapping[str, Sequence[str]],
    scales: Mapping[str, Sequence[float]],
    most: int,
    texts: Mapping[Any, Sequence[str]],
) -> tuple[list[_DiscreteFeature], bool]:
    """Features with at most ``most`` values, and whether any column has more.

    ``texts`` maps a column name to the values that its codes represent.
    """
    features: dict[tuple[str, bool], _DiscreteFeature] = {}
    continuous = False
    for columns, block in iterate_feature_blocks(X):
        # The first rows exclude most continuous columns.
        look = np.sort(block[:: max(1, len(block) // _PREVIEW_ROWS)], axis=0)
        few = (np.diff(look, axis=0) != 0).sum(0) < most
        continuous |= not few.all()
        for j in np.flatnonzero(few):
            name = names[columns.start + j]
            result, codes, counts = np.unique(block[:, j], return_inverse=True, return_counts=True)
            codes = codes.astype(np.int16)
            continuous |= result.size > most
            # Indicator columns of one column of a table are combined.
            if result.size == 2 and name in indicators:
                column, off, on = indicators[name]
                blank = _DiscreteFeature(column, np.zeros_like(codes), [off or "any other value"])
                feature = features.setdefault((column, True), blank)
                feature.codes[codes == 1] = len(feature.values)
                feature.values.append(on)
            elif (
                result.size <= most
                and result.size * _MIN_ROWS_PER_VALUE <= len(codes)
                and np.count_nonzero(counts > 1) > 1
            ):
                mean, deviation = scales.get(name, (0.0, 1.0))
                values = [f"{value:.6g}" for value in result * deviation + mean]
                if name in texts:
                    values = [texts[name][int(value)] for value in result]
                features[name, False] = _DiscreteFeature(name, codes, values)
    return [*features.values()], continuous


def _best_agreement(joint: np.ndarray) -> tuple[int, np.ndarray]:
    """The cluster that agrees best with a set of values of a feature, and this set."""
    owner = np.where(joint.sum(1) > 0, joint.argmax(1), -1)
    result = []
    for c in np.unique(owner[owner >= 0]):
        values = np.flatnonzero(owner == c)
        both = joint[values, c].sum()
        jaccard = both / (joint[values].sum() + joint[:, c].sum() - both)
        # Two clusters are complements: prefer the cluster with fewer values, then the last value.
        result.append((round(jaccard, 9), -values.size, values.max(), c, values))
    *_, c, values = max(result, key=lambda candidate: candidate[:3])
    return int(c), values
