"""Costs of the clusters in cross-entropy clustering: sizes, parameters, label entropy.

The engines call a cluster a cell. Its cost is a function of its p statistics, which are sums over
its rows. The last statistic is the mass of the cell, the sum of the weights of its rows. The
classes implement the protocol `IncrementalCost` of `nrprob.engines.optimise.differences`, which
describes the arguments: if one row moves, all costs change in closed form. In `move_changes`, b
rows are candidates for a move between K cells.
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
    """Entropy cost ``-N log(N / n)`` of a cell of mass N, plus the cost of its parameters, in nats.

    Here n is the total mass of all rows.

    Attributes
    ----------
    total : total mass n of all rows
    charge : cost in nats of the parameters of a cell that is not empty
    least : mass below which a cell counts as empty; it is less than the mass of any row
    """

    total: jax.Array
    charge: jax.Array
    least: jax.Array

    def _cell_cost(self, w: jax.Array) -> jax.Array:
        return w * jnp.log(self.total) - xlogx(w) + jnp.where(w > self.least, self.charge, 0)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Entropy and parameter costs (...) of cells with statistics (..., p)."""
        return self._cell_cost(cell[..., -1])

    def track_cells(self, cells: jax.Array) -> jax.Array:
        """Masses (K,) of the cells, from their statistics (K, p)."""
        return cells[:, -1]

    def move_changes(self, state, row, mass, label):
        """Changes of the costs by moves of b rows.

        The first array (b, K) has the change of the cost of every cell if a row joins the cell. The
        second array (b,) has the change of the cost of the current cell if the row leaves it.
        """
        current = self._cell_cost(state)
        join = self._cell_cost(state + mass[:, None]) - current
        return join, self._cell_cost(state[label] - mass) - current[label]

    def apply_move(self, state, row, mass, old, new):
        """Masses (K,) of the cells after one row has moved from cell ``old`` to cell ``new``."""
        return state.at[old].add(-mass).at[new].add(mass)


class Labelled(NamedTuple):
    """Masses of K cells and of their c classes, the state of a `LabelCost` during a search.

    Attributes
    ----------
    mass : (K,) masses of the cells
    counts : (K, c) masses of the labelled rows of every class in every cell
    """

    mass: jax.Array
    counts: jax.Array


@node
class LabelCost:
    """Label cost ``N h`` of a cell of mass N, where h is the entropy of the classes in the cell.

    The entropy is computed from the labelled rows of the cell, in nats. A cell without labelled
    rows costs 0.

    Attributes
    ----------
    first : index of the first class indicator among the statistics of a cell; the indicators are
        all statistics from there to the last but one
    column : index of the first class indicator among the columns of a row
    least : mass of labelled rows below which a cell counts as unlabelled; it is less than the mass
        of any row
    """

    least: jax.Array
    first: int = field(metadata=_STATIC)
    column: int = field(metadata=_STATIC)

    def _cell_cost(self, mass: jax.Array, labelled: jax.Array, sum_xlogx: jax.Array) -> jax.Array:
        """Label costs of cells; all arrays have one entry per cell.

        Parameters
        ----------
        mass : masses of the cells
        labelled : masses of the labelled rows in the cells
        sum_xlogx : sums over classes of x log x, for the masses x of the classes in the cells
        """
        some = labelled > self.least
        entropy = (xlogx(labelled) - sum_xlogx) / jnp.where(some, labelled, 1)
        return jnp.where(some, mass * jnp.maximum(entropy, 0), 0)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Label costs (...) of cells with statistics (..., p)."""
        counts = cell[..., self.first : -1]
        return self._cell_cost(cell[..., -1], counts.sum(-1), xlogx(counts).sum(-1))

    def track_cells(self, cells: jax.Array) -> Labelled:
        """Masses and class masses of the cells, from their statistics (K, p)."""
        return Labelled(cells[:, -1], cells[:, self.first : -1])

    def move_changes(self, state, row, mass, label):
        """Changes of the costs by moves of b rows.

        The first array (b, K) has the change of the cost of every cell if a row joins the cell. The
        second array (b,) has the change of the cost of the current cell if the row leaves it.
        """
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
            """Costs of cells after a row moves, which changes their masses by ``step``.

            ``counted`` is the change of the labelled mass: ``step`` if the row has a label, else 0.
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
        """Masses of the cells, in all and by class, after a row has moved.

        The row moves from cell ``old`` to cell ``new``.
        """
        classes = mass * row[self.column : -1]
        return Labelled(
            state.mass.at[old].add(-mass).at[new].add(mass),
            state.counts.at[old].add(-classes).at[new].add(classes),
        )
