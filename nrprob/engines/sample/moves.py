"""Sampling of partitions: any sum of complete code lengths, as a distribution over clusterings.

The state is a set partition of the rows into 1 .. K clusters, and its probability is proportional
to ``exp(-scale * L)``. L is the code length under the terms of a
`nrprob.engines.sample.target.Target`, plus a function of the number of clusters. Parameters are
coded, not sampled, so that nothing but differences of L is needed. Every move leaves the
distribution invariant:

- *Gibbs*: rows are visited in random order, ``block`` at a time. The rows of a block are taken out
  together, and each draws its cluster (one new cluster among them) given all rows outside the
  block; the block's new labels are accepted by the rule of Metropolis and Hastings. With blocks of
  one row that rule always accepts, and this is the usual collapsed Gibbs sweep; wider ones are
  array operations.
- *Split or merge, launched*: two rows are drawn, by a law that the state has no part in. If they
  share a cluster, it is split between them, else their clusters are merged. Both directions look at
  the same launching state, which hard assignments to the two clusters reach from the two rows
  alone; from there all other rows draw their sides anew, half of them at a time (after Jain and
  Neal, 2004, who launch by Gibbs sweeps and draw one by one).
- *Split or merge, doubling*: the other rows take sides in random order, 1, 2, 4, 8, ... at a time,
  given those before them. One by one (Dahl, 2005) would be as many steps as rows.
- *Swap*, where there are known groups: within one of them, two clusters exchange their rows. Few
  rows at a time could not get there, since names mean the same in all groups.

Chains are vectorised by ``jax.vmap``, but for the splits and merges of many rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.sample.split_merge import doubling, launched, nothing_usual, split_merges
from nrprob.engines.sample.target import (
    Partition,
    Target,
    by_parts,
    occupied,
    packed,
    replaced,
    start,
    sum_cells,
)
from nrprob.engines.sample.uniforms import below, draw_categories, in_order


class Moves(NamedTuple):
    """Counts of proposals and of those accepted, over some sweeps."""

    gibbs: jax.Array
    gibbs_accepted: jax.Array
    split: jax.Array
    split_accepted: jax.Array
    merge: jax.Array
    merge_accepted: jax.Array
    swap: jax.Array
    swap_accepted: jax.Array


def no_moves() -> Moves:
    """Counts before anything was proposed."""
    return Moves(*(jnp.zeros((), jnp.int32) for _ in Moves._fields))


# Gibbs


def gibbs(
    target: Target, state: Partition, key: jax.Array, block: int
) -> tuple[Partition, jax.Array, jax.Array]:
    """Visit all rows once, ``block`` at a time; returns numbers of blocks, and of accepted ones.

    Of rows that have several versions, cluster and version are drawn together.
    """
    state = packed(state)
    n_clusters, scales = target.n_slots, target.scales
    n_versions = 1 if scales is None else len(scales.weights)
    size = target.x.shape[0]
    n_rows = (target.x[:, -1] > 0).sum()
    n_blocks = -(-size // block)
    # One call for all that is random: a program with a dozen of them compiles for long.
    u = jax.random.uniform(key, (2 + n_blocks * (block + 1),))
    order = in_order(u[:2], size, n_rows)
    v = jnp.log(u[2 : 2 + n_blocks])
    u = u[2 + n_blocks :].reshape(n_blocks, block)
    # Beyond the last row there is nothing: reading repeats it, writing is dropped.
    order = jnp.pad(order, (0, n_blocks * block - size), constant_values=size)
    valid = (jnp.arange(order.size) < n_rows).reshape(n_blocks, block)
    order = order.reshape(n_blocks, block)
    x = jnp.where(valid[..., None], target.x[order], 0)
    group = target.group[order]
    before = state.labels[order]
    if scales is not None:  # of which a cluster in every version is a category
        before = before * n_versions + scales.version[order]
        price = scales.price[order]
    slots = jnp.arange(n_clusters * n_versions)[:, None]

    def cells_of(rows, groups, category):
        if scales is None:
            return sum_cells(target, rows, groups, category)
        rows = scales.of(rows, category % n_versions)
        return sum_cells(target, rows, groups, category // n_versions)

    def joining(cells, opened, into, j):
        """What the rows of a block add to cells in every category (C, b)."""
        rows, groups = x[j], group[j]
        more = () if scales is None else (scales.weights,)
        if target.additive is None:
            cost = target.joining(cells, rows, groups, *more)
        else:
            shape = (*(len(w) for w in more), block)
            cost = by_parts(
                lambda part: target.joining(part, rows, groups, *more), cells, into, *shape
            )
        if scales is None:
            return cost + opened[:, None]
        return (cost + opened[:, None, None] + price[j].T).reshape(-1, block)

    def visit(j, carry):
        cells, length, after, accepted = carry
        at = partial(jax.lax.dynamic_index_in_dim, index=j, keepdims=False)
        rows, groups, old = at(x), at(group), at(before)
        less = cells - cells_of(rows, groups, old)
        less = jnp.where(less[..., -1:] > 0.5, less, 0)  # rounding leaves no trace in empty cells
        here = occupied(less)
        k, new = here.sum(), jnp.argmin(here)
        opened = target.sizes[jnp.minimum(k + 1, n_clusters)] - jnp.where(k > 0, target.sizes[k], 0)
        may_open = (jnp.arange(n_clusters) == new) & ~here & jnp.isfinite(opened)
        into = here | may_open
        cost = joining(less, jnp.where(may_open, opened, 0), into, j)
        into = jnp.repeat(into, n_versions)[:, None]
        log_p = jnp.where(into, -target.scale * cost, -jnp.inf)
        drawn = jnp.where(at(valid), draw_categories(log_p, at(u)), old)
        more = less + cells_of(rows, groups, drawn)
        put = partial(jax.lax.dynamic_update_index_in_dim, index=j, axis=0)
        if block == 1:
            return more, length, put(after, drawn), accepted + 1
        # Clusters that emptied with the block are the new one of the way back, which is but one.
        emptied = (occupied(cells) & ~here).sum()
        back = jnp.where(here[old // n_versions], old, new * n_versions + old % n_versions)
        new_length = target.length(more)
        change = ((slots == back) * 1.0 - (slots == drawn)) * jnp.maximum(log_p, -1e300)
        change = change.sum(0)
        if scales is not None:
            prices = jnp.take_along_axis(price[j], jnp.stack([old, drawn], 1) % n_versions, 1)
            change = change + target.scale * (prices[:, 0] - prices[:, 1])
        ratio = jnp.where(at(valid), change, 0).sum() + length - new_length
        accept = (emptied <= 1) & (v[j] < ratio)
        cells, length = jnp.where(accept, more, cells), jnp.where(accept, new_length, length)
        return cells, length, put(after, jnp.where(accept, drawn, old)), accepted + accept

    count = (-(-n_rows // block)).astype(jnp.int32)
    begin = state.cells, state.length, before, jnp.zeros((), jnp.int32)
    _, _, after, accepted = jax.lax.fori_loop(0, count, visit, begin)
    if scales is not None:
        version = scales.version.at[order].set(after % n_versions, mode="drop")
        target = replace(target, scales=replace(scales, version=version))
        after = after // n_versions
    labels = state.labels.at[order].set(after, mode="drop")
    return start(target, labels), count, accepted


# Swap


def swap(target: Target, state: Partition, key: jax.Array) -> tuple[Partition, jax.Array]:
    """Propose that two clusters exchange their rows of one known group."""
    u = jax.random.uniform(key, (4,), minval=jnp.finfo(float).tiny)
    here = occupied(state.cells)
    k = here.sum()
    group = below(u[0], target.group.max() + 1)
    first = below(u[1], k)
    second = (first + 1 + below(u[2], jnp.maximum(k - 1, 1))) % k
    rank = jnp.cumsum(here) - 1
    a, b = (jnp.argmax(here & (rank == which)) for which in (first, second))
    two = state.cells[:, jnp.stack([a, b])]
    two = two.at[group].set(two[group, ::-1])
    cells, length = replaced(target, state, a, b, two)
    # With an emptied cluster, the way back would have another probability.
    accept = (a != b) & (occupied(cells) == here).all() & (jnp.log(u[3]) < state.length - length)
    z = state.labels
    exchanged = jnp.where(z == a, b, jnp.where(z == b, a, z)).astype(z.dtype)
    labels = jnp.where(target.group == group, exchanged, z)
    moved = Partition(labels, cells, length)
    return jax.tree.map(lambda new, old: jnp.where(accept, new, old), moved, state), accept


def sweep(
    target: Target,
    state: Partition,
    key: jax.Array,
    *,
    block: int,
    n_split_merge: int,
    n_launch: int,
    usual: jax.Array | None = None,
) -> tuple[Partition, Moves]:
    """One sweep of Gibbs moves, then of `jumps`."""
    gibbs_key, jump_key = jax.random.split(key)
    state, n_blocks, accepted = gibbs(target, state, gibbs_key, block)
    state, moves = jumps(
        target, state, jump_key, n_split_merge=n_split_merge, n_launch=n_launch, usual=usual
    )
    return state, moves._replace(gibbs=n_blocks, gibbs_accepted=accepted)


def jumps(
    target: Target,
    state: Partition,
    key: jax.Array,
    *,
    n_split_merge: int,
    n_launch: int,
    usual: jax.Array | None = None,
) -> tuple[Partition, Moves]:
    """``n_split_merge`` proposals of a split or a merge, of both kinds in turn, and of swaps.

    Few splits of ``usual`` partitions are evaluated; see `nrprob.engines.sample.split_merge`.
    """
    if not n_split_merge:
        return state, no_moves()
    pair_key, swap_key = jax.random.split(key)
    allocations = partial(launched, n=n_launch), doubling
    usual = nothing_usual() if usual is None else usual
    state, made = split_merges(target, state, pair_key, allocations, n_split_merge, usual)
    moves = no_moves()._replace(**made._asdict())

    def exchange(t, carry):
        state, moves = carry
        state, accept = swap(target, state, jax.random.fold_in(swap_key, t))
        one = accept.astype(jnp.int32)
        moves = moves._replace(swap=moves.swap + 1, swap_accepted=moves.swap_accepted + one)
        return state, moves

    if target.n_groups > 1:
        state, moves = jax.lax.fori_loop(0, n_split_merge, exchange, (state, moves))
    return state, moves
