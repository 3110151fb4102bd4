"""Subtracted group means: objective by its definition, EM by a literal reference, invariants."""

import itertools
import math
import pickle
import warnings

import jax
import numpy as np
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from slowly import first_fast

from nrprob import ConditionalMixture, DegenerateClusterWarning, datasets
from nrprob.data.design import DesignEncoder
from nrprob.engines.batching import Batcher
from nrprob.known import Memberships
from nrprob.methods.conditional import em, solver, starts, task
from nrprob.methods.conditional.regression import fit_removal
from nrprob.metrics import matched_accuracy, normalized_mutual_information
from nrprob.statistics.rows import make_layout

# Nearly all data sets have one shape, to limit compilation.
N, D, K, L = 90, 5, 3, 3
FEW = {
    "errors": "gaussian",
    "weights": "uniform",
    "effects": "subtract",
    "n_init": 24,
    "random_state": 0,
}
pytestmark = pytest.mark.filterwarnings("ignore:two solutions:UserWarning")


def make(seed=0, n=N, gap=6.0, noise="gaussian"):
    """Rows with correlated noise; clusters differ in a direction of little noise."""
    rng = np.random.default_rng(seed)
    c, z = rng.integers(K, size=n), rng.integers(L, size=n)
    z[:L] = np.arange(L)
    e = rng.normal(size=(n, D)) if noise == "gaussian" else rng.standard_t(2.5, size=(n, D))
    e[:, 0] *= 10
    mix = np.linalg.qr(np.random.default_rng(7).normal(size=(D, D)))[0]
    b = np.zeros((K, D))
    b[:, 1] = gap * np.arange(K)
    return (e + b[c]) @ mix + 20 * rng.normal(size=(L, D))[z], c, z


def residuals(X, z):
    return X - np.array([X[z == g].mean(0) for g in range(z.max() + 1)])[z]


def definition(X, z, centres, scale, weights, *, nu=None, kappa=0.0, ridge=3.0, offset=None):
    """The objective from residuals, centres and Sigma, in the units of X; and the memberships."""
    n, d = X.shape
    dof = n - (z.max() + 1)
    r = residuals(X, z) * math.sqrt(n / dof)
    b = centres * math.sqrt(n / dof)
    shrinkage = min(ledoit_wolf_shrinkage(r, assume_centered=True), 0.99)
    nu0 = ridge * min(dof * shrinkage / (1 - shrinkage), 2 * d)
    if nu is None:
        log_p = [stats.multivariate_normal(m, scale, allow_singular=True).logpdf(r) for m in b]
    else:
        log_p = [stats.multivariate_t(m, scale, df=nu).logpdf(r) for m in b]
    log_p = np.stack(log_p, 1) + np.log(weights)
    u = np.zeros((n, len(b))) if offset is None else offset[:, z].T
    w = np.exp(log_p + u - logsumexp(log_p + u, 1, keepdims=True))
    tiny = np.maximum(w, 1e-300)
    psi = dof / n * (w * (log_p - np.log(tiny))).sum()
    for g in range(z.max() + 1):
        p = w[z == g].mean(0)
        psi -= kappa * dof / n * (z == g).sum() * (p * np.log(p * len(b))).sum()
    s0 = d / np.trace(np.linalg.inv(scale))
    divergence = 0.5 * (np.linalg.slogdet(scale)[1] - d * math.log(s0))
    return nu0 * divergence - psi, w


def scale_of(model):
    return model.covariance_ * ((model.nu - 2) / model.nu if model.errors_ == "t" else 1)


@pytest.fixture(scope="module")
def fitted():
    X, c, z = make()
    return X, c, z, ConditionalMixture(K, **FEW).fit(X, known=z)


# The objective and its maximum


@pytest.mark.parametrize(
    "setting", [{}, {"errors": "t"}, {"balance": 2.0}, {"weights": "free", "errors": "t"}]
)
def test_objective_and_memberships_by_their_definition(setting):
    X, _, z = make(1, gap=3.0)
    model = ConditionalMixture(K, tol=1e-9, max_iter=2000, **(FEW | setting)).fit(X, known=z)
    nu = 8.0 if model.errors_ == "t" else None
    kappa = setting.get("balance", 0.0)
    offset = model._offset if kappa else None
    pi = model.weights_
    assert pi.sum() == pytest.approx(1) and (np.ptp(pi) > 1e-3) == ("weights" in setting)
    value, w = definition(
        X, z, model.means_, scale_of(model), pi, nu=nu, kappa=kappa, offset=offset
    )
    # The ridge that keeps Sigma regular is 1e-9 of the variances.
    assert model.objective_ == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(model.membership_, w, atol=1e-7)
    assert model.objective_ == pytest.approx(model.penalty_ - model.log_likelihood_)
    assert (model.labels_ == model.membership_.argmax(1)).all()
    # No step in any direction is better.
    rng = np.random.default_rng(0)
    for size in (1e-2, 1e-3):
        for _ in range(10):
            turn = np.eye(D) + size * rng.normal(size=(D, D))
            away = turn @ scale_of(model) @ turn.T
            centres = model.means_ + size * rng.normal(size=(K, D))
            heavier = pi * np.exp(size * rng.normal(size=K) * ("weights" in setting))
            for b, s, p in (
                (model.means_, away, pi),
                (centres, scale_of(model), pi),
                (model.means_, scale_of(model), heavier / heavier.sum()),
            ):
                other = definition(X, z, b, s, p, nu=nu, kappa=kappa, offset=offset)[0]
                # With balance the best offsets change, too; they are correct to first order.
                assert other >= value - (1e-6 if not kappa else 2 * size**2)


def literal_em(X, z, labels, covariance, nu, steps, ridge=3.0, step=0.0):
    """EM in the coordinates of X, row by row; returns the objective after every step.

    The columns are rounded to multiples of ``step``.
    """
    n, d = X.shape
    dof = n - (z.max() + 1)
    r = residuals(X, z) * math.sqrt(n / dof)
    unit = math.sqrt((r**2).mean())
    r /= unit
    rounding = (step / unit) ** 2 / 12 * np.eye(d)
    shrinkage = min(ledoit_wolf_shrinkage(r, assume_centered=True), 0.99)
    weight = ridge * min(dof * shrinkage / (1 - shrinkage), 2 * d)
    nu0 = 0 if covariance == "spherical" else weight
    s0 = np.trace(r.T @ r) / n / d
    w = 0.95 * np.eye(K)[labels] + 0.05 / K
    u = np.ones((n, K))
    values = []
    for _ in range(steps):
        b = np.stack([(w[:, c] * u[:, c]) @ r / (w[:, c] * u[:, c]).sum() for c in range(K)])
        s = np.zeros((d, d))
        for i, c in itertools.product(range(n), range(K)):
            s += dof / n * w[i, c] * u[i, c] * np.outer(r[i] - b[c], r[i] - b[c])
        sigma = (s + nu0 * s0 * np.eye(d) + dof * rounding) / (dof + nu0)
        if covariance == "diag":
            sigma = np.diag(np.diag(sigma))
        if covariance == "spherical":
            sigma = np.trace(sigma) / d * np.eye(d)
        inverse = np.linalg.inv(sigma)
        s0 = d / np.trace(inverse)
        q = np.array([[(x - m) @ inverse @ (x - m) for m in b] for x in r])
        log_det = np.linalg.slogdet(sigma)[1]
        if nu is None:
            log_p = -0.5 * (q + log_det + d * math.log(2 * math.pi))
        else:
            log_p = stats.multivariate_t(np.zeros(d), np.eye(d), df=nu).logpdf(np.zeros(d))
            log_p = log_p - 0.5 * log_det - 0.5 * (nu + d) * np.log1p(q / nu)
            u = (nu + d) / (nu + q)
        log_p -= math.log(K)
        w = np.exp(log_p - logsumexp(log_p, 1, keepdims=True))
        penalty = nu0 * 0.5 * (log_det - d * math.log(s0))
        penalty += dof / 2 * np.trace(inverse @ rounding)
        values.append(penalty - dof / n * logsumexp(log_p, 1).sum())
    return np.array(values)


@pytest.mark.parametrize(
    ("covariance", "errors", "step"),
    [
        ("tied", "gaussian", 3.0),
        ("tied", "t", 0.0),
        pytest.param("diag", "gaussian", 3.0, marks=pytest.mark.slow),
        pytest.param("spherical", "t", 3.0, marks=pytest.mark.slow),
    ],
)
def test_every_step_is_that_of_a_literal_em(covariance, errors, step):
    X, _, z = make(2, gap=3.0)
    X = np.round(X / step) * step if step else X
    model = ConditionalMixture(
        K, covariance=covariance, errors=errors, whitening_exponents=(0.5,), aligned=False,
        warm_up=False, weights="uniform", n_init=1, max_iter=12, ordered=[], random_state=0,
    )  # fmt: skip
    with jax.enable_x64(True):
        laid_out = model.prepare(X, None, z)
    labels = laid_out.layout.from_blocks(laid_out.starts[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, known=z)
    ours = model.objective_trace_
    nu = 8.0 if errors == "t" else None
    theirs = literal_em(X, z, labels, covariance, nu, len(ours), step=step)
    unit = math.sqrt((residuals(X, z) ** 2).mean() * N / (N - L))
    theirs += (N - L) * D * math.log(unit)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize(("covariance", "errors"), [("tied", "t"), ("diag", "gaussian")])
def test_pieces_of_many_rows_add_up(covariance, errors, monkeypatch):
    X, c, z = make(3, 600, gap=3.0)
    y = np.where(np.arange(600) < 5, c, -1)
    model = ConditionalMixture(K, covariance=covariance, errors=errors, weights="free", n_init=1)
    with jax.enable_x64(True):
        laid_out = model.prepare(X, y, z)
        data, hyperparameters = laid_out.data, laid_out.hyperparameters

        def three_steps(labels):
            own = em.Model(data, hyperparameters, covariance, errors == "t", len(data.active), True)
            restart_em = solver.RestartEM(own, laid_out.fixed)
            state = restart_em.run_em(restart_em.initial_state(labels, None, 0), 3).state
            result = own.evaluate_rows(
                state.t, state.u, 0.9 * state.w, restart_em.damp, restart_em.mask
            )
            labels = own.row_labels(result.w)
            return state._replace(w=own.from_pieces(state.w)), labels, result._replace(w=labels)

        labels = laid_out.starts[0].reshape(-1)
        whole = jax.jit(three_steps)(labels)
        monkeypatch.setattr(em, "_MANY", 0)
        monkeypatch.setattr(em, "_NEAR", 1)
        assert em.piece_length(labels.size, 20) == 128 < labels.size
        parts = jax.jit(lambda labels: three_steps(labels))(labels)
    result, expected = jax.tree.leaves(parts), jax.tree.leaves(whole)
    for a, b in zip(result, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_the_objective_never_rises(seed):
    X, _, z = make(seed, gap=2.0)
    settings_ = [{}, {"errors": "t"}, {"balance": 1.0}]
    for setting in settings_:
        model = ConditionalMixture(K, **(FEW | setting)).fit(X, known=z)
        trace = model.objective_trace_
        allowed = 1e-6 if "balance" in setting else 1e-11
        assert (np.diff(trace) <= allowed * abs(trace[0])).all()
        assert trace[-1] == pytest.approx(model.objective_)


# Invariants


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_groups_may_be_shifted_and_renamed(seed):
    X, _, z = make(seed % 5)
    rng = np.random.default_rng(seed)
    model = ConditionalMixture(K, **FEW).fit(X, known=z)
    moved = clone(model).fit(X + 100 * rng.normal(size=(L, D))[z], known=z)
    np.testing.assert_allclose(moved.membership_, model.membership_, atol=1e-6)
    assert moved.objective_ == pytest.approx(model.objective_, abs=1e-6)
    renamed = clone(model).fit(X, known=np.array(["c", "a", "b"])[z])
    assert (renamed.labels_ == model.labels_).all()


@pytest.mark.slow
@pytest.mark.contract
def test_rows_may_come_in_any_order():
    # Initial values are sampled by position, so only the best of enough restarts is the same.
    X, _, z = make(0)
    order = np.random.default_rng(0).permutation(N)
    whole = ConditionalMixture(K, **FEW).set_params(n_init=120).fit(X, known=z)
    shuffled = clone(whole).fit(X[order], known=z[order])
    assert shuffled.objective_ == pytest.approx(whole.objective_, abs=0.01)
    assert adjusted_rand_score(shuffled.labels_, whole.labels_[order]) > 0.95


@pytest.mark.slow
def test_one_group_is_a_tied_mixture_with_equal_weights():
    X, _, _ = make(3)
    z = np.zeros(N, int)
    plain = ConditionalMixture(K, **FEW).fit(X)
    with pytest.warns(DegenerateClusterWarning, match="one group only"):
        one = ConditionalMixture(K, **FEW).fit(X, known=z)
    assert one.objective_ == plain.objective_ and (one.labels_ == plain.labels_).all()
    assert plain.objective_ == pytest.approx(
        definition(X, z, plain.means_, plain.covariance_, plain.weights_)[0], abs=1e-3
    )
    assert plain.effects_ == pytest.approx(X.mean(0, keepdims=True))


@pytest.mark.slow
@pytest.mark.contract
def test_a_heavy_ridge_makes_the_covariance_a_sphere(fitted):
    X, c, z, _ = fitted
    heavy = ConditionalMixture(K, ridge=1e9, max_iter=1000, **FEW).fit(X, known=z)
    scale = np.trace(heavy.covariance_) / D
    np.testing.assert_allclose(heavy.covariance_, scale * np.eye(D), atol=1e-3 * scale)
    sphere = ConditionalMixture(K, covariance="spherical", **FEW).fit(X, known=z)
    scale = np.trace(sphere.covariance_) / D
    np.testing.assert_allclose(sphere.covariance_, scale * np.eye(D), atol=1e-9 * scale)
    # The initialisation metrics alone are not enough.
    assert matched_accuracy(sphere.labels_, c) < 0.7
    diagonal = ConditionalMixture(K, covariance="diag", **FEW).fit(X, known=z).covariance_
    np.testing.assert_allclose(diagonal, np.diag(np.diag(diagonal)), atol=1e-12)


def test_without_a_ridge_linear_maps_of_the_columns_change_nothing(fitted):
    X, _, z, _ = fitted
    turn = np.random.default_rng(0).normal(size=(D, D))
    model = ConditionalMixture(K, ridge=0.0, whitening_exponents=(1.0, 1.0, 1.0), **FEW).fit(
        X, known=z
    )
    mapped = clone(model).fit(X @ turn, known=z)
    np.testing.assert_allclose(mapped.membership_, model.membership_, atol=1e-4)
    change = (N - L) * np.linalg.slogdet(turn)[1]
    assert mapped.objective_ == pytest.approx(model.objective_ + change, abs=1e-2)


def test_infinite_balance_gives_equal_shares():
    X, _, z = make(4, gap=3.0)
    exact = ConditionalMixture(K, balance=np.inf, **FEW).fit(X, known=z)
    free = ConditionalMixture(K, **FEW).fit(X, known=z)

    def shares(model):
        return np.stack([model.membership_[z == g].mean(0) for g in range(L)])

    np.testing.assert_allclose(shares(exact), 1 / K, atol=1e-3)
    assert abs(shares(free) - 1 / K).max() > 0.02
    half = ConditionalMixture(K, balance=1.0, **FEW).fit(X, known=z)
    assert abs(shares(half) - 1 / K).max() < abs(shares(free) - 1 / K).max()
    for model in (exact, half):
        np.testing.assert_allclose(model.predict_proba(X, known=z), model.membership_, atol=1e-9)


def test_t_errors_with_many_degrees_of_freedom_are_normal(fitted):
    X, _, z, model = fitted
    t = ConditionalMixture(K, nu=1e7, **(FEW | {"errors": "t"})).fit(X, known=z)
    assert t.objective_ == pytest.approx(model.objective_, abs=1e-2)
    np.testing.assert_allclose(t.membership_, model.membership_, atol=1e-4)


def test_automatic_errors_take_the_smaller_objective():
    for noise, expected in (("gaussian", "gaussian"), ("t", "t")):
        X, _, z = make(5, noise=noise)
        each = {
            e: ConditionalMixture(K, **(FEW | {"errors": e})).fit(X, known=z)
            for e in ("gaussian", "t")
        }
        auto = ConditionalMixture(K, **(FEW | {"errors": "auto"})).fit(X, known=z)
        assert auto.errors_ == expected == min(each, key=lambda e: each[e].objective_)
        assert auto.objective_ == each[expected].objective_
        assert (auto.predict(X, known=z) == auto.labels_).all()
        assert len(auto.start_table_) == 2 * len(each["t"].start_table_) == 2 * 24
        best = auto.start_table_.loc[auto.start_table_.objective.idxmin()]
        assert best.errors == expected


# Applications


def test_clusters_in_a_direction_of_small_variance_are_found(fitted):
    from sklearn.cluster import KMeans

    X, c, z, model = fitted
    assert matched_accuracy(model.labels_, c) > 0.95
    plain = KMeans(K, n_init=10, random_state=0).fit_predict(residuals(X, z))
    assert matched_accuracy(plain, c) < 0.6


@pytest.mark.slow
def test_crabs(data_dir, monkeypatch):
    monkeypatch.setenv("NRPROB_DATA", str(data_dir))
    data = datasets.load("crabs")
    X = (data.X - data.X.mean(0)) / data.X.std(0)
    species, sex = data.labelings["species"], data.labelings["sex"]
    result = ConditionalMixture(2, random_state=0).fit(X, known=sex).labels_
    assert normalized_mutual_information(result, species) == pytest.approx(1)
    result = ConditionalMixture(2, random_state=0).fit(X, known=species).labels_
    assert normalized_mutual_information(result, sex) >= 0.6


# The contract


@pytest.mark.smoke
def test_fitted_attributes(fitted):
    X, _, z, model = fitted
    assert model.converged_ and model.n_clusters_ == K and model.n_components_ == D
    assert model.membership_.shape == (N, K) and model.means_.shape == (K, D)
    np.testing.assert_allclose(model.membership_.sum(1), 1)
    np.testing.assert_allclose(model.predict_proba(X, known=z), model.membership_, atol=1e-9)
    means = np.array([X[z == g].mean(0) for g in dict.fromkeys(z)])
    np.testing.assert_allclose(model.effects_, means)
    table = model.start_table_
    assert len(table) == 24 == model.restarts_.sizes["restart"]  # 2 x 3 metrics x 2 kinds x 2
    assert table.objective.min() == model.objective_
    assert table.warmed_up.sum() == 12 and (table.start == "aligned").sum() == 12
    best = model.restarts_.labels[int(table.objective.argmin())]
    assert (best.values == model.labels_).all()
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X, known=z) == model.labels_).all()
    repeat = clone(model).fit(X, known=z)
    assert repeat.objective_ == model.objective_ and (repeat.labels_ == model.labels_).all()
    with pytest.raises(ValueError, match="known is required"):
        model.predict(X)
    with pytest.raises(ValueError, match="did not occur in fit"):
        model.predict(X, known=z + 1)


@pytest.mark.slow
@pytest.mark.contract
def test_both_precisions(fitted):
    X, _, z, model = fitted
    narrow = clone(model).fit(X.astype(np.float32), known=z)
    assert narrow.objective_ == pytest.approx(model.objective_, rel=1e-4)
    assert adjusted_rand_score(narrow.labels_, model.labels_) > 0.93  # random labels
    trace = narrow.objective_trace_
    assert (np.diff(trace) <= 1e-5 * abs(trace[0])).all()


def test_a_sweep_compiles_once(fitted):
    X, _, z, model = fitted
    before = solver.solve_residuals._cache_size()
    steps = []
    for setting in ({"ridge": 1.0}, {"balance": 1.0}, {"tol": 1e-2}, {"tol": 1e-6}):
        result = clone(model).set_params(random_state=3, **setting).fit(X[:85], known=z[:85])
        steps.append(result.start_table_.n_iter.sum())
    assert solver.solve_residuals._cache_size() == before
    assert steps[2] < steps[3]


@pytest.mark.slow
def test_scores_are_log_likelihoods_and_choose_the_number_of_clusters(fitted):
    X, _, z, model = fitted
    dof = N - L
    robust = ConditionalMixture(K, **FEW | {"errors": "t"}).fit(X, known=z)
    for one in (model, robust):
        assert one.score(X, known=z) == pytest.approx(one.log_likelihood_ / dof)
    with pytest.raises(ValueError, match="known is required"):
        model.score(X)
    with sklearn.config_context(enable_metadata_routing=True):
        asked = clone(model).set_fit_request(known=True).set_score_request(known=True)
        X, _, z = make(0, 240)
        search = GridSearchCV(asked, {"n_clusters": [2, 3, 4]}, cv=2).fit(X, known=z)
    assert search.best_params_ == {"n_clusters": K}


@pytest.mark.slow
def test_fits_share_a_program_of_a_batch(fitted):
    X, _, z, model = fitted
    estimators = [clone(model).set_params(ridge=r) for r in (1.0, 3.0)]
    with jax.enable_x64(True):
        tasks = [e.prepare(X, None, z) for e in estimators]
        lanes = Batcher(jax.local_devices()[:1])
        result = {id(call): s for call, s, _ in lanes([c for t in tasks for c in t.calls])}
        for e, t in zip(estimators, tasks, strict=True):
            e.finish(t, [result[id(c)] for c in t.calls])
    assert len(lanes.compiled) == 1
    assert estimators[1].objective_ == pytest.approx(model.objective_, abs=1e-6)
    assert estimators[0].objective_ != estimators[1].objective_


@pytest.mark.slow
@pytest.mark.contract
def test_wanted_labels_stay_and_keep_their_names(fitted):
    X, c, z, _ = fitted
    y = np.full(N, -1)
    y[:12] = np.array([30, 7, 12])[c[:12]]
    model = ConditionalMixture(K, **FEW).fit(X, y, known=z)
    assert model.classes_.tolist() == [7, 12, 30]
    assert (model.classes_[model.labels_[:12]] == y[:12]).all()
    np.testing.assert_allclose(model.membership_[:12].max(1), 1)
    assert (model.classes_[model.labels_] == np.array([30, 7, 12])[c]).mean() > 0.95
    # A wrong label is kept, too, in every restart.
    y[0] = 7 if c[0] != 1 else 12
    wrong = ConditionalMixture(K, **FEW).fit(X, y, known=z)
    assert wrong.classes_[wrong.labels_[0]] == y[0]
    assert (wrong.restarts_.labels[:, 0] == wrong.labels_[0]).all()
    with pytest.raises(ValueError, match="more than n_clusters"):
        ConditionalMixture(2, **FEW).fit(X, y, known=z)


@pytest.mark.slow
def test_several_labelings_numbers_and_soft_memberships():
    X, c, z = make(6, gap=15.0)
    rng = np.random.default_rng(0)
    other = rng.integers(2, size=N)
    X = X + 30 * rng.normal(size=(2, D))[other]
    both = np.stack([z, other], 1)
    product = ConditionalMixture(K, **FEW).fit(X, known=both)
    code = ConditionalMixture(K, **FEW).fit(X, known=z * 2 + other)
    assert (product.labels_ == code.labels_).all() and product.effects_.shape == (6, D)
    additive = ConditionalMixture(K, multi="additive", **FEW).fit(X, known=both)
    assert matched_accuracy(additive.labels_, c) > 0.9
    design = np.column_stack([np.eye(L)[z], np.eye(2)[other]])
    fit = design @ np.linalg.lstsq(design, X, rcond=None)[0]
    r, removal = fit_removal(X, DesignEncoder("additive").fit(both, len(X)))
    np.testing.assert_allclose(r, X - fit, atol=1e-9)
    assert removal.rank == np.linalg.matrix_rank(design) == L + 1
    assert (additive.predict(X, known=both) == additive.labels_).all()
    # Memberships that are hard are labels.
    soft = Memberships(np.eye(L)[z])
    r, removal = fit_removal(X, DesignEncoder().fit(soft, len(X)))
    np.testing.assert_allclose(r, residuals(X, z), atol=1e-9)
    assert removal.rank == L
    # Covariates: least squares on a constant and the columns.
    numbers = rng.normal(size=(N, 2))
    Y, c, groups = make(8, gap=15.0)
    Y = residuals(Y, groups) + 40 * numbers @ rng.normal(size=(2, D))
    model = ConditionalMixture(K, **FEW).fit(Y, known=numbers)
    assert matched_accuracy(model.labels_, c) > 0.9 and model.effects_.shape == (3, D)
    assert (model.predict(Y, known=numbers) == model.labels_).all()
    moved = clone(model).fit(Y + numbers @ rng.normal(size=(2, D)), known=numbers)
    np.testing.assert_allclose(moved.membership_, model.membership_, atol=1e-6)
    soft_model = ConditionalMixture(K, **FEW).fit(X, known=soft)
    assert (soft_model.predict(X, known=soft) == soft_model.labels_).all()
    for known in (numbers, soft):
        with pytest.raises(ValueError, match="balance needs known groups"):
            ConditionalMixture(K, balance=1.0).fit(X, known=known)


@pytest.mark.slow
def test_columns_that_say_nothing_change_nothing(fitted):
    X, _, z, model = fitted
    padded = np.column_stack([X, np.ones(N), X[:, :1]])
    more = clone(model).fit(padded, known=z)
    assert more.n_components_ == D and np.isfinite(more.objective_)
    assert adjusted_rand_score(more.labels_, model.labels_) > 0.9
    assert np.allclose(more.covariance_[D], 0) and np.isfinite(more.covariance_).all()


@pytest.mark.slow
def test_wide_rows_are_projected():
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(40, 141)) + 3 * rng.normal(size=(2, 141))[np.arange(40) % 2]
    result = ConditionalMixture(2, **FEW).fit(wide, known=np.arange(40) // 20)
    assert result.n_components_ == 19 and np.isfinite(result.membership_).all()
    assert matched_accuracy(result.labels_, np.arange(40) % 2) > 0.95
    assert (result.predict(wide, known=np.arange(40) // 20) == result.labels_).all()


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("errors", ["gaussian", "t"])
def test_degenerate_rows_are_never_nan(errors):
    rng = np.random.default_rng(0)
    cases = [
        (rng.normal(size=(7, 4)), np.array([0, 0, 0, 1, 1, 1, 1]), 3),
        (rng.integers(2, size=(40, 4)).astype(float), np.arange(40) % 2, 3),
        (np.repeat(rng.normal(size=(4, 4)), 10, 0), np.arange(40) % 2, 3),
        (rng.normal(size=(40, 4)) * 1e-8 + 1e3, np.arange(40) % 2, 3),
        (rng.standard_cauchy(size=(40, 4)), np.arange(40) % 2, 3),
        (rng.normal(size=(40, 4)).astype(np.float32) * 1e15, np.arange(40) % 2, 3),
    ]
    # t errors need complete numeric columns.
    settings = FEW | ({} if errors == "gaussian" else {"categorical": [], "ordered": []})
    for data, known, k in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = ConditionalMixture(k, **(settings | {"errors": errors})).fit(data, known=known)
        assert np.isfinite(fit.membership_).all() and np.isfinite(fit.objective_)
        assert np.isfinite(fit.restarts_.objective.values).all()


@pytest.mark.slow
def test_one_cluster(fitted):
    X, _, z, _ = fitted
    model = ConditionalMixture(1, **FEW).fit(X, known=z)
    assert (model.labels_ == 0).all() and model.converged_ and model.objective_margin_ == np.inf
    r = residuals(X, z)
    nu0 = 3 * min((N - L) * model.shrinkage_ / (1 - model.shrinkage_), 2 * D)
    s0 = D / np.trace(np.linalg.inv(model.covariance_))
    expected = (r.T @ r + nu0 * s0 * np.eye(D)) / (N - L + nu0)
    np.testing.assert_allclose(model.covariance_, expected, rtol=1e-3)


def test_refusals_name_a_way_out(fitted):
    X, _, z, _ = fitted
    cases = [
        (ConditionalMixture(2), X, np.arange(N), "pass fewer groups"),
        (ConditionalMixture(2), np.eye(L)[z], z, "explains X completely"),
        (ConditionalMixture(2), np.ones((9, 2)), None, "all rows are alike"),
        (ConditionalMixture(5), X[:6], [0, 0, 0, 1, 1, 1], "degrees of freedom"),
        (ConditionalMixture(2, nu=2.0), X, z, "nu must be at least 2.001"),
        (ConditionalMixture(2, ridge=np.inf), X, z, "ridge must be at least 0 and at most"),
        (
            ConditionalMixture(2, whitening_exponents=()),
            X,
            z,
            "whitening_exponents must be a sequence",
        ),
        (ConditionalMixture(2, whitening_exponents=(2.0,)), X, z, "at most 1"),
        (ConditionalMixture(2, errors="normal"), X, z, "errors must be one of"),
        (ConditionalMixture(2, covariance="full"), X, z, "covariance must be one of"),
        (ConditionalMixture(2, multi="sum"), X, z, "multi must be one of"),
        (ConditionalMixture(2, init=z[:-1]), X, z, "init must have one label for each of"),
        (ConditionalMixture(2, init=np.arange(N) % 3), X, z, "with 3 distinct labels"),
    ]
    for model, data, known, message in cases:
        with pytest.raises(ValueError, match=message):
            model.fit(data, known=known)
    with pytest.raises(TypeError, match="aligned must be True or False"):
        ConditionalMixture(2, aligned="no").fit(X, known=z)


@pytest.mark.slow
def test_what_makes_a_result_doubtful_is_said(fitted):
    X, c, z, model = fitted
    odd = z.copy()
    odd[0] = 9
    with pytest.warns(DegenerateClusterWarning, match="single member"):
        clone(model).fit(X, known=odd)
    assert model.objective_margin_ > 1
    # Two exchangeable structures: either is as good.
    rng = np.random.default_rng(0)
    corner = np.array([[0, 0], [0, 8], [8, 0], [8, 8]])[np.arange(N // 2) % 4]
    half = corner + rng.normal(size=(N // 2, 2))
    sides = np.column_stack([np.concatenate([half, half[:, ::-1]]), rng.normal(size=(N, D - 2))])
    with pytest.warns(UserWarning, match="almost equally good"):
        doubtful = ConditionalMixture(2, **FEW).fit(sides, known=np.arange(N) % L)
    assert doubtful.objective_margin_ < 1
    # One group splits into two parts, and nothing else does.
    away = rng.normal(size=(N, D))
    away[z == 1] += 100 * rng.choice([-1, 1], (z == 1).sum())[:, None]
    with pytest.warns(DegenerateClusterWarning, match="one known group only"):
        ConditionalMixture(K, **FEW).fit(away, known=z)
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        clone(model).set_params(max_iter=1).fit(X, known=z)


# Weights


def shares(seed, shares, sd=5.0, n=240, d=6, n_groups=3):
    """Rows of clusters with given shares and distance in standard deviations, and known groups."""
    rng = np.random.default_rng(seed)
    z, c = rng.integers(n_groups, size=n), rng.choice(len(shares), size=n, p=shares)
    centres = sd * np.linalg.qr(rng.normal(size=(d, d)))[0][: len(shares)] / math.sqrt(2)
    return centres[c] + rng.normal(size=(n, d)) + 20 * rng.normal(size=(n_groups, d))[z], c, z


@pytest.mark.slow
@pytest.mark.contract
def test_free_weights_find_a_minority_and_auto_frees_them_where_that_pays():
    X, c, z = shares(1, (0.9, 0.1))
    runs = {"n_init": 12, "random_state": 0}
    result = {
        weights: ConditionalMixture(2, weights=weights, **runs).fit(X, known=z)
        for weights in ("uniform", "free", "auto")
    }
    index = {weights: adjusted_rand_score(c, model.labels_) for weights, model in result.items()}
    assert index["uniform"] < 0.6 and index["free"] > 0.9 and index["auto"] > 0.9
    np.testing.assert_allclose(np.sort(result["auto"].weights_), [0.1, 0.9], atol=0.04)
    assert result["auto"].objective_ < result["uniform"].objective_
    # The last restart is the best with equal weights.
    table = result["auto"].start_table_
    assert len(table) == 12 == result["auto"].restarts_.sizes["restart"]
    assert (table.start == "equal weights").tolist() == 11 * [False] + [True]
    np.testing.assert_allclose(
        result["auto"].predict_proba(X, known=z), result["auto"].membership_, atol=1e-6
    )
    X, _, z = shares(1, (0.5, 0.5))
    equal = ConditionalMixture(2, **runs).fit(X, known=z)  # "auto" is the default
    assert (equal.weights_ == 0.5).all()
    alone = ConditionalMixture(2, weights="uniform", **runs).fit(X, known=z)
    assert equal.objective_ == pytest.approx(alone.objective_)
    assert adjusted_rand_score(equal.labels_, alone.labels_) == 1  # of tied restarts, any
    how = ["errors", "start", "metric", "warmed_up"]
    assert equal.start_table_[how].equals(alone.start_table_[how])
    assert (alone.set_params(balance=1.0, weights="auto").fit(X, known=z).weights_ == 0.5).all()
    with pytest.raises(ValueError, match="balance favours equal cluster shares .*; got balance"):
        ConditionalMixture(2, balance=1.0, weights="free").fit(X, known=z)


@pytest.mark.slow
@pytest.mark.parametrize("true", [(0.9, 0.1), (0.5, 0.3, 0.2)])
def test_clusters_of_unequal_shares_are_found(true):
    for weights in ("free", "auto"):
        index = []
        for seed in range(20):
            X, c, z = shares(seed, true)
            model = ConditionalMixture(len(true), weights=weights, n_init=36, random_state=0)
            index.append(adjusted_rand_score(c, model.fit(X, known=z).labels_))
        assert np.mean(index) >= 0.9


# Starts


@pytest.mark.parametrize("aligned", [False, True])
def test_kmeans_within_groups_is_lloyds_and_aligned_names_agree(aligned):
    X, c, z = make(9, gap=40.0)
    y, rng = residuals(X, z).astype(np.float32), np.random.default_rng(1)
    groups, n_groups = (z, L) if aligned else (np.zeros_like(z), 1)
    layout = make_layout(groups, n_groups)
    rows = starts.BlockedRows(
        layout.to_blocks(y), layout.to_blocks(np.ones(N, bool)), layout.to_blocks(np.ones(N)),
        layout.to_blocks(np.arange(N)), layout.block_group, n_groups,
    )  # fmt: skip
    labels, centres = starts.grouped_kmeans(rows, K, 6, rng)
    named = starts.align_groups(rows, labels, centres, rng) if aligned else labels
    own, named = layout.from_blocks(labels), layout.from_blocks(named)
    for s, g in itertools.product(range(6), range(n_groups)):
        member = groups == g
        far = ((y[member][:, None] - centres[s, g]) ** 2).sum(2)
        np.testing.assert_array_equal(far.argmin(1), own[member, s])
        for k in range(K):
            mean = y[member & (own[:, s] == k)].mean(0)
            np.testing.assert_allclose(centres[s, g, k], mean, atol=1e-4)
        # Labels differ between groups, but the partition of a group does not.
        assert adjusted_rand_score(own[member, s], named[member, s]) == 1
    # Every group has the same distant clusters: the best restart recovers them.
    assert max(matched_accuracy(named[:, s], c) for s in range(6)) > 0.95


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("weights", ["uniform", "free"])
def test_labels_to_start_from_take_the_place_of_the_first_start(fitted, weights):
    X, _, z, model = fitted
    one = clone(model).set_params(weights=weights, max_iter=1, random_state=1)
    given = one.set_params(init=np.array(["b", "a", "c"])[model.labels_]).fit(X, known=z)
    assert given.start_table_.start[0] == "init" and not given.start_table_.warmed_up[0]
    assert given.start_table_.start[1] == "plain"
    first = given.restarts_.labels[0].values
    assert adjusted_rand_score(first, model.labels_) > 0.95
    other = clone(given).set_params(random_state=2).fit(X, known=z).restarts_.labels[0].values
    np.testing.assert_array_equal(first, other)


def test_rows_that_are_equal_make_one_centre():
    y = np.repeat(np.eye(3, dtype=np.float32), 20, 0)
    layout = make_layout(np.zeros(60, int), 1)
    result = starts.make_starts(
        y, layout, 1, [np.eye(3)], 3, 8, np.random.default_rng(0), aligned=False
    )
    assert all(adjusted_rand_score(one, np.arange(60) // 20) == 1 for one in result)


def test_starts_that_differ_come_first():
    labels = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 1], [2, 2, 1], [0, 1, 2]])
    assert starts.distinct_first(labels, 3).tolist() == [0, 2, 4]
    assert starts.distinct_first(labels, 4).tolist() == [0, 2, 4, 1]


def test_labelled_rows_name_the_clusters_of_a_start():
    labels = np.array([[0, 0, 1, 1, 2, 2]])
    fixed = np.array([2, -1, -1, 0, 0, -1])
    # 0 is mapped to 2, the other clusters to 0, and labelled rows are in their class.
    (named,) = starts.name_classes(labels, fixed, 3)
    assert named[[0, 1, 3, 4]].tolist() == [2, 2, 0, 0] and sorted({*named[[2, 5]]}) == [0, 1]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 300), st.integers(1, 9))
def test_a_sample_stands_for_its_strata(seed, size, n_strata):
    rng = np.random.default_rng(seed)
    strata = rng.integers(n_strata, size=200) ** 2 // n_strata
    rows, times = starts.stratified_sample(strata, size, rng)
    assert (np.diff(rows) > 0).all() and (len(rows) == 200) >= (size >= 200)
    assert len(rows) <= size + n_strata + size // 4
    np.testing.assert_allclose(np.bincount(strata[rows], times), np.bincount(strata))


def test_leaders_are_the_best_of_those_that_differ():
    labels = np.repeat([[0, 0, 1, 1, 2, 2], [1, 1, 2, 2, 0, 0], [0, 1, 0, 1, 2, 2]], 2, 0)
    objective = np.array([3.0, 1, 2, 5, 4, 0])
    real = np.arange(6) < 6
    with jax.enable_x64(True):
        lead, there = solver.distinct_leaders(labels, objective, real, 3, 4)
    assert lead.tolist()[:2] == [3, 4] and there.tolist() == [True, True, False, False]
    assert (np.asarray(lead)[2:] == 6).all()  # beyond the last


@pytest.mark.parametrize("covariance", first_fast(["tied", "diag"]))
def test_parameters_of_fewer_digits_lead_no_better_than_they_are(covariance):
    """On all rows, a result on a subsample in single precision must not beat its own
    continuation."""
    X, _, z = make(3, 600, gap=3.0)
    model = ConditionalMixture(
        K, covariance=covariance, errors="gaussian", weights="free", n_init=1
    )
    with jax.enable_x64(True):
        laid_out = model.prepare(X, None, z)
        data, hyperparameters = laid_out.data, laid_out.hyperparameters
        whole = em.Model(data, hyperparameters, covariance, False, len(data.active), True)
        restart_em = solver.RestartEM(whole, None)

        @jax.jit
        def ends(labels):
            state = restart_em.run_em(restart_em.initial_state(labels, None, 0), 500).state
            narrow = jax.tree.map(lambda a: a.astype(np.float32), (state.t, state.u))
            return state.objective, restart_em.resume_from(*narrow).objective

        reached, again = ends(laid_out.starts[0].reshape(-1))
    assert abs(float(again) - float(reached)) < 1e-6


@pytest.mark.slow
@pytest.mark.contract
def test_in_single_precision_the_best_has_gone_to_its_end():
    """Another restart with the same clusters is better by rounding errors."""
    rng = np.random.default_rng(0)
    c, z = rng.integers(8, size=2000), rng.integers(4, size=2000)
    b, a = 1.5 * rng.normal(size=(8, 20)), 3 * rng.normal(size=(4, 20))
    X = (b[c] + a[z] + rng.normal(size=(2000, 20))).astype(np.float32)
    model = ConditionalMixture(8, errors="gaussian", weights="uniform", random_state=0).fit(
        X, known=z
    )
    assert model.converged_
    assert 0 < model.n_iter_ == np.isfinite(model.objective_trace_).sum()


HALVINGS = [{"weights": "auto"}, {"errors": "t", "balance": 1.0}]  # and equal weights


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(
    "setting", [{}, *(pytest.param(halving, marks=pytest.mark.slow) for halving in HALVINGS)]
)
def test_restarts_that_race_find_the_same(setting, monkeypatch):
    X, _, z = make(3, 600, gap=3.0)
    y = np.full(600, -1)
    y[:5] = [0, 1, 1, 2, 0]
    model = ConditionalMixture(K, **FEW | setting).fit(X, y, known=z)
    monkeypatch.setattr(task, "_LARGE", 0)
    monkeypatch.setattr(task, "_FEW", 200)
    monkeypatch.setattr(task, "_EACH", 1)
    assert len(model.prepare(X, y, z).starts[0].reshape(-1)) < 600
    halved = clone(model).fit(X, y, known=z)
    assert halved.objective_ == pytest.approx(model.objective_, abs=0.1)
    np.testing.assert_allclose(halved.membership_, model.membership_, atol=0.05)
    assert halved.converged_ and (halved.labels_[:5] == y[:5]).all()
    assert 0 < halved.n_iter_ == np.isfinite(halved.objective_trace_).sum()
    table = halved.start_table_
    ended = table.converged | (table.n_iter > 0)
    assert 1 <= ended.sum() <= 4 < len(table) and table.objective[~ended].notna().all()
    # Restarts that are dropped have their objective on all rows, and no better one.
    assert (table.objective >= halved.objective_).all()
    assert table.objective.max() < model.objective_ + 1000
    # Without successive halving every restart runs to convergence, from fewer k-means runs here.
    alone = clone(halved).set_params(successive_halving=False).fit(X, y, known=z)
    assert (alone.start_table_.n_iter > 0).all()
    assert alone.objective_ == pytest.approx(model.objective_, abs=0.1)


@pytest.mark.slow
def test_a_minority_is_no_difference_between_known_groups():
    """Shares by group make a minority cluster clearer, but so do common shares."""
    X, _, z = shares(1, (0.9, 0.1))
    model = ConditionalMixture(2, effects="subtract", weights="uniform", n_init=12, random_state=0)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        model.fit(X, known=z)
    assert not [w for w in issued if "joint fit of group effects" in str(w.message)]
