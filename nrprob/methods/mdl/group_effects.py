r"""Gibbs updates of the effects of known groups in continuous views.

The features of sample i in group g and cluster k of a view are
:math:`x_i = \mu_k + \gamma_g + \epsilon_i`, with errors :math:`\epsilon_i \sim N(0, \Sigma_k)` and
effects :math:`\gamma_g \sim N(0, \tau^2 I)`. The mean :math:`\mu_k` and covariance
:math:`\Sigma_k` of a cluster have the conjugate prior of `nrprob.statistics.codes.NormalWishart`.
Given the effects, the target of the labels has the statistics of :math:`x_i - \gamma_g`. Given the
labels, an update has these steps:

1. Sample the precisions :math:`\Lambda_k = \Sigma_k^{-1}` and means :math:`\mu_k`.
2. Sample the effects. Group g and cluster k have :math:`n_{gk}` samples with the sum
   :math:`s_{gk}`. The effects are Gaussian with precision :math:`P_g = I / \tau^2 + \sum_k n_{gk}
   \Lambda_k` and mean :math:`P_g^{-1} b_g`, :math:`b_g = \sum_k \Lambda_k (s_{gk} - n_{gk} \mu_k)`.
3. Sample a vector, add it to all effects and subtract it from all means. The likelihood does not
   depend on this vector. With steps 1 and 2 alone, such a common shift would mix slowly.
4. Sample :math:`\tau` from a grid.

The precisions and means are then discarded. There are n samples with p statistics each, G groups, K
clusters and d features.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.sample.target import Target, sum_cells
from nrprob.statistics.codes import NormalWishart
from nrprob.statistics.gaussians import second_moments
from nrprob.statistics.matrices import whitener


class Clusters(NamedTuple):
    """Sampled parameters of K Gaussian clusters with d features.

    Attributes
    ----------
    precision : (K, d, d) precision matrices, or (K, d) diagonals of diagonal precision matrices
    mean : (K, d) means
    """

    precision: jax.Array
    mean: jax.Array


def code_of(view: Target) -> NormalWishart:
    """Code of the features of a continuous view, which has the hyperparameters of the clusters."""
    code = view.terms[0].cost
    assert isinstance(code, NormalWishart)
    return code


def subtract_effects(view: Target, effects: jax.Array) -> Target:
    """Target of a view after effects of the known groups are subtracted from its features.

    ``effects`` (G, d or more) are the effects of G groups; columns beyond the d features of the
    view are ignored.
    """
    code = code_of(view)
    d = code.n_features
    x = view.x[:, :d] - effects[view.group, :d]
    moments = second_moments(x, "full" if code.full else "diag")
    return replace(view, x=jnp.concatenate([x, moments, view.x[:, d + moments.shape[1] :]], axis=1))


def effect_length(effects: jax.Array, scale: jax.Array, n_features: int) -> jax.Array:
    """Minus the log prior density of the effects of known groups.

    ``effects`` (G, d or more) are the effects of G groups, and ``scale`` is their prior standard
    deviation. Columns beyond d = ``n_features`` are ignored.
    """
    effects = effects[:, :n_features]
    return 0.5 * effects.size * jnp.log(2 * jnp.pi * scale**2) + 0.5 * (effects**2).sum() / scale**2


def sample_clusters(code: NormalWishart, cells: jax.Array, key: jax.Array) -> Clusters:
    """Sample precisions and means of K clusters from their posterior; see step 1 of the module.

    ``cells`` (K, p) are the statistics of the clusters, sums over their samples. The precision is
    :math:`B B^T` for :math:`B = w^T A`. The whitener w is the inverse of the Cholesky factor of the
    posterior scatter. A is the lower triangular factor of Bartlett's decomposition of a Wishart
    matrix.
    """
    k, d = len(cells), code.n_features
    normal_key, chi_key, mean_key = jax.random.split(key, 3)
    weight = code.kappa + code.total_weight(cells)
    scatter, noise = code.scatter(cells), jax.random.normal(mean_key, (k, d))
    freedom = (d if code.full else 1) + 1 + code.freedom + cells[:, -1]
    if not code.full:
        shape = jnp.broadcast_to(0.5 * freedom[:, None], (k, d))
        precision = jax.random.gamma(chi_key, shape) / (0.5 * scatter)
        deviation = noise / jnp.sqrt(precision)
    else:
        chi_shape = 0.5 * (freedom[:, None] - jnp.arange(d))
        diagonal = jnp.sqrt(2 * jax.random.gamma(chi_key, chi_shape))
        factor = jnp.tril(jax.random.normal(normal_key, (k, d, d)), -1)
        factor = factor + diagonal[..., None] * jnp.eye(d)
        root = jnp.einsum("kji,kjl->kil", whitener(scatter)[0], factor)
        precision = root @ jnp.swapaxes(root, 1, 2)
        deviation = jnp.einsum("kji,kj->ki", whitener(precision)[0], noise)
    return Clusters(precision, code.mean(cells) + deviation / jnp.sqrt(weight)[:, None])


def _sample_gaussian(precision: jax.Array, b: jax.Array, key: jax.Array) -> jax.Array:
    """Sample Gaussian vectors (..., d) with precision matrices P and means P^-1 b.

    ``precision`` is P (..., d, d), or the diagonals (..., d) of diagonal P; ``b`` has shape
    (..., d).
    """
    noise = jax.random.normal(key, b.shape)
    if precision.ndim == b.ndim:
        return b / precision + noise / jnp.sqrt(precision)
    white = whitener(precision)[0]
    return jnp.einsum("...ji,...j->...i", white, jnp.einsum("...ij,...j->...i", white, b) + noise)


def _multiply(precision: jax.Array, x: jax.Array) -> jax.Array:
    """Products (..., K, d) of the precision matrices of K clusters and vectors x (..., K, d).

    ``precision`` (K, d, d) are the matrices, or (K, d) the diagonals of diagonal matrices.
    """
    if precision.ndim == 2:
        return precision * x
    return jnp.einsum("kij,...kj->...ki", precision, x)


def sample_effects(
    view: Target, z: jax.Array, effects: jax.Array, scale: jax.Array, scales: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Sample the effects of the known groups in one view, and their standard deviation.

    The function takes steps 1 to 4 of the module, given the labels.

    Parameters
    ----------
    view : target with the original features, at the sampled hyperparameters of the clusters
    z : (n,) labels of the samples
    effects : (G, d) current effects of the groups
    scale : current index of the standard deviation of the effects in the grid
    scales : (T,) grid of T standard deviations
    key : random key

    Returns
    -------
    effects : (G, d) sampled effects
    scale : sampled index of the standard deviation
    """
    code, n_groups = code_of(view), view.n_groups
    d = code.n_features
    keys = jax.random.split(key, 4)
    raw = sum_cells(view, view.x, view.group, z)
    shifted = subtract_effects(view, effects)
    cells = sum_cells(shifted, shifted.x, shifted.group, z).sum(0)
    precision, mean = sample_clusters(code, cells, keys[0])
    prior = 1 / scales[scale] ** 2
    unit = jnp.ones(d) if precision.ndim == 2 else jnp.eye(d)

    size = raw[..., -1]
    total = jnp.tensordot(size, precision, 1) + prior * unit
    b = _multiply(precision, raw[..., :d] - size[..., None] * mean).sum(1)
    effects = _sample_gaussian(total, b, keys[1])

    occupied = (cells[:, -1] > 0.5)[:, None]
    weighted = jnp.tensordot(occupied[:, 0].astype(mean.dtype), precision, 1)
    pull = jnp.where(occupied, _multiply(precision, mean), 0).sum(0)
    common = _sample_gaussian(
        code.kappa * weighted + n_groups * prior * unit,
        code.kappa * pull - prior * effects.sum(0), keys[2],
    )  # fmt: skip
    effects = effects + common

    log_p = -jax.vmap(lambda value: effect_length(effects, value, d))(scales)
    return effects, jax.random.categorical(keys[3], log_p).astype(scale.dtype)
