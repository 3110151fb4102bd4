r"""Changes of an objective when a row moves or two clusters merge, and removal of small clusters.

For a hard partition, moving row x from cell a to cell b changes a term of cost g by

.. math:: \Delta = \lambda \, [ g(S_b + s(x)) - g(S_b) + g(S_a - s(x)) - g(S_a) ],

where s(x) are the statistics of the row, S_a the sum of the statistics of cell a, and lambda the
weight of the term. The change is the sum of a change by joining b and a change by leaving a. Both
changes are computed by evaluating g, except for an `IncrementalCost`, which has closed forms.
F is the objective, the sum of all terms.

Shapes: B blocks of r rows, or b rows; K clusters; p statistics of a row; ``groups`` known groups;
``columns`` columns of the array that stores the rows.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp

from nrprob.statistics.rows import Rows, Sparse
from nrprob.statistics.terms import Term, Terms, membership_gradient, one_hot


class IncrementalCost(Protocol):
    """Cell cost with closed forms of the changes by moves of single rows.

    The cells of a term with such a cost must be clusters, not pairs of known group and cluster. The
    term must have no view; see `nrprob.statistics.terms.Term`.
    """

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Costs (...) of cells with statistics (..., p)."""

    def track_cells(self, cells: jax.Array) -> Any:
        """State of K cells with statistics (K, p), for `move_changes` and `apply_move`."""

    def move_changes(
        self, state: Any, row: jax.Array, mass: jax.Array, label: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Cost changes (b, K) if a row joins each cell, and (b,) if it leaves its current cell.

        ``row`` (b, columns) are the rows, ``mass`` (b,) their masses and ``label`` (b,) their
        current cells. The change by joining the current cell is undefined. A row that must not
        leave its cell has an infinite change.
        """

    def apply_move(
        self, state: Any, row: jax.Array, mass: jax.Array, old: jax.Array, new: jax.Array
    ) -> Any:
        """State after one row (columns,) has moved from cell ``old`` to cell ``new``."""


def all_incremental(terms: Terms) -> bool:
    """Whether the costs of all terms of the objective can be updated after a move of one row.

    Raises TypeError if the costs of some terms can be updated, and the costs of others cannot.
    """
    incremental = [hasattr(term.cost, "move_changes") for term in terms]
    if any(incremental) and not all(incremental):
        raise TypeError(
            "either all terms must have incremental costs, or none; got terms of both types; pass "
            "terms of one type"
        )
    return all(incremental)


def _incremental_cost(term: Term) -> IncrementalCost:
    return cast(IncrementalCost, term.cost)


def label_cells(rows: Rows, labels: jax.Array, n_clusters: int) -> jax.Array:
    """Cell statistics (groups, 1, K, p) of hard labels (B, r)."""
    return rows.cells(one_hot(labels[..., None], rows.mass, n_clusters))


def track_cells(terms: Terms, cells: jax.Array) -> tuple[Any, ...]:
    """Return, for every term, the state of its incremental cost at cell statistics (1, 1, K, p)."""
    return tuple(_incremental_cost(term).track_cells(cells[0, 0]) for term in terms)


def move_changes(
    terms: Terms, states: tuple[Any, ...], row: jax.Array, mass: jax.Array, label: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Changes of F (b, K) if a row joins each cell, and (b,) if it leaves its current cell.

    The costs of all terms must be incremental, and ``states`` are the states of these costs. See
    `IncrementalCost.move_changes` for the other arguments.
    """
    join, leave = 0.0, 0.0
    for term, state in zip(terms, states, strict=True):
        more, less = _incremental_cost(term).move_changes(state, row, mass, label)
        join, leave = join + term.weight * more, leave + term.weight * less
    return join, leave


def join_leave_changes(terms: Terms, rows: Rows, labels: jax.Array, cells: jax.Array):
    """Changes of F if a row joins each cell (B, r, K), and if it leaves its current one (B, r).

    The rows must be dense. ``cells`` (groups, 1, K, p) are the statistics under ``labels`` (B, r).
    """
    if all_incremental(terms):
        states = track_cells(terms, cells)
        blocks = rows.x.x, rows.mass, labels
        return jax.lax.map(lambda b: move_changes(terms, states, *b), blocks)
    cells_of_terms = tuple(t.cells(cells)[:, 0] for t in terms)

    def change_block(block):
        x, mass, group, label = block
        row = x * mass[:, None]
        join = jnp.zeros((label.size, cells.shape[2]), mass.dtype)
        leave = jnp.zeros(label.size, mass.dtype)
        for term, term_cells in zip(terms, cells_of_terms, strict=True):
            group_cells = term_cells[group if term.by_group else 0]
            statistics = term.row(row, group)
            cost = term.cost(group_cells)
            join += term.weight * (term.cost(group_cells + statistics[:, None]) - cost)
            leave += term.weight * (term.cost(group_cells[label] - statistics) - cost[label])
        return join, leave

    return jax.lax.map(change_block, (rows.x.x, rows.mass, rows.group, labels))


def move_differences(terms: Terms, rows: Rows, labels: jax.Array, cells: jax.Array) -> jax.Array:
    """Change of F (B, r, K) when one row moves to each cluster; 0 for its current cluster.

    ``cells`` (groups, 1, K, p) are the statistics under ``labels`` (B, r). The rows must be dense.
    Forbidden moves and changes that are NaN have infinite cost.
    """
    join, leave = join_leave_changes(terms, rows, labels, cells)
    change = join + leave[..., None]
    stay = jnp.arange(change.shape[-1]) == labels[..., None]
    return jnp.where(stay, 0, jnp.where(jnp.isnan(change), jnp.inf, change))


def remove_small_clusters(
    terms: Terms,
    rows: Rows,
    labels: jax.Array,
    active: jax.Array,
    fixed: jax.Array | None,
    min_mass: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Labels (B, r) and active clusters (K,) after removing clusters smaller than ``min_mass``.

    The smallest cluster is removed first. Each of its rows moves to the cluster in which this row
    alone costs least (for sparse rows: to first order); F may increase. The last cluster is never
    removed, and neither are clusters with labelled rows, where ``fixed`` (B, r) is not -1.
    """
    k = active.shape[0]
    labelled = jnp.zeros(k, bool)
    if fixed is not None:
        labelled = ((fixed[..., None] == jnp.arange(k)) & (rows.mass > 0)[..., None]).any((0, 1))

    def cluster_sizes(labels):
        return one_hot(labels[..., None], rows.mass, k).sum((0, 1, 2))

    def small_clusters(labels, active):
        candidates = active & ~labelled & (cluster_sizes(labels) < min_mass)
        return candidates & (active.sum() > 1)

    def any_small(state):
        return small_clusters(*state).any()

    def remove_smallest(state):
        labels, active = state
        smallest = jnp.where(small_clusters(*state), cluster_sizes(labels), jnp.inf).argmin()
        remaining = active.at[smallest].set(False)
        if isinstance(rows.x, Sparse):
            w = one_hot(labels[..., None], rows.mass, k)
            cost = membership_gradient(terms, rows, w)[:, :, 0]
        else:
            cost = join_leave_changes(terms, rows, labels, label_cells(rows, labels, k))[0]
        cost = jnp.where(remaining & ~jnp.isnan(cost), cost, jnp.inf)
        return jnp.where(
            labels == smallest, cost.argmin(-1).astype(labels.dtype), labels
        ), remaining

    return jax.lax.while_loop(any_small, remove_smallest, (labels, active))


def merge_differences(terms: Terms, cells: jax.Array) -> jax.Array:
    """Change of F (K, K) when two clusters merge; infinite where it is undefined.

    ``cells`` (groups, 1, K, p) are the statistics of the clusters.
    """
    k = cells.shape[2]
    change = jnp.zeros((k, k), cells.dtype)
    for term in terms:
        term_cells = term.cells(cells)[:, 0]
        cost = term.cost(term_cells)
        union = term.cost(term_cells[:, :, None] + term_cells[:, None])
        change += term.weight * (union - cost[:, :, None] - cost[:, None]).sum(0)
    return jnp.where(jnp.isnan(change), jnp.inf, change)
