"""Griddy-Gibbs updates of the hyperparameters of Gaussian clusters."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.uniforms import below
from nrprob.methods.bayes.joint_target import JointTarget, JointUpdate
from nrprob.trees import node


class Hyperparameters(NamedTuple):
    """Hyperparameters of the centre and covariance of a cluster, or one grid per hyperparameter.

    Attributes
    ----------
    centre_precision : kappa; the prior of a centre counts as kappa samples
    group_precision : omega; the prior of the offset of a known group counts as omega samples
    variance : s, the prior mean of the variance of a feature within clusters
    freedom : nu; the inverse-Wishart prior of the covariance has d + 1 + nu degrees of freedom, and
        has a mean only if nu is positive
    """

    centre_precision: Any
    group_precision: Any
    variance: Any
    freedom: Any


# Grids of kappa, omega, s and nu. Steps are small, since many features determine the
# hyperparameters to a few hundredths. Ranges are wide, since a distant outlier or a known group may
# cause nearly all of the variance of a feature. kappa is at most 1, the unit information of Kass
# and Wasserman (1995). With a larger kappa, centres of clusters may nearly coincide. Then all
# partitions fit equally well, and the posterior has several clusters for data without clusters.
GRID = Hyperparameters(
    np.logspace(-10, 0, 321),
    np.logspace(-10, 0.5, 337),
    np.logspace(-8, 0, 257),
    np.geomspace(1, 50, 81),
)
_INITIAL = Hyperparameters(0.05, 0.05, 0.05, 10.0)
_N_CANDIDATES = 12  # grid points on a line that an update evaluates
_STRIDES = np.asarray([1, 2, 4, 8, 8, 8])  # grid steps between candidates, chosen at random
# Grid steps of a joint change of variance and freedom, which are correlated in the posterior.
_TRADE = Hyperparameters(0, 0, -1, 2)


def initial_hyperparameters(grid: Hyperparameters) -> Hyperparameters:
    """Initial hyperparameters: the grid points that are closest to `_INITIAL`."""
    pairs = zip(grid, _INITIAL, strict=True)
    return Hyperparameters(*(values[np.abs(values - value).argmin()] for values, value in pairs))


def sample_hyperparameters(
    likelihood: Any, grid: Hyperparameters, cells: jax.Array, key: jax.Array
) -> Any:
    """Sample the hyperparameters given a partition, along one line of their grid after another.

    On each line, a random set of candidates that contains the current value is chosen. The new
    value is then sampled among the candidates, in proportion to the posterior. The probability of
    the set is the same whichever of its members is the current value, so the posterior is
    invariant. Returns the likelihood under the new hyperparameters.
    """
    choice_key, candidate_key = jax.random.split(key)

    def choose(i, log_p):
        return jax.random.categorical(jax.random.fold_in(choice_key, i), log_p)

    def candidate_steps(i, sweep, index, size):
        u = jax.random.uniform(jax.random.fold_in(candidate_key, i), (2,))
        stride = jnp.asarray(_STRIDES)[below(u[0], len(_STRIDES))]
        return stride * (jnp.arange(_N_CANDIDATES) - below(u[1], _N_CANDIDATES))

    return _update_lines(likelihood, grid, cells, choose, candidate_steps, 1)


def maximise_hyperparameters(likelihood: Any, grid: Hyperparameters, cells: jax.Array) -> Any:
    """Find the hyperparameters of highest posterior probability given a partition.

    ``cells`` are the statistics of the partition. Returns the likelihood under the result.
    """

    def candidate_steps(i, sweep, index, size):
        # In the first two sweeps, candidates cover the whole line. In later sweeps, they are near
        # the current value.
        wide = -(-size // _N_CANDIDATES)
        far = index % wide + wide * jnp.arange(_N_CANDIDATES) - index
        stride = jnp.where(sweep < 3, -(-wide // 4), 1)
        near = stride * (jnp.arange(_N_CANDIDATES) - _N_CANDIDATES // 2)
        return jnp.where(sweep < 2, far, near)

    return _update_lines(
        likelihood, grid, cells, lambda i, log_p: log_p.argmax(), candidate_steps, 5
    )


def _update_lines(
    likelihood: Any,
    grid: Hyperparameters,
    cells: jax.Array,
    choose: Any,
    candidate_steps: Any,
    n_sweeps: int,
) -> Any:
    """Update the hyperparameters along lines of the grid.

    There is one line per hyperparameter, and one line along which variance and freedom change
    jointly (`_TRADE`). The function ``candidate_steps(i, sweep, index, size)`` returns the
    positions of the candidates of update i, relative to the position ``index`` of the current value
    on a line of ``size`` points. The function ``choose(i, log_p)`` returns the index of the new
    value among the candidates, from their log probabilities. If the grid of a hyperparameter is
    short, all its points are candidates. Returns the likelihood under the new hyperparameters.
    """
    sizes = np.asarray([values.shape[0] for values in grid])
    trade = np.asarray(_TRADE)
    lines = [*np.eye(len(sizes), dtype=int)[sizes > 1]]
    short = [size <= _N_CANDIDATES for size in sizes[sizes > 1]]
    if not lines:
        return likelihood
    if (sizes[trade != 0] > _N_CANDIDATES).all():
        lines, short = [*lines, trade], [*short, False]
    count = min(sizes.max(), _N_CANDIDATES)
    table = jnp.stack([jnp.pad(v, (0, sizes.max() - len(v)), mode="edge") for v in grid])

    # A compiled loop over lines: an unrolled program would contain the likelihood once per line.
    def update_line(i, current):
        which = i % len(lines)
        line = jnp.asarray(np.stack(lines))[which]
        indices = jnp.abs(table - current[:, None]).argmin(1)
        along = jnp.abs(line).argmax()
        index, size = indices[along], jnp.asarray(sizes)[along]
        step = candidate_steps(i, i // len(lines), index, size)[:count]
        step = jnp.where(jnp.asarray(short)[which], jnp.arange(count) - index, step)
        candidate_indices = indices + step[:, None] * line
        inside = ((candidate_indices >= 0) & (candidate_indices < sizes)).all(1)
        clipped = jnp.clip(candidate_indices, 0, sizes - 1)
        candidates = jnp.take_along_axis(table.T, clipped, 0)

        def evaluate_nats(values):
            return likelihood.with_hyperparameters(Hyperparameters(*values)).nats(cells)

        lengths = jax.vmap(evaluate_nats)(candidates)
        return candidates[choose(i, jnp.where(inside, -lengths, -jnp.inf))]

    current = jnp.stack(likelihood.hyperparameters)
    current = jax.lax.fori_loop(0, n_sweeps * len(lines), update_line, current)
    return likelihood.with_hyperparameters(Hyperparameters(*current))


@node
class HyperparameterUpdate(JointUpdate):
    """Griddy-Gibbs update of the hyperparameters, whose prior is uniform on a grid.

    Attributes
    ----------
    grid : grids of the hyperparameters; a grid of one value fixes its hyperparameter
    """

    names: ClassVar[tuple[str, ...]] = Hyperparameters._fields
    grid: Hyperparameters

    def draw(self, target: JointTarget) -> Draw:
        """Current hyperparameters, by name."""
        current = target.likelihood.hyperparameters._asdict()
        return {name: jnp.asarray(value) for name, value in current.items()}

    def condition(self, target: JointTarget, draw: Draw) -> JointTarget:
        """Condition the target on the hyperparameters of a draw."""
        values = (draw[name] for name in Hyperparameters._fields)
        return target.with_hyperparameters(Hyperparameters(*values))

    def resample(self, target: JointTarget, labels: jax.Array, key: jax.Array) -> Any:
        """Sample the hyperparameters given the partition, and condition the target on them."""
        cells = target.cells(labels)
        likelihood = sample_hyperparameters(target.likelihood, self.grid, cells, key)
        return target.with_hyperparameters(likelihood.hyperparameters)

    def shortest_length(self, target: JointTarget, labels: jax.Array) -> jax.Array:
        """Description length of a partition under its most probable hyperparameters."""
        cells = target.cells(labels)
        likelihood = maximise_hyperparameters(target.likelihood, self.grid, cells)
        return target.with_hyperparameters(likelihood.hyperparameters).length(cells)
