r"""Precision matrices of the Gaussian block, and expected scatter of missing values.

W is the inverse Cholesky factor of :math:`\Sigma`: in the coordinates :math:`W x`, the errors have
unit covariance. For a pattern p with the missing columns M, the columns of W in M span the
directions that the observed values do not determine. With :math:`U_p = L^{-1} W_M^T`, where
:math:`L L^T = W_M^T W_M`, the rows of :math:`U_p` are an orthonormal basis of these directions, and
the precision of the observed columns is

.. math:: A_p = W^T (I - U_p^T U_p) W,
          \quad \log |\Sigma_{OO}| = \log |\Sigma| + \log |W_M^T W_M|

A pattern with few missing columns therefore needs no inverse of a matrix of all columns.

Sizes in shapes are as in `gaussian_block`: P patterns and d numeric columns; at most r columns are
missing in a pattern.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.statistics.matrices import whitener

_LEAST_MISSING = 8  # smallest length r, unless the table has fewer columns
_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
_dot = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


class Precisions(NamedTuple):
    """Inverses and log determinants of the covariance matrices Sigma and T.

    Attributes
    ----------
    observed : (P, d, d) inverse A_p of Sigma on the observed columns of every pattern, padded with
        zeros
    log_det_observed : (P,) log determinants of Sigma on these columns
    white : (d, d) inverse Cholesky factor W of Sigma
    directions : (P, r, d) orthonormal bases U_p of the directions that a pattern does not observe
    sigma, log_det_sigma : (d, d) inverse of Sigma, and log determinant of Sigma
    t, log_det_t : (d, d) inverse of T, and log determinant of T
    """

    observed: jax.Array
    log_det_observed: jax.Array
    white: jax.Array
    directions: jax.Array
    sigma: jax.Array
    log_det_sigma: jax.Array
    t: jax.Array
    log_det_t: jax.Array

    @property
    def projections(self) -> jax.Array:
        """Matrices I - U_p' U_p (P, d, d): A_p in the coordinates in which Sigma is the identity.

        Padding columns count as observed.
        """
        eye = jnp.eye(len(self.white), dtype=self.white.dtype)
        return eye - _einsum("prd,pre->pde", self.directions, self.directions)

    def complete_scatter(self, scatter: jax.Array, n: jax.Array) -> jax.Array:
        """Expected scatter (d, d) of complete residuals, in the coordinates of ``projections``.

        The expected residuals of missing values given the observed ones, and their conditional
        covariance, add to the scatter of the observed values.

        Parameters
        ----------
        scatter : (P, d, d) scatter of the residuals of observed values, by pattern, in units of the
            columns; 0 for missing values
        n : (P,) masses of the patterns
        """
        # The sum over patterns of B S B' + n U' U with B = (I - U' U) W. Products with U are
        # cheaper than products with B.
        u = self.directions
        v = _dot(u, self.white)
        product = _einsum("prd,pde->pre", v, scatter)
        inner = _einsum("pre,pqe->prq", product, v)
        inner = inner + n[:, None, None] * jnp.eye(u.shape[1], dtype=u.dtype)
        one_sided = _dot(_einsum("prd,pre->de", u, product), self.white.T)
        two_sided = _einsum("prd,pre->de", u, _einsum("prq,pqe->pre", inner, u))
        total = _dot(_dot(self.white, scatter.sum(0)), self.white.T)
        return total - one_sided - one_sided.T + two_sided


def compute_precisions(
    sigma: jax.Array, t: jax.Array, observed: jax.Array, missing: jax.Array
) -> Precisions:
    """Compute `Precisions`.

    Parameters
    ----------
    sigma, t : (d, d) covariance matrices
    observed, missing : columns that a pattern observes and misses; see `missing_columns`
    """
    # One call for both matrices, because every call would be compiled separately.
    white, log_det = whitener(jnp.stack([sigma, t]))
    inverse = _dot(jnp.swapaxes(white, 1, 2), white)
    white = white[0]
    u, log_det_missing = _unobserved_directions(white, missing)
    v = _dot(u, white)
    both = observed[:, :, None] * observed[:, None, :]
    a = (inverse[0] - _einsum("prd,pre->pde", v, v)) * both
    return Precisions(
        a, log_det[0] + log_det_missing, white, u, inverse[0], log_det[0], inverse[1], log_det[1]
    )


def _unobserved_directions(white: jax.Array, missing: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Bases U_p (P, r, d) and log determinants (P,) of W_M' W_M; see `Precisions`."""
    patterns, most = missing.shape
    if most == 0:
        return jnp.zeros((patterns, 0, len(white)), white.dtype), jnp.zeros(patterns, white.dtype)
    # The index d of a pattern with fewer than r missing columns selects a column of zeros.
    columns = jnp.concatenate([white.T, jnp.zeros_like(white[:1])])[missing]
    absent = (missing == len(white)).astype(white.dtype)
    gram = _einsum("prd,pqd->prq", columns, columns)
    root, log_det = whitener(gram + absent[:, None] * jnp.eye(most, dtype=white.dtype))
    return _dot(root, columns), log_det


def missing_columns(observed: np.ndarray, n_patterns: int, width: int) -> np.ndarray:
    """Positions (P, r) of the missing columns of every pattern, padded with the number d.

    Parameters
    ----------
    observed : (p, d') whether a column is observed in a pattern
    n_patterns, width : numbers P >= p of patterns and d >= d' of columns, with padding
    """
    count = (~observed).sum(1)
    most = int(count.max())
    if most:
        most = min(max(1 << (most - 1).bit_length(), _LEAST_MISSING), width)
    result = np.full((n_patterns, most), width, np.int32)
    for row, seen in zip(result, observed, strict=False):
        positions = np.flatnonzero(~seen)
        row[: len(positions)] = positions
    return result
