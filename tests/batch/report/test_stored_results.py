"""Stored results of runs: their digests, and the files beside the model files."""

import json
import re

import numpy as np
import pytest
from made_up_results import make_run
from places import MODELS

from nrprob import datasets
from nrprob.batch import registry
from nrprob.batch.modelfile import read_model
from nrprob.batch.report.stored_results import (
    FOLDER,
    PlanDigests,
    read_results,
    store_results,
)
from nrprob.batch.schema import ModelFile
from nrprob.exceptions import InputError

FILE = """
title = "A title"
known = "partition_0"
runs = 2

[data]
generator = "make_binary_partitions"
parameters = { n_samples = 20 }
repeats = 3
grid = { dims = [[4, 4], [12, 4]] }

[[methods]]
name = "ccib"
title = "ours"
n_clusters = 2

[[methods]]
name = "ib"
title = "plain"
n_clusters = 2

[measures]
accuracy = { metric = "matched_accuracy", labeling = "partition_1" }
spread = { attribute = "n_iter_" }

[[tables]]
name = "T"
measures = ["accuracy", "seconds"]
statistics = ["mean", "max"]
[[tables.settings]]
where = { dims = [4, 4] }
published."ours / plain" = { accuracy = { mean = 1.5 } }
[[tables.settings]]
where = { dims = [12, 4] }
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "models" / "file.toml"
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def accuracy(cell):
    """0.5 plus a tenth of the repeat, a hundredth of the run, and one for the first method."""
    value = 0.5 + cell.repeat / 10 + cell.run / 100 + (cell.method == "ours")
    return {"accuracy": value, "spread": 0.0, "seconds": 2.0}


def digests_of(text=FILE, methods=("ours",), measure="accuracy", dims=(4, 4)):
    import tomllib

    model = ModelFile.model_validate(tomllib.loads(text))
    return PlanDigests(model).digest({"dims": [*dims]}, methods, measure)


def test_the_entries_of_a_run_are_stored(path, tmp_path):
    run = make_run(tmp_path / "run", path, accuracy)
    target, count = store_results(run, path.parent)
    assert target == path.parent / FOLDER / "file.csv"
    (entries,) = read_results(path.parent).values()
    # Two settings with two methods, two measures and two statistics, and one ratio.
    assert len(entries) == count == 2 * 2 * 2 * 2 + 1
    plan = PlanDigests(read_model(path))
    assert {digest for digest, _ in entries} <= plan.of_tables()
    entry = entries[plan.digest({"dims": [4, 4]}, ["ours"], "accuracy"), "mean"]
    assert (entry.table, entry.setting, entry.method) == ("T", "dims = [4, 4]", "ours")
    # Means over two runs are 1.505, 1.605 and 1.705.
    assert entry.value == pytest.approx(1.605)
    assert entry.error == pytest.approx(0.1 / np.sqrt(3), rel=1e-2)
    assert (entry.n_sets, entry.n_runs, entry.seconds) == (3, 2, 12.0)
    assert entry.versions == "numpy 2.0"
    largest = entries[plan.digest({"dims": [4, 4]}, ["ours"], "accuracy"), "max"]
    assert largest.value == pytest.approx(1.61)
    ratio = entries[plan.digest({"dims": [4, 4]}, ["ours", "plain"], "accuracy"), "mean"]
    assert ratio.value == pytest.approx(1.605 / 0.605, rel=1e-5)
    assert entry.as_value.over == "data sets" and not np.isnan(entry.as_value.error)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('title = "A title"', 'title = "Another"'),
        ('title = "plain"', 'title = "simple"'),
        ('name = "T"', 'name = "Table 1"\ncaption = "..."'),
        ("dims = [[4, 4], [12, 4]]", "dims = [[12, 4], [4, 4], [30, 4]]"),
        ("spread = {", 'spread = { goal = "low", '),
        ("published", "published.plain = { accuracy = { mean = 1 } }\npublished"),
        ('name = "ccib"', 'name = "CCIB"'),
    ],
)
def test_a_text_or_another_fit_outdates_no_entry(old, new):
    assert old in FILE
    assert digests_of(FILE.replace(old, new)) == digests_of()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n_samples = 20", "n_samples = 21"),
        ("repeats = 3", "repeats = 4"),
        ("repeats = 3", "repeats = 3\nseed = 5"),
        ("repeats = 3", "repeats = 3\nstandardize = true"),
        ("runs = 2", "runs = 3"),
        ("n_clusters = 2", "n_clusters = 3"),
        ("n_clusters = 2", "n_clusters = 2\nn_init = 3"),
        ("n_clusters = 2", "n_clusters = 2\nrandom_state = 3"),
        ('known = "partition_0"', 'known = "partition_1"'),
        ('labeling = "partition_1"', 'labeling = "partition_0"'),
        ("[measures]", '[partial_labels]\nlabeling = "partition_1"\nfraction = 0.1\n[measures]'),
    ],
)
def test_a_change_of_the_plan_outdates_an_entry(old, new):
    assert old in FILE
    text = FILE.replace(old, new)
    if "partial_labels" in new:
        text = text.replace('title = "plain"', 'title = "plain"\nuse_labels = false')
    assert digests_of(text) != digests_of() != ""


def test_a_changed_default_outdates_an_entry(monkeypatch):
    before, plain = digests_of(), digests_of(methods=["plain"])

    def defaults(method):
        return {"n_init": 10, **({"max_iter": 99} if method.class_name == "CCIB" else {})}

    monkeypatch.setattr(registry.Method, "defaults", property(defaults))
    assert digests_of() != before
    monkeypatch.undo()
    assert digests_of() == before
    # A new parameter that is None does not change the plan, nor does the value of the default.
    present = registry.Method.defaults.fget
    monkeypatch.setattr(
        registry.Method, "defaults", property(lambda method: present(method) | {"new": None})
    )
    assert digests_of() == before
    monkeypatch.undo()
    value = registry.METHODS["ccib"].defaults["max_iter"]
    assert digests_of(FILE.replace("n_clusters = 2", f"n_clusters = 2\nmax_iter = {value}", 1)) == (
        before
    )

    def generator(n_samples=100, dims=(4, 4), n_clusters=2, p_noise=0.123, random_state=None):
        pass

    monkeypatch.setattr(datasets, "make_binary_partitions", generator)
    assert digests_of() != before and digests_of(methods=["plain"]) != plain


def test_defaults_of_other_packages_are_no_part_of_a_digest():
    text = FILE.replace('name = "ib"', 'name = "sklearn.cluster.KMeans"')
    method = registry.find_method("sklearn.cluster.KMeans")
    assert method.defaults == {} and registry.find_method("ib").defaults["n_init"] == 10
    assert digests_of(text, ["plain"]) != digests_of(methods=["plain"])


def test_digests_differ_between_methods_measures_and_settings():
    digests = [
        digests_of(methods=methods, measure=measure, dims=dims)
        for methods in (["ours"], ["plain"], ["ours", "plain"], ["plain", "ours"])
        for measure in ("accuracy", "spread", "seconds")
        for dims in ((4, 4), (12, 4))
    ]
    assert len({*digests}) == len(digests)
    assert digests_of(dims=(5, 4)) == digests_of(methods=["unknown"]) == ""


def test_unfinished_entries_are_left_out(path, tmp_path):
    run = make_run(
        tmp_path / "run", path, accuracy,
        keep=lambda cell: cell.method == "plain" and (cell.repeat < 2 or cell.data["dims"][0] == 4),
    )  # fmt: skip
    _, count = store_results(run, path.parent)
    (entries,) = read_results(path.parent).values()
    assert count == 2 * 2
    assert {(e.method, e.setting) for e in entries.values()} == {("plain", "dims = [4, 4]")}
    run = make_run(tmp_path / "other", path, accuracy, keep=lambda cell: cell.repeat < 1)
    with pytest.raises(InputError, match="no entry of a table is finished"):
        store_results(run, path.parent)


def test_the_present_model_file_selects_the_fits(path, tmp_path):
    run = make_run(tmp_path / "run", path, accuracy)
    text = FILE.replace("A title", "Another").replace("repeats = 3", "repeats = 2")
    path.write_text(text.replace('title = "ours"', 'title = "renamed"'))
    _, count = store_results(run, path.parent)
    entries = [*read_results(path.parent)["file"].values()]
    assert {e.n_sets for e in entries} == {2} and {e.method for e in entries} == {
        "renamed", "plain",
    }  # fmt: skip
    assert count == 16  # without the ratio, whose method has another name


def test_a_run_needs_its_model_file_in_the_folder(path, tmp_path):
    run = make_run(tmp_path / "run", path, accuracy)
    with pytest.raises(InputError, match=r"not in the folder; .*file.toml; name the folder"):
        store_results(run, tmp_path)


def test_fits_with_other_defaults_are_refused(path, tmp_path):
    defaults = json.dumps(registry.METHODS["ccib"].defaults)
    ours = {"keep": lambda cell: cell.method == "ours"}
    store_results(make_run(tmp_path / "a", path, accuracy, defaults=defaults, **ours), path.parent)
    changed = json.dumps(registry.METHODS["ccib"].defaults | {"max_iter": 7})
    run = make_run(tmp_path / "b", path, accuracy, defaults=changed, **ours)
    with pytest.raises(
        InputError, match=r"default parameters have changed since the run; .*: ours"
    ):
        store_results(run, path.parent)


def test_a_damaged_file_is_refused(path, tmp_path):
    target, _ = store_results(make_run(tmp_path / "run", path, accuracy), path.parent)
    text = target.read_text()
    for content in (text.replace("digest", "key"), text + "a,b\n", text.replace(",3,2,", ",x,2,")):
        target.write_text(content)
        with pytest.raises(InputError, match=re.escape(str(target))):
            read_results(path.parent)


def test_stored_results_of_the_package_belong_to_the_plans():
    """Otherwise, a model file or default has changed: run the file, and store its results."""
    stored = read_results(MODELS)
    assert stored
    for name, entries in stored.items():
        current = PlanDigests(read_model(MODELS / f"{name}.toml")).of_tables()
        outdated = [f"{e.table}: {e.method}" for e in entries.values() if e.digest not in current]
        assert not outdated, (name, sorted({*outdated}))
