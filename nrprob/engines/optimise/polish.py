"""Improve hard labels with a fixed number of clusters by moves of single rows and chains of moves.

Rows, including padding, are arranged in B blocks of r rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.optimise.descents import (
    DescentStart,
    PartitionLimits,
    improve_by_chains,
)
from nrprob.engines.optimise.reassign import assign_empty_rows, reassign_sequentially
from nrprob.engines.optimise.solve import Build, Settings
from nrprob.engines.programs import jit_by_size
from nrprob.statistics.rows import Rows, Sparse
from nrprob.statistics.terms import Terms

TOLERANCE = 1e-9  # smallest change of the objective that counts, in nats per sample
_N_CHAINS, _DEPTH = 3, 20
_SWEEPS = 1000


@jit_by_size("build")
def build_terms(rows: Rows, settings: Settings, *, build: Build) -> Terms:
    """Make the terms of the objective, without their weights; see `solve` for ``build``."""
    return build(rows, settings).terms


@jit_by_size("n_clusters")
def _sweep_labels(
    terms: Terms, rows: Rows, labels: jax.Array, fixed: jax.Array, active: jax.Array, *,
    n_clusters: int,
) -> jax.Array:  # fmt: skip
    """Sweep over all rows until a sweep moves no row; return the labels (B, r).

    ``labels`` and ``fixed`` (B, r) are initial and fixed clusters (-1: not fixed), and ``active``
    (K,) marks the clusters that are not padding.
    """
    result = reassign_sequentially(
        terms, rows, labels[None], jnp.uint32(0), max_iter=jnp.int32(_SWEEPS),
        n_clusters=n_clusters, fixed=fixed, active=active,
    )  # fmt: skip
    # A rounding error may move a row without counts, which changes nothing.
    return assign_empty_rows(terms, rows, result.labels, n_clusters, fixed)[0]


def polish_labels(
    terms: Terms, rows: Rows, labels: np.ndarray, movable: np.ndarray, n_clusters: int, active: int
) -> np.ndarray:
    """Move rows, alone and in chains, until no move and no chain lowers the objective.

    If the rows are sparse, there are no chains.

    Parameters
    ----------
    terms : terms of the objective, with their weights
    rows : rows; if they are sparse, costs must be sums over features
    labels : (B, r) initial labels
    movable : (B, r) whether a row may move
    n_clusters : number of clusters of the compiled programs, including padding
    active : number of clusters without padding

    Returns
    -------
    (B, r) labels at which no move of a single row lowers the objective
    """
    if isinstance(rows.x, Sparse):
        fixed = np.where(movable, -1, labels).astype(np.int32)
        return np.asarray(
            _sweep_labels(
                terms, rows, np.asarray(labels, np.int32), fixed, np.arange(n_clusters) < active,
                n_clusters=n_clusters,
            )
        )  # fmt: skip
    mass = np.asarray(rows.mass).reshape(-1)
    limits = PartitionLimits(
        np.asarray(0, mass.dtype), 0.5 * mass[mass > 0].min(),
        np.asarray(TOLERANCE * mass.sum(), mass.dtype), np.int32(1000),
    )  # fmt: skip
    current = DescentStart(
        np.asarray(labels, np.int32).reshape(-1), movable.reshape(-1),
        np.arange(n_clusters) < active, np.int32(active), np.bool_(False),
    )  # fmt: skip
    labels, _ = improve_by_chains(
        terms, rows, current, limits, np.int32(_DEPTH), n_chains=_N_CHAINS
    )
    return np.asarray(labels).reshape(rows.mass.shape)
