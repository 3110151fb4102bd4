"""Lengths of code words under hard cannot-links, and changes of these lengths by single moves.

Every *unit*, a must-link component, has a label. C components are in K clusters; m labelings are
evaluated at a time. `nrprob.methods.mdl.label_codes` defines code words, open clusters and weights.
The length of a labeling depends on two kinds of counts: words by encoded cluster, and words by set
of open clusters. There are U distinct sets. e cannot-links connect B of the components, and there
are p soft must-links. Lengths are in nats, without the parametric complexity of the weights.

Host code in NumPy and float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from nrprob import colouring
from nrprob.links import Components, Pairs
from nrprob.methods.mdl.label_codes import optimal_words
from nrprob.statistics.squared_distances import cluster_sums

_CHUNK = 4_000_000  # entries of a table that are computed at a time
_EXACT = 1_000_000  # up to this number of entries of the tables of words, all changes are exact
_FEW_WORDS = 1000  # up to this number of linked components times clusters, estimates are exact
_MASK_BITS = 62  # number of clusters whose codes are powers of two; other codes are random


def cluster_codes(k: int) -> np.ndarray:
    """Make one integer per cluster, so that the sum of the integers of a set identifies the set.

    Up to 62 clusters have powers of two. Further clusters have random integers, whose sums identify
    sets with high probability. The result has shape (K,) for ``k`` clusters.
    """
    bits = np.left_shift(1, np.arange(min(k, _MASK_BITS)), dtype=np.int64)
    more = np.random.default_rng(0).integers(2**62, size=k - bits.size)
    return np.concatenate([bits, more])


def transmission_order(n_units: int, links: np.ndarray, *apart: np.ndarray) -> np.ndarray:
    """Positions (C,) of must-link components in the order of transmission of their code words.

    The order is the inductive order of the graph of cannot-links; see
    `nrprob.colouring.inductive_order`. The order is computed as if the code retained all soft
    pairs, so the order does not depend on the retained pairs.

    Parameters
    ----------
    n_units : number C of components
    links : (p, 2) pairs of components in soft must-links
    apart : arrays (e, 2) of pairs of components in hard or soft cannot-links
    """
    closure = Components(n_units, [Pairs(links, "")], [])
    edges = np.sort(closure.node[np.concatenate(apart)], axis=1)
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    order, _ = colouring.inductive_order(colouring.adjacency_sets(closure.n_nodes, edges))
    rank = np.empty(closure.n_nodes, np.int64)
    rank[order] = np.arange(order.size)
    positions = np.empty(n_units, np.int64)
    positions[np.lexsort((np.arange(n_units), rank[closure.node]))] = np.arange(n_units)
    return positions


class LinkedWords:
    """Code words of the labels of must-link components under hard cannot-links.

    Parameters
    ----------
    n_units : number C of components
    edges : (e, 2) pairs of components in cannot-links
    positions : (C,) position of every component in the order of transmission
    k : number K of clusters
    start : (C,) clusters that satisfy the cannot-links; None if unknown

    Attributes
    ----------
    early, late : (e,) the two components of every cannot-link; the word of ``early`` is sent first
    bound : (B,) components in cannot-links
    place : (C,) position of every component in ``bound``; -1 for components without cannot-links
    """

    def __init__(
        self,
        n_units: int,
        edges: np.ndarray,
        positions: np.ndarray,
        k: int,
        start: np.ndarray | None = None,
    ):
        self.k, self._n_units, self._positions, self._start = k, n_units, positions, start
        swap = positions[edges[:, 0]] > positions[edges[:, 1]]
        ends = np.where(swap[:, None], edges[:, ::-1], edges)
        self.early, self.late = ends[np.argsort(ends[:, 0], kind="stable")].T
        self.bound = np.unique(ends)
        self.place = np.full(n_units, -1)
        self.place[self.bound] = np.arange(self.bound.size)
        self._neighbours = colouring.adjacency_sets(n_units, edges)
        self._cluster_code = cluster_codes(k)

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Total lengths (m,) of the code words of m labelings z (m, C).

        The labelings must satisfy the cannot-links.
        """
        # Many labelings have many different sets of open clusters.
        words = max(self.bound.size * self.k, 1)
        step = max(1, min(_CHUNK // z.shape[1], math.isqrt(_CHUNK // words)))
        return _in_chunks(z, step, self._shortest_words)

    def estimates(self, z: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Upper bounds (m,) of the lengths of the code words of m labelings z (m, C).

        The bounds use the optimal weights of the current labels ``present`` (C,). If there are many
        cannot-links, bounds take less time than `totals`. With few cannot-links, the result is
        exact.
        """
        if self.bound.size * self.k <= _FEW_WORDS:
            return self.totals(z)
        _, _, open_, index = self._open_sets(present[None])
        count = cluster_sums(present[None], np.ones(present.size), self.k)
        w = self._positive_weights(optimal_words(count, _histogram(index, len(open_)), open_)[1])[0]

        def words_length(part):
            count = cluster_sums(part, np.ones(part.shape[1]), self.k)
            available = (self._taken(part) == 0) @ w
            return np.log(np.maximum(available, 1e-300)).sum(1) - count @ np.log(w)

        step = max(1, _CHUNK // max(z.shape[1], self.bound.size * self.k))
        return _in_chunks(z, step, words_length)

    def changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (m, C, K) of the length if one of C components moves to one of K clusters.

        ``z`` (m, C) are the labels before the move. The change is infinite if a cannot-link forbids
        the move. With many cannot-links, the changes are upper bounds.
        """
        return self._word_changes(z)

    def together(self, units: np.ndarray) -> np.ndarray:
        """Select components from the sequence ``units`` that may move at the same time.

        No cannot-link connects two of the selected components; earlier ones have priority.
        """
        chosen: set[int] = set()
        for unit in units.tolist():
            if not self._neighbours[unit] & chosen:
                chosen.add(unit)
        return np.array([unit for unit in units.tolist() if unit in chosen])

    @property
    def hard_links(self) -> LinkedWords:
        """The object itself, as all its cannot-links are hard; compare `SoftWords.hard_links`."""
        return self

    def separate(self, z: np.ndarray, cost: np.ndarray) -> np.ndarray | None:
        """Change a few of the labels ``z`` (C,), so that all labels satisfy the cannot-links.

        The components are visited in the order of transmission. If an earlier component across a
        cannot-link has the same label, a component moves to the open cluster of the smallest
        ``cost`` (C, K). If no cluster is open, the result is the argument ``start`` of the class,
        which may be None.
        """
        z = z.copy()
        for unit in self.bound[np.argsort(self._positions[self.bound], kind="stable")].tolist():
            earlier = [n for n in self._neighbours[unit] if self._precedes(n, unit)]
            taken = set(z[earlier].tolist())
            if z[unit] in taken:
                open_ = [c for c in range(self.k) if c not in taken]
                if not open_:
                    return None if self._start is None else self._start.astype(z.dtype)
                z[unit] = open_[int(cost[unit, open_].argmin())]
        return z

    def _precedes(self, first: int, second: int) -> bool:
        return bool(self._positions[first] < self._positions[second])

    def _shortest_words(self, z: np.ndarray) -> np.ndarray:
        """Total lengths (m,) of the code words of m labelings z (m, C) at the optimal weights."""
        count = cluster_sums(z, np.ones(z.shape[1]), self.k)
        _, _, open_, index = self._open_sets(z)
        return optimal_words(count, _histogram(index, len(open_)), open_)[0]

    def _open_sets(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Find the clusters that are open to the code words of m labelings z (m, C).

        Returns
        -------
        taken : (m, B, K) for each component in ``bound``, numbers of earlier words across its
            cannot-links, by encoded cluster; a cluster is open if its number is 0
        codes : (m, B) sums of `cluster_codes` over the clusters that are not open
        open_ : (U, K) distinct sets of open clusters, as masks
        index : (m, C) index in ``open_`` of the set that is open to every word
        """
        taken = self._taken(z)
        codes = (taken > 0) @ self._cluster_code
        flat = np.append(codes.ravel(), 0)
        _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        sets = np.concatenate([taken.reshape(-1, self.k) > 0, np.zeros((1, self.k), bool)])
        index = np.full(z.shape, inverse[-1])
        index[:, self.bound] = inverse[:-1].reshape(codes.shape)
        return taken, codes, ~sets[first], index

    def _positive_weights(self, w: np.ndarray) -> np.ndarray:
        """Raise cluster probabilities w (m, K) to at least 1 / C, for C components, and normalise.

        The weights of every row then sum to 1.
        """
        w = np.maximum(w, 1 / self._n_units)
        return w / w.sum(1, keepdims=True)

    def _taken(self, z: np.ndarray) -> np.ndarray:
        """Numbers (m, B, K) of earlier words across cannot-links, by encoded cluster.

        The result has the numbers for every component in ``bound``, given m labelings z (m, C).
        """
        m, b, k = len(z), self.bound.size, self.k
        place = (np.arange(m)[:, None] * b + self.place[self.late]) * k + z[:, self.early]
        return np.bincount(place.ravel(), minlength=m * b * k).reshape(m, b, k)

    def _word_changes(self, z: np.ndarray) -> np.ndarray:
        """Changes (m, C, K) of the total length of the code words by every move; see `changes`."""
        (m, c), k = z.shape, self.k
        count = cluster_sums(z, np.ones(c), self.k)
        step = np.eye(k)
        shifts = count[:, None, None] - step[:, None] + step  # (m, K, K, K): from, to
        taken, codes, open_, index = self._open_sets(z)
        histogram = _histogram(index, len(open_))
        before, weights = optimal_words(count, histogram, open_)
        if m * k * (k + self.bound.size) * len(open_) * k <= _EXACT:
            # Components without cannot-links change the counts only.
            free = count - cluster_sums(z[:, self.bound], np.ones(self.bound.size), k)
            valid = np.repeat(free[:, :, None] > 0, k, 2)
            rows = np.broadcast_to(histogram[:, None, None], (m, k, k, len(open_)))
            table = np.full((m, k, k), np.inf)
            table[valid] = optimal_words(shifts[valid], rows[valid], open_)[0]
            length = self._bound_lengths(z, shifts, taken, codes, open_, index)
        else:
            table, length = self._lengths_at_weights(z, count, taken, weights)
        result = np.take_along_axis(table - before[:, None, None], z[:, :, None], 1)
        # A component cannot join a cluster across a cannot-link, in either order.
        across, source = taken > 0, self.place[self.early]
        np.logical_or.at(across, (np.arange(m)[:, None], source, z[:, self.late]), True)
        result[:, self.bound] = np.where(across, np.inf, length - before[:, None, None])
        return result

    def _lengths_at_weights(self, z, count, taken, weights) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds of the length of the code words after a move, at fixed weights.

        The arguments are variables of `_word_changes`.

        Returns
        -------
        table : (m, K, K) bounds if a component without cannot-links moves from one cluster to
            another
        length : (m, B, K) bounds if a component with cannot-links moves to a cluster
        """
        w = self._positive_weights(weights)
        log_w, available = np.log(w), ((taken == 0) @ w[:, :, None])[:, :, 0]
        total = np.log(available).sum(1) - (count * log_w).sum(1)
        table = total[:, None, None] + log_w[:, :, None] - log_w[:, None]
        # The word of the component, and the later words across its cannot-links.
        result = np.take_along_axis(table, z[:, self.bound, None], 1)
        later, present = self.place[self.late], z[:, self.early]
        near, old = taken[:, later], available[:, later, None]
        opens = np.take_along_axis(near, present[:, :, None], 2) == 1
        new = old + opens * np.take_along_axis(w, present, 1)[:, :, None]
        new = np.log(np.maximum(new - (near == 0) * w[:, None], 1e-300)) - np.log(old)
        new = np.where(np.arange(self.k) == present[:, :, None], 0, new)
        sources, first = np.unique(self.place[self.early], return_index=True)
        result[:, sources] += np.add.reduceat(new, first, 1)
        return table, result

    def _bound_lengths(self, z, shifts, taken, codes, open_, index) -> np.ndarray:
        """Length (m, B, K) of the code words after a component with cannot-links moves.

        The move changes the clusters that are open to later words across these cannot-links. The
        arguments are variables of `_word_changes`.
        """
        m, k, b = len(z), self.k, self.bound.size
        present, later = z[:, self.early], self.place[self.late]
        near = taken[:, later]  # (m, e, K)
        opens = np.take_along_axis(near, present[:, :, None], 2)[:, :, 0] == 1
        old = codes[:, later]
        new = (old - opens * self._cluster_code[present])[:, :, None]
        new = new + (near == 0) * self._cluster_code
        new = np.where(np.arange(k) == present[:, :, None], old[:, :, None], new)
        # Distinct sets of open clusters before and after the moves.
        flat, first, inverse = np.unique(new, return_index=True, return_inverse=True)
        e, to = np.divmod(first % (len(later) * k), k)
        state = first // (len(later) * k)
        sets = near[state, e] > 0
        same = present[state, e] == to
        rows = np.arange(len(flat))
        sets[rows, present[state, e]] &= same | ~opens[state, e]
        sets[rows, to] = True
        # Sets before the moves come first. A set may occur before and after the moves.
        all_open = np.concatenate([open_, ~sets])
        old_index = index[:, self.late]
        new_index = inverse.reshape(new.shape) + len(open_)
        histogram = _histogram(index, len(open_))
        source = self.place[self.early]
        across = taken > 0
        np.logical_or.at(across, (np.arange(m)[:, None], source, z[:, self.late]), True)
        out = np.full((m, b, k), np.inf)
        size = len(all_open)
        chunk = max(1, _CHUNK // (m * k * size))
        for start in range(0, b, chunk):
            units = slice(start, min(start + chunk, b))
            first, last = np.searchsorted(source, (units.start, units.stop))
            links = slice(first, last)
            # Number of words of every open set, after every move of these components.
            tables = np.zeros((m, units.stop - start, k, size))
            tables[..., : len(open_)] = histogram[:, None, None]
            state, unit = np.arange(m)[:, None, None], (source[links] - start)[:, None]
            np.add.at(tables, (state, unit, np.arange(k), new_index[:, links]), 1)
            np.add.at(tables, (state, unit, np.arange(k), old_index[:, links, None]), -1)
            counts = shifts[np.arange(m)[:, None], z[:, self.bound[units]]]
            valid = ~across[:, units]
            out[:, units][valid] = optimal_words(counts[valid], tables[valid], all_open)[0]
        return out


def _histogram(index: np.ndarray, size: int) -> np.ndarray:
    """Numbers (m, U) of code words by set of open clusters, in m labelings.

    ``index`` (m, C) has the index of the set that is open to every word, and ``size`` is the number
    U of sets.
    """
    m = len(index)
    flat = (index + size * np.arange(m)[:, None]).ravel()
    return np.bincount(flat, minlength=m * size).reshape(m, size).astype(float)


def _in_chunks(z: np.ndarray, step: int, function: Callable) -> np.ndarray:
    parts = [function(z[i : i + step]) for i in range(0, len(z), step)]
    return np.concatenate([np.zeros(0), *parts])
