"""Search for the labels of several views from several initial values, and summarise the result.

n samples have labels in V views. A view has d features and K clusters. Host code in NumPy and
float64.
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
    """Make the description length of the features of one view.

    `nrprob.methods.mdl.feature_lengths` defines the classes of the result and their parameters.

    Parameters
    ----------
    x, unit, groups, k : features (n, d), units and known groups (n,) of the samples, and largest
        number of clusters
    features : "gaussian", "bernoulli" or "multinomial"
    covariance : "isotropic", "diagonal", "full" or "full_cluster", for gaussian features
    weight, bounds : factor of the squared distances, and bounds of the scale or of the variances
    shared, centres_coded : whether all isotropic clusters share one scale, and whether the length
        includes the means of isotropic clusters
    """
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
    """Name of the form of covariances that the parameters of an estimator select.

    ``covariance``, ``sigma`` and ``geometry`` are parameters of `nrprob.MDLMultiView` or
    `nrprob.MDLConstrained`. The codes for ``sigma="cluster"`` and ``geometry="exp"`` have isotropic
    clusters. ``selected`` states whether a number of clusters is selected, and ``grouped`` whether
    there are known groups.

    Raises
    ------
    ValueError
        If the parameters contradict each other, or if ``sigma="cluster"`` with known groups.
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
    """Initial labels (n, V) of all restarts.

    A restart begins with one cluster, with the means of the known classes, or with k-means++
    centres. If the search selects a number of clusters, the first restart has one cluster, and
    k-means++ gets random numbers of clusters. k-means++ uses the features of all views together in
    every second restart, and of each view alone in the remaining restarts.

    Parameters
    ----------
    length : description length of the labels of all views
    n_init : number of restarts
    random : source of random numbers
    classes : (n,) known classes of the samples, -1 if unknown; None without classes

    Returns
    -------
    list of labels (n, V); initial labels that cannot satisfy the hard cannot-links are left out

    Raises
    ------
    ValueError
        If no initial labels are found that satisfy the hard cannot-links.
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
    """Squared distances (n, K) of samples x (n, d) from K centres (K, d), up to a constant.

    The constant, which the result leaves out, is the squared norm of the sample.
    """
    return (centres**2).sum(1) - 2 * x @ centres.T


def _seed_distances(x: np.ndarray, k: int, random: np.random.RandomState) -> np.ndarray:
    """Squared distances (n, K) of samples x (n, d) from K k-means++ centres, as in `_distances`.

    K is the smaller of ``k`` and the number of distinct samples.
    """
    k = min(k, len(np.unique(x, axis=0)))
    return _distances(x, kmeans_plusplus(x, k, random_state=random)[0])


def _assign(length: InformedLength, distances: Sequence[np.ndarray]) -> np.ndarray | None:
    """Assign samples to the nearest centres in every view; return labels (n, V).

    In the first view, the labels satisfy the hard constraints. The result is None if the function
    finds no labels that satisfy the cannot-links. ``distances`` has, for every view, squared
    distances (n, K) of the samples from the centres.
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
    """Search from the initial labels of all restarts, and return the shortest result.

    By default, every restart makes moves and proposals without chains of moves; the shortest
    results are then improved with chains of moves. With ``n_improved``, every restart makes single
    moves only; proposals and chains of moves then start from the shortest results.

    Parameters
    ----------
    length : description length of the labels of all views; on return, its forest and its effects of
        known groups are fitted to the best labels
    starts : for every restart, initial labels (n, V)
    tol : smallest decrease of the length, in nats, that counts as an improvement
    max_rounds : maximum numbers of accepted steps and proposals; see `InformedSearch`
    progress : function that is called with the number of finished restarts and the shortest length
    n_improved : number of shortest results from which proposals are made; None for the default

    Returns
    -------
    best : shortest result
    results : results of all restarts
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
    """Means and scales of the clusters of one view, after subtraction of known-group effects.

    Parameters
    ----------
    x, z, k : features (n, d), labels (n,) and number K of clusters
    groups : (n,) known group of every sample
    cost : function with the fitted parameters of the clusters

    Returns
    -------
    means : (K, d) means of the clusters; the mean of all samples for an empty cluster
    scales : (K,) mean squared distances of the samples from their cluster means; fitted scales if
        clusters are isotropic
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
    """Nats (V,) that the joint code of the labels (n, V) saves for each of V views.

    Without the joint code, the labels of the view are coded by themselves, and the labels of all
    other views by their shortest joint code. ``length`` determines the joint code.
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
    """Largest canonical correlation (V, V) between the residuals of every two of V views.

    ``residuals`` has an array (n, d) per view; d may differ by view.
    """
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
