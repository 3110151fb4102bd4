"""Ten restarts of annealed CMBC with coordinate updates vs the same in a plain NumPy loop.

Data are binary rows with two independent partitions into four clusters; the partition with more
features is known. Both programs have the same initial values, perturbations, temperatures and
stopping rule, so they must reach the same objectives.
"""

from __future__ import annotations

from common import arguments, console, header, interleave, show, verdict

# isort: split
from functools import partial

import jax
import numpy as np

from nrprob import CMBC
from nrprob.datasets import make_binary_partitions
from nrprob.engines.hash_rng import fold_in, hashed_noise

N_RESTARTS, K = 10, 4
LOW = 1e-10  # distance of the parameters from 0 and 1


def perturbations(seed, shape, m):
    """Perturbations (restarts, K, m) at every temperature, as in a fit with this seed."""
    drawn = np.random.RandomState(seed).randint(2**31 - 1)
    with jax.enable_x64(True):
        streams = [fold_in(fold_in(drawn, 2), i) for i in range(20)]
        return [1e-3 * np.asarray(hashed_noise(s, shape, np.float64))[..., :m] for s in streams]


def root(a, b, n, s):
    """Zero of a t^3 + (b - a) t^2 - (n + b) t + s, by bisection."""
    low, high = LOW, 1 - LOW
    for _ in range(52):
        t = 0.5 * (low + high)
        if ((a * t + (b - a)) * t - (n + b)) * t + s > 0:
            low = t
        else:
            high = t
    return 0.5 * (low + high)


def numpy_loop(x, z, first, noises, tol, strength=2.0):
    """Fit one restart after the other; returns objectives and the number of iterations."""
    n, m = x.shape
    share = np.bincount(z) / n
    ones = np.array([x[z == g].sum(0) for g in range(share.size)])
    d = ones / ones.sum(0) - (n * share[:, None] - ones) / (n - ones.sum(0))
    columns, pulls = d.T.copy(), (d / share[:, None]).T.copy()
    curvature = strength / K * (1 - 1 / K) * (columns * pulls).sum(1)
    objectives, n_iter = [], 0
    for restart in range(N_RESTARTS):
        theta, temperature, level = np.repeat(x.mean(0)[None], K, 0), first, 0
        while temperature >= 1:
            theta = np.clip(theta + noises[level][restart], LOW, 1 - LOW)
            last = temperature <= 1
            value, q = expectation(x, theta, temperature, columns, share, strength)
            for _ in range(2000 if last else 200):
                size, sums, e = q.mean(0), q.T @ x / n, theta @ columns
                for j in range(m):
                    for k in range(K):
                        t = theta[k, j]
                        b = strength / K * ((e[k] - e.mean(0)) @ pulls[j]) - curvature[j] * t
                        new = root(float(curvature[j]), float(b), float(size[k]), float(sums[k, j]))
                        theta[k, j] = new
                        e[k] += (new - t) * columns[j]
                old = value
                value, q = expectation(x, theta, temperature, columns, share, strength)
                n_iter += 1
                if abs(old - value) <= (1e-2 if last else 1) * tol:
                    break
            temperature = 0 if last else max(temperature / 2, 1)
            level += 1
        objectives.append(n * value)
    return np.array(objectives), n_iter


def expectation(x, theta, temperature, columns, share, strength):
    """Objective per row, and memberships."""
    rest = np.log1p(-theta)
    score = (x @ (np.log(theta) - rest).T + rest.sum(1)) / temperature
    top = score.max(1, keepdims=True)
    q = np.exp(score - top)
    total = q.sum(1, keepdims=True)
    free = temperature * ((top + np.log(total)).mean() - np.log(K))
    e = theta @ columns
    penalty = 0.5 * ((e - e.mean(0)) ** 2 / share).sum(1).mean()
    return strength * penalty - free, q / total


def main(quick: bool) -> None:
    header("restarts of CMBC")
    n, m, tol = (200, 14, 1e-4) if quick else (800, 104, 1e-5)
    x, labels = make_binary_partitions(n, (m - 4, 4), K, random_state=0)
    x, z = x.astype(float), labels[:, 0]
    model = CMBC(K, update="batch", anneal=True, n_init=N_RESTARTS, tol=tol, random_state=0)
    fit = partial(model.fit, x, known=z)
    fit()  # warm
    width = model.prepare(x, None, z).rows.x.n_statistics
    noises = perturbations(0, (N_RESTARTS, K, width), m)
    first = max(1.2 * model.critical_temperature_, 1)
    result = []

    def loop():
        result[:] = numpy_loop(x, z, first, noises, tol)

    ours, theirs = "nrprob", "NumPy"
    times = interleave({ours: fit, theirs: loop}, 1 if quick else 2)
    reached, n_iter = result
    difference = np.abs(model.restarts_.objective.values - reached).max() / np.abs(reached).max()
    show(
        f"ten restarts of CMBC(update='batch', anneal=True), n={n} m={m} K={K}, float64, warm",
        ("", "wall, s", "CPU, s", "best objective, nats", "iterations"),
        [
            (ours, *times[ours], f"{model.objective_:.6f}", f"{model.n_iter_}, all at once"),
            (theirs, *times[theirs], f"{reached.min():.6f}", f"{n_iter}, one by one"),
        ],
    )
    ratio = times[theirs].wall / times[ours].wall
    cpu = times[theirs].cpu / times[ours].cpu
    show(
        "",
        ("", "wall", "CPU", "bar", ""),
        [
            ("time of NumPy / nrprob", ratio, cpu, *verdict(ratio, 20, at_least=True)),
            (
                "largest relative difference of objectives",
                difference,
                "",
                *verdict(difference, 1e-6),
            ),
        ],
    )
    console.print("The last iteration of ten restarts that run at once is that of the slowest.")


if __name__ == "__main__":
    main(arguments(__doc__).quick)
