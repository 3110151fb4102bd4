"""Render pages as HTML, and format their values.

A page is a single file without scripts or external resources, so that it can be sent, archived and
printed.
"""

from __future__ import annotations

import collections
import importlib.resources
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from nrprob.batch import registry
from nrprob.batch.report.comparison import Comparison
from nrprob.batch.schema import ModelFile
from nrprob.statistics.table_units import format_numbers

__all__ = ["MARKS", "count_marks", "format_counts", "format_position", "format_value", "render",
           "with_error"]  # fmt: skip

# Symbol and name of a mark, whose colour is in the style of the page.
MARKS = {"worse": ("▼", "worse"), "within": ("≈", "within 2 SE"), "reached": ("▲", "reached")}
_SAMPLED = "sampled for every run and the same for all methods"


def count_marks(entries: Iterable[Any]) -> dict[str, int]:
    """Count table entries by ``mark``, the result of the comparison with a published value."""
    counts = collections.Counter(entry.mark for entry in entries)
    return {mark: counts[mark] for mark in MARKS}


def format_counts(values: Mapping[str, int]) -> str:
    """Join texts, each with its number of fits if there are several texts."""
    if len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{text} ({count} fits)" for text, count in values.items())


def format_value(value: float | None, measure: str = "", statistic: str = "mean") -> str:
    """Format a value of a measure; a dash if the value is undefined.

    p-values have two significant digits, and seconds below 1000 have three. Numbers of clusters
    have at most two decimals. All other values have three decimals below 10, and one decimal from
    10 on.
    """
    if value is None or np.isnan(value):
        return "–"
    if statistic == "p":
        return f"{value:.2g}"
    if measure == "n_clusters":
        return f"{round(value, 2):g}"
    if measure == "seconds" and abs(value) < 1000:
        return f"{value:#.3g}".rstrip(".")
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def allow_breaks(name: str) -> Markup:
    """Allow line breaks after the underscores, slashes and equals signs of a name."""
    return Markup(re.sub("([_/=])", r"\1<wbr>", str(escape(name))))


def avoid_breaks(text: str) -> str:
    """Replace spaces so that a text like "dims = [4, 4]" stays on one line."""
    return re.sub(r"\[[^]]*\]| = ", lambda match: match[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def typeset_numbers(text: str) -> str:
    """Replace hyphens before numbers by minus signs, and spaces after numbers by no-break spaces.

    A number and its unit then stay on one line.
    """
    text = re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", text)
    return re.sub(r"(?<=\d) (?=[^\s(\N{MINUS SIGN}])", "\N{NO-BREAK SPACE}", text)


def format_difference(value: float) -> str:
    """Format a difference in standard deviations, from 100 on only as "over 100"."""
    if abs(value) >= 100:
        return "over 100" if value > 0 else "below \N{MINUS SIGN}100"
    return f"{value:+z.2f}".replace("-", "\N{MINUS SIGN}")


def with_error(value: float, error: float, measure: str, statistic: str = "mean") -> list[str]:
    """Format a value and its standard error with the same number of decimals.

    Returns both texts, or only the text of the value if the error is NaN.
    """
    text = format_value(value, measure, statistic)
    decimals = len(text.partition(".")[2])
    return [text] if np.isnan(error) else [text, f"{error:.{decimals}f}"]


def published_formats(table: Comparison) -> dict[tuple[str, str], str]:
    """Format string of the published values of every column, by measure and statistic.

    The format has enough decimals for all values of the column.
    """
    return {
        column: "%g" if column[1] == "p" else f"%.{table.decimals.get(column, 0)}f"
        for column in table.columns
    }


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{format_value(seconds, 'seconds')} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def format_time(started: str) -> str:
    """Format a time in ISO format as in "2005-05-01 12:30 UTC"."""
    return f"{started[:16].replace('T', ' ')} UTC"


def _format_range(values: Sequence[int], what: str) -> str:
    """Format the range of some numbers, as in "20 data sets" or "5 to 20 data sets"."""
    low, high = min(values), max(values)
    text = f"{low}" if low == high else f"{low} to {high}"
    return f"{text} {what}" + ("" if high == 1 else "s")


def describe_averages(table: Comparison) -> str:
    """Describe over which fits our values are averaged, and what their standard errors are."""
    values = [entry.ours for entry in table.entries if entry.ours is not None]
    if not values:
        return "No fit of this table is finished."
    text = f"Ours: {_format_range([value.n_sets for value in values], 'data set')}"
    text += f", {_format_range([value.n_runs for value in values], 'fit')} of each method on each"
    over = {value.over for value in values}
    if "data sets" in over:
        text += "; ± is the standard error over data sets"
    if "fits" in over:
        text += "; with one data set, ± is the standard error over its fits"
    if "" in over:
        text += "; single values have no standard error"
    statistics = dict.fromkeys(s for _, s in table.columns)
    if others := [s for s in statistics if s not in ("mean", "p")]:
        text += (
            f". The {' and '.join(others)} over the fits of a data set is averaged over data sets"
        )
    if "p" in statistics:
        text += (
            ". p is the p-value of a two-sided paired t-test over data sets, or over the fits of a "
            "single data set"
        )
    return text + "."


def group_columns(table: Comparison) -> dict[str, list[str]]:
    """Headings of the columns of a table, by measure."""
    result: dict[str, list[str]] = {}
    for measure, statistic in table.columns:
        result.setdefault(measure, []).append("mean ± SE" if statistic == "mean" else statistic)
    return result


def describe_known(model: ModelFile) -> str:
    """Name the known structure, and the methods that are not conditioned on it."""
    text = ", ".join(model.known_names)
    without = [
        m.label for m in model.methods if not registry.find_method(m.name).capabilities.known
    ]
    return f"{text} (not given to {', '.join(without)})" if without else text


def describe_external(model: ModelFile) -> str:
    """Name the external estimators; empty without any."""
    names = {
        method.label: method.name
        for method in model.methods
        if isinstance(registry.find_method(method.name), registry.ExternalMethod)
    }
    text = ", ".join(name if name.endswith(f".{label}") else f"{label} ({name})"
                     for label, name in names.items())  # fmt: skip
    return f"{text}: fitted on X only, one after another" if text else ""


def describe_labels(model: ModelFile) -> str:
    """Describe the target labels of methods, and the scored rows."""
    target = model.partial_labels
    assert target is not None
    if target.fraction:
        share = " or ".join(map(_percent, dict.fromkeys(target.fraction)))
        text = f"{share} {'of all rows' if target.draw == 'rows' else 'of every class'}"
    else:
        text = f"{' or '.join(map(str, dict.fromkeys(target.per_class)))} rows of every class"
    text = f"{target.labeling} of {text}, {_SAMPLED}"
    if target.classes is not None:
        text += f", from {target.classes} classes only"
    if target.wrong:
        shares = " or ".join(map(_percent, dict.fromkeys(target.wrong)))
        text += f"; {shares} of these labels are wrong"
    if without := [method.label for method in model.methods if not method.use_labels]:
        text += f" (not given to {', '.join(without)})"
    scored = "all rows" if target.score == "all" else "the other rows only"
    return f"{text}; measures compare {scored}"


def describe_split(model: ModelFile) -> str:
    """Describe the split of a model file: shares of the parts, and use of the labels."""
    split = model.split
    assert split is not None
    shares = [
        f"{_percent(a['labelled'])} of the rows with their label, {_percent(a['unlabelled'])} "
        f"without it, {_percent(a['test'])} to test"
        for a in split.amounts
    ]
    text = f"{' or '.join(shares)}; {_SAMPLED}"
    text += f", with at least one labelled row of every {split.labeling}"
    without = [
        method.label for method in model.methods if not (split.use_labels and method.use_labels)
    ]
    if without:
        is_none = len(without) == len(model.methods)
        text += f"; labels are given to {'no method' if is_none else 'all but '}"
        text += "" if is_none else ", ".join(without)
    if split.standardize:
        text += "; features are standardised on the fitted rows"
    return text


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def describe_pairs(model: ModelFile) -> str:
    """Describe the must-links and cannot-links of a model file: numbers and wrong pairs."""
    assert model.constraints is not None
    ways = {
        "none": "none wrong",
        "coin": "{share} of them decided by a coin",
        "bias": "{share} of them must-links between the last two classes",
    }
    counts: dict[str, list[str]] = {}
    for amount in model.constraints.amounts:
        way = ways[amount["wrong"]].format(share=_percent(amount.get("share", 0)))
        counts.setdefault(way, []).append(str(amount["pairs"]))
    text = "; or ".join(f"{', '.join(pairs)} pairs, {way}" for way, pairs in counts.items())
    text = f"{text}; by {model.classes}, {_SAMPLED}"
    able = [m.label for m in model.methods if registry.find_method(m.name).capabilities.pairs]
    return text if len(able) == len(model.methods) else f"{text} (used by {', '.join(able)})"


def end_sentence(text: str) -> str:
    """Append a full stop to a text, unless it ends with a punctuation mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def format_position(x: Any) -> str:
    """Format a value of the horizontal axis of a chart."""
    return x if isinstance(x, str) else f"{x:g}" if isinstance(x, float) else json.dumps(x)


_FILTERS = (
    allow_breaks, avoid_breaks, count_marks, describe_averages, describe_external, describe_known,
    describe_labels, describe_pairs, describe_split, end_sentence, format_counts, format_difference,
    format_duration, format_numbers, format_time, format_value, group_columns, published_formats,
    typeset_numbers, with_error,
)  # fmt: skip


def _read_template(name: str) -> str:
    return (importlib.resources.files(__package__) / name).read_text(encoding="utf-8")


def render(template: str, **content: Any) -> str:
    """Fill an HTML template of this folder with escaped content; return the text of the page."""
    import jinja2

    import nrprob

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read_template),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {function.__name__: function for function in _FILTERS}
    return environment.get_template(template).render(**content, version=nrprob.__version__)
