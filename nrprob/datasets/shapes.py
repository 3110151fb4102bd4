"""Two-dimensional shapes that can be grouped in two ways, not all of them by centroids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nrprob.data.validation import check_choice, check_entries, check_number, check_random_state
from nrprob.datasets.generators import RandomState, _positive_int
from nrprob.datasets.sizes import dense, sized

__all__ = ["make_planar_shapes"]

# Standard deviation of the points around each shape.
NOISE = {"blobs": 0.7, "crescents": 0.6, "moons": 0.25, "rings": 0.2}
SPACING = 6.0  # of blobs, and of the centres of crescents, along their ring
BEND = 2.5  # radius of a crescent
MOON, CUT = 4.0, 0.15  # radius of a moon, and the angle from its apex to the end of a half
RING, DISC, GAP = 4.0, 2.0, 0.3  # radii, and the distance of the halves


@sized(lambda n_samples, **_: dense(n_samples, 2))
def make_planar_shapes(
    n_samples: int = 800,
    shape: str = "blobs",
    n_clusters: int = 2,
    *,
    noise: float | None = None,
    random_state: RandomState = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw points of the plane that fall into clusters in two ways, of which one is known.

    "blobs" and "crescents" are 2 ``n_clusters`` shapes of one size at equal distances along a ring.
    Each can be joined to the one neighbour or to the other: four of them make an upper and a lower,
    or a left and a right half. Of "moons" and "rings" there are two, one reaching into or lying
    around the other, and both are cut into a left and a right half, which are known; the moons, or
    rings, are not. Two are two clusters.

    Parameters
    ----------
    n_samples : int, default=800
        Number of points, the same for every shape or half but for the remainder.
    shape : {"blobs", "crescents", "moons", "rings"}, default="blobs"
        Normal clouds, half circles, interlocked half circles, or a disc within a ring.
    n_clusters : int, default=2
        Clusters of either grouping; 2 for moons and rings. Two groupings of "blobs" or "crescents"
        into two are independent; of more clusters, they are not.
    noise : float, optional
        Standard deviation of the points around the shape, from 0 to 100; by default 0.7 for blobs
        and 0.6 for crescents, of which neighbours are 6 apart, 0.25 for moons and 0.2 for rings,
        whose outer radius is 4.
    random_state : int, RandomState instance or None, default=None
        Seed or source of the random numbers.

    Returns
    -------
    X : ndarray of shape (n_samples, 2)
        Points, in random order.
    labels : ndarray of shape (n_samples, 2), dtype int64
        The known grouping (column 0) and the alternative (column 1).

    Raises
    ------
    ValueError
        If a size is not positive, the shape is none of these, there are other than two clusters of
        moons or rings, or ``noise`` is out of bounds.
    TypeError
        If a size is not an integer.

    References
    ----------
    Dang and Bailey (2010), section 5.2: four blobs are Syn1, six Syn2; crescents may be Syn3, and
    rings Syn4, of which there are only pictures. Positions, sizes and noise are ours.

    Examples
    --------
    >>> from nrprob.datasets import make_planar_shapes
    >>> X, labels = make_planar_shapes(300, n_clusters=3, random_state=0)
    >>> X.shape, labels.max(0)
    ((300, 2), array([2, 2]))
    """
    n, k = _positive_int(n_samples, "n_samples"), _positive_int(n_clusters, "n_clusters")
    check_choice("shape", shape, tuple(NOISE))
    check_entries("X", 2 * n, "lower n_samples")
    ring = shape in ("blobs", "crescents")
    if not ring and k != 2:
        raise ValueError(
            f"shape={shape!r} has two clusters in either grouping; got n_clusters={k}; "
            "pass 2, or another shape"
        )
    if noise is None:
        noise = NOISE[shape]
    check_number("noise", noise, low=0, high=100)
    rng = check_random_state(random_state)

    part = rng.permutation(np.arange(n) % (2 * k))
    along = rng.random_sample(n)
    if ring:
        angle = (part + 0.5) * np.pi / k
        X = SPACING / (2 * np.sin(np.pi / (2 * k))) * _at(angle)
        if shape == "crescents":
            X = X + BEND * _at(angle + np.pi * (along - 0.5))
        labels = np.stack([part // 2, (part + 1) // 2 % k], 1)
    else:
        right, inner = part // 2, part % 2
        side = np.where(right, 1, -1)
        X = (_moons if shape == "moons" else _rings)(along, side, inner, rng)
        labels = np.stack([right, inner], 1)
    return X + noise * rng.normal(size=(n, 2)), labels.astype(np.int64)


def _at(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def _moons(along, side, inner, rng):
    """Of every moon, the half on a side, from near its apex to its end."""
    angle = CUT + along * (np.pi / 2 - CUT)
    x, y = MOON * side * np.sin(angle), MOON * np.cos(angle)
    return np.stack([x + inner * MOON, np.where(inner, -y, y)], 1)


def _rings(along, side, inner, rng):
    """Of a disc and a ring around it, the half on a side."""
    radius = np.where(inner, DISC * np.sqrt(rng.random_sample(along.size)), RING)
    angle = np.pi * (along - 0.5)
    return np.stack([side * (GAP / 2 + radius * np.cos(angle)), radius * np.sin(angle)], 1)
