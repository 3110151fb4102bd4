"""The sampler of `MDLMixture`: convergence, effective draws per second, and NumPyro.

Data are 1000 rows of four components in two dimensions, a tenth of them labelled. There are up to
20 clusters, four chains with dispersed initial partitions (one cluster, and random labels of 20, 10
and 6 clusters), and one core, which the script selects. Seconds are CPU seconds of the process
after compilation. The first quarter of a run is dropped. Thresholds come from an earlier version
with sequential moves, and from its aims. Runs that have not converged are marked, since their
effective draws are meaningless.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from common import ROOT, arguments, console, header, show, timed, verdict  # isort: skip

if hasattr(os, "sched_setaffinity"):  # before XLA counts the cores
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample import chains
from nrprob.engines.sample.chains import CollapsedKernel, PartitionKernel
from nrprob.methods.bayes.feature_models import BoundedGaussian, FixedGaussian, SampledGaussian
from nrprob.methods.bayes.model import MixtureModel
from nrprob.methods.bayes.six_move import SixMoveKernel
from nrprob.methods.bayes.six_move_target import make_mixture_target

sys.path.insert(0, str(ROOT / "tests"))  # module of the mixture with a known number of components

CONVERGED = 1.01
MOST = 20
FLOOR = 0.2


EVENTS: list[str] = []  # one entry per compilation


def _listen(event: str, *_: Any, **__: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        EVENTS.append(event)


class Data(NamedTuple):
    """Standardised rows (n, d), and classes (n,), -1 where unknown."""

    X: np.ndarray
    y: np.ndarray


def rows(n: int, kind: str = "four", seed: int = 0) -> Data:
    """Rows of components with equal shares; a tenth of them has its component as a class."""
    rng = np.random.default_rng(seed)
    if kind == "ten":
        fixed = np.random.default_rng(5)
        centres, spread = fixed.uniform(-6, 6, (10, 2)), fixed.uniform(0.4, 1, (10, 2))
    else:
        scale = 0.4 if kind == "close" else 1.0
        centres = scale * np.array([[-3, -2], [3, -2], [-2, 3], [3, 3]])
        spread = np.array([[1, 1], [0.7, 1.2], [1.2, 0.6], [1, 0.8]])
        if kind == "even":
            spread = np.ones_like(spread)
    z = rng.integers(len(centres), size=n)
    X = centres[z] + spread[z] * rng.normal(size=(n, 2))
    y = np.where(rng.random(n) < 0.1, z, -1)
    return Data((X - X.mean(0)) / X.std(0), y)


# Compared samplers: add a line to extend the tables.


def partitions(data: Data, energy: str) -> Any:
    """Target of kernels over partitions; the prior is that of `MDLMixture`'s defaults."""
    features: Any = BoundedGaussian(floor=FLOOR)
    if energy != "nml":
        features = FixedGaussian(mean_precision=0.3, shape=2.0, scale=0.5)
    model = MixtureModel(
        features=features, concentration=1.0, class_concentration=0.5, unordered=True
    )
    return model.target(data.X, data.y, int(data.y.max()) + 1, MOST)


def mixtures(data: Data, energy: str) -> Any:
    """Target of kernels over mixtures."""
    classes = (data.y[:, None] == np.arange(int(data.y.max()) + 1)).astype(float)
    half = 0.5 if energy == "conjugate" else 1.0
    return make_mixture_target(
        data.X, classes, max_clusters=MOST, energy=energy, low=FLOOR, class_concentration=half
    )


class Entry(NamedTuple):
    """A kernel, and a function that makes its target from data and the name of an energy."""

    kernel: Callable[[int], PartitionKernel]
    target: Callable[[Data, str], Any]


def wide(n: int) -> CollapsedKernel:
    """The default kernel, with blocks of twice as many rows."""
    kernel = chains.default_kernel(n)
    return replace(kernel, block=2 * kernel.block)


DEFAULT = "collapsed, defaults"
KERNELS = {
    DEFAULT: Entry(chains.default_kernel, partitions),
    "collapsed, wider blocks": Entry(wide, partitions),
    "collapsed, one row at a time": Entry(lambda n: CollapsedKernel(1, 3), partitions),
    "the same, 20 proposals": Entry(lambda n: CollapsedKernel(1, 20), partitions),
    "six-move": Entry(lambda n: SixMoveKernel(), mixtures),
}


class Found(NamedTuple):
    """Traces (chains, draws) of the number of clusters and of the length, and CPU seconds."""

    n_clusters: np.ndarray
    length: np.ndarray
    seconds: float


def sample(kernel: PartitionKernel, target: Any, seconds: float, seed: int = 0) -> Found:
    """Run four chains from dispersed partitions for about ``seconds`` after compilation."""
    capacity = 128
    states = chains.dispersed(kernel, target, jax.random.PRNGKey(seed), 4)
    jax.block_until_ready(chains.run(kernel, target, states, 1, 1, capacity=capacity))
    spent, steps, blocks, warm = 0.0, 0, [], False
    while spent < seconds:
        if spent > seconds / 4 and not warm:
            states, warm = chains.end_warmup(states), True
        rate = spent / steps if steps else np.inf
        more = int(np.clip((seconds - spent) / rate, 4, capacity))
        begin = time.process_time()
        states, draws, _ = chains.run(kernel, target, states, more, 1, capacity=capacity)
        jax.block_until_ready(states)
        spent += time.process_time() - begin
        steps += more
        traces = {name: draws[name] for name in ("n_clusters", "log_density")}
        blocks.append(chains.collect(traces, more))
    k, length = (np.concatenate([b[name] for b in blocks], 1) for name in blocks[0])
    return Found(k.astype(float), length, spent)


def ess(trace: np.ndarray) -> float:
    """Bulk effective sample size; 0 without any change."""
    import arviz

    return float(arviz.ess(trace, method="bulk")) if np.ptp(trace) else 0.0


def seconds_to_converge(result: Found) -> float:
    """Seconds until the later half of all draws has R-hat < 1.01 for both; NaN if never."""
    from nrprob.posterior.convergence import r_hat

    draws = result.length.shape[1]
    for end in np.unique(np.geomspace(min(40, draws), draws, 60).astype(int)):
        part = slice(end // 2, end)
        if max(r_hat(result.n_clusters[:, part]), r_hat(result.length[:, part])) < CONVERGED:
            return result.seconds * end / draws
    return np.nan


def summary(result: Found) -> tuple[float, float, float, float, str]:
    """ESS per second of the length and of k, R-hat of k and of the length, and a mark."""
    from nrprob.posterior.convergence import r_hat

    part = slice(result.length.shape[1] // 4, None)
    k, length = result.n_clusters[:, part], result.length[:, part]
    r = r_hat(k), r_hat(length)
    # Effective draws of a run that has not converged are meaningless.
    mark = "" if max(r) < 1.05 else "NOT CONVERGED"
    rate = 0.75 * result.seconds
    return ess(length) / rate, ess(k) / rate, *r, mark


# Tables


def effective(n: int, seconds: float) -> None:
    """Print convergence and effective draws per second of all kernels."""
    data = rows(n)
    bars: list[Any] = []
    for energy in ("nml", "conjugate"):
        table: list[Any] = []
        for name, entry in KERNELS.items():
            solution = sample(entry.kernel(n), entry.target(data, energy), seconds)
            converge, result = seconds_to_converge(solution), summary(solution)
            mean = solution.n_clusters[:, solution.n_clusters.shape[1] // 4 :].mean()
            each = 1e3 * solution.seconds / solution.length.size
            table.append((name, each, mean, converge, *result))
            if name == DEFAULT:
                bars += [
                    (f"{energy}: seconds to converge", converge, *verdict(converge, 120)),
                    (f"{energy}: ESS/s, length", result[0], *verdict(result[0], 75, at_least=True)),
                    (f"{energy}: ESS/s, k", result[1], *verdict(result[1], 30, at_least=True)),
                ]
        show(
            f"{energy}, n={n}, {seconds:g} s each",
            ("kernel", "ms/sweep", "mean k", "converged, s", "ESS/s L", "ESS/s k", "R-hat k",
             "R-hat L", ""),
            table,
        )  # fmt: skip
    show(f"Bars, of {DEFAULT}", ("what", "found", "bar", ""), bars)
    console.print(
        "six-move and collapsed have one target under conjugate, but not under nml, where six-move "
        "samples\nparameters instead of coding them."
    )


def gibbs_alone(n: int, seconds: float, seeds: int) -> None:
    """Print the gain from proposals of splits and merges."""
    table = []
    for kind, energy in (
        ("four", "nml"),
        ("four", "conjugate"),
        ("close", "nml"),
        ("ten", "nml"),
        ("ten", "conjugate"),
    ):
        target = partitions(rows(n, kind), energy)
        rates, worst = {}, {}
        for number in (0, 2):
            kernel = chains.default_kernel(n, number)
            result = [summary(sample(kernel, target, seconds, s)) for s in range(seeds)]
            rates[number] = np.mean([f[1] for f in result])
            worst[number] = max(max(f[2:4]) for f in result)
        ratio = rates[2] / rates[0] if worst[0] < 1.05 else np.nan
        mark = (
            verdict(float(ratio), 3, at_least=True)
            if ratio == ratio
            else (">= 3", "Gibbs alone fails")
        )
        table.append((kind, energy, rates[0], worst[0], rates[2], worst[2], ratio, *mark))
    show(
        f"ESS/s of k, n={n}: Gibbs moves alone, and with two proposals of a split or merge; "
        f"means and worst R-hat of {seeds} runs",
        ("data", "energy", "alone", "R-hat", "with", "R-hat", "ratio", "bar", ""),
        table,
    )


def blocks_of_rows(steps: int) -> None:
    """Print the share of accepted blocks, and the rate of label changes, by block size."""
    from sklearn.datasets import load_iris, load_wine

    table = []
    for load in (load_iris, load_wine):
        X, z = load(return_X_y=True)
        n = len(X)
        y = np.where(np.random.default_rng(0).random(n) < 0.1, z, -1)
        target = partitions(Data((X - X.mean(0)) / X.std(0), y), "nml")
        auto = chains.default_kernel(n)
        for block in (auto.block, 12, 6, 3, 1):
            kernel = replace(auto, block=block)
            states = chains.dispersed(kernel, target, jax.random.PRNGKey(0), 4)
            states, _, _ = chains.run(kernel, target, states, steps, 3, capacity=steps)
            begin = time.process_time()
            _, draws, moves = chains.run(kernel, target, states, steps, 1, capacity=steps)
            labels = np.asarray(draws["labels"])[..., :n]
            spent = time.process_time() - begin
            share = float(moves["gibbs_accepted"].sum() / moves["gibbs"].sum())
            moved = (labels[1:] != labels[:-1]).mean() * n * 4
            name = load.__name__.removeprefix("load_")
            table.append((name, X.shape[1], block, share, moved * steps / spent))
    show(
        "Gibbs moves of blocks of rows, the first of each the default size",
        ("data", "columns", "block", "accepted", "rows moved/s"),
        table,
    )


def compilations(n: int) -> None:
    """Print compilations and times of a first and a second fit."""
    from nrprob import MDLMixture

    table = []
    for turn, seed in (("first", 1), ("second", 2), ("third", 3)):
        data = rows(n, seed=seed)
        model = MDLMixture(
            MOST, energy="nml", variance_floor=FLOOR, num_warmup=100, num_samples=200
        )
        before = len(EVENTS)
        took = timed(partial(model.set_params(random_state=0).fit, *data))
        table.append((turn, len(EVENTS) - before, took.wall, took.cpu))
    show(
        f"`MDLMixture.fit` of other data of one shape, n={n}, 300 steps of four chains",
        ("fit", "compilations", "wall, s", "CPU, s"),
        table,
    )
    met = verdict(table[1][1], 0)
    show("Bars", ("what", "found", "bar", ""), [("second fit: compilations", table[1][1], *met)])


# NumPyro


def joint_model(X: Any, y: Any, k: int) -> None:
    """The mixture of k components, with the cluster of every row."""
    import numpyro
    import numpyro.distributions as dist

    d, n_classes = X.shape[1], 4
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(k)))
    variances = numpyro.sample("variances", dist.InverseGamma(2.0, 0.5).expand([k, d]).to_event(2))
    means = numpyro.sample("means", dist.Normal(0, jnp.sqrt(variances / 0.3)).to_event(2))
    halves = dist.Dirichlet(jnp.full((k, n_classes), 0.5)).to_event(1)
    classes = numpyro.sample("classes", halves)
    with numpyro.plate("rows", X.shape[0]):
        z = numpyro.sample("z", dist.Categorical(weights))
        normal = dist.Normal(means[z], jnp.sqrt(variances[z])).to_event(1)
        numpyro.sample("x", normal, obs=X)
        known = jnp.log(classes[z, jnp.maximum(y, 0)])
        numpyro.factor("y", jnp.where(y >= 0, known, 0))


def blocked(X: Any, y: Any) -> Any:
    """Gibbs update of clusters, weights, means and class probabilities, given the variances."""
    from marginal_mixture import Parameters, log_parts

    onehot = (y[:, None] == jnp.arange(4)).astype(X.dtype)

    def update(rng_key, gibbs_sites, hmc_sites):
        variances = hmc_sites["variances"]
        now = gibbs_sites
        keys = jax.random.split(rng_key, 4)
        p = Parameters(now["weights"], now["means"], variances, now["classes"])
        z = jax.random.categorical(keys[0], log_parts(p, X, y))
        member = (z == jnp.arange(variances.shape[0])[:, None]).astype(X.dtype)
        size = member.sum(1, keepdims=True)
        noise = jax.random.normal(keys[1], variances.shape)
        return {
            "z": z,
            "weights": jax.random.dirichlet(keys[2], 1 + size[:, 0]),
            "means": member @ X / (0.3 + size) + jnp.sqrt(variances / (0.3 + size)) * noise,
            "classes": jax.random.dirichlet(keys[3], 0.5 + member @ onehot),
        }

    return update


def beside_numpyro(n: int, draws: int, slow_draws: int, seconds: float) -> None:
    """Print effective draws per second of the log density; only NumPyro knows k."""
    import marginal_mixture as marginal
    from numpyro.infer import MCMC, NUTS, CustomGibbs, DiscreteHMCGibbs, Gibbs, init_to_value
    from sklearn.cluster import KMeans

    data = rows(n)
    X, y = jnp.asarray(data.X), jnp.asarray(data.y)
    solution = KMeans(4, n_init=1, random_state=0).fit(data.X)
    start = {
        "weights": jnp.full(4, 0.25),
        "variances": jnp.full((4, 2), 0.2),
        "means": jnp.asarray(solution.cluster_centers_),
        "classes": jnp.full((4, 4), 0.25),
    }
    nuts = NUTS(joint_model, init_strategy=init_to_value(values=start))
    mixed = [(CustomGibbs(blocked(X, y)), ["z", "weights", "means", "classes"]), (nuts, None)]
    known = {"n_components": 4, "n_classes": 4, "prior": marginal.Prior()}
    summed = NUTS(marginal.marginal_model, init_strategy=init_to_value(values=start))
    # Blocks take constrained values, or unconstrained ones if their kernel is NUTS.
    begin = {site: start[site] for site in ("weights", "means", "classes")}
    begin |= {"z": jnp.asarray(solution.labels_, int), "variances": jnp.log(start["variances"])}
    runs: dict[str, tuple[Any, int, dict[str, Any], Any]] = {
        "Gibbs: CustomGibbs, NUTS for variances": (Gibbs(mixed), draws, {"k": 4}, begin),
        "NUTS, clusters summed out": (summed, draws, known, None),
        "DiscreteHMCGibbs(NUTS)": (DiscreteHMCGibbs(nuts), slow_draws, {"k": 4}, None),
    }
    table: list[Any] = []
    for name, (kernel, number, settings, first_values) in runs.items():
        runner = MCMC(kernel, num_warmup=number // 2, num_samples=number, progress_bar=False)
        go = partial(runner.run, extra_fields=(), **settings)
        call = partial(go, jax.random.PRNGKey(0), X, y, init_params=first_values)
        first = timed(call)
        runner.post_warmup_state = runner.last_state
        compiled = len(EVENTS)
        again = timed(partial(go, runner.post_warmup_state.rng_key, X, y))
        values = runner.get_samples()
        p = marginal.Parameters(*(values[name] for name in marginal.Parameters._fields))
        log_p = np.asarray(marginal.log_likelihood(p, X, y))
        size = ess(log_p[None])
        table.append(
            (
                name,
                log_p.mean(),
                size,
                1e6 * again.cpu / number,
                size / again.cpu,
                first.cpu,
                len(EVENTS) - compiled,
            )
        )
    kernel, target = KERNELS[DEFAULT].kernel(n), partitions(data, "conjugate")
    ours = sample(kernel, target, seconds)
    each, result = 1e6 * ours.seconds / ours.length.size, summary(ours)
    table.append((f"{DEFAULT}, any k", np.nan, np.nan, each, result[0], np.nan, 0))
    show(
        f"n={n}, one chain of NumPyro with k=4 known: log density; ours, conjugate: length",
        (
            "sampler",
            "mean log p",
            "ESS",
            "us/draw",
            "ESS/s",
            "first call, s",
            "compiled in the timed one",
        ),
        table,
    )
    console.print(
        "The timed call goes on after the first, without warm-up. NumPyro compiles in every call, "
        "which\nthese times hold; the persistent compilation cache makes that cheap."
    )


# Covariances between columns


PRECISION, FREEDOM, VARIANCE = 0.3, 5.0, 0.2  # hyperparameters for both: kappa, f and s
GIBBS = {"tied": 1, "full": 4}  # covariances of four clusters


def sheared(n: int, covariance: str) -> Data:
    """The four components in correlated axes, with one covariance or with different ones."""
    data = rows(n, "even" if covariance == "tied" else "four")
    X = data.X @ np.array([[1, 0.8], [0, 0.6]])
    return Data((X - X.mean(0)) / X.std(0), data.y)


def log_rows(sites: Any, X: Any, y: Any) -> Any:
    """Log (n, k) of weight times density of rows and their classes."""
    k, d = sites["means"].shape
    root = jnp.linalg.cholesky(jnp.broadcast_to(sites["precision"], (k, d, d)))
    away = jnp.einsum("nkd,kde->nke", X[:, None] - sites["means"], root)
    log_p = jnp.log(jnp.diagonal(root, axis1=1, axis2=2)).sum(-1) - 0.5 * (away**2).sum(-1)
    log_p = log_p + jnp.log(sites["weights"]) - 0.5 * d * np.log(2 * np.pi)
    told = jnp.log(sites["classes"])[:, jnp.maximum(y, 0)].T
    return log_p + jnp.where(y[:, None] >= 0, told, 0)


def normal_model(X: Any, y: Any, covariances: int) -> None:
    """The mixture of four Gaussian components, with the cluster of every row."""
    import numpyro
    import numpyro.distributions as dist

    d = X.shape[1]
    rate = jnp.broadcast_to(VARIANCE * FREEDOM * jnp.eye(d), (covariances, d, d))
    prior = dist.Wishart(d + 1 + FREEDOM, rate_matrix=rate).to_event(1)
    precision = jnp.broadcast_to(numpyro.sample("precision", prior), (4, d, d))
    centred = dist.MultivariateNormal(jnp.zeros(d), precision_matrix=PRECISION * precision)
    sites = {
        "precision": precision,
        "means": numpyro.sample("means", centred.to_event(1)),
        "weights": numpyro.sample("weights", dist.Dirichlet(jnp.ones(4))),
        "classes": numpyro.sample("classes", dist.Dirichlet(jnp.full((4, 4), 0.5)).to_event(1)),
    }
    with numpyro.plate("rows", X.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.full(4, 0.25)))
        # The weights are in `log_rows`.
        own = jnp.take_along_axis(log_rows(sites, X, y), z[:, None], 1)[:, 0]
        numpyro.factor("x", own + np.log(4))


def given_precision(key: Any, now: Any, X: Any, y: Any, renew: Any = None) -> dict[str, Any]:
    """Clusters, then means, weights and classes, given the covariances and the previous state.

    ``renew(key, members, sizes, centres)`` may resample the covariances in between.
    """
    keys = jax.random.split(key, 5)
    k, d = now["means"].shape
    z = jax.random.categorical(keys[0], log_rows(now, X, y))
    member = (z == jnp.arange(k)[:, None]).astype(X.dtype)
    size = member.sum(1, keepdims=True)
    centre = member @ X / (PRECISION + size)
    precision = renew(keys[4], member, size, centre) if renew else now["precision"]
    root = jnp.linalg.cholesky(jnp.broadcast_to(precision, (k, d, d)))
    noise = jax.random.normal(keys[1], (k, d, 1))
    noise = jax.scipy.linalg.solve_triangular(root.transpose(0, 2, 1), noise)[..., 0]
    onehot = (y[:, None] == jnp.arange(4)).astype(X.dtype)
    return {
        "z": z,
        "means": centre + noise / jnp.sqrt(PRECISION + size),
        "weights": jax.random.dirichlet(keys[2], 1 + size[:, 0]),
        "classes": jax.random.dirichlet(keys[3], 0.5 + member @ onehot),
    } | ({"precision": precision} if renew else {})


def all_in_blocks(now: Any, X: Any, y: Any, covariances: int) -> Any:
    """Gibbs step without NumPyro: clusters, then everything else, covariances with means."""
    from nrprob.methods.bayes.shared_covariance import wishart_root
    from nrprob.statistics.matrices import whitener

    d = X.shape[1]

    def renew(key, member, size, centre):
        square = jnp.einsum("kn,nd,ne->kde", member, X, X)
        scatter = square - jnp.einsum("kd,ke->kde", centre, centre) * (PRECISION + size)[..., None]
        count = size[:, 0]
        if covariances == 1:
            scatter, count = scatter.sum(0, keepdims=True), count.sum(keepdims=True)
        white, _ = jax.vmap(whitener)(scatter + VARIANCE * FREEDOM * jnp.eye(d))
        keys = jax.random.split(key, covariances)
        root = jax.vmap(wishart_root)(keys, white, d + 1 + FREEDOM + count)
        return root @ root.transpose(0, 2, 1)

    key, own = jax.random.split(now["rng_key"])
    return given_precision(own, now, X, y, renew) | {"rng_key": key}


def _by_numpyro(X: Any, y: Any, start: Any, count: int, draws: int) -> tuple[np.ndarray, float]:
    """Trace of the log density, and seconds, of `CustomGibbs` with NUTS for the covariances."""
    from numpyro.distributions import biject_to, constraints
    from numpyro.infer import MCMC, NUTS, CustomGibbs, Gibbs, init_to_value

    sites = ["z", "means", "weights", "classes"]

    def update(rng_key, gibbs_sites, hmc_sites):
        return given_precision(rng_key, gibbs_sites | hmc_sites, X, y)

    nuts = NUTS(normal_model, init_strategy=init_to_value(values=start))
    free = biject_to(constraints.positive_definite).inv(start["precision"])
    begin = {site: start[site] for site in sites} | {"precision": free}
    spent = []
    for number in (8, draws):  # every call compiles; the time of the short one is subtracted
        runner = MCMC(
            Gibbs([(CustomGibbs(update), sites), (nuts, None)]),
            num_warmup=draws // 2, num_samples=number, progress_bar=False,
        )  # fmt: skip
        go = partial(runner.run, extra_fields=())
        go(jax.random.PRNGKey(0), X, y, count, init_params=begin)
        runner.post_warmup_state = runner.last_state
        spent.append(timed(partial(go, runner.post_warmup_state.rng_key, X, y, count)).cpu)
    log_p = jax.jit(lambda v: jax.lax.map(lambda one: _log_density(one, X, y), v))
    return np.asarray(log_p(runner.get_samples())), spent[1] - spent[0]


def _log_density(sites: Any, X: Any, y: Any) -> Any:
    return jax.nn.logsumexp(log_rows(sites, X, y), -1).sum()


def _by_scan(X: Any, y: Any, start: Any, count: int, draws: int) -> tuple[np.ndarray, float]:
    """The same of `all_in_blocks`."""

    @jax.jit
    def run(state):
        def one(state, _):
            state = all_in_blocks(state, X, y, count)
            return state, _log_density(state, X, y)

        return jax.lax.scan(one, state, length=draws)

    state = start | {"rng_key": jax.random.PRNGKey(0)}
    for _ in range(2):  # the second call may compile again, for arrays instead of numbers
        state, _ = run(state)
    again = timed(lambda: jax.block_until_ready(run(state)))
    return np.asarray(run(state)[1]), again.cpu


def beside_blocked_gibbs(n: int, draws: int, seconds: float) -> None:
    """Print effective draws per second with correlated columns; only the baselines know k."""
    from sklearn.cluster import KMeans

    from nrprob.methods.bayes.joint_target import JointKernel

    usual, fewer = chains.default_kernel(n, 10), chains.default_kernel(n, 2)
    drawing, moving = (JointKernel(k.block, k.n_split_merge, k.n_launch) for k in (usual, fewer))
    table: list[Any] = []
    for covariance, count in GIBBS.items():
        data = sheared(n, covariance)
        X, y = jnp.asarray(data.X), jnp.asarray(data.y)
        solution = KMeans(4, n_init=1, random_state=0).fit(data.X)
        begin = {
            "z": jnp.asarray(solution.labels_, int),
            "precision": jnp.tile(5 * jnp.eye(2), (count, 1, 1)),
            "means": jnp.asarray(solution.cluster_centers_),
            "weights": jnp.full(4, 0.25),
            "classes": jnp.full((4, 4), 0.25),
        }
        bar = np.nan
        for name, rival in (
            ("NumPyro's Gibbs with NUTS, k=4", _by_numpyro),
            ("Gibbs without NumPyro, k=4", _by_scan),
        ):
            trace, spent = rival(X, y, begin, count, draws)
            rate = ess(trace[None]) / spent
            bar = rate if np.isnan(bar) else bar
            table.append((covariance, name, 1e6 * spent / draws, rate, np.nan, 4.0, rate / bar, ""))
        prior = SampledGaussian(
            covariance=covariance, mean_precision=PRECISION, shape=1 + FREEDOM / 2,
            scale=VARIANCE * FREEDOM / 2,
        )  # fmt: skip
        fixed = MixtureModel(
            features=prior.fix_prior(None), concentration=1.0, class_concentration=0.5
        )
        drawn = replace(fixed, features=SampledGaussian(covariance=covariance))
        default = replace(drawn, concentration=None)
        for name, code, kernel in (
            ("ours, any k", fixed, drawing if fixed.samples_parameters else usual),
            ("ours, any k, hyperparameters sampled", drawn, drawing),
            ("ours, any k, concentration sampled, too", default, drawing),
            ("the same, two proposals a step", default, moving),
        ):
            target = code.target(data.X, data.y, 4, MOST)
            ours = sample(kernel, target, seconds)
            each, result = 1e6 * ours.seconds / ours.length.size, summary(ours)
            ratio, mean = result[0] / bar, ours.n_clusters.mean()
            table.append((covariance, name, each, *result[:2], mean, ratio, result[4]))
    show(
        f"n={n}: effective draws per second of the log density (length); ratios to NumPyro's",
        ("covariance", "sampler", "us/draw", "ESS/s", "ESS/s k", "mean k", "ratio", ""),
        table,
    )


def main() -> None:
    quick = arguments(__doc__).quick
    header("MDLMixture: the sampler, on one core")
    jax.monitoring.register_event_duration_secs_listener(_listen)
    with jax.enable_x64(True):
        if quick:
            effective(100, 0.5)
            gibbs_alone(100, 0.5, 1)
            blocks_of_rows(8)
            compilations(100)
            beside_numpyro(60, 200, 50, 0.5)
            beside_blocked_gibbs(60, 400, 0.5)
        else:
            effective(1000, 20)
            gibbs_alone(1000, 10, 3)
            blocks_of_rows(128)
            compilations(1000)
            beside_numpyro(100, 4000, 500, 10)
            beside_blocked_gibbs(200, 40_000, 10)
            beside_blocked_gibbs(1000, 4000, 20)


if __name__ == "__main__":
    main()
