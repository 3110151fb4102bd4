"""Link functions of generalised linear models.

The loss of a feature y at the linear predictor eta is the cumulant function minus y eta, plus a
base that depends on the row alone. A saturated model then costs the family's cell cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from nrprob.statistics.xlogx import safe_log


@dataclass(frozen=True)
class Link:
    """One link.

    Attributes
    ----------
    potential : cumulant function, mean and variance of a feature at linear predictor eta
    predictor : linear predictor of a mean
    base : what a row (n,) of features (n, m) loses whatever its linear predictors
    idle : values of a feature that, if all rows have one of them, leave nothing to explain
    scale : size of the curvature if nothing were explained, from the number of features that vary
        and the mean base of the rows
    identity : whether the linear predictor is the mean, so that one step of Newton's is exact
    """

    potential: Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
    predictor: Callable[[jax.Array], jax.Array]
    base: Callable[[jax.Array], jax.Array]
    idle: tuple[float, ...]
    scale: Callable[[jax.Array, jax.Array], jax.Array]
    identity: bool = False


def _identity_potential(eta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return 0.5 * eta * eta, eta, jnp.ones_like(eta)


def _log_potential(eta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    e = jnp.exp(jnp.minimum(eta, 50.0))
    return e, e, e


def _logit_potential(eta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    e = jnp.exp(-jnp.abs(eta))
    mean = jnp.where(eta > 0, 1, e) / (1 + e)
    return jnp.maximum(eta, 0) + jnp.log1p(e), mean, e / (1 + e) ** 2


identity = Link(
    _identity_potential,
    lambda mean: mean,
    lambda y: 0.5 * (y * y).sum(1),
    (0.0,),
    lambda varying, base: 2 * base,
    identity=True,
)
# Proportions are Poisson counts of a total of 1, whose own mean of 1 is part of no cost.
log = Link(
    _log_potential, safe_log, lambda y: -y.sum(1), (0.0,), lambda varying, base: jnp.ones_like(base)
)
logit = Link(
    _logit_potential,
    lambda mean: safe_log(mean) - safe_log(1 - mean),
    lambda y: jnp.zeros_like(y[:, 0]),
    (0.0, 1.0),
    lambda varying, base: varying,
)
