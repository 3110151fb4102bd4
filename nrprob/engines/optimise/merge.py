"""Agglomeration: merge the two clusters with the least increase in cost until one is left.

`agglomerate` works from cell costs and keeps no matrix of pairs. `agglomerate_pairs` works from a
matrix of pair costs that add up when clusters are merged. In both, every cluster remembers its
nearest neighbour, and only clusters that lost their neighbour search again. `move_rows` corrects
rows that merges have misplaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.optimise.iterate import iterate
from nrprob.statistics.terms import Terms


class MergeResult(NamedTuple):
    """The merges, in order.

    Attributes
    ----------
    pairs : (n - 1, 2) clusters joined, by the smallest row that they hold
    costs : (n - 1,) what each merge added to the objective; infinite where none was allowed
    """

    pairs: jax.Array
    costs: jax.Array


def merge_cost(
    terms: Terms, own: tuple[jax.Array, ...], costs: tuple[jax.Array, ...], i: jax.Array
) -> jax.Array:
    """Change of F (n,) when cluster i and each other one are joined.

    ``own`` holds each term's cells (n, groups, p) and ``costs`` their costs (n, groups).
    """
    total = jnp.zeros(own[0].shape[0], own[0].dtype)
    for term, cells, cost in zip(terms, own, costs, strict=True):
        joined = term.cost(cells + cells[i])
        total += term.weight * (joined - cost - cost[i]).sum(-1)
    return total


def agglomerate(
    terms: Terms, cells: jax.Array, alive: jax.Array, classes: jax.Array
) -> MergeResult:
    """Merge greedily from clusters with statistics ``cells`` (groups, 1, n, p).

    ``alive`` (n,) is False on padding. Clusters whose ``classes`` (n,) are both non-negative and
    differ are never joined. Costs of information are not reducible (a union may be nearer to a
    third cluster than either part was), so every new cluster is compared with all others.
    """
    n = cells.shape[2]
    own = tuple(jnp.swapaxes(t.cells(cells)[:, 0], 0, 1) for t in terms)
    costs = tuple(t.cost(c) for t, c in zip(terms, own, strict=True))
    index = jnp.arange(n)

    def row(i, own, costs, alive, classes):
        clash = (classes >= 0) & (classes[i] >= 0) & (classes != classes[i])
        barred = ~alive | clash | (index == i) | ~alive[i]
        return jnp.where(barred, jnp.inf, merge_cost(terms, own, costs, i))

    def nearest(i, own, costs, alive, classes):
        cost = row(i, own, costs, alive, classes)
        return cost.argmin(), cost.min()

    neighbour, distance = jax.lax.map(lambda i: nearest(i, own, costs, alive, classes), index)

    def step(m, carry):
        own, costs, alive, classes, neighbour, distance, pairs, heights = carry
        i = distance.argmin()
        height = distance[i]
        a, b = jnp.minimum(i, neighbour[i]), jnp.maximum(i, neighbour[i])
        own = tuple(c.at[a].add(c[b]) for c in own)
        costs = tuple(
            cost.at[a].set(t.cost(c[a])) for t, cost, c in zip(terms, costs, own, strict=True)
        )
        alive = alive.at[b].set(False)
        classes = classes.at[a].set(jnp.maximum(classes[a], classes[b]))
        distance = distance.at[b].set(jnp.inf)
        # The union against all others, in both directions.
        cost = row(a, own, costs, alive, classes)
        closer = cost < distance
        stale = alive & ((neighbour == a) | (neighbour == b)) & ~closer
        neighbour = jnp.where(closer, a, neighbour).at[a].set(cost.argmin())
        distance = jnp.where(closer, cost, distance).at[a].set(cost.min())
        stale = stale.at[a].set(False)

        def look(inner):
            stale, neighbour, distance = inner
            j = stale.argmax()
            at, cost = nearest(j, own, costs, alive, classes)
            return stale.at[j].set(False), neighbour.at[j].set(at), distance.at[j].set(cost)

        _, neighbour, distance = jax.lax.while_loop(
            lambda inner: inner[0].any(), look, (stale, neighbour, distance)
        )
        pairs = pairs.at[m].set(jnp.stack([a, b]).astype(pairs.dtype))
        return own, costs, alive, classes, neighbour, distance, pairs, heights.at[m].set(height)

    pairs = jnp.zeros((n - 1, 2), jnp.int32)
    heights = jnp.full(n - 1, jnp.inf, cells.dtype)
    carry = own, costs, alive, classes, neighbour, distance, pairs, heights
    carry = jax.lax.fori_loop(0, jnp.maximum(alive.sum() - 1, 0), step, carry)
    return MergeResult(carry[-2], carry[-1])


class PairMergeResult(NamedTuple):
    """The merges of `agglomerate_pairs`, in order.

    Attributes
    ----------
    pairs : (n - 1, 2) clusters joined, by the smallest row that they hold
    entries : (n - 1, tables) what the tables held for them
    """

    pairs: jax.Array
    entries: jax.Array


def agglomerate_pairs(
    tables: Sequence[jax.Array],
    alive: jax.Array,
    score: Callable[..., jax.Array],
    choose: Callable[[jax.Array], Any] = lambda best: 0,
    *,
    drifting: bool = False,
) -> PairMergeResult:
    """Merge greedily by tables (n, n) of pairs that are additive: row(a + b) = row(a) + row(b).

    One flat loop. Every cluster has an upper bound of its best score. A merge that takes a
    cluster's best partner away leaves the bound as it is and marks it; who is at the top and
    marked looks again, and the next merge is that of a cluster at the top that is not. So a step
    is either a look or a merge, both of which write one row and one column. An inner loop over
    marked clusters, or a branch, would copy the tables in every step; so would a row that is read
    and written in the same step, which is why the rows of a step are read at the end of the last.

    Parameters
    ----------
    tables : symmetric; sums of truth values are true where one of them is
    alive : (n,) False on padding
    score : from a row of every table, the size of its cluster, the sizes (n,) of all, and sums
        (tables,) of the entries of all pairs that were joined, the scores (channels, n) of joining
        the cluster with each other one; larger is better, and -inf forbids
    choose : from the best score of every channel, the channel whose pair is joined
    drifting : whether a merge changes the scores of other pairs than its own; then all clusters
        look again after every merge, which takes O(n ** 3)

    Returns
    -------
    Joined
        Of equal scores, the pair that comes first in the order of its clusters is joined.
    """
    n, dtype = alive.size, tables[0].dtype
    index = jnp.arange(n, dtype=jnp.int32)

    def scores(rows, i, alive, sizes, totals):
        return jnp.where(alive & (index != i), score(rows, sizes[i], sizes, totals), -jnp.inf)

    def best(i):
        result = scores([t[i] for t in tables], i, alive, sizes, totals)
        return jnp.where(alive[i], result.max(1), -jnp.inf), result.argmax(1)

    def chosen(tables, value, partner, marked):
        """Whether to look, the clusters to look at or join, and their rows."""
        top = value.argmax(1)
        channel = jnp.arange(top.size)
        unsure = marked[channel, top]
        look = unsure.any()
        first = jnp.where(look, unsure.argmax(), choose(value[channel, top]))
        i = top[first].astype(jnp.int32)
        j = jnp.where(look, i, partner[first, i])
        a, b = jnp.minimum(i, j), jnp.maximum(i, j)
        return look, a, b, [t[a] for t in tables], [t[b] for t in tables]

    def step(carry):
        tables, alive, sizes, totals, value, partner, marked, pairs, entries, m, plan = carry
        look, a, b, own, other = plan
        entry = jnp.stack([row[b].astype(dtype) for row in own])
        rows = [jnp.where(look, r, r + o) for r, o in zip(own, other, strict=True)]
        tables = [_written(t, row, a) for t, row in zip(tables, rows, strict=True)]
        alive = alive.at[b].set(look)
        sizes = sizes.at[a].add(jnp.where(look, 0, sizes[b]))
        totals = totals + jnp.where(look, 0, entry)

        # The union against all others, in both directions.
        new = scores(rows, a, alive, sizes, totals)
        first = (new == value) & ~marked & (a < partner)
        closer = ((new > value) | first) & ~look
        marked = (marked | (((partner == a) | (partner == b)) & ~look)) & ~closer
        value = jnp.where(closer, new, value)
        partner = jnp.where(closer, a, partner)
        if drifting:
            value, marked = jnp.where(look, value, jnp.inf), marked | ~look
        value = jnp.where(alive, value, -jnp.inf).at[:, a].set(new.max(1))
        partner = partner.at[:, a].set(new.argmax(1).astype(partner.dtype))
        marked = marked.at[:, a].set(False)
        # What a look writes in the place of the next merge, that merge writes over.
        pairs = pairs.at[m].set(jnp.stack([a, b]))
        entries = entries.at[m].set(entry)
        m = m + jnp.where(look, 0, 1)
        plan = chosen(tables, value, partner, marked)
        return tables, alive, sizes, totals, value, partner, marked, pairs, entries, m, plan

    sizes, totals = alive.astype(dtype), jnp.zeros(len(tables), dtype)
    value, partner = jax.lax.map(best, index)
    value, partner = value.T, partner.T.astype(jnp.int32)
    marked = jnp.zeros(value.shape, bool)
    pairs = jnp.zeros((max(n - 1, 1), 2), jnp.int32)
    entries = jnp.zeros((max(n - 1, 1), len(tables)), dtype)
    tables = list(tables)
    plan = chosen(tables, value, partner, marked)
    end = alive.sum() - 1
    *_, pairs, entries, _, _ = jax.lax.while_loop(
        lambda carry: carry[-2] < end,
        step,
        (tables, alive, sizes, totals, value, partner, marked, pairs, entries, jnp.int32(0), plan),
    )
    return PairMergeResult(pairs, entries)


def _written(table: jax.Array, row: jax.Array, at: jax.Array) -> jax.Array:
    """Table with a new row, and column."""
    table = jax.lax.dynamic_update_index_in_dim(table, row, at, 0)
    return jax.lax.dynamic_update_index_in_dim(table, row, at, 1)


class RowMoveResult(NamedTuple):
    """What `move_rows` found.

    Attributes
    ----------
    labels : (n,)
    sums : (k, k) sums of the table over the pairs of rows, each row with itself too, by clusters
    n_moves : number of rows moved
    done : whether no move is left that raises the value
    """

    labels: jax.Array
    sums: jax.Array
    n_moves: jax.Array
    done: jax.Array

    @property
    def value(self) -> float:
        """Sum over the pairs of rows that share a cluster."""
        return float(np.trace(self.sums))


def move_rows(
    table: jax.Array, alive: jax.Array, labels: jax.Array, max_moves: jax.Array, n_clusters: int
) -> RowMoveResult:
    """Move single rows to other clusters, the best move first, while that raises the value.

    The last row of a cluster stays. ``table`` (n, n) is symmetric; rows that are not ``alive`` (n,)
    are padding, and have zeros in it.
    """
    clusters = jnp.arange(n_clusters)
    diagonal = jnp.diagonal(table)

    def total(table, labels):
        """Sums (n, k) over the rows of every cluster."""
        member = ((labels[:, None] == clusters) & alive[:, None]).astype(table.dtype)
        return jnp.matmul(table, member, precision=jax.lax.Precision.HIGHEST)

    first, sizes = total(table, labels), total(jnp.ones_like(table[:1]), labels)[0]
    # Below it a gain may be nothing but rounding, and rows could go round in circles.
    least = 64 * jnp.finfo(table.dtype).eps * jnp.abs(first).max()

    def step(state, _):
        labels, sums, sizes, n_moves = state
        own = jnp.take_along_axis(sums, labels[:, None], 1) - diagonal[:, None]
        free = alive & (sizes[labels] > 1)
        allowed = free[:, None] & (sizes > 0) & (clusters != labels[:, None])
        gain = jnp.where(allowed, sums - own, -jnp.inf)
        i, to = jnp.unravel_index(gain.argmax(), gain.shape)
        moves = gain[i, to] > least
        change = jnp.where(moves, table[i], 0)
        source = labels[i]
        sums = sums.at[:, source].add(-change).at[:, to].add(change)
        one = moves.astype(sizes.dtype)
        sizes = sizes.at[source].add(-one).at[to].add(one)
        labels = labels.at[i].set(jnp.where(moves, to, source).astype(labels.dtype))
        return (labels, sums, sizes, n_moves + moves), ~moves, ()

    result = iterate(step, (labels, first, sizes, jnp.int32(0)), max_moves)
    labels, *_, n_moves = result.state
    sums = total(total(table, labels).T, labels)
    return RowMoveResult(labels, sums, n_moves, result.done)


def linkage_matrix(pairs: np.ndarray, costs: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Linkage matrix in SciPy's form, with the running sum of the costs as heights.

    Single costs may fall from one merge to the next, which SciPy's tools misread; their running sum
    (what has been lost so far) cannot, and a cut by number of clusters is the greedy partition.
    ``sizes`` (n,) is the number of rows in each starting cluster.
    """
    n = len(sizes)
    name = np.arange(n)
    size = np.asarray(sizes, float).copy()
    out = np.empty((len(pairs), 4))
    height = np.cumsum(np.maximum(costs, 0))
    for m, (a, b) in enumerate(pairs):
        size[a] += size[b]
        out[m] = min(name[a], name[b]), max(name[a], name[b]), height[m], size[a]
        name[a] = n + m
    return out


def cut_merges(pairs: np.ndarray, n: int, n_clusters: int) -> np.ndarray:
    """Labels (n,) after the merges that leave ``n_clusters``, numbered by first row."""
    parent = np.arange(n)
    for a, b in pairs[: max(n - n_clusters, 0)]:
        parent[parent == b] = a
    return np.unique(parent, return_inverse=True)[1]


def quadratic_information_shares(pairs: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Quadratic information (n,) of clusters and groups ``codes`` (n,), after every merge.

    As a share of what single rows have; 0 throughout where there is one group. A cluster keeps the
    groups that it has rows of, and the smaller list is gone through, so that many groups are no
    more work than few.
    """
    n = len(codes)
    size, q = np.ones(n), np.bincount(codes) / n
    square, expected = float(q @ q), q[codes]
    if len(q) == 1:
        return np.zeros(n)
    counts: list[dict[int, int]] = [{int(code): 1} for code in codes]
    gained = np.empty(len(pairs))
    for m, (a, b) in enumerate(pairs):
        few, many = sorted((counts[a], counts[b]), key=len)
        both = sum(count * many.get(code, 0) for code, count in few.items())
        apart = size[a] * expected[b] + size[b] * expected[a] - size[a] * size[b] * square
        gained[m] = 2 * (both - apart) / (n * (1 - square))
        for code, count in few.items():
            many[code] = many.get(code, 0) + count
        counts[a], size[a] = many, size[a] + size[b]
        expected[a] += expected[b]
    return 1 + np.cumsum([0.0, *gained])
