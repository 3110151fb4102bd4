"""Provenance of results of a model file, and notes about the columns of its data."""

import hashlib
import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from pages import page_of
from typer.testing import CliRunner

from nrprob import batch
from nrprob.batch.inputs import load_data
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import expand
from nrprob.batch.provenance import with_provenance
from nrprob.cli import app
from nrprob.exceptions import InputError

MODEL = """
known = "group"
[data]
file = "rows.csv"
label_columns = ["group"]
{data}
[report]
picture = ""
[[methods]]
name = "{name}"
"""


@pytest.fixture
def folder(tmp_path):
    """A table with text, a row number, a year, and different scales."""
    rng = np.random.default_rng(0)
    known, sought = rng.integers(2, size=(2, 40))
    X = np.outer(sought, [6, 0]) + np.outer(known, [4, 9]) + rng.normal(size=(40, 2))
    frame = pd.DataFrame(X * [1, 1000], columns=["size", "weight"])
    frame["customer_id"] = 1000 + np.arange(40)
    frame["year"] = rng.integers(1990, 2020, 40)
    frame["site"] = rng.choice(["north", "south"], 40)
    frame["group"] = np.array(["a", "b"])[known]
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        arguments = [str(argument) for argument in arguments]
        monkeypatch.setattr("sys.argv", ["/usr/bin/nrprob", *arguments])
        return CliRunner().invoke(app, arguments)

    return call


def write(folder, name="cop_kmeans", before="", data=""):
    path = folder / "one.toml"
    path.write_text(before + MODEL.format(name=name, data=data))
    return path


def digests(*paths):
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.slow
@pytest.mark.contract
def test_a_single_run_says_what_a_fit_says(invoke, folder):
    standard = 'standardize = true\ndrop = ["customer_id", "year"]'
    model, out = write(folder, "conditional-mixture", data=standard), folder / "out"
    result = invoke("run", model, "--out", out)
    assert result.exit_code == 0, result.output
    stored = json.loads((out / "result.json").read_text())
    assert stored["command"] == f"nrprob run {model} --out {out}"
    assert stored["files"] == digests(folder / "rows.csv")
    assert stored["model_file"] == digests(model)
    done, frame = stored["prepared"], pd.read_csv(folder / "rows.csv")
    assert done["features"] == ["size", "weight"] == [*done["scales"]]
    for name, ends in done["scales"].items():
        assert ends == pytest.approx([frame[name].mean(), frame[name].std(ddof=0)])
    labels = pd.read_csv(out / "labels.csv")
    # Both pages contain this, including the page of `report`.
    for _ in range(2):
        page = page_of(out / "report.html")
        for text in (stored["command"], *stored["files"].values(), *stored["model_file"].values()):
            assert text in page.text
        assert "'site' is left out" in page.text
        assert "gives no memberships" not in page.text and "membership" in labels
        means = frame["size"].groupby(labels["cluster"]).mean()
        (row,) = (cells for cells in page.cells if cells[0] == "size" and len(cells) == 4)
        assert [float(cell) for cell in row[2:]] == pytest.approx(means.tolist(), abs=0.01)
        assert invoke("report", out).exit_code == 0


def test_what_is_done_with_columns_is_said(invoke, folder):
    model, out = write(folder, before="runs = 2\n"), folder / "out"
    said = {
        "note: ": ["'site' is left out: features of a model file are columns of numbers"],
        "warning: ": [
            "features should be measurements; 'customer_id' looks like an identifier; if so, leave "
            'the column out with data.drop = ["customer_id"]',
            "features should be measurements; 'year' looks like a year; if so, leave the column "
            'out with data.drop = ["year"]',
            "features should share a scale; scales are ",
        ],
    }
    for command in (["check", model], ["run", model, "--out", out]):
        result = invoke(*command)
        assert result.exit_code == 0, result.output
        for kind, lines in said.items():
            told = [line for line in result.stderr.splitlines() if line.startswith(kind)]
            assert len(told) == len(lines)
            for line, start in zip(told, lines, strict=True):
                assert line.startswith(kind + start)
    assert "data.standardize = true standardises them" in told[-1]
    # A page of several fits contains this, and the provenance.
    assert invoke("report", out).exit_code == 0
    page = page_of(out / "report.html")
    for text in (*said["note: "], *said["warning: "], f"nrprob run {model} --out {out}"):
        assert text in page.text
    for digest in digests(model, folder / "rows.csv").values():
        assert digest in page.text


def test_of_several_model_files_each_line_says_which(invoke, folder):
    one = write(folder, data='drop = ["customer_id"]\nstandardize = true')
    (folder / "two.toml").write_text(one.read_text())
    result = invoke("check", one, folder / "two.toml")
    for path in (one, folder / "two.toml"):
        assert f"note: {path}: 'site' is left out" in result.stderr
        assert f"warning: {path}: features should be measurements; 'year'" in result.stderr


def test_a_run_in_python_warns(folder):
    model = write(folder, data='drop = ["year", "weight"]')
    with pytest.warns(UserWarning, match=r"'customer_id' looks like an identifier"):
        batch.run(model, folder / "out")
    plan = json.loads((folder / "out" / "plan.json").read_text())
    assert plan["origin"]["model_file"] == digests(model) and "command" not in plan["origin"]


def test_a_run_in_python_stays_out_of_the_folder_of_a_fit(folder):
    (folder / "result.json").touch()
    with pytest.raises(InputError, match=r"the folder has results of a fit; .*; choose another"):
        batch.run(write(folder, data='columns = ["size"]'), folder)
    assert not (folder / "plan.json").exists()


def test_gaps_of_all_labelings_are_named(folder):
    frame = pd.read_csv(folder / "rows.csv").astype({"site": object, "group": object})
    frame.loc[3, ["site", "group"]] = None
    frame.to_csv(folder / "rows.csv", index=False)
    model = read_model(write(folder))
    model.data.label_columns.append("site")
    with pytest.raises(InputError) as result:
        load_data(model)
    lines = str(result.value).splitlines()
    assert [line.split(" has ")[0] for line in lines] == ["column 'group'", "column 'site'"]


def test_scales_of_matrices_are_known(tmp_path):
    X = np.random.default_rng(0).normal(3, 2, (20, 3))
    np.savez(tmp_path / "dense.npz", X=X)
    scipy.sparse.save_npz(tmp_path / "sparse.npz", scipy.sparse.csr_array(X))
    for name, mean in (("dense", X.mean(0)), ("sparse", np.zeros(3))):
        data = {"file": str(tmp_path / f"{name}.npz"), "standardize": True}
        model = read_model({"data": data, "methods": [{"name": "ib"}]})
        scales = with_provenance(expand(model)).origin["prepared"]["scales"]
        assert [*scales] == ["feature 0", "feature 1", "feature 2"]
        np.testing.assert_allclose([*scales.values()], np.column_stack([mean, X.std(0)]))


def test_units_of_features_are_recorded(tmp_path):
    lines = ["share,size,group", *(f"{i % 7} %,{i % 5}.5,{i % 2} €" for i in range(20))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    data = {"file": str(tmp_path / "rows.csv"), "label_columns": ["group"]}
    for binary, units in (({}, {"share": "%"}), ({"binarize": 2.5}, {})):
        model = read_model({"data": data | binary, "methods": [{"name": "ib"}]})
        assert with_provenance(expand(model)).origin["prepared"]["units"] == units
