"""Recommended estimators by type of data, and their reasons."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.utils.validation import check_is_fitted
from slowly import slowly

from nrprob import (
    CCIB,
    ConditionalMixture,
    MixtureEM,
    ResidualSpectral,
    explore,
    metrics,
    recommend,
)
from nrprob.known import Memberships

rng = np.random.default_rng(0)
REAL = rng.normal(size=(60, 4))
COUNTS = rng.poisson(0.3, (60, 30))
GREY = rng.integers(1, 17, (60, 9))
BINARY = rng.integers(0, 2, (60, 8))
Z = np.arange(60) % 3


@pytest.mark.parametrize(
    ("X", "given", "cls"),
    [
        (REAL, {"known": Z}, ConditionalMixture),
        (REAL, {}, ConditionalMixture),
        (REAL, {"known": REAL[:, :2]}, ConditionalMixture),
        (GREY, {"known": Z}, ConditionalMixture),
        (COUNTS, {"known": Z}, ResidualSpectral),
        (sparse.csr_array(COUNTS), {"known": Z}, ResidualSpectral),
        (sparse.csr_array(COUNTS * 0.5), {"known": Z}, ResidualSpectral),
        (sparse.csr_array(COUNTS), {"known": REAL[:, :2]}, ResidualSpectral),
        (BINARY, {"known": Z.astype(str)}, CCIB),
        (sparse.csr_array(BINARY), {"known": Z}, CCIB),
        (REAL, {"y": np.where(Z == 0, -1, Z)}, ConditionalMixture),
        (BINARY, {"y": np.where(Z == 0, -1, Z)}, MixtureEM),
        (COUNTS, {"y": np.where(Z == 0, -1, Z)}, MixtureEM),
        (REAL, {"y": np.where(Z == 0, -1, Z), "known": Z}, ConditionalMixture),
        (REAL, {"known": Memberships(np.eye(3)[Z])}, ConditionalMixture),
    ],
)
def test_choice_fits_the_data(X, given, cls):
    model = recommend(X, **given)
    assert type(model) is cls
    assert isinstance(model.reason_, str) and cls.__name__ in model.reason_
    with pytest.raises(Exception, match="not fitted"):
        check_is_fitted(model, "labels_")
    assert clone(model).get_params() == model.get_params()


def test_number_of_clusters():
    assert recommend(REAL, known=Z, n_clusters=5).n_clusters == 5
    assert "n_clusters" not in recommend(REAL, known=Z, n_clusters=5).reason_
    guessed = recommend(REAL, known=Z)
    assert guessed.n_clusters == 2 and "guess" in guessed.reason_
    labelled = recommend(REAL, y=np.arange(60) % 4 - 1, known=Z)
    assert labelled.n_clusters == 3 and "classes in y" in labelled.reason_


def test_many_combinations_are_added_up():
    few = recommend(REAL, known=np.stack([Z % 2, Z % 2], 1))
    many = recommend(REAL, known=np.stack([Z, np.arange(60) % 4], 1))
    assert few.multi == "product" and many.multi == "additive"
    assert "are additive" in many.reason_


@pytest.mark.parametrize(
    ("X", "given", "message"),
    [
        (np.full((5, 2), np.nan), {}, "NaN"),
        (np.zeros(5), {}, "Reshape your data"),
        (REAL, {"known": Z[:5]}, "known"),
        (REAL, {"y": Z[:5]}, "y must hold one label per row"),
        (REAL, {"n_clusters": "3"}, "n_clusters must be an integer"),
        (sparse.csr_array(REAL), {"known": Z}, "sparse X must not have negative entries"),
        (sparse.coo_array(-BINARY), {"y": Z}, "sparse X must not have negative entries"),
    ],
)
def test_what_is_wrong_is_said(X, given, message):
    with pytest.raises((ValueError, TypeError), match=message):
        recommend(X, **given)


ROWS = {
    "real": (REAL, sparse.csr_array(COUNTS[:, :8] * 0.5)),
    "counts": (COUNTS[:, :8], sparse.csc_array(COUNTS[:, :8])),
    "binary": (BINARY, sparse.coo_array(BINARY)),
}
MANY = np.stack([np.arange(60) % 8, np.arange(60) % 7], 1)  # 56 combinations of 60 rows
KNOWN = {
    "nothing": None,
    "labels": Z.astype(str),
    "labelings": np.stack([Z % 2, np.arange(60) // 30], 1),
    "many labelings": MANY,
    "more categories than rows": np.stack([np.arange(60) // 2, np.arange(60)[::-1] // 2 % 29], 1),
    "numbers": REAL[:, :2],
    "memberships": Memberships(np.eye(3)[Z] * 0.9 + 0.1 / 3),
}


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(
    "known",
    ["labels", *slowly(*sorted(KNOWN.keys() - {"labels"}))],
)
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_recommended_takes_the_data(kind, is_sparse, known):
    X, known = ROWS[kind][is_sparse], KNOWN[known]
    for y in (None, np.where(np.arange(60) < 20, Z % 2, -1)[:, None]):
        model = recommend(X, known=known, y=y, n_clusters=2)
        quick = {"n_init": 2, "members": 2, "whitening_exponents": (0.0,), "max_iter": 5}
        quick = {name: quick[name] for name in quick if name in model.get_params()}
        given = {} if known is None else {"known": known}
        model.set_params(random_state=0, **quick).fit(X, y, **given)
        assert set(model.labels_) <= {0, 1}
        if y is not None:
            assert (model.labels_[:20] == Z[:20] % 2).all()


def test_explore_takes_the_recommendation():
    centres = rng.normal(size=(2, 2, 6)) * 4
    a, b = np.arange(200) % 2, np.arange(200) // 2 % 2
    X = centres[0][a] + centres[1][b] + rng.normal(size=(200, 6))
    result = explore(X, known=a, n_clusters=2, n_clusterings=1, random_state=0)
    assert type(result.estimators_[0]) is ConditionalMixture
    assert metrics.matched_accuracy(result.labels_[:, 0], b) > 0.95


def test_few_labels_of_a_table_classify_the_other_samples():
    # With full covariances per class, more than a third of the samples are in the wrong class.
    X, z = load_wine(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    errors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        fitted = rng.permutation(len(z))[:36]
        y = np.where(np.arange(36) < 18, z[fitted], -1)
        assert {0, 1, 2} < set(y)
        model = recommend(X[fitted], y=y).set_params(random_state=0).fit(X[fitted], y)
        errors.append(np.mean(model.predict(X) != z))
    assert np.mean(errors) < 0.12
