"""The compiled search for a short description of rows under pairwise constraints.

What nodes, words and kinds of pairs are is said in `nrprob.methods.constrained.codes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.iterate import blank, iterate, restarts
from nrprob.engines.kmeans import plus_plus
from nrprob.engines.shuffle import stream, uniform
from nrprob.methods.constrained.codes import (
    APART,
    SOFT_APART,
    SOFT_LINK,
    TINY,
    Code,
    Nodes,
    Settings,
    components,
    description,
    satisfied,
    squares,
)

N_ANNEAL = 25  # iterations of a soft search that anneal, before those that descend
_TEMPERATURE, _COOLING = 2.0, 0.8  # of them, in nats
_PATIENCE = 3  # iterations without a shorter description, after which a soft search stops


class SearchResult(NamedTuple):
    """What the restarts found, each with a leading axis of restarts."""

    labels: jax.Array
    objective: jax.Array
    trace: jax.Array
    n_iter: jax.Array
    converged: jax.Array
    feasible: jax.Array


# Moves


def costs(nodes: Nodes, code: Code, settings: Settings) -> jax.Array:
    """Cost (C, K) in nats of every node in every cluster, without what its neighbours do to it."""
    square = jnp.maximum(squares(nodes.mean, code.centres), 0)
    r = nodes.within[:, None] + nodes.mass[:, None] * square
    length = settings.weight * (nodes.mass[:, None] * jnp.log(code.scales) + r / code.scales)
    length -= jnp.log(_open_weights(nodes, code, settings))
    return jnp.where(jnp.arange(code.scales.size) < settings.n_clusters, length, jnp.inf)


def _open_weights(nodes: Nodes, code: Code, settings: Settings) -> jax.Array:
    """Weights, but for empty clusters half a word's: with none they could never be joined."""
    weights = jnp.maximum(code.weights, 0.5 / jnp.maximum((nodes.mass > 0).sum(), 1))
    return jnp.where(jnp.arange(weights.size) < settings.n_clusters, weights, 0)


def _greedy(nodes: Nodes, cost: jax.Array, settings: Settings) -> tuple[jax.Array, jax.Array]:
    """Assign nodes one after the other to the best cluster that no neighbour has.

    The order is inductive: the node of least degree goes last. Among equals the one that a bad
    cluster would cost least does: maximum coding risk, eq. (5.6).

    Returns
    -------
    z : (C,)
    ok : whether there always was a cluster left
    """
    near, kind = nodes.near, nodes.kind
    b, k = near.shape[0], cost.shape[1]
    edge = kind == APART
    active = jnp.arange(k) < settings.n_clusters
    inside = cost[:b]
    risk = jnp.where(active, inside, -jnp.inf).max(1) - inside.min(1)

    def take(i, state):
        degree, left, order = state
        least = jnp.where(left, degree, b + 1).min()
        v = jnp.where(left & (degree == least), risk, jnp.inf).argmin().astype(order.dtype)
        degree = degree.at[near[v]].add(-edge[v].astype(degree.dtype))
        return degree, left.at[v].set(False), order.at[b - 1 - i].set(v)

    state = edge.sum(1), jnp.ones(b, bool), jnp.zeros(b, near.dtype)
    order = jax.lax.fori_loop(0, b, take, state)[2]

    z = cost.argmin(1).astype(jnp.int32)
    first, ok = assign_in_order(order, inside, near, edge, settings.n_clusters)
    return z.at[:b].set(first), ok


def assign_in_order(
    order: jax.Array, cost: jax.Array, near: jax.Array, edge: jax.Array, n_clusters: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Give nodes, in this order, the cheapest cluster that no neighbour has been given.

    Parameters
    ----------
    order : (B,)
    cost : (B, K)
    near, edge : (B, D) neighbours, and whether they are

    Returns
    -------
    z : (B,)
    ok : whether there always was a cluster left
    """
    b, k = cost.shape
    active = jnp.arange(k) < n_clusters

    def assign(i, state):
        z, taken, ok = state
        v = order[i]
        open_ = (taken[v] == 0) & active
        c = jnp.where(open_, cost[v], jnp.inf).argmin().astype(z.dtype)
        taken = taken.at[near[v], c].add(edge[v].astype(taken.dtype))
        return z.at[v].set(c), taken, ok & open_.any()

    state = jnp.zeros(b, jnp.int32), jnp.zeros((b, k), jnp.int32), jnp.array(True)
    z, _, ok = jax.lax.fori_loop(0, b, assign, state)
    return z, ok


def _sweep(
    nodes: Nodes,
    z: jax.Array,
    cost: jax.Array,
    weights: jax.Array,
    prices: jax.Array,
    noise: jax.Array | None,
    settings: Settings,
    soft: bool,
) -> jax.Array:
    """Move every node, one after the other, to where the description is shortest.

    The words of the node and of its later neighbours are priced exactly. A kept link saves a word:
    exact unless links make a cycle. Where a cannot-link is not kept, ``prices[1]`` is paid, and a
    kept link earns ``prices[0]`` besides.
    """
    near, kind = nodes.near, nodes.kind
    b, k = near.shape[0], cost.shape[1]
    if noise is not None:
        cost = cost - noise
    active = jnp.arange(k) < settings.n_clusters
    later = near > jnp.arange(b)[:, None]
    edge = (kind == APART) | ((kind == SOFT_APART) if soft else False)
    log_w = jnp.log(jnp.maximum(weights, TINY))
    first = z[:b]
    one_hot = jax.nn.one_hot(first, k, dtype=jnp.int32)
    earlier = (edge & ~later)[:, :, None] * one_hot[near]
    table = earlier.sum(1)  # earlier neighbours of every node in every cluster

    def visit(i, state):
        z, table = state
        at, kinds = near[i], kind[i]
        theirs = z[at]
        in_j = theirs[:, None] == jnp.arange(k)
        ahead = edge[i] & later[i]
        # The node's own word.
        free = (table[i] == 0) & active
        mass = jnp.where(free, weights, 0).sum() + jnp.where(free, 0, weights)
        total = cost[i] + jnp.log(jnp.maximum(mass, TINY))
        # The words of later neighbours, without and with the node's cluster among those taken.
        rest = table[at] - (ahead[:, None] & (jnp.arange(k) == z[i])).astype(table.dtype)
        open_ = ((rest == 0) | in_j) & active
        base = jnp.where(open_, weights, 0).sum(1)
        lost = jnp.where((rest == 0) & ~in_j, weights, 0)
        after = (
            jnp.log(jnp.maximum(base[:, None] - lost, TINY))
            - jnp.log(jnp.maximum(base, TINY))[:, None]
        )
        total += jnp.where(ahead[:, None], after, 0).sum(0)
        total += jnp.where((kinds == APART)[:, None] & in_j, jnp.inf, 0).sum(0)
        if soft:
            total += jnp.where((kinds == SOFT_APART)[:, None] & in_j, prices[1], 0).sum(0)
            saved = jnp.maximum(prices[0] - log_w, 0)
            total -= jnp.where((kinds == SOFT_LINK)[:, None] & in_j, saved, 0).sum(0)
        c = total.argmin().astype(z.dtype)
        change = (jnp.arange(k) == c).astype(table.dtype) - (jnp.arange(k) == z[i])
        table = table.at[at].add(ahead[:, None] * change)
        return z.at[i].set(c), table

    first, _ = jax.lax.fori_loop(0, b, visit, (first, table))
    return cost.argmin(1).astype(z.dtype).at[:b].set(first)


def _swap(nodes: Nodes, z: jax.Array, cost: jax.Array, settings: Settings) -> jax.Array:
    """Exchange two clusters within connected parts, where that pays: Kempe chains.

    It leaves assignments that no single node can leave, such as all of them with two clusters and
    a connected graph.
    """
    near, edge = nodes.near, nodes.kind == APART
    b, k = near.shape[0], cost.shape[1]
    inside = cost[:b]
    index = jnp.arange(b)

    first, second = (jnp.asarray(a) for a in np.triu_indices(k, 1))

    def exchange(pair, z):
        one, two = first[pair], second[pair]
        member = (z == one) | (z == two)
        label = components(edge & member[:, None] & member[near], near)
        gain = jnp.where(z == one, 1, -1) * (inside[index, one] - inside[index, two])
        gain = jax.ops.segment_sum(jnp.where(member, gain, 0), label, b)[label]
        better = member & (gain > settings.tol) & (two < settings.n_clusters)
        return jnp.where(better, (one + two).astype(z.dtype) - z, z)

    return z.at[:b].set(jax.lax.fori_loop(0, k * (k - 1) // 2, exchange, z[:b]))


def _shift(
    nodes: Nodes,
    z: jax.Array,
    cost: jax.Array,
    weights: jax.Array,
    prices: jax.Array,
    settings: Settings,
    seed: jax.Array,
) -> jax.Array:
    """Move linked nodes together, which no single node would begin: two proposals (2, C).

    All sets of linked nodes are priced at once, as if the others stayed. One proposal moves the set
    that gains most, the other a random half of those that gain.
    """
    near, kind = nodes.near, nodes.kind
    b, k = near.shape[0], cost.shape[1]
    first = z[:b]
    label = components((kind == SOFT_LINK) & (first[:, None] == first[near]), near)
    clusters = jnp.arange(k)
    active = clusters < settings.n_clusters
    log_w = jnp.log(jnp.maximum(weights, TINY))
    # Linked nodes share one word.
    own = jnp.where(active, cost[:b], 0) + log_w * (label != jnp.arange(b))[:, None]
    there = (first[near][:, :, None] == clusters) & (label[near] != label[:, None])[:, :, None]
    saved = jnp.maximum(prices[0] - log_w, 0)
    own += ((kind == SOFT_APART)[:, :, None] & there).sum(1) * prices[1]
    own -= ((kind == SOFT_LINK)[:, :, None] & there).sum(1) * saved
    shut = ((kind == APART)[:, :, None] & there).any(1)
    total = jax.ops.segment_sum(own, label, b)
    shut = jax.ops.segment_max(shut.astype(jnp.int32), label, b) > 0
    total = jnp.where(active & ~shut, total, jnp.inf)
    to = total.argmin(1).astype(z.dtype)
    # Labels that name no set have no cost at all, and no gain.
    stay = jnp.take_along_axis(total, first[:, None], 1)[:, 0]
    gain = jnp.where(label == jnp.arange(b), stay - total.min(1), 0)
    gain = jnp.where(gain > settings.tol, gain, 0)
    some = (gain > 0) & (uniform(seed, (b,), gain.dtype) < 0.5)
    best = (gain > 0) & (jnp.arange(b) == gain.argmax())

    def move(chosen):
        new = jnp.where(chosen[label], to[label], first)
        # Two sets may have gone to the same cluster that must be apart.
        kept = ~((kind == APART) & (new[:, None] == new[near])).any()
        return z.at[:b].set(jnp.where(kept, new, first))

    return jnp.stack([move(some), move(best)])


# The search


def _gumbel(seed: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Draws that make of an arg max one from a softmax."""
    return -jnp.log(-jnp.log(uniform(seed, shape, dtype) + 2.0**-25))


def seeds(nodes: Nodes, seed: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """k-means++: centres (K, d), and the squared distances (C,) to the nearest of them."""

    def draw(i, square):
        chance = jnp.log(jnp.maximum(nodes.mass * square, TINY * (nodes.mass > 0)))
        return nodes.mean[(chance + _gumbel(stream(seed, i), chance.shape, chance.dtype)).argmax()]

    def distance(centre):
        return ((nodes.mean - centre) ** 2).sum(1)

    room = jnp.zeros((k, nodes.mean.shape[1]), nodes.mean.dtype)
    return plus_plus(draw, distance, room, jnp.ones_like(nodes.mass))


def _start(
    nodes: Nodes, settings: Settings, seed: jax.Array, k: int, soft: bool, apart: bool
) -> tuple[jax.Array, Code, jax.Array]:
    """First clusters, which keep the cannot-links, their code, and whether there are any."""
    centres, square = seeds(nodes, stream(seed, 1), k)
    n = nodes.mass.sum()
    scale = (nodes.within.sum() + nodes.mass @ square) / n
    scale = jnp.clip(scale, settings.low, settings.high)
    ones = jnp.ones(k, nodes.mean.dtype)
    active = jnp.arange(k) < settings.n_clusters
    code = Code(jnp.where(active, ones / settings.n_clusters, 0), centres, scale * ones)
    cost = costs(nodes, code, settings)
    z, ok = cost.argmin(1).astype(jnp.int32), jnp.array(True)
    if apart:
        greedy, ok = _greedy(nodes, cost, settings)
        # A start that is known to keep them, under random names.
        names = jnp.argsort(jnp.where(active, uniform(stream(seed, 2), (k,), ones.dtype), 2))
        b = nodes.near.shape[0]
        known = z.at[:b].set(names[nodes.start].astype(z.dtype))
        z = jnp.where(ok, greedy, known)
        ok |= settings.has_start
    return z, description(nodes, z, settings, k, code, soft)[1], ok


def _hard(
    nodes: Nodes, settings: Settings, seed: jax.Array, k: int, n_trace: int, apart: bool
) -> SearchResult:
    """Descend until no move shortens the description; every iteration falls or is the last."""
    z, code, ok = _start(nodes, settings, seed, k, False, apart)
    length = description(nodes, z, settings, k, code, False)[0]
    none = jnp.zeros(2, nodes.mean.dtype)

    def step(state, _):
        z, length, code = state
        cost = costs(nodes, code, settings)
        if apart:
            move = partial(
                _sweep, nodes, cost=cost, weights=_open_weights(nodes, code, settings),
                prices=none, noise=None, settings=settings, soft=False,
            )  # fmt: skip
            anew, done = _greedy(nodes, cost, settings)
            swept = jax.vmap(lambda z: move(z=z))(jnp.stack([z, jnp.where(done, anew, z)]))
            candidates = jnp.concatenate([swept, _swap(nodes, swept[0], cost, settings)[None]])
        else:
            candidates = cost.argmin(1).astype(z.dtype)[None]
        lengths, codes = jax.vmap(lambda z: description(nodes, z, settings, k, code, False))(
            candidates
        )
        best = lengths.argmin()
        better = lengths[best] < length - settings.tol
        z = jnp.where(better, candidates[best], z)
        code = jax.tree.map(lambda new, old: jnp.where(better, new[best], old), codes, code)
        length = jnp.where(better, lengths[best], length)
        return (z, length, code), ~better, length

    room = blank(n_trace, length.dtype).at[0].set(length)
    found = iterate(step, (z, length, code), settings.max_iter + 1, done=~ok, count=1, trace=room)
    z, length, _ = found.state
    return SearchResult(z, length, found.trace, found.n_iter - 1, found.done & ok, ok)


def _soft(
    nodes: Nodes, settings: Settings, seed: jax.Array, k: int, n_trace: int, apart: bool
) -> SearchResult:
    """Anneal single moves, then quench; the shortest description on the way is kept."""
    z, code, ok = _start(nodes, settings, seed, k, True, apart)
    length, code = description(nodes, z, settings, k, code, True)
    dtype = nodes.mean.dtype

    def step(state, count):
        z, code, best, stale = state
        t = count - 1
        cold = t >= N_ANNEAL
        temperature = jnp.where(cold, 0, _TEMPERATURE * jnp.asarray(_COOLING, dtype) ** t)
        noise = temperature * _gumbel(stream(seed, 3 + t), (z.size, k), dtype)
        # What it costs to give up one more pair of a kind; never less than nothing.
        kept = satisfied(nodes, z)
        prices = jnp.log(kept + 0.5) - jnp.log(settings.n_pairs - kept + 0.5)
        prices = jnp.maximum(prices, 0).astype(dtype)
        weights, cost = _open_weights(nodes, code, settings), costs(nodes, code, settings)
        new = _sweep(nodes, z, cost, weights, prices, noise, settings, True)
        moved = _shift(nodes, new, cost, weights, prices, settings, stream(seed, t))
        new = jnp.concatenate([new[None], moved])
        lengths, codes = jax.vmap(lambda z: description(nodes, z, settings, k, code, True))(new)
        at = jnp.where(lengths.min() < lengths[0] - settings.tol, lengths.argmin(), 0)
        new, length, code = jax.tree.map(lambda a: a[at], (new, lengths, codes))
        better = length < best[1] - settings.tol
        best = jnp.where(better, new, best[0]), jnp.where(better, length, best[1])
        stale = jnp.where(better | ~cold, 0, stale + 1)
        done = cold & ((new == z).all() | (stale >= _PATIENCE))
        return (new, code, best, stale), done, length

    room = blank(n_trace, length.dtype).at[0].set(length)
    found = iterate(
        step, (z, code, (z, length), 0), N_ANNEAL + settings.max_iter + 1,
        done=~ok, count=1, trace=room,
    )  # fmt: skip
    z, length = found.state[2]
    return SearchResult(z, length, found.trace, found.n_iter - 1, found.done & ok, ok)


@partial(jax.jit, static_argnames=("n_clusters", "n_init", "together", "n_trace", "soft", "apart"))
def search(
    nodes: Nodes,
    settings: Settings,
    seed: jax.Array,
    *,
    n_clusters: int,
    n_init: int,
    together: int,
    n_trace: int,
    soft: bool,
    apart: bool,
) -> SearchResult:
    """Run ``n_init`` restarts, ``together`` of them side by side.

    Parameters
    ----------
    n_clusters : room for clusters, at least that of the settings
    n_trace : room for the trace
    soft : whether some pairs may be ignored
    apart : whether there are cannot-links that must be kept
    """
    run: Callable[..., Any] = _soft if soft else _hard
    one = partial(run, nodes, settings, k=n_clusters, n_trace=n_trace, apart=apart)
    each = stream(stream(seed, 1), jnp.arange(n_init))
    return restarts(lambda seed: one(seed=seed), (each,), together)
