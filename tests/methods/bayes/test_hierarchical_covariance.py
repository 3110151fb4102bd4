"""Tempered densities, and covariances shrunk to a common one."""

import functools
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bayes_models import correlated_rows, sampled_model, with_grid
from partitions import all_partitions, p_value, places
from scipy import integrate, stats
from sklearn.exceptions import ConvergenceWarning

from nrprob import DegenerateClusterWarning, MDLMixture
from nrprob.engines.sample import chains
from nrprob.methods.bayes import student_t
from nrprob.methods.bayes.full_covariance import moments
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.joint_target import JointKernel
from nrprob.methods.bayes.shared_covariance import SharedCovariance
from nrprob.methods.bayes.unit_normal import UnitNormal
from nrprob.metrics import matched_accuracy
from nrprob.statistics.codes import NormalWishart

N, D, K = 6, 2, 4
LEVEL = 1e-4
VALUES, FREEDOMS = np.asarray([0.1, 1.0, 2.0]), np.asarray([2.0, 12.0])


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def in_one_column(x, power, kappa, variance, freedom):
    """Log integral of tempered Gaussian densities over mean and variance, by quadrature."""
    shape, scale = (2 + freedom) / 2, freedom * variance / 2

    def given(s):
        # N(x | b, s) ** power is a multiple of N(x | b, s / power).
        each = s / power
        multiple = 0.5 * np.log(2 * np.pi * each) - 0.5 * power * np.log(2 * np.pi * s)
        between = each * np.eye(len(x)) + s / kappa
        rows = stats.multivariate_normal.logpdf(x, np.zeros(len(x)), between)
        prior = stats.invgamma.logpdf(s, shape, scale=scale)
        return np.exp(rows + len(x) * multiple + prior)

    return np.log(integrate.quad(given, 0, np.inf, epsabs=0, epsrel=1e-10, limit=200)[0])


@pytest.mark.parametrize("power", [1.0, 0.35])
def test_a_power_of_the_density_is_integrated(power):
    x, numbers = np.asarray([0.3, -1.2, 0.8]), (0.4, 0.7, 3.0)
    expected = in_one_column(x, power, *numbers)
    cell = np.asarray([x.sum(), (x**2).sum(), 3.0])
    for full in (True, False):  # with one column, they are the same
        code = NormalWishart(*map(np.float64, numbers), 1, full, np.float64(power))
        assert float(jax.jit(code)(cell)) == pytest.approx(-expected, rel=1e-8)
    prior, square = Hyperparameters(0.4, 1.0, 0.7, 3.0), np.asarray([[(x**2).sum()]])
    shared = SharedCovariance(square, prior, np.float64(power), 1)
    both = np.stack([cell[[0, 2]], np.zeros(2)])[None]
    assert float(jax.jit(shared.nats)(both)) == pytest.approx(-expected, rel=1e-8)


@pytest.mark.parametrize("full", [True, False])
def test_what_a_row_adds_is_a_difference_of_lengths(full):
    x = np.random.default_rng(0).normal(size=(6, 3))
    squares = np.asarray(moments(x))[:, 3:] if full else x**2
    own = np.column_stack([x, squares, np.ones(6)])
    code = NormalWishart(*map(np.float64, (0.4, 0.7, 3.0)), 3, full, np.float64(0.6))
    cells = np.stack([own[:3].sum(0), own[3:5].sum(0), 0 * own[0]])

    @jax.jit
    def both(code, cells, row):
        prepared = jax.tree.map(lambda a: a[..., None], code.prepare_join(cells.T))
        return code.join_costs(prepared, row[:, None])[:, 0], code(cells + row) - code(cells)

    for one in (code, UnitNormal(np.float64(0.4), np.float64(0.6), 3)):
        result, expected = both(one, cells, own[5])
        assert result == pytest.approx(np.asarray(expected), rel=1e-9)


def made(power=1.0, errors="gaussian"):
    model = sampled_model("shrunk", power=power, errors=errors)
    target = model.target(correlated_rows(N), np.full(N, -1), 0, K, None)
    grid = Hyperparameters(
        np.asarray([0.05, 1.0]), np.asarray([1.0]), np.asarray([0.1, 0.8]), np.asarray([1.0, 9.0])
    )
    target = with_grid(target, jax.tree.map(jnp.asarray, grid))
    if errors == "gaussian":
        return target
    laws = VALUES, FREEDOMS, student_t.log_masses(VALUES, FREEDOMS)
    values, freedoms, masses = map(jnp.asarray, laws)
    update = target.update_of("inverse_df")
    update = replace(update, which=jnp.int32(0), values=values, freedoms=freedoms, log_mass=masses)
    return update.with_versions(target, jnp.ones_like(update.version))


def from_the_prior(target, key):
    """Distribution with all unknowns sampled from the prior, except the partition."""
    if "inverse_df" in target.names:
        which_key, version_key, key = jax.random.split(key, 3)
        update = target.update_of("inverse_df")
        which = jax.random.choice(which_key, len(FREEDOMS))
        shape = update.version.shape
        version = jax.random.categorical(version_key, update.log_mass[which], shape=shape)
        target = replace(update, which=which).with_versions(target, version)
    keys, grid = jax.random.split(key, 5), target.update_of("freedom").grid
    numbers = Hyperparameters(
        *(jax.random.choice(k, v) for k, v in zip(keys[:4], grid, strict=True))
    )
    turn = _wishart_root(keys[4], jnp.asarray(D + 2.0), ())
    return with_common(target, numbers, turn @ turn.T * numbers.variance / (D + 2))


def with_common(target, numbers, common):
    likelihood = target.likelihood.with_hyperparameters(numbers)
    return target.with_likelihood(likelihood.with_common(common))


def _wishart_root(key, freedom, shape):
    """Roots of Wishart matrices of scale I, by Bartlett's decomposition."""
    keys = jax.random.split(key)
    below = jnp.tril(jax.random.normal(keys[0], (*shape, D, D)), -1)
    chi2 = 2 * jax.random.gamma(keys[1], 0.5 * (freedom - jnp.arange(D)), (*shape, D))
    return below + jnp.sqrt(chi2)[..., None] * jnp.eye(D)


@pytest.mark.slow
@pytest.mark.contract
def test_the_length_of_a_partition_has_the_common_covariance_integrated_out():
    """Compare with the mean density over samples of this covariance from its prior."""
    labels = np.repeat([0, 1], 12)
    X = np.random.default_rng(0).normal(size=(24, D)) @ [[1, 0.7], [0, 0.6]] + 2 * labels[:, None]
    target = sampled_model("shrunk", power=0.8).target(X, np.full(24, -1), 0, K, None)
    grid = Hyperparameters(
        np.asarray([0.2]), np.asarray([1.0]), np.asarray([0.7]), np.asarray([6.0, 30.0])
    )
    target = with_grid(target, jax.tree.map(jnp.asarray, grid))
    wide = jnp.asarray(np.pad(labels, (0, target.x.shape[0] - 24)))

    @jax.jit
    def both(target, keys, freedom):
        fixed = target.likelihood.hyperparameters._replace(freedom=freedom)
        update = target.update_of("freedom")
        update = replace(update, grid=update.grid._replace(freedom=freedom[None]))
        only = target.with_update(update)

        def log_density(key):
            turn = _wishart_root(key, jnp.asarray(D + 2.0), ())
            now = with_common(target, fixed, turn @ turn.T * fixed.variance / (D + 2))
            return now.likelihood.common_nats() - now.length(now.cells(wide))

        result = jax.lax.map(log_density, keys, batch_size=1000)
        return only.shortest_length(wide), jax.nn.logsumexp(result) - np.log(len(keys))

    keys = jax.random.split(jax.random.key(0), 40_000)
    lengths = []
    for freedom in grid.freedom:
        length, log_mean = both(target, keys, jnp.asarray(freedom))
        assert abs(length + log_mean) < 0.06, freedom
        lengths.append(length)
    assert abs(jax.jit(lambda t: t.shortest_length(wide))(target) - min(lengths)) < 1e-9


def rows_given(target, labels, key):
    """Rows (n', D) given clusters, common covariance, and scale weights."""
    root_of_scale = 1.0
    if "inverse_df" in target.names:
        update = target.update_of("inverse_df")
        root_of_scale = jnp.sqrt(update.values[update.version])[:, None]
    keys, prior = jax.random.split(key, 3), target.likelihood.hyperparameters
    each = D + 1 + prior.freedom
    turn = _wishart_root(keys[0], each, (K,))
    root = jnp.linalg.cholesky(target.likelihood.common) @ jnp.swapaxes(jnp.linalg.inv(turn), 1, 2)
    root = root * jnp.sqrt(each)
    kappa = prior.centre_precision
    centres = jnp.einsum("kij,kj->ki", root, jax.random.normal(keys[1], (K, D))) / jnp.sqrt(kappa)
    noise = jnp.einsum("nij,nj->ni", root[labels], jax.random.normal(keys[2], (len(labels), D)))
    return (centres[labels] + noise / root_of_scale) * target.x[:, -1:]


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("errors", ["gaussian", "t"])
def test_joint_distribution(errors):
    """Geweke's test: data given everything else, and everything else given the data, alternately.

    Chains that start at draws from the prior remain distributed as the prior. Of six to eight
    tests, a correct sampler fails one once in 1,200 times.
    """
    turns, many = 3, 4_000
    target = made(errors=errors)
    kernel = JointKernel(2, 2)
    z = all_partitions(N)
    z = z[z.max(1) < K]
    wide = np.zeros((len(z), target.x.shape[0]), np.int32)
    wide[:, :N] = z
    labels_only = target.partition
    lengths = jax.vmap(lambda a: labels_only.length(labels_only.cells(a)))(wide)
    p = np.asarray(jnp.exp(lengths.min() - lengths))
    p = p / p.sum()
    begin = wide[np.random.default_rng(5).choice(len(z), many, p=p)]

    @jax.jit
    @jax.vmap
    def run(labels, key):
        first = from_the_prior(target, key).draw()

        def turn(t, carry):
            now = jax.random.fold_in(key, t)
            draw, labels = carry
            X = rows_given(target.condition(draw), labels, now)
            fresh = replace(target, rows=X)
            state = chains.ChainState({"labels": labels, **draw}, {}, jax.random.fold_in(now, 1))
            result = kernel.step(fresh, state).draw
            return {name: result[name] for name in draw}, result["labels"]

        return first, *jax.lax.fori_loop(0, turns, turn, (first, labels))

    first, last, labels = run(begin, jax.random.split(jax.random.PRNGKey(4), many))
    end = np.asarray(labels)[:, :N]
    assert (np.ptp(end - begin[:, :N], axis=1) > 0).mean() > 0.2  # they did move
    at = places(end, z)
    assert p_value(np.bincount(at, minlength=len(z)), p) > LEVEL
    for name in ("centre_precision", "variance", "freedom"):
        values, counts = np.unique(np.asarray(last[name]), return_counts=True)
        assert len(values) == 2 and p_value(counts, np.full(2, 0.5)) > LEVEL, name
    if errors == "t":
        counts = np.isclose(np.asarray(last["inverse_df"])[:, None], 1 / FREEDOMS).sum(0)
        assert p_value(counts, np.full(2, 0.5)) > LEVEL
        few = [(np.asarray(d["scale_weight"])[:, :N] < 0.5).sum(1) for d in (first, last)]
        assert (few[0] != few[1]).mean() > 0.3
        table = np.stack([np.bincount(f, minlength=N + 1) for f in few])
        rare = table.sum(0) < 20
        table = np.column_stack([table[:, ~rare], table[:, rare].sum(1)])
        assert stats.chi2_contingency(table[:, table.sum(0) > 0]).pvalue > LEVEL
    a, b = (np.asarray(draw["common_covariance"]) for draw in (first, last))
    for of in (lambda s: np.linalg.slogdet(s)[1], lambda s: s[:, 0, 1] / (s[:, 0, 0] + s[:, 1, 1])):
        assert (of(a) != of(b)).mean() > 0.99 and stats.ks_2samp(of(a), of(b)).pvalue > LEVEL


def test_predicted_densities_are_those_of_rows_left_out():
    target = made(power=0.7)
    labels = jnp.arange(target.x.shape[0], dtype=jnp.int32) % 2
    axis = np.linspace(-60, 60, 601)
    where = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    new = sampled_model("shrunk").new_rows(np.concatenate([target.rows[N - 1 : N], where]), 0)

    @jax.jit
    def both(target, key):
        target = from_the_prior(target, key)
        cells = target.cells(labels)
        less = cells.at[0, labels[N - 1]].add(-target.x[N - 1])
        cost = target.feature_costs(less, *new)
        grid = jnp.exp(-cost[0, 1:]).sum() * (axis[1] - axis[0]) ** 2
        return (
            -target.left_out_costs(cells, labels)[labels[N - 1], N - 1],
            -cost[labels[N - 1], 0],
            grid,
        )

    result, expected, total = both(target, jax.random.PRNGKey(1))
    assert float(result) == pytest.approx(float(expected), rel=1e-9)
    assert float(total) == pytest.approx(1, abs=0.03)  # nearly all of the density is on the grid


# Application


@functools.cache
def cut(seed=0):
    """Two clusters with skew columns, of 400 rows."""
    rng = np.random.default_rng(seed)
    y = np.arange(400) % 2
    return rng.gamma(3.0, size=(400, 3)) + 9 * y[:, None], y


@pytest.mark.slow
def test_clusters_under_a_low_power_need_not_be_normal():
    X, y = cut()
    settings = dict(covariance="tied", merge=None, num_warmup=200, num_samples=500, random_state=0)
    plain = MDLMixture(**settings).fit(X)
    lower = MDLMixture(**settings, likelihood_power=0.5).fit(X)
    assert plain.n_clusters_ > 2 and lower.n_clusters_ == 2
    assert matched_accuracy(y, lower.labels_) > 0.97
    assert (lower.posterior_["n_components"] == 2).mean() > 0.8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(covariance="shrunk", energy="nml"), "conjugate"),
        (
            dict(likelihood_power=0.5, energy="nml"),
            "likelihood_power=0.5 needs the conjugate prior",
        ),
        (dict(likelihood_power=1.5), "likelihood_power"),
        (dict(errors="t", kernel="six-move"), "errors='t' needs the conjugate prior"),
        (dict(errors="t"), "errors is for continuous features"),
        (dict(errors="cauchy"), "errors must be"),
        (dict(likelihood_power=0.5, features="bernoulli"), "continuous features"),
    ],
)
def test_what_does_not_go_together_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        MDLMixture(**change).fit(np.arange(12).reshape(6, 2) % 2)


@pytest.mark.slow
@pytest.mark.contract
def test_what_is_drawn_is_used_and_kept(tmp_path):
    X, y = cut()
    X, y = X[:80], y[:80]
    some = np.where(np.arange(80) % 5, -1, y)
    settings = dict(covariance="shrunk", errors="t", likelihood_power=0.7)
    settings = settings | dict(num_warmup=30, random_state=0)
    model = MDLMixture(**settings, num_samples=20, checkpoint=tmp_path / "run").fit(X, some)
    assert matched_accuracy(y, model.predict(X)) > 0.95
    assert np.allclose(model.predict_proba(X).sum(1), 1) and np.isfinite(model.score(X))
    data = model.to_arviz(log_likelihood=False)
    seen = np.asarray(data["observed_data"]["X"])
    assert np.allclose(seen, X)
    assert data["partition"]["scale_weight"].shape == (4, 20, 80)
    common = np.asarray(data["parameters"]["common_covariance"])
    assert common.shape == (4, 20, 3, 3) and (np.linalg.eigvalsh(common) > 0).all()
    once = MDLMixture(**settings, num_samples=30).fit(X, some)
    longer = model.extend(10)
    for name in once.posterior_:
        assert np.array_equal(longer.posterior_[name], once.posterior_[name]), name


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("kind", ["copies", "nearly sums"])
def test_a_common_covariance_stays_away_from_singular_ones(kind):
    """If rows are copies of a few, or a column depends on others, a density is unbounded."""
    X = np.random.default_rng(0).normal(size=(96, 4))
    X = np.repeat(X[:8], 12, 0) if kind == "copies" else X
    if kind != "copies":
        X[:, 3] = X[:, 0] - X[:, 1] + 3e-6 * X[:, 3]
    model = MDLMixture(covariance="shrunk", num_warmup=60, num_samples=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X)
    assert np.isfinite(model.posterior_["log_density"]).all() and np.isfinite(model.score(X))
    inverse = np.linalg.inv(model.posterior_["common_covariance"].values)
    trace = np.trace(inverse, axis1=2, axis2=3)
    assert 1e8 < trace.max() <= 1.001e10
    assert (model.n_clusters_ == 8) == (kind == "copies")


@pytest.mark.slow
def test_without_a_column_that_varies_there_is_one_cluster():
    with pytest.warns(DegenerateClusterWarning, match="constant"):
        model = MDLMixture(covariance="shrunk", num_warmup=2, num_samples=2, random_state=0)
        model.fit(np.ones((6, 2)))
    assert model.covariance_ == "diag" and np.isfinite(model.objective_)
