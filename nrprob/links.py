"""Validate pairwise constraints, join must-links to components, and detect contradictions.

Shapes: n rows, p pairs of rows, e pairs of components. k is the number of clusters.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order, connected_components

from nrprob import colouring
from nrprob.data.labels import factorize
from nrprob.data.validation import as_array, check_choice, check_random_state


class InfeasibleConstraints(ValueError):
    """Error for constraints that no clustering with the given number of clusters satisfies.

    Attributes
    ----------
    must_link, cannot_link : lists of pairs of rows
        Pairs that cannot all be satisfied; empty if no such pairs were identified.
    """

    def __init__(
        self,
        message: str,
        must_link: Sequence[tuple[int, int]] = (),
        cannot_link: Sequence[tuple[int, int]] = (),
    ):
        super().__init__(message)
        self.must_link = list(must_link)
        self.cannot_link = list(cannot_link)


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows: indices ``rows`` (p, 2), and the name of their source, such as "must_link"."""

    rows: np.ndarray
    source: str


def check_pairs(pairs: Any, n: int, name: str) -> np.ndarray:
    """Validate pairs (p, 2) of row indices below ``n``; None gives an empty array.

    Raises
    ------
    TypeError
        If indices are not integers.
    ValueError
        If ``pairs`` does not have shape (p, 2), or an index is out of range.
    """
    if pairs is None:
        return np.zeros((0, 2), np.int64)
    array = as_array(pairs, name)
    if array.size == 0 and array.ndim in (1, 2):
        return np.zeros((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(
            f"{name} must hold pairs of rows; got shape {array.shape}; "
            "pass an array of shape (n_pairs, 2)"
        )
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must hold row indices; got dtype {array.dtype}; pass an integer array"
        )
    wrong = ((array < 0) | (array >= n)).any(1)
    if wrong.any():
        first = array[wrong][0]
        raise ValueError(
            f"{name} must hold row indices from 0 to {n - 1}; got the pair "
            f"({first[0]}, {first[1]}) for {n} rows; pass indices of rows of X"
        )
    return array.astype(np.int64)


def check_cannot_link(pairs: Any, n: int) -> np.ndarray:
    """Validate cannot-links (p, 2); see `check_pairs`.

    A cannot-link of a row with itself raises InfeasibleConstraints.
    """
    array = check_pairs(pairs, n, "cannot_link")
    same = array[:, 0] == array[:, 1]
    if same.any():
        row = int(array[same][0, 0])
        raise InfeasibleConstraints(
            f"cannot_link must not link a row to itself; got ({row}, {row}); remove this pair",
            cannot_link=[(row, row)],
        )
    return array


def pairs_from_labels(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Convert labels to equivalent must-links and cannot-links, with as few pairs as possible.

    Rows of one label are linked in a chain; the first rows of any two labels get a cannot-link.

    Parameters
    ----------
    y : int array of shape (n,)
        Labels; negative for unlabelled rows.

    Returns
    -------
    must_link, cannot_link : int arrays of shape (p, 2)
    """
    y = np.asarray(y)
    members = [np.flatnonzero(y == c) for c in np.unique(y[y >= 0])]
    chains = [np.stack([m[:-1], m[1:]], 1) for m in members]
    first = np.array([m[0] for m in members], np.int64)
    a, b = np.triu_indices(first.size, 1)
    empty = [np.zeros((0, 2), np.int64)]
    return np.concatenate(empty + chains), np.stack([first[a], first[b]], 1).reshape(-1, 2)


# Must-link components


@dataclass
class Components:
    """Connected components of must-links, and the cannot-links between components.

    Attributes
    ----------
    n : number of rows
    must, cannot : must-links and cannot-links of rows, by source
    node : (n,) component of every row; components are numbered in the order of their first rows
    n_nodes : number of components
    edges : (e, 2) distinct pairs a < b of components between which there is a cannot-link
    must_rows, cannot_rows : (p, 2) rows of all must-links, and of all cannot-links
    softer : text about an alternative to hard constraints, for messages
    """

    n: int
    must: Sequence[Pairs]
    cannot: Sequence[Pairs]
    softer: str = "constraints='soft'"
    node: np.ndarray = field(init=False)
    n_nodes: int = field(init=False)
    edges: np.ndarray = field(init=False)
    must_rows: np.ndarray = field(init=False)
    cannot_rows: np.ndarray = field(init=False)

    def __post_init__(self):
        self.must_rows, self._must_sources = _concatenate_pairs(self.must)
        self.cannot_rows, self._cannot_sources = _concatenate_pairs(self.cannot)
        ones = np.ones(len(self.must_rows), bool)
        self._links = sparse.coo_array((ones, self.must_rows.T), shape=(self.n, self.n))
        self.n_nodes, node = connected_components(self._links, directed=False)
        self.node = factorize(node)[0]
        lifted = np.sort(self.node[self.cannot_rows], axis=1)
        if (lifted[:, 0] == lifted[:, 1]).any():
            self._refuse_contradiction(np.flatnonzero(lifted[:, 0] == lifted[:, 1]))
        self.edges, self._origin = _unique_pairs(lifted)

    def cannot_link_graph(self) -> colouring.Graph:
        """Graph of the components, joined by cannot-links; see `nrprob.colouring`."""
        return colouring.adjacency_sets(self.n_nodes, self.edges)

    def _shortest_path(self, a: int, b: int) -> list[int]:
        """Indices of the must-links on a shortest path from row ``a`` to row ``b``."""
        predecessor = breadth_first_order(self._links, a, directed=False)[1]
        path = []
        while b != a:
            path.append(self._link_index[frozenset((b, int(predecessor[b])))])
            b = int(predecessor[b])
        return path[::-1]

    @functools.cached_property
    def _link_index(self) -> dict[frozenset[int], int]:
        """Index of every must-link, by its pair of rows."""
        return {frozenset(pair): i for i, pair in enumerate(self.must_rows.tolist())}

    def _refuse_contradiction(self, inside: np.ndarray) -> None:
        """Raise InfeasibleConstraints for the cannot-link that the fewest must-links contradict.

        ``inside`` are the indices of cannot-links within a component.
        """
        paths = [(self._shortest_path(*self.cannot_rows[i].tolist()), i) for i in inside[:200]]
        path, i = min(paths, key=lambda p: len(p[0]))
        must, cannot = self._describe_pairs(path, [i])
        raise InfeasibleConstraints(
            f"constraints contradict each other; got {cannot}, but {must} put both rows into one "
            f"cluster; remove one of these pairs, or use {self.softer}",
            _select_pairs(self.must_rows, path),
            _select_pairs(self.cannot_rows, [i]),
        )

    def refuse_colouring(self, part: Sequence[int], k: int) -> None:
        """Raise InfeasibleConstraints for pairs that ``k`` clusters cannot all satisfy.

        ``part`` are components that have no colouring with ``k`` colours.
        """
        edges, how = colouring.find_conflict(self.cannot_link_graph(), part, k)
        origin = {(a, b): self._origin[e] for e, (a, b) in enumerate(self.edges.tolist())}
        cannot = [int(origin[min(e), max(e)]) for e in edges]
        # Cannot-links may end at different rows of a component: name the must-links between them.
        rows = np.unique(self.cannot_rows[cannot])
        must: set[int] = set()
        for c in np.unique(self.node[rows]):
            members = rows[self.node[rows] == c]
            for row in members[1:]:
                must |= set(self._shortest_path(int(members[0]), int(row)))
        must_text, cannot_text = self._describe_pairs(sorted(must), cannot)
        minimality = {
            "smallest": "no smaller set of components is in conflict",
            "irreducible": "each of these cannot-links is part of the conflict",
            "large": "there may be a smaller conflict among these",
        }[how]
        together = f" with {must_text}" if must else ""
        raise InfeasibleConstraints(
            f"cannot-links cannot be satisfied with {k} cluster(s); got {cannot_text}{together} "
            f"({minimality}); raise n_clusters, remove one of these pairs, or use {self.softer}",
            _select_pairs(self.must_rows, sorted(must)),
            _select_pairs(self.cannot_rows, cannot),
        )

    def _describe_pairs(self, must: Sequence[int], cannot: Sequence[int]) -> tuple[str, str]:
        return (
            _format_pairs(self.must_rows, self._must_sources, must),
            _format_pairs(self.cannot_rows, self._cannot_sources, cannot),
        )


def _concatenate_pairs(parts: Sequence[Pairs]) -> tuple[np.ndarray, list[str]]:
    rows = np.concatenate([np.zeros((0, 2), np.int64), *(p.rows for p in parts)])
    return rows, [p.source for p in parts for _ in range(len(p.rows))]


def _select_pairs(pairs: np.ndarray, indices: Sequence[int]) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in pairs[list(indices)]]


def _unique_pairs(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct pairs, and the index of the first occurrence of each."""
    if not len(pairs):
        return pairs, np.zeros(0, np.int64)
    return np.unique(pairs, axis=0, return_index=True)


def _format_pairs(pairs: np.ndarray, sources: Sequence[str], indices: Sequence[int]) -> str:
    """Format the pairs at ``indices`` by source: "cannot_link (0, 1), (0, 2) and y (3, 5)".

    ``sources`` are the sources of all ``pairs``. Long lists are truncated.
    """
    by_source: dict[str, list[str]] = {}
    for i in indices:
        by_source.setdefault(sources[i], []).append(f"({pairs[i][0]}, {pairs[i][1]})")
    return " and ".join(
        f"{source} " + ", ".join(words[:20]) + (", ..." if len(words) > 20 else "")
        for source, words in by_source.items()
    )


def feasible_start(components: Components, k: int) -> tuple[np.ndarray | None, int]:
    """Assign components to ``k`` clusters such that all cannot-links are satisfied.

    Returns
    -------
    start : (n_nodes,) cluster of every component, or None if the search reached its limit
    q : degeneracy of the graph of cannot-links; constraints are feasible if it is below ``k``

    Raises
    ------
    InfeasibleConstraints
        If no such clusters exist; the message names pairs that cannot all be satisfied.
    """
    neighbours = components.cannot_link_graph()
    q = colouring.inductive_order(neighbours)[1]
    try:
        colours, part = colouring.find_colouring(neighbours, k)
    except colouring.Undecided:
        return None, q
    if colours is None:
        components.refuse_colouring(part, k)
    assert colours is not None
    return np.array([colours[v] for v in range(components.n_nodes)], np.int64), q


def cluster_order(labels: np.ndarray, fixed: np.ndarray | None, k: int) -> np.ndarray:
    """Order the clusters: entry c of the result (k,) is the cluster of target class c.

    All other clusters follow. ``labels`` (n,) are the clusters of the rows, and ``fixed`` (n,) the
    target classes of the rows, -1 for rows without a class.
    """
    if fixed is None:
        return np.arange(k)
    targets = [labels[np.flatnonzero(fixed == c)[0]] for c in range(fixed.max() + 1)]
    return np.array([*targets, *(c for c in range(k) if c not in targets)])


def draw_pairs(
    y: Any, n_pairs: int, *, wrong: str = "none", share: float = 0.4, random_state: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sample must-links and cannot-links from classes, some of them wrong.

    The four experiments of Yin (2007), section 5.6, are: ``wrong="none"``; ``wrong="coin"`` with
    ``share=1``; ``wrong="coin"`` with ``share=0.4``; and ``wrong="bias"`` with ``share=0.4``.

    Parameters
    ----------
    y : array-like of shape (n,)
        Classes.
    n_pairs : int
        Number of pairs.
    wrong : {"none", "coin", "bias"}, default="none"
        Errors of the pairs: "coin" makes a pair a must-link with probability 1/2, else a
        cannot-link. "bias" replaces a pair by a must-link between rows of the last two classes.
    share : float, default=0.4
        Share of the pairs with such errors.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    must_link, cannot_link : int arrays of shape (p, 2)
    """
    y = np.asarray(y)
    random = check_random_state(random_state)
    classes = np.unique(y)
    check_choice("wrong", wrong, ("none", "coin", "bias"))
    if y.size < 2 or (wrong == "bias" and classes.size < 2):
        raise ValueError(
            "y must have two rows or more, and two classes for wrong='bias'; got "
            f"{y.size} rows in {classes.size} class(es); pass more rows"
        )
    first = random.randint(y.size, size=n_pairs)
    pairs = np.stack([first, (first + random.randint(1, y.size, size=n_pairs)) % y.size], 1)
    linked = y[pairs[:, 0]] == y[pairs[:, 1]]
    n_wrong = 0 if wrong == "none" else round(share * n_pairs)
    if wrong == "coin":
        linked[:n_wrong] = random.randint(2, size=n_wrong) == 1
    elif wrong == "bias":
        for side, c in enumerate(classes[-2:]):
            pairs[:n_wrong, side] = random.choice(np.flatnonzero(y == c), n_wrong)
        linked[:n_wrong] = True
    return pairs[linked], pairs[~linked]
