"""Griddy-Gibbs updates of the hyperparameters of Gaussian clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.chains import ChainState, CollapsedKernel, Draw
from nrprob.engines.sample.moves import gibbs, jumps, no_moves
from nrprob.engines.sample.split_merge import nothing_usual
from nrprob.engines.sample.target import Partition, Target, occupied, start
from nrprob.engines.sample.uniforms import below


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


# Of many columns rows know the numbers to a few hundredths. A row that is out by thousands, or a
# known group, may be nearly all of the variance of a column. The prior of a centre counts for one
# row at most, the unit information of Kass and Wasserman: under more, centres of clusters may about
# coincide, partitions explain rows equally well, and where there are no clusters there are some.
GRID = Prior(
    np.logspace(-10, 0, 321),
    np.logspace(-10, 0.5, 337),
    np.logspace(-8, 0, 257),
    np.geomspace(1, 50, 81),
)
_USUAL = Prior(0.05, 0.05, 0.05, 10.0)  # near which chains start
_TRIED = 12  # places on a line that one is drawn from
_STRIDES = np.asarray([1, 2, 4, 8, 8, 8])  # from one of them to the next
# The expected variance trades off with how far covariances stray from it.
_TRADE = Prior(0, 0, -1, 2)


def usual(grid: Prior) -> Prior:
    """Numbers of a grid to start from."""
    return Prior(*(v[np.abs(v - at).argmin()] for v, at in zip(grid, _USUAL, strict=True)))


class PriorTarget(Protocol):
    """A distribution over partitions and the numbers of the prior, uniform on a grid.

    It serves the moves of `nrprob.engines.sample.moves` as a `Target` does.
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

    @property
    def additive(self) -> Target | None:
        """As `nrprob.engines.sample.target.Target.additive`."""

    def for_rows(self, cells: jax.Array, key: jax.Array) -> Target:
        """What rows that move a few at a time see; other unknowns are drawn to make it a sum."""

    def for_jumps(self) -> Any:
        """What splits and merges see, after which all that they do not is drawn anew."""

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of what is drawn beside the partition."""

    @property
    def without_features(self) -> Target:
        """Distribution of labels and classes alone."""

    def visited(self, result: Partition) -> Any:
        """The distribution given what visits to rows found beside the labels."""

    def drawn(self) -> Draw:
        """What is drawn beside the partition, by name."""

    def given(self, draw: Draw) -> Any:
        """The distribution given what was drawn beside a partition."""

    def renewed(self, labels: jax.Array, cells: jax.Array, key: jax.Array) -> Any:
        """The distribution given all that is drawn beside a partition, drawn anew."""

    def shortest(self, labels: jax.Array) -> jax.Array:
        """Length of a partition over the numbers of the prior, all else integrated out."""


class SeenAsItIs:
    """A distribution whose splits and merges see all that is drawn beside the partition."""

    def for_jumps(self) -> Any:
        """What splits and merges see: the distribution itself."""
        return self


class NumbersOnly(SeenAsItIs):
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

    def visited(self, result: Partition) -> Any:
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
    """Draw the numbers anew given a partition, along one line on their grid after another.

    The places on a line that are looked at are drawn first; any of them would have had the same
    ones with the same probability.
    """
    choice_key, place_key = jax.random.split(key)

    def choose(i, log_p):
        return jax.random.categorical(jax.random.fold_in(choice_key, i), log_p)

    def steps(i, turn, place, size):
        u = jax.random.uniform(jax.random.fold_in(place_key, i), (2,))
        stride = jnp.asarray(_STRIDES)[below(u[0], len(_STRIDES))]
        return stride * (jnp.arange(_TRIED) - below(u[1], _TRIED))

    return _renewed(target, cells, choose, steps, 1)


def best_prior(target: Kind, cells: jax.Array) -> Kind:
    """Numbers under which a partition is most probable, each given the others."""

    def steps(i, turn, place, size):
        # All over the line, and later nearer and nearer.
        wide = -(-size // _TRIED)
        far = place % wide + wide * jnp.arange(_TRIED) - place
        near = jnp.where(turn < 3, -(-wide // 4), 1) * (jnp.arange(_TRIED) - _TRIED // 2)
        return jnp.where(turn < 2, far, near)

    return _renewed(target, cells, lambda i, log_p: log_p.argmax(), steps, 5)


def _renewed(target: Kind, cells: jax.Array, choose: Any, steps: Any, rounds: int) -> Kind:
    """Put numbers in place of those in use, by their log probabilities.

    Lines are those of one number each, and `_TRADE`. Places are chosen as many steps from the one
    in use as ``steps(update, round, place, places)`` says, if there are such; of a short grid, from
    all.
    """
    sizes = np.asarray([values.shape[0] for values in target.grid])
    trade = np.asarray(_TRADE)
    lines = [*np.eye(len(sizes), dtype=int)[sizes > 1]]
    short = [size <= _TRIED for size in sizes[sizes > 1]]
    if not lines:
        return target
    if (sizes[trade != 0] > _TRIED).all():
        lines, short = [*lines, trade], [*short, False]
    count = min(sizes.max(), _TRIED)
    grid = jnp.stack([jnp.pad(v, (0, sizes.max() - len(v)), mode="edge") for v in target.grid])

    # One loop over lines, for each of which the program would have the lengths once more.
    def renew(i, prior):
        which = i % len(lines)
        line = jnp.asarray(np.stack(lines))[which]
        places = jnp.abs(grid - prior[:, None]).argmin(1)
        along = jnp.abs(line).argmax()
        place, size = places[along], jnp.asarray(sizes)[along]
        step = steps(i, i // len(lines), place, size)[:count]
        step = jnp.where(jnp.asarray(short)[which], jnp.arange(count) - place, step)
        at = places + step[:, None] * line
        inside = ((at >= 0) & (at < sizes)).all(1)
        tried = jnp.take_along_axis(grid.T, jnp.clip(at, 0, sizes - 1), 0)
        lengths = jax.vmap(lambda p: target.at(Prior(*p)).features(cells))(tried)
        return tried[choose(i, jnp.where(inside, -lengths, -jnp.inf))]

    prior = jax.lax.fori_loop(0, rounds * len(lines), renew, jnp.stack(target.prior))
    return target.at(Prior(*prior))


@dataclass(frozen=True)
class PriorKernel(CollapsedKernel):
    """Collapsed moves over partitions, and draws of what the target does not know beside them."""

    def begin(self, target: Any, labels: jax.Array, key: jax.Array) -> ChainState:
        """State of one chain that starts at labels (n',)."""
        key, now = jax.random.split(key)
        target = target.renewed(labels, target.cells(labels), now)
        return ChainState(_draw(target, labels), no_moves()._asdict(), key, nothing_usual())

    def begin_far(self, target: Any, labels: jax.Array, key: jax.Array) -> ChainState:
        """The same, under the numbers that the target has; to draw them compiles for long."""
        return ChainState(_draw(target, labels), no_moves()._asdict(), key, nothing_usual())

    def step(self, target: Any, state: ChainState) -> ChainState:
        """Next state of one chain."""
        key, rows_key, gibbs_key, jump_key, prior_key = jax.random.split(state.rng_key, 5)
        target, labels = target.given(state.draw), state.draw["labels"]
        rows = target.for_rows(target.cells(labels), rows_key)
        result, n_blocks, accepted = gibbs(rows, start(rows, labels), gibbs_key, self.block)
        target = target.visited(result)
        seen = target.for_jumps()
        result, moves = jumps(
            seen, start(seen, result.labels), jump_key,
            n_split_merge=self.n_split_merge, n_launch=self.n_launch, usual=state.usual,
        )  # fmt: skip
        moves = moves._replace(gibbs=n_blocks, gibbs_accepted=accepted)
        target = target.renewed(result.labels, result.cells, prior_key)
        return ChainState(_draw(target, result.labels), moves._asdict(), key, state.usual)


def _draw(target: Any, labels: jax.Array) -> Draw:
    cells = target.cells(labels)
    return {
        "labels": labels,
        "n_clusters": occupied(cells).sum().astype(jnp.int32),
        "log_density": -target.length(cells),
        **target.drawn(),
    }
