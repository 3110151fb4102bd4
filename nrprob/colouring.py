"""Graph colouring: decide whether k clusters can satisfy all cannot-links.

Rows, or components of must-links, are vertices; clusters are colours; and a cannot-link is an edge.
A graph is a list with the set of neighbours of every vertex (``neighbours``), k the number of
colours. The decision problem is NP-complete for three colours or more, so the exact search has a
limit. See Yin (2007), sections 5.2.1 and 5.4.3. The inductive order is the smallest-last order of
Davidson and Ravi (2006). The exact search is DSATUR (Brélaz, 1979).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order

Graph = list[set[int]]

SEARCH_LIMIT = 50_000  # maximum number of colour assignments, which takes a few seconds


class Undecided(Exception):
    """Error for a search that reached its limit before it found or excluded a colouring."""


def adjacency_sets(n: int, edges: np.ndarray) -> Graph:
    """Make the graph of ``n`` vertices with the ``edges`` (n_edges, 2)."""
    out: Graph = [set() for _ in range(n)]
    for a, b in edges.tolist():
        out[a].add(b)
        out[b].add(a)
    return out


def inductive_order(neighbours: Graph) -> tuple[np.ndarray, int]:
    """Order the vertices such that each has at most q earlier neighbours, for the smallest q.

    Vertices of smallest degree are removed one after another; the order is the reverse order of
    removal. Ties are broken by index. With more than q colours, greedy colouring in this order
    always succeeds.

    Returns
    -------
    order : int array of all vertices
    q : int
        Degeneracy of the graph; 0 without edges.
    """
    degree = [len(adjacent) for adjacent in neighbours]
    heap = [(d, -v) for v, d in enumerate(degree)]
    heapq.heapify(heap)
    removed = [False] * len(neighbours)
    order, q = [], 0
    while heap:
        d, v = heapq.heappop(heap)
        v = -v
        if removed[v] or d != degree[v]:
            continue
        removed[v] = True
        order.append(v)
        q = max(q, d)
        for u in neighbours[v]:
            if not removed[u]:
                degree[u] -= 1
                heapq.heappush(heap, (degree[u], -u))
    return np.array(order[::-1], dtype=np.int64), q


class _AssignmentCounter:
    """Counter of the colour assignments that a search may still make; raises `Undecided` at 0."""

    def __init__(self, limit: int):
        self.left = limit

    def use_one(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Undecided


def _peel_low_degree(
    neighbours: Graph, vertices: Iterable[int], k: int
) -> tuple[list[int], list[int]]:
    """Remove vertices with fewer than k remaining neighbours, one after another.

    ``vertices`` are the vertices of the subgraph to reduce. Returns the removed vertices in the
    order of removal, and the remaining vertices. For any colours of the remaining vertices, the
    removed vertices can be coloured afterwards, in reverse order.
    """
    inside = set(vertices)
    degree = {v: len(neighbours[v] & inside) for v in inside}
    queue = deque(v for v in sorted(inside) if degree[v] < k)
    removed = []
    while queue:
        v = queue.popleft()
        if v not in inside:
            continue
        inside.discard(v)
        removed.append(v)
        for u in neighbours[v]:
            if u in inside:
                degree[u] -= 1
                if degree[u] == k - 1:
                    queue.append(u)
    return removed, sorted(inside)


def _connected_parts(neighbours: Graph, vertices: Sequence[int]) -> list[list[int]]:
    """Connected components of the subgraph of ``vertices``, by breadth-first search."""
    left, parts = set(vertices), []
    while left:
        queue = deque([min(left)])
        left.discard(queue[0])
        part = []
        while queue:
            v = queue.popleft()
            part.append(v)
            for u in sorted(neighbours[v] & left):
                left.discard(u)
                queue.append(u)
        parts.append(sorted(part))
    return parts


def _colour_by_dsatur(
    neighbours: Graph, part: Sequence[int], k: int, budget: _AssignmentCounter
) -> dict[int, int]:
    """Colour a connected part by backtracking search; return the colour of every vertex.

    The result is empty if there is no colouring. The next vertex has the largest saturation, which
    is the number of colours among the neighbours of a vertex. ``budget`` limits the search.
    """
    index = {v: i for i, v in enumerate(part)}
    adjacent = [[index[u] for u in neighbours[v] if u in index] for v in part]
    n = len(part)
    degree = np.array([len(a) for a in adjacent]) / (n + 1)  # breaks ties of the saturation
    count = np.zeros((n, k), np.int64)  # neighbours of every vertex by colour
    saturation = np.zeros(n)
    colour = np.full(n, -1)

    def choose_vertex() -> tuple[int, list[int]]:
        v = int(np.where(colour < 0, saturation + degree, -1).argmax())
        # Unused colours are interchangeable: one of them is enough.
        n_colours = min(int(colour.max()) + 2, k)
        return v, [c for c in range(n_colours - 1, -1, -1) if count[v, c] == 0]

    def assign_colour(v: int, c: int, step: int) -> None:
        """Assign the colour ``c`` to vertex ``v`` (step 1), or remove it (step -1)."""
        colour[v] = c if step > 0 else -1
        for u in adjacent[v]:
            count[u, c] += step
            if count[u, c] == (1 if step > 0 else 0):
                saturation[u] += step

    stack = [choose_vertex()]
    while stack:
        v, choices = stack[-1]
        if colour[v] >= 0:
            assign_colour(v, int(colour[v]), -1)
        if not choices:
            stack.pop()
            continue
        budget.use_one()
        assign_colour(v, choices.pop(), 1)
        if (colour >= 0).all():
            return {u: int(colour[i]) for i, u in enumerate(part)}
        stack.append(choose_vertex())
    return {}


def find_colouring(
    neighbours: Graph, k: int, vertices: Iterable[int] | None = None, limit: int = SEARCH_LIMIT
) -> tuple[dict[int, int] | None, list[int]]:
    """Find a colouring, or a part of the graph without one.

    Parameters
    ----------
    neighbours : list of sets
    k : int
        Number of colours.
    vertices : iterable of int, optional
        Vertices of the subgraph to colour; all by default.
    limit : int
        Maximum number of assignments of a colour.

    Returns
    -------
    colours : dict from vertices to colours, or None if there is no colouring
    part : list of int
        A connected part without a colouring; empty if there is a colouring.

    Raises
    ------
    Undecided
        If the search reached its limit.
    """
    inside = set(range(len(neighbours)) if vertices is None else vertices)
    removed, core = _peel_low_degree(neighbours, inside, k)
    budget = _AssignmentCounter(limit)
    colours: dict[int, int] = {}
    # Exact search for every connected part of the core.
    for part in _connected_parts(neighbours, core):
        solution = _colour_by_dsatur(neighbours, part, k, budget)
        if not solution:
            return None, part
        colours |= solution
    # Greedy colouring of the removed vertices.
    for v in reversed(removed):
        used = {colours[u] for u in neighbours[v] if u in colours}
        colours[v] = next(c for c in range(k) if c not in used)
    return colours, []


def find_conflict(
    neighbours: Graph, part: Sequence[int], k: int
) -> tuple[list[tuple[int, int]], str]:
    """Find a small set of edges that cannot all be satisfied with ``k`` colours.

    Parameters
    ----------
    neighbours : list of sets
    part : list of int
        Part of the graph without a colouring.
    k : int

    Returns
    -------
    edges : list of pairs
    how : {"smallest", "irreducible", "large"}
        "smallest": no other such set has fewer vertices. "irreducible": if any one edge is removed,
        there is a colouring. "large": the search for an irreducible set reached its limit.
    """
    clique = _find_clique(neighbours, part, k + 1)
    if clique:
        return [(a, b) for i, a in enumerate(clique) for b in clique[i + 1 :]], "smallest"
    if k == 2:
        cycle = _shortest_odd_cycle(neighbours, part)
        return list(zip(cycle, cycle[1:] + cycle[:1], strict=True)), "smallest"
    left = 4 * SEARCH_LIMIT
    subgraph: Graph = [set() for _ in neighbours]
    for v in part:
        subgraph[v] = neighbours[v] & set(part)
    how = "irreducible"

    def has_colouring(vertices: Sequence[int]) -> bool:
        """Whether the subgraph has a colouring; also true if the search reaches its limit."""
        nonlocal left, how
        if left <= 0:
            how = "large"
            return True
        try:
            limit = min(left, SEARCH_LIMIT)
            left -= len(vertices)
            return find_colouring(subgraph, k, vertices, limit)[0] is not None
        except Undecided:
            left -= limit
            how = "large"
            return True

    # Remove vertices, then edges, as long as there is no colouring.
    core = _peel_low_degree(subgraph, part, k)[1]
    for v in list(core):
        rest = [u for u in core if u != v]
        if v in core and not has_colouring(rest):
            core = _peel_low_degree(subgraph, rest, k)[1]
    inside = set(core)
    edges = sorted((a, b) for a in core for b in subgraph[a] & inside if a < b)
    for a, b in list(edges):
        subgraph[a].discard(b)
        subgraph[b].discard(a)
        if has_colouring(core):
            subgraph[a].add(b)
            subgraph[b].add(a)
        else:
            edges.remove((a, b))
    return edges, how


def _find_clique(
    neighbours: Graph, part: Sequence[int], size: int, limit: int = 20_000
) -> list[int]:
    """Find a clique of a given size among the vertices ``part``, in at most ``limit`` steps.

    The result is empty if the search finds no clique.
    """
    budget = _AssignmentCounter(limit)

    def extend_clique(clique: list[int], candidates: list[int]) -> list[int]:
        if len(clique) == size:
            return clique
        for i, v in enumerate(candidates):
            if len(clique) + len(candidates) - i < size:
                return []
            budget.use_one()
            adjacent = [u for u in candidates[i + 1 :] if u in neighbours[v]]
            if larger := extend_clique([*clique, v], adjacent):
                return larger
        return []

    inside = set(part)
    if size > 200:  # beyond the recursion limit, and too large for the search
        return []
    try:
        return extend_clique([], [v for v in part if len(neighbours[v] & inside) >= size - 1])
    except Undecided:
        return []


def _shortest_odd_cycle(neighbours: Graph, part: Sequence[int]) -> list[int]:
    """Shortest cycle of odd length in ``part``, by breadth-first search over (vertex, parity)."""
    n, index = len(part), {v: i for i, v in enumerate(part)}
    adjacent = [(i, index[u]) for i, v in enumerate(part) for u in neighbours[v] if u in index]
    # Two copies of the graph, one per parity; every edge leads to the other copy.
    a, b = np.array(adjacent).T
    ends = np.concatenate([a, a + n]), np.concatenate([b + n, b])
    doubled = sparse.csr_array((np.ones(2 * a.size), ends), shape=(2 * n, 2 * n))
    shortest: list[int] = []
    for start in range(n):
        # Shortest walk of odd length from the vertex to itself.
        predecessor = breadth_first_order(doubled, start)[1]
        walk, vertex = [], predecessor[start + n]
        while vertex >= 0:
            walk.append(part[vertex % n])
            vertex = predecessor[vertex]
        # The shortest closed odd walk over all starts is a cycle; other walks may visit a vertex
        # twice.
        if len(set(walk)) == len(walk) and 0 < len(walk) < (len(shortest) or np.inf):
            shortest = walk
    return shortest
