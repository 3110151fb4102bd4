"""Programs are stored on disk, and loaded where everything that determines them is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from nrprob.engines import stored_programs
from nrprob.engines.programs import SizedJit

X = np.arange(6.0).reshape(3, 2)


@pytest.fixture
def store(tmp_path, monkeypatch, cpu):
    """The folder of the stored programs, empty; JAX's cache stores nothing itself."""
    names = ["jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"]
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, [str(tmp_path), 1e9], strict=True):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    monkeypatch.setattr(stored_programs, "_not_new", set())
    yield tmp_path / "nrprob"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def add_one(x):
    """A function of the user, in a module that can be imported."""
    return x + 1


class Traced:
    """A function that counts how often it is traced, and poses as one of a module."""

    def __init__(self, module="nrprob.made_up"):
        self.module = module
        self.count = 0

    def anew(self):
        """The function as another process would have it."""

        def power_of(x, power, *, shift=None):
            self.count += 1
            root = jnp.linalg.cholesky(x.T @ x + jnp.eye(x.shape[1]))
            return {"value": x**power, "shift": shift, "root": root}

        power_of.__module__, power_of.__qualname__ = self.module, "power_of"
        return SizedJit(power_of, ("power",), limit=100)


def test_a_program_is_traced_once(store):
    traced = Traced()
    expected = traced.anew()(X, 2, shift=1.0)
    assert traced.count == 1 and len(list(store.iterdir())) == 1
    again = traced.anew()
    for _ in range(2):
        found = again(X, 2, shift=1.0)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        assert not any(leaf.committed for leaf in jax.tree.leaves(found))
    np.testing.assert_array_equal(again(X + 1, power=2, shift=0.5)["value"], (X + 1) ** 2)
    assert traced.count == 2 and again._cache_size() == 2  # keywords may have other defaults
    np.testing.assert_array_equal(again(X + 1, 2, shift=3.0)["shift"], 3)
    assert traced.count == 2
    SizedJit.forget()
    assert again._cache_size() == 0


@pytest.mark.parametrize(
    "changed",
    [
        lambda f, _: f(X, 3),
        lambda f, _: f(X[:2], 2),
        lambda f, _: f(jnp.asarray(X, np.float32), 2),
        lambda f, _: f(X, 2, shift=np.ones(())),
        lambda f, _: f(X, 2, shift=1),
        lambda f, patch: (patch.setattr(stored_programs, "_digest_of_sources", str), f(X, 2)),
        lambda f, patch: (patch.setattr(stored_programs, "_settings", str), f(X, 2)),
    ],
)
def test_whatever_determines_a_program_is_in_its_name(store, changed, monkeypatch):
    traced = Traced()
    traced.anew()(X, 2)
    changed(traced.anew(), monkeypatch)
    assert traced.count == 2 and len(list(store.iterdir())) == 2


@pytest.mark.parametrize("anew", [True, False])
def test_precision_determines_a_program(store, anew):
    traced = Traced()
    one = traced.anew()
    for wide in (False, True, False, True):
        with jax.enable_x64(wide):
            value = (traced.anew() if anew else one)(X, 2)["value"]
        assert value.dtype == (np.float64 if wide else np.float32)
    assert traced.count == 2


def test_functions_of_others_are_not_stored(store):
    foreign = Traced("somebody.else")
    for _ in range(2):
        np.testing.assert_array_equal(foreign.anew()(X, 2)["value"], X**2)
    assert foreign.count == 2 and not store.exists()

    def apply_to(x, function):
        return function(x)

    apply_to.__module__, apply_to.__qualname__ = "nrprob.made_up", "apply_to"
    for function in (add_one, lambda x: x + 1):
        result = SizedJit(apply_to, ("function",), 100)(X, function=function)
        np.testing.assert_array_equal(result, X + 1)
    assert not store.exists()
    SizedJit(apply_to, ("function",), 100)(X, function=np.shape)
    assert len(list(store.iterdir())) == 1


def test_a_damaged_file_is_replaced(store):
    traced = Traced()
    traced.anew()(X, 2)
    (path,) = store.iterdir()
    whole = path.read_bytes()
    for content in (b"", whole[:100], whole[:-20]):
        path.write_bytes(content)
        before = traced.count
        for _ in range(2):
            np.testing.assert_array_equal(traced.anew()(X, 2)["value"], X**2)
        assert traced.count == before + 1  # the second loads what the first has stored


def test_a_program_that_jax_has_read_is_not_written(store):
    # XLA would write it without the functions that it calls.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    traced = Traced()
    traced.anew()(X, 2)
    (path,) = store.iterdir()
    path.unlink()
    jax.clear_caches()
    for _ in range(2):
        np.testing.assert_array_equal(traced.anew()(X, 2)["value"], X**2)
    assert not path.exists()


def test_a_program_that_jax_has_in_memory_is_not_written(store, monkeypatch):
    # It may come from JAX's cache, though nothing is read when it is compiled again.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    traced = Traced()
    with monkeypatch.context() as patch:
        patch.setattr(stored_programs, "folder", lambda: None)
        traced.anew()(X, 2)
        jax.clear_caches()
        one = traced.anew()
        one(X, 2)
    np.testing.assert_array_equal(one(X, 2)["value"], X**2)
    assert traced.count == 2 and not store.exists()


def test_without_the_cache_or_when_jax_debugs_nothing_is_stored(store):
    for name, value in [("jax_debug_nans", True), ("jax_compilation_cache_dir", None)]:
        before = getattr(jax.config, name)
        jax.config.update(name, value)
        traced = Traced()
        traced.anew()(X, 2)
        jax.config.update(name, before)
        assert traced.count == 1 and not store.exists()
