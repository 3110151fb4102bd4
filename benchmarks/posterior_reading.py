"""Time and memory of summaries of draws: 10,000 rows, 20 clusters, 1,000 draws.

Rows leave their cluster with different probabilities, some of them large. Two clusters are one in
four of ten draws, and half of another cluster is separate in two of ten. Every summary runs in a
separate process; memory is its largest resident set, including draws and imports. The last columns
are the results.
"""

from __future__ import annotations

from common import arguments, header, show, timed, verdict

# isort: split
import multiprocessing
import resource
from collections.abc import Callable

import numpy as np

from nrprob import posterior

SECONDS, MEGABYTES = 60.0, 1000.0


def make(n: int, k: int, n_draws: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels (2, n_draws / 2, n) with label switching, and the centre."""
    rng = np.random.default_rng(seed)
    truth, doubt = rng.integers(k, size=n), 0.6 * rng.random(n) ** 3
    draws = np.empty((2, n_draws // 2, n), dtype=np.int32)
    for where in np.ndindex(2, n_draws // 2):
        z = np.where(rng.random(n) < doubt, rng.integers(k, size=n), truth)
        if rng.random() < 0.4:
            z[z == k - 1] = k - 2
        if rng.random() < 0.2:
            z[(z == 3) & (np.arange(n) % 2 == 0)] = k
        draws[where] = rng.permutation(k + 10)[z]
    return draws, truth


def _estimate(draws: np.ndarray, truth: np.ndarray, loss: str) -> str:
    labels, value = posterior.point_estimate(draws, loss, random_state=0, return_loss=True)
    clusters = int(np.sum(np.bincount(labels) > 1))
    return f"loss {value:.4f}, {clusters} clusters and {labels.max() + 1 - clusters} rows alone"


def _path(draws: np.ndarray, truth: np.ndarray) -> str:
    X = np.random.default_rng(1).normal(size=(len(truth), 5)) + 6 * np.eye(5)[truth % 5]
    return str(posterior.cluster_path(draws, X))


def _stable(draws: np.ndarray, truth: np.ndarray) -> str:
    result = posterior.stable_clusters(draws, truth)
    least = result.clusters["probability"].min()
    return f"{len(result.transient)} transient, least probable cluster {least:.2f}"


def _ball(draws: np.ndarray, truth: np.ndarray) -> str:
    return f"radius {posterior.credible_ball(draws, truth).radius:.3f}"


def _rows(draws: np.ndarray, truth: np.ndarray) -> str:
    return f"mean {posterior.coclustering(draws, rows=range(100)).mean():.4f}"


def _pairs(draws: np.ndarray, truth: np.ndarray) -> str:
    pairs = np.random.default_rng(0).integers(0, len(truth), (10_000, 2))
    return f"mean {posterior.coclustering(draws, pairs=pairs).mean():.4f}"


CALLS: dict[str, Callable[[np.ndarray, np.ndarray], str]] = {
    "point_estimate, vi": lambda draws, truth: _estimate(draws, truth, "vi"),
    "point_estimate, binder": lambda draws, truth: _estimate(draws, truth, "binder"),
    "credible_ball of a centre": _ball,
    "cluster_path, 5 columns": _path,
    "stable_clusters of a centre": _stable,
    "coclustering, 100 rows": _rows,
    "coclustering, 10,000 pairs": _pairs,
}


def measure(name: str, quick: bool) -> tuple[float, float, str]:
    """CPU seconds, megabytes, and the result."""
    draws, truth = make(*((1000, 6, 100) if quick else (10_000, 20, 1000)))
    result: list[str] = []
    cpu = timed(lambda: result.append(CALLS[name](draws, truth))).cpu
    return cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, result[0]


def main(quick: bool) -> None:
    """Print a line for every summary."""
    header("what is read off draws")
    rows = []
    for name in CALLS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cpu, memory, result = pool.apply(measure, (name, quick))
        rows.append(
            (name, cpu, *verdict(cpu, SECONDS), memory, *verdict(memory, MEGABYTES), result)
        )
    columns = ("summary", "CPU s", "bar", "", "MB", "bar", "", "found")
    show("1,000 draws of 10,000 rows", columns, rows)


if __name__ == "__main__":
    main(arguments(__doc__).quick)
