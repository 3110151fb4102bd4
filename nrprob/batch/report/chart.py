"""Figures of a report: their lines, the drawing, and a text alternative."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nrprob.batch.measures import Figure, Setting
from nrprob.batch.parameters import as_text, describe_parameters, look_up
from nrprob.batch.plan import Experiment, matches
from nrprob.batch.report.averages import compute_statistic, split_ratio
from nrprob.batch.report.comparison import is_ratio
from nrprob.batch.report.results import Results
from nrprob.batch.report.template import format_position, format_value, with_error
from nrprob.plotting.style import nth_colour, nth_marker

__all__ = ["Chart", "Line", "make_chart"]

Point = tuple[Any, float, float]  # x, y, standard error
_STYLES = ("-", (0, (5, 1.5)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1)))


@dataclass(frozen=True)
class Line:
    """Line of a figure: the points of one method and one value of ``Figure.series``.

    Every point has x, y and the standard error of y. ``published`` states whether the values of y
    are published ones.
    """

    method: str
    series: str
    published: bool
    points: Sequence[Point]

    @property
    def label(self) -> str:
        """Name of the line."""
        text = f"{self.method}, {self.series}" if self.series else self.method
        return f"{text} (published)" if self.published else text


@dataclass(frozen=True)
class Chart:
    """A figure of a report, as declared in the model file, with its lines."""

    figure: Figure
    lines: Sequence[Line]

    @property
    def positions(self) -> list[Any]:
        """All values of x: sorted if they are numbers, otherwise in the order of the points."""
        points = {as_text(point[0]): point for line in self.lines for point in line.points}
        return [x for x, _, _ in _sort_points([*points.values()])]

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """Table of the figure: every x as text, with the values of all lines as texts."""
        rows = []
        for x in self.positions:
            points = [[point for point in line.points if point[0] == x] for line in self.lines]
            texts = [" ± ".join(with_error(*p[0][1:], self.figure.y)) if p else "–" for p in points]
            rows.append((format_position(x), texts))
        return rows

    @property
    def alt(self) -> str:
        """Text alternative of the image."""
        name = self.figure.y
        sentences = [f"{name} against {self.figure.x_label or self.figure.x}."]
        for line in self.lines:
            (x, y, _), (last_x, last_y, _) = line.points[0], line.points[-1]
            text = f"{line.label}: {format_value(y, name)} at {format_position(x)}"
            if len(line.points) > 1:
                text += f", {format_value(last_y, name)} at {format_position(last_x)}"
            sentences.append(f"{text}.")
        return " ".join(sentences)

    @property
    def source(self) -> str:
        """Data URI of the image; empty without lines."""
        if not self.lines:
            return ""
        return "data:image/svg+xml;base64," + base64.b64encode(_draw_svg(self)).decode()


def make_chart(results: Results, figure: Figure) -> Chart:
    """Compute the lines of a figure.

    Our lines come first, by method. Published lines have one point for every setting of a table in
    which the parameter ``figure.x`` has a single value.
    """
    model = results.model
    fits = results.filter_fits(figure.where)
    values = [results.cells[i].values for i in fits.index]
    fits = fits.assign(
        x=pd.Series([look_up(v, figure.x) for v in values], fits.index, dtype=object),
        series=[_series_name(figure, look_up(v, figure.series or "")) for v in values],
    )
    fits = fits[fits["x"].notna()]
    published = _published_points(results, figure)
    methods = figure.methods or [*dict.fromkeys([*model.titles, *(m for m, _ in published)])]
    lines: list[Line] = []
    for method in methods:
        names = split_ratio(method, model.titles)
        of_method = fits[fits["method"].isin(names)]
        by_series: dict[str, list[Point]] = {}
        groups = of_method.groupby(["series", of_method["x"].map(as_text)], sort=False)
        for (series, _), members in groups:
            points = by_series.setdefault(series, [])
            ours = compute_statistic(members, names, figure.y, "mean")
            if ours is not None and np.isfinite(ours.value):
                points.append((members["x"].iat[0], ours.value, ours.error))
        for series, points in by_series.items():
            lines.append(Line(method, series, False, _sort_points(points)))
    for (method, series), by_x in published.items():
        if method in methods and (figure.methods or not is_ratio(model, method)):
            lines.append(Line(method, series, True, _sort_points([*by_x.values()])))
    return Chart(figure, [line for line in lines if line.points])


def _published_points(results: Results, figure: Figure) -> dict[tuple[str, str], dict[str, Point]]:
    """Published means of the settings that match a figure, by line and x.

    A line is identified by the pair (method, value of the series), and x is text.
    """
    result: dict[tuple[str, str], dict[str, Point]] = {}
    for setting in (s for table in results.model.tables for s in table.settings):
        cells = [cell for cell in results.cells if matches(cell, setting.where)]
        x = _unique_value(setting, cells, figure.x)
        others = (_unique_value(setting, cells, name) == v for name, v in figure.where.items())
        if x is None or not all(others):
            continue
        series = _series_name(figure, _unique_value(setting, cells, figure.series or ""))
        for method, measures in setting.published.items():
            mean = measures.get(figure.y, {}).get("mean")
            if mean is not None:
                points = result.setdefault((method, series), {})
                points.setdefault(as_text(x), (x, mean, np.nan))
    return result


def _unique_value(setting: Setting, cells: Sequence[Experiment], path: str) -> Any:
    """Value of the parameter at ``path`` that a setting states, or that all its fits share.

    ``cells`` are the planned fits of the setting. The value is None if the fits differ.
    """
    value = setting.where.get(path, look_up(setting.where, path))
    if value is not None:
        return value
    values = {as_text(v): v for cell in cells if (v := look_up(cell.values, path)) is not None}
    return next(iter(values.values())) if len(values) == 1 else None


def _series_name(figure: Figure, value: Any) -> str:
    return "" if value is None else describe_parameters({figure.series or "": value})


def _are_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _sort_points(points: Sequence[Point]) -> Sequence[Point]:
    """Sort points by x, if all x are numbers."""
    is_sorted = _are_numeric([x for x, _, _ in points])
    return sorted(points, key=lambda point: point[0]) if is_sorted else points


def _draw_svg(chart: Chart) -> bytes:
    """Draw a chart as SVG; return the content of the file."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    figure, values = chart.figure, chart.positions
    is_numeric = _are_numeric(values)
    position = {format_position(x): x if is_numeric else i for i, x in enumerate(values)}
    methods = [*dict.fromkeys(line.method for line in chart.lines)]
    series = [*dict.fromkeys(line.series for line in chart.lines)]
    labels = [*dict.fromkeys((line.method, line.series) for line in chart.lines)]
    longest = max(len(line.label) for line in chart.lines)
    columns = max(1, min(3, 68 // (longest + 7)))
    height = 3.6 + 0.24 * math.ceil(len(chart.lines) / columns)
    settings: Mapping[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": figure.name,
        "font.size": 11,
        "text.parse_math": False,  # a dollar in a title is not mathematics
    }
    with matplotlib.rc_context(settings):
        canvas = Canvas(figsize=(5.8, height), layout="constrained")
        ax = canvas.add_subplot()
        for line in chart.lines:
            # Markers identify methods, dashes series, and colours both.
            i, shape = labels.index((line.method, line.series)), methods.index(line.method)
            style = series.index(line.series) if len(series) > 1 else shape
            ax.errorbar(
                [position[format_position(x)] for x, _, _ in line.points],
                [y for _, y, _ in line.points],
                None if line.published else [error for *_, error in line.points],
                color=nth_colour(i),
                marker=nth_marker(shape),
                markerfacecolor="white" if line.published else None,
                linestyle=(0, (1, 1.5 + style % 4)) if line.published else _STYLES[style % 4],
                # Later lines are thinner, so that coinciding lines stay visible.
                linewidth=1.3 if line.published else max(1.3, 2.4 - 0.2 * i),
                markersize=max(4.0, 8.5 - 0.9 * i),
                capsize=3,
                label=line.label,
            )
        if figure.log_x and is_numeric:
            positive = [x for x in values if x > 0]
            if len(positive) == len(values):
                ax.set_xscale("log")
            elif positive:
                ax.set_xscale("symlog", linthresh=min(positive))
        if len(values) <= 10:
            ax.set_xticks([*position.values()], [*position])
            ax.minorticks_off()
        ax.set_xlabel(figure.x_label or figure.x)
        ax.set_ylabel(figure.y)
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
        canvas.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
