"""Tables of a report: our methods and published values by setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nrprob.batch.measures import Setting, Table
from nrprob.batch.parameters import describe, shared
from nrprob.batch.report.averages import (
    OF,
    SPREADS,
    Mark,
    Value,
    decimals,
    judge,
    measured,
    parts,
    summarize,
)
from nrprob.batch.report.results import Results, kinds
from nrprob.batch.schema import ModelFile

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Best", "Comparison", "Entry", "Row", "compare", "is_ratio", "overview"]

Column = tuple[str, str]  # measure and statistic


@dataclass(frozen=True)
class Entry:
    """One measure and statistic of one row."""

    ours: Value | None = None
    published: float | None = None
    mark: Mark | None = None


@dataclass(frozen=True)
class Row:
    """One method in one setting.

    Attributes
    ----------
    method : its title
    kind : "ours", "published" (only) or "ratio"
    fits : its rows of ``Results.frame``
    n_settings : number of settings of data and method that are averaged
    entries : one of each column
    """

    method: str
    kind: Literal["ours", "published", "ratio"]
    fits: pd.DataFrame
    n_settings: int
    entries: Mapping[Column, Entry]

    @property
    def n_planned(self) -> int:
        """Number of fits."""
        return len(self.fits)

    @property
    def n_done(self) -> int:
        """Number of fits that are done."""
        return int(self.fits["done"].sum())

    @property
    def n_infeasible(self) -> int:
        """Number of fits that are done, but whose constraints could not be kept."""
        return int((self.fits["done"] & ~self.fits["feasible"]).sum())


@dataclass(frozen=True)
class Group:
    """The rows of a setting."""

    label: str
    note: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Best:
    """The best of our methods beside the best published one."""

    setting: str
    measure: str
    our_method: str
    ours: Value
    published_method: str
    published: float
    mark: Mark


@dataclass(frozen=True)
class Comparison:
    """A table: groups of rows under columns of (measure, statistic).

    ``places`` holds the decimals of the published values of every column.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    groups: Sequence[Group]
    note: str = ""
    shared: str = ""
    best: Sequence[Best] = ()
    places: Mapping[Column, int] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """Rows of all settings."""
        return [row for group in self.groups for row in group.rows]

    @property
    def entries(self) -> list[Entry]:
        """Cells of all rows."""
        return [row.entries[column] for row in self.rows for column in self.columns]


def compare(results: Results, table: Table) -> Comparison:
    """One of the model's tables, ours beside published.

    Methods are those that the table lists, or else all of ours and all published ones; a method
    without fits and without published values in a setting has no row there. Columns without any
    value are left out.
    """
    model, settings = results.model, table.settings
    columns = _columns(results, table)
    places = {column: decimals(_published(settings, *column)) for column in columns}
    same = shared([s.where for s in settings])
    groups, best = [], []
    published = (method for s in settings for method in s.published)
    methods = table.methods or [*dict.fromkeys([*model.titles, *published])]
    for setting in settings:
        fits = results.where(setting.where)
        rows = [
            row
            for method in methods
            if (row := _row(model, fits, method, places, setting)).method in setting.published
            or (row.kind == "ours" and row.n_planned)
        ]
        label = describe({k: v for k, v in setting.where.items() if k not in same})
        groups.append(Group(label, setting.note, rows))
        best += _best(model, label or setting.note, setting, rows, places)
    entries = [row.entries for group in groups for row in group.rows]
    filled = [column for column in columns if any(one[column] != Entry() for one in entries)]
    return Comparison(
        table.name, table.caption, filled or columns, groups, table.note, describe(same), best,
        places,
    )  # fmt: skip


def _published(settings: Sequence[Setting], measure: str, statistic: str) -> Iterator[float]:
    """Published values of a column, of all settings."""
    for setting in settings:
        for measures in setting.published.values():
            values: Mapping[Any, float] = measures.get(measure, {})
            if statistic in values:
                yield values[statistic]


def _columns(results: Results, table: Table) -> list[Column]:
    measures = table.measures
    if not measures:
        named = [m for s in table.settings for values in s.published.values() for m in values]
        own = [name for name in results.comparable if name not in results.model.built_in]
        measures = [*dict.fromkeys([*own, *named])]
    return [(measure, statistic) for measure in measures for statistic in table.statistics]


def _row(
    model: ModelFile,
    fits: pd.DataFrame,
    method: str,
    places: Mapping[Column, int],
    setting: Setting,
) -> Row:
    names = parts(method, model.titles)
    own = fits[fits["method"].isin(names)]
    published: Mapping[str, Mapping[Any, float]] = setting.published.get(method, {})
    entries = {}
    for measure, statistic in places:
        theirs = published.get(measure, {}).get(statistic)
        ours = mark = None
        if theirs is not None or len(names) == 1:  # of all ratios, those that were published
            ours = measured(own, names, measure, statistic)
        # Neither a ratio nor a spread is better for being high or low.
        if ours and theirs is not None and len(names) == 1 and statistic not in SPREADS:
            mark = judge(ours, theirs, model.goal(measure), places[measure, statistic])
        entries[measure, statistic] = Entry(ours, theirs, mark)
    if len(names) > 1:
        return Row(method, "ratio", own, 1, entries)
    settings = own[["method", "case", "variant"]].drop_duplicates()
    return Row(method, "published" if own.empty else "ours", own, len(settings), entries)


def is_ratio(model: ModelFile, method: str) -> bool:
    """Whether a published method is a ratio of two, ours or not."""
    published = {name for table in model.tables for s in table.settings for name in s.published}
    return len(parts(method, [*({*model.titles} | published) - {method}])) > 1


def _best(
    model: ModelFile,
    label: str,
    setting: Setting,
    rows: Sequence[Row],
    places: Mapping[Column, int],
) -> list[Best]:
    """Best of ours beside the best published, of one statistic of every measure with a goal."""
    result = []
    for measure in dict.fromkeys(name for name, _ in places):
        goal = model.goal(measure)
        statistic = next((s for s in ("mean", "max", "min") if (measure, s) in places), None)
        if goal == "none" or statistic is None:
            continue
        sign = 1 if goal == "high" else -1
        ours = [
            (sign * value.value, row.method, value)
            for row in rows
            if row.kind == "ours" and (value := row.entries[measure, statistic].ours) is not None
        ]
        theirs = [
            (sign * values[measure][statistic], method)
            for method, values in setting.published.items()
            if statistic in values.get(measure, {}) and not is_ratio(model, method)
        ]
        if not ours or not theirs:
            continue
        _, our_method, value = max(ours, key=lambda one: one[0])
        best, method = max(theirs, key=lambda one: one[0])
        mark = judge(value, sign * best, goal, places[measure, statistic])
        if mark is not None:
            result.append(Best(label, measure, our_method, value, method, sign * best, mark))
    return result


def overview(results: Results) -> Comparison:
    """A table of everything: all methods in all settings, means of all measures."""
    kept, several = results.comparable, results.comparable != [*results.measures]
    if results.frame[OF + "objective"].isna().all():  # rivals have none
        kept = [one for one in kept if one != "objective"]
    columns = [(measure, "mean") for measure in kept]
    groups: dict[str, list[Row]] = {}
    for data, method, chosen, fits in kinds(results):
        entries = {column: Entry(summarize(fits, *column)) for column in columns}
        label = f"{method}, {chosen}" if chosen else method
        groups.setdefault(data, []).append(Row(label, "ours", fits, 1, entries))
    return Comparison(
        "All results",
        "Every method and setting"
        + ("; objectives, which compare within a method alone, are in results.nc" * several),
        columns,
        [Group(label, "", rows) for label, rows in groups.items()],
    )
