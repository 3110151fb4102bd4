"""Words of clusters under pairs of rows: their length, and what every pair saves.

A word is sent for the first row of every set of linked rows. It names a cluster among those that no
earlier row across a cannot-link has, and its probability is renormalised accordingly: Yin (2007),
sections 5.4.1 and 5.4.2. These are the definitions, in NumPy and float64; the search has its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from nrprob.codelength import maximum_likelihood_length, multinomial_complexity


class Words(NamedTuple):
    """Words of one clustering.

    Attributes
    ----------
    length : in nats, without the complexity of the weights
    weights : (k,) probabilities of the clusters, before renormalisation
    """

    length: float
    weights: np.ndarray


def _count(
    labels: np.ndarray, k: int, position: np.ndarray, links: np.ndarray, apart: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Words that name every cluster (k,), and of every word the clusters that are open to it."""
    n = labels.size
    graph = sparse.coo_array((np.ones(len(links), bool), links.T), shape=(n, n))
    count, part = connected_components(graph, directed=False)
    first = np.full(count, n)
    np.minimum.at(first, part, position)
    cluster = np.empty(count, np.int64)
    cluster[part] = labels
    open_ = np.ones((count, k), bool)
    ends = part[apart]
    swap = first[ends[:, 0]] > first[ends[:, 1]]
    early = np.where(swap, ends[:, 1], ends[:, 0])
    late = np.where(swap, ends[:, 0], ends[:, 1])
    open_[late, cluster[early]] = False
    return np.bincount(cluster, minlength=k).astype(float), open_


def _weights(count: np.ndarray, open_: np.ndarray, max_iter: int = 2000) -> np.ndarray:
    """Weights that make the words shortest: a convex problem, by minorise-maximise."""
    patterns, often = np.unique(open_, axis=0, return_counts=True)
    w = count / count.sum()
    if len(patterns) == 1 and patterns.all():
        return w
    for _ in range(max_iter):
        available = np.maximum(patterns @ w, 1e-300)
        pull = (often / available) @ patterns
        new = np.divide(count, pull, out=np.zeros_like(count), where=count > 0)
        new /= new.sum()
        done = np.abs(new - w).max() < 1e-13
        w = new
        if done:
            break
    return w


def _length(count: np.ndarray, open_: np.ndarray, w: np.ndarray) -> float:
    named = count > 0
    used = open_[~open_.all(1)]
    return float(-count[named] @ np.log(w[named]) + np.log(used @ w).sum())


def words(
    labels: np.ndarray,
    k: int,
    position: np.ndarray,
    links: np.ndarray,
    apart: np.ndarray,
    weights: np.ndarray | None = None,
) -> Words:
    """Words of a clustering that keeps all these pairs.

    Parameters
    ----------
    labels : (n,)
    k : int
    position : (n,) place of every row in the order of sending
    links, apart : (p, 2) pairs that are kept
    weights : (k,), optional
        Those that make the words shortest, by default.
    """
    count, open_ = _count(labels, k, position, links, apart)
    w = _weights(count, open_) if weights is None else weights
    return Words(_length(count, open_, w), w)


def savings(
    labels: np.ndarray,
    position: np.ndarray,
    links: np.ndarray,
    apart: np.ndarray,
    weights: np.ndarray,
    n_links: int,
    n_apart: int,
) -> tuple[np.ndarray, np.ndarray]:
    """By how much the words would be longer without one of the pairs, all else being equal.

    Never negative: without the pair a word is sent besides, or may name more clusters.

    Parameters
    ----------
    n_links, n_apart : int
        Number of pairs, the first ones, for which it is computed.
    """
    k = weights.size
    # Rows in no pair have words of their own in any case.
    rows, inverse = np.unique(np.concatenate([links, apart]), return_inverse=True)
    inverse = inverse.reshape(-1, 2)
    links, apart = inverse[: len(links)], inverse[len(links) :]
    labels, position = labels[rows], np.argsort(np.argsort(position[rows]))

    def length(links, apart):
        return words(labels, k, position, links, apart, weights).length

    whole = length(links, apart) if rows.size else 0.0
    of_links = [length(np.delete(links, i, 0), apart) - whole for i in range(n_links)]
    of_apart = [length(links, np.delete(apart, i, 0)) - whole for i in range(n_apart)]
    return np.maximum(of_links, 0.0), np.maximum(of_apart, 0.0)


def flags_length(kept: int, n: int) -> float:
    """Length of saying of each of ``n`` pairs whether it is kept: an NML code of two symbols."""
    if n == 0:
        return 0.0
    return maximum_likelihood_length([kept, n - kept]) + multinomial_complexity(2, n)
