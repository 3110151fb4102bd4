"""Statistics of samples with scale weights.

The first statistics of a sample are multiplied by its weight, and are followed by the weight.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def unweighted(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Divide statistics (n, q) by their weights (n,), which are 0 on padding."""
    return x / jnp.where(weight > 0, weight, 1)[:, None]


def reweighted(x: jax.Array, weight: jax.Array, width: int) -> jax.Array:
    """Replace the weights in statistics (n, p) by ``weight`` (n,).

    The first ``width`` statistics are multiplied by the weight; the last of them is the weight.
    """
    scaled = unweighted(x[:, :width], x[:, width - 1]) * weight[:, None]
    return jnp.concatenate([scaled, x[:, width:]], 1)
