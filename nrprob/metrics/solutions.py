"""Quality and dissimilarity of several partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nrprob.data.validation import check_choice
from nrprob.metrics import quality
from nrprob.metrics.partitions import (
    Codes,
    Labels,
    _check_same_length,
    _encode_labelings,
    adjusted_rand_index,
    jaccard_index,
    matched_accuracy,
    normalized_mutual_information,
    pair_f_measure,
    rand_index,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["mean_dissimilarity", "pairwise_agreement", "score_solutions"]

Labelings = ArrayLike | Sequence[Labels]
Agreement = Literal[
    "adjusted_rand_index", "jaccard_index", "matched_accuracy", "normalized_mutual_information",
    "pair_f_measure", "rand_index",
]  # fmt: skip

# Symmetric measures that are 1 for two equal partitions.
_AGREEMENTS: dict[str, Callable[[Labels, Labels], float]] = {
    measure.__name__: measure
    for measure in (
        adjusted_rand_index,
        jaccard_index,
        matched_accuracy,
        normalized_mutual_information,
        pair_f_measure,
        rand_index,
    )
}


def _encode_same_length(n: int, labelings: Labelings, name: str) -> list[Codes]:
    """Encode labelings of ``n`` samples as integers (n,) each, after checking their lengths.

    For ``n = 0``, the length of the first labeling is the number of samples. ``name`` is the name
    of the argument, for error messages.
    """
    result = _encode_labelings(labelings, name)
    n = n or len(result[0])
    for number, codes in enumerate(result):
        _check_same_length(n, len(codes), ("labelings[0]", f"{name}[{number}]"))
    return result


def pairwise_agreement(
    labelings: Labelings,
    others: Labelings | None = None,
    *,
    measure: Agreement = "normalized_mutual_information",
) -> NDArray[np.float64]:
    r"""Agreement of every pair of labelings, in one set or between two sets.

    .. math:: A_{ij} = a(C_i, C_j), \quad D_{ij} = 1 - A_{ij}

    Here a is a measure of agreement, A_ij the agreement of labelings C_i and C_j, and D_ij their
    dissimilarity.

    Parameters
    ----------
    labelings : array-like of shape (n_samples, n_labelings) or sequence of labelings
        A two-dimensional array or data frame has one labeling per column. A list or tuple has one
        sequence of n_samples labels per labeling. A single labeling is accepted.
    others : like `labelings`, of n_others labelings, optional
        Labelings to compare with, such as known or true labelings. By default, `labelings`.
    measure : str, default="normalized_mutual_information"
        Name of the agreement a, a symmetric measure that is 1 for equal partitions:
        "adjusted_rand_index", "jaccard_index", "matched_accuracy", "normalized_mutual_information",
        "pair_f_measure" or "rand_index".

    Returns
    -------
    ndarray of shape (n_labelings, n_labelings) or (n_labelings, n_others)
        Agreements A; 1 for a labeling with itself. ``1 - A`` are dissimilarities, such as the
        Jaccard dissimilarity. The largest entry of column j is in the row of the labeling that is
        most similar to labeling j.

    Raises
    ------
    ValueError
        As for `contingency`, for every labeling; also without labelings, or for an unknown
        `measure`.
    TypeError
        As for `contingency`, for every labeling.

    See Also
    --------
    mean_dissimilarity : Mean over all pairs.
    score_solutions : Quality and dissimilarity of several clusterings.

    Notes
    -----
    Dang and Bailey (2010) report the mutual information and the Jaccard index of an alternative and
    the known clustering. Bae and Bailey (2006) and Davidson and Qi (2008) report the Jaccard index.
    For independent labelings, the expected agreement is 0 for the adjusted Rand index and nearly 0
    for the mutual information. The expectation is larger for the other measures; see
    `jaccard_index`.

    References
    ----------
    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", KDD 2010, doi:10.1145/1835804.1835878, section
    5.1.

    Bae, E. and Bailey, J. (2006), "COALA: a novel approach for the extraction of an alternate
    clustering of high quality and high dissimilarity", ICDM 2006, 53-62, doi:10.1109/ICDM.2006.37.

    Davidson, I. and Qi, Z. (2008), "Finding alternative clusterings using constraints", ICDM 2008,
    773-778, doi:10.1109/ICDM.2008.141.

    Examples
    --------
    >>> from nrprob.metrics import pairwise_agreement
    >>> rows, columns = [0, 0, 1, 1], [0, 1, 0, 1]
    >>> pairwise_agreement([rows, columns, rows], measure="jaccard_index")
    array([[1., 0., 1.],
           [0., 1., 0.],
           [1., 0., 1.]])
    """
    check_choice("measure", measure, tuple(_AGREEMENTS))
    agreement = _AGREEMENTS[measure]
    first = _encode_same_length(0, labelings, "labelings")
    if others is not None:
        second = _encode_same_length(len(first[0]), others, "others")
        return np.array([[agreement(a, b) for b in second] for a in first])
    matrix = np.empty((len(first), len(first)))
    for i, a in enumerate(first):
        for j, b in enumerate(first[: i + 1]):
            matrix[i, j] = matrix[j, i] = agreement(a, b)
    return matrix


def mean_dissimilarity(
    labelings: Labelings, *, measure: Agreement = "normalized_mutual_information"
) -> float:
    r"""Mean dissimilarity of several labelings over all pairs.

    .. math:: \frac{2}{M (M - 1)} \sum_{i < j} (1 - a(C_i, C_j))

    The sum is over pairs of the M labelings, and a is the agreement of two labelings.

    Parameters
    ----------
    labelings : array-like of shape (n_samples, n_labelings) or sequence of labelings
        Labelings as for `pairwise_agreement`; at least two.
    measure : str, default="normalized_mutual_information"
        The agreement a, as for `pairwise_agreement`.

    Returns
    -------
    float
        Mean dissimilarity, larger for less similar labelings; 0 if all labelings are equal.

    Raises
    ------
    ValueError, TypeError
        As for `pairwise_agreement`; also if there is only one labeling.

    See Also
    --------
    pairwise_agreement : Agreement of every pair.
    score_solutions : Quality and dissimilarity of several clusterings.

    Examples
    --------
    >>> from nrprob.metrics import mean_dissimilarity
    >>> upper, left = [0, 1, 0, 1], [0, 0, 1, 1]
    >>> mean_dissimilarity([upper, left])
    1.0
    """
    agreement = pairwise_agreement(labelings, measure=measure)
    if len(agreement) < 2:
        raise ValueError(
            "labelings must hold at least two labelings; got 1; pass one labeling per column"
        )
    return float(_without_diagonal(1 - agreement).mean())


def _without_diagonal(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Remove the diagonal of a square matrix, so that every row has one entry less."""
    m = len(values)
    return values[~np.eye(m, dtype=bool)].reshape(m, m - 1)


def score_solutions(
    X: ArrayLike,
    labelings: Labelings,
    known: Labelings | None = None,
    *,
    measure: Agreement = "normalized_mutual_information",
    separation: Literal["single", "average", "centroid"] = "single",
    diameter: Literal["max", "mean", "radius"] = "max",
) -> pd.DataFrame:
    """Quality and dissimilarity of alternative clusterings.

    A good alternative clustering has two properties: it is dissimilar to known clusterings, and its
    clusters are compact and separated. Random labels have only the first property, and the known
    clustering itself only the second.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Samples. Distances are Euclidean.
    labelings : array-like of shape (n_samples, n_labelings) or sequence of labelings
        Alternative clusterings (solutions), as for `pairwise_agreement`.
    known : like `labelings`, of n_known labelings, optional
        Known labelings, from which solutions should differ.
    measure : str, default="normalized_mutual_information"
        Agreement a, as for `pairwise_agreement`; the dissimilarity is 1 - a.
    separation, diameter : str
        As for `dunn_index`.

    Returns
    -------
    DataFrame of shape (n_labelings, 5 + n_known), or (1, 4 + n_known) for a single labeling
        One row per solution, with its number or the name of its column as index. Columns are:

        - ``n_clusters``;
        - ``silhouette_width`` and ``dunn_index``, larger is better;
        - ``vector_quantization_error`` in squared units of `X`, smaller is better;
        - ``dissimilarity_from_others``, the mean over the other solutions, if there are any;
        - ``dissimilarity_from_known``, if `known` is one labeling. For several known labelings, one
          column ``dissimilarity_from_`` plus the name or number of each.

    Raises
    ------
    ValueError, TypeError
        As for `pairwise_agreement` and `dunn_index`; also if the Dunn index of a solution is not
        finite, for example for a single cluster.

    See Also
    --------
    pairwise_agreement : Agreement of every pair.
    dunn_index : Separation of clusters divided by their diameter.

    Notes
    -----
    Dang and Bailey (2010) plot the Dunn index against two dissimilarities, by mutual information
    and by the Jaccard index. Bae and Bailey (2006) and Davidson and Qi (2008) use the Jaccard
    index.

    References
    ----------
    Dang, X. H. and Bailey, J. (2010), "A hierarchical information theoretic technique for the
    discovery of non linear alternative clusterings", KDD 2010, doi:10.1145/1835804.1835878, section
    5.1.

    Bae, E. and Bailey, J. (2006), "COALA: a novel approach for the extraction of an alternate
    clustering of high quality and high dissimilarity", ICDM 2006, 53-62, doi:10.1109/ICDM.2006.37.

    Davidson, I. and Qi, Z. (2008), "Finding alternative clusterings using constraints", ICDM 2008,
    773-778, doi:10.1109/ICDM.2008.141.

    Examples
    --------
    >>> from nrprob.metrics import score_solutions
    >>> X, upper, left = [[0, 0], [0, 1], [4, 0], [4, 1]], [0, 1, 0, 1], [0, 0, 1, 1]
    >>> table = score_solutions(X, [left], known=upper)
    >>> table.loc[0, ["dunn_index", "dissimilarity_from_known"]].tolist()
    [4.0, 1.0]
    """
    import pandas as pd

    agreement = pairwise_agreement(labelings, measure=measure)
    solutions = _encode_labelings(labelings, "labelings")
    table: dict[str, Any] = {
        "n_clusters": [int(codes.max()) + 1 for codes in solutions],
        "silhouette_width": [quality.silhouette_width(X, codes) for codes in solutions],
        "dunn_index": [
            quality.dunn_index(X, codes, separation=separation, diameter=diameter)
            for codes in solutions
        ],
        "vector_quantization_error": [
            quality.vector_quantization_error(X, codes) for codes in solutions
        ],
    }
    for i, value in enumerate(table["dunn_index"]):
        if not np.isfinite(value):
            raise ValueError(
                "every labeling must have two clusters or more, not all of them of equal points; "
                f"got a Dunn index of {value} in labeling {i}; leave this labeling out"
            )
    if len(solutions) > 1:
        table["dissimilarity_from_others"] = _without_diagonal(1 - agreement).mean(1)
    if known is not None:
        dissimilarity = 1 - pairwise_agreement(labelings, known, measure=measure)
        n_known = dissimilarity.shape[1]
        names = _column_names(known, n_known) if n_known > 1 else ["known"]
        table |= {
            f"dissimilarity_from_{name}": column
            for name, column in zip(names, dissimilarity.T, strict=True)
        }
    return pd.DataFrame(table, pd.Index(_column_names(labelings, len(solutions)), name="solution"))


def _column_names(labelings: Any, count: int) -> list[Any]:
    """Names of the columns of a frame, or numbers 0, 1, ... for other input."""
    return list(getattr(labelings, "columns", range(count)))
