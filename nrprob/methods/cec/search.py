"""Restarts of the local search of cross-entropy clustering: initial partitions, perturbations.

Sizes: N rows with padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances_argmin

from nrprob.engines.optimise.local_search import LocalSearch, Partition, SearchProblem

_STARTS = 5  # initial partitions; further restarts perturb the best partition
_MOST_RESEEDED = 3  # largest number of clusters that a perturbation partitions again


@dataclass(frozen=True)
class SearchOutcome:
    """Final partitions of all restarts, and the course of the search for the best partition.

    Attributes
    ----------
    partitions : final partition of every restart
    trace : objective after every step of the search that led to the best partition, without the
        constant of the objective
    n_clusters_trace : number of clusters after every step of this search
    """

    partitions: list[Partition]
    trace: np.ndarray
    n_clusters_trace: np.ndarray


def search_partition(
    problem: SearchProblem,
    init: str | np.ndarray,
    n_init: int,
    random: np.random.RandomState,
    report: Any = None,
) -> SearchOutcome:
    """Search from several initial partitions, and improve the best result further.

    The first initial partition is a single cluster, unless ``init`` has labels. The next initial
    partitions are by k-means++ or at random. Restarts beyond the fifth perturb the best partition:
    they partition the rows of one to three near clusters again. Labels in ``init`` are the only
    initial partition, without perturbations.

    Parameters
    ----------
    problem : objective and limits
    init : "k-means++", "random", or initial labels (N,)
    n_init : number of restarts
    random : random number generator
    report : function that is called after every restart, with the number of finished restarts and
        their smallest objective (without its constant)
    """
    search = LocalSearch(problem)
    partitions: list[Partition] = []
    traces: list[tuple[list[float], list[int]]] = []
    n_starts = 1 if not isinstance(init, str) else min(n_init, _STARTS)
    for i in range(n_starts):
        search.trace, search.n_clusters_trace = [], []
        labels = _initial_labels(problem, init if i or not isinstance(init, str) else "one", random)
        partition = search.improve(search.descend([labels])[0], compound=False)
        partitions.append(partition)
        traces.append((search.trace, search.n_clusters_trace))
        if report is not None:
            report(len(partitions), min(p.value for p in partitions))
    chosen = int(np.argmin([p.value for p in partitions]))
    search.trace, search.n_clusters_trace = traces[chosen]
    best = partitions[chosen] = search.improve(partitions[chosen])
    for _ in range(n_init - n_starts if isinstance(init, str) else 0):
        labels = _reseed_clusters(problem, best, random)
        new = LocalSearch(problem)
        partition = new.improve(new.descend([labels])[0], compound=False)
        if partition.value < best.value - float(problem.limits.tolerance):
            partition = best = search.improve(partition)
        partitions.append(partition)
        if report is not None:
            report(len(partitions), best.value)
    return SearchOutcome(partitions, np.array(search.trace), np.array(search.n_clusters_trace))


def _initial_labels(
    problem: SearchProblem, init: str | np.ndarray, random: np.random.RandomState
) -> np.ndarray:
    """Initial labels (N,) of the rows by the method ``init``.

    ``init`` is "one" for a single cluster, "k-means++", "random", or the labels themselves.
    """
    n, k = len(problem.features), problem.max_clusters
    if not isinstance(init, str):
        return init.astype(np.int32)
    if init == "one":
        return np.zeros(n, np.int32)
    if init == "random":
        return random.randint(k, size=n).astype(np.int32)
    rows = np.flatnonzero(np.asarray(problem.rows.mass).reshape(-1) > 0)
    labels = np.zeros(n, np.int32)
    labels[rows] = _plus_plus_labels(problem, rows, k, random)
    return labels


def _plus_plus_labels(
    problem: SearchProblem, rows: np.ndarray, k: int, random: np.random.RandomState
) -> np.ndarray:
    """Labels of the rows with the indices ``rows``: the nearest of ``k`` k-means++ centres."""
    x = problem.features[rows]
    mass = np.asarray(problem.rows.mass).reshape(-1)[rows]
    centres, _ = kmeans_plusplus(x, min(k, len(rows)), sample_weight=mass, random_state=random)
    return pairwise_distances_argmin(x, centres).astype(np.int32)


def _reseed_clusters(
    problem: SearchProblem, partition: Partition, random: np.random.RandomState
) -> np.ndarray:
    """Labels (N,) with a new partition of the rows of one to three near clusters by k-means++.

    The number of clusters of these rows stays the same, or changes by one.
    """
    existing = np.flatnonzero(partition.sizes > 0)
    first = random.choice(existing)
    # The other clusters are near the first: probabilities are halved with every rank.
    near = partition.merges[first]
    near = np.where(np.isfinite(near), near, partition.merges[:, first])
    others = existing[existing != first]
    others = others[np.argsort(near[others], kind="stable")]
    count = min(random.randint(_MOST_RESEEDED), len(others))
    chance = 0.5 ** np.arange(len(others))
    chosen = [first]
    if count:
        chosen += list(random.choice(others, count, replace=False, p=chance / chance.sum()))
    room = problem.max_clusters - len(existing)
    k = max(len(chosen) + random.randint(-1, 2 if room else 1), 1)
    free = np.flatnonzero(partition.sizes == 0)
    slots = np.r_[chosen, free[: max(k - len(chosen), 0)]].astype(np.int32)
    mass = np.asarray(problem.rows.mass).reshape(-1)
    rows = np.flatnonzero(np.isin(partition.labels, chosen) & (mass > 0))
    labels = partition.labels.astype(np.int32).copy()
    labels[rows] = slots[_plus_plus_labels(problem, rows, k, random)]
    return labels
