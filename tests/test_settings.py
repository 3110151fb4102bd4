"""Settings of all computations, independent of the settings of the caller."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nrprob.settings import standard


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_products_have_the_precision_of_their_factors(precision):
    """An accelerator would round factors; a CPU can only test the requested precision."""
    x = np.ones((4, 4), np.float32)
    with jax.default_matmul_precision(precision):
        with standard():
            for product in (lambda a: a @ a, lambda a: jnp.einsum("ij,kj->ik", a, a)):
                text = jax.jit(product).lower(x).as_text()
                assert "dot_general" in text
                assert text.count("HIGHEST") == 2
        assert jax.config.jax_default_matmul_precision == precision
