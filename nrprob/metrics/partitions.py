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
    """Return whether a label is None, NaN, NaT or ``pandas.NA``."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value; an array has too many
        return not hasattr(value, "__len__")


def _encode_labels(labels: Labels, name: str) -> Codes:
    """Encode labels as integers 0, 1, ... in the order of the sorted labels.

    If labels cannot be sorted, they are numbered in the order of their appearance.
    """
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
    # Lists stay lists: np.asarray would turn [1, "a"] into strings, and tuples into a matrix.
    values: list[Hashable] | NDArray[Any] = list(labels) if array is None else array
    n_labels = len(values)
    if n_labels == 0:
        raise ValueError(f"{name} must not be empty; got 0 labels; pass one label per sample")

    # Raise for missing labels.
    if array is not None and array.dtype.kind != "O":
        missing = int(np.count_nonzero(array != array))  # NaN and NaT
    else:
        missing = sum(map(_is_missing, values))
    if missing:
        raise ValueError(
            f"{name} must not have missing labels; got {missing} of NaN, NaT or None; "
            "drop these samples or give them a separate label"
        )

    # Encode arrays by sorting, and other labels by a dictionary.
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
    """Encode two labelings of the same samples as integers (n,).

    ``names`` are the names of the two arguments, for error messages.
    """
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
    """Encode several labelings as integers (n,) each.

    ``labelings`` is a table with one labeling per column, a list of labelings, or one labeling.
    ``name`` is the name of the argument, for error messages.
    """
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
    """Non-zero entries of the contingency table of the integer labelings ``a`` and ``b`` (n,).

    Returns the rows, the columns and the counts of the entries, each of shape (n_entries,).
    """
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
        Contingency table: entry (i, j) is the number of samples in cluster i of `a` and cluster j
        of `b`. Clusters are in the order of their sorted labels, or in the order of appearance if
        labels cannot be sorted.

    Raises
    ------
    ValueError
        If a labeling is empty, not one-dimensional or has missing labels, or lengths differ.
    TypeError
        If an argument is not a sequence or a label is not hashable.

    See Also
    --------
    matched_accuracy : Share of samples under the best one-to-one matching of clusters.
    independence_test : Test whether two labelings are independent.

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
    """Share of samples in matched clusters, under the best one-to-one matching of clusters.

    ``a`` and ``b`` (n,) are two labelings as integers.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(a, b)
    # If the numbers of clusters differ, the additional clusters have no match.
    matched = table[linear_sum_assignment(table, maximize=True)].sum()
    return float(matched / len(a))


def matched_accuracy(labels: Labels, truth: Labels) -> float:
    r"""Accuracy under the best one-to-one matching of clusters and classes.

    .. math:: \frac{1}{N} \max_\pi \sum_k n_{k, \pi(k)}

    Here N is the number of samples, n_kl the number of samples in cluster k and class l, and
    :math:`\pi` matches clusters and classes one to one.

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Clusters and classes of the same samples. Their numbers K and L may differ; samples of
        clusters without a matched class count as errors.

    Returns
    -------
    float
        Accuracy between 1 / max(K, L) and 1, symmetric in both labelings. For two independent
        labelings into equal halves, the mean is about 1/2 + 0.4 / sqrt(n_samples), not 1/2.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    purity : Share of samples in the majority class of their cluster.
    adjusted_rand_index : Agreement on pairs, corrected for chance.

    Notes
    -----
    The matching is computed by the Hungarian method. Gondek (2005) calls the measure precision, and
    defines it for equal numbers of clusters and classes.

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
    r"""Matching rate: share of samples on which two views agree, with matched clusters.

    .. math:: MR = \frac{1}{N} \max_{I, J} \sum_{m=1}^{\min(K_1, K_2)} n(i_m, j_m)

    Here N is the number of samples, and n(i, j) the number of samples in cluster i of the first
    view and cluster j of the second view. The views have K_1 and K_2 clusters. The maximum is over
    one-to-one matchings of clusters i_m of the first view and j_m of the second view.

    Parameters
    ----------
    a, b : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples, one per view.

    Returns
    -------
    float
        Above 0 and at most 1; symmetric. The rate equals `matched_accuracy`.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    matched_accuracy : The same measure, for clusters and classes.
    predictive_rate : Share of samples in the majority class of their combination of clusters.

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
    """Share of samples in the majority class of their cell.

    ``cells`` (n,) are clusters, or combinations of clusters, as integers. ``truth`` (n,) are
    classes as integers.
    """
    rows, _, counts = _occupied_cells(cells, truth)
    best = np.zeros(rows.max() + 1, dtype=np.int64)
    np.maximum.at(best, rows, counts)
    return float(best.sum() / len(cells))


def purity(labels: Labels, truth: Labels) -> float:
    r"""Share of samples that belong to the majority class of their cluster.

    .. math:: \frac{1}{N} \sum_c \max_l n_{cl}

    Here N is the number of samples, and n_cl the number of samples in cluster c and class l.

    Parameters
    ----------
    labels : sequence of hashable of shape (n_samples,)
        Clusters.
    truth : sequence of hashable of shape (n_samples,)
        Classes.

    Returns
    -------
    float
        At least the share of the largest class, at most 1; not symmetric. Splitting a cluster never
        decreases the purity, so report the number of clusters as well.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    matched_accuracy : Accuracy under a one-to-one matching of clusters and classes.
    predictive_rate : Purity of combinations of clusters.

    Examples
    --------
    >>> from nrprob.metrics import purity
    >>> purity([0, 0, 1, 1], [1, 1, 0, 2])
    0.75
    """
    return _majority_share(*_encode_pair(labels, truth, LABELS_TRUTH))


def predictive_rate(labelings: ArrayLike | Sequence[Labels], truth: Labels) -> float:
    r"""Predictive rate: share of samples in the majority class of their combination of clusters.

    .. math:: PR = \frac{1}{N} \sum_{i,j} \max_k n(i, j, k)

    Here N is the number of samples, and n(i, j, k) the number of samples of class k in cluster i of
    the first labeling and cluster j of the second labeling. There may be any number of labelings.

    Parameters
    ----------
    labelings : array-like of shape (n_samples, n_labelings) or sequence of labelings
        A two-dimensional array or data frame has one labeling per column. A list or tuple has one
        sequence of n_samples labels per labeling. A single labeling is accepted.
    truth : sequence of hashable of shape (n_samples,)
        Classes.

    Returns
    -------
    float
        Rate that is at least the purity of each labeling, and at most 1.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`, for every labeling; also without labelings.

    See Also
    --------
    purity : The same measure for one labeling.
    matching_rate : Agreement of two views.

    Notes
    -----
    For independent views, Table 3.1 of Yin (2007) counts only matched pairs of clusters. The values
    in the table are therefore lower.

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
        # Renumber combinations after each labeling, so that integers do not overflow.
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

    Here I is the mutual information and H the entropy.

    Parameters
    ----------
    labels : sequence of hashable of shape (n_samples,)
        Clusters C.
    truth : sequence of hashable of shape (n_samples,)
        Classes L.
    normalizer : {"arithmetic", "truth", "geometric", "product"}, default="arithmetic"
        Denominator h; the values stand for the formulas above, in this order. "truth" gives the
        homogeneity of the clusters, which is not symmetric. The homogeneity is 1 for every
        refinement of the classes, so report the number of clusters as well. "product" has the unit
        1/nats, and is 1 / H for two equal labelings with the entropy H.

    Returns
    -------
    float
        Between 0 and 1, except for "product". If h = 0, the value is 1 for "truth", and for
        "arithmetic" and "geometric" if H(C) = H(L) = 0. In all other cases with h = 0, it is 0.

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
    Gondek (2005) uses "truth". Dang and Bailey (2010) print "product", but "geometric" reproduces
    their tables better.

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

    Here C and L are the two labelings, and H is the conditional entropy.

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.
    base : float, default=e
        Base of the logarithm: e for nats, 2 for bits.

    Returns
    -------
    float
        Distance between 0 and the logarithm of n_samples; exactly 0 for equal partitions.

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
    # Sum logarithms of ratios, not differences of entropies: equal partitions give exactly 0.
    nats = counts @ (np.log(n_a / counts) + np.log(n_b / counts)) / len(a)
    return float(nats / unit)


def _count_pairs(labels: Labels, truth: Labels) -> tuple[int, int, int, int]:
    """Count the pairs of samples that are together in both labelings, one of them, or none.

    Returns four numbers: n_11 (both), n_10 (``labels`` only), n_01 (``truth`` only), n_00 (none).
    """
    from sklearn.metrics.cluster import pair_confusion_matrix

    a, b = _encode_pair(labels, truth, LABELS_TRUTH)
    # Rows of the matrix: pairs apart or together in truth. Python integers do not overflow.
    (neither, only_labels), (only_truth, both) = (pair_confusion_matrix(b, a) // 2).tolist()
    return both, only_labels, only_truth, neither


def rand_index(labels: Labels, truth: Labels) -> float:
    r"""Rand index: share of pairs of samples that are together in both labelings or apart in both.

    .. math:: (n_{11} + n_{00}) / (n_{11} + n_{10} + n_{01} + n_{00})

    n_11 counts the pairs of samples that are together in both labelings, and n_00 the pairs that
    are apart in both. n_10 and n_01 count the pairs that are together in the first or in the second
    labeling only.

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Index between 0 and 1, symmetric; 1 for a single sample.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    adjusted_rand_index : Rand index, corrected for chance.
    hubert_difference : Rand index, rescaled to the range from -1 to 1.

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

    n_11 counts the pairs of samples that are together in both labelings, and n_00 the pairs that
    are apart in both. n_10 and n_01 count the pairs that are together in the first or in the second
    labeling only. E is the expectation of n_11 under random permutations.

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Index between -0.5 and 1, symmetric; 0 on average for permuted labels. 1 if both labelings
        have one cluster, or if all clusters of both have one sample.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    rand_index : Rand index without the correction.
    normalized_mutual_information : Agreement by mutual information.

    Notes
    -----
    scikit-learn computes the index.

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


def jaccard_index(labels: Labels, truth: Labels, *, subsets: Labels | None = None) -> float:
    r"""Jaccard index: pairs together in both labelings, divided by pairs together in at least one.

    .. math:: n_{11} / (n_{11} + n_{10} + n_{01})

    n_11 counts the pairs of samples that are together in both labelings. n_10 and n_01 count the
    pairs that are together in the first or in the second labeling only.

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.
    subsets : sequence of hashable of shape (n_samples,), optional
        If given, only pairs of samples from different subsets count.

    Returns
    -------
    float
        Index between 0 and 1, symmetric; 1 if no pair is together in any labeling. For two
        independent labelings into k equal clusters, the index is near 1 / (2 k - 1), not 0.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    soft_jaccard_index : Index of soft partitions, or of samples in several classes.
    pair_f_measure : Harmonic mean of the precision and the recall of pairs.
    fowlkes_mallows_index : Geometric mean of the precision and the recall of pairs.

    Examples
    --------
    >>> from nrprob.metrics import jaccard_index
    >>> jaccard_index([0, 0, 1, 1], [1, 1, 0, 2])
    0.5
    """
    both, only_labels, only_truth, _ = _count_pairs(labels, truth)
    together = both + only_labels + only_truth
    if subsets is not None:
        a, b = _encode_pair(labels, truth, LABELS_TRUTH)
        groups = _encode_pair(labels, subsets, ("labels", "subsets"))[1]
        for group in range(groups.max() + 1):  # subtract the pairs within subsets
            within = _count_pairs(a[groups == group], b[groups == group])
            both, together = both - within[0], together - sum(within[:3])
    return both / together if together else 1.0


def fowlkes_mallows_index(labels: Labels, truth: Labels) -> float:
    r"""Fowlkes-Mallows index: geometric mean of the precision and the recall of pairs.

    .. math:: n_{11} / \sqrt{(n_{11} + n_{10}) (n_{11} + n_{01})}

    n_11 counts the pairs of samples that are together in both labelings. n_10 and n_01 count the
    pairs that are together in the first or in the second labeling only. The precision of pairs is
    n_11 / (n_11 + n_10), and the recall is n_11 / (n_11 + n_01).

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Index between 0 and 1, symmetric; 0 if no pair is together in both labelings.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    pair_f_measure : Harmonic mean of the precision and the recall of pairs.
    jaccard_index : Pairs together in both labelings, divided by pairs together in at least one.

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
    r"""F-measure of pairs of samples: harmonic mean of the precision and the recall of pairs.

    .. math:: 2 n_{11} / (2 n_{11} + n_{10} + n_{01})

    n_11 counts the pairs of samples that are together in both labelings. n_10 and n_01 count the
    pairs that are together in the first or in the second labeling only. The precision of pairs is
    n_11 / (n_11 + n_10), and the recall is n_11 / (n_11 + n_01).

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        F-measure between 0 and 1, symmetric; 1 if no pair is together in any labeling.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    fowlkes_mallows_index : Geometric mean of the precision and the recall of pairs.
    jaccard_index : Pairs together in both labelings, divided by pairs together in at least one.

    Notes
    -----
    This is the F-measure 2 P R / (P + R) of Dang and Bailey (2010). P is the precision and R the
    recall of pairs of samples.

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
    r"""Share of pairs on which two labelings agree, minus the share of pairs on which they differ.

    .. math:: (n_{11} + n_{00} - n_{10} - n_{01}) / (n_{11} + n_{10} + n_{01} + n_{00})

    n_11 counts the pairs of samples that are together in both labelings, and n_00 the pairs that
    are apart in both. n_10 and n_01 count the pairs that are together in the first or in the second
    labeling only.

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Difference between -1 and 1, symmetric; it equals 2 `rand_index` - 1.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    hubert_gamma : Another definition of Hubert's index.
    rand_index : The same index, rescaled to the range from 0 to 1.

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
    r"""Correlation, over pairs of samples, of the indicators of a shared cluster in two labelings.

    .. math:: \frac{n_{11} n_{00} - n_{10} n_{01}}
        {\sqrt{(n_{11} + n_{10}) (n_{11} + n_{01}) (n_{00} + n_{10}) (n_{00} + n_{01})}}

    n_11 counts the pairs of samples that are together in both labelings, and n_00 the pairs that
    are apart in both. n_10 and n_01 count the pairs that are together in the first or in the second
    labeling only.

    Parameters
    ----------
    labels, truth : sequence of hashable, each of shape (n_samples,)
        Two labelings of the same samples.

    Returns
    -------
    float
        Correlation between -1 and 1, symmetric. If a labeling has one cluster, or only clusters of
        one sample, the correlation is undefined, and the value is 0.

    Raises
    ------
    ValueError, TypeError
        As for `contingency`.

    See Also
    --------
    hubert_difference : Another definition of Hubert's index.
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
        Statistic G = 2 N I of the test, with N samples.
    dof : int
        Degrees of freedom (K - 1) (L - 1), with K clusters and L known groups.
    p_chi2 : float
        Probability of a statistic at least as large as G for independent labelings, by the
        chi-square approximation.
    p_permutation : float
        The same probability, estimated by random permutations of one labeling; the observed
        labeling counts as one permutation. `nan` without permutations.
    floor : float
        (K - 1) (L - 1) / (2 N), the approximate mean of I for independent labelings, in nats.

    See Also
    --------
    independence_test : Returns this result.
    normalized_mutual_information : Mutual information, scaled to the range from 0 to 1.

    Examples
    --------
    A clustering that equals the known groups, except for two of forty samples:

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

    Here C is the clustering with K clusters, Z the known labeling with L groups, and I their mutual
    information over N samples.

    Parameters
    ----------
    labels, known : sequence of hashable, each of shape (n_samples,)
        Clusters and known groups of the same samples.
    n_permutations : int, default=999
        Number of permutations. The smallest p-value is 1 / (1 + n_permutations). 0 for no
        permutation test.
    random_state : int, RandomState instance or None, default=None
        Seed of the permutations.

    Returns
    -------
    IndependenceTest
        Information and floor in nats, statistic and two p-values. If a labeling has one cluster,
        ``p_chi2`` is 1, and ``p_permutation`` is 1 unless there are no permutations.

    Raises
    ------
    ValueError
        As for `contingency`; also if `n_permutations` is negative.
    TypeError
        As for `contingency`.

    See Also
    --------
    normalized_mutual_information : Mutual information, scaled to the range from 0 to 1.
    contingency : Contingency table of the two labelings.

    Notes
    -----
    The plug-in mutual information is positive even if the labelings are independent. ``floor``
    approximates its mean in this case, and explains the residual values in Table 9.2 of Gondek
    (2005). The chi-square approximation needs about five expected samples per cell. The permutation
    p-value is valid without this condition. Permutations are sampled as contingency tables with the
    same margins, whose distribution is known.

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
    # G statistic, clipped at 0 against rounding errors.
    statistic = max(0.0, float(2.0 * counts @ np.log(counts * n / n_a[rows] / n_b[columns])))
    p_chi2 = float(chi2.sf(statistic, dof)) if dof else 1.0

    if n_permutations == 0:
        p_permutation = math.nan
    elif dof == 0:
        p_permutation = 1.0
    else:
        rng = check_random_state(random_state)
        # For fixed margins, G is an increasing function of the sum of n log n over cells. The order
        # of the sum may differ between equal tables, so ties need a tolerance.
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
