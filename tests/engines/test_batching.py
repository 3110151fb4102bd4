"""Fits of one shape in one program: equal results and a single compilation."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from nrprob import (
    CCIB,
    CECIB,
    CMBC,
    IB,
    IBSI,
    ConditionalMixture,
    ConstrainedMixture,
    MDLMultiView,
    MixtureEM,
)
from nrprob.datasets import make_binary_partitions
from nrprob.engines import batching, placement
from nrprob.engines.optimise import solve

pytestmark = pytest.mark.usefixtures("cpu")


def prepared(estimator, X, known):
    with jax.enable_x64(True):
        return estimator.prepare(X, None, known).calls


@pytest.fixture
def calls():
    result = []
    for seed in range(5):
        X, labels = make_binary_partitions(60, [6, 4], random_state=seed)
        result += prepared(CCIB(2, n_init=2, random_state=seed), X, labels[:, 0])
    return result


@pytest.fixture
def one_worker(monkeypatch):
    """Settings of an accelerator, without compiled programs."""
    monkeypatch.setattr(batching, "_PROGRAMS", {})
    monkeypatch.setattr(batching.Batcher, "_n_workers", 1)


def run(calls, **kwargs):
    with jax.enable_x64(True):
        result = {
            id(call): solution
            for call, solution, _ in batching.Batcher(jax.devices("cpu"), **kwargs)(calls)
        }
    return [result[id(call)] for call in calls]


@pytest.mark.smoke
def test_side_by_side_is_the_same_as_alone(calls):
    for call, result in zip(calls, run(calls), strict=True):
        with jax.enable_x64(True):
            alone = call()
        jax.tree.map(np.testing.assert_array_equal, result, alone)


@pytest.mark.slow
@pytest.mark.contract
def test_several_lanes_agree_with_one(calls, one_worker, monkeypatch):
    one = run(calls)
    monkeypatch.setattr(batching, "_PROGRAMS", {})
    monkeypatch.setattr(batching.Batcher, "_program_shape", lambda self, call, wanted: (1, 2, 3))
    for a, b in zip(one, run(calls), strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)
        np.testing.assert_allclose(a.objective, b.objective, rtol=1e-12)


def test_more_calls_than_there_is_room_for(calls, monkeypatch):
    everything = run(calls)
    monkeypatch.setattr(batching, "_PROGRAMS", {})
    monkeypatch.setattr(batching.Batcher, "_program_shape", lambda self, call, wanted: (1, 2, 1))
    for a, b in zip(everything, run(calls), strict=True):
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.slow
@pytest.mark.contract
def test_one_program_per_shape_however_many_settings(monkeypatch, compilations):
    monkeypatch.setattr(batching, "_PROGRAMS", {})
    X, labels = make_binary_partitions(60, [6, 4], random_state=0)
    wide, wide_labels = make_binary_partitions(60, [40, 4], random_state=0)
    grid = [
        estimator
        for value in (0.3, 1.0, 3.0)
        for estimator in (
            CCIB(2, n_init=2, coordination_weight=value, random_state=1),
            IBSI(2, n_init=2, gamma=value, cooling=1.1 + value / 10, random_state=2),
            IB(2, n_init=2, tol=1e-5 * value, random_state=3),
        )
    ]
    some = [
        call
        for e in grid
        for call in prepared(e, X, labels[:, 0] if not isinstance(e, IB) else None)
    ]
    with jax.enable_x64(True):
        engine = batching.Batcher(jax.devices("cpu"))
        assert len(list(engine(some))) == 9
        assert len(engine.compiled) == len(compilations) == 3
        other = prepared(CCIB(2, n_init=2, random_state=0), wide, wide_labels[:, 0])
        list(engine(other))
        assert len(engine.compiled) == len(compilations) == 4
        # Programs stay in memory after the run that compiled them.
        list(batching.Batcher(jax.devices("cpu"))(some))
        assert len(compilations) == 4


def test_a_program_that_is_far_too_small_is_replaced(calls, one_worker):
    with jax.enable_x64(True):
        engine = batching.Batcher(jax.devices("cpu"))
        list(engine(calls[:1]))
        list(engine(calls[:3]))
        assert [p.n_slots for p in engine.compiled] == [1]
        list(engine(calls))
        assert [p.n_slots for p in engine.compiled] == [1, 6]


def test_chains_of_tiny_steps_have_a_device_of_their_own(one_worker):
    X, labels = make_binary_partitions(60, [6, 4], random_state=0)
    anneal, steps = (
        prepared(IB(2, solver=solver, n_init=2, random_state=0), X, None)[0]
        for solver in ("anneal", "sequential")
    )
    with jax.enable_x64(True):
        engine = batching.Batcher(jax.devices("cpu"), stepwise=jax.devices("cpu")[0])
        engine._programs = {}  # with a single device, both would share them
        result = {id(call): solution for call, solution, _ in engine([anneal, steps])}
        assert [*engine._programs] == [anneal.signature]
        assert len(engine.compiled) == 2 and steps.signature in engine._stepwise_batcher._programs
        np.testing.assert_array_equal(result[id(steps)].labels, steps().labels)
    assert len(result) == 2


def test_a_program_keeps_within_memory(calls, one_worker, monkeypatch):
    monkeypatch.setattr(placement, "MEMORY", 2.5 * calls[0].size)
    assert batching.Batcher(jax.devices("cpu"))._program_shape(calls[0], 100) == (1, 2, 1)
    monkeypatch.setattr(placement, "MEMORY", 0.1 * calls[0].size)
    assert batching.Batcher(jax.devices("cpu"))._program_shape(calls[0], 100) == (1, 1, 1)


@pytest.mark.parametrize(
    ("estimator", "continuous"),
    [
        (CCIB(2, n_init=1), False),
        (CCIB(2, n_init=1), True),
        (CMBC(2, n_init=1, update="joint"), False),
        (CMBC(2, n_init=1, update="batch"), False),
        (MixtureEM(2, n_init=1, features="gaussian"), None),
        (MixtureEM(2, n_init=1, features="gaussian", covariance="VEE"), None),
        (CECIB(2, n_init=1, preset="published"), None),
        (ConstrainedMixture(2, n_init=1), None),
        (MixtureEM(2, n_init=1, features="gaussian", covariance="diag"), None),
        (ConditionalMixture(2, n_init=12, categorical=[]), False),
        (ConditionalMixture(2, n_init=12, categorical=[], covariance="diag"), False),
        (MDLMultiView(2, n_init=1), None),
    ],
    ids=lambda p: repr(p).replace("\n", "") if not isinstance(p, bool | None) else str(p),
)
def test_programs_that_call_lapack_say_so(estimator, continuous):
    X, labels = make_binary_partitions(60, [6, 4], random_state=0)
    known = labels[:, :1].astype(float) if continuous else labels[:, 0]
    call = prepared(estimator, X, None if continuous is None else known)[0]
    with jax.enable_x64(True):
        text = call.solver.lower(*call.arrays, **dict(call.static)).as_text()
    calls_it = any(name in text for name in ("lapack", "cholesky", "triangular_solve"))
    assert calls_it == call.factorises == isinstance(estimator, CMBC)


def test_programs_that_call_lapack_take_turns():
    running, most = [], []

    def solver(_):
        running.append(threading.get_ident())
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return np.zeros(1)

    for factorises in (True, False):
        most.clear()
        call = solve.SolverCall(solver, (np.zeros(1),), (), 1, factorises)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda c: c(), [call] * 8))
        assert (max(most) == 1) == factorises
