"""Penalty on the information between clusters of binary samples and known groups."""

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
    r"""The known structure as the M-step sees it; rows of several labelings are stacked.

    With E_k = ``differences`` @ theta_k and their mean E over the clusters, the penalty is

    .. math:: M^2 P = \frac{1}{2K} \sum_{kz} u_z (E_{kz} - E_z)^2
        + \frac{1}{2} \sum_z v_z \left[(a_z + E_z)^2 - M^2 p(z)^2\right]

    Attributes
    ----------
    differences : (S, p) p(z given y_j = 1) - p(z given y_j = 0), 0 on padding
    offset : (S,) a, sum over features of p(z given y_j = 0)
    share : (S,) M p(z)
    spread : (S,) u, weight of the differences between clusters
    centre : (S,) v, weight of the mean of the clusters; 0 where it is free
    active : (K,) 0 for clusters that are padding, 1 for others; None where there are none
    """

    differences: Any
    offset: Any
    share: Any
    spread: Any
    centre: Any
    active: Any = None

    def astype(self, dtype: Any) -> Penalty:
        """Return the tables in another type."""
        return jax.tree.map(lambda table: table.astype(dtype), self)

    def count(self, k: int) -> Any:
        """Number of clusters that exist, of the ``k`` of an array."""
        return k if self.active is None else self.active.sum().astype(jnp.int32)

    def log_count(self, k: int) -> Any:
        """Log of `count`, in the type of the tables."""
        return math.log(k) if self.active is None else jnp.log(self.active.sum())

    def mean(self, values: jax.Array, axis: int) -> jax.Array:
        """Mean over the clusters, which are an axis (counted from the end) of ``values``."""
        if self.active is None:
            return values.mean(axis)
        there = self.active.reshape(-1, *[1] * (-1 - axis))
        return (there * values).sum(axis) / self.active.sum()


def _chord(cells: int) -> float:
    """Slope of the chord of entropy against the sum of squares, next to uniform cells."""
    k = max(cells, 1)
    return k * (k + 1) * np.log1p(1 / k)


def form_weights(form: str, k: int, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights u and v of a labeling with shares ``p`` (S,), for ``k`` clusters; see `Penalty`."""
    s = p.size
    if form == "chi2":
        return 1 / p, np.zeros(s)
    beta = _chord(s if form == "printed" else k * s - 1)
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
    """Tables of labelings, each (n,) codes, over the features of ``x`` (n, m); in float64.

    Features are padded to ``width``, values of the labelings to a rounded number. ``active`` says
    which clusters exist; see `nrprob.statistics.rows.active_mask`.
    """
    n, m = x.shape
    parts = []
    for codes in labelings:
        sizes = np.bincount(codes).astype(float)
        if sizes.size == 1:
            continue  # a constant labeling tells nothing, and adds exactly 0
        if isinstance(x, jax.Array):
            ones = np.asarray(jax.ops.segment_sum(x.astype(jnp.float64), codes, sizes.size))
        else:
            ones = group_sums(x, codes)
        total = ones.sum(0)
        varies = (total > 0) & (total < n)
        share = (sizes / n)[:, None]
        # A constant feature says nothing of z, under either of its values.
        given_1 = np.where(varies, ones / np.where(varies, total, 1), share)
        given_0 = np.where(varies, (sizes[:, None] - ones) / np.where(varies, n - total, 1), share)
        u, v = form_weights(form, k, sizes / n)
        parts.append((given_1 - given_0, given_0.sum(1), m * sizes / n, u, v))
    n_values = sum(part[1].size for part in parts)
    padded = padded_count(n_values, width * (k if active is None else active.size))
    differences = np.zeros((padded, width))
    rest = np.zeros((4, padded))
    if parts:
        differences[:n_values, :m] = np.concatenate([part[0] for part in parts])
        rest[:, :n_values] = [np.concatenate([part[i] for part in parts]) for i in range(1, 5)]
    offset, share, spread, centre = rest
    exist = None if active is None else active.astype(float)
    return Penalty(differences, offset, share, spread, centre, exist)


# theta is (R, K, p), for R restarts.


def penalty_value(tables: Penalty, theta: jax.Array) -> jax.Array:
    """M^2 P of parameters (..., K, p)."""
    e = theta @ tables.differences.T
    mean = tables.mean(e, -2)
    apart = (tables.spread * tables.mean((e - mean[..., None, :]) ** 2, -2)).sum(-1)
    centre = (tables.centre * ((tables.offset + mean) ** 2 - tables.share**2)).sum(-1)
    return 0.5 * (apart + centre)


def penalty_slope(tables: Penalty, theta: jax.Array) -> jax.Array:
    """Derivative of `penalty_value` by theta, times K."""
    e = theta @ tables.differences.T
    mean = tables.mean(e, -2)[..., None, :]
    pull = tables.spread * (e - mean) + tables.centre * (tables.offset + mean)
    return pull @ tables.differences


def exact_penalty(tables: Penalty, theta: jax.Array, m: jax.Array) -> tuple[jax.Array, jax.Array]:
    """M^2 I(C;Z) under the model, and its derivative by theta times K."""
    r = jnp.maximum(tables.offset + theta @ tables.differences.T, 1e-30)
    log_ratio = jnp.log(r) - jnp.log(tables.mean(r, -2)[..., None, :])
    return m * tables.mean(r * log_ratio, -2).sum(-1), m * (log_ratio @ tables.differences)
