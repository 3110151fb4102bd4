"""Search for the labels of several views from several initial values, and summarise the result.

n samples have labels in V views. Host code in NumPy and float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from sklearn.cluster import kmeans_plusplus

from nrprob.data.labels import factorize
from nrprob.methods.mdl.cluster_costs import ClusterCosts, GaussianCosts
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
from nrprob.statistics.groups import group_sums
from nrprob.statistics.rows import cluster_means

FEATURES = ("gaussian", "bernoulli", "multinomial")
_FEW_ROWS, _IMPROVED = 50, 3  # up to 50 samples, chains improve all results; otherwise three
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


def choose_covariance(
    covariance: str, sigma: str, geometry: str, *, selected: bool, grouped: bool
) -> str:
    """Covariance of continuous features, from the parameter ``covariance``.

    ``sigma`` and ``geometry`` are parameters of published codes, which have isotropic clusters.
    ``selected`` states whether a number of clusters is selected, and ``grouped`` whether there are
    known groups.
    """
    if sigma == "cluster" and grouped:
        raise ValueError(
            "sigma='cluster' takes no known groups; got known groups; use sigma='view', or "
            "covariance='full_cluster'"
        )
    published = sigma == "cluster" or geometry == "exp"
    if covariance == "auto":
        return "full_cluster" if selected and not published else "isotropic"
    if published and covariance != "isotropic":
        raise ValueError(
            "sigma='cluster' and geometry='exp' need isotropic clusters; got "
            f"covariance={covariance!r}; leave sigma and geometry out"
        )
    return covariance


def initial_labels(
    length: InformedLength, n_init: int, random: np.random.RandomState,
    classes: np.ndarray | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """Initial labels (n, V), from one cluster, the means of classes, and k-means++ centres.

    One cluster is a start only if the search selects a number of clusters; k-means++ then gets a
    random number. k-means++ uses the features of all views together in every second start, and each
    view alone in the other starts.

    Parameters
    ----------
    length : description length
    n_init : number of starts
    random : source of random numbers
    classes : (n,) classes of the samples, -1 if unknown; None without classes

    Raises
    ------
    ValueError
        If no start satisfies the hard cannot-links.
    """
    target, views = length.target, range(length.n_views)
    tables = [f.mean[target.unit] if v == 0 else f.mean for v, f in enumerate(length.features)]
    starts = []
    if any(length.counts_used):
        starts.append([np.zeros((length.n, k)) for k in length.sizes])
    if classes is not None:
        known = classes >= 0
        means = [
            np.stack([x[classes == c].mean(0) for c in np.unique(classes[known])]) for x in tables
        ]
        starts.append(
            [_distances(x, m[:k]) for x, m, k in zip(tables, means, length.sizes, strict=True)]
        )
    while len(starts) < max(n_init, 1):
        jointly = len(starts) % 2 == 0
        if jointly:
            least = min(length.sizes)
            k = random.randint(min(2, least), least + 1) if all(length.counts_used) else least
            starts.append([_seed_distances(np.concatenate(tables, 1), k, random)] * length.n_views)
            continue
        counts = [
            random.randint(1, k + 1) if used else k
            for k, used in zip(length.sizes, length.counts_used, strict=True)
        ]
        starts.append([_seed_distances(tables[v], counts[v], random) for v in views])
    feasible = [_assign(length, distances) for distances in starts[: max(n_init, 1)]]
    labels = [start for start in feasible if start is not None]
    if not labels:
        raise ValueError(
            "it is undecided whether any clustering satisfies the cannot-links, since no start "
            f"does; got {length.sizes[0]} clusters; raise n_clusters or n_init, or use "
            "constraints='soft'"
        )
    return labels


def _distances(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared distances (n, K) from centres (K, d), up to a constant per sample."""
    return (centres**2).sum(1) - 2 * x @ centres.T


def _seed_distances(x: np.ndarray, k: int, random: np.random.RandomState) -> np.ndarray:
    """Squared distances (n, K) from ``k`` k-means++ centres."""
    k = min(k, len(np.unique(x, axis=0)))
    return _distances(x, kmeans_plusplus(x, k, random_state=random)[0])


def _assign(length: InformedLength, distances: Sequence[np.ndarray]) -> np.ndarray | None:
    """Assign samples to near centres, subject to the hard constraints; return labels (n, V).

    ``distances`` has an array (n, K) per view. Samples of a unit share a cluster of the first view.
    The result is None if no labels are known that satisfy the cannot-links.
    """
    target = length.target
    labels = np.stack([cost.argmin(1) for cost in distances], 1)
    cost = np.full((target.n_units, length.sizes[0]), np.inf)
    cost[:, : distances[0].shape[1]] = group_sums(distances[0], target.unit, target.n_units)
    z = cost.argmin(1)
    hard = None if target.words is None else target.words.hard_links
    if hard is not None:
        z = hard.separate(z, cost)
        if z is None:
            return None
    labels[:, 0] = z[target.unit]
    return labels


def search_labels(
    length: InformedLength, starts: Sequence[np.ndarray], tol: float, max_rounds: int,
    progress: Callable[[int, float], None] = lambda i, total: None, n_improved: int | None = None,
) -> tuple[SearchResult, list[SearchResult]]:  # fmt: skip
    """Search from all starts, improve the shortest results by chains, and return the shortest.

    Parameters
    ----------
    length : description length; on return, its forest and effects are those of the best labels
    starts : initial labels (n, V)
    tol : smallest decrease of the length, in nats, that counts
    max_rounds : maximum numbers of accepted steps and proposals; see `InformedSearch`
    progress : function of the number of finished starts and of the shortest length
    n_improved : number of results of single moves from which proposals are made; by default, all

    Returns
    -------
    best : the shortest result
    results : results of all starts
    """
    search = InformedSearch(length, tol, max_rounds)
    results: list[SearchResult] = []
    many = length.n > _MOST_PROPOSALS
    for i, labels in enumerate(starts):
        if n_improved is None:
            results.append(search.improve(labels, splits=not many, chains=False))
        else:
            z, total = search.descend(labels)
            results.append(SearchResult(z, total, [total], True))
        progress(i + 1, min(result.total for result in results))
    order = np.argsort([result.total for result in results], kind="stable")
    distinct: dict[bytes, int] = {}
    for i in order.tolist():
        key = b"".join(factorize(column)[0].tobytes() for column in results[i].labels.T)
        distinct.setdefault(key, i)
    if n_improved is None:
        n_improved = len(starts) if length.n <= _FEW_ROWS else 0 if many else _IMPROVED
    for index in list(distinct.values())[:n_improved]:
        finished = search.improve(results[index].labels, splits=not many)
        results[index] = finished._replace(trace=results[index].trace + finished.trace[1:])
    best = min(results, key=lambda result: result.total)
    length.refit(best.labels)
    return best, results


# Reports


def cluster_moments(
    x: np.ndarray, z: np.ndarray, k: int, groups: np.ndarray, cost: ClusterCosts
) -> tuple[np.ndarray, np.ndarray]:
    """Means (K, d) of the clusters without the effects of the groups, and scales (K,).

    An empty cluster has the mean of all samples. The scales are mean squared distances from the
    means, or the scales of ``cost`` if clusters are isotropic.
    """
    if isinstance(cost, GaussianCosts) and groups.any():
        x = x - cost.effects[groups]
    size = np.bincount(z, minlength=k)
    means = cluster_means(group_sums(x, z, k), size)
    means = np.where(size[:, None] > 0, means, x.mean(0))
    if isinstance(cost, GaussianCosts) and cost.scales is not None:
        return means, cost.scales
    square = np.bincount(z, ((x - means[z]) ** 2).sum(1), minlength=k)
    return means, square / np.maximum(size, 1)


def words_saved(length: InformedLength, labels: np.ndarray) -> np.ndarray:
    """Nats (V,) that the joint code of labels (n, V) saves, compared with a view coded separately.

    The separate code of the labels of one view is added to the shortest joint code of the labels of
    all other views.
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
