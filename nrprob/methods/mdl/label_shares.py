"""Predict the labels of new samples in several views, by the frequencies of the fitted labels.

q new samples get labels in V views; view v has K_v clusters. A *cell* is a combination of clusters,
one of each view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nrprob.methods.mdl.configurations import best_cells
from nrprob.methods.mdl.informed_length import InformedLength


@dataclass
class LabelShares:
    """Numbers of samples of a fit by cluster, which give the frequencies of the joint code.

    Attributes
    ----------
    parents : (V,) parent of every view in the forest, -1 for roots
    sizes : number of clusters of every view
    counts : for every view v, numbers of samples: (K_v,) by cluster for a root, or (K_u, K_v) by
        cluster of the parent u and cluster of the view
    cells : (K_1, ..., K_V) numbers of samples by cell, a combination of clusters, one of each view;
        None unless the joint code is a table
    """

    parents: np.ndarray
    sizes: tuple[int, ...]
    counts: list[np.ndarray]
    cells: np.ndarray | None

    @classmethod
    def from_labels(cls, length: InformedLength, labels: np.ndarray) -> LabelShares:
        """Count the samples of a fit by cluster, from their labels (n, V).

        ``length`` is the description length, which determines the joint code and the forest.
        """
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
        """Predict labels (q, V) of q new samples, by the shortest description of each sample.

        ``costs`` has, for every view v, the description lengths (q, K_v) of the features of the
        samples in each of K_v clusters.
        """
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
