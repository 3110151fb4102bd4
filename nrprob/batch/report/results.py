"""Planned fits and their measures as one data frame, and their performance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nrprob.batch.parameters import describe, look_up, varying
from nrprob.batch.plan import Experiment, Plan, matches
from nrprob.batch.report.averages import PREFIX, Value, summarize
from nrprob.batch.schema import ModelFile

if TYPE_CHECKING:
    import xarray

__all__ = ["Performance", "Results", "collect_results", "iterate_settings", "measure_performance"]

_BUILT_IN = {"n_clusters": "n_clusters_found", "objective": "objective", "seconds": "seconds"}
_CIRCUMSTANCES = (
    "compile_seconds", "converged", "warnings", "device", "dtype", "host", "started", "versions"
)  # fmt: skip


@dataclass(frozen=True)
class Results:
    """All planned fits of a model, finished or not.

    ``frame`` has a row per cell of the plan, in its order: ``cell``, ``method``, ``case``,
    ``repeat``, ``run``, ``variant`` (`Experiment.variant`), ``done``, ``feasible``, and all
    measures.
    """

    model: ModelFile
    cells: Sequence[Experiment]
    frame: pd.DataFrame
    measures: tuple[str, ...]

    @property
    def comparable(self) -> list[str]:
        """Measures that are comparable between all methods, which objectives are not."""
        if len({cell.name for cell in self.cells}) == 1:
            return [*self.measures]
        objectives = {n for n, m in self.model.measures.items() if m.attribute == "objective_"}
        return [name for name in self.measures if name not in {*objectives, "objective"}]

    def filter_fits(self, where: Mapping[str, Any]) -> pd.DataFrame:
        """Fits with these values of their parameters."""
        return self.frame[[matches(cell, where) for cell in self.cells]]


def collect_results(dataset: xarray.Dataset, plan: Plan) -> Results:
    """Join the results of `nrprob.batch.load` with their plan."""
    model, cells = plan.model, plan.cells
    columns = ["cell", "method", "case", "repeat", "run", "variant"]
    frame = pd.DataFrame(
        [(c.id, c.method, c.case, c.repeat, c.run, c.variant) for c in cells], columns=columns
    )
    measures = [*model.measures]
    built_in = [*_BUILT_IN] if model.constraints is None else [*_BUILT_IN, "infeasible"]
    if dataset.sizes.get("cell"):
        measures = [str(name) for name in dataset["measure"].values]
        result = pd.DataFrame(
            dataset["score"].values,
            index=dataset["cell"].values.astype(str),
            columns=[PREFIX + name for name in measures],
        )
        for name, variable in _BUILT_IN.items():
            result[PREFIX + name] = dataset[variable].values
        for name in _CIRCUMSTANCES:
            result[name] = dataset[name].values
        if "refusal" in dataset:
            refused = dataset["refusal"].values.astype(str) != ""
            result[PREFIX + "infeasible"] = refused.astype(float)
    else:
        names = [*(PREFIX + name for name in (*measures, *built_in)), *_CIRCUMSTANCES]
        result = pd.DataFrame(np.nan, index=pd.Index([], dtype=object), columns=names)
    # Equal methods of two titles share their fits.
    frame = frame.join(result[~result.index.duplicated()], on="cell")
    done = frame["cell"].isin(result.index)
    feasible = done & (frame.get(PREFIX + "infeasible", 0) != 1)
    return Results(model, cells, frame.assign(done=done, feasible=feasible), (*measures, *built_in))


def iterate_settings(results: Results) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Yield (data, method, its parameters, fits) of every setting, with varying parameters only."""
    data_names = varying([*{cell.case: cell.data for cell in results.cells}.values()])
    grids = {m.label: [*m.grid] for m in results.model.methods}
    sampled = [
        f"{name}.{key}"
        for name, table in results.model.sampling.items()
        for key in varying(table.amounts)
    ]
    groups = results.frame.groupby(["case", "method", "variant"], sort=False)
    for (_, method, _), fits in groups:
        cell = results.cells[fits.index[0]]
        settings = {k: cell.parameters[k] for k in grids[method] if k in cell.parameters}
        settings |= {k: v for k in sampled if (v := look_up(cell.values, k)) is not None}
        data = {k: v for k, v in cell.data.items() if k in data_names}
        yield describe(data), method, describe(settings), fits


@dataclass(frozen=True)
class Performance:
    """Quality, time and convergence of one method, or of one of its settings.

    Attributes
    ----------
    method, setting : titles; the setting is empty for a whole method
    n_fits : number of finished fits
    means : measure -> mean over data sets and settings; None without values
    seconds, mean, longest, total : median, mean, maximum and sum of the seconds of the fits
    n_programs, compile_seconds : number of compiled programs, and mean seconds of each
    n_unconverged, n_warned : numbers of fits
    """

    method: str
    setting: str
    n_fits: int
    means: Mapping[str, Value | None]
    seconds: float
    mean: float
    longest: float
    total: float
    n_programs: int
    compile_seconds: float
    n_unconverged: int
    n_warned: int


def measure_performance(results: Results) -> tuple[list[Performance], list[Performance]]:
    """Performance by method, and by setting; the fastest first."""
    names = [name for name in results.comparable if name not in results.model.built_in]

    def performance(method: str, setting: str, fits: pd.DataFrame) -> Performance:
        fits = fits[fits["done"]]
        seconds = fits[PREFIX + "seconds"].astype(float)
        # Fits of the same program have the same compile time to the last digit.
        programs = fits["compile_seconds"].astype(float).drop_duplicates()
        return Performance(
            method, setting, len(fits), {name: summarize(fits, name, "mean") for name in names},
            seconds.median(), seconds.mean(), seconds.max(), seconds.sum(),
            programs.nunique(), programs.mean(),
            int(((fits["converged"] == 0) & fits["feasible"]).sum()),
            int((fits["warnings"].astype(str) != "").sum()),
        )  # fmt: skip

    methods = [performance(m, "", fits) for m, fits in results.frame.groupby("method", sort=False)]
    settings = [
        performance(method, ", ".join(filter(None, [data, parameters])), fits)
        for data, method, parameters, fits in iterate_settings(results)
    ]
    by_method, by_setting = (
        sorted((row for row in rows if row.n_fits), key=lambda row: row.seconds)
        for rows in (methods, settings)
    )
    return by_method, by_setting
