"""Differences of an objective when rows move, join or leave; and removal of small clusters.

Costs of cells are recomputed, except an `IncrementalCost`, which computes the difference that one
row makes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp

from nrprob.statistics.rows import Rows, Sparse
from nrprob.statistics.terms import SMOOTHING, Term, Terms, membership_gradient, objective, one_hot


class IncrementalCost(Protocol):
    """Cell cost that knows what single rows of mass 1 change; of terms without groups and views."""

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p)."""

    def track_cells(self, cells: jax.Array) -> Any:
        """State of cells (K, p)."""

    def move_changes(
        self, state: Any, row: jax.Array, label: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What rows (b, columns) of cells ``label`` (b,) add by joining (b, K), and leaving (b,).

        Joining their own cell means nothing. What must not leave costs infinity.
        """

    def apply_move(self, state: Any, row: jax.Array, old: jax.Array, new: jax.Array) -> Any:
        """State after a row (columns,) went from one cell to another one."""


def all_incremental(terms: Terms) -> bool:
    """Whether all costs know what rows change."""
    known = [hasattr(term.cost, "move_changes") for term in terms]
    if any(known) and not all(known):
        raise TypeError("either all costs know what a row changes, or none; got some of both")
    return all(known)


def _moving(term: Term) -> IncrementalCost:
    return cast(IncrementalCost, term.cost)


def label_cells(rows: Rows, labels: jax.Array, n_clusters: int) -> jax.Array:
    """Cells (groups, 1, K, p) of hard labels (B, r)."""
    return rows.cells(one_hot(labels[..., None], rows.mass, n_clusters))


def track_cells(terms: Terms, cells: jax.Array) -> tuple[Any, ...]:
    """States of moving costs, from cells (1, 1, K, p)."""
    return tuple(_moving(term).track_cells(cells[0, 0]) for term in terms)


def move_changes(
    terms: Terms, states: tuple[Any, ...], row: jax.Array, label: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What rows add to F by joining (b, K) and leaving (b,), under moving costs."""
    join, leave = 0.0, 0.0
    for term, state in zip(terms, states, strict=True):
        more, less = _moving(term).move_changes(state, row, label)
        join, leave = join + term.weight * more, leave + term.weight * less
    return join, leave


def _of_blocks(terms: Terms, rows: Rows, labels: jax.Array, cells: jax.Array):
    """What rows add to F by joining (B, r, K) and leaving (B, r); dense rows only."""
    if all_incremental(terms):
        states = track_cells(terms, cells)
        return jax.lax.map(lambda b: move_changes(terms, states, *b), (rows.x.x, labels))
    own = tuple(t.cells(cells)[:, 0] for t in terms)

    def block(inner):
        x, mass, group, label = inner
        row = x * mass[:, None]
        join = jnp.zeros((label.size, cells.shape[2]), mass.dtype)
        leave = jnp.zeros(label.size, mass.dtype)
        for term, own_cells in zip(terms, own, strict=True):
            here = own_cells[group if term.by_group else 0]
            mine = term.row(row, group)
            cost = term.cost(here)
            join += term.weight * (term.cost(here + mine[:, None]) - cost)
            leave += term.weight * (term.cost(here[label] - mine) - cost[label])
        return join, leave

    return jax.lax.map(block, (rows.x.x, rows.mass, rows.group, labels))


def move_differences(terms: Terms, rows: Rows, labels: jax.Array, cells: jax.Array) -> jax.Array:
    """Change of F (B, r, K) when each row alone moves to each cluster; 0 where it is.

    ``labels`` (B, r) and their ``cells`` (groups, 1, K, p); dense rows only. Moves that are not
    allowed, or come to no number, cost infinity.
    """
    join, leave = _of_blocks(terms, rows, labels, cells)
    change = join + leave[..., None]
    stay = jnp.arange(change.shape[-1]) == labels[..., None]
    return jnp.where(stay, 0, jnp.where(jnp.isnan(change), jnp.inf, change))


# Nats for every row of a cluster of average size, above which taking rows in ruins the others: on
# data whose columns all vary it costs them up to 1.8, and 10 to 20 where a column hardly does.
RUIN = 2.0


class ClusterRemoval(NamedTuple):
    """Which clusters are given up while rows move; all traced.

    Attributes
    ----------
    smallest : mass below which a cluster is given up
    sparing : whether it stays where the others could not take in its rows without ruin: these cost
        them more than they do in a single cluster of all rows, by `RUIN` nats and more
    joining : whether two clusters become one where that lowers F
    """

    smallest: jax.Array
    sparing: jax.Array
    joining: jax.Array


def remove_small_clusters(
    terms: Terms,
    rows: Rows,
    labels: jax.Array,
    active: jax.Array,
    fixed: jax.Array | None,
    giving: ClusterRemoval,
) -> tuple[jax.Array, jax.Array]:
    """Labels (B, r) and active clusters (K,) once all are large enough, or spared.

    The smallest goes first. All its rows go at once where each by itself costs least; that may
    raise F. The last cluster stays, and so do those that hold rows whose label is given.

    A few rows that differ from all others where these hardly vary ruin a cluster that takes them
    in: its other rows leave, it becomes small itself, and so on down to the last one. Sparing
    such a small cluster stops that.
    """
    k = active.shape[0]
    held = jnp.zeros(k, bool)
    if fixed is not None:
        held = ((fixed[..., None] == jnp.arange(k)) & (rows.mass > 0)[..., None]).any((0, 1))

    def sizes(labels):
        return one_hot(labels[..., None], rows.mass, k).sum((0, 1, 2))

    def small(labels, active, spared):
        candidates = active & ~held & (sizes(labels) < giving.smallest)
        return jnp.where(active.sum() > 1, candidates & ~spared, False)

    def going(state):
        return small(*state).any()

    def give_up(state):
        labels, active, spared = state
        victim = jnp.where(small(*state), sizes(labels), jnp.inf).argmin()
        left = active.at[victim].set(False)
        cells = label_cells(rows, labels, k)
        if isinstance(rows.x, Sparse):
            w = one_hot(labels[..., None], rows.mass, k)
            cost = membership_gradient(terms, rows, w)[:, :, 0]
        else:
            cost = _of_blocks(terms, rows, labels, cells)[0]
        cost = jnp.where(left & ~jnp.isnan(cost), cost, jnp.inf)
        new = jnp.where(labels == victim, cost.argmin(-1).astype(labels.dtype), labels)

        def ruins():
            without = cells.at[:, :, victim].set(0)
            whole = jnp.zeros_like(cells).at[:, :, 0].set((1 + SMOOTHING) * cells.sum(2))
            tried = [cells, without, label_cells(rows, new, k), whole]
            # One evaluation of all four, each of which would be compiled; of the last, a change.
            few = jnp.zeros_like(cells).at[:, :, 0].set(cells[:, :, victim])
            change = [jnp.zeros_like(cells)] * 3 + [few]
            tried, change = (jnp.concatenate(parts, 1) for parts in (tried, change))
            value, slope = jax.jvp(partial(objective, terms), (tried,), (change,))
            sound = jnp.isfinite(value[0])  # its own cost is a number, too
            harm, single = value[2] - value[1], slope[3]
            return sound & (harm > single + RUIN * rows.mass.sum() / active.sum())

        stays = jax.lax.cond(giving.sparing, ruins, lambda: jnp.asarray(False))
        return (
            jnp.where(stays, labels, new),
            jnp.where(stays, active, left),
            spared.at[victim].set(stays),
        )

    start = labels, active, jnp.zeros(k, bool)
    labels, active, _ = jax.lax.while_loop(going, give_up, start)
    return labels, active


def merge_best_pair(
    terms: Terms, labels: jax.Array, cells: jax.Array, active: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Make one of the two clusters whose union lowers F most, if any does.

    Returns labels, active clusters, and whether two were joined.
    """
    k = active.shape[0]
    change = jnp.zeros((k, k), cells.dtype)
    for term in terms:
        own = term.cells(cells)[:, 0]
        cost = term.cost(own)
        union = term.cost(own[:, :, None] + own[:, None])
        change += term.weight * (union - cost[:, :, None] - cost[:, None]).sum(0)
    above = jnp.arange(k)[:, None] < jnp.arange(k)
    allowed = above & active[:, None] & active & ~jnp.isnan(change)
    change = jnp.where(allowed, change, jnp.inf)
    best = change.argmin()
    a, b = best // k, best % k
    pays = change[a, b] < 0
    labels = jnp.where(pays & (labels == b), a.astype(labels.dtype), labels)
    return labels, active.at[b].set(active[b] & ~pays), pays
