r"""One component whose discrete columns depend on the numbers and on each other.

Numbers are one Gaussian per known group. Every discrete column j has a regression on the numbers x
and on the discrete columns before it,

.. math:: \log p_j(v | x, y_1, ..., y_{j-1}, z)
    = \log p_j(v | z) + \phi_j(v)^T W_j^T f(x, y) - \log Z,

where f are standardised features, :math:`\phi_j(v)` is the indicator of the value of a categorical
column or the score of an ordered one, and W_j has a ridge. Features whose score test is not
significant are left out. Significance tests compare clusters with this density, so that a smooth
dependence of two columns does not count as clusters.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from scipy.stats import chi2

from nrprob.methods.conditional.table import DiscreteColumn

_RIDGE = 3.0  # precision of the weights of standardised features
_STEPS = 60  # of the optimiser
_SELECTION_LEVEL = 0.01  # of the score tests


def conditional_log_probability(
    columns: list[DiscreteColumn], log_tables: list[np.ndarray], residuals: np.ndarray | None,
    training: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Log probabilities (n,) of the discrete values given the numbers, column after column.

    Parameters
    ----------
    columns : discrete columns
    log_tables : log probabilities (n, V) of the values of every column given the known group
    residuals : (n, d) of the numbers, NaN where missing; None without numbers
    training : indices of the samples of the fit, which may repeat
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
        # The column is a feature of the columns after it, about its mean in the known group.
        expected = np.exp(log_table) @ basis
        feature = np.where(observed[:, None], basis[column.codes] - expected, np.nan)
        features.append(_standardise(feature, training))
    return total


def _score_moments(
    log_p: np.ndarray, codes: np.ndarray, basis: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Values less their expectations (n, r), and covariances (n, r, r), in the basis."""
    p = np.exp(log_p)
    mean = p @ basis
    second = np.einsum("nv,vr,vs->nrs", p, basis, basis)
    return basis[codes] - mean, second - mean[:, :, None] * mean[:, None]


def _is_significant(feature: np.ndarray, error: np.ndarray, spread: np.ndarray) -> bool:
    """Whether a feature (n, q) passes the score test of its weights (q, r)."""
    score = (feature.T @ error).ravel()
    products = feature[:, :, None] * feature[:, None]
    information = np.einsum("npq,nrs->prqs", products, spread, optimize=True)
    information = information.reshape(score.size, score.size)
    rank = np.linalg.matrix_rank(information, hermitian=True)
    statistic = score @ np.linalg.pinv(information, hermitian=True) @ score
    return bool(rank and chi2.sf(statistic, rank) < _SELECTION_LEVEL)


def _standardise(values: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Values (n, p) with the variance 1 in the training samples; 0 where missing."""
    deviation = np.sqrt(np.nanmean(values[training] ** 2, axis=0))
    return np.nan_to_num(values / np.where(deviation > 0, deviation, 1))


def _value_basis(column: DiscreteColumn) -> np.ndarray:
    """Functions (V, r) of the values whose expectations the features shift."""
    if column.scores is None:
        return np.eye(column.n_values)
    return column.standard_scores[:, None]


def _fit_weights(
    features: np.ndarray, codes: np.ndarray, offset: np.ndarray, basis: np.ndarray
) -> np.ndarray:
    """Weights (p, r) of the largest penalised likelihood."""
    shape = features.shape[1], basis.shape[1]
    rows = np.arange(len(codes))

    def loss(flat):
        weights = flat.reshape(shape)
        log_p = log_softmax(offset + features @ weights @ basis.T, axis=1)
        error = np.exp(log_p)
        error[rows, codes] -= 1
        gradient = features.T @ (error @ basis) + _RIDGE * weights
        return -log_p[rows, codes].sum() + 0.5 * _RIDGE * (flat**2).sum(), gradient.ravel()

    start = np.zeros(shape[0] * shape[1])
    result = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return result.x.reshape(shape)
