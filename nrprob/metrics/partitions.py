"""Similarity and independence of two partitions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from math import e
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy

from nrprob.data.validation import ITERATIONS, as_number, check_choice, check_not_masked
from nrprob.exceptions import short_repr
from nrprob.information import _log_base, entropy

__all__ = [
    "IndependenceTest",
    "adjusted_rand_index",
    "contingency",
    "fowlkes_mallows_index",
    "hubert_difference",
    "hubert_gamma",
    "independence_test",
    "jaccard_index",
    "matched_accuracy",
    "matching_rate",
    "normalized_mutual_information",
    "pair_f_measure",
    "predictive_rate",
    "purity",
    "rand_index",
    "variation_of_information",
]

Labels = Iterable[Hashable] | NDArray[Any]
Codes = NDArray[np.int64]

BLOCK_SIZE = 2**22
"""Maximum number of entries of a temporary table, which bounds the memory."""


def _is_missing(value: object) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value; an array has too many
        return not hasattr(value, "__len__")


def _encode_labels(labels: Labels, name: str) -> Codes:
    """Replace labels by 0, 1, ... in sorted order, or in order of appearance if not sortable."""
    if isinstance(labels, str) or not hasattr(labels, "__iter__"):
        raise TypeError(
            f"{name} must be a sequence of labels; got {type(labels).__name__}; "
            "pass one label per sample"
        )
    check_not_masked(labels, name)
    array = np.asarray(labels) if hasattr(labels, "__array__") else None
    if array is not None and array.ndim != 1:
        raise ValueError(
            f"{name} must be one-dimensional; got shape {array.shape}; pass one column at a time"
        )
    # np.asarray would turn [1, "a"] into strings and a list of tuples into a matrix.
    values: list[Hashable] | NDArray[Any] = list(labels) if array is None else array
    n_labels = len(values)
    if n_labels == 0:
        raise ValueError(f"{name} must not be empty; got 0 labels; pass one label per sample")

    if array is not None and array.dtype.kind != "O":
        missing = int(np.count_nonzero(array != array))  # NaN and NaT
    else:
        missing = sum(map(_is_missing, values))
    if missing:
        raise ValueError(
            f"{name} must not have missing labels; got {missing} of NaN, NaT or None; "
            "drop these samples or give them a separate label"
        )

    if array is not None and array.dtype.kind != "O":
        return np.unique(array, return_inverse=True)[1].astype(np.int64)
    try:
        classes = list(dict.fromkeys(values))
    except TypeError as error:
        raise TypeError(
            f"{name} must be hashable; got {error}; pass integers, strings or tuples"
        ) from None
    try:
        classes.sort()
    except TypeError:
        pass
    index = {label: code for code, label in enumerate(classes)}
    return np.fromiter((index[v] for v in values), dtype=np.int64, count=n_labels)


def _encode_pair(a: Labels, b: Labels, names: tuple[str, str]) -> tuple[Codes, Codes]:
    a_codes, b_codes = _encode_labels(a, names[0]), _encode_labels(b, names[1])
    _check_same_length(len(a_codes), len(b_codes), names)
    return a_codes, b_codes


def _check_same_length(n_a: int, n_b: int, names: tuple[str, str]) -> None:
    if n_a != n_b:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same length; got {n_a} and {n_b}; "
            "pass one label per sample in both"
        )


def _encode_labelings(labelings: ArrayLike | Sequence[Labels], name: str) -> list[Codes]:
    """Encode several labelings: columns of a table, elements of a list, or a single labeling."""
    columns: list[Any]
    if hasattr(labelings, "__array__"):
        check_not_masked(labelings, name)
        array = np.asarray(labelings)
        columns = list(array.T) if array.ndim == 2 else [array]
    elif isinstance(labelings, Sequence) and not isinstance(labelings, str):
        nested = all(hasattr(v, "__len__") and not isinstance(v, (str, bytes)) for v in labelings)
        columns = list(labelings) if nested else [labelings]
    else:
        columns = [labelings]
    if not columns:
        raise ValueError(f"{name} must hold at least one labeling; got none; pass one per view")
    return [_encode_labels(column, f"{name}[{number}]") for number, column in enumerate(columns)]


LABELS_TRUTH = ("labels", "truth")


def _occupied_cells(a: Codes, b: Codes) -> tuple[Codes, Codes, Codes]:
    """Return row, column and count of the occupied cells of the contingency table."""
    width = int(b.max()) + 1
    cells, counts = np.unique(a * width + b, return_counts=True)
    return cells // width, cells % width, counts


def contingency(a: Labels, b: Labels) -> NDArray[np.int64]:
    """Count the samples in every pair of clusters.

    Parameters
    ----------
    a, b : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    ndarray of shape (n_clusters_a, n_clusters_b), dtype int64
        Its entries sum to n_samples. Rows and columns follow the sorted labels, or the order of
        appearance if labels cannot be sorted.

    Raises
    ------
    ValueError
        If a labeling is empty, not one-dimensional or has missing labels, or lengths differ.
    TypeError
        If an argument is not a sequence or a label is not hashable.

    See Also
    --------
    matched_accuracy : Best one-to-one matching of this table.
    independence_test : Test of independence on this table.

    Examples
    --------
    >>> from nrprob.metrics import contingency
    >>> contingency([0, 0, 1, 1], [1, 1, 0, 2])
    array([[0, 2, 0],
           [1, 0, 1]])
    """
    from sklearn.metrics.cluster import contingency_matrix

    return contingency_matrix(*_encode_pair(a, b, ("a", "b")), dtype=np.int64)


def _matched_share(a: Codes, b: Codes) -> float:
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(a, b)
    # A rectangular assignment leaves surplus clusters unmatched.
    matched = table[linear_sum_assignment(table, maximize=True)].sum()
    return float(matched / len(a))


def matched_accuracy(labels: Labels, truth: Labels) -> float:
    r"""Accuracy under the best one-to-one matching of clusters and classes.

    .. math:: \frac{1}{N} \max_\pi \sum_k n_{k, \pi(k)}

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples; their numbers of clusters may differ, and samples of
        unmatched clusters count as errors.

    Returns
    -------
    float
        The accuracy, between 1 / max(K, L) and 1; it is symmetric. Two independent labelings into
        two equal halves reach about 1/2 + 0.4 / sqrt(n_samples), not 1/2.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    purity : Share of the majority classes; several clusters may have one class.
    adjusted_rand_index : Agreement on pairs, corrected for chance.

    Notes
    -----
    The matching is computed by the Hungarian method. Gondek (2005) defines the measure, as
    precision, for equal numbers of clusters.

    References
    ----------
    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, eq.
    (8.1.1).

    Examples
    --------
    >>> from nrprob.metrics import matched_accuracy
    >>> matched_accuracy([0, 0, 1, 1], [1, 1, 0, 2])
    0.75
    """
    return _matched_share(*_encode_pair(labels, truth, LABELS_TRUTH))


def matching_rate(a: Labels, b: Labels) -> float:
    r"""Share of samples on which two views agree under the best matching of clusters.

    .. math:: MR = \frac{1}{N} \max_{I, J} \sum_{m=1}^{\min(K_1, K_2)} n(i_m, j_m)

    Parameters
    ----------
    a, b : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples, one per view.

    Returns
    -------
    float
        Above 0 and at most 1; symmetric. It equals `matched_accuracy`.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    matched_accuracy : The same number, for clusters and classes.
    predictive_rate : Share of the majority classes of combinations of clusters.

    References
    ----------
    Yin, K. (2007), "Inferring informed clustering problems with minimum description length
    principle", PhD thesis, University at Albany, eq. (3.14).

    Examples
    --------
    >>> from nrprob.metrics import matching_rate
    >>> matching_rate([0, 0, 1, 1], [1, 1, 0, 2])
    0.75
    """
    return _matched_share(*_encode_pair(a, b, ("a", "b")))


def _majority_share(cells: Codes, truth: Codes) -> float:
    rows, _, counts = _occupied_cells(cells, truth)
    best = np.zeros(rows.max() + 1, dtype=np.int64)
    np.maximum.at(best, rows, counts)
    return float(best.sum() / len(cells))


def purity(labels: Labels, truth: Labels) -> float:
    r"""Share of samples that belong to the majority class of their cluster.

    .. math:: \frac{1}{N} \sum_c \max_l n_{cl}

    Parameters
    ----------
    labels : sequence of hashable of shape (n_samples,)
        Clusters.
    truth : sequence of hashable of shape (n_samples,)
        Classes.

    Returns
    -------
    float
        At least the share of the largest class, at most 1. Splitting a cluster never decreases it,
        so report the number of clusters as well. It is not symmetric.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    matched_accuracy : Matches clusters and classes one to one.
    predictive_rate : Purity of combinations of clusters.

    Examples
    --------
    >>> from nrprob.metrics import purity
    >>> purity([0, 0, 1, 1], [1, 1, 0, 2])
    0.75
    """
    return _majority_share(*_encode_pair(labels, truth, LABELS_TRUTH))


def predictive_rate(labelings: ArrayLike | Sequence[Labels], truth: Labels) -> float:
    r"""Share of samples in the majority class of their combination of clusters.

    .. math:: PR = \frac{1}{N} \sum_{i,j} \max_k n(i, j, k)

    Parameters
    ----------
    labelings : array-like of shape (n_samples, n_labelings) or sequence of labelings
        A two-dimensional array or data frame holds one labeling per column; a list or tuple
        holds one sequence of n_samples labels per view. A single labeling is accepted.
    truth : sequence of hashable of shape (n_samples,)
        Classes.

    Returns
    -------
    float
        At least the purity of each labeling, at most 1.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`, for every labeling; also without labelings.

    See Also
    --------
    purity : The same for one labeling.
    matching_rate : Agreement of two views.

    Notes
    -----
    For independent views, Table 3.1 of Yin (2007) counts only matched pairs of clusters, and is
    lower.

    References
    ----------
    Yin, K. (2007), "Inferring informed clustering problems with minimum description length
    principle", PhD thesis, University at Albany, eq. (3.15).

    Examples
    --------
    >>> from nrprob.metrics import predictive_rate
    >>> predictive_rate([0, 0, 1, 1], [1, 1, 0, 2])
    0.75
    """
    truth_codes = _encode_labels(truth, "truth")
    cells = np.zeros(len(truth_codes), dtype=np.int64)
    for number, codes in enumerate(_encode_labelings(labelings, "labelings")):
        _check_same_length(len(codes), len(truth_codes), (f"labelings[{number}]", "truth"))
        # Renumbering after each view keeps the product of the numbers of clusters in range.
        cells = np.unique(cells * (codes.max() + 1) + codes, return_inverse=True)[1]
    return _majority_share(cells, truth_codes)


def normalized_mutual_information(
    labels: Labels,
    truth: Labels,
    *,
    normalizer: Literal["arithmetic", "truth", "geometric", "product"] = "arithmetic",
) -> float:
    r"""Mutual information of two labelings, divided by a function of their entropies.

    .. math:: I(C; L) / h, \quad
        h = \tfrac12 (H(C) + H(L)), \; H(L), \; \sqrt{H(C) H(L)} \;\text{or}\; H(C) H(L)

    Parameters
    ----------
    labels : sequence of hashable of shape (n_samples,)
        Clusters C.
    truth : sequence of hashable of shape (n_samples,)
        Classes L.
    normalizer : {"arithmetic", "truth", "geometric", "product"}, default="arithmetic"
        The denominator h; the values stand for the formulas above, in this order. "truth" gives the
        homogeneity of the clusters, which is not symmetric. It is 1 for every refinement of the
        classes, so report the number of clusters as well. "product" has the unit 1/nats, and is 1 /
        H for two equal labelings.

    Returns
    -------
    float
        Between 0 and 1, except for "product". If h = 0: 1 for "truth"; 1 for "arithmetic" and
        "geometric" if H(C) = H(L) = 0; otherwise 0.

    Raises
    ------
    ValueError
        As for `contingency`; also for an unknown `normalizer`.
    TypeError
        As for `contingency`.

    See Also
    --------
    variation_of_information : Distance of two partitions, in nats.
    adjusted_rand_index : Agreement on pairs, corrected for chance.

    Notes
    -----
    "truth" is the measure of Gondek (2005). "product" is printed by Dang and Bailey (2010), whose
    tables "geometric" reproduces better.

    References
    ----------
    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, eq.
    (8.1.2).

    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", KDD 2010, doi:10.1145/1835804.1835878, section
    5.1.

    Examples
    --------
    >>> from nrprob.metrics import normalized_mutual_information
    >>> round(normalized_mutual_information([0, 0, 1, 1], [1, 1, 0, 2]), 4)
    0.8
    """
    from sklearn.metrics import homogeneity_score, mutual_info_score, normalized_mutual_info_score

    check_choice("normalizer", normalizer, ("arithmetic", "truth", "geometric", "product"))
    a, b = _encode_pair(labels, truth, LABELS_TRUTH)
    if normalizer == "product":
        information = max(0.0, float(mutual_info_score(b, a)))
        product = entropy(np.bincount(a) / len(a)) * entropy(np.bincount(b) / len(b))
        return information / product if product else 0.0
    if normalizer == "truth":
        value = homogeneity_score(b, a)
    else:
        value = normalized_mutual_info_score(b, a, average_method=normalizer)
    return min(1.0, max(0.0, float(value)))


def variation_of_information(labels: Labels, truth: Labels, *, base: float = e) -> float:
    r"""Variation of information, a distance between partitions.

    .. math:: VI(C, L) = H(C \mid L) + H(L \mid C)

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        The distance, between 0 (exactly for equal partitions) and the logarithm of n_samples.

    Raises
    ------
    ValueError
        As for `contingency`; also if `base` is not above 1.
    TypeError
        As for `contingency`.

    See Also
    --------
    normalized_mutual_information : Similarity of two partitions, from 0 to 1.
    pairwise_agreement : Agreement of several labelings.

    References
    ----------
    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, eq.
    (3.4.2).

    Examples
    --------
    >>> from nrprob.metrics import variation_of_information
    >>> variation_of_information([0, 0, 1, 1], [1, 1, 0, 2], base=2)
    0.5
    """
    unit = _log_base(base)
    a, b = _encode_pair(labels, truth, LABELS_TRUTH)
    rows, columns, counts = _occupied_cells(a, b)
    n_a, n_b = np.bincount(a)[rows], np.bincount(b)[columns]
    # Ratios instead of differences of entropies, so that equal partitions give exactly 0.
    nats = counts @ (np.log(n_a / counts) + np.log(n_b / counts)) / len(a)
    return float(nats / unit)


def _count_pairs(labels: Labels, truth: Labels) -> tuple[int, int, int, int]:
    """Count pairs together in both labelings, in labels only, in truth only and in neither."""
    from sklearn.metrics.cluster import pair_confusion_matrix

    a, b = _encode_pair(labels, truth, LABELS_TRUTH)
    # Rows: apart or together in truth. Python integers, since products of counts overflow.
    (neither, only_labels), (only_truth, both) = (pair_confusion_matrix(b, a) // 2).tolist()
    return both, only_labels, only_truth, neither


def rand_index(labels: Labels, truth: Labels) -> float:
    r"""Share of pairs of samples that are together in both labelings or apart in both.

    .. math:: (n_{11} + n_{00}) / (n_{11} + n_{10} + n_{01} + n_{00})

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Between 0 and 1; symmetric; 1 for a single sample.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    adjusted_rand_index : The index, corrected for chance.
    hubert_difference : The index, from -1 to 1.

    Examples
    --------
    >>> from nrprob.metrics import rand_index
    >>> round(rand_index([0, 0, 1, 1], [1, 1, 0, 2]), 4)
    0.8333
    """
    from sklearn.metrics import rand_score

    a, b = _encode_pair(labels, truth, LABELS_TRUTH)
    return float(rand_score(b, a))


def adjusted_rand_index(labels: Labels, truth: Labels) -> float:
    r"""Rand index, corrected for chance: 0 is the expectation under random permutations.

    .. math:: \frac{n_{11} - E}{\tfrac12 (n_{11} + n_{10} + n_{11} + n_{01}) - E}, \quad
        E = \frac{(n_{11} + n_{10}) (n_{11} + n_{01})}{n_{11} + n_{10} + n_{01} + n_{00}}

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Between -0.5 and 1; symmetric; 0 on average for permuted labels. 1 if both labelings have
        one cluster, or both have clusters of one sample only.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    rand_index : The index without the correction.
    normalized_mutual_information : Agreement by information.

    Notes
    -----
    Computed by scikit-learn.

    References
    ----------
    Hubert, L. and Arabie, P. (1985), "Comparing partitions", Journal of Classification 2, 193-218,
    doi:10.1007/BF01908075.

    Examples
    --------
    >>> from nrprob.metrics import adjusted_rand_index
    >>> round(adjusted_rand_index([0, 0, 1, 1], [1, 1, 0, 2]), 4)
    0.5714
    """
    from sklearn.metrics import adjusted_rand_score

    a, b = _encode_pair(labels, truth, LABELS_TRUTH)
    return float(adjusted_rand_score(b, a))


def jaccard_index(labels: Labels, truth: Labels) -> float:
    r"""Share of pairs together in both labelings among pairs together in at least one.

    .. math:: n_{11} / (n_{11} + n_{10} + n_{01})

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Between 0 and 1; symmetric; 1 if no pair is together anywhere. Two independent labelings
        into k equal clusters are near 1 / (2 k - 1), not 0.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    pair_f_measure : Counts pairs together in both twice.
    fowlkes_mallows_index : Geometric mean of precision and recall.

    Examples
    --------
    >>> from nrprob.metrics import jaccard_index
    >>> jaccard_index([0, 0, 1, 1], [1, 1, 0, 2])
    0.5
    """
    both, only_labels, only_truth, _ = _count_pairs(labels, truth)
    together = both + only_labels + only_truth
    return both / together if together else 1.0


def fowlkes_mallows_index(labels: Labels, truth: Labels) -> float:
    r"""Geometric mean of the precision and the recall of pairs.

    .. math:: n_{11} / \sqrt{(n_{11} + n_{10}) (n_{11} + n_{01})}

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Between 0 and 1; symmetric; 0 if no pair is together in both.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    pair_f_measure : Harmonic mean of precision and recall.
    jaccard_index : Share of pairs together in both.

    Examples
    --------
    >>> from nrprob.metrics import fowlkes_mallows_index
    >>> round(fowlkes_mallows_index([0, 0, 1, 1], [1, 1, 0, 2]), 4)
    0.7071
    """
    from sklearn.metrics import fowlkes_mallows_score

    a, b = _encode_pair(labels, truth, LABELS_TRUTH)
    return min(1.0, float(fowlkes_mallows_score(b, a)))


def pair_f_measure(labels: Labels, truth: Labels) -> float:
    r"""Harmonic mean of the precision and the recall of pairs.

    .. math:: 2 n_{11} / (2 n_{11} + n_{10} + n_{01})

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Between 0 and 1; symmetric; 1 if no pair is together anywhere.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    fowlkes_mallows_index : Geometric mean of precision and recall.
    jaccard_index : Share of pairs together in both.

    Notes
    -----
    The F-measure 2 P R / (P + R) of Dang and Bailey (2010), computed over pairs of samples.

    References
    ----------
    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", KDD 2010, doi:10.1145/1835804.1835878, section
    5.1.

    Examples
    --------
    >>> from nrprob.metrics import pair_f_measure
    >>> round(pair_f_measure([0, 0, 1, 1], [1, 1, 0, 2]), 4)
    0.6667
    """
    both, only_labels, only_truth, _ = _count_pairs(labels, truth)
    together = 2 * both + only_labels + only_truth
    return 2 * both / together if together else 1.0


def hubert_difference(labels: Labels, truth: Labels) -> float:
    r"""Share of pairs on which two labelings agree, minus the share of all other pairs.

    .. math:: (n_{11} + n_{00} - n_{10} - n_{01}) / (n_{11} + n_{10} + n_{01} + n_{00})

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Between -1 and 1; symmetric; 2 `rand_index` - 1.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    hubert_gamma : The other definition.
    rand_index : The same index, from 0 to 1.

    Notes
    -----
    Gondek (2005) names Hubert's index without a formula. This function and `hubert_gamma` are two
    possible definitions.

    References
    ----------
    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, chapter
    8.

    Examples
    --------
    >>> from nrprob.metrics import hubert_difference
    >>> round(hubert_difference([0, 0, 1, 1], [1, 1, 0, 2]), 4)
    0.6667
    """
    return 2.0 * rand_index(labels, truth) - 1.0


def hubert_gamma(labels: Labels, truth: Labels) -> float:
    r"""Correlation over pairs of samples of the indicators of being in one cluster.

    .. math:: \frac{n_{11} n_{00} - n_{10} n_{01}}
        {\sqrt{(n_{11} + n_{10}) (n_{11} + n_{01}) (n_{00} + n_{10}) (n_{00} + n_{01})}}

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Between -1 and 1; symmetric; 0 if the correlation is undefined, since a labeling has one
        cluster or clusters of one sample only.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    hubert_difference : The other definition.
    adjusted_rand_index : Agreement on pairs, corrected for chance.

    Notes
    -----
    Gondek (2005) names Hubert's index without a formula. This function and `hubert_difference` are
    two possible definitions.

    References
    ----------
    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, chapter
    8.

    Examples
    --------
    >>> from nrprob.metrics import hubert_gamma
    >>> round(hubert_gamma([0, 0, 1, 1], [1, 1, 0, 2]), 4)
    0.6325
    """
    both, only_labels, only_truth, neither = _count_pairs(labels, truth)
    norm = (both + only_labels) * (neither + only_truth)
    norm *= (both + only_truth) * (neither + only_labels)
    if norm == 0:
        return 0.0
    # One square root of the exact product, so that a perfect match gives exactly 1.
    return (both * neither - only_labels * only_truth) / math.sqrt(norm)


class IndependenceTest(NamedTuple):
    """Result of `independence_test`.

    Attributes
    ----------
    information : float
        Plug-in mutual information I of the two labelings, in nats.
    statistic : float
        G = 2 N I.
    dof : int
        Degrees of freedom (K - 1) (L - 1).
    p_chi2 : float
        Probability of a G at least as large, by the chi-square approximation.
    p_permutation : float
        The same probability under random permutations of one labeling, including the observed
        labeling; `nan` without permutations.
    floor : float
        (K - 1) (L - 1) / (2 N), the approximate mean of I for independent labelings, in nats.

    See Also
    --------
    independence_test : Returns this result.
    normalized_mutual_information : Mutual information, from 0 to 1.

    Examples
    --------
    A clustering that equals the known groups, except for two of forty samples.

    >>> from nrprob.metrics import independence_test
    >>> known = [0, 0, 1, 1] * 10
    >>> result = independence_test([*known[:-2], 0, 0], known, random_state=0)
    >>> round(result.information, 3), result.floor, result.dof, result.p_permutation
    (0.526, 0.0125, 1, 0.001)
    """

    information: float
    statistic: float
    dof: int
    p_chi2: float
    p_permutation: float
    floor: float


def independence_test(
    labels: Labels,
    known: Labels,
    *,
    n_permutations: int = 999,
    random_state: int | np.random.RandomState | None = None,
) -> IndependenceTest:
    r"""Test whether a clustering is independent of known groups.

    .. math:: G = 2 N I(C; Z), \qquad
        E[I] \approx \frac{(K - 1)(L - 1)}{2 N} \;\text{under independence}

    Parameters
    ----------
    labels, known : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples, with K and L clusters.
    n_permutations : int, default=999
        Number of permutations. More permutations allow smaller p-values; 0 for no permutation test.
    random_state : int, RandomState instance or None, default=None
        Seeds the permutations.

    Returns
    -------
    IndependenceTest
        Information and floor in nats, statistic and two p-values. Both p-values are 1 if a labeling
        has one cluster.

    Raises
    ------
    ValueError
        As for `contingency`; also if `n_permutations` is negative.
    TypeError
        As for `contingency`.

    See Also
    --------
    normalized_mutual_information : Mutual information, from 0 to 1.
    contingency : The table that is tested.

    Notes
    -----
    The plug-in mutual information of independent labelings is positive; ``floor`` is about its
    mean. It explains the residual values in Table 9.2 of Gondek (2005). The chi-square
    approximation needs about five expected samples per cell; the permutation p-value is valid
    without it. Permutations are sampled as contingency tables, whose distribution given their
    margins is known.

    References
    ----------
    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, chapter
    9.

    Examples
    --------
    >>> from nrprob.metrics import independence_test
    >>> round(independence_test([0, 0, 1, 1] * 5, [0, 1, 0, 1] * 5).p_chi2, 4)
    1.0
    """
    from scipy.stats import chi2, random_table

    from nrprob.data.validation import check_random_state

    if as_number(n_permutations, "n_permutations") < 0:
        raise ValueError(
            f"n_permutations must not be negative; got {short_repr(n_permutations)}; use 0 for none"
        )
    if not n_permutations <= ITERATIONS or n_permutations % 1:
        raise ValueError(
            f"n_permutations must be a whole number of at most {ITERATIONS}; got "
            f"{short_repr(n_permutations)}; use 0 for none"
        )
    n_permutations = int(n_permutations)
    a, b = _encode_pair(labels, known, ("labels", "known"))
    n = len(a)
    n_a, n_b = np.bincount(a), np.bincount(b)
    dof = (len(n_a) - 1) * (len(n_b) - 1)
    rows, columns, counts = _occupied_cells(a, b)
    # G statistic; the clip removes rounding errors below 0.
    statistic = max(0.0, float(2.0 * counts @ np.log(counts * n / n_a[rows] / n_b[columns])))
    p_chi2 = float(chi2.sf(statistic, dof)) if dof else 1.0

    if n_permutations == 0:
        p_permutation = math.nan
    elif dof == 0:
        p_permutation = 1.0
    else:
        rng = check_random_state(random_state)
        # Given the margins, G is an increasing function of the sum of n log n. Equal tables may be
        # summed in another order, so ties need a tolerance.
        observed = float(xlogy(counts, counts).sum())
        threshold = observed - 1e-10 * max(1.0, observed)
        tables, extreme = random_table(n_a, n_b), 0
        step = max(1, BLOCK_SIZE // (len(n_a) * len(n_b)))
        for first in range(0, n_permutations, step):
            sample = tables.rvs(size=min(step, n_permutations - first), random_state=rng)
            extreme += int(np.count_nonzero(xlogy(sample, sample).sum((1, 2)) >= threshold))
        p_permutation = (1 + extreme) / (1 + n_permutations)
    return IndependenceTest(
        statistic / (2 * n), statistic, dof, p_chi2, p_permutation, dof / (2 * n)
    )
