"""The command ``nrprob ledger``: compare stored results with published values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from nrprob.cli.terminal import get_console, in_one_line, print_result, print_warning, show_spinner
from nrprob.exceptions import InputError

if TYPE_CHECKING:
    from nrprob.batch.report.ledger import Tally

__all__ = ["ledger"]


@in_one_line()
def ledger(
    folder: Annotated[Path, Argument(help="Folder of model files.")] = Path("models"),
    out: Annotated[
        Path | None, Option(help="Output folder for the page and ledger.json.", metavar="DIR")
    ] = None,
    store: Annotated[
        Path | None,
        Option(
            metavar="RUN",
            help="Store the results of a finished run of a model file in FOLDER first.",
        ),
    ] = None,
) -> None:
    """Compare the stored results of model files with published values, without a fit."""
    from nrprob.batch.report.ledger import make_ledger, write_ledger
    from nrprob.batch.report.stored_results import store_results

    if not folder.is_dir():
        raise InputError(f"there is no such folder; {folder}; name a folder of model files")
    if store is not None:
        path, count = store_results(store, folder)
        print_result(f"wrote {count} results to {path}")
    with show_spinner("comparing the results"):
        content = make_ledger(folder)
    if content.n_outdated:
        print_warning(
            f"{content.n_outdated} stored results are outdated and not used; run their model files "
            "again, and store the results"
        )
    _show_sums(content.faithful, "Same method, same setting: printed values")
    _show_sums(content.ours, "Recommended method and best printed method: settings")
    if out is not None:
        for path in write_ledger(content, out):
            print_result(f"wrote {path}")


def _show_sums(tallies: list[Tally], title: str) -> None:
    """Print a table with the summed counts of every publication, and of all publications."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("source")
    for name in ("all", "no data", "regenerated", "at or above", "within 2 SE", "below"):
        table.add_column(name, justify="right")
    for source in [*dict.fromkeys(tally.source for tally in tallies), "all"]:
        counts = [tally.counts for tally in tallies if source in (tally.source, "all")]
        table.add_row(source, *(str(sum(column)) for column in zip(*counts, strict=True)))
    get_console().print(table)
