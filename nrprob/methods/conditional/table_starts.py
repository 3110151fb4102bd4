"""Initial labels of a mixed or incomplete table.

Separate runs of k-means use the numeric columns, the discrete columns, and all columns together.
Sizes: n samples, p coordinates in which k-means runs.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from nrprob.methods.conditional.discrete_coordinates import chi_square_coordinates
from nrprob.methods.conditional.starts import make_starts
from nrprob.methods.conditional.table_data import TableData
from nrprob.statistics.rows import make_layout
from nrprob.statistics.weighted import column_variances, row_mean, row_products, total_weight

_START_RIDGE = 0.1  # weight of the mean variance in the variances that define a metric


def _metric_maps(y: np.ndarray, exponents: Any, weights: np.ndarray | None) -> list[np.ndarray]:
    """Linear maps (p, p) from coordinates to the space of k-means, one per whitening exponent.

    A map divides every principal component of ``y`` (n, p) by the standard deviation of the
    component to the power of the exponent.
    """
    square = row_products(y, weights) / total_weight(len(y), weights)
    variances, axes = np.linalg.eigh(square)
    variances = (1 - _START_RIDGE) * np.maximum(variances, 0) + _START_RIDGE * variances.mean()
    return [axes * variances ** (-exponent / 2) for exponent in exponents]


def _standardised(y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Scale the columns of ``y`` (n, p) to standard deviation 1; constant columns are unchanged."""
    deviation = np.sqrt(column_variances(y, weights))
    return y / np.where(deviation > 0, deviation, 1)


def start_coordinates(data: TableData, conditional: bool) -> list[np.ndarray]:
    """Coordinates (n, p) for k-means: of numeric columns, of discrete columns, and of all columns.

    If the table has only numeric or only discrete columns, there is one array of coordinates, else
    there are three.

    Parameters
    ----------
    data : the table
    conditional : whether to subtract the means of the known groups
    """
    parts = []
    if data.one_component is not None:
        y = data.one_component.completed + (
            0 if conditional else data.one_component.means[data.groups]
        )
        parts.append(y - row_mean(y, data.mass))
    if data.columns:
        groups = data.groups if conditional else np.zeros_like(data.groups)
        n_groups = data.n_groups if conditional else 1
        coded = [chi_square_coordinates(c, groups, n_groups) for c in data.columns]
        parts.append(np.concatenate(coded, 1))
    if len(parts) == 2:
        parts.append(np.concatenate([_standardised(parts[0], data.mass), parts[1]], 1))
    return parts


def start_kinds(data: TableData, n_clusters: int, exponents: Any) -> list[tuple[str, str, float]]:
    """Types of initial labels, in the order of the restarts.

    Every type is a tuple of coordinates ("numbers", "discrete" or "both"), type of k-means
    ("plain" for all rows, "aligned" within known groups), and whitening exponent. The type
    "aligned" is left out for a single known group, and if known groups have fewer than five samples
    per cluster, on average.
    """
    tables = ["numbers"] if data.one_component is not None else []
    tables += ["discrete"] if data.columns else []
    tables += ["both"] if len(tables) == 2 else []
    aligned = 1 < data.n_groups and data.n_groups * 5 * n_clusters <= data.total
    starts = ("plain", "aligned") if aligned else ("plain",)
    return list(itertools.product(tables, starts, exponents))


def initial_labels(
    data: TableData, n_clusters: int, n_init: int, exponents: Any, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the initial labels of all restarts.

    The restarts alternate between the types of `start_kinds`, without and with a warm-up.

    Parameters
    ----------
    data : the table
    n_clusters : number of clusters
    n_init : number of restarts
    exponents : whitening exponents
    rng : random number generator

    Returns
    -------
    labels : (n_init, n) initial labels
    warm : (n_init,) whether a warm-up comes first
    """
    names = start_kinds(data, n_clusters, exponents)
    aligned = any(start == "aligned" for _, start, _ in names)
    n_each = max(-(-n_init // (2 * len(names))), 1)
    layout = make_layout(data.groups, data.n_groups)
    kinds = []
    for y in start_coordinates(data, True):
        maps = _metric_maps(y, exponents, data.mass)
        labels = make_starts(
            y, layout, data.n_groups, maps, n_clusters, n_each, rng, aligned=aligned, tries=1,
            weights=data.mass,
        )  # fmt: skip
        kinds.append(labels.reshape(-1, n_each, data.n_samples))
    labels = np.concatenate(kinds)
    # Order of the restarts: the first labels of every type without warm-up, then the same labels
    # with warm-up, then the second labels of every type, and so on.
    labels = np.concatenate([labels.swapaxes(0, 1)] * 2, 1).reshape(-1, data.n_samples)
    warm = np.tile(np.repeat([False, True], len(names)), n_each)
    return labels[:n_init], warm[:n_init]


def unconditional_labels(
    data: TableData, n_clusters: int, exponents: Any, rng: np.random.Generator
) -> np.ndarray:
    """Initial labels (S, n) of S restarts, by k-means that ignores the known groups.

    There is one restart per whitening exponent and type of coordinates of `start_coordinates`. If
    the table has numeric and discrete columns, k-means of the discrete columns alone is left out.
    The arguments are as in `initial_labels`.
    """
    tables = start_coordinates(data, False)
    if len(tables) == 3:
        del tables[1]
    groups = np.zeros_like(data.groups)
    layout = make_layout(groups, 1)
    starts = [
        make_starts(
            y,
            layout,
            1,
            _metric_maps(y, exponents, data.mass),
            n_clusters,
            1,
            rng,
            aligned=False,
            weights=data.mass,
        )
        for y in tables
    ]
    return np.concatenate(starts)
