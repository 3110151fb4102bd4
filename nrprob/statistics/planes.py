"""The discriminant plane of the clusters after adjusting for known groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.statistics.groups import cross_table, group_means

__all__ = ["DISCRIMINANT", "NOTHING", "PRINCIPAL", "Plane", "discriminant_plane"]

DISCRIMINANT, PRINCIPAL, NOTHING = "discriminant", "principal direction", "nothing"
_DIRECTIONS = 50  # principal ones that discriminants are made of, where there are more features
_ROWS = 10  # for each of them: of fewer, any clusters could be told apart
_STEPS = 6
_NULL = 1e-10  # variance, as a share of all, of a direction that does not vary


@dataclass(frozen=True)
class Plane:
    """Two directions, and where rows are along them.

    Attributes
    ----------
    places : (n, 2) uncorrelated, of mean 0 and variance 1, but 0 where there is no direction
    kinds : what each direction is: a discriminant, a principal direction, or nothing
    """

    places: np.ndarray
    kinds: tuple[str, str]


class _Residuals:
    """Rows (n, p) less the means of their known groups, never made dense."""

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
    """Find the plane of the leading discriminants of labelings within known groups.

    A discriminant is a direction in which the share of the residuals' variance that is between
    clusters is largest, summed over labelings; a k-th direction is uncorrelated with those before
    it. Where clusters have fewer discriminants than two, principal directions of what these leave
    of the residuals take their place.

    Parameters
    ----------
    X : (n, p) rows, dense or sparse
    labelings : (n, m) numbers of clusters, all of which have rows
    groups : (n,) numbers of known groups, all of which have rows
    random : RandomState, which starts the search for principal directions of many features
    """
    n, p = X.shape
    residuals = _Residuals(X, groups)
    basis = np.eye(p)
    most = min(_DIRECTIONS, max(n // _ROWS, 5))
    if p > most:
        basis = random.normal(size=(p, most))
        for _ in range(_STEPS):
            basis = np.linalg.qr(residuals.weighted_sums(residuals.project_onto(basis)))[0]
        # What tells clusters apart may vary little; it is among the differences of their centres.
        centres = np.concatenate([residuals.cluster_centres(codes) for codes in labelings.T])
        apart = np.linalg.svd(centres, full_matrices=False)[2][:most]
        basis = np.linalg.qr(np.column_stack([basis, apart.T]))[0]
    y = residuals.project_onto(basis)
    # Of a direction without variance, rounding is left.
    largest = np.abs(residuals.means).max(0) @ np.abs(basis) + np.abs(y).max(0)
    rounding = 64 * np.finfo(X.dtype).eps * largest
    result = _discriminant_coordinates(y[:, y.std(0) > rounding], labelings)
    least = max(rounding.max() ** 2, _NULL * (y**2).sum() / n)
    kinds = [DISCRIMINANT] * result.shape[1]
    while len(kinds) < 2:
        place = _principal_coordinate(y - result @ (result.T @ y) / n, least)
        result = np.column_stack([result, place])
        kinds.append(PRINCIPAL if place.any() else NOTHING)
    extreme = result[np.abs(result).argmax(0), range(2)]
    return Plane(result * np.where(extreme < 0, -1, 1), (kinds[0], kinds[1]))


def _discriminant_coordinates(y: np.ndarray, labelings: np.ndarray) -> np.ndarray:
    """Places (n, q) of rows along at most two discriminants of the rows (n, d), of variance 1."""
    n = len(y)
    y = y / y.std(0)  # so that units do not decide what is too small
    variances, directions = np.linalg.eigh(y.T @ y / n)
    varies = variances > _NULL
    white = y @ (directions[:, varies] / np.sqrt(variances[varies]))
    between = np.zeros((white.shape[1], white.shape[1]))
    for codes in labelings.T:
        centres = group_means(white, codes)
        between += centres.T @ (centres * np.bincount(codes)[:, None]) / n
    shares, directions = np.linalg.eigh(between)
    use = np.argsort(-shares)[:2]
    return white @ directions[:, use[shares[use] > _NULL]]


def _principal_coordinate(rest: np.ndarray, least: float) -> np.ndarray:
    """Places (n,) along the direction of the largest variance; 0 where there is none left."""
    n = len(rest)
    variances, directions = np.linalg.eigh(rest.T @ rest / n)
    if variances[-1] <= least:
        return np.zeros(n)
    return rest @ directions[:, -1] / np.sqrt(variances[-1])
