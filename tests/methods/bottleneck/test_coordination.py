"""Penalties on known groups: shares that differ between groups, and far too large weights."""

import warnings

import numpy as np
import pytest

from nrprob import CCIB, IBSI
from nrprob.metrics import matched_accuracy

FEW = {"n_init": 4, "random_state": 0}


def binary_table(share, n=300):
    """Four columns of known groups, and eight of clusters with the given share in one group."""
    rng = np.random.default_rng(0)
    known = np.arange(n) % 2
    cluster = (rng.random(n) < np.where(known, 1 - share, share)).astype(int)
    patterns = [np.outer(a, np.ones(w)) == np.arange(w) % 2 for a, w in ((known, 4), (cluster, 8))]
    X = rng.random((n, 12)) < np.where(np.hstack(patterns), 0.85, 0.15)
    return X.astype(float), known, cluster


def test_shares_that_differ_between_groups_are_reported():
    X, known, cluster = binary_table(0.1)
    with pytest.warns(UserWarning, match="shares of clusters differ between known groups, so"):
        residual = CCIB(2, **FEW).fit(X, known=known)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        marginal = CCIB(2, coordination="marginal", **FEW).fit(X, known=known)
    assert matched_accuracy(residual.labels_, cluster) < 0.9
    assert matched_accuracy(marginal.labels_, cluster) > 0.95


def test_equal_shares_are_not_reported():
    X, known, cluster = binary_table(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = CCIB(2, **FEW).fit(X, known=known)
    assert matched_accuracy(model.labels_, cluster) > 0.95


@pytest.mark.parametrize("solver", ["sequential", pytest.param("anneal", marks=pytest.mark.slow)])
def test_a_weight_that_may_fix_the_labels_is_reported(solver):
    X, known, cluster = binary_table(0.5)
    with pytest.warns(UserWarning, match="gamma=100000 for 300 samples; lower gamma to about 30"):
        IBSI(2, gamma=1e5, solver=solver, **FEW).fit(X, known=known)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        useful = IBSI(2, gamma=30.0, solver=solver, **FEW).fit(X, known=known)
    assert matched_accuracy(cluster, useful.labels_) > 0.95
