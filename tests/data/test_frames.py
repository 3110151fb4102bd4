"""Tables with named columns, from any library, and known columns."""

import datetime

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from every_estimator import ENTRIES, few_rows
from sklearn.base import clone
from sklearn.utils import check_array
from slowly import first_fast

from nrprob import (
    CCIB,
    CMBC,
    NACI,
    CondEns,
    ConditionalMixture,
    CrossPartition,
    ResidualSpectral,
    explore,
)
from nrprob.batch.registry import METHODS, make_estimator
from nrprob.data.design import DesignEncoder
from nrprob.data.frames import as_frame, extract_known, is_table
from nrprob.data.validation import check_rows
from nrprob.evidence import test as evidence_of
from nrprob.exceptions import DegenerateClusterWarning


class Stream:
    """A table that only has the Arrow interface."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


class Interchange:
    """A table that only has the dataframe interchange interface."""

    def __init__(self, frame):
        self.frame = frame

    def __dataframe__(self, *args, **kwargs):
        return self.frame.__dataframe__(*args, **kwargs)


def arrow(frame):
    return pytest.importorskip("pyarrow").Table.from_pandas(frame, preserve_index=False)


def polars(frame):
    pl = pytest.importorskip("polars")
    return pl.DataFrame({name: frame[name].to_list() for name in frame})


LIBRARIES = {
    "pandas": lambda frame: frame,
    "arrow": arrow,
    "polars": polars,
    "stream": lambda frame: Stream(arrow(frame)),
    "interchange": Interchange,
}


def table(n=60, seed=0):
    """Rows with two clusterings, one of them "batch", and a covariate "age"."""
    rng = np.random.default_rng(seed)
    known, sought = rng.integers(2, size=(2, n))
    age = rng.normal(40, 10, n)
    X = 4 * np.outer(known, [1, 1, 0]) + 3 * np.outer(sought, [0, 1, -1]) + rng.normal(size=(n, 3))
    X += 0.2 * age[:, None]
    frame = pd.DataFrame(X, columns=["x", "y", "z"])
    frame.insert(1, "batch", np.array(["a", "b"])[known])
    return frame.assign(donor=rng.integers(2, size=n), age=age)


@pytest.fixture(params=sorted(LIBRARIES))
def library(request):
    return LIBRARIES[request.param]


def test_tables_of_all_libraries_are_the_same_frame(library):
    frame = table(8)
    given = library(frame)
    assert is_table(given)
    result = as_frame(given)
    assert list(result.columns) == list(frame.columns)
    np.testing.assert_allclose(result[["x", "age"]], frame[["x", "age"]])
    assert result["batch"].tolist() == frame["batch"].tolist()
    np.testing.assert_allclose(
        check_rows(library(frame[["x", "y"]]), np.asarray), frame[["x", "y"]]
    )


def test_columns_and_arrays_are_no_tables():
    pa = pytest.importorskip("pyarrow")
    for values in (np.zeros((2, 2)), [[1, 2]], pd.Series([1, 2]), pa.chunked_array([[1]]), "x"):
        assert not is_table(values)


def test_named_columns_leave_the_rows():
    frame = table(8)
    X, known = extract_known(frame, "batch")
    assert list(X.columns) == ["x", "y", "z", "donor", "age"] and list(known.columns) == ["batch"]
    X, known = extract_known(frame, ["donor", "batch"])
    assert list(known.columns) == ["donor", "batch"] and "donor" not in X
    # `known` may be labels, even if they are names of columns.
    labels = ["x", "batch"] * 4
    X, known = extract_known(frame, labels)
    assert X is frame and known is labels


@pytest.mark.parametrize(
    "columns, known, message",
    [
        (["x", "batch"], "bach", "does not have; got 'bach', and X has 'x', 'batch'; name one"),
        (["x", "batch"], ["batch", "bach"], "does not have; got 'bach'"),
        (["x", "batch"], ["batch", "batch"], "must name each column only once"),
        (["batch"], "batch", "no feature is left"),
    ],
)
def test_names_that_name_nothing(columns, known, message):
    with pytest.raises(ValueError, match=message) as error:
        extract_known(table(8)[columns], known)
    assert "\n" not in str(error.value)


def test_arrays_have_no_names():
    with pytest.raises(ValueError, match="no columns with names; got known='batch' and a ndarray"):
        CCIB(2).fit(np.zeros((8, 2)), known="batch")


def test_a_table_that_cannot_be_read_is_refused_by_name():
    class Broken(Interchange):
        def __dataframe__(self, *args, **kwargs):
            raise TypeError("no such thing")

    with pytest.raises(ValueError, match=r"cannot be read; got .*Broken: no such thing; pass"):
        as_frame(Broken(None))


MODELS = {
    "CCIB": CCIB(2, n_init=2, random_state=0),
    "ConditionalMixture": ConditionalMixture(2, n_init=3, random_state=0),
    "CMBC": CMBC(2, binarize=12, n_init=2, random_state=0),
    "CondEns": CondEns(2, random_state=0),
}


@pytest.mark.parametrize("name", first_fast(sorted(MODELS)))
def test_names_are_their_columns(name):
    frame = table()[["x", "batch", "y", "z"]]
    rows, labels = frame.drop(columns="batch"), frame["batch"].to_numpy()
    expected = clone(MODELS[name]).fit(rows, known=labels)
    result = clone(MODELS[name]).fit(frame, known="batch")
    np.testing.assert_array_equal(result.labels_, expected.labels_)
    assert result.feature_names_in_.tolist() == ["x", "y", "z"]
    # The order of the removed columns differs from the fit.
    new = frame.iloc[:7][["batch", "x", "y", "z"]]
    for method in ("predict", "predict_proba"):
        np.testing.assert_array_equal(
            getattr(result, method)(new, known="batch"),
            getattr(expected, method)(rows.iloc[:7], known=labels[:7]),
        )
    if hasattr(result, "score"):
        assert result.score(new, known="batch") == expected.score(rows[:7], known=labels[:7])


def test_several_names_in_every_library(library):
    frame = table()[["x", "batch", "y", "donor"]]
    model = ConditionalMixture(2, n_init=2, random_state=0)
    result = model.fit(library(frame), known=["batch", "donor"])
    codes = np.unique(frame[["batch", "donor"]].astype(str).sum(axis=1), return_inverse=True)[1]
    expected = clone(model).fit(frame[["x", "y"]], known=codes)
    np.testing.assert_array_equal(result.labels_, expected.labels_)
    predicted = result.predict(library(frame), known=["batch", "donor"])
    np.testing.assert_array_equal(predicted, expected.predict(frame[["x", "y"]], known=codes))


@pytest.mark.parametrize("name", first_fast(["CCIB", "ConditionalMixture"]))
def test_labels_and_numbers_are_one_linear_model(name):
    """The design equals the design of indicators and numbers as continuous covariates."""
    model, frame = MODELS[name], table()[["x", "batch", "age", "y", "z"]]
    result = clone(model).fit(frame, known=["batch", "age"])
    seen = frame["batch"][0]
    design = np.column_stack([frame["age"], frame["batch"] != seen]).astype(float)
    expected = clone(model).fit(frame[["x", "y", "z"]], known=design)
    np.testing.assert_array_equal(result.labels_, expected.labels_)
    # The ridge of CCIB's model refers to the unscaled columns.
    np.testing.assert_allclose(result.objective_, expected.objective_, rtol=2e-3)
    np.testing.assert_array_equal(
        result.predict(frame[:9], known=["age", "batch"][::-1]), result.labels_[:9]
    )


# Methods with a linear model of covariates, of which labels are a part.
MODEL_NUMBERS = {"ccib", "conditional-mixture", "residual-spectral"}
NEEDED = {"ibsi": {"gamma": 1.0}, "cmbc": {"binarize": 12}}
TOLD = [name for name, method in METHODS.items() if method.capabilities.known]


def counts_with_columns():
    """Counts for every method, and columns that cannot be known, or not together."""
    frame = pd.DataFrame(np.random.default_rng(0).poisson(3.0, (60, 3)), columns=[*"uvw"])
    frame = frame.assign(batch=table()["batch"], age=table()["age"], lists=[[1]] * 60)
    return frame.assign(gaps=frame["batch"].where(frame.index != 3), again=frame["age"])


@pytest.mark.parametrize("name", TOLD)
def test_what_may_not_be_known_is_refused_by_name(name):
    frame, method = counts_with_columns(), METHODS[name]
    refused = {
        ("gaps",): "missing; found NaN or None in column 'gaps'; drop",
        ("lists",): "objects that cannot be compared in column 'lists' ",
    }
    if name not in MODEL_NUMBERS:
        refused[("batch", "age")] = "; got floats in 'age' and labels in 'batch'; "
        refused[("age",)] = "; got floats in 'age'; "
        refused[("age", "again")] = " in 'age', 'again'; "
    for columns, message in refused.items():
        model = make_estimator(name, NEEDED.get(name, {}))
        with pytest.raises(ValueError) as error:
            model.fit(frame[[*"uvw", *columns]], **{method.capabilities.known_as: [*columns]})
        assert message in str(error.value)
        assert ("subsets " if name == "cross_partition" else "known ") in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", first_fast(TOLD))
def test_a_model_takes_new_frames_as_fit_does(name):
    X, given = few_rows(name)
    features, key = pd.DataFrame(X, columns=[*"uvwx"]), METHODS[name].capabilities.known_as
    frame = features.assign(batch=np.array(["b", "a"])[given[key]])
    model = clone(ENTRIES[name].ours).fit(frame, **{key: "batch"})
    assert model.feature_names_in_.tolist() == [*"uvwx"]
    for ask in ("predict", "predict_proba", "score"):
        if hasattr(model, ask):
            method = getattr(model, ask)
            expected = method(features, **{key: frame["batch"]})
            np.testing.assert_array_equal(method(frame), expected)
            np.testing.assert_array_equal(method(frame, **{key: "batch"}), expected)


@pytest.mark.parametrize("n", [1, 2])
def test_as_few_rows_as_known_columns_are_no_labels(n):
    frame = table(60)[["x", "y", "batch"]].assign(site=[*"pq"] * 30)
    model = ConditionalMixture(2, n_init=2, random_state=0).fit(frame, known=["batch", "site"])
    expected = model.predict(frame[["x", "y"]], known=frame[["batch", "site"]])
    np.testing.assert_array_equal(model.predict(frame[:n]), expected[:n])
    with pytest.raises(ValueError, match="known is required to predict"):
        model.predict(frame[["x", "y"]])
    # A new fit deletes the names of columns.
    model.fit(frame[["x", "y"]], known=frame["batch"])
    with pytest.raises(ValueError, match="X must hold numbers"):
        model.predict(frame, known=frame["batch"])
    with pytest.raises(ValueError, match="X must hold numbers"):
        model.predict(frame)


def test_what_explore_may_not_know_is_refused_by_name():
    frame = counts_with_columns()
    for columns, message in (
        (["batch", "age"], "got floats in 'age' and labels in 'batch'; cut covariates into groups"),
        (["lists"], "objects that cannot be compared in column 'lists'"),
    ):
        with pytest.raises(ValueError, match=message):
            explore(frame[[*"uvw", *columns]], known=columns)


def test_subsets_that_are_not_shared_are_refused():
    frame = counts_with_columns()
    with pytest.raises(ValueError, match="every row has its own subset.* 60 subsets for as many"):
        CrossPartition(2).fit(frame[[*"uvw"]], subsets=frame["age"])


@pytest.mark.parametrize("model", [MODELS["CondEns"], NACI(2)], ids=str)
def test_a_group_of_all_rows_is_told_by_name(model):
    frame = table(12)[["x", "y"]].assign(site="north")
    with pytest.warns(DegenerateClusterWarning, match="got a constant labeling in 'site'"):
        clone(model).fit(frame, known="site")


def test_dates_that_are_known_are_labels(library):
    frame = table(8)[["x", "y"]].assign(when=pd.to_datetime(DATES))
    _, known = extract_known(library(frame), "when")
    encoder = DesignEncoder()
    assert encoder.fit(known, 8).codes.tolist() == [0, 1] * 4
    # They are dates, not integers.
    assert [*encoder.categories_[0]] == [pd.Timestamp(date) for date in DATES[:2]]
    assert encoder.transform(known.iloc[1:3], 2).codes.tolist() == [1, 0]


def test_counts_with_labels_and_numbers():
    frame = table(80)
    rng = np.random.default_rng(0)
    rates = 2 + 4 * np.outer(frame["batch"] == "a", [1, 0, 0, 1, 0, 0])
    counts = pd.DataFrame(rng.poisson(rates), columns=list("stuvwx"))
    counts = counts.assign(batch=frame["batch"], age=frame["age"])
    model = ResidualSpectral(2, members=2, random_state=0).fit(counts, known=["batch", "age"])
    assert model.feature_names_in_.tolist() == list("stuvwx")
    model.predict(counts[:5], known=["batch", "age"])


@pytest.mark.slow
@pytest.mark.contract
def test_subsets_may_be_a_column():
    frame = table(80)
    rng = np.random.default_rng(0)
    counts = pd.DataFrame(rng.poisson(3, (80, 5)), columns=list("stuvw"))
    expected = CrossPartition(2, random_state=0).fit(counts, subsets=frame["batch"])
    counts["batch"] = frame["batch"]
    result = CrossPartition(2, random_state=0).fit(counts, subsets="batch")
    np.testing.assert_array_equal(result.labels_, expected.labels_)


def test_the_evidence_takes_names():
    frame = table(80)[["x", "batch", "y", "z"]]
    model = ConditionalMixture(2, n_init=2, random_state=0)
    settings = {"n_splits": 1, "random_state": 0}
    result = evidence_of(model, frame, known="batch", **settings)
    expected = evidence_of(
        model, frame.drop(columns="batch"), known=frame["batch"].to_numpy(), **settings
    )
    assert result.p_structure_ == expected.p_structure_


def test_columns_are_named_where_there_is_text_or_nothing():
    frame = table()[["x", "batch", "y"]]
    with pytest.raises(ValueError, match="X must hold numbers; got text \\(column 'batch'\\)"):
        CCIB(2).fit(frame)
    frame.loc[3, ["x", "y"]] = np.nan
    with pytest.raises(ValueError, match="contains NaN; found missing values in columns 'x', 'y'"):
        CCIB(2).fit(frame, known="batch")


def _with(value, dtype=float):
    X = np.arange(24.0).reshape(8, 3).astype(dtype)
    X[5, 1] = X[7, 0] = value
    return X


ONE = "in row 5, column 1"
NOT_FINITE = {
    "array": (_with(np.nan), "contains NaN; found 2 missing values, the first " + ONE),
    "infinite": (_with(-np.inf), "contains infinity; found 2 infinite values, the first " + ONE),
    "list": (_with(np.nan).tolist(), "contains NaN; found 2 missing values, the first " + ONE),
    "objects": (_with(None, object), "contains NaN; found 2 missing values, the first " + ONE),
    "pandas": (_with(pd.NA, object)[:6], "contains NaN; found 1 missing value " + ONE),
    "sparse": (
        scipy.sparse.csc_array(_with(np.nan)),
        "contains NaN; found 2 missing values, the first " + ONE,
    ),
    "frame": (
        pd.DataFrame(_with(np.inf), columns=list("abc")),
        "contains infinity; found infinite values in columns 'a', 'b'",
    ),
    "too large": (_with(1e300).astype(np.longdouble) * 1e300, "contains infinity"),
}


@pytest.mark.parametrize(("X", "message"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_what_is_missing_or_infinite_is_found(X, message):
    with pytest.raises(ValueError, match=f"Input X {message}"):
        CCIB(2).fit(X)


DATES = [datetime.date(2020, 1, day) for day in (1, 2)] * 4
NO_NUMBERS = {
    "dates": (DATES, "dates or times"),
    "times": ([datetime.time(1)] * 8, "dates or times"),
    "periods": (pd.period_range("2020", periods=8, freq="M"), "dates or times"),
    "stamps": (pd.date_range("2020", periods=8), "dates or times"),
    "durations": (pd.to_timedelta(np.arange(8), "D"), "dates or times"),
    "lists": ([[1, 2]] * 8, "lists or other objects"),
    "dicts": ([{}] * 8, "lists or other objects"),
    "text": (["a", "b"] * 4, "text"),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_columns_of_no_numbers_are_refused_by_name(kind):
    values, what = NO_NUMBERS[kind]
    frame = pd.DataFrame({"x": np.arange(8.0), "when": values, "y": np.ones(8), "again": values})
    with pytest.raises(ValueError) as error:
        check_rows(frame, check_array, dtype=float)
    assert f"X must hold numbers; got {what} (columns 'when', 'again'); " in str(error.value)
    assert "\n" not in str(error.value)
    check_rows(frame.drop(columns=["when", "again"]), check_array, dtype=float)


def test_all_columns_of_no_numbers_are_named_at_once(library):
    frame = pd.DataFrame({"x": np.arange(8.0), "when": DATES, "group": ["a", "b"] * 4})
    if library is LIBRARIES["interchange"]:  # which only supports dates
        frame["when"] = pd.to_datetime(frame["when"])
    with pytest.raises(
        ValueError,
        match=r"dates or times \(column 'when'\), text \(column 'group'\); convert dates",
    ):
        check_rows(library(frame), check_array, dtype=float)
