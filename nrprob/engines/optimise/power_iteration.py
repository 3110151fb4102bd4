"""Power iteration: leading eigenvalues of linear maps, several at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nrprob.engines.optimise.iterate import iterate
from nrprob.statistics.xlogx import SMALLEST


def leading_eigenvalues(
    apply: Callable[[jax.Array, jax.Array], jax.Array],
    start: jax.Array,
    inner: Callable[[jax.Array, jax.Array], jax.Array],
    *,
    accuracy: float,
    max_iter: int = 300,
    enough: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Largest eigenvalues of positive semidefinite linear maps.

    Parameters
    ----------
    apply : function ``(vectors, eigenvalues) -> images`` that applies each map to its own vector.
        A map may be a combination of other maps, with weights that depend on the current
        ``eigenvalues`` (maps,)
    start : initial vectors, one per map
    inner : function ``(vectors, images) -> (maps,)``: the inner product of each vector and its
        image. The maps must be self-adjoint in this inner product
    accuracy : relative change of the eigenvalues at which they have converged
    max_iter : maximum number of iterations
    enough : function of the current estimates (maps,) of the eigenvalues; returns whether the
        iteration may stop early. Estimates never decrease

    Returns
    -------
    eigenvalues (maps,), non-negative
    """

    def power_step(state: Any, _: jax.Array) -> Any:
        e, old = state
        e = e / jnp.sqrt(jnp.maximum(inner(e, e), SMALLEST))
        image = apply(e, old)
        new = jnp.maximum(inner(e, image), 0)
        done = ~(jnp.abs(new - old) > accuracy * jnp.abs(new))
        return (image, new), done if enough is None else done | enough(new), ()

    values = jnp.ones_like(inner(start, start))
    start_state, done = (start, values), jnp.zeros_like(values, bool)
    return iterate(power_step, start_state, max_iter, done=done).state[1]
