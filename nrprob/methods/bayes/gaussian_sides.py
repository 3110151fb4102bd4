r"""Gaussian model of the two sides of a launched split-merge move.

The *members* of a move are the samples of the cluster to split, or of the two clusters to merge.
The *sides* are the two clusters into which the move may divide the members. A side has N members y
with weights a, which are scale weights times the tempering exponent ``power``. The prior has the
precision kappa, the scatter Psi and f0 degrees of freedom. The centre of the side has the posterior
precision k and mean u; the covariance has the posterior scatter A and f degrees of freedom:

    k = kappa + sum a,   u = sum a y / k,   A = Psi + sum a y y' - k u u',   f = f0 + power N.

If a member y of weight a joins the side, its squared distance is q = (y - u)' A^-1 (y - u). With e
features, the code length increases by

    T(N) + e/2 log((k + a) / k) + (f + power)/2 log(1 + a k / (k + a) q) + power/2 log det A,
    T(N) = log Gamma_e(f / 2) - log Gamma_e((f + power) / 2),

up to a constant, with the multivariate gamma function Gamma_e. A^-1 and log det A change by updates
of rank one when a member changes its side. If all clusters share one covariance, A contains the
scatter of all samples. A is then computed from the sides at the beginning of a scan, and is
constant during the scan.

Shapes: m members, padded; features in B independent blocks of e features. A full covariance has one
block, and a diagonal covariance has one block per feature. The terms above are sums over blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.sample.launched_moves import Launch
from nrprob.engines.sample.target import Target
from nrprob.statistics.matrices import whitener
from nrprob.statistics.sums import sum_of_logs
from nrprob.trees import node

_STATIC: dict[str, Any] = {"static": True}
_MIN_SHARE = 1e-9  # least factor of the determinant of A when a sample leaves its side


class _Sides(NamedTuple):
    """Statistics of the two sides, along the first axis; see the module docstring.

    Attributes
    ----------
    n : (2,) numbers N of members
    precision : (2,) posterior precisions k of the centres
    sums : (2, B, e) weighted sums of the members
    inverse : (2, B, e, e) A^-1; (1, B, e, e) if the sides share A
    log_det : (2,) log determinants of A; (1,) if the sides share A
    cells : (1, 2, p) statistics for the code of labels and classes
    """

    n: jax.Array
    precision: jax.Array
    sums: jax.Array
    inverse: jax.Array
    log_det: jax.Array
    cells: jax.Array


@node
class GaussianSides:
    """Members of a move, and the model of their two sides.

    Attributes
    ----------
    rows : (m, B, e) features of the members, minus the effects of known structure
    weight : (m,) scale weights times the tempering exponent; zeros on padding
    x : (m, p) statistics of the members
    real : (m,) mask of the members; false on padding
    rest : target with the code of labels and classes
    kappa, power : precision of the prior of a centre, and tempering exponent
    scatter : (B, e, e) Psi; if the sides share A, plus the scatter of the samples outside the move
    freedom : f0; if the sides share A, plus power times the number of samples outside the move
    constants : (m + 1,) T(N) of a side of N members, for N from 0 to m; zeros if the sides share A,
        since T(N) is then equal for both sides
    shared : whether the sides share A, since all clusters share one covariance
    """

    rows: jax.Array
    weight: jax.Array
    x: jax.Array
    real: jax.Array
    rest: Target
    kappa: jax.Array
    power: jax.Array
    scatter: jax.Array
    freedom: jax.Array
    constants: jax.Array
    shared: bool = field(metadata=_STATIC)

    def coordinates(self) -> jax.Array:
        """Features (m, d) of the members, whitened by the scatter of the members."""
        sums, precision, second = self._moments(self.real[None])
        mean = sums / precision[:, None, None]
        scatter = self.scatter + _corrected(second, precision, mean)[0]
        rows = jnp.einsum("bef,mbf->mbe", whitener(scatter)[0], self.rows)
        return rows.reshape(len(rows), -1)

    def _moments(self, inside: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Weighted sums (s, B, e), precisions k (s,) and second moments (s, B, e, e) of s sets.

        The masks ``inside`` (s, m) select the members of the s sets.
        """
        a = inside * self.weight
        weighted = a[:, :, None, None] * self.rows
        second = jnp.einsum("smbe,mbf->sbef", weighted, self.rows)
        return weighted.sum(1), self.kappa + a.sum(1), second

    def summarise(self, side: jax.Array, present: jax.Array) -> _Sides:
        """Statistics of the two sides of the members ``present`` (m,).

        ``side`` (m,) is true for members on the second side.
        """
        inside = jnp.stack([~side, side]) & present
        sums, precision, second = self._moments(inside)
        mean = sums / precision[:, None, None]
        scatter = _corrected(second, precision, mean)
        if self.shared:
            scatter = scatter.sum(0, keepdims=True)
        white, log_det = whitener(self.scatter + scatter)
        inverse = jnp.einsum("sbgf,sbge->sbfe", white, white)
        cells = (inside.astype(self.x.dtype) @ self.x)[None]
        return _Sides(inside.sum(1), precision, sums, inverse, log_det.sum(1), cells)

    def _degrees(self, n: jax.Array) -> jax.Array:
        """Degrees of freedom f (2,) after a member joins sides of ``n`` (2,) other members."""
        n = self.real.sum() - 1 if self.shared else n
        return self.freedom + self.power * (n + 1)

    def log_odds(self, side: jax.Array) -> jax.Array:
        """Log odds (m,) of the second side for every member, given the sides of all members."""
        sides = self.summarise(side, self.real)
        precision, a = sides.precision[:, None], self.weight
        rows = self.rows - (sides.sums / sides.precision[:, None, None])[:, None]
        square = (jnp.einsum("smbe,sbef->smbf", rows, sides.inverse) * rows).sum(-1)
        factor = a * precision / (precision + a)
        growth = sum_of_logs(1 + factor[..., None] * jnp.maximum(square, 0), -1)
        constant = self.constants[sides.n] + 0.5 * self.power * sides.log_det
        cost = constant[:, None] + 0.5 * self._degrees(sides.n)[..., None] * growth
        cost = cost + 0.5 * self._n_features * jnp.log1p(a / precision)
        cost = cost + self.rest.joining(sides.cells, self.x, jnp.zeros(len(self.x), int))
        return cost[0] - cost[1]

    @property
    def _n_features(self) -> int:
        return self.rows.shape[1] * self.rows.shape[2]

    def scan(self, launch: Launch, choose: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Restricted Gibbs scan: resample the side of one member after another, given all others.

        Parameters
        ----------
        launch : Launch
            Sides at the beginning, and the order of the members. A member that is not present is
            added to a side.
        choose : function of the index and the log odds of a member, which returns the new side

        Returns
        -------
        side : (m,) sides at the end
        log_q : log probability of these sides
        """
        group = jnp.zeros(1, int)

        def visit(t, carry):
            sides, side, log_q = carry
            i = launch.order[t]
            y, a, old, was = self.rows[i], self.weight[i], side[i], launch.present[i]
            stays = (jnp.arange(2) == old) & was
            # 1. Log of the factor of det A due to the member, on its own and on the other side.
            k = sides.precision
            without = jnp.where(stays, k - a, k)
            v = y - sides.sums / k[:, None, None]
            g = (sides.inverse * v[..., None, :]).sum(-1)
            factor = a * k / jnp.where(stays, k - a, k + a)
            share = factor[:, None] * (g * v).sum(-1)
            sign = jnp.where(stays, -1.0, 1.0)
            share = jnp.maximum(1 + sign[:, None] * share, _MIN_SHARE)
            growth = sum_of_logs(share, -1)
            # 2. Log odds, given all other members.
            n = sides.n - stays
            log_det = sides.log_det + jnp.where(stays, growth, 0)
            cost = self.constants[n] + 0.5 * self._n_features * jnp.log1p(a / without)
            cost = cost + 0.5 * self._degrees(n) * sign * growth + 0.5 * self.power * log_det
            x = jax.lax.dynamic_slice_in_dim(self.x, i, 1)
            less = sides.cells - stays[:, None] * x
            cost = cost + self.rest.joining(less, x, group)[:, 0]
            logit = cost[0] - cost[1]
            new = choose(i, logit)
            log_q = log_q + jax.nn.log_sigmoid(jnp.where(new, logit, -logit))
            # 3. Updates of rank one, if the member changes its side.
            change = jnp.where(was, jnp.where(new == old, 0.0, sign), jnp.arange(2) == new)
            more = change * a
            result = sides._replace(
                n=sides.n + change.astype(sides.n.dtype),
                precision=k + more,
                sums=sides.sums + more[:, None, None] * y,
                cells=sides.cells + change[:, None] * x,
            )
            if not self.shared:
                scale = (change * factor)[:, None] / share
                outer = g[..., :, None] * g[..., None, :]
                result = result._replace(
                    inverse=sides.inverse - scale[..., None, None] * outer,
                    log_det=sides.log_det + jnp.abs(change) * growth,
                )
            return result, side.at[i].set(new), log_q

        sides = self.summarise(launch.side, launch.present)
        if self.shared:
            every = self.summarise(launch.side, self.real)
            sides = sides._replace(inverse=every.inverse, log_det=every.log_det)
        begin = sides, launch.side, jnp.zeros(())
        _, side, log_q = jax.lax.fori_loop(launch.n_fixed, self.real.sum(), visit, begin)
        return side, log_q


def _corrected(second: jax.Array, precision: jax.Array, mean: jax.Array) -> jax.Array:
    """Scatter (s, B, e, e) of s sets of members about posterior means (s, B, e), without Psi.

    ``second`` (s, B, e, e) are the second moments, and ``precision`` (s,) the precisions k.
    """
    return second - precision[:, None, None, None] * mean[..., :, None] * mean[..., None, :]


def pooled_distances(
    means: jax.Array, inverse: jax.Array, freedom: jax.Array, n: jax.Array
) -> jax.Array:
    """Mahalanobis distances (K, K) between means, under the pooled covariance of each pair.

    The pooled scatter of a pair is the sum of its two scatters. Let s and t be the quadratic forms
    of the difference of means with the inverses of the two scatters. The quadratic form with the
    inverse of the sum is approximated by s t / (s + t). The approximation is exact for scatters
    that are multiples of each other, and needs no matrix per pair.

    Parameters
    ----------
    means : (K, d) means of the clusters
    inverse : (K, d, d) inverses of the scatters
    freedom : degrees of freedom f0 of a cluster without samples
    n : (K,) sizes of the clusters
    """
    d = means.shape[1]
    along = jnp.einsum("aef,af->ae", inverse, means)
    outer = (means[:, :, None] * means[:, None, :]).reshape(-1, d * d)
    others = inverse.reshape(-1, d * d) @ outer.T
    square = jnp.maximum((along * means).sum(1)[:, None] - 2 * along @ means.T + others, 0)
    both = square + square.T
    square = square * square.T / jnp.where(both > 0, both, 1)
    return jnp.sqrt((freedom + n + n[:, None]) * square)
