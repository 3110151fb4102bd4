"""Properties of all estimators."""

import pickle
import warnings
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from slowly import first_fast, slowly

import nrprob
from nrprob import (
    CCIB,
    IB,
    IBSI,
    DegenerateClusterWarning,
    MixtureEM,
)
from nrprob.datasets import make_binary_partitions, make_multinomial_2d
from nrprob.known import Memberships
from nrprob.metrics import matched_accuracy

SOLVERS = ("anneal", "sequential", "batched", "agglomerative")


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def binary():
    return make_binary_partitions(200, (6, 4), random_state=3)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "model",
    [
        *slowly(IB(2, random_state=0), IBSI(2, gamma=8.0, random_state=0)),
        pytest.param(CCIB(2, random_state=0), marks=pytest.mark.smoke),
    ],
)
def test_fitted_attributes(model, solver, binary):
    X, labels = binary
    known = {} if isinstance(model, IB) else {"known": labels[:, 0]}
    model = clone(model).set_params(solver=solver).fit(X, **known)
    assert model.labels_.shape == (200,) and set(model.labels_) <= {0, 1}
    assert model.membership_.shape == (200, 2)
    np.testing.assert_allclose(model.membership_.sum(1), 1)
    assert (model.membership_.argmax(1) == model.labels_).all()
    assert model.n_clusters_ == 2 and model.converged_ and model.n_features_in_ == 10
    assert model.objective_ == pytest.approx(model.restarts_.objective.values.min())
    best = model.restarts_.labels[int(model.restarts_.objective.values.argmin())]
    assert (best.values == model.labels_).all()
    assert model.restarts_.sizes["restart"] == (1 if solver == "agglomerative" else 10)
    trace = model.objective_trace_
    assert np.isfinite(trace).all() and model.n_iter_ >= 1
    assert trace[-1] == pytest.approx(model.objective_)
    steps, slack = np.diff(trace), 1e-9 * abs(trace).max()
    if solver in ("sequential", "batched"):
        assert (steps <= slack).all()
    if solver == "agglomerative" and not isinstance(model, IBSI):  # whose penalty a merge may lower
        assert (steps[:-1] >= -slack).all()  # the last step may be the local search
    assert (model.predict(X, **known) == model.labels_).mean() > 0.97
    proba = model.predict_proba(X, **known)
    np.testing.assert_allclose(proba.sum(1), 1)
    score = model.score(X, np.zeros(200), **known)
    if solver != "agglomerative":
        assert score == pytest.approx(-model.objective_ / 200, rel=1e-6)
    assert score >= -model.objective_ / 200 - 1e-6  # a row may be nearer to another cluster
    assert model.score(X[:, ::-1], **known) < score - 1
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X, **known) == model.predict(X, **known)).all()
    repeat = clone(model).fit(X, **known)
    assert (repeat.labels_ == model.labels_).all() and repeat.objective_ == model.objective_
    # The sought structure is independent of the known one, except for IB.
    target = labels[:, 0 if isinstance(model, IB) else 1]
    if not (solver == "agglomerative" and isinstance(model, IBSI)):
        assert matched_accuracy(model.labels_, target) > 0.9


@pytest.mark.parametrize("solver", ["sequential", "batched"])
def test_the_trace_is_that_of_the_best_restart_and_never_rises(solver, binary):
    X, labels = binary
    worse, kept = [], []
    for seed in (0, 4):
        model = IBSI(2, gamma=1.0, solver=solver, random_state=seed).fit(X, known=labels[:, 0])
        ends, trace = model.restarts_.objective.values, model.objective_trace_
        assert trace[-1] == pytest.approx(model.objective_)
        assert (np.diff(trace) <= 1e-9 * abs(trace).max()).all()
        worse.append(ends[0] > ends.min() + 1)
        kept.append((np.diff(trace)[:-1] == 0).any())
    assert any(worse)  # for the first restart, which does not have the trace
    assert any(kept) or solver == "sequential"  # rejected restarts had no gain


@pytest.mark.parametrize("solver", first_fast(["anneal", "sequential"]))
def test_objective_is_the_definition_in_nats(solver, binary):
    import reference

    X, labels = binary
    z = labels[:, 0]
    ib = IB(3, solver=solver, random_state=0).fit(X)
    assert ib.objective_ == pytest.approx(
        reference.objective(X.astype(float), ib.labels_, family="bernoulli")
    )
    weight = {"coordination": "marginal", "coordination_weight": 0.2}
    ccib = CCIB(3, solver=solver, **weight).fit(X, known=z)
    assert ccib.coordination_weight_ == pytest.approx(0.2)
    assert ccib.objective_ == pytest.approx(
        reference.objective(
            X.astype(float),
            ccib.labels_,
            z,
            family="bernoulli",
            coordination="marginal",
            weight=0.2,
        )
    )
    side = IBSI(3, gamma=3.0, solver=solver).fit(X, known=z)
    assert side.objective_ == pytest.approx(
        reference.objective(X.astype(float), side.labels_, z, family="bernoulli", gamma=3.0)
    )


def test_float32_and_float64_agree_and_keep_their_precision(binary):
    X, labels = binary
    wide = CCIB(2, random_state=0).fit(X, known=labels[:, 0])
    narrow = CCIB(2, random_state=0).fit(X.astype(np.float32), known=labels[:, 0])
    assert (wide.labels_ == narrow.labels_).all()
    assert narrow.objective_ == pytest.approx(wide.objective_, rel=1e-3)
    assert wide._coef.dtype == np.float64 and narrow._coef.dtype == np.float32


@pytest.mark.parametrize("features", ["multinomial", *slowly("bernoulli", "gaussian")])
def test_rows_on_an_accelerator_stay_there(features, binary, monkeypatch):
    X, labels = binary
    X = X.astype(np.float32) + (features == "multinomial")
    z = labels[:, 0]
    plain = CCIB(2, features=features, random_state=0).fit(X, known=z)
    monkeypatch.setattr("nrprob.estimator.linear._on_accelerator", lambda x: True)
    device = CCIB(2, features=features, random_state=0).fit(jax.numpy.asarray(X), known=z)
    # The numbers of clusters come from the best restart, which rounding may change.
    assert adjusted_rand_score(device.labels_, plain.labels_) == 1
    assert device.objective_ == pytest.approx(plain.objective_, rel=1e-4)
    assert (device.predict(jax.numpy.asarray(X), known=z) == device.labels_).all()
    with pytest.raises(ValueError, match="infinity"):
        device.predict(jax.numpy.full((3, 10), jax.numpy.inf), known=z[:3])
    with pytest.raises(ValueError, match="expecting 10 features"):
        device.predict(jax.numpy.ones((3, 9)), known=z[:3])


@pytest.mark.smoke
def test_jax_pandas_and_numpy_input_give_the_same(binary):
    import pandas as pd

    X, labels = binary
    z = labels[:, 0]
    plain = CCIB(2, random_state=0).fit(X.astype(np.float32), known=z)
    device = CCIB(2, random_state=0).fit(jax.numpy.asarray(X, "float32"), known=z)
    frame = pd.DataFrame(X.astype(np.float32), columns=[f"f{i}" for i in range(X.shape[1])])
    table = CCIB(2, random_state=0).fit(frame, known=pd.Series(z).map({0: "a", 1: "b"}))
    assert (plain.labels_ == device.labels_).all() and (plain.labels_ == table.labels_).all()
    assert (device.predict(jax.numpy.asarray(X, "float32"), known=z) == plain.labels_).all()
    assert list(table.feature_names_in_[:2]) == ["f0", "f1"]


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**31 - 1))
@pytest.mark.slow
@pytest.mark.contract
def test_renaming_what_is_known_and_permuting_columns_changes_nothing(seed):
    X, labels = make_binary_partitions(150, (6, 4), random_state=seed % 7)
    z = labels[:, 0]
    rng = np.random.default_rng(seed)
    model = CCIB(2, random_state=0).fit(X, known=z)
    renamed = CCIB(2, random_state=0).fit(X, known=np.array(["b", "a"])[z])
    assert (renamed.labels_ == model.labels_).all()
    assert renamed.objective_ == model.objective_
    permuted = CCIB(2, random_state=0).fit(X[:, rng.permutation(10)], known=z)
    assert adjusted_rand_score(permuted.labels_, model.labels_) == 1
    rows = rng.permutation(150)
    shuffled = CCIB(2, random_state=0).fit(X[rows], known=z[rows])
    # Other rows have random initial values, and ten restarts do not always find the optimum.
    assert shuffled.objective_ == pytest.approx(model.objective_, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("m", [4, 10])
def test_best_of_ten_restarts_does_not_depend_on_the_seed(m):
    X, labels = make_binary_partitions(200, (m, 4), random_state=0)
    fits = [CCIB(2, random_state=s).fit(X, known=labels[:, 0]).labels_ for s in range(10)]
    assert min(adjusted_rand_score(fits[0], other) for other in fits[1:]) >= 0.99


def test_without_known_ccib_is_ib(binary):
    X, _ = binary
    plain, conditional = IB(2, random_state=0).fit(X), CCIB(2, random_state=0).fit(X)
    assert (plain.labels_ == conditional.labels_).all()
    assert plain.objective_ == conditional.objective_
    side = IBSI(2, gamma=0.0, damped=False, quench=100.0, random_state=0).fit(
        X, known=np.arange(200) % 2
    )
    assert (side.labels_ == plain.labels_).all()


def test_one_known_group_is_ib_at_a_raised_temperature():
    X, _ = make_multinomial_2d(120, 2, 60, random_state=1)
    plain = IB(2, random_state=0).fit(X)
    with pytest.warns(DegenerateClusterWarning, match="one group"):
        one = CCIB(2, coordination="marginal", coordination_weight=0.5, random_state=0).fit(
            X, known=np.zeros(120)
        )
    assert one.critical_beta_ == pytest.approx(plain.critical_beta_ / 1.5, rel=1e-5)
    assert one.objective_ == pytest.approx(1.5 * plain.objective_)


def test_soft_memberships_that_are_hard_give_the_labels_result(binary):
    X, labels = binary
    z = labels[:, 0]
    hard = CCIB(2, random_state=0).fit(X, known=z)
    soft = CCIB(2, random_state=0).fit(X, known=Memberships(np.eye(2)[z]))
    assert adjusted_rand_score(hard.labels_, soft.labels_) == 1
    assert soft.objective_ == pytest.approx(hard.objective_, rel=1e-6)
    blurred = CCIB(2, random_state=0).fit(X, known=Memberships(0.8 * np.eye(2)[z] + 0.1))
    assert matched_accuracy(blurred.labels_, labels[:, 1]) > 0.9
    assert (
        blurred.predict(X, known=Memberships(0.8 * np.eye(2)[z] + 0.1)) == blurred.labels_
    ).all()
    score = blurred.score(X, known=Memberships(0.8 * np.eye(2)[z] + 0.1))
    assert score == pytest.approx(-blurred.objective_ / 200, rel=1e-6)
    with pytest.raises(ValueError, match="soft"):
        CCIB(2, solver="sequential").fit(X, known=Memberships(np.eye(2)[z]))


def test_several_known_labelings_are_their_product():
    X, labels = make_binary_partitions(200, (6, 6, 4), random_state=2)
    two = CCIB(2, random_state=0).fit(X, known=labels[:, :2])
    code = CCIB(2, random_state=0).fit(X, known=labels[:, 0] * 2 + labels[:, 1])
    assert (two.labels_ == code.labels_).all()
    assert matched_accuracy(two.labels_, labels[:, 2]) > 0.9
    assert (two.predict(X, known=labels[:, :2]) == two.labels_).all()


@pytest.mark.parametrize("solver", [*SOLVERS[:2], *slowly(*SOLVERS[2:])])
def test_wanted_labels_stay_and_keep_their_names(solver, binary):
    X, labels = binary
    y = np.full(200, -1)
    y[:15] = np.where(labels[:15, 1] == 0, 30, 7)
    model = CCIB(3, solver=solver, random_state=0).fit(X, y, known=labels[:, 0])
    assert model.classes_.tolist() == [7, 30]
    assert (model.classes_[model.labels_[:15]] == y[:15]).all()
    assert model.membership_[:15].max(1) == pytest.approx(1)


def test_what_y_may_hold(binary):
    X, labels = binary
    y = np.full(200, -1)
    y[:3] = [0, 1, 2]
    with pytest.raises(ValueError, match="3 classes, more than n_clusters=2"):
        IB(2).fit(X, y)
    with pytest.warns(UserWarning, match="ignores y"):
        model = IB(2, random_state=0).fit(X, np.arange(200) % 5)
    assert (model.labels_ == IB(2, random_state=0).fit(X).labels_).all()
    assert not hasattr(model, "classes_")
    complete = IB(2, random_state=0).fit(X, labels[:, 1])
    assert (complete.labels_ == labels[:, 1]).all()
    with pytest.raises(ValueError, match="one label per row"):
        IB(2).fit(X, y[:-1])
    unknown = IB(2, random_state=0).fit(X, np.full(200, -1))
    assert (unknown.labels_ == model.labels_).all()


@pytest.mark.slow
@pytest.mark.contract
def test_a_labelled_minority_is_found_where_it_would_not_be():
    """Weak structure (4 columns) and strong (10): five labels per cluster are enough."""
    X, labels = make_binary_partitions(300, (10, 4), random_state=5)
    y = np.full(300, -1)
    for c in (0, 1):
        y[np.flatnonzero(labels[:, 1] == c)[:30]] = c
    alone = IB(2, random_state=0).fit(X)
    taught = CCIB(2, random_state=0).fit(X, y, known=labels[:, 0])
    assert matched_accuracy(alone.labels_, labels[:, 1]) < 0.6
    assert (taught.labels_ == labels[:, 1]).mean() > 0.9


@pytest.mark.parametrize(
    ("features", "solver"),
    [
        ("multinomial", "anneal"),
        *slowly(
            ("bernoulli", "anneal"), ("gaussian", "anneal"), ("multinomial", "agglomerative"),
            ("bernoulli", "agglomerative"), ("gaussian", "agglomerative"),
        ),
    ],
)  # fmt: skip
def test_sparse_rows_give_what_dense_rows_give(features, solver, binary):
    X, labels = binary
    # The local search is left out for sparse rows with residual coordination.
    dense = CCIB(
        2, features=features, solver=solver, random_state=0, coordination="residual", polish=False
    )
    thin = clone(dense).fit(sparse.csr_array(X), known=labels[:, 0])
    dense.fit(X, known=labels[:, 0])
    # Dense Gaussian rows are centred and sparse rows are not, so ties may break differently.
    assert adjusted_rand_score(dense.labels_, thin.labels_) > 0.95
    assert thin.objective_ == pytest.approx(dense.objective_, rel=2e-3)
    assert (thin.predict(sparse.csr_array(X), known=labels[:, 0]) == thin.labels_).mean() > 0.97
    if solver == "anneal":
        for model, rows in ((dense, X), (thin, sparse.csr_array(X))):
            score = model.score(rows, known=labels[:, 0])
            assert score == pytest.approx(-model.objective_ / 200, rel=1e-6)


@pytest.mark.slow
@pytest.mark.contract
def test_sparse_counts_are_coordinated_by_the_marginal():
    X, labels = make_multinomial_2d(150, 2, 300, random_state=0)
    thin = sparse.csr_array(X)
    automatic = CCIB(2, random_state=0).fit(thin, known=labels[:, 0])
    named = CCIB(2, coordination="marginal", random_state=0).fit(thin, known=labels[:, 0])
    assert (automatic.labels_ == named.labels_).all()
    assert automatic.coordination_weight_ <= 0.3
    assert matched_accuracy(automatic.labels_, labels[:, 1]) > 0.98
    hard = CCIB(2, solver="sequential", random_state=0).fit(thin, known=labels[:, 0])
    assert matched_accuracy(hard.labels_, labels[:, 1]) > 0.98


def test_refusals_name_a_way_out(binary):
    X, labels = binary
    thin = sparse.csr_array(X.astype(float))
    z = labels[:, 0]
    cases = [
        (lambda: IB(2, solver="batched").fit(thin), "use solver='anneal'"),
        (lambda: CCIB(2, solver="sequential").fit(thin, known=z), "use solver='anneal'"),
        (lambda: CCIB(2).fit(X, known=z[:-1]), "pass one label per row"),
        (lambda: CCIB(2).fit(X, known=np.arange(200)), "pass fewer groups"),
        (lambda: IBSI(2, gamma=1.0).fit(X, known=np.eye(200)[:, :2]), "pass labels"),
        (lambda: CCIB(201).fit(X, known=z), "lower n_clusters"),
        (lambda: CCIB(2).fit(X[:1], known=z[:1]), "n_samples=1"),
        (lambda: IB(2, features="multinomial").fit(X - 1), "non-negative"),
        (lambda: IB(2, features="bernoulli").fit(X * 3), "set binarize="),
        (lambda: IB(2).fit(np.where(X == 1, np.nan, X)), "NaN"),
        (lambda: IB(2).fit(jax.numpy.asarray([[1.0, np.inf], [0.0, 1.0]])), "infinity"),
        (lambda: CCIB(2, multi="sum").fit(X, known=z), "multi must be one of"),
        (lambda: CCIB(2, coordination_weight=-0.1).fit(X, known=z), "at least 0"),
        (lambda: IBSI(2, gamma=-1).fit(X, known=z), "gamma must be at least 0"),
        (lambda: IB(2, beta=0.0).fit(X), "beta must be at least 1e-09"),
        (lambda: IB(2, cooling=1.0).fit(X), "cooling must be at least"),
        (lambda: IB(0).fit(X), "n_clusters must be at least 1"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="n_clusters must be an integer"):
        IB("2").fit(X)
    model = CCIB(2, random_state=0).fit(X, known=z)
    for method in (model.predict, model.score):
        with pytest.raises(ValueError, match="known is required"):
            method(X)
    with pytest.raises(ValueError, match="did not occur in fit"):
        model.predict(X, known=np.full(200, 5))
    with pytest.raises(TypeError, match="unexpected keyword argument 'known'"):
        IB(2, random_state=0).fit(X).predict(X, known=z)


def test_bounds_are_named(binary):
    with pytest.raises(ValueError, match="n_init must be at least 1 and at most 1000000; got 1000"):
        IB(2, n_init=10**20).fit(binary[0])
    with pytest.raises(ValueError, match="noise must be at least 0 and at most 10; got inf; choo"):
        IB(2, noise=np.inf).fit(binary[0])
    with pytest.raises(ValueError, match="at most 1000000000000.0, or infinite; got nan"):
        IB(2, beta=np.nan).fit(binary[0])


def test_counts_of_any_size_are_proportions_but_not_evidence(quiet):
    X, _ = make_multinomial_2d(60, 2, 40, random_state=0)
    plain = IB(2, n_init=2, random_state=0).fit(X.astype(np.float32))
    # A power of two, so that the proportions are exactly equal.
    huge = IB(2, n_init=2, random_state=0).fit(np.ldexp(X.astype(np.float32), 120))
    assert (huge.labels_ == plain.labels_).all() and huge.objective_ == plain.objective_
    with pytest.raises(ValueError, match="counts of at most 1e.30; found"):
        MixtureEM(2).fit(X.astype(np.float32) * 1e36)


def test_results_that_are_no_numbers_are_no_results(binary, monkeypatch):
    X, _ = binary
    monkeypatch.setattr(IB, "finish", lambda self, *_: setattr(self, "objective_", np.nan))
    with pytest.raises(ValueError, match="got NaN or infinity in objective_"):
        IB(2, random_state=0).fit(X)


def test_a_fit_forgets_the_one_before(binary):
    X, labels = binary
    model = IB(2, solver="agglomerative", random_state=0).fit(X)
    assert hasattr(model, "linkage_") and hasattr(model, "merge_costs_")
    model.set_params(solver="sequential")
    model = pickle.loads(pickle.dumps(model)).fit(X)
    assert set(vars(model)) == set(vars(IB(2, solver="sequential", random_state=0).fit(X)))
    advised = nrprob.recommend(X, known=labels[:, 0], n_clusters=2).set_params(random_state=0)
    reason = advised.reason_
    assert advised.fit(X, known=labels[:, 0]).fit(X, known=labels[:, 0]).reason_ == reason


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("solver", SOLVERS)
def test_rows_without_counts_go_to_the_largest_cluster(solver):
    X, _ = make_multinomial_2d(120, 2, 60, random_state=1)
    X[np.arange(120) % 4 == 1] = 0
    thin = sparse.csr_array(X) if solver in ("anneal", "sequential") else X
    for rows in (X, thin):
        with pytest.warns(UserWarning, match=r"got 30 such row.*assigned to the largest"):
            model = IB(3, solver=solver, random_state=0).fit(rows)
            predicted = model.predict(rows)
        largest = np.bincount(model.labels_[X.any(1)]).argmax()
        assert (model.labels_[~X.any(1)] == largest).all()
        assert (predicted == model.labels_).mean() > 0.97
        assert (predicted[~X.any(1)] == largest).all()


@pytest.mark.slow
@pytest.mark.contract
def test_degenerate_data_are_reported_and_never_nan(binary):
    X, labels = binary  # in the shape of others, which has a compiled program
    z = labels[:, 0]
    odd = z.copy()
    odd[0] = 9
    cases = [
        (CCIB(2), np.ones(X.shape), z, "no structure left"),
        (CCIB(2, features="gaussian"), np.full(X.shape, 0.1), z, "no structure"),
        (CCIB(2, features="multinomial"), np.full(X.shape, 3), z, "no structure"),
        (CCIB(2), np.tile(np.eye(2)[z], 5), z, "no structure left"),
        (CCIB(3), np.tile(np.eye(2), (100, 5)), np.arange(200) // 2 % 2, "fewer than"),
        (CCIB(2), X, odd, "single member"),
        (CCIB(2), X, np.zeros(200), "one group only"),
    ]
    for model, data, known, message in cases:
        with pytest.warns(DegenerateClusterWarning, match=message):
            model.set_params(random_state=0).fit(data, known=known)
        assert np.isfinite(model.membership_).all() and np.isfinite(model.objective_)
        assert model.n_clusters_ == np.unique(model.labels_).size <= model.n_clusters
    with pytest.warns(UserWarning, match="has no counts"):
        model = IB(2, features="multinomial", random_state=0).fit(np.vstack([X * 2, 0 * X[:1]]))
    assert np.isfinite(model.membership_).all()
    with pytest.warns(UserWarning, match="common meaning"):
        CCIB(2, coordination_weight=0, random_state=0).fit(X, known=z)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        model = IB(3, solver="sequential", max_iter=1, random_state=0).fit(X)
    assert not model.converged_


def test_one_cluster_and_as_many_as_rows(binary):
    X, labels = binary
    for solver in SOLVERS:
        one = CCIB(1, solver=solver, random_state=0).fit(X, known=labels[:, 0])
        assert (one.labels_ == 0).all() and one.membership_.shape == (200, 1)
    G = np.random.default_rng(0).normal(size=(6, 2))
    for solver in ("sequential", "agglomerative"):
        all_ = IB(6, solver=solver, random_state=0).fit(G)
        assert all_.n_clusters_ == 6 and all_.objective_ == pytest.approx(0, abs=1e-9)
    single = IB(1).fit(X[:1])
    assert single.labels_.tolist() == [0]


@pytest.mark.slow
@pytest.mark.contract
def test_fixed_temperature_is_soft_and_in_between(binary):
    X, _ = binary
    critical = IB(2).fit(X).critical_beta_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateClusterWarning)
        cold = IB(2, beta=0.9 * critical, random_state=0).fit(X)
    np.testing.assert_allclose(cold.membership_, cold.membership_[:1].repeat(200, 0), atol=1e-3)
    soft = IB(2, beta=2 * critical, random_state=0).fit(X)
    assert 0.01 < soft.membership_.min(1).max() and soft.converged_
    assert soft.beta_ == pytest.approx(2 * critical)
    hard = IB(2, random_state=0).fit(X)
    assert soft.objective_ > hard.objective_ - 1e-9
    distortion = IB(2, beta=2 * critical, compression=0.0, random_state=0).fit(X)
    between = IB(2, beta=2 * critical, compression=0.5, random_state=0).fit(X)
    assert abs(distortion.membership_ - soft.membership_).max() > 1e-4
    # At a finite temperature, hard solvers include the entropy of the labels.
    free = IB(2, solver="sequential", random_state=0).fit(X)
    charged = IB(2, beta=2.0, solver="sequential", random_state=0).fit(X)
    p = np.bincount(charged.labels_) / 200
    entropy = -200 * (p * np.log(p)).sum()
    for model in (soft, distortion, between, charged):
        assert model.score(X) == pytest.approx(-model.objective_ / 200, rel=1e-6)
    assert charged.objective_ >= free.objective_ + entropy / 2 - 1e-6


@pytest.mark.smoke
def test_pipeline_grid_search_and_metadata_routing(binary):
    import sklearn

    X, labels = binary
    pipe = make_pipeline(StandardScaler(), CCIB(2, random_state=0))
    pipe.fit(X, ccib__known=labels[:, 0])
    assert matched_accuracy(pipe[-1].labels_, labels[:, 1]) > 0.9
    with sklearn.config_context(enable_metadata_routing=True):
        routed = make_pipeline(
            StandardScaler(),
            CCIB(2, random_state=0).set_fit_request(known=True),
        )
        routed.fit(X, known=labels[:, 0])
        assert (routed[-1].labels_ == pipe[-1].labels_).all()
        search = GridSearchCV(
            CCIB(random_state=0).set_fit_request(known=True).set_score_request(known=True),
            {"n_clusters": [1, 2]},
            cv=2,
        ).fit(X, known=labels[:, 0])
        assert search.best_params_ == {"n_clusters": 2}
        scores = search.cv_results_["mean_test_score"]
        assert search.score(X, known=labels[:, 0]) == pytest.approx(
            -search.best_estimator_.objective_ / 200, rel=1e-6
        )
        assert scores[0] < scores[1] < search.score(X, known=labels[:, 0])


def test_global_configuration_is_left_alone(binary):
    X, labels = binary
    before = jax.config.jax_enable_x64
    CCIB(2).fit(X, known=labels[:, 0])
    assert jax.config.jax_enable_x64 == before
    assert jax.numpy.ones(1).dtype == (np.float64 if before else np.float32)


@pytest.mark.slow
@pytest.mark.contract
def test_a_sweep_over_hyper_parameters_compiles_once(binary):
    from nrprob.engines.optimise import solve

    X, labels = binary
    z = labels[:, 0]
    CCIB(2, coordination_weight=1.5, random_state=0).fit(X, known=z)
    before = solve.solve_anneal._cache_size()
    for weight in (0.5, 1, 2.0):
        for cooling in (1.15, 1.3):
            CCIB(
                2,
                coordination_weight=weight,
                cooling=cooling,
                noise=0.002,
                tol=2e-4,
                max_iter=50,
                random_state=4,
            ).fit(X[::-1], known=np.where(z[::-1] == 0, "x", "y"))
    assert solve.solve_anneal._cache_size() == before
    IBSI(2, gamma=1.0, random_state=0).fit(X, known=z)
    before = solve.solve_anneal._cache_size()
    for gamma in (2, 4.0, np.float32(8)):
        IBSI(2, gamma=gamma, random_state=1).fit(X, known=z)
    assert solve.solve_anneal._cache_size() == before


def test_restarts_in_chunks(binary, monkeypatch):
    X, labels = binary
    model = CCIB(4, solver="sequential", random_state=0)
    whole = clone(model).fit(X, known=labels[:, 0])
    monkeypatch.setattr("nrprob.engines.placement.MEMORY", 1)
    parts = clone(model).fit(X, known=labels[:, 0])
    result = parts.restarts_
    objectives = result.objective.values
    assert objectives.size == 10 and parts.objective_ == pytest.approx(whole.objective_, rel=0.05)
    best = objectives.argmin()
    assert parts.objective_ == objectives[best] < objectives[0]  # not from the first chunk
    assert (parts.labels_ == result.labels.values[best]).all()
    assert (parts.membership_.argmax(1) == parts.labels_).all()


@pytest.mark.parametrize("solver", ["anneal", "sequential", "batched"])
def test_the_starts_are_those_of_random_state(solver, binary):
    # Without noise only the initial values of an annealing are random.
    model = IB(2, solver=solver, noise=0.0)
    first, again, other = (
        clone(model).set_params(random_state=seed).fit(binary[0]).restarts_.labels.values
        for seed in (0, 0, 1)
    )
    assert (first == again).all() and (first != other).any()


@pytest.mark.parametrize("solver", ["sequential", "batched"])
def test_a_critical_temperature_of_no_use_is_computed_when_asked_for(solver, binary):
    X, _ = binary
    hard = IB(2, solver=solver, n_init=2, random_state=0).fit(X)
    assert "critical_beta_" not in vars(hard)
    copied = pickle.loads(pickle.dumps(hard))  # without the rows
    assert not any(isinstance(v, partial) for v in vars(copied).values())
    expected = IB(2, random_state=0).fit(X).critical_beta_
    assert copied.critical_beta_ == hard.critical_beta_ == pytest.approx(expected, rel=1e-6)
    with pytest.warns(DegenerateClusterWarning, match="no structure"):
        assert np.isinf(hard.fit(np.ones_like(X)).critical_beta_)
    with pytest.raises(AttributeError, match="not fitted"):
        _ = IB(2).critical_beta_


def test_quench_spreads_the_restarts(binary):
    X, _ = binary
    alike, spread = (
        IB(2, quench=quench, random_state=1).fit(X).restarts_.objective.values
        for quench in (1.0, 100.0)
    )
    assert np.ptp(alike) < 1e-6 < 10 < np.ptp(spread)


def test_a_looser_tolerance_takes_fewer_updates(binary):
    X, labels = binary
    tight, middle, loose = (
        CCIB(2, tol=tol, random_state=0).fit(X, known=labels[:, 0]).n_iter_
        for tol in (1e-6, 1e-4, 1e-2)
    )
    assert loose < middle < tight


def test_agglomeration_returns_a_tree(binary):
    from scipy.cluster.hierarchy import fcluster, is_valid_linkage

    X, labels = binary
    model = CCIB(3, solver="agglomerative", polish=False).fit(X, known=labels[:, 0])
    assert is_valid_linkage(model.linkage_) and len(model.linkage_) == 199
    assert (np.diff(model.linkage_[:, 2]) >= 0).all()
    cut = fcluster(model.linkage_, 3, "maxclust")
    assert adjusted_rand_score(cut, model.labels_) == 1
    assert model.objective_trace_[-1] == pytest.approx(model.objective_)
    lost = model.objective_trace_[-1] - model.objective_trace_[0]
    assert model.linkage_[-3, 2] == pytest.approx(lost)
    assert model.merge_costs_[:197].sum() == pytest.approx(lost)


def test_verbose_prints_and_silence_does_not(binary, capsys):
    X, _ = binary
    IB(2, random_state=0).fit(X)
    assert capsys.readouterr().out == ""
    IB(2, random_state=0, verbose=1).fit(X)
    assert "nats" in capsys.readouterr().out
