"""Record the provenance of results: source files, digests and column warnings."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import scipy.sparse

from nrprob.batch import tables
from nrprob.batch.formats import is_table
from nrprob.batch.inputs import load_selected
from nrprob.batch.plan import Plan
from nrprob.data.frames import quote_names
from nrprob.exceptions import DataUnavailable
from nrprob.files import digest

__all__ = ["as_key", "with_provenance"]


def with_provenance(plan: Plan, path: Path | None = None, command: str = "") -> Plan:
    """Return a plan with the provenance of its results: digests of files, data and command.

    ``path`` is the path of the model file, and ``command`` the command line. Raises InputError if
    the data cannot be read.
    """
    origin: dict[str, Any] = {"command": command} if command else {}
    if path is not None:
        origin["model_file"] = {str(path): digest(path)}
    file = plan.model.data.file
    origin["files"] = {} if file is None else {str(file): digest(file)}
    # Describe a file, or the data set of a single run; one of several generated data sets would not
    # represent all of them.
    if file is not None or plan.model.is_single:
        with contextlib.suppress(DataUnavailable):
            origin["prepared"] = _describe_preparation(plan)
    return replace(plan, origin=origin)


def _describe_preparation(plan: Plan) -> dict[str, Any]:
    """Describe how the columns of the first data set are prepared, with warnings about them."""
    data, first = plan.model.data, plan.cells[0]
    table = load_selected(plan.model, first.data, first.seed)
    names, notes, warnings = table.feature_names, list(table.notes), list[str]()
    scales: dict[str, tuple[float, float]] = {}
    if text := table.left_out:
        verb = "is" if len(text) == 1 else "are"
        notes.append(
            f"{quote_names(text)} {verb} left out: features of a model file are columns of numbers"
        )
    # Columns of a file are checked as by `nrprob fit`. For other data, only scales are described.
    if data.file is not None and is_table(data.file):
        import pandas as pd

        from nrprob.data.preparation.prepare import prepare_table

        frame = pd.DataFrame(table.X, columns=names)
        ready = prepare_table(
            frame, categories="indicators", missing="error", chosen=True,
            standardize=data.standardize, say=as_key,
        )  # fmt: skip
        notes, warnings, scales = notes + ready.notes, ready.warnings, ready.scales_
    elif data.standardize:
        scaler = tables.fit_scaler(table.X)
        mean = 0 * scaler.scale_ if scipy.sparse.issparse(table.X) else scaler.mean_
        columns = names or [f"feature {j}" for j in range(table.X.shape[1])]
        moments = zip(mean.tolist(), scaler.scale_.tolist(), strict=True)
        scales = dict(zip(columns, moments, strict=True))
    return {
        "missing": "error",
        "features": names,
        "known": plan.model.known_names,
        "rows_left_out": [],
        "scales": scales,
        "units": {} if data.binarize is not None else table.units,
        "notes": notes,
        "warnings": warnings,
    }


def as_key(option: str, value: Any) -> str:
    """Write an argument of `nrprob.prepare` as in a model file: "data.drop = [...]"."""
    return f"data.{option} = {json.dumps(value, ensure_ascii=False)}"
