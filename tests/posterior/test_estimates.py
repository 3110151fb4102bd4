"""Losses, point estimates and credible balls vs enumeration of all partitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import all_partitions, label_draws, noisy_draws, renamed, split_and_merge, vi

from nrprob import metrics
from nrprob.posterior import coclustering, credible_ball, expected_loss, point_estimate
from nrprob.posterior import estimates as estimates_module
from nrprob.posterior.draws import as_draws
from nrprob.posterior.losses import as_loss
from nrprob.posterior.search import CellSearch, PairSearch

LOSSES = ("vi", "binder")
seeds = st.integers(0, 2**32 - 1)


def test_brute_force_counts_bell_numbers():
    assert [len(all_partitions(n)) for n in range(1, 7)] == [1, 2, 5, 15, 52, 203]


# ---- co-clustering ------------------------------------------------------------------------------


@settings(deadline=None)
@given(label_draws(max_samples=9), seeds)
def test_coclustering_is_its_definition(draws, seed):
    weights = np.random.default_rng(seed).random(len(draws)) + 0.1
    same = draws[:, :, None] == draws[:, None, :]
    np.testing.assert_allclose(coclustering(draws), same.mean(axis=0), atol=1e-12)
    weighted = np.average(same, axis=0, weights=weights)
    np.testing.assert_allclose(coclustering(draws, weights), weighted, atol=1e-12)


@pytest.mark.parametrize("k", [2, 60])  # dense products, and sparse ones
@pytest.mark.parametrize("weighted", [False, True])
def test_coclustering_in_blocks(monkeypatch, k, weighted):
    from nrprob.posterior import similarity

    rng = np.random.default_rng(0)
    draws = rng.integers(0, k, (3, 37, 120))
    assert similarity._sparse_is_faster(as_draws(draws)) == (k == 60)
    monkeypatch.setattr(similarity, "_BLOCK", 120 * 7 * k)
    monkeypatch.setattr(similarity, "_CACHED", 1)
    monkeypatch.setattr(similarity, "_LEAST", 7)
    weights = rng.random((3, 37)) if weighted else None
    flat = draws.reshape(-1, 120)
    same = (flat[:, :, None] == flat[:, None, :]).astype(float)
    expected = np.average(same, axis=0, weights=None if weights is None else weights.ravel())
    np.testing.assert_allclose(coclustering(draws, weights), expected, atol=1e-12)


# ---- expected loss ------------------------------------------------------------------------------


@settings(deadline=None)
@given(label_draws(), st.sampled_from(LOSSES), st.sampled_from([0.5, 1.0, 1.7]), seeds)
def test_expected_loss_is_its_definition(draws, loss, split_cost, seed):
    random = np.random.default_rng(seed)
    estimate = random.integers(0, draws.shape[1], draws.shape[1])
    weights = random.random(len(draws)) + 0.01
    sides = np.array([split_and_merge(estimate, draw, loss) for draw in draws])
    expected = np.average(sides @ [split_cost, 2 - split_cost], weights=weights)
    got = expected_loss(estimate, draws, loss, split_cost=split_cost, weights=weights)
    assert got == pytest.approx(expected, abs=1e-12)


def test_expected_loss_agrees_with_the_metrics():
    draws, truth = noisy_draws(n=50, n_draws=5)
    flat = draws.reshape(-1, 50)
    by_metric = np.mean([metrics.variation_of_information(truth, z) for z in flat])
    assert expected_loss(truth, draws) == pytest.approx(by_metric, rel=1e-12)
    by_metric = 1 - np.mean([metrics.rand_index(truth, z) for z in flat])
    assert expected_loss(truth, draws, "binder") == pytest.approx(by_metric, rel=1e-12)
    both = expected_loss(np.stack([truth, flat[0]]), draws)
    assert both.shape == (2,)
    assert both[1] == expected_loss(flat[0], draws)


def test_expected_loss_in_blocks(monkeypatch):
    from nrprob.posterior import draws as module

    draws, truth = noisy_draws(n=30, n_draws=40)
    whole = [expected_loss(truth, draws, loss) for loss in LOSSES]
    monkeypatch.setattr(module, "_BLOCK", 200)
    np.testing.assert_allclose([expected_loss(truth, draws, x) for x in LOSSES], whole, rtol=1e-12)


# ---- point estimate -----------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    label_draws(max_draws=12),
    st.sampled_from(LOSSES),
    st.sampled_from([0.6, 1.0, 1.4]),
    st.sampled_from([None, 1, 2, 3]),
)
def test_point_estimate_is_the_best_of_all_partitions(draws, loss, split_cost, max_clusters):
    every = all_partitions(draws.shape[1])
    if max_clusters is not None:
        every = every[every.max(axis=1) < max_clusters]
    best = expected_loss(every, draws, loss, split_cost=split_cost).min()
    labels, value = point_estimate(
        draws,
        loss,
        split_cost=split_cost,
        max_clusters=max_clusters,
        random_state=0,
        return_loss=True,
    )
    assert value == pytest.approx(best, abs=1e-10)
    own = expected_loss(labels, draws, loss, split_cost=split_cost)
    assert value == pytest.approx(own, abs=1e-12)
    assert max_clusters is None or labels.max() < max_clusters


@pytest.mark.parametrize("loss", LOSSES)
def test_many_draws_are_refined_over_all(monkeypatch, loss):
    draws, _ = noisy_draws(n=40, noise=0.6)
    labels, value = point_estimate(draws, loss, random_state=0, return_loss=True)
    # With starts from 5 of 600 draws, only the refinement finds the minimiser.
    monkeypatch.setattr(estimates_module, "_SEARCH_DRAWS", 5)
    monkeypatch.setattr(estimates_module, "_PAIR_SAMPLES", 0)
    again, other = point_estimate(draws, loss, random_state=0, return_loss=True)
    assert other == pytest.approx(value, abs=1e-12)
    np.testing.assert_array_equal(labels, again)
    assert labels.dtype == np.int64 and labels.shape == (40,)


def test_samples_are_set_apart_without_all_pairs(monkeypatch):
    draws, _ = noisy_draws(n=200, noise=1.3)
    draws[:, :, 1] = draws[:, :, 0] = draws.max() + 1  # two that are always together, and one alone
    labels, value = point_estimate(draws, "binder", random_state=0, return_loss=True)
    assert labels.max() >= 39 and np.bincount(labels)[labels[0]] == 2
    monkeypatch.setattr(estimates_module, "_PAIR_SAMPLES", 0)
    monkeypatch.setattr(estimates_module, "_SEARCH_DRAWS", 50)  # the rest uses all draws
    again, other = point_estimate(draws, "binder", random_state=0, return_loss=True)
    assert other == pytest.approx(value, abs=1e-12)
    np.testing.assert_array_equal(labels, again)


@pytest.mark.parametrize("loss", LOSSES)
def test_point_estimate_recovers_the_centre(loss):
    draws, truth = noisy_draws()
    np.testing.assert_array_equal(point_estimate(draws, loss=loss, random_state=0), truth)


def test_binder_keeps_apart_what_vi_joins():
    # One sample is with either of two pairs alternately: its pairs are together half of the time.
    draws = np.array([[0, 0, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 1, 1, 2]])
    for cost, k in ((0.5, 3), (1.9, 1)):
        assert point_estimate(draws, "binder", split_cost=cost, random_state=0).max() + 1 == k


@settings(deadline=None, max_examples=25)
@given(label_draws(max_samples=8), st.sampled_from(LOSSES), seeds)
def test_names_and_order_of_samples_do_not_matter(draws, loss, seed):
    random = np.random.default_rng(seed)
    labels, value = point_estimate(draws, loss, random_state=0, return_loss=True)
    other = point_estimate(renamed(draws, random), loss, random_state=0)
    np.testing.assert_array_equal(labels, other)
    order = random.permutation(draws.shape[1])
    _, moved = point_estimate(draws[:, order], loss, random_state=0, return_loss=True)
    assert moved == pytest.approx(value, abs=1e-10)


@settings(deadline=None, max_examples=25)
@given(label_draws(max_draws=5), st.sampled_from(LOSSES), st.data())
def test_weights_are_repetitions(draws, loss, data):
    size = len(draws)
    times = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size).filter(any))
    repeated = np.repeat(draws, times, axis=0)
    _, a = point_estimate(draws, loss, weights=times, random_state=0, return_loss=True)
    _, b = point_estimate(repeated, loss, random_state=0, return_loss=True)
    assert a == pytest.approx(b, abs=1e-10)
    np.testing.assert_allclose(coclustering(draws, times), coclustering(repeated), atol=1e-12)
    ball = credible_ball(draws, draws[0], weights=times, loss=loss, level=0.7)
    other = credible_ball(repeated, draws[0], loss=loss, level=0.7)
    assert ball.radius == pytest.approx(other.radius, abs=1e-12)
    np.testing.assert_array_equal(ball.horizontal, other.horizontal)
    np.testing.assert_array_equal(ball.vertical_lower, other.vertical_lower)


# ---- the search's tables ------------------------------------------------------------------------


def searches(draws, max_clusters, random):
    checked = as_draws(draws)
    n = checked.n_samples
    for loss in LOSSES:
        table = as_loss(loss, 0.8, n)
        yield loss, table, CellSearch(checked, table, max_clusters, random)
    yield "binder", table, PairSearch(coclustering(draws), table, max_clusters, random)


@settings(deadline=None, max_examples=40)
@given(label_draws(max_samples=9), st.sampled_from([2, 9]), seeds)
def test_moves_change_the_loss_by_what_they_say(draws, max_clusters, seed):
    random = np.random.RandomState(seed)
    n = draws.shape[1]
    for loss, table, search in searches(draws, max_clusters, random):

        def value(z, loss=loss, table=table):
            return expected_loss(z, draws, loss, split_cost=0.8) / table.scale

        search.start(random.randint(0, min(n, max_clusters), n))
        for i in random.permutation(n):
            before = value(search.z)
            gains = search._sample_gains()
            change = search._visit_sample(int(i))
            assert change <= 0
            assert value(search.z) - before == pytest.approx(change, abs=1e-8)
            assert max(gains[i], 0) == pytest.approx(-change, abs=1e-8)
        for move in (search.merge, search.dissolve, search.sweep):
            before = value(search.z)
            changed = move()
            assert value(search.z) <= before + 1e-8
            if changed is False:
                assert value(search.z) == pytest.approx(before, abs=1e-8)
            assert len(np.unique(search.z)) <= max_clusters
            # The tables agree with new ones for the same partition.
            scores = [search._sample_scores(i)[search.z[i]] for i in range(n)]
            search.start(search.z)
            fresh = [search._sample_scores(i)[search.z[i]] for i in range(n)]
            np.testing.assert_allclose(scores, fresh, atol=1e-8)


@settings(deadline=None, max_examples=40)
@given(label_draws(max_samples=9), seeds)
def test_moves_of_whole_clusters_cost_what_they_say(draws, seed):
    random = np.random.RandomState(seed)
    n = draws.shape[1]
    for loss, table, search in searches(draws, n, random):

        def value(z, loss=loss, table=table):
            return expected_loss(z, draws, loss, split_cost=0.8) / table.scale

        search.start(random.randint(0, n, n))
        z, live = search.z.copy(), np.flatnonzero(search.size)
        if len(live) > 1:
            pairs, change = search._join_changes(live)
            assert len(np.unique(pairs)) == len(live)
            for (a, b), says in zip(live[pairs], change, strict=True):
                joined = np.where(z == b, a, z)
                assert value(joined) - value(z) == pytest.approx(says, abs=1e-8)
        for c in live:  # clusters of one sample cost nothing
            cost, saved = search._empty_cluster(c)
            apart = np.where(z == c, n + np.arange(n), z)
            assert value(z) - value(apart) == pytest.approx(cost, abs=1e-8)
            search._restore_tables(c, saved)


# ---- credible ball ------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(label_draws(max_draws=12), st.sampled_from(LOSSES), st.floats(0.05, 1.0), seeds)
def test_credible_ball_is_its_definition(draws, loss, level, seed):
    center = np.random.default_rng(seed).integers(0, 3, draws.shape[1])
    if loss == "vi":
        far = np.array([vi(center, z) for z in draws])
    else:
        far = np.array([sum(split_and_merge(center, z, loss)) for z in draws])
    radii = [r for r in far if np.mean(far <= r + 1e-12) >= level - 1e-12]
    radius = min(radii)
    inside = far <= radius + 1e-10

    ball = credible_ball(draws, center, level=level, loss=loss)
    assert ball.radius == pytest.approx(radius, abs=1e-10)
    np.testing.assert_array_equal(ball.members, inside)
    np.testing.assert_allclose(ball.distances, far, atol=1e-10)
    assert ball.probability == pytest.approx(inside.mean()) and ball.probability >= level - 1e-12

    k = np.array([len(set(z)) for z in draws])

    def expected(chosen):
        edge = [i for i in np.flatnonzero(chosen) if far[i] > far[chosen].max() - 1e-10]
        return {(draws[i][:, None] == draws[i]).tobytes() for i in edge}

    def got(partitions):
        result = [(z[:, None] == z).tobytes() for z in partitions]
        assert len(result) == len(set(result))
        return set(result)

    assert got(ball.horizontal) == expected(inside)
    assert got(ball.vertical_upper) == expected(inside & (k == k[inside].min()))
    assert got(ball.vertical_lower) == expected(inside & (k == k[inside].max()))


def test_credible_ball_keeps_the_axes_and_finds_its_centre():
    draws, truth = noisy_draws(n_draws=50)
    ball = credible_ball(draws, random_state=0)
    np.testing.assert_array_equal(ball.center, truth)
    assert ball.members.shape == ball.distances.shape == (2, 50)
    assert ball.members.mean() == pytest.approx(ball.probability)


# ---- bad input ----------------------------------------------------------------------------------

TWO = [[0, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize("function", [coclustering, point_estimate, credible_ball])
@pytest.mark.parametrize(
    ("draws", "error", "message"),
    [
        ([0, 0, 1], ValueError, r"got shape \(3,\); pass labels\[None\] for a single draw"),
        (np.zeros((1, 1, 1, 2), int), ValueError, r"got shape \(1, 1, 1, 2\); reshape"),
        (np.zeros((0, 3), int), ValueError, r"must not be empty; got shape \(0, 3\)"),
        ([[0.5, 1.0]], TypeError, "must be integers; got dtype float64; encode .* draw_labels"),
        ([[np.nan, 1.0]], TypeError, "must be integers; got dtype float64; encode"),
        ([["a", "b"]], TypeError, "must be integers; got dtype <U1"),
    ],
)
def test_bad_draws(function, draws, error, message):
    with pytest.raises(error, match=message):
        function(draws)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coclustering(TWO, [1.0]), r"one entry per draw; got shape \(1,\)"),
        (lambda: coclustering(TWO, [1.0, -1.0]), "non-negative and not all 0; got values from -1"),
        (lambda: coclustering(TWO, [0.0, 0.0]), "not all 0"),
        (lambda: coclustering(TWO, [1.0, np.nan]), "finite"),
        (
            lambda: point_estimate(TWO, "rand"),
            "loss must be one of 'vi', 'binder'; got 'rand'; choose",
        ),
        (lambda: point_estimate(TWO, split_cost=2), "strictly between 0 and 2; got 2"),
        (lambda: point_estimate(TWO, max_clusters=0), "max_clusters must be at least 1"),
        (lambda: point_estimate(TWO, n_init=10**9), "n_init must be .* at most 1000000; got 10"),
        (lambda: credible_ball(TWO, level=0.0), r"level is a probability in \(0, 1\]; got 0"),
        (lambda: credible_ball(TWO, [0, 1]), r"center must have one label per sample; got shape"),
        (lambda: expected_loss([0, 1], TWO), r"labels must have one label .* shape \(2,\)"),
    ],
)
def test_bad_parameters(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_names_of_any_size():
    big = np.array([[2**64 - 1, 0, 2**64 - 1]], dtype=np.uint64)
    np.testing.assert_array_equal(point_estimate(big), [0, 1, 0])
    np.testing.assert_array_equal(point_estimate(np.array([[True, False, True]])), [0, 1, 0])
    far = np.array([[-(2**62), 2**62, 5]])
    np.testing.assert_array_equal(point_estimate(far), [0, 1, 2])
    np.testing.assert_array_equal(point_estimate(np.array([[1e300, -2.0, 1e300]])), [0, 1, 0])


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_no_partition_of_random_draws_beats_the_estimate(loss):
    """Draws without any agreement have many local optima."""
    random = np.random.default_rng(1)
    for _ in range(400):
        n = random.integers(5, 7)
        draws = random.integers(0, random.integers(2, n + 1), (random.integers(2, 30), n))
        best = expected_loss(all_partitions(n), draws, loss).min()
        _, value = point_estimate(draws, loss, random_state=0, return_loss=True)
        assert value == pytest.approx(best, abs=1e-10)
