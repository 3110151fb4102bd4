"""Leading directions of sparse counts once the known structure is removed.

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

# Components with less than this share of the largest singular value of a design are not there.
_RANK = 1e-9
_MORE = 10  # columns of a block beyond the directions that are wanted
_BLOCKS = 12  # that a Krylov space has at most


@dataclass(frozen=True)
class Weighting:
    """How counts become rows of unit length; learnt from the rows of a fit, reused for new ones.

    Attributes
    ----------
    columns : (m',) columns that are kept
    idf : (m',) log((1 + n) / (1 + df)) + 1
    damp : "log" for 1 + log n in the place of counts n > 0, "none"
    """

    columns: np.ndarray
    idf: np.ndarray
    damp: str

    @classmethod
    def learn(cls, x: sparse.csr_array, damp: str, min_df: int) -> Weighting:
        """Count in how many rows every term is found, and keep those found in ``min_df``."""
        df = np.bincount(x.indices[x.data > 0], minlength=x.shape[1])
        columns = np.flatnonzero(df >= min_df)
        idf = np.log((1 + x.shape[0]) / (1 + df[columns])) + 1
        return cls(columns, idf.astype(x.dtype), damp)

    def damped(self, x: sparse.csr_array) -> sparse.csr_array:
        """Kept columns of ``x``, damped, without explicit zeros."""
        x = x[:, self.columns] if self.columns.size < x.shape[1] else x.copy()
        x.eliminate_zeros()
        if self.damp == "log":
            # Below 1, where 1 + log n would turn negative, the tangent at 1 goes on.
            x.data = np.where(x.data < 1, x.data, 1 + np.log(np.maximum(x.data, 1)))
        return x

    def weighted(self, damped: sparse.csr_array, power: float) -> sparse.csr_array:
        """Rows times ``idf ** power``, of unit length; rows of zeros stay."""
        most = float(damped.data.max(initial=0))
        data = (
            scale_by_power_of_two(damped.data, -binary_exponent(most))
            * (self.idf**power)[damped.indices]
        )
        return unit_rows(
            sparse.csr_array((data, damped.indices, damped.indptr), shape=damped.shape)
        )


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
    """Least squares on known structure, by an orthonormal basis (n, q) of what it spans.

    Parameters
    ----------
    basis : ndarray or csr_array of shape (n, q)
    back : (q', q) coefficients of the known structure from those of the basis
    """

    def __init__(self, basis: Any, back: Any):
        self._basis, self._back = basis, back
        self._transpose = sparse.csr_array(basis.T) if sparse.issparse(basis) else basis.T

    @classmethod
    def of_groups(
        cls, codes: np.ndarray, n_groups: int, present: np.ndarray, dtype: Any
    ) -> Projection:
        """Least squares on the indicators of known groups ``codes`` (n,): means.

        Rows that are not ``present`` (n,) are neither counted nor changed.
        """
        rows = np.flatnonzero(present)
        size = np.maximum(np.bincount(codes[rows], minlength=n_groups), 1)
        root = (1 / np.sqrt(size)).astype(dtype)
        shape = codes.size, n_groups
        basis = sparse.csr_array((root[codes[rows]], (rows, codes[rows])), shape=shape)
        return cls(basis, sparse.diags_array(root))

    @classmethod
    def of_design(cls, design: np.ndarray, present: np.ndarray, dtype: Any) -> Projection:
        """Least squares on the columns of a design (n, q) of any rank; else the same."""
        left, size, right = np.linalg.svd(
            np.where(present[:, None], design, 0), full_matrices=False
        )
        real = size > _RANK * size[0]
        basis = np.ascontiguousarray(left[:, real]).astype(dtype)
        return cls(basis, (right[real].T / size[real]).astype(dtype))

    def coefficients(self, u: np.ndarray) -> np.ndarray:
        """Coefficients (q', columns of ``u``), the shortest; of groups, the means of their rows."""
        return self._back @ (self._transpose @ u)

    def remove(self, u: np.ndarray) -> np.ndarray:
        """What the known structure does not explain of ``u`` (n, columns)."""
        return u - self._basis @ (self._transpose @ u)

    def explained(self, y: sparse.csr_array) -> np.ndarray:
        """Sums of squares (m,) of the fit to the columns of ``y``; memory follows its entries."""
        sums = self._transpose @ y
        return (sums.power(2) if sparse.issparse(sums) else sums**2).sum(0)


class Shared:
    """Pairs (known group, term) that occur, by which moments of single groups are computed.

    Group l only has the terms that its rows hold, so that all groups together need as many columns
    as there are such pairs, at most one per entry of the counts.
    """

    def __init__(self, damped: sparse.csr_array, codes: np.ndarray):
        n, m = damped.shape
        row = np.repeat(np.arange(n), np.diff(damped.indptr))
        pairs = codes[row].astype(np.int64) * m + damped.indices
        result, inverse = np.unique(pairs, return_inverse=True)
        self.indices = inverse.reshape(-1).astype(damped.indices.dtype)
        self.group, self.term = np.divmod(result, m)
        ones = np.ones(result.size, damped.dtype)
        self.sum = sparse.csr_array(
            (ones, (self.term, np.arange(result.size))), shape=(m, result.size)
        )

    def expand(self, y: sparse.csr_array) -> sparse.csr_array:
        """Entries of ``y`` in the columns of their pairs."""
        return sparse.csr_array(
            (y.data, self.indices, y.indptr), shape=(y.shape[0], self.term.size)
        )


def moment_within(y: sparse.csr_array, known: Projection) -> Callable[[np.ndarray], np.ndarray]:
    """Second moments of the residual without the noise diagonal: ``V -> (R'R - diag) V``.

    R'R = Y'(I - P) Y, with P the projection on the known structure, since I - P is idempotent.
    """
    noise = _squares(y) - known.explained(y)

    def apply(v: np.ndarray) -> np.ndarray:
        return y.T @ known.remove(y @ v) - noise[:, None] * v

    return apply


def moment_across(
    y: sparse.csr_array, known: Projection, shared: Shared
) -> Callable[[np.ndarray], np.ndarray]:
    """What second moments of two different groups share: ``V -> sum_(l != k) C_l C_k V``.

    C_l = R_l'R_l - diag for the rows of group l, so that the sum is C^2 - sum_l C_l^2.
    """
    wide = shared.expand(y)
    noise = _squares(wide) - known.explained(wide)
    total = shared.sum

    def single(v: np.ndarray) -> np.ndarray:
        """C_l applied to the part of group l, for all groups: columns of pairs to the same."""
        return wide.T @ known.remove(wide @ v) - noise[:, None] * v

    def apply(v: np.ndarray) -> np.ndarray:
        parts = single(v[shared.term])
        return total @ single((total @ parts)[shared.term] - parts)

    return apply


def share_left(y: sparse.csr_array, known: Projection) -> float:
    """Share of the sum of squares that the known structure does not explain."""
    return float(1 - known.explained(y).sum() / max(_squares(y).sum(), 1e-30))


def _squares(y: sparse.csr_array) -> np.ndarray:
    return np.bincount(y.indices, y.data**2, minlength=y.shape[1]).astype(y.dtype)


def leading(
    apply: Callable[[np.ndarray], np.ndarray],
    size: int,
    rank: int,
    dtype: Any,
    tol: float,
    near: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Largest positive eigenvalues, descending, and their eigenvectors (size, at most ``rank``).

    By a block Krylov space, from a start that is always the same, and from vectors ``near`` (size,
    any number) where there are some: a product with many columns costs a fraction of as many with
    one. It grows until no eigenvalue rises by more than ``tol``, relative, or it has twelve blocks,
    as where all that is left is noise; small operators are written out.
    """
    rank = min(rank, size)
    if rank == 0:
        return np.empty(0, dtype), np.empty((size, 0), dtype)
    width = rank + _MORE
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
        values, vectors = _krylov(apply, first, rank, tol)
    order = np.argsort(-values)[:rank]
    order = order[values[order] > 1e3 * np.finfo(dtype).eps * scale]
    vectors = vectors[:, order]
    # A sign of its own, which a library may choose otherwise: the largest entry is positive.
    at = abs(vectors).argmax(0)
    sign = np.sign(vectors[at, np.arange(order.size)])
    return values[order].astype(dtype), np.ascontiguousarray(vectors * sign).astype(dtype)


def _krylov(
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
        all_, turn = np.linalg.eigh((small + small.T) / 2)
        before, values, turn = values, all_[::-1][:rank], turn[:, ::-1][:, :rank]
        # Those that rounding alone leaves never settle, and are nobody's directions.
        least = 1e3 * np.finfo(block.dtype).eps * abs(all_).max()
        risen = ((values > least) & (values - before > tol * values)).any()
        if basis.shape[1] + block.shape[1] > min(size, _BLOCKS * block.shape[1]):
            break
        if basis.shape[1] > block.shape[1] and not risen:
            break
        block = image[:, -block.shape[1] :]
    return values, basis @ turn
