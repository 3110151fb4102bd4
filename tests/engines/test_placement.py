"""Devices of programs, tested with a mock accelerator."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from nrprob import IB, COPKMeans, MDLMixture
from nrprob.engines import placement
from nrprob.estimator.calls import at_once


def gpu(**stats):
    return SimpleNamespace(platform="gpu", memory_stats=lambda: stats or None)


@pytest.fixture
def cpu():
    return jax.local_devices(backend="cpu")[0]


@pytest.fixture
def accelerated(monkeypatch):
    """Mock a default device that is not a CPU."""
    monkeypatch.setattr(placement, "on_cpu", lambda *arrays: False)


def test_memory_is_that_of_the_device(cpu, monkeypatch):
    assert placement.memory_budget(gpu(bytes_limit=8e9)) == 2e9
    assert placement.memory_budget(gpu()) == placement.memory_budget(cpu) == placement.MEMORY
    with jax.default_device(cpu):
        assert at_once(12, 1e9) == 1 and at_once(12, 1e9, gpu(bytes_limit=16e9)) == 4
    monkeypatch.setattr(placement, "device_of", lambda *arrays: gpu(bytes_limit=24e9))
    assert at_once(12, 1e9) == 6


def test_device_of_data(cpu):
    assert placement.device_of(np.ones(3)) == placement.device_of() == jax.devices()[0]
    assert placement.device_of((np.ones(3), jax.device_put(1.0, cpu))) == cpu
    with jax.default_device(cpu):
        assert placement.device_of() == cpu
    with jax.default_device("cpu"):
        assert placement.device_of() == cpu and placement.on_cpu(np.ones(3))


def test_tiny_steps_run_on_the_cpu(cpu, accelerated):
    with placement.small_steps_on_cpu():
        assert jax.config.jax_default_device == cpu
        assert placement.cpu_for_small_steps() is None  # it is requested by now
    with placement.small_steps_on_cpu(False):
        assert jax.config.jax_default_device is None


def test_tiny_steps_stay_where_they_were_asked_for(cpu, accelerated, monkeypatch):
    with jax.default_device(cpu):
        assert placement.cpu_for_small_steps() is None
    monkeypatch.setattr(placement, "on_cpu", lambda *arrays: True)
    assert placement.cpu_for_small_steps() is None  # a CPU is the default

    def none(**_):
        raise RuntimeError

    monkeypatch.setattr(placement, "on_cpu", lambda *arrays: False)
    monkeypatch.setattr(jax, "local_devices", none)
    assert placement.cpu_for_small_steps() is None


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.filterwarnings("ignore:the chains do not agree yet")
@pytest.mark.parametrize(
    ("model", "is_chain"),
    [
        (IB(2, solver="anneal", n_init=2, polish=False), False),
        (IB(2, solver="anneal", n_init=2), True),
        (IB(2, solver="sequential", n_init=2), True),
        (COPKMeans(2, n_init=2), True),
        (MDLMixture(energy="nml", num_chains=2, num_warmup=2, num_samples=4), True),
    ],
)
def test_who_runs_there(model, is_chain, cpu, monkeypatch):
    asked = []
    monkeypatch.setattr(placement, "cpu_for_small_steps", lambda: asked.append(1) or cpu)
    X = np.random.default_rng(0).normal(size=(30, 2)) ** 2
    model.set_params(random_state=0).fit(X)
    assert bool(asked) == is_chain
    assert jax.config.jax_default_device is None  # after any fit
