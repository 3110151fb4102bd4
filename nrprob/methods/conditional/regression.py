"""Least-squares regression of rows on the known structure, and the residuals.

Sizes: n rows, m features, K clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nrprob.data.design import Design
from nrprob.statistics.groups import group_means, group_sums
from nrprob.statistics.weighted import row_mean, scale_rows


@dataclass(frozen=True)
class Removal:
    """Linear regression of rows on the known structure, fitted by least squares.

    Attributes
    ----------
    effects : ndarray of shape (n_groups, m) or (n_coefficients, m)
        Means of the known groups; coefficients of the design matrix if known structure is not one
        labeling.
    rank : int
        Number of parameters per feature: the residual degrees of freedom are n - rank.
    level : ndarray of shape (m,)
        Mean of all rows of the fit.
    """

    effects: np.ndarray
    rank: int
    level: np.ndarray

    def __call__(self, x: np.ndarray, design: Design) -> np.ndarray:
        """Residuals (n, m) of new rows ``x`` (n, m) with known structure ``design``."""
        return x - predict_effects(self.effects, design)


def fit_removal(
    x: np.ndarray, design: Design, weights: np.ndarray | None = None
) -> tuple[np.ndarray, Removal]:
    """Regress rows on the known structure by least squares.

    The fitted value of a row depends on the type of known structure:

    - one labeling, or combinations of several: the mean of the row's group
    - several labelings with additive effects: the sum of one effect per labeling
    - soft memberships: the sum over groups of membership times group effect
    - continuous covariates: a constant plus one slope per covariate
    - no known structure: the mean of all rows

    Parameters
    ----------
    x : ndarray of shape (n, m)
        Rows.
    design : Design
        Known structure.
    weights : ndarray of shape (n,), optional
        Weights of the rows; by default 1.

    Returns
    -------
    residuals : ndarray of shape (n, m), float64
    removal : Removal
        The fitted model, which also gives the residuals of new rows.
    """
    x = np.asarray(x, np.float64)
    level = row_mean(x, weights)
    if design.matrix is not None:
        root = None if weights is None else np.sqrt(weights)
        left, right = scale_rows(design.matrix, root), scale_rows(x, root)
        effects, _, rank, _ = np.linalg.lstsq(left, right, rcond=None)
        return x - design.matrix @ effects, Removal(effects, int(rank), level)
    codes, n_groups = design.codes, design.n_groups
    effects = group_means(x, codes, n_groups, weights)
    # If means are large, their rounding errors are not small. The means of the residuals correct
    # them.
    effects += group_means(x - effects[codes], codes, n_groups, weights)
    return x - effects[codes], Removal(effects, n_groups, level)


def fit_groups_and_clusters(
    x: np.ndarray,
    codes: np.ndarray,
    n_groups: int,
    membership: np.ndarray,
    weights: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit additive effects of known groups and clusters by least squares.

    The group effects are eliminated from the normal equations first.

    Parameters
    ----------
    x : ndarray of shape (n, m)
        Rows.
    codes : ndarray of shape (n,)
        Known group of every row.
    n_groups : int
    membership : ndarray of shape (n, K)
        Memberships of the rows in the clusters.
    weights : ndarray of shape (n,), optional
        Weights of the rows; by default 1.

    Returns
    -------
    effects : ndarray of shape (n_groups, m)
        Effects of the groups, which include the mean of all rows.
    centres : ndarray of shape (K, m)
        Effects of the clusters, with mean 0 over the rows.
    """
    size = np.bincount(codes, weights, minlength=n_groups)[:, None]
    weighted = scale_rows(membership, weights)
    sums, counts = group_sums(x, codes, n_groups, weights), group_sums(weighted, codes, n_groups)
    share = counts / size
    system = weighted.T @ membership - counts.T @ share
    centres = np.linalg.pinv(system, 1e-8, hermitian=True) @ (weighted.T @ x - share.T @ sums)
    centres -= row_mean(membership, weights) @ centres
    return (sums - counts @ centres) / size, centres


def predict_effects(effects: np.ndarray, design: Design) -> np.ndarray:
    """Fitted values (n, m) of rows with known structure ``design``."""
    return effects[design.codes] if design.matrix is None else design.matrix @ effects
