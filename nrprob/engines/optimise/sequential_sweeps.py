"""Sequential sweeps: process rows one by one and move each to the cluster of least cost.

There are three implementations:

- dense rows under any cost, in time O(K p) per row, for K clusters and p statistics;
- dense rows under incremental costs;
- sparse rows under costs that are sums over features, in time O(K) per non-zero entry.

n is the number of rows, and ``groups`` the number of known groups. An incremental cost
(`nrprob.engines.optimise.differences.IncrementalCost`) has closed-form changes by single rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.optimise.differences import all_incremental, move_changes, track_cells
from nrprob.statistics.costs import SeparableCost
from nrprob.statistics.rows import Rows, Sparse
from nrprob.statistics.terms import Terms


class Sweep(NamedTuple):
    """Two functions that process rows one by one, and move each to its best cluster.

    Attributes
    ----------
    init_state : ``cells -> state``, from the statistics ``cells`` (groups, 1, K, p) of all cells to
        the state of a sweep
    run_visits : ``(order, labels, count, active, state) -> (state, labels)``; ``order`` (n,) are
        row indices, ``labels`` (n,) their labels in this order, ``count`` the number of rows to
        process, and ``active`` (K,) whether each cluster may receive rows. If a cluster may not
        receive rows, its rows leave it at any cost. For dense rows, `SizeLimits` are an optional
        sixth argument
    """

    init_state: Callable[[jax.Array], Any]
    run_visits: Callable[..., tuple[Any, jax.Array]]


class SizeLimits(NamedTuple):
    """Limits of the sizes of clusters: a cluster is empty, or has a mass of at least ``floor``.

    All limits are traced.

    Attributes
    ----------
    sizes : (K,) masses of the clusters
    floor : smallest allowed mass of a cluster that is not empty
    least : mass below which a cluster is empty; it is less than the mass of any row
    """

    sizes: jax.Array
    floor: jax.Array
    least: jax.Array

    def allowed_moves(self, mass: jax.Array, label: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Masks of the rows (...) that may leave their cluster, and of allowed joins (..., K).

        ``mass`` (...) are the masses of the rows and ``label`` (...) their clusters.
        """
        rest = self.sizes[label] - mass
        leave = (rest <= self.least) | (rest >= self.floor)
        return leave, self.sizes + mass[..., None] >= self.floor


def make_sweep(terms: Terms, rows: Rows) -> Sweep:
    """Make the `Sweep` by the fastest implementation for the rows and the costs of the terms."""
    group = jnp.repeat(rows.group, rows.mass.shape[1])
    if isinstance(rows.x, Sparse):
        make_visits = _sparse_visits
    else:
        make_visits = _incremental_visits if all_incremental(terms) else _dense_visits
    return make_visits(terms, rows, rows.mass.reshape(-1), group)


def _loop_over_rows(visit, mass):
    """Make ``Sweep.run_visits`` from a function that processes one row.

    This function ``visit(row, label, active, state) -> (state, label)`` takes the index and the old
    label of the row, and returns the new label. ``mass`` (n,) are the masses of the rows.
    """

    def run_visits(order, before, count, active, state, limits=None):
        # A step reads the old labels and writes new ones to another array: XLA may copy an array
        # that is read and written in one step.
        def visit_next(j, inner):
            state, new, limits = inner
            i, old, allowed = order[j], before[j], active
            if limits is not None:
                leave, join = limits.allowed_moves(mass[i], old)
                stays = active[old] & (jnp.arange(active.size) == old)
                allowed = (active & join & (leave | ~active[old])) | stays
            state, label = visit(i, old, allowed, state)
            if limits is not None:
                sizes = limits.sizes.at[old].add(-mass[i]).at[label].add(mass[i])
                limits = limits._replace(sizes=sizes)
            return state, jax.lax.dynamic_update_index_in_dim(new, label, j, 0), limits

        return jax.lax.fori_loop(0, count, visit_next, (state, before, limits))[:2]

    return run_visits


def _incremental_visits(terms, rows, mass, group):
    """Make the `Sweep` of dense rows under incremental costs.

    ``mass`` (n,) are the masses of the rows, and ``group`` (n,) their known groups.
    """
    x = rows.x.x.reshape(-1, rows.x.x.shape[-1])
    eps = 2 * jnp.finfo(mass.dtype).eps

    def init_state(cells):
        # Changes below the rounding error of the cells' costs count as 0.
        sizes = [jnp.abs(t.weight) * jnp.abs(t.cost(cells[0, 0])).max() for t in terms]
        return track_cells(terms, cells), eps * functools.reduce(jnp.add, sizes)

    def visit(i, old, active, state):
        # Cost changes of all clusters; the old cluster wins ties within rounding.
        states, rounding = state
        join, leave = move_changes(terms, states, x[i][None], mass[i][None], old[None])
        leave = jnp.where(active[old], leave, 0)  # the same for all new clusters
        change = jnp.where(active & ~jnp.isnan(join[0]), join[0] + leave, jnp.inf)
        change = change.at[old].set(jnp.where(active[old], -rounding, jnp.inf))
        new = change.argmin().astype(old.dtype)

        def move_row(states):
            return tuple(
                term.cost.apply_move(state, x[i], mass[i], old, new)
                for term, state in zip(terms, states, strict=True)
            )

        return (jax.lax.cond(new == old, lambda states: states, move_row, states), rounding), new

    return Sweep(init_state, _loop_over_rows(visit, mass))


def _dense_visits(terms, rows, mass, group):
    x = rows.x.x.reshape(-1, rows.x.n_statistics)
    eps = 2 * jnp.finfo(mass.dtype).eps

    def init_state(cells):
        term_cells = tuple(t.cells(cells)[:, 0] for t in terms)
        return term_cells, tuple(t.cost(c) for t, c in zip(terms, term_cells, strict=True))

    def visit(i, old, active, state):
        term_cells, costs = state
        g = group[i]
        row = x[i] * mass[i]
        change = jnp.zeros(active.shape, mass.dtype)
        scale = jnp.zeros((), mass.dtype)
        parts = []
        for term, cells, cost in zip(terms, term_cells, costs, strict=True):
            # Remove the row from its cell, then evaluate the cost of adding it to each cell.
            block = g if term.by_group else 0
            statistics = term.row(row, g)
            reduced = cells[block][old] - statistics
            without = cells[block].at[old].set(reduced)
            cost_without = cost[block].at[old].set(term.cost(reduced))
            joined = term.cost(without + statistics)
            change += term.weight * (joined - cost_without)
            scale += jnp.abs(term.weight) * jnp.abs(joined).max()
            parts.append((block, without, cost_without, statistics, joined))
        # The best cluster; the old one if the difference is a rounding error.
        change = jnp.where(active, change, jnp.inf)
        new = jnp.argmin(change)
        new = jnp.where(change[old] <= change[new] + eps * scale, old, new).astype(old.dtype)
        # Update the statistics and costs of the two cells.
        term_cells = tuple(
            cells.at[block, old].set(without[old]).at[block, new].set(without[new] + statistics)
            for cells, (block, without, _, statistics, _) in zip(term_cells, parts, strict=True)
        )
        costs = tuple(
            cost.at[block, old].set(cost_without[old]).at[block, new].set(joined[new])
            for cost, (block, _, cost_without, _, joined) in zip(costs, parts, strict=True)
        )
        return (term_cells, costs), new

    return Sweep(init_state, _loop_over_rows(visit, mass))


_WINDOW_ENTRIES = 128  # approximate number of sparse entries evaluated together


def _sparse_visits(terms, rows, mass, group):
    """Make the `Sweep` of sparse rows under costs that are sums over features.

    ``mass`` (n,) are the masses of the rows, and ``group`` (n,) their known groups. A *window* is a
    sequence of several short rows, which are evaluated together under the current cells. The first
    row that moves changes the cells, and the next window begins after this row. The rows before the
    moved row stay in their clusters, so the evaluation of these rows was exact.
    """
    for term in terms:
        if not isinstance(term.cost, SeparableCost) or term.view is not None:
            raise TypeError(
                "reassignment of sparse rows needs costs that are sums over features; got "
                f"{term.cost!r}; use solver='anneal', or pass a dense array"
            )
    x, p = rows.x, rows.x.n_statistics
    usual = max(x.value.size // mass.size, 1)
    window, chunk = min(max(_WINDOW_ENTRIES // usual, 1), 8), 16 if usual <= 24 else 32
    # Slices of fixed length are far cheaper than gathers, but must not reach past the end.
    columns = jnp.pad(x.column.reshape(-1), (0, chunk), constant_values=p - 1)
    values = jnp.pad(x.value.reshape(-1), (0, chunk))
    eps = 2 * jnp.finfo(mass.dtype).eps

    def init_state(cells):
        # Per term a table (groups * p, K) of the cells, and sums of all features (groups, K).
        term_cells = [t.cells(cells)[:, 0] for t in terms]
        tables = tuple(jnp.swapaxes(c, 1, 2).reshape(-1, c.shape[1]) for c in term_cells)
        return tables, tuple(c[..., :-1].sum(-1) for c in term_cells)

    def evaluate_window(tables, sums, row_window):
        """Evaluate the moves of all rows of a window, under the current cells.

        Returns the change (window, K) of F if a row moves to each cluster; the sum (window,) of the
        features of a row; and the rounding error (window,) of the changes of a row.
        """
        first, end, weight, group, is_current = row_window
        groups = [group if term.by_group else jnp.zeros_like(group) for term in terms]

        def add_chunk(c, carry):
            change, total = carry
            position = first[:, None] + c * chunk + jnp.arange(chunk)
            # Positions past the end of a short row are clipped, and masked below.
            column = columns.at[position].get(mode="clip")
            value = values.at[position].get(mode="clip") * weight[:, None]
            feature = jnp.where((position < end[:, None]) & (column < p - 1), value, 0)
            for term, table, block in zip(terms, tables, groups, strict=True):
                cost = term.cost.column
                if cost is None:
                    continue
                cell = table.at[block[:, None] * p + column].get(mode="promise_in_bounds")
                without = cell - feature[..., None] * is_current[:, None]
                more = cost(without + feature[..., None]) - cost(without)
                change += term.weight * more.sum(1)
            return change, total + feature.sum(1)

        zero = jnp.zeros(is_current.shape, mass.dtype), jnp.zeros(window, mass.dtype)
        chunks = ((end - first).max() + chunk - 1) // chunk
        change, total = jax.lax.fori_loop(0, chunks, add_chunk, zero)
        # The part of the cost that depends on the sum of all features and on the mass.
        scale = jnp.zeros(window, mass.dtype)
        for term, table, cell_sums, block in zip(terms, tables, sums, groups, strict=True):
            sum_without = cell_sums[block] - total[:, None] * is_current
            mass_without = table[block * p + p - 1] - weight[:, None] * is_current
            before = term.cost.rest(sum_without, mass_without)
            after = term.cost.rest(sum_without + total[:, None], mass_without + weight[:, None])
            change += term.weight * (after - before)
            if term.cost.column is not None:
                scale += jnp.abs(term.weight * before).max(1)
        return change, total, eps * scale

    def run_visits(order, before, count, active, state):
        k = active.shape[0]
        ordered = x.start[order], x.start[order + 1], mass[order], group[order], before
        ordered = tuple(jnp.pad(a, (0, window)) for a in ordered)

        def visit_window(carry):
            j, (tables, sums), new = carry
            first, end, weight, row_group, old = (
                jax.lax.dynamic_slice(a, (j,), (window,)) for a in ordered
            )
            is_current = jax.nn.one_hot(old, k, dtype=mass.dtype)
            row_window = first, end, weight, row_group, is_current
            change, total, rounding = evaluate_window(tables, sums, row_window)
            # The best cluster of each row; the old one if the difference is a rounding error.
            change = jnp.where(active, change, jnp.inf)
            stay = jnp.take_along_axis(change, old[:, None], 1)[:, 0]
            best = change.argmin(1).astype(old.dtype)
            best = jnp.where(stay <= change.min(1) + rounding, old, best)
            moves = (best != old) & (j + jnp.arange(window) < count)
            # Move the first row whose best cluster differs, if there is one.
            row, any_move = moves.argmax().astype(jnp.int32), moves.any()
            shift = jax.nn.one_hot(best[row], k, dtype=mass.dtype) - is_current[row]
            shift = jnp.where(any_move, shift, 0)
            groups = [row_group[row] if term.by_group else 0 for term in terms]

            def move_chunk(c, tables):
                position = first[row] + c * chunk
                column = jax.lax.dynamic_slice(columns, (position,), (chunk,))
                value = jax.lax.dynamic_slice(values, (position,), (chunk,)) * weight[row]
                value = jnp.where(jnp.arange(chunk) < end[row] - position, value, 0)
                # One scatter of table rows (K,): two scatters of scalars dominate the run time.
                return tuple(
                    table.at[block * p + column].add(
                        value[:, None] * shift, mode="promise_in_bounds"
                    )
                    for table, block in zip(tables, groups, strict=True)
                )

            chunks = jnp.where(any_move, (end[row] - first[row] + chunk - 1) // chunk, 0)
            tables = jax.lax.fori_loop(0, chunks, move_chunk, tables)
            sums = tuple(
                cell_sums.at[block].add(total[row] * shift)
                for cell_sums, block in zip(sums, groups, strict=True)
            )
            label = jnp.where(any_move, best[row], old[row])
            new = jax.lax.dynamic_update_index_in_dim(new, label, j + row, 0)
            return j + jnp.where(any_move, row + 1, window).astype(j.dtype), (tables, sums), new

        start = jnp.int32(0), state, ordered[-1]
        _, state, new = jax.lax.while_loop(lambda carry: carry[0] < count, visit_window, start)
        return state, new[: before.shape[0]]

    return Sweep(init_state, run_visits)
