"""Progress of a batch run: a bar with the remaining time, or a line every 30 s."""

from __future__ import annotations

import time

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column

from nrprob.batch.runner import Progress
from nrprob.cli.terminal import get_console

__all__ = ["Bar"]


class Bar(Progress):
    """Progress of one model file: a bar in a terminal, else a line every 30 s."""

    def __init__(self, title: str):
        self._title = title
        self._console = get_console(stderr=True)
        # In a narrow terminal, only the last column is truncated.
        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = (
            TextColumn("[bold]{task.fields[title]}", table_column=Column(no_wrap=True)),
            BarColumn(20, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            # Methods differ in their time per fit, so the speed is averaged over 10 minutes.
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            TextColumn("left; {task.description}", table_column=rest),
        )
        self._bars = Bars(*columns, console=self._console, speed_estimate_period=600, expand=True)
        self._began = self._said = time.monotonic()
        self._done = self._total = self._before = 0

    def __enter__(self) -> Bar:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def start(self, total: int, finished: int) -> None:
        """Start the bar at the number of finished fits."""
        self._total, self._done, self._before = total, finished, finished
        self._task = self._bars.add_task(
            "compiling", total=total, completed=finished, title=self._title
        )
        if finished:
            self._print_line(f"{finished} of {total} fits were finished by earlier runs")

    def advance(self, cells: int, what: str) -> None:
        """Advance the bar; without a terminal, print a line every 30 s."""
        self._done += cells
        self._bars.update(self._task, advance=cells, description=what)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said > 30:
            self._said = now
            new = max(self._done - self._before, 1)
            left = (now - self._began) / new * (self._total - self._done)
            self._print_line(f"{self._done} of {self._total} fits, about {left:.0f} s left")

    def _print_line(self, line: str) -> None:
        self._console.print(escape(f"{self._title}: {line}"))
