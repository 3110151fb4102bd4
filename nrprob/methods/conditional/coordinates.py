"""Coordinates in which the ridged covariance of the residuals is the identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.statistics.weighted import (
    ledoit_wolf_intensity,
    row_mean,
    row_products,
    scale_rows,
    shrinkage_intensity,
    total_weight,
)

_MAX_COMPONENTS = 30  # components kept where the features are too many
_MIN_VARIANCE = 1e-10  # variance, relative to the largest, of a direction that does not vary


@dataclass(frozen=True)
class Coordinates:
    """Linear map of residuals to coordinates y (n, p), and back.

    Attributes
    ----------
    basis : (m, p) from residuals in units of X to y
    back : (p, m) the inverse map, without the inflation
    inflation : factor of the residuals, which vary less than errors
    scale : root mean square of the inflated residuals
    variances : (p,) ridged variances of the coordinates before scaling
    shrinkage : intensity of Ledoit and Wolf
    nu0, s0 : weight of the ridge, and the variance that it shrinks to
    dof : residual degrees of freedom
    rounding : (p, p) covariance of the rounding errors of the columns, in units of the errors
    """

    basis: np.ndarray
    back: np.ndarray
    inflation: float
    scale: float
    variances: np.ndarray
    shrinkage: float
    nu0: float
    s0: float
    dof: float
    rounding: np.ndarray

    @classmethod
    def from_residuals(
        cls, r: np.ndarray, dof: float, covariance: str, ridge: float,
        rounding: np.ndarray | None = None, weights: np.ndarray | None = None,
    ) -> tuple[Coordinates, np.ndarray]:  # fmt: skip
        """Coordinates of residuals (n, m) with ``dof`` degrees of freedom, and their values y.

        ``rounding`` (m,) are variances of rounding errors of the columns, and ``weights`` (n,)
        weights of the rows.
        """
        n = total_weight(len(r), weights)
        inflation, scale = _residual_scales(float(row_mean(r**2, weights).mean()), n, dof)
        z, basis, variances = _varying_directions(r * (inflation / scale), dof, covariance, weights)
        shrinkage = ledoit_wolf_intensity(z, weights)
        coordinates = cls._from_variances(
            basis, variances, shrinkage, inflation, scale, dof, covariance, ridge, rounding
        )
        return coordinates, z / np.sqrt(coordinates.variances)

    @classmethod
    def from_moments(
        cls, square: np.ndarray, fourth: float, n: int, dof: float, covariance: str, ridge: float
    ) -> Coordinates:
        """Coordinates of n residuals from their moments; n must exceed twice the number of columns.

        The moments are the sums of products (m, m), and the sum of the fourth powers of the
        lengths, which Ledoit and Wolf's intensity needs in addition. Rounding errors are left out,
        because steps between distinct values are no moments.
        """
        m = len(square)
        inflation, scale = _residual_scales(float(np.trace(square)) / (n * m), n, dof)
        unit = (inflation / scale) ** 2
        basis, variances = _eigen_directions(square * (unit / n), dof, covariance)
        turned = basis.T @ (square * (unit / n)) @ basis
        shrinkage = shrinkage_intensity(turned, fourth * unit**2 / n, n)
        return cls._from_variances(
            basis, variances, shrinkage, inflation, scale, dof, covariance, ridge
        )

    @classmethod
    def _from_variances(
        cls, basis: np.ndarray, variances: np.ndarray, shrinkage: float, inflation: float,
        scale: float, dof: float, covariance: str, ridge: float,
        rounding: np.ndarray | None = None,
    ) -> Coordinates:  # fmt: skip
        shrinkage = min(shrinkage, 0.99)
        # A sphere is what it shrinks to.
        nu0 = 0.0 if covariance == "spherical" else ridge * dof * shrinkage / (1 - shrinkage)
        s0 = float(variances.mean())
        ridged = (dof * variances + nu0 * s0) / (dof + nu0)
        root = np.sqrt(ridged)
        # Errors are not inflated, and neither are their rounding errors.
        turn = basis / (root * scale)
        errors = np.zeros((len(root),) * 2)
        if rounding is not None:
            errors = (turn.T * rounding) @ turn
        basis, back = turn * inflation, (basis * root).T * scale
        return cls(basis, back, inflation, scale, ridged, shrinkage, nu0, s0, dof, errors)

    def metric_map(
        self, y: np.ndarray, metric: Any, n_clusters: int, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Map (p, p) from y to the metric of a k-means: a whitening exponent, or "kurtosis"."""
        p = y.shape[1]
        if metric != "kurtosis":
            return np.diag(self.variances ** ((1 - metric) / 2))
        # Directions of least kurtosis, by the eigenvectors of fourth moments (FOBI).
        square, turn = np.linalg.eigh(row_products(y, weights) / self.dof)
        white = turn / np.sqrt(np.maximum(square, 1e-12 * square.max()))
        v = y @ white
        fourth = scale_rows(v * (v**2).sum(1, keepdims=True), weights).T @ v
        directions = np.linalg.eigh(fourth)[1][:, : max(min(n_clusters - 1, p), 1)]
        return np.pad(white @ directions, ((0, 0), (0, p - directions.shape[1])))


def _residual_scales(square: float, n: float, dof: float) -> tuple[float, float]:
    """Inflation of residuals, and the root of the mean square of inflated ones.

    Residuals vary less than errors, having lost the groups' means: they are inflated, and count for
    the degrees of freedom that are left.
    """
    inflation = float(np.sqrt(n / dof))
    return inflation, inflation * float(np.sqrt(square))


def _varying_directions(
    r: np.ndarray, dof: float, covariance: str, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residuals (n, p) along directions that vary, these (m, p), and their variances (p,)."""
    n, m = r.shape
    total = total_weight(n, weights)
    if covariance == "diag" or n > 2 * m:
        diagonal = covariance == "diag"
        square = np.diag(row_mean(r**2, weights)) if diagonal else row_products(r, weights) / total
        basis, variances = _eigen_directions(square, dof, covariance)
        return r @ basis, basis, variances
    scaled = scale_rows(r, None if weights is None else np.sqrt(weights))
    _, root, basis = np.linalg.svd(scaled, full_matrices=False)
    rank = _retained_rank(root**2, dof, covariance)
    basis = basis.T[:, :rank]
    return r @ basis, basis, root[:rank] ** 2 / total


def _eigen_directions(
    square: np.ndarray, dof: float, covariance: str
) -> tuple[np.ndarray, np.ndarray]:
    """Directions (m, p) that vary, and the variances (p,) along them, by mean products (m, m)."""
    if covariance == "diag":
        variances = np.diagonal(square)
        keep = variances > _MIN_VARIANCE * variances.max()
        return np.eye(len(square))[:, keep], variances[keep]
    variances, basis = np.linalg.eigh(square)
    order = variances.argsort()[::-1]
    variances, basis = variances[order], basis[:, order]
    rank = _retained_rank(variances, dof, covariance)
    return basis[:, :rank], variances[:rank]


def _retained_rank(variances: np.ndarray, dof: float, covariance: str) -> int:
    """Number of directions to keep, of variances that fall."""
    rank = int((variances > _MIN_VARIANCE * variances[0]).sum())
    if covariance == "tied" and rank > dof / 2:
        rank = max(min(_MAX_COMPONENTS, int(dof // 2), rank), 1)
    return rank
