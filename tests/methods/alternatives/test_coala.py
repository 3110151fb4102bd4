"""COALA agrees with a brute-force search, and with average linkage."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, is_valid_linkage, linkage
from scipy.spatial.distance import cdist
from sklearn.metrics import adjusted_rand_score

from nrprob import COALA, DegenerateClusterWarning
from nrprob.datasets import make_planar_shapes
from nrprob.metrics import pair_f_measure


def same(a, b):
    return adjusted_rand_score(a, b) == 1


def brute_force(X, known, omega):
    """Distance of every merge, and the clusters after it."""
    clusters = [[i] for i in range(len(X))]
    between = cdist(X, X)
    result = []
    while len(clusters) > 1:
        closest = allowed = (np.inf, None)
        for i, a in enumerate(clusters):
            for j, b in enumerate(clusters[:i]):
                distance = between[np.ix_(a, b)].mean(), (j, i)
                closest = min(closest, distance)
                if not any((known[p] == known[q]).any() for p in a for q in b):
                    allowed = min(allowed, distance)
        forced = closest[0] < omega * allowed[0]
        height, (j, i) = closest if forced else allowed
        clusters[j] = clusters[j] + clusters.pop(i)
        labels = np.empty(len(X), int)
        for c, members in enumerate(clusters):
            labels[members] = c
        result.append((height, forced, labels))
    return result


@pytest.mark.parametrize(("seed", "omega", "m"), [(0, 0.6, 1), (1, 0.9, 2), (2, 1e-6, 1)])
def test_every_merge_is_that_of_a_search_by_brute_force(seed, omega, m):
    rng = np.random.default_rng(seed)
    X, known = rng.normal(size=(24, 2)), rng.integers(4, size=(24, m))
    model = COALA(2, omega=omega).fit(X, known=known)
    expected = brute_force(X, known, omega)
    np.testing.assert_allclose(model.merge_distances_, [height for height, *_ in expected])
    for k, (*_, labels) in zip(range(23, 0, -1), expected, strict=True):
        assert same(model.cut(k), labels)
        assert same(fcluster(model.linkage_, k, "maxclust"), labels)
    assert is_valid_linkage(model.linkage_)
    assert 0 < model.n_forced_ == sum(forced for _, forced, _ in expected[:22]) < 22
    pairs = model.labels_[:, None] == model.labels_
    assert model.objective_ == pytest.approx(cdist(X, X)[pairs].sum() / 2)
    assert model.objective_trace_[-1] == model.objective_ and len(model.objective_trace_) == 23


def test_without_weight_or_pairs_it_is_average_linkage():
    X, labels = make_planar_shapes(60, random_state=0)
    average = linkage(X, "average")
    fits = [
        COALA(3, omega=1.0).fit(X, known=labels[:, 0]),
        COALA(3, omega=0.2).fit(X),
    ]
    with pytest.warns(DegenerateClusterWarning, match="every row has its own known group"):
        fits.append(COALA(3, omega=0.2).fit(X, known=np.arange(60)))
    with pytest.warns(DegenerateClusterWarning, match="a constant labeling"):
        fits.append(COALA(3, omega=0.2).fit(X, known=np.zeros(60)))
    for model in fits:
        np.testing.assert_allclose(model.merge_distances_, average[:, 2])
        np.testing.assert_array_equal(model.linkage_[:, [0, 1, 3]], average[:, [0, 1, 3]])
        assert same(model.labels_, fcluster(average, 3, "maxclust"))
    assert fits[1].n_forced_ == 0


def test_what_changes_nothing():
    X, labels = make_planar_shapes(60, random_state=2)
    model = COALA(2).fit(X, known=labels[:, 0])
    assert same(model.labels_, labels[:, 1])
    order = np.random.default_rng(0).permutation(60)
    assert same(COALA(2).fit(X[order], known=labels[order, 0]).labels_, model.labels_[order])
    scaled = COALA(2).fit(100 * X + 3, known=labels[:, 0])
    assert (scaled.linkage_ == model.linkage_).all()
    np.testing.assert_allclose(scaled.merge_distances_, 100 * model.merge_distances_)
    narrow = COALA(2).fit(X.astype(np.float32), known=labels[:, 0])
    assert (narrow.labels_ == model.labels_).all()


def test_new_rows_go_to_the_cluster_that_is_near_on_average():
    X, labels = make_planar_shapes(60, random_state=0)
    model = COALA(3).fit(X, known=labels[:, 0])
    new = np.random.default_rng(0).normal(size=(20, 2)) * 4
    distance = [cdist(new, X[model.labels_ == c]).mean(1) for c in range(3)]
    assert (model.predict(new) == np.argmin(distance, 0)).all()
    sampled = COALA(2, approx="subsample", n_subsample=60, random_state=0)
    X, labels = make_planar_shapes(600, random_state=0)
    sampled.fit(X, known=labels[:, 0])
    assert pair_f_measure(sampled.labels_, labels[:, 1]) > 0.95


def test_rows_alike_and_parameters():
    with pytest.warns(DegenerateClusterWarning, match="all rows are alike"):
        model = COALA(2).fit(np.ones((6, 2)), known=np.arange(6) % 2)
    assert model.n_clusters_ == 2 and model.objective_ == 0
    assert COALA(2).fit([[0.0], [1.0]]).labels_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="omega must be at least"):
        COALA(2, omega=0.0).fit(np.eye(4))


# F as printed, and our approximation. On the ring of six blobs, 0.53 is printed and ours is about
# 1: no ring that NACI solves, as printed, is this hard for COALA.
PUBLISHED = {"blobs": (1.0, 0.05), "crescents": (0.79, 0.05), "rings": (0.58, 0.07)}


@pytest.mark.slow
@pytest.mark.parametrize("shape", PUBLISHED)
def test_the_published_f_measure(shape):
    scores = []
    for seed in range(20):
        X, labels = make_planar_shapes(800, shape, random_state=seed)
        model = COALA(2).fit(X.astype(np.float32), known=labels[:, 0])
        scores.append(pair_f_measure(model.labels_, labels[:, 1]))
    printed, near = PUBLISHED[shape]
    assert abs(np.mean(scores) - printed) <= near
