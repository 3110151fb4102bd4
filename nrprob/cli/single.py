"""Print the fits of one data set on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from nrprob.cli.terminal import get_console, print_result, print_warning

if TYPE_CHECKING:
    from nrprob.batch.fit_result import FitResult

__all__ = ["show_fit"]

_MAX_PROFILES = 6  # maximum number of clusters that are described


def show_fit(run: FitResult) -> None:
    """Print cluster sizes and tests of the first fit, agreement of all fits, and the files."""
    from nrprob.batch.fits import cluster_sizes

    if run.title:
        get_console().print(f"[bold]{escape(run.title)}[/]")
    if run.alert:
        print_result(f"warning: {run.alert}")
    rows, features = run.table.X.shape
    fit = run.fits[0]
    if fit.refusal:
        result = f"cannot satisfy its constraints: {fit.refusal}"
    else:
        views = [fit.labels] if fit.labels.ndim == 1 else fit.labels.T
        sizes = " and ".join(", ".join(map(str, cluster_sizes(view))) for view in views)
        result = (
            f"found {fit.n_clusters} cluster{'s' * (fit.n_clusters != 1)} of {sizes} rows in "
            f"{fit.seconds:.1f} s"
            + f" (objective {fit.objective:.2f})"
            * (fit.objective == fit.objective)
        )
    print_result(f"{rows} rows, {features} features; {fit.title} {result}")
    show_scores({fit.title: fit.scores for fit in run.fits}, run.known)
    for name, text in list(run.profiles.items())[:_MAX_PROFILES]:
        print_result(f"cluster {name}: {text}")
    for fit in run.fits:
        for message in fit.warnings:
            print_warning(f"{fit.title}: {message.strip().splitlines()[0]}")
    for text in filter(None, (fit.posterior_in_words for fit in run.fits)):
        print_result(text)
    for text in () if run.tested is None else run.tested.said:
        print_result(text)
    for path in run.files:
        print_result(f"wrote {path}")


def show_scores(scores: Mapping[str, Mapping[str, float]], known: Sequence[str]) -> None:
    """Print the agreement of each clustering with the labelings, one line per clustering.

    ``scores`` maps the title of every clustering to measures and their values. ``known`` are the
    names of the known labelings.
    """
    from rich import box
    from rich.table import Table

    first = next(iter(scores.values()))
    if not first:
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("agreement")
    for name in first:
        suffix = "\n(known)" if any(name.endswith(f" of {z}") for z in known) else ""
        # A line break in the head keeps the column narrow.
        head = escape(name).replace(" of ", "\nof ")
        table.add_column(f"{head}{suffix}", justify="right", no_wrap=True)
    for title, values in scores.items():
        # NaN marks a measure that does not apply.
        shown = (f"{value:.3f}" if value == value else "–" for value in values.values())
        table.add_row(escape(title), *shown)
    get_console().print(table)
