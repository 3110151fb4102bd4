"""All estimators that take known structure, on data with one known and one sought labeling.

Data are tables, images and pages as dense rows, and text as counts, from NRPROB_DATA; ``--fresh``
uses smaller pairs that need no download. The baselines are k-means, k-means of residuals (subtract
the means of the known groups, then k-means), and for counts k-means of residuals of log counts. No
method uses the sought labels; their number is given. With ``--out``, every fit is written
immediately, and fits in the file are not run again: delete the file to start again. Only one
process at a time may use this file.

The design of the two estimators of `recommend` was chosen by means over these tables and over
similar text, so these figures are optimistic. ``--ablations`` removes parts of these estimators.
"""

from __future__ import annotations

from common import console, header, show, verdict  # isort: skip  (pins BLAS before numpy)

import argparse
import csv
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from realdata_pairs import HOPELESS, TABULAR, Pair, fresh_pairs, residual_kmeans, tabular_pairs
from realdata_text import pairs as text_pairs
from residual_spectral import one_liner
from sklearn.base import BaseEstimator
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from nrprob import (
    ADFT,
    CAMI,
    CCIB,
    CMBC,
    COALA,
    IBSI,
    NACI,
    CondEns,
    ConditionalMixture,
    ConvEM,
    DecKMeans,
    Orthogonalization,
    ResidualSpectral,
    recommend,
)
from nrprob.exceptions import DataUnavailable

DENSE = ("columns", "components")
LOSS = 0.05  # NMI below the baseline from which a pair counts as lost
TOP = 2  # number of pairs with the largest gain that the second mean omits
PLAIN, ONE_LINER, OURS = "k-means", "one-liner", "recommend"
# Requirements for `recommend`.
LOSSES = 2
TABLES, WITHOUT_CRABS = 0.60, 0.55  # mean NMI
GAIN, KNOWN = 0.10, 0.05  # on text: gain over the baseline; maximum NMI with the known labels


class Method(NamedTuple):
    """Constructor of an estimator or of labels, and the forms of data that it supports."""

    make: Callable[[Pair, int], BaseEstimator | np.ndarray]
    forms: Sequence[str]


class Row(NamedTuple):
    """One fit, with its agreement with sought and known labels; NaN after an error."""

    data: str
    pair: str
    method: str
    seed: int
    nmi: float
    ari: float
    nmi_known: float
    ari_known: float
    seconds: float
    estimator: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self[:4]


def _kmeans(pair: Pair, seed: int, known: bool = True, damp: bool = False) -> np.ndarray:
    """The baseline; without known labels it is k-means of the same rows."""
    if not known:
        pair = pair._replace(known=np.zeros(len(pair.known), int))
    if pair.form == "counts":
        return one_liner(pair, damp, seed)
    return residual_kmeans(pair, seed)


def _estimator(kind: Any, **parameters: Any) -> Callable[[Pair, int], BaseEstimator]:
    return lambda pair, seed: kind(pair.n_clusters, random_state=seed, **parameters)


def _recommended(pair: Pair, seed: int) -> BaseEstimator:
    result = recommend(pair.X, known=pair.known, n_clusters=pair.n_clusters)
    return result.set_params(random_state=seed)


def _described(estimator: BaseEstimator) -> str:
    """All parameters, including defaults, which may change in the next version."""
    parameters = ", ".join(f"{k}={v!r}" for k, v in sorted(estimator.get_params().items()))
    return f"{type(estimator).__name__}({parameters})"


COUNTS = ("counts",)
BASELINES = {
    PLAIN: Method(partial(_kmeans, known=False), (*DENSE, *COUNTS)),
    ONE_LINER: Method(_kmeans, (*DENSE, *COUNTS)),
    "one-liner, damped": Method(partial(_kmeans, damp=True), COUNTS),
}
# Fast methods first, so that an interrupted run has the most important ones.
METHODS = BASELINES | {
    OURS: Method(_recommended, (*DENSE, *COUNTS)),
    "ConditionalMixture, gauss": Method(_estimator(ConditionalMixture, errors="gaussian"), DENSE),
    "ConditionalMixture, t": Method(_estimator(ConditionalMixture, errors="t"), DENSE),
    "ConditionalMixture, auto": Method(_estimator(ConditionalMixture, errors="auto"), DENSE),
    "ResidualSpectral": Method(_estimator(ResidualSpectral), COUNTS),
    "CondEns[k-means]": Method(_estimator(CondEns), (*DENSE, *COUNTS)),
    "CondEns, adjusted": Method(_estimator(CondEns, extension="adjusted"), DENSE),
    "NACI": Method(_estimator(NACI), DENSE),
    "NACI, wide windows": Method(_estimator(NACI, bandwidth_scale=4.0, eta=1.0), DENSE),
    "NACI, automatic": Method(_estimator(NACI, bandwidth="contrast", eta="auto"), DENSE),
    "COALA": Method(_estimator(COALA), DENSE),
    "Orthogonalization": Method(_estimator(Orthogonalization), DENSE),
    "Orthogonalization, subspace": Method(_estimator(Orthogonalization, variant="subspace"), DENSE),
    "ADFT": Method(_estimator(ADFT), DENSE),
    # Of their two clusterings, the one that is further from the known labels.
    "DecKMeans": Method(_estimator(DecKMeans), DENSE),
    "ConvEM": Method(_estimator(ConvEM), DENSE),
    "CAMI": Method(_estimator(CAMI), DENSE),
    "CCIB": Method(_estimator(CCIB), DENSE),
    # Columns above their means. The signs of principal components are arbitrary.
    "CMBC, binarised": Method(_estimator(CMBC, binarize=0.0), ("columns",)),
    "IBSI, gamma=10": Method(_estimator(IBSI, gamma=10.0), DENSE),
    # Annealing thousands of columns takes minutes a restart.
    "CCIB, n_init=1": Method(_estimator(CCIB, n_init=1), COUNTS),
    "IBSI, gamma=10, n_init=1": Method(_estimator(IBSI, gamma=10.0, n_init=1), COUNTS),
}
# Excluded from --fresh, which should take a minute or two, unless named.
SLOW = ("ConditionalMixture, auto", "IBSI, gamma=10", "CCIB, n_init=1", "IBSI, gamma=10, n_init=1")
_GAUSS = partial(_estimator, ConditionalMixture, errors="gaussian")
ABLATIONS = BASELINES | {
    "mixture, gauss": Method(_GAUSS(), DENSE),
    "spherical": Method(_GAUSS(covariance="spherical"), DENSE),
    "diagonal": Method(_GAUSS(covariance="diag"), DENSE),
    "plain metric only": Method(_GAUSS(whitening_exponents=(0.0,)), DENSE),
    "no aligned starts": Method(_GAUSS(aligned=False), DENSE),
    "no warm-up": Method(_GAUSS(warm_up=False), DENSE),
    "neither": Method(_GAUSS(aligned=False, warm_up=False), DENSE),
    "ridge 1": Method(_GAUSS(ridge=1.0), DENSE),
    "ridge 10": Method(_GAUSS(ridge=10.0), DENSE),
    "balanced": Method(_GAUSS(balance=np.inf), DENSE),
    "t errors": Method(_estimator(ConditionalMixture, errors="t"), DENSE),
    "auto errors": Method(_estimator(ConditionalMixture, errors="auto"), DENSE),
    "consensus": Method(_estimator(ResidualSpectral), COUNTS),
    "not damped": Method(_estimator(ResidualSpectral, damp="none"), COUNTS),
    "1 member": Method(_estimator(ResidualSpectral, members=1), COUNTS),
    "1 member, not damped": Method(_estimator(ResidualSpectral, members=1, damp="none"), COUNTS),
    "across 1.5, 20 alone": Method(
        _estimator(ResidualSpectral, members=[("across", 1.5, 20)]), COUNTS
    ),
    "16 members": Method(_estimator(ResidualSpectral, members=16), COUNTS),
    "members within only": Method(
        _estimator(
            ResidualSpectral,
            members=[("within", w, r) for w in (0.5, 1.0, 1.5, 2.0) for r in (10, 20)],
        ),
        COUNTS,
    ),
    "members across only": Method(
        _estimator(
            ResidualSpectral,
            members=[("across", w, r) for w in (0.5, 1.0, 1.5, 2.0) for r in (10, 20)],
        ),
        COUNTS,
    ),
}


def _tables(seed: int) -> Iterator[Pair]:
    return tabular_pairs((*TABULAR, *HOPELESS))


@cache
def _pairs(data: str, seed: int) -> list[Pair]:
    return list({"tables": _tables, "text": text_pairs, "fresh": fresh_pairs}[data](seed))


class Store:
    """Finished fits, and the file that stores them."""

    def __init__(self, path: Path | None):
        self.rows: dict[tuple[str, str, str, int], Row] = {}
        self._same: dict[tuple[str, str, int, str], Row] = {}
        self._file: TextIO | None = None
        if path is None:
            return
        if path.exists():
            with path.open(newline="") as file:
                for read in csv.DictReader(file):
                    # A last line may be incomplete after an interruption; failed fits are repeated.
                    whole = all(read.get(name) is not None for name in Row._fields)
                    if whole and read["nmi"] != "nan":
                        self._keep(_parsed(read))
        self._file = path.open("w", newline="")
        self._writer = csv.writer(self._file)
        self._writer.writerow(Row._fields)
        self._writer.writerows(self.rows.values())
        self._file.flush()

    def _keep(self, row: Row) -> None:
        self.rows[row.key] = row
        if row.estimator:
            self._same[row.data, row.pair, row.seed, row.estimator] = row

    def add(self, row: Row) -> None:
        self._keep(row)
        if self._file is not None:
            self._writer.writerow(row)
            self._file.flush()

    def same(self, data: str, pair: str, seed: int, estimator: str) -> Row | None:
        """A fit of an equal estimator under another name."""
        return self._same.get((data, pair, seed, estimator)) if estimator else None


def _parsed(read: dict[str, str]) -> Row:
    scores = (float(read[name]) for name in Row._fields[4:9])
    return Row(
        read["data"], read["pair"], read["method"], int(read["seed"]), *scores, read["estimator"]
    )


def run(store: Store, data: str, pair: Pair, name: str, method: Method, seed: int) -> None:
    """Fit and score, unless this is done."""
    if (data, pair.name, name, seed) in store.rows:
        return
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        labels = method.make(pair, seed)
        estimator = ""
        if isinstance(labels, BaseEstimator):
            estimator = _described(labels)
            done = store.same(data, pair.name, seed, estimator)
            if done is not None:
                store.add(done._replace(method=name))
                return
            try:
                labels = labels.fit(pair.X, known=pair.known).labels_
            except ValueError as error:
                console.print(f"{name} refuses {pair.name}: {error}")
                scores = [np.nan] * 4
                store.add(Row(data, pair.name, name, seed, *scores, np.nan, estimator))
                return
    seconds = time.perf_counter() - start
    nmi, ari = normalized_mutual_info_score, adjusted_rand_score
    scores = [score(truth, labels) for truth in (pair.target, pair.known) for score in (nmi, ari)]
    store.add(Row(data, pair.name, name, seed, *scores, seconds, estimator))


class Summary:
    """Scores of one form of data, by pair and method."""

    def __init__(self, data: str, rows: list[Row], methods: Sequence[str], pairs: Sequence[str]):
        self.data, self.pairs = data, pairs
        self.by: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            if not np.isnan(row.nmi):
                self.by.setdefault((row.pair, row.method), []).append(row)
        self.methods = [m for m in methods if any((p, m) in self.by for p in pairs)]
        hopeless = {pair.name for pair in tabular_pairs(HOPELESS)} if data == "tables" else set()
        self.counted = [p for p in pairs if p not in hopeless]

    def mean(self, pair: str, method: str, field: str = "nmi") -> float:
        return float(np.mean([getattr(row, field) for row in self.by[pair, method]]))

    def gains(self, method: str, pairs: Sequence[str]) -> dict[str, float]:
        """NMI above the baseline."""
        return {
            p: self.mean(p, method) - self.mean(p, ONE_LINER)
            for p in pairs
            if (p, method) in self.by and (p, ONE_LINER) in self.by
        }

    def largest(self) -> list[str]:
        """Pairs of the largest gain of the recommended method, or of the first other method."""
        others = [m for m in self.methods if m not in BASELINES]
        if not others or len(self.counted) <= TOP:
            return []
        gains = self.gains(OURS if OURS in others else others[0], self.counted)
        return sorted(gains, key=lambda p: -gains[p])[:TOP]

    def scores(self, field: str) -> list[list[str]]:
        """A row for every pair; mean and standard deviation over seeds."""
        table = []
        for pair in self.pairs:
            cells = [pair if pair in self.counted else f"{pair} (in no mean)"]
            result = {m: [getattr(r, field) for r in self.by.get((pair, m), [])]
                     for m in self.methods}  # fmt: skip
            best = max((np.mean(v) for v in result.values() if v), default=np.nan)
            for values in result.values():
                cell = f"{np.mean(values):.3f} ± {np.std(values):.3f}" if values else ""
                bold = values and round(float(np.mean(values)), 3) >= round(float(best), 3)
                cells.append(f"**{cell}**" if bold else cell)
            table.append(cells)
        return table

    def means(self) -> list[list[str]]:
        """A row for every method, over the pairs on which it was run."""
        left_out = self.largest()
        table = []
        for m in self.methods:
            done = [p for p in self.counted if (p, m) in self.by]
            if not done:
                continue
            rest = [p for p in done if p not in left_out]
            over = [[self.mean(p, m, f) for p in done]
                    for f in ("nmi", "ari", "nmi_known", "ari_known")]  # fmt: skip
            gains = self.gains(m, done)
            lost = sum(gain < -LOSS for gain in gains.values())
            rows = [row for p in done for row in self.by[p, m]]
            seeds = sorted({len(self.by[p, m]) for p in done})
            table.append([
                m,
                f"{len(done)} of {len(self.counted)}",
                "-".join(str(s) for s in {seeds[0]: 0, seeds[-1]: 0}),
                f"{np.mean(over[0]):.3f}",
                f"{np.mean([self.mean(p, m) for p in rest]):.3f}" if rest else "",
                f"{np.mean(list(gains.values())):+.3f}" if gains else "",
                *(f"{np.mean(values):.3f}" for values in over[1:]),
                str(lost) if gains else "",
                f"{np.median([row.seconds for row in rows]):.2g}",
            ])  # fmt: skip
        return table

    def show(self) -> None:
        left_out = self.largest()
        # Printed without wrapping, so that tables can be pasted.
        print(f"\n### {self.data}: NMI with the labels sought, mean ± deviation over seeds\n")
        _markdown(["known > sought", *self.methods], self.scores("nmi"))
        print(f"\n### {self.data}: adjusted Rand index with the labels sought\n")
        _markdown(["known > sought", *self.methods], self.scores("ari"))
        print(f"\n### {self.data}: means over pairs\n")
        _markdown(
            ["", "pairs", "seeds", "NMI", "NMI without", "gain", "ARI", "NMI to known",
             "ARI to known", "lost", "s"],
            self.means(),
        )  # fmt: skip
        print(
            f"\nwithout: {' and '.join(left_out) or 'none'}. gain: mean NMI above the one-liner on "
            f"the same pairs. lost: pairs more than {LOSS} below it. s: median seconds of a fit; "
            "the first of a shape compiles.\n"
        )

    def bars(self) -> list[tuple]:
        """Requirements for `recommend`, if it and the baseline were run on all pairs."""
        gains = list(self.gains(OURS, self.counted).values())
        if self.data not in ("tables", "text") or len(gains) < len(self.counted):
            return []
        result = {p: self.mean(p, OURS) for p in self.counted}
        lost = sum(gain < -LOSS for gain in gains)
        rows: list[tuple] = []
        if self.data == "tables":
            rest = [v for p, v in result.items() if not p.startswith("crabs")]
            for what, values, bar in (
                ("mean NMI", list(result.values()), TABLES),
                ("without crabs", rest, WITHOUT_CRABS),
            ):
                rows.append((what, np.mean(values), *verdict(np.mean(values), bar, at_least=True)))
        else:
            to_known = np.mean([self.mean(p, OURS, "nmi_known") for p in self.counted])
            rows.append(("gain", np.mean(gains), *verdict(np.mean(gains), GAIN, at_least=True)))
            rows.append(("NMI to known", to_known, *verdict(to_known, KNOWN)))
        return [*rows, ("pairs lost", lost, *verdict(lost, LOSSES))]


def _markdown(columns: Sequence[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * (len(columns) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="small pairs that every machine can make, without the slow methods",
    )
    parser.add_argument("--ablations", action="store_true", help="parts of what is recommended")
    parser.add_argument("--seeds", type=int, help="5 unless told; 2 with --fresh")
    parser.add_argument("--only", metavar="NAME", help="pairs whose name has this in it")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="in full, or how it begins")
    parser.add_argument("--out", type=Path, metavar="CSV", help="write fits, and go on from them")
    parser.add_argument("--quick", action="store_true", help="smoke run: fresh tables, one seed")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.fresh, chosen.seeds, chosen.only = True, 1, chosen.only or "wine"
    if chosen.seeds is None:
        chosen.seeds = 2 if chosen.fresh else 5
    if chosen.seeds < 1:
        parser.error(f"--seeds must be at least 1; got {chosen.seeds}")
    known = ABLATIONS if chosen.ablations else METHODS
    for name in chosen.methods or ():
        if not any(m.startswith(name) for m in known):
            parser.error(f"no method begins with {name!r}; there are {'; '.join(known)}")
    return chosen


def main() -> None:
    chosen = options()
    header("Known labels, sought labels")
    methods = {
        name: method
        for name, method in (ABLATIONS if chosen.ablations else METHODS).items()
        if any(name.startswith(m) for m in chosen.methods or [""])
        and (chosen.methods or not chosen.fresh or name not in SLOW)
    }
    wanted = chosen.only or ""
    sets = []
    for data in ("fresh",) if chosen.fresh else ("tables", "text"):
        try:
            names = [pair.name for pair in _pairs(data, 0) if wanted in pair.name]
        except DataUnavailable as error:
            where = os.environ.get("NRPROB_DATA")
            console.print(f"{data} skipped (NRPROB_DATA={where!r}; --fresh needs none): {error}")
            continue
        sets.append((data, names))
    if not any(names for _, names in sets):
        if sets:
            console.print(f"nothing to run: no pair has {wanted!r} in its name")
        return
    store = Store(chosen.out)
    for name, method in methods.items():
        for data, names in sets:
            for seed in range(chosen.seeds):
                for pair in _pairs(data, seed):
                    if pair.name in names and pair.form in method.forms:
                        run(store, data, pair, name, method, seed)
    for data, names in sets:
        rows = [r for r in store.rows.values() if r.data == data and r.seed < chosen.seeds]
        if not names:
            continue
        summary = Summary(data, rows, list(methods), names)
        summary.show()
        # Thresholds are for all pairs.
        if OURS in methods and not wanted and summary.bars():
            show(f"{OURS}, {data}", ("", "found", "bar", ""), summary.bars())


if __name__ == "__main__":
    main()
