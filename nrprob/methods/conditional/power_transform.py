"""Yeo-Johnson transformation of residuals, for null models of skewed numeric columns.

Sizes: n samples, d numeric columns.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import yeojohnson, yeojohnson_llf

_EXPONENTS = (-1.0, 3.0)  # bounds of the exponent lambda


def transform_residuals(
    residuals: np.ndarray, training: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Apply a Yeo-Johnson transformation to every column of residuals.

    The exponent lambda of a column is the maximum likelihood estimate from the training samples.

    Parameters
    ----------
    residuals : (n, d) residuals of variance about 1, NaN where missing
    training : indices of the samples that determine the exponents

    Returns
    -------
    transformed : (n, d) transformed residuals, NaN where missing
    log_slope : (n,) log derivatives of the transformation, summed over the observed columns
    """
    transformed = np.full_like(residuals, np.nan)
    log_slope = np.zeros(len(residuals))
    for j, column in enumerate(residuals.T):
        observed = ~np.isnan(column)
        values = column[training[observed[training]]]
        if values.size < 2:
            transformed[:, j] = column
            continue
        exponent = minimize_scalar(
            lambda e, values=values: -yeojohnson_llf(e, values), bounds=_EXPONENTS, method="bounded"
        ).x
        seen = column[observed]
        transformed[observed, j] = yeojohnson(seen, exponent)
        log_slope[observed] += (exponent - 1) * np.sign(seen) * np.log1p(np.abs(seen))
    return transformed, log_slope
