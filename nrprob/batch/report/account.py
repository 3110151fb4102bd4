"""What ran, where and when, how long it took, and whether it ended well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from nrprob.batch.report.averages import OF, SETS
from nrprob.batch.report.results import Results, kinds

__all__ = ["Facts", "Timing", "facts", "timings"]


@dataclass(frozen=True)
class Timing:
    """What fits took, and whether they ended well.

    Attributes
    ----------
    method, setting : which fits
    n_fits : number of them
    mean, longest, total : seconds of a device
    n_programs, compile_seconds : programs that made them, and what those took to compile
    n_unconverged, n_warned : fits that did not converge, that gave warnings
    """

    method: str
    setting: str
    n_fits: int
    mean: float
    longest: float
    total: float
    n_programs: int
    compile_seconds: float
    n_unconverged: int
    n_warned: int

    @property
    def compile_seconds_each(self) -> float:
        """Mean over the programs, NaN where none is known."""
        return self.compile_seconds / self.n_programs if self.n_programs else float("nan")


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


def timings(results: Results) -> tuple[list[Timing], list[Timing]]:
    """What fits took, by method, and by method and setting."""
    done = results.frame[results.frame["done"]]
    methods = [_timing(str(m), "", fits) for m, fits in done.groupby("method", sort=False)]
    settings = [
        _timing(method, ", ".join(filter(None, [data, chosen])), fits[fits["done"]])
        for data, method, chosen, fits in kinds(results)
        if fits["done"].any()
    ]
    return methods, settings


def _timing(method: str, setting: str, fits: pd.DataFrame) -> Timing:
    seconds = fits[OF + "seconds"].to_numpy(float)
    return Timing(
        method,
        setting,
        len(fits),
        float(seconds.mean()),
        float(seconds.max()),
        float(seconds.sum()),
        *_compiled(fits),
        int(((fits["converged"] == 0) & fits["feasible"]).sum()),
        int((fits["warnings"].astype(str) != "").sum()),
    )


def _compiled(fits: pd.DataFrame) -> tuple[int, float]:
    """Number of programs that made fits, and the seconds that their compilation took.

    Every fit has the seconds of its program: the same time to the last digit is the same program.
    """
    programs = fits["compile_seconds"].astype(float).dropna().unique()
    return len(programs), float(programs.sum())


def facts(results: Results) -> Facts:
    """What ran, where and when."""
    frame = results.frame
    done = frame[frame["done"]]
    versions: dict[str, dict[str, int]] = {}
    for text, count in _counts(done["versions"], sort=False).items():
        for name, version in json.loads(text).items():
            seen = versions.setdefault(name, {})
            seen[version] = seen.get(version, 0) + count
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
        compile_seconds=_compiled(done)[1],
        started=(started.min(), started.max()) if len(done) else ("", ""),
        devices=_counts(done["device"]),
        dtypes=_counts(done["dtype"]),
        hosts=_counts(done["host"]),
        versions=versions,
        warnings=_counts(warned.explode().dropna()),
        infeasible=_counts(done.loc[~done["feasible"], "method"]),
    )


def _counts(values: pd.Series, sort: bool = True) -> dict[str, int]:
    return {str(value): int(count) for value, count in values.value_counts(sort=sort).items()}
