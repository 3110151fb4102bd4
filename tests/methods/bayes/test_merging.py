"""Clusters of `MDLMixture` as merged components."""

import jax
import numpy as np
import pytest
from bayes_models import coded_model, sampled_model
from scipy import stats
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score

from nrprob import MDLMixture, posterior
from nrprob.data.design import DesignEncoder
from nrprob.methods.bayes.covariates import with_linear_effects
from nrprob.methods.bayes.feature_models import BinaryFeatures, CountFeatures
from nrprob.methods.bayes.merging import build_merge_trees, component_moments, exchange_sums
from nrprob.methods.bayes.model import MixtureModel
from nrprob.methods.bayes.predictive import cluster_probabilities
from nrprob.settings import standard

pytestmark = pytest.mark.filterwarnings(
    "ignore:the chains do not agree yet", "ignore:.*cluster.*sample"
)
NONE = np.full(12, -1)
LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2])


def rows(seed=0, n=12, d=2):
    X = np.random.default_rng(seed).normal(size=(n, d)) + 3 * LABELS[:, None]
    return (X - X.mean(0)) / X.std(0)


def drawn(target, labels, **changes):
    """One draw of a target, with other values of some variables."""
    wide = np.zeros(target.x.shape[0], np.int32)
    wide[: len(labels)] = labels
    values = {name: np.asarray(v)[None] for name, v in target.draw().items()}
    return values | {"labels": wide[None]} | {n: np.array([v]) for n, v in changes.items()}


# ---- moments and exchange probabilities ---------------------------------------------------------


@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.parametrize("power", [1.0, 0.6])
def test_moments_are_posterior_means(covariance, power):
    X = rows()
    kappa, s, nu = 0.25, 0.5, 4.0
    with standard():
        target = sampled_model(covariance, power=power).target(X, NONE, 0, 5)
        draws = drawn(target, LABELS, centre_precision=kappa, variance=s, freedom=nu)
        means, covariances = jax.device_get(component_moments(target, draws))
    for c in range(3):
        x, n = X[LABELS == c], power * (LABELS == c).sum()
        mean = power * x.sum(0) / (kappa + n)
        np.testing.assert_allclose(means[0, c], mean, rtol=1e-9)
        scatter = nu * s * np.eye(2) + power * x.T @ x - (kappa + n) * np.outer(mean, mean)
        expected = scatter / (nu + n)
        np.testing.assert_allclose(
            covariances[0, c], np.diag(expected) if covariance == "diag" else expected, rtol=1e-8
        )


@pytest.mark.parametrize("grouped", [False, True])
def test_moments_of_a_common_covariance(grouped):
    X, kappa, omega, s, nu = rows(1), 0.25, 0.5, 0.5, 4.0
    known = np.arange(12) % 2
    with standard():
        encoder = DesignEncoder("product", min_additive=2, drop_first=False)
        design = with_linear_effects(encoder.fit(known if grouped else None, 12), 0)
        target = sampled_model("tied").target(X, NONE, 0, 5, design)
        draws = drawn(
            target, LABELS, centre_precision=kappa, group_precision=omega, variance=s, freedom=nu
        )
        means, covariances = jax.device_get(component_moments(target, draws))
    assert covariances is None
    # Regression on indicators of components and groups.
    W = np.eye(3)[LABELS]
    prior = np.full(3, kappa)
    if grouped:
        W, prior = np.column_stack([W, np.eye(2)[known]]), np.append(prior, [omega, omega])
    precision = np.diag(prior) + W.T @ W
    B = np.linalg.solve(precision, W.T @ X)
    scatter = nu * s * np.eye(2) + X.T @ X - B.T @ precision @ B
    inverse = np.linalg.inv(scatter / (nu + 12))
    for a in range(3):
        for b in range(a):
            v, w = B[a] - B[b], means[0, a] - means[0, b]
            assert w @ w == pytest.approx(v @ inverse @ v, rel=1e-8)


@pytest.mark.parametrize("make", [CountFeatures, BinaryFeatures])
@pytest.mark.parametrize("grouped", [False, True])
def test_exchange_probabilities_are_conditional_probabilities_of_labels(make, grouped):
    random = np.random.default_rng(0)
    X = random.integers(0, 2 if make is BinaryFeatures else 5, (12, 4)).astype(float)
    labels = np.append(LABELS[:-1], 3)  # the last sample is a component
    encoder = DesignEncoder("product", min_additive=2, drop_first=False)
    design = encoder.fit(np.arange(12) % 2 if grouped else None, 12)
    model = MixtureModel(features=make(concentration=0.7, coordination=0.2), concentration=0.8)
    with standard():
        target = model.target(X, NONE, 0, 5, design)
        wide = np.zeros(target.x.shape[0], np.int32)
        wide[:12] = labels
        sums = np.asarray(exchange_sums(target, {"labels": wide[None]}))[0]
        length = jax.jit(lambda z: target.length(target.cells(z)))
        expected = np.zeros((4, 4))
        for i in range(12):
            other = wide.copy()
            nats = []
            for c in range(4):
                other[i] = c
                nats.append(float(length(other)))
            p = np.exp(min(nats) - np.array(nats))
            expected[labels[i]] += p / p.sum()
    np.testing.assert_allclose(sums[:4, :4], expected, atol=1e-9)


def test_exchanged_halves_merge_and_topics_stay():
    random = np.random.default_rng(0)
    topic, half = np.repeat([0, 1], 30), np.arange(60) % 2
    X = np.array([random.multinomial(40, [[0.4, 0.4, 0.1, 0.1], [0.1, 0.1, 0.4, 0.4]][t])
                  for t in topic]).astype(float)  # fmt: skip
    none = np.full(60, -1)

    def merged(codes, n_classes):
        model = MixtureModel(features=CountFeatures())
        with standard():
            target = model.target(X, codes, n_classes, 6)
            trees = build_merge_trees(
                target, {"labels": (2 * topic + half)[None, None]}, 60, 4, n_classes,
                covariance="diag", continuous=False,
            )  # fmt: skip
        assert trees.rule == "exchange"
        return trees.cut(0.1).codes[0]

    np.testing.assert_array_equal(merged(none, 0), topic)
    codes = none.copy()
    codes[[0, 2, 1]] = 0, 0, 1  # the halves of the first topic have different classes
    labels = merged(codes, 2)
    assert labels[0] != labels[1] and labels[30] == labels[31]


def test_observed_classes_of_components_separate_them():
    X = rows(2)
    codes = NONE.copy()
    codes[[0, 3, 4, 7]] = 0, 0, 1, 1  # of the second component, one sample of each class
    with standard():
        target = coded_model("conjugate").target(X, codes, 2, 5)
        draws = {"labels": LABELS[None, None]}
        trees = build_merge_trees(target, draws, 12, 2, 2, covariance="diag", continuous=True)
    merged = trees.cut(1e-12).codes[0]
    assert merged[0] != merged[-1] and merged[0] == merged[3]


def test_probabilities_of_clusters_are_sums_over_components():
    X = rows(3)
    clusters = np.where(LABELS == 2, 1, 0)
    with standard():
        model = coded_model("conjugate")
        target = model.target(X, NONE, 0, 5)
        size = target.x.shape[0]
        wide = {"labels": LABELS, "clusters": clusters}
        wide = {n: np.pad(z, (0, size - 12), mode="edge").astype(np.int32)[None] for n, z in
                wide.items()}  # fmt: skip
        new = model.new_rows(np.random.default_rng(4).normal(size=(6, 2)), 0)
        pad = np.zeros((size - 12, 3))

        def probabilities(draws, labels):
            reference = np.concatenate([np.eye(3)[labels], pad])
            p = cluster_probabilities(target, draws, 1, new, reference, rule="joint")
            return np.asarray(p)

        parts = probabilities(wide | {"clusters": wide["labels"]}, LABELS)
        sums = probabilities(wide, clusters)
    np.testing.assert_allclose(sums[:, 0], parts[:, 0] + parts[:, 1], rtol=1e-9)
    np.testing.assert_allclose(sums[:, 1], parts[:, 2], rtol=1e-9)


# ---- fits ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pieces():
    """Two clusters, one of which is skew and has several Gaussian components."""
    random = np.random.default_rng(0)
    X = np.concatenate([random.exponential(size=(80, 2)) ** 1.5, random.normal(size=(40, 2)) - 8])
    return X, np.repeat([0, 1], [80, 40])


@pytest.mark.slow
@pytest.mark.contract
def test_results_of_fits_are_clusters(pieces):
    X, truth = pieces
    settings = {"num_warmup": 100, "num_samples": 60, "num_chains": 2, "random_state": 0}
    model = MDLMixture(10, covariance="full", **settings).fit(X)
    draws = model.posterior_
    assert float(draws["n_components"].mean()) > 2.5
    np.testing.assert_array_equal(model.labels_, truth)
    assert model.n_clusters_ == model.n_major_clusters_ == 2
    assert model.membership_.shape == (120, 2)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert set(model.r_hat_) == {"log_density", "n_clusters", "n_components"}
    result = posterior.clusters(model, random_state=0)
    np.testing.assert_array_equal(result.draws, draws["labels"])
    np.testing.assert_array_equal(result.n_clusters, draws["n_clusters"])
    assert result.probabilities["probability"].idxmax() == 2
    assert posterior.n_clusters(model).equals(result.probabilities)
    assert posterior.n_clusters(model.to_arviz()).equals(result.probabilities)
    assert "2 clusters for dips from" in str(posterior.cluster_path(model))
    # Other dips, from the same draws; without merging, clusters are components.
    fine, few = (posterior.clusters(model, dip=dip) for dip in (1, 0.001))
    n_fine, n_few = (r.n_clusters + r.n_small for r in (fine, few))
    assert (n_few <= n_fine).all() and n_few.mean() < n_fine.mean()
    plain = MDLMixture(10, covariance="full", merge=None, **settings).fit(X)
    np.testing.assert_array_equal(plain.posterior_["labels"], draws["components"])
    np.testing.assert_array_equal(plain.posterior_["n_clusters"], draws["n_components"])
    with pytest.raises(ValueError, match="a fit has its own samples; got MDLMixture and X; leave"):
        posterior.clusters(model, X)


def test_dips_of_counts_are_refused():
    with pytest.raises(ValueError, match=r"dip is for continuous features; .* got dip=0.3; leave"):
        MDLMixture(2, dip=0.3).fit([[3, 0], [0, 2], [1, 5]])


def normal_rows(n, d):
    return lambda random: (random.normal(size=(n, d)), None)


def three_clusters(noise, centres):
    def make(random):
        truth = np.repeat(range(3), 100)
        return np.asarray(centres, float)[truth] + noise(random), truth

    return make


TRIANGLE = np.array([[0, 0], [1, 0], [0.5, np.sqrt(0.75)]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "n_clusters", "probability"),
    [
        (normal_rows(200, 2), 1, 0.95),
        (normal_rows(200, 10), 1, 0.95),
        (three_clusters(lambda r: stats.t(3).rvs((300, 2), r), 8 * TRIANGLE), 3, 0.8),
        (three_clusters(lambda r: r.gamma(2, size=(300, 2)), 6 * TRIANGLE), 3, 0.7),
        (three_clusters(lambda r: r.normal(size=(300, 2)), 4 * TRIANGLE), 3, 0.95),
    ],
    ids=["normal, 2 columns", "normal, 10 columns", "t", "gamma", "4 sd"],
)
def test_numbers_of_clusters_are_recovered(make, n_clusters, probability):
    X, truth = make(np.random.default_rng(1))
    model = MDLMixture(num_samples=1000, random_state=1).fit(X)
    p = float((model.posterior_["n_clusters"] == n_clusters).mean())
    print(p, float(model.posterior_["n_components"].mean()), model.r_hat_)
    assert p >= probability and model.n_major_clusters_ == n_clusters


@pytest.mark.slow
def test_species_of_iris_are_clusters():
    X, species = load_iris(return_X_y=True)
    model = MDLMixture(num_samples=1000, random_state=0).fit(X)
    assert adjusted_rand_score(species, model.labels_) >= 0.85
    assert str(posterior.cluster_path(model)).startswith("3 clusters for dips from 1.00 to 0.")
