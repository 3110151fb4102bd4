"""Codes agree with their definitions: sums over all data, integrals, and printed tables."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from nrprob import codelength
from nrprob.codelength import (
    exponential_complexity,
    exponential_length,
    gaussian_complexity,
    gaussian_length,
    kmeans_length,
    kraft_sum,
    maximum_likelihood_length,
    multinomial_complexity,
    multinomial_table,
    nml_length,
    two_part_length,
)

# Table 2.1 of Yin (2007): p = 0, 0.1, ..., 1.
PRINTED = {
    (4, 6): "Inf 13.85 11.09 9.86 9.35 9.33 9.76 10.71 12.48 16.05 Inf",
    (40, 60): "Inf 102.4 81.08 72.47 69.92 71.71 77.63 88.57 107.4 144.2 Inf",
}


def compositions(total, parts):
    """All ordered sums of ``parts`` non-negative integers that equal ``total``."""
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        ends = (-1, *bars, total + parts - 1)
        yield [b - a - 1 for a, b in itertools.pairwise(ends)]


def brute_complexity(k, n):
    """Sum of the maximum likelihoods of all sequences, by their counts."""
    total = 0.0
    for h in compositions(n, k):
        ways = math.factorial(n) // math.prod(map(math.factorial, h))
        total += ways * math.prod((a / n) ** a for a in h if a)
    return math.log(total)


# Symbols


def test_table_2_1_to_the_printed_digits():
    p = np.arange(11) / 10
    for counts, printed in PRINTED.items():
        result = two_part_length(counts, np.stack([p, 1 - p], 1), 2 * p / 11)
        for value, text in zip(result, printed.split(), strict=True):
            digits = len(text.partition(".")[2])
            assert f"{value:.{digits}f}".lower() == text.lower()
    assert np.argmin(two_part_length((4, 6), np.stack([p, 1 - p], 1), 2 * p / 11)) == 5
    assert two_part_length((4, 6), (0.5, 0.5), 1 / 11, base=2) == pytest.approx(10 + math.log2(11))


def test_two_part_length_refuses_what_is_no_code():
    with pytest.raises(ValueError, match="sum to 1"):
        two_part_length((1, 1), (0.5, 0.6), 1.0)
    with pytest.raises(ValueError, match="prior must not"):
        two_part_length((1, 1), [(0.5, 0.5), (0.1, 0.9)], [0.7, 0.7])
    with pytest.raises(ValueError, match="a column per symbol"):
        two_part_length((1, 1), [(0.5, 0.5)], 0.5)
    with pytest.raises(ValueError, match="counts must be finite"):
        two_part_length((1, -1), (0.5, 0.5), 1.0)


def test_kraft_sum():
    assert kraft_sum([1, 2, 3, 3], base=2) == 1.0
    assert kraft_sum([math.log(2)] * 2) == pytest.approx(1)
    assert kraft_sum([1, math.inf], base=2) == 0.5
    assert kraft_sum([1, 1, 1], base=2) > 1
    with pytest.raises(ValueError, match="empty"):
        kraft_sum([])
    with pytest.raises(ValueError, match="NaN"):
        kraft_sum([math.nan])
    with pytest.raises(TypeError, match="real numbers"):
        kraft_sum(["1"])


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_multinomial_complexity_is_the_sum_over_all_data(k):
    for n in range(1, 13):
        assert multinomial_complexity(k, n) == pytest.approx(brute_complexity(k, n), rel=1e-12)


def test_multinomial_complexity_at_the_edges():
    assert multinomial_complexity(1, 10**6) == 0
    assert multinomial_complexity(7, 0) == 0
    assert multinomial_complexity(9, 1) == pytest.approx(math.log(9))
    table = multinomial_complexity([[1], [2], [30]], [0, 1, 2, 50])
    assert table.shape == (3, 4)
    assert table[2, 3] == multinomial_complexity(30, 50)
    np.testing.assert_array_equal(multinomial_table(30, [0, 1, 2, 50])[[0, 1, 29]], table)
    assert (np.diff(multinomial_table(40, 9), axis=0) > 0).all()
    assert (np.diff(multinomial_table(5, np.arange(40))[1:], axis=1) > 0).all()
    assert multinomial_complexity(5, 9, base=2) == pytest.approx(
        multinomial_complexity(5, 9) / math.log(2)
    )
    for k, n in ((0, 3), (2.5, 3), (2, -1), (2, math.inf)):
        with pytest.raises(ValueError, match="whole number"):
            multinomial_complexity(k, n)


@pytest.mark.parametrize("n", [10**3, 10**6])
def test_multinomial_complexity_of_large_data_is_exact(n):
    """Compare with the convolution of C(2, .) by exact rational steps, to 1e-10."""
    from fractions import Fraction

    scale = 10**40
    # C(2, n) by its sum of falling factorials, in fixed point.
    term, total, b = scale, scale, 0
    while term:
        term = term * (n - b) // n
        total, b = total + term, b + 1
    previous, current = Fraction(scale), Fraction(total)
    logs = {2: math.log(total) - math.log(scale)}
    for k in range(1, 999):
        value = current.numerator + n * previous.numerator // k
        previous, current = current, Fraction(value)
        logs[k + 2] = math.log(value) - math.log(scale)
    for k in (2, 3, 10, 100, 1000):
        assert multinomial_complexity(k, n) == pytest.approx(logs[k], rel=1e-10)


def test_asymptotic_forms():
    errors = {}
    for form in ("asymptotic", "szpankowski"):
        for k in (2, 4, 16):
            for n in (1000, 4000):
                exact = multinomial_complexity(k, n)
                errors[form, k, n] = abs(multinomial_complexity(k, n, form=form) - exact)
    for k in (2, 4, 16):
        # Orders 1/2 and 3/2 in 1/n: a fourfold n makes errors 2 and 8 times smaller.
        assert errors["asymptotic", k, 1000] / errors["asymptotic", k, 4000] == pytest.approx(
            2, abs=0.2
        )
        assert errors["szpankowski", k, 1000] / errors["szpankowski", k, 4000] == pytest.approx(
            8, abs=1
        )
        assert errors["szpankowski", k, 4000] < 0.01 * errors["asymptotic", k, 4000]
    assert multinomial_complexity(1, 50, form="szpankowski") == pytest.approx(0, abs=1e-12)
    # Table 3.3 of Yin (2007).
    printed = [multinomial_complexity(k, 1557, form="printed") for k in (4, 6, 8, 9, 12, 16)]
    np.testing.assert_allclose(printed, [8.3, 13.8, 19.3, 22.1, 30.3, 41.3], atol=0.055)
    with pytest.raises(ValueError, match="needs n above 0"):
        multinomial_complexity(2, 0, form="asymptotic")
    with pytest.raises(ValueError, match="form must be one of"):
        multinomial_complexity(2, 5, form="bic")


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6))
def test_nml_code_is_complete(k, n):
    words = itertools.product(range(k), repeat=n)
    lengths = [nml_length(np.bincount(word, minlength=k)) for word in words]
    assert kraft_sum(lengths) == pytest.approx(1, rel=1e-12)
    # The code lengths of maximum likelihood are too short for n > 1, so they are not a code.
    short = [
        maximum_likelihood_length(np.bincount(word, minlength=k))
        for word in itertools.product(range(k), repeat=n)
    ]
    assert kraft_sum(short) == pytest.approx(math.exp(multinomial_complexity(k, n)))


def test_lengths_of_counts():
    assert maximum_likelihood_length([5, 0, 0]) == 0
    assert maximum_likelihood_length([3, 3], base=2) == pytest.approx(6)
    assert nml_length([3, 3, 0]) > nml_length([3, 3])
    assert maximum_likelihood_length([0, 0]) == 0
    with pytest.raises(ValueError, match="one number per symbol"):
        nml_length([[1, 2]])
    with pytest.raises(ValueError, match="whole number"):
        nml_length([1.5, 2])


# Distances and continuous values


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("n", [1, 3, 40])
def test_exponential_complexity_is_the_integral_of_the_largest_likelihood(n, shape):
    """Compare with quadrature over the mean distance, which has a gamma density."""
    a, low, high = n * shape, 0.4, 3.0

    def density(mean, scale):
        log_p = a * math.log(a * mean / scale) - a * mean / scale - math.lgamma(a)
        return math.exp(log_p) / mean

    inside = integrate.quad(lambda m: density(m, m), low, high)[0]
    result = exponential_complexity(n, low, high, shape=shape)
    assert result == pytest.approx(math.log(inside), abs=1e-9)
    below = integrate.quad(lambda m: density(m, low), 0, low)[0]
    above = integrate.quad(lambda m: density(m, high), high, math.inf)[0]
    result = exponential_complexity(n, low, high, shape=shape, clamped=True)
    assert result == pytest.approx(math.log(inside + below + above), abs=1e-6)


def test_exponential_complexity_forms_and_refusals():
    form = exponential_complexity(1000, 1, 8, form="asymptotic")
    assert form == pytest.approx(0.5 * math.log(1000 / (2 * math.pi)) + math.log(math.log(8)))
    assert form - exponential_complexity(1000, 1, 8) == pytest.approx(1 / 12000, rel=1e-4)
    assert exponential_complexity(0, 1, 2, clamped=True) == 0
    assert exponential_complexity(0, 1, 2) == 0
    counts = np.array([0, 1, 10, 1e6])
    result = exponential_complexity(counts, 1e-3, 1.0, clamped=True, base=2)
    assert result.shape == (4,) and (np.diff(result) > 0).all()
    for low, high in ((0, 1), (1, 1), (2, 1), (1, math.inf)):
        with pytest.raises(ValueError, match="0 < low < high"):
            exponential_complexity(3, low, high)
    with pytest.raises(ValueError, match="n must not be negative"):
        exponential_complexity(-1, 1, 2)
    with pytest.raises(ValueError, match="form must be one of"):
        exponential_complexity(3, 1, 2, form="bic")


def test_exponential_code_is_complete():
    for n, points in ((1, (0.2, 0.9)), (2, (0.4, 1.8))):
        # The sum of n distances has volume r^(n-1) / (n-1)!.
        def mass(r, n=n):
            return r ** (n - 1) * math.exp(-exponential_length(n, r, 0.2, 0.9))

        total = sum(
            integrate.quad(mass, *ends, epsabs=1e-12)[0]
            for ends in ((0, points[0]), points, (points[1], math.inf))
        )
        assert total == pytest.approx(1, abs=1e-8)
    assert exponential_length(0, 0.0, 0.2, 0.9) == 0


def test_exponential_codes_compile():
    counts = np.array([0.0, 1.0, 7.0, 5000.0])
    totals = 0.3 * counts
    with jax.enable_x64(True):
        result = jax.jit(exponential_length)(jnp.asarray(counts), jnp.asarray(totals), 0.2, 0.9)
        slope = jax.grad(lambda r: exponential_length(7.0, r, 0.2, 0.9))(2.0)
    np.testing.assert_allclose(result, exponential_length(counts, totals, 0.2, 0.9), rtol=1e-12)
    assert float(slope) == pytest.approx(7 / 2.0)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_gaussian_complexity_is_the_integral_of_the_largest_likelihood(n):
    low, high, width = 0.3, 2.0, 5.0

    def likely(v):
        """Density of the variance times density of the mean, at the best parameters in the box."""
        s = min(max(math.sqrt(v), low), high)
        half = (n - 1) / 2
        log_p = half * math.log(n / (2 * s**2)) + (half - 1) * math.log(v) - n * v / (2 * s**2)
        return math.exp(log_p - math.lgamma(half)) * math.sqrt(n / (2 * math.pi)) / s

    ends = (0, low**2, high**2, math.inf)
    total = sum(integrate.quad(likely, a, b)[0] for a, b in itertools.pairwise(ends))
    result = gaussian_complexity(n, low, high, width)
    assert result == pytest.approx(math.log(width * total), abs=1e-6)


def test_gaussian_code_at_the_edges():
    assert gaussian_complexity(0, 0.1, 1, 3) == 0
    assert gaussian_length(1, 0.0, 0.1, 1, 3) == pytest.approx(math.log(3))
    assert gaussian_length(np.array([0, 1]), 0.0, 0.1, 1, 3, base=2)[1] == pytest.approx(
        math.log2(3)
    )
    # The regular part tends to Rissanen's form with sqrt|I| = sqrt(2) / s^2.
    regular = math.log(10**5 / (2 * math.pi)) + math.log(math.sqrt(2) * 3 * (1 / 0.1 - 1 / 1))
    assert gaussian_complexity(10**5, 0.1, 1, 3) == pytest.approx(regular, abs=0.01)
    with pytest.raises(ValueError, match="0 < low < high"):
        gaussian_complexity(3, 1, 1, 3)
    with pytest.raises(ValueError, match="mean_range"):
        gaussian_complexity(3, 0.1, 1, 0)


# K-means


def test_kmeans_length_is_its_formula():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(30, 3)), rng.integers(3, size=30)
    counts = np.bincount(labels)
    r = sum(((x[labels == k] - x[labels == k].mean(0)) ** 2).sum() for k in range(3))
    parts = nml_length(counts) + 30 + 30 * math.log(r / 30)
    result = kmeans_length(x, labels, low=1e-3, high=10.0)
    assert result == pytest.approx(parts + exponential_complexity(30, 1e-3, 10))
    gauss = kmeans_length(x, labels, geometry="gaussian", low=1e-3, high=10.0, n_clusters=4)
    expected = nml_length([*counts, 0]) + 1.5 * 30 * (1 + math.log(r / 30))
    assert gauss == pytest.approx(expected + exponential_complexity(30, 1e-3, 10, shape=1.5))
    centres = kmeans_length(x, labels, low=1e-3, high=10.0, centre_code="half_log", base=2)
    assert centres == pytest.approx((result + 4.5 * math.log(30 / (2 * math.pi))) / math.log(2))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 10), st.sampled_from(["exp", "gaussian"]))
def test_differences_of_kmeans_lengths_are_invariant(seed, factor, geometry):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 3))
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    moved = factor * (x @ turn) + rng.normal(size=3)
    one, two = rng.integers(2, size=20), rng.integers(3, size=20)
    here, there = (
        kmeans_length(y, one, geometry=geometry) - kmeans_length(y, two, geometry=geometry)
        for y in (x, moved)
    )
    assert here == pytest.approx(there, abs=1e-8)


def test_kmeans_length_chooses_and_refuses():
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(1)
    z = rng.integers(3, size=150)
    x = 6 * np.array([[0, 0], [1, 0], [0, 1]])[z] + rng.normal(size=(150, 2))
    lengths = [
        kmeans_length(x, KMeans(k, n_init=3, random_state=0).fit_predict(x)) for k in range(1, 6)
    ]
    assert int(np.argmin(lengths)) == 2
    # Clusters of single points do not reduce the length without bound.
    assert math.isfinite(kmeans_length(x, np.arange(150)))
    with pytest.raises(ValueError, match="no variance"):
        kmeans_length(np.ones((4, 2)), [0, 0, 1, 1])
    with pytest.raises(ValueError, match="n_clusters must not be below"):
        kmeans_length(x, z, n_clusters=2)
    with pytest.raises(ValueError, match="geometry must be"):
        kmeans_length(x, z, geometry="sphere")
    with pytest.raises(ValueError, match="inconsistent numbers"):
        kmeans_length(x, z[:-1])


def test_public_names():
    assert set(codelength.__all__) <= set(dir(codelength))


def test_what_is_no_number_of_distances_or_symbols_is_refused():
    with pytest.raises(ValueError, match="no larger than"):
        codelength.exponential_length(1, 5, 2, 5, shape=np.inf)
    with pytest.raises(ValueError, match="counts must be at most"):
        codelength.maximum_likelihood_length([1e300, 1e300])
    with pytest.raises(ValueError, match="form must be one of"):
        codelength.multinomial_complexity(5, 2, form=np.array([1.0, 2.0]))
    lengths = codelength.exponential_length(1, 2, 1.5, (2.0, 3.0))  # one range per value
    np.testing.assert_allclose(lengths[1], codelength.exponential_length(1, 2, 1.5, 3.0))
