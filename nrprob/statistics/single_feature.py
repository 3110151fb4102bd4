"""Test whether one discrete feature determines the clusters, by I(c; y) / H(c).

I(c; y) is the mutual information of the clusters c and the feature y, and H(c) the entropy of the
clusters. Shapes: n samples, k clusters, v values of the feature.
"""

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

THRESHOLD = 0.7  # a feature determines the clusters if I(c; y) / H(c) is larger
_MAX_ROWS = 2**13  # larger tables are subsampled, with equal numbers of samples per cluster
_MIN_ROWS_PER_CLUSTER = 2**6  # smallest number of samples per cluster in the subsample
_MIN_ROWS_PER_VALUE = 5  # smallest mean number of samples per value of a discrete column
_PREVIEW_ROWS = 2**8  # number of samples that suffice to recognise most continuous columns


@dataclass(frozen=True)
class SingleFeature:
    """A discrete feature that determines the clusters.

    ``str(feature)`` is a clause for messages.

    Attributes
    ----------
    column : name of the column; "column 3" if columns have no names
    share : I(c; y) / H(c), adjusted for chance; see `single_feature`
    cluster : label of the cluster that agrees best with a set of values of the feature
    values : the values in this set, as text
    one_of_several : whether the feature determines only ``cluster``, and not all clusters
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
    """A discrete feature of n samples.

    ``column`` is the name of the column. ``codes`` (n,) are integers for the values of the samples,
    and ``values`` (v,) has the text of the value of every code.
    """

    column: str
    codes: np.ndarray
    values: list[str]

    def joint_weights(self, clusters: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Sums (v, k) of sample weights over the samples with each value in each cluster.

        ``clusters`` (n,) are the clusters of the samples, and ``weights`` (n,) their weights.
        """
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
    r"""Return a discrete feature that determines the clusters, or None if no feature does.

    The feature y maximises

    .. math:: \frac{I(c; y) - e}{H(c) - e}, \qquad e = \frac{(k - 1)(v - 1)}{2n}

    for the clusters c, and this share must exceed 0.7. Here n is the number of samples, k the
    number of clusters and v the number of values of y. e is the expected mutual information of
    independent labelings. A column is tested if it has 2 to 19 distinct values, at least 5 samples
    per value on average, and at least two values that occur more than once. If all data are counts,
    only columns with 2 distinct values are tested. Columns with too many values for a test are
    called continuous below. All indicator columns of one column of a table are tested as one
    feature.

    If some columns are continuous, and no feature determines all of three or more clusters, the
    function looks for a feature that determines one cluster. Each cluster is then compared with all
    other clusters together.

    If no column is continuous, the shares of several correlated features may exceed 0.7. A feature
    is then returned only if its share is more than twice the second largest share. Single clusters
    are not compared with the others.

    Parameters
    ----------
    X : array, sparse matrix or pandas frame of shape (n_samples, n_features)
    labels : (n_samples,) cluster labels
    names : names of the columns of an array
    indicators : by name of an indicator column, the tuple (column of the table, value at 0, value
        at 1); the value at 0 is "" if 0 stands for any other value. By default, columns with names
        ``column=value`` and boolean columns of a frame
    scales : by name of a standardised column, the tuple (mean, standard deviation)
    """
    clusters, codes = np.unique(labels, return_inverse=True)
    codes = codes.ravel()
    if clusters.size < 2:
        return None
    sizes = np.bincount(codes) / codes.size
    entropy_c = float(entropy(sizes))
    # Subsample large tables, and convert the columns to an array with names.
    rows = _sample_rows(codes)
    codes = codes[rows]
    weights = (sizes / np.bincount(codes))[codes]  # weights preserve H(c) of all samples
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
    # Discrete features, their joint tables with the clusters, and their shares.
    most = 2 if guess_features(X) == "multinomial" else FEW_VALUES - 1
    if sparse.issparse(X):
        columns = _informative_columns(X, THRESHOLD / 2 * entropy_c)
        X, names = X.tocsc()[:, columns], [names[j] for j in columns]
    features, continuous = _discrete_features(X, names, indicators, scales or {}, most, texts)
    tables = [feature.joint_weights(codes, weights) for feature in features]
    shares = [_explained_share(joint, entropy_c, codes.size) for joint in tables]
    second, share = sorted([0.0, 0.0, *shares])[-2:]
    # Return the feature with the largest share if it determines all clusters, or one of them.
    if share > (THRESHOLD if continuous else max(THRESHOLD, 2 * second)):
        joint, best = tables[shares.index(share)], features[shares.index(share)]
        c, values = _best_agreement(joint)
        return _make_single_feature(best, share, int(clusters[c]), values)
    if continuous and clusters.size > 2:
        return _single_cluster(features, tables, clusters, codes.size)
    return None


def _fill_missing(X: np.ndarray, names: list[Any], texts: dict[Any, list[str]]) -> np.ndarray:
    """Replace missing values (NaN) in ``X`` (n, m) by an additional value per column.

    ``names`` are the names of the columns. ``texts`` maps the name of a text column to the text of
    every code; the function adds the text "missing".
    """
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
    """Return the feature that best determines one of several clusters, or None.

    I(1_c; y) / H(1_c) must exceed 0.7, for the indicator 1_c of cluster c. A feature of two values
    cannot determine three clusters of similar size, but may determine one of them. ``tables`` are
    the joint probabilities (v, k) of each feature and the clusters, whose labels are ``clusters``
    (k,). ``n`` is the number of samples.
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
    """I(c; y) / H(c) of clusters c and a feature y, adjusted for chance; see `single_feature`.

    ``joint`` (v, k) are joint probabilities of v values of the feature and k clusters,
    ``entropy_c`` is H(c), and ``n`` the number of samples.
    """
    v, k = np.count_nonzero(joint.sum(1)), joint.shape[1]
    chance = (k - 1) * (v - 1) / (2 * n)
    if entropy_c <= chance:
        return 0.0
    return float((mutual_information(joint) - chance) / (entropy_c - chance))


def _make_single_feature(
    feature: _DiscreteFeature, share: float, cluster: int, values: np.ndarray, several: bool = False
) -> SingleFeature:
    """Make the result for a feature that determines all clusters, or one of ``several``.

    ``values`` are the codes of the feature values that agree with the cluster labelled ``cluster``.
    """
    names = tuple(feature.values[v] for v in values)
    return SingleFeature(feature.column, share, cluster, names, several)


def _indicators_by_name(names: Sequence[str]) -> dict[str, Sequence[str]]:
    """Recognise indicator columns by names ``column=value``, as `nrprob.prepare` writes them."""
    parts = {name: name.partition("=") for name in names}
    return {name: (column, "", value) for name, (column, equals, value) in parts.items() if equals}


def _sample_rows(codes: np.ndarray) -> np.ndarray:
    """Indices, in ascending order, of a random subset of samples, stratified by cluster.

    ``codes`` (n,) are the clusters of all samples. If there are few samples, all are selected.
    """
    if codes.size <= _MAX_ROWS:
        return np.arange(codes.size)
    order = np.random.default_rng(0).permutation(codes.size)
    order = order[np.argsort(codes[order], kind="stable")]
    sizes = np.bincount(codes)
    # Position of every sample within its cluster, in random order.
    place = np.arange(codes.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[place < max(_MAX_ROWS // sizes.size, _MIN_ROWS_PER_CLUSTER)])


def _informative_columns(X: Any, least: float) -> np.ndarray:
    """Indices of the columns of a sparse matrix ``X`` whose entropy may exceed ``least``.

    The entropy of a column y is an upper bound of its mutual information I(c; y) with clusters c.
    """
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
    """Return the discrete features, and whether any column has more than ``most`` values.

    ``texts`` maps the name of a text column to the values that its codes represent.
    `single_feature` describes all other arguments.
    """
    features: dict[tuple[str, bool], _DiscreteFeature] = {}
    continuous = False
    for columns, block in iterate_feature_blocks(X):
        # Some samples are enough to exclude most continuous columns.
        look = np.sort(block[:: max(1, len(block) // _PREVIEW_ROWS)], axis=0)
        few = (np.diff(look, axis=0) != 0).sum(0) < most
        continuous |= not few.all()
        for j in np.flatnonzero(few):
            name = names[columns.start + j]
            result, codes, counts = np.unique(block[:, j], return_inverse=True, return_counts=True)
            codes = codes.astype(np.int16)
            continuous |= result.size > most
            # All indicator columns of one column of a table are one feature.
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
    """Return the cluster that agrees best with a set of values of a feature, and the set.

    ``joint`` (v, k) are sums of weights for v values of the feature and k clusters. The agreement
    of a cluster and a set of values is the Jaccard index of their samples.
    """
    # Cluster with the largest weight for every value; -1 for values without samples.
    owner = np.where(joint.sum(1) > 0, joint.argmax(1), -1)
    result = []
    for c in np.unique(owner[owner >= 0]):
        values = np.flatnonzero(owner == c)
        both = joint[values, c].sum()
        jaccard = both / (joint[values].sum() + joint[:, c].sum() - both)
        # With two clusters, both agree equally: prefer fewer values, then the last value.
        result.append((round(jaccard, 9), -values.size, values.max(), c, values))
    *_, c, values = max(result, key=lambda candidate: candidate[:3])
    return int(c), values
