r"""Null model of mixed tables: one component per known group, with dependent discrete columns.

The numeric columns x have one Gaussian per known group z. Every discrete column j has a multinomial
regression on the numeric columns and on the discrete columns before column j,

.. math:: \log p_j(v | x, y_1, ..., y_{j-1}, z)
    = \log p_j(v | z) + \phi_j(v)^T W_j^T f(x, y) - \log Z,

where v is a value of column j, and Z normalises the probabilities. f are standardised features of x
and of the columns before column j. :math:`\phi_j(v)` is the indicator vector of value v of a
categorical column, or the score of value v of an ordered or count column. The regression weights
W_j have a ridge penalty. Features whose score test is not significant are left out.

Significance tests compare clusters with this density. A smooth dependence between two columns
therefore does not count as evidence of clusters.

Sizes: n samples, d numeric columns, V values of a column, r entries of phi (the *basis functions*
of the values), p or q columns of features.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import chi2

from nrprob.methods.conditional.table import DiscreteColumn

_RIDGE = 3.0  # prior precision of the weights of standardised features
_STEPS = 60  # maximum number of iterations of the optimiser
_SELECTION_LEVEL = 0.01  # significance level of the score tests


def conditional_log_probability(
    columns: list[DiscreteColumn], log_tables: list[np.ndarray], residuals: np.ndarray | None,
    training: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Log probability (n,) of all discrete values of a sample, given its numeric values.

    The regressions of this module are fitted to the training samples, and evaluated at all samples.
    Missing discrete values are left out.

    Parameters
    ----------
    columns : discrete columns
    log_tables : for every column, the log probabilities (n, V) of its values given the known group
        of the sample
    residuals : (n, d) numeric values less group effects, NaN where missing; None without numeric
        columns
    training : indices of the training samples, which may repeat
    """
    n = len(log_tables[0])
    features = []
    if residuals is not None:
        features = [_standardise(column, training) for column in residuals.T[..., None]]
    total = np.zeros(n)
    for column, log_table in zip(columns, log_tables, strict=True):
        basis = _value_basis(column)
        observed = column.codes >= 0
        rows = training[observed[training]]
        error, spread = _score_moments(log_table[rows], column.codes[rows], basis)
        chosen = [f for f in features if _is_significant(f[rows], error, spread)]
        log_p = log_table
        if chosen:
            x = np.concatenate(chosen, axis=1)
            weights = _fit_weights(x[rows], column.codes[rows], log_table[rows], basis)
            log_p = log_softmax(log_table + x @ weights @ basis.T, axis=1)
        total += np.where(observed, log_p[np.arange(n), column.codes], 0.0)
        # In the next regressions, this column is a feature: its basis functions, less their
        # expectations in the known group.
        expected = np.exp(log_table) @ basis
        feature = np.where(observed[:, None], basis[column.codes] - expected, np.nan)
        # The smallest divisor is the deviation of an indicator that is 1 in a single sample.
        # Otherwise, a value that occurs in held-out samples only would have a huge feature.
        features.append(_standardise(feature, training, 1 / np.sqrt(len(training))))
    return total


def _score_moments(
    log_p: np.ndarray, codes: np.ndarray, basis: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Moments of the basis functions of a discrete column, for the score tests of its features.

    Parameters
    ----------
    log_p : (n, V) log probabilities of the V values for every sample
    codes : (n,) observed values
    basis : (V, r) basis functions of the values

    Returns
    -------
    error : (n, r) basis functions of the observed values less their expectations
    spread : (n, r, r) covariances of the basis functions
    """
    p = np.exp(log_p)
    mean = p @ basis
    second = np.einsum("nv,vr,vs->nrs", p, basis, basis)
    return basis[codes] - mean, second - mean[:, :, None] * mean[:, None]


def _is_significant(feature: np.ndarray, error: np.ndarray, spread: np.ndarray) -> bool:
    """Whether the score test rejects the hypothesis that the weights (q, r) of a feature are 0.

    ``feature`` (n, q) has q columns. ``error`` (n, r) and ``spread`` (n, r, r) are the moments of
    `_score_moments`.
    """
    score = (feature.T @ error).ravel()
    products = feature[:, :, None] * feature[:, None]
    information = np.einsum("npq,nrs->prqs", products, spread, optimize=True)
    information = information.reshape(score.size, score.size)
    rank = np.linalg.matrix_rank(information, hermitian=True)
    statistic = score @ np.linalg.pinv(information, hermitian=True) @ score
    return bool(rank and chi2.sf(statistic, rank) < _SELECTION_LEVEL)


def _standardise(values: np.ndarray, training: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Scale columns of values (n, p) to mean square 1 in the training samples; 0 where missing.

    ``training`` are the indices of the training samples, and ``least`` is the smallest divisor.
    """
    deviation = np.maximum(np.sqrt(np.nanmean(values[training] ** 2, axis=0)), least)
    return np.nan_to_num(values / np.where(deviation > 0, deviation, 1))


def _value_basis(column: DiscreteColumn) -> np.ndarray:
    """Basis functions (V, r) of the V values of a discrete column.

    A categorical column has r = V basis functions: the indicators of its values. An ordered or
    count column has r = 1 basis function: the standardised scores.
    """
    if column.scores is None:
        return np.eye(column.n_values)
    return column.standard_scores[:, None]


def _fit_weights(
    features: np.ndarray, codes: np.ndarray, offset: np.ndarray, basis: np.ndarray
) -> np.ndarray:
    """Regression weights (p, r) of a discrete column, by maximum likelihood with a ridge penalty.

    Parameters
    ----------
    features : (n, p) standardised features
    codes : (n,) observed values of the column
    offset : (n, V) log probabilities of the values in the model without features
    basis : (V, r) basis functions of the values
    """
    shape = features.shape[1], basis.shape[1]
    rows = np.arange(len(codes))

    def loss(flat):
        """Penalised negative log likelihood at weights ``flat`` (p * r,), and its gradient."""
        weights = flat.reshape(shape)
        log_p = log_softmax(offset + features @ weights @ basis.T, axis=1)
        error = np.exp(log_p)
        error[rows, codes] -= 1
        gradient = features.T @ (error @ basis) + _RIDGE * weights
        return -log_p[rows, codes].sum() + 0.5 * _RIDGE * (flat**2).sum(), gradient.ravel()

    start = np.zeros(shape[0] * shape[1])
    result = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return result.x.reshape(shape)
