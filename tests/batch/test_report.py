"""Reports: the numbers against NumPy, and the page as a reader and a browser get it.

Results are made up, so that nothing is compiled.
"""

import html.parser
import json
import math
import re
import shutil
import subprocess

import numpy as np
import pytest

from nrprob.batch import comparison, report
from nrprob.batch.fits import Fit
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import expand
from nrprob.batch.reported import Figure
from nrprob.batch.store import Store, load, to_dataset
from nrprob.exceptions import InputError

MEASURES = {
    "accuracy": {"metric": "matched_accuracy", "labeling": "partition_1"},
    "distance": {"metric": "variation_of_information", "labeling": "partition_1"},
    "old": {"metric": "purity", "labeling": "partition_0", "goal": "none"},
}
METHODS = [
    {"name": "ccib", "title": "ours", "n_clusters": 2},
    {"name": "ib", "title": "plain", "n_clusters": 2},
]


MADE = dict.fromkeys(MEASURES, 0.5)


def make_model(**changes):
    model = {
        "title": "A <title> & more",
        "data": {
            "generator": "make_binary_partitions",
            "parameters": {"n_samples": 20},
            "cases": [{"dims": [4, 4]}, {"dims": [12, 4]}],
            "repeats": 3,
        },
        "known": "partition_0",
        "runs": 2,
        "methods": METHODS,
        "measures": MEASURES,
    }
    return model | changes


def table(published, where=None, **more):
    setting = {"where": {"dims": [4, 4]} if where is None else where, "published": published}
    return {"name": "T", "settings": [setting], **more}


def measured(cell, value):
    """A made-up fit; ``value`` gives its measures, its seconds included."""
    scores = dict(value(cell))
    return Fit(
        title=cell.method, method="CCIB", parameters={}, labels=np.arange(4) % 2, membership=None,
        objective=scores.pop("objective", 1.5), trace=np.empty(0), restarts=np.ones(2),
        n_clusters=2, converged=cell.run == 0, n_iter=3, seconds=scores.pop("seconds", 0.25),
        warnings=[] if cell.run == 0 else ["did not converge <after> 3 steps"], scores=scores,
        compile_seconds=4.0 if cell.method == "ours" else math.nan,
    )  # fmt: skip


def make_run(folder, model, value=None, keep=lambda cell: True, numpy="2.0"):
    """A folder of results as `nrprob run` would leave it."""
    value = value or random_value(0)
    plan = expand(read_model(model))
    store = Store(folder)
    store.open(plan)
    cells = [cell for batch in plan.batches for cell in batch.cells if keep(cell)]
    if cells:
        # All in one file, which is faster; `load` does not care.
        circumstances = [
            {
                "dtype": "float64", "compile_seconds": 4.0, "started": "2005-05-01T12:30:00+00:00",
                "host": "a host", "device": "1 x cpu",
                "versions": json.dumps({"numpy": numpy(cell) if callable(numpy) else numpy}),
            }
            for cell in cells
        ]  # fmt: skip
        fits = [measured(cell, value) for cell in cells]
        store.write(plan.batches[0], to_dataset([c.id for c in cells], fits, circumstances))
    return folder


def random_value(seed):
    rng = np.random.default_rng(seed)
    return lambda cell: {name: rng.random() for name in [*MEASURES, "seconds", "objective"]}


def results_of(folder):
    dataset = load(folder)
    model = read_model(json.loads(dataset.attrs["model"]))
    return comparison.collect(dataset, model, expand(model).cells), dataset


def by_hand(dataset, measure, **where):
    """Values of a measure, (data set, run), picked out of the dataset by loops."""
    found = {}
    for i in range(dataset.sizes["cell"]):
        cell = dataset.isel(cell=i)
        if all(str(cell[name].values) == str(value) for name, value in where.items()):
            value = cell["score"].sel(measure=measure) if measure in MEASURES else cell[measure]
            key = (int(cell["case"]), int(cell["repeat"]))
            found.setdefault(key, []).append(float(value))
    return np.array([*found.values()])


def entries_of(whole, method):
    row = next(row for row in whole.rows if row.method == method)
    return dict(zip(whole.columns, row.entries, strict=True))


# numbers


def test_statistics_are_over_fits_and_their_errors_over_data_sets(tmp_path):
    statistics = {"mean": np.mean, "min": np.min, "max": np.max, "range": np.ptp}
    one = table({}, measures=["accuracy", "seconds"], statistics=[*statistics])
    results, dataset = results_of(make_run(tmp_path, make_model(tables=[one])))
    row = entries_of(comparison.compare(results, results.model.tables[0]), "ours")
    assert len(row) == 8
    for (measure, statistic), entry in row.items():
        values = by_hand(dataset, measure, method="ours", dims="[4, 4]")
        assert values.shape == (3, 2)
        sets = statistics[statistic](values, 1)
        assert entry.ours.value == pytest.approx(sets.mean())
        assert entry.ours.error == pytest.approx(sets.std(ddof=1) / np.sqrt(3))
        assert (entry.ours.n_sets, entry.ours.n_runs, entry.ours.over) == (3, 2, "data sets")


def test_with_one_data_set_the_error_of_a_mean_is_over_its_fits(tmp_path):
    data = make_model()["data"] | {"repeats": 1}
    model = make_model(data=data, runs=5, tables=[table({}, statistics=["mean", "max"])])
    results, dataset = results_of(make_run(tmp_path, model))
    row = entries_of(comparison.compare(results, results.model.tables[0]), "plain")
    values = by_hand(dataset, "old", method="plain", dims="[4, 4]")[0]
    assert row["old", "mean"].ours.error == pytest.approx(values.std(ddof=1) / np.sqrt(5))
    assert row["old", "mean"].ours.over == "fits"
    assert row["old", "max"].ours.value == values.max()
    assert math.isnan(row["old", "max"].ours.error)


def test_one_fit_has_no_error_and_no_range(tmp_path):
    data = make_model()["data"] | {"repeats": 1}
    tables = [table({}, statistics=["mean", "range"])]
    results, _ = results_of(make_run(tmp_path, make_model(data=data, runs=1, tables=tables)))
    whole = comparison.compare(results, results.model.tables[0])
    assert whole.columns == (("accuracy", "mean"), ("distance", "mean"), ("old", "mean"))
    assert math.isnan(entries_of(whole, "ours")["accuracy", "mean"].ours.error)


def test_settings_of_a_method_are_averaged_within_data_sets(tmp_path):
    methods = [METHODS[0] | {"grid": {"n_init": [1, 2, 3]}}]
    model = make_model(methods=methods, tables=[table({}, statistics=["max"])])
    results, dataset = results_of(make_run(tmp_path, model))
    whole = comparison.compare(results, results.model.tables[0])
    best = np.mean(
        [by_hand(dataset, "old", dims="[4, 4]", n_init=n).max(axis=1) for n in (1, 2, 3)], axis=0
    )
    ours = entries_of(whole, "ours")["old", "max"].ours
    assert ours.value == pytest.approx(best.mean())
    assert ours.error == pytest.approx(best.std(ddof=1) / np.sqrt(3))
    assert whole.rows[0].n_settings == 3


@pytest.mark.parametrize(
    ("published", "goal", "mark"),
    [
        (0.5, "high", "reached"),
        (0.25, "high", "reached"),
        (0.5625, "high", "within"),
        (0.75, "high", "within"),
        (0.7501, "high", "worse"),
        (0.5, "low", "reached"),
        (0.75, "low", "reached"),
        (0.25, "low", "within"),
        (0.2499, "low", "worse"),
        (0.9, "none", None),
    ],
)
def test_marks(published, goal, mark):
    assert comparison.judge(comparison.Value(0.5, 0.125, 4, 1, "data sets"), published, goal) == (
        mark
    )


def test_without_an_error_any_difference_counts():
    ours = comparison.Value(0.5, math.nan, 1, 1, "")
    assert comparison.judge(ours, 0.5, "high") == "reached"
    assert comparison.judge(ours, 0.51, "high") == "worse"


@pytest.mark.smoke
def test_marks_of_a_table_follow_the_goals(tmp_path):
    value = {"accuracy": 0.5, "distance": 0.5, "old": 0.5, "seconds": 1.0}
    theirs = {name: {"mean": 0.75, "range": 0.75} for name in [*MEASURES, "seconds"]}
    tables = [table({"ours": theirs}, statistics=["mean", "range"])]
    results, _ = results_of(make_run(tmp_path, make_model(tables=tables), lambda cell: value))
    row = entries_of(comparison.compare(results, results.model.tables[0]), "ours")
    marks = {column: entry.mark for column, entry in row.items()}
    assert marks.pop(("accuracy", "mean")) == "worse"
    assert marks.pop(("distance", "mean")) == "reached"
    assert set(marks.values()) == {None}


def test_ratios_are_of_means_over_shared_data_sets(tmp_path):
    published = {"ours / plain": {"seconds": {"mean": 2.0}}, "ours": {"accuracy": {"mean": 0.1}}}
    model = make_model(tables=[table(published, measures=["seconds", "accuracy"])])
    # The third data set has no result of the second method.
    keep = lambda cell: cell.method == "ours" or cell.repeat < 2  # noqa: E731
    results, dataset = results_of(make_run(tmp_path, model, keep=keep))
    whole = comparison.compare(results, results.model.tables[0])
    row = entries_of(whole, "ours / plain")
    top = by_hand(dataset, "seconds", method="ours", dims="[4, 4]").mean(axis=1)[:2]
    bottom = by_hand(dataset, "seconds", method="plain", dims="[4, 4]").mean(axis=1)
    ratio = top.mean() / bottom.mean()
    rest = (top - ratio * bottom) / bottom.mean()
    assert row["seconds", "mean"].ours.value == pytest.approx(ratio)
    assert row["seconds", "mean"].ours.error == pytest.approx(rest.std(ddof=1) / np.sqrt(2))
    assert row["seconds", "mean"].published == 2.0
    assert row["seconds", "mean"].mark is None
    assert row["accuracy", "mean"].ours is None
    assert [r.kind for r in whole.rows] == ["ours", "ours", "ratio"]


def test_with_one_data_set_the_error_of_a_ratio_is_over_the_runs_of_both(tmp_path):
    published = {"ours / plain": {"accuracy": {"mean": 2.0}}}
    data = {
        "generator": "make_binary_partitions",
        "parameters": {"n_samples": 20, "dims": [4, 4]},
    }
    methods = [METHODS[0] | {"runs": 4}, METHODS[1] | {"runs": 3}]
    changes = {"data": data, "methods": methods, "tables": [table(published)]}
    results, dataset = results_of(make_run(tmp_path, make_model(**changes)))
    entry = entries_of(comparison.compare(results, results.model.tables[0]), "ours / plain")
    top = by_hand(dataset, "accuracy", method="ours")[0]
    bottom = by_hand(dataset, "accuracy", method="plain")[0]
    ours = entry["accuracy", "mean"].ours
    assert ours.value == pytest.approx(top.mean() / bottom.mean())
    rest = (top[:3] - ours.value * bottom) / bottom.mean()
    assert ours.error == pytest.approx(rest.std(ddof=1) / np.sqrt(3))
    assert (ours.n_sets, ours.n_runs, ours.over) == (1, 4, "fits")


WANTED = {
    "wanted": {"labeling": "partition_1", "fraction": [0.05, 0.2]},
    "methods": [METHODS[0], METHODS[1] | {"wanted": False}],
    "figures": [{"name": "F", "x": "wanted.fraction", "y": "accuracy"}],
}


def test_wanted_labels_are_settings_and_axes(tmp_path):
    published = {"ours": {"accuracy": {"mean": 0.5}}}
    where = {"dims": [4, 4], "wanted.fraction": 0.2}
    model = make_model(**WANTED, tables=[table(published, where)])
    results, dataset = results_of(make_run(tmp_path, model))
    row = entries_of(comparison.compare(results, results.model.tables[0]), "ours")
    wanted = {"labeling": "partition_1", "fraction": 0.2, "score": "unlabelled", "told": True}
    values = by_hand(dataset, "accuracy", method="ours", dims="[4, 4]", wanted=json.dumps(wanted))
    assert row["accuracy", "mean"].ours.value == pytest.approx(values.mean())
    assert values.shape == (3, 2)
    chart = comparison.chart(results, results.model.figures[0])
    assert [[x for x, _, _ in line.points] for line in chart.lines] == [[0.05, 0.2]] * 2 + [[0.2]]
    assert chart.lines[-1].published


def test_the_page_says_which_labels_were_told(tmp_path):
    text = page_of(report.write_report(make_run(tmp_path / "a", make_model(**WANTED)))).text
    text = " ".join(text.split())
    told = "partition_1 of 5 % or 20 % of every class, drawn anew for every run and the same for"
    assert f"{told} all methods (not told: plain); measures are of the other rows" in text
    # The table of everything keeps the points of the curve apart.
    assert "ours, wanted.fraction\xa0=\xa00.05" in text or "wanted.fraction = 0.05" in text
    model = make_model(wanted={"labeling": "partition_1", "per_class": 3, "score": "all"})
    text = page_of(report.write_report(make_run(tmp_path / "b", model))).text
    assert "partition_1 of 3 rows of every class" in text
    assert "measures are of all rows" in text
    text = page_of(report.write_report(make_run(tmp_path / "c", make_model()))).text
    assert "Labels told" not in text


def test_a_table_of_ratios_says_what_they_are_of(tmp_path):
    published = {"ours / plain": {"seconds": {"mean": 2.0}}}
    model = make_model(tables=[table(published, measures=["seconds"], methods=["ours / plain"])])
    page = report.write_report(make_run(tmp_path, model)).read_text()
    assert "Ours: 3 data sets" in page
    assert "Nothing of ours is finished" not in page


def test_published_only_and_ours_only(tmp_path):
    published = {
        "theirs": {"accuracy": {"mean": 0.9}},
        "ours / theirs": {"accuracy": {"mean": 3.0}},
        "ours": {"accuracy": {"mean": 0.8}},
    }
    results, _ = results_of(make_run(tmp_path, make_model(tables=[table(published)])))
    whole = comparison.compare(results, results.model.tables[0])
    kinds = {row.method: row.kind for row in whole.rows}
    assert kinds == {
        "ours": "ours", "plain": "ours", "theirs": "published", "ours / theirs": "published"
    }  # fmt: skip
    assert entries_of(whole, "theirs")["accuracy", "mean"].ours is None
    assert entries_of(whole, "plain")["accuracy", "mean"].published is None
    # A ratio is no accuracy, whoever published it.
    assert [(b.measure, b.published_method, b.published) for b in whole.best] == [
        ("accuracy", "theirs", 0.9)
    ]


def test_the_best_of_low_measures_is_the_lowest(tmp_path):
    published = {m: {"distance": {"mean": v}} for m, v in [("a", 0.3), ("b", 0.2), ("c", 0.9)]}
    value = lambda cell: {  # noqa: E731
        "accuracy": 0.0, "distance": 0.1 if cell.method == "plain" else 0.4, "old": 0.0
    }  # fmt: skip
    results, _ = results_of(make_run(tmp_path, make_model(tables=[table(published)]), value))
    (best,) = comparison.compare(results, results.model.tables[0]).best
    assert (best.our_method, best.published_method, best.published) == ("plain", "b", 0.2)
    assert best.mark == "reached"


def test_the_default_table_has_every_setting_once(tmp_path):
    methods = [METHODS[0] | {"grid": {"n_init": [1, 2]}}, METHODS[1]]
    results, dataset = results_of(make_run(tmp_path, make_model(methods=methods)))
    whole = comparison.overview(results)
    assert [group.label for group in whole.groups] == ["dims = [4, 4]", "dims = [12, 4]"]
    assert [row.method for row in whole.groups[1].rows] == [
        "ours, n_init = 1", "ours, n_init = 2", "plain"
    ]  # fmt: skip
    assert [name for name, _ in whole.columns] == [*MEASURES, "n_clusters", "objective", "seconds"]
    values = by_hand(dataset, "old", dims="[12, 4]", n_init="2.0")
    assert whole.groups[1].rows[1].entries[2].ours.value == pytest.approx(values.mean())


def test_figures_have_ours_and_published_values(tmp_path):
    where = [{"dims": [12, 4]}, {"dims": [4, 4]}]
    settings = [
        {"where": w, "published": {"ours": {"old": {"mean": v}}, "x / y": {"old": {"mean": 1}}}}
        for w, v in zip(where, (0.25, 0.5), strict=True)
    ]
    figure = {"name": "F", "x": "dims.0", "y": "old", "where": {"n_samples": 20}}
    model = make_model(tables=[{"name": "T", "settings": settings}], figures=[figure])
    results, dataset = results_of(make_run(tmp_path, model))
    lines = {(line.method, line.published): line for line in comparison.chart(
        results, results.model.figures[0]
    ).lines}  # fmt: skip
    assert lines["ours", True].points[0][:2] == (4, 0.5)
    assert lines["ours", True].points[1][:2] == (12, 0.25)
    assert [x for x, _, _ in lines["plain", False].points] == [4, 12]
    sets = by_hand(dataset, "old", method="plain", dims="[12, 4]").mean(axis=1)
    _, y, error = lines["plain", False].points[1]
    assert (y, error) == pytest.approx((sets.mean(), sets.std(ddof=1) / np.sqrt(3)))
    assert ("plain", True) not in lines

    elsewhere = Figure(name="F", x="dims.0", y="old", where={"n_samples": 21})
    assert comparison.chart(results, elsewhere).lines == ()


def test_series_tell_lines_of_a_method_apart(tmp_path):
    methods = [METHODS[0] | {"grid": {"n_init": [1, 2]}}]
    figure = {"name": "F", "x": "n_init", "y": "old", "series": "dims"}
    results, _ = results_of(make_run(tmp_path, make_model(methods=methods, figures=[figure])))
    lines = comparison.chart(results, results.model.figures[0]).lines
    assert [line.series for line in lines] == ["dims = [4, 4]", "dims = [12, 4]"]
    assert all([x for x, _, _ in line.points] == [1, 2] for line in lines)


def test_methods_that_share_fits_count_their_time_once(tmp_path):
    methods = [METHODS[0], METHODS[0] | {"title": "the same"}]
    results, _ = results_of(make_run(tmp_path, make_model(methods=methods), lambda c: MADE))
    assert entries_of(comparison.overview(results), "the same")["old", "mean"].ours.value == 0.5
    facts = comparison.facts(results)
    assert (facts.n_done, facts.seconds) == (24, 12 * 0.25)


def test_measures_may_have_any_name(tmp_path):
    measures = {"case": MEASURES["old"], "done": MEASURES["old"], "warnings": MEASURES["accuracy"]}
    value = lambda cell: dict.fromkeys(measures, 0.5)  # noqa: E731
    results, _ = results_of(make_run(tmp_path, make_model(measures=measures), value))
    assert entries_of(comparison.overview(results), "ours")["done", "mean"].ours.value == 0.5


def test_times_and_convergence(tmp_path):
    results, dataset = results_of(make_run(tmp_path, make_model()))
    methods, settings = comparison.timings(results)
    seconds = by_hand(dataset, "seconds", method="ours")
    assert methods[0].n_fits == 12
    assert methods[0].mean == pytest.approx(seconds.mean())
    assert methods[0].total == pytest.approx(seconds.sum())
    assert (methods[0].n_unconverged, methods[0].n_warned) == (6, 6)
    assert (methods[0].n_programs, methods[0].compile_seconds) == (1, 4.0)
    assert [s.setting for s in settings] == ["dims = [4, 4]"] * 2 + ["dims = [12, 4]"] * 2
    assert comparison.facts(results).warnings == {"did not converge <after> 3 steps": 12}


# the page


class Page(html.parser.HTMLParser):
    """What a page consists of; complains about tags that do not match."""

    VOID = ("meta", "img", "link", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.images, self.loads, self.captions = [], [], [], [], []
        self.scopes, self.text, self.tables = [], "", 0
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "table":
            self.tables += 1
        if tag == "caption":
            self.captions.append("")
        if tag == "img":
            self.images.append(found.get("alt", ""))
        if tag == "th":
            self.scopes.append(found.get("scope"))
        self.loads += [found[k] for k in ("src", "href", "srcset", "action") if k in found]
        assert tag not in ("script", "link", "iframe", "object")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "caption" in self.open:
            self.captions[-1] += data


def page_of(path):
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert all(page.images)
    assert len(page.captions) == page.tables
    assert all(caption.strip() for caption in page.captions)
    assert set(page.scopes) <= {"row", "col", "rowgroup", "colgroup"}
    assert all(at.startswith(("#", "data:")) for at in page.loads)
    assert {at[1:] for at in page.loads if at.startswith("#")} <= set(page.ids)
    assert '<html lang="en">' in text
    assert not re.search(r"url\(|@import", text)
    return page


FULL = make_model(
    description="First.\n\nSecond <b>.",
    source="A book, section 5",
    tables=[
        table(
            {
                "ours": {"accuracy": {"mean": 2.0}, "distance": {"mean": 9.0}},
                "theirs": {"accuracy": {"mean": 0.5250, "range": 0.1}},
                "ours / plain": {"seconds": {"mean": 1.5}},
            },
            name="Table <1>",
            caption="What & what",
            statistics=["mean", "range"],
        ),
        {"name": "Table 2", "settings": [{"where": {"dims": [12, 4]}}, {"note": "all data"}]},
    ],
    figures=[
        {
            "name": "Figure 1",
            "caption": "a & b",
            "x": "dims.0",
            "x_label": "columns at $1 each, $",
            "y": "accuracy",
            "log_x": True,
        },
        {"name": "Figure 2", "x": "dims", "y": "seconds"},
    ],
)


def test_the_page_of_a_run(tmp_path):
    folder = make_run(tmp_path / "run", FULL)
    path = report.write_report(folder)
    assert path == folder / "report.html"
    page = page_of(path)
    text = " ".join(page.text.split())
    for part in (
        "A <title> & more", "Second <b>.", "A book, section 5", "24 of 24", "Table <1>",
        "What & what.", "published only", "ratio of means", "1 ▼ worse, 0 ≈ within 2 SE, 1 ▲",
        "mean of 2 settings", "all data", "24 of 24", "12 fits: did not converge <after> 3 steps",
        "numpy 2.0", "2005-05-01 12:30 UTC", "0.525 published", "a host", "float64",
    ):  # fmt: skip
        assert part in text, part
    assert "are missing" not in text
    # What is seen is also said.
    assert text.count("▼worse") == 3  # in the legend, in the table, and of the best
    alt = page.images[0]
    assert alt.startswith("accuracy against columns at $1 each, $. ours: ")
    assert "ours (published): 2.000 at 4" in alt
    assert len(page.images) == 2


def test_what_is_missing_or_mixed_is_said(tmp_path):
    keep = lambda cell: cell.case == 0 and (cell.method == "ours" or cell.repeat == 0)  # noqa: E731
    folder = make_run(
        tmp_path, FULL, keep=keep, numpy=lambda cell: "2.0" if cell.method == "ours" else "2.1"
    )
    text = " ".join(page_of(report.write_report(folder)).text.split())
    assert "16 of 24 fits are missing (plain 10, ours 6)" in text
    assert "2 of 6 fits" in text
    assert "not finished: 0 of 6 fits" in text
    assert "different versions: numpy 2.0 (6 fits), 2.1 (2 fits)" in text


def test_a_data_file_may_be_gone(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("a,b\n" + "1,2\n3,4\n" * 5)
    model = {"data": {"file": str(file)}, "methods": METHODS}
    value = lambda cell: {"NMI of b": 0.5}  # noqa: E731
    folder = make_run(tmp_path / "run", model, value)
    file.unlink()
    page = page_of(report.write_report(folder))
    assert page.captions[0].startswith("All results")
    assert "NMI of b" in page.text


def test_a_folder_of_folders(tmp_path):
    for name in ("part 10", "part 9", "part 1"):
        make_run(tmp_path / name, make_model(title=f"Title of {name}"))
    make_run(tmp_path / "part 11", make_model(title=""), keep=lambda cell: False)
    (tmp_path / "something else").mkdir()
    page = page_of(report.write_report(tmp_path, tmp_path / "new" / "page.html"))
    parts = re.findall(r"Title of part \d+", page.text)
    assert parts == [f"Title of part {i}" for i in (1, 9, 10)] * 2  # contents, then sections
    assert "24 of 24 fits are missing" in page.text
    assert "part 11" in page.text


def test_an_existing_folder_as_the_place(tmp_path):
    folder = make_run(tmp_path / "run", make_model())
    assert report.write_report(folder, tmp_path) == tmp_path / "report.html"


@pytest.mark.parametrize("inside", [False, True])
def test_nothing_to_report(tmp_path, inside):
    with pytest.raises(InputError, match=r"no results here; .*; name a folder") as caught:
        report.write_report(tmp_path)
    assert len(str(caught.value).splitlines()) == 1
    make_run(tmp_path / "run" if inside else tmp_path, make_model(), keep=lambda cell: False)
    with pytest.raises(InputError, match=r"nothing is finished yet; .* 0 of 24 fits; run"):
        report.write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("inside", [False, True])
def test_a_damaged_file_stops_a_report(tmp_path, inside):
    folder = make_run(tmp_path / "run", make_model())
    path = next((folder / "cells").glob("*.nc"))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match=rf"cannot read a result file; .*{path.name}"):
        report.write_report(tmp_path if inside else folder)
    assert not [*tmp_path.glob("**/report.html")]


def test_an_unwritable_place(tmp_path):
    folder = make_run(tmp_path / "run", make_model())
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the output folder"):
        report.write_report(folder, tmp_path / "file" / "page.html")


# in a browser


def rendered(path, profile, width):
    """The page's elements as a browser has them, at a width in pixels."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    browser = browser or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium or Chrome on this machine")
    options = (
        "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage "
        "--no-first-run --disable-background-networking --disable-component-update "
        "--disable-sync --hide-scrollbars"
    )
    command = [
        browser, *options.split(), f"--user-data-dir={profile}", f"--window-size={width},900",
        "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    return subprocess.run(
        command, check=True, capture_output=True, timeout=100, text=True, encoding="utf-8"
    ).stdout


def test_the_page_in_a_browser(tmp_path):
    path = report.write_report(make_run(tmp_path / "run", FULL))
    text = path.read_text(encoding="utf-8")
    # The page has no scripts; a copy of it gets one, to ask the browser how the page came out. A
    # window has a least width, so the narrow page is in a frame.
    ask = """<script>addEventListener("load", () => {
      const images = [...document.images];
      document.documentElement.dataset.found = JSON.stringify({
        page: document.documentElement.scrollWidth, window: innerWidth,
        tables: document.querySelectorAll("table").length,
        drawn: images.filter(i => i.complete && i.naturalWidth > 100).length,
      });
      parent.postMessage(document.documentElement.dataset.found, "*");
    });</script></body>"""
    copy = tmp_path / "copy.html"
    opened = text.replace("<details>", "<details open>")
    copy.write_text(opened.replace("</body>", ask), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        '<html><body><script>addEventListener("message", e => '
        "{ document.documentElement.dataset.found = e.data });</script>"
        '<iframe src="copy.html" width="400" height="800" style="border: 0"></iframe></body></html>'
    )
    for file, width in ((frame, 400), (copy, 1200)):
        dom = rendered(file, tmp_path / "profile", 1200)
        found = json.loads(re.search(r'data-found="([^"]*)"', dom)[1].replace("&quot;", '"'))
        assert found["window"] == width
        assert found["page"] <= width
        assert found["tables"] == Page(text).tables
        assert found["drawn"] == 2
