"""The commands ``nrprob report`` and ``nrprob methods``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from nrprob.cli.terminal import in_one_line, say, working

__all__ = ["methods", "report"]


@in_one_line()
def report(
    folder: Annotated[
        Path, Argument(help="What `nrprob run` wrote to, or a folder of such folders.")
    ],
    out: Annotated[
        Path | None, Option(help="File to write; report.html in FOLDER by default.")
    ] = None,
) -> None:
    """Write results as one HTML page: tables beside published values, figures, timing."""
    from nrprob.batch.report import write_report

    with working("writing the report"):
        path = write_report(folder, out)
    say(f"wrote {path}")


def methods() -> None:
    """List the methods: what each is for, and its solvers (the first is the default)."""
    from rich.table import Table

    from nrprob.batch.registry import METHODS

    table = Table()
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("class", no_wrap=True)
    table.add_column("finds")
    table.add_column("--known", no_wrap=True)
    table.add_column("solvers")
    for name, one in METHODS.items():
        known = "yes" if one.takes_known else "no"
        table.add_row(name, one.class_name, one.purpose, known, ", ".join(one.solvers))
    Console().print(table)
