"""Results as one page: tables beside published values, figures, timing.

The page is a single HTML file without scripts that loads nothing, so that it can be sent, kept and
printed. What it says is computed by `nrprob.batch.comparison`; here it is drawn and laid out.
"""

from __future__ import annotations

import base64
import collections
import importlib.resources
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nrprob.batch import comparison as numbers
from nrprob.batch import registry
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import load, read_plan
from nrprob.exceptions import InputError
from nrprob.files import make_folder

__all__ = ["write_report"]

_PAGE = "report.html"
# Each has a contrast of at least 3 with white and differs in lightness from its neighbours.
_COLOURS = (
    "#0072b2", "#c04a00", "#00664a", "#a8327e", "#000000", "#8a6a00", "#5b3fa0", "#767676"
)  # fmt: skip
_MARKERS = "osD^vPX*"
_STYLES = ("-", (0, (5, 1.5)), (0, (7, 1.5, 1.5, 1.5)), (0, (3, 1)))
# What a mark is called, beside its symbol and its colour.
_MARKS = {"worse": ("▼", "worse"), "within": ("≈", "within 2 SE"), "reached": ("▲", "reached")}


@dataclass
class _Picture:
    """A figure as it stands on the page."""

    chart: numbers.Chart
    source: str
    alt: str
    rows: list[tuple[str, list[str]]]


@dataclass
class _Section:
    """A run."""

    anchor: str
    title: str
    model: ModelFile
    facts: numbers.Facts
    alerts: list[str]
    tables: list[numbers.Comparison]
    pictures: list[_Picture]
    timings: tuple[list[numbers.Timing], list[numbers.Timing]]

    @property
    def marks(self) -> dict[str, int]:
        """How often our values are worse, within the error, at least as good."""
        return _counted(entry.mark for table in self.tables for entry in table.entries)


def write_report(folder: Path | str, out: Path | str | None = None) -> Path:
    """Write results as one HTML page.

    Parameters
    ----------
    folder : Path or str
        What `nrprob.batch.run` wrote to, or a folder of such folders.
    out : Path or str, optional
        File to write, or a folder for it; ``report.html`` in the folder by default.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    nrprob.exceptions.InputError
        If there are no results, a file of them is damaged, or the page cannot be written; in the
        first two cases nothing is written.
    """
    folder = Path(folder)
    path = Path(out) if out is not None else folder / _PAGE
    if path.is_dir():
        path = path / _PAGE
    runs = [folder] if (folder / "plan.json").exists() else _folders(folder)
    sections = [_section(run, f"run-{i}") for i, run in enumerate(runs or [folder], 1)]
    if not any(section.facts.n_done for section in sections):
        planned = sum(section.facts.n_planned for section in sections)
        raise InputError(
            f"nothing is finished yet; {folder} has 0 of {planned} fits; "
            "run the model file, and report then"
        )
    content = _render(sections, folder.resolve().name)
    make_folder(path.parent)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot write the report; {path}: {error.strerror}; choose another file"
        ) from error
    return path


def _folders(folder: Path) -> list[Path]:
    """Folders of runs in a folder, "table 10" after "table 9"."""
    found = [plan.parent for plan in folder.glob("*/plan.json")]
    return sorted(found, key=lambda p: [int(t) if t.isdecimal() else t for t in _parted(p.name)])


def _parted(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


def _section(folder: Path, anchor: str) -> _Section:
    dataset = load(folder)
    model, cells = read_plan(folder)
    results = numbers.collect(dataset, model, cells)
    facts = numbers.facts(results)
    tables = [numbers.compare(results, table) for table in model.tables]
    return _Section(
        anchor,
        model.title or folder.resolve().name,
        model,
        facts,
        _alerts(facts, dataset.attrs),
        tables or [numbers.overview(results)],
        [_picture(numbers.chart(results, figure)) for figure in model.figures],
        numbers.timings(results),
    )


def _alerts(facts: numbers.Facts, notes: Mapping[str, Any]) -> list[str]:
    """What a reader has to know before the numbers, in words."""
    found = []
    if facts.missing:
        lacking = ", ".join(f"{method} {count}" for method, count in facts.missing.items())
        found.append(
            f"{facts.n_planned - facts.n_done} of {facts.n_planned} fits are missing ({lacking}). "
            "Running the model file again does what is missing and says why not."
        )
        found += [
            f"{count} fits were {name}: {reason}."
            for name in ("skipped", "failed")
            for reason, count in json.loads(notes.get(name, "{}")).items()
        ]
    if facts.infeasible:
        refused = ", ".join(f"{method} {count}" for method, count in facts.infeasible.items())
        found.append(
            f"{sum(facts.infeasible.values())} fits were infeasible ({refused}): their constraints "
            'cannot be kept. They are in no average but that of "infeasible".'
        )
    mixed = [
        f"{name} {_listed(values)}" for name, values in facts.versions.items() if len(values) > 1
    ]
    if mixed:
        found.append(f"Fits were made by different versions: {'; '.join(mixed)}.")
    if len(facts.devices) > 1 or len(facts.hosts) > 1:
        found.append("Fits were made on different devices: their times do not compare.")
    return found


def _counted(marks: Any) -> dict[str, int]:
    counts = collections.Counter(marks)
    return {mark: counts[mark] for mark in _MARKS}


def _listed(values: Mapping[str, int]) -> str:
    """Texts, with the number of fits where there are several."""
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{text} ({count} fits)" for text, count in values.items())


def _shown(value: float | None, measure: str = "", statistic: str = "mean") -> str:
    """A number: three decimals for what lies between 0 and 1, three digits of a time."""
    if value is None or math.isnan(value):
        return "–"
    if statistic == "p":
        return f"{value:.2g}"
    if measure == "n_clusters":
        return f"{round(value, 2):g}"
    if measure == "seconds" and abs(value) < 1000:
        return f"{value:#.3g}".rstrip(".")
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _with_error(value: float, error: float, measure: str, statistic: str = "mean") -> list[str]:
    """A number and its error, to the same decimals; the number alone if it has no error."""
    text = _shown(value, measure, statistic)
    return [text] if math.isnan(error) else [text, f"{error:.{len(text.partition('.')[2])}f}"]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{_shown(seconds, 'seconds')} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _moment(started: str) -> str:
    """Say "2005-05-01 12:30 UTC"."""
    return f"{started[:16].replace('T', ' ')} UTC"


def _span(values: Sequence[int], what: str) -> str:
    """Say "20 data sets", or "5 to 20 data sets"."""
    low, high = min(values), max(values)
    text = f"{low}" if low == high else f"{low} to {high}"
    return f"{text} {what}" + ("" if high == 1 else "s")


def _basis(table: numbers.Comparison) -> str:
    """What our values are taken from, and what their errors are over."""
    rows = [row for row in table.rows if row.kind != "published"]
    values = [entry.ours for row in rows for entry in row.entries if entry.ours is not None]
    if not values:
        return "Nothing of ours is finished here."
    sets = [value.n_sets for value in values]
    text = f"Ours: {_span(sets, 'data set')}"
    text += f", {_span([value.n_runs for value in values], 'fit')} of each method on each"
    over = {value.over for value in values}
    if "data sets" in over:
        text += "; ± is the standard error over data sets"
    if "fits" in over:
        text += "; with one data set, ± is the standard error over its fits"
    if "" in over:
        text += "; where no ± stands, there was one of a kind and no standard error"
    statistics = dict.fromkeys(s for _, s in table.columns)
    if others := [s for s in statistics if s not in ("mean", "p")]:
        named = " and ".join(others)
        text += f". Of every data set the {named} over its fits, then the mean of these"
    if "p" in statistics:
        text += ". p is of a two-sided t-test of the pairs, data sets or the fits of a single one"
    return text + "."


def _heads(table: numbers.Comparison) -> dict[str, list[str]]:
    """Measures, and the names of the columns under each."""
    found: dict[str, list[str]] = {}
    for measure, statistic in table.columns:
        found.setdefault(measure, []).append("mean ± SE" if statistic == "mean" else statistic)
    return found


def _printed(table: numbers.Comparison) -> list[list[str]]:
    """Published values, row by row, with as many decimals as the longest of their column."""
    columns = []
    for (_, statistic), column in zip(table.columns, table.by_column, strict=True):
        values = [entry.published for entry in column]
        given = [v for v in values if v is not None]
        places = max([len(f"{v:g}".partition(".")[2]) for v in given], default=0)
        form = "g" if statistic == "p" else f".{places}f"
        columns.append(["" if v is None else format(v, form) for v in values])
    return [list(row) for row in zip(*columns, strict=True)]


def _picture(chart: numbers.Chart) -> _Picture:
    figure = chart.figure
    x_label = figure.x_label or figure.x
    told = [f"{figure.y} against {x_label}."]
    for line in chart.lines:
        (x, y, _), (last_x, last_y, _) = line.points[0], line.points[-1]
        text = f"{_line_label(line)}: {_shown(y, figure.y)} at {_place(x)}"
        if len(line.points) > 1:
            text += f", {_shown(last_y, figure.y)} at {_place(last_x)}"
        told.append(f"{text}.")
    rows = []
    for place in chart.places:
        shown = []
        for line in chart.lines:
            found = [(y, error) for x, y, error in line.points if x == place]
            texts = [" ± ".join(_with_error(y, error, figure.y)) for y, error in found]
            shown.append("".join(texts) or "–")
        rows.append((_place(place), shown))
    return _Picture(chart, _svg(chart) if chart.lines else "", " ".join(told), rows)


def _told(model: ModelFile) -> str:
    """Which wanted labels methods are told, and what is scored; nothing where none are."""
    wanted = model.wanted
    if wanted is None:
        return ""
    if wanted.fraction:
        much = " or ".join(f"{100 * amount['fraction']:g} %" for amount in wanted.amounts)
        of = "of every class"
    else:
        much = " or ".join(str(amount["per_class"]) for amount in wanted.amounts)
        of = "rows of every class"
    text = (
        f"{wanted.labeling} of {much} {of}, drawn anew for every run and the same for all methods"
    )
    if untold := [method.label for method in model.methods if not method.wanted]:
        text += f" (not told: {', '.join(untold)})"
    scored = "all rows" if wanted.score == "all" else "the other rows alone"
    return f"{text}; measures are of {scored}"


def _split(model: ModelFile) -> str:
    """How rows are split; nothing where they are not."""
    split = model.split
    if split is None:
        return ""
    shares = [
        f"{_percent(a['labelled'])} of the rows with their label, {_percent(a['unlabelled'])} "
        f"without it, {_percent(a['test'])} to test"
        for a in split.amounts
    ]
    text = f"{' or '.join(shares)}; drawn anew for every run and the same for all methods"
    text += f", with a label for every {split.labeling} at least once"
    untold = [method.label for method in model.methods if not (split.told and method.wanted)]
    if untold:
        named = "no method" if len(untold) == len(model.methods) else f"all but {', '.join(untold)}"
        text += f"; labels are told to {named}"
    if split.standardize:
        text += "; features are standardised by the rows that are fitted"
    return text


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _constraints(model: ModelFile) -> str:
    """Which pairs methods are told; nothing where they are told none."""
    if model.constraints is None:
        return ""
    ways = {
        "none": "none wrong",
        "coin": "{share} of them by the throw of a coin",
        "bias": "{share} of them must-links between the last two classes",
    }
    found: dict[str, list[str]] = {}
    for amount in model.constraints.amounts:
        way = ways[amount["wrong"]].format(share=_percent(amount.get("share", 0)))
        found.setdefault(way, []).append(str(amount["pairs"]))
    said = "; or ".join(f"{', '.join(numbers)} pairs, {way}" for way, numbers in found.items())
    text = f"{said}; by {model.classes}, drawn anew for every run and the same for all methods"
    takers = [m.label for m in model.methods if registry.method(m.name).takes_pairs]
    return text if len(takers) == len(model.methods) else f"{text} ({', '.join(takers)} take them)"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _unbroken(text: str) -> str:
    """Keep "dims = [4, 4]" on one line."""
    return re.sub(r"\[[^]]*\]| = ", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def _line_label(line: numbers.Line) -> str:
    label = f"{line.method}, {line.series}" if line.series else line.method
    return f"{label} (published)" if line.published else label


def _place(x: Any) -> str:
    return x if isinstance(x, str) else f"{x:g}" if isinstance(x, float) else json.dumps(x)


def _svg(chart: numbers.Chart) -> str:
    """A chart as the address of an image that holds it."""
    import matplotlib
    from matplotlib.figure import Figure

    figure, places = chart.figure, chart.places
    numeric = all(isinstance(x, int | float) and not isinstance(x, bool) for x in places)
    at = {_place(x): x if numeric else i for i, x in enumerate(places)}
    methods = [*dict.fromkeys(line.method for line in chart.lines)]
    series = [*dict.fromkeys(line.series for line in chart.lines)]
    labels = [*dict.fromkeys((line.method, line.series) for line in chart.lines)]
    longest = max(len(_line_label(line)) for line in chart.lines)
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
                [at[_place(x)] for x, _, _ in line.points],
                [y for _, y, _ in line.points],
                None if line.published else [error for *_, error in line.points],
                color=_COLOURS[i % len(_COLOURS)],
                marker=_MARKERS[shape % len(_MARKERS)],
                markerfacecolor="white" if line.published else None,
                linestyle=(0, (1, 1.5 + style % 4)) if line.published else _STYLES[style % 4],
                # Of lines that coincide, those beneath remain visible.
                linewidth=1.3 if line.published else max(1.3, 2.4 - 0.2 * i),
                markersize=max(4.0, 8.5 - 0.9 * i),
                capsize=3,
                label=_line_label(line),
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


def _render(sections: list[_Section], name: str) -> str:
    import jinja2

    import nrprob

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "shown": _shown,
        "with_error": lambda one, *column: _with_error(one.value, one.error, *column),
        "duration": _duration,
        "listed": _listed,
        "basis": _basis,
        "heads": _heads,
        "printed": _printed,
        "moment": _moment,
        "sentence": _sentence,
        "unbroken": _unbroken,
        "marked": lambda counts: sum(counts.values()),
        "line_label": _line_label,
        "told": _told,
        "split": _split,
        "constraints": _constraints,
        "counted": lambda entries: _counted(entry.mark for entry in entries),
    }
    source = importlib.resources.files("nrprob.batch").joinpath("report.html.jinja")
    return environment.from_string(source.read_text(encoding="utf-8")).render(
        sections=sections,
        title=sections[0].title if len(sections) == 1 else f"Results in {name}",
        marks=_MARKS,
        version=nrprob.__version__,
    )
