"""Description lengths of new samples in fitted clusters.

q new samples of d features are in G known groups. There are K clusters. A *length* is a description
length in nats. Binary features and counts are coded by the frequencies of J symbols: two symbols
per binary feature, or one symbol per feature that is a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.spatial.distance import cdist


class ClusterCosts(Protocol):
    """Function that computes the description length of new samples in each of K clusters."""

    def __call__(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Description lengths (q, K) of samples ``x`` (q, d) in K clusters, up to a constant.

        The constant is equal for all clusters. ``groups`` (q,) are the known groups of the samples
        as integers, -1 for a group without samples in the fit.
        """
        ...


@dataclass
class GaussianCosts:
    """Description lengths of new samples with d continuous features in K Gaussian clusters.

    Attributes
    ----------
    means : (K, d) means of the clusters
    effects : (G, d) additive effects of the G known groups
    roots : roots of the covariances of the clusters: standard deviations, (K,) if isotropic or
        (K, d) if diagonal; or Cholesky factors (K, d, d)
    offsets : (K,) length of a sample at the mean of each cluster, up to a constant
    scales : (K,) mean squared distances of the samples from the means of isotropic clusters; None
        if clusters are not isotropic
    """

    means: np.ndarray
    effects: np.ndarray
    roots: np.ndarray
    offsets: np.ndarray
    scales: np.ndarray | None = None

    def __call__(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Description lengths (q, K) of samples ``x`` (q, d); see `ClusterCosts`.

        A group without samples in the fit has no effect.
        """
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
    """Description lengths of new samples with binary features or counts in K clusters.

    Attributes
    ----------
    log_shares : (G + 1, K, J) log frequencies of J symbols in each of G known groups and K
        clusters; the last entry of the first axis is for groups without samples in the fit. See
        `count_symbols`
    features : "bernoulli" for binary features, or "multinomial" for counts
    """

    log_shares: np.ndarray
    features: str

    def __call__(self, x: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Description lengths (q, K) of samples ``x`` (q, d); see `ClusterCosts`.

        A group without samples in the fit has the frequencies of all groups together.
        """
        symbols = count_symbols(x, self.features)[0]
        result = np.zeros((len(x), self.log_shares.shape[1]))
        for group in np.unique(groups):
            inside = groups == group
            result[inside] = -symbols[inside] @ self.log_shares[group].T
        return result


def count_symbols(x: np.ndarray, features: str) -> tuple[np.ndarray, np.ndarray]:
    """Count the symbols of n samples ``x`` (n, d) with d binary features or counts.

    Every binary feature is a block of two symbols: ones and zeros. Features that are counts form
    one block of d symbols.

    Returns
    -------
    symbols : (n, J) counts of all J symbols in every sample
    blocks : number of symbols of every block
    """
    n, d = x.shape
    if features == "bernoulli":
        return np.stack([x, 1 - x], 2).reshape(n, 2 * d), np.full(d, 2)
    return x, np.array([d])
