r"""Rows whose columns are normal within clusters once they are transformed: how, is drawn.

Of column j stands in place of x (standardised) the transform of Yeo and Johnson (2000),

    t(x) = ((1 + x)^l - 1) / l  for x >= 0,   -((1 - x)^(2 - l) - 1) / (2 - l)  for x < 0,

shifted and scaled to mean 0 and variance 1 on the rows of the fit, and its power l = l_j is one of
a grid, all as probable. With l = 1 columns are as they came; below, what is far to the right comes
nearer. The density of rows has the slopes of the transforms as factors, so that partitions under
different powers have lengths of the same rows. Clusters that are skew, alike in a column, then need
not be cut into pieces that are not.

Given the powers rows are those of a distribution without. Powers are drawn with centres and
covariances integrated out, by Metropolis steps of one column each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Partition
from nrprob.engines.sample.uniforms import below, in_order
from nrprob.methods.bayes.hyperparameters import Prior, SeenAsItIs
from nrprob.trees import node

POWERS = np.linspace(-2, 4, 121)  # as far to either side of 1
_STEPS = np.asarray([1, 2, 4, 8, 16])  # places on the grid that a step goes
_LOOKS = 10_000  # rows that are looked at for columns in a step, about
_TRIED = 4  # columns in a step
_LEAST = 1e-6  # variance of a column within clusters, of 1
STRONGEST = 4  # power of a distance that a transform grows with at most


def yeo_johnson(x: jax.Array, power: jax.Array) -> jax.Array:
    """The transform of x."""
    side = jnp.where(x >= 0, power, 2 - power)
    far = jnp.log1p(jnp.abs(x))
    flat = jnp.abs(side) < 1e-12
    side = jnp.where(flat, 1.0, side)
    return jnp.sign(x) * jnp.where(flat, far, jnp.expm1(side * far) / side)


def log_slope(x: jax.Array, power: jax.Array) -> jax.Array:
    """Log of its derivative."""
    return (power - 1) * jnp.sign(x) * jnp.log1p(jnp.abs(x))


@node
class TransformedTarget(SeenAsItIs):
    """A distribution over partitions; see `nrprob.methods.bayes.hyperparameters.PriorTarget`.

    Attributes
    ----------
    inner : the distribution given the powers in use, of transformed rows
    rows : (n', m) as they came
    which : (m,) of the powers in use, in ``values``
    values : (G,) powers
    shift, spread : (m, G) means and standard deviations of transformed columns
    stretch : (m, G) sums of the logs of the slopes over all rows
    power : that the density of rows given all else is raised to
    """

    inner: Any
    rows: jax.Array
    which: jax.Array
    values: jax.Array
    shift: jax.Array
    spread: jax.Array
    stretch: jax.Array
    power: jax.Array | np.float64

    def __getattr__(self, name: str) -> Any:
        # Whatever is asked given the powers; copies ask before there is an inner one.
        if name == "inner" or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _chosen(self, table: jax.Array, which: jax.Array | None = None) -> jax.Array:
        """Numbers (m,) of powers, by default those in use, from a table (m, G)."""
        which = self.which if which is None else which
        return jnp.take_along_axis(table, which[:, None], 1)[:, 0]

    def _moved(self, rows: jax.Array, which: jax.Array) -> jax.Array:
        """Rows (b, m), transformed by powers (m,)."""
        moved = yeo_johnson(rows, self.values[which])
        return (moved - self._chosen(self.shift, which)) / self._chosen(self.spread, which)

    @property
    def _stretched(self) -> jax.Array:
        """Nats by which slopes make the rows shorter."""
        return self.power * self._chosen(self.stretch).sum()

    def with_powers(self, which: jax.Array) -> TransformedTarget:
        """The distribution given other powers."""
        inner = self.inner.with_rows(self._moved(self.rows, which))
        return replace(self, inner=inner, which=which)

    def with_room(self, n_slots: int) -> TransformedTarget:
        """The distribution of those partitions that have ``n_slots`` clusters at most."""
        return replace(self, inner=self.inner.with_room(n_slots))

    def at(self, prior: Prior) -> TransformedTarget:
        """The distribution given other numbers of the prior."""
        return replace(self, inner=self.inner.at(prior))

    def reweighted(self, weight: jax.Array) -> TransformedTarget:
        """The distribution under other weights (n',) of its rows."""
        return replace(self, inner=self.inner.reweighted(weight))

    # What is drawn beside the partition

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of what is drawn beside the partition."""
        return (*self.inner.unknowns, "yeo_johnson_lambda")

    def drawn(self) -> Draw:
        """What is drawn beside the partition, by name."""
        return self.inner.drawn() | {"yeo_johnson_lambda": self.values[self.which]}

    def visited(self, result: Partition) -> TransformedTarget:
        """The distribution given what visits to rows found beside the labels."""
        return replace(self, inner=self.inner.visited(result))

    def given(self, draw: Draw) -> TransformedTarget:
        """The distribution given what was drawn beside a partition."""
        which = jnp.abs(self.values - draw["yeo_johnson_lambda"][:, None]).argmin(1)
        # Rows first: what else was drawn may be of transformed ones.
        result = self.with_powers(which.astype(jnp.int32))
        return replace(result, inner=result.inner.given(draw))

    def renewed(self, labels: jax.Array, cells: jax.Array, key: jax.Array) -> TransformedTarget:
        """The distribution given all that is drawn beside a partition, drawn anew."""
        inner_key, own_key = jax.random.split(key)
        result = replace(self, inner=self.inner.renewed(labels, cells, inner_key))
        return result._draw_powers(labels, own_key)

    def _draw_powers(self, labels: jax.Array, key: jax.Array) -> TransformedTarget:
        """Powers after a step of some columns each, in random order."""
        n, m = self.rows.shape
        count = min(m, _TRIED, max(_LOOKS // n, 1))
        u = jax.random.uniform(key, (2 + 3 * count,), minval=jnp.finfo(float).tiny)
        column = in_order(u[:2], m, jnp.asarray(m))[:count]
        u = u[2:].reshape(3, count)
        step = jnp.asarray(_STEPS)[below(u[0], len(_STEPS))] * jnp.where(u[1] < 0.5, 1, -1)
        step = step.astype(jnp.int32)

        def move(t, carry):
            which, rows, length = carry
            j = column[t]
            new = which[j] + step[t]
            inside = (new >= 0) & (new < len(self.values))
            new = jnp.clip(new, 0, len(self.values) - 1)
            moved = yeo_johnson(self.rows[:, j], self.values[new])
            moved = (moved - self.shift[j, new]) / self.spread[j, new]
            proposed = which.at[j].set(new), rows.at[:, j].set(moved)
            new_length = length_of(*proposed)
            accept = inside & (jnp.log(u[2, t]) < length - new_length)
            return jax.tree.map(partial(jnp.where, accept), (*proposed, new_length), carry)

        def length_of(which, rows):
            inner = self.inner.with_rows(rows)
            target = replace(self, inner=inner, which=which)
            return target.length(target.cells(labels))

        rows = self._moved(self.rows, self.which)
        begin = self.which, rows, length_of(self.which, rows)
        which, rows, _ = jax.lax.fori_loop(0, count, move, begin)
        return replace(self, inner=self.inner.with_rows(rows), which=which)

    def shortest(self, labels: jax.Array) -> jax.Array:
        """Length of a partition over all numbers, all else integrated out.

        Powers are those under which every column by itself is most probable.
        """
        target = self.with_powers(self._best_powers(labels))
        return target.inner.shortest(labels) - target._stretched

    def _best_powers(self, labels: jax.Array) -> jax.Array:
        """Powers (m,) under which columns are likeliest, each by itself, of one variance."""
        real = self.x[:, -1] > 0
        member = (jnp.arange(self.n_slots)[:, None] == labels) * real
        size = member.sum(1)

        def of(which):
            moved = self._moved(self.rows, jnp.full(self.which.shape, which))
            sums = member @ moved
            inside = real @ jnp.square(moved)
            inside = inside - (jnp.square(sums) / jnp.maximum(size, 1)[:, None]).sum(0)
            n = size.sum()
            return 0.5 * n * jnp.log(jnp.maximum(inside / n, _LEAST)) - self.stretch[:, which]

        costs = jax.lax.map(of, jnp.arange(len(self.values)))
        return costs.argmin(0).astype(jnp.int32)

    def length(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the density of data and partition, in nats."""
        return self.inner.length(cells) - self._stretched

    # Rows as they come: their statistics start with their features

    def features_of(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """What single rows (b, p) of weight 1 and groups (b,) add to every cluster: (K, b).

        With ``weights`` (G,), what their features add when they count so much: (K, G, b).
        """
        rows = x[:, : self.rows.shape[1]]
        moved = self.inner.restated(x, self._moved(rows, self.which))
        return self.inner.features_of(cells, moved, group, weights) - self._log_slopes(rows)

    def _log_slopes(self, rows: jax.Array) -> jax.Array:
        """Log density (b,) that transforms of rows (b, m) add to that of rows as they come."""
        slopes = log_slope(rows, self.values[self.which]) - jnp.log(self._chosen(self.spread))
        return slopes.sum(1)

    def joining(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What single rows (b, p) of groups (b,) add to every cluster: (K, b)."""
        return self.features_of(cells, x, group) + self.inner.without_features.joining(
            cells, x, group
        )

    def left_out(self, cells: jax.Array, labels: jax.Array, *weight: Any) -> jax.Array:
        """Log density (..., n') of every row, of weights (..., 1), given the others."""
        return self.inner.left_out(cells, labels, *weight) + self._log_slopes(self.rows)


@jit_by_size()
def transformed(inner: Any, rows: jax.Array, power: jax.Array | np.float64) -> TransformedTarget:
    """Distribution over partitions and powers, from that of rows (n', m) as they came."""
    real, values = inner.x[:, -1] > 0, jnp.asarray(POWERS)

    def of(value):
        moved, n = yeo_johnson(rows, value), real.sum()
        shift = jnp.where(real[:, None], moved, 0).sum(0) / n
        spread = jnp.sqrt(jnp.where(real[:, None], jnp.square(moved - shift), 0).sum(0) / n)
        spread = jnp.where(spread > 0, spread, 1)  # of a single row, 0
        slopes = log_slope(rows, value).sum(0) - n * jnp.log(spread)  # of padding, 0
        return shift, spread, slopes

    shift, spread, stretch = (table.T for table in jax.lax.map(of, values))
    which = jnp.full(rows.shape[1], np.abs(POWERS - 1).argmin(), jnp.int32)
    result = TransformedTarget(
        inner, rows, which, values, shift, spread, stretch, jnp.asarray(power)
    )
    return result.with_powers(which)
