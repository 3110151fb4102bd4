"""Sampled hyperparameters: densities, and draws vs all partitions and grid points."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import matrix_t
import numpy as np
import pytest
from bayes_models import correlated_rows, sampled_model, with_grid
from partitions import all_partitions, p_value, places
from scipy import stats
from slowly import first_fast

from nrprob.data.design import Design
from nrprob.engines.sample import chains
from nrprob.methods.bayes import hyperparameters
from nrprob.methods.bayes.hyperparameters import (
    Hyperparameters,
    maximise_hyperparameters,
    sample_hyperparameters,
)
from nrprob.methods.bayes.joint_target import JointKernel

N, D, K = 6, 2, 4
LEVEL = 1e-4
GROUP = np.arange(N) // 3
NUMBERS = np.asarray(
    [[0.3, 1, 0], [-1.2, 1, 0], [0.9, 0, 0], [1.6, 1, 0], [-0.4, 0, 0], [-1.2, 1, 0]]
)
DESIGNS = {
    "": Design.from_groups(0 * GROUP),
    "groups": Design.from_groups(GROUP, 2),
    "numbers": Design.from_groups(0 * GROUP, 1, NUMBERS),
}
# Distant values, so that they influence the partition much.
GRID = Hyperparameters(
    np.asarray([0.05, 1.0]), np.asarray([0.2, 2.0]), np.asarray([0.1, 0.8]), np.asarray([1.0, 9.0])
)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def made(covariance, known="", grid=GRID, power=1.0):
    """Distribution over partitions of rows, four of which have a class."""
    codes = np.asarray([0, 1, -1, 1, 0, -1])
    target = sampled_model(covariance, power=power).target(
        correlated_rows(N), codes, 2, K, DESIGNS[known]
    )
    used = jax.tree.map(jnp.asarray, grid)
    if not known:
        used = used._replace(group_precision=used.group_precision[:1])
    return with_grid(target, used)


def padded(target, labels):
    labels = np.atleast_2d(labels)
    wide = np.zeros((len(labels), target.x.shape[0]), np.int32)
    wide[:, :N] = labels
    return wide


# Densities


def by_rows(X, labels, design, prior):
    """Minus the log density of rows: a matrix t, from the covariance between its rows."""
    kappa, omega, *rest = prior
    between = np.eye(len(X)) + matrix_t.sum_of_offsets(labels, design, kappa, omega)
    return matrix_t.nats(X, between, *rest)


def test_a_column_of_t_is_that_of_scipy():
    x, labels, prior = (
        correlated_rows(N)[:, :1],
        np.asarray([0, 1, 0, 1, 2, 2]),
        Hyperparameters(0.3, 0.7, 0.4, 3.0),
    )
    v = 2 + prior.freedom
    between = np.eye(N) + (labels[:, None] == labels) / 0.3 + (GROUP[:, None] == GROUP) / 0.7
    expected = stats.multivariate_t.logpdf(x[:, 0], None, 0.4 * 3.0 / v * between, v)
    assert by_rows(x, labels, DESIGNS["groups"], prior) == pytest.approx(-expected, rel=1e-10)


@pytest.mark.parametrize("known", DESIGNS)
def test_tied_rows_have_the_density_of_their_model(known):
    target, X = made("tied", known), correlated_rows(N)
    prior = Hyperparameters(0.3, 0.7, 0.4, 3.0)
    target = target.with_hyperparameters(jax.tree.map(jnp.asarray, prior))
    some = np.asarray([[0] * N, [0, 1, 0, 1, 2, 2], [3, 1, 2, 2, 2, 0]])
    wide = padded(target, some)

    @jax.jit
    def features_and_left_out(z):
        cells = target.cells(z)
        return target.likelihood.nats(cells), -target.left_out_costs(cells, z)[z, np.arange(len(z))]

    def length(z, chosen=slice(None)):
        return by_rows(X[chosen], z[chosen], DESIGNS[known].take_rows(chosen), prior)

    for z, own in zip(wide, some, strict=True):
        features, left_out = features_and_left_out(z)
        assert float(features) == pytest.approx(length(own), rel=1e-10)
        for i in range(N):
            others = np.delete(np.arange(N), i)
            assert float(left_out[i]) == pytest.approx(length(own, others) - length(own), rel=1e-8)


@pytest.mark.parametrize(
    ("covariance", "known"),
    [("tied", ""), ("tied", "groups"), ("tied", "numbers"), ("full", ""), ("diag", "")],
)
def test_what_a_row_adds_is_a_difference_of_lengths(covariance, known):
    target, X = made(covariance, known), correlated_rows(N)
    if known == "numbers":
        X = np.concatenate([X, NUMBERS], 1)
    labels = padded(target, [0, 1, 0, 1, 1, 0])[0]
    here = np.asarray([0, 1, 2, 5])  # two rows are added later
    group = target.partition.group
    nothing = jnp.zeros((target.partition.n_groups, K, target.x.shape[1]))
    cells = nothing.at[group[here], labels[here]].add(target.x[here])

    def of(rows):
        """The distribution for these rows."""
        if covariance != "tied":
            return target
        likelihood = replace(target.likelihood, square=X[rows].T @ X[rows])
        return replace(
            target, likelihood=likelihood.with_hyperparameters(likelihood.hyperparameters)
        )

    @jax.jit
    def length(own, cells):
        terms = own.partition.terms
        rest = sum(t.cost(t.cells(cells[:, None])).sum() for t in terms)
        return own.likelihood.nats(cells) + rest

    result = np.asarray(jax.jit(of(here).joining)(cells, target.x[3:5], group[3:5]))
    before = length(of(here), cells)
    for i in (3, 4):
        for c in range(K):
            more = length(of(np.append(here, i)), cells.at[group[i], c].add(target.x[i]))
            assert result[c, i - 3] == pytest.approx(float(more - before), abs=1e-9)


@pytest.mark.parametrize("known", DESIGNS)
def test_a_row_left_out_is_a_new_row_to_the_others_under_a_power(known):
    target, i = made("tied", known, power=0.5), 4
    width = D + 3 * (known == "numbers")
    labels = jnp.asarray(padded(target, [0, 1, 0, 1, 1, 0])[0])

    @jax.jit
    def both(target):
        cells, x = target.cells(labels), target.x[i : i + 1]
        group, likelihood = target.partition.group[i : i + 1], target.likelihood
        square = likelihood.square - jnp.outer(x[0, :width], x[0, :width])
        likelihood = replace(likelihood, square=square)
        likelihood = likelihood.with_hyperparameters(likelihood.hyperparameters)
        others = replace(target, likelihood=likelihood)
        cost = others.feature_costs(cells.at[group[0], labels[i]].add(-x[0]), x, group)
        return -target.left_out_costs(cells, labels)[labels[i], i], -cost[labels[i], 0]

    result, expected = both(target)
    assert float(result) == pytest.approx(float(expected), rel=1e-9)


# Draws


def exact(target):
    """All partitions with all hyperparameters, and their probabilities."""
    z = all_partitions(N)
    z = z[z.max(1) < K]
    wide = padded(target, z)
    mesh = jnp.meshgrid(*target.update_of("freedom").grid, indexing="ij")
    numbers = Hyperparameters(*(m.ravel() for m in mesh))

    @jax.jit
    def lengths(labels):
        cells = target.cells(labels)
        return jax.vmap(lambda h: target.with_hyperparameters(h).length(cells))(numbers)

    result = np.asarray(jax.lax.map(lengths, jnp.asarray(wide)))
    p = np.exp(result.min() - result)
    return wide, numbers, p / p.sum()


def after(kernel, target, steps=5, n=8_000, seed=0):
    """P-values of partitions and hyperparameters of chains that started at draws, and their
    moves."""
    z, numbers, p = exact(target)
    at = np.random.default_rng(seed).choice(len(z), size=n, p=p.sum(1))
    keys = jax.random.split(jax.random.PRNGKey(seed), n)
    states = jax.vmap(functools.partial(kernel.begin, target))(jnp.asarray(z[at]), keys)
    _, draws, moves = chains.run(kernel, target, states, 1, steps, capacity=1)
    labels = np.asarray(draws["labels"])[0, :, :N]
    which = places(labels, z[:, :N])
    prior = np.stack([np.asarray(draws[name])[0] for name in Hyperparameters._fields], 1)
    known = np.stack(numbers, 1)
    value = np.abs(prior[:, None] - known).sum(2).argmin(1)
    counts = np.zeros_like(p)
    np.add.at(counts, (which, value), 1)
    result = (
        p_value(counts.sum(1), p.sum(1)),
        p_value(counts.sum(0), p.sum(0)),
        p_value(counts.ravel(), p.ravel()),
    )
    return result, {name: int(np.asarray(v).sum()) for name, v in moves.items()}


CASES = {
    "tied": lambda: made("tied"),
    "tied, known groups": lambda: made("tied", "groups"),
    "tied, known numbers": lambda: made("tied", "numbers"),
    "full": lambda: made("full"),
    "diag": lambda: made("diag"),
    "tied, known groups, powered": lambda: made("tied", "groups", power=0.5),
    "full, powered": lambda: made("full", power=0.5),
}


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("case", CASES)
def test_partitions_and_numbers_keep_their_distribution(case):
    kernel = JointKernel(1 if case == "diag" else 2, 4)
    result, moves = after(kernel, CASES[case]())
    assert min(result) > LEVEL / 3, (result, moves)
    accepted = moves["split_accepted"], moves["merge_accepted"]
    assert min(accepted) > 100 and moves["gibbs_accepted"] > 0
    assert abs(accepted[0] - accepted[1]) < 5 * np.sqrt(sum(accepted))
    assert (moves["swap_accepted"] > 100) == ("groups" in case)


def _rows_given(prior, labels, grouped, full, key):
    """Rows (n', D) given clusters, with parameters sampled from the prior."""
    kappa, omega, s, nu = prior
    keys = jax.random.split(key, 6)
    shape = (K, D, D)
    # Bartlett: the precision is turn turn' / (nu s), of D + 1 + nu degrees of freedom.
    turn = jnp.tril(jax.random.normal(keys[0], shape), -1)
    chi2 = 2 * jax.random.gamma(keys[1], 0.5 * (D + 1 + nu - jnp.arange(D)), (K, D))
    turn = turn + jnp.sqrt(chi2)[:, None] * jnp.eye(D)
    root = jnp.sqrt(nu * s) * jnp.swapaxes(jnp.linalg.inv(turn), 1, 2)
    root = root if full else jnp.broadcast_to(root[0], shape)
    centres = jnp.einsum("kij,kj->ki", root, jax.random.normal(keys[2], (K, D))) / jnp.sqrt(kappa)
    x = jnp.einsum("nij,nj->ni", root[labels], jax.random.normal(keys[3], (len(labels), D)))
    x = x + centres[labels]
    if grouped:
        offsets = jax.random.normal(keys[4], (2, D)) @ root[0].T / jnp.sqrt(omega)
        x = x + offsets[jnp.pad(jnp.asarray(GROUP), (0, len(labels) - N))]
    return x


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("case", ["tied, known groups", "full"])
def test_joint_distribution(case):
    """Geweke's test: data given partition and hyperparameters, and vice versa, alternately.

    Chains that start at draws from the prior remain distributed as the prior; of two tests, a
    correct sampler fails one once in 5,000 times.
    """
    grouped, covariance = "groups" in case, case.split(",")[0]
    turns, many = 3, 4_000
    known = DESIGNS["groups" if grouped else ""]
    target = sampled_model(covariance).target(correlated_rows(N), np.full(N, -1), 0, K, known)
    used = jax.tree.map(jnp.asarray, GRID)
    used = used if grouped else used._replace(group_precision=used[1][:1])
    target = with_grid(target, used)
    kernel = JointKernel(2, 2)
    mask = target.x[:, -1:]
    z = all_partitions(N)
    z = z[z.max(1) < K]
    labels_only = target.partition
    lengths = jax.vmap(lambda a: labels_only.length(labels_only.cells(a)))(padded(target, z))
    p = np.exp(lengths.min() - lengths)
    p = p / p.sum()
    rng = np.random.default_rng(5)
    begin = padded(target, z[rng.choice(len(z), many, p=p)])
    numbers = Hyperparameters(*(rng.choice(np.asarray(values), many) for values in used))

    @jax.jit
    @jax.vmap
    def run(prior, labels, key):
        def turn(t, carry):
            prior, labels = carry
            now = jax.random.fold_in(key, t)
            X = _rows_given(prior, labels, grouped, covariance == "full", now) * mask
            fresh = replace(target, rows=X).recompute_statistics().with_hyperparameters(prior)
            state = _at(fresh, labels, jax.random.fold_in(now, 1))
            result = kernel.step(fresh, state).draw
            return Hyperparameters(*(result[name] for name in Hyperparameters._fields)), result[
                "labels"
            ]

        return jax.lax.fori_loop(0, turns, turn, (prior, labels))

    after_prior, after_labels = run(numbers, begin, jax.random.split(jax.random.PRNGKey(4), many))
    end = np.asarray(after_labels)[:, :N]
    assert (np.ptp(end - begin[:, :N], axis=1) > 0).mean() > 0.2  # they did move
    at = places(end, z)
    assert p_value(np.bincount(at, minlength=len(z)), p) > LEVEL
    drawn = [np.asarray(v) for v, g in zip(after_prior, used, strict=True) if len(g) > 1]
    grids = [np.asarray(g) for g in used if len(g) > 1]
    which = [np.abs(v[:, None] - g).argmin(1) for v, g in zip(drawn, grids, strict=True)]
    cell = np.ravel_multi_index(which, [len(g) for g in grids])
    size = int(np.prod([len(g) for g in grids]))
    assert p_value(np.bincount(cell, minlength=size), np.full(size, 1 / size)) > LEVEL


def _at(target, labels, key):
    """State of a chain with given labels and hyperparameters."""
    numbers = {name: jnp.asarray(v) for name, v in target.draw().items()}
    return chains.ChainState({"labels": labels, **numbers}, {}, key)


# Hyperparameters given a partition, on grids of which an update evaluates a part

LONG = Hyperparameters(
    np.logspace(-2, 0.5, 30), np.asarray([1.0]), np.logspace(-1.5, 0, 31), np.geomspace(1, 50, 27)
)
# One grid is longer than the steps of an update, from positions all over the line.
LONGER = Hyperparameters(
    hyperparameters.GRID.centre_precision,
    np.asarray([1.0]),
    np.logspace(-1.5, 0, 9),
    np.geomspace(1, 50, 9),
)


def given_partition(covariance, grid=LONG):
    """Distribution of hyperparameters, cells of a partition, the grid, and lengths."""
    target = made(covariance, grid=grid)
    cells = target.cells(jnp.asarray(padded(target, [0, 1, 0, 1, 0, 1])[0]))
    mesh = jnp.meshgrid(*target.update_of("freedom").grid, indexing="ij")
    numbers = Hyperparameters(*(m.ravel() for m in mesh))
    likelihood = target.likelihood

    @jax.jit
    def nats(cells):
        return jax.lax.map(lambda h: likelihood.with_hyperparameters(h).nats(cells), numbers)

    return target, cells, numbers, np.asarray(nats(cells))


@pytest.mark.parametrize("covariance", first_fast(["full", "tied"]))
def test_numbers_on_long_grids_keep_their_distribution(covariance):
    n, steps = 20_000, 3
    target, cells, numbers, lengths = given_partition(covariance)
    grid = target.update_of("freedom").grid
    p = np.exp(lengths.min() - lengths)
    p = p / p.sum()
    begin = np.random.default_rng(2).choice(len(p), size=n, p=p)

    def after_a_step(prior, key, t):
        likelihood = target.likelihood.with_hyperparameters(prior)
        key = jax.random.fold_in(key, t)
        return sample_hyperparameters(likelihood, grid, cells, key).hyperparameters

    @jax.jit
    @jax.vmap
    def run(at, key):
        prior = Hyperparameters(*(values[at] for values in numbers))
        return jax.lax.fori_loop(0, steps, lambda t, now: after_a_step(now, key, t), prior)

    result = np.stack(run(begin, jax.random.split(jax.random.PRNGKey(1), n)))
    sizes = [len(values) for values in grid]
    which = [abs(v[:, None] - g).argmin(1) for v, g in zip(result, grid, strict=True)]
    end = np.ravel_multi_index(which, sizes)
    assert (end != begin).mean() > 0.9
    law = p.reshape(sizes)
    for some in ((0, 2), (0, 3), (2, 3)):
        rest = tuple(a for a in range(4) if a not in some)
        wide = [sizes[a] for a in some]
        cell = np.ravel_multi_index([which[a] for a in some], wide)
        counts = np.bincount(cell, minlength=int(np.prod(wide)))
        assert p_value(counts, law.sum(rest).ravel()) > LEVEL, some


@pytest.mark.parametrize(("covariance", "grid"), [("tied", LONG), ("full", LONGER)])
def test_the_best_numbers_of_long_grids_are_found(covariance, grid):
    target, cells, _, lengths = given_partition(covariance, grid)
    used = target.update_of("freedom").grid
    result = jax.jit(lambda c: maximise_hyperparameters(target.likelihood, used, c).nats(c))(cells)
    assert lengths.min() - 1e-9 <= float(result) < lengths.min() + 0.01


@pytest.mark.parametrize(
    ("covariance", "known"),
    first_fast(
        [
            ("full", ""),
            ("diag", ""),
            ("shrunk", ""),
            ("tied", ""),
            ("tied", "groups"),
            ("tied", "numbers"),
        ]
    ),
)
def test_clusters_are_told_apart_where_other_things_are_nearly_all_of_the_variance(
    covariance, known
):
    rng = np.random.default_rng(0)
    z = np.arange(60) % 2
    X = rng.normal(size=(60, D)) + 20 * z[:, None]
    design = {
        "": Design.from_groups(np.zeros(60, int)),
        "groups": Design.from_groups(np.arange(60) // 30, 2),
        "numbers": Design.from_groups(np.zeros(60, int), columns=rng.normal(size=(60, 2))),
    }[known]
    if known:
        X = X + 20_000 * (design.codes[:, None] if known == "groups" else design.columns)
    else:
        X[0], z[0] = 20_000, 2
    X = (X - X.mean(0)) / X.std(0)
    target = sampled_model(covariance, unordered=False).target(X, np.full(60, -1), 0, K, design)
    wide = np.zeros((2, target.x.shape[0]), np.int32)
    wide[0, :60], wide[1, :60] = z, z // 2
    apart, joined = jax.jit(lambda labels: jax.lax.map(target.shortest_length, labels))(wide)
    assert apart < joined - 20
