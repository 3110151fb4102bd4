r"""Rows whose errors are t distributed: each has a scale of its own, which is drawn.

Row i of cluster c has the error

    e_i ~ N(0, S_c / w_i),   w_i ~ Gamma(f / 2, rate f / 2),

which is a t distribution of f degrees of freedom. The gamma law is taken on a grid of values of w,
each with the mass that is nearer to it (in logarithms) than to others, so that cluster and scale of
a row can be drawn together; f is drawn from a grid as well, on which infinity stands for normal
errors. Rows that lie far out then need no cluster of their own, but a small w.

Given the scales rows are those of a distribution without, with weights. Scales and f are drawn
anew given centres and covariances, which are drawn for that; f first, with all scales summed over.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammainc

from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Partition, Scales, Target
from nrprob.methods.bayes.hyperparameters import Prior, SeenAsItIs
from nrprob.methods.bayes.shared_covariance import SHARED
from nrprob.methods.bayes.weights import reweighted
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}
# A step changes the standard deviation by 1.23; standard deviations are up to 12 times the usual.
VALUES = 2.0 ** (0.6 * np.arange(-12, 4))
FREEDOMS = np.asarray([1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, np.inf])


def log_masses(values: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """Log masses (F, G) of values of w under gamma laws of degrees of freedom (F,).

    ``values`` (G,) rise, and 1 is among them.
    """
    bounds = np.sqrt(values[1:] * values[:-1])
    below = np.stack([
        gammainc(0.5 * f, 0.5 * f * bounds) if np.isfinite(f) else np.where(bounds > 1, 1.0, 0.0)
        for f in freedoms
    ])  # fmt: skip
    edge = np.ones((len(freedoms), 1))
    mass = np.diff(np.concatenate([0 * edge, below, edge], 1), axis=1)
    with np.errstate(divide="ignore"):
        return np.log(mass)


_OF_INNER = frozenset({
    "prior", "grid", "plain", "odds", "features", "rows", "without_features", "additive"
})  # fmt: skip


@node
class ScaledTarget(SeenAsItIs):
    """A distribution over partitions; see `nrprob.methods.bayes.hyperparameters.PriorTarget`.

    Attributes
    ----------
    inner : the distribution given the scales, which are weights of its rows
    version : (n',) of the scales in use, in ``values``
    which : of the degrees of freedom in use, in ``freedoms``
    values : (G,) that a scale w may have
    freedoms : (F,)
    log_mass : (F, G) of the values under every one of them
    n_features : columns of the rows
    width : columns of their statistics that a scale multiplies
    power : that the density of rows given all else is raised to
    """

    inner: Any
    version: jax.Array
    which: jax.Array
    values: jax.Array
    freedoms: jax.Array
    log_mass: jax.Array
    n_features: int = field(metadata=_STATIC)
    width: int = field(metadata=_STATIC)
    power: jax.Array | np.float64

    def __getattr__(self, name: str) -> Any:
        if name in SHARED or name in _OF_INNER:
            return getattr(self.inner, name)
        raise AttributeError(name)

    def at(self, prior: Prior) -> ScaledTarget:
        """The distribution given other numbers."""
        return replace(self, inner=self.inner.at(prior))

    def with_room(self, n_slots: int) -> ScaledTarget:
        """The distribution of those partitions that have ``n_slots`` clusters at most."""
        return replace(self, inner=self.inner.with_room(n_slots))

    def with_versions(self, version: jax.Array) -> ScaledTarget:
        """The distribution given other scales (n',)."""
        weight = self.values[version] * (self.inner.x[:, -1] > 0)
        return replace(self, inner=self.inner.reweighted(weight), version=version)

    def visited(self, result: Partition) -> ScaledTarget:
        """The distribution given what visits to rows found beside the labels."""
        return self.with_versions(result.version)

    # What is drawn beside the partition

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of what is drawn beside the partition."""
        return (*self.inner.unknowns, "df", "scale_weight")

    def drawn(self) -> Draw:
        """What is drawn beside the partition, by name."""
        precision = self.values[self.version].astype(jnp.float32)
        return self.inner.drawn() | {
            "df": self.freedoms[self.which],
            "scale_weight": precision,
        }

    def given(self, draw: Draw) -> ScaledTarget:
        """The distribution given what was drawn beside a partition."""
        result = replace(self, inner=self.inner.given(draw))
        away = jnp.log(draw["scale_weight"])[:, None] - jnp.log(self.values)
        version = jnp.abs(away).argmin(1).astype(jnp.int32)
        which = (self.freedoms == draw["df"]).argmax()
        return replace(result, which=which).with_versions(version)

    def renewed(self, labels: jax.Array, cells: jax.Array, key: jax.Array) -> ScaledTarget:
        """The distribution given all that is drawn beside a partition, drawn anew."""
        inner_key, away_key, which_key, version_key = jax.random.split(key, 4)
        inner = self.inner.renewed(labels, cells, inner_key)
        away = inner.distances(inner.cells(labels), labels, away_key)
        log_p = -(self._plain_price() + 0.5 * self.power * self.values * away[:, None])  # (n', G)
        real = inner.x[:, -1] > 0
        each = jax.lax.map(lambda m: jax.nn.logsumexp(m + log_p, axis=1) @ real, self.log_mass)
        which = jax.random.categorical(which_key, each)
        version = jax.random.categorical(version_key, self.log_mass[which] + log_p)
        result = replace(self, inner=inner, which=which)
        return result.with_versions(version.astype(jnp.int32))

    # Lengths

    def _plain_price(self) -> jax.Array:
        """Nats (G,) that normal densities leave out for every scale."""
        return -0.5 * self.power * self.n_features * jnp.log(self.values)

    def length(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the density of data, partition and scales."""
        price = (self._plain_price() - self.log_mass[self.which])[self.version]
        return self.inner.length(cells) + jnp.where(self.inner.x[:, -1] > 0, price, 0).sum()

    def for_rows(self, cells: jax.Array, key: jax.Array) -> Target:
        """What rows that move a few at a time see: clusters and scales together."""
        rows = self.inner.for_rows(cells, key)
        one = reweighted(rows.x, rows.x[:, -1], self.width)
        price = self._plain_price() - self.log_mass[self.which]
        uncoded = self.power * self.inner.left_uncoded(one)
        price = jnp.where(one[:, -1:] > 0, price + uncoded[:, None] * self.values, 0)
        return replace(rows, x=one, scales=Scales(self.values, price, self.version, self.width))

    # Rows of weight 1, their scales summed over

    def _over_scales(self, cost: jax.Array) -> jax.Array:
        """Nats (...) of rows from those at every scale (G, ...), without the scales'."""
        factor = 0.5 * self.n_features * jnp.log(self.values) + self.log_mass[self.which]
        wide = factor.reshape(-1, *(1,) * (cost.ndim - 1))
        return -jax.nn.logsumexp(wide - cost, axis=0)

    def features_of(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What the features of single rows (b, p) of groups (b,) add to every cluster: (K, b)."""
        cost = self.inner.features_of(cells, x, group, self.values)
        return self._over_scales(jnp.moveaxis(cost, 1, 0))

    def joining(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What single rows (b, p) of groups (b,) add to every cluster: (K, b)."""
        return self.features_of(cells, x, group) + self.without_features.joining(cells, x, group)

    def left_out(self, cells: jax.Array, labels: jax.Array) -> jax.Array:
        """Log density (n',) of the features of every row given all other rows and their scales."""
        return -self._over_scales(-self.inner.left_out(cells, labels, self.values[:, None]))


def scaled(inner: Any, n_features: int, width: int, power: float) -> ScaledTarget:
    """Distribution over partitions and scales, from that of rows with weights, which are 1."""
    version = np.full(inner.x.shape[0], np.flatnonzero(VALUES == 1)[0], np.int32)
    laws = VALUES, FREEDOMS, log_masses(VALUES, FREEDOMS)
    values, freedoms, masses = map(jnp.asarray, laws)
    which = jnp.int32(len(FREEDOMS) // 2)
    return ScaledTarget(
        inner, jnp.asarray(version), which, values, freedoms, masses, n_features, width,
        np.float64(power),
    )  # fmt: skip
