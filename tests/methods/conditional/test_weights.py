"""Sample weights of the conditional mixture: integer weights equal repeated samples."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from slowly import first_fast

from nrprob import ConditionalMixture, ResidualSpectral, stored
from nrprob.data.design import DesignEncoder
from nrprob.known import Memberships
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.joint_fit import location_freedom, thresholds
from nrprob.methods.conditional.one_component import effect_variance, ridge_weight
from nrprob.methods.conditional.regression import fit_groups_and_clusters, fit_removal
from nrprob.methods.conditional.table import DiscreteColumn
from nrprob.methods.conditional.table_data import TableData
from nrprob.statistics.groups import cross_table
from nrprob.statistics.weighted import ledoit_wolf_intensity

N, TOTAL, K = 120, 192, 3
RNG = np.random.default_rng(4)
PLANTED, GROUP = np.arange(N) % K, RNG.integers(3, size=N)
X = RNG.normal(size=(N, 4)) + 5 * np.eye(K, 4)[PLANTED] + RNG.normal(size=(3, 4))[GROUP]
WEIGHTS = 1.0 + RNG.multinomial(TOTAL - N, np.full(N, 1 / N))
REPEATS = np.repeat(np.arange(N), WEIGHTS.astype(int))
SOFT = Memberships(RNG.dirichlet([0.4, 0.4], N))
COVARIATES = RNG.normal(size=(N, 2))
MIXED = pd.DataFrame(X[:, :3], columns=list("abc"))
MIXED["colour"] = np.array(["red", "green", "blue"])[np.where(RNG.random(N) < 0.8, PLANTED, 0)]
MIXED["grade"] = 1.0 * np.minimum(PLANTED + RNG.integers(2, size=N), 3)
CODES, GRADES = RNG.integers(-1, 3, size=N), RNG.integers(4, size=N)
MEMBERSHIP = RNG.dirichlet(np.ones(K), N)
GAPS = MIXED.mask(RNG.random(MIXED.shape) < 0.1)
PLAIN = ConditionalMixture(
    K, init=PLANTED, n_init=1, whitening_exponents=(0.0,), aligned=False, warm_up=False,
    max_iter=2000, tol=1e-9, random_state=0, weights="uniform", effects="subtract",
)  # fmt: skip
KINDS = {"categorical": ["colour"], "ordered": ["grade"]}
# Parameters, samples and known structure.
CASES = {
    "numbers in groups": ({}, X, GROUP),
    "effects in gaps": ({"effects": "random", **KINDS}, GAPS, GROUP),
    "numbers": ({}, X, None),
    "diagonal, weights": ({"covariance": "diag", "weights": "auto"}, X, GROUP),
    "spherical, t": ({"covariance": "spherical", "errors": "t"}, X, GROUP),
    "balance": ({"balance": 0.5}, X, GROUP),
    "memberships": ({}, X, SOFT),
    "covariates": ({}, X, COVARIATES),
    "random effects": ({"effects": "random"}, X, GROUP),
    "fixed effects, shares": ({"effects": "fixed", "weights": "by_group"}, X, GROUP),
    "choice of effects": ({"effects": "auto", "weights": "auto"}, X, GROUP),
    "mixed": ({"location": False, **KINDS}, MIXED, None),
    "mixed, located": ({"location": True, "weights": "free", **KINDS}, MIXED, GROUP),
    "gaps": ({"weights": "auto", **KINDS}, GAPS, GROUP),
    "categories": (KINDS, MIXED[["colour", "grade"]], GROUP),
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def take(values, rows):
    """Some samples of a table, of memberships or of labels; None stays None."""
    if isinstance(values, Memberships):
        return Memberships(values.probabilities[rows])
    if isinstance(values, pd.DataFrame):
        return values.iloc[rows]
    return None if values is None else values[rows]


@pytest.mark.parametrize("case", first_fast(CASES))
def test_integer_weights_equal_repeated_samples(case):
    changes, rows, known = CASES[case]
    model = clone(PLAIN).set_params(**changes)
    weighted = clone(model).fit(rows, known=known, sample_weight=WEIGHTS)
    repeated = clone(model).set_params(init=PLANTED[REPEATS])
    repeated.fit(take(rows, REPEATS), known=take(known, REPEATS))
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-8)
    assert weighted.log_likelihood_ == pytest.approx(repeated.log_likelihood_, rel=1e-8)
    assert weighted.effects_kind_ == repeated.effects_kind_
    for fitted in (weighted, repeated):
        np.testing.assert_array_equal(fitted.labels_, fitted.membership_.argmax(1))
    # Joint fits have two starts with equal optima, of which rounding chooses.
    table = cross_table(weighted.labels_[REPEATS], repeated.labels_, (K, K))
    order = table.argmax(0)
    np.testing.assert_array_equal(weighted.labels_[REPEATS], order[repeated.labels_])
    for name in ("membership_", "means_", "covariance_", "effects_", "weights_", "shares_"):
        a, b = getattr(weighted, name), getattr(repeated, name)
        a = a[REPEATS] if name == "membership_" else a
        by_column = name in ("membership_", "shares_")
        a = a[:, order] if by_column else a[order] if name in ("means_", "weights_") else a
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6, err_msg=name)
    for name, gain in repeated.decisions_.items():
        assert weighted.decisions_[name] == pytest.approx(gain, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(
        weighted.score(rows, known=known), repeated.score(rows, known=known), rtol=1e-7
    )


def numpy_parts(rows, known, weights):
    """What a fit takes from a table before it clusters, as arrays."""
    x, group, colour, grade = rows, known, CODES, GRADES
    columns = [DiscreteColumn(colour, 3), DiscreteColumn(grade, 4, np.arange(4.0))]
    if weights is None:
        x, group = x[REPEATS], group[REPEATS]
        columns = [replace(column, codes=column.codes[REPEATS]) for column in columns]
    data = TableData(x, columns, group, 3, mass=weights)
    one_component = data.one_component
    membership = MEMBERSHIP if weights is not None else MEMBERSHIP[REPEATS]
    complete = np.nan_to_num(x)
    residuals, removal = fit_removal(complete, DesignEncoder().fit(group, len(x)), weights)
    coordinates = {
        covariance: Coordinates.from_residuals(
            residuals, TOTAL - 3, covariance, 3.0, weights=weights
        )[0]
        for covariance in ("tied", "diag")
    }
    return {
        "means": one_component.means,
        "covariance": one_component.covariance,
        "scale": one_component.scale,
        "marginal": data.columns[0].marginal,
        "scores": data.columns[1].standard_scores,
        "location means": data.location.means,
        "location scale": data.location.scale,
        "freedom": location_freedom(data),
        "thresholds": thresholds(data, K),
        "tau0": effect_variance(one_component, group, weights),
        "nu0": ridge_weight(
            ledoit_wolf_intensity(one_component.completed, weights), TOTAL - 3, 3.0, 100
        ),
        "effects": removal.effects,
        "level": removal.level,
        "unspanned effects": fit_groups_and_clusters(complete, group, 3, membership, weights)[0],
        "unspanned centres": fit_groups_and_clusters(complete, group, 3, membership, weights)[1],
        "shrinkage": [c.shrinkage for c in coordinates.values()],
        "scales": [c.scale for c in coordinates.values()],
        "variances": coordinates["tied"].variances,
        "square": np.square(coordinates["tied"].basis).sum(1),
    }


def test_statistics_of_a_table_count_weights():
    x = np.where(RNG.random(X.shape) < 0.1, np.nan, X)
    weighted, repeated = numpy_parts(x, GROUP, WEIGHTS), numpy_parts(x, GROUP, None)
    for name, value in repeated.items():
        np.testing.assert_allclose(weighted[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["numbers in groups", "gaps"])
def test_weight_0_leaves_a_sample_out_of_the_fit(case):
    changes, rows, known = CASES[case]
    model = clone(PLAIN).set_params(**changes, n_init=3)
    weights = np.where(np.arange(N) % 5 == 2, 0, WEIGHTS)
    present = weights > 0
    fit = clone(model).fit(rows, known=known, sample_weight=weights)
    other = clone(model).set_params(init=PLANTED[present])
    other.fit(take(rows, present), known=known[present], sample_weight=weights[present])
    assert fit.objective_ == pytest.approx(other.objective_, rel=1e-9)
    np.testing.assert_array_equal(fit.labels_[present], other.labels_)
    np.testing.assert_allclose(fit.membership_[present], other.membership_, atol=1e-9)
    predicted = other.predict(take(rows, ~present), known=known[~present])
    np.testing.assert_array_equal(fit.labels_[~present], predicted)
    optima = fit.optima_
    assert optima["cluster_sizes"].values.sum(1) == pytest.approx(present.sum())
    assert (optima["labels"].values[:, ~present] == -1).all()


@pytest.mark.slow
def test_successive_halving_takes_weights():
    rng = np.random.default_rng(0)
    n, far = 30_000, np.arange(30_000) % 3 == 0
    rows = rng.normal(size=(n, 3)) + 6 * np.eye(2, 3)[np.arange(n) % 2] + 6 * far[:, None]
    # Without the samples of small weight, there are two clusters; with them, another two.
    weights = np.where(far, 1e-3, 1.0)
    model = ConditionalMixture(2, effects="subtract", n_init=6, random_state=0)
    labels = model.fit(rows, sample_weight=weights).labels_
    agreement = (labels == np.arange(n) % 2)[~far].mean()
    assert max(agreement, 1 - agreement) > 0.99
    unweighted = ConditionalMixture(2, effects="subtract", n_init=6, random_state=0)
    agreement = (unweighted.fit(rows).labels_ == np.arange(n) % 2)[~far].mean()
    assert max(agreement, 1 - agreement) < 0.9


def test_stored_rows_and_auto_refuse_weights():
    with pytest.raises(ValueError, match="stored rows all have weight 1; got sample_weight"):
        clone(PLAIN).set_params(init=None).fit(stored(X), sample_weight=WEIGHTS)
    with pytest.raises(ValueError, match="n_clusters='auto' cannot use sample weights"):
        ConditionalMixture("auto").fit(X, sample_weight=WEIGHTS)
    with pytest.raises(ValueError, match="degrees of freedom"):
        clone(PLAIN).set_params(init=None).fit(X, known=GROUP, sample_weight=WEIGHTS / TOTAL)


RATES = 0.4 + 3.0 * np.eye(K)[PLANTED] @ (RNG.random((K, 40)) < 0.25)
COUNTS = RNG.poisson(RATES + 2.0 * (np.arange(40) % 3 == GROUP[:, None])).astype(float)
SPECTRAL = {
    "groups": ({"members": 4}, GROUP),
    "no groups, scatter": ({"members": 3, "consensus": "scatter"}, None),
    "covariates": ({"members": 2}, COVARIATES),
    "memberships": ({"members": 2}, SOFT),
}


@pytest.mark.parametrize("case", first_fast(SPECTRAL))
def test_spectral_consensus_of_weights_is_that_of_repeated_samples(case):
    changes, known = SPECTRAL[case]
    model = ResidualSpectral(K, n_init=2, random_state=0, **changes)
    weighted = clone(model).fit(COUNTS, known=known, sample_weight=WEIGHTS)
    repeated = clone(model).fit(COUNTS[REPEATS], known=take(known, REPEATS))
    # Starts follow the contents of rows, so that fits are equal up to the float32 of directions.
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-4)
    np.testing.assert_array_equal(weighted.labels_[REPEATS], repeated.labels_)
    np.testing.assert_array_equal(weighted.member_labels_[REPEATS], repeated.member_labels_)
    np.testing.assert_allclose(weighted.membership_[REPEATS], repeated.membership_, atol=1e-6)
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-9)
    np.testing.assert_allclose(
        weighted.members_["objective"], repeated.members_["objective"], rtol=1e-3
    )
    for a, b in zip(weighted.eigenvalues_.values(), repeated.eigenvalues_.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * b.max())


@pytest.mark.slow
def test_spectral_fit_leaves_out_samples_of_weight_0():
    weights = np.where(np.arange(N) % 5 == 2, 0, WEIGHTS)
    present = weights > 0
    model = ResidualSpectral(K, n_init=2, members=3, random_state=0)
    fit = clone(model).fit(COUNTS, known=GROUP, sample_weight=weights)
    other = clone(model).fit(COUNTS[present], known=GROUP[present], sample_weight=weights[present])
    assert fit.objective_ == pytest.approx(other.objective_, rel=1e-9)
    np.testing.assert_array_equal(fit.member_labels_[present], other.member_labels_)
    predicted = other.predict(COUNTS[~present], known=GROUP[~present])
    np.testing.assert_array_equal(fit.labels_[~present], predicted)
    np.testing.assert_allclose(fit.agreement_, fit.membership_[np.arange(N), fit.labels_])
