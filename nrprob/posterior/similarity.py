"""Co-clustering probabilities of pairs of samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from nrprob.data.validation import as_array
from nrprob.posterior.draws import Draws, as_draws, as_pairs, check_positions

__all__ = ["coclustering"]

_BLOCK = 2**24
"""Maximum number of entries of a one-hot block."""
_CACHED = 2**19
"""Number of labels of a sparse block, or of pairs, that fit into a processor's cache."""
_LEAST = 64
"""Minimum number of draws of a sparse block, below which adding the results dominates."""
_MOST = 20_000
"""Maximum number of samples of a whole matrix; a call computes at most _MOST squared entries."""


def _sparse_is_faster(draws: Draws) -> bool:
    # Measured on two cores: a dense product takes about 0.01 ns per pair of samples and cluster. A
    # sparse product takes about 4 ns, but only for pairs that share a cluster.
    dense = 0.01 * draws.n_samples**2 * float(draws.offsets[-1])
    return 4.0 * float(np.square(draws.sizes, dtype=float).sum()) < dense


def _sparse_products(
    draws: Draws, weights: np.ndarray, kind: Any, rows: np.ndarray | None = None
) -> np.ndarray:
    """Total weights of the draws in which samples i and j share a cluster.

    The result has the shape (n_samples, n_samples), or (n_rows, n_samples) if only the samples i in
    ``rows`` are requested. ``weights`` (n_draws,) are the weights, and ``kind`` is the dtype.
    """
    n = draws.n_samples
    total = np.zeros((n if rows is None else len(rows), n), dtype=kind)

    def members(ids: np.ndarray, values: np.ndarray, width: int) -> scipy.sparse.csr_array:
        ends = np.arange(len(ids) + 1) * ids.shape[1]
        mass = np.tile(values.astype(kind), len(ids))
        return scipy.sparse.csr_array((mass, ids.ravel(), ends), (len(ids), width))

    for a, b in draws.blocks(max(_CACHED, _LEAST * n)):
        ids, width = draws.ids(a, b).T, int(draws.offsets[b] - draws.offsets[a])
        left = members(ids if rows is None else ids[rows], weights[a:b], width)
        total += (left @ members(ids, np.ones(b - a), width).T).toarray()
    return total


def _check_size(n_rows: int, n: int) -> None:
    if n_rows * n > _MOST**2:
        raise ValueError(
            f"a matrix has at most {_MOST:,} x {_MOST:,} probabilities; got {n_rows:,} x {n:,}, "
            f"which take {8e-9 * n_rows * n:,.0f} GB; call coclustering with rows= for a block of "
            "fewer rows at a time or with pairs=, or pass draws of fewer samples"
        )


def similarity(draws: Draws, equal: bool) -> np.ndarray:
    """Co-clustering probabilities (n_samples, n_samples) of all pairs of samples.

    ``equal`` states whether the draws have equal weights.
    """
    n = draws.n_samples
    _check_size(n, n)
    # Counts are exact in float32 up to 2**24 draws; weighted sums need float64.
    kind: Any = np.float32 if equal and draws.n_draws < 2**24 else np.float64
    weights = np.ones(draws.n_draws) if equal else draws.weights
    if _sparse_is_faster(draws):
        total = _sparse_products(draws, weights, kind)
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


def _of_rows(draws: Draws, rows: np.ndarray) -> np.ndarray:
    total = np.clip(_sparse_products(draws, draws.weights, np.float64, rows), 0.0, 1.0)
    total[np.arange(len(rows)), rows] = 1.0
    return total


def _of_pairs(draws: Draws, pairs: np.ndarray) -> np.ndarray:
    result = np.empty(len(pairs))
    step = max(1, _CACHED // draws.n_draws)
    for a in range(0, len(pairs), step):
        i, j = pairs[a : a + step].T
        result[a : a + step] = draws.weights @ (draws.codes[:, i] == draws.codes[:, j])
    result[pairs[:, 0] == pairs[:, 1]] = 1.0
    return np.clip(result, 0.0, 1.0, out=result)


def _as_rows(rows: Any, n: int) -> np.ndarray:
    array = as_array(rows, "rows")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"rows must be a list of whole numbers; got dtype {array.dtype} and shape "
            f"{array.shape}; pass positions of samples, such as range(0, 100)"
        )
    _check_size(len(array), n)
    return check_positions(array, n, "rows")


def coclustering(
    draws: Any, weights: Any = None, *, rows: Any = None, pairs: Any = None
) -> np.ndarray:
    r"""Probability that two samples share a cluster: the posterior similarity matrix.

    .. math:: P_{ij} = \sum_s w_s \, 1[z_i^{(s)} = z_j^{(s)}]

    Here :math:`z_i^{(s)}` is the label of sample i in draw s, and :math:`w_s` the weight of draw s,
    with sum 1.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.
    rows : array of int of shape (n_rows,), optional
        Positions of samples. Only these rows of the matrix are computed.
    pairs : array of int of shape (n_pairs, 2), optional
        Positions of samples. Only the probabilities of these pairs are computed.

    Returns
    -------
    ndarray of shape (n_samples, n_samples), float64
        Symmetric, with ones on the diagonal. With `rows`, the shape is (n_rows, n_samples), and
        with `pairs`, it is (n_pairs,). The function needs a small multiple of the memory of the
        result, whatever the number of draws.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If `draws` has other axes or is empty, or `weights`, `rows` or `pairs` do not match it; if
        the result would have more probabilities than a matrix of 20,000 samples; if both `rows` and
        `pairs` are passed.

    References
    ----------
    Binder (1978), "Bayesian cluster analysis", Biometrika 65: the sufficient statistic of his loss.

    Examples
    --------
    >>> from nrprob.posterior import coclustering
    >>> coclustering([[0, 0, 1], [5, 2, 2]])
    array([[1. , 0.5, 0. ],
           [0.5, 1. , 0.5],
           [0. , 0.5, 1. ]])

    With many samples, compute some rows at a time, or some pairs:

    >>> coclustering([[0, 0, 1], [5, 2, 2]], rows=[0])
    array([[1. , 0.5, 0. ]])
    >>> coclustering([[0, 0, 1], [5, 2, 2]], pairs=[[0, 1], [0, 2]])
    array([0.5, 0. ])
    """
    if rows is not None and pairs is not None:
        raise ValueError("rows and pairs exclude each other; got both; call once for each")
    checked = as_draws(draws, weights)
    if rows is not None:
        return _of_rows(checked, _as_rows(rows, checked.n_samples))
    if pairs is not None:
        return _of_pairs(checked, as_pairs(pairs, checked.n_samples))
    return similarity(checked, equal=weights is None)
