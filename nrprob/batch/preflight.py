"""Check data, parameters, splits and output paths before the first fit."""

from __future__ import annotations

import collections
import inspect
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from nrprob.batch import fit_files, registry
from nrprob.batch.cost import refuse_large
from nrprob.batch.executor import DataSets
from nrprob.batch.inputs import inputs_of
from nrprob.batch.plan import Experiment, Plan, select
from nrprob.batch.rivals import check_rival
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import Store
from nrprob.estimator.base import Clusterer, Renamed
from nrprob.exceptions import DataUnavailable, InputError
from nrprob.settings import standard

__all__ = ["check", "try_out"]


def check(plan: Plan, *, allow_large: bool = False) -> dict[str, int]:
    """Try everything of a plan that needs no fit: data, known structure, parameters.

    Parameters
    ----------
    plan : Plan
        The cells.
    allow_large : bool, default=False
        Whether a plan may need more memory than there is, by `nrprob.batch.cost.estimate`.

    Returns
    -------
    dict
        Reason -> number of cells that will be skipped because their data are not on this machine.

    Raises
    ------
    nrprob.exceptions.InputError
        With one line per mistake.
    """
    model, data = plan.model, DataSets(plan.model)
    skipped: dict[str, int] = collections.defaultdict(int)
    wrong: dict[str, None] = {}
    places = {title: f"methods.{i}" for i, title in enumerate(model.titles)}
    _load_all(model)
    if not allow_large:
        refuse_large(plan)
    kinds: dict[tuple, list[Experiment]] = {}
    for cell in plan.cells:
        kinds.setdefault((cell.case, cell.method, cell.variant), []).append(cell)
    for cells in kinds.values():
        try:
            _prepare(model, data, cells[0], places[cells[0].method])
        except DataUnavailable as error:
            skipped[str(error)] += len(cells)
        except InputError as error:
            wrong[str(error)] = None
    wrong |= dict.fromkeys(_unknown_attributes(model))
    if wrong:
        raise InputError("\n".join(wrong))
    return dict(skipped)


def _prepare(model: ModelFile, data: DataSets, cell: Experiment, where: str) -> None:
    """Do what comes before the fit of a cell; raises what a fit would."""
    estimator = registry.make_estimator(cell.name, cell.parameters, f"{where}.")
    inputs = inputs_of(model, data(cell), cell)
    if model.predicts and not hasattr(estimator, "predict"):
        raise InputError(
            f"{where} ({cell.method}): it says nothing of new rows; got a measure of rows to test; "
            "use another method"
        )
    rival = isinstance(registry.method(cell.name), registry.Rival)
    if not (rival or isinstance(estimator, Clusterer)):
        return
    with warnings.catch_warnings(), standard():
        warnings.simplefilter("ignore")
        try:
            if rival:
                check_rival(estimator, inputs.X)
            elif registry.method(cell.name).capabilities.pairs:
                estimator.check_parameters()
            else:
                estimator.prepare(inputs.X, inputs.y, **inputs.known)
        except (ValueError, TypeError) as error:
            said = " ".join(str(error).split())
            raise InputError(f"{where} ({cell.method}): {said}") from error


def _load_all(model: ModelFile) -> None:
    """Refuse methods that are not there, and seeds of those that draw nothing."""
    wrong = []
    for i, spec in enumerate(model.methods):
        try:
            kind = registry.method(spec.name).load()
            if "random_state" in {*spec.parameters, *spec.grid}:
                complaint = f"{kind.__name__} has no such parameter; methods.{i}.random_state"
                registry.refuse_unknown("random_state", kind._get_param_names(), complaint)
        except InputError as error:
            wrong.append(f"methods.{i}: {error}")
    if wrong:
        raise InputError("\n".join(wrong))


def _unknown_attributes(model: ModelFile) -> list[str]:
    """Complaints about measures that are attributes of none of the methods."""
    documented: dict[str, None] = {}
    for spec in model.methods:
        kind = registry.method(spec.name).load()
        documented |= dict.fromkeys(re.findall(r"\b[a-z]\w*_(?!\w)", kind.__doc__ or ""))
        renamed = (n for n in dir(kind) if isinstance(inspect.getattr_static(kind, n), Renamed))
        documented |= dict.fromkeys(renamed)
    asked = {n: m.attribute.split(".")[0] for n, m in model.measures.items() if m.attribute}
    return [
        f"no method has such an attribute; measures.{name}.attribute = {attribute!r}; "
        + registry.nearest(attribute, documented)
        for name, attribute in asked.items()
        if attribute not in documented
    ]


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
    others = fit_files.names(plan.model.report.picture) if plan.model.single else ()
    Store(folder).try_out(others)
    return chosen
