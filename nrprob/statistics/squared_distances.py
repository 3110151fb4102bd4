"""Description length of squared distances from cluster means, and its changes by single moves.

Host code in NumPy and float64. C units are in K clusters. A unit is a set of samples that share a
cluster. The mass of a unit is the number of samples, and its mean is a vector of d features. The
inner scatter is the sum of squared distances of the samples of the unit from this mean. m labelings
(m, C) are evaluated at a time. A *length* is a description length in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nrprob.codelength import exponential_complexity


def cluster_sums(z: np.ndarray, values: np.ndarray, k: int) -> np.ndarray:
    """Sums (m, K) of unit values (C,) over each of the ``k`` clusters of labelings ``z`` (m, C)."""
    m, c = z.shape
    index = (z + k * np.arange(m)[:, None]).ravel()
    weights = np.broadcast_to(values, (m, c)).ravel()
    return np.bincount(index, weights, k * m).reshape(m, k)


@dataclass
class DistanceLengths:
    """Length of the squared distances of the samples from the means of their clusters.

    The length of n samples is w (n log s + r / s) + PC(n). Here r is the sum of the squared
    distances, s is the scale r / n, clipped to bounds, and PC is the parametric complexity of s.
    The lengths of the clusters are added. With ``shared``, all samples have one scale and one
    length instead.

    Attributes
    ----------
    mean, mass, within : (C, d), (C,), (C,) means, integer masses and inner scatters of the units
    k : number K of clusters
    weight : factor w of the squared distances
    bounds : bounds of the scale s
    shared : whether all clusters share one scale
    """

    mean: np.ndarray
    mass: np.ndarray
    within: np.ndarray
    k: int
    weight: float
    bounds: tuple[float, float]
    shared: bool

    def __post_init__(self):
        counts = np.arange(self.mass.sum() + 1.0)
        self._complexity = exponential_complexity(
            counts, *self.bounds, shape=self.weight, clamped=True
        )
        self._norm = (self.mean**2).sum(1)

    def cluster_statistics(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sizes (m, K), means (m, K, d) and scatters (m, K) of the clusters of labelings ``z``."""
        size = cluster_sums(z, self.mass, self.k)
        weighted = self.mass[:, None] * self.mean
        sums = np.stack([cluster_sums(z, column, self.k) for column in weighted.T], 2)
        centres = sums / np.maximum(size, 1)[:, :, None]
        square = cluster_sums(z, self.within + self.mass * self._norm, self.k)
        return size, centres, np.maximum(square - (sums * centres).sum(2), 0)

    def _length(self, size: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        """Lengths (...) of clusters of ``size`` (...) samples and scatters ``scatter`` (...)."""
        s = np.clip(scatter / np.maximum(size, 1), *self.bounds)
        length = self.weight * (size * np.log(s) + scatter / s)
        return length + self._complexity[size.astype(np.int64)]

    def scales(self, size: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        """Scales s (m, K) of the clusters, from their sizes and scatters (m, K)."""
        if self.shared:
            scatter, size = scatter.sum(1, keepdims=True), size.sum(1, keepdims=True)
        s = np.clip(scatter / np.maximum(size, 1), *self.bounds)
        return np.broadcast_to(s, (len(s), self.k))

    def total(self, size: np.ndarray, scatter: np.ndarray) -> np.ndarray:
        """Lengths (m,) of labelings, from sizes and scatters (m, K) of the clusters."""
        if self.shared:
            return self._length(size.sum(1), scatter.sum(1))
        return self._length(size, scatter).sum(1)

    def changes(
        self, z: np.ndarray, size: np.ndarray, centres: np.ndarray, scatter: np.ndarray
    ) -> np.ndarray:
        """Change (m, C, K) of the length if one unit moves to a cluster, and no other unit moves.

        The arguments are labelings ``z`` (m, C) and the result of `cluster_statistics`.
        """
        square = self._norm[:, None] + (centres**2).sum(2)[:, None]
        square = np.maximum(square - 2 * (centres @ self.mean.T).swapaxes(1, 2), 0)
        mass = self.mass[:, None]
        # Sizes of the current clusters without the unit, and changes of the scatters.
        left = np.take_along_axis(size, z, 1) - self.mass
        joining = mass * size[:, None] / (size[:, None] + mass) * square
        leaving = np.take_along_axis(square, z[:, :, None], 2)[:, :, 0]
        leaving = self.mass * (left + self.mass) / np.maximum(left, 1) * leaving
        leaving = np.where(left > 0, leaving, 0)
        if self.shared:
            # The total scatter includes the inner scatters of all units, which do not change.
            total, n = scatter.sum(1), size[0].sum()
            new = np.maximum(total[:, None, None] + joining - leaving[:, :, None], 0)
            change = self._length(n, new) - self._length(n, total)[:, None, None]
        else:
            before = self._length(size, scatter)
            rest = np.maximum(np.take_along_axis(scatter, z, 1) - self.within - leaving, 0)
            rest = self._length(left, rest) - np.take_along_axis(before, z, 1)
            grown = scatter[:, None] + self.within[:, None] + joining
            # The size is too large if the unit stays in its cluster; this change is set to 0 below.
            new_size = np.minimum(size[:, None] + mass, self._complexity.size - 1)
            change = self._length(new_size, grown) - before[:, None] + rest[:, :, None]
        np.put_along_axis(change, z[:, :, None], 0.0, 2)
        return change
