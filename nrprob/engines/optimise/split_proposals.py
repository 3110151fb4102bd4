"""Proposals to split a set of samples into two clusters.

n samples of m features are members of the set. A proposal is a mask (n,): True for one side.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 20  # largest number of iterations of 2-means


def propose_splits(
    x: np.ndarray, mass: np.ndarray, classes: np.ndarray | None, floor: float
) -> list[np.ndarray]:
    """Distinct proposals to split the samples ``x`` (n, m).

    The first two proposals are the sign of the first principal score, and the sign of the whitened
    score of least kurtosis. 2-means from each of these two proposals gives two more. Another
    proposal has the half of the samples that are farther from the mean. For every class, a proposal
    has the samples nearer to the mean of this class than to the mean of all other labelled samples.

    Parameters
    ----------
    x : (n, m) samples, in columns of similar scale
    mass : (n,) masses of the samples
    classes : (n,) labels of the samples, -1 for unknown; None without labels
    floor : smallest mass of a side; a smaller side receives the samples nearest to its mean
    """
    centred = x - np.average(x, axis=0, weights=mass)
    values, axes = np.linalg.eigh((centred * mass[:, None]).T @ centred)
    scores = centred @ axes
    spread = np.sqrt(np.maximum(values, 0) / mass.sum())
    varies = spread > 1e-8 * max(spread[-1], 1e-300)
    white = scores[:, varies] / spread[varies]
    proposals = [scores[:, -1] > 0]
    if varies.any():
        proposals.append(white[:, np.average(white**4, axis=0, weights=mass).argmin()] > 0)
        radius = (white**2).sum(1)
        proposals.append(radius > np.median(radius))
    proposals[1:1] = [_two_means(centred, mass, proposals[0])]
    if varies.any():
        proposals.append(_two_means(centred, mass, proposals[2]))
    if classes is not None:
        labelled = classes >= 0
        for c in np.unique(classes[labelled]):
            inside, outside = classes == c, labelled & (classes != c)
            if outside.any():
                centres = np.stack([centred[inside].mean(0), centred[outside].mean(0)])
                distance = ((centred[:, None] - centres) ** 2).sum(2)
                proposals.append(distance[:, 0] < distance[:, 1])
    filled = [_fill_sides(centred, mass, side, floor) for side in proposals]
    # The two sides of a split have no order.
    distinct = {
        (side ^ side[0]).tobytes(): side for side in filled if side.any() and not side.all()
    }
    return list(distinct.values())


def _two_means(x: np.ndarray, mass: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Run 2-means on samples ``x`` (n, m) from the proposal ``side`` (n,); return the new proposal.

    ``mass`` (n,) are the masses of the samples.
    """
    for _ in range(_ROUNDS):
        if side.all() or not side.any():
            break
        first = np.average(x[side], axis=0, weights=mass[side])
        second = np.average(x[~side], axis=0, weights=mass[~side])
        new = ((x - first) ** 2).sum(1) < ((x - second) ** 2).sum(1)
        if (new == side).all():
            break
        side = new
    return side


def _fill_sides(x: np.ndarray, mass: np.ndarray, side: np.ndarray, floor: float) -> np.ndarray:
    """Return a proposal whose sides both have at least the mass ``floor``.

    A side of less mass in the proposal ``side`` (n,) receives the samples nearest to its mean.
    ``x`` (n, m) are the samples, and ``mass`` (n,) their masses.
    """
    for small in (True, False):
        inside = side == small
        if mass[inside].sum() >= floor:
            continue
        centre = np.average(x[inside], axis=0, weights=mass[inside]) if inside.any() else x[0]
        distance = np.where(inside, -1, ((x - centre) ** 2).sum(1))
        order = np.argsort(distance, kind="stable")
        needed = int(np.searchsorted(np.cumsum(mass[order]), floor)) + 1
        side = side.copy()
        side[order[:needed]] = small
    return side
