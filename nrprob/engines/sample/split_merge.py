"""Split-merge moves of the one or two clusters that contain two random samples.

The *members* of a move are the other samples of the cluster, or of the two clusters. The *side* of
a member is one of the two clusters of a split, each of which contains one of the two samples. A
split samples the side of each member. The reverse probability of a merge is the probability that a
split samples the current sides; see `nrprob.engines.sample.moves` for the proposal distributions.

Most proposals are rejected. With many samples, only proposals that may be accepted are evaluated.
The acceptance ratio of a merge contains the probability of the sides, which is at most 1. So the
difference of description lengths alone rejects most merges. A split has no such bound. Therefore a
split with acceptance ratio r is accepted with probability min(c, r) instead of min(1, r). The merge
that undoes the split is accepted with probability min(1, c / r) instead of min(1, 1 / r). Detailed
balance holds for every cap c that depends only on the partition in which the two clusters are one.
If the uniform variate of the acceptance step exceeds c, the split is not evaluated. For usual
partitions, c is `ACCEPTANCE_CAP`, since ratios of their splits are far below 0.1; chains determine
the thresholds of usual partitions during warm-up. For a partition with fewer clusters than usual,
or with a longer description length, c is 1. Members are gathered into arrays of a few sizes, so the
cost of a move does not grow with the number of all samples.

Shapes: n' samples, the last of which are padding; m members; p statistics of a sample; ``groups``
known groups. The *cells* of a cluster are its statistics by known group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap, sequential_vmap

from nrprob.engines.sample.launched_moves import (
    MAX_MEMBERS,
    propose_launched_move,
    unknown_pairs,
)
from nrprob.engines.sample.target import Odds, Partition, Target, occupied, replace_two
from nrprob.engines.sample.uniforms import below, in_order


class Pair(NamedTuple):
    """Two random samples ``i`` and ``j`` of a split-merge move, and their clusters ``a`` and ``b``.

    If both samples are in one cluster, ``together`` is true, and ``b`` is an empty slot. If no slot
    is empty, ``b`` is an occupied slot, and the split is impossible.
    """

    i: jax.Array
    j: jax.Array
    a: jax.Array
    b: jax.Array
    together: jax.Array


class _Members(NamedTuple):
    """Samples of the clusters of a move, except for the two chosen samples; padded to m.

    Attributes
    ----------
    rows : (m,) indices of the samples
    real : (m,) false on padding
    x : (m, p) statistics of the samples
    group : (m,) known groups of the samples
    side : (m,) whether the sample is in cluster ``b`` of the `Pair`, rather than in ``a``
    seeds : (groups, 2, p) statistics of the two chosen samples alone, by known group
    """

    rows: jax.Array
    real: jax.Array
    x: jax.Array
    group: jax.Array
    side: jax.Array
    seeds: jax.Array

    def sum_cells(self, seen: jax.Array, side: jax.Array) -> jax.Array:
        """Sums of statistics (groups, 2, p) by known group and side, of chosen samples and members.

        The mask ``seen`` (m,) selects the members, and ``side`` (m,) has their sides.
        """
        x = jnp.where(seen[:, None], self.x, 0)
        if len(self.seeds) == 1:
            both = jnp.stack([~side, side]).astype(x.dtype) @ x
            return self.seeds + both[None]
        return self.seeds.at[self.group, side.astype(jnp.int32)].add(x)


def draw_pair_of_rows(target: Target, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Choose two random samples by uniform variates ``u`` (4,), and return their indices.

    If the target has ``partners``, the second sample is a partner of the first one with probability
    1/2.
    """
    n_rows = (target.x[:, -1] > 0).sum()
    i = below(u[0], n_rows)
    j = (i + 1 + below(u[1], jnp.maximum(n_rows - 1, 1))) % n_rows
    if target.partners is not None:
        near = target.partners[i, below(u[2], target.partners.shape[1])]
        j = jnp.where(u[3] < 0.5, j, near)
    return i, j


def _choose_pair(target: Target, state: Partition, u: jax.Array) -> Pair:
    """Choose two random samples by uniform variates ``u`` (4,), and look up their clusters."""
    i, j = draw_pair_of_rows(target, u)
    a, b = state.labels[i], state.labels[j]
    new = jnp.argmin(occupied(state.cells)).astype(b.dtype)
    return Pair(i, j, a, jnp.where(a == b, new, b), a == b)


def _is_member(state: Partition, pair: Pair, real: jax.Array) -> jax.Array:
    """Whether samples (n',) are members of the move; ``real`` (n',) is false on padding."""
    row, labels = jnp.arange(len(state.labels)), state.labels
    inside = (labels == pair.a) | (labels == pair.b)
    return real & inside & (row != pair.i) & (row != pair.j)


def _gather_members(
    target: Target, state: Partition, pair: Pair, member: jax.Array, size: int
) -> _Members:
    """Gather the samples in the mask ``member`` (n',), at most ``size``, into padded arrays."""
    x, n = target.x, len(member)
    rows = jnp.nonzero(member, size=size, fill_value=n)[0]
    seeds = jnp.zeros((target.n_groups, 2, x.shape[1]), x.dtype)
    seeds = seeds.at[target.group[pair.i], 0].add(x[pair.i])
    seeds = seeds.at[target.group[pair.j], 1].add(x[pair.j])
    near = jnp.minimum(rows, n - 1)
    side = state.labels[near] == pair.b
    return _Members(rows, rows < n, x[near], target.group[near], side, seeds)


class _Plan(NamedTuple):
    """Allocation plan: how a split assigns sides to the members, in several steps.

    Attributes
    ----------
    turn : (m,) step at which the side of a member is sampled
    count : number of steps
    n_hard : number of steps of hard assignments before the first side is sampled
    joined : whether the first hard assignment conditions on all members being on the first side;
        else, on the two chosen samples alone
    others : whether a step samples sides conditionally on the sides of all members of other steps;
        else, conditionally on the sides that earlier steps have sampled
    prior_cells : (groups, 2, p) statistics that are added to both sides
    """

    turn: jax.Array
    count: jax.Array
    n_hard: jax.Array
    joined: jax.Array
    others: jax.Array
    prior_cells: jax.Array


def plan_launch(members: _Members, u: jax.Array, n: int) -> _Plan:
    """Plan an allocation from a launch state, which does not depend on the current sides.

    ``n`` hard assignments divide the members between the two chosen samples. With probability 1/2,
    the first hard assignment conditions on all members being on the first side; else, on the two
    samples alone. Then the sides of one half of the members are resampled, given the sides of the
    other half. After that, the sides of the other half are resampled. ``u`` are uniform variates.
    """
    size = len(members.rows)
    half = in_order(u[1:3], size, jnp.asarray(size)) % 2
    n_hard = jnp.asarray(n, jnp.int32)
    turn = n_hard + half.astype(jnp.int32)
    return _Plan(
        turn, n_hard + 2, n_hard, u[0] < 0.5, jnp.asarray(True), jnp.zeros_like(members.seeds)
    )


_PRIOR_COUNT = 4.0  # weight, in samples, of the average statistics that each side begins with


def plan_doubling(members: _Members, u: jax.Array) -> _Plan:
    """Plan to assign members in random order, 1, 2, 4, 8, ... at a time, given the previous sides.

    This plan allows overlapping clusters to merge: in the reverse move, most members are assigned
    given accurate statistics of the two clusters. ``u`` are uniform variates.
    """
    size, n = len(members.rows), members.real.sum()
    order = in_order(u, size, jnp.maximum(n, 1))
    doubled = 31 - jax.lax.clz(1 + jnp.arange(size, dtype=jnp.int32))  # floor of log2
    turn = jnp.zeros(size, jnp.int32).at[order].set(doubled)
    count = jnp.where(n > 0, doubled[jnp.maximum(n - 1, 0)] + 1, 0)

    # Each side begins with the average statistics of all members, weighted as a few samples.
    # Otherwise the first members alone would determine the sides.
    both = members.sum_cells(members.real, members.side).sum(1)
    prior_cells = jnp.repeat(both[:, None] * (_PRIOR_COUNT / both[..., -1].sum()), 2, 1)
    no = jnp.asarray(False)
    return _Plan(turn, count, jnp.zeros((), jnp.int32), no, no, prior_cells)


def _allocate_members(
    members: _Members, split: jax.Array, odds: Odds, plan: _Plan, noise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sample the sides of the members for a split, or evaluate their current sides for a merge.

    ``noise`` (m,) are logistic variates. Returns the statistics (groups, 2, p) of the two clusters,
    the sides (m,), and the log probability that a split samples these sides. All plans share one
    loop, so ``odds`` are compiled once.
    """

    def draw_sides(t, carry):
        side, logits = carry
        hard, is_turn = t < plan.n_hard, plan.turn == t
        seen = jnp.where(plan.others, ~is_turn, plan.turn < t)
        seen = members.real & jnp.where(hard, plan.joined | (t > 0), seen)
        logit = odds(members.sum_cells(seen, side) + plan.prior_cells, seen, side)
        new_side = jnp.where(split, noise < logit, members.side)
        is_drawn = is_turn & ~hard
        side = jnp.where(hard, logit > 0, jnp.where(is_drawn, new_side, side))
        return side, jnp.where(is_drawn, logit, logits)

    begin = jnp.zeros_like(members.side), jnp.zeros_like(noise)
    side, logits = jax.lax.fori_loop(0, plan.count, draw_sides, begin)
    log_p = jax.nn.log_sigmoid(jnp.where(side, logits, -logits))
    return members.sum_cells(members.real, side), side, jnp.where(members.real, log_p, 0).sum()


Allocation: TypeAlias = Callable[..., _Plan]


def split_merge(
    target: Target, state: Partition, pair: Pair, u: jax.Array, key: jax.Array,
    plans: Sequence[Allocation], which: jax.Array, usual: jax.Array | None = None,
) -> tuple[Partition, jax.Array]:  # fmt: skip
    """Propose to split the cluster of a pair of samples, or to merge their two clusters.

    ``u`` (4,) are uniform variates. ``which`` is the index of the plan that allocates the members;
    it must not depend on the state. ``usual`` (2,) are the thresholds of usual partitions, whose
    splits are accepted with probability `ACCEPTANCE_CAP` at most. If ``usual`` is None, no
    acceptance probability is capped.

    Returns
    -------
    state : Partition
    accepted : whether ``state`` is the proposed state
    """
    member = _is_member(state, pair, target.x[:, -1] > 0)
    odds_of = target.odds(state, pair.a, pair.b)

    def allocate(size: int) -> tuple[jax.Array, ...]:
        members = _gather_members(target, state, pair, member, size)
        v = jax.random.uniform(key, (size,), minval=jnp.finfo(float).tiny)
        noise = jnp.log(v) - jnp.log1p(-v)  # logistic
        plan = jax.lax.switch(which, [partial(plan_of, members) for plan_of in plans], u)
        odds = odds_of(members.x, members.group)
        cells, side, log_q = _allocate_members(members, pair.together, odds, plan, noise)
        sides = state.labels.at[members.rows].set(jnp.where(side, pair.b, pair.a), mode="drop")
        return cells, sides, log_q

    sizes = _member_sizes(len(member))
    enough = (member.sum() > np.asarray(sizes[:-1], int)).sum()
    cells, sides, log_q = jax.lax.switch(enough, [partial(allocate, size) for size in sizes])
    split = pair.together
    joint = jnp.stack([cells.sum(1), jnp.zeros_like(cells[:, 0])], 1)
    changed = jnp.where(split, cells, joint)
    proposed, length = replace_two(target, state, pair.a, pair.b, changed)
    cap = _acceptance_cap(state, pair, length, usual)
    ratio = state.length - length + jnp.where(split, -log_q, jnp.log(cap) + log_q)
    accept = ~_is_excluded(state, pair, u, cap) & (jnp.log(u[3]) < ratio)
    labels = jnp.where(split, sides, jnp.where(member, pair.a, state.labels))
    labels = labels.at[pair.j].set(jnp.where(split, pair.b, pair.a))
    moved = state._replace(labels=labels, cells=proposed, length=length)
    return jax.tree.map(partial(jnp.where, accept), moved, state), accept


def _acceptance_cap(
    state: Partition, pair: Pair, joint: jax.Array, usual: jax.Array | None
) -> jax.Array | float:
    """Cap c: largest acceptance probability of a split, and factor of the ratio of the merge.

    The cap may depend only on the partition in which the two clusters are merged. If the two
    clusters are separate in ``state``, ``joint`` is the description length of the merged partition.
    """
    if usual is None:
        return 1.0
    k = occupied(state.cells).sum() - ~pair.together
    length = jnp.where(pair.together, state.length, joint)
    return jnp.where((k >= usual[0]) & (length <= usual[1] + _LENGTH_MARGIN), ACCEPTANCE_CAP, 1.0)


def _is_excluded(state: Partition, pair: Pair, u: jax.Array, cap: jax.Array | float) -> jax.Array:
    """Whether a proposal for ``pair`` is impossible, or is a split that the cap rejects."""
    # If there is no empty slot, b is an occupied one, and a split is impossible.
    no_split = occupied(state.cells)[pair.b] | (u[3] >= cap)
    return (pair.i == pair.j) | (pair.together & no_split)


def surely_rejected(
    target: Target, state: Partition, pair: Pair, u: jax.Array, usual: jax.Array
) -> jax.Array:
    """Whether a proposal for ``pair`` is rejected for all possible sides of its members.

    ``u`` (4,) are the uniform variates of the proposal, and ``usual`` (2,) thresholds as in
    `split_merge`.
    """
    joint = state.cells[:, pair.a] + state.cells[:, pair.b]
    joint = jnp.stack([joint, jnp.zeros_like(joint)], 1)
    length = replace_two(target, state, pair.a, pair.b, joint)[1]
    cap = _acceptance_cap(state, pair, length, usual)
    too_long = ~(jnp.log(u[3]) < state.length - length + jnp.log(cap))
    return _is_excluded(state, pair, u, cap) | (~pair.together & too_long)


# With at least `_SEVERAL` samples, chains propose moves in sequence. With at least `_MANY` samples,
# a third program is compiled.
_SEVERAL, _MANY = 128, 512
_FEW_CHAINS = 16  # number of chains up to which launched moves are made in sequence
ACCEPTANCE_CAP = 0.1  # for splits of usual partitions
_LENGTH_MARGIN = 20.0  # nats by which usual partitions may exceed the typical length


def nothing_usual() -> jax.Array:
    """Initial thresholds of usual partitions: no partition counts as usual."""
    return jnp.asarray([jnp.inf, -jnp.inf])


def _member_sizes(n: int) -> tuple[int, ...]:
    """Capacities of padded arrays of members, given ``n`` samples; each has a compiled program."""
    if n < _SEVERAL:
        return (n,)
    parts = (3,) if n < _MANY else (8, 3)
    return (*(max(n // part, 1) for part in parts), n)


def few_in_sequence(function: Callable[..., Any]) -> Callable[..., Any]:
    """Change `jax.vmap` of a function to a loop if there are at most `_FEW_CHAINS` chains."""
    result = custom_vmap(function)

    @result.def_vmap
    def run_batch(axis_size, in_batched, *args):
        if axis_size <= _FEW_CHAINS:
            return sequential_vmap(function).vmap_rule(axis_size, in_batched, *args)
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(in_batched))
        outputs = jax.vmap(function, in_axes=axes)(*args)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return result


class MoveCounts(NamedTuple):
    """Counts of proposed and accepted splits and merges."""

    split: jax.Array
    split_accepted: jax.Array
    merge: jax.Array
    merge_accepted: jax.Array


def split_merges(
    target: Target, state: Partition, key: jax.Array, plans: Sequence[Allocation], count: int,
    usual: jax.Array,
) -> tuple[Partition, MoveCounts]:  # fmt: skip
    """Propose ``count`` splits or merges, by the allocation ``plans`` in turn.

    If the target has a launch model and at most `MAX_MEMBERS` samples, launched moves replace the
    moves of this module. If the target has a launch model and more samples, both kinds of moves
    alternate. ``usual`` (2,) are the thresholds of usual partitions: a minimum number of clusters,
    and a typical description length.
    """
    size = target.x.shape[0]
    sequential = size >= _SEVERAL
    launched = target.launch is not None

    def run_moves(target, state, key, usual):
        usual = usual if sequential else None  # with few samples, a cap saves no time
        choice_key, side_key = jax.random.split(key)
        u = jax.random.uniform(choice_key, (count, 8), minval=jnp.finfo(float).tiny)

        def pair_move(t, state, pairs):
            pair, v = _choose_pair(target, state, u[t, :4]), u[t, 4:]
            which = (t // 2 if launched else t) % len(plans)

            def evaluate(state):
                now = jax.random.fold_in(side_key, t)
                return split_merge(target, state, pair, v, now, plans, which, usual)

            def reject(state):
                return state, jnp.asarray(False)

            if sequential:
                rejected = surely_rejected(target, state, pair, v, usual)
                state, accept = jax.lax.cond(rejected, reject, evaluate, state)
            else:
                state, accept = evaluate(state)
            return state, pairs._replace(stale=pairs.stale | accept), pair.together, accept

        def launched_move(t, state, pairs):
            return launch(target, state, pairs, jax.random.fold_in(side_key, t))

        def propose_move(t, carry):
            state, pairs, moves = carry
            if not launched:
                result = pair_move(t, state, pairs)
            elif size <= MAX_MEMBERS:
                result = launched_move(t, state, pairs)
            else:
                result = jax.lax.cond(t % 2 == 0, pair_move, launched_move, t, state, pairs)
            state, pairs, split, accept = result
            counts = split, split & accept, ~split, ~split & accept
            more = MoveCounts(*(c.astype(jnp.int32) for c in counts))
            return state, pairs, jax.tree.map(jnp.add, moves, more)

        nothing = MoveCounts(*(jnp.zeros((), jnp.int32) for _ in MoveCounts._fields))
        pairs = unknown_pairs(target)
        state, _, moves = jax.lax.fori_loop(0, count, propose_move, (state, pairs, nothing))
        return state, moves

    launch = propose_launched_move if sequential else few_in_sequence(propose_launched_move)
    # If chains were vectorised, all of them would wait for the longest move among them.
    return (sequential_vmap(run_moves) if sequential else run_moves)(target, state, key, usual)
