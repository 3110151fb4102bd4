"""Planned fits and their measures as one data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nrprob.batch.parameters import describe, look_up, varying
from nrprob.batch.plan import Experiment, Plan, matches
from nrprob.batch.report.averages import OF
from nrprob.batch.schema import ModelFile

if TYPE_CHECKING:
    import xarray

__all__ = ["Results", "collect", "kinds"]

_BUILT_IN = {"n_clusters": "n_clusters_found", "objective": "objective", "seconds": "seconds"}
_CIRCUMSTANCES = (
    "compile_seconds", "converged", "warnings", "device", "dtype", "host", "started", "versions"
)  # fmt: skip


@dataclass(frozen=True)
class Results:
    """All planned fits of a model, finished or not.

    ``frame`` has a row per cell of the plan, in its order: ``cell``, ``method``, ``case``,
    ``repeat``, ``run``, ``variant`` (the method's parameters, its seed aside, and what is drawn for
    it), ``done``, ``feasible``, and everything measured.
    """

    model: ModelFile
    cells: Sequence[Experiment]
    frame: pd.DataFrame
    measures: tuple[str, ...]

    @property
    def comparable(self) -> list[str]:
        """Measures that may stand in a column; with several methods, objectives may not."""
        if len({cell.name for cell in self.cells}) == 1:
            return [*self.measures]
        of_method = {n for n, m in self.model.measures.items() if m.attribute == "objective_"}
        return [name for name in self.measures if name not in {*of_method, "objective"}]

    def where(self, conditions: Mapping[str, Any]) -> pd.DataFrame:
        """Fits with these values of their parameters."""
        return self.frame[[matches(cell, conditions) for cell in self.cells]]


def collect(dataset: xarray.Dataset, plan: Plan) -> Results:
    """Results beside the plan they belong to.

    Parameters
    ----------
    dataset : xarray.Dataset
        See `nrprob.batch.load`.
    model : ModelFile
        What was run.
    cells : sequence of Experiment
        Its plan.
    """
    model, cells = plan.model, plan.cells
    frame = pd.DataFrame(
        [(c.id, c.method, c.case, c.repeat, c.run, c.variant) for c in cells],
        columns=["cell", "method", "case", "repeat", "run", "variant"],
    )
    measures = [*model.measures]
    built_in = [*_BUILT_IN] if model.constraints is None else [*_BUILT_IN, "infeasible"]
    if dataset.sizes.get("cell"):
        measures = [str(name) for name in dataset["measure"].values]
        result = pd.DataFrame(
            dataset["score"].values,
            index=dataset["cell"].values.astype(str),
            columns=[OF + name for name in measures],
        )
        for name, variable in _BUILT_IN.items():
            result[OF + name] = dataset[variable].values
        for name in _CIRCUMSTANCES:
            result[name] = dataset[name].values
        if "refusal" in dataset:
            result[OF + "infeasible"] = (dataset["refusal"].values.astype(str) != "").astype(float)
    else:
        names = [*(OF + name for name in (*measures, *built_in)), *_CIRCUMSTANCES]
        result = pd.DataFrame(np.nan, index=pd.Index([], dtype=object), columns=names)
    # Methods of two titles and the same parameters share their fits.
    frame = frame.join(result[~result.index.duplicated()], on="cell")
    done = frame["cell"].isin(result.index)
    feasible = done & (frame.get(OF + "infeasible", 0) != 1)
    return Results(model, cells, frame.assign(done=done, feasible=feasible), (*measures, *built_in))


def kinds(results: Results) -> Iterable[tuple[str, str, str, pd.DataFrame]]:
    """(data, method, its parameters, fits) of every setting of the grid; only what varies is said.

    Data come first in the order, since that is how tables read.
    """
    of_data = varying([*{cell.case: cell.data for cell in results.cells}.values()])
    chosen = {m.label: [*m.grid] for m in results.model.methods}
    drawn = [
        f"{name}.{key}"
        for name, table in results.model.sampling.items()
        for key in varying(table.amounts)
    ]
    by = results.frame.groupby(["case", "method", "variant"], sort=False)
    for (_, method, _), fits in by:
        cell = results.cells[fits.index[0]]
        settings = {k: cell.parameters[k] for k in chosen[method] if k in cell.parameters}
        settings |= {k: v for k in drawn if (v := look_up(cell.values, k)) is not None}
        data = {k: v for k, v in cell.data.items() if k in of_data}
        yield describe(data), method, describe(settings), fits
