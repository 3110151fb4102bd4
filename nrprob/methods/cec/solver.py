"""Cross-entropy clustering as one compiled program: initialisation and reassignment."""

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
from nrprob.statistics.gaussians import CrossEntropy
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms, TracedTerm, one_hot

STARTS = ("k-means++", "random")


class Numbers(NamedTuple):
    """What the program reads beside the rows, all traced.

    Attributes
    ----------
    ridge, dimension : see `nrprob.statistics.gaussians.CrossEntropy`
    metric : (m,) weights of the features' squares where starts are drawn
    total : number of rows
    parameters : see `SizeCost`
    beta : weight of the labels' entropy
    smallest, sparing, joining : see `nrprob.engines.optimise.differences.ClusterRemoval`
    constant : nats that no partition changes
    """

    ridge: Any
    dimension: Any
    metric: Any
    total: Any
    parameters: Any
    beta: Any
    smallest: Any
    sparing: Any
    joining: Any
    constant: Any


class Ended(NamedTuple):
    """What a fit adds of the best restart.

    Attributes
    ----------
    values : (terms,) what each term comes to: features, sizes, and labels if there are any
    active : (steps,) clusters that existed after every step, NaN beyond the last
    """

    values: jax.Array
    active: jax.Array


@dataclass(frozen=True)
class Objective:
    """The terms of cross-entropy clustering.

    Attributes
    ----------
    covariance : of the clusters
    labelled : whether some rows have labels
    """

    covariance: str
    labelled: bool

    def terms(self, rows: Rows, numbers: Numbers) -> Terms:
        """Features, sizes and labels."""
        one, none = jnp.ones((), rows.mass.dtype), jnp.zeros((), jnp.float64)
        features = CrossEntropy(numbers.ridge, numbers.dimension, self.covariance)
        sizes = SizeCost(numbers.total, numbers.parameters)
        scale = jnp.asarray(numbers.dimension, jnp.float64)
        terms = (
            TracedTerm(one, numbers.constant, None, features, False, scale),
            TracedTerm(one, none, None, sizes, False),
        )
        if not self.labelled:
            return terms
        columns = rows.x.x.shape[-1]
        labels = LabelCost(rows.x.n_statistics - columns + features.n_features, features.n_features)
        return *terms, TracedTerm(numbers.beta, none, None, labels, False)

    def __call__(self, rows: Rows, settings: solve.Settings) -> solve.Problem:
        """Make the problem that an annealing solves."""
        terms = self.terms(rows, settings.method)
        weights = jnp.stack([term.weight for term in terms])
        return solve.Problem(terms, FixedWeights(weights))


def _plus_plus(rows: Rows, seed: jax.Array, metric: jax.Array, active: jax.Array) -> jax.Array:
    """Labels (B, r) by the nearest of rows that are far from each other."""
    m = metric.shape[0]
    x = rows.x.x.reshape(-1, rows.x.x.shape[-1])[:, :m] * jnp.sqrt(metric)
    mass = rows.mass.reshape(-1)

    def draw(j, nearest):
        steps = jnp.cumsum(nearest * mass)
        at = jnp.searchsorted(
            steps, hashed_uniform(fold_in(seed, j), (), x.dtype) * steps[-1], "right"
        )
        return x[jnp.minimum(at, (jnp.arange(mass.size) * (mass > 0)).max())]

    room = jnp.zeros((active.shape[0], m), x.dtype)
    centres, _ = kmeans_plus_plus(draw, squared_distances_from(x), room, jnp.ones_like(mass))
    square = (centres * centres).sum(1) - 2 * x @ centres.T
    nearest = jnp.where(active, square, jnp.inf).argmin(1)
    return nearest.astype(jnp.int32).reshape(rows.mass.shape)


def _random(rows: Rows, seed: jax.Array, active: jax.Array) -> jax.Array:
    """Labels (B, r), all equally likely."""
    u = hashed_uniform(fold_in(seed, rows.number), (), rows.mass.dtype)
    return (u * active.sum()).astype(jnp.int32)


@jit_by_size("build", "n_clusters", "n_init", "solver", "init")
def solve_cec(
    rows: Rows,
    settings: solve.Settings,
    seed: jax.Array,
    given: jax.Array | None,
    *,
    build: Objective,
    n_clusters: int,
    n_init: int,
    solver: str,
    init: str,
) -> solve.Solution:
    """Move rows from ``n_init`` starts, or from where an annealing led, and keep the best.

    ``given`` (B, r) are labels to start from; None draws them.
    """
    numbers = settings.method
    terms = build.terms(rows, numbers)
    active = jnp.arange(n_clusters) < settings.n_clusters
    if solver == "anneal":
        result = solve.solve_anneal(
            rows, settings, seed, None,
            build=build, n_clusters=n_clusters, n_init=n_init,
        )  # fmt: skip
        starts = jnp.moveaxis(result.labels, -1, 0)
    elif given is not None:
        starts = jnp.broadcast_to(given, (n_init, *given.shape))
    else:
        seeds = fold_in(fold_in(seed, 1), jnp.arange(n_init))
        start = {
            "k-means++": lambda one: _plus_plus(rows, one, numbers.metric, active),
            "random": lambda one: _random(rows, one, active),
        }[init]
        starts = jax.lax.map(start, seeds)
    engine = reassign_sequentially if solver == "sequential" else reassign_batched
    result = engine(
        terms, rows, starts, fold_in(seed, 2), max_iter=settings.max_iter, n_clusters=n_clusters,
        active=active,
        giving=ClusterRemoval(numbers.smallest, numbers.sparing > 0, numbers.joining > 0),
    )  # fmt: skip

    def evaluate(labels):
        cells = label_cells(rows, labels, n_clusters)[0, 0]
        return jnp.stack([t.weight * (t.cost(cells).sum() + t.constant) for t in terms])

    values = jax.lax.map(evaluate, result.labels)
    reached = values.sum(1)
    reached = jnp.where(jnp.isnan(reached), jnp.inf, reached)
    best = reached.argmin()
    return solve.Solution(
        jnp.moveaxis(result.labels, 0, -1),
        reached,
        result.converged,
        result.n_iter[best],
        one_hot(result.labels[best][..., None], rows.mass, n_clusters)[:, :, 0],
        result.trace[best],
        Ended(values[best], result.active[best]),
    )


def numbers_of(**given: Any) -> Numbers:
    """Numbers as arrays in float64."""
    return jax.tree.map(lambda value: np.asarray(value, np.float64), Numbers(**given))
