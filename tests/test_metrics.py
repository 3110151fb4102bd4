"""Indices of partitions agree with loops over samples, pairs and permutations, and satisfy laws."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chi2_contingency, ks_1samp

from nrprob import information, metrics
from nrprob.metrics import partitions, quality

TOL = 1e-12
quick = settings(deadline=None, max_examples=60)

SYMMETRIC = (
    metrics.matched_accuracy,
    metrics.matching_rate,
    metrics.normalized_mutual_information,
    metrics.rand_index,
    metrics.adjusted_rand_index,
    metrics.jaccard_index,
    metrics.fowlkes_mallows_index,
    metrics.pair_f_measure,
    metrics.variation_of_information,
    metrics.hubert_difference,
    metrics.hubert_gamma,
)
ALL = (*SYMMETRIC, metrics.purity, metrics.predictive_rate)


def name_of(f):
    return f.__name__


@st.composite
def labelings(draw, n_labelings=2, max_size=9, k=4):
    n = draw(st.integers(1, max_size))
    one = st.lists(st.integers(0, k - 1), min_size=n, max_size=n)
    return [np.array(draw(one)) for _ in range(n_labelings)]


def brute_pairs(a, b):
    both = only_a = only_b = neither = 0
    for i, j in itertools.combinations(range(len(a)), 2):
        in_a, in_b = a[i] == a[j], b[i] == b[j]
        both += in_a and in_b
        only_a += in_a and not in_b
        only_b += in_b and not in_a
        neither += not (in_a or in_b)
    return both, only_a, only_b, neither


# --- values -------------------------------------------------------------------------------------


def test_hand_computed_indices():
    labels = [0, 0, 0, 1, 1, 2]
    truth = ["x", "x", "y", "y", "y", "y"]
    # Pairs: 2 together in both, 2 in the labels only, 5 in the truth only, 6 in neither.
    assert metrics.contingency(labels, truth).tolist() == [[2, 1], [0, 2], [0, 1]]
    assert metrics.matched_accuracy(labels, truth) == pytest.approx(4 / 6)
    assert metrics.purity(labels, truth) == pytest.approx(5 / 6)
    assert metrics.rand_index(labels, truth) == pytest.approx(8 / 15)
    assert metrics.jaccard_index(labels, truth) == pytest.approx(2 / 9)
    assert metrics.fowlkes_mallows_index(labels, truth) == pytest.approx(2 / math.sqrt(4 * 7))
    assert metrics.pair_f_measure(labels, truth) == pytest.approx(4 / 11)
    assert metrics.hubert_difference(labels, truth) == pytest.approx(1 / 15)
    gamma = (2 * 6 - 2 * 5) / math.sqrt(4 * 7 * 8 * 11)
    assert metrics.hubert_gamma(labels, truth) == pytest.approx(gamma)


def test_normalizers():
    # Two of four equal clusters per class: I = 1 bit, H(C) = 2 bits, H(L) = 1 bit.
    labels, truth = [0, 1, 2, 3], [0, 0, 1, 1]
    nmi = metrics.normalized_mutual_information
    assert nmi(labels, truth) == pytest.approx(2 / 3)
    assert nmi(labels, truth, normalizer="geometric") == pytest.approx(1 / math.sqrt(2))
    assert nmi(labels, truth, normalizer="truth") == pytest.approx(1.0)
    assert nmi(truth, labels, normalizer="truth") == pytest.approx(1 / 2)
    assert nmi(truth, truth, normalizer="product") == pytest.approx(1 / math.log(2))
    assert metrics.variation_of_information(labels, truth, base=2) == pytest.approx(1.0)


def test_degenerate_partitions():
    one, split, single = [0, 0, 0], [0, 1, 1], [0, 1, 2]
    for normalizer in ("arithmetic", "geometric", "truth"):
        nmi = metrics.normalized_mutual_information
        assert nmi(one, one, normalizer=normalizer) == 1.0
        assert nmi(one, split, normalizer=normalizer) == 0.0
        assert nmi(split, one, normalizer=normalizer) == (normalizer == "truth")
    for a, b in ((one, one), (one, split), (split, one)):
        assert nmi(a, b, normalizer="product") == 0
    assert metrics.jaccard_index(single, single) == metrics.pair_f_measure(single, single) == 1.0
    assert metrics.fowlkes_mallows_index(single, split) == 0.0
    assert metrics.hubert_gamma(one, split) == metrics.hubert_gamma(single, split) == 0.0
    for f in SYMMETRIC:
        if f not in (metrics.fowlkes_mallows_index, metrics.hubert_gamma):
            assert f([7], [3]) == (0.0 if f is metrics.variation_of_information else 1.0)


def test_large_counts_stay_exact():
    # 1.2e10 pairs; products of pair counts pass 2^63.
    labels = np.repeat([0, 1], 80_000)
    truth = np.tile([0, 1], 80_000)
    assert metrics.hubert_gamma(labels, labels) == 1.0
    assert metrics.jaccard_index(labels, labels) == 1.0
    assert metrics.rand_index(labels, 1 - labels) == 1.0
    in_one, in_both = 2 * math.comb(80_000, 2), 4 * math.comb(40_000, 2)
    assert metrics.jaccard_index(labels, truth) == in_both / (2 * in_one - in_both)


# --- against brute force ------------------------------------------------------------------------


@quick
@given(labelings())
def test_contingency_against_a_loop(pair):
    a, b = pair
    table = metrics.contingency(a, b)
    for i, x in enumerate(np.unique(a)):
        for j, y in enumerate(np.unique(b)):
            assert table[i, j] == sum((a == x) & (b == y))
    assert table.dtype == np.int64 and table.sum() == len(a)


@quick
@given(labelings())
def test_matching_against_all_permutations(pair):
    a, b = pair
    k = 4
    best = max(sum(np.array(p)[a] == b) for p in itertools.permutations(range(k)))
    assert metrics.matched_accuracy(a, b) == pytest.approx(best / len(a), abs=TOL)
    assert metrics.matching_rate(a, b) == metrics.matched_accuracy(a, b)


@quick
@given(labelings())
def test_pair_indices_against_all_pairs(pair):
    a, b = pair
    both, only_a, only_b, neither = brute_pairs(a, b)
    total = len(a) * (len(a) - 1) // 2
    rand = (both + neither) / total if total else 1.0
    together = both + only_a + only_b
    assert metrics.rand_index(a, b) == pytest.approx(rand, abs=TOL)
    assert metrics.hubert_difference(a, b) == pytest.approx(2 * rand - 1, abs=TOL)
    jaccard = both / together if together else 1.0
    assert metrics.jaccard_index(a, b) == pytest.approx(jaccard, abs=TOL)
    f_measure = 2 * both / (both + together) if together else 1.0
    assert metrics.pair_f_measure(a, b) == pytest.approx(f_measure, abs=TOL)
    norm = math.sqrt((both + only_a) * (both + only_b))
    fowlkes_mallows = both / norm if both else 0.0
    assert metrics.fowlkes_mallows_index(a, b) == pytest.approx(fowlkes_mallows, abs=TOL)


@settings(deadline=None, max_examples=30)
@given(labelings(max_size=6, k=3))
def test_adjusted_rand_index_against_all_shuffles(pair):
    a, b = pair
    alike = [brute_pairs(a, np.array(shuffled))[0] for shuffled in itertools.permutations(b)]
    both, only_a, only_b, _ = brute_pairs(a, b)
    expected = np.mean(alike)
    most = both + (only_a + only_b) / 2
    assume(abs(most - expected) > TOL)
    value = (both - expected) / (most - expected)
    assert metrics.adjusted_rand_index(a, b) == pytest.approx(value, abs=1e-9)


@quick
@given(labelings())
def test_hubert_gamma_is_a_correlation(pair):
    a, b = pair
    i, j = np.triu_indices(len(a), 1)
    in_a, in_b = (a[i] == a[j]).astype(float), (b[i] == b[j]).astype(float)
    assume(np.ptp(in_a) > 0 and np.ptp(in_b) > 0 if len(in_a) else False)
    expected = np.corrcoef(in_a, in_b)[0, 1]
    assert metrics.hubert_gamma(a, b) == pytest.approx(expected, abs=TOL)


@quick
@given(labelings(3))
def test_majority_shares_against_loops(three):
    a, b, truth = three
    right = 0
    for x, y in set(zip(a.tolist(), b.tolist(), strict=True)):
        right += np.bincount(truth[(a == x) & (b == y)]).max()
    expected = right / len(truth)
    assert metrics.predictive_rate([a, b], truth) == pytest.approx(expected, abs=TOL)
    assert metrics.predictive_rate(np.column_stack([a, b]), truth) == pytest.approx(expected)
    assert metrics.predictive_rate([a], truth) == metrics.purity(a, truth)
    assert metrics.predictive_rate(a, truth) == metrics.purity(a, truth)
    assert metrics.predictive_rate(a.tolist(), truth) == metrics.purity(a, truth)
    assert expected >= max(metrics.purity(a, truth), metrics.purity(b, truth))


@quick
@given(labelings())
def test_information_indices_against_the_tables(pair):
    a, b = pair
    joint = metrics.contingency(a, b) / len(a)
    vi = metrics.variation_of_information
    expected = information.variation_of_information(joint)
    assert vi(a, b) == pytest.approx(expected, abs=TOL)
    assert vi(a, b, base=2) == pytest.approx(expected / math.log(2), abs=TOL)
    mutual = information.mutual_information(joint)
    h_a, h_b = information.entropy(joint.sum(1)), information.entropy(joint.sum(0))
    assume(h_a > 0 and h_b > 0)
    for normalizer, h in (
        ("arithmetic", (h_a + h_b) / 2),
        ("geometric", math.sqrt(h_a * h_b)),
        ("truth", h_b),
        ("product", h_a * h_b),
    ):
        value = metrics.normalized_mutual_information(a, b, normalizer=normalizer)
        assert value == pytest.approx(mutual / h, abs=TOL)


# --- laws ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", ALL, ids=name_of)
@settings(deadline=None, max_examples=25)
@given(pair=labelings(), codes=st.permutations(range(4)))
def test_names_of_clusters_do_not_matter(f, pair, codes):
    a, b = pair
    expected = f(a, b)
    words = np.array(["d", "a", "c", "b"])
    assert f(np.array(codes)[a], b) == pytest.approx(expected, abs=TOL)
    assert f(a, words[b]) == pytest.approx(expected, abs=TOL)
    assert f(a[::-1], b[::-1]) == pytest.approx(expected, abs=TOL)


@pytest.mark.parametrize("f", SYMMETRIC, ids=name_of)
@settings(deadline=None, max_examples=25)
@given(pair=labelings())
def test_symmetry(f, pair):
    a, b = pair
    assert f(a, b) == pytest.approx(f(b, a), abs=TOL)


@pytest.mark.parametrize("f", ALL, ids=name_of)
@settings(deadline=None, max_examples=25)
@given(pair=labelings())
def test_range_and_equality(f, pair):
    a, b = pair
    upper = math.log(len(a)) if f is metrics.variation_of_information else 1.0
    lower = {"h": -1.0, "a": -0.5}.get(f.__name__[0], 0.0)  # Hubert's indices and adjusted ones
    assert type(f(a, b)) is float and lower <= f(a, b) <= upper + TOL
    n_pairs_together = brute_pairs(a, a)[0]
    if f is metrics.variation_of_information:
        assert f(a, a) == 0.0
    elif f is metrics.fowlkes_mallows_index:
        assert f(a, a) == pytest.approx(float(n_pairs_together > 0), abs=TOL)
    elif f is metrics.hubert_gamma:
        assert f(a, a) == float(0 < n_pairs_together < math.comb(len(a), 2))
    else:
        assert f(a, a) == pytest.approx(1.0, abs=TOL)


@quick
@given(labelings(3))
def test_variation_of_information_is_a_metric(three):
    a, b, c = three
    vi = metrics.variation_of_information
    assert vi(a, c) <= vi(a, b) + vi(b, c) + TOL
    assert (vi(a, b) == 0) == (metrics.rand_index(a, b) == 1)


@quick
@given(labelings())
def test_refinement(pair):
    coarse, extra = pair
    fine = 4 * coarse + extra
    assert metrics.purity(fine, coarse) == 1.0
    assert metrics.normalized_mutual_information(fine, coarse, normalizer="truth") == (
        pytest.approx(1.0, abs=TOL)
    )
    assert metrics.matched_accuracy(coarse, extra) <= metrics.purity(coarse, extra)


# --- labels -------------------------------------------------------------------------------------


CODES = [0, 1, 1, 2, 0]
SPELLINGS = [
    CODES,
    tuple(CODES),
    np.array(CODES, np.int8),
    np.array(CODES, float),
    ["b", "a", "a", "c", "b"],
    np.array(["b", "a", "a", "c", "b"]),
    ["1", 1, 1, 1.5, "1"],
    [(0, 1), (1,), (1,), (), (0, 1)],
    [frozenset({1}), "x", "x", b"x", frozenset({1})],
    np.array([10**30, -(10**30), -(10**30), 0, 10**30], object),
    [10**30, 5, 5, 7, 10**30],
    ["a", "a\0", "a\0", "b", "a"],
    pd.Series(CODES, index=list("vwxyz")),
    pd.Series(["b", "a", "a", "c", "b"], dtype="category"),
    pd.Series(["b", "a", "a", "c", "b"], dtype="string"),
    np.array(CODES, "datetime64[D]"),
    [True, False, False, "?", True],
    iter(CODES),
]


@pytest.mark.parametrize("labels", SPELLINGS, ids=lambda v: type(v).__name__)
def test_any_hashable_labels(labels):
    assert metrics.variation_of_information(labels, CODES) == 0.0


def test_order_of_the_contingency_table():
    assert metrics.contingency(["b", "a", "b"], [2, 1, 1]).tolist() == [[1, 0], [1, 1]]
    # Labels without an order are numbered by their appearance.
    assert metrics.contingency(["b", 1, "b"], [0, 0, 0]).tolist() == [[2], [1]]


MISSING = [
    [0.0, math.nan],
    np.array([0.0, np.nan]),
    np.array([1, None], object),
    ["a", None],
    pd.Series([1, None], dtype="Int64"),
    np.array(["2020-01-01", "NaT"], "datetime64[D]"),
]


@pytest.mark.parametrize("labels", MISSING, ids=lambda v: type(v).__name__)
def test_missing_labels_are_refused(labels):
    with pytest.raises(ValueError, match="truth must not have missing labels; got 1 of NaN"):
        metrics.rand_index([0, 1], labels)


@pytest.mark.parametrize("f", ALL, ids=name_of)
def test_bad_labels_are_refused(f):
    with pytest.raises(ValueError, match="same length; got 3 and 2; pass"):
        f([0, 1, 1], [0, 1])
    with pytest.raises(ValueError, match="must not be empty; got 0 labels"):
        f([0, 1], [])
    with pytest.raises(ValueError, match=r"one-dimensional; got shape \(2, 2\)"):
        f([0, 1], np.eye(2))
    with pytest.raises(TypeError, match="must be a sequence of labels; got str"):
        f([0, 1], "ab")
    with pytest.raises(TypeError, match="must be a sequence of labels; got int"):
        f([0, 1], 3)
    with pytest.raises(TypeError, match="must be hashable; got unhashable type"):
        f([0, 1], [[0], [1]])


def test_other_refusals():
    with pytest.raises(ValueError, match="normalizer must be one of .*; got 'max'; choose"):
        metrics.normalized_mutual_information([0], [0], normalizer="max")
    with pytest.raises(ValueError, match="base must be a finite number above 1; got 1"):
        metrics.variation_of_information([0], [0], base=1)
    with pytest.raises(ValueError, match="labelings must hold at least one labeling; got none"):
        metrics.predictive_rate([], [0])
    with pytest.raises(ValueError, match=r"labelings\[1\] and truth must have the same length"):
        metrics.predictive_rate([[0, 1], [0, 1, 2]], [0, 1])


def test_predictive_rate_of_a_data_frame_takes_columns():
    frame = pd.DataFrame({"shape": ["o", "o", "x", "x"], "size": [1, 2, 1, 2]})
    xor = [0, 1, 1, 0]
    assert metrics.predictive_rate(frame, xor) == 1.0
    assert metrics.predictive_rate(frame[["size"]], xor) == 0.5
    many = np.tile(np.arange(4), (70, 1)).T  # 4^70 possible combinations, 4 in the data
    assert metrics.predictive_rate(many, xor) == 1.0


# --- Dunn ---------------------------------------------------------------------------------------


def brute_dunn(X, labels, separation, diameter):
    groups = [X[labels == c] for c in np.unique(labels)]

    def d(x, y):
        return math.dist(x, y)

    def between(a, b):
        if separation == "centroid":
            return d(a.mean(0), b.mean(0))
        every = [d(x, y) for x in a for y in b]
        return min(every) if separation == "single" else sum(every) / len(every)

    def within(a):
        if len(a) == 1:
            return 0.0
        if diameter == "radius":
            return sum(d(x, a.mean(0)) for x in a) / len(a)
        every = [d(x, y) for x, y in itertools.combinations(a, 2)]
        return max(every) if diameter == "max" else sum(every) / len(every)

    gap = min(between(a, b) for a, b in itertools.combinations(groups, 2))
    return gap / max(map(within, groups))


@pytest.mark.parametrize("diameter", ["max", "mean", "radius"])
@pytest.mark.parametrize("separation", ["single", "average", "centroid"])
def test_dunn_against_loops(separation, diameter, monkeypatch):
    rng = np.random.default_rng(5)
    X, labels = rng.normal(size=(14, 3)), rng.permutation([0] * 6 + [1] * 4 + [2] * 3 + [3])
    expected = brute_dunn(X, labels, separation, diameter)
    options = {"separation": separation, "diameter": diameter}
    assert metrics.dunn_index(X, labels, **options) == pytest.approx(expected, rel=1e-12)
    # Blocks that divide clusters.
    monkeypatch.setattr(quality, "BLOCK_SIZE", 5 * len(X))
    assert metrics.dunn_index(X, labels, **options) == pytest.approx(expected, rel=1e-12)
    moved = 3.0 * X[::-1] + [1.0, -2.0, 5.0]
    assert metrics.dunn_index(moved, labels[::-1], **options) == pytest.approx(expected, rel=1e-9)


def test_dunn_of_degenerate_partitions():
    X = np.array([[0.0], [1.0], [5.0]])
    assert metrics.dunn_index(X, [0, 0, 1]) == 4.0
    assert math.isnan(metrics.dunn_index(X, [0, 0, 0]))
    assert math.isnan(metrics.dunn_index(X, [0, 1, 2]))
    assert metrics.dunn_index([[0.0], [0.0], [5.0]], [0, 0, 1]) == math.inf


def test_dunn_refusals():
    X = np.zeros((3, 2))
    with pytest.raises(ValueError, match="X and labels must have the same length; got 3 and 2"):
        metrics.dunn_index(X, [0, 1])
    with pytest.raises(ValueError, match="separation must be one of .*; got 'ward'; choose"):
        metrics.dunn_index(X, [0, 0, 1], separation="ward")
    with pytest.raises(ValueError, match="diameter must be one of .*; got 'min'; choose"):
        metrics.dunn_index(X, [0, 0, 1], diameter="min")
    with pytest.raises(ValueError, match="NaN"):
        metrics.dunn_index(X * np.nan, [0, 0, 1])


# --- independence -------------------------------------------------------------------------------


def test_independence_statistic_against_scipy():
    a = np.repeat([0, 0, 1, 1, 2], [30, 12, 9, 25, 14])
    b = np.repeat([0, 1, 0, 1, 1], [30, 12, 9, 25, 14])
    result = metrics.independence_test(a, b, random_state=0)
    table = metrics.contingency(a, b)
    expected = chi2_contingency(table, correction=False, lambda_="log-likelihood")
    assert result.statistic == pytest.approx(expected.statistic, rel=1e-12)
    assert result.dof == expected.dof == 2
    assert result.p_chi2 == pytest.approx(expected.pvalue, rel=1e-9)
    mutual = information.mutual_information(table / table.sum())
    assert result.information == pytest.approx(mutual, rel=1e-12)
    assert result.floor == 2 / (2 * 90)
    assert result == metrics.independence_test(a, b, random_state=0)


def test_permutation_p_value_is_the_share_of_orderings():
    a, b = [0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1]

    def statistic(x):
        return information.mutual_information(metrics.contingency(x, b) / 7)

    tables = [statistic(p) for p in itertools.permutations(a)]
    exact = np.mean(np.array(tables) >= statistic(a) - 1e-9)
    n = 20_000
    got = metrics.independence_test(a, b, n_permutations=n, random_state=3).p_permutation
    # Five standard errors: fails by chance for 6e-7 of the seeds.
    assert abs(got - exact) < 5 * math.sqrt(exact * (1 - exact) / n) + 1 / n
    assert 0.1 < exact < 0.9


def test_permutation_p_value_agrees_with_shuffling_labels():
    rng = np.random.default_rng(0)
    a, b = rng.integers(3, size=60), rng.integers(2, size=60)
    a[:14] = b[:14]

    def statistic(x):
        return information.mutual_information(metrics.contingency(x, b) / 60)

    n = 1000
    shuffled = np.array([statistic(rng.permutation(a)) for _ in range(n)])
    expected = np.mean(shuffled >= statistic(a) - 1e-9)
    got = metrics.independence_test(a, b, n_permutations=20_000, random_state=1).p_permutation
    assert 0.005 < expected < 0.5
    assert abs(got - expected) < 5 * math.sqrt(expected * (1 - expected) / n) + 1 / n


def test_p_values_and_floor_under_independence():
    rng = np.random.default_rng(7)
    results = [
        metrics.independence_test(
            rng.integers(3, size=400), rng.integers(3, size=400), n_permutations=99, random_state=i
        )
        for i in range(300)
    ]
    # Kolmogorov-Smirnov and a normal bound; each fails for about 1e-6 of the seeds.
    assert ks_1samp([r.p_chi2 for r in results], lambda x: x).pvalue > 1e-6
    share = np.mean([r.p_permutation <= 0.1 for r in results])
    assert abs(share - 0.1) < 5 * math.sqrt(0.09 / 300)
    G = np.array([r.statistic for r in results])
    assert abs(G.mean() - 4) < 5 * math.sqrt(chi2(4).var() / 300)
    assert np.mean([r.information for r in results]) == pytest.approx(results[0].floor, rel=0.25)


def test_dependence_is_found():
    a = np.arange(100) % 2
    result = metrics.independence_test(a, a, n_permutations=199, random_state=0)
    assert result.information == pytest.approx(math.log(2), abs=TOL)
    assert result.p_chi2 < 1e-20
    assert result.p_permutation == 1 / 200


def test_independence_of_degenerate_labelings():
    result = metrics.independence_test([0, 0, 0], ["a", "b", "b"])
    assert result == (0.0, 0.0, 0, 1.0, 1.0, 0.0)
    assert math.isnan(metrics.independence_test([0, 1], [0, 1], n_permutations=0).p_permutation)
    # Every permutation of a perfectly balanced table is at least as dependent.
    balanced = metrics.independence_test([0, 0, 1, 1], [0, 1, 0, 1], random_state=0)
    assert balanced.statistic == 0.0 and balanced.p_permutation == 1.0
    with pytest.raises(ValueError, match="n_permutations must not be negative; got -1"):
        metrics.independence_test([0, 1], [0, 1], n_permutations=-1)
    with pytest.raises(ValueError, match="labels and known must have the same length"):
        metrics.independence_test([0, 1], [0])


def test_permutations_in_batches(monkeypatch):
    rng = np.random.default_rng(2)
    a, b = rng.integers(3, size=50), rng.integers(3, size=50)
    whole = metrics.independence_test(a, b, n_permutations=500, random_state=0).p_permutation
    monkeypatch.setattr(partitions, "BLOCK_SIZE", 9 * 7)
    parts = metrics.independence_test(a, b, n_permutations=500, random_state=0).p_permutation
    assert parts == whole
