"""Starts of a mixture of residuals: k-means of all rows, or in every known group by itself.

Everything is side by side over starts, and compiled together with the fit. Rows lie in blocks of
one known group each, as `nrprob.statistics.rows.arrange` lays them out.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from optax.assignment import hungarian_algorithm

from nrprob.engines.kmeans import lloyd, plus_plus
from nrprob.engines.shuffle import stream, uniform

_LLOYD = 50  # iterations of k-means at most
_MATCHINGS = 5  # of the groups' clusters with common ones
_HIGHEST = jax.lax.Precision.HIGHEST


def _by_group(values: jax.Array, group: jax.Array, n_groups: int, reduce: Any) -> jax.Array:
    """Reduce values (S, B, ...) over the blocks of every group: (S, groups, ...)."""
    if n_groups == 1:
        one = {jax.ops.segment_sum: jnp.sum, jax.ops.segment_min: jnp.min}[reduce]
        return one(values, axis=1, keepdims=True)
    moved = jnp.moveaxis(values, 1, 0)
    found = reduce(moved, group, n_groups, indices_are_sorted=True)
    return jnp.moveaxis(found, 0, 1)


def _products(z: jax.Array, centres: jax.Array, group: jax.Array) -> jax.Array:
    """Inner products (S, K, B, r) of rows z (M, B, r, p) and their groups' centres (S, L, K, p).

    There are S/M starts in each of the M metrics.
    """
    m, b, r, p = z.shape
    s, n_groups, k, _ = centres.shape
    if n_groups == 1:
        flat = centres.reshape(m, s // m * k, p)
        out = jnp.einsum("mkp,mnp->mkn", flat, z.reshape(m, b * r, p), precision=_HIGHEST)
        return out.reshape(s, k, b, r)
    own = centres[:, group].reshape(m, s // m, b, k, p)
    out = jnp.einsum("msbkp,mbrp->mbskr", own, z, precision=_HIGHEST)
    return jnp.moveaxis(out, 1, 3).reshape(s, k, b, r)


def _sums(z: jax.Array, w: jax.Array, group: jax.Array, n_groups: int) -> jax.Array:
    """Sums (S, groups, K, p) of rows z (M, B, r, p) with weights w (S, K, B, r)."""
    m, b, r, p = z.shape
    s, k = w.shape[:2]
    if n_groups == 1:
        flat = w.reshape(m, s // m * k, b * r)
        out = jnp.einsum("mkn,mnp->mkp", flat, z.reshape(m, b * r, p), precision=_HIGHEST)
        return out.reshape(s, 1, k, p)
    w = w.reshape(m, s // m, k, b, r)
    out = jnp.einsum("mskbr,mbrp->mbskp", w, z, precision=_HIGHEST)
    return _by_group(jnp.moveaxis(out, 1, 2).reshape(s, b, k, p), group, n_groups,
                     jax.ops.segment_sum)  # fmt: skip


def kmeans(
    z: jax.Array, data: Any, k: int, each: int, seed: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cluster the rows of every group by themselves, ``each`` times in every metric.

    Parameters
    ----------
    z : (M, B, r, p) rows as each of M metrics sees them
    data : the rows, and the groups of their blocks; see `nrprob.methods.residual.em.Residuals`
    k, each : int
    seed : of the k-means++ starts

    Returns
    -------
    labels : (S, B, r), with S = M * each
    centres : (S, groups, k, p)
    sizes : (S, groups, k)
    """
    m, b, r, p = z.shape
    s = m * each
    dtype = z.dtype
    mass, group, n_groups = data.mass, data.group, data.sizes.shape[0]
    starts = stream(seed, jnp.arange(s))[:, None, None]
    real = mass > 0
    square = (z * z).sum(-1)  # (M, B, r)
    metric = jnp.repeat(jnp.arange(m), each)
    infinite = jnp.asarray(jnp.inf, dtype)
    rounding = 32 * jnp.finfo(dtype).eps

    def draw(index, weight):
        """Pick a row of every group with probability proportional to its weight (S, B, r)."""
        u = uniform(stream(stream(starts, index), data.number), (), dtype)
        # The first arrival of independent Poisson processes; 1 - u is never 0.
        time = jnp.where(real & (weight > 0), -jnp.log1p(-u) / jnp.maximum(weight, 1e-30), infinite)
        row, first = time.argmin(-1), time.min(-1)
        earliest = _by_group(first, group, n_groups, jax.ops.segment_min)
        own = earliest[:, group] if n_groups > 1 else earliest
        block = jnp.where(first <= own, jnp.arange(b), b - 1)
        block = _by_group(block, group, n_groups, jax.ops.segment_min)  # (S, L)
        row = jnp.take_along_axis(row, block, 1)
        return z[metric[:, None], block, row]  # (S, L, p)

    def nearness(centres):
        """Half the square of a row less half its squared distance, (S, K, B, r) of centres."""
        own = 0.5 * (centres**2).sum(-1)  # (S, L, K)
        own = jnp.moveaxis(own[:, group] if n_groups > 1 else own, 1, 2)[..., None]
        return _products(z, centres, group) - own

    def distance(centre):
        """Squared distance (S, B, r) of every row from one centre (S, L, p) of its group."""
        left = square[metric] - 2 * nearness(centre[:, :, None])[:, 0]
        return jnp.where(left > rounding * square[metric], left, 0)  # equal rows are not drawn

    def assign(centres):
        near = nearness(centres)
        if data.active is not None:
            near = jnp.where(data.active[:, None, None], near, -jnp.inf)
        return jnp.where(real, near.argmax(1), 0).astype(jnp.int32)  # (S, B, r)

    def weights(labels):
        hit = labels[:, None] == jnp.arange(k)[:, None, None]
        return jnp.where(hit, mass, 0)  # (S, K, B, r)

    def count(w):
        per_block = jnp.moveaxis(w.sum(-1), 2, 1)
        return _by_group(per_block, group, n_groups, jax.ops.segment_sum)  # (S, L, K)

    def means(labels, centres):
        w = weights(labels)
        size = count(w)[..., None]
        return jnp.where(size > 0, _sums(z, w, group, n_groups) / jnp.maximum(size, 1e-30), centres)

    room = jnp.zeros((s, n_groups, k, p), dtype)
    centres, _ = plus_plus(draw, distance, room, jnp.ones((s, b, r), dtype))
    centres, labels = lloyd(assign, means, centres, _LLOYD)
    return labels, centres, count(weights(labels))


def match(cost: jax.Array, active: jax.Array | None) -> jax.Array:
    """Assignment (..., K) of columns to rows of least total cost (..., K, K).

    Those of ``active`` (K,) go with each other.
    """
    flat = cost.reshape(-1, *cost.shape[-2:]).astype(jnp.float64)
    if active is not None:
        dear = 1 + 2 * len(active) * jnp.abs(flat).max()
        flat = jnp.where(active[:, None] == active, flat, dear)
    rows, columns = jax.vmap(hungarian_algorithm)(flat)
    at = jnp.arange(len(flat))[:, None]
    out = jnp.zeros(flat.shape[:2], jnp.int32).at[at, rows].set(columns.astype(jnp.int32))
    return out.reshape(cost.shape[:-1])


def align(
    labels: jax.Array, centres: jax.Array, sizes: jax.Array, data: Any, seed: Any
) -> jax.Array:
    """Give clusters of different groups common names, so that those alike in place are one.

    In turn the clusters of every group are matched with common centres, at the least sum of squares
    (Hungarian method), and the centres become the means of what was matched. A group drawn by its
    size makes the first centres.

    Parameters
    ----------
    labels : (S, B, r)
    centres : (S, groups, k, p)
    sizes : (S, groups, k)
    data : the groups of the blocks; see `nrprob.methods.residual.em.Residuals`
    seed : of the draw
    """
    s, n_groups, k, _ = centres.shape
    if n_groups == 1:
        return labels
    weight = sizes.sum(-1)
    u = uniform(seed, (s, n_groups), centres.dtype)
    first = (-jnp.log1p(-u) / jnp.maximum(weight, 1e-30)).argmin(1)
    common = jnp.take_along_axis(centres, first[:, None, None, None], 1)[:, 0]

    def improve(_, carry):
        common, _ = carry
        inner = jnp.einsum("slkp,sjp->slkj", centres, common, precision=_HIGHEST)
        own = (common**2).sum(-1)[:, None, None]
        names = match(sizes[..., None] * (own - 2 * inner), data.active)  # (S, L, K)
        hit = jnp.where(names[..., None] == jnp.arange(k), sizes[..., None], 0)
        total = hit.sum((1, 2))[..., None]
        means = jnp.einsum("slkj,slkp->sjp", hit, centres, precision=_HIGHEST)
        return jnp.where(total > 0, means / jnp.maximum(total, 1e-30), common), names

    start = common, jnp.zeros((s, n_groups, k), jnp.int32)
    _, names = jax.lax.fori_loop(0, _MATCHINGS, improve, start)
    return jnp.take_along_axis(names[:, data.group], labels, 2)


def name_classes(
    labels: jax.Array, fixed: jax.Array, k: int, active: jax.Array | None
) -> jax.Array:
    """Rename clusters (S, B, r) so that they agree with as many labelled rows as they can.

    Labelled rows then get their own class. ``fixed`` (B, r) is -1 where there is no label, and
    ``active`` (k,) False for names that do not exist.
    """
    wanted = (fixed[..., None] == jnp.arange(k)).astype(jnp.float64)
    found = labels[..., None] == jnp.arange(k)
    overlap = jnp.einsum("sbrk,brj->skj", found.astype(jnp.float64), wanted)
    names = match(-overlap, active)
    renamed = jnp.take_along_axis(names[:, None], labels, 2)
    return jnp.where(fixed >= 0, fixed, renamed)
