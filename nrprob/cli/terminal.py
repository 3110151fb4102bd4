"""Terminal output: results, notes, warnings, progress and one-line errors."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from nrprob.exceptions import InputError

__all__ = [
    "TableError",
    "get_console",
    "record_warnings",
    "in_one_line",
    "print_note",
    "print_result",
    "print_warning",
    "show_spinner",
]


_SECONDS_PER_LINE = 30


class TableError(InputError):
    """Error that is raised if the columns of a table cannot be clustered as they are.

    Attributes
    ----------
    message : message of the error, one line per problem
    command : command that settles all problems of the table; empty without one
    """

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message, command)
        self.message, self.command = message, command

    def __str__(self) -> str:
        return self.message


def get_console(stderr: bool = False) -> Console:
    """Return a console for the current standard stream, which a caller may have replaced."""
    return Console(stderr=stderr, soft_wrap=True, highlight=False)


def replace_controls(line: str) -> str:
    """Replace control characters of a line; names from files may contain them."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in line
    )


def print_result(line: str) -> None:
    """Print a result to standard output."""
    get_console().print(escape(replace_controls(line)))


def print_note(line: str) -> None:
    """Print a note to standard error."""
    get_console(stderr=True).print(f"note: {escape(replace_controls(line))}")


def print_warning(line: str) -> None:
    """Print a warning to standard error."""
    get_console(stderr=True).print(f"[yellow]warning:[/] {escape(replace_controls(line))}")


@contextlib.contextmanager
def show_spinner(line: str) -> Iterator[Callable[[str], None]]:
    """Show a message and the elapsed time: a spinner in a terminal, else a line every 30 s.

    Yields a function that replaces the message.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    stream = get_console(stderr=True)
    if not stream.is_terminal:
        stop, lines = threading.Event(), [line]
        thread = threading.Thread(target=print_elapsed, args=(lines, stop), daemon=True)
        thread.start()
        try:
            yield lines.append
        finally:
            stop.set()
            thread.join()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=stream, transient=True) as progress:
        task = progress.add_task(line, total=None)
        yield lambda text: progress.update(task, description=text)


def print_elapsed(lines: Sequence[str], stop: threading.Event) -> None:
    """Print the last of the lines and the elapsed seconds every 30 s, until ``stop`` is set."""
    elapsed = 0
    while not stop.wait(_SECONDS_PER_LINE):
        elapsed += _SECONDS_PER_LINE
        get_console(stderr=True).print(f"{escape(replace_controls(lines[-1]))}: {elapsed} s")


@contextlib.contextmanager
def record_warnings() -> Iterator[list[str]]:
    """Show the warnings raised inside the ``with``, and record their messages in a list."""
    lines: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def record_warning(message: Any, *rest: Any) -> None:
            lines.append(str(message))
            show(message, *rest)

        warnings.showwarning = record_warning  # type: ignore[assignment]
        yield lines


@contextlib.contextmanager
def in_one_line(translate: Callable[[str], str] = str) -> Iterator[None]:
    """Print an error about invalid input without a traceback, and exit with code 2.

    Other errors keep their traceback. Warnings are printed on one line too, without their
    location in the code. ``translate`` rewrites the messages of errors and warnings.
    """
    try:
        with _deliver_interrupts(), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print_warning(translate(str(message)))
            yield
    except (ValueError, TypeError) as error:
        if os.environ.get("NRPROB_TRACEBACK") or not _is_refusal(error):
            raise
        for line in translate(str(error)).strip().splitlines():
            get_console(stderr=True).print(f"[bold red]error:[/] {escape(replace_controls(line))}")
        if isinstance(error, TableError) and error.command:
            remedy = escape(replace_controls(error.command))
            get_console(stderr=True).print(f"[bold]this command settles it:[/] {remedy}")
        raise typer.Exit(2) from None


def _is_refusal(error: Exception) -> bool:
    """Whether the error was raised by code of this package or of scikit-learn.

    Such errors refuse invalid input; an error raised in other code may be a defect.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").split(".")[0] in ("nrprob", "sklearn")


@contextlib.contextmanager
def _deliver_interrupts() -> Iterator[None]:
    """Send a keyboard interrupt again if Python ignored it.

    Python ignores exceptions in finalizers and in callbacks of its garbage collection; JAX has such
    a callback. The interrupt is repeated after 0.1 s, when the callback has probably ended.
    """
    previous_hook = sys.unraisablehook
    waiting: list[threading.Timer] = []

    def handle_unraisable(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            previous_hook(unraisable)
            return
        waiting.append(threading.Timer(0.1, _thread.interrupt_main))
        waiting[-1].daemon = True
        waiting[-1].start()

    sys.unraisablehook = handle_unraisable
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        for timer in waiting:
            timer.cancel()
