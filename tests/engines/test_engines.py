"""Optimisers: exact changes, descent, splits and merges, compared with the reference."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import small_problems as small
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.cluster.hierarchy import fcluster, is_valid_linkage, ward
from sklearn.metrics import adjusted_rand_score
from slowly import SLOW, first_fast

from nrprob import CCIB, IB, IBSI
from nrprob.datasets import make_binary_partitions
from nrprob.engines import hash_rng
from nrprob.engines.optimise import differences, merge, reassign, solve
from nrprob.engines.optimise.anneal import (
    AnnealingSchedule,
    RoundingMonitor,
    anneal,
    leading_curvatures,
    normalise_masses,
    random_log_memberships,
    term_update,
)
from nrprob.engines.optimise.sequential_sweeps import make_sweep
from nrprob.engines.optimise.solve import (
    Settings,
    add_compression_term,
    exact_objective,
    weight_terms,
)
from nrprob.methods.bottleneck.ccib import ConditionalBottleneck, ConditionalParameters
from nrprob.methods.bottleneck.ib import Bottleneck, SideInformation, SideInformationParameters
from nrprob.metrics import matched_accuracy
from nrprob.statistics.terms import objective

K, L, M, N = small.K, small.L, small.M, small.N


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def _setting(kind, family, seed=0, mass=None, dtype=np.float64, sparse_rows=False):
    """Features, groups, masses, layout, rows, terms and the reference's arguments."""
    x, z = small.features(family, seed), small.groups(seed)
    mass = small.masses(seed) if mass is None else mass
    x = x.astype(dtype)
    given_x = sparse.csr_array(x) if sparse_rows else x
    layout, rows = small.laid_out(given_x, z, mass=mass)
    terms, arguments = small.problem(kind, rows, family, x, z, mass)
    arguments = {"weights": mass, "family": family, **arguments}
    return x, z, mass, layout, rows, terms, arguments


_differences = jax.jit(reassign.move_differences)
label_cells = partial(jax.jit, static_argnames="n_clusters")(reassign.label_cells)
_uniform = partial(jax.jit, static_argnums=(1, 2))(hash_rng.hashed_uniform)
_spread = partial(jax.jit, static_argnums=(1, 2))(hash_rng.hashed_noise)
_stream = jax.jit(hash_rng.fold_in)
_balanced = jax.jit(reassign.balanced_random_labels)
_charged = jax.jit(add_compression_term)


def _same(a, b):
    return adjusted_rand_score(a, b) == 1


# Pseudo-random numbers


def test_shuffle():
    u = np.asarray(_uniform(np.uint32(3), (4000,), np.float64))
    assert 0 <= u.min() and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.02 and abs(u.var() - 1 / 12) < 0.005
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.05
    e = np.asarray(_spread(np.uint32(3), (4000,), np.float32))
    assert e.dtype == np.float32
    assert abs(e.mean()) < 0.05 and abs(e.var() - 1) < 0.05
    seeds = np.asarray(_stream(7, np.arange(1000)))
    assert len(set(seeds.tolist())) == 1000
    assert not set(seeds.tolist()) & set(np.asarray(_stream(8, np.arange(1000))).tolist())
    table = np.asarray(_uniform(seeds[:40], (7, 5), np.float64))
    flat = table.reshape(-1)
    assert len(set(flat.tolist())) == flat.size
    for lag in (1, 5, 35):
        assert abs(np.corrcoef(flat[:-lag], flat[lag:])[0, 1]) < 0.1
    # Neither more rows nor longer axes change a number.
    wider = np.asarray(_uniform(np.append(seeds[:40], seeds[70:]), (9, 10), np.float64))
    np.testing.assert_array_equal(wider[:40, :7, :5], table)


# Differences


@pytest.mark.parametrize("kind", ["marginal", "residual", "side"])
@pytest.mark.parametrize("family", small.FAMILIES)
def test_differences_are_those_of_the_objective(family, kind):
    x, z, _, layout, rows, terms, arguments = _setting(kind, family)
    for seed in range(2):
        labels = np.random.default_rng(seed).integers(K, size=N).astype(np.int32)
        labels[0] = 3
        labels[labels == 3] = np.where(np.arange((labels == 3).sum()), 2, 3)  # one row alone
        assert (labels == 3).sum() == 1
        spread = layout.to_blocks(labels)
        change = _differences(terms, rows, spread, label_cells(rows, spread, n_clusters=K))
        change = layout.from_blocks(np.asarray(change))
        now = reference.objective(x, labels, **arguments)
        for i in [0, 1, 2, 3, 17, 59]:
            for c in range(K):
                moved = labels.copy()
                moved[i] = c
                exact = reference.objective(x, moved, **arguments) - now
                assert change[i, c] == pytest.approx(exact, abs=1e-9 * abs(now))


@jax.jit
def _sweep(terms, rows, labels, order):
    """Process rows in ``order``: labels in this order, final state, and state of the labels."""
    prepare, follow = make_sweep(terms, rows)
    flat = labels.reshape(-1)
    start = prepare(label_cells(rows, labels, K))
    state, after = follow(order, flat[order], order.size, np.ones(K, bool), start)
    new = flat.at[order].set(after).reshape(labels.shape)
    return after, state, prepare(label_cells(rows, new, K))


@pytest.mark.parametrize(
    ("family", "kind", "sparse_rows"),
    [
        ("multinomial", "marginal", False),
        ("multinomial", "marginal", True),
        ("multinomial", "side", True),
        ("multinomial", "side", False),
        ("bernoulli", "residual", False),
        ("gaussian", "residual", False),
    ],
)
def test_sequential_visits(family, kind, sparse_rows):
    """Every step makes the best move, and its statistics equal the statistics of the labels."""
    x, _, _, layout, rows, terms, arguments = _setting(kind, family, sparse_rows=sparse_rows)
    labels = np.random.default_rng(1).integers(K, size=N).astype(np.int32)
    order = layout.slot[np.random.default_rng(2).permutation(N)]
    visited, state, fresh = _sweep(terms, rows, layout.to_blocks(labels), order)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(fresh), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-11)
    row_of = {s: i for i, s in enumerate(layout.slot)}
    before, moves = labels, 0
    for step, slot in enumerate(order):
        i = row_of[slot]
        after = before.copy()
        after[i] = visited[step]
        moves += after[i] != before[i]
        if step % 6 == 0:
            values = []
            for c in range(K):
                moved = before.copy()
                moved[i] = c
                values.append(reference.objective(x, moved, **arguments))
            assert values[after[i]] <= min(values) + 1e-9
        before = after
    assert moves > 5


@pytest.mark.parametrize("kind", ["CIB", "residual", "side"])
@pytest.mark.parametrize("family", small.FAMILIES)
def test_merge_cost_is_that_of_the_objective(family, kind):
    x, _, _, layout, rows, terms, arguments = _setting(kind, family)
    labels = np.random.default_rng(3).integers(K, size=N).astype(np.int32)

    @jax.jit
    def cost_of(terms, cells, i):
        own = tuple(jnp.swapaxes(t.cells(cells)[:, 0], 0, 1) for t in terms)
        costs = tuple(t.cost(c) for t, c in zip(terms, own, strict=True))
        return merge.merge_cost(terms, own, costs, i)

    cells = label_cells(rows, layout.to_blocks(labels), n_clusters=K)
    now = reference.objective(x, labels, **arguments)
    for i in range(K):
        cost = np.asarray(cost_of(terms, cells, i))
        for j in set(range(K)) - {i}:
            joined = np.where(labels == j, i, labels)
            exact = reference.objective(x, joined, **arguments) - now
            assert cost[j] == pytest.approx(exact, abs=1e-9 * abs(now))


def test_compression_of_hard_labels():
    x, _, mass, layout, rows, terms, arguments = _setting("marginal", "multinomial")
    labels = np.random.default_rng(3).integers(K, size=N).astype(np.int32)
    cells = label_cells(rows, layout.to_blocks(labels), n_clusters=K)
    charged = _charged(terms, rows, np.asarray(1 / 2.5))
    exact = reference.objective(x, labels, beta=2.5, **arguments)
    assert float(objective(charged, cells)[0]) == pytest.approx(exact, rel=1e-12)
    assert float(exact_objective(charged, np.asarray(cells, np.float32))[0]) == pytest.approx(
        exact, rel=1e-6
    )


def test_the_reported_objective_is_of_float64():
    """Includes the constant part of the cost, which a large gamma multiplies."""
    x, z, _, layout, rows, _, _ = _setting("CIB", "multinomial", dtype=np.float32, mass=np.ones(N))
    labels = np.random.default_rng(3).integers(K, size=N).astype(np.int32)
    terms = small.side_terms(rows, np.float32(1e5), "multinomial")
    cells = label_cells(rows, layout.to_blocks(labels), n_clusters=K)
    exact = reference.objective(x, labels, z, gamma=1e5)
    assert float(exact_objective(terms, cells)[0]) == pytest.approx(exact, rel=1e-7)


# Annealing


STEPS = 256


@partial(
    jax.jit,
    static_argnames=("kind", "family", "damped"),
)
def _path(rows, weight, start, beta, final, fixed, active, compression, *, kind, family, damped):
    """Anneal at one temperature and record the free energy before every update."""
    if kind == "side":
        build, numbers = SideInformation(family), SideInformationParameters(weight)
    else:
        build = ConditionalBottleneck(family, kind, False)
        numbers = ConditionalParameters(weight)
    problem = build(rows, Settings(2, 1, method=numbers))
    terms, _, critical = weight_terms(problem, rows)
    update = term_update(terms, compression)

    def recorded(state, sums, beta):
        count, values = state
        values = values.at[count].set(update.objective(None, sums, beta), mode="drop")
        return (count + 1, values), *update.m_step(None, sums, beta)[1:]

    beta = beta * critical
    ladder = AnnealingSchedule(
        beta,
        jnp.asarray(1.2, w_type(rows)),
        jnp.where(final > 0, beta.max(), jnp.inf).astype(w_type(rows)),
        jnp.asarray(0.0, w_type(rows)),
        jnp.asarray(1e-6, w_type(rows)),
        jnp.asarray(STEPS // 100, jnp.int32),
        jnp.asarray(problem.curvature, w_type(rows)),
    )
    state = (0, jnp.full((STEPS, start.shape[2]), jnp.nan, start.dtype))
    return anneal(
        update._replace(m_step=recorded), (rows,), state, start, ladder, jnp.uint32(0),
        fixed=fixed, active=active, damped=damped,
    )  # fmt: skip


def w_type(rows):
    return rows.mass.dtype


@partial(jax.jit, static_argnames="k")
def _random(rows, fixed, active, *, k):
    """Random initial masses of two restarts, in the active ones of ``k`` clusters."""
    return normalise_masses(
        random_log_memberships(jnp.uint32(5), rows, 2, k, 1.0), rows.mass, fixed, active
    )


def _run(kind, family, *, beta, weight, compression=1.0, damped=False, labelled=0, k=K, **extra):
    x, z, mass, layout, rows, _, _ = _setting("CIB", family, **extra)
    fixed = np.full(N, -1, np.int32)
    fixed[:labelled] = np.arange(labelled) % 2
    fixed = layout.to_blocks(fixed, -1)
    active = np.arange(k) < K
    start = _random(rows, fixed, active, k=k)
    result = _path(
        rows, np.asarray(weight), start, np.full(2, beta), np.asarray(1.0), fixed, active,
        np.asarray(compression, mass.dtype), kind=kind, family=family, damped=damped,
    )  # fmt: skip
    return layout, mass, fixed, result


def _rises(result):
    values = np.asarray(result.state[1])
    values = values[~np.isnan(values).any(1)]
    assert len(values) > 5
    rises = np.diff(values, axis=0) / np.abs(values[:-1])
    return rises, values


@pytest.mark.parametrize("labelled", [0, 10])
@pytest.mark.parametrize(
    ("family", "kind", "compression"),
    [
        ("multinomial", "marginal", 1.0),
        ("multinomial", "marginal", 0.0),
        ("multinomial", "marginal", 0.4),
        ("bernoulli", "residual", 1.0),
        ("gaussian", "residual", 1.0),
        pytest.param("bernoulli", "residual", 0.0, marks=SLOW),
        pytest.param("gaussian", "residual", 0.0, marks=SLOW),
    ],
)
def test_updates_never_raise_the_free_energy(family, kind, compression, labelled):
    for beta in (0.8, 1.3, 8.0):
        layout, mass, fixed, result = _run(
            kind, family, beta=beta, weight=0.3, compression=compression, labelled=labelled
        )
        rises, values = _rises(result)
        assert rises.max() < 1e-12
        if beta > 1:
            assert values[-1].max() < values[0].min()
        r = layout.from_blocks(np.asarray(result.w)) / mass[:, None, None]
        np.testing.assert_allclose(r.sum(-1), 1, atol=1e-12)
        given_rows = layout.from_blocks(np.asarray(fixed)) >= 0
        assert given_rows.sum() == labelled
        for i in np.flatnonzero(given_rows):
            np.testing.assert_array_equal(r[i], np.eye(K)[[i % 2] * 2])


def test_free_energy_is_the_references():
    x, z, mass, layout, rows, terms, arguments = _setting("marginal", "multinomial")
    r = small.memberships("soft")
    w = layout.to_blocks(mass[:, None] * r)[:, :, None]

    @jax.jit
    def value(terms, rows, w, beta, compression):
        return term_update(terms, compression).evaluate_objective((rows,), None, w, beta)

    for compression in (0.0, 0.4, 1.0, 1.7):
        exact = reference.free_energy(x, r, beta=3.0, compression=compression, **arguments)
        ours = value(terms, rows, w, np.full(1, 3.0), np.asarray(compression))
        np.testing.assert_allclose(ours, [exact], rtol=1e-12)


def test_damping_makes_the_side_information_bottleneck_descend():
    for beta in (1.5, 5.0):
        options = {"beta": beta, "weight": 30.0}
        rises, values = _rises(_run("side", "multinomial", damped=True, **options)[-1])
        assert rises.max() < 1e-12
        assert values[-1].max() < values[0].min()
    rises, _ = _rises(_run("side", "multinomial", damped=False, **options)[-1])
    assert rises.max() > 1e-3


def test_blocks_of_rows_give_what_all_rows_give():
    """Annealing with sums over two blocks of rows, damped and undamped."""
    _, _, _, _, rows, terms, _ = _setting("residual", "multinomial")
    update, half = term_update(terms, 1.0), len(rows.mass) // 2
    parts = small.blocks(rows, slice(half)), small.blocks(rows, slice(half, None))
    one = np.ones(())
    ladder = AnnealingSchedule(
        np.full(2, 1.0), 1.2 * one, 20 * one, 1e-3 * one, 1e-4 * one, 30, 1.0 * one
    )

    @partial(jax.jit, static_argnames="damped")
    def run(blocks, damped):
        start = normalise_masses(random_log_memberships(jnp.uint32(5), rows, 2, K), rows.mass)
        return anneal(update, blocks, None, start, ladder, jnp.uint32(0), damped=damped)

    for damped in (False, True):
        whole, split = run((rows,), damped), run(parts, damped)
        np.testing.assert_allclose(split.w, whole.w, atol=1e-8)
        np.testing.assert_allclose(split.trace, whole.trace, rtol=1e-9)
        assert whole.n_iter == split.n_iter


@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_that_do_not_exist_stay_empty(seed):
    """Three padding clusters do not change memberships."""
    options = {"beta": 6.0, "weight": 0.3, "seed": seed}
    plain = _run("residual", "bernoulli", **options)[-1]
    padded = _run("residual", "bernoulli", k=K + 3, **options)[-1]
    padded, plain = np.asarray(padded.w), np.asarray(plain.w)
    assert not padded[..., K:].any()
    np.testing.assert_allclose(padded[..., :K], plain, atol=1e-9)
    assert len(np.unique(plain.argmax(-1))) > 1
    assert np.isfinite(padded).all()


@pytest.mark.parametrize("family", small.FAMILIES)
def test_leading_curvatures(family):
    x, z, mass, layout, rows, terms, _ = _setting("marginal", family)
    common = small.within_variance(x, z, mass)
    terms = (*terms, small.residual_term(rows))
    solve = jax.jit(lambda terms, rows, weights: leading_curvatures(terms, rows, lambda _: weights))
    weights = np.asarray([1.0, 0.3, 0.0])
    curvatures, same, largest = solve(terms, rows, weights)
    exact = reference.leading_eigenvalues(x, z, family, mass, scale="common")
    np.testing.assert_allclose(
        curvatures,
        [exact["conditional"], exact["marginal"], exact["residual"] * common],
        rtol=1e-4,
    )
    np.testing.assert_array_equal(same, weights)
    critical = reference.critical_beta(x, z, family, mass, coordination="marginal", weight=0.3)
    assert 1 / float(largest) == pytest.approx(critical, rel=1e-4)
    weights = np.asarray([1.0, 0.0, 2.0])
    critical = reference.critical_beta(
        x, z, family, mass, coordination="residual", weight=2 * common, scale="common"
    )
    assert 1 / float(solve(terms, rows, weights)[2]) == pytest.approx(critical, rel=1e-4)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("multinomial", "marginal"), ("bernoulli", "residual"), ("gaussian", "residual")],
)
def test_clusters_separate_at_the_critical_temperature(family, kind):
    def apart(beta):
        layout, mass, _, result = _run(kind, family, beta=beta, weight=0.3)
        r = layout.from_blocks(np.asarray(result.w)) / mass[:, None, None]
        return (r.max(0) - r.min(0)).max()

    start = apart(0.01)
    assert start < 1e-2  # high temperature: equal memberships in all clusters
    assert apart(0.95) < 5e-3
    assert apart(1.05) > 0.1


def test_whole_ladder():
    """Annealing to hard labels: decreasing objective, increasing inverse temperatures."""
    x, z, mass, layout, rows, _, _ = _setting("CIB", "multinomial")
    fixed, active = np.full(rows.mass.shape, -1, np.int32), np.ones(K, bool)
    start = _random(rows, fixed, active, k=K)
    result = _path(
        rows, np.asarray(0.3), start, np.full(2, 0.95), np.asarray(-1.0), fixed, active,
        np.asarray(1.0), kind="marginal", family="multinomial", damped=False,
    )  # fmt: skip
    assert np.asarray(result.converged).all()
    r = layout.from_blocks(np.asarray(result.w)) / mass[:, None, None]
    assert (r.max(-1) > 0.999).mean() > 0.99
    trace = np.asarray(result.trace)
    used = ~np.isnan(trace[:, 0])
    assert np.isnan(trace[used.sum() :]).all() and not np.isnan(trace[: used.sum()]).any()
    assert (np.diff(trace[used], axis=0) < 1e-6).all()
    assert (np.asarray(result.beta) > 1.2 ** (used.sum() - 2)).all()
    np.testing.assert_allclose(*np.asarray(result.beta))


def test_converged_is_false_at_the_limit_of_updates():
    layout, _, _, result = _run("marginal", "multinomial", beta=1.01, weight=0.3)
    assert result.n_iter == 100 * (STEPS // 100)
    assert not result.converged.any()


@pytest.mark.filterwarnings("ignore:the best restart", "ignore:found 1 clusters")
def test_one_compilation_for_a_grid():
    """Parameters, seeds, data and similar sizes are traced; only shapes and options compile."""
    x, known = _data("IBSI", 0)
    short = {"features": "bernoulli", "max_iter": 2, "cooling": 3.0, "random_state": 0}
    IBSI(2, gamma=3.0, **short).fit(x, known=known)
    compiled = solve.solve_anneal._cache_size()
    assert compiled > 0
    for gamma, n in ((1, N), (2.5, N - 3), (np.float32(0.5), N - 9)):
        changed = {"tol": 1e-3, "cooling": 3, "max_iter": 3, "random_state": n}
        IBSI(2, gamma=gamma, **{**short, **changed}).fit(x[:n], known=known[:n])
    assert solve.solve_anneal._cache_size() == compiled


# Reassignment


def test_rounding_is_told_from_changes_that_fall_or_grow():
    def ends(changes):
        quiet = RoundingMonitor.start(np.float32)
        for change in changes:
            quiet = quiet.add_change(np.float32(change))
        return bool(quiet.is_rounding(np.float32(changes[-1])))

    rng = np.random.default_rng(0)
    rounding = 1e-6 * rng.uniform(1, 1.5, 100)
    assert ends(rounding)
    # Every other change is not evaluated.
    assert not ends(np.where(np.arange(40) % 2, rounding[:40], np.inf))
    assert not ends(1e-5 * 0.99 ** np.arange(100))
    assert not ends(1e-7 * 1.05 ** np.arange(100))
    assert not ends(1e3 * rounding)  # too large to be rounding


@partial(jax.jit, static_argnames="solver")
def _reassign(terms, rows, starts, fixed, seed, max_iter, active, *, solver):
    engine = {"sequential": reassign.reassign_sequentially, "batched": reassign.reassign_batched}[
        solver
    ]
    return engine(
        terms, rows, starts, seed, max_iter=max_iter, n_clusters=K, fixed=fixed, active=active
    )


def _solve(setting, solver, *, labels=None, labelled=0, active=None, max_iter=100, seed=0):
    x, _, _, layout, rows, terms, _ = setting
    active = np.ones(K, bool) if active is None else active
    fixed = np.full(N, -1, np.int32)
    fixed[:labelled] = np.arange(labelled) % 2
    fixed = layout.to_blocks(fixed, -1)
    if labels is None:
        seeds = (np.uint32(s) for s in range(3))
        starts = np.stack([_balanced(s, rows, fixed, active) for s in seeds])
    else:
        # As many runs as above, so that no other program is compiled.
        starts = np.tile(layout.to_blocks(np.asarray(labels, np.int32)), (3, 1, 1))
    result = _reassign(
        terms, rows, starts, fixed, np.uint32(seed), np.asarray(max_iter, np.int32), active,
        solver=solver,
    )  # fmt: skip
    result = jax.device_get(result)
    return layout.from_blocks(np.moveaxis(np.asarray(result.labels), 0, -1)).T, result


@pytest.mark.parametrize(
    ("family", "kind", "solver"),
    [
        ("multinomial", "marginal", "sequential"),
        ("multinomial", "marginal", "batched"),
        ("gaussian", "residual", "batched"),
        pytest.param("gaussian", "residual", "sequential", marks=SLOW),
        pytest.param("bernoulli", "residual", "sequential", marks=SLOW),
        pytest.param("bernoulli", "residual", "batched", marks=SLOW),
        pytest.param("multinomial", "side", "sequential", marks=SLOW),
        pytest.param("multinomial", "side", "batched", marks=SLOW),
    ],
)
def test_reassignment_ends_in_a_local_optimum(family, kind, solver):
    setting = _setting(kind, family)
    x, _, _, layout, rows, terms, arguments = setting
    for labelled in (0, 8):
        labels, result = _solve(setting, solver, labelled=labelled)
        assert result.converged.all()
        for s in range(3):
            trace = np.asarray(result.trace[s])
            trace = trace[~np.isnan(trace)]
            assert len(trace) == result.n_iter[s]
            assert (np.diff(trace) <= 1e-10 * abs(trace[0])).all()
            assert trace[0] > trace[-1] or solver == "sequential"
            value = reference.objective(x, labels[s], **arguments)
            assert trace[-1] == pytest.approx(value, rel=1e-10)
            np.testing.assert_array_equal(labels[s, :labelled], np.arange(labelled) % 2)
            spread = layout.to_blocks(labels[s])
            cells = label_cells(rows, spread, n_clusters=K)
            change = layout.from_blocks(np.asarray(_differences(terms, rows, spread, cells)))
            assert change[labelled:].min() > -1e-9
    start = np.random.default_rng(0).integers(K, size=N)
    first, _ = _solve(setting, solver, labels=start)
    assert reference.objective(x, first[0], **arguments) < reference.objective(
        x, start, **arguments
    )


@pytest.mark.parametrize("solver", ["sequential", "batched"])
def test_reassignment_respects_clusters_that_do_not_exist(solver):
    setting = _setting("residual", "bernoulli")
    labels, _ = _solve(setting, solver, active=np.arange(K) < 2)
    assert set(np.unique(labels)) == {0, 1}
    start = _balanced(np.uint32(0), setting[4], None, np.arange(K) < 3)
    sizes = np.bincount(setting[3].from_blocks(np.asarray(start)))
    np.testing.assert_array_equal(sizes, [20, 20, 20])


def test_reassignment_stops_at_max_iter():
    setting = _setting("residual", "bernoulli")
    for solver in ("sequential", "batched"):
        _, result = _solve(setting, solver, max_iter=1)
        assert (np.asarray(result.n_iter) == 1).all()
        assert not result.converged.any()


@partial(jax.jit, static_argnames="solver")
def _give_up(terms, rows, labels, smallest, *, solver):
    active = jnp.ones(K, bool)
    if solver is None:
        return differences.remove_small_clusters(terms, rows, labels, active, None, smallest)
    engine = {"sequential": reassign.reassign_sequentially, "batched": reassign.reassign_batched}[
        solver
    ]
    return engine(
        terms, rows, labels[None], jnp.uint32(0), max_iter=jnp.int32(100), n_clusters=K,
        active=active, min_mass=smallest,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("multinomial", "residual"),
        pytest.param("gaussian", "residual", marks=SLOW),
        pytest.param("multinomial", "side", marks=SLOW),
    ],
)
def test_rows_of_a_cluster_that_is_given_up_go_where_they_cost_least(family, kind):
    """Rows move independently to the cluster of least cost, as in the reference."""
    x, _, mass, layout, rows, terms, arguments = _setting(kind, family)
    start = np.where(np.arange(N) < 5, 3, np.arange(N) % 3)
    sizes = np.bincount(start, mass)
    spread = layout.to_blocks(start.astype(np.int32))
    labels, active = _give_up(terms, rows, spread, np.sort(sizes)[:2].mean(), solver=None)
    labels = layout.from_blocks(np.asarray(labels))
    assert np.asarray(active).tolist() == [True, True, True, False]
    assert (labels[5:] == start[5:]).all()
    for i in range(5):
        costs = []
        for c in range(3):
            moved = start.copy()
            moved[i] = c
            costs.append(reference.objective(x, moved, **arguments))
        assert labels[i] == np.argmin(costs)


@pytest.mark.slow
@pytest.mark.contract
def test_reassignment_keeps_count_where_clusters_are_given_up():
    x, _, mass, layout, rows, terms, arguments = _setting("residual", "multinomial")
    start = np.where(np.arange(N) < 5, 3, np.arange(N) % 3)
    smallest = 0.2 * mass.sum()
    spread = layout.to_blocks(start.astype(np.int32))
    result = jax.device_get(_give_up(terms, rows, spread, smallest, solver="batched"))
    labels = layout.from_blocks(result.labels[0])
    trace, left = (a[0][~np.isnan(a[0])] for a in (result.trace, result.active))
    assert result.converged.all() and left[-1] == np.unique(labels).size < K
    assert np.bincount(labels, mass)[np.unique(labels)].min() >= smallest
    assert not ((np.diff(trace) > 1e-10) & (np.diff(left) == 0)).any()
    assert trace[-1] == pytest.approx(reference.objective(x, labels, **arguments), rel=1e-10)
    cells = label_cells(rows, layout.to_blocks(labels), n_clusters=K)
    change = layout.from_blocks(
        np.asarray(_differences(terms, rows, layout.to_blocks(labels), cells))
    )
    assert change[:, np.unique(labels)].min() > -1e-9


@pytest.mark.parametrize("kind", first_fast(["side", "marginal", "IB"]))
def test_sparse_rows_are_visited_as_dense_ones(kind):
    mass = np.ones(N)
    dense = _setting(kind, "multinomial", mass=mass)
    thin = _setting(kind, "multinomial", mass=mass, sparse_rows=True)
    for seed in range(2):
        labels, result = _solve(dense, "sequential", seed=seed)
        same, again = _solve(thin, "sequential", seed=seed)
        np.testing.assert_array_equal(labels, same)
        np.testing.assert_array_equal(result.n_iter, again.n_iter)
        np.testing.assert_allclose(result.trace, again.trace, rtol=1e-10)


@pytest.mark.parametrize("sparse_rows", [False, True])
def test_float32_sweeps_come_to_rest(sparse_rows):
    setting = _setting(
        "marginal", "multinomial", mass=np.ones(N), dtype=np.float32, sparse_rows=sparse_rows
    )
    labels, result = _solve(setting, "sequential")
    assert result.trace.dtype == np.float32
    assert result.converged.all()
    wide, _ = _solve(_setting("marginal", "multinomial", mass=np.ones(N)), "sequential")
    for a, b in zip(labels, wide, strict=True):
        value, exact = (reference.objective(setting[0], c, **setting[-1]) for c in (a, b))
        assert value == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    "solver",
    [
        "sequential",
        "batched",
    ],
)
def test_ties_do_not_stop_reassignment(solver):
    """Equal gains that cancel when all rows move are not an optimum."""
    x = np.zeros((N, M))
    kinds = np.arange(N) % 2
    x[:, 0], x[:, 1] = kinds, 1 - kinds
    z = np.zeros(N, int)
    layout, rows = small.laid_out(x, z)
    terms, _ = small.problem("IB", rows, "multinomial", x, z, np.ones(N))
    setting = (x, z, None, layout, rows, terms, None)
    labels = np.arange(N) // 2 % 2  # both clusters have as many rows of both types
    labels, _ = _solve(setting, solver, labels=labels, active=np.arange(K) < 2)
    assert _same(labels[0], kinds)


def test_negative_statistics_survive():
    """Sums of centred features may be negative; clipping them would change the partition."""
    rng = np.random.default_rng(0)
    truth = np.arange(N) % K
    x = 0.3 * rng.normal(size=(N, M)) + 3 * rng.normal(size=(K, M))[truth]
    x -= x.mean(0)
    z = np.zeros(N, int)
    layout, rows = small.laid_out(x, z)
    terms, _ = small.problem("IB", rows, "gaussian", x, z, np.ones(N))
    setting = (x, z, None, layout, rows, terms, None)
    for solver in ("sequential", "batched"):
        labels, _ = _solve(setting, solver, labels=np.where(np.arange(N) % 3, truth, 0))
        assert _same(labels[0], truth)
        cells = np.asarray(label_cells(rows, layout.to_blocks(labels[0]), n_clusters=K))
        assert (cells[..., :M] < -1).any() and (cells[..., :M] > 1).any()
        value = float(objective(terms, cells)[0])
        assert value == pytest.approx(reference.objective(x, labels[0], family="gaussian"))


# Agglomeration


_agglomerate = jax.jit(merge.agglomerate)


def _merge(terms, x, z, size, classes=None, mass=None):
    """Merge single rows in the layout of the estimator, padded to ``size`` clusters."""
    n, m = x.shape
    full = np.zeros((n, terms_width(m)))
    full[:, :m], full[:, -1] = x, 1
    cells = np.zeros((int(z.max()) + 1, 1, size, full.shape[1]))
    mass = np.ones(n) if mass is None else mass
    cells[z, 0, np.arange(n)] = mass[:, None] * full
    padded = np.full(size, -1)
    padded[:n] = -1 if classes is None else classes
    result = _agglomerate(terms, cells, np.arange(size) < n, padded)
    pairs, costs = np.asarray(result.pairs), np.asarray(result.costs)
    allowed = np.isfinite(costs)
    return pairs[allowed], costs[allowed]


def terms_width(m):
    from nrprob.statistics.rows import bucket_size

    return bucket_size(m + 1, 1024)


def _checked_linkage(pairs, costs, n):
    tree = merge.linkage_matrix(pairs, costs, np.ones(n))
    assert is_valid_linkage(tree)
    assert (np.diff(tree[:, 2]) >= 0).all()
    np.testing.assert_allclose(tree[:, 2], np.cumsum(costs), atol=1e-9)
    for k in (2, 3, 5, 9):
        labels = merge.cut_merges(pairs, n, k)
        assert labels.max() == k - 1
        assert _same(fcluster(tree, k, "maxclust"), labels)
        first = [np.flatnonzero(labels == c)[0] for c in range(k)]
        assert first == sorted(first)  # numbered by first row
    return tree


@pytest.mark.parametrize("size", [N, 64])
def test_gaussian_agglomeration_is_wards(size):
    """The height of Ward is sqrt(2 a b / (a + b)) |mean difference|; our cost is its square / 4."""
    x = small.features("gaussian")
    z = np.zeros(N, int)
    _, rows = small.laid_out(x, z)
    terms, _ = small.problem("IB", rows, "gaussian", x, z, np.ones(N))
    pairs, costs = _merge(terms, x, z, size)
    scipys = ward(x)
    np.testing.assert_allclose(4 * costs, scipys[:, 2] ** 2, rtol=1e-9)
    tree = _checked_linkage(pairs, costs, N)
    np.testing.assert_array_equal(tree[:, :2], np.sort(scipys[:, :2], 1))
    np.testing.assert_array_equal(tree[:, 3], scipys[:, 3])


@pytest.mark.parametrize(
    ("family", "kind"),
    [("multinomial", "IB"), ("multinomial", "marginal"), ("gaussian", "residual")],
)
def test_information_agglomeration_is_greedy(family, kind):
    mass = np.ones(N) if kind == "residual" else small.masses()
    x, z, mass, layout, rows, terms, arguments = _setting(kind, family, mass=mass)
    if kind == "IB":
        z = np.zeros(N, int)
        layout, rows = small.laid_out(x, z, mass=mass)
        terms, arguments = small.problem(kind, rows, family, x, z, mass)
        arguments = {"weights": mass, "family": family, **arguments}
    pairs, costs = _merge(terms, x, z, N, mass=mass)
    exact = reference.agglomerative(x, K=1, **arguments)
    np.testing.assert_allclose(costs, [c for _, _, c in exact.trace], rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(pairs, [(i, j) for i, j, _ in exact.trace])
    _checked_linkage(pairs, costs, N)
    for k in (1, 4):
        value = reference.objective(x, merge.cut_merges(pairs, N, k), **arguments)
        start = reference.objective(x, np.arange(N), **arguments)
        assert value - start == pytest.approx(costs[: N - k].sum(), rel=1e-9)


def test_information_costs_are_not_reducible():
    """A merge may cost less than the previous one; cumulative costs make a valid tree."""
    falls = 0
    for seed in range(4):
        x = small.features("multinomial", seed)
        z = np.zeros(N, int)
        _, rows = small.laid_out(x, z)
        terms, _ = small.problem("IB", rows, "multinomial", x, z, np.ones(N))
        pairs, costs = _merge(terms, x, z, N)
        falls += (np.diff(costs) < -1e-9).sum()
        _checked_linkage(pairs, costs, N)
        exact = reference.agglomerative(x, K=1)
        np.testing.assert_allclose(costs, [c for _, _, c in exact.trace], rtol=1e-9, atol=1e-10)
        np.testing.assert_array_equal(pairs[costs > 1e-9][-20:], [t[:2] for t in exact.trace[-20:]])
    assert falls > 0


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), n_classes=st.integers(2, 5))
def test_classes_are_never_joined(seed, n_classes):
    rng = np.random.default_rng(seed)
    x = small.features("gaussian", seed)
    z = np.zeros(N, int)
    with jax.enable_x64(True):
        _, rows = small.laid_out(x, z)
        terms, _ = small.problem("IB", rows, "gaussian", x, z, np.ones(N))
        classes = np.where(rng.random(N) < 0.3, rng.integers(n_classes, size=N), -1)
        classes[:n_classes] = np.arange(n_classes)
        pairs, costs = _merge(terms, x, z, 64, classes)
    assert len(pairs) == N - n_classes  # and everything else is joined
    assert (pairs < N).all()
    labels = merge.cut_merges(pairs, N, n_classes)
    for c in range(n_classes):
        assert len(set(classes[labels == c]) - {-1}) == 1


def test_equal_rows_merge_first_and_for_nothing():
    x = np.repeat(small.features("multinomial", n=20), 3, 0)
    z = np.zeros(N, int)
    _, rows = small.laid_out(x, z)
    terms, _ = small.problem("IB", rows, "multinomial", x, z, np.ones(N))
    pairs, costs = _merge(terms, x, z, N)
    distinct = len(np.unique(x, axis=0))
    np.testing.assert_allclose(costs[: N - distinct], 0, atol=1e-12)
    labels = merge.cut_merges(pairs, N, distinct)
    np.testing.assert_array_equal(labels, np.unique(labels[::3], return_inverse=True)[1].repeat(3))


# Estimators against the reference


def _counts(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(0.5 * np.ones(M), 3)
    return rng.multinomial(40, p[rng.integers(3, size=N)])


def _binary(seed):
    x, labels = make_binary_partitions(N, (M - 2, 2), random_state=seed)
    return x, labels[:, 0]


def _prepare(model, x, known, y=None):
    """Statistics and arguments of the reference objective."""
    model.fit(x, **({} if known is None else {"known": known}))
    x = np.asarray(x, float)
    family = model._features.features
    if family == "multinomial":
        x = x / x.sum(1, keepdims=True)
    if family == "gaussian":
        x = (x - x.mean(0)) / np.sqrt(x.var(0).mean())
    arguments = {"z": known, "family": family}
    if isinstance(model, IBSI):
        arguments["gamma"] = model.gamma
    if isinstance(model, CCIB):
        weight = model.coordination_weight_
        arguments["coordination"] = model.coordination
        if model.coordination == "residual":
            arguments["scale"] = "common"
            weight *= small.within_variance(x, known, np.ones(len(x)))
        arguments["weight"] = weight
    return x, arguments


MODELS = {
    "IB": lambda **kw: IB(3, features="multinomial", **kw),
    "IBSI": lambda **kw: IBSI(2, gamma=3.0, features="bernoulli", **kw),
    "CCIB marginal": lambda **kw: CCIB(2, coordination="marginal", features="bernoulli", **kw),
    "CCIB residual": lambda **kw: CCIB(2, coordination="residual", features="gaussian", **kw),
}


SOME = ["CCIB residual"]
QUICK = [*SOME, *(pytest.param(n, marks=SLOW) for n in MODELS if n not in SOME)]


def _data(name, seed):
    if name == "IB":
        return _counts(seed), None
    x, known = _binary(seed)
    if "residual" in name:
        x = x + 0.3 * np.random.default_rng(seed).normal(size=x.shape)
    return x, known


@pytest.mark.parametrize("name", first_fast(MODELS))
def test_annealing_finds_what_the_reference_finds(name):
    for seed in range(2):
        x, known = _data(name, seed)
        model = MODELS[name](random_state=0)
        x, arguments = _prepare(model, x, known)
        assert model.objective_ == pytest.approx(
            reference.objective(x, model.labels_, **arguments), rel=1e-10
        )
        if "coordination" in arguments:
            known_of = {k: arguments[k] for k in ("coordination", "scale") if k in arguments}
            weight = reference.automatic_weight(x, known, arguments["family"], **known_of)
            assert arguments["weight"] == pytest.approx(weight, rel=1e-4)
        if name != "IBSI":
            split = {k: v for k, v in arguments.items() if k != "z"}
            critical = reference.critical_beta(x, known, **split)
            assert model.critical_beta_ == pytest.approx(critical, rel=1e-3)
        runs = [reference.anneal(x, K=model.n_clusters, rng=s, **arguments) for s in range(3)]
        best = min(run.objective for run in runs)
        assert model.objective_ <= best + 1e-6 * abs(best)


@pytest.mark.parametrize("name", QUICK)
def test_sequential_finds_what_the_reference_finds(name):
    for seed in range(2):
        x, known = _data(name, seed)
        model = MODELS[name](solver="sequential", n_init=20, random_state=0)
        x, arguments = _prepare(model, x, known)
        k = model.n_clusters
        runs = [reference.sequential(x, K=k, rng=s, **arguments) for s in range(8)]
        best = min(run.objective for run in runs)
        assert model.objective_ <= best + 1e-8 * abs(best)
        # The reference would not move anything either.
        rest = reference.sequential(x, K=k, rng=0, labels=model.labels_, **arguments)
        assert rest.objective == pytest.approx(model.objective_, rel=1e-10)
        np.testing.assert_array_equal(rest.labels, model.labels_)


@pytest.mark.parametrize("name", QUICK)
def test_agglomeration_finds_what_the_reference_finds(name):
    x, known = _data(name, 0)
    # No ties, which each program may break differently.
    x = x + np.random.default_rng(1).uniform(0, 0.05, x.shape) * np.where(x > 0.5, -1, 1)
    model = MODELS[name](solver="agglomerative", polish=False)
    x, arguments = _prepare(model, x, known)
    exact = reference.agglomerative(x, K=model.n_clusters, **arguments)
    assert model.objective_ == pytest.approx(exact.objective, rel=1e-10)
    assert _same(model.labels_, exact.labels)
    assert is_valid_linkage(model.linkage_)


@pytest.mark.parametrize("name", QUICK)
def test_float32_estimators_state_the_objective_of_their_labels(name):
    x, known = _data(name, 0)
    model = MODELS[name](random_state=0)
    exact, arguments = _prepare(model, x.astype(np.float32), known)
    value = reference.objective(exact, model.labels_, **arguments)
    assert model.objective_ == pytest.approx(value, rel=1e-5)
    wide = MODELS[name](random_state=0)
    _prepare(wide, x.astype(np.float64), known)
    assert model.critical_beta_ == pytest.approx(wide.critical_beta_, rel=1e-3)
    assert model.objective_ <= wide.objective_ * (1 + 1e-4)


@pytest.mark.parametrize("family", small.FAMILIES)
@pytest.mark.parametrize(
    "dtype",
    [
        np.float32,
        np.float64,
    ],
)
def test_rounding_is_not_structure(dtype, family):
    """Equal rows never separate, at any temperature."""

    @jax.jit
    def critical(rows):
        return weight_terms(Bottleneck(family)(rows, {}), rows)[2]

    rng = np.random.default_rng(0)
    for _ in range(6):
        row = rng.random(M)
        row = row - 0.3 if family == "gaussian" else row / row.sum()
        _, rows = small.laid_out(np.tile(row.astype(dtype), (N, 1)), np.zeros(N, int))
        assert np.isinf(critical(rows))


@pytest.mark.slow
def test_a_larger_gamma_does_little_harm():
    x, labels = make_binary_partitions(200, (8, 4), random_state=0)
    for gamma in (10, 1e2, 1e3):
        model = IBSI(2, gamma=gamma, n_init=3, random_state=0).fit(x, known=labels[:, 0])
        assert matched_accuracy(model.labels_, labels[:, 1]) > 0.95
