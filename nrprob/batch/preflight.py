"""Check data, parameters, splits and output paths before the first fit."""

from __future__ import annotations

import collections
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from nrprob.batch import registry
from nrprob.batch.cost import refuse_large
from nrprob.batch.executor import DataSets
from nrprob.batch.external import check_external
from nrprob.batch.formats import RESULTS
from nrprob.batch.inputs import assemble_inputs
from nrprob.batch.plan import Experiment, Plan, select
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import Store
from nrprob.estimator.base import Clusterer
from nrprob.exceptions import DataUnavailable, InputError
from nrprob.settings import standard

__all__ = ["check", "try_out"]


def check(plan: Plan, *, allow_large: bool = False) -> dict[str, int]:
    """Check data, known structure and parameters of a plan without a fit.

    Returns the number of fits without data on this machine, by reason. Raises InputError with one
    line per mistake, also for a plan that needs too much memory unless ``allow_large`` is set.
    """
    model, data = plan.model, DataSets(plan.model)
    skipped: collections.Counter[str] = collections.Counter()
    places = {title: f"methods.{i}" for i, title in enumerate(model.titles)}
    _check_methods(model)
    if not allow_large:
        refuse_large(plan)
    groups: dict[tuple, list[Experiment]] = {}
    for cell in plan.cells:
        groups.setdefault((cell.case, cell.method, cell.variant), []).append(cell)
    mistakes: dict[str, None] = {}
    for cells in groups.values():
        try:
            _check_cell(model, data, cells[0], places[cells[0].method])
        except DataUnavailable as error:
            skipped[str(error)] += len(cells)
        except InputError as error:
            mistakes[str(error)] = None
    _raise_all([*mistakes, *_unknown_attributes(model)])
    return dict(skipped)


def _raise_all(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise InputError("\n".join(mistakes))


def _check_cell(model: ModelFile, data: DataSets, cell: Experiment, where: str) -> None:
    """Prepare a planned fit without computing it, so that invalid settings raise their errors.

    ``where`` is a prefix of messages.
    """
    estimator = registry.make_estimator(cell.name, cell.parameters, f"{where}.")
    inputs = assemble_inputs(model, data(cell), cell)
    if model.predicts and not hasattr(estimator, "predict"):
        raise InputError(
            f"{where} ({cell.method}): the method cannot predict new rows; got a measure of test "
            "rows; use another method"
        )
    is_external = isinstance(registry.find_method(cell.name), registry.ExternalMethod)
    try:
        with warnings.catch_warnings(action="ignore"), standard():
            if is_external:
                check_external(estimator, inputs.X)
            elif isinstance(estimator, Clusterer):
                capabilities = registry.find_method(cell.name).capabilities
                if capabilities.pairs and (inputs.pairs or not capabilities.views):
                    estimator.check_parameters()
                else:
                    estimator.prepare(inputs.X, inputs.y, **inputs.known)
    except (ValueError, TypeError) as error:
        message = " ".join(str(error).split())
        raise InputError(f"{where} ({cell.method}): {message}") from error


def _check_methods(model: ModelFile) -> None:
    """Raise InputError if a method cannot be imported, or gets a seed but takes none."""
    mistakes = []
    for i, spec in enumerate(model.methods):
        try:
            estimator = registry.find_method(spec.name).load()
            if "random_state" in {*spec.parameters, *spec.grid}:
                complaint = f"{estimator.__name__} has no such parameter; methods.{i}.random_state"
                names = estimator._get_param_names()
                registry.refuse_unknown("random_state", names, complaint)
        except InputError as error:
            mistakes.append(f"methods.{i}: {error}")
    _raise_all(mistakes)


def _unknown_attributes(model: ModelFile) -> list[str]:
    """List messages about measures whose attribute is not documented by any method."""
    documented: dict[str, None] = {}
    for spec in model.methods:
        estimator = registry.find_method(spec.name).load()
        documented |= dict.fromkeys(re.findall(r"\b[a-z]\w*_(?!\w)", estimator.__doc__ or ""))
    names = {n: m.attribute.split(".")[0] for n, m in model.measures.items() if m.attribute}
    return [
        f"no method has such an attribute; measures.{name}.attribute = {attribute!r}; "
        + registry.suggest_name(attribute, documented)
        for name, attribute in names.items()
        if attribute not in documented
    ]


def try_out(
    plan: Plan, folder: Path | str, only: Sequence[str] = (), quick: bool = False
) -> set[str]:
    """Test whether a run can write its files; return the identifiers of the selected fits.

    ``only`` and ``quick`` select fits; see `nrprob.batch.plan.select`. The test leaves no files
    behind. Raises InputError if no fit meets the conditions, or results cannot be written.
    """
    cells = select(plan, only, quick)
    names: list[str] = []
    if plan.model.is_single:
        names = [*RESULTS, *filter(None, [plan.model.report.picture])]
    Store(folder).try_out(names)
    return cells
