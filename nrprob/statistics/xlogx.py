"""x log x with a finite derivative at zero."""

from __future__ import annotations

import jax
import jax.numpy as jnp

# 1 / SMALLEST is finite in float32, so second derivatives are finite, too.
SMALLEST = 1e-30


def safe_log(x: jax.Array) -> jax.Array:
    """Natural logarithm of ``max(x, 1e-30)``: large and negative at zero, never infinite."""
    return jnp.log(jnp.maximum(x, SMALLEST))


@jax.custom_jvp
def xlogx(x: jax.Array) -> jax.Array:
    """Return x log x in nats, with 0 log 0 = 0 and the derivative ``1 + safe_log(x)``.

    Negative rounding errors of repeated subtractions count as 0. The derivative at 0 is large and
    finite. ``xlogy(x, x)`` has no derivative at 0. The usual double ``where`` has a finite but
    wrong derivative: a symbol with probability 0 would then cost as much as a symbol with
    probability 1. This function is correct under ``grad``, ``jvp`` of ``grad`` and ``vmap`` in both
    precisions.
    """
    return jnp.maximum(x, 0) * safe_log(x)


@xlogx.defjvp
def _xlogx_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return xlogx(x), (1 + safe_log(x)) * dx
