r"""Description length of a partition with the common covariance of its clusters integrated out.

The model is defined in `nrprob.methods.bayes.hierarchical_covariance`. With centres and covariances
of the clusters integrated out, the posterior density of the common covariance S is

    |S|^((m + K f)/2) exp(-m tr(S) / (2 s)) / prod_c |f S + A_c|^((f + n_c)/2),   m = d + 2,

up to a constant, relative to the measure |S|^(-(d+1)/2) dS, which does not depend on units. There
are d features and K occupied clusters. Cluster c has n_c samples, and A_c is its scatter about the
posterior mean of its centre. f is the degrees of freedom of the prior of a cluster's covariance,
and s the prior mean of the diagonal of S. The mode of the density satisfies

    S = (m + K f) (m/s I + sum_c (f + n_c) f (f S + A_c)^-1)^-1.

Laplace's method approximates the integral: the density as a function of the matrix logarithm of S
is replaced by a Gaussian density.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.methods.bayes.hyperparameters import Hyperparameters, maximise_hyperparameters
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.statistics.matrices import whitener

_N_ROUNDS = 3  # rounds; each updates the hyperparameters, then the common covariance
_N_STEPS = 12  # fixed-point iterations for the common covariance in a round
_N_FREEDOMS = 9  # values of nu that are compared, equally spaced on the grid


class _Clusters(NamedTuple):
    """Terms of the density of the common covariance S, after features are whitened by S.

    In these units, the current value of S is the identity matrix I.

    Attributes
    ----------
    scatter : (K, d, d) scatters A_c of the clusters, without the prior
    n : (K,) numbers of samples of the clusters, times the tempering exponent
    is_occupied : (K,) whether a cluster has samples
    freedom : degrees of freedom f of the prior of a cluster's covariance
    prior_freedom : degrees of freedom m = d + 2 of the prior of S
    prior : (d, d) matrix (m / s) I, expressed in these units
    """

    scatter: jax.Array
    n: jax.Array
    is_occupied: jax.Array
    freedom: jax.Array
    prior_freedom: jax.Array
    prior: jax.Array

    @property
    def weights(self) -> jax.Array:
        """Degrees of freedom f + n_c (K,) of the clusters; 0 for empty clusters."""
        return jnp.where(self.is_occupied, self.freedom + self.n, 0)

    @property
    def total_freedom(self) -> jax.Array:
        """Total degrees of freedom m + K f, for K occupied clusters."""
        return self.prior_freedom + self.is_occupied.sum() * self.freedom

    def inverse_covariances(self, common: jax.Array) -> jax.Array:
        """Matrices f (f S + A_c)^-1 (K, d, d) of the clusters, for the common covariance S."""
        white = whitener(self.freedom * common + self.scatter)[0]
        return self.freedom * jnp.einsum("kij,kil->kjl", white, white)

    def find_mode(self) -> jax.Array:
        """Find the mode (d, d) of the density, by fixed-point iterations from the current value."""

        def iterate(_, common):
            inverses = self.inverse_covariances(common)
            white, _ = whitener(self.prior + jnp.einsum("k,kij->ij", self.weights, inverses))
            return self.total_freedom * white.T @ white

        return jax.lax.fori_loop(0, _N_STEPS, iterate, jnp.eye(self.prior.shape[0]))

    def log_volume(self) -> jax.Array:
        """Log of the integral over S by Laplace's method, minus the log density at S = I.

        I has to be the mode. The result is -inf if the density has no maximum at I, since it then
        rises towards a singular covariance.
        """
        first, second = np.triu_indices(self.prior.shape[0])
        weights = self.weights
        # Number of times that an entry of the upper triangle occurs in a symmetric matrix.
        multiplicity = np.where(first == second, 1.0, 2.0)
        curvature = jnp.diag(0.5 * self.total_freedom * multiplicity)
        inverses = self.inverse_covariances(jnp.eye(self.prior.shape[0]))

        def subtract_cluster(c, curvature):
            w = inverses[c]
            pairs = w[first][:, first] * w[second][:, second]
            pairs = pairs + w[first][:, second] * w[second][:, first]
            return curvature - 0.25 * weights[c] * np.outer(multiplicity, multiplicity) * pairs

        curvature = jax.lax.fori_loop(0, weights.shape[0], subtract_cluster, curvature)
        white, log_det = whitener(curvature)
        # Only a positive definite curvature has a whitener.
        error = jnp.abs(white @ curvature @ white.T - jnp.eye(first.size)).max()
        log_volume = 0.5 * (first.size * np.log(2 * np.pi) - log_det)
        return jnp.where(error < 1e-6, log_volume, -jnp.inf)


def integrated_length(target: JointTarget, grid: Hyperparameters, labels: jax.Array) -> jax.Array:
    """Description length of a partition, with the common covariance integrated out.

    The hyperparameters are chosen to minimise this length.

    Parameters
    ----------
    target : JointTarget
        Target whose likelihood is
        `nrprob.methods.bayes.hierarchical_covariance.HierarchicalCovariances`.
    grid : Hyperparameters
        Grids of the hyperparameters.
    labels : array of shape (n',)
        Labels of the partition, with padding.

    Returns
    -------
    scalar
        Length in nats; inf if the density of the common covariance has no mode.
    """
    d = target.likelihood.n_features
    clusters = _cluster_terms(target, labels)
    # Initial S: the pooled covariance within clusters, with one additional sample of covariance I,
    # in units of the current S, so that it has an inverse.
    within = (clusters.scatter.sum(0) + jnp.eye(d)) / (clusters.n.sum() + 1)
    first_common = _from_units(target.likelihood.common, within)

    def condition(hyperparameters, common):
        likelihood = target.likelihood.with_hyperparameters(hyperparameters)
        return target.with_likelihood(likelihood.with_common(common))

    def length_given_freedom(freedom):
        freedom_grid = grid._replace(freedom=freedom[None])

        def update_both(_, carry):
            current = condition(*carry)
            best = _maximise(current, freedom_grid, current.cells(labels))
            mode = _cluster_terms(current.with_hyperparameters(best), labels).find_mode()
            return best, _from_units(carry[1], mode)

        initial = target.likelihood.hyperparameters._replace(freedom=freedom)
        best = jax.lax.fori_loop(0, _N_ROUNDS, update_both, (initial, first_common))
        current = condition(*best)
        # From the Lebesgue measure of S to the measure of the module docstring.
        units = 0.5 * (d + 1) * whitener(best[1])[1]
        log_volume = _cluster_terms(current, labels).log_volume()
        length = current.length(current.cells(labels)) - units - log_volume
        return jnp.where(jnp.isfinite(length), length, jnp.inf)

    size = grid.freedom.shape[0]
    some = np.linspace(0, size - 1, min(size, _N_FREEDOMS)).round().astype(int)
    return jax.lax.map(length_given_freedom, grid.freedom[some]).min()


def _cluster_terms(target: JointTarget, labels: jax.Array) -> _Clusters:
    """Terms of the density of the common covariance, for the partition ``labels`` (n',)."""
    likelihood, cells = target.likelihood, target.cells(labels).sum(0)
    d, hyperparameters = likelihood.n_features, likelihood.hyperparameters
    freedom = d + 1 + hyperparameters.freedom
    scatter = likelihood.code.scatter(cells) - freedom * jnp.eye(d)
    prior_freedom = jnp.asarray(d + 2.0)
    white, _ = whitener(likelihood.common)
    inverse, _ = whitener(white @ white.T)
    prior = prior_freedom / hyperparameters.variance * inverse.T @ inverse
    n = likelihood.power * cells[:, -1]
    return _Clusters(scatter, n, cells[:, -1] > 0.5, freedom, prior_freedom, prior)


def _from_units(common: jax.Array, covariance: jax.Array) -> jax.Array:
    """Convert a covariance (d, d) of features whitened by ``common`` to units of the features."""
    root = common @ whitener(common)[0].T
    return root @ covariance @ root.T


def _maximise(target: JointTarget, grid: Hyperparameters, cells: jax.Array) -> Hyperparameters:
    """Most probable hyperparameters, given the cells of a partition and the common covariance."""
    # The samples depend on the variance s through the common covariance only.
    fixed_variance = grid._replace(variance=grid.variance[:1])
    likelihood: Any = maximise_hyperparameters(target.likelihood, fixed_variance, cells)
    nats = jax.vmap(lambda s: likelihood.with_variance(s).common_nats())(grid.variance)
    return likelihood.hyperparameters._replace(variance=grid.variance[nats.argmin()])
