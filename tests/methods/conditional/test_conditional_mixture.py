"""Conditional mixtures: mixed columns, missing values, and group effects fitted with clusters."""

import numpy as np
import pandas as pd
import pytest
from grouped_tables import flag_table, turned_shares
from sklearn.base import clone

from nrprob import ConditionalMixture, stored
from nrprob.methods.conditional.joint_fit import is_clearer
from nrprob.metrics import adjusted_rand_index, normalized_mutual_information

FEW = {"n_init": 12, "random_state": 0}
pytestmark = [
    pytest.mark.filterwarnings("ignore:two solutions:UserWarning"),
    pytest.mark.filterwarnings("ignore:shares of clusters differ:UserWarning"),
]


@pytest.fixture(scope="module")
def mixed():
    frame, cluster = flag_table()
    return frame, cluster, ConditionalMixture(2, **FEW).fit(frame, known="site")


@pytest.fixture(scope="module")
def unequal():
    X, groups, cluster, effects = turned_shares()
    return X, groups, cluster, effects, ConditionalMixture(3, **FEW).fit(X, known=groups)


def test_an_irrelevant_flag_does_not_capture_the_clusters(mixed):
    frame, cluster, model = mixed
    assert normalized_mutual_information(model.labels_, cluster) > 0.95
    assert normalized_mutual_information(model.labels_, frame["flag"].to_numpy()) < 0.01
    assert model.columns_ == {**dict.fromkeys("abcd", "number"), "flag": "categorical"}
    np.testing.assert_allclose(model.tables_["flag"].sum(axis=0), 1)


def test_clusters_that_make_the_residuals_spherical_are_found():
    # After standardisation, the column of two values and the columns of noise have one variance.
    rng = np.random.default_rng(0)
    cluster, groups = rng.integers(0, 2, 400), np.arange(400) % 2
    X = rng.normal(size=(400, 5))
    X[:, 0] += 6 * cluster
    model = ConditionalMixture(2, **FEW).fit((X - X.mean(0)) / X.std(0), known=groups)
    assert model.shrinkage_ > 0.95
    assert normalized_mutual_information(model.labels_, cluster) > 0.9


@pytest.mark.parametrize("length", [1.25, 2.0])
def test_elongated_errors_and_unequal_shares(length):
    # The clusters are separated along the shortest direction of the errors.
    rng = np.random.default_rng(0)
    groups = np.arange(400) % 2
    cluster = (rng.random(400) < np.array([0.2, 0.8])[groups]).astype(int)
    X = rng.normal(size=(400, 2)) @ np.array([[length, 0.55 * length], [0, 0.45]])
    X += np.outer(groups, [5, -1]) + np.outer(cluster, [-1.5, 3])
    model = ConditionalMixture(2, **FEW).fit(X, known=groups)
    assert model.effects_kind_ == "random"
    assert normalized_mutual_information(model.labels_, cluster) > 0.9


def test_a_rare_cluster_with_equal_shares_needs_no_joint_effects():
    rng = np.random.default_rng(13)
    cluster, groups = (rng.random(400) < 0.15).astype(int), np.arange(400) % 2
    X = rng.normal(size=(400, 5)) + 4 * np.eye(5)[0] * cluster[:, None]
    X += np.outer(groups, np.arange(5))
    model = ConditionalMixture(2, **FEW).fit(X, known=groups)
    assert model.effects_kind_ == "subtract" and model.weights_.min() < 0.25
    assert normalized_mutual_information(model.labels_, cluster) > 0.7


def test_prediction_repeats_the_fit(mixed, unequal):
    frame, _, model = mixed
    np.testing.assert_allclose(model.predict_proba(frame), model.membership_, atol=1e-6)
    X, groups, _, _, model = unequal
    assert model.effects_kind_ == "random"
    np.testing.assert_allclose(model.predict_proba(X, known=groups), model.membership_, atol=1e-6)


def test_a_flag_may_be_text_numbers_or_booleans(mixed):
    frame, _, model = mixed
    frame = frame.drop(columns="site")
    for flag in (frame["flag"].astype(float), frame["flag"].map({True: "yes", False: "no"})):
        other = clone(model).fit(frame.assign(flag=flag), known=mixed[0]["site"])
        np.testing.assert_allclose(other.membership_, model.membership_, atol=1e-6)


def test_densities_of_all_values_of_the_flag_add_up_to_the_density_without_it(mixed):
    frame, _, model = mixed
    rows = frame.head(20).astype({"flag": object})
    total = sum(np.exp(_row_scores(model, rows.assign(flag=value))) for value in (True, False))
    np.testing.assert_allclose(total, np.exp(_row_scores(model, rows.assign(flag=None))))


def _row_scores(model, rows):
    return np.array([model.score(rows.iloc[[i]]) for i in range(len(rows))])


def test_shares_that_differ_between_groups_are_fitted_with_the_effects(unequal):
    X, groups, cluster, effects, model = unequal
    with pytest.warns(UserWarning, match="so group effects were fitted with the clusters"):
        clone(model).fit(X, known=groups)
    subtracted = clone(model).set_params(effects="subtract").fit(X, known=groups)
    assert adjusted_rand_index(model.labels_, cluster) > 0.75
    assert adjusted_rand_index(subtracted.labels_, cluster) < 0.5
    assert model.effects_gain_ > 0
    assert model.n_clusters_ == len(np.unique(model.labels_))
    with pytest.raises(ValueError, match="mixture_covariance needs a complete numeric table"):
        model.mixture_covariance()
    np.testing.assert_allclose(model.shares_.sum(1), 1)
    estimate = model.effects_ - model.effects_.mean(0)
    assert np.abs(estimate - (effects - effects.mean(0))).max() < 0.5


def test_centres_and_effects_add_up_to_the_level_of_the_table(unequal):
    X, groups, _, _, model = unequal
    fit = model.effects_[groups] + model.membership_ @ model.means_
    np.testing.assert_allclose(fit.mean(0), X.mean(0), atol=0.05)


def test_missing_values_at_random_change_little():
    X, groups, cluster, _ = turned_shares()
    X[np.random.default_rng(1).random(X.shape) < 0.05] = np.nan
    model = ConditionalMixture(3, **FEW).fit(X, known=groups)
    assert adjusted_rand_index(model.labels_, cluster) > 0.65
    np.testing.assert_array_equal(model.n_missing_, np.isnan(X).sum(0))
    assert np.isfinite(model.predict_proba(X, known=groups)).all()


def test_a_value_that_did_not_occur_in_fit_is_missing(mixed):
    frame, _, model = mixed
    rows = frame.head(8)
    with pytest.warns(UserWarning, match="column 'flag' has values that did not occur in fit"):
        result = model.predict_proba(rows.assign(flag="maybe"))
    expected = model.predict_proba(rows.assign(flag=pd.array([pd.NA] * 8, "boolean")))
    np.testing.assert_allclose(result, expected)


@pytest.mark.slow
@pytest.mark.contract
def test_one_discrete_column_that_depends_on_nothing_gains_nothing():
    frame, _ = flag_table()
    for_numbers = frame.drop(columns="flag")
    gains = []
    for table in (frame, for_numbers):
        values = [
            ConditionalMixture(k, effects="subtract", **FEW).fit(table, known="site").objective_
            for k in (1, 2)
        ]
        gains.append(values[0] - values[1])
    # Numbers alone have the objective of residuals, which differs by the effects' uncertainty.
    assert abs(gains[0] - gains[1]) < 5


def test_labels_of_some_samples_stay():
    frame, cluster = flag_table()
    y = np.where(np.arange(len(frame)) < 10, 1 - cluster, -1)
    model = ConditionalMixture(2, **FEW).fit(frame, y, known="site")
    assert (model.labels_[:10] == 1 - cluster[:10]).all()
    assert normalized_mutual_information(model.labels_, cluster) > 0.8


def test_what_a_mixed_table_does_not_take_is_refused():
    frame, _ = flag_table(n=60)
    ages = np.linspace(20, 60, 60)[:, None]
    table = frame.drop(columns="site")
    cases = [
        ({"errors": "t"}, {"known": frame["site"]}, "does not support errors='t'"),
        ({"balance": 1.0}, {"known": frame["site"]}, "does not support balance"),
        ({}, {"known": ages}, "known must be labels for a table with discrete columns"),
        ({"categorical": ["nothing"]}, {}, "categorical must name columns of X"),
        ({"categorical": ["flag"], "ordered": ["flag"]}, {}, "either categorical or ordered"),
        ({"location": "maybe"}, {}, "location must be True, False or 'auto'"),
        ({"effects": "subtract", "weights": "by_group"}, {}, "group means contain the shares"),
    ]
    for parameters, known, message in cases:
        with pytest.raises(ValueError, match=message):
            ConditionalMixture(2, **FEW | parameters).fit(table, **known)
    with pytest.raises(ValueError, match="need known groups"):
        ConditionalMixture(2, effects="random").fit(table[[*"abcd"]])
    names = table.assign(name=[f"person {i}" for i in range(60)])
    with pytest.raises(ValueError, match="values of a categorical column have to repeat"):
        ConditionalMixture(2).fit(names)
    with pytest.raises(ValueError, match=r"dates or times \(column 'day'\)"):
        ConditionalMixture(2).fit(table.assign(day=pd.Timestamp("2020-01-01")))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_shares_that_differ_are_found_on_other_tables(seed):
    X, groups, cluster, _ = turned_shares(seed)
    model = ConditionalMixture(3, random_state=0).fit(X, known=groups)
    assert adjusted_rand_index(model.labels_, cluster) > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_flags_do_not_capture_clusters_of_other_tables(seed):
    frame, cluster = flag_table(seed)
    model = ConditionalMixture(2, random_state=0).fit(frame, known="site")
    assert normalized_mutual_information(model.labels_, cluster) > 0.9
    assert normalized_mutual_information(model.labels_, frame["flag"].to_numpy()) < 0.02


@pytest.mark.parametrize(("name", "value"), [("location", True), ("balance", 1.0)])
def test_stored_rows_refuse_parameters_that_need_memory(name, value):
    rows, groups = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 3
    with pytest.raises(ValueError, match=f"{name} needs all rows in memory; got {name}="):
        ConditionalMixture(2, **{name: value}).fit(stored(rows), known=groups)


def test_shares_that_were_fitted_by_known_group_are_reported():
    model = ConditionalMixture(2)
    model.effects_kind_, model.decisions_ = "random", {"gain_by_group": 30.0}
    model.shares_, model.weights_ = np.array([[0.8, 0.2], [0.4, 0.6]]), np.array([0.6, 0.4])
    model._shares_by_group = True
    with pytest.warns(UserWarning, match=r"shares of clusters differ .* \(gain 30 nats\)"):
        model._warn_joint()


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(("size", "kind"), [(15, "random"), (60, "subtract")])
def test_means_of_small_groups_are_not_subtracted(size, kind):
    rng = np.random.default_rng(0)
    groups, clusters = np.repeat(np.arange(180 // size), size), rng.integers(3, size=180)
    x = rng.normal(size=(180, 4)) + 5 * np.eye(3, 4)[clusters] + rng.normal(size=(12, 4))[groups]
    model = ConditionalMixture(3, random_state=0).fit(x, known=groups)
    assert model.effects_kind_ == kind
    assert adjusted_rand_index(model.labels_, clusters) > 0.95


@pytest.mark.parametrize(
    ("before", "after", "clearer"),
    [(0.4, 0.29, True), (0.4, 0.31, False), (0.06, 0.04, True), (0.06, 0.05, False)],
)
def test_clear_clusters_become_clearer_by_a_share(before, after, clearer):
    assert is_clearer(before, after) == clearer
