"""Partitions in NumPyro models: densities, draws vs enumeration, refused models, exports."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from matrix_t import nats, nats_of_clusters
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density
from partitions import all_partitions
from scipy import stats
from scipy.special import gammaln, logsumexp, softmax
from slowly import first_fast

from nrprob.data.design import Design
from nrprob.methods.bayes.concentrations import SIZE_VALUES
from nrprob.methods.bayes.hyperparameters import GRID
from nrprob.numpyro import PartitionGibbs, partition
from nrprob.posterior.export import import_arviz

N, K = 6, 4
SHAPE, SCALE = 2.5, 0.6  # inverse-gamma prior of variances
SLOPE_SD = 2.0
FIXED = {"mean_precision": 0.2, "concentration": 1.5}
rng = np.random.default_rng(3)
T = rng.normal(size=N)
X = np.array([-0.9, -0.2, 0.1, 0.3, 0.8, 1.4])[:, None] + 0.4 * T[:, None]


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def model(X, t, **settings):
    slope = numpyro.sample("slope", dist.Normal(0, SLOPE_SD))
    rows = X - slope * t[:, None]
    settings = {"variance_shape": SHAPE, "variance_scale": SCALE, "max_clusters": K} | settings
    numpyro.deterministic("labels", partition("cluster", rows, **settings))


RESPONSE = np.array([-1.0, -0.6, 0.9, 0.2, 1.6, 1.2])
NOISE = 0.7


def profile_regression(X, y):
    """Clusters of rows have different means of a response, which are sampled."""
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([K]).to_event(1))
    weights = dist.Normal(mean, NOISE).log_prob(y[:, None])
    settings = {"variance_shape": SHAPE, "variance_scale": SCALE, "max_clusters": K}
    labels = partition("cluster", X, also=weights, **settings, **FIXED)
    numpyro.deterministic("slope", mean[labels[-1]])


def marginal(rows, kappa, shape=SHAPE, scale=SCALE):
    """Log marginal likelihood (..., d) of rows (..., n, d) with normal-inverse-gamma priors."""
    n = rows.shape[-2]
    mean = rows.mean(-2)
    square = ((rows - mean[..., None, :]) ** 2).sum(-2) + kappa * n / (kappa + n) * mean**2
    return (
        gammaln(shape + n / 2) - gammaln(shape) + shape * np.log(scale)
        - (shape + n / 2) * np.log(scale + square / 2)
        + 0.5 * np.log(kappa / (kappa + n)) - n / 2 * np.log(2 * np.pi)
    )  # fmt: skip


def prior(labels, alpha):
    """Log prior of a partition with k labelled clusters, up to a constant."""
    sizes = np.bincount(labels)
    k = len(sizes)
    return (
        gammaln(k * alpha) - gammaln(len(labels) + k * alpha)
        + sum(gammaln(size + alpha) - gammaln(alpha) for size in sizes)
    )  # fmt: skip


@cache
def exact_means(sampled=True, shared=False):
    """Posterior means of functions of draws, by enumeration and quadrature.

    Without ``sampled`` hyperparameters, kappa and alpha are the values of `FIXED`. With ``shared``,
    clusters share their variance.
    """
    slopes = np.linspace(-4, 4, 101)  # in steps of a third of the posterior standard deviation
    kappas = GRID.centre_precision if sampled else np.array([FIXED["mean_precision"]])
    alphas = SIZE_VALUES if sampled else np.array([FIXED["concentration"]])
    partitions = np.array([z for z in all_partitions(N) if z.max() < K])
    rows = X - slopes[:, None, None] * T[:, None]

    # 1. Log joint density of slope, partition and kappa; alpha depends on the partition alone.
    @cache
    def cluster(members):
        return np.stack([marginal(rows[:, members], kappa).sum(-1) for kappa in kappas], -1)

    def density(z):
        if not shared:
            return sum(cluster(tuple(np.flatnonzero(z == c))) for c in range(z.max() + 1))
        variance, freedom = SCALE / (SHAPE - 1), 2 * SHAPE - 2
        between = [np.eye(N) + (z[:, None] == z) / kappa for kappa in kappas]
        return -np.array([[nats(x, b, variance, freedom) for b in between] for x in rows])

    labels = np.array([[prior(z, alpha) for alpha in alphas] for z in partitions])
    log_p = np.empty((len(partitions), len(slopes), len(kappas)))
    for p, z in enumerate(partitions):
        log_p[p] = density(z) + logsumexp(labels[p]) - 0.5 * (slopes[:, None] / SLOPE_SD) ** 2
    p = np.exp(log_p - logsumexp(log_p))
    # 2. Means.
    k = partitions.max(1) + 1
    result = {f"P({j})": p[k == j].sum() for j in range(1, K + 1)}
    by_slope = p.sum((0, 2))
    result |= {"slope": by_slope @ slopes, "square": by_slope @ slopes**2}
    result["slope and one cluster"] = p[k == 1].sum((0, 2)) @ slopes
    result["first two together"] = p[partitions[:, 0] == partitions[:, 1]].sum()
    if sampled:
        result["log kappa"] = p.sum((0, 1)) @ np.log(kappas)
        result["slope times log kappa"] = slopes @ p.sum(0) @ np.log(kappas)
        result["log alpha"] = p.sum((1, 2)) @ (softmax(labels, 1) @ np.log(alphas))
    return result


def functions_of_draws(draws):
    """The functions of `exact_means`, (chain, draw) each."""
    labels, slope = draws["cluster"], draws["slope"]
    k = draws["cluster_n_clusters"]
    counted = np.apply_along_axis(lambda z: len(set(z)), -1, labels)
    np.testing.assert_array_equal(k, counted)
    result = {f"P({j})": k == j for j in range(1, K + 1)}
    result |= {"slope": slope, "square": slope**2, "slope and one cluster": slope * (k == 1)}
    result["first two together"] = labels[..., 0] == labels[..., 1]
    if "cluster_centre_precision" in draws:
        log_kappa = np.log(draws["cluster_centre_precision"])
        result |= {"log kappa": log_kappa, "slope times log kappa": slope * log_kappa}
    if "cluster_concentration" in draws:
        result["log alpha"] = np.log(draws["cluster_concentration"])
    return result


def errors_of(draws, exact):
    """Errors of the means of functions of draws, in Monte Carlo standard errors."""
    arviz, result = import_arviz(), {}
    for name, values in functions_of_draws(draws).items():
        values = np.asarray(values, float)
        error = values.std() / np.sqrt(float(arviz.ess(values)))
        result[name] = abs(values.mean() - exact[name]) / error
    assert result.keys() == exact.keys()
    return result


def run(kernel, *args, num_samples, num_warmup=300, num_chains=1, **settings):
    mcmc = MCMC(
        kernel, num_warmup=num_warmup, num_samples=num_samples, num_chains=num_chains,
        progress_bar=False, chain_method="sequential",
    )  # fmt: skip
    mcmc.run(jax.random.PRNGKey(0), *args, **settings)
    draws = mcmc.get_samples(group_by_chain=True)
    return mcmc, {name: np.asarray(value) for name, value in draws.items()}


# Densities


def reference(labels, covariance, kappa, alpha, rows):
    """Log density of labels and rows (n, d), up to the prior of the slope."""
    variance, freedom = SCALE / (SHAPE - 1), 2 * SHAPE - 2
    design = Design.from_groups(0 * labels)
    values = kappa, 1.0, variance, freedom
    features = nats_of_clusters(covariance, rows, np.eye(len(rows)), labels, design, values)
    return prior(labels, alpha) - features


@pytest.mark.parametrize("covariance", first_fast(["full", "diag", "tied"]))
def test_density_is_the_density_of_the_mixture(covariance):
    random = np.random.default_rng(0)
    rows, t = random.normal(size=(7, 2)), random.normal(size=7)  # 7 rows are padded
    loc, scale, slope = np.array([0.5, -0.3]), np.array([2.0, 0.7]), 0.3

    def total(slope, labels, kappa, alpha):
        values = {
            "slope": slope,
            "cluster": jnp.asarray(labels),
            "cluster_centre_precision": kappa,
            "cluster_concentration": alpha,
        }
        settings = {"covariance": covariance, "loc": loc, "scale": scale}
        return log_density(model, (rows, t), settings, values)[0]

    both = jax.jit(jax.value_and_grad(total))
    kappa, alpha = GRID.centre_precision[100], SIZE_VALUES[5]
    for labels in ([0] * 7, [0, 0, 1, 0, 1, 2, 2], [3, 1, 3, 1, 0, 0, 0]):
        labels = np.array(labels)
        names = np.unique(labels, return_inverse=True)[1]

        def expected(slope, names=names):
            x = (rows - slope * t[:, None] - loc) / scale
            result = reference(names, covariance, kappa, alpha, x)
            result -= len(rows) * np.log(scale).sum() + np.log(len(GRID.centre_precision))
            result -= np.log(len(SIZE_VALUES))
            return result + stats.norm.logpdf(slope, 0, SLOPE_SD)

        value, gradient = both(slope, labels, kappa, alpha)
        assert value == pytest.approx(expected(slope), rel=1e-10)
        difference = (expected(slope + 1e-5) - expected(slope - 1e-5)) / 2e-5
        assert gradient == pytest.approx(difference, rel=1e-6)


def test_weights_and_labelings_are_part_of_the_density():
    mean = np.array([0.3, -0.4, 1.0, 0.1])
    total = jax.jit(lambda values: log_density(profile_regression, (X, RESPONSE), {}, values)[0])
    for labels, k in (([2, 2, 0, 0, 3, 2], 3), ([1] * 6, 1)):
        labels = np.array(labels)
        names = np.unique(labels, return_inverse=True)[1]
        values = {"mean": mean, "cluster": jnp.asarray(labels)}
        value = total(values)
        expected = reference(names, "full", *FIXED.values(), X)
        expected += stats.norm.logpdf(RESPONSE, mean[labels], NOISE).sum()
        expected += gammaln(K - k + 1) - gammaln(K + 1) + stats.norm.logpdf(mean).sum()
        assert value == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
@pytest.mark.contract
def test_initial_hyperparameters_are_on_their_grids():
    for seed in range(3):
        seeded = numpyro.handlers.trace(numpyro.handlers.seed(model, seed))
        trace = seeded.get_trace(X, T)
        assert np.isin(trace["cluster_centre_precision"]["value"], GRID.centre_precision)
        assert np.isin(trace["cluster_concentration"]["value"], SIZE_VALUES)
        assert "cluster_variance" not in trace and "cluster_group_precision" not in trace


# Draws


@pytest.mark.slow
@pytest.mark.contract
def test_draws_are_exact_and_are_exported_to_arviz():
    kernel = PartitionGibbs(NUTS(model), num_split_merge=0)  # which compiles faster
    mcmc, draws = run(kernel, X, T, num_samples=3000, **FIXED)
    assert max(errors_of(draws, exact_means(sampled=False)).values()) < 5
    posterior = import_arviz().from_numpyro(mcmc, log_likelihood=False)["posterior"]
    assert posterior["cluster"].shape == (1, 3000, N)
    assert posterior["slope"].mean() == pytest.approx(draws["slope"].mean())
    # Deterministic sites may use the labels, and have their dtype.
    np.testing.assert_array_equal(draws["labels"], draws["cluster"])
    assert draws["cluster"].dtype == np.int64


@pytest.mark.slow
def test_draws_of_clusters_with_one_variance_are_exact():
    kernel = PartitionGibbs(NUTS(model), num_split_merge=2)
    _, draws = run(kernel, X, T, num_samples=10_000, covariance="tied", **FIXED)
    assert max(errors_of(draws, exact_means(sampled=False, shared=True)).values()) < 5


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_draws_with_hyperparameters_are_exact(covariance):
    kernel = PartitionGibbs(NUTS(model), num_split_merge=2)
    _, draws = run(kernel, X, T, num_samples=5000, num_chains=2, covariance=covariance)
    assert max(errors_of(draws, exact_means()).values()) < 5
    assert np.isin(draws["cluster_centre_precision"], GRID.centre_precision).all()
    assert np.isin(draws["cluster_concentration"], SIZE_VALUES).all()


class LabelsOnly(PartitionGibbs):
    """A wrong kernel: it samples labels and hyperparameters, and returns labels only."""

    def _resample_all(self, rng_key, gibbs_sites, hmc_sites):
        result = super()._resample_all(rng_key, gibbs_sites, hmc_sites)
        return {**gibbs_sites, "cluster": result["cluster"]}


@pytest.mark.slow
def test_draws_of_labels_alone_are_wrong():
    kernel = LabelsOnly(NUTS(model), num_split_merge=2)
    _, draws = run(kernel, X, T, num_samples=5000, num_chains=2, covariance="diag")
    exact = exact_means()
    labels, error = draws["cluster_n_clusters"], 0.5 / np.sqrt(10_000)
    assert max(abs((labels == k).mean() - exact[f"P({k})"]) for k in (1, 2)) > 10 * error


def exact_profile_regression():
    """Posterior means with the means of the response integrated out, by enumeration."""
    partitions = [z for z in all_partitions(N) if z.max() < K]
    log_p, last = [], []
    for z in partitions:
        value = prior(z, FIXED["concentration"])
        for c in range(z.max() + 1):
            y = RESPONSE[z == c]
            covariance = NOISE**2 * np.eye(len(y)) + 1
            value += stats.multivariate_normal.logpdf(y, np.zeros(len(y)), covariance)
            value += marginal(X[z == c], FIXED["mean_precision"]).sum()
        log_p.append(value)
        y = RESPONSE[z == z[-1]]
        variance = NOISE**2 / (len(y) + NOISE**2)
        mean = y.sum() / (len(y) + NOISE**2)
        last.append([mean, mean**2 + variance])
    p, k = softmax(log_p), np.array([z.max() + 1 for z in partitions])
    result = {f"P({j})": p[k == j].sum() for j in range(1, K + 1)}
    result |= dict(zip(["slope", "square"], p @ np.array(last), strict=True))
    result["slope and one cluster"] = (p * (k == 1)) @ np.array(last)[:, 0]
    result["first two together"] = p[[z[0] == z[1] for z in partitions]].sum()
    return result


@pytest.mark.slow
def test_draws_with_weights_of_labels_are_exact():
    kernel = PartitionGibbs(NUTS(profile_regression))
    _, draws = run(kernel, X, RESPONSE, num_samples=20_000)
    assert max(errors_of(draws, exact_profile_regression()).values()) < 5


@pytest.mark.slow
@pytest.mark.contract
def test_a_model_may_have_several_partitions():
    X, t = np.random.default_rng(1).normal(size=(2, 12, 1)), np.arange(12) % 2
    X[0] += 20 * t[:, None]

    def two_partitions(X):
        centre = numpyro.sample("centre", dist.Normal(0, 1))
        with numpyro.handlers.scope(prefix="first"):
            partition("part", (X[0] - centre) / 10, max_clusters=3, **FIXED)
        partition("part", X[1, :7] - centre, max_clusters=2, **FIXED)

    _, draws = run(PartitionGibbs(NUTS(two_partitions)), X, num_samples=200, num_warmup=100)
    assert draws["first/part"].shape == (1, 200, 12) and draws["part"].shape == (1, 200, 7)
    first = draws["first/part"][0]
    same = first[:, :, None] == first[:, None, :]
    assert same.mean(0)[t[:, None] != t].max() < 0.05  # 20 standard deviations apart
    assert {1, 2} >= set(draws["part_n_clusters"].ravel())


@pytest.mark.slow
def test_runs_continue_and_data_are_arguments():
    def hierarchical(X, t):
        model(X, t, covariance="shrunk")

    kernel = PartitionGibbs(NUTS(hierarchical))
    mcmc = MCMC(
        kernel, num_warmup=50, num_samples=50, num_chains=2,
        chain_method=jax.vmap, progress_bar=False, jit_model_args=True,
    )  # fmt: skip
    mcmc.run(jax.random.PRNGKey(0), X, T, extra_fields=("z.slope",))
    first = mcmc.get_samples(group_by_chain=True)
    assert first["cluster_common_covariance"].shape == (2, 50, 1, 1)
    mcmc.post_warmup_state = mcmc.last_state
    # The data of the first run differ, and so does the slope.
    mcmc.run(jax.random.PRNGKey(1), X + 3 * T[:, None], T)
    second = mcmc.get_samples(group_by_chain=True)
    assert second["slope"][:, 10:].mean() > first["slope"].mean() + 1
    assert kernel._model_arguments == ((), {})  # no tracer remains


# Input that is refused


def depends(X, t):
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
    labels = partition("cluster", X, max_clusters=3)
    numpyro.sample("response", dist.Normal(mean[labels], 1).to_event(1), obs=t)


def scaled(X, t):
    with numpyro.handlers.scale(scale=0.5):
        model(X, t)


def masked(X, t):
    with numpyro.handlers.mask(mask=False):
        model(X, t)


def chained(X, t):
    labels = partition("first", X, max_clusters=3)
    partition("second", X - labels[:, None], max_clusters=3)


def plated(X, t):
    with numpyro.plate("plate", 2):
        partition("cluster", X)


def plain(X, t):
    numpyro.sample("slope", dist.Normal(0, 1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (depends, "got response, which depends on cluster"),
        (chained, "got second_log_density, which depends on first"),
        (scaled, "handlers may not scale or mask the density of a partition; got cluster"),
        (masked, "handlers may not scale or mask the density of a partition; got cluster"),
        (plated, "a partition cannot be in a plate; got labels of shape"),
        (plain, "PartitionGibbs needs a model with a partition"),
    ],
)
def test_models_that_would_be_sampled_wrongly_are_refused(wrong, message):
    mcmc = MCMC(PartitionGibbs(NUTS(wrong)), num_warmup=1, num_samples=1, progress_bar=False)
    with pytest.raises(ValueError, match=message):
        mcmc.run(jax.random.PRNGKey(0), X, T)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": X[:, 0]}, r"rows must be a matrix .* got shape \(6,\); reshape"),
        ({"rows": X[:1]}, "of two rows or more"),
        ({"rows": np.where(X > 1, np.nan, X)}, "rows must be finite; got 1 values"),
        ({"rows": X + 1j}, "rows must be real numbers"),
        ({"scale": 0.0}, "scale must be positive; got 0.0"),
        ({"loc": np.zeros(2)}, r"loc must be a number or one number per feature; got shape \(2,\)"),
        ({"also": np.zeros((6, 3))}, r"got shape \(6, 3\) for 6 rows and 6 clusters"),
        ({"covariance": "auto"}, "covariance must be one of 'diag', 'full', 'shrunk', 'tied'"),
        ({"max_clusters": 0}, "max_clusters must be at least 1"),
        ({"max_clusters": "all"}, "max_clusters must be one of 'auto' or an integer"),
        ({"unordered": 2}, "unordered must be True or False; got 2"),
        ({"concentration": -1.0}, "concentration must be at least 1e-09"),
        ({"variance_shape": 2.0}, "set the other one as well"),
        ({"variance_shape": 1.0, "variance_scale": 1.0}, "variance_shape must be above 1; got 1.0"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    errors = ValueError, TypeError
    with numpyro.handlers.seed(rng_seed=0), pytest.raises(errors, match=message):
        partition("cluster", **({"rows": X} | settings))


def test_single_precision_is_refused():
    with jax.enable_x64(False), numpyro.handlers.seed(rng_seed=0):
        with pytest.raises(ValueError, match="call numpyro.enable_x64"):
            partition("cluster", X)


def test_vectorised_chains_are_refused():
    mcmc = MCMC(
        PartitionGibbs(NUTS(model)), num_warmup=1, num_samples=1, num_chains=2,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="pass chain_method=jax.vmap to MCMC"):
        mcmc.run(jax.random.PRNGKey(0), X, T)


def test_inner_kernels_without_a_model_are_refused():
    for inner in (NUTS(potential_fn=lambda z: z**2), "nuts"):
        with pytest.raises(TypeError, match="inner_kernel must be an HMC or NUTS kernel"):
            PartitionGibbs(inner)
    with pytest.raises(ValueError, match="num_split_merge must be at least 0"):
        PartitionGibbs(NUTS(model), num_split_merge=-1)
