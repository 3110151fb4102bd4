"""Median partition of given labelings."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nrprob.data.labels import as_plain_array, is_missing
from nrprob.data.validation import MOST, check_number
from nrprob.exceptions import short_repr
from nrprob.methods.bottleneck.ib import IB
from nrprob.methods.ensemble.consensus import find_consensus
from nrprob.settings import standard
from nrprob.statistics.ensembles import stack_indicators

__all__ = ["median_partition"]


def median_partition(
    labelings: ArrayLike,
    n_clusters: int,
    *,
    entropy: Literal["quadratic", "shannon"] = "quadratic",
    n_init: int = 10,
    max_iter: int = 300,
    random_state: Any = None,
) -> NDArray[np.int64]:
    r"""Median partition: the clusters that share most information with given labelings.

    .. math:: \max_C \sum_j I(C; C_j)

    where the maximum is over partitions C into ``n_clusters`` clusters, :math:`C_j` are the
    labelings, and I is a mutual information.

    Parameters
    ----------
    labelings : array-like of shape (n_samples, n_labelings)
        Labels without missing values; each column is a labeling.
    n_clusters : int
        Number of clusters of C.
    entropy : {"quadratic", "shannon"}, default="quadratic"
        Entropy that defines the information I. With the quadratic entropy
        :math:`H^2(p) = 2 (1 - \sum_c p_c^2)`, C minimises the within-cluster sum of squares of the
        stacked indicators of the labels, as in `CondEns`. With Shannon's entropy, C is the
        information bottleneck of the indicators. Choose "shannon" if labelings have many small
        clusters.
    n_init : int, default=10
        Number of restarts; the best solution is returned.
    max_iter : int, default=300
        Maximum number of sweeps of a restart.
    random_state : int, RandomState instance or None, default=None
        Determines the initial partitions.

    Returns
    -------
    ndarray of shape (n_samples,)
        Labels 0, 1, ... of C.

    Raises
    ------
    TypeError, ValueError
        For labelings that are not two-dimensional or have missing values, an unknown ``entropy``,
        and numbers that are not integers in their ranges.

    See Also
    --------
    CondEns : Consensus of separate clusterings of known groups.
    IB : Information bottleneck.

    Notes
    -----
    The objectives for either entropy are optimised by sequential reassignment from random
    partitions. For Shannon's entropy, the values of the feature Y are pairs of a labeling j and a
    label. For m labelings, a row has probability 1/m for each pair of a labeling j and the label of
    the row in j. I(C;Y) of the information bottleneck is then the mean of I(C;C_j) over labelings.

    References
    ----------
    Strehl, A. and Ghosh, J. (2002), "Cluster ensembles: a knowledge reuse framework for combining
    multiple partitions", Journal of Machine Learning Research 3, 583-617.

    Topchy, A., Jain, A. K. and Punch, W. (2003), "Combining multiple weak clusterings", ICDM 2003,
    331-338, doi:10.1109/ICDM.2003.1250937.

    Examples
    --------
    >>> from nrprob import median_partition
    >>> labelings = [[0, 0, 0], [0, 0, 1], [1, 1, 1], [1, 1, 1]]
    >>> labels = median_partition(labelings, 2, random_state=0)
    >>> bool(labels[0] == labels[1] != labels[2] == labels[3])
    True
    """
    columns = as_plain_array(labelings, "labelings")
    if columns.ndim != 2 or 0 in columns.shape:
        raise ValueError(
            f"labelings must have one column per labeling; got shape {columns.shape}; pass a "
            "two-dimensional array"
        )
    if is_missing(columns):
        raise ValueError(
            "labelings must have no missing values; found NaN or None; drop these samples, or give "
            "them a label of their own"
        )
    check_number("n_clusters", n_clusters, low=1, high=len(columns), integer=True)
    check_number("n_init", n_init, low=1, high=MOST, integer=True)
    check_number("max_iter", max_iter, low=1, high=MOST, integer=True)
    if entropy not in ("quadratic", "shannon"):
        raise ValueError(
            f"entropy must be 'quadratic' or 'shannon'; got {short_repr(entropy)}; pass one of them"
        )
    pairs = [np.unique(column, return_inverse=True) for column in columns.T]
    classes, codes = [np.arange(len(k)) for k, _ in pairs], np.stack([c for _, c in pairs], 1)
    if entropy == "shannon":
        model = IB(
            n_clusters, features="multinomial", solver="sequential", n_init=n_init,
            max_iter=max_iter, random_state=random_state,
        )  # fmt: skip
        return np.asarray(model.fit(stack_indicators(codes, classes)).labels_, np.int64)
    with standard():
        restarts, *_ = find_consensus(
            codes, classes, None, n_clusters, n_init=n_init, max_iter=max_iter,
            random_state=random_state,
        )  # fmt: skip
    return np.asarray(restarts.labels[restarts.objective.argmin()], np.int64)
