"""The command line: ``nrprob fit``, ``explore``, ``run``, ``check``, ``report``, ``ledger``...

Results go to standard output; progress, warnings and errors go to standard error. An error that the
user can correct is one line, with exit code 2. Packages that load slowly are imported inside a
command, so that ``--help`` and invalid options answer at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

from nrprob.caching import set_environment
from nrprob.cli.explore import explore
from nrprob.cli.fit import fit
from nrprob.cli.ledger import ledger
from nrprob.cli.run import check, run
from nrprob.cli.terminal import in_one_line, print_result, show_spinner
from nrprob.exceptions import InputError

__all__ = ["app", "start"]

_INTERRUPTED = 130  # exit code after Ctrl-C

app = typer.Typer(
    help="Find a clustering that is not the one you already know.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in (fit, explore, run, check, ledger):
    app.command()(_command)


@app.command()
@in_one_line()
def report(
    folder: Annotated[
        Path, Argument(help="Output folder of `nrprob run`, or a folder of such folders.")
    ],
    out: Annotated[
        Path | None, Option(help="Output file; report.html in FOLDER by default.")
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Overwrite the file of --out, or the page of a fit.")
    ] = False,
) -> None:
    """Write the results of a run as an HTML page: tables with published values, figures, times."""
    from nrprob.batch.formats import PAGE, is_fit_folder
    from nrprob.files import try_write

    if not folder.is_dir():
        raise InputError(
            f"there is no such folder; {folder}; name a folder that `nrprob run` wrote"
        )
    if out is None and not force and (folder / PAGE).exists() and is_fit_folder(folder):
        raise InputError(
            f"the folder has the page of `nrprob fit`; {folder / PAGE}; name another file with "
            "--out, or add --force to overwrite the page"
        )
    if out is not None:
        page = out / PAGE if out.is_dir() else out
        if page.is_file() and not force:
            raise InputError(
                f"the file exists already; {page}; choose another file, or add --force"
            )
        try_write(page if out.is_dir() else page.resolve())
    from nrprob.batch.report import write_report

    with show_spinner("writing the report"):
        path = write_report(folder, out)
    print_result(f"wrote {path}")


@app.command()
def methods() -> None:
    """List the methods, and the solvers of each method; the first solver is the default."""
    from rich.padding import Padding

    from nrprob.batch.registry import METHODS, PACKAGES

    with show_spinner("loading the methods"):
        purposes = {name: entry.purpose for name, entry in METHODS.items()}
    screen = Console(highlight=False)
    for name, entry in METHODS.items():
        takes = ", takes --known" if entry.capabilities.known else ""
        screen.print(f"[bold]{name}[/]  ({entry.class_name}{takes})")
        screen.print(Padding(purposes[name], (0, 0, 0, 4), expand=False))
        if solvers := entry.words("solver"):
            screen.print(Padding(f"solvers: {', '.join(solvers)}", (0, 0, 0, 4), expand=False))
    packages = " and ".join(PACKAGES.values())
    screen.print(f"\nModel files also take estimators of {packages}, by their import paths.")


def _show_version(requested: bool) -> None:
    if requested:
        import nrprob

        typer.echo(f"nrprob {nrprob.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Find a clustering that is not the one you already know."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    set_environment()


def start() -> None:
    """Run the command of `sys.argv`; after an interrupt, end the process at once.

    A computation of JAX may continue in threads of its own after an interrupt. It would access
    freed memory if Python finalised its objects first.
    """
    try:
        app()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_INTERRUPTED)
        raise
