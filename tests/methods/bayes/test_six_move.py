"""The six-move sampler vs enumeration: its draws, every single move, and whole iterations.

Moves are tested for invariance: states are sampled from the exact distribution, independently, and
moved. A chi-square test then compares partitions (and weights) with the exact probabilities. Seeds
are fixed, and a correct sampler fails one such test in 10^4 seeds (P_LIMIT).
"""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC
from partitions import all_partitions
from scipy import stats
from scipy.special import gammaln, logsumexp
from slowly import slowly

from nrprob.codelength import multinomial_complexity
from nrprob.engines.sample import chains
from nrprob.methods.bayes import six_move, six_move_jumps
from nrprob.methods.bayes.six_move import SixMoveKernel, log_joint, make_mixture_target
from nrprob.methods.bayes.six_move_draws import (
    Box,
    cell_moments,
    draw_means,
    draw_scales,
    draw_transfer,
    log_evidence,
    log_gamma_variate,
)
from nrprob.methods.bayes.six_move_jumps import birth_move, launched_move, pivot_move, single_move
from nrprob.posterior.export import import_arviz

pytestmark = pytest.mark.contract
P_LIMIT = 1e-4
N, KMAX = 5, 3
BOX = dict(low=0.3, high=1.5)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def tiny(energy, d, **options):
    """Target of five rows, three of them with a class; padded to six."""
    X = np.array([[-1.1, 0.3], [-0.8, -0.9], [0.1, 1.2], [0.7, -0.5], [1.2, 0.0]])[:, :d]
    onehot = np.array([[1, 0], [0, 0], [0, 1], [0, 1], [0, 0]])
    options = {**(BOX if energy == "nml" else {"class_concentration": 0.5}), **options}
    return make_mixture_target(X, onehot, max_clusters=KMAX, energy=energy, **options)


# Log marginal likelihood of values (n,) under the flat prior in a box, by quadrature.


def log_box_integral(x, box, j):
    """Log marginal likelihood of numbers (n,) under the flat prior in a box, by quadrature."""
    low, high, left, right = (float(v[j]) for v in box)
    n = len(x)
    if n == 0:
        return 0.0
    t, w = np.polynomial.legendre.leggauss(300)
    t, w = low + (t + 1) / 2 * (high - low), w / 2
    s = np.exp(t)
    mean, squares = x.mean(), ((x - x.mean()) ** 2).sum()
    sd = s / np.sqrt(n)
    inside = stats.norm.cdf((right - mean) / sd) - stats.norm.cdf((left - mean) / sd)
    log_f = -n / 2 * np.log(2 * np.pi) - n * t - squares / (2 * s**2) + np.log(sd * inside)
    log_f = log_f + 0.5 * np.log(2 * np.pi)
    return logsumexp(log_f, b=w) - np.log(right - left)


def log_classes(counts, a):
    """Log probability of a sequence of classes with these counts, one by one."""
    total, seen = 0.0, np.zeros(len(counts))
    for c, m in enumerate(counts):
        for _ in range(int(m)):
            total += np.log((seen[c] + a) / (seen.sum() + a * len(counts)))
            seen[c] += 1
    return total


def compositions(total, k):
    cuts = itertools.combinations(range(1, total), k - 1)
    return np.array([np.diff([0, *c, total]) for c in cuts])


def exact_nml(target):
    """Probabilities of all (k, labels, parts) with labelled components 0 .. k - 1."""
    x = np.asarray(target.x)[:N]
    d, states, log_w = target.n_features, [], []

    @cache
    def component(rows):
        rows = x[list(rows)]
        features = sum(log_box_integral(rows[:, i], target.box, i) for i in range(d))
        return features + log_classes(rows[:, 2 * d : -1].sum(0), 1.0)

    for k in range(1, KMAX + 1):
        grid = compositions(N, k)
        for z in itertools.product(range(k), repeat=N):
            z = np.array(z)
            each = sum(component(tuple(np.flatnonzero(z == j))) for j in range(k))
            sizes = float(target.sizes[k]) + gammaln(k + 1)  # A(k) for labelled components
            fit = np.log(grid / N)[:, z].sum(1) - np.log(len(grid))
            states += [(k, z, c) for c in grid]
            log_w += list(each - sizes + fit)
    log_w = np.array(log_w)
    return states, np.exp(log_w - logsumexp(log_w))


def exact_conjugate(target):
    """Probabilities of all (k, partition), by the code of partitions."""
    every = [z for z in all_partitions(N) if z.max() < KMAX]
    padded = np.pad(np.array(every), ((0, 0), (0, target.x.shape[0] - N)))
    length = jax.vmap(lambda z: target.partition.length(target.partition.cells(z)))(padded)
    w = np.exp(-np.asarray(length))
    return [(z.max() + 1, z, None) for z in every], w / w.sum()


def canonical(labels):
    """Restricted growth strings of labels (m, n)."""
    first = (labels[:, :, None] == labels[:, None, :]).argmax(2)
    is_first = first == np.arange(labels.shape[1])
    return np.take_along_axis(is_first.cumsum(1) - 1, first, 1)


def as_code(k, labels, parts=None):
    """Code (m,) of k, partition, and the units of the first row's component."""
    code = canonical(np.asarray(labels)[:, :N]) @ 4 ** np.arange(N) + 4**N * np.asarray(k)
    if parts is not None:
        own = np.take_along_axis(np.asarray(parts), np.asarray(labels)[:, :1], 1)[:, 0]
        code = code + 4 ** (N + 1) * np.round(own).astype(int)
    return code


def p_value(result, expected_codes, probability):
    """Chi-square test; codes with fewer than 5 expected counts are merged."""
    codes, inverse = np.unique(expected_codes, return_inverse=True)
    p = np.bincount(inverse, probability)
    assert np.isin(result, codes).all()
    seen = np.bincount(np.searchsorted(codes, result), minlength=len(codes))
    rare = p * len(result) < 5
    p = np.append(p[~rare], p[rare].sum())
    seen = np.append(seen[~rare], seen[rare].sum())
    if p[-1] * len(result) < 1:
        assert seen[-1] < 15
        p, seen = p[:-1] / p[:-1].sum(), seen[:-1]
    return stats.chisquare(seen, p * seen.sum()).pvalue


def exact_draws(target, n_draws, seed):
    """Independent states of a target: a `Mixture` with a leading axis, and the exact table."""
    nml = hasattr(target.prior, "low")
    states, p = exact_nml(target) if nml else exact_conjugate(target)
    at = np.random.default_rng(seed).choice(len(p), n_draws, p=p)
    labels = np.zeros((len(p), target.x.shape[0]), np.int32)
    labels[:, :N] = [z for _, z, _ in states]
    active = np.array([np.arange(target.n_slots) < k for k, _, _ in states])
    table = np.array([k for k, _, _ in states]), labels, p
    keys = jax.random.split(jax.random.PRNGKey(seed), n_draws)
    if not nml:
        make = jax.jit(
            jax.vmap(lambda z, k: six_move.complete_mixture(target, z, target.cells(z), k))
        )
        return make(labels[at], keys), (*table, None)
    parts = np.array([np.pad(c, (0, target.n_slots - len(c))) for _, _, c in states], float)

    @jax.jit
    @jax.vmap
    def make(z, active, parts, key):
        # Parameters from a similar distribution, and then moves until they have theirs.
        cells = target.cells(z)
        mixture = six_move.complete_mixture(target, z, cells, key)
        mixture = mixture._replace(active=active, parts=parts)

        def move(i, mixture):
            return six_move.draw_normals(target, mixture, cells, jax.random.fold_in(key, i))[0]

        return jax.lax.fori_loop(0, 5, move, mixture)

    return make(labels[at], active[at], parts[at], keys), (*table, parts)


def check(target, move, n_draws, seed, n_moves=1):
    """p-value of invariance under ``move(mixture, cells, key)``."""
    mixture, (k, labels, p, parts) = exact_draws(target, n_draws, seed)

    @jax.jit
    @jax.vmap
    def moved(mixture, key):
        def once(i, mixture):
            cells = target.cells(mixture.labels)
            return move(target, mixture, cells, jax.random.fold_in(key, i))

        return jax.lax.fori_loop(0, n_moves, once, mixture)

    after = moved(mixture, jax.random.split(jax.random.PRNGKey(seed + 1), n_draws))
    n_after = np.asarray(after.active).sum(1)
    changed = float((n_after != np.asarray(mixture.active).sum(1)).mean())
    result = as_code(n_after, after.labels, None if parts is None else after.parts)
    return p_value(result, as_code(k, labels, parts), p), changed


def refit(target, mixture, key):
    """The conjugate state for the jumps: fitted parameters, since they are integrated out."""
    fitted = six_move_jumps.describe_components(target, target.cells(mixture.labels), key)
    return mixture._replace(means=fitted.means, log_scales=fitted.log_scales)


def _label_move(target, mixture, cells, key):
    return six_move.draw_labels(target, mixture, key)[0]


def _jump(move, **options):
    def jump(target, mixture, cells, key):
        if not hasattr(target.prior, "low"):
            mixture = refit(target, mixture, key)
        return move(target, mixture, cells, key, **options).mixture

    return jump


def _unit_move(target, mixture, cells, key):
    return mixture._replace(parts=six_move.share_units(target, mixture, cells, key))


def _rebirth(target, mixture, cells, key):
    # Labels follow, since they are compared.
    first, second = jax.random.split(key)
    mixture = six_move.rebirth_components(target, mixture, cells, first)[0]
    return _label_move(target, mixture, cells, second)


def _step(target, mixture, cells, key):
    return SixMoveKernel()._sweep_once(target, mixture, key)[0]


JUMPS = {
    "pivot": _jump(pivot_move),
    "launched": _jump(launched_move, n_launch=2),
    "single": _jump(single_move),
}
NML = {
    "units": _unit_move,
    "birth": _jump(birth_move),
    "labels": _label_move,
    "rebirth": _rebirth,
}
DRAWS = {"nml": 8000, "conjugate": 20_000}  # for "nml" each takes several times as long


ENERGIES = pytest.mark.parametrize("energy", ["nml", "conjugate"])


@pytest.mark.slow
@pytest.mark.contract
@ENERGIES
@pytest.mark.parametrize("name", JUMPS)
def test_jumps_leave_the_exact_distribution_invariant(energy, name):
    p, changed = check(tiny(energy, 1), JUMPS[name], DRAWS[energy], 1)
    assert p > P_LIMIT
    assert changed > 0.02  # otherwise the test would be uninformative


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize("name", NML)
def test_moves_of_units_labels_and_parameters_leave_the_exact_distribution_invariant(name):
    assert check(tiny("nml", 1), NML[name], DRAWS["nml"], 2)[0] > P_LIMIT


def test_labels_given_parameters_leave_no_component_empty_and_the_rest_invariant():
    assert check(tiny("conjugate", 1), _label_move, 40_000, 3)[0] > P_LIMIT


@pytest.mark.slow
@ENERGIES
def test_steps_leave_the_exact_distribution_invariant(energy):
    """All moves one after the other, in two dimensions."""
    assert check(tiny(energy, 2), _step, 20_000, 4, 3)[0] > P_LIMIT


@pytest.mark.parametrize(
    ("name", "energy", "wrong"),
    [
        ("pivot", "conjugate", lambda t: t.evidence + t.number + t.weights),  # proposals symmetric
        ("launched", "conjugate", lambda t: t.evidence + t.weights + t.choice),  # no A(k)
        ("single", "conjugate", lambda t: t.evidence + t.number + t.weights),
    ],
)
def test_dropping_a_factor_is_found(monkeypatch, name, energy, wrong):
    monkeypatch.setattr(six_move_jumps, "log_ratio", wrong)
    assert check(tiny(energy, 1), JUMPS[name], 20_000, 1)[0] < 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t, k: t.evidence + t.number + t.choice,
        *slowly(
            lambda t, k: t.evidence + t.number + t.weights + t.choice - jnp.log(k + 1.0),
            lambda t, k: t.evidence + t.number + t.weights,
            lambda t, k: t.evidence + t.number,
        ),
    ],
    ids=["compositions", "names", "rho", "published"],
)
def test_dropping_a_factor_of_the_published_move_is_found(monkeypatch, wrong):
    target = tiny("nml", 1)
    # k from the term A(k), which counts unlabelled components.
    sizes = np.asarray(target.sizes)
    steps = jnp.asarray(sizes[1:KMAX] - sizes[2 : KMAX + 1])

    def ratio(terms):
        value = wrong(terms, 1 + jnp.abs(steps - terms.number).argmin())
        return jnp.where(jnp.isfinite(terms.weights), value, -jnp.inf)  # too few units to divide

    monkeypatch.setattr(six_move_jumps, "log_ratio", ratio)
    assert check(target, JUMPS["pivot"], DRAWS["nml"], 1)[0] < 1e-12


# Chains


def chain(kernel, target, n_draws, seed=0, n_chains=4):
    states = chains.dispersed(kernel, target, jax.random.PRNGKey(seed), n_chains)
    _, draws, moves = chains.run(kernel, target, states, n_draws, 1, capacity=n_draws)
    total = {name: np.asarray(v).sum() for name, v in moves.items()}
    return chains.collect(draws, n_draws), total


@pytest.mark.slow
@pytest.mark.parametrize(("energy", "d"), [("nml", 1), ("conjugate", 2)])
def test_chains_reach_the_exact_distribution(energy, d):
    target = tiny(energy, d)
    draws, moves = chain(SixMoveKernel(), target, 8_000)
    arviz = import_arviz()
    states, p = exact_nml(target) if energy == "nml" else exact_conjugate(target)
    exact_k = np.bincount([k for k, _, _ in states], p, KMAX + 1)
    for k in range(1, KMAX + 1):
        result = (draws["n_clusters"] == k).astype(float)
        error = np.sqrt(exact_k[k] * (1 - exact_k[k]) / float(arviz.ess(result)))
        assert abs(result.mean() - exact_k[k]) < 5 * error
    exact = np.zeros((N, N))
    for (_, z, _), w in zip(states, p, strict=True):
        exact += w * (z[:, None] == z)
    z = draws["labels"][..., :N]
    for i, j in itertools.combinations(range(N), 2):
        result = (z[..., i] == z[..., j]).astype(float)
        error = np.sqrt(exact[i, j] * (1 - exact[i, j]) / float(arviz.ess(result)))
        assert abs(result.mean() - exact[i, j]) < 5 * error
    # A jump up is followed by one down: equally many acceptances, up to one excursion per chain.
    kinds = ["pivot", "launched", "single"]
    up, down = (
        sum(moves[f"{kind}_{way}_accepted"] for kind in kinds) for way in ("split", "merge")
    )
    if energy == "nml":
        up, down = up + moves["empty_split_accepted"], down + moves["empty_merge_accepted"]
    assert abs(up - down) <= 4 * (KMAX - 1)
    for kind in kinds:  # in equilibrium also for each type
        up, down = (moves[f"{kind}_{way}_accepted"] for way in ("split", "merge"))
        assert abs(up - down) < 6 * np.sqrt(up + down)


@pytest.mark.slow
def test_kernel_runs_in_numpyro():
    kernel = SixMoveKernel(1, 0, 0, 0)
    target = tiny("conjugate", 2)
    mcmc = MCMC(
        kernel, num_warmup=5, num_samples=20, num_chains=2,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.PRNGKey(0), target, init_params=jnp.zeros((2, 6), jnp.int32))
    draws = mcmc.get_samples(group_by_chain=True)
    assert draws["weights"].shape == (2, 20, target.n_slots)
    np.testing.assert_allclose(np.asarray(draws["weights"]).sum(-1), 1, rtol=1e-12)
    one = {name: v[0, -1] for name, v in draws.items()}
    x = np.linspace(-25, 25, 1001)
    grid = np.stack(np.meshgrid(x, x), -1).reshape(-1, 2)
    mass = np.exp(jax.jit(log_joint)(one, grid)).sum() * 0.05**2  # a density of rows and classes
    assert mass == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("energy", "case", "dtype"),
    [
        # The first two share a program, and so do the next two.
        ("nml", "constant", "float32"),
        ("nml", "same rows", "float32"),
        ("conjugate", "no labels", "float64"),
        ("conjugate", "one class", "float64"),
        ("nml", "one row", "float64"),
        ("conjugate", "one row", "float64"),
    ],
)
def test_degenerate_data_give_finite_draws(energy, case, dtype):
    X, onehot = np.linspace(-1, 1, 8).reshape(4, 2), np.eye(2)[[0, 1, 0, 1]]
    if case == "one row":
        X, onehot = X[:1], onehot[:1]
    elif case == "constant":
        X = X * [1, 0]
    elif case == "no labels":
        onehot = None
    elif case == "one class":
        onehot = np.ones((4, 1))
    else:
        X = np.zeros((4, 2))
    with jax.enable_x64(dtype == "float64"):
        target = make_mixture_target(
            X, onehot, max_clusters=min(3, len(X)), energy=energy, low=0.1, mean_range=3.0
        )
        draws, _ = chain(SixMoveKernel(), target, 200)
    for name, values in draws.items():
        assert np.isfinite(values).all(), name
    n_clusters = draws["n_clusters"]
    assert (n_clusters >= 1).all() and (draws["active"].sum(-1) == n_clusters).all()
    if energy == "conjugate":
        labels = draws["labels"][..., : len(X)].reshape(-1, len(X))
        sizes = [len(np.unique(row)) for row in labels]
        np.testing.assert_array_equal(sizes, n_clusters.ravel())


def test_lengths_are_those_of_the_definition():
    target = tiny("nml", 2)
    kernel = SixMoveKernel(1, 0, 0, 0)
    labels = jnp.asarray([0, 0, 1, 2, 2, 0])
    draw = kernel.begin(target, labels, jax.random.PRNGKey(0)).draw
    x = np.asarray(target.x)[:N]
    length = float(target.sizes[3])
    expected = multinomial_complexity(3, N) - gammaln(4)  # of unordered components
    assert length == pytest.approx(expected, rel=1e-6)
    for i, j in enumerate([0, 0, 1, 2, 2]):
        normal = stats.norm(draw["means"][j], draw["scales"][j])
        length -= np.log(draw["weights"][j]) + normal.logpdf(x[i, :2]).sum()
        length -= (x[i, 4:6] * np.log(draw["class_probs"][j])).sum()
    assert -float(draw["log_density"]) == pytest.approx(length, rel=1e-12)
    np.testing.assert_allclose(np.asarray(draw["weights"]) * N % 1, 0, atol=1e-12)


# Draws


def test_gamma_variates_have_their_distribution():
    a = np.array([0.05, 0.5, 1.0, 2.5, 1000.0])
    result = jax.jit(log_gamma_variate)(jax.random.PRNGKey(0), np.repeat(a, 5000).reshape(5, 5000))
    for shape, values in zip(a, np.asarray(result), strict=True):
        law = stats.gamma(shape)
        assert stats.kstest(values, lambda v, law=law: law.cdf(np.exp(v))).pvalue > P_LIMIT


def test_gamma_variates_are_not_changed_by_those_behind_them():
    a = np.tile([0.05, 1.0, 2.5], (400, 1))  # of which some occur more than once
    draw, key = jax.jit(log_gamma_variate), jax.random.PRNGKey(0)
    np.testing.assert_allclose(draw(key, a)[:200], draw(key, a[:200]), rtol=1e-12)


def test_units_are_shared_by_the_exact_distribution():
    share = jax.jit(
        jax.vmap(lambda u: draw_transfer(24, 20.0, jnp.asarray(3.0), jnp.asarray(2.0), u))
    )
    drawn, log_z = share(np.random.default_rng(0).random(20_000))
    c = np.arange(1, 20)
    h = c**3.0 * (20 - c) ** 2
    assert log_z[0] == pytest.approx(np.log(h.sum()), rel=1e-12)
    seen = np.bincount(np.asarray(drawn).astype(int), minlength=20)[1:]
    assert stats.chisquare(seen, len(drawn) * h / h.sum()).pvalue > P_LIMIT


def test_evidence_is_unbiased_and_nearly_constant():
    rng = np.random.default_rng(0)
    box = Box(*(np.array([v]) for v in (np.log(0.2), np.log(2.0), -2.0, 2.0)))
    data = [[], [1.9], [0.5, 0.5], [-1.9, 1.9], rng.normal(size=5), 0.5 * rng.normal(size=400)]
    data.append(0.02 * rng.normal(size=100))  # scale at its lower bound
    data.append(np.repeat([-2.0, 2.0], 50))  # and at its upper one
    cells = np.array([[np.sum(x), np.sum(np.square(x)), len(x)] for x in data])

    @jax.jit
    @jax.vmap
    def draw(key):
        first, second = jax.random.split(key)
        m = cell_moments(cells, 1)
        t = draw_scales(first, m, box)
        return draw_means(second, m, t, box)[:, 0], log_evidence(m, t, box)[:, 0]

    means, result = map(np.asarray, draw(jax.random.split(jax.random.PRNGKey(0), 20_000)))
    assert (np.abs(means) <= 2).all()
    for x, values in zip(data, result.T, strict=True):
        ratio = np.exp(values - log_box_integral(np.asarray(x), box, 0))
        assert ratio.std() < 0.2
        assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(len(ratio)) + 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"energy": "other"}, "energy has to be"),
        ({"max_clusters": 5}, "slots"),
        ({"max_clusters": 0}, "slots"),
        ({"low": 2.0}, "low < high"),
        ({"mean_range": 0.5}, "hold the data"),
        ({"X": np.full((4, 2), np.nan)}, "finite"),
        ({"onehot": np.ones((4, 2))}, "at most one 1"),
        ({"energy": "conjugate", "kappa": 0.0}, "kappa has to be positive"),
        ({"class_concentration": -1.0}, "class_concentration has to be positive"),
        ({"covariance": "full"}, "covariance"),
    ],
)
def test_bad_priors_are_refused(change, message):
    options = {"X": np.linspace(-1, 1, 8).reshape(4, 2), "onehot": None, "max_clusters": 3} | change
    with pytest.raises(ValueError, match=message):
        make_mixture_target(options.pop("X"), options.pop("onehot"), **options)
