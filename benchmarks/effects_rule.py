"""The rule by which `ConditionalMixture` chooses group effects, on joined real tables.

Rows of two real tables stand side by side. Classes of the first table are known, and classes of the
second are sought. The shares of the sought classes differ between known groups: a Dirichlet
distribution draws them, with the concentrations in ``SHARES``. Small known groups are cells of a
k-d tree of the first table. No setting of the estimator was chosen on these tables.

Every table is fitted with subtracted group means, with joint effects, with shares by known group,
and with the default "auto". The second table of the output repeats the choice of "auto" with other
thresholds, from the gains in ``decisions_``. With ``--out``, scores are written at once, and tables
whose scores are in the file are not fitted again.

    python benchmarks/effects_rule.py --seeds 5 --out effects_rule.csv
"""

from __future__ import annotations

from common import console, show  # isort: skip  (pins BLAS before numpy)

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from realdata_pairs import standardised

from nrprob import ConditionalMixture
from nrprob.metrics import adjusted_rand_index

# Table and classes that are known, and table and classes that are sought.
JOINS = (
    ("iris", "species", "wine", "cultivar"),
    ("crabs", "species", "wine", "cultivar"),
    ("penguins", "species", "ecoli", "class"),
    ("user_knowledge", "UNS", "wine", "cultivar"),
    ("vertebral", "class3", "segmentation_210", "class"),
    ("iris", "species", "penguins", "species"),
    ("penguins", "sex", "iris", "species"),
    ("crabs", "sex", "ecoli", "class"),
)
SHARES = {"equal": np.inf, "some": 3.0, "very": 0.5}  # concentration of the shares
SMALL = (5, 10, 20, 40)  # largest size of small known groups; with 0 the classes are known
LEAST_CLASS, N_SAMPLES = 15, 240
FITS = {
    "subtracted": {"effects": "subtract"},
    "equal": {"effects": "random", "weights": "uniform"},
    "by_group": {"effects": "random", "weights": "by_group"},
    "auto": {},
}
DECISIONS = (
    "gain_equal", "gain_by_group", "margin", "shares_penalty", "entropy_subtracted",
    "entropy_by_group", "gain_over_common", "penalty_over_common",
)  # fmt: skip
FIELDS = ("pair", "shares", "size", "seed", "median", "chosen", *FITS, *DECISIONS)
FACTORS, FALLS = (0.5, 1.0, 1.5, 2.0, 3.0), (1.0, 0.5, 0.3, 0.2, 0.0)
CLEARER = 0.1  # fall of the entropy, over log K, that always suffices
SMALL_MEDIAN = 20  # "auto" never subtracts means of groups with a smaller median size


class Table(NamedTuple):
    """Rows (n, m), known groups (n,) and sought classes (n,)."""

    X: np.ndarray
    known: np.ndarray
    target: np.ndarray


class _Rows:
    """Rows of a real table by class; all rows are drawn before any is drawn again."""

    def __init__(self, name: str, labeling: str, rng: np.random.Generator):
        from nrprob.datasets import load

        data = load(name)
        labels = np.unique(data.labelings[labeling], return_inverse=True)[1]
        large = np.bincount(labels)[labels] >= LEAST_CLASS
        self.X = standardised(data.X)[large]
        self.labels = np.unique(labels[large], return_inverse=True)[1]
        self.n_classes, self.rng = self.labels.max() + 1, rng
        self.shares = np.bincount(self.labels) / len(self.labels)
        self.left: list[list[int]] = [[] for _ in range(self.n_classes)]

    def draw(self, c: int) -> int:
        """Index of a row of class ``c``."""
        if not self.left[c]:
            self.left[c] = self.rng.permutation(np.flatnonzero(self.labels == c)).tolist()
        return self.left[c].pop()


def join(pair: tuple[str, str, str, str], shares: str, size: int, seed: int) -> Table:
    """Rows of two tables side by side; see the module."""
    rng = np.random.default_rng([3011, JOINS.index(pair), [*SHARES].index(shares), size, seed])
    first, second = _Rows(*pair[:2], rng), _Rows(*pair[2:], rng)
    chosen = rng.permutation(len(first.X))[:N_SAMPLES]
    X, known = first.X[chosen], first.labels[chosen]
    if size:
        known = _cells(X, size)
    n_groups = known.max() + 1
    p = np.tile(second.shares, (n_groups, 1))
    if np.isfinite(SHARES[shares]):
        p = rng.dirichlet(SHARES[shares] * second.n_classes * second.shares, size=n_groups)
    target = (rng.random((len(known), 1)) > p[known].cumsum(1)).sum(1).clip(max=p.shape[1] - 1)
    more = second.X[[second.draw(c) for c in target]]
    return Table(standardised(np.hstack([X, more])), known, target)


def _cells(X: np.ndarray, size: int) -> np.ndarray:
    """Cells of a k-d tree with at most ``size`` samples, split at medians of principal axes."""
    labels, stack, n_cells = np.zeros(len(X), int), [np.arange(len(X))], 0
    while stack:
        rows = stack.pop()
        if len(rows) <= size:
            labels[rows], n_cells = n_cells, n_cells + 1
            continue
        centred = X[rows] - X[rows].mean(0)
        order = rows[np.argsort(centred @ np.linalg.svd(centred, full_matrices=False)[2][0])]
        stack += [order[: len(rows) // 2], order[len(rows) // 2 :]]
    return labels


def tables(seeds: int) -> Iterator[tuple[dict[str, object], tuple[str, str, str, str]]]:
    """Settings of all tables."""
    for seed in range(seeds):
        for pair in JOINS:
            for size in (0, *SMALL):
                for shares in SHARES if size == 0 else ("equal", "some"):
                    name = f"{pair[0]} > {pair[2]}"
                    yield {"pair": name, "shares": shares, "size": size, "seed": seed}, pair


def score(case: dict[str, object], pair: tuple[str, str, str, str]) -> dict[str, object]:
    """Adjusted Rand index of every fit of a table, and the gains behind the choice of "auto"."""
    table = join(pair, str(case["shares"]), int(str(case["size"])), int(str(case["seed"])))
    k, result = int(table.target.max() + 1), dict(case)
    for name, settings in FITS.items():
        model = ConditionalMixture(k, random_state=0, categorical=[], ordered=[], **settings)
        labels = model.fit(table.X, known=table.known).labels_
        result[name] = adjusted_rand_index(labels, table.target)
    result["median"] = float(np.median(np.bincount(table.known)))
    result |= {key: model.decisions_.get(key, np.nan) for key in DECISIONS}
    by_group = np.ptp(model.shares_, axis=0).max() > 1e-6
    joint = "by_group" if by_group else "equal"
    result["chosen"] = "subtracted" if model.effects_kind_ == "subtract" else joint
    return result


def choose(row: dict[str, str], factor: float, fall: float) -> str:
    """Choice of "auto" for groups that are not small, with other thresholds."""
    gain_equal, gain, margin, penalty, before, after, *common = (float(row[k]) for k in DECISIONS)
    clearer = before - after > CLEARER or after < (1 - fall) * before
    if gain > factor * margin + penalty and clearer and common[0] > common[1]:
        return "by_group"
    return "equal" if gain_equal > factor * margin else "subtracted"


def report(rows: list[dict[str, str]]) -> None:
    """Show mean scores by design, and mean scores under other thresholds."""
    designs = defaultdict(list)
    for row in rows:
        designs[row["size"], row["shares"]].append(row)
    lines = []
    for (size, shares), part in designs.items():
        means = [float(np.mean([float(row[name]) for row in part])) for name in FITS]
        best = [max(float(row[name]) for name in FITS if name != "auto") for row in part]
        loss = np.array(best) - [float(row["auto"]) for row in part]
        counts = [sum(row["chosen"] == name for row in part) for name in FITS if name != "auto"]
        lines.append(
            (size if size != "0" else "classes", shares, len(part), *means, float(loss.mean()),
             float(loss.max()), " / ".join(map(str, counts)))
        )  # fmt: skip
    columns = (
        "groups", "shares", "tables", *FITS, "below best", "worst", "chosen: subtracted / "
        "equal / by group",
    )  # fmt: skip
    show("Mean adjusted Rand index", columns, lines)
    large = [row for row in rows if float(row["median"]) >= SMALL_MEDIAN]
    if not large:
        return
    lines = [
        (factor, *(np.mean([float(r[choose(r, factor, c)]) for r in large]) for c in FALLS))
        for factor in FACTORS
    ]
    columns = ("margins", *(f"entropy falls by {100 * c:g} %" for c in FALLS))
    show("Mean adjusted Rand index by threshold, groups of 20 and more", columns, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two tables")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="CSV file of the scores")
    options = parser.parse_args()
    cases = [*tables(options.seeds)][: 2 if options.quick else None]
    rows: list[dict[str, str]] = []
    if options.out and options.out.exists():
        rows = [*csv.DictReader(options.out.open(newline=""))]
    keys = ("pair", "shares", "size", "seed")
    done = {tuple(row[key] for key in keys) for row in rows}
    for case, pair in cases:
        if tuple(str(case[key]) for key in keys) in done:
            continue
        row = {key: str(value) for key, value in score(case, pair).items()}
        rows.append(row)
        console.print(*(row[key] for key in FIELDS[:10]))
        if options.out:
            is_new = not options.out.exists()
            with options.out.open("a", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                if is_new:
                    writer.writeheader()
                writer.writerow(row)
    report(rows)


if __name__ == "__main__":
    main()
