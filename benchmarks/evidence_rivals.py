"""Power of held-out tests vs refits to data without clusters.

For every data set, the script computes `nrprob.evidence.test` with five folds and with two. It also
computes the rank of the objective's gain over one cluster among refits to null data. One null
rotates every known group at random about its mean, which keeps means and covariances, and is exact
for Gaussian groups. The other keeps the distances of the rows and resamples their directions
(elliptical). Distributions of data are the same as in evidence.py.
"""

from __future__ import annotations

import argparse
import time
import warnings

from common import console, header, show  # isort: skip  (pins BLAS before numpy)

import evidence as kinds
import numpy as np

from nrprob import ConditionalMixture, evidence

NULLS = (
    "gaussian", "decaying spectrum", "unequal covariances", "t 3", "t 2", "mirrored gamma", "ball",
    "bent",
)  # fmt: skip
STRUCTURES = (
    "3 sd", "3 sd, round", "4 sd", "4 sd, t 5", "5 sd", "5 sd, .7/.3", "4 sd, K 3", "5 sd, K 4",
)  # fmt: skip
REFITS = 39


def turned(r: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows (n, d) about their mean, rotated at random with the same second moments."""
    noise = rng.normal(size=r.shape)
    q = np.linalg.qr(noise - noise.mean(0))[0]
    left, values, right = np.linalg.svd(r, full_matrices=False)
    return q @ np.linalg.qr(rng.normal(size=(r.shape[1], r.shape[1])))[0] * values @ right


def elliptical(r: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows (n, d) with the same Mahalanobis distances and random directions."""
    values, basis = np.linalg.eigh(r.T @ r / len(r))
    scale = np.sqrt(np.maximum(values, 1e-12 * values[-1]))
    length = np.linalg.norm(r @ basis / scale, axis=1, keepdims=True)
    direction = rng.normal(size=r.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    out = length * direction * scale @ basis.T
    return out - out.mean(0)


def refits(X: np.ndarray, z: np.ndarray, k: int, n_init: int, seed: int) -> tuple[float, float]:
    """p-values from both types of null data."""

    def gain(rows: np.ndarray) -> float:
        settings = {"weights": "uniform", "n_init": n_init, "random_state": seed}
        one, several = (
            ConditionalMixture(c, **settings).fit(rows, known=z).objective_ for c in (1, k)
        )
        return one - several

    rng, own = np.random.default_rng([3, seed]), gain(X)
    result = []
    for draw in (turned, elliptical):
        above = 1
        for _ in range(REFITS):
            null = X.copy()
            for g in np.unique(z):
                mean = X[z == g].mean(0)
                null[z == g] = mean + draw(X[z == g] - mean, rng)
            above += gain(null) >= own
        result.append(above / (REFITS + 1))
    return result[0], result[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two data sets of two kinds")
    parser.add_argument("--sets", type=int, default=40, help="data sets of every kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    n_sets = 2 if chosen.quick else chosen.sets
    header(f"evidence and its rivals, {n_sets} sets")
    every = {**kinds.NULLS, **kinds.SHAPES, **kinds.CLUSTERS}
    table, values = [], {}
    for number, name in enumerate(NULLS + STRUCTURES):
        if chosen.quick and name not in ("gaussian", "5 sd"):
            continue
        cell, result = every[name], []
        seconds = np.zeros(2)
        for seed in range(chosen.first, chosen.first + n_sets):
            X, rows = kinds.make(cell.draw, 3000 + number, seed)
            model = ConditionalMixture(cell.k, weights="uniform")
            start = time.process_time()
            p = []
            for n_folds, n_splits in ((5, 3), (2, 4)):
                one = evidence.test(
                    model, X, known=rows.z, n_folds=n_folds, n_splits=n_splits, random_state=seed
                )
                p += [one.p_structure_, 1.0 if one.p_gap_ is None else one.p_gap_]
                seconds[0] += (time.process_time() - start) * (n_folds == 5)
            start = time.process_time()
            p += refits(X, rows.z, cell.k, 4, seed)
            seconds[1] += time.process_time() - start
            result.append((*p, max(p[-2:])))
        values[name] = np.array(result)
        rates = (values[name] <= kinds.LEVEL).mean(0)
        table.append((name, *map(float, rates), *map(float, seconds / n_sets)))
        console.print(f"{name}: {rates}")
    columns = (
        "rows", "structure, 5 folds", "gap, 5 folds", "structure, 2 folds", "gap, 2 folds",
        "turned", "elliptical", "larger p", "CPU s, 5 folds", "CPU s, refits",
    )  # fmt: skip
    show("Rejected at level 0.05", columns, table)
    # Refits have tied p-values: at most 0.05 of the nulls may reject, including ties.
    null = np.sort(np.concatenate([p for name, p in values.items() if name in NULLS]), 0)
    bar = null[int(kinds.LEVEL * len(null))]
    equal = [
        (name, *map(float, (p < bar).mean(0))) for name, p in values.items() if name in STRUCTURES
    ]
    show(
        "Detected at the threshold that rejects 0.05 of the data without clusters",
        columns[:-2],
        equal,
    )


if __name__ == "__main__":
    main()
