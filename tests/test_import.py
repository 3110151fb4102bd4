"""Cost of imports: nothing slow until it is used, and no global state."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest
from public_names import STUB, stub

import nrprob

REPORT = """
import json, sys
print(json.dumps(sorted(m for m in sys.modules if "." not in m)))
"""


def loaded_by(statement: str) -> set[str]:
    """Top-level modules present in a fresh interpreter after `statement`."""
    done = subprocess.run(
        [sys.executable, "-c", statement + REPORT], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.smoke
def test_import_is_light():
    heavy = {"jax", "jaxlib", "numpyro", "arviz", "matplotlib", "pandas", "xarray", "sklearn"}
    assert not loaded_by("import nrprob") & (heavy | {"scipy", "numpy", "typer", "dask"})


def test_an_estimator_brings_no_plotting_or_sampling_library():
    loaded = loaded_by("from nrprob import CCIB")
    assert "jax" in loaded
    # scikit-learn imports pandas if it is installed, which we cannot avoid.
    ours = loaded - loaded_by("import jax, sklearn.base")
    assert not ours & {"arviz", "numpyro", "matplotlib", "pandas", "xarray", "optax", "typer"}


def test_jax_configuration_is_left_alone():
    statement = """
import jax
before = dict(jax.config.values)
from nrprob import CCIB, IB, IBSI, explore
after = dict(jax.config.values)
assert after == before, {k: after[k] for k in after if after[k] != before.get(k)}
"""
    loaded_by(statement)


@pytest.mark.parametrize("name", [n for n in nrprob.__all__ if n != "__version__"])
def test_every_public_name_loads(name):
    assert getattr(nrprob, name) is not None
    assert name in dir(nrprob)


@pytest.mark.smoke
def test_every_module_loads():
    names = [m.name for m in pkgutil.walk_packages(nrprob.__path__, "nrprob.")]
    assert "nrprob.methods.bayes.estimator" in names
    for name in names:
        importlib.import_module(name)


def test_type_checkers_see_the_public_names():
    assert STUB.read_text() == stub(), "run python tests/public_names.py"


def test_unknown_names_raise_attribute_error():
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = nrprob.nonesuch
    assert not hasattr(nrprob, "nonesuch")


def test_version_is_a_string():
    assert isinstance(nrprob.__version__, str)
    assert nrprob.__version__[0].isdigit()
