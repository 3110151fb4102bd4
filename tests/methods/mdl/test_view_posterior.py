"""Posterior of the labels of several views: enumeration, invariance of the moves, use."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partitions import p_value
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from nrprob import MDLConstrained, MDLMultiView
from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.checkpoints import CheckpointedChains
from nrprob.methods.mdl.complete_codes import GAUSSIAN_PRIORS, make_view
from nrprob.methods.mdl.linked_words import LinkedWords
from nrprob.methods.mdl.view_kernel import ViewsKernel
from nrprob.posterior import coclustering, n_clusters, point_estimate
from nrprob.settings import standard

BINARY = {"features": "bernoulli", "max_clusters": 3}
Y = [0, 1, -1, -1, 0]


def binary_views(*widths, n=5):
    rng = np.random.default_rng(len(widths))
    return [rng.integers(0, 2, (n, d)).astype(float) for d in widths]


# model, data and what is known
CASES = {
    "hard pairs": (
        MDLMultiView((3, 2), **BINARY), binary_views(3, 2), {
            "must_link": [[0, 3]], "cannot_link": [[0, 1], [1, 2]],
        },
    ),
    "soft pairs": (
        MDLMultiView(3, constraints="soft", **BINARY), binary_views(3), {
            "y": Y, "must_link": [[0, 3], [1, 3]], "cannot_link": [[0, 1], [1, 2]],
        },
    ),
    "known groups": (
        MDLMultiView(("auto", 2), **BINARY), binary_views(3, 2), {"known": [0, 0, 1, 1, 1], "y": Y},
    ),
    "given groups": (
        MDLMultiView(2, known_words="given", **BINARY), binary_views(2, 2), {
            "known": [0, 0, 1, 1, 1], "must_link": [[0, 3]],
        },
    ),
    "forest": (
        MDLMultiView(("auto", 2, "auto"), **{**BINARY, "max_clusters": 2}),
        binary_views(2, 2, 2, n=4), {"must_link": [[0, 3]]},
    ),
    "independent": (
        MDLMultiView((2, 3), dependent=False, **BINARY), binary_views(2, 2),
        {"must_link": [[0, 1]]},
    ),
    "counts": (
        MDLMultiView((2, 2), features=("multinomial", "bernoulli")),
        [3.0 * binary_views(3)[0], binary_views(2, 2)[1]], {},
    ),
}  # fmt: skip


def problem(model, X, known_parts):
    """Description length of a fit, and the target of the sampler."""
    model = clone(model).set_params(view_gain=True)
    with standard():
        task = model.prepare(X, **{"y": None, **known_parts})
        target = model._start_chains(task, 1, 1, np.random.RandomState(0))[0].target
        return model._length(task, bool(model.dependent)), target


def all_forests(n_views, code):
    """Parents (forests, V) of all forests in which the first view is a root."""
    if code != "forest":
        return np.full((1, n_views), -1)

    def is_acyclic(parents):
        for _ in parents:
            parents = [p if p < 0 else parents[p] for p in parents]
        return max(parents) < 0

    options = itertools.product([-1], *[range(-1, n_views)] * (n_views - 1))
    return np.array([parents for parents in options if is_acyclic(list(parents))])


def all_labels(length):
    """Labels (states, V, n) of all views that satisfy the hard pairs."""
    target, views = length.target, []
    for v, k in enumerate(length.sizes):
        size = target.n_units if v == 0 else length.n
        z = np.array(list(itertools.product(range(k), repeat=size)))
        if v == 0 and isinstance(target.words, LinkedWords):
            z = z[(z[:, target.words.early] != z[:, target.words.late]).all(1)]
        views.append(length.sample_labels(v, z))
    places = np.meshgrid(*(np.arange(len(z)) for z in views), indexing="ij")
    return np.stack([z[place.ravel()] for z, place in zip(views, places, strict=True)], 1)


@jax.jit
def lengths_of(target, z, parents):
    """Lengths and minus log targets of labels (states, V, n) for one forest."""
    return jax.lax.map(lambda labels: target.length(labels, parents), z, batch_size=512)


@pytest.mark.parametrize("name", CASES)
def test_lengths_are_those_of_fits(name):
    length, target = problem(*CASES[name])
    rng, forests = np.random.default_rng(0), all_forests(length.n_views, target.code)
    states = all_labels(length)
    states = states[rng.permutation(len(states))[:30]]
    for parents in forests[rng.permutation(len(forests))[:3]]:
        length.parents = parents
        with standard():
            both = lengths_of(target, jnp.asarray(states), jnp.asarray(parents))
        expected = [length.total(z.T) for z in states]
        np.testing.assert_allclose(both[0], expected, atol=1e-8)
        # The target divides by the number of sets of slots, if numbers of clusters are selected.
        sets = np.zeros(len(states))
        for v in np.flatnonzero(length.counts_used):
            used = np.array([np.unique(z[v]).size for z in states])
            sets += np.log(stats.binom(length.sizes[v], 0.5).pmf(used) * 2.0 ** length.sizes[v])
        np.testing.assert_allclose(both[1] - both[0], sets, atol=1e-8)


@pytest.mark.parametrize("code", ["forest", "independent"])
def test_the_code_is_complete(code):
    # The probabilities of all features, classes, labels and forests add to 1.
    total, known = 0.0, np.array([0, 0, 1])
    tables = list(itertools.product((0.0, 1.0), repeat=3))
    model = MDLMultiView(2, dependent=code == "forest", **BINARY)
    for x in itertools.product(tables, repeat=2):
        views, classes = [np.array(column)[:, None] for column in x], x[0]
        length, target = problem(model, views, {"known": known, "must_link": [[0, 2]]})
        forests = all_forests(2, target.code)
        assert target.code == code
        # Classes do not change the shapes: they are features of the first view.
        first = make_view(views[0], "bernoulli", 2, known, np.array(classes, int), full=False)
        assert first.x.shape[1] >= target.views[0].x.shape[1]
        for parents in forests:
            with standard():
                values = lengths_of(target, jnp.asarray(all_labels(length)), jnp.asarray(parents))
            total += np.exp(-np.asarray(values[0])).sum()
    np.testing.assert_allclose(total, 1, atol=1e-9)


def enumerate_posterior(length, target, z):
    """Forests, and probabilities (states, forests) of labels z (states, V, n)."""
    forests = all_forests(length.n_views, target.code)
    with standard():
        nats = [lengths_of(target, jnp.asarray(z), jnp.asarray(parents))[1] for parents in forests]
    p = np.exp(np.min(nats) - np.stack(nats, 1))
    return forests, p / p.sum()


@jit_by_size("kernel", limit=10**7)
def advance_states(kernel, target, draws, n_iter):
    """States of chains in sequence after iterations, from draws with a leading axis."""

    def advance(draw):
        start = kernel.begin(target, draw["labels"], draw["key"])
        start = start._replace(draw=start.draw | {k: a for k, a in draw.items() if k != "key"})
        return jax.lax.fori_loop(0, n_iter, lambda _, state: kernel.step(target, state), start)

    return jax.lax.map(advance, draws)


def advance_chains(target, n_iter, **draws):
    """Draws of chains with initial ``draws`` after iterations, and numbers of accepted moves."""
    arrays = {name: jnp.asarray(array, jnp.int32) for name, array in draws.items()}
    arrays["key"] = jax.random.split(jax.random.PRNGKey(3), len(draws["labels"]))
    states = advance_states(ViewsKernel(), target, arrays, n_iter)
    accepted = {name: int(count.sum()) for name, count in states.moves.items() if "_" in name}
    return {name: np.asarray(array) for name, array in states.draw.items()}, accepted


@pytest.mark.parametrize(
    "name, n_chains, far",
    [("hard pairs", 3000, 0),
     pytest.param("forest", 3000, 12, marks=pytest.mark.slow),
     pytest.param("soft pairs", 3000, 0, marks=pytest.mark.slow),
     pytest.param("known groups", 3000, 0, marks=pytest.mark.slow),
     pytest.param("given groups", 3000, 0, marks=pytest.mark.slow)],
)  # fmt: skip
def test_iterations_leave_the_posterior_invariant(name, n_chains, far):
    # Chains start at independent states of the enumerated posterior, so that their states after two
    # iterations are independent states of the same distribution. The test fails with probability
    # 1e-5. Chains that start at one state reach the posterior after more iterations.
    length, target = problem(*CASES[name])
    z = all_labels(length)
    forests, p = enumerate_posterior(length, target, z)
    starts = np.random.default_rng(0).choice(p.size, n_chains, p=p.ravel())
    table = {(row.tobytes(), f.tobytes()): i for i, (row, f) in enumerate(
        itertools.product(z.astype(np.int32), forests.astype(np.int32)))}  # fmt: skip
    state, forest = np.divmod(starts, len(forests))
    begins = [(2, z[state], forests[forest])]
    if far:
        one = np.zeros(n_chains, int)
        begins.append((far, z[one], forests[one]))
    for n_iter, labels, parents in begins:
        with standard():
            draw, accepted = advance_chains(target, n_iter, labels=labels, parents=parents)
        rows = zip(draw["labels"], draw["parents"], strict=True)
        ends = [table[row.tobytes(), f.tobytes()] for row, f in rows]
        assert p_value(np.bincount(ends, minlength=p.size), p.ravel()) > 1e-5
    linked = length.target.n_units < length.n
    assert all(accepted[f"{move}_accepted"] for move in ("split", "merge") + ("unit",) * linked)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("full", [False, True])
def test_gaussian_clusters_have_the_conjugate_density(full):
    rng = np.random.default_rng(1)
    x, z, index = rng.normal(size=(6, 2)), np.array([0, 0, 1, 0, 1, 0]), 20
    covariance = "full" if full else "diagonal"
    length, target = problem(MDLMultiView(2, covariance=covariance), [x], {})
    kappa, variance, freedom = GAUSSIAN_PRIORS[index]
    with standard():
        at = target.with_priors(jnp.asarray([index]))
        value = float(at.length(jnp.asarray(z[None]), jnp.asarray([-1]))[0])
    # Sequential predictive densities, which are Student t, of standardised features.
    scale, log_p = x.std(0), 0.0
    x = (x - x.mean(0)) / scale
    d = 2 if full else 1
    for columns in [[0, 1]] if full else [[0], [1]]:
        for c in (0, 1):
            inside = x[np.ix_(z == c, columns)]
            for i, row in enumerate(inside):
                before, df, weight = inside[:i], d + 1 + freedom + i, kappa + i
                mean = before.sum(0) / weight
                scatter = freedom * variance * np.eye(d) + before.T @ before
                scatter = scatter - weight * np.outer(mean, mean)
                shape = scatter * (weight + 1) / weight / (df - d + 1)
                log_p += stats.multivariate_t(mean, shape, df - d + 1).logpdf(row)
    words = length.root(0, z[:, None]) + np.log(len(GAUSSIAN_PRIORS))
    np.testing.assert_allclose(value, words + 6 * np.log(scale).sum() - log_p, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.contract
def test_hyperparameters_and_labels_of_gaussian_views_are_sampled_jointly():
    x = np.array([[0.0], [0.3], [2.0], [2.2]])
    length, target = problem(MDLMultiView("auto", max_clusters=2), [x], {})
    z, parents, m = all_labels(length), jnp.asarray([-1]), 6000
    grid = jnp.arange(len(GAUSSIAN_PRIORS))[:, None]
    with standard():
        nats = jax.lax.map(
            lambda index: lengths_of(target.with_priors(index), jnp.asarray(z), parents)[1], grid
        )
        p = np.exp(np.min(nats) - np.asarray(nats))
        starts = np.random.default_rng(0).choice(p.size, m, p=p.ravel() / p.sum())
        prior, state = np.divmod(starts, len(z))
        draw, _ = advance_chains(target, 2, labels=z[state], prior=prior[:, None])
    place = {row.tobytes(): i for i, row in enumerate(z.astype(np.int32))}
    ends = np.array([place[row.tobytes()] for row in draw["labels"]])
    ends = draw["prior"][:, 0] * len(z) + ends
    assert p_value(np.bincount(ends, minlength=p.size), p.ravel() / p.sum()) > 1e-5


@pytest.fixture(scope="module")
def planted():
    """Two binary views of two clusters, pairs, and a model."""
    rng = np.random.default_rng(0)
    clusters = np.repeat([0, 1], 20)
    views = [(rng.random((40, 6)) < np.where(clusters, 0.85, 0.15)[:, None]) * 1.0 for _ in "ab"]
    model = MDLMultiView("auto", features="bernoulli", max_clusters=3, random_state=0)
    return clusters, views, partial(model.sample_posterior, views, must_link=[[0, 1], [1, 2]])


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.filterwarnings("ignore:the chains have not converged")
def test_draws_feed_the_functions_of_posterior(planted):
    clusters, _, sample = planted
    posterior = sample(num_samples=300, num_warmup=100)
    assert posterior.diagnostics["r_hat"]["log_density"] < 1.1
    labels = posterior.labels(1)
    assert labels.dims == ("chain", "draw", "observation") and labels.shape == (4, 300, 40)
    for v in range(2):
        together = coclustering(posterior.labels(v))
        same = clusters[:, None] == clusters
        assert together[same].mean() > 0.7 > 0.3 > together[~same].mean()
        assert set(n_clusters(posterior.labels(v)).index) <= {1, 2, 3}
        estimate = point_estimate(posterior.labels(v), random_state=0)
        assert adjusted_rand_score(clusters, estimate) > 0.5
    first = posterior.labels(0).values
    assert (first[..., [0]] == first[..., :3]).all()
    # The views depend on each other, so that nearly all draws have an edge.
    assert set(np.unique(posterior.draws["parents"])) == {-1, 0}
    assert (posterior.draws["parents"].values[..., 1] == 0).mean() > 0.9
    assert {"log_density", "n_clusters (view 1)"} <= set(posterior.diagnostics.index)
    data = posterior.to_arviz()
    assert data.partition["labels"].sizes["observation"] == 40
    assert data.posterior["log_density"].shape == (4, 300)


def test_seeds_few_draws_and_interruptions(planted, monkeypatch):
    sample = partial(planted[2], num_warmup=0)
    with pytest.warns(ConvergenceWarning, match="chains have not converged"):
        posterior = sample(num_samples=20, random_state=1)
    assert not posterior.converged
    with pytest.warns(ConvergenceWarning):
        again, other = (sample(num_samples=20, random_state=seed) for seed in (1, 2))
    assert posterior.draws.identical(again.draws) and not posterior.draws.identical(other.draws)

    save = CheckpointedChains._save_block

    def interrupt(self, draws, moves):
        save(self, draws, moves)
        if self.n_draws >= 100:
            raise KeyboardInterrupt

    monkeypatch.setattr(CheckpointedChains, "_save_block", interrupt)
    with pytest.warns(UserWarning, match="interrupted; got 100 of 5000 draws"):
        assert sample(num_samples=5000).draws.sizes["draw"] == 100


@pytest.mark.parametrize(
    "changes, message",
    [({"num_samples": 0}, "num_samples"), ({"known": [0, 1] * 5}, "known"),
     ({"must_link": [[0, 99]]}, "must_link")],
)  # fmt: skip
def test_invalid_input_is_refused(changes, message):
    X = np.random.default_rng(0).normal(size=(8, 2))
    with pytest.raises(ValueError, match=message):
        MDLMultiView(2).sample_posterior([X, X], **changes)


@pytest.mark.slow
@pytest.mark.contract
def test_a_fitted_model_does_not_change():
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = MDLMultiView(2, n_init=2, random_state=0).fit([X])
    before = dict(vars(model))
    with pytest.warns(ConvergenceWarning):
        model.sample_posterior([X[:8, :1]], num_samples=4, num_warmup=1)
    assert dict(vars(model)) == before


def sample_pairs(changes, known_parts, n=12):
    """Binary rows, an estimator of pairs, and few draws of its labels."""
    X = np.random.default_rng(5).integers(0, 2, (n, 3)).astype(float)
    model = MDLConstrained(3, features="bernoulli", random_state=0).set_params(**changes)
    short = {"num_samples": 30, "num_warmup": 5, "num_chains": 1}
    return X, model, model.sample_posterior(X, **known_parts, **short)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("changes", "known_parts"),
    [
        ({}, {"y": [0, 1, 0] + [-1] * 9, "must_link": [[3, 4]], "cannot_link": [[5, 6]]}),
        ({"constraints": "soft"}, {"must_link": [[3, 4], [4, 5]], "cannot_link": [[3, 6]]}),
        ({"labels": "coded"}, {"y": [0, 1, 0] + [-1] * 9, "known": [0, 1] * 6}),
    ],
)
def test_the_density_of_pairs_is_the_objective_of_the_fit(changes, known_parts):
    X, model, posterior = sample_pairs(changes, known_parts)
    task = clone(model).prepare(X, **{"y": None, **known_parts})
    draws = posterior.labels().to_numpy()[0]
    lengths = [clone(model)._objective_at(task, z) for z in draws]
    total = lengths + posterior.draws["log_density"].to_numpy()[0]
    assert len(np.unique(draws, axis=0)) > 5
    np.testing.assert_allclose(total, total[0], atol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_draws_satisfy_hard_labels_and_limits_on_distances():
    known_parts = {"y": [0, 1, 0] + [-1] * 9, "must_link": [[3, 4]]}
    X, _, posterior = sample_pairs({"max_diameter": 1.5}, known_parts)
    z = posterior.labels().to_numpy()[0]
    assert (z[:, 0] == z[:, 2]).all() and (z[:, 3] == z[:, 4]).all() and (z[:, 0] != z[:, 1]).all()
    apart = np.argwhere(np.linalg.norm(X[:, None] - X[None], axis=2) > 1.5)
    assert len(apart) and (z[:, apart[:, 0]] != z[:, apart[:, 1]]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 1.0}, "takes no epsilon; got epsilon=1.0; set it"),
        ({"max_size": 5}, "takes no max_size"),
        ({"constraints": "soft"}, "either soft or hard constraints; got .* and labels='hard' with"),
        ({"constraints": "soft", "labels": "coded", "delta": 0.1}, "constraints='soft' and delta;"),
    ],
)
def test_constraints_without_a_posterior_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        sample_pairs(changes, {"y": [0, 1] + [-1] * 10})
