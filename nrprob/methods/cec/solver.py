"""Objective of cross-entropy clustering, and the published algorithm.

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
from nrprob.engines.optimise.differences import label_cells
from nrprob.engines.optimise.reassign import reassign_sequentially
from nrprob.engines.programs import jit_by_size
from nrprob.methods.cec.costs import LabelCost, SizeCost
from nrprob.statistics.gaussians import CrossEntropyCost
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Terms, TracedTerm, one_hot


class CECParameters(NamedTuple):
    """Parameters of the objective. JAX traces all of them, so new values need no compilation.

    Attributes
    ----------
    ridge : (m,) diagonal that is added to the scatter of a cluster; 1 in padding columns
    dimension : number of columns without padding
    total : total mass of all rows
    least : half the smallest mass of a row; a cluster of smaller mass is empty
    charge : cost of the parameters of a cluster, in nats
    beta : weight of the label entropy
    smallest : smallest mass of a cluster
    constant : part of the objective, in nats, that is the same for all partitions
    """

    ridge: Any
    dimension: Any
    total: Any
    least: Any
    charge: Any
    beta: Any
    smallest: Any
    constant: Any


class Ended(NamedTuple):
    """Terms of the objective and numbers of clusters of the best restart.

    Attributes
    ----------
    values : (terms,) terms of the objective in nats: features, cluster sizes and, with labels, the
        label entropy
    active : (steps,) number of clusters after every step, NaN after the last step
    """

    values: jax.Array
    active: jax.Array


@dataclass(frozen=True)
class Objective:
    """Function that builds the terms of the objective of cross-entropy clustering.

    Attributes
    ----------
    covariance : covariance family of the clusters
    labelled : whether some rows have labels
    """

    covariance: str
    labelled: bool

    def terms(self, rows: Rows, parameters: CECParameters) -> Terms:
        """Terms of the features, of the cluster sizes and, if rows have labels, of the labels."""
        unit, zero = jnp.ones((), rows.mass.dtype), jnp.zeros((), jnp.float64)
        least = parameters.least
        features = CrossEntropyCost(parameters.ridge, parameters.dimension, least, self.covariance)
        sizes = SizeCost(parameters.total, parameters.charge, least)
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


@jit_by_size("build", "n_clusters", "n_init")
def solve_published(
    rows: Rows,
    settings: solve.Settings,
    seed: jax.Array,
    initial: jax.Array | None,
    *,
    build: Objective,
    n_clusters: int,
    n_init: int,
) -> solve.Solution:
    """Run all restarts of the published algorithm of cross-entropy clustering; keep the best.

    Rows move one after another, and clusters that become too small are deleted.

    Parameters
    ----------
    rows : B blocks of r rows
    settings : settings of the engines, with `CECParameters` as ``method``
    seed : random seed
    initial : (B, r) initial labels; None for random labels
    build : function that builds the terms of the objective
    n_clusters : number of clusters with padding
    n_init : number of restarts
    """
    parameters = settings.method
    terms = build.terms(rows, parameters)
    active = jnp.arange(n_clusters) < settings.n_clusters

    def random_labels(seed):
        u = hashed_uniform(fold_in(seed, rows.number), (), rows.mass.dtype)
        return (u * active.sum()).astype(jnp.int32)

    if initial is not None:
        starts = jnp.broadcast_to(initial, (n_init, *initial.shape))
    else:
        starts = jax.lax.map(random_labels, fold_in(fold_in(seed, 1), jnp.arange(n_init)))
    result = reassign_sequentially(
        terms, rows, starts, fold_in(seed, 2), max_iter=settings.max_iter, n_clusters=n_clusters,
        active=active, min_mass=parameters.smallest,
    )  # fmt: skip

    values = jax.lax.map(
        lambda labels: term_values(terms, rows, labels, n_clusters=n_clusters), result.labels
    )
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


@jit_by_size("n_clusters")
def term_values(terms: Terms, rows: Rows, labels: jax.Array, *, n_clusters: int) -> jax.Array:
    """Value (terms,) in nats of every term of the objective, for hard ``labels`` (B, r)."""
    cells = label_cells(rows, labels, n_clusters)[0, 0]
    return jnp.stack([t.weight * (t.cost(cells).sum() + t.constant) for t in terms])


def make_parameters(**values: Any) -> CECParameters:
    """Build `CECParameters`, with all ``values`` converted to float64 arrays."""
    return jax.tree.map(lambda value: np.asarray(value, np.float64), CECParameters(**values))
