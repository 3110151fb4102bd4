"""Sampled parameters vs predictive densities of the partitions, and replicated data."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bayes_models import correlated_rows, sampled_model
from scipy import stats
from scipy.special import gammaln, xlogy
from slowly import slowly

from nrprob import MDLMixture
from nrprob.data.design import Design
from nrprob.methods.bayes.feature_models import BinaryFeatures, CountFeatures, FixedGaussian
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.model import NewRows
from nrprob.methods.bayes.parameters import Parameters, draw_parameters, replicate
from nrprob.methods.bayes.predictive import _feature_costs, condition
from nrprob.methods.bayes.yeo_johnson import LAMBDAS, inverse_yeo_johnson, yeo_johnson

N, D, K, S = 8, 2, 3, 4000
LABELS = np.asarray([0, 1, 0, 2, 1, 0, 2, 1])
# A wide prior: densities far from all components are means of a few large values.
PRIOR = Hyperparameters(0.8, 0.7, 0.8, 8.0)
GROUPS = Design.from_groups(np.arange(N) % 2, 2)
COVARIATES = Design.from_groups(np.zeros(N, int), 1, np.random.default_rng(3).normal(size=(N, 2)))
COUNTS = np.random.default_rng(4).integers(0, 4, size=(N, 3)).astype(float)
GAUSSIAN = sampled_model("full").features
CLASSES = np.asarray([0, -1, 1, -1, 0, 1, 1, -1])
CASES = {
    "full": (GAUSSIAN, None),
    "full, classes": (GAUSSIAN, None),
    "diag, classes": (replace(GAUSSIAN, covariance="diag"), None),
    "diag": (replace(GAUSSIAN, covariance="diag"), None),
    "shrunk": (replace(GAUSSIAN, covariance="shrunk"), None),
    "tied": (replace(GAUSSIAN, covariance="tied"), None),
    "tied, groups": (replace(GAUSSIAN, covariance="tied"), GROUPS),
    "tied, covariates": (replace(GAUSSIAN, covariance="tied"), COVARIATES),
    "full, given": (
        FixedGaussian(covariance="full", mean_precision=0.8, shape=5.0, scale=3.0),
        None,
    ),
    "diag, given": (FixedGaussian(mean_precision=0.8, shape=5.0, scale=3.0), None),
    "counts, groups": (CountFeatures(coordination=0.0), GROUPS),
    "binary": (BinaryFeatures(), None),
}
SLOW = ("diag, classes", "tied", "full, given", "diag, given", "shrunk")
# The mean of S densities is accepted within this many standard errors: an error rate below 1e-6.
ERRORS = 5.2


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def log_densities(parameters, features, x, group, covariates):
    """Log densities (S, K) of a sample in every component under sampled parameters."""
    if parameters.probabilities is not None:
        p = parameters.probabilities[:, group if parameters.probabilities.shape[1] > 1 else 0]
        if isinstance(features, BinaryFeatures):
            return (xlogy(x, p) + xlogy(1 - x, 1 - p)).sum(-1)
        return xlogy(x, p).sum(-1)  # of the tokens in their order
    means, covariances = parameters.means, parameters.covariances
    if parameters.effects is not None:
        effects = parameters.effects
        offset = (
            effects[:, group] if covariates is None else np.einsum("q,sqd->sd", covariates, effects)
        )
        means = means + offset[:, None]
    if covariances.ndim == 3:
        return stats.norm.logpdf(x, means, np.sqrt(covariances)).sum(-1)
    covariances = np.broadcast_to(covariances, (*means.shape, means.shape[2]))
    difference = x - means
    square = (difference * np.linalg.solve(covariances, difference[..., None])[..., 0]).sum(-1)
    return -0.5 * (square + np.linalg.slogdet(2 * np.pi * covariances)[1])


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("case", [*(c for c in CASES if c not in SLOW), *slowly(*SLOW)])
def test_mean_densities_are_predictive_densities(case):
    """Averaged over the parameters of one partition, at two new samples, in every component."""
    features, design = CASES[case]
    model = replace(sampled_model("full", concentration=None), features=features)
    X = correlated_rows(N)
    new = np.asarray([[0.3, -0.2], [1.0, 0.4]])
    if case.startswith(("counts", "binary")):
        X = COUNTS if case.startswith("counts") else (COUNTS > 1).astype(float)
        new = np.asarray([[1.0, 2, 0], [3, 0, 1]])
        new = new if case.startswith("counts") else (new > 0).astype(float)
    codes, n_classes = (CLASSES, 2) if case.endswith("classes") else (np.full(N, -1), 0)
    target = model.target(X, codes, n_classes, K, design)
    if isinstance(target, JointTarget):
        target = target.with_hyperparameters(jax.tree.map(jnp.asarray, PRIOR))
    draw = {"labels": np.pad(LABELS, (0, target.x.shape[0] - N)).astype(np.int32)}
    draw |= {name: np.asarray(v) for name, v in getattr(target, "draw", dict)().items()}
    draws = {name: np.repeat(value[None], S, 0) for name, value in draw.items()}
    parameters = draw_parameters(model, target, draws, X.shape[1], n_classes, jax.random.PRNGKey(1))
    parameters = type(parameters)(*(None if a is None else np.asarray(a) for a in parameters))

    known = None if design is None else design.take_rows([3, 4])
    rows = model.new_rows(new, n_classes, known)

    @jax.jit
    def costs(rows):
        given = condition(target, draw)
        return _feature_costs(given, given.cells(jnp.asarray(draw["labels"])), NewRows(*rows))

    expected = np.exp(-np.asarray(costs(tuple(map(jnp.asarray, rows)))))
    for i in range(2):
        covariates = None
        if known is not None and known.columns is not None:
            covariates = known.columns[i]
        group = 0 if known is None else known.codes[i]
        density = np.exp(log_densities(parameters, features, new[i], group, covariates))
        error = density.std(0) / np.sqrt(S)
        z = (density.mean(0) - expected[:, i])[:K] / error[:K]
        assert np.abs(z).max() < ERRORS
    # Weights of the occupied components are Dirichlet.
    sizes, weights = parameters.sizes[0, :K], parameters.weights[:, :K]
    a = sizes + float(draw.get("concentration", 1.0))
    assert weights.sum(1) == pytest.approx(np.ones(S))
    error = weights.std(0) / np.sqrt(S)
    assert (np.abs(weights.mean(0) - a / a.sum()) < ERRORS * error).all()
    if n_classes:
        onehot = (codes[:, None] == np.arange(2)) * 1.0
        counts = np.stack([onehot[c == LABELS].sum(0) for c in range(K)])
        counts += float(draw.get("class_concentration", 0.5))
        p = parameters.class_probs[:, :K]
        error = p.std(0) / np.sqrt(S)
        assert (np.abs(p.mean(0) - counts / counts.sum(1)[:, None]) < ERRORS * error).all()


def test_replicates_have_the_moments_of_their_components():
    """Of full covariances, with components kept or sampled, under Gaussian and t errors."""
    n, means = 20_000, np.asarray([[[0.0, 0], [50, 50]]])
    covariances = np.asarray([[[[1, 0.9], [0.9, 2]], [[4, -1], [-1, 1]]]])
    weights = np.asarray([[0.3, 0.7]])
    parameters = Parameters(weights, weights, np.ones((1, 2, 0)), means, covariances)
    settings = dict(group=np.zeros(n, int), covariates=None, totals=np.zeros(n), binary=False)
    labels = np.arange(n)[None] % 2
    for given_labels in (True, False):
        X = replicate(
            parameters, {}, labels, given_labels=given_labels, rng=np.random.default_rng(0),
            **settings,
        )[0]  # fmt: skip
        side = (X.sum(1) > 50).astype(int)
        if given_labels:
            np.testing.assert_array_equal(side, labels[0])
        else:
            assert side.mean() == pytest.approx(0.7, abs=5.2 * np.sqrt(0.21 / n))
        for c in (0, 1):
            np.testing.assert_allclose(np.cov(X[side == c].T), covariances[0, c], atol=0.35)
            np.testing.assert_allclose(X[side == c].mean(0), means[0, c], atol=0.15)
    heavy = replicate(
        parameters, {"inverse_df": np.asarray([0.25])}, labels, given_labels=True,
        rng=np.random.default_rng(1), **settings,
    )[0]  # fmt: skip
    distance = np.abs(heavy[::2, 0])  # t distributed, with a discretised scale
    assert (distance > 3).mean() == pytest.approx(2 * stats.t(4).sf(3), rel=0.2)


def test_the_inverse_of_a_transform():
    x = np.linspace(-6, 6, 101)[:, None]
    back = inverse_yeo_johnson(np.asarray(yeo_johnson(x, LAMBDAS)), LAMBDAS, np.full(121, 10.0))
    np.testing.assert_allclose(back, np.broadcast_to(x, back.shape), atol=1e-6)
    assert inverse_yeo_johnson(np.asarray([9.0]), np.asarray([-1.0]), np.asarray([8.0])) == 8.0


# Application


def planted(n=90):
    """Rows of two known groups and three clusters, in units that differ between columns."""
    rng = np.random.default_rng(3)
    known, z = np.arange(n) % 2, np.arange(n) // 30
    X = rng.normal(size=(n, 3)) + 6 * np.eye(3)[z] + 9 * known[:, None]
    return X * [1, 10, 100] + 50, known, z


@pytest.fixture(scope="module")
def fitted():
    X, known, _ = planted()
    chains = {"num_warmup": 100, "num_samples": 60, "num_chains": 2, "random_state": 0}
    return MDLMixture(5, **chains).fit(X, known=known)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the chains do not agree yet")
def test_parameters_of_a_fit_have_its_units(fitted):
    X, known, _ = planted()
    result = fitted.sample_parameters(25, random_state=0)
    assert result["means"].dims == ("chain", "draw", "component", "feature")
    assert result.sizes["draw"] == 25 and result.sizes["group"] == 2
    # Components are those of the same draws, in the order of their labels.
    components = fitted.posterior_["components"].values[:, result["draw"].values]
    sizes = [[np.unique(z, return_counts=True)[1] for z in chain] for chain in components]
    counts = (~np.isnan(result["weights"].values)).sum(-1)
    np.testing.assert_array_equal(counts, [[len(n) for n in chain] for chain in sizes])
    weights = result["weights"].values
    np.testing.assert_allclose(np.nansum(weights, -1), 1)
    np.testing.assert_array_equal(np.isnan(weights), np.isnan(result["means"].values[..., 0]))
    # Group effects are about their weighted mean; overall means and differences are the data's.
    effects = result["group_effects"].mean(("chain", "draw")).values
    np.testing.assert_allclose(effects.sum(0), 0, atol=1e-9)
    difference = X[known == 1].mean(0) - X[known == 0].mean(0)
    np.testing.assert_allclose(effects[1] - effects[0], difference, rtol=0.1)
    means = np.nansum(weights[..., None] * result["means"].values, 2).mean((0, 1))
    np.testing.assert_allclose(means, X.mean(0), rtol=0.1)
    variances = np.nanmean(np.diagonal(result["covariances"].values, axis1=-2, axis2=-1), (0, 1, 2))
    np.testing.assert_allclose(variances, [1, 100, 10_000], rtol=0.5)
    same = fitted.sample_parameters(25, random_state=0)
    assert same.equals(result) and not fitted.sample_parameters(25, random_state=1).equals(result)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the chains do not agree yet")
def test_replicated_data_resemble_the_data(fitted):
    X, known, _ = planted()
    for given_labels in (False, True):
        result = fitted.posterior_predictive(40, given_labels=given_labels, random_state=0)["X"]
        assert result.dims == ("chain", "draw", "observation", "feature")
        assert result.shape == (2, 40, *X.shape)
        for group in (0, 1):
            values = result.values[:, :, known == group]
            np.testing.assert_allclose(values.mean((0, 1, 2)), X[known == group].mean(0), rtol=0.1)
            spread = values.std(2).mean((0, 1))
            np.testing.assert_allclose(spread, X[known == group].std(0), rtol=0.25)
    # Samples that keep their components stay near their values; others change clusters.
    error = np.abs(result.values - X).mean((0, 1)) / X.std(0)
    assert error.mean() < 0.8
    with pytest.raises(ValueError, match="n_draws must be"):
        fitted.posterior_predictive(0)
    with pytest.raises(TypeError, match="given_labels must be"):
        fitted.posterior_predictive(given_labels="no")


@pytest.mark.slow
@pytest.mark.contract
def test_maximum_likelihood_codes_have_no_prior_of_parameters():
    chains = {"num_warmup": 5, "num_samples": 5, "num_chains": 1, "random_state": 0}
    with pytest.warns():
        model = MDLMixture(3, energy="nml", **chains).fit(planted()[0])
    for call in (model.sample_parameters, model.posterior_predictive):
        with pytest.raises(ValueError, match="conjugate prior; got energy='nml'"):
            call()


def test_multinomial_probabilities_are_those_of_sequences():
    """The code of counts has no multinomial coefficient, which does not depend on the model."""
    x = np.asarray([2.0, 1, 0])
    p = np.asarray([0.5, 0.3, 0.2])
    coefficient = gammaln(x.sum() + 1) - gammaln(x + 1).sum()
    assert xlogy(x, p).sum() + coefficient == pytest.approx(stats.multinomial.logpmf(x, 3, p))
