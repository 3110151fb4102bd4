"""Compute the lines of a report's figures: our methods and published values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nrprob.batch.measures import Figure, Setting
from nrprob.batch.parameters import as_text, describe, look_up
from nrprob.batch.plan import Experiment, matches
from nrprob.batch.report.averages import measured, parts
from nrprob.batch.report.comparison import is_ratio
from nrprob.batch.report.results import Results

__all__ = ["Chart", "Line", "chart", "is_number"]

Point = tuple[Any, float, float]  # x, y, standard error


@dataclass(frozen=True)
class Line:
    """Points of one method, and of one value of the series, by x."""

    method: str
    series: str
    published: bool
    points: Sequence[Point]


@dataclass(frozen=True)
class Chart:
    """A figure: lines over a common axis."""

    figure: Figure
    lines: Sequence[Line]

    @property
    def places(self) -> list[Any]:
        """All values of x, in their order."""
        points = {as_text(point[0]): point for line in self.lines for point in line.points}
        return [x for x, _, _ in _in_order([*points.values()])]


def chart(results: Results, figure: Figure) -> Chart:
    """Lines of one of the model's figures.

    Ours first, method by method; then published values of the tables' settings, where these say
    at which x they are.
    """
    model = results.model
    fits = results.where(figure.where)
    values = [results.cells[i].values for i in fits.index]
    fits = fits.assign(
        x=pd.Series([look_up(v, figure.x) for v in values], fits.index, dtype=object),
        series=[_series(figure, look_up(v, figure.series or "")) for v in values],
    )
    fits = fits[fits["x"].notna()]
    published = _published(results, figure)
    methods = figure.methods or [*dict.fromkeys([*model.titles, *(m for m, _ in published)])]
    lines: list[Line] = []
    for method in methods:
        names = parts(method, model.titles)
        own = fits[fits["method"].isin(names)]
        result: dict[str, list[Point]] = {}
        for (series, _), members in own.groupby(["series", own["x"].map(as_text)], sort=False):
            points = result.setdefault(series, [])
            ours = measured(members, names, figure.y, "mean")
            if ours is not None and np.isfinite(ours.value):
                points.append((members["x"].iat[0], ours.value, ours.error))
        lines += [Line(method, name, False, _in_order(points)) for name, points in result.items()]
    for (method, series), theirs in published.items():
        if method in methods and (figure.methods or not is_ratio(model, method)):
            lines.append(Line(method, series, True, _in_order([*theirs.values()])))
    return Chart(figure, [line for line in lines if line.points])


def _published(results: Results, figure: Figure) -> dict[tuple[str, str], dict[str, Point]]:
    """(method, series) -> x -> published mean, of settings that belong in a figure."""
    result: dict[tuple[str, str], dict[str, Point]] = {}
    for setting in (s for table in results.model.tables for s in table.settings):
        cells = [cell for cell in results.cells if matches(cell, setting.where)]
        x = _place(setting, cells, figure.x)
        others = (_place(setting, cells, name) == value for name, value in figure.where.items())
        if x is None or not all(others):
            continue
        series = _series(figure, _place(setting, cells, figure.series or ""))
        for method, measures in setting.published.items():
            mean = measures.get(figure.y, {}).get("mean")
            if mean is not None:
                points = result.setdefault((method, series), {})
                points.setdefault(as_text(x), (x, mean, np.nan))
    return result


def _place(setting: Setting, cells: Sequence[Experiment], path: str) -> Any:
    """Value that a setting states, or else what all of its cells agree on; None without one."""
    stated = setting.where.get(path, look_up(setting.where, path))
    if stated is not None:
        return stated
    agreed = {as_text(v): v for cell in cells if (v := look_up(cell.values, path)) is not None}
    return next(iter(agreed.values())) if len(agreed) == 1 else None


def _series(figure: Figure, value: Any) -> str:
    return "" if value is None else describe({figure.series or "": value})


def is_number(value: Any) -> bool:
    """Whether a value is at a place of its own on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_order(points: Sequence[Point]) -> Sequence[Point]:
    """By x, if they are all numbers; else as they come."""
    numbers = all(is_number(x) for x, _, _ in points)
    return sorted(points, key=lambda point: point[0]) if numbers else points
