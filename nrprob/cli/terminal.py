"""Terminal output: the two streams, progress messages and one-line errors.

Nothing here depends on what is computed.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

__all__ = ["console", "heard", "in_one_line", "note", "say", "warn", "working"]


def console(stderr: bool = False) -> Console:
    """One of the streams, as it is now: a caller may have replaced it since the import."""
    return Console(stderr=stderr, soft_wrap=True, highlight=False)


def printable(line: str) -> str:
    """A line in which characters that control a terminal are replaced; files may contain them."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in line
    )


def say(line: str) -> None:
    """Print a result."""
    console().print(escape(printable(line)))


def note(line: str) -> None:
    """Say what the user may want to know besides."""
    console(stderr=True).print(f"note: {escape(printable(line))}")


def warn(line: str) -> None:
    """Say what may be wrong."""
    console(stderr=True).print(f"[yellow]warning:[/] {escape(printable(line))}")


@contextlib.contextmanager
def working(line: str) -> Iterator[None]:
    """Show a spinner, what is going on, and for how long; nothing where nobody watches."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    stream = console(stderr=True)
    if not stream.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=stream, transient=True) as progress:
        progress.add_task(line, total=None)
        yield


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """The warnings of what is done here, which are shown as well."""
    lines: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def hear(message: Any, *rest: Any) -> None:
            lines.append(str(message))
            show(message, *rest)

        warnings.showwarning = hear  # type: ignore[assignment]
        yield lines


@contextlib.contextmanager
def in_one_line(translate: Callable[[str], str] = str) -> Iterator[None]:
    """What the user can mend ends as one line and exit code 2; a defect of ours keeps its trace.

    Warnings are lines as well, without the place in the code that they come from. Both are written
    as ``translate`` has them.
    """
    try:
        with _interruptible(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: warn(translate(str(message)))
            yield
    except (ValueError, TypeError) as error:
        if os.environ.get("NRPROB_TRACEBACK") or not _is_refusal(error):
            raise
        for line in translate(str(error)).strip().splitlines():
            console(stderr=True).print(f"[bold red]error:[/] {escape(printable(line))}")
        raise typer.Exit(2) from None


def _is_refusal(error: Exception) -> bool:
    """Say whether our code or scikit-learn's checks raised it, and not a library below."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").split(".")[0] in ("nrprob", "sklearn")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have an interrupt arrive wherever it comes.

    Python forgets what is raised in finalizers and in callbacks of its garbage collection, of which
    JAX has one. An interrupt that was forgotten is sent again, when that is likely to be over.
    """
    told = sys.unraisablehook
    waiting: list[threading.Timer] = []

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            told(unraisable)
            return
        waiting.append(threading.Timer(0.1, _thread.interrupt_main))
        waiting[-1].daemon = True
        waiting[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = told
        for timer in waiting:
            timer.cancel()
