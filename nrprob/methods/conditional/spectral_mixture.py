"""Gaussian mixtures with a tied covariance, for many sets of coordinates in one compiled program.

All components share one covariance matrix with the inverse A. The term x' A x of the log density is
then the same for all components, so memberships need one product of rows and means. The covariance
follows from the total scatter minus the scatter of the means.

Sizes: S mixtures of K components, for n rows with p coordinates.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.hash_rng import fold_in
from nrprob.engines.optimise.iterate import empty_trace, iterate, map_restarts
from nrprob.engines.optimise.kmeans import kmeans_plus_plus, lloyd_iterations
from nrprob.engines.placement import on_cpu
from nrprob.engines.programs import jit_by_size
from nrprob.statistics.matrices import whitener
from nrprob.statistics.rows import active_mask, bucket_size

_HIGHEST = jax.lax.Precision.HIGHEST
_LLOYD = 100  # maximum number of iterations of the k-means that initialises EM
_CAPACITY = 256  # entries of a trace
_CANDIDATES = 4  # candidates per initial centre, of which the best is selected


class Mixtures(NamedTuple):
    """S fitted mixtures, one per set of coordinates and seed.

    Attributes
    ----------
    labels : (S, n) components of the rows
    objective : (S,) minus the log likelihood, in nats
    coef, intercept : (S, K, p) and (S, K); the log membership of a row x (p,) in the components is
        ``coef @ x + intercept``, up to a constant
    n_iter : (S,) numbers of EM steps
    converged : (S,) whether EM converged
    trace : (S, 256) objective after every EM step; NaN after the last step
    """

    labels: np.ndarray
    objective: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    n_iter: np.ndarray
    converged: np.ndarray
    trace: np.ndarray


def fit_mixtures(
    coordinates: np.ndarray,
    mass: np.ndarray,
    keys: np.ndarray,
    seeds: np.ndarray,
    n_clusters: int,
    fixed: np.ndarray | None,
    *,
    reg: float,
    max_iter: int,
    tol: float,
) -> Mixtures:
    """Fit one mixture per set of coordinates, by EM from k-means.

    Parameters
    ----------
    coordinates : (S, n, p) coordinates of the rows
    mass : (n,) weights of the rows; 0 for rows without influence
    keys : (n,) uint32 random numbers from `row_keys`, which depend on the contents of the rows
        only; the initial values therefore do not depend on the order of the rows
    seeds : (S,) uint32 random seeds
    n_clusters : number of components, K
    fixed : (n,) component of labelled rows, else -1; None without labels
    reg : number that is added to the variances
    max_iter : maximum number of EM steps
    tol : EM continues as long as the mean log likelihood increases by more than ``tol``
    """
    s, n, p = coordinates.shape
    n_classes = 0 if fixed is None else int(fixed.max()) + 1
    size = bucket_size(n, 65536)
    real = active_mask(n_clusters, size * p)
    k = max(bucket_size(n_clusters, 64), 2) if real is None else real.size
    pad = size - n
    dtype = coordinates.dtype
    arguments = (
        np.pad(coordinates, ((0, 0), (0, pad), (0, 0))),
        np.pad(mass.astype(dtype), (0, pad)),
        np.pad(keys, (0, pad)),
        seeds,
        np.asarray(n_clusters, np.int32),
        np.asarray(n_classes, np.int32),
        np.pad(np.full(n, -1) if fixed is None else fixed, (0, pad), constant_values=-1),
        np.asarray(reg, dtype),
        np.asarray(max_iter, np.int32),
        np.asarray(tol, dtype),
    )
    # On a CPU, fit the mixtures one after another: in parallel, all wait for the slowest.
    together = 1 if on_cpu(arguments) else s
    result = Mixtures(*jax.device_get(_fit_program(*arguments, n_clusters=k, together=together)))
    return result._replace(
        labels=result.labels[:, :n],
        coef=result.coef[:, :n_clusters],
        intercept=result.intercept[:, :n_clusters],
    )


@jit_by_size("n_clusters", "together")
def _fit_program(
    x, mass, keys, seeds, k, n_classes, fixed, reg, max_iter, tol, *, n_clusters, together
):
    """Fit the mixtures of `fit_mixtures`, with padded rows and components; return `Mixtures`.

    ``n_clusters`` is the padded number of components, and ``k`` the actual number.
    """
    active = jnp.arange(n_clusters) < k
    is_fixed = (fixed >= 0)[:, None]
    fixed_labels = jax.nn.one_hot(fixed, n_clusters, dtype=x.dtype)  # a row of zeros for -1
    total = mass.sum()
    dot = partial(jnp.matmul, precision=_HIGHEST)

    def fit_one(x, seed):
        """Fit one mixture to coordinates ``x`` (n, p) with a random seed."""

        def cluster_means(r):
            """Means (K, p) and masses (K,) of the components, from memberships (n, K)."""
            w = r * mass[:, None]
            size = w.sum(0)
            return dot(w.T, x) / jnp.maximum(size, 1e-10)[:, None], size

        def nearest_centre(centre):
            score = dot(x, centre.T) - 0.5 * (centre**2).sum(1)
            return jnp.where(
                is_fixed, fixed_labels, _one_hot_labels(jnp.where(active, score, -jnp.inf))
            )

        def update_centres(r, centre):
            new, size = cluster_means(r)
            return jnp.where((size > 0)[:, None], new, centre)

        # 1. K-means.
        centre = _initial_centres(x, seed, mass, keys, n_classes, fixed_labels, n_clusters)
        _, r = lloyd_iterations(nearest_centre, update_centres, centre, _LLOYD)

        # 2. EM.
        scatter = dot((x * mass[:, None]).T, x)
        unit = jnp.eye(x.shape[1], dtype=x.dtype)

        def m_step(r):
            """M-step from memberships ``r`` (n, K).

            Returns the coefficients (K, p) and intercepts (K,) of `Mixtures`, and a constant. The
            constant is minus the sum over all rows of the part of the log density that is the same
            for all components.
            """
            mu, size = cluster_means(r)
            covariance = (scatter - dot((mu * size[:, None]).T, mu)) / total + reg * unit
            white, log_det = whitener(covariance)
            coef = dot(dot(mu, white.T), white)
            share = jnp.where(active, jnp.maximum(size, 1e-10) / total, 1)
            prior = jnp.where(active, jnp.log(share), -jnp.inf)
            intercept = prior - 0.5 * (coef * mu).sum(1)
            # Terms that do not depend on the component, summed over all rows.
            half = 0.5 * (dot(white, scatter) * white).sum() + 0.5 * total * log_det
            return coef, intercept, half + 0.5 * total * x.shape[1] * jnp.log(2 * jnp.pi)

        def e_step(coef, intercept, constant):
            """E-step: memberships (n, K), and the log likelihood."""
            score = dot(x, coef.T) + intercept
            norm = jax.nn.logsumexp(score, axis=1)
            fixed_scores = jnp.where(fixed_labels > 0, score, 0).sum(1)
            likelihood = (mass * jnp.where(is_fixed[:, 0], fixed_scores, norm)).sum() - constant
            return jnp.where(is_fixed, fixed_labels, jnp.exp(score - norm[:, None])), likelihood

        def em_step(state, _):
            model = m_step(state[0])
            r, value = e_step(*model)
            return (r, value, *model[:2]), ~(value - state[1] > tol * total), -value

        zero = jnp.zeros((n_clusters, x.shape[1]), x.dtype), jnp.zeros(n_clusters, x.dtype)
        trace = empty_trace(_CAPACITY, x.dtype)
        start = r, -jnp.asarray(jnp.inf, x.dtype), *zero
        result = iterate(em_step, start, max_iter, trace=trace)
        _, value, coef, intercept = result.state
        labels = jnp.where(is_fixed[:, 0], fixed, (dot(x, coef.T) + intercept).argmax(1))
        return Mixtures(labels, -value, coef, intercept, result.n_iter, result.done, result.trace)

    return map_restarts(fit_one, (x, seeds), together)


def _initial_centres(x, seed, mass, keys, n_classes, fixed_labels, n_clusters):
    """Initial centres (K, p): means of the classes of labelled rows, then k-means++.

    A row is sampled as the next centre with a probability proportional to its squared distance from
    the nearest centre. The sampling applies the Gumbel trick to the keys of the rows, so that the
    order of rows has no effect. Of several candidates, the one with the smallest sum of squared
    distances becomes the centre.

    ``x`` (n, p) are the coordinates of the rows, and ``fixed_labels`` (n, K) indicators of the
    components of labelled rows. The first ``n_classes`` components belong to classes. The other
    arguments are as in `fit_mixtures`.
    """
    size = (fixed_labels * mass[:, None]).sum(0)
    classes = jnp.matmul((fixed_labels * mass[:, None]).T, x, precision=_HIGHEST)
    classes = classes / jnp.maximum(size, 1e-10)[:, None]
    square = (x**2).sum(1)

    def squared_distance(centre):
        d = square + (centre**2).sum(-1) - 2 * jnp.matmul(x, centre, precision=_HIGHEST)
        return jnp.maximum(d, 0)

    def draw_centre(j, least):
        """Sample centre j (p,), given the squared distances ``least`` (n,) of rows from centres."""

        def draw_candidate(t):
            u = _key_uniform(keys, fold_in(seed, _CANDIDATES * j + t)).astype(x.dtype)
            weight = jnp.log(jnp.maximum(least, 1e-30)) - jnp.log(-jnp.log(u))
            return x[jnp.where(mass > 0, weight, -jnp.inf).argmax()]

        candidates = jax.vmap(draw_candidate)(jnp.arange(_CANDIDATES))
        left = jnp.minimum(jax.vmap(squared_distance)(candidates), least)
        return jnp.where(j < n_classes, classes[j], candidates[(left * mass).sum(1).argmin()])

    # Before the first centre, all rows have the same distance 8, so they are equally likely. Rows
    # have unit length, so no squared distance from a centre is larger than 8.
    room, far = jnp.zeros((n_clusters, x.shape[1]), x.dtype), jnp.full_like(square, 8)
    return kmeans_plus_plus(draw_centre, squared_distance, room, far)[0]


def _key_uniform(keys: jax.Array, seed: jax.Array) -> jax.Array:
    """Uniform random numbers in (0, 1), one per entry of ``keys`` (n,), for a random seed."""
    h = fold_in(seed ^ keys, 0)
    return ((h >> 8).astype(jnp.float32) + 0.5) * 2.0**-24


def _one_hot_labels(score: jax.Array) -> jax.Array:
    """Indicators (n, K) of the component with the largest ``score`` (n, K) in every row."""
    return jax.nn.one_hot(score.argmax(1), score.shape[1], dtype=score.dtype)


def row_keys(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Random numbers (n,) uint32, one per row of a CSR matrix, that depend only on its entries.

    ``indptr``, ``indices`` and ``data`` are the arrays of the matrix. Equal rows get equal numbers.
    """
    value = np.asarray(data, np.float64).view(np.uint64)
    h = _splitmix_hash(value ^ _splitmix_hash(indices.astype(np.uint64) + np.uint64(1)))
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(h, dtype=np.uint64)])
    # Sums of hashes are exact modulo 2^64, so that the position of a row has no influence.
    return (_splitmix_hash(total[indptr[1:]] - total[indptr[:-1]]) >> np.uint64(32)).astype(
        np.uint32
    )


def _splitmix_hash(h: np.ndarray) -> np.ndarray:
    """Hash of integers (uint64): the last step of the random number generator SplitMix64."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))
