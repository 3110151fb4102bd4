"""Assemble the arguments of one fit: features, known structure, labels and pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nrprob.batch import registry, tables
from nrprob.batch.plan import Experiment
from nrprob.batch.schema import ModelFile
from nrprob.batch.sources import known_array
from nrprob.batch.splits import Parts, TargetLabels, sample_labels, sample_pairs, split_rows
from nrprob.batch.tables import Table

__all__ = ["Inputs", "assemble_inputs"]


@dataclass
class Inputs:
    """Arguments of a fit, and what is held out from it.

    Attributes
    ----------
    X, X_test : fitted rows (or a list of tables, one for every view), and test rows
    known, known_test : keyword of the known structure of these rows
    y : target labels of the fitted rows, -1 where unknown; None for an unsupervised method
    pairs : keywords of the constraints
    target, parts : labelled rows, and the parts of a split; None without
    """

    X: Any
    X_test: Any
    known: Mapping[str, Any]
    known_test: Mapping[str, Any]
    y: np.ndarray | None = None
    pairs: Mapping[str, np.ndarray] = field(default_factory=dict)
    target: TargetLabels | None = None
    parts: Parts | None = None

    def spread(self, values: np.ndarray, fill: Any) -> np.ndarray:
        """Put values of the fitted rows at their positions among all rows."""
        if self.parts is None:
            return values
        out = np.full((self.parts.part.size, *values.shape[1:]), fill, values.dtype)
        out[self.parts.fitted] = values
        return out


def assemble_inputs(model: ModelFile, table: Table, cell: Experiment) -> Inputs:
    """Assemble the arguments of a cell's fit.

    The sampling depends on the data set and the run alone, so all methods of a run get the same.
    Raises InputError if the data have too few rows for it.
    """
    method, seed = registry.method(cell.name), (cell.seed, cell.run)
    known: dict[str, Any] = {}
    if model.known_names:
        labelings = [table.labelings[name] for name in model.known_names]
        known = method.capabilities.keywords(known_array(labelings))
    inputs = Inputs(table.X, table.X, known, known)
    if cell.wanted is not None:
        inputs.target = sample_labels(table.labelings[cell.wanted["labeling"]], cell.wanted, seed)
        if cell.wanted["told"] and inputs.target.labelled.any():
            inputs.y = inputs.target.y
    if cell.split is not None:
        parts = inputs.parts = split_rows(table.labelings[cell.split["labeling"]], cell.split, seed)
        inputs.y = parts.y if cell.split["told"] else None
        test = parts.mask("test")
        inputs.X, inputs.X_test = table.X[parts.fitted], table.X[test]
        inputs.known = {name: values[parts.fitted] for name, values in known.items()}
        inputs.known_test = {name: values[test] for name, values in known.items()}
        if cell.split["standardize"]:
            scaler = tables.fit_scaler(inputs.X)
            inputs.X = scaler.transform(inputs.X)
            inputs.X_test = scaler.transform(inputs.X_test) if test.any() else inputs.X_test
    if cell.constraints is not None and method.capabilities.pairs:
        assert model.classes is not None
        labels = table.labelings[model.classes]
        rows = np.arange(labels.size)
        if inputs.parts is not None:
            labels, rows = labels[inputs.parts.fitted], np.flatnonzero(inputs.parts.y >= 0)
        inputs.pairs = sample_pairs(labels, rows, cell.constraints, seed)
    if table.views is not None and method.capabilities.views:
        inputs.X, inputs.X_test = (
            [X[:, columns] for columns in table.views] for X in (inputs.X, inputs.X_test)
        )
    return inputs
