"""The test for a low-density gap: counts, their p-value, and discrete values."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from nrprob import ConditionalMixture, evidence
from nrprob.evidence.low_density_gap import (
    GapCandidate,
    GapCount,
    choose_candidate,
    combined_p_value,
    count_near_pairs,
    has_discrete_values,
    tail_probability,
)

N = 61
Z = np.arange(N) % 2
NOISE = np.random.default_rng(0).normal(size=(N, 2))
APART = NOISE + 9 * (np.arange(N) // 2 % 2)[:, None] + 5 * Z[:, None]
FEW = {"n_splits": 1, "n_init": 2, "random_state": 0}
AXIS = np.array([1.0, 0.0])


def test_counts_by_their_definition():
    candidate = GapCandidate(0, AXIS, np.array([-3.0, -1.0, 1.0, 3.0]))
    left = np.array([-2.0, -1.5, -1.2, 0.1, 2.0])
    right = np.array([-2.0, 0.5, 1.1, 2.9, 3.1, -4.0])
    y = np.zeros((11, 2))
    y[:, 0] = np.concatenate([left, right])
    codes = np.repeat([0, 1], [5, 6])
    assert candidate.count_samples(y, codes) == GapCount(1 + 1, 1 + 1, 0.5)
    assert candidate.gap_centre == 0


def test_their_p_value_is_that_of_a_sum_of_binomials():
    counts = [GapCount(5, 0, 0.5), GapCount(4, 1, 0.6), GapCount(0, 0, 0.5)]
    laws = [stats.binom.pmf(range(6), 5, share) for share in (0.5, 0.6)]
    joint = np.add.outer(np.arange(6), np.arange(6))
    expected = np.multiply.outer(*laws)[joint >= 9].sum()
    assert tail_probability(counts) == pytest.approx(expected)
    assert tail_probability([GapCount(0, 0, 0.5)]) == 1
    assert combined_p_value([counts] * 3) == pytest.approx(expected)
    scores = stats.norm.isf([expected, 0.5**9])
    assert combined_p_value([counts, [GapCount(9, 0, 0.5)]]) == pytest.approx(
        stats.norm.sf(scores.mean())
    )
    assert combined_p_value([counts, [GapCount(0, 9, 0.5)]]) > 0.9


def test_one_peak_is_no_gap_wherever_the_intervals_and_whatever_the_side():
    """Groups have exponential rows, one of them reflected; it fails in 1 of 1000 runs."""
    rng = np.random.default_rng(0)
    codes = np.arange(200) % 2
    result = []
    for _ in range(200):
        y = np.zeros((200, 2))
        y[:, 0] = rng.exponential(size=200) * np.where(codes, -1, 1)
        start, side, valley = rng.uniform([-3, 0.3, 0.1], [1, 2, 1])
        edges = start + np.cumsum([0, side, valley, side])
        result.append(tail_probability([GapCandidate(0, AXIS, edges).count_samples(y, codes)]))
    assert np.sum(np.array(result) <= 0.05) <= stats.binom.isf(1e-3, 200, 0.05)


def test_the_valley_lies_between_clusters_in_their_own_metric():
    rng = np.random.default_rng(1)
    labels = np.arange(400) % 2
    y = rng.normal(size=(400, 2)) * [1, 8]
    y[:, 0] += 5 * labels
    y -= y.mean(0)
    candidate = choose_candidate(y, labels, np.zeros(400, int))
    assert abs(candidate.direction[0]) == pytest.approx(1, abs=0.15)
    assert abs(candidate.direction[1]) < 0.05
    assert abs(candidate.gap_centre) < 0.6 and np.ptp(candidate.edges[1:3]) < 4
    assert (np.diff(candidate.edges) > 0).all()
    assert np.diff(candidate.edges)[0] == pytest.approx(np.diff(candidate.edges)[2])
    # From the other clusters to the requested one.
    for cluster in (0, 1):
        places = y @ choose_candidate(y, labels, np.zeros(400, int), cluster).direction
        assert places[labels == cluster].mean() > places[labels != cluster].mean()
    assert choose_candidate(y, np.zeros(400, int), labels) is None


def test_rows_of_the_fit_would_show_a_gap_where_there_is_none():
    rng = np.random.default_rng(2)
    y, codes = rng.normal(size=(120, 10)), np.zeros(120, int)
    inside, outside = [], []
    for _ in range(20):
        labels = (y @ rng.normal(size=10) > 0).astype(int)
        candidate = choose_candidate(y[:60], labels[:60], codes[:60])
        inside.append(tail_probability([candidate.count_samples(y[:60], codes[:60])]))
        outside.append(tail_probability([candidate.count_samples(y[60:], codes[60:])]))
    assert np.mean(np.array(inside) <= 0.05) > 0.3
    assert np.mean(np.array(outside) <= 0.05) <= 0.1


@pytest.mark.parametrize(("step", "is_tied"), [(1.0, True), (0.5, True), (0.01, False)])
def test_discrete_values_are_detected_where_steps_are_as_large_as_intervals(step, is_tied):
    y = np.random.default_rng(3).normal(size=(300, 2))
    y[:, 0] = np.round(y[:, 0] / step) * step
    candidate = GapCandidate(0, AXIS, np.array([-2.0, -0.5, 0.5, 2.0]))
    assert has_discrete_values(*count_near_pairs(y, candidate, np.arange(300) % 3)) == is_tied
    assert not has_discrete_values(*count_near_pairs(y[:, ::-1], candidate, np.arange(300) % 3))


def test_pairs_by_their_definition():
    y = np.random.default_rng(5).normal(size=(40, 2))
    codes = np.arange(40) % 2
    apart = np.abs(y[:, :1] - y[:, 0])[np.triu_indices(40, 1)]
    alike = (codes[:, None] == codes)[np.triu_indices(40, 1)]
    expected = [(apart[alike] <= width).sum() for width in (0.02, 0.2)]
    candidate = GapCandidate(0, AXIS, np.array([-2.0, -0.5, 0.5, 2.0]))
    np.testing.assert_array_equal(count_near_pairs(y, candidate, codes), expected)
    assert not has_discrete_values(*count_near_pairs(y, candidate, codes))


@pytest.fixture(scope="module")
def apart():
    return evidence.test(ConditionalMixture(2, weights="uniform"), APART, known=Z, **FEW)


def test_a_gap_is_found_and_said(apart):
    assert apart.p_gap_ < 0.001 and apart.gap_counts_.shape == (1, 5, 3)
    assert apart.p_gap_ == combined_p_value(
        [[GapCount(int(a), int(b), c) for a, b, c in apart.gap_counts_[0]]]
    )
    assert str(apart).startswith(
        "clusters with a low-density gap between them (p < 0.001); one elliptical distribution per"
    )
    other = replace(apart, p_gap_=0.3)
    assert "but there is no low-density gap between clusters (p = 0.3); overlapping" in str(other)
    other = replace(apart, p_structure_=0.3)
    assert str(other).startswith(
        "clusters with a low-density gap between them (p < 0.001), but one elliptical distribution"
    )
    other = replace(apart, p_structure_=0.3, p_gap_=0.4)
    assert str(other).startswith("no evidence of further structure")
    assert "no test for a low-density gap, since values are discrete" in str(
        replace(apart, p_gap_=None)
    )
    # If every fit chooses the number of clusters, some may have one.
    assert "(p < 0.001; one cluster in most fits, 61 samples" in str(replace(apart, n_clusters=1))


def test_the_gap_is_where_the_picture_has_no_rows(apart):
    assert 1 < apart.gap_width_ < 12
    assert np.mean(np.abs(apart.discriminant_score_) < apart.gap_width_ / 2) < 0.1
    ax = apart.plot()
    shades = [p for p in ax.patches if p.get_width() == pytest.approx(apart.gap_width_)]
    assert len(shades) == 1


def test_noise_has_no_gap_and_discrete_values_have_no_test():
    model = ConditionalMixture(2, weights="uniform")
    assert evidence.test(model, NOISE, known=Z, **FEW).p_gap_ > 0.05
    discrete = np.column_stack([np.round(APART[:, 0]), 1e-3 * NOISE[:, 1]])
    model.set_params(ordered=[])
    assert evidence.test(model, discrete, known=Z, **FEW).p_gap_ is None


@pytest.mark.slow
def test_power():
    """Measured power is 0.93 at a distance of 5; below 4 of 8 in 1 of 500 runs."""
    result = []
    for seed in range(8):
        rng = np.random.default_rng([9, seed])
        z = rng.integers(3, size=240)
        X = rng.normal(size=(240, 6)) + 4 * rng.normal(size=(3, 6))[z]
        X[:, 0] += 5 * rng.integers(2, size=240)
        result.append(evidence.test(ConditionalMixture(2, weights="uniform"), X, known=z, n_init=4))
    assert sum(one.p_gap_ <= 0.05 for one in result) >= 4
