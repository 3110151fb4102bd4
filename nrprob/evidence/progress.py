"""Progress bar over many fits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from nrprob.data.validation import check_verbosity


@contextlib.contextmanager
def progress_bar(description: str, total: int, verbose: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar with a ``description`` on the standard error if ``verbose``.

    Yields a function that advances the bar by one of ``total`` steps.
    """
    check_verbosity("verbose", verbose)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=not verbose, transient=True) as progress:
        task = progress.add_task(description, total=total)
        yield lambda: progress.advance(task)
