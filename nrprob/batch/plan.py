"""Expand a model file into planned fits and batches.

A planned fit is an `Experiment`: one data set, one setting of one method, one seed. Code and files
call it a ``cell``. The *identity* of a fit is everything that determines its result, and the
identifier of the fit is a digest of the identity. If only titles, tables or the order of a model
file change, fits are therefore not computed again. A batch is a group of fits that are computed and
written together. Fits and batches depend only on the model file, so that several processes divide
the work in the same way.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nrprob.batch import registry
from nrprob.batch.measures import Setting
from nrprob.batch.parameters import FLAT, as_text, look_up
from nrprob.batch.schema import MAX_SEED, SAMPLING, MethodSpec, ModelFile
from nrprob.batch.splits import MAX_FITS
from nrprob.exceptions import InputError, short_repr
from nrprob.files import digest

__all__ = [
    "Batch", "Experiment", "Plan", "check_seed", "expand", "file_digest", "find_differences",
    "matches", "select", "shared_identity",
]  # fmt: skip

QUICK = 5  # a quick run computes one in so many data sets or runs
BATCH = 32  # maximum number of fits per batch; a killed run loses the batches that are not written
_REFERENCE = re.compile(r"data\.(\w+(?:\.\d+)*)")


@dataclass(frozen=True, eq=False)
class Experiment:
    """A planned fit: one data set, one setting of one method, one seed.

    Attributes
    ----------
    id : digest of ``identity``
    case : index of the combination of data parameters
    repeat : index of the data set among the repeats of its case
    seed : seed of the generator of the data set
    method : title of the method
    name : short name of the method, or import path of an external estimator
    run : index of the run of the method on this data set
    data : parameters of the data
    parameters : parameters of the estimator, ``random_state`` included
    partial_labels, split, constraints : settings of target labels, of a split and of pairs; None if
        the file has no such table. The key ``use_labels`` states whether the method gets the labels
    identity : everything that determines the result, as JSON; empty in a plan that was read from a
        file
    """

    id: str
    case: int
    repeat: int
    seed: int
    method: str
    name: str
    run: int
    data: dict[str, Any]
    parameters: dict[str, Any]
    partial_labels: dict[str, Any] | None = None
    split: dict[str, Any] | None = None
    constraints: dict[str, Any] | None = None
    identity: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """Parameters of data and method, and settings of labels, split and pairs, by name.

        A parameter of the data replaces any other entry of the same name.
        """
        values = dict(self.parameters)
        for table, amount in self.sampling.items():
            if table in FLAT:
                values |= {f"{table}.{name}": value for name, value in amount.items()}
            else:
                values[table] = amount
        return values | self.data

    @property
    def sampling(self) -> dict[str, dict[str, Any]]:
        """Settings by which target labels, split and link constraints are sampled.

        The keys are the names of these tables in the model file.
        """
        tables = {name: getattr(self, name) for name in SAMPLING}
        return {name: amount for name, amount in tables.items() if amount is not None}

    @property
    def variant(self) -> str:
        """Parameters of the method, and settings of labels, split and pairs, as text without seeds.

        Planned fits of one method and one case with equal texts differ in their seeds only.
        """
        rest = {k: v for k, v in self.parameters.items() if k != "random_state"}
        rest |= {f"of {name}": amount for name, amount in self.sampling.items()}
        return _as_json(rest)


@dataclass(frozen=True)
class Batch:
    """Planned fits that are computed and written together.

    They probably share a compiled program. ``id`` is a digest of the identifiers of the fits.
    """

    id: str
    cells: tuple[Experiment, ...]


@dataclass(frozen=True)
class Plan:
    """All planned fits of a model file.

    ``cells`` are the fits in the order of the file, and ``batches`` divide them into groups.
    ``origin`` is the provenance of the results (`nrprob.batch.provenance`).
    """

    model: ModelFile
    cells: tuple[Experiment, ...]
    batches: tuple[Batch, ...]
    origin: dict[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """Write the plan as JSON, without the identities of fits, which the results contain."""
        cells = [{k: v for k, v in asdict(c).items() if k != "identity"} for c in self.cells]
        model = self.model.model_dump(mode="json")
        content = {"format": 1, "origin": self.origin, "model": model, "cells": cells}
        return json.dumps(content, indent=1)


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _n_combinations(grid: Mapping[str, Sequence[Any]]) -> int:
    return math.prod(map(len, grid.values()))


def _check_count(count: int, what: str) -> None:
    if count > MAX_FITS:
        raise InputError(
            f"there are too many {what}; grids, cases, repeats and runs make {count}; ask for at "
            f"most {MAX_FITS}"
        )


def _resolve_value(value: Any, data: Mapping[str, Any], where: str) -> Any:
    """Resolve the value of a parameter of a method: references, and "none".

    A reference such as "data.dims.0" is replaced by the value of a parameter of the data, and the
    text "none" by None. ``data`` has the parameters of the data. ``where`` is the key of the
    parameter of the method, for messages.
    """
    if not isinstance(value, str):
        return value
    if value == "none":
        return None
    reference = _REFERENCE.fullmatch(value)
    if reference is None:
        return value
    result = look_up(data, reference[1])
    if result is None:
        raise InputError(
            f"the data have no such parameter; {where} = {value!r}; "
            + (registry.suggest_name(reference[1], data) if data else "write the value itself")
        )
    return result


def check_seed(value: Any, where: str) -> int:
    """Return the seed of the first run: ``value``, or 0 if ``value`` is None.

    Raises InputError for an invalid seed. ``where`` is the name of the option or key, for the
    message.
    """
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= MAX_SEED:
        raise InputError(
            f"a seed must be an integer from 0 to {MAX_SEED}; {where} = {value!r}; choose another "
            "seed"
        )
    return value


def file_digest(path: Path) -> str:
    """SHA-256 of the content of a data file; raises InputError if it cannot be read."""
    try:
        return digest(path)
    except OSError as error:
        raise InputError(f"no such data file; {path}; check the path") from error


def _program_key(cell: Experiment) -> str:
    """Text that is equal for planned fits that probably share a compiled program.

    Such fits differ only in seeds, ``max_iter``, continuous parameters, and the settings of pairs
    and of target labels. Most of their arrays therefore have equal shapes.
    """
    plain = {
        key: "a number" if isinstance(value, float) else value
        for key, value in cell.parameters.items()
        if key not in ("random_state", "max_iter")
    }
    key: list[Any] = [cell.case, cell.name, plain]
    if cell.partial_labels is not None:  # without labels, a method runs another program
        key.append(cell.partial_labels["use_labels"] and cell.partial_labels.get("per_class") != 0)
    if cell.split is not None:
        key.append(cell.split)
    return _as_json(key)


def expand(model: ModelFile) -> Plan:
    """List the planned fits of a model file, in the order of the file.

    Raises InputError if a method refers to a parameter that the data do not have, or if ``where``
    of a method selects no data set. Raises InputError also if a data file is missing, or if there
    are too many fits.
    """
    data = model.data
    # Count the combinations before they are listed, since their number may be huge.
    n_sets = max(len(data.cases), 1) * _n_combinations(data.grid)
    _check_count(n_sets, "data sets")
    _check_count(n_sets * len(model.methods), "pairs of a data set and a method")
    cases = [
        {**data.parameters, **case, **point}
        for case in data.cases or [{}]
        for point in _combinations(data.grid)
    ]
    amounts = {name: table.amounts for name, table in model.sampling.items()}
    pairs = [
        (number, case, i, spec)
        for number, case in enumerate(cases)
        for i, spec in enumerate(model.methods)
        if _applies(spec, case)
    ]
    n_fits = sum(_n_combinations(spec.grid) * (spec.runs or model.runs) for *_, spec in pairs)
    _check_count(n_fits * _n_combinations(amounts) * data.repeats, "fits")
    used = {i for _, _, i, _ in pairs}
    for i, spec in enumerate(model.methods):
        if i not in used:
            raise InputError(
                f"methods.{i}.where selects no data set; {spec.where}; correct where, or leave the "
                "method out"
            )
    # List the fits: every data set with every setting, amount, repeat and run of every method.
    shared = shared_identity(model)
    cells = []
    for number, case, i, spec in pairs:
        labels = {"partial_labels": {"use_labels": spec.use_labels}}
        if model.split is not None:
            labels["split"] = {"use_labels": model.split.use_labels and spec.use_labels}
        for setting in _combinations(spec.grid):
            parameters = {
                key: _resolve_value(value, case, f"methods.{i}.{key}")
                for key, value in (spec.parameters | setting).items()
            }
            first = check_seed(parameters.get("random_state"), f"methods.{i}.random_state")
            for amount, repeat, run in itertools.product(
                [*_combinations(amounts)], range(data.repeats), range(spec.runs or model.runs)
            ):
                cell = Experiment(
                    "", number, repeat, data.seed + repeat, spec.label, spec.name, run, case,
                    parameters | {"random_state": first + run},
                    **{name: values | labels.get(name, {}) for name, values in amount.items()},
                )  # fmt: skip
                identity = _identity(model, shared, cell)
                cells.append(replace(cell, id=_short_digest(identity), identity=identity))
    return Plan(model, tuple(cells), tuple(_make_batches(cells)))


def shared_identity(model: ModelFile, file: str | None = None) -> dict[str, Any]:
    """Part of the identity of a fit that all fits of a model file share.

    ``file`` is the digest of the data file; by default it is computed from the file.
    """
    data = model.data
    optional = ("rows", "views", "components", "tfidf")
    others = ("parameters", "cases", "grid", "seed", "repeats", "file")
    source = data.model_dump(mode="json", exclude={*others, *optional})
    # Keys that did not exist in earlier versions change the identity only if they are used.
    source |= {name: value for name in optional if (value := getattr(data, name))}
    if data.file is not None:
        source["file"] = file or file_digest(data.file)
    measures: dict[str, tuple[Any, ...]] = {}
    for name, m in model.measures.items():
        measures[name] = (m.metric, m.labeling, m.parameters)
        if m.attribute is not None or m.view is not None:
            measures[name] += (m.attribute, m.view)
    save = model.save.model_dump()
    return {"data": source, "known": model.known_names, "measures": measures, "save": save}


def _identity(model: ModelFile, shared: Mapping[str, Any], cell: Experiment) -> str:
    """Identity of a planned fit: everything that determines its result, as JSON.

    ``shared`` is the result of `shared_identity`.
    """
    key = {**shared, "case": cell.data, "method": cell.name, "parameters": cell.parameters}
    if model.data.generator is not None:
        key["seed"] = cell.seed
    for name, amount in cell.sampling.items():
        # The sampled rows depend on the data set and the run alone.
        key[name] = {**amount, "draw": [cell.seed, cell.run]}
    if cell.constraints is not None:
        key["constraints"]["of"] = model.classes
    return _as_json(key)


def find_differences(
    model: ModelFile, cells: Iterable[Experiment], identities: Mapping[str, str]
) -> Iterator[tuple[Experiment, str]]:
    """Compare planned fits with the identities that are stored with their results.

    ``identities`` has the stored identity of every fit, by the identifier of the fit. Yields every
    fit with another identity in the plan, and the first difference in words. A damaged identity
    raises ValueError, KeyError, TypeError or AttributeError.
    """
    shared: dict[str | None, dict[str, Any]] = {}
    for cell in cells:
        if _short_digest(identities[cell.id]) != cell.id:
            raise ValueError(f"the identity stored with fit {cell.id} belongs to another fit")
        stored = json.loads(identities[cell.id])
        # The data file may have been deleted.
        file = stored["data"].get("file")
        if file not in shared:
            shared[file] = shared_identity(model, file)
        planned = _identity(model, shared[file], cell)
        if planned != identities[cell.id]:
            difference = _describe_difference(stored, json.loads(planned))
            yield cell, difference or "a number has another notation"


def _describe_difference(stored: Any, planned: Any, name: str = "") -> str:
    """Describe the first difference between two nested dictionaries; empty if they are equal.

    ``stored`` is from a result and ``planned`` from the plan. ``name`` is the path of keys to both
    values, joined by dots; empty for the whole dictionaries.
    """
    if isinstance(stored, Mapping) and isinstance(planned, Mapping):
        for key in dict.fromkeys([*stored, *planned]):
            place = f"{name}.{key}" if name else key
            if text := _describe_difference(stored.get(key), planned.get(key), place):
                return text
        return ""
    result, plan = as_text(stored), as_text(planned)
    return "" if result == plan else f"{name} is {result} in the result and {plan} in the plan"


def _applies(method: MethodSpec, data: Mapping[str, Any]) -> bool:
    return not method.where or any(
        all(look_up(data, name) == value for name, value in where.items()) for where in method.where
    )


def _make_batches(cells: Sequence[Experiment]) -> Iterator[Batch]:
    """Group fits that probably share a program into batches of at most `BATCH` fits."""
    groups: dict[str, dict[str, Experiment]] = {}
    for cell in cells:
        groups.setdefault(_program_key(cell), {}).setdefault(cell.id, cell)
    for group in groups.values():
        members = tuple(group.values())
        for first in range(0, len(members), BATCH):
            part = members[first : first + BATCH]
            yield Batch(_short_digest(_as_json([cell.id for cell in part])), part)


def matches(cell: Experiment, where: Mapping[str, Any]) -> bool:
    """Whether the parameters of a planned fit have the values in ``where``, by path.

    `nrprob.batch.parameters` defines paths.
    """
    values = cell.values
    return all(look_up(values, name) == value for name, value in where.items())


def select(plan: Plan, only: Sequence[str], quick: bool = False) -> set[str]:
    """Identifiers of the planned fits that meet all conditions NAME=VALUE.

    NAME is ``method`` (a title or a name), ``table``, ``repeat``, ``run`` or a parameter. ``only``
    lists the conditions. With ``quick``, only the share 1 / `QUICK` of the data sets of every case
    is selected, rounded up. If every case has one data set, this share of the runs of every method
    is selected instead. Raises InputError if a condition cannot be read, or no fit meets all
    conditions.
    """
    is_list = isinstance(only, list | tuple)
    if not is_list or not all(isinstance(condition, str) for condition in only):
        raise TypeError(
            f"only must list conditions NAME=VALUE; got {short_repr(only)}; pass a list of strings"
        )
    cells = list(plan.cells)
    tables = {table.name: table for table in plan.model.tables}
    for condition in only:
        # Every condition reduces the list of fits.
        name, equals, text = (part.strip() for part in condition.partition("="))
        if not equals:
            raise InputError(f"a condition is NAME=VALUE; got --only {condition}; add the value")
        if name == "table":
            registry.refuse_unknown(text, tables, f"no such table; --only {condition}")
            methods = tables[text].methods or plan.model.titles
            settings = tables[text].settings
            cells = [c for c in cells if c.method in methods and _in_settings(c, settings)]
        elif name == "method" and any(text.lower() == cell.name.lower() for cell in cells):
            cells = [cell for cell in cells if text.lower() == cell.name.lower()]
        else:
            pairs = [(c, value) for c in cells if (value := _value_text(c, name)) is not None]
            if not pairs:
                names = {"method", "table", "repeat", "run"}.union(*(c.values for c in plan.cells))
                nearest = registry.suggest_name(name, names)
                raise InputError(f"no cell has that parameter; --only {condition}; {nearest}")
            text = text.replace(" ", "")
            values = dict.fromkeys(value for _, value in pairs)
            registry.refuse_unknown(text, values, f"no cell has that value; --only {condition}")
            cells = [cell for cell, value in pairs if value == text]
    return {cell.id for cell in cells if not quick or _is_quick(plan.model, cell)}


def _is_quick(model: ModelFile, cell: Experiment) -> bool:
    """Whether a quick run computes a planned fit; see ``quick`` of `select`."""
    if model.data.repeats > 1:
        return cell.repeat * QUICK < model.data.repeats
    runs = {method.label: method.runs or model.runs for method in model.methods}
    return cell.run * QUICK < runs[cell.method]


def _in_settings(cell: Experiment, settings: Sequence[Setting]) -> bool:
    return any(matches(cell, setting.where) for setting in settings)


def _value_text(cell: Experiment, name: str) -> str | None:
    """Value of a condition NAME=VALUE for a planned fit, as text without spaces.

    ``name`` is the part NAME of a condition; see `select`. The value is None if the fit has no such
    parameter.
    """
    is_field = name in ("method", "repeat", "run")
    value = getattr(cell, name) if is_field else look_up(cell.values, name)
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value)).replace(" ", "")
