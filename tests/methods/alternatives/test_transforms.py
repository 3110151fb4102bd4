"""Orthogonalization and ADFT: transformations by definition, and base clusterers."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.cluster import DBSCAN, AgglomerativeClustering, KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from nrprob import ADFT, DegenerateClusterWarning, Orthogonalization
from nrprob.known import Memberships
from nrprob.methods.alternatives.adft import (
    across_differences,
    invert_metric,
    learn_metric,
    within_scatter,
)

SEEN = []


class Spy(ClusterMixin, BaseEstimator):
    """Base that records its rows, and splits them by their first column."""

    def fit_predict(self, X, y=None):
        SEEN.append(X)
        return (X[:, 0] > 0).astype(int)


def crossing(seed=0, n=60, m=3):
    """Rows of two crossing pairs of clusters, the known ones farther apart, and both labelings."""
    rng = np.random.default_rng(seed)
    known, sought = rng.integers(2, size=(2, n))
    known[:2], sought[:4] = (0, 1), (0, 0, 1, 1)
    X = rng.normal(size=(n, m))
    X[:, 0] += 10 * known
    X[:, 1] += 8 * sought
    return X, known, sought


def moved(model, X, known):
    """Squared distances between the rows of the base, in units of their mean."""
    SEEN.clear()
    clone(model).set_params(base=Spy()).fit(X, known=known)
    square = pdist(SEEN[0], "sqeuclidean")
    return square / square.mean()


def orthogonalized(X, labelings, variant):
    """Rows after removal of the known directions, by definition."""
    X = X - X.mean(0)
    for z in labelings:
        means = [X[z == c].mean(0) for c in np.unique(z)]
        if variant == "clustering":
            X = np.stack([
                x - means[c] * (means[c] @ x) / (means[c] @ means[c])
                for x, c in zip(X, np.unique(z, return_inverse=True)[1], strict=True)
            ])  # fmt: skip
        else:
            M = np.array(means)
            X = X - X @ np.linalg.pinv(M, rcond=1e-10) @ M
    return X


# Orthogonalization


@pytest.mark.parametrize("variant", ["clustering", "subspace"])
def test_rows_are_moved_as_defined(variant):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 5)) + 3
    one, other = rng.integers(3, size=60), rng.integers(2, size=60)
    model = Orthogonalization(2, variant=variant)
    for known, labelings in (
        (one, [one]),
        (np.stack([one, other], 1), [one, other]),
        (np.stack([other, one], 1), [other, one]),
    ):
        square = pdist(orthogonalized(X, labelings, variant), "sqeuclidean")
        np.testing.assert_allclose(moved(model, X, known), square / square.mean(), rtol=1e-4)


@pytest.mark.parametrize("variant", ["clustering", "subspace"])
def test_rows_are_moved_as_by_clustpy(variant):
    orth = pytest.importorskip("clustpy.alternative.orth")
    X, known, _ = crossing(m=5)
    means = KMeans(2, n_init=1, random_state=0).fit(X)
    names = {
        "clustering": "_orthogonal_clustering_",
        "subspace": "_clustering_in_orthogonal_spaces_",
    }
    theirs = getattr(orth, names[variant] + "transform")(X - X.mean(0), means)[0]
    square = pdist(theirs, "sqeuclidean")
    model = Orthogonalization(2, variant=variant)
    np.testing.assert_allclose(moved(model, X, means.labels_), square / square.mean(), rtol=1e-4)


def test_subspaces_do_not_depend_on_order_and_are_removed_once():
    rng = np.random.default_rng(2)
    X, one, other = rng.normal(size=(60, 6)), rng.integers(3, size=60), rng.integers(3, size=60)
    model = Orthogonalization(2, variant="subspace")
    first = moved(model, X, np.stack([one, other], 1))
    for again in ((other, one), (one, other, one)):
        np.testing.assert_allclose(moved(model, X, np.stack(again, 1)), first, rtol=1e-5)


def test_two_groups_of_one_size_make_both_variants_the_same():
    X, _, _ = crossing()
    known = np.arange(60) % 2
    one, other = (moved(Orthogonalization(variant=v), X, known) for v in ("clustering", "subspace"))
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_origin_plays_a_part_without_centring_alone():
    X, known, _ = crossing()
    for center in (True, False):
        model = Orthogonalization(2, center=center)
        same = np.allclose(moved(model, X, known), moved(model, X + 7, known), rtol=1e-6)
        assert same == center
    square = pdist(X, "sqeuclidean")
    model = Orthogonalization(2, variant="subspace", center=False)
    basis = np.linalg.qr(np.array([X[known == c].mean(0) for c in (0, 1)]).T)[0]
    square = pdist(X - X @ basis @ basis.T, "sqeuclidean")
    np.testing.assert_allclose(moved(model, X, known), square / square.mean(), rtol=1e-4)


def test_nothing_left_is_refused_with_a_way_out():
    rng = np.random.default_rng(0)
    X, known = rng.normal(size=(30, 2)), np.arange(30) % 3
    with pytest.raises(ValueError, match="span all 2 features.*got 3 groups.*variant='clustering'"):
        Orthogonalization(2, variant="subspace").fit(X, known=known)
    assert Orthogonalization(2, random_state=0).fit(X, known=known).n_clusters_ == 2
    for variant in ("clustering", "subspace"):
        with pytest.raises(ValueError, match="n_features=1; pass more features or fewer groups"):
            Orthogonalization(2, variant=variant).fit(X[:, :1], known=known)


# The metric


def test_pairs_within_and_across_groups():
    rng = np.random.default_rng(0)
    X, z = rng.normal(size=(25, 3)), rng.integers(3, size=25)
    pairs = [(i, j) for i, j in itertools.combinations(range(25), 2)]
    same = np.array([X[i] - X[j] for i, j in pairs if z[i] == z[j]])
    np.testing.assert_allclose(within_scatter(X, z), same.T @ same / len(same))
    differ = [(i, j) for i, j in pairs if z[i] != z[j]]
    rows = np.arange(25.0)[:, None] ** [1, 2]
    random = np.random.RandomState(0)
    assert len(across_differences(rows, z, 4000, random)) == len(differ)
    drawn = across_differences(rows, z, 150, random)
    assert len(drawn) == 150
    # (i - j, i^2 - j^2) determines i and j.
    total = drawn[:, 1] / drawn[:, 0]
    i, j = ((total + drawn[:, 0]) / 2).astype(int), ((total - drawn[:, 0]) / 2).astype(int)
    assert (z[i] != z[j]).all() and np.unique(i).size > 15 and np.unique(j).size > 15


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(2, 5), st.integers(2, 4))
def test_the_metric_is_the_best_there_is(seed, m, n_groups):
    rng = np.random.default_rng(seed)
    z = np.arange(40) % n_groups
    X = rng.normal(size=(40, m)) @ rng.normal(size=(m, m)) + 2 * rng.normal(size=(n_groups, m))[z]
    W = within_scatter(X, z) + 1e-6 * np.eye(m)
    D = across_differences(X, z, 4000, np.random.RandomState(0))
    result = learn_metric(W, D, 2000, 1e-12)
    A, trace = result.a, result.trace
    assert result.converged and (np.diff(trace) >= -1e-12).all()
    assert np.linalg.eigvalsh(A).min() > -1e-9 and np.trace(A @ W) == pytest.approx(1)
    lengths = np.sqrt(np.einsum("ni,ij,nj->n", D, A, D))
    assert trace[-1] == pytest.approx(lengths.mean())
    # The problem is concave: A is optimal if no B with tr(B W) = 1 is better along the slope.
    slope = (D / (2 * lengths[:, None])).T @ D / len(D)
    root = np.linalg.inv(np.linalg.cholesky(W))
    assert np.linalg.eigvalsh(root @ slope @ root.T).max() <= trace[-1] / 2 * (1 + 1e-3)


def test_stretches_are_inverted_down_to_the_floor():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    A = turn @ np.diag([9.0, 4.0, 1.0, 0.0]) @ turn.T
    back = turn.T @ invert_metric(A, 0.2) @ turn
    np.testing.assert_allclose(back, np.diag([0.2, 0.3, 0.6, 1.0]), atol=1e-12)
    np.testing.assert_allclose(invert_metric(A, 1.0), np.eye(4), atol=1e-12)


def test_adft_moves_rows_by_its_transformation():
    X, known, sought = crossing()
    model = ADFT(2, random_state=0).fit(X, known=known)
    square = pdist(X @ model.transformation_, "sqeuclidean")
    np.testing.assert_allclose(moved(ADFT(2), X, known), square / square.mean(), rtol=1e-6)
    assert np.linalg.eigvalsh(model.transformation_)[-1] == pytest.approx(1)
    assert adjusted_rand_score(model.labels_, sought) > 0.9
    unit = clone(model).fit(100 * X - 3, known=known)
    np.testing.assert_allclose(unit.transformation_, model.transformation_, rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(unit.metric_, model.metric_ / 100**2, rtol=1e-4, atol=1e-10)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 3)))[0]
    wide = X @ turn.T + 1  # rows that do not vary in all directions
    np.testing.assert_allclose(moved(ADFT(2), wide, known), moved(ADFT(2), X, known), rtol=1e-3)


def test_adft_of_one_feature_and_of_too_few_steps():
    X, known, _ = crossing()
    with pytest.raises(ValueError, match="got n_features=1; pass more features"):
        ADFT(2).fit(X[:, :1], known=known)
    assert ADFT(2, random_state=0).fit(X[:, :1]).n_clusters_ == 2
    with pytest.warns(ConvergenceWarning, match="metric did not converge; got max_iter=1"):
        ADFT(2, base=KMeans(), max_iter=1, random_state=0).fit(X, known=known)


def test_several_labelings_are_one_of_their_combinations_to_adft():
    X, known, sought = crossing()
    both = np.stack([known, sought], 1)
    square = moved(ADFT(2), X, both)
    np.testing.assert_allclose(square, moved(ADFT(2), X, 2 * known + sought))


# Who clusters


MODELS = [Orthogonalization(2, n_init=3, random_state=0), ADFT(2, n_init=3, random_state=0)]
every = pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)


@every
def test_without_known_the_base_sees_the_rows_as_they_are(model):
    X, known, _ = crossing(3)
    result = clone(model).fit(X)
    theirs = GaussianMixture(2, covariance_type="spherical", n_init=10, random_state=0).fit(X)
    assert result.objective_ == pytest.approx(-60 * theirs.score(X), rel=1e-3)
    assert adjusted_rand_score(result.labels_, known) == 1
    result = clone(model).set_params(base="kmeans").fit(X)
    assert result.objective_ == pytest.approx(KMeans(2, n_init=10, random_state=0).fit(X).inertia_)
    with pytest.warns(DegenerateClusterWarning, match="one group only"):
        constant = clone(model).set_params(base="kmeans").fit(X, known=np.zeros(60))
    assert (constant.labels_ == result.labels_).all()


@every
def test_the_known_clusters_are_not_found_again(model):
    X, known, sought = crossing(4)
    for base in ("em", "kmeans", KMeans(n_init=5), AgglomerativeClustering()):
        result = clone(model).set_params(base=base).fit(X, known=known)
        assert adjusted_rand_score(result.labels_, sought) > 0.85
        assert result.restarts_.sizes["restart"] == (3 if isinstance(base, str) else 1)
        centres = np.array([X[result.labels_ == c].mean(0) for c in (0, 1)])
        if base != "em":
            np.testing.assert_allclose(result.cluster_centers_, centres)
        assert result.objective_trace_.tolist() == [result.objective_]


@every
def test_order_names_and_units_play_no_part(model):
    X, known, _ = crossing(5)
    first = clone(model).fit(X, known=known)
    order = np.random.default_rng(0).permutation(60)
    again = clone(model).fit(X[order], known=known[order])
    assert adjusted_rand_score(again.labels_, first.labels_[order]) == 1
    assert again.objective_ == pytest.approx(first.objective_, rel=1e-4)
    named = clone(model).fit(X, known=np.array(["b", "a"])[known])
    assert (named.labels_ == first.labels_).all()
    unit = clone(model).fit(100 * X + 7, known=known)
    assert adjusted_rand_score(unit.labels_, first.labels_) == 1
    shift = X.size if isinstance(model, ADFT) else X.size - 60  # nothing is left of one direction
    assert unit.objective_ == pytest.approx(first.objective_ + shift * np.log(100), rel=1e-4)


@every
def test_new_rows_are_moved_as_those_of_the_fit(model):
    X, known, sought = crossing(6, n=120)
    needs = isinstance(model, Orthogonalization)
    for base in ("em", "kmeans", KMeans(n_init=5)):
        result = clone(model).set_params(base=base).fit(X[:60], known=known[:60])
        assert (result.predict(X[:60], known=known[:60]) == result.labels_).all()
        shares = result.predict_proba(X[:60], known=known[:60])
        np.testing.assert_allclose(shares, result.membership_, atol=1e-6)
        new = result.predict(X[60:], known=known[60:])
        assert adjusted_rand_score(new, sought[60:]) > 0.8
        if not needs:
            assert (result.predict(X[60:]) == new).all()
    if needs:
        with pytest.raises(ValueError, match="known is required to predict"):
            result.predict(X[60:])
        result.set_params(variant="subspace").fit(X[:60], known=known[:60])
        assert adjusted_rand_score(result.predict(X[60:]), sought[60:]) > 0.8


@every
def test_bases_that_are_none_are_refused(model):
    X, known, _ = crossing()
    for base, error, what in (
        ("daib", ValueError, "base must be one of 'em', 'kmeans' or a clusterer"),
        (KMeans, TypeError, "cluster rows, with fit_predict; got the class KMeans"),
        (3, TypeError, "got int; choose one of 'em', 'kmeans'"),
        (DBSCAN(eps=1e-3), ValueError, r"from 0 to 1; got labels \[-1\] from DBSCAN"),
    ):
        with pytest.raises(error, match=what):
            clone(model).set_params(base=base).fit(X, known=known)
    result = clone(model).set_params(base=AgglomerativeClustering()).fit(X, known=known)
    with pytest.raises(ValueError, match="base without predict; got AgglomerativeClustering"):
        result.predict(X, known=known)


class NoiseForNewRows(KMeans):
    """A base whose `predict` returns -1 for all rows."""

    def predict(self, X, sample_weight=None):
        return np.full(len(X), -1)


@every
def test_labels_of_new_rows_that_are_no_clusters_are_refused(model):
    X, known, _ = crossing()
    result = clone(model).set_params(base=NoiseForNewRows(n_init=1)).fit(X, known=known)
    with pytest.raises(ValueError, match=r"from 0 to 1; got labels \[-1\] from NoiseForNewRows"):
        result.predict(X, known=known)


@every
def test_known_that_is_no_labels_is_refused(model):
    X, known, _ = crossing()
    with pytest.raises(ValueError, match=r"needs known labels; got soft Memberships; pass labels"):
        clone(model).fit(X, known=Memberships(np.eye(2)[known]))
    with pytest.raises(ValueError, match="continuous known structure is not supported"):
        clone(model).fit(X, known=X[:, :1])
    with pytest.raises(ValueError, match="every row has its own known group"):
        clone(model).fit(X, known=np.arange(60))


def test_single_members_are_told_where_nothing_is_left_of_them():
    X, known, _ = crossing()
    odd = np.where(np.arange(60) == 0, 7, known)
    with pytest.warns(DegenerateClusterWarning, match="1 known group.*projected to the origin"):
        Orthogonalization(2, random_state=0).fit(X, known=odd)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Orthogonalization(2, variant="subspace", random_state=0).fit(X, known=odd)
        ADFT(2, random_state=0).fit(X, known=odd)


@every
def test_degenerate_rows_give_a_result(model):
    X, known, _ = crossing()
    for base in ("em", "kmeans"):
        model = clone(model).set_params(base=base)
        with pytest.warns(DegenerateClusterWarning, match="all rows are alike"):
            alike = clone(model).fit(np.full((60, 3), 0.1), known=known)
        assert (alike.labels_ == 0).all() and np.isfinite(alike.objective_)
        one = clone(model).set_params(n_clusters=1).fit(X, known=known)
        assert (one.labels_ == 0).all() and one.n_clusters_ == 1
        assert clone(model).set_params(n_clusters=1).fit(X[:1]).labels_.tolist() == [0]
        assert sorted(clone(model).fit(X[[0, 30]]).labels_) == [0, 1]
        repeated = clone(model).fit(np.repeat(X[:12], 5, 0), known=np.repeat(known[:12], 5))
        assert repeated.n_clusters_ == 2
        with pytest.warns(DegenerateClusterWarning, match="fewer than n_clusters=3"):
            few = clone(model).set_params(n_clusters=3, base="kmeans").fit(X[np.arange(60) % 2])
        assert set(few.predict(X)) <= set(few.labels_)
