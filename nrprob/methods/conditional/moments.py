"""Leading directions of sparse counts after removing the known structure.

The residual R = Y - D G of damped counts Y is sparse plus low rank and never formed: only products
of Y with some columns, and least squares on D, are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from nrprob.statistics.features import binary_exponent, scale_by_power_of_two
from nrprob.statistics.weighted import total_weight

# Singular values of a design below this share of the largest count as 0.
_MIN_SINGULAR = 1e-9
_EXTRA = 10  # columns of a block beyond the number of directions
_BLOCKS = 12  # maximum number of blocks of a Krylov space


@dataclass(frozen=True)
class Weighting:
    """Transformation of counts to rows of unit length, learnt by a fit and reused for new rows.

    Attributes
    ----------
    columns : (m',) retained columns
    idf : (m',) log((1 + n) / (1 + df)) + 1
    damp : "log" for 1 + log n instead of counts n > 0, "none"
    """

    columns: np.ndarray
    idf: np.ndarray
    damp: str

    @classmethod
    def from_counts(
        cls, x: sparse.csr_array, damp: str, min_df: int, weights: np.ndarray | None = None
    ) -> Weighting:
        """Compute document frequencies, and retain terms that occur in ``min_df`` rows.

        ``weights`` (n,) weight the rows.
        """
        used = x.data > 0
        mass = None if weights is None else np.repeat(weights, np.diff(x.indptr))[used]
        df = np.bincount(x.indices[used], mass, minlength=x.shape[1])
        columns = np.flatnonzero(df >= min_df)
        idf = np.log((1 + total_weight(x.shape[0], weights)) / (1 + df[columns])) + 1
        return cls(columns, idf.astype(x.dtype), damp)

    def damp_counts(self, x: sparse.csr_array) -> sparse.csr_array:
        """Retained columns of ``x``, damped, without explicit zeros."""
        x = x[:, self.columns] if self.columns.size < x.shape[1] else x.copy()
        x.eliminate_zeros()
        if self.damp == "log":
            # Below 1, where 1 + log n would turn negative, the tangent at 1 goes on.
            x.data = np.where(x.data < 1, x.data, 1 + np.log(np.maximum(x.data, 1)))
        return x

    def weigh_terms(self, damped: sparse.csr_array, power: float) -> sparse.csr_array:
        """Rows times ``idf ** power``, scaled to unit length; rows of zeros stay."""
        most = float(damped.data.max(initial=0))
        data = (
            scale_by_power_of_two(damped.data, -binary_exponent(most))
            * (self.idf**power)[damped.indices]
        )
        return unit_rows(
            sparse.csr_array((data, damped.indices, damped.indptr), shape=damped.shape)
        )


def multiply_rows(y: sparse.csr_array, factors: np.ndarray) -> sparse.csr_array:
    """Rows of a CSR array times ``factors`` (n,)."""
    data = y.data * np.repeat(factors.astype(y.dtype), np.diff(y.indptr))
    return sparse.csr_array((data, y.indices, y.indptr), shape=y.shape)


def unit_rows(y: Any) -> Any:
    """Rows of unit length, of a CSR array in place or of a dense array; zeros stay."""
    if sparse.issparse(y):
        length = np.sqrt(np.add.reduceat(np.append(y.data**2, 0), y.indptr[:-1]))
        length[np.diff(y.indptr) == 0] = 0
        y.data /= np.repeat(np.where(length > 0, length, 1), np.diff(y.indptr)).astype(y.dtype)
        return y
    length = np.sqrt((y**2).sum(1, keepdims=True))
    # What is left of a row that its group explains wholly is rounding.
    tiny = 100 * np.finfo(y.dtype).eps
    return np.where(length > tiny, y / np.where(length > tiny, length, 1), 0)


class Projection:
    """Least squares on known structure, by an orthonormal basis (n, q) of its column space.

    Parameters
    ----------
    basis : ndarray or csr_array of shape (n, q)
    back : (q', q) map from coefficients of the basis to coefficients of the known structure
    """

    def __init__(self, basis: Any, back: Any):
        self._basis, self._back = basis, back
        self._transpose = sparse.csr_array(basis.T) if sparse.issparse(basis) else basis.T

    @classmethod
    def of_groups(
        cls, codes: np.ndarray, n_groups: int, mass: np.ndarray, dtype: Any
    ) -> Projection:
        """Least squares on the indicators of known groups ``codes`` (n,): means.

        Rows of ``mass`` (n,) 0 are neither counted nor changed. The rows that are projected are
        multiplied by the root of their mass.
        """
        rows = np.flatnonzero(mass)
        size = np.bincount(codes, mass, minlength=n_groups)
        root = (1 / np.sqrt(np.where(size > 0, size, 1))).astype(dtype)
        shape = codes.size, n_groups
        entries = np.sqrt(mass[rows]).astype(dtype) * root[codes[rows]]
        basis = sparse.csr_array((entries, (rows, codes[rows])), shape=shape)
        return cls(basis, sparse.diags_array(root))

    @classmethod
    def of_design(cls, design: np.ndarray, mass: np.ndarray, dtype: Any) -> Projection:
        """Least squares on the columns of a design (n, q) of any rank; else the same."""
        left, size, right = np.linalg.svd(np.sqrt(mass)[:, None] * design, full_matrices=False)
        real = size > _MIN_SINGULAR * size[0]
        basis = np.ascontiguousarray(left[:, real]).astype(dtype)
        return cls(basis, (right[real].T / size[real]).astype(dtype))

    def fit_coefficients(self, u: np.ndarray) -> np.ndarray:
        """Least-norm coefficients (q', columns of ``u``); for groups, the means of their rows."""
        return self._back @ (self._transpose @ u)

    def remove_known(self, u: np.ndarray) -> np.ndarray:
        """Residuals of ``u`` (n, columns) after regression on the known structure."""
        return u - self._basis @ (self._transpose @ u)

    def explained_squares(self, y: sparse.csr_array) -> np.ndarray:
        """Sums of squares (m,) of the fitted values of ``y``; memory follows its entries."""
        sums = self._transpose @ y
        return (sums.power(2) if sparse.issparse(sums) else sums**2).sum(0)


class Shared:
    """Pairs (known group, term) that occur, for moments within single groups.

    Group l only has the terms of its rows, so that all groups together need as many columns as
    there are such pairs, at most one per entry of the counts.
    """

    def __init__(self, damped: sparse.csr_array, codes: np.ndarray):
        n, m = damped.shape
        row = np.repeat(np.arange(n), np.diff(damped.indptr))
        pairs = codes[row].astype(np.int64) * m + damped.indices
        result, inverse = np.unique(pairs, return_inverse=True)
        self.indices = inverse.reshape(-1).astype(damped.indices.dtype)
        self.group, self.term = np.divmod(result, m)
        indicators = np.ones(result.size, damped.dtype)
        self.sum = sparse.csr_array(
            (indicators, (self.term, np.arange(result.size))), shape=(m, result.size)
        )

    def expand_pairs(self, y: sparse.csr_array) -> sparse.csr_array:
        """Entries of ``y`` in the columns of their pairs."""
        return sparse.csr_array(
            (y.data, self.indices, y.indptr), shape=(y.shape[0], self.term.size)
        )


def moment_within(y: sparse.csr_array, known: Projection) -> Callable[[np.ndarray], np.ndarray]:
    """Second moments of the residual without the noise diagonal: ``V -> (R'R - diag) V``.

    R'R = Y'(I - P) Y, with P the projection on the known structure, since I - P is idempotent.
    """
    noise = _column_squares(y) - known.explained_squares(y)

    def apply_within(v: np.ndarray) -> np.ndarray:
        return y.T @ known.remove_known(y @ v) - noise[:, None] * v

    return apply_within


def moment_across(
    y: sparse.csr_array, known: Projection, shared: Shared
) -> Callable[[np.ndarray], np.ndarray]:
    """Second moments that two different groups share: ``V -> sum_(l != k) C_l C_k V``.

    C_l = R_l'R_l - diag for the rows of group l, so that the sum is C^2 - sum_l C_l^2.
    """
    expanded = shared.expand_pairs(y)
    noise = _column_squares(expanded) - known.explained_squares(expanded)
    total = shared.sum

    def apply_single(v: np.ndarray) -> np.ndarray:
        """C_l applied to the part of group l, for all groups: columns of pairs to the same."""
        return expanded.T @ known.remove_known(expanded @ v) - noise[:, None] * v

    def apply_across(v: np.ndarray) -> np.ndarray:
        parts = apply_single(v[shared.term])
        return total @ apply_single((total @ parts)[shared.term] - parts)

    return apply_across


def share_left(y: sparse.csr_array, known: Projection) -> float:
    """Share of the sum of squares that the known structure does not explain."""
    return float(1 - known.explained_squares(y).sum() / max(_column_squares(y).sum(), 1e-30))


def _column_squares(y: sparse.csr_array) -> np.ndarray:
    return np.bincount(y.indices, y.data**2, minlength=y.shape[1]).astype(y.dtype)


def leading_eigenvectors(
    apply: Callable[[np.ndarray], np.ndarray],
    size: int,
    rank: int,
    dtype: Any,
    tol: float,
    near: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Largest positive eigenvalues, descending, and their eigenvectors (size, at most ``rank``).

    A block Krylov space starts from fixed random vectors, and from vectors ``near`` (size, any
    number) if given. It grows until no eigenvalue increases by more than ``tol`` (relative), or
    until it has twelve blocks, as on pure noise. Small operators are written out.
    """
    rank = min(rank, size)
    if rank == 0:
        return np.empty(0, dtype), np.empty((size, 0), dtype)
    width = rank + _EXTRA
    if size <= 3 * width:
        matrix = apply(np.eye(size, dtype=dtype))
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        scale = abs(values).max(initial=0)
    else:
        start = np.random.RandomState(0).standard_normal((size, width)).astype(dtype)
        if near is not None:
            start[:, : near.shape[1]] = near
        # Multiplied once, so that it lies where the operator acts.
        first = apply(start)
        scale = np.sqrt(((first**2).sum(0) / (start**2).sum(0)).max())
        values, vectors = _block_krylov(apply, first, rank, tol)
    order = np.argsort(-values)[:rank]
    order = order[values[order] > 1e3 * np.finfo(dtype).eps * scale]
    vectors = vectors[:, order]
    # A sign of its own, which a library may choose otherwise: the largest entry is positive.
    largest = abs(vectors).argmax(0)
    sign = np.sign(vectors[largest, np.arange(order.size)])
    return values[order].astype(dtype), np.ascontiguousarray(vectors * sign).astype(dtype)


def _block_krylov(
    apply: Callable[[np.ndarray], np.ndarray], block: np.ndarray, rank: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """Largest Ritz values (rank,) of the block Krylov space of ``block``, and their vectors."""
    size = len(block)
    basis = image = np.empty((size, 0), block.dtype)
    values = np.zeros(rank)
    while True:
        for _ in range(2):  # twice is enough
            block = np.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis = np.hstack([basis, block])
        image = np.hstack([image, apply(block)])
        small = basis.T @ image
        all_values, rotation = np.linalg.eigh((small + small.T) / 2)
        before, values, rotation = values, all_values[::-1][:rank], rotation[:, ::-1][:, :rank]
        # Those that rounding alone leaves never settle, and are nobody's directions.
        least = 1e3 * np.finfo(block.dtype).eps * abs(all_values).max()
        increased = ((values > least) & (values - before > tol * values)).any()
        if basis.shape[1] + block.shape[1] > min(size, _BLOCKS * block.shape[1]):
            break
        if basis.shape[1] > block.shape[1] and not increased:
            break
        block = image[:, -block.shape[1] :]
    return values, basis @ rotation
