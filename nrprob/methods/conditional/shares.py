"""Cluster shares: equal, or fitted and common to all known groups, or fitted by known group.

Shares by known group have a Dirichlet prior, whose concentration is fitted. There are L known
groups and K clusters. F is the objective of `joint`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

UNIFORM, FREE, BY_GROUP = range(3)
_LEAST, _MOST = 1e-3, 1e3  # bounds of a concentration
_FIXED_POINT_STEPS = 3  # fixed-point steps of the concentration per M-step


class Shares(NamedTuple):
    """Log shares of K clusters in L known groups, and the parameters of their posterior.

    Attributes
    ----------
    log_share : (L, K) log shares; for shares by group, posterior expectations of the log shares
    counts : (L, K) expected numbers of samples by group and cluster
    concentration : (K,) concentration of the Dirichlet prior of the shares by group
    """

    log_share: jax.Array
    counts: jax.Array
    concentration: jax.Array


def initial_shares(n_groups: int, n_clusters: int, dtype) -> Shares:
    """Equal shares of all clusters in every known group, for the start of EM."""
    return Shares(
        jnp.full((n_groups, n_clusters), -jnp.log(n_clusters), dtype),
        jnp.zeros((n_groups, n_clusters), dtype),
        jnp.ones(n_clusters, dtype),
    )


def update_shares(counts: jax.Array, old: Shares, kind: jax.Array) -> Shares:
    """Update the shares to maximise the objective.

    For shares by group, the concentration takes Minka's fixed-point steps (2000, Estimating a
    Dirichlet distribution), which raise the Dirichlet-multinomial likelihood.

    Parameters
    ----------
    counts : (L, K) expected numbers of samples by group and cluster
    old : the previous shares
    kind : form of the shares, UNIFORM, FREE or BY_GROUP, as a traced integer
    """
    n_groups, k = counts.shape
    size = counts.sum(1)
    occupied = size > 0

    def fixed_point(_, carry):
        """Take a fixed-point step of the concentration (K,).

        Return the next concentration, the present concentration, and the expectations (L, K) of the
        log shares under the present concentration.
        """
        alpha = carry[0]
        total = alpha.sum()
        # Evaluate digamma in one call, because every call compiles to hundreds of operations.
        posterior = jnp.concatenate([counts + alpha, alpha[None]])
        totals = jnp.concatenate([size + total, total[None]])
        psi = digamma(jnp.concatenate([posterior, totals[:, None]], 1))
        above = jnp.where(occupied[:, None], psi[:-1, :k] - psi[-1, :k], 0).sum(0)
        below = jnp.where(occupied, psi[:-1, k] - psi[-1, k], 0).sum()
        after = jnp.clip(alpha * above / jnp.maximum(below, 1e-300), _LEAST, _MOST)
        after = jnp.where(kind == BY_GROUP, after, alpha)
        return after, alpha, psi[:-1, :k] - psi[:-1, k:]

    begin = old.concentration, old.concentration, old.log_share
    _, alpha, by_group = jax.lax.fori_loop(0, _FIXED_POINT_STEPS + 1, fixed_point, begin)
    free = jnp.log((counts.sum(0) + 1) / (size.sum() + k))
    uniform = jnp.full(k, -jnp.log(k), counts.dtype)
    log_share = jnp.where(kind == BY_GROUP, by_group, jnp.where(kind == FREE, free, uniform))
    return Shares(log_share, counts, alpha)


def dirichlet_divergence(counts: jax.Array, concentration: jax.Array) -> jax.Array:
    """Kullback-Leibler divergence (L,) of the posterior of the shares from their prior.

    The posterior is Dir(counts + concentration) with counts (L, K), the prior Dir(concentration).
    """
    k, prior = counts.shape[1], concentration[None]
    # Evaluate gammaln for parameters and their sums in one call; every call is compiled separately.
    post = jnp.concatenate([counts + prior, prior])
    post = jnp.concatenate([post, post.sum(1, keepdims=True)], 1)
    log_norm = gammaln(post)
    log_norm = log_norm[:, k] - log_norm[:, :k].sum(1)
    psi = digamma(post[:-1])
    return log_norm[:-1] - log_norm[-1] + (counts * (psi[:, :k] - psi[:, k:])).sum(1)


def shares_penalty(shares: Shares, kind: jax.Array) -> jax.Array:
    """Part of the objective F that is due to the prior of the cluster shares.

    For common fitted shares, the part is the log prior density of the shares, less the log prior
    density of equal shares. For shares by group, the part is minus the sum of
    `dirichlet_divergence` over the known groups. For equal shares, the part is 0. ``kind`` is the
    form of the shares: UNIFORM, FREE or BY_GROUP.
    """
    counts, k = shares.counts, shares.counts.shape[1]
    divergence = dirichlet_divergence(counts, shares.concentration)
    by_group = -jnp.where(counts.sum(1) > 0, divergence, 0).sum()
    free = shares.log_share[0].sum() + k * jnp.log(k)
    return jnp.where(kind == BY_GROUP, by_group, jnp.where(kind == FREE, free, 0.0))
