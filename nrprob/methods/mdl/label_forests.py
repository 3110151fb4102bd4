r"""Joint codes of the labels of several views: one table of cells, or a directed forest over views.

The labels of n samples in V views are encoded in one of three ways:

- "table": one word per sample for its cell, a combination of clusters of all views;
- "forest": the labels of a root view by themselves, the labels of every other view given the labels
  of its parent. The target, view 0, is a root;
- "independent": the labels of every view by themselves, a forest without edges whose choice costs
  nothing.

Let N_k be the number of words of cluster k of a view, N their sum, T_kj the number of samples in
cluster k of view u and cluster j of view v, and n_k the sum of T_kj over j. log C(K, N) is the
parametric complexity of a multinomial of K symbols and N words. The lengths in nats of a root v and
of an edge from view u to view v are

.. math:: r(v) = N \log N - \sum_k N_k \log N_k + \log C(K_v, N), \qquad
    e(u, v) = \sum_k \left[ n_k \log n_k - \sum_j T_{kj} \log T_{kj} + \log C(K_v, n_k) \right].

The choice of a forest costs log 2 + (V - 2) log(V + 1), since there are 2 (V + 1)^(V - 2) rooted
forests on V views in which the target is a root. The code is complete.

References
----------
J. Edmonds (1967), "Optimum branchings", Journal of Research of the National Bureau of Standards
71B(4), doi:10.6028/jres.071b.032.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import xlogy

from nrprob.codelength import multinomial_complexity

CODES = ("table", "forest", "independent")
MAX_CELLS = 512  # largest number of cells of a table
_TIE = 1e-6  # subtracted from lengths of roots, so that equally long edges are not used


def root_length(counts: np.ndarray, k: int) -> float:
    """Length r of labels with ``counts`` (K,) of their words, for ``k`` clusters."""
    n = counts.sum()
    length = xlogy(n, n) - xlogy(counts, counts).sum()
    return float(length + multinomial_complexity(max(k, 1), n))


def edge_length(table: np.ndarray, k: int) -> float:
    """Length e of labels given another view, from ``table`` T (K_u, K_v), for ``k`` clusters."""
    n = table.sum(1)
    length = xlogy(n, n).sum() - xlogy(table, table).sum()
    return float(length + multinomial_complexity(max(k, 1), n).sum())


def forest_choice(n_views: int) -> float:
    """Length in nats of the choice of a forest over ``n_views`` views."""
    return math.log(2) + (n_views - 2) * math.log(n_views + 1) if n_views > 1 else 0.0


def shortest_forest(roots: np.ndarray, edges: np.ndarray, *, free: bool = False) -> np.ndarray:
    """Parents (V,) in the shortest forest in which view 0 is a root; -1 for roots.

    With ``free``, view 0 may have a parent too.

    Parameters
    ----------
    roots : (V,) lengths of the views as roots
    edges : (V, V) lengths of the views (columns) given other views (rows)
    """
    n_views = len(roots)
    weights = np.full((n_views + 1, n_views + 1), np.inf)
    # A virtual root precedes all views.
    first = 0 if free else 1
    weights[1:, 1 + first :] = edges[:, first:]
    weights[0, 1:] = roots - _TIE
    np.fill_diagonal(weights, np.inf)
    return _arborescence(weights)[1:] - 1


def _arborescence(weights: np.ndarray) -> np.ndarray:
    """Parents of the shortest arborescence from node 0 (Chu, Liu and Edmonds).

    ``weights`` (V, V) are the lengths of the edges from row to column. The parent of node 0 is 0.
    """
    n = len(weights)
    parent = weights.argmin(0)
    parent[0] = 0
    cycle = _find_cycle(parent)
    if cycle is None:
        return parent
    # Contract the cycle to one node, which is last, and enter it where that adds least.
    inside = np.zeros(n, bool)
    inside[cycle] = True
    outside = np.flatnonzero(~inside)
    members = np.flatnonzero(inside)
    best = weights[parent[members], members]
    entering = weights[np.ix_(outside, members)] - best
    leaving = weights[np.ix_(members, outside)]
    small = np.full((outside.size + 1,) * 2, np.inf)
    small[:-1, :-1] = weights[np.ix_(outside, outside)]
    small[:-1, -1] = entering.min(1)
    small[-1, :-1] = leaving.min(0)
    reduced = _arborescence(small)
    result = parent.copy()
    for i, node in enumerate(outside):
        p = reduced[i]
        result[node] = members[leaving[:, i].argmin()] if p == outside.size else outside[p]
    result[0] = 0
    source = reduced[-1]
    result[members[entering[source].argmin()]] = outside[source]
    return result


def _find_cycle(parent: np.ndarray) -> list[int] | None:
    """Nodes of a cycle of a graph in which every node but 0 has one parent; None if acyclic."""
    state = np.zeros(len(parent), int)
    state[0] = len(parent) + 1
    for start in range(1, len(parent)):
        node, path = start, []
        while not state[node]:
            state[node] = start
            path.append(node)
            node = int(parent[node])
        if state[node] == start and node in path:
            return path[path.index(node) :]
    return None
