"""Known structure in every valid form."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nrprob import CCIB, CMBC, CondEns, ConditionalMixture, ResidualSpectral
from nrprob.data import design as module
from nrprob.data.design import Design, DesignEncoder
from nrprob.datasets import make_binary_partitions
from nrprob.known import Memberships

CODES = [0, 1, 0, 2, 1, 0]
N = len(CODES)


def _named(names):
    return [names[c] for c in CODES]


FORMS = {
    "integers": np.array(_named([7, -3, 0])),
    "unsigned": np.array(_named([7, 3, 0]), np.uint8),
    "floats": np.array(_named([0.5, -1.0, 1e9])),
    "float32": np.array(_named([0.5, -1.0, 2.0]), np.float32),
    "booleans-like": np.array(_named([True, False, 2]), object),
    "strings": np.array(_named(["north", "a", "m"])),
    "list": _named(["north", "a", "m"]),
    "objects": np.array(_named(["north", 3, (1, 2)]), object),
    "dates": np.array(_named(["2020-03-01", "2019-01-01", "2021-01-01"]), "datetime64[D]"),
    "series": pd.Series(_named(["north", "a", "m"]), index=range(10, 10 + N)),
    "series of floats": pd.Series(_named([0.5, -1.0, 2.0])),
    "categorical": pd.Series(pd.Categorical(_named(["b", "c", "a"]), categories=list("abcd"))),
    "nullable": pd.Series(_named([3, 1, 2]), dtype="Int64"),
    "bare categorical": pd.Categorical(_named(["b", "c", "a"])),
    "one column": np.array(_named([7, -3, 0]))[:, None],
    "frame": pd.DataFrame({"where": _named(["north", "a", "m"])}),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_coded_by_first_appearance(form):
    encoder = DesignEncoder()
    groups = encoder.fit(FORMS[form], N)
    assert groups.n_groups == groups.n_hard_groups == 3
    assert groups.memberships is None
    np.testing.assert_array_equal(groups.codes, CODES)
    again = encoder.transform(FORMS[form], N)
    np.testing.assert_array_equal(again.codes, CODES)
    assert again.n_groups == 3


def test_a_covariate_in_the_place_of_labels_is_refused():
    ages = np.random.default_rng(0).uniform(20, 80, 60).round(2)
    for known in (ages, pd.Series(ages, name="age")):
        with pytest.raises(ValueError, match=r"labels must repeat; got .*known\[:, None\]"):
            DesignEncoder("product").fit(known, 60)
    assert DesignEncoder("product").fit(ages[:, None], 60).kind == "continuous"
    assert DesignEncoder("product").fit(ages.round(), 60).kind == "labels"
    assert DesignEncoder("product").fit(np.repeat(ages[:20], 3), 60).n_groups == 20
    assert DesignEncoder().fit(ages, 60).n_groups == 60  # the estimator takes labels only


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"one column", "frame"}))
def test_transform_of_a_part(form):
    """New rows get the codes of the fit, not codes by their own first appearance."""
    encoder = DesignEncoder()
    known = FORMS[form]
    encoder.fit(known, N)
    backwards = known.iloc[::-1] if hasattr(known, "iloc") else known[::-1]
    np.testing.assert_array_equal(encoder.transform(backwards, N).codes, CODES[::-1])
    groups = encoder.transform(backwards[:2], 2)
    np.testing.assert_array_equal(groups.codes, CODES[::-1][:2])
    assert groups.n_groups == 3


@settings(max_examples=50, deadline=None)
@given(
    codes=st.lists(st.integers(0, 6), min_size=1, max_size=30),
    names=st.lists(st.integers(-1000, 1000), min_size=7, max_size=7, unique=True),
)
def test_names_do_not_matter(codes, names):
    plain = DesignEncoder().fit(np.array(codes), len(codes))
    for renamed in (
        np.array([names[c] for c in codes]),
        np.array([str(names[c]) for c in codes]),
        np.array([names[c] / 7 for c in codes]),
        np.array([f"x{names[c]}" for c in codes], object),
    ):
        groups = DesignEncoder().fit(renamed, len(codes))
        np.testing.assert_array_equal(groups.codes, plain.codes)
        assert groups.n_groups == plain.n_groups
    # First appearance: every new code is one more than the largest so far.
    largest = np.maximum.accumulate(np.r_[-1, plain.codes])
    assert (plain.codes <= largest[:-1] + 1).all()
    assert plain.n_groups == len(set(codes))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=20))
def test_product_of_labelings(pairs):
    """A group is a combination that occurs, numbered by first appearance."""
    seen = {}
    exact = [seen.setdefault(pair, len(seen)) for pair in pairs]
    two = np.array(pairs)
    frame = pd.DataFrame({"a": [f"x{a}" for a, _ in pairs], "b": pd.Categorical(two[:, 1])})
    for known in (two, two.astype(str), frame, two.astype(object), 10 - two):
        encoder = DesignEncoder()
        groups = encoder.fit(known, len(pairs))
        np.testing.assert_array_equal(groups.codes, exact)
        assert groups.n_groups == len(seen)
        np.testing.assert_array_equal(encoder.transform(known, len(pairs)).codes, exact)


def test_labelings_stay_apart():
    known = np.array([["b", "x"], ["a", "x"], ["b", "y"]])
    design = DesignEncoder().fit(known, 3)
    np.testing.assert_array_equal(design.labelings, [[0, 0], [1, 0], [0, 1]])
    assert design.group_labels == [("b", "x"), ("a", "x"), ("b", "y")]


def test_nothing_known():
    encoder = DesignEncoder()
    groups = encoder.fit(None, 4)
    assert groups.n_groups == 1 and groups.memberships is None
    np.testing.assert_array_equal(groups.codes, np.zeros(4))
    np.testing.assert_array_equal(encoder.transform(None, 2).codes, np.zeros(2))
    with pytest.raises(ValueError, match="given to predict but not to fit"):
        encoder.transform([1, 2], 2)


@pytest.mark.parametrize(
    "known",
    [
        np.array([0.0, np.nan, 1.0]),
        [0.0, np.nan, 1.0],
        np.array(["a", None, "b"], object),
        ["a", None, "b"],
        np.array(["a", np.nan, "b"], object),
        np.array([["a", "b"], ["a", None], ["b", "b"]], object),
        pd.Series(["a", None, "b"]),
        pd.Series(["a", np.nan, "b"], dtype=object),
        pd.Series(pd.Categorical(["a", None, "b"])),
        pd.DataFrame({"a": ["x", "y", "x"], "b": ["x", None, "x"]}),
        pd.Series([1, pd.NA, 2], dtype="Int64"),
        ["a", float("nan"), "b"],
        pd.Series(["a", pd.NA, "b"], dtype=object),
        np.array(["2020-01-01", "NaT", "2020-01-02"], "datetime64[D]"),
    ],
    ids=lambda known: f"{type(known).__name__}-{getattr(known, 'dtype', '')}",
)
def test_missing_labels_are_refused(known):
    with pytest.raises(ValueError, match="non-missing"):
        DesignEncoder().fit(known, 3)


def test_labels_of_several_types_stay_apart():
    """The number 1 and the string "1" are two groups, in a list as in an array of objects."""
    known = [1, "1", 1, "a"]
    exact = [0, 1, 0, 2]
    np.testing.assert_array_equal(DesignEncoder().fit(np.array(known, object), 4).codes, exact)


def test_labels_of_several_types_stay_apart_in_a_list():
    encoder = DesignEncoder()
    encoder.fit([1, "a", 1], 3)
    np.testing.assert_array_equal(encoder.transform([1, 1], 2).codes, [0, 0])


@pytest.mark.parametrize("wrong", [2, 4])
@pytest.mark.parametrize(
    "known",
    [[0, 1, 0], np.array([[0, 1], [1, 1], [0, 0]]), Memberships(np.eye(3)), pd.Series([1, 2, 1])],
    ids=lambda known: type(known).__name__,
)
def test_wrong_length(known, wrong):
    with pytest.raises(ValueError, match=f"known has 3 labels for {wrong} samples"):
        DesignEncoder().fit(known, wrong)
    encoder = DesignEncoder()
    encoder.fit(known, 3)
    with pytest.raises(ValueError, match=f"known has 3 labels for {wrong} samples"):
        encoder.transform(known, wrong)


@pytest.mark.parametrize(
    "known",
    [
        np.random.default_rng(0).normal(size=(3, 2)),
        np.zeros((3, 1)),
        np.zeros((3, 2), np.float32),
        pd.DataFrame({"a": [0.1, 0.2, 0.3]}),
        pd.DataFrame({"a": [0.1, 0.2, 0.3], "b": [1.0, 2.0, 3.0]}),
    ],
    ids=["two columns", "one column", "float32", "frame of one", "frame"],
)
def test_continuous_structure_is_refused(known):
    with pytest.raises(ValueError, match="continuous known structure is not supported"):
        DesignEncoder().fit(known, 3)


@pytest.mark.parametrize("labels", [["x", "y", "x"], [1, 2, 1]])
def test_labels_beside_numbers_are_no_groups(labels):
    frame = pd.DataFrame({"a": labels, "b": [0.1, 0.2, 0.3]})
    with pytest.raises(ValueError, match="together is not supported .* 'b' and labels in 'a'"):
        DesignEncoder().fit(frame, 3)


def test_labels_beside_numbers_are_a_design():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice(["x", "y", "z"], 50), "b": 5 + 3 * rng.normal(size=50)})
    encoder = DesignEncoder("product")
    fit = encoder.fit(frame, 50)
    assert fit.kind == "mixed" and not fit.codes.any()
    design = fit.matrix
    seen = list(dict.fromkeys(frame["a"]))
    b = (frame["b"] - frame["b"].mean()) / frame["b"].std(ddof=0)
    expected = [np.ones(50), b, *(frame["a"] == name for name in seen[1:])]
    np.testing.assert_allclose(design, np.column_stack(expected), atol=1e-12)
    again = encoder.transform(frame.iloc[::-1], 50).matrix
    np.testing.assert_allclose(again, design[::-1], atol=1e-12)
    whole = frame.assign(b=[5] * 50)  # values of new rows may be integers
    assert encoder.transform(whole, 50).matrix.shape == design.shape
    with pytest.raises(
        ValueError,
        match="must be a frame of labels and floats, as it was in fit; got floats in 'b'",
    ):
        encoder.transform(frame[["b"]], 50)
    with pytest.raises(ValueError, match="the label 'w' at row 3"):
        encoder.transform(frame.assign(a=["x", "y", "z", *"w" * 47]), 50)


@pytest.mark.parametrize("known", [5, np.zeros((3, 1, 1), int), []], ids=["0-d", "3-d", "empty"])
def test_wrong_shapes_are_refused(known):
    with pytest.raises(ValueError, match="1-D labels or a 2-D array"):
        DesignEncoder().fit(known, 3)


def test_unseen_label_is_named():
    encoder = DesignEncoder()
    encoder.fit(["a", "b", "a"], 3)
    with pytest.raises(ValueError, match=r"label 'q' at row 1.*the fit had 'a', 'b'"):
        encoder.transform(["b", "q"], 2)
    encoder.fit(np.array([4, 5, 6]), 3)
    with pytest.raises(ValueError, match="label 9 at row 2"):
        encoder.transform(np.array([4, 4, 9, 10]), 4)


def test_unseen_combination_is_named():
    encoder = DesignEncoder()
    encoder.fit(np.array([["a", "x"], ["b", "y"]]), 2)
    with pytest.raises(ValueError, match="combination of labels at row 1"):
        encoder.transform(np.array([["a", "x"], ["a", "y"]]), 2)
    with pytest.raises(ValueError, match=r"label 'z' at row 0"):
        encoder.transform(np.array([["a", "z"]]), 1)
    with pytest.raises(ValueError, match="known has 1 labelings; the fit had 2"):
        encoder.transform(["a", "b"], 2)


def test_unseen_combination_names_its_labels():
    encoder = DesignEncoder()
    encoder.fit(np.array([["a", "x"], ["b", "y"]]), 2)
    with pytest.raises(ValueError, match=r"'a'.*'y'"):
        encoder.transform(np.array([["a", "x"], ["a", "y"]]), 2)


def test_new_groups_may_follow_the_groups_of_the_fit():
    encoder = DesignEncoder()
    encoder.fit(np.array([4, 5, 6]), 3)
    design = encoder.transform(np.array([4, 9, 6, 7, 9]), 5, new_groups=True)
    assert design.codes.tolist() == [0, 3, 2, 4, 3]
    encoder.fit(np.array([["a", "x"], ["b", "y"]]), 2)
    labels = np.array([["b", "y"], ["a", "y"], ["c", "x"], ["a", "y"], ["a", "x"]])
    assert encoder.transform(labels, 5, new_groups=True).codes.tolist() == [1, 2, 3, 2, 0]
    # Labels of new samples are forgotten.
    with pytest.raises(ValueError, match="label 'c' at row 2"):
        encoder.transform(labels, 5)


def test_known_is_required_where_it_was_fitted():
    encoder = DesignEncoder()
    encoder.fit([0, 1], 2)
    with pytest.raises(ValueError, match="known is required to predict"):
        encoder.transform(None, 2)


def test_refitting_forgets():
    encoder = DesignEncoder()
    encoder.fit(Memberships(np.eye(2)), 2)
    encoder.fit([["a", "x"], ["b", "y"]], 2)
    groups = encoder.fit(["u", "v", "u"], 3)
    assert groups.n_groups == 2
    np.testing.assert_array_equal(encoder.transform(["v", "u"], 2).codes, [1, 0])
    encoder.fit(None, 3)
    assert encoder.transform(None, 3).n_groups == 1


class TestMemberships:
    def test_round_trip(self):
        z = np.array([[0.2, 0.8, 0], [1, 0, 0]])
        encoder = DesignEncoder()
        groups = encoder.fit(Memberships(z.tolist()), 2)
        assert isinstance(groups, Design)
        assert groups.n_groups == 3 and groups.n_hard_groups == 1
        np.testing.assert_array_equal(groups.memberships, z)
        np.testing.assert_array_equal(groups.codes, [0, 0])
        np.testing.assert_array_equal(encoder.transform(Memberships(z[:1]), 1).memberships, z[:1])

    def test_other_kinds_are_refused_later(self):
        encoder = DesignEncoder()
        encoder.fit(Memberships(np.eye(2)), 2)
        with pytest.raises(ValueError, match="must be Memberships, as it was in fit; got labels"):
            encoder.transform([0, 1], 2)
        with pytest.raises(ValueError, match="known is required to predict"):
            encoder.transform(None, 2)
        with pytest.raises(ValueError, match="known has 3 groups; the fit had 2"):
            encoder.transform(Memberships(np.eye(3)), 3)
        encoder.fit([0, 1], 2)
        with pytest.raises(ValueError, match="must be labels, as it was in fit; got soft member"):
            encoder.transform(Memberships(np.eye(2)), 2)

    @pytest.mark.parametrize(
        "z",
        [
            [[0.5, 0.6]],
            [[0.5, 0.4]],
            [[-0.1, 1.1]],
            [[np.nan, 1.0]],
            [[np.inf, 0.0]],
            [[1.0, 0.0], [0.5, 0.500002]],
        ],
    )
    def test_not_probabilities(self, z):
        with pytest.raises(ValueError, match="must be probabilities"):
            Memberships(z)

    @pytest.mark.parametrize("z", [[0.5, 0.5], 1.0, np.zeros((2, 2, 2))])
    def test_shapes(self, z):
        with pytest.raises(ValueError, match="must be a 2-D array"):
            Memberships(z)

    def test_rounding_is_allowed(self):
        z = np.full((1, 3), 1 / 3, np.float32)
        np.testing.assert_allclose(Memberships(z).probabilities.sum(1), 1, atol=1e-6)


class TestDesign:
    @pytest.mark.parametrize(
        "known",
        [
            np.array([[1.0, 20.0], [2.0, 10.0], [6.0, 30.0]]),
            np.array([[1, 20], [2, 10], [6, 30]], np.float32),
            [[1.0, 20], [2, 10], [6, 30]],
            pd.DataFrame({"a": [1.0, 2.0, 6.0], "b": [20.0, 10.0, 30.0]}, index=[5, 3, 9]),
            pd.DataFrame({"a": [1.0, 2, 6], "b": [20.0, 10, 30]}, dtype="Float64"),
        ],
        ids=["array", "float32", "list", "frame", "nullable"],
    )
    def test_continuous_columns_are_standardised(self, known):
        encoder = DesignEncoder("product")
        fit = encoder.fit(known, 3)
        assert fit.kind == "continuous"
        design = fit.matrix
        np.testing.assert_array_equal(design[:, 0], 1)
        np.testing.assert_allclose(design[:, 1:].mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(design[:, 1:].std(0), 1)
        np.testing.assert_array_equal(encoder.transform(known, 3).matrix, design)
        # New rows are standardised by the fit.
        np.testing.assert_allclose(
            encoder.transform([[3.0, 20.0]], 1).matrix, [[1, 0, 0]], atol=1e-12
        )

    @pytest.mark.parametrize(
        ("known", "kind"),
        [
            (None, "nothing"), ([0.1, 0.2, 0.3], "labels"), (np.zeros((3, 2), int), "labels"),
            (np.array([["a"], ["b"], ["c"]]), "labels"), (Memberships(np.eye(3)), "soft"),
            (pd.Series([0.1, 0.2, 0.3]), "labels"),
        ],
        ids=lambda known: type(known).__name__,
    )  # fmt: skip
    def test_labels_are_not_continuous(self, known, kind):
        design = DesignEncoder("product").fit(known, 3)
        assert design.kind == kind and design.columns is None

    def test_indicators_leave_one_out(self):
        encoder = DesignEncoder("additive")
        known = np.array([["b", "x"], ["a", "x"], ["c", "y"], ["b", "y"]])
        exact = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 1], [1, 0, 0, 1]]
        np.testing.assert_array_equal(encoder.fit(known, 4).matrix, exact)
        assert np.linalg.matrix_rank(np.array(exact)) == 4
        np.testing.assert_array_equal(encoder.transform([["a", "y"]], 1).matrix, [[1, 1, 0, 1]])
        with pytest.raises(ValueError, match=r"label 'q' at row 0.*the fit had 'x', 'y'"):
            encoder.transform([["a", "q"]], 1)
        with pytest.raises(ValueError, match="known has 1 labelings; the fit had 2"):
            encoder.transform(["a"], 1)
        full = DesignEncoder("additive", drop_first=False).fit(known, 4)
        np.testing.assert_array_equal(full.columns[:, [1, 2, 4]], np.array(exact)[:, 1:])
        np.testing.assert_array_equal(full.columns[:, :3].sum(1), 1)

    def test_constant_columns_are_dropped(self):
        encoder = DesignEncoder("additive")
        with pytest.warns(UserWarning, match=r"constant columns.*\[0, 2\]"):
            design = encoder.fit([[0.1, 1.0, 3], [0.1, 2.0, 3], [0.1, 3.0, 3]], 3).matrix
        assert design.shape == (3, 2)
        result = encoder.transform([[7.0, 2.0, 9.0]], 1).matrix
        np.testing.assert_allclose(result, [[1, 0]], atol=1e-12)
        with pytest.warns(UserWarning, match=r"constant columns.*\[1\]"):
            assert encoder.fit([["a", "x"], ["b", "x"]], 2).matrix.shape == (2, 2)
        for known in ([[0.1], [0.1], [0.1]], [["a"], ["a"], ["a"]]):
            with pytest.raises(ValueError, match="only constant columns"):
                encoder.fit(known, 3)
        # A small standard deviation about a large mean counts as variation.
        assert encoder.fit([[1e8], [1e8 + 1]], 2).matrix.shape == (2, 2)

    def test_bad_columns_are_refused(self):
        encoder = DesignEncoder("additive")
        with pytest.raises(ValueError, match="found nan at row 1, column 0"):
            encoder.fit([[0.1, 0.2], [np.nan, 0.3]], 2)
        with pytest.raises(ValueError, match="found inf at row 0, column 1"):
            encoder.fit([[0.1, np.inf], [0.2, 0.3]], 2)
        missing = pd.DataFrame({"a": pd.array([0.1, pd.NA], "Float64")})
        with pytest.raises(ValueError, match="found nan at row 1, column 'a'"):
            encoder.fit(missing, 2)
        with pytest.raises(ValueError, match="known has 2 labels for 3 samples"):
            encoder.fit([[0.1], [0.2]], 3)
        encoder.fit([[0.1], [0.2]], 2)
        with pytest.raises(ValueError, match="known has 2 columns; the fit had 1"):
            encoder.transform([[0.1, 0.2]], 1)
        with pytest.raises(ValueError, match="known is required to predict"):
            encoder.transform(None, 1)
        with pytest.raises(ValueError, match="must be continuous, as it was in fit"):
            encoder.transform([0, 1], 2)


@pytest.mark.parametrize(
    "model",
    [
        CCIB(2),
        CCIB(2, multi="additive"),
        CMBC(2, multi="additive"),
        CondEns(2),
        ConditionalMixture(2, balance=0.1, categorical=[], ordered=[]),
        ResidualSpectral(2, multi="additive"),
    ],
    ids=lambda model: type(model).__name__,
)
def test_what_is_known_is_read_once(model, monkeypatch):
    X, labels = make_binary_partitions(60, (4, 3, 3), random_state=0)
    read = []
    original = module._read_known
    monkeypatch.setattr(module, "_read_known", lambda *a: read.append(a[0]) or original(*a))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.prepare(X, None, known=labels[:, :2])
    assert sum(known is not None for known in read) == 1
