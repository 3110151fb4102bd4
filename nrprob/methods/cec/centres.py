"""Common functions of centroid clusterings: data layout, initial centres, choice of a restart.

All rows form a single block in the sense of `nrprob.statistics.rows`. The mass of a row is its
weight in the fit.

Sizes: n rows, N rows with padding, m columns, p columns with padding and a last column of 1, k
clusters, S restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

from nrprob.data.design import Design
from nrprob.engines.hash_rng import fold_in, hashed_uniform
from nrprob.engines.optimise.iterate import IterationResult
from nrprob.engines.optimise.kmeans import kmeans_plus_plus, squared_distances_from
from nrprob.engines.optimise.solve import Solution
from nrprob.estimator.calls import collect_restarts, solution_memberships
from nrprob.estimator.linear import Task
from nrprob.statistics.families import FeatureMap, fit_features
from nrprob.statistics.features import ALIKE
from nrprob.statistics.groups import cross_table
from nrprob.statistics.rows import Layout, Rows, coarse_bucket, make_rows, pad_columns

CAPACITY = 1024  # maximum number of entries of a trace; the last entry is of the last iteration


def lay_out(X: np.ndarray, fixed: np.ndarray, least: int = 0) -> tuple[FeatureMap, Task]:
    """Standardise rows, and arrange them in one padded block.

    Columns are centred and divided by one common scale, so that their mean variance is 1.

    Parameters
    ----------
    X : (n, m) rows
    fixed : (n,) class of every row, -1 where unknown
    least : minimum number of columns of the block, with padding

    Returns
    -------
    features : function that standardises rows of the fit, and new rows
    task : the standardised rows in the block, and their classes
    """
    n = len(X)
    features = fit_features(X, "gaussian", None)
    task = Task(X, features(X), fixed, Design.from_groups(np.zeros(n, int)))
    task.layout = Layout(1, coarse_bucket(n, 64), np.arange(n), np.zeros(1, np.int32))
    task.rows = make_rows(pad_columns(task.x, least), task.layout, 1)
    return features, task


def class_codes(fixed: np.ndarray | None, n: int) -> np.ndarray:
    """Return ``fixed``, the classes (n,) of the rows; if it is None, -1 (unknown) for all rows."""
    return np.full(n, -1, np.int32) if fixed is None else fixed


def block_table(rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Rows (N, p) of the single block, and their masses (N,).

    The last column, which is 1 in ``rows``, is replaced by 0. The masses of padded rows are 0.
    """
    x: Any = rows.x
    return x.x[0].at[:, -1].set(0), rows.mass[0]


def squared_distances(x: jax.Array, centres: jax.Array) -> jax.Array:
    """Squared distances (N, k) of rows (N, p) from centres (k, p), by differences.

    Differences avoid the cancellation of expanded squares.
    """
    return ((x[:, None] - centres) ** 2).sum(-1)


def weighted_means(x: jax.Array, w: jax.Array, old: jax.Array) -> jax.Array:
    """Cluster means (k, p): weighted means of rows x (N, p), with the weights w (N, k).

    A cluster whose weights are all 0 keeps its previous mean, a row of ``old`` (k, p).
    """
    size = w.sum(0)[:, None]
    sums = jnp.matmul(w.T, x, precision=jax.lax.Precision.HIGHEST)
    return jnp.where(size > 0, sums / jnp.where(size > 0, size, 1), old)


def one_hot(labels: jax.Array, mass: jax.Array, k: int) -> jax.Array:
    """Masses (N, k) of rows in clusters, for hard ``labels`` (N,).

    A row has its ``mass`` (N,) in the cluster of its label, and 0 in all other clusters. A row with
    label -1 has 0 in all clusters.
    """
    return jnp.where(labels[:, None] == jnp.arange(k), mass[:, None], 0)


def first_centres(
    x: jax.Array,
    mass: jax.Array,
    fixed: jax.Array,
    k: int,
    seed: jax.Array,
    exist: jax.Array | None = None,
) -> jax.Array:
    """Initial centres (k, p): means of the classes, then k-means++ for the other clusters.

    Parameters
    ----------
    x : (N, p) rows
    mass : (N,) masses of the rows, 0 on padding
    fixed : (N,) class of every row, -1 where unknown; cluster c starts from the mean of class c
    k : number of clusters, with padding
    seed : random seed
    exist : (k,) False for padded clusters; their centres are so far away that no row joins them
    """
    members = one_hot(fixed, mass, k)
    has_class = members.sum(0) > 0
    centres = weighted_means(x, members, jnp.zeros((k, x.shape[1]), x.dtype))

    def draw_centre(j, weights):
        u = hashed_uniform(fold_in(seed, j), mass.shape, x.dtype)
        # A row is sampled with probability proportional to its weight: the first arrival of
        # independent Poisson processes. 1 - u is never 0.
        time = jnp.where((mass > 0) & (weights > 0), -jnp.log1p(-u) / weights, jnp.inf)
        return jnp.where(has_class[j], centres[j], x[time.argmin()])

    centres = kmeans_plus_plus(
        draw_centre, squared_distances_from(x), centres, jnp.ones_like(mass)
    )[0]
    far = jnp.finfo(x.dtype).max ** 0.25  # sums of squared distances from it do not overflow
    return centres if exist is None else jnp.where(exist[:, None], centres, far)


def best_solution(
    rows: Rows,
    result: IterationResult,
    labels: jax.Array,
    objective: jax.Array,
    masses: Callable[[jax.Array], jax.Array],
    fit: Any = (),
) -> Solution:
    """Labels and objectives of all S restarts, and all results of the best restart.

    Parameters
    ----------
    rows : the clustered rows
    result : results of `iterate` for all restarts: iterations, traces and convergence
    labels : (S, N) labels
    objective : (S,) exact objectives; the objective of the best restart replaces the last entry of
        its trace
    masses : function that maps the index of a restart to the masses (N, k) of the rows in the
        clusters of this restart
    fit : further arrays of the method, with a leading axis of restarts
    """
    best = objective.argmin()
    n_iter, trace = result.n_iter[best], result.trace[best]
    last = jnp.clip(n_iter - 1, 0, len(trace) - 1)
    return Solution(
        labels.T[None].astype(jnp.int32),
        objective,
        result.done,
        n_iter,
        masses(best)[None],
        trace.at[last].set(objective[best].astype(trace.dtype)),
        jax.tree.map(lambda a: a[best], fit),
    )


def store_result(
    model: Any,
    task: Task,
    result: list[Solution],
    *,
    named: bool = True,
    unit: float = 1.0,
    shift: float = 0.0,
) -> tuple[Solution, np.ndarray]:
    """Set the fitted attributes common to all estimators of the family.

    Parameters
    ----------
    model : estimator
    task : input of the fit
    result : solutions of all calls of the compiled program
    named : whether clusters are renumbered by the classes that `name_clusters` matches to them
    unit, shift : the reported objective is ``unit`` times the solver's objective, plus ``shift``

    Returns
    -------
    Solution
        The best solution.
    ndarray of shape (k,)
        Entry c is the index, in the best solution, of the cluster that is numbered c.
    """
    restarts, best = collect_restarts(result, task.layout)
    order = np.arange(model.n_clusters)
    if named:
        labels = restarts.labels[restarts.objective.argmin()]
        order = name_clusters(labels, class_codes(task.fixed, len(task.X)), model.n_clusters)
    model._store_results(
        restarts._replace(
            labels=np.argsort(order)[restarts.labels], objective=restarts.objective * unit + shift
        ),
        membership=solution_memberships(best, task.layout, model.n_clusters)[:, order],
        trace=best.trace.astype(float) * unit + shift,
        n_iter=best.n_iter,
        nothing_left=ALIKE if (task.X == task.X[:1]).all() else "",
    )
    return best, order


def name_clusters(labels: np.ndarray, fixed: np.ndarray, k: int) -> np.ndarray:
    """Clusters (k,), in the order of the classes that they are matched to.

    The one-to-one matching maximises the number of labelled rows on which clusters and classes
    agree. With at most k classes, entry c of the result is the cluster of class c, and clusters
    without a class come last. With more classes, some classes have no cluster.

    Parameters
    ----------
    labels : (n,) clusters of the rows
    fixed : (n,) classes of the rows, -1 where unknown
    k : number of clusters
    """
    labelled = fixed >= 0
    count = cross_table(labels[labelled], fixed[labelled], (k, fixed.max() + 1))
    matched, classes = linear_sum_assignment(-count)
    matched = matched[np.argsort(classes)]
    return np.concatenate([matched, np.setdiff1d(np.arange(k), matched)])
