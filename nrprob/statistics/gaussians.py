r"""Gaussian cell costs from first and second moments, and their changes when a sample moves.

The statistics of a sample are its m features, products of two features (`second_moments`),
statistics that only other costs read, and its mass. For a cell of mass N, with sums over its
samples x, the mean and the scatter are

.. math:: \mu = \frac 1N \sum_x x, \qquad W = \sum_x x x' - N \mu \mu'.

The cost is :math:`\frac N2 \log |W/N|` up to constants, with W/N restricted to a family of
covariances. The products of many samples take far more memory than the samples: `MomentRows`
computes them block by block.

With the covariance types "full", "diag" and "spherical", every cell has a separate covariance. With
"VEE", all cells have one shape and orientation, and every cell has a separate volume. With "fixed",
all cells have a given covariance, by which the samples are whitened.

Shapes: m features, p statistics of a sample, K cells, b samples; ``columns`` columns of the array
that stores the samples: features, then statistics that other costs read.

References
----------
G. Celeux and G. Govaert (1995), "Gaussian parsimonious clustering models", Pattern Recognition
28(5), doi:10.1016/0031-3203(94)00125-6.
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
from nrprob.statistics.sums import sum_of_logs
from nrprob.trees import node

_PRECISION = jax.lax.Precision.HIGHEST
_STATIC: dict[str, Any] = {"static": True}
_EMPTY = 1e-14  # a cell with a smaller mass is empty
_SINGULAR = 1e-10  # smallest share of a determinant that must remain when a sample leaves
_FLAT = 1e-12  # a cell with a smaller variance, ridge included, is degenerate
_MAX_ROUNDS = 100  # largest number of iterations of `common_shape`


def moment_positions(m: int) -> np.ndarray:
    """Positions (m, m) of the products of features i and j among the second moments."""
    position = np.zeros((m, m), int)
    upper = np.triu_indices(m)
    position[upper] = np.arange(len(upper[0]))
    return np.maximum(position, position.T)


def needs_products(covariance: str) -> bool:
    """Return whether a covariance type needs the products of all pairs of features."""
    return covariance in ("full", "VEE")


def second_moments(x: Any, covariance: str) -> Any:
    """Products of features that a covariance type needs, from samples ``x`` (..., m).

    "full" and "VEE" need all products of two features (upper triangle, row by row). "diag" needs
    the squares. "spherical" and "fixed" need the sum of squares.
    """
    if needs_products(covariance):
        first, second = np.triu_indices(x.shape[-1])
        return x[..., first] * x[..., second]
    if covariance == "diag":
        return x * x
    return (x * x).sum(-1, keepdims=True)


def log_normals(x: np.ndarray, means: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """Log densities (n, k) of n samples under k Gaussians, without the constant -m/2 log(2 pi).

    ``x`` (n, m) are the samples and ``means`` (k, m) the means. ``roots`` are Cholesky factors
    (k, m, m) of the covariances, or standard deviations (k, m).
    """
    out = np.empty((len(x), len(means)))
    for c, (mean, root) in enumerate(zip(means, roots, strict=True)):
        deviation = (x - mean).T
        if root.ndim == 2:
            white, root = solve_triangular(root, deviation, lower=True), np.diagonal(root)
        else:
            white = deviation / root[:, None]
        out[:, c] = -np.log(root).sum() - 0.5 * (white**2).sum(0)
    return out


@node
class MomentRows:
    """Samples in blocks; their statistics are computed block by block when they are summed.

    ``x`` (blocks, samples, columns) are the samples. The first ``n_features`` columns are features;
    the other columns are statistics themselves. ``covariance`` is a covariance type, which
    determines the statistics; see `second_moments`.
    """

    x: jax.Array
    n_features: int = field(metadata=_STATIC)
    covariance: str = field(metadata=_STATIC)

    @property
    def n_statistics(self) -> int:
        """Number of statistics of a sample, including its mass."""
        return jax.eval_shape(self._expand_moments, self.x[0, 0]).shape[-1]

    def _expand_moments(self, x: jax.Array) -> jax.Array:
        """Compute the statistics (..., p) of samples ``x`` (..., columns)."""
        m = self.n_features
        features = x[..., :m]
        return jnp.concatenate(
            [features, second_moments(features, self.covariance), x[..., m:]], -1
        )

    def cells(self, w: jax.Array, group: jax.Array, n_groups: int) -> jax.Array:
        """Sum the statistics over the samples of every cell.

        See `nrprob.statistics.rows.Dense.cells` for the shapes.
        """
        b, r, s, k = w.shape

        def add_block(total, block):
            x, w, g = block
            part = jnp.matmul(w.T, self._expand_moments(x), precision=_PRECISION)
            return total.at[g].add(part), None

        total = jnp.zeros((n_groups, s * k, self.n_statistics), w.dtype)
        total, _ = jax.lax.scan(
            add_block, total, (self.x, w.reshape(b, r, s * k), jnp.asarray(group))
        )
        return total.reshape(n_groups, s, k, -1)

    def adjoint(self, g: jax.Array, group: jax.Array) -> jax.Array:
        """Products of coefficients and statistics of samples.

        See `nrprob.statistics.rows.Dense.adjoint` for the shapes.
        """
        n_groups, s, k, p = g.shape
        g = g.reshape(n_groups, s * k, p)

        def multiply_block(block):
            x, block_group = block
            return jnp.matmul(self._expand_moments(x), g[block_group].T, precision=_PRECISION)

        out = jax.lax.map(multiply_block, (self.x, jnp.asarray(group)))
        return out.reshape(*self.x.shape[:2], s, k)


class CentredCells(NamedTuple):
    """Masses (...), means (..., m) and scatters of cells.

    The scatter is a matrix (..., m, m) for "full" and "VEE", and its diagonal (..., m) for "diag".
    For other covariance types, it is the trace (...). Empty cells have mean 0 and scatter 0.
    """

    mass: jax.Array
    mean: jax.Array
    scatter: jax.Array


def centre_cells(cell: jax.Array, m: int, covariance: str) -> CentredCells:
    """Compute masses, means and scatters from statistics (..., p) of cells with ``m`` features."""
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
    r"""Maximum likelihood shape and orientation C of covariances :math:`\lambda_c C`.

    C has an arbitrary scale, and lambda_c is the volume of cell c. For cells of masses N_c and
    sample covariances S_c of m features, C minimises :math:`\sum_c N_c (m \log \lambda_c +
    \log |C|)`, with the best volumes for C. Alternating updates never increase this objective:

    .. math:: C = \sum_c \frac{N_c}{\lambda_c} S_c / \sum_c N_c, \qquad
        \lambda_c = \frac 1 m \operatorname{tr}(S_c C^{-1})

    The covariances form the model [lambda_k D A D'] of Celeux and Govaert (1995). The logarithm of
    a trace is convex along the geodesics of positive matrices, so the minimum is unique. One update
    of C and of all volumes costs O(K m^2 + m^3).

    Parameters
    ----------
    mass : (..., K) masses of the cells
    spread : (..., K, m, m) covariances, with ``reg`` added to the diagonal
    reg : ridge, which also bounds the volumes lambda_c from below

    Returns
    -------
    C (..., m, m); a NumPy array for NumPy input
    """
    xp: Any = jnp if isinstance(spread, jax.Array) else np
    share = mass / mass.sum(-1, keepdims=True)
    tolerance = float(jnp.finfo(spread.dtype).eps) ** 0.5

    def shape_of(volume):
        return ((share / volume)[..., None, None] * spread).sum(-3)

    def update_volumes(state):
        volume, _, count = state
        new = cluster_volumes(spread, shape_of(volume), reg)
        return new, abs(xp.log(new / volume)).max(), count + 1

    def has_changed(state):
        return (state[1] > tolerance) & (state[2] < _MAX_ROUNDS)

    loop: Any = jax.lax.while_loop if xp is jnp else _while_loop
    start = xp.ones_like(share), xp.asarray(xp.inf, spread.dtype), 0
    return shape_of(loop(has_changed, update_volumes, start)[0])


def cluster_volumes(spread: Any, shape: Any, reg: float) -> Any:
    """Volumes lambda_c (..., K) of K cells, given the common shape and orientation C.

    ``spread`` (..., K, m, m) are the covariances S_c of the cells, and ``shape`` (..., m, m) is C;
    see `common_shape`.
    """
    xp: Any = jnp if isinstance(spread, jax.Array) else np
    precision = inverse_and_log_det(shape)[0] if xp is jnp else np.linalg.inv(shape)
    # The ridge bounds the volumes from below; smaller values are rounding errors.
    least = reg * xp.trace(precision, axis1=-2, axis2=-1)[..., None] + _FLAT**2
    return xp.maximum((spread * precision[..., None, :, :]).sum((-2, -1)), least) / spread.shape[-1]


def _while_loop(condition: Any, body: Any, state: Any) -> Any:
    """Replace `jax.lax.while_loop` for NumPy input."""
    while condition(state):
        state = body(state)
    return state


@dataclass(frozen=True)
class GaussianCost:
    r"""Cell cost: minus the maximum of a penalised Gaussian log likelihood.

    .. math:: \frac N2 \left( \log \left| \frac WN + r I \right| + m (1 + \log 2 \pi) \right)

    N is the mass of the cell, W its scatter, m the number of features, and r is ``reg``. For types
    other than "full", a covariance of this type replaces W/N. The cost is the minimum, over means
    and covariances S, of minus the log likelihood plus :math:`\frac{N r}{2} \operatorname{tr}
    S^{-1}`. Therefore, no update of EM raises the cost.

    For "VEE", the cells along the second last axis of the statistics share a shape. The cost of a
    cell then depends on the other cells. The derivative treats the shape as a constant. The
    derivative of the sum over cells is exact nevertheless, since the shape minimises the sum.
    """

    covariance: str
    n_features: int
    reg: float

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost (...) of cells with statistics (..., p)."""
        m = self.n_features
        w, _, scatter = centre_cells(cell, m, self.covariance)
        full = w > _EMPTY
        safe = jnp.where(full, w, 1)
        if needs_products(self.covariance):
            # An empty cell gets the identity, whose log determinant has a derivative.
            identity = jnp.eye(m, dtype=cell.dtype)
            spread = jnp.where(full[..., None, None], scatter / safe[..., None, None], identity)
            spread = spread + self.reg * identity
            if self.covariance == "full":
                log_det = log_determinant(spread)
            else:
                weights = jnp.where(full.any(-1, keepdims=True), w, 1)
                weights, fixed = jax.lax.stop_gradient((weights, spread))
                shape = common_shape(weights, fixed, self.reg)
                log_det = m * jnp.log(cluster_volumes(spread, shape, self.reg))
                log_det = log_det + log_determinant(shape)[..., None]
        elif self.covariance == "diag":
            variance = jnp.where(full[..., None], scatter / safe[..., None], 1)
            log_det = jnp.log(variance + self.reg).sum(-1)
        else:
            log_det = m * jnp.log(jnp.where(full, scatter / safe / m, 1) + self.reg)
        return jnp.where(full, 0.5 * w * (log_det + m * (1 + math.log(2 * math.pi))), 0)


class TrackedCells(NamedTuple):
    """State of K cells of a `CrossEntropyCost`, which is updated when a sample moves.

    Attributes
    ----------
    mass : (K,) masses
    mean : (K, m) means
    spread : (K, m, m) inverse scatters for "full"; (K, m) diagonals of the scatters for "diag";
        (K,) traces of the scatters for "spherical" and "fixed". The ridge is added to the scatters,
        except for "fixed"
    log_det : (K,) log determinants of the scatters with ridge; not used for "fixed"
    """

    mass: jax.Array
    mean: jax.Array
    spread: jax.Array
    log_det: jax.Array


@node
class CrossEntropyCost:
    r"""Cell cost: minimum cross-entropy of the samples with a Gaussian of a covariance family.

    The cost is in nats, for N samples with scatter W in D dimensions. The constant
    :math:`\frac{ND}{2} \log 2 \pi e` is left out. For full covariances,

    .. math:: \frac N2 \left(\log |W + R| - D \log N\right).

    For diagonal covariances, ``sum_l log(w_l + r_l)`` replaces the log determinant, with the
    diagonals w of W and r of R. For spherical covariances, ``D log(tr(W + R) / D)`` replaces it.
    For a fixed covariance, the samples are whitened by this covariance, and the cost is
    (tr W - N D) / 2.

    The ridge R is added to the scatter of a cell, not to its covariance. Cost changes by single
    samples therefore have closed forms (rank-one updates, O(K m^2) per sample). Up to a constant,
    the cost is the minimum of ``N/2 log |S| + tr(S^-1 (W + R)) / 2`` over covariances S.

    If the removal of a sample would make a scatter singular, the removal has an infinite cost.

    Attributes
    ----------
    ridge : (m,) diagonal of R; 1 in padding columns
    dimension : D, the number of columns without padding
    least : a cell with a smaller mass counts as empty after samples have left the cell;
        ``least`` is smaller than the mass of any sample
    covariance : "full", "diag", "spherical" or "fixed"
    """

    ridge: jax.Array
    dimension: jax.Array
    least: jax.Array
    covariance: str = field(metadata=_STATIC)

    @property
    def n_features(self) -> int:
        """Number m of features, including padding."""
        return self.ridge.shape[-1]

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost (...) of cells with statistics (..., p).

        The cost is 0 for empty cells, and NaN if scatter plus ridge is numerically singular.
        """
        w, _, scatter = centre_cells(cell, self.n_features, self.covariance)
        full = w > _EMPTY
        return jnp.where(full, self._cost_of_log_det(w, self._log_det(w, scatter, full)), 0)

    def _log_det(self, w: jax.Array, scatter: jax.Array, full: jax.Array) -> jax.Array:
        """Log determinants (...) of scatters plus ridge; for a fixed covariance, traces (...).

        ``w`` (...) are the masses of the cells, and ``full`` (...) is False for empty cells. The
        result is NaN for degenerate cells.
        """
        if self.covariance == "full":
            spread = self._add_ridge(scatter, full)
            _, log_det, pivots = inverse_and_log_det(spread)
            # Degenerate cells: pivots of linearly dependent columns are rounding errors.
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
        """Add the ridge to scatters (..., m, m); add the identity where ``full`` (...) is False."""
        ridge = jnp.where(full[..., None], self.ridge, 1)
        return scatter + ridge[..., None] * jnp.eye(self.n_features, dtype=scatter.dtype)

    def _ridge_trace(self) -> jax.Array:
        """Trace of the ridge R over the columns that are not padding."""
        return self.ridge.sum() - (self.n_features - self.dimension)

    def _cost_of_log_det(self, w: jax.Array, log_det: jax.Array) -> jax.Array:
        """Costs (...) of cells, from their masses ``w`` (...) and the result of `_log_det`."""
        d = self.dimension
        if self.covariance == "fixed":
            return 0.5 * (log_det - w * d)
        return 0.5 * w * (log_det - d * jnp.log(jnp.maximum(w, 1e-300)))

    # Changes by single samples

    def track_cells(self, cells: jax.Array) -> TrackedCells:
        """Make the state of K cells with statistics (K, p); see `TrackedCells`."""
        w, mean, scatter = centre_cells(cells, self.n_features, self.covariance)
        # The scatter of an empty cell is the ridge. Without a ridge, no sample can join an empty
        # cell.
        full = (w > _EMPTY) | (self.ridge > 0).all()
        log_det = self._log_det(w, scatter, full)
        if self.covariance != "fixed":
            log_det = jnp.where(full, log_det, jnp.inf)
        if self.covariance == "full":
            scatter = inverse_and_log_det(self._add_ridge(scatter, full))[0]
        elif self.covariance == "diag":
            scatter = jnp.where(full[:, None], scatter + self.ridge, 1)
        elif self.covariance == "spherical":
            scatter = jnp.where(full, scatter + self._ridge_trace(), 1)
        return TrackedCells(w, mean, scatter, log_det)

    def move_changes(
        self, state: TrackedCells, row: jax.Array, mass: jax.Array, label: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Cost changes (b, K) if a sample joins each cell, and (b,) if it leaves its current cell.

        Parameters
        ----------
        state : state of K cells
        row : (b, columns) samples
        mass : (b,) masses of the samples
        label : (b,) current cells of the samples
        """
        x = row[:, : self.n_features]
        # A sample of mass u that joins a cell of mass n changes the scatter by u n / (n + u) times
        # the squared deviation from the mean. If it leaves, the factor is u n / (n - u).
        n, after = state.mass, state.mass + mass[:, None]
        join_factor = mass[:, None] * n / jnp.where(after > 0, after, 1)
        size = n[label]
        rest = size - mass
        is_last = rest < self.least
        leave_factor = jnp.where(is_last, 0, mass * size / jnp.where(is_last, 1, rest))
        deviation = x[:, None] - state.mean
        # Matrix determinant lemma: log ratio of determinants for joining, ratio for leaving.
        if self.covariance == "full":
            q = (deviation * jnp.einsum("bkl,klm->bkm", deviation, state.spread)).sum(-1)
            q = jnp.maximum(q, 0)
            join_log_ratio = jnp.log1p(join_factor * q)
            leave_ratio = 1 - leave_factor * q[jnp.arange(len(x)), label]
        elif self.covariance == "diag":
            ratio = deviation**2 / state.spread
            join_log_ratio = sum_of_logs(1 + join_factor[..., None] * ratio, -1)
            factors = 1 - leave_factor[:, None] * ratio[jnp.arange(len(x)), label]
            leave_ratio = jnp.where((factors > _SINGULAR).all(-1), factors.prod(-1), 0)
        else:
            square = (deviation**2).sum(-1)
            reduction = leave_factor * square[jnp.arange(len(x)), label]
            if self.covariance == "fixed":
                # The cost depends on the trace itself, not on its logarithm.
                increase = join_factor * square
                join = self._cost_of_log_det(after, increase) - self._cost_of_log_det(
                    n, 0 * increase
                )
                leave = self._cost_of_log_det(rest, -reduction) - self._cost_of_log_det(
                    size, 0 * reduction
                )
                return join, leave
            join_log_ratio = self.dimension * jnp.log1p(join_factor * square / state.spread)
            leave_ratio = 1 - reduction / state.spread[label]
        ok = leave_ratio > _SINGULAR
        leave_log_ratio = jnp.log(jnp.where(ok, leave_ratio, 1))
        if self.covariance == "spherical":
            leave_log_ratio = self.dimension * leave_log_ratio
        join = self._cost_of_log_det(after, state.log_det + join_log_ratio) - self._cost_of_log_det(
            n, state.log_det
        )
        log_det = state.log_det[label]
        cost = self._cost_of_log_det(size, log_det)
        leave = self._cost_of_log_det(rest, log_det + leave_log_ratio) - cost
        # Without its last sample, a cell is empty and costs 0.
        leave = jnp.where(is_last, -cost, leave)
        return join, jnp.where(ok | is_last, leave, jnp.inf)

    def apply_move(
        self, state: TrackedCells, row: jax.Array, mass: jax.Array, old: jax.Array, new: jax.Array
    ) -> TrackedCells:
        """State after a sample (columns,) has moved from cell ``old`` to cell ``new``."""
        left = self._shift_cell(state, row[: self.n_features], old, -mass)
        return self._shift_cell(left, row[: self.n_features], new, mass)

    def _shift_cell(
        self, state: TrackedCells, x: jax.Array, cell: jax.Array, mass: jax.Array
    ) -> TrackedCells:
        """State after a sample ``x`` (m,) joins a cell, or leaves it if ``mass`` is negative."""
        n = state.mass[cell]
        after = jnp.where(n + mass < self.least, 0, n + mass)
        deviation = x - state.mean[cell]
        share = mass / jnp.where(after > 0, after, 1)
        step = share * n  # change of the scatter
        mean = state.mean.at[cell].add(share * deviation)
        log_det, spread = state.log_det, state.spread
        if self.covariance == "full":
            # Sherman-Morrison update of the inverse, and the matrix determinant lemma.
            v = spread[cell] @ deviation
            factor = 1 + step * (deviation @ v)
            spread = spread.at[cell].add(-(step / factor) * v[:, None] * v)
            log_det = log_det.at[cell].add(jnp.log(factor))
        elif self.covariance == "diag":
            grown = spread[cell] + step * deviation**2
            log_det = log_det.at[cell].add(jnp.log(grown / spread[cell]).sum())
            spread = spread.at[cell].set(grown)
        elif self.covariance == "spherical":
            grown = spread[cell] + step * (deviation**2).sum()
            log_det = log_det.at[cell].add(self.dimension * jnp.log(grown / spread[cell]))
            spread = spread.at[cell].set(grown)
        return TrackedCells(state.mass.at[cell].set(after), mean, spread, log_det)
