"""Discriminant plane of the clusters, adjusted for known groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.statistics.groups import cross_table, group_means

__all__ = ["DISCRIMINANT", "NOTHING", "PRINCIPAL", "Plane", "discriminant_plane"]

DISCRIMINANT, PRINCIPAL, NOTHING = "discriminant", "principal direction", "nothing"
_MAX_DIRECTIONS = 50  # principal directions that replace the features if there are more
_ROWS_PER_DIRECTION = 10  # minimum; with fewer rows any clusters would be separable
_SUBSPACE_ITERATIONS = 6
_NULL_SHARE = 1e-10  # share of the variance below which a direction is constant


@dataclass(frozen=True)
class Plane:
    """Coordinates of the rows along two directions.

    Attributes
    ----------
    places : (n, 2) uncorrelated coordinates of mean 0 and variance 1; 0 if there is no direction
    kinds : `DISCRIMINANT`, `PRINCIPAL` or `NOTHING`, per direction
    """

    places: np.ndarray
    kinds: tuple[str, str]


class _Residuals:
    """Rows (n, p) minus the means of their known groups, without making sparse rows dense."""

    def __init__(self, X: Any, groups: np.ndarray):
        self.X, self.groups = X, groups
        self.means = group_means(X, groups)

    def project_onto(self, v: np.ndarray) -> np.ndarray:
        """Residuals (n, q) along directions (p, q)."""
        along = np.asarray(self.X @ v.astype(self.X.dtype), float)
        return along - group_means(along, self.groups)[self.groups]

    def weighted_sums(self, u: np.ndarray) -> np.ndarray:
        """Sums (p, q) of the residuals, weighted by u (n, q) that sum to 0 in every group."""
        return np.asarray(self.X.T @ u.astype(self.X.dtype), float)

    def cluster_centres(self, codes: np.ndarray) -> np.ndarray:
        """Means (k, p) of the residuals of clusters."""
        table = cross_table(codes, self.groups, (codes.max() + 1, len(self.means)))
        shares = table / table.sum(1, keepdims=True)
        return group_means(self.X, codes) - shares @ self.means


def discriminant_plane(X: Any, labelings: np.ndarray, groups: np.ndarray, random: Any) -> Plane:
    """Find the plane of the two leading discriminants of labelings within known groups.

    A discriminant maximises the share of the residual variance that is between clusters, summed
    over labelings, among directions uncorrelated with the previous ones. If clusters have fewer
    than two discriminants, principal directions of the remaining residuals replace them. With many
    features, discriminants are combinations of up to 50 principal directions (by subspace
    iteration) and the differences of the cluster means.

    Parameters
    ----------
    X : (n, p) rows, dense or sparse
    labelings : (n, m) codes of clusters, none of them empty
    groups : (n,) codes of known groups, none of them empty
    random : RandomState for the initial directions of the subspace iteration
    """
    n, p = X.shape
    residuals = _Residuals(X, groups)
    basis = np.eye(p)
    n_directions = min(_MAX_DIRECTIONS, max(n // _ROWS_PER_DIRECTION, 5))
    if p > n_directions:
        # Subspace iteration for the principal directions.
        basis = random.normal(size=(p, n_directions))
        for _ in range(_SUBSPACE_ITERATIONS):
            basis = np.linalg.qr(residuals.weighted_sums(residuals.project_onto(basis)))[0]
        # Directions that separate clusters may have little variance: add the cluster means.
        centres = np.concatenate([residuals.cluster_centres(codes) for codes in labelings.T])
        between = np.linalg.svd(centres, full_matrices=False)[2][:n_directions]
        basis = np.linalg.qr(np.column_stack([basis, between.T]))[0]
    y = residuals.project_onto(basis)
    # Directions without variance have rounding errors only.
    largest = np.abs(residuals.means).max(0) @ np.abs(basis) + np.abs(y).max(0)
    rounding = 64 * np.finfo(X.dtype).eps * largest
    result = _discriminant_coordinates(y[:, y.std(0) > rounding], labelings)
    min_variance = max(rounding.max() ** 2, _NULL_SHARE * (y**2).sum() / n)
    kinds = [DISCRIMINANT] * result.shape[1]
    while len(kinds) < 2:
        coordinate = _principal_coordinate(y - result @ (result.T @ y) / n, min_variance)
        result = np.column_stack([result, coordinate])
        kinds.append(PRINCIPAL if coordinate.any() else NOTHING)
    extreme = result[np.abs(result).argmax(0), range(2)]
    return Plane(result * np.where(extreme < 0, -1, 1), (kinds[0], kinds[1]))


def _discriminant_coordinates(y: np.ndarray, labelings: np.ndarray) -> np.ndarray:
    """Coordinates (n, q) along at most two discriminants of rows (n, d), of variance 1."""
    n = len(y)
    # Whiten the rows, after scaling the columns to equal variance.
    y = y / y.std(0)
    variances, directions = np.linalg.eigh(y.T @ y / n)
    varies = variances > _NULL_SHARE
    white = y @ (directions[:, varies] / np.sqrt(variances[varies]))
    # Eigenvectors of the between-cluster covariance of whitened rows.
    between = np.zeros((white.shape[1], white.shape[1]))
    for codes in labelings.T:
        centres = group_means(white, codes)
        between += centres.T @ (centres * np.bincount(codes)[:, None]) / n
    shares, directions = np.linalg.eigh(between)
    use = np.argsort(-shares)[:2]
    return white @ directions[:, use[shares[use] > _NULL_SHARE]]


def _principal_coordinate(rest: np.ndarray, min_variance: float) -> np.ndarray:
    """Coordinate (n,) along the first principal direction; 0 if its variance is too small."""
    n = len(rest)
    variances, directions = np.linalg.eigh(rest.T @ rest / n)
    if variances[-1] <= min_variance:
        return np.zeros(n)
    return rest @ directions[:, -1] / np.sqrt(variances[-1])
