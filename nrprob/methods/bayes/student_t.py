r"""Student t errors: each sample has a latent scale weight, which is sampled.

Sample i of cluster c has the error

    e_i ~ N(0, S_c / w_i),   w_i ~ Gamma(f / 2, rate f / 2),

where S_c is the covariance of the cluster. Hence e_i is t distributed with f degrees of freedom.
The gamma distribution is discretised on a grid of values of w. Each grid value has the probability
of all w that are nearer to it, in logarithms, than to the other grid values. So cluster and weight
of a sample can be sampled together. f is sampled from a grid, on which infinity means Gaussian
errors. Draws have 1 / f, so that summaries are finite. An outlier then has a small w instead of a
separate cluster.

Given the weights, the likelihood is the likelihood of weighted samples. The update samples first
centres and covariances, then f with all weights summed out, and then the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammainc

from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Partition, Scales, Target
from nrprob.methods.bayes.joint_target import JointTarget, JointUpdate, Likelihood
from nrprob.methods.bayes.weights import reweighted
from nrprob.trees import node

# Grid of w. A grid step changes the standard deviation, which is proportional to w^(-1/2), by a
# factor of 1.23. The largest standard deviation is 12 times the standard deviation at w = 1.
VALUES = 2.0 ** (0.6 * np.arange(-12, 4))
FREEDOMS = np.asarray([1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, np.inf])


def log_masses(values: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """Log probabilities (F, G) of G grid values of w, for F degrees of freedom (F,).

    ``values`` (G,) is the grid, in increasing order; it contains 1.
    """
    bounds = np.sqrt(values[1:] * values[:-1])
    cumulative = np.stack([
        gammainc(0.5 * f, 0.5 * f * bounds) if np.isfinite(f) else np.where(bounds > 1, 1.0, 0.0)
        for f in freedoms
    ])  # fmt: skip
    edge = np.ones((len(freedoms), 1))
    mass = np.diff(np.concatenate([0 * edge, cumulative, edge], 1), axis=1)
    with np.errstate(divide="ignore"):
        return np.log(mass)


@node
class ScaleWeightUpdate(JointUpdate):
    """Gibbs update of the scale weights of samples and of the degrees of freedom.

    Attributes
    ----------
    version : (n',) indices of the current weights, in ``values``
    which : index of the current degrees of freedom, in ``freedoms``
    values : (G,) values of a weight w
    freedoms : (F,) grid of F degrees of freedom
    log_mass : (F, G) log prior probabilities of the values under each number of degrees of freedom
    """

    names: ClassVar[tuple[str, ...]] = ("inverse_df", "scale_weight")
    version: jax.Array
    which: jax.Array
    values: jax.Array
    freedoms: jax.Array
    log_mass: jax.Array

    def draw(self, target: JointTarget) -> Draw:
        """Current scale weights, and the reciprocal of the degrees of freedom, by name."""
        weight = self.values[self.version].astype(jnp.float32)
        return {"inverse_df": 1 / self.freedoms[self.which], "scale_weight": weight}

    def condition(self, target: JointTarget, draw: Draw) -> JointTarget:
        """Condition the target on degrees of freedom and scale weights."""
        distance = jnp.log(draw["scale_weight"])[:, None] - jnp.log(self.values)
        version = jnp.abs(distance).argmin(1).astype(jnp.int32)
        which = jnp.abs(1 / self.freedoms - draw["inverse_df"]).argmin()
        return replace(self, which=which).with_versions(target, version)

    def with_versions(self, target: JointTarget, version: jax.Array) -> JointTarget:
        """Condition the target on weights with indices ``version`` (n',)."""
        weight = self.values[version] * (target.x[:, -1] > 0)
        return target.with_weights(weight).with_update(replace(self, version=version))

    def after_gibbs(self, joint: JointTarget, state: Partition) -> JointTarget:
        """Condition the target on the weights that a Gibbs sweep sampled."""
        assert state.version is not None
        return self.with_versions(joint, state.version)

    def resample(self, target: JointTarget, labels: jax.Array, key: jax.Array) -> JointTarget:
        """Sample degrees of freedom and weights, given sampled centres and covariances."""
        distance_key, which_key, version_key = jax.random.split(key, 3)
        likelihood, cells = target.likelihood, target.cells(labels)
        # 1. Log density (n', G) of each sample under every weight.
        distances = likelihood.squared_distances(target.partition, cells, labels, distance_key)
        nats = 0.5 * likelihood.power * self.values * distances[:, None]
        log_p = -(self._normalisation(likelihood) + nats)
        # 2. Degrees of freedom, with the weights summed out.
        real = target.x[:, -1] > 0
        log_freedom = jax.lax.map(
            lambda mass: jax.nn.logsumexp(mass + log_p, axis=1) @ real, self.log_mass
        )
        which = jax.random.categorical(which_key, log_freedom)
        # 3. Weights.
        version = jax.random.categorical(version_key, self.log_mass[which] + log_p)
        return replace(self, which=which).with_versions(target, version.astype(jnp.int32))

    def _normalisation(self, likelihood: Likelihood) -> jax.Array:
        """Nats (G,) of the factors w^(d/2) of the density, for each grid value w.

        Likelihoods of weighted samples omit these factors.
        """
        return -0.5 * likelihood.power * likelihood.n_features * jnp.log(self.values)

    def nats(self, target: JointTarget) -> jax.Array:
        """Minus the log prior probability of the weights, minus the logs of the factors w^(d/2)."""
        nats = (self._normalisation(target.likelihood) - self.log_mass[self.which])[self.version]
        return jnp.where(target.x[:, -1] > 0, nats, 0).sum()

    def gibbs_target(self, joint: JointTarget, target: Target) -> Target:
        """Return a target of Gibbs sweeps that sample clusters and weights together.

        Its statistics have weight 1, and its `Scales` define the values of the weights.
        """
        likelihood = joint.likelihood
        x = reweighted(target.x, target.x[:, -1], likelihood.width)
        nats = self._normalisation(likelihood) - self.log_mass[self.which]
        uncoded = likelihood.power * likelihood.uncoded_nats(x)
        nats = jnp.where(x[:, -1:] > 0, nats + uncoded[:, None] * self.values, 0)
        scales = Scales(self.values, nats, self.version, likelihood.width)
        return replace(target, x=x, scales=scales)

    def integrate(self, cost: Callable[..., Any], target: JointTarget) -> Callable[..., Any]:
        """Sum the weight of each new sample out of a predictive cost (..., G, b)."""
        factor = 0.5 * target.likelihood.n_features * jnp.log(self.values)
        factor = (factor + self.log_mass[self.which])[:, None]
        return lambda: -jax.nn.logsumexp(factor - cost(self.values), axis=-2)


def make_scale_weights(n_rows: int) -> ScaleWeightUpdate:
    """Make the Gibbs update of the scale weights of ``n_rows`` samples, which are initially 1."""
    version = np.full(n_rows, np.flatnonzero(VALUES == 1)[0], np.int32)
    arrays = VALUES, FREEDOMS, log_masses(VALUES, FREEDOMS)
    values, freedoms, masses = map(jnp.asarray, arrays)
    which = jnp.int32(len(FREEDOMS) // 2)
    return ScaleWeightUpdate(jnp.asarray(version), which, values, freedoms, masses)
