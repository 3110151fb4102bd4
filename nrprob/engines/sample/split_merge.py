"""Splits and merges: two rows are drawn, and their cluster is cut in two, or theirs become one.

The other rows of the cluster, or of the two, are its members. A split draws the sides that these
take, and a merge has the probability that it would have drawn those that there are. Of the ways of
drawing `nrprob.engines.sample.moves` speaks.

Most proposals come to nothing. Of many rows those are looked at that may not, and no others: a
merge has that probability as a factor of its ratio, 1 at most, so that its length alone refuses
most of them. A split has no such bound, so that it is given one: of ratio r it is accepted with
probability min(p, r) in place of min(1, r), and the merge that undoes it with min(1, p / r), which
balances as well, whatever p depends on in the partition where the two are one. Beyond p nothing is
looked at. Where there is nothing to split, as chains find when they have warmed up, ratios are far
below .1, and p is that; it is 1 of what has fewer clusters than is usual, or a longer length. And
members are gathered, so that what they cost does not grow with all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from nrprob.engines.sample.target import Odds, Partition, Target, occupied, replace_two
from nrprob.engines.sample.uniforms import below, in_order


class Pair(NamedTuple):
    """Rows ``i`` and ``j`` of clusters ``a`` and ``b`` that become one, or of one that becomes two.

    ``b`` is then an empty slot, or an occupied one where there is none.
    """

    i: jax.Array
    j: jax.Array
    a: jax.Array
    b: jax.Array
    together: jax.Array


class _Members(NamedTuple):
    """Members: their ``rows`` (m,), whether there is one (m,), statistics, known group, and side.

    The side says whether it is a row of ``b``. ``seeds`` (groups, 2, p) are the cells of the two
    rows alone.
    """

    rows: jax.Array
    there: jax.Array
    x: jax.Array
    group: jax.Array
    side: jax.Array
    seeds: jax.Array

    def cells(self, seen: jax.Array, side: jax.Array) -> jax.Array:
        """Cells (groups, 2, p) of the two rows, and of the members that are ``seen`` (m,)."""
        x = jnp.where(seen[:, None], self.x, 0)
        if len(self.seeds) == 1:
            both = jnp.stack([~side, side]).astype(x.dtype) @ x
            return self.seeds + both[None]
        return self.seeds.at[self.group, side.astype(jnp.int32)].add(x)


def two_rows(target: Target, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two rows by uniforms (4,): any two, or half of the time one and a partner of it."""
    n_rows = (target.x[:, -1] > 0).sum()
    i = below(u[0], n_rows)
    j = (i + 1 + below(u[1], jnp.maximum(n_rows - 1, 1))) % n_rows
    if target.partners is not None:
        near = target.partners[i, below(u[2], target.partners.shape[1])]
        j = jnp.where(u[3] < 0.5, j, near)
    return i, j


def _choose(target: Target, state: Partition, u: jax.Array) -> Pair:
    """Draw a pair of rows, by uniforms (4,)."""
    i, j = two_rows(target, u)
    a, b = state.labels[i], state.labels[j]
    new = jnp.argmin(occupied(state.cells)).astype(b.dtype)
    return Pair(i, j, a, jnp.where(a == b, new, b), a == b)


def _member(state: Partition, pair: Pair, real: jax.Array) -> jax.Array:
    """Whether rows (n',) are members."""
    row, labels = jnp.arange(len(state.labels)), state.labels
    inside = (labels == pair.a) | (labels == pair.b)
    return real & inside & (row != pair.i) & (row != pair.j)


def _gathered(
    target: Target, state: Partition, pair: Pair, member: jax.Array, size: int
) -> _Members:
    """The members, of whom there are ``size`` at most."""
    x, n = target.x, len(member)
    rows = jnp.nonzero(member, size=size, fill_value=n)[0]
    seeds = jnp.zeros((target.n_groups, 2, x.shape[1]), x.dtype)
    seeds = seeds.at[target.group[pair.i], 0].add(x[pair.i])
    seeds = seeds.at[target.group[pair.j], 1].add(x[pair.j])
    near = jnp.minimum(rows, n - 1)
    side = state.labels[near] == pair.b
    return _Members(rows, rows < n, x[near], target.group[near], side, seeds)


class _Plan(NamedTuple):
    """How members take their sides, one step after another.

    Attributes
    ----------
    turn : (m,) step at which a member draws its side
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


def launched(members: _Members, u: jax.Array, n: int) -> _Plan:
    """A state that depends on the two rows and the members alone, then draws of half of them.

    Half of the time hard assignments divide the members between the two rows, ``n`` times over;
    else all of them begin with the first row, and what leaves is near the second. Then one half of
    the members, and after it the other, draw their sides given those of the others.
    """
    size = len(members.rows)
    half = in_order(u[1:3], size, jnp.asarray(size)) % 2
    n_hard = jnp.asarray(n, jnp.int32)
    turn = n_hard + half.astype(jnp.int32)
    return _Plan(
        turn, n_hard + 2, n_hard, u[0] < 0.5, jnp.asarray(True), jnp.zeros_like(members.seeds)
    )


_USUAL = 4.0  # rows


def doubling(members: _Members, u: jax.Array) -> _Plan:
    """Members draw in random order, 1, 2, 4, 8, ... at a time, given those before them.

    Each draws as the sides that were drawn before it say. So clusters that overlap can merge: of
    the way back, every row but a few sees what the two are like.
    """
    size, n = len(members.rows), members.there.sum()
    order = in_order(u, size, jnp.maximum(n, 1))
    doubled = 31 - jax.lax.clz(1 + jnp.arange(size, dtype=jnp.int32))  # whole logarithms to base 2
    turn = jnp.zeros(size, jnp.int32).at[order].set(doubled)
    count = jnp.where(n > 0, doubled[jnp.maximum(n - 1, 0)] + 1, 0)

    # A few rows of the usual kind on either side, or the first ones would be taken at their word.
    both = members.cells(members.there, members.side).sum(1)
    usual = jnp.repeat(both[:, None] * (_USUAL / both[..., -1].sum()), 2, 1)
    no = jnp.asarray(False)
    return _Plan(turn, count, jnp.zeros((), jnp.int32), no, no, usual)


def _allocate(
    members: _Members, split: jax.Array, odds: Odds, plan: _Plan, noise: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cells of the two, the sides, and the log probability that the members draw them.

    One loop whatever the plan, so that ``odds`` are compiled once.
    """

    def step(t, carry):
        side, logits = carry
        hard, own = t < plan.n_hard, plan.turn == t
        seen = jnp.where(plan.others, ~own, plan.turn < t)
        seen = members.there & jnp.where(hard, plan.whole | (t > 0), seen)
        logit = odds(members.cells(seen, side) + plan.usual, seen, side)
        drawn = jnp.where(split, noise < logit, members.side)
        now = own & ~hard
        side = jnp.where(hard, logit > 0, jnp.where(now, drawn, side))
        return side, jnp.where(now, logit, logits)

    begin = jnp.zeros_like(members.side), jnp.zeros_like(noise)
    side, logits = jax.lax.fori_loop(0, plan.count, step, begin)
    mine = jax.nn.log_sigmoid(jnp.where(side, logits, -logits))
    return members.cells(members.there, side), side, jnp.where(members.there, mine, 0).sum()


Allocation: TypeAlias = Callable[..., _Plan]


def split_merge(
    target: Target, state: Partition, pair: Pair, u: jax.Array, key: jax.Array,
    kinds: Sequence[Allocation], which: jax.Array, usual: jax.Array | None = None,
) -> tuple[Partition, jax.Array]:  # fmt: skip
    """Propose to split the cluster of a pair, or to merge theirs, by uniforms (4,) and a key.

    ``which`` of the ``kinds`` of allocation it is by must not depend on the state.
    Splits of what is ``usual`` are accepted with probability `_MOST` at most; None looks at all.

    Returns
    -------
    state : Partition
    accepted : whether it is the proposed one
    """
    member = _member(state, pair, target.x[:, -1] > 0)
    odds_of = target.odds(state, pair.a, pair.b)

    def allocated(size: int) -> tuple[jax.Array, ...]:
        members = _gathered(target, state, pair, member, size)
        v = jax.random.uniform(key, (size,), minval=jnp.finfo(float).tiny)
        noise = jnp.log(v) - jnp.log1p(-v)  # logistic
        plan = jax.lax.switch(which, [partial(kind, members) for kind in kinds], u)
        odds = odds_of(members.x, members.group)
        cells, side, log_q = _allocate(members, pair.together, odds, plan, noise)
        sides = state.labels.at[members.rows].set(jnp.where(side, pair.b, pair.a), mode="drop")
        return cells, sides, log_q

    sizes = _sizes(len(member))
    enough = (member.sum() > np.asarray(sizes[:-1], int)).sum()
    cells, sides, log_q = jax.lax.switch(enough, [partial(allocated, size) for size in sizes])
    split = pair.together
    joint = jnp.stack([cells.sum(1), jnp.zeros_like(cells[:, 0])], 1)
    changed = jnp.where(split, cells, joint)
    proposed, length = replace_two(target, state, pair.a, pair.b, changed)
    most = _at_most(state, pair, length, usual)
    ratio = state.length - length + jnp.where(split, -log_q, jnp.log(most) + log_q)
    accept = ~_is_excluded(state, pair, u, most) & (jnp.log(u[3]) < ratio)
    labels = jnp.where(split, sides, jnp.where(member, pair.a, state.labels))
    labels = labels.at[pair.j].set(jnp.where(split, pair.b, pair.a))
    moved = state._replace(labels=labels, cells=proposed, length=length)
    return jax.tree.map(partial(jnp.where, accept), moved, state), accept


def _at_most(
    state: Partition, pair: Pair, joint: jax.Array, usual: jax.Array | None
) -> jax.Array | float:
    """Probability that a split is accepted with at most, and that its merge has as a factor.

    It may depend on the partition where the two clusters are one, of length ``joint`` if they are
    not, and on nothing else.
    """
    if usual is None:
        return 1.0
    k = occupied(state.cells).sum() - ~pair.together
    length = jnp.where(pair.together, state.length, joint)
    return jnp.where((k >= usual[0]) & (length <= usual[1] + _LONGER), _MOST, 1.0)


def _is_excluded(state: Partition, pair: Pair, u: jax.Array, most: jax.Array | float) -> jax.Array:
    """Whether there is no such proposal, or it is a split that was not to be looked at."""
    # Without an empty slot, b is an occupied one.
    no_split = occupied(state.cells)[pair.b] | (u[3] >= most)
    return (pair.i == pair.j) | (pair.together & no_split)


def _is_hopeless(
    target: Target, state: Partition, pair: Pair, u: jax.Array, usual: jax.Array
) -> jax.Array:
    """Whether a proposal is refused, whatever the sides of its members."""
    joint = state.cells[:, pair.a] + state.cells[:, pair.b]
    joint = jnp.stack([joint, jnp.zeros_like(joint)], 1)
    length = replace_two(target, state, pair.a, pair.b, joint)[1]
    most = _at_most(state, pair, length, usual)
    too_long = ~(jnp.log(u[3]) < state.length - length + jnp.log(most))
    return _is_excluded(state, pair, u, most) | (~pair.together & too_long)


# Rows from which chains make proposals one after another, and from which there is a third program.
_SEVERAL, _MANY = 128, 512
_MOST = 0.1  # probability that splits of what is usual are accepted with at most
_LONGER = 20.0  # nats by which usual partitions are longer than the typical one at most


def nothing_usual() -> jax.Array:
    """Number of clusters, and length, from which partitions are usual, if none is."""
    return jnp.asarray([jnp.inf, -jnp.inf])


def _sizes(n: int) -> tuple[int, ...]:
    """Numbers of members that there is a program for."""
    if n < _SEVERAL:
        return (n,)
    parts = (3,) if n < _MANY else (8, 3)
    return (*(max(n // part, 1) for part in parts), n)


class Made(NamedTuple):
    """Counts of proposals of a split or a merge, and of those accepted."""

    split: jax.Array
    split_accepted: jax.Array
    merge: jax.Array
    merge_accepted: jax.Array


def split_merges(
    target: Target, state: Partition, key: jax.Array, kinds: Sequence[Allocation], count: int,
    usual: jax.Array,
) -> tuple[Partition, Made]:  # fmt: skip
    """Propose ``count`` times, by the ``kinds`` of allocation in turn.

    ``usual`` (2,) are the least number of clusters of partitions that are, and a typical length.
    """
    alone = target.x.shape[0] >= _SEVERAL

    def run(target, state, key, usual):
        usual = usual if alone else None  # to look at none saves nothing
        choice_key, side_key = jax.random.split(key)
        u = jax.random.uniform(choice_key, (count, 8), minval=jnp.finfo(float).tiny)

        def propose(t, carry):
            state, made = carry
            pair, own = _choose(target, state, u[t, :4]), u[t, 4:]

            def make(state):
                now = jax.random.fold_in(side_key, t)
                return split_merge(target, state, pair, own, now, kinds, t % len(kinds), usual)

            def make_none(state):
                return state, jnp.asarray(False)

            if alone:
                hopeless = _is_hopeless(target, state, pair, own, usual)
                state, accept = jax.lax.cond(hopeless, make_none, make, state)
            else:
                state, accept = make(state)
            split = pair.together
            counts = split, split & accept, ~split, ~split & accept
            more = Made(*(c.astype(jnp.int32) for c in counts))
            return state, jax.tree.map(jnp.add, made, more)

        nothing = Made(*(jnp.zeros((), jnp.int32) for _ in Made._fields))
        return jax.lax.fori_loop(0, count, propose, (state, nothing))

    # Side by side, chains would all wait for the longest way that one of them takes.
    return (sequential_vmap(run) if alone else run)(target, state, key, usual)
