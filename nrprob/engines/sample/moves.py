"""Moves of samplers over partitions, for any sum of complete code lengths.

The state is a set partition of the samples into 1 .. K clusters, with probability proportional to
``exp(-scale * L)``. L is the code length under a `nrprob.engines.sample.target.Target`, which
includes a function of the number of clusters. Parameters are integrated out or coded, so a move
only needs differences of L. Every move leaves the distribution invariant:

- *Gibbs*: the sweep updates samples in random order, ``block`` at a time. The sweep removes the
  samples of a block together, and samples the cluster of each sample of the block given all samples
  outside the block; the cluster may be a new one. The new labels of the block are accepted by the
  Metropolis-Hastings rule. Blocks of one sample are always accepted, as in the usual collapsed
  Gibbs sweep. Larger blocks are faster, since a block is one array operation.
- *Split or merge with a launch state*: two samples are chosen at random, independently of the
  state. If the two samples share a cluster, this cluster is split between them; else their clusters
  are merged. A split and the reverse merge use the same launch state. Hard assignments make this
  state from the two samples and the other samples of their clusters, regardless of the current
  labels. From this state, the sides of all other samples are resampled, for half of the samples at
  a time. Jain and Neal (2004) launch by Gibbs sweeps, and resample one sample at a time.
- *Split or merge with doubling*: the other samples are assigned in random order, 1, 2, 4, 8, ... at
  a time, given the previous assignments. Dahl (2005) assigns one sample at a time, which takes as
  many steps as there are samples.
- *Launched split or merge*, for Gaussian clusters: 2-means and hard EM on the samples of one or two
  clusters, followed by a restricted Gibbs scan, or Dahl's sequential assignment of one sample at a
  time; see `nrprob.engines.sample.launched_moves`. With up to 2,048 samples, this move replaces
  both moves above. With more samples, this move alternates with both moves above.
- *Swap*, with known groups: within one known group, two clusters exchange their samples. A cluster
  has the same label in all groups, so moves of a few samples hardly ever reach the exchanged state.

``jax.vmap`` vectorises chains, except for split-merge moves of many samples.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.sample.split_merge import (
    nothing_usual,
    plan_doubling,
    plan_launch,
    split_merges,
)
from nrprob.engines.sample.target import (
    Partition,
    Target,
    map_slots,
    occupied,
    pack_slots,
    replace_two,
    start,
    sum_cells,
)
from nrprob.engines.sample.uniforms import below, draw_categories, in_order


class Moves(NamedTuple):
    """Counts of proposed and accepted moves in one iteration, by type of move."""

    gibbs: jax.Array
    gibbs_accepted: jax.Array
    split: jax.Array
    split_accepted: jax.Array
    merge: jax.Array
    merge_accepted: jax.Array
    swap: jax.Array
    swap_accepted: jax.Array


def no_moves() -> Moves:
    """Return move counts that are all zero."""
    return Moves(*(jnp.zeros((), jnp.int32) for _ in Moves._fields))


# Gibbs


def gibbs(
    target: Target, state: Partition, key: jax.Array, block: int
) -> tuple[Partition, jax.Array, jax.Array]:
    """Gibbs sweep: update all labels once, ``block`` samples at a time.

    If samples have scale weights, cluster and scale weight of a sample are sampled jointly. All
    codes of features must be in ``target.terms``, and none in ``target.joint_codes``.

    Returns
    -------
    state : Partition
    count, accepted : numbers of proposed and accepted blocks
    """
    state = pack_slots(state)
    n_clusters, scales = target.n_slots, target.scales
    n_versions = 1 if scales is None else len(scales.weights)
    size = target.x.shape[0]
    n_rows = (target.x[:, -1] > 0).sum()
    n_blocks = -(-size // block)
    # One call for all random numbers: a program with a dozen calls compiles for long.
    u = jax.random.uniform(key, (2 + n_blocks * (block + 1),))
    order = in_order(u[:2], size, n_rows)
    v = jnp.log(u[2 : 2 + n_blocks])
    u = u[2 + n_blocks :].reshape(n_blocks, block)
    # Indices beyond the last sample read the last sample, and write nothing.
    order = jnp.pad(order, (0, n_blocks * block - size), constant_values=size)
    valid = (jnp.arange(order.size) < n_rows).reshape(n_blocks, block)
    order = order.reshape(n_blocks, block)
    x = jnp.where(valid[..., None], target.x[order], 0)
    group = target.group[order]
    before = state.labels[order]
    if scales is not None:  # a category is a cluster with one of the weights
        before = before * n_versions + scales.version[order]
        weight_nats = scales.nats[order]
    slots = jnp.arange(n_clusters * n_versions)[:, None]

    def sum_categories(rows, groups, category):
        if scales is None:
            return sum_cells(target, rows, groups, category)
        rows = scales.scale_rows(rows, category % n_versions)
        return sum_cells(target, rows, groups, category // n_versions)

    def category_costs(cells, opening_nats, allowed, j):
        """Increase (C, b) of the code length if the b samples of block ``j`` join each category.

        The C categories are the clusters, or all pairs of a cluster and a scale weight.
        """
        rows, groups = x[j], group[j]
        weights = () if scales is None else (scales.weights,)
        shape = (*(len(w) for w in weights), block)
        cost = map_slots(
            lambda part: target.joining(part, rows, groups, *weights), cells, allowed, *shape
        )
        if scales is None:
            return cost + opening_nats[:, None]
        return (cost + opening_nats[:, None, None] + weight_nats[j].T).reshape(-1, block)

    def update_block(j, carry):
        cells, length, after, accepted = carry
        take = partial(jax.lax.dynamic_index_in_dim, index=j, keepdims=False)
        rows, groups, old = take(x), take(group), take(before)
        # 1. Remove the block, and set emptied cells to exactly 0.
        less = cells - sum_categories(rows, groups, old)
        less = jnp.where(less[..., -1:] > 0.5, less, 0)
        is_occupied = occupied(less)
        # 2. Sample the category of each sample given all samples outside the block.
        k, new = is_occupied.sum(), jnp.argmin(is_occupied)
        opened = target.sizes[jnp.minimum(k + 1, n_clusters)] - jnp.where(k > 0, target.sizes[k], 0)
        may_open = (jnp.arange(n_clusters) == new) & ~is_occupied & jnp.isfinite(opened)
        allowed = is_occupied | may_open
        cost = category_costs(less, jnp.where(may_open, opened, 0), allowed, j)
        allowed = jnp.repeat(allowed, n_versions)[:, None]
        log_p = jnp.where(allowed, -target.scale * cost, -jnp.inf)
        category = jnp.where(take(valid), draw_categories(log_p, take(u)), old)
        more = less + sum_categories(rows, groups, category)
        put = partial(jax.lax.dynamic_update_index_in_dim, index=j, axis=0)
        if block == 1:
            return more, length, put(after, category), accepted + 1
        # 3. Metropolis-Hastings. The reverse move allows only one new cluster, which corresponds
        # to the cluster that the removal of the block emptied.
        emptied = (occupied(cells) & ~is_occupied).sum()
        reverse = jnp.where(
            is_occupied[old // n_versions], old, new * n_versions + old % n_versions
        )
        new_length = target.length(more)
        change = ((slots == reverse) * 1.0 - (slots == category)) * jnp.maximum(log_p, -1e300)
        change = change.sum(0)
        if scales is not None:
            both = jnp.stack([old, category], 1) % n_versions
            nats = jnp.take_along_axis(weight_nats[j], both, 1)
            change = change + target.scale * (nats[:, 0] - nats[:, 1])
        ratio = jnp.where(take(valid), change, 0).sum() + length - new_length
        accept = (emptied <= 1) & (v[j] < ratio)
        cells, length = jnp.where(accept, more, cells), jnp.where(accept, new_length, length)
        return cells, length, put(after, jnp.where(accept, category, old)), accepted + accept

    count = (-(-n_rows // block)).astype(jnp.int32)
    begin = state.cells, state.length, before, jnp.zeros((), jnp.int32)
    _, _, after, accepted = jax.lax.fori_loop(0, count, update_block, begin)
    if scales is not None:
        version = scales.version.at[order].set(after % n_versions, mode="drop")
        target = replace(target, scales=replace(scales, version=version))
        after = after // n_versions
    labels = state.labels.at[order].set(after, mode="drop")
    return start(target, labels), count, accepted


# Swap


def swap(target: Target, state: Partition, key: jax.Array) -> tuple[Partition, jax.Array]:
    """Propose to exchange the samples of two clusters within one known group.

    Returns the next state, and whether the proposal was accepted.
    """
    u = jax.random.uniform(key, (4,), minval=jnp.finfo(float).tiny)
    is_occupied = occupied(state.cells)
    k = is_occupied.sum()
    group = below(u[0], target.group.max() + 1)
    first = below(u[1], k)
    second = (first + 1 + below(u[2], jnp.maximum(k - 1, 1))) % k
    rank = jnp.cumsum(is_occupied) - 1
    a, b = (jnp.argmax(is_occupied & (rank == which)) for which in (first, second))
    two = state.cells[:, jnp.stack([a, b])]
    two = two.at[group].set(two[group, ::-1])
    cells, length = replace_two(target, state, a, b, two)
    # If a cluster becomes empty, the reverse move has another probability; this is rejected.
    same_slots = (occupied(cells) == is_occupied).all()
    accept = (a != b) & same_slots & (jnp.log(u[3]) < state.length - length)
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
    """Make one Gibbs sweep, and then the split-merge moves and swaps of `jumps`."""
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
    """Propose ``n_split_merge`` splits or merges, and as many swaps if there are known groups.

    Splits and merges alternate between the allocation plans `plan_launch`, with ``n_launch`` hard
    assignments, and `plan_doubling`. ``usual`` (2,) are the thresholds of usual partitions, of
    which few splits are evaluated; see `nrprob.engines.sample.split_merge`.
    """
    if not n_split_merge:
        return state, no_moves()
    pair_key, swap_key = jax.random.split(key)
    plans = partial(plan_launch, n=n_launch), plan_doubling
    usual = nothing_usual() if usual is None else usual
    state, counts = split_merges(target, state, pair_key, plans, n_split_merge, usual)
    moves = no_moves()._replace(**counts._asdict())

    def propose_swap(t, carry):
        state, moves = carry
        state, accept = swap(target, state, jax.random.fold_in(swap_key, t))
        accepted = moves.swap_accepted + accept.astype(jnp.int32)
        moves = moves._replace(swap=moves.swap + 1, swap_accepted=accepted)
        return state, moves

    if target.n_groups > 1:
        state, moves = jax.lax.fori_loop(0, n_split_merge, propose_swap, (state, moves))
    return state, moves
