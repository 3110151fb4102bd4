"""Run a plan batch by batch; finished batches are not computed again.

The runner claims batches, has them executed and writes the results. The executor is either this
process with all its devices, or the workers of a cluster.
"""

from __future__ import annotations

import collections
import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from nrprob.batch.cluster import Cluster, connect
from nrprob.batch.executor import Executor
from nrprob.batch.formats import is_of_fit
from nrprob.batch.modelfile import default_folder, read_model
from nrprob.batch.plan import Batch, Experiment, Plan, expand
from nrprob.batch.preflight import check, try_out
from nrprob.batch.provenance import with_origin
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import Store
from nrprob.batch.worker import Done, Here
from nrprob.exceptions import InputError, short_repr, warn
from nrprob.files import as_path

if TYPE_CHECKING:
    import xarray
    from distributed import Client

__all__ = ["Outcome", "Progress", "run", "run_plan"]


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
    reused : cells that were finished before
    skipped : reason -> number of cells whose data are not on this machine
    failed : what went wrong -> number of cells; they are tried again by the next run
    compiled : number of programs that were compiled
    """

    folder: Path
    finished: int = 0
    reused: int = 0
    skipped: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: collections.Counter[str] = field(default_factory=collections.Counter)
    compiled: int = 0


def run_plan(
    plan: Plan,
    folder: Path | str,
    *,
    devices: Sequence[jax.Device] | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
    scheduler: str | Client | None = None,
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
    scheduler : str or distributed.Client, optional
        Of a cluster whose workers do the fits; see `run`.

    Returns
    -------
    Outcome

    Raises
    ------
    nrprob.exceptions.InputError
        Before the first fit and before anything is written, as `try_out` does, if a file in the
        folder is damaged, or if the cluster cannot be used; later, if it is lost.
    """
    progress = progress or Progress()
    chosen = try_out(plan, folder, only)
    place = Store(folder)
    finished = place.finished()  # before anything is touched: a damaged file stops us here
    result = Outcome(Path(folder), reused=len(chosen & finished))
    missing = chosen - finished
    waiting = [(batch, [c for c in batch.cells if c.id in missing]) for batch in plan.batches]
    with _crew(plan, devices, scheduler) as crew:
        place.open(plan)
        progress.start(len(chosen), result.reused)
        _work_through(
            [(batch, cells) for batch, cells in waiting if cells], place, crew, result, progress
        )
    place.note(skipped=result.skipped, failed=result.failed)
    return result


@contextlib.contextmanager
def _crew(
    plan: Plan, devices: Sequence[jax.Device] | None, scheduler: str | Client | None
) -> Iterator[Here | Cluster]:
    """What does the batches: this process, or the workers of a cluster."""
    with connect(scheduler, devices) as client:
        if client is None:
            yield Here(Executor(plan.model, devices))
            return
        with Cluster(client, plan.model) as crew:
            yield crew


def _work_through(
    batches: Iterable[tuple[Batch, list[Experiment]]],
    place: Store,
    crew: Here | Cluster,
    result: Outcome,
    progress: Progress,
) -> None:
    """Have cells done by a crew, batch by batch, and write what becomes of them."""
    waiting = collections.deque(batches)
    begun: dict[str, tuple[Batch, list[Experiment], contextlib.ExitStack]] = {}

    def begin(batch: Batch, cells: list[Experiment], *, wait: bool) -> bool:
        """Begin a batch; False where another runner has it."""
        with contextlib.ExitStack() as claim:
            if not claim.enter_context(place.claim(batch, wait=wait)):
                return False
            theirs = place.finished(batch.id)
            rest = [c for c in cells if c.id not in theirs]
            if len(rest) < len(cells):
                result.reused += len(cells) - len(rest)
                progress.advance(len(cells) - len(rest), "another runner's")
            if rest:
                crew.begin(batch.id, rest)
                begun[batch.id] = batch, rest, claim.pop_all()
        return True

    def finish(name: str, done: Done) -> None:
        batch, cells, claim = begun.pop(name)
        with claim:
            if done.content:
                place.write(batch, done.content)
        result.finished += done.finished
        result.skipped.update(done.skipped)
        result.failed.update(done.failed)
        result.compiled += done.compiled
        progress.advance(len(cells), f"{cells[0].method}, {_brief(cells[0].data)}")

    try:
        while waiting or begun:
            room = crew.room
            for _ in range(len(waiting)):
                if len(begun) >= room:
                    break
                batch, cells = waiting.popleft()
                if not begin(batch, cells, wait=False):
                    waiting.append((batch, cells))  # look again when ours are done
            if begun:
                finish(*crew.wait())
            elif waiting:
                # Who waits for another runner must hold nothing that it may be waiting for.
                begin(*waiting.popleft(), wait=True)
    finally:
        for *_, claim in begun.values():
            claim.close()


def _brief(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in parameters.items()) or "the data"


def run(
    spec: Path | str | Mapping[str, Any] | ModelFile,
    out: Path | str | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
    scheduler: str | Client | None = None,
    allow_large: bool = False,
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
    scheduler : str or distributed.Client, optional
        Have batches of fits done by the workers of a ``dask.distributed`` cluster: the address of
        its scheduler, as ``"tcp://10.0.0.1:8786"``; a client; or ``"local"``, for processes that
        are started on this machine and end with the run. A script that asks for these needs the
        usual ``if __name__ == "__main__":``. Scheduler and workers have to have this version of
        nrprob; results are written by this process alone. A worker does one batch at a time, on
        all of its own devices, or on as many cores as it has threads.
    allow_large : bool, default=False
        Whether the fits may need more memory than this machine has, by an estimate that is made
        before data are drawn or read.

    Returns
    -------
    xarray.Dataset
        See `nrprob.batch.load`.

    Warns
    -----
    UserWarning
        Of what looks wrong about columns of a file, as `nrprob.prepare` does; of skipped fits.

    Raises
    ------
    nrprob.exceptions.InputError
        If the file, its data or the cluster cannot be used, or the fits need more memory than
        there is, before anything is written;
        afterwards, if some cells could not be fitted, with the reasons, or if the cluster is lost;
        what was fitted is kept.

    Examples
    --------
    >>> from nrprob import batch
    >>> spec = {"known": "partition_0",
    ...         "data": {"generator": "make_binary_partitions",
    ...                  "parameters": {"n_samples": 60, "dims": [8, 4]}},
    ...         "methods": [{"name": "ccib", "grid": {"coordination_weight": [0.5, 1.0]}}]}
    >>> batch.run(spec)["labels"].shape
    (2, 60)
    """
    if progress is not None and not isinstance(progress, Progress):
        raise TypeError(
            f"progress must be a Progress; got {short_repr(progress)}; pass one, or leave it out"
        )
    model = spec if isinstance(spec, ModelFile) else read_model(spec)
    plan = expand(model)
    check(plan, allow_large=allow_large)
    path = Path(spec) if isinstance(spec, str | Path) else None
    plan = with_origin(plan, path)
    for line in plan.origin.get("prepared", {}).get("warnings", []):
        warn(line)
    with contextlib.ExitStack() as stack:
        folder: Path | str | None = as_path(out, "out") if out else None
        if folder is None and (path is not None or model.report.out is not None):
            folder = default_folder(model, path or "")
        if folder is not None and is_of_fit(Path(folder)):
            raise InputError(
                f"the folder has results of a fit; {folder}; choose another folder for the run"
            )
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        result = run_plan(
            plan, folder, devices=devices, only=only, progress=progress, scheduler=scheduler
        )
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
