"""Spectral clustering with links: comparison with spectral clustering, effects of links."""

import numpy as np
import pytest
from sklearn.cluster import SpectralClustering

from nrprob import DegenerateClusterWarning, SemiSupervisedSpectral
from nrprob.links import InfeasibleConstraints
from nrprob.methods.cec.spectral import link_signs, normalised_laplacian
from nrprob.metrics import normalized_mutual_information

N = 24
QUICK = {"n_init": 10, "random_state": 0}
HALF = np.arange(N) % 2


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(N, 2)) + 1.5 * HALF[:, None]


def edited(X, signs, rho=1.0):
    square = ((X[:, None] - X) ** 2 / X.var(0)).sum(-1)
    w = np.exp(-square / (2 * rho**2))
    np.fill_diagonal(w, 0)
    return np.where(signs == 0, w, signs > 0)


def test_signs_of_labels_and_pairs():
    labelled = np.array([0, 0, 1, -1, -1])
    signs = link_signs(labelled, np.array([[3, 4]]), np.array([[4, 0]]))
    expected = np.array(
        [[0, 1, -1, 0, -1], [1, 0, -1, 0, 0], [-1, -1, 0, 0, 0], [0, 0, 0, 0, 1], [-1, 0, 0, 1, 0]]
    )
    np.testing.assert_array_equal(signs, expected)
    result = normalised_laplacian(np.where(labelled >= 0, 1, 0)[:, None] * signs)[3:]
    np.testing.assert_array_equal(result, 0)  # of rows without weights


def test_eta_1_is_spectral_clustering_of_the_edited_affinities(rows):
    y = np.where(np.arange(N) < 6, HALF, -1)
    model = SemiSupervisedSpectral(2, eta=1.0, **QUICK).fit(rows, y)
    w = edited(rows, link_signs(y, *np.zeros((2, 0, 2), int)))
    root = 1 / np.sqrt(w.sum(1))
    values, vectors = np.linalg.eigh(np.eye(N) - root[:, None] * w * root)
    np.testing.assert_allclose(model.eigenvalues_, values[:2], atol=1e-12)
    unit = vectors[:, :2] / np.linalg.norm(vectors[:, :2], axis=1, keepdims=True)
    # Signs of eigenvectors are arbitrary, but inner products of rows are not.
    np.testing.assert_allclose(model.embedding_ @ model.embedding_.T, unit @ unit.T, atol=1e-9)
    theirs = SpectralClustering(
        2, affinity="precomputed", assign_labels="cluster_qr", random_state=0
    ).fit(w)
    assert normalized_mutual_information(model.labels_, theirs.labels_) > 0.7


def test_links_say_what_rows_do_not():
    X = np.random.default_rng(1).normal(size=(N, 2))
    y = np.where(np.arange(N) < 16, HALF, -1)
    model = SemiSupervisedSpectral(2, eta=0.1, **QUICK).fit(X, y)
    labelled = y >= 0
    result = normalized_mutual_information(model.labels_[labelled], y[labelled])
    plain = SemiSupervisedSpectral(2, **QUICK).fit(X)
    assert (model.labels_[labelled] == y[labelled]).all()  # clusters are matched to classes
    assert result == pytest.approx(1) and result > normalized_mutual_information(
        plain.labels_, HALF
    )
    assert np.diff(model.objective_trace_).max(initial=0) <= 1e-12


def test_new_rows_go_where_their_neighbours_are(rows):
    X = rows + 6 * HALF[:, None]
    model = SemiSupervisedSpectral(2, **QUICK).fit(X, must_link=[[0, 2]], cannot_link=[[0, 1]])
    assert (model.labels_ == model.labels_[HALF]).all() and (
        model.predict(X) == model.labels_
    ).all()
    shares = model.predict_proba(X)
    w = edited(X, np.zeros((N, N))) + np.eye(N)
    by_hand = np.stack([w[:, model.labels_ == c].sum(1) for c in range(2)], 1)
    np.testing.assert_allclose(shares, by_hand / by_hand.sum(1, keepdims=True))
    far = model.predict_proba(X + 1e6)  # where all affinities underflow
    np.testing.assert_allclose(far.sum(1), 1)


def test_kamvar_is_the_top_of_its_matrix(rows):
    X = rows + 6 * HALF[:, None]
    model = SemiSupervisedSpectral(2, mode="kamvar", **QUICK).fit(X)
    w = edited(X, np.zeros((N, N)))
    degree = w.sum(1)
    values = np.linalg.eigvalsh((w + np.diag(degree.max() - degree)) / degree.max())
    np.testing.assert_allclose(model.eigenvalues_, values[-2:])
    assert (model.labels_ == model.labels_[HALF]).all()


def test_what_is_refused(rows):
    with pytest.raises(InfeasibleConstraints, match="contradict each other"):
        SemiSupervisedSpectral(2, **QUICK).fit(rows, must_link=[[0, 1]], cannot_link=[[1, 0]])
    with pytest.raises(ValueError, match="needs memory for n\\^2 affinities; got 10001 rows"):
        SemiSupervisedSpectral(2).fit(np.zeros((10001, 1)))


def test_duplicates_all_labelled_and_more_classes_than_clusters(rows):
    model = SemiSupervisedSpectral(2, **QUICK).fit(rows[HALF], HALF)
    assert (model.labels_ == model.labels_[HALF]).all()
    model = SemiSupervisedSpectral(2, **QUICK).fit(rows, np.arange(N) % 4)
    assert model.n_clusters_ == 2 and model.classes_.size == 4
    with pytest.warns(DegenerateClusterWarning, match="all rows are alike"):
        SemiSupervisedSpectral(2, **QUICK).fit(np.ones((N, 2)))
    assert SemiSupervisedSpectral(1, n_init=1).fit(rows[:1]).labels_.tolist() == [0]
