"""Consensus of an ensemble of labelings with equal numbers of clusters.

The criterion is that of `Consensus`: the within-cluster scatter of the stacked indicators of the
ensemble members. Every member is itself an estimate of the consensus, so the search starts from the
members. A row has one label per member, so that an iteration is a table look-up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment

from nrprob.statistics.ensembles import centroid_scores, stack_indicators
from nrprob.statistics.groups import cross_table
from nrprob.statistics.rows import cluster_means


class Agreement(NamedTuple):
    """All starts, and the best of them.

    Attributes
    ----------
    labels : (S, n)
    objective : (S,) sums of squares
    converged : (S,)
    n_iter : (S,)
    best : of the starts
    trace : objective of the best start at every iteration
    centroids : (k, indicators) shares of the members' labels in every cluster
    """

    labels: np.ndarray
    objective: np.ndarray
    converged: np.ndarray
    n_iter: np.ndarray
    best: int
    trace: np.ndarray
    centroids: np.ndarray


def agree(
    columns: np.ndarray, k: int, fixed: np.ndarray | None, n_starts: int, max_iter: int
) -> Agreement:
    """Find the labeling with the least scatter of the members' indicators within its clusters.

    Starts are the ``n_starts`` members that come nearest to it by themselves. From each, rows go to
    the nearest cluster until nothing changes, which never raises the scatter. Where members agree
    little, one that starts from itself stays there, by the weight of its own votes; so every start
    is made twice, with and at first without them, and the better end is kept.

    Parameters
    ----------
    columns : (n, members) labels below ``k``
    fixed : (n,) cluster of the rows whose label is given, else -1
    """
    x = stack_indicators(columns, [np.arange(k)] * columns.shape[1])
    transpose = sparse.csr_array(x.T)
    n, members = columns.shape

    def centre(labels):
        """Centroids (k, indicators) and the scatter about them."""
        ones = sparse.csr_array((np.ones(n), labels, np.arange(n + 1)), shape=(n, k))
        sums = (transpose @ ones).toarray().T
        size = np.bincount(labels, minlength=k)
        centroids = cluster_means(sums, size)
        # Up to rounding, which may fall below 0 where all members agree.
        return centroids, max(n * members - (size[:, None] * centroids**2).sum(), 0.0)

    reached = np.array([centre(column)[1] for column in columns.T])
    # Members that are alike lead to the same; of those left, the nearest first, in any order equal.
    order = np.argsort(reached, kind="stable")
    _, first = np.unique(columns[:, order], axis=1, return_index=True)
    starts = order[np.sort(first)][:n_starts]

    def descend(labels, own):
        """Iterate from labels; the first time without the votes of the member ``own``."""
        trace: list[float] = []
        converged = False
        centroids, objective = centre(labels)
        while not converged and len(trace) < max_iter:
            if own is not None and not trace:
                centroids[:, own * k : (own + 1) * k] *= 0
            new = centroid_scores(x, centroids, np.bincount(labels, minlength=k) > 0).argmax(1)
            if fixed is not None:
                new = np.where(fixed >= 0, fixed, new)
            # Without a member's votes, to change nothing is no sign yet.
            converged = bool((new == labels).all()) and (own is None or len(trace) > 0)
            labels = new
            centroids, objective = centre(labels)
            trace.append(objective)
        return labels, objective, converged, np.array(trace), centroids

    result = []
    for start in starts:
        tries = [None, start] if members > 1 else [None]
        runs = [descend(columns[:, start], own) for own in tries]
        result.append(min(runs, key=lambda run: run[1]))
    objectives = np.array([f[1] for f in result])
    best = int(objectives.argmin())
    return Agreement(
        np.stack([f[0] for f in result]),
        objectives,
        np.array([f[2] for f in result]),
        np.array([f[3].size for f in result]),
        best,
        result[best][3],
        result[best][4],
    )


def match(labels: np.ndarray, consensus: np.ndarray, k: int, n_classes: int) -> np.ndarray:
    """Cluster of the consensus for each of ``k`` labels, one to one, with the most rows in common.

    The first ``n_classes`` of both have the same meaning already.
    """
    common = cross_table(labels, consensus, (k, k))
    name = np.arange(k)
    left, right = linear_sum_assignment(-common[n_classes:, n_classes:])
    name[n_classes + left] = n_classes + right
    return name


def votes(columns: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Shares (n, k) of the members, whose labels are called ``names`` (members, k)."""
    n, members = columns.shape
    total = np.zeros((n, names.shape[1]))
    for column, name in zip(columns.T, names, strict=True):
        total[np.arange(n), name[column]] += 1
    return total / members
