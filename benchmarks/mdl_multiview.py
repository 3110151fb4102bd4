"""Multi-view clustering: one annealing step vs NumPy, and a fit's memory.

n=100,000, two views of 8 features, 10 x 10 clusters, five restarts, float32. The NumPy step uses
whole arrays. It computes lengths of all cells of every row by matrix products and broadcasting,
samples a cell by the largest perturbed score, and computes counts, means and scales by `bincount`
and matrix products. It processes one restart at a time, since all cells of all restarts would not
fit into memory.
"""

from __future__ import annotations

from common import arguments, console, header, interleave, per_unit, show, verdict

# isort: split
import resource
import subprocess
import sys
import time

import jax
import numpy as np

from nrprob import MDLMultiView

N_RESTARTS = 5
SPEED, MEMORY = 3.0, 2.0  # times NumPy; GB


def views(n: int, d: int, k: int, seed: int = 0) -> list[np.ndarray]:
    """Two views of k clusters each, whose labels agree on nine of ten rows."""
    rng = np.random.default_rng(seed)
    z = rng.integers(k, size=n)
    other = np.where(rng.random(n) < 0.9, z, rng.integers(k, size=n))
    return [
        (3 * rng.normal(size=(k, d))[labels] + rng.normal(size=(n, d))).astype(np.float32)
        for labels in (z, other)
    ]


class NumpyStep:
    """Stochastic annealing of one restart, with one scale per view and the weights d/2."""

    def __init__(self, data: list[np.ndarray], k: int, seed: int):
        self.data = [(x - x.mean(0)) / np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean()) for x in data]
        self.norms = [(x**2).sum(1) for x in self.data]
        self.rng = np.random.default_rng(seed)
        self.k, self.n = k, len(data[0])
        self.labels = self.rng.integers(k, size=(2, self.n))

    def __call__(self, temperature: float) -> None:
        """Codes from labels, and labels from codes."""
        k, n = self.k, self.n
        cells = self.labels[0] * k + self.labels[1]
        counts = np.bincount(cells, minlength=k * k).astype(np.float32)
        log_p = np.log((counts + 0.5) / (n + 0.5 * k * k))
        costs = []
        for x, q, z in zip(self.data, self.norms, self.labels, strict=True):
            one = np.zeros((n, k), np.float32)
            one[np.arange(n), z] = 1
            mass = np.maximum(one.sum(0), 1)
            sums = one.T @ x
            centres = sums / mass[:, None]
            scale = (q.sum() - (centres * sums).sum()) / n
            r = q[:, None] - 2 * (x @ centres.T) + (centres**2).sum(1)
            costs.append((x.shape[1] / 2) * (r / scale))
        length = costs[0][:, :, None] + costs[1][:, None, :]
        length -= log_p.reshape(k, k)
        length /= -temperature
        uniform = self.rng.random((n, k, k), np.float32)
        np.maximum(uniform, 1e-30, out=uniform)
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
        np.log(uniform, out=uniform)
        length -= uniform
        self.labels = np.stack(np.divmod(length.reshape(n, -1).argmax(1), k))


def stepper(data: list[np.ndarray], k: int):
    """Return a call of a number of annealing steps of all restarts, and one of descent."""
    calls = {}

    def run(count: int) -> None:
        if count not in calls:
            with jax.enable_x64(True):
                model = MDLMultiView(
                    k, n_init=N_RESTARTS, start=1.0, n_steps=count, cooling=1e3, max_iter=1,
                    random_state=0,
                )  # fmt: skip
                (calls[count],) = model.prepare(data, None).calls
        with jax.enable_x64(True):
            calls[count]()

    return run


def peak(n: int, k: int) -> tuple[float, float]:
    """Peak memory in GB, and seconds, of a whole fit in a separate process."""
    code = f"import mdl_multiview; mdl_multiview.fit({n}, {k})"
    from pathlib import Path

    out = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    memory, seconds = out.stdout.split()[-2:]
    return float(memory), float(seconds)


def fit(n: int, k: int) -> None:
    """Fit, and print the peak of the process' memory in GB and the time in seconds."""
    data = views(n, 8, k)
    start = time.perf_counter()
    MDLMultiView(k, n_init=N_RESTARTS, cooling=1.5, random_state=0).fit(data)
    seconds = time.perf_counter() - start
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, seconds)


def main(quick: bool) -> None:
    n, k, few, many = (4000, 4, 2, 6) if quick else (100_000, 10, 1, 5)
    header(f"mdl_multiview: n={n}, two views of 8 features, {k} x {k} clusters, float32")
    data = views(n, 8, k)
    numpy_steps = NumpyStep(data, k, 0)

    def numpy_run(count: int) -> None:
        for _ in range(count):
            numpy_steps(1.0)

    runs = {"nrprob": stepper(data, k), "NumPy": numpy_run}
    calls = {
        f"{name} {count}": lambda run=run, count=count: run(count)
        for name, run in runs.items()
        for count in (few, many)
    }
    interleave(calls, 1)
    times = interleave(calls, 2 if quick else 3)
    each = {
        name: per_unit(times[f"{name} {few}"], times[f"{name} {many}"], many - few) for name in runs
    }
    restarts = {"nrprob": N_RESTARTS, "NumPy": 1}
    ratio = (each["NumPy"].wall / each["nrprob"].wall) * N_RESTARTS
    ratio_cpu = (each["NumPy"].cpu / each["nrprob"].cpu) * N_RESTARTS
    show(
        "one step of one restart",
        ("", "wall, ms", "CPU, ms"),
        [
            (name, 1e3 * t.wall / restarts[name], 1e3 * t.cpu / restarts[name])
            for name, t in each.items()
        ],
    )
    memory, seconds = peak(n, k)
    show(
        "bars",
        ("", "value", "CPU time", "bar", ""),
        [
            ("NumPy over nrprob", ratio, ratio_cpu, *verdict(ratio, SPEED, at_least=True)),
            ("peak memory of a fit, GB", memory, "", *verdict(memory, MEMORY)),
        ],
    )
    console.print(f"The whole fit, {N_RESTARTS} restarts, compilation included: {seconds:.1f} s.")


if __name__ == "__main__":
    main(arguments(__doc__).quick)
