"""Two-dimensional shapes with two groupings, some of them not separable by centroids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nrprob.data.validation import check_choice, check_entries, check_number, check_random_state
from nrprob.datasets.generators import RandomState, _positive_int
from nrprob.datasets.sizes import dense_size, register_size

__all__ = ["make_planar_shapes"]

# Standard deviation of the points around each shape.
NOISE = {"blobs": 0.7, "crescents": 0.6, "moons": 0.25, "rings": 0.2}
SPACING = 6.0  # distance between neighbouring blobs, or centres of crescents, on their ring
BEND = 2.5  # radius of a crescent
MOON, CUT = 4.0, 0.15  # radius of a moon, and the angle between its apex and each half
RING, DISC, GAP = 4.0, 2.0, 0.3  # radii of ring and disc, and distance of left and right halves


@register_size(lambda n_samples, **_: dense_size(n_samples, 2))
def make_planar_shapes(
    n_samples: int = 800,
    shape: str = "blobs",
    n_clusters: int = 2,
    *,
    noise: float | None = None,
    random_state: RandomState = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Simulate points of the plane with two groupings, one known and one alternative.

    "blobs" and "crescents" are 2 ``n_clusters`` shapes of equal size at equal distances along a
    ring. One grouping joins every shape with its left neighbour, the other grouping with its right
    neighbour. For four shapes, the groupings are upper vs lower half, and left vs right half.
    "moons" and "rings" are two interlocked or nested shapes. Their known grouping is left vs right
    half, and the alternative grouping is the two shapes.

    Parameters
    ----------
    n_samples : int, default=800
        Number of points, divided equally among the shapes or halves.
    shape : {"blobs", "crescents", "moons", "rings"}, default="blobs"
        Gaussian blobs, half circles, interlocked half circles, or a disc within a ring.
    n_clusters : int, default=2
        Number of clusters of each grouping; 2 for moons and rings. The two groupings of "blobs" or
        "crescents" are independent for 2 clusters only.
    noise : float, optional
        Standard deviation of the points around the shape, from 0 to 100. Defaults: 0.7 for blobs
        and 0.6 for crescents, at distances of 6; 0.25 for moons and 0.2 for rings, of radius 4.
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
        If a size is not positive, the shape is unknown, ``n_clusters`` is not 2 for moons or rings,
        or ``noise`` is out of bounds.
    TypeError
        If a size is not an integer.

    See Also
    --------
    make_four_components : A Gaussian mixture in the plane.
    make_gaussian_views : Views with dependent clusterings.

    References
    ----------
    Dang and Bailey (2010), section 5.2: four blobs are Syn1, six blobs Syn2. Crescents and rings
    resemble the pictures of Syn3 and Syn4. Positions, sizes and noise are choices of this package.

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

    # Shape (or half) of every point, and its position along the shape.
    part = rng.permutation(np.arange(n) % (2 * k))
    along = rng.random_sample(n)
    if ring:
        angle = (part + 0.5) * np.pi / k
        X = SPACING / (2 * np.sin(np.pi / (2 * k))) * _unit_vectors(angle)
        if shape == "crescents":
            X = X + BEND * _unit_vectors(angle + np.pi * (along - 0.5))
        labels = np.stack([part // 2, (part + 1) // 2 % k], 1)
    else:
        right, inner = part // 2, part % 2
        side = np.where(right, 1, -1)
        X = (_moon_points if shape == "moons" else _ring_points)(along, side, inner, rng)
        labels = np.stack([right, inner], 1)
    return X + noise * rng.normal(size=(n, 2)), labels.astype(np.int64)


def _unit_vectors(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def _moon_points(along, side, inner, rng):
    """Points (n, 2) of two interlocked half circles.

    For every point, ``inner`` (0 or 1) selects the half circle, and ``side`` is -1 for the left and
    1 for the right half. ``along`` is the position from near the apex (0) to the end (1).
    """
    angle = CUT + along * (np.pi / 2 - CUT)
    x, y = MOON * side * np.sin(angle), MOON * np.cos(angle)
    return np.stack([x + inner * MOON, np.where(inner, -y, y)], 1)


def _ring_points(along, side, inner, rng):
    """Points (n, 2) of a disc (where ``inner`` is 1) and of a ring around the disc.

    For every point, ``side`` is -1 for the left and 1 for the right half. ``along`` is the position
    along the half circle, from 0 to 1. Points of the disc have random radii.
    """
    radius = np.where(inner, DISC * np.sqrt(rng.random_sample(along.size)), RING)
    angle = np.pi * (along - 0.5)
    return np.stack([side * (GAP / 2 + radius * np.cos(angle)), radius * np.sin(angle)], 1)
