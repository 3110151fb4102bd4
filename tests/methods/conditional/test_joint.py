"""The joint EM of the conditional mixture: objective, steps, limits and invariants."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from joint_reference import log_joint, objective
from slowly import first_fast

from nrprob import ConditionalMixture
from nrprob.methods.conditional import joint_fit, normal_equations
from nrprob.methods.conditional.discrete_block import (
    DiscreteBlock,
    TiltRidge,
    initial_discrete,
    wright_omega,
)
from nrprob.methods.conditional.gaussian_block import Effects, Ridge, initial_gaussian
from nrprob.methods.conditional.joint import JointModel, Settings
from nrprob.methods.conditional.shares import BY_GROUP, FREE, UNIFORM, initial_shares
from nrprob.methods.conditional.table import DiscreteColumn, lay_out_table

K = 3
SHARES = {"uniform": UNIFORM, "free": FREE, "by_group": BY_GROUP}
FORMS = ("random", "held", "fixed", "absent")


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def mixed_table(kind, missing=0.0, n=90, n_groups=3, seed=0, n_categorical=2):
    """Numbers or None, discrete columns, and known groups."""
    rng = np.random.default_rng(seed)
    groups, cluster = rng.permutation(np.arange(n) % n_groups), rng.integers(K, size=n)
    x = rng.normal(size=(n, 3)) + 2 * rng.normal(size=(K, 3))[cluster]
    x += rng.normal(size=(n_groups, 3))[groups]
    columns = []
    if kind != "numbers":
        for _ in range(n_categorical):
            odds = rng.normal(size=(K, 4))[cluster] + 0.7 * rng.normal(size=(n_groups, 4))[groups]
            p = np.exp(odds) / np.exp(odds).sum(1, keepdims=True)
            codes = (rng.random((n, 1)) > p.cumsum(1)[:, :-1]).sum(1)
            columns.append(DiscreteColumn(codes, 4))
    if kind == "mixed":
        values, codes = np.unique(rng.poisson(np.exp(0.5 + 0.5 * cluster)), return_inverse=True)
        columns.append(DiscreteColumn(codes, len(values), values.astype(float)))
    if missing:
        x[rng.random(x.shape) < missing] = np.nan
        for column in columns:
            column.codes[rng.random(n) < missing] = -1
    return (None if kind == "categories" else x), columns, groups


@partial(jax.jit, static_argnames="covariance")
def run_em(table, settings, start, n_steps, covariance):
    model = JointModel(table, settings, covariance)
    return model.run(model.begin(*start, jnp.zeros((), int)), n_steps)


class Fit:
    """A table with the settings of one form of the model, and random initial memberships."""

    def __init__(
        self, data, form="random", shares="uniform", q=None, covariance="tied", tol=0.0, noise=0.0
    ):
        self.x, self.columns, self.groups = data
        self.q, self.form, self.shares = q, form, shares
        self.table, self.layout = lay_out_table(
            self.x, self.columns, self.groups, self.groups.max() + 1, q
        )
        # Log densities of noise: low ones, and those of odd samples.
        n = len(self.groups)
        self.log_noise = np.where(np.arange(n) % 9 == 0, 5.0, -12.0)
        self.table = self.table._replace(log_noise=self.layout.to_blocks(self.log_noise))
        effects = Effects(*(jnp.asarray(form == name) for name in ("held", "fixed", "absent")))
        self.ridge = self.tilt_ridge = gaussian = discrete = None
        n_groups = len(self.table.sizes)
        if self.x is not None:
            width, d = self.table.numeric.x.shape[2], self.x.shape[1]
            # Rounding errors of one column, and of two that were rotated.
            rounding = np.zeros((width, width))
            rounding[:3, :3] = [[0.3, 0, 0], [0, 0.1, 0.05], [0, 0.05, 0.1]]
            self.ridge = Ridge(
                *map(jnp.asarray, (30.0, d + 2.0, 0.5, 50.0)),
                jnp.ones(width),
                jnp.asarray(rounding),
            )
            means = np.zeros((n_groups, width))
            for z in {*self.groups} if form == "held" else ():
                means[z, :d] = np.nan_to_num(np.nanmean(self.x[self.groups == z], 0))
            gaussian = initial_gaussian(
                K, 0 if q is None else q.shape[1], jnp.asarray(means), jnp.eye(width),
                self.ridge, jnp.asarray(self.table.numeric.real),
            )  # fmt: skip
        if self.columns:
            self.tilt_ridge = TiltRidge(*map(jnp.asarray, (1.0, 2.0, 0.25)))
            values = jax.tree.map(jnp.asarray, self.table.values)
            discrete = initial_discrete(values, K, n_groups, 0.25)
        self.settings = Settings(
            self.ridge, self.tilt_ridge, effects, jnp.asarray(SHARES[shares]),
            jnp.asarray(noise), jnp.asarray(tol),
        )  # fmt: skip
        self.covariance = covariance
        r = np.random.default_rng(1).dirichlet(np.ones(K), len(self.groups))
        self.r = jnp.asarray(self.layout.to_blocks(r)).swapaxes(1, 2)
        self.gaussian, self.discrete = gaussian, discrete
        self.initial_shares = initial_shares(n_groups, K, jnp.float64)

    def run(self, n_steps, **changes):
        settings = self.settings._replace(**changes)
        start = self.r, self.gaussian, self.discrete, self.initial_shares
        result = run_em(self.table, settings, start, n_steps, covariance=self.covariance)
        return jax.tree.map(np.asarray, result)

    def memberships(self, result):
        return self.layout.from_blocks(result.state.r.swapaxes(1, 2))


GRID = list(itertools.product(("numbers", "categories", "mixed"), (0.0, 0.2), FORMS, SHARES))
FAST = [
    ("mixed", 0.2, "random", "by_group"),
    ("mixed", 0.0, "held", "free"),
    ("categories", 0.0, "fixed", "uniform"),
    ("numbers", 0.2, "absent", "by_group"),
]


def check_objective(kind, missing, form, shares, noise=0.0, **sizes):
    data = mixed_table(kind, missing, **sizes)
    rng = np.random.default_rng(2)
    q = rng.normal(size=(len(data[2]), 2)) if kind == "mixed" else None
    fit = Fit(data, form, shares, q, noise=noise)
    result = fit.run(60)
    trace = result.trace[0][~np.isnan(result.trace[0])]
    assert len(trace) == 60
    assert (np.diff(trace) >= -1e-9 * abs(trace[-1])).all()
    expected = objective(
        *data, q, result.state, fit.ridge, fit.tilt_ridge, form, shares, noise, fit.log_noise
    )
    np.testing.assert_allclose(result.state.objective, expected, rtol=1e-10)
    return fit.memberships(result).sum(1)


@pytest.mark.parametrize("kind, missing, form, shares", FAST)
def test_steps_raise_the_objective_which_is_its_definition(kind, missing, form, shares):
    check_objective(kind, missing, form, shares)


@pytest.mark.parametrize(
    "kind, missing, form, shares",
    [
        ("mixed", 0.2, "held", "uniform"),
        *(pytest.param(*c, marks=pytest.mark.slow) for c in GRID if c[1:] != (0.2, "held", "free")),
    ],
)
def test_steps_raise_the_objective_with_noise(kind, missing, form, shares):
    # Noise is dense at every ninth sample, and nearly absent at the others.
    clear = check_objective(kind, missing, form, shares, noise=0.1)
    assert clear[::9].max() < 0.5 < np.delete(clear, np.s_[::9]).mean()


@pytest.mark.slow
@pytest.mark.parametrize("kind, missing, form, shares", [c for c in GRID if c not in FAST])
def test_steps_raise_the_objective_of_all_forms(kind, missing, form, shares):
    check_objective(kind, missing, form, shares)


@pytest.mark.slow
@pytest.mark.parametrize("form, shares", [*itertools.product(FORMS, SHARES)])
def test_steps_raise_the_objective_of_small_groups(form, shares):
    missing = 0.0 if form == "fixed" else 0.2
    check_objective("mixed", missing, form, shares, n=120, n_groups=30)


@pytest.mark.parametrize("form", ["random", pytest.param("fixed", marks=pytest.mark.slow)])
def test_parameters_are_stationary_where_steps_end(form):
    fit = Fit(mixed_table("mixed", 0.2), form)
    state, table = (jax.tree.map(jnp.asarray, a) for a in (fit.run(3000).state, fit.table))

    def value(gaussian, discrete):
        model = JointModel(table, fit.settings, "tied")
        state_ = state._replace(
            gaussian=gaussian, precisions=model.gaussian.precisions(gaussian), discrete=discrete
        )
        return model.e_step(state_).objective

    gaussian, discrete = jax.jit(jax.grad(value, (0, 1)))(state.gaussian, state.discrete)
    d = fit.x.shape[1]
    symmetric = gaussian.sigma[:d, :d] + gaussian.sigma[:d, :d].T
    for slope in (gaussian.b, gaussian.m, symmetric, gaussian.t[:d, :d], *discrete):
        # Values that a group never has stop at a bound if effects are fixed.
        np.testing.assert_allclose(slope, 0, atol=1e-4)


@pytest.mark.parametrize("n_categorical", [4, 5])
def test_padding_of_columns_changes_nothing(n_categorical):
    """Four columns leave a column of padding without any value, five columns do not."""
    check_objective("categories", 0.1, "random", "free", n_categorical=n_categorical)


def test_densities_sum_to_one_over_all_discrete_values():
    fit = Fit(mixed_table("categories"), "random", "by_group")
    theta = fit.run(5).state.discrete
    values = jax.tree.map(jnp.asarray, fit.table.values)
    block = DiscreteBlock(
        values, fit.table.group[fit.table.cell], jnp.asarray(fit.table.sizes), fit.tilt_ridge,
        jnp.asarray(False), jnp.asarray(False),
    )  # fmt: skip
    probability = np.exp(block.log_table(theta))
    for first, second in itertools.product(range(3), range(K)):
        pairs = np.multiply.outer(probability[first, second, :4], probability[first, second, 4:8])
        np.testing.assert_allclose(pairs.sum(), 1, rtol=1e-12)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_order_of_samples_and_names_of_groups_and_values_do_not_matter(missing):
    x, columns, groups = mixed_table("mixed", missing)
    plain = Fit((x, columns, groups))
    rng = np.random.default_rng(3)
    order, names, value_names = rng.permutation(len(x)), rng.permutation(3), rng.permutation(4)
    renamed = [
        DiscreteColumn(
            np.where(c.codes < 0, -1, value_names[c.codes]) if c.scores is None else c.codes,
            c.n_values,
            # A tilt does not depend on the unit of its scores.
            None if c.scores is None else 3 * c.scores + 1,
        )
        for c in columns
    ]
    moved = [DiscreteColumn(c.codes[order], c.n_values, c.scores) for c in renamed]
    other = Fit((x[order], moved, names[groups][order]))
    r = plain.layout.from_blocks(np.asarray(plain.r).swapaxes(1, 2))[order]
    other.r = jnp.asarray(other.layout.to_blocks(r)).swapaxes(1, 2)
    expected, result = plain.run(20), other.run(20)
    np.testing.assert_allclose(
        other.memberships(result), plain.memberships(expected)[order], atol=1e-7
    )


def test_a_flat_prior_of_group_effects_is_the_limit_of_a_wide_one():
    data = mixed_table("numbers")
    fixed = Fit(data, "fixed")
    wide = Fit(data, "random")
    ridge = wide.ridge._replace(tau0=jnp.asarray(1e7), nu_t=jnp.asarray(1e7))
    wide.gaussian = wide.gaussian._replace(t=1e7 * jnp.eye(wide.ridge.target.size))
    expected, result = fixed.run(30), wide.run(30, ridge=ridge)
    np.testing.assert_allclose(wide.memberships(result), fixed.memberships(expected), atol=1e-5)


def test_no_group_effects_are_the_limit_of_a_narrow_prior():
    data = mixed_table("numbers")
    absent, narrow = Fit(data, "absent"), Fit(data, "random")
    ridge = narrow.ridge._replace(tau0=jnp.asarray(1e-9), nu_t=jnp.asarray(1e9))
    narrow.gaussian = narrow.gaussian._replace(t=1e-9 * jnp.eye(narrow.ridge.target.size))
    expected, result = absent.run(30), narrow.run(30, ridge=ridge)
    np.testing.assert_allclose(narrow.memberships(result), absent.memberships(expected), atol=1e-5)


def test_fixed_effects_do_not_depend_on_the_level_of_a_group():
    x, columns, groups = mixed_table("numbers")
    plain = Fit((x, columns, groups), "fixed")
    shifted = Fit((x + 5.0 * np.arange(3)[groups][:, None], columns, groups), "fixed")
    expected, result = plain.run(20), shifted.run(20)
    np.testing.assert_allclose(shifted.memberships(result), plain.memberships(expected), atol=1e-6)


def test_free_effects_reach_at_least_the_objective_of_held_ones():
    data = mixed_table("mixed", 0.2)
    held = Fit(data, "held")
    end = held.run(60)
    joint = Fit(data, "random")
    joint.r = jnp.asarray(end.state.r)
    joint.gaussian, joint.discrete = end.state.gaussian, end.state.discrete
    assert joint.run(60).state.objective >= end.state.objective - 1e-9


def test_equal_concentrations_are_equal_shares():
    data = mixed_table("mixed")
    uniform, dirichlet = Fit(data, "random"), Fit(data, "random", "by_group")
    wide = dirichlet.initial_shares._replace(concentration=jnp.full(K, 1e3))
    dirichlet.initial_shares = wide
    np.testing.assert_allclose(
        dirichlet.memberships(dirichlet.run(1)), uniform.memberships(uniform.run(1)), atol=0.05
    )


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_columns_that_depend_on_each_other_lose_no_digits(missing):
    x, columns, groups = mixed_table("mixed", missing)
    x[:, 2] = x[:, 0] + x[:, 1]
    fit = Fit((x, columns, groups), "random")
    # Sigma starts where the one-component fit ends.
    r = np.nan_to_num(x - np.array([np.nanmean(x[groups == z], 0) for z in range(3)])[groups])
    sigma = np.asarray(fit.gaussian.sigma).copy()
    sigma[:3, :3] = r.T @ r / len(r) + 1e-9 * np.eye(3)
    fit.gaussian = fit.gaussian._replace(sigma=jnp.asarray(sigma))
    ridge = fit.ridge._replace(nu0=jnp.asarray(0.1), rounding=jnp.zeros_like(fit.ridge.rounding))
    result = fit.run(60, ridge=ridge)
    trace = result.trace[0][:60]
    # The floor of Sigma, where the search ends, is no part of the objective.
    assert np.diff(trace).min() >= -0.05
    assert np.abs(result.state.gaussian.b).max() < 10


def test_groups_of_one_sample_give_finite_effects():
    x, columns, _ = mixed_table("mixed", n=60)
    fit = Fit((x, columns, np.arange(60)), "random")
    state = fit.run(40).state
    for leaf in jax.tree.leaves(state):
        assert np.isfinite(leaf).all()


def test_samples_without_an_observed_value_have_the_shares_of_their_group():
    x, columns, groups = mixed_table("mixed", 0.2)
    x[7] = np.nan
    for column in columns:
        column.codes[7] = -1
    fit = Fit((x, columns, groups), "random", "by_group")
    result = fit.run(15)
    share = np.exp(result.state.shares.log_share[groups[7]])
    np.testing.assert_allclose(fit.memberships(result)[7], share / share.sum(), rtol=1e-9)


def test_memberships_follow_from_the_definition():
    data = mixed_table("mixed", 0.2)
    fit = Fit(data, "random", "free")
    result = fit.run(10)
    log_p = log_joint(*data, None, result.state)
    expected = np.exp(log_p - np.logaddexp.reduce(log_p, 1, keepdims=True))
    np.testing.assert_allclose(fit.memberships(result), expected, atol=1e-9)


def test_wright_omega_solves_its_equation():
    x = np.concatenate([np.linspace(-700, 700, 1401), np.linspace(-3, 3, 101)])
    w = np.asarray(wright_omega(jnp.asarray(x)))
    np.testing.assert_allclose(w + np.log(w), x, rtol=1e-10, atol=1e-10)


def run_with(monkeypatch, fit, n_steps, direct):
    """Take EM steps with the direct solver of the normal equations, or with the other solvers."""
    monkeypatch.setattr(normal_equations, "solves_directly", lambda _: direct)
    start = fit.r, fit.gaussian, fit.discrete, fit.initial_shares

    @jax.jit
    def run(start):
        model = JointModel(fit.table, fit.settings, "tied")
        return model.run(model.begin(*start, jnp.zeros((), int)), n_steps)

    return jax.tree.map(np.asarray, run(start))


@pytest.mark.parametrize("form", first_fast(FORMS))
def test_both_solvers_of_complete_tables_agree(form, monkeypatch):
    # Of the groups, which are padded to a power of 2, some have no samples.
    q = np.random.default_rng(2).normal(size=(90, 2))
    fit = Fit(mixed_table("numbers", n_groups=5), form, "by_group", q)
    assert (fit.table.sizes == 0).any()
    direct, quick = (run_with(monkeypatch, fit, 8, direct).state for direct in (True, False))
    assert abs(direct.objective - quick.objective) < 1e-8
    for name in ("b", "slopes", "m", "s", "sigma", "t"):
        value, expected = getattr(quick.gaussian, name), getattr(direct.gaussian, name)
        np.testing.assert_allclose(value, expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("form", first_fast(FORMS))
def test_gradient_steps_with_missing_values_reach_the_same_optimum(form, monkeypatch):
    q = np.random.default_rng(2).normal(size=(90, 2))
    fit = Fit(mixed_table("numbers", missing=0.2, n_groups=5), form, "uniform", q)
    direct, gradient = (run_with(monkeypatch, fit, 250, direct) for direct in (True, False))
    trace = gradient.trace[0][~np.isnan(gradient.trace[0])]
    assert (np.diff(trace) >= -1e-9 * abs(trace[-1])).all()
    assert abs(direct.state.objective - gradient.state.objective) < 1e-3
    # The steps are not exact, so the first steps differ.
    exact = direct.trace[0][~np.isnan(direct.trace[0])]
    assert abs(exact[0] - trace[0]) > 1e-6


@pytest.mark.parametrize("form", first_fast(["random", "held"]))
def test_sums_over_pairs_and_over_cells_agree(form, monkeypatch):
    q = np.random.default_rng(2).normal(size=(90, 2))
    fit = Fit(mixed_table("numbers", missing=0.2, n_groups=5), form, "uniform", q)
    ends = []
    for per_cell in (0, 10**6):
        monkeypatch.setattr(normal_equations, "_PAIRS_PER_CELL", per_cell)
        ends.append(run_with(monkeypatch, fit, 4, False).state)
    for name in ("b", "slopes", "m", "s", "sigma", "t"):
        value, expected = (getattr(end.gaussian, name) for end in ends)
        np.testing.assert_allclose(value, expected, atol=1e-9, err_msg=name)


def test_a_pattern_without_samples_tells_incomplete_tables_from_complete_ones():
    x, _, groups = mixed_table("numbers")
    complete = lay_out_table(x, [], groups, 3)[0].numeric
    x[:, 1] = np.nan
    incomplete = lay_out_table(x, [], groups, 3)[0].numeric
    assert len(complete.observed) == 1 < len(incomplete.observed)
    assert set(incomplete.pattern) == {0} and incomplete.observed[0, :3].tolist() == [1, 0, 1]


def test_leaders_of_successive_halving_agree_with_target_labels(monkeypatch):
    x, _, groups = mixed_table("numbers", missing=0.1)
    # Labels that contradict the clusters of the unlabelled samples.
    y = np.where(np.arange(90) < 40, np.random.default_rng(3).integers(K, size=90), -1)
    original, leaders = joint_fit.sample_leaders, []

    def record(*arguments):
        result = original(*arguments)
        leaders.extend(result)
        return result

    monkeypatch.setattr(joint_fit, "_LARGE", 0)
    monkeypatch.setattr(joint_fit, "sample_leaders", record)
    ConditionalMixture(K, effects="subtract", n_init=6, random_state=0).fit(x, y, known=groups)
    assert leaders
    for r in leaders:
        np.testing.assert_array_equal(r[:40], np.eye(K)[y[:40]])
