"""Few programs are compiled: padding of clusters and known groups changes nothing."""

import warnings

import numpy as np
import pytest
from every_estimator import ENTRIES, few_rows
from sklearn.base import clone

from nrprob import explore
from nrprob.batch.registry import METHODS
from nrprob.statistics import rows

# Few numbers of clusters per program, and few numbers of known groups.
PADDED = [
    "ib", "ibsi", "ccib", "mixture", "cecib", "conditional-mixture", "partition_kmeans",
    "semi_supervised_fcm", "condens", "cmbc", "mdl_constrained", "semi_supervised_spectral",
    "constrained_mixture", "mdl_multiview", "residual-spectral", "cop_kmeans", "coala",
    "dec_kmeans",
]  # fmt: skip
SCAN = (2, 5, 6, 10)  # the limits of sizes that share a program
# Programs of a fit, if there are several: of the solver, and of the local search.
PROGRAMS = {"ib": 4, "ibsi": 4, "ccib": 4, "cecib": 6}
KNOWING = [name for name in PADDED if METHODS[name].capabilities.known]


@pytest.fixture
def programs(compilations):
    """Compilation seconds of every program, without warnings of the fits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield compilations


def fitted(name, k, n_groups, dtype=None, **settings):
    X, known = few_rows(name)
    X = X if dtype is None else np.asarray(X, dtype)
    if settings.get("features") == "multinomial":
        X = np.round(np.abs(X))
    if known and n_groups:
        known = {METHODS[name].capabilities.known_as: np.arange(len(X)) % n_groups}
    many = "max_clusters" if name == "mdl_mixture" else "n_clusters"
    model = clone(ENTRIES[name].ours).set_params(**{many: k}, **settings)
    if name == "conditional-mixture":  # the fits of effects have a program for every size
        model.set_params(effects="subtract")
    return model.fit(X, **(known if n_groups else {}))


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("name", PADDED)
def test_few_programs_serve_all_numbers_of_clusters(name, programs):
    for k in SCAN:
        fitted(name, k, 2)
    assert len(programs) <= 2 * PROGRAMS.get(name, 1)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("name", KNOWING)
def test_few_programs_serve_all_numbers_of_known_groups(name, programs):
    for n_groups in SCAN:
        fitted(name, 3, n_groups)
    assert len(programs) <= 2 * PROGRAMS.get(name, 1)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("name", PADDED)
def test_padding_changes_nothing(name, programs, monkeypatch):
    # Its last step gains about the rounding error of float32, which would decide about it.
    dtype = np.float64 if name == "cmbc" else None
    padded = fitted(name, 3, 4, dtype)
    monkeypatch.setattr(rows, "SMALL_STEP", 0)
    exact = fitted(name, 3, 4, dtype)
    np.testing.assert_array_equal(padded.restarts_.labels, exact.restarts_.labels)
    assert padded.objective_ == pytest.approx(exact.objective_, rel=1e-6)  # float32
    # Of tied restarts either may be the best, with its own labels and memberships.
    if (padded.labels_ == exact.labels_).all():
        np.testing.assert_allclose(padded.membership_, exact.membership_, atol=1e-4)
    np.testing.assert_allclose(
        padded.restarts_.objective, exact.restarts_.objective, rtol=1e-6, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("name", ["ibsi", "cmbc", "conditional-mixture", "naci", "coala"])
def test_what_was_found_is_known_without_another_program(name, programs):
    X, _ = few_rows(name)
    settings = {"n_clusters": 2, "random_state": 0}
    estimator = clone(ENTRIES[name].ours)
    if name == "conditional-mixture":  # fits with effects need known groups
        estimator.set_params(effects="subtract")
    explore(X, estimator, n_clusterings=1, **settings)
    programs.clear()
    result = explore(X, estimator, n_clusterings=3, **settings)
    assert not programs and result.failure_ is None


# Methods of several programs: their parameters, and whether there is known structure.
SEVERAL = {
    "path of splits": ("cross_partition", {}, True),
    "chains of sums": ("mdl_mixture", {"covariance": "diag"}, False),
    "chains of shrunk covariances": ("mdl_mixture", {"covariance": "shrunk"}, False),
    "chains that know groups": ("mdl_mixture", {}, True),
    "chains of counts in groups": (
        "mdl_mixture",
        {"covariance": "auto", "features": "multinomial"},
        True,
    ),
    "chains of parameters": ("mdl_mixture", {"covariance": "auto", "kernel": "six-move"}, False),
}


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(("name", "settings", "knowing"), SEVERAL.values(), ids=SEVERAL)
def test_programs_serve_other_numbers_and_padding_changes_nothing(
    name, settings, knowing, programs, monkeypatch
):
    def fit_and_predict(k, n_groups):
        model = fitted(name, k, n_groups * knowing, **settings)
        X = np.round(np.abs(few_rows(name)[0]))
        known = {"known": np.arange(60) % n_groups} if knowing and name == "mdl_mixture" else {}
        return model, model.predict_proba(X, **known)

    fit_and_predict(3, 3)
    programs.clear()
    padded, probabilities = fit_and_predict(2, 2)
    assert not programs
    monkeypatch.setattr(rows, "SMALL_STEP", 0)
    exact, exactly = fit_and_predict(2, 2)
    np.testing.assert_array_equal(padded.labels_, exact.labels_)
    assert padded.objective_ == pytest.approx(exact.objective_, rel=1e-9)
    np.testing.assert_allclose(probabilities, exactly, atol=1e-9)
    if name == "mdl_mixture":
        assert padded.posterior_.sizes == exact.posterior_.sizes
        for what, draws in padded.posterior_.items():
            np.testing.assert_allclose(draws, exact.posterior_[what], atol=1e-7)


def test_numbers_are_rounded_up_where_compilation_outweighs_the_run():
    assert [rows.padded_count(k, 1) for k in (1, 2, 5, 6, 10, 11, 40, 41)] == [
        5, 5, 5, 10, 10, 20, 40, 80,
    ]  # fmt: skip
    assert rows.padded_count(7, rows.SMALL_STEP // 10) == 10
    assert rows.padded_count(7, rows.SMALL_STEP // 9) == 7
    assert rows.active_mask(3, 1).tolist() == [True] * 3 + [False] * 2
    assert (
        rows.active_mask(5, rows.SMALL_STEP // 5).all()
        and rows.active_mask(3, rows.SMALL_STEP) is None
    )
