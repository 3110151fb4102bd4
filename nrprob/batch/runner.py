"""The runner: what is missing of a plan, batch by batch, over all devices, and nothing twice."""

from __future__ import annotations

import collections
import contextlib
import datetime
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from nrprob.batch.executor import Executor
from nrprob.batch.fits import Fit, versions
from nrprob.batch.modelfile import read_model
from nrprob.batch.plan import Batch, Experiment, Plan, expand
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import Store, to_dataset
from nrprob.batch.trial import check, try_out
from nrprob.exceptions import DataUnavailable, InputError, warn

if TYPE_CHECKING:
    import xarray

__all__ = ["Outcome", "Progress", "default_folder", "run", "run_plan"]


class Progress:
    """What is told how far a run is; this one keeps it to itself."""

    def start(self, total: int, finished: int) -> None:
        """Say that ``total`` cells are wanted, of which some are finished."""

    def advance(self, cells: int, what: str) -> None:
        """Some more cells are finished; ``what`` says which."""


@dataclass
class Outcome:
    """What a run did.

    Attributes
    ----------
    folder : where the results are
    finished : cells computed by this run
    found : cells that had been finished before
    skipped : reason -> number of cells whose data are not on this machine
    failed : what went wrong -> number of cells; they are tried again by the next run
    compiled : number of programs that were compiled
    """

    folder: Path
    finished: int = 0
    found: int = 0
    skipped: dict[str, int] = field(default_factory=lambda: collections.defaultdict(int))
    failed: dict[str, int] = field(default_factory=lambda: collections.defaultdict(int))
    compiled: int = 0


def run_plan(
    plan: Plan,
    folder: Path | str,
    *,
    devices: Sequence[jax.Device] | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> Outcome:
    """Do what is missing of a plan.

    Parameters
    ----------
    plan : Plan
        The cells.
    folder : Path or str
        Where results are, and go. Other runners may work on the same folder at the same time.
    devices : sequence of jax.Device, optional
        Those to use; all by default.
    only : sequence of str
        Conditions NAME=VALUE that cells have to meet; see `nrprob.batch.plan.select`.
    progress : Progress, optional
        Is told how far the run is.

    Returns
    -------
    Outcome

    Raises
    ------
    nrprob.exceptions.InputError
        Before the first fit, as `try_out` does, or if a file in the folder is damaged.
    """
    progress = progress or Progress()
    devices = list(devices or jax.devices())
    chosen = try_out(plan, folder, only)
    place = Store(folder)
    finished = place.finished()  # before anything is touched: a damaged file stops us here
    place.open(plan)
    executor = Executor(plan.model, devices)
    result = Outcome(Path(folder), found=len(chosen & finished))
    progress.start(len(chosen), result.found)

    def work(batch: Batch, cells: list[Experiment]) -> None:
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        done = executor.fit(cells)
        good = {cell: fit for cell, fit in done.items() if isinstance(fit, Fit)}
        for cell, error in done.items():
            if isinstance(error, DataUnavailable):
                result.skipped[str(error)] += 1
            elif isinstance(error, Exception):
                what = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
                result.failed[f"{cell.method}: {what}{error}"] += 1
        if good:
            made = {
                "started": started,
                "host": platform.node(),
                "device": f"{len(devices)} x {devices[0].device_kind}",
                "versions": json.dumps(versions()),
            }
            fits = {cell.id: fit for cell, fit in good.items()}
            dataset = to_dataset(fits, made, labels=plan.model.save.labels)
            place.write(batch, dataset)
        result.finished += len(good)
        progress.advance(len(cells), f"{cells[0].method}, {_brief(cells[0].data)}")

    taken: list[Batch] = []
    for batches, wait in ((plan.batches, False), (taken, True)):
        for batch in batches:
            cells = [c for c in batch.cells if c.id in chosen and c.id not in finished]
            if not cells:
                continue
            with place.claim(batch, wait=wait) as mine:
                if not mine:
                    taken.append(batch)  # another runner has it; look again when ours are done
                    continue
                theirs = place.finished(batch.id)
                rest = [c for c in cells if c.id not in theirs]
                if len(rest) < len(cells):
                    result.found += len(cells) - len(rest)
                    progress.advance(len(cells) - len(rest), "another runner's")
                if rest:
                    work(batch, rest)
    result.compiled = len(executor.lanes.compiled)
    place.note(skipped=result.skipped, failed=result.failed)
    return result


def _brief(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in parameters.items()) or "the data"


def run(
    spec: Path | str | Mapping[str, Any] | ModelFile,
    out: Path | str | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> xarray.Dataset:
    """Run a model file, or go on with a run of it.

    Parameters
    ----------
    spec : Path, str, mapping or ModelFile
        A TOML file, or what one would contain.
    out : Path or str, optional
        Folder for results. By default the file's ``report.out``, or ``results/`` and the name of
        the file; a mapping without either is run in memory, so to speak: its folder is deleted.
    devices : sequence of jax.Device, optional
        Those to use; all of `jax.devices` by default. A CPU is one device with all its cores.
    only : sequence of str
        Conditions NAME=VALUE that cells have to meet.
    progress : Progress, optional
        Is told how far the run is.

    Returns
    -------
    xarray.Dataset
        See `nrprob.batch.load`.

    Raises
    ------
    nrprob.exceptions.InputError
        If the file or its data cannot be used, before anything is written; afterwards, if some
        cells could not be fitted, with the reasons; what was fitted is kept.
    """
    model = spec if isinstance(spec, ModelFile) else read_model(spec)
    plan = expand(model)
    check(plan)
    with contextlib.ExitStack() as stack:
        folder = out or model.report.out
        if isinstance(spec, str | Path):
            folder = folder or default_folder(model, spec)
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        result = run_plan(plan, folder, devices=devices, only=only, progress=progress)
        dataset = Store(folder).gather()
        if result.failed:
            raise InputError(
                "\n".join(
                    f"{count} of the fits failed; {reason}; correct the file and run it again"
                    for reason, count in result.failed.items()
                )
            )
        for reason, count in result.skipped.items():
            warn(f"{count} cells were skipped; {reason}")
        return dataset


def default_folder(model: ModelFile, path: Path | str) -> Path:
    """Where results go unless the user says where."""
    return model.report.out or Path("results") / Path(path).stem
