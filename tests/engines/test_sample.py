"""Sampling of partitions, compared with all partitions of a few rows.

Moves are tested from exact draws of the target: chains that start there remain independent draws of
the target after any number of iterations, whatever their autocorrelation. Each comparison is a
chi-squared test that a correct sampler fails once in 10,000 times.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from partitions import all_partitions, p_value, places

from nrprob.engines.sample import chains, moves, split_merge, uniforms
from nrprob.engines.sample.chains import CollapsedKernel
from nrprob.engines.sample.target import make_target, start
from nrprob.posterior.export import import_arviz
from nrprob.statistics.codes import (
    BinaryCode,
    CountCode,
    code_term,
    count_tables,
    label_code,
    normal_inverse_gamma,
    normal_inverse_wishart,
    normal_nml,
)
from nrprob.statistics.costs import mass_cost, multinomial_cost
from nrprob.statistics.terms import Term

N, K = 6, 4
LEVEL = 1e-4


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def mixture(energy, *, partners=None, scale=1.0):
    """Rows of two features, four of them with a class."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2)) + 1.5 * (np.arange(N) > 2)[:, None]
    classes = np.eye(3)[[0, 2, 1, 2, 0, 1]][:, :2]
    nml = energy == "nml"
    if nml:
        width = np.ptp(X, axis=0)
        features = normal_nml(N + 1, [0.2, 0.2], width / 2, width)
    else:
        features = normal_inverse_gamma(N + 1, 2, kappa=0.3, shape=2.0, scale=0.5)
    labels, sizes = label_code(N, K, concentration=None if nml else 1.0)
    tables = count_tables(2, N + 1, None if nml else 0.5)
    terms = [code_term(c) for c in (features, CountCode(*tables, 4, 6, single=True), labels)]
    x = np.concatenate([X, X * X, classes], 1)
    return make_target(tuple(terms), sizes, x, partners=partners, scale=scale)


def grouped():
    """Counts within known groups, and again, with a smaller weight, pooled over groups."""
    x = np.random.default_rng(1).poisson(1.5, size=(N, 3)) + (np.arange(N) % 3 == 0)[:, None]
    tables = count_tables(3, int(x.sum()) + 1)
    counts = CountCode(*tables, 0, 3)
    labels, sizes = label_code(N, K)
    terms = (
        code_term(counts, by_group=True), code_term(counts, weight=0.3), code_term(labels)
    )  # fmt: skip
    return make_target(terms, sizes, x, group=np.arange(N) // 3)


def binary():
    x = np.random.default_rng(2).integers(0, 2, size=(N, 3))
    labels, sizes = label_code(N, 3, concentration=0.5)
    code = BinaryCode(*count_tables(2, N + 1, 0.5), 0, 3)
    return make_target((code_term(code), code_term(labels)), sizes, x)


def exact(target):
    """All partitions and their probabilities."""
    z = all_partitions(N)
    z = z[z.max(1) < target.max_clusters]
    wide = np.zeros((len(z), target.x.shape[0]), np.int32)
    wide[:, :N] = z
    length = np.asarray(jax.vmap(lambda labels: start(target, labels).length)(wide))
    p = np.exp(length.min() - length)
    return wide, p / p.sum()


def after(kernel, target, steps=8, n=20_000, seed=0):
    """P-value of the states of chains that started at draws of the target, and the moves."""
    z, p = exact(target)
    at = np.random.default_rng(seed).choice(len(z), size=n, p=p)
    keys = jax.random.split(jax.random.PRNGKey(seed), n)
    states = jax.vmap(functools.partial(kernel.begin, target))(jnp.asarray(z[at]), keys)
    _, draws, moves = chains.run(kernel, target, states, 1, steps, capacity=1)
    labels = np.asarray(draws["labels"])[0, :, :N]
    counts = np.bincount(places(labels, z[:, :N]), minlength=len(z))
    return p_value(counts, p), {name: int(np.asarray(v).sum()) for name, v in moves.items()}


NEIGHBOURS = (np.arange(N)[:, None] + [1, 2]) % N

CASES = {
    "splits and merges": (lambda: mixture("nml"), CollapsedKernel(2, 4)),
    "known groups": (grouped, CollapsedKernel(2, 4)),
}
MORE = {
    "one row at a time": (lambda: mixture("nml"), CollapsedKernel(1, 0)),
    "blocks of rows": (lambda: mixture("conjugate"), CollapsedKernel(3, 0)),
    "near pairs": (
        lambda: mixture("conjugate", partners=NEIGHBOURS), CollapsedKernel(2, 4)
    ),
    "launched alone": (lambda: mixture("conjugate"), CollapsedKernel(1, 1)),
    "known groups, short launch": (grouped, CollapsedKernel(1, 4, n_launch=1)),
    "tempered": (lambda: mixture("nml", scale=0.4), CollapsedKernel(3, 4)),
    "binary": (binary, CollapsedKernel(2, 4)),
}  # fmt: skip


def _check(name, case):
    make, kernel = case
    p, moves = after(kernel, make())
    assert p > LEVEL, (p, moves)
    if kernel.n_split_merge:
        # In equilibrium a merge undoes every accepted split.
        accepted = moves["split_accepted"], moves["merge_accepted"]
        assert min(accepted) > 300
        assert abs(accepted[0] - accepted[1]) < 5 * np.sqrt(sum(accepted))
    assert (moves["swap"] > 0) == ("groups" in name and kernel.n_split_merge > 0)
    assert moves["swap_accepted"] >= min(moves["swap"], 300)
    assert moves["gibbs_accepted"] <= moves["gibbs"]
    assert (moves["gibbs_accepted"] == moves["gibbs"]) == (kernel.block == 1)


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("case", CASES)
def test_the_target_is_invariant(case):
    _check(case, CASES[case])


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("case", MORE)
def test_the_target_is_invariant_with_more_codes(case):
    _check(case, MORE[case])


@pytest.fixture
def as_many_rows(monkeypatch):
    """Few rows are treated like many rows, except that chains run in parallel."""
    monkeypatch.setattr(split_merge, "_SEVERAL", 0)
    monkeypatch.setattr(split_merge, "_MANY", 0)
    monkeypatch.setattr(split_merge, "sequential_vmap", lambda run: run)


PLANS = functools.partial(split_merge.plan_launch, n=2), split_merge.plan_doubling


def _alone(quantile=None):
    """Splits and merges alone, in a fast test, since the program contains nothing else.

    With two clusters or more, and lengths up to this quantile, few splits are evaluated.
    """
    target = mixture("nml")
    z, p = exact(target)
    usual = split_merge.nothing_usual()
    if quantile is not None:
        one = target.length(target.cells(jnp.asarray(z[0])))
        usual = jnp.stack([2.0, one + np.log(p[0]) + np.quantile(-np.log(p), quantile)])
    n = 5_000
    at = np.random.default_rng(1).choice(len(z), size=n, p=p)

    @jax.jit
    @jax.vmap
    def run(labels, key):
        state, counts = split_merge.split_merges(
            target, start(target, labels), key, PLANS, 4, usual
        )
        return state.labels, counts

    result, counts = run(jnp.asarray(z[at]), jax.random.split(jax.random.PRNGKey(1), n))
    result = np.asarray(result)
    which = places(result[:, :N], z[:, :N])
    assert (which != at).mean() > (0.2 if quantile is None else 0.1)
    assert ((counts.split + counts.merge) == 4).all()
    assert p_value(np.bincount(which, minlength=len(z)), p) > LEVEL
    return result


def test_splits_and_merges_alone_keep_the_target():
    """The test detects an omitted factor."""
    _alone()


@pytest.mark.slow
@pytest.mark.contract
def test_splits_and_merges_of_many_rows_keep_the_target(as_many_rows, monkeypatch):
    assert split_merge._member_sizes(8) == (1, 2, 8)
    monkeypatch.setattr(split_merge, "_LENGTH_MARGIN", 0.0)
    result = [_alone(quantile) for quantile in (None, 0.5)]
    assert (result[0] != result[1]).any()
    # Proposals that are rejected for their length, or not evaluated, would be rejected anyway.
    monkeypatch.setattr(split_merge, "surely_rejected", lambda *_: jnp.asarray(False))
    np.testing.assert_array_equal(_alone(0.5), result[1])


@pytest.mark.slow
@pytest.mark.contract
def test_chains_of_many_rows_do_what_each_would_do_alone():
    x = np.random.default_rng(3).normal(size=(140, 2)) + 4 * (np.arange(140) % 3)[:, None]
    features = normal_inverse_wishart(141, 2, kappa=0.3, nu=5.0, scale=0.5)
    labels, sizes = label_code(140, 6, concentration=1.0)
    x = np.column_stack([x, x[:, 0] ** 2, x[:, 0] * x[:, 1], x[:, 1] ** 2])
    target = make_target((code_term(features), code_term(labels)), sizes, x)
    assert target.x.shape[0] >= split_merge._SEVERAL

    usual = jnp.asarray([3.0, target.length(target.cells(jnp.arange(len(target.x)) % 3))])

    @jax.jit
    def run(labels, key):
        return split_merge.split_merges(target, start(target, labels), key, PLANS, 6, usual)

    begin = np.random.default_rng(4).integers(0, 3, size=(3, target.x.shape[0]))
    begin, keys = jnp.asarray(begin, jnp.int32), jax.random.split(jax.random.PRNGKey(5), 3)
    together = jax.jit(jax.vmap(run))(begin, keys)
    moved = 0
    for chain in range(3):
        state, counts = run(begin[chain], keys[chain])
        np.testing.assert_array_equal(state.labels, together[0].labels[chain])
        np.testing.assert_allclose(state.length, together[0].length[chain], rtol=1e-12)
        np.testing.assert_allclose(state.length, target.length(target.cells(state.labels)))
        assert int(counts.split + counts.merge) == 6
        moved += int(counts.split_accepted + counts.merge_accepted)
    assert moved > 0


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("what", ["launched", "doubling", "block"])
def test_without_the_ratio_of_proposals_it_is_not(what, monkeypatch):
    """The same test detects samplers that omit a factor of the Metropolis-Hastings ratio."""
    if what != "block":
        allocate = split_merge._allocate_members

        def symmetric(members, split, odds, plan, noise):
            cells, side, log_q = allocate(members, split, odds, plan, noise)
            launched = plan.n_hard > 0
            return cells, side, jnp.where(launched == (what == "launched"), 0, log_q)

        monkeypatch.setattr(split_merge, "_allocate_members", symmetric)
        # Settings of no other test, so they are compiled.
        kernel = CollapsedKernel(1, 4, n_launch=2 if what == "launched" else 4)
    else:
        # Rows of a block that ignore each other, without correction.
        gibbs = moves.gibbs

        def trusting(target, state, key, block):
            size = target.x.shape[0]
            blocks = -(-size // block)
            uniform = jax.random.uniform

            def fake(key, shape):
                return uniform(key, shape).at[2 : 2 + blocks].set(0.0)

            with monkeypatch.context() as patch:
                patch.setattr(moves.jax.random, "uniform", fake)
                return gibbs(target, state, key, block)

        monkeypatch.setattr(moves, "gibbs", trusting)
        kernel = CollapsedKernel(3, 0, n_launch=2)
    p, _ = after(kernel, mixture("nml"))
    assert p < 1e-12


def test_every_proposal_of_a_sweep_has_its_own_key(monkeypatch):
    keys = []

    def recorded(*result):
        def move(target, state, *args, **kwargs):
            keys.extend(tuple(a.tolist()) for a in map(np.asarray, args) if a.dtype == np.uint32)
            return state, *result

        return move

    zero, no = jnp.zeros((), jnp.int32), jnp.asarray(False)
    for name, result in (("gibbs", (zero, zero)), ("swap", (no,))):
        monkeypatch.setattr(moves, name, recorded(*result))
    monkeypatch.setattr(split_merge, "split_merge", recorded(no))
    target = grouped()
    state = start(target, jnp.zeros(target.x.shape[0], jnp.int32))
    with jax.disable_jit():
        moves.sweep(
            target, state, jax.random.PRNGKey(0),
            block=1, n_split_merge=4, n_launch=1,
        )  # fmt: skip
    assert len(keys) == len(set(keys)) == 9


@pytest.mark.slow
@pytest.mark.contract
def test_chains_that_start_anywhere_reach_the_target():
    """Total variation to the exact distribution, from dispersed initial partitions."""
    target = mixture("nml")
    z, p = exact(target)
    kernel = CollapsedKernel(2, 3)
    states = chains.dispersed(kernel, target, jax.random.PRNGKey(5), 200)
    assert len(set(np.asarray(states.draw["n_clusters"]).tolist())) >= 3
    states, _, _ = chains.run(kernel, target, states, 1, 60, capacity=64)
    _, draws, _ = chains.run(kernel, target, states, 60, 4, capacity=64)
    k = np.asarray(draws["n_clusters"])[:60].ravel()
    own = np.asarray([len(set(row)) for row in z[:, :N].tolist()])
    expected = np.bincount(own, p, minlength=K + 1)
    result = np.bincount(k, minlength=K + 1) / k.size
    # 12,000 draws, four iterations apart, are worth at least 5,000: 0.03 is four standard errors.
    np.testing.assert_allclose(result, expected, atol=0.03)


def test_length_is_kept_up_to_date():
    target = mixture("nml")
    kernel = CollapsedKernel(2, 3)
    states = chains.dispersed(kernel, target, jax.random.PRNGKey(1), 3)
    states, draws, _ = chains.run(kernel, target, states, 7, 3, capacity=8)
    labels = np.asarray(draws["labels"])[:7].reshape(21, -1)
    again = jax.jit(jax.vmap(lambda z: start(target, z).length))(labels)
    np.testing.assert_allclose(again, -np.asarray(draws["log_density"])[:7].ravel(), atol=1e-9)
    k = [len(set(row)) for row in labels[:, :N].tolist()]
    assert k == np.asarray(draws["n_clusters"])[:7].ravel().tolist()
    assert not np.asarray(draws["labels"][7]).any()  # beyond the requested number


def test_order_is_a_permutation():
    for n in (1, 2, 6, 97, 1000):
        for seed in range(5):
            u = jax.random.uniform(jax.random.PRNGKey(seed), (2,))
            order = np.asarray(uniforms.in_order(u, 1024, jnp.asarray(n)))
            assert sorted(order[:n]) == list(range(n)) and (order[n:] >= n).all()


def test_steps_of_the_order_are_prime():
    for p in uniforms._PRIMES:
        assert p % 2 and p > 2**31 - 500
        assert all(p % d for d in range(3, 46341, 2))


def test_incomplete_codes_are_refused():
    one = np.float64(1)
    fitted = Term(one, np.float64(0), None, multinomial_cost, False)
    size = Term(one, np.float64(0), None, mass_cost, False)
    x = np.ones((4, 2))
    labels, sizes = label_code(4, 2)
    counts = code_term(CountCode(*count_tables(2, 8), 0, 2))
    with pytest.raises(ValueError, match="missing is a code of the cells of the rows.*parameters"):
        make_target((fitted, size), sizes, x)
    with pytest.raises(ValueError, match="missing is a code of the parameters of every cell"):
        make_target((fitted, code_term(labels)), sizes, x)
    with pytest.raises(ValueError, match="missing is a code of the cells of the rows"):
        make_target((counts,), sizes, x)
    with pytest.raises(
        ValueError, match="missing is a code of the rows given their cells.*parameters"
    ):
        make_target((code_term(labels),), sizes, x)
    make_target((counts, code_term(labels)), sizes, x)


@pytest.mark.slow
@pytest.mark.contract
def test_numpyro_runs_the_kernel():
    from numpyro.infer import MCMC

    target = mixture("conjugate")
    z, p = exact(target)
    runs = MCMC(
        CollapsedKernel(2, 2),
        num_warmup=50,
        num_samples=2000,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    runs.run(jax.random.PRNGKey(3), target, extra_fields=("moves",))
    draws = runs.get_samples(group_by_chain=True)
    assert draws["labels"].shape == (2, 2000, target.x.shape[0])
    assert runs.get_extra_fields()["moves"]["split"].sum() > 0
    own = np.asarray([len(set(row)) for row in z[:, :N].tolist()])
    mean = p @ own
    spread = np.sqrt(p @ (own - mean) ** 2)
    arviz = import_arviz()

    k = np.asarray(draws["n_clusters"], float)
    error = spread / np.sqrt(float(arviz.ess(k)))
    assert abs(k.mean() - mean) < 5 * error
    posterior = arviz.from_numpyro(runs, log_likelihood=False)["posterior"]
    np.testing.assert_array_equal(posterior["n_clusters"], draws["n_clusters"])
    # Sampling continues from there.
    runs.post_warmup_state = runs.last_state
    runs.run(runs.last_state.rng_key, target)
    assert not np.array_equal(
        runs.get_samples(group_by_chain=True)["log_density"], draws["log_density"]
    )


def test_one_row_and_one_cluster():
    labels, sizes = label_code(1, 1)
    code = CountCode(*count_tables(2, 5), 0, 2)
    target = make_target((code_term(code), code_term(labels)), sizes, np.ones((1, 2)))
    kernel = CollapsedKernel(1, 2)
    states = chains.dispersed(kernel, target, jax.random.PRNGKey(0), 2)
    _, draws, _ = chains.run(kernel, target, states, 4, 1, capacity=4)
    assert (np.asarray(draws["n_clusters"]) == 1).all()
    assert np.isfinite(np.asarray(draws["log_density"])).all()
