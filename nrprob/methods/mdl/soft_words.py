"""Lengths of code words and flags under soft pairs, and changes of these lengths by single moves.

Every must-link component has a label. `nrprob.methods.mdl.label_codes` defines code words, open
clusters and weights. Lengths are in nats, without the parametric complexity of the weights.

Soft must-links connect components to *groups*, which are not the known groups. If a component
moves, code words change only in the *surroundings* of its group: in this group, and in all groups
that cannot-links connect with it. Moves are evaluated on copies of the surroundings. An *entry* is
a component in a copy.

Host code in NumPy and float64. C components are in K clusters; m labelings are evaluated at a time.
There are E entries, and U distinct sets of open clusters. B of the components occur in pairs; there
are p pairs of a type, and e hard cannot-links.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.special import xlogy

from nrprob.methods.mdl.label_codes import flags_length, optimal_words
from nrprob.methods.mdl.linked_words import LinkedWords, cluster_codes
from nrprob.statistics.squared_distances import cluster_sums

_CHUNK = 2_000_000  # entries, or sizes of tables, that are evaluated at a time
_MARGIN = 30.0  # changes by moves ignore choices of pairs longer than the best by more nats
_EXACT = 10_000  # up to this number of entries of the tables of words, all changes are exact
_REMEMBERED = 32  # largest number of labelings whose lengths are stored for later calls
_NO_PAIRS = np.zeros((0, 2), np.int64)


class _Copies(NamedTuple):
    """Copies of sets of components and of their pairs, to evaluate many labelings at once.

    Every copy has separate labels. There are E entries: components in a copy.

    Attributes
    ----------
    n : number of copies
    copy : (E,) index of the copy of every entry
    unit : (E,) component of every entry, as position in `SoftWords.bound`; increasing in a copy
    links : (p, 2) indices of the two entries of every soft must-link
    apart : (p, 2) indices of the two entries of every soft or hard cannot-link
    soft : (p,) mask of the soft cannot-links in ``apart``
    """

    n: int
    copy: np.ndarray
    unit: np.ndarray
    links: np.ndarray
    apart: np.ndarray
    soft: np.ndarray


class _WordCounts(NamedTuple):
    """Numbers of code words and of retained pairs in S labelings.

    Attributes
    ----------
    encoded : (S, K) numbers of words that encode each of K clusters
    often : (S, U) for each of U sets of clusters, number of words to which exactly this set is
        open; the first set has all clusters. `nrprob.methods.mdl.label_codes` defines open clusters
    retained : (S, 2) number of retained soft must-links, and of retained soft cannot-links
    """

    encoded: np.ndarray
    often: np.ndarray
    retained: np.ndarray


class SoftWords:
    """Code words and flags of the labels of components under soft must-links and cannot-links.

    Two components with a retained must-link share one word. For a retained or hard cannot-link, the
    cluster of the earlier word is not open to the later word. Of each type of soft pairs, the code
    retains all satisfied pairs or none. The length is the minimum over these choices.

    Parameters
    ----------
    n_units : number C of components
    links, apart : (p, 2) pairs of components in soft must-links and in soft cannot-links
    positions : (C,) position of every component in the order of transmission; components that soft
        must-links connect have successive positions
    k : number K of clusters
    edges : (e, 2) pairs of components in hard cannot-links
    start : (C,) clusters that satisfy the hard cannot-links; None if unknown

    Attributes
    ----------
    hard_links : code words under the hard cannot-links alone; None without hard cannot-links
    bound : (B,) components in pairs, in the order of transmission
    links : (p, 2) positions in ``bound`` of the two components of every soft must-link
    apart : (p, 2) positions in ``bound`` of the two components of every cannot-link; soft
        cannot-links come first, then hard ones
    flags : two arrays, for soft must-links and for soft cannot-links: the length of their flags
        for every number of retained pairs
    """

    def __init__(
        self, n_units: int, links: np.ndarray, apart: np.ndarray, positions: np.ndarray, k: int,
        edges: np.ndarray = _NO_PAIRS, start: np.ndarray | None = None,
    ):  # fmt: skip
        self.k, self._n_units, self._pairs = k, n_units, links
        self.hard_links = LinkedWords(n_units, edges, positions, k, start) if len(edges) else None
        # Components in pairs are numbered in the order of transmission.
        cannot = np.concatenate([apart, edges])
        bound = np.unique(np.concatenate([links, cannot]))
        self.bound = bound[np.argsort(positions[bound], kind="stable")]
        self._free = np.setdiff1d(np.arange(n_units), bound)
        place = np.full(n_units, -1)
        place[self.bound] = np.arange(bound.size)
        self.links, self.apart = place[links], place[cannot]
        self._soft = np.arange(len(cannot)) < len(apart)
        self._choices = list(
            itertools.product(*((True, False) if len(p) else (False,) for p in (links, apart)))
        )
        self.flags = [
            np.array([flags_length(i, len(pairs)) for i in range(len(pairs) + 1)])
            for pairs in (links, apart)
        ]
        self._cluster_code = cluster_codes(k)
        self._find_surroundings()
        self._recent: dict[bytes, np.ndarray] = {}  # results of `_choice_lengths`

    def _find_surroundings(self) -> None:
        """Find the group of every component in a pair, and the surroundings of every group.

        A group is a set of components that soft must-links connect. The surroundings of a group are
        the group itself, and all groups that cannot-links connect with the group.
        """
        b = self.bound.size
        graph = _incidence(self.links[:, :1], self.links[:, 1:], (b, b))
        n_groups, self._group = connected_components(graph, directed=False)
        of_link, of_apart = self._group[self.links[:, :1]], self._group[self.apart]
        touched = _incidence(of_apart, np.arange(len(of_apart))[:, None], (n_groups, len(of_apart)))
        across = sparse.eye_array(n_groups, format="csr") + touched @ touched.T
        self._near_links = across @ _incidence(
            of_link, np.arange(len(of_link))[:, None], (n_groups, len(of_link))
        )
        self._near_apart = across @ touched
        ends = _incidence(np.arange(len(of_apart))[:, None], self.apart, (len(of_apart), b))
        members = _incidence(self._group[:, None], np.arange(b)[:, None], (n_groups, b))
        self._near_units = across @ members + self._near_apart @ ends
        for matrix in (self._near_links, self._near_apart, self._near_units):
            matrix.sort_indices()

    # Lengths

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Lengths (m,) of code words and flags, for m labelings z (m, C).

        The length is infinite if a labeling violates a hard cannot-link.
        """
        step = max(1, _CHUNK // max(self.bound.size, 1))
        parts = [self._choice_lengths(z[i : i + step]) for i in range(0, len(z), step)]
        lengths = np.concatenate([np.zeros((len(self._choices), 0)), *parts], 1)
        if len(z) <= _REMEMBERED:
            self._recent = {labels.tobytes(): v for labels, v in zip(z, lengths.T, strict=True)}
        return lengths.min(0)

    def _copy_all(self, m: int) -> _Copies:
        """Copy all components in pairs, and all pairs, ``m`` times."""
        b = self.bound.size
        first = b * np.arange(m)[:, None, None]
        return _Copies(
            m,
            np.repeat(np.arange(m), b),
            np.tile(np.arange(b), m),
            (self.links + first).reshape(-1, 2),
            (self.apart + first).reshape(-1, 2),
            np.tile(self._soft, m),
        )

    def _choice_lengths(self, z: np.ndarray) -> np.ndarray:
        """Lengths (choices, m) of m labelings z (m, C), for every choice of retained pairs.

        A choice states for each type of pairs whether all satisfied pairs are retained, or none.
        """
        copies, label = self._copy_all(len(z)), z[:, self.bound].ravel()
        free = cluster_sums(z[:, self._free], np.ones(self._free.size), self.k).astype(np.int64)
        result = np.empty((len(self._choices), len(z)))
        for lengths, choice in zip(result, self._choices, strict=True):
            words, open_ = self._count_words(copies, label, *choice)
            words.often[:, 0] += self._free.size
            words = words._replace(encoded=words.encoded + free)
            lengths[:] = self._lengths(words, open_)
        result[:, _broken_copies(copies, label)] = np.inf
        return result

    def _known_lengths(self, z: np.ndarray) -> np.ndarray:
        """Return `_choice_lengths` of m labelings z (m, C), from stored results if available."""
        keys = [labels.tobytes() for labels in z]
        if all(key in self._recent for key in keys):
            return np.stack([self._recent[key] for key in keys], 1)
        return self._choice_lengths(z)

    def estimates(self, z: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Lengths (m,) of m labelings z (m, C), equal to `totals`; ``present`` is ignored.

        The method corresponds to `LinkedWords.estimates`, which returns upper bounds.
        """
        return self.totals(z)

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (m, C, K) of the length if one of C components moves to one of K clusters.

        ``z`` (m, C) are the labels before the move. The changes are upper bounds in two cases. With
        many pairs, they are computed at the current weights of the clusters. Choices of retained
        pairs whose current length exceeds the minimum by more than 30 nats are ignored, although a
        move might make them the shortest.
        """
        result = np.zeros((*z.shape, self.k))
        # Limit the numbers of labelings and of components that are evaluated at a time.
        n_entries = np.cumsum(np.diff(self._near_units.indptr)[self._group] * self.k)
        step = max(1, _CHUNK // max(int(n_entries[-1]), 1))
        for i in range(0, len(z), step):
            states, chunk = slice(i, i + step), n_entries // _CHUNK
            for index in np.unique(chunk):
                units = np.flatnonzero(chunk == index)
                moves, free = self._changes_by_moves(z[states], units)
                result[states, self.bound[units]] = moves
            present = z[states][:, self._free]
            result[states, self._free] = free[np.arange(len(free))[:, None], present]
        return result

    def together(self, units: np.ndarray) -> np.ndarray:
        """Select components from the sequence ``units`` that may move at the same time.

        No hard cannot-link connects two of the selected components; earlier ones have priority.
        """
        return units if self.hard_links is None else self.hard_links.together(units)

    def linked_sets(self, z: np.ndarray) -> np.ndarray:
        """Index (C,) of the linked set of every component, given labels z (C,).

        Two components with a soft must-link and the same label are in the same linked set.
        """
        joined = self._pairs[z[self._pairs[:, 0]] == z[self._pairs[:, 1]]]
        graph = _incidence(joined[:, :1], joined[:, 1:], (self._n_units, self._n_units))
        return connected_components(graph, directed=False)[1]

    def _count_words(
        self, copies: _Copies, label: np.ndarray, links_on: bool, apart_on: bool
    ) -> tuple[_WordCounts, np.ndarray]:
        """Count the code words in every copy, for the labels (E,) of all entries.

        An entry is a component in a copy. ``links_on`` states whether the code retains satisfied
        soft must-links, and ``apart_on`` whether it retains satisfied soft cannot-links.

        Returns
        -------
        words : numbers of words and of retained pairs, by copy
        open_ : (U, K) distinct sets of open clusters, as masks; the first set has all clusters
        """
        k, n_entries, copy = self.k, label.size, copies.copy
        joined = copies.links[label[copies.links[:, 0]] == label[copies.links[:, 1]]]
        joined = joined if links_on else joined[:0]
        # Linked components share the word of the first one in the order of transmission.
        sender = np.arange(n_entries)
        first, second = joined.T
        while (sender[first] != sender[second]).any():
            least = np.minimum(sender[first], sender[second])
            np.minimum.at(sender, sender[first], least)
            np.minimum.at(sender, sender[second], least)
            sender = sender[sender]
        senders = np.flatnonzero(sender == np.arange(n_entries))
        count = np.bincount(copy[senders] * k + label[senders], minlength=copies.n * k)
        # The later word of a cannot-link excludes the cluster of the earlier word.
        parted = label[copies.apart[:, 0]] != label[copies.apart[:, 1]]
        active = parted & (~copies.soft | apart_on)
        ends = np.sort(sender[copies.apart[active]], axis=1)
        late, cluster = np.divmod(np.unique(ends[:, 1] * k + label[ends[:, 0]]), k)
        code = np.zeros(n_entries, np.int64)
        np.add.at(code, late, self._cluster_code[cluster])
        # Distinct sets of open clusters; the set of all clusters comes first.
        limited = senders[code[senders] != 0]
        codes, example, index = np.unique(code[limited], return_index=True, return_inverse=True)
        open_ = np.ones((codes.size + 1, k), bool)
        place = np.full(n_entries, -1)
        place[limited[example]] = 1 + np.arange(codes.size)
        shown = place[late] >= 0
        open_[place[late[shown]], cluster[shown]] = False
        often = np.bincount(
            copy[limited] * len(open_) + index + 1, minlength=copies.n * len(open_)
        ).reshape(copies.n, -1)
        often[:, 0] = np.bincount(copy[senders], minlength=copies.n) - often.sum(1)
        retained = [
            np.bincount(copy[entries], minlength=copies.n)
            for entries in (joined[:, 0], copies.apart[active & copies.soft, 0])
        ]
        words = _WordCounts(count.reshape(-1, k), often, np.stack(retained, 1))
        return words, open_

    def _lengths(self, words: _WordCounts, open_: np.ndarray) -> np.ndarray:
        """Minimum lengths (S,) of code words and flags, from the counts ``words`` of S labelings.

        ``open_`` (U, K) are the sets of open clusters that the counts refer to.
        """
        count, often, retained = words
        flags = sum(table[number] for table, number in zip(self.flags, retained.T, strict=True))
        if len(open_) == 1:
            total = count.sum(1)
            return flags + xlogy(total, total) - xlogy(count, count).sum(1)
        # Many moves lead to the same numbers of words.
        rows, index = np.unique(np.concatenate([count, often], 1), axis=0, return_inverse=True)
        step = max(1, _CHUNK // (len(open_) * self.k))
        parts = [
            optimal_words(part[:, : self.k], part[:, self.k :].astype(float), open_)[0]
            for part in (rows[i : i + step] for i in range(0, len(rows), step))
        ]
        return flags + np.concatenate(parts)[index.ravel()]

    def _lengths_near(
        self, present: _WordCounts, changed: _WordCounts, open_: np.ndarray
    ) -> np.ndarray:
        """Upper bounds (S,) of the lengths of code words and flags of S changed labelings.

        The bounds use the optimal weights of the labelings before the changes.

        Parameters
        ----------
        present : counts of m labelings before the changes
        changed : counts of S labelings, in m successive blocks of S / m; every block has changes of
            one labeling of ``present``
        open_ : (U, K) sets of open clusters that the counts refer to
        """
        w = optimal_words(present.encoded, present.often.astype(float), open_)[1]
        w = np.maximum(w, 1 / self._n_units)
        w /= w.sum(1, keepdims=True)
        length = -_row_products(changed.encoded, np.log(w))
        length += _row_products(changed.often, np.log(w @ open_.T))
        return length + sum(
            table[number] for table, number in zip(self.flags, changed.retained.T, strict=True)
        )

    # Moves

    def _copy_surroundings(self, groups: np.ndarray) -> _Copies:
        """Copy the surroundings of each of the groups with indices ``groups`` (R,), in R copies.

        `_find_surroundings` defines groups and surroundings.
        """
        unit, copy = _select(self._near_units, groups)
        key, b = copy * self.bound.size + unit, self.bound.size
        links, of_link = _select(self._near_links, groups)
        apart, of_apart = _select(self._near_apart, groups)
        return _Copies(
            groups.size,
            copy,
            unit,
            np.searchsorted(key, of_link[:, None] * b + self.links[links]),
            np.searchsorted(key, of_apart[:, None] * b + self.apart[apart]),
            self._soft[apart],
        )

    def _changes_by_moves(self, z: np.ndarray, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Changes of the lengths of m labelings z (m, C) by moves of one component.

        ``units`` (q,) are positions in ``bound`` of components in pairs.

        Returns
        -------
        moves : (m, q, K) changes if one of ``units`` moves to one of K clusters
        free : (m, K, K) changes if a component without pairs moves from one cluster to another
        """
        (m, b), k, bound = (len(z), self.bound.size), self.k, z[:, self.bound]
        # Copies of the surroundings: one per group, then one per move. Copies of everything follow.
        groups, origin = np.unique(self._group[units], return_inverse=True)
        rows = np.append(groups, np.repeat(groups[origin], k))
        copies = self._copy_surroundings(np.tile(rows, m))
        everything = self._copy_all(m)
        first = copies.unit.size
        both = _Copies(
            copies.n + m,
            np.append(copies.copy, copies.n + everything.copy),
            np.append(copies.unit, everything.unit),
            np.concatenate([copies.links, first + everything.links]),
            np.concatenate([copies.apart, first + everything.apart]),
            np.append(copies.soft, everything.soft),
        )
        state = np.append(np.repeat(np.arange(m), rows.size), np.arange(m))
        label = bound[state[both.copy], both.unit]
        moved = (np.arange(m)[:, None] * rows.size + np.arange(groups.size, rows.size)).ravel()
        entry = moved * b + np.tile(np.repeat(units, k), m)
        entry = np.searchsorted(copies.copy * b + copies.unit, entry)
        label[entry] = np.tile(np.arange(k), m * units.size)
        # Moves of components without pairs change the counts only.
        size = cluster_sums(z[:, self._free], np.ones(self._free.size), k).astype(np.int64)
        step = np.eye(k, dtype=np.int64)
        shift = np.where((size > 0)[:, :, None, None], step[None] - step[:, None], 0)
        lengths = self._known_lengths(z)
        present = lengths.min(0)
        best = np.full((m, k * k + units.size * k), np.inf)
        for length, choice in zip(lengths, self._choices, strict=True):
            if (length > present + _MARGIN).all():
                continue
            words, open_ = self._count_words(both, label, *choice)
            count, often, retained = (a[-m:] for a in words)
            often[:, 0] += self._free.size
            total = _WordCounts(count + size, often, retained)
            shifted = _WordCounts(
                shift.reshape(m, -1, k),
                np.zeros((m, k * k, len(open_)), np.int64),
                np.zeros((m, k * k, 2), np.int64),
            )
            parts = []
            for a, t, same in zip(words, total, shifted, strict=True):
                a = a[:-m].reshape(m, rows.size, -1)
                change = a[:, groups.size :] - a[:, np.repeat(origin, k)]
                part = t[:, None] + np.concatenate([same, change], 1)
                parts.append(part.reshape(-1, part.shape[2]))
            every = _WordCounts(*parts)
            if every.often.size * k <= _EXACT * m:
                values = self._lengths(every, open_)
            else:
                values = self._lengths_near(total, every, open_)
            best = np.minimum(best, values.reshape(m, -1))
        best -= present[:, None]
        moves = best[:, k * k :].reshape(-1)
        broken = _broken_copies(copies, label)
        moves[np.isin(moved, broken)] = np.inf
        return moves.reshape(m, -1, k), best[:, : k * k].reshape(m, k, k)


def _row_products(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Dot products (S,) of the rows of ``values`` (S, U) with rows of ``columns`` (m, U).

    The rows of ``values`` are in m successive blocks of equal size. All rows of block i are
    multiplied by row i of ``columns``.
    """
    return (values.reshape(len(columns), -1, columns.shape[1]) @ columns[:, :, None]).ravel()


def _incidence(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    """Sparse matrix of ``shape`` with ones at ``rows`` and ``columns``, and zeros elsewhere.

    The arrays of row and column indices are broadcast against each other.
    """
    rows, columns = np.broadcast_arrays(rows, columns)
    ones = np.ones(rows.size)
    return sparse.csr_array((ones, (rows.ravel(), columns.ravel())), shape=shape)


def _select(matrix: sparse.csr_array, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the stored entries of a sparse matrix in the rows with indices ``rows`` (R,).

    Returns
    -------
    columns : column of every such entry
    position : position of the row of the entry in ``rows``
    """
    size = np.diff(matrix.indptr)[rows]
    copy = np.repeat(np.arange(rows.size), size)
    offset = np.arange(copy.size) - (np.cumsum(size) - size)[copy]
    return matrix.indices[matrix.indptr[rows][copy] + offset].astype(np.int64), copy


def _broken_copies(copies: _Copies, label: np.ndarray) -> np.ndarray:
    """Indices of the copies whose labels violate a hard cannot-link.

    ``label`` (E,) are the labels of all entries of the copies.
    """
    first, second = copies.apart.T
    return np.unique(copies.copy[first[~copies.soft & (label[first] == label[second])]])
