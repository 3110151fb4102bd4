"""Counts with themes that several subsets share: planted structure and its strength."""

import numpy as np
import pytest

from nrprob.datasets import (
    make_competing_pairs,
    make_cross_partition,
    make_oscillating_counts,
)


@pytest.mark.parametrize(
    ("target", "sizes"),
    [("B/B", [15] * 5), ("B/nB", [15] * 5), ("nB/B", [27, 18, 12, 9, 9])],
)
def test_themes_and_masking_clusters_have_their_sizes_and_features(target, sizes):
    X, labels = make_cross_partition(target, 400, noise=1, random_state=0)
    theme, subset, masking = labels.T
    assert X.shape == (75, 600) and np.bincount(theme).tolist() == sizes
    assert np.bincount(subset).tolist() == [25] * 3
    assert np.bincount(masking).tolist() == [13, 12] * 3 and (masking // 2 == subset).all()
    # Without noise, counts equal the theme's plus the masking cluster's.
    assert (X.sum(1) == 48 * 400 + 60 * 900).all()
    assert (X[:, :240].reshape(75, 5, 48)[np.arange(75), theme] == 400).all()
    assert (X[:, 240:].reshape(75, 6, 60)[np.arange(75), masking] == 900).all()


def test_noise_is_added_to_a_quarter_of_the_zeros():
    plain, labels = make_cross_partition(noise=1, random_state=3)
    X, again = make_cross_partition(random_state=3)
    assert (labels == again).all()
    added = X - plain
    assert added[plain > 0].min() >= 1 and added.max() <= 199
    assert (added[plain == 0] > 0).mean() == pytest.approx(0.25, abs=0.01)
    assert (make_cross_partition(random_state=4)[0] != X).any()


def test_themes_cut_through_all_pairs():
    X, labels = make_competing_pairs(60, noise=1)
    theme, subset, pair = labels.T
    assert (np.bincount(4 * theme + pair) == 1).all() and (pair // 2 == subset).all()
    assert (X[np.arange(8), pair] == 100).all() and (X[np.arange(8), 4 + theme] == 60).all()
    X, labels = make_oscillating_counts(random_state=5)
    assert (X.sum(1) == 10).all() and labels[:, 0].tolist() == [0] * 4 + [1] * 4


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="target must be one of 'B/B', 'B/nB', 'nB/B'; got 'B'"):
        make_cross_partition("B")
    with pytest.raises(ValueError, match="target_count must be at least 0"):
        make_cross_partition(target_count=-1)
    with pytest.raises(TypeError, match="noise must be an integer"):
        make_competing_pairs(noise=1.5)
