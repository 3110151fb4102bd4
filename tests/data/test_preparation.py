"""Preparation of tables for fits: the columns and the notes."""

import datetime
import decimal
import re
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import nrprob
from nrprob import (
    CCIB,
    ConditionalMixture,
    DegenerateClusterWarning,
    describe_clusters,
    explore,
    known,
    recommend,
)
from nrprob.advice import choose_estimator
from nrprob.data.design import DesignEncoder
from nrprob.data.frames import quote_names
from nrprob.data.preparation.columns import (
    is_identifier,
    is_year,
    kind_of_column,
    missing_value_code,
)

ROWS = 24


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": rng.normal(5, 1, ROWS),
            "weight": rng.normal(5, 2, ROWS),
            "site": np.tile(["north", "south", "west"], ROWS // 3),
            "smokes": np.tile([True, False], ROWS // 2),
            "batch": np.repeat(["a", "b"], ROWS // 2),
        }
    )


def prepare(X, **keywords):
    """The form of complete numbers, which most estimators need."""
    return nrprob.prepare(X, **{"categories": "indicators", "missing": "error"} | keywords)


def quietly(*arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return prepare(*arguments, **keywords)


def test_columns_become_features(frame):
    ready = quietly(frame, known="batch")
    sites = [f"site={name}" for name in ("north", "south", "west")]
    assert ready.feature_names_ == ["size", "weight", *sites, "smokes"]
    expected = np.column_stack(
        [frame["size"], frame["weight"], *(frame["site"] == s[5:] for s in sites), frame["smokes"]]
    )
    np.testing.assert_array_equal(ready.X, expected.astype(float))
    assert ready.X.dtype == np.float64
    assert ready.known.tolist() == frame["batch"].tolist()
    np.testing.assert_array_equal(ready.rows_, np.arange(ROWS))
    assert ready.scales_ == {}
    assert ready.notes == [
        f"text 'site' became binary columns: {', '.join(map(repr, sites))}",
        "'smokes' is encoded as 0 for false and 1 for true",
    ]
    assert list(ready.frame) == ready.feature_names_
    # Complete numbers stay unchanged.
    assert frame["site"][0] == "north"


def test_single_precision_is_kept(frame):
    single = frame[["size", "weight"]].astype(np.float32)
    assert prepare(single).X.dtype == np.float32
    assert prepare(single.assign(more=frame["size"])).X.dtype == np.float64


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "number"),
        ([1, None], "number"),
        (pd.array([1, None], "Int64"), "number"),
        (pd.array([1.5, None], "Float32"), "number"),
        (np.array([decimal.Decimal("1.5"), None], object), "number"),
        (np.array([1, True], object), "number"),
        ([True, False], "boolean"),
        (np.array([True, None], object), "boolean"),
        (["a", None], "text"),
        (["1", "2"], "text"),
        (pd.Categorical([3, 4]), "text"),
        (pd.Categorical([None, None]), "empty"),
        (np.array([None, None], object), "empty"),
        (["a", 1], "mixed"),
        (["a", [2]], "mixed"),
        ([[1], [2]], "object"),
        ([1j, 2], "object"),
        (["2020-01-31", None], "date"),
        (["2020-01-31 10:00", "2021-12-01T08:15:30Z"], "date"),
        (["31.1.2020", "1/2/20"], "date"),
        (["Jan 01, 2020", "1st March 2021", "01-Dec-20", "Feb 2020"], "date"),
        (["2020-01", "1999/12", "2020Q1", "2020-q4"], "date"),
        (["08:00", "23:15:30"], "date"),
        (["2020-13", "1234-05", "may", "12 may"], "text"),
        (["1:10", "1:50"], "text"),
        (["2020-01-31", "later"], "text"),
        ([datetime.date(2020, 1, 1)] * 2, "date"),
        (pd.to_datetime(["2020-01-31", None]), "date"),
        (pd.to_datetime(["2020-01-31"] * 2, utc=True), "date"),
        (pd.to_timedelta([1, 2], "D"), "date"),
        (pd.period_range("2020", periods=2, freq="M"), "date"),
    ],
)
def test_kinds_of_columns(values, kind):
    assert kind_of_column(pd.Series(values)) == kind


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pd.Timestamp("2020-01-01"), "got dates in 'new'; convert dates to numbers"),
        ("2020-01-01", "got dates in 'new'"),
        (["a", 1] * (ROWS // 2), "got several kinds of values in 'new'"),
        (
            ["1,5", "2.5"] * (ROWS // 2),
            "got decimal points and decimal commas in 'new': '2.5' ",
        ),
        (["5 %", "5"] * (ROWS // 2), "got numbers of several units in 'new': '5' "),
        ([[1, 2]] * ROWS, "got lists or other objects in 'new'; convert objects to numeric"),
        (
            ["x", *map(str, range(ROWS - 1))],
            r"got 'x' \(row 0\) among the numbers in 'new'; leave cells without a number empty, or "
            r"leave the column out with drop=\['new'\]$",
        ),
        ([np.inf, *range(ROWS - 1)], "must be finite; got infinity: 1 in 'new'; missing='drop'"),
        (
            pd.Series([np.inf, False] * (ROWS // 2), dtype=object),
            f"must be finite; got infinity: {ROWS // 2} in 'new'",
        ),
        (
            pd.Series([10**400, *range(ROWS - 1)], dtype=object),
            "within the range of floats; got others in 'new'",
        ),
    ],
)
def test_columns_that_are_no_features_are_refused_by_name(frame, column, message):
    with pytest.raises(ValueError, match=message) as error:
        prepare(frame.assign(new=column), known="batch")
    assert "\n" not in str(error.value)
    # The remedy in the message works.
    assert "new" not in prepare(frame.assign(new=column), known="batch", drop="new").feature_names_


def test_all_columns_that_are_refused_are_named_at_once(frame):
    frame = frame.assign(when="2020-01-01", what=["a", 1] * (ROWS // 2))
    with pytest.raises(ValueError, match="got dates in 'when', several kinds of values in 'what'"):
        prepare(frame)
    quietly(frame, drop=["when", "what"])


def test_text_of_many_values_is_refused_by_name(frame):
    frame = pd.concat([frame] * 2, ignore_index=True)
    many = frame.assign(new=[f"t{i % 21}" for i in range(2 * ROWS)])
    with pytest.raises(
        ValueError, match="text of up to 20 values; got 21 values of text in 'new'; merge"
    ):
        prepare(many, known="batch")
    few = frame.assign(new=[f"t{i % 20}" for i in range(2 * ROWS)])
    assert len(prepare(few, known="batch").feature_names_) == 26


@pytest.mark.parametrize(
    ("column", "note"),
    [
        ([f"row {i}" for i in range(ROWS)], "'new' is left out: text that differs in every row"),
        (["the same"] * ROWS, "'new' is left out: text of one value has no information"),
        (np.nan, "'new' is left out: no row has a value"),
        (None, "'new' is left out: no row has a value"),
    ],
)
def test_columns_that_say_nothing_are_left_out(frame, column, note):
    """Their missing values drop no rows."""
    ready = quietly(frame.assign(new=column), known="batch")
    assert ready.feature_names_ == prepare(frame, known="batch").feature_names_
    assert any(note in line for line in ready.notes)


def test_columns_that_are_kept_as_they_are_are_told(frame):
    new = frame.assign(same=2.5, on=[True, False] * (ROWS // 2), off=False)
    ready = quietly(new, known="batch")
    assert {"same", "on", "off"} <= set(ready.feature_names_)
    assert "'same', 'off' are constant, without information, and kept" in ready.notes
    assert "'smokes', 'on' are encoded as 0 for false and 1 for true" in ready.notes
    assert not any("constant" in note for note in prepare(ready.X).notes)


def test_constant_known_columns_are_named_in_one_warning(frame):
    """`prepare` names a constant column if the other known columns vary; else `fit` warns."""
    constant = frame.assign(site="north", dose=2.5)
    with pytest.warns(UserWarning, match="'site', 'dose' are the same in all rows, so"):
        prepare(constant, known=["batch", "site", "dose"])
    with pytest.warns(UserWarning, match="'site' is the same in all rows, so that there"):
        prepare(constant, known=["batch", "site"])
    with pytest.warns(UserWarning, match="'dose' is the same in all rows, so that there"):
        prepare(constant, known="dose")
    with pytest.warns(DegenerateClusterWarning, match="known has one group only") as caught:
        ready = prepare(constant[["size", "site"]], known="site")
        ConditionalMixture(2, n_init=1, random_state=0).fit(ready.X, known=ready.known)
    assert len([w for w in caught if "known" in str(w.message)]) == 1


def test_exact_copies_of_rows_are_noted(frame):
    """The note counts copies of complete rows in the same known group."""

    def notes(table, **keywords):
        ready = nrprob.prepare(table, known="batch", **keywords)
        return [line for line in ready.notes if "exact copies" in line]

    copied = pd.concat([frame, frame[:6]])
    note = (
        "6 of 30 rows are exact copies of earlier rows; the fit counts every row, and tests count "
        "equal rows once; drop the copies unless they should have more weight"
    )
    assert notes(copied) == notes(copied, categories="indicators") == [note]
    assert notes(frame) == notes(pd.concat([frame] + [frame[:1]])) == []
    other = frame[:6].assign(batch="b")
    assert notes(pd.concat([frame, other])) == []
    # Rows of few discrete values agree by chance.
    ratings = pd.DataFrame(
        {"batch": "a", "taste": np.arange(90) % 5 + 1, "smell": np.arange(90) % 3}
    )
    assert notes(ratings) == notes(ratings, categories="indicators") == []


def test_two_values_are_one_column_and_categories_keep_their_order(frame):
    order = pd.Categorical(frame["site"], ["west", "south", "north", "nowhere"])
    ready = prepare(frame.assign(site=order, batch=frame["batch"].map({"a": "x", "b": "y"})))
    assert ready.feature_names_[2:] == [
        "site=west", "site=south", "site=north", "smokes", "batch=y",
    ]  # fmt: skip


def test_names_may_not_collide(frame):
    with pytest.raises(
        ValueError, match="got 'site=west' twice, once as the binary column of a text"
    ):
        prepare(frame.assign(**{"site=west": 1.0}))
    twice = frame[["size", "size"]]
    with pytest.raises(ValueError, match="different names; got 'size' more than once"):
        prepare(twice)


def test_gaps_are_refused_by_name(frame):
    frame.loc[[1, 2], "size"] = np.nan
    frame.loc[[2, 3], "site"] = None
    with pytest.raises(ValueError, match=r"values: 2 in 'size', 2 in 'site' \(3 of 24") as e:
        prepare(frame, known="batch")
    assert "missing='drop'" in str(e.value) and "drop=['size', 'site']" in str(e.value)
    assert "missing='mean'" in str(e.value)
    # Columns that are not features may have missing values.
    quietly(frame, known="batch", drop=["size", "site"])
    frame.loc[5, "batch"] = None
    with pytest.raises(ValueError, match="1 in known 'batch'") as e:
        prepare(frame, known="batch")
    assert "missing='mean'" not in str(e.value)
    with pytest.raises(ValueError, match="known labels have no mean; .* 1 in known 'bat"):
        prepare(frame, known="batch", missing="mean")


def test_rows_with_gaps_are_left_out(frame):
    frame.index = [f"r{i}" for i in range(ROWS)]
    frame.loc["r1", "size"] = np.nan
    frame.loc["r4", "weight"] = np.inf
    frame.loc["r5", "batch"] = None
    ready = quietly(frame, known="batch", missing="drop")
    kept = [i for i in range(ROWS) if i not in (1, 4, 5)]
    assert ready.rows_.tolist() == kept
    expected = prepare(frame.iloc[kept], known="batch")
    np.testing.assert_array_equal(ready.X, expected.X)
    assert ready.known.tolist() == expected.known.tolist()
    gaps = "missing values: 1 in 'size', 1 in known 'batch'; infinity: 1 in 'weight'"
    note = f"3 of 24 rows left out, for {gaps}"
    assert note in ready.notes


def test_gaps_are_filled_in(frame):
    frame.loc[[1, 2], "size"] = np.nan
    frame.loc[3, "site"] = None
    ready = quietly(frame, known="batch", missing="mean", standardize=False)
    whole = frame.dropna()
    sites = quote_names(sorted(name for name in ready.feature_names_ if name.startswith("site=")))
    assert (
        f"text 'site' became binary columns, with the share of ones where missing: {sites}"
        in ready.notes
    )
    X = ready.frame
    assert X["size"][1] == X["size"][2] == pytest.approx(frame["size"].mean())
    assert X["site=west"][3] == pytest.approx((frame["site"] == "west").sum() / (ROWS - 1))
    np.testing.assert_array_equal(X.loc[whole.index, "size"], whole["size"])
    np.testing.assert_allclose(X.filter(like="site=").sum(axis=1), 1)
    # A share is on the scale of 0 and 1, and is not a measurement.
    apart = prepare(frame.assign(weight=frame["weight"] * 100), known="batch", missing="mean")
    assert set(apart.scales_) == {"size", "weight"}


def test_most_rows_left_out_is_worth_a_warning(frame):
    frame.loc[:14, "size"] = np.nan
    with pytest.warns(
        UserWarning, match="most rows are left out; got missing .* 15 of 24, most of"
    ):
        prepare(frame, known="batch", missing="drop")
    with pytest.warns(UserWarning, match="most rows are left out; .* in 'column 0'"):
        prepare(frame[["size", "weight"]].to_numpy(), missing="drop")
    frame.loc[10:, "weight"] = np.nan
    with pytest.raises(ValueError, match="no row is complete; got missing values: 15 in 'size"):
        prepare(frame, known="batch", missing="drop")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_scales_that_differ_tenfold_are_brought_to_one(exponents, told, seed):
    """Only then, in any units; and the scales restore the table."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(30, len(exponents))) * 10.0 ** np.array(exponents) + 3
    frame = pd.DataFrame(X, columns=[f"c{j}" for j in range(len(exponents))])
    if told:
        frame["yes"] = np.tile([0, 1], 15)
    ready = prepare(frame)
    scales = [*X.std(0), *[1.0] * told]
    assert bool(ready.scales_) == (max(scales) >= 10 * min(scales))
    for name, (mean, deviation) in ready.scales_.items():
        own = ready.frame[name]
        np.testing.assert_allclose([own.mean(), own.std(ddof=0)], [0, 1], atol=1e-9)
        np.testing.assert_allclose(own * deviation + mean, frame[name], rtol=1e-9, atol=1e-9)
    if told:
        np.testing.assert_array_equal(ready.frame["yes"], frame["yes"])
    if not ready.scales_:
        np.testing.assert_array_equal(ready.X, frame)


def test_counts_and_zeros_and_ones_keep_their_scales():
    rng = np.random.default_rng(0)
    counts = pd.DataFrame(rng.poisson([0.01, 0.2, 0.5, 20], (60, 4)), columns=list("abcd"))
    np.testing.assert_array_equal(quietly(counts).X, counts)
    ones = counts.clip(upper=1)
    np.testing.assert_array_equal(quietly(ones).X, ones)
    varies = counts.columns[counts.std() > 0]
    assert set(prepare(counts, standardize=True).scales_) == set(varies)
    # A column without zeros may be a measurement.
    ones["age"] = rng.integers(20, 80, 60)
    ones = ones.assign(**{f"more {j}": ones["a"] for j in range(4)})
    with pytest.warns(
        UserWarning,
        match="got 'age', without any 0; if these are measurements, standardize=True treats them",
    ):
        ready = prepare(ones)
    np.testing.assert_array_equal(ready.X, ones)


def test_whole_numbers_beside_zeros_and_ones_are_no_counts():
    """Many columns of 0 would make them look like counts."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"rooms": rng.integers(1, 9, 60), "kind": rng.choice(list("abcdef"), 60)})
    ready = prepare(frame)
    assert set(ready.scales_) == {"rooms"}
    assert "modelled as counts, together with binary columns: 'rooms'" in ready.notes[-1]


def test_scales_that_are_left_apart_are_told(frame):
    frame["weight"] *= 1000
    with pytest.warns(UserWarning, match="share a scale; .* from .* to 'weight'; standardize=True"):
        ready = prepare(frame, known="batch", standardize=False)
    assert ready.scales_ == {}
    both = quietly(frame, known="batch", standardize=True)
    assert set(both.scales_) == set(both.feature_names_)
    # A constant column stays unchanged.
    constant = frame.assign(weight=7.1)
    assert "weight" not in prepare(constant, known="batch", standardize=True).scales_


@pytest.mark.parametrize(
    ("name", "values", "result"),
    [
        ("x", np.arange(20), True),
        ("x", np.arange(20)[::-1] * 3, True),
        ("x", np.random.default_rng(0).permutation(20), False),
        ("x", np.arange(20) + 0.5, False),
        ("x", np.arange(5), False),
        ("patient_id", np.repeat([4, 2, 9, 7], 5), True),
        ("patientId", np.repeat([4, 2, 9, 7], 5), True),
        ("ID", np.repeat([4, 2, 9, 7], 5), True),
        ("Unnamed: 0", np.repeat([4, 2, 9, 7], 5), True),
        ("uuid", np.repeat([4, 2, 9, 7], 5), True),
        ("PLZ", np.repeat([40210, 21073, 10115, 80331], 5), True),
        ("zip_code", np.repeat([40210, 21073, 10115, 80331], 5), True),
        ("postalCode", np.repeat([40210, 21073, 10115, 80331], 5), True),
        ("zipper", np.repeat([40210, 21073, 10115, 80331], 5), False),
        ("row no", np.random.default_rng(0).permutation(20), True),
        ("no", np.repeat([4, 2, 9, 7], 5), False),
        ("Kundennummer", np.random.default_rng(0).permutation(20) + 10**6, True),
        ("Zimmernummer", np.repeat([4, 2, 9, 7], 5), False),
        ("numbers", np.random.default_rng(0).permutation(20), False),
        ("code", np.random.default_rng(0).permutation(20) + 10**6, True),
        ("code", np.repeat([4, 2, 9, 7], 5), False),
        ("paid", np.repeat([4, 2, 9, 7], 5), False),
        ("width", np.repeat([4, 2, 9, 7], 5), False),
        ("id", np.tile([0, 1], 10), False),
    ],
)
def test_what_looks_like_an_identifier(name, values, result):
    assert is_identifier(name, values.astype(float)) == result


def test_what_looks_like_a_year():
    values = np.random.default_rng(0).integers(1950, 2020, 30).astype(float)
    assert is_year("x", values) and is_year("birth_year", values - 400)
    assert not is_year("x", values - 400) and not is_year("x", values + 0.5)
    assert not is_year("x", values[:4]) and not is_year("year", values - 1900)


@pytest.mark.parametrize(
    ("values", "result"),
    [
        (np.r_[np.linspace(20, 60, 30), -9999.0], -9999),
        (np.r_[np.linspace(0, 1, 30), [99.0] * 40], 99),
        (np.r_[np.linspace(0, 1, 30), 10.5], None),
        (np.r_[np.linspace(0, 1, 30), 99.0, 98.0], None),
        (np.r_[np.linspace(0, 1, 8), 99.0], None),
        (np.r_[np.tile([0.0, 1.0, 2.0], 10), 99.0], None),  # a count may be
        (np.full(30, 7.0), None),
        (np.r_[np.linspace(-1, 1, 30), 1.7e308, -1.7e308], None),
        (np.random.default_rng(0).lognormal(sigma=2, size=10_000), None),
    ],
)
def test_what_looks_like_a_code_for_missing_values(values, result):
    assert missing_value_code(values) == result


def test_codes_for_missing_values_are_told_and_left(frame):
    frame["age"] = np.where(np.arange(ROWS) % 7 == 3, -9999, np.linspace(20, 60, ROWS))
    with pytest.warns(UserWarning) as caught:
        ready = prepare(frame, known="batch")
    n = int((frame["age"] == -9999).sum())
    (said,) = [str(w.message) for w in caught]
    assert f"; got -9999 in 'age' ({n} rows), farther from the other" in said and n > 1
    assert said.endswith("leave these cells empty") and "age" in ready.feature_names_
    quietly(frame.replace({"age": {-9999: np.nan}}), known="batch", missing="drop")


def test_identifiers_and_years_are_told_and_left(frame):
    frame["sample_id"] = np.arange(ROWS) // 2
    frame["year"] = 1990 + np.arange(ROWS) % 5
    with pytest.warns(UserWarning) as caught:
        ready = prepare(frame, known="batch")
    said = [str(w.message) for w in caught]
    assert (
        "'sample_id' looks like an identifier; if so, leave the column out with drop=['sample_id']"
        in said[0]
    )
    assert "'year' looks like a year; if so, leave the column out with drop=['year']" in said[1]
    assert said == ready.warnings and len(said) == 2
    assert {"sample_id", "year"} <= set(ready.feature_names_)
    assert caught[0].filename == __file__
    quietly(frame, known="batch", drop=["sample_id", "year"])


def test_an_index_is_left_out_and_named(frame):
    for index in (np.arange(ROWS), 1000 + 3 * np.arange(ROWS)[::-1]):
        ready = quietly(frame.assign(new=index), known="batch")
        assert "new" not in ready.feature_names_
        assert "'new' is left out: whole numbers that differ in every row" in ready.notes
    # Other integers that differ in every row are measurements, as is the only feature.
    shuffled = np.random.default_rng(0).permutation(ROWS)
    assert "new" in quietly(frame.assign(new=shuffled), known="batch").feature_names_
    assert prepare(frame[["batch"]].assign(new=np.arange(ROWS)), known="batch").X.shape[1] == 1


def test_what_is_known(frame):
    frame["donor"] = np.arange(ROWS) % 3
    frame["age"] = np.linspace(20, 60, ROWS)
    frame["gappy"] = np.where(np.arange(ROWS) < 2, np.nan, np.arange(ROWS) % 2)
    ready = prepare(frame.drop(columns="gappy"), known=["batch", "donor", "age"])
    assert list(ready.known) == ["batch", "donor", "age"]
    assert DesignEncoder("product").fit(ready.known, ROWS).kind == "mixed"
    only = prepare(frame.drop(columns="gappy"), known="age")
    assert DesignEncoder("product").fit(only.known, ROWS).kind == "continuous"
    assert only.known.shape == (ROWS, 1)
    # Missing values turn integers into floats, which remain labels.
    gappy = prepare(frame, known="gappy", missing="drop")
    assert gappy.known.dtype.kind == "i" and len(gappy.known) == ROWS - 2
    assert "known 'gappy' holds few whole numbers and is read as labels" in gappy.notes
    many = pd.concat([frame[["size"]]] * 2, ignore_index=True).assign(age=np.arange(48) % 30)
    with pytest.warns(
        UserWarning, match="known 'age' is read as labels; got 30 different whole numbers"
    ):
        prepare(many, known="age")


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_what_is_known_may_be_no_column(frame, missing):
    labels = frame.pop("batch").to_numpy(object)
    if missing == "error":
        assert prepare(frame, known=labels).known is labels
        return
    frame.loc[3, "size"] = np.nan
    labels[5] = None
    ready = prepare(frame, known=labels, missing="drop")
    kept = [i for i in range(ROWS) if i not in (3, 5)]
    assert ready.rows_.tolist() == kept and ready.known.tolist() == labels[kept].tolist()
    soft = known.Memberships(np.full((ROWS, 2), 0.5))
    assert prepare(frame, known=soft, missing="drop").known.probabilities.shape == (ROWS - 1, 2)
    with pytest.raises(ValueError, match="known has 7 rows for 24 rows of X"):
        prepare(frame, known=labels[:7].tolist(), missing="drop")


def test_arrays_are_used_as_they_are():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3)) * [1, 100, 1e4]
    X[:, 2] = np.arange(ROWS)
    with pytest.warns(
        UserWarning, match="from 'column 0' to 'column 1'; standardize=True standardises"
    ):
        ready = prepare(X, known=np.arange(ROWS) % 2)
    np.testing.assert_array_equal(ready.X, X)
    assert ready.feature_names_ == ["column 0", "column 1", "column 2"] and not ready.notes
    assert len(prepare(X, standardize=True).scales_) == 3
    X[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"missing values: 1 in 'column 1' \(1 of 24 rows\)"):
        prepare(X)
    assert len(prepare(X, missing="drop", standardize=True).X) == ROWS - 1
    counts = sparse.csr_array(rng.poisson(0.3, (ROWS, 5)))
    assert prepare(counts).X is counts
    assert prepare(counts, known=["a", None] * 12, missing="drop").X.shape == (ROWS // 2, 5)
    with pytest.raises(ValueError, match="sparse X must be finite, and is not standardised"):
        prepare(counts, standardize=True)


@pytest.mark.parametrize(
    ("X", "keywords", "message"),
    [
        (np.zeros((3, 2)), {"known": "batch"}, "X has no columns with names"),
        (np.zeros((3, 2)), {"drop": ["a"]}, "drop needs named columns"),
        (np.zeros(3), {}, "X must be a table of numbers"),
        ([["a", "b"]], {}, "X must be a table of numbers"),
        (pd.DataFrame({"a": [1.0]}), {"drop": ["b"]}, "drop names a column that X does not have"),
        (pd.DataFrame({"a": [1.0]}), {"drop": ["a"]}, "no feature is left; got drop="),
        (
            pd.DataFrame({"a": ["x"] * 3}),
            {},
            "no feature is left; got 'a', which hold neither numbers",
        ),
        (pd.DataFrame({"a": [1.0]}), {"missing": "median"}, "missing must be one of"),
        (pd.DataFrame({"a": [1.0]}), {"standardize": "yes"}, "standardize must be one of 'auto'"),
        (pd.DataFrame({"a": [1.0]}), {"known": "b"}, "known names a column that X does not have"),
        (
            pd.DataFrame({"a": [1.0], "b": [None]}),
            {"known": "b", "missing": "drop"},
            "known columns must have values; got only missing values in 'b'",
        ),
    ],
)
def test_what_cannot_be_prepared(X, keywords, message):
    with pytest.raises(ValueError, match=message) as error:
        prepare(X, **keywords)
    assert "\n" not in str(error.value)


CELLS = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(10**6), 10**6),
    st.booleans(),
    st.text(max_size=3),
    st.dates(),
)
KINDS = (
    st.floats(-1e6, 1e6), st.integers(0, 9), st.booleans(), st.sampled_from("abc"),
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from(["a", None]), CELLS,
)  # fmt: skip


def check_kept(frame, missing, standardize):
    """Text and missing values are where they were, and scales give the table back."""
    missing = "keep" if missing == "error" else missing
    try:
        ready = nrprob.prepare(frame, missing=missing, standardize=standardize)
    except ValueError as error:
        assert str(error).count(";") >= 2 and "\n" not in str(error)
        return
    X, before = ready.X, frame.iloc[ready.rows_].reset_index(drop=True)
    assert list(X) == ready.feature_names_ == list(ready.kinds_) and set(X) <= set(frame)
    for name in X:
        if missing != "mean":
            np.testing.assert_array_equal(X[name].isna(), before[name].isna())
        seen = X[name].notna() & before[name].notna()
        values, expected = X[name][seen].astype(object), before[name][seen]
        if name in ready.scales_:
            mean, deviation = ready.scales_[name]
            values = values.astype(float) * deviation + mean
            expected = expected.astype(float)
            largest = max(1, expected.abs().max())
            np.testing.assert_allclose(values, expected, rtol=1e-9, atol=1e-9 * largest)
        else:
            assert values.tolist() == expected.tolist()
    choose_estimator(X)


@settings(max_examples=150, deadline=None)
@given(
    st.data(), st.sampled_from(["error", "drop", "mean"]), st.sampled_from(["auto", True, False])
)
def test_any_table_is_made_ready_or_refused_in_a_sentence(data, missing, standardize):
    n = data.draw(st.integers(1, 12))
    columns = {
        f"c{j}": data.draw(st.lists(data.draw(st.sampled_from(KINDS)), min_size=n, max_size=n))
        for j in range(data.draw(st.integers(1, 4)))
    }
    frame = pd.DataFrame(columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_kept(frame, missing, standardize)
        try:
            ready = prepare(frame, missing=missing, standardize=standardize)
        except ValueError as error:
            assert str(error).count(";") >= 2 and "\n" not in str(error)
            return
    assert ready.X.shape == (len(ready.rows_), len(ready.feature_names_))
    assert np.isfinite(ready.X).all()
    assert len(set(ready.feature_names_)) == len(ready.feature_names_)
    assert missing == "drop" or len(ready.rows_) == n
    for j, name in enumerate(ready.feature_names_):
        column, _, value = name.partition("=")
        if name in ready.scales_ or missing == "mean":
            continue
        rows = frame[column].iloc[ready.rows_]
        expected = [str(v) == value for v in rows] if value or "=" in name else rows.tolist()
        np.testing.assert_array_equal(ready.X[:, j], np.asarray(expected, float))


# functions that use it


@pytest.mark.slow
@pytest.mark.contract
def test_explore_makes_a_frame_ready_and_says_so(frame):
    frame["weight"] *= 1000
    with pytest.warns(UserWarning) as caught:
        result = explore(frame, n_clusters=2, n_clusterings=1, known="batch", random_state=0)
    said = [str(w.message) for w in caught]
    assert any(line.startswith("note: standardised, since scales") for line in said)
    assert result.prepared_ is not None and list(result.prepared_.scales_) == ["size", "weight"]
    names = result.estimators_[0].feature_names_in_.tolist()
    assert names == result.prepared_.feature_names_
    assert list(result.table.columns) == ["known 1", "found 1"]
    ready = result.prepared_
    again = explore(ready.X, n_clusters=2, n_clusterings=1, known=ready.known, random_state=0)
    assert again.prepared_.notes == []
    np.testing.assert_array_equal(again.labels_, result.labels_)


def test_explore_makes_numbers_for_estimators_that_need_them(frame):
    estimator = CCIB(2, n_init=1)
    with pytest.warns(UserWarning, match="note: text 'site' became binary columns"):
        result = explore(frame, estimator, n_clusterings=1, known="batch", random_state=0)
    assert "site=west" in result.estimators_[0].feature_names_in_
    frame.loc[2, "site"] = None
    remedy = r"1 in 'site' \(1 of 24 rows\); prepare\(X, missing='drop'\) leaves out such rows"
    with pytest.raises(ValueError, match=remedy):
        explore(frame, estimator, n_clusterings=1, known="batch")


def test_recommend_says_what_has_to_be_done(frame):
    with pytest.warns(UserWarning, match="should go through nrprob.prepare before a fit; stand"):
        model = recommend(frame.assign(weight=frame["weight"] * 1000), known="batch")
    assert isinstance(model, ConditionalMixture)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recommend(frame, known="batch")


def test_what_a_preparation_would_refuse_is_no_reason_not_to_recommend(frame):
    y = np.arange(len(frame)) % 3 - 1
    infinite, dates = "has to go .* before a fit; .* infinity: 1 in 'size'", "got dates in 'day'"
    frame.loc[1, "size"] = np.inf
    with pytest.warns(UserWarning, match=infinite):
        model = recommend(frame, known="batch", y=y)
    assert isinstance(model, ConditionalMixture) and model.n_clusters == 2
    frame["day"] = pd.Timestamp("2020-02-02")
    with pytest.warns(UserWarning) as caught:
        model = recommend(frame, known="batch", y=y)
    said = [str(w.message) for w in caught]
    for what in (infinite, dates):
        assert sum(bool(re.search(what, line)) for line in said) == 1
    assert isinstance(model, ConditionalMixture)
    with pytest.raises(ValueError, match="no feature is left"):
        recommend(frame[["day", "batch"]], known="batch")
    with pytest.raises(ValueError, match="y must hold one label per row"), pytest.warns():
        recommend(frame, known="batch", y=y[:-1])


def test_a_model_of_labels_and_numbers_is_recommended(frame):
    frame["age"] = np.linspace(20, 60, ROWS)
    numbers = frame[["size", "weight", "batch", "age"]]
    ready = prepare(numbers, known=["batch", "age"])
    model = recommend(numbers, known=["batch", "age"], n_clusters=2).set_params(
        n_init=3, random_state=0
    )
    assert isinstance(model, ConditionalMixture)
    expected = model.fit(ready.X, known=ready.known).labels_
    np.testing.assert_array_equal(model.fit(numbers, known=["batch", "age"]).labels_, expected)


def test_units_of_texts_are_kept(frame):
    frame["share"] = [f"{j % 5 + 20 * (j % 2)} %" for j in range(ROWS)]
    assert prepare(frame, known="batch").units_ == {"share": "%"}
    assert prepare(frame.drop(columns="share"), known="batch").units_ == {}
    assert prepare(frame.assign(share=frame["share"] + "!")).units_ == {}  # text
    logarithm = prepare(frame.assign(share="1" + frame["share"]), log=["share"])
    assert logarithm.units_ == {} and "log(share)" in logarithm.feature_names_
    assert logarithm.logarithms_ == {"log(share)": ("share", 0.0)}
    texts = describe_clusters(frame[["share"]], np.arange(ROWS) % 2)
    assert texts[1] == "share: mean 22.0 % (11.9 % overall)"
