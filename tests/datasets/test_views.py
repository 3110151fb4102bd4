"""Rows in several views: planted structure, and invariants of permuted rows."""

import numpy as np
import pytest

from nrprob.datasets import make_gaussian_views
from nrprob.metrics import matched_accuracy


def test_views_are_classes_of_the_stated_means():
    X, labels = make_gaussian_views(4000, dims=(2, 3), mean=1.0, random_state=0)
    assert X.shape == (4000, 5) and labels.shape == (4000, 2)
    assert (labels[:2000] == 0).all() and (labels[2000:] == 1).all()
    for c, mean in ((0, 1.0), (1, -1.0)):
        own = X[labels[:, 0] == c]
        assert np.abs(own.mean(0) - mean).max() < 5 / np.sqrt(2000)
        np.testing.assert_allclose(np.cov(own.T), np.eye(5), atol=5 * np.sqrt(2 / 2000))
    # The correlations that the thesis prints, (3.16).
    off = np.corrcoef(X.T)[~np.eye(5, dtype=bool)]
    np.testing.assert_allclose(off, 0.5, atol=0.06)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_rows_of_later_views_is_permuted(share):
    plain, same = make_gaussian_views(1000, 0.0, dims=(2, 2, 1), random_state=3)
    X, labels = make_gaussian_views(1000, share, dims=(2, 2, 1), random_state=3)
    np.testing.assert_array_equal(X[:, :2], plain[:, :2])
    np.testing.assert_array_equal(labels[:, 0], same[:, 0])
    for v, columns in ((1, [2, 3]), (2, [4])):
        # Rows of a view stay together, and with their class.
        order = np.lexsort(X[:, columns].T)
        assert np.bincount(labels[:, v]).tolist() == [500, 500]
        if v == 1:  # the first with the same random numbers before it
            before = np.lexsort(plain[:, columns].T)
            np.testing.assert_array_equal(X[order][:, columns], plain[before][:, columns])
            np.testing.assert_array_equal(labels[order, v], same[before, v])
            moved = (X[:, columns] != plain[:, columns]).any(1).mean()
            assert share - 0.01 <= moved <= share
    # Half of the permuted rows keep their class.
    agree = matched_accuracy(labels[:, 1], labels[:, 0])
    assert agree == pytest.approx(1 - share / 2, abs=0.05)


def test_draws_repeat_and_sizes_may_be_odd():
    X, labels = make_gaussian_views(7, 0.5, random_state=1)
    again, _ = make_gaussian_views(7, 0.5, random_state=1)
    np.testing.assert_array_equal(X, again)
    assert labels[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert (make_gaussian_views(7, 0.5, random_state=2)[0] != X).any()


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="n_samples must be at least 1"):
        make_gaussian_views(0)
    with pytest.raises(ValueError, match="permuted must lie between 0 and 1"):
        make_gaussian_views(10, 1.5)
    with pytest.raises(ValueError, match="dims must name at least one view"):
        make_gaussian_views(10, dims=())
    with pytest.raises(TypeError, match="every entry of dims must be an integer"):
        make_gaussian_views(10, dims=(2, 1.5))
    with pytest.raises(ValueError, match="mean must be at least"):
        make_gaussian_views(10, mean=float("nan"))
