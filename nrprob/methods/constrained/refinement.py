"""Local search for a labeling of short description under hard constraints.

C components are in at most K clusters. The search proposes labelings (m, C), orders them by their
exact description lengths, moves single components from the best of them, and accepts the shortest
description.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from nrprob.engines.optimise.move_chains import improve_by_chains, improve_by_passes
from nrprob.engines.optimise.split_proposals import propose_splits
from nrprob.methods.constrained.partition_lengths import PartitionLengths

_STARTS = {50: 10, 5000: 3, math.inf: 1}  # refined labelings, by the largest number of components
_REFINED = 4  # proposals of a type from which single moves are made
_EXCHANGES = 16  # exchanges of connected parts, for every pair of clusters
_MERGES, _DIVISIONS = 64, 32  # pairs of clusters that are merged, and that are divided anew
_NEAR_PAIRS = 3  # pairs of clusters per cluster that are divided anew


def shorten_description(
    lengths: PartitionLengths, starts: Sequence[np.ndarray], tol: float, max_rounds: int
) -> tuple[np.ndarray, list[float], bool]:
    """Search for a shorter description from several labelings.

    Parameters
    ----------
    lengths : description lengths of labelings
    starts : initial clusters (C,), which satisfy all constraints, in order of preference
    tol : smallest decrease of the length, in nats, that counts
    max_rounds : maximum number of accepted proposals per labeling

    Returns
    -------
    z : (C,) clusters that no single move and no proposal improves by more than ``tol``
    trace : initial length after single moves, and length after every accepted proposal
    converged : whether no proposal was left
    """
    search = _Proposals(lengths)
    distinct: dict[bytes, np.ndarray] = {}
    n_starts = next(count for units, count in _STARTS.items() if starts[0].size <= units)
    for start in starts[:n_starts]:
        z = improve_by_passes(lengths, start, tol)
        distinct.setdefault(lengths.key(z), z)
    results = [search.improve(z, tol, max_rounds) for z in distinct.values()]
    return min(results, key=lambda result: result[1][-1])


def _refine_best(
    lengths: PartitionLengths, z: np.ndarray, proposals: np.ndarray, current: float, tol: float
) -> tuple[np.ndarray, float] | None:
    """Make single moves from the shortest proposals; return the result if it is short enough.

    ``z`` (C,) are the present labels, of description length ``current``.
    """
    if not len(proposals):
        return None
    estimates = lengths.estimates(proposals, z)
    order = np.argsort(estimates, kind="stable")[:_REFINED]
    order = order[np.isfinite(estimates[order])]
    if not order.size:
        return None
    refined = np.stack([improve_by_passes(lengths, proposals[i], tol) for i in order])
    totals = lengths.totals(refined)
    best = int(totals.argmin())
    return (refined[best], float(totals[best])) if totals[best] < current - tol else None


class _Proposals:
    """Proposals (m, C) of labelings that differ from present labels (C,) by more than one move."""

    def __init__(self, lengths: PartitionLengths):
        self.lengths, self.k = lengths, lengths.k
        self.types: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
            self.merge_clusters,
            self.exchange_clusters,
            self.split_clusters,
            self.chain_moves,
            self.divide_pairs,
        )

    def improve(
        self, z: np.ndarray, tol: float, max_rounds: int
    ) -> tuple[np.ndarray, list[float], bool]:
        """Accept proposals while they shorten the description; see `shorten_description`."""
        trace = [float(self.lengths.totals(z[None])[0])]
        while len(trace) <= max_rounds:
            for propose in self.types:
                proposal = _refine_best(self.lengths, z, propose(z), trace[-1], tol)
                if proposal is not None:
                    break
            else:
                return z, trace, True
            z, length = proposal
            trace.append(length)
        return z, trace, False

    def _used_pairs(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pairs (p, 2) of clusters with rows, and whether cannot-links allow to merge them (p,)."""
        used = np.flatnonzero(np.bincount(z, minlength=self.k))
        pairs = used[np.stack(np.triu_indices(used.size, 1), 1)]
        linked = np.zeros((self.k, self.k), bool)
        ends = z[self.lengths.early], z[self.lengths.late]
        linked[ends] = linked[ends[::-1]] = True
        return pairs, ~linked[pairs[:, 0], pairs[:, 1]]

    def merge_clusters(self, z: np.ndarray) -> np.ndarray:
        """Proposals in which two clusters are one."""
        pairs, allowed = self._used_pairs(z)
        pairs = pairs[allowed]
        nearest = np.argsort(self.lengths.scatter_increases(z, pairs), kind="stable")
        pairs = pairs[nearest[:_MERGES]]
        return np.where(z == pairs[:, 1:], pairs[:, :1], z)

    def _linked_parts(self, z: np.ndarray, a: int, b: int) -> np.ndarray:
        """Parts (C,) of two clusters that cannot-links between them connect, as integers."""
        early, late = self.lengths.early, self.lengths.late
        edge = np.isin(z[early], (a, b)) & np.isin(z[late], (a, b))
        graph = sparse.coo_array(
            (np.ones(edge.sum(), bool), (early[edge], late[edge])), shape=(z.size, z.size)
        )
        return connected_components(graph, directed=False)[1]

    def exchange_clusters(self, z: np.ndarray) -> np.ndarray:
        """Exchange two clusters within parts that cannot-links connect (Kempe chains).

        Single moves cannot change components between two clusters whose cannot-links connect them.
        """
        pairs, allowed = self._used_pairs(z)
        distances, proposals = self.lengths.distances, [np.zeros((0, z.size), z.dtype)]
        change = distances.changes(z[None], *distances.cluster_statistics(z[None]))[0]
        for a, b in pairs[~allowed].tolist():
            part = self._linked_parts(z, a, b)
            # The parts whose components alone would shorten the distances most.
            other = np.where(z == a, b, np.where(z == b, a, z))
            gain = np.bincount(part, change[np.arange(z.size), other])
            connected = np.flatnonzero(np.bincount(part) > 1)
            connected = connected[np.argsort(gain[connected], kind="stable")[:_EXCHANGES]]
            proposals.append(np.where(part == connected[:, None], a + b - z, z))
        return np.concatenate(proposals)

    def split_clusters(self, z: np.ndarray) -> np.ndarray:
        """Proposals in which a part of a cluster joins an empty cluster, if there is one."""
        size = np.bincount(z, minlength=self.k)
        return self._split(z, size.nonzero()[0] if size.min() == 0 else [], int(size.argmin()))

    def divide_pairs(self, z: np.ndarray) -> np.ndarray:
        """Proposals in which two near clusters are divided anew, or merged while another splits."""
        pairs, allowed = self._used_pairs(z)
        nearest = np.argsort(self.lengths.scatter_increases(z, pairs), kind="stable")
        proposals = [np.zeros((0, z.size), z.dtype)]
        for i, pair in enumerate(nearest[: min(_NEAR_PAIRS * self.k, _DIVISIONS)]):
            a, b = pairs[pair].tolist()
            merged = np.where(z == b, a, z)
            divided = self._split(merged, [a], b)
            if allowed[pair]:
                # Other clusters are split for the nearest pairs only.
                others = np.setdiff1d(z, [a, b])[: None if i < _NEAR_PAIRS else 0]
                proposals += [divided, self._split(merged, others, b)]
            else:
                proposals.append(self._respect_links(z, divided, a, b))
        return np.concatenate(proposals)

    def _respect_links(self, z: np.ndarray, proposals: np.ndarray, a: int, b: int) -> np.ndarray:
        """Divide clusters a and b as in ``proposals`` (m, C), as far as cannot-links allow.

        The parts that cannot-links connect keep their clusters in ``z``, or exchange them.
        """
        part = self._linked_parts(z, a, b)
        votes = self.lengths.mass * np.where(proposals == z, -1, 1)
        sums = [np.bincount(part, row) for row in votes]
        exchanged = np.reshape(sums, (len(votes), part.max() + 1)) > 0
        inside = (z == a) | (z == b)
        return np.where(exchanged[:, part] & inside, a + b - z, z)

    def chain_moves(self, z: np.ndarray) -> np.ndarray:
        """Proposal of a chain of moves, if any shortens the description."""
        result = improve_by_chains(self.lengths, z, 0.0)
        return np.zeros((0, z.size), z.dtype) if result is None else result[None]

    def _split(self, z: np.ndarray, clusters: Iterable[int], new: int) -> np.ndarray:
        """Move a part of one of the ``clusters`` to the cluster ``new``, which is empty."""
        proposals = [np.zeros((0, z.size), z.dtype)]
        for c in clusters:
            members = np.flatnonzero(z == c)
            if members.size < 2:
                continue
            parts = propose_splits(
                self.lengths.mean[members], self.lengths.mass[members], None, 0.0
            )
            masks = np.zeros((len(parts), z.size), bool)
            if parts:
                masks[:, members] = parts
            proposals.append(np.where(masks, new, z))
        return np.concatenate(proposals)
