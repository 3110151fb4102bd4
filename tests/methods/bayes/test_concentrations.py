"""Concentrations of sizes and classes, sampled jointly with the partition, vs enumeration."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bayes_models import coded_model, sampled_model
from partitions import all_partitions, p_value, places
from scipy.special import gammaln, logsumexp
from sklearn.base import clone
from slowly import slowly

from nrprob import MDLMixture
from nrprob.engines.sample import chains
from nrprob.methods.bayes.concentrations import CLASS_VALUES, SIZE_VALUES
from nrprob.methods.bayes.joint_target import JointKernel

N, K, LEVEL = 6, 4, 1e-4
SIZES, CLASSES = "concentration", "class_concentration"
CODES = np.asarray([0, 1, -1, 1, 0, 0])
KEPT = {
    SIZES: np.asarray([0, 10, 25]),
    CLASSES: np.asarray([0, 4, 7]),
}  # each has many draws
VALUES = {SIZES: SIZE_VALUES, CLASSES: CLASS_VALUES}


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def made(covariance, errors="gaussian", power=1.0):
    """Joint distribution of concentrations and partitions; five rows have a class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2)) + 1.5 * (np.arange(N) % 2)[:, None]
    model = sampled_model(
        covariance, concentration=None, class_concentration=None, errors=errors, power=power,
        mean_precision=0.3 if covariance == "tied" or power < 1 else None, shape=2.0, scale=0.5,
    )  # fmt: skip
    return model.target(X - X.mean(0), CODES, 2, K)


def padded(target, labels):
    return np.pad(labels, ((0, 0), (0, target.x.shape[0] - N))).astype(np.int32)


def nats_of_sizes(labels, a):
    """Log prior of sets of clusters, by definition."""
    sizes = np.bincount(labels)
    k = len(sizes)
    total = gammaln(k * a + N) - gammaln(k * a) - (gammaln(a + sizes) - gammaln(a)).sum()
    return total - gammaln(k + 1)


def nats_of_classes(labels, a):
    """Log prior of sequences of two classes, by definition."""
    total = 0.0
    for c in np.unique(labels):
        counts = np.bincount(CODES[(labels == c) & (CODES >= 0)], minlength=2)
        total += gammaln(2 * a + counts.sum()) - gammaln(2 * a)
        total -= (gammaln(a + counts) - gammaln(a)).sum()
    return total


NATS = {SIZES: nats_of_sizes, CLASSES: nats_of_classes}


@pytest.mark.parametrize(
    ("covariance", "errors"),
    [("tied", "gaussian"), ("diag", "gaussian"), *slowly(("full", "t"), ("shrunk", "gaussian"))],
)
def test_lengths_differ_by_the_codes_of_sizes_and_classes(covariance, errors):
    target, z = made(covariance, errors), all_partitions(N)[::20]
    z = z[z.max(1) < K]
    for name, values in VALUES.items():

        @jax.jit
        def lengths(labels, name=name, values=values):
            def of(draw):
                now = target.condition(target.draw() | {name: draw})
                return now.length(now.cells(labels))

            return jax.vmap(of)(jnp.asarray(values))

        result = np.stack([lengths(labels) for labels in padded(target, z)])
        expected = np.asarray([[NATS[name](labels, a) for a in values] for labels in z])
        np.testing.assert_allclose(result - result[:, :1], expected - expected[:, :1], atol=1e-9)


def test_less_room_changes_no_length():
    target, labels = made("tied"), padded(made("tied"), np.asarray([[0, 1, 2, 0, 1, 2]]))[0]

    @jax.jit
    def length(target):
        now = target.condition(target.draw() | {SIZES: 10.0})
        return now.length(now.cells(labels))

    less = target.with_room(3)
    assert less.n_slots == 3 < target.n_slots
    assert float(length(less)) == pytest.approx(float(length(target)), rel=1e-12)


def test_splits_and_merges_see_lengths_over_all_concentrations():
    """For every current value, and by its change if it is a sum over clusters."""
    two = padded(made("diag"), np.asarray([[0, 1, 0, 1, 2, 2], [0, 1, 0, 1, 0, 1]]))

    @jax.jit
    def lengths(target):
        """For all values, by the change from others, and for each."""
        seen = target.split_merge_target()
        cells, others = (seen.cells(part) for part in two)
        changed = None
        if seen.incremental:
            changed = seen.length(others) + seen.change(others, others, cells)
        each = jax.vmap(lambda a: target.condition(target.draw() | {SIZES: a}).length(cells))(
            SIZE_VALUES
        )
        return seen.length(cells), changed, each

    for covariance in ("diag", "tied"):
        target = made(covariance)
        update = target.update_of(SIZES)
        seen = [update.with_index(target, i).split_merge_target() for i in map(jnp.int32, (2, 30))]
        # Proposals that use the current value would have to correct for it.
        jax.tree.map(np.testing.assert_array_equal, *seen)
        for used in (2, 30):
            over, changed, each = lengths(update.with_index(target, jnp.int32(used)))
            expected = -logsumexp(-each) + np.log(len(SIZE_VALUES))
            assert float(over) == pytest.approx(expected, rel=1e-10)
            if covariance == "diag":
                assert float(changed) == pytest.approx(expected, rel=1e-10)
            else:
                assert changed is None  # lengths of clusters do not add up


def few(target):
    """The distribution with three values of each concentration."""
    for name, kept in KEPT.items():
        update = target.update_of(name)
        tables = {field: getattr(update, field)[kept] for field in ("values", "counts", "totals")}
        target = replace(update, **tables).with_index(target, jnp.int32(1))
    return target


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("covariance", ["tied", *slowly("diag")])
def test_partitions_and_concentrations_keep_their_distribution(covariance):
    """Four tests at 1e-4 in all."""
    target = few(made(covariance, power=0.9))  # all hyperparameters of features are fixed
    z = all_partitions(N)
    z = z[z.max(1) < K]
    nats = jax.jit(jax.vmap(lambda a: target.likelihood.nats(target.cells(a))))(padded(target, z))
    own = {
        name: np.asarray([[NATS[name](labels, a) for a in values[KEPT[name]]] for labels in z])
        for name, values in VALUES.items()
    }
    length = np.asarray(nats)[:, None, None] + own[SIZES][:, :, None] + own[CLASSES][:, None]
    p = np.exp(length.min() - length)
    p = p / p.sum()
    n, seed = 8_000, 0
    at = np.random.default_rng(seed).choice(len(z), size=n, p=p.sum((1, 2)))
    keys = jax.random.split(jax.random.PRNGKey(seed), n)
    kernel = JointKernel(2, 3)
    begin = functools.partial(kernel.begin, target)
    states = jax.vmap(begin)(jnp.asarray(padded(target, z[at])), keys)
    _, draws, _ = chains.run(kernel, target, states, 1, 4, capacity=1)
    labels = np.asarray(draws["labels"])[0, :, :N]
    which = places(labels, z)
    assert (which != at).mean() > 0.2  # they did move
    values = [
        (np.asarray(draws[name])[0][:, None] == VALUES[name][KEPT[name]]).argmax(1)
        for name in (SIZES, CLASSES)
    ]
    counts = np.zeros_like(p)
    np.add.at(counts, (which, *values), 1)
    for axes in ((), (0,), (1, 2), (0, 2)):
        assert p_value(counts.sum(axes).ravel(), p.sum(axes).ravel()) > LEVEL / 4, axes


@pytest.fixture(scope="module")
def fitted():
    """Fits of three data sets of one shape: 45 rows have a label, of which none or 15 are wrong."""
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
    """With a third of the labels wrong it must be larger."""
    clean, wrong = (model.posterior_["class_concentration"] for model in fitted[2:])
    assert float((clean <= 0.03).mean()) > 0.8
    assert float((wrong >= 0.1).mean()) > 0.8


@pytest.mark.slow
@pytest.mark.contract
def test_predictions_know_what_was_drawn(fitted):
    """A row at the centre of a cluster that has all labels of its class, and no other."""
    X, y, model, _ = fitted
    a = model.posterior_["class_concentration"]
    expected = float(((15 + a) / (15 + 3 * a)).mean())
    assert expected > 0.995
    for c in range(3):
        middle = X[y == c].mean(0, keepdims=True)
        assert model.predict_proba(middle)[0, c] == pytest.approx(expected, abs=2e-3)


def test_where_they_are_given_nothing_is_drawn():
    fixed = sampled_model("tied", mean_precision=0.3, shape=2.0, scale=0.5)
    X = np.random.default_rng(0).normal(size=(N, 2))
    both = replace(fixed, concentration=None, class_concentration=None)
    coded = replace(coded_model("conjugate"), concentration=None, class_concentration=None)
    nothing, names = np.full(N, -1), {SIZES, CLASSES}
    for model, codes, n_classes, drawn in (
        (fixed, CODES, 2, set()),
        (both, nothing, 0, {SIZES}),
        (both, CODES, 2, names),
        (coded, CODES, 2, set()),  # nor are hyperparameters of features
    ):
        unknown = getattr(model.target(X, codes, n_classes, K), "names", ())
        assert names & set(unknown) == drawn


@pytest.mark.slow
@pytest.mark.contract
def test_the_concentration_is_as_large_as_sizes_are_alike(fitted):
    X, right, alike, _ = fitted
    kept = np.concatenate(
        [np.flatnonzero(np.arange(150) % 3 == c)[: 50 >> 2 * c] for c in range(3)]
    )
    unlike = clone(alike).fit(X[kept], right[kept])
    assert alike.n_clusters_ == unlike.n_clusters_ == 3
    means = [np.log(m.posterior_["concentration"]).mean() for m in (alike, unlike)]
    assert means[0] > np.log(5) > np.log(2.5) > means[1]
