"""How often `nrprob.evidence.test` finds structure where there is none, and where there is.

240 rows of 6 columns in three known groups with means of their own. Data without clusters are
normal (of any covariance, of a spectrum that decays, of other covariances in every group), t with 3
degrees of freedom; and, without a bar since they are no elliptical clouds, mirrored gamma, bent and
uniform groups. Clusters are 3 or 4 standard deviations apart, in round noise or, as all nulls but
those that say so, in noise mixed by a random matrix. Bars are for level .05.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import NamedTuple

from common import console, header, show, verdict  # isort: skip

import numpy as np

from nrprob import ResidualMixture, evidence

N, D, GROUPS, LEVEL = 240, 6, 3, 0.05


class Rows(NamedTuple):
    """Noise, and what draws it: generator, known group of every row, number of columns."""

    rng: np.random.Generator
    z: np.ndarray
    d: int

    def normal(self) -> np.ndarray:
        return self.rng.normal(size=(self.z.size, self.d))

    def mixed(self, e: np.ndarray) -> np.ndarray:
        return e @ self.rng.normal(size=(self.d, self.d))

    def t(self, nu: float, scale: float = 1.0) -> np.ndarray:
        weight = self.rng.chisquare(nu, size=(self.z.size, 1))
        return self.normal() * scale / np.sqrt(weight / nu)


def gaussian(rows: Rows) -> np.ndarray:
    return rows.mixed(rows.normal())


def decaying(rows: Rows) -> np.ndarray:
    return rows.normal() * 0.6 ** np.arange(rows.d)


def unequal(rows: Rows) -> np.ndarray:
    """Other covariances in every group, of variances 1 : 2.45 : 6."""
    e = rows.normal()
    for g, scale in enumerate((1, 2.45, 6)):
        e[rows.z == g] = math.sqrt(scale) * rows.mixed(e[rows.z == g])
    return e


def heavy(rows: Rows) -> np.ndarray:
    return rows.mixed(rows.t(3))


def long(rows: Rows) -> np.ndarray:
    """One direction of more variance than all others."""
    return rows.normal() * np.where(np.arange(rows.d) == 0, 1.8, 1)


def mirrored(rows: Rows) -> np.ndarray:
    e = rows.rng.gamma(0.7, size=(rows.z.size, rows.d))
    return np.where(rows.z[:, None] == 0, -e, e)


def bent(rows: Rows) -> np.ndarray:
    e = rows.normal()
    e[:, 1] += (e[:, 0] ** 2 - 1) / 2
    return rows.mixed(e)


def uniform(rows: Rows) -> np.ndarray:
    return rows.mixed(rows.rng.uniform(size=(rows.z.size, rows.d)))


def planted(
    apart: float, k: int = 2, *, nu: float = math.inf, mixed: bool = True, share: float = 0.0
) -> Callable[[Rows], np.ndarray]:
    """Clusters of equal size, or one of a share, any two of them equally far apart."""

    def draw(rows: Rows) -> np.ndarray:
        # t noise has unit variance.
        e = rows.normal() if math.isinf(nu) else rows.t(nu, math.sqrt((nu - 2) / nu))
        turn = np.linalg.qr(rows.normal()[: rows.d])[0]
        weights = [1 - share, share] if share else None
        e += (turn[:k] * apart / math.sqrt(2))[rows.rng.choice(k, rows.z.size, p=weights)]
        return rows.mixed(e) if mixed else e

    return draw


class Cell(NamedTuple):
    """Data, clusters that are fitted, and the least power; columns."""

    draw: Callable[[Rows], np.ndarray]
    k: int = 2
    power: float | None = None
    d: int = D


NULLS = {
    "gaussian": Cell(gaussian),
    "decaying spectrum": Cell(decaying),
    "unequal covariances": Cell(unequal),
    "t 3": Cell(heavy),
    "one long direction, d 20": Cell(long, d=20),
    "unequal covariances, K 3": Cell(unequal, 3),
    "t 3, K 3": Cell(heavy, 3),
}
OTHERS = {
    "mirrored gamma": Cell(mirrored),
    "bent": Cell(bent),
    "uniform": Cell(uniform),
    "5 sd, 90/10": Cell(planted(5, share=0.1)),
}
CLUSTERS = {
    "3 sd": Cell(planted(3), power=0.55),
    "3 sd, round": Cell(planted(3, mixed=False), power=0.55),
    "4 sd": Cell(planted(4), power=0.95),
    "4 sd, t 5": Cell(planted(4, nu=5), power=0.75),
    "4 sd, K 3": Cell(planted(4, 3), 3, power=0.95),
}


def p_value(cell: Cell, number: int, seed: int, weights: str, n_init: int) -> float:
    """p-value of the data set ``seed`` of a cell, which has a ``number``."""
    rng = np.random.default_rng([2026, number, seed])
    z = rng.integers(GROUPS, size=N)
    X = cell.draw(Rows(rng, z, cell.d)) + 4 * rng.normal(size=(GROUPS, cell.d))[z]
    model = ResidualMixture(cell.k, weights=weights)
    found = evidence.test(model, X, known=z, random_state=seed, n_init=n_init)
    return found.p_structure_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two data sets of every kind")
    parser.add_argument("--sets", type=int, default=100, help="data sets of every kind")
    parser.add_argument("--only", metavar="NAME", default="", help="kinds with this in their name")
    parser.add_argument("--weights", default="uniform", help="of the clusters")
    parser.add_argument("--n-init", type=int, default=12, help="restarts of every fit")
    chosen = parser.parse_args()
    n_sets = 2 if chosen.quick else chosen.sets
    header(f"evidence, weights {chosen.weights}, {n_sets} sets")
    rows = []
    cells = {**NULLS, **CLUSTERS, **OTHERS}
    for number, (name, cell) in enumerate(cells.items()):
        if chosen.only not in name:
            continue
        start = time.process_time()
        found = [p_value(cell, number, s, chosen.weights, chosen.n_init) for s in range(n_sets)]
        rate = float(np.mean(np.array(found) <= LEVEL))
        error = math.sqrt(max(rate * (1 - rate), LEVEL * (1 - LEVEL)) / n_sets)
        bar = ("", "")
        if name in NULLS:
            bar = verdict(rate, round(LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / n_sets), 3))
        elif cell.power is not None:
            bar = verdict(rate, cell.power, at_least=True)
        seconds = (time.process_time() - start) / n_sets
        rows.append((name, rate, error, float(np.median(found)), seconds, *bar))
        console.print(f"{name}: {rate:.3f} +- {error:.3f}, {seconds:.2f} s per set")
    columns = "rows", "rate of p <= .05", "standard error", "median p", "CPU s", "bar", ""
    show("Rejected", columns, rows)


if __name__ == "__main__":
    main()
