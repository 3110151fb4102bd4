"""Costs of cross-entropy clustering besides the features: sizes, parameters, label impurity.

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
    """``-N log(N / n)`` of a cell of N of the n rows, and what its parameters take.

    Attributes
    ----------
    total : n
    parameters : number d of a cluster's own parameters, which cost ``d/2 log N``, and its weight
        ``log(n) / 2``; 0 charges neither
    """

    total: jax.Array
    parameters: jax.Array

    def _of(self, w: jax.Array) -> jax.Array:
        log_w, log_n = jnp.log(jnp.maximum(w, 1e-300)), jnp.log(self.total)
        charged = self.parameters * log_w + jnp.where(self.parameters > 0, log_n, 0)
        return w * log_n - xlogx(w) + jnp.where(w > 0.5, 0.5 * charged, 0)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p)."""
        return self._of(cell[..., -1])

    def track(self, cells: jax.Array) -> jax.Array:
        """Masses of cells (K, p)."""
        return cells[:, -1]

    def moves(self, state, row, label):
        """See `nrprob.engines.optimise.differences.IncrementalCost`."""
        here = self._of(state)
        join = jnp.broadcast_to(self._of(state + 1) - here, (len(row), len(state)))
        return join, (self._of(state - 1) - here)[label]

    def moved(self, state, row, old, new):
        """See `nrprob.engines.optimise.differences.IncrementalCost`."""
        return state.at[old].add(-1).at[new].add(1)


class Labelled(NamedTuple):
    """Cells (K,) of a `LabelCost`: masses, and counts (K, c) of their labelled rows by class."""

    mass: jax.Array
    counts: jax.Array


@node
class LabelCost:
    """``N h`` of a cell of N rows, where h is the entropy of the classes of those with a label.

    0 for a cell without labelled rows: it mixes nothing.

    Attributes
    ----------
    first : the first of the classes' columns among the statistics; they end before the mass
    column : the same in the rows
    """

    first: int = field(metadata=_STATIC)
    column: int = field(metadata=_STATIC)

    @staticmethod
    def _of(mass: jax.Array, labelled: jax.Array, sum_xlogx: jax.Array) -> jax.Array:
        """Cost from the mass, the labelled rows, and the sum of x log x of their classes."""
        some = labelled > 0.5
        entropy = (xlogx(labelled) - sum_xlogx) / jnp.where(some, labelled, 1)
        return jnp.where(some, mass * jnp.maximum(entropy, 0), 0)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p)."""
        counts = cell[..., self.first : -1]
        return self._of(cell[..., -1], counts.sum(-1), xlogx(counts).sum(-1))

    def track(self, cells: jax.Array) -> Labelled:
        """State of cells (K, p)."""
        return Labelled(cells[:, -1], cells[:, self.first : -1])

    def moves(self, state, row, label):
        """See `nrprob.engines.optimise.differences.IncrementalCost`.

        There are but as many different rows as classes, and those without.
        """
        mass, counts = state
        labelled, own = counts.sum(-1), xlogx(counts)
        total = own.sum(-1)
        here = self._of(mass, labelled, total)

        def table(sign):
            with_class = total[:, None] + xlogx(counts + sign) - own
            more = labelled[:, None] + sign
            some = self._of(mass[:, None] + sign, more, with_class) - here[:, None]
            return some.T, self._of(mass + sign, labelled, total) - here

        classes = row[:, self.column : -1]
        without = 1 - classes.sum(-1, keepdims=True)

        def change(sign):
            some, none = table(sign)
            return classes @ some + without * none

        leave = jnp.take_along_axis(change(-1.0), label[:, None], 1)[:, 0]
        return change(1.0), leave

    def moved(self, state, row, old, new):
        """See `nrprob.engines.optimise.differences.IncrementalCost`."""
        classes = row[self.column : -1]
        return Labelled(
            state.mass.at[old].add(-1).at[new].add(1),
            state.counts.at[old].add(-classes).at[new].add(classes),
        )
