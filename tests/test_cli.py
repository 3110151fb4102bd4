"""The command line: its output, and its error messages."""

import gc
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from pages import page_of
from places import MODELS
from slowly import slowly
from typer.testing import CliRunner

import nrprob
from nrprob import advice
from nrprob.batch import fit_result, fits
from nrprob.batch.registry import METHODS
from nrprob.cli import app, terminal, validation
from nrprob.cli import data as cli_data
from nrprob.evidence.discriminant_plot import plot_discriminant_scores

RESULTS = {"labels.csv", "report.html", "result.json"}  # files of a clustering without plots

FAST = ["--n-init", "2", "--seed", "0"]


@pytest.fixture
def invoke(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def data(tmp_path):
    """A table with two planted binary structures, one of them in a column."""
    rng = np.random.default_rng(0)
    known, other = np.arange(80) % 2, np.arange(80) // 2 % 2
    flip = rng.random((80, 10)) < 0.1
    X = np.concatenate([np.repeat(known[:, None], 6, 1), np.repeat(other[:, None], 4, 1)], 1) ^ flip
    frame = pd.DataFrame(X.astype(int), columns=[f"x{j}" for j in range(10)])
    frame["species"] = np.where(known, "b", "a")
    frame["other"] = np.where(other, "q", "p")
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    return path


def refused(result):
    """The one-line message to the user."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    said = "note: ", "this command settles it: "
    lines = [x for x in result.stderr.splitlines() if not x.startswith(said)]
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.mark.smoke
def test_fit_finds_the_structure_that_is_not_known(invoke, data, tmp_path):
    out = tmp_path / "out"
    result = invoke(
        "fit", data, "--known", f"{data}:species", "--compare", "other", "--out", out, *FAST
    )
    assert result.exit_code == 0, result.output
    assert "NMI" in result.stdout
    assert str(out / "summary.png") in result.stdout
    assert "(objective " in result.stdout and " nats" not in result.stdout
    stored = json.loads((out / "result.json").read_text())
    # Neither the known column nor the compared column is a feature.
    assert stored["n_features"] == 10
    assert stored["method"] == "CCIB"
    assert stored["seed"] == 0
    assert stored["known"] == ["species"]
    assert stored["converged"] in (True, False)
    assert stored["scores"]["NMI of species"] < 0.1
    assert stored["scores"]["NMI of other"] > 0.5
    labels = pd.read_csv(out / "labels.csv")
    assert len(labels) == 80
    assert (out / "summary.png").stat().st_size > 5_000
    assert f"wrote {out / 'report.html'}" in result.stdout
    page = page_of(out / "report.html")
    assert f"beyond {stored['known'][0]}" in page.headings[0][1]
    assert stored["command"] in page.text
    assert len(page.images) == 3  # profiles, and the rows by cluster and by known group


def test_fit_again_is_the_same(invoke, data, tmp_path):
    for name in ("one", "two"):
        arguments = ["--known", "species", "--out", tmp_path / name, "--no-plot", *FAST]
        assert invoke("fit", data, *arguments).exit_code == 0
    one, two = ((tmp_path / name / "labels.csv").read_text() for name in ("one", "two"))
    assert one == two
    assert not (tmp_path / "one" / "summary.png").exists()


@pytest.mark.slow
@pytest.mark.contract
def test_explore_goes_on_while_there_is_evidence(invoke, tmp_path):
    known, sought = np.arange(60) % 2, np.arange(60) // 2 % 2
    X = np.random.default_rng(0).normal(size=(60, 2)) + 9 * sought[:, None] + 5 * known[:, None]
    frame = pd.DataFrame(X, columns=["x", "y"]).assign(group=np.array(["a", "b"])[known])
    frame.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "out"
    options = "--known", "group", "--out", out, "--criterion", "gap", "--test", "--alpha", "0.01"
    result = invoke("explore", tmp_path / "rows.csv", *options)
    assert result.exit_code == 0, result.output
    assert "1: clusters with a low-density gap between them" in result.stdout
    assert "no further clustering, since clustering 2" in result.stdout
    labels = pd.read_csv(out / "labels.csv")
    assert list(labels) == ["row", "clustering_1", "confidence_1", "group"]
    assert (labels.clustering_1 == sought).mean() in (0, 1) and labels.confidence_1.mean() > 0.9
    assert "1: 100 % of the samples are expected to be in the right cluster" in result.stdout
    assert "plot()" not in result.stdout
    told = json.loads((out / "result.json").read_text())
    assert told["clusterings"][0]["p_gap"] < 0.05 and told["known"] == ["group"]
    assert told["reason"] in result.stdout
    assert {p.name for p in out.glob("*.png")} == {"clustering_1.png", "clustering_1_evidence.png"}
    page = page_of(out / "report.html")
    assert len(page.images) == 4
    text = " ".join(page.text.split())
    assert (
        "clusters with a low-density gap between them" in text
        and "The search ended: clustering 2" in text
    )


def test_explore_as_often_as_it_is_told(invoke, data, tmp_path):
    out = tmp_path / "out"
    options = "--known", "species", "--n-clusterings", "1", "--k", "2", "--no-plot", "--out", out
    assert "got --alpha 0.01 without --test; add --test" in refused(
        invoke("explore", data, *options, "--alpha", "0.01")
    )
    out.mkdir()
    (out / "clustering_3.png").touch()
    assert "clustering_3.png; choose another folder with --out" in refused(
        invoke("explore", data, *options)
    )
    line = refused(invoke("explore", data, *options, "--names", "A,B", "--names", "C", "--force"))
    assert "fewer names than clusters; --names C for 2 clusters" in line
    named = "--names", "A,B", "--names", "C,D"
    result = invoke("explore", data, "--compare", "other", *options, *named, "--force")
    assert result.exit_code == 0, result.output
    messages = " ".join(result.stderr.split())
    assert "--names is given 2 times for 1 clustering;" in messages
    assert "order of the clusters of this fit: cluster 0 is 'A', 1 is 'B'; other" in messages
    names = pd.read_csv(out / "labels.csv")
    assert (names.clustering_1_name == names.clustering_1.map({0: "A", 1: "B"})).all()
    told = json.loads((out / "result.json").read_text())["clusterings"][0]
    assert told["cluster_names"] == ["A", "B"]
    assert "1 clustering was requested" in result.stdout
    # Agreement of the clustering with the known and the compared labels.
    scores = json.loads((out / "result.json").read_text())["clusterings"][0]["scores"]
    assert list(scores) == ["NMI of species", "NMI of other", "accuracy of other"]
    assert scores["NMI of species"] < 0.1 and scores["NMI of other"] > 0.5
    lines = [x.split() for x in result.stdout.splitlines()]
    assert ["1", *(f"{score:.3f}" for score in scores.values())] in lines
    assert {p.name for p in out.iterdir()} == RESULTS
    options = "--drop", "other,species", "--out", tmp_path / "other"
    line = refused(invoke("explore", data, *options))
    assert "must be given if the features have no test; got no number for binary features" in line
    assert not (tmp_path / "other").exists()
    assert "--k must be a number or auto; got 'two'" in refused(
        invoke("explore", data, "--k", "two")
    )


def test_fit_sparse_counts_with_known_from_another_file(invoke, tmp_path):
    rng = np.random.default_rng(0)
    X = scipy.sparse.csr_array(rng.poisson(0.5, (60, 30)))
    scipy.sparse.save_npz(tmp_path / "counts.npz", X)
    np.savez(tmp_path / "known.npz", z=np.arange(60) % 3)
    result = invoke(
        "fit",
        tmp_path / "counts.npz",
        "--known",
        f"{tmp_path / 'known.npz'}:z",
        "--out",
        tmp_path / "out",
        *FAST,
    )
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "result.json").read_text())["n_features"] == 30


def test_unknown_labels_of_a_column():
    for unknown in (None, np.nan, pd.NA, "", " \t", "-1", "-1.0", -1, -1.0, np.int64(-1)):
        y, classes = cli_data._encode_classes(np.array(["b", unknown, "a"], object))
        assert y.tolist() == [1, -1, 0] and classes == ["a", "b"]


@pytest.mark.parametrize("unknown", [None, "  ", "-1"])
def test_fit_with_wanted_labels(invoke, data, tmp_path, unknown):
    frame = pd.read_csv(data)
    frame["wanted"] = frame["other"].where(frame.index < 12, unknown)
    frame.to_csv(data, index=False)
    arguments = ["--known", "species", "--labels", "wanted", "--out", tmp_path / "out", *FAST]
    result = invoke("fit", data, *arguments)
    assert result.exit_code == 0, result.output
    assert "classes of the partial labels: 0 = p, 1 = q" in result.stderr
    labels = pd.read_csv(tmp_path / "out" / "labels.csv")["cluster"].to_numpy()
    np.testing.assert_array_equal(labels[:12], (frame["other"] == "q")[:12])


def test_fit_passes_settings_and_solver(invoke, data, tmp_path):
    arguments = ["--known", "species", "--solver", "sequential", "--features", "bernoulli"]
    arguments += ["--set", "coordination=marginal", "--set", "coordination_weight=0.2"]
    arguments += ["--drop", "other"]
    result = invoke("fit", data, *arguments, "--out", tmp_path / "out", *FAST)
    assert result.exit_code == 0, result.output
    parameters = json.loads((tmp_path / "out" / "result.json").read_text())["parameters"]
    assert parameters["solver"] == "sequential"
    assert parameters["features"] == "bernoulli"
    assert parameters["coordination"] == "marginal"
    assert parameters["coordination_weight"] == 0.2


@pytest.mark.slow
@pytest.mark.contract
def test_the_number_of_clusters_is_the_largest_where_it_is_sampled(invoke, data, tmp_path):
    sampled = ["--set", "num_samples=20", "--set", "num_warmup=20", "--no-plot"]
    for k, most in (([], "auto"), (["--k", 4], 4)):
        out = tmp_path / f"out{most}"
        result = invoke("fit", data, "--method", "mdl_mixture", *k, "--out", out, *sampled)
        assert result.exit_code == 0, result.output
        stored = json.loads((out / "result.json").read_text())
        assert stored["parameters"]["max_clusters"] == most
        assert 1 <= stored["n_clusters"] <= (20 if most == "auto" else 4)
        assert sum(stored["posterior"]["n_clusters"].values()) == pytest.approx(1)
        assert "number of clusters in the posterior" in " ".join(result.output.split())


def test_fit_without_known_says_how_it_agrees(invoke, data, tmp_path):
    arguments = ["--method", "ib", "--compare", "species", "--compare", "other"]
    result = invoke("fit", data, *arguments, "--out", tmp_path / "out", *FAST)
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert stored["known"] == []
    assert set(stored["scores"]) == {
        f"{short} of {z}" for short in ("NMI", "accuracy") for z in ("species", "other")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--known", "speces"], "no such column; 'speces'; did you mean 'species'?"),
        (["--known", "none.csv:z"], "no such data file; none.csv"),
        (
            ["--k", "2", "--names", "cluster 1"],
            "clusters without a name are called by their number; got --names 'cluster 1'",
        ),
        (
            ["--k", "2", "--names", "a,b,c"],
            "more names than clusters; --names a,b,c for 2 clusters",
        ),
        (
            ["--k", "3", "--names", "a,b"],
            "fewer names than clusters; --names a,b for 3 clusters; name every cluster",
        ),
        (["--known", "data.csv:"], "a labeling is FILE:COLUMN"),
        (["--method", "ccbi"], "unknown method; 'ccbi'; did you mean 'ccib'?"),
        (["--method", "ib", "--known", "species"], "ib takes no known structure"),
        (["--seed", "-1"], "a seed must be an integer from 0 to 4000000000; --seed = -1"),
        (["--set", "random_state=x"], "a seed must be an integer"),
        (["--set", "cooling"], "a setting is NAME=VALUE"),
        (["--set", "coling=2"], "--set coling; did you mean 'cooling'?"),
        (["--columns", "speces"], "no such column; 'speces'; did you mean 'species'?"),
        (["--missing", "none"], "--missing must be keep, error, drop or mean; got 'none'"),
        (["--k", "1000"], "1000"),
        (["--k", "few"], "--k must be a number or auto; got 'few'"),
        (["--k", "auto", "--method", "ccib"], "--k auto with ccib; pass a number, or use one of "),
        (["--k", "auto", "--method", "mixture"], "got binary values"),
        (["--feature-names", "species"], "have names already; got --feature-names species"),
        (["--known", "data.npz:z"], "no such data file; data.npz"),
        (["--solver", "magic"], "magic"),
    ],
)
def test_user_errors_are_one_line(invoke, data, tmp_path, arguments, message):
    line = refused(invoke("fit", data, *arguments, "--out", tmp_path / "out"))
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "out").exists()


def test_methods_with_the_parameter_that_the_chosen_method_lacks_are_named(invoke, tmp_path):
    rows = pd.DataFrame(np.random.default_rng(0).poisson(0.4, (60, 5)))
    rows.add_prefix("x").to_csv(tmp_path / "counts.csv", index=False)
    arguments = "fit", tmp_path / "counts.csv", "--out", tmp_path / "out"
    line = refused(invoke(*arguments, "--features", "multinomial"))
    assert "residual-spectral has no such parameter; --features; choose from " in line
    assert "; --features is a parameter of ccib, " in line
    assert "constrained" in line.partition("is a parameter of")[2]
    line = refused(invoke(*arguments, "--features", "gaussian"))
    assert "; --features is a parameter of ccib, " in line


def test_what_is_wrong_is_told_before_anything_heavy_is_loaded(data, tmp_path):
    """Importing JAX takes longer than a user should wait for an error message."""
    file = tmp_path / "file"
    file.touch()
    refusals = {
        "no such column; 'speces'": ["--known", "speces"],
        "no such column; 'x11'": ["--drop", "x11"],
        "no such data file; none.csv": ["--known", "none.csv:z"],
        "unknown method; 'ccbi'": ["--method", "ccbi"],
        "--k must be an integer of at least 1; got 0; pass": ["--k", "0"],
        "an option must name a column only once; got --known ": [
            "--known",
            "other",
            "--known",
            f"{data}:other",
        ],
        "cannot write": ["--out", str(file)],
    }
    of_classes = {
        "--k auto with ccib": ["--k", "auto", "--method", "ccib"],
        "--n-init must be an integer of at least 1; got 0; pass": ["--n-init", "0"],
        "--n-init must be an integer of at least 1; got x; pass": ["--set", "n_init=x"],
        "there is no such solver; --solver sequental; did you mean 'sequential'?": [
            *("--solver", "sequental")
        ],
        "there is no such solver; --solver split; choose from anneal,": ["--solver", "split"],
        "conditional-mixture has no such parameter; --solver; choose from aligned, ": [
            *("--method", "conditional-mixture", "--solver", "anneal")
        ],
        "; --solver is a parameter of ccib, ": [
            *("--method", "conditional-mixture", "--solver", "anneal")
        ],
        "there is no such features; --features poison; choose from auto, multi": [
            *("--features", "poison")
        ],
        "the methods of --method auto have no such parameter; --set foo; choose": [
            *("--set", "foo=1")
        ],
        "ccib has no such parameter; --set foo; choose": ["--set", "foo=1", "--method", "CCIB"],
    }
    model = f"""
known = "species"
[data]
file = "{data.name}"
label_columns = ["species"]
[[methods]]
name = "ccib"
"""
    wrong = [("ccib", "ccbi"), (data.name, "none.csv"), ('["species"]', '["speces"]')]
    for name, (right, slip) in zip("abc", wrong, strict=True):
        (tmp_path / f"{name}.toml").write_text(model.replace(right, slip))
    (tmp_path / "good.toml").write_text(model)
    (tmp_path / "gap.csv").write_text("x,y,species\n,1,a\n2,,b\n")
    (tmp_path / "gap.toml").write_text(model.replace(data.name, "gap.csv"))
    commands = [["fit", str(data), *arguments] for arguments in refusals.values()]
    of_explore = {
        "there is no such criterion; --criterion foo; choose from structure, gap": [
            "--criterion",
            "foo",
        ],
        "--alpha must be a probability; got 2.0; pass a number from 0 to 1": ["--alpha", "2"],
        "--n-clusterings must be an integer of at least 1; got 0; pass": ["--n-clusterings", "0"],
        "--k must be an integer of at least 1; got -1; pass": ["--k", "-1"],
    }
    commands += [["explore", str(data), *arguments] for arguments in of_explore.values()]
    commands += [["run", str(tmp_path / f"{name}.toml")] for name in ("a", "b", "c", "none")]
    commands += [["run", str(tmp_path / "good.toml"), "--out", str(file)]]
    fitted = tmp_path / "fitted"
    fitted.mkdir()
    (fitted / "labels.csv").touch()
    commands += [["run", str(tmp_path / "good.toml"), "--out", str(fitted)]]
    late = [["run", str(tmp_path / "gap.toml"), "--out", str(tmp_path / "out")]]
    latest = [["fit", str(data), *arguments] for arguments in of_classes.values()]
    commands += [["report", str(tmp_path / "none")], ["report", str(tmp_path), "--out", str(data)]]
    messages = [
        *refusals,
        *of_explore,
        "unknown method; 'ccbi'; did you mean 'ccib'?",
        "no such data file; ",
        "no such column; 'speces'",
        "cannot read the model file",
        "cannot write",
        "the folder has results of another command",
        "there is no such folder",
        "the file exists already",
        "missing or infinite values; 1 in 'x', 1 in 'y' (2 of 2 rows); fill them in, or leave out",
        *of_classes,
    ]
    code = f"""
import sys
from nrprob.cli import app
def refused(commands, *not_loaded):
    for arguments in commands:
        try:
            app(arguments)
        except SystemExit as end:
            assert end.code == 2
    heavy = {{*not_loaded}} & set(sys.modules)
    assert not heavy, heavy
refused({commands}, "jax", "sklearn", "scipy", "pandas", "matplotlib")
# Here the data were read.
refused({late}, "jax", "sklearn", "matplotlib")
# What a method takes stands on its class.
refused({latest}, "matplotlib")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(messages), done.stderr
    for line, message in zip(lines, messages, strict=True):
        assert message in line


def test_what_is_wrong_with_a_table_is_told_before_jax_is_loaded(untidy, tmp_path):
    lines = untidy.read_text().splitlines()
    (tmp_path / "one.csv").write_text("\n".join(lines[:2]))
    (tmp_path / "counts.csv").write_text("a,b\n" + "0,3\n1,0\n0,0\n" * 9)
    untidy, one, counts = str(untidy), str(tmp_path / "one.csv"), str(tmp_path / "counts.csv")
    (tmp_path / "own.csv").write_text(
        "a,b,g\n" + "".join(f"{i % 7}.5,{i % 3},g{i}\n" for i in range(40))
    )
    own, alone = str(tmp_path / "own.csv"), "every row has its own known group, so no clustering"
    few_entries = str(tmp_path / "sparse.npz")
    scipy.sparse.save_npz(few_entries, scipy.sparse.eye_array(30, 9, format="csr"))
    known = ["--known", "group", "--known", "size", "--missing", "drop"]
    numbers = (
        "takes no continuous covariates; got floats in --known size; "
        "cut the values into groups, or "
    )
    few = "there are fewer rows than clusters; got "
    refusals = {
        f"{few}--k 1000 for 56 rows; ask for fewer": [*("fit", untidy, "--k", "1000"), *known],
        f"{few}2 clusters, which is the default, for 1 row; ": [*("fit", one, "--drop", "site")],
        f"{few}--k 28 for 27 rows; ask": ["fit", counts, "--k", "28", "--method", "mdl_mixture"],
        f"naci {numbers}": [*("fit", untidy, "--method", "naci"), *known],
        f"COALA {numbers}": [*("fit", untidy, "--method", "COALA"), *known],
        f"condens {numbers}": [*("fit", untidy, "--method", "condens"), *known],
        f"explore {numbers}use `nrprob fit`": ["explore", untidy, *known],
        f"{few}2 clusters, which": ["explore", one, "--drop", "site"],
        f"{few}--k 30 for 27 rows": ["explore", counts, "--k", "30", "--n-clusterings", "1"],
        "naci takes no sparse matrix; got --method naci with sparse rows; store": [
            *("fit", few_entries, "--method", "naci")
        ],
        "--n-clusterings must be given if the features have no test; got no number for counts": [
            *("explore", counts)
        ],
        f"{alone} adds information; got 40 groups for 40 rows; --known g; pass": [
            *("fit", own, "--known", "g", "--method", "ccib")
        ],
        f"{alone} adds": ["fit", own, "--known", "g"],
        f"{alone} ": ["explore", own, "--known", "g"],
        "IBSI needs a parameter that has no default; --set gamma; add it": [
            *("fit", own, "--known", "g", "--method", "ibsi")
        ],
    }
    refusals = dict(sorted(refusals.items(), key=lambda item: "--method" in item[1]))
    code = f"""
import sys
from nrprob.cli import app
for arguments in {[*refusals.values()]}:
    try:
        app([*arguments, "--out", {str(tmp_path / "out")!r}])
    except SystemExit as end:
        assert end.code == 2
    # What a method takes stands on its class.
    assert "jax" not in sys.modules or "--method" in arguments, arguments
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == len(refusals), done.stderr
    for line, message in zip(lines, refusals, strict=True):
        assert message in line


def test_methods_that_are_recommended_are_the_choices_of_auto():
    chosen = {v for v in vars(advice).values() if hasattr(v, "capabilities")}
    assert {METHODS[name].load() for name in validation.RECOMMENDED} == chosen


def test_methods_refuse_groups_of_single_rows_or_are_said_not_to():
    X, own = np.random.default_rng(0).normal(size=(12, 3)) > 0, np.arange(12)
    for name, method in METHODS.items():
        takes = method.capabilities
        if takes.known and takes.known_as == "known":
            model = method.load()(**dict.fromkeys(method.required, 1.0))
            try:
                with warnings.catch_warnings(action="ignore"):
                    model.fit(X.astype(float), known=own)
            except ValueError as error:
                assert "group" in str(error) and not takes.singleton_groups, name
            else:
                assert takes.singleton_groups, name


def test_labels_that_label_no_row_are_refused(invoke, data, tmp_path):
    frame = pd.read_csv(data).assign(empty="")
    frame.to_csv(data, index=False)
    line = refused(invoke("fit", data, "--labels", "empty", "--out", tmp_path / "out"))
    assert "no row has a label; column empty of --labels holds only empty cells or -1" in line


def test_a_column_called_cluster_does_not_replace_the_clusters(invoke, data, tmp_path):
    frame = pd.read_csv(data).rename(columns={"species": "cluster"})
    frame.to_csv(data, index=False)
    out = tmp_path / "out"
    result = invoke("fit", data, "--known", "cluster", "--out", out, "--no-plot", *FAST)
    assert result.exit_code == 0, result.output
    labels = pd.read_csv(out / "labels.csv")
    assert set(labels["cluster"]) == {0, 1}
    assert labels["cluster (data)"].tolist() == frame["cluster"].tolist()


def test_what_controls_a_terminal_is_not_printed(capsys):
    terminal.print_result("\x1b]0;hi\x07title")
    assert capsys.readouterr().out == "\ufffd]0;hi\ufffdtitle\n"


def test_long_work_prints_a_line_now_and_then_without_a_terminal(capsys, monkeypatch):
    class Stopped:
        """Event that is set in the third interval."""

        intervals: list[float] = []

        def wait(self, seconds):
            self.intervals.append(seconds)
            return len(self.intervals) > 2

    terminal.print_elapsed(["reading", "fitting [a]"], Stopped())
    assert capsys.readouterr().err == "fitting [a]: 30 s\nfitting [a]: 60 s\n"
    assert Stopped.intervals == [30] * 3
    started = []
    monkeypatch.setattr(
        terminal, "print_elapsed", lambda lines, stop: started.append((lines, stop))
    )
    with pytest.raises(KeyboardInterrupt), terminal.show_spinner("reading") as report:
        report("fitting")
        raise KeyboardInterrupt
    ((lines, stop),) = started
    assert lines == ["reading", "fitting"] and stop.is_set()
    assert capsys.readouterr().err == ""


def test_a_spinner_shows_the_latest_message(monkeypatch):
    console = terminal.Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(terminal, "get_console", lambda stderr=False: console)
    with terminal.show_spinner("fitting clustering 1") as report:
        report("fitting clustering 2")
    assert "fitting clustering 2" in console.file.getvalue()


def test_probabilities_of_subsets_are_no_numbers_to_refuse(invoke, data, tmp_path, monkeypatch):
    frame = pd.read_csv(data).drop(columns=["species", "other"])
    share = np.linspace(0, 1, len(frame))
    frame.assign(p=share, q=1 - share).to_csv(data, index=False)

    def reached(*_, **__):
        raise LookupError("so far")

    monkeypatch.setattr("nrprob.batch.fits.fit_method", reached)
    options = ["--known", "p", "--known", "q", "--out", tmp_path / "out"]
    assert str(invoke("fit", data, "--method", "cross_partition", *options).exception) == "so far"
    line = refused(invoke("fit", data, "--method", "naci", *options))
    assert "floats in --known p, --known q" in line


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("lower n_clusters or raise n_init", "lower --k or raise --n-init"),
        ("got n_clusters=3 and n_clusterings=None", "got --k 3 and --n-clusterings None"),
        ("no such parameter; --set solver; choose", "no such parameter; --solver; choose"),
        ("use features='gaussian', or another features=", "use --features 'gaussian', or another "),
        ("n_clusters_base of the features", "n_clusters_base of the features"),
        ("got a sparse matrix; pass X.toarray(), or", "got a sparse matrix; store the rows as a "),
        ("logarithms, by log='auto' of nrprob.prepare", "logarithms, by --log auto"),
        ("nats; compare both in optima_, raise n_init, or", "nats; raise --n-init, or"),
        (
            "Sparse data was passed for X, but dense data is required. Use '.toarray()' to convert "
            "to a dense numpy array.",
            "but dense data is required; store the rows as a dense matrix.",
        ),
    ],
)
def test_messages_are_in_terms_of_the_options(said, shown):
    assert shown in validation.in_options(said)
    assert "toarray" not in validation.in_options(said)
    # `explore` has no option for restarts.
    assert "--n-init" not in validation.in_options_of_explore(said)


def test_results_are_not_overwritten_in_silence(invoke, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--known", "species", "--method", "conditional-mixture", "--n-init", "1"]
    fit = lambda *more: invoke("fit", data, *options, *more)  # noqa: E731
    assert fit().exit_code == 0
    first = {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    assert set(first) == RESULTS | {"summary.png"}
    line = refused(fit("--out", "results"))
    assert (
        "the folder has results; results/labels.csv; choose another folder with --out, or add"
        in line
    )
    # Without --out, results go to a new folder.
    again = fit("--k", "3", "--no-plot")
    assert again.exit_code == 0, again.output
    (other,) = tmp_path.glob("results-*")
    assert f"note: results has results already; the new results go to {other.name}" in again.stderr
    assert {path.name for path in other.iterdir()} == RESULTS
    assert {p.name: p.read_bytes() for p in (tmp_path / "results").iterdir()} == first
    # Files are replaced completely, and only when new ones exist.
    assert refused(fit("--out", "results", "--force", "--k", "0"))
    assert {p.name: p.read_bytes() for p in (tmp_path / "results").iterdir()} == first
    assert fit("--out", "results", "--force", "--no-plot", "--k", "3").exit_code == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    assert set(written) == RESULTS
    assert written["labels.csv"] == (other / "labels.csv").read_bytes() != first["labels.csv"]


def test_two_fits_at_once_do_not_share_a_folder(invoke, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--known", "species", "--method", "conditional-mixture", "--n-init", "1"]
    fit, others = fits.fit_method, []

    def while_another_does(*arguments, **keywords):
        if not others:
            others.append(None)
            with monkeypatch.context() as other:  # a lock of another, running process
                other.setattr(os, "getpid", os.getppid)
                others.append(invoke("fit", data, *options, "--no-plot"))
                others.append(invoke("fit", data, *options, "--out", "results"))
        return fit(*arguments, **keywords)

    monkeypatch.setattr(fits, "fit_method", while_another_does)
    first = invoke("fit", data, *options, "--no-plot")
    assert first.exit_code == 0, first.output
    _, second, third = others
    assert second.exit_code == 0, second.output
    (other,) = tmp_path.glob("results-*")
    assert (
        f"results is in use by another command; the new results go to {other.name}" in second.stderr
    )
    assert "another command writes to the output folder; results; wait" in refused(third)
    for folder in (tmp_path / "results", other):
        assert {path.name for path in folder.iterdir()} == RESULTS


def test_a_fit_that_fails_leaves_no_folder(invoke, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--known", "species", "--k", "1000"]
    for results in (False, True):
        if results:
            (tmp_path / "results").mkdir()
            (tmp_path / "results" / "labels.csv").touch()
        result = invoke("fit", data, *options)
        assert "1000" in refused(result) and "the new results go to" not in result.stderr
        assert [*tmp_path.glob("results*")] == [tmp_path / "results"] * results
    assert refused(invoke("fit", data, *options, "--out", tmp_path / "a" / "b"))
    assert not (tmp_path / "a").exists()


def test_what_is_overwritten_leaves_nothing_of_its_own(invoke, data, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    ours = ["summary.png", "clustering_1.png", "clustering_2.png", "clustering_2_evidence.png"]
    theirs = ["clustering_mine.png", "other.png", "clustering_1.txt"]
    common = ["--known", "species", "--no-plot", "--out", out]
    fit = ["fit", data, "--method", "conditional-mixture", "--n-init", "1"]
    explore = ["explore", data, "--n-clusterings", "1", "--k", "2"]
    for command in (fit, explore):
        for name in (*ours, *theirs):
            (out / name).touch()
        assert "the folder has results; " in refused(invoke(*command, *common))
        result = invoke(*command, *common, "--force")
        assert result.exit_code == 0, result.output
        assert {path.name for path in out.iterdir()} == RESULTS | {*theirs}


def test_a_report_is_not_written_over_another_file(invoke, tmp_path):
    (tmp_path / "mine.html").write_text("mine")
    line = refused(invoke("report", tmp_path, "--out", tmp_path / "mine.html"))
    assert "the file exists already; " in line and "--force" in line
    forced = refused(invoke("report", tmp_path, "--out", tmp_path / "mine.html", "--force"))
    assert "the file exists already" not in forced
    assert (tmp_path / "mine.html").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.contract
def test_features_of_a_matrix_may_have_names(invoke, tmp_path):
    rng = np.random.default_rng(0)
    X = scipy.sparse.csr_array(rng.poisson(0.5, (60, 6)))
    scipy.sparse.save_npz(tmp_path / "counts.npz", X)
    np.savez(tmp_path / "dense.npz", X=X.toarray(), z=np.arange(60) % 2, words=[*"abcdef"])
    (tmp_path / "words.txt").write_text("a\nb\nc\nd\ne\nf\n")
    pd.DataFrame({"word": [*"abcdef"]}).to_csv(tmp_path / "words.csv", index=False)
    options = ["--no-plot", "--force", "--out", tmp_path / "out"]
    options += ["--method", "ib", *FAST]

    def features(file, names, *more):
        arguments = ["--feature-names", names, "--compare", f"{tmp_path / 'dense.npz'}:z"]
        result = invoke("fit", tmp_path / file, *arguments, *more, *options)
        assert result.exit_code == 0, result.output
        return json.loads((tmp_path / "out" / "result.json").read_text())["prepared"]["features"]

    assert features("counts.npz", tmp_path / "words.txt") == [*"abcdef"]
    assert features("counts.npz", f"{tmp_path}/words.csv:word", "--drop", "b,e") == [*"acdf"]
    assert features("dense.npz", "words", "--columns", "f,b") == [*"fb"]
    assert features("dense.npz", "words", "--columns", "f", "--columns", "b") == [*"fb"]
    np.savetxt(tmp_path / "few.txt", [1, 2])
    for names, message in (
        (tmp_path / "few.txt", "got 2 names (2 distinct) for 6 columns"),
        ("wrods", "no such column; 'wrods'; did you mean 'words'?"),
    ):
        line = refused(invoke("fit", tmp_path / "dense.npz", "--feature-names", names, *options))
        assert message in line
    line = refused(invoke("fit", tmp_path / "dense.npz", "--drop", "a", *options))
    assert "no names; " in line and "name them with --feature-names" in line


@pytest.mark.parametrize("method", ["mixture", *slowly("conditional-mixture", "auto")])
def test_the_number_of_clusters_is_found_where_it_can_be(invoke, tmp_path, method):
    rng = np.random.default_rng(0)
    sought = np.arange(90) % 3
    X = rng.normal(size=(90, 2)) + np.eye(3)[sought][:, :2] * 20
    pd.DataFrame(X, columns=["x", "y"]).to_csv(tmp_path / "rows.csv", index=False)
    options = ["--k", "auto", "--no-plot", "--n-init", "2", "--out", tmp_path / "out"]
    result = invoke("fit", tmp_path / "rows.csv", "--method", method, *options)
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert stored["n_clusters"] == 3 and stored["parameters"]["n_clusters"] == "auto"


def test_methods_that_find_the_number_of_clusters_are_listed():
    from nrprob.batch.registry import METHODS

    for method in METHODS.values():
        said = re.search(r'\b(n|max)_clusters : .*"auto"', method.load().__doc__)
        assert method.capabilities.finds_number == bool(said), method.class_name


def test_python_runs_the_package_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "nrprob", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"nrprob {nrprob.__version__}\n", done.stderr


def test_known_of_another_length(invoke, data, tmp_path):
    pd.DataFrame({"z": [0, 1]}).to_csv(tmp_path / "short.csv", index=False)
    line = refused(invoke("fit", data, "--known", f"{tmp_path / 'short.csv'}:z"))
    assert "2 values for 80 rows" in line


def test_missing_values_are_told(invoke, data, tmp_path):
    frame = pd.read_csv(data)
    frame.loc[0, "x0"] = np.nan
    frame.to_csv(data, index=False)
    arguments = ["--known", "species", "--out", tmp_path / "o"]
    for more in (["--missing", "error"], ["--method", "ccib"]):
        line = refused(invoke("fit", data, *arguments, *more))
        assert "values: 1 in 'x0' (1 of 80 rows); --missing drop leaves out such rows" in line
        assert "or --drop x0 the columns, or --missing mean imputes them" in line


@pytest.fixture
def mixed(tmp_path):
    """A table of numbers, text and ratings, with empty cells, an index and names of rows."""
    rng = np.random.default_rng(0)
    hidden, group = rng.integers(2, size=(2, 80))
    frame = pd.DataFrame({"id": np.arange(80), "name": [f"person {i}" for i in range(80)]})
    frame["size"] = rng.normal(size=80) + 5 * hidden + group
    frame["weight"] = 300 * (rng.normal(size=80) + 5 * hidden)
    frame["colour"] = np.where(rng.random(80) < 0.2 + 0.6 * hidden, "red", "blue")
    frame["rating"] = rng.integers(1, 6, 80)
    frame["group"] = np.array(["a", "b"])[group]
    frame["age"] = rng.normal(40, 9, 80)
    frame.loc[:5, "size"] = frame.loc[3:9, "colour"] = frame.loc[20:24, "group"] = np.nan
    path = tmp_path / "mixed.csv"
    frame.to_csv(path, index=False)
    return path, hidden


def test_reading_options_do_not_apply_to_other_label_files(invoke, mixed, tmp_path):
    path, _ = mixed
    table, labels = tmp_path / "semicolons.csv", tmp_path / "labels.csv"
    frame = pd.read_csv(path)
    frame[["size", "rating"]].fillna(0).to_csv(table, index=False, sep=";")
    frame[["rating", "age", "group"]].to_csv(labels, index=False)
    result = invoke(
        "fit", table, "--sep", "semicolon", "--known", f"{labels}:group", "--out", tmp_path / "o",
        *FAST,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert set(pd.read_csv(tmp_path / "o" / "labels.csv")["group"]) == {"a", "b", "(missing)"}


def test_text_and_empty_cells_need_no_options(invoke, mixed, tmp_path):
    path, hidden = mixed
    result = invoke("fit", path, "--known", "group", "--out", tmp_path / "o", *FAST)
    assert result.exit_code == 0, result.output
    for line in (
        "'name' is left out: text that differs in every row", "'id' is left out: whole numbers",
        "rows without a value of known 'group' (5) form a separate group",
        "X has text in 'colour' and missing values in 'size', 'colour'",
    ):  # fmt: skip
        assert sum(line in said for said in result.stderr.splitlines()) == 1
    labels = pd.read_csv(tmp_path / "o" / "labels.csv")
    assert len(labels) == 80 and set(labels["group"]) == {"a", "b", "(missing)"}
    agreement = (labels["cluster"] == hidden).mean()
    assert max(agreement, 1 - agreement) > 0.9
    kinds = json.loads((tmp_path / "o" / "result.json").read_text())["prepared"]["kinds"]
    assert kinds == {
        "size": "number", "weight": "number", "colour": "categorical", "rating": "ordered",
        "age": "number",
    }  # fmt: skip
    # A cluster is described by means and shares, here and on the page, in the units of the table.
    said = [line for line in result.stdout.splitlines() if line.startswith("cluster 0: ")]
    frame = pd.read_csv(path)
    inside = frame[labels["cluster"] == 0]
    share = [100 * (rows["colour"].dropna() == "red").mean() for rows in (inside, frame)]
    assert len(said) == 1 and f"colour: red {share[0]:.0f} % ({share[1]:.0f} %" in said[0]
    assert f"weight: {inside['weight'].mean():,.0f} ({frame['weight'].mean():,.0f}" in said[0]
    text = " ".join(page_of(tmp_path / "o" / "report.html").text.split())
    assert said[0].removeprefix("cluster 0: ") in text
    assert "categorical: colour; ordered: rating; missing values: size (6), colour (7)" in text


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        (["--categorical", "rating"], {"rating": "categorical"}),
        (["--ordered", "colour", "--drop", "age"], {"colour": "ordered"}),
        (["--columns", "id,size,weight"], {"id": "number"}),
    ],
)
def test_the_user_names_kinds_of_columns(invoke, mixed, tmp_path, more, kinds):
    result = invoke("fit", mixed[0], *more, "--out", tmp_path / "o", *FAST)
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "o" / "result.json").read_text())["prepared"]["kinds"]
    assert (kinds.items() <= stored.items() and "age" not in more[1:]) or "age" not in stored


def test_covariates_make_numbers_of_text(invoke, mixed, tmp_path):
    arguments = ["--known", "age", "--known", "group", "--out", tmp_path / "o", *FAST]
    line = refused(invoke("fit", mixed[0], *arguments))
    assert "missing values: 6 in 'size', 7 in 'colour', 5 in known 'group'" in line
    result = invoke("fit", mixed[0], *arguments, "--missing", "drop")
    assert result.exit_code == 0, result.output
    assert "text 'colour' became binary columns" in result.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--categorical", "colour", "--ordered", "colour"],
            "in --categorical and --ordered; remove",
        ),
        (["--categorical", "colour", "--drop", "colour"], "colour in --categorical and --drop"),
        (["--ordered", "colours"], "no such column; 'colours'; did you mean 'colour'?"),
        (["--missing", "mean"], "text has no mean; "),
        (["--missing", "keep", "--method", "naci"], "or --missing mean, or use conditional-mixt"),
    ],
)
def test_columns_that_are_named_wrongly(invoke, mixed, tmp_path, more, message):
    assert message in refused(invoke("fit", mixed[0], *more, "--out", tmp_path / "o"))


@pytest.fixture
def untidy(tmp_path):
    """A table of a user: names, row numbers, years, text, missing values, different scales."""
    rng = np.random.default_rng(0)
    known, sought = rng.integers(2, size=(2, 60))
    X = np.outer(sought, [6, 0]) + np.outer(known, [4, 9]) + rng.normal(size=(60, 2))
    frame = pd.DataFrame(X * [1, 1000], columns=["size", "weight"])
    frame.insert(0, "sample", [f"s{i}" for i in range(60)])
    frame["sample_id"] = 1000 + np.arange(60)
    frame["year built"] = rng.integers(1990, 2020, 60)
    frame["site"] = rng.choice(["north", "south"], 60)
    frame["group"] = np.array(["a", "b"])[known]
    frame["sought"] = sought
    frame.loc[[3, 8], "weight"] = np.nan
    frame.loc[5, "group"] = None
    frame["partly"] = frame["sought"].where(frame.index != 7)
    path = tmp_path / "untidy.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("command", ["explore", *slowly("fit")])
def test_what_was_done_to_a_table_is_said_and_kept(invoke, untidy, tmp_path, command, monkeypatch):
    arguments = ["--known", "group", "--compare", "sought", "--compare", "partly"]
    arguments += ["--missing", "drop", "--no-plot", "--out", str(tmp_path / "out")]
    arguments += ["--n-clusterings", "1"] if command == "explore" else ["--n-init", "5"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/nrprob", command, "untidy.csv", "--known", "a b"])
    result = invoke(command, untidy, *arguments)
    assert result.exit_code == 0, result.output
    said = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    for line in (
        "'sample' is left out: text that differs in every row identifies rows",
        "3 of 60 rows left out, for missing values: 2 in 'weight', 1 in known 'group'",
        "--compare partly: rows without a value (1) form a separate group",
        "'sample_id' is left out: whole numbers that differ in every row",
        "to 'weight': 'size', 'weight', 'year built'",
    ):
        assert any(line in own for own in said), (line, result.stderr)
    warned = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert (
        "'year built' looks like a year; if so, leave the column out with --drop 'year built'"
        in warned[0]
    )
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert stored["command"] == f"nrprob {command} untidy.csv --known 'a b'"
    digest = hashlib.sha256(untidy.read_bytes()).hexdigest()
    assert stored["files"] == {str(untidy): digest}
    assert stored["versions"]["pandas"]
    done = stored["prepared"]
    assert done["features"] == ["size", "weight", "year built", "site"]
    assert done["rows_left_out"] == [3, 5, 8]
    assert set(done["scales"]) == {"size", "weight", "year built"}
    assert all(f"note: {line}" in said for line in done["notes"])
    assert all(f"warning: {line}" in warned for line in done["warnings"])
    if command == "explore":
        own = [*done["warnings"], *stored["warnings"]]
        assert [f"warning: {line}" for line in own] == warned
        page = (tmp_path / "out" / "report.html").read_text()
        assert page.count("<strong>Warning:</strong>") == len(own)
    # The first column that identifies rows names them, and labelings keep their rows.
    labels = pd.read_csv(tmp_path / "out" / "labels.csv")
    frame = pd.read_csv(untidy).drop(index=[3, 5, 8])
    assert labels["row"].tolist() == frame["sample"].tolist()
    assert any("'sample' names the rows of the results" in line for line in said)
    heads = [cells[0] for cells in page_of(tmp_path / "out" / "report.html").cells]
    assert "sample" in heads and "row" not in heads
    for name in ("group", "sought"):
        assert labels[name].tolist() == frame[name].tolist()


def test_numbers_may_be_known_beside_labels(invoke, untidy, tmp_path):
    arguments = ["--known", "group", "--known", "weight", "--missing", "drop", "--no-plot"]
    arguments += ["--drop", "sample,sample_id,year built,site,sought,partly"]
    arguments += ["--out", tmp_path / "out"]
    result = invoke("fit", untidy, *arguments, "--n-init", "5")
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert stored["known"] == ["group"] and stored["prepared"]["known"] == ["group", "weight"]
    assert stored["n_features"] == 1 and stored["n_samples"] == 57
    line = refused(invoke("fit", untidy, *arguments, "--force", "--method", "condens"))
    assert "condens takes no continuous covariates; got floats in --known weight; cut" in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot read the file as CSV; "),
        ("a,b,species\n", "the table has no rows; "),
        ("a,b,species\nu,v,x\nu,v,y\n", "no feature is left; got 'a', 'b', which hold neither"),
        (
            "a,b,species\n1,2,\n3,4,\n",
            "known columns must have values; got only missing values in 'species'",
        ),
        ("a,b,species\n1,2,x\n3,inf,y\n", "values must be finite; got infinity: 1 in 'b'; "),
        ("a,b,species\n1,2,x\n1,2,3,4,5,6\n", "line 3 has 6 values for 3 columns; check its"),
        ('a,b,species\n1,2,x\n1,2,"y\n', "a quotation mark in line 3 is not closed; "),
        (b"a,species\n1,\x81\n", "the encoding of the text is unknown; "),
        (b"a,species\n1,\0\n", "the file is not a text file; "),
    ],
)
def test_tables_that_do_not_serve(invoke, tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused(invoke("fit", path, "--known", "species", "--out", tmp_path / "out"))
    assert message in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["labels.csv", "report.html", "result.json", "summary.png"])
def test_places_are_tried_before_the_fit(invoke, data, tmp_path, monkeypatch, name):
    monkeypatch.setattr("nrprob.batch.fits.fit_method", lambda *_, **__: pytest.fail("fitted"))
    (tmp_path / "out" / name).mkdir(parents=True)
    line = refused(invoke("fit", data, "--known", "species", "--out", tmp_path / "out"))
    assert f"{name}: Is a directory; check the folder" in line


def test_traceback_on_request(invoke, data, monkeypatch):
    monkeypatch.setenv("NRPROB_TRACEBACK", "1")
    result = invoke("fit", data, "--method", "ccbi")
    assert isinstance(result.exception, ValueError)


MODEL = """
known = "partition_0"
[data]
generator = "make_binary_partitions"
parameters = { n_samples = 60, dims = [6, 4] }
[[methods]]
name = "ccib"
n_init = 2
random_state = 0
[[methods]]
name = "ib"
title = "IB, without known structure"
n_init = 2
random_state = 0
"""


@pytest.mark.slow
@pytest.mark.contract
def test_run_several_files(invoke, tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(MODEL)
    out = tmp_path / "out"
    result = invoke("run", tmp_path / "one.toml", tmp_path / "two.toml", "--out", out)
    assert result.exit_code == 0, result.output
    assert "IB, without known structure" in result.stdout
    for name in ("one", "two"):
        stored = json.loads((out / name / "result.json").read_text())
        assert [c["method"] for c in stored["contrast"]] == ["IB"]


def test_run_writes_what_it_promises(invoke, tmp_path):
    (tmp_path / "one.toml").write_text(MODEL + "[save]\nmemberships = true\n")
    result = invoke("run", tmp_path / "one.toml", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    labels = pd.read_csv(tmp_path / "out" / "labels.csv")
    assert list(labels.columns) == ["row", "cluster", "membership", "partition_0", "partition_1"]
    stored = json.loads((tmp_path / "out" / "result.json").read_text())
    assert stored["known"] == ["partition_0"]
    assert stored["parameters"]["n_init"] == 2
    assert stored["parameters"]["cooling"] == 1.15
    assert stored["seed"] == 0
    assert stored["cluster_sizes"] == np.bincount(labels["cluster"]).tolist()
    assert stored["versions"]["jax"]
    assert set(stored["scores"]) == {
        f"{short} of partition_{i}" for short in ("NMI", "accuracy") for i in (0, 1)
    }
    assert (tmp_path / "out" / "summary.png").is_file()
    sizes = [[str(c), str(size)] for c, size in enumerate(stored["cluster_sizes"])]
    rows = page_of(tmp_path / "out" / "report.html").cells
    assert all(size in [row[:2] for row in rows] for size in sizes)
    # The page of numbers also has the clusters of the run.
    assert invoke("report", tmp_path / "out").exit_code == 0
    page = page_of(tmp_path / "out" / "report.html")
    assert all(row in page.cells for row in rows)
    assert page.captions[-1].startswith("Seconds of a device") and len(page.images) == 1


# Fits that compile nothing.
QUICK = """
[data]
generator = "make_binary_partitions"
parameters = { n_samples = 30, dims = [4, 4] }
[report]
picture = ""
[[methods]]
name = "cop_kmeans"
"""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", ["labels.csv", "clustering_1.png"])
def test_run_does_not_overwrite_a_fit(invoke, tmp_path, monkeypatch, name):
    monkeypatch.setattr("nrprob.batch.runner.run_plan", lambda *_, **__: pytest.fail("ran"))
    (tmp_path / "one.toml").write_text(QUICK)
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    line = refused(invoke("run", tmp_path / "one.toml", "--out", out))
    assert f"the folder has results of another command; {out / name}; choose another" in line
    assert contents(out) == {name: b"mine"}


def test_run_overwrites_a_fit_if_it_is_told_to(invoke, tmp_path):
    (tmp_path / "one.toml").write_text(QUICK)
    out = tmp_path / "out"
    out.mkdir()
    for name in ("labels.csv", "summary.png", "clustering_1.png", "other.png"):
        (out / name).write_text("mine")
    result = invoke("run", tmp_path / "one.toml", "--out", out, "--force")
    assert result.exit_code == 0, result.output
    written = contents(out)
    own = {"plan.json", "manifest.json", "notes.json", "results.nc"}
    assert {*written} == RESULTS | own | {"other.png"}
    assert written["labels.csv"] != b"mine" == written["other.png"]
    # From now on the folder belongs to the run.
    assert invoke("run", tmp_path / "one.toml", "--out", out).exit_code == 0
    # No fit may use it.
    line = refused(invoke("fit", tmp_path / "one.csv", "--out", out, "--force"))
    assert "no such data file" in line
    pd.DataFrame({"x": [0.0, 1, 2, 9], "y": [3.0, 1, 4, 1]}).to_csv(tmp_path / "one.csv")
    line = refused(invoke("fit", tmp_path / "one.csv", "--out", out, "--force"))
    assert f"the folder has results of a model file; {out / 'plan.json'}; choose another" in line


@pytest.mark.slow
@pytest.mark.contract
def test_results_of_other_fits_are_not_replaced_in_silence(invoke, tmp_path):
    model, out = tmp_path / "one.toml", tmp_path / "out"
    command = "run", model, "--out", out
    said = "has results of other fits; the results of"
    model.write_text(QUICK)
    assert said not in invoke(*command).stderr
    model.write_text('title = "a title"\n' + QUICK)
    assert said not in invoke(*command).stderr
    assert json.loads((out / "result.json").read_text())["title"] == "a title"
    model.write_text(QUICK + "n_clusters = 3\n")
    assert said in invoke(*command).stderr
    assert json.loads((out / "result.json").read_text())["n_clusters"] == 3
    # Several fits have a page only.
    model.write_text("runs = 2\n" + QUICK)
    assert said in invoke(*command).stderr
    assert RESULTS & {*contents(out)} == {"report.html"}
    model.write_text("runs = 3\n" + QUICK)
    assert "has results of other fits" not in invoke(*command).stderr
    assert "report.html" in contents(out)


def test_a_single_run_may_be_done_in_parts(invoke, tmp_path):
    model, out = tmp_path / "one.toml", tmp_path / "out"
    rival = '[[methods]]\nname = "sklearn.cluster.KMeans"\ntitle = "a"\n'
    model.write_text(
        QUICK + rival + '[[methods]]\nname = "cop_kmeans"\ntitle = "the first again"\n'
    )
    result = invoke("run", model, "--out", out, "--only", "method=cop_kmeans")
    assert result.exit_code == 0, result.output
    assert "1 fits done" in result.stdout and "labels.csv" not in contents(out)
    assert invoke("run", model, "--out", out).exit_code == 0
    stored = json.loads((out / "result.json").read_text())
    assert [fit["title"] for fit in stored["contrast"]] == ["a", "the first again"]
    assert stored["contrast"][1]["cluster_sizes"] == stored["cluster_sizes"]


def test_a_page_of_a_fit_is_not_replaced_by_one_of_runs(invoke, tmp_path):
    (tmp_path / "one.toml").write_text(QUICK)
    assert invoke("run", tmp_path / "one.toml", "--out", tmp_path / "out" / "one").exit_code == 0
    out = tmp_path / "out"
    for _ in range(2):
        assert invoke("report", out).exit_code == 0
    (out / "result.json").touch()
    before = contents(out)
    line = refused(invoke("report", out))
    assert (
        f"the folder has the page of `nrprob fit`; {out / 'report.html'}; name another file" in line
    )
    assert contents(out) == before
    assert invoke("report", out, "--force").exit_code == 0


SWEEP = """
known = "partition_0"
runs = 2
[data]
generator = "make_binary_partitions"
parameters = { n_samples = 60 }
grid = { dims = [[6, 4], [4, 4]] }
[[methods]]
name = "ccib"
n_init = 2
"""


def test_run_goes_on_where_it_stopped(invoke, tmp_path):
    (tmp_path / "a.toml").write_text(SWEEP)
    command = ("run", tmp_path / "a.toml", "--out", tmp_path / "out")
    result = invoke(*command, "--only", "dims=[6, 4]", "--only", "run=1")
    assert result.exit_code == 0, result.output
    assert "1 fits done, 0 done before" in result.stdout
    page = tmp_path / "out" / "report.html"
    assert f"wrote {page}" in result.stdout and "1 of 4" in page_of(page).text
    result = invoke(*command, "--devices", "0")
    assert "3 fits done, 1 done before" in result.stdout
    assert "1 of 4 fits were finished by earlier runs" in result.stderr
    result = invoke(*command)
    assert "0 fits done, 4 done before, 0 programs" in result.stdout
    assert any("median time" in caption for caption in page_of(page).captions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "dims"], "a condition is NAME=VALUE"),
        (["--only", "dim=3"], "did you mean 'dims'"),
        (["--only", "method=CCIBB"], "did you mean 'CCIB'"),
        (["--only", "table=9"], "no such table"),
        (["--devices", "17"], "no such device; --devices 17"),
        (["--devices", "abacus"], "no such device; --devices abacus"),
        (["--devices", "cpu:x"], "the number of devices is invalid"),
        (["--scheduler", "nonsense"], "no scheduler answers within 10 s; scheduler = nonsense"),
        (["--scheduler", "local", "--devices", "0"], "scheduler = local and devices = 0; leave"),
    ],
)
def test_options_of_run_that_do_not_serve(invoke, tmp_path, options, message):
    (tmp_path / "a.toml").write_text(SWEEP)
    line = refused(invoke("run", tmp_path / "a.toml", "--out", tmp_path / "out", *options))
    assert message in line
    assert not (tmp_path / "out").exists()


def test_check_says_valid_or_what_is_wrong(invoke, tmp_path):
    (tmp_path / "a.toml").write_text(SWEEP)
    result = invoke("check", tmp_path / "a.toml")
    assert result.exit_code == 0
    assert "a.toml: valid; 4 fits on 2 data sets" in result.stdout.replace("\n", "")
    (tmp_path / "b.toml").write_text(SWEEP.replace("n_init", "n_inits"))
    assert "methods.0.n_inits; did you mean 'n_init'" in refused(
        invoke("check", tmp_path / "a.toml", tmp_path / "b.toml")
    )


def test_run_checks_all_files_first(invoke, tmp_path):
    (tmp_path / "good.toml").write_text(MODEL)
    (tmp_path / "bad.toml").write_text(MODEL.replace("n_samples", "x").replace("known", "knwon"))
    line = refused(
        invoke("run", tmp_path / "good.toml", tmp_path / "bad.toml", "--out", tmp_path / "o")
    )
    assert "unknown key; knwon; did you mean 'known'?" in line
    assert not (tmp_path / "o").exists()


def test_run_tries_the_places_of_all_files_first(invoke, tmp_path):
    for name in ("good", "bad"):
        (tmp_path / f"{name}.toml").write_text(MODEL)
    (tmp_path / "o" / "bad" / "summary.png").mkdir(parents=True)
    line = refused(
        invoke("run", tmp_path / "good.toml", tmp_path / "bad.toml", "--out", tmp_path / "o")
    )
    assert "summary.png: Is a directory; check the folder" in line
    assert not (tmp_path / "o" / "good").exists()


@pytest.mark.parametrize("out", [True, False])
def test_two_files_do_not_share_a_folder_of_results(invoke, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.toml").write_text(MODEL)
    options = ["--out", "o"] if out else []
    line = refused(invoke("run", "a/same.toml", "b/same.toml", *options))
    folder = "o/same" if out else "results/same"
    assert f"same output folder; a/same.toml and b/same.toml: {folder}; rename one" in line
    assert not (tmp_path / "o").exists() and not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["run", "report"])
def test_an_interrupt_that_is_swallowed_comes_again(invoke, tmp_path, monkeypatch, command):
    calls = []

    def swallows(phase, info):
        if phase == "start" and not calls:
            calls.append(phase)
            signal.raise_signal(signal.SIGINT)

    def long(*arguments, **keywords):
        gc.callbacks.append(swallows)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(swallows)
        finished = time.monotonic() + 20
        while time.monotonic() < finished:
            pass
        pytest.fail("went on after an interrupt")

    monkeypatch.setattr("nrprob.batch.runner.run_plan", long)
    monkeypatch.setattr("nrprob.batch.report.write_report", long)
    (tmp_path / "a.toml").write_text(SWEEP)
    before = sys.unraisablehook
    # A shell without job control makes its background processes ignore the signal.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = invoke(command, tmp_path / "a.toml" if command == "run" else tmp_path)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert calls and result.exit_code in (1, 130)
    assert ("repeat the command to resume the run" in result.stderr) == (command == "run")
    assert sys.unraisablehook is before


def test_methods_are_read_in_80_columns(invoke, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = invoke("methods")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for name, method in METHODS.items():
        takes = ", takes --known" if method.capabilities.known else ""
        start = lines.index(f"{name}  ({method.class_name}{takes})") + 1
        # What it is for, in whole words.
        words = " ".join(" ".join(lines[start : start + 4]).split())
        assert words.startswith(method.purpose)
        solvers = method.words("solver")
        assert not solvers or f"solvers: {', '.join(solvers)}" in words


def test_level_of_the_tests_needs_a_test(invoke, data):
    line = refused(invoke("fit", data, "--alpha", "0.01"))
    assert "got --alpha 0.01 without --test; add --test" in line


def test_defects_keep_their_traceback(invoke, data, monkeypatch):
    def broken(*arguments, **keywords):
        return np.zeros(3) + np.zeros(4)  # numpy's ValueError, which a user could not fix

    monkeypatch.setattr("nrprob.batch.fits.fit_method", broken)
    result = invoke("fit", data, "--known", "species")
    assert result.exit_code == 1
    assert isinstance(result.exception, ValueError)


def test_version(invoke):
    assert invoke("--version").stdout.strip() == f"nrprob {nrprob.__version__}"


def test_help_is_fast_because_it_is_light():
    code = """
import sys
from nrprob.cli import app
try:
    app(["fit", "--help"])
except SystemExit:
    pass
heavy = {"jax", "sklearn", "pandas", "matplotlib", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_quickstart(invoke, tmp_path):

    model = MODELS / "quickstart.toml"
    result = invoke("run", model, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["scores"]["NMI of parity"] < 0.01
    assert stored["scores"]["NMI of stroke"] > 0.9
    # The point of the example: without known labels, the known grouping is found.
    contrast = stored["contrast"][0]["scores"]
    assert contrast["NMI of parity"] > 0.5


def test_the_clusters_that_are_written_are_those_that_are_tested(
    invoke, data, tmp_path, monkeypatch
):
    asked = []

    def answer(estimator, X, known, **options):
        asked.append(estimator.labels_)
        warnings.warn("samples are <copies>", stacklevel=1)
        return fit_result.TestResults(None, None, ("nothing",))

    monkeypatch.setattr("nrprob.batch.fit_result.check_clusters", answer)
    arguments = [
        "--method",
        "mixture",
        "--set",
        "features=gaussian",
        "--test",
        "--n-init",
        "2",
        "--no-plot",
    ]
    result = invoke(
        "fit", data, "--drop", "other", "--drop", "species", "--out", tmp_path / "out", *arguments
    )
    assert result.exit_code == 0, result.output
    labels = pd.read_csv(tmp_path / "out" / "labels.csv")["cluster"]
    np.testing.assert_array_equal(asked, [labels])
    # A warning of the test appears once on the terminal, and on the page.
    assert result.stderr.count("samples are <copies>") == 1
    assert page_of(tmp_path / "out" / "report.html").text.count("samples are <copies>") == 1


@pytest.mark.slow
@pytest.mark.contract
def test_tests_and_their_picture_have_the_clusters_that_are_written(invoke, tmp_path, monkeypatch):
    drawn = []

    def draw(score, labels, *others):
        drawn.append(labels)
        return plot_discriminant_scores(score, labels, *others)

    monkeypatch.setattr("nrprob.evidence.record.plot_discriminant_scores", draw)
    rng = np.random.default_rng(0)
    known, sought = rng.integers(2, size=120), rng.integers(3, size=120)
    X = rng.normal(size=(120, 3)) + np.outer(known, [3, 0, 1])
    X[:, 1:] += 9 * np.array([[0, 0], [1, 0], [0, 1]])[sought]
    table = pd.DataFrame(X, columns=list("abc")).assign(batch=np.array(["x", "y"])[known])
    table.to_csv(tmp_path / "rows.csv", index=False)
    for seed in (0, 1):
        arguments = ["--known", "batch", "--k", 3, "--seed", seed]
        out = tmp_path / f"fit{seed}"
        invoke("fit", tmp_path / "rows.csv", "--test", "--out", out, *arguments)
        rows = pd.read_csv(out / "labels.csv")
        assert (rows["cluster"] == drawn.pop()).mean() > 0.95
        assert rows["confidence"].min() > 0.9  # for the adjacent cluster
    out = tmp_path / "explored"
    # At this level no further clustering is added, so there is only one.
    invoke("explore", tmp_path / "rows.csv", "--alpha", 0, "--out", out, *arguments)
    rows = pd.read_csv(out / "labels.csv")
    assert (rows["clustering_1"] == drawn.pop()).mean() > 0.95


@pytest.mark.slow
@pytest.mark.contract
def test_a_fit_says_whether_its_clusters_are_there_and_how_sure_rows_are(invoke, tmp_path):
    rng = np.random.default_rng(0)
    known, sought = rng.integers(2, size=(2, 120))
    X = rng.normal(size=(120, 3)) + np.outer(known, [3, 0, 1]) + 6 * np.outer(sought, [0, 1, 0])
    table = pd.DataFrame(X, columns=list("abc")).assign(batch=np.array(["x", "y"])[known])
    table.to_csv(tmp_path / "rows.csv", index=False)
    out = tmp_path / "out"
    said = invoke("fit", tmp_path / "rows.csv", "--known", "batch", "--test", "--out", out)
    assert "clusters with a low-density gap between them (p < 0.001)" in said.output
    summary = json.loads((out / "result.json").read_text())
    assert summary["evidence"]["p_structure"] < 1e-3 and summary["evidence"]["p_gap"] < 1e-3
    rows = pd.read_csv(out / "labels.csv")
    means = rows.groupby("cluster")["confidence"].mean()
    np.testing.assert_allclose(means, summary["confidence"], atol=1e-5)
    right = (rows["cluster"] == sought).mean()
    assert means.min() > 0.9 and max(right, 1 - right) > 0.95
    page = (out / "report.html").read_text()
    assert f"{means[0]:.3f}</td>" in page and page.count("data:image/png") >= 2
    assert (out / "evidence.png").exists()

    pd.DataFrame({"a": np.arange(60) % 5, "b": 1}).to_csv(tmp_path / "few.csv", index=False)
    options = ["--method", "ib", "--test", "--force", "--out", out]
    few = invoke("fit", tmp_path / "few.csv", *options)
    assert (
        "these clusters have no test: clusters are tested in continuous features only" in few.output
    )
    assert json.loads((out / "result.json").read_text())["evidence"].keys() == {"said"}
    assert not (out / "evidence.png").exists()
    told = invoke("fit", tmp_path / "rows.csv", "--test", "--labels", "batch")
    assert "a clustering with partial labels has no test" in refused(told)


@pytest.mark.slow
def test_mixed_tables_are_explored_until_a_test_finds_no_more(invoke, mixed, tmp_path):
    path, hidden = mixed
    options = ["--known", "group", "--drop", "age,rating", "--no-plot", "--out", tmp_path / "o"]
    result = invoke("explore", path, *options, "--k", "2")
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "o" / "result.json").read_text())
    assert len(stored["clusterings"]) == 1 and "no better than" in stored["reason"]
    assert stored["clusterings"][0]["p_structure"] is None
    labels = pd.read_csv(tmp_path / "o" / "labels.csv")["clustering_1"]
    assert max(np.mean(labels == hidden), np.mean(labels != hidden)) > 0.9
    assert "held-out gain" in result.stdout and "p of structure" not in result.stdout


def test_fit_takes_logarithms_of_skewed_columns(invoke, tmp_path):
    rng = np.random.default_rng(0)
    known, sought = np.arange(200) % 2, rng.integers(2, size=200)
    logs = rng.normal(size=(200, 3)) + 4 * np.outer(sought, [1, 1, 0]) + known[:, None]
    frame = pd.DataFrame(np.exp(logs), columns=["income", "spending", "rent"])
    data = tmp_path / "money.csv"
    frame.assign(site=known, sought=sought).to_csv(data, index=False)
    options = ["--known", "site", "--compare", "sought", "--no-plot", "--n-init", "4"]
    plain = invoke("fit", data, *options, "--out", tmp_path / "plain")
    assert plain.exit_code == 0, plain.output
    shown = " ".join(plain.stderr.split())
    assert "skewed features hide clusters" in shown and "by --log auto" in shown
    assert "nrprob.prepare" not in shown
    for number, log in enumerate(("auto", "income,spending")):
        result = invoke("fit", data, *options, "--log", log, "--out", tmp_path / str(number))
        assert result.exit_code == 0, result.output
        assert "income: geometric mean" in result.stdout
        assert "logarithms of columns" in result.stderr
        stored = json.loads((tmp_path / str(number) / "result.json").read_text())
        assert stored["scores"]["NMI of sought"] > 0.8
    line = refused(invoke("fit", data, *options, "--log", "incme", "--out", tmp_path / "no"))
    assert "column without measurements; got 'incme'" in line


def test_units_of_columns_stand_with_their_values(invoke, tmp_path):
    rng = np.random.default_rng(0)
    sought, smoker = np.arange(60) % 2, rng.random(60) < 0.5
    rows = [
        f"{20.5 + 30 * c + z:.1f} %;€ {12.5 + 2 * z:.1f};{'ja' if s else 'nein'}".replace(".", ",")
        for c, z, s in zip(sought, rng.normal(size=60), smoker, strict=True)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["Anteil;Preis;Raucher", *rows]))
    out = tmp_path / "out"
    options = ["--method", "conditional-mixture", "--k", "2", "--no-plot", "--out", out, *FAST]
    result = invoke("fit", tmp_path / "a.csv", *options)
    assert result.exit_code == 0, result.output
    stored = json.loads((out / "result.json").read_text())
    assert stored["prepared"]["units"] == {"Anteil": "%", "Preis": "€"}
    # A mean of percent is a mean, and not a share of rows.
    profile = r"Anteil: mean [\d.]+\s% \([\d.]+\s% overall\)"
    page = page_of(out / "report.html")
    assert len(re.findall(profile, result.stdout)) == len(re.findall(profile, page.text)) == 2
    names = [name.strip() for cells in page.cells for name in cells]
    assert {"Anteil [%]", "Preis [€]"} <= {*names} and not {"Anteil", "Preis"} & {*names}
    options += ["--log", "Preis", "--id", "Raucher", "--force"]
    result = invoke("fit", tmp_path / "a.csv", *options)
    assert result.exit_code == 0, result.output
    prepared = json.loads((out / "result.json").read_text())["prepared"]
    assert prepared["units"] == {"Anteil": "%", "Preis": "€"}
    assert prepared["logarithms"] == {"log(Preis)": ["Preis", 0.0]}
    page = page_of(out / "report.html")
    assert "Preis [€], geometric mean" in {name.strip() for cells in page.cells for name in cells}
    assert "The fit used logarithms of Preis." in page.text
    heads = [cells[0].strip() for cells in page.cells]
    assert heads.count("Raucher") == 2 and "row" not in heads


def test_an_interrupt_ends_the_process_before_its_objects_are_freed():
    """Python calls functions of `atexit` before it frees objects, but not if the process ends."""
    code = """
import atexit, sys
import nrprob.cli
atexit.register(print, "freed")
def command():
    print("printed", end="")
    raise SystemExit(int(sys.argv[1]))
nrprob.cli.app = command
nrprob.cli.start()
"""
    for exit_code, printed in ((130, "printed"), (1, "printedfreed\n")):
        done = subprocess.run(
            [sys.executable, "-c", code, str(exit_code)], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (exit_code, printed)


def test_an_interrupted_test_says_where_the_labels_are(invoke, tmp_path, monkeypatch):
    X = np.random.default_rng(0).normal(size=(40, 2)) + np.arange(40)[:, None] % 2 * 5
    pd.DataFrame(X, columns=["a", "b"]).to_csv(tmp_path / "a.csv", index=False)

    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_result, "check_clusters", interrupt)
    out = tmp_path / "[out]"
    result = invoke("fit", tmp_path / "a.csv", "--test", "--out", out, *FAST)
    assert result.exit_code == 130 and len(pd.read_csv(out / "labels.csv")) == 40
    line = f"note: the tests were interrupted; the labels are in {out / 'labels.csv'}"
    assert result.stderr.splitlines()[-1] == line
