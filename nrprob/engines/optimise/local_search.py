"""Local search for hard partitions with an unknown number of clusters.

F is the objective. The search starts from several partitions, and improves each by moves of single
rows, merges and splits. The best partition continues with compound steps. Every accepted step
lowers F, so the search ends. No step improves the final partition: no move of a row, merge,
proposed split, new division of two near clusters, dissolution of a cluster, or chain of moves. For
up to 2,000 rows, no split followed by merges improves it either. The result depends on the initial
partitions only.

Shapes: N rows with padding, K clusters, m features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from nrprob.engines.optimise.descents import (
    DescentResult,
    DescentStart,
    PartitionLimits,
    descend,
    descend_subsets,
    improve_by_chains,
)
from nrprob.engines.optimise.split_proposals import propose_splits
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms

_TOGETHER = 8  # number of partitions per call of a compiled program
_FEW_ROWS = 1024  # up to so many rows, one program with all rows improves all splits
_TINY = 50  # up to so many rows, 30 chains of any length; for more rows, 3 of at most 20 moves
_MOST_COMPOUND = 2000  # up to so many rows, splits followed by merges are tried
_PAIRS_PER_CLUSTER = 3  # pairs of near clusters, per cluster, whose union is split again


@dataclass(frozen=True)
class SearchProblem:
    """Objective and limits of a local search.

    Attributes
    ----------
    terms : terms of the objective, with their weights
    rows : dense rows in float64, of one known group
    features : (N, m) features from which splits are proposed, in columns of similar scale
    classes : (N,) labels from which splits are proposed, -1 for unknown; None without labels
    movable : (N,) whether a row may move to another cluster
    max_clusters : largest number of clusters
    n_clusters : number K of clusters of the compiled programs, above ``max_clusters``
    limits : limits of the sizes of clusters, and of the steps of descents
    """

    terms: Terms
    rows: Rows
    features: np.ndarray
    classes: np.ndarray | None
    movable: np.ndarray
    max_clusters: int
    n_clusters: int
    limits: PartitionLimits


class Partition(NamedTuple):
    """A partition at which no move of a row lowers F.

    Attributes
    ----------
    labels : (N,) clusters of the rows
    costs : (K,) costs of the clusters
    sizes : (K,) masses of the clusters
    merges : (K, K) change of F if clusters a and b merge, in entry [a, b] with a < b. Infinite in
        all other entries, and for pairs that may not merge
    converged : whether no move of a row improves F
    """

    labels: np.ndarray
    costs: np.ndarray
    sizes: np.ndarray
    merges: np.ndarray
    converged: bool

    @property
    def value(self) -> float:
        """Sum of the costs of all clusters: F without its constant."""
        return float(self.costs.sum())


class _Split(NamedTuple):
    """Best division of the rows of one cluster into two sides, which become two clusters.

    ``change`` is the change of F by the split, and ``side`` (N,) the mask of the rows on one side.
    """

    change: float
    side: np.ndarray


@dataclass
class LocalSearch:
    """Steps of the search for one `SearchProblem`, with a cache of the best splits of sets of rows.

    Attributes
    ----------
    problem : objective and limits
    trace : value of F, without its constant, after every accepted step of `improve`
    n_clusters_trace : number of clusters after every accepted step of `improve`
    """

    problem: SearchProblem
    trace: list[float] = field(default_factory=list)
    n_clusters_trace: list[int] = field(default_factory=list)
    _splits: dict[bytes, _Split | None] = field(default_factory=dict)

    # Steps on whole partitions

    def descend(
        self,
        labels: Sequence[np.ndarray],
        *,
        allowed: np.ndarray | None = None,
        max_clusters: int | None = None,
        merging: bool = True,
    ) -> list[Partition]:
        """Move single rows and merge clusters, from several initial labelings ``labels`` (N,).

        ``allowed`` (number of labelings, K) states which clusters rows may join; by default, all.
        Without ``merging``, clusters do not merge. See `DescentStart`.
        """
        k, movable = self.problem.n_clusters, self.problem.movable
        most = self.problem.max_clusters if max_clusters is None else max_clusters
        allowed = np.ones((len(labels), k), bool) if allowed is None else allowed
        starts = [
            DescentStart(
                start.astype(np.int32), movable, receiving, np.int32(most), np.bool_(merging)
            )
            for start, receiving in zip(labels, allowed, strict=True)
        ]
        return [
            Partition(r.labels, r.costs, r.sizes, r.merges, bool(r.converged))
            for r in self._run(starts)
        ]

    def _run(
        self, starts: list[DescentStart], subsets: list[np.ndarray] | None = None
    ) -> list[DescentResult]:
        """Run `descend` from all ``starts``, several in one call of a compiled program.

        With ``subsets`` (r,) of row indices, one per start, `descend_subsets` runs instead.
        """
        terms, rows, limits = self.problem.terms, self.problem.rows, self.problem.limits
        results: list[DescentResult] = []
        for i in range(0, len(starts), _TOGETHER):
            batch = starts[i : i + _TOGETHER]
            count = len(batch)
            # A start without movable rows ends at once, and fills the batch.
            spare = batch[0]._replace(movable=np.zeros_like(batch[0].movable), merging=np.bool_(0))
            batch = batch + [spare] * (_TOGETHER - count)
            start = DescentStart(*(np.stack(parts) for parts in zip(*batch, strict=True)))
            if subsets is None:
                result = descend(terms, rows, start, limits)
            else:
                chosen = subsets[i : i + _TOGETHER]
                chosen = chosen + chosen[:1] * (_TOGETHER - count)
                result = descend_subsets(terms, rows, np.stack(chosen), start, limits)
            result = jax.device_get(result)
            results += [DescentResult(*(part[j] for part in result)) for j in range(count)]
        return results

    def improve(self, partition: Partition, *, compound: bool = True) -> Partition:
        """Improve a partition until no step lowers F.

        Without ``compound``, the only steps are splits of a cluster that lower F.
        """
        self._record(partition)
        steps = [self._split]
        if compound:
            steps += [self._divide_pairs, self._dissolve, self._chain]
            if self.problem.features.shape[0] <= _MOST_COMPOUND:
                steps.append(self._split_and_merge)
        tolerance, i = float(self.problem.limits.tolerance), 0
        while i < len(steps):
            best = min(steps[i](partition), key=lambda new: new.value, default=partition)
            if best.value < partition.value - tolerance:
                partition, i = best, 0
                self._record(partition)
            else:
                i += 1
        return partition

    def _record(self, partition: Partition) -> None:
        if self.trace and partition.value == self.trace[-1]:
            return
        self.trace.append(partition.value)
        self.n_clusters_trace.append(int((partition.sizes > 0).sum()))

    def _split(self, partition: Partition) -> Iterator[Partition]:
        """Yield the partition after the split that lowers F most, if any split lowers F."""
        free = np.flatnonzero(partition.sizes == 0)
        existing = np.flatnonzero(partition.sizes > 0)
        if len(existing) >= self.problem.max_clusters or not free.size:
            return
        splits = self._split_clusters(partition, existing)
        best = min((s for s in splits if s is not None), key=lambda s: s.change, default=None)
        if best is not None and best.change < -self.problem.limits.tolerance:
            yield from self.descend([np.where(best.side, free[0], partition.labels)])

    def _divide_pairs(self, partition: Partition) -> Iterator[Partition]:
        """Yield partitions in which the union of two near clusters is split in another way."""
        existing = int((partition.sizes > 0).sum())
        order = np.argsort(partition.merges, axis=None, kind="stable")
        order = order[: _PAIRS_PER_CLUSTER * existing]
        order = order[np.isfinite(partition.merges.reshape(-1)[order])]
        pairs = np.stack(np.unravel_index(order, partition.merges.shape), 1)
        unions = [np.isin(partition.labels, pair) for pair in pairs]
        costs = [partition.costs[pair].sum() + partition.merges[tuple(pair)] for pair in pairs]
        splits = self._best_splits(unions, costs)
        for (a, b), union, split in zip(pairs, unions, splits, strict=True):
            if split is None:
                continue
            if partition.merges[a, b] + split.change < -self.problem.limits.tolerance:
                labels = np.where(split.side, a, np.where(union, b, partition.labels))
                yield from self.descend([labels])

    def _dissolve(self, partition: Partition) -> Iterator[Partition]:
        """Yield the partitions after the dissolution of one cluster, for every cluster."""
        existing = np.flatnonzero(partition.sizes > 0)
        if len(existing) < 2:
            return
        allowed = np.arange(self.problem.n_clusters) != existing[:, None]
        yield from self.descend([partition.labels] * len(existing), allowed=allowed)

    def _chain(self, partition: Partition) -> Iterator[Partition]:
        """Yield the partition after moves and chains of moves of rows, if these lower F."""
        problem, k = self.problem, self.problem.n_clusters
        n = int((np.asarray(problem.rows.mass) > 0).sum())
        start = DescentStart(
            partition.labels.astype(np.int32), problem.movable, np.ones(k, bool),
            np.int32(problem.max_clusters), np.bool_(True),
        )  # fmt: skip
        labels, change = improve_by_chains(
            problem.terms, problem.rows, start, problem.limits,
            np.int32(n if n <= _TINY else 20), n_chains=30 if n <= _TINY else 3,
        )  # fmt: skip
        if float(change) < -problem.limits.tolerance:
            yield from self.descend([np.asarray(labels)])

    def _split_and_merge(self, partition: Partition) -> Iterator[Partition]:
        """Yield the partitions after a split of one cluster and merges, for every cluster.

        The split may raise F. Merges then reduce the number of clusters to the previous number.
        """
        existing = np.flatnonzero(partition.sizes > 0)
        free = np.flatnonzero(partition.sizes == 0)
        if not free.size:
            return
        splits = self._split_clusters(partition, existing)
        forced = [np.where(s.side, free[0], partition.labels) for s in splits if s is not None]
        if not forced:
            return
        count = len(existing)
        loose = self.descend(forced, max_clusters=count + 1, merging=False)
        yield from self.descend([new.labels for new in loose], max_clusters=count)

    # Splits of a set of rows

    def _split_clusters(self, partition: Partition, clusters: np.ndarray) -> list[_Split | None]:
        """Best split of each of the ``clusters`` of a partition; see `_best_splits`."""
        members = [partition.labels == c for c in clusters]
        return self._best_splits(members, [partition.costs[c] for c in clusters])

    def _best_splits(
        self, members: Sequence[np.ndarray], costs: Sequence[float]
    ) -> list[_Split | None]:
        """Best split of each of several sets of rows; None for a set that cannot be split.

        ``members`` are the masks (N,) of the sets, and ``costs`` their costs as single clusters.
        """
        keys = [np.packbits(mask).tobytes() for mask in members]
        new = {
            key: (mask, cost)
            for key, mask, cost in zip(keys, members, costs, strict=True)
            if key not in self._splits
        }
        self._splits.update(dict.fromkeys(new))
        proposals = [
            (key, mask, cost, side)
            for key, (mask, cost) in new.items()
            for side in self._proposals(mask)
        ]
        splits = self._refine([(mask, side) for _, mask, _, side in proposals])
        for (key, _, cost, _), (sum_of_costs, side) in zip(proposals, splits, strict=True):
            change, best = sum_of_costs - cost, self._splits[key]
            if np.isfinite(change) and (best is None or change < best.change):
                self._splits[key] = _Split(change, side)
        return [self._splits[key] for key in keys]

    def _proposals(self, members: np.ndarray) -> list[np.ndarray]:
        """Propose splits of the rows in the mask ``members`` (N,): masks (N,) of one side."""
        problem = self.problem
        mass = np.asarray(problem.rows.mass).reshape(-1)
        index = np.flatnonzero(members & (mass > 0))
        floor = float(problem.limits.floor)
        if len(index) < 2 or mass[index].sum() < 2 * floor or not problem.movable[index].all():
            return []
        classes = None if problem.classes is None else problem.classes[index]
        sides = propose_splits(problem.features[index], mass[index], classes, floor)
        masks = np.zeros((len(sides), len(mass)), bool)
        masks[:, index] = sides
        return list(masks)

    def _refine(
        self, splits: list[tuple[np.ndarray, np.ndarray]]
    ) -> list[tuple[float, np.ndarray]]:
        """Improve splits by moves between the two sides.

        Each element of ``splits`` has two masks (N,): of the rows to split, and of one side.
        Returns, for every split, the sum of the costs of both sides and the mask (N,) of one side
        after the moves. The sum is infinite if a side is empty.
        """
        if not splits:
            return []
        problem, n = self.problem, len(self.problem.features)
        largest = max(int(members.sum()) for members, _ in splits)
        # Few sizes of subsets, since each needs a compiled program.
        r = n
        while r > 4 * _FEW_ROWS and largest <= r // 2:
            r //= 2
        all_rows, k = n <= _FEW_ROWS, problem.n_clusters if n <= _FEW_ROWS else 2
        starts, subsets = [], []
        for members, side in splits:
            # All other rows stay in a third cluster, or are left out.
            index: np.ndarray = np.arange(n) if all_rows else np.flatnonzero(members)
            index = np.pad(index, (0, r - len(index)), constant_values=n)
            inside, first = (np.append(mask, False)[index] for mask in (members, side))
            labels = np.where(inside, np.where(first, 0, 1), min(2, k - 1)).astype(np.int32)
            starts.append(
                DescentStart(labels, inside, np.arange(k) < 2, np.int32(k), np.bool_(False))
            )
            subsets.append(index.astype(np.int32))
        refined = self._run(starts, None if all_rows else subsets)
        results = []
        for result, index in zip(refined, subsets, strict=True):
            side = np.zeros(n + 1, bool)
            side[index[result.labels == 0]] = True
            divided = (result.sizes[:2] > 0).all()
            results.append((float(result.costs[:2].sum()) if divided else np.inf, side[:n]))
        return results
