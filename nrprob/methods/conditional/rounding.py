"""Rounding errors of numeric columns.

If a value was rounded to a multiple of a step h, the true value is within h / 2 of the rounded
value. Errors that are uniform in this interval have the variance h^2 / 12 (Sheppard's correction).

Sizes: n samples, d columns.
"""

from __future__ import annotations

import numpy as np

from nrprob.methods.conditional.table import DiscreteColumn
from nrprob.statistics.groups import group_means

_LEAST = 1e-3  # smaller rounding variances, relative to the residual variance, count as 0
_DIGITS = 9  # decimals, in residual standard deviations, to which values count as equal
_MOST = 1 << 14  # maximum number of samples from which the step is computed
_FEW_STEPS = 3  # columns with at most this many steps count as rounded
# If an eigenvalue of the correlation matrix of the residuals is below this value, columns depend
# linearly on each other. The rounding variances are then at least this part of the residual
# variances.
_DEPENDENT = 1e-6
_CONSTANT = 1e-12  # smaller residual variances, relative to the largest one, count as 0
_COARSE = 0.25  # a column is coarse above this ratio of rounding variance and residual variance
_EQUAL = 0.25  # a column is rounded if the lowest decile of its steps exceeds this times the median


def rounding_variances(x: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Variances (d,) of the rounding errors of the columns; 0 for columns that are not rounded.

    The rounding variance is h^2 / 12, where the step h of a column is the median difference between
    consecutive distinct values. A column with very unequal differences counts as not rounded. A
    rounding variance below 0.001 of the residual variance counts as 0.

    Parameters
    ----------
    x : (n, d) numeric values, NaN where missing
    variances : (d,) residual variances of the columns
    """
    x = x[:: -(-len(x) // _MOST)]
    result = np.zeros(x.shape[1])
    for j in np.flatnonzero(variances > 0):
        column = np.asarray(x[:, j], np.float64)
        scale = np.sqrt(variances[j])
        values = np.unique(np.round(column[~np.isnan(column)] / scale, _DIGITS))
        steps = np.diff(values)
        if not steps.size:
            continue
        step = np.median(steps)
        if steps.size <= _FEW_STEPS or np.quantile(steps, 0.1) > _EQUAL * step:
            result[j] = step**2 / 12
    return np.where(result >= _LEAST, result, 0.0) * np.maximum(variances, 0)


def bound_rounding(rounding: np.ndarray | None, covariance: np.ndarray) -> np.ndarray | None:
    """Raise the rounding variances to a lower bound if columns depend linearly on each other.

    Without a bound, the variance of the errors would approach 0 in some direction, as far as the
    number of EM steps allows. Objectives of several fits could then not be compared.

    Parameters
    ----------
    rounding : (d, d) covariance of the rounding errors; None if it is 0
    covariance : (d, d) covariance of the residuals about the means of the known groups
    """
    variances = np.diagonal(covariance)
    if not variances.max() > 0:
        return rounding
    constant = variances <= _CONSTANT * variances.max()
    variances = np.where(constant, variances.mean(), variances)
    correlation = covariance / np.sqrt(np.outer(variances, variances))
    if np.linalg.eigvalsh(correlation)[0] > _DEPENDENT:
        return rounding
    least = _DEPENDENT * variances
    if rounding is None:
        return np.diag(least)
    return rounding + np.diag(np.maximum(least - np.diagonal(rounding), 0.0))


def is_coarse(rounding: np.ndarray, variances: np.ndarray) -> bool:
    """Whether any column is coarse: its rounding variance exceeds 1/4 of its residual variance.

    ``rounding`` and ``variances`` (d,) are rounding variances and residual variances.
    """
    return bool((rounding > _COARSE * variances).any())


def has_coarse_scores(columns: list[DiscreteColumn], groups: np.ndarray, n_groups: int) -> bool:
    """Whether the scores of any ordered or count column are coarse.

    Scores are coarse if their rounding variance exceeds a quarter of their variance about the means
    of the known groups ``groups`` (n,).
    """
    for column in columns:
        if column.scores is None:
            continue
        seen = column.codes >= 0
        values = column.scores[column.codes[seen]][:, None]
        means = group_means(values, groups[seen], n_groups)
        variances = ((values - means[groups[seen]]) ** 2).mean(0)
        if is_coarse(rounding_variances(values, variances), variances):
            return True
    return False
