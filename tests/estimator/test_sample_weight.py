"""Sample weights: integer weights equal repeated samples, and weight 0 leaves a sample out."""

import inspect
import warnings
from dataclasses import replace

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from slowly import first_fast, slowly

from nrprob import CCIB, CECIB, IB, MixtureEM, stored
from nrprob.batch.registry import METHODS
from nrprob.engines.optimise import solve
from nrprob.known import Memberships
from nrprob.settings import standard

RNG = np.random.default_rng(0)
N, TOTAL = 36, 48  # which share compiled programs
PLANTED, KNOWN = np.arange(N) % 3, np.arange(N) % 2
X = RNG.normal(size=(N, 3)) + 4 * np.eye(3)[PLANTED] + KNOWN[:, None]
COUNTS = RNG.poisson(3.0 * np.eye(3)[PLANTED] @ np.ones((3, 5)) / 3 + 4 * np.eye(3, 5)[PLANTED])
BINARY = (X > 2).astype(float)
WEIGHTS = 1.0 + RNG.multinomial(TOTAL - N, np.full(N, 1 / N))
REPEATS = np.repeat(np.arange(N), WEIGHTS.astype(int))
SOFT = RNG.dirichlet([0.5, 0.5], N)
COVARIATES = np.stack([KNOWN + RNG.normal(size=N), RNG.normal(size=N)], 1)
FINE = {"random_state": 0, "n_init": 1, "tol": 1e-10, "max_iter": 10**4}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fit_numbered(model, rows, known, number, **weights):
    """Fit rows with the random numbers of the samples ``number``, so that copies get equal ones.

    Initial values, perturbations and power iterations of copies then equal the original ones.
    """
    keywords = {} if known is None else {"known": known}
    with standard():
        task = model.prepare(rows, None, **keywords, **weights)
        number = task.layout.to_blocks(np.asarray(number, np.uint32))
        task.rows = replace(task.rows, number=number)
        task.calls = [
            replace(call, arrays=(replace(call.arrays[0], number=number), *call.arrays[1:]))
            for call in task.calls
        ]
        return model.finish(task, model.compute(task))


def take(values, rows):
    """Some samples of an array, or of memberships; None stays None."""
    if isinstance(values, Memberships):
        return Memberships(values.probabilities[rows])
    return None if values is None else values[rows]


# Estimator, samples and known structure; the first of each type is in the fast tests.
ANNEALED = {
    "ccib": (CCIB(3, **FINE), X, KNOWN),
    "ib, soft": (IB(3, beta=4.0, features="multinomial", **FINE), COUNTS, None),
    "mixture": (MixtureEM(3, covariance="diag", **FINE), X, None),
    "ccib, marginal": (CCIB(3, coordination="marginal", **FINE), BINARY, KNOWN),
    "ccib, memberships": (CCIB(3, **FINE), X, Memberships(SOFT)),
    "ccib, covariates": (CCIB(2, **FINE), X, COVARIATES),
    "ccib, sparse": (CCIB(3, **FINE), sparse.csr_array(COUNTS * 1.0), KNOWN),
    "ib that merges": (IB(3, solver="agglomerative", **FINE), X, None),
    "ib that splits": (IB(3, solver="split", features="gaussian", **FINE), X, None),
    "mixture, full": (MixtureEM(3, **FINE), X, None),
    "mixture, smoothed": (MixtureEM(3, smoothing=1.0, **FINE), COUNTS, None),
    "mixture, uniform": (
        MixtureEM(3, covariance="VEE", weights="uniform", **FINE),
        X,
        None,
    ),
}


@pytest.mark.parametrize("case", [*list(ANNEALED)[:3], *slowly(*list(ANNEALED)[3:])])
def test_integer_weights_equal_repeated_samples(case):
    model, rows, known = ANNEALED[case]
    weighted = fit_numbered(sklearn.clone(model), rows, known, np.arange(N), sample_weight=WEIGHTS)
    repeated = fit_numbered(sklearn.clone(model), rows[REPEATS], take(known, REPEATS), REPEATS)
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-8)
    np.testing.assert_allclose(weighted.membership_[REPEATS], repeated.membership_, atol=1e-7)
    for name in ("cluster_centers_", "weights_", "means_", "covariances_", "beta_"):
        if hasattr(weighted, name):
            np.testing.assert_allclose(
                getattr(weighted, name), getattr(repeated, name), rtol=1e-7, atol=1e-8
            )
    score = {} if known is None else {"known": known}
    assert weighted.score(rows, **score) == pytest.approx(repeated.score(rows, **score), rel=1e-7)


PARTIAL = np.where(np.arange(N) % 4, -1, PLANTED)
STARTED = {
    "cecib": CECIB(3, covariance="diag", random_state=0, init=PLANTED),
    "cecib, full": CECIB(3, random_state=0, init=PLANTED),
    "cecib, published": CECIB(
        3,
        covariance="spherical",
        preset="published",
        beta="critical",
        random_state=0,
        init=PLANTED,
    ),
    "cecib, fixed": CECIB(
        3, covariance="fixed", fixed_covariance=1.5, random_state=0, init=PLANTED
    ),
}


@pytest.mark.parametrize("case", first_fast(STARTED))
def test_integer_weights_equal_repeated_samples_from_equal_labels(case):
    model = STARTED[case]
    weighted = sklearn.clone(model).fit(X, PARTIAL, sample_weight=WEIGHTS)
    repeated = sklearn.clone(model).set_params(init=PLANTED[REPEATS])
    repeated.fit(X[REPEATS], PARTIAL[REPEATS])
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-8)
    assert weighted.beta_ == pytest.approx(repeated.beta_, rel=1e-8)
    np.testing.assert_array_equal(weighted.labels_[REPEATS], repeated.labels_)
    for name in ("weights_", "means_", "covariances_", "label_counts_"):
        np.testing.assert_allclose(
            getattr(weighted, name), getattr(repeated, name), rtol=1e-8, atol=1e-10
        )


def test_small_total_weights_are_refused_where_clusters_need_a_size():
    with pytest.raises(ValueError, match="needs a size of 4; got n_samples=1 by weight"):
        CECIB(3, **SMALL).fit(X, sample_weight=WEIGHTS / WEIGHTS.sum())


SMALL = {"random_state": 0, "n_init": 1}
HARD = {
    "ib": (IB(3, **SMALL), X, None),
    "mixture": (MixtureEM(3, covariance="diag", **SMALL), X, None),
    "ccib": (CCIB(3, coordination_weight=0.3, coordination="marginal", **SMALL), BINARY, KNOWN),
    "ib, sequential": (IB(3, solver="sequential", **SMALL), X, None),
    "ib, batched": (IB(3, solver="batched", **SMALL), COUNTS, None),
    "ccib, sequential": (
        CCIB(3, solver="sequential", coordination="marginal", coordination_weight=0.3, **SMALL),
        sparse.csr_array(COUNTS * 1.0),
        KNOWN,
    ),
}
HARD_CASES = first_fast(HARD)
ABSENT = HARD | {"cecib": (CECIB(3, covariance="diag", reg=0.0, random_state=0), X, None)}
ABSENT_CASES = [*HARD_CASES, *slowly("cecib")]


def fit(case, weights=None, rows=slice(None)):
    model, x, known = ABSENT[case]
    keywords = {} if known is None else {"known": known[rows]}
    if weights is not None:
        keywords["sample_weight"] = weights
    return sklearn.clone(model).fit(x[rows], **keywords)


@pytest.mark.parametrize("case", ABSENT_CASES)
def test_weight_0_leaves_a_sample_out_of_the_fit(case):
    weights = np.where(np.arange(N) % 5 == 2, 0, WEIGHTS)
    present = weights > 0
    model, other = fit(case, weights), fit(case, weights[present], present)
    assert model.objective_ == pytest.approx(other.objective_, rel=1e-9)
    np.testing.assert_array_equal(model.labels_[present], other.labels_)
    np.testing.assert_allclose(model.membership_[present], other.membership_, atol=1e-9)
    _, x, known = ABSENT[case]
    keywords = {} if known is None else {"known": known[~present]}
    np.testing.assert_array_equal(model.labels_[~present], other.predict(x[~present], **keywords))
    np.testing.assert_allclose(model.membership_.sum(1), 1)
    assert (model.restarts_.labels.values[:, ~present] == -1).all()
    assert (fit(case).labels_ >= 0).all()


@pytest.mark.parametrize("case", HARD_CASES)
def test_a_factor_of_all_weights_is_a_factor_of_the_objective(case):
    # The factor is a power of two, so that rounding is the same.
    model, scaled = fit(case, WEIGHTS), fit(case, 4 * WEIGHTS)
    np.testing.assert_array_equal(model.labels_, scaled.labels_)
    assert scaled.objective_ == pytest.approx(4 * model.objective_, rel=1e-9)


def test_equal_weights_change_nothing():
    np.testing.assert_allclose(fit("ib", np.ones(N)).membership_, fit("ib").membership_, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ib, sequential", "ib, batched", "ccib, sequential"])
def test_reassignment_has_the_objective_of_repeated_samples(case):
    model, x, known = HARD[case]
    labels = fit(case, WEIGHTS).labels_
    keywords = {} if known is None else {"known": known[REPEATS]}
    with standard():
        repeated = sklearn.clone(model)
        task = repeated.prepare(x[REPEATS], None, **keywords)
        solution = solve.evaluate_labels(
            task.rows,
            task.settings,
            task.layout.to_blocks(labels[REPEATS].astype(np.int32)),
            build=task.build,
            n_clusters=3,
        )
    assert fit(case, WEIGHTS).objective_ == pytest.approx(float(solution.objective[0]), rel=1e-9)


@pytest.mark.slow
def test_labelled_samples_of_weight_0_are_ignored():
    y = np.where(np.arange(N) < 6, PLANTED, -1)
    y[7] = 9
    weights = np.where(np.arange(N) == 7, 0.0, 1.0)
    model = MixtureEM(3, covariance="diag", **SMALL).fit(X, y, sample_weight=weights)
    assert model.classes_.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(model.labels_, PLANTED)


@pytest.mark.slow
def test_initial_memberships_of_all_samples_are_accepted():
    weights = np.where(np.arange(N) % 5 == 2, 0.0, 1.0)
    plain = MixtureEM(3, covariance="diag", anneal=False, **SMALL)
    model = sklearn.clone(plain).set_params(init=PLANTED).fit(X, sample_weight=weights)
    present = weights > 0
    other = sklearn.clone(plain).set_params(init=PLANTED[present]).fit(X[present])
    assert model.objective_ == pytest.approx(other.objective_, rel=1e-9)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(N - 1), "1D, with one weight per sample; got shape"),
        (np.ones((N, 2)), "1D, with one weight per sample; got shape"),
        (np.where(np.arange(N) == 3, -1.0, 1), "from 0 to 1e.09; got -1 at row 3"),
        (np.where(np.arange(N) == 3, np.nan, 1), "from 0 to 1e.09; got nan at row 3"),
        (np.where(np.arange(N) == 3, np.inf, 1), "from 0 to 1e.09; got inf at row 3"),
        (np.zeros(N), "must not be zero for all samples; got at most 0"),
        (np.array(["a"] * N), "must hold numbers; got dtype <U1"),
        (np.array([None] * N), "must hold numbers; got dtype object"),
        (np.where(np.arange(N) < 2, 1.0, 0.0), "more than the number of rows; got n_samples=2;"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        IB(3, **SMALL).fit(X, sample_weight=weights)


def test_what_takes_no_weights_says_so():
    with pytest.raises(ValueError, match="stored rows all have weight 1; got sample_weight"):
        IB(3, **SMALL).fit(stored(X), sample_weight=WEIGHTS)
    with pytest.raises(ValueError, match="n_clusters='auto' cannot use sample weights"):
        MixtureEM("auto", **SMALL).fit(X, sample_weight=WEIGHTS)
    alone = np.where(np.arange(N) == 4, 2, KNOWN)
    message = "a sample of weight 0 gets the label of predict; known has the label 2"
    with pytest.raises(ValueError, match=message):
        CCIB(3, **SMALL).fit(X, known=alone, sample_weight=1.0 * (np.arange(N) != 4))
    with pytest.raises(
        ValueError, match="y must have one entry per sample; got 5 entries for 36 samples"
    ):
        IB(3, **SMALL).fit(X, PLANTED[:5], sample_weight=1.0 * (np.arange(N) != 4))


@pytest.mark.parametrize("name", METHODS)
def test_capable_estimators_take_weights_in_fit(name):
    cls = METHODS[name].load()
    takes = "sample_weight" in inspect.signature(cls.fit).parameters
    assert takes == cls.capabilities.weights
    assert not takes or "sample_weight" in inspect.signature(cls.set_fit_request).parameters


def test_weights_are_routed_through_a_pipeline():
    with sklearn.config_context(enable_metadata_routing=True):
        model = IB(3, **SMALL).set_fit_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=True)
        labels = make_pipeline(scaler, model).fit_predict(X, sample_weight=WEIGHTS)
    scaled = StandardScaler().fit(X, sample_weight=WEIGHTS).transform(X)
    expected = IB(3, **SMALL).fit_predict(scaled, sample_weight=WEIGHTS)
    np.testing.assert_array_equal(labels, expected)
