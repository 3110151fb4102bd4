"""Clusters as merged components: dips, merge trees, cuts and paths."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import renamed
from scipy.stats import multivariate_normal

from nrprob import posterior
from nrprob.posterior.components import trees_of_rows
from nrprob.posterior.draws import as_draws
from nrprob.posterior.merge_trees import Components, density_dips, elder_rule, trees_by_dip
from nrprob.posterior.merging import distance_at_ratio, ratio_at_distance

COVARIANCES = ("full", "diag", "tied")
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def blobs(distances, sizes, seed=0, d=2, scale=None):
    """Samples of Gaussian clusters on the first axis, and their labels."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    X = random.normal(size=(len(labels), d))
    if scale is not None:
        X *= np.asarray(scale)[labels, None]
    X[:, 0] += np.asarray(distances)[labels]
    return X, labels


def random_draws(seed, n=40, d=3, n_draws=6, most=6):
    """Samples of a few clusters, and draws that split them further."""
    random = np.random.default_rng(seed)
    truth = random.integers(3, size=n)
    X = random.normal(size=(n, d)) + random.normal(0, 3, (3, d))[truth]
    pieces = random.integers(most, size=(n_draws, n)) % random.integers(1, most, (n_draws, 1))
    return X, truth * (pieces + 1)


# ---- dips ---------------------------------------------------------------------------------------


def dip_on_a_fine_grid(mean, first, second):
    """Dip between normal densities of height 1 at 0 and ``mean``, by inverse covariances."""
    t = np.linspace(0, 1, 4001)[:, None, None]
    t = np.sort(np.concatenate([t, t**6, 1 - t**6]), axis=0)
    p, q = np.linalg.inv(first), np.linalg.inv(second)
    x = np.linalg.solve((1 - t) * p + t * q, (t[:, 0] * (q @ mean))[..., None])[..., 0]
    heights = (
        multivariate_normal(at, c).logpdf(x) - multivariate_normal(at, c).logpdf(at)
        for at, c in ((0 * mean, first), (mean, second))
    )
    height = np.logaddexp(*heights)
    change = np.diff(height)
    falls, rises = np.flatnonzero(change < -1e-12), np.flatnonzero(change > 1e-12)
    if not falls.size or not rises.size or falls[0] > rises[-1]:
        return 0.0
    a, b = falls[0], rises[-1] + 1
    return min(height[a], height[b]) - height[a : b + 1].min()


@settings(deadline=None, max_examples=40)
@given(seeds, st.integers(1, 4), st.sampled_from([(10**9, 10**9), (8, 15)]))
def test_dips_are_the_dips_of_a_fine_grid(seed, d, sizes):
    random = np.random.default_rng(seed)
    means = random.normal(0, 2.5, (2, d))
    root = random.normal(size=(2, d, d))
    covariances = root @ root.transpose(0, 2, 1) + 0.3 * np.eye(d)
    draws = as_draws([[0, 1] * 2])
    object.__setattr__(draws, "sizes", np.array(sizes))
    trees = trees_by_dip(draws, Components(means, covariances))
    # The difference of the means without its sampling error.
    n = np.array(sizes, dtype=float)
    difference = means[1] - means[0]
    average = (n[0] * covariances[0] + n[1] * covariances[1]) / n.sum()
    squared = difference @ np.linalg.inv(average) @ difference
    difference *= np.sqrt(max(squared - d * (1 / n).sum(), 0) / squared)
    exact = dip_on_a_fine_grid(difference, *covariances)
    heights = np.log(n) - np.linalg.slogdet(covariances)[1] / (2 * d)
    assert np.isinf(trees.prominence[heights.argmax()])
    prominence = trees.prominence[heights.argmin()]
    if exact < 2:
        assert prominence == pytest.approx(exact, abs=0.06)
    else:
        assert prominence > 1.9


def test_dips_of_equal_covariances_depend_on_the_distance_alone():
    distance = np.array([1.9, 3.0, 4.0, 6.0])
    dips = density_dips(distance[:, None], np.ones((4, 1)))
    assert dips[0] < 1e-9
    np.testing.assert_allclose(dips[1:], -np.log(ratio_at_distance(distance[1:])), atol=0.005)
    turned = distance[:, None] * [0.6, 0.8]
    np.testing.assert_allclose(density_dips(turned, np.ones((4, 2))), dips, atol=1e-12)


def test_distances_invert_ratios():
    ratio = np.array([1.0, 0.64, 0.27, 0.02])
    np.testing.assert_allclose(ratio_at_distance(distance_at_ratio(ratio)), ratio, rtol=1e-4)
    np.testing.assert_allclose(distance_at_ratio(np.array([0.64, 0.27])), [3, 4], atol=0.02)
    assert distance_at_ratio(np.array([1.0])) == 2  # two equal clusters have one peak up to 2 sd
    distance = np.array([2.2, 2.5, 3.0, 6.0])
    x = np.linspace(0, distance, 100_001)  # from the middle of both clusters
    density = np.exp(-np.square(x - distance / 2) / 2) + np.exp(-np.square(x + distance / 2) / 2)
    expected = density[0] / density.max(axis=0)
    np.testing.assert_allclose(ratio_at_distance(distance), expected, rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(seeds)
def test_dips_do_not_depend_on_the_order_of_two_components(seed):
    random = np.random.default_rng(seed)
    shift, ratio = random.normal(0, 2, (1, 3)), np.exp(random.normal(0, 2, (1, 3)))
    other = density_dips(-shift / np.sqrt(ratio), 1 / ratio)
    np.testing.assert_allclose(density_dips(shift, ratio), other, atol=1e-9)


# ---- trees --------------------------------------------------------------------------------------


def clusters_by_definition(heights, levels, nats):
    """Partition (k,) by the elder rule, from its definition: edges by falling level."""
    k = len(heights)
    parent, prominence, group = list(range(k)), [np.inf] * k, {c: {c} for c in range(k)}
    for a, b in sorted(itertools.combinations(range(k), 2), key=lambda edge: -levels[edge]):
        if group[a] is group[b]:
            continue
        tops = sorted(max(group[c], key=lambda i: heights[i]) for c in (a, b))
        low, high = sorted(tops, key=lambda i: heights[i])
        parent[low], prominence[low] = high, heights[low] - levels[a, b]
        joint = group[a] | group[b]
        group |= dict.fromkeys(joint, joint)
    result = list(range(k))
    for c in range(k):
        while prominence[result[c]] < nats:
            result[c] = parent[result[c]]
    return np.array(result)


@settings(deadline=None)
@given(seeds, st.integers(1, 7), st.floats(0.05, 3))
def test_trees_follow_the_elder_rule(seed, k, nats):
    random = np.random.default_rng(seed)
    heights = random.normal(size=(3, k))
    dips = np.triu(random.exponential(size=(3, k, k)), 1)
    levels = np.minimum(heights[:, :, None], heights[:, None]) - dips - dips.transpose(0, 2, 1)
    parent, prominence = elder_rule(heights, levels)
    for s in range(3):
        own = np.arange(k)
        for _ in range(k):
            own = np.where(prominence[s, own] >= nats, own, parent[s, own])
        np.testing.assert_array_equal(own, clusters_by_definition(heights[s], levels[s], nats))


@settings(deadline=None, max_examples=25)
@given(seeds, st.sampled_from(COVARIANCES))
def test_partitions_are_nested_and_numbers_fall(seed, covariance):
    X, draws = random_draws(seed)
    trees = trees_of_rows(as_draws(draws), X, covariance)
    before = as_draws(draws).codes
    for threshold in (1.0, 0.8, 0.5, 0.2, 0.02, 1e-12):
        after = trees.cut(threshold).codes
        # Two samples in one cluster stay in one cluster.
        joined = before[:, :, None] == before[:, None]
        assert (after[:, :, None] == after[:, None])[joined].all()
        before = after


@settings(deadline=None, max_examples=25)
@given(seeds, st.sampled_from(["full", "tied"]))
def test_clusters_do_not_depend_on_labels_or_units(seed, covariance):
    X, draws = random_draws(seed)
    random = np.random.default_rng(seed)
    trees = trees_of_rows(as_draws(draws), X, covariance)
    units = random.normal(size=(3, 3)) + 2 * np.eye(3)
    other = trees_of_rows(as_draws(renamed(draws, random)), X @ units + 5, covariance)
    np.testing.assert_allclose(trees.prominence, other.prominence, atol=1e-5)
    np.testing.assert_array_equal(trees.parent, other.parent)


def test_diagonal_clusters_do_not_depend_on_scales():
    X, draws = random_draws(1)
    trees = trees_of_rows(as_draws(draws), X, "diag")
    other = trees_of_rows(as_draws(draws), X * [0.01, 3, 1000] - 7, "diag")
    np.testing.assert_allclose(trees.prominence, other.prominence, atol=1e-6)


def test_equal_draws_have_equal_trees():
    X, draws = random_draws(2)
    single = trees_of_rows(as_draws(draws), X, "full")
    several = trees_of_rows(as_draws(np.concatenate([draws[::-1], draws])), X, "full")
    n = len(single.prominence)
    np.testing.assert_array_equal(several.prominence[n:], single.prominence)
    np.testing.assert_array_equal(several.parent[n:], single.parent + n)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_single_component_is_unchanged(covariance):
    X, _ = blobs([0, 8], [30, 30])
    result = posterior.clusters(np.zeros((2, 5, 60), int), X, covariance=covariance)
    assert not result.draws.any() and result.draws.shape == (2, 5, 60)
    assert (result.n_clusters == 1).all() and result.r_hat == 1


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_separated_components_stay_at_a_dip_of_one(covariance):
    X, labels = blobs([0, 3.5, 9], [60, 60, 60])
    result = posterior.clusters(labels[None], X, covariance=covariance, dip=1)
    np.testing.assert_array_equal(result.draws[0], labels)
    pieces = labels * 2 + np.arange(180) % 2  # of one density, so without a dip
    result = posterior.clusters(pieces[None], X, covariance="full", dip=1)
    np.testing.assert_array_equal(result.labels, labels)


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_a_low_bridge_leaves_two_clusters(covariance):
    # The bridge touches both clusters. Its height is its size divided by its spread.
    for size, n_clusters in ((30, 2), (300, 1)):
        X, labels = blobs([0, 2.5, 5], [200, size, 200], scale=[1, 1.2, 1])
        result = posterior.clusters(labels[None], X, covariance=covariance)
        assert result.n_clusters.tolist() == [n_clusters]
        assert len({*result.labels[labels != 1]}) == n_clusters


@settings(deadline=None)
@given(seeds, st.floats(0.05, 1))
def test_bridges_below_the_ratio_join_no_clusters(seed, ratio):
    random = np.random.default_rng(seed)
    heights = np.append(random.normal(size=2), 0)
    heights[2] = heights[:2].min() + np.log(ratio) - random.exponential() - 1e-6
    dips = np.array([[0, 50, 0], [50, 0, 0], [0, 0, 0]])  # the bridge touches both clusters
    levels = np.minimum(heights[:, None], heights) - dips
    prominence = elder_rule(heights[None], levels[None])[1][0]
    assert (prominence[:2] >= -np.log(ratio)).all() and prominence[2] == 0


def test_components_of_different_classes_never_merge():
    X, labels = blobs([0, 0.5, 1, 9], [40, 40, 40, 40])
    classes = np.full(160, -1)
    classes[[0, 1, 85]] = 0, 0, 1
    trees = trees_of_rows(as_draws(labels[None]), X, "full", classes)
    merged = trees.cut(1e-12).codes[0]
    assert merged[0] != merged[85]
    # The other components join one of the two groups.
    assert np.unique(merged).size == 2
    assert np.unique(trees_of_rows(as_draws(labels[None]), X, "full").cut(1e-12).codes).size == 1


# ---- summaries ----------------------------------------------------------------------------------


def test_small_clusters_have_labels_and_do_not_count():
    X, labels = blobs([0, 30, 60], [150, 48, 2])
    result = posterior.clusters(np.tile(labels, (2, 6, 1)), X)
    np.testing.assert_array_equal(result.labels, labels)
    assert (result.n_clusters == 2).all() and (result.n_small == 1).all()
    np.testing.assert_allclose(result.small_share, 0.01)
    assert result.floor == 4 and result.probabilities.index.tolist() == [2]
    # The largest cluster always counts.
    pairs = posterior.clusters([[0, 0, 1, 1]], [[0.0], [1e-3], [9], [9 + 1e-3]], covariance="diag")
    assert pairs.n_clusters.tolist() == [2]


def test_paths_have_the_numbers_of_clusters_of_their_thresholds():
    X, draws = random_draws(3, n=80, n_draws=20)
    path = posterior.cluster_path(draws, X)
    np.testing.assert_allclose(path.probabilities.sum(axis=1), 1)
    for i in (0, 60, 200):
        result = posterior.clusters(draws, X, dip=path.thresholds[i])
        p = path.probabilities.iloc[i]
        assert p[p > 0].to_dict() == pytest.approx(result.probabilities["probability"].to_dict())


def test_plateaus_are_named():
    X, labels = blobs([0, 3.2, 13], [400, 400, 400])
    path = posterior.cluster_path(labels[None], X)
    assert path.plateaus["n_clusters"].tolist() == [3, 2]
    start, stop = path.plateaus.loc[0, ["sd_start", "sd_stop"]]
    assert start == 2 and stop == pytest.approx(3.2, abs=0.3)
    assert str(path).startswith("3 clusters for dips from 1.00 to 0.")
    assert f"(dips of two equal Gaussian clusters 2.0 to {stop:.1f} sd apart)" in str(path)
    assert str(posterior.cluster_path(labels[None], X, dip=0.3)).startswith("2 clusters for dips")
    # The path ends at the smaller one of the dip and 0.02.
    distant = X + 40 * labels[:, None]
    path = posterior.cluster_path(labels[None], distant, dip=0.004)
    assert str(path).startswith("3 clusters for dips from 1.00 to 0.004 (dips of")


def test_without_a_plateau_both_neighbours_are_printed():
    X, labels = blobs([0, 3.2, 13], [400, 400, 400])
    # The first two clusters are as far apart as drawn in half of the draws, and farther in others.
    joined = np.where(labels == 1, 0, labels)
    path = posterior.cluster_path([labels] * 6 + [joined] * 4, X)
    assert path.plateaus["n_clusters"].tolist() == [2]
    text = str(path)
    assert "at the dip 0.5, no number has a probability of 0.8" in text
    assert "2 clusters for dips from" in text


@pytest.mark.parametrize("n_values", [2, 14])
def test_paths_are_stacked_areas_with_two_axes(n_values):
    X, _ = blobs(8 * np.arange(n_values), [10] * n_values)
    draws = np.minimum(np.arange(10 * n_values) // 10, np.arange(n_values)[:, None])
    path = posterior.cluster_path(draws, X)
    ax = path.plot()
    assert path.plot(ax) is ax
    assert ax.get_xlim() == (1, pytest.approx(0.02))
    ax.figure.draw_without_rendering()
    (top,) = [a for a in ax.child_axes if "sd" in a.get_xlabel()][:1]
    for distance in (2.5, 4.0, 6.0):
        place = ax.transData.transform((ratio_at_distance(distance), 0))[0]
        assert top.transData.transform((distance, 0))[0] == pytest.approx(place, abs=0.1)
    assert len(ax.collections) >= min(n_values, 12)


def test_columns_without_information_are_ignored():
    X, labels = blobs([0, 6], [30, 30])
    wide = np.column_stack([X, X.sum(1), np.ones(60)])
    plain = trees_of_rows(as_draws(labels[None]), X, "full")
    np.testing.assert_allclose(
        trees_of_rows(as_draws(labels[None]), wide, "full").prominence, plain.prominence, rtol=1e-5
    )
    assert posterior.clusters(labels[None], np.ones((60, 2))).n_clusters.tolist() == [1]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda z, x: posterior.clusters(z), ValueError, "without X; pass X, or a fitted"),
        (lambda z, x: posterior.clusters(z, x[:2]), ValueError, "one row per sample of the draws"),
        (
            lambda z, x: posterior.clusters(z, x, dip=0),
            ValueError,
            "dip must be at least 0.001 .*; got",
        ),
        (lambda z, x: posterior.clusters(z, x, dip="a"), TypeError, "dip must be a number"),
        (lambda z, x: posterior.clusters(z, x * np.nan), ValueError, "X must be finite; got 3"),
        (lambda z, x: posterior.clusters(z, [["a"]] * 3), TypeError, "X must have numbers; got"),
        (lambda z, x: posterior.cluster_path(z, x, covariance="x"), ValueError, "covariance must"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(np.array([[0, 0, 1], [0, 1, 1]]), np.array([[0.0], [1], [2]]))
