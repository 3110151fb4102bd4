"""Consensus of an ensemble of clusterings, by reassignment of single rows.

The members of the ensemble are labelings of the same n rows; their numbers of clusters may differ.
The indicators of a member are columns, one per cluster: 1 for the rows of the cluster, and 0 for
all other rows. The indicators of all members are stacked side by side.
"""

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
_STEP_MOVES = 16  # assumed number of moves per step, to estimate the cost of padding clusters


@dataclass(frozen=True)
class Consensus:
    """Builder of the objective of the consensus: within-cluster scatter of the stacked indicators.

    For members C_j, the consensus C and n rows, the objective equals
    (n/2) sum_j H2(C_j|C) = (n/2) sum_j [H2(C_j) - I2(C;C_j)]. H2 is the quadratic entropy
    2 (1 - sum_c p_c^2) of shares p_c, and I2 the quadratic mutual information. Scaled indicators
    would give another criterion.
    """

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Build the optimisation problem from ``rows`` of stacked indicators."""
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
    """Compute the consensus clustering of the members of an ensemble.

    Rows with equal labels of all members and equal target labels are merged into one weighted row,
    which does not change the result. The weighted rows are numbered by first occurrence. The result
    therefore does not depend on the numbering of the members' clusters, nor on the order of the
    members.

    Parameters
    ----------
    columns : (n, members) labels of the members
    classes : for every member, its distinct labels
    fixed : (n,) cluster of every labelled row, -1 for unlabelled rows; None without target labels
    k : number of clusters of the consensus
    n_init : number of restarts
    max_iter : maximum number of sweeps
    random_state : seed of the initial partitions

    Returns
    -------
    restarts : labels and objectives of all restarts
    best : solution of the best restart
    layout : position of every row among the weighted rows
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
    """Total sum of squares of the stacked indicators of the members, around their means.

    ``columns`` (n, members) are the labels of the members.
    """
    n = len(columns)
    counts = [np.unique(column, return_counts=True)[1] for column in columns.T]
    return float(sum(n - (count**2).sum() / n for count in counts))
