"""Improve hard labels by single moves and chains of moves, with exact changes of the objective.

The module is host code in NumPy and float64. A *unit* is a set of samples that always share a
cluster. An objective implements `MoveObjective` for C units and L clusters, and evaluates m
labelings in one call. Every accepted step lowers the objective, and the result depends on the
initial labels only.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

_PER_UNIT = 3  # largest number of chains that start with the same unit
_FEW_UNITS = 50  # up to this number of units, chains start from many moves and have no length limit


class MoveObjective(Protocol):
    """Objective of a hard partition, for `improve_by_passes` and `improve_by_chains`.

    A labeling ``z`` (C,) has the cluster of every unit; methods take m labelings ``z`` (m, C).
    """

    def totals(self, z: np.ndarray) -> np.ndarray:
        """Objective (m,) of labelings (m, C); infinite for a labeling that is not permitted."""
        ...

    def differences(self, z: np.ndarray, *, relaxed: bool = False) -> np.ndarray:
        """Exact change (m, C, L) of the objective if one unit alone moves to each cluster.

        The change is 0 for the present cluster, and infinite for a move that is not permitted.
        With ``relaxed``, a move may violate limits on sizes, which `violations` then reports.
        """
        ...

    def violations(self, z: np.ndarray) -> np.ndarray | None:
        """Clusters (m, L) that violate a limit on sizes; None if there are no limits."""
        ...

    def together(self, units: np.ndarray) -> np.ndarray:
        """Select units that may move at the same time.

        ``units`` are indices of candidates in order of preference; the result keeps this order.
        """
        ...


def improve_by_passes(objective: MoveObjective, z: np.ndarray, tol: float) -> np.ndarray:
    """Move units until no single move lowers the objective by more than ``tol``.

    A pass orders the improving moves by their differences. The pass evaluates the labelings after
    the first 1, 2, 4, ... of these moves, and accepts the labeling with the lowest objective.

    Parameters
    ----------
    objective : the objective
    z : (C,) initial clusters of the units
    tol : smallest decrease of the objective that counts
    """
    current = objective.totals(z[None])[0]
    while True:
        change = objective.differences(z[None])[0]
        to = change.argmin(1)
        change = change[np.arange(z.size), to]
        units = np.flatnonzero(change < -tol)
        if not units.size:
            return z
        units = objective.together(units[np.argsort(change[units], kind="stable")])
        powers = 2 ** np.arange(int(np.log2(units.size)) + 1)
        lengths = np.append(powers[powers < units.size], units.size)
        proposals = np.repeat(z[None], len(lengths), 0)
        for proposal, length in zip(proposals, lengths, strict=True):
            proposal[units[:length]] = to[units[:length]]
        totals = objective.totals(proposals)
        best = int(totals.argmin())
        if not totals[best] < current:  # rounding errors
            return z
        z, current = proposals[best], totals[best]


def improve_by_chains(objective: MoveObjective, z: np.ndarray, tol: float) -> np.ndarray | None:
    """Make one chain of moves that lowers the objective by more than ``tol`` in total.

    A chain begins with one of the best moves, even if this move raises the objective. The chain
    locks the moved unit, and continues with the best move of a unit that is not locked (Kernighan
    and Lin, 1970). While a cluster violates a limit on sizes, only moves into or out of such a
    cluster are made. All chains advance together. The first permitted state that is low enough is
    the result.

    Parameters
    ----------
    objective, z, tol : see `improve_by_passes`

    Returns
    -------
    (C,) clusters after the moves, or None if no chain lowers the objective
    """
    few = z.size <= _FEW_UNITS
    n_chains, depth = (30, z.size) if few else (3, 20)
    # First moves: the best ones, at most three per unit.
    first = objective.differences(z[None], relaxed=True)[0]
    first[np.arange(z.size), z] = np.inf
    columns = np.argsort(first, 1, kind="stable")[:, :_PER_UNIT]
    values = np.take_along_axis(first, columns, 1)
    order = np.argsort(values, None, kind="stable")[:n_chains]
    order = order[np.isfinite(values.ravel()[order])]
    if not order.size:
        return None
    unit, target = order // columns.shape[1], columns.ravel()[order]
    total = values.ravel()[order]
    states, chain = np.repeat(z[None], order.size, 0), np.arange(order.size)
    locked = np.zeros(states.shape, bool)
    for _ in range(depth):
        states[chain, unit] = target
        locked[chain, unit] = True
        broken = objective.violations(states)
        valid = total < -tol
        if broken is not None:
            valid &= ~broken.any(1)
        if valid.any():
            return states[int(np.where(valid, total, np.inf).argmin())]
        # The best move of every chain.
        change = objective.differences(states, relaxed=True)
        change[locked] = np.inf
        np.put_along_axis(change, states[:, :, None], np.inf, 2)
        if broken is not None:
            leaves = np.take_along_axis(broken, states, 1)
            intact = ~np.logical_or.reduce(broken, 1, keepdims=True)
            touches = leaves[:, :, None] | broken[:, None, :] | intact[:, :, None]
            change = np.where(touches, change, np.inf)
        change = change.reshape(len(states), -1)
        best = change.argmin(1)
        total = total + change[chain, best]
        alive = np.isfinite(total)
        if not alive.any():
            return None
        states, locked, total, best = states[alive], locked[alive], total[alive], best[alive]
        chain = np.arange(len(states))
        unit, target = np.divmod(best, change.shape[1] // z.size)
    return None
