r"""Joint EM of the conditional mixture p(x | cluster, known group), for all types of columns.

The numeric columns are one block of the model, and the discrete columns are another. The blocks are
independent given the cluster, so they have only the memberships in common. Every block has log
densities, an M-step, and a penalty in the objective F. EM maximises

.. math:: F = \sum_i \log \sum_c e^{l_{z_i c}} \prod_{blocks} e^{g(x_i, c, z_i)} + penalties,

where :math:`l_{zc}` is the log share of cluster c in known group z. The log density g of a block is
an expectation over the posterior of the group effects.

EM may begin with warm-up steps, in which every cluster has the same share in every known group.

A table is called *mixed* if it has discrete columns, and *incomplete* if it has missing values.
Samples with the same missing pattern and the same known group form a *cell*.

Sizes: B blocks of r samples, C cells, L known groups, K clusters, W values of all discrete columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.optimise.iterate import IterationResult, empty_trace, iterate
from nrprob.methods.conditional.discrete_block import DiscreteBlock, Values
from nrprob.methods.conditional.gaussian_block import (
    Effects,
    GaussianBlock,
    Numbers,
    Sums,
)
from nrprob.methods.conditional.shares import Shares, shares_penalty, update_shares

TRACE = 512  # entries of the objective's trace
_BALANCING_SWEEPS = 5  # balancing sweeps per E-step of a warm-up
_LARGEST_OFFSET = 80.0  # bound of the log weights that balance the clusters


class Table(NamedTuple):
    """A table, in B blocks of r samples of one cell.

    The samples of a cell have the same missing pattern and the same known group.

    Attributes
    ----------
    numeric, values : numeric and discrete columns; None if the table has no such columns
    mass : (B, r) weights of the samples, 0 on padding
    cell : (B,) cell of every block
    group : (C,) known group of every cell
    sizes : (L,) total masses of the known groups
    log_noise : (B, r) log noise densities of the samples
    label : (B, r) cluster of labelled samples, else -1; None without labels
    """

    numeric: Numbers | None
    values: Values | None
    mass: jax.Array
    cell: jax.Array
    group: jax.Array
    sizes: jax.Array
    log_noise: jax.Array
    label: jax.Array | None = None


class Settings(NamedTuple):
    """Settings of one fit. JAX traces all of them, so new values need no compilation.

    Attributes
    ----------
    ridge, tilt_ridge : hyperparameters of the numeric and of the discrete block
    effects : form of the group effects
    shares : form of the cluster shares: UNIFORM, FREE or BY_GROUP
    noise : share of the noise component
    tol : EM has converged when memberships and objective change by at most ``tol``
    """

    ridge: Any  # Ridge, or None without numeric columns
    tilt_ridge: Any  # TiltRidge, or None without discrete columns
    effects: Effects
    shares: jax.Array
    noise: jax.Array
    tol: jax.Array


class JointState(NamedTuple):
    """State of one restart after an EM step.

    Attributes
    ----------
    r : (B, K, r) memberships in K clusters; their sum is 1 less the probability of noise
    gaussian, discrete : parameters of the blocks
    precisions : inverses of the covariances in ``gaussian``
    shares : cluster shares
    objective : F at these parameters
    warm_up : number of remaining warm-up steps, in which cluster shares are equal in every group
    n_iter : number of EM steps after the warm-up
    """

    r: jax.Array
    gaussian: Any  # Gaussian, or None without numeric columns
    precisions: Any  # Precisions, or None without numeric columns
    discrete: Any  # Discrete, or None without discrete columns
    shares: Shares
    objective: jax.Array
    warm_up: jax.Array
    n_iter: jax.Array


class Statistics(NamedTuple):
    """Sums over samples from which the M-step follows.

    Attributes
    ----------
    numeric : sums over numeric columns; None if the table has no numeric columns
    tables : (L, K, W) expected numbers of samples by known group, cluster and value of a discrete
        column; None if the table has no discrete columns
    counts : (L, K) expected numbers of samples by known group and cluster
    """

    numeric: Sums | None
    tables: jax.Array | None
    counts: jax.Array


class JointModel:
    """E-step, M-step and objective of one restart.

    Parameters
    ----------
    table : the samples of the fit, or a part of them; `Statistics` of parts can be added
    settings : hyperparameters, form of the model, and tolerance
    covariance : form of the error covariance: "tied", "diag" or "spherical"
    """

    def __init__(self, table: Table, settings: Settings, covariance: str):
        self.table, self.settings = table, settings
        self.block_group = table.group[table.cell]
        effects = settings.effects
        self.gaussian: GaussianBlock | None = None
        self.discrete: DiscreteBlock | None = None
        if table.numeric is not None:
            self.gaussian = GaussianBlock(
                table.numeric, table.mass, table.cell, table.group, table.sizes,
                settings.ridge, effects, covariance,
            )  # fmt: skip
        if table.values is not None:
            self.discrete = DiscreteBlock(
                table.values, self.block_group, table.sizes, settings.tilt_ridge,
                effects.fixed, effects.absent,
            )  # fmt: skip

    def begin(
        self, r: jax.Array, gaussian: Any, discrete: Any, shares: Shares,
        warm_up: jax.Array,
    ) -> JointState:  # fmt: skip
        """State of a restart before the first EM step.

        Parameters
        ----------
        r : (B, K, r) initial memberships of the samples of every block in the clusters
        gaussian, discrete, shares : initial parameters
        warm_up : number of warm-up steps
        """
        precisions = None
        if self.gaussian is not None:
            precisions = self.gaussian.precisions(gaussian)
        least = jnp.full((), -jnp.inf, r.dtype)
        none = jnp.zeros((), jnp.int32)
        return JointState(r, gaussian, precisions, discrete, shares, least, warm_up, none)

    def m_step(self, state: JointState) -> JointState:
        """Update the parameters of all blocks and the shares, given the memberships."""
        return self.update(self.statistics(state.r), state)

    def statistics(self, r: jax.Array) -> Statistics:
        """Sums over samples for the M-step, from memberships (B, K, r)."""
        weighted = r * self.table.mass[:, None]
        numeric = tables = None
        if self.gaussian is not None:
            numeric = self.gaussian.sums(weighted, self.settings.noise > 0)
        if self.discrete is not None:
            tables = self.discrete.tables(weighted)
        return Statistics(numeric, tables, self._by_group(weighted.sum(2)))

    def update(self, statistics: Statistics, state: JointState) -> JointState:
        """Update the parameters of all blocks and the shares, given the sums over all samples."""
        gaussian, precisions, discrete = state.gaussian, state.precisions, state.discrete
        if self.gaussian is not None and statistics.numeric is not None:
            gaussian, precisions = self.gaussian.m_step(statistics.numeric, gaussian, precisions)
        if self.discrete is not None and statistics.tables is not None:
            discrete = self.discrete.m_step(statistics.tables, discrete)
        shares = update_shares(statistics.counts, state.shares, self.settings.shares)
        return state._replace(
            gaussian=gaussian, precisions=precisions, discrete=discrete, shares=shares
        )

    def _by_group(self, values: jax.Array) -> jax.Array:
        """Add up values (B, ...) of blocks by known group: (L, ...)."""
        return jax.ops.segment_sum(values, self.block_group, len(self.table.sizes))

    def log_joint(self, state: JointState) -> jax.Array:
        """Log share plus log density (B, K, r) of every sample under every cluster.

        For a labelled sample, the result is -inf for all clusters other than the label.
        """
        value = state.shares.log_share[self.block_group][..., None]
        if self.gaussian is not None:
            value = value + self.gaussian.log_density(state.gaussian, state.precisions)
        if self.discrete is not None:
            value = value + self.discrete.log_density(state.discrete)
        if self.table.label is None:
            return value
        label = self.table.label[:, None]
        cluster = jnp.arange(value.shape[1])[:, None]
        return jnp.where((label < 0) | (label == cluster), value, -jnp.inf)

    def penalty(self, state: JointState) -> jax.Array:
        """Part of the objective F that is added to the sum of the log densities.

        The part is the sum of the penalties of the blocks and of `shares_penalty`.
        """
        value = shares_penalty(state.shares, self.settings.shares)
        if self.gaussian is not None:
            value += self.gaussian.penalty(state.gaussian, state.precisions)
        if self.discrete is not None:
            value += self.discrete.penalty(state.discrete)
        return value

    def e_step(self, state: JointState) -> JointState:
        """Update the memberships and the objective.

        In a warm-up, the memberships have equal cluster shares in every known group.
        """
        noise = self.settings.noise
        logits = self.log_joint(state)
        top = logits.max(1)
        density = jnp.exp(logits - top[:, None])
        log_density = top + jnp.log(density.sum(1))

        def add_noise(log_density):
            """Log densities (B, r) with noise, and probabilities (B, r) of not being noise."""
            log_density = jnp.log1p(-noise) + log_density
            value = jnp.logaddexp(log_density, jnp.log(noise) + self.table.log_noise)
            return value, jnp.exp(log_density - value)

        with_noise, clear = jax.lax.cond(
            noise > 0, add_noise, lambda value: (value, jnp.ones_like(value)), log_density
        )
        objective = (self.table.mass * with_noise).sum() + self.penalty(state)
        sweeps = jnp.where(state.warm_up > 0, _BALANCING_SWEEPS, 0)
        offset = self._balancing_offsets(density, sweeps)
        r = self._balanced_memberships(density, offset)
        # Memberships of a warm-up step ignore noise.
        clear = jnp.where(state.warm_up > 0, 1.0, clear)
        return state._replace(r=r * clear[:, None], objective=objective)

    def _balanced_memberships(self, density: jax.Array, offset: jax.Array) -> jax.Array:
        """Memberships (B, K, r) of samples, from their densities (B, K, r) under the clusters.

        ``offset`` (L, K) are log weights of the clusters in every known group.
        """
        r = density * jnp.exp(offset)[self.block_group][..., None]
        return r / r.sum(1, keepdims=True)

    def _balancing_offsets(self, density: jax.Array, n_sweeps: jax.Array) -> jax.Array:
        """Log weights (L, K) with which all clusters have equal shares in every known group.

        The log weights are computed from ``density`` (B, K, r), the densities of the samples under
        the clusters, by ``n_sweeps`` scaling iterations.
        """
        sizes = jnp.maximum(self.table.sizes, 1e-30)[:, None]

        def sweep(_, offset):
            r = self._balanced_memberships(density, offset)
            share = self._by_group((r * self.table.mass[:, None]).sum(2)) / sizes
            offset = offset - jnp.log(jnp.maximum(share, 1e-30))
            return jnp.clip(offset - offset.max(1, keepdims=True), -_LARGEST_OFFSET, 0)

        offset = jnp.zeros((len(self.table.sizes), density.shape[1]), density.dtype)
        return jax.lax.fori_loop(0, n_sweeps, sweep, offset)

    def step(self, state: JointState) -> tuple[JointState, jax.Array]:
        """Take one EM step; return the new state, and whether EM has converged."""
        after = self.e_step(self.m_step(state))
        tol = self.settings.tol
        moved = (jnp.abs(after.r - state.r) * (self.table.mass > 0)[:, None]).max()
        warm = state.warm_up > 0
        rounding = 16 * jnp.finfo(after.r.dtype).eps * jnp.abs(after.objective)
        still = jnp.abs(after.objective - state.objective) <= jnp.maximum(tol, rounding)
        left = jnp.where(moved <= tol, 0, jnp.maximum(state.warm_up - 1, 0))
        after = after._replace(warm_up=left, n_iter=state.n_iter + ~warm)
        return after, ~warm & still & (moved <= tol)

    def run(self, state: JointState, max_iter: jax.Array) -> IterationResult:
        """Run the warm-up, and then EM until convergence or for ``max_iter`` steps.

        The trace of the objective includes the warm-up.
        """

        def advance(state, _):
            after, quiet = self.step(state)
            return after, quiet | (after.n_iter >= max_iter), (after.objective, quiet)

        trace = empty_trace(TRACE, state.r.dtype), jnp.zeros(TRACE, bool)
        return iterate(advance, state, max_iter + state.warm_up, done=max_iter <= 0, trace=trace)
