"""Code words of cluster labels under must-links and cannot-links: lengths, and savings per pair.

Every set of rows that must-links connect has one code word, which encodes the cluster of the set. A
word has the position of the first row of the set in the order of transmission. A cannot-link
between two sets closes the cluster of the earlier word to the later word. All other clusters are
*open* to the later word. The weights, which are cluster probabilities, are renormalised over the
open clusters: Yin (2007), sections 5.4.1 and 5.4.2. There are n rows, k clusters and p pairs of a
type. Host code in NumPy and float64.
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
    """Length and cluster probabilities of the code words of one clustering.

    Attributes
    ----------
    length : total length of the code words in nats, without the parametric complexity of the
        weights
    weights : (k,) cluster probabilities, before they are renormalised over open clusters
    """

    length: float
    weights: np.ndarray


def _count_words(
    labels: np.ndarray, k: int, position: np.ndarray, links: np.ndarray, apart: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count the code words of a clustering; the arguments are as in `code_words`.

    Returns
    -------
    count : (k,) number of words that encode a cluster
    open_ : (words, k) mask of the clusters that are open to every word
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
    """Minimise the total lengths of the code words of r labelings over the cluster probabilities.

    The probabilities are called weights. The length is convex in the logs of the weights, and
    Newton's method with bounded steps minimises it. The infimum may be a limit in which the weight
    of a cluster with words tends to 0. This cluster gets a weight of 1e-9, before normalisation.

    Parameters
    ----------
    count : (r, K) for every labeling, numbers of words that encode each of K clusters
    often : (r, U) for every labeling and each of U sets of clusters, number of words to which
        exactly this set is open; see the module
    open_ : (U, K) whether a set includes a cluster

    Returns
    -------
    length : (r,) minimum total lengths of the words in nats
    weights : (r, K) optimal weights
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
    """Compute length and cluster probabilities of the code words of one clustering.

    The clustering must satisfy the must-links and cannot-links in the arguments.

    Parameters
    ----------
    labels : (n,) clusters of the rows
    k : int, number of clusters
    position : (n,) position of every row in the order of transmission
    links, apart : (p, 2) must-links and cannot-links of the code, pairs of rows
    weights : (k,), optional
        Cluster probabilities; by default, the probabilities that minimise the length.
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
    """Increase of the total length of the code words if one pair is removed, for every pair.

    The increase is not negative: without a must-link, there may be one more word. Without a
    cannot-link, more clusters may be open to a word.

    Parameters
    ----------
    labels : (n,) clusters of the rows
    position : (n,) position of every row in the order of transmission
    links, apart : (p, 2) must-links and cannot-links of the code, pairs of rows
    weights : (k,) cluster probabilities
    n_links, n_apart : int
        The first ``n_links`` must-links and the first ``n_apart`` cannot-links are evaluated.

    Returns
    -------
    of_links : (n_links,) increases in nats without each of these must-links
    of_apart : (n_apart,) increases in nats without each of these cannot-links
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
    """Description length in nats of ``n`` flags, of which ``n_kept`` mark a pair as retained.

    The flags have the normalised maximum likelihood (NML) code of two symbols.
    """
    if n == 0:
        return 0.0
    return maximum_likelihood_length([n_kept, n - n_kept]) + multinomial_complexity(2, n)
