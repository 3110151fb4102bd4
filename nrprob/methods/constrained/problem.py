"""A problem of constrained clustering: laid out for the search, and described exactly.

Rows that must go together are components, the nodes of the search. Besides there are pairs of
components that may be ignored, each at the price of saying so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nrprob import colouring
from nrprob.codelength import exponential_length, multinomial_complexity
from nrprob.links import Components, Pairs, feasible_start
from nrprob.methods.constrained.codes import APART, SOFT_APART, SOFT_LINK, Nodes
from nrprob.methods.constrained.label_codes import flags_length, savings, words
from nrprob.statistics.features import StandardisedRows
from nrprob.statistics.groups import group_means, group_sums
from nrprob.statistics.rows import cluster_means, coarse_bucket, pad_columns

_ENTRIES = 100_000_000  # of the table of neighbours


@dataclass(frozen=True)
class Ignorable:
    """Pairs that may be ignored, as pairs of components, each once.

    Attributes
    ----------
    nodes : (p, 2) components a < b
    rows : (p, 2) rows that stand for them
    """

    nodes: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.nodes)


def ignorable_pairs(pairs: np.ndarray, parts: Components) -> Ignorable:
    """Lift pairs of rows to components, without those that what must be kept settles anyway."""
    nodes = np.sort(parts.node[pairs], axis=1)
    apart = set(map(tuple, parts.edges.tolist()))
    open_ = np.array([a != b and (a, b) not in apart for a, b in nodes.tolist()], bool)
    nodes, pairs = nodes[open_], pairs[open_]
    _, first = np.unique(nodes, axis=0, return_index=True) if len(nodes) else (None, [])
    first = np.sort(np.asarray(first, np.int64))
    return Ignorable(nodes[first], pairs[first])


@dataclass
class Described:
    """A clustering of the rows, and its description in float64.

    Attributes
    ----------
    labels : (n,)
    lengths : its parts, in nats: "words", "distances", "flags"
    weights, centres, scales : of the clusters
    link_on, apart_on : which of the pairs that may be ignored are kept
    """

    labels: np.ndarray
    lengths: dict[str, float]
    weights: np.ndarray
    centres: np.ndarray
    scales: np.ndarray
    link_on: np.ndarray
    apart_on: np.ndarray

    @property
    def length(self) -> float:
        """Length of the description."""
        return float(sum(self.lengths.values()))


@dataclass
class ConstrainedProblem:
    """Rows, what must be kept, and what may be ignored.

    Attributes
    ----------
    weight : of (log s + r / s) of a row: d / 2 or 1
    shared : whether all clusters share one scale s
    bounds : of s, relative to the total variance
    start : (n_nodes,) clusters that keep what must be kept; None if none were found
    q : degeneracy of what must be kept apart
    place : (n,) place of every row in the order of sending
    """

    data: StandardisedRows
    k: int
    weight: float
    shared: bool
    bounds: tuple[float, float]
    parts: Components
    link: Ignorable
    apart: Ignorable
    start: np.ndarray | None = field(init=False)
    q: int = field(init=False)
    place: np.ndarray = field(init=False)

    def __post_init__(self):
        self.start, self.q = feasible_start(self.parts, self.k)
        # The order is that of the components which all pairs would make, kept or not: it must not
        # depend on what is kept, and with K > Q of these the code of the kept ones is complete.
        whole = Components(self.parts.n_nodes, [Pairs(self.link.nodes, "")], [])
        edges = np.sort(whole.node[np.concatenate([self.parts.edges, self.apart.nodes])], axis=1)
        edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
        order, _ = colouring.inductive_order(colouring.graph(whole.n_nodes, edges))
        rank = np.empty(whole.n_nodes, np.int64)
        rank[order] = np.arange(order.size)
        node = self.parts.node
        self.place = _inverse(np.lexsort((np.arange(node.size), node, rank[whole.node[node]])))
        first = np.unique(node, return_index=True)[1]
        self._node_place = self.place[first]

    @property
    def constant(self) -> float:
        """Part of the length that is the same for all clusterings: complexity and scale."""
        return self._complexity + self._scale_length

    @property
    def _complexity(self) -> float:
        return multinomial_complexity(self.k, self.parts.n_nodes)

    @property
    def _scale_length(self) -> float:
        return 2 * self.weight * len(self.data.x) * math.log(self.data.scale)

    # For the search

    def nodes(self) -> tuple[Nodes, np.ndarray]:
        """Arrays of the search, and where among them every component is."""
        return lay_out(
            self.data, self.parts, self._node_place, self.start, self.apart.nodes, self.link.nodes
        )

    # In float64

    def describe(self, labels: np.ndarray) -> Described:
        """Length of a clustering, and which of the pairs that may be ignored shorten it."""
        x, k, bounds = self.data.x, self.k, self.bounds
        size = np.bincount(labels, minlength=k)
        centres = cluster_means(group_sums(x, labels, k), size)
        scatter = np.bincount(labels, ((x - centres[labels]) ** 2).sum(1), minlength=k)
        if self.shared:
            distances = exponential_length(len(x), scatter.sum(), *bounds, shape=self.weight)
            scales = np.full(k, scatter.sum() / len(x))
        else:
            distances = exponential_length(size, scatter, *bounds, shape=self.weight).sum()
            scales = scatter / np.maximum(size, 1)
        on, length, flags, weights = self._keep(labels)
        lengths = {
            "words": length + self._complexity,
            "distances": float(distances) + self._scale_length,
            "flags": flags,
        }
        return Described(labels, lengths, weights, centres, np.clip(scales, *bounds), *on)

    def kept(self, on: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """All pairs of rows that are kept: first those that may be ignored, then the others."""
        return (
            np.concatenate([self.link.rows[on[0]], self.parts.must_rows]),
            np.concatenate([self.apart.rows[on[1]], self.parts.cannot_rows]),
        )

    def _keep(
        self, labels: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], float, float, np.ndarray]:
        """Choose the pairs to keep: that choice, the lengths of words and flags, the weights."""
        same = [labels[p.rows[:, 0]] == labels[p.rows[:, 1]] for p in (self.link, self.apart)]
        satisfied = same[0], ~same[1]

        def try_(on):
            result = words(labels, self.k, self.place, *self.kept(on))
            flags = sum(flags_length(int(a.sum()), a.size) for a in on)
            return on, result.length, flags, result.weights

        def total(choice):
            return choice[1] + choice[2]

        none = np.zeros_like(satisfied[0]), np.zeros_like(satisfied[1])
        choices = [(a, b) for a in (satisfied[0], none[0]) for b in (satisfied[1], none[1])]
        best = min(map(try_, choices), key=total)
        # Where fewer than half are kept, single pairs may save less than their flags cost.
        while True:
            on = best[0]
            price = [_flag_price(int(a.sum()), a.size) for a in on]
            if max(price) <= 0:
                return best
            saved = savings(
                labels, self.place, *self.kept(on), best[3], int(on[0].sum()), int(on[1].sum())
            )
            worth = [p - s for p, s in zip(price, saved, strict=True)]
            if max(w.max(initial=-1) for w in worth) <= 0:
                return best

            def without(drop, on=on):
                fewer = []
                for a, out in zip(on, drop, strict=True):
                    a = a.copy()
                    a[np.flatnonzero(a)[out]] = False
                    fewer.append(a)
                return try_(tuple(fewer))

            top = max(w.max(initial=-1) for w in worth)
            tries = [without([w > 0 for w in worth]), without([w == top for w in worth])]
            new = min(tries, key=total)
            if not total(new) < total(best):
                return best
            best = new

    def costs(self, result: Described) -> np.ndarray:
        """Cost (n_nodes, k) of every component in every cluster, in nats."""
        square = ((self.data.x[:, None] - result.centres) ** 2).sum(2)
        each = self.weight * (np.log(result.scales) + square / result.scales)
        cost = group_sums(each, self.parts.node)
        return cost - np.log(np.maximum(result.weights, 0.5 / self.parts.n_nodes))


_NONE = np.zeros((0, 2), np.int64)


def lay_out(
    data: StandardisedRows,
    parts: Components,
    order: np.ndarray,
    start: np.ndarray | None = None,
    soft_apart: np.ndarray = _NONE,
    soft_link: np.ndarray = _NONE,
) -> tuple[Nodes, np.ndarray]:
    """Arrays of the search, and where among them every component is.

    Parameters
    ----------
    order : (n_nodes,) by which components with pairs are sorted, before all others
    start : (n_nodes,) clusters that keep all cannot-links, if there are any
    soft_apart, soft_link : (p, 2) pairs of components that may be ignored
    """
    x, node, n = data.x, parts.node, parts.n_nodes
    mass = np.bincount(node, minlength=n)
    mean = group_means(x, node, n)
    within = np.bincount(node, ((x - mean[node]) ** 2).sum(1), minlength=n)
    kinds = (APART, parts.edges), (SOFT_APART, soft_apart), (SOFT_LINK, soft_link)
    ends = np.concatenate([p for _, p in kinds])
    kind = np.concatenate([np.full(len(p), c, np.int32) for c, p in kinds])
    taking_part = np.zeros(n, bool)
    taking_part[ends] = True
    at = _inverse(np.lexsort((order, ~taking_part)))
    near, kind = neighbour_table(at[ends], kind, n)
    known = np.zeros(n, np.int32) if start is None else start
    first = place(known, at, np.int32)[: len(near)]
    mean, mass, within = (
        place(values, at, data.dtype) for values in (pad_columns(mean), mass, within)
    )
    return Nodes(mean, mass, within, near, kind, first), at


def place(values: np.ndarray, at: np.ndarray, dtype: Any) -> np.ndarray:
    """Values of components where the search has them; 0 on padding."""
    out = np.zeros((coarse_bucket(len(at), 64), *values.shape[1:]), dtype)
    out[at] = values
    return out


def neighbour_table(ends: np.ndarray, kind: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours (B, D) of the first B of ``n`` nodes, and their kinds, 0 on padding.

    Parameters
    ----------
    ends : (e, 2) pairs of nodes, all of them among the first
    kind : (e,) kinds of the pairs
    """
    b = min(coarse_bucket(int(ends.max(initial=-1)) + 1, 16), coarse_bucket(n, 64))
    source, target = np.concatenate([ends, ends[:, ::-1]]).T
    order = np.argsort(source, kind="stable")
    source, target, kind = source[order], target[order], np.tile(kind, 2)[order]
    degree = np.bincount(source, minlength=b)
    width = coarse_bucket(int(degree.max()), 8)
    if b * width > _ENTRIES:
        raise ValueError(
            f"constraints are too dense; got {len(ends)} pairs among {b} components, of which one "
            f"has {degree.max()}; use fewer constraints or rows"
        )
    column = np.arange(source.size) - (np.cumsum(degree) - degree)[source]
    near, kinds = np.zeros((b, width), np.int32), np.zeros((b, width), np.int32)
    near[source, column] = target
    kinds[source, column] = kind
    return near, kinds


def _flag_price(kept: int, n: int) -> float:
    """What one kept pair of ``n`` costs in flags; negative where it saves some."""
    return flags_length(kept, n) - flags_length(kept - 1, n) if kept else 0.0


def _inverse(order: np.ndarray) -> np.ndarray:
    out = np.empty(order.size, np.int64)
    out[order] = np.arange(order.size)
    return out
