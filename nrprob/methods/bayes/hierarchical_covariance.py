r"""Clusters whose covariances are shrunk to one that they have in common, as much as rows say.

Row i of cluster c is

    x_i = b_c + e_i,   e_i ~ N(0, S_c),   b_c ~ N(0, S_c / kappa),
    S_c ~ inverse-Wishart(f, f S),  f = d + 1 + nu,    S ~ Wishart(d + 2, s I / (d + 2)),

so that the inverse of S is to be expected of that of a cluster's covariance, and s of a column's
variance. (With S the mean of S_c, nu could not move while S stays.) With nu small a cluster has a
covariance of its own, and with nu large that of all others; nu is drawn, and so are S and s.

S has no variance near 0 (tr S^-1 is at most 10^10): where all clusters lie in planes of one
direction, as those of copies of a few rows do, the density of the rows would have no bound.

Given S a partition's code is a sum over clusters, their centres and covariances integrated out; S
is drawn given covariances, which are drawn first.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Target
from nrprob.methods.bayes.full_covariance import SeparateTarget, moments
from nrprob.methods.bayes.hierarchical_length import shortest_length
from nrprob.methods.bayes.hyperparameters import Prior, draw_prior
from nrprob.methods.bayes.shared_covariance import wishart_root
from nrprob.methods.bayes.weights import unweighted
from nrprob.statistics.gammas import log_multigamma
from nrprob.statistics.matrices import whitener
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}
SHRINKAGE = np.geomspace(1, 500, 97)  # values of nu
SIZES = np.logspace(-8, 0, 129)  # values of s, close to each other as S knows it well
MOST = 1e10  # trace of the inverse of S


@node
class ShrunkTarget(SeparateTarget):
    """A distribution over partitions; see `nrprob.methods.bayes.hyperparameters.PriorTarget`.

    Attributes
    ----------
    plain : of rows in units of the common covariance; its first term is of a `NormalWishart`
    rows : (n', d) as they came
    common : (d, d) the common covariance S
    """

    rows: jax.Array
    common: jax.Array
    n_features: int = field(metadata=_STATIC)

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of what is drawn beside the partition."""
        return (*super().unknowns, "common_covariance")

    def drawn(self) -> Draw:
        """What is drawn beside the partition, by name."""
        return {**super().drawn(), "common_covariance": self.common}

    def given(self, draw: Draw) -> ShrunkTarget:
        """The distribution given what was drawn beside a partition."""
        return super().given(draw).seen_by(draw["common_covariance"])

    def seen_by(self, common: jax.Array) -> ShrunkTarget:
        """The distribution given another common covariance."""
        own = moments(self.rows @ whitener(common)[0].T)
        rest = self.plain.x[:, own.shape[1] :]
        code: Any = self.plain.terms[0].cost
        if code.weighted:
            own = own * rest[:, :1]
        plain = replace(self.plain, x=jnp.concatenate([own, rest], 1))
        return replace(self, plain=plain, common=common)

    def with_rows(self, rows: jax.Array) -> ShrunkTarget:
        """The distribution of rows (n', d) in place of its own."""
        real = self.plain.x[:, -1:]
        return replace(self, rows=rows * real).seen_by(self.common)

    def at(self, prior: Prior) -> ShrunkTarget:
        """The distribution given other numbers."""
        result = super().at(prior)
        term, *rest = result.plain.terms
        # Rows are in units of the common covariance.
        unit = (self.n_features + 1 + prior.freedom) / prior.freedom
        code: Any = term.cost
        term = replace(term, cost=replace(code, variance=unit))
        return replace(self, prior=prior, plain=replace(result.plain, terms=(term, *rest)))

    def of_common(self) -> jax.Array:
        """Minus the log density of the common covariance."""
        d, s = self.n_features, self.prior.variance
        freedom = d + 2
        inside = jnp.trace(self.common) * freedom / s - whitener(self.common)[1]
        constant = d * jnp.log(2 * s / freedom)
        return 0.5 * (inside + freedom * constant) + log_multigamma(0.5 * freedom, d)

    def length(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the density of data, partition and common covariance."""
        code: Any = self.plain.terms[0].cost
        volume = 0.5 * code.power * self.plain.x[:, -1].sum() * whitener(self.common)[1]
        return self.plain.length(cells) + volume + self.of_common()

    def shortest(self, labels: jax.Array) -> jax.Array:
        """Length of a partition over the numbers of the prior, all else integrated out."""
        return shortest_length(self, labels)

    def renewed(self, labels: jax.Array, cells: jax.Array, key: jax.Array) -> ShrunkTarget:
        """The distribution given all that is drawn beside a partition, drawn anew."""
        number_key, own_key, size_key, common_key = jax.random.split(key, 4)
        # The variance says nothing of the rows.
        fewer = replace(self, grid=self.grid._replace(variance=self.grid.variance[:1]))
        target = replace(draw_prior(fewer, cells, number_key), grid=self.grid)

        def sized(s):
            return target.at(target.prior._replace(variance=s))

        sizes = self.grid.variance
        log_p = -jax.vmap(lambda s: sized(s).of_common())(sizes)
        target = sized(sizes[jax.random.categorical(size_key, log_p)])
        result = target._draw_common(cells, target._roots(cells, own_key), common_key)
        # What is beyond the bound is refused, which leaves the distribution within it invariant.
        within = jnp.square(whitener(result)[0]).sum() <= MOST
        return target.seen_by(jnp.where(within, result, self.common))

    def _draw_common(self, cells: jax.Array, roots: jax.Array, key: jax.Array) -> jax.Array:
        """The common covariance, given precisions; those of clusters without rows do not count."""
        d = self.n_features
        each = d + 1 + self.prior.freedom
        here = cells[..., -1].sum(0) > 0.5
        white, _ = whitener(self.common)
        # From units of the common covariance to those of the rows.
        turned = white.T @ jnp.where(here[:, None, None], roots, 0)
        inverse = jnp.einsum("kde,kfe->df", turned, turned)
        inverse = each * inverse + jnp.eye(d) * (d + 2) / self.prior.variance
        freedom = d + 2 + here.sum() * each
        root = wishart_root(key, whitener(inverse)[0], freedom)
        return root @ root.T

    # Rows as they come: their statistics start with their features

    def restated(self, x: jax.Array, rows: jax.Array) -> jax.Array:
        """Statistics (b, p) of other features (b, d), of weight 1."""
        return jnp.concatenate([rows, x[:, self.n_features :]], 1)

    def features_of(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """What the features of single rows (b, p) add to every cluster: see `SeparateTarget`."""
        white, log_det = whitener(self.common)
        code: Any = self.plain.terms[0].cost
        rows = x[:, : self.n_features]
        if code.weighted:
            weight = x[:, self._width() - 1 : self._width()]
            own = moments(unweighted(rows, weight[:, 0]) @ white.T)
            own = jnp.concatenate([own, jnp.ones_like(weight)], 1) * weight
        else:
            own = moments(rows @ white.T)
        return super().features_of(cells, own, group, weights) + 0.5 * log_det

    def left_out(self, cells: jax.Array, labels: jax.Array, weight: Any = None) -> jax.Array:
        """Log density (..., n') of every row, of weights (..., 1), given others of its cluster."""
        return super().left_out(cells, labels, weight) - 0.5 * whitener(self.common)[1]


def begin_shrunk(plain: Target, rows: np.ndarray, prior: Prior, grid: Prior) -> ShrunkTarget:
    """Distribution over partitions of rows (n, d), with the common covariance to be drawn."""
    n, d = rows.shape
    wide = np.pad(rows, ((0, plain.x.shape[0] - n), (0, 0)))
    common = np.eye(d) * prior.variance
    return _seen(ShrunkTarget(plain, prior, grid, wide, common, d))


@jit_by_size()
def _seen(target: ShrunkTarget) -> ShrunkTarget:
    """The distribution, its code of the numbers and of the common covariance that it names."""
    return target.at(target.prior).seen_by(target.common)
