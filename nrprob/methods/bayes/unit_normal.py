"""Code of Gaussian clusters with identity covariance.

Gibbs sweeps use this code if the covariance is sampled: the covariance whitens the features.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}


@node
class UnitNormal:
    """Code of a Gaussian cluster with covariance I, and a centre from N(0, I / kappa).

    Up to a constant per sample, the code length of the cluster is

        d/2 log((kappa + n) / kappa) - |sum|^2 / (2 (kappa + n)).

    Here n is the number of samples, or the sum of their scale weights, and ``sum`` the weighted sum
    of their d features. n and ``sum`` are multiplied by the tempering exponent ``power``.

    Attributes
    ----------
    kappa : precision of the prior of the centre
    power : likelihood tempering exponent
    n_features : number of features d
    mass : index of n among the statistics of a cluster; -1, the last statistic, without scale
        weights
    """

    sends: ClassVar[frozenset[str]] = frozenset({"data", "parameters"})
    kappa: jax.Array
    power: jax.Array | np.float64
    n_features: int = field(metadata=_STATIC)
    mass: int = field(default=-1, metadata=_STATIC)

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Code lengths (...) in nats of clusters with statistics ``cell`` (..., p)."""
        d, cell = self.n_features, self.power * cell
        n = self.kappa + cell[..., self.mass]
        return 0.5 * (d * jnp.log(n / self.kappa) - jnp.square(cell[..., :d]).sum(-1) / n)

    def prepare_join(self, cells: jax.Array) -> Any:
        """Precompute the terms that `join_costs` needs, from statistics (p, K) of K clusters."""
        d, cells = self.n_features, self.power * cells
        n, more = self.kappa + cells[self.mass], self.power
        square = jnp.square(cells[:d]).sum(0)
        if self.mass >= 0:  # samples have scale weights; nats are not proportional to the weight
            return cells[:d], n, square
        constant = d * jnp.log1p(more / n) + more * square / (n * (n + more))
        return more * cells[:d] / (n + more), 0.5 * constant, 0.5 * more**2 / (n + more)

    def join_costs(self, prepared: Any, row: jax.Array) -> jax.Array:
        """Increase (K, b) of the code length, in nats, if samples (p, b) join each cluster.

        ``prepared`` are the terms from `prepare_join`.
        """
        if self.mass >= 0:
            return self._join_weighted(prepared, row)
        slope, constant, curvature = prepared
        row = row[: self.n_features]
        return constant - slope[..., 0].T @ row - curvature * jnp.square(row).sum(0)

    def _join_weighted(self, prepared: Any, row: jax.Array) -> jax.Array:
        d, (sums, n, square) = self.n_features, prepared
        row, more = self.power * row[:d], self.power * row[self.mass]
        both = square + 2 * sums[..., 0].T @ row + jnp.square(row).sum(0)
        return 0.5 * (d * jnp.log1p(more / n) + square / n - both / (n + more))

    def weighted_join_costs(self, prepared: Any, row: jax.Array, weights: jax.Array) -> jax.Array:
        """Increase (K, G, b) of the code length if samples join each cluster with each weight (G,).

        ``row`` (p, b) are the statistics of the samples with weight 1.
        """
        d, (sums, n, square) = self.n_features, prepared
        more, n, square = self.power * weights[:, None], n[:, None], square[:, None]
        along, square_of_row = (sums[..., 0].T @ row[:d])[:, None], jnp.square(row[:d]).sum(0)
        both = square + 2 * more * along + jnp.square(more) * square_of_row
        return 0.5 * (d * jnp.log1p(more / n) + square / n - both / (n + more))
