"""Code words of cluster labels under pairs of rows: description length, and savings per pair.

One code word is sent for the first row of every set of rows that must-links connect. The word
encodes a cluster. The clusters that no earlier cannot-linked row has are *open* to the word. The
weights, which are cluster probabilities, are renormalised over the open clusters: Yin (2007),
sections 5.4.1 and 5.4.2. There are n rows, k clusters and p pairs of a type. Host code in NumPy and
float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from nrprob.codelength import maximum_likelihood_length, multinomial_complexity

_NEWTON_STEPS = 60  # maximum number of steps for the weights of words
_LEAST_WEIGHT = 1e-9  # smallest weight of a cluster with words


class Words(NamedTuple):
    """Code words of one clustering.

    Attributes
    ----------
    length : code length in nats, without the complexity of the weights
    weights : (k,) cluster probabilities before renormalisation
    """

    length: float
    weights: np.ndarray


def _count_words(
    labels: np.ndarray, k: int, position: np.ndarray, links: np.ndarray, apart: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Number of code words per cluster (k,), and mask (words, k) of the clusters open to a word.

    The arguments are those of `code_words`.
    """
    n = labels.size
    # Linked rows share a word, which is sent at the position of their first row.
    graph = sparse.coo_array((np.ones(len(links), bool), links.T), shape=(n, n))
    count, part = connected_components(graph, directed=False)
    first = np.full(count, n)
    np.minimum.at(first, part, position)
    cluster = np.empty(count, np.int64)
    cluster[part] = labels
    open_ = np.ones((count, k), bool)
    # The later word of a cannot-link excludes the cluster of the earlier word.
    ends = part[apart]
    swap = first[ends[:, 0]] > first[ends[:, 1]]
    early = np.where(swap, ends[:, 1], ends[:, 0])
    late = np.where(swap, ends[:, 0], ends[:, 1])
    open_[late, cluster[early]] = False
    return np.bincount(cluster, minlength=k).astype(float), open_


def optimal_words(
    count: np.ndarray, often: np.ndarray, open_: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Minimum total lengths of the words of r labelings, and the optimal weights of the clusters.

    The length is convex in the logs of the weights. The algorithm is Newton's, with bounded steps.
    Weights tend to 0 if all words of a cluster have few other open clusters.

    Parameters
    ----------
    count : (r, K) numbers of words that encode a cluster
    often : (r, U) numbers of words, for U sets of clusters that are open to a word
    open_ : (U, K) whether a set includes a cluster

    Returns
    -------
    length, weights : (r,) and (r, K)
    """
    # A word with a single open cluster has length 0, and no influence on the weights.
    single = open_.sum(1) == 1
    encoded, count = count > 0, count - often[:, single] @ open_[single]
    sets, often, named = open_[~single].astype(float), often[:, ~single], count > 0
    w = count / np.maximum(count.sum(1), 1)[:, None]
    gauge = np.ones((count.shape[1],) * 2)
    for _ in range(_NEWTON_STEPS):
        # Shares of the clusters in every set: gradient and Hessian in the logs of the weights.
        shares = w[:, None] * sets
        shares /= np.maximum(shares.sum(2, keepdims=True), 1e-300)
        weighted = often[:, :, None] * shares
        expected = weighted.sum(1)
        gradient = np.where(named, expected - count, 0)
        hessian = -np.swapaxes(shares, 1, 2) @ weighted
        diagonal = np.einsum("rkk->rk", hessian)
        diagonal += np.where(named, expected, 1) + 1e-10
        step = -np.linalg.solve(hessian + gauge, gradient[:, :, None])[:, :, 0]
        step = np.clip(np.where(named, step, 0), -2, 2)
        w = w * np.exp(step)
        w /= np.maximum(w.sum(1), 1e-300)[:, None]
        if -(gradient * step).sum(1).min(initial=0) < 1e-10:
            break
    available = np.maximum(w @ sets.T, 1e-300)
    length = (often * np.log(available)).sum(1)
    length = length - (count * np.log(np.where(named, w, 1))).sum(1)
    w = np.where(encoded, np.maximum(w, _LEAST_WEIGHT), 0)
    return length, w / w.sum(1)[:, None]


def _words_length(count: np.ndarray, open_: np.ndarray, w: np.ndarray) -> float:
    named = count > 0
    used = open_[~open_.all(1)]
    return float(-count[named] @ np.log(w[named]) + np.log(used @ w).sum())


def code_words(
    labels: np.ndarray,
    k: int,
    position: np.ndarray,
    links: np.ndarray,
    apart: np.ndarray,
    weights: np.ndarray | None = None,
) -> Words:
    """Compute the code words of a clustering that satisfies all given pairs.

    Parameters
    ----------
    labels : (n,) clusters of the rows
    k : int, number of clusters
    position : (n,) position of every row in the order of transmission
    links, apart : (p, 2) retained must-links and cannot-links, pairs of rows
    weights : (k,), optional
        Cluster probabilities; by default, the weights that minimise the length.
    """
    count, open_ = _count_words(labels, k, position, links, apart)
    if weights is None:
        # Words with the same open clusters are counted together.
        free = open_.all(1)
        sets, often = np.unique(open_[~free], axis=0, return_counts=True)
        sets, often = np.vstack([sets, np.ones(k, bool)]), np.append(often, free.sum())
        length, w = optimal_words(count[None], often[None].astype(float), sets)
        return Words(float(length[0]), w[0])
    return Words(_words_length(count, open_, weights), weights)


def pair_savings(
    labels: np.ndarray,
    position: np.ndarray,
    links: np.ndarray,
    apart: np.ndarray,
    weights: np.ndarray,
    n_links: int,
    n_apart: int,
) -> tuple[np.ndarray, np.ndarray]:
    """For every pair, the increase of the length of the words if this pair alone is removed.

    The increase is never negative: without the pair there is one more word, or a word has more
    clusters to choose from.

    Parameters
    ----------
    labels : (n,) clusters of the rows
    position : (n,) position of every row in the order of transmission
    links, apart : (p, 2) retained must-links and cannot-links, pairs of rows
    weights : (k,) cluster probabilities
    n_links, n_apart : int
        The first ``n_links`` must-links and the first ``n_apart`` cannot-links are evaluated.

    Returns
    -------
    savings : (n_links,) and (n_apart,) increases in nats
    """
    k = weights.size
    # Words of rows outside of all pairs do not change.
    rows, inverse = np.unique(np.concatenate([links, apart]), return_inverse=True)
    inverse = inverse.reshape(-1, 2)
    links, apart = inverse[: len(links)], inverse[len(links) :]
    labels, position = labels[rows], np.argsort(np.argsort(position[rows]))

    def total_length(links, apart):
        return code_words(labels, k, position, links, apart, weights).length

    full_length = total_length(links, apart) if rows.size else 0.0
    of_links = [total_length(np.delete(links, i, 0), apart) - full_length for i in range(n_links)]
    of_apart = [total_length(links, np.delete(apart, i, 0)) - full_length for i in range(n_apart)]
    return np.maximum(of_links, 0.0), np.maximum(of_apart, 0.0)


def flags_length(n_kept: int, n: int) -> float:
    """Length in nats of flags that mark ``n_kept`` of ``n`` pairs as retained.

    The flags have a normalised maximum likelihood (NML) code of two symbols.
    """
    if n == 0:
        return 0.0
    return maximum_likelihood_length([n_kept, n - n_kept]) + multinomial_complexity(2, n)
