"""The page of a single fit: its numbers agree with their definitions, and it is readable."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from pages import page_of

from nrprob import CCIB
from nrprob.batch import fit_files
from nrprob.batch.fit_result import FitResult, check_clusters, exploration_results
from nrprob.batch.fits import Fit
from nrprob.batch.report import fit_page, fit_summary, template
from nrprob.batch.report.fit_page import Chapter
from nrprob.batch.tables import Table
from nrprob.evidence.record import Evidence
from nrprob.plotting import centroids, plot_centroids
from nrprob.statistics import top_features
from nrprob.statistics.table_units import TableUnits, format_numbers

NAMES = ["a", "<script>alert(1)</script>", "c & d", 'e" onload="f()', "{{ 7 * 7 }}", r"$\frac{$"]
GROUPS = np.array(["<b>x</b>", "y", "z"])


@pytest.fixture
def drawn():
    """Rows with a known and a sought structure, which overlap."""
    rng = np.random.default_rng(3)
    known, age = rng.integers(3, size=90), rng.normal(size=90)
    sought = (rng.random(90) < 0.3 + 0.2 * known).astype(int) + (rng.random(90) < 0.2)
    X = rng.normal(size=(90, 6)) + 20
    X[:, 0] += 7 * known
    X[:, 1] -= 3 * (sought == 2)
    X[:, 2] += 2 * sought + 4 * age
    X[:, 5] = 3
    return X, known, age, sought


def make(X, labels, known=(), **more):
    labelings = {"group <i>": GROUPS[known]} if len(known) else {}
    table = Table(X, NAMES, labelings, row_names=np.array([f"row <{i}>" for i in range(len(X))]))
    fit = Fit("CCIB", "CCIB", {"n_clusters": 3, "init": "<u>"}, labels, 1.0, objective=1.5,
              n_clusters=3, warnings=["it <s>said</s> so"])  # fmt: skip
    return FitResult("", table, [*labelings], [fit], **more)


def left_of_known(X, known, sought, age=None):
    """Features without the effects of known groups and a covariate, fitted with clusters."""
    design = np.eye(known.max() + 1)[known]
    if age is not None:
        design = np.column_stack([design, age])
    both = np.column_stack([design, np.eye(sought.max() + 1)[sought]])
    return X - design @ np.linalg.lstsq(both, X, rcond=None)[0][: design.shape[1]]


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("as_rows", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("entries", [90, 10**6])
def test_differences_and_examples_are_those_of_their_definitions(
    drawn, measured, as_rows, entries, monkeypatch
):
    X, known, age, sought = drawn
    monkeypatch.setattr(top_features, "_ENTRIES", entries)
    told = top_features.find_top_features(
        as_rows(X), sought, [0, 2], known, age[:, None] if measured else None, n_nearest=4
    )
    rest = left_of_known(X, known, sought, age if measured else None)
    spread = np.sqrt(sum(rest[sought == c].var(0) * (sought == c).sum() for c in range(3)))[:5]
    for place, cluster in enumerate((0, 2)):
        ours, theirs = rest[sought == cluster][:, :5], rest[sought != cluster][:, :5]
        pooled = (ours.var(0) * len(ours) + theirs.var(0) * len(theirs)) / (90 - 2)
        expected = (ours.mean(0) - theirs.mean(0)) / np.sqrt(pooled)
        np.testing.assert_allclose(told.differences[place, :5], expected, rtol=1e-9)
        assert told.differences[place, 5] == 0  # a constant
        np.testing.assert_allclose(told.inside[place], X[sought == cluster].mean(0))
        np.testing.assert_allclose(told.outside[place], X[sought != cluster].mean(0))
        distances = (((ours - ours.mean(0)) / spread) ** 2).sum(1)
        rows = np.flatnonzero(sought == cluster)[np.argsort(distances)[:4]]
        assert told.nearest[place].tolist() == rows.tolist()
        order = np.argsort(-np.abs(expected))
        assert told.most_different(place, 3).tolist() == order[:3].tolist()
        assert told.most_different(place, 10).tolist() == order.tolist()


def test_missing_values_leave_the_other_columns_alone(drawn):
    """Every column is described by the rows that have a value."""
    X, known, _, sought = drawn
    gappy = np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X)
    gappy[:, 4] = X[:, 4]
    result = top_features.find_top_features(gappy, sought, [0, 1, 2], known)
    for j in range(X.shape[1]):
        seen = ~np.isnan(gappy[:, j])
        alone = top_features.find_top_features(
            X[seen][:, [j]], sought[seen], [0, 1, 2], known[seen]
        )
        for name in ("differences", "inside", "outside"):
            np.testing.assert_allclose(getattr(result, name)[:, j], getattr(alone, name)[:, 0])
        assert result.overall[j] == pytest.approx(X[seen, j].mean())
    # A cluster without any value differs in nothing.
    gappy[sought == 2, 0] = np.nan
    result = top_features.find_top_features(gappy, sought, [2], known)
    assert result.differences[0, 0] == 0 and np.isnan(result.inside[0, 0])


def test_typical_rows_are_nearest_on_average_over_their_values():
    """A column with few values weighs like the others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)) * [1, 2, 3, 4]
    X[rng.random(200) < 0.8, 3] = np.nan
    codes = np.repeat([0, 1], 100)
    result = top_features.find_top_features(X, codes, [0, 1], 0 * codes)
    rest = np.concatenate([X[codes == c] - np.nanmean(X[codes == c], 0) for c in (0, 1)])
    distances = np.nanmean(rest**2 / np.nanmean(rest**2, 0), 1)
    for c in (0, 1):
        rows = np.flatnonzero(codes == c)
        assert result.nearest[c].tolist() == rows[np.argsort(distances[rows])[:5]].tolist()


def test_examples_of_counts_do_not_depend_on_the_sums_of_rows():
    rng = np.random.default_rng(0)
    codes, known = np.arange(600) % 3, np.arange(600) // 3 % 2
    rate = rng.gamma(0.4, 1.0, 300) + 0.01
    rates = rate * rng.lognormal(0, 0.8, (3, 300))[codes] * rng.lognormal(0, 0.8, (2, 300))[known]
    depth = rng.lognormal(np.log(400), 0.5, 600)
    X = rng.poisson(rates / rates.sum(1, keepdims=True) * depth[:, None]).astype(float)
    X[0] = 0
    for rows in (X, scipy.sparse.csr_array(X)):
        fit = Fit("ResidualSpectral", "ResidualSpectral", {}, codes, 1.0, n_clusters=3)
        table = Table(rows, None, {"known": known})
        chapter = Chapter(FitResult("", table, ["known"], [fit]))
        nearest = chapter.features.nearest
        assert [len(r) for r in nearest] == [5, 5, 5]
        assert all((codes[r] == c).all() for c, r in enumerate(nearest))
        ranks = [(X.sum(1)[codes == c] < X[i].sum()).mean() for c in range(3) for i in nearest[c]]
        assert 0.3 < np.mean(ranks) < 0.85
        assert "logarithms of counts" in fit_page.write_page([chapter])
    # The columns of a mixed table have separate distributions.
    fit = replace(fit, method="ConditionalMixture")
    assert not Chapter(FitResult("", table, ["known"], [fit])).are_counts


def test_every_cluster_has_features_among_the_selected():
    sizes = np.array([[9.0, 8, 7, 6, 0], [5, 4, 0, 0, 3], [0, 0, 0, 0, 0], [1, 0, 0, 0, 2]])
    assert top_features.features_in_turn(sizes, 3).tolist() == [0, 1, 4]
    assert top_features.features_in_turn(sizes, 9).tolist() == [0, 1, 4, 2, 3]
    assert top_features.features_in_turn(sizes * 0, 3).size == 0
    # The first cluster has the largest differences in all but one column of every other cluster.
    rng = np.random.default_rng(0)
    codes = np.arange(120) % 4
    X = rng.normal(size=(120, 40))
    X[codes == 0, :30] += 20
    for c in (1, 2, 3):
        X[codes == c, 30 + c] += 3
    fit = Fit("CCIB", "CCIB", {}, codes, 1.0, n_clusters=4)
    run = FitResult("", Table(X, [f"x{j}" for j in range(40)], {}), [], [fit])
    assert {"x31", "x32", "x33"} <= {d.name for d in Chapter(run).distributions}
    figure = plot_centroids(X, codes, codes * 0, None, run.table.feature_names)
    ticks = {t.get_text() for ax in figure.axes for t in ax.get_yticklabels()}
    assert {"x31", "x32", "x33"} <= ticks
    plt.close(figure)


def test_descriptions_have_no_negative_zero():
    X = np.where(np.arange(40)[:, None] < 20, 1.0, -1.0) + [[-1e-4]]
    codes = np.repeat([0, 1], 20)
    features = top_features.find_top_features(
        X + 0.1 * np.random.default_rng(0).normal(size=X.shape), codes, [0, 1], codes * 0
    )
    features = replace(features, overall=np.array([-1e-4]))
    assert "(0.000 overall)" in features.describe(0, ["x"], TableUnits())
    assert template.format_difference(-0.001) == "+0.00" and format_numbers([-0.0]) == ["0"]


def test_labels_are_written_before_plots(drawn, tmp_path, monkeypatch):
    X, known, _, sought = drawn
    fit_files.save_fit(make(X, sought, known), tmp_path)
    assert len(list(tmp_path.iterdir())) == 4

    def interrupt(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_files, "draw_clusters", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit_files.save_fit(make(X, 2 - sought, known), tmp_path)
    # The page and the plot of the first fit do not stay with the labels of the second one.
    assert {path.name for path in tmp_path.iterdir()} == {"labels.csv", "result.json"}
    assert pd.read_csv(tmp_path / "labels.csv")["cluster"].tolist() == (2 - sought).tolist()


def test_a_description_names_columns_once_and_in_order():
    rng = np.random.default_rng(0)
    codes = np.arange(400) % 2
    X = np.column_stack([
        rng.random(400) < 0.3, rng.random(400) < 0.1 + 0.8 * codes, rng.normal(size=400),
        rng.normal(size=400) + 9 * codes, rng.random(400) < 0.9 - 0.7 * codes,
    ]).astype(float)  # fmt: skip
    names = ["noise", "site=x", "b", "c", "site=y"]
    indicators = {n: (n[:4], "", n[5:]) for n in names if n.startswith("site")}
    result = top_features.find_top_features(X, codes, [0, 1], codes * 0)
    units = TableUnits(indicators, {"c": (100.0, 10.0)})
    text = result.describe(1, names, units)
    inside, overall = 100 * X[codes == 1].mean(0), 100 * X.mean(0)
    assert text == (
        f"c: {100 + inside[3] / 10:.0f} ({100 + overall[3] / 10:.0f} overall); "
        f"site: x {inside[1]:.0f} % ({overall[1]:.0f} %), y {inside[4]:.0f} % ({overall[4]:.0f} %)"
    )
    assert result.describe(1, names, units, n_columns=1).startswith("c: ")
    assert ";" not in result.describe(1, names, units, n_columns=1)


def test_what_is_known_tells_nothing(drawn):
    X, known, _, _ = drawn
    told = top_features.find_top_features(X, known, [0, 1, 2], known)
    assert not told.differences.any()
    assert (
        np.abs(top_features.find_top_features(X, known, [0], np.zeros(90, int)).differences).max()
        > 2
    )


def test_the_page_of_a_fit(drawn, tmp_path):
    X, known, _, sought = drawn
    origin = {
        "command": "nrprob fit 'a <b>.csv' --known g",
        "files": {"a <b>.csv": "0123"},
        "prepared": {"notes": ["a <note>"], "warnings": ["a <warning>"]},
        "partial_labels": {"rows": 7, "classes": ["<one>", "two"]},
    }
    run = make(X, sought, known, origin=origin)
    run.fits[0].membership = np.eye(3)[sought] * 0.75
    run.fits[0].scores = {"NMI of <group>": 0.25}
    fit_files.save_fit(run, tmp_path)
    assert tmp_path / "report.html" in run.files
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = page_of(tmp_path / "report.html")
    for wrong in ("<script", "<b>", "<i>", "<u>", "<s>", "<note>", "<warning>", "<one>"):
        assert wrong not in text, wrong
    assert 'onload="' not in text
    words = " ".join(page.text.split())
    for part in (
        "Clusters of a <b>.csv beyond group <i>", *NAMES, origin["command"], "a <note>.", "0123",
        "a <warning>", "7 labelled rows, with the classes <one>, two", "it <s>said</s> so",
        f"<b>x</b> ({(known == 0).sum()}), y ({(known == 1).sum()})", "init<u>", "numpy 2.",
        "Read the 2 warnings on this page",
    ):  # fmt: skip
        assert part in words, part
    assert len(page.images) == 3  # profiles, and the plane by known group and by cluster
    for c in range(3):
        size = (sought == c).sum()
        share = f"{100 * size / 90:.1f} %"
        assert [str(c), str(size), share, "0.750"] in page.cells
        counts = [str(((sought == g) & (known == c)).sum()) for g in range(3)]
        assert [GROUPS[c], *counts] in page.cells
    rest = left_of_known(X, known, sought)
    told = top_features.find_top_features(X, sought, [0, 1, 2], known)
    assert told.most_different(2, 1).tolist() == [1]
    ours, theirs = rest[sought == 2][:, 1], rest[sought != 2][:, 1]
    pooled = (ours.var() * len(ours) + theirs.var() * len(theirs)) / 88
    means = format_numbers([X[side, 1].mean() for side in (sought == 2, sought != 2)])
    difference = f"{(ours.mean() - theirs.mean()) / pooled**0.5:.2f}".replace("-", "\u2212")
    assert [NAMES[1], difference, *means] in page.cells
    nearest = told.nearest[2][0]
    columns = [format_numbers(X[told.nearest[2], j])[0] for j in told.most_different(2, 4)]
    assert [f"row <{nearest}>", *columns] in page.cells


def test_values_are_in_the_units_of_the_table(drawn):
    X, known, _, sought = drawn
    scaled = X.copy()
    scaled[:, 1] = (X[:, 1] - 5) / 200
    origin = {"prepared": {"scales": {NAMES[1]: (5.0, 200.0)}}}
    before, after = Chapter(make(X, sought, known)), Chapter(make(scaled, sought, known))
    after.run.origin = origin
    shown, expected = after.top_features(2), before.top_features(2)
    assert [row[0] for row in shown] == [row[0] for row in expected]
    np.testing.assert_allclose([row[1] for row in shown], [row[1] for row in expected])
    assert [row[2] for row in shown] == [row[2] for row in expected]
    (names, rows), (same, expected) = after.examples(2), before.examples(2)
    assert names == same and NAMES[1] in names
    assert rows == expected
    alone = Chapter(make(X[:, 5:] * 1.0, sought, known))
    alone.run.table.feature_names = NAMES[5:]
    assert alone.top_features(0) == [] and alone.examples(0)[0] == []  # nothing differs


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1995, 7], ["1,995", "7"]),
        ([-12345.6, 12.345], ["-12,346", "12"]),
        ([12, 12.345], ["12.0", "12.3"]),
        ([0.00123456], ["0.00123"]),
        ([1e7 + 0.5], ["10,000,000"]),
        ([1000.012, 1000.051, np.nan], ["1,000.01", "1,000.05", "missing"]),
        ([0.1 + 0.2, 0.3], ["0.300", "0.300"]),
        ([3 - 1e-12, 2], ["3", "2"]),
        ([1.25e-11], ["1.25e-11"]),
        ([np.nan], ["missing"]),
        ([], []),
    ],
)
def test_numbers_of_a_column_have_equal_decimals(values, shown):
    assert format_numbers(values) == shown


def test_numbers_stay_with_their_units():
    text = template.typeset_numbers("x-2 -3 % (-1,234.5 € overall)")
    assert text == "x-2 −3\xa0% (−1,234.5\xa0€ overall)"


def test_logarithms_are_shown_in_the_units_of_the_table(drawn, tmp_path):
    _, known, _, sought = drawn
    rng = np.random.default_rng(0)
    money = np.exp(6 + 2 * (sought == 2) + rng.normal(size=90))
    visits = np.where(np.arange(90) % 9 == 0, 0, money / 50)
    X = np.column_stack([(np.log(money) - 6) / 2, np.log(visits + 7.5)])
    names = ["log(Umsatz)", "log(Besuche + 7.5)"]
    origin = {"prepared": {
        "scales": {names[0]: (6.0, 2.0)}, "units": {"Umsatz": "€"},
        "logarithms": {names[0]: ("Umsatz", 0.0), names[1]: ("Besuche", 7.5)},
    }}  # fmt: skip
    run = make(X, sought, known, origin=origin)
    run.table.feature_names = names
    fit_files.save_fit(run, tmp_path, picture=None)
    page = page_of(tmp_path / "report.html")
    words = " ".join(page.text.split())
    inside, overall, outside = (
        np.exp(np.log(money[rows]).mean()) for rows in (sought == 2, sought >= 0, sought != 2)
    )
    comparison = f"geometric mean {inside:,.0f} € against {overall:,.0f} € overall"
    assert f"higher Umsatz ({comparison})" in words
    assert f"Umsatz: geometric mean {inside:,.0f} € ({overall:,.0f} €" in words
    difference = [cells[2:] for cells in page.cells if cells[0] == "Umsatz [€], geometric mean"]
    assert format_numbers([inside, outside]) in difference
    added = [np.exp(np.log(visits[rows] + 7.5).mean()) - 7.5 for rows in (sought == 2, sought != 2)]
    assert format_numbers(added) in [c[2:] for c in page.cells if c[0] == "Besuche, geometric mean"]
    chapter = Chapter(run)
    umsatz = next(d for d in chapter.distributions if d.name == "Umsatz [€]")
    np.testing.assert_allclose(umsatz.values[2][2], np.median(money[sought == 2]))
    nearest = chapter.features.nearest[2]
    assert ["Umsatz [€]", "Besuche"] == chapter.examples(2)[0]
    assert [row[1][0] for row in chapter.examples(2)[1]] == format_numbers(money[nearest])
    assert "The fit used logarithms of Umsatz, Besuche." in words
    assert "geometric means instead of means" in words
    assert "The fit added 7.50 to Besuche before the logarithm" in words
    # Only the list of features has the names of the logarithms.
    assert words.count("log(Umsatz)") == words.count("log(Besuche") == 1
    without = make(np.exp(X), sought, known)
    without.table.feature_names = ["Umsatz", "Besuche"]
    (tmp_path / "page.html").write_text(fit_page.write_page([Chapter(without)]), "utf-8")
    assert "logarithm" not in page_of(tmp_path / "page.html").text


@pytest.mark.parametrize("n_clusters", [2, 3])
def test_page_shows_the_density_between_all_pairs(drawn, tmp_path, n_clusters):
    X, known, _, sought = drawn
    run = make(X, np.minimum(sought, n_clusters - 1), known, cluster_names=["low", "mid", "high"])
    density = np.array([[np.nan, 0.126, np.nan], [0.126, np.nan, 1.5], [np.nan, 1.5, np.nan]])
    test = replace(test_result(0.01, 0.2), density_between_=density)
    (tmp_path / "page.html").write_text(fit_page.write_page([Chapter(run, test)]), "utf-8")
    page = page_of(tmp_path / "page.html")
    rows = {tuple(cells) for cells in page.cells}
    expected = {("low", "", "0.13", "–"), ("mid", "0.13", "", "1.50"), ("high", "–", "1.50", "")}
    assert (expected <= rows) == ("no gap between them" in page.text) == (n_clusters == 3)


@pytest.mark.parametrize("has_logarithms", [True, False])
def test_picture_has_the_units_of_the_table(drawn, monkeypatch, has_logarithms):
    _, known, _, sought = drawn
    rng = np.random.default_rng(0)
    money = np.exp(6 + 2 * (sought == 2) + rng.normal(size=90))
    is_new = rng.random(90) < 0.4
    X = np.column_stack([np.log(money) if has_logarithms else money, is_new])
    run = make(X, sought, known, origin={"prepared": {"units": {"Umsatz": "€"}}})
    run.table.feature_names = ["log(Umsatz)" if has_logarithms else "Umsatz", "new"]
    if has_logarithms:
        run.origin["prepared"]["logarithms"] = {"log(Umsatz)": ("Umsatz", 0.0)}
    figures = []
    monkeypatch.setattr(fit_files, "_encode_figure", lambda figure, kind: figures.append(figure))
    fit_files.draw_clusters(Chapter(run), "png")
    by_group, by_cluster = figures[0].axes[:2]
    means = [
        np.exp(np.log(money[rows]).mean()) if has_logarithms else money[rows].mean()
        for rows in [*(known == g for g in range(3)), *(sought == c for c in range(3))]
    ]
    shares = [f"{100 * is_new[sought == c].mean():.0f} %" for c in range(3)]
    texts = [text.get_text() for ax in (by_group, by_cluster) for text in ax.texts]
    assert texts[0:6:2] + texts[6::2] == format_numbers(means)
    assert texts[7::2] == shares
    labels = [tick.get_text() for tick in by_cluster.get_yticklabels()]
    assert labels == ["Umsatz [€]*" if has_logarithms else "Umsatz [€]", "new"]
    # The colours compare features, so that they stay in standard deviations.
    Z = (X - X.mean(0)) / X.std(0)
    expected = [Z[sought == c].mean(0) for c in range(3)]
    np.testing.assert_allclose(by_cluster.images[0].get_array().T, expected)
    notes = " ".join(text.get_text() for text in figures[0].texts)
    assert "Numbers are means or shares, in the units of the table." in notes
    assert ("* The colours show logarithms" in notes) == has_logarithms
    plt.close(figures[0])


def test_means_of_binary_columns_are_shares(drawn):
    _, known, _, sought = drawn
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(90) < 0.2 + 0.3 * sought, rng.normal(size=90)]).astype(float)
    run = make(X, sought, known)
    run.table.feature_names = ["smoker", "height"]
    shares = [100 * X[rows, 0].mean() for rows in (sought == 2, sought >= 0)]
    text = f"more often smoker = 1 ({shares[0]:.0f} % against {shares[1]:.0f} % overall)"
    assert any(text in line for line in Chapter(run).answer)
    assert Chapter(run).distributions[0].ends == ["0 %", "100 %"]
    assert f"smoker: {shares[0]:.0f} % ({shares[1]:.0f} % overall)" in Chapter(run).profile(2)


def test_rows_are_named_by_their_column(drawn, tmp_path):
    X, known, _, sought = drawn
    run = make(X, sought, known)
    run.table.identifier = "customer <id>"
    (tmp_path / "page.html").write_text(fit_page.write_page([Chapter(run)]), "utf-8")
    heads = [cells[0] for cells in page_of(tmp_path / "page.html").cells]
    assert heads.count("customer <id>") == 3 and "row" not in heads


def test_pages_fit_narrow_screens(drawn, tmp_path):
    """Tables scroll in boxes, whose columns are not narrower than their words."""
    X, known, _, sought = drawn
    text = fit_page.write_page([Chapter(make(X, sought, known))])
    style = text[text.index("<style>") : text.index("@media print")]
    rules = re.findall(r"([^{}]*)\{([^{}]*overflow-wrap: anywhere[^{}]*)\}", style)
    assert [selector.strip() for selector, _ in rules] == ["code"]
    assert text.count("<table>") == len(re.findall(r'class="scroll"[^>]*>\s*<table>', text))
    assert "<wbr>" in template.allow_breaks("colour=red")


def test_other_labels(drawn, tmp_path):
    X, known, _, sought = drawn
    views = np.column_stack([sought, known])
    some = np.where(np.arange(90) < 10, -1, sought)
    for name, labels in {"views": views, "some": some, "one": sought * 0}.items():
        fit_files.save_fit(make(X, labels, known), tmp_path / name, picture=None)
    page = page_of(tmp_path / "views" / "report.html")
    size = ((sought == 2) & (known == 1)).sum()
    assert ["2, 1", str(size), f"{100 * size / 90:.1f} %"] in page.cells
    assert "3 clusters of rows in 2 views" in page.text and not page.images
    fit_files.save_fit(make(X, np.minimum(sought, 1), known), tmp_path / "two", picture=None)
    page = page_of(tmp_path / "two" / "report.html")
    assert page.text.count("differs most from all other rows") == 1
    assert (
        "The differences equal the differences of cluster 0, with the opposite sign." in page.text
    )
    assert page.text.count("Rows nearest to the centre of cluster") == 2
    page = page_of(tmp_path / "some" / "report.html")
    size = (some == 0).sum()
    assert ["0", str(size), f"{100 * size / 80:.1f} %"] in page.cells
    assert not {f"row <{i}>" for i in range(10)} & {row[0] for row in page.cells}
    assert "There is one cluster" in page_of(tmp_path / "one" / "report.html").text
    run = make(X, np.full(90, -1), known)
    run.fits[0].refusal = "pairs <contradict> each other"
    fit_files.save_fit(run, tmp_path / "refused")
    page = page_of(tmp_path / "refused" / "report.html")
    assert "the constraints are infeasible: pairs <contradict> each other" in page.text
    assert f"y ({(known == 1).sum()})" in page.text


@pytest.mark.filterwarnings("error")
def test_names_that_the_font_lacks_or_that_are_long_warn_of_nothing(drawn):
    X, known, _, sought = drawn
    run = make(X, sought, known)
    sites = [f"Experiment_2010_site_Freiburg_batch_number_{i}" for i in range(12)]
    more = {"地": np.array(["甲", "乙", "丙"])[known], "site": np.array(sites)[np.arange(90) % 12]}
    run.table.labelings |= more
    assert len(fit_files.draw_clusters(Chapter(run), "png")) > 10_000


@pytest.mark.parametrize("known", [["age", "dose"], []])
def test_the_picture_says_what_is_known_where_it_is_no_labeling(drawn, monkeypatch, known):
    X, _, age, sought = drawn
    said = {}
    monkeypatch.setattr(centroids, "draw_centroids", lambda *args, **given: said.update(given))
    monkeypatch.setattr(fit_files, "_encode_figure", lambda figure, kind: b"")
    origin = {"prepared": {"known": known}}
    run = make(X, sought, measured=np.c_[age, age], origin=origin)
    fit_files.draw_clusters(Chapter(run), "png")
    assert said["known_name"] == ("age, dose" if known else "nothing")


def test_the_page_of_several_clusterings(drawn, tmp_path):
    X, known, _, sought = drawn
    first, second = make(X, sought, known), make(X, known, sought)
    first.title, second.title = "clustering <1>", "clustering 2"
    tested = Chapter(first, test_result(None, None, "X <is> large"))
    path = tmp_path / "report.html"
    path.write_text(
        fit_page.write_page([tested, Chapter(second)], ending="it <was> told to"), "utf-8"
    )
    page = page_of(path)
    assert [text for level, text in page.headings if level == 2][:2] == [first.title, second.title]
    words = " ".join(page.text.split())
    for part in (
        "clustering <1>: 3 groups of rows", f"does not explain. Evidence: {BETTER}; there is",
        "no p-value, since X <is> large.", "They were not tested.", "ended: it <was> told to.",
    ):  # fmt: skip
        assert part in words
    assert words.count("The clusters were not tested.") == 1


def test_what_scrolls_and_pictures_have_names_of_their_own(drawn, tmp_path):
    X, known, _, sought = drawn
    chapters = []
    for number in (1, 2):
        run = make(X, sought, known)
        run.title = f"clustering {number}"
        chapters.append(Chapter(run))
        chapters[-1].add_clusters(fit_files.draw_clusters(chapters[-1], "png"), "summary.png")
    path = tmp_path / "report.html"
    path.write_text(fit_page.write_page(chapters), "utf-8")
    text = path.read_text(encoding="utf-8")
    boxes = re.findall(r'<div class="scroll" role="group" aria-label(ledby)?="([^"]*)"', text)
    assert len(boxes) == text.count('class="scroll"') == len({*boxes}) > 10
    page = page_of(path)
    # A name consists of the title of its clustering, and of its section.
    captions = [names for by, names in boxes if by]
    assert {name for names in captions for name in names.split()} <= {*page.ids}
    assert all(names.split()[0] in ("run-1-title", "run-2-title") for names in captions)
    assert [name for by, name in boxes if not by] == [
        f"Picture 1 of clustering {number}" for number in (1, 2)
    ]
    assert len({*page.images}) == 2
    most = np.bincount(known[sought == 0]).max()
    seen = f"Cluster 0: {(sought == 0).sum()} rows, {most} of them in {GROUPS[0]}"
    assert page.images[1].startswith("clustering 2. Means") and seen in page.images[1]


def test_earlier_clusterings_have_the_names_of_their_clusters():
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = CCIB(2, n_init=2, max_iter=3, random_state=0).fit(X)
    solution = SimpleNamespace(
        labels_=np.column_stack([model.labels_] * 3), estimators_=[model] * 3, evidence_=[]
    )
    named = exploration_results(solution, Table(X), [], {}, cluster_names=[["A", "B"]])
    assert [run.known for run in named] == [[], ["clustering_1"], ["clustering_1", "clustering_2"]]
    labelings = named[2].table.labelings
    assert labelings["clustering_1"].tolist() == ["AB"[c] for c in model.labels_]
    assert labelings["clustering_2"].tolist() == [f"cluster {c}" for c in model.labels_]


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (["group <i>", "age"], "Clusters beyond group <i>, age"),
        (["age"], "Clusters beyond age"),
        ([], "Clusters"),
    ],
)
def test_titles_name_all_that_is_known(drawn, names, title, tmp_path):
    X, known, age, sought = drawn
    run = make(X, sought, known if "group <i>" in names else (), measured=age[:, None],
               origin={"prepared": {"known": names}})  # fmt: skip
    (tmp_path / "page.html").write_text(fit_page.write_page([Chapter(run)]), "utf-8")
    assert page_of(tmp_path / "page.html").headings[0] == (1, title)


@pytest.mark.parametrize(("number", "was_told"), [(3, True), ("auto", False), (None, False)])
def test_numbers_that_a_fit_found_are_not_called_sought(drawn, number, was_told, tmp_path):
    X, known, _, sought = drawn
    run = make(X, sought, known)
    run.fits[0].parameters = {"n_clusters": number} if number else {"max_clusters": 9}
    (tmp_path / "page.html").write_text(fit_page.write_page([Chapter(run)]), "utf-8")
    words = " ".join(page_of(tmp_path / "page.html").text.split())
    assert ("Sought3 clusters of rows" in words) == was_told
    assert ("whose number was estimated: 3" in words) != was_told


def test_many_clusters_and_groups():
    rng = np.random.default_rng(0)
    X, codes = rng.normal(size=(300, 2)), np.arange(300) % 30
    codes[codes > 25] = 7
    chapter = Chapter(make(X, codes))
    assert len(chapter.clusters) == 20 and 7 in chapter.clusters
    assert chapter.hidden == (6, 60)
    crossing = top_features.cross_labels("name", codes, codes, [7, 3], 4)
    assert crossing.groups == ["0", "3", "7", "23 others"] and crossing.joined == 23
    assert crossing.counts.tolist() == [[0, 0, 50, 0], [0, 10, 0, 0]]


def test_the_groups_that_a_cluster_is_in_are_told_apart():
    rng = np.random.default_rng(0)
    # Clusters 1 and 4 are almost completely in small groups, which contain no other cluster.
    groups = np.concatenate([rng.integers(25, size=2000), [25] * 12, [26] * 7, [27] * 9, [3]])
    codes = np.concatenate([rng.choice([0, 2, 3], 2000), [1] * 19, [4] * 10])
    crossing = top_features.cross_labels(
        "g", np.array([f"g{g:02}" for g in groups]), codes, [0, 1, 4], 8
    )
    assert {"g25", "g26", "g27"} <= {*crossing.groups}
    assert crossing.groups[:7] == sorted(crossing.groups[:7])
    assert crossing.groups[7:] == ["21 others"] and crossing.joined == 21
    expected = [[((codes == c) & (groups == g)).sum() for g in range(28)] for c in (0, 1, 4)]
    kept = [int(name[1:]) for name in crossing.groups[:7]]
    np.testing.assert_array_equal(crossing.counts[:, :7], np.array(expected)[:, kept])
    assert crossing.counts.sum(1).tolist() == [(codes == c).sum() for c in (0, 1, 4)]
    # The largest group of every cluster comes before the third of any cluster.
    assert all(np.argmax(row) in kept for row in expected)


def test_the_page_says_how_many_groups_are_counted_as_one(drawn, tmp_path):
    X, known, _, sought = drawn
    run = make(X, sought, known)
    run.table.labelings["site"] = np.array([f"site {i % 30}" for i in range(90)])
    (tmp_path / "page.html").write_text(fit_page.write_page([Chapter(run)]), "utf-8")
    page = page_of(tmp_path / "page.html")
    assert any("11 groups with a small share" in caption for caption in page.captions)
    assert any(row[0] == "11 others" for row in page.cells)
    assert not any("as one" in caption for caption in page.captions if "group <i>" in caption)


def test_result(p_structure: float | None, p_gap: float | None, withheld: str = "") -> Evidence:
    """Result of a test of 200 samples in two clusters, with the given p-values."""
    n = 200
    return Evidence(
        p_structure, p_gap, 3.0, np.ones(n), "one cluster", {}, np.arange(n) % 2, np.zeros(n), 0.1,
        np.zeros((1, 1, 3)), np.zeros(n, int), ["all"], 5, 1, 1, 0.05, 2, np.arange(n), withheld,
    )  # fmt: skip


test_result.__test__ = False  # type: ignore[attr-defined]
BETTER = "the groups predict new rows better than a model without groups"
NOT_BETTER = "the groups do not predict new rows clearly better than a model without groups"


@pytest.mark.parametrize(
    ("test", "first", "last"),
    [
        (test_result(0.01, 0.001), "7 groups of rows that a and b do not explain.",
         f"Evidence: there is a gap between the groups (p = 0.001), and {BETTER} (p = 0.01)."),
        (test_result(0.01, 0.8), "7 groups of rows that a and b do not explain.",
         f"Evidence: {BETTER} (p = 0.01); without a gap between them, they may be parts of one "
         "skewed group."),
        (test_result(0.01, None), "7 groups of rows that a and b do not explain.",
         f"Evidence: {BETTER} (p = 0.01); gaps between groups cannot be tested, since values are "
         "discrete."),
        (test_result(0.07, 0.001), "7 groups of rows that a and b do not explain, with uncertain",
         f"Evidence: there is a gap between the groups (p = 0.001), but {NOT_BETTER} (p = 0.07)."),
        (replace(test_result(0.01, 0.001), n_clusters=3), "7 groups of rows that a and b do not",
         "Evidence: at least one group is separated from the others by a gap (p = 0.001), and "
         f"{BETTER} (p = 0.01)."),
        (test_result(0.9, 0.8), "There is no evidence of groups that a and b do",
         f"Evidence: {NOT_BETTER} (p = 0.9); small or overlapping groups cannot be excluded."),
        (test_result(None, None, "it is large (600)"),
         "7 groups of rows that a and b do not explain.",
         f"Evidence: {BETTER}; there is no p-value, since it is large."),
        (None, "7 groups of rows that a and b do not explain.",
         "The clusters were not tested, so they may be arbitrary."),
    ],
)  # fmt: skip
def test_the_answer_says_what_was_found_and_how_sure_it_is(test, first, last):
    clusters = {"cluster 0": (1, "higher x"), "Big": (1005, "")}
    said = fit_summary.answer_in_words(clusters, ["a", "b"], True, test, (5, 1006))
    assert said[0].startswith(first) and said[-1] == last
    described = [
        "Big (1,005 rows, 50 %): no notable difference.",
        "Cluster 0 (1 row, 0 %): higher x.",
    ]
    assert (said[1:3] == described) == first.startswith("7 groups")
    assert any("with the mean or share of all rows" in text for text in said[3:]) == (
        said[1:3] == described
    )
    uninformed = fit_summary.answer_in_words(clusters, ["a"], False, test)
    assert not any("explain" in text or "adjusted" in text for text in uninformed)
    alone = fit_summary.answer_in_words({"cluster 0": (9, "")}, ["a"], True, test)
    assert alone == ["All rows form one group."]


def test_the_page_has_the_posterior_of_the_number_of_clusters(drawn, tmp_path):
    X, _, _, sought = drawn
    run = make(X, np.zeros(len(X), int))
    fit = run.fits[0]
    fit.n_clusters, fit.membership = 1, np.ones((len(X), 1))
    fit.posterior = {"n_clusters": {1: 0.6, 2: 0.396, 9: 0.004}, "r_hat": 1.012, "ess": 123.4}
    text = (
        "umber of clusters in the posterior: 1 (probability 0.60), 2 (probability 0.40); largest "
        "R-hat 1.01, smallest effective sample size 123"
    )
    assert fit.posterior_in_words == f"n{text}"
    assert Chapter(run).answer == ["The point estimate is one group.", f"N{text}."]
    assert fit_files.draw_clusters(Chapter(run), "png") == b""
    (tmp_path / "page.html").write_text(fit_page.write_page([Chapter(run)]), "utf-8")
    words = " ".join(page_of(tmp_path / "page.html").text.split())
    assert "Memberships are averages over the draws" in words and "into 1 cluster." in words
    run = make(X, sought)
    run.fits[0].posterior = fit.posterior
    assert Chapter(run).answer[-1] == f"N{text}."


def test_the_answer_says_that_shares_differ_between_groups():
    counts = np.array([[60, 20, 2], [20, 60, 0]])
    crossing = top_features.Crossing("site", ["a", "b", "c"], counts)
    text = fit_summary.compare_shares(crossing, ["cluster 0", "Big"])
    assert text == (
        "Shares of the clusters differ between groups of site: cluster 0 has 75 % of a and 25 % of "
        "b."
    )
    assert (
        fit_summary.compare_shares(replace(crossing, counts=counts[:, ::-1] * 0 + 50), "ab") == ""
    )
    clusters = {"cluster 0": (9, "higher x"), "cluster 1": (9, "lower x")}
    assert text in fit_summary.answer_in_words(clusters, ["site"], True, None, shares=text)


def test_clusters_are_compared_in_the_right_direction(drawn):
    X, known, _, sought = drawn
    features = top_features.find_top_features(X, sought, [0, 2], known)
    features = replace(features, inside=features.inside.copy(), overall=features.overall.copy())
    features.inside[1, 2], features.overall[2] = 0.614, 0.325
    units = TableUnits(
        {NAMES[2]: ("c", "no", "yes")}, {NAMES[1]: (5.0, 200.0)}, symbols={NAMES[1]: "€"}
    )
    said = fit_summary.compare_cluster(features, 1, NAMES, units, ["site"])
    inside, overall = (
        f"{5 + 200 * column[1]:,.0f} €" for column in (features.inside[1], features.overall)
    )
    assert f"lower {NAMES[1]} ({inside} against {overall} overall)" in said
    assert "more often c = yes (61 % against 32 % overall)" in said
    # The effect of the known structure is opposite to the difference between clusters.
    features.overall[1] = features.inside[1, 1] - 0.01
    said = fit_summary.compare_cluster(features, 1, NAMES, units, ["site", "age"])
    assert f"lower {NAMES[1]} after adjustment for site and age ({inside} against" in said


@pytest.mark.parametrize("is_share", [False, True])
def test_distributions_are_quantiles_of_the_clusters(is_share):
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    column = (rng.random(60) < 0.4).astype(float) if is_share else rng.normal(size=60)
    column[::7] = np.nan
    column[codes == 2] = np.nan
    result = fit_summary.summarize_feature("x", column, codes, [0, 1, 2], is_share)
    for cluster in (0, 1):
        inside = column[(codes == cluster) & ~np.isnan(column)]
        expected = [inside.mean()] if is_share else np.quantile(inside, [0.1, 0.25, 0.5, 0.75, 0.9])
        np.testing.assert_allclose(result.values[cluster], expected)
        assert all(0 <= float(result.position(q)) <= 100 for q in expected)
    assert result.values[2] == []


def test_names_of_clusters_are_used_everywhere(drawn, tmp_path):
    X, known, _, sought = drawn
    run = make(X, sought, known, cluster_names=["First <b>", "Second"])
    fit_files.save_fit(run, tmp_path, picture=None)
    page = page_of(tmp_path / "report.html")
    words = " ".join(page.text.split())
    for part in ("First <b>: ", "Second: ", "Cluster 2: ", "First <b> (", "Methods, settings and"):
        assert part in words
    assert "Cluster First" not in words and "Cluster 0" not in words
    labels = pd.read_csv(tmp_path / "labels.csv")
    names = np.array(["First <b>", "Second", "2"])
    assert labels["cluster_name"].tolist() == names[sought].tolist()
    stored = json.loads((tmp_path / "result.json").read_text())
    assert stored["cluster_names"] == ["First <b>", "Second"]
    number = replace(run, cluster_names=["2"])  # as another cluster, which has no name
    assert [*number.name_clusters(np.array([2, 0]))] == ["cluster 2", "2"]
    shown = run.name_clusters(np.array([2, 0, 1, 0]))
    assert [*shown] == ["cluster 2", "First <b>", "Second", "First <b>"]
    figure = plot_centroids(X, run.name_clusters(sought), known)
    ticks = [t.get_text() for t in figure.axes[-1].get_xticklabels()]
    assert ticks == ["First <b>", "Second", "cluster 2"]
    plt.close(figure)


def test_sparse_features_have_no_test():
    X = scipy.sparse.csr_array(np.eye(4))
    tested = check_clusters(CCIB(2, random_state=0), X, None)
    assert tested.evidence is None and "no test: X is sparse" in tested.said[0]


@pytest.mark.parametrize(
    ("method", "data", "membership", "said", "unsaid"),
    [
        ("ResidualSpectral", "sparse", "soft",
         ["no test: X is sparse", "weighted share of the clusterings of the ensemble"],
         ["--test", "nrprob.evidence", "conditional on the centres"]),
        ("ResidualSpectral", "counts", "soft",
         ["have no test: clusters are tested in continuous features only"],
         ["--test", "nrprob.evidence.confidence"]),
        ("CCIB", "real", "hard", ["use the option --test", "All memberships are 0 or 1"],
         ["evidence.confidence", "conditional on the centres"]),
        ("ConditionalMixture", "counts", "soft",
         ["use the option --test", "conditional on the centres", "evidence.confidence"],
         ["no test"]),
        ("MDLMixture", "real", None, ["have no test", "gives no memberships"], ["--test"]),
    ],
)  # fmt: skip
def test_the_page_says_what_the_method_offers(method, data, membership, said, unsaid, tmp_path):
    rng = np.random.default_rng(0)
    real, sought = rng.normal(size=(60, 4)), np.arange(60) % 3
    counts = rng.poisson(2.0, (60, 4)).astype(float)
    X = {"real": real, "counts": counts, "sparse": scipy.sparse.csr_array(counts)}[data]
    shares = {"soft": np.eye(3)[sought] * 0.7 + 0.1, "hard": np.eye(3)[sought], None: None}
    fit = Fit(method, method, {}, sought, 1.0, shares[membership], n_clusters=3)
    run = FitResult("", Table(X, None, {}), [], [fit])
    (tmp_path / "page.html").write_text(fit_page.write_page([Chapter(run)]), "utf-8")
    words = " ".join(page_of(tmp_path / "page.html").text.split())
    assert all(text in words for text in said)
    assert not any(text in words for text in unsaid)


@pytest.mark.parametrize(
    ("p_gap", "withheld", "said"),
    [
        (0.001, "", "The test finds a gap (p = 0.001)."),
        (0.5, "", "The test finds no significant gap (p = 0.5)."),
        (None, "it is large", "No test of this gap was made, so the gap may be due to chance."),
    ],
)
def test_the_plot_of_a_gap_says_what_it_compares(p_gap, withheld, said):
    test = test_result(None if withheld else 0.01, p_gap, withheld)
    text = fit_summary.describe_gap(test, "cluster {}".format)
    assert "separates the two clusters best" in text and text.endswith(said)
    assert "missing" not in text
    score = np.where(np.arange(200) == 3, np.nan, 1.0)
    test = replace(test, labels_=np.arange(200) % 3, gap_cluster_=1, discriminant_score_=score)
    text = fit_summary.describe_gap(test, ["A", "Big", "C"].__getitem__)
    assert "separates Big from all other clusters" in text and text.endswith(said)
    assert "Gaps between the other clusters are not tested." in text
    assert "Rows with missing values have no position." in text


def test_pictures_name_no_discriminants(drawn, monkeypatch):
    X, known, _, sought = drawn
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    monkeypatch.setattr(fit_files, "_encode_figure", lambda figure, kind: figures.append(figure))
    monkeypatch.setattr(fit_files, "draw_clusters", lambda chapter, kind: b"picture")
    score = np.where(np.arange(200) == 3, np.nan, np.arange(200) % 7.0)
    monkeypatch.setattr(Chapter, "add_evidence", lambda chapter, picture: None)
    test = replace(test_result(0.01, 0.5), discriminant_score_=score)
    fit_files._draw_chapter(Chapter(make(X, sought, known), test), "a.png", "b.png", test)
    monkeypatch.undo()
    axes = [ax for figure in figures for ax in figure.axes]
    assert [ax.get_xlabel().partition(" (")[0] for ax in axes] == [
        "separating direction 1", "separating direction 1", "position",
    ]  # fmt: skip
    assert axes[0].get_ylabel() == "separating direction 2"
    assert axes[2].get_title() == "1 row without a position is left out"
    for figure in figures:
        plt.close(figure)


def test_the_page_has_technical_terms_in_the_details_only(drawn, tmp_path):
    X, known, _, sought = drawn
    run = make(X, sought, known)
    run.fits[0].method = "ConditionalMixture"
    run.fits[0].scores = {"NMI of group <i>": 0.25}
    chapter = Chapter(run, test_result(None, None, "X is large"))
    (tmp_path / "page.html").write_text(fit_page.write_page([chapter]), "utf-8")
    text = (tmp_path / "page.html").read_text("utf-8")
    details = text[text.index("<details>") : text.index("</details>")]
    for term in ("p(x | cluster, known group)", " nats", "strongest null model"):
        assert term in details and term not in text.replace(details, "")
    assert "NMI (normalised mutual information) is 0 for" in text
    assert "A nat is" not in text
    run.fits[0].warnings = ["a gain of 0.5 nats"]
    assert "A nat is a unit of log likelihoods" in fit_page.write_page([chapter])


def test_pages_without_a_test_name_no_evidence(drawn, tmp_path):
    X, known, _, sought = drawn
    for test in (None, test_result(0.9, 0.9), test_result(0.001, 0.001)):
        chapter = Chapter(make(X, sought, known), test)
        (tmp_path / "page.html").write_text(fit_page.write_page([chapter]), "utf-8")
        words = " ".join(page_of(tmp_path / "page.html").text.split())
        assert ("not tested, so they may be arbitrary" in words) == (test is None)
        assert ("There is no evidence of groups" in words) == (
            test is not None and not test.supports_clusters
        )
