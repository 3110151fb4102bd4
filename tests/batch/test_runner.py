"""Batch runs: plans, stored results, and kills."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import xarray
from interrupted import interrupted_after
from made_up_results import assert_same_results
from slowly import slowly

from nrprob import CCIB, CondEns, MixtureEM, batch, files, metrics
from nrprob.batch import executor, fit_files, fit_result, plan, store
from nrprob.batch.modelfile import read_model
from nrprob.datasets import make_binary_partitions
from nrprob.engines import sharding
from nrprob.exceptions import DataUnavailable, InputError

SPEC = {
    "title": "a sweep",
    "known": "partition_0",
    "runs": 2,
    "data": {
        "generator": "make_binary_partitions",
        "parameters": {"n_clusters": 2},
        "cases": [{"n_samples": 60, "dims": [6, 4]}, {"n_samples": 50, "dims": [4, 4]}],
        "repeats": 2,
        "seed": 5,
    },
    "methods": [
        {
            "name": "ccib",
            "title": "weighted",
            "n_clusters": "data.n_clusters",
            "n_init": 2,
            "grid": {"coordination_weight": [0.5, 1.0]},
        },
        {"name": "ccib", "title": "tree", "n_clusters": 2, "solver": "agglomerative"},
    ],
    "measures": {
        "precision of B": {"metric": "matched_accuracy", "labeling": "partition_1"},
        "NMI of A": {
            "metric": "normalized_mutual_information",
            "labeling": "partition_0",
            "parameters": {"normalizer": "truth"},
        },
    },
    "save": {"memberships": True},
}
CELLS = 2 * 2 * 2 * 3
# One fit, of a method that compiles nothing.
ONE = {
    "data": {"generator": "make_binary_partitions",
             "parameters": {"n_samples": 30, "dims": [4, 4]}},
    "methods": [{"name": "cop_kmeans", "n_clusters": 2}],
}  # fmt: skip


def changed(**changes):
    spec = json.loads(json.dumps(SPEC))
    for path, value in changes.items():
        *keys, last = path.split("__")
        at = spec
        for key in keys:
            at = at[int(key) if key.isdigit() else key]
        at[last] = value
    return spec


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run: its folder and its results."""
    folder = tmp_path_factory.mktemp("done") / "run"
    return folder, batch.run(SPEC, folder)


# the plan


def test_cells_are_all_combinations():
    cells = plan.expand(read_model(SPEC)).cells
    assert len(cells) == len({c.id for c in cells}) == CELLS
    seen = {
        (c.case, c.repeat, c.run, c.method, c.parameters.get("coordination_weight")) for c in cells
    }
    assert len(seen) == CELLS
    for cell in cells:
        assert cell.seed == 5 + cell.repeat
        assert cell.parameters["random_state"] == cell.run
        assert cell.parameters["n_clusters"] == 2


def test_identifiers_follow_from_what_determines_a_result():
    first = {c.id for c in plan.expand(read_model(SPEC)).cells}
    for cosmetic in (
        {"title": "other", "description": "words"},
        {"methods__0__title": "renamed"},
        {"methods": SPEC["methods"][::-1]},
        {"tables": [{"name": "a"}]},
    ):
        assert {c.id for c in plan.expand(read_model(changed(**cosmetic))).cells} == first
    for essential in (
        {"known": "partition_1"},
        {"data__seed": 100},
        {"data__parameters__p_noise": 0.2},
        {"methods__0__n_init": 3, "methods__1__cooling": 1.5},
        {"data__binarize": 0.5},
        {"data__tfidf": True},
        {"measures__precision of B__metric": "purity"},
        {"save__memberships": False},
    ):
        assert not {c.id for c in plan.expand(read_model(changed(**essential))).cells} & first
    fewer = plan.expand(read_model(changed(methods__0__runs=1))).cells
    assert len(fewer) == CELLS - 8
    assert {c.id for c in fewer} < first
    more = {c.id for c in plan.expand(read_model(changed(runs=3, data__repeats=3))).cells}
    assert first < more


def test_a_changed_data_file_is_other_data(tmp_path):
    spec = {"data": {"file": str(tmp_path / "a.csv")}, "methods": [{"name": "ib"}]}
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    one = plan.expand(read_model(spec)).cells[0].id
    (tmp_path / "a.csv").write_text("x,y\n1,3\n")
    assert plan.expand(read_model(spec)).cells[0].id != one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__grid": {"p_noise": [0.1] * 400, "n": [1] * 400}}, "many data sets; .* 320000; "),
        ({"runs": 100_000, "data__repeats": 100_000}, "many fits; .* make 60000000000; ask for at"),
        ({"methods__0__grid": {"cooling": [2.0] * 1_000, "tol": [0.1] * 1_000}}, "8000008; ask"),
        ({"methods__0__random_state": "x"}, r"methods\.0\.random_state = 'x'; choose another"),
        ({"methods__0__random_state": 2**32}, r"methods\.0\.random_state = 4294967296; choose"),
        ({"methods__0__random_state": -1}, r"methods\.0\.random_state = -1; choose another"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_listed(monkeypatch, changes, message):
    monkeypatch.setattr(plan, "Experiment", lambda *_: {}["listed"])
    if "data__grid" in changes:
        monkeypatch.setattr(plan, "_combinations", lambda *_: {}["listed"])
    with pytest.raises(InputError, match=message):
        plan.expand(read_model(changed(**changes)))


def test_batches_hold_every_cell_once_and_do_not_depend_on_what_is_done():
    spec = changed(data__repeats=30)
    one = plan.expand(read_model(spec))
    assert sorted(c.id for b in one.batches for c in b.cells) == sorted(c.id for c in one.cells)
    assert max(len(b.cells) for b in one.batches) == plan.BATCH
    again = plan.expand(read_model(spec))
    assert [b.id for b in one.batches] == [b.id for b in again.batches]
    # Settings that differ only in continuous parameters share batches, and so a program.
    assert any(
        len({c.parameters.get("coordination_weight") for c in b.cells}) > 1 for b in one.batches
    )


def test_a_parameter_that_the_data_do_not_have():
    with pytest.raises(InputError, match=r"methods\.0\.n_clusters = 'data\.n_cluster'; did you"):
        plan.expand(read_model(changed(methods__0__n_clusters="data.n_cluster")))


# results


def test_results_are_those_of_the_estimators(done):
    folder, results = done
    assert results.sizes["cell"] == CELLS == results.attrs["n_planned"]
    for i in range(CELLS):
        cell = results.isel(cell=i)
        parameters = json.loads(str(cell["parameters"].values))
        X, labels = make_binary_partitions(
            **json.loads(str(cell["data_parameters"].values)), random_state=int(cell["data_seed"])
        )
        model = CCIB(**parameters).fit(X, known=labels[:, 0])
        n = len(X)
        np.testing.assert_array_equal(cell["labels"][:n], model.labels_)
        assert (cell["labels"][n:] == -1).all()
        # Two programs may round differently, and stop one iteration apart.
        np.testing.assert_allclose(cell["membership"][:n], model.membership_, atol=1e-5)
        np.testing.assert_allclose(cell["objective"], model.objective_, rtol=1e-9)
        trace = cell["objective_trace"].values
        trace = trace[~np.isnan(trace)]
        n_shared = min(len(trace), len(model.objective_trace_))
        assert n_shared > 0
        np.testing.assert_allclose(trace[:n_shared], model.objective_trace_[:n_shared], rtol=1e-9)
        assert abs(int(cell["n_iter"]) - model.n_iter_) <= 1
        assert bool(cell["converged"]) == model.converged_
        score = cell["score"].sel(measure="precision of B")
        assert float(score) == metrics.matched_accuracy(model.labels_, labels[:, 1])
        score = cell["score"].sel(measure="NMI of A")
        assert float(score) == metrics.normalized_mutual_information(
            model.labels_, labels[:, 0], normalizer="truth"
        )


@pytest.mark.smoke
def test_results_say_how_they_were_made(done):
    folder, results = done
    assert (results["seconds"] > 0).all()
    compiled = results["compile_seconds"].where(results["method"] == "weighted", drop=True)
    assert (compiled > 0).all()
    assert set(results["dtype"].values) == {"float64"}
    assert "jax" in json.loads(str(results["versions"].values[0]))
    assert set(results["coordination_weight"].dropna("cell").values) == {0.5, 1.0}
    assert set(results["dims"].values) == {"[6, 4]", "[4, 4]"}
    assert results.attrs["title"] == "a sweep"
    with xarray.open_dataset(folder / "results.nc") as stored:
        xarray.testing.assert_equal(stored.load(), results)


def test_texts_of_later_files_are_stored_whole(tmp_path):
    parts = []
    for name, text in (("a", ""), ("b", "columns of X are nearly collinear")):
        content = store.netcdf_bytes(xarray.Dataset({"warnings": ("cell", [text])}))
        path = files.sealed(tmp_path / f"{name}.nc", content)
        path.write_bytes(content)
        parts.append(store._read_netcdf(path))
    content = store.netcdf_bytes(store._concatenate(parts))
    path = files.sealed(path, content)
    path.write_bytes(content)
    assert [*store._read_netcdf(path)["warnings"].values] == ["", text]


def test_what_is_finished_is_not_done_again(done, monkeypatch):
    folder, results = done
    monkeypatch.setattr(executor.Executor, "fit", lambda *_: pytest.fail("computed again"))
    assert_same_results(batch.run(SPEC, folder), results)


@pytest.mark.slow
@pytest.mark.contract
def test_more_runs_of_the_same_file_keep_what_there_is(tmp_path, monkeypatch):
    fewer = changed(runs=1, methods__0__grid={"coordination_weight": [0.5]})
    batch.run(fewer, tmp_path)
    counted = []
    fit = executor.Executor.fit
    monkeypatch.setattr(
        executor.Executor, "fit", lambda self, cells: counted.extend(cells) or fit(self, cells)
    )
    results = batch.run(SPEC, tmp_path)
    assert len(counted) == CELLS - 8
    assert results.sizes["cell"] == CELLS
    # Fewer again: the others stay in the folder, but are not results of this file.
    assert batch.run(fewer, tmp_path).sizes["cell"] == 8
    assert len(counted) == CELLS - 8


@pytest.mark.slow
@pytest.mark.contract
def test_measures_may_change_places_between_two_runs(tmp_path):
    data = ONE["data"] | {"repeats": 2}
    of = [{"metric": "purity", "labeling": f"partition_{i}"} for i in (0, 1)]
    one = ONE | {"data": data, "measures": {"a": of[0], "b": of[1]}}
    other = ONE | {"data": data, "measures": {"b": of[1], "a": of[0]}}
    results = batch.run(one, tmp_path / "one")
    batch.run(one, tmp_path / "both", only=["repeat=0"])
    mixed = batch.run(other, tmp_path / "both")
    assert len(store.Store(tmp_path / "both").parts()) == 2
    xarray.testing.assert_equal(mixed["score"].sel(measure=["a", "b"]), results["score"])


def test_a_method_may_be_for_some_data_only():
    every = plan.expand(read_model(SPEC)).cells
    for where, sizes in (
        ({"dims.0": 4}, {50}),
        ([{"n_samples": 50}, {"dims": [6, 4]}], {50, 60}),
        ([{"n_samples": 50, "dims.0": 6}, {"n_samples": 60}], {60}),
    ):
        cells = plan.expand(read_model(changed(methods__1__where=where))).cells
        assert {c.data["n_samples"] for c in cells if c.method == "tree"} == sizes
        kept = {c.id for c in every if c.method != "tree" or c.data["n_samples"] in sizes}
        assert {c.id for c in cells} == kept
    with pytest.raises(InputError, match=r"methods\.1\.where: unknown name; 'dim'; did you"):
        read_model(changed(methods__1__where={"dim.0": 4}))
    with pytest.raises(InputError, match=r"methods\.1\.where .* no data set; .*\[5, 4\]"):
        plan.expand(read_model(changed(methods__1__where={"dims": [5, 4]})))


def test_some_cells_only(tmp_path):
    results = batch.run(SPEC, tmp_path, only=["method=weighted", "dims.0=4", "run=1"])
    assert results.sizes["cell"] == 4
    assert set(results["method"].values) == {"weighted"}
    assert set(results["n_rows"].values) == {50}
    assert results.attrs["n_planned"] == CELLS


def test_only_the_cells_of_a_table():
    tables = [{"name": "T", "methods": ["tree"], "settings": [{"where": {"n_samples": 50}}]}]
    whole = plan.expand(read_model(changed(tables=tables)))
    chosen = [c for c in whole.cells if c.id in plan.select(whole, ["table=T"])]
    assert len(chosen) == 4
    assert {(c.method, c.data["n_samples"]) for c in chosen} == {("tree", 50)}


def test_what_is_not_asked_for_is_not_kept(tmp_path):
    spec = changed(save={"labels": False, "traces": False}, data__repeats=1, runs=1)
    results = batch.run(spec, tmp_path)
    assert not {"labels", "membership", "objective_trace"} & set(results.variables)
    assert np.isfinite(results["score"]).all()


def test_methods_may_differ_in_what_is_kept(tmp_path, monkeypatch):
    outcome = executor.Executor._score

    def poor(self, cell, *rest):
        fit = outcome(self, cell, *rest)
        if cell.method == "tree":
            fit.membership, fit.trace, fit.restarts = None, np.empty(0), np.empty(0)
        return fit

    monkeypatch.setattr(executor.Executor, "_score", poor)
    results = batch.run(changed(runs=1, data__repeats=1), tmp_path)
    tree = results["method"] == "tree"
    for name in ("membership", "objective_trace", "restart_objective"):
        assert results[name].where(tree, drop=True).isnull().all()
        assert results[name].where(~tree, drop=True).notnull().any()


def test_without_a_folder_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = changed(runs=1, data__repeats=1, methods=SPEC["methods"][:1])
    assert batch.run(spec).sizes["cell"] == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.contract
def test_fits_that_fill_a_device_share_their_rows(tmp_path, monkeypatch):
    # Distributed rows are left out of the local search.
    method = SPEC["methods"][0] | {"polish": False}
    spec = changed(methods=[method], runs=1, data__repeats=1)
    alone = batch.run(spec, tmp_path / "alone")
    with sharding.sharded():
        one = batch.run(spec, tmp_path / "asked")
    monkeypatch.setattr(executor, "memory_budget", lambda device: 1)
    monkeypatch.setattr(executor.Executor, "_is_too_large", lambda self, size: True)
    two = batch.run(spec, tmp_path / "large")
    for other in (one, two):
        np.testing.assert_array_equal(other["labels"], alone["labels"])
        np.testing.assert_allclose(other["objective"], alone["objective"])
    assert two["compile_seconds"].isnull().all()  # none used the shared program


def test_float32_rows_stay_so(tmp_path):
    np.savez(tmp_path / "a.npz", X=np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32))
    spec = {
        "data": {"file": str(tmp_path / "a.npz")},
        "methods": [{"name": "ib", "n_clusters": 2, "n_init": 2}],
    }
    assert batch.run(spec, tmp_path / "out")["dtype"].item() == "float32"


# partial labels

WANTED = {
    "known": "partition_0",
    "partial_labels": {"labeling": "partition_1", "per_class": [0, 5]},
    "runs": 2,
    "data": {
        "generator": "make_binary_partitions",
        "parameters": {"n_samples": 60, "dims": [6, 4], "n_clusters": 2},
        "repeats": 2,
    },
    "methods": [
        {"name": "ccib", "title": "told", "n_clusters": 2, "n_init": 2},
        {"name": "ccib", "title": "untold", "n_clusters": 2, "n_init": 2, "use_labels": False},
        {"name": "mixture", "n_clusters": 2, "n_init": 2, "random_state": 7},
        {"name": "condens", "n_clusters": 2, "n_init": 2, "n_init_base": 2},
    ],
    "measures": {
        "precision of B": {"metric": "matched_accuracy", "labeling": "partition_1"},
        "NMI of A": {"metric": "normalized_mutual_information", "labeling": "partition_0"},
    },
}


@pytest.fixture(scope="module")
def semi():
    return batch.run(WANTED)


@pytest.mark.slow
@pytest.mark.contract
def test_wanted_labels_are_told_and_the_others_scored(semi):
    classes = {"told": CCIB, "untold": CCIB, "MixtureEM": MixtureEM, "CondEns": CondEns}
    assert semi.sizes["cell"] == 2 * 2 * 2 * 4
    for i in range(semi.sizes["cell"]):
        cell = semi.isel(cell=i)
        method = str(cell["method"].values)
        partial = json.loads(str(cell["partial_labels"].values))
        assert partial["use_labels"] == (method != "untold")
        X, labels = make_binary_partitions(60, (6, 4), random_state=int(cell["data_seed"]))
        labelled = cell["labelled"].values == 1
        assert labelled.sum() == int(cell["n_labelled"]) == 2 * partial["per_class"]
        told = labelled.any() and method != "untold"
        result = cell["labels"].values
        if told:
            np.testing.assert_array_equal(result[labelled], labels[labelled, 1])
        if int(cell["run"]) == int(cell["repeat"]) == 1:
            model = classes[method](**json.loads(str(cell["parameters"].values)))
            keywords = {} if method == "MixtureEM" else {"known": labels[:, 0]}
            model.fit(X, np.where(labelled, labels[:, 1], -1) if told else None, **keywords)
            np.testing.assert_array_equal(result, model.labels_)
        rest, truth = result[~labelled], labels[~labelled]
        score = cell["score"]
        assert float(score.sel(measure="precision of B")) == metrics.matched_accuracy(
            rest, truth[:, 1]
        )
        assert float(score.sel(measure="NMI of A")) == metrics.normalized_mutual_information(
            rest, truth[:, 0]
        )


@pytest.mark.slow
@pytest.mark.contract
def test_all_methods_of_a_run_are_told_the_same_rows(semi):
    drawn = {}
    for i in range(semi.sizes["cell"]):
        cell = semi.isel(cell=i)
        partial = json.loads(str(cell["partial_labels"].values))
        key = (int(cell["repeat"]), int(cell["run"]), partial["per_class"])
        drawn.setdefault(key, set()).add(tuple(cell["labelled"].values.tolist()))
    assert len(drawn) == 8
    assert all(len(rows) == 1 for rows in drawn.values())
    assert len({rows.pop() for key, rows in drawn.items() if key[2]}) == 4


def test_all_rows_are_scored_if_asked_for():
    spec = json.loads(json.dumps(WANTED))
    spec |= {
        "partial_labels": {"labeling": "partition_1", "fraction": 0.2, "score": "all"},
        "runs": 1,
    }
    spec["methods"] = spec["methods"][:1]
    results = batch.run(spec)
    for i in range(2):
        cell = results.isel(cell=i)
        assert int(cell["n_labelled"]) in (11, 12, 13)
        labels = make_binary_partitions(60, (6, 4), random_state=int(cell["data_seed"]))[1]
        assert float(cell["score"].sel(measure="precision of B")) == metrics.matched_accuracy(
            cell["labels"].values, labels[:, 1]
        )


def test_a_single_run_says_which_rows_were_told(tmp_path):
    spec = json.loads(json.dumps(WANTED))
    spec |= {"partial_labels": {"labeling": "partition_1", "per_class": 5}, "runs": 1}
    spec["data"]["repeats"], spec["methods"] = 1, spec["methods"][:1]
    model = read_model(spec)
    assert model.is_single
    assert not read_model(spec | {"partial_labels": WANTED["partial_labels"]}).is_single
    results = batch.run(spec)
    run = fit_result.plan_result(plan.expand(model), results)
    fit_files.save_fit(run, tmp_path, picture=None)
    rows = pd.read_csv(tmp_path / "labels.csv")
    assert set(rows) == {
        "row", "cluster", "membership", "labelled", "partition_0", "partition_1"
    }  # fmt: skip
    np.testing.assert_array_equal(rows["labelled"], results["labelled"].values[0])
    assert (rows["cluster"] == rows["partition_1"])[rows["labelled"] == 1].all()


@pytest.mark.slow
@pytest.mark.contract
def test_a_single_run_is_about_a_method_that_is_told_what_is_known():
    spec = json.loads(json.dumps(WANTED)) | {"known": "partition_0", "runs": 1}
    del spec["partial_labels"]
    spec["data"]["repeats"], spec["measures"] = 1, {}
    names = ["sklearn.cluster.KMeans", "ib", "ccib"]
    spec["methods"] = [{"name": name, "n_clusters": 2, "n_init": 1} for name in names]
    run = fit_result.plan_result(plan.expand(read_model(spec)), batch.run(spec))
    assert [fit.method for fit in run.fits] == ["CCIB", "sklearn.cluster.KMeans", "IB"]


def test_wanted_labels_are_part_of_a_name():
    def names(**changes):
        spec = json.loads(json.dumps(WANTED)) | changes
        return {c.id for c in plan.expand(read_model(spec)).cells}

    spec = json.loads(json.dumps(WANTED))
    methods = spec["methods"]
    methods[1]["use_labels"] = True
    first = names()
    assert len(first) == 32
    assert len(names(methods=methods)) == 24  # with and without labels are the same now
    fewer = names(partial_labels={"labeling": "partition_1", "per_class": 5})
    assert len(fewer) == 16
    assert fewer < first < names(partial_labels={"labeling": "partition_1", "per_class": [9, 5, 0]})
    assert fewer == names(
        partial_labels={"labeling": "partition_1", "per_class": 5, "score": "unlabelled"}
    )
    for other in (
        None,
        {"labeling": "partition_0", "per_class": 5},
        {"labeling": "partition_1", "per_class": 6},
        {"labeling": "partition_1", "fraction": 0.2},
        {"labeling": "partition_1", "per_class": 5, "score": "all"},
    ):
        assert not names(partial_labels=other) & fewer


def test_wanted_labels_choose_cells():
    whole = plan.expand(read_model(WANTED))
    chosen = [c for c in whole.cells if c.id in plan.select(whole, ["partial_labels.per_class=5"])]
    assert len(chosen) == 16
    assert all(c.partial_labels["per_class"] == 5 for c in chosen)
    assert all(plan.matches(c, {"partial_labels.per_class": 5}) for c in chosen)
    # Without labels there is another program, and so another batch.
    for part in whole.batches:
        assert (
            len(
                {
                    c.partial_labels["use_labels"] and c.partial_labels["per_class"] > 0
                    for c in part.cells
                }
            )
            == 1
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labeling": "partition_3"}, r"partial_labels\.labeling = 'partition_3'; did you mean"),
        (
            {"per_class": [1, 30]},
            r"partial_labels: a class has no row left without a label; 30 lab",
        ),
    ],
)
def test_wanted_labels_that_cannot_be_touch_nothing(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        batch.run(
            {**WANTED, "partial_labels": WANTED["partial_labels"] | changes}, tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


def test_more_wanted_classes_than_clusters_are_refused(tmp_path):
    spec = json.loads(json.dumps(WANTED))
    spec["data"]["parameters"] |= {"n_clusters": 3, "dims": [6, 6]}
    with pytest.raises(InputError, match=r"methods\.0 \(told\): y has 3 classes, more than"):
        batch.run(spec, tmp_path / "out")


# errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods__0__name": "ccbi"}, "methods.0.name: unknown method; 'ccbi'; did you mean"),
        ({"methods__0__n_inits": 1}, r"methods\.0\.n_inits; did you mean 'n_init'"),
        ({"methods__0__cooling": 0.5}, r"methods\.0 \(weighted\): cooling must be at least"),
        ({"methods__1__solver": "simplex"}, r"methods\.1 \(tree\): solver must be one of"),
        (
            {"methods__0__n_clusters": 70},
            r"methods\.0 \(weighted\): n_clusters=70 is more than the number of rows; got",
        ),
        ({"known": "partition_9"}, "known = 'partition_9'; did you mean 'partition_"),
        ({"data__parameters__n": 3}, "data.parameters do not fit make_binary_partitions"),
        (
            {"measures__precision of B__labeling": "partition_7"},
            r"measures\.precision of B\.labeling = 'partition_7'",
        ),
    ],
)
def test_bad_files_touch_nothing(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        batch.run(changed(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "data", "message"),
    [
        ("x,y\n1,2\n3,\n4,5\n", {}, r"infinite values; 1 in 'y' \(1 of 3 rows\); fill"),
        ("x,y\ninf,2\n3,\n4,\n", {}, r"values; 1 in 'x', 2 in 'y' \(3 of 3 rows\); fill"),
        ("x,y\n1,2\n3,4\n", {"columns": ["z"]}, "no such column; 'z'"),
        ("x,y\n1,2\n3,4\n", {"label_columns": ["group"]}, "no such column; 'group'"),
        ("", {}, "cannot read the file as CSV"),
    ],
)
def test_bad_data_files_touch_nothing(tmp_path, content, data, message):
    (tmp_path / "a.csv").write_text(content)
    spec = {"data": {"file": str(tmp_path / "a.csv"), **data}, "methods": [{"name": "ib"}]}
    with pytest.raises(InputError, match=message):
        batch.run(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _contents(folder):
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("keep", [100, *slowly(0, 0.5)])
def test_a_damaged_result_file_is_named_and_left_alone(tmp_path, keep):
    spec = changed(runs=1, data__repeats=1)
    batch.run(spec, tmp_path)
    part = sorted((tmp_path / "cells").glob("*.nc"))[0]
    whole = part.read_bytes()
    part.write_bytes(whole[: keep if isinstance(keep, int) else int(len(whole) * keep)])
    before = _contents(tmp_path)
    for use in (batch.load, lambda folder: batch.run(changed(runs=1), folder)):
        with pytest.raises(InputError, match=rf"cannot read a result file; .*{part.name}.*delete"):
            use(tmp_path)
        assert _contents(tmp_path) == before
    part.unlink()
    assert batch.run(spec, tmp_path).sizes["cell"] == 6


def test_flipped_bits_and_zeros_are_found_before_anything_is_believed(tmp_path):
    batch.run(ONE, tmp_path)
    place = store.Store(tmp_path)
    (part,) = place.parts()
    whole = part.read_bytes()
    damaged = [bytes(len(whole)), b""]
    for bit in np.random.default_rng(0).integers(8 * len(whole), size=250):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        part.write_bytes(content)
        for use in (place.finished, lambda: batch.load(tmp_path)):
            with pytest.raises(InputError, match=rf"{part.name}: .* does not fit the digest in"):
                use()


def test_files_of_cells_without_a_digest_in_their_names_are_refused(tmp_path):
    batch.run(ONE, tmp_path)
    place = store.Store(tmp_path)
    (part,) = place.parts()
    part = part.rename(part.with_name(f"{part.stem[:20]}-0.nc"))
    for use in (place.finished, lambda: batch.load(tmp_path), lambda: batch.run(ONE, tmp_path)):
        with pytest.raises(InputError, match=rf"{part.name}: its name has no digest .*; delete it"):
            use()


def test_what_killed_runs_left_is_removed(tmp_path, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "cells").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: gone.pid)
        for name in ("plan.json", "cells/part.nc"):
            files._hidden_path(tmp_path / name).touch()
    assert len(list(tmp_path.rglob(".*"))) == 2
    store.Store(tmp_path).open(plan.expand(read_model(ONE)))
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("lacking", ["h5py", "h5netcdf"])
def test_storage_is_tried_before_the_first_fit(tmp_path, monkeypatch, lacking):
    monkeypatch.setattr(executor.Executor, "fit", lambda *_: pytest.fail("fitted"))
    monkeypatch.setitem(sys.modules, lacking, None)
    with pytest.raises(InputError, match=rf"cannot be stored; .*{lacking}.*; run pip ins") as told:
        batch.run(ONE, tmp_path / "out")
    assert len(str(told.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("taken", ["", "cells", "locks", "notes.json/", "results.nc/", "a.png/"])
def test_places_are_tried_before_the_first_fit(tmp_path, monkeypatch, taken):
    monkeypatch.setattr(executor.Executor, "fit", lambda *_: pytest.fail("fitted"))
    out = tmp_path / "out"
    if taken.endswith("/"):
        (out / taken).mkdir(parents=True)
    else:
        (out / taken).parent.mkdir(exist_ok=True)
        (out / taken).write_text("in the way")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="cannot write; .*; check the folder"):
        batch.run(ONE | {"report": {"picture": "a.png"}}, out)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.contract
def test_a_deleted_part_is_made_again_and_costs_no_other(tmp_path):
    spec = changed(methods=SPEC["methods"][:1], data__cases=SPEC["data"]["cases"][:1])
    batch.run(spec, tmp_path, only=["run=0"])
    results = batch.run(spec, tmp_path)
    parts = sorted((tmp_path / "cells").glob("*.nc"))
    assert len(parts) == 2
    parts[0].unlink()
    assert_same_results(batch.run(spec, tmp_path), results)


def test_folders_without_results(tmp_path):
    with pytest.raises(InputError, match=r"no results here; .* has no plan\.json"):
        batch.load(tmp_path)
    (tmp_path / "plan.json").write_text('{"model": ')
    with pytest.raises(InputError, match=r"cannot read the manifest of a run; .*manifest\.json"):
        batch.load(tmp_path)
    store.Store(tmp_path).open(plan.expand(read_model(SPEC)))
    with pytest.warns(UserWarning, match=f"not finished; {CELLS} of {CELLS} fits are missing in"):
        assert batch.load(tmp_path).attrs["n_planned"] == CELLS


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(("method", "lost"), [("tree", 4), ("weighted", 8)])
def test_one_bad_fit_does_not_stop_the_others(tmp_path, monkeypatch, method, lost):
    outcome = executor.Executor._score

    def sometimes(self, cell, *rest):
        if cell.method == method and cell.repeat == 1:
            raise ValueError("this one fails")
        return outcome(self, cell, *rest)

    monkeypatch.setattr(executor.Executor, "_score", sometimes)
    message = f"{lost} of the fits failed; {method}: ValueError: this one fails"
    with pytest.raises(InputError, match=message):
        batch.run(SPEC, tmp_path)
    assert batch.load(tmp_path).sizes["cell"] == CELLS - lost
    monkeypatch.undo()
    assert batch.run(SPEC, tmp_path).sizes["cell"] == CELLS


def test_data_that_are_not_here_are_skipped_with_the_reason(tmp_path, monkeypatch):
    load = executor.load_data

    def missing(model, parameters, seed):
        if parameters["n_samples"] == 50:
            raise DataUnavailable("no such data; here; get them")
        return load(model, parameters, seed)

    monkeypatch.setattr(executor, "load_data", missing)
    with pytest.warns(UserWarning, match="12 fits were skipped; no such data; here; get them"):
        results = batch.run(SPEC, tmp_path)
    assert results.sizes["cell"] == CELLS - 12
    assert json.loads(results.attrs["skipped"]) == {"no such data; here; get them": 12}


# interruptions


def test_a_write_that_fails_leaves_no_half_file(tmp_path, monkeypatch):
    spec = changed(runs=1, data__repeats=1)

    def refuse(self, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", refuse)
        with pytest.raises(InputError, match="cannot write; .*No space left on device"):
            batch.run(spec, tmp_path)
    assert not list(tmp_path.rglob("*.nc"))
    assert batch.run(spec, tmp_path).sizes["cell"] == 6


@pytest.mark.slow
@pytest.mark.contract
def test_an_interrupt_keeps_what_is_finished(tmp_path, monkeypatch, done):
    with interrupted_after(2):
        batch.run(SPEC, tmp_path)
    kept = batch.load(tmp_path)
    assert 0 < kept.sizes["cell"] < CELLS
    assert_same_results(batch.run(SPEC, tmp_path), done[1])


def test_a_batch_of_another_runner_is_left_to_it(tmp_path, done):
    whole = plan.expand(read_model(SPEC))
    place = store.Store(tmp_path)
    place.open(whole)
    with place.claim(whole.batches[0], wait=False) as first:
        with place.claim(whole.batches[0], wait=False) as second:
            assert first and not second
        with place.claim(whole.batches[1], wait=False) as other:
            assert other
    with place.claim(whole.batches[0], wait=False) as again:
        assert again


RUNNER = """
import sys
from nrprob.batch import plan
from nrprob.cli import app
plan.BATCH = 4
app(["run", sys.argv[1], "--out", *sys.argv[2:]])
"""


def start(model, folder, *options, **variables):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    command = [sys.executable, "-c", RUNNER, str(model), str(folder), *options]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def write_toml(spec, path):
    """A file with this content; JSON's values are TOML's inline ones."""

    def inline(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(k)} = {inline(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(inline, value)) + "]"
        return json.dumps(value)

    path.write_text("".join(f"{key} = {inline(value)}\n" for key, value in spec.items()))
    return path


@pytest.mark.slow
@pytest.mark.contract
def test_several_devices_give_the_same_results(tmp_path, done):
    model = write_toml(SPEC, tmp_path / "sweep.toml")
    process = start(model, tmp_path / "out", "--devices", "cpu:3", JAX_NUM_CPU_DEVICES="4")
    _, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, complaints
    results = batch.load(tmp_path / "out")
    assert set(results["device"].values) == {"3 x cpu"}
    assert_same_results(results, done[1])


# Starts runs as its own children, so that JAX is imported once for all of them.
NURSERY = """
import os, sys
import h5netcdf, pandas, xarray
import nrprob.methods.mdl.cop_kmeans
from nrprob.batch import plan, runner
from nrprob.cli import app
plan.BATCH = 2
for line in sys.stdin:
    what, value = line.split(maxsplit=1)
    if what == "wait":
        print(os.waitstatus_to_exitcode(os.waitpid(int(value), 0)[1]), flush=True)
        continue
    child = os.fork()
    if not child:
        log = os.open(value.strip(), os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        app(["run", *sys.argv[1:]])
    print(child, flush=True)
"""


class Nursery:
    """Runs of a model file into one folder, started without a wait for imports."""

    def __init__(self, model, out):
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY, str(model), "--out", str(out)],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.communicate()

    def _ask(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def begin(self, log):
        """Start a run, which writes its output to a file; returns its process."""
        return self._ask(f"begin {log}")

    def wait(self, child):
        """Exit status, or the negative signal."""
        return self._ask(f"wait {child}")


def several(repeats):
    return ONE | {"data": ONE["data"] | {"repeats": repeats}, "runs": 2}


@pytest.mark.slow
@pytest.mark.contract
def test_two_runners_share_the_work(tmp_path):
    spec, out = several(20), tmp_path / "out"
    logs = [tmp_path / f"{i}.log" for i in range(2)]
    with Nursery(write_toml(spec, tmp_path / "sweep.toml"), out) as nursery:
        both = [nursery.begin(log) for log in logs]
        assert [nursery.wait(child) for child in both] == [0, 0]
    results = batch.load(out)
    assert results.sizes["cell"] == 40
    done = [int(log.read_text().split(" fits done")[0].split()[-1]) for log in logs]
    assert sum(done) == 40  # nothing was repeated
    assert min(done) > 0, "one of them came too late to do anything"
    assert_same_results(results, batch.run(spec, tmp_path / "alone"))


KILLS = int(os.environ.get("NRPROB_KILLS", "3"))


@pytest.mark.slow
@pytest.mark.contract
def test_killed_many_times(tmp_path):
    repeats = 7 * KILLS + 8  # every kill comes after one more batch, and some have done two
    spec, out = several(repeats), tmp_path / "out"

    def parts():
        return {p.name: p.stat().st_mtime_ns for p in out.glob("cells/*.nc")}

    chance = random.Random(0)
    finished: dict[str, int] = {}
    with Nursery(write_toml(spec, tmp_path / "sweep.toml"), out) as nursery:
        for i in range(KILLS + KILLS // 8):
            assert len(finished) < repeats, "nothing is left to be killed at"
            child = nursery.begin(tmp_path / "log")
            if i % 9:  # at any time after its first finished batch
                while len(parts()) <= len(finished):
                    time.sleep(0.002)
                time.sleep(chance.uniform(0, 0.02))
            else:  # while the file is checked
                time.sleep(chance.uniform(0, 0.2))
            os.kill(child, signal.SIGKILL)
            assert nursery.wait(child) == -signal.SIGKILL
            now = parts()
            assert finished.items() <= now.items()  # no finished fit is lost or repeated
            finished = now
        assert nursery.wait(nursery.begin(tmp_path / "log")) == 0
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]
    results = batch.load(out)
    assert results.sizes["cell"] == 2 * repeats
    assert_same_results(results, batch.run(spec, tmp_path / "alone"))


@pytest.mark.parametrize(
    ("repeats", "runs", "count"), [(10, 3, 2 * 3), (7, 1, 2), (1, 11, 3), (1, 1, 1)]
)
def test_a_quick_run_computes_a_fifth_of_the_repeats(repeats, runs, count):
    spec = {
        "data": {"generator": "make_binary_partitions", "repeats": repeats},
        "runs": runs,
        "methods": [{"name": "ib", "n_clusters": 2}],
    }
    planned = plan.expand(read_model(spec))
    cells = [c for c in planned.cells if c.id in plan.select(planned, [], quick=True)]
    assert len(cells) == count
    # The first data sets and runs, so that a full run computes the rest.
    assert {(c.repeat, c.run) for c in cells} == {
        (i, j) for i in range(-(-repeats // 5)) for j in range(runs if repeats > 1 else count)
    }
