"""Shapes in the plane: two groupings, positions, and separability."""

import numpy as np
import pytest

from nrprob.datasets import make_planar_shapes
from nrprob.metrics import contingency, jaccard_index, normalized_mutual_information


@pytest.mark.parametrize(
    ("shape", "k"), [("blobs", 2), ("blobs", 3), ("crescents", 2), ("moons", 2), ("rings", 2)]
)
def test_shapes_are_of_one_size_and_lie_apart(shape, k):
    X, labels = make_planar_shapes(120, shape, k, noise=0.0, random_state=0)
    assert X.shape == (120, 2) and labels.shape == (120, 2)
    table = contingency(labels[:, 0], labels[:, 1])
    assert set(table[table > 0]) == {60 // k} and (table > 0).sum() == 2 * k
    part = labels @ [k, 1]
    for p in np.unique(part):
        inside, outside = X[part == p], X[part != p]
        assert np.linalg.norm(inside[:, None] - outside, axis=2).min() > 0.25
    # Random order: no shape has all of its points in the first half.
    assert all(np.ptp(np.flatnonzero(part == p)) > 60 for p in np.unique(part))


def test_positions():
    X, labels = make_planar_shapes(80, noise=0.0, random_state=0)
    np.testing.assert_allclose(np.unique(X.round(9), axis=0), [[-3, -3], [-3, 3], [3, -3], [3, 3]])
    assert ((X[:, 1] < 0) == labels[:, 0]).all() and ((X[:, 0] < 0) == labels[:, 1]).all()
    X, labels = make_planar_shapes(90, n_clusters=3, noise=0.0, random_state=0)
    np.testing.assert_allclose(np.hypot(*X.T), 6)
    # The claim of Table 1 of the paper: as similar as the groupings of a ring can be.
    a, b = labels.T
    assert normalized_mutual_information(a, b, normalizer="geometric") == pytest.approx(
        0.369, abs=1e-3
    )
    assert jaccard_index(a, b) == pytest.approx(14 / 44)
    X, labels = make_planar_shapes(400, "moons", noise=0.0, random_state=0)
    inner = labels[:, 1] == 1
    np.testing.assert_allclose(np.hypot(X[:, 0] - 4 * inner, X[:, 1]), 4)
    assert (X[inner, 1] < 0).all() and (X[~inner, 1] > 0).all()
    assert ((X[:, 0] > 4 * inner) == labels[:, 0]).all()
    X, labels = make_planar_shapes(400, "rings", noise=0.0, random_state=0)
    assert ((X[:, 0] > 0) == labels[:, 0]).all()
    radius = np.hypot(abs(X[:, 0]) - 0.15, X[:, 1])
    assert (radius[labels[:, 1] == 1] <= 2).all()
    np.testing.assert_allclose(radius[labels[:, 1] == 0], 4)


def test_draws_repeat_and_noise_is_as_stated():
    plain, labels = make_planar_shapes(4000, noise=0.0, random_state=5)
    X, again = make_planar_shapes(4000, random_state=5)
    assert (labels == again).all()
    np.testing.assert_allclose((X - plain).std(0), 0.7, rtol=0.05)
    assert (make_planar_shapes(4000, random_state=6)[0] != X).any()
    assert make_planar_shapes(7, random_state=0)[0].shape == (7, 2)


def test_bad_parameters_are_refused():
    for arguments, what in (
        ((0,), "n_samples must be at least 1"),
        ((10, "squares"), "shape must be one of 'blobs', 'crescents', 'moons', 'rings'"),
        ((10, "moons", 3), "shape='moons' has two clusters in either grouping; got n_clusters=3"),
    ):
        with pytest.raises(ValueError, match=what):
            make_planar_shapes(*arguments)
    with pytest.raises(ValueError, match="noise must be at least 0"):
        make_planar_shapes(10, noise=-1.0)
    with pytest.raises(TypeError, match="n_clusters must be an integer"):
        make_planar_shapes(10, n_clusters=2.0)
