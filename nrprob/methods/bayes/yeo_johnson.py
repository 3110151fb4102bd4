r"""Yeo-Johnson transforms of features, whose lambdas are sampled.

Within clusters, features are Gaussian after a transform (Yeo and Johnson, 2000). The transform of a
standardised feature x is

    t(x) = ((1 + x)^l - 1) / l  for x >= 0,   -((1 - x)^(2 - l) - 1) / (2 - l)  for x < 0,

shifted and scaled to mean 0 and variance 1 over the samples of the fit. Each feature has a separate
lambda, written l, with a uniform prior on a grid. With l = 1 the feature is unchanged; a smaller l
shortens a long right tail. The density of samples includes the Jacobian of the transforms, so
description lengths under different lambdas refer to the same data. Clusters that are skew in the
same way then need not be split into Gaussian pieces.

Given the lambdas, the likelihood is the likelihood of transformed features. With centres and
covariances integrated out, Metropolis steps sample the lambdas, one feature after another.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.uniforms import below, in_order
from nrprob.methods.bayes.joint_target import JointTarget, JointUpdate
from nrprob.trees import node

LAMBDAS = np.linspace(-2, 4, 121)  # grid of the lambdas, symmetric about 1
_STEPS = np.asarray([1, 2, 4, 8, 16])  # grid steps of a proposal, chosen at random
_ROWS_PER_STEP = 10_000  # approximate number of samples times features that an update evaluates
_MAX_FEATURES = 4  # largest number of features whose lambdas an update proposes to change
_MIN_VARIANCE = 1e-6  # least variance of a feature within clusters
MAX_EXPONENT = 4  # transforms grow at most like this power of the feature


def yeo_johnson(x: jax.Array, power: jax.Array) -> jax.Array:
    """Yeo-Johnson transform of x with lambda ``power``."""
    side = jnp.where(x >= 0, power, 2 - power)
    distance = jnp.log1p(jnp.abs(x))
    flat = jnp.abs(side) < 1e-12
    side = jnp.where(flat, 1.0, side)
    return jnp.sign(x) * jnp.where(flat, distance, jnp.expm1(side * distance) / side)


def inverse_yeo_johnson(t: np.ndarray, power: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Inverse of the Yeo-Johnson transform with lambda ``power``, clipped to +-``limit``.

    Transforms with a lambda outside of [0, 2] are bounded on one side. Values t beyond this bound
    have no inverse; the result for them is the limit.
    """
    side = np.where(t >= 0, power, 2 - power)
    flat = np.abs(side) < 1e-12
    growth = np.maximum(np.where(flat, 0, side) * np.abs(t), -1 + 1e-15)
    distance = np.where(flat, np.abs(t), np.log1p(growth) / np.where(flat, 1, side))
    return np.clip(np.sign(t) * np.expm1(np.minimum(distance, 700)), -limit, limit)


def log_slope(x: jax.Array, power: jax.Array) -> jax.Array:
    """Log of the derivative of the Yeo-Johnson transform of x with lambda ``power``."""
    return (power - 1) * jnp.sign(x) * jnp.log1p(jnp.abs(x))


@node
class YeoJohnsonUpdate(JointUpdate):
    """Metropolis update of the lambdas of the features.

    Attributes
    ----------
    which : (m,) indices of the current lambdas, in ``values``
    values : (G,) grid of lambdas
    shift, spread : (m, G) means and standard deviations of the transformed features, before they
        are standardised
    log_jacobian : (m, G) log Jacobian of the standardised transform, summed over all samples
    """

    names: ClassVar[tuple[str, ...]] = ("yeo_johnson_lambda",)
    which: jax.Array
    values: jax.Array
    shift: jax.Array
    spread: jax.Array
    log_jacobian: jax.Array

    def _look_up(self, table: jax.Array) -> jax.Array:
        """Look up entries (m,) of a table (m, G) at the current lambdas."""
        return jnp.take_along_axis(table, self.which[:, None], 1)[:, 0]

    def transform_features(self, rows: jax.Array) -> jax.Array:
        """Transform features (b, m), and standardise the result."""
        transformed = yeo_johnson(rows, self.values[self.which])
        return (transformed - self._look_up(self.shift)) / self._look_up(self.spread)

    def transform_rows(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return transformed features (b, m), and the log Jacobian (b,) of the transformation."""
        slopes = log_slope(rows, self.values[self.which]) - jnp.log(self._look_up(self.spread))
        return self.transform_features(rows), slopes.sum(1)

    def nats(self, target: JointTarget) -> jax.Array:
        """Minus the log Jacobian of all samples, times the tempering exponent."""
        return -target.likelihood.power * self._look_up(self.log_jacobian).sum()

    def draw(self, target: JointTarget) -> Draw:
        """Current lambdas, by name."""
        return {"yeo_johnson_lambda": self.values[self.which]}

    def with_indices(self, target: JointTarget, which: jax.Array) -> JointTarget:
        """Condition the target on lambdas with indices ``which`` (m,)."""
        return target.with_update(replace(self, which=which)).recompute_statistics()

    def condition(self, target: JointTarget, draw: Draw) -> JointTarget:
        """Condition the target on the lambdas of a draw."""
        distance = jnp.abs(self.values - draw["yeo_johnson_lambda"][:, None])
        return self.with_indices(target, distance.argmin(1).astype(jnp.int32))

    def resample(self, target: JointTarget, labels: jax.Array, key: jax.Array) -> JointTarget:
        """Update the lambdas of a few features by Metropolis steps, one feature after another."""
        n, m = target.rows.shape
        count = min(m, _MAX_FEATURES, max(_ROWS_PER_STEP // n, 1))
        u = jax.random.uniform(key, (2 + 3 * count,), minval=jnp.finfo(float).tiny)
        feature = in_order(u[:2], m, jnp.asarray(m))[:count]
        u = u[2:].reshape(3, count)
        step = jnp.asarray(_STEPS)[below(u[0], len(_STEPS))] * jnp.where(u[1] < 0.5, 1, -1)
        step = step.astype(jnp.int32)

        def condition(which, features):
            return target.with_update(replace(self, which=which)).with_features(features)

        def evaluate_length(which, features):
            proposed = condition(which, features)
            return proposed.length(proposed.cells(labels))

        def propose(t, carry):
            which, features, length = carry
            # 1. Propose another lambda of feature j, with equal probability in both directions.
            j = feature[t]
            new = which[j] + step[t]
            inside = (new >= 0) & (new < len(self.values))
            new = jnp.clip(new, 0, len(self.values) - 1)
            column = yeo_johnson(target.rows[:, j], self.values[new])
            column = (column - self.shift[j, new]) / self.spread[j, new]
            # 2. Accept by the ratio of densities.
            proposal = which.at[j].set(new), features.at[:, j].set(column)
            new_length = evaluate_length(*proposal)
            accept = inside & (jnp.log(u[2, t]) < length - new_length)
            return jax.tree.map(partial(jnp.where, accept), (*proposal, new_length), carry)

        features = self.transform_features(target.rows)
        begin = self.which, features, evaluate_length(self.which, features)
        which, features, _ = jax.lax.fori_loop(0, count, propose, begin)
        return condition(which, features)

    def maximise(self, target: JointTarget, labels: jax.Array) -> JointTarget:
        """Condition the target on lambdas of maximum likelihood, given a partition.

        The likelihood is approximate: each feature has one variance for all clusters.
        """
        real = target.x[:, -1] > 0
        member = (jnp.arange(target.n_slots)[:, None] == labels) * real
        size = member.sum(1)

        def evaluate_costs(which):
            update = replace(self, which=jnp.full(self.which.shape, which))
            features = update.transform_features(target.rows)
            sums = member @ features
            inside = real @ jnp.square(features)
            inside = inside - (jnp.square(sums) / jnp.maximum(size, 1)[:, None]).sum(0)
            n = size.sum()
            log_variance = jnp.log(jnp.maximum(inside / n, _MIN_VARIANCE))
            return 0.5 * n * log_variance - self.log_jacobian[:, which]

        costs = jax.lax.map(evaluate_costs, jnp.arange(len(self.values)))
        return self.with_indices(target, costs.argmin(0).astype(jnp.int32))


@jit_by_size()
def make_yeo_johnson(rows: jax.Array, real: jax.Array) -> YeoJohnsonUpdate:
    """Make the update of the lambdas of m features, from samples (n', m).

    The mask ``real`` (n',) is false on padding.
    """
    values, n = jnp.asarray(LAMBDAS), real.sum()

    def tabulate(value):
        transformed = yeo_johnson(rows, value)
        shift = jnp.where(real[:, None], transformed, 0).sum(0) / n
        spread = jnp.where(real[:, None], jnp.square(transformed - shift), 0).sum(0) / n
        spread = jnp.sqrt(spread)
        spread = jnp.where(spread > 0, spread, 1)  # 0 for a single sample
        # Padding is 0, where the log slope is 0.
        return shift, spread, log_slope(rows, value).sum(0) - n * jnp.log(spread)

    shift, spread, log_jacobian = (table.T for table in jax.lax.map(tabulate, values))
    which = jnp.full(rows.shape[1], np.abs(LAMBDAS - 1).argmin(), jnp.int32)
    return YeoJohnsonUpdate(which, values, shift, spread, log_jacobian)
