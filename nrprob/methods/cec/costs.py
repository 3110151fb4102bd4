"""Cell costs of cross-entropy clustering: cluster sizes, parameters, label entropy.

All are moving costs (see `nrprob.engines.optimise.differences`) of rows of mass 1.
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
    """Entropy cost ``-N log(N / n)`` of a cell of N of n rows, plus the cost of its parameters.

    Attributes
    ----------
    total : n
    parameters : number d of parameters per cluster. They cost ``d/2 log N``, and the weight of the
        cluster costs ``log(n) / 2``; 0 omits both costs
    """

    total: jax.Array
    parameters: jax.Array

    def _cell_cost(self, w: jax.Array) -> jax.Array:
        log_w, log_n = jnp.log(jnp.maximum(w, 1e-300)), jnp.log(self.total)
        charged = self.parameters * log_w + jnp.where(self.parameters > 0, log_n, 0)
        return w * log_n - xlogx(w) + jnp.where(w > 0.5, 0.5 * charged, 0)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p)."""
        return self._cell_cost(cell[..., -1])

    def track_cells(self, cells: jax.Array) -> jax.Array:
        """Masses of cells (K, p)."""
        return cells[:, -1]

    def move_changes(self, state, row, label):
        """See `nrprob.engines.optimise.differences.IncrementalCost`."""
        current = self._cell_cost(state)
        join = jnp.broadcast_to(self._cell_cost(state + 1) - current, (len(row), len(state)))
        return join, (self._cell_cost(state - 1) - current)[label]

    def apply_move(self, state, row, old, new):
        """See `nrprob.engines.optimise.differences.IncrementalCost`."""
        return state.at[old].add(-1).at[new].add(1)


class Labelled(NamedTuple):
    """State of cells (K,) of a `LabelCost`: masses, and class counts (K, c) of labelled rows."""

    mass: jax.Array
    counts: jax.Array


@node
class LabelCost:
    """``N h`` of a cell of N rows, where h is the entropy of the classes of its labelled rows.

    A cell without labelled rows costs 0.

    Attributes
    ----------
    first : index of the first class column among the statistics; the class columns end before the
        mass
    column : index of the first class column in the rows
    """

    first: int = field(metadata=_STATIC)
    column: int = field(metadata=_STATIC)

    @staticmethod
    def _cell_cost(mass: jax.Array, labelled: jax.Array, sum_xlogx: jax.Array) -> jax.Array:
        """Cost from masses, numbers of labelled rows, and sums of x log x over class counts."""
        some = labelled > 0.5
        entropy = (xlogx(labelled) - sum_xlogx) / jnp.where(some, labelled, 1)
        return jnp.where(some, mass * jnp.maximum(entropy, 0), 0)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p)."""
        counts = cell[..., self.first : -1]
        return self._cell_cost(cell[..., -1], counts.sum(-1), xlogx(counts).sum(-1))

    def track_cells(self, cells: jax.Array) -> Labelled:
        """State of cells (K, p)."""
        return Labelled(cells[:, -1], cells[:, self.first : -1])

    def move_changes(self, state, row, label):
        """See `nrprob.engines.optimise.differences.IncrementalCost`.

        All rows of one class change the cost equally: a table has one entry per class, and one for
        unlabelled rows.
        """
        mass, counts = state
        labelled, terms = counts.sum(-1), xlogx(counts)
        total = terms.sum(-1)
        current = self._cell_cost(mass, labelled, total)

        def class_changes(sign):
            with_class = total[:, None] + xlogx(counts + sign) - terms
            more = labelled[:, None] + sign
            by_class = self._cell_cost(mass[:, None] + sign, more, with_class) - current[:, None]
            return by_class.T, self._cell_cost(mass + sign, labelled, total) - current

        classes = row[:, self.column : -1]
        unlabelled = 1 - classes.sum(-1, keepdims=True)

        def row_changes(sign):
            by_class, without_class = class_changes(sign)
            return classes @ by_class + unlabelled * without_class

        leave = jnp.take_along_axis(row_changes(-1.0), label[:, None], 1)[:, 0]
        return row_changes(1.0), leave

    def apply_move(self, state, row, old, new):
        """See `nrprob.engines.optimise.differences.IncrementalCost`."""
        classes = row[self.column : -1]
        return Labelled(
            state.mass.at[old].add(-1).at[new].add(1),
            state.counts.at[old].add(-classes).at[new].add(classes),
        )
