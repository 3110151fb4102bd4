"""Soft must-links and cannot-links between must-link components, and code words under all pairs.

p is the number of pairs of a type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nrprob.links import Components
from nrprob.methods.mdl.linked_words import LinkedWords, transmission_order
from nrprob.methods.mdl.soft_words import SoftWords


@dataclass(frozen=True)
class SoftPairs:
    """Distinct soft pairs of one type, between components of the hard must-links.

    Attributes
    ----------
    nodes : (p, 2) indices a < b of the two components of each pair
    rows : (p, 2) for each pair, the indices of two rows, one of each component
    """

    nodes: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.nodes)


def soft_pairs(pairs: np.ndarray, parts: Components) -> SoftPairs:
    """Convert soft pairs (p, 2) of row indices to distinct pairs of components.

    ``parts`` are the components of the hard must-links, with the hard cannot-links. The function
    leaves out pairs that these hard constraints always satisfy or always violate.
    """
    nodes = np.sort(parts.node[pairs], axis=1)
    apart = set(map(tuple, parts.edges.tolist()))
    open_ = np.array([a != b and (a, b) not in apart for a, b in nodes.tolist()], bool)
    nodes, pairs = nodes[open_], pairs[open_]
    _, first = np.unique(nodes, axis=0, return_index=True) if len(nodes) else (None, [])
    first = np.sort(np.asarray(first, np.int64))
    return SoftPairs(nodes[first], pairs[first])


def make_words(
    parts: Components, link: SoftPairs, apart: SoftPairs, k: int, start: np.ndarray | None
) -> LinkedWords | SoftWords | None:
    """Make the code words of the labels of must-link components, under hard and soft pairs.

    The result is None if there are neither hard cannot-links nor soft pairs.

    Parameters
    ----------
    parts : components of the hard must-links, with the hard cannot-links between them
    link, apart : soft must-links and soft cannot-links
    k : number of clusters
    start : (n_nodes,) clusters that satisfy the hard cannot-links; None if unknown
    """
    soft = len(link) + len(apart) > 0
    if not soft and not len(parts.edges):
        return None
    positions = transmission_order(parts.n_nodes, link.nodes, parts.edges, apart.nodes)
    if soft:
        edges = parts.edges
        return SoftWords(parts.n_nodes, link.nodes, apart.nodes, positions, k, edges, start)
    return LinkedWords(parts.n_nodes, parts.edges, positions, k, start)
