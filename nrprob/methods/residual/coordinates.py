"""Coordinates of residuals in which their ridged covariance is the identity, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.covariance import ledoit_wolf_shrinkage

_MOST = 30  # components kept where the features are too many
_NULL = 1e-10  # variance, relative to the largest, of a direction that does not vary


@dataclass(frozen=True)
class Coordinates:
    """How residuals become coordinates y (n, p), and back.

    Attributes
    ----------
    basis : (m, p) from residuals in units of X to y
    back : (p, m) the way back, but for the inflation
    inflation : by which residuals are multiplied, as they vary less than errors
    scale : root of the mean square of the inflated residuals
    variances : (p,) ridged, of the coordinates before they were divided by their roots
    shrinkage : intensity of Ledoit and Wolf
    nu0, s0 : weight of the ridge, and the variance that it shrinks to
    dof : degrees of freedom that are left
    """

    basis: np.ndarray
    back: np.ndarray
    inflation: float
    scale: float
    variances: np.ndarray
    shrinkage: float
    nu0: float
    s0: float
    dof: int

    @classmethod
    def of(
        cls, r: np.ndarray, dof: int, covariance: str, ridge: float
    ) -> tuple[Coordinates, np.ndarray]:
        """Coordinates, and those of the residuals (n, m) with ``dof`` degrees of freedom left."""
        # Residuals vary less than errors, having lost the groups' means: they are inflated, and
        # count for the degrees of freedom that are left.
        inflation = float(np.sqrt(len(r) / dof))
        scale = inflation * float(np.sqrt(np.mean(r**2)))
        z, basis, variances = _directions(r * (inflation / scale), dof, covariance)
        alone = z.shape[1] == 1
        shrinkage = 0.0 if alone else float(ledoit_wolf_shrinkage(z, assume_centered=True))
        shrinkage = min(shrinkage, 0.99)
        # A sphere is what it shrinks to.
        nu0 = 0.0 if covariance == "spherical" else ridge * dof * shrinkage / (1 - shrinkage)
        s0 = float(variances.mean())
        ridged = (dof * variances + nu0 * s0) / (dof + nu0)
        root = np.sqrt(ridged)
        basis, back = basis / root * (inflation / scale), (basis * root).T * scale
        return cls(basis, back, inflation, scale, ridged, shrinkage, nu0, s0, dof), z / root

    def seen(self, y: np.ndarray, metric: Any, n_clusters: int) -> np.ndarray:
        """Map (p, p) from y to what a metric of the starts sees: a power, or "kurtosis"."""
        p = y.shape[1]
        if metric != "kurtosis":
            return np.diag(self.variances ** ((1 - metric) / 2))
        # Directions of least kurtosis, by the eigenvectors of fourth moments (FOBI).
        square, turn = np.linalg.eigh(y.T @ y / self.dof)
        white = turn / np.sqrt(np.maximum(square, 1e-12 * square.max()))
        v = y @ white
        fourth = (v * (v**2).sum(1, keepdims=True)).T @ v
        directions = np.linalg.eigh(fourth)[1][:, : max(min(n_clusters - 1, p), 1)]
        return np.pad(white @ directions, ((0, 0), (0, p - directions.shape[1])))


def _directions(
    r: np.ndarray, dof: int, covariance: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Residuals (n, p) along directions that vary, these (m, p), and their variances (p,)."""
    n, m = r.shape
    if covariance == "diag":
        variances = (r**2).mean(0)
        keep = variances > _NULL * variances.max()
        return r[:, keep], np.eye(m)[:, keep], variances[keep]
    if n > 2 * m:
        square, basis = np.linalg.eigh(r.T @ r)
        order = square.argsort()[::-1]
        square, basis = square[order], basis[:, order]
    else:
        _, root, basis = np.linalg.svd(r, full_matrices=False)
        square, basis = root**2, basis.T
    rank = int((square > _NULL * square[0]).sum())
    if covariance == "tied" and rank > dof / 2:
        rank = max(min(_MOST, dof // 2, rank), 1)
    basis = basis[:, :rank]
    return r @ basis, basis, square[:rank] / n
