"""Confidence of rows: its parts agree with their definitions, and it is calibrated."""

import numpy as np
import pytest
from remembering import Remembering
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from nrprob import ConditionalMixture, MixtureEM, evidence
from nrprob.evidence import bootstrap, held_out

N = 61
Z = np.arange(N) % 2
NOISE = np.random.default_rng(0).normal(size=(N, 2))
C = np.arange(N) // 2 % 2
APART = NOISE + 12 * C[:, None] + 5 * Z[:, None]
MODEL = ConditionalMixture(2, effects="subtract", weights="uniform", n_init=3, random_state=0)


@pytest.fixture(scope="module")
def tested():
    return evidence.test(MODEL, APART, known=Z, n_splits=1, n_init=2, random_state=0)


def test_resamples_are_of_every_group_what_it_has():
    indices = bootstrap._resample_within_groups(
        np.array([0, 1, 0, 2, 1, 0]), np.random.RandomState(0)
    )
    np.testing.assert_array_equal(np.bincount(np.array([0, 1, 0, 2, 1, 0])[indices]), [3, 2, 1])
    assert len(np.unique(bootstrap._resample_within_groups(Z, np.random.RandomState(0)))) < N


def test_where_nothing_is_resampled_it_is_the_fit(tested, monkeypatch):
    monkeypatch.setattr(
        bootstrap, "_resample_within_groups", lambda groups, random: np.arange(groups.size)
    )
    near = NOISE + 3 * C[:, None]
    model = clone(MODEL).fit(near, known=Z)
    sure = evidence.confidence(model, near, known=Z, evidence=tested, n_resamples=2)
    expected = model.predict_proba(near, known=Z)
    np.testing.assert_allclose(sure.membership_, expected, atol=5e-3)
    np.testing.assert_array_equal(sure.labels_, model.labels_)
    own = sure.membership_[np.arange(N), model.labels_]
    np.testing.assert_array_equal(sure.samples_, own)
    expected = [own[model.labels_ == c].mean() for c in range(2)]
    np.testing.assert_allclose(sure.clusters_, expected)
    np.testing.assert_allclose(sure.jaccard_, 1, atol=0.1)


def test_refits_are_to_resamples_and_start_from_the_clusters_too(tested, monkeypatch):
    calls = []

    def refit(estimator, X, codes, indices, **settings):
        calls.append((indices, settings["init"]))
        return held_out.refit_subset(estimator, X, codes, indices, **settings)

    monkeypatch.setattr(bootstrap, "refit_subset", refit)
    model = clone(MODEL).fit(APART, known=Z)
    evidence.confidence(model, APART, known=Z, evidence=tested, n_resamples=2, random_state=0)
    assert len(calls) == 2
    for indices, init in calls:
        assert len(np.unique(indices)) < N
        np.testing.assert_array_equal(np.bincount(Z[indices]), np.bincount(Z))
        np.testing.assert_array_equal(init, model.labels_[indices])


def test_far_apart_is_certain_and_said(tested):
    sure = evidence.confidence(
        MODEL, APART, known=Z, evidence=tested, n_resamples=4, random_state=0
    )
    assert sure.samples_.min() > 0.999 and sure.jaccard_.min() == pytest.approx(1)
    assert str(sure).startswith(
        "100 % of the samples are expected to be in the right cluster, 100 %"
    )
    assert sure.evidence_ is tested
    again = evidence.confidence(
        MODEL, APART, known=Z, evidence=tested, n_resamples=4, random_state=0
    )
    np.testing.assert_array_equal(sure.membership_, again.membership_)


def test_it_is_withheld_where_nothing_is_found():
    nothing = evidence.confidence(MODEL, NOISE, known=Z, n_resamples=2, random_state=0)
    assert nothing.samples_ is None and nothing.clusters_ is None and nothing.jaccard_ is None
    assert str(nothing).startswith("no confidence: no evidence of further structure")
    forced = evidence.confidence(
        MODEL, NOISE, known=Z, evidence=nothing.evidence_, n_resamples=2, force=True
    )
    assert forced.samples_.shape == (N,) and forced.withheld_ == ""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_that_cannot_be_tested_have_to_be_forced():
    ones = (APART > 6).astype(float)
    model = clone(MODEL).set_params(categorical=[], ordered=[])
    with pytest.raises(ValueError, match="in continuous features only; got binary values"):
        evidence.confidence(model, ones, known=Z)
    sure = evidence.confidence(model, ones, known=Z, force=True, n_resamples=2, random_state=0)
    assert sure.evidence_ is None and str(sure).endswith("without a significance test)")


def test_who_cannot_start_from_clusters_is_refused():
    with pytest.raises(TypeError, match="can start from labels; got Remembering"):
        evidence.confidence(Remembering(), NOISE)


@pytest.mark.parametrize("wrong", [{"n_resamples": 1}, {"n_init": 0}])
def test_refusals(wrong):
    with pytest.raises(ValueError, match="must be at least"):
        evidence.confidence(MODEL, APART, known=Z, **wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mixtures_start_from_their_clusters_too(tested):
    model = MixtureEM(2, covariance="spherical", n_init=2, random_state=0).fit(
        APART - 5 * Z[:, None]
    )
    sure = evidence.confidence(
        model, APART - 5 * Z[:, None], evidence=tested, n_resamples=2, random_state=0
    )
    assert sure.samples_.mean() > 0.999


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_is_right_where_one_fit_is_too_sure(tested):
    """At a distance of 2, confidence is 0.76 and accuracy 0.71, while one fit has 0.91."""
    reported, memberships, right = [], [], []
    for seed in range(8):
        rng = np.random.default_rng([8, seed])
        z, c = rng.integers(3, size=240), rng.integers(2, size=240)
        X = rng.normal(size=(240, 6))
        X[:, 0] += 2 * c
        X = X @ rng.normal(size=(6, 6)) + 4 * rng.normal(size=(3, 6))[z]
        model = ConditionalMixture(2, weights="uniform", n_init=12, random_state=seed).fit(
            X, known=z
        )
        result = evidence.confidence(model, X, known=z, evidence=tested, random_state=seed)
        table = np.zeros((2, 2))
        np.add.at(table, (model.labels_, c), 1)
        names = linear_sum_assignment(table, maximize=True)[1]
        right.append((names[model.labels_] == c).mean())
        reported.append(result.samples_.mean())
        memberships.append(model.membership_.max(1).mean())
    assert abs(np.mean(reported) - np.mean(right)) < 0.1
    assert np.mean(memberships) - np.mean(right) > 0.1
