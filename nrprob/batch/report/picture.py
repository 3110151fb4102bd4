"""Draw the charts of a report, with a text alternative for each."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass

from nrprob.batch.report.chart import Chart, is_number
from nrprob.batch.report.filters import label, place, shown, with_error
from nrprob.plotting.style import colour, marker

__all__ = ["Picture", "draw"]

_STYLES = ("-", (0, (5, 1.5)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1)))


@dataclass
class Picture:
    """A figure as it stands on the page.

    Attributes
    ----------
    chart : its numbers
    source : address of the image, which holds it; empty without lines
    alt : what is seen, in words
    rows : places of x, and the numbers of all lines there
    """

    chart: Chart
    source: str
    alt: str
    rows: list[tuple[str, list[str]]]


def draw(chart: Chart) -> Picture:
    """Draw a chart, and say what is seen."""
    figure = chart.figure
    told = [f"{figure.y} against {figure.x_label or figure.x}."]
    for line in chart.lines:
        (x, y, _), (last_x, last_y, _) = line.points[0], line.points[-1]
        text = f"{label(line)}: {shown(y, figure.y)} at {place(x)}"
        if len(line.points) > 1:
            text += f", {shown(last_y, figure.y)} at {place(last_x)}"
        told.append(f"{text}.")
    rows = []
    for at in chart.places:
        result = [[point for point in line.points if point[0] == at] for line in chart.lines]
        texts = [" ± ".join(with_error(*p[0][1:], figure.y)) if p else "–" for p in result]
        rows.append((place(at), texts))
    return Picture(chart, _svg(chart) if chart.lines else "", " ".join(told), rows)


def _svg(chart: Chart) -> str:
    """A chart as the address of an image that holds it."""
    import matplotlib
    from matplotlib.figure import Figure

    figure, places = chart.figure, chart.places
    numeric = all(map(is_number, places))
    at = {place(x): x if numeric else i for i, x in enumerate(places)}
    methods = [*dict.fromkeys(line.method for line in chart.lines)]
    series = [*dict.fromkeys(line.series for line in chart.lines)]
    labels = [*dict.fromkeys((line.method, line.series) for line in chart.lines)]
    longest = max(len(label(line)) for line in chart.lines)
    columns = max(1, min(3, 68 // (longest + 7)))
    height = 3.6 + 0.24 * math.ceil(len(chart.lines) / columns)
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": figure.name,
        "font.size": 11,
        "text.parse_math": False,  # a dollar in a title is a dollar
    }
    with matplotlib.rc_context(settings):
        canvas = Figure(figsize=(5.8, height), layout="constrained")
        ax = canvas.add_subplot()
        for line in chart.lines:
            # A method is told by its marks, a series by its dashes, and both by their colour.
            i, shape = labels.index((line.method, line.series)), methods.index(line.method)
            style = series.index(line.series) if len(series) > 1 else shape
            ax.errorbar(
                [at[place(x)] for x, _, _ in line.points],
                [y for _, y, _ in line.points],
                None if line.published else [error for *_, error in line.points],
                color=colour(i),
                marker=marker(shape),
                markerfacecolor="white" if line.published else None,
                linestyle=(0, (1, 1.5 + style % 4)) if line.published else _STYLES[style % 4],
                # Of lines that coincide, those beneath remain visible.
                linewidth=1.3 if line.published else max(1.3, 2.4 - 0.2 * i),
                markersize=max(4.0, 8.5 - 0.9 * i),
                capsize=3,
                label=label(line),
            )
        if figure.log_x and numeric:
            positive = [x for x in places if x > 0]
            if len(positive) == len(places):
                ax.set_xscale("log")
            elif positive:
                ax.set_xscale("symlog", linthresh=min(positive))
        if len(places) <= 10:
            ax.set_xticks([*at.values()], [*at])
            ax.minorticks_off()
        ax.set_xlabel(figure.x_label or figure.x)
        ax.set_ylabel(figure.y)
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
        canvas.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
