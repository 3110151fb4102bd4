"""Progress of a batch run: a bar with the remaining time, or occasional lines."""

from __future__ import annotations

import time

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column

from nrprob.batch.runner import Progress
from nrprob.cli.terminal import console

__all__ = ["Bar"]


class Bar(Progress):
    """The progress of one model file, while it is entered; lines where nobody watches."""

    def __init__(self, title: str):
        self._title = title
        self._console = console(stderr=True)
        # The text at the end is the first to give way where the terminal is narrow.
        rest = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = (
            TextColumn("[bold]{task.fields[title]}", table_column=Column(no_wrap=True)),
            BarColumn(20, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            # Fits of different methods take different times: look far back.
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
        """Say how many of all fits had been finished before."""
        self._total, self._done, self._before = total, finished, finished
        self._task = self._bars.add_task(
            "compiling", total=total, completed=finished, title=self._title
        )
        if finished:
            self._say(f"{finished} of {total} fits had been finished before")

    def advance(self, cells: int, what: str) -> None:
        """Say what is finished, every half a minute where there is no bar."""
        self._done += cells
        self._bars.update(self._task, advance=cells, description=what)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said > 30:
            self._said = now
            new = max(self._done - self._before, 1)
            left = (now - self._began) / new * (self._total - self._done)
            self._say(f"{self._done} of {self._total} fits, about {left:.0f} s left")

    def _say(self, line: str) -> None:
        self._console.print(escape(f"{self._title}: {line}"))
