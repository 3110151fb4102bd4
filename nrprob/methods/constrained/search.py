"""The compiled search for a short description of rows under pairwise constraints.

What nodes, words and kinds of pairs are is said in `nrprob.methods.constrained.codes`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.hash_rng import fold_in, hashed_uniform
from nrprob.engines.optimise.iterate import empty_trace, iterate, map_restarts
from nrprob.engines.optimise.kmeans import kmeans_plus_plus, squared_distances_from
from nrprob.engines.programs import jit_by_size
from nrprob.methods.constrained.codes import (
    TINY,
    Code,
    Coder,
    Nodes,
    Settings,
    components,
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


def _gumbel(seed: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Draws that make of an arg max one from a softmax."""
    return -jnp.log(-jnp.log(hashed_uniform(seed, shape, dtype) + 2.0**-25))


def seeds(nodes: Nodes, seed: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """k-means++: centres (K, d), and the squared distances (C,) to the nearest of them."""

    def draw(i, square):
        chance = jnp.log(jnp.maximum(nodes.mass * square, TINY * (nodes.mass > 0)))
        return nodes.mean[(chance + _gumbel(fold_in(seed, i), chance.shape, chance.dtype)).argmax()]

    room = jnp.zeros((k, nodes.mean.shape[1]), nodes.mean.dtype)
    return kmeans_plus_plus(
        draw, squared_distances_from(nodes.mean), room, jnp.ones_like(nodes.mass)
    )


class _Search(Coder):
    """Moves of nodes between clusters, and the two searches that are made of them."""

    # Moves

    def costs(self, code: Code) -> jax.Array:
        """Cost (C, K) in nats of every node in every cluster, without what neighbours do to it."""
        nodes = self.nodes
        square = jnp.maximum(squares(nodes.mean, code.centres), 0)
        r = nodes.within[:, None] + nodes.mass[:, None] * square
        logs = nodes.mass[:, None] * jnp.log(code.scales)
        length = self.settings.weight * (logs + r / code.scales) - jnp.log(self.weights(code))
        return jnp.where(self.active, length, jnp.inf)

    def weights(self, code: Code) -> jax.Array:
        """Weights, but for empty clusters half a word's: with none they could never be joined."""
        least = 0.5 / jnp.maximum((self.nodes.mass > 0).sum(), 1)
        return jnp.where(self.active, jnp.maximum(code.weights, least), 0)

    def greedy(self, cost: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Assign nodes one after the other to the best cluster that no neighbour has.

        The order is inductive: the node of least degree goes last. Among equals the one that a bad
        cluster would cost least does: maximum coding risk, eq. (5.6).

        Returns
        -------
        z : (C,)
        ok : whether there always was a cluster left
        """
        near, edge, b = self.near, self.apart, self.index.size
        inside = cost[:b]
        risk = jnp.where(self.active, inside, -jnp.inf).max(1) - inside.min(1)

        def take(i, state):
            degree, left, order = state
            least = jnp.where(left, degree, b + 1).min()
            v = jnp.where(left & (degree == least), risk, jnp.inf).argmin().astype(order.dtype)
            degree = degree.at[near[v]].add(-edge[v].astype(degree.dtype))
            return degree, left.at[v].set(False), order.at[b - 1 - i].set(v)

        state = edge.sum(1), jnp.ones(b, bool), jnp.zeros(b, near.dtype)
        order = jax.lax.fori_loop(0, b, take, state)[2]

        z = cost.argmin(1).astype(jnp.int32)
        first, ok = assign_in_order(order, inside, near, edge, self.settings.n_clusters)
        return z.at[:b].set(first), ok

    def sweep(
        self, z: jax.Array, cost: jax.Array, weights: jax.Array, prices: jax.Array | None = None
    ) -> jax.Array:
        """Move every node, one after the other, to where the description is shortest.

        The words of the node and of its later neighbours are priced exactly. A kept link saves a
        word: exact unless links make a cycle. In a soft search ``prices[1]`` is paid where a
        cannot-link is not kept, and a kept link earns ``prices[0]`` besides.
        """
        near, k, b = self.near, self.k, self.index.size
        later = near > self.index[:, None]
        edge = self.apart if prices is None else self.apart | self.soft_apart
        log_w = jnp.log(jnp.maximum(weights, TINY))
        first = z[:b]
        one_hot = jax.nn.one_hot(first, k, dtype=jnp.int32)
        earlier = (edge & ~later)[:, :, None] * one_hot[near]
        table = earlier.sum(1)  # earlier neighbours of every node in every cluster

        def visit(i, state):
            z, table = state
            at = near[i]
            in_j = z[at][:, None] == jnp.arange(k)
            ahead = edge[i] & later[i]
            # The node's own word.
            free = (table[i] == 0) & self.active
            mass = jnp.where(free, weights, 0).sum() + jnp.where(free, 0, weights)
            total = cost[i] + jnp.log(jnp.maximum(mass, TINY))
            # The words of later neighbours, without and with the node's cluster among those taken.
            rest = table[at] - (ahead[:, None] & (jnp.arange(k) == z[i])).astype(table.dtype)
            open_ = ((rest == 0) | in_j) & self.active
            base = jnp.where(open_, weights, 0).sum(1)
            lost = jnp.where((rest == 0) & ~in_j, weights, 0)
            after = (
                jnp.log(jnp.maximum(base[:, None] - lost, TINY))
                - jnp.log(jnp.maximum(base, TINY))[:, None]
            )
            total += jnp.where(ahead[:, None], after, 0).sum(0)
            total += jnp.where(self.apart[i][:, None] & in_j, jnp.inf, 0).sum(0)
            if prices is not None:
                total += jnp.where(self.soft_apart[i][:, None] & in_j, prices[1], 0).sum(0)
                saved = jnp.maximum(prices[0] - log_w, 0)
                total -= jnp.where(self.soft_link[i][:, None] & in_j, saved, 0).sum(0)
            c = total.argmin().astype(z.dtype)
            change = (jnp.arange(k) == c).astype(table.dtype) - (jnp.arange(k) == z[i])
            table = table.at[at].add(ahead[:, None] * change)
            return z.at[i].set(c), table

        first, _ = jax.lax.fori_loop(0, b, visit, (first, table))
        return cost.argmin(1).astype(z.dtype).at[:b].set(first)

    def swap(self, z: jax.Array, cost: jax.Array) -> jax.Array:
        """Exchange two clusters within connected parts, where that pays: Kempe chains.

        It leaves assignments that no single node can leave, such as all of them with two clusters
        and a connected graph.
        """
        near, edge, b = self.near, self.apart, self.index.size
        inside, settings = cost[:b], self.settings
        first, second = (jnp.asarray(a) for a in np.triu_indices(self.k, 1))

        def exchange(pair, z):
            one, two = first[pair], second[pair]
            member = (z == one) | (z == two)
            label = components(edge & member[:, None] & member[near], near)
            gain = inside[self.index, one] - inside[self.index, two]
            gain = jnp.where(member, jnp.where(z == one, 1, -1) * gain, 0)
            gain = jax.ops.segment_sum(gain, label, b)[label]
            better = member & (gain > settings.tol) & (two < settings.n_clusters)
            return jnp.where(better, (one + two).astype(z.dtype) - z, z)

        return z.at[:b].set(jax.lax.fori_loop(0, first.size, exchange, z[:b]))

    def shift(
        self,
        z: jax.Array,
        cost: jax.Array,
        weights: jax.Array,
        prices: jax.Array,
        seed: jax.Array,
    ) -> jax.Array:
        """Move linked nodes together, which no single node would begin: two proposals (2, C).

        All sets of linked nodes are priced at once, as if the others stayed. One proposal moves the
        set that gains most, the other a random half of those that gain.
        """
        near, index, b = self.near, self.index, self.index.size
        first, same = self.inside(z)
        label = components(self.soft_link & same, near)
        log_w = jnp.log(jnp.maximum(weights, TINY))
        # Linked nodes share one word.
        own = jnp.where(self.active, cost[:b], 0) + log_w * (label != index)[:, None]
        other = (label[near] != label[:, None])[:, :, None]
        there = (first[near][:, :, None] == jnp.arange(self.k)) & other
        saved = jnp.maximum(prices[0] - log_w, 0)
        own += (self.soft_apart[:, :, None] & there).sum(1) * prices[1]
        own -= (self.soft_link[:, :, None] & there).sum(1) * saved
        shut = (self.apart[:, :, None] & there).any(1)
        total = jax.ops.segment_sum(own, label, b)
        shut = jax.ops.segment_max(shut.astype(jnp.int32), label, b) > 0
        total = jnp.where(self.active & ~shut, total, jnp.inf)
        to = total.argmin(1).astype(z.dtype)
        # Labels that name no set have no cost at all, and no gain.
        stay = jnp.take_along_axis(total, first[:, None], 1)[:, 0]
        gain = jnp.where(label == index, stay - total.min(1), 0)
        gain = jnp.where(gain > self.settings.tol, gain, 0)
        some = (gain > 0) & (hashed_uniform(seed, (b,), gain.dtype) < 0.5)
        best = (gain > 0) & (index == gain.argmax())

        def move(chosen):
            new = jnp.where(chosen[label], to[label], first)
            # Two sets may have gone to the same cluster that must be apart.
            kept = ~(self.apart & (new[:, None] == new[near])).any()
            return z.at[:b].set(jnp.where(kept, new, first))

        return jnp.stack([move(some), move(best)])

    # The search

    def start(self, seed: jax.Array, apart: bool) -> tuple[jax.Array, Code, jax.Array]:
        """First clusters, which keep the cannot-links, their code, and whether there are any."""
        nodes, settings, k = self.nodes, self.settings, self.k
        centres, square = seeds(nodes, fold_in(seed, 1), k)
        scale = (nodes.within.sum() + nodes.mass @ square) / nodes.mass.sum()
        scale = jnp.clip(scale, settings.low, settings.high)
        ones = jnp.ones(k, nodes.mean.dtype)
        code = Code(jnp.where(self.active, ones / settings.n_clusters, 0), centres, scale * ones)
        cost = self.costs(code)
        z, ok = cost.argmin(1).astype(jnp.int32), jnp.array(True)
        if apart:
            greedy, ok = self.greedy(cost)
            # A start that is known to keep them, under random names.
            order = jnp.where(self.active, hashed_uniform(fold_in(seed, 2), (k,), ones.dtype), 2)
            names = jnp.argsort(order).astype(z.dtype)
            known = z.at[: self.index.size].set(names[nodes.start])
            z = jnp.where(ok, greedy, known)
            ok |= settings.has_start
        return z, self.description(z, code)[1], ok

    def run(self, seed: jax.Array, n_trace: int, apart: bool) -> SearchResult:
        """One restart, from k-means++ centres."""
        z, code, ok = self.start(seed, apart)
        length, new = self.description(z, code)
        room = empty_trace(n_trace, length.dtype).at[0].set(length)
        loop = partial(iterate, done=~ok, count=1, trace=room)
        limit = self.settings.max_iter + 1
        if self.soft:
            step, state = partial(self._anneal, seed), (z, new, (z, length), 0)
            result = loop(step, state, N_ANNEAL + limit)
            z, length = result.state[2]
        else:
            result = loop(partial(self._descend, apart), (z, code, length), limit)
            z, _, length = result.state
        return SearchResult(z, length, result.trace, result.n_iter - 1, result.done & ok, ok)

    def _descend(self, apart: bool, state: Any, _: jax.Array) -> Any:
        """Take the shortest of a few descriptions; every iteration falls or is the last."""
        z, code, length = state
        cost = self.costs(code)
        if apart:
            anew, done = self.greedy(cost)
            move = partial(self.sweep, cost=cost, weights=self.weights(code))
            swept = jax.vmap(move)(jnp.stack([z, jnp.where(done, anew, z)]))
            candidates = jnp.concatenate([swept, self.swap(swept[0], cost)[None]])
        else:
            candidates = cost.argmin(1).astype(z.dtype)[None]
        lengths, codes = jax.vmap(lambda z: self.description(z, code))(candidates)
        best = lengths.argmin()
        better = lengths[best] < length - self.settings.tol
        new = jax.tree.map(lambda a: a[best], (candidates, codes, lengths))
        state = jax.tree.map(lambda new, old: jnp.where(better, new, old), new, state)
        return state, ~better, state[2]

    def _anneal(self, seed: jax.Array, state: Any, count: jax.Array) -> Any:
        """Anneal single moves, then quench; the shortest description on the way is kept."""
        z, code, best, stale = state
        t, dtype = count - 1, self.nodes.mean.dtype
        cold = t >= N_ANNEAL
        temperature = jnp.where(cold, 0, _TEMPERATURE * jnp.asarray(_COOLING, dtype) ** t)
        noise = temperature * _gumbel(fold_in(seed, 3 + t), (z.size, self.k), dtype)
        # What it costs to give up one more pair of a kind; never less than nothing.
        kept = self.satisfied(z)
        prices = jnp.log(kept + 0.5) - jnp.log(self.settings.n_pairs - kept + 0.5)
        prices = jnp.maximum(prices, 0).astype(dtype)
        weights, cost = self.weights(code), self.costs(code)
        new = self.sweep(z, cost - noise, weights, prices)
        moved = self.shift(new, cost, weights, prices, fold_in(seed, t))
        new = jnp.concatenate([new[None], moved])
        lengths, codes = jax.vmap(lambda z: self.description(z, code))(new)
        at = jnp.where(lengths.min() < lengths[0] - self.settings.tol, lengths.argmin(), 0)
        new, length, code = jax.tree.map(lambda a: a[at], (new, lengths, codes))
        better = length < best[1] - self.settings.tol
        best = jnp.where(better, new, best[0]), jnp.where(better, length, best[1])
        stale = jnp.where(better | ~cold, 0, stale + 1)
        done = cold & ((new == z).all() | (stale >= _PATIENCE))
        return (new, code, best, stale), done, length


@jit_by_size("n_clusters", "n_init", "together", "n_trace", "soft", "apart")
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
    run = partial(_Search(nodes, settings, n_clusters, soft).run, n_trace=n_trace, apart=apart)
    return map_restarts(run, (fold_in(fold_in(seed, 1), jnp.arange(n_init)),), together)
