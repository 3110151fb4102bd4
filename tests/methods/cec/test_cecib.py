"""Cross-entropy clustering: comparison with its definition, one row at a time."""

import warnings

import cec_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partitions import all_partitions
from slowly import slowly

from nrprob import CECIB
from nrprob.engines.optimise import differences
from nrprob.engines.optimise.differences import label_cells
from nrprob.methods.cec.solver import Objective
from nrprob.settings import standard
from nrprob.statistics.terms import objective

N, D, K = 60, 3, 3
FIXED = np.array([[1.0, 0.3, 0.0], [0.3, 2.0, 0.1], [0.0, 0.1, 0.5]])
KINDS = ("full", "diag", "spherical", "fixed")
PARAMETERS = {"full": D + D * (D + 1) // 2, "diag": 2 * D, "spherical": D + 1, "fixed": D}
pytestmark = pytest.mark.contract  # compilation takes longer than computation
ONE_FAST = ["full", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]


def planted(seed=0, n=N):
    """Rows of three elongated clusters in different units, and some labels, a few wrong."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % K
    X = rng.normal(size=(n, D)) @ np.triu(rng.normal(size=(D, D)) + 2 * np.eye(D))
    X = (X + 7 * np.eye(K)[truth]) * [1, 10, 0.1] + [5, 0, -3]
    y = np.where(rng.random(n) < 0.4, truth % 2, -1)
    y[:3] = 1 - y[:3]
    return X, truth, np.maximum(y, -1)


def made(covariance, **parameters):
    fixed = {"fixed_covariance": FIXED} if covariance == "fixed" else {}
    return CECIB(
        K, covariance=covariance, **{"n_init": 3, "random_state": 0, **fixed, **parameters}
    )


def test_a_cluster_needs_as_many_rows_as_its_covariance():
    X, _, _ = planted()
    for covariance, needed in zip(KINDS, (D + 1, 2, 2, 1), strict=True):
        task = made(covariance, min_cluster_fraction=0).prepare(X, None)
        assert task.settings.method.smallest == needed


@pytest.mark.parametrize("covariance", KINDS)
def test_incremental_costs_are_those_from_scratch(covariance):
    """Move ten thousand weighted rows, one after another, to random clusters."""
    X, truth, y = planted()
    weights = np.random.default_rng(1).integers(1, 4, N)
    with standard():
        model = made(covariance)
        task = model.prepare(X, y, sample_weight=weights.astype(float))
        build = Objective(covariance, True)
        numbers = task.settings.method
        rows = task.rows
        rng = np.random.default_rng(0)
        visits = rng.integers(N, size=10_000), rng.integers(K, size=10_000)
        start = task.layout.to_blocks(truth.astype(np.int32))

        @jax.jit
        def walk(rows, numbers, start, visits):
            terms = build.terms(rows, numbers)
            x, mass = rows.x.x.reshape(-1, rows.x.x.shape[-1]), rows.mass.reshape(-1)
            cells = label_cells(rows, start, K)

            def step(carry, visit):
                states, labels, change = carry
                i, new = visit
                i = jnp.asarray(task.layout.slot)[i]
                old = labels[i]
                join, leave = differences.move_changes(
                    terms, states, x[i][None], mass[i][None], old[None]
                )
                ok = (new != old) & (states[0].mass[old] > 8)
                new = jnp.where(ok, new, old)
                moved = tuple(
                    jax.tree.map(
                        lambda a, b: jnp.where(ok, a, b),
                        t.cost.apply_move(s, x[i], mass[i], old, new),
                        s,
                    )
                    for t, s in zip(terms, states, strict=True)
                )
                change = change + jnp.where(ok, join[0, new] + leave[0], 0)
                return (moved, labels.at[i].set(new.astype(labels.dtype)), change), None

            first = differences.track_cells(terms, cells), start.reshape(-1), jnp.zeros(())
            (states, labels, change), _ = jax.lax.scan(step, first, visits)
            after = label_cells(rows, labels.reshape(start.shape), K)
            both = objective(terms, cells)[0], objective(terms, after)[0]
            return labels, both, change, states, differences.track_cells(terms, after)

        labels, (before, after), change, states, fresh = walk(rows, numbers, start, visits)
    labels = task.layout.from_blocks(np.asarray(labels).reshape(start.shape))
    assert (labels != truth).mean() > 0.5
    before, after = float(before), float(after)
    assert after - before == pytest.approx(float(change), rel=1e-8)
    for a, b in zip(jax.tree.leaves(states), jax.tree.leaves(fresh), strict=True):
        if covariance != "fixed":  # whose trace is not used
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
    given = {"covariance": covariance, "reg": 1e-3, "fixed": FIXED}
    repeated = (np.repeat(values, weights, axis=0) for values in (X, labels, y))
    expected = reference.terms(*repeated, **given).sum()
    n = weights.sum()
    charge = 0.5 * (K * (1 + PARAMETERS[covariance]) - 1) * np.log(n)
    assert after == pytest.approx(expected + charge, rel=1e-9)


@pytest.mark.parametrize("covariance", ONE_FAST)
@pytest.mark.parametrize("preset", [None, *slowly("published")])
def test_no_single_row_would_lower_the_objective(covariance, preset):
    X, _, y = planted(1)
    penalty = "code" if preset is not None else None
    model = made(covariance, preset=preset, penalty=penalty, beta=0.7).fit(X, y)
    reg = 0 if preset is not None else 1e-3
    given = {"covariance": covariance, "reg": reg, "fixed": FIXED, "y": y, "beta": 0.7}
    result = reference.terms(X, model.labels_, **given)
    assert list(model.cost_terms_) == ["model", "entropy", "labels"]
    np.testing.assert_allclose(list(model.cost_terms_.values()), result, rtol=1e-9, atol=1e-9)
    assert model.objective_ == pytest.approx(result.sum(), rel=1e-12)
    assert reference.improvements(X, model.labels_, **given).min() > -1e-9 * N
    trace, clusters = model.objective_trace_, model.n_clusters_trace_
    rises = np.diff(trace) > 1e-9 * N
    assert not rises.any() or preset is not None
    assert not (rises & (np.diff(clusters) == 0)).any()


@pytest.mark.slow
def test_clusters_are_empty_or_large_enough():
    X, truth, _ = planted(2)
    start = truth.copy()
    start[:4] = 3  # a covariance of three columns needs four rows, and 5 % of 60 are three
    for preset in (None, "published"):
        small, large = (
            CECIB(5, init=start, min_cluster_fraction=f, n_init=1, preset=preset).fit(X)
            for f in (0.05, 0.1)
        )
        assert np.bincount(small.labels_).min() >= 4 and np.bincount(large.labels_).min() >= 6
        assert (large.labels_[4:] == large.predict(X)[4:]).all()
        if preset is not None:
            assert small.n_clusters_trace_[0] == 4 and large.n_clusters_trace_[0] == 3
    with pytest.raises(ValueError, match="cannot hold so many clusters of that size"):
        CECIB(5, min_cluster_fraction=0.21).fit(X)


@pytest.mark.slow
def test_the_published_algorithm_deletes_a_cluster_that_the_search_restores():
    """Three rows differ in a column: a cluster that takes them in loses its other rows."""
    X, truth, _ = planted(2)
    X[:, 2], X[:3, 2] = 0, [0.9, 1.0, 1.1]
    few = {"init": np.where(np.arange(N) < 6, 3, truth), "min_cluster_fraction": 0.1, "n_init": 1}
    search = CECIB(5, reg=1e-9, penalty=None, **few).fit(X)
    published = CECIB(5, preset="published", reg=1e-9, **few).fit(X)
    assert search.n_clusters_ > published.n_clusters_ == 1
    assert (search.labels_[:3] == search.labels_[0]).all()
    assert search.objective_ < published.objective_ - 100
    rises = np.diff(published.objective_trace_) > 1e-9 * N
    assert rises.any() and (np.diff(published.n_clusters_trace_)[rises] < 0).all()


def smallest_objective(X, y, covariance, reg, floor, k):
    """Smallest published objective over all partitions with clusters of ``floor`` rows or more."""
    n = len(X)
    cost = np.full(1 << n, np.inf)  # of every subset of the rows
    cost[0] = 0
    for subset in range(1, 1 << n):
        rows = np.flatnonzero(subset >> np.arange(n) & 1)
        if len(rows) >= floor:
            labels = None if y is None else y[rows]
            ridge = reg * X.var(0)
            cost[subset] = reference.model_cost(X[rows], covariance, ridge)
            cost[subset] -= len(rows) * np.log(len(rows) / n)
            cost[subset] += 0 if y is None else len(rows) * reference.label_entropy(labels)
    every = all_partitions(n)
    every = every[every.max(1) < k]
    members = (every[:, None] == np.arange(k)[:, None]) @ (1 << np.arange(n))
    return cost[members].sum(1).min()


@pytest.mark.slow
@pytest.mark.parametrize("covariance", KINDS[:3])
def test_one_start_finds_the_best_partition_of_few_rows(covariance):
    reg, floor = (0.1, 3) if covariance == "full" else (1e-3, 2)
    for seed in range(200, 216):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(9, 2))
        y = np.where(rng.random(9) < 0.5, rng.integers(2, size=9), -1) if seed % 2 else None
        model = CECIB(
            4, covariance=covariance, reg=reg, penalty=None, min_cluster_fraction=0, n_init=1,
        ).fit(X, y)  # fmt: skip
        expected = smallest_objective(X, y, covariance, reg, floor, 4)
        assert model.objective_ == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_labels_keep_apart_what_the_features_would_merge():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 1)), np.full(400, -1)
    sign = (X[:, 0] > 0).astype(int)
    y[:200] = sign[:200]
    merged, cut = (
        CECIB(2, beta=beta, penalty=None, min_cluster_fraction=0.2, random_state=0).fit(X, y)
        for beta in (0, 1.0)
    )
    assert (cut.label_counts_ > 0).sum() == 2 and cut.cost_terms_["labels"] < 1e-9
    assert reference.terms(X, sign, y, 1.0).sum() >= cut.objective_ - 0.4
    assert merged.objective_ <= cut.cost_terms_["model"] + cut.cost_terms_["entropy"]
    assert cut.classes_.tolist() == [0, 1] and cut.label_counts_.sum() == 200


@pytest.mark.slow
@pytest.mark.contract
def test_units_order_and_names_change_nothing():
    X, _, y = planted(4)
    plain = made("full", beta=0.5, n_init=1, init=np.arange(N) % 3).fit(X, y)
    scaled = X * [1e3, 1e-3, -1.0] + 9
    order = np.random.default_rng(0).permutation(N)
    names = np.array(["a", "b", "?"], object)[y]
    other = made("full", beta=0.5, n_init=1, init=(np.arange(N) % 3)[order])
    other.fit(scaled[order], np.where(y < 0, -1, names)[order])
    assert (other.labels_ == plain.labels_[order]).mean() > 0.95
    assert other.objective_ == pytest.approx(plain.objective_, abs=N)
    np.testing.assert_allclose(plain.predict_proba(X).sum(1), 1)
    assert plain.covariances_.shape == (plain.n_clusters_, D, D)
    free = made("full", n_init=1, init=np.arange(N) % 3)
    assert (free.fit(X, np.full(N, -1)).labels_ == clone_fit(free, X)).all()
    assert (free.set_params(beta=0.0).fit(X, y).labels_ == clone_fit(free, X)).all()


def clone_fit(model, X):
    from sklearn.base import clone

    return clone(model).fit(X).labels_


@pytest.mark.slow
def test_parameters_are_charged():
    X, truth, _ = planted(5, 240)
    few = {"n_clusters": 8, "random_state": 0, "min_cluster_fraction": 0.02}
    free, charged = CECIB(**few, penalty=None).fit(X), CECIB(**few).fit(X)
    right = CECIB(**few, init=truth).fit(X)
    assert charged.n_clusters_ == right.n_clusters_ == 3 and free.n_clusters_ == 8
    assert charged.objective_ <= right.objective_ + 1e-6
    cost = 0.5 * (3 * (PARAMETERS["full"] + 1) - 1) * np.log(240)
    plain = reference.terms(X, charged.labels_, reg=1e-3).sum()
    assert charged.objective_ == pytest.approx(plain + cost, rel=1e-9)


@pytest.mark.slow
def test_perturbations_of_the_best_partition_never_raise_the_objective():
    X, _, y = planted(6, 120)
    few = {"random_state": 0, "min_cluster_fraction": 0.03}
    five, many = (CECIB(8, n_init=n, **few).fit(X, y) for n in (5, 15))
    assert len(many.restarts_.objective) == 15
    assert many.objective_ <= five.objective_ + 1e-9 and (np.diff(many.objective_trace_) < 0).all()


@pytest.mark.slow
@pytest.mark.contract
def test_doubtful_input():
    X, _, y = planted()
    with pytest.warns(UserWarning, match="column 3 of X is constant; got 1 such"):
        wide = made("full").fit(np.c_[X, np.full(N, 5.0)], y)
    np.testing.assert_array_equal(wide.labels_, made("full").fit(X, y).labels_)
    assert (wide.means_[:, 3] == 5).all() and (wide.covariances_[:, 3] == 0).all()
    twice = np.repeat(X[:3], 20, 0)
    with pytest.raises(ValueError, match="initial clusters of every restart have singular"):
        made("full", reg=0).fit(twice)
    with pytest.warns(UserWarning, match="nearly a linear combination"):
        assert made("full").fit(twice).n_clusters_ == 3


@pytest.mark.slow
@pytest.mark.contract
def test_columns_that_others_explain_are_dropped():
    X, _, y = planted()
    rng = np.random.default_rng(2)
    residuals = 1e-4 * rng.normal(size=N)
    wide = np.c_[(X / X.std(0))[:, :2].sum(1) + residuals, X, X[:, 2]]
    with pytest.warns(UserWarning, match="column 0, 4 of X is nearly a linear combination of") as w:
        model = made("full").fit(wide, y)
    assert sum("linear combination" in str(warning.message) for warning in w) == 1
    plain = made("full").fit(X, y)
    np.testing.assert_array_equal(model.labels_, plain.labels_)
    np.testing.assert_allclose(model.means_[:, 1:4], plain.means_, rtol=1e-9)
    # Means and covariances of the dropped columns follow from the others.
    means = np.stack([wide[model.labels_ == c].mean(0) for c in range(model.n_clusters_)])
    np.testing.assert_allclose(model.means_, means, rtol=1e-3, atol=1e-3)
    assert (np.linalg.eigvalsh(model.covariances_) > -1e-9).all()
    np.testing.assert_allclose(model.covariances_[:, 4, 4], plain.covariances_[:, 2, 2], rtol=1e-6)
    # New rows: only the other columns determine the cluster.
    changed = wide + [50.0, 0, 0, 0, -7]
    np.testing.assert_array_equal(model.predict(changed), plain.predict(X))
    np.testing.assert_allclose(model.predict_proba(changed), plain.predict_proba(X), atol=1e-9)
    # Objective and score include the density of the dropped columns, given the others.
    difference = model.score(wide) - plain.score(X)
    assert plain.objective_ - model.objective_ == pytest.approx(N * difference, rel=1e-9)
    expected = -0.5 * (
        2 + 2 * np.log(2 * np.pi) + np.log([residuals.var(), 1e-12 * X[:, 2].var()]).sum()
    )
    assert difference == pytest.approx(expected, abs=0.6)


@pytest.mark.slow
@pytest.mark.contract
def test_rows_that_are_alike_and_wrong_input():
    X, truth, _ = planted()
    with pytest.raises(ValueError, match="needs more rows than columns without reg"):
        made("full", reg=0).fit(X[:3])
    with pytest.warns(UserWarning, match="all rows are alike"):
        assert made("full").fit(np.ones((N, D))).n_clusters_ == 1
    with pytest.raises(ValueError, match="go together"):
        CECIB(2, covariance="fixed").fit(X)
    with pytest.raises(ValueError, match="symmetric and positive definite"):
        CECIB(2, covariance="fixed", fixed_covariance=-np.eye(3)).fit(X)
    with pytest.raises(ValueError, match="must fit the 3 columns"):
        CECIB(2, covariance="fixed", fixed_covariance=[1.0, 2.0]).fit(X)
    with pytest.raises(ValueError, match="init must hold a label from 0 to 1"):
        CECIB(2, init=truth).fit(X)
    with pytest.raises(ValueError, match="penalty must be one of 'code' or None; got 'mdl'"):
        CECIB(2, penalty="mdl").fit(X)
    with pytest.raises(ValueError, match="init must be one of"):
        CECIB(2, init=X).fit(X)
    for kind, known in (("one", np.r_[1, np.full(N - 1, -1)]), ("all", np.zeros(N, int))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = made("full").fit(X, known)
        assert model.label_counts_.sum() == (1 if kind == "one" else N)
        assert model.cost_terms_["labels"] < 1e-9


@pytest.mark.parametrize("covariance", ONE_FAST)
def test_means_and_covariances_are_those_of_the_rows(covariance):
    X, _, _ = planted(7)
    model = made(covariance, reg=0.0, penalty=None).fit(X)
    for c in range(model.n_clusters_):
        rows = X[model.labels_ == c]
        np.testing.assert_allclose(model.means_[c], rows.mean(0))
        expected = {
            "full": np.cov(rows.T, bias=True),
            "diag": rows.var(0),
            "spherical": rows.var(0).mean(),
            "fixed": FIXED,
        }[covariance]
        result = model.covariances_ if covariance == "fixed" else model.covariances_[c]
        np.testing.assert_allclose(result, expected, rtol=1e-8)
    assert (model.predict(X) == model.labels_).all()
    assert -N * model.score(X) == pytest.approx(model.objective_, rel=1e-9)
