"""Warning of clusters that depend on known covariates."""

import warnings

import numpy as np
import pandas as pd
import pytest

from nrprob import CCIB, ConditionalMixture
from nrprob.statistics.covariates import warn_of_covariates

N = 400


def messages(function, *arguments, **keywords):
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        function(*arguments, **keywords)
    return [str(w.message) for w in issued if "known covariate" in str(w.message)]


def test_strong_dependence_of_any_form_is_named():
    rng = np.random.default_rng(0)
    age, dose = rng.uniform(-1, 1, size=(2, N))
    covariates, names = np.column_stack([dose, age]), ["dose", "age"]
    for labels in (np.abs(age) > 0.5, age > 0, np.sin(6 * age) > 0):
        (message,) = messages(warn_of_covariates, covariates, names, labels.astype(int))
        assert "intervals of 'age'" in message
    # Independent and weakly dependent clusters, one cluster, few samples, and constants.
    assert not messages(warn_of_covariates, covariates, names, rng.integers(3, size=N))
    weak = (rng.uniform(size=N) < 0.5 + 0.1 * age).astype(int)
    assert not messages(warn_of_covariates, covariates, names, weak)
    assert not messages(warn_of_covariates, covariates, names, np.zeros(N, int))
    assert not messages(warn_of_covariates, covariates[:9], names, (age > 0)[:9].astype(int))
    assert not messages(warn_of_covariates, 0 * covariates, names, (age > 0).astype(int))
    # Samples without a cluster do not count.
    part = np.where(age > 0, rng.integers(2, size=N), -1)
    assert not messages(warn_of_covariates, covariates, names, part)


@pytest.mark.parametrize("as_frame", [True, False])
def test_fit_warns_of_an_effect_that_is_not_linear(as_frame):
    rng = np.random.default_rng(0)
    age, sought = rng.uniform(-1, 1, size=N), rng.integers(2, size=N)
    X = rng.normal(size=(N, 4)) + 3 * np.outer(sought, [1, 1, 0, 0]) + age[:, None]
    X += 9 * np.outer(age**2, [0, 0, 1, 1])
    model = CCIB(2, n_init=4, random_state=0)
    known = pd.DataFrame({"age": age}) if as_frame else age[:, None]
    (message,) = messages(model.fit, X, known=known)
    assert f"intervals of {'age' if as_frame else 0!r}" in message
    # With the square, the effect is linear.
    both = pd.DataFrame({"age": age, "square": age**2})
    assert not messages(model.fit, X, known=both)
    assert not messages(ConditionalMixture(2, n_init=4, random_state=0).fit, X, known=both)
    # Labels are no covariates.
    assert not messages(model.fit, X, known=(age > 0).astype(int))
