"""Local descents of hard partitions: moves of single rows, merges, and chains of moves.

F is the objective. A *descent* moves single rows while F falls, and merges clusters. A *chain*
makes one move that may raise F, and then the best moves of other rows, until F is below its
initial value. Both keep the sizes of clusters in limits, and both are compiled programs that
process many initial partitions.

Shapes: N rows with padding, S initial partitions, K clusters, p statistics of a row, ``groups``
known groups.

References
----------
Hartigan, J. A. (1975), "Clustering Algorithms", Wiley, chapter 4: moves of single rows.

Kernighan, B. W. and Lin, S. (1970), "An efficient heuristic procedure for partitioning graphs",
Bell System Technical Journal 49(2), 291-307, doi:10.1002/j.1538-7305.1970.tb01770.x: chains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.optimise.differences import (
    join_leave_changes,
    label_cells,
    merge_differences,
)
from nrprob.engines.optimise.sequential_sweeps import SizeLimits, make_sweep
from nrprob.engines.programs import jit_by_size
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms


class PartitionLimits(NamedTuple):
    """Limits of the sizes of clusters, and of the steps of a descent; all traced.

    Attributes
    ----------
    floor : smallest allowed mass of a cluster that is not empty
    least : mass below which a cluster is empty; it is less than the mass of any row
    tolerance : smallest decrease of F that counts: a step must lower F by more than this number
    max_iter : largest number of screenings of a descent; see `descend`
    """

    floor: Any
    least: Any
    tolerance: Any
    max_iter: Any


class DescentStart(NamedTuple):
    """Initial partitions of `descend`.

    Attributes
    ----------
    labels : (S, N) clusters of the rows
    movable : (S, N) whether a row may move
    allowed : (S, K) whether rows may join a cluster. A cluster that rows may not join is dissolved
        at any cost, if all its rows are movable
    max_clusters : (S,) largest number of clusters
    merging : (S,) whether clusters also merge: while F falls, or while there are more than
        ``max_clusters`` clusters
    """

    labels: Any
    movable: Any
    allowed: Any
    max_clusters: Any
    merging: Any


class DescentResult(NamedTuple):
    """Final partitions of S descents.

    Attributes
    ----------
    labels : (S, N) clusters of the rows
    costs : (S, K) costs of the clusters; F is their sum plus a constant
    sizes : (S, K) masses of the clusters
    merges : (S, K, K) change of F if clusters a and b merge, in entry [a, b] with a < b. Infinite
        in all other entries, and for pairs that may not merge
    n_iter : (S,) number of screenings; see `descend`
    converged : (S,) whether no move improves F
    """

    labels: Any
    costs: Any
    sizes: Any
    merges: Any
    n_iter: Any
    converged: Any


def _cell_costs(terms: Terms, cells: jax.Array) -> jax.Array:
    """Costs (K,) of clusters, summed over groups and terms.

    ``cells`` (groups, 1, K, p) are the statistics of the clusters.
    """
    return sum(t.weight * t.cost(t.cells(cells)).sum((0, 1)) for t in terms)  # type: ignore[return-value]


def _open_clusters(
    sizes: jax.Array, allowed: jax.Array, max_clusters: jax.Array, least: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Masks (K,) of the clusters that exist, and of the clusters that rows may join.

    Rows may join existing ``allowed`` clusters and, if fewer than ``max_clusters`` exist, the first
    empty one. A cluster of a size up to ``least`` is empty.
    """
    exists = sizes > least
    empty = allowed & ~exists
    first = empty & (jnp.cumsum(empty) == 1) & (exists.sum() < max_clusters)
    return exists, (exists & allowed) | first


def _changes_of_moves(terms: Terms, rows: Rows, labels: jax.Array, cells: jax.Array):
    """Changes of F if a row joins each cluster (N, K), and if it leaves its current one (N,).

    Undefined changes are infinite. ``cells`` (groups, 1, K, p) are the statistics of the clusters.
    """
    join, leave = join_leave_changes(terms, rows, labels.reshape(rows.mass.shape), cells)
    join, leave = join.reshape(-1, join.shape[-1]), leave.reshape(-1)
    join, leave = (jnp.where(jnp.isnan(change), jnp.inf, change) for change in (join, leave))
    return join, leave


class _State(NamedTuple):
    """State of a descent.

    Attributes
    ----------
    labels : (N,) clusters of the rows
    cost : F without its constant; infinite until the first screening, and after a merge
    count : number of screenings; see `descend`
    at_rest : whether no move of a row and no merge lowers F, so that the descent ends
    converged : the same as ``at_rest``
    """

    labels: jax.Array
    cost: jax.Array
    count: jax.Array
    at_rest: jax.Array
    converged: jax.Array


def _descend_one(terms: Terms, rows: Rows, start: DescentStart, limits: PartitionLimits):
    """Descend from one partition; ``start`` has no axis of S. See `descend`."""
    mass, shape = rows.mass.reshape(-1), rows.mass.shape
    k = start.allowed.shape[0]
    clusters = jnp.arange(k)
    sweep = make_sweep(terms, rows)
    movable = start.movable & (mass > 0)
    fixed = ~start.movable & (mass > 0)

    def cells_of(labels):
        return label_cells(rows, labels.reshape(shape), k)

    def sizes_of(labels, masses=mass):
        return jax.ops.segment_sum(masses, labels, k)

    def pairs_that_merge(labels, cells):
        # Clusters that both hold fixed rows stay apart.
        exists = sizes_of(labels) > limits.least
        held = sizes_of(labels, fixed.astype(mass.dtype)) > 0
        apart = ~(exists[:, None] & exists) | (held[:, None] & held)
        below = clusters[:, None] >= clusters
        return jnp.where(apart | below, jnp.inf, merge_differences(terms, cells))

    def step(state):
        labels, sizes = state.labels, sizes_of(state.labels)
        cells = cells_of(labels)
        exists, is_open = _open_clusters(sizes, start.allowed, start.max_clusters, limits.least)
        # Dissolve the smallest cluster that is too small or not allowed, if there is one.
        bound = sizes_of(labels, fixed.astype(mass.dtype)) > 0
        excess = exists & ~bound & (~start.allowed | (sizes < limits.floor))
        doomed = jnp.where(excess, sizes, jnp.inf).argmin()
        remaining = exists & start.allowed & (clusters != doomed)
        dissolves = excess.any() & remaining.any()
        # Screen all moves of single rows.
        join, leave = _changes_of_moves(terms, rows, labels, cells)
        join = jnp.where(clusters == labels[:, None], jnp.inf, join)
        bounds = SizeLimits(sizes, limits.floor, limits.least)
        may_leave, may_join = bounds.allowed_moves(mass, labels)
        change = jnp.where(is_open & may_join, join, jnp.inf).min(1) + leave
        change = jnp.where(movable & may_leave, change, jnp.inf)
        improving = change < -limits.tolerance
        # Process the rows that improve F, best first, or the rows of the cluster that dissolves.
        leaving = movable & (labels == doomed)
        reinsertion = jnp.where(remaining, join, jnp.inf).min(1)
        priority = jnp.where(dissolves, jnp.where(leaving, reinsertion, jnp.inf), change)
        count = jnp.where(dissolves, leaving.sum(), improving.sum())
        order = jnp.argsort(jnp.where(dissolves & leaving, jnp.minimum(priority, 1e300), priority))
        floor = jnp.where(dissolves, 0, limits.floor)
        receiving = jnp.where(dissolves, remaining, is_open)
        before = labels[order]
        after = sweep.run_visits(
            order, before, count, receiving, sweep.init_state(cells), bounds._replace(floor=floor)
        )[1]
        moved = labels.at[order].set(after, unique_indices=True)
        cost = _cell_costs(terms, cells_of(moved)).sum()
        # Moves whose sum does not lower F are rounding errors.
        better = dissolves | (cost < state.cost)
        labels = jnp.where(better, moved, labels)
        cost = jnp.where(better, cost, state.cost)
        at_rest = ~dissolves & (~improving.any() | ~better)
        # Merge the best pair when no row moves.
        changes = pairs_that_merge(labels, cells)
        best = changes.argmin()
        a, b = best // k, best % k
        forced = (exists.sum() > start.max_clusters) & (changes[a, b] < jnp.inf)
        merges = at_rest & start.merging & (forced | (changes[a, b] < -limits.tolerance))
        labels = jnp.where(merges & (labels == b), a.astype(labels.dtype), labels)
        cost = jnp.where(merges, jnp.inf, cost)  # evaluated by the next screening
        return _State(labels, cost, state.count + 1, at_rest & ~merges, at_rest & ~merges)

    def continues(state):
        return ~state.at_rest & (state.count < limits.max_iter)

    infinite = jnp.asarray(jnp.inf, mass.dtype)
    at_rest = ~movable.any()
    first = _State(start.labels, infinite, jnp.asarray(0, jnp.int32), at_rest, at_rest)
    end = jax.lax.while_loop(continues, step, first)
    cells = cells_of(end.labels)
    return DescentResult(
        end.labels,
        _cell_costs(terms, cells),
        sizes_of(end.labels),
        pairs_that_merge(end.labels, cells),
        end.count,
        end.converged,
    )


@jit_by_size(limit=1 << 18)
def descend(
    terms: Terms, rows: Rows, start: DescentStart, limits: PartitionLimits
) -> DescentResult:
    """Move single rows and merge clusters until neither lowers F.

    1. Dissolve clusters that are smaller than ``limits.floor`` or not allowed, the smallest first.
       Each of their rows moves to the cluster where it costs least.
    2. Compute the changes of F by all moves of single rows (a *screening*). Process the rows whose
       moves would lower F, best first: compute the changes of a row again, and make its best move.
       Repeat until no move lowers F.
    3. Merge the pair of clusters whose union lowers F most, and continue with step 2.

    A row may join one empty cluster if there are fewer than ``max_clusters``. The rows must be
    dense. A screening costs O(N K p).
    """
    return jax.lax.map(lambda first: _descend_one(terms, rows, first, limits), start)


@jit_by_size(limit=1 << 18)
def descend_subsets(
    terms: Terms, rows: Rows, subset: jax.Array, start: DescentStart, limits: PartitionLimits
) -> DescentResult:
    """Run `descend` on S subsets of the rows, which takes less time than on all rows.

    ``subset`` (S, r) has the indices of the r rows of each subset, and N for padding. The arrays of
    ``start`` have r rows. The rows must have one known group, and F must be a sum over clusters.
    """
    columns = rows.x.x.shape[-1]
    x, mass = rows.x.x.reshape(-1, columns), rows.mass.reshape(-1)

    def descend_subset(pair):
        index, first = pair
        chosen = jnp.minimum(index, mass.size - 1)
        part = replace(
            rows,
            x=replace(rows.x, x=x[chosen][None]),
            mass=jnp.where(index < mass.size, mass[chosen], 0)[None],
            number=rows.number.reshape(-1)[chosen][None],
            group=jnp.zeros(1, rows.group.dtype),
        )
        return _descend_one(terms, part, first, limits)

    return jax.lax.map(descend_subset, (subset, start))


class _Moves(NamedTuple):
    """A partition that `improve_by_chains` visits, and the changes of F by its moves.

    Attributes
    ----------
    labels : (N,) clusters of the rows
    locked : (N,) whether a row has moved in the present chain
    join : (N, K) change of F if a row joins each cluster
    leave : (N,) change of F if a row leaves its cluster
    change : change of F since the initial partition
    """

    labels: jax.Array
    locked: jax.Array
    join: jax.Array
    leave: jax.Array
    change: jax.Array


class _Step(NamedTuple):
    """State of `improve_by_chains`.

    Attributes
    ----------
    base : best partition so far
    current : partition of the present chain; equal to ``base`` while single moves lower F
    following : row of the next move, cluster that it joins, and change of F by this move
    firsts : rows, clusters and changes of F (n_chains,) of the first moves of all chains from
        ``base``
    chain : index of the present chain; -1 while single moves lower F
    count : number of moves of the present chain
    ended : whether all chains from ``base`` have failed
    """

    base: _Moves
    current: _Moves
    following: tuple[jax.Array, jax.Array, jax.Array]
    firsts: tuple[jax.Array, jax.Array, jax.Array]
    chain: jax.Array
    count: jax.Array
    ended: jax.Array


_MOVES_PER_ROW = 3  # largest number of first moves of the same row


@jit_by_size("n_chains", limit=1 << 18)
def improve_by_chains(
    terms: Terms,
    rows: Rows,
    start: DescentStart,
    limits: PartitionLimits,
    depth: jax.Array,
    *,
    n_chains: int,
) -> tuple[jax.Array, jax.Array]:
    """Improve one partition by single moves and chains of moves, until none lowers F.

    1. Make the best move of a single row while it lowers F.
    2. Each of the ``n_chains`` best moves then begins a chain, however much it raises F. At most
       three of these moves belong to the same row. A chain locks the row that has moved, and makes
       the best move of all rows that are not locked, up to ``depth`` moves. While a cluster is
       smaller than ``limits.floor``, only moves into or out of this cluster are allowed. The chain
       thus exchanges rows, dissolves a cluster, or fills a new one. A chain ends at the first
       partition within the limits whose F is lower than before the chain. Continue with step 1.

    ``start`` has no axis of S. A move costs O(N p). Returns the labels (N,) and the change of F.
    """
    mass, shape = rows.mass.reshape(-1), rows.mass.shape
    k = start.allowed.shape[0]
    movable = start.movable & (mass > 0)

    def sizes_of(labels):
        return jax.ops.segment_sum(mass, labels, k)

    def changes_of_moves(state, in_chain):
        """Changes of F (N, K) by moves; infinite if forbidden. A chain may violate size limits."""
        sizes = sizes_of(state.labels)
        exists, is_open = _open_clusters(sizes, start.allowed, start.max_clusters, limits.least)
        may_leave, may_join = SizeLimits(sizes, limits.floor, limits.least).allowed_moves(
            mass, state.labels
        )
        small = exists & (sizes < limits.floor)
        repairs = ~small.any() | small | small[state.labels][:, None]
        permitted = is_open & jnp.where(in_chain, repairs, may_leave[:, None] & may_join)
        permitted = permitted & (movable & ~state.locked)[:, None]
        permitted = permitted & (jnp.arange(k) != state.labels[:, None])
        return jnp.where(permitted, state.join + state.leave[:, None], jnp.inf)

    def best_move(changes):
        best = changes.argmin()
        return best // k, best % k, changes.reshape(-1)[best]

    def first_moves(changes):
        value, cluster = jax.lax.top_k(-changes, min(_MOVES_PER_ROW, k))
        best, index = jax.lax.top_k(value.reshape(-1), min(n_chains, value.size))
        return index // value.shape[1], cluster.reshape(-1)[index], -best

    def move(state, row, new, change):
        pair = jnp.stack([state.labels[row], new.astype(state.labels.dtype)])
        labels = state.labels.at[row].set(pair[1])
        # Only the changes by joining or leaving the two clusters differ.
        place = jnp.where(labels == pair[0], 0, jnp.where(labels == pair[1], 1, 2))
        cells = label_cells(rows, place.reshape(shape), 2)
        join, leave = _changes_of_moves(terms, rows, jnp.minimum(place, 1), cells)
        return _Moves(
            labels, state.locked.at[row].set(True), state.join.at[:, pair].set(join),
            jnp.where(place < 2, leave, state.leave), state.change + change,
        )  # fmt: skip

    def take_step(step):
        current, count = move(step.current, *step.following), step.count + 1
        # Accept the partition if F has fallen and the sizes are within the limits.
        sizes = sizes_of(current.labels)
        exists = sizes > limits.least
        feasible = ~(exists & (sizes < limits.floor)).any() & (exists.sum() <= start.max_clusters)
        accepted = feasible & (current.change < step.base.change - limits.tolerance)
        unlocked = current._replace(locked=jnp.zeros_like(current.locked))
        base = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), unlocked, step.base)
        # Continue with the best single move if one lowers F, else with the first chain.
        single = best_move(changes_of_moves(base, False))
        improves = single[2] < -limits.tolerance
        firsts = jax.tree.map(
            lambda a, b: jnp.where(accepted, a, b),
            first_moves(changes_of_moves(base, True)), step.firsts,
        )  # fmt: skip
        # Continue the chain, or begin the next one.
        longer = best_move(changes_of_moves(current, True))
        over = accepted | (count >= depth) | ~jnp.isfinite(longer[2])
        chain = jnp.where(accepted, jnp.where(improves, -1, 0), step.chain + over)
        ended = chain >= firsts[0].shape[0]
        first = tuple(values[jnp.maximum(chain, 0)] for values in firsts)
        following = jax.tree.map(
            lambda single, first, longer: jnp.where(
                over, jnp.where(accepted & improves, single, first), longer
            ),
            single, first, longer,
        )  # fmt: skip
        current = jax.tree.map(lambda a, b: jnp.where(over, a, b), base, current)
        ended = ended | ~jnp.isfinite(following[2])
        return _Step(base, current, following, firsts, chain, jnp.where(over, 0, count), ended)

    cells = label_cells(rows, start.labels.reshape(shape), k)
    join, leave = _changes_of_moves(terms, rows, start.labels, cells)
    base = _Moves(start.labels, jnp.zeros(mass.shape, bool), join, leave, jnp.zeros((), join.dtype))
    single = best_move(changes_of_moves(base, False))
    firsts = first_moves(changes_of_moves(base, True))
    improves = single[2] < -limits.tolerance
    following = jax.tree.map(
        lambda single, first: jnp.where(improves, single, first[0]), single, firsts
    )
    chain = jnp.where(improves, -1, 0)
    step = _Step(base, base, following, firsts, chain, jnp.int32(0), ~jnp.isfinite(following[2]))
    end = jax.lax.while_loop(lambda step: ~step.ended, take_step, step)
    return end.base.labels, end.base.change
