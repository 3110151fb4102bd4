"""Execute the fits of a batch: side by side in compiled programs, or one by one."""

from __future__ import annotations

import collections
import contextlib
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from nrprob.batch import registry
from nrprob.batch.cost import KEPT, TABLES
from nrprob.batch.fits import Fit, default_measures, outcome, refused, score
from nrprob.batch.inputs import Inputs, inputs_of
from nrprob.batch.plan import Experiment
from nrprob.batch.rivals import fit_rival
from nrprob.batch.schema import ModelFile
from nrprob.batch.sources import load_data
from nrprob.batch.tables import Table, size_in_memory
from nrprob.engines.batching import Batcher
from nrprob.engines.placement import cpu_for_small_steps, memory_budget
from nrprob.engines.sharding import active_mesh, sharded
from nrprob.estimator.base import Clusterer, check_finite
from nrprob.exceptions import DataUnavailable
from nrprob.settings import standard

__all__ = ["DataSets", "Executor"]


class DataSets:
    """The data sets of a model, and for each whether it can be had."""

    def __init__(self, model: ModelFile):
        self._model = model
        self._kept: collections.OrderedDict[Any, Table | DataUnavailable]
        self._kept = collections.OrderedDict()

    def __call__(self, cell: Experiment) -> Table:
        """Rows and labelings of a cell; raises what `load_data` does."""
        key = (cell.case, cell.seed if self._model.data.generator is not None else None)
        if key not in self._kept:
            try:
                self._kept[key] = load_data(self._model, cell.data, cell.seed)
            except DataUnavailable as error:
                self._kept[key] = error
            while len(self._kept) > 1 and (len(self._kept) > TABLES or self._bytes() > KEPT):
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        result = self._kept[key]
        if isinstance(result, DataUnavailable):
            raise result
        return result

    def _bytes(self) -> int:
        return sum(size_in_memory(one.X) for one in self._kept.values() if isinstance(one, Table))


class Executor:
    """Fits cells: those that can, side by side in compiled programs, the others one by one.

    Without ``devices``, all that JAX has, and the CPU for chains of tiny steps.
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
            result = {id(call): rest for call, *rest in self.lanes(calls)}
            for cell, (inputs, estimator, task, caught) in waiting.items():
                solutions, seconds = zip(*[result[id(call)] for call in task.calls], strict=True)
                try:
                    with warnings.catch_warnings(record=True) as later:
                        warnings.simplefilter("always")
                        estimator.finish(task, solutions)
                        check_finite(estimator)
                    messages = [str(w.message) for w in [*caught, *later]]
                    fit = outcome(cell.method, estimator, sum(seconds), messages)
                    fit = self._outcome(cell, inputs, estimator, fit)
                except (ValueError, TypeError) as error:
                    done[cell] = error
                    continue
                fit.compile_seconds = self.lanes.program(task.calls[0]).seconds
                done[cell] = fit
        return done

    def _prepare(self, cell: Experiment) -> Any:
        """What the lanes need of a cell; its fit where they cannot take it."""
        inputs = inputs_of(self.model, self.data(cell), cell)
        estimator = registry.make_estimator(cell.name, cell.parameters)
        method = registry.method(cell.name)
        if isinstance(method, registry.Rival):
            fit = fit_rival(cell.method, cell.name, estimator, inputs.X)
            return self._outcome(cell, inputs, estimator, fit)
        alone = method.capabilities.alone or not isinstance(estimator, Clusterer)
        start = time.perf_counter()
        place: contextlib.AbstractContextManager = contextlib.nullcontext()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if not alone and not active_mesh():
                with standard():
                    task = estimator.prepare(inputs.X, inputs.y, **inputs.known)
                if task.calls and task.calls[0].size <= memory_budget(self.lanes.devices[0]):
                    return inputs, estimator, task, caught
                if task.calls and self._too_large(task.calls[0].size):
                    place = sharded(self.lanes.devices)
            caught.clear()
            with place:
                refusal = _fit(estimator, inputs)
        seconds = time.perf_counter() - start
        messages = [str(w.message) for w in caught]
        if refusal:
            fit = refused(cell.method, estimator, self.data(cell).X.shape[0], seconds, refusal)
        else:
            fit = outcome(cell.method, estimator, seconds, messages)
        return self._outcome(cell, inputs, estimator, fit)

    def _too_large(self, size: int) -> bool:
        """Whether a call would fill most of a device, and there are others to share its rows."""
        limit = (self.lanes.devices[0].memory_stats() or {}).get("bytes_limit", math.inf)
        return len(self.lanes.devices) > 1 and size > 0.5 * limit

    def _outcome(self, cell: Experiment, inputs: Inputs, estimator: Any, fit: Fit) -> Fit:
        """What is kept of a fit, or of one whose pairs cannot be kept, with its measures."""
        model, table = self.model, self.data(cell)
        told = inputs.parts is not None and inputs.y is not None
        told = told and registry.entry(type(estimator))[1].capabilities.predicts_classes
        if not fit.refusal:
            fit.labels = inputs.spread(fit.labels, -1)
            if not (model.save.memberships or model.single):  # whose page shows them
                fit.membership = None
            elif fit.membership is not None:
                fit.membership = inputs.spread(np.asarray(fit.membership, float), np.nan)
            if not model.save.traces:
                fit.trace = np.empty(0)
            if model.predicts:
                fit.predicted = _predicted(estimator, inputs, told, fit.labels.shape[1:])
            if model.constraints is not None:
                fit.refusal = ""
        if getattr(table.X, "dtype", None) == np.float32:
            fit.dtype = "float32"
        measures = model.measures or default_measures([*table.labelings])
        rows = None if inputs.told is None else inputs.told.scored
        score(
            fit, table.labelings, measures, rows,
            estimator=estimator, parts=inputs.parts, told=told,
        )  # fmt: skip
        if inputs.told is not None:
            fit.labelled = inputs.told.rows
        if inputs.parts is not None:
            fit.labelled, fit.part = inputs.parts.rows("labelled"), inputs.parts.part
        return fit


def _fit(estimator: Any, inputs: Inputs) -> str:
    """Fit by itself; returns why its pairs cannot be kept, and nothing if they can."""
    from nrprob.links import InfeasibleConstraints

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


def _predicted(estimator: Any, inputs: Inputs, told: bool, views: tuple[int, ...]) -> np.ndarray:
    """What is said of test rows, and of fitted ones by who says classes; -1 for other rows."""
    assert inputs.parts is not None
    rows = [(inputs.parts.rows("test"), inputs.X_test, inputs.known_test)]
    if told:
        rows.append((inputs.parts.fitted, inputs.X, inputs.known))
    result = np.full((inputs.parts.part.size, *views), -1)
    for at, X, known in rows:
        if at.any():
            result[at] = estimator.predict(X, **known)
    return result
