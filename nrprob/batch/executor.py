"""Execute batches of fits in this process: together in compiled programs, or one by one.

A ``cell`` is a planned fit (`nrprob.batch.plan.Experiment`).
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from nrprob.batch import registry
from nrprob.batch.cost import MAX_CACHED_BYTES, MAX_TABLES
from nrprob.batch.external import fit_external
from nrprob.batch.fits import (
    Fit,
    default_measures,
    package_versions,
    record_fit,
    score_fit,
)
from nrprob.batch.inputs import Inputs, assemble_inputs, load_data
from nrprob.batch.plan import Experiment
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import fits_to_dataset, netcdf_bytes
from nrprob.batch.tables import Table, size_in_memory
from nrprob.engines.batching import Batcher
from nrprob.engines.placement import cpu_for_small_steps, memory_budget
from nrprob.engines.sharding import active_mesh, sharded
from nrprob.estimator.base import Clusterer, check_finite
from nrprob.exceptions import DataUnavailable, InputError
from nrprob.settings import standard

__all__ = ["DataSets", "BatchOutcome", "Executor", "LocalPool", "execute_batch"]


class DataSets:
    """Cache of the most recently used data sets of a model file.

    If a data set is not available, the error is cached instead.
    """

    def __init__(self, model: ModelFile):
        self._model = model
        self._cache: dict[Any, Table | DataUnavailable] = {}

    def __call__(self, cell: Experiment) -> Table:
        """Return the data set of a planned fit; raises the errors of `load_data`."""
        key = (cell.case, cell.seed if self._model.data.generator is not None else None)
        if key in self._cache:
            self._cache[key] = self._cache.pop(key)
        else:
            try:
                self._cache[key] = load_data(self._model, cell.data, cell.seed)
            except DataUnavailable as error:
                self._cache[key] = error
            cache = self._cache
            while len(cache) > 1 and (len(cache) > MAX_TABLES or self._bytes() > MAX_CACHED_BYTES):
                del cache[next(iter(cache))]
        table = self._cache[key]
        if isinstance(table, DataUnavailable):
            raise table
        return table

    def _bytes(self) -> int:
        return sum(size_in_memory(t.X) for t in self._cache.values() if isinstance(t, Table))


@dataclass
class _Prepared:
    """A fit that waits for the results of a compiled program.

    ``task.calls`` are the calls of the program that the fit needs. ``inputs`` are the arguments of
    the fit, ``estimator`` is the unfitted estimator, and ``messages`` are warnings so far.
    """

    inputs: Inputs
    estimator: Any
    task: Any
    messages: list[str]


def _attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function for one fit; return the result, or the ValueError or TypeError raised."""
    try:
        return function(*arguments)
    except (ValueError, TypeError) as error:
        return error


class Executor:
    """Computes planned fits, together in compiled programs if possible, otherwise one by one.

    By default, an executor uses all devices of JAX, and the CPU for algorithms of many small steps.
    ``threads`` is the number of concurrent programs on a CPU, by default the number of cores.
    """

    def __init__(
        self,
        model: ModelFile,
        devices: Sequence[jax.Device] | None = None,
        threads: int | None = None,
    ):
        self.model = model
        self.data = DataSets(model)
        cpu = None if devices else cpu_for_small_steps()
        self.lanes = Batcher(devices or jax.devices(), threads, stepwise=cpu)

    def fit(self, cells: Sequence[Experiment]) -> dict[Experiment, Fit | Exception]:
        """Compute planned fits; return the result of every fit, or the error if it fails."""
        results = {cell: _attempt(self._prepare, cell) for cell in cells}
        waiting = {cell: r for cell, r in results.items() if isinstance(r, _Prepared)}
        with standard():
            calls = [call for prepared in waiting.values() for call in prepared.task.calls]
            solutions = {id(call): solved for call, *solved in self.lanes(calls)}
            for cell, prepared in waiting.items():
                solved = [solutions[id(call)] for call in prepared.task.calls]
                results[cell] = _attempt(self._finish, cell, prepared, solved)
        return results

    def _prepare(self, cell: Experiment) -> _Prepared | Fit:
        """Prepare a fit for a compiled program of many fits, or compute it alone.

        A fit is computed alone if its estimator has no such program, or if the fit is too large.
        """
        inputs = assemble_inputs(self.model, self.data(cell), cell)
        estimator = registry.make_estimator(cell.name, cell.parameters)
        method = registry.find_method(cell.name)
        if isinstance(method, registry.ExternalMethod):
            fit = fit_external(cell.method, cell.name, estimator, inputs.X)
            return self._score(cell, inputs, estimator, fit)
        # Prepare the calls of the fit for a compiled program, unless they are too large.
        is_batched = isinstance(estimator, Clusterer) and not method.capabilities.alone
        start = time.perf_counter()
        place: contextlib.AbstractContextManager = contextlib.nullcontext()
        with warnings.catch_warnings(record=True, action="always") as caught:
            if is_batched and not active_mesh():
                with standard():
                    task = estimator.prepare(inputs.X, inputs.y, **inputs.known)
                if task.calls and task.calls[0].size <= memory_budget(self.lanes.devices[0]):
                    messages = [str(w.message) for w in caught]
                    return _Prepared(inputs, estimator, task, messages)
                if task.calls and self._is_too_large(task.calls[0].size):
                    place = sharded(self.lanes.devices)
            # Fit alone. If the fit is too large for one device, its rows are distributed over all.
            caught.clear()
            with place:
                refusal = _fit_alone(estimator, inputs)
        seconds = time.perf_counter() - start
        if refusal:
            labels = np.full(self.data(cell).X.shape[0], -1)
            parameters = estimator.get_params(deep=False)
            name = type(estimator).__name__
            fit = Fit(cell.method, name, parameters, labels, seconds, refusal=refusal)
        else:
            fit = record_fit(cell.method, estimator, seconds, [str(w.message) for w in caught])
        return self._score(cell, inputs, estimator, fit)

    def _is_too_large(self, size: int) -> bool:
        """Whether the rows of a fit are to be distributed over several devices.

        The rows are distributed if there are several devices, and the largest array of the fit
        (``size`` bytes) needs more than half of the memory of a device.
        """
        limit = (self.lanes.devices[0].memory_stats() or {}).get("bytes_limit", math.inf)
        return len(self.lanes.devices) > 1 and size > 0.5 * limit

    def _finish(self, cell: Experiment, prepared: _Prepared, solved: list[Any]) -> Fit:
        """Finish a fit from the results of a compiled program; return the scored record.

        ``solved`` has the solution and the seconds of every call of the program.
        """
        estimator, task = prepared.estimator, prepared.task
        solutions, seconds = zip(*solved, strict=True)
        with warnings.catch_warnings(record=True, action="always") as caught:
            estimator.finish(task, solutions)
            check_finite(estimator)
        messages = [*prepared.messages, *(str(w.message) for w in caught)]
        fit = record_fit(cell.method, estimator, sum(seconds), messages)
        fit = self._score(cell, prepared.inputs, estimator, fit)
        fit.compile_seconds = self.lanes.program_for(task.calls[0]).seconds
        return fit

    def _score(self, cell: Experiment, inputs: Inputs, estimator: Any, fit: Fit) -> Fit:
        """Compute the measures of ``fit``, and drop outputs that the model file does not save.

        Returns ``fit``, with outputs for all rows instead of the fitted rows only.
        """
        model, table, parts, target = self.model, self.data(cell), inputs.parts, inputs.target
        classifies = parts is not None and inputs.y is not None
        classifies = (
            classifies and registry.find_entry(type(estimator))[1].capabilities.predicts_classes
        )
        # Put the outputs of fitted rows at their positions among all rows, and drop outputs that
        # the file does not request.
        if not fit.refusal:
            fit.labels = inputs.spread(fit.labels, -1)
            if not (model.save.memberships or model.is_single):  # the page of a single fit has them
                fit.membership = None
            elif fit.membership is not None:
                fit.membership = inputs.spread(np.asarray(fit.membership, float), np.nan)
            if not model.save.traces:
                fit.trace = np.empty(0)
            if model.predicts:
                fit.predicted = _predict(estimator, inputs, classifies, fit.labels.shape[1:])
            if model.constraints is not None:
                fit.refusal = ""
        if getattr(table.X, "dtype", None) == np.float32:
            fit.dtype = "float32"
        score_fit(
            fit, table.labelings, model.measures or default_measures([*table.labelings]),
            None if target is None else target.scored,
            features=table.X, estimator=estimator, parts=parts, classifies=classifies,
        )  # fmt: skip
        if target is not None:
            fit.labelled = target.labelled
        if parts is not None:
            fit.labelled, fit.part = parts.mask("labelled"), parts.part
        return fit


def _fit_alone(estimator: Any, inputs: Inputs) -> str:
    """Fit one estimator; return why the must-links and cannot-links are infeasible.

    The reason is empty if the links are feasible.
    """
    from nrprob.links import InfeasibleConstraints

    try:
        estimator.fit(inputs.X, inputs.y, **inputs.known, **inputs.pairs)
    except ValueError as error:
        if not any(len(pairs) for pairs in inputs.pairs.values()):
            raise
        if not isinstance(error, InfeasibleConstraints):
            # An error that also occurs without the pairs is not due to the pairs; raise it.
            estimator.fit(inputs.X, inputs.y, **inputs.known)
        return str(error)
    return ""


def _predict(
    estimator: Any, inputs: Inputs, classifies: bool, views: tuple[int, ...]
) -> np.ndarray:
    """Predict the labels of test rows and, if ``classifies``, also of fitted rows.

    Returns labels (n, *views) of all n rows, -1 for rows without a prediction. ``views`` is () for
    one labeling, or (V,) for V views.
    """
    assert inputs.parts is not None
    predicted = np.full((inputs.parts.part.size, *views), -1)
    parts = [(inputs.parts.mask("test"), inputs.X_test, inputs.known_test)]
    if classifies:
        parts.append((inputs.parts.fitted, inputs.X, inputs.known))
    for rows, X, known in parts:
        if rows.any():
            predicted[rows] = estimator.predict(X, **known)
    return predicted


@dataclass
class BatchOutcome:
    """Outcome of some planned fits.

    Attributes
    ----------
    content : bytes of a NetCDF file with the finished fits; empty if no fit is finished
    finished, compiled : numbers of finished fits, and of compiled programs
    skipped : for every reason, the number of fits whose data are not on this machine
    failed : for every reason, the number of fits that failed
    """

    content: bytes = b""
    finished: int = 0
    skipped: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: collections.Counter[str] = field(default_factory=collections.Counter)
    compiled: int = 0


def execute_batch(executor: Executor, cells: Sequence[Experiment], where: str = "") -> BatchOutcome:
    """Compute planned fits, and encode their results as a NetCDF file.

    ``where`` is a prefix of messages about data that are not on this machine.
    """
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    before = len(executor.lanes.compiled)
    fits: dict[Experiment, Fit] = {}
    done = BatchOutcome()
    for cell, fit in executor.fit(cells).items():
        if isinstance(fit, DataUnavailable):
            done.skipped[f"{where}{fit}"] += 1
        elif isinstance(fit, Exception):
            kind = "" if isinstance(fit, InputError) else f"{type(fit).__name__}: "
            done.failed[f"{cell.method}: {kind}{fit}"] += 1
        else:
            fits[cell] = fit
    done.finished, done.compiled = len(fits), len(executor.lanes.compiled) - before
    if fits:
        devices = executor.lanes.devices
        circumstances = {
            "started": started,
            "host": platform.node(),
            "device": f"{len(devices)} x {devices[0].device_kind}",
            "versions": json.dumps(package_versions()),
            # All fits of a batch have the same method.
            "defaults": json.dumps(registry.find_method(cells[0].name).defaults),
        }
        dataset = fits_to_dataset(fits, circumstances, labels=executor.model.save.labels)
        done.content = netcdf_bytes(dataset)
    return done


class LocalPool:
    """Executes batches in this process, one after another."""

    room = 1  # batches that may be submitted before one of them is collected

    def __init__(self, executor: Executor):
        self._executor = executor
        self._waiting: collections.deque[tuple[str, Sequence[Experiment]]] = collections.deque()

    def submit(self, name: str, cells: Sequence[Experiment]) -> None:
        """Submit a batch of planned fits under a name."""
        self._waiting.append((name, cells))

    def next_done(self) -> tuple[str, BatchOutcome]:
        """Execute the batch that was submitted first; return its name and outcome."""
        name, cells = self._waiting.popleft()
        return name, execute_batch(self._executor, cells)
