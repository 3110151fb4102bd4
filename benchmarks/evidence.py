"""Error rates and power of `nrprob.evidence`: tests, numbers of clusters, confidence.

Data sets have 240 rows of 6 columns, in three known groups with different means. Data without
clusters are Gaussian (with a general covariance, a decaying spectrum, or unequal covariances of
groups), or t with 3 degrees of freedom. For the test of a gap there are also t with 2 degrees of
freedom, and skew, bounded and bent groups. These are not elliptical, so their rate for the test of
structure has no threshold. Clusters are 2 to 6 standard deviations apart. Their noise is spherical,
or mixed by a random matrix, as for all nulls unless stated otherwise. Thresholds are for level
0.05.

    python benchmarks/evidence.py --sets 400 --kinds nulls --weights uniform
    python benchmarks/evidence.py --number --sets 40
    python benchmarks/evidence.py --confidence --sets 12
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from common import console, header, show, verdict  # isort: skip

import numpy as np
from scipy.optimize import linear_sum_assignment

from nrprob import ConditionalMixture, evidence

N, D, GROUPS, LEVEL = 240, 6, 3, 0.05


class Rows(NamedTuple):
    """Noise and its generator: random generator, known group and cluster of every row, columns."""

    rng: np.random.Generator
    z: np.ndarray
    sought: np.ndarray
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
    """Unequal covariances of the groups, with variances 1 : 2.45 : 6."""
    e = rows.normal()
    for g, scale in enumerate((1, 2.45, 6)):
        e[rows.z == g] = math.sqrt(scale) * rows.mixed(e[rows.z == g])
    return e


def heavy(rows: Rows) -> np.ndarray:
    return rows.mixed(rows.t(3))


def long(rows: Rows) -> np.ndarray:
    """One direction with a larger variance than all others."""
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


def heavier(rows: Rows) -> np.ndarray:
    return rows.mixed(rows.t(2))


def mirrored_exponential(rows: Rows) -> np.ndarray:
    e = rows.rng.exponential(size=(rows.z.size, rows.d))
    return rows.mixed(np.where(rows.z[:, None] == 0, -e, e))


def gamma(rows: Rows) -> np.ndarray:
    return rows.mixed(rows.rng.gamma(0.7, size=(rows.z.size, rows.d)))


def factor_skew(rows: Rows) -> np.ndarray:
    factors = rows.rng.exponential(size=(rows.z.size, 2)) - 1
    return 1.5 * factors @ rows.rng.normal(size=(2, rows.d)) + rows.normal()


def ball(rows: Rows) -> np.ndarray:
    return rows.mixed(_sphere(rows) * rows.rng.uniform(size=(rows.z.size, 1)) ** (1 / rows.d))


def shell(rows: Rows) -> np.ndarray:
    return rows.mixed(_sphere(rows))


def _sphere(rows: Rows) -> np.ndarray:
    e = rows.normal()
    return e / np.linalg.norm(e, axis=1, keepdims=True)


def skew_normal(rows: Rows) -> np.ndarray:
    return rows.mixed(0.98 * np.abs(rows.normal()) + 0.2 * rows.normal())


def planted(
    apart: float,
    k: int = 2,
    *,
    nu: float = math.inf,
    mixed: bool = True,
    shares: tuple[float, ...] | None = None,
    scales: tuple[float, ...] = (),
) -> Callable[[Rows], np.ndarray]:
    """Clusters of equal size, or with these shares, all at equal distances.

    Known groups have noise of the variances ``scales``, if these are passed.
    """

    def draw(rows: Rows) -> np.ndarray:
        # t noise has unit variance.
        e = rows.normal() if math.isinf(nu) else rows.t(nu, math.sqrt((nu - 2) / nu))
        if scales:
            e *= np.sqrt(scales)[rows.z][:, None]
        turn = np.linalg.qr(rows.normal()[: rows.d])[0]
        rows.sought[:] = rows.rng.choice(k, rows.z.size, p=shares)
        e += (turn[:k] * apart / math.sqrt(2))[rows.sought]
        return rows.mixed(e) if mixed else e

    return draw


def traits(rows: Rows) -> np.ndarray:
    """Binary features: eight differ between clusters, all others do not."""
    rows.sought[:] = rows.rng.integers(2, size=rows.z.size)
    p = np.full((rows.z.size, rows.d), 0.5)
    p[:, :8] = np.where(rows.sought, 0.75, 0.25)[:, None]
    return (rows.rng.uniform(size=p.shape) < p).astype(float)


class Cell(NamedTuple):
    """Data, number of fitted clusters, minimum power of both tests; columns, rows."""

    draw: Callable[[Rows], np.ndarray]
    k: int = 2
    structure: float | None = None
    gap: float | None = None
    d: int = D
    n: int = N


NULLS = {
    "gaussian": Cell(gaussian),
    "decaying spectrum": Cell(decaying),
    "unequal covariances": Cell(unequal),
    "t 3": Cell(heavy),
    "one long direction, d 20": Cell(long, d=20),
    "unequal covariances, K 3": Cell(unequal, 3),
    "t 3, K 3": Cell(heavy, 3),
    "gaussian, n 60": Cell(gaussian, n=60),
    "unequal covariances, n 60": Cell(unequal, n=60),
    "t 3, n 60": Cell(heavy, n=60),
    "gaussian, d 2": Cell(gaussian, d=2),
    "t 3, d 2": Cell(heavy, d=2),
    "gaussian, d 30": Cell(gaussian, d=30),
    "t 3, d 30": Cell(heavy, d=30),
    "gaussian, n 1000": Cell(gaussian, n=1000),
    "unequal covariances, n 1000": Cell(unequal, n=1000),
    "t 3, n 1000": Cell(heavy, n=1000),
}
SHAPES = {  # without a gap, and not elliptical
    "t 2": Cell(heavier),
    "mirrored exponential": Cell(mirrored_exponential),
    "mirrored gamma": Cell(mirrored),
    "gamma": Cell(gamma),
    "factor skew": Cell(factor_skew),
    "ball": Cell(ball),
    "shell": Cell(shell),
    "box": Cell(uniform),
    "box, d 2": Cell(uniform, d=2),
    "box, K 3": Cell(uniform, 3),
    "skew-normal": Cell(skew_normal),
    "bent": Cell(bent),
}
CLUSTERS = {
    "2 sd": Cell(planted(2)),
    "3 sd": Cell(planted(3), structure=0.55),
    "3 sd, round": Cell(planted(3, mixed=False), structure=0.55),
    "4 sd": Cell(planted(4), structure=0.95, gap=0.4),
    "4 sd, t 5": Cell(planted(4, nu=5), structure=0.75),
    "5 sd": Cell(planted(5), gap=0.8),
    "5 sd, .7/.3": Cell(planted(5, shares=(0.7, 0.3))),
    "5 sd, .9/.1": Cell(planted(5, shares=(0.9, 0.1))),
    "5 sd, .5/.3/.2": Cell(planted(5, 3, shares=(0.5, 0.3, 0.2)), 3),
    "4 sd, K 3": Cell(planted(4, 3), 3, structure=0.95),
    "5 sd, K 3": Cell(planted(5, 3), 3),
    "6 sd, K 3": Cell(planted(6, 3), 3),
    "5 sd, K 4": Cell(planted(5, 4), 4),
    "6 sd, K 4": Cell(planted(6, 4), 4),
    "7 sd, K 4": Cell(planted(7, 4), 4),
}
SIZES = {  # nulls that were added later: the seed is their number, so others are unchanged
    "decaying spectrum, n 60": Cell(decaying, n=60),
    "decaying spectrum, n 1000": Cell(decaying, n=1000),
    "decaying spectrum, d 2": Cell(decaying, d=2),
    "decaying spectrum, d 30": Cell(decaying, d=30),
    "unequal covariances, d 2": Cell(unequal, d=2),
    "unequal covariances, d 30": Cell(unequal, d=30),
}
KINDS = {"nulls": NULLS, "shapes": SHAPES, "clusters": CLUSTERS, "sizes": SIZES}
NUMBERS = {  # data, their number of clusters, and the required share of correct numbers
    "1: gaussian": (gaussian, 1, 0.85),
    "1: unequal covariances": (unequal, 1, None),
    "1: t 3": (heavy, 1, None),
    "2: 4 sd": (planted(4), 2, None),
    "2: 5 sd": (planted(5), 2, 0.85),
    "2: 5 sd, t 5": (planted(5, nu=5), 2, None),
    "2: 5 sd, .9/.1": (planted(5, shares=(0.9, 0.1)), 2, None),
    "3: 4 sd": (planted(4, 3), 3, None),
    "3: 5 sd": (planted(5, 3), 3, 0.85),
    "3: 5 sd, .5/.3/.2": (planted(5, 3, shares=(0.5, 0.3, 0.2)), 3, None),
    "4: 5 sd": (planted(5, 4), 4, 0.8),
}
CERTAIN = {
    "2 sd": Cell(planted(2)),
    "2.5 sd": Cell(planted(2.5)),
    "3 sd": Cell(planted(3)),
    "3 sd, round": Cell(planted(3, mixed=False)),
    "4 sd": Cell(planted(4)),
    "3 sd, K 3": Cell(planted(3, 3), 3),
    "4 sd, K 3": Cell(planted(4, 3), 3),
    "3 sd, t 5": Cell(planted(3, nu=5)),
    "4 sd, t 5": Cell(planted(4, nu=5)),
    "4 sd, .85/.15": Cell(planted(4, shares=(0.85, 0.15))),
    "4 sd, n 90": Cell(planted(4), n=90),
    "3 sd, unequal covariances": Cell(planted(3, scales=(1, 1.5, 2.4))),
    "zeros and ones": Cell(traits, d=12),
}
ASSUMED = evidence.test(  # for clusters only, with given weights
    ConditionalMixture(2), np.arange(80.0)[:, None] + 100 * (np.arange(80) % 2)[:, None], n_splits=1
)
BINS = (0.6, 0.7, 0.8, 0.9, 0.99)  # of confidence


def make(draw: Callable, *seed: int, n: int = N, d: int = D) -> tuple[np.ndarray, Rows]:
    """Rows of one distribution, with the means of their known groups."""
    rng = np.random.default_rng([2027, *seed])
    rows = Rows(rng, rng.integers(GROUPS, size=n), np.zeros(n, int), d)
    return draw(rows) + 4 * rng.normal(size=(GROUPS, d))[rows.z], rows


def tests(chosen: argparse.Namespace) -> None:
    """Rates of both p-values."""
    table = []
    pooled: dict[str, list[float]] = {"structure": [], "gap": []}
    number = -1
    for kind, cells in KINDS.items():
        for name, cell in cells.items():
            number += 1
            if kind not in chosen.kinds or (chosen.only and name not in chosen.only):
                continue
            start = time.process_time()
            result = []
            for seed in range(chosen.sets):
                X, rows = make(cell.draw, number, seed, n=cell.n, d=cell.d)
                model = ConditionalMixture(cell.k, weights=chosen.weights)
                test = evidence.test(
                    model, X, known=rows.z, random_state=seed, n_init=chosen.n_init
                )
                # Without a p-value, as for too few samples of a known group, there is no rejection.
                result.append([1.0 if p is None else p for p in (test.p_structure_, test.p_gap_)])
            seconds = (time.process_time() - start) / chosen.sets
            for which, p in zip(pooled, zip(*result, strict=True), strict=True):
                rate = float(np.mean(np.array(p) <= LEVEL))
                least, bar = getattr(cell, which), ("", "")
                if kind in ("nulls", "sizes") or (kind == "shapes" and which == "gap"):
                    bar = verdict(rate, round(highest(chosen.sets, 3), 3))
                    pooled[which] += [q <= LEVEL for q in p]
                elif least is not None:
                    bar = verdict(rate, least, at_least=True)
                error = math.sqrt(max(rate * (1 - rate), LEVEL * (1 - LEVEL)) / chosen.sets)
                table.append((name, which, rate, error, float(np.median(p)), seconds, *bar))
                console.print(f"{name}, {which}: {rate:.3f} +- {error:.3f}, {seconds:.2f} s")
    for which, rejected in pooled.items():
        if rejected:
            rate = float(np.mean(rejected))
            bar = verdict(rate, round(highest(len(rejected), 2), 4))
            table.append(("all nulls", which, rate, 0.0, 0.0, 0.0, *bar))
    columns = "rows", "test", "rate of p <= .05", "standard error", "median p", "CPU s", "bar", ""
    show("Rejected", columns, table)


def highest(n: int, errors: float) -> float:
    """Rate of n tests at the level, plus a number of standard errors."""
    return LEVEL + errors * math.sqrt(LEVEL * (1 - LEVEL) / n)


def numbers(chosen: argparse.Namespace) -> None:
    """Shares of correct numbers of clusters."""
    table = []
    for number, (name, (draw, k, least)) in enumerate(NUMBERS.items()):
        if chosen.only and name not in chosen.only:
            continue
        start = time.process_time()
        result = Counter()
        for seed in range(chosen.sets):
            X, rows = make(draw, 1000 + number, seed)
            model = ConditionalMixture(weights=chosen.weights)
            answer = evidence.n_clusters(
                model, X, known=rows.z, random_state=seed, n_init=chosen.n_init
            )
            result[answer.n_clusters_] += 1
        seconds = (time.process_time() - start) / chosen.sets
        rate = result[k] / chosen.sets
        bar = ("", "") if least is None else verdict(rate, least, at_least=True)
        table.append((name, rate, str(dict(sorted(result.items()))), seconds, *bar))
        console.print(f"{name}: {rate:.2f}, {dict(result)}, {seconds:.2f} s")
    show("Number of clusters", ("rows", "right", "found", "CPU s", "bar", ""), table)


def certainty(chosen: argparse.Namespace) -> None:
    """Calibration error of the confidence, and of the memberships of one fit."""
    table, every = [], []
    for number, (name, cell) in enumerate(CERTAIN.items()):
        if chosen.only and name not in chosen.only:
            continue
        start = time.process_time()
        parts = []
        for seed in range(chosen.sets):
            X, rows = make(cell.draw, 2000 + number, seed, n=cell.n, d=cell.d)
            model = ConditionalMixture(cell.k, weights=chosen.weights, random_state=seed, n_init=24)
            model.fit(X, known=rows.z)
            sure = evidence.confidence(
                model, X, known=rows.z, evidence=ASSUMED, force=True, random_state=seed
            )
            counts = np.zeros((cell.k, cell.k))
            np.add.at(counts, (model.labels_, rows.sought), 1)
            names = linear_sum_assignment(counts, maximize=True)[1]
            right = names[model.labels_] == rows.sought
            parts.append(np.stack([sure.samples_, model.membership_.max(1), right]))
        own = np.concatenate(parts, axis=1)
        every.append(own)
        seconds = (time.process_time() - start) / chosen.sets
        line = error(own[0], own[2]), error(own[1], own[2]), *own.mean(1), seconds
        table.append((name, *map(float, line), *verdict(float(line[0]), 0.1)))
        console.print(f"{name}: {line[0]:.3f}, one fit {line[1]:.3f}, {seconds:.2f} s")
    own = np.concatenate(every, axis=1)
    line = error(own[0], own[2]), error(own[1], own[2]), *own.mean(1), 0.0
    table.append(("all", *map(float, line), *verdict(float(line[0]), 0.03)))
    columns = "rows", "error", "of one fit", "says", "one fit says", "right", "CPU s", "bar", ""
    show("Confidence", columns, table)


def error(said: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error, in bins."""
    place = np.digitize(said, BINS)
    return float(sum(abs((said - right)[place == b].sum()) for b in np.unique(place)) / place.size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two data sets of every kind")
    parser.add_argument("--sets", type=int, default=100, help="data sets of every kind")
    parser.add_argument("--only", metavar="NAME", nargs="+", help="kinds with these names")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--weights", default="uniform", help="of the clusters")
    parser.add_argument("--n-init", type=int, default=12, help="restarts of every fit")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--number", action="store_true", help="the number of clusters instead")
    what.add_argument("--confidence", action="store_true", help="confidence instead")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.sets = 2
    warnings.simplefilter("ignore")
    header(f"evidence, weights {chosen.weights}, {chosen.sets} sets")
    if chosen.number:
        numbers(chosen)
    elif chosen.confidence:
        certainty(chosen)
    else:
        tests(chosen)


if __name__ == "__main__":
    main()
