"""Sampling of partitions: any sum of complete code lengths, as a distribution over clusterings.

The state is a set partition of the rows into 1 .. K clusters, and its probability is proportional
to ``exp(-scale * L)``, where L is what the terms of a `nrprob.engines.target.Target` charge plus a
function of the number of clusters. Parameters are coded, not sampled, so that nothing but
differences of L is needed. Moves leave it invariant, each by itself:

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

Chains are vectorised by ``jax.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.target import Odds, Partition, Target, occupied, start, sum_cells


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


# More than any number of rows, and prime: coprime to every one of them.
_PRIMES = 2**31 - np.asarray([1, 19, 61, 69, 85, 99, 105, 151, 159, 171, 225, 249, 295, 325, 379])


def _below(u: jax.Array, n: jax.Array | int) -> jax.Array:
    """Whole number below ``n`` from a uniform one."""
    return jnp.minimum((u * n).astype(int), n - 1)


def _order(u: jax.Array, size: int, n: jax.Array) -> jax.Array:
    """Numbers 0 .. n - 1 in a random order, then others up to ``size``; cheaper than by sorting.

    An arithmetic progression with random start and step, from uniforms (2,). Any law will do that
    does not look at the state.
    """
    t = jnp.arange(size)
    step = jnp.asarray(_PRIMES)[_below(u[0], len(_PRIMES))] % n
    return jnp.where(t < n, (_below(u[1], n) + t * step) % n, t)


def draw_categories(log_p: jax.Array, u: jax.Array) -> jax.Array:
    """Categories (b,) of unnormalised log probabilities (K, b), by inversion of uniforms (b,)."""
    p = jnp.exp(log_p - log_p.max(0))
    if p.shape[0] <= _FEW:
        return _inverted(p, u)[0]
    # Of many, some are looked at together, and then those among which the one is.
    parts = jnp.pad(p, ((0, -len(p) % _TOGETHER), (0, 0))).reshape(-1, _TOGETHER, p.shape[1])
    first, rest = _inverted(parts.sum(1), u)
    among = jnp.take_along_axis(parts, first[None, None], 0)[0]
    return jnp.minimum(first * _TOGETHER + _inverted(among, rest)[0], len(p) - 1)


_FEW, _TOGETHER = 64, 16


def _inverted(p: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Categories (b,) of weights (K, b), and where in their share of it the uniforms (b,) are."""
    sums = np.tril(np.ones((p.shape[0], p.shape[0]))) @ p
    whole = u * sums[-1]
    # A sum of rounded products may fall short of the next one by a bit where p is 0.
    at = jnp.minimum((sums <= whole).sum(0), p.shape[0] - 1).astype(jnp.int32)
    share, below = (jnp.take_along_axis(a, at[None], 0)[0] for a in (p, sums))
    return at, jnp.clip(1 - (below - whole) / jnp.where(share > 0, share, 1), 0, 1)


def gibbs(
    target: Target, state: Partition, key: jax.Array, block: int
) -> tuple[Partition, jax.Array, jax.Array]:
    """Visit all rows once, ``block`` at a time; returns numbers of blocks, and of accepted ones.

    Of rows that have several versions, cluster and version are drawn together.
    """
    n_clusters, scales = target.n_slots, target.scales
    n_versions = 1 if scales is None else len(scales.weights)
    size = target.x.shape[0]
    n_rows = (target.x[:, -1] > 0).sum()
    n_blocks = -(-size // block)
    # One call for all that is random: a program with a dozen of them compiles for long.
    u = jax.random.uniform(key, (2 + n_blocks * (block + 1),))
    order = _order(u[:2], size, n_rows)
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

    def joining(cells, opened, j):
        """What the rows of a block add to cells in every category (C, b)."""
        rows, groups = x[j], group[j]
        if scales is None:
            return target.joining(cells, rows, groups) + opened[:, None]
        cost = target.joining(cells, rows, groups, scales.weights)
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
        cost = joining(less, jnp.where(may_open, opened, 0), j)
        into = jnp.repeat(here | may_open, n_versions)[:, None]
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


# Split and merge


class _Pair(NamedTuple):
    """Rows ``i`` and ``j`` of clusters ``a`` and ``b`` that become one, or of one that becomes two.

    ``member`` (n',) are the other rows of these clusters, ``side`` the rows of ``b``, and ``seeds``
    (groups, 2, p) the cells of i and j alone.
    """

    i: jax.Array
    j: jax.Array
    a: jax.Array
    b: jax.Array
    together: jax.Array
    member: jax.Array
    side: jax.Array
    seeds: jax.Array


def two_rows(target: Target, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two rows by uniforms (4,): any two, or half of the time one and a partner of it."""
    n_rows = (target.x[:, -1] > 0).sum()
    i = _below(u[0], n_rows)
    j = (i + 1 + _below(u[1], jnp.maximum(n_rows - 1, 1))) % n_rows
    if target.partners is not None:
        near = target.partners[i, _below(u[2], target.partners.shape[1])]
        j = jnp.where(u[3] < 0.5, j, near)
    return i, j


def _choose(target: Target, state: Partition, u: jax.Array) -> _Pair:
    """Draw a pair of rows, by uniforms (4,)."""
    x, labels = target.x, state.labels
    real = x[:, -1] > 0
    i, j = two_rows(target, u)
    together = labels[i] == labels[j]
    a = labels[i]
    b = jnp.where(together, jnp.argmin(occupied(state.cells)), labels[j]).astype(labels.dtype)
    row = jnp.arange(x.shape[0])
    member = real & ((labels == a) | (labels == b)) & (row != i) & (row != j)
    seeds = jnp.zeros((target.n_groups, 2, x.shape[1]), x.dtype)
    seeds = seeds.at[target.group[i], 0].add(x[i]).at[target.group[j], 1].add(x[j])
    return _Pair(i, j, a, b, together, member, labels == b, seeds)


def _two_cells(target: Target, pair: _Pair, side: jax.Array) -> jax.Array:
    """Cells (groups, 2, p) of the chosen rows and of the members on their sides (n',)."""
    members = jnp.where(pair.member[:, None], target.x, 0)
    if target.n_groups == 1:
        both = jnp.stack([~side, side]).astype(members.dtype) @ members
        return pair.seeds + both[None]
    return pair.seeds.at[target.group, side.astype(jnp.int32)].add(members)


class _Plan(NamedTuple):
    """How members take their sides, one step after another.

    Attributes
    ----------
    turn : (n',) step at which a member draws its side
    count : steps
    n_hard : steps before any draw, at which every row has the side that is nearer
    whole : whether members count on the first side before the first step
    others : whether a member sees the sides of all others, or only of those who drew before it
    usual : (groups, 2, p) what is seen beside the chosen rows and the members
    """

    turn: jax.Array
    count: jax.Array
    n_hard: jax.Array
    whole: jax.Array
    others: jax.Array
    usual: jax.Array


def _launched(target: Target, pair: _Pair, u: jax.Array, n: int) -> _Plan:
    """A state that depends on the two rows and the members alone, then draws of half of them.

    Half of the time hard assignments divide the members between the two rows, ``n`` times over;
    else all of them begin with the first row, and what leaves is near the second. Then one half of
    the members, and after it the other, draw their sides given those of the others.
    """
    size = target.x.shape[0]
    half = _order(u[1:3], size, jnp.asarray(size)) % 2
    n_hard = jnp.asarray(n, jnp.int32)
    turn = n_hard + half.astype(jnp.int32)
    return _Plan(
        turn, n_hard + 2, n_hard, u[0] < 0.5, jnp.asarray(True), jnp.zeros_like(pair.seeds)
    )


_USUAL = 4.0  # rows


def _doubling(target: Target, pair: _Pair, u: jax.Array) -> _Plan:
    """Members draw in random order, 1, 2, 4, 8, ... at a time, given those before them.

    Each draws as the sides that were drawn before it say. So clusters that overlap can merge: of
    the way back, every row but a few sees what the two are like.
    """
    size = target.x.shape[0]
    members = jnp.nonzero(pair.member, size=size, fill_value=0)[0]
    n_members = pair.member.sum()
    position = jnp.arange(size)
    order = members[_order(u, size, jnp.maximum(n_members, 1))]
    order = jnp.where(position < n_members, order, size)
    doubled = 31 - jax.lax.clz(1 + position.astype(jnp.int32))  # whole logarithms to base 2
    turn = jnp.zeros(size, jnp.int32).at[order].set(doubled, mode="drop")
    count = jnp.where(n_members > 0, turn[order[jnp.maximum(n_members - 1, 0)]] + 1, 0)

    # A few rows of the usual kind on either side, or the first ones would be taken at their word.
    both = _two_cells(target, pair, pair.side).sum(1)
    usual = jnp.repeat(both[:, None] * (_USUAL / both[..., -1].sum()), 2, 1)
    no = jnp.asarray(False)
    return _Plan(turn, count, jnp.zeros((), jnp.int32), no, no, usual)


def _allocate(
    target: Target, pair: _Pair, odds: Odds, plan: _Plan, noise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cells of the two, the sides, and the log probability that the members draw them.

    One loop whatever the plan, so that ``odds`` are compiled once.
    """

    def step(t, carry):
        side, logits = carry
        hard, own = t < plan.n_hard, plan.turn == t
        seen = jnp.where(plan.others, ~own, plan.turn < t)
        seen = pair.member & jnp.where(hard, plan.whole | (t > 0), seen)
        cells = _two_cells(target, pair._replace(member=seen), side)
        logit = odds(cells + plan.usual, seen, side)
        drawn = jnp.where(pair.together, noise < logit, pair.side)
        now = pair.member & own & ~hard
        side = jnp.where(hard, logit > 0, jnp.where(now, drawn, side))
        return side, jnp.where(now, logit, logits)

    begin = jnp.zeros_like(pair.side), jnp.zeros_like(noise)
    side, logits = jax.lax.fori_loop(0, plan.count, step, begin)
    mine = jax.nn.log_sigmoid(jnp.where(side, logits, -logits))
    return _two_cells(target, pair, side), side, jnp.where(pair.member, mine, 0).sum()


Allocation: TypeAlias = Callable[..., _Plan]


def split_merge(
    target: Target, state: Partition, key: jax.Array, kinds: Sequence[Allocation], which: jax.Array
) -> tuple[Partition, jax.Array, jax.Array]:
    """Propose to split or to merge; returns whether it was a split, and whether it was accepted.

    ``which`` of the ``kinds`` of allocation it is by must not depend on the state.
    """
    u = jax.random.uniform(key, (8 + target.x.shape[0],), minval=jnp.finfo(float).tiny)
    pair = _choose(target, state, u[:4])
    noise = jnp.log(u[8:]) - jnp.log1p(-u[8:])  # logistic
    odds = target.odds(state, pair.a, pair.b, pair.member)
    plan = jax.lax.switch(which, [partial(kind, target, pair) for kind in kinds], u[4:])
    cells, side, log_q = _allocate(target, pair, odds, plan, noise)
    split = pair.together
    joint = jnp.stack([cells.sum(1), jnp.zeros_like(cells[:, 0])], 1)
    changed = jnp.where(split, cells, joint)
    # Without an empty slot, b is an occupied one.
    possible = (pair.i != pair.j) & ~(split & occupied(state.cells)[pair.b])
    proposed = state.cells.at[:, pair.a].set(changed[:, 0]).at[:, pair.b].set(changed[:, 1])
    length = target.length(proposed)
    ratio = state.length - length + jnp.where(split, -log_q, log_q)
    accept = possible & (jnp.log(u[7]) < ratio)
    labels = jnp.where(pair.member, jnp.where(split & side, pair.b, pair.a), state.labels)
    labels = labels.at[pair.j].set(jnp.where(split, pair.b, pair.a))
    moved = Partition(labels, proposed, length)
    state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), moved, state)
    return state, split, accept


# Swap


def swap(target: Target, state: Partition, key: jax.Array) -> tuple[Partition, jax.Array]:
    """Propose that two clusters exchange their rows of one known group."""
    u = jax.random.uniform(key, (4,), minval=jnp.finfo(float).tiny)
    here = occupied(state.cells)
    k = here.sum()
    group = _below(u[0], target.group.max() + 1)
    first = _below(u[1], k)
    second = (first + 1 + _below(u[2], jnp.maximum(k - 1, 1))) % k
    rank = jnp.cumsum(here) - 1
    a, b = (jnp.argmax(here & (rank == which)) for which in (first, second))
    mine = state.cells[group]
    cells = state.cells.at[group, a].set(mine[b]).at[group, b].set(mine[a])
    length = target.length(cells)
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
) -> tuple[Partition, Moves]:
    """One sweep of Gibbs moves, then of `jumps`."""
    gibbs_key, jump_key = jax.random.split(key)
    state, n_blocks, accepted = gibbs(target, state, gibbs_key, block)
    state, moves = jumps(target, state, jump_key, n_split_merge=n_split_merge, n_launch=n_launch)
    return state, moves._replace(gibbs=n_blocks, gibbs_accepted=accepted)


def jumps(
    target: Target, state: Partition, key: jax.Array, *, n_split_merge: int, n_launch: int
) -> tuple[Partition, Moves]:
    """``n_split_merge`` proposals of a split or a merge, of both kinds in turn, and of swaps."""
    if not n_split_merge:
        return state, no_moves()
    pair_key, swap_key = jax.random.split(key)
    allocations = partial(_launched, n=n_launch), _doubling

    def propose(t, carry):
        state, moves = carry
        now = jax.random.fold_in(pair_key, t)
        state, split, accept = split_merge(target, state, now, allocations, t % 2)
        one = split.astype(jnp.int32), (~split).astype(jnp.int32), accept.astype(jnp.int32)
        moves = moves._replace(
            split=moves.split + one[0],
            split_accepted=moves.split_accepted + one[0] * one[2],
            merge=moves.merge + one[1],
            merge_accepted=moves.merge_accepted + one[1] * one[2],
        )
        return state, moves

    def exchange(t, carry):
        state, moves = carry
        state, accept = swap(target, state, jax.random.fold_in(swap_key, t))
        one = accept.astype(jnp.int32)
        moves = moves._replace(swap=moves.swap + 1, swap_accepted=moves.swap_accepted + one)
        return state, moves

    state, moves = jax.lax.fori_loop(0, n_split_merge, propose, (state, no_moves()))
    if target.n_groups > 1:
        state, moves = jax.lax.fori_loop(0, n_split_merge, exchange, (state, moves))
    return state, moves
