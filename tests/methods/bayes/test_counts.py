"""The posterior over clusterings of counts and of binary features, given known groups."""

import itertools

import jax
import numpy as np
import pytest
from partitions import all_partitions, p_value
from scipy import sparse
from scipy.special import gammaln, logsumexp
from sklearn.base import clone
from slowly import slowly

from nrprob import MDLMixture
from nrprob.codelength import nml_length
from nrprob.data.design import Design
from nrprob.datasets import make_binary_partitions
from nrprob.engines.sample.chains import default_kernel, dispersed, run
from nrprob.methods.bayes.feature_models import BinaryFeatures, CountFeatures
from nrprob.methods.bayes.model import MixtureModel
from nrprob.metrics import matched_accuracy, normalized_mutual_information
from nrprob.statistics.codes import BinaryCode, _CodeByDifference, count_tables

RUN = {"num_warmup": 150, "num_samples": 100, "num_chains": 4, "random_state": 0}
pytestmark = pytest.mark.filterwarnings("ignore:the chains do not agree yet")


def topics(n=120, tokens=30, seed=0):
    """Documents whose words depend equally on a known and on a target group."""
    rng = np.random.default_rng(seed)
    known, wanted = rng.integers(0, 2, n), rng.integers(0, 3, n)
    p = np.ones((2, 3, 12))
    for a in range(2):
        p[a, :, 6 * a : 6 * a + 3] += 8
    for b in range(3):
        p[:, b, 3 + b :: 6] += 4
    p /= p.sum(-1, keepdims=True)
    X = np.asarray([rng.multinomial(tokens, p[a, b]) for a, b in zip(known, wanted, strict=True)])
    return X, known, wanted


def code_of(features, energy="conjugate", weight=0.3, unordered=False):
    make = {"multinomial": CountFeatures, "bernoulli": BinaryFeatures}[features]
    cells = make(concentration=None if energy == "nml" else 0.7, coordination=weight)
    return MixtureModel(
        features=cells, concentration=1.0, class_concentration=0.5, unordered=unordered
    )


def dirichlet(counts, a=0.7):
    """Nats of a sequence with these counts of its symbols."""
    m, n = len(counts), counts.sum()
    return gammaln(a) * m - gammaln(counts + a).sum() + gammaln(n + m * a) - gammaln(m * a)


def bernoullis(cell):
    return sum(dirichlet(np.array([ones, len(cell) - ones])) for ones in cell.sum(0))


def definition(X, z, known, features, energy, weight):
    """Nats of rows given their clusters and groups, and of the clusters' labels."""
    each = {
        ("multinomial", "nml"): lambda cell: nml_length(cell.sum(0)),
        ("multinomial", "conjugate"): lambda cell: dirichlet(cell.sum(0)),
        ("bernoulli", "conjugate"): bernoullis,
        ("bernoulli", "nml"): lambda cell: sum(
            nml_length(np.array([ones, len(cell) - ones])) for ones in cell.sum(0)
        ),
    }[features, energy]
    sizes, k = np.bincount(z), len(np.unique(z))
    total = nml_length(sizes) if energy == "nml" else dirichlet(sizes, 1.0)
    for c in range(k):
        total += weight * each(X[z == c])
        for g in np.unique(known):
            cell = X[(z == c) & (known == g)]
            total += each(cell) if len(cell) else 0
    return total


def wide_labels(target, *labels):
    pad = target.x.shape[0] - len(labels[0])
    return np.pad(np.asarray(labels), ((0, 0), (0, pad))).astype(np.int32)


@pytest.mark.parametrize("energy", ["nml", "conjugate"])
@pytest.mark.parametrize("features", ["multinomial", "bernoulli"])
def test_the_length_is_the_definition(features, energy):
    X, known, wanted = topics(n=20)
    X = X if features == "multinomial" else (X > 3).astype(int)
    none = np.full(20, -1)
    for weight in (0.3, 0.0):
        with jax.enable_x64(True):
            code = code_of(features, energy, weight)
            target = code.target(X.astype(float), none, 0, 4, Design.from_groups(known, 2))
            z = wide_labels(target, wanted)[0]
            result = float(target.length(target.cells(z)))
            unordered = code_of(features, energy, weight, True)
            target = unordered.target(X.astype(float), none, 0, 4, Design.from_groups(known, 2))
            assert float(target.length(target.cells(z))) == pytest.approx(result - np.log(6))
        assert result == pytest.approx(definition(X, wanted, known, features, energy, weight))


def test_what_a_binary_row_adds_is_a_sum_over_its_features():
    rng = np.random.default_rng(0)
    n, ones = rng.integers(0, 20, 4), rng.random((3, 4))
    cells = np.vstack([np.round(ones * n), n]).astype(float)
    rows = np.vstack([rng.integers(0, 2, (3, 6)), np.ones(6)]).astype(float)
    with jax.enable_x64(True):
        code = BinaryCode(*count_tables(2, 40, 0.5), 0, 3)
        own = jax.tree.map(lambda a: a[..., None], code.prepare_join(cells))
        plain = jax.tree.map(lambda a: a[..., None], _CodeByDifference.prepare_join(code, cells))
        expected = _CodeByDifference.join_costs(code, plain, rows)
        np.testing.assert_allclose(code.join_costs(own, rows), expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(
    "features",
    ["multinomial", *slowly("bernoulli")],
)
def test_chains_have_the_exact_distribution(features):
    """For all 52 partitions of five rows in two groups, by chi-squared at 1e-4."""
    rng = np.random.default_rng(2)
    X = rng.integers(0, 4, (5, 3)) if features == "multinomial" else rng.integers(0, 2, (5, 3))
    known, every = np.array([0, 0, 1, 1, 1]), list(all_partitions(5))
    lengths = [definition(X, np.array(z), known, features, "conjugate", 0.3) for z in every]
    p = np.exp(-np.array(lengths) - logsumexp(-np.array(lengths)))
    none = np.full(5, -1)
    with jax.enable_x64(True):
        target = code_of(features).target(X.astype(float), none, 0, 5, Design.from_groups(known, 2))
        kernel = default_kernel(5, 4)
        states = dispersed(kernel, target, jax.random.PRNGKey(0), 64)
        states, _, _ = run(kernel, target, states, 50, 1, capacity=50)
        _, draws, _ = run(kernel, target, states, 50, 8, capacity=50)
    labels = np.asarray(draws["labels"])[..., :5].reshape(-1, 5)
    names = {tuple(z): i for i, z in enumerate(map(tuple, every))}
    result = np.zeros(len(every))
    for z in labels.tolist():
        order = {name: i for i, name in enumerate(dict.fromkeys(z))}
        result[names[tuple(order[name] for name in z)]] += 1
    assert p_value(result, p) > 1e-4


@pytest.mark.slow
@pytest.mark.contract
def test_densities_of_new_rows_add_up_to_one():
    X, truth = make_binary_partitions(30, (2, 2), random_state=0)
    model = MDLMixture(4, features="bernoulli", num_warmup=20, num_samples=10, num_chains=1,
                       coordination_weight=0.2, random_state=0)  # fmt: skip
    model.fit(X, known=truth[:, 0])
    every = np.array(list(itertools.product([0, 1], repeat=4)), float)
    for group in (0, 1):
        total = sum(np.exp(model.score(row[None], known=[group])) for row in every)
        assert total == pytest.approx(1, rel=1e-9)


@pytest.fixture(scope="module")
def fitted():
    """Counts, known groups, target groups, and a model given the known groups."""
    X, known, wanted = topics(n=90, tokens=60)
    y = np.where(np.arange(90) < 20, wanted, -1)
    model = MDLMixture(6, num_warmup=60, num_samples=40, num_chains=2, random_state=0)
    return X, known, wanted, model.fit(X, y, known=known)


@pytest.mark.slow
@pytest.mark.contract
def test_a_posterior_of_counts_given_groups(fitted):
    X, known, wanted, model = fitted
    assert model.covariance_ == "diag" and not hasattr(model, "variance_floor_")
    assert matched_accuracy(model.labels_, wanted) > 0.9
    assert (model.predict(X, known=known) == wanted).mean() > 0.9
    assert model.score(X, known=known) > model.score(X, known=1 - known)
    with pytest.warns(UserWarning, match="pass coordination_weight=0"):
        result = model.to_arviz()
    assert not hasattr(result, "log_likelihood")
    np.testing.assert_array_equal(result.observed_data["X"], X)


@pytest.mark.slow
@pytest.mark.contract
def test_sparse_rows_are_made_dense(fitted, monkeypatch):
    X, known, _, model = fitted
    rows = sparse.csr_matrix(X)
    np.testing.assert_array_equal(model.predict(rows, known=known), model.predict(X, known=known))
    task = clone(model).prepare(rows, None, known)
    np.testing.assert_array_equal(task.X, X)
    monkeypatch.setattr("nrprob.methods.bayes.prediction._MAX_ENTRIES", X.size - 1)
    with pytest.raises(ValueError, match="sparse X is made dense.*got 90 x 12; pass fewer"):
        clone(model).fit(rows)


@pytest.mark.slow
@pytest.mark.contract
def test_new_rows_far_longer_than_any_are_refused(fitted):
    X, known, _, model = fitted
    assert model.predict(10 * X, known=known).shape == (90,)
    with pytest.raises(ValueError, match="up to 600 counts, ten times the largest"):
        model.predict(11 * X, known=known)
    with pytest.raises(ValueError, match="whole numbers"):
        model.predict(X + 0.5, known=known)


@pytest.mark.slow
def test_what_is_new_is_found_with_its_number_of_clusters():
    X, known, wanted = topics()
    model = MDLMixture(8, **RUN)
    told = clone(model).fit(X, known=known)
    assert np.bincount(told.posterior_["n_clusters"].values.ravel()).argmax() == 3
    assert matched_accuracy(told.labels_, wanted) > 0.8
    assert normalized_mutual_information(told.labels_, known) < 0.1
    # Without known groups, the same code finds the strongest structure.
    plain = clone(model).fit(X)
    assert normalized_mutual_information(plain.labels_, known) > 0.3


@pytest.mark.slow
def test_binary_features_by_maximum_likelihood():
    X, truth = make_binary_partitions(80, (8, 6), random_state=0)
    model = MDLMixture(5, energy="nml", **RUN).fit(X, known=truth[:, 0])
    assert matched_accuracy(model.labels_, truth[:, 1]) > 0.85


@pytest.mark.parametrize(
    ("changed", "X", "message"),
    [
        ({"features": "multinomial"}, [[0.5, 0], [1, 2]], "whole numbers; got fractions"),
        ({"features": "multinomial"}, [[-1, 0], [1, 2]], "found -1"),
        ({"features": "bernoulli"}, [[2, 0], [1, 0]], "bernoulli"),
        ({"features": "bernoulli", "kernel": "six-move"}, [[1, 0], [0, 0]], "collapsed kernel"),
        ({"features": "multinomial", "covariance": "full"}, [[3, 0], [0, 1]], "no covariance"),
        ({"coordination_weight": -1}, [[3, 0], [0, 1]], "coordination_weight"),
        ({"feature_concentration": 0}, [[3, 0], [0, 1]], "feature_concentration"),
    ],
)
def test_what_is_no_such_rows_is_refused(changed, X, message):
    with pytest.raises(ValueError, match=message):
        MDLMixture(2, num_warmup=1, num_samples=1, num_chains=1, **changed).fit(X)


def test_real_numbers_are_meant_where_only_they_have_the_option():
    X = topics(n=20)[0][:, 1:]  # with all columns, totals of rows are the same
    for option, kind in (
        ({}, "multinomial"),
        ({"covariance": "diag"}, "gaussian"),
        ({"kernel": "six-move"}, "gaussian"),
        ({"features": "gaussian"}, "gaussian"),
    ):
        model = MDLMixture(3, **option)
        model.prepare(X, None)
        assert model._features.features == kind
