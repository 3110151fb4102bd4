"""Initial labels of a mixed table: k-means of its numbers, discrete columns, and both."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from nrprob.methods.conditional.discrete_coordinates import chi_square_coordinates
from nrprob.methods.conditional.starts import make_starts
from nrprob.methods.conditional.table_data import TableData
from nrprob.statistics.rows import make_layout
from nrprob.statistics.weighted import column_variances, row_mean, row_products, total_weight

_START_RIDGE = 0.1  # share of the mean variance in the metrics of the starts


def _metric_maps(y: np.ndarray, exponents: Any, weights: np.ndarray | None) -> list[np.ndarray]:
    """Maps (p, p) that divide principal axes by their standard deviation to an exponent."""
    square = row_products(y, weights) / total_weight(len(y), weights)
    variances, axes = np.linalg.eigh(square)
    variances = (1 - _START_RIDGE) * np.maximum(variances, 0) + _START_RIDGE * variances.mean()
    return [axes * variances ** (-exponent / 2) for exponent in exponents]


def _standardised(y: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    deviation = np.sqrt(column_variances(y, weights))
    return y / np.where(deviation > 0, deviation, 1)


def start_coordinates(data: TableData, conditional: bool) -> list[np.ndarray]:
    """Tables of coordinates (n, p) for k-means: numbers, discrete columns, and both.

    ``conditional`` coordinates are those of residuals about the known groups.
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
    """Coordinates, "plain" or "aligned", and metric of all kinds of starts, in their order."""
    tables = ["numbers"] if data.one_component is not None else []
    tables += ["discrete"] if data.columns else []
    tables += ["both"] if len(tables) == 2 else []
    aligned = 1 < data.n_groups and data.n_groups * 5 * n_clusters <= data.total
    starts = ("plain", "aligned") if aligned else ("plain",)
    return list(itertools.product(tables, starts, exponents))


def initial_labels(
    data: TableData, n_clusters: int, n_init: int, exponents: Any, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Initial labels (n_init, n), and which of them (n_init,) are warmed up.

    The kinds of `start_kinds` take turns, without and with a warm-up.
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
    # Take turns: the first start of every kind, plain and warmed up, then the second ...
    labels = np.concatenate([labels.swapaxes(0, 1)] * 2, 1).reshape(-1, data.n_samples)
    warm = np.tile(np.repeat([False, True], len(names)), n_each)
    return labels[:n_init], warm[:n_init]


def unconditional_labels(
    data: TableData, n_clusters: int, exponents: Any, rng: np.random.Generator
) -> np.ndarray:
    """Initial labels (S, n) by k-means that does not use the known groups."""
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
