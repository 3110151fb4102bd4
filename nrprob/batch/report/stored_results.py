"""Stored results: the entries of the tables of a run, in CSV files next to the model files.

An entry is identified by a digest of everything in the plan that determines it: the data, the
measure, and the method with all parameters (defaults included) and seeds. An entry is outdated if
the model file, or a default, has changed since. Titles and captions are not part of the digest.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nrprob.batch import registry
from nrprob.batch.formats import read_records
from nrprob.batch.modelfile import read_model
from nrprob.batch.parameters import describe_parameters
from nrprob.batch.plan import Experiment, expand, matches, shared_identity
from nrprob.batch.report.averages import PREFIX, Value, split_ratio
from nrprob.batch.report.comparison import compare_published
from nrprob.batch.report.results import Results, collect_results
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import Store, read_plan
from nrprob.exceptions import InputError
from nrprob.files import make_folder, reading, refuse_link, write_atomically

__all__ = ["FOLDER", "PlanDigests", "StoredResult", "read_results", "store_results"]

FOLDER = "results"  # name of the folder beside the model files


@dataclass(frozen=True)
class StoredResult:
    """An entry of a table of a run, stored as a row of a CSV file.

    Attributes
    ----------
    digest : digest of the planned fits and of the measure (`PlanDigests`)
    table, setting, method, measure, statistic : table of the model file, and setting, method,
        measure and statistic of the entry in the table, when the entry was stored
    value, error : the statistic and its standard error, NaN if undefined
    n_sets, n_runs : number of data sets, and largest number of fits of a method on one of them
    seconds : run time of all fits of the entry
    versions : versions of the packages that computed the fits
    """

    digest: str
    table: str
    setting: str
    method: str
    measure: str
    statistic: str
    value: float
    error: float
    n_sets: int
    n_runs: int
    seconds: float
    versions: str

    @property
    def as_value(self) -> Value:
        """The entry as a `Value` of a report."""
        over = "data sets" if self.n_sets > 1 else "fits"
        is_single = np.isnan(self.error)
        return Value(self.value, self.error, self.n_sets, self.n_runs, "" if is_single else over)


class PlanDigests:
    """Digests of the table entries of a model file.

    Fits that differ only in the repeat or run have a common description. The digests are therefore
    computed from a plan with one repeat and one run.
    """

    def __init__(self, model: ModelFile):
        self._model = model
        one_run = {
            "data": model.data.model_copy(update={"repeats": 1}),
            "runs": 1,
            "methods": [m.model_copy(update={"runs": None}) for m in model.methods],
        }
        self._cells = expand(model.model_copy(update=one_run)).cells
        shared = shared_identity(model)
        self._shared = {"data": shared["data"], "known": shared["known"]}
        if model.constraints is not None:
            self._shared["classes"] = model.classes
        self._measures = shared["measures"]
        self._runs = {m.label: m.runs or model.runs for m in model.methods}
        self._texts: dict[str, str] = {}

    def of_tables(self) -> set[str]:
        """Digests of all methods, ratios and measures in the settings of all tables."""
        titles = self._model.titles
        return {
            self.digest(setting.where, split_ratio(method, titles), measure)
            for table in self._model.tables
            for setting in table.settings
            for method in {*titles, *setting.published}
            for measure in self._model.measure_names
        }

    def digest(self, where: Mapping[str, Any], methods: Sequence[str], measure: str) -> str:
        """Digest of a measure of one method, or of two methods, in a setting of a table.

        The digest is empty if a method has no fits in the setting.
        """
        cells = [c for c in self._cells if c.method in methods and matches(c, where)]
        fits = [sorted(self._describe(c) for c in cells if c.method == m) for m in methods]
        if not all(fits):
            return ""
        definition = list(self._measures.get(measure, ())) or [measure]
        defaults = _without_none(_defaults_of_metric(definition[0]))
        content = [self._shared, definition, defaults, fits]
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _describe(self, cell: Experiment) -> str:
        """Describe a planned fit, and all fits that differ from it in seeds only, as JSON."""
        if cell.id not in self._texts:
            data = self._model.data
            content = {
                "data": _without_none(_defaults_of_generator(data.generator) | cell.data),
                "seeds": [cell.seed, data.repeats],
                "method": cell.name,
                "parameters": _without_none(
                    registry.find_method(cell.name).defaults | cell.parameters
                ),
                "sampling": cell.sampling,
                "runs": self._runs[cell.method],
            }
            self._texts[cell.id] = json.dumps(content, sort_keys=True, default=str)
        return self._texts[cell.id]


def _without_none(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out parameters with the value None.

    A new parameter with the default None therefore does not change the digests.
    """
    return {name: value for name, value in parameters.items() if value is not None}


def _defaults_of_generator(name: str | None) -> dict[str, Any]:
    """Default parameters of a generator of data sets; empty for other data."""
    from nrprob import datasets

    return {} if name is None else _function_defaults(getattr(datasets, name))


def _defaults_of_metric(name: str | None) -> dict[str, Any]:
    """Default parameters of a metric; empty for other measures."""
    from nrprob import metrics

    return _function_defaults(getattr(metrics, name or "", None))


def _function_defaults(function: Any) -> dict[str, Any]:
    if function is None:
        return {}
    parameters = inspect.signature(function).parameters.items()
    return {name: p.default for name, p in parameters if p.default is not p.empty}


def store_results(run: Path, folder: Path) -> tuple[Path, int]:
    """Write the finished entries of the tables of a run to ``results/NAME.csv``.

    NAME is the name of the model file of the run, which must be in ``folder``. Entries with
    unfinished fits are left out, as are fits that the model file no longer has.

    Returns the path of the file and the number of its entries. Raises InputError if the run has no
    model file in the folder, or no finished entry of a table. Raises InputError also if the default
    parameters of a method have changed since the run.
    """
    path = _find_model(run, folder)
    model = read_model(path)
    results = collect_results(Store(run).results(), expand(model))
    _refuse_other_defaults(results, run)
    entries = [*_finished_entries(results)]
    if not entries:
        raise InputError(
            f"no entry of a table is finished; {run}; finish the run of {path}, and declare the "
            "tables of its report"
        )
    content = io.StringIO(newline="")
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows(map(astuple, entries))
    make_folder(folder / FOLDER)
    target = folder / FOLDER / f"{path.stem}.csv"
    write_atomically(target, content.getvalue().encode())
    return target, len(entries)


_COLUMNS = [field.name for field in fields(StoredResult)]
_KINDS: dict[str, Any] = {"float": float, "int": int, "str": str}
_TYPES = {field.name: _KINDS[str(field.type)] for field in fields(StoredResult)}


def _find_model(run: Path, folder: Path) -> Path:
    """Path in ``folder`` of the model file of a run."""
    names = [Path(name).name for name in read_plan(run).origin.get("model_file", {})]
    path = folder / (names[0] if names else "")
    if not names or not path.is_file():
        raise InputError(
            f"the model file of the run is not in the folder; {run}: {', '.join(names) or 'none'}; "
            f"name the folder of the model file instead of {folder}"
        )
    return path


def _refuse_other_defaults(results: Results, run: Path) -> None:
    """Raise InputError if default parameters of a method have changed since the run ``run``."""
    names = {cell.method: cell.name for cell in results.cells}
    for (method, text), fits in results.frame.groupby(["method", "defaults"]):
        present = json.dumps(registry.find_method(names[method]).defaults)
        if fits["done"].any() and text and text != present:
            raise InputError(
                f"default parameters have changed since the run; {run}: {method}; run the model "
                "file in a new folder"
            )


def _finished_entries(results: Results) -> Iterator[StoredResult]:
    """Yield the entries of all tables, unless some of their fits are unfinished.

    Entries with equal digest and statistic are yielded once.
    """
    model = results.model
    digests, stored = PlanDigests(model), set[tuple[str, str]]()
    for table in model.tables:
        comparison = compare_published(results, table)
        for setting, group in zip(table.settings, comparison.groups, strict=True):
            label = describe_parameters(setting.where)
            for row in group.rows:
                fits, methods = row.fits, split_ratio(row.method, model.titles)
                for (measure, statistic), entry in row.entries.items():
                    digest = digests.digest(setting.where, methods, measure)
                    is_new = (digest, statistic) not in stored
                    if entry.ours is None or row.n_done < row.n_planned or not is_new:
                        continue
                    stored.add((digest, statistic))
                    ours, seconds = entry.ours, fits[PREFIX + "seconds"].astype(float).sum()
                    yield StoredResult(
                        digest, table.name, label, row.method, measure, statistic,
                        float(f"{ours.value:.6g}"), float(f"{ours.error:.3g}"), ours.n_sets,
                        ours.n_runs, float(f"{seconds:.3g}"), _describe_versions(fits),
                    )  # fmt: skip


def _describe_versions(fits: pd.DataFrame) -> str:
    """Versions of Python and packages of fits: "python 3.13.1, nrprob 0.1.0, jax 0.9.0, ..."."""
    texts: dict[str, None] = {}
    for text in fits["versions"].unique():
        versions = json.loads(text)
        names = [name for name in ("python", "nrprob", "jax", "numpy") if name in versions]
        texts[", ".join(f"{name} {versions[name]}" for name in names)] = None
    return "; ".join(texts)


def read_results(folder: Path) -> dict[str, dict[tuple[str, str], StoredResult]]:
    """Read the stored results of a folder of model files.

    Returns, for the name of every model file with results, its entries by digest and statistic.
    Raises InputError if a file cannot be read.
    """
    refuse_link(folder / FOLDER)
    result = {}
    for path in sorted((folder / FOLDER).glob("*.csv")):
        refuse_link(path)
        with reading(path, "stored results", "store them again"):
            entries = [
                StoredResult(**{name: kind(row[name]) for name, kind in _TYPES.items()})
                for row in read_records(path, _COLUMNS)
            ]
        result[path.stem] = {(e.digest, e.statistic): e for e in entries}
    return result
