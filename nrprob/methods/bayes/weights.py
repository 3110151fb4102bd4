"""Statistics of samples with scale weights.

The leading statistics of a sample are multiplied by the scale weight of the sample. The last of
these leading statistics is the scale weight.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def unweighted(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Divide q statistics ``x`` (n, q) of n samples by the scale weights (n,), 0 on padding."""
    return x / jnp.where(weight > 0, weight, 1)[:, None]


def reweighted(x: jax.Array, weight: jax.Array, width: int) -> jax.Array:
    """Replace the scale weights in statistics ``x`` (n, p) of samples by ``weight`` (n,).

    The first ``width`` statistics are multiplied by the weight. Statistic ``width - 1`` is the
    weight.
    """
    scaled = unweighted(x[:, :width], x[:, width - 1]) * weight[:, None]
    return jnp.concatenate([scaled, x[:, width:]], 1)
