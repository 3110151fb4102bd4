"""The pointwise log likelihood vs densities, enumeration, refits and ArviZ."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import matrix_t
import numpy as np
import pytest
from bayes_models import sampled_model
from partitions import all_partitions
from scipy import integrate, stats
from scipy.special import gammaln, logsumexp, multigammaln
from slowly import slowly

from nrprob import MDLMixture
from nrprob.data.design import Design
from nrprob.methods.bayes.feature_models import (
    BinaryFeatures,
    BoundedGaussian,
    CountFeatures,
    FixedGaussian,
)
from nrprob.methods.bayes.pointwise import (
    log_likelihood_of_draw,
    pointwise_log_likelihood,
    unavailable,
)
from nrprob.methods.bayes.student_t import VALUES
from nrprob.methods.bayes.yeo_johnson import LAMBDAS
from nrprob.posterior.export import import_arviz

N, D, K = 6, 2, 3
CODES = np.asarray([0, 1, -1, 1, 0, -1])
SAMPLED = sampled_model("full", concentration=None, class_concentration=None, unordered=False)
FIXED = replace(SAMPLED, features=FixedGaussian(mean_precision=0.3, shape=2.5, scale=0.8))
# Hyperparameters that differ between draws; concentrations are on their grids.
HYPER = {
    "centre_precision": [0.05, 0.8],
    "group_precision": [1.0, 1.0],
    "variance": [0.6, 0.1],
    "freedom": [3.0, 9.0],
    "concentration": [1.0, 0.1],
    "class_concentration": [0.1, 1.0],
    "inverse_df": [1 / 4, 1 / 16],
}
COMMON = np.asarray([[[0.6, 0.2], [0.2, 0.9]], [[1.4, -0.3], [-0.3, 0.5]]])


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def rows(n=N, d=D):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) @ (np.eye(d) + 0.5 * np.tri(d)) + 2 * (np.arange(n) % 2)[:, None]
    return X - X.mean(0)


def labelings():
    z = all_partitions(N)
    return z[z.max(1) < K]


def hyperparameters(target, which):
    """Values (S,) by name of the sampled variables, from indices (S,) into `HYPER`."""
    return {n: np.asarray(HYPER[n])[which] for n in getattr(target, "names", ()) if n in HYPER}


def padded(target, z):
    return np.pad(z, ((0, 0), (0, target.x.shape[0] - z.shape[1]))).astype(np.int32)


def pointwise(target, z, hyper):
    result = pointwise_log_likelihood(target, {"labels": padded(target, z), **hyper})
    return np.asarray(result)[:, : z.shape[1]]


@jax.jit
def _lengths(target, draws):
    def of(draw):
        now = target.condition(draw) if len(draw) > 1 else target
        return now.length(now.cells(draw["labels"]))

    return jax.lax.map(of, draws)


def lengths(target, z, hyper):
    """Description lengths (S,) of labels (S, n)."""
    return np.asarray(_lengths(target, {"labels": padded(target, z), **hyper}))


def log_prior(z, a, unordered):
    """Log probability of a partition, up to a constant: Dirichlet-multinomial with k symbols."""
    sizes = np.bincount(z)
    sizes = sizes[sizes > 0]
    k = len(sizes)
    result = gammaln(k * a) - gammaln(len(z) + k * a) + (gammaln(sizes + a) - gammaln(a)).sum()
    return result + unordered * gammaln(k + 1)


def moved(z, i):
    """Labelings in which sample i joins each component of the others, or a new one."""
    others = np.unique(np.delete(z, i))
    free = np.setdiff1d(np.arange(len(z)), others)[: int(len(others) < K)]
    return [np.where(np.arange(len(z)) == i, c, z) for c in [*others, *free]]


GROUPS = Design.from_groups(np.arange(N) // 3, 2)
COVARIATES = np.random.default_rng(3).normal(size=(N, 2))
COUNTS = np.random.default_rng(4).integers(0, 4, size=(N, 3)).astype(float)
FEATURES = {
    "full": SAMPLED.features,
    "diag": replace(SAMPLED.features, covariance="diag"),
    "full, given": FIXED.features,
    "diag, given": replace(FIXED.features, covariance="diag"),
    "shrunk": replace(SAMPLED.features, covariance="shrunk"),
    "tied": replace(SAMPLED.features, covariance="tied"),
    "tied, groups": replace(SAMPLED.features, covariance="tied"),
    "tied, covariates": replace(SAMPLED.features, covariance="tied"),
    "full, t": replace(SAMPLED.features, errors="t"),
    "tied, groups, t": replace(SAMPLED.features, covariance="tied", errors="t"),
    "counts": CountFeatures(),
    "counts, groups": CountFeatures(coordination=0),
    "binary, groups": BinaryFeatures(coordination=0),
}
DESIGNS = {"groups": GROUPS, "covariates": Design.from_groups(np.zeros(N, int), 1, COVARIATES)}
SLOW = {"full, given", "diag, given", "counts", "tied", "tied, groups, t", "full, t"}
FAST_CASES = [name for name in FEATURES if name not in SLOW]


def setting(case, classes, unordered):
    """Model, rows, classes, number of classes and known structure of a case of `FEATURES`."""
    model = replace(SAMPLED, features=FEATURES[case], unordered=unordered)
    codes, n_classes = (CODES, 2) if classes else (np.full(N, -1), 0)
    X = rows()
    if case.startswith(("counts", "binary")):
        X = COUNTS if case.startswith("counts") else (COUNTS > 1).astype(float)
    design = DESIGNS.get(case.split(", ")[1] if ", " in case else "")
    return model, X, codes, n_classes, design


def draws_of(target, z):
    """Variables of the draws of labels z: two values of each, in turn."""
    which = np.arange(len(z)) % 2
    hyper = hyperparameters(target, which)
    names = getattr(target, "names", ())
    if "common_covariance" in names:
        hyper["common_covariance"] = COMMON[which]
    if "scale_weight" in names:
        weight = np.ones((len(z), target.x.shape[0]))
        weight[:, :N] = VALUES[np.random.default_rng(5).integers(9, 15, size=(len(z), N))]
        hyper["scale_weight"] = weight
    return hyper


@pytest.mark.parametrize(("classes", "unordered"), [(False, False), (True, True)])
@pytest.mark.parametrize("case", [*FAST_CASES, *slowly(*sorted(SLOW))])
def test_it_is_a_difference_of_the_description_lengths(case, classes, unordered):
    """ell_i = log p(x, y, z_-i) - log p(z_-i) - log p(x_-i, y_-i given z_-i)."""
    model, X, codes, n_classes, design = setting(case, classes, unordered)
    every = np.arange(N)
    target = model.target(X, codes, n_classes, K, design)
    z = labelings()[::9]
    counts = [np.bincount(one, minlength=K) for one in z]
    assert any((c == 1).any() and (c > 0).all() for c in counts) and any(c[1] == 0 for c in counts)
    hyper = draws_of(target, z)
    sizes = hyper.get("concentration", np.ones(len(z)))
    result = pointwise(target, z, hyper)
    for i in (0, 2):
        rest = every != i
        smaller = model.target(
            X[rest], codes[rest], n_classes, K, design and design.take_rows(rest)
        )
        apart = np.asarray([np.unique(one[rest], return_inverse=True)[1] for one in z])
        others = dict(hyper)
        if "scale_weight" in hyper:
            kept = np.delete(hyper["scale_weight"][:, :N], i, 1)
            pad = smaller.x.shape[0] - kept.shape[1]
            others["scale_weight"] = np.pad(kept, ((0, 0), (0, pad)), constant_values=1)
        without = -lengths(smaller, apart, others)
        without -= [log_prior(one, a, unordered) for one, a in zip(apart, sizes, strict=True)]
        joined = [moved(one, i) for one in z]
        at = np.repeat(np.arange(len(z)), [len(some) for some in joined])
        tried = {n: v[at] for n, v in hyper.items()}
        log_p = log_sum_of_weights(target, np.concatenate(joined), tried, i)
        for s, some in enumerate(joined):
            labels = logsumexp([log_prior(one, sizes[s], unordered) for one in some])
            expected = logsumexp(log_p[at == s]) - labels - without[s]
            assert result[s, i] == pytest.approx(expected, abs=1e-8)


def log_sum_of_weights(target, z, hyper, i):
    """Log densities (S,) of labels (S, n), with the scale weight of sample i summed out."""
    if "scale_weight" not in hyper:
        return -lengths(target, z, hyper)
    log_p = []
    for value in VALUES:
        weight = hyper["scale_weight"].copy()
        weight[:, i] = value
        log_p.append(-lengths(target, z, {**hyper, "scale_weight": weight}))
    return logsumexp(log_p, axis=0)


@pytest.mark.parametrize("covariance", ["tied", *slowly("full")])
def test_transformed_features_have_the_density_of_the_others_times_the_slope(covariance):
    features = replace(SAMPLED.features, covariance=covariance)
    X, z = rows(), labelings()[40:41]
    lambdas = LAMBDAS[[np.abs(LAMBDAS - 0.6).argmin(), np.abs(LAMBDAS - 1.3).argmin()]]
    changed = replace(SAMPLED, features=replace(features, transformation="yeo-johnson"))
    target = changed.target(X, CODES, 2, K)
    hyper = hyperparameters(target, [0])
    plain = {name: value for name, value in hyper.items() if name != "yeo_johnson_lambda"}
    result = pointwise(target, z, {**hyper, "yeo_johnson_lambda": lambdas[None]})
    given = target.condition({"labels": padded(target, z)[0], **{n: v[0] for n, v in hyper.items()},
                              "yeo_johnson_lambda": lambdas})  # fmt: skip
    transformed, slope = (np.asarray(a)[:N] for a in given.transform_rows(given.rows))
    expected = pointwise(replace(SAMPLED, features=features).target(transformed, CODES, 2, K),
                         z, plain)  # fmt: skip
    np.testing.assert_allclose(result, expected + slope, atol=1e-8)
    assert np.ptp(slope) > 0.1


def log_marginal(X, covariance, kappa, variance, nu):
    """Log marginal likelihood of the rows of one component, from the definition of its prior."""
    if covariance == "diag":
        return sum(log_marginal(x[:, None], "full", kappa, variance, nu) for x in X.T)
    n, d = X.shape
    f, scatter = d + 1 + nu, nu * variance * np.eye(d)
    total = X.sum(0)
    after = scatter + X.T @ X - np.outer(total, total) / (kappa + n)
    result = multigammaln((f + n) / 2, d) - multigammaln(f / 2, d) - n * d / 2 * np.log(np.pi)
    result += f / 2 * np.linalg.slogdet(scatter)[1] - (f + n) / 2 * np.linalg.slogdet(after)[1]
    return result + d / 2 * np.log(kappa / (kappa + n))


def test_the_marginal_likelihood_is_a_product_of_t_densities():
    x = np.asarray([[0.3], [-0.7]])
    one = stats.t(5, scale=np.sqrt(3 * 0.6 / 5 * (1 + 1 / 0.05))).logpdf(0.3)
    mean, b = 0.3 / 1.05, 3 * 0.6 + 0.3**2 * 0.05 / 1.05
    two = stats.t(6, mean, np.sqrt(b / 6 * (1 + 1 / 1.05))).logpdf(-0.7)
    assert log_marginal(x, "full", 0.05, 0.6, 3.0) == pytest.approx(one + two, rel=1e-10)


def log_features(case, X, z, design, number):
    """Log marginal likelihood of rows of clusters z, from the definition of the model.

    ``number`` has one value of each hyperparameter.
    """
    if case.startswith("tied"):
        prior = [number[name] for name in ("centre_precision", "group_precision")]
        offsets = matrix_t.sum_of_offsets(z, design, *prior)
        return -matrix_t.nats(X, np.eye(len(X)) + offsets, number["variance"], number["freedom"])
    if case.startswith(("counts", "binary")):
        total, group = 0.0, design.codes if "groups" in case else np.zeros(len(X), int)
        for c, g in set(zip(z.tolist(), group.tolist(), strict=True)):
            cell = X[(z == c) & (group == g)]
            columns = [cell.sum(0)]  # tokens of each word
            if case.startswith("binary"):
                columns = np.stack([cell.sum(0), (1 - cell).sum(0)], 1)
            total += sum(log_evidence_of_counts(counts) for counts in columns)
        return total
    kappa, variance, nu = (number[n] for n in ("centre_precision", "variance", "freedom"))
    change = 0.0
    if case == "shrunk":  # rows in units of the common covariance
        root = np.linalg.cholesky(number["common_covariance"])
        change = len(X) * np.log(np.diag(root)).sum()
        X, variance = np.linalg.solve(root, X.T).T, (X.shape[1] + 1 + nu) / nu
    covariance = "diag" if case == "diag" else "full"
    parts = (log_marginal(X[z == c], covariance, kappa, variance, nu) for c in np.unique(z))
    return sum(parts) - change


def log_evidence_of_counts(counts, a=0.5):
    """Log probability of a sequence of symbols with these counts, under a Dirichlet(a) prior."""
    m, n = len(counts), counts.sum()
    return (gammaln(counts + a) - gammaln(a)).sum() + gammaln(m * a) - gammaln(n + m * a)


ENUMERATED = ["full", "diag", "tied, groups", "counts, groups"]


@pytest.mark.parametrize(
    "case", [*ENUMERATED, *slowly("binary, groups", "shrunk", "tied", "tied, covariates")]
)
def test_its_harmonic_mean_is_the_exact_leave_one_out_density(case):
    """Over all partitions and two values of each hyperparameter, vs enumeration in NumPy."""
    model, X, codes, _, design = setting(case, False, False)
    target = model.target(X, codes, 0, K, design)
    design = Design.from_groups(np.zeros(N, int)) if design is None else design
    every = labelings()
    z, which = np.tile(every, (2, 1)), np.repeat([0, 1], len(every))
    hyper = hyperparameters(target, which)
    if case == "shrunk":
        hyper["common_covariance"] = COMMON[which]
    sizes = hyper.get("concentration", np.ones(len(z)))

    def log_joint(rest):
        """Log density of some rows with all labelings and hyperparameters, (S,)."""
        known = design.take_rows(rest)
        return np.asarray([
            log_prior(one, sizes[s], False)
            + log_features(case, X[rest], one[rest], known, {n: v[s] for n, v in hyper.items()})
            for s, one in enumerate(z)
        ])  # fmt: skip

    log_p = log_joint(np.ones(N, bool))
    weights = log_p - logsumexp(log_p)
    result = pointwise(target, z, hyper)
    for i in range(N):
        exact = logsumexp(log_p) - logsumexp(log_joint(np.arange(N) != i))
        assert -logsumexp(weights - result[:, i]) == pytest.approx(exact, abs=1e-10)


@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.parametrize("z", [[0, 1, 0, 1, 0, 1], [0, 1, 2, 1, 0, 1], [2, 1, 0, 1, 0, 1]])
def test_it_is_a_normalised_density(covariance, z):
    """In one column, integrated over all values of a sample, alone or with others in its
    component."""
    X = rows(d=1)
    model = sampled_model(covariance, class_concentration=None, unordered=False)
    target = model.target(X, np.full(N, -1), 0, K)
    draw = hyperparameters(target, 0)
    labels = np.pad(z, (0, target.x.shape[0] - N)).astype(np.int32)

    @jax.jit
    def density(x):
        changed = jnp.zeros((len(labels), 1)).at[:N].set(X).at[0, 0].set(x)
        now = target.condition(draw).with_features(changed)
        return jnp.exp(log_likelihood_of_draw(now, labels)[0])

    u = np.linspace(-12, 12, 1201)
    values = np.asarray(jax.lax.map(density, np.sinh(u))) * np.cosh(u)
    assert integrate.simpson(values, x=u) == pytest.approx(1, abs=1e-6)


def test_samples_are_looked_at_in_blocks(monkeypatch):
    from nrprob.methods.bayes import pointwise as module

    target = SAMPLED.target(rows(), CODES, 2, K)
    labels = np.pad(labelings()[7], (0, target.x.shape[0] - N)).astype(np.int32)
    whole = np.asarray(log_likelihood_of_draw(target, labels))
    monkeypatch.setattr(module, "_BLOCK", 4)
    np.testing.assert_allclose(
        np.asarray(log_likelihood_of_draw(target, labels)), whole, atol=1e-12
    )


# As in applications


def three(seed=0):
    """Samples (120, 2) of three separated clusters, and their log density under the true model."""
    rng = np.random.default_rng(seed)
    centres = np.asarray([[0, 0], [6, 0], [0, 6]])
    X = centres[np.repeat([0, 1, 2], 40)] + rng.normal(size=(120, 2))
    log_p = [stats.multivariate_normal(mean).logpdf(X) for mean in centres]
    return X, logsumexp(log_p, axis=0) - np.log(3)


def elpd(data):
    """Expected log predictive density of every sample by ArviZ, and the Pareto k."""
    loo = import_arviz().loo(data, pointwise=True)
    return np.asarray(getattr(loo, "loo_i", getattr(loo, "elpd_i", None))), np.asarray(loo.pareto_k)


def assert_weights_hardly_vary(data, result):
    """Importance weights keep most draws, and smoothing their tails changes nothing.

    Then a large Pareto k is harmless: it measures the shape of the tail, whatever its scale.
    """
    weights = np.exp(-data["log_likelihood"]["X"].values.reshape(-1, len(result)))
    assert (weights.sum(0) ** 2 / (weights**2).sum(0)).min() > 0.5 * len(weights)
    np.testing.assert_allclose(result, -np.log(weights.mean(0)), atol=0.01)


@pytest.mark.smoke
@pytest.mark.filterwarnings("ignore:the chains do not agree yet")
@pytest.mark.parametrize("covariance", ["full", *slowly("diag")])
def test_arviz_estimates_the_log_density_of_the_true_model(covariance):
    X, truth = three()
    few = {"num_warmup": 50, "num_samples": 150, "num_chains": 2, "num_split_merge": 2}
    model = MDLMixture(6, covariance=covariance, **few, random_state=0).fit(X)
    data = model.to_arviz()
    result = elpd(data)[0]
    # Means and covariances of three components are estimated: half a nat for each of 15 parameters.
    assert result.sum() - truth.sum() == pytest.approx(-7.5, abs=7.5)
    assert_weights_hardly_vary(data, result)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["full", "diag", "tied"])
def test_arviz_agrees_with_fits_without_the_sample(covariance):
    X, truth = three(1)
    settings = {"covariance": covariance, "random_state": 0}
    fitted = MDLMixture(num_samples=500, **settings).fit(X)
    data = fitted.to_arviz()
    result, k = elpd(data)
    assert_weights_hardly_vary(data, result)
    densities = fitted.score_samples(X)  # these samples are in the fit
    assert fitted.score(X) == pytest.approx(densities.mean()) and result.sum() < densities.sum()
    # The standard error of the least probable sample is 0.04, that of other samples at most 0.005.
    for i, tolerance in {0: 0.03, k.argmax(): 0.03, truth.argmin(): 0.2}.items():
        model = MDLMixture(num_warmup=200, num_samples=300, **settings).fit(np.delete(X, i, 0))
        assert result[i] == pytest.approx(model.score(X[i : i + 1]), abs=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"covariance": "diag"}, ""),
        (CountFeatures(coordination=0.0), ""),
        (CountFeatures(), "no density; got coordination_weight='auto'; pass coordination_weight=0"),
        (BoundedGaussian(floor=0.2), "not normalised; got energy='nml'"),
        ({"covariance": "tied"}, ""),
        ({"power": 0.5}, "powered density.*plain density; got likelihood_power=0.5"),
        ({"errors": "t", "transformation": "yeo-johnson"}, ""),
    ],
)
def test_where_there_is_none_it_says_why(change, message):
    features = replace(SAMPLED.features, **change) if isinstance(change, dict) else change
    model = replace(SAMPLED, features=features)
    assert re.fullmatch(message and f".*{message}.*", unavailable(model, 2))
