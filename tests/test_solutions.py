"""Measures of several clusterings of the same rows, and of one, agree with loops and laws."""

import doctest
import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from nrprob import metrics
from nrprob.metrics import solutions

TOL = 1e-12
quick = settings(deadline=None, max_examples=40)
MEASURES = sorted(solutions._AGREEMENTS)


@st.composite
def labelled_points(draw, n_labelings=1):
    n = draw(st.integers(2, 9))
    one = st.lists(st.integers(0, 3), min_size=n, max_size=n)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    X = rng.normal(size=(n, 2)) * 10.0 ** draw(st.integers(-3, 3))
    return X, np.array([draw(one) for _ in range(n_labelings)]).T


def brute_silhouette(X, labels):
    widths = []
    for i, own in enumerate(labels):
        apart = [math.dist(X[i], x) for x in X]
        mean = {c: np.mean([d for j, d in enumerate(apart) if labels[j] == c and j != i] or [0.0])
                for c in set(labels.tolist())}  # fmt: skip
        a, b = mean[own], min(d for c, d in mean.items() if c != own)
        alone = (labels == own).sum() == 1
        widths.append(0.0 if alone or not max(a, b) else (b - a) / max(a, b))
    return np.mean(widths)


# --- one clustering -----------------------------------------------------------------------------


@quick
@given(labelled_points())
def test_silhouette_against_loops(sample):
    X, labels = sample[0], sample[1][:, 0]
    result = metrics.silhouette_width(X, labels)
    if not 2 <= len(set(labels.tolist())) < len(labels):
        assert math.isnan(result)
        return
    assert result == pytest.approx(brute_silhouette(X, labels), abs=1e-9)
    assert -1 <= result <= 1


@quick
@given(labelled_points(2))
def test_quantization_error_against_loops_and_its_laws(sample):
    X, (labels, other) = sample[0], sample[1].T
    error = metrics.vector_quantization_error
    expected = sum(
        math.dist(x, X[labels == c].mean(0)) ** 2 for x, c in zip(X, labels, strict=True)
    )
    scale = np.square(X).sum()
    assert error(X, labels) == pytest.approx(expected / len(X), abs=1e-12 * scale)
    # One cluster has the variance, clusters of one row have none, and a split raises nothing.
    assert error(X, np.zeros(len(X))) == pytest.approx(X.var(0).sum(), abs=1e-12 * scale)
    assert error(X, np.arange(len(X))) == 0
    assert error(X, 4 * labels + other) <= error(X, labels) + 1e-12 * scale
    moved = error(3 * X[::-1] + 5, labels[::-1])
    assert moved == pytest.approx(9 * error(X, labels), abs=1e-9 * max(scale, 1))


def test_quantization_error_is_what_k_means_minimises():
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = KMeans(4, n_init=1, random_state=0, tol=0).fit(X)
    error = metrics.vector_quantization_error(X, model.labels_)
    assert error == pytest.approx(model.inertia_ / 60, rel=1e-12)


@pytest.mark.parametrize("f", [metrics.silhouette_width, metrics.vector_quantization_error])
def test_refusals_of_one(f):
    with pytest.raises(ValueError, match="X and labels must have the same length; got 3 and 2"):
        f(np.zeros((3, 2)), [0, 1])
    with pytest.raises(ValueError, match="contains NaN"):
        f(np.full((3, 2), np.nan), [0, 1, 1])
    with pytest.raises(ValueError, match="labels must not have missing labels"):
        f(np.zeros((2, 2)), ["a", None])


# --- several ------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES)
@settings(deadline=None, max_examples=15)
@given(sample=labelled_points(3))
def test_agreement_is_that_of_every_pair(measure, sample):
    labelings = sample[1]
    f = getattr(metrics, measure)
    result = metrics.pairwise_agreement(labelings, measure=measure)
    expected = [[f(a, b) for b in labelings.T] for a in labelings.T]
    np.testing.assert_allclose(result, expected, atol=TOL)
    np.testing.assert_array_equal(result, result.T)
    np.testing.assert_allclose(result.diagonal(), 1, atol=TOL)
    # Another data set has the same columns, and no more.
    across = metrics.pairwise_agreement(labelings[:, :2], labelings[:, 2], measure=measure)
    np.testing.assert_allclose(across, result[:2, 2:], atol=TOL)
    # Labels of clusters, and the order of labelings, do not matter.
    words = np.array(["d", "a", "c", "b"])[labelings]
    renamed = metrics.pairwise_agreement([*words.T[::-1]], measure=measure)
    np.testing.assert_allclose(renamed, result[::-1, ::-1], atol=TOL)
    mean = np.mean([1 - f(a, b) for a, b in itertools.combinations(labelings.T, 2)])
    assert metrics.mean_dissimilarity(labelings, measure=measure) == pytest.approx(mean, abs=TOL)


def test_dissimilarity_of_equal_and_of_independent_labelings():
    rows, columns = np.repeat([0, 1, 2], 3), np.tile([0, 1, 2], 3)
    for measure in MEASURES:
        assert metrics.mean_dissimilarity([rows, 2 - rows, rows], measure=measure) == 0
    assert metrics.mean_dissimilarity([rows, columns]) == pytest.approx(1, abs=TOL)
    # No pair of rows is together in both.
    assert metrics.mean_dissimilarity([rows, columns], measure="jaccard_index") == 1


def test_scores_are_those_of_every_solution():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 2))
    labelings = pd.DataFrame(rng.integers(3, size=(30, 3)), columns=["a", "b", "c"])
    known = pd.DataFrame({"x": rng.integers(2, size=30), "y": rng.integers(2, size=30)})
    options = {"separation": "average", "diameter": "mean"}
    table = metrics.score_solutions(X, labelings, known, measure="jaccard_index", **options)
    assert table.index.tolist() == ["a", "b", "c"] and table.shape == (3, 7)
    for name, row in table.iterrows():
        own, rest = labelings[name], labelings.drop(columns=name)
        assert row["n_clusters"] == 3
        assert row["silhouette_width"] == metrics.silhouette_width(X, own)
        assert row["dunn_index"] == metrics.dunn_index(X, own, **options)
        assert row["vector_quantization_error"] == metrics.vector_quantization_error(X, own)
        others = [1 - metrics.jaccard_index(own, rest[other]) for other in rest]
        assert row["dissimilarity_from_others"] == pytest.approx(np.mean(others), abs=TOL)
        for old in known:
            unlike = 1 - metrics.jaccard_index(own, known[old])
            assert row[f"dissimilarity_from_{old}"] == pytest.approx(unlike, abs=TOL)


def test_scores_of_one_solution_and_one_known():
    X = np.arange(6.0)[:, None]
    table = metrics.score_solutions(X, [0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1])
    assert table.index.tolist() == [0] and "dissimilarity_from_others" not in table
    assert 0 < table["dissimilarity_from_known"][0] < 1
    assert "dissimilarity_from_known" not in metrics.score_solutions(X, [0, 0, 0, 1, 1, 1])
    for labels in ([0] * 6, np.arange(6)):  # whose Dunn index is NaN
        with pytest.raises(
            ValueError, match="two clusters or more.*Dunn index of nan in labeling 0"
        ):
            metrics.score_solutions(X, labels)
    several = metrics.score_solutions(X, [0, 0, 0, 1, 1, 1], [[0, 1, 0, 1, 0, 1]] * 2)
    assert [*several.columns[-2:]] == ["dissimilarity_from_0", "dissimilarity_from_1"]


def test_refusals_of_several():
    two = [[0, 1, 1], [0, 0, 1]]
    with pytest.raises(ValueError, match="measure must be one of .*; got 'purity'; choose"):
        metrics.pairwise_agreement(two, measure="purity")
    with pytest.raises(ValueError, match=r"labelings\[0\] and labelings\[1\] must have the same"):
        metrics.pairwise_agreement([[0, 1], [0, 1, 1]])
    with pytest.raises(ValueError, match=r"labelings\[0\] and others\[0\] .*; got 3 and 2"):
        metrics.pairwise_agreement(two, [0, 1])
    with pytest.raises(ValueError, match="others must hold at least one labeling; got none"):
        metrics.pairwise_agreement(two, [])
    with pytest.raises(ValueError, match="hold at least two labelings; got 1; pass one"):
        metrics.mean_dissimilarity([0, 1, 1])
    with pytest.raises(ValueError, match="X and labels must have the same length; got 2 and 3"):
        metrics.score_solutions(np.zeros((2, 1)), two)


def test_examples():
    assert doctest.testmod(solutions).failed == 0 < doctest.testmod(solutions).attempted
