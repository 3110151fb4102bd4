"""k-means++ initialisation and Lloyd's iterations for any layout of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nrprob.engines.optimise.iterate import iterate


def squared_distances_from(x: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Squared distances of rows (n, p) from a centre (p,), as a function of that."""
    return lambda centre: ((x - centre) ** 2).sum(1)


def kmeans_plus_plus(
    draw: Callable[[jax.Array, jax.Array], jax.Array],
    distance: Callable[[jax.Array], jax.Array],
    room: jax.Array,
    weights: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Centres that are drawn one after the other from the rows, those far from all others first.

    Parameters
    ----------
    draw : from the number of a centre, and weights of the rows, the centre (..., p)
    distance : squared distances of the rows from a centre; the next weights, where no other centre
        is nearer
    room : (..., K, p) for the centres
    weights : of the rows before there is a centre

    Returns
    -------
    centres (..., K, p), and the squared distances of the rows to the nearest of them
    """

    def add(j, carry):
        centres, nearest = carry
        centre = draw(j, nearest)
        square = distance(centre)
        nearest = jnp.where(j == 0, square, jnp.minimum(nearest, square))
        return jax.lax.dynamic_update_index_in_dim(centres, centre, j, room.ndim - 2), nearest

    return jax.lax.fori_loop(0, room.shape[-2], add, (room, weights))


def lloyd_iterations(
    assign: Callable[[Any], jax.Array],
    means: Callable[[jax.Array, Any], Any],
    centres: Any,
    max_iter: int,
) -> tuple[Any, jax.Array]:
    """Centres and members in turn, until no row changes its cluster.

    Parameters
    ----------
    assign : members of the clusters around centres
    means : centres of members; a cluster that has none keeps the one it had, the second argument
    centres : the first ones
    max_iter : most steps

    Returns
    -------
    centres, and the members around them
    """

    def step(state, _):
        centres, members = state
        centres = means(members, centres)
        new = assign(centres)
        return (centres, new), (new == members).all(), ()

    return iterate(step, (centres, assign(centres)), max_iter).state
