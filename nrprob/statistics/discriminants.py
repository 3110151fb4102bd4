"""Plane of the two leading discriminants of clusters, adjusted for known groups.

Shapes: n samples, p features, k clusters, q directions; d coordinates of residuals in a basis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.statistics.groups import cross_table, group_means, group_sums, within_group_inverse

__all__ = ["DISCRIMINANT", "NOTHING", "PRINCIPAL", "Plane", "discriminant_plane"]

DISCRIMINANT, PRINCIPAL, NOTHING = "discriminant", "principal direction", "nothing"
_MAX_DIRECTIONS = 50  # largest number of principal directions; they replace the features
_ROWS_PER_DIRECTION = 10  # with fewer samples per direction, any clusters are separable
_SUBSPACE_ITERATIONS = 6
_NULL_SHARE = 1e-10  # a direction with a smaller share of the variance is constant


@dataclass(frozen=True)
class Plane:
    """Coordinates of n samples along two directions.

    Attributes
    ----------
    places : (n, 2) uncorrelated coordinates with mean 0 and variance 1; all 0 for a missing
        direction
    kinds : type of each direction: `DISCRIMINANT`, `PRINCIPAL` or `NOTHING`
    """

    places: np.ndarray
    kinds: tuple[str, str]


class _Residuals:
    """Residuals of samples: ``X`` (n, p) minus the effects of the known groups, with mean 0.

    The effects (one row of p per group) are fitted by least squares together with effects of the
    clusters of all labelings, whose indicators are ``clusters`` (n, k). Group effects therefore do
    not absorb differences between clusters if cluster shares differ between groups. The array of
    residuals is never computed, so that sparse samples stay sparse.
    """

    def __init__(self, X: Any, groups: np.ndarray, clusters: np.ndarray):
        self.X, self.groups = X, groups
        sizes = np.bincount(groups)
        coefficients = np.asarray(X.T @ within_group_inverse(clusters, groups).T, float).T
        effects = group_means(X, groups) - group_means(clusters, groups) @ coefficients
        mean = (sizes @ group_means(X, groups) - sizes @ effects) / len(groups)
        self.effects = effects + mean

    def project_onto(self, v: np.ndarray) -> np.ndarray:
        """Projections (n, q) of the residuals onto directions (p, q)."""
        along = np.asarray(self.X @ v.astype(self.X.dtype), float)
        return along - (self.effects @ v)[self.groups]

    def weighted_sums(self, u: np.ndarray) -> np.ndarray:
        """Weighted sums (p, q) of the residuals over the samples, with weights ``u`` (n, q)."""
        sums = np.asarray(self.X.T @ u.astype(self.X.dtype), float)
        return sums - self.effects.T @ group_sums(u, self.groups)

    def cluster_centres(self, codes: np.ndarray) -> np.ndarray:
        """Mean residuals (k, p) of the clusters ``codes`` (n,)."""
        table = cross_table(codes, self.groups, (codes.max() + 1, len(self.effects)))
        shares = table / table.sum(1, keepdims=True)
        return group_means(self.X, codes) - shares @ self.effects


def discriminant_plane(X: Any, labelings: np.ndarray, groups: np.ndarray, random: Any) -> Plane:
    """Find the plane of the two leading discriminants of labelings within known groups.

    Residuals are samples minus the effects of their known groups, which are fitted together with
    the clusters. A discriminant is the direction along which the clusters explain the largest share
    of the variance of the residuals, summed over labelings. A discriminant is uncorrelated with all
    previous discriminants. If there are fewer than two discriminants, principal directions of the
    remaining residuals replace the missing discriminants. With many features, discriminants are
    linear combinations of up to 50 principal directions, found by subspace iteration, and of the
    leading directions of the differences between cluster means.

    Parameters
    ----------
    X : (n, p) samples, dense or sparse
    labelings : (n, m) clusters as integers, one labeling per column; no cluster is empty
    groups : (n,) known groups as integers; no group is empty
    random : RandomState for the initial directions of the subspace iteration
    """
    n, p = X.shape
    clusters = [codes[:, None] == np.arange(codes.max() + 1) for codes in labelings.T]
    residuals = _Residuals(X, groups, np.concatenate(clusters, 1).astype(float))
    basis = np.eye(p)
    n_directions = min(_MAX_DIRECTIONS, max(n // _ROWS_PER_DIRECTION, 5))
    if p > n_directions:
        # Subspace iteration for the principal directions.
        basis = random.normal(size=(p, n_directions))
        for _ in range(_SUBSPACE_ITERATIONS):
            basis = np.linalg.qr(residuals.weighted_sums(residuals.project_onto(basis)))[0]
        # Directions that separate clusters may have little variance: add the directions of the
        # differences between cluster means.
        centres = np.concatenate([residuals.cluster_centres(codes) for codes in labelings.T])
        between = np.linalg.svd(centres, full_matrices=False)[2][:n_directions]
        basis = np.linalg.qr(np.column_stack([basis, between.T]))[0]
    y = residuals.project_onto(basis)
    # Projections onto directions without variance are rounding errors: leave them out.
    largest = np.abs(residuals.effects).max(0) @ np.abs(basis) + np.abs(y).max(0)
    rounding = 64 * np.finfo(X.dtype).eps * largest
    result = _discriminant_coordinates(y[:, y.std(0) > rounding], labelings)
    min_variance = max(rounding.max() ** 2, _NULL_SHARE * (y**2).sum() / n)
    # Principal directions of the remaining residuals replace missing discriminants.
    kinds = [DISCRIMINANT] * result.shape[1]
    while len(kinds) < 2:
        coordinate = _principal_coordinate(y - result @ (result.T @ y) / n, min_variance)
        result = np.column_stack([result, coordinate])
        kinds.append(PRINCIPAL if coordinate.any() else NOTHING)
    # Signs: the coordinate with the largest absolute value is positive.
    extreme = result[np.abs(result).argmax(0), range(2)]
    return Plane(result * np.where(extreme < 0, -1, 1), (kinds[0], kinds[1]))


def _discriminant_coordinates(y: np.ndarray, labelings: np.ndarray) -> np.ndarray:
    """Coordinates (n, q), with variance 1, along the q <= 2 discriminants of residuals (n, d)."""
    n = len(y)
    # Scale the columns to variance 1, then whiten the residuals.
    y = y / y.std(0)
    variances, directions = np.linalg.eigh(y.T @ y / n)
    varies = variances > _NULL_SHARE
    white = y @ (directions[:, varies] / np.sqrt(variances[varies]))
    # Discriminants: eigenvectors of the between-cluster covariance of whitened residuals.
    between = np.zeros((white.shape[1], white.shape[1]))
    for codes in labelings.T:
        centres = group_means(white, codes)
        between += centres.T @ (centres * np.bincount(codes)[:, None]) / n
    shares, directions = np.linalg.eigh(between)
    use = np.argsort(-shares)[:2]
    return white @ directions[:, use[shares[use] > _NULL_SHARE]]


def _principal_coordinate(rest: np.ndarray, min_variance: float) -> np.ndarray:
    """Coordinate (n,) along the first principal direction of residuals (n, d).

    The coordinate is 0 if its variance is at most ``min_variance``.
    """
    n = len(rest)
    variances, directions = np.linalg.eigh(rest.T @ rest / n)
    if variances[-1] <= min_variance:
        return np.zeros(n)
    return rest @ directions[:, -1] / np.sqrt(variances[-1])
