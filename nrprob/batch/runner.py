"""The runner: what is missing of a plan, batch by batch, over all devices, and nothing twice."""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
import math
import platform
import re
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from nrprob.batch import registry, single, store
from nrprob.batch.fits import Fit, default_measures, make_estimator, outcome, refused, score
from nrprob.batch.inputs import Inputs, inputs_of
from nrprob.batch.modelfile import OF_SPLIT, ModelFile, read_model
from nrprob.batch.plan import Batch, Experiment, Plan, expand, select
from nrprob.batch.sources import load_data
from nrprob.batch.tables import Table
from nrprob.batch.versions import versions
from nrprob.engines.batching import MEMORY, Batcher
from nrprob.engines.sharding import asked_for, sharded
from nrprob.estimator.base import Clusterer, Renamed, check_finite, labelings
from nrprob.exceptions import DataUnavailable, InputError, warn
from nrprob.settings import standard

if TYPE_CHECKING:
    import xarray

__all__ = ["Outcome", "Progress", "check", "run", "run_plan"]

_TABLES = 64  # data sets that are kept in memory for the cells that share them


class Progress(Protocol):
    """What is told how far a run is; every method may do nothing."""

    def start(self, total: int, finished: int) -> None:
        """Say that ``total`` cells are wanted, of which some are finished."""

    def advance(self, cells: int, what: str) -> None:
        """Some more cells are finished; ``what`` says which."""


class _Silent:
    def start(self, total: int, finished: int) -> None:
        pass

    def advance(self, cells: int, what: str) -> None:
        pass


@dataclass
class Outcome:
    """What a run did.

    Attributes
    ----------
    folder : where the results are
    finished : cells computed by this run
    found : cells that had been finished before
    skipped : reason -> number of cells whose data are not on this machine
    failed : what went wrong -> number of cells; they are tried again by the next run
    compiled : number of programs that were compiled
    """

    folder: Path
    finished: int = 0
    found: int = 0
    skipped: dict[str, int] = field(default_factory=lambda: collections.defaultdict(int))
    failed: dict[str, int] = field(default_factory=lambda: collections.defaultdict(int))
    compiled: int = 0


class _Data:
    """The data sets of a model, and for each whether it can be had."""

    def __init__(self, model: ModelFile):
        self._model = model
        self._kept: collections.OrderedDict[str, Table] = collections.OrderedDict()
        self._missing: dict[str, str] = {}

    def __call__(self, cell: Experiment) -> Table:
        """Rows and labelings of a cell; raises what `load_data` does."""
        generated = self._model.data.generator is not None
        key = json.dumps([cell.data, cell.seed if generated else None], default=str)
        if key in self._missing:
            raise DataUnavailable(self._missing[key])
        if key not in self._kept:
            try:
                self._kept[key] = load_data(self._model, cell.data, cell.seed)
            except DataUnavailable as error:
                self._missing[key] = str(error)
                raise
            if len(self._kept) > _TABLES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


class _Executor:
    """Fits cells: those that can, side by side in compiled programs, the others one by one."""

    def __init__(self, model: ModelFile, devices: Sequence[jax.Device]):
        self.model = model
        self.data = _Data(model)
        self.lanes = Batcher(devices)

    def fit(self, cells: Sequence[Experiment]) -> dict[Experiment, Fit | Exception]:
        """Fit cells; what goes wrong with one of them is its result."""
        done: dict[Experiment, Fit | Exception] = {}
        waiting = {}
        for cell in cells:
            try:
                prepared = self._prepare(cell)
            except (ValueError, TypeError) as error:
                done[cell] = error
                continue
            if isinstance(prepared, Fit):
                done[cell] = prepared
            else:
                waiting[cell] = prepared
        with standard():
            calls = [call for _, _, task, _ in waiting.values() for call in task.calls]
            found = {id(call): rest for call, *rest in self.lanes(calls)}
            for cell, (inputs, estimator, task, caught) in waiting.items():
                solutions, seconds = zip(*[found[id(call)] for call in task.calls], strict=True)
                try:
                    with warnings.catch_warnings(record=True) as later:
                        warnings.simplefilter("always")
                        estimator.finish(task, solutions)
                        check_finite(estimator)
                    messages = [str(w.message) for w in [*caught, *later]]
                    fit = self._outcome(cell, inputs, estimator, sum(seconds), messages)
                except (ValueError, TypeError) as error:
                    done[cell] = error
                    continue
                fit.compile_seconds = self.lanes.program(task.calls[0]).seconds
                done[cell] = fit
        return done

    def _prepare(self, cell: Experiment) -> Any:
        """What the lanes need of a cell; its fit where they cannot take it."""
        inputs = inputs_of(self.model, self.data(cell), cell)
        estimator = make_estimator(cell.name, cell.parameters)
        alone = registry.method(cell.name).alone or not isinstance(estimator, Clusterer)
        start = time.perf_counter()
        place: contextlib.AbstractContextManager = contextlib.nullcontext()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if not alone and not asked_for():
                with standard():
                    task = estimator.prepare(inputs.X, inputs.y, **inputs.known)
                if task.calls and task.calls[0].size <= MEMORY:
                    return inputs, estimator, task, caught
                if task.calls and self._too_large(task.calls[0].size):
                    place = sharded(self.lanes.devices)
            caught.clear()
            with place:
                reason = _fit(estimator, inputs)
        seconds = time.perf_counter() - start
        if reason:
            return self._refusal(cell, inputs, estimator, seconds, reason)
        return self._outcome(cell, inputs, estimator, seconds, [str(w.message) for w in caught])

    def _too_large(self, size: int) -> bool:
        """Whether a call would fill most of a device, and there are others to share its rows."""
        limit = (self.lanes.devices[0].memory_stats() or {}).get("bytes_limit", math.inf)
        return len(self.lanes.devices) > 1 and size > 0.5 * limit

    def try_out(self, cell: Experiment, where: str) -> None:
        """Do what comes before the fit of a cell; raises what a fit would."""
        table = self.data(cell)
        try:
            inputs = inputs_of(self.model, table, cell)
        except InputError as error:
            place = "wanted: " if cell.wanted is not None else "split: "
            named = str(error).startswith("constraints: ")
            raise InputError(f"{'' if named else place}{error}") from error
        estimator = make_estimator(cell.name, cell.parameters, where)
        if self._to_predict(cell) and not hasattr(estimator, "predict"):
            raise InputError(
                f"{where.rstrip('.')} ({cell.method}): it says nothing of new rows; got a measure "
                "of rows to test; use another method"
            )
        if isinstance(estimator, Clusterer):
            with warnings.catch_warnings(), standard():
                warnings.simplefilter("ignore")
                try:
                    if registry.method(cell.name).takes_pairs:
                        estimator.check_parameters()
                    else:
                        estimator.prepare(inputs.X, inputs.y, **inputs.known)
                except (ValueError, TypeError) as error:
                    raise InputError(f"{where.rstrip('.')} ({cell.method}): {error}") from error

    def _to_predict(self, cell: Experiment) -> bool:
        """Whether something is measured of what is said of new rows."""
        wanted = {m.metric for m in self.model.measures.values()}
        return cell.split is not None and bool(wanted & {*OF_SPLIT})

    def _outcome(
        self, cell: Experiment, inputs: Inputs, estimator: Any, seconds: float, messages: list[str]
    ) -> Fit:
        save, table = self.model.save, self.data(cell)
        fit = outcome(cell.method, estimator, seconds, messages)
        fit.labels = inputs.spread(fit.labels, -1)
        if not save.memberships:
            fit.membership = None
        elif fit.membership is not None:
            fit.membership = inputs.spread(np.asarray(fit.membership, float), np.nan)
        if not save.traces:
            fit.trace = np.empty(0)
        told = inputs.parts is not None and inputs.y is not None
        if self._to_predict(cell):
            fit.predicted = _predicted(estimator, inputs, told)
        measures = self.model.measures or default_measures([*table.labelings])
        rows = None if inputs.told is None else inputs.told.scored
        score(
            fit, table.labelings, measures, rows,
            estimator=estimator, parts=inputs.parts, told=told,
        )  # fmt: skip
        if self.model.constraints is not None:
            fit.refusal = ""
        return self._drawn(inputs, fit)

    def _refusal(
        self, cell: Experiment, inputs: Inputs, estimator: Any, seconds: float, reason: str
    ) -> Fit:
        table = self.data(cell)
        fit = refused(cell.method, estimator, table.X.shape[0], seconds, reason)
        score(fit, {}, self.model.measures or default_measures([*table.labelings]))
        return self._drawn(inputs, fit)

    def _drawn(self, inputs: Inputs, fit: Fit) -> Fit:
        """Say in a fit what was drawn for it."""
        if inputs.told is not None:
            fit.labelled = inputs.told.rows
        if inputs.parts is not None:
            fit.labelled, fit.part = inputs.parts.rows("labelled"), inputs.parts.part
        return fit


def _fit(estimator: Any, inputs: Inputs) -> str:
    """Fit by itself; returns why its pairs cannot be kept, and nothing if they can."""
    from nrprob.methods.constrained.links import InfeasibleConstraints

    try:
        estimator.fit(inputs.X, inputs.y, **inputs.known, **inputs.pairs)
    except ValueError as error:
        if not any(len(pairs) for pairs in inputs.pairs.values()):
            raise
        if not isinstance(error, InfeasibleConstraints):
            # What is refused without the pairs as well is not their fault, and an error.
            estimator.fit(inputs.X, inputs.y, **inputs.known)
        return str(error)
    return ""


def _predicted(estimator: Any, inputs: Inputs, told: bool) -> np.ndarray:
    """What is said of test rows, and of fitted ones by who says classes; -1 for other rows."""
    assert inputs.parts is not None
    rows = [(inputs.parts.rows("test"), inputs.X_test, inputs.known_test)]
    if told:
        rows.append((inputs.parts.fitted, inputs.X, inputs.known))
    found = np.full((inputs.parts.part.size, *labelings(estimator).shape[1:]), -1)
    for at, X, known in rows:
        if at.any():
            found[at] = estimator.predict(X, **known)
    return found


def check(model: ModelFile, plan: Plan) -> dict[str, int]:
    """Try everything of a plan that needs no fit: data, known structure, parameters.

    Parameters
    ----------
    model, plan
        The file and its cells.

    Returns
    -------
    dict
        Reason -> number of cells that will be skipped because their data are not on this machine.

    Raises
    ------
    nrprob.exceptions.InputError
        With one line per mistake.
    """
    executor = _Executor(model, jax.devices()[:1])
    skipped: dict[str, int] = collections.defaultdict(int)
    wrong: dict[str, None] = {}
    places = {method.label: f"methods.{i}." for i, method in enumerate(model.methods)}
    kinds: dict[str, list[Experiment]] = {}
    for cell in plan.cells:
        rest = {k: v for k, v in cell.parameters.items() if k != "random_state"}
        drawn = [cell.wanted, cell.split, cell.constraints]
        kind = json.dumps([cell.case, cell.method, rest, *drawn], default=str)
        kinds.setdefault(kind, []).append(cell)
    for cells in kinds.values():
        try:
            executor.try_out(cells[0], places[cells[0].method])
        except DataUnavailable as error:
            skipped[str(error)] += len(cells)
        except InputError as error:
            wrong[str(error)] = None
    wrong |= dict.fromkeys(_unknown_attributes(model))
    if wrong:
        raise InputError("\n".join(wrong))
    return dict(skipped)


def _unknown_attributes(model: ModelFile) -> list[str]:
    """Complaints about measures that are attributes of none of the methods."""
    documented: dict[str, None] = {}
    for spec in model.methods:
        kind = registry.method(spec.name).load()
        documented |= dict.fromkeys(re.findall(r"\b[a-z]\w*_(?!\w)", kind.__doc__ or ""))
        documented |= dict.fromkeys(n for n in dir(kind) if isinstance(getattr(kind, n), Renamed))
    asked = {n: m.attribute.split(".")[0] for n, m in model.measures.items() if m.attribute}
    return [
        f"no method has such an attribute; measures.{name}.attribute = {attribute!r}; "
        + registry.nearest(attribute, documented)
        for name, attribute in asked.items()
        if attribute not in documented
    ]


def _circumstances(table: Table, fit: Fit, started: str, devices: Sequence[jax.Device]) -> dict:
    dtype = getattr(table.X, "dtype", None)
    return {
        "dtype": "float32" if dtype == np.float32 else "float64",
        "compile_seconds": fit.compile_seconds,
        "started": started,
        "host": platform.node(),
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "versions": json.dumps(versions()),
    }


def try_out(plan: Plan, folder: Path | str, only: Sequence[str] = ()) -> set[str]:
    """Try everything that a run needs beside its fits; nothing is left in the folder.

    Parameters
    ----------
    plan, folder, only
        What `run_plan` is going to be given.

    Returns
    -------
    set of str
        Identifiers of the cells that are asked for.

    Raises
    ------
    nrprob.exceptions.InputError
        If nothing meets the conditions, or results cannot be stored or written there.
    """
    chosen = select(plan, only)
    store.Store(folder).try_out(
        single.names(plan.model.report.picture) if plan.model.single else ()
    )
    return chosen


def run_plan(
    plan: Plan,
    folder: Path | str,
    *,
    devices: Sequence[jax.Device] | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> Outcome:
    """Do what is missing of a plan.

    Parameters
    ----------
    plan : Plan
        The cells.
    folder : Path or str
        Where results are, and go. Other runners may work on the same folder at the same time.
    devices : sequence of jax.Device, optional
        Those to use; all by default.
    only : sequence of str
        Conditions NAME=VALUE that cells have to meet; see `nrprob.batch.plan.select`.
    progress : Progress, optional
        Is told how far the run is.

    Returns
    -------
    Outcome

    Raises
    ------
    nrprob.exceptions.InputError
        Before the first fit, as `try_out` does, or if a file in the folder is damaged.
    """
    progress = progress or _Silent()
    devices = list(devices or jax.devices())
    chosen = try_out(plan, folder, only)
    place = store.Store(folder)
    finished = place.finished()  # before anything is touched: a damaged file stops us here
    place.open(plan)
    executor = _Executor(plan.model, devices)
    result = Outcome(Path(folder), found=len(chosen & finished))
    progress.start(len(chosen), result.found)

    def work(batch: Batch, cells: list[Experiment]) -> None:
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        done = executor.fit(cells)
        good = {cell: fit for cell, fit in done.items() if isinstance(fit, Fit)}
        for cell, error in done.items():
            if isinstance(error, DataUnavailable):
                result.skipped[str(error)] += 1
            elif isinstance(error, Exception):
                what = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
                result.failed[f"{cell.method}: {what}{error}"] += 1
        if good:
            dataset = store.to_dataset(
                [cell.id for cell in good],
                list(good.values()),
                [
                    _circumstances(executor.data(cell), fit, started, devices)
                    for cell, fit in good.items()
                ],
                labels=plan.model.save.labels,
            )
            place.write(batch, dataset)
        result.finished += len(good)
        progress.advance(len(cells), f"{cells[0].method}, {_brief(cells[0].data)}")

    taken: list[Batch] = []
    for batches, wait in ((plan.batches, False), (taken, True)):
        for batch in batches:
            cells = [c for c in batch.cells if c.id in chosen and c.id not in finished]
            if not cells:
                continue
            with place.claim(batch, wait=wait) as mine:
                if not mine:
                    taken.append(batch)  # another runner has it; look again when ours are done
                    continue
                theirs = place.finished(batch.id)
                rest = [c for c in cells if c.id not in theirs]
                if len(rest) < len(cells):
                    result.found += len(cells) - len(rest)
                    progress.advance(len(cells) - len(rest), "another runner's")
                if rest:
                    work(batch, rest)
    result.compiled = len(executor.lanes.compiled)
    place.note(skipped=result.skipped, failed=result.failed)
    return result


def _brief(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in parameters.items()) or "the data"


def run(
    spec: Path | str | Mapping[str, Any] | ModelFile,
    out: Path | str | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> xarray.Dataset:
    """Run a model file, or go on with a run of it.

    Parameters
    ----------
    spec : Path, str, mapping or ModelFile
        A TOML file, or what one would contain.
    out : Path or str, optional
        Folder for results. By default the file's ``report.out``, or ``results/`` and the name of
        the file; a mapping without either is run in memory, so to speak: its folder is deleted.
    devices : sequence of jax.Device, optional
        Those to use; all of `jax.devices` by default. A CPU is one device with all its cores.
    only : sequence of str
        Conditions NAME=VALUE that cells have to meet.
    progress : Progress, optional
        Is told how far the run is.

    Returns
    -------
    xarray.Dataset
        See `nrprob.batch.load`.

    Raises
    ------
    nrprob.exceptions.InputError
        If the file or its data cannot be used, before anything is written; afterwards, if some
        cells could not be fitted, with the reasons; what was fitted is kept.
    """
    model = spec if isinstance(spec, ModelFile) else read_model(spec)
    plan = expand(model)
    check(model, plan)
    with contextlib.ExitStack() as stack:
        folder = out or default_folder(model, spec if isinstance(spec, str | Path) else None)
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        result = run_plan(plan, folder, devices=devices, only=only, progress=progress)
        dataset = finish(folder)
        if result.failed:
            raise InputError(failures(result))
        for reason, count in result.skipped.items():
            warn(f"{count} cells were skipped; {reason}")
        return dataset


def default_folder(model: ModelFile, path: Path | str | None) -> Path | None:
    """Where results go unless the user says where."""
    if model.report.out is not None:
        return model.report.out
    return Path("results") / Path(path).stem if path is not None else None


def finish(folder: Path | str) -> xarray.Dataset:
    """Put all results into one file, ``results.nc``, for whoever reads NetCDF."""
    return store.Store(folder).gather()


def failures(result: Outcome) -> str:
    """Lines that say which cells failed, and why."""
    return "\n".join(
        f"{count} of the fits failed; {reason}; correct the file and run it again"
        for reason, count in result.failed.items()
    )
