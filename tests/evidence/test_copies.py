"""Exact copies of samples: detection, and that a set of copies counts as one sample."""

import numpy as np
import pandas as pd
import pytest
from remembering import Remembering
from sklearn.datasets import load_iris

from nrprob import ConditionalMixture, evidence, prepare
from nrprob.data.copies import Copies, unreported
from nrprob.evidence import bootstrap, held_out
from nrprob.evidence.inputs import TooFewRows

N = 61
Z = np.arange(N) % 2
NOISE = np.random.default_rng(0).normal(size=(N, 2))
APART = NOISE + 9 * (np.arange(N) // 2 % 2)[:, None] + 5 * Z[:, None]
MODEL = ConditionalMixture(2, n_init=2, weights="uniform", random_state=0)
MANY = pytest.mark.filterwarnings("ignore:samples are exact copies")


def n_copies(rows):
    return len(rows) - Copies.from_samples(rows, np.zeros(len(rows), int)).first.size


def test_copies_agree_in_all_features_and_in_the_known_group():
    rows = np.array([[2.0, 0.0], [1.0, 3.0], [2.0, -0.0], [1.0, 3.0], [2.0, 0.0], [2.0, 3.0]])
    result = Copies.from_samples(rows, np.array([0, 0, 0, 1, 0, 0]))
    np.testing.assert_array_equal(result.first, [0, 1, 3, 5])
    np.testing.assert_array_equal(result.set_index, [0, 1, 0, 2, 0, 3])
    for dtype in (np.float32, np.float64):
        own = NOISE.astype(dtype)
        assert n_copies(own) == 0 and n_copies(np.repeat(own, 3, axis=0)) == 2 * N
        assert n_copies(np.asfortranarray(np.repeat(own, 3, axis=0))) == 2 * N


@pytest.mark.parametrize("m", [1, 2])
def test_values_that_agree_by_rounding_are_no_copies(m):
    rows = np.random.default_rng(m).normal(size=(1000, m)).round(1)
    assert len(np.unique(rows, axis=0)) < 800
    assert n_copies(rows) == 0
    # In rounded data, more rows agree than rounding explains if they are repeated.
    iris = load_iris().data
    assert n_copies(iris) <= 1 and n_copies(np.tile(iris, (2, 1))) >= len(iris)


@MANY
def test_no_copy_is_held_out_from_a_fit_that_has_seen_it():
    """Use an estimator whose density is high on samples of its fit, and low on others."""
    result = evidence.test(Remembering(), np.tile(NOISE, (3, 1)), random_state=0)
    assert result.p_by_null_model_["one cluster of the same estimator"] > 0.999
    number = evidence.n_clusters(Remembering(), np.tile(NOISE, (3, 1)), candidates=(1, 2))
    assert number.n_clusters_ == 1


def test_p_values_are_those_of_the_distinct_samples():
    once = evidence.test(MODEL, NOISE, known=Z, n_splits=2, random_state=0)
    copied = np.tile(NOISE, (10, 1)), np.tile(Z, 10)
    with pytest.warns(UserWarning, match="got 549 copies among 610 samples; drop the copies"):
        result = evidence.test(MODEL, copied[0], known=copied[1], n_splits=2, random_state=0)
    assert result.p_structure_ == pytest.approx(once.p_structure_) and once.p_structure_ > 0.05
    assert result.p_gap_ == pytest.approx(once.p_gap_)
    np.testing.assert_array_equal(result.distinct_, np.arange(N))
    for name in ("gain_", "labels_", "discriminant_score_", "groups_"):
        np.testing.assert_allclose(getattr(result, name), np.tile(getattr(once, name), 10))
    np.testing.assert_array_equal(result.gap_counts_, once.gap_counts_)
    assert "2 clusters, 61 distinct samples of 610 held out in " in str(result)
    assert "2 clusters, 61 samples held out in " in str(once)


def test_standard_errors_of_the_number_of_clusters_count_copies_once():
    asked = {"candidates": (1, 2, 3), "random_state": 0}
    once = evidence.n_clusters(MODEL, APART, known=Z, **asked)
    copied = np.repeat(np.arange(N), np.where(np.arange(N) < 20, 4, 1))
    with pytest.warns(UserWarning, match="got 60 copies among 121 samples"):
        result = evidence.n_clusters(MODEL, APART[copied], known=Z[copied], **asked)
    assert result.n_clusters_ == once.n_clusters_
    np.testing.assert_allclose(result.table, once.table, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(result.log_likelihood_, once.log_likelihood_[:, copied])
    np.testing.assert_allclose(result.gain_, once.gain_[copied])


def test_confidence_resamples_the_distinct_samples(monkeypatch):
    calls = []

    def refit(estimator, X, codes, indices, **settings):
        calls.append(indices)
        return held_out.refit_subset(estimator, X, codes, indices, **settings)

    monkeypatch.setattr(bootstrap, "refit_subset", refit)
    tested = evidence.test(MODEL, APART, known=Z, n_splits=1, random_state=0)
    X, known = np.repeat(APART, 2, axis=0), np.repeat(Z, 2)
    with pytest.warns(UserWarning, match="got 61 copies among 122 samples"):
        sure = evidence.confidence(
            MODEL, X, known=known, evidence=tested, n_resamples=3, random_state=0
        )
    assert sure.samples_.shape == (2 * N,) and sure.samples_.min() > 0.99
    for indices in calls:
        assert indices.size == N and (indices % 2 == 0).all()
        np.testing.assert_array_equal(np.bincount(known[indices]), np.bincount(Z))


def test_copies_are_reported_once():
    """The command line prints the note of `prepare`, or else the warning of the test."""
    rows = np.repeat(np.random.default_rng(0).normal(size=(30, 2)), 2, axis=0)
    with pytest.warns(UserWarning) as warned:
        Copies.from_samples(rows, np.zeros(60, int)).warn_if_many()
    messages = [str(warning.message) for warning in warned] + ["another warning"]
    notes = prepare(pd.DataFrame(rows, columns=["a", "b"])).notes
    assert unreported(messages, notes) == ["another warning"]
    assert unreported(messages, ["another note"]) == messages


@pytest.mark.parametrize(("copies", "warned"), [(5, True), (4, False)])
def test_five_percent_of_copies_are_many(copies, warned, recwarn):
    rows = np.random.default_rng(0).normal(size=(100 - copies, 2))
    rows = np.concatenate([rows, rows[:copies]])
    evidence.n_clusters(Remembering(), rows, candidates=[1], random_state=0)
    messages = [str(warning.message) for warning in recwarn]
    assert [line.startswith("samples are exact copies") for line in messages] == [True] * warned
    if warned:
        assert recwarn[0].filename == __file__


def test_groups_need_distinct_samples():
    rows = np.where(Z[:, None], NOISE, NOISE[np.arange(N) % 8])
    with pytest.raises(TooFewRows, match="got a smallest group of 4 rows .* copies are counted on"):
        evidence.test(MODEL, rows, known=Z)
