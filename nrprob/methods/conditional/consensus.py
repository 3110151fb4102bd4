"""Consensus of an ensemble of labelings with equal numbers of clusters.

There are two criteria for the stacked indicators of the members' labels. `find_consensus` minimises
their within-cluster scatter, as `Consensus` does. Every member is itself an estimate of the
consensus, so the search starts from the members. A row has one label per member, so that an
iteration is a table look-up. `fit_consensus` fits a Gaussian mixture to the principal components of
the indicators, which are weighted by the agreement of their member with the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from scipy.special import entr

from nrprob.methods.conditional.moments import leading_eigenvectors, multiply_rows
from nrprob.methods.conditional.spectral_mixture import fit_mixtures
from nrprob.statistics.ensembles import centroid_scores, stack_indicators
from nrprob.statistics.groups import cross_table
from nrprob.statistics.rows import cluster_means

_LEAST = 1e-6  # lower bound of the mean agreement of a member
_TOL = 1e-6  # relative tolerance of the principal components of the indicators
_BLOCK = 1 << 22  # entries of the contingency tables that are computed together


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
    model : mixture of the indicators; None if the scatter is minimised
    """

    labels: np.ndarray
    objective: np.ndarray
    converged: np.ndarray
    n_iter: np.ndarray
    best: int
    trace: np.ndarray
    centroids: np.ndarray
    model: ConsensusModel | None = None


class ConsensusModel(NamedTuple):
    """Mixture of the principal components of weighted indicators.

    Attributes
    ----------
    directions : (indicators, q) of the indicators, which includes the members' weights
    centre : (q,) component scores of the mean indicators
    coef : (k, q), intercept : (k,); see `Mixtures`
    """

    directions: np.ndarray
    centre: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray

    def predict(self, columns: np.ndarray) -> np.ndarray:
        """Cluster (n,) of rows with the members' labels (n, members)."""
        scores = _indicators(columns, len(self.coef)) @ self.directions - self.centre
        return (scores @ self.coef.T + self.intercept).argmax(1)


def find_consensus(
    columns: np.ndarray, k: int, fixed: np.ndarray | None, n_starts: int, max_iter: int,
    mass: np.ndarray | None = None,
) -> Agreement:  # fmt: skip
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
    mass : (n,) weights of the rows; by default 1
    """
    x = _indicators(columns, k)
    transpose = sparse.csr_array(x.T)
    n, members = columns.shape
    mass = np.ones(n) if mass is None else mass
    n_votes = mass.sum() * members

    def cluster_centroids(labels):
        """Centroids (k, indicators) and the scatter about them."""
        indicators = sparse.csr_array((mass, labels, np.arange(n + 1)), shape=(n, k))
        sums = (transpose @ indicators).toarray().T
        size = np.bincount(labels, mass, minlength=k)
        centroids = cluster_means(sums, size)
        # Up to rounding, which may fall below 0 where all members agree.
        return centroids, max(n_votes - (size[:, None] * centroids**2).sum(), 0.0)

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


def agreement_weights(columns: np.ndarray, k: int, mass: np.ndarray | None = None) -> np.ndarray:
    """Weights (members,) of labelings, with mean 1.

    The weight is the square of the mean normalised mutual information with the other members;
    ``mass`` (n,) are weights of the rows.
    """
    n, members = columns.shape
    if members == 1:
        return np.ones(1)
    x = _indicators(columns, k)
    share = np.full(n, 1 / n) if mass is None else mass / mass.sum()
    weighted = multiply_rows(x, share)
    entropy = entr(np.asarray(weighted.sum(0)).reshape(members, k)).sum(1)
    step = max(_BLOCK // (k * k * members), 1)
    total = np.zeros(members)
    for first in range(0, members, step):
        part = slice(first, min(first + step, members))
        block = x[:, first * k : part.stop * k]
        tables = (block.T @ weighted).toarray().reshape(-1, k, members, k)
        both = entropy[part, None] + entropy
        shared = both - entr(tables).sum((1, 3))
        informative = np.minimum(entropy[part, None], entropy) > 0
        nmi = np.where(informative, 2 * shared / np.where(informative, both, 1), 0)
        nmi[np.arange(part.stop - first), np.arange(first, part.stop)] = 0
        total[part] = nmi.sum(1)
    weights = np.maximum(total / (members - 1), _LEAST) ** 2
    return weights / weights.mean()


def fit_consensus(
    columns: np.ndarray, k: int, fixed: np.ndarray | None, weights: np.ndarray,
    mass: np.ndarray, keys: np.ndarray, seeds: np.ndarray, *, reg: float, max_iter: int,
    tol: float, dtype: Any,
) -> Agreement:  # fmt: skip
    """Fit a Gaussian mixture to the k + 1 leading principal components of weighted indicators.

    Members scatter in a few directions within clusters. Unlike k-means, a mixture with a tied
    covariance takes the size of this scatter into account.

    Parameters
    ----------
    columns : (n, members) labels below ``k``
    fixed : (n,) cluster of labelled rows, else -1
    weights : (members,) with mean 1
    mass, keys, seeds, reg, max_iter, tol : see `fit_mixtures`
    dtype : precision of the mixture
    """
    members = columns.shape[1]
    x = _indicators(columns, k)
    scale = np.sqrt(np.repeat(weights, k) / members)  # so that rows have unit length
    weighted = multiply_rows(x, mass)
    transpose, total = sparse.csr_array(weighted.T), mass.sum()
    mean = np.asarray(weighted.sum(0)).ravel() / total

    def apply_moment(v):
        """Covariance of the weighted indicators times v, up to the number of rows."""
        v = scale[:, None] * v
        scatter = transpose @ (x @ v) - total * np.outer(mean, mean @ v)
        return scale[:, None] * scatter

    _, vectors = leading_eigenvectors(
        apply_moment, members * k, min(k + 1, members * k), np.float64, _TOL
    )
    directions = scale[:, None] * vectors
    centre = mean @ directions
    scores = (x @ directions - centre).astype(dtype)
    scores = np.pad(scores, ((0, 0), (0, max(1 - scores.shape[1], 0))))
    result = fit_mixtures(
        np.repeat(scores[None], len(seeds), 0), mass, keys, seeds, k, fixed,
        reg=reg, max_iter=max_iter, tol=tol,
    )  # fmt: skip
    best = int(result.objective.argmin())
    labels = result.labels[best]
    sums = np.asarray(transpose @ np.eye(k)[labels]).T
    q = directions.shape[1]
    return Agreement(
        result.labels, result.objective.astype(float), result.converged, result.n_iter, best,
        result.trace[best], cluster_means(sums, np.bincount(labels, mass, minlength=k)),
        ConsensusModel(directions, centre, result.coef[best][:, :q], result.intercept[best]),
    )  # fmt: skip


def _indicators(columns: np.ndarray, k: int) -> sparse.csr_array:
    """Stacked indicators (n, members * k) of labels below ``k``."""
    return stack_indicators(columns, [np.arange(k)] * columns.shape[1])


def match_labels(
    labels: np.ndarray, consensus: np.ndarray, k: int, n_classes: int,
    mass: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Cluster of the consensus for each of ``k`` labels, one to one, with the most common rows.

    The first ``n_classes`` of both are matched already.
    """
    common = cross_table(labels, consensus, (k, k), mass)
    name = np.arange(k)
    left, right = linear_sum_assignment(-common[n_classes:, n_classes:])
    name[n_classes + left] = n_classes + right
    return name


def vote_shares(columns: np.ndarray, names: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Shares (n, k) of the members' votes, weighted by ``weights`` (members,).

    Labels are renamed by ``names`` (members, k).
    """
    n = len(columns)
    total = np.zeros((n, names.shape[1]))
    for column, name, weight in zip(columns.T, names, weights, strict=True):
        total[np.arange(n), name[column]] += weight
    return total / weights.sum()
