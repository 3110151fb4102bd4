"""Updates of the effects of known groups leave the joint distribution invariant."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from nrprob import MDLMultiView
from nrprob.methods.mdl.complete_codes import make_view
from nrprob.methods.mdl.group_effects import (
    sample_clusters,
    sample_effects,
    subtract_effects,
)
from nrprob.settings import standard
from nrprob.statistics.gaussians import second_moments

KAPPA, VARIANCE, FREEDOM = 0.5, 0.8, 8.0
SCALES = np.array([0.5, 2.0])
N_UPDATES = 3  # deviations add up
GROUPS, LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 0]), np.array([0, 0, 1, 0, 2, 2, 1, 0])


def simulate(full, n_sets, d=2):
    """Effects, indices of their scales, and features, from the prior.

    One of four slots for clusters is empty.
    """
    rng = np.random.default_rng(0)
    index = rng.integers(2, size=n_sets)
    effects = rng.normal(size=(n_sets, 3, d)) * SCALES[index][:, None, None]
    size = d if full else 1
    scatter = FREEDOM * VARIANCE * np.eye(size)
    shape = (n_sets, 3) if full else (n_sets, 3, d)
    draws = stats.invwishart(size + 1 + FREEDOM, scatter).rvs(int(np.prod(shape)), rng)
    draws = draws.reshape(*shape, size, size)
    covariance = draws if full else np.einsum("nkj,ij->nkij", draws[..., 0, 0], np.eye(d))
    roots = np.linalg.cholesky(covariance)
    means = np.einsum("nkij,nkj->nki", roots, rng.normal(size=(n_sets, 3, d))) / np.sqrt(KAPPA)
    noise = rng.normal(size=(n_sets, len(GROUPS), d))
    x = means[:, LABELS] + np.einsum("nsij,nsj->nsi", roots[:, LABELS], noise)
    return effects, index, x + effects[:, GROUPS]


@pytest.mark.parametrize("full", [False, True])
def test_updates_leave_the_prior_predictive_distribution_invariant(full):
    """Joint moments of effects and data are equal before and after updates (Geweke, 2004).

    Differences are within 4.6 standard errors, which fails with a probability of 1e-4 for all 19.
    """
    effects, index, x = simulate(full, 20_000)
    with standard():
        view = make_view(x[0], "gaussian", 4, GROUPS, None, full=full)
    term, *_ = view.terms
    cost = replace(term.cost, kappa=KAPPA, variance=VARIANCE, freedom=FREEDOM)
    view = replace(view, terms=(replace(term, cost=cost),))

    def update(x, effects, index, key):
        ones = jnp.ones((len(x), 1))
        rows = jnp.concatenate([x, second_moments(x, "full" if full else "diag"), ones], 1)
        at, scales = replace(view, x=rows), jnp.asarray(SCALES)

        def repeat(t, carry):
            return sample_effects(at, LABELS, *carry, scales, jax.random.fold_in(key, t))

        return jax.lax.fori_loop(0, N_UPDATES, repeat, (effects, index))

    with standard():
        keys = jax.random.split(jax.random.PRNGKey(1), len(x))
        after, new_index = jax.jit(jax.vmap(update))(x, effects, index, keys)
    after, new_index = np.asarray(after), np.asarray(new_index)

    def moments(effects, index):
        means = np.stack([x[:, GROUPS == g].mean(1) for g in range(3)], 1)
        values = [
            index, effects.mean((1, 2)), (effects**2).sum((1, 2)) * (index == 0),
            (effects**2).sum((1, 2)) * (index == 1), effects[..., 0].prod(1),
            *(effects * means)[:, :, 0].T, *(effects * means)[:, :, 1].T,
            (effects.sum(1) ** 2).sum(1), effects[:, 0, 0] * effects[:, 0, 1],
            effects[:, 0, 0] * effects[:, 1, 1], *((effects - means)[:, :, 0] ** 2).T,
            (effects - means)[:, :, 0].prod(1),
            (np.diff(effects - means, axis=1)[..., 1] ** 2).sum(1),
        ]  # fmt: skip
        return np.stack(values, 1)

    old, new = moments(effects, index), moments(after, new_index)
    size = np.median(np.abs(old), 0) + 1e-3
    difference = np.tanh(new / size / 2) - np.tanh(old / size / 2)  # values have heavy tails
    error = difference.std(0) / np.sqrt(len(x))
    assert (np.abs(difference.mean(0)) < 4.6 * error).all(), difference.mean(0) / error
    assert (np.abs(after - effects) > 1e-3).mean() > 0.99


@pytest.mark.parametrize("full", [False, True])
def test_parameters_of_clusters_have_their_posterior_moments(full):
    """Moments of 40,000 draws are within 5 standard errors, up to 1e-5 in probability."""
    rng = np.random.default_rng(0)
    x, d = rng.normal(size=(9, 2)) @ [[1.0, 0.8], [0, 0.6]] + 1, 2
    with standard():
        view = make_view(x, "gaussian", 1, np.zeros(9, int), None, full=full)
        code = replace(view.terms[0].cost, kappa=KAPPA, variance=VARIANCE, freedom=FREEDOM)
        keys = jax.random.split(jax.random.PRNGKey(2), 40_000)
        cells = view.x.sum(0)[None]
        draws = jax.jit(jax.vmap(lambda key: sample_clusters(code, cells, key)))(keys)
        precision, mean = (np.asarray(part)[:, 0] for part in draws)
    weight, size = KAPPA + 9, d if full else 1
    centre = x.sum(0) / weight
    scatter = FREEDOM * VARIANCE * np.eye(d) + x.T @ x - weight * np.outer(centre, centre)
    scatter = scatter if full else np.diag(np.diag(scatter))
    df = size + 1 + FREEDOM + 9
    expected = df * np.linalg.inv(scatter)
    spread = scatter / weight / (df - size - 1)
    product = (mean - centre)[:, :, None] * (mean - centre)[:, None, :]
    precision = precision if full else precision[:, :, None] * np.eye(d)
    for draws, value in ((precision, expected), (mean, centre), (product, spread)):
        error = draws.std(0) / np.sqrt(len(keys)) + 1e-12
        assert (np.abs(draws.mean(0) - value) < 5 * error).all()


@pytest.mark.parametrize("full", [False, True])
def test_statistics_are_those_of_features_without_effects(full):
    rng = np.random.default_rng(0)
    x, effects = rng.normal(size=(8, 2)), rng.normal(size=(3, 4))
    classes = np.array([0, 1, 0, -1, 1, 0, 1, 0])
    with standard():
        view = make_view(x, "gaussian", 4, GROUPS, classes, full=full)
        expected = make_view(x - effects[GROUPS, :2], "gaussian", 4, GROUPS, classes, full=full)
        result = subtract_effects(view, effects)
        np.testing.assert_allclose(result.x, expected.x, atol=1e-12)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.filterwarnings("ignore:the chains have not converged")
def test_a_feature_that_the_groups_determine_keeps_its_scale():
    rng = np.random.default_rng(0)
    known = np.arange(40) % 3
    X = np.column_stack([rng.normal(size=40), np.array([0.1, 0.3, 0.7])[known]])
    model = MDLMultiView("auto", max_clusters=2, random_state=0)
    draws = model.sample_posterior([X], known=known, num_samples=20, num_warmup=20).draws
    assert np.isfinite(draws["log_density"]).all() and np.isfinite(draws["effects"]).all()
    assert np.abs(draws["effects"]).max() < 3


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.filterwarnings("ignore:the chains have not converged")
def test_clusters_and_effects_of_known_groups_are_found():
    rng = np.random.default_rng(0)
    n, shift = 90, np.array([[0.0, 0], [2, -3], [-2, 4]])
    known = rng.integers(3, size=n)
    sought = (rng.random(n) < np.array([0.8, 0.5, 0.2])[known]).astype(int)
    X = rng.normal(size=(n, 2)) + 5 * np.outer(sought, [1, 0]) + shift[known]
    flags = (rng.random((n, 16)) < np.where(sought, 0.9, 0.1)[:, None]) * 1.0
    model = MDLMultiView("auto", max_clusters=3, features=("gaussian", "bernoulli"), random_state=0)
    names = np.array(["a", "b", "c"])[known]
    posterior = model.sample_posterior(
        [1000 * X, flags], known=names, num_samples=300, num_warmup=200
    )
    same = posterior.labels(0).values == np.where(sought, 1, 0)
    accuracy = np.maximum(same.mean(-1), 1 - same.mean(-1))
    assert accuracy.mean() > 0.9
    draws = posterior.draws
    assert np.isnan(draws["effects"].sel(view=1)).all()
    effects = draws["effects"].sel(view=0)[..., :2]
    expected = 1000 * (shift - np.bincount(known) @ shift / n)
    for name, row in zip("abc", expected, strict=True):
        effect = effects.sel(group=name)
        assert (np.abs(effect.mean(("chain", "draw")) - row) < 5 * effect.std()).all()
        assert (np.abs(effect.mean(("chain", "draw")) - row) < 1000).all()
    assert "effect_scale[0]" in posterior.diagnostics.index
    assert "effects" in posterior.to_arviz().posterior
