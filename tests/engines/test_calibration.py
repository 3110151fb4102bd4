"""Calibration of the collapsed sampler on data simulated from its model.

The conjugate code is a generative model: a partition, Gaussian features and classes of its blocks.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partitions import all_partitions
from scipy import stats
from scipy.special import gammaln, logsumexp

from nrprob.engines.sample import chains
from nrprob.engines.sample.chains import CollapsedKernel
from nrprob.engines.sample.target import Target, start
from nrprob.methods.bayes.feature_models import FixedGaussian
from nrprob.methods.bayes.model import MixtureModel

K, CLASSES = 3, 2
KAPPA, SHAPE, SCALE, BETA, ALPHA = 0.3, 2.0, 0.5, 0.5, 1.5
MODEL = MixtureModel(
    features=FixedGaussian(mean_precision=KAPPA, shape=SHAPE, scale=SCALE),
    concentration=ALPHA,
    class_concentration=BETA,
    unordered=True,
)
LEVEL = 1e-4


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@functools.cache
def prior_tables(n):
    """Weights of blocks by size, and the log of their sums B[k, m] over partitions.

    A block has the weight Gamma(size + alpha) / Gamma(alpha), and a partition of m rows into k
    blocks the product of weights.
    """
    w = gammaln(np.arange(n + 1) + ALPHA) - gammaln(ALPHA)
    b = np.full((K + 1, n + 1), -np.inf)
    b[0, 0] = 0
    for k in range(1, K + 1):
        for m in range(1, n + 1):
            s = np.arange(1, m + 1)  # rows of the block of the first row
            choose = gammaln(m) - gammaln(s) - gammaln(m - s + 1)
            b[k, m] = logsumexp(choose + w[s] + b[k - 1, m - s])
    return w, b


def draw_partition(n, rng):
    """Sample a partition from the prior of the label code."""
    w, b = prior_tables(n)
    k = np.arange(1, K + 1)
    log_p = b[1:, n] - (gammaln(n + k * ALPHA) - gammaln(k * ALPHA) - gammaln(k + 1))
    blocks = int(rng.choice(k, p=np.exp(log_p - logsumexp(log_p))))
    labels, rest = np.full(n, -1), np.arange(n)
    for j in range(blocks, 0, -1):
        m = len(rest)
        s = np.arange(1, m + 1)
        choose = gammaln(m) - gammaln(s) - gammaln(m - s + 1)
        log_q = choose + w[s] + b[j - 1, m - s]
        size = int(rng.choice(s, p=np.exp(log_q - logsumexp(log_q))))
        members = np.append(rest[0], rng.choice(rest[1:], size - 1, replace=False))
        labels[members] = j
        rest = np.setdiff1d(rest, members)
    return np.unique(labels, return_inverse=True)[1]


def draw_data(labels, rng, d=2):
    """Sample features and classes of every row, given the partition."""
    X, codes = np.empty((len(labels), d)), np.empty(len(labels), int)
    for c in np.unique(labels):
        rows = labels == c
        variance = SCALE / rng.gamma(SHAPE, size=d)
        mean = rng.normal(size=d) * np.sqrt(variance / KAPPA)
        X[rows] = mean + rng.normal(size=(rows.sum(), d)) * np.sqrt(variance)
        codes[rows] = rng.choice(CLASSES, size=rows.sum(), p=rng.dirichlet([BETA] * CLASSES))
    return X, codes


@pytest.mark.slow
@pytest.mark.contract
def test_partitions_of_the_prior_are_drawn_as_stated():
    n, rng = 5, np.random.default_rng(0)
    z = all_partitions(n)
    z = z[z.max(1) < K]
    sizes = (z[:, :, None] == np.arange(K)).sum(1)
    k = (sizes > 0).sum(1)
    log_p = (gammaln(sizes + ALPHA) - gammaln(ALPHA)).sum(1) + gammaln(k * ALPHA) + gammaln(k + 1)
    p = np.exp(log_p - gammaln(n + k * ALPHA))
    names = {tuple(np.argmax(row[:, None] == row, 1)): i for i, row in enumerate(z)}
    counts = np.zeros(len(z))
    for _ in range(3_000):
        row = draw_partition(n, rng)
        counts[names[tuple(np.argmax(row[:, None] == row, 1))]] += 1
    assert stats.chisquare(counts, 3_000 * p / p.sum()).pvalue > LEVEL


def ranks(model, n_sets=200, n=16, n_draws=63, seed=0):
    """Ranks of the true parameters among the draws for each data set, from one compiled program."""
    rng = np.random.default_rng(seed)
    kernel = CollapsedKernel(4, 3)
    truth, targets = [], []
    for _ in range(n_sets):
        labels = draw_partition(n, rng)
        X, codes = draw_data(labels, rng)
        truth.append(labels)
        targets.append(model.target(X, np.where(np.arange(n) < 6, codes, -1), CLASSES, K))
    padded = np.pad(np.asarray(truth, np.int32), ((0, 0), (0, targets[0].x.shape[0] - n)))
    together = jax.tree.map(lambda *a: jnp.stack(a), *targets)

    def one(target, labels, key):
        states = chains.dispersed(kernel, target, key, 1)
        states, _, _ = chains.advance(kernel, target, states, 1, 200, capacity=1)
        _, draws, _ = chains.advance(kernel, target, states, n_draws, 15, capacity=n_draws)
        return start(target, labels).length, draws

    program = jax.jit(jax.vmap(one))
    keys = jax.random.split(jax.random.PRNGKey(seed), n_sets)
    length, draws = program(together, padded, keys)
    drawn = np.asarray(draws["labels"])[:, :, 0]
    quantities = {
        "log_density": (-np.asarray(length), np.asarray(draws["log_density"])[..., 0]),
        "clusters": (
            np.asarray([len(set(z)) for z in truth]),
            np.asarray(draws["n_clusters"])[..., 0],
        ),
        "rows together": (padded[:, 0] == padded[:, 1], drawn[..., 0] == drawn[..., 1]),
        "largest": (
            (padded[:, :n, None] == np.arange(K)).sum(1).max(1),
            (drawn[..., :n, None] == np.arange(K)).sum(2).max(2),
        ),
    }
    result = {}
    for name, (true, values) in quantities.items():
        less, equal = (values < true[:, None]).sum(1), (values == true[:, None]).sum(1)
        result[name] = less + rng.integers(0, equal + 1)  # ties are broken at random
    return result


def _uniform(result, n_draws=63, bins=8):
    counts = np.bincount(result * bins // (n_draws + 1), minlength=bins)
    return stats.chisquare(counts).pvalue


@pytest.mark.slow
def test_simulation_based_calibration():
    """Ranks are uniform: a correct sampler fails one of four tests once in 2,500 runs."""
    for name, result in ranks(MODEL).items():
        assert _uniform(result) > LEVEL, name


@pytest.mark.slow
def test_calibration_finds_another_prior():
    """A prior with the cost of cluster labels differs detectably from the prior of the data."""
    wrong = replace(MODEL, unordered=False)
    assert min(_uniform(result) for result in ranks(wrong).values()) < LEVEL


@pytest.mark.slow
def test_joint_distribution():
    """Geweke's test: data given the partition, and the partition given the data, alternately.

    Chains that start at draws from the prior remain distributed as the prior.
    """
    n, turns, many = 5, 4, 5_000
    z = all_partitions(n)
    z = z[z.max(1) < K]
    kernel = CollapsedKernel(2, 2)
    rng = np.random.default_rng(1)
    X, codes = draw_data(np.zeros(n, int), rng)
    template = MODEL.target(X, codes, CLASSES, K)
    size = template.x.shape[0]

    def data(labels, key):
        """Statistics of rows that are sampled given their partition."""
        keys = jax.random.split(key, 4)
        variance = SCALE / jax.random.gamma(keys[0], SHAPE, (K, 2))
        mean = jax.random.normal(keys[1], (K, 2)) * jnp.sqrt(variance / KAPPA)
        # A Dirichlet vector of two parts of 1/2 each is a squared sine of a uniform angle.
        share = jnp.sin(jax.random.uniform(keys[2], (K,)) * jnp.pi / 2) ** 2
        noise = jax.random.normal(keys[3], (size, 3))
        X = mean[labels] + noise[:, :2] * jnp.sqrt(variance[labels])
        ones = jax.scipy.stats.norm.cdf(noise[:, 2]) < share[labels]
        classes = jnp.stack([ones, ~ones], 1) * (jnp.arange(size) < 3)[:, None]
        x = jnp.concatenate([X, X * X, classes, jnp.ones((size, 1))], 1)
        return x * template.x[:, -1:]

    @jax.jit
    @jax.vmap
    def run(labels, key):
        def turn(t, labels):
            now = jax.random.fold_in(key, t)
            target = functools.partial(Target, template.terms, template.sizes)
            target = target(
                data(labels, now), template.group, None, template.scale, template.n_groups
            )
            state = kernel.begin(target, labels, jax.random.fold_in(now, 1))
            return kernel.step(target, state).draw["labels"]

        return jax.lax.fori_loop(0, turns, turn, labels)

    assert BETA == 0.5 and CLASSES == 2
    begin = np.asarray([draw_partition(n, rng) for _ in range(many)])
    wide = np.pad(begin, ((0, 0), (0, size - n))).astype(np.int32)
    end = np.asarray(run(wide, jax.random.split(jax.random.PRNGKey(2), many)))[:, :n]
    assert (np.ptp(end - begin, axis=1) > 0).mean() > 0.2  # they did move
    names = {tuple(np.argmax(row[:, None] == row, 1)): i for i, row in enumerate(z)}
    own = [names[tuple(row)] for row in np.argmax(end[:, :, None] == end[:, None], 2)]
    sizes = (z[:, :, None] == np.arange(K)).sum(1)
    k = (sizes > 0).sum(1)
    log_p = (gammaln(sizes + ALPHA) - gammaln(ALPHA)).sum(1) + gammaln(k * ALPHA) + gammaln(k + 1)
    p = np.exp(log_p - gammaln(n + k * ALPHA))
    assert stats.chisquare(np.bincount(own, minlength=len(z)), many * p / p.sum()).pvalue > LEVEL
