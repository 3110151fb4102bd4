"""Penalty on the mutual information between clusters of binary samples and known groups."""

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
    r"""Quadratic penalty on the information about known groups.

    The rows of several labelings are stacked. With E_k = ``differences`` @ theta_k and the mean E
    of E_k over clusters, the penalty is

    .. math:: M^2 P = \frac{1}{2K} \sum_{kz} u_z (E_{kz} - E_z)^2
        + \frac{1}{2} \sum_z v_z \left[(a_z + E_z)^2 - M^2 p(z)^2\right]

    Attributes
    ----------
    differences : (S, p) p(z | y_j = 1) - p(z | y_j = 0); 0 on padding
    offset : (S,) a, the sum of p(z | y_j = 0) over features
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
        """Cast the tables to another dtype."""
        return jax.tree.map(lambda table: table.astype(dtype), self)

    def cluster_count(self, k: int) -> Any:
        """Number of clusters among ``k`` padded ones."""
        return k if self.active is None else self.active.sum().astype(jnp.int32)

    def log_cluster_count(self, k: int) -> Any:
        """Logarithm of `cluster_count`, in the dtype of the tables."""
        return math.log(k) if self.active is None else jnp.log(self.active.sum())

    def cluster_mean(self, values: jax.Array, axis: int) -> jax.Array:
        """Mean of ``values`` over clusters, along a negative ``axis``."""
        if self.active is None:
            return values.mean(axis)
        cluster_mask = self.active.reshape(-1, *[1] * (-1 - axis))
        return (cluster_mask * values).sum(axis) / self.active.sum()


def chord_slope(cells: int) -> float:
    """Slope of the chord of entropy against the sum of squares next to uniform cells."""
    k = max(cells, 1)
    return k * (k + 1) * np.log1p(1 / k)


def form_weights(form: str, k: int, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights u and v of a labeling with probabilities ``p`` (S,) for ``k`` clusters."""
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
    """Build the float64 tables of labelings, each (n,) codes, for the features ``x`` (n, m).

    Features are padded to ``width``, and labels to a rounded number. ``active`` masks the clusters;
    see `nrprob.statistics.rows.active_mask`.
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
    """M^2 P of parameters (..., K, p)."""
    e = theta @ tables.differences.T
    mean = tables.cluster_mean(e, -2)
    between = (tables.spread * tables.cluster_mean((e - mean[..., None, :]) ** 2, -2)).sum(-1)
    centre = (tables.centre * ((tables.offset + mean) ** 2 - tables.share**2)).sum(-1)
    return 0.5 * (between + centre)


def penalty_slope(tables: Penalty, theta: jax.Array) -> jax.Array:
    """Derivative of `penalty_value` with respect to theta, times K."""
    e = theta @ tables.differences.T
    mean = tables.cluster_mean(e, -2)[..., None, :]
    residual = tables.spread * (e - mean) + tables.centre * (tables.offset + mean)
    return residual @ tables.differences


def exact_penalty(tables: Penalty, theta: jax.Array, m: jax.Array) -> tuple[jax.Array, jax.Array]:
    """M^2 I(C;Z) under the model, and its derivative with respect to theta, times K."""
    r = jnp.maximum(tables.offset + theta @ tables.differences.T, 1e-30)
    log_ratio = jnp.log(r) - jnp.log(tables.cluster_mean(r, -2)[..., None, :])
    return m * tables.cluster_mean(r * log_ratio, -2).sum(-1), m * (log_ratio @ tables.differences)
