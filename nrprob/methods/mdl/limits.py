"""Convert limits on distances within and between clusters into must-links and cannot-links.

In all functions, ``x`` (n, d) are the features of n rows. A pair is two row indices; p is a number
of pairs, r a number of row indices.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

_MAX_PAIRS = 5_000_000  # pairs of rows that a limit may imply


def closer_than(x: np.ndarray, delta: float) -> np.ndarray:
    """Pairs (p, 2) of rows of ``x`` (n, d) whose distance is below ``delta``.

    Rows of different clusters have at least the distance ``delta`` if and only if the labels
    satisfy all these pairs as must-links.
    """
    pairs = _pairs_within(x, delta, "delta")
    return pairs[np.sqrt(((x[pairs[:, 0]] - x[pairs[:, 1]]) ** 2).sum(1)) < delta]


def _pairs_within(x: np.ndarray, radius: float, name: str) -> np.ndarray:
    tree = cKDTree(x)
    # The count includes both orders, and every row with itself.
    _check_many((int(tree.count_neighbors(tree, radius)) - len(x)) // 2, name, radius, "lower")
    return tree.query_pairs(radius, output_type="ndarray").astype(np.int64).reshape(-1, 2)


def _check_many(count: int, name: str, value: float, which: str) -> None:
    if count > _MAX_PAIRS:
        raise ValueError(
            f"{name} implies more than {_MAX_PAIRS} pairs of rows; got {name}={value}, which "
            f"implies {count}; {which} {name}, or cluster fewer rows"
        )


def farther_than(x: np.ndarray, diameter: float) -> np.ndarray:
    """Pairs (p, 2) of rows of ``x`` (n, d) whose distance exceeds ``diameter``.

    All clusters have at most this diameter if and only if the labels satisfy all these pairs as
    cannot-links.
    """
    square = (x**2).sum(1)
    result: list[np.ndarray] = []
    total = 0
    step = max(1, 4_000_000 // max(len(x), 1))
    for start in range(0, len(x), step):
        block = x[start : start + step]
        far = square[start : start + step, None] - 2 * block @ x.T + square
        a, b = np.nonzero(far > diameter**2 * (1 + 1e-12))
        a = a + start
        upper = a < b
        result.append(np.stack([a[upper], b[upper]], 1))
        total += int(upper.sum())
        _check_many(total, "max_diameter", diameter, "raise")
    return np.concatenate(result)


def isolated_rows(x: np.ndarray, epsilon: float, labels: np.ndarray) -> np.ndarray:
    """Indices of rows that have no other row of their cluster within distance ``epsilon``.

    Rows that form a cluster alone are left out. ``x`` (n, d) are the rows, and ``labels`` (n,)
    their clusters.
    """
    sizes = np.bincount(labels)
    near = np.zeros(len(x), bool)
    pairs = _pairs_within(x, epsilon, "epsilon")
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    near[pairs[same].ravel()] = True
    return np.flatnonzero(~near & (sizes[labels] > 1))


def nearest_mates(x: np.ndarray, rows: np.ndarray, epsilon: float) -> np.ndarray:
    """Index of the nearest other row of ``x`` (n, d), for each of the row indices ``rows`` (r,).

    The result (r,) is -1 for rows whose distance from the nearest other row exceeds ``epsilon``.
    """
    if len(x) == 1:
        return np.full(rows.size, -1)
    distance, index = cKDTree(x).query(x[rows], k=2)
    # With duplicated rows, the row itself need not come first.
    first = index[:, 0] == rows
    mate = np.where(first, index[:, 1], index[:, 0])
    return np.where(np.where(first, distance[:, 1], distance[:, 0]) <= epsilon, mate, -1)
