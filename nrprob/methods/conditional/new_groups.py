r"""Effects and clusters of new groups: known groups that did not occur in the fit.

The parameters of the clusters stay fixed. A new group has an effect a on the numeric columns, with
the prior N(0, T). The group has effects :math:`u_j` on every discrete column j, with the prior
:math:`N(0, \tau_j^2)`. The group has shares :math:`\pi_c` of the clusters. Effects and shares
maximise

.. math:: \sum_i \log \sum_c \pi_c\, p(x_i | c, a, u) - \frac12 a^T T^{-1} a
    - \sum_j \frac{|u_j|^2}{2 \tau_j^2},

with the Dirichlet prior of the shares integrated out by a variational bound. The objective has
several maxima, because an effect of the group can resemble a difference between clusters. EM
therefore starts from several effects, and the largest maximum of every group is retained.

For the memberships of a sample, effect a and the shares are then estimated from the *other* samples
of the group. The posterior covariance of a adds to the covariance of the sample. If a group has a
single sample, a has the prior N(0, T), so the covariance of the sample is :math:`\Sigma + T`. The
effects u are estimated from all samples of the group; they are 0 for a group of a single sample.

Sizes: n samples in B blocks of r samples, C cells, L new groups, K clusters, d numeric columns, S
initial effects. The samples of a cell have the same missing pattern and the same group.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma

from nrprob.engines.optimise.iterate import iterate, map_restarts
from nrprob.engines.programs import jit_by_size
from nrprob.methods.conditional.discrete_block import DiscreteBlock, TiltRidge, initial_discrete
from nrprob.methods.conditional.fitted_table import FittedTable
from nrprob.methods.conditional.joint import Table
from nrprob.methods.conditional.shares import dirichlet_divergence
from nrprob.methods.conditional.table import DiscreteColumn, lay_out_table
from nrprob.statistics.matrices import inverse_and_log_det
from nrprob.statistics.rows import Layout

_STEPS = 200  # maximum number of EM steps
_TOL = 1e-4  # largest change of memberships at convergence
_SWEEPS = 15  # fixed-point sweeps for the memberships given the other samples
_MOST_PAIRS = 10  # largest number of clusters for which pairs of centres give initial effects
_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


class Parameters(NamedTuple):
    """Parameters of the clusters of a fit, which stay fixed for new groups.

    Attributes
    ----------
    b, slopes : (K, d) centres, and (s, d) location effects of s design columns
    sigma, t : (d, d) covariance of the errors, and prior covariance of the group effects
    discrete : parameters of the discrete block; None without discrete columns
    log_share : (K,) log shares of the clusters, common to all groups
    concentration : (K,) concentration of the Dirichlet prior of shares by group
    by_group : whether shares differ between groups
    """

    b: Any
    slopes: Any
    sigma: Any
    t: Any
    discrete: Any
    log_share: Any
    concentration: Any
    by_group: Any


class GroupState(NamedTuple):
    """Effects and shares of L new groups, and the memberships of their samples.

    Attributes
    ----------
    r : (B, r, K) memberships of the samples, in B blocks of r samples
    m : (L, d) effects on the numeric columns
    discrete : parameters of the discrete block with its group effects
    counts : (L, K) expected numbers of samples by cluster
    """

    r: jax.Array
    m: jax.Array
    discrete: Any
    counts: jax.Array


class NewGroups:
    """EM for the effects and shares of new groups, given the parameters of the clusters.

    Parameters
    ----------
    table : samples of the new groups, in blocks
    theta : fixed parameters
    """

    def __init__(self, table: Table, theta: Parameters):
        self.table, self.theta = table, theta
        self.n_groups = len(table.sizes)
        self.block_group = table.group[table.cell]
        self.size = jax.ops.segment_sum(table.mass.sum(1), self.block_group, self.n_groups)
        self.discrete: DiscreteBlock | None = None
        if table.values is not None:
            no, none = jnp.asarray(False), jnp.zeros(())
            self.discrete = DiscreteBlock(
                table.values, self.block_group, self.size, TiltRidge(none, none, none), no, no
            )  # fmt: skip
        if table.numeric is not None:
            self._set_precisions(table.numeric)

    def _by_group(self, values: jax.Array) -> jax.Array:
        """Add up values (B, ...) of blocks by new group: (L, ...)."""
        return jax.ops.segment_sum(values, self.block_group, self.n_groups)

    def _set_precisions(self, numeric: Any) -> None:
        """Compute the precision matrices of samples and effects, which stay fixed during EM."""
        theta, cell = self.theta, self.table.cell
        self.seen = numeric.observed[numeric.pattern]
        self.a, self.log_det = _masked_inverse(theta.sigma, self.seen)
        self.t_inverse = inverse_and_log_det(theta.t)[0]
        # Posterior covariances of the effects: of every group, and of the group of every cell
        # without one sample of the cell.
        n_cell = jax.ops.segment_sum(self.table.mass.sum(1), cell, len(self.seen))
        weight = n_cell[:, None, None] * self.a
        total = self.t_inverse + jax.ops.segment_sum(weight, self.table.group, self.n_groups)
        self.spread = inverse_and_log_det(total)[0]
        without = total[self.table.group] - (n_cell > 0)[:, None, None] * self.a
        self.spread_without = inverse_and_log_det(without)[0]
        self.w, self.log_det_w = _masked_inverse(theta.sigma + self.spread_without, self.seen)
        # `w` are the predictive precisions of a sample given the other samples of its group, by
        # cell. `y` (B, r, d) are the observed values less location effects.
        located = _einsum("brs,sd->brd", numeric.q, theta.slopes)
        self.y = (numeric.x - located) * self.seen[cell][:, None]

    def _log_normal(self, residual: jax.Array, precision: jax.Array, log_det: jax.Array):
        """Log normal densities (B, r, K) of samples about the centres of the clusters.

        Parameters
        ----------
        residual : (B, r, d) numeric values less location and group effects
        precision, log_det : (C, d, d) precisions and (C,) log determinants of the covariances, by
            cell
        """
        cell = self.table.cell
        seen, precision = self.seen[cell], precision[cell]
        residual = residual * seen[:, None]
        turned = _einsum("brd,bde->bre", residual, precision)
        centres = _einsum("kd,bde->bke", self.theta.b, precision)
        square = (
            (turned * residual).sum(-1)[..., None]
            - 2 * _einsum("brd,bkd->brk", residual, centres)
            + _einsum("bkd,kd->bk", centres, self.theta.b)[:, None]
        )
        unit = seen.sum(1) * jnp.log(2 * jnp.pi) + log_det[cell]
        return -0.5 * (square + unit[:, None, None])

    def _log_shares(self, counts: jax.Array) -> jax.Array:
        """Log shares (L, K) of the clusters in every group, given expected counts (L, K).

        If shares differ between groups, the log shares are expectations under the Dirichlet
        posterior of the group. Otherwise they are the common log shares.
        """
        post = counts + self.theta.concentration
        by_group = digamma(post) - digamma(post.sum(-1, keepdims=True))
        return jnp.where(self.theta.by_group, by_group, self.theta.log_share)

    def log_joint(self, state: GroupState) -> jax.Array:
        """Log share plus log density (B, r, K) of every sample under every cluster.

        ``state`` has the effects and shares of the groups.
        """
        group = self.block_group
        value = self._log_shares(state.counts)[group][:, None]
        value = jnp.broadcast_to(value, state.r.shape)
        if self.table.numeric is not None:
            value = value + self._log_normal(
                self.y - state.m[group][:, None], self.a, self.log_det
            )  # fmt: skip
        if self.discrete is not None:
            value = value + self.discrete.log_density(state.discrete).swapaxes(1, 2)
        return value

    def begin(self, m: jax.Array) -> GroupState:
        """State before the first EM step, with the initial effects ``m`` (L, d)."""
        k = len(self.theta.concentration)
        discrete = self.theta.discrete
        if self.discrete is not None:
            # Effects on discrete columns start at 0, and have no posterior variance.
            start = initial_discrete(self.discrete.data, k, self.n_groups, 1.0)
            discrete = start._replace(
                beta=discrete.beta, alpha=discrete.alpha, slope=discrete.slope,
                tau2=discrete.tau2, v=jnp.zeros_like(start.v),
            )  # fmt: skip
        r = jnp.zeros((*self.table.mass.shape, k), self.table.mass.dtype)
        state = GroupState(r, m, discrete, jnp.zeros((self.n_groups, k), r.dtype))
        return state._replace(r=jax.nn.softmax(self.log_joint(state), -1))

    def _expected_residuals(self, r: jax.Array) -> jax.Array:
        """Residuals (B, r, d) about the expected centre of every sample, times mass and precision.

        The expected centre is the mean of the centres, weighted by the memberships ``r`` (B, r, K).
        """
        seen = self.seen[self.table.cell][:, None]
        residual = (self.y - _einsum("brk,kd->brd", r, self.theta.b)) * seen
        residual = residual * self.table.mass[..., None]
        return _einsum("brd,bde->bre", residual, self.a[self.table.cell])

    def step(self, state: GroupState, _: Any) -> tuple[GroupState, jax.Array, tuple]:
        """Take one EM step: effects and shares, then memberships.

        Return the new state, whether EM has converged, and an empty trace.
        """
        weighted = state.r * self.table.mass[..., None]
        m, discrete = state.m, state.discrete
        if self.table.numeric is not None:
            total = self._by_group(self._expected_residuals(state.r).sum(1))
            m = _einsum("zde,ze->zd", self.spread, total)
        if self.discrete is not None:
            fitted = self.discrete.fit_group_effects(
                self.discrete.tables(weighted.swapaxes(1, 2)), discrete
            )
            # A single sample does not determine the effects of its group on discrete columns.
            several = (self.size > 1)[:, None]
            discrete = discrete._replace(
                u=jnp.where(several, fitted.u, 0.0),
                group_slope=jnp.where(several, fitted.group_slope, 0.0),
            )
        after = GroupState(state.r, m, discrete, self._by_group(weighted.sum(1)))
        after = after._replace(r=jax.nn.softmax(self.log_joint(after), -1))
        moved = (jnp.abs(after.r - state.r) * (self.table.mass > 0)[..., None]).max()
        return after, moved <= _TOL, ()

    def objective(self, state: GroupState) -> jax.Array:
        """Penalised log likelihood (L,) of every new group."""
        log_p = jax.nn.logsumexp(self.log_joint(state), -1)
        value = self._by_group((self.table.mass * log_p).sum(1))
        if self.table.numeric is not None:
            value -= 0.5 * _einsum("zd,de,ze->z", state.m, self.t_inverse, state.m)
        if self.discrete is not None:
            theta = state.discrete
            value -= 0.5 * (self.discrete.squares(theta) / theta.tau2).sum(-1)
        divergence = dirichlet_divergence(state.counts, self.theta.concentration)
        return value - jnp.where(self.theta.by_group, divergence, 0.0)

    def held_out_log_joint(self, state: GroupState) -> jax.Array:
        """Log share plus log density (B, r, K) of every sample, given the other samples.

        The group's effect on numeric columns and the group's shares are estimated without the
        sample. Effect and shares depend on the memberships of the other samples, so a fixed-point
        iteration computes effect and shares. The group's effects on discrete columns are estimated
        from all samples of the group, and are taken from ``state``.
        """
        group = self.block_group

        def log_joint(r):
            mass = self.table.mass[..., None]
            others = self._by_group((r * mass).sum(1))[group][:, None] - r * mass
            post = jnp.maximum(others, 0) + self.theta.concentration
            by_group = jnp.log(post / post.sum(-1, keepdims=True))
            value = jnp.where(self.theta.by_group, by_group, self.theta.log_share)
            if self.table.numeric is not None:
                residual = self._expected_residuals(r)
                rest = self._by_group(residual.sum(1))[group][:, None] - residual
                m = _einsum("brd,bde->bre", rest, self.spread_without[self.table.cell])
                value = value + self._log_normal(self.y - m, self.w, self.log_det_w)
            if self.discrete is not None:
                value = value + self.discrete.log_density(state.discrete).swapaxes(1, 2)
            return value

        r = jax.lax.fori_loop(
            0, _SWEEPS, lambda _, r: jax.nn.softmax(log_joint(r), -1), state.r
        )  # fmt: skip
        return log_joint(r)


def _masked_inverse(matrix: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inverses (C, d, d) and log determinants (C,) of covariances on the observed columns.

    Parameters
    ----------
    matrix : (C, d, d) covariances of C cells, or one covariance (d, d)
    seen : (C, d) 1 for observed columns, else 0; the inverses are 0 in rows and columns that are
        not observed
    """
    both = seen[:, :, None] * seen[:, None, :]
    eye = jnp.eye(matrix.shape[-1], dtype=matrix.dtype)
    result, log_det, _ = inverse_and_log_det(both * matrix + eye * (1 - seen)[:, None, :])
    return result * both, log_det


@jit_by_size()
def estimate_effects(
    table: Table, theta: Parameters, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Estimate the effects of new groups by EM from several initial effects.

    Parameters
    ----------
    table : samples of the new groups, in blocks
    theta : fixed parameters
    starts : (S, L, d) initial effects on the numeric columns; for every group, the start with the
        largest objective of the group is used

    Returns
    -------
    log_joint : (B, r, K) log share plus log density of every sample, given the other samples
    m : (L, d) effects on the numeric columns
    """
    model = NewGroups(table, theta)

    def run(m):
        state = iterate(model.step, model.begin(m), _STEPS).state
        return state, model.objective(state)

    states, objective = map_restarts(run, (starts,), 1)
    best = objective.argmax(0)
    by_group = partial(_pick_by_group, best)
    state = GroupState(
        states.r[best[model.block_group], jnp.arange(len(states.r[0]))],
        by_group(states.m),
        None
        if states.discrete is None
        else jax.tree.map(lambda a: a[0], states.discrete)._replace(
            u=by_group(states.discrete.u), group_slope=by_group(states.discrete.group_slope)
        ),
        by_group(states.counts),
    )
    return model.held_out_log_joint(state), state.m


def _pick_by_group(best: jax.Array, values: jax.Array) -> jax.Array:
    """Entries (L, ...) of ``values`` (S, L, ...) at the best start of every group.

    ``best`` (L,) are the indices of the best starts.
    """
    return values[best, jnp.arange(len(best))]


def _initial_effects(x: np.ndarray, codes: np.ndarray, n_groups: int, b: np.ndarray) -> np.ndarray:
    """Initial effects (S, L, d) of new groups.

    One initial effect is 0. Every other initial effect is the group mean less a location. The
    locations are the centres, the means of all pairs of centres (for at most ten clusters), and the
    mean of all centres. If a group has no observed value of a column, the initial effect on this
    column is 0.

    Parameters
    ----------
    x : (n, d) numeric values, NaN where missing
    codes : (n,) new group of every sample
    n_groups : number of new groups, L
    b : (K, d) centres
    """
    seen = ~np.isnan(x)
    total, count = np.zeros((2, n_groups, x.shape[1]))
    np.add.at(total, codes, np.nan_to_num(x))
    np.add.at(count, codes, seen)
    k = len(b)
    centres = [b.mean(0), *b]
    if k <= _MOST_PAIRS:
        centres += [(b[i] + b[j]) / 2 for i in range(k) for j in range(i)]
    mean = total / np.maximum(count, 1)
    about = np.where(count > 0, mean - np.array(centres)[:, None], 0.0)
    return np.concatenate([np.zeros((1, n_groups, x.shape[1])), about])


def lay_out_new_groups(
    fitted: FittedTable, x: np.ndarray | None, columns: list[DiscreteColumn], codes: np.ndarray
) -> tuple[tuple[Table, Parameters], np.ndarray, Layout]:
    """Arrange samples and parameters for `estimate_effects`.

    The arguments are as in `estimate_new_groups`.

    Returns
    -------
    problem : table of the samples in blocks, and fixed parameters of the clusters
    starts : (S, L, d) initial effects
    layout : positions of the samples in the table
    """
    n_groups = int(codes.max()) + 1
    columns = [
        DiscreteColumn(new.codes, old.n_values, old.scores, old.marginal)
        for new, old in zip(columns, fitted.data.columns, strict=True)
    ]
    design, slopes = None, np.zeros((0, fitted.b.shape[1]))
    if fitted.location and fitted.data.location is not None:
        design, slopes = fitted.data.location.for_new_groups(columns), fitted.slopes
    table, layout = lay_out_table(x, columns, codes, n_groups, design)
    d, width = fitted.b.shape[1], 0 if table.numeric is None else table.numeric.x.shape[-1]
    starts = np.zeros((1, len(table.sizes), width))
    sigma, t = np.eye(width), np.eye(width)
    if x is not None:
        effects = _initial_effects(x, codes, n_groups, fitted.b)
        starts = np.zeros((len(effects), len(table.sizes), width))
        starts[:, :n_groups, :d] = effects
        sigma[:d, :d], t[:d, :d] = fitted.sigma, fitted.t
    wide = ((0, 0), (0, width - d))
    theta = Parameters(
        np.pad(fitted.b, wide), np.pad(slopes, wide), sigma, t, fitted.discrete,
        fitted.log_share[0], fitted.concentration, np.asarray(fitted.by_group),
    )  # fmt: skip
    return (table, theta), starts, layout


def estimate_new_groups(
    fitted: FittedTable, x: np.ndarray | None, columns: list[DiscreteColumn], codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate the effects of groups that did not occur in the fit, from their samples.

    Parameters
    ----------
    fitted : parameters of a fit with random effects
    x : (n, d) numeric values in the coordinates of the fit, NaN where missing; None without numeric
        columns
    columns : discrete columns
    codes : (n,) new group of every sample, numbered from 0

    Returns
    -------
    log_joint : (n, K) log share plus log density of every sample, given the other samples of its
        group
    m : (L, d) effects on the numeric columns, in the coordinates of the fit
    """
    problem, starts, layout = lay_out_new_groups(fitted, x, columns, codes)
    log_joint, m = estimate_effects(*problem, starts)
    return (
        layout.from_blocks(np.asarray(log_joint)),
        np.asarray(m)[: codes.max() + 1, : fitted.b.shape[1]],
    )
