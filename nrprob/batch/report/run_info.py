"""Summary of a run: hosts, dates, durations, failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from nrprob.batch.report.averages import OF, SETS
from nrprob.batch.report.results import Results, kinds

__all__ = ["Facts", "facts", "timings"]


@dataclass(frozen=True)
class Facts:
    """What ran, where and when; texts go with the number of fits they hold for."""

    n_done: int
    n_planned: int
    n_sets: int
    n_sets_planned: int
    methods: list[str]
    missing: Mapping[str, int]
    seconds: float
    compile_seconds: float
    started: tuple[str, str]
    devices: Mapping[str, int]
    dtypes: Mapping[str, int]
    hosts: Mapping[str, int]
    versions: Mapping[str, Mapping[str, int]]
    warnings: Mapping[str, int]
    infeasible: Mapping[str, int]


def timings(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What fits took, and whether they ended well: by method, and by method and setting.

    Returns
    -------
    tuple of DataFrame
        A row each, with ``method`` and ``setting``; ``n_fits``; ``mean``, ``longest`` and ``total``
        seconds of a device; ``n_programs`` that made them, and ``compile_seconds``, the mean that
        one of these took, NaN where none is known; ``n_unconverged`` and ``n_warned`` fits.
    """
    frame = results.frame.assign(setting="")
    for data, _, chosen, fits in kinds(results):
        frame.loc[fits.index, "setting"] = ", ".join(filter(None, [data, chosen]))
    done = frame[frame["done"]]
    done = done.assign(
        unconverged=(done["converged"] == 0) & done["feasible"],
        warned=done["warnings"].astype(str) != "",
    )

    def timed(by: list[str]) -> pd.DataFrame:
        seconds = OF + "seconds"
        return done.groupby(by, sort=False, as_index=False).agg(
            n_fits=(seconds, "size"),
            mean=(seconds, "mean"),
            longest=(seconds, "max"),
            total=(seconds, "sum"),
            # Every fit has the seconds of its program: the same to the last digit is the same one.
            n_programs=("compile_seconds", "nunique"),
            compile_seconds=("compile_seconds", lambda values: values.drop_duplicates().mean()),
            n_unconverged=("unconverged", "sum"),
            n_warned=("warned", "sum"),
        )

    return timed(["method"]), timed(["case", "method", "variant", "setting"])


def facts(results: Results) -> Facts:
    """What ran, where and when."""
    frame = results.frame
    done = frame[frame["done"]]
    versions = pd.DataFrame([json.loads(text) for text in done["versions"]])
    warned = done["warnings"].astype(str).map(lambda text: [*dict.fromkeys(text.splitlines())])
    started = done["started"].astype(str)
    return Facts(
        n_done=len(done),
        n_planned=len(frame),
        n_sets=len(done[SETS].drop_duplicates()),
        n_sets_planned=len(frame[SETS].drop_duplicates()),
        methods=results.model.titles,
        missing=_counts(frame.loc[~frame["done"], "method"]),
        seconds=float(done.drop_duplicates("cell")[OF + "seconds"].astype(float).sum()),
        compile_seconds=float(done["compile_seconds"].astype(float).drop_duplicates().sum()),
        started=(started.min(), started.max()) if len(done) else ("", ""),
        devices=_counts(done["device"]),
        dtypes=_counts(done["dtype"]),
        hosts=_counts(done["host"]),
        versions={name: _counts(result, sort=False) for name, result in versions.items()},
        warnings=_counts(warned.explode().dropna()),
        infeasible=_counts(done.loc[~done["feasible"], "method"]),
    )


def _counts(values: pd.Series, sort: bool = True) -> dict[str, int]:
    return {str(value): int(count) for value, count in values.value_counts(sort=sort).items()}
