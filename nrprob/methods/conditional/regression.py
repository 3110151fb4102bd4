"""Residuals after regression on the known structure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nrprob.data.design import Design
from nrprob.statistics.groups import group_means, group_sums


@dataclass(frozen=True)
class Removal:
    """Linear model of the rows given known structure, fitted by least squares.

    Attributes
    ----------
    effects : ndarray of shape (n_groups, m) or (1 + q, m)
        Means of the known groups, or coefficients of the design matrix.
    rank : int
        Degrees of freedom that the model takes from every feature.
    level : ndarray of shape (m,)
        Mean of all rows.
    """

    effects: np.ndarray
    rank: int
    level: np.ndarray

    def __call__(self, x: np.ndarray, design: Design) -> np.ndarray:
        """Residuals (n, m) of new rows."""
        return x - predict_effects(self.effects, design)


def fit_removal(x: np.ndarray, design: Design) -> tuple[np.ndarray, Removal]:
    """Regress rows on the known structure.

    Labels: the mean of the row's group. Several labelings: the mean of their combination, or one
    effect per labeling, by least squares. Memberships: one mean per group, mixed by the
    memberships, by least squares. Covariates: a constant and one slope per column, by least
    squares. No known structure: the mean of all rows.

    Parameters
    ----------
    x : ndarray of shape (n, m)
    design : Design

    Returns
    -------
    residuals : ndarray of shape (n, m), float64
    removal : Removal
        The fitted model, which new rows are adjusted by.
    """
    x = np.asarray(x, np.float64)
    level = x.mean(0)
    if design.matrix is not None:
        effects, _, rank, _ = np.linalg.lstsq(design.matrix, x, rcond=None)
        return x - design.matrix @ effects, Removal(effects, int(rank), level)
    codes, n_groups = design.codes, design.n_groups
    effects = group_means(x, codes, n_groups)
    # The means of the residuals are rounding errors of large means.
    effects += group_means(x - effects[codes], codes, n_groups)
    return x - effects[codes], Removal(effects, n_groups, level)


def fit_beside_clusters(
    x: np.ndarray, codes: np.ndarray, n_groups: int, membership: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Additive effects of groups and clusters, by least squares with the groups eliminated.

    Parameters
    ----------
    x : ndarray of shape (n, m)
    codes : ndarray of shape (n,)
        Groups.
    n_groups : int
    membership : ndarray of shape (n, K)

    Returns
    -------
    effects : ndarray of shape (n_groups, m)
        Effects of the groups with the mean of the rows.
    centres : ndarray of shape (K, m)
        Effects of the clusters, of mean 0 over the rows.
    """
    size = np.bincount(codes, minlength=n_groups)[:, None]
    sums, counts = group_sums(x, codes, n_groups), group_sums(membership, codes, n_groups)
    share = counts / size
    system = membership.T @ membership - counts.T @ share
    centres = np.linalg.pinv(system, 1e-8, hermitian=True) @ (membership.T @ x - share.T @ sums)
    centres -= membership.mean(0) @ centres
    return (sums - counts @ centres) / size, centres


def predict_effects(effects: np.ndarray, design: Design) -> np.ndarray:
    """Fitted values (n, m) of the known structure."""
    return effects[design.codes] if design.matrix is None else design.matrix @ effects
