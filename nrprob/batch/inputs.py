"""Assemble the arguments of one fit: features, known structure, labels and pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nrprob.batch import registry, tables
from nrprob.batch.draws import Parts, WantedLabels, divide, draw, pairs_of
from nrprob.batch.plan import Experiment
from nrprob.batch.schema import ModelFile
from nrprob.batch.sources import known_array
from nrprob.batch.tables import Table

__all__ = ["Inputs", "inputs_of"]


@dataclass(frozen=True)
class Inputs:
    """What a method is given, and what it is not.

    Attributes
    ----------
    X : what `fit` takes: rows, or a list of tables, one for every view
    y : wanted labels of these rows, -1 where unknown; None where the method is told none
    known, pairs : further keywords of `fit`
    told, parts : which labels were drawn, and which rows belong to which part; None for none
    X_test, known_test : rows of the test, and what is known of them
    """

    X: Any
    y: np.ndarray | None
    known: Mapping[str, Any]
    pairs: Mapping[str, np.ndarray]
    told: WantedLabels | None
    parts: Parts | None
    X_test: Any
    known_test: Mapping[str, Any]

    def spread(self, values: np.ndarray, fill: Any) -> np.ndarray:
        """Values of the rows that were fitted, at their places among all rows."""
        if self.parts is None:
            return values
        out = np.full((self.parts.part.size, *values.shape[1:]), fill, values.dtype)
        out[self.parts.fitted] = values
        return out


def inputs_of(model: ModelFile, table: Table, cell: Experiment) -> Inputs:
    """Put together what a cell's method is given.

    Everything that is drawn follows from the data set and the run, so that all methods of a run
    are given the same.

    Raises
    ------
    nrprob.exceptions.InputError
        If the data have too few rows for what is to be drawn.
    """
    method, seed = registry.method(cell.name), (cell.seed, cell.run)
    known: dict[str, Any] = {}
    if model.known_names:
        labelings = [table.labelings[name] for name in model.known_names]
        known = method.capabilities.keywords(known_array(labelings))
    told = y = parts = None
    if cell.wanted is not None:
        told = draw(table.labelings[cell.wanted["labeling"]], cell.wanted, seed)
        y = told.y if cell.wanted["told"] and told.rows.any() else None
    X = X_test = table.X
    known_test = known
    if cell.split is not None:
        parts = divide(table.labelings[cell.split["labeling"]], cell.split, seed)
        y = parts.y if cell.split["told"] else None
        test = parts.rows("test")
        X, X_test = table.X[parts.fitted], table.X[test]
        known_test = {name: values[test] for name, values in known.items()}
        known = {name: values[parts.fitted] for name, values in known.items()}
        if cell.split["standardize"]:
            scaler = tables.scaler(X)
            X, X_test = scaler.transform(X), scaler.transform(X_test) if test.any() else X_test
    pairs = {}
    if cell.constraints is not None and method.capabilities.pairs:
        assert model.classes is not None
        labels = table.labelings[model.classes]
        rows = np.arange(labels.size)
        if parts is not None:
            labels = labels[parts.fitted]
            rows = np.flatnonzero(parts.y >= 0)
        pairs = pairs_of(labels, rows, cell.constraints, seed)
    if table.views is not None and method.capabilities.views:
        X, X_test = ([x[:, columns] for columns in table.views] for x in (X, X_test))
    return Inputs(X, y, known, pairs, told, parts, X_test, known_test)
