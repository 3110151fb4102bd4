"""Execute one batch of fits in any process, and the pool of this process alone."""

from __future__ import annotations

import collections
import datetime
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field

from nrprob.batch.executor import Executor
from nrprob.batch.fits import Fit, versions
from nrprob.batch.plan import Experiment
from nrprob.batch.store import netcdf, to_dataset
from nrprob.exceptions import DataUnavailable, InputError

__all__ = ["Done", "Here", "do"]


@dataclass
class Done:
    """What became of some cells.

    Attributes
    ----------
    content : NetCDF file of those that are finished; empty if there are none
    finished : number of them
    skipped : reason -> number of cells whose data are not on the machine
    failed : what went wrong -> number of cells
    compiled : number of programs that were compiled
    """

    content: bytes = b""
    finished: int = 0
    skipped: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: collections.Counter[str] = field(default_factory=collections.Counter)
    compiled: int = 0


def do(executor: Executor, cells: Sequence[Experiment], where: str = "") -> Done:
    """Fit cells and put the results into the form that is kept.

    Parameters
    ----------
    executor : Executor
        What fits them.
    cells : sequence of Experiment
        The cells.
    where : str
        Where data were looked for that are not there; nothing for the user's own machine.
    """
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    before = len(executor.lanes.compiled)
    fits: dict[Experiment, Fit] = {}
    done = Done()
    for cell, fit in executor.fit(cells).items():
        if isinstance(fit, DataUnavailable):
            done.skipped[f"{where}{fit}"] += 1
        elif isinstance(fit, Exception):
            what = "" if isinstance(fit, InputError) else f"{type(fit).__name__}: "
            done.failed[f"{cell.method}: {what}{fit}"] += 1
        else:
            fits[cell] = fit
    done.finished, done.compiled = len(fits), len(executor.lanes.compiled) - before
    if fits:
        devices = executor.lanes.devices
        made = {
            "started": started,
            "host": platform.node(),
            "device": f"{len(devices)} x {devices[0].device_kind}",
            "versions": json.dumps(versions()),
        }
        done.content = netcdf(to_dataset(fits, made, labels=executor.model.save.labels))
    return done


class Here:
    """Does batches in this process, one after another."""

    room = 1  # batches that are begun before one of them has to be waited for

    def __init__(self, executor: Executor):
        self._executor = executor
        self._begun: collections.deque[tuple[str, Sequence[Experiment]]] = collections.deque()

    def begin(self, name: str, cells: Sequence[Experiment]) -> None:
        """Take a batch."""
        self._begun.append((name, cells))

    def wait(self) -> tuple[str, Done]:
        """Name of a batch that was begun, and what became of it."""
        name, cells = self._begun.popleft()
        return name, do(self._executor, cells)
