"""Log-gamma functions, compared with SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from nrprob.statistics.gammas import log_gamma, log_multigamma

NUMBERS = np.concatenate([np.logspace(-12, 15, 4001), np.linspace(0.01, 30, 4001)])


def test_it_is_exact_to_rounding():
    with jax.enable_x64(True):
        result = jax.jit(log_gamma)(NUMBERS)
    # Below 7 it is a difference of numbers up to 23, each with a few rounding errors, as in SciPy.
    np.testing.assert_allclose(result, special.gammaln(NUMBERS), 5e-15, 8 * np.spacing(23.0))


def test_in_single_precision_nothing_overflows():
    numbers = np.logspace(-30, 30, 1001, dtype=np.float32)
    result = jax.jit(log_gamma)(numbers)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, special.gammaln(numbers.astype(float)), rtol=1e-5, atol=1e-5)


@given(st.floats(1e-3, 1e6))
def test_it_is_that_of_the_number_above_less_a_logarithm(x):
    with jax.enable_x64(True):
        above, here = np.asarray(jax.jit(log_gamma)(np.asarray([x + 1, x])))
    assert above - here == pytest.approx(np.log(x), rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("m", [1, 2, 5, 30])
def test_several_dimensions(m):
    x = (m - 1) / 2 + np.logspace(-6, 4, 101)
    with jax.enable_x64(True):
        result = np.asarray(jax.jit(log_multigamma, static_argnums=1)(x, m))
    np.testing.assert_allclose(result, [special.multigammaln(v, m) for v in x], 1e-12, 1e-14)
