"""Programs of small data are compiled quickly, others with full optimisation."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nrprob.engines import programs
from nrprob.engines.programs import compiler_options_for, jit_by_size

pytestmark = pytest.mark.usefixtures("cpu")

FEW, MANY = np.zeros(100), np.zeros(programs._SMALL_SIZE + 1)


@pytest.fixture
def told(monkeypatch):
    """Fast compiler options, independent of the release of XLA."""
    monkeypatch.setattr(programs, "_FAST_OPTIONS", {"xla_cpu_enable_fast_min_max": False})
    return programs._FAST_OPTIONS


@contextlib.contextmanager
def _disabled(really):
    """Set the JAX option that disables most optimisations."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", really)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def test_small_ones_on_a_cpu_are_compiled_fast(told, monkeypatch):
    assert compiler_options_for(FEW, [FEW, np.float64(1)], "a name") == told
    assert compiler_options_for(FEW, {"rows": MANY}) is None
    monkeypatch.setattr(programs, "on_cpu", lambda *arrays: False)
    assert compiler_options_for(FEW) is None


def test_sizes_decide_which_of_two_programs_runs(told):
    @jit_by_size("power")
    def total(x, *, power):
        """Return its name."""
        return (x**power).sum()

    assert total.__doc__ == "Return its name." and total.__name__ == "total"
    assert total._optimised is not total._fast
    assert float(total(FEW + 1, power=2)) == 100
    assert total._fast._cache_size() == 1 and total._optimised._cache_size() == 0
    assert float(total(MANY + 1, power=2)) == len(MANY)
    assert float(total(FEW + 2, power=2)) == 400  # nothing is compiled again
    assert total._fast._cache_size() == 1 and total._cache_size() == 2
    assert "total" in total.lower(FEW, power=2).as_text()


def test_within_another_program_it_is_a_part_of_that(told):
    @jit_by_size()
    def twice(x):
        return 2 * x

    result = jax.jit(lambda x: twice(x) + 1)(jnp.ones(3))
    np.testing.assert_array_equal(result, 3)
    assert twice._fast._cache_size() == 0
    np.testing.assert_array_equal(jax.vmap(twice)(jnp.ones((2, 3))), 2)


@pytest.mark.parametrize("less", [False, True])
def test_who_asked_for_less_is_left_with_that(less, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    name = "xla_backend_optimization_level"
    with _disabled(less):
        assert (programs._fast_compile_options() or {}).get(name) == (None if less else 1)
    monkeypatch.setenv("XLA_FLAGS", f"--{name}=2 --xla_cpu_use_fusion_emitters=true")
    assert programs._fast_compile_options() is None


def test_xla_knows_what_it_is_told(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    with _disabled(False):
        monkeypatch.setattr(programs, "_FAST_OPTIONS", programs._fast_compile_options())
    assert programs._FAST_OPTIONS
    result = jit_by_size()(lambda x: jnp.sin(x) * 2 + x)(FEW + 1)
    np.testing.assert_allclose(
        result, np.sin(1) * 2 + 1, rtol=1e-12 if result.dtype == float else 1e-6
    )
