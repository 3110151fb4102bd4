"""Columns with sampled Yeo-Johnson lambdas: lengths of the original rows, and draws."""

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
from scipy import integrate, stats
from sklearn.exceptions import ConvergenceWarning
from slowly import slowly

from nrprob import MDLMixture
from nrprob.data.design import Design
from nrprob.engines.sample import chains
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.joint_target import JointKernel
from nrprob.methods.bayes.yeo_johnson import LAMBDAS, log_slope, yeo_johnson
from nrprob.metrics import matched_accuracy

N, D, K, LEVEL = 5, 2, 3, 1e-4
NAME = "yeo_johnson_lambda"
GROUP = np.asarray([0, 0, 1, 1, 1])
NUMBERS = np.asarray([[0.3, 1], [-1.2, 1], [0.9, 0], [1.6, 1], [-0.4, 0]])
DESIGNS = {
    "": Design.from_groups(0 * GROUP),
    "groups": Design.from_groups(GROUP, 2),
    "numbers": Design.from_groups(0 * GROUP, 1, NUMBERS),
}
PRIOR = Hyperparameters(0.3, 0.7, 0.4, 3.0)
KEPT = np.asarray([48, 60, 76])  # few lambdas, so that each has many draws


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


# The transform


@pytest.mark.parametrize("power", [-2, 0, 0.4, 1, 2, 4])
def test_the_transform_is_that_of_yeo_and_johnson(power):
    x = np.concatenate([np.linspace(-6, 6, 61), [-1e3, 1e3, 1e-9, -1e-9]])
    np.testing.assert_allclose(yeo_johnson(x, power), stats.yeojohnson(x, power), rtol=1e-9)
    slope = jax.vmap(jax.grad(yeo_johnson), (0, None))(x[x != 0], float(power))
    np.testing.assert_allclose(log_slope(x[x != 0], power), np.log(slope), atol=1e-12)


def test_columns_as_they_came_are_one_of_the_choices():
    assert (LAMBDAS == 1).sum() == 1
    np.testing.assert_allclose(LAMBDAS - 1, -(LAMBDAS - 1)[::-1], atol=1e-12)  # symmetric about 1


# Lengths


def rows():
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(N, D)) @ [[1, 0.7], [0, 0.6]]) + 2 * (np.arange(N) % 2)[:, None]
    return (X - X.mean(0)) / X.std(0)


@functools.cache
def made(covariance, known="", power=1.0):
    """Distribution with fixed hyperparameters and few lambdas."""
    model = sampled_model(covariance, power=power, transformation="yeo-johnson")
    target = model.target(rows(), np.full(N, -1), 0, K, DESIGNS[known])
    target = with_grid(target, Hyperparameters(*(jnp.asarray([v]) for v in PRIOR)))
    update = target.update_of(NAME)
    tables = {name: getattr(update, name)[:, KEPT] for name in ("shift", "spread", "log_jacobian")}
    update = replace(update, values=update.values[KEPT], **tables)
    return update.with_indices(target, jnp.ones_like(update.which))


def with_indices(target, which):
    return target.update_of(NAME).with_indices(target, which)


def by_rows(covariance, design, labels, powers, power=1.0, at=slice(None)):
    """Minus the log density of the rows ``at`` given labels and lambdas, from the model.

    All rows determine the shift and scale of columns.
    """
    X, lost = rows(), 0.0
    for j, value in enumerate(powers):
        x = stats.yeojohnson(X[:, j], value)
        slope = (1 + np.abs(X[:, j])) ** ((value - 1) * np.sign(X[:, j])) / x.std()
        X[:, j], lost = (x - x.mean()) / x.std(), lost - power * np.log(slope[at]).sum()
    X, labels, design = X[at], labels[at], design.take_rows(at)
    # A Gaussian density of covariance S, tempered, is one of S / power up to a factor.
    each, lost = np.eye(len(X)) / power, lost + 0.5 * X.size * np.log(power)
    return matrix_t.nats_of_clusters(covariance, X, each, labels, design, PRIOR, power) + lost


def padded(target, labels):
    return np.pad(labels, ((0, 0), (0, target.x.shape[0] - N))).astype(np.int32)


@functools.cache
def exact(covariance, known, power):
    """Partitions, lambdas, and log probabilities (P, V) of both."""
    z = all_partitions(N)
    z = z[z.max(1) < K]
    which = np.asarray(list(itertools.product(range(len(KEPT)), repeat=D)))
    plain = made(covariance, known, power).partition
    of_labels = jax.jit(jax.vmap(lambda a: plain.length(plain.cells(a))))(padded(plain, z))
    nats = [
        [by_rows(covariance, DESIGNS[known], a, LAMBDAS[KEPT[w]], power) for w in which] for a in z
    ]
    return z, which, -(np.asarray(of_labels)[:, None] + nats)


CASES = {
    "diag, powered": ("diag", "", 0.5),
    "full": ("full", "", 1.0),
    "tied, known groups, powered": ("tied", "groups", 0.5),
    "tied, known numbers": ("tied", "numbers", 1.0),
}


@pytest.mark.parametrize("case", ["tied, known groups, powered", *slowly(*list(CASES)[:2])])
def test_lengths_are_those_of_rows_as_they_came(case):
    target, (z, which, log_p) = made(*CASES[case]), exact(*CASES[case])

    @jax.jit
    def lengths(labels, which):
        def of(w):
            now = with_indices(target, w)
            return jax.vmap(lambda a: now.length(now.cells(a)))(labels)

        return jax.lax.map(of, which).T

    result = lengths(padded(target, z[::4]), jnp.asarray(which, jnp.int32))
    np.testing.assert_allclose(result, -log_p[::4], rtol=1e-9)


# Draws


@pytest.mark.parametrize("case", slowly(*list(CASES)[:3]))
def test_partitions_and_powers_keep_their_distribution(case):
    """Three tests per case at 1e-4 in total."""
    target, (z, which, log_p) = made(*CASES[case]), exact(*CASES[case])
    p = np.exp(log_p - log_p.max())
    p = p / p.sum()
    n, seed = 8_000, 0
    begin = np.random.default_rng(seed).choice(p.size, size=n, p=p.ravel())
    at = np.unravel_index(begin, p.shape)
    kernel = JointKernel(1 if case.startswith("diag") else 2, 3)
    keys = jax.random.split(jax.random.PRNGKey(seed), n)
    states = jax.vmap(functools.partial(kernel.begin, target))(padded(target, z[at[0]]), keys)
    states.draw["yeo_johnson_lambda"] = jnp.asarray(LAMBDAS[KEPT[which[at[1]]]])
    _, draws, _ = chains.run(kernel, target, states, 1, 4, capacity=1)
    labels = np.asarray(draws["labels"])[0, :, :N]
    result = places(labels, z)
    away = np.abs(np.asarray(draws["yeo_johnson_lambda"])[0][..., None] - LAMBDAS[KEPT])
    assert away.min(2).max() < 1e-9
    power = away.argmin(2) @ len(KEPT) ** np.arange(D - 1, -1, -1)
    assert (result != at[0]).mean() > 0.2 and (power != at[1]).mean() > 0.2  # they did move
    counts = np.zeros_like(p)
    np.add.at(counts, (result, power), 1)
    for axes in ((), (0,), (1,)):
        assert p_value(counts.sum(axes).ravel(), p.sum(axes).ravel()) > LEVEL / 3, axes


# Predictions


@pytest.mark.parametrize(
    ("covariance", "errors"),
    [
        ("full", "gaussian"),
        *slowly(("tied", "t"), ("diag", "t"), ("shrunk", "gaussian"), ("shrunk", "t")),
    ],
)
def test_predicted_densities_add_up_to_1(covariance, errors):
    """In one column, integrated over all possible new rows."""
    X = rows()[:, :1]
    model = sampled_model(covariance, errors=errors, transformation="yeo-johnson")
    target = model.target(X, np.full(N, -1), 0, K)
    labels = padded(target, np.asarray([[0, 1, 0, 1, 1]]))[0]
    x = np.geomspace(1e-4, 1e5, 2000)
    x = np.concatenate([-x[::-1], x])
    new = model.new_rows(x[:, None], 0)

    @jax.jit
    def density(value):
        now = target.condition(target.draw() | {"yeo_johnson_lambda": jnp.asarray([value])})
        return jnp.exp(-now.feature_costs(now.cells(labels), *new))

    # A transform that is unbounded on both sides reaches all values.
    for value in (0.4, 1.6):
        total = integrate.trapezoid(np.asarray(density(value)), x, axis=1)
        assert total == pytest.approx(np.ones(len(total)), abs=0.01)


@pytest.mark.parametrize("case", [*slowly(*list(CASES)[:3]), "tied, known numbers"])
def test_a_row_is_predicted_by_the_others(case):
    """Its density given the others is a ratio of densities of the model."""
    covariance, known, _ = CASES[case]
    target, design = made(covariance, known), DESIGNS[known]
    which = np.asarray([0, 2])
    labels = padded(target, np.asarray([[0, 1, 0, 1, 1]]))[0]
    result = jax.jit(
        lambda now: -now.left_out_costs(now.cells(labels), labels)[labels, np.arange(len(labels))]
    )(with_indices(target, which))
    length = functools.partial(by_rows, covariance, design, labels[:N], LAMBDAS[KEPT[which]])
    others = [np.flatnonzero(np.arange(N) != i) for i in range(N)]
    expected = [length(at=at) - length() for at in others]
    assert list(np.asarray(result)[:N]) == pytest.approx(expected, rel=1e-8)


@pytest.mark.slow
@pytest.mark.contract
def test_what_was_drawn_gives_the_length_that_was():
    """With shrunk covariances, and with scale weights, which follow the lambdas."""
    settings = dict(covariance="shrunk", errors="t")
    nothing = np.full(N, -1)
    model = sampled_model(**settings, transformation="yeo-johnson")
    target = model.target(rows(), nothing, 0, K)
    kernel = JointKernel(2, 3)
    states = chains.dispersed(kernel, target, jax.random.PRNGKey(0), 3)
    states, _, _ = chains.run(kernel, target, states, 1, 5, capacity=1)

    @jax.jit
    @jax.vmap
    def again(draw):
        now = target.condition(draw)
        return now.length(now.cells(draw["labels"]))

    powers = np.asarray(states.draw["yeo_johnson_lambda"])
    assert (powers != 1).any()
    np.testing.assert_allclose(again(states.draw), -states.draw["log_density"], rtol=1e-9)
    for c, of_chain in enumerate(powers):
        X, slopes = rows(), 0.0
        for j, value in enumerate(of_chain):
            x = stats.yeojohnson(X[:, j], value)
            slopes += ((value - 1) * np.sign(X[:, j]) * np.log1p(np.abs(X[:, j]))).sum()
            slopes -= N * np.log(x.std())
            X[:, j] = (x - x.mean()) / x.std()
        draw = {name: v[c] for name, v in states.draw.items()}
        plain = sampled_model(**settings).target(X, nothing, 0, K).condition(draw)
        length = float(plain.length(plain.cells(draw["labels"])))
        assert -draw["log_density"] == pytest.approx(length - slopes, rel=1e-9)


# Application


def skew(seed, n=400):
    """Two clusters whose columns are Gaussian after a square root or a logarithm."""
    rng = np.random.default_rng(seed)
    z = rng.integers(2, size=n)
    X = np.stack([[1.0, 0.0, 4.0], [3.0, 1.5, 4.0]])[z] + [0.35, 0.4, 0.5] * rng.normal(size=(n, 3))
    return np.stack([np.exp(X[:, 0]), np.exp(X[:, 1]), X[:, 2]], 1), z


@pytest.mark.slow
@pytest.mark.contract
def test_skew_clusters_are_not_cut():
    X, z = skew(0)
    settings = dict(num_warmup=400, num_samples=400, num_chains=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        plain = MDLMixture(covariance="full", **settings).fit(X[:250])
        model = MDLMixture(covariance="full", transformation="yeo-johnson", **settings).fit(X[:250])
    cut, whole = ((m.posterior_["n_components"] > 2).mean() for m in (plain, model))
    assert cut > 0.6 and whole < 0.5 and model.n_clusters_ == 2
    assert matched_accuracy(z[250:], model.predict(X[250:])) > 0.97
    power = model.posterior_["yeo_johnson_lambda"].mean(("chain", "draw"))
    assert (power[:2] < 0.5).all() and abs(power[2] - 1) < 0.5
    assert model.score(X[250:]) > plain.score(X[250:])


# Invalid input


@pytest.mark.parametrize(
    ("settings", "X", "message"),
    [
        ({"kernel": "six-move"}, np.arange(12.0).reshape(6, 2) ** 0.7, "needs the conjugate prior"),
        ({"energy": "nml"}, np.arange(12.0).reshape(6, 2) ** 0.7, "needs the conjugate prior"),
        ({}, np.arange(12).reshape(6, 2) % 5, "is for continuous features"),
    ],
)
def test_where_columns_cannot_be_transformed(settings, X, message):
    with pytest.raises(ValueError, match=message):
        MDLMixture(transformation="yeo-johnson", **settings).fit(X)
