"""Batch runs with views, with fitted and test rows, and with pairs of rows."""

import itertools
import json
import re
import shutil
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from places import DOCS
from scipy.stats import ttest_rel
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler

from nrprob import CECIB, COPKMeans, MDLConstrained, MDLMultiView, MixtureEM, batch, metrics
from nrprob.batch import fit_files, fit_result, plan, preflight, store, write_report
from nrprob.batch.modelfile import read_model
from nrprob.batch.report.averages import paired_test
from nrprob.batch.report.chart import make_chart
from nrprob.batch.report.comparison import compare_published
from nrprob.batch.report.results import collect_results
from nrprob.batch.splits import PARTS, Constraints, Split, sample_pairs, split_rows
from nrprob.datasets import make_gaussian_views
from nrprob.exceptions import InputError
from nrprob.links import InfeasibleConstraints
from nrprob.plotting.style import nth_colour, nth_marker

PAGE = DOCS / "model-files.md"

# All data sets have one shape, to limit compilation.
PAIRS = {
    "runs": 3,
    "data": {"loader": "iris"},
    "split": {"labeling": "species", "labelled": 0.3, "use_labels": False, "standardize": True},
    "constraints": {"pairs": [0, 24], "cases": [{"wrong": "none"}, {"wrong": "bias"}]},
    "methods": [
        {"name": "mdl_constrained", "title": "hard", "n_clusters": 3, "n_init": 2},
        {"name": "cop_kmeans", "n_clusters": 3, "n_init": 2},
    ],
    "measures": {
        "train": {"metric": "train_accuracy"},
        "test": {"metric": "test_accuracy"},
        "error": {"metric": "error"},
        "length": {"attribute": "lengths_.words"},
        "NMI": {"metric": "normalized_mutual_information", "labeling": "species"},
    },
}
VIEWS = {
    "data": {
        "generator": "make_gaussian_views",
        "parameters": {"n_samples": 200},
        "grid": {"permuted": [0.0, 1.0]},
        "views": [2, 2],
    },
    "methods": [
        {"name": "mdl_multiview", "n_clusters": [2, 2], "n_init": 2},
        {"name": "cop_kmeans", "n_clusters": 2, "n_init": 2},
    ],
    "measures": {
        "TDL": {"attribute": "tdl_", "goal": "low"},
        "second": {"attribute": "n_clusters_.1"},
        "MR": {"metric": "matching_rate"},
        "PR": {"metric": "predictive_rate", "labeling": "partition_0"},
        "NMI": {"metric": "normalized_mutual_information", "labeling": "partition_1", "view": 1},
        "most": {"metric": "jaccard_index", "labeling": "partition_0", "view": "highest"},
        "least": {"metric": "jaccard_index", "labeling": "partition_0", "view": "lowest"},
        "all": {"metric": "purity", "labeling": "partition_0"},
        "Dunn": {"metric": "dunn_index", "parameters": {"separation": "average"}},
        "width": {"metric": "silhouette_width", "view": 0},
    },
}


def changed(spec, **changes):
    spec = json.loads(json.dumps(spec))
    for path, value in changes.items():
        *keys, last = path.split("__")
        at = spec
        for key in keys:
            at = at[int(key) if key.isdigit() else key]
        if value is None:
            del at[last]
        else:
            at[last] = value
    return spec


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X, y


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs") / "run"
    return folder, batch.run(PAIRS, folder)


# the split


SHARES = {"labeling": "c", "labelled": 0.1, "unlabelled": 0.2, "test": 0.6}


def test_parts_have_their_shares_and_every_class_a_label():
    labels = np.array(["a"] * 150 + ["b"] * 45 + ["c"] * 5)
    for seed in range(30):
        parts = split_rows(labels, SHARES, (0, seed))
        assert Counter(parts.part.tolist()) == {1: 20, 2: 40, 3: 120, 0: 20}
        labelled = parts.mask("labelled")
        assert set(labels[labelled]) == {"a", "b", "c"}
        np.testing.assert_array_equal(parts.fitted, np.isin(parts.part, (1, 2)))
        np.testing.assert_array_equal(np.unique(labels)[parts.codes], labels)
        known = parts.y >= 0
        np.testing.assert_array_equal(known, labelled[parts.fitted])
        np.testing.assert_array_equal(parts.y[known], parts.codes[labelled])


def test_rows_stay_in_their_part_where_shares_allow_it():
    labels = np.arange(200) % 4
    one = split_rows(labels, SHARES, (0, 1))
    np.testing.assert_array_equal(one.part, split_rows(labels, SHARES, (0, 1)).part)
    assert (one.part != split_rows(labels, SHARES, (0, 2)).part).any()
    assert (one.part != split_rows(labels, SHARES, (1, 1)).part).any()
    fewer = split_rows(labels, SHARES | {"labelled": 0.05, "unlabelled": 0.25}, (0, 1))
    np.testing.assert_array_equal(one.fitted, fewer.fitted)
    np.testing.assert_array_equal(one.mask("test"), fewer.mask("test"))
    assert one.mask("labelled")[fewer.mask("labelled")].all()
    alone = split_rows(labels, SHARES | {"unlabelled": 0.0}, (0, 1))
    np.testing.assert_array_equal(one.mask("labelled"), alone.mask("labelled"))
    np.testing.assert_array_equal(one.mask("test"), alone.mask("test"))


def test_parts_are_drawn_evenly():
    labels = np.arange(40) % 2
    counts = np.zeros((40, 4))
    for seed in range(400):
        counts[np.arange(40), split_rows(labels, SHARES, (0, seed)).part] += 1
    # Five standard deviations of a share of 400 samples.
    expected = np.array([0.1, 0.1, 0.2, 0.6])
    assert (np.abs(counts / 400 - expected) < 5 * np.sqrt(expected * (1 - expected) / 400)).all()


def test_more_classes_than_labelled_rows_are_refused():
    with pytest.raises(InputError, match=r"labelled = 0\.1 is 1 of 10 rows, and c has 2 classes"):
        split_rows(np.arange(10) % 2, SHARES, (0, 0))


def test_amounts_are_all_combinations():
    split = Split(labeling="c", labelled=[0.1, 0.2], unlabelled=[0.0, 0.3])
    assert [(a["labelled"], a["unlabelled"], a["test"]) for a in split.amounts] == [
        (0.1, 0.0, 0.9), (0.1, 0.3, 0.6), (0.2, 0.0, 0.8), (0.2, 0.3, 0.5)
    ]  # fmt: skip
    cases = [{"labelled": 0.02, "unlabelled": 0.18}, {"labelled": 0.1, "unlabelled": 0.1}]
    split = Split(labeling="c", test=[0.8, 0.5], cases=cases)
    assert [(a["labelled"], a["unlabelled"], a["test"]) for a in split.amounts] == [
        (0.02, 0.18, 0.8), (0.02, 0.18, 0.5), (0.1, 0.1, 0.8), (0.1, 0.1, 0.5)
    ]  # fmt: skip
    given = Constraints(pairs=[0, 5], wrong=["none", "coin"], share=[0.2, 0.4]).amounts
    assert given == [
        {"pairs": p, "wrong": w, **({} if s is None else {"share": s})}
        for p, (w, s) in itertools.product((0, 5), (("none", None), ("coin", 0.2), ("coin", 0.4)))
    ]


@pytest.mark.parametrize("wrong", ["none", "coin", "bias"])
def test_pairs_are_of_known_rows_and_as_the_classes_say(wrong):
    labels = np.random.default_rng(0).integers(3, size=60)
    rows = np.arange(5, 45)
    drawn = sample_pairs(labels, rows, {"pairs": 50, "wrong": wrong, "share": 0.4}, (0, 1))
    must, cannot = drawn["must_link"], drawn["cannot_link"]
    assert len(must) + len(cannot) == 50
    assert np.isin(np.concatenate([must, cannot]), rows).all()
    right = [*(labels[must[:, 0]] == labels[must[:, 1]]),
             *(labels[cannot[:, 0]] != labels[cannot[:, 1]])]  # fmt: skip
    assert sum(right) == 50 if wrong == "none" else 30 <= sum(right) < 50
    again = sample_pairs(labels, rows, {"pairs": 50, "wrong": wrong, "share": 0.4}, (0, 1))
    np.testing.assert_array_equal(must, again["must_link"])
    other = sample_pairs(labels, rows, {"pairs": 50, "wrong": wrong, "share": 0.4}, (0, 2))
    assert must.shape != other["must_link"].shape or (must != other["must_link"]).any()


# model files


def test_the_example_of_the_page_is_valid():
    text = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"^``` toml\n(.*?)^```", text, re.M | re.S)
    (example,) = [example for example in examples if "[split]" in example]
    import tomllib

    model = read_model(tomllib.loads(example))
    assert len(plan.expand(model).cells) == 2 * 3
    assert preflight.check(plan.expand(model)) == {}
    for table in (Split, Constraints):
        for key in table.model_fields:
            assert re.search(rf"`{key}`", text), key


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (PAIRS, {"split__labeled": 0.1}, r"unknown key; split\.labeled; did you mean 'labelled'"),
        (PAIRS, {"split__labelled": 1.2}, r"a value does not fit; split\.labelled\.0 = 1\.2"),
        (PAIRS, {"split__labelled": None}, "split: a share of labelled rows is needed"),
        (
            PAIRS,
            {"split__test": 0.8},
            r"exceed 1; got labelled = 0\.3, unlabelled = 0, test = 0\.8",
        ),
        (
            PAIRS,
            {"split__cases": [{"labeled": 0.1}]},
            r"unknown key; split\.cases\.0\.labeled; did you mean 'labelled'",
        ),
        (
            PAIRS,
            {"partial_labels": {"labeling": "species", "per_class": 2}},
            "partial_labels and split both",
        ),
        (
            PAIRS,
            {"split__use_labels": True, "methods__0__name": "coala"},
            "takes no target label",
        ),
        (PAIRS, {"constraints__pairs": None}, "constraints: a number of pairs is needed"),
        (PAIRS, {"constraints__wrong": "bais"}, r"constraints\.wrong\.0 = 'bais'; did you mean 'b"),
        (
            PAIRS,
            {"constraints__labeling": "x"},
            "the split has another labeling; got 'x'; leave labeling out",
        ),
        (
            PAIRS,
            {"split": None, "measures": {}},
            "constraints: pairs need a labeling; got none",
        ),
        (PAIRS, {"methods": [{"name": "ib"}]}, "constraints: no method of the file takes pairs"),
        (PAIRS, {"split": None, "constraints__labeling": "species"}, "accuracy needs a split"),
        (PAIRS, {"split__test": 0.0}, r"measures\.test: test_accuracy needs test rows"),
        (PAIRS, {"measures__train__labeling": "species"}, "train_accuracy takes no labeling"),
        (VIEWS, {"measures__Dunn__labeling": "partition_0"}, "dunn_index takes no labeling"),
        (
            PAIRS,
            {"measures__NMI__labeling": None},
            "normalized_mutual_information needs a labeling",
        ),
        (
            PAIRS,
            {"measures__train__attribute": "a_"},
            r"measures\.train: a measure has either .* both",
        ),
        (
            PAIRS,
            {"measures__train__metric": None},
            r"measures\.train: a measure has either .* neither",
        ),
        (PAIRS, {"measures__length__view": 1}, r"lengths_\.words does not compare a single view"),
        (
            PAIRS,
            {"measures__infeasible": {"attribute": "x_"}},
            "every fit has a measure of this name; infeasible",
        ),
        (
            PAIRS,
            {"figures": [{"name": "a", "x": "constraints.pair", "y": "test"}]},
            r"figures\.0\.x: .*'constraints\.pair'; did you mean 'constraints\.pairs'",
        ),
        (VIEWS, {"methods": [{"name": "ib"}]}, r"data\.views: no method of the file takes views"),
        (
            VIEWS,
            {"data__views": [2, "b"]},
            r"data\.views: views must be numbers of adjacent columns",
        ),
        (VIEWS, {"data__views": [2, 0]}, r"data\.views: views must be numbers of adjacent columns"),
        (VIEWS, {"measures__most__view": "high"}, r"measures\.most\.view"),
        (VIEWS, {"data__rows": [5, 5]}, r"rows must be \[first, end\], .*; got \(5, 5\)"),
        (VIEWS, {"data__grid__rows": [[0, 5], [5]]}, r"rows must be \[first, end\], .*; got \[5\]"),
        (VIEWS, {"data__grid__keep": [[1]]}, r"keep must map labelings to lists .* got \[1\]"),
        (VIEWS, {"data__parameters__keep": {}}, r"parameters\.keep; set data\.keep"),
    ],
)
def test_mistakes_are_placed(spec, changes, message):
    with pytest.raises(InputError, match=message):
        read_model(changed(spec, **changes))


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (
            PAIRS,
            {"split__labeling": "specis"},
            r"split\.labeling = 'specis'; did you mean 'species'",
        ),
        (PAIRS, {"split__labelled": 0.01}, r"split: every class needs a row with a label"),
        (
            PAIRS,
            {"data__keep": {"species": ["setosa"]}},
            "constraints: y must have two rows or more",
        ),
        (PAIRS, {"methods__0__sigma": "row"}, r"methods\.0 \(hard\): sigma must be one of"),
        (PAIRS, {"methods__1__n_init": 0}, r"methods\.1 \(COPKMeans\): n_init must be at least 1"),
        (
            PAIRS,
            {"measures__length__attribute": "lenghts_.words"},
            r"measures\.length\.attribute = 'lenghts_'; did you mean 'lengths_'",
        ),
        (VIEWS, {"data__views": [2, 3]}, r"views must add up .* = \[2, 3\] for 4 columns"),
        (VIEWS, {"data__views": [["a"], ["b"]]}, "columns of these data have no names"),
        (VIEWS, {"data__rows": [0, 300]}, r"data\.rows = \[0, 300\] for 200"),
        (VIEWS, {"methods__0__n_clusters": [2, 2, 2]}, "must hold one number per view"),
    ],
)
def test_mistakes_that_need_the_data_touch_nothing(tmp_path, spec, changes, message):
    with pytest.raises(InputError, match=message):
        batch.run(changed(spec, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_change_of_what_is_drawn_is_another_fit():
    def names(**changes):
        return {c.id for c in plan.expand(read_model(changed(PAIRS, **changes))).cells}

    first = names()
    assert len(first) == 3 * 2 * 2 * 2
    assert names(split__test=0.7) == first  # the default rest
    assert first < names(constraints__pairs=[0, 24, 60], runs=4)
    assert names(constraints__cases=[{"wrong": "none"}]) < first
    for changes in (
        {"split__labelled": 0.4},
        {"split__standardize": False},
        {"split__use_labels": True},
        {"data__rows": [0, 140]},
        {"measures__NMI__view": 0},
    ):
        assert not names(**changes) & first, changes
    for changes in ({"data__views": [1, 3]}, {"data__keep": {"partition_0": [0]}}):
        ids = {c.id for c in plan.expand(read_model(changed(VIEWS, **changes))).cells}
        assert not ids & {c.id for c in plan.expand(read_model(VIEWS)).cells}, changes


def test_rows_and_values_to_keep_may_vary(tmp_path):
    frame = pd.DataFrame({"a": np.arange(20.0), "b": 1.0, "c": np.arange(20) ** 2})
    frame["kind"] = np.arange(20) % 4
    frame.to_csv(tmp_path / "a.csv", index=False)
    spec = {
        "data": {
            "file": str(tmp_path / "a.csv"),
            "label_columns": ["kind"],
            "views": [["c"], ["a", "b"]],
            "cases": [{"rows": [4, 12]}, {"rows": [0, 20], "keep": {"kind": [1, 2]}}],
        },
        "methods": [{"name": "mdl_multiview", "n_clusters": 2}],
    }  # fmt: skip
    from nrprob.batch.inputs import load_data

    model = read_model(spec)
    cells = plan.expand(model).cells
    first, second = (load_data(model, cell.data) for cell in cells)
    np.testing.assert_array_equal(first.X[:, 0], np.arange(4, 12))
    np.testing.assert_array_equal(second.X[:, 0], [i for i in range(20) if i % 4 in (1, 2)])
    assert [view.tolist() for view in first.views] == [[2], [0, 1]]
    assert [plan.matches(c, {"keep.kind": [1, 2]}) for c in cells] == [False, True]
    with pytest.raises(InputError, match="a file has no parameters; got dims"):
        read_model(changed(spec, data__cases=[{"dims": 3}]))
    with pytest.raises(InputError, match=r"data\.views: 'd'; choose from a, b, c"):
        load_data(read_model(changed(spec, data__views=[["a"], ["d"]])), cells[0].data)


# fits


def reference(cell, iris):
    """A fit of a cell, as documented, and its accuracies."""
    X, y = iris
    split = {name: cell[f"split.{name}"].item() for name in ("labelled", "unlabelled", "test")}
    parts = split_rows(y, split | {"labeling": "species"}, (0, int(cell["run"])))
    train, test = parts.fitted, parts.mask("test")
    scaler = StandardScaler().fit(X[train])
    amount = {
        "pairs": int(cell["constraints.pairs"]),
        "wrong": str(cell["constraints.wrong"].values),
    }
    if amount["wrong"] != "none":
        amount["share"] = float(cell["constraints.share"])
    drawn = sample_pairs(y[train], np.arange(train.sum()), amount, (0, int(cell["run"])))
    kind = MDLConstrained if str(cell["method"].values) == "hard" else COPKMeans
    model = kind(**json.loads(str(cell["parameters"].values)))
    model.fit(scaler.transform(X[train]), **drawn)
    most = {c: np.bincount(y[train][model.labels_ == c]).argmax() for c in np.unique(model.labels_)}
    said = [np.array([most[c] for c in z]) for z in (model.labels_, model.predict(
        scaler.transform(X[test])))]  # fmt: skip
    return model, train, test, (said[0] == y[train]).mean(), (said[1] == y[test]).mean()


@pytest.mark.slow
@pytest.mark.contract
def test_pairs_and_parts_are_drawn_and_scored_as_documented(pairs, iris):
    _, results = pairs
    assert results.sizes["cell"] == 24
    refused = 0
    for i in range(24):
        cell = results.isel(cell=i)
        part = cell["part"].values
        assert Counter(part.tolist()) == {PARTS["labelled"]: 45, PARTS["test"]: 105}
        assert int(cell["n_labelled"]) == 45
        scores = dict(zip(cell["measure"].values, cell["score"].values, strict=True))
        try:
            model, train, test, *accuracy = reference(cell, iris)
        except ValueError as error:
            refused += 1
            assert isinstance(error, InfeasibleConstraints) or "COP-K-means" in str(error)
            assert str(cell["refusal"].values) == str(error)
            assert np.isnan([*scores.values()]).all() and np.isnan(cell["objective"])
            assert (cell["labels"] == -1).all() and int(cell["n_clusters_found"]) == 0
            continue
        assert str(cell["refusal"].values) == ""
        labels = cell["labels"].values
        np.testing.assert_array_equal(labels[train], model.labels_)
        assert (labels[test] == -1).all()
        assert (scores["train"], scores["test"]) == pytest.approx(tuple(accuracy))
        assert scores["error"] == pytest.approx(1 - accuracy[1])
        assert scores["NMI"] == pytest.approx(
            metrics.normalized_mutual_information(model.labels_, iris[1][train])
        )
        if isinstance(model, MDLConstrained):
            assert scores["length"] == pytest.approx(model.lengths_["words"])
        else:
            assert np.isnan(scores["length"])
    assert 0 < refused < 12


@pytest.mark.slow
@pytest.mark.contract
def test_all_methods_of_a_run_are_given_the_same_rows(pairs):
    _, results = pairs
    for _, group in results.groupby("run"):
        assert (group["part"] == group["part"][0]).all()
    assert len({tuple(part) for part in results["part"].values.tolist()}) == 3


@pytest.mark.slow
@pytest.mark.contract
def test_infeasible_fits_are_counted_and_in_no_average(pairs, tmp_path):
    folder, results = pairs
    tables = [
        {
            "name": "T",
            "measures": ["test", "infeasible", "objective", "seconds"],
            "settings": [{"where": {"constraints.pairs": 24, "constraints.wrong": "bias"}}],
            "statistics": ["mean", "sd"],
        }
    ]
    figures = [{"name": "F", "x": "constraints.pairs", "y": "infeasible"}]
    batch.run(changed(PAIRS, tables=tables, figures=figures), folder)  # nothing is computed
    planned = store.read_plan(folder)
    model, result = planned.model, collect_results(store.load(folder), planned)
    whole = compare_published(result, model.tables[0])
    assert [row.method for row in whole.rows] == ["hard", "COPKMeans"]
    total = 0
    for row in whole.rows:
        own = results.where(
            (results["method"] == row.method) & (results["constraints.wrong"] == "bias")
            & (results["constraints.pairs"] == 24), drop=True,
        )  # fmt: skip
        refused = own["refusal"].values.astype(str) != ""
        entries = row.entries
        assert (row.n_done, row.n_infeasible) == (3, refused.sum())
        assert entries["infeasible", "mean"].ours.value == pytest.approx(refused.mean())
        kept = own["score"].sel(measure="test").values[~refused]
        ours = entries["test", "mean"].ours
        assert (ours is None) == (kept.size == 0)
        if kept.size:
            assert ours.value == pytest.approx(kept.mean()) and ours.n_runs == kept.size
        spread = entries["test", "sd"].ours
        assert (spread is None) == (kept.size < 2)
        if kept.size > 1:
            assert spread.value == pytest.approx(kept.std(ddof=1))
        total += refused.sum()
    assert total > 0
    (figure,) = model.figures
    lines = {line.method: line.points for line in make_chart(result, figure).lines}
    assert lines["hard"][0][:2] == (0, 0.0)
    page = write_report(folder, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "fits were infeasible (" in page and "of 3 fits infeasible" in page
    assert "30 % of the rows with their label, 0 % without it, 70 % to test" in page
    assert "labels are given to no method" in page
    assert "40 % of them must-links between the last two classes" in page


@pytest.mark.slow
@pytest.mark.contract
def test_two_methods_are_compared_by_a_paired_test(pairs, tmp_path):
    folder, results = pairs
    place = shutil.copytree(folder, tmp_path / "run")
    where = {"constraints.pairs": 0, "constraints.wrong": "none"}
    published = {"hard / COPKMeans": {"error": {"mean": 1.0, "p": 6e-8}}}
    table = {
        "name": "T",
        "statistics": ["mean", "sd", "p"],
        "measures": ["error", "seconds"],
        "settings": [{"where": where, "published": published}],
    }
    # Tables do not determine a fit, so no fit is repeated.
    batch.run(changed(PAIRS, tables=[table]), place)
    model = read_model(changed(PAIRS, tables=[table]))
    result = collect_results(store.load(place), plan.expand(model))
    whole = compare_published(result, model.tables[0])
    rows = {row.method: row.entries for row in whole.rows}
    errors = {}
    for _, of in results.groupby("cell"):
        at = of.squeeze()
        if at["constraints.pairs"] == 0 and str(at["constraints.wrong"].values) == "none":
            errors.setdefault(str(at.method.values), {})[int(at.run)] = float(
                at["score"].sel(measure="error")
            )
    one, other = (pd.Series(errors[name]).sort_index() for name in ("hard", "COPKMeans"))
    entry = rows["hard / COPKMeans"]["error", "p"]
    assert entry.ours.value == pytest.approx(ttest_rel(one, other).pvalue)
    assert (entry.ours.n_sets, entry.ours.n_runs, entry.published) == (1, 3, 6e-8)
    assert entry.mark is None
    # It concerns two methods, and the published values.
    assert rows["hard"]["error", "p"].ours is None
    assert rows["hard"]["error", "sd"].ours is not None
    assert ("seconds", "p") not in whole.columns
    page = write_report(place).read_text(encoding="utf-8")
    assert f"<span>{entry.ours.value:.2g}" in page and "6e-08 <small>published" in page
    assert "p-value of a two-sided paired t-test" in page and "The sd over the fits" in page


def test_a_paired_test_is_over_data_sets_if_there_are_several():
    rng = np.random.default_rng(0)

    def frame(values):
        case, run = np.indices(values.shape).reshape(2, -1)
        return pd.DataFrame(
            {"case": case, "repeat": 0, "run": run, "feasible": True,
             "measured: error": values.ravel()}
        )  # fmt: skip

    one, other = rng.normal(size=(6, 4)), rng.normal(0.5, 1, size=(6, 4))
    result = paired_test(frame(one), frame(other), "error")
    assert result.value == pytest.approx(ttest_rel(one.mean(1), other.mean(1)).pvalue)
    assert (result.n_sets, result.n_runs) == (6, 4)
    # Runs that only one of them has are in no pair, nor are infeasible ones.
    longer = frame(other[:1]).iloc[:3]
    refused = frame(one[:1])
    refused.loc[0, "feasible"] = False
    result = paired_test(refused, longer, "error")
    assert result.value == pytest.approx(ttest_rel(one[0, 1:3], other[0, 1:3]).pvalue)
    # Without variance the test has no t.
    assert paired_test(frame(one), frame(one), "error").value == 1
    assert paired_test(frame(one), frame(one + 0.5), "error").value == 0
    assert paired_test(frame(one[:1, :1]), frame(other[:1, :1]), "error") is None


@pytest.mark.slow
@pytest.mark.contract
def test_a_fit_that_fails_without_its_pairs_too_has_failed(tmp_path, monkeypatch):
    def broken(self, X, y=None, **pairs):
        raise ValueError("this one fails")

    monkeypatch.setattr(COPKMeans, "fit", broken)
    with pytest.raises(InputError, match="12 of the fits failed; COPKMeans: ValueError: this one"):
        batch.run(PAIRS, tmp_path)
    assert batch.load(tmp_path).sizes["cell"] == 12


@pytest.mark.slow
@pytest.mark.contract
def test_pairs_without_a_split_are_of_all_rows(iris):
    spec = changed(PAIRS, split=None, runs=1, constraints={"labeling": "species", "pairs": 40})
    spec |= {"measures": {}, "methods": PAIRS["methods"][:1]}
    results = batch.run(spec).isel(cell=0)
    X, y = iris
    drawn = sample_pairs(y, np.arange(150), {"pairs": 40, "wrong": "none"}, (0, 0))
    model = MDLConstrained(3, n_init=2, random_state=0).fit(X, **drawn)
    np.testing.assert_array_equal(results["labels"], model.labels_)
    for kind, same in (("must_link", True), ("cannot_link", False)):
        first, second = results["labels"].values[drawn[kind]].T
        assert ((first == second) == same).all()


@pytest.mark.slow
@pytest.mark.contract
def test_a_classifier_is_told_labels_and_errs_on_new_rows(tmp_path, iris):
    spec = {
        "runs": 3,
        "data": {"loader": "iris"},
        "split": {"labeling": "species", "labelled": [0.1, 0.2], "unlabelled": 0.2},
        "methods": [
            {"name": "mixture", "n_clusters": 3, "covariance": "diag", "n_init": 2},
            {"name": "ib", "n_clusters": 3, "n_init": 2, "use_labels": False},
        ],
        "measures": {
            "error": {"metric": "error"},
            "train": {"metric": "train_accuracy"},
            "NMI": {"metric": "normalized_mutual_information", "labeling": "species"},
        },
        "save": {"memberships": True},
    }  # fmt: skip
    results = batch.run(spec, tmp_path)
    X, y = iris
    assert results.sizes["cell"] == 12
    for i in range(12):
        cell = results.isel(cell=i)
        part, scores = cell["part"].values, cell["score"]
        fitted, test = np.isin(part, (1, 2)), part == 3
        assert Counter(part.tolist())[1] == round(150 * float(cell["split.labelled"]))
        assert np.isnan(cell["membership"].values[test]).all()
        if str(cell["method"].values) == "IB":
            assert cell["split.use_labels"].item() == "false"
            continue
        model = MixtureEM(**json.loads(str(cell["parameters"].values)))
        model.fit(X[fitted], np.where(part == 1, y, -1)[fitted])
        said = model.predict(X[test])
        assert float(scores.sel(measure="error")) == pytest.approx((said != y[test]).mean())
        np.testing.assert_array_equal(cell["predicted"].values[test], said)
        assert float(scores.sel(measure="train")) == pytest.approx(
            (model.predict(X[fitted]) == y[fitted]).mean()
        )
        np.testing.assert_allclose(cell["membership"].values[fitted], model.membership_, atol=1e-6)
        assert float(results["compile_seconds"][i]) > 0  # in parallel with the other runs
    chosen = plan.select(plan.expand(read_model(spec)), ["split.labelled=0.2", "method=ib"])
    assert len(chosen) == 3


@pytest.mark.slow
@pytest.mark.contract
def test_clusters_that_are_no_classes_stand_for_those_of_their_labels(tmp_path, iris):
    spec = {
        "runs": 3,
        "data": {"loader": "iris"},
        "split": {"labeling": "species", "labelled": 0.3, "unlabelled": 0.3},
        "methods": [{"name": "cecib", "n_clusters": 6, "n_init": 2}],
        "measures": {"error": {"metric": "error"}},
        "save": {"memberships": True},
    }
    results = batch.run(spec, tmp_path)
    X, y = iris
    result = []
    for i in range(3):
        cell = results.isel(cell=i)
        part = cell["part"].values
        fitted, test = np.isin(part, (1, 2)), part == 3
        model = CECIB(**json.loads(str(cell["parameters"].values)))
        model.fit(X[fitted], np.where(part == 1, y, -1)[fitted])
        counts = model.label_counts_
        of = np.where(counts.any(1), counts.argmax(1), counts.sum(0).argmax())
        said = model.classes_[of][model.predict(X[test])]
        assert float(cell["score"].sel(measure="error")) == pytest.approx((said != y[test]).mean())
        k = model.n_clusters_
        kept = cell["membership"].values[fitted]
        np.testing.assert_array_equal(kept[:, :k], model.membership_)
        assert not np.nan_to_num(kept[:, k:]).any()
        result.append(k)
    assert max(result) > 3


def test_clusters_without_a_labelled_row_stand_for_the_most_frequent_class():
    from nrprob.batch import fits
    from nrprob.batch.splits import Parts

    #                  labelled    unlabelled  test       left out
    codes = np.array([0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1])
    part = np.array([1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 0])
    labels = np.array([0, 0, 1, 1, 2, 1, 0, -1, -1, -1, -1])
    predicted = np.where(part == 3, [0, 0, 0, 0, 0, 0, 0, 2, 2, 0, 0], -1)
    # Cluster 1 is a tie: the first class. So all say 0.
    fit = fits.Fit("", "", {}, labels, None, 0.0, np.empty(0), np.empty(0), 3, True, 1, 0.0,
                   predicted=predicted)  # fmt: skip
    rates = fits._class_rates(fit, Parts(codes, part), classifies=False)
    assert rates == pytest.approx({"train_accuracy": 4 / 7, "test_accuracy": 1 / 3, "error": 2 / 3})
    codes[0] = 1  # now cluster 0 is a tie as well, and class 1 no less frequent; then one more
    codes[3] = 1
    rates = fits._class_rates(fit, Parts(codes, part), classifies=False)
    # Clusters: 0 is a tie and says 0; 1 says 1; 2 has no labelled row and says 1.
    assert rates == pytest.approx({"train_accuracy": 4 / 7, "test_accuracy": 1 / 3, "error": 2 / 3})


# views


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    folder = tmp_path_factory.mktemp("views")
    return folder, batch.run(VIEWS, folder)


@pytest.mark.slow
@pytest.mark.contract
def test_views_are_fitted_and_measured(views):
    _, results = views
    assert results.sizes["cell"] == 4
    for i in range(4):
        cell = results.isel(cell=i)
        X, truth = make_gaussian_views(200, float(cell["permuted"]), random_state=0)
        scores = dict(zip(cell["measure"].values, cell["score"].values, strict=True))
        if str(cell["method"].values) == "COPKMeans":  # gets all columns
            model = COPKMeans(2, n_init=2, random_state=0).fit(X)
            np.testing.assert_array_equal(cell["labels"], model.labels_)
            assert (cell["view_labels"] == -1).all()
            assert np.isnan([scores[name] for name in ("TDL", "second", "MR", "NMI")]).all()
            assert scores["PR"] == scores["all"] == metrics.purity(model.labels_, truth[:, 0])
            only = metrics.jaccard_index(model.labels_, truth[:, 0])
            assert scores["most"] == scores["least"] == only
            assert scores["Dunn"] == metrics.dunn_index(X, model.labels_, separation="average")
            assert scores["width"] == metrics.silhouette_width(X, model.labels_)
            continue
        model = MDLMultiView((2, 2), n_init=2, random_state=0).fit([X[:, :2], X[:, 2:]])
        np.testing.assert_array_equal(cell["view_labels"], model.alternatives_)
        assert (cell["labels"] == -1).all()
        assert scores["TDL"] == pytest.approx(model.tdl_)
        assert scores["second"] == model.n_clusters_[1]
        assert scores["MR"] == model.matching_rate()
        assert scores["PR"] == scores["all"] == model.predictive_rate(truth[:, 0])
        assert scores["NMI"] == metrics.normalized_mutual_information(
            model.alternatives_[:, 1], truth[:, 1]
        )
        each = [metrics.jaccard_index(labels, truth[:, 0]) for labels in model.alternatives_.T]
        assert [scores["least"], scores["most"]] == sorted(each)
        views = model.alternatives_.T
        dunn = [metrics.dunn_index(X, labels, separation="average") for labels in views]
        assert scores["Dunn"] == pytest.approx(np.mean(dunn))
        assert scores["width"] == metrics.silhouette_width(X, views[0])
        assert int(cell["n_clusters_found"]) == sum(model.n_clusters_)
        assert float(cell["objective"]) == pytest.approx(model.objective_)


def test_views_can_be_tested_on_new_rows():
    split = {"labeling": "partition_0", "labelled": 0.5, "use_labels": False}
    measures = {"new": {"metric": "test_accuracy"}, "old": {"metric": "train_accuracy"}}
    data = {**VIEWS["data"], "grid": {}}
    spec = changed(VIEWS, split=split, measures=measures, data=data, methods=VIEWS["methods"][:1])
    cell = batch.run(spec).isel(cell=0)
    X, truth = make_gaussian_views(200, 0.0, random_state=0)
    parts = split_rows(truth[:, 0], {"labelled": 0.5, "unlabelled": 0, "test": 0.5}, (0, 0))
    fitted, test = parts.fitted, parts.mask("test")
    model = MDLMultiView((2, 2), views=(2, 2), n_init=2, random_state=0).fit(X[fitted])
    np.testing.assert_array_equal(cell["view_labels"].values[fitted], model.alternatives_)
    said = model.predict(X[test])
    np.testing.assert_array_equal(cell["view_predicted"].values[test], said)
    assert float(cell["score"].sel(measure="old")) == model.predictive_rate(truth[fitted, 0])
    # Rows of a combination of clusters have the majority class of its fitted rows.
    right = 0
    for row, c in zip(said, truth[test, 0], strict=True):
        votes = truth[fitted, 0][(model.alternatives_ == row).all(1)]
        right += c == (np.bincount(votes, minlength=2).argmax() if votes.size else 0)
    most = np.bincount(truth[fitted, 0]).argmax()
    assert most == 0 or all((model.alternatives_ == row).all(1).any() for row in said)
    assert float(cell["score"].sel(measure="new")) == pytest.approx(right / test.sum())


def test_a_single_run_of_views_is_written_and_drawn(tmp_path):
    spec = changed(VIEWS, data={**VIEWS["data"], "grid": {}}, methods=VIEWS["methods"][:1])
    model = read_model(spec)
    assert model.is_single
    run = fit_result.plan_result(plan.expand(model), batch.run(spec))
    fit_files.save_fit(run, tmp_path)
    rows = pd.read_csv(tmp_path / "labels.csv")
    np.testing.assert_array_equal(rows[["cluster_0", "cluster_1"]], run.fits[0].labels)
    summary = json.loads((tmp_path / "result.json").read_text())
    assert [len(sizes) for sizes in summary["cluster_sizes"]] == [2, 2]
    assert (tmp_path / "summary.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.contract
def test_a_single_run_of_a_split_says_which_row_was_what(tmp_path, iris):
    spec = changed(PAIRS, runs=1, constraints={"pairs": 30}, methods=PAIRS["methods"][:1])
    run = fit_result.plan_result(plan.expand(read_model(spec)), batch.run(spec))
    fit_files.save_fit(run, tmp_path)
    rows = pd.read_csv(tmp_path / "labels.csv")
    assert Counter(rows["part"]) == {"labelled": 45, "test": 105}
    fitted = rows["part"] == "labelled"
    assert (rows["cluster"][fitted] >= 0).all() and (rows["cluster"][~fitted] == -1).all()
    assert (rows["predicted"][~fitted] >= 0).all() and (rows["predicted"][fitted] == -1).all()
    assert (tmp_path / "summary.png").stat().st_size > 1000
    impossible = changed(spec, constraints={"pairs": 60, "wrong": "coin", "share": 1.0})
    run = fit_result.plan_result(plan.expand(read_model(impossible)), batch.run(impossible))
    assert run.fits[0].refusal
    fit_files.save_fit(run, tmp_path / "refused")
    assert not (tmp_path / "refused" / "summary.png").exists()
    assert json.loads((tmp_path / "refused" / "result.json").read_text())["n_clusters"] == 0


def test_many_methods_look_unlike_each_other():
    looks = {(nth_colour(i), nth_marker(i)) for i in range(24)}
    assert len(looks) == 24
