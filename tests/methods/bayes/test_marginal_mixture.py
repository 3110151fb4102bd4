"""The mixture of known size in NumPyro vs brute force, and `MDLMixture` vs the mixture.

Each comparison of random numbers fails once in 10,000 times for correct code.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import marginal_mixture as marginal
import numpy as np
import pytest
from marginal_mixture import Parameters, Prior
from partitions import all_partitions
from scipy import stats
from scipy.special import logsumexp

from nrprob import MDLMixture
from nrprob.engines.sample.target import start
from nrprob.methods.bayes.feature_models import FixedGaussian
from nrprob.methods.bayes.model import MixtureModel
from nrprob.methods.bayes.predictive import class_probabilities
from nrprob.posterior.export import import_arviz

LEVEL = 1e-4
PRIOR = Prior()


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def parameters(draws=7, k=3, d=2, n_classes=2, seed=0):
    rng = np.random.default_rng(seed)
    return Parameters(
        rng.dirichlet(np.ones(k), draws),
        rng.normal(size=(draws, k, d)),
        rng.gamma(2, size=(draws, k, d)),
        rng.dirichlet(np.ones(n_classes), (draws, k)),
    )


def rows(n=5, d=2, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), np.array([0, -1, 1, -1, 1])[:n]


def joint(p, X, y, z):
    """Log p(z, x, y | parameters), row by row."""
    total = 0.0
    for x, c, j in zip(X, y, z, strict=True):
        total += np.log(p.weights[j])
        total += stats.norm.logpdf(x, p.means[j], np.sqrt(p.variances[j])).sum()
        total += np.log(p.classes[j, c]) if c >= 0 else 0
    return total


def of_draw(p, s):
    return Parameters(*(a[s] for a in p))


def everywhere(p, X, y):
    """Log joint probabilities (S, K^n) with all assignments, and the assignments (K^n, n)."""
    k = p.weights.shape[1]
    z = np.array(list(itertools.product(range(k), repeat=len(X))))
    log_p = [[joint(of_draw(p, s), X, y, each) for each in z] for s in range(len(p.weights))]
    return np.array(log_p), z


def test_likelihood_sums_over_all_assignments():
    p, (X, y) = parameters(), rows()
    log_p, _ = everywhere(p, X, y)
    result = marginal.log_likelihood(p, X, y)
    np.testing.assert_allclose(result, logsumexp(log_p, 1), rtol=1e-12)


def test_probability_that_no_component_is_empty():
    p, (X, y) = parameters(), rows()
    log_p, z = everywhere(p, X, y)
    full = np.array([len(set(each)) == 3 for each in z])
    expected = logsumexp(log_p[:, full], 1) - logsumexp(log_p, 1)
    assert expected.min() < -0.3  # the condition matters here
    np.testing.assert_allclose(marginal.log_none_empty(p, X, y), expected, rtol=1e-10)


def test_too_many_subsets_are_refused():
    p, (X, y) = parameters(k=13), rows()
    with pytest.raises(ValueError, match="subsets"):
        marginal.log_none_empty(p, X, y)


def test_drawn_labels_have_the_probabilities_of_all_assignments():
    n, draws = 3, 20_000
    p, (X, y) = parameters(1), rows()
    log_p, _ = everywhere(p, X[:n], y[:n])
    many = Parameters(*(np.repeat(a, draws, 0) for a in p))
    result = np.asarray(marginal.draw_labels(jax.random.PRNGKey(0), many, X[:n], y[:n]))
    counts = np.bincount(result @ [9, 3, 1], minlength=27)
    expected = draws * np.exp(log_p[0] - logsumexp(log_p[0]))
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    assert stats.chisquare(counts, expected).pvalue > LEVEL


@pytest.mark.parametrize("weighted", [False, True])
def test_class_probabilities_are_ratios_of_averages(weighted):
    p, (X, _) = parameters(), rows()
    log_u = np.linspace(-3, 0, 7) if weighted else np.zeros(7)
    density = np.zeros((5, 2))
    for s, i, c, j in itertools.product(range(7), range(5), range(2), range(3)):
        each = joint(of_draw(p, s), X[i : i + 1], [c], [j])
        density[i, c] += np.exp(log_u[s] + each)
    result = marginal.class_probabilities(p, X, log_u if weighted else None)
    expected = density / density.sum(1, keepdims=True)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("labelled", [False, True])
def test_the_model_has_the_prior_and_the_likelihood(labelled):
    from numpyro.infer.util import log_density

    prior = Prior(1.5, 0.7, 0.4, 3.0, 0.8)
    p, (X, y) = of_draw(parameters(), 0), rows()
    y = y if labelled else np.full(5, -1)
    expected = stats.dirichlet.logpdf(p.weights, [1.5] * 3)
    expected += stats.invgamma.logpdf(p.variances, 3, scale=0.8).sum()
    expected += stats.norm.logpdf(p.means, 0, np.sqrt(p.variances / 0.4)).sum()
    values = p._asdict()
    if labelled:
        expected += sum(stats.dirichlet.logpdf(row, [0.7] * 2) for row in p.classes)
    else:
        del values["classes"]
    expected += logsumexp(everywhere(Parameters(*(a[None] for a in p)), X, y)[0])
    settings = {"n_components": 3, "n_classes": 2 * labelled, "prior": prior}
    values = {name: jnp.asarray(value) for name, value in values.items()}
    arguments = jnp.asarray(X), jnp.asarray(y)
    measure = jax.jit(lambda v: log_density(marginal.marginal_model, arguments, settings, v)[0])
    result = measure(values)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("X", "y", "k", "match"),
    [
        (np.ones(3), np.zeros(3, int), 2, "finite table"),
        (np.full((3, 1), np.nan), np.zeros(3, int), 2, "finite table"),
        (np.ones((3, 1)), np.zeros(2, int), 2, "one class per row"),
        (np.ones((3, 1)), np.zeros(3), 2, "one class per row"),
        (np.ones((3, 1)), np.array([0, -2, 0]), 2, "one class per row"),
        (np.ones((3, 1)), np.zeros(3, int), 4, "1 to 3 components"),
        (np.ones((3, 1)), np.zeros(3, int), 0, "1 to 3 components"),
    ],
)
def test_bad_input_is_refused(X, y, k, match):
    with pytest.raises(ValueError, match=match):
        marginal.sample_marginal_mixture(X, y, k)


# NUTS


def standardised(n, centres, labelled, seed):
    """Rows around centres, with variance 1 in total, and classes of a share of them."""
    rng = np.random.default_rng(seed)
    centres = np.asarray(centres, float)
    z = np.arange(n) % len(centres)
    X = rng.normal(size=(n, centres.shape[1])) + centres[z]
    X = (X - X.mean(0)) / X.std(0)
    return X, np.where(rng.random(n) < labelled, z % 2, -1)


def code_of(X, y, k):
    features = FixedGaussian(
        mean_precision=PRIOR.mean_precision,
        shape=PRIOR.variance_shape,
        scale=PRIOR.variance_scale,
    )
    made = MixtureModel(
        features=features,
        concentration=PRIOR.concentration,
        class_concentration=PRIOR.class_concentration,
        unordered=True,
    )
    return made, made.target(X, y, int(y.max()) + 1, k)


def flat(p):
    return jax.tree.map(lambda a: jnp.reshape(a, (-1, *a.shape[2:])), p)


def ratio(traces, weights):
    """Weighted means of traces (chains, draws, m), and their Monte Carlo standard errors."""
    arviz = import_arviz()

    u = weights / weights.mean()
    mean = (u[..., None] * traces).mean((0, 1))
    # The linear part of a ratio of averages.
    part = u[..., None] * (traces - mean)
    error = [
        each.std() / np.sqrt(arviz.ess(each, method="mean")) if np.ptp(each) else 0
        for each in np.moveaxis(part, -1, 0)
    ]
    return mean, np.array(error)


def agree(first, second, law=stats.norm):
    """Assert that means agree within errors; the probability of any failure is `LEVEL`."""
    (a, a_error), (b, b_error) = first, second
    error = np.hypot(a_error, b_error)
    assert (error > 0).all()
    z = (a - b) / error
    assert np.abs(z).max() < law.isf(LEVEL / 2 / z.size), z


def together(labels, pairs):
    return (labels[..., pairs[:, 0]] == labels[..., pairs[:, 1]]).astype(float)


@pytest.mark.slow
def test_clusters_given_nuts_are_the_partitions_of_k_blocks():
    """With ten rows the partitions can be enumerated, and a component is often empty."""
    X, y = standardised(10, [[0.0], [2.0]], 0.4, 3)
    _, target = code_of(X, y, 2)
    z = all_partitions(10)
    z = z[z.max(1) == 1]
    padded = np.pad(z, ((0, 0), (0, target.x.shape[0] - 10)))
    lengths = np.asarray(jax.lax.map(lambda a: target.length(target.cells(a)), padded))
    exact = np.exp(-lengths - logsumexp(-lengths))

    run = marginal.sample_marginal_mixture(X, y, 2, num_samples=2500, random_state=1)
    assert run.n_divergent == 0
    p = flat(run.parameters)
    labels = np.asarray(marginal.draw_labels(jax.random.PRNGKey(2), p, X, y)).reshape(4, -1, 10)
    full = (np.ptp(labels, axis=-1) > 0).astype(float)
    none_empty = np.exp(np.asarray(marginal.log_none_empty(p, X, y))).reshape(4, -1)
    one = np.ones_like(full)
    agree(ratio(full[..., None], one), ratio(none_empty[..., None], one))
    assert full.mean() < 0.95  # without the condition this would be another distribution

    pairs = np.array(list(itertools.combinations(range(10), 2)))
    grown = labels ^ labels[..., :1]  # the first row is in cluster 0
    at = np.array([(row == z).all(1).argmax() for row in grown.reshape(-1, 10)])
    traces = np.concatenate([together(labels, pairs), lengths[at].reshape(4, -1, 1)], -1)
    expected = np.append(exact @ together(z, pairs), exact @ lengths)
    agree(ratio(traces, full), (expected, np.zeros(expected.size)))


def draw_parameters(rng, X, y, labels, k):
    """Parameters (S, ...) of components given clusters (S, n), from their conjugate posteriors."""
    n_classes = int(y.max()) + 1
    one = np.eye(k)[labels]  # (S, n, k)
    size = one.sum(1)
    sums, squares = (one.swapaxes(1, 2) @ v for v in (X, X**2))
    kappa = PRIOR.mean_precision + size[..., None]
    scale = PRIOR.variance_scale + (squares - sums**2 / kappa) / 2
    variances = scale / rng.gamma(PRIOR.variance_shape + size[..., None] / 2, size=sums.shape)
    means = sums / kappa + np.sqrt(variances / kappa) * rng.normal(size=sums.shape)
    count = one.swapaxes(1, 2) @ (y[:, None] == np.arange(n_classes))
    weights = rng.gamma(PRIOR.concentration + size)
    classes = rng.gamma(PRIOR.class_concentration + count)
    return Parameters(
        weights / weights.sum(-1, keepdims=True),
        means,
        variances,
        classes / classes.sum(-1, keepdims=True),
    )


@pytest.mark.slow
def test_mdl_mixture_agrees_with_nuts():
    n, k = 60, 3
    X, y = standardised(n, [[0, 0], [2.5, 0], [1, 2.5]], 0.3, 5)
    new = np.random.default_rng(6).normal(size=(6, 2))
    rng = np.random.default_rng(7)
    pairs = rng.integers(0, n, (12, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]

    run = marginal.sample_marginal_mixture(X, y, k, num_samples=2000, random_state=8)
    p = flat(run.parameters)
    labels = np.asarray(marginal.draw_labels(jax.random.PRNGKey(9), p, X, y))
    labels = labels.reshape(4, -1, n)
    full = (np.diff(np.sort(labels, -1), axis=-1) > 0).sum(-1) == k - 1
    _, target = code_of(X, y, k)
    log_u = marginal.log_none_empty(p, X, y)
    lengths = length_of(target, labels.reshape(-1, n)).reshape(full.shape)
    theirs = ratio(
        np.concatenate([together(labels, pairs), lengths[..., None]], -1), full.astype(float)
    )
    likelihood = np.asarray(marginal.log_likelihood(p, X, y)).reshape(*full.shape, 1)
    their_likelihood = ratio(likelihood, np.exp(np.asarray(log_u)).reshape(full.shape))

    model = MDLMixture(
        k, energy="conjugate", covariance="diag", unordered=True,
        mean_precision=PRIOR.mean_precision,
        variance_shape=PRIOR.variance_shape, variance_scale=PRIOR.variance_scale,
        num_samples=4000, merge=None, random_state=10,
    ).fit(X, y)  # fmt: skip
    draws = model.posterior_["labels"].values.astype(int)
    given = (model.posterior_["n_clusters"].values == k).astype(float)
    assert given.mean() > 0.2
    assert np.ptp(model._mean) < 1e-12 and np.allclose(model._sd, 1)  # the same units
    ours = ratio(
        np.concatenate(
            [together(draws, pairs), -model.posterior_["log_density"].values[..., None]], -1
        ),
        given,
    )
    agree(ours, theirs)

    result = draw_parameters(rng, X, y, draws.reshape(-1, n), k)
    likelihood = np.asarray(marginal.log_likelihood(result, X, y)).reshape(*given.shape, 1)
    agree(ratio(likelihood, given), their_likelihood)

    def batches(values, call):
        """Mean and standard error over 20 parts of the chains, much longer than the
        autocorrelation."""
        parts = zip(*(np.split(v, 20) for v in values), strict=True)
        each = np.array([call(*part) for part in parts])[..., 0].reshape(20, -1)
        return each.mean(0), each.std(0, ddof=1) / np.sqrt(20)

    def of_ours(labels, given):
        result = np.flatnonzero(given > 0)
        # All parts have the same length, to share a program.
        result = result[np.linspace(0, len(result) - 1, 400).round().astype(int)]
        at = np.pad(labels[result], ((0, 0), (0, target.x.shape[0] - n)))
        at = {"labels": at.astype(np.int32)}
        rows = model._mixture.new_rows(new, 2)
        return class_probabilities(target, at, len(result), rows, rule="joint")

    def of_theirs(*values):
        return marginal.class_probabilities(Parameters(*values[:-1]), new, values[-1])

    agree(
        batches((draws.reshape(-1, n), given.reshape(-1)), of_ours),
        batches((*map(np.asarray, p), np.asarray(log_u)), of_theirs),
        stats.t(19),
    )


def length_of(target, labels):
    padded = np.pad(labels, ((0, 0), (0, target.x.shape[0] - labels.shape[1])))
    measure = functools.partial(jax.lax.map, lambda a: start(target, a).length)
    return np.asarray(jax.jit(measure)(padded.astype(np.int32)))
