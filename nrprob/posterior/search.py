r"""Greedy search for the partition of least expected loss.

For a loss of the form in `nrprob.posterior.losses`, the expected loss of a partition is, up to a
factor and a constant, the cost

.. math:: b \sum_c F(n_c) - 2 \sum_s w_s \sum_{c,k} F(m^s_{ck}),

where :math:`n_c` is the size of cluster c, :math:`w_s` is the weight of draw s, and
:math:`m^s_{ck}` is the number of samples in both cluster c and cluster k of draw s.

Let dF(x) = F(x+1) - F(x), and let k be the cluster of a sample in draw s. If the sample joins
cluster c, the cost increases by b dF(n_c) - 2 sum_s w_s dF(m^s_ck). These increases are the scores
of the sample. `CellSearch` stores the counts m and a table of dF(m). The scores of a sample are a
weighted sum of rows of this table, and the scores of all samples are one product with a sparse
matrix. For the pair loss F(x) = x(x-1)/2, the cost is the sum of b - 2 P_ij over the pairs of
samples that share a cluster, with the co-clustering probabilities P_ij. `PairSearch` stores b - 2
P_ij instead of the counts.
"""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import scipy.sparse

from nrprob.posterior.draws import Draws
from nrprob.posterior.losses import Loss

__all__ = ["CellSearch", "PairSearch", "Search"]

_PARTNERS = 5
"""Number of merge candidates per cluster: the clusters that it shares most draws with."""
_BLOCK = 2**22
"""Maximum number of entries of a temporary array."""


class Search(abc.ABC):
    """Local search: a partition, and moves that lower its expected loss.

    Subclasses keep tables from which they compute the scores of samples. The module docstring
    defines the cost of a partition and the scores.

    Parameters
    ----------
    n : int
        Number of samples.
    max_clusters : int
        Maximum number of clusters of the partition.
    tolerance : float
        Rounding error of a score. A move must lower the cost by more, so that every search ends.
    random : numpy.random.RandomState
        Generator of the random orders of samples and clusters.
    """

    z: np.ndarray
    """Cluster of each sample, -1 if the sample is unassigned."""
    size: np.ndarray
    """Number of samples in each cluster; clusters may be empty."""

    def __init__(
        self, n: int, max_clusters: int, tolerance: float, random: np.random.RandomState
    ) -> None:
        self.n, self.max_clusters = n, max_clusters
        self.tolerance, self.random = tolerance, random

    @abc.abstractmethod
    def _tabulate_counts(self) -> None:
        """Compute the tables from the partition."""

    @abc.abstractmethod
    def _widen_tables(self, extra: int) -> None:
        """Extend the tables by ``extra`` empty clusters."""

    @abc.abstractmethod
    def _sample_scores(self, i: int) -> np.ndarray:
        """Scores of sample i in each cluster; the cluster of sample i is evaluated without it."""

    @abc.abstractmethod
    def _sample_gains(self) -> np.ndarray:
        """Decrease (n,) of the cost by the best move of each sample if all other samples stay."""

    @abc.abstractmethod
    def _shift_sample(self, i: int, c: int, step: int) -> None:
        """Update the tables if sample i joins (``step`` 1) or leaves (-1) cluster c."""

    @abc.abstractmethod
    def _join_changes(self, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Candidate pairs of clusters to join, and the change of the cost for each pair.

        `live` are the clusters that have samples; pairs (n_pairs, 2) are positions in `live`.
        """

    @abc.abstractmethod
    def _join_clusters(self, a: int, b: int) -> None:
        """Add cluster b to cluster a in the tables."""

    @abc.abstractmethod
    def _empty_cluster(self, c: int) -> tuple[float, Any]:
        """Empty cluster c in the tables; returns its cost, and the input of `_restore_tables`."""

    @abc.abstractmethod
    def _restore_tables(self, c: int, saved: Any) -> None:
        """Undo `_empty_cluster` of cluster c; ``saved`` is the second result of that call."""

    def start(self, codes: np.ndarray) -> None:
        """Start at the partition ``codes`` (n,): clusters from 0, or -1 for unassigned samples."""
        self.z = np.array(codes, dtype=np.intp)
        k = int(self.z.max()) + 1
        width = min(max(8, k + 4), self.n + 1)
        self.size = np.bincount(self.z[self.z >= 0], minlength=width)
        self._tabulate_counts()
        self._close_cluster()

    def _close_cluster(self) -> None:
        """Open one empty cluster if one more cluster is allowed; close all other empty clusters."""
        if self.size.all():
            extra = min(len(self.size), self.n + 1 - len(self.size))
            self.size = np.pad(self.size, (0, extra))
            self._widen_tables(extra)
        self.closed = np.where(self.size > 0, 0.0, np.inf)
        if np.count_nonzero(self.size) < self.max_clusters:
            self.closed[np.argmin(self.size > 0)] = 0.0

    def _put_sample(self, i: int, c: int, step: int) -> None:
        self._shift_sample(i, c, step)
        self.size[c] += step

    def _visit_sample(self, i: int) -> float:
        """Move sample i to the cluster of least score; returns the change of the cost."""
        home = int(self.z[i])
        score = self._sample_scores(i) + self.closed
        best = int(score.argmin())
        before = 0.0
        if home >= 0:
            before = float(score[home])
            if score[best] >= before - self.tolerance:
                return 0.0
            self._put_sample(i, home, -1)
        self._put_sample(i, best, 1)
        self.z[i] = best
        if self.size[best] == 1 or (home >= 0 and self.size[home] == 0):
            self._close_cluster()
        return float(score[best]) - before

    def allocate(self) -> None:
        """Assign the unassigned samples one by one, in random order."""
        for i in self.random.permutation(np.flatnonzero(self.z < 0)):
            self._visit_sample(i)

    def sweep(self) -> None:
        """Move single samples until no move lowers the cost."""
        while len(rows := np.flatnonzero(self._sample_gains() > self.tolerance)):
            change = sum([self._visit_sample(i) for i in self.random.permutation(rows)])
            if change == 0:  # gains and scores have different rounding errors
                break

    def merge(self) -> bool:
        """Join pairs of clusters, best first, while the cost falls; returns whether any joined."""
        merged = False
        while True:
            live = np.flatnonzero(self.size)
            if len(live) < 2:
                return merged
            pairs, change = self._join_changes(live)
            free = np.ones(len(live), dtype=bool)
            for p in np.argsort(change, kind="stable"):
                if change[p] >= -self.tolerance * self.n:
                    break
                # The cost is a sum over clusters, so joining other clusters does not change
                # this difference.
                if free[pairs[p]].all():
                    free[pairs[p]] = False
                    a, b = live[pairs[p]]
                    self._join_clusters(a, b)
                    self.z[self.z == b] = a
                    self.size[a] += self.size[b]
                    self.size[b] = 0
            if free.all():
                return merged
            merged = True
            self._close_cluster()

    def dissolve(self) -> bool:
        """Empty one cluster after another and reassign its samples, if this lowers the cost.

        Returns whether the cost has fallen for any cluster.
        """
        changed = False
        for c in self.random.permutation(np.flatnonzero(self.size)):
            rows = np.flatnonzero(self.z == c)
            cost, saved = self._empty_cluster(c)
            self.z[rows] = -1
            self.size[c] = 0
            self._close_cluster()
            for i in self.random.permutation(rows):
                cost -= self._visit_sample(i)
            if cost > self.tolerance * self.n:
                changed = True
                continue
            for i in rows:
                self._put_sample(int(i), int(self.z[i]), -1)
            self.z[rows] = c
            self._restore_tables(c, saved)
            self.size[c] = len(rows)
            self._close_cluster()
        return changed

    def improve(self) -> None:
        """Apply all moves until no move lowers the cost."""
        self.sweep()
        while self.merge() or self.dissolve():
            self.sweep()


class CellSearch(Search):
    """Search by the contingency tables of the partition and the draws.

    Parameters
    ----------
    draws : Draws
        Draws of partitions. The search takes about 12 bytes for every entry of the contingency
        tables, and 20 bytes for every label.
    loss : Loss
        The loss.
    max_clusters, random
        See `Search`.
    """

    def __init__(
        self, draws: Draws, loss: Loss, max_clusters: int, random: np.random.RandomState
    ) -> None:
        n, n_draws = draws.n_samples, draws.n_draws
        self.ids = np.ascontiguousarray(draws.ids().T, dtype=np.intp)
        self.weights = draws.weights
        self.n_cells = int(draws.offsets[-1])
        self.cell_weights = np.repeat(draws.weights, draws.n_clusters)
        self.cell = loss.cell
        self.gain = np.diff(loss.cell)
        self.merge_cost = loss.merge_cost
        self.step = max(1, _BLOCK // n_draws)
        self.member = scipy.sparse.csr_array(
            (np.tile(draws.weights, n), self.ids.ravel(), np.arange(n + 1) * n_draws),
            shape=(n, self.n_cells),
        )
        super().__init__(n, max_clusters, 1e-11 * max(1.0, float(self.gain[n])), random)

    def _tabulate_counts(self) -> None:
        width = len(self.size)
        placed = np.flatnonzero(self.z >= 0)
        counts = np.zeros(self.n_cells * width, dtype=np.int64)
        for a in range(0, len(placed), self.step):
            rows = placed[a : a + self.step]
            cells = self.ids[rows] * width + self.z[rows, None]
            counts += np.bincount(cells.ravel(), minlength=len(counts))
        self.counts = counts.reshape(-1, width).astype(np.int32)
        self._derive_tables()

    def _widen_tables(self, extra: int) -> None:
        self.counts = np.pad(self.counts, ((0, 0), (0, extra)))
        self._derive_tables()

    def _derive_tables(self) -> None:
        self.table = self.gain[self.counts]
        self.buffer = np.empty((self.ids.shape[1], self.counts.shape[1]))

    def _shift_sample(self, i: int, c: int, step: int) -> None:
        cells = self.ids[i] * self.counts.shape[1] + c
        counts = self.counts.reshape(-1)
        new = counts[cells] + np.int32(step)
        counts[cells] = new
        self.table.reshape(-1)[cells] = self.gain[new]

    def _sample_scores(self, i: int) -> np.ndarray:
        ids, home = self.ids[i], self.z[i]
        # "clip" lets numpy write into the buffer directly; all positions are within bounds.
        np.take(self.table, ids, axis=0, out=self.buffer, mode="clip")
        score = self.merge_cost * self.gain[self.size] - 2 * (self.weights @ self.buffer)
        if home >= 0:
            without = self.gain[self.counts[ids, home] - 1] @ self.weights
            score[home] = self.merge_cost * self.gain[self.size[home] - 1] - 2 * without
        return score

    def _sample_gains(self) -> np.ndarray:
        score = self.merge_cost * self.gain[self.size] + self.closed
        score = score - 2 * (self.member @ self.table)
        gains = np.empty(self.n)
        for a in range(0, self.n, self.step):
            home = self.z[a : a + self.step]
            without = self.gain[self.counts[self.ids[a : a + self.step], home[:, None]] - 1]
            current = self.merge_cost * self.gain[self.size[home] - 1] - 2 * (
                without @ self.weights
            )
            part = score[a : a + self.step]
            part[np.arange(len(home)), home] = current
            gains[a : a + self.step] = current - part.min(axis=1)
        return gains

    def _join_changes(self, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        size, counts = self.size[live], np.ascontiguousarray(self.counts[:, live].T)
        floats = counts.astype(np.float32)
        shared = (floats * self.cell_weights.astype(np.float32)) @ floats.T
        affinity = shared / np.outer(size, size)
        np.fill_diagonal(affinity, -1)
        near = np.argsort(-affinity, axis=1)[:, : min(_PARTNERS, len(live) - 1)]
        first = np.repeat(np.arange(len(live)), near.shape[1])
        pairs = np.unique(np.sort(np.column_stack([first, near.ravel()]), axis=1), axis=0)
        joint = np.array([self.cell[counts[a] + counts[b]] @ self.cell_weights for a, b in pairs])
        alone = self.cell[counts] @ self.cell_weights
        a, b = pairs.T
        change = self.merge_cost * (self.cell[size[a] + size[b]] - self.cell[size[a]])
        change -= self.merge_cost * self.cell[size[b]]
        return pairs, change - 2 * (joint - alone[a] - alone[b])

    def _set_column(self, c: int, counts: Any) -> None:
        self.counts[:, c] = counts
        self.table[:, c] = self.gain[counts]

    def _join_clusters(self, a: int, b: int) -> None:
        self._set_column(a, self.counts[:, a] + self.counts[:, b])
        self._set_column(b, 0)

    def _empty_cluster(self, c: int) -> tuple[float, Any]:
        column = self.counts[:, c].copy()
        joint = float(self.cell[column] @ self.cell_weights)
        self._set_column(c, 0)
        return self.merge_cost * float(self.cell[self.size[c]]) - 2 * joint, column

    def _restore_tables(self, c: int, saved: Any) -> None:
        self._set_column(c, saved)


class PairSearch(Search):
    """Search by co-clustering probabilities, for the pair loss.

    Parameters
    ----------
    together : ndarray of shape (n, n)
        Co-clustering probabilities.
    loss : Loss
        A pair loss.
    max_clusters, random
        See `Search`.
    """

    def __init__(
        self, together: np.ndarray, loss: Loss, max_clusters: int, random: np.random.RandomState
    ) -> None:
        n = len(together)
        self.cost = loss.merge_cost - 2 * together
        np.fill_diagonal(self.cost, 0.0)
        super().__init__(n, max_clusters, 1e-11 * n, random)

    def _onehot(self) -> np.ndarray:
        placed = np.flatnonzero(self.z >= 0)
        onehot = np.zeros((len(self.size), self.n))
        onehot[self.z[placed], placed] = 1.0
        return onehot

    def _tabulate_counts(self) -> None:
        self.sums = self._onehot() @ self.cost

    def _widen_tables(self, extra: int) -> None:
        self.sums = np.pad(self.sums, ((0, extra), (0, 0)))

    def _shift_sample(self, i: int, c: int, step: int) -> None:
        if step > 0:
            self.sums[c] += self.cost[i]
        else:
            self.sums[c] -= self.cost[i]
        if self.size[c] + step == 0:
            self.sums[c] = 0.0  # remove rounding errors

    def _sample_scores(self, i: int) -> np.ndarray:
        return self.sums[:, i]

    def _sample_gains(self) -> np.ndarray:
        current = self.sums[self.z, np.arange(self.n)]
        return current - (self.sums + self.closed[:, None]).min(axis=0)

    def _join_changes(self, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        between = self._onehot()[live] @ self.sums[live].T
        a, b = np.triu_indices(len(live), 1)
        return np.column_stack([a, b]), between[a, b]

    def _join_clusters(self, a: int, b: int) -> None:
        self.sums[a] += self.sums[b]
        self.sums[b] = 0.0

    def _empty_cluster(self, c: int) -> tuple[float, Any]:
        saved = self.sums[c].copy()
        self.sums[c] = 0.0
        return float(saved[self.z == c].sum()) / 2, saved

    def _restore_tables(self, c: int, saved: Any) -> None:
        self.sums[c] = saved
