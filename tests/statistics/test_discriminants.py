"""Discriminant plane: its directions, for dense and sparse rows."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from nrprob.statistics.discriminants import DISCRIMINANT, NOTHING, PRINCIPAL, discriminant_plane

RANDOM = np.random.RandomState(0)


@pytest.fixture
def rows():
    rng = np.random.default_rng(1)
    groups, codes = rng.integers(4, size=120), rng.integers(3, size=120)
    spread = rng.normal(size=(5, 5))
    X = rng.normal(size=(120, 5)) @ spread + rng.normal(size=(3, 5))[codes]
    return X + 30 * rng.normal(size=(4, 5))[groups], codes, groups


def residuals(X, groups, codes):
    """Features without the effects of groups, fitted with clusters, with mean 0."""
    design = np.eye(groups.max() + 1)[groups]
    both = np.column_stack([design, np.eye(codes.max() + 1)[codes]])
    rest = X - design @ np.linalg.lstsq(both, X, rcond=None)[0][: design.shape[1]]
    return rest - rest.mean(0)


def alike(one, other):
    """Absolute correlations of columns."""
    return np.abs([np.corrcoef(a, b)[0, 1] for a, b in zip(one.T, other.T, strict=True)])


def test_discriminants_are_those_of_the_residuals(rows):
    X, codes, groups = rows
    result = discriminant_plane(X, codes[:, None], groups, RANDOM)
    assert result.kinds == (DISCRIMINANT, DISCRIMINANT)
    lda = LinearDiscriminantAnalysis().fit(residuals(X, groups, codes), codes)
    expected = lda.transform(residuals(X, groups, codes))
    np.testing.assert_allclose(alike(result.places, expected), 1, rtol=1e-9)
    np.testing.assert_allclose(result.places.T @ result.places / 120, np.eye(2), atol=1e-9)


def test_it_knows_nothing_of_groups_and_units(rows):
    X, codes, groups = rows
    before = discriminant_plane(X, codes[:, None], groups, RANDOM).places
    moved = X + np.arange(20).reshape(4, 5)[groups]
    after = discriminant_plane(
        (moved * [1, 10, 100, 1e3, 1e-3])[:, ::-1], codes[:, None], groups, RANDOM
    ).places
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_principal_directions_where_there_are_fewer(rows):
    X, codes, groups = rows
    rest = residuals(X, groups, np.zeros(120, int))
    result = discriminant_plane(X, np.zeros((120, 1), int), groups, RANDOM)
    assert result.kinds == (PRINCIPAL, PRINCIPAL)
    np.testing.assert_allclose(alike(result.places, PCA(2).fit_transform(rest)), 1, rtol=1e-9)
    result = discriminant_plane(X, (codes > 0)[:, None].astype(int), groups, RANDOM)
    assert result.kinds == (DISCRIMINANT, PRINCIPAL)
    first, rest = result.places[:, :1], residuals(X, groups, (codes > 0).astype(int))
    left = rest - first @ (first.T @ rest) / 120
    expected = PCA(1).fit_transform(left)
    np.testing.assert_allclose(alike(result.places[:, 1:], expected), 1, rtol=1e-9)


def test_several_labelings_share_it():
    rng = np.random.default_rng(2)
    codes = rng.integers(2, size=(200, 2))
    X = rng.normal(size=(200, 6))
    X[:, 2:4] += 8 * codes
    result = discriminant_plane(X, codes, np.zeros(200, int), RANDOM).places
    # A line in the plane separates each labeling.
    for own in codes.T:
        side = LinearDiscriminantAnalysis().fit(result, own)
        assert side.score(result, own) > 0.99


@pytest.mark.parametrize("as_rows", [np.asarray, scipy.sparse.csr_array, np.float32])
def test_clusters_are_seen_in_many_features_of_larger_variance(as_rows):
    rng = np.random.default_rng(3)
    groups = rng.integers(2, size=300)
    codes = (rng.random(300) < 0.3 + 0.4 * groups).astype(int)
    X = rng.normal(size=(300, 400)) * np.linspace(9, 1, 400) + 200 * groups[:, None]
    X[:, 399] += 9 * codes
    result = discriminant_plane(as_rows(X), codes[:, None], groups, np.random.RandomState(0))
    assert result.kinds == (DISCRIMINANT, PRINCIPAL)
    first, apart = (
        result.places[:, 0],
        np.diff([result.places[codes == c, 0].mean() for c in (0, 1)]),
    )
    assert abs(apart) > 2 * np.sqrt(sum(first[codes == c].var() for c in (0, 1)) / 2)
    leading = PCA(1).fit_transform(residuals(X, groups, codes))[:, 0]
    assert abs(np.corrcoef(result.places[:, 1], leading)[0, 1]) > 0.9


def test_rows_without_directions():
    codes = np.arange(6) % 2
    line = np.arange(6.0)[:, None] * [1, 2, 3]
    result = discriminant_plane(line, codes[:, None], np.zeros(6, int), RANDOM)
    assert result.kinds == (DISCRIMINANT, NOTHING) and not result.places[:, 1].any()
    result = discriminant_plane(line, codes[:, None], np.arange(6), RANDOM)
    assert result.kinds == (NOTHING, NOTHING) and not result.places.any()
    result = discriminant_plane(np.full((6, 3), 0.1), codes[:, None], np.zeros(6, int), RANDOM)
    assert result.kinds == (NOTHING, NOTHING) and not result.places.any()
