"""Known structure as groups or covariates, and posteriors of clusterings given it."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning

from nrprob import MDLMixture
from nrprob.data.design import DesignEncoder
from nrprob.known import Memberships
from nrprob.methods.bayes.covariates import MAX_COLUMNS, effects_width, with_linear_effects
from nrprob.metrics import matched_accuracy

RNG = np.random.default_rng(0)
A, B = RNG.integers(3, size=40), RNG.integers(4, size=40)
AGE = RNG.normal(50, 9, size=40)
SHARES = RNG.dirichlet([1, 1, 1], size=40)


def encoded(known, multi="product"):
    encoder = DesignEncoder(multi, min_additive=2, drop_first=False)
    design = encoder.fit(known, 40)
    width = effects_width(design)
    design, again = (
        with_linear_effects(own, width) for own in (design, encoder.transform(known, 40))
    )
    assert np.array_equal(again.codes, design.codes) and again.n_groups == design.n_groups
    if design.columns is not None:
        assert np.array_equal(again.columns, design.columns)
        return design, design.columns[:, (design.columns != 0).any(0)]
    return design, None


@pytest.mark.parametrize("known", [None, A, np.c_[A, B]])
def test_labels_are_groups(known):
    design, columns = encoded(known)
    assert columns is None
    if known is not None:
        expected = np.unique(known, axis=0, return_inverse=True)[1]
        pairs = set(zip(design.codes.tolist(), expected.tolist(), strict=True))
        assert len(pairs) == design.n_groups == expected.max() + 1
    assert design.has_structure == (known is not None)


def test_labels_that_add_up_have_a_column_each():
    design, columns = encoded(np.c_[A, B], "additive")
    assert design.n_groups == 1 and design.has_structure and columns.shape[1] == 7
    expected = np.c_[A[:, None] == np.arange(3), B[:, None] == np.arange(4)]
    assert sorted(map(tuple, columns.T)) == sorted(map(tuple, expected.T.astype(float)))
    assert encoded(A, "additive")[0].n_groups == 3  # one labeling is groups


def test_covariates_are_standardised_and_memberships_are_not():
    _, columns = encoded(AGE[:, None])
    assert columns == pytest.approx(((AGE - AGE.mean()) / AGE.std())[:, None])
    _, columns = encoded(Memberships(SHARES))
    assert np.array_equal(columns, SHARES)
    _, columns = encoded(pd.DataFrame({"age": AGE, "batch": A.astype(str)}))
    assert columns.shape == (40, 4) and columns[:, 1:].sum(1) == pytest.approx(1)


def test_too_many_columns_are_refused():
    with pytest.raises(ValueError, match=f"up to {MAX_COLUMNS} columns"):
        encoded(RNG.normal(size=(40, MAX_COLUMNS + 1)))


REAL, COUNTS = RNG.normal(size=(40, 2)), RNG.poisson(3, size=(40, 3))


@pytest.mark.parametrize(
    ("X", "known", "settings", "message"),
    [
        (REAL, AGE[:, None], dict(covariance="full"), "share one covariance"),
        (COUNTS, AGE[:, None], {}, "pass labels"),
        (COUNTS, Memberships(SHARES), {}, "must be labels .*; got soft memberships"),
        (COUNTS, np.c_[A, B], dict(multi="additive"), "'additive' is for continuous features"),
    ],
)
def test_numbers_need_real_rows_of_one_covariance(X, known, settings, message):
    with pytest.raises(ValueError, match=message):
        MDLMixture(**settings).fit(X, known=known)


def planted(n=160, seed=1):
    """Three clusters, and rows with effects of two labelings and a covariate."""
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
