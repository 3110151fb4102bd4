"""Description lengths of new samples in fitted clusters.

q new samples of d features are in G known groups. There are K clusters. A *length* is a description
length in nats. Counts have J symbols: two per binary feature, or one per feature of counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.spatial.distance import cdist


class ClusterCosts(Protocol):
    """Function from new samples to their lengths in every cluster."""

    def __call__(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Lengths (q, K) of samples ``x`` (q, d), up to a constant that all clusters share.

        ``groups`` (q,) are known groups as integers, -1 for a group without samples in the fit.
        """
        ...


@dataclass
class GaussianCosts:
    """Lengths of continuous features.

    Attributes
    ----------
    means, effects : (K, d), (G, d) means of the clusters, and effects of the groups
    roots : roots of the covariances: (K,) or (K, d) standard deviations, or (K, d, d) Cholesky
        factors
    offsets : (K,) lengths of a sample at the mean of a cluster, up to a constant
    scales : (K,) mean squared distances of isotropic clusters; None for other clusters
    """

    means: np.ndarray
    effects: np.ndarray
    roots: np.ndarray
    offsets: np.ndarray
    scales: np.ndarray | None = None

    def __call__(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Lengths (q, K); a new group has no effect."""
        x = x - np.append(self.effects, np.zeros((1, x.shape[1])), 0)[groups]
        if self.roots.ndim == 1:
            return self.offsets + 0.5 * cdist(x, self.means, "sqeuclidean") / self.roots**2
        result = np.empty((len(x), len(self.means)))
        for column, mean, root in zip(result.T, self.means, self.roots, strict=True):
            white = (x - mean) / root if root.ndim == 1 else np.linalg.solve(root, (x - mean).T).T
            column[:] = 0.5 * (white**2).sum(1)
        return result + self.offsets


@dataclass
class CountCosts:
    """Lengths of binary features or counts.

    Attributes
    ----------
    log_shares : (G + 1, K, J) log frequencies of the symbols, by known group and cluster; the last
        entry of the first axis is for new groups
    features : "bernoulli" or "multinomial"
    """

    log_shares: np.ndarray
    features: str

    def __call__(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Lengths (q, K); a new group has the frequencies of all groups together."""
        symbols = count_symbols(x, self.features)[0]
        result = np.zeros((len(x), self.log_shares.shape[1]))
        for group in np.unique(groups):
            inside = groups == group
            result[inside] = -symbols[inside] @ self.log_shares[group].T
        return result


def count_symbols(x: np.ndarray, features: str) -> tuple[np.ndarray, np.ndarray]:
    """Counts (n, J) of symbols of samples ``x`` (n, d), and numbers of symbols of their blocks.

    Every binary feature is a block of two symbols; all counts are one block of d symbols.
    """
    n, d = x.shape
    if features == "bernoulli":
        return np.stack([x, 1 - x], 2).reshape(n, 2 * d), np.full(d, 2)
    return x, np.array([d])
