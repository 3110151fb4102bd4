"""Fits over several devices, in a separate process, whose number of devices is fixed at its start.

python sharded_fits.py OUT CASE...                     one process with eight devices
python sharded_fits.py OUT --join PORT INDEX CASE...   one of two processes with two devices each
"""

import json
import re
import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from scipy import sparse

import nrprob
from nrprob import CCIB, IB, IBSI
from nrprob.engines import placement
from nrprob.engines.sharding import ShardedRows
from nrprob.known import Memberships

N = 1003  # not a multiple of the number of devices
MOVED = re.compile(r"= \S+ (all-gather|all-to-all|collective-permute)")


class Case(NamedTuple):
    model: Callable
    X: object
    y: np.ndarray | None = None
    known: object = None

    def fit(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error", nrprob.DegenerateClusterWarning)
            known = {} if self.known is None else {"known": self.known}
            return self.model().fit(self.X, self.y, **known)

    def prepare(self):
        with jax.enable_x64(True):
            return self.model().prepare(self.X, self.y, self.known)


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(5)
    c, z = rng.integers(4, size=N), rng.integers(3, size=N)
    x = rng.normal(size=(N, 10))
    x[:, :6] += 2 * rng.normal(size=(3, 6))[z]
    x[:, 4:] += 1.5 * rng.normal(size=(4, 6))[c]
    rates = np.exp(rng.normal(size=(4, 80))[c] + 0.7 * rng.normal(size=(3, 80))[z] - 1.5)
    counts = rng.poisson(rates).astype(float)
    counts[:, 0] += 1
    counts = sparse.csr_array(counts)
    some = np.where(rng.random(N) < 0.1, c, -1)
    soft = Memberships(0.8 * np.eye(3)[z] + 0.2 / 3)

    def make(kind, **parameters):
        defaults = {"n_init": 1, "cooling": 1.5, "random_state": 0, "polish": False}
        return lambda: kind(4, **{**defaults, **parameters})

    return {
        "dense": Case(make(CCIB, n_init=3), x, None, z),
        "sparse": Case(make(CCIB), counts, some, z),
        "alone": Case(make(IB), x),
        "at a temperature": Case(make(IB, beta=30.0), counts),
        "side information": Case(make(IBSI, gamma=0.5, tol=1e-2), x, None, z),
        "partly labelled": Case(make(CCIB), x, some, z),
        "float32": Case(make(CCIB), x.astype(np.float32), None, z),
        "softly known": Case(make(CCIB), x, None, soft),
        "sparse, softly known": Case(make(CCIB, coordination="residual"), counts, None, soft),
        "devices without rows": Case(make(IB), x[:50]),
        "any seed": Case(make(CCIB, n_init=3, random_state=None, polish=True), x, None, z),
    }


def result(model) -> dict:
    return {
        "labels": model.labels_.tolist(),
        "restarts": model._restarts.labels.tolist(),
        "membership": model.membership_.tolist(),
        "n_iter": model.n_iter_,
        "objective": model.objective_,
    }


def spread(task) -> dict:
    """Number of devices, and the part of its first axis that each holds, over all arrays."""
    assert isinstance(task.rows, ShardedRows)
    arrays = [*jax.tree.leaves(task.rows), *jax.tree.leaves(task.calls[0].arrays[3])]
    return {
        "devices": sorted({len(a.sharding.device_set) for a in arrays}),
        "parts": sorted(
            {a.shape[0] / s.data.shape[0] for a in arrays for s in a.addressable_shards}
        ),
    }


def moved(task) -> list[str]:
    """Communication of the compiled program between devices, except sums, maxima and similar."""
    call = task.calls[0]
    with jax.enable_x64(True):
        lowered = call.solver.lower(*call.arrays, **dict(call.static))
        return sorted(set(MOVED.findall(lowered.compile().as_text())))


def in_one_process(case: Case) -> dict:
    one = result(case.fit())
    with nrprob.sharded():
        task = case.prepare()
        return {
            "one": one,
            "many": result(case.fit()),
            "spread": spread(task),
            "moved": moved(task),
        }


def calls(case: Case, memory: float) -> list[int]:
    """Number of compiled runs that the restarts need, on one device and on all."""
    before, placement.MEMORY = placement.MEMORY, memory
    alone = len(case.prepare().calls)
    with nrprob.sharded():
        many = len(case.prepare().calls)
    placement.MEMORY = before
    return [alone, many]


def clusters() -> list[int]:
    """Number of clusters of the program, for data that are large only because of the shards."""
    case = Case(lambda: IB(5), np.random.default_rng(0).normal(size=(12000, 2)))
    tasks = [case.prepare()]
    with nrprob.sharded(jax.devices()[:6]):
        tasks.append(case.prepare())
    assert tasks[0].rows.mass.size < 16384 < tasks[1].rows.mass.size
    return [dict(task.calls[0].static)["n_clusters"] for task in tasks]


def of_a_sharded_array(case: Case) -> dict:
    """Fit and predict with X on four devices, without `sharded`."""
    devices = jax.devices()[2:6]
    mesh = jax.sharding.Mesh(np.asarray(devices), ("some",))
    n = N // 4 * 4
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("some"))
    with jax.enable_x64(True):
        x = jax.device_put(case.X[:n], sharding)
    one, many = (case._replace(X=a, known=case.known[:n]) for a in (case.X[:n], x))
    task = many.prepare()
    model = many.fit()
    predicted = model.predict(x, known=many.known)
    return {
        "one": result(one.fit()),
        "many": result(model),
        "spread": spread(task),
        "named": task.rows.mass.sharding.device_set == set(devices),
        "predicted": float((predicted == model.labels_).mean()),
    }


def in_two_processes(case: Case) -> dict:
    with nrprob.sharded():
        solution = result(case.fit())
        other = case._replace(X=case.X[:: 1 - 2 * jax.process_index()])
        try:
            other.fit()
        except ValueError as error:
            solution["refused"] = str(error)
    return solution


def main(out: str, *names: str) -> None:
    if names[0] == "--join":
        port, index, *names = names[1:]
        jax.config.update("jax_num_cpu_devices", 2)
        jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index), initialization_timeout=60)
        result = {name: in_two_processes(cases()[name]) for name in names}
    else:
        jax.config.update("jax_num_cpu_devices", 8)
        result = {name: in_one_process(cases()[name]) for name in names}
        if "dense" in names:
            result["calls"] = calls(cases()["dense"], 3e5)
            result["clusters"] = clusters()
            result["array"] = of_a_sharded_array(cases()["dense"])
    with open(out, "w") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
