"""Factorisations of small matrices, compared with NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from slowly import first_fast

from nrprob.statistics.matrices import (
    inverse_and_log_det,
    log_determinant,
    symmetric_eigen,
    whitener,
)

# On both sides of the limits of unrolled code and of halving.
SIZES = [1, 3, 4, 16, 17, 35]


@jax.jit
def factors(matrices):
    return *whitener(matrices), log_determinant(matrices)


def spreads(rng: np.random.Generator, m: int, condition: float = 100.0) -> np.ndarray:
    """Positive definite matrices (2, 3, m, m) with a given condition number."""
    turn = np.linalg.qr(rng.normal(size=(2, 3, m, m)))[0]
    result = (turn * np.geomspace(1, 1 / condition, m)) @ np.swapaxes(turn, -1, -2)
    return (result + np.swapaxes(result, -1, -2)) / 2


@pytest.mark.parametrize("m", SIZES)
def test_factors_are_those_of_numpy(m):
    matrices = spreads(np.random.default_rng(m), m)
    root = np.linalg.cholesky(matrices)
    with jax.enable_x64(True):
        white, *log_dets = factors(matrices)
    np.testing.assert_allclose(white, np.linalg.inv(root), atol=1e-11)
    for result in log_dets:
        np.testing.assert_allclose(result, np.linalg.slogdet(matrices)[1], rtol=1e-11)


def test_matrices_side_by_side_are_as_one_by_one():
    matrices = spreads(np.random.default_rng(0), 17)
    with jax.enable_x64(True):
        apart, together = jax.jit(jax.vmap(jax.vmap(factors)))(matrices), factors(matrices)
    for a, b in zip(apart, together, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", [3, 16, 35])
def test_what_is_nearly_singular_loses_no_more_than_rounding(m):
    """At condition number 1e8, eight of sixteen digits are correct."""
    matrices = spreads(np.random.default_rng(m), m, 1e8)
    with jax.enable_x64(True):
        white, *log_dets = map(np.asarray, factors(matrices))
    for result in log_dets:
        np.testing.assert_allclose(result, np.linalg.slogdet(matrices)[1], atol=1e-5)
    inside = white @ matrices @ np.swapaxes(white, -1, -2)
    np.testing.assert_allclose(inside, np.broadcast_to(np.eye(m), inside.shape), atol=1e-5)


@pytest.mark.parametrize("m", [3, 16, 35])
def test_singular_matrices_have_finite_factors(m):
    rows = np.random.default_rng(m).normal(size=(2, 3, m // 2, m))
    matrices = np.swapaxes(rows, -1, -2) @ rows
    matrices[0, 0] = 0
    with jax.enable_x64(True):
        for result in factors(matrices):
            assert np.isfinite(result).all()


@pytest.mark.parametrize("m", first_fast([17, 3]))
def test_derivatives_are_those_of_numpys_determinants_and_inverses(m):
    matrices = spreads(np.random.default_rng(m), m)
    change = spreads(np.random.default_rng(m + 1), m)
    with jax.enable_x64(True):
        value, slope = jax.jit(jax.value_and_grad(lambda a: log_determinant(a).sum()))(matrices)
        (turned, _, pivots), (_, first, none) = jax.jit(
            lambda a, b: jax.jvp(inverse_and_log_det, (a,), (b,))
        )(matrices, change)
        # Derivative along a line, which annealing needs for the first split.
        second = jax.jit(
            lambda a, b: jax.jvp(jax.grad(lambda c: log_determinant(c).sum()), (a,), (b,))[1]
        )(matrices, change)
    wanted = np.linalg.inv(matrices)
    np.testing.assert_allclose(turned, wanted, atol=1e-10)
    np.testing.assert_allclose(value, np.linalg.slogdet(matrices)[1].sum(), rtol=1e-11)
    np.testing.assert_allclose(slope, wanted, atol=1e-10)
    np.testing.assert_allclose(first, (wanted * change).sum((-2, -1)), rtol=1e-10)
    np.testing.assert_allclose(second, -wanted @ change @ wanted, rtol=1e-9, atol=1e-7)
    root = np.linalg.cholesky(matrices)
    np.testing.assert_allclose(pivots, np.diagonal(root, axis1=-2, axis2=-1) ** 2, rtol=1e-10)
    assert not np.any(none)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 7, 24])
def test_eigenvectors_diagonalise_symmetric_matrices(m):
    rng = np.random.default_rng(m)
    factor = rng.normal(size=(m, m))
    factor[:, : m // 3] = 0  # equal eigenvalues
    matrix = factor @ np.diag(np.r_[np.ones(m - m // 2), -np.ones(m // 2)]) @ factor.T
    matrix[0] = matrix[:, 0] = 0  # a row that is diagonal from the start
    with jax.enable_x64(True):
        values, vectors = map(np.asarray, jax.jit(symmetric_eigen)(matrix))
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(m), atol=1e-13)
    np.testing.assert_allclose(vectors * values @ vectors.T, matrix, atol=1e-12 * m)
    np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(matrix), atol=1e-12 * m)
