"""What is read off draws: paths of merges, stable and transient clusters, parts of the matrix."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import label_draws, noisy_draws, renamed
from scipy.cluster import hierarchy

from nrprob.posterior import (
    coclustering,
    expected_loss,
    merge_path,
    point_estimate,
)

LOSSES = ("vi", "binder")
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


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


# ---- paths of merges ----------------------------------------------------------------------------


@settings(deadline=None)
@given(label_draws(max_samples=7), st.sampled_from(LOSSES), st.sampled_from([0.5, 1.0, 1.6]), seeds)
def test_every_merge_is_the_cheapest(draws, loss, split_cost, seed):
    random = np.random.default_rng(seed)
    n = draws.shape[1]
    weights = random.random(len(draws)) + 0.01
    start = random.integers(0, n, n)
    how = {"loss": loss, "split_cost": split_cost, "weights": weights}
    path = merge_path(draws, start, **how)
    k = len(np.unique(start))
    assert path.n_clusters.tolist() == list(range(k, 0, -1))
    before = path.cut(k)
    np.testing.assert_array_equal(before[:, None] == before, start[:, None] == start)
    assert path.expected_loss[0] == pytest.approx(expected_loss(start, draws, **how), abs=1e-12)
    for i in range(1, k):
        after = path.cut(k - i)
        joined = [np.where(before == b, a, before) for a in range(k - i + 1) for b in range(a)]
        best = expected_loss(np.stack(joined), draws, **how).min()
        assert expected_loss(after, draws, **how) == pytest.approx(best, abs=1e-12)
        assert path.expected_loss[i] == pytest.approx(best, abs=1e-12)
        assert len(np.unique(after)) == k - i
        # One partition refines the next.
        assert np.all((before[:, None] != before) | (after[:, None] == after))
        before = after
    np.testing.assert_allclose(path.cost, np.diff(path.expected_loss), atol=1e-15)
    other = merge_path(renamed(draws, random), renamed(start[None], random)[0], **how)
    np.testing.assert_array_equal(path.linkage, other.linkage)
    np.testing.assert_array_equal(path.labels, other.labels)


@settings(deadline=None, max_examples=40)
@given(label_draws(max_draws=12), st.sampled_from(LOSSES))
def test_from_the_estimate_the_loss_rises(draws, loss):
    labels, value = point_estimate(draws, loss, random_state=0, return_loss=True)
    path = merge_path(draws, loss=loss, random_state=0)
    np.testing.assert_array_equal(path.labels, labels)
    assert path.expected_loss[0] == pytest.approx(value, abs=1e-12)
    assert np.all(path.expected_loss >= value - 1e-12)
    assert np.all(path.cost[:1] >= -1e-12)
    if loss == "binder":
        assert np.all(np.diff(path.cost) >= -1e-12)


def test_the_linkage_is_one_of_scipy():
    draws, truth = noisy_draws(n=60, k=6, noise=0.9)
    path = merge_path(draws, truth)
    assert hierarchy.is_valid_linkage(path.linkage) and hierarchy.is_monotonic(path.linkage)
    assert path.linkage[-1, 3] == 6
    rise = np.maximum.accumulate(path.expected_loss - path.expected_loss[0])
    np.testing.assert_allclose(path.linkage[:, 2], rise[1:], atol=1e-15)
    for k in (1, 3, 6):
        of_clusters = hierarchy.cut_tree(path.linkage, k)[:, 0]
        by_scipy = of_clusters[path.labels]
        own = path.cut(k)
        np.testing.assert_array_equal(own[:, None] == own, by_scipy[:, None] == by_scipy)


def test_dendrograms_name_the_clusters():
    draws, truth = noisy_draws(n=12, k=4, n_draws=30)
    path = merge_path(draws, truth)
    ax = path.plot()
    assert {t.get_text() for t in ax.get_yticklabels()} == {f"{c} (n = 3)" for c in range(4)}
    assert path.plot(ax) is ax
    with pytest.raises(ValueError, match="needs two clusters; got a path of one"):
        merge_path(draws, truth * 0).plot()
    with pytest.raises(ValueError, match="n_clusters must be at least 1 and at most 4; got 5"):
        path.cut(5)
