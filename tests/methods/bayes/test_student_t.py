"""Latent scale weights: the resulting t distribution, and draws vs enumeration."""

import functools
import itertools
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import matrix_t
import numpy as np
import pytest
from bayes_models import sampled_model, with_grid
from partitions import all_partitions, p_value, places
from scipy import stats
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from slowly import slowly

from nrprob import MDLMixture
from nrprob.data.design import Design
from nrprob.methods.bayes import student_t
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.joint_target import JointKernel
from nrprob.metrics import matched_accuracy

N, D, K = 5, 2, 3
LEVEL = 1e-4
GROUP = np.asarray([0, 0, 1, 1, 1])
NUMBERS = np.asarray([[0.3, 1], [-1.2, 1], [0.9, 0], [1.6, 1], [-0.4, 0]])
DESIGNS = {
    "": Design.from_groups(0 * GROUP),
    "groups": Design.from_groups(GROUP, 2),
    "numbers": Design.from_groups(0 * GROUP, 1, NUMBERS),
}
PRIOR = Hyperparameters(0.3, 0.7, 0.4, 3.0)
VALUES, FREEDOMS = np.asarray([0.05, 1.0, 2.0]), np.asarray([2.0, np.inf])


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


# The distribution of a row


@pytest.mark.parametrize("freedom", [2.0, 3.0, 8.0, 64.0])
@pytest.mark.parametrize("d", [1, 4, 12])
def test_scales_add_up_to_a_t_law(freedom, d):
    mass = student_t.log_masses(student_t.VALUES, np.asarray([freedom]))[0]
    assert np.exp(mass).sum() == pytest.approx(1, rel=1e-12)
    far = np.linspace(0, 8, 60)
    away = far**2 * d  # most rows are near the square root of d
    log_w = np.log(student_t.VALUES)
    result = logsumexp(mass + 0.5 * d * log_w - 0.5 * away[:, None] * np.exp(log_w), axis=1)
    result = result - 0.5 * d * np.log(2 * np.pi)
    x = np.zeros((len(far), d))
    x[:, 0] = np.sqrt(away)
    expected = stats.multivariate_t.logpdf(x, np.zeros(d), np.eye(d), df=freedom)
    weight = np.exp(stats.f.logpdf(far[1:] ** 2, d, freedom)) * 2 * far[1:] * (far[1] - far[0])
    assert (weight * np.abs(result - expected)[1:]).sum() < 0.1  # for the present rows


def test_infinity_stands_for_normal_errors():
    mass = student_t.log_masses(student_t.VALUES, np.asarray([np.inf]))[0]
    assert np.exp(mass) @ student_t.VALUES == 1 and np.exp(mass).max() == 1


# Draws


def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) @ [[1, 0.7], [0, 0.6]] + 2 * (np.arange(N) % 2)[:, None]
    X[0] += 4
    return X - X.mean(0)


@functools.cache
def made(covariance, known="", power=1.0):
    model = sampled_model(covariance, power=power, errors="t")
    target = model.target(rows(), np.full(N, -1), 0, K, DESIGNS[known])
    target = with_grid(target, Hyperparameters(*(jnp.asarray([v]) for v in PRIOR)))
    update = target.update_of("inverse_df")
    update = replace(
        update,
        which=jnp.int32(0),
        values=jnp.asarray(VALUES),
        freedoms=jnp.asarray(FREEDOMS),
        log_mass=jnp.asarray(student_t.log_masses(VALUES, FREEDOMS)),
    )
    return update.with_versions(target, jnp.ones_like(update.version))


def with_versions(target, version):
    return target.update_of("inverse_df").with_versions(target, version)


def by_rows(covariance, X, design, labels, w, power=1.0):
    """Minus the log density of rows given labels and scale weights, from the model."""
    # A Gaussian density of covariance S / w, tempered, is one of S / (w power) up to a factor.
    each = np.diag(1 / (power * w))
    lost = -0.5 * D * (power * np.log(w) - np.log(w * power)).sum()
    return matrix_t.nats_of_clusters(covariance, X, each, labels, design, PRIOR, power) + lost


def of_labels(labels):
    """Minus the log probability of an unordered partition, from the code alone."""
    target = made("tied").partition
    wide = np.zeros(target.x.shape[0], np.int32)
    wide[:N] = labels
    return float(target.length(target.cells(jnp.asarray(wide))))


@functools.cache
def exact(covariance, known, power):
    """Partitions, weights, and log probabilities (P, V, F) of both and of degrees of freedom."""
    z = all_partitions(N)
    z = z[z.max(1) < K]
    versions = np.asarray(list(itertools.product(range(len(VALUES)), repeat=N)))
    mass, design = student_t.log_masses(VALUES, FREEDOMS), DESIGNS[known]
    prior = mass[:, versions].sum(2).T  # (V, F)
    log_p = np.empty((len(z), len(versions), len(FREEDOMS)))
    for i, labels in enumerate(z):
        cost = [by_rows(covariance, rows(), design, labels, VALUES[v], power) for v in versions]
        log_p[i] = prior - np.asarray(cost)[:, None] - of_labels(labels)
    return z, versions, log_p


CASES = {
    "tied": ("tied", "", 1.0),
    "tied, known groups, powered": ("tied", "groups", 0.5),
    "tied, known numbers": ("tied", "numbers", 1.0),
    "full, powered": ("full", "", 0.5),
    "diag": ("diag", "", 1.0),
}


_LATER = "tied", "diag"


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("case", [*(c for c in CASES if c not in _LATER), *slowly(*_LATER)])
def test_lengths_are_those_of_the_model(case):
    target, (z, versions, log_p) = made(*CASES[case]), exact(*CASES[case])
    rng = np.random.default_rng(1)
    some = [(rng.integers(len(z)), rng.integers(len(versions))) for _ in range(6)]
    wide = np.zeros((2, len(some), target.x.shape[0]), np.int32)
    wide[0, :, :N] = z[[i for i, _ in some]]
    wide[1, :, :N] = versions[[j for _, j in some]]

    @jax.jit
    @jax.vmap
    def length(labels, version):
        now = with_versions(target, version)
        return now.length(now.cells(labels))

    expected = [-log_p[i, j, 0] for i, j in some]
    assert length(*wide) == pytest.approx(np.asarray(expected), rel=1e-9)


@pytest.mark.parametrize("case", slowly(*CASES))
def test_partitions_and_scales_keep_their_distribution(case):
    """Four tests per case at 1e-4 in total."""
    target, (z, versions, log_p) = made(*CASES[case]), exact(*CASES[case])
    kernel = JointKernel(1 if case == "diag" else 2, 3)
    p = np.exp(log_p - log_p.max())
    p = p / p.sum()
    n, seed = 8_000, 0
    begin = np.random.default_rng(seed).choice(p.size, size=n, p=p.ravel())
    at = np.unravel_index(begin, p.shape)
    pad = ((0, 0), (0, target.x.shape[0] - N))
    labels = np.pad(z[at[0]], pad).astype(np.int32)
    draw = {name: jnp.broadcast_to(v, (n, *np.shape(v))) for name, v in target.draw().items()}
    draw["scale_weight"] = jnp.asarray(np.pad(VALUES[versions[at[1]]], pad, mode="edge"))
    draw["scale_weight"] = draw["scale_weight"].astype(jnp.float32)
    draw["inverse_df"] = 1 / jnp.asarray(FREEDOMS[at[2]])
    keys = jax.random.split(jax.random.PRNGKey(seed), n)

    @jax.jit
    @jax.vmap
    def run(labels, draw, key):
        first = kernel.begin(target, labels, key)
        state = first._replace(draw={**first.draw, **draw})
        return jax.lax.fori_loop(0, 4, lambda _, s: kernel.step(target, s), state)

    end = run(jnp.asarray(labels), draw, keys).draw
    result = np.asarray(end["labels"])[:, :N]
    which = places(result, z)
    w = np.asarray(end["scale_weight"])[:, :N]
    version = np.abs(w[..., None] - VALUES).argmin(2)
    of = version @ len(VALUES) ** np.arange(N - 1, -1, -1)
    freedom = np.isclose(np.asarray(end["inverse_df"])[:, None], 1 / FREEDOMS).argmax(1)
    assert (which != at[0]).mean() > 0.2 and (of != at[1]).mean() > 0.2  # they did move
    counts = np.zeros_like(p)
    np.add.at(counts, (which, of, freedom), 1)
    for axes in ((1, 2), (0, 2), (0, 1), (1,)):
        assert p_value(counts.sum(axes).ravel(), p.sum(axes).ravel()) > LEVEL / 4, axes


def test_draws_of_degrees_of_freedom_are_finite():
    """Infinite degrees of freedom have the reciprocal 0, and are restored from it."""
    target, freedoms = made("tied"), jnp.asarray(student_t.FREEDOMS)
    update = replace(target.update_of("inverse_df"), freedoms=freedoms)
    for which in range(freedoms.size):
        draw = replace(update, which=jnp.int32(which)).draw(target)
        assert np.isfinite(draw["inverse_df"])
        assert int(update.condition(target, draw).update_of("inverse_df").which) == which


# Predictions


@pytest.mark.parametrize("case", CASES)
def test_predicted_densities_are_those_of_rows_left_out(case):
    """A row's leave-one-out density is a ratio of the model's densities."""
    covariance, known, _ = CASES[case]
    target, design = made(covariance, known), DESIGNS[known]
    end = D + (0 if design.columns is None else design.columns.shape[1])
    labels, version = np.asarray([[0, 1, 0, 1, 1], [0, 1, 2, 1, 0]])
    row, mass = 3, student_t.log_masses(VALUES, FREEDOMS)[0]
    wide = np.zeros((2, target.x.shape[0]), np.int32)
    wide[:, :N] = labels, version

    @jax.jit
    def both(labels, version):
        now = with_versions(target, version)
        cells, x, group = now.cells(labels), now.x[row], now.partition.group[row]
        likelihood = now.likelihood
        if covariance == "tied":
            less = jnp.outer(x[:end], x[:end]) / x[end]
            likelihood = replace(likelihood, square=likelihood.square - less)
            likelihood = likelihood.with_hyperparameters(likelihood.hyperparameters)
        others = replace(now, likelihood=likelihood)
        new = target.x[row : row + 1], target.partition.group[row : row + 1]  # of weight 1
        cost = others.feature_costs(cells.at[group, labels[row]].add(-x), *new)
        return -now.left_out_costs(cells, labels)[labels[row], row], -cost[labels[row], 0]

    X, others = rows(), np.arange(N) != row
    w = VALUES[version]

    def length(at, w):
        return by_rows(covariance, X[at], design.take_rows(at), labels[at], w[at])

    every = [np.where(others, w, value) for value in VALUES]
    with_row = logsumexp([m - length(others | True, w) for m, w in zip(mass, every, strict=True)])
    result = list(map(float, both(*jnp.asarray(wide))))
    assert result == pytest.approx([with_row + length(others, w)] * 2, rel=1e-8)


# Application


def heavy(seed, n=300):
    """Three clusters in three known groups, with errors of three degrees of freedom."""
    rng = np.random.default_rng(seed)
    z, group = rng.integers(3, size=(2, n))
    errors = rng.normal(size=(n, 4)) / np.sqrt(rng.chisquare(3, size=(n, 1)) / 3)
    X = 5 * np.eye(4)[z] + errors + 4 * rng.normal(size=(3, 4))[group]
    return X @ (np.eye(4) + rng.normal(size=(4, 4)) / 2), z, group


@pytest.mark.slow
def test_far_rows_are_no_clusters_of_their_own():
    every = heavy(0, n=450)
    (X, z, group), new = ((a[where] for a in every) for where in (slice(300), slice(300, None)))
    settings = dict(num_warmup=100, num_samples=150, num_chains=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MDLMixture(errors="t", **settings).fit(X, known=group)
    assert model.n_clusters_ == 3  # as no fit with Gaussian errors has
    draws = model.posterior_
    assert (draws["n_clusters"] == 3).mean() > 0.7
    assert 1 / 4 <= draws["inverse_df"].median() <= 1 / 2
    assert matched_accuracy(z, model.labels_) > 0.85
    new, truth, groups = new
    assert matched_accuracy(truth, model.predict(new, known=groups)) > 0.85
    # Rows far from their cluster's centre have small weights.
    residual = X - np.stack([X[group == g].mean(0) for g in range(3)])[group]
    residual = residual - np.stack([residual[z == c].mean(0) for c in range(3)])[z]
    far = (residual @ np.linalg.inv(np.cov(residual.T)) * residual).sum(1)
    precision = draws["scale_weight"].mean(("chain", "draw"))
    assert stats.spearmanr(far, precision).statistic < -0.8
