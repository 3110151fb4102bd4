"""Rows over several devices: results of one device, and no array with all rows."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sharded_fits
from places import TESTS
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.cluster import contingency_matrix
from slowly import slowly

import nrprob
from nrprob import IB
from nrprob.statistics.rows import Rows, Sparse, make_layout, make_rows

pytestmark = pytest.mark.contract
SCRIPT = TESTS / "sharded_fits.py"
SECONDS = 400


def run(path: Path, *arguments: tuple) -> list[dict]:
    """Run the script with each list of arguments in parallel; return the results."""
    package = str(Path(nrprob.__file__).parents[1])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": package}
    processes, outs = [], []
    for i, given in enumerate(arguments):
        outs.append(path / f"{i}.json")
        command = [sys.executable, str(SCRIPT), str(outs[-1]), *map(str, given)]
        with outs[-1].with_suffix(".log").open("w") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and any(p.poll() is None for p in processes):
        if any(p.poll() for p in processes):
            break  # the others may wait for this one forever
        time.sleep(0.1)
    for process in processes:
        process.kill()
        process.wait()
    said = "\n".join(out.with_suffix(".log").read_text() for out in outs)
    assert not any(p.returncode for p in processes), said
    return [json.loads(out.read_text()) for out in outs]


def check_equal(one: dict, many: dict, *, n_iter: float = 0) -> None:
    # Rounding may decide between equally good restarts; each restart must be the same.
    np.testing.assert_array_equal(one["restarts"], many["restarts"])
    assert many["labels"] in many["restarts"]
    if len(one["restarts"]) == 1:
        np.testing.assert_allclose(one["membership"], many["membership"], atol=1e-6)
    assert many["n_iter"] == pytest.approx(one["n_iter"], rel=n_iter)
    assert many["objective"] == pytest.approx(one["objective"], rel=1e-9)


def check_alike(one: dict, many: dict) -> None:
    # Clusters separate by amplified differences: in float32, rounding may exchange their labels.
    table = contingency_matrix(one["labels"], many["labels"])
    assert table[linear_sum_assignment(table, maximize=True)].sum() > 0.999 * table.sum()
    assert many["objective"] == pytest.approx(one["objective"], rel=1e-5)


def check_sharded(result: dict) -> None:
    assert result["spread"] == {"devices": [8], "parts": [8.0]}
    assert result["moved"] == []


@pytest.mark.slow
def test_eight_devices_find_what_one_does(tmp_path):
    (result,) = run(tmp_path, ("dense", "sparse"))
    for name in ("dense", "sparse"):
        check_equal(result[name]["one"], result[name]["many"])
        check_sharded(result[name])
    # The memory of one device limits the number of parallel restarts.
    alone, many = result["calls"]
    assert (alone, many) == (3, 1)
    # Random numbers are the same only for the same number of clusters.
    alone, many = result["clusters"]
    assert alone == many
    # An array that is already sharded names its devices.
    check_equal(result["array"]["one"], result["array"]["many"])
    assert result["array"]["spread"] == {"devices": [4], "parts": [4.0]}
    assert result["array"]["named"]
    assert result["array"]["predicted"] > 0.99


@pytest.mark.slow
def test_eight_devices_find_what_one_does_in_every_setting(tmp_path):
    names = set(sharded_fits.cases()) - {"dense", "sparse", "any seed"}
    (result,) = run(tmp_path, (*names,))
    for name in names:
        one, many = result[name]["one"], result[name]["many"]
        if name == "float32":
            check_alike(one, many)
        else:
            # A damped step is accepted by a comparison that rounding may change.
            check_equal(one, many, n_iter=0.01 if name == "side information" else 0)
        check_sharded(result[name])


@pytest.mark.slow
def test_two_processes_find_what_one_does(tmp_path):
    names = ("dense", "sparse", "any seed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first, second = run(tmp_path, *(("--join", port, i, *names) for i in range(2)))
    assert first == second
    for name in names[:2]:
        check_equal(sharded_fits.result(sharded_fits.cases()[name].fit()), first[name])
    # All processes that pass different data get an error.
    assert "must fit the same data" in first["dense"]["refused"]


@pytest.mark.slow
@pytest.mark.contract
def test_one_device_is_no_special_case():
    case = sharded_fits.cases()["sparse"]
    with nrprob.sharded(jax.devices()[:1]):
        many = sharded_fits.result(case.fit())
    check_equal(sharded_fits.result(case.fit()), many)


@pytest.mark.parametrize("n_shards", [2, 3, 8])
def test_shards_are_even_and_rows_stay_in_place(n_shards):
    codes = np.random.default_rng(0).integers(3, size=700)
    plain, layout = make_layout(codes, 3), make_layout(codes, 3, n_shards)
    assert layout.n_blocks % n_shards == 0
    assert layout.n_blocks == plain.n_blocks + layout.n_spare
    assert layout.n_rows == plain.n_rows
    np.testing.assert_array_equal(layout.slot, plain.slot)
    assert (np.diff(layout.block_group) >= 0).all()


@pytest.mark.parametrize("n_shards", [2, *slowly(8)])
def test_every_shard_of_sparse_rows_is_complete(n_shards):
    rng = np.random.default_rng(1)
    codes = rng.integers(3, size=300)
    x = sparse.random(300, 17, 0.3, format="csr", random_state=2)
    layout = make_layout(codes, 3)
    rows = make_rows(x, layout, 3)
    w = rng.random((300, 2, 3))
    sharded = make_layout(codes, 3, n_shards)
    parts = make_rows(x, sharded, 3)
    assert isinstance(parts.x, Sparse)

    def part(i, a):
        return jnp.asarray(np.split(np.asarray(a), n_shards)[i])

    with jax.enable_x64(True):
        rows = jax.tree.map(jnp.asarray, rows)
        exact = rows.cells(jnp.asarray(layout.to_blocks(w)))
        scores = layout.from_blocks(np.asarray(rows.adjoint(exact)))
        scatter = rows.scatter(rows.totals() * 0)
        local = [jax.tree.map(lambda a, i=i: part(i, a), parts) for i in range(n_shards)]
        cells = sum(r.cells(part(i, sharded.to_blocks(w))) for i, r in enumerate(local))
        np.testing.assert_allclose(cells, exact, atol=1e-12)
        adjoint = np.concatenate([np.asarray(r.adjoint(exact)) for r in local])
        np.testing.assert_allclose(sharded.from_blocks(adjoint), scores, atol=1e-12)
        np.testing.assert_allclose(
            sum(r.scatter(r.totals() * 0) for r in local), scatter, atol=1e-12
        )
    assert all(isinstance(r, Rows) and r.x.start[-1] <= r.x.row.size for r in local)


@pytest.mark.parametrize("solver", ["sequential", "batched", "agglomerative"])
def test_only_annealing_shards_rows(solver):
    x = np.random.default_rng(0).normal(size=(40, 3))
    with nrprob.sharded(), pytest.raises(ValueError, match="cannot shard rows.*use solver='anneal"):
        IB(2, solver=solver).fit(x)
    IB(2, solver=solver, random_state=0).fit(x)


def test_devices_are_checked():
    device = jax.devices()[0]
    for devices in ([], [device, device]):
        with pytest.raises(ValueError, match="different devices; got"), nrprob.sharded(devices):
            pass
