"""Validation of input views, and their conversion to centred, scaled and concatenated arrays.

Sizes: n rows, d features of a view, V views, p statistics of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.utils import check_array

from nrprob.data.annotated import is_annotated
from nrprob.data.frames import check_same_order
from nrprob.data.validation import MOST, check_number, check_rows
from nrprob.engines.optimise import solve
from nrprob.exceptions import short_repr
from nrprob.methods.mdl.configurations import Configuration
from nrprob.statistics.features import check_range
from nrprob.statistics.rows import Layout, Rows, bucket_size


@dataclass
class View:
    """Centring and scaling of the rows of one view.

    Attributes
    ----------
    mean : (d,) mean of the rows; 0 for views that are not centred
    scale : square root of the total variance, which is the sum of the variances of the features; 1
        for views that are not scaled
    """

    mean: np.ndarray
    scale: float

    @classmethod
    def from_rows(cls, x: np.ndarray, name: str) -> View:
        """Compute the mean and the scale of the rows x (n, d) of a view.

        ``name`` is the name of the view in the message.

        Raises
        ------
        ValueError
            If all rows are equal.
        """
        check_range(x)
        mean = x.mean(0, dtype=np.float64)
        scale = math.sqrt(float(((x - mean) ** 2).sum() / len(x)))
        if not scale > 1e-150 + 1e-14 * float(np.abs(mean).max()):
            raise ValueError(
                f"{name} has no variance; got n_samples={len(x)} equal rows; leave the view out"
            )
        return cls(mean, scale)

    @classmethod
    def from_counts(cls, x: np.ndarray, features: str, name: str) -> View:
        """Check binary features or counts x (n, d); return a view without centring and scaling.

        ``features`` is "bernoulli" for binary features, or "multinomial" for counts. ``name`` is
        the name of the view in the message.

        Raises
        ------
        ValueError
            If ``features`` is "bernoulli" and ``x`` is not binary, or if ``features`` is
            "multinomial" and ``x`` has negative or fractional values.
        """
        if features == "bernoulli" and not np.isin(x, (0, 1)).all():
            raise ValueError(
                f"features='bernoulli' needs 0 or 1; got other values in {name}; binarise the "
                "features, or use features='gaussian'"
            )
        if features == "multinomial" and ((x < 0) | (x != np.round(x))).any():
            raise ValueError(
                f"features='multinomial' needs counts; got negative values or fractions in "
                f"{name}; use features='gaussian'"
            )
        return cls(np.zeros(x.shape[1]), 1.0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Centre and scale the rows x (n, d) of the view."""
        return (x - self.mean.astype(x.dtype)) / x.dtype.type(self.scale)


def is_view_list(X: Any) -> bool:
    """Whether ``X`` is a list of tables, rather than one table in the form of a list of rows."""
    if not isinstance(X, list | tuple) or not X:
        return False
    return is_annotated(X[0]) or np.ndim(X[0]) == 2


def check_tables(X: Sequence[Any], estimator: Any) -> list[np.ndarray]:
    """Check a list of tables, one per view; return arrays (n, d) of one dtype, one per view.

    Messages contain the name of the ``estimator``.
    """
    for v, x in enumerate(X[1:], 1):
        check_same_order(X[0], **{f"X[{v}]": x})
    dtypes = {np.dtype(getattr(x, "dtype", float)) for x in X}
    dtype = np.float32 if dtypes == {np.dtype(np.float32)} else np.float64
    result = [
        check_rows(x, check_array, dtype=dtype, input_name=f"view {v}", estimator=estimator)
        for v, x in enumerate(X)
    ]
    rows = [x.shape[0] for x in result]
    if len(set(rows)) > 1:
        raise ValueError(
            f"views have different numbers of rows; got {rows}; pass the same rows in each"
        )
    return result


def cut_views(x: np.ndarray, views: Any) -> list[np.ndarray]:
    """Split the m columns of a table x (n, m) into views, arrays (n, d).

    ``views`` has the number of columns d of every view.
    """
    if np.ndim(views) != 1 or len(views) == 0:
        raise ValueError(
            f"views must be numbers of columns; got {short_repr(views)}; pass one number per view"
        )
    for size in views:
        check_number("views", size, low=1, high=MOST, integer=True)
    sizes = tuple(int(size) for size in views)
    if sum(sizes) != x.shape[1]:
        raise ValueError(
            f"views must add up to the columns of X; got {sizes} for {x.shape[1]} columns; "
            "correct them"
        )
    return np.split(x, np.cumsum(sizes)[:-1], axis=1)


def view_statistics(scaled: list[np.ndarray]) -> np.ndarray:
    """Statistics (n, p - 1) of n rows, from the centred and ``scaled`` rows (n, d) of every view.

    The statistics of a row are its features in all views, zero padding, and its squared norm in
    every view. `nrprob.statistics.rows.make_rows` adds the last statistic, which is 1.
    """
    n, n_views = scaled[0].shape[0], len(scaled)
    width = sum(x.shape[1] for x in scaled)
    size = bucket_size(width + n_views + 1, 1024 if n <= 16384 else 1) - 1
    x = np.zeros((n, size), scaled[0].dtype)
    x[:, :width] = np.concatenate(scaled, 1)
    x[:, -n_views:] = np.stack([(view * view).sum(1) for view in scaled], 1)
    return x


def feature_columns(view_sizes: Sequence[int], n_statistics: int, dtype: Any) -> np.ndarray:
    """Indicators (V, p) of the features of V views among the p statistics of `view_statistics`.

    An indicator is 1 if a statistic is a feature of the view, and 0 if not. ``view_sizes`` are the
    numbers of features of the views, and ``n_statistics`` is p.
    """
    view = np.repeat(np.arange(len(view_sizes)), view_sizes)
    result = np.zeros((len(view_sizes), n_statistics), dtype)
    result[view, np.arange(view.size)] = 1
    return result


@dataclass
class Views:
    """Input of the annealed restarts of a multi-view clustering.

    Attributes
    ----------
    n : number of rows
    rows : statistics of the rows, in blocks
    layout : position of every row in the blocks
    configurations : numbers of clusters and codings of the labels that the restarts use
    calls : calls of the compiled solver
    n_iter : number of steps of all parallel restarts; 0 before the restarts have run
    """

    n: int
    rows: Rows
    layout: Layout
    configurations: list[Configuration] = field(default_factory=list)
    calls: list[solve.SolverCall] = field(default_factory=list)
    n_iter: int = 0
