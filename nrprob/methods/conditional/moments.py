"""Leading eigenvectors of second moments of sparse counts, after removing the known structure.

The damped counts Y (n, m) are a sparse matrix. Least squares on the known structure D, with the
coefficients G, leaves the residuals R = Y - D G. R would be a dense matrix, and is never formed:
the algorithm only needs products of Y with a few vectors, and least squares of these products on D.

Sizes: n rows; m terms, of which m' are retained; c vectors that are multiplied in one call; q
columns of an orthonormal basis of D, and q' columns of D.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from nrprob.statistics.features import binary_exponent, scale_by_power_of_two
from nrprob.statistics.weighted import total_weight

# Smaller singular values of a design, relative to the largest, count as 0.
_MIN_SINGULAR = 1e-9
_EXTRA = 10  # number of columns of a Krylov block in addition to the number of eigenvectors
_BLOCKS = 12  # maximum number of blocks of a Krylov space


@dataclass(frozen=True)
class Weighting:
    """Transformation of term counts to rows of unit length, learnt by a fit.

    Attributes
    ----------
    columns : (m',) indices of the m' retained terms
    idf : (m',) inverse document frequencies log((1 + n) / (1 + df)) + 1 of a term that occurs in df
        of n rows
    damp : "log" to replace a count x > 0 by 1 + log x, or "none"
    """

    columns: np.ndarray
    idf: np.ndarray
    damp: str

    @classmethod
    def from_counts(
        cls, x: sparse.csr_array, damp: str, min_df: int, weights: np.ndarray | None = None
    ) -> Weighting:
        """Compute document frequencies, and retain terms that occur in at least ``min_df`` rows.

        Parameters
        ----------
        x : (n, m) counts of m terms in n rows
        damp : "log" or "none", as in `Weighting`
        min_df : smallest number of rows, or sum of their weights, of a retained term
        weights : (n,) weights of the rows; by default 1
        """
        used = x.data > 0
        mass = None if weights is None else np.repeat(weights, np.diff(x.indptr))[used]
        df = np.bincount(x.indices[used], mass, minlength=x.shape[1])
        columns = np.flatnonzero(df >= min_df)
        idf = np.log((1 + total_weight(x.shape[0], weights)) / (1 + df[columns])) + 1
        return cls(columns, idf.astype(x.dtype), damp)

    def damp_counts(self, x: sparse.csr_array) -> sparse.csr_array:
        """Damped counts (n, m') of the retained terms in rows with the counts ``x`` (n, m).

        The result has no explicit zeros.
        """
        x = x[:, self.columns] if self.columns.size < x.shape[1] else x.copy()
        x.eliminate_zeros()
        if self.damp == "log":
            # 1 + log x can be negative for x < 1. Replace it by its tangent at 1, which is x.
            x.data = np.where(x.data < 1, x.data, 1 + np.log(np.maximum(x.data, 1)))
        return x

    def weigh_terms(self, damped: sparse.csr_array, power: float) -> sparse.csr_array:
        """Multiply damped counts (n, m') by ``idf ** power``, and scale the rows to unit length."""
        most = float(damped.data.max(initial=0))
        data = (
            scale_by_power_of_two(damped.data, -binary_exponent(most))
            * (self.idf**power)[damped.indices]
        )
        return unit_rows(
            sparse.csr_array((data, damped.indices, damped.indptr), shape=damped.shape)
        )


def multiply_rows(y: sparse.csr_array, factors: np.ndarray) -> sparse.csr_array:
    """Multiply every row of a CSR array (n, m) by the entry of ``factors`` (n,) for this row."""
    data = y.data * np.repeat(factors.astype(y.dtype), np.diff(y.indptr))
    return sparse.csr_array((data, y.indices, y.indptr), shape=y.shape)


def unit_rows(y: Any) -> Any:
    """Scale the rows of an array to unit length; rows of zeros are unchanged.

    A CSR array is changed in place. In a dense array, rows whose length is a rounding error become
    0.
    """
    if sparse.issparse(y):
        length = np.sqrt(np.add.reduceat(np.append(y.data**2, 0), y.indptr[:-1]))
        length[np.diff(y.indptr) == 0] = 0
        y.data /= np.repeat(np.where(length > 0, length, 1), np.diff(y.indptr)).astype(y.dtype)
        return y
    length = np.sqrt((y**2).sum(1, keepdims=True))
    # The residual of a row that its known group explains completely is a rounding error.
    tiny = 100 * np.finfo(y.dtype).eps
    return np.where(length > tiny, y / np.where(length > tiny, length, 1), 0)


class Projection:
    """Least-squares projection on the known structure, a design matrix of n rows and q' columns.

    Parameters
    ----------
    basis : ndarray or csr_array of shape (n, q)
        Orthonormal basis of the column space of the design matrix.
    back : (q', q) map from coefficients of the basis to coefficients of the design matrix
    """

    def __init__(self, basis: Any, back: Any):
        self._basis, self._back = basis, back
        self._transpose = sparse.csr_array(basis.T) if sparse.issparse(basis) else basis.T

    @classmethod
    def of_groups(
        cls, codes: np.ndarray, n_groups: int, mass: np.ndarray, dtype: Any
    ) -> Projection:
        """Projection on the indicators of known groups: the fitted values are group means.

        The caller has to multiply rows by the square root of their mass before the projection. Rows
        of mass 0 have no influence, and their residuals are the rows themselves.

        Parameters
        ----------
        codes : (n,) known groups
        n_groups : number of known groups
        mass : (n,) weights of the rows
        dtype : floating-point type of the basis
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
        """Projection on the columns of a design (n, q') of any rank.

        As with `of_groups`, the caller has to multiply rows by the square root of their ``mass``
        (n,). ``dtype`` is the floating-point type of the basis.
        """
        left, size, right = np.linalg.svd(np.sqrt(mass)[:, None] * design, full_matrices=False)
        real = size > _MIN_SINGULAR * size[0]
        basis = np.ascontiguousarray(left[:, real]).astype(dtype)
        return cls(basis, (right[real].T / size[real]).astype(dtype))

    def fit_coefficients(self, u: np.ndarray) -> np.ndarray:
        """Least-norm coefficients (q', c) of the known structure for ``u`` (n, c).

        For known groups, the coefficients are the group means.
        """
        return self._back @ (self._transpose @ u)

    def remove_known(self, u: np.ndarray) -> np.ndarray:
        """Residuals (n, c) of ``u`` (n, c) after regression on the known structure."""
        return u - self._basis @ (self._transpose @ u)

    def explained_squares(self, y: sparse.csr_array) -> np.ndarray:
        """Sums of squares (m,) of the values that the known structure fits to ``y`` (n, m).

        For known groups, the memory is proportional to the number of nonzero entries of ``y``.
        """
        sums = self._transpose @ y
        return (sums.power(2) if sparse.issparse(sums) else sums**2).sum(0)


class Shared:
    """Pairs (known group, term) with a positive count, for second moments within single groups.

    The counts are rearranged to a matrix with one column per pair, which separates the groups. The
    matrix has at most one column per nonzero count, because a term need not occur in every group.

    Parameters
    ----------
    damped : (n, m) damped counts
    codes : (n,) known groups

    Attributes
    ----------
    indices : index of the pair to which every nonzero count belongs
    group, term : (pairs,) known group and term of every pair
    sum : (m, pairs) sparse matrix whose product with values of the pairs adds the values by term
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
        """Rearrange ``y`` (n, m), with the nonzeros of the counts, to one column per pair.

        The result has the shape (n, pairs).
        """
        return sparse.csr_array(
            (y.data, self.indices, y.indptr), shape=(y.shape[0], self.term.size)
        )


def moment_within(y: sparse.csr_array, known: Projection) -> Callable[[np.ndarray], np.ndarray]:
    """Linear operator V -> (R'R - diag(R'R)) V for the residuals R of the weighted counts ``y``.

    V are c vectors, an array (m, c).

    The diagonal is subtracted because noise of independent counts only contributes to the diagonal.
    With the projection P on the known structure, R'R = Y'(I - P) Y, because I - P is idempotent.
    """
    noise = _column_squares(y) - known.explained_squares(y)

    def apply_within(v: np.ndarray) -> np.ndarray:
        return y.T @ known.remove_known(y @ v) - noise[:, None] * v

    return apply_within


def moment_across(
    y: sparse.csr_array, known: Projection, shared: Shared
) -> Callable[[np.ndarray], np.ndarray]:
    """Linear operator V -> sum_(l != k) C_l C_k V: moments that different groups have in common.

    V are c vectors, an array (m, c). C_l = R_l'R_l - diag(R_l'R_l), where R_l are the residuals of
    the rows of known group l. With C = sum_l C_l, the operator is C^2 - sum_l C_l^2.
    """
    expanded = shared.expand_pairs(y)
    noise = _column_squares(expanded) - known.explained_squares(expanded)
    total = shared.sum

    def apply_single(v: np.ndarray) -> np.ndarray:
        """Apply C_l to the entries of ``v`` that belong to group l, for all groups.

        ``v`` (pairs, c) has one row per pair (known group, term).
        """
        return expanded.T @ known.remove_known(expanded @ v) - noise[:, None] * v

    def apply_across(v: np.ndarray) -> np.ndarray:
        parts = apply_single(v[shared.term])
        return total @ apply_single((total @ parts)[shared.term] - parts)

    return apply_across


def share_left(y: sparse.csr_array, known: Projection) -> float:
    """Share of the sum of squares of ``y`` that the known structure does not explain."""
    return float(1 - known.explained_squares(y).sum() / max(_column_squares(y).sum(), 1e-30))


def _column_squares(y: sparse.csr_array) -> np.ndarray:
    """Sums of squares (m,) of the columns of ``y`` (n, m)."""
    return np.bincount(y.indices, y.data**2, minlength=y.shape[1]).astype(y.dtype)


def leading_eigenvectors(
    apply: Callable[[np.ndarray], np.ndarray],
    size: int,
    rank: int,
    dtype: Any,
    tol: float,
    near: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the largest positive eigenvalues of a symmetric operator, and their eigenvectors.

    A block Krylov space starts from random vectors of a fixed seed. The space grows until no
    eigenvalue increases by more than ``tol`` (relative), or until there are twelve blocks, which
    happens on pure noise. For a small operator, the whole matrix is computed.

    Parameters
    ----------
    apply : the operator, from (size, c) to (size, c)
    size : dimension of the operator
    rank : maximum number of eigenvectors
    dtype : floating-point type
    tol : relative tolerance of the eigenvalues
    near : (size, c) approximate eigenvectors, which replace the first random vectors

    Returns
    -------
    values : (q,) eigenvalues, descending; q is at most ``rank``
    vectors : (size, q) eigenvectors
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
        # The first block is in the range of the operator.
        first = apply(start)
        scale = np.sqrt(((first**2).sum(0) / (start**2).sum(0)).max())
        values, vectors = _block_krylov(apply, first, rank, tol)
    order = np.argsort(-values)[:rank]
    order = order[values[order] > 1e3 * np.finfo(dtype).eps * scale]
    vectors = vectors[:, order]
    # The sign of an eigenvector is arbitrary. Make its largest entry positive, so that results do
    # not depend on the linear algebra library.
    largest = abs(vectors).argmax(0)
    sign = np.sign(vectors[largest, np.arange(order.size)])
    return values[order].astype(dtype), np.ascontiguousarray(vectors * sign).astype(dtype)


def _block_krylov(
    apply: Callable[[np.ndarray], np.ndarray], block: np.ndarray, rank: int, tol: float
) -> tuple[np.ndarray, np.ndarray]:
    """Largest Ritz values (rank,) and Ritz vectors (size, rank) of a block Krylov space.

    The space starts from the columns of ``block`` (size, c), and grows by applications of the
    operator. ``tol`` is the relative tolerance of the values.
    """
    size = len(block)
    basis = image = np.empty((size, 0), block.dtype)
    values = np.zeros(rank)
    while True:
        for _ in range(2):  # orthogonalise twice, since one pass leaves rounding errors
            block = np.linalg.qr(block - basis @ (basis.T @ block))[0]
        basis = np.hstack([basis, block])
        image = np.hstack([image, apply(block)])
        small = basis.T @ image
        all_values, rotation = np.linalg.eigh((small + small.T) / 2)
        before, values, rotation = values, all_values[::-1][:rank], rotation[:, ::-1][:, :rank]
        # Values at the level of rounding errors never converge, so they do not count.
        least = 1e3 * np.finfo(block.dtype).eps * abs(all_values).max()
        increased = ((values > least) & (values - before > tol * values)).any()
        if basis.shape[1] + block.shape[1] > min(size, _BLOCKS * block.shape[1]):
            break
        if basis.shape[1] > block.shape[1] and not increased:
            break
        block = image[:, -block.shape[1] :]
    return values, basis @ rotation
