"""Input of cross-entropy clustering: scaling, and cluster parameters in the original units.

Sizes: n rows, m columns, d columns that are not constant, k clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.data.validation import check_number
from nrprob.exceptions import warn
from nrprob.statistics.weighted import column_variances, row_mean

COVARIANCES = ("full", "diag", "spherical", "fixed")
_ALIKE = 1e-13  # a column of smaller relative range counts as constant
_COLLINEAR = 1e6  # columns are dropped while the condition number of correlations exceeds this
_ROUNDING = 1e-15  # relative eigenvalue that float64 does not distinguish from 0
_EXPLAINED = 1e-12  # smallest residual variance of a dropped column, relative to its variance
_SURE = 1e15  # largest condition number that float64 resolves


@dataclass(frozen=True)
class DroppedColumns:
    """Columns that the fit drops, and their regressions on the retained columns.

    A column is dropped if it is nearly a linear combination of the retained columns.

    Attributes
    ----------
    columns : (q,) indices of the q dropped columns
    coefficients : (q, d) coefficients of the regressions of the centred dropped columns on the
        scaled retained columns
    variances : (q,) residual variances of the regressions, the same for all clusters
    """

    columns: np.ndarray
    coefficients: np.ndarray
    variances: np.ndarray

    def log_densities(self, centred: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Log densities (n,) of the dropped columns of rows, given the retained columns.

        ``centred`` (n, m) are all centred columns, and ``x`` (n, d) the scaled retained columns.
        """
        if not self.columns.size:
            return np.zeros(len(x))
        residuals = centred[:, self.columns] - x @ self.coefficients.T
        squares = np.log(2 * math.pi * self.variances) + residuals**2 / self.variances
        return -0.5 * squares.sum(1)


@dataclass(frozen=True)
class Prepared:
    """Scaled rows, and the quantities that convert results to the original units.

    Columns have a variance of 1 for "full" and "diag", and a mean variance of 1 for "spherical".

    Attributes
    ----------
    x : (n, d) scaled rows, without dropped columns and without constant columns (which remain if
        the covariance is fixed)
    mass : (n,) weights of the rows
    columns : (d,) indices of the columns of ``x``
    centre : (m,) means of all columns
    root : (d,) divisors of the columns, or the lower triangular factor (d, d) of a fixed covariance
    ridge : (d,) diagonal that is added to the scatter of a cluster
    metric : (d,) inverse variances of the columns of ``x``
    n_parameters : number of parameters of a cluster, without its weight
    constant : part of the objective, in nats of all rows, that is the same for all partitions
    log_density : constant part of the log density of a row, for the original units of the columns
    nothing : reason why the rows have no cluster structure; "" if they may have one
    dropped : columns that are nearly linear combinations of the columns of ``x``
    """

    x: np.ndarray
    mass: np.ndarray
    columns: np.ndarray
    centre: np.ndarray
    root: np.ndarray
    ridge: np.ndarray
    metric: np.ndarray
    n_parameters: int
    constant: float
    log_density: float
    nothing: str
    dropped: DroppedColumns

    def dropped_log_densities(self, X: np.ndarray) -> np.ndarray:
        """Log densities (n,) of the dropped columns of rows X (n, m), given the other columns."""
        return self.dropped.log_densities(X - self.centre, self.transform(X))

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Centre and scale the retained columns of new rows X (n, m); the result is (n, d)."""
        return _divide_by_root(X[:, self.columns] - self.centre[self.columns], self.root)

    def cluster_covariances(
        self, labels: np.ndarray, means: np.ndarray, covariance: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Covariances of the clusters including the ridge, and factors of these covariances.

        Parameters
        ----------
        labels : (n,) clusters of the rows
        means : (k, d) means of the clusters
        covariance : covariance family

        Returns
        -------
        factors : lower triangular factors (k, d, d) for "full", else standard deviations (k, d)
        covariances : covariances (k, d, d) for "full", else variances (k, d)
        """
        k, d = means.shape
        sizes = np.bincount(labels, self.mass, minlength=k)
        residuals = np.sqrt(self.mass)[:, None] * (self.x - means[labels])
        if covariance == "full":
            scatter = np.stack(
                [residuals[labels == c].T @ residuals[labels == c] for c in range(k)]
            )
            spread = (scatter + np.diag(self.ridge)) / sizes[:, None, None]
            return np.linalg.cholesky(spread), spread
        squares = np.stack([(residuals[labels == c] ** 2).sum(0) for c in range(k)]) + self.ridge
        spread = squares / sizes[:, None]
        if covariance == "spherical":
            spread = np.tile(spread.mean(1, keepdims=True), d)
        if covariance == "fixed":
            spread = np.ones((k, d))
        return np.sqrt(spread), spread

    def original_means(self, means: np.ndarray) -> np.ndarray:
        """Convert means (k, d) of the scaled columns to means (k, m) in the original units."""
        out = np.tile(self.centre, (len(means), 1))
        out[:, self.columns] += means @ self.root.T if self.root.ndim == 2 else means * self.root
        out[:, self.dropped.columns] += means @ self.dropped.coefficients.T
        return out

    def original_covariances(self, spread: np.ndarray, covariance: str) -> np.ndarray:
        """Convert ``spread``, the covariances of `cluster_covariances`, to the original units.

        Constant columns have covariances of 0 for "full" and "diag". The result is one variance per
        cluster (k,) for "spherical", and the covariance matrix (m, m) of all clusters for "fixed".
        """
        if covariance == "fixed":
            return self.root @ self.root.T
        if covariance == "spherical":
            return spread[:, 0] * self.root[0] ** 2
        m = self.centre.size
        if covariance == "diag":
            out = np.zeros((len(spread), m))
            out[:, self.columns] = spread * self.root**2
            return out
        # Columns as linear functions of the scaled columns, with residuals if they were dropped.
        loadings, residuals = np.zeros((m, self.columns.size)), np.zeros(m)
        loadings[self.columns] = np.diag(self.root)
        loadings[self.dropped.columns] = self.dropped.coefficients
        residuals[self.dropped.columns] = self.dropped.variances
        return loadings @ spread @ loadings.T + np.diag(residuals)


def _divide_by_root(x: np.ndarray, root: np.ndarray) -> np.ndarray:
    return np.linalg.solve(root, x.T).T if root.ndim == 2 else x / root


def check_fixed(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a variance, an array of variances, or a covariance."""
    if np.ndim(value) == 0:
        check_number(name, value, low=1e-100, high=1e100)
        return
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.ndim > 2 or not np.isfinite(array).all():
        raise ValueError(
            f"{name} must be a number, variances or a covariance; got shape {array.shape}; pass "
            "finite numbers"
        )


def _fixed_root(value: Any, m: int) -> np.ndarray:
    """Lower triangular factor (m, m) of the covariance of m columns.

    ``value`` is a variance of all columns, an array of variances (m,), or a covariance (m, m).
    """
    array = np.asarray(value, float)
    if array.ndim < 2:
        array = np.diag(np.broadcast_to(array, m) if array.ndim == 0 else array)
    if array.shape != (m, m):
        raise ValueError(
            f"fixed_covariance must fit the {m} columns of X; got shape {np.shape(value)}; pass "
            f"a number, {m} variances, or a matrix of {m} rows"
        )
    try:
        if not np.allclose(array, array.T):
            raise np.linalg.LinAlgError
        return np.linalg.cholesky(array)
    except np.linalg.LinAlgError:
        raise ValueError(
            "fixed_covariance must be symmetric and positive definite; got a matrix that is not; "
            "pass another one"
        ) from None


def prepare_features(
    X: np.ndarray,
    covariance: str,
    fixed: Any,
    reg: float,
    n_clusters: int,
    weights: np.ndarray | None = None,
) -> Prepared:
    """Centre and scale rows; drop constant and collinear columns, with a warning.

    Parameters
    ----------
    X : (n, m) rows
    covariance : covariance family
    fixed : parameter ``fixed_covariance`` of `CECIB`
    reg : ridge of the scatters, as a multiple of the variances of the columns
    n_clusters : number of clusters; collinear columns are retained if it is 1
    weights : (n,) weights of the rows, by default 1

    Raises
    ------
    ValueError
        If there are too few rows for ``covariance="full"`` with ``reg=0``, or if ``fixed`` is not
        a covariance of the columns.
    """
    m = X.shape[1]
    mass = np.ones(len(X)) if weights is None else weights
    n = mass.sum()
    centre = row_mean(X, weights)
    width, size = np.ptp(X, axis=0), np.abs(X).max(0)
    varies = width > _ALIKE * size
    nothing = "" if varies.any() else "there is no structure left in X; all rows are alike"
    root: np.ndarray
    if covariance == "fixed":
        columns = np.arange(m)
        root = _fixed_root(fixed, m)
        log_root = float(np.log(np.diag(root)).sum())
    else:
        if nothing:
            varies[:] = True
        elif not varies.all():
            warn(
                f"column {int((~varies).argmax())} of X is constant; got {(~varies).sum()} such "
                "column(s), which the fit ignores; drop them"
            )
        columns = np.flatnonzero(varies)
        # Divide columns by their standard deviations, or all by one scale for spherical clusters.
        spread = np.sqrt(column_variances(X, weights))
        deviation = np.where(width > 0, spread, 1)[columns] if not nothing else np.ones(m)
        root = deviation
        if covariance == "spherical":
            root = np.full(columns.size, math.sqrt((deviation**2).mean()))
        log_root = float(np.log(root).sum())
    x = _divide_by_root(X[:, columns] - centre[columns], root)
    # Drop columns that the others explain. Without a ridge, such columns do not change the best
    # partition, and remain.
    independent = np.ones(columns.size, bool)
    if covariance == "full" and reg > 0 and n_clusters > 1 and not nothing:
        independent = _independent_columns(x, mass)
    explained, columns = columns[~independent], columns[independent]
    if not independent.all():
        x, root = x[:, independent], root[independent]
        log_root = float(np.log(root).sum())
        shown = ", ".join(map(str, explained[:5])) + (", ..." if explained.size > 5 else "")
        warn(
            f"column {shown} of X is nearly a linear combination of the others; got "
            f"{explained.size} such column(s), which the fit ignores; drop them, or set reg=0"
        )
    dropped = _regress_columns(X - centre, explained, x, mass)
    # Ridge, parameters per cluster, and the constant part of the Gaussian log density.
    d = columns.size
    variance = column_variances(x, weights)
    variance = np.where(variance > 0, variance, 1)
    ridge = np.zeros(d) if covariance == "fixed" else reg * variance
    if covariance == "full":
        _check_full_covariance(x, reg, bool(nothing), n_clusters)
    n_parameters = {
        "full": d + d * (d + 1) // 2, "diag": 2 * d, "spherical": d + 1, "fixed": d,
    }[covariance]  # fmt: skip
    common = 0.5 * d * math.log(2 * math.pi) + log_root
    constant = n * (common + 0.5 * d) - float(mass @ dropped.log_densities(X - centre, x))
    return Prepared(
        x, mass, columns, centre, root, ridge, 1 / variance, n_parameters, constant, -common,
        nothing, dropped,
    )  # fmt: skip


def _independent_columns(x: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Mask (d,) of the columns to retain, so that the retained columns are not collinear.

    ``x`` (n, d) are scaled rows, and ``mass`` (n,) their weights.
    While the condition number of the correlations exceeds 1e6, the column with the smallest
    residual variance given the other columns is dropped. If n <= d, all columns are retained.
    """
    n, d = x.shape
    independent = np.ones(d, bool)
    if n <= d:
        return independent
    z = np.sqrt(mass)[:, None] * x
    z = z / np.sqrt((z**2).sum(0))
    correlations = z.T @ z
    while independent.sum() > 1:
        rest = np.flatnonzero(independent)
        values, vectors = np.linalg.eigh(correlations[np.ix_(rest, rest)])
        if values[0] * _COLLINEAR >= values[-1]:
            break
        # Inverse residual variances are the diagonal of the inverse; of equal ones, take the last.
        inverse = (vectors**2 / np.maximum(values, _ROUNDING * values[-1])).sum(1)
        independent[rest[np.flatnonzero(inverse >= inverse.max() * (1 - 1e-6))[-1]]] = False
    return independent


def _regress_columns(
    centred: np.ndarray, columns: np.ndarray, x: np.ndarray, mass: np.ndarray
) -> DroppedColumns:
    """Regress q columns of ``centred`` (n, m) on the columns of ``x`` (n, d).

    ``columns`` (q,) are the indices of the regressed columns, and ``mass`` (n,) the weights of the
    rows. All columns have a mean of 0.
    """
    if not columns.size:
        return DroppedColumns(columns, np.zeros((0, x.shape[1])), np.zeros(0))
    targets, roots = centred[:, columns], np.sqrt(mass)[:, None]
    coefficients = np.linalg.lstsq(roots * x, roots * targets)[0].T
    shares = mass / mass.sum()
    residuals = shares @ (targets - x @ coefficients.T) ** 2
    floor = _EXPLAINED * (shares @ targets**2)
    return DroppedColumns(columns, coefficients, np.maximum(residuals, floor))


def _check_full_covariance(x: np.ndarray, reg: float, alike: bool, n_clusters: int) -> None:
    n, d = x.shape
    if reg == 0 and n <= d:
        raise ValueError(
            f"covariance='full' needs more rows than columns without reg; got {n} rows of {d} "
            "columns; set reg, or covariance='diag'"
        )
    if reg == 0 or alike or d < 2 or n_clusters == 1:
        return
    spread = np.linalg.eigvalsh(x.T @ x / n)
    if spread[0] * _COLLINEAR < spread[-1]:
        known = spread[0] * _SURE > spread[-1]
        condition = f"{spread[-1] / spread[0]:.2g}" if known else f"more than {_SURE:.0e}"
        warn(
            "columns of X are nearly collinear, and the ridge then favours few clusters; got a "
            f"condition number of {condition}; leave columns out, reduce X by PCA, or set reg=1e-6"
        )
