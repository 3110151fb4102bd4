"""Numbers of the prior of normal clusters, drawn from grids beside the partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.chains import ChainState, CollapsedKernel, Draw
from nrprob.engines.sample import gibbs, jumps, no_moves
from nrprob.engines.target import Partition, Target, occupied, start


class Prior(NamedTuple):
    """Numbers of the prior of a cluster's centre and covariance, or grids of them.

    Attributes
    ----------
    centre_precision : rows that the prior of a cluster's centre counts for
    group_precision : the same of a known group's
    variance : to be expected of a column within clusters
    freedom : degrees of freedom of the covariance's inverse-Wishart prior, over those without which
        it has no mean; above 0
    """

    centre_precision: Any
    group_precision: Any
    variance: Any
    freedom: Any


GRID = Prior(
    np.logspace(-3, 0.5, 15),
    np.logspace(-3, 0.5, 15),
    np.logspace(-2.5, 0, 11),
    np.asarray([1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
)


class PriorTarget(Protocol):
    """A distribution over partitions and the numbers of the prior, uniform on a grid.

    It serves the moves of `nrprob.engines.sample` as a `Target` does.
    """

    prior: Prior
    grid: Prior
    plain: Target

    def at(self, prior: Prior) -> Any:
        """The distribution given other numbers."""

    def with_room(self, n_slots: int) -> Any:
        """The distribution of those partitions that have ``n_slots`` clusters at most."""

    def features(self, cells: jax.Array) -> jax.Array:
        """Nats of cells (groups, K, p) that depend on the numbers."""

    def length(self, cells: jax.Array) -> jax.Array:
        """All nats of cells."""

    def for_rows(self, cells: jax.Array, key: jax.Array) -> Target:
        """What rows that move a few at a time see; other unknowns are drawn to make it a sum."""

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of what is drawn beside the partition."""

    @property
    def without_features(self) -> Target:
        """Distribution of labels and classes alone."""

    def visited(self, found: Partition) -> Any:
        """The distribution given what visits to rows found beside the labels."""

    def drawn(self) -> Draw:
        """What is drawn beside the partition, by name."""

    def given(self, draw: Draw) -> Any:
        """The distribution given what was drawn beside a partition."""

    def renewed(self, labels: jax.Array, cells: jax.Array, key: jax.Array) -> Any:
        """The distribution given all that is drawn beside a partition, drawn anew."""

    def shortest(self, labels: jax.Array) -> jax.Array:
        """Length of a partition over the numbers of the prior, all else integrated out."""


class NumbersOnly:
    """Of what is drawn beside the partition: the numbers of the prior, and nothing else."""

    prior: Prior
    at: Any
    cells: Any

    def shortest(self, labels: jax.Array) -> jax.Array:
        """Length of a partition over the numbers of the prior, all else integrated out."""
        cells = self.cells(labels)
        target: Any = best_prior(self, cells)
        return target.length(cells)

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of what is drawn beside the partition."""
        return Prior._fields

    def drawn(self) -> Draw:
        """What is drawn beside the partition, by name."""
        return {name: jnp.asarray(v) for name, v in self.prior._asdict().items()}

    def visited(self, found: Partition) -> Any:
        """The distribution given what visits to rows found beside the labels: nothing."""
        return self

    def given(self, draw: Draw) -> Any:
        """The distribution given what was drawn beside a partition."""
        return self.at(Prior(*(draw[name] for name in Prior._fields)))

    def renewed(self, labels: jax.Array, cells: jax.Array, key: jax.Array) -> Any:
        """The distribution given all that is drawn beside a partition, drawn anew."""
        return draw_prior(self, cells, key)


Kind = TypeVar("Kind", bound=Any)


def draw_prior(target: Kind, cells: jax.Array, key: jax.Array) -> Kind:
    """Draw the numbers anew, one by one, given a partition."""

    def choose(i, log_p):
        return jax.random.categorical(jax.random.fold_in(key, i), log_p)

    return _renewed(target, cells, choose, 1)


def best_prior(target: Kind, cells: jax.Array) -> Kind:
    """Numbers under which a partition is most probable, each given the others."""
    return _renewed(target, cells, lambda i, log_p: log_p.argmax(), 3)


def _renewed(target: Kind, cells: jax.Array, choose: Any, rounds: int) -> Kind:
    """Put numbers in place of those in use, one by one, by their log probabilities on the grid."""
    most = max(values.shape[0] for values in target.grid)
    drawn = np.asarray([f for f, values in enumerate(target.grid) if values.shape[0] > 1])
    if not drawn.size:
        return target
    # One loop over numbers, for each of which the program would have the lengths once more.
    grid = jnp.stack([jnp.pad(v, (0, most - v.shape[0]), mode="edge") for v in target.grid])
    real = np.arange(most) < np.asarray([v.shape[0] for v in target.grid])[:, None]

    def renew(i, prior):
        field = jnp.asarray(drawn)[i % drawn.size]
        tried = jnp.tile(prior, (most, 1)).at[:, field].set(grid[field])
        lengths = jax.vmap(lambda p: target.at(Prior(*p)).features(cells))(tried)
        return tried[choose(i, jnp.where(jnp.asarray(real)[field], -lengths, -jnp.inf))]

    prior = jax.lax.fori_loop(0, rounds * drawn.size, renew, jnp.stack(target.prior))
    return target.at(Prior(*prior))


@dataclass(frozen=True)
class PriorKernel(CollapsedKernel):
    """Collapsed moves over partitions, and draws of what the target does not know beside them."""

    def begin(self, target: Any, labels: jax.Array, key: jax.Array) -> ChainState:
        """State of one chain that starts at labels (n',)."""
        key, now = jax.random.split(key)
        target = target.renewed(labels, target.cells(labels), now)
        return ChainState(_draw(target, labels), no_moves()._asdict(), key)

    def step(self, target: Any, state: ChainState) -> ChainState:
        """Next state of one chain."""
        key, rows_key, gibbs_key, jump_key, prior_key = jax.random.split(state.rng_key, 5)
        target, labels = target.given(state.draw), state.draw["labels"]
        rows = target.for_rows(target.cells(labels), rows_key)
        found, n_blocks, accepted = gibbs(rows, start(rows, labels), gibbs_key, self.block)
        target = target.visited(found)
        found, moves = jumps(
            target, start(target, found.labels), jump_key,
            n_split_merge=self.n_split_merge, n_launch=self.n_launch,
        )  # fmt: skip
        moves = moves._replace(gibbs=n_blocks, gibbs_accepted=accepted)
        target = target.renewed(found.labels, found.cells, prior_key)
        return ChainState(_draw(target, found.labels), moves._asdict(), key)


def _draw(target: Any, labels: jax.Array) -> Draw:
    cells = target.cells(labels)
    return {
        "labels": labels,
        "n_clusters": occupied(cells).sum().astype(jnp.int32),
        "length": target.length(cells),
        **target.drawn(),
    }
