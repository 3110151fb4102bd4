"""How far clusters keep to classes, drawn beside the partition: against all that there may be."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partitions import all_partitions, p_value
from scipy.special import gammaln
from sklearn.base import clone
from slowly import slowly

from nrprob import MDLMixture
from nrprob.engines import chains
from nrprob.methods.bayes.classed import CONCENTRATIONS
from nrprob.methods.bayes.code import MixtureCode
from nrprob.methods.bayes.prior import PriorKernel

N, K, LEVEL = 6, 4, 1e-4
CODES = np.asarray([0, 1, -1, 1, 0, 0])
KEPT = np.asarray([0, 4, 7])  # of the concentrations: each then has many draws


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def made(covariance, errors="gauss"):
    """Distribution over partitions of rows, five of which have a class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2)) + 1.5 * (np.arange(N) % 2)[:, None]
    numbers = (0.3, 2.0, 0.5) if covariance == "tied" else (None, 2.0, 0.5)
    code = MixtureCode("conjugate", covariance, 0.2, 1.0, None, *numbers, True, errors=errors)
    return code.target(X - X.mean(0), CODES, 2, K)


def padded(target, labels):
    return np.pad(labels, ((0, 0), (0, target.x.shape[0] - N))).astype(np.int32)


def nats_of_classes(labels, a):
    """Of sequences of two classes, by the definition of the prior."""
    total = 0.0
    for c in np.unique(labels):
        counts = np.bincount(CODES[(labels == c) & (CODES >= 0)], minlength=2)
        total += gammaln(2 * a + counts.sum()) - gammaln(2 * a)
        total -= (gammaln(a + counts) - gammaln(a)).sum()
    return total


@pytest.mark.parametrize(
    ("covariance", "errors"),
    [("tied", "gauss"), ("diag", "gauss"), *slowly(("full", "t"), ("shrunk", "gauss"))],
)
def test_lengths_differ_by_the_codes_of_the_classes(covariance, errors):
    target, z = made(covariance, errors), all_partitions(N)[::20]
    z = z[z.max(1) < K]

    @jax.jit
    def lengths(labels):
        def of(draw):
            now = target.given(target.drawn() | {"class_concentration": draw})
            return now.length(now.cells(labels))

        return jax.vmap(of)(target.values)

    found = np.stack([lengths(labels) for labels in padded(target, z)])
    expected = np.asarray([[nats_of_classes(labels, a) for a in CONCENTRATIONS] for labels in z])
    np.testing.assert_allclose(found - found[:, :1], expected - expected[:, :1], atol=1e-9)


def test_partitions_and_concentrations_keep_their_distribution():
    """Three tests at 1e-4 in all."""
    target = made("tied")
    target = replace(target, **{f: getattr(target, f)[KEPT] for f in ("values", "each", "total")})
    z = all_partitions(N)
    z = z[z.max(1) < K]
    features = replace(target.inner, plain=_without_classes(target.inner.plain))
    nats = jax.jit(jax.vmap(lambda a: features.length(features.cells(a))))(padded(target, z))
    of_classes = [[nats_of_classes(labels, a) for a in CONCENTRATIONS[KEPT]] for labels in z]
    length = np.asarray(nats)[:, None] + of_classes
    p = np.exp(length.min() - length)
    p = p / p.sum()
    n, seed = 8_000, 0
    at = np.random.default_rng(seed).choice(len(z), size=n, p=p.sum(1))
    keys = jax.random.split(jax.random.PRNGKey(seed), n)
    kernel = PriorKernel(2, 3)
    begin = functools.partial(kernel.begin, target)
    states = jax.vmap(begin)(jnp.asarray(padded(target, z[at])), keys)
    _, draws, _ = chains.run(kernel, target, states, 1, 4, capacity=1)
    labels = np.asarray(draws["labels"])[0, :, :N]
    own = np.argmax(z[:, :, None] == z[:, None, :], 2)
    names = {tuple(row): i for i, row in enumerate(own)}
    first = np.argmax(labels[:, :, None] == labels[:, None, :], 2)
    which = np.asarray([names[tuple(row)] for row in first])
    assert (which != at).mean() > 0.2  # they did move
    value = (np.asarray(draws["class_concentration"])[0][:, None] == CONCENTRATIONS[KEPT]).argmax(1)
    counts = np.zeros_like(p)
    np.add.at(counts, (which, value), 1)
    for axes in ((), (0,), (1,)):
        assert p_value(counts.sum(axes).ravel(), p.sum(axes).ravel()) > LEVEL / 3, axes


def _without_classes(plain):
    return replace(plain, terms=plain.terms[:-1])


@pytest.fixture(scope="module")
def fitted():
    """Fits of three kinds of one shape: 45 rows have a label, of which none or 15 are wrong."""
    rng = np.random.default_rng(0)
    kind = np.arange(150) % 3
    X = rng.normal(size=(150, 2)) + 6 * np.asarray([[1, 0], [0, 1], [0, 0]])[kind]
    right = np.where(np.arange(150) < 45, kind, -1)
    wrong = np.where((right >= 0) & (np.arange(150) % 9 < 3), (right + 1) % 3, right)
    model = MDLMixture(covariance="tied", num_warmup=100, num_samples=200, random_state=0)
    return X, right, model.fit(X, right), clone(model).fit(X, wrong)


@pytest.mark.slow
@pytest.mark.contract
def test_the_concentration_is_as_small_as_labels_are_clean(fitted):
    """With a third of the labels wrong it has to be larger."""
    clean, wrong = (model.posterior_["class_concentration"] for model in fitted[2:])
    assert float((clean <= 0.03).mean()) > 0.8
    assert float((wrong >= 0.1).mean()) > 0.8


@pytest.mark.slow
@pytest.mark.contract
def test_predictions_know_what_was_drawn(fitted):
    """In the middle of a cluster that has all labels of its class, and no other."""
    X, y, model, _ = fitted
    a = model.posterior_["class_concentration"]
    expected = float(((15 + a) / (15 + 3 * a)).mean())
    assert expected > 0.995
    for c in range(3):
        middle = X[y == c].mean(0, keepdims=True)
        assert model.predict_proba(middle)[0, c] == pytest.approx(expected, abs=2e-3)


def test_without_classes_or_where_it_is_given_nothing_is_drawn():
    given = MixtureCode("conjugate", "tied", 0.2, 1.0, 0.5, 0.3, 2.0, 0.5, True)
    X = np.random.default_rng(0).normal(size=(N, 2))
    drawn = replace(given, class_concentration=None)
    nothing = np.full(N, -1)
    for code, codes, n_classes in ((given, CODES, 2), (drawn, nothing, 0)):
        assert "class_concentration" not in code.target(X, codes, n_classes, K).unknowns
    assert "class_concentration" in drawn.target(X, CODES, 2, K).unknowns
