"""Posterior of the labels under cannot-links: exact sums, mean fields, most probable labels.

A unit is a must-link component: a set of rows that share a cluster. Without cannot-links, unit u is
in cluster i with a probability proportional to exp(S_ui), where S are the *scores*. A cannot-link
excludes that two units share a cluster. The log partition function log Z is the log of the sum of
exp(sum_u S_u,z(u)) over all labels z of the units that satisfy the cannot-links. The derivative of
log Z by S_ui is the posterior probability of unit u in cluster i. With all scores multiplied by a
large factor, the derivative gives the most probable labels.

A *part* is a connected component of the cannot-link graph; parts are independent. The sum over a
part has one of three forms: an enumeration of its labels, if these are few; a sum over subsets of
clusters, if all units of different classes are cannot-linked and clusters are few; otherwise a
mean-field approximation. There are n rows, N units with padding, k clusters, and e cannot-links.
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
from nrprob.statistics.rows import bucket_size

LABELINGS = 50_000  # maximum number of labelings of one part that are enumerated
TOTAL = 5_000_000  # maximum number of entries in the table of these labelings, over all parts
SETS = 10  # maximum number of clusters for sums over all subsets
STATES = 1_000_000  # maximum number of units of classes times subsets of clusters
SWEEPS = 10  # sweeps of the mean field
_NEVER = -1e30  # finite stand-in for log 0, so that differences are finite


class Links(NamedTuple):
    """Units of rows and their cannot-links as arrays, for N units with padding and k clusters.

    Attributes
    ----------
    unit : (rows,) unit of every row; padded rows are in the last unit, which is padding
    real : (N,) 1 for units, 0 on padding
    free : (N,) whether a unit is in no cannot-link
    labelings : (M, u) the M enumerated labelings of all parts, one per row. An entry is the index
        of a pair (unit, cluster) in the flattened scores (N k); N k on padding
    part : (M,) part to which a labeling belongs; the number of parts on padding
    members : (m, q) at most q units of each of m classes, if all units of different classes are
        cannot-linked; N on padding, which may be a whole class
    edges : (E, 2) the E pairs of cannot-linked units in parts with a mean field, each pair in both
        directions; N on padding
    turn : (N,) colours of the units with a mean field; cannot-linked units have different colours.
        -1 for all other units
    n_turns : number of colours
    group : (N,) part of every unit, used for units with a mean field
    start : (N,) initial labels that satisfy the cannot-links, used for units with a mean field
    exist : (k,) False for padded clusters, whose scores must be 0; None without padding
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

    def mask_scores(self, scores: jax.Array, low: float = _NEVER) -> jax.Array:
        """Scores (N, k) in which padded clusters have the value ``low``."""
        return scores if self.exist is None else jnp.where(self.exist, scores, low)


# Exact sums


def log_partition(scores: jax.Array, links: Links) -> jax.Array:
    """Log partition function log Z of all parts without a mean field, given the scores (N, k)."""
    alone = jnp.where(links.free, jax.nn.logsumexp(scores, axis=1), 0).sum()
    return alone + _sum_of_labelings(scores, links) + _sum_of_sets(scores, links.members)


def _sum_of_labelings(scores: jax.Array, links: Links) -> jax.Array:
    n = len(links.part)
    value = jnp.append(scores.ravel(), 0)[links.labelings].sum(1)
    top = jax.lax.stop_gradient(jax.ops.segment_max(value, links.part, n))
    total = jax.ops.segment_sum(jnp.exp(value - top[links.part]), links.part, n)
    real = jnp.arange(n) < links.part[-1]  # the last entry is padding: the number of parts
    return jnp.where(real, jnp.log(jnp.where(real, total, 1)) + top, 0).sum()


def _sum_of_sets(scores: jax.Array, members: jax.Array) -> jax.Array:
    """Log of the sum over all labels for which different classes occupy disjoint sets of clusters.

    ``scores`` (N, k) are the scores, and ``members`` (m, q) at most q units of each of m classes.
    For every class, a recursion over its units computes the weight of all labels that occupy
    exactly the set s of clusters. If the last unit gets a cluster of s, the units before it occupy
    s, or s without this cluster. All terms are positive, whereas inclusion-exclusion would need
    differences.
    """
    m = members.shape[0]
    if m == 0:
        return jnp.zeros((), scores.dtype)
    n, k = scores.shape
    sets, bits = np.arange(1 << k)[:, None], 1 << np.arange(k)
    inside, without = (sets & bits) > 0, sets & ~bits  # membership of clusters; set without each

    def add_unit(log_w, unit):
        # The unit takes a cluster of s, which is used already (same) or not yet (more).
        unit_scores = scores[jnp.minimum(unit, n - 1)]
        allowed = jnp.where(inside, unit_scores[:, None], _NEVER)  # (m, 2^k, k)
        same = log_w + jax.nn.logsumexp(allowed, axis=2)
        more = jax.nn.logsumexp(allowed + log_w[:, without], axis=2)
        return jnp.where((unit < n)[:, None], jnp.logaddexp(same, more), log_w), None

    empty = jnp.where(jnp.arange(1 << k) == 0, 0, _NEVER).astype(scores.dtype)
    used, _ = jax.lax.scan(add_unit, jnp.broadcast_to(empty, (m, 1 << k)), members.T)
    union, part = _subset_pairs(k)

    def merge_class(log_w, used):
        # Disjoint unions of the sets of the classes so far and the sets of this class.
        value = log_w[part] + used[union - part]
        top = jax.lax.stop_gradient(jax.ops.segment_max(value, union, 1 << k))
        total = jax.ops.segment_sum(jnp.exp(value - top[union]), union, 1 << k)
        return jnp.log(total) + top, None

    return jax.nn.logsumexp(jax.lax.scan(merge_class, empty, used)[0])


def _subset_pairs(k: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of a subset of ``k`` items and a subset of this subset.

    Returns two arrays (3**k,) of bit masks: the larger and the smaller subset of every pair.
    """
    union, part = np.zeros(1, int), np.zeros(1, int)
    for i in range(k):
        bit = 1 << i
        union = np.concatenate([union, union + bit, union + bit])
        part = np.concatenate([part, part, part + bit])
    return union, part


def unit_posterior(scores: jax.Array, links: Links) -> tuple[jax.Array, jax.Array]:
    """Log Z, and the posterior probabilities (N, k) of the clusters of all units.

    ``scores`` are the scores S (N, k). For a part with a mean field, a lower bound replaces its log
    Z: the expected scores plus the entropy.
    """
    scores = links.mask_scores(scores)
    value, shares = jax.value_and_grad(log_partition)(scores, links)
    return _with_field(value, shares, scores, links)


def posterior_and_labels(scores: jax.Array, links: Links) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Posterior of the units in float64, and their most probable labels under all cannot-links.

    The function returns the results of `unit_posterior`, and the labels (N,). A part with a mean
    field has the labels of the largest probabilities if these labels satisfy its cannot-links.
    Otherwise a local search determines the labels of the part.
    """
    raw = scores.astype(jnp.float64)
    scores, size = links.mask_scores(raw), jnp.maximum(jnp.abs(raw).max(), 1)
    # Small perturbations break ties between labelings, jointly for all units of a part.
    perturbed = raw / size + 1e-9 * hashed_uniform(jnp.uint32(0), raw.shape, raw.dtype)
    solve = jax.vmap(jax.value_and_grad(log_partition), (0, None))
    # Scores of both problems: the posterior, and the limit of large scores for the labels.
    both = jnp.stack([scores, links.mask_scores(1e16 * perturbed)])
    (value, _), (shares, hard) = solve(both, links)
    value, shares = _with_field(value, shares, scores, links)
    labels = jnp.where(links.free[:, None], scores, hard).argmax(1)
    if links.edges.shape[0]:
        labels = jnp.where(links.turn >= 0, _field_labels(raw, shares, links), labels)
    return value, shares, labels


# Mean fields


def _with_field(
    value: jax.Array, shares: jax.Array, scores: jax.Array, links: Links
) -> tuple[jax.Array, jax.Array]:
    """Add the parts with a mean field to log Z and to the posterior probabilities of the units.

    ``value`` is the log Z of all other parts. ``shares`` (N, k) are the probabilities of the units
    in these other parts, and ``scores`` (N, k) the scores of all units.
    """
    if links.edges.shape[0] == 0:
        return value, shares
    field = links.turn >= 0
    result = _mean_field(scores, links)
    entropy = -(result * jnp.log(jnp.where(result > 0, result, 1))).sum(1)
    value += jnp.where(field, (result * scores).sum(1) + entropy, 0).sum()
    return value, jnp.where(field[:, None], result, shares)


def _in_turn(update: Any, state: jax.Array, links: Links, sweeps: int) -> jax.Array:
    """Update the values ``state`` (N, k) of the units in ``sweeps`` sweeps, colour by colour.

    ``update`` maps the values of all units to new values. Only the units of the current colour take
    their new values.
    """

    def update_turn(i, state):
        current = (links.turn == i % links.n_turns)[:, None]
        return jnp.where(current, update(state), state)

    return jax.lax.fori_loop(0, sweeps * links.n_turns, update_turn, state)


def _mean_field(scores: jax.Array, links: Links) -> jax.Array:
    """Mean-field probabilities (N, k) of the clusters of all units, from their scores (N, k).

    The probability of a cluster is proportional to exp(score) times the probability that no
    cannot-linked unit is in the cluster.
    """
    tiny = jnp.finfo(scores.dtype).tiny

    def update_shares(shares):
        log_free = jnp.log(jnp.maximum(1 - shares, tiny))
        available = jax.ops.segment_sum(log_free[links.edges[:, 1]], links.edges[:, 0], len(scores))
        return jax.nn.softmax(scores + available, axis=1)

    return _in_turn(update_shares, jax.nn.softmax(scores, axis=1), links, SWEEPS)


def _field_labels(scores: jax.Array, shares: jax.Array, links: Links) -> jax.Array:
    """Labels (N,) that satisfy the cannot-links in all parts with a mean field.

    ``scores`` (N, k) are the scores of the units, and ``shares`` (N, k) their probabilities. The
    labels of all other units have no meaning.
    """
    n, k = scores.shape
    a, b = links.edges.T
    likely = shares.argmax(1)
    clash = ((likely[a] == likely[b]) & (a < n)).astype(jnp.int32)
    broken = jax.ops.segment_sum(clash, links.group[jnp.minimum(a, n - 1)], n) > 0
    # Start from the feasible labels, permuted to the largest total score.
    field_scores = jnp.where((links.turn >= 0)[:, None], scores, 0)
    cost = -jax.ops.segment_sum(field_scores, links.start, k)
    if links.exist is not None:  # never exchange a cluster with a padded one
        prohibitive = 1 + 2 * k * jnp.abs(cost).max()
        cost = jnp.where(links.exist[:, None] == links.exist, cost, prohibitive)
    rows, columns = hungarian_algorithm(cost)
    start = jnp.zeros(k, columns.dtype).at[rows].set(columns)[links.start]

    # Then move units to clusters without a neighbour.
    def update_labels(chosen):
        taken = jax.ops.segment_max(chosen[b], a, n) > 0.5
        available = links.mask_scores(jnp.where(taken, -jnp.inf, scores), -jnp.inf)
        return jax.nn.one_hot(available.argmax(1), k, dtype=scores.dtype)

    feasible = _in_turn(update_labels, jax.nn.one_hot(start, k, dtype=scores.dtype), links, SWEEPS)
    return jnp.where(broken[links.group], feasible.argmax(1), likely)


# Arrays of units and links


def read_links(
    node: np.ndarray,
    edges: np.ndarray,
    classes: list[np.ndarray],
    start: np.ndarray,
    k: int,
    n_rows: int,
    exist: np.ndarray | None,
) -> tuple[Links, int]:
    """Build the record `Links`; count the units with a mean field.

    Parameters
    ----------
    node : (n,) unit of every row
    edges : (e, 2) pairs of cannot-linked units, each pair once; units in ``classes`` do not occur
    classes : list with the units of every class, if all units of different classes are
        cannot-linked; else an empty list
    start : (units,) labels that satisfy the cannot-links
    k : number of clusters
    n_rows : number of rows with padding
    exist : (k,) False for padded clusters; None without padding, or if there are ``classes``
    """
    # Parts of the graph of cannot-links; units without a cannot-link are free.
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
    # Enumerate the labelings of small parts first; mark the others for a mean field.
    for p in sorted(np.flatnonzero(size > 1), key=size.__getitem__):
        units = breadth_first_order(apart, int((part == p).argmax()), return_predecessors=False)
        result = _feasible_labelings(units, apart, k, width)
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
        _pad_array(node, n_rows, n_rows - 1),
        _pad_array(np.ones(n), n_rows, 0),
        _pad_array(free, n_rows, False),
        *_stack_tables(tables, n_rows * width, (64, 4)),
        _stack_tables([units[None] for units in classes], n_rows, (1, 1))[0] if classes else none,
        _pad_array(rough, bucket_size(len(rough), 1 << 20) if len(rough) else 0, n_rows),
        _pad_array(turn, n_rows, -1),
        np.asarray(turn.max() + 1, np.int32),
        _pad_array(part, n_rows, 0),
        _pad_array(start, n_rows, 0),
        exist,
    )
    return links, int(field.sum())


def _feasible_labelings(units: np.ndarray, apart: Any, k: int, width: int) -> np.ndarray | None:
    """All labelings of the units of one part that satisfy the cannot-links; None if too many.

    Parameters
    ----------
    units : units of a part; every unit but the first comes after one of its neighbours
    apart : sparse adjacency matrix of the cannot-links
    k : number of clusters
    width : number of clusters with padding

    Returns
    -------
    (M, u) array of M labelings of u units. An entry is the index of the chosen pair (unit, cluster)
    in the flattened scores
    """
    column = {int(u): j for j, u in enumerate(units)}
    labels = np.zeros((1, len(units)), np.int32)
    for j, u in enumerate(units):
        near = apart.indices[apart.indptr[u] : apart.indptr[u + 1]]
        before = [column[int(v)] for v in near if column[int(v)] < j]
        available = (labels[:, before, None] != np.arange(k)).all(1)
        rows, chosen = np.nonzero(available)
        if len(rows) > LABELINGS:
            return None
        labels = labels[rows]
        labels[:, j] = chosen
    return units.astype(np.int32) * width + labels


def _stack_tables(
    tables: list[np.ndarray], fill: int, least: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Stack tables of different widths into one table, padded with ``fill``.

    The result is the stacked table, and for every row the index of its original table. At least one
    row of padding comes last; the index of padding is the number of tables. The shape of the result
    is at least ``least``, and rounded up so that few distinct shapes are compiled.
    """
    count = sum(map(len, tables)) + 1
    width = max((t.shape[1] for t in tables), default=1)
    shape = max(bucket_size(count, 4096), least[0]), max(bucket_size(width, 64), least[1])
    out, number = np.full(shape, fill, np.int32), np.full(shape[0], len(tables), np.int32)
    end = 0
    for i, t in enumerate(tables):
        out[end : end + len(t), : t.shape[1]] = t
        number[end : end + len(t)] = i
        end += len(t)
    return out, number


def _pad_array(values: np.ndarray, size: int, fill: Any) -> np.ndarray:
    dtype = np.int32 if values.dtype.kind == "i" else values.dtype
    out = np.full((size, *values.shape[1:]), fill, dtype)
    out[: len(values)] = values
    return out
