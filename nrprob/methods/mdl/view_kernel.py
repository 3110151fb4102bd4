r"""MCMC kernel for the labels of samples in several views, and for the forest over the views.

An iteration makes these moves, each of which leaves the distribution of a `ViewsTarget` invariant:

- *Gibbs updates* of samples in random order. The labels of a sample in all views are sampled
  together, given the labels of all other samples. On a forest, the joint cost of these labels is a
  sum over nodes and edges; messages from the leaves to the roots sum the labels out, and labels are
  sampled from the roots to the leaves. Under cannot-links or soft pairs, the length of the code
  words of the first view is not such a sum. The cost of a word without pairs then gives a proposal,
  which a Metropolis-Hastings step accepts or rejects.
- *Units*: must-linked samples, which form a unit, move together in the first view. In half of the
  proposals, the labels of these samples in all other views are sampled, too.
- *Split or merge* of clusters of one view (Jain and Neal, 2004): two units are chosen at random. If
  the two units share a cluster, this cluster is split; if not, their clusters are merged. A split
  first allocates units in random order, given the previously allocated units (Dahl, 2005).
- *Redivision and exchange*, which do not change the number of clusters. A redivision merges two
  clusters and splits a third one at the same time. An exchange reallocates the units of two
  clusters to these clusters.
- *Forest*: the parents of two views are sampled together given all labels.
- *Hyperparameters* of continuous views are sampled from a grid given all labels, and effects of
  known groups given labels and hyperparameters.

`nrprob.engines.sample.chains` runs the chains. The collapsed kernel of that module samples a single
partition whose target is a sum over clusters, and is therefore not applicable.

Shapes: V views, n samples, K clusters; C units of the first view, with at most M samples each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.chains import ChainState, Draw, PartitionKernel
from nrprob.engines.sample.split_merge import few_in_sequence
from nrprob.engines.sample.uniforms import below
from nrprob.methods.mdl.view_target import (
    IMPOSSIBLE,
    Costs,
    Counts,
    Parameters,
    ViewsTarget,
    choose_category,
)

_JUMPS = ("split", "merge", "redivision", "exchange")
_N_LAUNCH = 2  # number of scans of a division before the last scan; they reach the launch state
_FEW_VIEWS = 4  # up to this number of views, messages are sent without a compiled loop


@dataclass(frozen=True)
class ViewsKernel(PartitionKernel):
    """MCMC kernel that samples the labels of several views and a forest from a `ViewsTarget`.

    Attributes
    ----------
    n_jumps : number of proposals per iteration, each of a split, merge, redivision or exchange
    """

    n_jumps: int = 3

    def begin(self, target: ViewsTarget, labels: jax.Array, key: jax.Array) -> ChainState:
        """First state of one chain, with initial labels (V, n) that satisfy all hard pairs."""
        return _begin_chain(target, labels, key)

    def step(self, target: ViewsTarget, state: ChainState) -> ChainState:
        """Make one iteration of one chain, and return the next state."""
        # Few chains run in sequence: lengths of words are then computed for changes only, chains
        # do not wait for each other's loops, and programs compile faster.
        iterate = few_in_sequence(partial(_iterate, self.n_jumps))
        return ChainState(*iterate(target, state.draw, state.rng_key))


@jax.jit
def _begin_chain(target: ViewsTarget, labels: jax.Array, key: jax.Array) -> ChainState:
    z, parents = labels.astype(jnp.int32), jnp.full(target.n_views, -1)
    counts = jnp.zeros((1 + len(_JUMPS), 2), jnp.int32)
    parameters = target.begin_parameters(key)
    return ChainState(_as_draw(target, z, parents, parameters), _as_moves(counts), key)


def _as_draw(target: ViewsTarget, z: jax.Array, parents: jax.Array, parameters: Parameters) -> Draw:
    length = target.with_parameters(parameters).length(z, parents)[0]
    used = (z[..., None] == jnp.arange(target.largest)).any(1).sum(1)
    return {
        "labels": z,
        "parents": parents.astype(jnp.int32),
        "prior": parameters.prior.astype(jnp.int32),
        "effects": parameters.effects,
        "effect_scale": parameters.scale.astype(jnp.int32),
        "n_clusters": used.astype(jnp.int32),
        "log_density": -length - target.effect_lengths(parameters),
    }


def _iterate(
    n_jumps: int, target: ViewsTarget, draw: Draw, key: jax.Array
) -> tuple[Draw, Draw, jax.Array]:
    key, sample_key, unit_key, jump_key, forest_key, prior_key = jax.random.split(key, 6)
    z, parents = draw["labels"], draw["parents"]
    parameters = Parameters(draw["prior"], draw["effects"], draw["effect_scale"])
    sampled, target = target, target.with_parameters(parameters)
    z = update_samples(target, z, parents, sample_key)
    z, proposed, accepted = update_units(target, z, parents, unit_key)

    def propose_jump(t, carry):
        z, counts = carry
        z, kind, valid, accept = jump(target, parents, z, jax.random.fold_in(jump_key, t))
        is_kind = jnp.arange(len(_JUMPS)) == kind
        return z, counts + is_kind[:, None] * jnp.stack([valid, accept])

    counts = jnp.zeros((len(_JUMPS), 2), jnp.int32)
    z, counts = jax.lax.fori_loop(0, n_jumps, propose_jump, (z, counts))
    parents = update_forest(target, z, parents, forest_key)
    counts = jnp.concatenate([jnp.stack([proposed, accepted])[None], counts]).astype(jnp.int32)
    parameters = sampled.sample_parameters(z, parameters, prior_key)
    return _as_draw(sampled, z, parents, parameters), _as_moves(counts), key


def _as_moves(counts: jax.Array) -> Draw:
    """Convert counts (moves, 2) of proposed and accepted moves to scalars by name of the move."""
    names = "unit", *_JUMPS
    moves = dict(zip(names, counts[:, 0], strict=True))
    return moves | {f"{name}_accepted": row[1] for name, row in zip(names, counts, strict=True)}


# Labels of one sample in all views


def topological_order(parents: jax.Array) -> jax.Array:
    """Indices (V,) of the views in an order in which parents precede their children.

    ``parents`` (V,) are the parents of the views in the forest, -1 for roots.
    """
    depth, above = jnp.zeros_like(parents), parents
    for _ in range(parents.size):
        depth = depth + (above >= 0)
        above = jnp.where(above >= 0, parents[above], -1)
    return jnp.argsort(depth, stable=True)


def total_cost(
    target: ViewsTarget, parents: jax.Array, costs: Costs, labels: jax.Array
) -> jax.Array:
    """Joint cost of the labels (V,) of one sample in all views.

    A cost is the increase of the description length if the sample gets a label. ``costs`` are the
    costs of the labels of this sample; ``parents`` (V,) are the parents of the views in the forest.
    """
    v = np.arange(target.n_views)
    total = costs.nodes[v, labels].sum()
    if target.code == "table":
        total = total + costs.cells[target.cell_of(labels)]
    elif target.code == "forest":
        total = total + jnp.where(parents < 0, 0, costs.edges[v, labels[parents], labels]).sum()
    return total


def sample_labels(
    target: ViewsTarget, parents: jax.Array, order: jax.Array, costs: Costs, fixed: jax.Array,
    u: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Sample the labels of one sample jointly in all views.

    The probability of the labels is proportional to exp(-cost) for their joint cost, `total_cost`.

    Parameters
    ----------
    target : the target
    parents : (V,) parents of the views in the forest, -1 for roots
    order : (V,) views in the order of `topological_order`
    costs : costs of the labels of the sample
    fixed : (V,) label of the sample in every view in which the label is fixed, -1 in other views
    u : (V,) uniform variates

    Returns
    -------
    labels : (V,) sampled labels
    log_norm : log of the sum of exp(-cost) over all labels that agree with ``fixed``
    """
    other = (fixed[:, None] >= 0) & (jnp.arange(target.largest) != fixed[:, None])
    nodes = -costs.nodes - jnp.where(other, IMPOSSIBLE, 0.0)
    views = jnp.arange(target.n_views)
    if target.code == "table":
        labels = target.cell_labels()
        logits = nodes[np.arange(target.n_views), labels].sum(1) - costs.cells
        cell = choose_category(logits, u[0])
        return jnp.asarray(labels, jnp.int32)[cell], jax.nn.logsumexp(logits)
    if target.code == "independent":
        return jax.vmap(choose_category)(nodes, u), jax.nn.logsumexp(nodes, 1).sum()

    def send_message(t, carry):
        nodes, norm = carry
        v = order[target.n_views - 1 - t]
        is_root = parents[v] < 0
        message = jax.nn.logsumexp(nodes[v] - costs.edges[v], 1)
        norm = norm + jnp.where(is_root, jax.nn.logsumexp(nodes[v]), 0.0)
        return nodes + jnp.where((views == parents[v])[:, None], message, 0.0), norm

    def choose_label(t, labels):
        v = order[t]
        edge = jnp.where(parents[v] < 0, 0.0, costs.edges[v, labels[parents[v]]])
        return jnp.where(views == v, choose_category(nodes[v] - edge, u[v]), labels)

    # Few views need no loops within loops, which compile slowly.
    loop = _unrolled if target.n_views <= _FEW_VIEWS else jax.lax.fori_loop
    nodes, norm = loop(0, target.n_views, send_message, (nodes, jnp.zeros(())))
    return loop(0, target.n_views, choose_label, jnp.zeros(target.n_views, jnp.int32)), norm


def _unrolled(first: int, stop: int, body: Any, carry: Any) -> Any:
    for t in range(first, stop):
        carry = body(t, carry)
    return carry


def _taken(target: ViewsTarget, z: jax.Array, unit: jax.Array) -> jax.Array:
    """Mask (K,) of the clusters of the first view that hard cannot-links exclude for ``unit``.

    z (V, n) are the labels of all samples.
    """
    if target.pair_words is None:
        return jnp.zeros(target.largest, bool)
    taken = target.pair_words.taken(target.unit_labels(z), unit)
    return jnp.pad(taken, (0, target.largest - taken.size))


def update_samples(
    target: ViewsTarget, z: jax.Array, parents: jax.Array, key: jax.Array
) -> jax.Array:
    """Make Gibbs updates of the labels z (V, n) of all samples, in random order.

    Samples in must-link components of several samples keep their label in the first view.
    ``parents`` (V,) are the parents of the views in the forest.
    """
    order_key, key = jax.random.split(key)
    order = jax.random.permutation(order_key, target.n_samples)
    u = jax.random.uniform(key, (target.n_samples, target.n_views + 1))
    topological, words = topological_order(parents), target.pair_words
    single, index = target.unit_size[target.unit] == 1, jnp.arange(target.n_samples)

    def update_sample(t, carry):
        z, counts, length = carry
        i = order[t][None]
        old, word = z[:, i[0]], single[i]
        counts = target.change_counts(counts, i, old[None], word, -jnp.ones(1, jnp.int32))
        taken = _taken(target, z, target.unit[i[0]])
        costs = target.costs(counts, parents, i[0], word[0], taken)
        fixed = jnp.where((jnp.arange(target.n_views) == 0) & ~word, old, -1)
        new = sample_labels(target, parents, topological, costs, fixed, u[t, 1:])[0]
        proposed = jnp.where(index == i, new[:, None], z)
        if words is not None:
            new_length = jax.lax.cond(
                new[0] != old[0],
                lambda: words.length(target.unit_labels(proposed)),
                lambda: length,
            )
            # The proposal has the cost of a word without pairs instead of the exact length.
            ratio = length - new_length + costs.word[new[0]] - costs.word[old[0]]
            accept = jnp.log(u[t, 0]) < ratio
            new = jnp.where(accept, new, old)
            proposed = jnp.where(accept, proposed, z)
            length = jnp.where(accept, new_length, length)
        counts = target.change_counts(counts, i, new[None], word, jnp.ones(1, jnp.int32))
        return proposed, counts, length

    length = jnp.zeros(()) if words is None else words.length(target.unit_labels(z))
    begin = z, target.count_all(z), length
    return jax.lax.fori_loop(0, target.n_samples, update_sample, begin)[0]


# Units of several samples


def _costs_of_samples(
    target: ViewsTarget, counts: Counts, parents: jax.Array, samples: jax.Array,
    words: jax.Array, taken: jax.Array,
) -> Costs:  # fmt: skip
    """Costs of the labels of M ``samples``; every array has a leading axis of length M.

    The costs of every sample are computed as if this sample alone were added to ``counts``.
    ``words`` (M,) states whether a sample needs a code word in the first view, and ``taken`` (K,)
    which clusters of the first view are excluded.
    """

    def costs_of_sample(i, word):
        return target.costs(counts, parents, i, word, taken)

    return jax.vmap(costs_of_sample)(samples, words)


def update_units(
    target: ViewsTarget, z: jax.Array, parents: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Propose new labels of every unit of several must-linked samples.

    All samples of a unit move together in the first view. In half of the proposals, their labels in
    all other views are sampled, too. The proposal distribution adds the costs of the samples of the
    unit, as if each sample alone joined a cluster. The Metropolis-Hastings ratio uses the exact
    description lengths.

    Returns
    -------
    z : (V, n) labels of all samples
    proposed, accepted : number of proposals, and number of accepted proposals
    """
    count, (n_units, width) = (target.unit_size > 1).sum(), target.members.shape
    if width == 1:
        return z, count, count
    order, is_first = topological_order(parents), jnp.arange(target.n_views) == 0
    several = jnp.argsort(target.unit_size <= 1, stable=True)
    is_word = jnp.arange(width) == 0

    def move_unit(t, carry):
        z, length, accepted = carry
        u = jax.random.uniform(jax.random.fold_in(key, t), (3 + width * target.n_views,))
        c = several[t]
        samples, valid = target.members[c], jnp.arange(width) < target.unit_size[c]
        counts = target.count(z, target.unit != c, jnp.arange(n_units) != c)
        taken = _taken(target, z, c)
        costs = _costs_of_samples(target, counts, parents, samples, is_word, taken)
        old = z[:, samples].T
        others = jnp.where(u[0] < 0.5, -1, old)

        def sample_others(cluster):
            fixed = jnp.where(is_first, cluster, others)
            sample = partial(sample_labels, target, parents, order)
            labels, log_norm = jax.vmap(sample)(costs, fixed, u[3:].reshape(width, -1))
            return labels, jnp.where(valid, log_norm, 0).sum()

        labels, log_norm = jax.vmap(sample_others)(jnp.arange(target.views[0].n_slots))
        new = labels[choose_category(log_norm, u[1])]
        cost_of = jax.vmap(partial(total_cost, target, parents))
        more = jnp.where(valid, cost_of(costs, new) - cost_of(costs, old), 0).sum()
        proposed = z.at[:, samples].set(new.T, mode="drop")
        new_length = target.length(proposed, parents)[1]
        accept = jnp.log(u[2]) < length - new_length + more
        length = jnp.where(accept, new_length, length)
        return jnp.where(accept, proposed, z), length, accepted + accept

    begin = z, target.length(z, parents)[1], jnp.zeros((), jnp.int32)
    z, _, accepted = jax.lax.fori_loop(0, count, move_unit, begin)
    return z, count, accepted


# Splits, merges and redivisions


class _Division(NamedTuple):
    """Task of `divide_cluster`: allocate units of one view to two clusters.

    The side of a unit is its cluster, ``a`` or ``b``. Units have indices below n.

    Attributes
    ----------
    z : (V, n) labels of all samples before the allocation
    a, b : indices of the two clusters
    first, second : a unit that stays in cluster ``a``, and a unit that stays in cluster ``b``
    inside : (n,) mask of the units that are allocated
    forced : whether the last scan gives every unit its side in ``z``, to compute the probability of
        these sides
    """

    z: jax.Array
    a: jax.Array
    b: jax.Array
    first: jax.Array
    second: jax.Array
    inside: jax.Array
    forced: jax.Array


def _labels_of_units(target: ViewsTarget, z: jax.Array, v: jax.Array) -> jax.Array:
    """Labels (n,) of the units of view ``v``, from labels z (V, n) of all samples.

    Units of the first view are must-link components, whose labels are padded with -1. Units of
    other views are samples.
    """
    units = target.unit_labels(z)
    units = jnp.pad(units, (0, target.n_samples - units.size), constant_values=-1)
    return jnp.where(v == 0, units, z[v])


def _samples_of(target: ViewsTarget, v: jax.Array, units: jax.Array) -> jax.Array:
    """Mask (n,) of the samples in the units of view ``v`` that the mask ``units`` (n,) selects."""
    return jnp.where(v == 0, units[target.unit], units)


def view_costs(
    target: ViewsTarget, parents: jax.Array, costs: Costs, labels: jax.Array, v: jax.Array
) -> jax.Array:
    """Joint costs (K,) of the labels of one sample, for each of K clusters in view ``v``.

    The labels of the sample in all other views are fixed at ``labels`` (V,).
    """
    views = jnp.arange(target.n_views)

    def cost_of(cluster):
        changed = jnp.where(views == v, cluster, labels)
        return total_cost(target, parents, costs, changed)

    return jax.vmap(cost_of)(jnp.arange(target.largest))


def divide_cluster(
    target: ViewsTarget, parents: jax.Array, v: jax.Array, division: _Division, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Allocate units of view ``v`` to two clusters, by scans in random order.

    The first scan allocates units given the previously allocated units; further scans are
    restricted Gibbs scans. All scans but the last one lead to the launch state, which does not
    depend on the current labels of the units. The cost of a unit is the sum of the costs of its
    samples, as if each sample alone joined the cluster.

    Returns
    -------
    z : (V, n) labels after the allocation
    log_q : log probability of the last scan, given the launch state
    """
    n, (n_units, width) = target.n_samples, target.members.shape
    z, a, b, first, second, inside, forced = division
    order_key, key = jax.random.split(key)
    rank = jnp.where(inside, jax.random.uniform(order_key, (n,)), 2)
    order, noise = jnp.argsort(rank), jax.random.logistic(key, (1 + _N_LAUNCH, n))
    single = target.unit_size[target.unit] == 1
    row = (jnp.arange(target.n_views) == v)[:, None]
    index = jnp.arange(n)
    for unit, cluster in ((first, a), (second, b)):
        z = jnp.where(row & _samples_of(target, v, index == unit), cluster, z)
    sides = _labels_of_units(target, z, v) == b
    # Units that are not allocated yet have no label in this view.
    removed = _samples_of(target, v, inside)
    z = jnp.where(row & removed, -1, z)
    unworded = jnp.zeros(n_units, bool).at[target.unit].max(removed & ((v == 0) | single))
    counts = target.count(z, ~removed, ~unworded)

    count = inside.sum()
    last = _N_LAUNCH * count

    def allocate_unit(t, carry):
        z, counts, total = carry
        c, is_last = order[t % jnp.maximum(count, 1)], t >= last
        samples = jnp.where(jnp.arange(width) == 0, c, n)
        samples = jnp.where(v == 0, target.members[jnp.minimum(c, n_units - 1)], samples)
        words = jnp.where(v == 0, jnp.arange(width) == 0, single[samples])
        labels, weight = z[:, samples].T, (samples < n).astype(jnp.int32)
        # After the first scan, remove the unit from its side before it is allocated again.
        present = weight * (t >= count)
        counts = target.change_counts(counts, samples, jnp.maximum(labels, 0), words, -present)
        taken = _taken(target, z, c) & (v == 0)
        costs = _costs_of_samples(target, counts, parents, samples, words, taken)
        cost = jax.vmap(partial(view_costs, target, parents), (0, 0, None))(costs, labels, v)
        cost = jnp.where((samples < n)[:, None], cost, 0).sum(0)
        logit = cost[a] - cost[b]
        side = jnp.where(forced & is_last, sides[c], noise[t // jnp.maximum(count, 1), c] < logit)
        labels = jnp.where(row.T, jnp.where(side, b, a), labels)
        counts = target.change_counts(counts, samples, labels, words, weight)
        mine = _samples_of(target, v, index == c)
        z = jnp.where(row & mine, jnp.where(side, b, a), z)
        log_p = jax.nn.log_sigmoid(jnp.where(side, logit, -logit))
        return z, counts, total + jnp.where(is_last, log_p, 0)

    begin = z, counts, jnp.zeros(())
    z, _, log_q = jax.lax.fori_loop(0, last + count, allocate_unit, begin)
    return z, log_q


def jump(
    target: ViewsTarget, parents: jax.Array, z: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Make a split, merge, redivision or exchange proposal for the clusters of a random view.

    Four units are chosen at random. A split or merge uses the clusters of the first two units. A
    redivision merges the clusters of the first two units, and splits the cluster of the last two
    units. An exchange reallocates the units in the clusters of the first two units.

    Returns
    -------
    z : (V, n) labels after the proposal is accepted or rejected
    kind : index of the type of the proposal in `_JUMPS`
    valid, accepted : whether the chosen units gave a proposal, and whether it was accepted
    """
    n, (key, *keys) = target.n_samples, jax.random.split(key, 3)
    u = jax.random.uniform(key, (8,))
    v = below(u[0], target.n_views)
    n_units = jnp.where(v == 0, target.unit_size.size, n)
    i, j, k, m = chosen = below(u[1:5], n_units)
    units = _labels_of_units(target, z, v)
    a, b, c, d = units[chosen]
    # A redivision needs three clusters.
    redivides = (u[5] < 1 / 3) & (target.largest > 2)
    exchanges = u[5] > 2 / 3
    jumps = ~redivides & ~exchanges
    split = (a == b) & jumps
    slots, index = jnp.arange(target.largest), jnp.arange(n)
    empty = ~(units[:, None] == slots).any(0) & (slots < target.sizes[v])
    # A split fills one of the empty slots. A merge adds one empty slot.
    n_empty = empty.sum() + ~split
    new = jnp.where(split, choose_category(jnp.where(empty, 0.0, -IMPOSSIBLE), u[6]), b)
    distinct = (i != j) & (k != m) & (i != k) & (i != m) & (j != k) & (j != m)
    apart = (a != b) & (c == d) & (a != c) & (b != c)
    valid = jnp.where(redivides, distinct & apart, (i != j) & (n_empty > 0))
    valid = valid & (~exchanges | (a != b))

    row = (jnp.arange(target.n_views) == v)[:, None]
    merged = jnp.where(row & (z == b), a, z)
    near = valid & ((units == a) | (units == b)) & (index != i) & (index != j)
    # First division: the units of the first two clusters. A split samples their sides. All other
    # proposals force the current sides, to compute the probability of the reverse proposal.
    first = _Division(z, a, new.astype(a.dtype), i, j, near, ~split)
    # Second division: a redivision samples sides in the third cluster, after the first two clusters
    # are merged. An exchange samples new sides in the first two clusters.
    far = valid & redivides & (units == c) & (index != k) & (index != m)
    second = _Division(merged, c, b, k, m, far, jnp.asarray(False))
    exchanged = _Division(z, a, b, i, j, near & exchanges, jnp.asarray(False))
    second = jax.tree.map(partial(jnp.where, exchanges), exchanged, second)
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), first, second)

    def divide_next(t, carry):
        labels, log_q = carry
        division = jax.tree.map(lambda part: part[t], stacked)
        side_key = jnp.stack(keys)[t]
        divided, log_sides = divide_cluster(target, parents, v, division, side_key)
        return labels.at[t].set(divided), log_q.at[t].set(log_sides)

    begin = jnp.stack([z, z]), jnp.zeros(2)
    divided, log_q = jax.lax.fori_loop(0, 2 - jumps, divide_next, begin)
    proposed = jnp.where(split, divided[0], jnp.where(jumps, merged, divided[1]))
    before, after = (target.length(labels, parents)[1] for labels in (z, proposed))
    # Log ratio of the proposal probabilities of a merge and of the split that reverses it.
    log_odds = jnp.log(jnp.maximum(n_empty, 1)) - log_q[0]
    ratio = jnp.where(split, log_odds, -log_odds)
    ratio = before - after + jnp.where(jumps, ratio, log_q[0] - log_q[1])
    accept = valid & (jnp.log(u[7]) < ratio)
    kind = jnp.where(jumps, (~split).astype(jnp.int32), jnp.where(redivides, 2, 3))
    return jnp.where(accept, proposed, z), kind, valid, accept


# Forest


def update_forest(
    target: ViewsTarget, z: jax.Array, parents: jax.Array, key: jax.Array
) -> jax.Array:
    """Sample the parents of two random views together, given all labels z (V, n), V - 1 times.

    View 0 is always a root. The function returns the new ``parents`` (V,) of the views.
    """
    n_views = target.n_views
    if target.code != "forest" or n_views == 1:
        return parents
    counts = target.count_all(z)
    roots = target.root_lengths(counts, target.word_length(z, counts))
    lengths = jnp.concatenate([roots[:, None], target.edge_lengths(counts).T], 1)
    # Position 0 is a virtual parent of all roots, and 1 + u is view u.
    choices = np.stack(np.unravel_index(np.arange((n_views + 1) ** 2), (n_views + 1,) * 2), 1) - 1

    def update_pair(t, parents):
        u = jax.random.uniform(jax.random.fold_in(key, t), (3,))
        first = below(u[0], n_views - 1)
        other = (first + 1 + below(u[1], max(n_views - 2, 1))) % (n_views - 1)
        pair = 1 + jnp.stack([first, other])
        options = jnp.tile(parents, (len(choices), 1)).at[:, pair].set(choices.astype(np.int32))
        above = jnp.pad(options + 1, ((0, 0), (1, 0)))
        for _ in range(int(np.ceil(np.log2(n_views + 1)))):
            above = jnp.take_along_axis(above, above, 1)
        log_p = -lengths[pair, 1 + choices].sum(1)
        valid = (above == 0).all(1)
        if n_views == 2:  # both entries of the pair are view 1
            log_p, valid = log_p / 2, valid & (choices[:, 0] == choices[:, 1])
        log_p = jnp.where(valid, log_p, -jnp.inf)
        return options[choose_category(log_p, u[2])].astype(parents.dtype)

    return jax.lax.fori_loop(0, n_views - 1, update_pair, parents)
