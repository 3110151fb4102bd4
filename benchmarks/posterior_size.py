"""`MDLMixture` by the number of rows and columns: CPU seconds per effective draw, and many rows.

Data are five Gaussian clusters with equal shares, whose centres are at least four standard
deviations apart; 1,000 draws in each of four chains. Seconds are CPU seconds of a fit without
compilation, divided by the smallest effective sample size of all label-invariant quantities that
vary. Runs that have not converged (R-hat above 1.05) are marked. Two requirements for large data:
chains agree for 5,000 rows in two columns within three minutes, and for 100,000 rows in ten columns
with ten clusters within fifteen.
"""

from __future__ import annotations

from common import arguments, console, header, show, verdict

# isort: split
import time
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
from sklearn.metrics import adjusted_rand_score

from nrprob import MDLMixture

COMPILING: list[float] = []
_COMPILE = "/jax/core/compile/backend_compile_duration"


def _listen(event: str, seconds: float, **_: Any) -> None:
    if event == _COMPILE:
        COMPILING.append(seconds)


class Run(NamedTuple):
    """One fit: the model, CPU seconds without compilation, wall time, and the true labels."""

    model: MDLMixture
    cpu: float
    wall: float
    truth: np.ndarray

    @property
    def worst(self) -> float:
        """Largest R-hat of all label-invariant quantities."""
        rest = [*self.model.diagnostics_["r_hat"].dropna(), *self.model.r_hat_.values()]
        return float(max(rest))

    @property
    def effective(self) -> float:
        """Smallest effective sample size of the quantities that vary."""
        return float(self.model.diagnostics_["ess_bulk"].min())


def make(n: int, d: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ``k`` Gaussian clusters, and their labels; centres are at least four apart."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(k, d))
    apart = np.linalg.norm(centres[:, None] - centres, axis=2)[np.triu_indices(k, 1)]
    truth = rng.integers(k, size=n)
    return 4 * centres[truth] / apart.min() + rng.normal(size=(n, d)), truth


def fit(n: int, d: int, k: int, **settings: Any) -> Run:
    """Fit, without convergence warnings."""
    X, truth = make(n, d, k)
    model = MDLMixture(merge=None, random_state=0, **settings)
    before, cpu, wall = sum(COMPILING), time.process_time(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Run(model, cpu - (sum(COMPILING) - before), wall, truth)


def row(name: str, run: Run) -> list[Any]:
    """A line of the table."""
    model = run.model
    right = adjusted_rand_score(run.truth, model.labels_)
    mark = "" if run.worst < 1.05 else "NOT CONVERGED"
    each = run.cpu / run.effective if run.effective > 0 else np.nan
    return [
        name, model.covariance_, model.n_clusters_, f"{right:.3f}", run.cpu, run.wall,
        run.effective, each, f"{run.worst:.3f}", mark,
    ]  # fmt: skip


COLUMNS = ("rows x columns", "covariance", "k", "ARI", "CPU, s", "wall, s", "ESS", "s / draw",
           "R-hat", "")  # fmt: skip


def main(quick: bool) -> None:
    header("posterior over clusterings, by size")
    jax.monitoring.register_event_duration_secs_listener(_listen)
    sizes = [(200, 2)] if quick else [(n, d) for n in (200, 1000, 5000) for d in (2, 10, 50)]
    rows = [row(f"{n} x {d}", fit(n, d, 5, **({"num_samples": 100 if quick else 1000})))
            for n, d in sizes]  # fmt: skip
    show("five clusters, 500 steps of warm-up and 1,000 draws of four chains", COLUMNS, rows)
    if quick:
        return
    bars, large = [], []
    for n, d, k, minutes, settings in (
        (5000, 2, 5, 3, {}),
        (100_000, 10, 10, 15, {"num_warmup": 200, "num_samples": 100}),
    ):
        run = fit(n, d, k, **settings)
        large.append(row(f"{n} x {d}, {k} clusters", run))
        bars += [
            (f"{n} rows: minutes", run.wall / 60, *verdict(run.wall / 60, minutes)),
            (f"{n} rows: R-hat", run.worst, *verdict(run.worst, 1.05)),
        ]
    show("many rows", COLUMNS, large)
    show("bars", ("what", "found", "bar", ""), bars)
    console.print("Draws of 100,000 rows are 100 of each chain after 200 steps.")


if __name__ == "__main__":
    main(arguments(__doc__).quick)
