"""One clustering after another."""

import numpy as np
import pytest
from scipy import sparse

from nrprob import CCIB, IBSI, Exploration, explore, information, metrics
from nrprob.datasets import make_binary_partitions


@pytest.fixture(scope="module")
def four():
    return make_binary_partitions(300, (12, 8, 6, 4), random_state=0)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.smoke
def test_finds_all_partitions_in_the_order_of_their_strength(four):
    X, truth = four
    found = explore(X, n_clusters=2, n_clusterings=4, random_state=0)
    assert isinstance(found, Exploration) and found.labels_.shape == (300, 4)
    assert len(found.estimators_) == 4 and found.rejected_ is None and found.evidence_ == []
    for j in range(4):
        assert metrics.matched_accuracy(found.labels_[:, j], truth[:, j]) > 0.9
    table = found.table
    assert list(table) == [f"found {i}" for i in (1, 2, 3, 4)]
    assert np.allclose(table, table.T)
    off = table.values[~np.eye(4, dtype=bool)]
    assert off.max() < 0.03 and np.diag(table).min() > 0.6
    joint = metrics.contingency(found.labels_[:, 0], found.labels_[:, 2]) / 300
    assert table.iloc[0, 2] == pytest.approx(information.mutual_information(joint))


def test_starts_from_what_is_known(four):
    X, truth = four
    names = np.array(["left", "right"])[truth[:, 0]]
    found = explore(X, CCIB(n_init=4), n_clusters=2, n_clusterings=1, known=names, random_state=0)
    assert metrics.matched_accuracy(found.labels_[:, 0], truth[:, 1]) > 0.9
    assert list(found.table) == ["known 1", "found 1"]
    both = explore(X, CCIB(), n_clusters=2, n_clusterings=1, known=truth[:, :2], random_state=0)
    assert metrics.matched_accuracy(both.labels_[:, 0], truth[:, 2]) > 0.9


def test_same_seed_same_result_and_estimator_untouched(four):
    X, _ = four
    model = IBSI(2, gamma=20.0, n_init=2)
    first = explore(X[:150], model, n_clusterings=2, random_state=3)
    second = explore(X[:150], model, n_clusterings=2, random_state=3)
    assert (first.labels_ == second.labels_).all()
    assert not hasattr(model, "labels_") and model.random_state is None


def test_refusals(four):
    X, _ = four
    with pytest.raises(ValueError, match="n_clusterings must be given"):
        explore(X, CCIB(2))
    with pytest.raises(ValueError, match="at least 1"):
        explore(X, CCIB(2), n_clusterings=0)
    with pytest.raises(TypeError, match="n_clusterings must be an integer; got '2'"):
        explore(X, CCIB(2), n_clusterings="2")
    with pytest.raises(ValueError, match="'auto' or an estimator"):
        explore(X, "ccib", n_clusterings=1)
    with pytest.raises(TypeError, match="pass an instance"):
        explore(X, CCIB, n_clusterings=1)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_goes_on_with_sparse_rows_of_zeros_and_ones():
    X = sparse.csr_array(np.random.default_rng(0).integers(0, 2, (60, 8)))
    found = explore(X, n_clusters=2, n_clusterings=4, random_state=0)
    assert found.labels_.shape == (60, 4) and found.failure_ is None


class FailsWhenToldTwice(IBSI):
    def fit(self, X, y=None, *, known=None):
        if known is not None and known.shape[1] == 2:
            raise self.error
        return super().fit(X, y, known=known)


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt()])
def test_keeps_what_it_found_when_a_later_fit_fails(four, error, monkeypatch):
    X, _ = four
    monkeypatch.setattr(FailsWhenToldTwice, "error", error, raising=False)
    model = FailsWhenToldTwice(2, gamma=20.0, n_init=2)
    what = f"clustering 3 of 4 failed; got {type(error).__name__}: {error}"
    with pytest.warns(UserWarning, match=what):
        found = explore(X[:150], model, n_clusterings=4, random_state=3)
    assert found.labels_.shape == (150, 2) and len(found.estimators_) == 2
    assert found.failure_ is error and found.table.shape == (2, 2)
    known = found.labels_
    with pytest.raises(type(error)):
        explore(X[:150], model, n_clusterings=1, known=known)
