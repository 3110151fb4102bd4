"""Split-merge moves of one or two clusters, launched by hard EM or by two of the samples.

A split chooses a cluster c with the probability n_c / n, where n_c of n samples are in c. A merge
chooses a pair of clusters a and b with a probability P_ab that falls with the distance of their
means. The *members* are the samples of the cluster, or of both clusters.

1. Launch: 2-means with random seeds, in units of the covariance of the members, and then hard
   assignments divide the members into two sides. A launch depends only on the members, on all other
   samples and on new random numbers. So a launch has the same distribution before a split and
   before the merge that undoes the split.
2. The member with the largest absolute log odds is the anchor. The side of the anchor is called the
   first side.
3. From the launch, a restricted Gibbs scan updates the sides of all members but the anchor, in
   random order. A split samples the sides; q is the probability of the sampled sides. A merge
   samples no sides; q is the probability that the scan results in the two current clusters.

Let pi be the target distribution, z the current partition, and z' the proposed one. Acceptance
probabilities are min(1, R) with

    split: R = pi(z') P_ab(z') / (pi(z) (n_c / n) q),
    merge: R = pi(z') ((n_a + n_b) / n) q / (pi(z) P_ab(z)).

The scan has as many steps as there are members, and most launches do not separate two clusters.
Therefore the scan takes place with a probability that increases with pi(launch) / pi(merged), the
ratio of the posterior probabilities of the partition with the sides of the launch and of the
partition with one cluster. This probability is the same in both directions, so R does not contain
it.

Some launches are *sequential* (Dahl, 2005). Two overlapping clusters have many partitions, few of
which have separate sides, and small clusters of this kind can hardly die by other moves. The anchor
is a random member, and a second member is the only one on the other side. The scan then adds all
other members in random order, given the members that it has added before. A split chooses the
second member among all m - 1 members other than the anchor, and a merge among the m_2 members of
the other cluster. Therefore R contains q m_2 / (m - 1) instead of q.

Jain and Neal (2004) launch by random sides and by Gibbs scans.

Shapes: n' samples, the last of which are padding; m members, padded; K slots of clusters; p
statistics of a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from nrprob.engines.sample.target import Partition, Target, occupied, replace_two
from nrprob.engines.sample.uniforms import below, in_order

N_LLOYD, N_EM = 4, 5  # passes of 2-means, and of hard assignments
# Share of sequential launches among moves of up to `_SEQUENTIAL_MEMBERS` members. With m members, a
# sequential launch takes a scan of m steps, and the share is inversely proportional to m.
_SEQUENTIAL_SHARE, _SEQUENTIAL_MEMBERS = 0.5, 200
_FAR_WEIGHT = 0.001  # least weight of a pair; pairs of equal means have a weight of about 1
MAX_MEMBERS = 2048  # maximum number of members; other moves update larger clusters
# The scan is certain if the description length of a launch exceeds the length with one cluster by
# less than this margin in nats. Scans find much shorter descriptions than hard assignments: half of
# the accepted splits of iris begin with launches of 50 members that are longer by 20 to 30 nats.
_MARGIN, _NATS_PER_MEMBER, _MAX_MARGIN = 10.0, 0.4, 40.0


class Sides(Protocol):
    """Interface of the members of a move, with a model of the two sides that divide them."""

    def coordinates(self) -> jax.Array:
        """The d features (m, d) of the members, whitened by the covariance of the members."""

    @property
    def weight(self) -> jax.Array:
        """Weights (m,) of the members; zeros on padding."""

    def log_odds(self, side: jax.Array) -> jax.Array:
        """Log odds (m,) of the second side for every member, given the sides of all members."""

    def scan(self, launch: Launch, choose: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Make a restricted Gibbs scan; return the new sides (m,) and their log probability.

        ``choose`` returns the new side of a member, given its index and its log odds.
        """


class LaunchModel(Protocol):
    """Interface of a model of the features that launched moves use."""

    def cluster_distances(self, cells: jax.Array) -> jax.Array:
        """Mahalanobis distances (K, K) between the means of clusters, from cells (groups, K, p)."""

    def sides(
        self, target: Target, state: Partition, pair: jax.Array, rows: jax.Array, real: jax.Array
    ) -> Any:
        """Make the `Sides` of a move of the clusters ``pair`` (2,).

        ``rows`` (m,) are the indices of all samples of these clusters; ``real`` (m,) is false on
        padding.
        """


def pair_probabilities(target: Target, cells: jax.Array) -> jax.Array:
    """Probabilities P_ab (K, K) that a merge chooses clusters a < b, from cells (groups, K, p)."""
    launch: Any = target.launch
    is_occupied = occupied(cells)
    pairs = jnp.triu(is_occupied & is_occupied[:, None], 1)
    weight = jnp.exp(-0.5 * launch.cluster_distances(cells)) + _FAR_WEIGHT
    weight = jnp.where(pairs, weight, 0)
    total = weight.sum()
    return weight / jnp.where(total > 0, total, 1)


class Pairs(NamedTuple):
    """Probabilities P_ab (K, K) that a merge chooses clusters a < b.

    ``stale`` is true if the partition has changed since the probabilities were computed.
    """

    probabilities: jax.Array
    stale: jax.Array


def unknown_pairs(target: Target) -> Pairs:
    """Return stale placeholder probabilities of pairs, which the next launched move recomputes."""
    return Pairs(jnp.zeros((target.n_slots, target.n_slots)), jnp.asarray(True))


class Launch(NamedTuple):
    """Launch state of a move: the division of the members at which the scan begins.

    Attributes
    ----------
    side : (m,) sides of the members; false is the side of the anchor
    present : (m,) whether a member is on its side when the scan begins
    order : (m,) order of the members in the scan; the anchor is first, and padding is last
    n_fixed : number of members, first in the order, whose sides the scan does not change
    valid : whether both sides have members
    """

    side: jax.Array
    present: jax.Array
    order: jax.Array
    n_fixed: jax.Array
    valid: jax.Array

    @property
    def sequential(self) -> jax.Array:
        """Whether the launch is a pair of members, to which the scan adds all other members."""
        return self.n_fixed == 2


def _move_to(order: jax.Array, place: int, member: jax.Array) -> jax.Array:
    """Exchange ``member`` and the member at ``place`` of the order (m,)."""
    return order.at[(order == member).argmax()].set(order[place]).at[place].set(member)


def make_launch(
    sides: Sides, real: jax.Array, u: jax.Array, split: jax.Array, current: jax.Array
) -> Launch:
    """Divide the members by 2-means and hard assignments, or choose one member of each side.

    Parameters
    ----------
    sides : Sides
    real : (m,) false on padding
    u : (5,) uniform variates
    split : whether the move is a split
    current : (m,) current clusters of the members, for a merge
    """
    y, weight, n = sides.coordinates(), sides.weight, real.sum()
    sequential = u[4] < _SEQUENTIAL_SHARE * jnp.minimum(1, _SEQUENTIAL_MEMBERS / jnp.maximum(n, 1))

    def reassign(side: jax.Array, new: jax.Array) -> jax.Array:
        # If one side would be empty, all members keep their sides.
        two = (new & real).any() & (~new & real).any()
        return jnp.where(two, new, side)

    # 1. Seeds: the probability of the second seed is proportional to the squared distance from the
    # first seed.
    first = y[below(u[0], n)]
    total = jnp.cumsum(weight * jnp.square(y - first).sum(1))
    second = y[jnp.minimum((total <= u[1] * total[-1]).sum(), len(y) - 1)]

    # 2. Passes of 2-means. Sequential launches have no passes of steps 2 and 3.
    n_lloyd, n_em = (jnp.where(sequential, 0, count) for count in (N_LLOYD, N_EM))

    def nearest(means):
        return ((y - 0.5 * means.sum(0)) * (means[1] - means[0])).sum(1) > 0

    def pass_lloyd(_, side):
        shares = jnp.stack([~side, side]) * weight
        means = shares @ y / jnp.maximum(shares.sum(1), 1e-300)[:, None]
        return reassign(side, nearest(means))

    side = nearest(jnp.stack([first, second])) & real
    valid = side.any() & (~side & real).any()
    side = jax.lax.fori_loop(0, n_lloyd, pass_lloyd, side)

    # 3. Hard assignments to the side with the larger predictive probability.
    def pass_em(_, carry):
        odds = sides.log_odds(carry[0])
        return reassign(carry[0], odds > 0), odds

    side, odds = jax.lax.fori_loop(0, n_em, pass_em, (side, jnp.zeros_like(weight)))
    # 4. The side of the anchor is the first side, and the anchor is the first in the order.
    order = in_order(u[2:4], len(y), jnp.maximum(n, 1))
    anchor = jnp.where(real, jnp.abs(odds), -1).argmax()
    anchor = jnp.where(sequential, below(u[0], n), anchor)
    order = _move_to(order, 0, anchor)
    # 5. A sequential launch is the anchor and a random member of the other side. In a split, this
    # may be any other member.
    others = jnp.where(split, jnp.arange(len(y)) != anchor, current != current[anchor]) & real
    second = jnp.minimum((jnp.cumsum(others) <= below(u[1], others.sum())).sum(), len(y) - 1)
    order = jnp.where(sequential, _move_to(order, 1, second), order)
    pair = jnp.arange(len(y)) == second
    side = jnp.where(sequential, pair, (side != side[anchor]) & real)
    present = jnp.where(sequential, pair | (jnp.arange(len(y)) == anchor), real)
    return Launch(side, present, order, 1 + sequential.astype(int), valid | sequential)


class _Proposal(NamedTuple):
    """Choice of the clusters of a move, and the logarithm of its probability.

    Attributes
    ----------
    a, b : clusters of a merge; for a split, ``a`` is split, and ``b`` is an empty slot
    split : whether the proposal is a split
    valid : whether the move is possible
    log_share : log of the probability that a split chooses the cluster of all members
    log_pair : log of the probability P_ab that a merge chooses both clusters; 0 for a split
    """

    a: jax.Array
    b: jax.Array
    split: jax.Array
    valid: jax.Array
    log_share: jax.Array
    log_pair: jax.Array


def _choose(target: Target, state: Partition, pairs: jax.Array, u: jax.Array) -> _Proposal:
    """Choose to split a cluster or to merge a pair of clusters, by uniform variates ``u`` (3,).

    ``pairs`` (K, K) are the probabilities P_ab.
    """
    n_rows = (target.x[:, -1] > 0).sum()
    is_occupied = occupied(state.cells)
    split = u[0] < 0.5
    cluster = state.labels[below(u[1], n_rows)]
    flat = jnp.cumsum(pairs)
    pair = jnp.minimum((flat <= u[2] * flat[-1]).sum(), flat.size - 1)
    a = jnp.where(split, cluster, pair // len(is_occupied))
    b = jnp.where(split, jnp.argmin(is_occupied), pair % len(is_occupied))
    size = state.cells[..., -1].sum(0)
    n = jnp.round(size[a] + jnp.where(split, 0, size[b]))
    possible = jnp.where(split, (n > 1.5) & ~is_occupied[b], flat[-1] > 0)
    valid = possible & (n <= MAX_MEMBERS)
    log_pair = jnp.log(jnp.where(split, 1, pairs[a, b]))
    dtype = state.labels.dtype
    return _Proposal(
        a.astype(dtype), b.astype(dtype), split, valid, jnp.log(n / n_rows), log_pair
    )  # fmt: skip


def _member_sizes(n: int) -> tuple[int, ...]:
    """Capacities of padded arrays of members, given ``n`` samples; each has a compiled program."""
    most = min(n, MAX_MEMBERS)
    return (most,) if n < 512 else (most // 8, most)


def propose_launched_move(
    target: Target, state: Partition, pairs: Pairs, key: jax.Array
) -> tuple[Partition, Pairs, jax.Array, jax.Array]:
    """Propose to split a cluster, or to merge two clusters; see the module docstring.

    Parameters
    ----------
    target : Target
        Target with a `LaunchModel`.
    state : Partition
    pairs : Pairs
        Probabilities that a merge chooses each pair of clusters.
    key : random key

    Returns
    -------
    state, pairs : the next state, and the probabilities of its pairs of clusters
    split, accepted : whether the proposal was a split, and whether it was accepted
    """
    size = len(state.labels)
    key, key_of_scan = jax.random.split(key)
    u = jax.random.uniform(key, (10,), minval=jnp.finfo(float).tiny)
    pairs = Pairs(
        jax.lax.cond(
            pairs.stale,
            lambda: pair_probabilities(target, state.cells),
            lambda: pairs.probabilities,
        ),
        jnp.asarray(False),
    )
    proposal = _choose(target, state, pairs.probabilities, u[:3])
    split = proposal.split
    slots = jnp.stack([proposal.a, proposal.b])
    two = state.cells[:, slots]
    joint = jnp.stack([two.sum(1), jnp.zeros_like(two[:, 0])], 1)
    joint = jnp.where(split, two, joint)
    merged_cells, merged_length = replace_two(target, state, slots[0], slots[1], joint)
    log_u = jnp.log(u[9])

    # R of a merge increases with q, which is at most 1.
    bound = state.length - merged_length + proposal.log_share - proposal.log_pair
    hopeless = ~proposal.valid | (~split & ~(log_u < bound))
    inside = (target.x[:, -1] > 0) & (
        (state.labels == proposal.a) | (~split & (state.labels == proposal.b))
    )

    def evaluate(_):
        def scan_members(capacity):
            rows = jnp.nonzero(inside, size=capacity, fill_value=size)[0]
            real, near = rows < size, jnp.minimum(rows, size - 1)
            sides = target.launch.sides(target, state, slots, near, real)
            current = state.labels[near] == proposal.b
            launch = make_launch(sides, real, u[3:8], split, current)
            x, group = target.x[near], target.group[near]

            def sum_sides(side):
                masks = jnp.stack([~side, side]) & real
                if target.n_groups == 1:
                    return (masks.astype(x.dtype) @ x)[None]
                cells = jnp.zeros((target.n_groups, 2, x.shape[1]), x.dtype)
                return cells.at[group, side.astype(int)].add(jnp.where(real[:, None], x, 0))

            # The scan takes place with a probability that depends on the launch alone. It always
            # takes place after a sequential launch, which has no sides yet.
            launched = replace_two(target, state, slots[0], slots[1], sum_sides(launch.side))[1]
            margin = jnp.minimum(_MARGIN + _NATS_PER_MEMBER * real.sum(), _MAX_MARGIN)
            likely = jnp.log(u[8]) < merged_length - launched + margin
            worth = launch.valid & (launch.sequential | likely)

            def scan(_):
                current_side = (current != current[launch.order[0]]) & real
                v = jax.random.uniform(key_of_scan, (capacity,), minval=jnp.finfo(float).tiny)
                noise = jnp.log(v) - jnp.log1p(-v)  # logistic

                def choose(i, logit):
                    return jnp.where(split, noise[i] < logit, current_side[i])

                side, log_q = sides.scan(launch, choose)
                # A split chooses the second member of a sequential launch among all other members,
                # and a merge among the members of the other side.
                log_choices = jnp.log(side.sum() / jnp.maximum(real.sum() - 1, 1))
                log_q = log_q + jnp.where(launch.sequential, log_choices, 0)
                good = (side & real).any() & (~side & real).any()
                labels = jnp.where(side, proposal.b, proposal.a)
                return (
                    sum_sides(side), state.labels.at[rows].set(labels, mode="drop"), log_q, good,
                )  # fmt: skip

            def skip(_):
                return joint, state.labels, jnp.zeros(()), jnp.asarray(False)

            return jax.lax.cond(worth, scan, skip, None)

        sizes = _member_sizes(size)
        enough = sum((inside.sum() > s).astype(int) for s in sizes[:-1])
        branches = [partial(scan_members, s) for s in sizes]
        cells, labels, log_q, good = jax.lax.switch(enough, branches)

        def finish(_):
            changed = jnp.where(split, cells, joint)
            new_cells, length = replace_two(target, state, slots[0], slots[1], changed)
            new_pairs = pair_probabilities(target, new_cells)
            log_pair = jnp.log(new_pairs[slots.min(), slots.max()])
            ratio = jnp.where(
                split,
                state.length - length + log_pair - proposal.log_share - log_q,
                bound + log_q,
            )
            merged = jnp.where(inside, proposal.a, state.labels)
            new = state._replace(
                labels=jnp.where(split, labels, merged), cells=new_cells, length=length
            )
            accept = good & (log_u < ratio)
            result = jax.tree.map(
                partial(jnp.where, accept), (new, Pairs(new_pairs, pairs.stale)), (state, pairs)
            )
            return *result, accept

        return jax.lax.cond(good, finish, keep, None)

    def keep(_):
        return state, pairs, jnp.asarray(False)

    state, pairs, accept = jax.lax.cond(hopeless, keep, evaluate, None)
    return state, pairs, split, accept
