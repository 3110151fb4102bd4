"""Critical weight of the labels of CECIB: formulas, Monte Carlo, and known population values."""

import itertools
import math

import cec_reference as reference
import numpy as np
import pytest
from scipy.special import polygamma, psi
from scipy.stats import multivariate_normal

from nrprob import CECIB
from nrprob.methods.cec import critical, held_out
from nrprob.methods.cec.critical import BETA0_GAUSSIAN_CUT, MomentEstimates, SetEstimates
from nrprob.methods.cec.held_out import N_FOLDS, HeldOutGains
from nrprob.methods.cec.inputs import prepare_features

FAMILIES = ("full", "diag", "spherical", "fixed")
PAIR = np.ones((1, 2), bool)


def estimate(x, codes, covariance="full", mass=None, seed=0):
    """Critical weight of the labels ``codes``; x is neither centred nor scaled."""
    prepared = prepare_features(x, covariance, 1.0 if covariance == "fixed" else None, 0.0, 1, mass)
    names = np.arange(codes.max() + 1)
    return critical.estimate_critical_beta(
        prepared, codes, covariance, names, np.random.RandomState(seed)
    )


def simplex(n_classes, distance):
    """Means (k, k - 1) of classes at equal distances."""
    vectors, sizes, _ = np.linalg.svd(np.eye(n_classes) - 1 / n_classes)
    return (vectors * sizes)[:, :-1] * distance / math.sqrt(2)


def identity_classes(means, mass):
    """Weighted samples of classes whose covariances are exactly the identity."""
    n_classes, m = means.shape
    corners = math.sqrt(m) * np.r_[np.eye(m), -np.eye(m)]
    x = (means[:, None] + corners).reshape(-1, m)
    codes = np.repeat(np.arange(n_classes), 2 * m)
    return x, codes, np.full(len(x), mass / (2 * m))


def test_log_determinants_of_scatters_have_the_expected_mean_and_variance():
    """E log|W| - log|Sigma| and its variance, by simulation."""
    rng = np.random.default_rng(0)
    n, d, n_draws = 7, 4, 40_000
    x = rng.normal(size=(n_draws, n, d))
    x -= x.mean(1, keepdims=True)
    values = np.linalg.slogdet(np.swapaxes(x, 1, 2) @ x)[1]
    halves = (n - np.arange(1, d + 1)) / 2
    mean, variance = d * math.log(2) + psi(halves).sum(), polygamma(1, halves).sum()
    assert abs(values.mean() - mean) < 5 * math.sqrt(variance / n_draws)
    assert values.var() == pytest.approx(variance, rel=0.06)


@pytest.mark.parametrize("covariance", FAMILIES)
def test_estimates_are_unbiased_and_standard_errors_right_if_labels_mean_nothing(covariance):
    """The variance of the union is subtracted: with the opposite sign, it is 2.8 times as large."""
    rng = np.random.default_rng(1)
    n_sets, d, sizes = 3000, 3, (7, 10)
    codes = np.repeat([0, 1], sizes)
    mixing = np.array([[1, 0, 0], [0.7, 0.8, 0], [0, 0, 0.6]])  # correlated features
    values, variances = np.empty((2, n_sets, 2))
    for i in range(n_sets):
        x = rng.normal(size=(17, d)) @ mixing.T
        x = x if covariance == "fixed" else x / x.std(0)
        moments = MomentEstimates(x, np.ones(17), codes, 2, covariance)
        # The separate and the pooled estimate.
        values[i], variances[i] = np.squeeze(moments.separate_and_pooled(PAIR), 2)
    errors = values.std(0) / math.sqrt(n_sets)
    assert (abs(values.mean(0) - 1) < 5 * errors).all()
    # Exact for "full"; "diag" has an upper bound, and "spherical" approximate degrees of freedom.
    np.testing.assert_allclose(variances.mean(0), values.var(0), rtol=0.15)
    difference = values[:, 1] - values[:, 0]
    if covariance == "full":
        assert -np.diff(variances.mean(0)) == pytest.approx(difference.var(), rel=0.15)


def test_estimates_move_from_pooled_to_separate_if_covariances_differ():
    rng = np.random.default_rng(11)
    codes, x = np.repeat([0, 1], 12), rng.normal(size=(24, 4))
    parts = []
    for scale in (1.0, 2.0, 3.0, 30.0):
        scaled = x * np.where(codes == 0, 1, scale)[:, None]
        moments = MomentEstimates(scaled, np.ones(24), codes, 2, "full")
        (separate, pooled), variances = moments.separate_and_pooled(PAIR)
        value, error = moments(PAIR)
        variance = float(variances[0, 0] - variances[1, 0])
        part = max(0, 1 - 2 * variance / max(pooled[0] - separate[0], 1e-9) ** 2)
        assert value[0] == pytest.approx(pooled[0] + part * (separate[0] - pooled[0]))
        assert error[0] ** 2 == pytest.approx(variances[1, 0] + part**2 * variance)
        parts.append(part)
    assert parts[0] == 0 < parts[2] < parts[3] and parts[3] > 0.9


@pytest.mark.parametrize("covariance", FAMILIES)
def test_all_sets_have_the_estimate_of_their_samples_alone(covariance):
    rng = np.random.default_rng(2)
    codes = np.repeat(np.arange(4), (9, 12, 15, 20))
    x = rng.normal(size=(len(codes), 3)) + rng.normal(size=(4, 3))[codes]
    sets = critical._all_sets(4)
    assert {tuple(np.flatnonzero(s)) for s in sets} == {
        s for k in (2, 3, 4) for s in itertools.combinations(range(4), k)
    }
    moments = MomentEstimates(x, np.ones(len(x)), codes, 4, covariance)
    values, variances = moments.separate_and_pooled(sets)

    def half_log_det(scatter, freedom):
        if covariance == "full":
            halves = (freedom - np.arange(3)) / 2
            return 0.5 * (np.linalg.slogdet(scatter / 2)[1] - psi(halves).sum())
        if covariance == "diag":
            return 0.5 * (np.log(np.diag(scatter) / 2) - psi(freedom / 2)).sum()
        if covariance == "fixed":
            return 0.5 * np.trace(scatter) / freedom
        halves = moments._trace**2 / moments._squares * freedom / 2
        return 1.5 * (np.log(np.trace(scatter) / freedom) + np.log(halves) - psi(halves))

    def scatter(part):
        return (len(part) - 1) * np.cov(part.T)

    for row, value in zip(sets, values.T, strict=True):
        members = [x[codes == c] for c in np.flatnonzero(row)]
        union = np.concatenate(members)
        shares = np.array([len(part) for part in members]) / len(union)
        separate = shares @ [half_log_det(scatter(part), len(part) - 1) for part in members]
        pooled = half_log_det(sum(map(scatter, members)), len(union) - len(members))
        entropy = -(shares * np.log(shares)).sum()
        expected = 1 - (half_log_det(scatter(union), len(union) - 1) - [separate, pooled]) / entropy
        np.testing.assert_allclose(value, expected, atol=1e-9)
    assert (variances > 0).all() and (variances[:, -1] < variances[:, 0]).all()


@pytest.mark.parametrize(
    ("n_classes", "distance", "pair", "union"),
    [(3, 2, 0.5, 0.535), (5, 2, 0.5, 0.582), (10, 1, 0.839, 0.905), (10, 3, 0.15, 0.274)],
)
def test_population_values_of_classes_at_equal_distances(n_classes, distance, pair, union):
    """The union of all classes decides: no pair has so large a critical weight."""
    x, codes, mass = identity_classes(simplex(n_classes, distance), 1e6)
    # The scale common to all features leaves the simplex regular.
    result = estimate(x, codes, mass=mass)
    off_diagonal = ~np.eye(n_classes, dtype=bool)
    np.testing.assert_allclose(result.pairs[off_diagonal], pair, atol=6e-4)
    assert result.value == result.weight == pytest.approx(union, abs=6e-4)
    assert result.classes.tolist() == list(range(n_classes)) and not result.reason
    exact = 1 - math.log1p(distance**2 / 4) / math.log(4)  # log determinant of two unit classes
    np.testing.assert_allclose(result.pairs[off_diagonal], exact, atol=1e-4)


def test_many_classes_have_the_unions_of_an_agglomeration():
    """Three groups of similar classes: the largest weight is that of a group, which joins first."""
    means = 30 * np.repeat(np.eye(3), 5, axis=0) @ np.eye(3, 14)
    means[:5] += simplex(5, 1.0) @ np.eye(4, 14)
    means[5:] += np.c_[np.zeros((10, 4)), simplex(10, 6.0) @ np.eye(9, 10)]
    x, codes, mass = identity_classes(means, 1e6)
    result = estimate(x, codes, mass=mass)
    assert len(result.pairs) > critical._MAX_CLASSES
    assert result.classes.tolist() == [0, 1, 2, 3, 4]
    assert result.value > np.nanmax(result.pairs) + 0.01


def test_halves_of_a_normal_distribution_and_random_labels():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200_000, 1))
    halves, chance = (x[:, 0] > 0).astype(int), rng.integers(2, size=200_000)
    assert estimate(x, halves).value == pytest.approx(BETA0_GAUSSIAN_CUT, abs=5e-3)
    assert estimate(x, chance).value == pytest.approx(1, abs=1e-4)


def test_separate_and_merged_classes_have_equal_objectives_at_the_critical_weight():
    rng = np.random.default_rng(3)
    truth = np.repeat([0, 1], (30_000, 20_000))
    X = rng.normal(size=(50_000, 2)) @ [[1, 0.4], [0, 2]] + np.outer(truth, [2.0, 1])
    beta = estimate(X, truth).value
    apart, merged = (
        reference.terms(X, labels, truth, beta).sum() / 50_000
        for labels in (truth, np.zeros_like(truth))
    )
    assert apart == pytest.approx(merged, abs=2e-4)
    other = reference.terms(X, truth, truth, beta + 0.1).sum() / 50_000
    assert apart == pytest.approx(other)  # pure clusters have no label cost
    assert reference.terms(X, 0 * truth, truth, beta + 0.1).sum() / 50_000 > merged + 0.05


def test_weights_count_as_repeated_samples_and_units_do_not_matter():
    rng = np.random.default_rng(4)
    codes, weights = np.repeat([0, 1, 2], 15), rng.integers(1, 4, 45)
    x = rng.normal(size=(45, 2)) + np.eye(3, 2)[codes]
    for covariance in ("full", "diag"):
        weighted = estimate(x, codes, covariance, weights.astype(float))
        repeats = np.repeat(np.arange(45), weights)
        repeated = estimate(x[repeats], codes[repeats], covariance)
        np.testing.assert_allclose(weighted.pairs, repeated.pairs, rtol=1e-9)
        np.testing.assert_allclose(weighted.errors, repeated.errors, rtol=1e-9)
        scaled = estimate(x * [1e3, 1e-2] + [5, -1], codes, covariance, weights.astype(float))
        np.testing.assert_allclose(weighted.pairs, scaled.pairs, rtol=1e-6)
        few = codes[:24], np.ones(24)
        values = [
            HeldOutGains(z[:24], few[1], few[0], covariance, np.random.RandomState(0)).estimate(
                PAIR
            )
            for z in (x, x * [1e3, 1e-2] + [5, -1])
        ]
        np.testing.assert_allclose(*values, rtol=1e-6)


def test_held_out_gains_are_those_of_densities_fitted_to_the_training_samples():
    """One fold and one option at a time, with covariances from loops."""
    rng = np.random.default_rng(5)
    codes = np.repeat([0, 1, 2], (6, 8, 7))
    x = rng.normal(size=(21, 3)) * [1, 2, 0.5] + 2 * rng.normal(size=(3, 3))[codes]
    gains = HeldOutGains(x, np.ones(21), codes, "full", np.random.RandomState(0))
    members = np.array([[True, False, True], [True, True, True]])

    def shrunk(z, lost):
        """Covariance shrunk by the variances of its entries, one entry at a time."""
        n, z = len(z), z - z.mean(0)
        noise = squares = 0.0
        for a, b in itertools.permutations(range(3), 2):
            products = z[:, a] * z[:, b]
            noise += products.var() / n
            squares += products.mean() ** 2
        covariance = z.T @ z / (n - lost)
        factor = 1 - min(1, noise / squares)
        return np.where(np.eye(3), covariance, factor * covariance)

    def densities(train, rows):
        """Log densities (rows, options) of rows under their classes, fitted to other rows."""
        z = (x - x[train].mean(0)) / x[train].std(0)
        means = np.stack([z[train & (codes == c)].mean(0) for c in range(3)])
        pooled = shrunk((z - means[codes])[train], 3)
        out = []
        for row in np.flatnonzero(rows):
            own = train & (codes == codes[row])
            n, own_covariance = own.sum(), shrunk(z[own], 1)
            out.append(
                [
                    multivariate_normal.logpdf(
                        z[row],
                        (n * means[codes[row]] + size * z[train].mean(0)) / (n + size),
                        ((1 - a) * own_covariance + a * pooled) * (1 + 1 / n) + 1e-6 * np.eye(3),
                    )
                    for a in held_out._MIXING
                    for size in held_out._MEAN_SIZES
                ]
            )
        return np.array(out)

    expected = np.zeros(2)
    for folds, f in itertools.product(gains._folds, range(N_FOLDS)):
        assert np.bincount(codes[folds == f], minlength=3).min() >= 1
        rows, train = folds == f, folds != f
        z = (x - x[train].mean(0)) / x[train].std(0)
        own, choice = densities(train, rows), np.zeros((21, 12))
        for g in set(range(N_FOLDS)) - {f}:
            choice[folds == g] = densities(train & (folds != g), folds == g)
        for t, classes in enumerate(members):
            inside = classes[codes]
            union = z[train & inside]
            n = len(union)
            covariance = shrunk(union, 1) * (1 + 1 / n) + 1e-6 * np.eye(3)
            one = multivariate_normal.logpdf(z[rows & inside], union.mean(0), covariance)
            option = choice[inside].sum(0).argmax()
            expected[t] += (own[inside[rows], option] - one).sum() / len(gains._folds)
    sizes = members * np.bincount(codes)
    shares = sizes / sizes.sum(1, keepdims=True)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1)
    expected = 1 - np.maximum(expected, 0) / sizes.sum(1) / entropy
    assert (expected < 1).all()
    np.testing.assert_allclose(gains.estimate(members), expected, rtol=1e-5)


@pytest.mark.parametrize("covariance", FAMILIES)
def test_cross_validated_estimates_use_the_features_of_separate_classes(covariance):
    rng = np.random.default_rng(6)
    codes = np.repeat([0, 1], 8)
    x = rng.normal(size=(16, 3))
    x[:, 2] = 1.5  # a constant feature
    near, far = (
        HeldOutGains(
            x + shift * codes[:, None], np.ones(16), codes, covariance, np.random.RandomState(0)
        ).estimate(PAIR)[0]
        for shift in (0.0, 8.0)
    )
    assert 0.3 < near <= 1 and far < 0


@pytest.mark.slow
@pytest.mark.contract
def test_few_labels_of_a_class_are_not_ignored():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(120, 4)) + 9 * np.repeat(np.eye(3, 4), 40, axis=0)
    names = np.repeat(["a", "b", "c"], 40).astype(object)
    y = np.where(np.arange(120) % 40 < np.repeat([10, 10, 3], 40), names, -1)
    model = CECIB(4, beta="critical", n_init=1, random_state=0)
    with pytest.warns(UserWarning) as caught:
        model.fit(x, y)
    messages = [str(w.message) for w in caught if "critical beta" in str(w.message)]
    assert len(messages) == 1 and "class 'c' has 3 labelled samples" in messages[0]
    assert model.beta_ == 1 and "at least 5 are needed" in model.critical_beta_reason_
    known = np.isfinite(model.critical_beta_)
    assert known.sum() == 2 and known[0, 1] and known[1, 0] and model.critical_beta_[0, 1] < 0
    assert np.isfinite(model.critical_beta_se_[0, 1])
    value, classes = model.critical_beta_set_
    assert value < 0 and classes.tolist() == ["a", "b"]
    # With enough labels, the features separate the classes, and labels are not needed.
    y[80:90] = "c"
    with pytest.warns(UserWarning, match="the features alone keep all classes apart"):
        model.fit(x, y)
    assert model.beta_ == 0 and model.critical_beta_reason_ == ""
    with pytest.warns(UserWarning, match="needs labels of two classes"):
        assert model.fit(x).beta_ == 0


def test_imprecise_estimates_give_way_to_cross_validation():
    rng = np.random.default_rng(8)
    codes, x = np.repeat([0, 1], 5), rng.normal(size=(10, 3))
    estimates = SetEstimates(x, np.ones(10), codes, 2, "full", np.random.RandomState(0))
    value_by_moments, error = estimates.moments(PAIR)
    value, _ = estimates(PAIR)
    assert error > 0.25 and value != value_by_moments and 0 < value <= 1
    result = estimate(x, codes)
    assert result.pairs[0, 1] == pytest.approx(value_by_moments[0])
    assert result.errors[1, 0] == pytest.approx(error[0]) and result.value != result.pairs[0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("d", [5, 10, 20, 30])
def test_noise_labels_have_a_critical_weight_of_one(d):
    """At least 98 % of 200 sets within three standard errors, and cross-validated means of 0.6."""
    rng = np.random.default_rng(d)
    for n in (d + 2, 2 * d):
        codes = np.repeat([0, 1], n)
        distances = []
        for _ in range(200):
            x = rng.normal(size=(2 * n, d))
            value, error = MomentEstimates(x, np.ones(2 * n), codes, 2, "full")(PAIR)
            distances.append(abs(value[0] - 1) / error[0])
        assert np.mean(np.array(distances) <= 3) >= 0.95  # 0.985 expected
    for n in (5, d):
        codes = np.repeat([0, 1], n)
        values = [
            HeldOutGains(
                rng.normal(size=(2 * n, d)), np.ones(2 * n), codes, "full", np.random.RandomState(i)
            ).estimate(PAIR)[0]
            for i in range(30)
        ]
        assert np.mean(values) >= 0.6


@pytest.mark.slow
@pytest.mark.parametrize("d", [5, 10, 20])
def test_five_classes_at_three_standard_deviations_have_a_small_weight(d):
    """The population value is 0.20."""
    codes = np.repeat(np.arange(5), d + 8)
    means = simplex(5, 3.0) @ np.eye(4, d)
    rng = np.random.default_rng(d)
    weights = [
        estimate(rng.normal(size=(len(codes), d)) + means[codes], codes, seed=i).weight
        for i in range(15)
    ]
    assert 0.1 < np.mean(weights) <= 0.5
