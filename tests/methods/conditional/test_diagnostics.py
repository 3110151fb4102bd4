"""Warnings of a fit about covariances, spreads, cluster shares, and outliers in skewed columns.

The tables have up to 400 samples, four columns, three known groups and two clusters.
"""

import warnings

import numpy as np
import pytest

from nrprob import ConditionalMixture, MixtureEM
from nrprob.methods.conditional.group_spreads import warn_of_group_spreads
from nrprob.metrics import adjusted_rand_index


def make_table(seed, n=400, share=0.5, apart=4.0, ratio=1.0):
    """Two clusters along the first column; ``ratio`` of their standard deviations."""
    rng = np.random.default_rng([71, seed])
    known, cluster = rng.integers(3, size=n), (rng.random(n) < share).astype(int)
    X = rng.normal(size=(n, 4)) * np.where(cluster == 1, ratio, 1.0)[:, None]
    X[:, 0] += apart * cluster
    return X + 4 * rng.normal(size=(3, 4))[known], known, cluster


def fit_messages(X, known, **settings):
    model = ConditionalMixture(2, n_init=6, random_state=0, **settings)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        model.fit(X, known=known)
    return model, [str(warning.message) for warning in issued]


def test_clusters_of_different_covariances_are_named_if_they_are_missed():
    for seed in range(3):
        X, known, cluster = make_table(seed, ratio=3.5)
        model, messages = fit_messages(X, known)
        named = [m for m in messages if m.startswith("a covariance matrix per cluster gains")]
        missed = adjusted_rand_index(model.labels_, cluster) < 0.6
        assert len(named) == missed == 1
        # The remedy of the message.
        other = MixtureEM(2, n_init=4, random_state=0).fit(model.transform(X, known=known))
        assert adjusted_rand_index(other.labels_, cluster) > 0.8


@pytest.mark.parametrize(
    "settings", [{}, {"share": 0.15}, {"apart": 0.0}, {"n": 60}, {"ratio": 1.3}]
)
def test_clusters_of_one_covariance_cause_no_warning(settings):
    for seed in range(2):
        X, known, _ = make_table(seed, **settings)
        _, messages = fit_messages(X, known)
        assert not [m for m in messages if "a covariance matrix per cluster" in m]


def test_groups_of_different_spread_are_named_if_they_are_covered_by_one_covariance():
    for seed in range(2):
        X, known, cluster = make_table(seed, apart=5.0)
        spread = np.array([0.3, 1.0, 3.0])[known][:, None]
        model, messages = fit_messages(spread * X, known)
        assert len([m for m in messages if m.startswith("samples of some known groups vary")]) == 1
        assert adjusted_rand_index(model.labels_, cluster) < 0.6
        # The remedy of the message.
        scaled = spread * X
        for group in range(3):
            scaled[known == group] /= scaled[known == group].std(0)
        model, messages = fit_messages(scaled, known)
        assert not [m for m in messages if "known groups vary" in m]
        assert adjusted_rand_index(model.labels_, cluster) > 0.9


def test_groups_of_equal_samples_have_no_spread_to_compare():
    """Rounding errors of a constant group are not its spread."""
    X, known, _ = make_table(0, n=90)
    residuals = X - np.array([X[known == group].mean(0) for group in range(3)])[known]
    residuals[known == 1] = 1e-16 * X[known == 1]
    with pytest.warns(UserWarning, match=r"^1 known group\(s\) have the same values in all"):
        warn_of_group_spreads(residuals, np.arange(90) % 2, known)


@pytest.mark.parametrize("settings", [{"share": 0.15}, {"ratio": 3.5}, {"n": 70}])
def test_groups_of_equal_spread_cause_no_warning(settings):
    X, known, _ = make_table(2, **settings)
    rng = np.random.default_rng(0)
    heavy = X + rng.standard_t(2, size=X.shape)
    for table in (X, heavy):
        assert not [m for m in fit_messages(table, known)[1] if "known groups vary" in m]


def test_unequal_clusters_of_all_groups_are_no_shares_by_group():
    X, known, cluster = make_table(0, n=300, share=0.15, apart=5.0)
    model, messages = fit_messages(X, known)
    assert adjusted_rand_index(model.labels_, cluster) > 0.9
    gains = model.decisions_
    assert gains["gain_by_group"] > 1.5 * gains["margin"] + gains["shares_penalty"]
    assert not [m for m in messages if "cluster shares by known group" in m]


def test_far_outliers_are_named_although_they_make_a_column_skewed():
    rng = np.random.default_rng(2)
    X, known, _ = make_table(0, n=300)
    X[:9] += 40 * np.abs(rng.normal(size=(9, 4)))
    _, messages = fit_messages(X, known)
    assert [m for m in messages if "of the samples are far from all clusters" in m]
    assert [m for m in messages if "skewed features hide clusters" in m]
