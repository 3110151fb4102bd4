"""Summary of a run: hosts, dates, durations, failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from nrprob.batch.report.averages import PREFIX, SETS
from nrprob.batch.report.results import Results

__all__ = ["RunInfo", "summarize_run"]


@dataclass(frozen=True)
class RunInfo:
    """Summary of a run; mappings go from texts to numbers of fits."""

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


def summarize_run(results: Results) -> RunInfo:
    """Summarize a run."""
    frame = results.frame
    done = frame[frame["done"]]
    versions = pd.DataFrame([json.loads(text) for text in done["versions"]])
    warned = done["warnings"].astype(str).map(lambda text: [*dict.fromkeys(text.splitlines())])
    started = done["started"].astype(str)
    return RunInfo(
        n_done=len(done),
        n_planned=len(frame),
        n_sets=len(done[SETS].drop_duplicates()),
        n_sets_planned=len(frame[SETS].drop_duplicates()),
        methods=results.model.titles,
        missing=_count_values(frame.loc[~frame["done"], "method"]),
        seconds=float(done.drop_duplicates("cell")[PREFIX + "seconds"].astype(float).sum()),
        compile_seconds=float(done["compile_seconds"].astype(float).drop_duplicates().sum()),
        started=(started.min(), started.max()) if len(done) else ("", ""),
        devices=_count_values(done["device"]),
        dtypes=_count_values(done["dtype"]),
        hosts=_count_values(done["host"]),
        versions={name: _count_values(column, sort=False) for name, column in versions.items()},
        warnings=_count_values(warned.explode().dropna()),
        infeasible=_count_values(done.loc[~done["feasible"], "method"]),
    )


def _count_values(values: pd.Series, sort: bool = True) -> dict[str, int]:
    return {str(value): int(count) for value, count in values.value_counts(sort=sort).items()}
