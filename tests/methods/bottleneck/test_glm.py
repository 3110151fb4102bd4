"""Models of the features on known structure, one per cluster, and `CCIB` with them."""

import pickle
import warnings
from collections import namedtuple
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import small_problems as small
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from slowly import first_fast, slowly

from nrprob import CCIB, DegenerateClusterWarning, sharded
from nrprob.datasets import make_binary_partitions
from nrprob.engines.batching import Batcher
from nrprob.engines.optimise import solve
from nrprob.engines.optimise.anneal import BlockSums, normalise_masses
from nrprob.methods.bottleneck import ccib, glm
from nrprob.metrics import matched_accuracy
from nrprob.statistics import terms

FAMILIES = ("gaussian", "bernoulli", "multinomial")
N, K, D = small.N, 3, 3
Converged = namedtuple("Converged", "coef losses cost")
# One number of restarts, and few shapes, to limit compilation.
Model = partial(CCIB, n_init=4, random_state=0)


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def planted(link, seed=0, n=80, strength=1.0):
    """Two balanced clusters and two covariates, which determine the features."""
    rng = np.random.default_rng(seed)
    c, z = rng.integers(2, size=n), rng.normal(size=(n, 2))
    m = 12
    slopes, means = rng.normal(size=(2, m)), strength * rng.choice([-1, 1], m)
    eta = z @ slopes + (2 * c[:, None] - 1) * means
    if link == "gaussian":
        return eta + rng.normal(size=eta.shape), z, c
    if link == "bernoulli":
        return (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))) * 1.0, z, c
    p = np.exp(0.5 * eta)
    return np.stack([rng.multinomial(40, row / row.sum()) for row in p]).astype(float), z, c


@partial(jax.jit, static_argnames=("link", "n_models", "elements"))
def chunk(rows, design, ridge, *, link, n_models, elements):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glm, "_MAX_PREDICTORS", elements)
        return glm.chunk_features(link, rows, design, ridge, n_models)


def data_of(link, seed=0, ridge=1e-2, n_models=4, chunks=1, d=D):
    """Rows, columns of the models and fitted models."""
    rng = np.random.default_rng(seed + 50)
    layout, rows = small.laid_out(small.features(link, seed))
    design = np.c_[np.ones(N), rng.normal(size=(N, d - 1))]
    design = jax.device_put(layout.to_blocks(design))
    given_ = {"link": link, "n_models": n_models}
    data = chunk(rows, design, np.asarray(ridge), **given_, elements=glm._MAX_PREDICTORS)
    if chunks > 1:
        elements = data.y.size * n_models // chunks
        data = chunk(rows, design, np.asarray(ridge), **given_, elements=elements)
    return layout, rows, design, data


@partial(jax.jit, static_argnums=0)
def converge(link, data, coef, w):
    """Coefficients, losses of the rows, and the penalised cost."""
    coef, cost = glm.converge_models(link, BlockSums((data,), w), coef)
    return Converged(coef, glm.row_losses(link, data, coef), cost)


@partial(jax.jit, static_argnums=0)
def update_once(link, data, coordination, rows, state, w, beta):
    update = glm.model_update(link, coordination)
    state, log_r = update.em_step((data,), state, w, beta)
    new = normalise_masses(log_r, rows.mass)
    value = partial(update.evaluate_objective, (data,), state, beta=beta)
    return state, new, value(w), value(new)


def start_of(data, k):
    return np.zeros((data.y.shape[0], k, data.y.shape[2], data.design.shape[1]))


def soft(layout, k, seed=0):
    rng = np.random.default_rng(seed)
    return layout.to_blocks(rng.dirichlet(np.ones(k), N))[:, :, None]


@pytest.mark.parametrize("link", FAMILIES)
def test_weighted_fits_are_those_of_scikit_learn(link):
    """Each cluster's models are ridge regressions with its memberships as weights of the rows."""
    ridge = 0.5
    layout, rows, design, data = data_of(link, ridge=ridge)
    w = soft(layout, K).reshape(-1, K)
    state = jax.device_get(converge(link, data, start_of(data, K), w))
    real = np.asarray(rows.mass).reshape(-1) > 0
    a, y, w = np.asarray(data.design)[real, 1:], np.asarray(data.y)[0][real], np.asarray(w)[real]
    for c in range(K):
        for j in range(small.M):
            weight, target = w[:, c], y[:, j]
            if link == "gaussian":
                model = Ridge(alpha=ridge).fit(a, target, weight)
            elif link == "multinomial":
                alpha = ridge / weight.sum()
                model = PoissonRegressor(alpha=alpha, solver="newton-cholesky", tol=1e-10)
                model.fit(a, target, weight)
            else:
                # A value in [0, 1] equals a one of this weight and a zero of the rest.
                both = np.concatenate([weight * target, weight * (1 - target)])
                model = LogisticRegression(C=1 / ridge, tol=1e-10, max_iter=1000)
                model.fit(np.concatenate([a, a]), np.arange(2 * len(a)) < len(a), both)
            exact = np.r_[np.ravel(model.intercept_), np.ravel(model.coef_)]
            # Ours has a tiny ridge on the intercept.
            np.testing.assert_allclose(state.coef[0, c, j], exact, atol=1e-3)


@pytest.mark.parametrize("link", FAMILIES)
def test_losses_are_the_derivative_of_the_cost(link):
    """At the optimal coefficients, the penalised cost changes only through the losses."""
    layout, _, _, data = data_of(link)
    w = soft(layout, K).reshape(-1, K)

    def cost(w, coef):
        state = jax.device_get(converge(link, data, coef, w))
        np.testing.assert_allclose(
            (w * state.losses).sum(0) + 0.5 * (data.penalty * state.coef**2).sum((0, 2, 3)),
            state.cost,
        )
        return state.cost, state

    _, state = cost(w, start_of(data, K))
    rng = np.random.default_rng(1)
    for _ in range(3):
        change = rng.normal(size=w.shape) * w
        step = 1e-4
        up, down = (cost(w + sign * step * change, state.coef)[0] for sign in (1, -1))
        exact = (change * state.losses).sum(0)
        np.testing.assert_allclose((up - down) / (2 * step), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("link", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), heat=st.floats(0.05, 20.0), weight=st.sampled_from([0.0, 0.7]))
def test_free_energy_never_rises_within_a_temperature(link, seed, heat, weight):
    with jax.enable_x64(True):
        layout, rows, _, data = data_of(link, seed)
        term = small.feature_term(rows, link, by_group=False)
        term = replace(term, weight=np.asarray(weight))
        w = soft(layout, K, seed) * np.asarray(rows.mass)[..., None, None]
        state, beta = start_of(data, K), np.full(1, heat)
        state = converge(link, data, state, w.reshape(-1, K)).coef
        trace = []
        for _ in range(15):
            state, w, fitted, moved = update_once(link, data, term, rows, state, w, beta)
            trace += [*np.asarray(fitted), *np.asarray(moved)]
        assert np.isfinite(trace).all()
        assert np.diff(trace).max() <= 1e-10 * abs(trace[0])


@pytest.mark.parametrize("link", FAMILIES)
def test_a_step_lowers_the_cost_from_anywhere(link):
    """Also from coefficients at which a full Newton step overshoots."""
    layout, _, _, data = data_of(link)
    w = soft(layout, K).reshape(-1, K)
    step = jax.jit(lambda data, coef, w: glm.fit_models(link, BlockSums((data,), w), coef)[0])

    @jax.jit
    def costs(coef):
        eta = jnp.einsum("nd,ckjd->cnkj", data.design, coef)
        losses = glm.link_potential(link, eta)[0] - data.y[:, :, None] * eta
        penalty = 0.5 * (data.penalty * coef**2).sum(-1)
        return jnp.einsum("nk,cnkj->ckj", w, losses) + penalty

    for scale in (1.0, 5.0, 20.0):
        rng = np.random.default_rng(int(scale))
        start = start_of(data, K)
        coef = scale * rng.normal(size=start.shape)
        values = []
        for _ in range(60):
            values.append(np.asarray(costs(coef))[0][:, :-1])
            coef = step(data, coef, w)
        values = np.array(values)[:, :, : small.M]
        assert (np.diff(values, axis=0) <= 1e-9 * (1 + abs(values[1:]))).all()
        if scale > 5:  # where the exponential overflows, only descent is certain
            continue
        best, coef = np.asarray(converge(link, data, start, w).coef), np.asarray(coef)
        np.testing.assert_allclose(coef[:, :, : small.M], best[:, :, : small.M], atol=1e-4)


@pytest.mark.parametrize("link", FAMILIES)
def test_chunks_of_features_change_nothing(link):
    layout, _, _, data = data_of(link)
    w = soft(layout, K).reshape(-1, K)
    whole = converge(link, data, start_of(data, K), w)
    parts = data_of(link, chunks=3)[3]
    assert parts.y.shape[0] >= 3 and data.y.shape[0] == 1
    cut = converge(link, parts, start_of(parts, K), w)
    np.testing.assert_allclose(cut.losses, whole.losses, atol=1e-7)
    np.testing.assert_allclose(cut.cost, whole.cost, atol=1e-7)


@pytest.mark.parametrize("link", first_fast(FAMILIES))
def test_blocks_of_rows_change_nothing(link):
    """One step from blocks of rows, by their contributions to the sums, equals one from all
    rows."""
    layout, rows, _, data = data_of(link)
    term = small.feature_term(rows, link, by_group=False)
    w = soft(layout, K) * np.asarray(rows.mass)[..., None, None]
    half, n = len(rows.mass) // 2, rows.mass[: len(rows.mass) // 2].size
    parts = [
        data._replace(
            y=data.y[:, at], design=data.design[at], base=data.base[at], rows=small.blocks(rows, of)
        )
        for at, of in ((slice(n), slice(half)), (slice(n, None), slice(half, None)))
    ]
    update, state = glm.model_update(link, term), start_of(data, K)

    @jax.jit
    def after(blocks, state, w):
        for _ in range(2):
            state, log_r = update.em_step(blocks, state, w, np.ones(1))
            w = normalise_masses(log_r, rows.mass)
        return state, w, update.evaluate_objective(blocks, state, w, np.ones(1))

    for one, two in zip(after((data,), state, w), after(tuple(parts), state, w), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("link", first_fast(FAMILIES))
def test_first_split_is_the_largest_eigenvalue(link):
    """The power iteration agrees with the effect of the update on identical clusters."""
    layout, rows, _, data = data_of(link)
    term = small.feature_term(rows, link, by_group=False)
    given_ = jax.device_put(np.asarray(0.4))
    count = np.asarray(2.0)
    weigh = ccib.weight_rule("marginal", False, given_)
    problem = glm.GLMProblem(link, data.design, 0.0, term, rows, weigh, count)
    mass = np.asarray(rows.mass).reshape(-1)
    coef = jax.jit(glm.null_model, static_argnums=0)(link, data, mass / count)
    weights, critical = jax.jit(
        lambda coef: glm.leading_curvatures(link, data, problem, coef, rows.mass, count)
    )(coef)
    np.testing.assert_allclose(weights, [1, 0.4])
    pair = np.concatenate([coef, coef], 1)
    weighed = replace(term, weight=given_)

    def score(e):  # for a change of log r in the first of two clusters
        w = mass[:, None] * jnp.stack([0.5 + 0.5 * e, 0.5 + 0 * e], 1)
        fitted = glm.converge_models(link, BlockSums((data,), w), pair)[0]
        w = w.reshape(*rows.mass.shape, 1, 2)
        return (
            glm.row_losses(link, data, fitted)[:, 0]
            + terms.membership_gradient((weighed,), rows, w)[..., 0, 0].reshape(-1) * 2
        )

    # The coordination's score is centred over the two clusters, so each shows half a change.
    columns = np.flatnonzero(np.asarray(mass))
    step = 1e-4
    difference = jax.jit(lambda e: (score(step * e) - score(-step * e)) / (-2 * step))
    b = np.stack([difference(e) for e in np.eye(mass.size)[columns]])[:, columns].T
    largest = np.linalg.eigvals(b).real.max()
    assert float(critical) == pytest.approx(1 / largest, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "coordination"),
    [("gaussian", "residual"), ("bernoulli", "residual"), ("multinomial", "marginal")],
)
def test_saturated_models_are_known_groups(link, coordination):
    """One labeling, all its indicators and a tiny ridge: the cost of cells by known group."""
    X, z, _ = planted(link, 5, strength=1.5)
    z = np.digitize(z[:, 0], [-0.5, 0.5])
    model = Model(2, coordination=coordination)
    groups = clone(model).fit(X, known=z)
    models = clone(model).set_params(multi="additive", ridge=1e-9).fit(X, known=z)
    assert models.critical_beta_ == pytest.approx(groups.critical_beta_, rel=1e-5)
    # The weight is a ratio of eigenvalues, by power iterations from different vectors.
    assert models.coordination_weight_ == pytest.approx(groups.coordination_weight_, rel=1e-5)
    assert models.objective_ == pytest.approx(groups.objective_, rel=1e-6)
    assert matched_accuracy(models.labels_, groups.labels_) == 1
    assert models.score(X, known=z) == pytest.approx(-models.objective_ / len(X), rel=1e-5)
    assert (models.predict(X, known=z) == models.labels_).mean() > 0.97


@pytest.mark.parametrize(
    ("link", "bar"),
    [
        *slowly(("gaussian", 0.95)),
        pytest.param("bernoulli", 0.9, marks=pytest.mark.slow),
        pytest.param("multinomial", 0.95, marks=pytest.mark.slow),
    ],
)
def test_planted_clusters_are_found_beyond_continuous_structure(link, bar):
    X, z, c = planted(link)
    model = Model(2).fit(X, known=z)
    assert matched_accuracy(model.labels_, c) >= bar
    assert model.converged_ and model.n_clusters_ == 2 and model.membership_.shape == (80, 2)
    assert model.objective_ == pytest.approx(model.restarts_.objective.values.min())
    assert np.isfinite(model.objective_trace_).all()
    assert model.objective_trace_[-1] == pytest.approx(model.objective_)
    assert (model.predict(X, known=z) == model.labels_).mean() > 0.97
    proba = model.predict_proba(X, known=z)
    np.testing.assert_allclose(proba.sum(1), 1)
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict(X, known=z) == model.predict(X, known=z)).all()
    assert (clone(model).fit(X, known=z).labels_ == model.labels_).all()
    # Units and order of the columns do not matter, nor do duplicate columns.
    other = Model(2).fit(X, known=1e3 * z[:, ::-1] - 7)
    assert other.objective_ == pytest.approx(model.objective_, rel=1e-6)
    if link == "bernoulli":
        twice = Model(2).fit(X, known=z[:, [0, 1, 1]])
        assert matched_accuracy(twice.labels_, model.labels_) > 0.97
    narrow = Model(2).fit(X.astype(np.float32), known=z)
    assert matched_accuracy(narrow.labels_, model.labels_) > 0.97
    assert narrow.objective_ == pytest.approx(model.objective_, rel=1e-3)


@pytest.mark.slow
def test_additive_labelings():
    X, labels = make_binary_partitions(260, (8, 8, 4), random_state=1)
    known = labels[:, :2]
    # The effects are additive, so a combination that did not occur has a prediction.
    rows = ~((known[:, 0] == 0) & (known[:, 1] == 0))
    model = Model(2, multi="additive").fit(X[rows], known=known[rows])
    assert matched_accuracy(model.labels_, labels[rows, 2]) > 0.92
    assert (model.predict(X[rows], known=known[rows]) == model.labels_).mean() > 0.97
    assert matched_accuracy(model.predict(X[~rows], known=known[~rows]), labels[~rows, 2]) > 0.85
    text = pd.DataFrame({"a": np.array(["u", "v"])[known[:, 0]], "b": known[:, 1]})[rows]
    named = Model(2, multi="additive").fit(X[rows], known=text)
    assert named.objective_ == model.objective_ and (named.labels_ == model.labels_).all()
    with pytest.raises(ValueError, match="label 5 at row 0, which did not occur in fit"):
        model.predict(X[:1], known=[[5, 0]])
    # A refit without known structure deletes the models.
    assert model.fit(X[rows]).predict(X).shape == (260,)


@pytest.mark.slow
@pytest.mark.contract
def test_wanted_labels_stay():
    X, z, c = planted("bernoulli", n=80)
    y = np.full(80, -1)
    y[:10] = c[:10]
    model = Model(2).fit(X, y, known=z)
    assert (model.labels_[:10] == c[:10]).all()
    assert (model.labels_ == c).mean() >= 0.9


@pytest.mark.slow
def test_numbers_of_clusters():
    X, z, _ = planted("bernoulli")
    one = Model(1).fit(X, known=z)
    assert (one.labels_ == 0).all() and one.membership_.shape == (80, 1)
    assert one.predict(X, known=z).tolist() == [0] * 80
    five = Model(5).fit(X, known=z)
    assert five.membership_.shape == (80, 5) and set(five.labels_) <= set(range(5))
    assert five.objective_ < one.objective_
    np.testing.assert_allclose(five.membership_.sum(1), 1)


@pytest.mark.slow
@pytest.mark.contract
def test_marginal_and_uncoordinated():
    X, z, c = planted("gaussian", strength=2.0)
    model = Model(2, coordination="marginal", coordination_weight=0.3)
    assert matched_accuracy(model.fit(X, known=z).labels_, c) > 0.9
    assert (model.predict(X, known=z) == model.labels_).mean() > 0.97
    assert model.coordination_weight_ == 0.3
    with pytest.warns(UserWarning, match="common meaning"):
        Model(2, coordination_weight=0).fit(X, known=z)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_one_program_serves_a_sweep_and_a_batch():
    X, z, _ = planted("bernoulli")
    Model(2, max_iter=1).fit(X, known=z)  # the compiled program does not depend on it
    before = solve.solve_anneal._cache_size()
    for ridge in (0.01, 1):
        for weight in (0.5, 1.0):
            model = Model(2, ridge=ridge, coordination_weight=weight, max_iter=1, random_state=1)
            model.fit(X[:78], known=z[:78])
    assert solve.solve_anneal._cache_size() <= before + 1  # a given weight may have another program
    models = [Model(2, ridge=r, random_state=2) for r in (0.01, 1.0)]
    tasks = [m.prepare(X, None, z) for m in models]
    calls = [call for task in tasks for call in task.calls]
    assert len({call.signature for call in calls}) == 1
    assert all(isinstance(call, solve.SolverCall) for call in calls)
    result = {id(call): solution for call, solution, _ in Batcher(jax.devices()[:1])(calls)}
    for model, task in zip(models, tasks, strict=True):
        model.finish(task, [result[id(call)] for call in task.calls])
        alone = clone(model).fit(X, known=z)
        assert model.objective_ == pytest.approx(alone.objective_, rel=1e-8)
        assert (model.labels_ == alone.labels_).all()
        assert (model.predict(X, known=z) == alone.predict(X, known=z)).all()


@pytest.mark.slow
@pytest.mark.contract
def test_bad_input_is_refused():
    X, z, c = planted("bernoulli")
    holes = z.copy()
    holes[3, 1] = np.nan
    model, fitted = Model(2), Model(2).fit(X, known=z)
    cases = [
        (lambda: Model(2, solver="sequential").fit(X, known=z), "need solver='anneal'; got"),
        (
            lambda: Model(2, multi="additive", solver="batched").fit(X, known=c),
            "need solver='anneal'",
        ),
        (lambda: model.fit(sparse.csr_array(X), known=z), "need dense X"),
        (lambda: fitted.predict(sparse.csr_array(X), known=z), "need dense X"),
        (lambda: model.fit(X, known=holes), "found nan at row 3, column 1"),
        (lambda: model.fit(X, known=z[:-1]), "pass one label per row"),
        (lambda: model.fit(X, known=np.ones((80, 2))), "only constant columns"),
        (lambda: model.fit(X[:20], known=np.random.default_rng(0).random((20, 10))), "too many"),
        (lambda: Model(2, ridge=0).fit(X, known=z), "ridge must be at least 1e-09"),
        (lambda: Model(2, multi="sum").fit(X, known=z), "multi must be one of"),
        (lambda: fitted.predict(X), "known is required to predict"),
        (lambda: fitted.predict(X, known=z[:, :1]), "1 columns; the fit had 2"),
        (lambda: fitted.predict(X, known=c), "must be continuous"),
        (lambda: fitted.predict(X, known=z[:5]), "5 labels for 80"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with sharded(), pytest.raises(ValueError, match="cannot shard rows"):
        model.fit(X, known=z)
    with pytest.warns(UserWarning, match=r"constant columns.*\[1\]"):
        dropped = model.fit(X, known=np.c_[z[:, 0], np.ones(80), z[:, 1]])
    assert dropped.objective_ == pytest.approx(fitted.objective_)
    again = dropped.predict(X, known=np.c_[z[:, 0], np.zeros(80), z[:, 1]])
    assert (again == fitted.labels_).any()
    with pytest.warns(DegenerateClusterWarning, match="known structure is accounted for"):
        flat = Model(2, features="gaussian").fit(np.full((80, 12), 0.3), known=z)
    assert np.isfinite(flat.objective_) and np.isfinite(flat.membership_).all()


@pytest.mark.slow
@pytest.mark.contract
def test_hard_cases_have_no_nan():
    """Separable clusters, constant and empty columns, structure that explains everything."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(80, 2))
    X = np.c_[z > 0, np.zeros(80), np.ones(80), rng.integers(2, size=(80, 8))] * 1.0
    for dtype in (np.float64, np.float32):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = Model(2).fit(X.astype(dtype), known=z)
        assert np.isfinite(model.membership_).all() and np.isfinite(model.objective_)
        assert np.isfinite(model.predict_proba(X.astype(dtype), known=z)).all()


@pytest.mark.slow
def test_product_and_additive_on_table_9_1():
    """Gondek (2005), table 9.1: 0.93 and 0.73 are printed there; Bayes' rule has 0.972."""
    for multi in ("product", "additive"):
        result = []
        for seed in range(1, 9):
            X, labels = make_binary_partitions(200, (8, 8, 4), 2, random_state=seed)
            model = CCIB(2, multi=multi, n_init=4, random_state=0).fit(X, known=labels[:, :2])
            result.append(matched_accuracy(model.labels_, labels[:, 2]))
        error = np.std(result, ddof=1) / len(result) ** 0.5
        assert np.mean(result) >= 0.96 - 2 * error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "bar"), [("gaussian", 0.95), ("bernoulli", 0.9), ("multinomial", 0.9)]
)
def test_recovery_beyond_continuous_structure(link, bar):
    result = []
    for seed in range(1, 11):
        X, z, c = planted(link, seed)
        model = CCIB(2, n_init=4, random_state=0).fit(X, known=z)
        result.append(matched_accuracy(model.labels_, c))
    assert np.mean(result) >= bar
