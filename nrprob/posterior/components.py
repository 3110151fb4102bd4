"""Estimate the means and covariances of the components of every draw from the samples."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import sparse

from nrprob.data.validation import as_array
from nrprob.posterior.draws import Draws
from nrprob.posterior.merge_trees import Components, MergeTrees, trees_by_dip

__all__ = ["as_rows", "components_of_rows", "trees_of_rows"]

_BLOCK = 2**22
"""Maximum number of entries of a temporary array."""
_FLOOR = 1e-8
"""Variance that is added within components, relative to the variance of all samples."""


def as_rows(X: Any, n_samples: int) -> np.ndarray:
    """Check that X is a finite matrix with `n_samples` rows, and return X as floats."""
    rows = as_array(X, "X")
    if rows.dtype.kind not in "biuf":
        raise TypeError(f"X must have numbers; got dtype {rows.dtype}; convert them to floats")
    if rows.ndim != 2 or len(rows) != n_samples:
        raise ValueError(
            f"X must have one row per sample of the draws; got shape {rows.shape} for draws of "
            f"{n_samples} samples; pass an array of shape ({n_samples}, n_features)"
        )
    rows = rows.astype(float)
    if not np.isfinite(rows).all():
        raise ValueError(
            f"X must be finite; got {int((~np.isfinite(rows)).sum())} values that are not; "
            "impute or drop them"
        )
    return rows


def _standardised(rows: np.ndarray, covariance: str) -> np.ndarray:
    """Drop constant features, and transform the samples so that their covariance is the identity.

    With "diag", features are only scaled to variance 1.
    """
    rows = rows - rows.mean(0)
    spread = np.abs(rows).max(0, initial=0)
    rows = rows[:, spread > 0] / spread[spread > 0]
    if covariance == "diag" or not rows.size:
        return rows / np.sqrt(np.square(rows).mean(0))
    _, values, axes = np.linalg.svd(rows, full_matrices=False)
    rank = values > 1e-10 * values[0]
    return (rows @ axes[rank].T) * np.sqrt(len(rows)) / values[rank]


def components_of_rows(draws: Draws, rows: np.ndarray, covariance: str) -> Components:
    """Means and shrunk covariances of the components of all draws.

    Parameters
    ----------
    draws : Draws
    rows : ndarray of shape (n_samples, d)
        Samples of unit covariance, or of unit variances with "diag".
    covariance : {"full", "diag", "tied"}
        The covariance of a component with n samples and scatter matrix S is
        :math:`(S + f W) / (n + f)` with f = d + 2 (3 with "diag"). W is the average covariance
        within the components of the draw, plus a small multiple of the covariance of all samples.
        With "tied", the covariance is W.
    """
    d = rows.shape[1]
    i, j = np.triu_indices(d)
    squares = np.square(rows) if covariance == "diag" else rows[:, i] * rows[:, j]
    both = np.concatenate([rows, squares], 1)
    size = draws.sizes[:, None]
    total = np.empty((len(size), both.shape[1]))
    for a, b in draws.blocks(_BLOCK):
        low, high = draws.offsets[a], draws.offsets[b]
        ids = draws.ids(a, b).ravel()
        shape = int(high - low), draws.n_samples
        columns = np.tile(np.arange(draws.n_samples), b - a)
        member = sparse.csr_array((np.ones(len(ids)), (ids, columns)), shape)
        total[low:high] = member @ both
    means = total[:, :d] / size
    if covariance == "diag":
        scatter: np.ndarray = total[:, d:] - size * np.square(means)
        unit: np.ndarray = np.ones(d)
    else:
        scatter, unit = np.empty((len(size), d, d)), np.eye(d)
        scatter[:, i, j] = scatter[:, j, i] = total[:, d:]
        scatter -= size[..., None] * means[:, :, None] * means[:, None]
    pooled = np.add.reduceat(scatter, draws.offsets[:-1]) / draws.n_samples + _FLOOR * unit
    if covariance == "tied":
        root = np.repeat(np.linalg.cholesky(pooled), draws.n_clusters, axis=0)
        return Components(np.linalg.solve(root, means[..., None])[..., 0], None)
    freedom = 3 if covariance == "diag" else d + 2
    weight = size.reshape(-1, *[1] * (scatter.ndim - 1))
    within = np.repeat(pooled, draws.n_clusters, axis=0)
    return Components(means, (scatter + freedom * within) / (weight + freedom))


def trees_of_rows(
    draws: Draws, X: Any, covariance: str, classes: np.ndarray | None = None
) -> MergeTrees:
    """Merge trees of draws of any sampler, from the samples X (n, d).

    See `components_of_rows` for ``covariance``, and `trees_by_dip` for ``classes``. Draws with the
    same partition have the same tree, which is computed once.
    """
    rows = _standardised(as_rows(X, draws.n_samples), covariance)
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(row.tobytes(), len(places)) for row in draws.codes])
    first = np.unique(which, return_index=True)[1]
    distinct = Draws(draws.codes[first], draws.weights[first], (len(first),))
    trees = trees_by_dip(distinct, components_of_rows(distinct, rows, covariance), classes)
    # For each component: its position in the list of all draws, minus its position in the list of
    # the distinct draws.
    shift = np.repeat(draws.offsets[:-1] - distinct.offsets[which], draws.n_clusters)
    source = np.arange(int(draws.offsets[-1])) - shift
    return dataclasses.replace(
        trees, draws=draws, parent=trees.parent[source] + shift, prominence=trees.prominence[source]
    )
