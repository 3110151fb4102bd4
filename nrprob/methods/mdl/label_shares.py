"""Predict labels of new samples in several views, with frequencies of the fitted labels.

q new samples have labels in V views; view v has K_v clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nrprob.methods.mdl.configurations import best_cells
from nrprob.methods.mdl.informed_length import InformedLength


@dataclass
class LabelShares:
    """Frequencies of the labels of all views under their joint code.

    Attributes
    ----------
    parents : (V,) parents of the views in the forest, -1 for roots
    sizes : numbers of clusters of all views
    counts : numbers of samples by cluster for a root, or by clusters of the parent and of the view
    cells : numbers of samples by cell; None for a forest
    """

    parents: np.ndarray
    sizes: tuple[int, ...]
    counts: list[np.ndarray]
    cells: np.ndarray | None

    @classmethod
    def from_labels(cls, length: InformedLength, labels: np.ndarray) -> LabelShares:
        """Count labels (n, V)."""
        cells, counts = None, []
        if length.code == "table":
            cells = np.zeros(length.sizes)
            np.add.at(cells, tuple(labels.T), 1)
        for v, u in enumerate(length.parents):
            shape = length.sizes[v] if u < 0 else (length.sizes[u], length.sizes[v])
            table = np.zeros(shape)
            np.add.at(table, labels[:, v] if u < 0 else (labels[:, u], labels[:, v]), 1)
            counts.append(table)
        return cls(length.parents, length.sizes, counts, cells)

    def predict(self, costs: Sequence[np.ndarray]) -> np.ndarray:
        """Labels (q, V) of the shortest description, for costs (q, K_v) of the features by view."""
        sizes, rows = self.sizes, np.arange(len(costs[0]))
        if self.cells is not None:
            with np.errstate(divide="ignore"):
                return best_cells(np.log(self.cells / self.cells.sum()), [-c for c in costs])
        labels = np.zeros((rows.size, len(sizes)), np.int64)
        best: dict[int, np.ndarray] = {}

        def words(counts: np.ndarray) -> np.ndarray:
            # No new sample joins a cluster without samples.
            smooth = np.where(counts.reshape(-1, counts.shape[-1]).sum(0) > 0, counts + 0.5, 0)
            with np.errstate(divide="ignore"):
                return -np.log(smooth / smooth.sum(-1, keepdims=True))

        def costs_below(v: int) -> np.ndarray:
            cost = costs[v]
            for w in np.flatnonzero(self.parents == v).tolist():
                below = costs_below(w)[:, None] + words(self.counts[w])
                best[w] = below.argmin(2)
                cost = cost + below.min(2)
            return cost

        def assign(v: int) -> None:
            for w in np.flatnonzero(self.parents == v).tolist():
                labels[:, w] = best[w][rows, labels[:, v]]
                assign(w)

        for root in np.flatnonzero(self.parents < 0).tolist():
            labels[:, root] = (costs_below(root) + words(self.counts[root])).argmin(1)
            assign(root)
        return labels
