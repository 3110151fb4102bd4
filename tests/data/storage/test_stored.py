"""Fits of stored rows equal fits of rows in memory, wherever the blocks are."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from places import TESTS
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from slowly import first_fast

import nrprob
from nrprob import CCIB, IB, ConditionalMixture
from nrprob.data.labels import read_labels
from nrprob.data.storage import blocks
from nrprob.data.storage.blocks import LocalBlocks, WorkerBlocks
from nrprob.data.storage.stored import Chunk, survey_rows
from nrprob.engines.hash_rng import fold_in
from nrprob.engines.optimise import out_of_core
from nrprob.engines.optimise.anneal import (
    leading_curvatures,
    normalise_masses,
    random_log_memberships,
    term_update,
)
from nrprob.engines.optimise.out_of_core import MembershipParameters, Moments, SummedRows
from nrprob.engines.optimise.solve import make_settings
from nrprob.estimator import stored
from nrprob.estimator.stored import LayGroups
from nrprob.methods.bottleneck.ccib import ConditionalBottleneck, ConditionalParameters
from nrprob.methods.conditional import stored as stored_mixture
from nrprob.methods.conditional import stored_rows
from nrprob.methods.conditional.columns import Columns
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.gaussian_block import Effects
from nrprob.methods.conditional.joint import JointModel, Settings
from nrprob.methods.conditional.joint_fit import Choices, fit_table
from nrprob.methods.conditional.stored_rows import learn_columns
from nrprob.methods.conditional.streaming import Raw, lay_out_chunk
from nrprob.methods.conditional.table import lay_out_table, padded_size
from nrprob.methods.conditional.table_blocks import TableFormat, block_e_step, to_table_block
from nrprob.methods.conditional.table_data import TableData
from nrprob.settings import standard
from nrprob.statistics.families import FeatureMap
from nrprob.statistics.rows import make_layout, make_rows

K = 3
QUICK = {"n_init": 2, "cooling": 2.0, "random_state": 0}


def make(n=700, d=4, gap=3.0, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    known, sought = rng.integers(3, size=n), rng.integers(K, size=n)
    X = rng.normal(size=(n, d)) + 4 * rng.normal(size=(3, d))[known]
    return (X + gap * np.eye(K, d)[sought]).astype(dtype), known, sought


def laid_out(X, known, size=256):
    """Blocks of rows, and all of them combined."""
    lay = LayGroups(FeatureMap("gaussian", None, X.mean(0), 1.0), 3, False)
    codes = pd.factorize(known)[0].astype(np.int32)

    def chunks():
        for start in range(0, len(X), size):
            x, own = X[start : start + size], codes[start : start + size]
            pad = size - len(x)
            yield Chunk(
                np.pad(x, ((0, pad), (0, 0))), np.arange(size) < len(x),
                np.arange(start, start + size).astype(np.uint32), {"codes": np.pad(own, (0, pad))},
            )  # fmt: skip

    layout = make_layout(codes, 3)
    x = lay.features(X)
    return [lay(chunk) for chunk in chunks()], make_rows(x, layout, 3), layout


def problem(rows, dtype):
    build = ConditionalBottleneck("gaussian", "residual", True)
    settings = make_settings(
        dtype, n_clusters=K, max_iter=5, method=ConditionalParameters(1.0), beta=np.inf
    )
    return build(rows, settings), settings


@pytest.mark.smoke
def test_passes_give_the_cells_of_rows_in_memory():
    # Five passes from given initial values, at one temperature, by the update of rows in memory.
    X, known, _ = make()
    with standard():
        parts, rows, _ = laid_out(X, known)
        here = LocalBlocks.from_blocks(parts, 1 << 30, None)
        sums = out_of_core.sum_moments(here)
        np.testing.assert_allclose(sums.totals, rows.totals(), rtol=1e-5, atol=1e-3)
        terms, weights, critical = out_of_core.weight_terms(
            problem(SummedRows(sums), X.dtype)[0], sums
        )
        beta = np.full(2, 2 * critical)
        update, active = term_update(terms, 1.0), jnp.ones(K, bool)
        w = normalise_masses(
            random_log_memberships(fold_in(7, 1), rows, 2, K, 0.1), rows.mass, None, active
        )
        noise = out_of_core.Perturbation(np.uint32(0), np.zeros(2, np.float32))
        scale = np.full(2, 0.1, np.float32)
        seen = here.map_sum(
            out_of_core._summarise_block, None, np.asarray(active), fold_in(7, 1), scale, noise
        )
        result = seen.cells
        for _ in range(5):
            np.testing.assert_allclose(result, rows.cells(w), rtol=1e-4, atol=1e-3)
            _, log_r = update.em_step((rows,), None, w, jnp.asarray(beta, jnp.float32))
            w = normalise_masses(log_r, rows.mass, None, active)
            slopes, prior = out_of_core._m_step(terms, jnp.asarray(result), active, 1.0)
            state = MembershipParameters(
                *(np.asarray(a, np.float32) for a in (slopes, prior, beta))
            )
            result = here.map_sum(out_of_core._cells_of_block, state, np.asarray(active))
        size = np.abs(result).max()
        assert np.abs(result - np.asarray(rows.cells(w))).max() <= 1e-5 * size


def test_first_split_and_weights_are_those_of_a_dense_eigenproblem():
    X, known, _ = make(dtype=np.float64)
    with standard():
        parts, rows, _ = laid_out(X, known)
        sums = out_of_core.sum_moments(LocalBlocks.from_blocks(parts, 1 << 30, None))
        own, _ = problem(SummedRows(sums), X.dtype)
        terms, weights, critical = out_of_core.weight_terms(own, sums)
        one, two, largest = leading_curvatures(own.terms, rows, own.weigh, max_iter=20000)
        np.testing.assert_allclose(weights, two, rtol=1e-3)
        assert critical == pytest.approx(1 / float(largest), rel=1e-3)


def test_what_does_not_fit_goes_to_a_file_and_comes_back():
    rng = np.random.default_rng(0)
    given = [{"a": rng.normal(size=(5, 2)), "b": np.arange(i, i + 3)} for i in range(9)]
    for memory in (0, 300, 1 << 20):
        here = LocalBlocks.from_blocks(given, memory, None)
        assert (here.file is None) == (memory == 1 << 20)
        for one, other in zip(here.map_blocks(_same), given, strict=True):
            jax.tree.map(np.testing.assert_array_equal, one, other)
        total = here.map_sum(_same)
        np.testing.assert_allclose(total["a"], sum(g["a"] for g in given))
        assert (total["b"] == sum(g["b"] for g in given)).all()
        twice = here.transform_blocks(partial(_times, factor=2)).map_sum(_same)
        np.testing.assert_allclose(twice["a"], 2 * total["a"])


def _same(block):
    return block


def _times(block, factor):
    return jax.tree.map(lambda a: factor * a, block)


def check_alike(one, other, known=None, objective=0.01):
    assert adjusted_rand_score(one.labels_, other.labels_) > 0.99
    assert one.objective_ == pytest.approx(other.objective_, rel=objective)
    assert one.converged_ and one.labels_.shape == other.labels_.shape


@pytest.mark.parametrize(
    "model",
    first_fast([CCIB(K, **QUICK), IB(K, beta=3.0, **QUICK), ConditionalMixture(K, n_init=2)]),
)
def test_new_rows_may_be_stored(tmp_path, model):
    X, known, _ = make()
    X, known = X[:400], known[:400]
    table = pd.DataFrame(X, columns=[*"abcd"]).assign(batch=known)
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=90)
    rows = nrprob.stored(tmp_path / "rows.parquet", columns=[*"abcd"])
    frame, own = table[[*"abcd"]], {} if isinstance(model, IB) else {"known": known}
    model = clone(model).set_params(random_state=0).fit(frame, **own)
    for told in [{"known": "batch"}, own] if own else [own]:
        proba = model.predict_proba(rows, **told)
        np.testing.assert_allclose(proba, model.predict_proba(frame, **own))
        assert model.score(rows, **told) == pytest.approx(model.score(frame, **own))


@pytest.mark.slow
@pytest.mark.contract
def test_ccib_finds_what_it_finds_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "_ROWS", 256)
    monkeypatch.setattr(stored, "_LEAST", 256)
    X, known, sought = make()
    names = np.array(["u", "v", "w"])[known]
    y = np.where(np.arange(len(X)) < 60, sought, -1)
    table = pd.DataFrame(X, columns=[*"abcd"]).assign(batch=names, wanted=y)
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=300)
    here = partial(nrprob.stored, tmp_path / "rows.parquet", columns=[*"abcd"])
    whole = CCIB(K, **QUICK).fit(X, known=names)
    model = CCIB(K, **QUICK).fit(here(), known="batch")
    check_alike(model, whole)
    assert not hasattr(model, "membership_") and "labels" not in model.restarts_
    assert model.coordination_weight_ == pytest.approx(whole.coordination_weight_, rel=0.02)
    assert model.n_features_in_ == 4 and [*model.feature_names_in_] == [*"abcd"]
    by_name = model.cluster_centers_[np.argsort(model.cluster_centers_[:, 0])]
    expected = whole.cluster_centers_[np.argsort(whole.cluster_centers_[:, 0])]
    np.testing.assert_allclose(by_name, expected, atol=0.05)
    assert (model.predict(table[[*"abcd"]], known=names) == model.labels_).all()
    assert (model.predict(here(), known="batch") == model.labels_).all()
    assert (model.predict(here()) == model.labels_).all()
    assert (model.predict(table[[*"abcd", "batch"]]) == model.labels_).all()
    # Blocks on disk are the same blocks; labels may go to a file.
    disk = CCIB(K, **QUICK).fit(
        here(memory=0, scratch=tmp_path, labels=tmp_path / "labels.npy", membership=True),
        "wanted", known="batch",
    )  # fmt: skip
    told = CCIB(K, **QUICK).fit(X, y, known=names)
    check_alike(disk, told)
    assert (disk.labels_[:60] == y[:60]).all() and (disk.labels_ == told.labels_).mean() > 0.99
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), disk.labels_)
    np.testing.assert_allclose(disk.membership_.sum(1), 1)
    assert (disk.membership_.argmax(1) == disk.labels_).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labels.npy", "rows.parquet"]


@pytest.mark.parametrize(
    ("labels", "empty"), [("pq", None), ("pq", ""), ("pq", " "), ([0, 1], None)]
)
def test_empty_cells_are_unknown_wanted_labels(tmp_path, labels, empty):
    # In the first part of the file all labels are unknown.
    wanted = pd.Series([None, empty, labels[1], empty, labels[0], labels[1]])
    table = pd.DataFrame(np.eye(6), columns=[*"abcdef"]).assign(wanted=wanted)
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=2)
    rows = nrprob.stored(tmp_path / "rows.parquet", columns=[*"abcdef"])
    with survey_rows(rows, None, "wanted") as seen:
        classes, codes = read_labels(seen.target_labels, 6)
    assert classes.tolist() == [*labels] and codes.tolist() == [-1, -1, 1, -1, 0, 1]
    # Known labels must not be missing.
    with pytest.raises(ValueError, match="labels must be non-missing"):
        with survey_rows(rows, "wanted", None):
            pass


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("features", ["gaussian", "multinomial", "bernoulli"])
@pytest.mark.parametrize("beta", [None, 4.0])
def test_ib_finds_what_it_finds_in_memory(features, beta):
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.full(8, 0.3), size=K)[rng.integers(K, size=500)]
    X = {
        "gaussian": lambda: make(500, gap=4.0)[0],
        "multinomial": lambda: rng.poisson(40 * shares).astype(np.float32),
        "bernoulli": lambda: (rng.random(shares.shape) < 3 * shares).astype(np.float32),
    }[features]()
    parameters = QUICK | {"features": features}
    if beta is not None:
        parameters |= {"beta": beta * (20 if features != "gaussian" else 1)}
    whole = IB(K, **parameters).fit(X)
    model = IB(K, **parameters).fit(nrprob.stored(X))
    assert model.objective_ <= whole.objective_ * 1.001 + 0.5
    assert model.beta_ == pytest.approx(whole.beta_) or np.isinf(whole.beta_) or beta is None


def test_moments_give_the_coordinates_of_residuals():
    rng = np.random.default_rng(0)
    r = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5))
    r[:, 4] = r[:, 0] + r[:, 1]  # a direction without variance
    for covariance in ("tied", "diag", "spherical"):
        one, y = Coordinates.from_residuals(r, 290, covariance, 3.0)
        fourth = ((r**2).sum(1) ** 2).sum()
        other = Coordinates.from_moments(r.T @ r, fourth, 300, 290, covariance, 3.0)
        assert other.shrinkage == pytest.approx(one.shrinkage, rel=1e-6)
        np.testing.assert_allclose(other.variances, one.variances, rtol=1e-9)
        np.testing.assert_allclose(abs(r @ other.basis), abs(y), atol=1e-7)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(
    "setting",
    [{}, {"covariance": "diag", "errors": "t"}, {"covariance": "spherical", "weights": "free"}],
)
def test_a_conditional_mixture_finds_what_it_finds_in_memory(setting, tmp_path):
    X, known, sought = make(3000, 5, dtype=np.float64)
    y = np.where(np.arange(len(X)) < 60, sought, -1)
    np.save(tmp_path / "rows.npy", X)
    parameters = {"effects": "subtract", "n_init": 6, "random_state": 0} | setting
    whole = ConditionalMixture(K, **parameters).fit(X, y, known=known)
    rows = nrprob.stored(tmp_path / "rows.npy", memory=0, membership=True)
    model = ConditionalMixture(K, **parameters).fit(rows, y, known=known)
    assert model.objective_ == pytest.approx(whole.objective_, abs=0.05)
    np.testing.assert_allclose(model.membership_, whole.membership_, atol=0.02)
    assert model.converged_ and (model.labels_[:60] == y[:60]).all()
    np.testing.assert_allclose(model.means_, whole.means_, atol=0.02)
    np.testing.assert_allclose(model.covariance_, whole.covariance_, atol=0.02)
    assert model.shrinkage_ == pytest.approx(whole.shrinkage_, rel=1e-6)
    assert model.log_likelihood_ == pytest.approx(whole.log_likelihood_, abs=0.1)
    assert model.score(X, known=known) == pytest.approx(whole.score(X, known=known), abs=1e-4)
    assert (model.predict(rows, known=known) == model.labels_)[60:].all()
    assert len(model.start_table_) == 6 and len(model.restarts_.objective) == 6
    assert (np.diff(model.objective_trace_) <= 1e-6).all()


def mixed(n=900, seed=0):
    """Two numbers, a category, a rating and a flag, with clusters in all but the flag."""
    rng = np.random.default_rng(seed)
    X, known, sought = make(n, 3, dtype=np.float64, seed=seed)
    table = pd.DataFrame(X[:, :2] + 2 * (sought == 2)[:, None], columns=[*"ab"])
    table["city"] = (sought + (rng.random(n) < 0.3)) % 4
    table["rating"] = np.clip(np.round(rng.normal(size=n) + 3 + sought), 1, 5)
    table["flag"] = rng.integers(2, size=n)
    return table, known, sought


def statistics(table, settings, state):
    """Sums of an M-step, and the log likelihood, with all samples in one table."""
    model = JointModel(jax.tree.map(jnp.asarray, table), settings, "tied")
    log_joint = model.log_joint(state)
    log_density = jax.nn.logsumexp(log_joint, axis=1)
    r = jnp.exp(log_joint - log_density[:, None])
    return model.statistics(r), (table.mass * log_density).sum()


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("effects", ["random", "subtract"])
def test_sums_over_parts_of_a_table_are_those_of_the_table(effects):
    table, known, _ = mixed(90)
    cells = table.to_numpy(float)
    columns = Columns.learn(table, ["city", "flag"], ["rating"])
    numbers, discrete = columns.encode(table)
    with standard():
        fit = fit_table(
            TableData(numbers, discrete, known, 3), K, Choices(effects=effects, location=False),
            covariance="tied", ridge=3.0, n_init=2, tol=1e-3, max_iter=3,
            rng=np.random.default_rng(0),
        )  # fmt: skip
        problem, state = fit.problem, fit.end.state
        no, zero = np.asarray(False), np.asarray(0.0)
        held = Effects(np.asarray(effects == "subtract"), no, no)
        settings = Settings(problem.ridge, problem.tilt_ridge, held, np.asarray(0), zero, zero)
        expected = statistics(problem.table, settings, state)
        # The same samples in parts of 40, of which none has all known groups.
        form = TableFormat(
            (0, 1), (2, 3, 4), np.zeros(2), 1.0,
            tuple(c.values.astype(float) for c in columns.discrete), padded_size(3),
        )  # fmt: skip
        first = [replace(c, codes=c.codes[:1], fitted_marginal=c.marginal) for c in discrete]
        template = lay_out_table(numbers[:1], first, known[:1], 3, sizes=np.bincount(known))[0]
        order, parts = np.argsort(known, kind="stable"), []
        for start in range(0, 90, 40):
            rows = order[start : start + 40]
            pad = 40 - len(rows)
            block = Raw(
                np.pad(cells[rows], ((0, pad), (0, 0))), (np.arange(40) < len(rows)) * 1.0,
                np.pad(rows, (0, pad)), np.pad(known[rows], (0, pad)), np.full(40, -1),
            )  # fmt: skip
            assert len(np.unique(known[rows])) < 3
            laid = to_table_block(block, form)
            parts.append(block_e_step(laid, template, settings, state._replace(r=None), "tied"))
        total = jax.tree.map(lambda *a: np.sum(a, 0), *[part[:2] for part in parts])
    same = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-9)
    jax.tree.map(same, total, expected)
    assert total[0].counts.sum() == pytest.approx(90)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"effects": "subtract", "covariance": "diag"},
        {"effects": "random", "weights": "by_group"},
        {"effects": "fixed", "weights": "free"},
        {"effects": "random", "categorical": [], "ordered": []},
    ],
)
def test_a_stored_table_is_fitted_as_a_table_in_memory(setting, tmp_path, monkeypatch):
    table, known, sought = mixed()
    y = np.where(np.arange(len(table)) < 60, sought, -1)
    if "categorical" in setting:
        table = table[[*"ab"]]
    path = tmp_path / "rows.parquet"
    table.assign(site=known).to_parquet(path, row_group_size=250)
    parameters = {"n_init": 6, "location": False, "random_state": 0} | setting
    whole = ConditionalMixture(K, **parameters).fit(table, y, known=known)
    monkeypatch.setattr(stored_mixture, "_ROWS", 256)
    rows = nrprob.stored(path, memory=0, membership=True)
    model = ConditionalMixture(K, **parameters).fit(rows, y, known="site")
    assert model.columns_ == whole.columns_ and model.effects_kind_ == whole.effects_kind_
    # A fit that has not converged in memory goes on.
    assert whole.objective_ - 0.5 < model.objective_ < whole.objective_ + 0.05
    assert model.log_likelihood_ == pytest.approx(whole.log_likelihood_, abs=0.5)
    assert model.converged_ and (model.labels_[:60] == y[:60]).all()
    for name in ("membership_", "means_", "covariance_", "effects_", "effects_covariance_"):
        np.testing.assert_allclose(getattr(model, name), getattr(whole, name), atol=0.03)
    np.testing.assert_allclose(model.shares_, whole.shares_, atol=0.02)
    assert [*model.tables_] == [*whole.tables_]
    for name, values in whole.tables_.items():
        np.testing.assert_allclose(model.tables_[name], values, atol=0.02)
    new = nrprob.stored(path, columns=[*table.columns])
    assert (model.predict(new, known="site") == model.labels_)[60:].all()
    assert (np.diff(model.objective_trace_) <= 1e-6).all() and len(model.start_table_) == 1
    assert model.optima_.sizes["optimum"] == 1


@pytest.mark.slow
@pytest.mark.contract
def test_an_irrelevant_flag_of_stored_rows_does_not_capture_the_clusters():
    rng = np.random.default_rng(0)
    X, known, sought = make(1500, gap=2.5, dtype=np.float64)
    flag = rng.integers(2, size=len(X))
    rows = nrprob.stored(np.column_stack([X, flag]))
    model = ConditionalMixture(K, n_init=8, random_state=0).fit(rows, known=known)
    assert model.columns_[4] == "categorical"
    assert adjusted_rand_score(model.labels_, sought) > 0.5
    assert abs(adjusted_rand_score(model.labels_, flag)) < 0.01


def test_values_outside_of_the_sample_are_read(monkeypatch):
    monkeypatch.setattr(stored_rows, "_KIND_ROWS", 100)
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=2000), rng.integers(3, size=2000), np.zeros(2000)])
    X[7, 1], X[9, 2] = 8, 1  # a rare value, and a column that hardly varies
    with survey_rows(nrprob.stored(X), None, None) as seen:
        blocks = seen.make_blocks(256, lay_out_chunk, {"codes": np.zeros(2000, np.int32)})
        columns = learn_columns(ConditionalMixture(2), seen, blocks)
    assert [c.kind for c in columns.columns] == ["number", "ordered", "categorical"]
    assert columns.columns[1].values.tolist() == [0, 1, 2, 8]
    assert columns.columns[2].values.tolist() == [0, 1]


def test_rare_values_of_a_declared_column_are_read_or_refused(monkeypatch):
    monkeypatch.setattr(stored_rows, "_KIND_ROWS", 1500)
    X = np.column_stack([np.random.default_rng(0).normal(size=3000), np.arange(3000) % 280])
    X[-1, 1] = 1000.5

    def learn():
        with survey_rows(nrprob.stored(X), None, None) as seen:
            blocks = seen.make_blocks(256, lay_out_chunk, {"codes": np.zeros(3000, np.int32)})
            return learn_columns(ConditionalMixture(2, categorical=[1]), seen, blocks)

    assert learn().columns[1].values.tolist() == [*range(280), 1000.5]
    monkeypatch.setattr(stored_rows, "_MOST_DISTINCT", 200)
    with pytest.raises(ValueError, match="must have fewer than 200 values; got more in column 1"):
        learn()


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(processes=False, **options) as workers,
        distributed.Client(workers, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.contract
def test_workers_find_what_one_process_does(client, tmp_path):
    import dask.array as da

    X, known, _ = make(1500)
    table = pd.DataFrame(X, columns=[*"abcd"]).assign(batch=known)
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=400)
    place = tmp_path / "rows.parquet"
    for model in (
        CCIB(K, **QUICK),
        ConditionalMixture(K, n_init=6, random_state=0),
        ConditionalMixture(K, n_init=6, effects="random", random_state=0),
    ):
        one = model.fit(nrprob.stored(place), known="batch")
        labels, objective = one.labels_, one.objective_
        for rows in (place, da.from_array(X, chunks=(600, 3))):
            given = "batch" if rows is place else known
            many = model.fit(nrprob.stored(rows, scheduler=client), known=given)
            assert adjusted_rand_score(many.labels_, labels) > 0.99
            assert many.objective_ == pytest.approx(objective, rel=1e-4) and many.converged_
    # Sums equal those of one process, in every arrangement.
    parts = [[{"a": np.full(2, i)}] for i in range(40)]
    workers = WorkerBlocks.from_parts(client, _given, [(part,) for part in parts])
    assert (workers.map_sum(_same)["a"] == sum(range(40))).all()
    twice = workers.transform_blocks(partial(_times, factor=2))
    assert [int(b["a"][0]) for b in twice.map_blocks(_same)] == [2 * i for i in range(40)]


def _given(part):
    return part


@pytest.mark.slow
@pytest.mark.contract
def test_two_processes_with_half_of_the_rows_each_find_what_one_does():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = TESTS / "data" / "storage" / "half_of_the_rows.py"
    said = [
        subprocess.Popen(
            [sys.executable, str(script), str(i), str(port)], stdout=subprocess.PIPE,
            env=os.environ | {"JAX_PLATFORMS": "cpu"}, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    result = [json.loads(p.communicate(timeout=300)[0].splitlines()[-1]) for p in said]
    X, known, _ = make(1200)
    for i, model in enumerate((CCIB(K, **QUICK), ConditionalMixture(K, n_init=6, random_state=0))):
        whole = model.fit(X, known=known)
        (one, own), (two, other) = (process[i] for process in result)
        assert own == other == pytest.approx(whole.objective_, rel=0.005)
        assert len(one) == 500 and len(two) == 700
        assert adjusted_rand_score(one + two, whole.labels_) > 0.99
    assert result[0][2] == result[1][2]
    (one, own, kinds), (two, other, _) = (process[3] for process in result)
    assert own == other and kinds == ["number"] * 4 + ["categorical"]
    assert adjusted_rand_score(one + two, whole.labels_) > 0.95


def test_threads_follow_the_processors_that_there_are():
    assert 1 <= blocks._N_THREADS <= (os.cpu_count() or 1)


def test_sums_over_rows_stand_for_the_rows():
    X, known, _ = make(dtype=np.float64)
    with standard():
        _, rows, _ = laid_out(X, known)
        codes = pd.factorize(known)[0]
        x = np.column_stack([X - X.mean(0), np.ones(len(X))])
        each = [x[codes == g] for g in range(3)]
        sums = SummedRows(
            Moments(np.stack([e.sum(0) for e in each]), np.stack([e.T @ e for e in each]))
        )
        p = rows.x.n_statistics
        centre = np.random.default_rng(0).normal(size=(3, 5))
        wide = np.zeros((3, p))
        wide[:, :4], wide[:, -1] = centre[:, :4], centre[:, -1]
        expected = np.asarray(rows.scatter(wide))
        np.testing.assert_allclose(sums.scatter(centre)[:4], expected[:4], rtol=1e-9)
        np.testing.assert_allclose(sums.totals()[:, :4], rows.totals()[:, :4], atol=1e-9)
