"""Generators: planted structure, frequencies, and attainable accuracy.

Random checks use a fixed seed and five standard errors, which fail by chance for fewer than one
seed in a million each.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency, norm

from nrprob.datasets import (
    bayes_precision,
    make_binary_partitions,
    make_four_components,
    make_multinomial_2d,
)

SIGMAS = 5
P_VALUE = 1e-6


def close(mean, expected, variance, n):
    return abs(mean - expected) < SIGMAS * math.sqrt(variance / n)


# --- binary -------------------------------------------------------------------------------------


def test_binary_shapes_and_values():
    X, labels = make_binary_partitions(50, [6, 5, 4], 3, random_state=0)
    assert X.shape == (50, 15) and labels.shape == (50, 3)
    assert X.dtype == labels.dtype == np.int64
    assert set(np.unique(X)) == {0, 1}
    assert set(np.unique(labels)) == {0, 1, 2}
    assert make_binary_partitions(7, 4)[1].shape == (7, 1)
    assert make_binary_partitions(1, (2,))[0].shape == (1, 2)


@pytest.mark.parametrize(
    ("m", "k", "sizes"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (4, 3, [2, 1, 1]), (11, 4, [3, 3, 3, 2])]
)
def test_binary_codes_are_complementary_in_blocks(m, k, sizes):
    X, labels = make_binary_partitions(400, [m, 3 + k], k, p_noise=0.0, random_state=1)
    codes = [np.unique(X[labels[:, 0] == g, :m], axis=0) for g in range(k)]
    # Without noise all rows of a cluster are one code.
    assert [len(c) for c in codes] == [1] * k
    codes = np.vstack(codes)
    edges = np.cumsum([0, *sizes])
    for g, other in itertools.permutations(range(k), 2):
        differ = np.flatnonzero(codes[g] != codes[other])
        blocks = [*range(*edges[g : g + 2]), *range(*edges[other : other + 2])]
        assert differ.tolist() == sorted(blocks)


def test_binary_profiles_are_random():
    first = [make_binary_partitions(1, 8, 1, p_noise=0.0, random_state=s)[0] for s in range(200)]
    profiles = np.vstack(first)
    assert (abs(profiles.mean(0) - 0.5) < SIGMAS * math.sqrt(0.25 / 200)).all()
    assert len(np.unique(profiles, axis=0)) > 100


@pytest.mark.parametrize("p_noise", [0.1, 0.3])
def test_binary_noise_rate(p_noise):
    n, m, k = 4000, 6, 3
    X, labels = make_binary_partitions(n, [m], k, p_noise=p_noise, random_state=2)
    for g in range(k):
        rows = X[labels[:, 0] == g]
        code = np.median(rows, axis=0)
        flipped = rows != code
        assert close(flipped.mean(), p_noise, p_noise * (1 - p_noise), flipped.size)
        per_column = flipped.mean(0)
        bound = SIGMAS * math.sqrt(p_noise * (1 - p_noise) / len(rows))
        assert (abs(per_column - p_noise) < bound).all()
        # Flips of two columns are independent.
        r = np.corrcoef(flipped.T)[np.triu_indices(m, 1)]
        assert (abs(r) < SIGMAS / math.sqrt(len(rows))).all()


def test_binary_extreme_noise():
    clean, labels = make_binary_partitions(60, [4, 3], p_noise=0.0, random_state=3)
    flipped, same = make_binary_partitions(60, [4, 3], p_noise=1.0, random_state=3)
    assert (labels == same).all()
    assert (clean + flipped == 1).all()


def test_binary_labels_are_uniform_and_independent():
    k = 3
    _, labels = make_binary_partitions(9000, [3, 4, 5], k, random_state=4)
    counts = np.bincount(labels @ [9, 3, 1], minlength=27)
    expected = 9000 / 27
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert P_VALUE < chi2.sf(statistic, 26) < 1 - P_VALUE
    # The order of rows is random.
    successive = np.zeros((k, k))
    np.add.at(successive, (labels[:-1, 0], labels[1:, 0]), 1)
    assert chi2_contingency(successive).pvalue > P_VALUE


def test_binary_columns_carry_their_own_partition_only():
    X, labels = make_binary_partitions(5000, [4, 4], 2, p_noise=0.1, random_state=5)
    for column in range(8):
        for p in range(2):
            table = np.zeros((2, 2))
            np.add.at(table, (X[:, column], labels[:, p]), 1)
            pvalue = chi2_contingency(table).pvalue
            assert pvalue < 1e-50 if column // 4 == p else pvalue > P_VALUE


def test_binary_sample_reaches_the_bayes_precision():
    n, m, k = 20_000, 4, 3
    X, labels = make_binary_partitions(n, m, k, random_state=6)
    clean, clean_labels = make_binary_partitions(n, m, k, p_noise=0.0, random_state=6)
    codes = np.vstack([clean[clean_labels[:, 0] == g][0] for g in range(k)])
    guess = (X[:, None] != codes).sum(2).argmin(1)
    expected = bayes_precision(m, k)
    assert close((guess == labels[:, 0]).mean(), expected, expected * (1 - expected), n)


# --- the Bayes precision ------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "expected"), [(2, 0.9720), (3, 0.9072), (4, 0.7920)])
def test_bayes_precision_of_four_columns(k, expected):
    assert bayes_precision(4, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("m", "k", "p"), [(3, 2, 0.2), (5, 3, 0.1), (7, 4, 0.35), (6, 6, 0.7)])
def test_bayes_precision_against_all_rows(m, k, p):
    block = np.sort(np.arange(m) % k)
    codes = block == np.arange(k)[:, None]
    total = 0.0
    for row in itertools.product([False, True], repeat=m):
        flips = (codes != np.array(row)).sum(1)
        total += max(p**d * (1 - p) ** (m - d) for d in flips) / k
    assert bayes_precision(m, k, p) == pytest.approx(total, abs=1e-12)


def test_bayes_precision_at_its_limits():
    assert bayes_precision(5, 1) == pytest.approx(1.0, abs=1e-12)
    for k in (2, 3):
        assert bayes_precision(5, k, 0.5) == pytest.approx(1 / k, abs=1e-12)
        assert bayes_precision(5, k, 0.0) == bayes_precision(5, k, 1.0) == 1.0
        assert bayes_precision(5, k, 0.2) == pytest.approx(bayes_precision(5, k, 0.8), abs=1e-12)
        grows = [bayes_precision(m, k) for m in range(k, 60)]
        assert all(a <= b + 1e-12 for a, b in itertools.pairwise(grows))
        assert 0.9999 < grows[-1] <= 1.0
    # Codes 01 and 10: the rows 00 and 11 leave a guess, so the second column does not help.
    assert bayes_precision(2, 2, 0.1) == pytest.approx(0.9, abs=1e-12)


# --- multinomial --------------------------------------------------------------------------------


def test_multinomial_shapes_and_values():
    X, labels = make_multinomial_2d(40, 3, 25, random_state=0)
    assert X.shape == (40, 3) and labels.shape == (40, 2)
    assert X.dtype == labels.dtype == np.int64
    assert (X >= 0).all() and (X.sum(1) == 25).all()
    assert set(np.unique(labels)) == {0, 1, 2}
    assert make_multinomial_2d(4, 1, 1)[0].shape == (4, 3)


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.75, 1.0])
def test_multinomial_cell_probabilities(weight):
    n, k, draws = 6000, 3, 200
    X, labels = make_multinomial_2d(n, k, draws, orthogonality=weight, random_state=1)
    for a, b in itertools.product(range(k), repeat=2):
        rows = X[(labels == (a, b)).all(1)]
        theta_a = (2 * a + 1) / (2 * k)
        theta_b = weight * (2 * b + 1) / (2 * k) + (1 - weight) * theta_a
        p = np.array([theta_a / 2, theta_b / 2, 1 - (theta_a + theta_b) / 2])
        for cell in range(3):
            variance = draws * p[cell] * (1 - p[cell])
            assert close(rows[:, cell].mean(), draws * p[cell], variance, len(rows))
            assert rows[:, cell].var() == pytest.approx(variance, rel=0.3)
        # Cells of one multinomial have negative covariance, cov = -M p q, with the normal error of
        # a covariance.
        cov = np.cov(rows[:, 0], rows[:, 1])
        error = math.sqrt((cov[0, 0] * cov[1, 1] + cov[0, 1] ** 2) / len(rows))
        assert abs(cov[0, 1] + draws * p[0] * p[1]) < SIGMAS * error


def test_multinomial_labels_are_uniform_and_independent():
    _, labels = make_multinomial_2d(8000, 4, 5, orthogonality=0.3, random_state=2)
    counts = np.bincount(labels @ [4, 1], minlength=16)
    statistic = ((counts - 500) ** 2 / 500).sum()
    assert P_VALUE < chi2.sf(statistic, 15) < 1 - P_VALUE


def test_multinomial_without_orthogonality_hides_the_second_clustering():
    X, labels = make_multinomial_2d(4000, 2, 50, orthogonality=0.0, random_state=3)
    for cell in range(2):
        high = X[:, cell] > np.median(X[:, cell])
        tables = []
        for column in range(2):
            table = np.zeros((2, 2))
            np.add.at(table, (high.astype(int), labels[:, column]), 1)
            tables.append(chi2_contingency(table).pvalue)
        assert tables[0] < 1e-50 and tables[1] > P_VALUE


# --- four components ----------------------------------------------------------------------------


@pytest.mark.parametrize(("separation", "elongation"), [(4.0, 1.5), (3.0, 1.0), (0.0, 0.25)])
def test_components_have_the_stated_moments(separation, elongation):
    X, labels = make_four_components(
        20_000, separation=separation, elongation=elongation, random_state=0
    )
    assert X.shape == (20_000, 2) and labels.shape == (20_000, 1) and labels.dtype == np.int64
    corners = separation / 2 * np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]])
    for c in range(4):
        own = X[labels[:, 0] == c]
        variances = np.array([elongation, 1 / elongation])[:: 1 if c in (0, 3) else -1]
        for d in range(2):
            assert close(own[:, d].mean(), corners[c, d], variances[d], len(own))
            # The variance of a normal sample variance is 2 v^2 / n.
            assert close(own[:, d].var(), variances[d], 2 * variances[d] ** 2, len(own))
        r = np.corrcoef(own.T)[0, 1]
        assert abs(r) < SIGMAS / math.sqrt(len(own))


def test_components_have_the_stated_weights_in_random_order():
    weights = [0.1, 0.2, 0.3, 0.4]
    _, labels = make_four_components(8000, weights=weights, random_state=1)
    expected = 8000 * np.array(weights)
    statistic = ((np.bincount(labels[:, 0], minlength=4) - expected) ** 2 / expected).sum()
    assert P_VALUE < chi2.sf(statistic, 3) < 1 - P_VALUE
    successive = np.zeros((4, 4))
    np.add.at(successive, (labels[:-1, 0], labels[1:, 0]), 1)
    assert chi2_contingency(successive).pvalue > P_VALUE
    assert set(np.unique(make_four_components(50, weights=[0, 1, 0, 0])[1])) == {1}


@pytest.mark.parametrize("separation", [1.0, 3.0])
def test_circles_are_told_apart_at_the_stated_rate(separation):
    X, labels = make_four_components(20_000, separation=separation, elongation=1.0, random_state=2)
    guess = 2 * (X[:, 0] > 0) + (X[:, 1] > 0)
    rate = norm.cdf(separation / 2) ** 2
    assert close((guess == labels[:, 0]).mean(), rate, rate * (1 - rate), len(X))


# --- all ----------------------------------------------------------------------------------------

MAKERS = [
    lambda seed: make_binary_partitions(200, [4, 4], random_state=seed),
    lambda seed: make_multinomial_2d(200, 2, 30, random_state=seed),
    lambda seed: make_four_components(200, random_state=seed),
]


@pytest.mark.parametrize("make", MAKERS, ids=["binary", "multinomial", "normal"])
def test_seeds_reproduce(make):
    for one, two in zip(make(7), make(7), strict=True):
        assert (one == two).all()
    for one, two in zip(make(7), make(np.random.RandomState(7)), strict=True):
        assert (one == two).all()
    for one, two in zip(make(7), make(8), strict=True):
        assert (one != two).any()
    # A generator that is passed advances.
    rng = np.random.RandomState(7)
    assert (make(rng)[0] != make(rng)[0]).any()
    # None uses fresh random numbers, independent of a global seed.
    assert (make(None)[0] != make(None)[0]).any()


def test_refusals():
    with pytest.raises(ValueError, match="must be at least 1 and at most 2147483647; got 0"):
        make_binary_partitions(0, [4])
    with pytest.raises(ValueError, match=f"n_samples must be at least 1.* got {10**20}"):
        make_binary_partitions(10**20, [4])
    with pytest.raises(TypeError, match=r"n_samples must be an integer; got 10\.5"):
        make_binary_partitions(10.5, [4])
    with pytest.raises(ValueError, match="got 3 features for 4 clusters; pass dims of at least"):
        make_binary_partitions(10, [4, 3], 4)
    with pytest.raises(ValueError, match="dims must name at least one partition; got none"):
        make_binary_partitions(10, [])
    with pytest.raises(TypeError, match="every entry of dims must be an integer; got 'a'"):
        make_binary_partitions(10, [4, "a"])
    for p_noise in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="p_noise must lie between 0 and 1; got"):
            make_binary_partitions(10, [4], p_noise=p_noise)
    with pytest.raises(ValueError, match="n_clusters must be at least 1 .* got 0"):
        make_multinomial_2d(10, 0, 5)
    with pytest.raises(ValueError, match="n_draws must be at least 1 .* got -5"):
        make_multinomial_2d(10, 2, -5)
    with pytest.raises(ValueError, match="orthogonality must lie between 0 and 1; got 2"):
        make_multinomial_2d(10, 2, 5, orthogonality=2)
    with pytest.raises(ValueError, match="n_samples must be at least 1 .* got 0"):
        make_four_components(0)
    for separation in (-1.0, math.nan, math.inf, 1e300):
        with pytest.raises(ValueError, match="separation must be at least 0 and at most"):
            make_four_components(10, separation=separation)
    for elongation in (0.0, -1.0, math.nan, 1e300):
        with pytest.raises(ValueError, match="elongation must be at least 1e-06 and"):
            make_four_components(10, elongation=elongation)
    for weights in ([0.5, 0.5], [0.5, 0.6, -0.1, 0.0], [0.3] * 4, [math.nan] * 4):
        with pytest.raises(ValueError, match="weights must be four probabilities"):
            make_four_components(10, weights=weights)
    with pytest.raises(ValueError, match="got 2 features for 3 clusters"):
        bayes_precision(2, 3)
    with pytest.raises(ValueError, match="too many patterns to enumerate; got 1.07e"):
        bayes_precision(30, 30)
