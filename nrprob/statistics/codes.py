r"""Cell codes: description lengths of the samples of a cell, as functions of the cell's statistics.

A code is a cell cost that accounts for the unknown parameters of the cell, in one of two ways:

.. math:: L(S) = -\max_\theta \log p(x | \theta) + \log \int \max_\theta p(y | \theta) \, dy
    \quad \text{(NML)}, \qquad
    L(S) = -\log \int p(x | \theta) \, p(\theta) \, d\theta \quad \text{(conjugate prior)}.

Here x are the samples of the cell, y is any data set of the same size, and theta are the parameters
of the cell. NML is the normalised maximum likelihood; its second term is the parametric complexity.
The costs of `nrprob.statistics.costs` have the first term only. The sum of L over cells is minus
the logarithm of an unnormalised density of partitions. Samplers need such a density.

A code maps statistics (..., p) of cells to nats (...). The last statistic is the number of samples
of the cell. An empty cell costs 0. Functions of the number of samples are tables, computed outside
of compiled programs: entry i of a table is the value for i samples. The arrays of a code are
traced, so a program serves all data of one shape.

Shapes: p statistics of a sample, m features, K cells, b samples that join cells. k is a number of
clusters.

References
----------
J. Rissanen (1996), "Fisher information and stochastic complexity", IEEE Transactions on Information
Theory 42(1), doi:10.1109/18.481776. A. Gelman et al. (2013), "Bayesian Data Analysis", 3rd edition,
chapter 3 (conjugate priors).
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, ClassVar, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, multigammaln, xlogy

from nrprob.codelength import gaussian_complexity, multinomial_table
from nrprob.statistics.gammas import log_gamma, log_multigamma
from nrprob.statistics.gaussians import moment_positions
from nrprob.statistics.matrices import log_determinant, whitener
from nrprob.statistics.sums import sum_of_logs, sum_of_products, sum_of_squares
from nrprob.statistics.terms import TracedTerm
from nrprob.trees import node

Table: TypeAlias = "np.ndarray | jax.Array"
_STATIC: dict[str, Any] = {"static": True}
MAX_TABLE_STEPS = 200_000_000  # largest number of operations for an exact table of complexities


class CellCode(Protocol):
    """Description length of the samples of a cell.

    ``sends`` lists what the code describes. "data" are the features or classes of the samples,
    given their cells, and "labels" are the cells of the samples. "parameters" states that unknown
    parameters are integrated out or coded, so that the length does not depend on them.
    """

    sends: ClassVar[frozenset[str]]

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Description length in nats (...) of cells with statistics (..., p)."""

    def prepare_join(self, cells: jax.Array) -> Any:
        """Precompute arrays (..., K) for `join_costs`, from statistics (p, K) of K cells."""

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Cost increase (K, b) if one of b samples joins one of K cells.

        ``row`` (p, b) are the statistics of the samples. ``prepared`` are the arrays of
        `prepare_join` with an additional last axis of length 1 or b. Samples are on the last axis,
        along which processors vectorise.
        """


class _CodeByDifference:
    """Base class that computes join costs as differences.

    A join cost is the length of the cell with the sample, minus the length without the sample.
    """

    def __call__(self, cell: jax.Array) -> jax.Array:
        raise NotImplementedError

    def prepare_join(self, cells):
        return cells, self(cells.T)

    def join_costs(self, prepared, row):
        cells, before = prepared
        return self(jnp.moveaxis(cells + row[:, None], 0, -1)) - before


def _table_difference(table: Table, count: jax.Array) -> jax.Array:
    """Return ``table[count + 1] - table[count]`` for counts (...) of cells.

    Differences per cell take fewer look-ups than differences per sample, since there are far fewer
    cells than samples.
    """
    return _look_up(table, count + 1) - _look_up(table, count)


@node
class CodeTerm(TracedTerm):
    """`Term` of an objective whose cell cost is a `CellCode`."""

    cost: CellCode  # type: ignore[assignment]


def code_term(code: CellCode, *, weight: float = 1.0, by_group: bool = False) -> CodeTerm:
    """Make the term of a code.

    A cell is a cluster or, with ``by_group``, a pair of known group and cluster.
    """
    return CodeTerm(np.float64(weight), np.float64(0), None, code, by_group)


def _look_up(table: Table, count: jax.Array) -> jax.Array:
    """Entries (...) of a table at counts (...), which are rounded to integers."""
    index = jnp.round(count).astype(jnp.int32)
    return jnp.asarray(table).at[index].get(mode="clip")


_DATA = frozenset({"data", "parameters"})


@node
class CountCode(_CodeByDifference):
    """Code of sequences of symbols y, from their counts T_y in a cell.

    The description length is ``sum_y count_nats[T_y] + total_nats[sum_y T_y]``.

    Attributes
    ----------
    count_nats, total_nats : (largest count + 1,) tables; see `count_tables`
    first, stop : the counts are the statistics from position ``first`` to ``stop - 1``
    single : whether every sample has at most one symbol, for example its class
    """

    sends: ClassVar[frozenset[str]] = _DATA
    count_nats: Table
    total_nats: Table
    first: int = field(metadata=_STATIC)
    stop: int = field(metadata=_STATIC)
    single: bool = field(default=False, metadata=_STATIC)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Description length in nats (...) of cells with statistics (..., p)."""
        counts = cell[..., self.first : self.stop]
        return _look_up(self.count_nats, counts).sum(-1) + _look_up(self.total_nats, counts.sum(-1))

    def prepare_join(self, cells: jax.Array) -> Any:
        """Precompute arrays for `join_costs`, from statistics (p, K) of K cells."""
        if not self.single:
            return super().prepare_join(cells)
        counts = cells[self.first : self.stop]
        return _table_difference(self.count_nats, counts) + _table_difference(
            self.total_nats, counts.sum(0)
        )

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Cost increase (K, b) if one of b samples ``row`` (p, b) joins one of K cells."""
        if not self.single:
            return super().join_costs(prepared, row)
        return sum_of_products(prepared, row[self.first : self.stop])


@node
class BinaryCode(_CodeByDifference):
    """Code of binary features: for every feature, a `CountCode` of the two symbols 0 and 1.

    `CountCode` describes the attributes ``count_nats``, ``total_nats``, ``first`` and ``stop``. The
    statistics are the sums of the features, that is, the numbers of ones.
    """

    sends: ClassVar[frozenset[str]] = _DATA
    count_nats: Table
    total_nats: Table
    first: int = field(metadata=_STATIC)
    stop: int = field(metadata=_STATIC)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Description length in nats (...) of cells with statistics (..., p)."""
        ones, n = cell[..., self.first : self.stop], cell[..., -1]
        both = _look_up(self.count_nats, ones) + _look_up(self.count_nats, n[..., None] - ones)
        return both.sum(-1) + (self.stop - self.first) * _look_up(self.total_nats, n)

    def prepare_join(self, cells: jax.Array) -> Any:
        """Precompute arrays for `join_costs`, from statistics (p, K) of K cells."""
        ones, n = cells[self.first : self.stop], cells[-1]
        zero = _table_difference(self.count_nats, n - ones)  # cost of another 0 in a feature
        rest = zero.sum(0) + (self.stop - self.first) * _table_difference(self.total_nats, n)
        return _table_difference(self.count_nats, ones) - zero, rest

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Cost increase (K, b) if one of b samples ``row`` (p, b) joins one of K cells."""
        one_minus_zero, rest = prepared
        return sum_of_products(one_minus_zero, row[self.first : self.stop]) + row[-1] * rest


@node
class LabelCode(_CodeByDifference):
    """Code of the cluster labels: the length is ``count_nats[n]`` for a cell of n samples.

    The code of k clusters has an additional part A(k), which `label_code` returns separately.
    """

    sends: ClassVar[frozenset[str]] = frozenset({"labels"})
    count_nats: Table

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Description length in nats (...) of cells with statistics (..., p)."""
        return _look_up(self.count_nats, cell[..., -1])

    def prepare_join(self, cells: jax.Array) -> jax.Array:
        """Precompute arrays for `join_costs`, from statistics (p, K) of K cells."""
        return _table_difference(self.count_nats, cells[-1])

    def join_costs(self, prepared: jax.Array, row: jax.Array) -> jax.Array:
        """Cost increase (K, b) if one of b samples ``row`` (p, b) joins one of K cells."""
        return prepared * row[-1]


@node
class NormalNML(_CodeByDifference):
    r"""Code of independent Gaussian features with bounded parameters, by NML.

    .. math:: \sum_d \left( \frac n2 \log 2 \pi s_d^2 + \frac{n v_d}{2 s_d^2} \right) + PC(n)

    Here n is the number of samples of the cell and v_d the variance of feature d in the cell. s_d
    is the standard deviation of feature d, clipped to the interval from ``low`` to ``high``
    (n_features,). PC is the parametric complexity of all features together; entry n of the table
    ``complexity`` is PC(n). Statistics are the features, followed by their squares.
    """

    sends: ClassVar[frozenset[str]] = _DATA
    complexity: Table
    low: Table
    high: Table
    n_features: int = field(metadata=_STATIC)

    def _nats_of_sums(self, first: jax.Array, second: jax.Array, n: jax.Array, inverse: jax.Array):
        """Description length (...) without the complexity, a sum over features.

        ``first`` and ``second`` (m, ...) are sums of the features and of their squares over the n
        samples of a cell, and ``inverse`` is 1 / n.
        """
        shape = (self.n_features,) + (1,) * (first.ndim - 1)
        low, high = (jnp.square(v).reshape(shape) for v in (self.low, self.high))
        # Variance and clipped variance. ``inverse`` is 1 / n: divisions would dominate the time.
        mean = first * inverse
        variance = jnp.maximum(second * inverse - mean * mean, 0)
        s2 = jnp.clip(variance, low, high)
        # Where the variance is clipped, n v / (2 s^2) differs from n / 2.
        excess = jnp.where(variance < low, variance * (1 / low) - 1, 0)
        excess = jnp.where(variance > high, variance * (1 / high) - 1, excess)
        return 0.5 * n * (sum_of_logs(2 * np.pi * s2) + excess.sum(0) + self.n_features)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Description length in nats (...) of cells with statistics (..., p)."""
        m, n = self.n_features, cell[..., -1]
        cell = jnp.moveaxis(cell, -1, 0)
        fit = self._nats_of_sums(cell[:m], cell[m : 2 * m], n, 1 / jnp.maximum(n, 1))
        return fit + _look_up(self.complexity, n)

    def prepare_join(self, cells: jax.Array) -> Any:
        """Precompute arrays for `join_costs`, from statistics (p, K) of K cells."""
        n = cells[-1] + 1
        return cells, n, 1 / n, _look_up(self.complexity, n) - self(cells.T)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Cost increase (K, b) if one of b samples ``row`` (p, b) joins one of K cells."""
        cells, n, inverse, rest = prepared
        m = self.n_features
        first, second = (cells[i : i + m] + row[i : i + m, None] for i in (0, m))
        return self._nats_of_sums(first, second, n, inverse) + rest


@node
class NormalInverseGamma(_CodeByDifference):
    r"""Code of independent Gaussian features with a normal-inverse-gamma prior.

    The prior of the mean :math:`\mu` and variance :math:`s^2` of a feature in a cell is
    :math:`\mu | s^2 \sim N(0, s^2 / \kappa)`, :math:`s^2 \sim IG(a, b)`: an inverse gamma
    distribution with ``shape`` a and ``scale`` b. Minus the log marginal likelihood of a feature x
    is

    .. math:: T(n) + \left(a + \frac n2\right) \log \left( 1 + \frac{1}{2b} \Big(
        \sum x^2 - \frac{(\sum x)^2}{\kappa + n} \Big) \right)

    Here n is the number of samples of the cell, and sums are over these samples. T(n) contains all
    parts that depend on n only; entry n of ``table`` is the sum of T(n) over features. Statistics
    are the features, followed by their squares.
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
        b = sum_of_logs(1 + jnp.maximum(rest, 0) * (0.5 / self.scale))
        return (self.shape + 0.5 * n) * b

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Description length in nats (...) of cells with statistics (..., p)."""
        return self._fit_nats(jnp.moveaxis(cell, -1, 0)) + _look_up(self.table, cell[..., -1])

    def prepare_join(self, cells: jax.Array) -> Any:
        """Precompute arrays for `join_costs`, from statistics (p, K) of K cells."""
        return cells, _look_up(self.table, cells[-1] + 1) - self(cells.T)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Cost increase (K, b) if one of b samples ``row`` (p, b) joins one of K cells."""
        cells, rest = prepared
        return self._fit_nats(cells + row[:, None]) + rest


@node
class NormalInverseWishart:
    r"""Code of Gaussian vectors with full covariance and a normal-inverse-Wishart prior.

    The prior of the mean :math:`\mu` and covariance :math:`\Sigma` of a cell is
    :math:`\mu | \Sigma \sim N(0, \Sigma / \kappa)`, :math:`\Sigma \sim IW(\nu,
    \text{scale} \cdot I)`. Minus the log marginal likelihood of vectors x is

    .. math:: T(n) + \frac{\nu + n}{2} \log \left| I + \frac{1}{\text{scale}} \Big(
        \sum x x' - \frac{(\sum x)(\sum x)'}{\kappa + n} \Big) \right|

    Here n is the number of samples of the cell, and sums are over these samples. T(n) contains all
    parts that depend on n only; entry n of ``table`` is T(n). Statistics are the first moments,
    then the upper triangle of the second moments, row by row of the matrix.
    """

    sends: ClassVar[frozenset[str]] = _DATA
    table: Table
    kappa: Table
    nu: Table
    scale: Table
    n_features: int = field(metadata=_STATIC)

    def _scale_matrix(self, cell: jax.Array) -> jax.Array:
        """Matrix (..., m, m) whose determinant is in the marginal likelihood of the cell."""
        m, n = self.n_features, cell[..., -1]
        first = cell[..., :m]
        outer = first[..., :, None] * first[..., None, :] / (self.kappa + n)[..., None, None]
        return jnp.eye(m) + (cell[..., m + moment_positions(m)] - outer) / self.scale

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Description length in nats (...) of cells with statistics (..., p)."""
        n = cell[..., -1]
        return 0.5 * (self.nu + n) * log_determinant(self._scale_matrix(cell)) + _look_up(
            self.table, n
        )

    def prepare_join(self, cells: jax.Array) -> Any:
        """Precompute arrays for `join_costs`, from statistics (p, K) of K cells."""
        n, precision = cells[-1], self.kappa + cells[-1]
        white, log_det = jax.vmap(whitener)(self._scale_matrix(cells.T))
        mean = jnp.einsum("kij,jk->ik", white, cells[: self.n_features] / precision)
        constant = _table_difference(self.table, n) + 0.5 * log_det
        factor = precision / (precision + 1) / self.scale
        return constant, 0.5 * (self.nu + n + 1), factor, mean, jnp.moveaxis(white, 0, -1)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Cost increase (K, b) if one of b samples ``row`` (p, b) joins one of K cells."""
        constant, half, factor, mean, white = prepared
        return constant + half * jnp.log1p(
            factor * _mahalanobis_squares(white, row[: self.n_features], mean)
        )


def _mahalanobis_squares(white: jax.Array, row: jax.Array, mean: jax.Array) -> jax.Array:
    """Squared Mahalanobis distances (K, b) of samples ``row`` (m, b) from the means of K cells.

    ``white`` (m, m, K, 1) are whitening matrices of the cells, and ``mean`` (m, K, 1) the whitened
    means.
    """
    return sum_of_squares(jnp.einsum("ijk,jb->ikb", white[..., 0], row) - mean)


def student_t_nats(square: Any, log_det: Any, factor: Any, freedom: Any, m: int) -> jax.Array:
    """Minus the log posterior predictive density, a Student t density, of vectors (m,).

    All parameters except ``m`` may be arrays; the result has the shape to which they broadcast.

    Parameters
    ----------
    square : squared Mahalanobis distance of the vector from the posterior mean, with the posterior
        scatter as matrix
    log_det : log determinant of the posterior scatter
    factor : variance of the difference of the vector and the posterior mean, in units of the
        covariance
    freedom : posterior degrees of freedom of the covariance
    m : number of entries of the vector
    """
    constant = log_gamma(0.5 * (freedom + 1 - m)) - log_gamma(0.5 * (freedom + 1))
    constant = constant + 0.5 * (m * np.log(np.pi) + log_det)
    return constant + 0.5 * ((freedom + 1) * jnp.log1p(square / factor) + m * jnp.log(factor))


@node
class NormalWishart:
    r"""Code of Gaussian vectors with one covariance per cell, and traced hyperparameters.

    The prior of the mean :math:`\mu` and covariance :math:`\Sigma` of a cell is
    :math:`\mu | \Sigma \sim N(0, \Sigma / \kappa)` and :math:`\Sigma \sim IW(m + 1 + f, f v I)`,
    with ``freedom`` f and ``variance`` v. IW is the inverse Wishart distribution. The prior mean of
    the covariance is v I. If ``full`` is False, features are independent, and each has this prior
    with m = 1. Statistics are the first moments, followed by the upper triangle of the second
    moments if ``full``, else by the squares. ``power`` is the tempering exponent of the likelihood.

    If ``weighted``, a vector of weight w has the covariance :math:`\Sigma / w`. The moments of such
    a vector are multiplied by w, and are followed by w. The factor w^(m/2) of the density is left
    out.

    The array ``log_gammas`` is the table that `with_table` adds. Without the table, a program
    contains the log-gamma function wherever it calls the code, and takes longer to compile.
    """

    sends: ClassVar[frozenset[str]] = _DATA
    kappa: Table
    variance: Table
    freedom: Table
    n_features: int = field(metadata=_STATIC)
    full: bool = field(metadata=_STATIC)
    power: Table
    weighted: bool = field(default=False, metadata=_STATIC)
    log_gammas: Table | None = None

    def with_table(self, n_max: int) -> NormalWishart:
        """Add a table of log-gamma functions, for cells of at most ``n_max`` samples."""
        table = replace(self, log_gammas=None).log_gamma_of(np.arange(n_max + 2))
        return replace(self, log_gammas=table)

    def log_gamma_of(self, n: Any) -> jax.Array:
        """Log of the multivariate gamma function at half the posterior degrees of freedom.

        The numbers of samples n (...) of the cells are integers.
        """
        if self.log_gammas is not None:
            return _look_up(self.log_gammas, n)
        size = self.n_features if self.full else 1
        return log_multigamma(0.5 * (size + 1 + self.freedom + self.power * n), size)

    def total_weight(self, cell: jax.Array) -> jax.Array:
        """Sum (...) of the weights of the samples, from statistics (..., p) of cells."""
        m = self.n_features
        position = m + (m * (m + 1) // 2 if self.full else m)
        return cell[..., position if self.weighted else -1]

    def mean(self, cell: jax.Array) -> jax.Array:
        """Posterior mean (..., m) of the mean vector of cells with statistics (..., p)."""
        m, cell = self.n_features, self.power * cell
        return cell[..., :m] / (self.kappa + self.total_weight(cell)[..., None])

    def scatter(self, cell: jax.Array) -> jax.Array:
        """Posterior scatter about the posterior mean, from statistics (..., p) of cells.

        The result is a matrix (..., m, m) if ``full``, else the diagonal (..., m) of the matrix.
        """
        m, cell = self.n_features, self.power * cell
        precision, first = self.kappa + self.total_weight(cell)[..., None], cell[..., :m]
        prior = self.freedom * self.variance
        if not self.full:
            return prior + cell[..., m : 2 * m] - first * first / precision
        outer = first[..., :, None] * first[..., None, :] / precision[..., None]
        return prior * jnp.eye(m) + cell[..., m + moment_positions(m)] - outer

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Description length in nats (...) of cells with statistics (..., p)."""
        n, scatter = self.power * cell[..., -1], self.scatter(cell)
        size = self.n_features if self.full else 1
        freedom, inside = size + 1 + self.freedom, jnp.log(self.freedom * self.variance)
        log_det = log_determinant(scatter) if self.full else sum_of_logs(scatter, -1)
        gammas = self.log_gamma_of(jnp.zeros(())) - self.log_gamma_of(cell[..., -1])
        rest = 0.5 * n * np.log(np.pi) - 0.5 * freedom * inside
        rest = (
            rest
            + 0.5 * jnp.log1p(self.power * self.total_weight(cell) / self.kappa)
            + gammas / size
        )
        return self.n_features * rest + 0.5 * (freedom + n) * log_det

    def prepare_join(self, cells: jax.Array) -> Any:
        """Precompute arrays for `join_costs`, from statistics (p, K) of K cells."""
        m, n = self.n_features, self.power * cells[-1]
        size, precision = (
            m if self.full else 1,
            self.kappa + self.power * self.total_weight(cells.T),
        )
        freedom = size + 1 + self.freedom + n
        scatter, mean = self.scatter(cells.T), self.power * cells[:m] / precision
        constant = m / size * (self.log_gamma_of(cells[-1]) - self.log_gamma_of(cells[-1] + 1))
        constant = constant + 0.5 * self.power * m * np.log(np.pi)
        if not self.full:
            constant = constant + 0.5 * self.power * sum_of_logs(scatter, -1)
            return constant, freedom, precision, mean, scatter.T
        white, log_det = whitener(scatter)
        constant = constant + 0.5 * self.power * log_det
        mean = jnp.einsum("kij,jk->ik", white, mean)
        return constant, freedom, precision, mean, jnp.moveaxis(white, 0, -1)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Cost increase (K, b) if one of b samples ``row`` (p, b) joins one of K cells."""
        constant, freedom, precision, mean, scatter = prepared
        added: Any = self.power
        if self.weighted:
            weight = self.total_weight(row.T)
            row, added = row / jnp.where(weight > 0, weight, 1), self.power * weight
        row = row[: self.n_features]
        # Factor of the squared distance from the mean by which the scatter grows.
        factor = added * precision / (precision + added)
        constant = constant + 0.5 * self.n_features * jnp.log1p(added / precision)
        if self.full:
            log_growth = jnp.log1p(factor * _mahalanobis_squares(scatter, row, mean))
        else:
            log_growth = sum_of_logs(1 + factor * jnp.square(row[:, None] - mean) / scatter)
        return constant + 0.5 * (freedom + self.power) * log_growth

    def weighted_join_costs(self, prepared: Any, row: jax.Array, weights: jax.Array) -> jax.Array:
        """Cost increase (K, G, b) if one of b samples joins one of K cells with one of G weights.

        ``row`` (p, b) are the statistics of the samples for weight 1, and ``weights`` (G,) are the
        weights that are compared. ``prepared`` is described by `CellCode.join_costs`.
        """
        constant, freedom, precision, mean, scatter = prepared
        row, added = row[: self.n_features], self.power * weights[:, None]
        constant, freedom, precision = constant[:, None], freedom[:, None], precision[:, None]
        factor = added * precision / (precision + added)
        constant = constant + 0.5 * self.n_features * jnp.log1p(added / precision)
        if self.full:
            log_growth = jnp.log1p(factor * _mahalanobis_squares(scatter, row, mean)[:, None])
        else:
            squares = jnp.square(row[:, None] - mean) / scatter
            log_growth = sum_of_logs(1 + factor * squares[:, :, None])
        return constant + 0.5 * (freedom + self.power) * log_growth


# Constructors


def count_tables(
    n_symbols: int, n_max: int, concentration: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the tables ``count_nats`` and ``total_nats`` of a `CountCode`.

    Parameters
    ----------
    n_symbols : int
        Number of different symbols.
    n_max : int
        Largest count of a cell.
    concentration : float, optional
        Concentration parameter of a symmetric Dirichlet prior of the symbols. None for normalised
        maximum likelihood.

    Raises
    ------
    ValueError
        If the table of exact complexities needs more than 200,000,000 operations.
    """
    n = np.arange(n_max + 1)
    if concentration is None:
        if n_symbols * (n_max + 1) > MAX_TABLE_STEPS:
            raise ValueError(
                "an exact table of complexities takes too long; got "
                f"{n_symbols} different symbols and counts of up to {n_max}; use energy='conjugate'"
            )
        complexity = _multinomial_complexities(n_symbols, n)
        return -xlogy(n, n), xlogy(n, n) + complexity
    a, b = concentration, n_symbols * concentration
    return gammaln(a) - gammaln(n + a), gammaln(n + b) - gammaln(b)


def _multinomial_complexities(k: int, n: np.ndarray) -> np.ndarray:
    """Parametric complexities of sequences of ``k`` different symbols.

    ``n`` is the array of the lengths of the sequences. The complexities are computed in chunks, to
    limit the memory.
    """
    size = max(int(4_000_000 // k), 1)
    return np.concatenate([multinomial_table(k, part)[-1] for part in _split_lengths(n, size)])


def _split_lengths(n: np.ndarray, size: int) -> list[np.ndarray]:
    return [n[i : i + size] for i in range(0, n.size, size)]


def label_code(
    n: int, max_clusters: int, *, concentration: float | None = None, unordered: bool = True
) -> tuple[LabelCode, np.ndarray]:
    """Make the code of the labels of ``n`` samples: a part per cell, and A(k) for k clusters.

    Parameters
    ----------
    n : int
        Number of samples.
    max_clusters : int
        Largest number of clusters.
    concentration : float, optional
        Concentration parameter of a symmetric Dirichlet prior of the cluster weights. None for
        normalised maximum likelihood: ``-sum n_j log(n_j/n) + log C(k, n)``, with sizes n_j of the
        clusters and the parametric complexity log C.
    unordered : bool, default=True
        Whether the partition is unordered. If so, log k! is subtracted, since k! labelings of k
        clusters give the same partition.

    Returns
    -------
    code : LabelCode
    sizes : ndarray of shape (max_clusters + 1,)
        A(k) in nats; infinite for k = 0 unless ``n`` is 0.
    """
    count = np.arange(n + 2)  # one entry more than there are samples, for join costs
    k = np.arange(1, max_clusters + 1)
    if concentration is None:
        count_nats = -xlogy(count, count)
        sizes = xlogy(n, n) + multinomial_table(max_clusters, n)
    else:
        a = concentration
        count_nats = gammaln(a) - gammaln(count + a)
        sizes = gammaln(n + k * a) - gammaln(k * a)
    if unordered:
        sizes = sizes - gammaln(k + 1)
    return LabelCode(count_nats), np.concatenate([[np.inf if n else 0.0], sizes])


def normal_nml(n: int, low: np.ndarray, high: np.ndarray, mean_range: np.ndarray) -> NormalNML:
    """Make the `NormalNML` code of up to ``n`` samples.

    ``low`` and ``high`` (n_features,) bound the standard deviations. ``mean_range`` (n_features,)
    is the width of the range of the means.
    """
    low, high = np.asarray(low, float), np.asarray(high, float)
    count = np.arange(n + 1)[:, None]
    table = gaussian_complexity(count, low, high, np.asarray(mean_range, float))
    return NormalNML(np.asarray(table).sum(1), low, high, low.size)


def normal_inverse_gamma(
    n: int, n_features: int, *, kappa: float, shape: float, scale: float
) -> NormalInverseGamma:
    """Make the `NormalInverseGamma` code of up to ``n`` samples; all features have one prior."""
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
    """Make the `NormalInverseWishart` code of up to ``n`` samples.

    The degrees of freedom ``nu`` must exceed ``n_features - 1``.
    """
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
