"""Cell costs of cross-entropy clustering: cluster sizes, parameters, label entropy.

A cell is a cluster. Its cost is a function of its p statistics, the sums over its rows; the last
statistic is its mass. All costs are incremental: their change by the move of one row has a closed
form, as the protocol `IncrementalCost` of `nrprob.engines.optimise.differences` demands. The
arguments of the methods are described there. In `move_changes`, b rows are candidates for a move,
and K cells exist.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.statistics.xlogx import xlogx
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}


@node
class SizeCost:
    """Entropy cost ``-N log(N / n)`` of a cell of mass N, plus the cost of its parameters.

    Here n is the total mass of all rows.

    Attributes
    ----------
    total : total mass n of all rows
    charge : cost of the parameters of a cell that is not empty
    least : mass below which a cell counts as empty; it is less than the mass of any row
    """

    total: jax.Array
    charge: jax.Array
    least: jax.Array

    def _cell_cost(self, w: jax.Array) -> jax.Array:
        return w * jnp.log(self.total) - xlogx(w) + jnp.where(w > self.least, self.charge, 0)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of cells with statistics (..., p)."""
        return self._cell_cost(cell[..., -1])

    def track_cells(self, cells: jax.Array) -> jax.Array:
        """Masses (K,) of the cells, from their statistics (K, p)."""
        return cells[:, -1]

    def move_changes(self, state, row, mass, label):
        """Cost changes (b, K) if rows join each cell, and (b,) if they leave their current cell."""
        current = self._cell_cost(state)
        join = self._cell_cost(state + mass[:, None]) - current
        return join, self._cell_cost(state[label] - mass) - current[label]

    def apply_move(self, state, row, mass, old, new):
        """Masses (K,) of the cells after one row has moved from cell ``old`` to cell ``new``."""
        return state.at[old].add(-mass).at[new].add(mass)


class Labelled(NamedTuple):
    """State of the K cells of a `LabelCost`, for c classes.

    Attributes
    ----------
    mass : (K,) masses of the cells
    counts : (K, c) masses of the labelled rows of every class
    """

    mass: jax.Array
    counts: jax.Array


@node
class LabelCost:
    """``N h`` of a cell of mass N, where h is the entropy of the classes of its labelled rows.

    A cell without labelled rows costs 0.

    Attributes
    ----------
    first : index of the first class indicator among the statistics of a cell; the indicators end
        before the mass
    column : index of the first class indicator among the columns of a row
    least : mass of labelled rows below which a cell counts as unlabelled; it is less than the mass
        of any row
    """

    least: jax.Array
    first: int = field(metadata=_STATIC)
    column: int = field(metadata=_STATIC)

    def _cell_cost(self, mass: jax.Array, labelled: jax.Array, sum_xlogx: jax.Array) -> jax.Array:
        """Cost of cells.

        Parameters
        ----------
        mass : masses of the cells
        labelled : masses of their labelled rows
        sum_xlogx : sums over classes of x log x, for the masses x of the classes in the cells
        """
        some = labelled > self.least
        entropy = (xlogx(labelled) - sum_xlogx) / jnp.where(some, labelled, 1)
        return jnp.where(some, mass * jnp.maximum(entropy, 0), 0)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of cells with statistics (..., p)."""
        counts = cell[..., self.first : -1]
        return self._cell_cost(cell[..., -1], counts.sum(-1), xlogx(counts).sum(-1))

    def track_cells(self, cells: jax.Array) -> Labelled:
        """State of the cells, from their statistics (K, p)."""
        return Labelled(cells[:, -1], cells[:, self.first : -1])

    def move_changes(self, state, row, mass, label):
        """Cost changes (b, K) if rows join each cell, and (b,) if they leave their current cell."""
        size, counts = state
        terms = xlogx(counts)
        labelled, total = counts.sum(-1), terms.sum(-1)
        current = self._cell_cost(size, labelled, total)
        classes = row[:, self.column : -1]
        has_label = classes.sum(-1)
        # The move of a row changes the mass of its class only. Split the sum of x log x over
        # classes into the mass x of this class (entry) and the terms of all other classes (others).
        entry, others = classes @ counts.T, total - classes @ terms.T

        def changed_cost(step, counted, size, labelled, entry, others):
            """Cost of cells whose mass changes by ``step`` when a row moves.

            ``counted`` is the labelled part of the change: ``step`` if the row has a label, else 0.
            """
            total = others + xlogx(entry + counted)
            return self._cell_cost(size + step, labelled + counted, total)

        counted = mass * has_label
        join = changed_cost(mass[:, None], counted[:, None], size, labelled, entry, others)
        row_index = jnp.arange(len(row))
        left = changed_cost(
            -mass, -counted, size[label], labelled[label],
            entry[row_index, label], others[row_index, label],
        )  # fmt: skip
        return join - current, left - current[label]

    def apply_move(self, state, row, mass, old, new):
        """State of the cells after one row has moved from cell ``old`` to cell ``new``."""
        classes = mass * row[self.column : -1]
        return Labelled(
            state.mass.at[old].add(-mass).at[new].add(mass),
            state.counts.at[old].add(-classes).at[new].add(classes),
        )
