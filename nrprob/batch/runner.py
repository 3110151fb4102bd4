"""Run a plan batch by batch; finished batches are not computed again.

The runner locks a batch, submits it to a pool and writes the results. The pool is either this
process with all its devices, or the workers of a cluster. Several runners may work on one plan.
"""

from __future__ import annotations

import collections
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from nrprob.batch.cluster import Cluster, connect
from nrprob.batch.executor import BatchOutcome, Executor, LocalPool
from nrprob.batch.formats import is_fit_folder
from nrprob.batch.modelfile import default_folder, read_model
from nrprob.batch.plan import Batch, Experiment, Plan, expand
from nrprob.batch.preflight import check, try_out
from nrprob.batch.provenance import with_provenance
from nrprob.batch.schema import ModelFile
from nrprob.batch.store import Store
from nrprob.exceptions import InputError, short_repr, warn
from nrprob.files import as_path

if TYPE_CHECKING:
    import xarray
    from distributed import Client

__all__ = ["Outcome", "Progress", "run", "run_plan"]


class Progress:
    """Receiver of the progress of a run; this base class does nothing."""

    def start(self, total: int, finished: int) -> None:
        """Begin a run of ``total`` fits, of which ``finished`` were finished by earlier runs."""

    def advance(self, cells: int, what: str) -> None:
        """Report that ``cells`` more fits are finished; the text ``what`` describes them."""


@dataclass
class Outcome:
    """Outcome of a run.

    Attributes
    ----------
    folder : folder of the results
    finished, reused : numbers of fits that this run and earlier runs have finished
    skipped, failed : for every reason, the number of fits that were skipped or failed; the next run
        tries these fits again
    compiled : number of compiled programs
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
    quick: bool = False,
    progress: Progress | None = None,
    scheduler: str | Client | None = None,
) -> Outcome:
    """Compute the missing fits of a plan; other runners may share the folder.

    See `run` for the arguments. Raises InputError if no fit meets the conditions ``only``, or if
    results cannot be written. Raises InputError also if a file in the folder is damaged, or if the
    cluster is unusable. These errors are raised before the first fit and before anything is
    written.
    """
    progress = progress or Progress()
    chosen = try_out(plan, folder, only, quick)
    store = Store(folder)
    finished = store.finished()  # before anything is written: a damaged file stops the run here
    outcome = Outcome(Path(folder), reused=len(chosen & finished))
    missing = chosen - finished
    batches = [(batch, [c for c in batch.cells if c.id in missing]) for batch in plan.batches]
    with _open_pool(plan, devices, scheduler) as pool:
        store.open(plan)
        progress.start(len(chosen), outcome.reused)
        waiting = collections.deque((batch, cells) for batch, cells in batches if cells)
        _run_batches(waiting, store, pool, outcome, progress)
    store.note(skipped=outcome.skipped, failed=outcome.failed)
    return outcome


@contextlib.contextmanager
def _open_pool(
    plan: Plan, devices: Sequence[jax.Device] | None, scheduler: str | Client | None
) -> Iterator[LocalPool | Cluster]:
    """Open the pool that executes batches: this process, or the workers of a cluster.

    See `run` for ``devices`` and ``scheduler``.
    """
    with connect(scheduler, devices) as client:
        if client is None:
            yield LocalPool(Executor(plan.model, devices))
            return
        with Cluster(client, plan.model) as pool:
            yield pool


def _run_batches(
    waiting: collections.deque[tuple[Batch, list[Experiment]]],
    store: Store,
    pool: LocalPool | Cluster,
    outcome: Outcome,
    progress: Progress,
) -> None:
    """Execute batches in a pool, and write their results to the store.

    ``waiting`` has pairs of a batch and its unfinished fits. ``outcome`` and ``progress`` are
    updated after every batch.
    """
    submitted: dict[str, tuple[Batch, list[Experiment], contextlib.ExitStack]] = {}

    def submit_batch(batch: Batch, cells: list[Experiment], *, wait: bool) -> bool:
        """Lock a batch, and submit the unfinished fits among ``cells`` to the pool.

        Returns whether the batch was locked. If another runner has locked the batch, the function
        waits if ``wait`` is True; otherwise it returns False.
        """
        with contextlib.ExitStack() as claim:
            if not claim.enter_context(store.claim(batch, wait=wait)):
                return False
            finished = store.finished(batch.id)
            rest = [c for c in cells if c.id not in finished]
            if len(rest) < len(cells):
                outcome.reused += len(cells) - len(rest)
                progress.advance(len(cells) - len(rest), "finished by another process")
            if rest:
                pool.submit(batch.id, rest)
                submitted[batch.id] = batch, rest, claim.pop_all()
        return True

    def write_batch(name: str, done: BatchOutcome) -> None:
        """Write the results of the batch called ``name``, count its fits, and release its lock."""
        batch, cells, claim = submitted.pop(name)
        with claim:
            if done.content:
                store.write(batch, done.content)
        outcome.finished += done.finished
        outcome.skipped.update(done.skipped)
        outcome.failed.update(done.failed)
        outcome.compiled += done.compiled
        values = ", ".join(f"{k} {v}" for k, v in cells[0].data.items()) or "the data"
        progress.advance(len(cells), f"{cells[0].method}, {values}")

    try:
        while waiting or submitted:
            room = pool.room
            for _ in range(len(waiting)):
                if len(submitted) >= room:
                    break
                batch, cells = waiting.popleft()
                if not submit_batch(batch, cells, wait=False):
                    waiting.append((batch, cells))  # retried after the other batches
            if submitted:
                write_batch(*pool.next_done())
            elif waiting:
                # To prevent a deadlock, the run holds no lock while it waits for another runner.
                submit_batch(*waiting.popleft(), wait=True)
    finally:
        for *_, claim in submitted.values():
            claim.close()


def run(
    spec: Path | str | Mapping[str, Any] | ModelFile,
    out: Path | str | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    only: Sequence[str] = (),
    quick: bool = False,
    progress: Progress | None = None,
    scheduler: str | Client | None = None,
    allow_large: bool = False,
) -> xarray.Dataset:
    """Run a model file, or resume an earlier run.

    Every fit is computed once: fits with results in the folder are not computed again.

    Parameters
    ----------
    spec : Path, str, mapping or ModelFile
        A TOML file, or the contents of one.
    out : Path or str, optional
        Folder for results. By default ``report.out`` of the file, or ``results/`` and the name of
        the file; for a mapping without either, results are not stored on disk.
    devices : sequence of jax.Device, optional
        Devices to use, by default all of `jax.devices`. A CPU is one device with all its cores.
    only : sequence of str
        Conditions NAME=VALUE that select fits.
    quick : bool, default=False
        Whether to compute only a fifth of the data sets of every case, rounded up. If every case
        has one data set, a fifth of the runs of every method is computed instead. A later run
        computes the rest.
    progress : Progress, optional
        Receives the progress of the run.
    scheduler : str or distributed.Client, optional
        Cluster of ``dask.distributed`` whose workers execute batches: the address of its scheduler,
        such as ``"tcp://10.0.0.1:8786"``; a client; or ``"local"``, which starts processes on this
        machine and ends them with the run. A script with ``"local"`` needs the usual
        ``if __name__ == "__main__":``. Scheduler and workers need the same version of nrprob. Only
        this process writes results. A worker executes one batch at a time, on all of its own
        devices, or on as many cores as it has threads.
    allow_large : bool, default=False
        Whether to allow fits that need more memory than this machine has. The memory is estimated
        before data are generated or read.

    Returns
    -------
    xarray.Dataset
        See `nrprob.batch.load`.

    Warns
    -----
    UserWarning
        About suspicious columns of a file, as in `nrprob.prepare`, and about skipped fits.

    Raises
    ------
    nrprob.exceptions.InputError
        Before anything is written: if the file, its data or the cluster cannot be used, or if the
        fits need too much memory. After the run: if fits failed or the cluster is lost; finished
        fits are kept.

    See Also
    --------
    nrprob.batch.load : Results of a run.
    nrprob.batch.write_report : HTML page of a run.

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
    # Check the file, its data and the output folder before the first fit.
    model = spec if isinstance(spec, ModelFile) else read_model(spec)
    plan = expand(model)
    check(plan, allow_large=allow_large)
    path = Path(spec) if isinstance(spec, str | Path) else None
    plan = with_provenance(plan, path)
    for line in plan.origin.get("prepared", {}).get("warnings", []):
        warn(line)
    with contextlib.ExitStack() as stack:
        folder: Path | str | None = as_path(out, "out") if out else None
        if folder is None and (path is not None or model.report.out is not None):
            folder = default_folder(model, path or "")
        if folder is not None and is_fit_folder(Path(folder)):
            raise InputError(
                f"the folder has results of a fit; {folder}; choose another folder for the run"
            )
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
        outcome = run_plan(
            plan, folder, devices=devices, only=only, quick=quick, progress=progress,
            scheduler=scheduler,
        )  # fmt: skip
        dataset = Store(folder).gather()
    if outcome.failed:
        raise InputError(
            "\n".join(
                f"{count} of the fits failed; {reason}; correct the file and run it again"
                for reason, count in outcome.failed.items()
            )
        )
    for reason, count in outcome.skipped.items():
        warn(f"{count} fits were skipped; {reason}")
    return dataset
