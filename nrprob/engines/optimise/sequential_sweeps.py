"""Sequential sweeps: visit rows one by one and move each to the cluster of least cost.

The implementation depends on the rows and on the costs: dense rows under any cost, costs that
compute the difference of one row themselves, and sparse rows under costs that are sums over
features.
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
    """Visits to rows in an order.

    Attributes
    ----------
    prepare : from cells (groups, 1, K, p), the state that visits keep
    follow : from the order (n,), the labels (n,) in this order, the number of the first that are
        visited, which clusters exist (K,), and the state, the last state and labels
    """

    prepare: Callable[[jax.Array], Any]
    follow: Callable[..., tuple[Any, jax.Array]]


def make_sweep(terms: Terms, rows: Rows) -> Sweep:
    """Visits to rows under an objective of terms."""
    group = jnp.repeat(rows.group, rows.mass.shape[1])
    if isinstance(rows.x, Sparse):
        make = _sparse_visits
    else:
        make = _moving_visits if all_incremental(terms) else _dense_visits
    return make(terms, rows, rows.mass.reshape(-1), group)


def _one_by_one(visit):
    """Follow an order by visits ``(row, label, active, state) -> (state, label)``."""

    def follow(order, before, count, active, state):
        # A visit reads the old labels and writes the new ones elsewhere: where one array is both
        # read and written in a step, XLA may copy all of it every time.
        def step(j, inner):
            state, new = inner
            state, label = visit(order[j], before[j], active, state)
            return state, jax.lax.dynamic_update_index_in_dim(new, label, j, 0)

        return jax.lax.fori_loop(0, count, step, (state, before))

    return follow


def _moving_visits(terms, rows, mass, group):
    """Visit rows under costs that know what a row changes."""
    x = rows.x.x.reshape(-1, rows.x.x.shape[-1])
    eps = 2 * jnp.finfo(mass.dtype).eps

    def prepare(cells):
        # Below the rounding of the cells' costs a difference says nothing.
        sizes = [jnp.abs(t.weight) * jnp.abs(t.cost(cells[0, 0])).max() for t in terms]
        return track_cells(terms, cells), eps * functools.reduce(jnp.add, sizes)

    def visit(i, old, active, state):
        states, rounding = state
        join, leave = move_changes(terms, states, x[i][None], old[None])
        change = jnp.where(active & ~jnp.isnan(join[0]), join[0] + leave, jnp.inf)
        change = change.at[old].set(-rounding)
        new = change.argmin().astype(old.dtype)

        def move(states):
            return tuple(
                term.cost.apply_move(own, x[i], old, new)
                for term, own in zip(terms, states, strict=True)
            )

        return (jax.lax.cond(new == old, lambda states: states, move, states), rounding), new

    return Sweep(prepare, _one_by_one(visit))


def _dense_visits(terms, rows, mass, group):
    x = rows.x.x.reshape(-1, rows.x.n_statistics)
    eps = 2 * jnp.finfo(mass.dtype).eps

    def prepare(cells):
        own = tuple(t.cells(cells)[:, 0] for t in terms)
        return own, tuple(t.cost(c) for t, c in zip(terms, own, strict=True))

    def visit(i, old, active, state):
        own, costs = state
        g = group[i]
        row = x[i] * mass[i]
        change = jnp.zeros(active.shape, mass.dtype)
        scale = jnp.zeros((), mass.dtype)
        parts = []
        for term, cells, cost in zip(terms, own, costs, strict=True):
            place = g if term.by_group else 0
            mine = term.row(row, g)
            here, cost_here = cells[place], cost[place]
            less = here[old] - mine
            without = here.at[old].set(less)
            cost_without = cost_here.at[old].set(term.cost(less))
            joined = term.cost(without + mine)
            change += term.weight * (joined - cost_without)
            scale += jnp.abs(term.weight) * jnp.abs(joined).max()
            parts.append((place, without, cost_without, mine, joined))
        change = jnp.where(active, change, jnp.inf)
        new = jnp.argmin(change)
        new = jnp.where(change[old] <= change[new] + eps * scale, old, new).astype(old.dtype)
        own = tuple(
            cells.at[place, old].set(without[old]).at[place, new].set(without[new] + mine)
            for cells, (place, without, _, mine, _) in zip(own, parts, strict=True)
        )
        costs = tuple(
            cost.at[place, old].set(cost_without[old]).at[place, new].set(joined[new])
            for cost, (place, _, cost_without, _, joined) in zip(costs, parts, strict=True)
        )
        return (own, costs), new

    return Sweep(prepare, _one_by_one(visit))


_LOOKED_AT = 128  # entries of sparse rows that are looked at together, about


def _sparse_visits(terms, rows, mass, group):
    """Visit rows at the cost of their non-zero entries; for costs that are sums over features.

    Of short rows several are looked at together, as if each were visited now: those before the
    first that moves are, since nothing has changed when it is their turn.
    """
    for term in terms:
        if not isinstance(term.cost, SeparableCost) or term.view is not None:
            raise TypeError(
                "sparse rows are reassigned under costs that are sums over features; got "
                f"{term.cost!r}; use annealing, or dense rows"
            )
    x, p = rows.x, rows.x.n_statistics
    usual = max(x.value.size // mass.size, 1)
    window, chunk = min(max(_LOOKED_AT // usual, 1), 8), 16 if usual <= 24 else 32
    # A slice of fixed length is far cheaper than a gather, but must not reach past the end.
    columns = jnp.pad(x.column.reshape(-1), (0, chunk), constant_values=p - 1)
    values = jnp.pad(x.value.reshape(-1), (0, chunk))
    eps = 2 * jnp.finfo(mass.dtype).eps

    def prepare(cells):
        own = [t.cells(cells)[:, 0] for t in terms]
        tables = tuple(jnp.swapaxes(c, 1, 2).reshape(-1, c.shape[1]) for c in own)
        return tables, tuple(c[..., :-1].sum(-1) for c in own)

    def changes(tables, draws, some):
        """What leaving for every cluster adds: (window, K), and sums and roundings (window,)."""
        first, end, weight, place, here = some
        places = [place if term.by_group else jnp.zeros_like(place) for term in terms]

        def tally(c, carry):
            change, total = carry
            at = first[:, None] + c * chunk + jnp.arange(chunk)
            # Of a short row beside a long one, past its end.
            column = columns.at[at].get(mode="clip")
            value = values.at[at].get(mode="clip") * weight[:, None]
            feature = jnp.where((at < end[:, None]) & (column < p - 1), value, 0)
            for term, table, place in zip(terms, tables, places, strict=True):
                cost = term.cost.column
                if cost is None:
                    continue
                cell = table.at[place[:, None] * p + column].get(mode="promise_in_bounds")
                without = cell - feature[..., None] * here[:, None]
                more = cost(without + feature[..., None]) - cost(without)
                change += term.weight * more.sum(1)
            return change, total + feature.sum(1)

        zero = jnp.zeros(here.shape, mass.dtype), jnp.zeros(window, mass.dtype)
        chunks = ((end - first).max() + chunk - 1) // chunk
        change, total = jax.lax.fori_loop(0, chunks, tally, zero)
        scale = jnp.zeros(window, mass.dtype)
        for term, table, draw, place in zip(terms, tables, draws, places, strict=True):
            drawn = draw[place] - total[:, None] * here
            held = table[place * p + p - 1] - weight[:, None] * here
            before = term.cost.rest(drawn, held)
            after = term.cost.rest(drawn + total[:, None], held + weight[:, None])
            change += term.weight * (after - before)
            if term.cost.column is not None:
                scale += jnp.abs(term.weight * before).max(1)
        return change, total, eps * scale

    def follow(order, before, count, active, state):
        k = active.shape[0]
        along = x.start[order], x.start[order + 1], mass[order], group[order], before
        along = tuple(jnp.pad(a, (0, window)) for a in along)

        def step(carry):
            j, (tables, draws), new = carry
            first, end, weight, place, old = (
                jax.lax.dynamic_slice(a, (j,), (window,)) for a in along
            )
            here = jax.nn.one_hot(old, k, dtype=mass.dtype)
            some = first, end, weight, place, here
            change, total, rounding = changes(tables, draws, some)
            change = jnp.where(active, change, jnp.inf)
            stay = jnp.take_along_axis(change, old[:, None], 1)[:, 0]
            best = change.argmin(1).astype(old.dtype)
            best = jnp.where(stay <= change.min(1) + rounding, old, best)
            moves = (best != old) & (j + jnp.arange(window) < count)
            one, goes = moves.argmax().astype(jnp.int32), moves.any()
            shift = jax.nn.one_hot(best[one], k, dtype=mass.dtype) - here[one]
            shift = jnp.where(goes, shift, 0)
            places = [place[one] if term.by_group else 0 for term in terms]

            def move(c, tables):
                at = first[one] + c * chunk
                column = jax.lax.dynamic_slice(columns, (at,), (chunk,))
                value = jax.lax.dynamic_slice(values, (at,), (chunk,)) * weight[one]
                value = jnp.where(jnp.arange(chunk) < end[one] - at, value, 0)
                # One scatter of whole rows of K: two of single numbers cost more than all the rest.
                return tuple(
                    table.at[place * p + column].add(
                        value[:, None] * shift, mode="promise_in_bounds"
                    )
                    for table, place in zip(tables, places, strict=True)
                )

            chunks = jnp.where(goes, (end[one] - first[one] + chunk - 1) // chunk, 0)
            tables = jax.lax.fori_loop(0, chunks, move, tables)
            draws = tuple(
                draw.at[place].add(total[one] * shift)
                for draw, place in zip(draws, places, strict=True)
            )
            label = jnp.where(goes, best[one], old[one])
            new = jax.lax.dynamic_update_index_in_dim(new, label, j + one, 0)
            return j + jnp.where(goes, one + 1, window).astype(j.dtype), (tables, draws), new

        start = jnp.int32(0), state, along[-1]
        _, state, new = jax.lax.while_loop(lambda carry: carry[0] < count, step, start)
        return state, new[: before.shape[0]]

    return Sweep(prepare, follow)
