"""k-means++ initialisation and Lloyd's iterations for any layout of the rows.

References
----------
D. Arthur and S. Vassilvitskii (2007), "k-means++: The advantages of careful seeding", SODA, section
2.2. S. Lloyd (1982), "Least squares quantization in PCM", IEEE Transactions on Information Theory
28(2), doi:10.1109/TIT.1982.1056489.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nrprob.engines.optimise.iterate import iterate


def squared_distances_from(x: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """Return a function from a centre (p,) to its squared distances (n,) from n rows (n, p)."""
    return lambda centre: ((x - centre) ** 2).sum(1)


def kmeans_plus_plus(
    draw: Callable[[jax.Array, jax.Array], jax.Array],
    distance: Callable[[jax.Array], jax.Array],
    room: jax.Array,
    weights: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Sample K rows as centres, by weights that are squared distances from the nearest centre.

    Parameters
    ----------
    draw : function ``(j, weights) -> (..., p)`` that samples the j-th centre, a row of p features,
        with probabilities proportional to ``weights``
    distance : function from a centre to the squared distances of all rows. The minimum over all
        previous centres is the weight of a row for the next centre
    room : (..., K, p) array that the centres overwrite
    weights : weights of the rows for the first centre

    Returns
    -------
    centres (..., K, p), and the squared distances of the rows to the nearest centre
    """

    def add_centre(j, carry):
        centres, nearest = carry
        centre = draw(j, nearest)
        square = distance(centre)
        nearest = jnp.where(j == 0, square, jnp.minimum(nearest, square))
        return jax.lax.dynamic_update_index_in_dim(centres, centre, j, room.ndim - 2), nearest

    return jax.lax.fori_loop(0, room.shape[-2], add_centre, (room, weights))


def lloyd_iterations(
    assign: Callable[[Any], jax.Array],
    means: Callable[[jax.Array, Any], Any],
    centres: Any,
    max_iter: int,
) -> tuple[Any, jax.Array]:
    """Update the assignment of rows and the centres in turn, until no row changes its cluster.

    Parameters
    ----------
    assign : function ``centres -> members``: the assignment of the rows to the nearest centres
    means : function ``(members, centres) -> centres``: the means of the clusters; an empty cluster
        keeps its old centre
    centres : initial centres
    max_iter : maximum number of iterations

    Returns
    -------
    centres, and the assignment of the rows to the nearest of these centres
    """

    def update_centres(state, _):
        centres, members = state
        centres = means(members, centres)
        new = assign(centres)
        return (centres, new), (new == members).all(), ()

    return iterate(update_centres, (centres, assign(centres)), max_iter).state
