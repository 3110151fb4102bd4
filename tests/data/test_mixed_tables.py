"""Tables with text and missing values, in `prepare`, `recommend` and `explore`."""

import warnings

import numpy as np
import pandas as pd
import pytest

from nrprob import CCIB, NACI, ConditionalMixture, explore, metrics, prepare, recommend
from nrprob.data.column_kinds import infer_kinds

ROWS = 120


@pytest.fixture
def table():
    """Numbers that determine clusters, an irrelevant flag, a rating, text and missing values."""
    rng = np.random.default_rng(0)
    hidden, site = rng.integers(2, size=(2, ROWS))
    frame = pd.DataFrame(rng.normal(size=(ROWS, 2)), columns=["size", "weight"])
    frame += 4 * hidden[:, None] + site[:, None]
    frame["weight"] *= 100
    frame["smokes"] = rng.random(ROWS) < 0.3
    frame["colour"] = rng.choice(["red", "green", "blue"], ROWS)
    frame["rating"] = rng.integers(1, 6, ROWS)
    frame["site"] = np.array(["north", "south"])[site]
    frame.loc[rng.random(ROWS) < 0.1, "size"] = np.nan
    frame.loc[rng.random(ROWS) < 0.1, "colour"] = None
    return frame, hidden


def test_text_and_missing_values_are_kept(table):
    frame, _ = table
    ready = prepare(frame, known="site")
    assert ready.feature_names_ == ["size", "weight", "smokes", "colour", "rating"]
    assert ready.kinds_ == {
        "size": "number", "weight": "number", "smokes": "categorical", "colour": "categorical",
        "rating": "ordered",
    }  # fmt: skip
    X = ready.X
    assert X["colour"].cat.categories.tolist() == ["blue", "green", "red"]
    pd.testing.assert_frame_equal(
        X[["smokes", "colour", "rating"]].astype(object),
        frame[["smokes", "colour", "rating"]].astype({"smokes": float, "rating": float})
        .astype(object), check_like=True,
    )  # fmt: skip
    # Scales are computed from non-missing values, and restore the table.
    for name in ("size", "weight"):
        mean, deviation = ready.scales_[name]
        np.testing.assert_allclose([X[name].mean(), X[name].std(ddof=0)], [0, 1], atol=1e-9)
        np.testing.assert_allclose(X[name] * deviation + mean, frame[name], rtol=1e-9)
    assert not {"smokes", "rating"} & ready.scales_.keys()
    columns = ConditionalMixture(2, n_init=2, max_iter=2).fit(X, known=ready.known).columns_
    assert columns == ready.kinds_


def test_standardisation_leaves_discrete_columns_alone(table):
    frame, _ = table
    visits = np.random.default_rng(1).poisson(9, ROWS) % 20 * (np.arange(ROWS) > 0)
    ready = prepare(frame.assign(visits=visits), known="site", standardize=True)
    assert set(ready.scales_) == {"size", "weight"} and ready.kinds_["visits"] == "count"


def test_missing_labels_are_a_group(table):
    frame, _ = table
    frame.loc[:9, "site"] = None
    ready = prepare(frame, known="site")
    assert (ready.known == "(missing)").sum() == 10 and len(ready.rows_) == ROWS
    assert "rows without a value of known 'site' (10) form a separate group" in ready.notes
    frame["batch"] = np.where(np.arange(ROWS) == 3, np.nan, np.arange(ROWS) % 2)
    assert set(prepare(frame, known="batch").known) == {"0", "1", "(missing)"}
    frame["age"] = np.where(np.arange(ROWS) == 3, np.nan, np.linspace(20, 60, ROWS))
    with pytest.raises(ValueError, match="must not be missing; .* 1 in known 'age'"):
        prepare(frame, known="age")


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (lambda i: f"person {i}", "text that differs in every row identifies rows"),
        (lambda i: f"remark {i % (ROWS - 5)}", "the values of this text hardly repeat"),
        (lambda i: i, "whole numbers that differ in every row"),
    ],
)
def test_columns_that_name_rows_are_left_out(table, values, note):
    frame, _ = table
    ready = prepare(frame.assign(new=[values(i) for i in range(ROWS)]), known="site")
    assert "new" not in ready.feature_names_
    assert [line for line in ready.notes if "'new'" in line] == [f"'new' is left out: {note}"]


def test_text_of_many_values_that_repeat_is_kept(table):
    frame, _ = table
    ready = prepare(frame.assign(new=[f"t{i % 24}" for i in range(ROWS)]), known="site")
    assert ready.kinds_["new"] == "categorical"


def test_columns_that_known_groups_determine_are_named(table):
    frame, _ = table
    code = frame.assign(code=(frame["site"] == "north") * 1, region=frame["site"].str[:1])
    with pytest.warns(
        UserWarning,
        match="'code', 'region' have only one value in each group; leave the columns out with",
    ):
        prepare(code, known="site")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare(code, known="rating")
        prepare(code, known=np.arange(ROWS))


def test_text_has_no_mean(table):
    frame, _ = table
    with pytest.raises(
        ValueError, match="text has no mean; .* in 'colour'.*; missing='keep' keeps"
    ):
        prepare(frame, known="site", missing="mean")
    ready = prepare(frame.drop(columns="colour"), known="site", missing="mean")
    assert not ready.X.isna().any().any()


@pytest.mark.parametrize("kind", ["boolean", "Int64", "Float64", "string", "category", "object"])
def test_every_type_of_column_with_missing_values(table, kind):
    frame, _ = table
    values = {
        "boolean": [True, False], "Int64": [1, 2], "Float64": [0.5, 1.5], "string": ["a", "b"],
        "category": ["a", "b"], "object": ["a", "b"],
    }[kind]  # fmt: skip
    column = pd.Series([*values, None] * (ROWS // 3), dtype=kind)
    ready = prepare(frame.assign(new=column), known="site")
    assert ready.X["new"].isna().tolist() == [False, False, True] * (ROWS // 3)
    assert ready.kinds_["new"] == "categorical"
    assert isinstance(recommend(ready.X, known=ready.known), ConditionalMixture)


def test_what_is_recommended_takes_text_and_missing_values(table):
    frame, hidden = table
    with pytest.warns(UserWarning, match="go through nrprob.prepare"):
        model = recommend(frame, known="site", n_clusters=2)
    assert isinstance(model, ConditionalMixture)
    assert "text in 'colour' and missing values in 'size', 'colour'" in model.reason_
    labels = model.set_params(n_init=12, random_state=0).fit(frame, known="site").labels_
    assert metrics.matched_accuracy(labels, hidden) > 0.95
    X = np.where(np.random.default_rng(0).random((50, 3)) < 0.1, np.nan, 1.5)
    assert "X has missing values: Cond" in recommend(X).reason_
    labelled = np.where(np.arange(ROWS) < 10, hidden, -1)
    ready = prepare(frame, known="site")
    assert isinstance(recommend(ready.X, y=labelled), ConditionalMixture)


def test_binary_features_and_counts_are_recommended_for_as_before():
    rng = np.random.default_rng(0)
    flags = pd.DataFrame(rng.random((60, 8)) < 0.4, columns=[*"abcdefgh"])
    known = np.arange(60) % 3
    assert isinstance(recommend(flags, known=known), CCIB)
    gappy = flags.astype("boolean")
    gappy.iloc[3, 2] = None
    assert isinstance(recommend(gappy, known=known), ConditionalMixture)
    counts = pd.DataFrame(rng.poisson(0.3, (60, 30))).add_prefix("word")
    assert type(recommend(counts, known=known)).__name__ == "ResidualSpectral"


def test_discrete_columns_have_effects_of_combinations_of_labels(table):
    frame, _ = table
    rng = np.random.default_rng(0)
    labelings = rng.integers(8, size=(ROWS, 2))
    assert recommend(frame[["size", "weight"]].fillna(0), known=labelings).multi == "additive"
    with pytest.warns(UserWarning):
        assert recommend(frame, known=labelings).multi == "product"


def test_covariates_need_complete_numbers(table):
    frame, _ = table
    age = np.random.default_rng(0).normal(size=(ROWS, 1))
    with (
        pytest.warns(UserWarning),
        pytest.raises(ValueError, match="needs complete numeric columns; .* text in 'colour'"),
    ):
        recommend(frame, known=age)
    ready = prepare(frame, known="site", categories="indicators", missing="mean")
    model = recommend(ready.X, known=age).set_params(n_init=2, max_iter=3, random_state=0)
    assert "count as numeric" in model.reason_
    model.fit(ready.X, known=age)


@pytest.mark.slow
@pytest.mark.contract
def test_explore_takes_text_and_missing_values(table):
    frame, hidden = table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = explore(frame, n_clusters=2, n_clusterings=2, known="site", random_state=0)
    assert metrics.matched_accuracy(result.labels_[:, 0], hidden) > 0.95
    assert metrics.normalized_mutual_information(*result.labels_.T) < 0.2
    assert result.prepared_.kinds_["colour"] == "categorical"


def test_other_estimators_say_what_they_need(table):
    frame, _ = table
    ready = prepare(frame, known="site")
    for X in (ready.X, ready.X[["size", "weight"]]):
        with pytest.raises(ValueError, match="ConditionalMixture.*'indicators', missing='mean'"):
            NACI(2).fit(X, known=ready.known)


def test_images_and_questionnaires_are_told_apart():
    rng = np.random.default_rng(0)
    pixels, answers = rng.integers(17, size=(400, 40)), rng.integers(1, 6, (400, 40))
    frames = [pd.DataFrame(X).add_prefix("c") for X in (pixels, answers)]
    kinds = [set(prepare(X).kinds_.values()) for X in frames]
    assert kinds == [{"number"}, {"ordered"}]
    # Without names, a questionnaire looks like an image.
    assert [set(infer_kinds(X.astype(float))) for X in (pixels, answers)] == [{"number"}] * 2
    assert set(infer_kinds(answers[:, :31].astype(float))) == {"ordered"}
    # Pixels that are 0 or 1 belong to the image, and a text or boolean column does not.
    pixels[:, 0] = pixels[:, 0] > 15
    assert set(infer_kinds(pixels.astype(float))) == {"number"}
    frame = pd.DataFrame(pixels).add_prefix("c").assign(flag=pixels[:, 1] > 8)
    assert infer_kinds(frame) == ["number"] * 40 + ["categorical"]
    grades = pd.Categorical(rng.choice(["low", "high"], 400), ["low", "high"], ordered=True)
    assert infer_kinds(frame.assign(flag=grades)) == ["number"] * 40 + ["ordered"]
