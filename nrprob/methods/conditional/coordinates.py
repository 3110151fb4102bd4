"""Linear coordinates in which the covariance of the residuals plus the ridge is the identity.

The residuals are the rows after regression on the known structure. Sizes: n rows, m features, p
coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.methods.conditional.one_component import ridge_weight
from nrprob.statistics.weighted import (
    ledoit_wolf_intensity,
    row_mean,
    row_products,
    scale_rows,
    shrinkage_intensity,
    total_weight,
)

_MAX_COMPONENTS = 30  # principal components that remain if there are too many features
_MIN_VARIANCE = 1e-10  # variance, relative to the largest, up to which a direction is left out


@dataclass(frozen=True)
class Coordinates:
    """Linear map from residuals (n, m) to coordinates y (n, p), and the inverse map.

    Residuals vary less than errors, because the fitted means are subtracted. Multiplication by the
    inflation sqrt(n / dof) makes the variance of the residuals an estimate of the variance of the
    errors.

    Attributes
    ----------
    basis : (m, p) map from residuals in units of X to y, which includes the inflation
    back : (p, m) map from y to inflated residuals in units of X
    inflation : the factor sqrt(n / dof) of the residuals
    scale : root mean square of the inflated residuals
    variances : (p,) variances along the coordinates, with the ridge, before they are scaled to 1
    shrinkage : shrinkage intensity of Ledoit and Wolf
    nu0, s0 : weight of the ridge, and the variance towards which the ridge shrinks
    dof : residual degrees of freedom
    rounding : (p, p) covariance of the rounding errors of the columns, in the coordinates y
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
        """Compute the coordinates of residuals.

        Parameters
        ----------
        r : (n, m) residuals
        dof : residual degrees of freedom
        covariance : form of the error covariance: "tied", "diag" or "spherical"
        ridge : factor of the Ledoit-Wolf ridge
        rounding : (m,) variances of the rounding errors of the columns; by default 0
        weights : (n,) weights of the rows; by default 1

        Returns
        -------
        coordinates : map from residuals to coordinates
        y : (n, p) coordinates of the residuals
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
        """Compute the coordinates of the residuals of n stored rows, from moments of the residuals.

        Rounding errors are left out, because the steps between distinct values do not follow from
        moments.

        Parameters
        ----------
        square : (m, m) sums of products of the residuals
        fourth : sum over residuals of the fourth power of the norm, for the shrinkage intensity of
            Ledoit and Wolf
        n : number of residuals, more than 2 m
        dof, covariance, ridge : as in `from_residuals`
        """
        m = len(square)
        inflation, scale = _residual_scales(float(np.trace(square)) / (n * m), n, dof)
        unit = (inflation / scale) ** 2
        basis, variances = _eigen_directions(square * (unit / n), dof, covariance)
        rotated = basis.T @ (square * (unit / n)) @ basis
        shrinkage = shrinkage_intensity(rotated, fourth * unit**2 / n, n)
        return cls._from_variances(
            basis, variances, shrinkage, inflation, scale, dof, covariance, ridge
        )

    @classmethod
    def _from_variances(
        cls, basis: np.ndarray, variances: np.ndarray, shrinkage: float, inflation: float,
        scale: float, dof: float, covariance: str, ridge: float,
        rounding: np.ndarray | None = None,
    ) -> Coordinates:  # fmt: skip
        """Compute the coordinates from orthogonal directions of the residuals.

        Parameters
        ----------
        basis : (m, p) orthogonal directions
        variances : (p,) variances of the scaled residuals along the directions
        shrinkage : shrinkage intensity of Ledoit and Wolf
        inflation, scale : as in `Coordinates`
        dof, covariance, ridge, rounding : as in `from_residuals`
        """
        # The ridge shrinks to a spherical covariance, so a spherical covariance needs no ridge.
        spherical = covariance == "spherical"
        nu0 = 0.0 if spherical else ridge_weight(shrinkage, dof, ridge, len(variances))
        s0 = float(variances.mean())
        ridged = (dof * variances + nu0 * s0) / (dof + nu0)
        root = np.sqrt(ridged)
        # `to_coordinates` maps inflated residuals to y. Rounding errors have the scale of the data,
        # so they are not inflated.
        to_coordinates = basis / (root * scale)
        errors = np.zeros((len(root),) * 2)
        if rounding is not None:
            errors = (to_coordinates.T * rounding) @ to_coordinates
        basis, back = to_coordinates * inflation, (basis * root).T * scale
        return cls(basis, back, inflation, scale, ridged, shrinkage, nu0, s0, dof, errors)

    def metric_map(
        self, y: np.ndarray, metric: Any, n_clusters: int, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Linear map (p, p) from the coordinates y to the space in which initial k-means runs.

        Parameters
        ----------
        y : (n, p) coordinates of the residuals
        metric : whitening exponent from 0 (the scale of the residuals) to 1 (y itself); or
            "kurtosis" for the ``n_clusters - 1`` directions of the smallest kurtosis
        n_clusters : number of clusters, K
        weights : (n,) weights of the rows; by default 1
        """
        p = y.shape[1]
        if metric != "kurtosis":
            return np.diag(self.variances ** ((1 - metric) / 2))
        # The K - 1 directions of the smallest kurtosis, as eigenvectors of fourth moments (FOBI).
        eigenvalues, axes = np.linalg.eigh(row_products(y, weights) / self.dof)
        whitening = axes / np.sqrt(np.maximum(eigenvalues, 1e-12 * eigenvalues.max()))
        v = y @ whitening
        fourth = scale_rows(v * (v**2).sum(1, keepdims=True), weights).T @ v
        directions = np.linalg.eigh(fourth)[1][:, : max(min(n_clusters - 1, p), 1)]
        return np.pad(whitening @ directions, ((0, 0), (0, p - directions.shape[1])))


def _residual_scales(square: float, n: float, dof: float) -> tuple[float, float]:
    """Inflation sqrt(n / dof), and the root mean square of the inflated residuals.

    Parameters
    ----------
    square : mean square of the residuals
    n : number of rows, or sum of their weights
    dof : residual degrees of freedom
    """
    inflation = float(np.sqrt(n / dof))
    return inflation, inflation * float(np.sqrt(square))


def _varying_directions(
    r: np.ndarray, dof: float, covariance: str, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the orthogonal directions in which residuals r (n, m) vary.

    ``dof`` and ``covariance`` limit the number of directions, as in `_retained_rank`. ``weights``
    (n,) are the weights of the rows; None if all are 1.

    Returns
    -------
    z : (n, p) components of the residuals along the directions
    basis : (m, p) directions
    variances : (p,) variances along the directions
    """
    n, m = r.shape
    total = total_weight(n, weights)
    if covariance == "diag" or n > 2 * m:
        diagonal = covariance == "diag"
        square = np.diag(row_mean(r**2, weights)) if diagonal else row_products(r, weights) / total
        basis, variances = _eigen_directions(square, dof, covariance)
        return r @ basis, basis, variances
    # With few rows, use the singular value decomposition of the rows instead of eigenvectors.
    scaled = scale_rows(r, None if weights is None else np.sqrt(weights))
    _, root, basis = np.linalg.svd(scaled, full_matrices=False)
    rank = _retained_rank(root**2, dof, covariance)
    basis = basis.T[:, :rank]
    return r @ basis, basis, root[:rank] ** 2 / total


def _eigen_directions(
    square: np.ndarray, dof: float, covariance: str
) -> tuple[np.ndarray, np.ndarray]:
    """Directions (m, p) in which residuals vary, and the variances (p,) along these directions.

    ``square`` (m, m) are the mean products of the residuals. ``dof`` and ``covariance`` limit the
    number of directions, as in `_retained_rank`.
    """
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
    """Number of directions of the residuals to retain.

    ``variances`` are the variances along the directions, in decreasing order. Directions without
    variance are left out. If a "tied" covariance would have more than dof / 2 directions, the first
    min(30, dof / 2) remain. ``dof`` are the residual degrees of freedom, and ``covariance`` is the
    form of the error covariance.
    """
    rank = int((variances > _MIN_VARIANCE * variances[0]).sum())
    if covariance == "tied" and rank > dof / 2:
        rank = max(min(_MAX_COMPONENTS, int(dof // 2), rank), 1)
    return rank
