"""Constrained clustering problem: arrays for the search, and description length in float64.

Must-link components are the nodes of the search. Soft pairs join components; the description may
ignore a soft pair, and flags mark the soft pairs that it retains. Sizes: n rows of d features,
n_nodes components, p pairs of a type, k clusters.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import xlogy

from nrprob.codelength import exponential_length, multinomial_complexity
from nrprob.links import Components, feasible_start
from nrprob.methods.mdl.codes import APART, SOFT_APART, SOFT_LINK, Nodes
from nrprob.methods.mdl.count_tables import CountTable
from nrprob.methods.mdl.feature_lengths import IsotropicLengths
from nrprob.methods.mdl.label_codes import code_words, flags_length, pair_savings
from nrprob.methods.mdl.linked_words import LinkedWords, transmission_order
from nrprob.methods.mdl.sizes import SizeLimits
from nrprob.methods.mdl.view_objective import ViewObjective
from nrprob.statistics.features import StandardisedRows
from nrprob.statistics.groups import group_means, group_sums
from nrprob.statistics.rows import cluster_means, coarse_bucket, pad_columns

_MAX_ENTRIES = 100_000_000  # entries of the table of neighbours


@dataclass(frozen=True)
class SoftPairs:
    """Soft pairs of rows as distinct pairs of components.

    Attributes
    ----------
    nodes : (p, 2) indices a < b of the two components of each pair
    rows : (p, 2) indices of two rows, one of each component
    """

    nodes: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.nodes)


def soft_pairs(pairs: np.ndarray, parts: Components) -> SoftPairs:
    """Convert soft pairs of rows (p, 2) to distinct pairs of components.

    Pairs that the hard constraints ``parts`` already satisfy or violate are left out.
    """
    nodes = np.sort(parts.node[pairs], axis=1)
    apart = set(map(tuple, parts.edges.tolist()))
    open_ = np.array([a != b and (a, b) not in apart for a, b in nodes.tolist()], bool)
    nodes, pairs = nodes[open_], pairs[open_]
    _, first = np.unique(nodes, axis=0, return_index=True) if len(nodes) else (None, [])
    first = np.sort(np.asarray(first, np.int64))
    return SoftPairs(nodes[first], pairs[first])


@dataclass
class Described:
    """A clustering of the rows, and its description length in float64.

    Attributes
    ----------
    labels : (n,) clusters of the rows
    lengths : parts of the length, in nats: "words", "distances", "flags"
    weights, centres, scales : (k,), (k, d), (k,) probabilities, means and mean squared distances of
        the clusters
    link_on, apart_on : masks of the retained soft must-links and soft cannot-links
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
        """Description length in nats."""
        return float(sum(self.lengths.values()))


@dataclass
class ConstrainedProblem:
    """Rows with hard constraints and soft pairs.

    Attributes
    ----------
    data : standardised rows
    k : number of clusters
    parts : components of the hard must-links, with the hard cannot-links between them
    link, apart : soft must-links and soft cannot-links
    weight : factor w of the length w (log s + r / s) of a row with squared distance r from its
        cluster mean: d / 2 or 1
    shared : whether all clusters share one mean squared distance s
    bounds : bounds of s, relative to the total variance
    centre_length : length of the code of one cluster centre
    start : (n_nodes,) clusters that satisfy the hard constraints; None if the search found none
    q : degeneracy Q of the graph of hard cannot-links: more than Q clusters always satisfy them
    positions : (n,) position of every row in the order of transmission
    """

    data: StandardisedRows
    k: int
    weight: float
    shared: bool
    bounds: tuple[float, float]
    parts: Components
    link: SoftPairs
    apart: SoftPairs
    centre_length: float = 0.0
    start: np.ndarray | None = field(init=False)
    q: int = field(init=False)
    positions: np.ndarray = field(init=False)

    def __post_init__(self):
        self.start, self.q = feasible_start(self.parts, self.k)
        # With K > Q for all pairs together, the code is complete.
        order = transmission_order(
            self.parts.n_nodes, self.link.nodes, self.parts.edges, self.apart.nodes
        )
        node = self.parts.node
        self.positions = _inverse_permutation(np.lexsort((np.arange(node.size), order[node])))
        first = np.unique(node, return_index=True)[1]
        self.node_positions = self.positions[first]

    def number_length(self, k: int) -> float:
        """Part of the length that depends only on the number ``k`` of clusters with rows.

        It consists of the parametric complexity of the weights and of the code of the centres.
        """
        complexity = multinomial_complexity(k, self.parts.n_nodes) if k else 0.0
        return complexity + k * self.centre_length

    @property
    def scale_length(self) -> float:
        """Part of the length that is due to the standardisation of the rows."""
        return 2 * self.weight * len(self.data.x) * math.log(self.data.scale)

    # For the search

    def search_nodes(self) -> tuple[Nodes, np.ndarray]:
        """Arrays of the search, and the index of every component in them."""
        return lay_out(
            self.data,
            self.parts,
            self.node_positions,
            self.start,
            self.apart.nodes,
            self.link.nodes,
        )

    # In float64

    def permits(self, labels: np.ndarray) -> bool:
        """Whether labels (n,) satisfy all hard must-links and cannot-links."""
        must, cannot = labels[self.parts.must_rows], labels[self.parts.cannot_rows]
        return bool((must[:, 0] == must[:, 1]).all() and (cannot[:, 0] != cannot[:, 1]).all())

    def describe_labels(self, labels: np.ndarray) -> Described:
        """Describe a clustering of the rows, and choose the soft pairs to retain.

        ``labels`` (n,) are the clusters. The retained pairs shorten the description.
        """
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
        on, length, flags, weights = self._choose_pairs(labels)
        lengths = {
            "words": length + self.number_length(int((size > 0).sum())),
            "distances": float(distances) + self.scale_length,
            "flags": flags,
        }
        return Described(labels, lengths, weights, centres, np.clip(scales, *bounds), *on)

    def retained_pairs(self, on: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Retained must-links and cannot-links, pairs of rows: soft pairs first, then hard pairs.

        ``on`` are masks of the retained soft must-links and of the retained soft cannot-links.
        """
        return (
            np.concatenate([self.link.rows[on[0]], self.parts.must_rows]),
            np.concatenate([self.apart.rows[on[1]], self.parts.cannot_rows]),
        )

    def _choose_pairs(
        self, labels: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], float, float, np.ndarray]:
        """Choose the soft pairs to retain for labels (n,).

        Returns
        -------
        on : masks of the retained soft must-links and soft cannot-links
        length : length of the words
        flags : length of the flags
        weights : (k,) weights of the clusters
        """
        same = [labels[p.rows[:, 0]] == labels[p.rows[:, 1]] for p in (self.link, self.apart)]
        satisfied = same[0], ~same[1]

        def evaluate_choice(on):
            result = code_words(labels, self.k, self.positions, *self.retained_pairs(on))
            flags = sum(flags_length(int(a.sum()), a.size) for a in on)
            return on, result.length, flags, result.weights

        def choice_length(choice):
            return choice[1] + choice[2]

        # For each type, all satisfied pairs or none.
        none = np.zeros_like(satisfied[0]), np.zeros_like(satisfied[1])
        options = [
            (some, no) if some.any() else (no,) for some, no in zip(satisfied, none, strict=True)
        ]
        choices = itertools.product(*options)
        best = min(map(evaluate_choice, choices), key=choice_length)
        # Drop single pairs that save less than their flags cost, which may happen if fewer than
        # half are retained.
        while True:
            on = best[0]
            flag_cost = [_flag_cost(int(a.sum()), a.size) for a in on]
            if max(flag_cost) <= 0:
                return best
            saved = pair_savings(
                labels,
                self.positions,
                *self.retained_pairs(on),
                best[3],
                int(on[0].sum()),
                int(on[1].sum()),
            )
            excess = [cost - gain for cost, gain in zip(flag_cost, saved, strict=True)]
            top = max(e.max(initial=-1) for e in excess)
            if top <= 0:
                return best

            def drop_pairs(drop, on=on):
                fewer = []
                for a, out in zip(on, drop, strict=True):
                    a = a.copy()
                    a[np.flatnonzero(a)[out]] = False
                    fewer.append(a)
                return evaluate_choice(tuple(fewer))

            tries = [drop_pairs([e > 0 for e in excess]), drop_pairs([e == top for e in excess])]
            new = min(tries, key=choice_length)
            if not choice_length(new) < choice_length(best):
                return best
            best = new

    def component_costs(self, result: Described) -> np.ndarray:
        """Cost (n_nodes, k) in nats of every component in every cluster of ``result``."""
        square = ((self.data.x[:, None] - result.centres) ** 2).sum(2)
        row_costs = self.weight * (np.log(result.scales) + square / result.scales)
        cost = group_sums(row_costs, self.parts.node)
        return cost - np.log(np.maximum(result.weights, 0.5 / self.parts.n_nodes))


def constrained_objective(problem: ConstrainedProblem, limits: SizeLimits) -> ViewObjective:
    """Description length of labels of the components, under hard constraints only."""
    x, parts, k = problem.data.x, problem.parts, problem.k
    features = IsotropicLengths(
        x, parts.node, k, problem.weight, problem.bounds, problem.shared, centres_coded=False
    )
    charges = np.array([problem.number_length(c) for c in range(k + 1)]) + problem.scale_length
    if len(parts.edges):
        words = LinkedWords(parts.n_nodes, parts.edges, problem.node_positions, k)
        return ViewObjective(features, k, words, [], charges, limits)
    charges += xlogy(parts.n_nodes, parts.n_nodes)
    table = CountTable(np.ones((parts.n_nodes, 1)), k)
    return ViewObjective(features, k, None, [table], charges, limits)


_NONE = np.zeros((0, 2), np.int64)


def lay_out(
    data: StandardisedRows,
    parts: Components,
    order: np.ndarray,
    start: np.ndarray | None = None,
    soft_apart: np.ndarray = _NONE,
    soft_link: np.ndarray = _NONE,
) -> tuple[Nodes, np.ndarray]:
    """Arrays of the search, and the index (n_nodes,) of every component in them.

    Parameters
    ----------
    data : standardised rows
    parts : components of the hard must-links, with the hard cannot-links between them
    order : (n_nodes,) sort key of the components with pairs, which precede all others
    start : (n_nodes,) clusters that satisfy all cannot-links, if known
    soft_apart, soft_link : (p, 2) soft cannot-links and soft must-links between components
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
    index = _inverse_permutation(np.lexsort((order, ~taking_part)))
    near, kind = neighbour_table(index[ends], kind, n)
    known = np.zeros(n, np.int32) if start is None else start
    first = place_components(known, index, np.int32)[: len(near)]
    mean, mass, within = (
        place_components(values, index, data.dtype) for values in (pad_columns(mean), mass, within)
    )
    return Nodes(mean, mass, within, near, kind, first), index


def place_components(values: np.ndarray, index: np.ndarray, dtype: Any) -> np.ndarray:
    """Arrange ``values`` of the components at their positions ``index``; 0 on padding."""
    out = np.zeros((coarse_bucket(len(index), 64), *values.shape[1:]), dtype)
    out[index] = values
    return out


def neighbour_table(ends: np.ndarray, kind: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Neighbours of the nodes with pairs, and types of the links.

    Parameters
    ----------
    ends : (e, 2) e pairs of nodes, all of them among the first B
    kind : (e,) types of the pairs
    n : number of all nodes

    Returns
    -------
    near, kinds : (B, D) neighbours of the first B nodes, at most D per node, and types of the links
        to them; 0 on padding
    """
    b = min(coarse_bucket(int(ends.max(initial=-1)) + 1, 16), coarse_bucket(n, 64))
    source, target = np.concatenate([ends, ends[:, ::-1]]).T
    order = np.argsort(source, kind="stable")
    source, target, kind = source[order], target[order], np.tile(kind, 2)[order]
    degree = np.bincount(source, minlength=b)
    width = coarse_bucket(int(degree.max()), 8)
    if b * width > _MAX_ENTRIES:
        raise ValueError(
            f"constraints are too dense; got {len(ends)} pairs among {b} components, of which one "
            f"has {degree.max()}; use fewer constraints or rows"
        )
    column = np.arange(source.size) - (np.cumsum(degree) - degree)[source]
    near, kinds = np.zeros((b, width), np.int32), np.zeros((b, width), np.int32)
    near[source, column] = target
    kinds[source, column] = kind
    return near, kinds


def _flag_cost(n_kept: int, n: int) -> float:
    """Change of the code length of the flags if the last of ``n_kept`` pairs is retained."""
    return flags_length(n_kept, n) - flags_length(n_kept - 1, n) if n_kept else 0.0


def _inverse_permutation(order: np.ndarray) -> np.ndarray:
    out = np.empty(order.size, np.int64)
    out[order] = np.arange(order.size)
    return out
