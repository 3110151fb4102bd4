"""Shares of the clusters: equal, common and fitted, or by known group with a Dirichlet prior."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

UNIFORM, FREE, BY_GROUP = range(3)
_LEAST, _MOST = 1e-3, 1e3  # of a concentration
_FIXED_POINT_STEPS = 3


class Shares(NamedTuple):
    """Log shares of the clusters, and what they follow from.

    Attributes
    ----------
    log_share : (L, K) expected log shares
    counts : (L, K) expected numbers of samples, of which the posterior by group is made
    concentration : (K,) of the Dirichlet prior of the shares by group
    """

    log_share: jax.Array
    counts: jax.Array
    concentration: jax.Array


def initial_shares(n_groups: int, n_clusters: int, dtype) -> Shares:
    """Equal shares."""
    return Shares(
        jnp.full((n_groups, n_clusters), -jnp.log(n_clusters), dtype),
        jnp.zeros((n_groups, n_clusters), dtype),
        jnp.ones(n_clusters, dtype),
    )


def update_shares(counts: jax.Array, old: Shares, kind: jax.Array) -> Shares:
    """Shares that maximise the objective, from expected numbers of samples (L, K).

    By group, the concentration takes Minka's fixed-point steps (2000, Estimating a Dirichlet
    distribution) of the Dirichlet-multinomial likelihood.
    """
    n_groups, k = counts.shape
    size = counts.sum(1)
    occupied = size > 0

    def fixed_point(_, carry):
        """Next concentration, the present one, and expected log shares (L, K) at the latter."""
        alpha = carry[0]
        total = alpha.sum()
        # One call, since every call is compiled to hundreds of operations.
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
    """Divergence (L,) of Dir(counts + concentration) from Dir(concentration), for counts (L, K)."""
    k, prior = counts.shape[1], concentration[None]
    # Parameters and their sums together, since every call of these functions is compiled.
    post = jnp.concatenate([counts + prior, prior])
    post = jnp.concatenate([post, post.sum(1, keepdims=True)], 1)
    log_norm = gammaln(post)
    log_norm = log_norm[:, k] - log_norm[:, :k].sum(1)
    psi = digamma(post[:-1])
    return log_norm[:-1] - log_norm[-1] + (counts * (psi[:, :k] - psi[:, k:])).sum(1)


def shares_penalty(shares: Shares, kind: jax.Array) -> jax.Array:
    """Part of the objective: the priors of common and of group-wise shares."""
    counts, k = shares.counts, shares.counts.shape[1]
    divergence = dirichlet_divergence(counts, shares.concentration)
    by_group = -jnp.where(counts.sum(1) > 0, divergence, 0).sum()
    free = shares.log_share[0].sum() + k * jnp.log(k)
    return jnp.where(kind == BY_GROUP, by_group, jnp.where(kind == FREE, free, 0.0))
