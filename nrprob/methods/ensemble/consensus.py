"""Consensus of clusterings with any numbers of clusters, by moves of single rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from nrprob.data.labels import factorize
from nrprob.engines.optimise import solve
from nrprob.engines.optimise.anneal import FixedWeights
from nrprob.engines.optimise.solve import Problem, Settings
from nrprob.estimator.base import Restarts
from nrprob.estimator.calls import collect, restart_calls
from nrprob.statistics.costs import gaussian_cost
from nrprob.statistics.ensembles import stack_indicators
from nrprob.statistics.families import sum_of_squares
from nrprob.statistics.rows import Layout, Rows, coarse_bucket, make_layout, make_rows, padded_count
from nrprob.statistics.terms import Term

# Patterns of base labels up to which single moves, which find the better optima, are quick enough.
_SEQUENTIAL = 10000
_MOVES = 16  # moves that count as one step where numbers of clusters are padded


@dataclass(frozen=True)
class Consensus:
    """Scatter, within clusters, of the stacked indicators of an ensemble's clusterings.

    With members C_j of n rows it is (n/2) sum_j H2(C_j|C) = (n/2) sum_j [H2(C_j) - I2(C;C_j)], in
    which H2 is the quadratic entropy 2 (1 - sum p^2). Dividing an indicator by its deviation, or
    by anything else, would make it another criterion.
    """

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Make the problem from the rows."""
        constant = 0.5 * sum_of_squares(rows)
        scale = 2 * constant / rows.mass.sum()
        one = jnp.ones((), rows.mass.dtype)
        term = Term(one, constant, None, gaussian_cost, False, scale)
        # The Gaussian cost is half a scatter.
        return Problem((term,), FixedWeights(jnp.full(1, 2, rows.mass.dtype)))


def agree(
    columns: np.ndarray,
    classes: Sequence[np.ndarray],
    fixed: np.ndarray | None,
    k: int,
    *,
    n_init: int,
    max_iter: int,
    random_state: Any,
) -> tuple[Restarts, solve.Solution, Layout]:
    """Find the consensus: all restarts, the best solution, and where every row is in it.

    Rows with the same base labels, and the same wanted label, move together, which is exact
    and makes of many rows a few weighted ones. They are numbered as they first appear, so that
    neither the names of base clusters nor the order of the members play a part.

    Parameters
    ----------
    columns : (n, members) labels
    classes : those of every member
    fixed : (n,) cluster of rows whose cluster is given, else -1; or None
    k : number of clusters
    """
    place, patterns = factorize(columns if fixed is None else np.column_stack([columns, fixed]))
    first = np.unique(place, return_index=True)[1]
    # The numbers of patterns, of base clusters and of clusters are padded coarsely, with patterns
    # of mass 0 and clusters that no pattern has: they seldom ask for a new program.
    x = stack_indicators(columns[first], classes).toarray()
    pad = coarse_bucket(len(x), 256) - len(x)
    if pad + len(x) > _SEQUENTIAL:
        pad = 0
    else:
        x = np.pad(x, ((0, pad), (0, coarse_bucket(x.shape[1], 64) - x.shape[1])))
    layout = make_layout(np.zeros(len(x), int), 1)
    rows = make_rows(x, layout, 1, mass=np.pad(np.bincount(place), (0, pad)))
    settings = solve.make_settings(x.dtype, n_clusters=k, max_iter=max_iter)
    if fixed is not None:
        fixed = np.pad(fixed[first], (0, pad), constant_values=-1)
    n_clusters = padded_count(k, _MOVES * x.shape[1])
    calls = restart_calls(
        solve.solve_reassign,
        {
            "solver": "sequential" if len(x) <= _SEQUENTIAL else "batched",
            "compressed": False, "build": Consensus(), "n_clusters": n_clusters,
        },
        rows, layout, fixed, [settings], n_init=n_init, random_state=random_state,
        each=rows.mass.size * n_clusters * 5 + n_clusters * rows.x.n_statistics * 8,
    )  # fmt: skip
    layout = replace(layout, slot=layout.slot[place])
    return *collect([call() for call in calls], layout), layout


def scatter(columns: np.ndarray) -> float:
    """Sum of squares of the stacked indicators of labels (n, members) about their mean."""
    n = len(columns)
    counts = [np.unique(column, return_counts=True)[1] for column in columns.T]
    return float(sum(n - (count**2).sum() / n for count in counts))
