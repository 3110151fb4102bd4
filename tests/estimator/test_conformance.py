"""scikit-learn's checks of every estimator, one line each.

Variants of a class get the checks of sparse rows, repeated fits, dtypes and pickles only.
"""

import pytest
from every_estimator import ENTRIES
from sklearn.utils.estimator_checks import parametrize_with_checks

from nrprob import (
    CCIB,
    CMBC,
    IB,
    MixtureEM,
)

CLASSES = [entry.theirs for entry in ENTRIES.values()]
SETTINGS = [
    IB(4, n_init=2, beta=2.0, compression=0.0),
    IB(n_init=2, solver="sequential"),
    IB(n_init=2, solver="batched"),
    IB(n_init=2, solver="agglomerative"),
    CCIB(4, n_init=2, coordination="marginal"),
    CCIB(n_init=2, solver="batched"),
    CMBC(4, binarize=0.0, n_init=2, max_iter=20, update="batch", form="printed"),
    CMBC(binarize=0.0, n_init=2, max_iter=20, update="partial"),
    CMBC(binarize=0.0, n_init=2, max_iter=3, update="exact", anneal=False),
    MixtureEM(2, n_init=2, random_state=0, covariance="spherical", anneal=False),
]
NONNEGATIVE = {"check_clustering": "the check passes negative values"}
# Initial values are random per sample, so weights and repetitions start from different memberships;
# `test_sample_weight` compares them from equal ones.
RANDOM_STARTS = "check_sample_weight_equivalence"
OWN = ("sparse", "idempotent", "dtype", "pickle")

pytestmark = pytest.mark.filterwarnings("ignore:the chains do not agree yet")


def _checks(estimators, *, of=("",)):
    """The checks of every estimator with some words in their names."""
    mark = parametrize_with_checks(
        estimators,
        expected_failed_checks=lambda e: NONNEGATIVE if e.capabilities.nonnegative else {},
    )
    names, cases = mark.args[0], list(mark.args[1])
    # A check that is expected to fail is a `pytest.param`, any other a pair.
    checks = [getattr(case, "values", case)[1] for case in cases]
    chosen = [
        case
        for case, check in zip(cases, checks, strict=True)
        if any(word in check.func.__name__ for word in of)
        and RANDOM_STARTS not in check.func.__name__
    ]
    return pytest.mark.parametrize(names, chosen, **mark.kwargs)


@pytest.mark.slow
@pytest.mark.contract
@_checks(CLASSES)
def test_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.contract
@_checks(SETTINGS, of=OWN)
def test_checks_of_other_settings(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.contract
@_checks([CCIB(n_init=2, multi="additive")])
def test_checks_of_additive_effects(estimator, check):
    check(estimator)
