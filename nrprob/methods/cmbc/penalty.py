"""Penalty on the mutual information between clusters of binary rows and known groups.

Sizes: n rows of M binary features; p statistics of a row, with padding; K clusters; R restarts; S
known groups in all labelings together. The parameters theta (R, K, p) are the probabilities of the
features in the clusters.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.statistics.groups import group_sums
from nrprob.statistics.rows import padded_count

FORMS = ("chi2", "balanced", "pairs", "printed")


class Penalty(NamedTuple):
    r"""Quadratic penalty P on the mutual information of clusters and known groups.

    Let :math:`D_{zj} = p(z | y_j = 1) - p(z | y_j = 0)` for known group z and feature j of a row y.
    Cluster k has the values :math:`E_{kz} = \sum_j D_{zj} \theta_{kj}`, and :math:`E_z` is their
    mean over clusters. The penalty is

    .. math:: M^2 P = \frac{1}{2K} \sum_{kz} u_z (E_{kz} - E_z)^2
        + \frac{1}{2} \sum_z v_z \left[(a_z + E_z)^2 - M^2 p(z)^2\right]

    Sums over z run over the groups of all labelings.

    Attributes
    ----------
    differences : (S, p) differences D; 0 on padding
    offset : (S,) a, the sum over features of p(z | y_j = 0)
    share : (S,) M p(z)
    spread : (S,) u, weight of the differences between clusters
    centre : (S,) v, weight of the mean of the clusters; 0 without penalty on the mean
    active : (K,) 1 for clusters, 0 for padding; None without padding
    """

    differences: Any
    offset: Any
    share: Any
    spread: Any
    centre: Any
    active: Any = None

    def astype(self, dtype: Any) -> Penalty:
        """Return the penalty with all arrays in the floating-point type ``dtype``."""
        return jax.tree.map(lambda table: table.astype(dtype), self)

    def cluster_count(self, k: int) -> Any:
        """Number of clusters without padding, if there are ``k`` with padding."""
        return k if self.active is None else self.active.sum().astype(jnp.int32)

    def log_cluster_count(self, k: int) -> Any:
        """Logarithm of `cluster_count`, in the floating-point type of the penalty."""
        return math.log(k) if self.active is None else jnp.log(self.active.sum())

    def cluster_mean(self, values: jax.Array, axis: int) -> jax.Array:
        """Mean of ``values`` over clusters, along a negative ``axis``."""
        if self.active is None:
            return values.mean(axis)
        cluster_mask = self.active.reshape(-1, *[1] * (-1 - axis))
        return (cluster_mask * values).sum(axis) / self.active.sum()


def chord_slope(cells: int) -> float:
    """Absolute slope of a chord of the entropy against the sum of squared probabilities.

    For a uniform distribution over k values, the entropy is log k, and the sum is 1/k. The chord
    joins the points for k = ``cells`` and k + 1; its slope is k (k + 1) log(1 + 1/k).
    """
    k = max(cells, 1)
    return k * (k + 1) * np.log1p(1 / k)


def form_weights(form: str, k: int, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights u (s,) and v (s,) of the s groups of one known labeling in a `Penalty`.

    ``form`` is the parameter of `CMBC`, ``k`` the number of clusters, and ``p`` (s,) are the shares
    of the groups.
    """
    s = p.size
    if form == "chi2":
        return 1 / p, np.zeros(s)
    beta = chord_slope(s if form == "printed" else k * s - 1)
    kappa = s * np.log(s) / (s - 1) if s > 1 else 1.0
    centre = 0.0 if form == "balanced" else 2 * (beta / k - kappa)
    return np.full(s, 2 * beta / k), np.full(s, centre)


def make_penalty(
    x: Any,
    labelings: list[np.ndarray],
    form: str,
    k: int,
    width: int,
    active: np.ndarray | None = None,
) -> Penalty:
    """Build the record `Penalty` in float64.

    Parameters
    ----------
    x : (n, M) binary features
    labelings : known labelings, each an array (n,) of codes
    form : form of the penalty, as in `CMBC`
    k : number of clusters, without padding
    width : number p of statistics of a row, with padding
    active : (K,) False for padded clusters; None without padding
    """
    n, m = x.shape
    parts = []
    for codes in labelings:
        sizes = np.bincount(codes).astype(float)
        if sizes.size == 1:
            continue  # a constant labeling contributes exactly 0
        if isinstance(x, jax.Array):
            ones = np.asarray(jax.ops.segment_sum(x.astype(jnp.float64), codes, sizes.size))
        else:
            ones = group_sums(x, codes)
        total = ones.sum(0)
        varies = (total > 0) & (total < n)
        share = (sizes / n)[:, None]
        # For a constant feature, p(z | y_j) is p(z).
        p_given_1 = np.where(varies, ones / np.where(varies, total, 1), share)
        p_given_0 = np.where(
            varies, (sizes[:, None] - ones) / np.where(varies, n - total, 1), share
        )
        u, v = form_weights(form, k, sizes / n)
        parts.append((p_given_1 - p_given_0, p_given_0.sum(1), m * sizes / n, u, v))
    n_values = sum(part[1].size for part in parts)
    padded = padded_count(n_values, width * (k if active is None else active.size))
    differences = np.zeros((padded, width))
    rest = np.zeros((4, padded))
    if parts:
        differences[:n_values, :m] = np.concatenate([part[0] for part in parts])
        rest[:, :n_values] = [np.concatenate([part[i] for part in parts]) for i in range(1, 5)]
    offset, share, spread, centre = rest
    mask = None if active is None else active.astype(float)
    return Penalty(differences, offset, share, spread, centre, mask)


# theta has shape (R, K, p) for R restarts.


def penalty_value(tables: Penalty, theta: jax.Array) -> jax.Array:
    """Penalty M^2 P (...) of the parameters theta (..., K, p); see `Penalty`."""
    e = theta @ tables.differences.T
    mean = tables.cluster_mean(e, -2)
    between = (tables.spread * tables.cluster_mean((e - mean[..., None, :]) ** 2, -2)).sum(-1)
    centre = (tables.centre * ((tables.offset + mean) ** 2 - tables.share**2)).sum(-1)
    return 0.5 * (between + centre)


def penalty_slope(tables: Penalty, theta: jax.Array) -> jax.Array:
    """K times the derivative (..., K, p) of `penalty_value` with respect to theta (..., K, p)."""
    e = theta @ tables.differences.T
    mean = tables.cluster_mean(e, -2)[..., None, :]
    residual = tables.spread * (e - mean) + tables.centre * (tables.offset + mean)
    return residual @ tables.differences


def exact_penalty(tables: Penalty, theta: jax.Array, m: jax.Array) -> tuple[jax.Array, jax.Array]:
    """M^2 I(C;Z) (...) under the model, and K times its derivative (..., K, p) by theta.

    I(C;Z) is the mutual information of clusters and known groups, theta (..., K, p) are the
    parameters, and ``m`` is the number M of features.
    """
    r = jnp.maximum(tables.offset + theta @ tables.differences.T, 1e-30)
    log_ratio = jnp.log(r) - jnp.log(tables.cluster_mean(r, -2)[..., None, :])
    return m * tables.cluster_mean(r * log_ratio, -2).sum(-1), m * (log_ratio @ tables.differences)
