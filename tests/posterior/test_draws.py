"""Valid draws, and the ArviZ export, with any installed ArviZ."""

import builtins
import subprocess
import sys

import numpy as np
import pytest
import xarray
from scipy import stats

from nrprob.posterior import (
    align,
    coclustering,
    diagnose,
    draw_labels,
    expected_loss,
    label_free,
    n_clusters,
    point_estimate,
    relabel,
    to_arviz,
)
from nrprob.posterior.export import import_arviz


@pytest.fixture
def draws():
    rng = np.random.default_rng(0)
    return {"weight": rng.normal(size=(4, 250, 3)), "n_clusters": rng.integers(1, 5, (4, 250))}


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


def test_the_installed_arviz_reads_it(draws):
    arviz = import_arviz()

    data = to_arviz(draws, dims={"weight": ["cluster"]})
    table = arviz.summary(data, var_names=["weight"])
    assert len(table) == 3
    # Independent draws: no disagreement between chains, and mean and size as simulated.
    r_hat = arviz.rhat(data, var_names=["weight"])
    r_hat = getattr(r_hat, "dataset", r_hat)["weight"].values
    assert np.all(np.abs(r_hat - 1) < 0.02)


def test_an_import_that_meets_another_process_is_tried_again(monkeypatch):
    failures = [FileNotFoundError("daily_warning.tmp")]
    imported = builtins.__import__

    def once(name, *args, **kwargs):
        if name == "arviz" and failures:
            raise failures.pop()
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", once)
    assert import_arviz().__name__ == "arviz" and not failures


def test_container_is_what_this_arviz_makes(draws):
    arviz = import_arviz()

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
warnings.filterwarnings("error", message="Found dimension")
import numpy as np
from nrprob.posterior import to_arviz
to_arviz({"a": np.zeros((2, 5, 3))}, dims={"a": ["sample"]})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_groups_have_their_own_dimensions_and_draws(draws):
    """Variables of one name differ between groups; replicates are of every second draw."""
    y = xarray.DataArray(
        np.zeros((4, 125, 3, 2)), {"draw": range(0, 250, 2)}, ("chain", "draw", "observation", "m")
    )
    x = xarray.DataArray(np.zeros((3, 2)), {"m": ["a", "b"]}, ("observation", "m"))
    data = to_arviz(
        {"n_clusters": draws["n_clusters"]},
        log_likelihood={"x": xarray.DataArray(draws["weight"], dims=("chain", "draw", "row"))},
        posterior_predictive={"x": y},
        observed_data={"x": x},
        partition={"labels": draws["weight"]},
        dims={"labels": ["observation"]},
    )
    assert data["log_likelihood"]["x"].dims == ("chain", "draw", "row")
    assert data["observed_data"]["x"].dims == ("observation", "m")
    assert list(data["observed_data"]["m"].values) == ["a", "b"]
    assert data["posterior_predictive"]["x"].dims == ("chain", "draw", "observation", "m")
    assert data["posterior_predictive"]["draw"].values[-1] == 248
    assert data["partition"]["labels"].dims == ("chain", "draw", "observation")
    assert data["posterior"]["draw"].size == 250


def test_names_and_coordinates_have_the_size_of_the_array(draws):
    with pytest.raises(ValueError, match=r"got \['a', 'b'\] for posterior.*pass 1 names"):
        to_arviz(draws, dims={"weight": ["a", "b"]})
    with pytest.raises(ValueError, match=r"got 2 for 'a' of posterior\['weight'\], .* 3 entries"):
        to_arviz(draws, dims={"weight": ["a"]}, coords={"a": [1, 2]})


def test_named_dimensions_are_not_read_by_their_places(draws):
    weight = xarray.DataArray(draws["weight"], dims=("chain", "draw", "cluster"))
    data = to_arviz({"weight": weight.transpose("cluster", "draw", "chain")})
    np.testing.assert_array_equal(data["posterior"]["weight"].values, draws["weight"])
    with pytest.raises(ValueError, match=r"start with the axes \(chain, draw\); 'w' has shape"):
        to_arviz({"w": weight[0]})


# ---- valid draws --------------------------------------------------------------------------------

LABELS = np.random.default_rng(1).integers(0, 3, (2, 5, 4))
ARRAY = xarray.DataArray(LABELS, dims=("chain", "draw", "row"), name="z")
LENGTH = np.zeros((2, 5))

READERS = {
    "coclustering": coclustering,
    "point_estimate": lambda z: point_estimate(z, random_state=0),
    "expected_loss": lambda z: expected_loss([0, 0, 1, 1], z),
    "n_clusters": n_clusters,
    "vi": lambda z: label_free(z, [0, 0, 1, 1], pairs=0)["vi"],
    "relabel": lambda z: relabel(z, [0, 0, 1, 1]),
    "align": lambda z: align(z, [0, 0, 1, 1]),
}
FORMS = {
    "array": ARRAY,
    "transposed array": ARRAY.transpose("row", "draw", "chain"),
    "whole-number floats": LABELS.astype(np.float32),
    "unsigned": LABELS.astype(np.uint64),
    "data set of one variable": ARRAY.to_dataset(),
    "variable called labels": xarray.Dataset({"length": ARRAY[..., 0], "labels": ARRAY}),
    "container": to_arviz({"z": LABELS}),
    "container with labels": to_arviz({"length": LENGTH, "labels": LABELS}),
    "container with a partition": to_arviz({"length": LENGTH}, partition={"labels": LABELS}),
    "group of a container": to_arviz({"z": LABELS})["posterior"],
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("form", FORMS)
def test_containers_are_read_as_their_labels(form, reader):
    result, expected = READERS[reader](FORMS[form]), READERS[reader](LABELS)
    assert np.shape(result) == np.shape(expected)
    np.testing.assert_array_equal(np.nan_to_num(result, nan=-1), np.nan_to_num(expected, nan=-1))


def test_one_chain_keeps_its_axes():
    one = ARRAY[0].transpose("row", "draw")
    np.testing.assert_array_equal(relabel(one, LABELS[0, 0]), relabel(LABELS[0], LABELS[0, 0]))


def test_weights_and_traces_are_read_by_their_dimensions():
    weights = np.random.default_rng(2).random((2, 5))
    named = xarray.DataArray(weights, dims=("chain", "draw")).T
    np.testing.assert_array_equal(coclustering(ARRAY, named), coclustering(LABELS, weights))
    both = [
        diagnose(LABELS, [0, 0, 1, 1], pairs=0, extra={"w": w}).loc["w"] for w in (named, weights)
    ]
    assert both[0].equals(both[1])


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (xarray.Dataset({"a": ARRAY, "b": ARRAY}), r"got 'a', 'b'; .* as in draws\['a'\]"),
        (to_arviz({"a": LABELS, "b": LABELS}), r"got 'a', 'b'; .* as in draws.posterior\['a'\]"),
        (
            to_arviz({}, observed_data={"x": [1.0]}),
            "or 'posterior'; got .* without any",
        ),
        (ARRAY.rename(draw="step"), r"labels are 'draw', .*; got \('chain', 'step', 'row'\); ren"),
        (ARRAY.expand_dims("run"), r"and 1 of other names; got \('run', 'chain', 'draw', 'row'\)"),
        (ARRAY.astype(float) + 0.5, "must be integers; got dtype float64"),
    ],
)
def test_other_containers_are_refused(draws, message):
    with pytest.raises((ValueError, TypeError), match=message):
        coclustering(draws)


# ---- labels of samplers that sum them out -------------------------------------------------------


def test_labels_are_drawn_with_their_probabilities():
    p = np.array([[0.2, 0.0, 0.5, 0.3], [0.0, 1.0, 0.0, 0.0]])
    labels = draw_labels(np.tile(p, (4, 1000, 1, 1)), random_state=0)
    assert labels.shape == (4, 1000, 2) and (labels[..., 1] == 1).all()
    counts = np.bincount(labels[..., 0].ravel(), minlength=4)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2, 3]], 4000 * p[0, [0, 2, 3]]).pvalue > 1e-4
    # Every label is sampled separately: adjacent draws, chains and samples are independent.
    first = labels[..., 0] == 2
    assert abs(np.corrcoef(first[:, 1:].ravel(), first[:, :-1].ravel())[0, 1]) < 0.07
    np.testing.assert_array_equal(draw_labels(np.tile(p, (4, 1000, 1, 1)), random_state=0), labels)


def test_components_that_switch_are_told_apart_through_drawn_labels():
    p = np.array([[0.9, 0.1]] * 10 + [[0.1, 0.9]] * 10)
    both = np.stack([p, p[:, ::-1]] * 50)  # whose labels switch between draws
    named = xarray.DataArray(both, dims=("draw", "row", "component"))
    labels = draw_labels(named.transpose("row", "component", "draw"), random_state=0)
    np.testing.assert_array_equal(labels, draw_labels(both, random_state=0))
    order = align(labels, random_state=0, n_components=2)
    aligned = np.take_along_axis(both, order[:, None], axis=-1)
    np.testing.assert_allclose(aligned, np.broadcast_to(p, both.shape))


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([[0.5, 0.5]], r"\(draw, sample, component\); got dtype float64 and shape \(1, 2\)"),
        ([[["a", "b"]]], "got dtype <U1"),
        ([[[0.5, 0.6]]], "sum to 1 .* sums from 1.1 to 1.1; pass scipy.special.softmax"),
        ([[[1.5, -0.5]]], "got values from -0.5 to 1.5"),
        ([[[np.nan, 1.0]]], "got values from nan"),
        (np.zeros((0, 2, 2)), r"shape \(0, 2, 2\)"),
    ],
)
def test_what_are_no_probabilities(p, message):
    with pytest.raises(ValueError, match=message):
        draw_labels(p)


def test_what_is_no_mapping_is_refused():
    draws = np.zeros((2, 3))
    for name in ("observed_data", "coords"):
        with pytest.raises(TypeError, match=f"{name} must be a mapping"):
            to_arviz({"x": draws}, **{name: np.array([1.0, 2.0])})
