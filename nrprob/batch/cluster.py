"""Execute batches on the workers of a ``dask.distributed`` cluster.

dask schedules and transports batches of planned fits (``cells``), and recovers from the death of a
worker. This module defines the execution of a batch on a worker. Before the first batch, it checks
that workers and this process have the same version. Workers return results as bytes and write
nothing, so they need no shared file system. Packages that load slowly are not imported at the top,
since the scheduler imports this module too.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
import platform
import shutil
import tempfile
import threading
import uuid
import warnings
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nrprob
from nrprob.batch.plan import Experiment, file_digest
from nrprob.batch.schema import ModelFile
from nrprob.exceptions import InputError, one_line, warn
from nrprob.scheduler import LOCAL
from nrprob.scheduler import connect as _connect

if TYPE_CHECKING:
    from distributed import Client, Future

    from nrprob.batch.executor import BatchOutcome, Executor

__all__ = ["LOCAL", "Cluster", "connect"]

# Maximum number of submitted batches. Every batch holds a lock, which is an open file, and by
# default a process may have 1024 open files.
_MAX_BATCHES = 500
_MAX_EXECUTORS = 4  # maximum number of runs whose executors a worker stores


@dataclass(frozen=True)
class _Run:
    """Description of a run for its workers.

    Attributes
    ----------
    name : unique name of the run
    version : version of nrprob
    model : the pickled model
    file, digest : path of the data file, and the SHA-256 of the content; empty without a file
    """

    name: str
    version: str
    model: bytes
    file: str
    digest: str


# State of a worker: executors by the names of runs, the names of finished runs, and a lock. Due to
# the lock, a process executes one batch at a time, on all threads. Python records warnings per
# process, and would mix the warnings of concurrent batches.
_EXECUTORS: dict[str, Executor] = {}
_FINISHED: collections.deque[str] = collections.deque(maxlen=100)
_LOCK = threading.Lock()


def _version() -> str:
    return nrprob.__version__


def _inspect_worker(run: _Run) -> tuple[str, bool]:
    """Version of nrprob on this worker, and whether the worker can read the data file of a run."""
    return _version(), _has_file(run)


def _has_file(run: _Run) -> bool:
    with contextlib.suppress(InputError):
        return not run.file or file_digest(Path(run.file)) == run.digest
    return False


def _execute(run: _Run, content: bytes | None, cells: Sequence[Experiment]) -> BatchOutcome:
    """Execute a batch of planned fits on this worker, and return its outcome.

    ``content`` is the content of the data file if some workers cannot read the file, else None.
    """
    from nrprob.batch.executor import BatchOutcome, execute_batch

    with _LOCK:
        if run.name in _FINISHED:
            return BatchOutcome()
        return execute_batch(_find_executor(run, content), cells, f"on {platform.node()}: ")


def _find_executor(run: _Run, content: bytes | None) -> Executor:
    """Return the executor of a run on this worker, which stores the executors of the latest runs.

    See `_execute` for ``content``.
    """
    from distributed import get_worker

    from nrprob.batch.executor import Executor

    if run.name in _EXECUTORS:
        return _EXECUTORS[run.name]
    worker = get_worker()
    _check_version(worker.address, _version(), run.version)
    model = pickle.loads(run.model)
    executor = Executor(model, threads=worker.state.nthreads)
    if not _has_file(run):
        if content is None:
            raise InputError(
                f"a worker that joined later does not have the data file; {run.file} on "
                f"{platform.node()}; copy the file to this machine, or run the model file again"
            )
        # The executor reads the file again for every data set.
        folder = Path(tempfile.mkdtemp(prefix="nrprob-", dir=worker.local_directory))
        weakref.finalize(executor, shutil.rmtree, folder, ignore_errors=True)
        model.data.file = folder / Path(run.file).name
        model.data.file.write_bytes(content)
    while len(_EXECUTORS) >= _MAX_EXECUTORS:
        del _EXECUTORS[next(iter(_EXECUTORS))]
    _EXECUTORS[run.name] = executor
    return executor


async def _forget_run(name: str) -> None:
    """Remove the executor of a run from this worker, which then executes no batch of this run.

    The function is a coroutine, since dask need not wait for the result of a coroutine.
    """
    _FINISHED.append(name)
    _EXECUTORS.pop(name, None)


def _check_version(who: str, theirs: str, ours: str) -> None:
    if theirs != ours:
        raise InputError(
            f"versions of nrprob differ; {ours} here and {theirs} at {who}; install the same "
            "version in both places"
        )


@contextlib.contextmanager
def connect(scheduler: str | Client | None, devices: object = None) -> Iterator[Client | None]:
    """Connect to a cluster by `nrprob.scheduler.connect`; yield the client.

    Yields None if ``scheduler`` is None. With a scheduler, raises InputError if ``devices`` are
    given or `sharded` is active, since workers use their own devices.
    """
    if scheduler is None:
        yield None
        return
    from nrprob.engines.sharding import active_mesh

    if devices is not None or active_mesh():
        what = "sharded()" if devices is None else f"devices = {devices}"
        raise InputError(
            f"workers of a cluster use their own devices; scheduler = {scheduler} and {what}; "
            "leave one of them out"
        )
    with _connect(scheduler) as client:
        yield client


class Cluster:
    """Pool of the workers of a cluster, a context manager that executes batches.

    Entering the context raises InputError if the scheduler or a worker has no nrprob, or has
    another version.
    """

    def __init__(self, client: Client, model: ModelFile):
        from distributed import as_completed

        file = model.data.file and model.data.file.resolve()
        data = model.data.model_copy(update={"file": file})
        self._run = _Run(
            uuid.uuid4().hex, _version(), pickle.dumps(model.model_copy(update={"data": data})),
            str(file or ""), file_digest(file) if file else "",
        )  # fmt: skip
        self._client, self._address = client, client.scheduler.address
        self._content: Future | None = None
        self._submitted: dict[str, tuple[str, Sequence[Experiment], Future]] = {}
        self._completed = as_completed(loop=client.loop)

    def __enter__(self) -> Cluster:
        answers: dict[str, Any] = {}
        with self._explain_loss():
            try:
                answers["the scheduler"] = self._client.run_on_scheduler(_version), True
            except (OSError, CancelledError):
                raise
            except Exception as error:  # the scheduler may fail in any way without nrprob
                answers["the scheduler"] = error
            workers = self._client.run(_inspect_worker, self._run, on_error="return")
        for who, answer in (answers | workers).items():
            if isinstance(answer, Exception):
                raise InputError(
                    f"{who} cannot use nrprob; {one_line(answer)}; install nrprob "
                    f"{self._run.version} there, with the extra cluster"
                )
            _check_version(who, answer[0], self._run.version)
        if not workers:
            warn(
                f"the cluster has no workers yet; {self._address}; the run waits until you start "
                "workers with `dask worker ADDRESS`"
            )
        if not all(has_file for _, has_file in workers.values()):
            content = Path(self._run.file).read_bytes()
            # The context ignores the warning of dask about large tasks.
            with warnings.catch_warnings(action="ignore"), self._explain_loss():
                # The content is sent as a task: dask then copies it from worker to worker, and
                # sends it again if the worker that holds it is lost.
                self._content = self._client.submit(bytes, content, key=f"nrprob-{self._run.name}")
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel waiting batches; a worker still finishes its current batch."""
        with contextlib.suppress(Exception):
            futures = [self._content, *(future for *_, future in self._submitted.values())]
            self._client.cancel([future for future in futures if future is not None])
            self._client.run(_forget_run, self._run.name, wait=False)

    @property
    def room(self) -> int:
        """Maximum number of submitted batches: two per worker, one of which waits."""
        with self._explain_loss():
            return min(2 * max(len(self._client.nthreads()), 1), _MAX_BATCHES)

    def submit(self, name: str, cells: Sequence[Experiment]) -> None:
        """Send a batch of planned fits to the workers, under a name."""
        with self._explain_loss():
            future = self._client.submit(
                _execute, self._run, self._content, cells, key=f"nrprob-{self._run.name}-{name}"
            )
        self._submitted[future.key] = name, cells, future
        self._completed.add(future)

    def next_done(self) -> tuple[str, BatchOutcome]:
        """Wait for the next batch to complete; return its name and outcome."""
        from nrprob.batch.executor import BatchOutcome

        future = next(self._completed)
        name, cells, _ = self._submitted.pop(future.key)
        with self._explain_loss():
            try:
                done = future.result()
            except Exception as error:
                if future.status != "error":  # the cluster failed, not the batch
                    raise
                reason = _failure_reason(error)
                done = BatchOutcome(
                    failed=collections.Counter(f"{c.method}: {reason}" for c in cells)
                )
        future.release()
        return name, done

    @contextlib.contextmanager
    def _explain_loss(self) -> Iterator[None]:
        """Raise InputError with one sentence if the scheduler is lost or the run was cancelled."""
        try:
            yield
        except Exception as error:
            # A client that has lost its scheduler may raise anything.
            lost = isinstance(error, OSError | CancelledError) or self._client.status != "running"
            if not lost:
                raise
            raise InputError(
                f"the cluster has lost this run; {self._address}: {one_line(error)}; "
                "run the model file again, which keeps finished fits"
            ) from error


def _failure_reason(error: Exception) -> str:
    """Describe the error of a batch that has no result, in one line."""
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        *_, allowed = error.args
        return (
            f"workers died during these fits; {allowed + 1} workers, one after another; give "
            "workers more memory, or read their logs"
        )
    return str(error) if isinstance(error, InputError) else one_line(error)
