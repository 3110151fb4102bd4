"""Precisions of missing patterns, against inverses of submatrices."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from nrprob.methods.conditional.precisions import compute_precisions, missing_columns

D, WIDTH, PADDED = 9, 12, 8  # columns, with padding, and patterns with padding


def covariance(rng: np.random.Generator) -> np.ndarray:
    """Covariance of ``D`` columns, two of them nearly dependent; the identity on padding."""
    root = rng.normal(size=(D, D))
    root[1] = root[0] + 1e-3 * root[1]
    result = np.eye(WIDTH)
    result[:D, :D] = root @ root.T
    return result


@pytest.fixture(scope="module")
def patterns():
    """Observed columns of six patterns: all, none, and four others."""
    rng = np.random.default_rng(0)
    seen = rng.random((6, D)) > 0.4
    seen[0], seen[1] = True, False
    seen[2, :2] = False  # both nearly dependent columns are missing
    seen[3, :2] = True, False
    return seen


@pytest.fixture(scope="module")
def both(patterns):
    """Covariances and their `Precisions`."""
    rng = np.random.default_rng(1)
    sigma, t = covariance(rng), covariance(rng)
    observed = np.zeros((PADDED, WIDTH))
    observed[: len(patterns), :D] = patterns
    with jax.enable_x64(True):
        missing = missing_columns(patterns, PADDED, WIDTH)
        return sigma, t, jax.tree.map(np.asarray, compute_precisions(sigma, t, observed, missing))


def test_observed(patterns, both):
    sigma, t, result = both
    for p, seen in enumerate(patterns):
        index = np.flatnonzero(seen)
        part = sigma[np.ix_(index, index)]
        expected = np.zeros((WIDTH, WIDTH))
        expected[np.ix_(index, index)] = np.linalg.inv(part)
        scale = np.abs(expected).max() or 1
        np.testing.assert_allclose(result.observed[p] / scale, expected / scale, atol=1e-8)
        assert result.log_det_observed[p] == pytest.approx(np.linalg.slogdet(part)[1], abs=1e-7)
    np.testing.assert_allclose(result.sigma @ sigma, np.eye(WIDTH), atol=1e-6)
    np.testing.assert_allclose(result.t @ t, np.eye(WIDTH), atol=1e-6)
    assert result.log_det_t == pytest.approx(np.linalg.slogdet(t)[1])


def test_projections(patterns, both):
    sigma, _, result = both
    root = sigma @ result.white.T
    real = np.diag((np.arange(WIDTH) < D).astype(float))
    with jax.enable_x64(True):
        projections = np.asarray(result.projections)
    for p in range(len(patterns)):
        expected = root.T @ result.observed[p] @ root
        np.testing.assert_allclose(real @ projections[p] @ real, expected, atol=1e-6)


def test_complete_scatter(patterns, both):
    """The scatter is that of residuals whose missing values are replaced by expectations."""
    sigma, _, result = both
    rng = np.random.default_rng(2)
    n, scatter, expected = np.zeros(PADDED), np.zeros((PADDED, WIDTH, WIDTH)), np.zeros((D, D))
    for p, seen in enumerate(patterns):
        n[p] = p + 1
        residuals = rng.normal(size=(p + 1, WIDTH)) * np.pad(seen, (0, WIDTH - D))
        scatter[p] = residuals.T @ residuals
        projection = sigma @ result.observed[p]
        completed = residuals @ projection.T
        conditional = (sigma - projection @ sigma)[:D, :D]
        expected += (completed.T @ completed)[:D, :D] + n[p] * conditional
    with jax.enable_x64(True):
        total = np.asarray(result.complete_scatter(scatter, n))
    root = sigma @ result.white.T
    scale = np.abs(expected).max()
    np.testing.assert_allclose((root @ total @ root.T)[:D, :D] / scale, expected / scale, atol=1e-8)


def test_complete_tables_need_no_directions():
    missing = missing_columns(np.ones((1, D), bool), 1, WIDTH)
    assert missing.shape == (1, 0)
    with jax.enable_x64(True):
        result = compute_precisions(np.eye(WIDTH), np.eye(WIDTH), np.ones((1, WIDTH)), missing)
    assert result.directions.shape == (1, 0, WIDTH)
    np.testing.assert_allclose(result.observed[0], np.eye(WIDTH))
