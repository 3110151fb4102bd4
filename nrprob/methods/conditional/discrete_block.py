r"""Discrete block of the conditional mixture: categorical, ordered and count columns.

A categorical column j has a log-linear model without three-way interaction. In cluster c and known
group z, its value v has the probability

.. math:: \log p_j(v | c, z) = \beta_{jcv} + u_{jzv} - \log Z_{jcz}

with cluster effects :math:`\beta`, group effects u and normalising constants Z. An ordered or count
column is called a *tilt*: clusters and groups tilt a free marginal :math:`\alpha_j` exponentially.
With standardised scores :math:`t_j` of the values,

.. math:: \log p_j(v | c, z) = \alpha_{jv} + (\beta_{jc} + u_{jz})\, t_j(v) - \log Z_{jcz}.

Group effects have the prior :math:`N(0, \tau_j^2)`. A missing value contributes nothing to the
likelihood. The Fisher information of one sample about the group effects of column j is evaluated at
the marginal of the column, and has the eigenvalues :math:`k_{je}`. :math:`v_{jze}` is the posterior
variance of the effects of group z along its eigenvector e.

The values of all J columns are concatenated along one axis of length W. Other sizes: B blocks of r
samples, K clusters, L known groups, at most V values per column. The mass of a sample is its
weight. F is the objective of `joint`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_CLIP = 1.0  # largest Newton step of the slope of a tilt
# Bounds of group effects with a flat prior: the largest step, and the largest distance of an effect
# below the largest effect of the group on the column.
_FREE_STEP, _FREE_RANGE = 3.0, 12.0
_SWEEPS = 2  # proportional-fitting sweeps within an EM step
_NEWTON_STEPS = 6  # Newton steps of `wright_omega`
_TINY = 1e-300  # lower bound of logarithms and divisors
_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


class Values(NamedTuple):
    """Discrete columns of a table, in B blocks of r samples of one known group.

    The W values of all J columns are on one axis. V is the largest number of values of a column.
    A *tilt* is an ordered or count column; k_je are eigenvalues (see `score_moments`).

    Attributes
    ----------
    indicators : (B, r, W) 1 at the observed value of every column, else 0; all 0 for a missing
        value and on padding
    column : (W,) index of the column to which a value belongs
    slots : (J, V) positions of the values of every column on the axis of length W; W if a column
        has fewer than V values
    tilted : (J,) whether the column is a tilt
    score : (W,) standardised scores t of the values of tilts; 0 for categorical columns
    marginal : (W,) smoothed shares of the values
    curvature : (J, V) eigenvalues k_je; 0 if the column has fewer than V eigenvalues
    """

    indicators: jax.Array
    column: jax.Array
    slots: jax.Array
    tilted: jax.Array
    score: jax.Array
    marginal: jax.Array
    curvature: jax.Array


class TiltRidge(NamedTuple):
    """Hyperparameters of the discrete block.

    Attributes
    ----------
    pseudo : number of pseudo-samples per cluster, which shrink cluster effects to the marginal
    nu, scale : weight (in groups) and scale of the prior of the variances tau^2 of group effects
    """

    pseudo: jax.Array
    nu: jax.Array
    scale: jax.Array


class Discrete(NamedTuple):
    """Parameters of the discrete block: K clusters, L known groups, J columns with W values in all.

    A *tilt* is an ordered or count column; every other column is categorical.

    Attributes
    ----------
    beta : (K, W) cluster effects of categorical columns
    alpha : (W,) log marginals of tilts
    slope : (K, J) cluster effects of tilts
    u : (L, W) group effects of categorical columns
    group_slope : (L, J) group effects of tilts
    tau2 : (J,) prior variances of the group effects
    v : (L, J, V) posterior variances v_jze of the group effects along the eigenvectors e
    """

    beta: jax.Array
    alpha: jax.Array
    slope: jax.Array
    u: jax.Array
    group_slope: jax.Array
    tau2: jax.Array
    v: jax.Array


def wright_omega(x: jax.Array) -> jax.Array:
    """Wright omega function of every entry of x: the solution w of w + log w = x.

    The solution is computed by Newton steps.
    """
    x = jnp.maximum(x, -700.0)
    w = jnp.where(x > 1, x, jnp.exp(jnp.minimum(x, 1.0)))
    for _ in range(_NEWTON_STEPS):
        w = w * (1 + x - jnp.log(w)) / (1 + w)
    return w


class DiscreteBlock:
    """E-step, M-step and objective of the discrete columns.

    Parameters
    ----------
    data : discrete columns
    block_group : (B,) known group of every block of samples
    sizes : (L,) total masses of the known groups
    ridge : hyperparameters
    fixed : whether group effects have a flat prior
    absent : whether there are no group effects
    """

    def __init__(
        self, data: Values, block_group: jax.Array, sizes: jax.Array, ridge: TiltRidge,
        fixed: jax.Array, absent: jax.Array,
    ):  # fmt: skip
        self.data, self.block_group, self.n_groups = data, block_group, len(sizes)
        self.ridge, self.fixed, self.absent = ridge, fixed, absent
        self.tilted_value = data.tilted[data.column]
        self.present = (data.curvature > 0).astype(data.marginal.dtype)
        n_columns = len(data.tilted)
        self.membership = jax.nn.one_hot(data.column, n_columns, dtype=data.marginal.dtype)
        self.occupied = (sizes > 0).astype(data.marginal.dtype)
        self.rank = self.present.sum(1)

    def _by_column(self, values: jax.Array) -> jax.Array:
        """Sums (..., J) of ``values`` (..., W) over the values of every column."""
        return _einsum("...w,wj->...j", values, self.membership)

    def _to_values(self, values: jax.Array) -> jax.Array:
        """Repeat the entry of every column in ``values`` (..., J), for all W values of all columns.

        The result has the shape (..., W). A matrix product is used, because with indexing XLA would
        recompute ``values`` many times.
        """
        return _einsum("...j,wj->...w", values, self.membership)

    def _by_slot(self, values: jax.Array) -> jax.Array:
        """Rearrange ``values`` (..., W) by column: (..., J, V).

        If a column has fewer than V values, the remaining entries are -inf.
        """
        low = jnp.full_like(values[..., :1], -jnp.inf)
        return jnp.concatenate([values, low], -1)[..., self.data.slots]

    def _largest(self, values: jax.Array) -> jax.Array:
        """Maximum (..., J) of ``values`` (..., W) over the values of every column."""
        return self._by_slot(values).max(-1)

    def _normalise(self, logits: jax.Array) -> jax.Array:
        """Log probabilities (..., W) from logits (..., W), normalised within every column."""
        # A padding column may have no value. Its maximum, -inf, must not enter matrix products.
        filled = self.membership.any(0)
        shifted = logits - self._to_values(jnp.where(filled, self._largest(logits), 0))
        total = jnp.where(filled, self._by_column(jnp.exp(shifted)), 1)
        return shifted - self._to_values(jnp.log(total))

    def log_table(self, theta: Discrete) -> jax.Array:
        """Log probabilities (L, K, W) of the values in every cluster and known group."""
        column = self.data.column
        tilt = theta.slope + theta.group_slope[:, None]
        tilted = theta.alpha + tilt[..., column] * self.data.score
        categorical = theta.beta + theta.u[:, None]
        return self._normalise(jnp.where(self.tilted_value, tilted, categorical))

    def log_profile(self, theta: Discrete) -> jax.Array:
        """Log probabilities (K, W) of the values by cluster, in a group whose effects are 0."""
        tilted = theta.alpha + theta.slope[:, self.data.column] * self.data.score
        return self._normalise(jnp.where(self.tilted_value, tilted, theta.beta))

    def log_density(self, theta: Discrete) -> jax.Array:
        """Expected log probability (B, K, r) of the observed values of every sample, by cluster.

        The expectation is over the posterior of the group effects. The variances v of this
        posterior reduce the log probability of column j in group z by sum_e k_je v_jze / 2. The
        eigenvalues k are computed by `score_moments`.
        """
        loss = 0.5 * (self.data.curvature * theta.v).sum(-1)
        loss = jnp.where(self.fixed | self.absent, 0.0, loss)[:, None, self.data.column]
        table = (self.log_table(theta) - loss)[self.block_group]
        return _einsum("bkw,brw->bkr", table, self.data.indicators)

    def tables(self, r: jax.Array) -> jax.Array:
        """Expected numbers (L, K, W) of samples by known group, cluster and value.

        ``r`` (B, K, rows) are memberships times masses.
        """
        blocks = _einsum("bkr,brw->bkw", r, self.data.indicators)
        return jax.ops.segment_sum(blocks, self.block_group, self.n_groups)

    def m_step(self, tables: jax.Array, theta: Discrete) -> Discrete:
        """Update all effects by proportional fitting, then the variances of the group effects.

        ``tables`` (L, K, W) are the expected numbers of samples from the method `tables`.
        """
        theta = jax.lax.fori_loop(
            0, _SWEEPS, lambda _, theta: self._fitting_sweep(tables, theta), theta
        )
        return self._variances(tables, theta)

    def _fitting_sweep(self, tables: jax.Array, theta: Discrete) -> Discrete:
        """Update all cluster and group effects once.

        ``tables`` (L, K, W) are the expected numbers of samples by group, cluster and value.
        """
        column, score = self.data.column, self.data.score
        pseudo = self.ridge.pseudo * self.data.marginal
        size = self._by_column(tables)[..., column]
        by_cluster = tables.sum(0)
        k = tables.shape[1]

        def expected(theta):
            return size * jnp.exp(self.log_table(theta))

        # 1. Cluster effects of categorical columns, and marginals of tilts. The fitted table by
        #    cluster, with pseudo-samples, moves towards the expected table.
        profile = self.ridge.pseudo * jnp.exp(self.log_profile(theta))
        fit = expected(theta).sum(0) + profile
        beta = theta.beta + _log_ratio(by_cluster + pseudo, fit)
        alpha = theta.alpha + _log_ratio(by_cluster.sum(0) + k * pseudo, fit.sum(0))
        theta = theta._replace(
            beta=self._normalise(jnp.where(self.tilted_value, theta.beta, beta)),
            alpha=jnp.where(self.tilted_value, alpha, theta.alpha),
        )

        # 2. Cluster slopes of tilts, by one Newton step.
        fit = expected(theta)
        profile = self.ridge.pseudo * jnp.exp(self.log_profile(theta))
        gradient = self._by_column((by_cluster + pseudo - fit.sum(0) - profile) * score)
        information = self._variance_of_scores(fit).sum(0) + self._variance_of_scores(profile)
        theta = theta._replace(slope=self._newton(theta.slope, gradient, information))
        return self.fit_group_effects(tables, theta)

    def fit_group_effects(self, tables: jax.Array, theta: Discrete) -> Discrete:
        """Update the group effects, given the cluster effects.

        ``tables`` (L, K, W) are the expected numbers of samples by group, cluster and value.
        """
        size = self._by_column(tables)[..., self.data.column]
        fit, by_group = size * jnp.exp(self.log_table(theta)), tables.sum(1)
        # 1. Categorical columns: penalised proportional fitting.
        u = self._group_effects(by_group, fit.sum(1), theta)
        # 2. Slopes of tilts, by one Newton step.
        precision = jnp.where(self.fixed, 0.0, 1 / theta.tau2)
        gradient = self._by_column((by_group - fit.sum(1)) * self.data.score)
        gradient = gradient - theta.group_slope * precision
        information = self._variance_of_scores(fit).sum(1) + precision
        slope = self._newton(theta.group_slope, gradient, information)
        return theta._replace(u=u, group_slope=jnp.where(self.absent, 0.0, slope))

    def _newton(self, value: jax.Array, gradient: jax.Array, information: jax.Array) -> jax.Array:
        """Slopes (..., J) of tilts after one clipped Newton step from the slopes ``value``.

        Entries of categorical columns are unchanged. ``gradient`` (..., J) are the derivatives of
        the objective, and ``information`` (..., J) minus the second derivatives.
        """
        step = jnp.clip(gradient / jnp.maximum(information, 1e-12), -_CLIP, _CLIP)
        return jnp.where(self.data.tilted, value + step, value)

    def _variance_of_scores(self, fit: jax.Array) -> jax.Array:
        """Variance (..., J) of the scores of every column, times the total mass of the column.

        ``fit`` (..., W) are the fitted masses of the values.
        """
        size = self._by_column(fit)
        first = self._by_column(fit * self.data.score)
        second = self._by_column(fit * self.data.score**2)
        return second - first**2 / jnp.maximum(size, _TINY)

    def _group_effects(self, observed: jax.Array, fit: jax.Array, theta: Discrete) -> jax.Array:
        """Update the group effects u (L, W) of categorical columns.

        The step delta of an effect u with the prior variance tau^2 solves
        T - E exp(delta) - (u + delta) / tau^2 = 0. T is the observed number of samples with the
        value in the group (``observed``, (L, W)), and E is the fitted number (``fit``, (L, W)).
        """
        tau2 = theta.tau2[self.data.column]
        shift = tau2 * observed - theta.u
        random = shift - wright_omega(jnp.log(jnp.maximum(tau2 * fit, _TINY)) + shift)
        free = jnp.clip(_log_ratio(observed, fit), -_FREE_STEP, _FREE_STEP)
        # With a flat prior, the effect of a value that does not occur in the group is unbounded.
        free = theta.u + free
        free = jnp.maximum(free, self._largest(free)[:, self.data.column] - _FREE_RANGE)
        u = jnp.where(self.fixed, free, theta.u + random)
        n_values = self._by_column(jnp.ones_like(self.data.marginal))
        u = u - (self._by_column(u) / n_values)[:, self.data.column]
        return jnp.where(self.absent | self.tilted_value, 0.0, u)

    def _variances(self, tables: jax.Array, theta: Discrete) -> Discrete:
        """Update the posterior variances v of the group effects, and their prior variances tau^2.

        ``tables`` (L, K, W) are the expected numbers of samples by group, cluster and value.
        """
        curvature = self._by_column(tables.sum(1))[..., None] * self.data.curvature
        v = self.present / (curvature + 1 / theta.tau2[:, None])
        occupied = self.occupied[:, None]
        total = (occupied * (self.squares(theta) + v.sum(-1))).sum(0)
        ridge, rank = self.ridge, self.rank
        weight = jnp.maximum(self.occupied.sum() * rank + ridge.nu * rank, _TINY)
        tau2 = (total + ridge.nu * rank * ridge.scale) / weight
        # Columns that are padding have no effects.
        random = ~(self.fixed | self.absent) & (rank > 0)
        return theta._replace(
            v=jnp.where(random[:, None], v, theta.v), tau2=jnp.where(random, tau2, theta.tau2)
        )

    def squares(self, theta: Discrete) -> jax.Array:
        """Squared norm (L, J) of the effects of every known group on every column."""
        return jnp.where(self.data.tilted, theta.group_slope**2, self._by_column(theta.u**2))

    def penalty(self, theta: Discrete) -> jax.Array:
        """Part of the objective F that is added to the sum of the log densities.

        The part is the sum of the log priors, less the Kullback-Leibler divergences of the
        posteriors of the group effects from their priors.
        """
        p = self.data.marginal
        ridge = self.ridge
        value = ridge.pseudo * (p * (self.log_profile(theta) - jnp.log(p))).sum()
        tau2 = theta.tau2
        relative = theta.v / tau2[:, None]
        divergence = 0.5 * self.squares(theta) / tau2 + 0.5 * (
            self.present * (relative - 1 - jnp.log(jnp.maximum(relative, _TINY)))
        ).sum(-1)
        prior = 0.5 * ridge.nu * self.rank * (jnp.log(tau2 / ridge.scale) + ridge.scale / tau2 - 1)
        random = -(self.occupied[:, None] * divergence).sum() - prior.sum()
        return value + jnp.where(self.fixed | self.absent, 0.0, random)


def _log_ratio(observed: jax.Array, fit: jax.Array) -> jax.Array:
    """Log of ``observed / fit``, after both arrays are bounded below by 1e-300."""
    return jnp.log(jnp.maximum(observed, _TINY)) - jnp.log(jnp.maximum(fit, _TINY))


def initial_discrete(data: Values, n_clusters: int, n_groups: int, scale: float) -> Discrete:
    """Parameters before the first M-step: marginals from the data, and effects of 0.

    ``scale`` is the initial variance of the group effects, both prior and posterior.
    """
    n_columns, most = data.curvature.shape
    log_p = jnp.log(data.marginal)
    present = (data.curvature > 0).astype(log_p.dtype)
    tau2 = jnp.full(n_columns, scale, log_p.dtype)
    return Discrete(
        jnp.broadcast_to(log_p, (n_clusters, len(log_p))), log_p,
        jnp.zeros((n_clusters, n_columns), log_p.dtype),
        jnp.zeros((n_groups, len(log_p)), log_p.dtype),
        jnp.zeros((n_groups, n_columns), log_p.dtype), tau2,
        jnp.broadcast_to(present * scale, (n_groups, n_columns, most)),
    )  # fmt: skip


def score_moments(marginal: np.ndarray, tilted: bool) -> np.ndarray:
    """Eigenvalues k_je of the information of one sample about the group effects of column j.

    A *tilt*, an ordered or count column, has one effect. The scores of its values have variance 1,
    so the eigenvalue is 1. A categorical column with the marginal p (V,) has the V - 1 positive
    eigenvalues of diag(p) - p p'.
    """
    if tilted:
        return np.ones(1)
    information = np.diag(marginal) - np.outer(marginal, marginal)
    return np.linalg.eigvalsh(information)[1:]
