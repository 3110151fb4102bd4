"""Must-link components of labels and pairs, and cannot-links between components."""

from __future__ import annotations

import math

import numpy as np

from nrprob.exceptions import warn
from nrprob.links import Components, Pairs, feasible_start, pairs_from_labels
from nrprob.methods.cec.link_posterior import LABELINGS, SETS, STATES, Links, read_links

_CROSS = 1_000_000  # cannot-links that labels may imply one by one
_SOFTER = "MDLConstrained with constraints='soft'"


def read_units(
    must_link: np.ndarray,
    cannot_link: np.ndarray,
    told: np.ndarray,
    links: str,
    k: int,
    n_rows: int,
    exist: np.ndarray | None = None,
) -> tuple[Links, int]:
    """Arrays of the units, and the number of units for which there is but a mean field.

    Parameters
    ----------
    must_link, cannot_link : (p, 2) rows
    told : (n,) classes, at most ``k`` unless they are must-links only; -1 where unknown
    links : what the classes say: "both", "must" or "cannot"
    k : number of clusters
    n_rows : number of rows with padding
    exist : which clusters are no padding; of which there is none where sums run over sets of them

    Raises
    ------
    InfeasibleConstraints
        If the links contradict each other, or cannot be kept with ``k`` clusters.
    ValueError
        If labels imply too many cannot-links, or no labels were found that keep all of them.
    """
    parts, classes = _components(must_link, cannot_link, told, links, k)
    start = feasible_start(parts, k)[0]
    if start is None:
        raise ValueError(
            "no labels were found that keep all cannot-links, though there may be some; got "
            f"{len(parts.edges)} cannot-links and n_clusters={k}; raise n_clusters, or use "
            f"{_SOFTER}"
        )
    exist = None if classes else exist
    result, rough = read_links(parts.node, parts.edges, classes, start, k, n_rows, exist)
    if rough:
        warn(
            "the posterior under cannot-links is approximated by a mean field; got "
            f"{rough} units that are connected in more than {LABELINGS} ways; use fewer "
            "cannot-links, or fewer clusters, for an exact one"
        )
    return result, rough


def _components(
    must_link: np.ndarray, cannot_link: np.ndarray, told: np.ndarray, links: str, k: int
) -> tuple[Components, list[np.ndarray]]:
    """Units with all cannot-links but those between units of different classes, if these follow."""
    must, cannot = [Pairs(must_link, "must_link")], [Pairs(cannot_link, "cannot_link")]
    if links != "cannot":
        must.append(Pairs(pairs_from_labels(told)[0], "y"))
    rows = np.flatnonzero(told >= 0)
    if links == "must" or not rows.size:
        return Components(len(told), must, cannot, _SOFTER), []
    node = Components(len(told), must, [], _SOFTER).node
    both = np.stack([node[rows], told[rows]], 1)
    (unit, label), first = (a.T for a in np.unique(both, axis=0, return_index=True))
    members = [unit[label == c] for c in range(label.max() + 1)]
    one_by_one = (
        k > SETS
        or unit.size << k > STATES
        or np.unique(unit).size < unit.size  # in two classes: there is something to refuse
        or bool(np.isin(unit, node[cannot_link]).any())
        or (links == "both" and math.perm(k, len(members)) <= LABELINGS)
    )
    if one_by_one:
        cannot.append(Pairs(_cross(rows[first], label), "y"))
        members = []
    return Components(len(told), must, cannot, _SOFTER), members


def _cross(rows: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Pairs (p, 2) of rows of different classes."""
    size = np.bincount(label)
    count = (size.sum() ** 2 - (size**2).sum()) // 2
    if count > _CROSS:
        raise ValueError(
            f"y implies more than {_CROSS} cannot-links; got {count} of {len(rows)} labelled rows; "
            f"use links='both', at most {SETS} clusters, or fewer labels"
        )
    none = [np.zeros((0, 2), np.int64)]
    pairs = [
        np.stack([np.repeat(rows[label == c], (label == d).sum()),
                  np.tile(rows[label == d], (label == c).sum())], 1)
        for d in range(len(size)) for c in range(d)
    ]  # fmt: skip
    return np.concatenate(none + pairs)
