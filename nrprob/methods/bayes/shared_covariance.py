r"""Clusters that share one covariance, with all that is common to them integrated out.

Row i of cluster c, and of known group g if there are any, is

    x_i = a_g + b_c + e_i,   e_i ~ N(0, S),   b_c ~ N(0, S / kappa),   a_g ~ N(0, S / omega),

and S ~ inverse-Wishart(d + 1 + nu, nu s I), so that s is the variance to be expected of a column.
Where numbers t_i are known of a row, in place of a_g stands A t_i, the coefficients of every number
from N(0, S / omega).
Given a partition, S and all centres are integrated out: a regression on indicators with a
matrix-normal prior. So a cluster that is cut in two makes S smaller for all clusters at once, which
it could not if S were given; only rows that move a few at a time see an S that was drawn.

Rows may have weights: e_i ~ N(0, S / w_i). Their statistics are then features times w_i, and w_i
after them; the factors w_i^(d/2) of their density are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.target import Odds, Partition, Target
from nrprob.engines.sample.uniforms import normal
from nrprob.methods.bayes.hyperparameters import NumbersOnly, Prior
from nrprob.methods.bayes.six_move_draws import log_gamma_variate
from nrprob.methods.bayes.weights import reweighted, unweighted
from nrprob.statistics.codes import code_term, student_t_nats
from nrprob.statistics.gammas import log_multigamma
from nrprob.statistics.matrices import log_determinant, whitener
from nrprob.statistics.sums import sum_of_squares
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}


class _Fit(NamedTuple):
    """Regression on what is known and on clusters.

    ``scatter`` (d, d) with the prior's, ``log_det`` of what the coefficients were told, ``alone``
    (L, d) means of those of the L groups or columns that are known if there were no clusters,
    ``between`` (L, K) what these take from them, centres (K, d), ``half`` (K, K) whose square is
    the covariance of the centres with all else integrated out, and ``root``, whose square is that
    of the known ones' given the centres, (L, L) or, of groups, a diagonal (L,).
    """

    scatter: jax.Array
    log_det: jax.Array
    alone: jax.Array
    between: jax.Array
    centres: jax.Array
    half: jax.Array
    root: jax.Array

    @property
    def known(self) -> jax.Array:
        """Means (L, d) of the known groups' offsets, or of the columns' coefficients."""
        return self.alone - self.between @ self.centres


class _Solved(NamedTuple):
    """Of a `_Fit`, what does not ask for spreads of coefficients, and means ``known``."""

    scatter: jax.Array
    log_det: jax.Array
    known: jax.Array
    centres: jax.Array


def wishart_root(key: jax.Array, white: jax.Array, freedom: jax.Array) -> jax.Array:
    """Roots (..., d, d) of Wishart matrices, ``root root'``, whose scales are ``white' white``."""
    gamma_key, normal_key = jax.random.split(key)
    d = white.shape[-1]
    shape = 0.5 * (jnp.asarray(freedom)[..., None] - np.arange(d))
    diagonal = jnp.sqrt(2) * jnp.exp(0.5 * log_gamma_variate(gamma_key, shape))
    below = jnp.tril(normal(normal_key, white.shape, white.dtype), -1)
    return jnp.swapaxes(white, -1, -2) @ (below + diagonal[..., None] * np.eye(d))


@node
class TiedTarget(NumbersOnly):
    """A distribution over partitions; see `nrprob.methods.bayes.hyperparameters.PriorTarget`.

    Attributes
    ----------
    plain : of labels and classes alone; its rows are features, numbers that are known, weights if
        there are any, classes and 1
    square : (d + Q, d + Q) sum of the outer products of features and numbers, with their weights
    prior : the numbers in use
    grid : their grids
    power : that the density of rows given all else is raised to
    weighted : whether rows have weights
    n_numbers : Q numbers that are known of a row
    root : (Q, Q) whose square is the covariance of their coefficients given all else
    log_det : log of the determinant of its inverse
    """

    plain: Target
    square: jax.Array
    prior: Prior
    grid: Prior
    n_features: int = field(metadata=_STATIC)
    power: jax.Array | np.float64
    weighted: bool = field(default=False, metadata=_STATIC)
    n_numbers: int = field(default=0, metadata=_STATIC)
    root: jax.Array | None = None
    log_det: jax.Array | None = None

    def __getattr__(self, name: str) -> Any:
        if name in SHARED:
            return getattr(self.plain, name)
        raise AttributeError(name)

    def at(self, prior: Prior) -> TiedTarget:
        """The distribution given other numbers."""
        return replace(self, prior=prior)._with_root()

    def with_room(self, n_slots: int) -> TiedTarget:
        """The distribution of those partitions that have ``n_slots`` clusters at most."""
        return replace(self, plain=self.plain.with_room(n_slots))

    def _with_root(self) -> TiedTarget:
        if not self.n_numbers:
            return self
        gram = self.power * self.square[self.n_features :, self.n_features :]
        root, log_det = whitener(self.prior.group_precision * jnp.eye(self.n_numbers) + gram)
        return replace(self, root=root, log_det=log_det)

    @property
    def additive(self) -> None:
        """No distribution: clusters share a covariance, so that their lengths do not add up."""

    @property
    def without_features(self) -> Target:
        """Distribution of labels and classes alone."""
        return self.plain

    @property
    def _end(self) -> int:
        """Columns of features and numbers."""
        return self.n_features + self.n_numbers

    def _moved(self, known: jax.Array, rows: jax.Array, group: jax.Array) -> jax.Array:
        """What is known moves rows (b, d + Q) of groups (b,) by: (b, d)."""
        return rows[..., self.n_features : self._end] @ known if self.n_numbers else known[group]

    def _moved_cells(self, known: jax.Array, cells: jax.Array) -> jax.Array:
        """What is known moves sums of rows (groups, K, p) by: (groups, K, d)."""
        if self.n_numbers:
            return cells[..., self.n_features : self._end] @ known
        return self._mass(cells)[..., None] * known[:, None]

    @property
    def _told(self) -> bool:
        """Whether anything is known."""
        return self.n_numbers > 0 or self.plain.n_groups > 1

    def _mass(self, statistics: jax.Array) -> jax.Array:
        """Sum of the weights of the rows of statistics (..., p)."""
        return statistics[..., self._end if self.weighted else -1]

    def _rows(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Features and numbers (b, d + Q) of rows (b, p) as they are, and weights (b,)."""
        weight, rows = self._mass(x), x[:, : self._end]
        return unweighted(rows, weight) if self.weighted else rows, weight

    def _of(self, x: jax.Array, weight: jax.Array) -> TiedTarget:
        """The distribution of rows of other statistics (n', p), of weights (n',)."""
        rows = unweighted(x[:, : self._end], jnp.sqrt(weight))
        return replace(self, plain=replace(self.plain, x=x), square=rows.T @ rows)

    def reweighted(self, weight: jax.Array) -> TiedTarget:
        """The distribution under other weights (n',) of its rows."""
        return self._of(reweighted(self.plain.x, weight, self._end + 1), weight)._with_root()

    def with_rows(self, rows: jax.Array) -> TiedTarget:
        """The distribution of rows (n', d) in place of its own."""
        x = self.plain.x
        return self._of(self.restated(x, rows), self._mass(x))

    def restated(self, x: jax.Array, rows: jax.Array) -> jax.Array:
        """Statistics (b, p) of other features (b, d)."""
        return jnp.concatenate([rows * self._mass(x)[:, None], x[:, self.n_features :]], 1)

    def _fit(self, cells: jax.Array) -> _Fit:
        """Fit cells (groups, K, p)."""
        d, (kappa, omega, s, nu) = self.n_features, self.prior
        n, sums = self.power * self._mass(cells), self.power * cells[..., :d]
        scatter = s * nu * jnp.eye(d) + self.power * self.square[:d, :d]
        precision = kappa + n.sum(0)
        if not self._told:  # rows are centred
            right = sums[0] / jnp.sqrt(precision)[:, None]
            log_det, half = jnp.log(precision / kappa).sum(), jnp.diag(1 / jnp.sqrt(precision))
            nothing = jnp.zeros((1, d), sums.dtype), jnp.zeros_like(n), half @ right, half
            return _Fit(scatter - right.T @ right, log_det, *nothing, jnp.ones(1))
        if self.n_numbers:
            n = self.power * cells[0, :, d : self._end].T
            of_known, root = self.power * self.square[d:, :d], cast(jax.Array, self.root)
            alone, between = root.T @ (root @ of_known), root.T @ (root @ n)
            explained, log_more = alone.T @ of_known, self.log_det - len(n) * jnp.log(omega)
        else:
            per = omega + n.sum(1)
            root, alone, between = 1 / jnp.sqrt(per), sums.sum(1) / per[:, None], n / per[:, None]
            explained, log_more = alone.T @ (alone * per[:, None]), jnp.log(per / omega).sum()
        half, log_det = whitener(jnp.diag(precision) - n.T @ between)
        right = half @ (sums.sum(0) - n.T @ alone)
        scatter = scatter - explained - right.T @ right
        log_det = log_det + log_more - n.shape[1] * jnp.log(kappa)
        return _Fit(scatter, log_det, alone, between, half.T @ right, half, root)

    def _levels(self, fit: _Fit, rows: jax.Array, group: jax.Array) -> tuple[jax.Array, ...]:
        """What is known of rows (b, d + Q), at levels.

        Their offsets (levels, d), what centres take from these (levels, K), their variances given
        centres (levels,), and the level (b,) of every row.
        """
        if not self.n_numbers:
            return fit.known, fit.between, jnp.square(fit.root), group
        numbers = rows[:, self.n_features :]
        spread = jnp.square(numbers @ fit.root.T).sum(1)
        return numbers @ fit.known, numbers @ fit.between, spread, jnp.arange(len(rows))

    def _solved(self, cells: jax.Array) -> _Solved:
        """What `_fit` finds, but for spreads, by the shorter way.

        That is a factor of as many rows as there are clusters, or things known; the numbers of the
        prior are drawn by dozens of them. Where less is known, clusters are eliminated first.
        """
        d, (kappa, omega, s, nu) = self.n_features, self.prior
        n_known = self.n_numbers or self.plain.n_groups
        if not self._told or n_known > self.plain.n_slots:
            fit = self._fit(cells)
            return _Solved(fit.scatter, fit.log_det, fit.known, fit.centres)
        n, sums = self.power * self._mass(cells), self.power * cells[..., :d]
        precision, of_clusters = kappa + n.sum(0), sums.sum(0)
        if self.n_numbers:
            n = self.power * cells[0, :, d : self._end].T
            own, of_known = (self.power * self.square[d:, at] for at in (slice(d, None), slice(d)))
        else:
            own, of_known = jnp.diag(n.sum(1)), sums.sum(1)
        between = n / precision
        half, log_det = whitener(omega * jnp.eye(n_known) + own - between @ n.T)
        right = half @ (of_known - between @ of_clusters)
        scatter = s * nu * jnp.eye(d) + self.power * self.square[:d, :d]
        scatter = scatter - (of_clusters.T / precision) @ of_clusters - right.T @ right
        log_det = log_det - n_known * jnp.log(omega) + jnp.log(precision / kappa).sum()
        known = half.T @ right
        return _Solved(scatter, log_det, known, (of_clusters - n.T @ known) / precision[:, None])

    def features(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the marginal likelihood of the features, in nats."""
        result, d, (_, _, s, nu) = self._solved(cells), self.n_features, self.prior
        n, freedom = self.power * cells[..., -1].sum(), d + 1 + nu
        return (
            0.5 * n * d * np.log(np.pi)
            + log_multigamma(0.5 * freedom, d)
            - log_multigamma(0.5 * (freedom + n), d)
            - 0.5 * freedom * d * jnp.log(s * nu)
            + 0.5 * (freedom + n) * log_determinant(result.scatter)
            + 0.5 * d * result.log_det
        )

    def length(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the probability of data and partition, in nats."""
        return self.plain.length(cells) + self.features(cells)

    def features_of(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """What the features of single rows (b, p) of groups (b,) add to every cluster: (K, b).

        With ``weights`` (G,), what rows of weight 1 add when they count so much: (K, G, b).
        """
        d, fit = self.n_features, self._fit(cells)
        freedom = d + 1 + self.prior.freedom + self.power * cells[..., -1].sum()
        inverse = fit.half.T @ fit.half
        means, spread = fit.centres[:, None], jnp.diagonal(inverse)[:, None]
        rows, weight = self._rows(x)
        if self._told:
            offsets, between, own, level = self._levels(fit, rows, group)
            inside = between @ inverse
            spread = spread - 2 * inside.T + own + (inside * between).sum(1)
            means, spread = means + offsets[level], spread[:, level]
        white, log_det = whitener(fit.scatter)
        away = jnp.square(rows[:, :d] @ white.T - means @ white.T).sum(-1)
        if weights is not None:
            weight, spread, away = weights[:, None], spread[:, None], away[:, None]
        return student_t_nats(weight * away, log_det, 1 + weight * spread, freedom, d)

    def joining(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What single rows (b, p) of groups (b,) add to every cluster: (K, b)."""
        return self.features_of(cells, x, group) + self.plain.joining(cells, x, group)

    def left_out(self, cells: jax.Array, labels: jax.Array, weight: Any = 1.0) -> jax.Array:
        """Log density (..., n') of every row, of weights (..., 1), given all other rows."""
        d, fit, (rows, own_weight) = self.n_features, self._fit(cells), self._rows(self.plain.x)
        power = self.power
        freedom = d + 1 + self.prior.freedom + power * (cells[..., -1].sum() - 1)  # without it
        leverage = jnp.square(fit.half).sum(0)[labels]
        away = rows[:, :d] - fit.centres[labels]
        if self._told:
            offsets, between, spread, level = self._levels(fit, rows, self.plain.group)
            away = away - offsets[level]
            own = (fit.half @ between.T)[:, level]
            leverage = leverage - 2 * (fit.half[:, labels] * own).sum(0)
            leverage = leverage + jnp.square(own).sum(0) + spread[level]
        white, log_det = whitener(fit.scatter)
        counted = power * own_weight
        left = 1 - counted * leverage
        away = jnp.square(away @ white.T).sum(1)
        share = counted * away / left
        # The scatter without the row has (1 - share) times the determinant.
        away = away / left**2 / (1 - share)
        factor = 1 + weight * leverage / left
        return -student_t_nats(weight * away, log_det + jnp.log1p(-share), factor, freedom, d)

    def odds(
        self, state: Partition, a: jax.Array, b: jax.Array
    ) -> Callable[[jax.Array, jax.Array], Odds]:
        """Log odds by which rows that leave clusters ``a`` and ``b`` join one of two new ones.

        Those of rows (m, p) of known groups (m,). The covariance is that of all rows about the
        clusters they are in so far, the two old ones taken as one: it is the same whether they are
        one or apart.
        """
        d, kappa = self.n_features, self.prior.centre_precision
        both = state.cells[:, a] + jnp.where(a == b, 0, 1) * state.cells[:, b]
        cells = state.cells.at[:, b].set(0).at[:, a].set(both)
        fit = self._solved(cells)
        x, labels, mass = self.plain.x, state.labels, self.plain.x[:, -1]

        def left(x, group):
            """Rows as they are but for what is known of them, and their weights."""
            rows, weight = self._rows(x)
            return rows[:, :d] - self._moved(fit.known, rows, group), weight

        rows, weight = left(x, self.plain.group)
        inside = (labels == a) | (labels == b)
        apart = rows - fit.centres[jnp.where(inside, a, labels)]
        root = jnp.sqrt(weight)
        rest, union = (apart * (where * root)[:, None] for where in (~inside, inside))
        few = d + 2.0  # rows, spread as the union is: the first rows to come have no other spread
        base = self.prior.variance * self.prior.freedom * jnp.eye(d)
        share = few / jnp.maximum((inside * mass).sum(), 1)
        base = base + rest.T @ rest + share * (union.T @ union)
        n_base = d + 1 + self.prior.freedom + few + (~inside * mass).sum()

        def of(x, group):
            (rows, weight), mass = left(x, group), x[:, -1]
            root = jnp.sqrt(weight)

            def given(two, taken, side):
                n = self._mass(two)
                sums = (two[..., :d] - self._moved_cells(fit.known, two)).sum(0)
                n = n.sum(0)
                means = sums / (kappa + n)[:, None]
                near = rows - means[side.astype(jnp.int32)]
                near = near * (taken * root)[:, None]
                white = whitener((base + near.T @ near) / (n_base + (taken * mass).sum()))[0]
                factor = 1 + weight / (kappa + n)[:, None]
                away = (white @ rows.T)[:, None] - (white @ means.T)[..., None]
                away = weight * sum_of_squares(away) / factor
                cost = 0.5 * (away + d * jnp.log(factor))
                cost = cost + self.plain.joining(two, x, group)
                return cost[0] - cost[1]

            return given

        return of

    def _drawn(self, cells: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Root (d, d) of the precision, ``root root'``, and in its units centres and what is known.

        That is offsets of groups, or coefficients of numbers.
        """
        d = self.n_features
        wishart_key, centre_key, group_key = jax.random.split(key, 3)
        fit = self._fit(cells)
        freedom = d + 1 + self.prior.freedom + self.power * cells[..., -1].sum()
        root = wishart_root(wishart_key, whitener(fit.scatter)[0], freedom)
        noise = normal(centre_key, fit.centres.shape, cells.dtype)
        centres = fit.centres @ root + fit.half.T @ noise
        if not self._told:
            return root, centres, fit.known
        known = fit.alone @ root - fit.between @ centres
        noise = normal(group_key, known.shape, known.dtype)
        noise = fit.root.T @ noise if self.n_numbers else noise * fit.root[:, None]
        return root, centres, known + noise

    def for_rows(self, cells: jax.Array, key: jax.Array) -> Target:
        """Distribution given the covariance and the offsets of known groups, which are drawn."""
        d, x = self.n_features, self.plain.x
        root, _, known = self._drawn(cells, key)
        rows = x[:, :d] @ root
        if self.n_numbers:  # which come with their weights
            rows = rows - x[:, d : self._end] @ known
        elif self._told:
            rows = rows - known[self.plain.group] * self._mass(x)[:, None]
        mass = self._end if self.weighted else -1
        code = UnitNormal(self.prior.centre_precision, self.power, d, mass)
        return replace(
            self.plain,
            terms=(code_term(code), *self.plain.terms),
            x=jnp.concatenate([rows, x[:, d:]], 1),
            group=jnp.zeros_like(self.plain.group),
            n_groups=1,
        )

    def left_uncoded(self, x: jax.Array) -> jax.Array:
        """Nats (n',) of rows of weight 1 that the code of `for_rows` leaves out."""
        return 0.5 * jnp.square(x[:, : self.n_features]).sum(1)

    def distances(self, cells: jax.Array, labels: jax.Array, key: jax.Array) -> jax.Array:
        """Squares (n',) of distances from centres, by the covariance; all of these are drawn."""
        root, centres, known = self._drawn(cells, key)
        rows, group = self._rows(self.plain.x)[0], self.plain.group
        away = rows[:, : self.n_features] @ root - centres[labels]
        return jnp.square(away - self._moved(known, rows, group)).sum(1)


@jit_by_size()
def begin_tied(target: TiedTarget) -> TiedTarget:
    """The distribution with what it wants to know of the numbers that are known."""
    return target.at(target.prior)


# What a distribution that has a plain one takes from it.
SHARED = frozenset({
    "x", "group", "partners", "scale", "n_groups", "sizes", "n_slots", "max_clusters", "terms",
    "cells", "scales",
})  # fmt: skip


@node
class UnitNormal:
    """Rows of covariance I about a centre from N(0, I / kappa), but for what all rows add.

    ``d/2 log((kappa + n) / kappa) - |sum|^2 / (2 (kappa + n))``, of sums and numbers that the
    ``power`` of their density multiplies, and n is the sum in the place ``mass``: of rows, which
    is in the last one, or of their weights.
    """

    sends: ClassVar[frozenset[str]] = frozenset({"data", "parameters"})
    kappa: jax.Array
    power: jax.Array | np.float64
    n_features: int = field(metadata=_STATIC)
    mass: int = field(default=-1, metadata=_STATIC)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        d, cell = self.n_features, self.power * cell
        n = self.kappa + cell[..., self.mass]
        return 0.5 * (d * jnp.log(n / self.kappa) - jnp.square(cell[..., :d]).sum(-1) / n)

    def prepare_join(self, cells: jax.Array) -> Any:
        """What `join_costs` wants to know of cells (p, K)."""
        d, cells = self.n_features, self.power * cells
        n, more = self.kappa + cells[self.mass], self.power
        square = jnp.square(cells[:d]).sum(0)
        if self.mass >= 0:  # what a row adds depends on its weight in more than one way
            return cells[:d], n, square
        constant = d * jnp.log1p(more / n) + more * square / (n * (n + more))
        return more * cells[:d] / (n + more), 0.5 * constant, 0.5 * more**2 / (n + more)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        if self.mass >= 0:
            return self._join_weighted(prepared, row)
        slope, constant, curvature = prepared
        row = row[: self.n_features]
        return constant - slope[..., 0].T @ row - curvature * jnp.square(row).sum(0)

    def _join_weighted(self, prepared: Any, row: jax.Array) -> jax.Array:
        d, (sums, n, square) = self.n_features, prepared
        row, more = self.power * row[:d], self.power * row[self.mass]
        both = square + 2 * sums[..., 0].T @ row + jnp.square(row).sum(0)
        return 0.5 * (d * jnp.log1p(more / n) + square / n - both / (n + more))

    def weighted_join_costs(self, prepared: Any, row: jax.Array, weights: jax.Array) -> jax.Array:
        """Nats (K, G, b) that rows (p, b) of weight 1 add if they have weights (G,)."""
        d, (sums, n, square) = self.n_features, prepared
        more, n, square = self.power * weights[:, None], n[:, None], square[:, None]
        along, own = (sums[..., 0].T @ row[:d])[:, None], jnp.square(row[:d]).sum(0)
        both = square + 2 * more * along + jnp.square(more) * own
        return 0.5 * (d * jnp.log1p(more / n) + square / n - both / (n + more))
