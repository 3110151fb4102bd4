"""Exact description lengths of multi-view labelings, and of all moves of single rows between cells.

A *cell* is a combination of clusters, one of each view. A row moves in several views at once, which
no sequence of moves in single views need allow. Host code in NumPy and float64. n rows have labels
in V views; view v has K_v clusters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import xlogy

from nrprob.engines.optimise.move_chains import improve_by_chains, improve_by_passes
from nrprob.methods.mdl.configurations import Configuration
from nrprob.statistics.squared_distances import DistanceLengths, cluster_sums

_MOST_MOVES = 20_000_000  # rows times cells up to which rows move in all views at once
_MOST_CHAINED = 1_000_000  # rows times cells up to which chains of moves are made
_CHUNK = 4_000_000  # entries of a table that are computed at a time


class ViewClusters(NamedTuple):
    """Sizes (K,), centres (K, d), scatters (K,) and mean squared distances (K,) of a view."""

    size: np.ndarray
    centres: np.ndarray
    scatter: np.ndarray
    scales: np.ndarray


class Evaluation(NamedTuple):
    """Lengths of one labeling, and the clusters of its views.

    Attributes
    ----------
    total : length without the constant of the configuration
    partition : length of the labels, coded by their relative frequencies
    distance : length of the squared distances, without constants
    views : clusters of every view
    """

    total: float
    partition: float
    distance: float
    views: list[ViewClusters]


class ViewLengths:
    """Description lengths of labelings (n, V) of one configuration, without its constant.

    Attributes
    ----------
    configuration : numbers of clusters, and groups of views that are coded jointly
    distances : for every view, the lengths of the squared distances
    """

    def __init__(
        self,
        tables: Sequence[np.ndarray],
        configuration: Configuration,
        weights: np.ndarray,
        bounds: tuple[float, float],
        shared: bool,
    ):
        self.configuration, self.n = configuration, len(tables[0])
        ones, zeros = np.ones(self.n, np.int64), np.zeros(self.n)
        self.distances = [
            DistanceLengths(x.astype(np.float64), ones, zeros, k, float(w), bounds, shared)
            for x, k, w in zip(tables, configuration.sizes, weights, strict=True)
        ]

    def evaluate(self, labels: np.ndarray) -> Evaluation:
        """Lengths and clusters of labels (n, V)."""
        words = 0.0
        for group in self.configuration.view_groups:
            count = np.unique(labels[:, group], axis=0, return_counts=True)[1]
            words += float(xlogy(self.n, self.n) - xlogy(count, count).sum())
        total, views = words, []
        for v, lengths in enumerate(self.distances):
            size, centres, scatter = lengths.cluster_statistics(labels[None, :, v])
            scales = lengths.scales(size, scatter)
            total += float(lengths.total(size, scatter)[0])
            views.append(ViewClusters(size[0], centres[0], scatter[0], scales[0]))
        distance = sum(
            lengths.weight * (size * (np.log(s) - 1) + r / s).sum()
            for lengths, (size, _, r, s) in zip(self.distances, views, strict=True)
        )
        return Evaluation(total, words, float(distance), views)

    def view_totals(self, v: int, z: np.ndarray) -> np.ndarray:
        """Lengths (m,) of the distances of view ``v`` for labels (m, n)."""
        size, _, scatter = self.distances[v].cluster_statistics(z)
        return self.distances[v].total(size, scatter)


class CellMoves:
    """Objective of moves of rows in some views of a group, with all other labels fixed.

    The clusters of the objective are the cells of the moved views; see
    `nrprob.engines.optimise.move_chains.MoveObjective`.

    Attributes
    ----------
    lengths : lengths of the labelings
    moved : indices of the moved views
    sizes : numbers of clusters of the moved views
    rest : (n,) cell of every row in the other views of the group
    """

    def __init__(
        self,
        lengths: ViewLengths,
        group: tuple[int, ...],
        moved: tuple[int, ...],
        labels: np.ndarray,
    ):
        self.lengths, self.moved = lengths, moved
        self.sizes = tuple(lengths.configuration.sizes[v] for v in moved)
        others = [v for v in group if v not in moved]
        self.rest = np.zeros(len(labels), np.int64)
        if others:
            self.rest = np.unique(labels[:, others], axis=0, return_inverse=True)[1].ravel()
        self._n_rest = int(self.rest.max()) + 1
        self._clusters = np.stack(np.unravel_index(np.arange(math.prod(self.sizes)), self.sizes))

    def cells(self, labels: np.ndarray) -> np.ndarray:
        """Cells (n,) of labels (n, V)."""
        return np.ravel_multi_index(tuple(labels[:, self.moved].T), self.sizes)

    def labels_of(self, z: np.ndarray) -> np.ndarray:
        """Labels (..., moved views) of cells (...)."""
        return np.stack(np.unravel_index(z, self.sizes), -1)

    def _counts(self, z: np.ndarray) -> np.ndarray:
        """Numbers of rows (m, cells, cells of the other views)."""
        index = z * self._n_rest + self.rest
        size = self._clusters.shape[1] * self._n_rest
        return cluster_sums(index, np.ones(z.shape[1]), size).reshape(len(z), -1, self._n_rest)

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Lengths (m,) of cells (m, n), without the labels and views that are fixed."""
        step = max(1, _CHUNK // z.shape[1])
        if len(z) > step:
            return np.concatenate([self.totals(z[i : i + step]) for i in range(0, len(z), step)])
        count = self._counts(z)
        result = -xlogy(count, count).sum((1, 2))
        for i, v in enumerate(self.moved):
            result = result + self.lengths.view_totals(v, self._clusters[i][z])
        return result

    def differences(self, z: np.ndarray, *, relaxed: bool = False) -> np.ndarray:
        """Change (m, n, cells) of the length if one row alone moves to another cell."""
        step = max(1, _CHUNK // (z.shape[1] * self._clusters.shape[1]))
        if len(z) > step:
            return np.concatenate(
                [self.differences(z[i : i + step]) for i in range(0, len(z), step)]
            )
        # Change of the length of the labels: a row leaves one count and joins another.
        count = self._counts(z)
        value = xlogy(count, count)
        joining = value - xlogy(count + 1, count + 1)
        leaving = value - xlogy(np.maximum(count - 1, 0), np.maximum(count - 1, 0))
        state = np.arange(len(z))[:, None]
        result = np.moveaxis(joining, 1, 2)[state, self.rest]
        result += leaving[state, z, self.rest][:, :, None]
        for i, v in enumerate(self.moved):
            distances, labels = self.lengths.distances[v], self._clusters[i][z]
            change = distances.changes(labels, *distances.cluster_statistics(labels))
            result += change[:, :, self._clusters[i]]
        np.put_along_axis(result, z[:, :, None], 0.0, 2)
        return result

    def violations(self, z: np.ndarray) -> None:
        """There are no limits on sizes."""

    def together(self, units: np.ndarray) -> np.ndarray:
        """All rows may move at the same time."""
        return units


def shorten_description(lengths: ViewLengths, labels: np.ndarray, tol: float) -> np.ndarray:
    """Move rows between cells, and make chains of such moves, while the description gets shorter.

    Rows move in all views of a group at once, or in one view after another if there are too many
    cells.

    Parameters
    ----------
    lengths : lengths of the labelings
    labels : (n, V) initial labels
    tol : smallest decrease of the length, in nats, that counts

    Returns
    -------
    (n, V) labels that no single move improves by more than ``tol``
    """
    labels = labels.copy()
    for group in lengths.configuration.view_groups:
        cells = math.prod(lengths.configuration.sizes[v] for v in group)
        jointly = len(labels) * cells <= _MOST_MOVES
        improved = True
        while improved:
            improved = False
            for moved in (group,) if jointly else tuple((v,) for v in group):
                moves = CellMoves(lengths, group, moved, labels)
                start = moves.cells(labels)
                z = _improve(moves, start, tol)
                labels[:, moved] = moves.labels_of(z)
                improved |= not jointly and not np.array_equal(z, start)
    return labels


def _improve(moves: CellMoves, z: np.ndarray, tol: float) -> np.ndarray:
    """Move rows, and make chains while they shorten the description."""
    while True:
        z = improve_by_passes(moves, z, tol)
        if z.size * math.prod(moves.sizes) > _MOST_CHAINED:
            return z
        chain = improve_by_chains(moves, z, tol)
        if chain is None:
            return z
        z = chain
