"""Sizes, means and scatter matrices of classes, and of unions of classes.

Shapes: n samples, m features, c classes, T sets of classes. A set is a boolean vector (c,), and its
union has the samples of all classes in the set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ClassMoments:
    """Sizes, means and scatter matrices of c classes, or of the unions of classes.

    Attributes
    ----------
    sizes : (c,) sums of the weights of the samples
    means : (c, m) weighted means; 0 for an empty class
    scatters : (c, m, m) scatter matrices about the means, or (c, m) their diagonals
    """

    sizes: np.ndarray
    means: np.ndarray
    scatters: np.ndarray

    def merge(self, sets: np.ndarray) -> ClassMoments:
        """Compute the moments of the unions of T ``sets`` (T, c) of classes."""
        weights = sets * self.sizes
        sizes = weights.sum(1)
        means = weights @ self.means / np.where(sizes > 0, sizes, 1)[:, None]
        # Scatter of a union: scatters within its classes, and between their means.
        squares = _outer_squares(self.means, self.scatters.ndim)
        between = _combine(weights, squares) - _scale(_outer_squares(means, squares.ndim), sizes)
        return ClassMoments(sizes, means, _combine(sets, self.scatters) + between)


def class_moments(
    x: np.ndarray, mass: np.ndarray, codes: np.ndarray, n_classes: int, *, full: bool
) -> ClassMoments:
    """Compute sizes, means and scatter matrices of ``n_classes`` classes.

    Parameters
    ----------
    x : (n, m) samples
    mass : (n,) weights of the samples
    codes : (n,) classes; samples with -1 are left out
    n_classes : number of classes
    full : True for scatter matrices, False for their diagonals
    """
    member = (codes[:, None] == np.arange(n_classes)) * mass[:, None]
    sizes = member.sum(0)
    means = member.T @ x / np.where(sizes > 0, sizes, 1)[:, None]
    residuals = x - means[codes]
    if not full:
        return ClassMoments(sizes, means, member.T @ residuals**2)
    roots = np.sqrt(mass)[:, None] * residuals
    parts = [roots[codes == c] for c in range(n_classes)]
    return ClassMoments(sizes, means, np.stack([part.T @ part for part in parts]))


def _outer_squares(means: np.ndarray, ndim: int) -> np.ndarray:
    return means[:, :, None] * means[:, None, :] if ndim == 3 else means**2


def _combine(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Weighted sums (T, ...) over classes of ``values`` (c, ...), with ``weights`` (T, c)."""
    return (weights @ values.reshape(len(values), -1)).reshape(-1, *values.shape[1:])


def _scale(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
    return values * factors.reshape(-1, *[1] * (values.ndim - 1))
