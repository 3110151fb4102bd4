"""Means, products and shrinkage of samples with frequency weights, in NumPy.

Shapes: n samples, m features. If weights are None, all weights are 1. A sample with an integer
weight w counts like w equal samples.
"""

from __future__ import annotations

import numpy as np
from sklearn.covariance import ledoit_wolf_shrinkage


def total_weight(n: int, weights: np.ndarray | None) -> float:
    """Sum of the weights (n,) of n samples; n if ``weights`` is None."""
    return n if weights is None else float(weights.sum())


def scale_rows(x: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Multiply samples (n, ...) by their weights (n,)."""
    return x if weights is None else x * weights.reshape(-1, *[1] * (x.ndim - 1))


def row_mean(x: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Weighted mean (...) of samples (n, ...), in float64."""
    if weights is None:
        return x.mean(0, dtype=np.float64)
    return scale_rows(x, weights).sum(0, dtype=np.float64) / weights.sum()


def row_products(x: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Weighted sum (m, m) of the outer products of samples (n, m)."""
    return scale_rows(x, weights).T @ x


def column_variances(x: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Weighted variances (m,) of the features of samples (n, m)."""
    if weights is None:
        return x.var(0)
    return row_mean((x - row_mean(x, weights)) ** 2, weights)


def shrinkage_intensity(square: np.ndarray, fourth: float, n: float) -> float:
    """Ledoit and Wolf's shrinkage intensity from moments of samples about a known mean.

    Parameters
    ----------
    square : (m, m) mean of the outer products of deviations of samples from the known mean
    fourth : mean of the fourth powers of the norms of these deviations
    n : number of samples

    References
    ----------
    O. Ledoit and M. Wolf (2004), "A well-conditioned estimator for large-dimensional covariance
    matrices", Journal of Multivariate Analysis 88(2), doi:10.1016/S0047-259X(03)00096-4, lemma 3.2.
    """
    p = len(square)
    mean, spread = np.trace(square) / p, (square**2).sum()
    beta = (fourth - spread) / (p * n)
    delta = (spread - p * mean**2) / p
    return 0.0 if p == 1 or min(beta, delta) <= 0 else float(min(beta, delta) / delta)


def ledoit_wolf_intensity(z: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Ledoit and Wolf's shrinkage intensity from samples (n, m) of mean 0; 0 for one feature."""
    if z.shape[1] == 1:
        return 0.0
    if weights is None:
        return float(ledoit_wolf_shrinkage(z, assume_centered=True))
    n = weights.sum()
    fourth = float(row_mean((z**2).sum(1) ** 2, weights))
    return shrinkage_intensity(row_products(z, weights) / n, fourth, n)
