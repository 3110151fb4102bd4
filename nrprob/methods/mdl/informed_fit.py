"""Searches for the labels of several views from several starts, and reports about their result.

n samples have labels in V views. Host code in NumPy and float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from sklearn.cluster import kmeans_plusplus

from nrprob.data.labels import factorize
from nrprob.methods.mdl.feature_lengths import (
    ClusterCovarianceLengths,
    CountLengths,
    FeatureLengths,
    IsotropicLengths,
    PooledLengths,
)
from nrprob.methods.mdl.informed_length import InformedLength
from nrprob.methods.mdl.informed_search import InformedSearch, SearchResult
from nrprob.methods.mdl.label_forests import root_length
from nrprob.methods.mdl.linked_words import LinkedWords

FEATURES = ("gaussian", "bernoulli", "multinomial")
_IMPROVED = 3  # starts that are improved by chains of moves
_MOST_PROPOSALS = 10_000  # samples up to which clusters are split


def make_features(
    x: np.ndarray, unit: np.ndarray, groups: np.ndarray, k: int, *, features: str,
    covariance: str, weight: float, bounds: tuple[float, float], shared: bool, centres_coded: bool,
) -> FeatureLengths:  # fmt: skip
    """Make the lengths of the features of one view; see `nrprob.methods.mdl.feature_lengths`."""
    if features != "gaussian":
        return CountLengths(x, unit, groups, k, features)
    if covariance == "full_cluster":
        return ClusterCovarianceLengths(x, unit, groups, k)
    if covariance == "isotropic" and not groups.any():
        return IsotropicLengths(x, unit, k, weight, bounds, shared, centres_coded=centres_coded)
    return PooledLengths(x, unit, groups, k, covariance, weight, bounds)


def initial_labels(
    length: InformedLength, n_init: int, random: np.random.RandomState
) -> list[np.ndarray]:
    """Initial labels (n, V): one cluster, means of classes, and k-means++ centres.

    k-means++ uses the features of all views together in every second start, and each view alone in
    the others. If the search selects a number of clusters, its initial value is random.
    """
    target, views = length.target, range(length.n_views)
    tables = [f.mean[target.unit] if v == 0 else f.mean for v, f in enumerate(length.features)]
    starts = []
    if any(length.counts_used):
        starts.append(np.zeros((length.n, length.n_views), np.int64))
    if target.classes is not None:
        classes, known = target.classes, target.classes >= 0
        means = [
            np.stack([x[classes == c].mean(0) for c in np.unique(classes[known])]) for x in tables
        ]
        starts.append(
            np.stack(
                [_nearest(x, m[:k]) for x, m, k in zip(tables, means, length.sizes, strict=True)], 1
            )
        )
    while len(starts) < max(n_init, 1):
        jointly = len(starts) % 2 == 0
        if jointly:
            least = min(length.sizes)
            k = random.randint(min(2, least), least + 1) if all(length.counts_used) else least
            z = _seed_labels(np.concatenate(tables, 1), k, random)
            starts.append(np.repeat(z[:, None], length.n_views, 1))
            continue
        counts = [
            random.randint(1, k + 1) if used else k
            for k, used in zip(length.sizes, length.counts_used, strict=True)
        ]
        starts.append(np.stack([_seed_labels(tables[v], counts[v], random) for v in views], 1))
    return [_feasible(length, labels) for labels in starts[: max(n_init, 1)]]


def _nearest(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    square = (x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1)
    return square.argmin(1)


def _seed_labels(x: np.ndarray, k: int, random: np.random.RandomState) -> np.ndarray:
    """Labels (n,) of the nearest of ``k`` k-means++ centres."""
    k = min(k, len(np.unique(x, axis=0)))
    return _nearest(x, kmeans_plusplus(x, k, random_state=random)[0])


def _feasible(length: InformedLength, labels: np.ndarray) -> np.ndarray:
    """Labels (n, V) in which units of the target share a cluster, and cannot-links hold."""
    target = length.target
    labels = labels.copy()
    z = labels[target.first, 0]
    if isinstance(target.words, LinkedWords):
        z = target.words.separate(z)
    labels[:, 0] = z[target.unit]
    return labels


def search_labels(
    length: InformedLength, starts: Sequence[np.ndarray], tol: float, max_rounds: int,
    progress: Callable[[int, float], None] = lambda i, total: None,
) -> tuple[SearchResult, list[SearchResult]]:  # fmt: skip
    """Search from all starts, improve the shortest results by chains, and return the shortest.

    Parameters
    ----------
    length : description length; on return, its forest and its effects fit the best labels
    starts : initial labels (n, V)
    tol : smallest decrease of the length, in nats, that counts
    max_rounds : maximum number of accepted proposals per start
    progress : function of the number of finished starts and of the shortest length

    Returns
    -------
    best : the shortest result
    results : results of all starts
    """
    search = InformedSearch(length, tol, max_rounds)
    results: list[SearchResult] = []
    for i, labels in enumerate(starts):
        splits = length.n <= _MOST_PROPOSALS
        results.append(search.improve(labels, splits=splits, chains=False))
        progress(i + 1, min(result.total for result in results))
    order = np.argsort([result.total for result in results], kind="stable")
    distinct: dict[bytes, int] = {}
    for i in order.tolist():
        key = b"".join(factorize(column)[0].tobytes() for column in results[i].labels.T)
        distinct.setdefault(key, i)
    improved = list(distinct.values())[:_IMPROVED] if length.n <= _MOST_PROPOSALS else []
    for index in improved:
        finished = search.improve(results[index].labels)
        results[index] = finished._replace(trace=results[index].trace + finished.trace[1:])
    best = min(results, key=lambda result: result.total)
    length.refit(best.labels)
    return best, results


# Reports


def words_saved(length: InformedLength, labels: np.ndarray) -> np.ndarray:
    """Nats (V,) by which the joint code of labels (n, V) is shorter than a separate code of a view.

    The joint code of the other views is the shortest one for their labels.
    """
    n_views = length.n_views
    if n_views == 1:
        return np.zeros(1)
    together, saved = length.word_length(labels), np.zeros(n_views)
    for v in range(n_views):
        others = [u for u in range(n_views) if u != v]
        if length.code == "table":
            counts = np.unique(labels[:, others], axis=0, return_counts=True)[1]
            n_cells = math.prod(length.n_clusters(u, labels) for u in others)
            rest = root_length(counts, n_cells)
        else:
            parents = length.shortest_parents(labels, without=v)
            if length.code == "independent":
                parents = np.full(n_views, -1)
            rest = length.forest_length(labels, parents, without=v)
        saved[v] = rest + length.root(v, labels) - together
    return saved


def residual_correlations(residuals: Sequence[np.ndarray]) -> np.ndarray:
    """Largest canonical correlations (V, V) of the residuals (n, d) of every two views."""
    n_views = len(residuals)
    bases = []
    for x in residuals:
        x = x - x.mean(0)
        basis, s, _ = np.linalg.svd(x, full_matrices=False)
        bases.append(basis[:, s > 1e-8 * max(s.max(initial=0), 1e-300)])
    result = np.eye(n_views)
    for u in range(n_views):
        for v in range(u + 1, n_views):
            if bases[u].shape[1] and bases[v].shape[1]:
                product = bases[u].T @ bases[v]
                result[u, v] = result[v, u] = np.linalg.svd(product, compute_uv=False)[0]
    return result
