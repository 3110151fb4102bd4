"""The objective of CECIB at a given partition."""

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from nrprob import CECIB
from nrprob.information import entropy


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    z = np.repeat([0, 1, 2], [30, 20, 10])
    X = rng.normal(size=(60, 2)) + np.array([[0, 0], [5, 0], [0, 6]])[z]
    return X, z


@pytest.mark.parametrize("parameters", [{}, {"penalty": None}, {"covariance": "diag", "beta": 0.5}])
def test_the_objective_of_the_solution_is_that_of_the_fit(data, parameters):
    X, z = data
    y = np.where(np.arange(60) % 3 == 0, z, -1)
    model = CECIB(4, random_state=0, n_init=1, **parameters).fit(X, y)
    assert model.objective_of(X, model.labels_, y) == pytest.approx(model.objective_)
    # The numbering of clusters is irrelevant, and another partition is worse.
    assert model.objective_of(X, 7 - model.labels_, y) == pytest.approx(model.objective_)
    assert model.objective_of(X, np.arange(60) % 3, y) > model.objective_
    with pytest.raises(ValueError, match="cluster of every row; got -1"):
        model.objective_of(X, np.where(np.arange(60) == 3, -1, model.labels_), y)


def test_complete_labels_give_the_conditional_cross_entropy(data):
    """Theorem 3.1: with beta = 1 it differs from the objective by n H(Z), for any partition."""
    X, z = data
    model = CECIB(4, penalty=None, reg=0.0, beta=1.0)
    for labels in (np.arange(60) % 4, z, (X[:, 0] > 2).astype(int)):
        total = 0.0
        for cluster, group in zip(labels, z, strict=True):
            shares = np.mean(labels[z == group] == cluster)
            total -= math.log(shares)
        for cluster in np.unique(labels):
            rows = X[labels == cluster]
            density = multivariate_normal(rows.mean(0), np.cov(rows.T, bias=True))
            total -= density.logpdf(rows).sum()
        shares = np.bincount(z) / len(z)
        assert model.objective_of(X, labels, z) - 60 * entropy(shares) == pytest.approx(total)


def test_partitions_that_no_fit_returns_are_told_apart(data):
    X, _ = data
    assert CECIB(2).objective_of(X, np.r_[np.zeros(59, int), 1]) == math.inf
    with pytest.raises(ValueError, match="at most 2 clusters; got shape .* and 3 clusters"):
        CECIB(2).objective_of(X, np.arange(60) % 3)
    with pytest.raises(ValueError, match="one entry per row"):
        CECIB(2).objective_of(X, [0, 1])
