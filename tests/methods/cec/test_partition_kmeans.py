"""k-means with labels as features: comparison with an enumeration, and limiting cases."""

import itertools
import warnings

import numpy as np
import pytest
from sklearn.cluster import KMeans

from nrprob import DegenerateClusterWarning, PartitionKMeans

N, K = 8, 3


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(N, 2)) * 100


def cost(X, y, z, strength):
    """The objective from its definition."""
    total, weight = 0.0, strength * X.var(0).sum()
    classes = np.unique(y[y >= 0])
    for c in np.unique(z):
        total += ((X[z == c] - X[z == c].mean(0)) ** 2).sum()
        s = (y[(z == c) & (y >= 0)][:, None] == classes).astype(float)
        if len(s):
            total += weight * ((s - s.mean(0)) ** 2).sum()
    return total


@pytest.mark.parametrize("strength", [0.0, 0.3, 100.0])
def test_the_best_of_many_is_the_best_of_all(X, strength):
    y = np.array([0, 1, -1, 1, 0, -1, -1, 0])
    every = [np.array(z) for z in itertools.product(range(K), repeat=N)]
    best = min(cost(X, y, z, strength) for z in every)
    model = PartitionKMeans(K, strength=strength, n_init=100, random_state=0).fit(X, y)
    assert model.objective_ == pytest.approx(best)
    assert model.objective_ == pytest.approx(cost(X, y, model.labels_, strength))
    assert np.diff(model.objective_trace_).max(initial=0) <= 1e-9 * best
    for c in range(K):
        np.testing.assert_allclose(model.cluster_centers_[c], X[model.labels_ == c].mean(0))
        own = y[(model.labels_ == c) & (y >= 0)]
        shares = [(own == j).mean() if len(own) else 0.0 for j in (0, 1)]
        np.testing.assert_allclose(model.label_shares_[c], shares)


def test_a_great_strength_leaves_no_cluster_of_two_classes(X):
    y = np.array(list("abababab"))
    model = PartitionKMeans(K, strength=1e6, n_init=100, random_state=0).fit(X, y)
    assert not set(model.labels_[y == "a"]) & set(model.labels_[y == "b"])
    assert model.classes_.tolist() == ["a", "b"]
    assert (model.label_shares_[:2] == np.eye(2)).all()  # clusters are matched to classes
    best = int(model.restarts_.objective.values.argmin())
    assert (model.restarts_.labels[best] == model.labels_).all()


def test_without_labels_it_is_kmeans(X):
    model = PartitionKMeans(K, n_init=100, random_state=0).fit(X, np.full(N, -1))
    assert model.objective_ == pytest.approx(KMeans(K, n_init=20, random_state=0).fit(X).inertia_)
    assert not hasattr(model, "classes_") and model.label_shares_.shape == (K, 0)
    assert (model.predict(X) == model.labels_).all()


def test_units_do_not_matter(X):
    y = np.array([0, 1, -1, 1, 0, -1, -1, 0])
    one, other = (PartitionKMeans(K, n_init=100, random_state=0).fit(X * s, y) for s in (1, 1e-7))
    assert (one.labels_ == other.labels_).all()
    assert other.objective_ == pytest.approx(1e-14 * one.objective_)


def test_more_classes_than_clusters_share_them(X):
    y = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = PartitionKMeans(2, strength=1e6, n_init=100, random_state=0).fit(X, y)
    assert (model.labels_[:4] == model.labels_[4:]).all()
    assert model.label_shares_.shape == (2, 4)


def test_duplicates_and_one_row(X):
    with pytest.warns(DegenerateClusterWarning, match="found 2 clusters"):
        model = PartitionKMeans(K, n_init=100, random_state=0).fit(X[np.arange(N) % 2])
    assert model.objective_ == pytest.approx(0, abs=1e-20)
    with pytest.warns(DegenerateClusterWarning, match="all rows are alike"):
        PartitionKMeans(K, n_init=100, random_state=0).fit(np.ones((N, 2)), np.arange(N) % 2)
    one = PartitionKMeans(1, n_init=1).fit(X[:1], ["a"])
    assert one.labels_.tolist() == [0] and one.label_shares_.tolist() == [[1.0]]
