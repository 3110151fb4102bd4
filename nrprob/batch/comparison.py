"""The numbers of a report: results averaged, and set beside published values.

A statistic (mean, min, max, range or sd) is taken over the fits of each data set, which differ in
their seeds, and then averaged over data sets. Its standard error is the standard deviation of these
values over data sets, over the square root of their number. With a single data set there is one for
the mean only, over the fits. Where two methods are compared, "p" is the p-value of a paired t-test,
over data sets, or over the fits of a single one. Fits whose constraints could not be kept have no
values: they are counted, and in no statistic but that of "infeasible".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from nrprob.batch.paths import look_up
from nrprob.batch.plan import Experiment, matches
from nrprob.batch.reported import Figure, Setting, Table
from nrprob.batch.schema import ModelFile

if TYPE_CHECKING:
    import xarray

__all__ = [
    "Best",
    "Chart",
    "Comparison",
    "Entry",
    "Facts",
    "Line",
    "Results",
    "Row",
    "Timing",
    "Value",
    "chart",
    "collect",
    "compare",
    "facts",
    "judge",
    "overview",
    "paired_test",
    "ratio",
    "summarize",
    "timings",
]

Mark = Literal["worse", "within", "reached"]
_STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "min": np.min,
    "max": np.max,
    "range": np.ptp,
    "sd": lambda values: np.std(values, ddof=1),
}
_SPREADS = ("range", "sd")  # neither is better for being high or low, nor there with one fit
_TEST = "p"  # of two methods, not of one
_SET = ["case", "repeat"]  # what a data set is known by
_OF = "measured: "  # before the names of measures in a frame, so that users may choose any
_SAME = 1e-9  # differences that are rounding


@dataclass(frozen=True)
class Value:
    """A statistic of ours and its standard error.

    Attributes
    ----------
    value : the statistic
    error : its standard error, NaN where there is none
    n_sets, n_runs : number of data sets, and of fits of one method on each (the largest)
    over : what the error is over, "data sets" or "fits"; empty where there is none
    """

    value: float
    error: float
    n_sets: int
    n_runs: int
    over: str


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
    n_done, n_planned : number of fits
    n_settings : number of settings of data and method that are averaged
    entries : one of each column
    n_infeasible : number of fits that are done, but whose constraints could not be kept
    """

    method: str
    kind: Literal["ours", "published", "ratio"]
    n_done: int
    n_planned: int
    n_settings: int
    entries: tuple[Entry, ...]
    n_infeasible: int = 0


@dataclass(frozen=True)
class Group:
    """The rows of a setting."""

    label: str
    note: str
    rows: tuple[Row, ...]


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
    """A table: groups of rows under columns of (measure, statistic)."""

    name: str
    caption: str
    note: str
    shared: str
    columns: tuple[tuple[str, str], ...]
    groups: tuple[Group, ...]
    best: tuple[Best, ...] = ()

    @property
    def rows(self) -> list[Row]:
        """Rows of all settings."""
        return [row for group in self.groups for row in group.rows]

    @property
    def entries(self) -> list[Entry]:
        """Cells of all rows."""
        return [entry for row in self.rows for entry in row.entries]

    @property
    def by_column(self) -> list[list[Entry]]:
        """Cells column by column."""
        return [[row.entries[i] for row in self.rows] for i in range(len(self.columns))]


@dataclass(frozen=True)
class Line:
    """Points of one method, and of one value of the series: (x, y, standard error), by x."""

    method: str
    series: str
    published: bool
    points: tuple[tuple[Any, float, float], ...]


@dataclass(frozen=True)
class Chart:
    """A figure: lines over a common axis."""

    figure: Figure
    lines: tuple[Line, ...]

    @property
    def places(self) -> list[Any]:
        """All values of x, in their order."""
        return _in_order(x for line in self.lines for x, _, _ in line.points)


@dataclass(frozen=True)
class Timing:
    """What fits took, and whether they ended well.

    Attributes
    ----------
    method, setting : which fits
    n_fits : number of them
    mean, longest, total : seconds of a device
    n_programs, compile_seconds : programs that made them, and what those took to compile
    n_unconverged, n_warned : fits that did not converge, that gave warnings
    """

    method: str
    setting: str
    n_fits: int
    mean: float
    longest: float
    total: float
    n_programs: int
    compile_seconds: float
    n_unconverged: int
    n_warned: int

    @property
    def compile_seconds_each(self) -> float:
        """Mean over the programs, NaN where none is known."""
        return self.compile_seconds / self.n_programs if self.n_programs else float("nan")


@dataclass(frozen=True)
class Facts:
    """What ran, where and when; texts go with the number of fits they hold for."""

    n_done: int
    n_planned: int
    n_sets: int
    n_sets_planned: int
    methods: tuple[str, ...]
    missing: Mapping[str, int]
    seconds: float
    compile_seconds: float
    started: tuple[str, str]
    devices: Mapping[str, int]
    dtypes: Mapping[str, int]
    hosts: Mapping[str, int]
    versions: Mapping[str, Mapping[str, int]]
    warnings: Mapping[str, int] = field(default_factory=dict)
    infeasible: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """All planned fits of a model, finished or not.

    ``frame`` has a row per cell of the plan, in its order: ``cell``, ``method``, ``case``,
    ``repeat``, ``run``, ``variant`` (the method's parameters, its seed aside, and what is drawn for
    it), ``done``, ``feasible``, and everything measured.
    """

    model: ModelFile
    cells: Sequence[Experiment]
    frame: pd.DataFrame
    measures: tuple[str, ...]

    def where(self, conditions: Mapping[str, Any]) -> pd.DataFrame:
        """Fits with these values of their parameters."""
        return self.frame[[matches(cell, conditions) for cell in self.cells]]


_BUILT_IN = {"n_clusters": "n_clusters_found", "objective": "objective", "seconds": "seconds"}
_CIRCUMSTANCES = (
    "compile_seconds", "converged", "warnings", "device", "dtype", "host", "started", "versions"
)  # fmt: skip


def collect(dataset: xarray.Dataset, model: ModelFile, cells: Sequence[Experiment]) -> Results:
    """Results beside the plan they belong to.

    Parameters
    ----------
    dataset : xarray.Dataset
        See `nrprob.batch.load`.
    model : ModelFile
        What was run.
    cells : sequence of Experiment
        Its plan.
    """
    frame = pd.DataFrame(
        {
            "cell": [cell.id for cell in cells],
            "method": [cell.method for cell in cells],
            "case": [cell.case for cell in cells],
            "repeat": [cell.repeat for cell in cells],
            "run": [cell.run for cell in cells],
            "variant": [_variant(cell) for cell in cells],
        }
    )
    measures = list(model.measures)
    if dataset.sizes.get("cell"):
        measures = [str(name) for name in dataset["measure"].values]
        found = pd.DataFrame(dataset["score"].values, columns=[_OF + name for name in measures])
        for name, variable in _BUILT_IN.items():
            found[_OF + name] = dataset[variable].values
        for name in _CIRCUMSTANCES:
            found[name] = dataset[name].values
        if "refusal" in dataset:
            found[_OF + "infeasible"] = (dataset["refusal"].values.astype(str) != "").astype(float)
        found.index = pd.Index(dataset["cell"].values.astype(str))
        # Methods of two titles and the same parameters share their fits.
        found = found[~found.index.duplicated()]
        done = frame["cell"].isin(found.index)
        found = found.reindex(frame["cell"]).set_axis(frame.index)
        frame = pd.concat([frame, found], axis=1).assign(done=done)
    else:
        names = [*(_OF + name for name in (*measures, *_BUILT_IN)), *_CIRCUMSTANCES]
        frame = frame.assign(done=False, **dict.fromkeys(names, np.nan))
    built_in: list[str] = [*_BUILT_IN]
    if model.constraints is not None:
        built_in.append("infeasible")
    feasible = frame["done"]
    if _OF + "infeasible" in frame:
        feasible = feasible & (frame[_OF + "infeasible"] != 1)
    elif model.constraints is not None:
        frame[_OF + "infeasible"] = np.nan
    return Results(model, cells, frame.assign(feasible=feasible), (*measures, *built_in))


def _variant(cell: Experiment) -> str:
    rest = {k: v for k, v in cell.parameters.items() if k != "random_state"}
    for name in ("wanted", "split", "constraints"):
        if (drawn := getattr(cell, name)) is not None:
            rest[f"of {name}"] = drawn
    return json.dumps(rest, sort_keys=True)


def summarize(fits: pd.DataFrame, measure: str, statistic: str) -> Value | None:
    """Statistic of a measure over fits, averaged over data sets.

    None without fits, for range and sd if every data set has only one, and for "p", which is of two
    methods.

    Parameters
    ----------
    fits : DataFrame
        Rows of ``Results.frame``; those that are not done, or infeasible, are left out.
    measure, statistic : str
        What to take of what.
    """
    fits = fits[fits["done" if measure == "infeasible" else "feasible"]]
    if statistic in _SPREADS:
        several = fits.duplicated([*_SET, "variant"], keep=False)
        fits = fits[several]
    if fits.empty or statistic == _TEST:
        return None
    take = _STATISTICS[statistic]
    # NumPy's functions, since those of pandas leave NaN out without a word.
    each = fits.groupby([*_SET, "variant"], sort=False)[_OF + measure].agg(
        lambda v: take(v.to_numpy(float))
    )
    sets = each.groupby(level=[0, 1], sort=False).agg(lambda v: np.mean(v.to_numpy())).to_numpy()
    values, over = (sets, "data sets") if len(sets) > 1 else (sets[:0], "")
    if len(sets) == 1 == len(each) and statistic == "mean" and len(fits) > 1:
        values, over = fits[_OF + measure].to_numpy(float), "fits"
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if over else np.nan
    n_runs = int(fits.groupby([*_SET, "variant"]).size().max())
    return Value(float(np.mean(sets)), float(error), len(sets), n_runs, over)


def ratio(one: pd.DataFrame, other: pd.DataFrame, measure: str) -> Value | None:
    """Ratio of two means over the data sets that both have; None without such.

    The error is that of a ratio of paired means, to first order. Pairs are data sets; with a single
    one they are the runs that both have, which are told the same labels if they are told any.
    """
    pairs = _pairs(one, other, measure, _SET)
    if not len(pairs) or pairs[:, 1].mean() == 0:
        return None
    n_sets, over = len(pairs), "data sets"
    top, bottom = pairs.mean(axis=0)
    value = top / bottom
    if n_sets == 1:
        pairs, over = _pairs(one, other, measure, [*_SET, "run"]), "fits"
    error = np.nan
    if len(pairs) > 1:
        rest = (pairs[:, 0] - value * pairs[:, 1]) / bottom
        error = np.std(rest, ddof=1) / np.sqrt(len(pairs))
    n_runs = int(max(fits.groupby(_SET).size().max() for fits in (one, other)))
    over = over if len(pairs) > 1 else ""
    return Value(float(value), float(error), n_sets, n_runs, over)


def paired_test(one: pd.DataFrame, other: pd.DataFrame, measure: str) -> Value | None:
    """p-value of a two-sided paired t-test of two methods; None with fewer than two pairs.

    Pairs are as in `ratio`: data sets, or the runs of a single one. If all differ by the same,
    which leaves the test without a spread, p is 1 for no difference and else 0.
    """
    from scipy.stats import ttest_1samp

    pairs = _pairs(one, other, measure, _SET)
    n_sets = len(pairs)
    if n_sets == 1:
        pairs = _pairs(one, other, measure, [*_SET, "run"])
    if len(pairs) < 2:
        return None
    differences = pairs[:, 0] - pairs[:, 1]
    if np.ptp(differences) <= _SAME:
        p = float(abs(differences[0]) <= _SAME)
    else:
        p = float(ttest_1samp(differences, 0).pvalue)
    n_runs = int(max(fits.groupby(_SET).size().max() for fits in (one, other)))
    return Value(p, np.nan, n_sets, n_runs, "")


def _pairs(one: pd.DataFrame, other: pd.DataFrame, measure: str, by: list[str]) -> np.ndarray:
    """Means (pairs, 2) of a measure over the fits of either that agree in ``by``."""
    means = [
        fits[fits["feasible"]].groupby(by)[_OF + measure].agg(lambda v: np.mean(v.to_numpy(float)))
        for fits in (one, other)
    ]
    return pd.concat(means, axis=1, join="inner").to_numpy()


def judge(ours: Value, published: float, goal: str) -> Mark | None:
    """Whether ours is as good as what was published, within two standard errors of it, or worse.

    Without a standard error any difference counts; None where neither high nor low is better.
    """
    if goal == "none" or np.isnan(ours.value):
        return None
    short = published - ours.value if goal == "high" else ours.value - published
    if short <= _SAME:
        return "reached"
    return "within" if short <= 2 * np.nan_to_num(ours.error) + _SAME else "worse"


def _goal(model: ModelFile, measure: str) -> str:
    return model.measures[measure].better if measure in model.measures else "none"


def _parts(method: str, titles: Sequence[str]) -> tuple[str, str] | None:
    """A and B of "A / B" where both are among the titles, and it is not."""
    pairs = ((one, other) for one in titles for other in titles if f"{one} / {other}" == method)
    return None if method in titles else next(pairs, None)


def _is_ratio(model: ModelFile, method: str) -> bool:
    """Whether a published method is a ratio of two, ours or not."""
    published = {name for table in model.tables for s in table.settings for name in s.published}
    return _parts(method, [*({m.label for m in model.methods} | published) - {method}]) is not None


def _measured(
    model: ModelFile, fits: pd.DataFrame, method: str, measure: str, statistic: str
) -> Value | None:
    """Ours for a method, or for a ratio of two."""
    parts = _parts(method, [m.label for m in model.methods])
    if parts is None:
        return summarize(fits[fits["method"] == method], measure, statistic)
    if statistic not in ("mean", _TEST):
        return None
    one, other = (fits[fits["method"] == title] for title in parts)
    return (paired_test if statistic == _TEST else ratio)(one, other, measure)


def _row(
    model: ModelFile,
    fits: pd.DataFrame,
    method: str,
    columns: Sequence[tuple[str, str]],
    published: Mapping[str, Mapping[Any, float]],
) -> Row:
    titles = [m.label for m in model.methods]
    parts = _parts(method, titles)
    own = fits[fits["method"].isin(parts or [method])]
    entries = []
    for measure, statistic in columns:
        theirs = published.get(measure, {}).get(statistic)
        ours = None
        if theirs is not None or not parts:  # of all ratios, those that were published
            ours = _measured(model, own, method, measure, statistic)
        # A ratio is not better for being high or low either.
        goal = "none" if parts or statistic in _SPREADS else _goal(model, measure)
        mark = judge(ours, theirs, goal) if ours and theirs is not None else None
        entries.append(Entry(ours, theirs, mark))
    kinds = own[["method", "case", "variant"]].drop_duplicates()
    return Row(
        method,
        "ratio" if parts else "published" if own.empty else "ours",
        int(own["done"].sum()),
        len(own),
        1 if parts else len(kinds),
        tuple(entries),
        int((own["done"] & ~own["feasible"]).sum()),
    )


def compare(results: Results, table: Table) -> Comparison:
    """One of the model's tables, ours beside published.

    Methods are those that the table lists, or else all of ours and all published ones; a method
    without fits and without published values in a setting has no row there.
    """
    model, settings = results.model, table.settings
    columns = _columns(results, table)
    shared = _shared([s.where for s in settings])
    groups, best = [], []
    published = dict.fromkeys(m for s in settings for m in s.published)
    methods = table.methods or [*dict.fromkeys([*(m.label for m in model.methods), *published])]
    for setting in settings:
        fits = results.where(setting.where)
        rows = [
            _row(model, fits, method, columns, setting.published.get(method, {}))
            for method in methods
        ]
        rows = [
            row
            for row in rows
            if row.method in setting.published or (row.kind == "ours" and row.n_planned)
        ]
        label = describe({k: v for k, v in setting.where.items() if k not in shared})
        groups.append(Group(label, setting.note, tuple(rows)))
        best += _best(model, label or setting.note, setting, rows, columns)
    whole = Comparison(
        table.name, table.caption, table.note, describe(shared),
        tuple(columns), tuple(groups), tuple(best),
    )  # fmt: skip
    return _without_empty_columns(whole)


def _without_empty_columns(whole: Comparison) -> Comparison:
    kept = [
        i
        for i, column in enumerate(whole.by_column)
        if any(entry.ours is not None or entry.published is not None for entry in column)
    ]
    if not kept:
        return whole
    groups = tuple(
        replace(
            group,
            rows=tuple(replace(r, entries=tuple(r.entries[i] for i in kept)) for r in group.rows),
        )
        for group in whole.groups
    )
    return replace(whole, columns=tuple(whole.columns[i] for i in kept), groups=groups)


def _columns(results: Results, table: Table) -> list[tuple[str, str]]:
    measures = table.measures
    if not measures:
        named = [m for s in table.settings for values in s.published.values() for m in values]
        built_in = results.model.built_in
        own = [name for name in results.measures if name not in built_in]
        measures = [*dict.fromkeys([*own, *named])]
    return [(measure, statistic) for measure in measures for statistic in table.statistics]


def _shared(conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = conditions[0]
    return {k: v for k, v in first.items() if all(k in c and c[k] == v for c in conditions)}


def describe(parameters: Mapping[str, Any]) -> str:
    """Parameters in words: "dims = [4, 4], beta = 0.5"."""
    texts = {k: v if isinstance(v, str) else _text(v) for k, v in parameters.items()}
    return ", ".join(f"{k} = {v}" for k, v in texts.items())


def _best(
    model: ModelFile,
    label: str,
    setting: Setting,
    rows: Sequence[Row],
    columns: Sequence[tuple[str, str]],
) -> list[Best]:
    """Best of ours beside the best published, of one statistic of every measure with a goal."""
    found = []
    for measure in dict.fromkeys(name for name, _ in columns):
        goal = _goal(model, measure)
        statistic = next((s for s in ("mean", "max", "min") if (measure, s) in columns), None)
        if goal == "none" or statistic is None:
            continue
        column = columns.index((measure, statistic))
        sign = 1 if goal == "high" else -1
        ours = [
            (sign * value.value, row.method, value)
            for row in rows
            if row.kind == "ours" and (value := row.entries[column].ours) is not None
        ]
        theirs = [
            (sign * values[measure][statistic], method)
            for method, values in setting.published.items()
            if statistic in values.get(measure, {}) and not _is_ratio(model, method)
        ]
        if not ours or not theirs:
            continue
        _, our_method, value = max(ours, key=lambda one: one[0])
        best, method = max(theirs, key=lambda one: one[0])
        mark = judge(value, sign * best, goal)
        if mark is not None:
            found.append(Best(label, measure, our_method, value, method, sign * best, mark))
    return found


def _kinds(results: Results) -> Iterable[tuple[str, str, str, pd.DataFrame]]:
    """(data, method, its parameters, fits) of every setting of the grid; only what varies is said.

    Data come first in the order, since that is how tables read.
    """
    first: dict[tuple[int, str, str], Experiment] = {}
    for i, cell in enumerate(results.cells):
        first.setdefault((cell.case, cell.method, results.frame["variant"].iat[i]), cell)
    data = [cell.data for cell in first.values()]
    varying = {k for values in data for k in values} - set(_shared(data))
    chosen = {m.label: [*m.grid] for m in results.model.methods}
    drawn = {name: getattr(results.model, name) for name in ("wanted", "split", "constraints")}
    curve = []
    for name, given in drawn.items():
        amounts = [] if given is None else given.amounts
        shared = _shared(amounts) if amounts else {}
        curve += [
            f"{name}.{k}" for k in dict.fromkeys(k for a in amounts for k in a if k not in shared)
        ]
    for (case, method, _), fits in results.frame.groupby(["case", "method", "variant"], sort=False):
        cell = first[case, method, fits["variant"].iat[0]]
        settings = {k: cell.parameters[k] for k in chosen[method] if k in cell.parameters}
        for name in curve:
            if (value := look_up(cell.values, name)) is not None:
                settings[name] = value
        yield (
            describe({k: v for k, v in cell.data.items() if k in varying}),
            method,
            describe(settings),
            fits,
        )


def overview(results: Results) -> Comparison:
    """A table of everything: all methods in all settings, means of all measures."""
    columns = [(measure, "mean") for measure in results.measures]
    groups: dict[str, list[Row]] = {}
    for data, method, chosen, fits in _kinds(results):
        entries = tuple(Entry(summarize(fits, *column)) for column in columns)
        label = f"{method}, {chosen}" if chosen else method
        infeasible = int((fits["done"] & ~fits["feasible"]).sum())
        row = Row(label, "ours", int(fits["done"].sum()), len(fits), 1, entries, infeasible)
        groups.setdefault(data, []).append(row)
    return Comparison(
        "All results",
        "Every method and setting.",
        "",
        "",
        tuple(columns),
        tuple(Group(label, "", tuple(rows)) for label, rows in groups.items()),
    )


def chart(results: Results, figure: Figure) -> Chart:
    """Lines of one of the model's figures.

    Ours first, method by method; then published values of the tables' settings, where these say
    at which x they are.
    """
    model = results.model
    titles = [m.label for m in model.methods]
    published = _published(results, figure)
    methods = figure.methods or [*dict.fromkeys([*titles, *(m for m, _ in published)])]
    fits = results.where(figure.where)
    values = {i: results.cells[i].values for i in fits.index}
    lines: list[tuple[str, str, bool, list[tuple[Any, float, float]]]] = []
    for method in methods:
        parts = _parts(method, titles)
        own = fits[fits["method"].isin(parts or [method])]
        points: dict[str, dict[str, tuple[Any, list[int]]]] = {}
        for i in own.index:
            x = look_up(values[i], figure.x)
            series = look_up(values[i], figure.series) if figure.series else None
            if x is not None:
                name = _series(figure, series)
                points.setdefault(name, {}).setdefault(_text(x), (x, []))[1].append(i)
        for name, places in points.items():
            drawn = []
            for x, members in places.values():
                ours = _measured(model, own.loc[members], method, figure.y, "mean")
                if ours is not None and np.isfinite(ours.value):
                    drawn.append((x, ours.value, ours.error))
            lines.append((method, name, False, drawn))
    for (method, name), theirs in published.items():
        if method in methods and (figure.methods or not _is_ratio(model, method)):
            lines.append((method, name, True, [(x, y, np.nan) for x, y in theirs.values()]))
    return Chart(
        figure,
        tuple(
            Line(method, name, theirs, tuple(_sorted(drawn)))
            for method, name, theirs, drawn in lines
            if drawn
        ),
    )


def _published(
    results: Results, figure: Figure
) -> dict[tuple[str, str], dict[str, tuple[Any, float]]]:
    """(method, series) -> x -> published mean, of settings that belong in a figure."""
    found: dict[tuple[str, str], dict[str, tuple[Any, float]]] = {}
    for setting in (s for table in results.model.tables for s in table.settings):
        cells = [cell for cell in results.cells if matches(cell, setting.where)]

        def place(path: str, setting: Setting = setting, cells: list[Experiment] = cells) -> Any:
            """What the setting says, or else what all of its cells agree on."""
            stated = setting.where.get(path, look_up(setting.where, path))
            if stated is not None:
                return stated
            agreed = {_text(v): v for c in cells if (v := look_up(c.values, path)) is not None}
            return next(iter(agreed.values())) if len(agreed) == 1 else None

        x = place(figure.x)
        series = place(figure.series) if figure.series else None
        if x is None or any(place(name) != value for name, value in figure.where.items()):
            continue
        for method, measures in setting.published.items():
            mean = measures.get(figure.y, {}).get("mean")
            if mean is not None:
                key = (method, _series(figure, series))
                found.setdefault(key, {}).setdefault(_text(x), (x, mean))
    return found


def _series(figure: Figure, value: Any) -> str:
    return "" if value is None else describe({figure.series or "": value})


def _text(value: Any) -> str:
    return "none" if value is None else json.dumps(value, default=str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_order(values: Iterable[Any]) -> list[Any]:
    """Distinct values: numbers by size, others as they come."""
    distinct = [*{_text(v): v for v in values}.values()]
    return sorted(distinct) if all(map(_number, distinct)) else distinct


def _sorted(points: Iterable[tuple[Any, float, float]]) -> list[tuple[Any, float, float]]:
    points = list(points)
    order = [_text(x) for x in _in_order(x for x, _, _ in points)]
    return sorted(points, key=lambda point: order.index(_text(point[0])))


def timings(results: Results) -> tuple[list[Timing], list[Timing]]:
    """What fits took, by method, and by method and setting."""
    done = results.frame[results.frame["done"]]
    methods = [_timing(str(m), "", fits) for m, fits in done.groupby("method", sort=False)]
    settings = [
        _timing(method, ", ".join(filter(None, [data, chosen])), fits[fits["done"]])
        for data, method, chosen, fits in _kinds(results)
        if fits["done"].any()
    ]
    return methods, settings


def _timing(method: str, setting: str, fits: pd.DataFrame) -> Timing:
    seconds = fits[_OF + "seconds"].to_numpy(float)
    n_programs, compiling = _compiled(fits)
    return Timing(
        method,
        setting,
        len(fits),
        float(seconds.mean()),
        float(seconds.max()),
        float(seconds.sum()),
        n_programs,
        compiling,
        int(((fits["converged"] == 0) & fits["feasible"]).sum()),
        int((fits["warnings"].astype(str) != "").sum()),
    )


def _compiled(fits: pd.DataFrame) -> tuple[int, float]:
    """Number of programs that made fits, and the seconds that their compilation took.

    Every fit has the seconds of its program: the same time to the last digit is the same program.
    """
    programs = fits["compile_seconds"].astype(float).dropna().unique()
    return len(programs), float(programs.sum())


def facts(results: Results) -> Facts:
    """What ran, where and when."""
    frame = results.frame
    done = frame[frame["done"]]
    versions: dict[str, dict[str, int]] = {}
    for text, count in done["versions"].value_counts(sort=False).items():
        for name, version in json.loads(str(text)).items():
            seen = versions.setdefault(name, {})
            seen[version] = seen.get(version, 0) + int(count)
    warned = done["warnings"].astype(str).map(lambda text: [*dict.fromkeys(text.splitlines())])
    started = done["started"].astype(str)
    return Facts(
        len(done),
        len(frame),
        len(done[_SET].drop_duplicates()),
        len(frame[_SET].drop_duplicates()),
        tuple(m.label for m in results.model.methods),
        _counts(frame.loc[~frame["done"], "method"]),
        float(done.drop_duplicates("cell")[_OF + "seconds"].astype(float).sum()),
        _compiled(done)[1],
        (started.min(), started.max()) if len(done) else ("", ""),
        _counts(done["device"]),
        _counts(done["dtype"]),
        _counts(done["host"]),
        versions,
        _counts(warned.explode().dropna()),
        _counts(done.loc[~done["feasible"], "method"]),
    )


def _counts(values: pd.Series) -> dict[str, int]:
    return {str(value): int(count) for value, count in values.value_counts().items()}
