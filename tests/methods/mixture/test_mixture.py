"""Mixtures vs scikit-learn and the definition, and with some labels."""

import warnings
from functools import partial

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp, xlogy
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import MultinomialNB
from slowly import first_fast, slowly

from nrprob import DegenerateClusterWarning, MixtureEM, metrics
from nrprob.datasets import make_binary_partitions
from nrprob.engines.optimise.anneal import normalise_masses, term_update
from nrprob.engines.optimise.solve import weight_terms
from nrprob.statistics.gaussians import cluster_volumes, common_shape

COVARIANCES = ["full", "diag", "spherical"]  # as in scikit-learn
ALL_COVARIANCES = [*COVARIANCES, "VEE"]
SLOWLY = [*COVARIANCES, pytest.param("VEE", marks=pytest.mark.slow)]


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0, 0], [4, 2, 0], [0, 4, 3]])
    shapes = np.array([[1, 2, 0.5], [0.5, 0.5, 1], [1, 1, 1]])
    truth = np.repeat([0, 1, 2], [60, 40, 50])
    return centres[truth] + rng.normal(size=(150, 3)) * shapes[truth], truth


def documents(rng, n, n_words=30):
    """Counts of words with two topics, and the topics."""
    topic = rng.integers(0, 2, n)
    word = rng.dirichlet(np.full(n_words, 0.5), 2)
    return np.array([rng.multinomial(rng.integers(5, 40), word[t]) for t in topic]), topic


def log_densities(model, X):
    """(n, k) log of weight times density, from the fitted parameters."""
    with np.errstate(divide="ignore"):
        prior = np.log(model.weights_)
    if hasattr(model, "covariances_"):
        m = X.shape[1]
        covariances = [
            c if c.ndim == 2 else np.diag(np.broadcast_to(c, m)) for c in model.covariances_
        ]
        parts = [
            multivariate_normal(mean, cov).logpdf(X)
            for mean, cov in zip(model.means_, covariances, strict=True)
        ]
        return prior + np.stack(parts, 1)
    if model._build.features == "multinomial":
        return prior + xlogy(X[:, None], model.means_).sum(-1)
    return prior + (xlogy(X[:, None], model.means_) + xlogy(1 - X[:, None], 1 - model.means_)).sum(
        -1
    )


# its objective


@pytest.mark.parametrize("covariance", first_fast(COVARIANCES))
def test_agrees_with_scikit_learn_from_the_same_start(points, covariance):
    X, _ = points
    start = np.random.default_rng(1).integers(0, 3, 150)
    ours = MixtureEM(
        3, covariance=covariance, anneal=False, init=start, reg_covar=0, n_init=1, tol=1e-7
    ).fit(X)
    theirs = GaussianMixture(3, covariance_type=covariance, reg_covar=0, tol=1e-13, max_iter=20000)
    theirs._initialize_parameters = lambda X, *_, **__: theirs._initialize(X, np.eye(3)[start])
    theirs.fit(X)
    assert ours.objective_ == pytest.approx(-theirs.score(X) * 150, abs=1e-6)
    np.testing.assert_array_equal(ours.labels_, theirs.predict(X))
    np.testing.assert_allclose(ours.weights_, theirs.weights_, atol=1e-6)
    np.testing.assert_allclose(ours.means_, theirs.means_, atol=1e-5)
    np.testing.assert_allclose(ours.covariances_, theirs.covariances_, atol=1e-5)
    assert ours.score(X[:40] + 0.3) == pytest.approx(theirs.score(X[:40] + 0.3), rel=1e-5)


@pytest.mark.parametrize(
    "weights",
    [*slowly("free"), "uniform"],
)
@pytest.mark.parametrize("features", ["bernoulli", *slowly("multinomial", *COVARIANCES, "VEE")])
def test_objective_is_minus_the_log_likelihood(points, features, weights):
    rng = np.random.default_rng(2)
    parameters = {"features": features, "weights": weights, "n_init": 2, "random_state": 0}
    if features in ALL_COVARIANCES:
        X = points[0] * 3 + 7
        parameters |= {"features": "gaussian", "covariance": features, "reg_covar": 0}
    elif features == "multinomial":
        X = documents(rng, 150)[0]
    else:
        X = make_binary_partitions(150, [6, 4], random_state=0)[0]
    model = MixtureEM(3, **parameters).fit(X)
    densities = log_densities(model, X)
    # A last M-step separates the parameters from the memberships used to compute them.
    assert model.objective_ == pytest.approx(-logsumexp(densities, axis=1).sum(), abs=1e-4)
    np.testing.assert_allclose(
        model.membership_,
        np.exp(densities - logsumexp(densities, axis=1, keepdims=True)),
        atol=1e-4,
    )
    np.testing.assert_allclose(model.predict_proba(X), model.membership_, atol=1e-4)
    assert model.score(X[:50]) == pytest.approx(logsumexp(densities[:50], axis=1).mean(), abs=1e-4)


@partial(jax.jit, static_argnames="build")
def minus_log_likelihoods(build, rows, settings, fixed, start):
    """The objective after each of 15 steps."""
    terms, *_ = weight_terms(build(rows, settings), rows)
    update = term_update(terms, 0.0)
    one = np.ones(1)

    def step(w, _):
        w = normalise_masses(update.em_step((rows,), None, w, one)[1], rows.mass, fixed)
        return w, update.evaluate_objective((rows,), None, w, one)[0]

    return jax.lax.scan(step, normalise_masses(start, rows.mass, fixed), length=15)[1]


@pytest.mark.slow
@pytest.mark.contract
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    features=st.sampled_from(["bernoulli", "multinomial", *ALL_COVARIANCES]),
    weights=st.sampled_from(["free", "uniform"]),
    smoothing=st.sampled_from([0.0, 0.5]),
    labels=st.booleans(),
)
def test_the_log_likelihood_never_decreases(seed, features, weights, smoothing, labels):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2 if features == "bernoulli" else 5, (40, 4)).astype(float)
    kind = features if features in ("bernoulli", "multinomial") else "gaussian"
    model = MixtureEM(
        3, features=kind, weights=weights, anneal=False, n_init=2, smoothing=smoothing,
        random_state=seed, **({"covariance": features} if kind == "gaussian" else {}),
    )  # fmt: skip
    if kind == "gaussian":
        X = X + rng.normal(size=X.shape)
    y = np.where(rng.random(40) < 0.2, rng.integers(0, 3, 40), -1) if labels else None
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task = model.prepare(X, y)
        # No row is labelled if all are -1: one program less than with None.
        fixed = np.full(40, -1, np.int32) if task.fixed is None else task.fixed
        start = np.log(rng.dirichlet(np.ones(3), (*task.rows.mass.shape, 1)))
        fixed = task.layout.to_blocks(fixed, -1)
        result = minus_log_likelihoods(task.build, task.rows, task.settings, fixed, start)
        reached = np.asarray(result)
    assert np.diff(reached).max() <= 1e-9 * abs(reached[0])


def test_the_common_shape_is_the_likeliest():
    rng = np.random.default_rng(5)
    mass = np.array([30.0, 5, 12])
    halves = rng.normal(size=(3, 2, 3)) * [[[1]], [[4]], [[0.3]]]
    spread = np.einsum("cij,ckj->cik", halves, halves)
    shape = common_shape(mass, spread, 0.0)

    def minus_log_likelihood(free):
        root = np.array([[np.exp(free[0]), 0], [free[1], np.exp(-free[0])]])  # of determinant 1
        volume = np.exp(free[2:])
        trace = np.einsum("cij,ij->c", spread, np.linalg.inv(root @ root.T))
        return (mass * (2 * np.log(volume) + trace / volume)).sum() / 2

    least = minimize(minus_log_likelihood, np.zeros(5), options={"gtol": 1e-9})
    volume = cluster_volumes(spread, shape, 0.0)
    ours = (mass * (2 * np.log(volume) + np.linalg.slogdet(shape)[1] + 2)).sum() / 2
    assert ours == pytest.approx(least.fun, rel=1e-10)
    root = np.array([[np.exp(least.x[0]), 0], [least.x[1], np.exp(-least.x[0])]])
    np.testing.assert_allclose(shape / np.linalg.det(shape) ** 0.5, root @ root.T, atol=1e-5)


def test_the_common_shape_of_equal_volumes_is_the_pooled_covariance():
    pooled = np.array([[2.0, 0.5], [0.5, 1]])
    apart = np.array([[0.4, 0.1], [0.1, -0.15]])
    assert np.trace(apart @ np.linalg.inv(pooled)) == pytest.approx(0)  # no other volume
    spread = pooled + np.array([1, -1, 0])[:, None, None] * apart
    mass = np.array([7.0, 7, 3])
    shape = common_shape(mass, spread, 0.0)
    result = cluster_volumes(spread, shape, 0.0)[:, None, None] * shape
    np.testing.assert_allclose(result, np.broadcast_to(pooled, (3, 2, 2)), atol=1e-8)


def test_regularised_covariance_lowers_what_it_says(points):
    X = np.concatenate([points[0], np.tile([[9.0, 9, 9]], (20, 1))])  # a point without variance
    model = MixtureEM(4, reg_covar=1e-3, n_init=4, random_state=0).fit(X)
    assert np.isfinite(model.objective_)
    variance = X.var(0).mean()
    smallest = min(np.linalg.eigvalsh(c).min() for c in model.covariances_)
    assert smallest == pytest.approx(1e-3 * variance, rel=1e-3)


@pytest.mark.slow
@pytest.mark.contract
def test_the_best_of_ten_does_not_depend_on_the_seed(points):
    X, truth = points
    result = [MixtureEM(3, random_state=seed).fit(X) for seed in range(4)]
    assert np.ptp([f.objective_ for f in result]) < 0.1
    assert metrics.matched_accuracy(result[0].labels_, truth) > 0.95


# labels


def test_labelled_rows_keep_their_class_and_name_it():
    X, topic = documents(np.random.default_rng(0), 100)
    y = np.full(100, -1)
    y[:6] = np.where(topic[:6] == 1, 7, 3)
    model = MixtureEM(2, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.classes_, [3, 7])
    np.testing.assert_array_equal(model.classes_[model.labels_[:6]], y[:6])
    assert (model.classes_[model.labels_] == np.where(topic == 1, 7, 3)).mean() > 0.9


def test_without_weight_of_the_others_it_is_naive_bayes():
    X, topic = documents(np.random.default_rng(3), 100)
    y = np.full(100, -1)
    for c in (0, 1):
        y[np.flatnonzero(topic == c)[:5]] = c
    ours = MixtureEM(2, anneal=False, n_init=1, unlabelled_weight=1e-9).fit(X, y)
    theirs = MultinomialNB(alpha=1.0).fit(X[y >= 0], y[y >= 0])
    new = documents(np.random.default_rng(4), 50)[0]
    np.testing.assert_allclose(ours.predict_proba(new), theirs.predict_proba(new), atol=1e-6)
    np.testing.assert_allclose(ours.means_, np.exp(theirs.feature_log_prob_), atol=1e-8)


def test_unlabelled_documents_help():
    better = []
    for seed in range(8):
        X, topic = documents(np.random.default_rng(seed), 300, n_words=100)
        y = np.full(300, -1)
        for c in (0, 1):
            y[np.flatnonzero(topic == c)[:2]] = c
        alone = MultinomialNB().fit(X[y >= 0], y[y >= 0]).predict(X)
        both = MixtureEM(2, anneal=False, random_state=0).fit(X, y).labels_
        better.append((both == topic)[y < 0].mean() - (alone == topic)[y < 0].mean())
    assert np.mean(better) > 0.02


def test_a_class_may_be_one_of_several_components(points):
    X, truth = points
    y = np.full(150, -1)
    y[truth == 1] = 1
    model = MixtureEM(3, n_init=4, random_state=0).fit(X, y)
    assert (model.labels_[truth == 1] == 0).all()
    assert metrics.matched_accuracy(model.labels_, truth) > 0.95


def test_classes_of_all_rows_are_the_components(points):
    X, truth = points
    model = MixtureEM(3, n_init=4, random_state=0).fit(X, truth)
    ridge = 1e-6 * X.var(0).mean() * np.eye(3)
    for c in range(3):
        own = X[truth == c]
        np.testing.assert_allclose(model.means_[c], own.mean(0))
        np.testing.assert_allclose(model.covariances_[c], np.cov(own.T, bias=True) + ridge)
    np.testing.assert_allclose(model.weights_, np.bincount(truth) / 150)
    assert (model.labels_ == truth).all()


def one_shape():
    """Rows of three components with one shape and volumes 1, 4 and 16, and their labels."""
    rng = np.random.default_rng(6)
    truth = np.repeat([0, 1, 2], [60, 40, 50])
    shape = rng.normal(size=(8, 8))
    size = np.array([0.5, 1, 2])[truth][:, None]
    X = 1.2 * rng.normal(size=(3, 8))[truth] + size * (rng.normal(size=(150, 8)) @ shape)
    return X, truth


def labels_of(truth, classes, n):
    """Labels of the first ``n`` rows of some classes."""
    y = np.full(truth.size, -1)
    for c in classes:
        y[np.flatnonzero(truth == c)[:n]] = c
    return y


@pytest.mark.slow
@pytest.mark.contract
def test_few_labels_are_enough_for_covariances_of_one_shape():
    X, truth = one_shape()
    y = labels_of(truth, range(3), 4)
    right = {}
    for covariance in ("full", "VEE"):
        model = MixtureEM(3, covariance=covariance, anneal=False, n_init=2, random_state=0)
        right[covariance] = (model.fit(X, y).predict(X) == truth).mean()
        np.testing.assert_array_equal(model.labels_[y >= 0], y[y >= 0])
    assert right["VEE"] > right["full"] + 0.05
    assert right["VEE"] > 0.9
    volume = np.linalg.det(model.covariances_) ** (1 / 8)
    shapes = model.covariances_ / volume[:, None, None]
    np.testing.assert_allclose(shapes[1:], shapes[:1].repeat(2, 0), rtol=1e-6)
    np.testing.assert_allclose(volume / volume[0], [1, 4, 16], rtol=0.3)


@pytest.mark.slow
@pytest.mark.contract
def test_a_class_without_labels_is_found_from_another_start():
    X, truth = one_shape()
    y = labels_of(truth, [0, 2], 30)
    model = MixtureEM(3, covariance="VEE", anneal=False, n_init=2, random_state=0).fit(X, y)
    by_labels, by_chance = model.restarts_.objective.values
    assert by_chance < by_labels - 10
    assert metrics.matched_accuracy(model.labels_, truth) > 0.9


# input of users


def test_a_start_may_be_memberships(points):
    X, truth = points
    soft = np.eye(3)[truth] * 0.8 + 0.1
    model = MixtureEM(3, anneal=False, init=soft, n_init=1).fit(X)
    assert metrics.matched_accuracy(model.labels_, truth) > 0.95


@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array])
def test_rows_without_counts_are_named(container):
    X = np.array([[9, 1], [8, 2], [0, 0], [1, 9], [7, 1]])
    with pytest.warns(UserWarning, match="row 2 has no counts; got 1 such"):
        model = MixtureEM(2, features="multinomial", random_state=0).fit(container(X))
    assert model.labels_[2] == np.bincount(model.labels_).argmax()


@pytest.mark.slow
@pytest.mark.contract
def test_sparse_counts_are_the_same_as_dense():
    X, _ = documents(np.random.default_rng(0), 100)
    dense = MixtureEM(2, features="multinomial", random_state=0).fit(X)
    sparse = MixtureEM(2, features="multinomial", random_state=0).fit(scipy.sparse.csr_array(X))
    np.testing.assert_array_equal(dense.labels_, sparse.labels_)
    assert sparse.objective_ == pytest.approx(dense.objective_, rel=1e-9)
    np.testing.assert_allclose(dense.means_, sparse.means_, atol=1e-6)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("covariance", SLOWLY)
def test_single_precision(points, covariance):
    X, truth = points
    wide = MixtureEM(3, covariance=covariance, n_init=2, random_state=0).fit(X)
    narrow = MixtureEM(3, covariance=covariance, n_init=2, random_state=0).fit(X.astype(np.float32))
    assert np.isfinite(narrow.objective_)
    assert metrics.matched_accuracy(narrow.labels_, wide.labels_) > 0.97


def test_one_component_is_a_closed_form(points):
    X, _ = points
    model = MixtureEM(1, reg_covar=0).fit(X)
    np.testing.assert_allclose(model.means_[0], X.mean(0))
    np.testing.assert_allclose(model.covariances_[0], np.cov(X.T, bias=True), rtol=1e-9)


def test_components_that_vanish_are_reported():
    X = np.repeat([[0.0, 0.0], [5.0, 5.0]], 20, axis=0)
    with pytest.warns(DegenerateClusterWarning, match="found 2 clusters, fewer than n_clusters=4"):
        model = MixtureEM(4, features="gaussian", covariance="diag", random_state=0).fit(X)
    assert np.isfinite(model.objective_)
    assert np.isfinite(model.means_).all() and np.isfinite(model.covariances_).all()


def test_a_limit_that_is_reached_warns():
    X = np.random.default_rng(0).normal(size=(150, 3))  # no structure, and slow
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        MixtureEM(3, anneal=False, n_init=1, max_iter=1, tol=1e-12, random_state=0).fit(X)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"covariance": "tied"}, "covariance must be one of"),
        ({"weights": "some"}, "weights must be one of"),
        ({"smoothing": -1}, "smoothing must be at least 0"),
        ({"smoothing": "much"}, "smoothing must be one of 'auto' or a number"),
        ({"reg_covar": -1}, "reg_covar must be at least 0"),
        ({"unlabelled_weight": 0}, "unlabelled_weight must be at least 1e-09"),
        ({"init": np.zeros(150)}, "set anneal=False"),
        ({"init": np.zeros(3), "anneal": False}, r"init must be labels \(150,\)"),
        ({"init": np.arange(150), "anneal": False}, "init has 150 labels, more than n_clusters=2"),
        ({"features": "multinomial"}, "features='multinomial' needs non-negative values"),
    ],
)
def test_bad_parameters(points, parameters, message):
    with pytest.raises(ValueError, match=message):
        MixtureEM(2, **parameters).fit(points[0])


def test_float32_comes_to_rest():
    """Memberships in single precision never change by less than their rounding error."""
    rng = np.random.default_rng(0)
    X = 3.5 * rng.normal(size=(8, 20))[rng.integers(8, size=1000)]
    X = (X + rng.normal(size=(1000, 20)) * rng.uniform(1, 6, (1000, 1))).astype(np.float32)
    model = MixtureEM(8, covariance="diag", n_init=1, random_state=0).fit(X)
    assert model.converged_ and model.n_iter_ < 3000


def test_wide_rows_and_full_covariances():
    with pytest.raises(ValueError, match="use covariance='diag'"):
        MixtureEM(2).fit(np.random.default_rng(0).normal(size=(2000, 600)))


@pytest.mark.parametrize("kind", [scipy.sparse.csr_array, scipy.sparse.csc_matrix])
def test_new_rows_of_gaussian_components_may_be_sparse(points, kind):
    X, _ = points
    model = MixtureEM(2, covariance="diag", n_init=1, max_iter=5, random_state=0).fit(X)
    np.testing.assert_allclose(model.predict_proba(kind(X)), model.predict_proba(X), atol=1e-12)


def test_gaussian_components_refuse_sparse_rows():
    X = scipy.sparse.csr_array(np.array([[0.5, 0], [0, 1.5], [2.5, 0]]))
    with pytest.raises(ValueError, match="gaussian components cannot take sparse X"):
        MixtureEM(2).fit(X)


def test_few_samples_of_full_covariances_warn():
    X = np.random.default_rng(0).normal(size=(40, 6))
    with pytest.warns(UserWarning, match="got 20 samples for 2 clusters of 6 features; pass cov"):
        MixtureEM(2, n_init=1, random_state=0).fit(X[:20])
    for model, rows in ((MixtureEM(2, n_init=1), 40), (MixtureEM(2, covariance="diag"), 20)):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "full covariances")
            model.set_params(random_state=0).fit(X[:rows])
