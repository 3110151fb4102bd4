"""Whole fits, sweeps and steps vs other implementations on the same data.

1. Ten restarts of annealing, compiled, vs the same algorithm as a plain NumPy loop over restarts.
2. Whole fits, and scikit-learn's KMeans and GaussianMixture and sib-clustering, for orientation.
3. One sweep of the sequential solver and one step of the batched one vs one iteration of
   sib-clustering (C++, double precision), on dense rows and on sparse rows of two densities.
4. The best of 16 restarts of the batched solver vs the sequential one.
"""

from __future__ import annotations

from common import (
    ROOT,
    Time,
    arguments,
    binary,
    console,
    counts,
    header,
    interleave,
    per_unit,
    show,
    timed,
    verdict,
)

# isort: split
import sys
from functools import partial

import numpy as np
from scipy import sparse
from sib import SIB
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from nrprob import CCIB, IB

sys.path.insert(0, str(ROOT / "tests"))
import reference

N_RESTARTS = 10


# 1. Annealing against NumPy


def numpy_loop(x, known, k, family, model, settings):
    """Return a call that anneals ten times with the plain NumPy implementation.

    It skips computations that a user would do once (first temperature and weight come from
    ``model``) and the objective at every temperature; our program does both.
    """
    scale = within(x, known) if known is not None else 1.0
    options = {"beta0": 0.95 * model.critical_beta_, **settings}
    if known is not None:
        weight = model.coordination_weight_ * scale
        options |= {"coordination": "residual", "scale": "common", "weight": weight}
    reference.free_energy = lambda *args, **kwargs: np.nan
    updates = []

    def call():
        updates.clear()
        for seed in range(N_RESTARTS):
            result = reference.anneal(x, known, k, family, rng=seed, **options)
            updates.append(result.n_iter)

    return call, updates


def within(x, known):
    """Mean variance of the columns within known groups, the unit of the reference's residuals."""
    residual = x.astype(float)
    for g in np.unique(known):
        residual[known == g] -= residual[known == g].mean(0)
    return float((residual**2).mean())


def annealing(quick):
    rows = []
    z_small = binary(200, (4, 4))
    n, m, k = (5000, 20, 4) if quick else (100_000, 100, 10)
    large, _ = counts(n, m, k)
    large /= large.sum(1, keepdims=True)
    z_large = np.random.default_rng(1).integers(10, size=n)
    cases = (
        ("n=200 m=8 k=2 f64", *z_small, 2, "bernoulli", {}, 6.0, 5),
        # A coarse schedule, the same in both programs, so that the NumPy loop ends within a minute.
        (
            f"n={n} m={m} k={k} f32",
            large,
            z_large,
            k,
            "multinomial",
            {"cooling": 4.0, "max_iter": 5},
            3.0,
            1 if quick else 2,
        ),
    )
    for name, x, z, k_, family, settings, bar, repeats in cases:
        for cls, known in ((IB, None), (CCIB, z)):
            model = cls(k_, features=family, n_init=N_RESTARTS, random_state=0, **settings)
            options = {} if known is None else {"known": known}
            fit = partial(model.fit, x, **options)
            fit()
            loop, updates = numpy_loop(x, known, k_, family, model, settings)
            times = interleave({"nrprob": fit, "numpy": loop}, repeats)
            ours, theirs = times["nrprob"], times["numpy"]
            ratio = theirs.wall / ours.wall
            rows.append(
                (
                    f"{cls.__name__} {name}" + (f" {settings}" if settings else ""),
                    ours.wall,
                    theirs.wall,
                    ratio,
                    theirs.cpu / ours.cpu,
                    f"{model.n_iter_} / {np.mean(updates):.0f}",
                    *verdict(ratio, bar, at_least=True),
                )
            )
    show(
        "1. ten restarts of annealing, warm: a whole fit against a NumPy loop on one thread",
        ("", "nrprob, s", "NumPy, s", "ratio", "CPU ratio", "updates, all / mean", "bar", ""),
        rows,
    )


# 2. Other clusterers


def orientation(quick):
    n = 4000 if quick else 100_000
    for title, (x, truth), k, n_init in (
        ("n=200 m=8 k=2", counts(200, 8, 2), 2, 10),
        (f"n={n} m=100 k=10", counts(n, 100, 10), 10, 1),
    ):
        ib = {"features": "multinomial", "n_init": n_init, "random_state": 0}
        models = {
            "nrprob IB anneal": IB(k, **ib),
            "nrprob IB sequential": IB(k, solver="sequential", **ib),
            "nrprob IB batched": IB(k, solver="batched", **ib),
            "sib-clustering": SIB(k, n_init=n_init, random_state=0, n_jobs=1),
            "sklearn KMeans": KMeans(k, n_init=n_init, random_state=0),
            "sklearn GaussianMixture diag": GaussianMixture(
                k, covariance_type="diag", n_init=n_init, random_state=0
            ),
        }
        calls = {name: partial(model.fit, x) for name, model in models.items()}
        for name in models:
            if name.startswith("nrprob"):
                calls[name]()
        times = interleave(calls, 1 if n_init == 1 else 3)
        rows = []
        for name, model in models.items():
            labels = model.predict(x) if isinstance(model, GaussianMixture) else model.labels_
            score = adjusted_rand_score(truth, labels)
            rows.append((name, times[name].wall, times[name].cpu, score, str(model.n_iter_)))
        show(
            f"2. whole fits, {title}, float32 counts, {n_init} start(s), warm",
            ("", "wall, s", "CPU, s", "adjusted Rand", "iterations"),
            rows,
        )


# 3. Sweeps and steps


def fit_ib(x, solver, max_iter, **options):
    options = {"n_init": 1, "random_state": 0, **options}
    return IB(10, solver=solver, features="multinomial", max_iter=max_iter, **options).fit(x)


def fit_sib(x, max_iter):
    # The tolerance of 0 prevents stopping before max_iter.
    return SIB(10, n_init=1, max_iter=max_iter, tol=0, random_state=0, n_jobs=1).fit(x)


def sweeps(quick):
    few, many = 1, 3
    rows = []
    for n in (2000,) if quick else (10_000, 100_000):
        # Overlapping profiles: otherwise the solvers converge within the measured sweeps.
        x, _ = counts(n, 100, 10, draws=40, concentration=4.0)
        csr = sparse.csr_matrix(x)
        thin = sparse.csr_matrix(counts(n, 100, 10, draws=9, concentration=4.0)[0])
        runs = {
            "sequential dense": partial(fit_ib, x, "sequential"),
            "sib dense": partial(fit_sib, x),
            "sequential sparse": partial(fit_ib, csr, "sequential"),
            "sib sparse": partial(fit_sib, csr),
            "sequential thin": partial(fit_ib, thin, "sequential"),
            "sib thin": partial(fit_sib, thin),
            "batched": partial(fit_ib, x, "batched"),
        }
        last = dict.fromkeys(runs, many)
        last["batched"] = runs["batched"](1000).n_iter_
        for name in ("sequential dense", "sequential sparse", "sequential thin"):
            # Fewer if a fit converges sooner, since sweeps that were not run must not be counted.
            last[name] = runs[name](many).n_iter_
        calls = {
            (name, i): partial(run, i) for name, run in runs.items() for i in (few, last[name])
        }
        times = interleave(calls, 2 if n > 20_000 else 5)
        each = {
            name: per_unit(times[name, few], times[name, last[name]], last[name] - few)
            for name in runs
        }
        each["batched, all differences"] = differences_step(x)
        rows += [
            (f"n={n} " + what, *cells)
            for what, *cells in (
                no_slower(each, "sequential dense", "sib dense", 1.0),
                no_slower(each, "sequential sparse", "sib sparse", 1.5),
                no_slower(each, "sequential thin", "sib thin", 1.5),
                faster(each, "batched", "sib dense", 4.0),
                faster(each, "batched, all differences", "sib dense", None),
            )
        ]
        show(
            f"whole fits of one start, n={n}, of 100 columns {csr.nnz / n:.0f} not zero, "
            f"{thin.nnz / n:.0f} in thin rows",
            ("", "wall, s", "CPU, s"),
            [(f"{name}, {i} sweeps or steps", t.wall, t.cpu) for (name, i), t in times.items()],
        )
    show(
        "3. one sweep or step, float32, m=100, k=10, against one iteration of sib-clustering",
        ("", "nrprob, ms", "sib, ms", "ratio", "CPU ratio", "bar", ""),
        rows,
    )
    console.print(
        "A batched fit mostly follows the gradient; a step that computes the exact difference of "
        "every\nmove, of which a fit takes a few, is listed on its own. Sparse rows are looked at "
        "several at a time,\nup to the first that moves: the fewer move, the cheaper is a sweep."
    )


def no_slower(each, ours, theirs, bar):
    a, b = each[ours], each[theirs]
    ratio = a.wall / b.wall
    name = f"{ours} / {theirs}"
    judged = verdict(ratio, bar) if bar else ("", "")
    return name, 1e3 * a.wall, 1e3 * b.wall, ratio, a.cpu / b.cpu, *judged


def faster(each, ours, theirs, bar):
    a, b = each[ours], each[theirs]
    ratio = b.wall / a.wall
    name = f"{theirs} / {ours}"
    judged = verdict(ratio, bar, at_least=True) if bar else ("", "")
    return name, 1e3 * a.wall, 1e3 * b.wall, ratio, b.cpu / a.cpu, *judged


def differences_step(x) -> Time:
    """Time of the slowest type of step: exact differences of all rows, and a new objective."""
    import jax
    import jax.numpy as jnp

    from nrprob.engines.optimise.reassign import label_cells, move_differences
    from nrprob.methods.bottleneck.ib import Bottleneck
    from nrprob.statistics.rows import make_layout, make_rows
    from nrprob.statistics.terms import objective

    codes = np.zeros(len(x), int)
    layout = make_layout(codes, 1)
    rows = make_rows(x / x.sum(1, keepdims=True), layout, 1)
    start = np.random.default_rng(0).integers(10, size=len(x)).astype(np.int32)

    @jax.jit
    def steps(rows, labels, count):
        terms = Bottleneck("multinomial")(rows, {}).terms

        def step(_, labels):
            change = move_differences(terms, rows, labels, label_cells(rows, labels, 10))
            labels = change.argmin(-1).astype(labels.dtype)
            value = objective(terms, label_cells(rows, labels, 10))[0]
            return jnp.where(value < jnp.inf, labels, 0)

        return jax.lax.fori_loop(0, count, step, labels)

    rows, labels = jax.tree.map(jnp.asarray, (rows, layout.to_blocks(start)))
    calls = {n: lambda n=n: steps(rows, labels, n).block_until_ready() for n in (1, 4)}
    interleave(calls, 1)
    times = interleave(calls, 3)
    return per_unit(times[1], times[4], 3)


# 4. The best of many restarts


def best_of_sixteen(quick):
    rows = []
    for name, concentration in (("easy", 0.5), ("hard", 5.0)):
        x, _ = counts(2000, 40, 6, draws=60, concentration=concentration)
        result, times = {}, {}
        for solver in ("sequential", "batched"):
            model = IB(6, solver=solver, features="multinomial", n_init=16, random_state=0)
            model.set_params(max_iter=1000).fit(x)
            times[solver] = timed(partial(model.fit, x))
            result[solver] = model.restarts_["objective"].values
        a, b = result["sequential"], result["batched"]
        excess = 100 * (b.min() / a.min() - 1)
        rows.append(
            (
                f"{name}: sequential",
                f"{a.mean():.2f}",
                f"{a.min():.2f}",
                times["sequential"].wall,
                "",
                "",
                "",
            )
        )
        rows.append(
            (
                f"{name}: batched",
                f"{b.mean():.2f}",
                f"{b.min():.2f}",
                times["batched"].wall,
                f"{excess:+.4f} %",
                *verdict(excess, 0.1),
            )
        )
    show(
        "4. sixteen starts, n=2000 m=40 k=6, float32",
        ("", "mean, nats", "best, nats", "wall, s", "best over sequential's", "bar, %", ""),
        rows,
    )


def main(quick: bool) -> None:
    header("restarts, sweeps and steps")
    annealing(quick)
    sweeps(quick)
    best_of_sixteen(quick)
    orientation(quick)


if __name__ == "__main__":
    main(arguments(__doc__).quick)
