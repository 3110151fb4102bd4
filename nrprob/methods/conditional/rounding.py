"""Rounding errors of numeric columns.

A column that was rounded to multiples of a step h stands for values within h / 2 of it. Errors that
are uniform in this interval have the variance h^2 / 12 (Sheppard's correction).
"""

from __future__ import annotations

import numpy as np

from nrprob.methods.conditional.table import DiscreteColumn
from nrprob.statistics.groups import group_means

_LEAST = 1e-3  # rounding variance, relative to the residual variance, that is left out
_DIGITS = 9  # decimals, in residual standard deviations, to which values count as equal
_MOST = 1 << 14  # samples from which steps are taken
_FEW_STEPS = 3  # steps from which on a column is tested for equal steps
_COARSE = 0.25  # rounding variance, relative to the residual variance, of coarse columns
_EQUAL = 0.25  # lower decile of the steps, relative to their median, of rounded columns


def rounding_variances(x: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Variances (d,) of the rounding errors of the columns; 0 for measured columns.

    The step of a column is the median difference between consecutive distinct values. Values that
    are not multiples of a step have unequal differences, and count as measured. A rounding variance
    below 0.001 of the residual variance is left out.

    Parameters
    ----------
    x : (n, d) numbers, NaN where missing
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


def is_coarse(rounding: np.ndarray, variances: np.ndarray) -> bool:
    """Whether rounding variances (d,) are a large part of the residual variance of a column."""
    return bool((rounding > _COARSE * variances).any())


def has_coarse_scores(columns: list[DiscreteColumn], groups: np.ndarray, n_groups: int) -> bool:
    """Whether an ordered or count column is coarse, about the means of the known groups."""
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
