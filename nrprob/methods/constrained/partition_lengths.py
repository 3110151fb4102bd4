"""Exact description lengths of many labelings, and of all their single moves, in float64.

The units are must-link components. C components are in K clusters; m labelings are evaluated at a
time. `nrprob.methods.constrained.label_codes` defines the words. Here, the words of a labeling are
counted by the clusters that they encode, and by the sets of clusters that are open to them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import xlogy

from nrprob.data.labels import factorize
from nrprob.methods.constrained.label_codes import optimal_words
from nrprob.methods.constrained.problem import ConstrainedProblem
from nrprob.methods.constrained.sizes import SizeLimits
from nrprob.statistics.groups import group_means
from nrprob.statistics.squared_distances import DistanceLengths, cluster_sums

_CHUNK = 4_000_000  # entries of a table that are computed at a time
_EXACT = 1_000_000  # entries of the tables of words up to which every move is evaluated exactly
_FEW_WORDS = 1000  # linked components times clusters up to which proposals are ordered exactly
_MASK_BITS = 62


class PartitionLengths:
    """Description lengths of labelings of the components under hard constraints.

    Attributes
    ----------
    mass, mean : (C,), (C, d) number of rows of every component, and their mean
    early, late : (e,) components of every cannot-link; the word of ``early`` is sent first
    distances : lengths of the squared distances
    charges : (K + 1,) length that depends on the number of clusters with rows only
    """

    def __init__(self, problem: ConstrainedProblem, limits: SizeLimits):
        self.problem, self.limits, self.k = problem, limits, problem.k
        x, node, n_nodes = problem.data.x, problem.parts.node, problem.parts.n_nodes
        self.mass = np.bincount(node, minlength=n_nodes)
        self.mean = group_means(x, node, n_nodes)
        within = np.bincount(node, ((x - self.mean[node]) ** 2).sum(1), minlength=n_nodes)
        # Components in cannot-links, and their links from the earlier to the later word.
        ends, position = problem.parts.edges, problem.node_positions
        swap = position[ends[:, 0]] > position[ends[:, 1]]
        ends = np.where(swap[:, None], ends[:, ::-1], ends)
        self.early, self.late = ends[np.argsort(ends[:, 0], kind="stable")].T
        self.bound = np.unique(ends)
        self._place = np.full(n_nodes, -1)
        self._place[self.bound] = np.arange(self.bound.size)
        self._neighbours = problem.parts.cannot_link_graph()
        # Sets of clusters are sums of the codes of their clusters.
        bits = np.left_shift(1, np.arange(min(self.k, _MASK_BITS)), dtype=np.int64)
        more = np.random.default_rng(0).integers(2**62, size=self.k - bits.size)
        self._cluster_code = np.concatenate([bits, more])
        scale = problem.scale_length
        self.charges = np.array([problem.number_length(c) + scale for c in range(self.k + 1)])
        self.distances = DistanceLengths(
            self.mean, self.mass, within, self.k, problem.weight, problem.bounds, problem.shared
        )

    def scatter_increases(self, z: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """Increase (p,) of the scatter of labels ``z`` (C,) if two clusters ``pairs`` merge."""
        size, centres, _ = (values[0] for values in self.distances.cluster_statistics(z[None]))
        first, second = pairs.T
        square = ((centres[first] - centres[second]) ** 2).sum(1)
        return size[first] * size[second] / (size[first] + size[second]) * square

    # Objective

    @staticmethod
    def key(z: np.ndarray) -> bytes:
        """Key of a labeling (C,) that does not depend on the order of the clusters."""
        return factorize(z)[0].tobytes()

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Description lengths (m,) of labelings (m, C); infinite if a limit on sizes is violated.

        All labelings satisfy the cannot-links.
        """
        # Many labelings have many different sets of open clusters.
        words = max(self.bound.size * self.k, 1)
        step = max(1, min(_CHUNK // z.shape[1], math.isqrt(_CHUNK // words)))
        return self._in_chunks(z, step, lambda part: self._totals(part, self._shortest_words(part)))

    def estimates(self, z: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Upper bounds (m,) of the description lengths, at the weights of labels ``present`` (C,).

        They take less time than `totals` if there are many cannot-links.
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
        return self._in_chunks(z, step, lambda part: self._totals(part, words_length(part)))

    @staticmethod
    def _in_chunks(z: np.ndarray, step: int, function: Callable) -> np.ndarray:
        parts = [function(z[i : i + step]) for i in range(0, len(z), step)]
        return np.concatenate([np.zeros(0), *parts])

    def _shortest_words(self, z: np.ndarray) -> np.ndarray:
        """Length (m,) of the words at their best weights."""
        count = cluster_sums(z, np.ones(z.shape[1]), self.k)
        if not self.bound.size:
            return xlogy(count.sum(1), count.sum(1)) - xlogy(count, count).sum(1)
        _, _, open_, index = self._open_sets(z)
        return optimal_words(count, _histogram(index, len(open_)), open_)[0]

    def _totals(self, z: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Description lengths (m,) for the ``length`` (m,) of the words."""
        size, _, scatter = self.distances.cluster_statistics(z)
        result = length + self.distances.total(size, scatter) + self.charges[(size > 0).sum(1)]
        broken = self.violations(z)
        return result if broken is None else np.where(broken.any(1), np.inf, result)

    def violations(self, z: np.ndarray) -> np.ndarray | None:
        """Clusters (m, K) whose numbers of rows violate the limits; None if there are no limits."""
        limits = self.limits
        if limits.low == 0 and limits.high >= self.mass.sum():
            return None
        size = cluster_sums(z, self.mass, self.k)
        return (size < limits.low) | (size > limits.high)

    def together(self, units: np.ndarray) -> np.ndarray:
        """Units without a cannot-link to an earlier unit of the sequence ``units``."""
        if not self.bound.size:
            return units
        chosen: set[int] = set()
        for unit in units.tolist():
            if not self._neighbours[unit] & chosen:
                chosen.add(unit)
        return np.array([unit for unit in units.tolist() if unit in chosen])

    def differences(self, z: np.ndarray, *, relaxed: bool = False) -> np.ndarray:
        """Change (m, C, K) of the description length if one component moves to another cluster."""
        m, c = z.shape
        step = max(1, _CHUNK // (c * self.k))
        if m > step:
            parts = [self.differences(z[i : i + step], relaxed=relaxed) for i in range(0, m, step)]
            return np.concatenate(parts)
        size, centres, scatter = self.distances.cluster_statistics(z)
        result = self.distances.changes(z, size, centres, scatter)
        # Number of clusters with rows, before and after the move.
        present = np.take_along_axis(size, z, 1)
        empties = present == self.mass
        used = (size > 0).sum(1)
        after = used[:, None, None] - empties[:, :, None] + (size == 0)[:, None]
        result += self.charges[after] - self.charges[used][:, None, None]
        result += self._word_changes(z)
        if self.violations(z) is not None and not relaxed:
            grown = size[:, None] + self.mass[:, None]
            shrunk = present - self.mass
            result[grown > self.limits.high] = np.inf
            result[shrunk < self.limits.low] = np.inf
        np.put_along_axis(result, z[:, :, None], 0.0, 2)
        return result

    # Words

    def _open_sets(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Sets of clusters that are open to the words.

        Returns
        -------
        taken : (m, B, K) numbers of earlier words across cannot-links, by the cluster they encode
        codes : (m, B) codes of the clusters that are taken
        open_ : (U, K) distinct sets of open clusters
        index : (m, C) index of the set of every word
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
        """Weights (m, K) in which no cluster is impossible."""
        w = np.maximum(w, 1 / self.mass.size)
        return w / w.sum(1, keepdims=True)

    def _taken(self, z: np.ndarray) -> np.ndarray:
        """Numbers (m, B, K) of earlier words across cannot-links, by the cluster they encode."""
        m, b, k = len(z), self.bound.size, self.k
        place = (np.arange(m)[:, None] * b + self._place[self.late]) * k + z[:, self.early]
        return np.bincount(place.ravel(), minlength=m * b * k).reshape(m, b, k)

    def _word_changes(self, z: np.ndarray) -> np.ndarray:
        """Change (m, C, K) of the length of the words by every move; infinite across links."""
        (m, c), k = z.shape, self.k
        count = cluster_sums(z, np.ones(c), self.k)
        if not self.bound.size:
            value, fewer = xlogy(count, count), np.maximum(count - 1, 0)
            leaving, joining = value - xlogy(fewer, fewer), value - xlogy(count + 1, count + 1)
            return np.take_along_axis(leaving, z, 1)[:, :, None] + joining[:, None]
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
        across, source = taken > 0, self._place[self.early]
        np.logical_or.at(across, (np.arange(m)[:, None], source, z[:, self.late]), True)
        result[:, self.bound] = np.where(across, np.inf, length - before[:, None, None])
        return result

    def _lengths_at_weights(self, z, count, taken, weights) -> tuple[np.ndarray, np.ndarray]:
        """Upper bounds of the length of the words if a component moves; the weights are fixed.

        The arguments are variables of `_word_changes`.

        Returns
        -------
        table, length : (m, K, K) bounds by clusters before and after the move, for components
            without cannot-links; (m, B, K) bounds for components with cannot-links
        """
        w = self._positive_weights(weights)
        log_w, available = np.log(w), ((taken == 0) @ w[:, :, None])[:, :, 0]
        total = np.log(available).sum(1) - (count * log_w).sum(1)
        table = total[:, None, None] + log_w[:, :, None] - log_w[:, None]
        # The word of the component, and the later words across its cannot-links.
        result = np.take_along_axis(table, z[:, self.bound, None], 1)
        later, present = self._place[self.late], z[:, self.early]
        near, old = taken[:, later], available[:, later, None]
        opens = np.take_along_axis(near, present[:, :, None], 2) == 1
        new = old + opens * np.take_along_axis(w, present, 1)[:, :, None]
        new = np.log(np.maximum(new - (near == 0) * w[:, None], 1e-300)) - np.log(old)
        new = np.where(np.arange(self.k) == present[:, :, None], 0, new)
        sources, first = np.unique(self._place[self.early], return_index=True)
        result[:, sources] += np.add.reduceat(new, first, 1)
        return table, result

    def _bound_lengths(self, z, shifts, taken, codes, open_, index) -> np.ndarray:
        """Length (m, B, K) of the words if a component with cannot-links moves.

        The arguments are variables of `_word_changes`. The move changes the clusters that are open
        to the later words across cannot-links.
        """
        m, k, b = len(z), self.k, self.bound.size
        present, later = z[:, self.early], self._place[self.late]
        near = taken[:, later]  # (m, e, K)
        opens = np.take_along_axis(near, present[:, :, None], 2)[:, :, 0] == 1
        old = codes[:, later]
        new = (old - opens * self._cluster_code[present])[:, :, None]
        new = new + (near == 0) * self._cluster_code
        new = np.where(np.arange(k) == present[:, :, None], old[:, :, None], new)
        # Distinct sets before and after the moves.
        flat, first, inverse = np.unique(new, return_index=True, return_inverse=True)
        e, to = np.divmod(first % (len(later) * k), k)
        state = first // (len(later) * k)
        sets = near[state, e] > 0
        same = present[state, e] == to
        rows = np.arange(len(flat))
        sets[rows, present[state, e]] &= same | ~opens[state, e]
        sets[rows, to] = True
        # Sets before the moves come first; sets that occur in both lists may stay double.
        all_open = np.concatenate([open_, ~sets])
        old_index = index[:, self.late]
        new_index = inverse.reshape(new.shape) + len(open_)
        histogram = _histogram(index, len(open_))
        source = self._place[self.early]
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
    """Number (m, U) of words by their open set, from indices (m, C) below ``size``."""
    m = len(index)
    flat = (index + size * np.arange(m)[:, None]).ravel()
    return np.bincount(flat, minlength=m * size).reshape(m, size).astype(float)
