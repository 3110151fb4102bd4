"""Launched splits and merges of Gaussian clusters, compared with all partitions of seven samples.

Chains start at exact draws of the target, so they remain independent draws of it, whatever their
autocorrelation. Every comparison is a chi-squared test that a correct sampler fails once in 10,000
times.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bayes_models import sampled_model, with_grid
from partitions import all_partitions, p_value, places
from slowly import first_fast, slowly

from nrprob.data.design import Design
from nrprob.engines.sample import chains, launched_moves
from nrprob.engines.sample.launched_moves import (
    Launch,
    make_launch,
    pair_probabilities,
    unknown_pairs,
)
from nrprob.engines.sample.target import start
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.joint_target import JointKernel

N, K = 7, 4
LEVEL = 1e-4
GROUP = np.asarray([0, 0, 0, 0, 1, 1, 1])
ROWS = np.random.default_rng(0).normal(size=(N, 2)) * 0.4
ROWS += np.asarray([[0, 0], [2, 1], [-1, 2]])[np.arange(N) % 3]


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def make(covariance, *, power=1.0, grouped=False, errors="gaussian"):
    """Distribution over partitions of seven samples, three of which have a class."""
    codes = np.asarray([0, 1, -1, -1, 0, -1, -1])
    model = sampled_model(
        covariance, power=power, concentration=None, unordered=False, errors=errors
    )
    design = Design.from_groups(GROUP if grouped else 0 * GROUP, 1 + grouped)
    target = model.target(ROWS, codes, 2, K, design)
    if covariance == "shrunk":
        return target
    prior = Hyperparameters(0.2, 0.5, 0.2, 6.0)
    return with_grid(target, jax.tree.map(lambda value: jnp.asarray([value]), prior))


def exact(target):
    """All partitions, and their probabilities with the concentration integrated out."""
    z = all_partitions(N)
    z = z[z.max(1) < K]
    assert len(z) == 715
    wide = np.zeros((len(z), target.x.shape[0]), np.int32)
    wide[:, :N] = z
    jump_target = target.split_merge_target()
    length = np.asarray(jax.jit(jax.vmap(lambda labels: start(jump_target, labels).length))(wide))
    p = np.exp(length.min() - length)
    return wide, p / p.sum()


def run_launched(target, labels, keys, count=4):
    """Labels after ``count`` launched moves, and the numbers of accepted splits and merges."""
    jump_target = target.split_merge_target()

    @jax.jit
    @jax.vmap
    def run(labels, key):
        state = start(jump_target, labels)
        pairs = unknown_pairs(jump_target)

        def move(t, carry):
            state, pairs, counts = carry
            state, pairs, split, accept = launched_moves.propose_launched_move(
                jump_target, state, pairs, jax.random.fold_in(key, t)
            )
            return state, pairs, counts + accept * jnp.asarray([split, ~split])

        state, _, counts = jax.lax.fori_loop(0, count, move, (state, pairs, jnp.zeros(2, int)))
        return state.labels, counts

    return run(labels, keys)


def launched_alone(target, n=4_000):
    """P-value of partitions after launched moves alone, and accepted splits and merges."""
    z, p = exact(target)
    at = np.random.default_rng(2).choice(len(z), size=n, p=p)
    result, counts = run_launched(
        target, jnp.asarray(z[at]), jax.random.split(jax.random.PRNGKey(2), n)
    )
    which = places(np.asarray(result)[:, :N], z[:, :N])
    return p_value(np.bincount(which, minlength=len(z)), p), np.asarray(counts).sum(0)


MODELS = {
    "full": {"covariance": "full"},
    "tied, known groups, tempered": {"covariance": "tied", "grouped": True, "power": 0.6},
    "diag, t errors": {"covariance": "diag", "errors": "t"},
    "full, t errors, tempered": {"covariance": "full", "errors": "t", "power": 0.6},
    "shrunk": {"covariance": "shrunk"},
    "tied": {"covariance": "tied"},
}


@pytest.mark.parametrize("name", first_fast(MODELS))
def test_launched_moves_alone_keep_the_target(name):
    p, counts = launched_alone(make(**MODELS[name]))
    assert p > LEVEL
    # In equilibrium a merge undoes every accepted split.
    assert min(counts) > 100
    assert abs(counts[0] - counts[1]) < 5 * np.sqrt(counts.sum())


# Half of the combinations: they contain every pair of levels of two factors.
KERNELS = {
    f"{covariance}, block {block}, power {power}": (covariance, block, power)
    for covariance, block, power in [
        ("full", 1, 1.0), ("full", 3, 0.6), ("tied", 1, 0.6), ("tied", 3, 1.0),
    ]
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("name", KERNELS)
def test_all_moves_together_keep_the_target(name):
    covariance, block, power = KERNELS[name]
    target = make(covariance, power=power, grouped=covariance == "tied")
    z, p = exact(target)
    n = 20_000
    at = np.random.default_rng(0).choice(len(z), size=n, p=p)
    keys = jax.random.split(jax.random.PRNGKey(0), n)
    kernel = JointKernel(block, 6)
    states = jax.vmap(functools.partial(kernel.begin, target))(jnp.asarray(z[at]), keys)
    _, draws, moves = chains.run(kernel, target, states, 1, 4, capacity=1)
    which = places(np.asarray(draws["labels"])[0, :, :N], z[:, :N])
    assert (which != at).mean() > 0.1
    assert p_value(np.bincount(which, minlength=len(z)), p) > LEVEL, moves


@pytest.mark.slow
@pytest.mark.contract
def test_without_the_probability_of_the_pair_it_is_not(monkeypatch):
    """The same test detects a sampler that omits a factor of the Metropolis-Hastings ratio."""

    def half(target, cells):
        return jnp.where(pair_probabilities(target, cells) > 0, 0.5, 0)

    monkeypatch.setattr(launched_moves, "pair_probabilities", half)
    assert launched_alone(make("full"), n=20_000)[0] < 1e-9


LABELS = np.asarray([0, 0, 1, 1, 2, 2, 0], np.int32)


def sides_of(target, labels):
    """Target of splits and merges, and the members of a move of clusters 0 and 1."""
    jump_target = target.split_merge_target()
    wide = np.zeros(target.x.shape[0], np.int32)
    wide[:N] = labels
    state = start(jump_target, jnp.asarray(wide))
    rows = np.flatnonzero(labels < 2)
    rows, real = np.append(rows, [0, 0]), np.append(rows >= 0, [False, False])
    members = jnp.asarray(rows), jnp.asarray(real)
    return jump_target, jump_target.launch.sides(jump_target, state, jnp.arange(2), *members)


@pytest.mark.parametrize("name", slowly("tied, known groups, tempered", *MODELS))
def test_the_launch_is_the_same_before_and_after_a_merge(name):
    target = make(**MODELS[name])
    u = jnp.asarray([0.3, 0.6, 0.2, 0.7, 1.0])  # the last one makes the launch not sequential
    side = jnp.asarray([False, True, True, False, False, True, False])

    @jax.jit
    def launch(sides, split, current):
        return make_launch(sides, sides.real, u, split, current), sides.log_odds(side)

    both = LABELS, np.where(LABELS == 1, 0, LABELS)
    separate, together = (
        launch(sides_of(target, labels)[1], jnp.asarray(split), side)
        for labels, split in zip(both, (False, True), strict=True)
    )
    assert separate[0].valid and not separate[0].sequential
    for one, other in zip(*map(jax.tree.leaves, (separate[0], together[0])), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(separate[1], together[1], rtol=1e-9)


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize(
    "name", slowly("shrunk", "full, t errors, tempered", "diag, t errors", "full")
)
def test_the_scan_knows_lengths_given_all_members_on_a_side(name, sequential):
    target, sides = sides_of(make(**MODELS[name]), LABELS)
    rows = np.flatnonzero(LABELS < 2)
    side = np.asarray([False, True, True, False, True, False, False])
    order, later = np.asarray([2, 0, 4, 1, 3, 5, 6]), np.asarray([0, 1, 1, 1, 0, 0, 0]) > 0
    members = np.arange(len(side))
    present = np.isin(members, order[:2]) if sequential else members < len(rows)
    side = side & present
    n_fixed = 1 + sequential
    launch = Launch(*map(jnp.asarray, (side, present, order, n_fixed, True)))
    assert launch.sequential == sequential
    logits = {}

    def choose(i, logit):
        logits[int(i)] = float(logit)
        return jnp.asarray(later[i])

    def length(side, on_side):
        """Length if members that are on no side yet are another cluster."""
        labels = np.full(target.x.shape[0], 2, np.int32)
        labels[rows] = np.where(on_side, side, 3)[: len(rows)]
        codes = [code(target.cells(jnp.asarray(labels))) for code in target.joint_codes]
        return float(target.length(target.cells(jnp.asarray(labels))) - sum(codes))

    with jax.disable_jit():  # so that log odds are numbers
        result, log_q = sides.scan(launch, choose)
    expected, now, on_side = 0.0, side.copy(), present.copy()
    for i in order[n_fixed : len(rows)]:
        both = []
        on_side[i] = True
        for value in (False, True):
            now[i] = value
            both.append(length(now, on_side))
        assert logits[i] == pytest.approx(both[0] - both[1], abs=1e-7)
        now[i] = later[i]
        expected -= np.logaddexp(0, both[1] - both[0] if later[i] else both[0] - both[1])
    assert len(logits) == len(rows) - n_fixed
    np.testing.assert_array_equal(result[: len(rows)], now[: len(rows)])
    assert float(log_q) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.contract
def test_without_the_probability_of_the_second_member_the_target_is_not_kept(monkeypatch):
    """The test of the target detects a sequential launch without the factor m_2 / (m - 1)."""

    def broken(*args):
        launch = make_launch(*args)
        # The scan begins behind the second member, but the ratio has no factor for its choice.
        return Uncounted(*launch)

    class Uncounted(Launch):
        sequential = False

    monkeypatch.setattr(launched_moves, "make_launch", broken)
    monkeypatch.setattr(launched_moves, "_MARGIN", 1e3)  # all launches are followed by a scan
    monkeypatch.setattr(launched_moves, "_MAX_MARGIN", 1e3)
    assert launched_alone(make("full"), n=20_000)[0] < 1e-9
