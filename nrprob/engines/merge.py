"""Agglomeration: join the two clusters whose union costs least, until one is left.

`agglomerate` works from cell costs and keeps no matrix of pairs: every cluster remembers its
nearest neighbour, and only clusters that lost theirs look again.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.statistics.terms import Terms


class Merged(NamedTuple):
    """The merges, in order.

    Attributes
    ----------
    pairs : (n - 1, 2) clusters joined, by the smallest row that they hold
    costs : (n - 1,) what each merge added to the objective; infinite where none was allowed
    """

    pairs: jax.Array
    costs: jax.Array


def merge_cost(
    terms: Terms, own: tuple[jax.Array, ...], costs: tuple[jax.Array, ...], i: jax.Array
) -> jax.Array:
    """Change of F (n,) when cluster i and each other one are joined.

    ``own`` holds each term's cells (n, groups, p) and ``costs`` their costs (n, groups).
    """
    total = jnp.zeros(own[0].shape[0], own[0].dtype)
    for term, cells, cost in zip(terms, own, costs, strict=True):
        joined = term.cost(cells + cells[i])
        total += term.weight * (joined - cost - cost[i]).sum(-1)
    return total


def agglomerate(terms: Terms, cells: jax.Array, alive: jax.Array, classes: jax.Array) -> Merged:
    """Merge greedily from clusters with statistics ``cells`` (groups, 1, n, p).

    ``alive`` (n,) is False on padding. Clusters whose ``classes`` (n,) are both non-negative and
    differ are never joined. Costs of information are not reducible (a union may be nearer to a
    third cluster than either part was), so every new cluster is compared with all others.
    """
    n = cells.shape[2]
    own = tuple(jnp.swapaxes(t.cells(cells)[:, 0], 0, 1) for t in terms)
    costs = tuple(t.cost(c) for t, c in zip(terms, own, strict=True))
    index = jnp.arange(n)

    def row(i, own, costs, alive, classes):
        clash = (classes >= 0) & (classes[i] >= 0) & (classes != classes[i])
        barred = ~alive | clash | (index == i) | ~alive[i]
        return jnp.where(barred, jnp.inf, merge_cost(terms, own, costs, i))

    def nearest(i, own, costs, alive, classes):
        cost = row(i, own, costs, alive, classes)
        return cost.argmin(), cost.min()

    neighbour, distance = jax.lax.map(lambda i: nearest(i, own, costs, alive, classes), index)

    def step(m, carry):
        own, costs, alive, classes, neighbour, distance, pairs, heights = carry
        i = distance.argmin()
        height = distance[i]
        a, b = jnp.minimum(i, neighbour[i]), jnp.maximum(i, neighbour[i])
        own = tuple(c.at[a].add(c[b]) for c in own)
        costs = tuple(
            cost.at[a].set(t.cost(c[a])) for t, cost, c in zip(terms, costs, own, strict=True)
        )
        alive = alive.at[b].set(False)
        classes = classes.at[a].set(jnp.maximum(classes[a], classes[b]))
        distance = distance.at[b].set(jnp.inf)
        # The union against all others, in both directions.
        cost = row(a, own, costs, alive, classes)
        closer = cost < distance
        stale = alive & ((neighbour == a) | (neighbour == b)) & ~closer
        neighbour = jnp.where(closer, a, neighbour).at[a].set(cost.argmin())
        distance = jnp.where(closer, cost, distance).at[a].set(cost.min())
        stale = stale.at[a].set(False)

        def look(inner):
            stale, neighbour, distance = inner
            j = stale.argmax()
            at, cost = nearest(j, own, costs, alive, classes)
            return stale.at[j].set(False), neighbour.at[j].set(at), distance.at[j].set(cost)

        _, neighbour, distance = jax.lax.while_loop(
            lambda inner: inner[0].any(), look, (stale, neighbour, distance)
        )
        pairs = pairs.at[m].set(jnp.stack([a, b]).astype(pairs.dtype))
        return own, costs, alive, classes, neighbour, distance, pairs, heights.at[m].set(height)

    pairs = jnp.zeros((n - 1, 2), jnp.int32)
    heights = jnp.full(n - 1, jnp.inf, cells.dtype)
    carry = own, costs, alive, classes, neighbour, distance, pairs, heights
    carry = jax.lax.fori_loop(0, jnp.maximum(alive.sum() - 1, 0), step, carry)
    return Merged(carry[-2], carry[-1])


def linkage(pairs: np.ndarray, costs: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Linkage matrix in SciPy's form, with the running sum of the costs as heights.

    Single costs may fall from one merge to the next, which SciPy's tools misread; their running sum
    (what has been lost so far) cannot, and a cut by number of clusters is the greedy partition.
    ``sizes`` (n,) is the number of rows in each starting cluster.
    """
    n = len(sizes)
    name = np.arange(n)
    size = np.asarray(sizes, float).copy()
    out = np.empty((len(pairs), 4))
    height = np.cumsum(np.maximum(costs, 0))
    for m, (a, b) in enumerate(pairs):
        size[a] += size[b]
        out[m] = min(name[a], name[b]), max(name[a], name[b]), height[m], size[a]
        name[a] = n + m
    return out


def cut(pairs: np.ndarray, n: int, n_clusters: int) -> np.ndarray:
    """Labels (n,) after the merges that leave ``n_clusters``, numbered by first row."""
    parent = np.arange(n)
    for a, b in pairs[: max(n - n_clusters, 0)]:
        parent[parent == b] = a
    return np.unique(parent, return_inverse=True)[1]
