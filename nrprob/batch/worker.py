"""Execute one batch of fits in any process, and the pool of this process alone."""

from __future__ import annotations

import collections
import datetime
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field

from nrprob.batch.executor import Executor
from nrprob.batch.fits import Fit, package_versions
from nrprob.batch.plan import Experiment
from nrprob.batch.store import fits_to_dataset, netcdf_bytes
from nrprob.exceptions import DataUnavailable, InputError

__all__ = ["Done", "LocalPool", "execute_batch"]


@dataclass
class Done:
    """Outcome of some cells.

    Attributes
    ----------
    content : NetCDF file of the finished cells; empty without any
    finished, compiled : numbers of finished cells, and of compiled programs
    skipped, failed : reason -> number of cells without data, and of cells whose fit failed
    """

    content: bytes = b""
    finished: int = 0
    skipped: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: collections.Counter[str] = field(default_factory=collections.Counter)
    compiled: int = 0


def execute_batch(executor: Executor, cells: Sequence[Experiment], where: str = "") -> Done:
    """Fit cells and encode the results; ``where`` precedes messages about missing data."""
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    before = len(executor.lanes.compiled)
    fits: dict[Experiment, Fit] = {}
    done = Done()
    for cell, fit in executor.fit(cells).items():
        if isinstance(fit, DataUnavailable):
            done.skipped[f"{where}{fit}"] += 1
        elif isinstance(fit, Exception):
            kind = "" if isinstance(fit, InputError) else f"{type(fit).__name__}: "
            done.failed[f"{cell.method}: {kind}{fit}"] += 1
        else:
            fits[cell] = fit
    done.finished, done.compiled = len(fits), len(executor.lanes.compiled) - before
    if fits:
        devices = executor.lanes.devices
        circumstances = {
            "started": started,
            "host": platform.node(),
            "device": f"{len(devices)} x {devices[0].device_kind}",
            "versions": json.dumps(package_versions()),
        }
        dataset = fits_to_dataset(fits, circumstances, labels=executor.model.save.labels)
        done.content = netcdf_bytes(dataset)
    return done


class LocalPool:
    """Executes batches in this process, one after another."""

    room = 1  # batches that may be submitted before one of them is collected

    def __init__(self, executor: Executor):
        self._executor = executor
        self._waiting: collections.deque[tuple[str, Sequence[Experiment]]] = collections.deque()

    def submit(self, name: str, cells: Sequence[Experiment]) -> None:
        """Take a batch."""
        self._waiting.append((name, cells))

    def next_done(self) -> tuple[str, Done]:
        """Name and outcome of a batch that was submitted."""
        name, cells = self._waiting.popleft()
        return name, execute_batch(self._executor, cells)
