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
    """Largest eigenvalues of maps whose eigenvalues are not negative.

    Parameters
    ----------
    apply : images of vectors under the maps, given the eigenvalues as they are known so far, on
        which one map may depend that is a combination of the others
    start : the first vectors, of all maps
    inner : inner products (maps,) of vectors and their images, in which the maps are symmetric
    accuracy : relative change of the eigenvalues at which they have converged
    enough : whether the eigenvalues, which only rise, say by now what is asked

    Returns
    -------
    (maps,), 0 at least
    """

    def step(state: Any, _: jax.Array) -> Any:
        e, old = state
        e = e / jnp.sqrt(jnp.maximum(inner(e, e), SMALLEST))
        image = apply(e, old)
        new = jnp.maximum(inner(e, image), 0)
        done = ~(jnp.abs(new - old) > accuracy * jnp.abs(new))
        return (image, new), done if enough is None else done | enough(new), ()

    one = jnp.ones_like(inner(start, start))
    return iterate(step, (start, one), max_iter, done=jnp.zeros_like(one, bool)).state[1]
