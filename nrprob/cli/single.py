"""Print the result of a single fit on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from nrprob.cli.terminal import console, say, warn

if TYPE_CHECKING:
    from nrprob.batch.fit_result import FitResult

__all__ = ["show"]


def show(run: FitResult) -> None:
    """Print the clusters of the first fit, how all of them agree, and which files were written."""
    from nrprob.batch.fits import cluster_sizes

    if run.title:
        console().print(f"[bold]{escape(run.title)}[/]")
    if run.alert:
        say(f"warning: {run.alert}")
    rows, features = run.table.X.shape
    fit = run.fits[0]
    if fit.refusal:
        result = f"cannot keep its constraints: {fit.refusal}"
    else:
        views = [fit.labels] if fit.labels.ndim == 1 else fit.labels.T
        sizes = " and ".join(", ".join(map(str, cluster_sizes(view))) for view in views)
        result = (
            f"found {fit.n_clusters} clusters of {sizes} rows in {fit.seconds:.1f} s"
            + f" (objective {fit.objective:.2f} nats)" * (fit.objective == fit.objective)
        )
    say(f"{rows} rows, {features} features; {fit.title} {result}")
    show_scores({one.title: one.scores for one in run.fits}, run.known)
    for one in run.fits:
        for message in one.warnings:
            warn(f"{one.title}: {message.strip().splitlines()[0]}")
    for text in () if run.tested is None else run.tested.said:
        say(text)
    for path in run.files:
        say(f"wrote {path}")


def show_scores(scores: Mapping[str, Mapping[str, float]], known: Sequence[str]) -> None:
    """Print what was measured of every clustering, a line for each; nothing where nothing was."""
    from rich import box
    from rich.table import Table

    first = next(iter(scores.values()))
    if not first:
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("agreement")
    for name in first:
        told = "\n(known)" if any(name.endswith(f" of {z}") for z in known) else ""
        # A name breaks before what it is about, so that many of them fit beside each other.
        head = escape(name).replace(" of ", "\nof ")
        table.add_column(f"{head}{told}", justify="right", no_wrap=True)
    for title, own in scores.items():
        # NaN is what a method does not have, such as views.
        shown = (f"{value:.3f}" if value == value else "–" for value in own.values())
        table.add_row(escape(title), *shown)
    console().print(table)
