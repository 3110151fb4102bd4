"""Summaries of draws: stable and transient clusters, parts of the matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import label_draws, noisy_draws, renamed

from nrprob.posterior import (
    coclustering,
    stable_clusters,
)

seeds = st.integers(0, 2**32 - 1)


# ---- rows and pairs of the co-clustering probabilities -----------------------------------------


@settings(deadline=None)
@given(label_draws(max_samples=9), seeds)
def test_rows_and_pairs_are_those_of_the_matrix(draws, seed):
    random = np.random.default_rng(seed)
    n = draws.shape[1]
    weights = random.random(len(draws)) + 0.1 if seed % 2 else None
    whole = coclustering(draws, weights)
    rows = random.integers(0, n, 4)
    np.testing.assert_allclose(coclustering(draws, weights, rows=rows), whole[rows], atol=1e-12)
    pairs = random.integers(0, n, (5, 2))
    some = coclustering(draws, weights, pairs=pairs)
    np.testing.assert_allclose(some, whole[pairs[:, 0], pairs[:, 1]], atol=1e-12)


def test_rows_and_pairs_in_blocks(monkeypatch):
    from nrprob.posterior import similarity

    draws, _ = noisy_draws(n=30, n_draws=50)
    whole = coclustering(draws)
    monkeypatch.setattr(similarity, "_CACHED", 250)
    monkeypatch.setattr(similarity, "_LEAST", 1)
    np.testing.assert_allclose(coclustering(draws, rows=range(7, 20)), whole[7:20], atol=1e-12)
    pairs = np.argwhere(np.triu(whole, 1) > 0)
    np.testing.assert_allclose(coclustering(draws, pairs=pairs), whole[tuple(pairs.T)], atol=1e-12)


def test_a_matrix_that_does_not_fit_is_refused():
    draws = np.zeros((1, 20_001), dtype=int)
    with pytest.raises(ValueError, match=r"20,000 x 20,000 .*; got 20,001 .* rows= .* pairs="):
        coclustering(draws)
    assert coclustering(draws, rows=[3, 20_000]).shape == (2, 20_001)
    assert coclustering(draws, pairs=[[3, 20_000]]).tolist() == [1.0]


# ---- stable and transient clusters --------------------------------------------------------------


def jaccard(a, b):
    return np.sum(a & b) / np.sum(a | b)


@settings(deadline=None)
@given(label_draws(max_samples=9), st.sampled_from([0.5, 0.75, 1.0]), seeds)
def test_recovery_is_its_definition(draws, threshold, seed):
    random = np.random.default_rng(seed)
    n = draws.shape[1]
    center = random.integers(0, 3, n)
    result = stable_clusters(draws, center, threshold=threshold)
    k = len(np.unique(center))
    np.testing.assert_array_equal(
        center[:, None] == center, result.center[:, None] == result.center
    )
    for c in range(k):
        own = result.center == c
        best = [max(jaccard(own, z == name) for name in np.unique(z)) for z in draws]
        np.testing.assert_allclose(result.recovery[:, c], best, atol=1e-12)
        row = result.clusters.loc[c]
        assert row["size"] == own.sum()
        assert row["mean"] == pytest.approx(np.mean(best))
        assert row["probability"] == pytest.approx(np.mean(np.array(best) >= threshold - 1e-12))
        levels = np.quantile(best, [0.05, 0.5, 0.95], method="inverted_cdf")
        np.testing.assert_allclose(row[["q05", "median", "q95"]], levels, atol=1e-12)
    assert result.clusters.index.tolist() == list(range(k))


@settings(deadline=None)
@given(label_draws(max_samples=9), st.sampled_from([0.3, 0.5, 0.8]), seeds)
def test_transient_clusters_are_in_the_draws_and_like_none_of_the_centre(draws, likeness, seed):
    random = np.random.default_rng(seed)
    n = draws.shape[1]
    center = random.integers(0, 3, n)
    result = stable_clusters(draws, center, likeness=likeness, min_probability=0.01)

    def apart(cluster):
        return all(
            jaccard(cluster, result.center == c) < likeness - 1e-12
            for c in np.unique(result.center)
        )

    loose = [[z == name for name in np.unique(z) if apart(z == name)] for z in draws]
    assert result.present.shape == (len(draws), len(result.core_rows))
    for t, rows in enumerate(result.core_rows):
        row, there = result.transient.loc[t], result.present[:, t]
        assert row["probability"] == pytest.approx(there.mean()) and there.any()
        assert row["core"] == len(rows) > 0
        assert all(loose[s] for s in np.flatnonzero(there))
        sizes = [[x.sum() for x in loose[s]] for s in np.flatnonzero(there)]
        low, high = np.mean([min(x) for x in sizes]), np.mean([max(x) for x in sizes])
        assert low - 1e-9 <= row["size"] <= high + 1e-9
        assert row["within"] == np.bincount(result.center[rows]).argmax()
    assert result.transient["probability"].is_monotonic_decreasing
    # All recurring clusters are found if none is too rare.
    assert bool(result.core_rows) or not any(loose)

    other = stable_clusters(
        renamed(draws, random), renamed(center[None], random)[0], likeness=likeness,
        min_probability=0.01,
    )  # fmt: skip
    np.testing.assert_array_equal(result.recovery, other.recovery)
    np.testing.assert_array_equal(result.present, other.present)
    assert result.transient.equals(other.transient) and result.clusters.equals(other.clusters)


def visited_draws(n=200, n_chains=2, n_draws=200, seed=0):
    """Draws around four clusters; 12 rows of one leave it in a third, 20 of another in a tenth."""
    random = np.random.default_rng(seed)
    truth = np.repeat(np.arange(4), n // 4)
    leavers = np.arange(12), 50 + np.arange(20)
    draws = np.tile(truth, (n_chains, n_draws, 1))
    there = random.random((n_chains, n_draws, 2)) < [1 / 3, 0.1]
    for where in np.ndindex(n_chains, n_draws):
        for rows, name, leave in zip(leavers, (4, 5), there[where], strict=True):
            if leave:  # most of the rows, and another row
                draws[where][rows[random.random(len(rows)) < 0.9]] = name
                draws[where][random.integers(100, n)] = name
    return renamed(draws, random), truth, there, leavers


@pytest.mark.parametrize("grouped", [3000, 60])  # from all draws that contain them, and from some
def test_planted_visitors_are_found(monkeypatch, grouped):
    from nrprob.posterior import stability

    monkeypatch.setattr(stability, "_GROUPED", grouped)
    draws, truth, there, leavers = visited_draws()
    result = stable_clusters(draws, truth)
    assert result.recovery.shape == (2, 200, 4)
    assert result.transient["within"].tolist() == [0, 1]
    np.testing.assert_array_equal(result.present, there)
    np.testing.assert_allclose(result.transient["probability"], there.mean(axis=(0, 1)))
    for core, rows in zip(result.core_rows, leavers, strict=True):
        np.testing.assert_array_equal(core, rows)
    assert result.clusters["probability"].tolist()[2:] == [1.0, 1.0]
    assert stable_clusters(draws, truth, min_probability=0.2).transient["core"].tolist() == [12]


@settings(deadline=None, max_examples=25)
@given(label_draws(max_draws=5), st.data())
def test_weights_of_stable_clusters_are_repetitions(draws, data):
    size = len(draws)
    times = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size).filter(any))
    a = stable_clusters(draws, draws[0], weights=times).clusters
    b = stable_clusters(np.repeat(draws, times, axis=0), draws[0]).clusters
    np.testing.assert_allclose(a, b, atol=1e-12)


def test_draws_that_agree_have_no_visitors():
    draws = np.tile([0, 0, 1, 1, 2], (2, 10, 1))
    result = stable_clusters(draws, random_state=0)
    np.testing.assert_allclose(result.clusters["probability"], 1.0)
    assert result.transient.empty and result.core_rows == []
    assert result.present.shape == (2, 10, 0)
    assert result.transient.columns.tolist() == ["probability", "size", "core", "within"]


# ---- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: coclustering(z, rows=[0], pairs=[[0, 1]]), "exclude each other; got both; call"),
        (
            lambda z: coclustering(z, rows=[0.5]),
            r"whole numbers; got dtype float64 and shape \(1,\)",
        ),
        (lambda z: coclustering(z, rows=[-1]), "rows must be positions of samples; got -1 to -1"),
        (lambda z: coclustering(z, pairs=[[0, 3]]), "got 0 to 3 for 3 samples; count from 0"),
        (lambda z: coclustering(z, pairs=[0, 1]), r"of shape \(n_pairs, 2\); got dtype"),
        (lambda z: stable_clusters(z, threshold=0), "threshold must be more than 0 .*; got 0"),
        (lambda z: stable_clusters(z, likeness=2), "likeness must be .* at most 1; got 2"),
        (lambda z: stable_clusters(z, min_probability=-1), "min_probability must be .*; got -1"),
        (lambda z: stable_clusters(z, [0, 1]), "center must have one label per sample"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.array([[0, 0, 1], [0, 1, 1]]))
