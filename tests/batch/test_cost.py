"""Memory estimates of model files, before any data are generated or read, and their limits."""

import re
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from places import MODELS
from typer.testing import CliRunner

from nrprob import batch, datasets
from nrprob.batch import cost, executor, inputs, registry, tables
from nrprob.batch.cost import available_memory, estimate, refuse_large
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import expand
from nrprob.batch.preflight import check
from nrprob.cli import app
from nrprob.datasets import loaders, sizes
from nrprob.datasets.loaders import SHIPPED
from nrprob.exceptions import DataUnavailable, InputError

COUNTS = np.repeat(np.eye(4, dtype=int), 10, axis=0).tolist()
LABELS = ["a", "b", "c", "d"]
CROSSED = {"X": COUNTS, "labels": np.repeat(LABELS, 10).tolist()}
DRAWN = {
    "make_binary_partitions": {"n_samples": 30, "dims": [6, 4]},
    "make_cell_counts": {"n_samples": 60, "n_genes": 40},
    "make_competing_pairs": {},
    "make_cross_partition": {},
    "make_crossed_counts": CROSSED | {"known": LABELS[:2], "sought": LABELS[2:], "n_samples": 12},
    "make_dialect_counts": CROSSED | {"n_dialects": 2, "dropped": 0.0},
    "make_essential_sources": {},
    "make_four_components": {"n_samples": 30},
    "make_gaussian_views": {"n_samples": 30, "dims": [3, 2, 1]},
    "make_informed_views": {"n_samples": 30, "n_views": 3, "n_features": 2},
    "make_multinomial_2d": {"n_samples": 30, "n_clusters": 2, "n_draws": 50},
    "make_oscillating_counts": {},
    "make_planar_shapes": {"n_samples": 30},
}


def planned(methods=({"name": "ib"},), **content):
    return expand(read_model({"methods": [*methods], **content}))


def of_generator(n_samples, *methods, **content):
    data = {"generator": "make_four_components", "parameters": {"n_samples": n_samples}}
    return planned(methods or ({"name": "ib"},), **{"data": data | content})


def assert_like(plan, X):
    """The estimate of the data is the size of the rows, or a slightly larger bound."""
    result = estimate(plan, methods=False)
    assert (result.samples, result.features) == X.shape
    real = tables.size_in_memory(X)
    assert real <= result.bytes <= 4 * real + 100


def test_every_generator_is_tried():
    assert {*DRAWN} == {name for name in dir(datasets) if name.startswith("make_")}


@pytest.mark.parametrize("name", DRAWN)
def test_sizes_of_generators_are_those_of_what_they_draw(name):
    plan = planned(data={"generator": name, "parameters": DRAWN[name]})
    assert_like(plan, inputs.load_data(plan.model).X)


def test_counts_of_cells_have_fewer_entries_than_molecules():
    parameters = {"n_samples": 50, "n_genes": 3000, "mean_total": 200.0}
    plan = planned(data={"generator": "make_cell_counts", "parameters": parameters})
    assert_like(plan, inputs.load_data(plan.model).X)


@pytest.mark.parametrize("name", [*sizes._KNOWN, "ecoli", "cmu_faces_32x30"])
def test_sizes_of_sets_are_those_of_what_is_loaded(name):
    plan = planned(data={"loader": name})
    if name not in SHIPPED and loaders._find_folder(name) is None:
        pytest.skip("no folder of NRPROB_DATA has it")
    try:
        X = inputs.load_data(plan.model).X
    except DataUnavailable as error:
        pytest.skip(str(error))
    assert_like(plan, X)


def test_sizes_of_files_are_those_of_what_is_read(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 3)), columns=list("abc")).assign(kind="x")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_csv(tmp_path / "rows.tsv", sep="\t", index=False)
    np.savez(tmp_path / "rows.npz", X=np.ones((40, 3), np.float32), y=np.arange(40))
    counts = scipy.sparse.random_array((40, 30), density=0.2, format="csr", rng=rng)
    scipy.sparse.save_npz(tmp_path / "counts.npz", counts)
    for name in ("rows.csv", "rows.tsv", "rows.npz", "counts.npz"):
        labels = {} if name.endswith("npz") else {"label_columns": ["kind"]}
        plan = planned(data={"file": str(tmp_path / name), **labels})
        result, X = estimate(plan, methods=False), inputs.load_data(plan.model).X
        # The lines of a table include the first, with the column names.
        assert result.samples - X.shape[0] in (0, 1) and result.features == X.shape[1]
        assert 0 <= result.bytes - tables.size_in_memory(X) < 200


def test_sizes_of_binary_tables_are_those_of_what_is_read(tmp_path):
    pytest.importorskip("pyarrow")
    pd.DataFrame(np.ones((40, 3)), columns=list("abc")).to_parquet(tmp_path / "rows.parquet")
    plan = planned(data={"file": str(tmp_path / "rows.parquet"), "drop": ["a"]})
    assert_like(plan, inputs.load_data(plan.model).X)


def test_sizes_of_annotated_data_are_those_in_the_file(tmp_path):
    path = tmp_path / "cells.h5ad"
    X = scipy.sparse.csr_array(np.eye(20, 5))
    with h5py.File(path, "w") as file:
        file["X"] = np.ones((20, 5), np.float32)
    assert_like(planned(data={"file": str(path)}), np.ones((20, 5), np.float32))
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs["shape"] = X.shape
        group["data"], group["indices"], group["indptr"] = X.data, X.indices, X.indptr
    assert_like(planned(data={"file": str(path)}), X)


def test_parameters_that_a_generator_refuses_have_no_size():
    for n_samples in (-5, 2.5, "many", np.inf):
        assert estimate(of_generator(n_samples)).samples is None
    unknown = planned(data={"generator": "make_nothing"})
    assert str(estimate(unknown)) == "data of unknown size; 1 fit on 1 data set"


LARGE = """
[data]
generator = "make_binary_partitions"
parameters = { n_samples = 100_000_000, dims = [1000, 1000] }
[[methods]]
name = "ib"
n_clusters = 2
"""


@pytest.mark.parametrize("command", ["check", "run"])
def test_data_beyond_the_memory_are_refused_before_they_are_drawn(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("large.toml").write_text(LARGE)
    monkeypatch.setattr(tables, "generate_set", lambda *_: pytest.fail("drawn"))
    said = CliRunner().invoke(app, [command, "large.toml"])
    assert said.exit_code == 2, said.output
    *first, last = said.output.splitlines()
    shown = "100000000 samples x 2000 features, 1.6 TB; 1 fit on 1 data set; largest array 1.6 TB"
    assert first == [f"large.toml: {shown}"] * (command == "check")
    assert "the fits need more memory than the machine has; 1.6 TB of data" in last
    assert [*Path().iterdir()] == [Path("large.toml")]
    with pytest.raises(InputError, match="more memory than the machine has") as caught:
        batch.run("large.toml")
    assert str(caught.value).count("; ") == 2


def test_what_is_too_large_may_be_allowed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost, "available_memory", lambda: 100)
    text = LARGE.replace("100_000_000", "30").replace("1000", "4")
    Path("small.toml").write_text(text.replace('"ib"', '"cop_kmeans"'))
    for command in ("check", "run"):
        assert CliRunner().invoke(app, [command, "small.toml"]).exit_code == 2
        said = CliRunner().invoke(app, [command, "small.toml", "--allow-large"])
        assert said.exit_code == 0, said.output
    assert batch.run("small.toml", tmp_path / "again", allow_large=True).sizes["cell"] == 1


@pytest.mark.parametrize(
    ("method", "largest"),
    [
        ({"name": "semi_supervised_spectral", "n_clusters": 2}, 8 * 10**12),
        ({"name": "sklearn.cluster.AgglomerativeClustering", "n_clusters": 2}, 8 * 10**12),
        ({"name": "naci", "n_clusters": 2}, 2 * 8 * 10**6),  # merges a sample of 1,000
        ({"name": "naci", "n_clusters": 2, "max_exact": 10**6}, 8 * 10**12),
        (
            {"name": "coala", "n_clusters": 2, "approx": "subsample", "n_subsample": 10**4},
            8 * 10**8,
        ),
        ({"name": "sklearn.cluster.KMeans", "n_clusters": 5}, 5 * 8 * 10**6),
        ({"name": "ib", "n_clusters": 5, "n_init": 1}, 5 * 8 * 10**6),
        ({"name": "ib", "n_clusters": 5, "n_init": 10}, 10 * 5 * 8 * 10**6),
        ({"name": "ib", "n_clusters": 5, "n_init": 10**6}, 4 * 10**12),  # labels of all restarts
        ({"name": "mdl_mixture", "num_samples": 10**6, "num_chains": 1}, 8 * 10**12),
    ],
)
def test_large_arrays_of_methods_count(method, largest):
    plan = of_generator(10**6, method)
    assert estimate(plan).largest == largest
    if largest > 10**12:
        with pytest.raises(InputError, match="an array of .* TB"):
            refuse_large(plan)


def test_results_of_all_fits_count():
    save = {"memberships": True}
    method = {"name": "ib", "n_clusters": 3, "n_init": 1}
    plan = planned([method], data=of_generator(1000).model.data, runs=500, save=save)
    assert estimate(plan).largest == 500 * 1000 * (4 + 3 * 8)


def test_every_method_declares_its_arrays():
    for method in registry.METHODS.values():
        assert method.capabilities.arrays
        assert all(re.fullmatch("[nmkrds]+", a) for a in method.capabilities.arrays)


def test_data_sets_that_are_kept_are_few_bytes(monkeypatch):
    data = {"generator": "make_four_components", "repeats": 5, "parameters": {"n_samples": 50}}
    plan = planned(data=data)
    assert estimate(plan).bytes == 5 * 800
    monkeypatch.setattr(executor, "MAX_CACHED_BYTES", 1700)
    monkeypatch.setattr(cost, "MAX_CACHED_BYTES", 1700)
    assert estimate(plan).bytes == 1700
    kept = executor.DataSets(plan.model)
    for cell in plan.cells:
        assert kept(cell).X.shape == (50, 2)
        assert kept._bytes() <= 1700


def test_published_model_files_fit_into_memory():
    assert 2**20 < available_memory()
    for path in sorted(MODELS.glob("*.toml"))[::10]:
        assert estimate(expand(read_model(path))).needed < 2**30


def test_a_name_that_is_no_generator_is_refused_by_name():
    plan = planned(data={"generator": "bayes_precision", "parameters": {"m": 4, "n_clusters": 2}})
    assert estimate(plan, methods=False).samples is None
    with pytest.raises(InputError, match="unknown data.generator; 'bayes_precision'"):
        check(plan)
