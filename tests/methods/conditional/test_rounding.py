"""Rounding errors of numeric columns."""

import numpy as np
import pytest

from nrprob import ConditionalMixture
from nrprob.methods.conditional.rounding import (
    bound_rounding,
    has_coarse_scores,
    rounding_variances,
)
from nrprob.methods.conditional.table import DiscreteColumn
from nrprob.metrics import adjusted_rand_index


def measured(n=300, d=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def test_measured_columns_have_no_rounding_errors():
    x = measured(40)
    # Groups that lie far apart widen no step.
    shifted = x + 1000 * np.arange(10)[np.arange(40) % 10][:, None]
    for values in (x, x.astype(np.float32), np.exp(3 * x), shifted):
        assert (rounding_variances(values, np.ones(3)) == 0).all()


@pytest.mark.parametrize("step", [0.5, 2.0, 1e-6])
def test_rounded_columns_have_the_variance_of_uniform_errors(step):
    x = step * np.round(3 * measured())
    x[::7, 1] = np.nan
    variances = np.nanvar(x, 0)
    result = rounding_variances(x, variances)
    np.testing.assert_allclose(result, step**2 / 12, rtol=1e-6)
    # Copies and standardised units change nothing.
    scale = np.nanstd(x, 0)
    copies = np.concatenate([x, x]) / scale
    np.testing.assert_allclose(
        rounding_variances(copies, np.ones(3)), result / variances, rtol=1e-6
    )
    assert (rounding_variances(x, 1e4 * result) == 0).all()


def test_columns_that_depend_linearly_on_each_other_have_rounding_errors():
    x = measured() * [1.0, 10.0, 0.1]
    covariance = np.cov(x.T)
    assert bound_rounding(None, covariance) is None
    covariance = np.cov(np.column_stack([x, x @ [1.0, 2.0, -1.0]]).T)
    least = 1e-6 * np.diagonal(covariance)
    np.testing.assert_allclose(bound_rounding(None, covariance), np.diag(least))
    given = np.diag(least * [0, 2, 0, 0.5])
    np.testing.assert_allclose(np.diagonal(bound_rounding(given, covariance)), least * [1, 2, 1, 1])
    # A column without residuals has the mean variance of the other columns.
    covariance = np.diag([2.0, 4.0, 0.0])
    np.testing.assert_allclose(np.diagonal(bound_rounding(None, covariance)), [2e-6, 4e-6, 2e-6])


def test_ordered_columns_with_rare_values_are_coarse():
    groups = np.arange(200) % 2
    rating = DiscreteColumn(np.arange(200) % 5, 5, np.arange(5.0))
    rare = DiscreteColumn((np.arange(200) % 50 == 0) * 2, 3, np.arange(3.0))
    names = DiscreteColumn(rare.codes, 3)
    assert has_coarse_scores([names, rare], groups, 2)
    assert not has_coarse_scores([names, rating], groups, 2)


def test_a_binary_column_of_balanced_values_keeps_two_thirds_of_its_influence():
    flag = (np.arange(100) < 50).astype(float)[:, None]
    assert rounding_variances(flag, flag.var(0))[0] / flag.var() == pytest.approx(1 / 3)
    rare = (np.arange(100) < 3).astype(float)[:, None]
    assert rounding_variances(rare, rare.var(0))[0] / rare.var() == pytest.approx(1 / 12 / 0.0291)


@pytest.mark.filterwarnings("ignore:two solutions:UserWarning")
def test_a_column_of_rare_values_does_not_capture_the_clusters():
    rng = np.random.default_rng(0)
    hidden, known = rng.integers(2, size=(2, 300))
    x = rng.normal(size=(300, 4)) + 4 * np.outer(hidden, [1, 1, 0, 0])
    rare = (rng.random(300) < 0.05).astype(float)
    X = np.column_stack([x, rare])
    model = ConditionalMixture(
        2, effects="subtract", weights="uniform", categorical=[], n_init=12, random_state=0
    ).fit(X, known=known)
    assert adjusted_rand_index(model.labels_, hidden) > 0.9
