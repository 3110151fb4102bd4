"""Expand a model file into cells: one data set, one setting of one method, one seed.

The identifier of a cell follows from everything that determines its result and from nothing else,
so that titles, tables and the order of a file may change without a new computation. Cells are
grouped into batches, the units of work and of writing. Both follow from the file alone, so that
several runners divide the same work in the same way.
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
from nrprob.batch.measures import Measure
from nrprob.batch.parameters import FLAT, as_text, look_up
from nrprob.batch.schema import MOST_SEED, MethodSpec, ModelFile
from nrprob.batch.supervision import MOST_FITS
from nrprob.exceptions import InputError, short_repr
from nrprob.files import digest

__all__ = [
    "Batch",
    "Experiment",
    "Plan",
    "check_seed",
    "differences",
    "expand",
    "file_digest",
    "matches",
    "select",
]

BATCH = 32  # cells; a killed run loses at most one batch of them
_REFERENCE = re.compile(r"data\.(\w+(?:\.\d+)*)")


@dataclass(frozen=True, eq=False)
class Experiment:
    """One fit.

    Attributes
    ----------
    id : name that follows from what determines the result
    case : number of the data's case
    repeat, seed : number of the data set in its case, and the seed that draws it
    method : title of the method
    name : short name of the method, or import path of a rival
    run : number of the fit
    data : parameters of the data
    parameters : parameters of the estimator, ``random_state`` included
    wanted : which wanted labels are drawn, and whether the method is told them; None for none
    split : shares of the parts of the rows, and whether the method is told labels; None for none
    constraints : which pairs are drawn; None for none
    identity : everything that determines the result, as JSON; empty in a plan that was read
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
    wanted: dict[str, Any] | None = None
    split: dict[str, Any] | None = None
    constraints: dict[str, Any] | None = None
    identity: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """All parameters by name; those of the data come first."""
        values = dict(self.parameters)
        for table, amount in self.drawn.items():
            if table in FLAT:
                values |= {f"{table}.{name}": value for name, value in amount.items()}
            else:
                values[table] = amount
        return values | self.data

    @property
    def drawn(self) -> dict[str, dict[str, Any]]:
        """What is drawn for it, by the table of the file that says so."""
        tables = {"wanted": self.wanted, "split": self.split, "constraints": self.constraints}
        return {name: amount for name, amount in tables.items() if amount is not None}

    @property
    def variant(self) -> str:
        """What is fitted to the data, seeds aside: the parameters, and what is drawn."""
        rest = {k: v for k, v in self.parameters.items() if k != "random_state"}
        rest |= {f"of {name}": amount for name, amount in self.drawn.items()}
        return json.dumps(rest, sort_keys=True, default=str)


@dataclass(frozen=True)
class Batch:
    """Cells that are likely to share a compiled program, computed and written together."""

    id: str
    cells: tuple[Experiment, ...]


@dataclass(frozen=True)
class Plan:
    """All cells of a model file, and where their results come from (`nrprob.batch.provenance`)."""

    model: ModelFile
    cells: tuple[Experiment, ...]
    batches: tuple[Batch, ...]
    origin: dict[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """As JSON, for whoever reads a folder of results."""
        cells = [asdict(cell) for cell in self.cells]
        for cell in cells:
            del cell["identity"]  # which follows from the rest, and is stored with results
        return json.dumps(
            {
                "format": 1,
                "origin": self.origin,
                "model": self.model.model_dump(mode="json"),
                "cells": cells,
            },
            indent=1,
        )


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _digest(value: Any) -> str:
    return _name(_canonical(value))


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _cases(model: ModelFile) -> list[dict[str, Any]]:
    """Parameters of the data, case by case."""
    data = model.data
    return [
        {**data.parameters, **case, **chosen}
        for case in data.cases or [{}]
        for chosen in _combinations(data.grid)
    ]


def _refuse_too_many(count: int, of: str) -> None:
    if count > MOST_FITS:
        raise InputError(
            f"there are too many {of}; grids, cases, repeats and runs make {count}; ask for at "
            f"most {MOST_FITS}"
        )


def _size(grid: Mapping[str, Sequence[Any]]) -> int:
    return math.prod(map(len, grid.values()))


def _resolve(value: Any, data: Mapping[str, Any], where: str) -> Any:
    """A parameter of a method: taken from the data, or "none", which TOML lacks."""
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
            + (registry.nearest(reference[1], data) if data else "write the value itself")
        )
    return result


def check_seed(value: Any, where: str) -> int:
    """Seed of the first run, 0 for None; ``where`` names the place.

    Raises
    ------
    nrprob.exceptions.InputError
        If it is none that NumPy's generators take.
    """
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= MOST_SEED:
        raise InputError(
            f"a seed is a whole number from 0 to {MOST_SEED}; {where} = {value!r}; choose one"
        )
    return value


def file_digest(path: Path) -> str:
    """SHA-256 of the content of a data file.

    Raises
    ------
    nrprob.exceptions.InputError
        If it cannot be read.
    """
    try:
        return digest(path)
    except OSError as error:
        raise InputError(f"no such data file; {path}; check the path") from error


def _kind(cell: Experiment) -> str:
    """Cells of one kind mostly share shapes: they differ in seeds and in real numbers."""
    plain = {
        key: "a number" if isinstance(value, float) else value
        for key, value in cell.parameters.items()
        if key not in ("random_state", "max_iter")
    }
    kind: list[Any] = [cell.case, cell.name, plain]
    if cell.wanted is not None:  # told no label at all, a method is another program
        kind.append(cell.wanted["told"] and cell.wanted.get("per_class") != 0)
    if cell.split is not None:
        kind.append(cell.split)
    return _digest(kind)


def expand(model: ModelFile) -> Plan:
    """List the cells of a model file, in the order of the file.

    Raises
    ------
    nrprob.exceptions.InputError
        If a method refers to a parameter that the data do not have, a data file is missing, or
        there are too many fits.
    """
    data = model.data
    # They are counted before they are listed.
    n_sets = max(len(data.cases), 1) * _size(data.grid)
    _refuse_too_many(n_sets, "data sets")
    _refuse_too_many(n_sets * len(model.methods), "pairs of a data set and a method")
    cases = _cases(model)
    amounts = {name: table.amounts for name, table in model.drawn.items()}
    chosen = [
        (number, case, i, spec)
        for number, case in enumerate(cases)
        for i, spec in enumerate(model.methods)
        if _is_for(spec, case)
    ]
    n_fits = sum(_size(spec.grid) * (spec.runs or model.runs) for *_, spec in chosen)
    _refuse_too_many(n_fits * _size(amounts) * data.repeats, "fits")
    used = {i for _, _, i, _ in chosen}
    for i, spec in enumerate(model.methods):
        if i not in used:
            raise InputError(
                f"methods.{i}.where is true of no data set; {spec.where}; correct it, or leave the "
                "method out"
            )
    shared = _of_all(model)
    cells = []
    for number, case, i, spec in chosen:
        told = {"wanted": {"told": spec.wanted}}
        if model.split is not None:
            told["split"] = {"told": model.split.told and spec.wanted}
        for setting in _combinations(spec.grid):
            given = {
                key: _resolve(value, case, f"methods.{i}.{key}")
                for key, value in (spec.parameters | setting).items()
            }
            first = check_seed(given.get("random_state"), f"methods.{i}.random_state")
            for amount, repeat, run in itertools.product(
                [*_combinations(amounts)], range(data.repeats), range(spec.runs or model.runs)
            ):
                cell = Experiment(
                    "", number, repeat, data.seed + repeat, spec.label, spec.name, run, case,
                    given | {"random_state": first + run},
                    **{name: values | told.get(name, {}) for name, values in amount.items()},
                )  # fmt: skip
                identity = _identity(model, shared, cell)
                cells.append(replace(cell, id=_name(identity), identity=identity))
    return Plan(model, tuple(cells), tuple(_batches(cells)))


def _of_all(model: ModelFile, file: str | None = None) -> dict[str, Any]:
    """What determines the results of all cells; ``file`` is the digest of the data file."""
    data = model.data
    optional = ("rows", "views", "components")
    others = ("parameters", "cases", "grid", "seed", "repeats", "file")
    source = data.model_dump(mode="json", exclude={*others, *optional})
    # Names of results do not change by keys that a file does not use.
    source |= {name: value for name in optional if (value := getattr(data, name))}
    if data.file is not None:
        source["file"] = file or file_digest(data.file)
    return {
        "data": source,
        "known": model.known_names,
        "measures": {name: _what(measure) for name, measure in model.measures.items()},
        "save": model.save.model_dump(),
    }


def _identity(model: ModelFile, shared: Mapping[str, Any], cell: Experiment) -> str:
    """Everything that determines the result of a cell, as JSON; the cell's name is its digest."""
    key = {**shared, "case": cell.data, "method": cell.name, "parameters": cell.parameters}
    if model.data.generator is not None:
        key["seed"] = cell.seed
    for name, amount in cell.drawn.items():
        # The rows follow from the data set and the run, whatever the method.
        key[name] = {**amount, "draw": [cell.seed, cell.run]}
    if cell.constraints is not None:
        key["constraints"]["of"] = model.classes
    return _canonical(key)


def differences(
    model: ModelFile, cells: Iterable[Experiment], identities: Mapping[str, str]
) -> Iterator[tuple[Experiment, str]]:
    """Compare the cells of a plan with the identities that were stored with their results.

    Parameters
    ----------
    model : ModelFile
        What was run.
    cells : iterable of Experiment
        Cells of its plan.
    identities : mapping of str to str
        `Experiment.identity` of all of these by their names, as it is stored.

    Yields
    ------
    tuple
        A cell that was computed with something else than the plan has, and what that is, in words.

    Raises
    ------
    ValueError, KeyError, TypeError, AttributeError
        If an identity is not one that `expand` has made for a cell of that name.
    """
    shared: dict[str | None, dict[str, Any]] = {}
    for cell in cells:
        if _name(identities[cell.id]) != cell.id:
            raise ValueError(f"the identity stored with fit {cell.id} is of another fit")
        stored = json.loads(identities[cell.id])
        # The data file itself may be gone.
        file = stored["data"].get("file")
        if file not in shared:
            shared[file] = _of_all(model, file)
        planned = _identity(model, shared[file], cell)
        if planned != identities[cell.id]:
            yield cell, _differing(_flat(stored), _flat(json.loads(planned)))


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Values of nested tables by their dotted names."""
    if not isinstance(value, Mapping) or not value:
        return {name: value}
    inner = [_flat(item, f"{name}.{key}" if name else key) for key, item in value.items()]
    return {key: item for table in inner for key, item in table.items()}


def _differing(computed: Mapping[str, Any], planned: Mapping[str, Any]) -> str:
    """The first value that differs, in words."""
    for name in dict.fromkeys([*computed, *planned]):
        own, other = (as_text(values.get(name)) for values in (computed, planned))
        if own != other:
            return f"{name} is {own} in the result and {other} in the plan"
    return "a number is written in another way"


def _what(measure: Measure) -> tuple[Any, ...]:
    """What determines a measure."""
    what: tuple[Any, ...] = measure.metric, measure.labeling, measure.parameters
    if measure.attribute is not None or measure.view is not None:
        what += measure.attribute, measure.view
    return what


def _is_for(method: MethodSpec, data: Mapping[str, Any]) -> bool:
    return not method.where or any(
        all(look_up(data, name) == value for name, value in where.items()) for where in method.where
    )


def _batches(cells: Sequence[Experiment]) -> Iterator[Batch]:
    kinds: dict[str, dict[str, Experiment]] = {}
    for cell in cells:
        kinds.setdefault(_kind(cell), {}).setdefault(cell.id, cell)
    for kind in kinds.values():
        members = list(kind.values())
        for first in range(0, len(members), BATCH):
            part = tuple(members[first : first + BATCH])
            yield Batch(_digest([cell.id for cell in part]), part)


def matches(cell: Experiment, where: Mapping[str, Any]) -> bool:
    """Whether a cell has these values of its parameters."""
    values = cell.values
    return all(look_up(values, name) == value for name, value in where.items())


def select(plan: Plan, only: Sequence[str]) -> set[str]:
    """Identifiers of the cells that meet all conditions NAME=VALUE.

    NAME is ``method`` (a title or a name), ``table``, ``repeat``, ``run`` or a parameter.

    Raises
    ------
    nrprob.exceptions.InputError
        If a condition cannot be read, or nothing meets them all.
    """
    several = isinstance(only, list | tuple)
    if not several or not all(isinstance(condition, str) for condition in only):
        raise TypeError(
            f"only must list conditions NAME=VALUE; got {short_repr(only)}; pass a list of strings"
        )
    chosen = list(plan.cells)
    for condition in only:
        name, equals, text = condition.partition("=")
        name, text = name.strip(), text.strip()
        if not equals:
            raise InputError(f"a condition is NAME=VALUE; --only {condition}; add the value")
        if name == "table":
            named = {t.name: t for t in plan.model.tables}
            registry.refuse_unknown(text, named, f"no such table; --only {condition}")
            table = named[text]
            chosen = [
                cell
                for cell in chosen
                if any(matches(cell, s.where) for s in table.settings)
                and (not table.methods or cell.method in table.methods)
            ]
            continue
        if name == "method":
            named_so = [cell for cell in chosen if text.lower() == cell.name.lower()]
            if named_so:
                chosen = named_so
                continue
        result = [(cell, value) for cell in chosen if (value := _place(cell, name)) is not None]
        if not result:
            names = {"method", "table", "repeat", "run"}.union(*(c.values for c in plan.cells))
            raise InputError(
                f"no cell has that parameter; --only {condition}; {registry.nearest(name, names)}"
            )
        wanted = text.replace(" ", "")
        values = dict.fromkeys(_text(value) for _, value in result)
        registry.refuse_unknown(wanted, values, f"no cell has that value; --only {condition}")
        chosen = [cell for cell, value in result if _text(value) == wanted]
    return {cell.id for cell in chosen}


def _place(cell: Experiment, name: str) -> Any:
    if name in ("method", "repeat", "run"):
        return getattr(cell, name)
    return look_up(cell.values, name)


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value)).replace(" ", "")
