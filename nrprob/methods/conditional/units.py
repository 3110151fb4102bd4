"""Map between the numeric columns of a table and the coordinates of a joint fit.

Sizes: n samples, d numeric columns, p coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Units:
    """Linear map from numeric columns x (n, d) to coordinates (x - centre) @ basis, and back.

    Attributes
    ----------
    centre : (d,) origin of the coordinates, in units of the columns
    basis : (d, p) map from the columns to the coordinates
    back : (p, d) map from the coordinates to the columns
    log_det : log of the factor by which the map ``basis`` changes volumes, for complete samples
    """

    centre: np.ndarray
    basis: np.ndarray
    back: np.ndarray
    log_det: float

    @classmethod
    def from_scale(cls, centre: np.ndarray, scale: float) -> Units:
        """Return the `Units` of the map (x - centre) / scale; x may have missing values."""
        eye = np.eye(len(centre))
        return cls(centre, eye / scale, eye * scale, -len(centre) * np.log(scale))

    @property
    def is_diagonal(self) -> bool:
        """Whether every coordinate is a multiple of the column at its position.

        Only such a map can be applied to missing values.
        """
        n, p = self.basis.shape
        return n == p and not (self.basis * (1 - np.eye(p))).any()

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Coordinates (n, p) of numeric values ``x`` (n, d); missing values need a diagonal map."""
        if np.isnan(x).any():
            return (x - self.centre) * np.diagonal(self.basis)
        return (x - self.centre) @ self.basis

    def unspanned(self, x: np.ndarray) -> np.ndarray:
        """Part (n, d) of ``x - centre`` that the coordinates do not represent.

        The part is 0 if there are as many coordinates as columns.
        """
        return x - self.centre - self(x) @ self.back

    def log_density_unit(self, x: np.ndarray) -> np.ndarray:
        """Log density (n,) in units of the columns less log density in the coordinates.

        ``x`` (n, d) are the numeric values, of which only the observed ones count.
        """
        share = (~np.isnan(x)).mean(1)
        return share * self.log_det
