"""Likelihood of Gaussian clusters with separate means and covariances, integrated out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.target import Partition, Target, map_slots, occupied
from nrprob.engines.sample.uniforms import normal
from nrprob.methods.bayes.gaussian_sides import GaussianSides, pooled_distances
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.shared_covariance import wishart_root
from nrprob.methods.bayes.six_move_draws import log_gamma_variate
from nrprob.methods.bayes.weights import reweighted, unweighted
from nrprob.statistics.codes import NormalWishart, code_term
from nrprob.statistics.matrices import whitener
from nrprob.trees import node

_MAX_TABLE = 1 << 14  # number of samples up to which log-gamma functions are tabulated


def moments(rows: Any, full: bool = True) -> jax.Array:
    """Statistics (n, q) of features ``rows`` (n, m): the features, followed by their products.

    The products are of all pairs of features if ``full``, else squares only.
    """
    if not full:
        return jnp.concatenate([rows, rows * rows], 1)
    first, second = np.triu_indices(rows.shape[1])
    return jnp.concatenate([rows, rows[:, first] * rows[:, second]], 1)


@node
class SeparateCovariances:
    """`Likelihood` of Gaussian clusters that share no parameters.

    Attributes
    ----------
    code : code of the features of a cluster, under the current hyperparameters
    hyperparameters : current values
    """

    code: NormalWishart
    hyperparameters: Hyperparameters

    @property
    def power(self) -> Any:
        """Likelihood tempering exponent."""
        return self.code.power

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return self.code.n_features

    @property
    def width(self) -> int:
        """Number of leading statistics that the scale weight of a sample multiplies."""
        m = self.code.n_features
        return m + (m * (m + 1) // 2 if self.code.full else m) + 1

    def with_hyperparameters(self, hyperparameters: Hyperparameters) -> Any:
        """Return the likelihood under other hyperparameters."""
        kappa, _, variance, freedom = hyperparameters
        code = replace(self.code, kappa=kappa, variance=variance, freedom=freedom)
        return replace(self, code=code, hyperparameters=hyperparameters)

    def with_statistics(self, x: jax.Array) -> Any:
        """Return the likelihood itself, which holds no data."""
        return self

    def statistics(self, x: jax.Array, features: jax.Array) -> jax.Array:
        """Replace the features in statistics (b, p) by other features (b, d)."""
        columns = moments(features, self.code.full)
        rest = x[:, columns.shape[1] :]
        weight = rest[:, :1] if self.code.weighted else x[:, -1:]
        return jnp.concatenate([columns * weight, rest], 1)

    def nats(self, cells: jax.Array) -> jax.Array:
        """Minus the log marginal likelihood of cells (groups, K, p)."""
        return map_slots(lambda part: self.code(part.sum(0)), cells, occupied(cells)).sum()

    def partition_target(self, partition: Target) -> Target:
        """Add the code of the features to the code of labels and classes."""
        launch = self if self.n_features else None  # launched moves need features
        size = len(partition.x)
        code = self.code.with_table(size) if size <= _MAX_TABLE else self.code
        return replace(partition, terms=(code_term(code), *partition.terms), launch=launch)

    def cluster_distances(self, cells: jax.Array) -> jax.Array:
        """Mahalanobis distances (K, K) of means; see `LaunchModel.cluster_distances`."""
        code, cells = self.code, cells.sum(0)
        scatter = code.scatter(cells)
        if code.full:
            white = whitener(scatter)[0]
            inverse = jnp.einsum("kgf,kge->kfe", white, white)
        else:
            inverse = jax.vmap(jnp.diag)(1 / scatter)
        size, n = self.n_features if code.full else 1, self.power * cells[:, -1]
        return pooled_distances(code.mean(cells), inverse, size + 1 + code.freedom, n)

    def sides(
        self, target: Target, state: Partition, pair: jax.Array, rows: jax.Array, real: jax.Array
    ) -> GaussianSides:
        """Model of the two sides of a launched move; see `LaunchModel.sides`."""
        code, x = self.code, target.x[rows]
        weight = jnp.where(real, code.total_weight(x), 0)
        y = unweighted(x[:, : code.n_features], weight)[:, None]
        if not code.full:
            y = jnp.swapaxes(y, 1, 2)
        size = y.shape[2]
        prior = code.freedom * code.variance * jnp.eye(size)
        prior = jnp.broadcast_to(prior, (y.shape[1], size, size))
        rest = replace(target, terms=target.terms[1:], joint_codes=())
        tabulated: Any = target.terms[0].cost
        log_gammas = tabulated.log_gamma_of(np.arange(len(rows) + 2))
        return GaussianSides(
            y, self.power * weight, x, real, rest, code.kappa, self.power, prior,
            size + 1 + code.freedom, y.shape[1] * (log_gammas[:-1] - log_gammas[1:]), shared=False,
        )  # fmt: skip

    def gibbs_target(self, partition: Target, cells: jax.Array, key: jax.Array) -> Target:
        """Return the target of Gibbs sweeps, `partition_target`: a sum of codes over clusters."""
        return self.partition_target(partition)

    def uncoded_nats(self, x: jax.Array) -> jax.Array:
        """Zeros (n',), since the terms of `gibbs_target` omit nothing."""
        return jnp.zeros(len(x))

    def _predictive(self, cells: jax.Array) -> tuple[NormalWishart, jax.Array]:
        """Return the code without tempering, and ``cells`` multiplied by the tempering exponent.

        The density of new samples is not tempered. The likelihood of the samples in the cells, on
        which this density is conditional, is tempered.
        """
        return replace(self.code, power=jnp.ones_like(self.code.power)), self.code.power * cells

    def feature_costs(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """Minus the log predictive density of new samples in every cluster; see `Likelihood`."""
        return self._join_costs(cells, x, weights)

    def _join_costs(self, cells: jax.Array, x: jax.Array, weights: jax.Array | None) -> jax.Array:
        """Minus the log predictive density (K, b) of samples ``x`` (b, p) in every cluster.

        With scale weights ``weights`` (G,), the result is (K, G, b). The density refers to the
        features in the statistics, which a subclass may have transformed.
        """
        code, cells = self._predictive(cells.sum(0))
        prepared = jax.tree.map(lambda a: a[..., None], code.prepare_join(cells.T))
        if weights is not None:
            return code.weighted_join_costs(prepared, x.T, weights)
        return code.join_costs(prepared, x.T)

    def left_out_costs(
        self,
        partition: Target,
        cells: jax.Array,
        labels: jax.Array,
        weights: jax.Array | None = None,
    ) -> jax.Array:
        """Minus the log predictive density of every sample given all others; see `Likelihood`."""
        x = partition.x
        is_own = jnp.arange(cells.shape[1])[:, None] == labels
        # 1. Density of the sample in its own cluster, given the other samples of this cluster.
        code, others = self._predictive(cells.sum(0)[labels] - x)
        if weights is None:
            stays = code(others + x) - code(others)
            return jnp.where(is_own, stays, self._join_costs(cells, x, None))

        def own_cost(weight):
            return code(others + reweighted(x, weight, self.width)) - code(others)

        stays = jax.lax.map(own_cost, weights[:, None] * x[:, -1])
        # 2. Density of the sample in the other clusters.
        x = reweighted(x, x[:, -1], self.width)
        return jnp.where(is_own[:, None], stays, self._join_costs(cells, x, weights))

    def draw_roots(self, cells: jax.Array, key: jax.Array) -> jax.Array:
        """Sample the precision matrices R R' of the clusters, and return the matrices R (K, m, m).

        There are m features. For independent features, the method returns the square roots (K, m)
        of the precisions of the features.
        """
        code, total = self._predictive(cells.sum(0))
        freedom = (code.n_features if code.full else 1) + 1 + code.freedom + total[:, -1:]
        scatter = code.scatter(total)
        if not code.full:
            shape = jnp.broadcast_to(0.5 * freedom, scatter.shape)
            return jnp.exp(0.5 * log_gamma_variate(key, shape)) / jnp.sqrt(0.5 * scatter)
        return wishart_root(key, whitener(scatter)[0], freedom[:, 0])

    def moments(self, cells: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Posterior means of centres and covariances; see `Likelihood`."""
        code, total = self._predictive(cells.sum(0))
        scatter, freedom = code.scatter(total), code.freedom + total[:, -1]
        return code.mean(total), scatter / freedom.reshape(-1, *[1] * (scatter.ndim - 1))

    def draw_parameters(
        self, cells: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Sample centres and covariances; see `Likelihood`."""
        root_key, centre_key = jax.random.split(key)
        roots, (code, total) = self.draw_roots(cells, root_key), self._predictive(cells.sum(0))
        means = code.mean(total)
        noise = normal(centre_key, means.shape)
        noise = noise / jnp.sqrt(code.kappa + code.total_weight(total)[:, None])
        if not code.full:
            return means + noise / roots, 1 / jnp.square(roots), None
        white, _ = whitener(roots @ jnp.swapaxes(roots, 1, 2))
        covariances = jnp.swapaxes(white, 1, 2) @ white
        return means + (noise[:, None] @ white)[:, 0], covariances, None

    def squared_distances(
        self, partition: Target, cells: jax.Array, labels: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Squared Mahalanobis distances (n',) from centres, with all parameters sampled."""
        root_key, centre_key = jax.random.split(key)
        roots, (code, total) = self.draw_roots(cells, root_key), self._predictive(cells.sum(0))
        m, x = code.n_features, partition.x
        precision = code.kappa + total[:, self.width - 1 : self.width]
        means = total[:, :m] / precision
        noise = normal(centre_key, means.shape) / jnp.sqrt(precision)
        # The first m statistics are the features times the scale weight.
        rows = unweighted(x[:, :m], x[:, self.width - 1])

        def add_cluster(k, result):
            difference = rows - means[k]
            difference = difference @ roots[k] if code.full else difference * roots[k]
            return jnp.where(labels == k, jnp.square(difference - noise[k]).sum(1), result)

        return jax.lax.fori_loop(0, len(means), add_cluster, jnp.zeros(len(rows)))
