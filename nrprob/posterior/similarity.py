"""How often two samples share a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from nrprob.posterior.draws import Draws, as_draws

__all__ = ["coclustering"]

_BLOCK = 2**24
"""Entries of the largest one-hot block."""
_CACHED = 2**19
"""Labels of a sparse block: as many as a processor's cache holds, which makes it 4 times faster."""
_LEAST = 64
"""Draws of a sparse block at least, lest adding up the blocks' results take longer."""


def _sparse_is_faster(draws: Draws) -> bool:
    # Measured on two cores: a dense product spends about 0.01 ns on each pair of samples for every
    # cluster, a sparse one about 4 ns, but only on the pairs that share a cluster.
    dense = 0.01 * draws.n_samples**2 * float(draws.offsets[-1])
    return 4.0 * float(np.square(draws.sizes, dtype=float).sum()) < dense


def similarity(draws: Draws, equal: bool) -> np.ndarray:
    """Co-clustering probabilities of checked draws; `equal` says that weights are all the same."""
    n = draws.n_samples
    # Counts are exact in float32 up to 2**24 draws; weighted sums need float64.
    kind: Any = np.float32 if equal and draws.n_draws < 2**24 else np.float64
    weights = np.ones(draws.n_draws) if equal else draws.weights
    if _sparse_is_faster(draws):
        total = np.zeros((n, n), dtype=kind)
        for a, b in draws.blocks(max(_CACHED, _LEAST * n)):
            ids = draws.ids(a, b).T
            shape = (n, int(draws.offsets[b] - draws.offsets[a]))
            rows = np.arange(n + 1) * (b - a)
            member = scipy.sparse.csr_array((np.ones(ids.size, kind), ids.ravel(), rows), shape)
            mass = np.tile(weights[a:b].astype(kind), n)
            weighted = scipy.sparse.csr_array((mass, ids.ravel(), rows), shape)
            total += (weighted @ member.T).toarray()
    else:
        from scipy.linalg.blas import dsyrk, ssyrk

        rank_k = ssyrk if kind is np.float32 else dsyrk
        total = np.zeros((n, n), dtype=kind, order="F")
        widest = int(draws.n_clusters.max())
        for a, b in draws.blocks(max(n, _BLOCK // widest)):
            onehot = np.zeros((n, int(draws.offsets[b] - draws.offsets[a])), dtype=kind)
            onehot[np.arange(n)[:, None], draws.ids(a, b).T] = np.sqrt(weights[a:b])
            total = rank_k(1.0, onehot.T, beta=1.0, c=total, trans=1, overwrite_c=1)
        total = np.triu(total) + np.triu(total, 1).T  # the product fills the upper half only
    result = total.astype(np.float64)
    if equal:
        result /= draws.n_draws
    np.fill_diagonal(result, 1.0)
    return np.clip(result, 0.0, 1.0, out=result)


def coclustering(draws: Any, weights: Any = None) -> np.ndarray:
    r"""Probability that two samples share a cluster: the posterior similarity matrix.

    .. math:: P_{ij} = \sum_s w_s \, 1[z_i^{(s)} = z_j^{(s)}]

    Parameters
    ----------
    draws : array of int of shape (chain, draw, sample) or (draw, sample)
        Labels. Names of clusters are arbitrary within each draw.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.

    Returns
    -------
    ndarray of shape (n_samples, n_samples), float64
        Symmetric, with ones on the diagonal. Memory is a few times its size, whatever the number
        of draws.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If `draws` has other axes or is empty, or `weights` do not fit it.

    References
    ----------
    Binder (1978), "Bayesian cluster analysis", Biometrika 65: the sufficient summary of his loss.

    Examples
    --------
    >>> from nrprob.posterior import coclustering
    >>> coclustering([[0, 0, 1], [5, 2, 2]])
    array([[1. , 0.5, 0. ],
           [0.5, 1. , 0.5],
           [0. , 0.5, 1. ]])
    """
    return similarity(as_draws(draws, weights), equal=weights is None)
