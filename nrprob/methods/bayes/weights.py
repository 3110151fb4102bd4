"""Statistics of weighted rows: products with the weight, followed by the weight."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def unweighted(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Statistics (n, q) over their weights (n,), which are 0 on padding."""
    return x / jnp.where(weight > 0, weight, 1)[:, None]


def reweighted(x: jax.Array, weight: jax.Array, width: int) -> jax.Array:
    """Rows (n, p), the last of whose first ``width`` columns is a weight, with another one (n,)."""
    own = unweighted(x[:, :width], x[:, width - 1])
    return jnp.concatenate([own * weight[:, None], x[:, width:]], 1)
