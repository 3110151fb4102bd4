"""One Gaussian per known group with a common covariance, fitted to incomplete numbers by EM."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nrprob.statistics.weighted import (
    ledoit_wolf_intensity,
    row_products,
    scale_rows,
    total_weight,
)

_STEPS = 100
_TOLERANCE = 1e-5  # of the group means, in units of the residuals' root mean square
_CHUNK = 1 << 22  # numbers of the matrices that are inverted together
_LEAST_TAU = 1e-3


class OneComponent(NamedTuple):
    """Fit of the one-component model.

    Attributes
    ----------
    means : (L, d) means of the known groups, in units of x
    covariance : (d, d) of the samples about them, with n - L degrees of freedom
    completed : (n, d) residuals, conditional expectations where values are missing
    scale : root mean square of the observed residuals, for n - L degrees of freedom
    """

    means: np.ndarray
    covariance: np.ndarray
    completed: np.ndarray
    scale: float


def fit_one_component(
    x: np.ndarray, groups: np.ndarray, n_groups: int, weights: np.ndarray | None = None
) -> OneComponent:
    """Group means and the covariance by EM over missing patterns; exact for complete numbers.

    Means of observed values alone would be biased where missingness depends on other columns.

    Parameters
    ----------
    x : (n, d), NaN where missing
    groups : (n,) known group of every sample
    n_groups : int
    weights : (n,) weights of the samples; by default 1
    """
    d = x.shape[1]
    n = total_weight(len(x), weights)
    seen = ~np.isnan(x)
    size = np.bincount(groups, weights, minlength=n_groups).astype(float)
    dof = max(n - (size > 0).sum(), 1)
    divisor = np.where(size > 0, size, 1)[:, None]
    # Start from means of observed values; a group without any takes the mean of all samples.
    observed = scale_rows(seen.astype(float), weights)
    observed_sums = _sums_by_group(np.where(seen, x, 0.0) * observed, groups, n_groups)
    count = _sums_by_group(observed, groups, n_groups)
    overall = observed_sums.sum(0) / np.where(count.any(0), count.sum(0), 1)
    means = np.where(count > 0, observed_sums / np.where(count > 0, count, 1), overall)
    residual = np.where(seen, x - means[groups], 0.0)
    variances = (observed * residual**2).sum(0) / np.where(count.any(0), count.sum(0), 1)
    covariance = np.diag(np.maximum(variances, 1e-12 * max(variances.max(), 1e-300)))
    patterns, pattern = np.unique(seen, axis=0, return_inverse=True)
    pattern = pattern.reshape(-1)
    complete = bool(seen.all())
    for _ in range(1 if complete else _STEPS):
        # E-step: conditional expectations of the missing numbers, and their covariance.
        turn, spread = _conditional(covariance, patterns)
        filled = np.where(seen, x - means[groups], 0.0)
        filled = np.where(seen, filled, _turned(filled, turn, pattern))
        # M-step.
        shift = _sums_by_group(scale_rows(filled, weights), groups, n_groups) / divisor
        means = means + shift
        filled = filled - shift[groups]
        counts = np.bincount(pattern, weights, minlength=len(patterns))
        covariance = (row_products(filled, weights) + np.tensordot(counts, spread, 1)) / n
        if np.abs(shift).max() <= _TOLERANCE * np.sqrt(np.trace(covariance) / d):
            break
    residual = x - means[groups]
    square = (observed * np.where(seen, residual, 0.0) ** 2).sum() / (observed.sum() or 1)
    scale = float(np.sqrt(square * n / dof)) if seen.any() else 1.0
    return OneComponent(means, covariance * n / dof, filled, scale)


def _sums_by_group(values: np.ndarray, groups: np.ndarray, n_groups: int) -> np.ndarray:
    out = np.zeros((n_groups, values.shape[1]))
    np.add.at(out, groups, values)
    return out


def _conditional(covariance: np.ndarray, patterns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sigma A_p (P, d, d), which predicts missing numbers, and what they vary by (P, d, d)."""
    d = len(covariance)
    turn = np.empty((len(patterns), d, d))
    for start in range(0, len(patterns), max(_CHUNK // (d * d), 1)):
        part = patterns[start : start + max(_CHUNK // (d * d), 1)]
        both = part[:, :, None] & part[:, None, :]
        square = np.where(both, covariance, 0.0) + np.eye(d) * ~part[:, :, None]
        turn[start : start + len(part)] = covariance @ np.where(both, np.linalg.inv(square), 0.0)
    return turn, covariance - turn @ covariance


def _turned(values: np.ndarray, turn: np.ndarray, pattern: np.ndarray) -> np.ndarray:
    """Values (n, d), each times the matrix of its pattern."""
    out = np.empty_like(values)
    order = np.argsort(pattern, kind="stable")
    edges = np.searchsorted(pattern[order], np.arange(len(turn) + 1))
    for p in range(len(turn)):
        rows = order[edges[p] : edges[p + 1]]
        out[rows] = values[rows] @ turn[p].T
    return out


def ridge_weight(
    completed: np.ndarray, dof: float, ridge: float, weights: np.ndarray | None = None
) -> float:
    """Weight nu0 of the ridge, from Ledoit and Wolf's intensity of the completed residuals."""
    shrinkage = min(ledoit_wolf_intensity(completed, weights), 0.99)
    return ridge * dof * shrinkage / (1 - shrinkage)


def effect_variance(
    fit: OneComponent, groups: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Mean variance tau0 of group effects, the analysis-of-variance estimate.

    (B / (L - 1) - W) / n0 with the scatter B between groups, the covariance W within them, and
    n0 = (n - sum n_z^2 / n) / (L - 1); averaged over columns, and at least 0.001 scale^2.
    """
    size = np.bincount(groups, weights, minlength=len(fit.means)).astype(float)
    n, n_groups = size.sum(), (size > 0).sum()
    least = _LEAST_TAU * fit.scale**2
    if n_groups < 2:
        return least
    centred = fit.means - size @ fit.means / n
    between = (size[:, None] * centred**2).sum() / (n_groups - 1)
    n0 = (n - (size**2).sum() / n) / (n_groups - 1)
    d = fit.means.shape[1]
    return max((between - np.trace(fit.covariance)) / n0 / d, least)
