"""Significance of clusters of mixed and incomplete tables: densities that clusters have to beat."""

import itertools
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from nrprob import ConditionalMixture, MixtureEM, evidence
from nrprob.estimator.density import TableTraits
from nrprob.evidence import calibration
from nrprob.evidence.calibration import covering_designs, reason_without_p_value
from nrprob.evidence.discriminant_plot import plot_discriminant_scores
from nrprob.evidence.folds import check_samples
from nrprob.evidence.inputs import TooFewRows
from nrprob.evidence.record import Evidence
from nrprob.evidence.table_folds import DEPENDENT, table_null_densities
from nrprob.methods.conditional.dependence import conditional_log_probability
from nrprob.methods.conditional.joint_search import run_restarts
from nrprob.methods.conditional.refits import TableRefits, merge_values
from nrprob.methods.conditional.shares import BY_GROUP, FREE, UNIFORM
from nrprob.methods.conditional.table import DiscreteColumn
from nrprob.methods.conditional.table_data import TableData

ONE = "one cluster of the same estimator"
GRID = np.linspace(-12, 12, 241)
STEP = GRID[1] - GRID[0]


def grid_table(kind, shares, *, location, missing):
    """Refits of samples in two known groups, followed by a grid of all values in both groups."""
    rng = np.random.default_rng(3)
    n = 80
    known, sought = rng.integers(2, size=(2, n))
    x = rng.normal(size=n) + 2.5 * sought + known
    flags = [rng.random(n) < np.where(sought, 0.8, 0.3), rng.random(n) < 0.5]
    scores = [None, np.array([0.0, 1.0])]
    values = np.concatenate([GRID, [np.nan]]) if missing else GRID
    grid = np.array([*itertools.product((0, 1), (0, 1), (0, 1), values)])
    codes = [
        np.concatenate([f.astype(int), g.astype(int)])
        for f, g in zip(flags, grid[:, 1:3].T, strict=True)
    ]
    if missing:
        x[:16] = np.nan
        codes[0][10:20] = -1
    data = TableData(
        np.concatenate([x, grid[:, 3]])[:, None],
        [DiscreteColumn(c, 2, s) for c, s in zip(codes, scores, strict=True)],
        np.concatenate([known, grid[:, 0].astype(int)]), 2,
    )  # fmt: skip
    refits = TableRefits(
        data, ["f", "g"], kind, shares, location, np.zeros(data.n_samples, int), 2, "tied", 3.0,
        1e-3, 300, (0.0, 0.5, 1.0),
    )  # fmt: skip
    return refits, np.arange(n), grid


@pytest.mark.parametrize(
    ("kind", "shares", "location", "missing"),
    [
        ("subtract", UNIFORM, False, False),
        pytest.param("random", BY_GROUP, True, True, marks=pytest.mark.slow),
        pytest.param("random", FREE, False, True, marks=pytest.mark.slow),
        pytest.param("subtract", FREE, True, False, marks=pytest.mark.slow),
    ],
)
def test_clusters_and_null_models_are_densities(kind, shares, location, missing):
    refits, training, grid = grid_table(kind, shares, location=location, missing=missing)
    clusters, single = (refits.fit(training, k, 4, 0) for k in (2, 1))
    null = table_null_densities(refits, clusters, single, training)
    assert {ONE, DEPENDENT, "the column 'f' alone", "the column 'g' alone"} < {*null}
    observed = ~np.isnan(grid[:, 3])
    for name, value in {"clusters": clusters.log_density, **null}.items():
        density = np.exp(value[len(training) :])
        for group in (0, 1):
            inside = observed & (grid[:, 0] == group)
            assert density[inside].sum() * STEP == pytest.approx(1, abs=0.01), name
            if missing:
                # Without the number, the probabilities of all discrete values add up to 1.
                inside = ~observed & (grid[:, 0] == group)
                assert density[inside].sum() == pytest.approx(1, abs=1e-6), name
    # Samples outside of the fit have no influence on it.
    far = np.where(np.arange(refits.data.n_samples)[:, None] < len(training), refits.data.x, 50.0)
    moved = replace(refits, data=replace(refits.data, x=far)).fit(training, 2, 4, 0)
    first = slice(len(training))
    np.testing.assert_allclose(moved.log_density[first], clusters.log_density[first], atol=1e-6)


def test_a_value_without_training_samples_is_no_outlier_of_the_dependent_null_model():
    """The value changes the predicted probabilities of other columns by a bounded factor."""
    rng = np.random.default_rng(0)
    n, training = 200, np.arange(150)
    first = rng.integers(2, size=n)
    second = np.where(rng.random(n) < 0.9, first, 1 - first)
    first[180:182], second[180:182] = 2, [0, 1]
    columns = [DiscreteColumn(first, 3), DiscreteColumn(second, 2)]
    counts = [np.bincount(c.codes[training], minlength=c.n_values) + 0.01 for c in columns]
    tables = [np.tile(np.log(count / count.sum()), (n, 1)) for count in counts]
    x = rng.normal(size=(n, 1)) + first[:, None]
    log_p = conditional_log_probability(columns, tables, x, training)
    alone = sum(table[np.arange(n), c.codes] for table, c in zip(tables, columns, strict=True))
    assert np.abs(log_p - alone)[[180, 181]].max() < 10
    assert (log_p - alone)[:180].mean() > 0.3  # the dependence is found


def test_values_are_merged_to_few_classes():
    ordered = DiscreteColumn(np.repeat(np.arange(30), 4), 30, np.arange(30.0))
    classes = merge_values(ordered)
    assert classes.max() == 5 and (np.diff(classes) >= 0).all()
    assert np.ptp(np.bincount(classes)) <= 1
    rare = DiscreteColumn(np.repeat(np.arange(9), [9, 8, 7, 6, 5, 4, 3, 2, 1]), 9)
    np.testing.assert_array_equal(merge_values(rare), [0, 1, 2, 3, 4, 5, 5, 5, 5])


def test_a_withheld_p_value_has_a_reason_and_a_null_model():
    gain = np.full(100, 0.2) + 0.1 * np.random.default_rng(0).normal(size=100)
    zeros = np.zeros(100, int)
    record = Evidence(
        p_structure_=None, p_gap_=None, statistic_=20.0, gain_=gain,
        null_model_="the column 'f' alone", p_by_null_model_={}, labels_=zeros,
        discriminant_score_=zeros, gap_width_=0.0, gap_counts_=np.zeros((1, 0, 3)),
        groups_=zeros, group_names_=["all rows"], n_folds=5, n_splits=1, n_init=1, alpha=0.05,
        n_clusters=2, distinct_=np.arange(100), withheld_="nobody measured it",
        gain_by_null_model_={"the column 'f' alone": 0.2},
    )  # fmt: skip
    assert record.supports_clusters
    assert str(record).startswith("clusters are better than the column 'f' alone")
    assert "+0.2" in str(record) and str(record).endswith("no p-value, since nobody measured it")
    worse = replace(record, statistic_=-1.0)
    assert not worse.supports_clusters
    assert str(worse).startswith("clusters are no better than the column 'f' alone")


def test_samples_without_a_score_are_not_drawn():
    rng = np.random.default_rng(0)
    score, labels = rng.normal(size=100) + 20, np.arange(100) % 2
    ax = plot_discriminant_scores(score, labels, labels, ["a", "b"], 0.0, None)
    complete = [bar.get_bbox().bounds for bar in ax.patches]
    hidden = np.concatenate([score, np.full(10, np.nan)])
    other = np.concatenate([labels, np.arange(10) % 2])
    ax = plot_discriminant_scores(hidden, other, other, ["a", "b"], 0.0, None)
    np.testing.assert_allclose([bar.get_bbox().bounds for bar in ax.patches], complete)
    assert ax.get_title() == "10 samples without a score are left out"
    ax = plot_discriminant_scores(score, labels, labels, ["a", "b"], 0.0, None, ["x", "y"])
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"x", "y"}
    plt.close("all")


MIXED = TableTraits(300, 3, 4, 2, 100.0, 0.0, 0.5, False)


@pytest.mark.parametrize(
    ("changes", "design"),
    [
        ({}, "skewed"),
        ({"n_samples": 600}, "skewed-1000"),
        ({"missing_share": 0.15}, "missing"),
        ({"n_clusters": 3}, "three-clusters"),
        ({"median_group": 300.0}, "no-groups"),
        ({"by_group": True}, "unequal"),
        ({"median_group": 5.0}, "small-mixed"),
        ({"median_group": 9.0, "n_discrete": 0}, "small-numeric"),
        ({"median_group": 4.0}, None),
        ({"n_numeric": 0}, "categories"),
        ({"n_discrete": 0}, "numeric"),
        ({"n_discrete": 0, "n_samples": 700}, "mixed-1000"),
        ({"n_numeric": 0, "n_samples": 700}, "skewed-1000"),
        ({"n_samples": 3000}, None),
        ({"n_samples": 60}, None),
        ({"missing_share": 0.5}, None),
        ({"skewness": 9.0}, None),
        ({"skewness": 0.6}, "skewed"),
        ({"skewness": 0.6, "missing_share": 0.1}, None),
        ({"skewness": 0.6, "median_group": 5.0}, None),
        ({"median_group": 5.0, "missing_share": 0.1}, None),
        ({"median_group": 5.0, "n_numeric": 0, "by_group": True}, None),
    ],
)
def test_p_values_are_shown_where_the_level_is_known(changes, design, monkeypatch):
    traits = MIXED._replace(**changes)
    designs = covering_designs(traits)
    assert (design in designs) if design else not designs
    assert {*designs} <= {*calibration.REJECTIONS}
    monkeypatch.setattr(calibration, "REJECTIONS", dict.fromkeys(designs, (28, 400)))
    assert (reason_without_p_value(traits) == "") == bool(designs)
    if not design:
        reason = reason_without_p_value(traits)
        assert reason.startswith("the error rate of the test was not measured for such tables (")
        texts = {
            "median_group": "a median group of", "n_samples": "samples", "missing_share": "missing",
            "skewness": "a skewness of", "n_numeric": "discrete columns only",
        }  # fmt: skip
        assert all(texts[name] in reason for name in {*changes} & {*texts})
        assert "clusters" not in reason and ("together" in reason) == (len(changes) > 1)
        return
    calibration.REJECTIONS[design] = 29, 400
    assert "rejected 29 of 400 simulated tables" in reason_without_p_value(traits)
    calibration.REJECTIONS[design] = 0, 399
    assert "the level of the test is not confirmed" in reason_without_p_value(traits)


def mixed_frame(seed, apart, n=150):
    """Numbers and flags in three known groups, with clusters that differ in all but a flag."""
    rng = np.random.default_rng([11, seed])
    known, sought = np.arange(n) % 3, rng.integers(2, size=n)
    X = rng.normal(size=(n, 3)) + apart * np.outer(sought, [1, 1, 0]) + known[:, None]
    odds = (2 * sought - 1) * (apart > 0)
    frame = pd.DataFrame(X, columns=list("abc"))
    frame["f"] = np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "yes", "no")
    frame["g"] = rng.random(n) < 0.4
    return frame, known, sought


def test_which_tables_are_tested_by_residuals():
    frame, known, _ = mixed_frame(0, 3.0, 60)
    model = ConditionalMixture(2)
    numbers = frame[["a", "b", "c"]]
    assert model.is_tested_by_residuals(numbers, known=known)
    assert model.is_tested_by_residuals(numbers)
    assert not model.is_tested_by_residuals(frame, known=known)
    assert not model.is_tested_by_residuals(numbers.mask(numbers > 3), known=known)
    small = np.arange(60) // 5
    assert not model.is_tested_by_residuals(numbers, known=small)
    assert ConditionalMixture(2, effects="subtract").is_tested_by_residuals(numbers, known=small)
    assert not ConditionalMixture(2, effects="random").is_tested_by_residuals(numbers, known=known)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_clusters_of_a_mixed_table_are_found_and_noise_is_not():
    frame, known, sought = mixed_frame(1, 3.5)
    frame.loc[:11, "a"] = np.nan
    model = ConditionalMixture("auto", n_init=6, random_state=0).fit(frame, known=known)
    assert model.n_clusters_ == 2
    settings = {"known": known, "n_splits": 1, "random_state": 0}
    result = evidence.test(model, frame, **settings)
    assert result.supports_clusters
    assert min(result.gain_by_null_model_.values()) > 0.05
    assert (result.labels_ == model.labels_).mean() > 0.95
    np.testing.assert_array_equal(np.isnan(result.discriminant_score_), frame["a"].isna())
    sure = evidence.confidence(
        model, frame, known=known, evidence=result, n_resamples=4, random_state=0
    )
    agrees = model.labels_ == sought
    agrees = agrees if agrees.mean() > 0.5 else ~agrees
    assert abs(sure.samples_.mean() - agrees.mean()) < 0.05
    # Nothing depends on names or on the order of samples that a fit does not see.
    noise, known, _ = mixed_frame(2, 0.0)
    result = evidence.test(ConditionalMixture(2, n_init=6, random_state=0), noise, **settings)
    assert not result.supports_clusters
    chosen = evidence.n_clusters(
        ConditionalMixture(n_init=6), noise, known=known, candidates=(1, 2), random_state=0
    )
    assert chosen.n_clusters_ == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_table_without_numbers_has_a_test_and_no_scores():
    rng = np.random.default_rng(5)
    sought = rng.integers(2, size=240)
    flags = pd.DataFrame(
        rng.random((240, 6)) < np.where(sought, 0.9, 0.1)[:, None], columns=list("abcdef")
    )
    model = ConditionalMixture(2, n_init=6, random_state=0)
    result = evidence.test(model, flags, n_splits=1, random_state=0)
    assert result.supports_clusters and np.isnan(result.discriminant_score_).all()
    with pytest.raises(ValueError, match="no sample has a discriminant score"):
        result.plot()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_flag_alone_is_no_structure():
    frame, known, _ = mixed_frame(3, 0.0, 240)
    rng = np.random.default_rng(0)
    frame["a"] += 2.0 * frame["g"]
    frame["f"] = np.where(rng.random(240) < 0.8, frame["g"], ~frame["g"])
    result = evidence.test(
        ConditionalMixture(2, n_init=6, random_state=0), frame, known=known, n_splits=1,
        random_state=0,
    )  # fmt: skip
    assert not result.supports_clusters
    assert result.gain_by_null_model_[ONE] > 0.05  # so that one component alone would be rejected
    assert result.gain_by_null_model_["the column 'g' alone"] < 0.02


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_small_groups_have_a_test():
    frame, _, _ = mixed_frame(4, 4.0, 200)
    small = np.arange(200) // 5
    X = frame[["a", "b", "c"]] + np.random.default_rng(1).normal(size=(40, 3))[small]
    model = ConditionalMixture(2, n_init=6, random_state=0).fit(X, known=small)
    assert model.effects_kind_ == "random"
    result = evidence.test(model, X, known=small, n_splits=1, random_state=0)
    assert result.withheld_ == "" and result.p_structure_ < 0.05


@pytest.mark.parametrize("row", [0, -1])
def test_a_group_without_training_samples_has_a_test(row):
    """The single sample of the first or the last group is held out in one of the folds."""
    rng = np.random.default_rng(0)
    known = np.repeat(["m", "n"], 50)
    known[row] = "single"
    X = pd.DataFrame(rng.normal(size=(100, 2)), columns=["x", "y"])
    X["flag"] = np.where(rng.random(100) < 0.5, "yes", "no")
    result = evidence.test(
        ConditionalMixture(2, n_init=2, random_state=0), X, known=known, n_folds=2, n_splits=1,
        random_state=0,
    )  # fmt: skip
    assert np.isfinite([*result.gain_by_null_model_.values()]).all()


def test_tables_are_checked_before_anything_is_fitted():
    frame, known, _ = mixed_frame(0, 3.0, 60)
    check_samples(ConditionalMixture(2), frame, known)
    with pytest.raises(TooFewRows, match="too few rows per known group"):
        check_samples(ConditionalMixture(2, effects="subtract"), frame[["a"]], np.arange(60) // 5)
    with pytest.raises(ValueError, match="NaN"):
        check_samples(MixtureEM(2), frame[["a"]].mask(frame[["a"]] > 3), None)


def test_a_column_that_is_a_multiple_of_another_one_changes_no_gain():
    """All null models have the variance of the clusters where the table has no variance."""
    frame, known, _ = mixed_frame(0, 4.0, 120)
    gains = []
    for columns in (frame, frame.assign(copy=2.54 * frame["a"])):
        model = ConditionalMixture(2, n_init=2, random_state=0).fit(columns, known=known)
        test = {"known": known, "n_folds": 2, "n_splits": 1, "random_state": 0}
        gains.append(evidence.test(model, columns, **test).gain_by_null_model_)
    once, twice = gains
    assert set(once) == set(twice)
    assert max(abs(once[name] - twice[name]) for name in once) < 0.05
    assert min(twice.values()) > 0.2


def test_refits_share_the_program_of_the_fit():
    """Refits without location effects or labels need no program with other arrays.

    The two new programs are the fits of one cluster, and of a column that replaces the clusters.
    """
    rng = np.random.default_rng(0)
    sought = np.arange(66) % 2
    X = pd.DataFrame(rng.normal(size=(66, 2)) + 5 * sought[:, None], columns=["a", "b"])
    X["c"] = np.where(rng.random(66) < 0.2 + 0.6 * sought, "x", "y")
    model = ConditionalMixture(2, n_init=2, random_state=0).fit(X)
    before = run_restarts._cache_size()
    evidence.test(model, X, n_folds=2, n_splits=1, random_state=0)
    assert run_restarts._cache_size() <= before + 2
