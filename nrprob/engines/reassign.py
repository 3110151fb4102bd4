"""Reassignment of single rows: hard labels, improved by exact differences of the objective.

`sequential` visits rows one by one in random order and moves each to the cluster that costs least,
as the sequential information bottleneck and Hartigan's k-means do. `batched` moves many rows at
once and backs off where the objective did not fall: it needs the same differences, but as one
array operation. Both may give clusters up on the way; see `nrprob.engines.moves.Giving`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.iterate import blank, iterate
from nrprob.engines.moves import (
    Giving,
    differences,
    give_up_small,
    join_best,
    label_cells,
    moves,
    moving,
    track,
)
from nrprob.engines.shuffle import stream, uniform
from nrprob.statistics.costs import SeparableCost
from nrprob.statistics.rows import Rows, Sparse
from nrprob.statistics.terms import Term, Terms, objective, one_hot, score


class Reassigned(NamedTuple):
    """What reassignment found, one restart after another on the first axis.

    Attributes
    ----------
    labels : (S, B, r)
    trace : (S, TRACE) objective after every sweep or step, NaN beyond the last
    active : (S, TRACE) the number of clusters that exist then, likewise
    n_iter : (S,) sweeps or steps
    converged : (S,) the last sweep or step moved nothing
    """

    labels: jax.Array
    trace: jax.Array
    active: jax.Array
    n_iter: jax.Array
    converged: jax.Array


TRACE = 1024  # sweeps whose objective is kept; of more, the last one takes the last place


def balanced_start(
    seed: jax.Array, rows: Rows, fixed: jax.Array | None, active: jax.Array
) -> jax.Array:
    """Random labels (B, r) with clusters of equal size, but for the rows whose label is given."""
    order = uniform(stream(seed, rows.number), (), rows.mass.dtype)
    order = jnp.where(rows.mass > 0, order, 2.0).reshape(-1)
    rank = jnp.argsort(jnp.argsort(order))
    labels = (rank % active.sum()).astype(jnp.int32).reshape(rows.mass.shape)
    return labels if fixed is None else jnp.where(fixed >= 0, fixed, labels)


def place_empty(
    terms: Terms, rows: Rows, labels: jax.Array, n_clusters: int, fixed: jax.Array | None
) -> jax.Array:
    """Labels (S, B, r) in which rows without counts are in the largest cluster of the others.

    To terms that look at counts alone they say nothing: reassignment leaves them where they began.
    """
    if any(_uses_mass(term) for term in terms):
        return labels
    features = jnp.arange(rows.x.n_statistics) < rows.x.n_statistics - 1
    one = jnp.broadcast_to(features.astype(rows.mass.dtype), (rows.n_groups, 1, 1, features.size))
    empty = rows.adjoint(one)[:, :, 0, 0] <= 0  # proportions: other rows have a sum of 1
    if fixed is not None:
        empty = empty & (fixed < 0)
    mass = jnp.where(empty, 0, rows.mass)
    sizes = jax.lax.map(
        lambda one: one_hot(one[..., None], mass, n_clusters).sum((0, 1, 2)), labels
    )
    largest = sizes.argmax(-1).astype(labels.dtype)[:, None, None]
    return jnp.where(empty & (rows.mass > 0), largest, labels)


def _uses_mass(term: Term) -> bool:
    """Whether a row without any feature makes a difference to a term."""
    return not isinstance(term.cost, SeparableCost) or term.cost.uses_mass or term.view is not None


def _tidied(terms, rows, labels, active, fixed, giving):
    """Labels and clusters without those that are too small."""
    if giving is None:
        return labels, active
    return give_up_small(terms, rows, labels, active, fixed, giving)


def _joined(terms, labels, cells, active, fixed, giving, rest):
    """Labels and clusters after two were joined, if nothing else moves; and whether two were."""
    if giving is None or fixed is not None:
        return labels, active, jnp.asarray(False)
    return jax.lax.cond(
        rest & giving.joining,
        lambda: join_best(terms, labels, cells, active),
        lambda: (labels, active, jnp.asarray(False)),
    )


def sequential(
    terms: Terms,
    rows: Rows,
    labels: jax.Array,
    seed: jax.Array,
    *,
    max_iter: jax.Array,
    n_clusters: int,
    fixed: jax.Array | None = None,
    active: jax.Array,
    giving: Giving | None = None,
) -> Reassigned:
    """Sweep over the rows in random order until a whole sweep moves nothing.

    ``labels`` (S, B, r) are the starts. A row that is alone in its cluster stays there, since an
    empty cluster costs nothing; statistics are recomputed from the labels after every sweep.
    Clusters are given up before the first sweep and after every one.
    """
    free = rows.mass.reshape(-1) > 0
    if fixed is not None:
        free = free & (fixed.reshape(-1) < 0)
    group = jnp.repeat(rows.group, rows.mass.shape[1])
    mass, number = rows.mass.reshape(-1), rows.number.reshape(-1)
    shape = rows.mass.shape
    if isinstance(rows.x, Sparse):
        make = _sparse_visit
    else:
        make = _moving_visit if moving(terms) else _dense_visit
    visit, prepare = make(terms, rows, mass, group)

    def run(start):
        labels, seed = start

        def sweep(state, count):
            labels, active = state
            priority = uniform(stream(stream(seed, count), number), (), mass.dtype)
            order = jnp.argsort(jnp.where(free, priority, 2.0))
            cells = label_cells(rows, labels.reshape(shape), n_clusters)
            state = prepare(cells)

            # A visit reads the old labels and writes the new ones elsewhere: where one array is
            # both read and written in a step, XLA may copy all of it every time.
            def step(j, inner):
                state, new = inner
                i = order[j]
                state, label = visit(i, labels[i], active, state)
                return state, jax.lax.dynamic_update_index_in_dim(new, label, j, 0)

            before = labels[order]
            _, after = jax.lax.fori_loop(0, free.sum(), step, (state, before))
            rest = (after == before).all()
            labels = labels.at[order].set(after, unique_indices=True).reshape(shape)
            labels, new_active = _tidied(terms, rows, labels, active, fixed, giving)
            rest = rest & (new_active == active).all()
            cells = label_cells(rows, labels, n_clusters)
            labels, active, joined = _joined(terms, labels, cells, new_active, fixed, giving, rest)
            if giving is not None:
                cells = label_cells(rows, labels, n_clusters)
            values = objective(terms, cells)[0], active.sum().astype(mass.dtype)
            return (labels.reshape(-1), active), rest & ~joined, values

        room = blank(TRACE, mass.dtype)
        labels, existing = _tidied(terms, rows, labels, active, fixed, giving)
        start = labels.reshape(-1), existing
        found = iterate(sweep, start, max_iter, trace=(room, room))
        return found.state[0].reshape(shape), *found.trace, found.n_iter, found.done

    seeds = stream(seed, jnp.arange(labels.shape[0]))
    return Reassigned(*jax.lax.map(run, (labels, seeds)))


def _moving_visit(terms, rows, mass, group):
    """Visit rows under costs that know what a row changes."""
    x = rows.x.x.reshape(-1, rows.x.x.shape[-1])
    eps = 2 * jnp.finfo(mass.dtype).eps

    def prepare(cells):
        # Below the rounding of the cells' costs a difference says nothing.
        sizes = [jnp.abs(t.weight) * jnp.abs(t.cost(cells[0, 0])).max() for t in terms]
        return track(terms, cells), eps * functools.reduce(jnp.add, sizes)

    def visit(i, old, active, state):
        states, rounding = state
        join, leave = moves(terms, states, x[i][None], old[None])
        change = jnp.where(active & ~jnp.isnan(join[0]), join[0] + leave, jnp.inf)
        change = change.at[old].set(-rounding)
        new = change.argmin().astype(old.dtype)

        def move(states):
            return tuple(
                term.cost.moved(own, x[i], old, new)
                for term, own in zip(terms, states, strict=True)
            )

        return (jax.lax.cond(new == old, lambda states: states, move, states), rounding), new

    return visit, prepare


def _dense_visit(terms, rows, mass, group):
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

    return visit, prepare


_CHUNK = 32  # entries of a sparse row that are looked at together


def _sparse_visit(terms, rows, mass, group):
    """Visit a row at the cost of its non-zero entries; for costs that are sums over features."""
    for term in terms:
        if not isinstance(term.cost, SeparableCost) or term.view is not None:
            raise TypeError(
                "sparse rows are reassigned under costs that are sums over features; got "
                f"{term.cost!r}; use annealing, or dense rows"
            )
    x, p = rows.x, rows.x.n_statistics
    # A slice of fixed length is far cheaper than a gather, but must not reach past the end.
    columns = jnp.pad(x.column.reshape(-1), (0, _CHUNK), constant_values=p - 1)
    values = jnp.pad(x.value.reshape(-1), (0, _CHUNK))
    eps = 2 * jnp.finfo(mass.dtype).eps

    def prepare(cells):
        own = [t.cells(cells)[:, 0] for t in terms]
        tables = tuple(jnp.swapaxes(c, 1, 2).reshape(-1, c.shape[1]) for c in own)
        return tables, tuple(c[..., :-1].sum(-1) for c in own)

    def visit(i, old, active, state):
        tables, draws = state
        k = active.shape[0]
        places = [group[i] if term.by_group else 0 for term in terms]
        first, end = x.start[i], x.start[i + 1]
        chunks = (end - first + _CHUNK - 1) // _CHUNK
        here = jax.nn.one_hot(old, k, dtype=mass.dtype)

        def entries(c):
            at = first + c * _CHUNK
            column = jax.lax.dynamic_slice(columns, (at,), (_CHUNK,))
            value = jax.lax.dynamic_slice(values, (at,), (_CHUNK,)) * mass[i]
            return column, jnp.where(jnp.arange(_CHUNK) < end - at, value, 0)

        def tally(c, carry):
            change, total = carry
            column, value = entries(c)
            feature = jnp.where(column < p - 1, value, 0)
            for term, table, place in zip(terms, tables, places, strict=True):
                cost = term.cost.column
                if cost is None:
                    continue
                cell = table.at[place * p + column].get(mode="promise_in_bounds")
                without = cell - feature[:, None] * here
                more = (cost(without + feature[:, None]) - cost(without)).sum(0)
                change += term.weight * more
            return change, total + feature.sum()

        zero = jnp.zeros(k, mass.dtype), jnp.zeros((), mass.dtype)
        change, total = jax.lax.fori_loop(0, chunks, tally, zero)
        scale = jnp.zeros((), mass.dtype)
        for term, table, draw, place in zip(terms, tables, draws, places, strict=True):
            drawn = draw[place] - total * here
            held = table[place * p + p - 1] - mass[i] * here
            before = term.cost.rest(drawn, held)
            change += term.weight * (term.cost.rest(drawn + total, held + mass[i]) - before)
            if term.cost.column is not None:
                scale += jnp.abs(term.weight * before).max()
        change = jnp.where(active, change, jnp.inf)
        new = jnp.argmin(change)
        new = jnp.where(change[old] <= change[new] + eps * scale, old, new).astype(old.dtype)

        shift = jax.nn.one_hot(new, k, dtype=mass.dtype) - here

        def move(c, tables):
            column, value = entries(c)
            # One scatter of whole rows of K: two of single numbers cost more than all the rest.
            return tuple(
                table.at[place * p + column].add(value[:, None] * shift, mode="promise_in_bounds")
                for table, place in zip(tables, places, strict=True)
            )

        tables = jax.lax.fori_loop(0, jnp.where(new == old, 0, chunks), move, tables)
        draws = tuple(
            draw.at[place].add(total * shift) for draw, place in zip(draws, places, strict=True)
        )
        return (tables, draws), new

    return visit, prepare


def batched(
    terms: Terms,
    rows: Rows,
    labels: jax.Array,
    seed: jax.Array,
    *,
    max_iter: jax.Array,
    n_clusters: int,
    fixed: jax.Array | None = None,
    active: jax.Array,
    giving: Giving | None = None,
) -> Reassigned:
    """Move many rows at once, backing off where the objective does not fall.

    First every row goes to the cluster of least score while the exact objective falls (one matrix
    product a step). Then exact differences of all rows are computed; a random fraction f of the
    rows that would improve moves, and always the best one; if the objective did not fall, f is
    divided by 4 and the same differences are used again; if it did, f is doubled. It ends when no
    row would improve, which is the same kind of optimum as `sequential` reaches. Clusters are given
    up in between.
    """
    free = rows.mass > 0
    if fixed is not None:
        free = free & (fixed < 0)
    dtype = rows.mass.dtype
    eps = jnp.finfo(dtype).eps

    def evaluate(labels):
        cells = label_cells(rows, labels, n_clusters)
        return cells, objective(terms, cells)[0]

    def run(start):
        labels, seed = start
        labels, existing = _tidied(terms, rows, labels, active, fixed, giving)

        def follow(labels):
            w = one_hot(labels[..., None], rows.mass, n_clusters)
            cost = jnp.where(existing, score(terms, rows, w)[:, :, 0], jnp.inf)
            return jnp.where(free, cost.argmin(-1).astype(labels.dtype), labels)

        def slide(state, _):
            labels, value = state
            new = follow(labels)
            _, new_value = evaluate(new)
            better = new_value < value
            labels, value = jnp.where(better, new, labels), jnp.where(better, new_value, value)
            return (labels, value), ~better, (value, existing.sum().astype(dtype))

        room = blank(TRACE, dtype), blank(TRACE, dtype)
        slid = iterate(slide, (labels, evaluate(labels)[1]), max_iter, trace=room)

        def gains(labels, cells, existing):
            change = jnp.where(existing, differences(terms, rows, labels, cells), jnp.inf)
            # Below the rounding of the cells' costs a difference says nothing.
            sizes = [jnp.abs(t.weight) * jnp.abs(t.cost(t.cells(cells))).max() for t in terms]
            gain = change.min(-1) + 2 * eps * functools.reduce(jnp.add, sizes)
            return gain, change.argmin(-1).astype(labels.dtype)

        def hop(state, count):
            (labels, cells, value, existing), fraction, gain, goal, fresh = state
            gain, goal = jax.lax.cond(
                fresh, gains, lambda *_: (gain, goal), labels, cells, existing
            )
            improving = free & (gain < 0)
            draw = uniform(stream(stream(seed, count), rows.number), (), gain.dtype)
            best = jnp.where(improving, gain, jnp.inf).argmin()
            alone = jnp.arange(gain.size).reshape(gain.shape) == best
            chosen = improving & ((draw < fraction) | alone)
            new = jnp.where(chosen, goal, labels)
            new_cells, new_value = evaluate(new)
            better = new_value < value
            # One row that does not pay although its difference says so: rounding, at the optimum.
            over = ~improving.any() | (~better & (fraction < 1e-6))
            fraction = jnp.where(better, jnp.minimum(1, 2 * fraction), fraction / 4)
            labels, cells, value = jax.tree.map(
                lambda a, b: jnp.where(better, a, b),
                (new, new_cells, new_value),
                (labels, cells, value),
            )
            if giving is not None:
                fewer = _fewer(labels, cells, value, existing, over)
                changed = (fewer[3] != existing).any()
                labels, cells, value, existing = fewer
                over, better = over & ~changed, better | changed
                fraction = jnp.where(changed, 1.0, fraction)
            values = value, existing.sum().astype(dtype)
            return ((labels, cells, value, existing), fraction, gain, goal, better), over, values

        def _fewer(labels, cells, value, existing, rest):
            new, left = _tidied(terms, rows, labels, existing, fixed, giving)
            new, left, _ = _joined(
                terms, new, cells, left, fixed, giving, rest & (left == existing).all()
            )
            return jax.lax.cond(
                (left == existing).all(),
                lambda: (labels, cells, value, existing),
                lambda: (new, *evaluate(new), left),
            )

        none = jnp.zeros(labels.shape, dtype)
        labels = slid.state[0]
        start = (labels, *evaluate(labels), existing), 1.0, none, labels, True
        found = iterate(hop, start, max_iter, count=slid.n_iter, trace=slid.trace)
        return found.state[0][0], *found.trace, found.n_iter, found.done

    seeds = stream(seed, jnp.arange(labels.shape[0]))
    return Reassigned(*jax.lax.map(run, (labels, seeds)))
