"""Compiled search for a clustering of short description under pairwise constraints.

`nrprob.methods.mdl.codes` defines nodes, words and types of pairs. Shapes: C nodes, the
first B of which take part in pairs; at most D neighbours of a node; K clusters; d features.
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
from nrprob.methods.mdl.codes import (
    TINY,
    Code,
    Coder,
    Nodes,
    Settings,
    component_labels,
    squared_distances,
)

N_ANNEAL = 25  # annealing iterations of a soft search, before the descent
_TEMPERATURE, _COOLING = 2.0, 0.8  # initial temperature in nats, and its factor per iteration
_PATIENCE = 3  # iterations without a shorter description after which a soft search stops


class SearchResult(NamedTuple):
    """Results of the restarts; every array has a leading axis of restarts.

    Attributes
    ----------
    labels : (C,) clusters of the nodes
    objective : description length, or sum of squared distances
    trace : objective after every iteration
    n_iter : number of iterations
    converged : whether the restart converged
    feasible : whether the labels satisfy the hard cannot-links
    """

    labels: jax.Array
    objective: jax.Array
    trace: jax.Array
    n_iter: jax.Array
    converged: jax.Array
    feasible: jax.Array


def assign_in_order(
    order: jax.Array, cost: jax.Array, near: jax.Array, edge: jax.Array, n_clusters: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Assign nodes in order to the cheapest cluster without a cannot-linked neighbour.

    Parameters
    ----------
    order : (B,) indices of the nodes, in the order of assignment
    cost : (B, K) cost of every node in every cluster
    near, edge : (B, D) neighbours, and which of them are cannot-linked
    n_clusters : number of clusters that exist

    Returns
    -------
    z : (B,) clusters of the nodes
    ok : whether every node had a cluster without a cannot-linked neighbour
    """
    b, k = cost.shape
    active = jnp.arange(k) < n_clusters

    def assign_node(i, state):
        z, taken, ok = state
        v = order[i]
        open_ = (taken[v] == 0) & active
        c = jnp.where(open_, cost[v], jnp.inf).argmin().astype(z.dtype)
        taken = taken.at[near[v], c].add(edge[v].astype(taken.dtype))
        return z.at[v].set(c), taken, ok & open_.any()

    state = jnp.zeros(b, jnp.int32), jnp.zeros((b, k), jnp.int32), jnp.array(True)
    z, _, ok = jax.lax.fori_loop(0, b, assign_node, state)
    return z, ok


def _gumbel_noise(seed: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Gumbel noise; the arg max of log weights plus noise is drawn in proportion to the weights."""
    return -jnp.log(-jnp.log(hashed_uniform(seed, shape, dtype) + 2.0**-25))


def initial_centres(nodes: Nodes, seed: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """k-means++ centres (K, d), and squared distances (C,) to the nearest of them."""

    def draw_centre(i, square):
        chance = jnp.log(jnp.maximum(nodes.mass * square, TINY * (nodes.mass > 0)))
        return nodes.mean[
            (chance + _gumbel_noise(fold_in(seed, i), chance.shape, chance.dtype)).argmax()
        ]

    room = jnp.zeros((k, nodes.mean.shape[1]), nodes.mean.dtype)
    return kmeans_plus_plus(
        draw_centre, squared_distances_from(nodes.mean), room, jnp.ones_like(nodes.mass)
    )


class _Search(Coder):
    """Moves of nodes between clusters, and the two searches that combine them."""

    # Moves

    def node_costs(self, code: Code) -> jax.Array:
        """Cost (C, K) in nats of every node in every cluster, without effects of its neighbours."""
        nodes = self.nodes
        square = jnp.maximum(squared_distances(nodes.mean, code.centres), 0)
        r = nodes.within[:, None] + nodes.mass[:, None] * square
        logs = nodes.mass[:, None] * jnp.log(code.scales)
        length = self.settings.weight * (logs + r / code.scales) - jnp.log(
            self.floored_weights(code)
        )
        return jnp.where(self.active, length, jnp.inf)

    def floored_weights(self, code: Code) -> jax.Array:
        """Weights (K,) of the clusters, at least the weight of half a word.

        The lower bound allows nodes to join empty clusters.
        """
        least = 0.5 / jnp.maximum((self.nodes.mass > 0).sum(), 1)
        return jnp.where(self.active, jnp.maximum(code.weights, least), 0)

    def greedy_assignment(self, cost: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Assign nodes in order to the best cluster without a cannot-linked neighbour.

        The order is inductive: the node of the smallest degree comes last. Among ties, the node of
        the smallest maximum coding risk, eq. (5.6), comes last.

        Returns
        -------
        z : (C,) clusters of the nodes
        ok : whether every node had a cluster without a cannot-linked neighbour
        """
        near, edge, b = self.near, self.apart, self.index.size
        inside = cost[:b]
        risk = jnp.where(self.active, inside, -jnp.inf).max(1) - inside.min(1)

        def remove_node(i, state):
            degree, left, order = state
            least = jnp.where(left, degree, b + 1).min()
            v = jnp.where(left & (degree == least), risk, jnp.inf).argmin().astype(order.dtype)
            degree = degree.at[near[v]].add(-edge[v].astype(degree.dtype))
            return degree, left.at[v].set(False), order.at[b - 1 - i].set(v)

        state = edge.sum(1), jnp.ones(b, bool), jnp.zeros(b, near.dtype)
        order = jax.lax.fori_loop(0, b, remove_node, state)[2]

        z = cost.argmin(1).astype(jnp.int32)
        first, ok = assign_in_order(order, inside, near, edge, self.settings.n_clusters)
        return z.at[:b].set(first), ok

    def sweep_nodes(
        self, z: jax.Array, cost: jax.Array, weights: jax.Array, penalties: jax.Array | None = None
    ) -> jax.Array:
        """Move every node in turn to the cluster of the shortest description.

        The lengths of the words of the node and of its later neighbours are exact. In a soft
        search, a satisfied must-link saves the length of a word plus ``penalties[0]``; the saved
        length is exact unless links form a cycle. A violated cannot-link adds ``penalties[1]``.

        Parameters
        ----------
        z : (C,) clusters of the nodes
        cost : (C, K) costs of the nodes in the clusters, without the effects of neighbours
        weights : (K,) weights of the clusters
        penalties : (2,) costs of violating a soft must-link and a soft cannot-link; None without
            soft pairs

        Returns
        -------
        (C,) clusters after the sweep
        """
        near, k, b = self.near, self.k, self.index.size
        later = near > self.index[:, None]
        edge = self.apart if penalties is None else self.apart | self.soft_apart
        log_w = jnp.log(jnp.maximum(weights, TINY))
        first = z[:b]
        one_hot = jax.nn.one_hot(first, k, dtype=jnp.int32)
        earlier = (edge & ~later)[:, :, None] * one_hot[near]
        table = earlier.sum(1)  # earlier neighbours of every node in every cluster

        def move_node(i, state):
            z, table = state
            neighbours = near[i]
            in_j = z[neighbours][:, None] == jnp.arange(k)
            ahead = edge[i] & later[i]
            # Length of the node's word.
            free = (table[i] == 0) & self.active
            mass = jnp.where(free, weights, 0).sum() + jnp.where(free, 0, weights)
            total = cost[i] + jnp.log(jnp.maximum(mass, TINY))
            # Change of the later neighbours' words when the node's cluster is taken.
            rest = table[neighbours] - (ahead[:, None] & (jnp.arange(k) == z[i])).astype(
                table.dtype
            )
            open_ = ((rest == 0) | in_j) & self.active
            base = jnp.where(open_, weights, 0).sum(1)
            lost = jnp.where((rest == 0) & ~in_j, weights, 0)
            after = (
                jnp.log(jnp.maximum(base[:, None] - lost, TINY))
                - jnp.log(jnp.maximum(base, TINY))[:, None]
            )
            total += jnp.where(ahead[:, None], after, 0).sum(0)
            total += jnp.where(self.apart[i][:, None] & in_j, jnp.inf, 0).sum(0)
            if penalties is not None:
                total += jnp.where(self.soft_apart[i][:, None] & in_j, penalties[1], 0).sum(0)
                saved = jnp.maximum(penalties[0] - log_w, 0)
                total -= jnp.where(self.soft_link[i][:, None] & in_j, saved, 0).sum(0)
            c = total.argmin().astype(z.dtype)
            change = (jnp.arange(k) == c).astype(table.dtype) - (jnp.arange(k) == z[i])
            table = table.at[neighbours].add(ahead[:, None] * change)
            return z.at[i].set(c), table

        first, _ = jax.lax.fori_loop(0, b, move_node, (first, table))
        return cost.argmin(1).astype(z.dtype).at[:b].set(first)

    def swap_clusters(self, z: jax.Array, cost: jax.Array) -> jax.Array:
        """Exchange two clusters within connected parts if the cost decreases (Kempe chains).

        This move changes assignments in which no single node can move: with two clusters and a
        connected graph, these are all assignments.
        """
        near, edge, b = self.near, self.apart, self.index.size
        inside, settings = cost[:b], self.settings
        first, second = (jnp.asarray(a) for a in np.triu_indices(self.k, 1))

        def exchange_pair(pair, z):
            left, right = first[pair], second[pair]
            member = (z == left) | (z == right)
            label = component_labels(edge & member[:, None] & member[near], near)
            gain = inside[self.index, left] - inside[self.index, right]
            gain = jnp.where(member, jnp.where(z == left, 1, -1) * gain, 0)
            gain = jax.ops.segment_sum(gain, label, b)[label]
            better = member & (gain > settings.tol) & (right < settings.n_clusters)
            return jnp.where(better, (left + right).astype(z.dtype) - z, z)

        return z.at[:b].set(jax.lax.fori_loop(0, first.size, exchange_pair, z[:b]))

    def move_linked(
        self,
        z: jax.Array,
        cost: jax.Array,
        weights: jax.Array,
        penalties: jax.Array,
        seed: jax.Array,
    ) -> jax.Array:
        """Propose labels (2, C) in which sets of linked nodes move together.

        A set consists of nodes in one cluster that soft must-links connect. The moves of all sets
        are evaluated at once, each with the other sets fixed. One proposal moves a random half of
        the sets whose move shortens the description. The other moves the best set only. The
        arguments are those of `sweep_nodes`, and a random seed.
        """
        near, index, b = self.near, self.index, self.index.size
        first, same = self.pair_clusters(z)
        label = component_labels(self.soft_link & same, near)
        log_w = jnp.log(jnp.maximum(weights, TINY))
        # Cost of each node in each cluster; linked nodes share one word.
        set_cost = jnp.where(self.active, cost[:b], 0) + log_w * (label != index)[:, None]
        other = (label[near] != label[:, None])[:, :, None]
        in_cluster = (first[near][:, :, None] == jnp.arange(self.k)) & other
        saved = jnp.maximum(penalties[0] - log_w, 0)
        set_cost += (self.soft_apart[:, :, None] & in_cluster).sum(1) * penalties[1]
        set_cost -= (self.soft_link[:, :, None] & in_cluster).sum(1) * saved
        shut = (self.apart[:, :, None] & in_cluster).any(1)
        total = jax.ops.segment_sum(set_cost, label, b)
        shut = jax.ops.segment_max(shut.astype(jnp.int32), label, b) > 0
        total = jnp.where(self.active & ~shut, total, jnp.inf)
        to = total.argmin(1).astype(z.dtype)
        # Indices that are not the first node of a set have no cost and no gain.
        stay = jnp.take_along_axis(total, first[:, None], 1)[:, 0]
        gain = jnp.where(label == index, stay - total.min(1), 0)
        gain = jnp.where(gain > self.settings.tol, gain, 0)
        some = (gain > 0) & (hashed_uniform(seed, (b,), gain.dtype) < 0.5)
        best = (gain > 0) & (index == gain.argmax())

        def apply_moves(chosen):
            new = jnp.where(chosen[label], to[label], first)
            # Discard the proposal if two cannot-linked sets moved to the same cluster.
            valid = ~(self.apart & (new[:, None] == new[near])).any()
            return z.at[:b].set(jnp.where(valid, new, first))

        return jnp.stack([apply_moves(some), apply_moves(best)])

    # The search

    def initial_state(self, seed: jax.Array, apart: bool) -> tuple[jax.Array, Code, jax.Array]:
        """Initialise a restart from k-means++ centres.

        Returns
        -------
        z : (C,) clusters of the nodes
        code : code of these clusters
        ok : whether the clusters satisfy the hard cannot-links
        """
        nodes, settings, k = self.nodes, self.settings, self.k
        centres, square = initial_centres(nodes, fold_in(seed, 1), k)
        scale = (nodes.within.sum() + nodes.mass @ square) / nodes.mass.sum()
        scale = jnp.clip(scale, settings.low, settings.high)
        ones = jnp.ones(k, nodes.mean.dtype)
        code = Code(jnp.where(self.active, ones / settings.n_clusters, 0), centres, scale * ones)
        cost = self.node_costs(code)
        z, ok = cost.argmin(1).astype(jnp.int32), jnp.array(True)
        if apart:
            greedy, ok = self.greedy_assignment(cost)
            # If the greedy assignment fails: known feasible labels, randomly permuted.
            order = jnp.where(self.active, hashed_uniform(fold_in(seed, 2), (k,), ones.dtype), 2)
            permutation = jnp.argsort(order).astype(z.dtype)
            feasible = z.at[: self.index.size].set(permutation[nodes.start])
            z = jnp.where(ok, greedy, feasible)
            ok |= settings.has_start
        return z, self.describe_labels(z, code)[1], ok

    def run_restart(self, seed: jax.Array, n_trace: int, apart: bool) -> SearchResult:
        """Run one restart from k-means++ centres."""
        z, code, ok = self.initial_state(seed, apart)
        length, new = self.describe_labels(z, code)
        room = empty_trace(n_trace, length.dtype).at[0].set(length)
        loop = partial(iterate, done=~ok, count=1, trace=room)
        limit = self.settings.max_iter + 1
        if self.soft:
            step, state = partial(self._anneal_step, seed), (z, new, (z, length), 0)
            result = loop(step, state, N_ANNEAL + limit)
            z, length = result.state[2]
        else:
            result = loop(partial(self._descent_step, apart), (z, code, length), limit)
            z, _, length = result.state
        return SearchResult(z, length, result.trace, result.n_iter - 1, result.done & ok, ok)

    def _descent_step(self, apart: bool, state: Any, _: jax.Array) -> Any:
        """Move to the proposal of the shortest description; stop if no proposal is shorter.

        The state consists of the labels z, the code and the description length. ``apart`` states
        whether there are hard cannot-links.
        """
        z, code, length = state
        cost = self.node_costs(code)
        # Proposals: a sweep from the current labels, one from the greedy labels, Kempe chains.
        if apart:
            greedy, complete = self.greedy_assignment(cost)
            move = partial(self.sweep_nodes, cost=cost, weights=self.floored_weights(code))
            swept = jax.vmap(move)(jnp.stack([z, jnp.where(complete, greedy, z)]))
            candidates = jnp.concatenate([swept, self.swap_clusters(swept[0], cost)[None]])
        else:
            candidates = cost.argmin(1).astype(z.dtype)[None]
        # Accept the shortest proposal if it shortens the description.
        lengths, codes = jax.vmap(lambda z: self.describe_labels(z, code))(candidates)
        best = lengths.argmin()
        better = lengths[best] < length - self.settings.tol
        new = jax.tree.map(lambda a: a[best], (candidates, codes, lengths))
        state = jax.tree.map(lambda new, old: jnp.where(better, new, old), new, state)
        return state, ~better, state[2]

    def _anneal_step(self, seed: jax.Array, state: Any, count: jax.Array) -> Any:
        """Anneal single moves, then descend; keep the shortest description of all iterations.

        The state consists of the labels z, the code, the best labels with their length, and the
        number of iterations without a shorter description. ``count`` is the number of the
        iteration.
        """
        z, code, best, stale = state
        t, dtype = count - 1, self.nodes.mean.dtype
        cold = t >= N_ANNEAL
        temperature = jnp.where(cold, 0, _TEMPERATURE * jnp.asarray(_COOLING, dtype) ** t)
        noise = temperature * _gumbel_noise(fold_in(seed, 3 + t), (z.size, self.k), dtype)
        # Penalty of violating one more pair of a type, the change of its flags' length; at least 0.
        n_kept = self.count_satisfied(z)
        penalties = jnp.log(n_kept + 0.5) - jnp.log(self.settings.n_pairs - n_kept + 0.5)
        penalties = jnp.maximum(penalties, 0).astype(dtype)
        weights, cost = self.floored_weights(code), self.node_costs(code)
        # Proposals: a noisy sweep, and two joint moves of linked nodes.
        new = self.sweep_nodes(z, cost - noise, weights, penalties)
        moved = self.move_linked(new, cost, weights, penalties, fold_in(seed, t))
        new = jnp.concatenate([new[None], moved])
        lengths, codes = jax.vmap(lambda z: self.describe_labels(z, code))(new)
        chosen = jnp.where(lengths.min() < lengths[0] - self.settings.tol, lengths.argmin(), 0)
        new, length, code = jax.tree.map(lambda a: a[chosen], (new, lengths, codes))
        # Keep the shortest description so far; stop after some iterations without progress.
        better = length < best[1] - self.settings.tol
        best = jnp.where(better, new, best[0]), jnp.where(better, length, best[1])
        stale = jnp.where(better | ~cold, 0, stale + 1)
        done = cold & ((new == z).all() | (stale >= _PATIENCE))
        return (new, code, best, stale), done, length


@jit_by_size("n_clusters", "n_init", "together", "n_trace", "soft", "apart")
def search_partition(
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
    """Run all restarts of the search.

    Parameters
    ----------
    nodes, settings : the nodes, and the settings of the search
    seed : random seed
    n_clusters : number of clusters with padding
    n_init : number of restarts
    together : number of restarts that run in parallel
    n_trace : length of the trace with padding
    soft : whether there are soft pairs
    apart : whether there are hard cannot-links
    """
    run = partial(
        _Search(nodes, settings, n_clusters, soft).run_restart, n_trace=n_trace, apart=apart
    )
    return map_restarts(run, (fold_in(fold_in(seed, 1), jnp.arange(n_init)),), together)
