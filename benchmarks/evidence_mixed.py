"""Level and power of `nrprob.evidence.test` on mixed, incomplete and grouped tables.

Tables have 240 samples in three known groups of 80, unless said otherwise. Null designs have one
component: numbers of one elliptical or skewed distribution per known group, and discrete columns
without clusters. Designs whose names begin with "planted" have two clusters. Every set is tested by
`ConditionalMixture(2)` with one split into five folds. The default of `nrprob.evidence.test` is the
mean over three splits, which is more conservative.

    python benchmarks/evidence_mixed.py --design mixed --sets 0:400 --jobs 16 --out results
    python benchmarks/evidence_mixed.py --task number --sets 0:50 --jobs 16 --out results
    python benchmarks/evidence_mixed.py --summary --out results

A line is appended to a CSV file as a set ends; sets that are there already are skipped.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from common import console, show  # isort: skip

import numpy as np
import pandas as pd

from nrprob import ConditionalMixture, evidence
from nrprob.evidence.low_density_gap import GapCount, combined_p_value
from nrprob.evidence.p_values import one_sided_p_value

LEVEL, MOST_REJECTIONS = 0.05, 28  # of 400
N_SPLITS, N_FOLDS, N_INIT = 1, 5, 12
FIT = {"n_init": 6, "max_iter": 100}  # of the fit whose form of effects the test takes over
FIELDS = (
    "design", "set", "p_structure", "p_gap", "gain", "null_model", "effects", "location", "seconds",
    "gains",
)  # fmt: skip
NUMBER_FIELDS = "design", "set", "n_clusters", "true", "seconds"


class Draw:
    """Random parts of a table of known groups of the sizes ``sizes``."""

    def __init__(self, seed: list[int], sizes: tuple[int, ...] = (80, 80, 80), k: int = 1):
        self.rng = np.random.default_rng(seed)
        self.known = np.repeat(np.arange(len(sizes)), sizes)
        self.n, self.n_groups = len(self.known), len(sizes)
        self.sought = self.rng.integers(k, size=self.n)

    def numbers(self, d: int = 3, apart: float = 0.0, skewed: bool = False) -> np.ndarray:
        """Correlated numbers about group means, with clusters ``apart`` standard deviations."""
        e = self.rng.normal(size=(self.n, d))
        if skewed:
            e = (self.rng.gamma(2.0, size=(self.n, d)) - 2) / np.sqrt(2)
        direction = np.linalg.qr(self.rng.normal(size=(d, d)))[0][0]
        e = e + apart * self.sought[:, None] * direction
        e = e @ (np.eye(d) + 0.5 * self.rng.normal(size=(d, d)))
        return e + 1.5 * self.rng.normal(size=(self.n_groups, d))[self.known]

    def category(self, n_values: int = 4, clusters: float = 0.0, groups: float = 0.7) -> np.ndarray:
        """Values whose log odds differ between clusters and between known groups."""
        k = self.sought.max() + 1
        log_p = 0.5 * self.rng.normal(size=n_values)
        log_p = log_p + groups * self.rng.normal(size=(self.n_groups, n_values))[self.known]
        log_p = log_p + clusters * self.rng.normal(size=(k, n_values))[self.sought]
        p = np.exp(log_p)
        p /= p.sum(1, keepdims=True)
        return (self.rng.random((self.n, 1)) > p.cumsum(1)).sum(1)

    def flag(self, share: float = 0.4, clusters: float = 0.0, groups: float = 0.5) -> np.ndarray:
        """Booleans whose log odds differ between clusters and between known groups."""
        log_odds = np.log(share / (1 - share)) + clusters * (2 * self.sought - 1)
        log_odds = log_odds + groups * self.rng.normal(size=self.n_groups)[self.known]
        return self.rng.random(self.n) < 1 / (1 + np.exp(-log_odds))

    def rating(self, clusters: float = 0.0) -> np.ndarray:
        """Ratings from 1 to 5."""
        latent = self.rng.normal(size=self.n) + clusters * self.sought
        latent = latent + 0.4 * self.rng.normal(size=self.n_groups)[self.known]
        return np.clip(np.round(latent + 3), 1, 5).astype(int)

    def count(self) -> np.ndarray:
        """Overdispersed counts, at most 9."""
        rate = 3 * self.rng.gamma(1.0, size=self.n)
        rate = rate * np.exp(0.3 * self.rng.normal(size=self.n_groups))[self.known]
        return np.minimum(self.rng.poisson(rate), 9)

    def irrelevant(self) -> dict[str, np.ndarray]:
        """Discrete columns of every kind, without dependence within known groups."""
        return {
            "flag1": self.flag(0.3), "flag2": self.flag(0.5),
            "category": np.array(list("pqrs"))[self.category()],
            "rating": self.rating(), "count": self.count(),
        }  # fmt: skip

    def frame(self, x: np.ndarray | None, **columns: np.ndarray) -> pd.DataFrame:
        """Table of numbers and discrete columns."""
        numbers = {} if x is None else {f"x{j}": column for j, column in enumerate(x.T)}
        return pd.DataFrame({**numbers, **columns})


def remove_cells(frame: pd.DataFrame, rng: np.random.Generator, share: float) -> pd.DataFrame:
    """Table with a share of all cells missing completely at random."""
    out = frame.astype({name: object for name in frame if frame[name].dtype.kind != "f"})
    return out.mask(rng.random(frame.shape) < share)


def numeric(draw: Draw) -> pd.DataFrame:
    return draw.frame(draw.numbers(4))


def mixed(draw: Draw) -> pd.DataFrame:
    return draw.frame(draw.numbers(), **draw.irrelevant())


def flag_number(draw: Draw) -> pd.DataFrame:
    """A flag that depends on a number, with a slope of 2.5."""
    frame = mixed(draw)
    x = frame["x0"] - frame["x0"].groupby(draw.known).transform("mean")
    odds = 2.5 * x / x.std()
    frame["flag1"] = draw.rng.random(draw.n) < 1 / (1 + np.exp(-odds))
    return frame


def two_flags(draw: Draw) -> pd.DataFrame:
    """Two flags that agree in 75 % of the samples."""
    frame = mixed(draw)
    frame["flag2"] = np.where(draw.rng.random(draw.n) < 0.75, frame["flag1"], ~frame["flag1"])
    return frame


def skewed(draw: Draw) -> pd.DataFrame:
    return draw.frame(draw.numbers(skewed=True), **draw.irrelevant())


def few_columns(draw: Draw) -> pd.DataFrame:
    columns = draw.irrelevant()
    return draw.frame(draw.numbers(), **{name: columns[name] for name in ("flag1", "category")})


def categories(draw: Draw) -> pd.DataFrame:
    """Categories alone."""
    return draw.frame(None, **{f"c{j}": np.array(list("pqrs"))[draw.category()] for j in range(6)})


def missing(draw: Draw) -> pd.DataFrame:
    return remove_cells(mixed(draw), draw.rng, 0.2)


def planted_mixed(draw: Draw, apart: float = 3.0) -> pd.DataFrame:
    """Clusters in numbers, a flag, a category and a rating."""
    return draw.frame(
        draw.numbers(apart=apart), flag1=draw.flag(0.4, 0.8), flag2=draw.flag(0.5),
        category=np.array(list("pqrs"))[draw.category(clusters=0.8)],
        rating=draw.rating(1.0), count=draw.count(),
    )  # fmt: skip


def planted_numbers(draw: Draw) -> pd.DataFrame:
    """Clusters 4 standard deviations apart in the numbers, with irrelevant columns."""
    return draw.frame(draw.numbers(apart=4.0), **draw.irrelevant())


def planted_numeric(draw: Draw) -> pd.DataFrame:
    return draw.frame(draw.numbers(4, apart=4.0))


def planted_small(draw: Draw) -> pd.DataFrame:
    columns = draw.irrelevant()
    return draw.frame(
        draw.numbers(apart=4.0), flag1=draw.flag(0.4, 0.8), category=columns["category"]
    )


def planted_categories(draw: Draw) -> pd.DataFrame:
    values = np.array(list("pqrs"))
    return draw.frame(None, **{f"c{j}": values[draw.category(clusters=1.2)] for j in range(6)})


def planted_turned(draw: Draw) -> pd.DataFrame:
    """Shares of the clusters that are turned round between the known groups."""
    share = np.array([0.2, 0.5, 0.8])[draw.known]
    draw.sought = (draw.rng.random(draw.n) < share).astype(int)
    return planted_mixed(draw, 3.5)


def planted_uneven(draw: Draw) -> pd.DataFrame:
    """A cluster with a tenth of the samples, 5 standard deviations apart in the numbers."""
    draw.sought = (draw.rng.random(draw.n) < 0.1).astype(int)
    return draw.frame(draw.numbers(apart=5.0), **draw.irrelevant())


def planted_missing(draw: Draw) -> pd.DataFrame:
    return remove_cells(planted_mixed(draw), draw.rng, 0.2)


SMALL = (5,) * 60
UNEQUAL = (120, 80, 40)
LARGE = (333, 333, 334)
RANDOM = {"effects": "random"}
BY_GROUP = {"effects": "random", "weights": "by_group"}
# Table, sizes of the known groups, settings of the estimator, number of clusters.
DESIGNS: dict[str, tuple[Callable[[Draw], pd.DataFrame], tuple[int, ...], dict, int]] = {
    "numeric": (numeric, (80, 80, 80), RANDOM, 1),
    "mixed": (mixed, (80, 80, 80), {}, 1),
    "flag-number": (flag_number, (80, 80, 80), {}, 1),
    "two-flags": (two_flags, (80, 80, 80), {}, 1),
    "skewed": (skewed, (80, 80, 80), {}, 1),
    "small-numeric": (numeric, SMALL, {}, 1),
    "small-mixed": (few_columns, SMALL, {}, 1),
    "unequal": (mixed, UNEQUAL, BY_GROUP, 1),
    "missing": (missing, (80, 80, 80), {}, 1),
    "categories": (categories, (80, 80, 80), {}, 1),
    "three-clusters": (mixed, (80, 80, 80), {"n_clusters": 3}, 1),
    "no-groups": (mixed, (240,), {}, 1),
    "mixed-1000": (mixed, LARGE, {}, 1),
    "skewed-1000": (skewed, LARGE, {}, 1),
    "planted-numeric": (planted_numeric, (80, 80, 80), RANDOM, 2),
    "planted-mixed": (planted_mixed, (80, 80, 80), {}, 2),
    "planted-numbers": (planted_numbers, (80, 80, 80), {}, 2),
    "planted-small": (planted_small, SMALL, {}, 2),
    "planted-turned": (planted_turned, (80, 80, 80), {}, 2),
    "planted-uneven": (planted_uneven, (80, 80, 80), {}, 2),
    "planted-missing": (planted_missing, (80, 80, 80), {}, 2),
    "planted-categories": (planted_categories, (80, 80, 80), {}, 2),
}


def make(name: str, number: int) -> tuple[pd.DataFrame, np.ndarray, dict, int]:
    """Table of a set, its known groups, settings of the estimator and the number of clusters."""
    table, sizes, settings, k = DESIGNS[name]
    draw = Draw([2031, *name.encode(), number], sizes, k)
    return table(draw), draw.known, settings, k


def test_set(name: str, number: int) -> dict[str, object]:
    """p-values of one set, whether or not the product shows them."""
    frame, known, settings, _ = make(name, number)
    start = time.process_time()
    model = ConditionalMixture(random_state=number, **FIT, **settings).fit(frame, known=known)
    result = evidence.test(
        model, frame, known=known, random_state=number, n_splits=N_SPLITS, n_folds=N_FOLDS,
        n_init=N_INIT,
    )  # fmt: skip
    n = len(result.distinct_)
    counts = [
        [GapCount(int(s), int(g), share) for s, g, share in split] for split in result.gap_counts_
    ]
    one = result.gain_[result.distinct_]
    gains = ";".join(f"{name}={gain:.4f}" for name, gain in result.gain_by_null_model_.items())
    return {
        "design": name, "set": number, "p_structure": one_sided_p_value(result.statistic_, n),
        "p_gap": combined_p_value(counts) if counts and counts[0] else "",
        "gain": one.mean(), "null_model": result.null_model_, "effects": model.effects_kind_,
        "location": model.location_ is not None, "seconds": time.process_time() - start,
        "gains": gains,
    }  # fmt: skip


def number_set(name: str, number: int) -> dict[str, object]:
    """Number of clusters that ``n_clusters="auto"`` takes."""
    frame, known, settings, k = make(name, number)
    start = time.process_time()
    settings = settings | {"n_clusters": "auto"}
    model = ConditionalMixture(random_state=number, **FIT, **settings).fit(frame, known=known)
    seconds = time.process_time() - start
    return {
        "design": name, "set": number, "n_clusters": model.number_.n_clusters_, "true": k,
        "seconds": seconds,
    }  # fmt: skip


def run_sets(chosen: argparse.Namespace) -> None:
    """Run the sets of one process, and append a line for each as it ends."""
    fields = FIELDS if chosen.task == "test" else NUMBER_FIELDS
    path = chosen.out / f"{chosen.task}_{chosen.worker}.csv"
    done = {(line["design"], int(line["set"])) for line in read_results(chosen.out, chosen.task)}
    # Workers begin with different designs, so that each compiles other programs. Designs take
    # turns, so that an interruption leaves as many sets of each.
    first = chosen.worker % len(chosen.design)
    designs = chosen.design[first:] + chosen.design[:first]
    own = range(chosen.sets[0] + chosen.worker, chosen.sets[1], chosen.jobs)
    mine = [(name, i) for i in own for name in designs if (name, i) not in done]
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields, restval="")
        if not path.stat().st_size:
            writer.writeheader()
        for name, i in mine:
            writer.writerow((test_set if chosen.task == "test" else number_set)(name, i))
            file.flush()


def read_results(folder: Path, task: str) -> list[dict[str, str]]:
    """Lines of all files of results."""
    lines = []
    for path in sorted(folder.glob(f"{task}_*.csv")):
        with path.open(newline="") as file:
            lines += [line for line in csv.DictReader(file) if line["design"] in DESIGNS]
    return lines


def summarise(folder: Path) -> None:
    """Show rates of both p-values, and numbers of clusters."""
    by_design = defaultdict(list)
    for line in read_results(folder, "test"):
        by_design[line["design"]].append(line)
    table = []
    for name in filter(by_design.get, DESIGNS):
        lines = by_design[name]
        p = np.array([float(line["p_structure"]) for line in lines])
        gaps = np.array([float(line["p_gap"]) for line in lines if line["p_gap"]])
        one = [float(dict(g.split("=") for g in line["gains"].split(";"))[ONE]) for line in lines]
        strongest = max(names := [line["null_model"] for line in lines], key=names.count)
        table.append(
            (
                name, len(lines), int((p <= LEVEL).sum()), float((p <= LEVEL).mean()),
                float(np.median(p)), int((gaps <= LEVEL).sum()), float(np.mean(one)),
                float(np.mean([float(line["gain"]) for line in lines])), strongest[:34],
                float(np.mean([float(line["seconds"]) for line in lines])),
            )
        )  # fmt: skip
    columns = (
        "design", "sets", "p <= .05", "rate", "median", "gap <= .05", "over 1", "gain",
        "strongest null model", "CPU s",
    )  # fmt: skip
    show("Significance", columns, table)
    by_design = defaultdict(list)
    for line in read_results(folder, "number"):
        by_design[line["design"]].append(line)
    table = []
    for name in filter(by_design.get, DESIGNS):
        lines = by_design[name]
        right = np.mean([line["n_clusters"] == line["true"] for line in lines])
        chosen = sorted(line["n_clusters"] for line in lines)
        counts = {k: chosen.count(k) for k in dict.fromkeys(chosen)}
        seconds = float(np.mean([float(line["seconds"]) for line in lines]))
        table.append((name, len(lines), float(right), str(counts), seconds))
    if table:
        show("Number of clusters", ("design", "sets", "right", "chosen", "CPU s"), table)


ONE = "one cluster of the same estimator"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("test", "number"), default="test")
    parser.add_argument(
        "--design",
        nargs="+",
        default=["nulls"],
        help=f"{', '.join(DESIGNS)}; nulls, large, planted, all",
    )
    parser.add_argument("--sets", default="0:4", help="first and last set, as A:B")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--summary", action="store_true", help="show the results alone")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.worker is None and not chosen.summary:
        environment = {
            "OMP_NUM_THREADS": "1",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
            "JAX_COMPILATION_CACHE_DIR": str((chosen.out / "compiled").resolve()),
        }
        workers = [
            subprocess.Popen(
                [sys.executable, *sys.argv, "--worker", str(i)], env=environment | os.environ
            )
            for i in range(chosen.jobs)
        ]
        for worker in workers:
            worker.wait()
    if chosen.worker is None:
        summarise(chosen.out)
        return
    groups = {
        "all": list(DESIGNS),
        "nulls": [n for n in DESIGNS if not n.startswith("planted") and not n.endswith("1000")],
        "large": [n for n in DESIGNS if n.endswith("1000")],
        "planted": [n for n in DESIGNS if n.startswith("planted")],
    }
    chosen.design = [n for name in chosen.design for n in groups.get(name, [name])]
    chosen.sets = tuple(map(int, chosen.sets.split(":")))
    warnings.simplefilter("ignore")
    run_sets(chosen)
    console.print(f"worker {chosen.worker} is done")


if __name__ == "__main__":
    main()
