"""Execute batches on the workers of a ``dask.distributed`` cluster.

dask schedules, transports and recovers from the death of a worker. This module defines what a
worker does with a batch, and checks that both sides have the same versions before a batch is sent.
Workers return results as bytes and write nothing, so that no shared file system is needed. Nothing
heavy is imported at the top, since the scheduler imports this module too.
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

    from nrprob.batch.executor import Executor
    from nrprob.batch.worker import Done

__all__ = ["LOCAL", "Cluster", "connect"]

# Batches that are with workers or wait there. Each is a lock, which is an open file, of which a
# process may have 1024 by default.
_MOST = 500
_KEPT = 4  # executors on a worker, for as many runs that use it at the same time


@dataclass(frozen=True)
class _Run:
    """What workers need to know of a run.

    Attributes
    ----------
    name : unlike that of any other run
    version : of nrprob
    model : the pickled model
    file, digest : its data file, and the SHA-256 of the content; empty if it has none
    """

    name: str
    version: str
    model: bytes
    file: str
    digest: str


# On a worker: executors by the names of runs, the names of runs that are over, and the turn of a
# batch. A process does one batch at a time whatever its threads, since warnings are caught for all.
_EXECUTORS: dict[str, Executor] = {}
_OVER: collections.deque[str] = collections.deque(maxlen=100)
_TURN = threading.Lock()


def _version() -> str:
    return nrprob.__version__


def _look(run: _Run) -> tuple[str, bool]:
    """Version of nrprob, and whether the data file of a run is here as it is with the user."""
    return _version(), _has_file(run)


def _has_file(run: _Run) -> bool:
    with contextlib.suppress(InputError):
        return not run.file or file_digest(Path(run.file)) == run.digest
    return False


def _do(run: _Run, content: bytes | None, cells: Sequence[Experiment]) -> Done:
    """Do a batch on this worker; ``content`` is that of the data file, where some lack it."""
    from nrprob.batch.worker import Done, do

    with _TURN:
        if run.name in _OVER:
            return Done()
        return do(_executor(run, content), cells, f"on {platform.node()}: ")


def _executor(run: _Run, content: bytes | None) -> Executor:
    """What fits the cells of a run on this worker."""
    from distributed import get_worker

    from nrprob.batch.executor import Executor

    if run.name in _EXECUTORS:
        return _EXECUTORS[run.name]
    worker = get_worker()
    _refuse_other(worker.address, _version(), run.version)
    model = pickle.loads(run.model)
    executor = Executor(model, threads=worker.state.nthreads)
    if not _has_file(run):
        if content is None:
            raise InputError(
                f"a worker that came later does not have the data file; {run.file} on "
                f"{platform.node()}; copy it there, or run the model file again"
            )
        # It is read again for every data set that is cut from it.
        folder = Path(tempfile.mkdtemp(prefix="nrprob-", dir=worker.local_directory))
        weakref.finalize(executor, shutil.rmtree, folder, ignore_errors=True)
        model.data.file = folder / Path(run.file).name
        model.data.file.write_bytes(content)
    while len(_EXECUTORS) >= _KEPT:
        del _EXECUTORS[next(iter(_EXECUTORS))]
    _EXECUTORS[run.name] = executor
    return executor


async def _forget(name: str) -> None:
    """Let go of what a worker keeps for a run, and begin no batch of it any more.

    Nobody waits for it, and dask wants a coroutine then.
    """
    _OVER.append(name)
    _EXECUTORS.pop(name, None)


def _content(content: bytes) -> bytes:
    return content


def _refuse_other(who: str, theirs: str, ours: str) -> None:
    if theirs != ours:
        raise InputError(
            f"versions of nrprob differ; {ours} here and {theirs} at {who}; install the same one "
            "in both places"
        )


@contextlib.contextmanager
def connect(scheduler: str | Client | None, devices: object = None) -> Iterator[Client | None]:
    """Connect to a cluster, and leave it at the end; to none if none is named.

    Parameters
    ----------
    scheduler : str or distributed.Client, optional
        Address of a scheduler; "local" for processes on this machine, which end with the context;
        or a client, which is used as it is and stays.
    devices : object
        What the user said of devices, which has to be nothing: workers use their own.

    Raises
    ------
    nrprob.exceptions.InputError
        If nobody answers at the address within ten seconds, or distributed is not installed.
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
    """Has the workers of a cluster do batches; to be entered.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    model : ModelFile
        The model of all batches.
    """

    def __init__(self, client: Client, model: ModelFile):
        from distributed import as_completed

        file = model.data.file and model.data.file.resolve()
        self._client, self._address = client, client.scheduler.address
        self._model = model.model_copy(
            update={"data": model.data.model_copy(update={"file": file})}
        )
        self._run = _Run(
            uuid.uuid4().hex, _version(), pickle.dumps(self._model),
            str(file or ""), file_digest(file) if file else "",
        )  # fmt: skip
        self._content: Future | None = None
        self._begun: dict[str, tuple[str, Sequence[Experiment], Future]] = {}
        self._completed = as_completed(loop=client.loop)

    def __enter__(self) -> Cluster:
        """Look whether all of it can be used.

        Raises
        ------
        nrprob.exceptions.InputError
            If somebody there has no nrprob, or another version.
        """
        said: dict[str, Any] = {}
        with self._answering():
            try:
                said["the scheduler"] = self._client.run_on_scheduler(_version), True
            except (OSError, CancelledError):
                raise
            except Exception as error:  # whatever keeps it from calling one of our functions
                said["the scheduler"] = error
            workers = self._client.run(_look, self._run, on_error="return")
        for who, what in (said | workers).items():
            if isinstance(what, Exception):
                raise InputError(
                    f"{who} cannot use nrprob; {one_line(what)}; install nrprob "
                    f"{self._run.version} there, with the extra cluster"
                )
            _refuse_other(who, what[0], self._run.version)
        if not workers:
            warn(
                f"the cluster has no workers yet; {self._address}; the run begins when there are "
                "some, as by `dask worker ADDRESS`"
            )
        if not all(has for _, has in workers.values()):
            assert self._model.data.file is not None
            with warnings.catch_warnings(), self._answering():
                warnings.simplefilter("ignore")  # that a task is large
                # As a task it goes from worker to worker, and is done again where one is lost.
                self._content = self._client.submit(
                    _content, self._model.data.file.read_bytes(), key=f"nrprob-{self._run.name}"
                )
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel what is not finished; a worker goes to the end of the batch that it does."""
        with contextlib.suppress(Exception):
            sent = [self._content, *(future for *_, future in self._begun.values())]
            self._client.cancel([future for future in sent if future is not None])
            self._client.run(_forget, self._run.name, wait=False)

    @property
    def room(self) -> int:
        """Batches that may be there at a time: one that a worker does, and one that waits."""
        with self._answering():
            return min(2 * max(len(self._client.nthreads()), 1), _MOST)

    def begin(self, name: str, cells: Sequence[Experiment]) -> None:
        """Send a batch."""
        with self._answering():
            future = self._client.submit(
                _do, self._run, self._content, cells, key=f"nrprob-{self._run.name}-{name}"
            )
        self._begun[future.key] = name, cells, future
        self._completed.add(future)

    def wait(self) -> tuple[str, Done]:
        """Name of a batch that was sent, and what became of it."""
        from nrprob.batch.worker import Done

        future = next(self._completed)
        name, cells, _ = self._begun.pop(future.key)
        with self._answering():
            try:
                done = future.result()
            except Exception as error:
                if future.status != "error":  # it is not the batch that failed
                    raise
                why = _explain(error)
                done = Done(failed=collections.Counter(f"{c.method}: {why}" for c in cells))
        future.release()
        return name, done

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Say in one sentence that the scheduler is gone, or the run cancelled by somebody."""
        try:
            yield
        except Exception as error:
            # A client that has lost its scheduler raises what comes of that, whatever it is.
            lost = isinstance(error, OSError | CancelledError) or self._client.status != "running"
            if not lost:
                raise
            raise InputError(
                f"the cluster has lost this run; {self._address}: "
                f"{one_line(error)}; what is finished is kept, run it again to go on"
            ) from error


def _explain(error: Exception) -> str:
    """Why a batch did not come back."""
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        *_, allowed = error.args
        return (
            f"workers died at these fits; {allowed + 1}, one after another; give workers more "
            "memory, or look into their logs"
        )
    return str(error) if isinstance(error, InputError) else one_line(error)
