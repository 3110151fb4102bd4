"""Base of clusterings around centroids: layout, initial centroids, best restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

from nrprob.engines.hash_rng import fold_in, hashed_uniform
from nrprob.engines.optimise.iterate import IterationResult
from nrprob.engines.optimise.kmeans import kmeans_plus_plus, squared_distances_from
from nrprob.engines.optimise.solve import Solution
from nrprob.estimator.calls import collect, memberships
from nrprob.estimator.linear import Task
from nrprob.known import Groups, read
from nrprob.statistics.families import FeatureMap, fit_features
from nrprob.statistics.features import ALIKE
from nrprob.statistics.groups import cross_table
from nrprob.statistics.rows import Layout, Rows, coarse, make_rows, wide

CAPACITY = 1024  # steps that a trace may have; the last entry is always that of the last step


def lay_out(X: np.ndarray, fixed: np.ndarray, least: int = 0) -> tuple[FeatureMap, Task]:
    """Rows of mean 0 and mean variance 1 as one block, and how new rows become such.

    Classes ``fixed`` (n,) are -1 where unknown; there is room for ``least`` columns.
    """
    n = len(X)
    features = fit_features(X, "gaussian", None)
    task = Task(X, features(X), fixed, Groups(np.zeros(n, int), 1), read(None, n))
    task.layout = Layout(1, coarse(n, 64), np.arange(n), np.zeros(1, np.int32))
    task.rows = make_rows(wide(task.x, least), task.layout, 1)
    return features, task


def codes(fixed: np.ndarray | None, n: int) -> np.ndarray:
    """Class (n,) of every row, -1 where none is told."""
    return np.full(n, -1, np.int32) if fixed is None else fixed


def table(rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Rows (N, p) of the one block, and their masses (N,), 0 on padding; columns of it are 0."""
    x: Any = rows.x
    return x.x[0].at[:, -1].set(0), rows.mass[0]


def squares(x: jax.Array, centres: jax.Array) -> jax.Array:
    """Squared distances (N, k) of rows (N, p) from centres (k, p), with no loss to cancellation."""
    return ((x[:, None] - centres) ** 2).sum(-1)


def weighted_means(x: jax.Array, w: jax.Array, old: jax.Array) -> jax.Array:
    """Means (k, p) of rows by weights w (N, k); a cluster without weight keeps the ``old`` one."""
    size = w.sum(0)[:, None]
    sums = jnp.matmul(w.T, x, precision=jax.lax.Precision.HIGHEST)
    return jnp.where(size > 0, sums / jnp.where(size > 0, size, 1), old)


def one_hot(labels: jax.Array, mass: jax.Array, k: int) -> jax.Array:
    """Masses (N, k) of rows in their clusters; none where the label is -1."""
    return jnp.where(labels[:, None] == jnp.arange(k), mass[:, None], 0)


def first_centres(
    x: jax.Array,
    mass: jax.Array,
    fixed: jax.Array,
    k: int,
    seed: jax.Array,
    exist: jax.Array | None = None,
) -> jax.Array:
    """Centres (k, p): the means of the classes ``fixed`` (N,), the others by k-means++.

    Those that do not ``exist`` (k,) are too far away for any row.
    """
    own = one_hot(fixed, mass, k)
    given, centres = own.sum(0) > 0, weighted_means(x, own, jnp.zeros((k, x.shape[1]), x.dtype))

    def draw(j, weights):
        u = hashed_uniform(fold_in(seed, j), mass.shape, x.dtype)
        # The first arrival of independent Poisson processes; 1 - u is never 0.
        time = jnp.where((mass > 0) & (weights > 0), -jnp.log1p(-u) / weights, jnp.inf)
        return jnp.where(given[j], centres[j], x[time.argmin()])

    centres = kmeans_plus_plus(draw, squared_distances_from(x), centres, jnp.ones_like(mass))[0]
    far = jnp.finfo(x.dtype).max ** 0.25  # the square of which is a number, and so are its sums
    return centres if exist is None else jnp.where(exist[:, None], centres, far)


def best_of(
    rows: Rows,
    result: IterationResult,
    labels: jax.Array,
    objective: jax.Array,
    masses: Callable[[jax.Array], jax.Array],
    fit: Any = (),
) -> Solution:
    """All restarts S, and what is needed of the best.

    Parameters
    ----------
    result : loops of all restarts
    labels : (S, N)
    objective : (S,), which takes the place of the last entries of the traces
    masses : (N, k) of the restart of a number
    fit : what the method adds, of all restarts
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


def keep(
    model: Any,
    task: Task,
    result: list[Solution],
    *,
    named: bool = True,
    unit: float = 1.0,
    shift: float = 0.0,
) -> tuple[Solution, np.ndarray]:
    """Set what every estimator has; returns the best solution, and the order (k,) of its clusters.

    Clusters are ``named`` after the classes that they agree with, if not by the program. Objectives
    are multiplied by ``unit``, and ``shift`` is added.
    """
    restarts, best = collect(result, task.layout)
    order = np.arange(model.n_clusters)
    if named:
        labels = restarts.labels[restarts.objective.argmin()]
        order = name_clusters(labels, codes(task.fixed, len(task.X)), model.n_clusters)
    model._store(
        restarts._replace(
            labels=np.argsort(order)[restarts.labels], objective=restarts.objective * unit + shift
        ),
        membership=memberships(best, task.layout, model.n_clusters)[:, order],
        trace=best.trace.astype(float) * unit + shift,
        n_iter=best.n_iter,
        nothing_left=ALIKE if (task.X == task.X[:1]).all() else "",
    )
    return best, order


def name_clusters(labels: np.ndarray, fixed: np.ndarray, k: int) -> np.ndarray:
    """Order (k,) of the clusters in which the c-th agrees with class c in as many rows as it can.

    All classes have a cluster each where there are enough, the agreement of all being the most that
    is possible; free clusters come after them.
    """
    told = fixed >= 0
    count = cross_table(labels[told], fixed[told], (k, fixed.max() + 1))
    own, classes = linear_sum_assignment(-count)
    own = own[np.argsort(classes)]
    return np.concatenate([own, np.setdiff1d(np.arange(k), own)])
