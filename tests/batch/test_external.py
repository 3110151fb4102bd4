"""Estimators of other packages in model files: input, labels, storage and reports."""

import datetime
import json
import pickle
import re
import shutil
import sys
import tomllib
import types
import warnings
from numbers import Integral
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from pages import page_of
from places import DOCS
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.cluster import DBSCAN, AgglomerativeClustering, FeatureAgglomeration, KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.utils import all_estimators
from typer.testing import CliRunner

from nrprob import batch, metrics
from nrprob.batch import external, registry
from nrprob.batch.allowed import check_allowed
from nrprob.batch.inputs import load_data
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import expand, select
from nrprob.batch.preflight import check
from nrprob.batch.report import template
from nrprob.batch.report.results import collect_results, measure_performance
from nrprob.batch.runner import run_plan
from nrprob.batch.store import read_plan
from nrprob.cli import app
from nrprob.exceptions import InputError

N = 60


@pytest.fixture(scope="module")
def rows():
    """60 rows with two labelings, which determine different columns."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(N, 4)), columns=list("abcd"))
    frame["left"], frame["upper"] = np.arange(N) % 2, np.arange(N) // 2 % 2
    frame[["a", "b"]] += 6 * frame[["left"]].to_numpy()
    frame[["c", "d"]] += 3 * frame[["upper"]].to_numpy()
    return frame


@pytest.fixture(scope="module")
def spec(rows, tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "rows.csv"
    rows.to_csv(file, index=False)
    return {
        "known": "left",
        "runs": 2,
        "data": {"file": str(file), "label_columns": ["left", "upper"]},
        "methods": [
            {"name": "sklearn.cluster.KMeans", "n_clusters": 2, "grid": {"n_init": [1, 4]}},
            {"name": "sklearn.mixture.GaussianMixture", "n_components": 2, "random_state": 5},
            # One of ours that compiles nothing.
            {"name": "cop_kmeans", "n_clusters": 2, "n_init": 1},
        ],
        "measures": {
            "agreement": {"metric": "matched_accuracy", "labeling": "left"},
            "inertia": {"attribute": "inertia_", "goal": "none"},
        },
        "save": {"memberships": True},
    }


@pytest.fixture(scope="module")
def done(spec, tmp_path_factory):
    """A finished run: its folder and its results."""
    folder = tmp_path_factory.mktemp("done") / "run"
    return folder, batch.run(spec, folder)


def with_methods(spec, *methods, **changes):
    return spec | {"methods": list(methods), "runs": 1, "measures": {}} | changes


def features(rows):
    return rows[list("abcd")].to_numpy()


# results


def test_results_are_those_of_the_estimators(done, rows):
    results = done[1]
    kinds = {"KMeans": KMeans, "GaussianMixture": GaussianMixture}
    assert results.sizes["cell"] == 4 + 2 + 2
    for i, name in enumerate(results["method"].values):
        cell = results.isel(cell=i)
        if name not in kinds:
            assert np.isfinite(cell["objective"]) and np.isnan(cell["score"][1])
            continue
        model = kinds[name](**json.loads(str(cell["parameters"].values)))
        assert model.random_state == int(cell["run"]) + 5 * (name == "GaussianMixture")
        labels = model.fit_predict(features(rows))
        np.testing.assert_array_equal(cell["labels"], labels)
        agreement = metrics.matched_accuracy(labels, rows["left"])
        assert float(cell["score"].sel(measure="agreement")) == agreement > 0.9
        if name == "KMeans":
            inertia = float(cell["score"].sel(measure="inertia"))
            assert inertia == pytest.approx(model.inertia_, rel=1e-9)
            assert np.isnan(cell["membership"]).all()
        else:
            assert np.isnan(cell["score"].sel(measure="inertia"))
            expected = model.predict_proba(features(rows))
            np.testing.assert_allclose(cell["membership"], expected, atol=1e-6)
        assert np.isnan(cell["objective"]) and np.isnan(cell["compile_seconds"])
        assert float(cell["seconds"]) > 0 and int(cell["n_clusters_found"]) == 2
        assert int(cell["n_iter"]) == model.n_iter_ and bool(cell["converged"])
        assert not str(cell["warnings"].values)


def test_what_is_done_is_not_done_again(done, spec, monkeypatch, tmp_path):
    folder = shutil.copytree(done[0], tmp_path / "run")
    monkeypatch.setattr(external, "_fit_labels", lambda *_: {}["fitted"])
    grown = spec | {"methods": [spec["methods"][0] | {"grid": {"n_init": [1, 4, 5]}}]}
    plan = expand(read_model(spec))
    assert run_plan(plan, folder).reused == 8
    outcome = run_plan(expand(read_model(grown)), folder)
    assert outcome.reused == 4 and not outcome.finished
    assert outcome.failed == {"KMeans: KeyError: 'fitted'": 2}


def test_conditions_name_rivals(spec):
    plan = expand(read_model(spec))
    for name in ("sklearn.cluster.KMeans", "sklearn.cluster.kmeans", "KMeans"):
        assert len(select(plan, [f"method={name}"])) == 4


def test_a_parameter_may_be_that_of_the_data(spec):
    data = {"generator": "make_binary_partitions", "grid": {"n_clusters": [2, 3]}}
    data["parameters"] = {"n_samples": N, "dims": [6, 4]}
    method = {"name": "sklearn.cluster.KMeans", "n_clusters": "data.n_clusters"}
    cells = expand(read_model({"data": data, "methods": [method]})).cells
    assert [cell.parameters["n_clusters"] for cell in cells] == [2, 3]


def test_the_example_of_the_page_is_valid():
    text = (DOCS / "model-files.md").read_text(encoding="utf-8")
    examples = re.findall(r"^``` toml\n(.*?)^```", text, re.M | re.S)
    (example,) = [example for example in examples if "sklearn." in example]
    data = {"generator": "make_binary_partitions", "grid": {"n_clusters": [2, 3]}}
    data["parameters"] = {"n_samples": 30, "dims": [6, 4]}
    plan = expand(read_model({"data": data} | tomllib.loads(example)))
    assert len(plan.cells) == 2 * 3 and not check(plan)


# the report


def test_the_report_sets_quality_beside_time(done):
    folder, results = done
    page = page_of(batch.write_report(folder))
    text = " ".join(page.text.split())
    assert "left (not given to KMeans, GaussianMixture, COPKMeans)" in text
    assert "sklearn.cluster.KMeans, sklearn.mixture.GaussianMixture: fitted on X only" in text
    captions = [c for c in page.captions if "median time" in c]
    assert len(captions) == 2  # by method, and by method and setting
    tables = measure_performance(collect_results(results, read_plan(folder)))
    methods, settings = ([*t.itertuples()] for t in tables)
    assert {(m.method, m.n_fits) for m in methods} == {
        ("KMeans", 4), ("GaussianMixture", 2), ("COPKMeans", 2),
    }  # fmt: skip
    assert {(m.method, m.setting) for m in settings} == {
        ("KMeans", "n_init = 1"), ("KMeans", "n_init = 4"), ("GaussianMixture", ""),
        ("COPKMeans", ""),
    }  # fmt: skip
    for result in (methods, settings):
        assert [m.seconds for m in result] == sorted(m.seconds for m in result)
    frame = results[["seconds"]].to_dataframe().groupby("method")["seconds"].median()
    scores = results["score"].sel(measure="agreement")
    for one in methods:
        assert one.seconds == frame[one.method]
        own = scores.values[results["method"].values == one.method]
        assert one.means["agreement"].value == pytest.approx(own.mean(), abs=1e-12)
        assert (one.method == "KMeans") == np.isfinite(one.means["inertia"].value)


def test_a_single_run(spec, tmp_path):
    model = with_methods(spec, {"name": "sklearn.cluster.KMeans", "n_clusters": 2})
    file = tmp_path / "model.json.toml"
    data = spec["data"]
    file.write_text(
        f"known = 'left'\n[data]\nfile = '{data['file']}'\nlabel_columns = ['left', 'upper']\n"
        "[[methods]]\nname = 'sklearn.cluster.KMeans'\nn_clusters = 2\n[report]\npicture = ''\n"
    )
    said = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "out")])
    assert said.exit_code == 0, said.output
    assert "objective" not in said.output
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["objective"] is None and result["method"] == "sklearn.cluster.KMeans"
    text = page_of(tmp_path / "out" / "report.html").text
    assert "fitted on X only" in text and "nan" not in text
    assert "beyond the known structure" not in text
    assert read_model(model).is_single


# valid input


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "os.path.join",
            r"below sklearn\. or clustpy\.; got 'os\.path\.join'; name",
        ),
        ("nrprob.CCIB", r"below sklearn\. or clustpy\."),
        ("sklearnish.cluster.KMeans", r"below sklearn\. or clustpy\."),
        ("sklearn.cluster._kmeans.KMeans", r"below sklearn\. or clustpy\."),
        ("sklearn.cluster.KMeans()", r"below sklearn\. or clustpy\."),
    ],
)
def test_other_import_paths_are_refused(name, message, spec):
    with pytest.raises(InputError, match=message) as caught:
        read_model(with_methods(spec, {"name": name}))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"name": "sklearn.cluster.KMean"}, r"methods\.0: .*'KMean'; did you mean 'KMeans'\?"),
        ({"name": "sklearn.clusters.KMeans"}, r"sklearn has no such module; .* 'cluster'\?"),
        ({"name": "sklearn.cluster.k_means"}, "no such estimator that clusters rows; 'k_means'"),
        ({"name": "sklearn.decomposition.PCA"}, "no such estimator that clusters rows; 'PCA'"),
        ({"name": "sklearn.svm.SVC"}, "no such estimator that clusters rows; 'SVC'"),
        (
            {"name": "sklearn.cluster.KMeans", "n_cluster": 2},
            r"KMeans has no such parameter; methods\.0\.n_cluster; did you mean 'n_clusters'\?",
        ),
        (
            {"name": "sklearn.mixture.GaussianMixture", "n_clusters": 2},
            r"no such parameter; methods\.0\.n_clusters; did you mean 'n_components'\?",
        ),
        (
            {"name": "sklearn.cluster.KMeans", "n_clusters": "two"},
            r"fixed words only; methods\.0\.n_clusters = 'two'; pass a number",
        ),
        (
            {"name": "sklearn.cluster.KMeans", "n_clusters": -2},
            r"methods\.0\.n_clusters must be at least 0 and at most 1000000; got -2",
        ),
        (
            {"name": "sklearn.cluster.KMeans", "n_clusters": 0},
            r"methods\.0 \(KMeans\): The 'n_clusters' parameter of KMeans must be an int",
        ),
        (
            {"name": "sklearn.cluster.DBSCAN", "random_state": 1},
            r"DBSCAN has no such parameter; methods\.0\.random_state; choose from algorithm",
        ),
        ({"name": "sklearn.pipeline.Pipeline"}, r"needs a parameter that .*methods\.0\.steps"),
    ],
)
def test_mistakes_are_named_before_the_first_fit(method, message, spec):
    with pytest.raises(InputError, match=message) as caught:
        check(expand(read_model(with_methods(spec, method))))
    assert len(str(caught.value).splitlines()) == 1


class Touch:
    """Write a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("command", ["check", "run"])
def test_no_cache_beside_a_model_file_is_unpickled(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "marker"
    X = load_data(read_model({"data": {"loader": "iris"}, "methods": [{"name": "ib"}]})).X
    AgglomerativeClustering(3, memory="cache").fit(X)
    (stored,) = Path("cache").rglob("output.pkl")
    assert stored.parts[-3] == "ward_tree"
    stored.write_bytes(pickle.dumps(Touch(marker)))
    Path("model.toml").write_text(
        '[data]\nloader = "iris"\n[[methods]]\nname = "sklearn.cluster.AgglomerativeClustering"\n'
        'n_clusters = 3\nmemory = "cache"\n'
    )
    said = CliRunner().invoke(app, [command, "model.toml"])
    assert said.exit_code == 2 and not marker.exists()
    *_, line = said.output.splitlines()
    assert "methods.0.memory = 'cache'; leave memory out" in line


LINKAGE = "sklearn.cluster.AgglomerativeClustering"


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("KMeans", {"n_init": 10**9}, "n_init must be at least 0 and at most 1000000; got"),
        ("KMeans", {"init": [[0.0], [1.0]]}, "init = a list; choose from k-means++, random"),
        ("DBSCAN", {"n_jobs": 1000}, "n_jobs must be at least -64 and at most 64"),
        ("DBSCAN", {"metric_params": {"a": 1}}, "metric_params = a dict; leave metric_params out"),
        ("DBSCAN", {"metric": "os.system"}, "metric = 'os.system'; choose from braycurtis"),
        ("DBSCAN", {"eps": np.inf}, "at most 1e+140; got inf"),
        ("Birch", {"n_clusters": "sklearn.cluster.KMeans"}, "n_clusters = 'sklearn.cluster.KM"),
        (
            "AgglomerativeClustering",
            {"connectivity": "a"},
            "connectivity = 'a'; leave connectivity out",
        ),
        ("MeanShift", {"seeds": datetime.date(2020, 1, 1)}, "seeds = a date; leave seeds out"),
        ("Odd", {"deed": "words"}, "deed = 'words'; pass a number"),
        ("Odd", {"deed": 10**9}, "deed must be at least 0 and at most 1000000"),
        ("Odd", {"deed": [1, 10**9]}, "deed must be at least 0 and at most 1000000"),
        ("Odd", {"deed": [1, "a"]}, "deed = a list; pass a number"),
    ],
)
def test_a_model_file_passes_no_objects_and_no_unbounded_numbers(name, parameters, message, odd):
    path = odd if name == "Odd" else f"sklearn.cluster.{name}"
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        registry.make_estimator(path, parameters, "methods.0.")
    assert str(caught.value).count("; ") == 2 and "\n" not in str(caught.value)


def test_plain_values_are_passed(odd):
    linkage = registry.make_estimator(LINKAGE, {"metric": "l1", "memory": None})
    assert linkage.get_params()["metric"] == "l1"
    registry.make_estimator("sklearn.cluster.KMeans", {"n_init": "auto", "random_state": 2**31})
    registry.make_estimator("sklearn.cluster.DBSCAN", {"eps": 2, "n_jobs": -1})
    assert registry.make_estimator(odd, {"deed": [2, 3]}).deed == [2, 3]


@pytest.mark.parametrize(
    ("name", "kind"), [one for one in all_estimators("cluster") if one[0] != "SpectralBiclustering"]
)
def test_every_count_of_scikit_learn_is_bounded(name, kind):
    for parameter, rules in kind._parameter_constraints.items():
        if any(getattr(rule, "type", rule) is Integral for rule in rules):
            with pytest.raises(InputError, match=f"a.{parameter} must be at .* at most"):
                check_allowed(kind, {parameter: 10**9}, "a.")


def test_rows_that_an_estimator_does_not_take_are_refused_before():
    external.check_external(KMeans(2), scipy.sparse.csr_array(np.eye(6)))
    with pytest.raises(InputError, match="GaussianMixture takes no sparse rows; got 6"):
        external.check_external(GaussianMixture(2), scipy.sparse.csr_array(np.eye(6)))
    with pytest.raises(ValueError, match="contains NaN"):
        external.check_external(KMeans(2), np.full((3, 2), np.nan))


def test_a_package_that_is_not_there_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name="clustpy")

    monkeypatch.setattr(registry.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"clustpy is not installed; .*; run pip install clustpy"):
        registry.find_method("clustpy.alternative.NrKmeans").load()


def test_a_folder_of_the_name_of_a_package_is_not_imported(monkeypatch, tmp_path):
    for package in registry.PACKAGES:
        marker = tmp_path / f"{package}_was_imported"
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"open({str(marker)!r}, 'w')")
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"sklearn is hidden by a folder of its name; .*; run the"):
        registry.find_method("sklearn.cluster.KMeans").load()
    with pytest.raises(InputError, match=r"clustpy is (not installed|hidden by a folder)"):
        registry.find_method("clustpy.cluster.XMeans").load()
    assert not [*tmp_path.glob("*_was_imported")]


def test_an_estimator_may_have_both_numbers():
    model = registry.make_estimator("sklearn.cluster.SpectralClustering", {"n_clusters": 3})
    assert model.n_clusters == 3
    with pytest.raises(InputError, match="did you mean 'n_components'"):
        registry.make_estimator("sklearn.mixture.GaussianMixture", {"n_clusters": 3})


def test_the_command_line_takes_ours_alone(spec):
    said = CliRunner().invoke(
        app, ["fit", spec["data"]["file"], "--method", "sklearn.cluster.KMeans"]
    )
    assert said.exit_code != 0 and "need a model file; got --method sklearn" in said.output


def test_labels_that_nobody_tells_a_rival(spec):
    method = {"name": "sklearn.cluster.KMeans", "n_clusters": 2}
    told = {"partial_labels": {"labeling": "upper", "fraction": 0.2}}
    with pytest.raises(
        InputError, match=r"methods\.0: .* takes no target labels; .* use_labels = f"
    ):
        read_model(with_methods(spec, method, **told))
    model = with_methods(spec, method | {"use_labels": False}, {"name": "cop_kmeans"}, **told)
    text = template.describe_labels(read_model(model))
    assert "(not given to KMeans)" in text


# storage of unusual results


DEEDS = ("views", "words", "raise", "warn")


class Odd(ClusterMixin, BaseEstimator):
    """Execute the action of its number, and check that it gets no labels."""

    def __init__(self, deed=0):
        self.deed = deed

    def fit(self, X, y=None):
        assert y is None
        does = DEEDS[self.deed]
        if does == "raise":
            raise ZeroDivisionError("no\nrows")
        if does == "warn":
            warnings.warn("stopped early", ConvergenceWarning, stacklevel=2)
        X[:] = 0  # on a copy
        n = len(X)
        self.labels_ = {
            "views": np.stack([np.arange(n) % 2, np.arange(n) % 3], axis=1),
            "words": np.where(np.arange(n) % 2, "odd", "even"),
        }.get(does, np.zeros(n, int))
        return self

    def predict(self, X):
        return np.zeros(len(X), int)


@pytest.fixture
def odd(monkeypatch):
    """A package of the allow-list with this class."""
    package, module = types.ModuleType("clustpy"), types.ModuleType("clustpy.odd")
    kind = type("Odd", (Odd,), {"__module__": "clustpy.odd"})
    module.Odd = kind
    monkeypatch.setitem(sys.modules, "clustpy", package)
    monkeypatch.setitem(sys.modules, "clustpy.odd", module)
    return "clustpy.odd.Odd"


def odd_ones(name, *deeds):
    return [{"name": name, "title": deed, "deed": DEEDS.index(deed)} for deed in deeds]


def test_whatever_a_rival_raises_is_a_failure_among_others(spec, odd, tmp_path):
    methods = odd_ones(odd, "raise", "warn")
    outcome = run_plan(expand(read_model(with_methods(spec, *methods))), tmp_path)
    assert outcome.failed == {"raise: ZeroDivisionError: no rows": 1}
    results = batch.load(tmp_path)
    assert results["method"].values.tolist() == ["warn"]
    assert str(results["warnings"].values[0]) == "stopped early"
    assert not results["converged"].values[0]


def test_views_and_words_are_labels(spec, odd):
    methods = odd_ones(odd, "views", "words")
    methods.append({"name": "sklearn.cluster.KMeans", "n_clusters": 2})
    results = batch.run(with_methods(spec, *methods))
    views, words, after = (results.isel(cell=i) for i in range(3))
    assert (views["view_labels"] == np.stack([np.arange(N) % 2, np.arange(N) % 3], 1)).all()
    assert int(views["n_clusters_found"]) == 5
    assert (words["labels"] == np.arange(N) % 2).all()
    assert int(after["n_clusters_found"]) == 2  # the rows are unchanged


def test_noise_is_said(rows):
    fit = external.fit_external("a", "b", DBSCAN(eps=1.2), features(rows))
    assert (fit.labels < 0).any() and fit.warnings == [external._NOISE]
    assert fit.n_clusters == fit.labels.max() + 1
    fit = external.fit_external("a", "b", AgglomerativeClustering(3), features(rows))
    assert not fit.warnings and fit.n_clusters == 3


def test_labels_of_columns_are_refused(rows):
    with pytest.raises(
        InputError, match=r"labels must have one entry per row; got shape \(4,\) for 60 rows"
    ):
        external.fit_external("a", "b", FeatureAgglomeration(2), features(rows))


def test_rows_of_a_test(spec):
    methods = [
        {"name": "sklearn.mixture.GaussianMixture", "n_components": 2},
        {"name": "sklearn.cluster.KMeans", "n_clusters": 2},
    ]
    changes = {
        "split": {"labeling": "left", "labelled": 0.2, "unlabelled": 0.4, "use_labels": False},
        "measures": {"new rows": {"metric": "test_accuracy"}},
    }
    results = batch.run(with_methods(spec, *methods, **changes))
    assert (results["score"] > 0.9).all()
    assert ((results["predicted"] >= 0) == (results["part"] == 3)).all()
    assert ((results["labels"] >= 0) == (results["part"] % 3 != 0)).all()
    methods.append({"name": "sklearn.cluster.AgglomerativeClustering"})
    with pytest.raises(InputError, match=r"methods\.2 .* the method cannot predict new rows"):
        check(expand(read_model(with_methods(spec, *methods, **changes))))
