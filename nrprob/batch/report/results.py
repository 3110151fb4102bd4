"""Planned fits and their measures as one data frame, with run times and circumstances."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from nrprob.batch.parameters import describe_parameters, look_up, varying_parameters
from nrprob.batch.plan import Experiment, Plan, matches
from nrprob.batch.report.averages import PREFIX, SETS, summarize
from nrprob.batch.schema import ModelFile

if TYPE_CHECKING:
    import xarray

__all__ = [
    "Results", "collect_results", "iterate_settings", "measure_performance", "summarize_run",
]  # fmt: skip

_BUILT_IN = {"n_clusters": "n_clusters_found", "objective": "objective", "seconds": "seconds"}
_CIRCUMSTANCES = (
    "compile_seconds", "converged", "warnings", "device", "dtype", "host", "started", "versions"
)  # fmt: skip


@dataclass(frozen=True)
class Results:
    """All planned fits of a model, finished or not.

    ``frame`` has a row per planned fit, in the order of the plan. Its columns are ``cell``,
    ``method``, ``case``, ``repeat``, ``run`` and ``variant`` (attributes of
    `nrprob.batch.plan.Experiment`; ``cell`` is ``id``), ``done`` (whether the fit is finished),
    ``feasible`` (whether the fit is finished and its constraints are feasible), and all measures.
    The names of columns of measures have the prefix `PREFIX`. Further columns have the
    circumstances of finished fits, such as versions. ``measures`` are the names of the measures.
    """

    model: ModelFile
    cells: Sequence[Experiment]
    frame: pd.DataFrame
    measures: tuple[str, ...]

    @property
    def comparable(self) -> list[str]:
        """Names of measures that are comparable between all methods; objectives usually are not."""
        if len({cell.name for cell in self.cells}) == 1:
            return [*self.measures]
        objectives = {n for n, m in self.model.measures.items() if m.attribute == "objective_"}
        return [name for name in self.measures if name not in {*objectives, "objective"}]

    def filter_fits(self, where: Mapping[str, Any]) -> pd.DataFrame:
        """Rows of ``frame`` for the fits whose parameters have the values in ``where``."""
        return self.frame[[matches(cell, where) for cell in self.cells]]


def collect_results(dataset: xarray.Dataset, plan: Plan) -> Results:
    """Join the results ``dataset``, from `nrprob.batch.load`, with their plan."""
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
        # Earlier versions did not record the default parameters.
        result["defaults"] = dataset["defaults"].values if "defaults" in dataset else ""
        if "refusal" in dataset:
            refused = dataset["refusal"].values.astype(str) != ""
            result[PREFIX + "infeasible"] = refused.astype(float)
    else:
        names = [*(PREFIX + name for name in (*measures, *built_in)), *_CIRCUMSTANCES, "defaults"]
        result = pd.DataFrame(np.nan, index=pd.Index([], dtype=object), columns=names)
    # Equal methods of two titles share their fits.
    frame = frame.join(result[~result.index.duplicated()], on="cell")
    done = frame["cell"].isin(result.index)
    feasible = done & (frame.get(PREFIX + "infeasible", 0) != 1)
    return Results(model, cells, frame.assign(done=done, feasible=feasible), (*measures, *built_in))


def iterate_settings(results: Results) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Yield the settings of a run: combinations of data, method and parameters of the method.

    Every item has four entries: parameters of the data as text, title of the method, parameters of
    the method as text, and fits as rows of ``frame``. The texts have only parameters that vary.
    """
    data_names = varying_parameters([*{cell.case: cell.data for cell in results.cells}.values()])
    grids = {m.label: [*m.grid] for m in results.model.methods}
    sampled = [
        f"{name}.{key}"
        for name, table in results.model.sampling.items()
        for key in varying_parameters(table.amounts)
    ]
    groups = results.frame.groupby(["case", "method", "variant"], sort=False)
    for (_, method, _), fits in groups:
        cell = results.cells[fits.index[0]]
        settings = {k: cell.parameters[k] for k in grids[method] if k in cell.parameters}
        settings |= {k: v for k in sampled if (v := look_up(cell.values, k)) is not None}
        data = {k: v for k, v in cell.data.items() if k in data_names}
        yield describe_parameters(data), method, describe_parameters(settings), fits


def measure_performance(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of quality, time and convergence: by method, and by method and setting.

    The fastest method comes first. The columns are ``method``, ``setting`` and ``n_fits``;
    ``means``, a `Value` or None for every measure; the median (``seconds``), ``mean``, maximum
    (``longest``) and ``total`` of the seconds of the fits; the number ``n_programs`` of compiled
    programs, and their mean ``compile_seconds``; and the numbers of fits that did not converge
    (``n_unconverged``) or warned (``n_warned``).
    """
    names = [name for name in results.comparable if name not in results.model.built_in]
    frame = results.frame.assign(setting="")
    for data, _, parameters, fits in iterate_settings(results):
        frame.loc[fits.index, "setting"] = ", ".join(filter(None, [data, parameters]))
    done = frame[frame["done"]]
    done = done.assign(
        unconverged=(done["converged"] == 0) & done["feasible"],
        warned=done["warnings"].astype(str) != "",
    )

    def group_fits(by: list[str]) -> pd.DataFrame:
        """Summarize the finished fits of every group with equal values in the columns ``by``."""
        groups = done.groupby(by, sort=False)
        seconds = PREFIX + "seconds"
        table = groups.agg(
            n_fits=(seconds, "size"),
            seconds=(seconds, "median"),
            mean=(seconds, "mean"),
            longest=(seconds, "max"),
            total=(seconds, "sum"),
            # Fits have exactly the same compile time if, and only if, they share a program.
            n_programs=("compile_seconds", "nunique"),
            compile_seconds=("compile_seconds", lambda values: values.drop_duplicates().mean()),
            n_unconverged=("unconverged", "sum"),
            n_warned=("warned", "sum"),
        ).reset_index()
        means = [{n: summarize(fits, n, "mean") for n in names} for _, fits in groups]
        return table.assign(means=means).sort_values("seconds", kind="stable")

    return group_fits(["method"]), group_fits(["case", "method", "variant", "setting"])


def summarize_run(results: Results) -> dict[str, Any]:
    """Summarize the circumstances of a run, such as devices and versions.

    An entry that may differ between fits maps every text to its number of fits.
    """
    frame = results.frame
    done = frame[frame["done"]]
    versions = pd.DataFrame([json.loads(text) for text in done["versions"]])
    warned = done["warnings"].astype(str).map(lambda text: [*dict.fromkeys(text.splitlines())])
    started = done["started"].astype(str)
    return {
        "n_done": len(done),
        "n_planned": len(frame),
        "n_sets": len(done[SETS].drop_duplicates()),
        "n_sets_planned": len(frame[SETS].drop_duplicates()),
        "methods": [
            f"{method.label} ({method.note})" if method.note else method.label
            for method in results.model.methods
        ],
        "missing": _count_values(frame.loc[~frame["done"], "method"]),
        "seconds": float(done.drop_duplicates("cell")[PREFIX + "seconds"].astype(float).sum()),
        "compile_seconds": float(done["compile_seconds"].astype(float).drop_duplicates().sum()),
        "started": (started.min(), started.max()) if len(done) else ("", ""),
        "devices": _count_values(done["device"]),
        "dtypes": _count_values(done["dtype"]),
        "hosts": _count_values(done["host"]),
        "versions": {name: _count_values(values, sort=False) for name, values in versions.items()},
        "warnings": _count_values(warned.explode().dropna()),
        "infeasible": _count_values(done.loc[~done["feasible"], "method"]),
    }


def _count_values(values: pd.Series, sort: bool = True) -> dict[str, int]:
    return {str(value): int(count) for value, count in values.value_counts(sort=sort).items()}
