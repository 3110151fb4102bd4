r"""Clusters that share one covariance, with all that is common to them integrated out.

Row i of cluster c, and of known group g if there are any, is

    x_i = a_g + b_c + e_i,   e_i ~ N(0, S),   b_c ~ N(0, S / kappa),   a_g ~ N(0, S / omega),

and S ~ inverse-Wishart(d + 1 + nu, nu s I), so that s is the variance to be expected of a column.
Given a partition, S and all centres are integrated out: a regression on indicators with a
matrix-normal prior. So a cluster that is cut in two makes S smaller for all clusters at once, which
it could not if S were given; only rows that move a few at a time see an S that was drawn.

Rows may have weights: e_i ~ N(0, S / w_i). Their statistics are then features times w_i, and w_i
after them; the factors w_i^(d/2) of their density are left out.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.target import Odds, Partition, Target
from nrprob.methods.bayes.prior import NumbersOnly, Prior
from nrprob.methods.bayes.six_move_draws import log_gamma_variate
from nrprob.methods.bayes.weights import reweighted, unweighted
from nrprob.statistics.codes import code_term, student
from nrprob.statistics.gammas import log_multigamma
from nrprob.statistics.matrices import whitener
from nrprob.statistics.sums import sum_of_squares
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}


class _Fit(NamedTuple):
    """Regression on groups and clusters.

    ``scatter`` (d, d) with the prior's, ``log_det`` of what the coefficients were told, their means
    (L, d) and (K, d), ``half`` (K, K) whose square is the covariance of the clusters' with the
    groups' integrated out, and precisions (L,) of the groups' given those.
    """

    scatter: jax.Array
    log_det: jax.Array
    groups: jax.Array
    centres: jax.Array
    half: jax.Array
    precision: jax.Array


def wishart_root(key: jax.Array, white: jax.Array, freedom: jax.Array) -> jax.Array:
    """Root (d, d) of a Wishart matrix, ``root root'``, whose scale is ``white' white``."""
    gamma_key, normal_key = jax.random.split(key)
    d = len(white)
    shape = 0.5 * (freedom - jnp.arange(d))
    diagonal = jnp.sqrt(2) * jnp.exp(0.5 * log_gamma_variate(gamma_key, shape))
    below = jnp.tril(jax.random.normal(normal_key, (d, d), white.dtype), -1)
    return white.T @ (below + jnp.diag(diagonal))


@node
class TiedTarget(NumbersOnly):
    """A distribution over partitions; see `nrprob.methods.bayes.prior.PriorTarget`.

    Attributes
    ----------
    plain : of labels and classes alone; its rows are features, weights if there are any, classes
        and 1
    square : (d, d) sum of the outer products of the rows, with their weights
    prior : the numbers in use
    grid : their grids
    power : that the density of rows given all else is raised to
    weighted : whether rows have weights
    """

    plain: Target
    square: jax.Array
    prior: Prior
    grid: Prior
    n_features: int = field(metadata=_STATIC)
    power: jax.Array | np.float64
    weighted: bool = field(default=False, metadata=_STATIC)

    def __getattr__(self, name: str) -> Any:
        if name in SHARED:
            return getattr(self.plain, name)
        raise AttributeError(name)

    def at(self, prior: Prior) -> TiedTarget:
        """The distribution given other numbers."""
        return replace(self, prior=prior)

    @property
    def without_features(self) -> Target:
        """Distribution of labels and classes alone."""
        return self.plain

    def _mass(self, statistics: jax.Array) -> jax.Array:
        """Sum of the weights of the rows of statistics (..., p)."""
        return statistics[..., self.n_features if self.weighted else -1]

    def _rows(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Features (b, d) of rows (b, p) as they are, and weights (b,)."""
        weight, rows = self._mass(x), x[:, : self.n_features]
        return unweighted(rows, weight) if self.weighted else rows, weight

    def reweighted(self, weight: jax.Array) -> TiedTarget:
        """The distribution under other weights (n',) of its rows."""
        d = self.n_features
        x = reweighted(self.plain.x, weight, d + 1)
        rows = unweighted(x[:, :d], jnp.sqrt(weight))
        return replace(self, plain=replace(self.plain, x=x), square=rows.T @ rows)

    def _fit(self, cells: jax.Array) -> _Fit:
        """Fit cells (groups, K, p)."""
        d, (kappa, omega, s, nu) = self.n_features, self.prior
        n, sums = self.power * self._mass(cells), self.power * cells[..., :d]
        scatter = s * nu * jnp.eye(d) + self.power * self.square
        per, precision = omega + n.sum(1), kappa + n.sum(0)
        if self.plain.n_groups == 1:  # which is none: rows are centred
            right = sums[0] / jnp.sqrt(precision)[:, None]
            log_det = jnp.log(precision / kappa).sum()
            half, groups = jnp.diag(1 / jnp.sqrt(precision)), jnp.zeros((1, d), sums.dtype)
            return _Fit(scatter - right.T @ right, log_det, groups, half @ right, half, per)
        own = sums.sum(1) / per[:, None]
        between = n / per[:, None]
        half, log_det = whitener(jnp.diag(precision) - n.T @ between)
        right = half @ (sums.sum(0) - n.T @ own)
        centres = half.T @ right
        scatter = scatter - own.T @ (own * per[:, None]) - right.T @ right
        log_det = log_det + jnp.log(per / omega).sum() - n.shape[1] * jnp.log(kappa)
        return _Fit(scatter, log_det, own - between @ centres, centres, half, per)

    def features(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the marginal likelihood of the features, in nats."""
        fit, d, (_, _, s, nu) = self._fit(cells), self.n_features, self.prior
        n, freedom = self.power * cells[..., -1].sum(), d + 1 + nu
        return (
            0.5 * n * d * np.log(np.pi)
            + log_multigamma(0.5 * freedom, d)
            - log_multigamma(0.5 * (freedom + n), d)
            - 0.5 * freedom * d * jnp.log(s * nu)
            + 0.5 * (freedom + n) * whitener(fit.scatter)[1]
            + 0.5 * d * fit.log_det
        )

    def length(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the probability of data and partition, in nats."""
        return self.plain.length(cells) + self.features(cells)

    def features_of(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What the features of single rows (b, p) of groups (b,) add to every cluster: (K, b)."""
        d, fit = self.n_features, self._fit(cells)
        n = self.power * self._mass(cells)
        freedom = d + 1 + self.prior.freedom + self.power * cells[..., -1].sum()
        inverse = fit.half.T @ fit.half
        means, spread = fit.centres[:, None], jnp.diagonal(inverse)[:, None]
        if self.plain.n_groups > 1:
            between = n / fit.precision[:, None]  # (L, K)
            inside = between @ inverse
            spread = spread - 2 * inside.T + 1 / fit.precision + (inside * between).sum(1)
            means, spread = means + fit.groups[group], spread[:, group]
        white, log_det = whitener(fit.scatter)
        rows, weight = self._rows(x)
        away = jnp.square(rows @ white.T - means @ white.T).sum(-1)
        return student(weight * away, log_det, 1 + weight * spread, freedom, d)

    def joining(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What single rows (b, p) of groups (b,) add to every cluster: (K, b)."""
        return self.features_of(cells, x, group) + self.plain.joining(cells, x, group)

    def left_out(self, cells: jax.Array, labels: jax.Array, weight: Any = 1.0) -> jax.Array:
        """Log density (..., n') of every row, of weights (..., 1), given all other rows."""
        d, fit, (rows, own_weight) = self.n_features, self._fit(cells), self._rows(self.plain.x)
        power, n = self.power, self.power * self._mass(cells)
        freedom = d + 1 + self.prior.freedom + power * (cells[..., -1].sum() - 1)  # without it
        leverage = jnp.square(fit.half).sum(0)[labels]
        away = rows - fit.centres[labels]
        if self.plain.n_groups > 1:
            group, between = self.plain.group, n / fit.precision[:, None]
            away = away - fit.groups[group]
            own = (fit.half @ between.T)[:, group]
            leverage = leverage - 2 * (fit.half[:, labels] * own).sum(0)
            leverage = leverage + jnp.square(own).sum(0) + 1 / fit.precision[group]
        white, log_det = whitener(fit.scatter)
        counted = power * own_weight
        left = 1 - counted * leverage
        away = jnp.square(away @ white.T).sum(1)
        share = counted * away / left
        # The scatter without the row has (1 - share) times the determinant.
        away = away / left**2 / (1 - share)
        factor = 1 + weight * leverage / left
        return -student(weight * away, log_det + jnp.log1p(-share), factor, freedom, d)

    def odds(self, state: Partition, a: jax.Array, b: jax.Array, member: jax.Array) -> Odds:
        """Log odds by which rows that leave clusters ``a`` and ``b`` join one of two new ones.

        The covariance is that of all rows about the clusters they are in so far, the two old ones
        taken as one: it is the same whether they are one or apart.
        """
        d, kappa = self.n_features, self.prior.centre_precision
        both = state.cells[:, a] + jnp.where(a == b, 0, 1) * state.cells[:, b]
        cells = state.cells.at[:, b].set(0).at[:, a].set(both)
        fit = self._fit(cells)
        x, labels, mass = self.plain.x, state.labels, self.plain.x[:, -1]
        rows, weight = self._rows(x)
        rows, root = rows - fit.groups[self.plain.group], jnp.sqrt(weight)
        inside = (labels == a) | (labels == b)
        apart = rows - fit.centres[jnp.where(inside, a, labels)]
        rest, union = (apart * (where * root)[:, None] for where in (~inside, inside))
        few = d + 2.0  # rows, spread as the union is: the first rows to come have no other spread
        base = self.prior.variance * self.prior.freedom * jnp.eye(d)
        share = few / jnp.maximum((inside * mass).sum(), 1)
        base = base + rest.T @ rest + share * (union.T @ union)
        n_base = d + 1 + self.prior.freedom + few + (~inside * mass).sum()

        def given(two, taken, side):
            n = self._mass(two)
            sums = (two[..., :d] - n[..., None] * fit.groups[:, None]).sum(0)
            n = n.sum(0)
            means = sums / (kappa + n)[:, None]
            near = rows - means[side.astype(jnp.int32)]
            near = near * (taken * root)[:, None]
            white = whitener((base + near.T @ near) / (n_base + (taken * mass).sum()))[0]
            factor = 1 + weight / (kappa + n)[:, None]
            away = (white @ rows.T)[:, None] - (white @ means.T)[..., None]
            away = weight * sum_of_squares(away) / factor
            cost = 0.5 * (away + d * jnp.log(factor))
            cost = cost + self.plain.joining(two, x, self.plain.group)
            return cost[0] - cost[1]

        return given

    def _drawn(self, cells: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Root (d, d) of the precision, ``root root'``, and in its units centres and offsets."""
        d = self.n_features
        wishart_key, centre_key, group_key = jax.random.split(key, 3)
        fit, n = self._fit(cells), self.power * self._mass(cells)
        freedom = d + 1 + self.prior.freedom + self.power * cells[..., -1].sum()
        root = wishart_root(wishart_key, whitener(fit.scatter)[0], freedom)
        noise = jax.random.normal(centre_key, fit.centres.shape, n.dtype)
        centres, per = fit.centres @ root + fit.half.T @ noise, fit.precision[:, None]
        if self.plain.n_groups == 1:
            return root, centres, fit.groups
        own = self.power * cells[..., :d].sum(1) / per @ root - n @ centres / per
        noise = jax.random.normal(group_key, own.shape, own.dtype)
        return root, centres, own + noise / jnp.sqrt(per)

    def for_rows(self, cells: jax.Array, key: jax.Array) -> Target:
        """Distribution given the covariance and the offsets of known groups, which are drawn."""
        d, x = self.n_features, self.plain.x
        root, _, offsets = self._drawn(cells, key)
        rows = x[:, :d] @ root
        if self.plain.n_groups > 1:
            rows = rows - offsets[self.plain.group] * self._mass(x)[:, None]
        code = UnitNormal(self.prior.centre_precision, self.power, d, self.weighted)
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
        root, centres, offsets = self._drawn(cells, key)
        away = self._rows(self.plain.x)[0] @ root - centres[labels] - offsets[self.plain.group]
        return jnp.square(away).sum(1)


# What a distribution that has a plain one takes from it.
SHARED = frozenset({
    "x", "group", "partners", "scale", "n_groups", "sizes", "n_slots", "max_clusters", "terms",
    "cells", "scales",
})  # fmt: skip


@node
class UnitNormal:
    """Rows of covariance I about a centre from N(0, I / kappa), but for what all rows add.

    ``d/2 log((kappa + n) / kappa) - |sum|^2 / (2 (kappa + n))``, of sums and numbers that the
    ``power`` of their density multiplies. If rows are ``weighted``, n is the sum of their weights.
    """

    sends: ClassVar[frozenset[str]] = frozenset({"data", "parameters"})
    kappa: jax.Array
    power: jax.Array | np.float64
    n_features: int = field(metadata=_STATIC)
    weighted: bool = field(default=False, metadata=_STATIC)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Nats of statistics (..., p)."""
        d, cell = self.n_features, self.power * cell
        n = self.kappa + cell[..., d if self.weighted else -1]
        return 0.5 * (d * jnp.log(n / self.kappa) - jnp.square(cell[..., :d]).sum(-1) / n)

    def prepare(self, cells: jax.Array) -> Any:
        """What `join` wants to know of cells (p, K)."""
        d, cells = self.n_features, self.power * cells
        n, more = self.kappa + cells[d if self.weighted else -1], self.power
        square = jnp.square(cells[:d]).sum(0)
        if self.weighted:  # what a row adds depends on its weight in more than one way
            return cells[:d], n, square
        constant = d * jnp.log1p(more / n) + more * square / (n * (n + more))
        return more * cells[:d] / (n + more), 0.5 * constant, 0.5 * more**2 / (n + more)

    def join(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Nats (K, b) that rows (p, b) add."""
        if self.weighted:
            return self._join_weighted(prepared, row)
        slope, constant, curvature = prepared
        row = row[: self.n_features]
        return constant - slope[..., 0].T @ row - curvature * jnp.square(row).sum(0)

    def _join_weighted(self, prepared: Any, row: jax.Array) -> jax.Array:
        d, (sums, n, square) = self.n_features, prepared
        row, more = self.power * row[:d], self.power * row[d]
        both = square + 2 * sums[..., 0].T @ row + jnp.square(row).sum(0)
        return 0.5 * (d * jnp.log1p(more / n) + square / n - both / (n + more))
