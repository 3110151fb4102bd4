"""Noise component of the conditional mixture: samples that are far from all clusters."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from grouped_tables import flag_table

from nrprob import ConditionalMixture, stored
from nrprob.data.design import Design
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.noise import ResidualNoise, noise_log_density, with_noise
from nrprob.methods.conditional.outliers import find_outliers
from nrprob.methods.conditional.regression import fit_removal
from nrprob.metrics import adjusted_rand_index

pytestmark = [
    pytest.mark.filterwarnings("ignore:two solutions:UserWarning"),
    pytest.mark.filterwarnings("ignore:shares of clusters:UserWarning"),
]
FEW = {"n_init": 12, "random_state": 0}


def halves(seed=0, n=300, n_odd=0, far=10.0, share=0.5, apart=5.0):
    """Numbers of two clusters in three known groups, with odd samples."""
    rng = np.random.default_rng(seed)
    cluster, known = (rng.random(n) < share).astype(int), np.arange(n) % 3
    x = rng.normal(size=(n, 6)) + apart * np.outer(cluster, np.eye(6)[0])
    direction = rng.normal(size=(n_odd, 6))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    x[:n_odd] = far * np.sqrt(6) * direction
    mix = np.eye(6) + 0.5 * np.random.default_rng(7).normal(size=(6, 6))
    return x @ mix + 3 * rng.normal(size=(3, 6))[known], known, cluster


def residual_noise(X, known, n_clusters, **settings):
    r, removal = fit_removal(X, Design.from_groups(known, 3))
    coordinates, y = Coordinates.from_residuals(r, len(X) - removal.rank, "tied", 3.0, **settings)
    return ResidualNoise(y, coordinates, "tied", n_clusters)


def test_steps_raise_the_objective():
    X, known, cluster = halves(n_odd=9)
    for covariance in ("tied", "diag", "spherical"):
        model = residual_noise(X, known, 2, rounding=np.full(6, 0.1))
        model = replace(model, covariance=covariance)
        states = model.steps(np.random.default_rng(1).integers(2, size=300), 0.05, 30)
        objective = np.array([state.objective for state in states])
        assert np.diff(objective).min() >= -1e-6 and np.ptp(objective) > 10
        # Centres have a gradient of 0 where steps end.
        end = model.steps(cluster, 0.05, 100)[-1]
        for shift in 1e-4 * np.random.default_rng(2).normal(size=(3, 2, 6)):
            up, down = (
                model.e_step(end.b + sign * shift, end.sigma, end.s0, 0.05)[1] for sign in (1, -1)
            )
            assert abs(up - down) < 1e-6


@pytest.mark.slow
def test_without_noise_the_objective_is_that_of_the_search():
    X, known, _ = halves(n=90)
    fit = ConditionalMixture(
        2, effects="subtract", weights="uniform", tol=1e-8, max_iter=3000, **FEW
    ).fit(X, known=known)
    model = residual_noise(X, known, 2)
    state = model.steps(fit.labels_, 0.0, 500)[-1]
    # In units of the inflated residuals; the ridge is a divergence.
    c = model.coordinates
    unit = 87 * np.linalg.slogdet(c.basis / c.inflation)[1]
    unit -= 0.5 * c.nu0 * (np.log(c.variances).sum() - 6)
    assert -(state.objective + unit) == pytest.approx(fit.objective_, abs=1e-3)
    np.testing.assert_allclose(state.r, fit.membership_, atol=1e-4)


def test_noise_and_clusters_share_the_density():
    log_joint, log_noise = np.log([[0.2, 0.1], [0.01, 0.02]]), np.log([0.5, 0.6])
    r, log_density = with_noise(log_joint, log_noise, 0.1)
    np.testing.assert_allclose(np.exp(log_density), [0.9 * 0.3 + 0.05, 0.9 * 0.03 + 0.06])
    np.testing.assert_allclose(r, [[0.18 / 0.32, 0.09 / 0.32], [0.009 / 0.087, 0.018 / 0.087]])


@pytest.mark.slow
def test_clean_samples_cost_the_share_and_nothing_else():
    X, known, _ = halves()
    plain = ConditionalMixture(2, **FEW).fit(X, known=known)
    model = ConditionalMixture(2, noise="auto", **FEW).fit(X, known=known)
    assert model.noise_gain_ == pytest.approx(300 * np.log(0.98), abs=2)
    assert model.noise_ == 0 and not model.outliers_.any() and plain.noise_gain_ == 0
    np.testing.assert_allclose(model.membership_, plain.membership_, atol=1e-9)
    assert model.objective_ == pytest.approx(plain.objective_, rel=1e-9)


@pytest.mark.slow
def test_a_minority_is_no_noise():
    X, known, cluster = halves(share=0.1)
    model = ConditionalMixture(2, noise=0.02, **FEW).fit(X, known=known)
    assert model.noise_ == 0.02
    assert model.outliers_[cluster == 1].mean() <= 0.01 and model.outliers_.mean() < 0.01
    assert adjusted_rand_index(model.labels_, cluster) > 0.9


def test_far_samples_are_set_aside_and_move_nothing():
    fits = []
    settings = FEW | {"effects": "subtract"}
    for far in (10.0, 100.0):
        X, known, cluster = halves(n_odd=9, far=far)
        with pytest.warns(UserWarning, match="3.0% of the samples are far from all clusters"):
            ConditionalMixture(2, **settings).fit(X, known=known)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = ConditionalMixture(2, noise="auto", **settings).fit(X, known=known)
        assert model.outliers_[:9].all() and model.outliers_[9:].mean() <= 0.005
        assert adjusted_rand_index(model.labels_[9:], cluster[9:]) > 0.9
        np.testing.assert_allclose(model.membership_.sum(1), 1)
        assert (model.labels_ == model.membership_.argmax(1)).all()
        assert (model.predict(X, known=known) == model.labels_).all()
        assert model.restarts_.labels.shape == (12, 300)
        assert (
            model.restarts_.labels[int(model.restarts_.objective.values.argmin())] == model.labels_
        ).all()
        fits.append(model)
    near, far = fits
    inside = ~near.outliers_ & ~far.outliers_
    np.testing.assert_allclose(near.membership_[inside], far.membership_[inside], atol=1e-6)
    np.testing.assert_allclose(near.means_, far.means_, atol=1e-6)


@pytest.mark.slow
def test_the_density_with_noise_integrates_to_one():
    rng = np.random.default_rng(0)
    known = np.arange(120) % 2
    X = (rng.normal(size=120) + 6 * rng.integers(2, size=120) + 2 * known)[:, None]
    X[:4] += 60 * rng.normal(size=(4, 1))
    model = ConditionalMixture(2, noise=0.1, effects="subtract", **FEW).fit(X, known=known)
    assert model.outliers_.any()
    grid = np.linspace(-200, 200, 40001)[:, None]
    log_density = model._row_scores(grid, np.zeros(len(grid), int))
    # It is the density of the inflated residuals.
    unit = 0.01 * model._coordinates.inflation
    assert np.exp(log_density).sum() * unit == pytest.approx(1, abs=1e-4)
    log_noise = noise_log_density(np.linspace(-40, 40, 8001)[:, None])
    assert np.exp(log_noise).sum() * 0.01 == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
def test_odd_samples_of_mixed_and_incomplete_tables_are_set_aside():
    frame, cluster = flag_table()
    frame.loc[:8, [*"abcd"]] += np.random.default_rng(1).choice([-15.0, 15.0], (9, 4))
    frame.loc[::7, "c"] = np.nan
    model = ConditionalMixture(2, noise="auto", **FEW).fit(frame, known="site")
    assert model.noise_ == 0.02 and model.outliers_[:9].all() and model.outliers_.sum() <= 11
    assert adjusted_rand_index(model.labels_[9:], cluster[9:]) > 0.85
    assert model.n_missing_[2] == 43 and model.membership_.shape == (300, 2)
    # Values of the flag, or a missing one, share the density.
    rows = frame.drop(columns="flag").iloc[5:40].assign(flag=np.nan)
    total = [model._row_scores(*model._split_known(rows.assign(flag=v), None)) for v in (0, 1)]
    without = model._row_scores(*model._split_known(rows, None))
    np.testing.assert_allclose(np.logaddexp(*total), without, rtol=1e-9)


@pytest.mark.slow
def test_labelled_samples_and_initial_labels_keep_their_places():
    X, known, cluster = halves(n_odd=9)
    y = np.full(300, -1)
    y[:40] = cluster[:40]
    model = ConditionalMixture(2, noise="auto", init=cluster, **FEW).fit(X, y, known=known)
    assert model.outliers_[:9].any()
    assert (model.labels_[:40] == cluster[:40]).all()
    assert adjusted_rand_index(model.labels_[9:], cluster[9:]) > 0.9


def test_every_known_group_keeps_a_sample():
    probability = np.array([0.9, 0.8, 0.2, 0.9, 0.1])
    odd = find_outliers(probability, np.array([0, 0, 1, 1, 2]))
    assert odd.tolist() == [True, False, False, True, False]


@pytest.mark.slow
def test_rare_values_of_a_coarse_column_are_no_noise():
    X, known, _ = halves(n_odd=9)
    coarse = np.column_stack([X, np.arange(300) % 40 == 0])
    settings = FEW | {"noise": "auto", "categorical": [], "ordered": [], "effects": "subtract"}
    model = ConditionalMixture(2, **settings).fit(coarse, known=known)
    assert model.noise_gain_ > 100 and model.noise_ == 0 and not model.outliers_.any()


@pytest.mark.parametrize("noise", [-0.1, 0.3, "some", True, None])
def test_shares_of_noise_out_of_range_are_refused(noise):
    X, known, _ = halves()
    with pytest.raises((ValueError, TypeError), match="noise must be 'auto'"):
        ConditionalMixture(2, noise=noise).fit(X, known=known)


@pytest.mark.slow
def test_noise_needs_numbers_in_memory():
    rng = np.random.default_rng(0)
    words = pd.DataFrame({name: rng.choice([*"xyz"], 90) for name in "abc"})
    with pytest.raises(ValueError, match="noise=.* needs a numeric column"):
        ConditionalMixture(2, noise=0.02).fit(words)
    model = ConditionalMixture(2, noise="auto", n_init=4, random_state=0).fit(words)
    assert model.noise_ == 0
    with pytest.raises(ValueError, match="noise needs all rows in memory"):
        ConditionalMixture(2, noise=0.02).fit(stored(rng.normal(size=(300, 3))))


def test_outliers_of_rows_in_memory_do_not_outlive_a_stored_fit():
    X = np.random.default_rng(0).normal(size=(300, 3))
    model = ConditionalMixture(2, n_init=1, random_state=0).fit(X)
    assert model.outliers_.shape == model.noise_probability_.shape == (300,)
    model.fit(stored(X))
    assert not hasattr(model, "outliers_") and not hasattr(model, "noise_probability_")
