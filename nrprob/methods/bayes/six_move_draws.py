"""Random variates of the six-move sampler, without slow rejection loops.

Gamma variates need one rejection loop for a whole array. Means and scales of Gaussian densities,
restricted to a box, are sampled from a proposal distribution that is close to their conditional
distribution. Its density is known, so that these variates serve as Metropolis-Hastings proposals
for the parameters of new components and for new parameters of existing components.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import erf, erf_inv

from nrprob.engines.sample.uniforms import uniform

_CELLS = 24  # linear pieces of the log proposal density of a log scale
# Range of this density below and above its centre, in standard deviations; the right tail is heavy.
_BELOW, _ABOVE = 4.5, 8.0
_UNIFORM = 0.02  # weight of a uniform density, which makes the proposal density positive


def log_gamma_variate(key: jax.Array, a: jax.Array) -> jax.Array:
    """Sample logarithms of gamma variates of shapes ``a > 0`` (any array), with scale 1.

    The method is the rejection sampler of Marsaglia and Tsang (2000). The sampler proposes for the
    whole array until every element is accepted. For shapes below 1, a Gamma(a) variate is a
    Gamma(a + 1) variate times U^(1/a) with uniform U, in logarithms to avoid underflow.
    """
    loop_key, boost_key = jax.random.split(key)
    d = jnp.where(a < 1, a + 1, a) - 1 / 3
    c = 1 / jnp.sqrt(9 * d)

    def propose_variates(carry):
        key, result, done = carry
        key, now = jax.random.split(key)
        # Normal variates x by inversion, and uniform variates u, from one call. With more elements
        # in the array, the variates of the first elements stay the same.
        x, u = jnp.moveaxis(uniform(now, (*a.shape, 2), a.dtype), -1, 0)
        x = jnp.sqrt(2) * erf_inv(jnp.maximum(2 * x - 1, jnp.finfo(a.dtype).epsneg - 1))
        v = (1 + c * x) ** 3
        log_v = jnp.log(jnp.where(v > 0, v, 1))
        good = (v > 0) & (jnp.log(u) < 0.5 * x * x + d * (1 - v + log_v))
        return key, jnp.where(done, result, log_v), done | good

    begin = loop_key, jnp.zeros_like(a), jnp.zeros(a.shape, bool)
    log_v = jax.lax.while_loop(lambda carry: ~carry[2].all(), propose_variates, begin)[1]
    # 1 - u is never 0.
    boost = jnp.log1p(-uniform(boost_key, a.shape, a.dtype)) / a
    return jnp.log(d) + log_v + jnp.where(a < 1, boost, 0)


def invert_cumulative(p: jax.Array, u: jax.Array) -> jax.Array:
    """Sample a category (integer) with unnormalised probabilities (m,), by inversion of the cdf.

    ``u`` is a uniform variate. Cumulative sums along one long axis are slow. So the probabilities
    are arranged in a square; the sums of its rows select a row, and the sums in this row a column.
    """
    side = int(np.ceil(np.sqrt(p.shape[0])))
    square = jnp.pad(p, (0, side * side - p.shape[0])).reshape(side, side)
    lower = np.tril(np.ones((side, side)))
    sums = lower @ square.sum(1)
    level = u * sums[-1]
    row = jnp.minimum((sums <= level).sum(), side - 1)
    inside = lower @ square[row]
    column = (inside <= level - (sums[row] - inside[-1])).sum()
    return jnp.minimum(row * side + jnp.minimum(column, side - 1), p.shape[0] - 1)


def draw_transfer(
    size: int, total: jax.Array, n_a: jax.Array, n_b: jax.Array, u: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Sample the division of ``total`` units between two components, given their numbers of rows.

    The first component, with n_a rows, gets c units and the second, with n_b rows, ``total - c``.
    The distribution is ``h(c) = c^n_a (total - c)^n_b / Z`` for c from 1 to ``total - 1``. The
    number c is sampled by inversion from the uniform variate ``u``. ``size`` bounds ``total``.

    Returns
    -------
    c : scalar
        Units of the first component.
    log_z : scalar
        Logarithm of Z; minus infinity with fewer than two units.
    """
    c = np.arange(1, size + 1)
    left = total - c
    valid = left >= 1
    log_p = n_a * np.log(c) + n_b * jnp.log(jnp.maximum(left, 1))
    top = jnp.where(total > 1, jnp.where(valid, log_p, -jnp.inf).max(), 0)
    p = jnp.where(valid, jnp.exp(log_p - top), 0)
    units = jnp.clip(invert_cumulative(p, u) + 1, 1, jnp.maximum(total - 1, 1))
    return units.astype(p.dtype), top + jnp.log(p.sum())


class Box(NamedTuple):
    """Bounds (d,) of the parameters of each feature under "nml".

    Log scales are in [low, high], and means in [left, right].
    """

    low: jax.Array
    high: jax.Array
    left: jax.Array
    right: jax.Array


class Moments(NamedTuple):
    """Moments of m components with d features.

    Attributes
    ----------
    n : (m, 1) numbers of rows
    mean : (m, d) means
    squares : (m, d) sums of squares about the means
    """

    n: jax.Array
    mean: jax.Array
    squares: jax.Array


def cell_moments(cells: jax.Array, d: int) -> Moments:
    """Moments of m components, from their statistics ``cells`` (m, p).

    The statistics begin with the sums of the d features and the sums of their squares.
    """
    n = cells[:, -1:]
    mean = cells[:, :d] / jnp.maximum(n, 1)
    squares = jnp.maximum(cells[:, d : 2 * d] - n * mean * mean, 0)
    return Moments(n, mean, jnp.where(n > 1.5, squares, 0))


def _log_posterior(m: Moments, t: jax.Array) -> jax.Array:
    """Log posterior density of log scales ``t`` of components with moments ``m``.

    The density is up to a constant. The means are integrated out as if they were not bounded. Log
    scales have a flat prior.
    """
    return jnp.where(m.n > 0, -(m.n - 1) * t - 0.5 * m.squares * jnp.exp(-2 * t), 0)


class _Law(NamedTuple):
    """Proposal distributions of log scales, for m components and d features.

    The log density is linear between equally spaced nodes.

    Attributes
    ----------
    start, step : (m, d) first node, and distance of adjacent nodes
    values : (m, d, nodes) log densities at the nodes, minus the largest of them
    masses : (m, d, nodes - 1) probabilities of the pieces between nodes, up to a constant factor
    """

    start: jax.Array
    step: jax.Array
    values: jax.Array
    masses: jax.Array


def _proposal_law(m: Moments, box: Box) -> _Law:
    free = jnp.maximum(m.n - 1, 1)
    width = 1 / jnp.sqrt(2 * free)
    centre = 0.5 * jnp.log(jnp.maximum(m.squares / free, 1e-30))
    centre = jnp.clip(centre, box.low, box.high)
    few = m.n < 1.5
    start = jnp.where(few, box.low, jnp.maximum(box.low, centre - _BELOW * width))
    stop = jnp.where(few, box.high, jnp.minimum(box.high, centre + _ABOVE * width))
    step = (stop - start) / _CELLS
    nodes = start[..., None] + step[..., None] * np.arange(_CELLS + 1)
    values = _log_posterior(Moments(*(a[..., None] for a in m)), nodes)
    values = values - values.max(-1, keepdims=True)
    higher = jnp.maximum(values[..., 1:], values[..., :-1])
    slope = jnp.abs(values[..., 1:] - values[..., :-1])
    share = jnp.where(slope > 1e-4, -jnp.expm1(-slope) / jnp.maximum(slope, 1e-4), 1 - slope / 2)
    return _Law(start, step, values, jnp.exp(higher) * share)


def _log_density(law: _Law, box: Box, t: jax.Array) -> jax.Array:
    """Log proposal density (m, d) at log scales ``t`` (m, d).

    The proposal distribution is a mixture of ``law`` and a uniform distribution.
    """
    position = (t - law.start) / law.step
    hat = jnp.maximum(1 - jnp.abs(position[..., None] - np.arange(_CELLS + 1)), 0)
    value = (hat * law.values).sum(-1) - jnp.log(law.masses.sum(-1) * law.step)
    inside = (position >= 0) & (position <= _CELLS)
    near = jnp.where(inside, jnp.log1p(-_UNIFORM) + value, -jnp.inf)
    return jnp.logaddexp(near, jnp.log(_UNIFORM / (box.high - box.low)))


def draw_scales(key: jax.Array, m: Moments, box: Box) -> jax.Array:
    """Sample log scales (m, d) of components with moments ``m``, approximately from the posterior.

    The means are integrated out.
    """
    shape = m.squares.shape
    # The four variates are on the last axis. So with more components, the variates of the first
    # components stay the same.
    which, within, anywhere, mix = jnp.moveaxis(uniform(key, (*shape, 4), m.squares.dtype), -1, 0)
    law = _proposal_law(m, box)
    sums = law.masses @ np.triu(np.ones((_CELLS, _CELLS)))
    cell = jnp.minimum((sums <= which[..., None] * sums[..., -1:]).sum(-1), _CELLS - 1)
    is_cell = cell[..., None] == np.arange(_CELLS)
    change = jnp.where(is_cell, law.values[..., 1:] - law.values[..., :-1], 0).sum(-1)
    slope = jnp.maximum(jnp.abs(change), 1e-6)
    # Distance from the higher end of the piece, whose density decreases by exp(-slope).
    down = -jnp.log1p(within * jnp.expm1(-slope)) / slope
    place = cell + jnp.where(change > 0, 1 - down, down)
    near = jnp.clip(law.start + law.step * place, box.low, box.high)
    return jnp.where(mix < _UNIFORM, box.low + anywhere * (box.high - box.low), near)


def draw_means(key: jax.Array, m: Moments, log_scales: jax.Array, box: Box) -> jax.Array:
    """Sample means (m, d) of components with moments ``m``, given their log scales (m, d).

    The distributions are Gaussian, truncated to the box.
    """
    u = uniform(key, m.mean.shape, m.mean.dtype)
    unit, below, width = _truncated_mass(m, log_scales, box)
    # `erf_inv` is infinite at -1 and 1.
    most = 1 - jnp.finfo(u.dtype).epsneg
    normal = m.mean + unit * erf_inv(jnp.clip(below + u * width, -most, most))
    flat = box.left + u * (box.right - box.left)
    return jnp.clip(jnp.where(m.n > 0, normal, flat), box.left, box.right)


def _truncated_mass(m: Moments, log_scales: jax.Array, box: Box) -> tuple[jax.Array, ...]:
    """Truncation of the conditional distributions of means to the box, three arrays (m, d).

    The arrays are the standard deviation times sqrt(2), erf at the left bound, and the increase of
    erf from the left to the right bound. The mean of the rows lies in the box, so erf has different
    signs at the two bounds.
    """
    unit = jnp.exp(log_scales) * jnp.sqrt(2 / jnp.maximum(m.n, 1))
    below, above = erf((jnp.stack([box.left, box.right])[:, None] - m.mean) / unit)
    return unit, below, above - below


def log_evidence(m: Moments, log_scales: jax.Array, box: Box) -> jax.Array:
    """Log importance weights (m, d) of a sampled mean and log scale per component and feature.

    The weight is likelihood times prior density over proposal density. The prior of means and log
    scales is uniform in the box. Proposals are from `draw_scales` and `draw_means`. The expectation
    of the weight is the marginal likelihood. The weight does not depend on the means, since these
    are sampled from their conditional distribution.
    """
    size = jnp.log(box.high - box.low)
    inside = 0.5 * _truncated_mass(m, log_scales, box)[2]
    n = jnp.maximum(m.n, 1)
    log_p = (
        _log_posterior(m, log_scales)
        - 0.5 * (n - 1) * jnp.log(2 * jnp.pi)
        - 0.5 * jnp.log(n)
        + jnp.log(jnp.maximum(inside, jnp.finfo(inside.dtype).tiny))
        - jnp.log(box.right - box.left)
    )
    log_q = _log_density(_proposal_law(m, box), box, log_scales)
    return jnp.where(m.n > 0, log_p, 0) - size - log_q
