"""The ArviZ export, under whichever ArviZ is installed."""

import subprocess
import sys

import numpy as np
import pytest

from nrprob.posterior import to_arviz


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    return {"weight": rng.normal(size=(4, 250, 3)), "n_clusters": rng.integers(1, 5, (4, 250))}


@pytest.mark.smoke
def test_names_dims_and_coords_arrive(draws):
    data = to_arviz(
        draws,
        sample_stats={"energy": np.zeros((4, 250))},
        observed_data={"x": np.arange(6.0)},
        dims={"weight": ["cluster"], "x": ["row"]},
        coords={"cluster": ["a", "b", "c"]},
    )
    weight = data["posterior"]["weight"]
    assert weight.dims == ("chain", "draw", "cluster")
    assert list(weight.coords["cluster"].values) == ["a", "b", "c"]
    np.testing.assert_array_equal(weight.values, draws["weight"])
    assert data["sample_stats"]["energy"].dims == ("chain", "draw")
    assert data["observed_data"]["x"].dims == ("row",)


@pytest.mark.smoke
def test_the_installed_arviz_reads_it(draws):
    import arviz

    data = to_arviz(draws, dims={"weight": ["cluster"]})
    table = arviz.summary(data, var_names=["weight"])
    assert len(table) == 3
    # Independent draws: no disagreement between chains, and mean and size as drawn.
    r_hat = arviz.rhat(data, var_names=["weight"])
    r_hat = getattr(r_hat, "dataset", r_hat)["weight"].values
    assert np.all(np.abs(r_hat - 1) < 0.02)


def test_container_is_what_this_arviz_makes(draws):
    import arviz
    import xarray

    data = to_arviz(draws)
    modern = int(arviz.__version__.split(".")[0]) >= 1
    assert isinstance(data, xarray.DataTree if modern else arviz.InferenceData)


def test_jax_arrays_and_empty_groups(draws):
    import jax.numpy as jnp

    data = to_arviz({"a": jnp.ones((2, 5))}, sample_stats={})
    assert data["posterior"]["a"].shape == (2, 5)
    groups = data.groups() if callable(data.groups) else data.groups
    assert not any("sample_stats" in group for group in groups)


def test_missing_axis_is_named(draws):
    with pytest.raises(ValueError, match=r"\(chain, draw\); 'w' has shape \(10,\); add"):
        to_arviz({"w": np.zeros(10)})


def test_disagreeing_draws_are_named(draws):
    with pytest.raises(ValueError, match=r"energy.*\(4, 249\)"):
        to_arviz(draws, sample_stats={"energy": np.zeros((4, 249))})


def test_import_and_export_are_quiet():
    code = """
import warnings
warnings.simplefilter("error", FutureWarning)
import numpy as np
from nrprob.posterior import to_arviz
to_arviz({"a": np.zeros((2, 5))})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
