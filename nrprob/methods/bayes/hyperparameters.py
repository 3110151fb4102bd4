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
    """Hyperparameters of a cluster's centre and covariance, or grids of them.

    Attributes
    ----------
    centre_precision : kappa, the number of samples that the prior of a centre counts for
    group_precision : omega, the number of samples that the prior of a group's offset counts for
    variance : s, prior mean of the variance of a feature within clusters
    freedom : nu > 0; the inverse-Wishart prior of the covariance has d + 1 + nu degrees of freedom,
        and has a mean only if nu is positive
    """

    centre_precision: Any
    group_precision: Any
    variance: Any
    freedom: Any


# With many features, samples determine the hyperparameters to a few hundredths. An outlier by
# thousands, or a known group, may cause nearly all of the variance of a feature. The prior of a
# centre counts as one sample at most, the unit information of Kass and Wasserman (1995). With a
# larger weight, centres of clusters may nearly coincide. Then partitions fit equally well, and the
# posterior has several clusters for data without clusters.
GRID = Hyperparameters(
    np.logspace(-10, 0, 321),
    np.logspace(-10, 0.5, 337),
    np.logspace(-8, 0, 257),
    np.geomspace(1, 50, 81),
)
_INITIAL = Hyperparameters(0.05, 0.05, 0.05, 10.0)
_N_CANDIDATES = 12  # grid points of a line that an update evaluates
_STRIDES = np.asarray([1, 2, 4, 8, 8, 8])  # between neighbouring candidates
# Grid steps of a joint change of variance and freedom, which are correlated in the posterior.
_TRADE = Hyperparameters(0, 0, -1, 2)


def initial_hyperparameters(grid: Hyperparameters) -> Hyperparameters:
    """Initial hyperparameters on a grid."""
    pairs = zip(grid, _INITIAL, strict=True)
    return Hyperparameters(*(values[np.abs(values - value).argmin()] for values, value in pairs))


def sample_hyperparameters(
    likelihood: Any, grid: Hyperparameters, cells: jax.Array, key: jax.Array
) -> Any:
    """Sample the hyperparameters given a partition, along one line of their grid after another.

    The candidates on a line are sampled first, and the value is then chosen among them. The set of
    candidates has the same probability from each of its members. The posterior is therefore
    invariant.
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
    """Find the hyperparameters of highest posterior probability given a partition."""

    def candidate_steps(i, sweep, index, size):
        # Candidates cover the line first, and approach the current value in later sweeps.
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
    """Replace the hyperparameters by values chosen along lines of the grid, from log probabilities.

    There is one line per hyperparameter, and one line with the direction `_TRADE`. Candidates are
    the grid points at ``candidate_steps(update, sweep, index, size)`` from the current one. If the
    grid of a hyperparameter is short, all its points are candidates.
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

    # One loop over lines: an unrolled program would contain the likelihood once per line.
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
    grid : values; a grid of one value holds its hyperparameter fixed
    """

    names: ClassVar[tuple[str, ...]] = Hyperparameters._fields
    grid: Hyperparameters

    def draw(self, target: JointTarget) -> Draw:
        """Current hyperparameters, by name."""
        current = target.likelihood.hyperparameters._asdict()
        return {name: jnp.asarray(value) for name, value in current.items()}

    def condition(self, target: JointTarget, draw: Draw) -> JointTarget:
        """Condition the target on hyperparameters."""
        values = (draw[name] for name in Hyperparameters._fields)
        return target.with_hyperparameters(Hyperparameters(*values))

    def resample(self, target: JointTarget, labels: jax.Array, key: jax.Array) -> Any:
        """Sample the hyperparameters from their full conditional distributions."""
        cells = target.cells(labels)
        likelihood = sample_hyperparameters(target.likelihood, self.grid, cells, key)
        return target.with_hyperparameters(likelihood.hyperparameters)

    def shortest_length(self, target: JointTarget, labels: jax.Array) -> jax.Array:
        """Length of a partition under its most probable hyperparameters."""
        cells = target.cells(labels)
        likelihood = maximise_hyperparameters(target.likelihood, self.grid, cells)
        return target.with_hyperparameters(likelihood.hyperparameters).length(cells)
