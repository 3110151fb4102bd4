"""Consensus of an ensemble of labelings with equal numbers of clusters.

The criterion is the one of `Consensus`: the within-cluster scatter of the stacked indicators of the
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


def find_consensus(
    columns: np.ndarray, k: int, fixed: np.ndarray | None, n_starts: int, max_iter: int
) -> Agreement:
    """Find the labeling with the smallest within-cluster scatter of the members' indicators.

    The search starts from the ``n_starts`` members with the smallest scatter. Rows move to the
    nearest cluster until nothing changes, which never increases the scatter. If members agree
    little, a search that starts from a member stays there because of the votes of that member.
    Therefore every start runs twice, once without these votes in the first iteration, and the
    better result is kept.

    Parameters
    ----------
    columns : (n, members) labels below ``k``
    fixed : (n,) cluster of labelled rows, else -1
    """
    x = stack_indicators(columns, [np.arange(k)] * columns.shape[1])
    transpose = sparse.csr_array(x.T)
    n, members = columns.shape

    def cluster_centroids(labels):
        """Centroids (k, indicators) and the scatter about them."""
        indicators = sparse.csr_array((np.ones(n), labels, np.arange(n + 1)), shape=(n, k))
        sums = (transpose @ indicators).toarray().T
        size = np.bincount(labels, minlength=k)
        centroids = cluster_means(sums, size)
        # Up to rounding, which may fall below 0 where all members agree.
        return centroids, max(n * members - (size[:, None] * centroids**2).sum(), 0.0)

    objectives_of_members = np.array([cluster_centroids(column)[1] for column in columns.T])
    # Members that are alike lead to the same; of those left, the nearest first, in any order equal.
    order = np.argsort(objectives_of_members, kind="stable")
    _, first = np.unique(columns[:, order], axis=1, return_index=True)
    starts = order[np.sort(first)][:n_starts]

    def run_descent(labels, member):
        """Iterate from labels; the first time without the votes of the member ``member``."""
        trace: list[float] = []
        converged = False
        centroids, objective = cluster_centroids(labels)
        while not converged and len(trace) < max_iter:
            if member is not None and not trace:
                centroids[:, member * k : (member + 1) * k] *= 0
            new = centroid_scores(x, centroids, np.bincount(labels, minlength=k) > 0).argmax(1)
            if fixed is not None:
                new = np.where(fixed >= 0, fixed, new)
            # Without a member's votes, to change nothing is no sign yet.
            converged = bool((new == labels).all()) and (member is None or len(trace) > 0)
            labels = new
            centroids, objective = cluster_centroids(labels)
            trace.append(objective)
        return labels, objective, converged, np.array(trace), centroids

    result = []
    for start in starts:
        members_without = [None, start] if members > 1 else [None]
        runs = [run_descent(columns[:, start], member) for member in members_without]
        result.append(min(runs, key=lambda run: run[1]))
    objectives = np.array([run[1] for run in result])
    best = int(objectives.argmin())
    return Agreement(
        np.stack([run[0] for run in result]),
        objectives,
        np.array([run[2] for run in result]),
        np.array([run[3].size for run in result]),
        best,
        result[best][3],
        result[best][4],
    )


def match_labels(labels: np.ndarray, consensus: np.ndarray, k: int, n_classes: int) -> np.ndarray:
    """Cluster of the consensus for each of ``k`` labels, one to one, with the most common rows.

    The first ``n_classes`` of both are matched already.
    """
    common = cross_table(labels, consensus, (k, k))
    name = np.arange(k)
    left, right = linear_sum_assignment(-common[n_classes:, n_classes:])
    name[n_classes + left] = n_classes + right
    return name


def vote_shares(columns: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Shares (n, k) of the members' votes, whose labels are renamed by ``names`` (members, k)."""
    n, members = columns.shape
    total = np.zeros((n, names.shape[1]))
    for column, name in zip(columns.T, names, strict=True):
        total[np.arange(n), name[column]] += 1
    return total / members
