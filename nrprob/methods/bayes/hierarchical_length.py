r"""Code length of a partition whose clusters' covariances are shrunk to a common one, unknown.

With centres and covariances of clusters integrated out, the density of the common covariance S is

    |S|^((m + K f)/2) exp(-m tr(S) / (2 s)) / prod_c |f S + A_c|^((f + n_c)/2),   m = d + 2,

up to a constant, by the measure that does not depend on units; A_c is the scatter of cluster c
about its shrunken centre. It has its mode where

    S = (m + K f) (m/s I + sum_c (f + n_c) f (f S + A_c)^-1)^-1,

and its integral is taken as that of a normal density of the logarithm of S (Laplace's method).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.methods.bayes.hyperparameters import Prior, best_prior
from nrprob.statistics.matrices import whitener

_ROUNDS = 3  # of numbers of the prior, and of the common covariance given them
_STEPS = 12  # towards its mode, of a round
_TRIED = 9  # values of the degrees of freedom, at equal distances on their grid


class _Clusters(NamedTuple):
    """What clusters say of the common covariance S, in units of one that is tried.

    ``scatter`` (K, d, d) without the prior's, ``n`` (K,) rows, ``here`` (K,) whether there are any,
    ``freedom`` f, ``before`` m and ``prior`` (d, d), m times the inverse of the mean of S's prior.
    """

    scatter: jax.Array
    n: jax.Array
    here: jax.Array
    freedom: jax.Array
    before: jax.Array
    prior: jax.Array

    def inverses(self, common: jax.Array) -> jax.Array:
        """Inverses (K, d, d) of expected covariances, times f, given the common one."""
        white = whitener(self.freedom * common + self.scatter)[0]
        return self.freedom * jnp.einsum("kij,kil->kjl", white, white)

    def most_probable(self) -> jax.Array:
        """The mode (d, d), after some steps from the one that is tried."""
        weight = jnp.where(self.here, self.freedom + self.n, 0)
        total = self.before + self.here.sum() * self.freedom

        def step(_, common):
            inverse = self.prior + jnp.einsum("k,kij->ij", weight, self.inverses(common))
            white, _ = whitener(inverse)
            return total * white.T @ white

        return jax.lax.fori_loop(0, _STEPS, step, jnp.eye(self.prior.shape[0]))

    def log_volume(self) -> jax.Array:
        """Log of the integral about the mode, which is 1 here, over the density at it.

        -inf where it is no mode, since the density rises towards a covariance that is singular.
        """
        first, second = np.triu_indices(self.prior.shape[0])
        weight = jnp.where(self.here, self.freedom + self.n, 0)
        total = self.before + self.here.sum() * self.freedom
        times = np.where(first == second, 1.0, 2.0)  # that an entry stands in a symmetric matrix
        curvature = jnp.diag(0.5 * total * times)

        def less(c, curvature):
            w = inverse[c]
            pairs = w[first][:, first] * w[second][:, second]
            pairs = pairs + w[first][:, second] * w[second][:, first]
            return curvature - 0.25 * weight[c] * np.outer(times, times) * pairs

        inverse = self.inverses(jnp.eye(self.prior.shape[0]))
        curvature = jax.lax.fori_loop(0, weight.shape[0], less, curvature)
        white, log_det = whitener(curvature)
        off = jnp.abs(white @ curvature @ white.T - jnp.eye(first.size)).max()
        return jnp.where(off < 1e-6, 0.5 * (first.size * np.log(2 * np.pi) - log_det), -jnp.inf)


def shortest_length(target: Any, labels: jax.Array) -> jax.Array:
    """Length of a partition over the numbers of the prior, the common covariance integrated out.

    Parameters
    ----------
    target : nrprob.methods.bayes.hierarchical_covariance.ShrunkTarget
    labels : (n',)

    Returns
    -------
    scalar, in nats; inf where the density has no mode in the common covariance
    """
    one = jnp.eye(target.n_features)
    clusters = _of(target, labels)
    # That of all clusters, with a row's worth of what is to be expected, so that it has an inverse.
    within = (clusters.scatter.sum(0) + one) / (clusters.n.sum() + 1)
    start = _from_units(target.common, within)

    def given(freedom):
        grid = target.grid._replace(freedom=freedom[None])

        def round_(_, carry):
            now = target.at(carry[0]).seen_by(carry[1])
            prior = _best_numbers(now, grid, now.cells(labels))
            result = _of(now.at(prior), labels).most_probable()
            return prior, _from_units(carry[1], result)

        first = target.prior._replace(freedom=freedom)
        prior, common = jax.lax.fori_loop(0, _ROUNDS, round_, (first, start))
        now = target.at(prior).seen_by(common)
        # The density is one by the plain measure of S.
        units = 0.5 * (target.n_features + 1) * whitener(common)[1]
        length = now.length(now.cells(labels)) - units - _of(now, labels).log_volume()
        return jnp.where(jnp.isfinite(length), length, jnp.inf)

    size = target.grid.freedom.shape[0]
    some = np.linspace(0, size - 1, min(size, _TRIED)).round().astype(int)
    return jax.lax.map(given, target.grid.freedom[some]).min()


def _of(target: Any, labels: jax.Array) -> _Clusters:
    """What clusters say, in units of the target's common covariance."""
    code, cells = target.plain.terms[0].cost, target.cells(labels).sum(0)
    d, freedom = target.n_features, target.n_features + 1 + target.prior.freedom
    scatter = code.scatter(cells) - freedom * jnp.eye(d)
    before = jnp.asarray(d + 2.0)
    white, _ = whitener(target.common)
    inverse, _ = whitener(white @ white.T)
    prior = before / target.prior.variance * inverse.T @ inverse
    n = code.power * cells[:, -1]
    return _Clusters(scatter, n, cells[:, -1] > 0.5, freedom, before, prior)


def _from_units(common: jax.Array, result: jax.Array) -> jax.Array:
    """A covariance in units of another, in those of the rows."""
    root = common @ whitener(common)[0].T
    return root @ result @ root.T


def _best_numbers(target: Any, grid: Prior, cells: jax.Array) -> Prior:
    """Numbers of the prior, each the most probable given the others and the common covariance."""
    # The variance says nothing of the rows but by the common covariance.
    fewer = replace(target, grid=grid._replace(variance=grid.variance[:1]))
    result = best_prior(fewer, cells)
    lengths = jax.vmap(lambda s: result.at(result.prior._replace(variance=s)).of_common())(
        grid.variance
    )
    return result.prior._replace(variance=grid.variance[lengths.argmin()])
