"""Clusters of units under cannot-links: posterior, log probability, and the most probable labels.

A unit is a set of rows that must share a cluster. Alone, unit u is in cluster i with a probability
proportional to exp(S_ui); a cannot-link forbids that two units are in the same one. What is
computed is log Z, the log of the sum of exp(sum_u S_u,z(u)) over all labels z of the units that
keep the cannot-links. Its derivative by S_ui is the posterior probability of u in i, and with all
scores multiplied by a large number it says the most probable labels.

Units that are connected by cannot-links are one *part*, and parts are independent. They are summed
over in one of three ways: all labels of a part, one by one, where these are few; sets of clusters,
where all units of different classes are apart and there are few clusters; and else by a mean field,
which is no sum but an approximation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from optax.assignment import hungarian_algorithm
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order, connected_components

from nrprob.engines.hash_rng import hashed_uniform
from nrprob.statistics.rows import bucket

LABELINGS = 50_000  # of one part, that are summed over one by one
TOTAL = 5_000_000  # places in the table of these labels, of all parts together
SETS = 10  # clusters of which all subsets are summed over
STATES = 1_000_000  # units of classes times subsets of clusters, of which each step passes all
SWEEPS = 10  # of a mean field
_NEVER = -1e30  # log of 0, of which differences can be taken


class Links(NamedTuple):
    """Units of rows, and what cannot-links say of them, as arrays; N is the number of units.

    Attributes
    ----------
    unit : (rows,) unit of every row; those of padding are in the last, which is none
    real : (N,) 1 for units, 0 on padding
    free : (N,) whether a unit is in no cannot-link
    labelings : (M, u) places in the flat scores (N k) of labels of a part; N k on padding
    part : (M,) part of each; one more on padding
    members : (m, q) units of each class, where all of different classes are apart; N on padding,
        which may be a whole class
    edges : (E, 2) cannot-links, in both directions, of parts with a mean field; N on padding
    turn : (N,) units with a mean field that have the same number are not linked; -1 for others
    n_turns : number of these
    group : (N,) part of the units with a mean field
    start : (N,) labels of these that keep their cannot-links
    exist : (k,) False for clusters that are padding, whose scores must be 0; None if there are none
    """

    unit: Any
    real: Any
    free: Any
    labelings: Any
    part: Any
    members: Any
    edges: Any
    turn: Any
    n_turns: Any
    group: Any
    start: Any
    exist: Any

    def bar(self, scores: jax.Array, low: float = _NEVER) -> jax.Array:
        """Scores (N, k) that keep all units from the clusters that do not exist."""
        return scores if self.exist is None else jnp.where(self.exist, scores, low)


# Sums


def log_partition(scores: jax.Array, links: Links) -> jax.Array:
    """Log Z of all parts but those with a mean field, for scores (N, k)."""
    alone = jnp.where(links.free, jax.nn.logsumexp(scores, axis=1), 0).sum()
    return alone + _sum_of_labelings(scores, links) + _sum_of_sets(scores, links.members)


def _sum_of_labelings(scores: jax.Array, links: Links) -> jax.Array:
    n = len(links.part)
    value = jnp.append(scores.ravel(), 0)[links.labelings].sum(1)
    top = jax.lax.stop_gradient(jax.ops.segment_max(value, links.part, n))
    total = jax.ops.segment_sum(jnp.exp(value - top[links.part]), links.part, n)
    there = jnp.arange(n) < links.part[-1]  # the last one is padding
    return jnp.where(there, jnp.log(jnp.where(there, total, 1)) + top, 0).sum()


def _sum_of_sets(scores: jax.Array, members: jax.Array) -> jax.Array:
    """Log of the sum over disjoint sets of clusters, one for each class, that its units use up.

    Unit by unit, the weight of using exactly the set s is that of having used s, or s without the
    cluster that is chosen: sums of positive numbers, where the principle of inclusion and exclusion
    would take differences.
    """
    m = members.shape[0]
    if m == 0:
        return jnp.zeros((), scores.dtype)
    n, k = scores.shape
    sets, bits = np.arange(1 << k)[:, None], 1 << np.arange(k)
    inside, without = (sets & bits) > 0, sets & ~bits

    def choose(log_w, unit):
        own = jnp.where(inside, scores[jnp.minimum(unit, n - 1)][:, None], _NEVER)  # (m, 2^k, k)
        same = log_w + jax.nn.logsumexp(own, axis=2)
        more = jax.nn.logsumexp(own + log_w[:, without], axis=2)
        return jnp.where((unit < n)[:, None], jnp.logaddexp(same, more), log_w), None

    nothing = jnp.where(jnp.arange(1 << k) == 0, 0, _NEVER).astype(scores.dtype)
    used, _ = jax.lax.scan(choose, jnp.broadcast_to(nothing, (m, 1 << k)), members.T)
    whole, part = _subsets(k)

    def join(log_w, used):
        value = log_w[part] + used[whole - part]
        top = jax.lax.stop_gradient(jax.ops.segment_max(value, whole, 1 << k))
        total = jax.ops.segment_sum(jnp.exp(value - top[whole]), whole, 1 << k)
        return jnp.log(total) + top, None

    return jax.nn.logsumexp(jax.lax.scan(join, nothing, used)[0])


def _subsets(k: int) -> tuple[np.ndarray, np.ndarray]:
    """All sets of ``k`` things, as binary numbers, with each of their subsets: (3**k,) each."""
    whole, part = np.zeros(1, int), np.zeros(1, int)
    for i in range(k):
        bit = 1 << i
        whole = np.concatenate([whole, whole + bit, whole + bit])
        part = np.concatenate([part, part, part + bit])
    return whole, part


def posterior(scores: jax.Array, links: Links) -> tuple[jax.Array, jax.Array]:
    """Log Z, and the probabilities (N, k) of the units in the clusters.

    A mean field adds its expected scores and its entropy in place of the log of a sum.
    """
    scores = links.bar(scores)
    value, shares = jax.value_and_grad(log_partition)(scores, links)
    return _with_field(value, shares, scores, links)


def settle(scores: jax.Array, links: Links) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As `posterior`, in float64, and the most probable labels (N,) that keep all cannot-links.

    With a mean field they are those of the largest shares where these keep the cannot-links of a
    part; else the best that were found.
    """
    raw = scores.astype(jnp.float64)
    scores, size = links.bar(raw), jnp.maximum(jnp.abs(raw).max(), 1)
    # Among equals all units have to choose alike: what is added decides for them together.
    unlike = raw / size + 1e-9 * hashed_uniform(jnp.uint32(0), raw.shape, raw.dtype)
    solve = jax.vmap(jax.value_and_grad(log_partition), (0, None))
    (value, _), (shares, hard) = solve(jnp.stack([scores, links.bar(1e16 * unlike)]), links)
    value, shares = _with_field(value, shares, scores, links)
    labels = jnp.where(links.free[:, None], scores, hard).argmax(1)
    if links.edges.shape[0]:
        labels = jnp.where(links.turn >= 0, _field_labels(raw, shares, links), labels)
    return value, shares, labels


# Mean fields


def _with_field(
    value: jax.Array, shares: jax.Array, scores: jax.Array, links: Links
) -> tuple[jax.Array, jax.Array]:
    """Add what is approximated to a sum and its derivative."""
    if links.edges.shape[0] == 0:
        return value, shares
    field = links.turn >= 0
    result = _mean_field(scores, links)
    entropy = -(result * jnp.log(jnp.where(result > 0, result, 1))).sum(1)
    value += jnp.where(field, (result * scores).sum(1) + entropy, 0).sum()
    return value, jnp.where(field[:, None], result, shares)


def _in_turn(update: Any, state: jax.Array, links: Links, sweeps: int) -> jax.Array:
    """Let all units of a turn have what ``update`` says (N, k), turn after turn."""

    def take(i, state):
        mine = (links.turn == i % links.n_turns)[:, None]
        return jnp.where(mine, update(state), state)

    return jax.lax.fori_loop(0, sweeps * links.n_turns, take, state)


def _mean_field(scores: jax.Array, links: Links) -> jax.Array:
    """Shares (N, k) proportional to exp(score), and to the chance that no neighbour is there."""
    tiny = jnp.finfo(scores.dtype).tiny

    def update(shares):
        left = jnp.log(jnp.maximum(1 - shares, tiny))
        open_ = jax.ops.segment_sum(left[links.edges[:, 1]], links.edges[:, 0], len(scores))
        return jax.nn.softmax(scores + open_, axis=1)

    return _in_turn(update, jax.nn.softmax(scores, axis=1), links, SWEEPS)


def _field_labels(scores: jax.Array, shares: jax.Array, links: Links) -> jax.Array:
    """Labels (N,) that keep the cannot-links of the units with a mean field."""
    n, k = scores.shape
    a, b = links.edges.T
    likely = shares.argmax(1)
    clash = ((likely[a] == likely[b]) & (a < n)).astype(jnp.int32)
    broken = jax.ops.segment_sum(clash, links.group[jnp.minimum(a, n - 1)], n) > 0
    # Labels that keep all links, under the names that suit the scores, and then moves to clusters
    # that no neighbour has.
    own = jnp.where((links.turn >= 0)[:, None], scores, 0)
    cost = -jax.ops.segment_sum(own, links.start, k)
    if links.exist is not None:  # names of those that exist go to those that do
        dear = 1 + 2 * k * jnp.abs(cost).max()
        cost = jnp.where(links.exist[:, None] == links.exist, cost, dear)
    rows, names = hungarian_algorithm(cost)
    start = jnp.zeros(k, names.dtype).at[rows].set(names)[links.start]

    def update(chosen):
        taken = jax.ops.segment_max(chosen[b], a, n) > 0.5
        open_ = links.bar(jnp.where(taken, -jnp.inf, scores), -jnp.inf)
        return jax.nn.one_hot(open_.argmax(1), k, dtype=scores.dtype)

    kept = _in_turn(update, jax.nn.one_hot(start, k, dtype=scores.dtype), links, SWEEPS)
    return jnp.where(broken[links.group], kept.argmax(1), likely)


# From pairs to arrays


def read_links(
    node: np.ndarray,
    edges: np.ndarray,
    classes: list[np.ndarray],
    start: np.ndarray,
    k: int,
    n_rows: int,
    exist: np.ndarray | None,
) -> tuple[Links, int]:
    """Arrays of the units, and the number of units for which there is but a mean field.

    Parameters
    ----------
    node : (n,) unit of every row
    edges : (e, 2) units that are apart, each pair once; none of them in ``classes``
    classes : units of every class, all of different classes being apart
    start : (units,) labels that keep the edges
    k : number of clusters
    n_rows : number of rows with padding
    exist : see `Links`; None where there are classes
    """
    n, width = int(node.max()) + 1, k if exist is None else exist.size
    both = np.r_[edges, edges[:, ::-1]]
    apart = sparse.coo_array((np.ones(len(both), bool), both.T), shape=(n, n)).tocsr()
    part = connected_components(apart, directed=False)[1]
    size = np.bincount(part)
    free = (size == 1)[part]
    for units in classes:
        free[units] = False
    tables: list[np.ndarray] = []
    count, field = 0, np.zeros(n, bool)
    for p in sorted(np.flatnonzero(size > 1), key=size.__getitem__):
        units = breadth_first_order(apart, int((part == p).argmax()), return_predecessors=False)
        result = _labelings(units, apart, k, width)
        if result is None or (count + len(result)) * len(units) > TOTAL:
            field[units] = True
        else:
            tables.append(result)
            count += len(result)
    none = np.zeros((0, 0), np.int32)
    rough = edges[field[edges[:, 0]]]
    rough = np.r_[rough, rough[:, ::-1]]
    turn = np.where(field, start, -1)
    links = Links(
        _padded(node, n_rows, n_rows - 1),
        _padded(np.ones(n), n_rows, 0),
        _padded(free, n_rows, False),
        *_stacked(tables, n_rows * width, (64, 4)),
        _stacked([units[None] for units in classes], n_rows, (1, 1))[0] if classes else none,
        _padded(rough, bucket(len(rough), 1 << 20) if len(rough) else 0, n_rows),
        _padded(turn, n_rows, -1),
        np.asarray(turn.max() + 1, np.int32),
        _padded(part, n_rows, 0),
        _padded(start, n_rows, 0),
        exist,
    )
    return links, int(field.sum())


def _labelings(units: np.ndarray, apart: Any, k: int, width: int) -> np.ndarray | None:
    """All labels of units that keep their cannot-links, as places (M, u) in the scores.

    Of every unit there are ``width`` scores, of which the first ``k`` are those of clusters. None
    if there are too many. All units but the first come after a neighbour.
    """
    column = {int(u): j for j, u in enumerate(units)}
    labels = np.zeros((1, len(units)), np.int32)
    for j, u in enumerate(units):
        near = apart.indices[apart.indptr[u] : apart.indptr[u + 1]]
        before = [column[int(v)] for v in near if column[int(v)] < j]
        open_ = (labels[:, before, None] != np.arange(k)).all(1)
        rows, chosen = np.nonzero(open_)
        if len(rows) > LABELINGS:
            return None
        labels = labels[rows]
        labels[:, j] = chosen
    return units.astype(np.int32) * width + labels


def _stacked(
    tables: list[np.ndarray], fill: int, least: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Tables under each other, padded with ``fill``, and the number of each row's table.

    There is a row of padding below, which has one number more, and few sizes of what is ``least``.
    """
    count = sum(map(len, tables)) + 1
    width = max((t.shape[1] for t in tables), default=1)
    shape = max(bucket(count, 4096), least[0]), max(bucket(width, 64), least[1])
    out, number = np.full(shape, fill, np.int32), np.full(shape[0], len(tables), np.int32)
    end = 0
    for i, t in enumerate(tables):
        out[end : end + len(t), : t.shape[1]] = t
        number[end : end + len(t)] = i
        end += len(t)
    return out, number


def _padded(values: np.ndarray, size: int, fill: Any) -> np.ndarray:
    dtype = np.int32 if values.dtype.kind == "i" else values.dtype
    out = np.full((size, *values.shape[1:]), fill, dtype)
    out[: len(values)] = values
    return out
