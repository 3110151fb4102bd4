"""Batches on workers of a cluster: the same results, and nothing lost or repeated."""

import os
import shutil
import signal
import sys
import threading
import time
from types import SimpleNamespace

import distributed
import numpy as np
import pytest
from interrupted import interrupted_after
from made_up_results import assert_same_results

from nrprob import batch, scheduler
from nrprob.batch import cluster, executor, plan, runner, store
from nrprob.batch.modelfile import read_model
from nrprob.engines.sharding import sharded
from nrprob.exceptions import DataUnavailable, InputError

# A method that compiles nothing: five batches of one fit.
SPEC = {
    "data": {
        "generator": "make_binary_partitions",
        "parameters": {"n_samples": 30, "dims": [4, 4]},
        "repeats": 5,
    },
    "methods": [{"name": "cop_kmeans", "n_clusters": 2}],
    "save": {"memberships": True},
}
CELLS = 5
_KILLED = distributed.KilledWorker("a batch", SimpleNamespace(address="there"), 3)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(plan, "BATCH", 1)


@pytest.fixture(scope="module")
def client():
    """A cluster of two workers in this process."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(processes=False, **options) as workers,
        distributed.Client(workers, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of a run without a cluster."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plan, "BATCH", 1)
        batch.run(SPEC, folder)
    return folder


@pytest.fixture(scope="module")
def done(folder):
    """The results without a cluster."""
    return batch.load(folder)


class Told(runner.Progress):
    def __init__(self):
        self.said = []

    def advance(self, cells, what):
        self.said.append(cells)


def counted(monkeypatch):
    """List of fitted cells, which grows."""
    cells, fit = [], executor.Executor.fit

    def counting(self, some):
        cells.extend(cell.id for cell in some)
        return fit(self, some)

    monkeypatch.setattr(executor.Executor, "fit", counting)
    return cells


@pytest.mark.slow
@pytest.mark.contract
def test_a_cluster_gives_the_same_results_and_does_nothing_twice(
    tmp_path, client, done, monkeypatch
):
    fitted, told = counted(monkeypatch), Told()
    sent, begin = [], cluster.Cluster.submit

    def beginning(self, *arguments):
        begin(self, *arguments)
        sent.append(len(self._submitted))

    monkeypatch.setattr(cluster.Cluster, "submit", beginning)
    results = batch.run(SPEC, tmp_path, scheduler=client, progress=told)
    assert_same_results(results, done)
    assert len(fitted) == len(set(fitted)) == CELLS
    assert told.said == [1] * CELLS
    assert len(store.Store(tmp_path).parts()) == len(sent) == CELLS
    assert max(sent) == 4  # submitted at a time: two for each worker
    assert_same_results(batch.run(SPEC, tmp_path, scheduler=client), done)
    assert len(fitted) == CELLS
    deadline = time.monotonic() + 10  # workers are asked to forget, without a wait for the answer
    while cluster._EXECUTORS and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not cluster._EXECUTORS


@pytest.mark.slow
@pytest.mark.contract
def test_an_interrupted_run_keeps_what_is_finished_and_goes_on(tmp_path, client, done, monkeypatch):
    with interrupted_after(2) as told:
        batch.run(SPEC, tmp_path, scheduler=client)
    whole = plan.expand(read_model(SPEC))
    for one in whole.batches:  # while the traceback, and the objects that it refers to, exist
        with store.Store(tmp_path).claim(one, wait=False) as free:
            assert free, told
    client.run(cluster._forget_run, "over")
    over = cluster._Run("over", "", b"", "", "")
    assert client.submit(cluster._execute, over, None, whole.cells).result().finished == 0
    kept = {*batch.load(tmp_path)["cell"].values}
    assert len(kept) == 2
    fitted = counted(monkeypatch)
    assert_same_results(batch.run(SPEC, tmp_path, scheduler=client), done)
    assert not kept & {*fitted}
    assert len(fitted) == CELLS - 2


def test_batches_of_another_runner_are_waited_for_with_none_of_ours(
    tmp_path, client, folder, done, monkeypatch
):
    """Otherwise two runners could wait for each other; and their results are not repeated."""
    whole = plan.expand(read_model(SPEC))
    place = store.Store(tmp_path)
    place.open(whole)
    waited, claim = [], store.Store.claim

    def claiming(self, one, *, wait):
        if wait:
            waited.append(len(self.finished()))
            theirs.set()
        return claim(self, one, wait=wait)

    theirs, ours = threading.Event(), threading.Event()

    def other():
        with claim(place, whole.batches[0], wait=False), claim(place, whole.batches[3], wait=False):
            ours.set()
            theirs.wait(60)
            (part,) = store.Store(folder).parts(whole.batches[0].id)
            shutil.copy(part, tmp_path / "cells")

    monkeypatch.setattr(store.Store, "claim", claiming)
    thread = threading.Thread(target=other)
    thread.start()
    ours.wait()
    fitted = counted(monkeypatch)
    assert_same_results(batch.run(SPEC, tmp_path, scheduler=client), done)
    thread.join()
    assert waited[0] == CELLS - 2
    assert len(fitted) == CELLS - 1


def test_what_goes_wrong_does_not_stop_the_others(tmp_path, client, monkeypatch):
    outcome, load, fit = executor.Executor._score, executor.load_data, executor.Executor.fit

    def failing(self, cell, *rest):
        if cell.repeat == 1:
            raise ValueError("this one fails")
        return outcome(self, cell, *rest)

    def missing(model, parameters, seed):
        if seed == 2:
            raise DataUnavailable("no such data; here; get them")
        return load(model, parameters, seed)

    def dying(self, cells):
        if cells[0].repeat in (3, 4):
            raise MemoryError("too large") if cells[0].repeat == 3 else _KILLED
        return fit(self, cells)

    whole = plan.expand(read_model(SPEC))
    monkeypatch.setattr(executor.Executor, "_score", failing)
    monkeypatch.setattr(executor, "load_data", missing)
    monkeypatch.setattr(executor.Executor, "fit", dying)
    result = runner.run_plan(whole, tmp_path, scheduler=client)
    died = "workers died during these fits; 4 workers, one after another; give workers more memory"
    assert result.failed == {
        "COPKMeans: ValueError: this one fails": 1,
        "COPKMeans: MemoryError: too large": 1,
        f"COPKMeans: {died}, or read their logs": 1,
    }
    ((reason, count),) = result.skipped.items()
    assert reason.startswith("on ") and reason.endswith(": no such data; here; get them")
    assert count == 1
    assert result.finished == CELLS - 4 == len(store.Store(tmp_path).finished())


@pytest.mark.slow
@pytest.mark.contract
def test_workers_may_come_later_and_the_scheduler_go(tmp_path, done):
    class Growing(runner.Progress):
        def start(self, total, finished):
            workers.scale(1)

    class Cancelling(runner.Progress):
        def advance(self, cells, what):
            client.cancel([distributed.Future(key, client) for key in client.futures])

    class Ending(runner.Progress):
        def advance(self, cells, what):
            workers.close()

    options = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(**options) as workers,
        distributed.Client(workers, set_as_default=False) as client,
    ):
        with pytest.warns(UserWarning, match="the cluster has no workers yet; inproc://.*; the ru"):
            assert_same_results(
                batch.run(SPEC, tmp_path / "a", scheduler=client, progress=Growing()), done
            )
        for lost in (Cancelling(), Ending()):
            with pytest.raises(InputError, match="the cluster has lost this run; inproc://"):
                batch.run(SPEC, tmp_path / "b", scheduler=client, progress=lost)
    assert 0 < batch.load(tmp_path / "b").sizes["cell"] < CELLS
    refused(tmp_path, "a client has to be connected", client)


def test_a_data_file_goes_to_workers_that_do_not_have_it(tmp_path, client, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(20, 2))
    np.savetxt(tmp_path / "a.csv", rows, delimiter=",", header="x,y", comments="")
    monkeypatch.chdir(tmp_path)
    spec = {"data": {"file": "a.csv"}, "methods": SPEC["methods"]}
    alone = batch.run(spec, tmp_path / "alone")
    assert_same_results(batch.run(spec, tmp_path / "there", scheduler=client), alone)
    monkeypatch.setattr(cluster, "_has_file", lambda run: not run.file)
    assert_same_results(batch.run(spec, tmp_path / "sent", scheduler=client), alone)
    monkeypatch.setattr(cluster, "_inspect_worker", lambda run: (cluster._version(), True))
    with pytest.raises(
        InputError, match=r"does not have the data file; /.*a\.csv on .*; copy the file"
    ):
        batch.run(spec, tmp_path / "late", scheduler=client)


# errors before the first fit, and before anything is written


def refused(tmp_path, message, scheduler, **options):
    with pytest.raises(InputError, match=message) as told:
        batch.run(SPEC, tmp_path / "out", scheduler=scheduler, **options)
    assert len(str(told.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("tcp://127.0.0.1:9", "within 0.2 s; scheduler = tcp://127.0.0.1:9: .*; start one with"),
        ("nonsense", "scheduler = nonsense: ValueError: missing port number .*; start one with"),
        ("carrier://pigeon:1", "unknown address scheme 'carrier'"),
        ("", "a scheduler is an address, 'local' or a distributed.Client; got ''; pass one"),
        (8786, "a scheduler is an address, .*; got 8786"),
    ],
)
def test_addresses_where_nobody_answers(tmp_path, monkeypatch, address, message):
    monkeypatch.setattr(scheduler, "TIMEOUT", 0.2)
    refused(tmp_path, message, address)


def test_a_worker_is_no_scheduler(tmp_path, client):
    address = next(iter(client.nthreads()))
    refused(tmp_path, "this is a Worker; start one with", address)


def test_without_distributed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    refused(tmp_path, r"a cluster needs the package .*; run pip install 'nrprob\[clust", "local")


def test_devices_are_those_of_workers(tmp_path, client):
    import jax

    refused(tmp_path, "use their own devices; .*; leave one of them out", client, devices=[1])
    with sharded(jax.devices()):
        refused(tmp_path, "use their own devices; .*; leave one of them out", client)


def test_a_local_cluster_does_not_share_an_accelerator(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    refused(tmp_path, "cannot share its accelerator; scheduler = local", "local")


def test_versions_of_nrprob_have_to_be_the_same(tmp_path, client, monkeypatch):
    monkeypatch.setattr(cluster, "_inspect_worker", lambda run: ("0.0.1", True))
    refused(
        tmp_path, r"versions of nrprob differ; \S+ here and 0\.0\.1 at inproc://.*; install", client
    )
    monkeypatch.setattr(cluster, "_inspect_worker", lambda run: 1 / 0)
    refused(
        tmp_path, "inproc://.* cannot use nrprob; ZeroDivisionError: .*; install nrprob", client
    )
    monkeypatch.undo()
    run = cluster._Run("a", "0.0.1", b"", "", "")  # on a worker that came later
    with pytest.raises(InputError, match="versions of nrprob differ"):
        client.submit(cluster._execute, run, None, []).result()


# processes that may end in any way


@pytest.mark.slow
@pytest.mark.contract
def test_a_killed_worker_loses_nothing_that_is_finished(tmp_path):
    """Two methods, one of them compiled, on two processes, of which one is killed."""
    spec = SPEC | {"known": "partition_0"}
    spec["methods"] = [{"name": "ccib", "n_clusters": 2, "n_init": 2}, *SPEC["methods"]]

    class Killing(runner.Progress):
        finished: dict = {}

        def advance(self, cells, what):
            if not self.finished:
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
                self.finished = {p: p.stat().st_mtime_ns for p in tmp_path.glob("out/cells/*.nc")}

    told = Killing()
    alone = batch.run(spec, tmp_path / "alone")
    options = {"n_workers": 2, "threads_per_worker": 2, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(**options) as workers,
        distributed.Client(workers, set_as_default=False) as client,
    ):
        results = batch.run(spec, tmp_path / "out", scheduler=client, progress=told)
    assert_same_results(results, alone)
    assert told.finished
    for path, changed in told.finished.items():
        assert path.stat().st_mtime_ns == changed
    assert len(store.Store(tmp_path / "out").parts()) == 2 * CELLS
