"""The command line: ``nrprob fit``, ``run``, ``check``, ``report`` and ``methods``.

Results go to the standard output, progress and complaints to the standard error. What a user can
mend is one line and exit code 2. Anything heavy is imported inside a command.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer
from typer import Option

from nrprob.cli.fit import fit
from nrprob.cli.report import methods, report
from nrprob.cli.run import check, run

__all__ = ["app"]

app = typer.Typer(
    help="Find a clustering that is not the one you already know.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (fit, run, check, report, methods):
    app.command()(_command)


def _version(wanted: bool) -> None:
    if wanted:
        import nrprob

        typer.echo(f"nrprob {nrprob.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Find a clustering that is not the one you already know."""
    os.environ.setdefault("MPLBACKEND", "Agg")
