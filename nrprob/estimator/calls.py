"""Divide the restarts of a fit into calls of a compiled program, and collect their results.

A *call* (`nrprob.engines.optimise.solve.SolverCall`) is one run of a program, which computes
several restarts in parallel. The fit has n samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from nrprob.data.validation import check_random_state
from nrprob.engines import placement, sharding
from nrprob.engines.optimise import solve
from nrprob.estimator.base import Restarts
from nrprob.statistics.rows import Layout, Rows, active_mask, bucket_size, padded_count


def at_once(n: int, n_bytes: float, device: jax.Device | None = None) -> int:
    """Number of restarts to run in parallel: the largest divisor of ``n`` that fits into memory.

    ``n`` is the number of all restarts, and ``n_bytes`` the memory of one restart in bytes.
    """
    limit = int(max(placement.memory_budget(device) // n_bytes, 1))
    return max(d for d in range(1, n + 1) if n % d == 0 and d <= limit)


def padded_n_clusters(rows: Rows, layout: Layout, k: int) -> int:
    """Number of clusters, including padding, in the compiled program of a fit of ``k`` clusters.

    Padding to a few sizes lets fits with similar ``k`` share a program.
    """
    cluster_size = layout.n_slots * rows.x.n_statistics
    if active_mask(k, cluster_size) is not None:
        return padded_count(k, cluster_size)
    return max(bucket_size(k, 64) if layout.n_slots <= 16384 else k, 2)


def restart_calls(
    solver: Callable[..., solve.Solution],
    static: dict[str, Any],
    rows: Rows,
    layout: Layout,
    fixed: np.ndarray | None,
    settings: Sequence[Any],
    *,
    n_init: int,
    random_state: Any,
    n_elements: int,
    factorises: bool = False,
    stepwise: bool = False,
) -> list[solve.SolverCall]:
    """Divide ``n_init`` restarts into calls of ``solver``, with the same seeds for all settings.

    Parameters
    ----------
    solver, static : compiled program, and its static arguments
    rows, layout : rows in the arrangement of the program, and the map from samples to rows
    fixed : (n,) clusters of labelled rows, -1 for all other rows; None without labels
    settings : traced parameters of the program; every element gets ``n_init`` restarts
    n_elements : number of array elements that one restart needs on a device
    factorises : whether the program calls LAPACK
    stepwise : whether the program is a chain of tiny steps

    Returns
    -------
    calls : list, ordered by setting and then by seed
    """
    # Number of restarts that fit into memory at a time.
    mesh = rows.mesh if isinstance(rows, sharding.ShardedRows) else None
    random = check_random_state(random_state)
    n_bytes = n_elements * rows.mass.dtype.itemsize
    with placement.small_steps_on_cpu(stepwise):
        size = at_once(n_init, n_bytes, placement.device_of(rows))
    # Arrange labels like rows, and draw one seed per call; all processes agree on the seeds.
    spread = None if fixed is None else layout.to_blocks(fixed, -1)
    seeds = [random.randint(2**31 - 1) for _ in range(n_init // size)]
    if mesh is not None:
        spread = sharding.shard_arrays(spread, mesh)
        seeds = [sharding.agree_on_value(seed, mesh) for seed in seeds]
    data = sum(a.nbytes for a in jax.tree.leaves(rows)) // layout.n_shards
    return [
        solve.SolverCall(
            solver,
            (rows, parameters, np.asarray(seed, np.uint32), spread),
            tuple({**static, "n_init": size}.items()),
            data + n_bytes * size,
            factorises,
            stepwise,
        )
        for parameters in settings
        for seed in seeds
    ]


def collect_restarts(result: Sequence[Any], layout: Layout) -> tuple[Restarts, Any]:
    """Collect the restarts of all solutions; return them, and the solution with the best one."""
    restarts = Restarts(
        np.concatenate([layout.from_blocks(f.labels).T for f in result]),
        np.concatenate([f.objective for f in result]),
        np.concatenate([f.converged for f in result]),
    )
    ends = np.cumsum([f.objective.size for f in result])
    return restarts, result[int(np.searchsorted(ends, restarts.objective.argmin(), side="right"))]


def solution_memberships(solution: Any, layout: Layout, k: int) -> np.ndarray:
    """Memberships (n, k) of the samples in ``k`` clusters, for the best restart of a solution."""
    w = layout.from_blocks(solution.w)[:, :k].astype(np.float64)
    return w / w.sum(1, keepdims=True)
