"""`ConditionalMixture` on mixed tables, with missing values and unequal shares, and its rivals.

Rivals are the same estimator on imputed indicators with subtracted group means, k-means of
residuals, k-prototypes and StepMix (packages `kmodes` and `stepmix`, left out where they are not
installed). The score is NMI with the planted clusters where designs have equal shares, and the
adjusted Rand index where Bayes' rule is known. ``--only`` selects sections; with ``--out`` every
score is written at once, and scores in the file are not computed again. ``--jobs`` processes share
the tables.
"""

from __future__ import annotations

from common import console, header, show, verdict  # isort: skip  (pins BLAS before numpy)

import argparse
import csv
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from realdata_pairs import residual_kmeans, tabular_pairs
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from table_designs import (
    MIXED,
    SimulatedTable,
    flag_case,
    lone_cluster,
    mixed_table,
    shares_table,
    subjects,
)

from nrprob import ConditionalMixture
from nrprob.exceptions import DataUnavailable

OURS, PIPELINE, NOT_KNOWN = "ours", "indicators", "without known"
KMEANS, PROTOTYPES, STEPMIX, BAYES = "k-means", "k-prototypes", "StepMix", "Bayes"
METHODS = (OURS, PIPELINE, NOT_KNOWN, KMEANS, PROTOTYPES, STEPMIX, BAYES)
SECTIONS = ("flag", "mixed", "shares", "fields", "penguins", "pairs")
SEEDS = 20
FLAG_CLUSTERS, FLAG_ITSELF = 0.95, 0.01  # NMI
LOSS = 0.03  # allowed below the better rival, plus two standard errors
BELOW_REFERENCE = 0.05
BELOW_BAYES, FIELD_BELOW_BAYES, BELOW_NOT_KNOWN = 0.05, 0.03, 0.02  # adjusted Rand index
PENGUINS = {("sex", "species"): 0.95, ("species", "sex"): 0.5}  # NMI
PAIR_LOSS = 0.02  # NMI


class Task(NamedTuple):
    """A table and the method that is run on it."""

    section: str
    design: str
    seed: int
    method: str


# Methods


def cluster_conditional(table: SimulatedTable, seed: int, known: bool = True) -> np.ndarray:
    """Cluster the table as it is."""
    model = ConditionalMixture(table.n_clusters, random_state=seed)
    return model.fit(table.frame, known=table.known if known else None).labels_


def cluster_indicators(table: SimulatedTable, seed: int) -> np.ndarray:
    """Cluster imputed numbers and indicators, with subtracted means of the known groups."""
    x = _indicators(table.frame)
    model = ConditionalMixture(
        table.n_clusters, effects="subtract", categorical=[], ordered=[], random_state=seed
    )
    return model.fit(x, known=table.known).labels_


def cluster_kmeans(table: SimulatedTable, seed: int) -> np.ndarray:
    """Run k-means on residuals; numbers have variance 1, and indicators are as they are."""
    from sklearn.cluster import KMeans

    x = _indicators(table.frame)
    residual = x - pd.DataFrame(x).groupby(table.known).transform("mean").to_numpy()
    is_number = np.array([np.unique(column).size > 2 for column in x.T])
    residual[:, is_number] /= np.maximum(residual[:, is_number].std(0), 1e-12)
    return KMeans(table.n_clusters, n_init=10, random_state=seed).fit_predict(residual)


def cluster_prototypes(table: SimulatedTable, seed: int) -> np.ndarray | None:
    """Run k-prototypes on numbers about their group means, and categories."""
    try:
        from kmodes.kmodes import KModes
        from kmodes.kprototypes import KPrototypes
    except ImportError:
        return None
    residual, codes = _residuals_and_codes(table)
    residual, codes = np.nan_to_num(residual), np.maximum(codes, 0)
    if residual.shape[1] == 0:
        return KModes(table.n_clusters, n_init=10, random_state=seed).fit_predict(codes)
    if codes.shape[1] == 0:
        return None
    values = np.concatenate([residual.astype(object), codes.astype(object)], axis=1)
    categorical = list(range(residual.shape[1], values.shape[1]))
    model = KPrototypes(table.n_clusters, n_init=10, random_state=seed)
    return model.fit_predict(values, categorical=categorical)


def cluster_stepmix(table: SimulatedTable, seed: int) -> np.ndarray | None:
    """Run StepMix, normal and categorical, on numbers about their group means."""
    try:
        from stepmix import StepMix
        from stepmix.utils import get_mixed_descriptor
    except ImportError:
        return None
    residual, codes = _residuals_and_codes(table)
    frame = pd.DataFrame(residual).add_prefix("number")
    names = {}
    if frame.shape[1]:
        names["continuous_nan"] = list(frame)
    categories = pd.DataFrame(np.where(codes < 0, np.nan, codes)).add_prefix("category")
    if categories.shape[1]:
        names["categorical_nan"] = list(categories)
    data, descriptor = get_mixed_descriptor(pd.concat([frame, categories], axis=1), **names)
    model = StepMix(
        table.n_clusters, measurement=descriptor, n_init=10, random_state=seed, progress_bar=0
    )
    return model.fit(data).predict(data)


def _indicators(frame: pd.DataFrame) -> np.ndarray:
    """Numbers (n, m) without missing values: means for numbers, indicators of all categories."""
    is_number = [_is_numeric(frame[name]) for name in frame]
    numbers = frame.loc[:, is_number].astype(float)
    categories = frame.loc[:, [not flag for flag in is_number]]
    parts = [numbers.fillna(numbers.mean()).to_numpy()]
    for name in categories:
        indicators = pd.get_dummies(categories[name], dtype=float).to_numpy()
        parts.append(indicators if indicators.shape[1] > 2 else indicators[:, 1:])
    return np.hstack(parts)


def _residuals_and_codes(table: SimulatedTable) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, d) about their group means, with variance 1, and codes of the other columns."""
    numeric = [name for name in table.frame if _is_numeric(table.frame[name])]
    x = table.frame[numeric].astype(float)
    residual = x - x.groupby(table.known).transform("mean")
    discrete = [pd.factorize(table.frame[name])[0] for name in table.frame if name not in numeric]
    codes = np.array(discrete, dtype=int).reshape(len(discrete), len(x)).T
    return (residual / residual.std()).to_numpy(), codes


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


RUN: dict[str, Callable[[SimulatedTable, int], np.ndarray | None]] = {
    OURS: cluster_conditional,
    PIPELINE: cluster_indicators,
    NOT_KNOWN: partial(cluster_conditional, known=False),
    KMEANS: cluster_kmeans,
    PROTOTYPES: cluster_prototypes,
    STEPMIX: cluster_stepmix,
    BAYES: lambda table, _: table.bayes,
}


# Tables


def penguins(known: str, target: str) -> SimulatedTable:
    """The four standardised measurements of penguins, with island and year as categories."""
    from nrprob.datasets import load

    data = load("penguins")
    frame = pd.DataFrame(data.X, columns=data.feature_names)
    frame = (frame - frame.mean()) / frame.std()  # of units as different as grams and millimetres
    frame["island"] = np.asarray(data.labelings["island"])
    frame["year"] = np.asarray(data.labelings["year"]).astype(int)
    clusters = np.unique(data.labelings[target], return_inverse=True)[1]
    return SimulatedTable(frame, data.labelings[known], clusters, int(clusters.max()) + 1)


def designs(section: str) -> dict[str, Callable[[int], SimulatedTable]]:
    """Tables of a section by name; each takes a seed."""
    if section == "flag":
        return {"complete": flag_case, "20 % missing": partial(flag_case, missing=0.2)}
    if section == "mixed":
        return {name: partial(mixed_table, design) for name, design in MIXED.items()}
    if section == "shares":
        return {
            f"{columns}, {shares}": partial(shares_table, columns=columns, shares=shares)
            for columns in ("numbers", "categories", "both")
            for shares in ("equal", "only", "turned", "random")
        }
    if section == "fields":
        return {"lone cluster": lone_cluster, "subjects": subjects}
    if section == "penguins":
        return {
            f"{known} > {target}": lambda _, known=known, target=target: penguins(known, target)
            for known, target in PENGUINS
        }
    raise ValueError(f"section must be one of {SECTIONS[:-1]}; got {section!r}")


def methods(section: str) -> tuple[str, ...]:
    """Methods that are run on the tables of a section."""
    mixed = (OURS, PIPELINE, KMEANS, PROTOTYPES, STEPMIX)
    if section == "shares":
        return (OURS, PIPELINE, KMEANS, BAYES)
    if section == "fields":
        return (OURS, PIPELINE, NOT_KNOWN, KMEANS, BAYES)
    return mixed


def score_task(task: Task) -> tuple[Task, float, float]:
    """NMI (or adjusted Rand index) with the clusters, and NMI with the flag where there is one."""
    warnings.simplefilter("ignore")
    table = designs(task.section)[task.design](task.seed)
    labels = RUN[task.method](table, task.seed)
    if labels is None:
        return task, np.nan, np.nan
    has_bayes = table.bayes is not None
    score = adjusted_rand_score if has_bayes else normalized_mutual_info_score
    flag = np.nan
    if task.section == "flag":
        values = pd.factorize(table.frame["flag"])[0]
        flag = normalized_mutual_info_score(values[values >= 0], labels[values >= 0])
    return task, float(score(table.clusters, labels)), float(flag)


# Results


class Store:
    """Scores that are done, and the file that holds them."""

    def __init__(self, path: Path | None):
        self.scores: dict[Task, tuple[float, float]] = {}
        self.path = path
        if path is not None and path.exists():
            with path.open(newline="") as file:
                for section, design, seed, method, score, flag in csv.reader(file):
                    task = Task(section, design, int(seed), method)
                    self.scores[task] = float(score), float(flag)

    def add(self, task: Task, score: float, flag: float) -> None:
        """Keep a score, and append it to the file."""
        self.scores[task] = score, flag
        if self.path is not None:
            with self.path.open("a", newline="") as file:
                csv.writer(file).writerow([*task, score, flag])

    def values(self, section: str, design: str, method: str, entry: int = 0) -> np.ndarray:
        """Scores of all seeds, in their order."""
        selected = [
            (task.seed, value[entry])
            for task, value in self.scores.items()
            if task[:2] == (section, design) and task.method == method
        ]
        return np.array([value for _, value in sorted(selected)])


def run(store: Store, sections: list[str], seeds: range, jobs: int) -> None:
    """Compute the scores that the store lacks."""
    tasks = [
        Task(section, design, seed, method)
        for section in sections
        if section != "pairs"
        for design in designs(section)
        for method in methods(section)
        for seed in (seeds[:2] if section == "penguins" else seeds)
    ]
    tasks = [task for task in tasks if task not in store.scores]
    if jobs == 1:
        for task in tasks:
            store.add(*score_task(task))
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(score_task, task) for task in tasks]):
            store.add(*future.result())


def report(store: Store, section: str) -> None:
    """Print the means of a section, and whether they reach their bars."""
    names = methods(section)
    rows = []
    for design in designs(section):
        scores = {name: store.values(section, design, name) for name in names}
        row = [design, *(_mean(values) for values in scores.values())]
        rows.append([*row, *judge(store, section, design, scores)])
    n = max(len(store.values(section, design, OURS)) for design in designs(section))
    show(f"{section}, means over {n} seeds", ["table", *names, "bar", ""], rows)


def judge(
    store: Store, section: str, design: str, scores: dict[str, np.ndarray]
) -> tuple[str, str]:
    """Return the bar of a design, and whether our scores reach it."""
    ours = scores[OURS].mean()
    if section == "flag":
        flag = store.values(section, design, OURS, 1).mean()
        bar, met = verdict(ours, FLAG_CLUSTERS, at_least=True)
        if design != "complete":
            return f"flag {flag:.3f}", ""
        return f"{bar}, flag {flag:.3f}", met if flag <= FLAG_ITSELF else "MISSED"
    if section == "mixed":
        rivals = [scores[name] for name in (PIPELINE, STEPMIX) if not np.isnan(scores[name]).any()]
        best = max(rivals, key=np.mean)
        difference = scores[OURS] - best
        error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
        bar = max(best.mean() - LOSS - 2 * error, MIXED[design].reference - BELOW_REFERENCE)
        return verdict(ours, round(float(bar), 3), at_least=True)
    if section == "penguins":
        known, target = design.split(" > ")
        return verdict(ours, PENGUINS[known, target], at_least=True)
    loss = FIELD_BELOW_BAYES if design == "lone cluster" else BELOW_BAYES
    bar = scores[BAYES].mean() - loss
    if design == "subjects":
        bar = scores[NOT_KNOWN].mean() - BELOW_NOT_KNOWN
    return verdict(ours, round(float(bar), 3), at_least=True)


def _mean(values: np.ndarray) -> str:
    return "-" if np.isnan(values).any() or not len(values) else f"{values.mean():.3f}"


def compare_pairs(seeds: range) -> None:
    """NMI on pairs of labelings of real tables, and of two simpler fits."""
    rows, gains = [], []
    for pair in tabular_pairs():
        scores = np.array(
            [
                [normalized_mutual_info_score(pair.target, labels) for labels in labelings]
                for labelings in (_pair_labels(pair, seed) for seed in seeds)
            ]
        ).mean(0)
        gains.append(scores[0] - scores[1])
        bar, met = verdict(gains[-1], -PAIR_LOSS, at_least=True)
        rows.append([pair.name, *(f"{score:.3f}" for score in scores), bar, met])
    show("pairs of labelings", ["known > sought", OURS, "subtract", KMEANS, "gain", ""], rows)
    bar, met = verdict(float(np.mean(gains)), 0.0, at_least=True)
    console.print(f"mean gain over subtracted means {np.mean(gains):+.4f}; {bar}: {met}")


def _pair_labels(pair, seed: int) -> Iterator[np.ndarray]:
    warnings.simplefilter("ignore")
    for effects in ("auto", "subtract"):
        model = ConditionalMixture(pair.n_clusters, effects=effects, random_state=seed)
        yield model.fit(pair.X, known=pair.known).labels_
    yield residual_kmeans(pair, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds of the first two designs")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="file of scores, to go on after a break")
    options = parser.parse_args()
    seeds = range(options.first, options.first + (2 if options.quick else options.seeds))
    sections = ["flag", "fields"] if options.quick else options.only
    header("ConditionalMixture on mixed tables")
    store = Store(options.out)
    for section in sections:
        try:
            if section == "pairs":
                compare_pairs(seeds[:2])
                continue
            run(store, [section], seeds, options.jobs)
            report(store, section)
        except DataUnavailable as error:
            console.print(f"{section}: {error}")


if __name__ == "__main__":
    main()
