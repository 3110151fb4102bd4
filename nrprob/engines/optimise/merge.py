r"""Agglomeration: merge the two clusters whose union costs least until one cluster remains.

Merging clusters a and b, with statistics S_a and S_b, changes an objective of cell costs g by

.. math:: \Delta(a, b) = g(S_a + S_b) - g(S_a) - g(S_b).

`agglomerate` evaluates this change and stores no matrix of pairs. `agglomerate_pairs` starts from
tables of pairs of clusters that are additive under merges. In both, every cluster stores its
nearest neighbour, and searches again only after it has lost this neighbour by a merge. `move_rows`
corrects rows that merges have misplaced.

Shapes: n initial clusters (often single rows), p statistics of a cluster, k final clusters,
``groups`` known groups.
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
    """The merges of `agglomerate`, in order.

    Attributes
    ----------
    pairs : (n - 1, 2) merged clusters; a cluster is identified by the smallest index of its initial
        clusters
    costs : (n - 1,) increase of the objective by each merge; infinite if no merge was allowed
    """

    pairs: jax.Array
    costs: jax.Array


def merge_cost(
    terms: Terms, term_cells: tuple[jax.Array, ...], costs: tuple[jax.Array, ...], i: jax.Array
) -> jax.Array:
    """Change (n,) of the objective when cluster i merges with each other cluster.

    ``term_cells`` has the cell statistics (n, groups, p) of each term, and ``costs`` the costs
    (n, groups) of these cells.
    """
    total = jnp.zeros(term_cells[0].shape[0], term_cells[0].dtype)
    for term, cells, cost in zip(terms, term_cells, costs, strict=True):
        joined = term.cost(cells + cells[i])
        total += term.weight * (joined - cost - cost[i]).sum(-1)
    return total


def agglomerate(
    terms: Terms, cells: jax.Array, alive: jax.Array, classes: jax.Array
) -> MergeResult:
    """Merge greedily from clusters with statistics ``cells`` (groups, 1, n, p).

    ``alive`` (n,) is False on padding. ``classes`` (n,) are the classes of labelled clusters, and
    -1 for unlabelled clusters; clusters of different classes are never merged. Information costs
    are not reducible: the union of two clusters may be nearer to a third cluster than either is.
    Every new cluster is therefore compared with all others. The run time is O(n^2 p) if few
    clusters lose their neighbour per merge, and the memory O(n p).
    """
    n = cells.shape[2]
    term_cells = tuple(jnp.swapaxes(t.cells(cells)[:, 0], 0, 1) for t in terms)
    costs = tuple(t.cost(c) for t, c in zip(terms, term_cells, strict=True))
    index = jnp.arange(n)

    def allowed_costs(i, term_cells, costs, alive, classes):
        clash = (classes >= 0) & (classes[i] >= 0) & (classes != classes[i])
        barred = ~alive | clash | (index == i) | ~alive[i]
        return jnp.where(barred, jnp.inf, merge_cost(terms, term_cells, costs, i))

    def nearest_neighbour(i, term_cells, costs, alive, classes):
        cost = allowed_costs(i, term_cells, costs, alive, classes)
        return cost.argmin(), cost.min()

    # Nearest neighbours of all initial clusters.
    neighbour, distance = jax.lax.map(
        lambda i: nearest_neighbour(i, term_cells, costs, alive, classes), index
    )

    def merge_next(m, carry):
        term_cells, costs, alive, classes, neighbour, distance, pairs, heights = carry
        # Merge the closest pair into its first cluster.
        i = distance.argmin()
        height = distance[i]
        a, b = jnp.minimum(i, neighbour[i]), jnp.maximum(i, neighbour[i])
        term_cells = tuple(c.at[a].add(c[b]) for c in term_cells)
        costs = tuple(
            cost.at[a].set(t.cost(c[a]))
            for t, cost, c in zip(terms, costs, term_cells, strict=True)
        )
        alive = alive.at[b].set(False)
        classes = classes.at[a].set(jnp.maximum(classes[a], classes[b]))
        distance = distance.at[b].set(jnp.inf)
        # Distances of the union to all other clusters, in both directions.
        cost = allowed_costs(a, term_cells, costs, alive, classes)
        closer = cost < distance
        stale = alive & ((neighbour == a) | (neighbour == b)) & ~closer
        neighbour = jnp.where(closer, a, neighbour).at[a].set(cost.argmin())
        distance = jnp.where(closer, cost, distance).at[a].set(cost.min())
        stale = stale.at[a].set(False)

        # Clusters that lost their nearest neighbour search again.
        def search_stale(inner):
            stale, neighbour, distance = inner
            j = stale.argmax()
            i, cost = nearest_neighbour(j, term_cells, costs, alive, classes)
            return stale.at[j].set(False), neighbour.at[j].set(i), distance.at[j].set(cost)

        _, neighbour, distance = jax.lax.while_loop(
            lambda inner: inner[0].any(), search_stale, (stale, neighbour, distance)
        )
        pairs = pairs.at[m].set(jnp.stack([a, b]).astype(pairs.dtype))
        heights = heights.at[m].set(height)
        return term_cells, costs, alive, classes, neighbour, distance, pairs, heights

    pairs = jnp.zeros((n - 1, 2), jnp.int32)
    heights = jnp.full(n - 1, jnp.inf, cells.dtype)
    carry = term_cells, costs, alive, classes, neighbour, distance, pairs, heights
    carry = jax.lax.fori_loop(0, jnp.maximum(alive.sum() - 1, 0), merge_next, carry)
    return MergeResult(carry[-2], carry[-1])


class PairMergeResult(NamedTuple):
    """The merges of `agglomerate_pairs`, in order.

    Attributes
    ----------
    pairs : (n - 1, 2) merged clusters; a cluster is identified by the smallest index of its initial
        clusters
    entries : (n - 1, tables) entry of every table for every merged pair, before the merge
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
    """Merge greedily by scores that are computed from additive tables (n, n) of pairs of clusters.

    A table is additive if the row of a union of two clusters is the sum of their rows.

    There is one flat loop. Every cluster stores an upper bound of its best score. If a merge
    removes the best partner of a cluster, the cluster is marked and keeps its bound. The next step
    concerns the cluster of the largest bound. If this cluster is marked, it searches for its best
    partner again; if not, it merges. Both kinds of step write one row and one column of each table.
    The rows of a step are read at the end of the previous step. Reading and writing in one step
    would copy the tables in every step, and so would a branch or an inner loop. The run time is
    O(n^2) per table if few clusters search again, and the memory O(n^2).

    Parameters
    ----------
    tables : symmetric tables (n, n); the rows of boolean tables are combined by "or" instead of +
    alive : (n,) False on padding
    score : ``(rows, size, sizes, totals) -> (channels, n)``, scores of merging one cluster with
        each other cluster; a channel is one of several kinds of score. ``rows`` are the rows of
        the cluster in every table, and ``size`` is its size. ``sizes`` (n,) are the sizes of all
        clusters, and ``totals`` (tables,) the sums of the entries of all merged pairs. Larger
        scores are better, and -inf forbids a merge
    choose : function from the best score (channels,) to the channel whose best pair is merged
    drifting : whether a merge changes the scores of pairs of other clusters; all clusters then
        search again after every merge, which takes O(n^3)

    Returns
    -------
    PairMergeResult
        Ties are broken by the order of the clusters.
    """
    n, dtype = alive.size, tables[0].dtype
    index = jnp.arange(n, dtype=jnp.int32)

    def allowed_scores(rows, i, alive, sizes, totals):
        return jnp.where(alive & (index != i), score(rows, sizes[i], sizes, totals), -jnp.inf)

    def best_partner(i):
        result = allowed_scores([t[i] for t in tables], i, alive, sizes, totals)
        return jnp.where(alive[i], result.max(1), -jnp.inf), result.argmax(1)

    def plan_step(tables, value, partner, marked):
        """Plan the next step: a search for the best partner of a cluster, or a merge.

        Returns whether the step is a search; the two clusters that merge, or twice the cluster that
        searches; and the rows of all tables for the first and for the second of these clusters.
        """
        top = value.argmax(1)
        channel = jnp.arange(top.size)
        outdated = marked[channel, top]
        search = outdated.any()
        first = jnp.where(search, outdated.argmax(), choose(value[channel, top]))
        i = top[first].astype(jnp.int32)
        j = jnp.where(search, i, partner[first, i])
        a, b = jnp.minimum(i, j), jnp.maximum(i, j)
        return search, a, b, [t[a] for t in tables], [t[b] for t in tables]

    def take_step(carry):
        tables, alive, sizes, totals, value, partner, marked, pairs, entries, m, plan = carry
        # Merge row b into row a, or leave the tables unchanged for a search.
        search, a, b, rows_a, rows_b = plan
        entry = jnp.stack([row[b].astype(dtype) for row in rows_a])
        rows = [jnp.where(search, r, r + o) for r, o in zip(rows_a, rows_b, strict=True)]
        tables = [_set_row_and_column(t, row, a) for t, row in zip(tables, rows, strict=True)]
        alive = alive.at[b].set(search)
        sizes = sizes.at[a].add(jnp.where(search, 0, sizes[b]))
        totals = totals + jnp.where(search, 0, entry)

        # Scores of the union with all other clusters, in both directions.
        new = allowed_scores(rows, a, alive, sizes, totals)
        first = (new == value) & ~marked & (a < partner)
        closer = ((new > value) | first) & ~search
        marked = (marked | (((partner == a) | (partner == b)) & ~search)) & ~closer
        value = jnp.where(closer, new, value)
        partner = jnp.where(closer, a, partner)
        if drifting:
            value, marked = jnp.where(search, value, jnp.inf), marked | ~search
        # The best partner of the union, or of the searched cluster, is now exact.
        value = jnp.where(alive, value, -jnp.inf).at[:, a].set(new.max(1))
        partner = partner.at[:, a].set(new.argmax(1).astype(partner.dtype))
        marked = marked.at[:, a].set(False)
        # A search writes entries that the next merge overwrites.
        pairs = pairs.at[m].set(jnp.stack([a, b]))
        entries = entries.at[m].set(entry)
        m = m + jnp.where(search, 0, 1)
        plan = plan_step(tables, value, partner, marked)
        return tables, alive, sizes, totals, value, partner, marked, pairs, entries, m, plan

    sizes, totals = alive.astype(dtype), jnp.zeros(len(tables), dtype)
    value, partner = jax.lax.map(best_partner, index)
    value, partner = value.T, partner.T.astype(jnp.int32)
    marked = jnp.zeros(value.shape, bool)
    pairs = jnp.zeros((max(n - 1, 1), 2), jnp.int32)
    entries = jnp.zeros((max(n - 1, 1), len(tables)), dtype)
    tables = list(tables)
    plan = plan_step(tables, value, partner, marked)
    end = alive.sum() - 1
    *_, pairs, entries, _, _ = jax.lax.while_loop(
        lambda carry: carry[-2] < end,
        take_step,
        (tables, alive, sizes, totals, value, partner, marked, pairs, entries, jnp.int32(0), plan),
    )
    return PairMergeResult(pairs, entries)


def _set_row_and_column(table: jax.Array, row: jax.Array, i: jax.Array) -> jax.Array:
    table = jax.lax.dynamic_update_index_in_dim(table, row, i, 0)
    return jax.lax.dynamic_update_index_in_dim(table, row, i, 1)


class RowMoveResult(NamedTuple):
    """Result of `move_rows`.

    Attributes
    ----------
    labels : (n,) labels after the moves
    sums : (k, k) for clusters i and j, the sum of the table over all pairs of a row of cluster i
        and a row of cluster j. For i = j, pairs are ordered and include a row paired with itself
    n_moves : number of moves
    done : whether no further move increases ``value``
    """

    labels: jax.Array
    sums: jax.Array
    n_moves: jax.Array
    done: jax.Array

    @property
    def value(self) -> float:
        """Sum of the table over all ordered pairs of rows that share a cluster."""
        return float(np.trace(self.sums))


def move_rows(
    table: jax.Array, alive: jax.Array, labels: jax.Array, max_moves: jax.Array, n_clusters: int
) -> RowMoveResult:
    """Move single rows to other clusters while the sum of a table within clusters increases.

    Every step makes the move with the largest increase, in time O(n k). A cluster never loses its
    last row. ``table`` (n, n) is symmetric, and ``labels`` (n,) are the initial clusters. Rows that
    are not ``alive`` (n,) are padding, with zeros in the table.
    """
    clusters = jnp.arange(n_clusters)
    diagonal = jnp.diagonal(table)

    def sum_over_clusters(table, labels):
        """Sums (n, k) of the table over the rows of each cluster."""
        member = ((labels[:, None] == clusters) & alive[:, None]).astype(table.dtype)
        return jnp.matmul(table, member, precision=jax.lax.Precision.HIGHEST)

    first = sum_over_clusters(table, labels)
    sizes = sum_over_clusters(jnp.ones_like(table[:1]), labels)[0]
    # Smaller gains may be rounding errors, and rows could cycle.
    min_gain = 64 * jnp.finfo(table.dtype).eps * jnp.abs(first).max()

    def move_best(state, _):
        labels, sums, sizes, n_moves = state
        current = jnp.take_along_axis(sums, labels[:, None], 1) - diagonal[:, None]
        free = alive & (sizes[labels] > 1)
        allowed = free[:, None] & (sizes > 0) & (clusters != labels[:, None])
        gain = jnp.where(allowed, sums - current, -jnp.inf)
        # The best move; sums change by one row of the table.
        i, to = jnp.unravel_index(gain.argmax(), gain.shape)
        moves = gain[i, to] > min_gain
        change = jnp.where(moves, table[i], 0)
        source = labels[i]
        sums = sums.at[:, source].add(-change).at[:, to].add(change)
        count = moves.astype(sizes.dtype)
        sizes = sizes.at[source].add(-count).at[to].add(count)
        labels = labels.at[i].set(jnp.where(moves, to, source).astype(labels.dtype))
        return (labels, sums, sizes, n_moves + moves), ~moves, ()

    result = iterate(move_best, (labels, first, sizes, jnp.int32(0)), max_moves)
    # Recompute the sums, since updates accumulate rounding errors.
    labels, *_, n_moves = result.state
    sums = sum_over_clusters(sum_over_clusters(table, labels).T, labels)
    return RowMoveResult(labels, sums, n_moves, result.done)


def linkage_matrix(pairs: np.ndarray, costs: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Linkage matrix in SciPy's format, with cumulative costs as heights.

    The cost of a merge may be smaller than the cost of an earlier merge, which SciPy's tools do not
    support.
    Cumulative costs never decrease, and a cut at a number of clusters gives the greedy partition.
    ``sizes`` (n,) is the number of rows in each initial cluster.
    """
    n = len(sizes)
    node = np.arange(n)
    size = np.asarray(sizes, float).copy()
    out = np.empty((len(pairs), 4))
    height = np.cumsum(np.maximum(costs, 0))
    for m, (a, b) in enumerate(pairs):
        size[a] += size[b]
        out[m] = min(node[a], node[b]), max(node[a], node[b]), height[m], size[a]
        node[a] = n + m
    return out


def cut_merges(pairs: np.ndarray, n: int, n_clusters: int) -> np.ndarray:
    """Labels (n,) of n rows after merges down to ``n_clusters`` clusters.

    ``pairs`` are the merges of n single rows, in order. Clusters are numbered in the order of their
    first rows.
    """
    parent = np.arange(n)
    for a, b in pairs[: max(n - n_clusters, 0)]:
        parent[parent == b] = a
    return np.unique(parent, return_inverse=True)[1]


def quadratic_information_shares(pairs: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Relative quadratic mutual information (n,) of clusters and groups after 0 to n - 1 merges.

    The information is divided by its value before the first merge, when every row is a cluster. All
    entries are 0 if there is only one group. ``codes`` (n,) are the groups of the rows, and
    ``pairs`` the merges of n single rows. Each cluster stores the number of its rows in each group.
    A merge iterates over the groups of one cluster, the cluster with fewer groups. The run time
    therefore hardly depends on the number of groups.
    """
    n = len(codes)
    size, q = np.ones(n), np.bincount(codes) / n
    square, expected = float(q @ q), q[codes]
    if len(q) == 1:
        return np.zeros(n)
    counts: list[dict[int, int]] = [{int(code): 1} for code in codes]
    gained = np.empty(len(pairs))
    for m, (a, b) in enumerate(pairs):
        small, large = sorted((counts[a], counts[b]), key=len)
        both = sum(count * large.get(code, 0) for code, count in small.items())
        apart = size[a] * expected[b] + size[b] * expected[a] - size[a] * size[b] * square
        gained[m] = 2 * (both - apart) / (n * (1 - square))
        for code, count in small.items():
            large[code] = large.get(code, 0) + count
        counts[a], size[a] = large, size[a] + size[b]
        expected[a] += expected[b]
    return 1 + np.cumsum([0.0, *gained])
