"""Initial partitions of chains."""

import numpy as np
import pytest
from bayes_models import coded_model
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

from nrprob import MDLMixture
from nrprob.methods.bayes import starts
from nrprob.methods.bayes.predictive import most_probable_clusters

QUICK = {
    "energy": "nml", "variance_floor": 0.2, "num_warmup": 50, "num_samples": 30,
    "num_chains": 2, "num_split_merge": 2, "random_state": 0,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:the chains do not agree yet")


@pytest.fixture(scope="module")
def rows():
    """300 rows of three groups, and their labels."""
    rng = np.random.default_rng(0)
    truth = np.arange(300) % 3
    X = np.asarray([[0, 0], [8, 0], [0, 8]])[truth] + rng.normal(size=(300, 2))
    return (X - X.mean(0)) / X.std(0), truth


@pytest.fixture
def few(monkeypatch):
    """Sixty rows are a subsample here."""
    monkeypatch.setattr(starts, "SUBSAMPLE", 60)
    monkeypatch.setattr(starts, "MANY", 200)
    monkeypatch.setattr(starts, "_PART", 64)


@pytest.mark.parametrize("energy", ["nml", "conjugate"])
def test_a_row_joins_the_block_with_the_shortest_description(rows, energy):
    X, _ = rows
    X, new, k = X[:12], X[12:20], 4
    labels = np.arange(12) % 3  # the last block is empty
    model = coded_model(energy, unordered=False)
    none = np.full(13, -1)
    target = model.target(X, none[:12], 0, k)
    wide = np.pad(labels, (0, target.x.shape[0] - 12)).astype(np.int32)
    result = most_probable_clusters(target, {"labels": wide[None]}, model.new_rows(new, 0))
    if energy == "nml":  # bounds of the code are computed from the rows for which it is made
        assert result.shape == (1, 8) and np.asarray(result).max() < 3
        return
    for row, block in zip(new, np.asarray(result)[0], strict=True):
        larger = model.target(np.vstack([X, row]), none, 0, k)
        pad = larger.x.shape[0] - 13
        each = [np.pad(np.append(labels, b), (0, pad)).astype(np.int32) for b in range(3)]
        lengths = [float(larger.length(larger.cells(z))) for z in each]
        assert block == np.argmin(lengths)


@pytest.mark.slow
@pytest.mark.contract
def test_chains_on_some_rows_of_groups_with_classes(rows, few):
    X, truth = rows
    group = np.zeros(300, int)
    group[[7, 9]] = 1  # a small group is included in the subsample
    y = np.where(np.arange(300) < 40, truth, -1)
    model = MDLMixture(5, **QUICK | {"energy": "conjugate", "covariance": "tied"})
    model.set_params(init="subsample").fit(X, y, known=group)
    assert adjusted_rand_score(model.labels_, truth) > 0.95


@pytest.mark.slow
@pytest.mark.contract
def test_many_rows_start_on_some_of_them(rows, few, monkeypatch):
    X, truth = rows
    seen = []
    real = starts.labels_by_subsample

    def spy(*args, **kwargs):
        seen.append(real(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(starts, "labels_by_subsample", spy)
    model = MDLMixture(5, **QUICK)
    result = clone(model).fit(X)
    assert len(seen) == 1 and seen[0].shape == (2, 300)
    assert min(adjusted_rand_score(z, truth) for z in seen[0]) > 0.95
    assert adjusted_rand_score(result.labels_, truth) > 0.95
    for init, n in (("dispersed", 300), ("auto", 150), ("subsample", 60)):
        other = clone(model).set_params(init=init)
        assert other._initial_labels(other.prepare(X[:n], None), 0, None, None) is None
    again = clone(model).fit(X)
    np.testing.assert_array_equal(again.posterior_["labels"], result.posterior_["labels"])


def test_chains_start_at_labels(rows, monkeypatch):
    X, truth = rows
    seen = []
    real = starts.begin_at_labels

    def spy(kernel, target, labels, key):
        states = real(kernel, target, labels, key)
        seen.append(np.asarray(states.draw["labels"])[:, :300])
        return states

    monkeypatch.setattr(starts, "begin_at_labels", spy)
    names = np.array(["b", "c", "a"])[truth]
    model = MDLMixture(5, **QUICK | {"num_chains": 3, "num_warmup": 1, "num_samples": 2})
    clone(model).set_params(init=names).fit(X)
    clone(model).set_params(init=np.stack([truth, truth * 0])).fit(X)
    one, two = seen
    assert all(adjusted_rand_score(z, truth) == 1 for z in one)
    assert [len(set(z.tolist())) for z in two] == [3, 1, 3]


@pytest.mark.slow
@pytest.mark.contract
def test_a_run_that_starts_elsewhere_is_another_run(rows, tmp_path):
    X, truth = rows
    model = MDLMixture(5, **QUICK, init=truth, checkpoint=tmp_path)
    whole = clone(model).fit(X)
    resumed = clone(model).fit(X)
    assert resumed.posterior_.equals(whole.posterior_)
    with pytest.raises(ValueError, match="holds another run; it differs in start"):
        clone(model).set_params(init=truth * 0).fit(X)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("near", "init must be one of"),
        (None, "a word or labels"),
        ([[0, 1], [0]], "a word or labels"),
        ([0, 1, 2], "must label each of 300 rows"),
        (np.arange(300), "at most max_clusters different labels; got 300"),
    ],
)
def test_starts_that_are_none(rows, init, message):
    with pytest.raises(ValueError, match=message):
        MDLMixture(5, **QUICK, init=init).fit(rows[0])
