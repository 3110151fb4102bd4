"""Fits with hard labels end where no move of one sample lowers the objective."""

import numpy as np
import pytest
from every_estimator import ENTRIES, few_rows
from scipy.sparse import csr_array
from sklearn.base import clone
from slowly import slowly

from nrprob.batch.registry import METHODS
from nrprob.estimator.base import fitted_labelings
from nrprob.settings import standard

CASES = {
    **{name: (name, {}) for name, entry in ENTRIES.items() if entry.ours.hard_objective},
    "cecib, published cost": ("cecib", {"penalty": None, "covariance": "diag"}),
    "cecib, published": ("cecib", {"preset": "published"}),
    "ccib, sequential": ("ccib", {"solver": "sequential"}),
    "ccib, agglomerative": ("ccib", {"solver": "agglomerative", "coordination": "marginal"}),
    "ib, batched": ("ib", {"solver": "batched"}),
    "ib, agglomerative": ("ib", {"solver": "agglomerative"}),
    "ibsi, agglomerative": ("ibsi", {"solver": "agglomerative"}),
    "ib, sparse": ("ib", {}),
}
FAST = ("cecib", "ccib")
# Methods whose number of clusters is estimated, so that mergers can lower the objective.
MERGING = ("cecib", "mdl_constrained")


def noisy_rows(name):
    """Rows whose clusters overlap, so that local optima abound."""
    X, known = few_rows(name)
    rng = np.random.default_rng(1)
    return (X + 4 * np.abs(rng.normal(size=X.shape))).astype(np.float32), known


def with_objective(name, parameters, *, sparse=False):
    """A fitted model, and its objective as a function of labels."""
    X, known = noisy_rows(name)
    if sparse:
        X = csr_array(np.rint(np.maximum(X, 0)))
    model = clone(ENTRIES[name].ours).set_params(**parameters)
    model.fit(X, **known)
    other = clone(model)
    with standard():
        task = other.prepare(X, None, **known)

    def objective(labels):
        with standard():
            return other._objective_at(task, labels)

    return model, objective


def moves(labels, k):
    """All labels (n,) or (n, labelings) that differ in one entry."""
    for place in np.ndindex(labels.shape):
        for c in range(k):
            if c != labels[place]:
                moved = labels.copy()
                moved[place] = c
                yield moved


@pytest.mark.contract
@pytest.mark.parametrize("case", [*FAST, *slowly(*sorted(CASES.keys() - set(FAST)))])
def test_no_move_of_one_sample_lowers_the_objective(case):
    name, parameters = CASES[case]
    model, objective = with_objective(name, parameters, sparse="sparse" in case)
    labels = fitted_labelings(model)
    value = objective(labels)
    assert value == pytest.approx(model.objective_, rel=1e-6)
    least = min(objective(moved) for moved in moves(labels, model.n_clusters))
    assert least > value - 1e-5 * len(labels)
    if name in MERGING:
        existing = np.unique(labels)
        unions = [np.where(labels == b, a, labels) for a in existing for b in existing if a < b]
        assert all(objective(union) > value - 1e-5 * len(labels) for union in unions)


def test_the_objective_of_other_labels_is_higher():
    """The checks above can fail: labels that one move has changed are not a local optimum."""
    model, objective = with_objective("ccib", {})
    worse = next(moves(model.labels_, 3))
    assert objective(worse) > objective(model.labels_) + 1e-3
    assert METHODS["ccib"].load().hard_objective
