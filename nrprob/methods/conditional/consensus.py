"""Consensus of an ensemble of labelings with equal numbers of clusters.

The members of the ensemble are labelings of the same n rows, each with k clusters. The indicators
of a member are k columns: column c is 1 for the rows of cluster c of the member, and 0 for all
other rows. The consensus is a clustering of the rows by the stacked indicators of all members. Two
functions compute a consensus, with different criteria:

- `find_consensus` minimises the within-cluster scatter: the sum over rows of the squared distance
  between the indicators of the row and their mean in its cluster. Every member is itself an
  estimate of the consensus, so the search starts from the members.
- `fit_consensus` fits a Gaussian mixture to the principal components of weighted indicators. The
  weight of a member increases with its agreement with the other members.
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

_LEAST = 1e-6  # lower bound of the mean agreement of a member with the others
_TOL = 1e-6  # relative tolerance of the principal components of the indicators
_BLOCK = 1 << 22  # entries of the contingency tables that are computed together


class Agreement(NamedTuple):
    """Result of S restarts of a consensus of n rows in k clusters.

    Attributes
    ----------
    labels : (S, n) consensus labels of every restart
    objective : (S,) minimised objectives: the within-cluster scatter of `find_consensus`, or minus
        the log likelihood of the mixture of `fit_consensus`
    converged : (S,) whether a restart converged
    n_iter : (S,) numbers of iterations
    best : index of the restart with the smallest objective
    trace : objective of the best restart after every iteration
    centroids : (k, members * k) means of the indicators of all members in every cluster of the
        consensus: shares of the labels of every member among the rows of the cluster
    model : mixture of `fit_consensus`; None for `find_consensus`
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
    """Gaussian mixture of k clusters in q principal components of the members' indicators.

    Attributes
    ----------
    directions : (members * k, q) map from indicators to scores of the principal components; it
        includes the weights of the members
    centre : (q,) component scores of the mean indicators
    coef, intercept : (k, q) and (k,) coefficients of one linear function of the component scores
        per cluster; a row belongs to the cluster whose function has the largest value
    """

    directions: np.ndarray
    centre: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray

    def predict(self, columns: np.ndarray) -> np.ndarray:
        """Consensus labels (n,) of rows, given the members' labels ``columns`` (n, members)."""
        scores = _indicators(columns, len(self.coef)) @ self.directions - self.centre
        return (scores @ self.coef.T + self.intercept).argmax(1)


def find_consensus(
    columns: np.ndarray, k: int, fixed: np.ndarray | None, n_starts: int, max_iter: int,
    mass: np.ndarray | None = None,
) -> Agreement:  # fmt: skip
    """Find the labeling with the smallest within-cluster scatter of the members' indicators.

    The search starts from the ``n_starts`` distinct members with the smallest scatter. In every
    iteration, all rows move to their nearest cluster, which never increases the scatter. The search
    ends when no row moves.

    The indicators contain the labels of the start member itself. If members agree little, these
    indicators keep the search at its start. Therefore every start runs twice, once without these
    indicators in the first iteration. The run with the smaller scatter is retained.

    Parameters
    ----------
    columns : (n, members) labels of the members, below ``k``
    k : number of clusters
    fixed : (n,) cluster of labelled rows, else -1; None without labels
    n_starts : maximum number of starts
    max_iter : maximum number of iterations of a run
    mass : (n,) weights of the rows; by default 1
    """
    x = _indicators(columns, k)
    transpose = sparse.csr_array(x.T)
    n, members = columns.shape
    mass = np.ones(n) if mass is None else mass
    n_votes = mass.sum() * members

    def cluster_centroids(labels):
        """Centroids (k, members * k) of clusters ``labels`` (n,), and the scatter about them."""
        indicators = sparse.csr_array((mass, labels, np.arange(n + 1)), shape=(n, k))
        sums = (transpose @ indicators).toarray().T
        size = np.bincount(labels, mass, minlength=k)
        centroids = cluster_means(sums, size)
        # If all members agree, the scatter is 0, and rounding could make it negative.
        return centroids, max(n_votes - (size[:, None] * centroids**2).sum(), 0.0)

    objectives_of_members = np.array([cluster_centroids(column)[1] for column in columns.T])
    # Start once from every distinct labeling, in the order of increasing scatter. The sort by
    # scatter makes the order independent of the order of the members, except for ties.
    order = np.argsort(objectives_of_members, kind="stable")
    _, first = np.unique(columns[:, order], axis=1, return_index=True)
    starts = order[np.sort(first)][:n_starts]

    def run_descent(labels, member):
        """Move rows to their nearest cluster until no row moves, from initial ``labels`` (n,).

        The first iteration ignores the indicators of ``member``, unless ``member`` is None. Returns
        labels, objective, whether the run converged, trace and centroids.
        """
        trace: list[float] = []
        converged = False
        centroids, objective = cluster_centroids(labels)
        while not converged and len(trace) < max_iter:
            if member is not None and not trace:
                centroids[:, member * k : (member + 1) * k] *= 0
            new = centroid_scores(x, centroids, np.bincount(labels, minlength=k) > 0).argmax(1)
            if fixed is not None:
                new = np.where(fixed >= 0, fixed, new)
            # An iteration without the member's indicators does not show convergence.
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
    """Weights (members,) of the members of an ensemble, with mean 1.

    The weight of a member is proportional to the square of its mean normalised mutual information
    with the other members.

    Parameters
    ----------
    columns : (n, members) labels of the members, below ``k``
    k : number of clusters
    mass : (n,) weights of the rows; by default 1
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
    # The contingency tables of some members with all members are one sparse product.
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

    Within clusters, the indicators vary in a few directions, and by unequal amounts. The mixture
    has a common covariance of all clusters, which adapts to these variances; k-means assumes that
    they are equal.

    Parameters
    ----------
    columns : (n, members) labels of the members, below ``k``
    k : number of clusters
    fixed : (n,) cluster of labelled rows, else -1; None without labels
    weights : (members,) weights of the members, with mean 1
    mass : (n,) weights of the rows
    keys : (n,) random numbers that depend on the contents of the rows, from `row_keys`
    seeds : random seeds, one per restart
    reg, max_iter, tol : as in `fit_mixtures`
    dtype : floating-point type of the mixture
    """
    members = columns.shape[1]
    x = _indicators(columns, k)
    scale = np.sqrt(np.repeat(weights, k) / members)  # so that rows have unit length
    weighted = multiply_rows(x, mass)
    transpose, total = sparse.csr_array(weighted.T), mass.sum()
    mean = np.asarray(weighted.sum(0)).ravel() / total

    def apply_moment(v):
        """Product of the total scatter matrix of the weighted indicators and the columns of v."""
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
    """Stacked indicators (n, members * k) of the members' labels ``columns`` (n, members).

    All labels are below ``k``.
    """
    return stack_indicators(columns, [np.arange(k)] * columns.shape[1])


def match_labels(
    labels: np.ndarray, consensus: np.ndarray, k: int, n_classes: int,
    mass: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Match the k labels of a member one-to-one to the clusters of the consensus.

    The matching maximises the number of rows in matched clusters. The first ``n_classes`` labels
    belong to classes of labelled rows, and are matched to themselves.

    Parameters
    ----------
    labels, consensus : (n,) labels of the member and of the consensus
    k : number of clusters
    n_classes : number of labels that are matched to themselves
    mass : (n,) weights of the rows; by default 1

    Returns
    -------
    (k,) cluster of the consensus for every label of the member
    """
    common = cross_table(labels, consensus, (k, k), mass)
    name = np.arange(k)
    left, right = linear_sum_assignment(-common[n_classes:, n_classes:])
    name[n_classes + left] = n_classes + right
    return name


def vote_shares(columns: np.ndarray, names: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted shares (n, k) of the members that assign a row to each cluster of the consensus.

    Parameters
    ----------
    columns : (n, members) labels of the members
    names : (members, k) cluster of the consensus to which `match_labels` matches every label of
        every member
    weights : (members,) weights of the members
    """
    n = len(columns)
    total = np.zeros((n, names.shape[1]))
    for column, name, weight in zip(columns.T, names, weights, strict=True):
        total[np.arange(n), name[column]] += weight
    return total / weights.sum()
