"""Cell costs, rows in blocks and gradients, compared with brute force and derivatives."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import reference
import small_problems as small
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nrprob.statistics import costs, families
from nrprob.statistics.families import fit_features
from nrprob.statistics.rows import Layout, bucket_size, make_layout, make_rows
from nrprob.statistics.terms import Term, objective
from nrprob.statistics.xlogx import safe_log, xlogx

DTYPES = (np.float32, np.float64)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


# x log x


def _eight(points, dtype):
    """The points, repeated to one length, since every length is compiled."""
    return jax.device_put(np.resize(np.asarray(points, dtype), 8))


@pytest.mark.parametrize("dtype", DTYPES)
class TestXlogx:
    points = (0.0, 1e-40, -1e-18, -1e-7)

    def test_value(self, dtype):
        x = _eight([*self.points, 1e-20, 0.3, 1.0, 5.0], dtype)
        exact = np.array([0, 0, 0, 0, 1e-20 * np.log(1e-20), 0.3 * np.log(0.3), 0, 5 * np.log(5)])
        value = np.asarray(xlogx(x))
        assert value.dtype == dtype
        np.testing.assert_allclose(value, exact, rtol=1e-6, atol=1e-37)

    @pytest.mark.parametrize("how", ["grad", "vmap", "jit", "jit of vmap"])
    def test_gradient_near_zero(self, dtype, how):
        x = _eight(self.points, dtype)
        slope = jax.grad(lambda v: xlogx(v).sum())
        each = jax.vmap(jax.grad(xlogx))
        way = {"grad": slope, "vmap": each, "jit": jax.jit(slope), "jit of vmap": jax.jit(each)}
        g = np.asarray(way[how](x))
        assert g.dtype == dtype
        assert np.isfinite(g).all()
        # An impossible symbol must cost much, not nothing.
        assert (g < -60).all()

    def test_gradient_elsewhere(self, dtype):
        x = _eight([1e-20, 1e-3, 0.3, 1.0, 7.0], dtype)
        g = jax.vmap(jax.grad(xlogx))(x)
        np.testing.assert_allclose(g, 1 + np.log(np.asarray(x, float)), rtol=1e-6, atol=1e-6)

    def test_second_derivative(self, dtype):
        x = _eight([*self.points, 1e-20, 1e-35], dtype)
        slope = jax.grad(lambda v: xlogx(v).sum())
        for way in (slope, jax.jit(slope)):
            _, second = jax.jvp(way, (x,), (_eight([1], dtype),))
            assert np.isfinite(second).all()
        x = _eight([0.1, 2.0], dtype)
        np.testing.assert_allclose(jax.jvp(slope, (x,), (x,))[1], 1, rtol=1e-6)

    def test_safe_log(self, dtype):
        x = _eight([0.0, -1.0, 1.0, 2.0], dtype)
        exact = [np.log(1e-30), np.log(1e-30), 0, np.log(2)]
        np.testing.assert_allclose(safe_log(x), 2 * exact, rtol=1e-6)


# Costs


COSTS = {family: jax.jit(families.get_family(family).cost) for family in families.family_names()}


def _cell(family, x, w):
    """Cost of the cell of the rows ``x`` with masses ``w``, minus half the squares."""
    cost = reference._cell(x, w, family)
    return cost - 0.5 * float(w @ (x**2).sum(1)) if family == "gaussian" else cost


@pytest.mark.parametrize("family", small.FAMILIES)
def test_cost_of_a_cell(family):
    x, w = small.features(family), small.masses()
    cell = np.concatenate([w @ x, w.sum(keepdims=True)])
    cost = COSTS[family]
    np.testing.assert_allclose(cost(cell), _cell(family, x, w), rtol=1e-12)
    np.testing.assert_allclose(cost(3 * cell), 3 * cost(cell), rtol=1e-12)  # degree 1
    assert cost(np.zeros_like(cell)) == 0
    np.testing.assert_allclose(  # leading axes and columns of zeros add no cost
        cost(np.stack([np.insert(cell, 2, np.zeros(3)), np.zeros(cell.size + 3)])),
        [cost(cell), 0],
        rtol=1e-12,
    )


def test_cost_of_mass():
    n = np.array([3.0, 5.0, 0.0])
    cells = np.zeros((3, 4))
    cells[:, -1] = n
    total = np.asarray(jax.jit(costs.mass_cost)(cells)).sum()
    assert float(total) == pytest.approx(-(3 * np.log(3) + 5 * np.log(5)))


@pytest.mark.parametrize("family", small.FAMILIES)
def test_costs_never_fall_when_cells_join(family):
    x, w = small.features(family), small.masses()
    cost = COSTS[family]
    full = np.concatenate([w[:, None] * x, w[:, None]], 1)
    a, b = full[:25].sum(0), full[25:].sum(0)
    assert float(cost(a + b)) > float(cost(a)) + float(cost(b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_residue_of_a_gaussian_cell_costs_nothing(dtype):
    residue = np.asarray([1e-6, -1e-6, 0.0], dtype)
    value, g = jax.jit(jax.value_and_grad(lambda c: costs.gaussian_cost(c).sum()))(residue)
    assert value == 0
    assert np.isfinite(g).all()


# Rows in blocks


def _dense_cells(x, w, z, n_groups):
    """Definition of the cells, row by row."""
    full = np.concatenate([x, np.ones((len(x), 1))], 1)
    out = np.zeros((n_groups, *w.shape[1:], full.shape[1]))
    for i in range(len(x)):
        out[z[i]] += w[i][..., None] * full[i]
    return out


def _trim(cells, m):
    """Features and mass of cells; padding columns must be zero."""
    cells = np.asarray(cells)
    assert not cells[..., m:-1].any()
    return np.concatenate([cells[..., :m], cells[..., -1:]], -1)


GROUPS = {
    "unbalanced": small.groups(),
    "one group": np.zeros(small.N, int),
    "one row per group": np.random.default_rng(0).permutation(small.N),
    "nearly all in one": np.r_[2, 1, np.zeros(small.N - 2, int)],
}


def _as_kind(x, kind):
    return {"numpy": np.asarray, "jax": jax.device_put, "sparse": sparse.csr_array}[kind](x)


def _by_entries(rows):
    """Sparse rows without products of compressed rows."""
    return replace(rows, x=replace(rows.x, by_cell=None))


def _rough(w, z, x, n_groups, kind):
    """Layout, rows and masses in blocks, for one type of input."""
    x = _as_kind(x, "sparse" if kind == "entries" else kind)
    layout, rows = small.laid_out(x, z, n_groups)
    return layout, _by_entries(rows) if kind == "entries" else rows, layout.to_blocks(w)


@pytest.mark.parametrize("kind", ["numpy", "jax", "sparse", "entries"])
@pytest.mark.parametrize("name", GROUPS)
def test_cells_are_those_of_a_loop(name, kind):
    if kind in ("jax", "entries") and name != "unbalanced":
        pytest.skip("laid out as another kind is")
    z = GROUPS[name]
    n_groups = int(z.max()) + 1
    rng = np.random.default_rng(3)
    x = small.features("multinomial") - 0.05 * (rng.random((small.N, small.M)) < 0.3)
    w = rng.random((small.N, 2, small.K))
    layout, rows, spread = _rough(w, z, x, n_groups, kind)
    cells = small.cells_of(rows, spread)
    np.testing.assert_allclose(
        _trim(cells, small.M), _dense_cells(x, w, z, n_groups), rtol=1e-12, atol=1e-12
    )
    # By the one-hot expansion: masses (n, clusters x groups).
    full = np.concatenate([x, np.ones((small.N, 1))], 1)
    expanded = w[..., None] * np.eye(n_groups)[z][:, None, None]
    np.testing.assert_allclose(
        _trim(cells, small.M), np.einsum("iskl,ip->lskp", expanded, full), rtol=1e-12, atol=1e-12
    )
    g = rng.normal(size=cells.shape)
    back = layout.from_blocks(np.asarray(small.adjoint_of(rows, g)))
    padded = np.zeros((small.N, rows.x.n_statistics))
    padded[:, : small.M], padded[:, -1] = x, 1
    np.testing.assert_allclose(
        back, np.einsum("ip,iskp->isk", padded, g[z]), rtol=1e-12, atol=1e-12
    )


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(["numpy", "sparse"]))
def test_adjoint(seed, kind):
    rng = np.random.default_rng(seed)
    z = rng.integers(small.L, size=small.N) * rng.integers(2, size=small.N)
    x = rng.normal(size=(small.N, small.M)) * (rng.random((small.N, small.M)) < 0.5)
    w = rng.normal(size=(small.N, 2, small.K))
    _, rows, spread = _rough(w, z, x, small.L, kind)
    with jax.enable_x64(True):
        cells = np.asarray(small.cells_of(rows, spread))
        g = rng.normal(size=cells.shape)
        back = np.asarray(small.adjoint_of(rows, g))
        assert float((cells * g).sum()) == pytest.approx(float((back * spread).sum()), abs=1e-9)


@pytest.mark.parametrize("kind", ["numpy", "sparse"])
def test_soft_share(kind):
    rng = np.random.default_rng(5)
    share = rng.dirichlet(np.ones(small.L), small.N)
    x = small.features("gaussian") * (rng.random((small.N, small.M)) < 0.6)
    w = rng.random((small.N, 1, small.K))
    given_x = sparse.csr_array(x) if kind == "sparse" else x
    layout, rows = small.laid_out(given_x, None, small.L, share=share)
    spread = layout.to_blocks(w)
    cells = np.asarray(small.cells_of(rows, spread))
    full = np.concatenate([x, np.ones((small.N, 1))], 1)
    exact = np.einsum("il,isk,ip->lskp", share, w, full)
    np.testing.assert_allclose(_trim(cells, small.M), exact, rtol=1e-12, atol=1e-12)
    g = rng.normal(size=cells.shape)
    back = np.asarray(small.adjoint_of(rows, g))
    assert float((cells * g).sum()) == pytest.approx(float((back * spread).sum()), rel=1e-10)


def test_hard_share_is_a_grouping():
    x, z, w = small.features("gaussian"), small.groups(), small.memberships("soft")[:, None]
    layout, rows = small.laid_out(x, z)
    soft_layout, soft_rows = small.laid_out(x, None, small.L, share=np.eye(small.L)[z])
    np.testing.assert_allclose(
        small.cells_of(rows, layout.to_blocks(w)),
        small.cells_of(soft_rows, soft_layout.to_blocks(w)),
        atol=1e-12,
    )


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("kind", ["numpy", "sparse"])
def test_padding_contributes_nothing(kind):
    x, z = small.features("gaussian"), small.groups()
    w = small.memberships("soft")[:, None]
    layout, rows, _ = _rough(w, z, x, small.L, kind)
    real = np.zeros((layout.n_blocks, layout.n_rows), bool).reshape(-1)
    real[layout.slot] = True
    real = real.reshape(layout.n_blocks, layout.n_rows)
    assert real.sum() == small.N < real.size
    assert not np.asarray(rows.mass)[~real].any()
    # Equal masses on padding have no effect, since its statistics are zero, including the last.
    clean = small.cells_of(rows, layout.to_blocks(w))
    dirty = small.cells_of(rows, layout.to_blocks(w, fill=7.0))
    np.testing.assert_array_equal(clean, dirty)
    # The blocks of a group hold rows of that group.
    for b, g in enumerate(layout.block_group):
        inside = np.flatnonzero(layout.slot // layout.n_rows == b)
        assert (z[inside] == g).all()


_totals = jax.jit(lambda rows: rows.totals())
_scatter = jax.jit(lambda rows, centre: rows.scatter(centre))


@pytest.mark.parametrize("kind", ["numpy", "sparse"])
@pytest.mark.parametrize("soft", [False, True])
def test_totals_and_scatter(kind, soft):
    rng = np.random.default_rng(8)
    x, z, mass = small.features("gaussian"), small.groups(), small.masses()
    x = x * (rng.random(x.shape) < 0.6)
    share = rng.dirichlet(np.ones(small.L), small.N) if soft else np.eye(small.L)[z]
    given_x = sparse.csr_array(x) if kind == "sparse" else x
    extra = {"share": share} if soft else {}
    _, rows = small.laid_out(given_x, None if soft else z, small.L, mass=mass, **extra)
    totals = np.asarray(_totals(rows))
    exact = share.T @ (mass[:, None] * np.concatenate([x, np.ones((small.N, 1))], 1))
    np.testing.assert_allclose(_trim(totals, small.M), exact, rtol=1e-12, atol=1e-12)
    centre = totals / totals[:, -1:]
    mean = exact[:, :-1] / exact[:, -1:]
    scatter = np.einsum("i,il,ilp->p", mass, share, (x[:, None] - mean) ** 2)
    np.testing.assert_allclose(np.asarray(_scatter(rows, centre))[: small.M], scatter, rtol=1e-10)


def test_sparse_rows_without_entries_and_repeated_columns():
    x = np.zeros((small.N, small.M))
    x[5, 2], x[5, 0], x[40, 5] = 3.0, -1.0, 2.0
    z = small.groups()
    coo = sparse.coo_array(
        (np.array([1.0, 2.0, -1.0, 2.0, 0.0]), ([5, 5, 5, 40, 7], [2, 2, 0, 5, 1])), shape=x.shape
    )
    unsorted = sparse.csr_array(
        (np.array([3.0, -1.0, 2.0]), np.array([2, 0, 5]), np.cumsum([0, *(x != 0).sum(1)])),
        shape=x.shape,
    )
    w = small.memberships("soft")[:, None]
    exact = _dense_cells(x, w, z, small.L)
    for given_x in (coo.tocsr(), unsorted):
        layout, rows = small.laid_out(given_x, z)
        cells = small.cells_of(rows, layout.to_blocks(w))
        np.testing.assert_allclose(_trim(cells, small.M), exact, rtol=1e-12, atol=1e-12)
        start = np.asarray(rows.x.start)
        entries = start[layout.slot + 1] - start[layout.slot]
        assert entries[5] == 3 and entries[40] == 2 and entries[0] == 1


def test_rows_are_compressed_where_a_cpu_is_asked_for(monkeypatch):
    x = sparse.random_array((small.N, small.M), density=0.4, rng=0).tocsr()
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert small.laid_out(x, small.groups())[1].x.by_cell is None
    with jax.default_device(jax.devices("cpu")[0]):
        assert small.laid_out(x, small.groups())[1].x.by_cell is not None
    with jax.default_device("cpu"):
        assert small.laid_out(x, small.groups())[1].x.by_cell is not None


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_clusters", [2, 4, 5])
def test_products_of_compressed_rows_are_sums_over_entries(n_clusters, dtype):
    """Products, their batches and their derivatives."""
    rng = np.random.default_rng(3)
    z = small.groups()
    x = [sparse.random_array((small.N, small.M), density=0.4, rng=i, dtype=dtype) for i in (0, 1)]
    result = [small.laid_out(one.tocsr(), z)[1] for one in x]
    assert result[0].x.by_cell is not None
    rows = jax.tree.map(lambda *parts: np.stack(parts), *result)
    w = rng.random((2, *result[0].mass.shape, 2, n_clusters)).astype(dtype)

    def both_ways(rows, w):
        cells = rows.cells(w)
        return cells, rows.adjoint(cells)

    @jax.jit
    def all_of(rows, w):
        return jax.vmap(lambda rows, w: jax.jvp(lambda w: both_ways(rows, w), (w,), (w,)))(rows, w)

    with jax.enable_x64(True):
        exact = all_of(_by_entries(rows), w)
        result = all_of(rows, w)
        for one, true in zip(jax.tree.leaves(result), jax.tree.leaves(exact), strict=True):
            assert one.dtype == true.dtype == dtype
            np.testing.assert_allclose(one, true, rtol=1e-4 if dtype == np.float32 else 1e-12)
        sharp = jax.jit(lambda rows, w: both_ways(rows, w)[1])
        one = sharp(jax.tree.map(lambda a: a[0], rows), w[0])
        np.testing.assert_allclose(one, exact[0][1][0], rtol=1e-4)


def test_few_entries_are_few_in_memory():
    x = sparse.random_array((small.N, small.M), density=0.1, rng=0)
    rows = small.laid_out(x.tocsr(), small.groups())[1]
    assert x.nnz + small.N <= rows.x.value.size <= 256


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 300),
    n_groups=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_layout_round_trip(n, n_groups, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(rng.integers(1, n_groups + 1), size=n)  # later groups may be empty
    layout = make_layout(codes, n_groups)
    values = rng.normal(size=(n, 2))
    spread = layout.to_blocks(values, fill=-9)
    assert spread.shape == (layout.n_blocks, layout.n_rows, 2)
    np.testing.assert_array_equal(layout.from_blocks(spread), values)
    assert (spread == -9).all(-1).sum() == layout.n_blocks * layout.n_rows - n
    assert len(set(layout.slot)) == n
    np.testing.assert_array_equal(layout.block_group[layout.slot // layout.n_rows], codes)
    assert (np.diff(layout.block_group) >= 0).all()
    # The shape depends on the sizes only.
    other = make_layout(np.zeros(n, int), n_groups)
    assert (other.n_blocks, other.n_rows) == (layout.n_blocks, layout.n_rows)


@given(st.integers(1, 5000))
def test_bucket(size):
    b = bucket_size(size, 4096)
    if size > 4096:
        assert b == size
        return
    assert size <= b < max(1.5 * size, 2)
    assert bucket_size(b, 4096) == b
    odd = b
    while odd % 2 == 0:
        odd //= 2
    assert odd in (1, 3)


def test_spread_keeps_the_type():
    layout = Layout(2, 2, np.array([3, 0]), np.zeros(2, np.int32))
    spread = layout.to_blocks(np.array([4, 5], np.int32), -1)
    np.testing.assert_array_equal(spread, [[5, -1], [-1, 4]])
    assert spread.dtype == np.int32


@pytest.mark.parametrize("kind", ["numpy", "jax", "sparse"])
def test_float32_stays_float32(kind):
    x, z = small.features("gaussian").astype(np.float32), small.groups()
    w = small.memberships("soft").astype(np.float32)[:, None]
    layout, rows = small.laid_out(_as_kind(x, kind), z)
    terms, _ = small.problem("residual", rows, "gaussian", x, z, np.ones(small.N))
    score = small.score_of(terms, rows, layout.to_blocks(w))
    assert rows.mass.dtype == score.dtype == np.float32
    assert small.cells_of(rows, layout.to_blocks(w)).dtype == np.float32
    assert objective(terms, small.cells_of(rows, layout.to_blocks(w))).dtype == np.float32


# Objectives and scores


def _side(W, z):
    """Derivative of I(C;Z), with the same small mass added to empty cells."""
    joint = np.stack([W[z == g].sum(0) for g in range(small.L)])
    joint = joint + 1e-12 * joint.sum(1, keepdims=True)
    return (np.log(joint / joint.sum(0)) - np.log(joint.sum(1, keepdims=True) / joint.sum()))[z]


def _hand_score(kind, x, W, z, mass, family):
    marginal = reference.score_marginal(x, W, family)
    if kind == "side":
        return marginal + small.GAMMA * _side(W, z)
    score = reference.score_conditional(x, W, z, family)
    if kind == "marginal":
        return score + small.WEIGHT * marginal
    # The reference divides residuals by the square root of their mean variance, the package does
    # not.
    common = small.within_variance(x, z, mass)
    residual = reference.score_residual(x, W, z, mass, scale="common")
    return score + small.WEIGHT * common * residual


def _with_constant_columns(family, z):
    """Features with columns that are 0, 1, or 0 in one group only."""
    x = small.features(family)
    x[:, 1] = 0
    x[z == 1, 3] = 0
    if family == "multinomial":
        x[:, 5] += 1e-3
        return x / x.sum(1, keepdims=True)
    x[:, 2] = 1
    return x


# In float64 the difference is the tiny mass, 1e-12 of a group here and of a row there.
TOLERANCE = {np.float64: 1e-9, np.float32: 1e-4}


SCORES = [
    # Tests that compile the same parts again in the other precision are slow.
    pytest.param(
        dtype,
        family,
        kind,
        marks=[pytest.mark.slow] if dtype == np.float32 and kind != "residual" else [],
    )
    for dtype in DTYPES
    for family in small.FAMILIES
    for kind in ("marginal", "residual", "side")
]


@pytest.mark.parametrize("members", ["soft", "hard", "empty cells", "empty clusters"])
@pytest.mark.parametrize(("dtype", "family", "kind"), SCORES)
def test_score_is_the_derived_one(dtype, family, kind, members):
    z, mass = small.groups(), small.masses()
    x = _with_constant_columns(family, z).astype(dtype)
    W = mass[:, None] * small.memberships(members, z=z)
    layout, rows = small.laid_out(x, z, mass=mass)
    terms, _ = small.problem(kind, rows, family, x, z, mass)
    score = small.score_of(terms, rows, layout.to_blocks(W.astype(dtype)[:, None]))
    assert score.dtype == dtype
    score = layout.from_blocks(np.asarray(score))[:, 0].astype(float)
    hand = _hand_score(kind, x.astype(float), W, z, mass, family)
    np.testing.assert_allclose(
        score - score.mean(1, keepdims=True),
        hand - hand.mean(1, keepdims=True),
        rtol=0,
        atol=TOLERANCE[dtype],
    )


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.float64, 0),
        (np.float64, 1),
        (np.float32, 0),
        (np.float32, 1),
    ],
)
def test_score_of_binary_columns_that_are_constant_in_a_cell(dtype, value):
    """An unseen value of a cell has about equal cost whether it is coded 0 or 1."""
    z = np.zeros(small.N, int)
    x = small.features("bernoulli").round()
    labels = np.random.default_rng(0).integers(small.K, size=small.N)
    x[:, 0] = np.where(labels == 1, value, np.arange(small.N) % 2)
    W = np.eye(small.K)[labels]
    layout, rows = small.laid_out(x.astype(dtype), z)
    terms = (small.feature_term(rows, "bernoulli", by_group=False),)
    score = small.score_of(terms, rows, layout.to_blocks(W.astype(dtype)[:, None]))
    score = layout.from_blocks(np.asarray(score))[:, 0]
    w = W.sum(0)
    sliver = 1e-12 * small.N
    one = W.T @ x + sliver * x.mean(0)
    zero = W.T @ (1 - x) + sliver * (1 - x).mean(0)
    hand = -x @ np.log(one).T - (1 - x) @ np.log(zero).T + small.M * np.log(w)
    np.testing.assert_allclose(
        score - score.mean(1, keepdims=True),
        hand - hand.mean(1, keepdims=True),
        atol=0.5 if dtype == np.float32 and value else 1e-2,  # of 28
    )


@pytest.mark.parametrize("kind", small.KINDS)
@pytest.mark.parametrize("family", small.FAMILIES)
def test_objective_is_the_definition(family, kind):
    z, mass, x = small.groups(), small.masses(), small.features(family)
    layout, rows = small.laid_out(x, z, mass=mass)
    terms, arguments = small.problem(kind, rows, family, x, z, mass)
    for seed in range(3):
        r = small.memberships("hard", seed)
        value = objective(
            terms, small.cells_of(rows, layout.to_blocks(mass[:, None] * r)[:, :, None])
        )
        exact = reference.objective(x, r.argmax(1), weights=mass, family=family, **arguments)
        np.testing.assert_allclose(value, [exact], rtol=1e-10)
    r = small.memberships("soft")
    value = objective(terms, small.cells_of(rows, layout.to_blocks(mass[:, None] * r)[:, :, None]))
    exact = reference.free_energy(x, r, weights=mass, family=family, **arguments)
    np.testing.assert_allclose(value, [exact], rtol=1e-10)


@pytest.mark.parametrize("kind", ["marginal", "residual", "side"])
@pytest.mark.parametrize("family", small.FAMILIES)
def test_score_is_the_price_of_a_tiny_mass(family, kind):
    z, mass, x = small.groups(), small.masses(), small.features(family)
    layout, rows = small.laid_out(x, z, mass=mass)
    terms, _ = small.problem(kind, rows, family, x, z, mass)
    w = layout.to_blocks(mass[:, None] * small.memberships("soft"))[:, :, None]
    cells = np.asarray(small.cells_of(rows, w))
    score = layout.from_blocks(np.asarray(small.score_of(terms, rows, w)))[:, 0]
    price, size = np.empty((4, small.K)), 1e-5
    for at, i in enumerate([0, 1, 2, 30]):
        for c in range(small.K):
            row = np.zeros(cells.shape)
            row[z[i], 0, c, : small.M], row[z[i], 0, c, -1] = size * x[i], size
            change = objective(terms, cells + row) - objective(terms, cells - row)
            price[at, c] = float(change[0]) / (2 * size)
    score = score[[0, 1, 2, 30]]
    np.testing.assert_allclose(
        score - score.mean(1, keepdims=True), price - price.mean(1, keepdims=True), atol=1e-6
    )


@pytest.mark.parametrize("family", small.FAMILIES)
def test_a_group_without_rows_changes_nothing(family):
    """Group 1 is empty: objectives and gradients are finite and equal without the group."""
    z, mass, x = small.groups() // 2 * 2, small.masses(), small.features(family)
    w = mass[:, None] * small.memberships("soft")
    result = []
    for codes in (z, z // 2 * 1):
        layout, rows = small.laid_out(x, codes, int(codes.max()) + 1, mass=mass)
        terms, _ = small.problem("residual", rows, family, x, codes, mass)
        spread = layout.to_blocks(w)[:, :, None]
        score = layout.from_blocks(np.asarray(small.score_of(terms, rows, spread)))
        result.append((float(objective(terms, small.cells_of(rows, spread))[0]), score))
    assert result[0][0] == pytest.approx(result[1][0], rel=1e-12)
    np.testing.assert_allclose(result[0][1], result[1][1], atol=1e-10)


def test_terms_of_a_residual_view():
    """Deviations of cells are sums of the deviations of their rows, with the same mass."""
    x, z, mass = small.features("gaussian"), small.groups(), small.masses()
    layout, rows = small.laid_out(x, z, mass=mass)
    term = small.residual_term(rows)
    r = small.memberships("hard")
    spread = layout.to_blocks(mass[:, None] * r)[:, :, None]
    own = jax.jit(Term.cells)(term, small.cells_of(rows, spread))
    deviation = np.empty_like(x)
    for g in range(small.L):
        deviation[z == g] = x[z == g] - np.average(x[z == g], axis=0, weights=mass[z == g])
    exact = (mass[:, None] * r).T @ np.c_[deviation, np.ones(small.N)]
    np.testing.assert_allclose(_trim(np.asarray(own)[0, 0], small.M), exact, atol=1e-12)
    flat = np.asarray(rows.x.x).reshape(-1, rows.x.n_statistics)[layout.slot]
    each = jax.jit(Term.row)(term, flat, z)
    np.testing.assert_allclose(_trim(each, small.M), np.c_[deviation, np.ones(small.N)], atol=1e-12)
    scatter = 0.5 * float(mass @ (deviation**2).sum(1))
    assert float(term.constant) == pytest.approx(scatter, rel=1e-12)
    assert replace(term, view=None).cells(np.ones((2, 1, 1, 3))).shape == (1, 1, 1, 3)


# Feature models


@pytest.mark.parametrize("kind", ["numpy", "jax", "sparse"])
@pytest.mark.parametrize("dtype", DTYPES)
class TestFeatures:
    def _as(self, x, kind, dtype):
        return _as_kind(np.asarray(x, dtype), kind)

    def _dense(self, x):
        return np.asarray(x.toarray() if sparse.issparse(x) else x)

    @pytest.mark.parametrize(
        ("values", "family"),
        [
            ([[0, 1], [1, 0], [1, 1]], "bernoulli"),
            ([[0, 2], [1, 0], [1, 1]], "multinomial"),
            ([[0.5, 2], [1, 0], [1, 1]], "gaussian"),
            ([[-1, 2], [1, 0], [1, 1]], "gaussian"),
        ],
    )
    def test_guess(self, values, family, kind, dtype):
        assert fit_features(self._as(values, kind, dtype), "auto", None).features == family

    def test_proportions(self, kind, dtype):
        x = self._as([[1, 3], [0, 5], [2, 2]], kind, dtype)
        out = fit_features(x, "multinomial", None)(x)
        assert out.dtype == dtype
        np.testing.assert_allclose(self._dense(out), [[0.25, 0.75], [0, 1], [0.5, 0.5]])

    def test_binarize(self, kind, dtype):
        x = self._as([[1, 3], [0, 5], [2, 2]], kind, dtype)
        features = fit_features(x, "auto", 2)
        out = features(x)
        assert features.features == "bernoulli"
        assert out.dtype == dtype
        np.testing.assert_array_equal(self._dense(out), [[0, 1], [0, 1], [0, 0]])
        np.testing.assert_array_equal(self._dense(x), [[1, 3], [0, 5], [2, 2]])

    def test_gaussian(self, kind, dtype):
        raw = np.random.default_rng(0).normal(size=(50, 4)) * [1, 2, 3, 4] + [0, 5, 0, -3]
        x = self._as(raw, kind, dtype)
        out = self._dense(fit_features(x, "gaussian", None)(x)).astype(float)
        assert out.var(0).mean() == pytest.approx(1, rel=1e-4)
        exact = raw if kind == "sparse" else raw - raw.mean(0)  # centring would fill the matrix
        np.testing.assert_allclose(out, exact / np.sqrt(raw.var(0).mean()), atol=1e-4)

    def test_constant_gaussian(self, kind, dtype):
        x = self._as(np.full((50, 4), 3.0), kind, dtype)
        assert np.isfinite(self._dense(fit_features(x, "gaussian", None)(x))).all()

    def test_refusals(self, kind, dtype):
        x = self._as([[1, 3], [0, -5], [2, 2]], kind, dtype)
        for family in ("multinomial", "bernoulli"):
            with pytest.raises(ValueError, match=rf"{family}.*row . *, column|{family}.*at row"):
                fit_features(x, family, None)(x)


def _report_of_an_empty_row(kind, dtype):
    x = np.asarray([[1, 3], [0, 0], [2, 2]], dtype)
    x = _as_kind(x, kind)
    with pytest.warns(UserWarning, match="row 1 has no counts"):
        out = fit_features(x, "multinomial", None)(x)
    out = out.toarray() if sparse.issparse(out) else np.asarray(out)
    np.testing.assert_allclose(out, [[0.25, 0.75], [0, 0], [0.5, 0.5]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "kind",
    [
        "numpy",
        "sparse",
        "jax",
    ],
)
def test_rows_without_counts_are_reported(kind, dtype):
    _report_of_an_empty_row(kind, dtype)


@pytest.mark.parametrize(
    "kind",
    [
        "numpy",
        "jax",
        "sparse",
    ],
)
def test_gaussian_features_stay_float32(kind):
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    x = _as_kind(x, kind)
    assert fit_features(x, "gaussian", None)(x).dtype == np.float32


def test_binarize_below_zero_needs_dense_rows():
    x = sparse.csr_array(np.eye(3))
    with pytest.raises(ValueError, match="at least 0 for sparse"):
        fit_features(x, "auto", -1.0)(x)


def test_rows_take_masses_and_bucketed_columns():
    x = small.features("gaussian", m=6)
    rows = make_rows(x, make_layout(np.zeros(small.N, int), 1), 1, mass=small.masses())
    assert rows.x.n_statistics == bucket_size(7, 1024) == 8
    assert float(rows.mass.sum()) == pytest.approx(small.masses().sum())
