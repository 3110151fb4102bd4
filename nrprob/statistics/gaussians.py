"""Second moments: Gaussian costs of cells, and their differences when a row moves.

Statistics of a row are its m features, products of two of them (`second_moments`), columns of other
costs, and its mass. Products of many rows take far more memory than the rows: `MomentRows` computes
them block by block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from nrprob.statistics.matrices import inverse_and_log_det, log_determinant
from nrprob.trees import node

_PRECISION = jax.lax.Precision.HIGHEST
_STATIC: dict[str, Any] = {"static": True}
_EMPTY = 1e-14  # mass below which a cell is empty
_SINGULAR = 1e-10  # part of a determinant that a row must leave behind
_FLAT = 1e-12  # variance below which a cell is flat, if no ridge says otherwise
_FACTORS = 8  # of a product of which one logarithm is taken
_ROUNDS = 100  # of `common_shape`, at most


def moment_positions(m: int) -> np.ndarray:
    """Places (m, m) of the products of two features among the second moments."""
    at = np.zeros((m, m), int)
    upper = np.triu_indices(m)
    at[upper] = np.arange(len(upper[0]))
    return np.maximum(at, at.T)


def needs_products(covariance: str) -> bool:
    """Whether a kind of covariance asks for the products of all two features."""
    return covariance in ("full", "VEE")


def second_moments(x: Any, covariance: str) -> Any:
    """Products of features (..., m) that a kind of covariance asks for.

    All of two features (the upper triangle, by rows) for "full" and "VEE", squares for "diag", and
    their sum for "spherical" and "fixed".
    """
    if needs_products(covariance):
        first, second = np.triu_indices(x.shape[-1])
        return x[..., first] * x[..., second]
    if covariance == "diag":
        return x * x
    return (x * x).sum(-1, keepdims=True)


def log_normals(x: np.ndarray, means: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """Log densities (n, k) of rows (n, m) under normals, but for m/2 log 2 pi; in NumPy.

    ``roots`` are lower triangular factors of covariances (k, m, m), or standard deviations (k, m).
    """
    out = np.empty((len(x), len(means)))
    for c, (mean, root) in enumerate(zip(means, roots, strict=True)):
        away = (x - mean).T
        if root.ndim == 2:
            white, root = solve_triangular(root, away, lower=True), np.diagonal(root)
        else:
            white = away / root[:, None]
        out[:, c] = -np.log(root).sum() - 0.5 * (white**2).sum(0)
    return out


@node
class MomentRows:
    """Rows as the columns that their statistics are made of, ``x`` (blocks, rows, columns).

    The first ``n_features`` columns are features; the others are statistics as they are.
    """

    x: jax.Array
    n_features: int = field(metadata=_STATIC)
    covariance: str = field(metadata=_STATIC)

    @property
    def n_statistics(self) -> int:
        """Number of statistics of a row, its mass included."""
        return jax.eval_shape(self._expand_moments, self.x[0, 0]).shape[-1]

    def _expand_moments(self, x: jax.Array) -> jax.Array:
        m = self.n_features
        features = x[..., :m]
        return jnp.concatenate(
            [features, second_moments(features, self.covariance), x[..., m:]], -1
        )

    def cells(self, w: jax.Array, group: jax.Array, n_groups: int) -> jax.Array:
        """Sum the statistics over cells; see `nrprob.statistics.rows.Dense.cells`."""
        b, r, s, k = w.shape

        def add(total, block):
            x, w, g = block
            part = jnp.matmul(w.T, self._expand_moments(x), precision=_PRECISION)
            return total.at[g].add(part), None

        total = jnp.zeros((n_groups, s * k, self.n_statistics), w.dtype)
        total, _ = jax.lax.scan(add, total, (self.x, w.reshape(b, r, s * k), jnp.asarray(group)))
        return total.reshape(n_groups, s, k, -1)

    def adjoint(self, g: jax.Array, group: jax.Array) -> jax.Array:
        """Transpose of `cells`; see `nrprob.statistics.rows.Dense.adjoint`."""
        n_groups, s, k, p = g.shape
        g = g.reshape(n_groups, s * k, p)

        def one(block):
            x, own = block
            return jnp.matmul(self._expand_moments(x), g[own].T, precision=_PRECISION)

        out = jax.lax.map(one, (self.x, jnp.asarray(group)))
        return out.reshape(*self.x.shape[:2], s, k)


class CentredCells(NamedTuple):
    """Cells (...) as masses, means (..., m), and scatters about them as their covariance has them.

    Whole (..., m, m) for "full" and "VEE", the diagonal (..., m) for "diag", else the trace (...).
    Empty cells have the mean 0 and no scatter.
    """

    mass: jax.Array
    mean: jax.Array
    scatter: jax.Array


def centre_cells(cell: jax.Array, m: int, covariance: str) -> CentredCells:
    """Masses, means and scatters of statistics (..., p) of ``m`` features."""
    mass = cell[..., -1]
    full = mass > _EMPTY
    mean = jnp.where(full[..., None], cell[..., :m] / jnp.where(full, mass, 1)[..., None], 0)
    if needs_products(covariance):
        second = cell[..., m + moment_positions(m)]
        spread = second - mass[..., None, None] * mean[..., :, None] * mean[..., None, :]
        return CentredCells(mass, mean, jnp.where(full[..., None, None], spread, 0))
    if covariance == "diag":
        spread = jnp.maximum(cell[..., m : 2 * m] - mass[..., None] * mean**2, 0)
        return CentredCells(mass, mean, jnp.where(full[..., None], spread, 0))
    spread = jnp.maximum(cell[..., m] - mass * (mean**2).sum(-1), 0)
    return CentredCells(mass, mean, jnp.where(full, spread, 0))


def common_shape(mass: Any, spread: Any, reg: float) -> Any:
    r"""Shape and orientation of the likeliest covariances that share them.

    Covariances S_c of masses N_c become lambda_c C, where C (of any scale) minimises
    ``sum_c N_c (d log lambda_c + log |C|)``, in rounds of which none raises it,

    .. math:: C = \sum_c \frac{N_c}{\lambda_c} S_c / \sum_c N_c, \qquad
        \lambda_c = \frac 1 d \operatorname{tr}(S_c C^{-1})

    That is Celeux and Govaert (1995), model [lambda_k D A D']. The logarithm of a trace is convex
    along the geodesics of positive matrices, so there is but one minimum.

    Parameters
    ----------
    mass : (..., K)
    spread : (..., K, m, m), with ``reg`` on the diagonal

    Returns
    -------
    C (..., m, m), a NumPy array of such
    """
    xp: Any = jnp if isinstance(spread, jax.Array) else np
    share = mass / mass.sum(-1, keepdims=True)
    settled = float(jnp.finfo(spread.dtype).eps) ** 0.5

    def shape_of(volume):
        return ((share / volume)[..., None, None] * spread).sum(-3)

    def move(state):
        volume, _, count = state
        new = cluster_volumes(spread, shape_of(volume), reg)
        return new, abs(xp.log(new / volume)).max(), count + 1

    def moving(state):
        return (state[1] > settled) & (state[2] < _ROUNDS)

    loop: Any = jax.lax.while_loop if xp is jnp else _while_loop
    start = xp.ones_like(share), xp.asarray(xp.inf, spread.dtype), 0
    return shape_of(loop(moving, move, start)[0])


def cluster_volumes(spread: Any, shape: Any, reg: float) -> Any:
    """Volumes (..., K) of covariances (..., K, m, m) that contain ``reg``; see `common_shape`."""
    xp: Any = jnp if isinstance(spread, jax.Array) else np
    precision = inverse_and_log_det(shape)[0] if xp is jnp else np.linalg.inv(shape)
    # No rounding leaves less than the ridge alone.
    least = reg * xp.trace(precision, axis1=-2, axis2=-1)[..., None] + _FLAT**2
    return xp.maximum((spread * precision[..., None, :, :]).sum((-2, -1)), least) / spread.shape[-1]


def _while_loop(moving: Any, move: Any, state: Any) -> Any:
    while moving(state):
        state = move(state)
    return state


@dataclass(frozen=True)
class GaussianCost:
    """Cell cost: ``-log`` likelihood of the cell's rows under their own mean and covariance.

    ``reg`` times the identity is added to the covariance; the cost then includes half the mass
    times ``reg`` times the trace of the precision, so that mean and regularised covariance minimise
    it and every update of EM lowers it.

    For "VEE", the cells along the last axis but one of the statistics share a shape, and what a
    cell costs depends on the others. The derivative is that at the shape as it is: the sum over the
    cells has no other, since the shape minimises it.
    """

    covariance: str
    n_features: int
    reg: float

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p)."""
        m = self.n_features
        w, _, scatter = centre_cells(cell, m, self.covariance)
        full = w > _EMPTY
        safe = jnp.where(full, w, 1)
        if needs_products(self.covariance):
            # An empty cell gets the identity, whose logarithm has a derivative.
            one = jnp.eye(m, dtype=cell.dtype)
            spread = jnp.where(full[..., None, None], scatter / safe[..., None, None], one)
            spread = spread + self.reg * one
            if self.covariance == "full":
                log_det = log_determinant(spread)
            else:
                some = jnp.where(full.any(-1, keepdims=True), w, 1)
                held, fixed = jax.lax.stop_gradient((some, spread))
                shape = common_shape(held, fixed, self.reg)
                log_det = m * jnp.log(cluster_volumes(spread, shape, self.reg))
                log_det = log_det + log_determinant(shape)[..., None]
        elif self.covariance == "diag":
            variance = jnp.where(full[..., None], scatter / safe[..., None], 1)
            log_det = jnp.log(variance + self.reg).sum(-1)
        else:
            log_det = m * jnp.log(jnp.where(full, scatter / safe / m, 1) + self.reg)
        return jnp.where(full, 0.5 * w * (log_det + m * (1 + math.log(2 * math.pi))), 0)


class TrackedCells(NamedTuple):
    """Cells (K,) of a `CrossEntropyCost`, kept up as rows move.

    Attributes
    ----------
    mass : (K,)
    mean : (K, m)
    spread : inverse of the scatter (K, m, m) for "full", the scatter (K, m) for "diag", its trace
        (K,) else; all with their ridge
    log_det : (K,) log determinant of the scatter with its ridge; 0 for "fixed"
    """

    mass: jax.Array
    mean: jax.Array
    spread: jax.Array
    log_det: jax.Array


@node
class CrossEntropyCost:
    r"""Cell cost: least cross-entropy of the cell's rows with a normal distribution of a family.

    For N rows of scatter W in D dimensions, in nats and without N D/2 log(2 pi e),

    .. math:: \frac N2 \left(\log |W + R| - D \log N\right)

    for all covariances; ``sum log(w_l + r_l)`` is the determinant of diagonal ones,
    ``D log(tr(W + R) / D)`` that of spherical ones. For a given covariance, by which rows have been
    whitened, it is (tr W - N D) / 2. The ridge R is added once to a cell's scatter, not to its
    covariance: then what one row changes has a closed form, and the cost is the least of
    ``N/2 log |S| + tr(S^-1 (W + R)) / 2`` over covariances S, less a constant.

    Rows have mass 1. Where a row has to stay lest a scatter become singular, its leaving costs
    infinity.

    Attributes
    ----------
    ridge : (m,) diagonal of R; 1 in columns that are all 0 and only fill up the shape
    dimension : D, the number of the other columns
    covariance : "full", "diag", "spherical" or "fixed"
    """

    ridge: jax.Array
    dimension: jax.Array
    covariance: str = field(metadata=_STATIC)

    @property
    def n_features(self) -> int:
        """Number m of features, with those that only fill up the shape."""
        return self.ridge.shape[-1]

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p); NaN of flat cells without a ridge."""
        w, _, scatter = centre_cells(cell, self.n_features, self.covariance)
        full = w > _EMPTY
        return jnp.where(full, self._cost_of_log_det(w, self._log_det(w, scatter, full)), 0)

    def _log_det(self, w: jax.Array, scatter: jax.Array, full: jax.Array) -> jax.Array:
        """Log determinant; of a fixed covariance, the trace instead."""
        if self.covariance == "full":
            spread = self._add_ridge(scatter, full)
            _, log_det, pivots = inverse_and_log_det(spread)
            # Of columns that others explain elimination leaves rounding.
            rounding = 4 * jnp.finfo(spread.dtype).eps * jnp.diagonal(spread, axis1=-2, axis2=-1)
            flat = (pivots <= jnp.maximum(_FLAT * w[..., None], rounding)).any(-1)
            return jnp.where(jax.lax.stop_gradient(flat) & full, jnp.nan, log_det)
        if self.covariance == "diag":
            spread = jnp.where(full[..., None], scatter + self.ridge, 1)
            flat = jax.lax.stop_gradient((spread <= _FLAT * w[..., None]).any(-1))
            return jnp.where(flat & full, jnp.nan, jnp.log(spread).sum(-1))
        if self.covariance == "spherical":
            d = self.dimension
            trace = jnp.where(full, scatter + self._ridge_trace(), 1)
            flat = jax.lax.stop_gradient(trace <= _FLAT * w)
            return jnp.where(flat & full, jnp.nan, d * (jnp.log(trace) - jnp.log(d)))
        return scatter

    def _add_ridge(self, scatter: jax.Array, full: jax.Array) -> jax.Array:
        """Scatters (..., m, m) with their ridge."""
        ridge = jnp.where(full[..., None], self.ridge, 1)
        return scatter + ridge[..., None] * jnp.eye(self.n_features, dtype=scatter.dtype)

    def _ridge_trace(self) -> jax.Array:
        """Trace of R, without the columns that fill up."""
        return self.ridge.sum() - (self.n_features - self.dimension)

    def _cost_of_log_det(self, w: jax.Array, log_det: jax.Array) -> jax.Array:
        d = self.dimension
        if self.covariance == "fixed":
            return 0.5 * (log_det - w * d)
        return 0.5 * w * (log_det - d * jnp.log(jnp.maximum(w, 1e-300)))

    # Single rows

    def track_cells(self, cells: jax.Array) -> TrackedCells:
        """State of cells (K, p)."""
        w, mean, scatter = centre_cells(cells, self.n_features, self.covariance)
        full = w > _EMPTY
        log_det = self._log_det(w, scatter, full)
        if self.covariance == "full":
            scatter = inverse_and_log_det(self._add_ridge(scatter, full))[0]
        elif self.covariance == "diag":
            scatter = jnp.where(full[:, None], scatter + self.ridge, 1)
        elif self.covariance == "spherical":
            scatter = jnp.where(full, scatter + self._ridge_trace(), 1)
        return TrackedCells(w, mean, scatter, log_det)

    def move_changes(
        self, state: TrackedCells, row: jax.Array, label: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What rows (b, columns) add by joining cells (b, K), and by leaving their own (b,)."""
        x = row[:, : self.n_features]
        n = state.mass
        more = n / (n + 1)
        alone = n <= 1
        less = jnp.where(alone, 0, n / jnp.where(alone, 1, n - 1))
        away = x[:, None] - state.mean
        if self.covariance == "full":
            q = (away * jnp.einsum("bkl,klm->bkm", away, state.spread)).sum(-1)
            q = jnp.maximum(q, 0)
            grown = jnp.log1p(more * q)
            left = 1 - (less * q)[jnp.arange(len(x)), label]
        elif self.covariance == "diag":
            ratio = away**2 / state.spread
            grown = _log_product(1 + more[:, None] * ratio)
            own = 1 - less[label][:, None] * ratio[jnp.arange(len(x)), label]
            left = jnp.where((own > _SINGULAR).all(-1), own.prod(-1), 0)
        else:
            square = (away**2).sum(-1)
            own = (less * square)[jnp.arange(len(x)), label]
            if self.covariance == "fixed":
                # Of the trace itself, no logarithm.
                grown, shrunk = more * square, -own
                join = self._cost_of_log_det(n + 1, grown) - self._cost_of_log_det(n, 0 * grown)
                leave = self._cost_of_log_det(n[label] - 1, shrunk) - self._cost_of_log_det(
                    n[label], 0 * shrunk
                )
                return join, leave
            grown = self.dimension * jnp.log1p(more * square / state.spread)
            left = 1 - own / state.spread[label]
        ok = left > _SINGULAR
        shrunk = jnp.log(jnp.where(ok, left, 1))
        if self.covariance == "spherical":
            shrunk = self.dimension * shrunk
        join = self._cost_of_log_det(n + 1, state.log_det + grown) - self._cost_of_log_det(
            n, state.log_det
        )
        own = state.mass[label], state.log_det[label]
        leave = self._cost_of_log_det(own[0] - 1, own[1] + shrunk) - self._cost_of_log_det(*own)
        # The last row leaves nothing.
        leave = jnp.where(own[0] > 1, leave, -self._cost_of_log_det(*own))
        return join, jnp.where(ok | (own[0] <= 1), leave, jnp.inf)

    def apply_move(
        self, state: TrackedCells, row: jax.Array, old: jax.Array, new: jax.Array
    ) -> TrackedCells:
        """State after a row (columns,) went from one cell to another one."""
        left = self._shift_cell(state, row[: self.n_features], old, -1.0)
        return self._shift_cell(left, row[: self.n_features], new, 1.0)

    def _shift_cell(
        self, state: TrackedCells, x: jax.Array, at: jax.Array, sign: float
    ) -> TrackedCells:
        n = state.mass[at]
        after = n + sign
        away = x - state.mean[at]
        step = sign * n / jnp.maximum(after, 1)  # of the scatter, in squares of the distance
        mean = state.mean.at[at].add(sign * away / jnp.maximum(after, 1))
        log_det, spread = state.log_det, state.spread
        if self.covariance == "full":
            v = spread[at] @ away
            factor = 1 + step * (away @ v)
            spread = spread.at[at].add(-(step / factor) * v[:, None] * v)
            log_det = log_det.at[at].add(jnp.log(factor))
        elif self.covariance == "diag":
            grown = spread[at] + step * away**2
            log_det = log_det.at[at].add(jnp.log(grown / spread[at]).sum())
            spread = spread.at[at].set(grown)
        elif self.covariance == "spherical":
            grown = spread[at] + step * (away**2).sum()
            log_det = log_det.at[at].add(self.dimension * jnp.log(grown / spread[at]))
            spread = spread.at[at].set(grown)
        return TrackedCells(state.mass.at[at].add(sign), mean, spread, log_det)


def _log_product(factors: jax.Array) -> jax.Array:
    """Sum of logarithms over the last axis, one of a product for every eight."""
    total = jnp.zeros(factors.shape[:-1], factors.dtype)
    for i in range(0, factors.shape[-1], _FACTORS):
        total = total + jnp.log(factors[..., i : i + _FACTORS].prod(-1))
    return total
