"""Gaussian mixtures under links: comparison with the definition, and effects of links."""

import itertools
import warnings

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from slowly import first_fast

from nrprob import ConstrainedMixture, DegenerateClusterWarning
from nrprob.links import InfeasibleConstraints
from nrprob.methods.cec import link_posterior, must_link_components

# All data have one shape, so that few programs are compiled.
N, M = 24, 3
TRUTH = np.arange(N) % 3
QUICK = {"n_init": 3, "random_state": 0}
COVARIANCES = first_fast(["full", "diag", "spherical"])


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, M)) * [1.0, 2.0, 0.5] + 4 * np.eye(3)[TRUTH] * [1, 2, 0.5] + 10


def some(*rows):
    """Labels of the given rows, and -1 for all others."""
    return np.where(np.isin(np.arange(N), rows), TRUTH, -1)


def densities(model, X):
    """Log densities (n, k) of the components."""
    columns = []
    for mean, spread in zip(model.means_, model.covariances_, strict=True):
        wide = spread if np.ndim(spread) == 2 else np.diag(np.broadcast_to(spread, X.shape[1]))
        columns.append(multivariate_normal(mean, wide).logpdf(X))
    return np.stack(columns, 1)


def penalty(model, X):
    ridge = model.reg * X.var(0)
    return sum(
        0.5 * (np.linalg.inv(s) @ np.diag(ridge)).trace()
        if np.ndim(s) == 2
        else 0.5 * (ridge / np.broadcast_to(s, len(ridge))).sum()
        for s in model.covariances_
    )


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_objective_is_minus_the_log_probability_of_rows_and_links(X, covariance):
    y = some(0, 3, 1, 2)
    must, cannot = np.array([[4, 7]]), np.array([[4, 8], [8, 9]])
    model = ConstrainedMixture(3, covariance=covariance, **QUICK)
    model.fit(X, y, must_link=must, cannot_link=cannot)
    log_p = densities(model, X)
    log_weights = np.log(model.weights_)
    linked = [[0, 3], [1], [2], [4, 7], [8], [9]]
    scores = np.array([log_p[rows].sum(0) + log_weights for rows in linked])
    total = [
        scores[np.arange(6), z].sum()
        for z in itertools.product(range(3), repeat=6)
        if len({*z[:3]}) == 3 and z[3] != z[4] != z[5]
    ]
    alone = np.setdiff1d(np.arange(N), np.concatenate(linked))
    expected = -logsumexp(total) - logsumexp(log_p[alone] + log_weights, axis=1).sum()
    assert model.objective_ == pytest.approx(expected + penalty(model, X), rel=1e-9)
    assert model.objective_trace_[-1] == pytest.approx(model.objective_)
    assert np.diff(model.objective_trace_).max() <= 1e-9 and model.converged_
    posterior = log_p[alone] + log_weights
    posterior = np.exp(posterior - logsumexp(posterior, axis=1, keepdims=True))
    np.testing.assert_allclose(model.membership_[alone], posterior, atol=1e-9)
    np.testing.assert_allclose(model.predict_proba(X)[alone], posterior, atol=1e-9)
    assert (model.labels_[[0, 1, 2]] == [0, 1, 2]).all()  # clusters are matched to classes


def test_without_links_it_is_a_gaussian_mixture(X):
    model = ConstrainedMixture(3, tol=1e-12, **QUICK).fit(X)
    scores = densities(model, X) + np.log(model.weights_)
    expected = -logsumexp(scores, axis=1).sum() + penalty(model, X)
    assert model.objective_ == pytest.approx(expected, rel=1e-9)
    w = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
    np.testing.assert_allclose(model.membership_, w, atol=1e-9)
    # A fixed point of EM.
    np.testing.assert_allclose(model.weights_, w.mean(0), atol=1e-5)
    np.testing.assert_allclose(model.means_, w.T @ X / w.sum(0)[:, None], atol=1e-4)
    away = X[:, None] - model.means_
    scatter = np.einsum("nk,nkp,nkq->kpq", w, away, away) + np.diag(1e-3 * X.var(0))
    np.testing.assert_allclose(model.covariances_, scatter / w.sum(0)[:, None, None], atol=1e-4)
    assert (model.predict(X) == model.labels_).all()


@pytest.mark.slow
@pytest.mark.contract
def test_it_finds_what_scikit_learn_finds():
    X = np.random.default_rng(0).normal(size=(300, 2)) + 5 * np.eye(2)[np.arange(300) % 2]
    model = ConstrainedMixture(2, reg=0, tol=1e-12, **QUICK).fit(X)
    theirs = GaussianMixture(2, n_init=5, tol=1e-12, reg_covar=0, random_state=0).fit(X)
    assert model.objective_ == pytest.approx(-theirs.score(X) * 300, rel=1e-8)


def test_classes_of_all_rows_are_the_components(X):
    model = ConstrainedMixture(3, **QUICK).fit(X, np.array(["c", "a", "b"])[TRUTH])
    assert model.classes_.tolist() == ["a", "b", "c"]
    for c, name in enumerate((1, 2, 0)):
        own = X[name == TRUTH]
        assert (model.labels_[name == TRUTH] == c).all()
        np.testing.assert_allclose(model.means_[c], own.mean(0))
        ridge = np.diag(1e-3 * X.var(0)) / len(own)
        np.testing.assert_allclose(model.covariances_[c], np.cov(own.T, bias=True) + ridge)
    np.testing.assert_allclose(model.weights_, 1 / 3)  # of three units
    assert model.n_iter_ <= 2


@pytest.mark.slow
@pytest.mark.contract
def test_cannot_links_of_labels_leave_a_class_several_clusters(X):
    halves = np.where(TRUTH == 2, 1, 0)  # the first two clusters are one class
    model = ConstrainedMixture(3, links="cannot", **QUICK).fit(X, halves)
    apart = set(model.labels_[halves == 0]) & set(model.labels_[halves == 1])
    assert not apart and model.n_clusters_ == 3 and model.n_approximated_ == 0
    assert set(model.labels_[halves == 1]) == {model.labels_[2]}
    together = ConstrainedMixture(3, **QUICK).fit(X, halves)
    assert len(set(together.labels_[halves == 0])) == 1


def test_must_links_of_labels_may_join_more_classes_than_clusters(X):
    pairs = np.arange(N) // 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = ConstrainedMixture(2, links="must", **QUICK).fit(X, pairs)
    assert (model.labels_[::2] == model.labels_[1::2]).all()
    assert model.weights_.sum() == pytest.approx(1)
    few = np.where(np.arange(N) < 6, pairs, -1)
    with pytest.raises(ValueError, match="y has 3 classes, more than n_clusters=2"):
        ConstrainedMixture(2, **QUICK).fit(X, few)
    with pytest.warns(UserWarning, match="y labels every row and has 12 classes"):
        ConstrainedMixture(2, **QUICK).fit(X, pairs)


def test_links_bind_against_what_rows_say(X):
    must, cannot = np.array([[0, 1], [4, 5]]), np.array([[0, 3], [2, 5]])
    model = ConstrainedMixture(3, **QUICK).fit(X, must_link=must, cannot_link=cannot)
    z = model.labels_
    assert (z[must[:, 0]] == z[must[:, 1]]).all() and (z[cannot[:, 0]] != z[cannot[:, 1]]).all()
    together = np.einsum("pk,pk->p", *model.membership_[must].transpose(1, 0, 2))
    assert (together > 0.5).all()


def test_contradictory_links_are_refused(X):
    with pytest.raises(InfeasibleConstraints, match="contradict each other"):
        ConstrainedMixture(3, **QUICK).fit(X, some(0, 1), must_link=[[0, 1]])
    with pytest.raises(InfeasibleConstraints, match=r"cannot be satisfied with 2 cluster\(s\)"):
        ConstrainedMixture(2, **QUICK).fit(X, cannot_link=[[0, 1], [1, 2], [0, 2]])


@pytest.mark.slow
@pytest.mark.contract
def test_a_mean_field_keeps_the_links(X, monkeypatch):
    monkeypatch.setattr(must_link_components, "SETS", 0)
    monkeypatch.setattr(link_posterior, "LABELINGS", 100)
    model = ConstrainedMixture(3, links="cannot", max_iter=20, n_init=2, random_state=0)
    with pytest.warns(UserWarning, match="approximated by a mean field; got 24 units"):
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, np.arange(N) % 2)
    assert model.n_approximated_ == N
    assert not set(model.labels_[::2]) & set(model.labels_[1::2])
    np.testing.assert_allclose(model.membership_.sum(1), 1)


def test_duplicates_constant_columns_and_few_rows(X):
    X[:, 1] = 3.0
    X = X[np.arange(N) % 4]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ConstrainedMixture(3, **QUICK).fit(X)
    assert np.isfinite(model.objective_) and (model.means_[:, 1] == 3).all()
    assert not model.covariances_[:, 1].any() and not model.covariances_[:, :, 1].any()
    assert (model.predict(X)[4:] == model.predict(X)[:-4]).all()
    with pytest.warns(DegenerateClusterWarning, match="all rows are alike"):
        ConstrainedMixture(3, **QUICK).fit(np.ones((N, M)))


@pytest.mark.slow
@pytest.mark.contract
def test_one_row(X):
    one = ConstrainedMixture(1, n_init=1).fit(X[:1])
    assert one.labels_.tolist() == [0] and np.isfinite(one.objective_)
    np.testing.assert_allclose(one.means_, X[:1])
