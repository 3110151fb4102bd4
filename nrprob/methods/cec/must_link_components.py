"""Must-link components of labels and pairs, and cannot-links between components.

A must-link component is called a *unit*: a set of rows that share a cluster. There are n rows, p
pairs of must-links or of cannot-links, and k clusters.
"""

from __future__ import annotations

import math

import numpy as np

from nrprob.exceptions import warn
from nrprob.links import Components, Pairs, feasible_start, pairs_from_labels
from nrprob.methods.cec.link_posterior import LABELINGS, SETS, STATES, Links, read_links

_MAX_IMPLIED = 1_000_000  # maximum number of cannot-links from labels that are listed one by one
_SOFTER = "MDLConstrained with constraints='soft'"


def read_units(
    must_link: np.ndarray,
    cannot_link: np.ndarray,
    codes: np.ndarray,
    links: str,
    k: int,
    n_rows: int,
    exist: np.ndarray | None = None,
) -> tuple[Links, int]:
    """Build the record `Links` of the units; count the units with a mean-field posterior.

    Parameters
    ----------
    must_link, cannot_link : (p, 2) pairs of rows
    codes : (n,) classes, -1 where unknown; at most ``k`` classes unless ``links`` is "must"
    links : type of the links that the classes imply: "both", "must" or "cannot"
    k : number of clusters
    n_rows : number of rows with padding
    exist : mask of the clusters, False for padded clusters; ignored if the posterior is a sum over
        subsets of clusters. None without padding

    Returns
    -------
    links : units and cannot-links
    n_approximated : number of units with a mean-field posterior

    Raises
    ------
    InfeasibleConstraints
        If the links contradict each other, or no labels with ``k`` clusters satisfy them.
    ValueError
        If labels imply too many cannot-links, or if the search found no labels that satisfy all
        cannot-links.
    """
    parts, classes = _unit_components(must_link, cannot_link, codes, links, k)
    start = feasible_start(parts, k)[0]
    if start is None:
        raise ValueError(
            "the search found no labels that satisfy all cannot-links, though some may exist; got "
            f"{len(parts.edges)} cannot-links and n_clusters={k}; raise n_clusters, or use "
            f"{_SOFTER}"
        )
    exist = None if classes else exist
    result, rough = read_links(parts.node, parts.edges, classes, start, k, n_rows, exist)
    if rough:
        warn(
            "the posterior under cannot-links is approximated by a mean field; got "
            f"{rough} units in components of more than {LABELINGS} labelings; use fewer "
            "cannot-links, or fewer clusters, for an exact posterior"
        )
    return result, rough


def _unit_components(
    must_link: np.ndarray, cannot_link: np.ndarray, codes: np.ndarray, links: str, k: int
) -> tuple[Components, list[np.ndarray]]:
    """Units with their cannot-links, and a list with the units of every class.

    The posterior can sum over the subsets of clusters that classes occupy. This sum implies that
    units of different classes are cannot-linked. If the sum is feasible, the cannot-links between
    classes are omitted. If the sum is not feasible, the cannot-links between classes are listed one
    by one, and the list of the classes is empty. The list is also empty if the classes imply no
    cannot-links. The arguments are as in `read_units`.
    """
    must, cannot = [Pairs(must_link, "must_link")], [Pairs(cannot_link, "cannot_link")]
    if links != "cannot":
        must.append(Pairs(pairs_from_labels(codes)[0], "y"))
    rows = np.flatnonzero(codes >= 0)
    if links == "must" or not rows.size:
        return Components(len(codes), must, cannot, _SOFTER), []
    node = Components(len(codes), must, [], _SOFTER).node
    # Distinct pairs (unit, class), with a row of each.
    both = np.stack([node[rows], codes[rows]], 1)
    (unit, label), first = (a.T for a in np.unique(both, axis=0, return_index=True))
    members = [unit[label == c] for c in range(label.max() + 1)]
    # List the cannot-links of the classes, unless sums over subsets of clusters imply them.
    one_by_one = (
        k > SETS
        or unit.size << k > STATES
        or np.unique(unit).size < unit.size  # a unit in two classes is a contradiction
        or bool(np.isin(unit, node[cannot_link]).any())
        or (links == "both" and math.perm(k, len(members)) <= LABELINGS)
    )
    if one_by_one:
        cannot.append(Pairs(_cross_class_pairs(rows[first], label), "y"))
        members = []
    return Components(len(codes), must, cannot, _SOFTER), members


def _cross_class_pairs(rows: np.ndarray, label: np.ndarray) -> np.ndarray:
    """All pairs (p, 2) of ``rows`` in different classes; ``label`` has the class of every row."""
    size = np.bincount(label)
    count = (size.sum() ** 2 - (size**2).sum()) // 2
    if count > _MAX_IMPLIED:
        raise ValueError(
            f"y implies more than {_MAX_IMPLIED} cannot-links; got {count} of {len(rows)} labelled "
            f"rows; use links='both', at most {SETS} clusters, or fewer labels"
        )
    none = [np.zeros((0, 2), np.int64)]
    pairs = [
        np.stack([np.repeat(rows[label == c], (label == d).sum()),
                  np.tile(rows[label == d], (label == c).sum())], 1)
        for d in range(len(size)) for c in range(d)
    ]  # fmt: skip
    return np.concatenate(none + pairs)
