"""Sums over a short axis, compared with NumPy on both sides of each threshold."""

import jax
import numpy as np
import pytest

from nrprob.statistics import sums


@pytest.mark.parametrize("m", [1, sums._MAX_UNROLLED, sums._MAX_UNROLLED + 1])
def test_squares(m):
    x = np.random.default_rng(0).normal(size=(m, 3, 5))
    with jax.enable_x64(True):
        result = jax.jit(sums.sum_of_squares)(x)
    np.testing.assert_allclose(result, (x**2).sum(0), rtol=1e-14)


@pytest.mark.parametrize("b", [4, sums._MATMUL_ROWS, sums._MATMUL_ROWS + 1])
@pytest.mark.parametrize("wide", [True, False])
def test_products(b, wide):
    rng = np.random.default_rng(0)
    weights, x = rng.normal(size=(3, 2, b if wide else 1)), rng.normal(size=(3, b))
    with jax.enable_x64(True):
        result = jax.jit(sums.sum_of_products)(weights, x)
    assert result.shape == (2, b)
    np.testing.assert_allclose(result, (weights * x[:, None]).sum(0), rtol=1e-13, atol=1e-13)
