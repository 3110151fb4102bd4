"""Cell codes: complete code lengths of what lies in a cell, as functions of summed statistics.

Costs of `nrprob.statistics.costs` fit parameters to every cell for nothing; a code pays for them,
by the parametric complexity of normalised maximum likelihood or by a conjugate prior. Only codes
may be sampled: ``exp(-length)`` is then a distribution over partitions, in nats of the whole data
set. What depends on a number of rows alone is a table, made once outside of compiled programs.

A code maps statistics (..., p), whose last entry is the number of rows of the cell, to nats (...);
the empty cell costs 0. Its arrays are traced, so that programs serve all data of one shape.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, multigammaln, xlogy

from nrprob.codelength import gaussian_complexity, multinomial_table
from nrprob.statistics.gammas import log_gamma, log_multigamma
from nrprob.statistics.matrices import log_determinant, whitener
from nrprob.statistics.sums import sum_of_products, sum_of_squares
from nrprob.statistics.terms import TracedTerm
from nrprob.trees import node

Table: TypeAlias = "np.ndarray | jax.Array"
_STATIC: dict[str, Any] = {"static": True}
TABLE = 200_000_000  # steps that an exact table of complexities may take


class CellCode(Protocol):
    """Code length of the rows of a cell.

    ``sends`` says what the receiver knows after reading it: "data" (features or classes of the
    rows, given their cell), "parameters" (that the code depends on no unknown ones), "labels" (the
    cells of the rows).
    """

    sends: ClassVar[frozenset[str]]

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""

    def prepare_join(self, cells: jax.Array) -> Any:
        """What `join_costs` wants to know of cells (p, K): arrays (..., K)."""

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that single rows (p, b) add to cells prepared as (..., K, 1 or b).

        Rows come last because that is the axis along which processors compute.
        """


class _CodeByDifference:
    """Joining by the difference of two lengths, for any code."""

    def __call__(self, cell: jax.Array) -> jax.Array:
        raise NotImplementedError

    def prepare_join(self, cells):
        return cells, self(cells.T)

    def join_costs(self, prepared, row):
        cells, before = prepared
        return self(jnp.moveaxis(cells + row[:, None], 0, -1)) - before


def _table_difference(table: Table, count: jax.Array) -> jax.Array:
    """Return ``table[count + 1] - table[count]``: far fewer look-ups than one for every row."""
    return _look_up(table, count + 1) - _look_up(table, count)


@node
class CodeTerm(TracedTerm):
    """A `Term` whose cell cost is a code."""

    cost: CellCode  # type: ignore[assignment]


def code_term(code: CellCode, *, weight: float = 1.0, by_group: bool = False) -> CodeTerm:
    """Return the term that charges ``code`` for every cluster, or every (group, cluster) cell."""
    return CodeTerm(np.float64(weight), np.float64(0), None, code, by_group)


def _look_up(table: Table, count: jax.Array) -> jax.Array:
    at = jnp.round(count).astype(jnp.int32)
    return jnp.asarray(table).at[at].get(mode="clip")


def _log_product(x: jax.Array) -> jax.Array:
    """Sum of logarithms over the first axis, by one logarithm of a product for every eight."""
    total = jnp.zeros(x.shape[1:], x.dtype)
    for i in range(0, x.shape[0], 8):
        total = total + jnp.log(x[i : i + 8].prod(0))
    return total


_DATA = frozenset({"data", "parameters"})


@node
class CountCode(_CodeByDifference):
    """Sequences of symbols: ``sum_y each[T_y] + total[sum_y T_y]`` of the counts T.

    Attributes
    ----------
    each, total : (largest count + 1,) nats
    first, stop : statistics that hold the counts
    single : whether no row has more than one count, as with classes
    """

    sends: ClassVar[frozenset[str]] = _DATA
    each: Table
    total: Table
    first: int = field(metadata=_STATIC)
    stop: int = field(metadata=_STATIC)
    single: bool = field(default=False, metadata=_STATIC)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        counts = cell[..., self.first : self.stop]
        return _look_up(self.each, counts).sum(-1) + _look_up(self.total, counts.sum(-1))

    def prepare_join(self, cells: jax.Array) -> Any:
        """What `join_costs` wants to know of cells (p, K)."""
        if not self.single:
            return super().prepare_join(cells)
        counts = cells[self.first : self.stop]
        return _table_difference(self.each, counts) + _table_difference(self.total, counts.sum(0))

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        if not self.single:
            return super().join_costs(prepared, row)
        return sum_of_products(prepared, row[self.first : self.stop])


@node
class BinaryCode(_CodeByDifference):
    """Features that are 0 or 1: a `CountCode` of two symbols for every one of them."""

    sends: ClassVar[frozenset[str]] = _DATA
    each: Table
    total: Table
    first: int = field(metadata=_STATIC)
    stop: int = field(metadata=_STATIC)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        ones, n = cell[..., self.first : self.stop], cell[..., -1]
        both = _look_up(self.each, ones) + _look_up(self.each, n[..., None] - ones)
        return both.sum(-1) + (self.stop - self.first) * _look_up(self.total, n)

    def prepare_join(self, cells: jax.Array) -> Any:
        """What `join_costs` wants to know of cells (p, K)."""
        ones, n = cells[self.first : self.stop], cells[-1]
        zero = _table_difference(self.each, n - ones)  # of one more 0, feature by feature
        rest = zero.sum(0) + (self.stop - self.first) * _table_difference(self.total, n)
        return _table_difference(self.each, ones) - zero, rest

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        one, rest = prepared
        return sum_of_products(one, row[self.first : self.stop]) + row[-1] * rest


@node
class LabelCode(_CodeByDifference):
    """Cells of the rows: ``each[n]`` of the number of rows, to which a function of k is added."""

    sends: ClassVar[frozenset[str]] = frozenset({"labels"})
    each: Table

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        return _look_up(self.each, cell[..., -1])

    def prepare_join(self, cells: jax.Array) -> jax.Array:
        """What `join_costs` wants to know of cells (p, K)."""
        return _table_difference(self.each, cells[-1])

    def join_costs(self, prepared: jax.Array, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        return prepared * row[-1]


@node
class NormalNML(_CodeByDifference):
    """Numbers under normal densities, one per feature, with parameters in a box.

    ``sum_d n/2 log(2 pi s_d^2) + n v_d / (2 s_d^2)``, s_d the standard deviation clipped to
    [low, high], plus ``complexity[n]``, that of all features. Features come first, then squares.
    """

    sends: ClassVar[frozenset[str]] = _DATA
    complexity: Table
    low: Table
    high: Table
    n_features: int = field(metadata=_STATIC)

    def _fit(self, first: jax.Array, second: jax.Array, n: jax.Array, inverse: jax.Array):
        """Nats of sums (m, ...) of numbers and of squares; divisions are what costs most."""
        shape = (self.n_features,) + (1,) * (first.ndim - 1)
        low, high = (jnp.square(v).reshape(shape) for v in (self.low, self.high))
        mean = first * inverse
        variance = jnp.maximum(second * inverse - mean * mean, 0)
        s2 = jnp.clip(variance, low, high)
        excess = jnp.where(variance < low, variance * (1 / low) - 1, 0)
        excess = jnp.where(variance > high, variance * (1 / high) - 1, excess)
        return 0.5 * n * (_log_product(2 * np.pi * s2) + excess.sum(0) + self.n_features)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        m, n = self.n_features, cell[..., -1]
        cell = jnp.moveaxis(cell, -1, 0)
        fit = self._fit(cell[:m], cell[m : 2 * m], n, 1 / jnp.maximum(n, 1))
        return fit + _look_up(self.complexity, n)

    def prepare_join(self, cells: jax.Array) -> Any:
        """What `join_costs` wants to know of cells (p, K)."""
        n = cells[-1] + 1
        return cells, n, 1 / n, _look_up(self.complexity, n) - self(cells.T)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        cells, n, inverse, rest = prepared
        m = self.n_features
        first, second = (cells[i : i + m] + row[i : i + m, None] for i in (0, m))
        return self._fit(first, second, n, inverse) + rest


@node
class NormalInverseGamma(_CodeByDifference):
    """Numbers under normal densities with the conjugate prior, one per feature.

    Minus the log of the marginal likelihood, ``table[n] + sum_d (shape + n/2) log(b_d / scale)``.
    The mean is N(0, s^2 / kappa) given the variance, that is inverse-gamma(shape, scale).
    """

    sends: ClassVar[frozenset[str]] = _DATA
    table: Table
    kappa: Table
    shape: Table
    scale: Table
    n_features: int = field(metadata=_STATIC)

    def _fit_nats(self, cell: jax.Array) -> jax.Array:
        m, n = self.n_features, cell[-1]
        rest = cell[m : 2 * m] - cell[:m] ** 2 / (self.kappa + n)
        b = _log_product(1 + jnp.maximum(rest, 0) * (0.5 / self.scale))
        return (self.shape + 0.5 * n) * b

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        return self._fit_nats(jnp.moveaxis(cell, -1, 0)) + _look_up(self.table, cell[..., -1])

    def prepare_join(self, cells: jax.Array) -> Any:
        """What `join_costs` wants to know of cells (p, K)."""
        return cells, _look_up(self.table, cells[-1] + 1) - self(cells.T)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        cells, rest = prepared
        return self._fit_nats(cells + row[:, None]) + rest


@node
class NormalInverseWishart:
    """Vectors under a normal density with full covariance and the conjugate prior.

    The mean is N(0, S / kappa) given the covariance S, that is inverse-Wishart(nu, scale I):
    ``table[n] + (nu + n)/2 log det(I + R / scale)``, R the scatter about the shrunken mean.
    First moments come first, then the upper triangle of the second ones, by rows.
    """

    sends: ClassVar[frozenset[str]] = _DATA
    table: Table
    kappa: Table
    nu: Table
    scale: Table
    n_features: int = field(metadata=_STATIC)

    def _scale_matrix(self, cell: jax.Array) -> jax.Array:
        """The matrix of the determinant, (..., m, m)."""
        m, n = self.n_features, cell[..., -1]
        first = cell[..., :m]
        outer = first[..., :, None] * first[..., None, :] / (self.kappa + n)[..., None, None]
        return jnp.eye(m) + (cell[..., m + _triangle_positions(m)] - outer) / self.scale

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        n = cell[..., -1]
        return 0.5 * (self.nu + n) * log_determinant(self._scale_matrix(cell)) + _look_up(
            self.table, n
        )

    def prepare_join(self, cells: jax.Array) -> Any:
        """What `join_costs` wants to know of cells (p, K)."""
        n, precision = cells[-1], self.kappa + cells[-1]
        white, log_det = jax.vmap(whitener)(self._scale_matrix(cells.T))
        mean = jnp.einsum("kij,jk->ik", white, cells[: self.n_features] / precision)
        constant = _table_difference(self.table, n) + 0.5 * log_det
        less = precision / (precision + 1) / self.scale
        return constant, 0.5 * (self.nu + n + 1), less, mean, jnp.moveaxis(white, 0, -1)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        constant, half, less, mean, white = prepared
        return constant + half * jnp.log1p(
            less * _whitened_squares(white, row[: self.n_features], mean)
        )


def _triangle_positions(m: int) -> np.ndarray:
    """Places (m, m) of a symmetric matrix in its upper triangle, by rows."""
    at = np.zeros((m, m), int)
    upper = np.triu_indices(m)
    at[upper] = np.arange(len(upper[0]))
    return np.maximum(at, at.T)


def _whitened_squares(white: jax.Array, row: jax.Array, mean: jax.Array) -> jax.Array:
    """Squares (K, b) of distances of rows (m, b) from means (m, K, 1) that are whitened already."""
    return sum_of_squares(jnp.einsum("ijk,jb->ikb", white[..., 0], row) - mean)


def student_t_nats(away: Any, log_det: Any, factor: Any, freedom: Any, m: int) -> jax.Array:
    """Nats of a vector (m,) that adds to a normal distribution whose covariance is integrated out.

    Of the scatter with the prior's: ``log_det``, the ``freedom`` with the prior's before the vector
    came, and the square of the vector's distance in its metric; ``factor`` is the variance of the
    difference from the mean, in units of the covariance.
    """
    constant = log_gamma(0.5 * (freedom + 1 - m)) - log_gamma(0.5 * (freedom + 1))
    constant = constant + 0.5 * (m * np.log(np.pi) + log_det)
    return constant + 0.5 * ((freedom + 1) * jnp.log1p(away / factor) + m * jnp.log(factor))


@node
class NormalWishart:
    """Vectors under a normal density with a covariance of their own, prior traced.

    The mean is N(0, S / kappa) given the covariance S, that is inverse-Wishart(m + 1 + freedom,
    freedom variance I). Unless ``full``, columns are independent, each with a prior of m = 1. First
    moments come first, then the upper triangle of the second ones, by rows, or its diagonal. The
    density of vectors given mean and covariance is raised to ``power``.

    If ``weighted``, a vector of weight w has covariance S / w: its moments are multiplied by w, and
    the sum of weights comes after them. The factor w^(m/2) of its density is left out.
    """

    sends: ClassVar[frozenset[str]] = _DATA
    kappa: Table
    variance: Table
    freedom: Table
    n_features: int = field(metadata=_STATIC)
    full: bool = field(metadata=_STATIC)
    power: Table
    weighted: bool = field(default=False, metadata=_STATIC)

    def _total_weight(self, cell: jax.Array) -> jax.Array:
        """Sum of the weights of the vectors of statistics (..., p)."""
        m = self.n_features
        after = m + (m * (m + 1) // 2 if self.full else m)
        return cell[..., after if self.weighted else -1]

    def scatter(self, cell: jax.Array) -> jax.Array:
        """Scatter about the shrunken mean with the prior's, (..., m, m) or (..., m)."""
        m, cell = self.n_features, self.power * cell
        precision, first = self.kappa + self._total_weight(cell)[..., None], cell[..., :m]
        own = self.freedom * self.variance
        if not self.full:
            return own + cell[..., m : 2 * m] - first * first / precision
        outer = first[..., :, None] * first[..., None, :] / precision[..., None]
        return own * jnp.eye(m) + cell[..., m + _triangle_positions(m)] - outer

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        n, scatter = self.power * cell[..., -1], self.scatter(cell)
        size = self.n_features if self.full else 1
        freedom, inside = size + 1 + self.freedom, jnp.log(self.freedom * self.variance)
        log_det = (
            log_determinant(scatter) if self.full else _log_product(jnp.moveaxis(scatter, -1, 0))
        )
        gammas = log_multigamma(0.5 * freedom, size) - log_multigamma(0.5 * (freedom + n), size)
        rest = 0.5 * n * np.log(np.pi) - 0.5 * freedom * inside
        rest = (
            rest
            + 0.5 * jnp.log1p(self.power * self._total_weight(cell) / self.kappa)
            + gammas / size
        )
        return self.n_features * rest + 0.5 * (freedom + n) * log_det

    def prepare_join(self, cells: jax.Array) -> Any:
        """What `join_costs` wants to know of cells (p, K)."""
        m, n = self.n_features, self.power * cells[-1]
        size, precision = (
            m if self.full else 1,
            self.kappa + self.power * self._total_weight(cells.T),
        )
        freedom = size + 1 + self.freedom + n
        scatter, mean = self.scatter(cells.T), self.power * cells[:m] / precision
        more = log_multigamma(0.5 * (freedom + self.power), size)
        constant = m / size * (log_multigamma(0.5 * freedom, size) - more)
        constant = constant + 0.5 * self.power * m * np.log(np.pi)
        if not self.full:
            constant = constant + 0.5 * self.power * _log_product(scatter.T)
            return constant, freedom, precision, mean, scatter.T
        white, log_det = whitener(scatter)
        constant = constant + 0.5 * self.power * log_det
        mean = jnp.einsum("kij,jk->ik", white, mean)
        return constant, freedom, precision, mean, jnp.moveaxis(white, 0, -1)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        constant, freedom, precision, mean, scatter = prepared
        more: Any = self.power
        if self.weighted:
            weight = self._total_weight(row.T)
            row, more = row / jnp.where(weight > 0, weight, 1), self.power * weight
        row = row[: self.n_features]
        less = more * precision / (precision + more)  # of the squared distance from the mean
        constant = constant + 0.5 * self.n_features * jnp.log1p(more / precision)
        if self.full:
            inside = jnp.log1p(less * _whitened_squares(scatter, row, mean))
        else:
            inside = _log_product(1 + less * jnp.square(row[:, None] - mean) / scatter)
        return constant + 0.5 * (freedom + self.power) * inside

    def weighted_join_costs(self, prepared: Any, row: jax.Array, weights: jax.Array) -> jax.Array:
        """Nats (K, G, b) that rows (p, b) of weight 1 add if they have weights (G,)."""
        constant, freedom, precision, mean, scatter = prepared
        row, more = row[: self.n_features], self.power * weights[:, None]
        constant, freedom, precision = constant[:, None], freedom[:, None], precision[:, None]
        less = more * precision / (precision + more)
        constant = constant + 0.5 * self.n_features * jnp.log1p(more / precision)
        if self.full:
            inside = jnp.log1p(less * _whitened_squares(scatter, row, mean)[:, None])
        else:
            away = jnp.square(row[:, None] - mean) / scatter
            inside = _log_product(1 + less * away[:, :, None])
        return constant + 0.5 * (freedom + self.power) * inside


# Making them


def count_tables(
    n_symbols: int, n_max: int, concentration: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Tables ``each`` and ``total`` for sequences of up to ``n_max`` symbols out of ``n_symbols``.

    Parameters
    ----------
    n_symbols : int
    n_max : int
    concentration : float, optional
        None for normalised maximum likelihood; else the parameter of a symmetric Dirichlet prior.

    Raises
    ------
    ValueError
        If exact complexities would take too long.
    """
    n = np.arange(n_max + 1)
    if concentration is None:
        if n_symbols * (n_max + 1) > TABLE:
            raise ValueError(
                "an exact table of complexities takes too long; got "
                f"{n_symbols} symbols and sequences of up to {n_max}; use energy='conjugate'"
            )
        complexity = _multinomial_complexities(n_symbols, n)
        return -xlogy(n, n), xlogy(n, n) + complexity
    a, b = concentration, n_symbols * concentration
    return gammaln(a) - gammaln(n + a), gammaln(n + b) - gammaln(b)


def _multinomial_complexities(k: int, n: np.ndarray) -> np.ndarray:
    """Complexities of ``k`` symbols, a part of the lengths ``n`` at a time: the table is wide."""
    size = max(int(4_000_000 // k), 1)
    return np.concatenate([multinomial_table(k, part)[-1] for part in _split_lengths(n, size)])


def _split_lengths(n: np.ndarray, size: int) -> list[np.ndarray]:
    return [n[i : i + size] for i in range(0, n.size, size)]


def label_code(
    n: int, max_clusters: int, *, concentration: float | None = None, unordered: bool = True
) -> tuple[LabelCode, np.ndarray]:
    """Code of the cells of ``n`` rows: its part per cell, and the function A(k) of their number.

    The part per cell reaches one row further, for a row to come.

    Parameters
    ----------
    n : int
        Number of rows.
    max_clusters : int
    concentration : float, optional
        None for normalised maximum likelihood: ``-sum n_j log(n_j/n) + log C(k, n)``. Else the
        parameter of a symmetric Dirichlet prior of the sizes.
    unordered : bool, default=True
        Whether the names of the clusters, k! of which say the same, are not sent.

    Returns
    -------
    code : LabelCode
    sizes : ndarray of shape (max_clusters + 1,)
        A(k); infinite for k=0 unless there are no rows.
    """
    count = np.arange(n + 2)
    k = np.arange(1, max_clusters + 1)
    if concentration is None:
        each = -xlogy(count, count)
        sizes = xlogy(n, n) + multinomial_table(max_clusters, n)
    else:
        a = concentration
        each = gammaln(a) - gammaln(count + a)
        sizes = gammaln(n + k * a) - gammaln(k * a)
    if unordered:
        sizes = sizes - gammaln(k + 1)
    return LabelCode(each), np.concatenate([[np.inf if n else 0.0], sizes])


def normal_nml(n: int, low: np.ndarray, high: np.ndarray, mean_range: np.ndarray) -> NormalNML:
    """Code of up to ``n`` rows of features whose parameters lie in a box; arrays (n_features,)."""
    low, high = np.asarray(low, float), np.asarray(high, float)
    count = np.arange(n + 1)[:, None]
    table = gaussian_complexity(count, low, high, np.asarray(mean_range, float))
    return NormalNML(np.asarray(table).sum(1), low, high, low.size)


def normal_inverse_gamma(
    n: int, n_features: int, *, kappa: float, shape: float, scale: float
) -> NormalInverseGamma:
    """Code of up to ``n`` rows under the normal-inverse-gamma prior, the same for all features."""
    count = np.arange(n + 1)
    table = (
        gammaln(shape)
        - gammaln(shape + count / 2)
        + 0.5 * np.log((kappa + count) / kappa)
        + count / 2 * np.log(2 * np.pi * scale)
    )
    k, a, b = (np.asarray(v, np.float64) for v in (kappa, shape, scale))
    return NormalInverseGamma(n_features * table, k, a, b, n_features)


def normal_inverse_wishart(
    n: int, n_features: int, *, kappa: float, nu: float, scale: float
) -> NormalInverseWishart:
    """Code of up to ``n`` rows under the normal-inverse-Wishart prior; ``nu > n_features - 1``."""
    m, count = n_features, np.arange(n + 1)
    gammas = np.asarray([multigammaln((nu + c) / 2, m) for c in count])
    table = (
        gammas[0]
        - gammas
        + m / 2 * np.log((kappa + count) / kappa)
        + m * count / 2 * np.log(np.pi * scale)
    )
    k, df, unit = (np.asarray(v, np.float64) for v in (kappa, nu, scale))
    return NormalInverseWishart(table, k, df, unit, m)
