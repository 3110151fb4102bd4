"""The numbers of reports agree with NumPy."""

import json
import math

import numpy as np
import pytest
from made_up_results import MADE, MEASURES, METHODS, WANTED, make_model, make_run, table

from nrprob.batch import load, write_report
from nrprob.batch.measures import Figure
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import expand
from nrprob.batch.report.averages import Value, count_decimals, judge
from nrprob.batch.report.chart import make_chart
from nrprob.batch.report.comparison import compare_published, summarize_all
from nrprob.batch.report.results import collect_results, measure_performance, summarize_run


def results_of(folder):
    dataset = load(folder)
    model = read_model(json.loads(dataset.attrs["model"]))
    return collect_results(dataset, expand(model)), dataset


def by_hand(dataset, measure, **where):
    """Values of a measure, (data set, run), selected from the dataset by loops."""
    result = {}
    for i in range(dataset.sizes["cell"]):
        cell = dataset.isel(cell=i)
        if all(str(cell[name].values) == str(value) for name, value in where.items()):
            value = cell["score"].sel(measure=measure) if measure in MEASURES else cell[measure]
            key = (int(cell["case"]), int(cell["repeat"]))
            result.setdefault(key, []).append(float(value))
    return np.array([*result.values()])


def entries_of(whole, method):
    row = next(row for row in whole.rows if row.method == method)
    return {column: row.entries[column] for column in whole.columns}


def test_statistics_are_over_fits_and_their_errors_over_data_sets(tmp_path):
    statistics = {"mean": np.mean, "min": np.min, "max": np.max, "range": np.ptp}
    one = table({}, measures=["accuracy", "seconds"], statistics=[*statistics])
    results, dataset = results_of(make_run(tmp_path, make_model(tables=[one])))
    row = entries_of(compare_published(results, results.model.tables[0]), "ours")
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
    row = entries_of(compare_published(results, results.model.tables[0]), "plain")
    values = by_hand(dataset, "old", method="plain", dims="[4, 4]")[0]
    assert row["old", "mean"].ours.error == pytest.approx(values.std(ddof=1) / np.sqrt(5))
    assert row["old", "mean"].ours.over == "fits"
    assert row["old", "max"].ours.value == values.max()
    assert math.isnan(row["old", "max"].ours.error)


def test_one_fit_has_no_error_and_no_range(tmp_path):
    data = make_model()["data"] | {"repeats": 1}
    tables = [table({}, statistics=["mean", "range"])]
    results, _ = results_of(make_run(tmp_path, make_model(data=data, runs=1, tables=tables)))
    whole = compare_published(results, results.model.tables[0])
    assert whole.columns == [("accuracy", "mean"), ("distance", "mean"), ("old", "mean")]
    assert math.isnan(entries_of(whole, "ours")["accuracy", "mean"].ours.error)


def test_settings_of_a_method_are_averaged_within_data_sets(tmp_path):
    methods = [METHODS[0] | {"grid": {"n_init": [1, 2, 3]}}]
    model = make_model(methods=methods, tables=[table({}, statistics=["max"])])
    results, dataset = results_of(make_run(tmp_path, model))
    whole = compare_published(results, results.model.tables[0])
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
    assert judge(Value(0.5, 0.125, 4, 1, "data sets"), published, goal) == (mark)


def test_without_an_error_any_difference_counts():
    ours = Value(0.5, math.nan, 1, 1, "")
    assert judge(ours, 0.5, "high") == "reached"
    assert judge(ours, 0.51, "high") == "worse"


@pytest.mark.parametrize(
    ("ours", "published", "goal", "places", "mark"),
    [
        (0.332, 0.33, "low", 2, "reached"),
        (0.336, 0.33, "low", 2, "worse"),
        (0.328, 0.33, "high", 2, "reached"),
        (0.324, 0.33, "high", 2, "worse"),
        (0.2, 0.33, "low", 2, "reached"),
        (0.332, 0.33, "low", 3, "worse"),
        (24955.13, 24955.1, "low", 1, "reached"),
        (0.6, 1.0, "high", 0, "worse"),  # 1, 1.0 and 1.00 are the same in a model file
        (0.332, 0.33, "none", 2, None),
    ],
)
def test_equal_at_the_printed_decimals_is_reached(ours, published, goal, places, mark):
    assert judge(Value(ours, math.nan, 1, 1, ""), published, goal, places) == mark


def test_decimals_are_those_of_the_longest_value():
    assert count_decimals([0.3, 0.33, 1.0]) == 2  # 0.30 is written 0.3
    assert count_decimals([24955.1, 25260.0]) == count_decimals([0.1 + 0.2]) == 1
    assert count_decimals([1e-5]) == 5
    assert count_decimals([3.0, 12.0]) == count_decimals([]) == 0


@pytest.mark.parametrize(("goal", "ours"), [("low", 0.304), ("high", 0.296)])
def test_marks_are_by_the_decimals_of_the_table(tmp_path, goal, ours):
    measures = {"one": {"metric": "purity", "labeling": "partition_1", "goal": goal}}
    # 0.30 is written 0.3: the other setting determines the number of decimals.
    cases = [{"dims": [4, 4]}, {"dims": [12, 4]}]
    settings = [
        {"where": where, "published": {"ours": {"one": {"mean": value}}}}
        for where, value in zip(cases, (0.3, 0.25 if goal == "high" else 0.35), strict=True)
    ]
    model = make_model(measures=measures, tables=[{"name": "T", "settings": settings}])
    run = make_run(tmp_path, model, lambda cell: {"one": ours})
    results, _ = results_of(run)
    result = compare_published(results, results.model.tables[0])
    assert [entry.mark for entry in result.entries if entry.published] == ["reached"] * 2
    assert [best.mark for best in result.best] == ["reached"] * 2
    page = write_report(run).read_text()
    assert "0.30 <small>published" in page


@pytest.mark.smoke
def test_marks_of_a_table_follow_the_goals(tmp_path):
    value = {"accuracy": 0.5, "distance": 0.5, "old": 0.5, "seconds": 1.0}
    theirs = {name: {"mean": 0.75, "range": 0.75} for name in [*MEASURES, "seconds"]}
    tables = [table({"ours": theirs}, statistics=["mean", "range"])]
    results, _ = results_of(make_run(tmp_path, make_model(tables=tables), lambda cell: value))
    row = entries_of(compare_published(results, results.model.tables[0]), "ours")
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
    whole = compare_published(results, results.model.tables[0])
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
    entry = entries_of(compare_published(results, results.model.tables[0]), "ours / plain")
    top = by_hand(dataset, "accuracy", method="ours")[0]
    bottom = by_hand(dataset, "accuracy", method="plain")[0]
    ours = entry["accuracy", "mean"].ours
    assert ours.value == pytest.approx(top.mean() / bottom.mean())
    rest = (top[:3] - ours.value * bottom) / bottom.mean()
    assert ours.error == pytest.approx(rest.std(ddof=1) / np.sqrt(3))
    assert (ours.n_sets, ours.n_runs, ours.over) == (1, 4, "fits")


def test_wanted_labels_are_settings_and_axes(tmp_path):
    published = {"ours": {"accuracy": {"mean": 0.5}}}
    where = {"dims": [4, 4], "partial_labels.fraction": 0.2}
    model = make_model(**WANTED, tables=[table(published, where)])
    results, dataset = results_of(make_run(tmp_path, model))
    row = entries_of(compare_published(results, results.model.tables[0]), "ours")
    partial = {
        "labeling": "partition_1",
        "fraction": 0.2,
        "score": "unlabelled",
        "use_labels": True,
    }
    values = by_hand(
        dataset, "accuracy", method="ours", dims="[4, 4]", partial_labels=json.dumps(partial)
    )
    assert row["accuracy", "mean"].ours.value == pytest.approx(values.mean())
    assert values.shape == (3, 2)
    drawn = make_chart(results, results.model.figures[0])
    assert [[x for x, _, _ in line.points] for line in drawn.lines] == [[0.05, 0.2]] * 2 + [[0.2]]
    assert drawn.lines[-1].published


def test_published_only_and_ours_only(tmp_path):
    published = {
        "theirs": {"accuracy": {"mean": 0.9}},
        "ours / theirs": {"accuracy": {"mean": 3.0}},
        "ours": {"accuracy": {"mean": 0.8}},
    }
    results, _ = results_of(make_run(tmp_path, make_model(tables=[table(published)])))
    whole = compare_published(results, results.model.tables[0])
    kinds = {row.method: row.kind for row in whole.rows}
    assert kinds == {
        "ours": "ours", "plain": "ours", "theirs": "published", "ours / theirs": "published"
    }  # fmt: skip
    assert entries_of(whole, "theirs")["accuracy", "mean"].ours is None
    assert entries_of(whole, "plain")["accuracy", "mean"].published is None
    # A ratio is not an accuracy, in published values either.
    assert [(b.measure, b.published_method, b.published) for b in whole.best] == [
        ("accuracy", "theirs", 0.9)
    ]


def test_the_best_of_low_measures_is_the_lowest(tmp_path):
    published = {m: {"distance": {"mean": v}} for m, v in [("a", 0.3), ("b", 0.2), ("c", 0.9)]}
    value = lambda cell: {  # noqa: E731
        "accuracy": 0.0, "distance": 0.1 if cell.method == "plain" else 0.4, "old": 0.0
    }  # fmt: skip
    results, _ = results_of(make_run(tmp_path, make_model(tables=[table(published)]), value))
    (best,) = compare_published(results, results.model.tables[0]).best
    assert (best.our_method, best.published_method, best.published) == ("plain", "b", 0.2)
    assert best.mark == "reached"


def test_the_default_table_has_every_setting_once(tmp_path):
    methods = [METHODS[0] | {"grid": {"n_init": [1, 2]}}, METHODS[1]]
    results, dataset = results_of(make_run(tmp_path, make_model(methods=methods)))
    whole = summarize_all(results)
    assert [group.label for group in whole.groups] == ["dims = [4, 4]", "dims = [12, 4]"]
    assert [row.method for row in whole.groups[1].rows] == [
        "ours, n_init = 1", "ours, n_init = 2", "plain"
    ]  # fmt: skip
    # Objectives of different methods are not a column, and the page says so.
    assert [name for name, _ in whole.columns] == [*MEASURES, "n_clusters", "seconds"]
    assert "objectives, which are comparable only within a method" in whole.caption
    model = make_model(methods=methods[:1])
    alone = summarize_all(results_of(make_run(tmp_path / "alone", model))[0])
    assert [name for name, _ in alone.columns] == [*MEASURES, "n_clusters", "objective", "seconds"]
    assert "objective" not in alone.caption
    values = by_hand(dataset, "old", dims="[12, 4]", n_init="2.0")
    assert whole.groups[1].rows[1].entries["old", "mean"].ours.value == pytest.approx(values.mean())


def test_figures_have_ours_and_published_values(tmp_path):
    where = [{"dims": [12, 4]}, {"dims": [4, 4]}]
    settings = [
        {"where": w, "published": {"ours": {"old": {"mean": v}}, "x / y": {"old": {"mean": 1}}}}
        for w, v in zip(where, (0.25, 0.5), strict=True)
    ]
    figure = {"name": "F", "x": "dims.0", "y": "old", "where": {"n_samples": 20}}
    model = make_model(tables=[{"name": "T", "settings": settings}], figures=[figure])
    results, dataset = results_of(make_run(tmp_path, model))
    drawn = make_chart(results, results.model.figures[0])
    lines = {(line.method, line.published): line for line in drawn.lines}
    assert lines["ours", True].points[0][:2] == (4, 0.5)
    assert lines["ours", True].points[1][:2] == (12, 0.25)
    assert [x for x, _, _ in lines["plain", False].points] == [4, 12]
    sets = by_hand(dataset, "old", method="plain", dims="[12, 4]").mean(axis=1)
    _, y, error = lines["plain", False].points[1]
    assert (y, error) == pytest.approx((sets.mean(), sets.std(ddof=1) / np.sqrt(3)))
    assert ("plain", True) not in lines

    elsewhere = Figure(name="F", x="dims.0", y="old", where={"n_samples": 21})
    assert make_chart(results, elsewhere).lines == []


def test_series_tell_lines_of_a_method_apart(tmp_path):
    methods = [METHODS[0] | {"grid": {"n_init": [1, 2]}}]
    figure = {"name": "F", "x": "n_init", "y": "old", "series": "dims"}
    results, _ = results_of(make_run(tmp_path, make_model(methods=methods, figures=[figure])))
    lines = make_chart(results, results.model.figures[0]).lines
    assert [line.series for line in lines] == ["dims = [4, 4]", "dims = [12, 4]"]
    assert all([x for x, _, _ in line.points] == [1, 2] for line in lines)


def test_methods_that_share_fits_count_their_time_once(tmp_path):
    methods = [METHODS[0], METHODS[0] | {"title": "the same", "note": "one set of fits"}]
    results, _ = results_of(make_run(tmp_path, make_model(methods=methods), lambda c: MADE))
    assert entries_of(summarize_all(results), "the same")["old", "mean"].ours.value == 0.5
    result = summarize_run(results)
    assert (result["n_done"], result["seconds"]) == (24, 12 * 0.25)
    assert result["methods"][1:] == ["the same (one set of fits)"]


def test_measures_may_have_any_name(tmp_path):
    measures = {"case": MEASURES["old"], "done": MEASURES["old"], "warnings": MEASURES["accuracy"]}
    value = lambda cell: dict.fromkeys(measures, 0.5)  # noqa: E731
    results, _ = results_of(make_run(tmp_path, make_model(measures=measures), value))
    assert entries_of(summarize_all(results), "ours")["done", "mean"].ours.value == 0.5


def test_an_objective_by_another_name_is_no_column_of_several_methods(tmp_path):
    measures = MEASURES | {"loss": {"attribute": "objective_"}}
    value = lambda cell: dict.fromkeys(measures, 0.5)  # noqa: E731
    tables = [{"name": "T", "settings": [{"where": {"dims": [4, 4]}, "published": {}}]}]
    for methods, shown in ((METHODS, [*MEASURES]), (METHODS[:1], [*measures])):
        model = make_model(measures=measures, methods=methods, tables=tables)
        results, _ = results_of(make_run(tmp_path / str(len(methods)), model, value))
        assert [
            name for name, _ in compare_published(results, results.model.tables[0]).columns
        ] == shown
        assert [name for name, _ in summarize_all(results).columns][: len(shown)] == shown
        assert [*measure_performance(results)[0]["means"].iloc[0]] == shown


def test_times_and_convergence(tmp_path):
    results, dataset = results_of(make_run(tmp_path, make_model()))
    methods, settings = ([*t.itertuples()] for t in measure_performance(results))
    methods = sorted(methods, key=lambda row: row.method != "ours")
    seconds = by_hand(dataset, "seconds", method="ours")
    assert methods[0].n_fits == 12 and methods[0].method == "ours"
    assert methods[0].mean == pytest.approx(seconds.mean())
    assert methods[0].total == pytest.approx(seconds.sum())
    assert (methods[0].n_unconverged, methods[0].n_warned) == (6, 6)
    assert (methods[0].n_programs, methods[0].compile_seconds) == (1, 4.0)
    assert sorted(s.setting for s in settings) == ["dims = [12, 4]"] * 2 + ["dims = [4, 4]"] * 2
    assert summarize_run(results)["warnings"] == {"did not converge <after> 3 steps": 12}
