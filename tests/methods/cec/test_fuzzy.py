"""Semi-supervised fuzzy c-means: stationary points of the objective, and limiting cases."""

import numpy as np
import pytest

from nrprob import DegenerateClusterWarning, SemiSupervisedFCM

N, M, K = 24, 3, 3
TRUTH = np.arange(N) % 3
QUICK = {"n_init": 3, "random_state": 0}


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(N, M)) + 2 * np.eye(3)[TRUTH]


@pytest.fixture
def y():
    return np.where(np.arange(N) < 7, TRUTH, -1)


def cost(u, centres, X, y, alpha):
    square = ((X[:, None] - centres) ** 2).sum(-1)
    wanted = (y[:, None] == np.arange(K)).astype(float)
    return (u**2 * square + alpha * (u - wanted) ** 2 * square).sum()


@pytest.mark.parametrize("alpha", [0.0, 2.5, "auto"])
def test_it_is_where_the_definition_is_stationary(X, y, alpha):
    model = SemiSupervisedFCM(K, alpha=alpha, tol=1e-10, **QUICK).fit(X, y)
    weight = model.alpha_
    assert weight == (N / 7 if alpha == "auto" else alpha)
    u, centres = model.membership_, model.cluster_centers_
    at = cost(u, centres, X, y, weight)
    assert model.objective_ == pytest.approx(at) and model.converged_
    assert np.diff(model.objective_trace_).max() <= 1e-12 * at
    np.testing.assert_allclose(u.sum(1), 1)
    assert (u >= 0).all()
    h = 1e-5
    for c in range(K):
        for j in range(M):
            step = h * (np.arange(K)[:, None] == c) * (np.arange(M) == j)
            up, down = (cost(u, centres + s, X, y, weight) for s in (step, -step))
            assert abs(up - down) / (2 * h) < 1e-5 * at and min(up, down) > at
    # Along the directions in which rows of memberships keep their sum.
    for i in range(N):
        step = h * (np.arange(N)[:, None] == i) * (np.eye(K)[0] - np.eye(K)[1])
        up, down = (cost(u + s, centres, X, y, weight) for s in (step, -step))
        assert abs(up - down) / (2 * h) < 1e-5 * at and min(up, down) > at


def test_a_great_weight_fixes_the_memberships_of_labelled_rows(X, y):
    model = SemiSupervisedFCM(K, alpha=1e9, **QUICK).fit(X, y)
    np.testing.assert_allclose(model.membership_[y >= 0], np.eye(K)[y[y >= 0]], atol=1e-8)
    assert (model.labels_[y >= 0] == y[y >= 0]).all()


def test_without_labels_it_is_fuzzy_cmeans(X):
    model = SemiSupervisedFCM(K, tol=1e-10, **QUICK).fit(X)
    assert model.alpha_ == 0
    np.testing.assert_allclose(model.predict_proba(X), model.membership_, atol=1e-6)
    weight = model.membership_**2
    centres = weight.T @ X / weight.sum(0)[:, None]
    np.testing.assert_allclose(model.cluster_centers_, centres, atol=1e-6)


def test_classes_name_the_clusters_and_others_are_free(X):
    y = np.where(np.arange(N) < 12, np.array([7, -1, 3])[TRUTH], -1)
    model = SemiSupervisedFCM(K, **QUICK).fit(X + 6 * np.eye(3)[TRUTH], y)
    assert model.classes_.tolist() == [3, 7]
    assert (model.labels_ == np.array([1, 2, 0])[TRUTH]).all()
    with pytest.raises(ValueError, match="y has 4 classes, more than n_clusters=3"):
        SemiSupervisedFCM(K, **QUICK).fit(X, np.where(np.arange(N) < 4, np.arange(N), -1))


def test_all_rows_labelled_duplicates_and_one_row(X):
    model = SemiSupervisedFCM(K, **QUICK).fit(X, TRUTH)
    assert model.alpha_ == 1 and (model.labels_ == TRUTH).all()
    twins = SemiSupervisedFCM(K, **QUICK).fit(X[np.arange(N) % 3])
    assert twins.objective_ == pytest.approx(0, abs=1e-9) and twins.n_clusters_ == 3
    with pytest.warns(DegenerateClusterWarning, match="all rows are alike"):
        SemiSupervisedFCM(K, **QUICK).fit(np.ones((N, M)))
    one = SemiSupervisedFCM(1, n_init=1).fit(X[:1], [5])
    assert one.membership_.tolist() == [[1.0]]
