"""Density between pairs of clusters: values, pairs beside other clusters, and labels of the fit."""

import numpy as np
import pytest

from nrprob import ConditionalMixture, evidence
from nrprob.evidence.pair_gaps import count_between_pairs, density_between_pairs

GROUPS = np.arange(900) % 2


def densities(centres, deviation=1.0):
    """Densities between pairs of clusters with the given centres, and the labels of the samples."""
    rng = np.random.default_rng(0)
    centres = np.asarray(centres, float)
    labels = rng.integers(len(centres), size=len(GROUPS))
    y = rng.normal(size=(len(GROUPS), centres.shape[1])) * deviation + centres[labels]
    fold = rng.permutation(len(GROUPS)) % 3
    folds = [
        count_between_pairs(y, labels, GROUPS, np.flatnonzero(fold != f), np.flatnonzero(fold == f))
        for f in range(3)
    ]
    return density_between_pairs(folds, None)


def test_pairs_with_and_without_a_gap():
    between = densities([[0, 0], [8, 0], [9.5, 0]])
    np.testing.assert_array_equal(between, between.T)
    assert np.isnan(np.diag(between)).all()
    assert between[0, 1] < 0.1 and between[0, 2] < 0.1 and between[1, 2] > 0.9


def test_a_cluster_in_the_middle_fills_the_gap_of_the_others():
    on_a_line = densities([[0, 0], [2, 0], [4, 0]])
    assert on_a_line[0, 2] > 0.7
    # A cluster that is far from the line of the others, and between them along it, does not.
    assert densities([[0, 0], [4, 12], [8, 0]])[0, 2] < 0.1


def test_pairs_with_few_samples_have_no_density():
    pair = np.array([4.0, 2.0])
    assert np.isnan(density_between_pairs([{(0, 1): pair}], None)).all()
    np.testing.assert_array_equal(
        density_between_pairs([{(0, 1): pair}] * 3, None), [[np.nan, 0.5], [0.5, np.nan]]
    )
    assert density_between_pairs([{}, {}], None) is None


def test_two_clusters_have_no_table():
    assert densities([[0, 0], [8, 0]]) is None


@pytest.mark.parametrize("step", [0, 1.0])
def test_tests_have_the_labels_of_the_fit(step):
    rng = np.random.default_rng(1)
    known, sought = rng.integers(2, size=240), rng.integers(3, size=240)
    X = rng.normal(size=(240, 2)) + np.array([[0, 0], [9, 0], [10.5, 9]])[sought]
    if step:
        X = np.round(X / step) * step
    X[known == 1] += 5
    model = ConditionalMixture(3, random_state=0).fit(X, known=known)
    model.labels_ = np.array([2, 0, 5])[model.labels_]  # labels with gaps
    result = evidence.test(model, X, known=known, n_splits=1, n_init=2, random_state=0)
    if step:
        assert result.density_between_ is None and result.p_gap_ is None
        return
    between = result.density_between_
    assert between.shape == (6, 6)
    assert {*np.argwhere(~np.isnan(between)).ravel().tolist()} == {0, 2, 5}
    assert np.nanmax(between) < 0.2
