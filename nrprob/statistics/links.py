r"""Link functions of generalised linear models.

The loss of a feature y at the linear predictor :math:`\eta` is the negative log likelihood

.. math:: b(\eta) - y \eta + c(y).

Here b is the cumulant function, whose derivative is the mean of y. c(y) does not depend on
:math:`\eta`; its sum over the features of a sample is called the *base* of the sample. A saturated
model has one parameter per cell and feature; the sum of its losses over a cell is the cell cost of
the family (`nrprob.statistics.families`). Shapes: n samples, m features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from nrprob.statistics.xlogx import safe_log


@dataclass(frozen=True)
class Link:
    """Link function with its cumulant function.

    Attributes
    ----------
    potential : function from the linear predictor to the tuple (cumulant function b, mean,
        variance)
    predictor : function from the mean to the linear predictor
    base : function ``features (n, m) -> (n,)``: the base of every sample
    idle : values of features; a feature that has one of these values in all samples has no variance
        to explain
    scale : function of the number of features that vary and of the mean base of the samples;
        returns the order of magnitude of the leading curvature of the null model
    identity : whether the linear predictor is the mean; one Newton step is then exact
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
# Proportions are treated as Poisson counts with a total of 1. The base -1 cancels the mean total.
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
