"""Factorise many small positive definite matrices without LAPACK.

LAPACK processes small matrices one by one. Two concurrent calls, by one program or by two, can
deadlock on a CPU: each call holds a thread of XLA until other threads have processed its batch.
This module eliminates the columns of all matrices together. `whitener` uses unrolled code for up to
3 columns, a loop for up to 16 columns, and blocks for larger matrices. `log_determinant` uses
unrolled code for up to 16 columns.

Shapes: matrices (..., m, m) of m columns. A *pivot* is a diagonal entry when its column is
eliminated.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_MAX_UNROLLED = 3  # largest number of columns that unrolled code eliminates
_MAX_SWEEPS = 30  # largest number of sweeps of `symmetric_eigen`; about 8 are needed
_MAX_COLUMNS = 16  # largest number of columns of the loop; larger matrices are halved


def whitener(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inverse Cholesky factors of matrices (..., m, m), and log determinants (...).

    Each factor w is lower triangular. ``w @ matrix @ w.T`` is the identity, and ``w.T @ w`` is the
    inverse of the matrix.
    """
    return _whiten_blockwise(matrix, _least_pivots(matrix))


@jax.custom_jvp
def log_determinant(matrix: jax.Array) -> jax.Array:
    """Log determinants (...) of positive definite matrices (..., m, m)."""
    least = _least_pivots(matrix)
    total = jnp.zeros((), matrix.dtype)
    while (m := matrix.shape[-1]) > _MAX_COLUMNS:
        _, _, matrix, more = _eliminate_half(matrix, least)
        least, total = least[..., m // 2 :], total + more
    for i in range(m):
        pivot, good = _clip_pivot(matrix[..., 0, 0], least[..., i])
        total = total + jnp.log(pivot)
        column = matrix[..., 1:, :1] * (good / pivot)[..., None, None]
        matrix = matrix[..., 1:, 1:] - column * matrix[..., :1, 1:]
    return total


@jax.custom_jvp
def inverse_and_log_det(matrix: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Inverses (..., m, m), log determinants (...) and pivots (..., m) of matrices.

    The matrices (..., m, m) must be positive definite. Derivatives treat the pivots as constants.
    """
    white, log_det = whitener(matrix)
    pivots = 1 / jnp.diagonal(white, axis1=-2, axis2=-1) ** 2
    return _precise_matmul(jnp.swapaxes(white, -1, -2), white), log_det, pivots


@inverse_and_log_det.defjvp
def _inverse_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    result, log_det, pivots = inverse_and_log_det(*primals)
    change = _precise_matmul(result, _precise_matmul(tangents[0], result))
    slope = (result * tangents[0]).sum((-2, -1))
    return (result, log_det, pivots), (-change, slope, jnp.zeros_like(pivots))


@log_determinant.defjvp
def _log_determinant_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    result, log_det, _ = inverse_and_log_det(*primals)
    return log_det, (result * tangents[0]).sum((-2, -1))


def symmetric_eigen(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Eigenvalues (m,) and eigenvectors (m, m), as columns, of a symmetric matrix (m, m).

    Jacobi rotations eliminate m / 2 disjoint pairs of rows at once, in the order of Brent and Luk
    (1985). A sweep of m - 1 rounds visits every pair. The rotations end when the sum of squares
    outside the diagonal is a rounding error, or after 30 sweeps. The eigenvalues are not sorted.

    References
    ----------
    R. P. Brent and F. T. Luk, "The solution of singular-value and symmetric eigenvalue problems on
    multiprocessor arrays", SIAM Journal on Scientific and Statistical Computing, 6(1), 69-84, 1985.
    doi:10.1137/0906007
    """
    m = matrix.shape[-1]
    n = m + m % 2  # a row and a column of 0 make the number even
    half, eps = n // 2, jnp.finfo(matrix.dtype).eps
    # The pairs of a round are the rows i and i + half. Between rounds, all rows but the first
    # change their positions in a circle, as in a round-robin tournament.
    turned = np.r_[0, half, 1 : half - 1, half + 1 : n, half - 1] if half > 1 else np.arange(n)

    def rotate(round_, carry):
        matrix, vectors = carry
        upper, lower = (jnp.diagonal(matrix)[part] for part in (slice(half), slice(half, n)))
        off = jnp.diagonal(matrix[:half, half:])
        # Of two nearly equal eigenvalues, rounding errors would rotate the vectors for ever.
        is_zero = jnp.abs(off) <= eps * jnp.maximum(jnp.abs(upper), jnp.abs(lower))
        ratio = (lower - upper) / jnp.where(is_zero, 1, 2 * off)
        tangent = jnp.where(ratio < 0, -1, 1) / (jnp.abs(ratio) + jnp.sqrt(1 + ratio**2))
        tangent = jnp.where(is_zero, 0, tangent)
        cosine = 1 / jnp.sqrt(1 + tangent**2)
        sine = tangent * cosine

        def rotate_columns(a):
            left, right = a[:, :half], a[:, half:]
            return jnp.concatenate([cosine * left - sine * right, sine * left + cosine * right], 1)

        matrix = rotate_columns(rotate_columns(matrix).T)
        return matrix[turned][:, turned], rotate_columns(vectors)[:, turned]

    def sweep(carry):
        matrix, vectors, count = carry
        matrix, vectors = jax.lax.fori_loop(0, n - 1, rotate, (matrix, vectors))
        return matrix, vectors, count + 1

    def goes_on(carry):
        matrix, _, count = carry
        off = jnp.square(matrix - jnp.diag(jnp.diagonal(matrix))).sum()
        least = n * eps**2 * jnp.square(matrix).sum()
        return (count < _MAX_SWEEPS) & (off > least)

    padded = jnp.pad(matrix, (0, n - m))
    begin = padded, jnp.eye(n, dtype=matrix.dtype), jnp.zeros((), jnp.int32)
    padded, vectors, _ = jax.lax.while_loop(goes_on, sweep, begin)
    # The vector of the added row is the only one with a nonzero last entry.
    order = jnp.argsort(jnp.abs(vectors[-1]), stable=True)[:m] if n > m else np.arange(m)
    return jnp.diagonal(padded)[order], vectors[:m, order]


def _least_pivots(matrix: jax.Array) -> jax.Array:
    """Thresholds (..., m) of the pivots: a pivot up to its threshold is a rounding error."""
    info = jnp.finfo(matrix.dtype)
    diagonal = jnp.diagonal(matrix, axis1=-2, axis2=-1)
    return jnp.maximum(info.eps * diagonal, info.tiny)


def _clip_pivot(pivot: jax.Array, least: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Raise pivots to at least the thresholds ``least``; return them and indicators.

    An indicator is 1 if the pivot exceeds its threshold, and 0 if the pivot is a rounding error.
    """
    return jnp.maximum(pivot, least), (pivot > least).astype(pivot.dtype)


def _whiten_blockwise(matrix: jax.Array, least: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute `whitener` for matrices of any size; large matrices are halved recursively.

    ``least`` (..., m) are the thresholds of `_least_pivots`.
    """
    m = matrix.shape[-1]
    if m <= _MAX_UNROLLED:
        return _whiten_unrolled(matrix, least)
    if m <= _MAX_COLUMNS:
        return _whiten_by_columns(matrix, least)
    white, below, rest, log_det = _eliminate_half(matrix, least)
    last, more = _whiten_blockwise(rest, least[..., m // 2 :])
    corner = -_precise_matmul(last, _precise_matmul(below, white))
    nothing = jnp.zeros_like(jnp.swapaxes(corner, -1, -2))
    upper, lower = (jnp.concatenate(both, -1) for both in ((white, nothing), (corner, last)))
    return jnp.concatenate([upper, lower], -2), log_det + more


def _eliminate_half(matrix: jax.Array, least: jax.Array) -> tuple[jax.Array, ...]:
    """Eliminate the first half of the columns, which splits the matrix into 2 x 2 blocks.

    Returns four arrays: the whitener of the first diagonal block; the lower left block of the
    Cholesky factor of the matrix; the Schur complement of the first diagonal block; and the log
    determinant of the first diagonal block.
    """
    half = matrix.shape[-1] // 2
    white, log_det = _whiten_blockwise(matrix[..., :half, :half], least[..., :half])
    below = _precise_matmul(matrix[..., half:, :half], jnp.swapaxes(white, -1, -2))
    rest = matrix[..., half:, half:] - _precise_matmul(below, jnp.swapaxes(below, -1, -2))
    return white, below, rest, log_det


def _precise_matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _whiten_by_columns(matrix: jax.Array, least: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute `whitener` by a loop over columns.

    The columns of the inverse factor overwrite the eliminated columns of the matrix.
    """
    m = matrix.shape[-1]
    index = np.arange(m)

    def eliminate_column(i, carry):
        matrix, log_det = carry
        row, column = (jax.lax.dynamic_index_in_dim(matrix, i, axis, False) for axis in (-2, -1))
        pivot, good = _clip_pivot(*(jax.lax.dynamic_index_in_dim(a, i, -1) for a in (row, least)))
        scale = 1 / jnp.sqrt(pivot)
        row = jnp.where(index == i, 1, row) * scale
        column = jnp.where(index > i, column * good * scale, 0)
        matrix = jnp.where((index == i) & (index > i)[:, None], 0, matrix)
        less = matrix - column[..., None] * row[..., None, :]
        matrix = jnp.where((index == i)[:, None], row[..., None, :], less)
        return matrix, log_det + jnp.log(pivot[..., 0])

    begin = matrix, jnp.zeros(matrix.shape[:-2], matrix.dtype)
    matrix, log_det = jax.lax.fori_loop(0, m, eliminate_column, begin)
    return jnp.tril(matrix), log_det


def _whiten_unrolled(matrix: jax.Array, least: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute `whitener` for matrices of a few columns, by unrolled code."""
    m = matrix.shape[-1]
    rows = [jnp.broadcast_to(row, least.shape) for row in jnp.eye(m, dtype=matrix.dtype)]
    log_det = jnp.zeros((), matrix.dtype)
    for i in range(m):
        pivot, good = _clip_pivot(matrix[..., 0, 0], least[..., i])
        scale = 1 / jnp.sqrt(pivot)[..., None]
        log_det = log_det + jnp.log(pivot)
        rows[i] = rows[i] * scale
        below = matrix[..., 1:, 0] * (good[..., None] * scale)
        for j in range(i + 1, m):
            rows[j] = rows[j] - below[..., j - i - 1, None] * rows[i]
        matrix = matrix[..., 1:, 1:] - below[..., :, None] * below[..., None, :]
    return jnp.stack(rows, -2), log_det
