"""Map from the numeric columns of a table to the coordinates of a fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Units:
    """Map from the numeric columns to the coordinates of a fit.

    Attributes
    ----------
    centre : (d,) origin
    basis, back : (d, p), (p, d) to the coordinates and back
    log_det : log determinant of ``basis`` by complete sample
    """

    centre: np.ndarray
    basis: np.ndarray
    back: np.ndarray
    log_det: float

    @classmethod
    def from_scale(cls, centre: np.ndarray, scale: float) -> Units:
        """Return units of one common scale, which leave missing values alone."""
        eye = np.eye(len(centre))
        return cls(centre, eye / scale, eye * scale, -len(centre) * np.log(scale))

    @property
    def is_diagonal(self) -> bool:
        """Whether every coordinate is a multiple of one column."""
        n, p = self.basis.shape
        return n == p and not (self.basis * (1 - np.eye(p))).any()

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Coordinates (n, p) of numbers (n, d)."""
        if np.isnan(x).any():
            return (x - self.centre) * np.diagonal(self.basis)
        return (x - self.centre) @ self.basis

    def unspanned(self, x: np.ndarray) -> np.ndarray:
        """Part (n, d) of numbers that the coordinates do not span."""
        return x - self.centre - self(x) @ self.back

    def log_density_unit(self, x: np.ndarray) -> np.ndarray:
        """Log (n,) of the volume by which densities in coordinates differ from those of numbers."""
        share = (~np.isnan(x)).mean(1)
        return share * self.log_det
