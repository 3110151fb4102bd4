"""Validate features and convert them to statistics, for `nrprob.statistics.families`.

Shapes: n samples of m features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse

from nrprob.data.feature_types import values_of
from nrprob.data.validation import LARGEST
from nrprob.exceptions import warn

ALIKE = "there is no structure in X; all rows are alike"


def check_unit_interval(x: Any) -> Any:
    """Return ``x``; raise ValueError unless all values are in [0, 1]."""
    raise_where(
        x,
        lambda v: (v < 0) | (v > 1),
        "features='bernoulli' needs values in [0, 1]",
        "set binarize=, or another features=",
    )
    return x


def standardise(x: Any, centre: np.ndarray | None, scale: float) -> Any:
    """Subtract ``centre`` (m,) from samples ``x`` (n, m), and divide the result by ``scale``."""
    exponent = binary_exponent(scale)
    unit = math.ldexp(1.0, exponent)
    x = scale_by_power_of_two(x, -exponent)
    if centre is not None:
        # A sparse matrix minus an array is a numpy.matrix, whose * is the matrix product.
        x = x.toarray() if sparse.issparse(x) else x
        x = x - (centre / unit).astype(x.dtype)
    return (x * (unit / scale)).astype(x.dtype)


def fit_centre_and_scale(
    x: Any, weights: np.ndarray | None = None
) -> tuple[np.ndarray | None, float]:
    """Return the mean (m,) of samples (n, m), and the root of the mean variance of the features.

    ``weights`` (n,) are weights of the samples. The mean of sparse samples is None.
    """
    if sparse.issparse(x):
        # No centring: it would make the matrix dense, and does not change distances.
        wide = x.astype(np.float64)
        shares = np.full(x.shape[0], 1 / x.shape[0]) if weights is None else weights / weights.sum()
        mean = shares @ wide
        variance = float((shares @ wide.multiply(wide) - mean**2).mean())
        return None, _positive_root(variance)
    wide = jnp.asarray(x, jnp.float64) if isinstance(x, jax.Array) else x.astype(np.float64)
    if weights is None:
        centre = np.asarray(wide.mean(0))
        return centre, _positive_root(float(((wide - centre) ** 2).mean()))
    shares = weights / weights.sum()
    centre = np.asarray(shares @ wide)
    return centre, _positive_root(float((shares @ (wide - centre) ** 2).mean()))


def check_range(x: Any) -> None:
    """Check that squares of features, and of their differences, are in the range of float64.

    Float32 features are not checked.

    Raises
    ------
    ValueError
        If an absolute value exceeds 1e140, or if the range of every column is below 1e-140 and not
        all columns are constant.
    """
    if x.dtype == np.float32 or not values_of(x).size:
        return
    most = largest_magnitude(x)
    if most > LARGEST:
        raise ValueError(
            f"X must lie between {-LARGEST} and {LARGEST}, or squares overflow float64; got a "
            f"value of size {most:.3g}; multiply X by a power of ten"
        )
    # The exact range of sparse features would need a copy of X, so their magnitude is used.
    width = most if sparse.issparse(x) else float((x.max(axis=0) - x.min(axis=0)).max())
    if 0 < width < 1 / LARGEST:
        raise ValueError(
            f"columns of X must vary by at least {1 / LARGEST}, or squares underflow float64; got "
            f"at most {width:.3g}; multiply X by a power of ten"
        )


@dataclass(frozen=True)
class StandardisedRows:
    """Samples with mean 0 and total variance (summed over features) 1, in float64.

    Attributes
    ----------
    x : (n, m) standardised samples; ``x * scale + centre`` are the samples of the user
    centre : (m,) mean of the user's samples
    scale : square root of the total variance of the user's samples
    dtype : dtype of the user's samples, which compiled programs use
    """

    x: np.ndarray
    centre: np.ndarray
    scale: float
    dtype: Any

    @classmethod
    def from_rows(cls, X: np.ndarray) -> StandardisedRows:
        """Standardise samples ``X`` (n, m); the scale is 1 if all samples are equal."""
        x = X.astype(np.float64)
        centre = x.mean(0)
        x -= centre
        scale = math.sqrt((x**2).sum() / len(x))
        if bool((X == X[:1]).all()) or scale == 0:
            x, scale = np.zeros_like(x), 1.0
        return cls(x / scale, centre, scale, X.dtype)

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Standardise new samples (n, m) by the fitted centre and scale."""
        return (X.astype(np.float64) - self.centre) / self.scale

    def without_rows(self) -> StandardisedRows:
        """Return a copy without the fitted samples."""
        return replace(self, x=self.x[:0])

    @property
    def all_equal(self) -> bool:
        """Whether all fitted samples are equal."""
        return not self.x.any()


def largest_magnitude(x: Any) -> float:
    """Largest absolute value of an array; 0 for an empty array."""
    values = values_of(x)
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def binary_exponent(scale: float) -> int:
    """Exponent of the power of two near ``scale``; 0 instead of exponents from -60 to 60.

    Squares of scales with such exponents are in the range of float32.
    """
    exponent = math.frexp(scale)[1]
    return exponent if abs(exponent) > 60 else 0


def scale_by_power_of_two(x: Any, exponent: int) -> Any:
    """Multiply ``x`` by 2 to the power ``exponent``, in two steps to avoid overflow."""
    if exponent == 0:
        return x
    half = exponent // 2
    return x * math.ldexp(1.0, half) * math.ldexp(1.0, exponent - half)


def _positive_root(variance: float) -> float:
    return float(np.sqrt(variance)) if variance > 0 else 1.0


def binarise(x: Any, threshold: float) -> Any:
    """Replace values above ``threshold`` by 1, and all other values by 0."""
    if not sparse.issparse(x):
        return (x > threshold).astype(x.dtype)
    if threshold < 0:
        raise ValueError(
            "binarize must be at least 0 for sparse X, or every absent entry would become 1; "
            f"got {threshold}; pass a dense array"
        )
    x = x.copy()
    x.data = (x.data > threshold).astype(x.dtype)
    x.eliminate_zeros()
    return x


def warn_of_empty_rows(total: np.ndarray) -> np.ndarray:
    """Warn of rows of counts with the sum 0; return their indices.

    ``total`` (n, 1) are the sums of the rows.
    """
    empty = np.flatnonzero(total == 0)
    if empty.size:
        warn(
            f"row {empty[0]} has no counts; got {empty.size} such row(s), which are assigned to "
            "the largest cluster; drop them, or set another features="
        )
    return empty


def to_proportions(x: Any) -> Any:
    """Divide every sample by the sum of its features; warn if some samples have the sum 0."""
    raise_where(
        x,
        lambda v: v < 0,
        "features='multinomial' needs non-negative values",
        "pass counts or proportions, or set features='gaussian'",
    )
    values = values_of(x)
    if values.size:
        x = scale_by_power_of_two(x, -binary_exponent(float(values.max())))
    total = np.array(x.sum(1), x.dtype).reshape(-1, 1)
    total[warn_of_empty_rows(total)] = 1
    if sparse.issparse(x):
        return sparse.csr_array(x.multiply(1 / total))
    return x / total


def raise_where(x: Any, wrong: Any, what: str, advice: str) -> None:
    """Raise ValueError if a value is wrong; ``wrong`` maps an array to the mask of wrong values.

    The message states the requirement ``what``, the first wrong value, its position and the
    ``advice``.
    """
    bad = wrong(values_of(x))
    if not bad.any():
        return
    if sparse.issparse(x):
        coo = x.tocoo()
        entry = int(np.flatnonzero(wrong(coo.data))[0])
        row, column, value = coo.row[entry], coo.col[entry], coo.data[entry]
    else:
        row, column = (int(v) for v in np.argwhere(np.asarray(bad))[0])
        value = x[row, column]
    what = f"Negative values in data: {what}" if value < 0 else what
    raise ValueError(f"{what}; found {float(value):g} at row {row}, column {column}; {advice}")
