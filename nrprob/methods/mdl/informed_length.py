r"""One description length for several views, pairs, labels and known groups.

The labels z_v of n samples in V views minimise

.. math:: L(z_1, ..., z_V) = \sum_v F_v(z_v) + W(z_1, ..., z_V) + Y(z_1)

F_v is the length of the features of view v and of their parameters. W is the length of the labels,
which are coded jointly, subject to must-links and cannot-links. Y is the length of the known
classes given the clusters of the first view. If the number of clusters of a view is selected from 1
to K_max, F_v includes log K_max. All lengths are in nats.

Host code in NumPy and float64. Pairs and classes refer to the first view. A *unit* has one label:
the units of the first view are must-link components, and the units of all other views are samples.
*Words* are code words of labels, one per unit; see `nrprob.methods.mdl.label_codes`. C units of a
view are in K clusters; there are G known groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import xlogy

from nrprob.codelength import multinomial_complexity
from nrprob.methods.mdl.count_tables import CountTable, SizeTable, one_hot
from nrprob.methods.mdl.feature_lengths import ClusterCovarianceLengths, FeatureLengths
from nrprob.methods.mdl.label_forests import (
    edge_length,
    forest_choice,
    root_length,
    shortest_forest,
)
from nrprob.methods.mdl.linked_words import LinkedWords
from nrprob.methods.mdl.sizes import SizeLimits
from nrprob.methods.mdl.soft_words import SoftWords
from nrprob.methods.mdl.view_objective import ViewObjective
from nrprob.statistics.groups import group_sums


@dataclass
class Target:
    """Side information about the clusters of the first view.

    Attributes
    ----------
    unit : (n,) must-link component of every sample; the code calls components units
    words : code words of the labels under cannot-links or soft pairs; None without such pairs
    classes : (n,) known class of every sample, -1 if unknown; None without classes
    groups : (n,) known group of every sample; None unless labels are coded given the known groups
    limits : limits on the numbers of samples per cluster; None without limits
    complexities : (K + 1,) parametric complexities of labels in 0, 1, ..., K clusters within the
        limits; None unless labels are coded given the limits
    """

    unit: np.ndarray
    words: LinkedWords | SoftWords | None = None
    classes: np.ndarray | None = None
    groups: np.ndarray | None = None
    limits: SizeLimits | None = None
    complexities: np.ndarray | None = None

    def __post_init__(self):
        self.n_units = int(self.unit.max()) + 1
        self.first = np.unique(self.unit, return_index=True)[1]


@dataclass
class InformedLength:
    """Description length L of the labels (n, V) of n samples in V views, and the parts of L.

    Attributes
    ----------
    features : lengths of the features of every view
    sizes : largest number of clusters of every view
    counts_used : for every view, whether the code has words for the clusters with samples only; if
        False, the code has words for the number of clusters in ``sizes``
    code : joint code of the labels: "table", "forest" or "independent"; see
        `nrprob.methods.mdl.label_forests`
    target : side information about the clusters of the first view
    constant : part of the length that does not depend on the labels
    parents : (V,) parent of every view in the forest, -1 for roots; `refit` sets the parents
    """

    features: Sequence[FeatureLengths]
    sizes: tuple[int, ...]
    counts_used: tuple[bool, ...]
    code: str
    target: Target
    constant: float = 0.0
    parents: np.ndarray = field(init=False)

    def __post_init__(self):
        self.n, self.n_views = self.target.unit.size, len(self.sizes)
        self.parents = np.full(self.n_views, -1)

    # Labels

    def unit_labels(self, v: int, labels: np.ndarray) -> np.ndarray:
        """Labels (C,) of the units of view ``v``, from labels (n, V) of the samples.

        Units are must-link components in the first view, and samples in all other views.
        """
        return labels[self.target.first, 0] if v == 0 else labels[:, v]

    def sample_labels(self, v: int, z: np.ndarray) -> np.ndarray:
        """Labels (..., n) of the samples in view ``v``, from labels z (..., C) of its units."""
        return z[..., self.target.unit] if v == 0 else z

    def n_clusters(self, v: int, labels: np.ndarray) -> int:
        """Number K_v of clusters of view ``v`` that the code of labels (n, V) has words for."""
        return int(np.unique(labels[:, v]).size) if self.counts_used[v] else self.sizes[v]

    def _table(self, u: int, v: int, labels: np.ndarray) -> np.ndarray:
        table = np.zeros((self.sizes[u], self.sizes[v]))
        np.add.at(table, (labels[:, u], labels[:, v]), 1)
        return table

    # Lengths

    def word_complexity(self, k: int) -> float:
        """Parametric complexity of the labels of the units of the first view in ``k`` clusters."""
        if self.target.complexities is not None:
            return float(self.target.complexities[max(k, 1)])
        return float(multinomial_complexity(max(k, 1), self.target.n_units))

    def root(self, v: int, labels: np.ndarray) -> float:
        """Length of the labels of view ``v`` as a root: without the labels of other views.

        ``labels`` (n, V) are the labels of all views. If labels are coded given the known groups,
        the length of the labels of the first view is conditional on the groups.
        """
        k, target = self.n_clusters(v, labels), self.target
        if v:
            return root_length(np.bincount(labels[:, v]), k)
        z = self.unit_labels(0, labels)
        if target.groups is not None:
            return edge_length(self._group_table(z), k)
        if target.words is not None:
            return float(target.words.totals(z[None])[0]) + self.word_complexity(k)
        return root_length(np.bincount(z), 1) + self.word_complexity(k)

    def _group_table(self, z: np.ndarray) -> np.ndarray:
        """Numbers (G, K) of units of the first view by known group and cluster.

        z (C,) are the clusters of the units.
        """
        assert self.target.groups is not None
        groups = self.target.groups[self.target.first]
        table = np.zeros((int(groups.max()) + 1, self.sizes[0]))
        np.add.at(table, (groups, z), 1)
        return table

    def known_dependence(self, labels: np.ndarray, groups: np.ndarray) -> float:
        """Nats by which the code of the labels of the first view is shorter given known groups.

        ``labels`` (n, V) are the labels of all views, and ``groups`` (n,) the known groups.
        """
        table = np.zeros((int(groups.max()) + 1, self.sizes[0]))
        np.add.at(table, (groups, labels[:, 0]), 1)
        k = self.n_clusters(0, labels)
        return edge_length(table.sum(0, keepdims=True), k) - edge_length(table, k)

    def edge(self, u: int, v: int, labels: np.ndarray) -> float:
        """Length of the labels of view v given the labels of view u, from labels (n, V)."""
        return edge_length(self._table(u, v, labels), self.n_clusters(v, labels))

    def word_length(self, labels: np.ndarray) -> float:
        """Length W of the joint code of the labels (n, V) of all views."""
        if self.code == "table":
            counts = np.unique(labels, axis=0, return_counts=True)[1]
            cells = math.prod(self.n_clusters(v, labels) for v in range(self.n_views))
            return root_length(counts, cells)
        return self.forest_length(labels, self.parents)

    def forest_length(
        self, labels: np.ndarray, parents: np.ndarray, without: int | None = None
    ) -> float:
        """Length of the labels (n, V) under the forest with ``parents`` (V,).

        ``without`` is the index of a view whose labels are left out; None to use all views.
        """
        views = [v for v in range(self.n_views) if v != without]
        parts = [
            self.root(v, labels) if parents[v] < 0 else self.edge(int(parents[v]), v, labels)
            for v in views
        ]
        return sum(parts) + (forest_choice(len(views)) if self.code == "forest" else 0.0)

    def class_length(self, labels: np.ndarray) -> float:
        """Length Y of the known classes given the clusters of the first view.

        ``labels`` (n, V) are the labels of all views. The length is 0 without classes.
        """
        if self.target.classes is None:
            return 0.0
        return self._class_table().total(self.unit_labels(0, labels))

    def feature_length(self, v: int, labels: np.ndarray) -> float:
        """Length F_v of the features and parameters of view ``v``, given labels (n, V)."""
        k = self.n_clusters(v, labels)
        length = float(self.features[v].totals(self.unit_labels(v, labels)[None])[0])
        choice = math.log(self.sizes[v]) if self.counts_used[v] else 0.0
        return length + self.features[v].parameter_length(k, self.n) + choice

    def total(self, labels: np.ndarray) -> float:
        """Description length L in nats of labels (n, V) of n samples in V views."""
        length = sum(self.feature_length(v, labels) for v in range(self.n_views))
        return length + self.word_length(labels) + self.class_length(labels) + self.constant

    def refit(self, labels: np.ndarray) -> None:
        """Find the shortest forest for labels (n, V).

        In views with a covariance per cluster, also estimate the effects of the known groups.
        """
        for v, features in enumerate(self.features):
            if isinstance(features, ClusterCovarianceLengths):
                features.fit_effects(self.unit_labels(v, labels))
        if self.code == "forest" and self.n_views > 1:
            self.parents = self.shortest_parents(labels)

    def shortest_parents(self, labels: np.ndarray, without: int | None = None) -> np.ndarray:
        """Parents (V,) of the views in the shortest forest for labels (n, V); -1 for roots.

        ``without`` is the index of a view that the forest leaves out; None to use all views.
        """
        views = [v for v in range(self.n_views) if v != without]
        roots = np.array([self.root(v, labels) for v in views])
        edges = np.array(
            [[self.edge(u, v, labels) if u != v and v else np.inf for v in views] for u in views]
        )
        parents = np.full(self.n_views, -1)
        for v, u in zip(views, shortest_forest(roots, edges, free=views[0] != 0), strict=True):
            parents[v] = views[u] if u >= 0 else -1
        return parents

    # Objectives of the search

    def _class_table(self) -> CountTable:
        classes = self.target.classes
        assert classes is not None
        n_classes = int(classes.max()) + 1
        compositions = group_sums(
            one_hot(classes, n_classes), self.target.unit, self.target.n_units
        )
        return CountTable(compositions, self.sizes[0], np.array([n_classes]))

    def target_changes(self, v: int, labels: np.ndarray) -> np.ndarray | float:
        """Changes (C, K) of the code of the classes if one unit of view ``v`` moves to a cluster.

        ``labels`` (n, V) are the labels before the move. The change is infinite if cannot-links
        forbid the move. The change is 0 for views other than the first.
        """
        target = self.target
        if v or (target.classes is None and target.words is None):
            return 0.0
        z = self.unit_labels(0, labels)
        result = np.zeros((z.size, self.sizes[0]))
        if target.classes is not None:
            result += self._class_table().changes(z)
        if target.words is not None:
            result[np.isinf(target.words.changes(z[None])[0])] = np.inf
        result[np.arange(z.size), z] = 0
        return result

    def _parts(
        self, v: int, labels: np.ndarray, skipped: int | None = None
    ) -> tuple[list, LinkedWords | SoftWords | None, np.ndarray]:
        """Tables, words and charges of the `ViewObjective` of view ``v``.

        ``labels`` (n, V) are the labels of all views. View ``skipped`` moves together with view
        ``v``: the numbers of samples in pairs of clusters of these two views are left out.
        """
        target, k_max = self.target, self.sizes[v]
        used = np.maximum(np.arange(k_max + 1), 1) if self.counts_used[v] else None

        def by_number(function):
            if used is None:
                return np.full(k_max + 1, function(k_max))
            return np.array([function(int(k)) for k in used])

        tables: list = []
        charges = by_number(lambda k: self.features[v].parameter_length(k, self.n))
        words = None
        parent = int(self.parents[v])
        ones = np.ones((target.n_units if v == 0 else self.n, 1))
        if v == 0 and target.classes is not None:
            tables.append(self._class_table())
        if self.code == "table":
            others = [u for u in range(self.n_views) if u != v]
            rest = math.prod(self.n_clusters(u, labels) for u in others)
            if skipped is None:
                cell = np.zeros(self.n, np.int64)
                if others:
                    cell = np.unique(labels[:, others], axis=0, return_inverse=True)[1].ravel()
                tables.append(CountTable(one_hot(cell, int(cell.max()) + 1), k_max))
            charges += by_number(lambda k: multinomial_complexity(k * rest, self.n))
            return tables, words, charges
        if v == 0 and target.groups is not None:
            groups = target.groups[target.first]
            composition = one_hot(groups, int(groups.max()) + 1)
            tables.append(CountTable(composition, k_max))
            n_words = composition.sum(0)
            charges += by_number(lambda k: multinomial_complexity(k, n_words).sum())
        elif v == 0 and target.words is not None:
            words = target.words
            charges += by_number(self.word_complexity)
        elif parent < 0:
            tables.append(CountTable(ones, k_max))
            charges += by_number(
                self.word_complexity if v == 0 else lambda k: multinomial_complexity(k, self.n)
            )
        elif parent != skipped:
            composition = one_hot(labels[:, parent], self.sizes[parent])
            tables.append(CountTable(composition, k_max))
            n_words = composition.sum(0)
            charges += by_number(lambda k: multinomial_complexity(k, n_words).sum())
        else:
            n_words = np.bincount(labels[:, parent])
            charges += by_number(lambda k: multinomial_complexity(k, n_words).sum())
        for w in np.flatnonzero(self.parents == v).tolist():
            if w == skipped:
                # The code of the skipped child, without the counts of pairs of clusters.
                counts = np.arange(self.n + 1.0)
                complexity = multinomial_complexity(self.n_clusters(w, labels), counts)
                values = xlogy(counts, counts) + complexity
                tables.append(SizeTable(values, self.features[v].mass, k_max))
                continue
            composition = one_hot(labels[:, w], self.sizes[w])
            if v == 0:
                composition = group_sums(composition, target.unit, target.n_units)
            # Clusters of the child without samples are not symbols of its code.
            columns = composition[:, composition.sum(0) > 0]
            k_child = self.n_clusters(w, labels)
            columns = np.pad(columns, ((0, 0), (0, k_child - columns.shape[1])))
            tables.append(CountTable(columns, k_max, np.array([k_child])))
        return tables, words, charges

    def view_objective(
        self, v: int, labels: np.ndarray, skipped: int | None = None
    ) -> ViewObjective:
        """Objective of the labels of view ``v``, with the forest and all other labels fixed.

        ``labels`` (n, V) are the labels of all views. If view ``skipped`` moves together with view
        ``v``, the objective leaves out the numbers of samples in pairs of clusters of these views.
        """
        tables, words, charges = self._parts(v, labels, skipped)
        limits = self.target.limits if v == 0 else None
        return ViewObjective(self.features[v], self.sizes[v], words, tables, charges, limits)
