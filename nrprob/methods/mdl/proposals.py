"""Local search by proposals, which change the labels of many units of one view at a time.

A unit is a must-link component or a sample. C units are in at most K clusters; p is a number of
pairs of clusters. Proposals are m labelings (m, C). Proposals of a type are ordered by their
description lengths, or by upper bounds of the lengths if there are many cannot-links. Moves of
single units refine the shortest proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from nrprob.data.labels import factorize
from nrprob.engines.optimise.move_chains import improve_by_chains, improve_by_passes
from nrprob.engines.optimise.split_proposals import propose_splits
from nrprob.methods.mdl.soft_words import SoftWords
from nrprob.methods.mdl.view_objective import ViewObjective
from nrprob.statistics.groups import group_sums

_REFINED = 4  # largest number of proposals of a type from which single moves are made
_EXCHANGES = 16  # largest number of exchanges per pair of clusters, and of moves of linked sets
_MERGES, _DIVISIONS = 64, 32  # largest numbers of pairs of clusters that are merged, or redivided
_TWICE = 2  # largest number of splits per cluster whose parts are split again
_NEAR_PAIRS = 3  # largest number of redivided pairs of clusters, per cluster


def improve_labels(
    objective: ViewObjective,
    z: np.ndarray,
    tol: float,
    max_rounds: int,
    labelings: Sequence[np.ndarray] = (),
    *,
    splits: bool = True,
    chains: bool = True,
) -> tuple[np.ndarray, list[float], bool]:
    """Improve the labels of one view by moves of single units and by proposals.

    Parameters
    ----------
    objective : description length of the labels of the view
    z : (C,) initial clusters of the units, which satisfy all constraints
    tol : smallest decrease of the length, in nats, that counts as an improvement
    max_rounds : maximum number of accepted proposals
    labelings : other labelings (C,) of the units, by which clusters may split, and which may
        replace the clusters
    splits : whether there are proposals other than merges of clusters and chains of moves
    chains : whether there are proposals by chains of moves

    Returns
    -------
    z : (C,) improved clusters of the units
    trace : description length after the first single moves, and after every accepted proposal
    converged : whether no single move and no proposal shortens the description by more than ``tol``
    """
    z = improve_by_passes(objective, z, tol)
    proposals = _Proposals(objective, labelings, splits, chains)
    trace = [float(objective.totals(z[None])[0])]
    while len(trace) <= max_rounds:
        for propose in proposals.types:
            result = _refine_best(objective, z, propose(z), trace[-1], tol)
            if result is not None:
                break
        else:
            return z, trace, True
        z, length = result
        trace.append(length)
    return z, trace, False


def _refine_best(
    objective: ViewObjective, z: np.ndarray, proposals: np.ndarray, current: float, tol: float
) -> tuple[np.ndarray, float] | None:
    """Refine the shortest of the ``proposals`` (m, C) by moves of single units.

    The function returns the labels (C,) of the shortest refined proposal, and their description
    length. The result is None unless this length is below ``current - tol``. ``z`` (C,) are the
    current labels, with the description length ``current``.
    """
    if not len(proposals):
        return None
    estimates = objective.estimates(proposals, z)
    # Moves take longer under soft pairs.
    count = _REFINED // 2 if isinstance(objective.words, SoftWords) else _REFINED
    order = np.argsort(estimates, kind="stable")[:count]
    order = order[np.isfinite(estimates[order])]
    if not order.size:
        return None
    refined = np.stack([improve_by_passes(objective, proposals[i], tol) for i in order])
    totals = objective.totals(refined)
    best = int(totals.argmin())
    return (refined[best], float(totals[best])) if totals[best] < current - tol else None


class _Proposals:
    """Generator of proposals: labelings (m, C) that may differ from z by many moves.

    z (C,) are the current labels of C units. Every method returns proposals of one type, of which
    there may be none. The arguments are as in `improve_labels`.

    Attributes
    ----------
    types : methods for the types of proposals that ``splits`` and ``chains`` select
    """

    def __init__(
        self,
        objective: ViewObjective,
        labelings: Sequence[np.ndarray],
        splits: bool,
        chains: bool,
    ):
        self.objective, self.k, self.labelings = objective, objective.k, labelings
        more = (
            self.exchange_clusters,
            self.move_linked_sets,
            self.split_clusters,
            self.split_twice,
            self.adopt_labelings,
            self.divide_pairs,
        )
        self.types: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
            self.merge_clusters,
            *(more if splits else ()),
            *((self.chain_moves,) if chains else ()),
        )

    def _used_pairs(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All p pairs of clusters that have units, given labels z (C,).

        Returns
        -------
        pairs : (p, 2) the two clusters of every pair
        allowed : (p,) whether hard cannot-links allow to merge the two clusters
        """
        used = np.flatnonzero(np.bincount(z, minlength=self.k))
        pairs = used[np.stack(np.triu_indices(used.size, 1), 1)]
        linked = np.zeros((self.k, self.k), bool)
        ends = tuple(z[units] for units in self.objective.links)
        linked[ends] = linked[ends[::-1]] = True
        return pairs, ~linked[pairs[:, 0], pairs[:, 1]]

    def _scatter_increases(self, z: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """Increase (p,) of the within-cluster sum of squares if the clusters of a pair are merged.

        ``pairs`` (p, 2) are pairs of clusters, and z (C,) are the labels of the units.
        """
        mass = self.objective.mass
        size = np.bincount(z, mass, self.k)
        centres = group_sums(self.objective.mean * mass[:, None], z, self.k)
        centres /= np.maximum(size, 1)[:, None]
        first, second = pairs.T
        square = ((centres[first] - centres[second]) ** 2).sum(1)
        return size[first] * size[second] / (size[first] + size[second]) * square

    def merge_clusters(self, z: np.ndarray) -> np.ndarray:
        """Proposals that merge two clusters, for the nearest pairs of clusters."""
        pairs, allowed = self._used_pairs(z)
        pairs = pairs[allowed]
        nearest = np.argsort(self._scatter_increases(z, pairs), kind="stable")
        pairs = pairs[nearest[:_MERGES]]
        return np.where(z == pairs[:, 1:], pairs[:, :1], z)

    def _linked_parts(self, z: np.ndarray, a: int, b: int) -> np.ndarray:
        """Index (C,) of the connected component of every unit in a graph of cannot-links.

        The graph has the hard cannot-links between units in the clusters a and b, given labels z
        (C,). A connected component is called a part.
        """
        early, late = self.objective.links
        edge = np.isin(z[early], (a, b)) & np.isin(z[late], (a, b))
        graph = sparse.coo_array(
            (np.ones(edge.sum(), bool), (early[edge], late[edge])), shape=(z.size, z.size)
        )
        return connected_components(graph, directed=False)[1]

    def exchange_clusters(self, z: np.ndarray) -> np.ndarray:
        """Proposals that exchange two clusters within a Kempe chain.

        A Kempe chain is a set of units in the two clusters that hard cannot-links connect. Moves of
        single units cannot exchange the clusters of such units.
        """
        pairs, allowed = self._used_pairs(z)
        proposals = [np.zeros((0, z.size), z.dtype)]
        change = self.objective.features.changes(z[None])[0]
        for a, b in pairs[~allowed].tolist():
            part = self._linked_parts(z, a, b)
            # Choose the parts with the largest sums of decreases by single moves of their units.
            other = np.where(z == a, b, np.where(z == b, a, z))
            gain = np.bincount(part, change[np.arange(z.size), other])
            connected = np.flatnonzero(np.bincount(part) > 1)
            connected = connected[np.argsort(gain[connected], kind="stable")[:_EXCHANGES]]
            proposals.append(np.where(part == connected[:, None], a + b - z, z))
        return np.concatenate(proposals)

    def move_linked_sets(self, z: np.ndarray) -> np.ndarray:
        """Proposals that move a set of units of one cluster to another cluster.

        Soft must-links connect the units of the set.
        """
        words = self.objective.words
        if not isinstance(words, SoftWords):
            return np.zeros((0, z.size), z.dtype)
        linked = words.linked_sets(z)
        change = self.objective.features.changes(z[None])[0]
        gain = group_sums(change, linked)
        gain[np.bincount(linked) < 2] = np.inf
        gain[linked, z] = np.inf
        order = np.argsort(gain, None, kind="stable")[:_EXCHANGES]
        sets, clusters = np.divmod(order[np.isfinite(gain.ravel()[order])], self.k)
        return np.where(linked == sets[:, None], clusters[:, None], z)

    def split_clusters(self, z: np.ndarray) -> np.ndarray:
        """Proposals that move a part of a cluster to an empty cluster, if there is one."""
        size = np.bincount(z, minlength=self.k)
        return self._split(z, size.nonzero()[0] if size.min() == 0 else [], int(size.argmin()))

    def split_twice(self, z: np.ndarray) -> np.ndarray:
        """Proposals that split a cluster in three, if two clusters are empty.

        If a cluster contains three groups at equal distances, a split in two may shorten the code
        of the features less than it lengthens the code words. A split in three may still shorten
        the description.
        """
        empty = np.flatnonzero(np.bincount(z, minlength=self.k) == 0)
        if empty.size < 2:
            return np.zeros((0, z.size), z.dtype)
        proposals = [np.zeros((0, z.size), z.dtype)]
        for c in np.unique(z).tolist():
            for once in self._split(z, [c], int(empty[0]))[:_TWICE]:
                proposals.append(self._split(once, [c, int(empty[0])], int(empty[1])))
        return np.concatenate(proposals)

    def adopt_labelings(self, z: np.ndarray) -> np.ndarray:
        """Proposals equal to the other ``labelings``; no proposals with hard cannot-links.

        ``labelings`` is the argument of `improve_labels`.
        """
        proposals = [np.zeros((0, z.size), z.dtype)]
        for labeling in self.labelings if not self.objective.links[0].size else ():
            codes = factorize(labeling)[0].astype(z.dtype)
            if labeling.min() >= 0 and codes.max() < self.k:
                proposals.append(codes[None])
        return np.concatenate(proposals)

    def divide_pairs(self, z: np.ndarray) -> np.ndarray:
        """Proposals that redivide two near clusters, or merge two and split another cluster."""
        pairs, allowed = self._used_pairs(z)
        nearest = np.argsort(self._scatter_increases(z, pairs), kind="stable")
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
        """Adapt ``proposals`` (m, C), which redivide clusters a and b, to the hard cannot-links.

        Units that cannot-links connect decide together, by majority of their samples: either all of
        them keep their clusters in the current labels ``z`` (C,), or all exchange a and b.
        """
        part = self._linked_parts(z, a, b)
        votes = self.objective.mass * np.where(proposals == z, -1, 1)
        sums = [np.bincount(part, row) for row in votes]
        exchanged = np.reshape(sums, (len(votes), part.max() + 1)) > 0
        inside = (z == a) | (z == b)
        return np.where(exchanged[:, part] & inside, a + b - z, z)

    def chain_moves(self, z: np.ndarray) -> np.ndarray:
        """One proposal by a chain of moves; no proposal if no chain shortens the description."""
        result = improve_by_chains(self.objective, z, 0.0)
        return np.zeros((0, z.size), z.dtype) if result is None else result[None]

    def _split(self, z: np.ndarray, clusters: Iterable[int], new: int) -> np.ndarray:
        """Proposals that move a part of one of the ``clusters`` to the empty cluster ``new``."""
        proposals = [np.zeros((0, z.size), z.dtype)]
        for c in clusters:
            members = np.flatnonzero(z == c)
            if members.size < 2:
                continue
            parts = propose_splits(
                self.objective.mean[members], self.objective.mass[members], None, 0.0
            )
            for labeling in self.labelings:
                inside = labeling[members]
                values = np.unique(inside)
                parts += [inside == value for value in values[: None if values.size > 2 else 1]]
            parts = [part for part in parts if part.any() and not part.all()]
            masks = np.zeros((len(parts), z.size), bool)
            if parts:
                masks[:, members] = parts
            proposals.append(np.where(masks, new, z))
        return np.concatenate(proposals)
