"""The number of clusters by held-out rows, and estimators that choose it themselves."""

import numpy as np
import pytest
from remembering import Remembering
from sklearn.base import clone

from nrprob import CCIB, ConditionalMixture, MixtureEM, evidence, explore, stored

N = 61
Z = np.arange(N) % 2
NOISE = np.random.default_rng(0).normal(size=(N, 2))
THREE = NOISE + 9 * np.array([[0, 0], [1, 0], [0, 1]])[np.arange(N) % 3] + 5 * Z[:, None]
MODEL = ConditionalMixture("auto", n_init=2, weights="uniform", random_state=0)


@pytest.fixture(scope="module")
def three():
    return clone(MODEL).fit(THREE, known=Z)


def test_three_are_found_and_one_where_there_are_none(three):
    assert three.n_clusters == "auto" and three.n_clusters_ == 3
    result = three.number_
    assert result.n_clusters_ == 3 and result.tried_.tolist() == [1, 2, 3, 4, 5]
    assert repr(result) == "<NumberOfClusters: 3 (of 1, 2, 3, 4, 5)>"
    table = result.table
    assert table.below_best[3] == 0 and (table.below_best.drop(3) > 0).all()
    np.testing.assert_allclose(table.log_likelihood, result.log_likelihood_.mean(1))
    rows = np.random.default_rng(1).normal(size=(N, 2))
    assert evidence.n_clusters(MODEL, rows, known=Z, random_state=0).n_clusters_ == 1


def test_fit_names_a_smaller_number_within_one_standard_error(monkeypatch):
    noise = 0.1 * np.random.default_rng(0).normal(size=(4, N))
    noise -= noise.mean(1, keepdims=True)

    def selected(means):
        values = noise + np.array(means)[:, None]
        return evidence.NumberOfClusters(4, np.arange(1, 5), values, None, np.arange(N))

    assert selected([-3, -2, -1.5, -1]).smallest_within_error == 4
    close = selected([-3, -1.001, -1.5, -1])
    assert close.smallest_within_error == 2
    monkeypatch.setattr("nrprob.evidence.model_selection.n_clusters", lambda *_, **__: close)
    with pytest.warns(UserWarning, match="^2 clusters predict .* nearly as well as 4"):
        clone(MODEL).fit(THREE, known=Z)


def test_the_fit_is_that_of_the_number(three):
    same = clone(MODEL).set_params(n_clusters=3).fit(THREE, known=Z)
    np.testing.assert_array_equal(three.labels_, same.labels_)
    assert three.objective_ == same.objective_
    np.testing.assert_array_equal(
        three.predict_proba(THREE, known=Z), same.predict_proba(THREE, known=Z)
    )
    assert three.score(THREE, known=Z) == same.score(THREE, known=Z)
    three.set_params(n_clusters=2).fit(THREE, known=Z)
    assert not hasattr(three, "number_")
    three.set_params(n_clusters="auto")


def test_a_bar_is_shown_where_it_is_asked_for(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    evidence.n_clusters(Remembering(), NOISE, random_state=0)
    assert capsys.readouterr().err == ""
    evidence.n_clusters(Remembering(), NOISE, random_state=0, verbose=1)
    assert "choosing the number of clusters" in capsys.readouterr().err


def test_log_likelihoods_are_those_of_rows_held_out():
    """With an estimator that gives one density to samples of its fit, and another to all others."""
    result = evidence.n_clusters(Remembering(), NOISE, candidates=(2, 1), random_state=0)
    np.testing.assert_array_equal(result.log_likelihood_, np.full((2, N), [[-100.0], [-103.0]]))
    assert result.n_clusters_ == 1 and result.tried_.tolist() == [1, 2]
    with pytest.warns(UserWarning, match="got 2 clusters; pass larger candidates"):
        better = evidence.n_clusters(Remembering(unseen=200.0), NOISE, candidates=(1, 2))
    assert better.n_clusters_ == 2 and better.gain_.mean() > 0
    assert evidence.n_clusters(Remembering(), NOISE, candidates=[2]).gain_ is None


def test_more_clusters_than_rows_are_left_are_not_tried():
    result = evidence.n_clusters(Remembering(), NOISE[:12], candidates=(1, 8, 9), random_state=0)
    assert result.tried_.tolist() == [1, 8]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_clusters_that_follow_tails_are_one_component():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(N, 2)) / np.sqrt(rng.chisquare(1.5, size=N) / 1.5)[:, None]
    model = clone(MODEL).set_params(weights="free")
    result = evidence.n_clusters(model, X, known=Z, candidates=(1, 2, 3), random_state=0)
    assert result.log_likelihood_.mean(1).argmax() > 0  # by which there would be several
    assert result.gain_.mean() <= 0 and result.n_clusters_ == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CCIB("auto").fit(THREE), "needs a density, by which held-out rows"),
        (lambda: clone(MODEL).fit(THREE, np.where(Z, Z, -1)), "cannot use target labels"),
        (
            lambda: clone(MODEL).set_params(categorical=[]).fit(NOISE > 0),
            "clusters are tested in continuous features only",
        ),
        (lambda: clone(MODEL).prepare(THREE, None), "can choose n_clusters"),
        (lambda: ConditionalMixture("all").fit(THREE), "n_clusters must be one of 'auto'"),
        (lambda: evidence.n_clusters(MODEL, THREE, candidates=[]), "candidates must not be empty"),
        (lambda: evidence.n_clusters(MODEL, THREE, candidates=[0]), "candidates must be at least"),
        (lambda: explore(THREE, n_clusters="many"), "n_clusters must be one of 'auto'"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_stored_rows_are_refused():
    with pytest.raises(TypeError, match="n_clusters='auto' needs rows in memory"):
        clone(MODEL).fit(stored(THREE))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mixtures_find_theirs_and_exploring_goes_on_with_it():
    assert MixtureEM("auto", random_state=0).fit(THREE - 5 * Z[:, None]).n_clusters_ == 3
    result = explore(THREE, clone(MODEL), n_clusters="auto", known=Z, random_state=0)
    assert result.estimators_[0].n_clusters_ == 3
    assert result.evidence_[0].n_clusters == 3 and result.evidence_[0].p_structure_ < 1e-3
    none = evidence.test(clone(MODEL), NOISE, known=Z, n_splits=1, random_state=0)
    assert none.p_structure_ > 0.05
