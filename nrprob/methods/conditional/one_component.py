"""One-component model: one Gaussian per known group, with a common covariance.

EM fits the model to n samples in L known groups and d numeric columns, whose values may be missing.
The hyperparameters of the conditional mixture are computed from the estimates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nrprob.statistics.weighted import (
    row_products,
    scale_rows,
    total_weight,
)

_STEPS = 100  # maximum number of EM steps
_TOLERANCE = (
    1e-5  # change of group means at convergence, relative to the residuals' standard deviation
)
_CHUNK = 1 << 22  # entries of the matrices that are inverted in one call
_RIDGE_BOUND = 2.0  # bound of the weight of the ridge, in samples per column
_LEAST_TAU = 1e-3  # lower bound of the variance of group effects, in squares of the scale


class OneComponent(NamedTuple):
    """Estimates of the one-component model.

    Attributes
    ----------
    means : (L, d) means of the known groups, in units of x
    covariance : (d, d) covariance of the residuals about the group means, with n - L degrees of
        freedom
    completed : (n, d) residuals about the group means, in which the conditional expectation given
        the observed values replaces every missing value
    scale : root mean square of the observed residuals, with n - L degrees of freedom
    """

    means: np.ndarray
    covariance: np.ndarray
    completed: np.ndarray
    scale: float

    def require_variation(self) -> None:
        """Raise ValueError if all residuals are 0."""
        if not self.scale > 0:
            raise ValueError(
                "numeric columns do not vary within known groups; got residuals of 0; leave them "
                "out, or pass other known groups"
            )


def fit_one_component(
    x: np.ndarray, groups: np.ndarray, n_groups: int, weights: np.ndarray | None = None
) -> OneComponent:
    """Fit group means and the covariance by EM; without missing values, one step is enough.

    Means of the observed values alone would be biased if the probability of a missing value depends
    on other columns.

    Parameters
    ----------
    x : (n, d) numeric values, NaN where missing
    groups : (n,) known group of every sample
    n_groups : number of known groups, L
    weights : (n,) weights of the samples; by default 1
    """
    d = x.shape[1]
    n = total_weight(len(x), weights)
    seen = ~np.isnan(x)
    size = np.bincount(groups, weights, minlength=n_groups).astype(float)
    dof = max(n - (size > 0).sum(), 1)
    divisor = np.where(size > 0, size, 1)[:, None]
    # Start from means and variances of observed values. A group without an observed value of a
    # column starts from the overall mean of the column.
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
        # E-step: conditional expectations of the missing values, and their covariance.
        projections, covariances = _conditional(covariance, patterns)
        filled = np.where(seen, x - means[groups], 0.0)
        filled = np.where(seen, filled, _multiply_by_pattern(filled, projections, pattern))
        # M-step: group means and covariance of the completed residuals.
        shift = _sums_by_group(scale_rows(filled, weights), groups, n_groups) / divisor
        means = means + shift
        filled = filled - shift[groups]
        counts = np.bincount(pattern, weights, minlength=len(patterns))
        covariance = (row_products(filled, weights) + np.tensordot(counts, covariances, 1)) / n
        if np.abs(shift).max() <= _TOLERANCE * np.sqrt(np.trace(covariance) / d):
            break
    residual = x - means[groups]
    square = (observed * np.where(seen, residual, 0.0) ** 2).sum() / (observed.sum() or 1)
    scale = float(np.sqrt(square * n / dof)) if seen.any() else 1.0
    return OneComponent(means, covariance * n / dof, filled, scale)


def _sums_by_group(values: np.ndarray, groups: np.ndarray, n_groups: int) -> np.ndarray:
    """Sums (L, d) of ``values`` (n, d) over the samples of every known group."""
    out = np.zeros((n_groups, values.shape[1]))
    np.add.at(out, groups, values)
    return out


def _conditional(covariance: np.ndarray, patterns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Conditional distribution of missing values given observed values, for P missing patterns.

    Parameters
    ----------
    covariance : (d, d) covariance Sigma
    patterns : (P, d) whether a column is observed in a pattern

    Returns
    -------
    projections : (P, d, d) Sigma A_p, which maps observed residuals to the expectations of all
        residuals; A_p is the inverse of Sigma on the observed columns, padded with zeros
    covariances : (P, d, d) conditional covariances, which are 0 for observed columns
    """
    d = len(covariance)
    projections = np.empty((len(patterns), d, d))
    for start in range(0, len(patterns), max(_CHUNK // (d * d), 1)):
        part = patterns[start : start + max(_CHUNK // (d * d), 1)]
        both = part[:, :, None] & part[:, None, :]
        square = np.where(both, covariance, 0.0) + np.eye(d) * ~part[:, :, None]
        projections[start : start + len(part)] = covariance @ np.where(
            both, np.linalg.inv(square), 0.0
        )
    return projections, covariance - projections @ covariance


def _multiply_by_pattern(
    values: np.ndarray, matrices: np.ndarray, pattern: np.ndarray
) -> np.ndarray:
    """Multiply every row i of ``values`` (n, d) by the matrix ``matrices[pattern[i]]`` (d, d).

    ``matrices`` (P, d, d) has one matrix for each of P missing patterns, and ``pattern`` (n,) has
    the missing pattern of every row.
    """
    out = np.empty_like(values)
    order = np.argsort(pattern, kind="stable")
    edges = np.searchsorted(pattern[order], np.arange(len(matrices) + 1))
    for p in range(len(matrices)):
        rows = order[edges[p] : edges[p + 1]]
        out[rows] = values[rows] @ matrices[p].T
    return out


def ridge_weight(shrinkage: float, dof: float, ridge: float, d: int) -> float:
    """Weight of the ridge penalty on the error covariance, in samples.

    The weight is ``ridge * min(dof * rho / (1 - rho), 2 d)`` with the shrinkage intensity rho of
    the residuals. The bound 2 d is needed because the residuals include the clusters, which can
    make the residuals spherical although the errors are not. In this case, rho is large, and
    without the bound the ridge would shrink the covariance of the errors to a spherical one.

    Parameters
    ----------
    shrinkage : shrinkage intensity of Ledoit and Wolf
    dof : residual degrees of freedom
    ridge : factor that the user sets
    d : number of columns
    """
    shrinkage = min(shrinkage, 0.99)
    return ridge * min(dof * shrinkage / (1 - shrinkage), _RIDGE_BOUND * d)


def effect_variance(
    fit: OneComponent, groups: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Estimate the variance of the group effects by analysis of variance.

    For one column, the estimate is (B / (L - 1) - W) / n0. B is the sum of squares between the L
    groups, and W the variance within groups. The effective group size is
    n0 = (n - sum_z n_z^2 / n) / (L - 1), where group z has n_z samples. The result is the mean of
    the estimates over columns, but at least 0.001 times the square of ``fit.scale``.

    Parameters
    ----------
    fit : one-component fit
    groups : (n,) known group of every sample
    weights : (n,) weights of the samples; by default 1
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
