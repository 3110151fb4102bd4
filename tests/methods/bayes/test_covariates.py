"""What is known of rows as groups or as numbers, and posteriors of clusterings beyond it."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

from nrprob import MDLMixture
from nrprob.known import Memberships, read
from nrprob.methods.bayes.covariates import MOST_NUMBERS, ToldEncoder
from nrprob.metrics import matched_accuracy

RNG = np.random.default_rng(0)
A, B = RNG.integers(3, size=40), RNG.integers(4, size=40)
AGE = RNG.normal(50, 9, size=40)
SHARES = RNG.dirichlet([1, 1, 1], size=40)


def encoded(known, multi="product"):
    encoder = ToldEncoder()
    told = encoder.fit(read(known, 40), multi)
    again = encoder.transform(known, 40)
    assert np.array_equal(again.group, told.group) and again.n_groups == told.n_groups
    if told.numbers is not None:
        assert np.array_equal(again.numbers, told.numbers)
        used = told.numbers[:, (told.numbers != 0).any(0)]
        return told, used
    return told, None


@pytest.mark.parametrize("known", [None, A, np.c_[A, B]])
def test_labels_are_groups(known):
    told, numbers = encoded(known)
    assert numbers is None
    if known is not None:
        expected = np.unique(known, axis=0, return_inverse=True)[1]
        pairs = set(zip(told.group.tolist(), expected.tolist(), strict=True))
        assert len(pairs) == told.n_groups == expected.max() + 1
    assert told.anything == (known is not None)


def test_labels_that_add_up_have_a_column_each():
    told, numbers = encoded(np.c_[A, B], "additive")
    assert told.n_groups == 1 and told.anything and numbers.shape[1] == 7
    expected = np.c_[A[:, None] == np.arange(3), B[:, None] == np.arange(4)]
    assert sorted(map(tuple, numbers.T)) == sorted(map(tuple, expected.T.astype(float)))
    assert encoded(A, "additive")[0].n_groups == 3  # of one labeling they are groups


def test_numbers_are_standardised_and_shares_are_not():
    _, numbers = encoded(AGE[:, None])
    assert numbers == pytest.approx(((AGE - AGE.mean()) / AGE.std())[:, None])
    _, numbers = encoded(Memberships(SHARES))
    assert np.array_equal(numbers, SHARES)
    _, numbers = encoded(pd.DataFrame({"age": AGE, "batch": A.astype(str)}))
    assert numbers.shape == (40, 4) and numbers[:, 1:].sum(1) == pytest.approx(1)


def test_too_many_columns_are_refused():
    with pytest.raises(ValueError, match=f"up to {MOST_NUMBERS} columns"):
        ToldEncoder().fit(read(RNG.normal(size=(40, MOST_NUMBERS + 1)), 40), "product")


REAL, COUNTS = RNG.normal(size=(40, 2)), RNG.poisson(3, size=(40, 3))


@pytest.mark.parametrize(
    ("X", "known", "settings", "message"),
    [
        (REAL, AGE[:, None], dict(covariance="full"), "share one covariance"),
        (COUNTS, AGE[:, None], {}, "pass labels"),
        (COUNTS, Memberships(SHARES), {}, "must be labels; got Memberships"),
        (COUNTS, np.c_[A, B], dict(multi="additive"), "multi='additive' is for real features"),
    ],
)
def test_numbers_need_real_rows_of_one_covariance(X, known, settings, message):
    with pytest.raises(ValueError, match=message):
        MDLMixture(**settings).fit(X, known=known)


def planted(n=160, seed=1):
    """Three clusters, and rows that are moved by two labelings and a number."""
    rng = np.random.default_rng(seed)
    z, first, second = rng.integers(3, size=n), rng.integers(5, size=n), rng.integers(6, size=n)
    age = rng.normal(size=n)
    X = 5 * np.eye(3)[z] + rng.normal(size=(n, 3)) + np.outer(age, [4, -3, 2])
    X = X + 5 * rng.normal(size=(5, 3))[first] + 5 * rng.normal(size=(6, 3))[second]
    return (
        X,
        z,
        pd.DataFrame({"age": age, "first": first.astype(str), "second": second.astype(str)}),
    )


@pytest.mark.slow
def test_clusters_say_what_numbers_and_labels_together_do_not():
    X, z, known = planted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MDLMixture(num_warmup=150, num_samples=150, num_chains=2, random_state=0)
        model.fit(X[:120], known=known[:120])
    assert matched_accuracy(z[:120], model.labels_) > 0.95
    assert (model.posterior_["n_clusters"] == 3).mean() > 0.6
    result = model.predict(X[120:], known=known[120:])
    assert matched_accuracy(z[120:], result) > 0.95
    wrong = model.predict(X[120:], known=known[120:].sample(frac=1, random_state=0))
    assert matched_accuracy(z[120:], wrong) < 0.8
