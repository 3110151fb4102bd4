"""Ledger of published results: compare published values with stored results of this package.

A *cell* is a printed value of a method in a published table. A cell is *regenerated* if there is a
stored result of the same method in the same setting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from nrprob.batch.formats import PAGE
from nrprob.batch.measures import Setting
from nrprob.batch.modelfile import read_model
from nrprob.batch.published import FOLDER, GOALS, Published, read_published, select_published
from nrprob.batch.report.averages import Mark, Value, judge, split_ratio
from nrprob.batch.report.comparison import Best, Comparison, Entry, Group, Row
from nrprob.batch.report.stored_results import PlanDigests, StoredResult, read_results
from nrprob.batch.report.template import MARKS, render
from nrprob.batch.schema import ModelFile
from nrprob.exceptions import InputError
from nrprob.files import make_folder, write_atomically

__all__ = ["JSON", "Ledger", "Tally", "make_ledger", "write_ledger"]

JSON = "ledger.json"
# A printed value without an error is assumed to have the variance of our value. The difference of
# the two values then has twice this variance.
_ERRORS_OF_DIFFERENCE = 2 * math.sqrt(2)


@dataclass
class Tally:
    """Counts of the cells of a printed table, and of their comparisons with our values.

    A tally may instead count settings: pairs of a row of the table and a measure. In a setting, the
    recommended method is compared with the best printed method.

    Attributes
    ----------
    source, table : publication, and name of the printed table
    cells : number of cells, or of settings
    no_data : number of cells whose data are not available
    regenerated : number of cells with a stored result
    at_or_above, within_2_se, below : numbers of cells by the result of the comparison with the
        printed value. Cells without a better direction are not counted here
    """

    source: str
    table: str
    cells: int = 0
    no_data: int = 0
    regenerated: int = 0
    at_or_above: int = 0
    within_2_se: int = 0
    below: int = 0

    def add(self, has_data: bool, ours: Value | None, mark: Mark | None) -> None:
        """Count one cell.

        ``has_data`` states whether the data are available. ``ours`` is our value, or None, and
        ``mark`` the result of the comparison with the printed value (`judge`), or None.
        """
        self.cells += 1
        self.no_data += not has_data
        self.regenerated += ours is not None
        self.at_or_above += mark == "reached"
        self.within_2_se += mark == "within"
        self.below += mark == "worse"

    @property
    def counts(self) -> list[int]:
        """All counts, in the order of the attributes."""
        return [*self.as_dict().values()][2:]

    def as_dict(self) -> dict[str, Any]:
        """All attributes by name."""
        return dict(vars(self))


@dataclass
class Ledger:
    """Comparison of stored results with printed values.

    Attributes
    ----------
    faithful : counts of cells, one tally per printed table: the same method in the same setting
    ours : counts of settings, one tally per printed table: recommended and best printed method
    tables : printed tables with our values
    best : comparisons of the recommended method with the best printed method, in settings with a
        stored result of the recommended method
    n_outdated : number of stored results that no model file would compute in the same way
    """

    faithful: list[Tally] = field(default_factory=list)
    ours: list[Tally] = field(default_factory=list)
    tables: list[Comparison] = field(default_factory=list)
    best: list[Best] = field(default_factory=list)
    n_outdated: int = 0

    def dumps(self) -> str:
        """Write the counts as JSON."""
        content = {
            "faithful": [tally.as_dict() for tally in self.faithful],
            "ours": [tally.as_dict() for tally in self.ours],
            "n_outdated": self.n_outdated,
        }
        return json.dumps(content, indent=1)


@dataclass
class _Case:
    """The best printed value of a measure in a row of a printed table, and our value.

    ``ours`` is the best value of a recommended method, and ``title`` the title of this method.
    """

    printed: Published
    title: str = ""
    ours: Value | None = None


class _Model:
    """A model file with its stored results, which are given by digest and statistic."""

    def __init__(self, path: Path, stored: Mapping[tuple[str, str], StoredResult]):
        self.model: ModelFile = read_model(path)
        self._stored = stored
        self._digests = PlanDigests(self.model) if stored else None

    @property
    def n_outdated(self) -> int:
        """Number of stored results that do not belong to the plan."""
        current = self._digests.of_tables() if self._digests else ()
        return sum(digest not in current for digest, _ in self._stored)

    def find(self, setting: Setting, title: str, measure: str, statistic: str) -> Value | None:
        """Return the stored value of the method ``title`` in a setting.

        The value is None if it is not stored, or is outdated.
        """
        if self._digests is None:
            return None
        methods = split_ratio(title, self.model.titles)
        digest = self._digests.digest(setting.where, methods, measure)
        result = self._stored.get((digest, statistic))
        return None if result is None else result.as_value

    def regenerate(self, setting: Setting, printed: Published) -> Value | None:
        """Return the stored value that corresponds to a printed value; None without one.

        The stored value belongs to the method of the model file whose key ``printed`` is the name
        of the printed method, else to the method whose title is this name.
        """
        methods = [m.label for m in self.model.methods if m.printed == printed.method]
        values = (
            self.find(setting, title, printed.measure, printed.statistic)
            for title in [*methods, printed.method]
        )
        return next((value for value in values if value is not None), None)


def make_ledger(folder: Path | str) -> Ledger:
    """Compare the stored results of a folder of model files with the published values.

    Raises InputError if the folder has no published values, or a file is invalid.
    """
    folder = Path(folder)
    published = read_published(folder / FOLDER)
    if not published:
        raise InputError(
            f"there are no published values; {folder / FOLDER} has no tables; name a folder of "
            "model files with such tables"
        )
    stored, ledger = read_results(folder), Ledger()
    regenerated: dict[str, Value] = {}
    cases: dict[tuple[str, str, str, str], _Case] = {}
    for path in sorted(folder.glob("*.toml")):
        entry = _Model(path, stored.pop(path.stem, {}))
        ledger.n_outdated += entry.n_outdated
        for setting in (s for table in entry.model.tables for s in table.settings):
            printed = [
                p
                for p in select_published(setting.ids, published, f"{path}: ids")
                if p.measure in entry.model.measure_names
            ]
            for p in printed:
                value = None if p.id in regenerated else entry.regenerate(setting, p)
                if value is not None:
                    regenerated[p.id] = value
            _add_cases(cases, entry, setting, printed)
    ledger.n_outdated += sum(map(len, stored.values()))  # results of deleted model files
    _count(ledger, published.values(), regenerated, cases.values())
    return ledger


def _add_cases(
    cases: dict[tuple[str, str, str, str], _Case],
    entry: _Model,
    setting: Setting,
    printed: Sequence[Published],
) -> None:
    """Add the values of the recommended methods of a model file to ``cases``.

    The keys of ``cases`` are source, table, row and measure. ``entry`` is the model file, and
    ``printed`` are the printed values of one setting of the file.
    """
    for best in _best_printed(printed):
        case = cases.setdefault((best.source, best.table, best.row, best.measure), _Case(best))
        choose = max if best.goal == "higher" else min
        for method in (m for m in entry.model.methods if m.recommended):
            value = entry.find(setting, method.label, best.measure, best.statistic)
            if value is None:
                continue
            if case.ours is None or choose(value.value, case.ours.value) != case.ours.value:
                case.title, case.ours = method.label, value


def _best_printed(printed: Iterable[Published]) -> Iterator[Published]:
    """Yield the best printed value of every row of a table and every measure with a direction.

    Methods are compared by the mean. Ratios of two methods are left out.
    """
    groups: dict[tuple[str, str, str, str], list[Published]] = {}
    for p in printed:
        if p.goal in ("higher", "lower") and p.statistic == "mean" and " / " not in p.method:
            groups.setdefault((p.source, p.table, p.row, p.measure), []).append(p)
    for group in groups.values():
        choose = max if group[0].goal == "higher" else min
        yield choose(group, key=lambda p: p.value)


def _count(
    ledger: Ledger,
    published: Iterable[Published],
    regenerated: Mapping[str, Value],
    cases: Iterable[_Case],
) -> None:
    """Fill a ledger with the printed tables, and with the counts of their cells and settings.

    ``regenerated`` has our values by the id of the printed value.
    """
    tables: dict[tuple[str, str], list[Published]] = {}
    for p in published:
        if p.method:  # inputs of an experiment have no method
            tables.setdefault((p.source, p.table), []).append(p)
    tallies = {key: (Tally(*key), Tally(*key)) for key in tables}
    for key, printed in tables.items():
        ledger.tables.append(_make_table(*key, printed, regenerated, tallies[key][0]))
    for case in cases:
        p, ours = case.printed, case.ours
        mark = None if ours is None else judge(ours, p.value, GOALS[p.goal], p.decimals)
        tallies[p.source, p.table][1].add(p.data, ours, mark)
        if ours is not None and mark is not None:
            place = f"{p.source}, {p.table}, {p.row}"
            ledger.best.append(Best(place, p.measure, case.title, ours, p.method, p.value, mark))
    ledger.faithful = [tally for tally, _ in tallies.values()]
    ledger.ours = [tally for _, tally in tallies.values() if tally.cells]


def _make_table(
    source: str,
    name: str,
    printed: Sequence[Published],
    regenerated: Mapping[str, Value],
    tally: Tally,
) -> Comparison:
    """Make a printed table with our values, and count its cells in ``tally``."""
    columns = [*dict.fromkeys((p.measure, p.statistic) for p in printed)]
    rows: dict[str, dict[str, dict[tuple[str, str], Entry]]] = {}
    for p in printed:
        ours, mark = regenerated.get(p.id), None
        if ours is not None:
            goal = GOALS[p.goal]
            mark = judge(ours, p.value, goal, p.decimals, _ERRORS_OF_DIFFERENCE)
        tally.add(p.data, ours, mark)
        entries = rows.setdefault(p.row, {}).setdefault(p.method, dict.fromkeys(columns, Entry()))
        entries[p.measure, p.statistic] = Entry(ours, p.value, mark)
    no_fits = pd.DataFrame({"done": [], "feasible": []}, dtype=bool)
    groups = [
        Group(label, "", [_make_row(method, entries, no_fits) for method, entries in group.items()])
        for label, group in rows.items()
    ]
    decimals = {(p.measure, p.statistic): p.decimals for p in printed}
    return Comparison(f"{source}, {name}", "", columns, groups, decimals=decimals)


def _make_row(method: str, entries: Mapping[tuple[str, str], Entry], no_fits: pd.DataFrame) -> Row:
    is_ours = any(entry.ours is not None for entry in entries.values())
    return Row(method, "ours" if is_ours else "published", no_fits, 1, entries)


def write_ledger(ledger: Ledger, out: Path) -> list[Path]:
    """Write a ledger as a page and as ``ledger.json`` to a folder; return the two paths."""
    make_folder(out)
    page = render("ledger.html.jinja", ledger=ledger, title="Published results", marks=MARKS)
    contents = {PAGE: page, JSON: ledger.dumps()}
    for name, text in contents.items():
        write_atomically(out / name, text.encode())
    return [out / name for name in contents]
