r"""Joint codes of the labels of several views: one table of cells, or a directed forest over views.

The labels of n samples in V views are encoded in one of three ways:

- "table": one word per sample for its cell, a combination of clusters of all views;
- "forest": the labels of a root view by themselves, the labels of every other view given the labels
  of its parent. The target, view 0, is a root;
- "independent": the labels of every view by themselves, a forest without edges whose choice costs
  nothing.

Let N_k be the number of code words of cluster k of view v, and N the sum of N_k over clusters. T_kj
is the number of samples in cluster k of view u and cluster j of view v; n_k is the sum of T_kj over
j. K_v is the number of clusters of view v, and log C(K, N) the parametric complexity of a
multinomial of K symbols and N words. The labels of a root v have the length r in nats. The labels
of view v given the labels of its parent u have the length e:

.. math:: r(v) = N \log N - \sum_k N_k \log N_k + \log C(K_v, N), \qquad
    e(u, v) = \sum_k \left[ n_k \log n_k - \sum_j T_{kj} \log T_{kj} + \log C(K_v, n_k) \right].

The target is a root in 2 (V + 1)^(V - 2) of the rooted forests on V views. The code of the forest
therefore has log 2 + (V - 2) log(V + 1) nats. The code is complete.

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

MAX_CELLS = 512  # largest number of cells of a table
_TIE = 1e-6  # subtracted from lengths of roots, so that equally long edges are not used


def root_length(counts: np.ndarray, k: int) -> float:
    """Length r in nats of the labels of a root, coded without the labels of other views.

    ``counts`` are the numbers of code words of the clusters, and ``k`` is the number of clusters
    that the code has words for.
    """
    n = counts.sum()
    length = xlogy(n, n) - xlogy(counts, counts).sum()
    return float(length + multinomial_complexity(max(k, 1), n))


def edge_length(table: np.ndarray, k: int) -> float:
    """Length e in nats of the labels of view v given the labels of view u.

    ``table`` T (K_u, K_v) has the numbers of samples by cluster of u and cluster of v. ``k`` is the
    number of clusters of v that the code has words for.
    """
    n = table.sum(1)
    length = xlogy(n, n).sum() - xlogy(table, table).sum()
    return float(length + multinomial_complexity(max(k, 1), n).sum())


def forest_choice(n_views: int) -> float:
    """Description length in nats of a forest over ``n_views`` views in which view 0 is a root."""
    return math.log(2) + (n_views - 2) * math.log(n_views + 1) if n_views > 1 else 0.0


def shortest_forest(roots: np.ndarray, edges: np.ndarray, *, free: bool = False) -> np.ndarray:
    """Find the directed forest over V views with the shortest code of the labels.

    Parameters
    ----------
    roots : (V,) length of the labels of every view as a root
    edges : (V, V) length of the labels of a view (column) given the labels of its parent (row)
    free : whether view 0 may have a parent; if False, view 0 is a root

    Returns
    -------
    (V,) parents of the views, -1 for roots
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
    """Parents (n,) of the nodes in the shortest arborescence from node 0 (Chu, Liu and Edmonds).

    ``weights`` (n, n) are the lengths of the edges from row to column. The parent of node 0 is 0.
    """
    n = len(weights)
    parent = weights.argmin(0)
    parent[0] = 0
    cycle = _find_cycle(parent)
    if cycle is None:
        return parent
    # Contract the cycle to one node, which comes last. An edge that enters the cycle replaces the
    # edge of the cycle to the entered node.
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
    """Nodes of one cycle of a graph, or None if the graph has no cycle.

    Every node except node 0 has one parent, in ``parent`` (n,).
    """
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
