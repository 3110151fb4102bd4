"""Template filters that format numbers and settings; every public name is a filter."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from nrprob.batch import registry
from nrprob.batch.report.chart import Line
from nrprob.batch.report.comparison import Comparison
from nrprob.batch.schema import ModelFile

__all__ = [
    "basis", "breakable", "constraints", "counted", "digits", "duration", "formats", "heads",
    "known", "label", "listed", "moment", "place", "rivals", "sentence", "shown", "signed",
    "split", "told", "unbroken", "with_error",
]  # fmt: skip

# What a mark is called, beside its symbol and its colour.
MARKS = {"worse": ("▼", "worse"), "within": ("≈", "within 2 SE"), "reached": ("▲", "reached")}
_DRAWN = "drawn anew for every run and the same for all methods"


def counted(entries: Iterable[Any]) -> dict[str, int]:
    """How often our values are worse, within the error, at least as good."""
    counts = collections.Counter(entry.mark for entry in entries)
    return {mark: counts[mark] for mark in MARKS}


def listed(values: Mapping[str, int]) -> str:
    """Texts, with the number of fits where there are several."""
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{text} ({count} fits)" for text, count in values.items())


def shown(value: float | None, measure: str = "", statistic: str = "mean") -> str:
    """A number: three decimals for what lies between 0 and 1, three digits of a time."""
    if value is None or np.isnan(value):
        return "–"
    if statistic == "p":
        return f"{value:.2g}"
    if measure == "n_clusters":
        return f"{round(value, 2):g}"
    if measure == "seconds" and abs(value) < 1000:
        return f"{value:#.3g}".rstrip(".")
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def breakable(name: str) -> Markup:
    """A name that lines may break after its underscores and slashes, and nowhere else."""
    return Markup(re.sub("([_/])", r"\1<wbr>", str(escape(name))))


def digits(value: float) -> str:
    """Four digits of a feature, whatever its unit, or all before the point of up to seven."""
    return f"{value:{'.0f' if 1e4 <= abs(value) < 1e7 else '.4g'}}".replace("-", "\N{MINUS SIGN}")


def signed(value: float) -> str:
    """A difference in standard deviations; beyond a hundred, clusters do not overlap at all."""
    if abs(value) >= 100:
        return "over 100" if value > 0 else "below \N{MINUS SIGN}100"
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def with_error(value: float, error: float, measure: str, statistic: str = "mean") -> list[str]:
    """A number and its error, to the same decimals; the number alone if it has no error."""
    text = shown(value, measure, statistic)
    return [text] if np.isnan(error) else [text, f"{error:.{_decimals(text)}f}"]


def _decimals(text: str) -> int:
    return len(text.partition(".")[2])


def formats(table: Comparison) -> dict[tuple[str, str], str]:
    """How published values are printed: with as many decimals as the longest of their column."""
    return {
        column: "%g" if column[1] == "p" else f"%.{table.places.get(column, 0)}f"
        for column in table.columns
    }


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{shown(seconds, 'seconds')} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def moment(started: str) -> str:
    """Say "2005-05-01 12:30 UTC"."""
    return f"{started[:16].replace('T', ' ')} UTC"


def _span(values: Sequence[int], what: str) -> str:
    """Say "20 data sets", or "5 to 20 data sets"."""
    low, high = min(values), max(values)
    text = f"{low}" if low == high else f"{low} to {high}"
    return f"{text} {what}" + ("" if high == 1 else "s")


def basis(table: Comparison) -> str:
    """What our values are taken from, and what their errors are over."""
    values = [entry.ours for entry in table.entries if entry.ours is not None]
    if not values:
        return "Nothing of ours is finished here."
    text = f"Ours: {_span([value.n_sets for value in values], 'data set')}"
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


def heads(table: Comparison) -> dict[str, list[str]]:
    """Measures, and the names of the columns under each."""
    result: dict[str, list[str]] = {}
    for measure, statistic in table.columns:
        result.setdefault(measure, []).append("mean ± SE" if statistic == "mean" else statistic)
    return result


def known(model: ModelFile) -> str:
    """What is known, and which methods are not told of it."""
    text = ", ".join(model.known_names)
    untold = [m.label for m in model.methods if not registry.method(m.name).capabilities.known]
    return f"{text} (not told: {', '.join(untold)})" if untold else text


def rivals(model: ModelFile) -> str:
    """Which methods are of other packages; empty if none is."""
    result = {
        method.label: method.name
        for method in model.methods
        if isinstance(registry.method(method.name), registry.Rival)
    }
    named = ", ".join(name if name.endswith(f".{label}") else f"{label} ({name})"
                      for label, name in result.items())  # fmt: skip
    return f"{named}: told nothing but the rows, and fitted one after another" if named else ""


def told(model: ModelFile) -> str:
    """Which wanted labels methods are told, and what is scored."""
    wanted = model.wanted
    assert wanted is not None
    if wanted.fraction:
        much = " or ".join(map(_percent, dict.fromkeys(wanted.fraction)))
        of = "of all rows" if wanted.draw == "rows" else "of every class"
    else:
        much = " or ".join(map(str, dict.fromkeys(wanted.per_class)))
        of = "rows of every class"
    text = f"{wanted.labeling} of {much} {of}, {_DRAWN}"
    if wanted.classes is not None:
        text += f", of {wanted.classes} classes alone"
    if wanted.wrong:
        shares = " or ".join(map(_percent, dict.fromkeys(wanted.wrong)))
        text += f"; {shares} of these labels are wrong"
    if untold := [method.label for method in model.methods if not method.wanted]:
        text += f" (not told: {', '.join(untold)})"
    scored = "all rows" if wanted.score == "all" else "the other rows alone"
    return f"{text}; measures are of {scored}"


def split(model: ModelFile) -> str:
    """How rows are split."""
    split = model.split
    assert split is not None
    shares = [
        f"{_percent(a['labelled'])} of the rows with their label, {_percent(a['unlabelled'])} "
        f"without it, {_percent(a['test'])} to test"
        for a in split.amounts
    ]
    text = f"{' or '.join(shares)}; {_DRAWN}"
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


def constraints(model: ModelFile) -> str:
    """Which pairs methods are told."""
    assert model.constraints is not None
    ways = {
        "none": "none wrong",
        "coin": "{share} of them by the throw of a coin",
        "bias": "{share} of them must-links between the last two classes",
    }
    result: dict[str, list[str]] = {}
    for amount in model.constraints.amounts:
        way = ways[amount["wrong"]].format(share=_percent(amount.get("share", 0)))
        result.setdefault(way, []).append(str(amount["pairs"]))
    said = "; or ".join(f"{', '.join(numbers)} pairs, {way}" for way, numbers in result.items())
    text = f"{said}; by {model.classes}, {_DRAWN}"
    takers = [m.label for m in model.methods if registry.method(m.name).capabilities.pairs]
    return text if len(takers) == len(model.methods) else f"{text} ({', '.join(takers)} take them)"


def sentence(text: str) -> str:
    """End a text with a full stop, unless it ends by itself."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def unbroken(text: str) -> str:
    """Keep "dims = [4, 4]" on one line."""
    return re.sub(
        r"\[[^]]*\]| = ", lambda result: result[0].replace(" ", "\N{NO-BREAK SPACE}"), text
    )


def label(line: Line) -> str:
    """Name of a line of a chart."""
    text = f"{line.method}, {line.series}" if line.series else line.method
    return f"{text} (published)" if line.published else text


def place(x: Any) -> str:
    """Write a value of a chart's axis."""
    return x if isinstance(x, str) else f"{x:g}" if isinstance(x, float) else json.dumps(x)
