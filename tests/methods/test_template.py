"""The example of a family: Poisson counts with all four solvers, known structure and models."""

import numpy as np
import poisson
import pytest
from scipy import sparse
from sklearn.metrics import adjusted_rand_score
from slowly import first_fast

from nrprob import CCIB, IB, IBSI, MDLMixture, MixtureEM
from nrprob.estimator.terms import SOLVERS
from nrprob.statistics import families

QUICK = {"features": "poisson", "n_init": 2, "random_state": 0}


@pytest.fixture(scope="module")
def planted():
    """Counts (60, 6) whose level depends on the cluster, and whose last columns on the known
    group."""
    rng = np.random.default_rng(0)
    z, c = np.arange(60) % 2, np.arange(60) // 30
    means = np.where(c == 0, 1.0, 8.0)[:, None] * np.ones(6)
    means[:, 4:] = np.where(z == 0, 1.0, 30.0)[:, None]
    return rng.poisson(means).astype(float), z, c


def cost(X, labels):
    """Sum of m - y log m over all counts, where m is the mean of the row's cell."""
    total = 0.0
    for cell in np.unique(labels):
        rows = X[labels == cell]
        m = rows.mean(0)
        total += (m - rows * np.log(np.where(m > 0, m, 1))).sum()  # where m is 0, so are rows
    return total


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_objective_is_the_likelihood(planted, solver):
    X, z, _ = planted
    model = IB(2, solver=solver, **QUICK).fit(X)
    assert model.objective_ == pytest.approx(cost(X, model.labels_), rel=1e-9)
    assert model.score(X) == pytest.approx(-model.objective_ / 60, rel=1e-3)
    assert (model.predict(X) == model.labels_).mean() > 0.95
    assert adjusted_rand_score(model.labels_, z) > 0.9  # the largest difference


@pytest.mark.parametrize("solver", first_fast(SOLVERS))
def test_what_is_new_is_found(planted, solver):
    X, z, c = planted
    model = CCIB(2, solver=solver, coordination="marginal", **QUICK).fit(X, known=z)
    cells = cost(X, 2 * model.labels_ + z)
    expected = cells + model.coordination_weight_ * cost(X, model.labels_)
    assert model.objective_ == pytest.approx(expected, rel=1e-9)
    assert adjusted_rand_score(model.labels_, c) > 0.9


@pytest.mark.slow
@pytest.mark.contract
def test_sparse_counts_are_the_same_counts(planted):
    X, z, _ = planted
    for solver in ("anneal", "sequential"):
        dense = IBSI(2, gamma=1.0, solver=solver, **QUICK).fit(X, known=z)
        other = IBSI(2, gamma=1.0, solver=solver, **QUICK).fit(sparse.csr_array(X), known=z)
        assert other.objective_ == pytest.approx(dense.objective_, rel=1e-9)
        assert (other.labels_ == dense.labels_).all()


@pytest.mark.slow
@pytest.mark.contract
def test_models_of_continuous_structure_have_the_link(planted):
    X, z, c = planted
    noise = np.random.default_rng(1).normal(size=60)
    model = CCIB(2, coordination="marginal", **QUICK).fit(X, known=np.c_[z + 0.0, noise])
    assert adjusted_rand_score(model.labels_, c) > 0.9
    saturated = CCIB(2, coordination="marginal", multi="additive", ridge=1e-9, **QUICK)
    groups = CCIB(2, coordination="marginal", **QUICK).fit(X, known=z)
    assert saturated.fit(X, known=z).objective_ == pytest.approx(groups.objective_, rel=1e-6)


def test_a_family_is_no_more_than_it_says(planted):
    X, z, _ = planted
    assert IB(2, n_init=1, random_state=0).fit(X)._features.features == "multinomial"
    with pytest.raises(ValueError, match="features='poisson' needs counts; found -1 at row 0"):
        IB(2, **QUICK).fit(X - X[0, 0] - 1)
    with pytest.raises(ValueError, match="features='poisson' has no components, which this"):
        MixtureEM(2, **QUICK).fit(X)
    with pytest.raises(ValueError, match="features='poisson' has no code, which this method"):
        MDLMixture(features="poisson").fit(X, known=z)
    with pytest.raises(
        ValueError, match="features must be the name of a family; got 'binomial'; choose"
    ):
        families.get_family("binomial")
    families.register_family(poisson.POISSON)  # again, without effect
    with pytest.raises(ValueError, match="names of families must be unique; got 'poisson'"):
        families.register_family(families.Family("poisson", *[None] * 3))
