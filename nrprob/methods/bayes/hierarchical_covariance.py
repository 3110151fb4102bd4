r"""Gaussian clusters whose covariances are shrunk to a common covariance, by a sampled amount.

Sample i of cluster c is

    x_i = b_c + e_i,   e_i ~ N(0, S_c),   b_c ~ N(0, S_c / kappa),
    S_c ~ inverse-Wishart(f, f S),  f = d + 1 + nu,    S ~ Wishart(d + 2, s I / (d + 2)),

for d features. b_c is the centre of the cluster. The prior mean of S_c^-1 is S^-1, and s is the
prior mean of the diagonal of S. If S were instead the prior mean of S_c, the sampler could hardly
change nu at fixed S. With a small nu, the covariances of the clusters differ; with a large nu, they
are nearly equal. The sampler updates nu, S and s.

The prior of S is zero near singular matrices: tr S^-1 is at most 10^10. Otherwise the density would
be unbounded if all clusters lie in parallel planes, as clusters of duplicated samples do.

Given S, the description length of a partition is a sum over clusters, whose centres and covariances
are integrated out. To sample S, the update first samples the covariances of the clusters, and then
S given these covariances.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Target
from nrprob.methods.bayes.full_covariance import SeparateCovariances
from nrprob.methods.bayes.hierarchical_length import integrated_length
from nrprob.methods.bayes.hyperparameters import (
    Hyperparameters,
    HyperparameterUpdate,
    sample_hyperparameters,
)
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.shared_covariance import wishart_root
from nrprob.statistics.gammas import log_multigamma
from nrprob.statistics.matrices import whitener
from nrprob.trees import node

SHRINKAGE = np.geomspace(1, 500, 97)  # values of nu
VARIANCES = np.logspace(-8, 0, 129)  # values of s, in small steps, since S determines it well
MAX_INVERSE_TRACE = 1e10  # largest trace of the inverse of S


@node
class HierarchicalCovariances(SeparateCovariances):
    """`Likelihood` of Gaussian clusters whose covariances are shrunk to a common covariance.

    Attributes
    ----------
    code : code of the features of a cluster, after the features are whitened by S
    hyperparameters : current values
    common : (d, d) the common covariance S
    """

    common: jax.Array

    def with_hyperparameters(self, hyperparameters: Hyperparameters) -> HierarchicalCovariances:
        """Return the likelihood with other hyperparameters."""
        result = super().with_hyperparameters(hyperparameters)
        # Features are in units of S, so that the prior scatter of the code is f I.
        freedom = hyperparameters.freedom
        unit = (self.n_features + 1 + freedom) / freedom
        return replace(result, code=replace(result.code, variance=unit))

    def with_variance(self, variance: jax.Array) -> HierarchicalCovariances:
        """Replace s, the prior mean of the diagonal of S."""
        return self.with_hyperparameters(self.hyperparameters._replace(variance=variance))

    def with_common(self, common: jax.Array) -> HierarchicalCovariances:
        """Return the likelihood with another S; the caller has to recompute the statistics."""
        return replace(self, common=common)

    def statistics(self, x: jax.Array, features: jax.Array) -> jax.Array:
        """Replace the features in statistics (b, p) by other features (b, d), whitened by S."""
        return super().statistics(x, features @ whitener(self.common)[0].T)

    def common_nats(self) -> jax.Array:
        """Minus the log prior density of S, which is Wishart.

        The density refers to the Lebesgue measure dS.
        """
        d, s = self.n_features, self.hyperparameters.variance
        freedom = d + 2
        inside = jnp.trace(self.common) * freedom / s - whitener(self.common)[1]
        constant = d * jnp.log(2 * s / freedom)
        return 0.5 * (inside + freedom * constant) + log_multigamma(0.5 * freedom, d)

    def feature_costs(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """Minus the log predictive density of new samples in every cluster; see `Likelihood`."""
        cost = super().feature_costs(cells, x, group, weights)
        return cost + 0.5 * whitener(self.common)[1]

    def left_out_costs(
        self,
        partition: Target,
        cells: jax.Array,
        labels: jax.Array,
        weights: jax.Array | None = None,
    ) -> jax.Array:
        """Minus the log predictive density of every sample given all others; see `Likelihood`."""
        cost = super().left_out_costs(partition, cells, labels, weights)
        return cost + 0.5 * whitener(self.common)[1]

    def draw_parameters(
        self, cells: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Sample centres and covariances; see `Likelihood`."""
        means, covariances, _ = super().draw_parameters(cells, key)
        # From units of the common covariance to units of the features.
        back = self.common @ whitener(self.common)[0].T
        return means @ back.T, back @ covariances @ back.T, None

    def draw_common(self, cells: jax.Array, roots: jax.Array, key: jax.Array) -> jax.Array:
        """Sample S given the precision matrices R R' of the clusters.

        ``roots`` (K, d, d) are the matrices R, for features whitened by the current S. Clusters
        without samples are ignored.
        """
        d = self.n_features
        cluster_freedom = d + 1 + self.hyperparameters.freedom
        is_occupied = cells[..., -1].sum(0) > 0.5
        white, _ = whitener(self.common)
        # From units of the common covariance to units of the features.
        roots = white.T @ jnp.where(is_occupied[:, None, None], roots, 0)
        inverse = cluster_freedom * jnp.einsum("kde,kfe->df", roots, roots)
        inverse = inverse + jnp.eye(d) * (d + 2) / self.hyperparameters.variance
        freedom = d + 2 + is_occupied.sum() * cluster_freedom
        root = wishart_root(key, whitener(inverse)[0], freedom)
        return root @ root.T


@node
class CommonCovarianceUpdate(HyperparameterUpdate):
    """Gibbs update of the hyperparameters and of the common covariance."""

    names: ClassVar[tuple[str, ...]] = (*Hyperparameters._fields, "common_covariance")

    def draw(self, target: JointTarget) -> Draw:
        """Current hyperparameters and common covariance, by name."""
        return {**super().draw(target), "common_covariance": target.likelihood.common}

    def condition(self, target: JointTarget, draw: Draw) -> JointTarget:
        """Condition the target on hyperparameters and a common covariance."""
        likelihood = super().condition(target, draw).likelihood
        return target.with_likelihood(likelihood.with_common(draw["common_covariance"]))

    def nats(self, target: JointTarget) -> jax.Array:
        """Minus the log prior density of S, minus the log Jacobian of the features in units of S.

        The log Jacobian is multiplied by the tempering exponent.
        """
        likelihood, n = target.likelihood, target.x[:, -1].sum()
        volume = 0.5 * likelihood.power * n * whitener(likelihood.common)[1]
        return volume + likelihood.common_nats()

    def resample(self, target: JointTarget, labels: jax.Array, key: jax.Array) -> JointTarget:
        """Sample the hyperparameters and S, and condition the target on them."""
        cells = target.cells(labels)
        number_key, root_key, variance_key, common_key = jax.random.split(key, 4)
        # 1. All hyperparameters except s: given S, the samples do not depend on s.
        grid = self.grid._replace(variance=self.grid.variance[:1])
        likelihood: Any = sample_hyperparameters(target.likelihood, grid, cells, number_key)
        # 2. s given S.
        log_p = -jax.vmap(lambda s: likelihood.with_variance(s).common_nats())(self.grid.variance)
        which = jax.random.categorical(variance_key, log_p)
        likelihood = likelihood.with_variance(self.grid.variance[which])
        # 3. S given the covariances of the clusters. If the new S violates the bound on tr S^-1,
        # S does not change. This leaves the truncated distribution invariant.
        common = likelihood.draw_common(cells, likelihood.draw_roots(cells, root_key), common_key)
        within = jnp.square(whitener(common)[0]).sum() <= MAX_INVERSE_TRACE
        common = jnp.where(within, common, likelihood.common)
        return target.with_likelihood(likelihood.with_common(common))

    def shortest_length(self, target: JointTarget, labels: jax.Array) -> jax.Array:
        """Description length of a partition, with the common covariance integrated out."""
        return integrated_length(target, self.grid, labels)
