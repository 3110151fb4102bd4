"""Consensus of clusterings with any numbers of clusters, by reassignment of single rows."""

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
from nrprob.estimator.calls import collect_restarts, restart_calls
from nrprob.statistics.costs import gaussian_cost
from nrprob.statistics.ensembles import stack_indicators
from nrprob.statistics.families import sum_of_squares
from nrprob.statistics.rows import Layout, Rows, coarse_bucket, make_layout, make_rows, padded_count
from nrprob.statistics.terms import Term

_MAX_SEQUENTIAL = 10000  # patterns of base labels; sequential moves find better optima than batches
_STEP_MOVES = 16  # moves that count as one step in the cost of padding clusters


@dataclass(frozen=True)
class Consensus:
    """Within-cluster scatter of the stacked indicators of the clusterings of an ensemble.

    For members C_j of n rows it equals (n/2) sum_j H2(C_j|C) = (n/2) sum_j [H2(C_j) - I2(C;C_j)],
    where H2 is the quadratic entropy 2 (1 - sum p^2). Scaled indicators would give another
    criterion.
    """

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Build the problem from the rows."""
        constant = 0.5 * sum_of_squares(rows)
        scale = 2 * constant / rows.mass.sum()
        unit_weight = jnp.ones((), rows.mass.dtype)
        term = Term(unit_weight, constant, None, gaussian_cost, False, scale)
        # The Gaussian cost is half of the scatter.
        return Problem((term,), FixedWeights(jnp.full(1, 2, rows.mass.dtype)))


def find_consensus(
    columns: np.ndarray,
    classes: Sequence[np.ndarray],
    fixed: np.ndarray | None,
    k: int,
    *,
    n_init: int,
    max_iter: int,
    random_state: Any,
) -> tuple[Restarts, solve.Solution, Layout]:
    """Compute the consensus: all restarts, the best solution, and the layout of the rows.

    Rows with equal base labels and equal target labels form one weighted row, which is exact.
    These patterns are numbered by first occurrence, so the result is invariant to the names of base
    clusters and to the order of the members.

    Parameters
    ----------
    columns : (n, members) labels
    classes : labels of each member
    fixed : (n,) clusters of labelled rows, -1 for others; or None
    k : number of clusters
    """
    pattern, patterns = factorize(columns if fixed is None else np.column_stack([columns, fixed]))
    representatives = np.unique(pattern, return_index=True)[1]
    # Pad patterns (with mass 0), base clusters and clusters, so that problems share programs.
    x = stack_indicators(columns[representatives], classes).toarray()
    n_padding = coarse_bucket(len(x), 256) - len(x)
    if n_padding + len(x) > _MAX_SEQUENTIAL:
        n_padding = 0
    else:
        x = np.pad(x, ((0, n_padding), (0, coarse_bucket(x.shape[1], 64) - x.shape[1])))
    layout = make_layout(np.zeros(len(x), int), 1)
    rows = make_rows(x, layout, 1, mass=np.pad(np.bincount(pattern), (0, n_padding)))
    settings = solve.make_settings(x.dtype, n_clusters=k, max_iter=max_iter)
    if fixed is not None:
        fixed = np.pad(fixed[representatives], (0, n_padding), constant_values=-1)
    n_clusters = padded_count(k, _STEP_MOVES * x.shape[1])
    # Minimise the scatter by reassignment of patterns, from all restarts.
    calls = restart_calls(
        solve.solve_reassign,
        {
            "solver": "sequential" if len(x) <= _MAX_SEQUENTIAL else "batched",
            "compressed": False, "build": Consensus(), "n_clusters": n_clusters,
        },
        rows, layout, fixed, [settings], n_init=n_init, random_state=random_state,
        n_elements=rows.mass.size * n_clusters * 5 + n_clusters * rows.x.n_statistics * 8,
    )  # fmt: skip
    layout = replace(layout, slot=layout.slot[pattern])
    return *collect_restarts([call() for call in calls], layout), layout


def total_scatter(columns: np.ndarray) -> float:
    """Total scatter of the stacked indicators of labels (n, members)."""
    n = len(columns)
    counts = [np.unique(column, return_counts=True)[1] for column in columns.T]
    return float(sum(n - (count**2).sum() / n for count in counts))
