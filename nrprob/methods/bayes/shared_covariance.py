r"""Gaussian clusters that share one covariance, with covariance and all centres integrated out.

Sample i of cluster c, and of known group g if there are known groups, is

    x_i = a_g + b_c + e_i,   e_i ~ N(0, S),   b_c ~ N(0, S / kappa),   a_g ~ N(0, S / omega),

for d features, and S ~ inverse-Wishart(d + 1 + nu, nu s I), so s is the prior mean of the diagonal
of S. The centre of cluster c is b_c, and a_g is the offset of known group g. With known covariates
t_i, A' t_i replaces a_g, and the row of A for each covariate is N(0, S / omega).

Given a partition, S, all centres and all *known effects* (a_g, or A) are integrated out. The model
is a multivariate regression on indicators of the clusters and on the known structure, with a
matrix-normal prior of the coefficients. A split of one cluster can then reduce the covariance of
all clusters, which is impossible given S. Only Gibbs sweeps condition on a sampled S.

Samples may have scale weights: e_i ~ N(0, S / w_i). The statistics of sample i are then features
and covariates times w_i, followed by w_i. The code omits the factors w_i^(d/2) of the density.

The likelihood is tempered: ``power`` multiplies all sums over samples and all numbers of samples.

Shapes: d features, Q covariates, L known groups or covariates; others as in `nrprob.methods.bayes`.
A *root* R of a matrix M is triangular with M = R' R, unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.target import JointCode, Odds, Partition, Target
from nrprob.engines.sample.uniforms import normal
from nrprob.methods.bayes.gaussian_sides import GaussianSides
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.six_move_draws import log_gamma_variate
from nrprob.methods.bayes.unit_normal import UnitNormal
from nrprob.methods.bayes.weights import unweighted
from nrprob.statistics.codes import code_term, student_t_nats
from nrprob.statistics.gammas import log_multigamma
from nrprob.statistics.matrices import log_determinant, whitener
from nrprob.statistics.sums import sum_of_squares
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}


class _Fit(NamedTuple):
    """Regression of the features on the known structure and on the clusters.

    Covariances of centres and known effects are relative to S. The module docstring defines roots.

    Attributes
    ----------
    scatter : (d, d) residual scatter, including the scatter of the prior
    log_det : log determinant of the precision of the coefficients, relative to their prior
    alone : (L, d) coefficients of the L known groups or covariates, in the regression without
        clusters
    between : (L, K) coefficients of the regression of the cluster indicators on the known
        structure
    centres : (K, d) posterior means of the centres
    half : (K, K) root of the covariance of the centres, with the known effects integrated out
    root : (L, L) root of the covariance of the known effects given the centres; for groups its
        diagonal (L,)
    """

    scatter: jax.Array
    log_det: jax.Array
    alone: jax.Array
    between: jax.Array
    centres: jax.Array
    half: jax.Array
    root: jax.Array

    @property
    def effects(self) -> jax.Array:
        """Posterior means (L, d) of the offsets of groups, or of the coefficients of covariates."""
        return self.alone - self.between @ self.centres


class _Solution(NamedTuple):
    """Regression as in `_Fit`, without the covariances of the coefficients.

    ``effects`` (L, d) are the posterior means of the known effects.
    """

    scatter: jax.Array
    log_det: jax.Array
    effects: jax.Array
    centres: jax.Array


def wishart_root(key: jax.Array, white: jax.Array, freedom: jax.Array) -> jax.Array:
    """Sample Wishart matrices R R', and return the matrices R (..., d, d).

    The scale matrices are W' W, where ``white`` (..., d, d) are the matrices W. ``freedom`` (...)
    are the degrees of freedom.
    """
    gamma_key, normal_key = jax.random.split(key)
    d = white.shape[-1]
    shape = 0.5 * (jnp.asarray(freedom)[..., None] - np.arange(d))
    diagonal = jnp.sqrt(2) * jnp.exp(0.5 * log_gamma_variate(gamma_key, shape))
    below_diagonal = jnp.tril(normal(normal_key, white.shape, white.dtype), -1)
    return jnp.swapaxes(white, -1, -2) @ (below_diagonal + diagonal[..., None] * np.eye(d))


@node
class SharedCovariance(JointCode):
    """Likelihood of Gaussian clusters that share one covariance.

    The class implements `Likelihood`, and is a `JointCode`. The statistics of a sample are, in this
    order, its features, its covariates, its scale weight if there are weights, indicators of its
    class, and 1.

    Attributes
    ----------
    square : (d + Q, d + Q) weighted sum of the outer products of features and covariates
    hyperparameters : current values of kappa, omega, s and nu
    power : likelihood tempering exponent
    n_features : number of features d
    weighted : whether samples have scale weights
    n_covariates : number of known covariates Q
    grouped : whether there are known groups
    root : (Q, Q) root of the covariance, relative to S, of the coefficients of covariates given S
        and all centres
    log_det : log determinant of the inverse of the covariance whose root is ``root``
    """

    square: jax.Array
    hyperparameters: Hyperparameters
    power: jax.Array | np.float64
    n_features: int = field(metadata=_STATIC)
    weighted: bool = field(default=False, metadata=_STATIC)
    n_covariates: int = field(default=0, metadata=_STATIC)
    grouped: bool = field(default=False, metadata=_STATIC)
    root: jax.Array | None = None
    log_det: jax.Array | None = None

    def with_hyperparameters(self, hyperparameters: Hyperparameters) -> SharedCovariance:
        """Replace the hyperparameters."""
        if not self.n_covariates:
            return replace(self, hyperparameters=hyperparameters)
        gram = self.power * self.square[self.n_features :, self.n_features :]
        precision = hyperparameters.group_precision * jnp.eye(self.n_covariates) + gram
        root, log_det = whitener(precision)
        return replace(self, hyperparameters=hyperparameters, root=root, log_det=log_det)

    @property
    def _end(self) -> int:
        """Number d + Q of features and covariates."""
        return self.n_features + self.n_covariates

    @property
    def width(self) -> int:
        """Number of leading statistics that the scale weight of a sample multiplies."""
        return self._end + 1

    @property
    def _informed(self) -> bool:
        """Whether there is known structure."""
        return self.n_covariates > 0 or self.grouped

    def _offsets(self, effects: jax.Array, rows: jax.Array, group: jax.Array) -> jax.Array:
        """Offsets (b, d) of samples due to the known effects (L, d).

        ``rows`` (b, d + Q) are features and covariates, and ``group`` (b,) the known groups.
        """
        if self.n_covariates:
            return rows[..., self.n_features : self._end] @ effects
        return effects[group]

    def _sum_offsets(self, effects: jax.Array, cells: jax.Array) -> jax.Array:
        """Weighted sums of the offsets (groups, K, d) over the samples of cells (groups, K, p)."""
        if self.n_covariates:
            return cells[..., self.n_features : self._end] @ effects
        return self._mass(cells)[..., None] * effects[:, None]

    def _mass(self, statistics: jax.Array) -> jax.Array:
        """Sums (...) of the scale weights, from statistics (..., p).

        Without scale weights, these are the numbers of samples.
        """
        return statistics[..., self._end if self.weighted else -1]

    def _split_rows(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Split statistics ``x`` (b, p) into features and covariates (b, d + Q), and weights (b,).

        The features and covariates are divided by the weights.
        """
        weight, rows = self._mass(x), x[:, : self._end]
        return unweighted(rows, weight) if self.weighted else rows, weight

    def with_statistics(self, x: jax.Array) -> SharedCovariance:
        """Return the likelihood for other statistics (n', p) of the samples."""
        rows = unweighted(x[:, : self._end], jnp.sqrt(self._mass(x)))
        return replace(self, square=rows.T @ rows)

    def statistics(self, x: jax.Array, features: jax.Array) -> jax.Array:
        """Replace the features in statistics (b, p) by other features (b, d)."""
        return jnp.concatenate([features * self._mass(x)[:, None], x[:, self.n_features :]], 1)

    def _fit(self, cells: jax.Array) -> _Fit:
        """Fit the regression to ``cells`` (groups, K, p), with covariances of the coefficients."""
        d, (kappa, omega, s, nu) = self.n_features, self.hyperparameters
        n, sums = self.power * self._mass(cells), self.power * cells[..., :d]
        scatter = s * nu * jnp.eye(d) + self.power * self.square[:d, :d]
        precision = kappa + n.sum(0)
        if not self._informed:  # features are centred
            right = sums[0] / jnp.sqrt(precision)[:, None]
            log_det, half = jnp.log(precision / kappa).sum(), jnp.diag(1 / jnp.sqrt(precision))
            nothing = jnp.zeros((1, d), sums.dtype), jnp.zeros_like(n), half @ right, half
            return _Fit(scatter - right.T @ right, log_det, *nothing, jnp.ones(1))
        # 1. Regression on the known structure alone.
        if self.n_covariates:
            n = self.power * cells[0, :, d : self._end].T
            cross, root = self.power * self.square[d:, :d], cast(jax.Array, self.root)
            alone, between = root.T @ (root @ cross), root.T @ (root @ n)
            explained, log_prior = alone.T @ cross, self.log_det - len(n) * jnp.log(omega)
        else:
            per = omega + n.sum(1)
            root, alone, between = 1 / jnp.sqrt(per), sums.sum(1) / per[:, None], n / per[:, None]
            explained, log_prior = alone.T @ (alone * per[:, None]), jnp.log(per / omega).sum()
        # 2. Regression on clusters, with the known structure eliminated (Schur complement).
        half, log_det = whitener(jnp.diag(precision) - n.T @ between)
        right = half @ (sums.sum(0) - n.T @ alone)
        scatter = scatter - explained - right.T @ right
        log_det = log_det + log_prior - n.shape[1] * jnp.log(kappa)
        return _Fit(scatter, log_det, alone, between, half.T @ right, half, root)

    def _levels(self, fit: _Fit, rows: jax.Array, group: jax.Array) -> tuple[jax.Array, ...]:
        """Posterior of the offsets of samples due to known effects, for each level.

        A level is a known group; if there are covariates, each sample is a level. ``rows``
        (b, d + Q) are features and covariates. Returns the means (levels, d) of the offsets, and
        the fitted values (levels, K) of the regression `_Fit.between`. Also returns the variances
        (levels,) of the offsets given the centres, relative to S, and the levels (b,) of samples.
        """
        if not self.n_covariates:
            return fit.effects, fit.between, jnp.square(fit.root), group
        covariates = rows[:, self.n_features :]
        spread = jnp.square(covariates @ fit.root.T).sum(1)
        levels = jnp.arange(len(rows))
        return covariates @ fit.effects, covariates @ fit.between, spread, levels

    def _solve(self, cells: jax.Array) -> _Solution:
        """Solve the regression on ``cells`` (groups, K, p), without covariances of coefficients.

        The update of the hyperparameters solves dozens of regressions. To save time, the method
        first eliminates either the clusters or the known structure, and then factors the smaller of
        two matrices: (L, L) or (K, K).
        """
        d, (kappa, omega, s, nu) = self.n_features, self.hyperparameters
        n_known = self.n_covariates or cells.shape[0]
        if not self._informed or n_known > cells.shape[1]:
            fit = self._fit(cells)
            return _Solution(fit.scatter, fit.log_det, fit.effects, fit.centres)
        n, sums = self.power * self._mass(cells), self.power * cells[..., :d]
        precision, cluster_sums = kappa + n.sum(0), sums.sum(0)
        if self.n_covariates:
            n = self.power * cells[0, :, d : self._end].T
            gram, cross = (
                self.power * self.square[d:, part] for part in (slice(d, None), slice(d))
            )
        else:
            gram, cross = jnp.diag(n.sum(1)), sums.sum(1)
        # Regression on the known structure, with the clusters eliminated (Schur complement).
        between = n / precision
        half, log_det = whitener(omega * jnp.eye(n_known) + gram - between @ n.T)
        right = half @ (cross - between @ cluster_sums)
        scatter = s * nu * jnp.eye(d) + self.power * self.square[:d, :d]
        scatter = scatter - (cluster_sums.T / precision) @ cluster_sums - right.T @ right
        log_det = log_det - n_known * jnp.log(omega) + jnp.log(precision / kappa).sum()
        effects = half.T @ right
        centres = (cluster_sums - n.T @ effects) / precision[:, None]
        return _Solution(scatter, log_det, effects, centres)

    def nats(self, cells: jax.Array) -> jax.Array:
        """Minus the log marginal likelihood of cells (groups, K, p)."""
        solution, d, (_, _, s, nu) = self._solve(cells), self.n_features, self.hyperparameters
        n, freedom = self.power * cells[..., -1].sum(), d + 1 + nu
        return (
            0.5 * n * d * np.log(np.pi)
            + log_multigamma(0.5 * freedom, d)
            - log_multigamma(0.5 * (freedom + n), d)
            - 0.5 * freedom * d * jnp.log(s * nu)
            + 0.5 * (freedom + n) * log_determinant(solution.scatter)
            + 0.5 * d * solution.log_det
        )

    def __call__(self, cells: jax.Array) -> jax.Array:
        """Code length of cells (groups, K, p), in nats; see `JointCode`."""
        return self.nats(cells)

    def partition_target(self, partition: Target) -> Target:
        """Add the code of the features to the code of labels and classes."""
        return replace(partition, joint_codes=(self,), launch=self if self.n_features else None)

    def feature_costs(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """Minus the log predictive density of new samples in every cluster; see `Likelihood`."""
        d, fit = self.n_features, self._fit(cells)
        freedom = d + 1 + self.hyperparameters.freedom + self.power * cells[..., -1].sum()
        inverse = fit.half.T @ fit.half
        means, spread = fit.centres[:, None], jnp.diagonal(inverse)[:, None]
        rows, _ = self._split_rows(x)
        if self._informed:
            offsets, between, level_spread, level = self._levels(fit, rows, group)
            inside = between @ inverse
            spread = spread - 2 * inside.T + level_spread + (inside * between).sum(1)
            means, spread = means + offsets[level], spread[:, level]
        white, log_det = whitener(fit.scatter)
        distance = jnp.square(rows[:, :d] @ white.T - means @ white.T).sum(-1)
        weight: Any = 1.0
        if weights is not None:
            weight, spread, distance = weights[:, None], spread[:, None], distance[:, None]
        return student_t_nats(weight * distance, log_det, 1 + weight * spread, freedom, d)

    def left_out_costs(
        self,
        partition: Target,
        cells: jax.Array,
        labels: jax.Array,
        weights: jax.Array | None = None,
    ) -> jax.Array:
        """Minus the log predictive density of every sample given all others; see `Likelihood`.

        Removing sample i is an update of rank one of the regression on all samples. C is the
        covariance of the coefficients, relative to S. u_i is the design vector of sample i, and u_c
        the design vector that sample i would have in cluster c. m is the scale weight of sample i
        times the tempering exponent. Without sample i, the covariance of the coefficients is

            C + m C u_i u_i' C / (1 - m u_i' C u_i).

        Coefficients and scatter change accordingly.
        """
        d, fit = self.n_features, self._fit(cells)
        rows, mass = self._split_rows(partition.x)
        counted = self.power * mass
        nu, n = self.hyperparameters.freedom, cells[..., -1].sum()
        freedom = d + 1 + nu + self.power * (n - 1)  # without the sample
        # 1. Covariances u_c' C u_i and u_c' C u_c (K, b), with the known structure of the sample.
        inverse = fit.half.T @ fit.half
        covariance, spread = inverse[:, labels], jnp.diagonal(inverse)[:, None]
        offset: Any = 0.0
        if self._informed:
            offsets, between, level_spread, level = self._levels(fit, rows, partition.group)
            inside = between @ inverse
            common = (level_spread + (inside * between).sum(1))[level]
            inside = inside[level]
            own_inside = jnp.take_along_axis(inside, labels[:, None], 1)[:, 0]
            covariance = covariance - inside.T - own_inside + common
            spread = spread - 2 * inside.T + common
            offset = offsets[level]
        leverage = jnp.take_along_axis(covariance, labels[None], 0)[0]
        remaining = 1 - counted * leverage
        # 2. Whitened residuals under every cluster: their squares, and products with the residual
        # under the sample's own cluster (K, b).
        white, log_det = whitener(fit.scatter)
        rows, centres = (rows[:, :d] - offset) @ white.T, fit.centres @ white.T
        residual = rows - centres[labels]
        square = jnp.square(rows - centres[:, None]).sum(-1)
        product = (rows * residual).sum(1) - centres @ residual.T
        own_square = jnp.square(residual).sum(1)
        # 3. Squared distances without the sample. Its removal multiplies the determinant of the
        # scatter by 1 - share.
        share = counted * own_square / remaining
        shift = counted * covariance / remaining
        distance = square + 2 * shift * product + shift**2 * own_square
        product = product + shift * own_square
        distance = distance + counted * product**2 / remaining / (1 - share)
        spread = spread + counted * covariance**2 / remaining
        # 4. Multivariate t density.
        log_det, weight = log_det + jnp.log1p(-share), jnp.ones(())
        if weights is not None:
            weight, spread, distance = weights[:, None], spread[:, None], distance[:, None]
        return student_t_nats(weight * distance, log_det, 1 + weight * spread, freedom, d)

    def moments(self, cells: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Posterior means of the centres, in units of the shared covariance; see `Likelihood`."""
        fit = self._fit(cells)
        freedom = self.hyperparameters.freedom + self.power * cells[..., -1].sum()
        white, _ = whitener(fit.scatter / freedom)
        return fit.centres @ white.T, None

    def _merge(
        self, target: Target, state: Partition, a: jax.Array, b: jax.Array
    ) -> tuple[_Solution | _Fit, Callable[..., Any], jax.Array, jax.Array, jax.Array]:
        """Fit the regression with clusters ``a`` and ``b`` merged.

        Returns
        -------
        fit : regression with the merged cluster
        adjust_rows : function of samples (m, p) and groups (m,), which returns features minus known
            effects, and weights
        inside : (n',) mask of the samples of the two clusters
        rest, union : (n', d) residuals times the square root of the weight; ``rest`` is 0 for
            samples of the two clusters, ``union`` is 0 for all other samples
        """
        both = state.cells[:, a] + jnp.where(a == b, 0, 1) * state.cells[:, b]
        fit = self._solve(state.cells.at[:, b].set(0).at[:, a].set(both))

        def adjust_rows(x, group):
            rows, weight = self._split_rows(x)
            rows = rows[:, : self.n_features] - self._offsets(fit.effects, rows, group)
            return rows, weight

        rows, weight = adjust_rows(target.x, target.group)
        inside = (state.labels == a) | (state.labels == b)
        apart = rows - fit.centres[jnp.where(inside, a, state.labels)]
        root = jnp.sqrt(weight)
        rest, union = (apart * (where * root)[:, None] for where in (~inside, inside))
        return fit, adjust_rows, inside, rest, union

    def cluster_distances(self, cells: jax.Array) -> jax.Array:
        """Mahalanobis distances (K, K) of the centres; see `LaunchModel.cluster_distances`."""
        fit, n = self._solve(cells), self.power * cells[..., -1].sum()
        freedom = self.n_features + 1 + self.hyperparameters.freedom + n
        means = fit.centres @ whitener(fit.scatter)[0].T
        square = jnp.square(means[:, None] - means).sum(-1)
        return jnp.sqrt(freedom * square)

    def sides(
        self, target: Target, state: Partition, pair: jax.Array, rows: jax.Array, real: jax.Array
    ) -> GaussianSides:
        """Model of the two sides of a launched move; see `LaunchModel.sides`."""
        kappa, _, variance, freedom = self.hyperparameters
        _, adjust_rows, inside, outside, _ = self._merge(target, state, *pair)
        scatter = variance * freedom * jnp.eye(self.n_features)
        scatter = scatter + self.power * outside.T @ outside
        n = self.power * (~inside * target.x[:, -1]).sum()
        y, weight = adjust_rows(target.x[rows], target.group[rows])
        weight = self.power * jnp.where(real, weight, 0)
        rest = replace(target, joint_codes=(), n_groups=1)
        return GaussianSides(
            y[:, None], weight, target.x[rows], real, rest, kappa, self.power, scatter[None],
            self.n_features + 1 + freedom + n, jnp.zeros(len(rows) + 1), shared=True,
        )  # fmt: skip

    def odds(
        self, target: Target, state: Partition, a: jax.Array, b: jax.Array
    ) -> Callable[[jax.Array, jax.Array], Odds]:
        """Log odds that samples of clusters ``a`` and ``b`` join the second of two new clusters.

        The odds depend on a and b only through their union, as `Target.odds` requires: they are
        equal before and after a split or merge. The covariance is estimated from the residuals of
        all other samples about their clusters, and from the union.
        """
        d, kappa = self.n_features, self.hyperparameters.centre_precision
        fit, adjust_rows, inside, rest, union = self._merge(target, state, a, b)
        mass = target.x[:, -1]
        # 1. Scatter of the prior, of the samples outside the two clusters, and of their union. The
        # union has the weight of ``few`` samples. Without it, the covariance would have no
        # information about the two clusters until several samples are assigned.
        few = d + 2.0
        base = self.hyperparameters.variance * self.hyperparameters.freedom * jnp.eye(d)
        share = few / jnp.maximum((inside * mass).sum(), 1)
        base = base + rest.T @ rest + share * (union.T @ union)
        n_base = d + 1 + self.hyperparameters.freedom + few + (~inside * mass).sum()

        def odds_of_samples(x, group):
            (rows, weight), mass = adjust_rows(x, group), x[:, -1]
            root = jnp.sqrt(weight)

            def log_odds(two, taken, side):
                # 2. Means of the two clusters, and the covariance. Both include the samples with an
                # assigned side.
                n = self._mass(two)
                sums = (two[..., :d] - self._sum_offsets(fit.effects, two)).sum(0)
                n = n.sum(0)
                means = sums / (kappa + n)[:, None]
                near = rows - means[side.astype(jnp.int32)]
                near = near * (taken * root)[:, None]
                white = whitener((base + near.T @ near) / (n_base + (taken * mass).sum()))[0]
                # 3. Gaussian log densities about the two means.
                factor = 1 + weight / (kappa + n)[:, None]
                distance = (white @ rows.T)[:, None] - (white @ means.T)[..., None]
                distance = weight * sum_of_squares(distance) / factor
                cost = 0.5 * (distance + d * jnp.log(factor))
                cost = cost + target.joining(two, x, group)
                return cost[0] - cost[1]

            return log_odds

        return odds_of_samples

    def _draw_parameters(
        self, cells: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Sample S, the centres and the effects of known groups from their joint posterior.

        Returns a matrix R (d, d) with S^-1 = R R'. Also returns the centres (K, d) and the known
        effects (L, d), which are multiplied by R.
        """
        d = self.n_features
        wishart_key, centre_key, group_key = jax.random.split(key, 3)
        fit = self._fit(cells)
        freedom = d + 1 + self.hyperparameters.freedom + self.power * cells[..., -1].sum()
        root = wishart_root(wishart_key, whitener(fit.scatter)[0], freedom)
        noise = normal(centre_key, fit.centres.shape, cells.dtype)
        centres = fit.centres @ root + fit.half.T @ noise
        if not self._informed:
            return root, centres, fit.effects
        effects = fit.alone @ root - fit.between @ centres
        noise = normal(group_key, effects.shape, effects.dtype)
        noise = fit.root.T @ noise if self.n_covariates else noise * fit.root[:, None]
        return root, centres, effects + noise

    def draw_parameters(
        self, cells: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Sample centres, the covariance and effects of known structure; see `Likelihood`."""
        root, centres, effects = self._draw_parameters(cells, key)
        white, _ = whitener(root @ root.T)
        covariance = white.T @ white
        back = root.T @ covariance  # inverse of ``root``, to the units of the features
        informed = effects @ back if self._informed else None
        return centres @ back, covariance[None], informed

    def gibbs_target(self, partition: Target, cells: jax.Array, key: jax.Array) -> Target:
        """Return the target of Gibbs sweeps, given sampled covariance and known effects."""
        d, x = self.n_features, partition.x
        root, _, effects = self._draw_parameters(cells, key)
        rows = x[:, :d] @ root
        if self.n_covariates:  # the covariates in ``x`` are already multiplied by the weights
            rows = rows - x[:, d : self._end] @ effects
        elif self._informed:
            rows = rows - effects[partition.group] * self._mass(x)[:, None]
        mass = self._end if self.weighted else -1
        code = UnitNormal(self.hyperparameters.centre_precision, self.power, d, mass)
        return replace(
            partition,
            terms=(code_term(code), *partition.terms),
            x=jnp.concatenate([rows, x[:, d:]], 1),
            group=jnp.zeros_like(partition.group),
            n_groups=1,
        )

    def uncoded_nats(self, x: jax.Array) -> jax.Array:
        """Nats (n',) that the code of `gibbs_target` omits, for samples of scale weight 1.

        ``x`` (n', p) are the statistics of the samples in this target.
        """
        return 0.5 * jnp.square(x[:, : self.n_features]).sum(1)

    def squared_distances(
        self, partition: Target, cells: jax.Array, labels: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Squared Mahalanobis distances (n',) from centres, with all parameters sampled."""
        root, centres, effects = self._draw_parameters(cells, key)
        rows, group = self._split_rows(partition.x)[0], partition.group
        difference = rows[:, : self.n_features] @ root - centres[labels]
        return jnp.square(difference - self._offsets(effects, rows, group)).sum(1)
