"""Quality and dissimilarity of several partitions, and of known ones."""

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
    _encode_all,
    _same_length,
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

# Symmetric, and 1 for two equal partitions, whatever these are.
_AGREEMENTS: dict[str, Callable[[Labels, Labels], float]] = {
    one.__name__: one
    for one in (
        adjusted_rand_index,
        jaccard_index,
        matched_accuracy,
        normalized_mutual_information,
        pair_f_measure,
        rand_index,
    )
}


def _of_same_samples(n: int, labelings: Labelings, name: str) -> list[Codes]:
    """Codes of labelings, each of which has to be of so many samples; any number for 0."""
    result = _encode_all(labelings, name)
    n = n or len(result[0])
    for number, codes in enumerate(result):
        _same_length(n, len(codes), ("labelings[0]", f"{name}[{number}]"))
    return result


def pairwise_agreement(
    labelings: Labelings,
    others: Labelings | None = None,
    *,
    measure: Agreement = "normalized_mutual_information",
) -> NDArray[np.float64]:
    r"""Agreement of every labeling with every other, or with those of another set.

    .. math:: A_{ij} = a(C_i, C_j), \quad D_{ij} = 1 - A_{ij}

    Parameters
    ----------
    labelings : array-like of shape (n_samples, n_labelings) or sequence of labelings
        A two-dimensional array or data frame holds one labeling per column; a list or tuple
        holds one sequence of n_samples labels per labeling. A single labeling will also do.
    others : like `labelings`, of n_others labelings, optional
        Those to compare with, such as known or true ones; by default `labelings` themselves.
    measure : str, default="normalized_mutual_information"
        The agreement a: a function of this module, with its defaults, that is symmetric and 1 for
        equal partitions. "adjusted_rand_index", "jaccard_index", "matched_accuracy",
        "normalized_mutual_information", "pair_f_measure" or "rand_index".

    Returns
    -------
    ndarray of shape (n_labelings, n_labelings) or (n_labelings, n_others)
        Without unit. With itself, a labeling agrees at 1. One less the matrix is that of
        dissimilarities, such as the Jaccard dissimilarity. The largest entry of a column says
        which labeling is most like that one of the others.

    Raises
    ------
    ValueError
        As for `contingency`, for every labeling; also if there is none, or for another `measure`.
    TypeError
        As for `contingency`, for every labeling.

    See Also
    --------
    mean_dissimilarity : One number for all pairs.

    Notes
    -----
    Dang and Bailey (2010), section 5.1, print the mutual information of an alternative and the
    known clustering, and after Bae and Bailey (2006) and Davidson and Qi (2008) their Jaccard
    index. Independent labelings are at 0 by the adjusted Rand index and nearly so by the mutual
    information, but not by the other measures: see `jaccard_index`.

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
    ours = _of_same_samples(0, labelings, "labelings")
    if others is not None:
        theirs = _of_same_samples(len(ours[0]), others, "others")
        return np.array([[agreement(a, b) for b in theirs] for a in ours])
    result = np.empty((len(ours), len(ours)))
    for i, a in enumerate(ours):
        for j, b in enumerate(ours[: i + 1]):
            result[i, j] = result[j, i] = agreement(a, b)
    return result


def mean_dissimilarity(
    labelings: Labelings, *, measure: Agreement = "normalized_mutual_information"
) -> float:
    r"""How unlike each other several labelings are: the mean over pairs of one less agreement.

    .. math:: \frac{2}{M (M - 1)} \sum_{i < j} (1 - a(C_i, C_j))

    Parameters
    ----------
    labelings : array-like of shape (n_samples, n_labelings) or sequence of labelings
        As for `pairwise_agreement`; at least two.
    measure : str, default="normalized_mutual_information"
        The agreement a, as for `pairwise_agreement`.

    Returns
    -------
    float
        Without unit, larger for labelings that are less alike; 0 if all are equal.

    Raises
    ------
    ValueError, TypeError
        As for `pairwise_agreement`; also if there is only one labeling.

    Examples
    --------
    >>> from nrprob.metrics import mean_dissimilarity
    >>> upper, left = [0, 1, 0, 1], [0, 0, 1, 1]
    >>> mean_dissimilarity([upper, left])
    1.0
    """
    result = pairwise_agreement(labelings, measure=measure)
    if len(result) < 2:
        raise ValueError(
            "dissimilarity is of at least two labelings; got 1; pass one labeling per column"
        )
    return float(_off_diagonal(1 - result).mean())


def _off_diagonal(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Every row of a square matrix without its own entry, (m, m - 1)."""
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
    """Quality of alternative clusterings beside their dissimilarity.

    An alternative is worth something if it is unlike what is known and still a clustering of the
    rows; either alone is easily had, by shuffled labels or by the known ones.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Points; distances are Euclidean.
    labelings : array-like of shape (n_samples, n_labelings) or sequence of labelings
        The solutions, as for `pairwise_agreement`.
    known : like `labelings`, of n_known labelings, optional
        Those that solutions should be unlike.
    measure : str, default="normalized_mutual_information"
        The agreement whose complement is the dissimilarity, as for `pairwise_agreement`.
    separation, diameter : str
        As for `dunn_index`.

    Returns
    -------
    DataFrame of shape (n_labelings, 5 + n_known), or (1, 4 + n_known) of a single labeling
        A row per solution, by its number or the name of its column. ``n_clusters``;
        ``silhouette_width`` and ``dunn_index``, where more is better;
        ``vector_quantization_error``, in squared units of `X`, where less is;
        ``dissimilarity_from_others``, the mean over the other solutions, if there are any; and
        ``dissimilarity_from_known``, or of several known ones ``dissimilarity_from_`` and the
        name of each one's column, or its number.

    Raises
    ------
    ValueError, TypeError
        As for `pairwise_agreement` and `dunn_index`; also if the Dunn index of a solution is not
        finite, as that of a single cluster.

    Notes
    -----
    Dang and Bailey (2010), section 5.1, set the Dunn index beside one less the dissimilarity, by
    the mutual information and by the Jaccard index, after Bae and Bailey (2006) and Davidson and
    Qi (2008).

    Examples
    --------
    >>> from nrprob.metrics import score_solutions
    >>> X, upper, left = [[0, 0], [0, 1], [4, 0], [4, 1]], [0, 1, 0, 1], [0, 0, 1, 1]
    >>> table = score_solutions(X, [left], known=upper)
    >>> table.loc[0, ["dunn_index", "dissimilarity_from_known"]].tolist()
    [4.0, 1.0]
    """
    import pandas as pd

    result = pairwise_agreement(labelings, measure=measure)
    ours = _encode_all(labelings, "labelings")
    table: dict[str, Any] = {
        "n_clusters": [int(one.max()) + 1 for one in ours],
        "silhouette_width": [quality.silhouette_width(X, one) for one in ours],
        "dunn_index": [
            quality.dunn_index(X, one, separation=separation, diameter=diameter) for one in ours
        ],
        "vector_quantization_error": [quality.vector_quantization_error(X, one) for one in ours],
    }
    for at, value in enumerate(table["dunn_index"]):
        if not np.isfinite(value):
            raise ValueError(
                "every labeling must have two clusters or more, not all of them of equal points; "
                f"got a Dunn index of {value} in labeling {at}; leave this labeling out"
            )
    if len(ours) > 1:
        table["dissimilarity_from_others"] = _off_diagonal(1 - result).mean(1)
    if known is not None:
        apart = 1 - pairwise_agreement(labelings, known, measure=measure)
        names = _names(known, apart.shape[1]) if apart.shape[1] > 1 else ["known"]
        table |= {f"dissimilarity_from_{n}": a for n, a in zip(names, apart.T, strict=True)}
    return pd.DataFrame(table, pd.Index(_names(labelings, len(ours)), name="solution"))


def _names(labelings: Any, count: int) -> list[Any]:
    """Names of the columns of a frame, or numbers."""
    return list(getattr(labelings, "columns", range(count)))
