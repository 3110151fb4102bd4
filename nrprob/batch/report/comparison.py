"""Tables of a report: our methods and published values by setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from nrprob.batch.measures import Setting, Table
from nrprob.batch.parameters import describe_parameters, shared_parameters
from nrprob.batch.report.averages import (
    PREFIX,
    SPREADS,
    Mark,
    Value,
    compute_statistic,
    count_decimals,
    judge,
    split_ratio,
    summarize,
)
from nrprob.batch.report.results import Results, iterate_settings
from nrprob.batch.schema import ModelFile

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Best", "Comparison", "Entry", "Row", "compare_published", "is_ratio", "summarize_all"]

Column = tuple[str, str]  # measure and statistic


@dataclass(frozen=True)
class Entry:
    """Entry of a table: a statistic of one measure for one method in one setting.

    Attributes
    ----------
    ours : value from the fits of the run; None without finished fits
    published : published value, or None
    mark : result of the comparison of ``ours`` and ``published`` (`judge`); None if one of the
        values is absent, or if neither high nor low values are better
    """

    ours: Value | None = None
    published: float | None = None
    mark: Mark | None = None


@dataclass(frozen=True)
class Row:
    """Row of a table: the values of one method in one setting of the table.

    Attributes
    ----------
    method : title of the method, or its name among published values
    kind : "ours" if the run has fits of the method, "published" if it has none, "ratio" if the
        values are ratios of two methods
    fits : fits of the method in this setting, rows of ``Results.frame``
    n_settings : number of settings of data and parameters over which the entries average, since the
        setting of the table may leave some of them open
    entries : entries of the row, by measure and statistic
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
        """Number of finished fits."""
        return int(self.fits["done"].sum())

    @property
    def n_infeasible(self) -> int:
        """Number of finished fits with infeasible constraints."""
        return int((self.fits["done"] & ~self.fits["feasible"]).sum())


@dataclass(frozen=True)
class Group:
    """The rows of one setting of a table, with a heading (``label``) and a note."""

    label: str
    note: str
    rows: Sequence[Row]


@dataclass(frozen=True)
class Best:
    """Our best method and the best published method, by one measure in one setting.

    ``ours`` and ``published`` are the values of the two methods, and ``mark`` is the result of the
    comparison.
    """

    setting: str
    measure: str
    our_method: str
    ours: Value
    published_method: str
    published: float
    mark: Mark


@dataclass(frozen=True)
class Comparison:
    """A table of a report: columns, and a group of rows for every setting.

    ``decimals`` are the numbers of decimals of the published values, by column. ``shared``
    describes the parameters that all settings share. ``best`` compares our best method with the
    best published method.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    groups: Sequence[Group]
    note: str = ""
    shared: str = ""
    best: Sequence[Best] = ()
    decimals: Mapping[Column, int] = field(default_factory=dict)

    @property
    def rows(self) -> list[Row]:
        """Rows of all settings."""
        return [row for group in self.groups for row in group.rows]

    @property
    def entries(self) -> list[Entry]:
        """Entries of all rows."""
        return [row.entries[column] for row in self.rows for column in self.columns]


def compare_published(results: Results, table: Table) -> Comparison:
    """Compare our values with published values in ``table``, a table of the model file.

    By default, the table has all our methods and all published methods. In a setting, a method
    without fits and without published values is omitted. Columns without any value are omitted,
    too.
    """
    model, settings = results.model, table.settings
    columns = _select_columns(results, table)
    decimals = {column: count_decimals(_published_values(settings, *column)) for column in columns}
    same = shared_parameters([s.where for s in settings])
    published = (method for s in settings for method in s.published)
    methods = table.methods or [*dict.fromkeys([*model.titles, *published])]
    groups, best = [], []
    for setting in settings:
        fits = results.filter_fits(setting.where)
        rows = [_compare_method(model, fits, method, decimals, setting) for method in methods]
        rows = [
            row
            for row in rows
            if row.method in setting.published or (row.kind == "ours" and row.n_planned)
        ]
        label = describe_parameters({k: v for k, v in setting.where.items() if k not in same})
        groups.append(Group(label, setting.note, rows))
        best += _find_best(model, label or setting.note, setting, rows, decimals)
    entries = [row.entries for group in groups for row in group.rows]
    filled = [c for c in columns if any(row_entries[c] != Entry() for row_entries in entries)]
    return Comparison(
        table.name, table.caption, filled or columns, groups, table.note,
        describe_parameters(same), best, decimals,
    )  # fmt: skip


def _published_values(settings: Sequence[Setting], measure: str, statistic: str) -> Iterator[float]:
    """Published values of all methods in all settings, for one measure and statistic."""
    for setting in settings:
        for measures in setting.published.values():
            values: Mapping[Any, float] = measures.get(measure, {})
            if statistic in values:
                yield values[statistic]


def _select_columns(results: Results, table: Table) -> list[Column]:
    measures = table.measures
    if not measures:
        ours = [name for name in results.comparable if name not in results.model.built_in]
        published = [m for s in table.settings for values in s.published.values() for m in values]
        measures = [*dict.fromkeys([*ours, *published])]
    return [(measure, statistic) for measure in measures for statistic in table.statistics]


def _compare_method(
    model: ModelFile,
    fits: pd.DataFrame,
    method: str,
    decimals: Mapping[Column, int],
    setting: Setting,
) -> Row:
    """Make the row of a method in one setting: our values, published values and their marks.

    ``fits`` are the fits of all methods in this setting. The keys of ``decimals`` are the columns
    of the table, and its values numbers of decimals.
    """
    names = split_ratio(method, model.titles)
    fits = fits[fits["method"].isin(names)]
    published: Mapping[str, Mapping[Any, float]] = setting.published.get(method, {})
    entries = {}
    for measure, statistic in decimals:
        theirs = published.get(measure, {}).get(statistic)
        ours = mark = None
        if theirs is not None or len(names) == 1:  # compute a ratio only to compare a published one
            ours = compute_statistic(fits, names, measure, statistic)
        # Neither direction is better for a ratio or a spread.
        if ours and theirs is not None and len(names) == 1 and statistic not in SPREADS:
            mark = judge(ours, theirs, model.goal(measure), decimals[measure, statistic])
        entries[measure, statistic] = Entry(ours, theirs, mark)
    if len(names) > 1:
        return Row(method, "ratio", fits, 1, entries)
    settings = fits[["method", "case", "variant"]].drop_duplicates()
    return Row(method, "published" if fits.empty else "ours", fits, len(settings), entries)


def is_ratio(model: ModelFile, method: str) -> bool:
    """Whether a published method "A / B" is a ratio of two methods, of this run or published."""
    published = {name for table in model.tables for s in table.settings for name in s.published}
    return len(split_ratio(method, [*({*model.titles} | published) - {method}])) > 1


def _find_best(
    model: ModelFile,
    label: str,
    setting: Setting,
    rows: Sequence[Row],
    decimals: Mapping[Column, int],
) -> list[Best]:
    """Compare our best with the best published method of a setting, for every measure with a goal.

    ``label`` names the setting, ``rows`` are its rows, and the keys of ``decimals`` are the columns
    of the table. The methods are compared by the mean, or by the maximum or minimum if the table
    has no mean.
    """
    result = []
    for measure in dict.fromkeys(name for name, _ in decimals):
        goal = model.goal(measure)
        statistic = next((s for s in ("mean", "max", "min") if (measure, s) in decimals), None)
        if goal == "none" or statistic is None:
            continue
        choose = max if goal == "high" else min
        ours = [
            (value.value, row.method, value)
            for row in rows
            if row.kind == "ours" and (value := row.entries[measure, statistic].ours) is not None
        ]
        theirs = [
            (values[measure][statistic], method)
            for method, values in setting.published.items()
            if statistic in values.get(measure, {}) and not is_ratio(model, method)
        ]
        if not ours or not theirs:
            continue
        _, our_method, value = choose(ours, key=lambda pair: pair[0])
        published, method = choose(theirs, key=lambda pair: pair[0])
        mark = judge(value, published, goal, decimals[measure, statistic])
        if mark is not None:
            result.append(Best(label, measure, our_method, value, method, published, mark))
    return result


def summarize_all(results: Results) -> Comparison:
    """Make a table with the means of all measures, for all methods and settings of a run."""
    measures, differs = results.comparable, results.comparable != [*results.measures]
    if results.frame[PREFIX + "objective"].isna().all():  # external estimators have none
        measures = [name for name in measures if name != "objective"]
    columns = [(measure, "mean") for measure in measures]
    groups: dict[str, list[Row]] = {}
    for data, method, parameters, fits in iterate_settings(results):
        entries = {column: Entry(summarize(fits, *column)) for column in columns}
        label = f"{method}, {parameters}" if parameters else method
        groups.setdefault(data, []).append(Row(label, "ours", fits, 1, entries))
    return Comparison(
        "All results",
        "Every method and setting"
        + ("; objectives, which are comparable only within a method, are in results.nc" * differs),
        columns,
        [Group(label, "", rows) for label, rows in groups.items()],
    )
