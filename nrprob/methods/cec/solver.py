"""Compiled solver of cross-entropy clustering: initialisation and reassignment.

Sizes: B blocks of r rows, m columns, K clusters, all with padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.hash_rng import fold_in, hashed_uniform
from nrprob.engines.optimise import solve
from nrprob.engines.optimise.anneal import FixedWeights
from nrprob.engines.optimise.differences import ClusterRemoval, label_cells
from nrprob.engines.optimise.kmeans import kmeans_plus_plus, squared_distances_from
from nrprob.engines.optimise.reassign import reassign_batched, reassign_sequentially
from nrprob.engines.programs import jit_by_size
from nrprob.methods.cec.costs import LabelCost, SizeCost
from nrprob.statistics.gaussians import CrossEntropyCost
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms, TracedTerm, one_hot

STARTS = ("k-means++", "random")


class CECParameters(NamedTuple):
    """Settings of `solve_cec`. All are traced, so new values need no compilation.

    Attributes
    ----------
    ridge : (m,) diagonal that is added to the scatter of a cluster; 1 in padding columns
    dimension : number of columns without padding
    metric : (m,) weights of squared differences between rows in k-means++
    total : total mass of all rows
    least : half the smallest mass of a row
    parameters : number of parameters per cluster, which the objective charges; 0 for no charge
    beta : weight of the label entropy
    smallest : clusters of smaller mass are deleted
    sparing : whether a small cluster stays if its rows would distort the other clusters
    joining : whether clusters also merge if this lowers the objective
    constant : part of the objective, in nats, that is the same for all partitions
    """

    ridge: Any
    dimension: Any
    metric: Any
    total: Any
    least: Any
    parameters: Any
    beta: Any
    smallest: Any
    sparing: Any
    joining: Any
    constant: Any


class Ended(NamedTuple):
    """Further results of the best restart.

    Attributes
    ----------
    values : (terms,) terms of the objective: features, sizes, and labels if there are any
    active : (steps,) number of clusters after every step, NaN after the last step
    """

    values: jax.Array
    active: jax.Array


@dataclass(frozen=True)
class Objective:
    """Terms of the objective of cross-entropy clustering.

    Attributes
    ----------
    covariance : covariance family of the clusters
    labelled : whether some rows have labels
    """

    covariance: str
    labelled: bool

    def terms(self, rows: Rows, parameters: CECParameters) -> Terms:
        """Terms of the features, the cluster sizes and the labels."""
        unit, zero = jnp.ones((), rows.mass.dtype), jnp.zeros((), jnp.float64)
        least = parameters.least
        features = CrossEntropyCost(parameters.ridge, parameters.dimension, least, self.covariance)
        sizes = SizeCost(parameters.total, parameters.parameters, least)
        scale = jnp.asarray(parameters.dimension, jnp.float64)
        terms = (
            TracedTerm(unit, parameters.constant, None, features, False, scale),
            TracedTerm(unit, zero, None, sizes, False),
        )
        if not self.labelled:
            return terms
        columns = rows.x.x.shape[-1]
        first = rows.x.n_statistics - columns + features.n_features
        labels = LabelCost(least, first, features.n_features)
        return *terms, TracedTerm(parameters.beta, zero, None, labels, False)

    def __call__(self, rows: Rows, settings: solve.Settings) -> solve.Problem:
        """Build the problem that the annealing engine solves."""
        terms = self.terms(rows, settings.method)
        weights = jnp.stack([term.weight for term in terms])
        return solve.Problem(terms, FixedWeights(weights))


def _plus_plus_labels(
    rows: Rows, seed: jax.Array, metric: jax.Array, active: jax.Array
) -> jax.Array:
    """Labels (B, r) of the rows: index of the nearest k-means++ centre.

    ``metric`` (m,) are weights of squared differences, and ``active`` (K,) is False for padding.
    """
    m = metric.shape[0]
    x = rows.x.x.reshape(-1, rows.x.x.shape[-1])[:, :m] * jnp.sqrt(metric)
    mass = rows.mass.reshape(-1)

    def draw_centre(j, nearest):
        steps = jnp.cumsum(nearest * mass)
        index = jnp.searchsorted(
            steps, hashed_uniform(fold_in(seed, j), (), x.dtype) * steps[-1], "right"
        )
        return x[jnp.minimum(index, (jnp.arange(mass.size) * (mass > 0)).max())]

    room = jnp.zeros((active.shape[0], m), x.dtype)
    centres, _ = kmeans_plus_plus(draw_centre, squared_distances_from(x), room, jnp.ones_like(mass))
    square = (centres * centres).sum(1) - 2 * x @ centres.T
    nearest = jnp.where(active, square, jnp.inf).argmin(1)
    return nearest.astype(jnp.int32).reshape(rows.mass.shape)


def _random_labels(rows: Rows, seed: jax.Array, active: jax.Array) -> jax.Array:
    """Labels (B, r) of the rows, drawn uniformly from the ``active`` (K,) clusters."""
    u = hashed_uniform(fold_in(seed, rows.number), (), rows.mass.dtype)
    return (u * active.sum()).astype(jnp.int32)


@jit_by_size("build", "n_clusters", "n_init", "solver", "init")
def solve_cec(
    rows: Rows,
    settings: solve.Settings,
    seed: jax.Array,
    initial: jax.Array | None,
    *,
    build: Objective,
    n_clusters: int,
    n_init: int,
    solver: str,
    init: str,
) -> solve.Solution:
    """Run all restarts, and keep the best.

    Parameters
    ----------
    rows : B blocks of r rows
    settings : settings of the engines, with `CECParameters` as ``method``
    seed : random seed
    initial : (B, r) initial labels; None computes them by ``init``, or by annealing
    build : terms of the objective
    n_clusters : number of clusters with padding
    n_init : number of restarts
    solver : "batched", "sequential" or "anneal"
    init : "k-means++" or "random"
    """
    parameters = settings.method
    terms = build.terms(rows, parameters)
    active = jnp.arange(n_clusters) < settings.n_clusters
    if solver == "anneal":
        result = solve.solve_anneal(
            rows, settings, seed, None,
            build=build, n_clusters=n_clusters, n_init=n_init,
        )  # fmt: skip
        starts = jnp.moveaxis(result.labels, -1, 0)
    elif initial is not None:
        starts = jnp.broadcast_to(initial, (n_init, *initial.shape))
    else:
        seeds = fold_in(fold_in(seed, 1), jnp.arange(n_init))
        start = {
            "k-means++": lambda key: _plus_plus_labels(rows, key, parameters.metric, active),
            "random": lambda key: _random_labels(rows, key, active),
        }[init]
        starts = jax.lax.map(start, seeds)
    engine = reassign_sequentially if solver == "sequential" else reassign_batched
    result = engine(
        terms, rows, starts, fold_in(seed, 2), max_iter=settings.max_iter, n_clusters=n_clusters,
        active=active,
        removal=ClusterRemoval(parameters.smallest, parameters.sparing > 0, parameters.joining > 0),
    )  # fmt: skip

    def evaluate_terms(labels):
        cells = label_cells(rows, labels, n_clusters)[0, 0]
        return jnp.stack([t.weight * (t.cost(cells).sum() + t.constant) for t in terms])

    values = jax.lax.map(evaluate_terms, result.labels)
    objective = values.sum(1)
    objective = jnp.where(jnp.isnan(objective), jnp.inf, objective)
    best = objective.argmin()
    return solve.Solution(
        jnp.moveaxis(result.labels, 0, -1),
        objective,
        result.converged,
        result.n_iter[best],
        one_hot(result.labels[best][..., None], rows.mass, n_clusters)[:, :, 0],
        result.trace[best],
        Ended(values[best], result.active[best]),
    )


def make_parameters(**values: Any) -> CECParameters:
    """`CECParameters` with all values as float64 arrays."""
    return jax.tree.map(lambda value: np.asarray(value, np.float64), CECParameters(**values))
