"""Local search for the labels of several views that minimise one description length.

Every accepted step lowers the description length. The search uses no random numbers. There are n
samples and V views. In a view, C units are in K clusters: the units of the first view are must-link
components, and the units of all other views are samples. Host code in NumPy and float64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import xlogy

from nrprob.engines.optimise.move_chains import improve_by_chains, improve_by_passes
from nrprob.methods.mdl.informed_length import InformedLength
from nrprob.methods.mdl.proposals import improve_labels
from nrprob.statistics.groups import group_sums
from nrprob.statistics.squared_distances import cluster_sums

_MOST_MOVES = 20_000_000  # up to this number of samples times cells, samples move between cells
_MOST_CHAINED = 1_000_000  # up to this number of samples times cells, these moves form chains


class SearchResult(NamedTuple):
    """Labels that a local search found, and their description length.

    Attributes
    ----------
    labels : (n, V) labels of n samples in V views
    total : description length of the labels in nats
    trace : description length after every accepted step
    converged : whether no further step shortens the description
    """

    labels: np.ndarray
    total: float
    trace: list[float]
    converged: bool


class CellObjective:
    """Objective of moves that change the labels of a sample jointly in several views.

    The labels of all other views are fixed. A *cell* is a combination of clusters, one of each of
    the joint views; samples move between cells. The class implements
    `nrprob.engines.optimise.move_chains.MoveObjective`. q samples may move; must-linked samples do
    not move. Moves that change a selected number of clusters are left out, since the codes of all
    views depend on this number.

    Parameters
    ----------
    length : description length of the labels of all views
    views : indices of the joint views
    labels : (n, V) current labels
    """

    def __init__(self, length: InformedLength, views: tuple[int, ...], labels: np.ndarray):
        self._length, self._views, self._labels = length, views, labels
        self._objectives = [
            length.view_objective(v, labels, skipped=next(u for u in views if u != v))
            for v in views
        ]
        self.sizes = tuple(length.sizes[v] for v in views)
        self._clusters = np.stack(np.unravel_index(np.arange(math.prod(self.sizes)), self.sizes))
        mass = length.features[0].mass
        single = mass[length.target.unit] == 1
        self.samples = np.flatnonzero(single if 0 in views else np.ones(length.n, bool))
        fixed = np.setdiff1d(np.arange(length.n), self.samples)
        self._fixed = np.bincount(self.cells(labels)[fixed], minlength=self._clusters.shape[1])

    def cells(self, labels: np.ndarray) -> np.ndarray:
        """Index (n,) of the cell of every sample, from labels (n, V)."""
        return np.ravel_multi_index(tuple(labels[:, self._views].T), self.sizes)

    def labels(self, z: np.ndarray) -> np.ndarray:
        """Labels (n, V) of all samples, from cells z (q,) of the samples that may move."""
        labels = self._labels.copy()
        labels[self.samples[:, None], np.array(self._views)] = self._clusters[:, z].T
        return labels

    def _units(self, i: int, labels: np.ndarray) -> np.ndarray:
        return self._length.unit_labels(self._views[i], labels)

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Description lengths (m,), up to a constant, for m choices of the cells z (m, q).

        q samples may move; all other samples keep their cells.
        """
        count = self._fixed + cluster_sums(z, np.ones(z.shape[1]), self._clusters.shape[1])
        result = -xlogy(count, count).sum(1)
        labels = [self.labels(cells) for cells in z]
        for i, objective in enumerate(self._objectives):
            result += objective.totals(np.stack([self._units(i, part) for part in labels]))
        return result

    def differences(self, z: np.ndarray, *, relaxed: bool = False) -> np.ndarray:
        """Changes (m, q, cells) of `totals` if one of q samples moves to a cell.

        ``z`` (m, q) are m choices of the cells before the move; see `MoveObjective.differences`.
        """
        return np.stack([self._differences(cells, relaxed) for cells in z])

    def _differences(self, z: np.ndarray, relaxed: bool) -> np.ndarray:
        count = self._fixed + np.bincount(z, minlength=self._clusters.shape[1])
        value, fewer = xlogy(count, count), np.maximum(count - 1, 0)
        joining, leaving = value - xlogy(count + 1, count + 1), value - xlogy(fewer, fewer)
        result = joining + leaving[z][:, None]
        labels = self.labels(z)
        for i, objective in enumerate(self._objectives):
            v, units = self._views[i], self._units(i, labels)
            change = objective.differences(units[None], relaxed=relaxed)[0]
            if self._length.counts_used[v]:
                size = np.bincount(units, minlength=objective.k)
                change = change + np.where(size == 0, np.inf, 0)
                change[size[units] == 1] = np.inf
                change[np.arange(units.size), units] = 0
            index = self._length.target.unit[self.samples] if v == 0 else self.samples
            result += change[index][:, self._clusters[i]]
        result[np.arange(z.size), z] = 0.0
        return result

    def violations(self, z: np.ndarray) -> np.ndarray | None:
        """Return None, since fits of several views have no limits on cluster sizes.

        See `MoveObjective.violations`.
        """
        return None

    def together(self, units: np.ndarray) -> np.ndarray:
        """Select samples that may move at the same time.

        ``units`` are indices among the q samples that may move, in order of preference. Hard
        cannot-links connect no two of the selected samples.
        """
        if 0 not in self._views:
            return units
        index = self._length.target.unit[self.samples]
        chosen = self._objectives[self._views.index(0)].together(index[units])
        return units[np.isin(index[units], chosen)]


def tree_messages(
    length: InformedLength, root: int, labels: np.ndarray, changes: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Find the best labels of every unit jointly in all views of one tree of the forest.

    Min-sum messages minimise an approximate description length: the current frequencies of the
    clusters determine the lengths of the code words of the labels.

    Parameters
    ----------
    length : description length of the labels of all views
    root : index of the view that is the root of the tree
    labels : (n, V) current labels
    changes : for every view, changes (C, K) of the length of the features by moves of one unit

    Returns
    -------
    labels : (n, V) best labels; the labels of views outside of the tree are unchanged
    gain : (C,) decrease of the approximate length if one unit of the root view gets its best labels
    """
    rows = np.arange(length.n)
    unit = length.target.unit if root == 0 else rows
    best: dict[int, np.ndarray] = {}
    edges = np.zeros(length.n)  # costs of the current labels of all views below the root

    def costs_below(v: int) -> np.ndarray:
        """Costs (n, K) of the clusters of view v, with the best labels of all descendants of v."""
        cost = np.zeros((length.n, length.sizes[v]))
        for w in np.flatnonzero(length.parents == v).tolist():
            table = np.zeros((length.sizes[v], length.sizes[w]))
            np.add.at(table, (labels[:, v], labels[:, w]), 1)
            share = (table + 0.5) / (table + 0.5).sum(1, keepdims=True)
            below = (costs_below(w) + changes[w])[:, None] - np.log(share)  # (n, K_v, K_w)
            best[w] = below.argmin(2)
            cost += below.min(2)
            edges[:] -= np.log(share[labels[:, v], labels[:, w]])
        return cost

    cost = group_sums(costs_below(root), unit, int(unit.max()) + 1) + changes[root]
    present = length.unit_labels(root, labels)
    counts = np.bincount(present, minlength=length.sizes[root]) + 0.5
    words = -np.log(counts / counts.sum())
    cost += words + length.target_changes(root, labels)
    now = words[present] + group_sums(edges, unit, len(cost))
    new = labels.copy()
    new[:, root] = length.sample_labels(root, cost.argmin(1))

    def assign(v: int) -> None:
        for w in np.flatnonzero(length.parents == v).tolist():
            new[:, w] = best[w][rows, new[:, v]]
            assign(w)

    assign(root)
    return new, now - cost.min(1)


class InformedSearch:
    """Local search for labels of several views with the shortest description.

    Parameters
    ----------
    length : description length of the labels of all views
    tol : smallest decrease of the length, in nats, that counts as an improvement
    max_rounds : `improve` stops at the end of a pass over all views, once more steps than this
        number are accepted. Also the maximum number of accepted proposals in a view within a step
    """

    def __init__(self, length: InformedLength, tol: float, max_rounds: int):
        self.length, self.tol, self.max_rounds = length, tol, max_rounds

    def _joint_views(self) -> list[tuple[int, ...]]:
        """Sets of views in which samples move jointly, as tuples of indices.

        With the code by one table, the only set has all views. With a forest, every set has a view
        and its parent. With independent codes, there are no sets.
        """
        length = self.length
        if length.n_views == 1 or length.code == "independent":
            return []
        groups = [tuple(range(length.n_views))]
        if length.code == "forest":
            groups = [(int(u), v) for v, u in enumerate(length.parents) if u >= 0]
        return [
            views
            for views in groups
            if length.n * math.prod(length.sizes[v] for v in views) <= _MOST_MOVES
        ]

    def descend(self, labels: np.ndarray) -> tuple[np.ndarray, float]:
        """Move single units from labels (n, V) while that shortens the description.

        Units move in one view, or jointly in several views. The method returns the labels (n, V)
        and their description length.
        """
        length = self.length
        length.refit(labels)
        total = length.total(labels)
        while True:
            new = labels.copy()
            for v in range(length.n_views):
                objective = length.view_objective(v, new)
                z = improve_by_passes(objective, length.unit_labels(v, new), self.tol)
                new[:, v] = length.sample_labels(v, z)
            for views in self._joint_views():
                cells = CellObjective(length, views, new)
                z = improve_by_passes(cells, cells.cells(new)[cells.samples], self.tol)
                new = cells.labels(z)
            new = self._move_through_trees(new)
            length.refit(new)
            shorter = length.total(new)
            if not shorter < total - self.tol:
                length.refit(labels)
                return labels, total
            labels, total = new, shorter

    def _move_through_trees(self, labels: np.ndarray) -> np.ndarray:
        """Move units jointly in all views of a tree, while that shortens the description.

        The trees are the trees of the forest over the views. `tree_messages` gives approximately
        best labels of every unit, and the gains. The first 1, 2, 4, ... units, in the order of
        their gains, get these labels. The number of units with the smallest exact description
        length is accepted. Labels have shape (n, V).
        """
        length = self.length
        if length.code != "forest" or (length.parents < 0).all():
            return labels
        current = length.total(labels)
        while True:
            changes = [
                length.features[v].changes(length.unit_labels(v, labels)[None])[0]
                for v in range(length.n_views)
            ]
            best, best_total = labels, current
            for root in np.flatnonzero(length.parents < 0):
                if not (length.parents == root).any():
                    continue
                unit = length.target.unit if root == 0 else np.arange(length.n)
                proposal, gain = tree_messages(length, int(root), labels, changes)
                order = np.argsort(-gain, kind="stable")[: int((gain > self.tol).sum())]
                if root == 0 and length.target.words is not None:
                    order = length.target.words.together(order)
                powers = 2 ** np.arange(order.size.bit_length())
                for count in np.unique(np.append(powers[powers < order.size], order.size)):
                    moved = np.isin(unit, order[:count])
                    new = np.where(moved[:, None], proposal, labels)
                    total = length.total(new)
                    if total < best_total - self.tol:
                        best, best_total = new, total
            if best_total == current:
                return labels
            labels, current = best, best_total

    def improve(
        self, labels: np.ndarray, *, splits: bool = True, chains: bool = True
    ) -> SearchResult:
        """Improve labels (n, V) by moves and proposals, until no proposal shortens the description.

        Proposals merge clusters. With ``splits``, they also split, exchange and redivide clusters,
        or adopt other labelings; with ``chains``, they also make chains of moves.
        """
        labels, total = self.descend(labels)
        trace, converged, rounds = [total], True, 0
        improved = True
        while improved and rounds <= self.max_rounds:
            improved = False
            steps = self._view_steps(splits, chains)
            for propose in (*steps, self._chain_cells) if chains else steps:
                new, finished = propose(labels)
                converged &= finished
                if new is None:
                    continue
                new, shorter = self.descend(new)
                if shorter < total - self.tol:
                    labels, total, improved = new, shorter, True
                    trace.append(total)
                    rounds += 1
                else:
                    self.length.refit(labels)
        return SearchResult(labels, total, trace, converged and not improved)

    def _view_steps(self, splits: bool, chains: bool):
        def step(v):
            return lambda labels: self._improve_view(v, labels, splits, chains)

        return [step(v) for v in range(self.length.n_views)]

    def _improve_view(
        self, v: int, labels: np.ndarray, splits: bool, chains: bool
    ) -> tuple[np.ndarray | None, bool]:
        """Improve the labels of view ``v`` by proposals, from labels (n, V) of all views.

        ``splits`` and ``chains`` select the types of proposals, as in `improve`.

        Returns
        -------
        labels : (n, V) new labels, or None if no proposal shortens the description
        converged : whether the search in this view has converged
        """
        length = self.length
        objective = length.view_objective(v, labels)
        present = length.unit_labels(v, labels)
        # Clusters may split by the clusters of other views, or be replaced by them.
        first = length.target.first if v == 0 else slice(None)
        others = [u for u in range(length.n_views) if u != v]
        labelings = [labels[first, u] for u in others] if length.code != "independent" else []
        if v == 0 and length.target.classes is not None:
            labelings.append(length.target.classes[first])
        z, _, converged = improve_labels(
            objective,
            present,
            self.tol,
            self.max_rounds,
            labelings,
            splits=splits,
            chains=chains,
        )
        if np.array_equal(z, present):
            return None, converged
        new = labels.copy()
        new[:, v] = length.sample_labels(v, z)
        return new, converged

    def _chain_cells(self, labels: np.ndarray) -> tuple[np.ndarray | None, bool]:
        """Make one chain of moves of samples between cells, from labels (n, V).

        A move between cells changes the labels of a sample jointly in several views.

        Returns
        -------
        labels : (n, V) new labels, or None if no chain shortens the description
        converged : True
        """
        for views in self._joint_views():
            if self.length.n * math.prod(self.length.sizes[v] for v in views) > _MOST_CHAINED:
                continue
            cells = CellObjective(self.length, views, labels)
            z = improve_by_chains(cells, cells.cells(labels)[cells.samples], self.tol)
            if z is not None:
                return cells.labels(z), True
        return None, True
