"""Graph colouring: decide whether k clusters can satisfy all cannot-links.

Clusters are colours, and a cannot-link is an edge. The decision is NP-complete for three colours
and more, so the exact search stops at a stated limit. Yin (2007), sections 5.2.1 and 5.4.3; the
order is that of Davidson and Ravi (2006), known as smallest-last, and the search is Brélaz's
DSATUR.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order

Graph = list[set[int]]

SEARCH_LIMIT = 50_000  # vertices coloured, takebacks not counted: a few seconds


class Undecided(Exception):
    """The search reached its limit."""


def graph(n: int, edges: np.ndarray) -> Graph:
    """Neighbours of each of ``n`` vertices, from edges (e, 2)."""
    out: Graph = [set() for _ in range(n)]
    for a, b in edges.tolist():
        out[a].add(b)
        out[b].add(a)
    return out


def inductive_order(neighbours: Graph) -> tuple[np.ndarray, int]:
    """Order in which no vertex has more than Q neighbours before it, for the smallest Q.

    A vertex of least degree is taken away, and put before those taken earlier, until none is left.
    Ties go by index. With more than Q colours, colouring in this order always succeeds.

    Returns
    -------
    order : int array of all vertices
    q : int
        The degeneracy of the graph; 0 if there is no edge.
    """
    degree = [len(near) for near in neighbours]
    heap = [(d, -v) for v, d in enumerate(degree)]
    heapq.heapify(heap)
    taken = [False] * len(neighbours)
    order, q = [], 0
    while heap:
        d, v = heapq.heappop(heap)
        v = -v
        if taken[v] or d != degree[v]:
            continue
        taken[v] = True
        order.append(v)
        q = max(q, d)
        for u in neighbours[v]:
            if not taken[u]:
                degree[u] -= 1
                heapq.heappush(heap, (degree[u], -u))
    return np.array(order[::-1], dtype=np.int64), q


class _Budget:
    def __init__(self, limit: int):
        self.left = limit

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Undecided


def _peel(neighbours: Graph, vertices: Iterable[int], k: int) -> tuple[list[int], list[int]]:
    """Vertices that can always be coloured last, in the order of removal, and the rest."""
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


def _connected(neighbours: Graph, vertices: Sequence[int]) -> list[list[int]]:
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


def _dsatur(neighbours: Graph, part: Sequence[int], k: int, budget: _Budget) -> dict[int, int]:
    """Colours of a connected part, the most constrained vertex first; empty if there are none."""
    place = {v: i for i, v in enumerate(part)}
    near = [[place[u] for u in neighbours[v] if u in place] for v in part]
    n = len(part)
    degree = np.array([len(a) for a in near]) / (n + 1)
    count = np.zeros((n, k), np.int64)
    saturation = np.zeros(n)
    colour = np.full(n, -1)

    def pick() -> tuple[int, list[int]]:
        v = int(np.where(colour < 0, saturation + degree, -1).argmax())
        # Colours not used yet are all alike: one of them is enough.
        top = min(int(colour.max()) + 2, k)
        return v, [c for c in range(top - 1, -1, -1) if count[v, c] == 0]

    def change(v: int, c: int, by: int) -> None:
        colour[v] = c if by > 0 else -1
        for u in near[v]:
            count[u, c] += by
            if count[u, c] == (1 if by > 0 else 0):
                saturation[u] += by

    stack = [pick()]
    while stack:
        v, choices = stack[-1]
        if colour[v] >= 0:
            change(v, int(colour[v]), -1)
        if not choices:
            stack.pop()
            continue
        budget.spend()
        change(v, choices.pop(), 1)
        if (colour >= 0).all():
            return {u: int(colour[i]) for i, u in enumerate(part)}
        stack.append(pick())
    return {}


def colour(
    neighbours: Graph, k: int, vertices: Iterable[int] | None = None, limit: int = SEARCH_LIMIT
) -> tuple[dict[int, int] | None, list[int]]:
    """Colours of the vertices, or a part of the graph that has no colouring.

    Parameters
    ----------
    neighbours : list of sets
    k : int
        Number of colours.
    vertices : iterable of int, optional
        Subgraph to colour; all by default.
    limit : int
        Most vertices that the search may colour.

    Returns
    -------
    colours : dict, or None if there are none
    part : list of int
        Where there are none: a connected part without a colouring.

    Raises
    ------
    Undecided
        If the search reached its limit.
    """
    inside = set(range(len(neighbours)) if vertices is None else vertices)
    removed, core = _peel(neighbours, inside, k)
    budget = _Budget(limit)
    colours: dict[int, int] = {}
    for part in _connected(neighbours, core):
        result = _dsatur(neighbours, part, k, budget)
        if not result:
            return None, part
        colours |= result
    for v in reversed(removed):
        taken = {colours[u] for u in neighbours[v] if u in colours}
        colours[v] = next(c for c in range(k) if c not in taken)
    return colours, []


def conflict(neighbours: Graph, part: Sequence[int], k: int) -> tuple[list[tuple[int, int]], str]:
    """Edges that cannot all be kept with ``k`` colours, as few as can be found.

    Parameters
    ----------
    neighbours : list of sets
    part : list of int
        Part of the graph that has no colouring.
    k : int

    Returns
    -------
    edges : list of pairs
    how : {"smallest", "irreducible", "large"}
        "smallest": none has fewer vertices. "irreducible": none of its edges can be left out.
        "large": the search for such a set reached its limit.
    """
    clique = _clique(neighbours, part, k + 1)
    if clique:
        return [(a, b) for i, a in enumerate(clique) for b in clique[i + 1 :]], "smallest"
    if k == 2:
        cycle = _odd_cycle(neighbours, part)
        return list(zip(cycle, cycle[1:] + cycle[:1], strict=True)), "smallest"
    left = 4 * SEARCH_LIMIT
    sub: Graph = [set() for _ in neighbours]
    for v in part:
        sub[v] = neighbours[v] & set(part)
    how = "irreducible"

    def needed(vertices: Sequence[int]) -> bool:
        """Whether what is left can be coloured, so that what was taken away is needed."""
        nonlocal left, how
        if left <= 0:
            how = "large"
            return True
        try:
            limit = min(left, SEARCH_LIMIT)
            left -= len(vertices)
            return colour(sub, k, vertices, limit)[0] is not None
        except Undecided:
            left -= limit
            how = "large"
            return True

    kept = _peel(sub, part, k)[1]
    for v in list(kept):
        rest = [u for u in kept if u != v]
        if v in kept and not needed(rest):
            kept = _peel(sub, rest, k)[1]
    inside = set(kept)
    edges = sorted((a, b) for a in kept for b in sub[a] & inside if a < b)
    for a, b in list(edges):
        sub[a].discard(b)
        sub[b].discard(a)
        if needed(kept):
            sub[a].add(b)
            sub[b].add(a)
        else:
            edges.remove((a, b))
    return edges, how


def _clique(neighbours: Graph, part: Sequence[int], size: int, limit: int = 20_000) -> list[int]:
    """Vertices that are all neighbours; empty if none were found within the limit."""
    budget = _Budget(limit)

    def extend(chosen: list[int], candidates: list[int]) -> list[int]:
        if len(chosen) == size:
            return chosen
        for i, v in enumerate(candidates):
            if len(chosen) + len(candidates) - i < size:
                return []
            budget.spend()
            result = extend([*chosen, v], [u for u in candidates[i + 1 :] if u in neighbours[v]])
            if result:
                return result
        return []

    inside = set(part)
    if size > 200:  # deeper than Python cares to recurse, and hopeless anyway
        return []
    try:
        return extend([], [v for v in part if len(neighbours[v] & inside) >= size - 1])
    except Undecided:
        return []


def _odd_cycle(neighbours: Graph, part: Sequence[int]) -> list[int]:
    """Shortest cycle of odd length, by breadth-first search over (vertex, parity)."""
    n, place = len(part), {v: i for i, v in enumerate(part)}
    near = [(i, place[u]) for i, v in enumerate(part) for u in neighbours[v] if u in place]
    a, b = np.array(near).T
    ends = np.concatenate([a, a + n]), np.concatenate([b + n, b])
    twice = sparse.csr_array((np.ones(2 * a.size), ends), shape=(2 * n, 2 * n))
    best: list[int] = []
    for start in range(n):
        before = breadth_first_order(twice, start)[1]
        walk, at = [], before[start + n]
        while at >= 0:
            walk.append(part[at % n])
            at = before[at]
        # The shortest closed odd walk of all starts is a cycle; that of one may not be.
        if len(set(walk)) == len(walk) and 0 < len(walk) < (len(best) or np.inf):
            best = walk
    return best
