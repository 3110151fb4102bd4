"""Set-up of all tests: a compilation cache, and the folder of optional data."""

import gc
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from nrprob.caching import set_environment


def _release(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version(package).split(".")[:2])


# Tests selected by these expressions check which input is accepted and exact results. Their
# programs run once for a few milliseconds, so optimisation is not worth its time.
_QUICK = ("not slow", "smoke", "slow and contract")


def _compile_quickly(optimised: bool) -> None:
    # Most of the test time is compilation by XLA. JAX reads these variables at its import, too.
    if not optimised:
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    # The older emitters compile in half of the time, and compiling a program in parts takes longer
    # if another worker uses the second processor. XLA aborts on an unknown flag, and later releases
    # have no other emitters, nor gain from larger parts.
    flags = {
        "--xla_cpu_use_fusion_emitters": "false",
        "--xla_cpu_parallel_codegen_split_count": "1",
    }
    if (0, 8) <= _release("jaxlib") < (0, 11):
        given = os.environ.get("XLA_FLAGS", "")
        new = [f"{flag}={value}" for flag, value in flags.items() if flag not in given]
        os.environ["XLA_FLAGS"] = " ".join([*given.split(), *new])


def _share_processors() -> None:
    # Threads of NumPy and scikit-learn wait actively for each other, which takes time from other
    # workers. They count the processors when they are imported.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


_share_processors()
set_environment(seconds=0.1)  # most programs compile in less time, and are not worth a file
os.environ.setdefault("MPLBACKEND", "Agg")


def pytest_configure(config):
    # A plugin may have imported JAX already, and then it is too late.
    if "jax" not in sys.modules:
        _compile_quickly(optimised=config.option.markexpr not in _QUICK)


def pytest_collection_finish():
    # Tracing creates millions of objects, few of which are garbage: collections took a tenth of the
    # time, mostly for modules and tests that stay.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Release the compiled programs of a test file after it.

    Each program holds dozens of memory maps, of which Linux allows a process 65,530 by default:
    beyond this, XLA aborts the whole run.
    """
    yield
    _clear_programs()


def _clear_programs():
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    if "nrprob.engines.programs" in sys.modules:
        sys.modules["nrprob.engines.programs"].SizedJit.forget()
    if "nrprob.engines.batching" in sys.modules:
        sys.modules["nrprob.engines.batching"]._PROGRAMS.clear()


@pytest.fixture
def compilations(monkeypatch):
    """Seconds of every compilation, where no program is stored and none is in memory."""
    import jax

    from nrprob.engines import stored_programs

    seconds = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration)

    _clear_programs()  # earlier tests may have compiled the same programs
    monkeypatch.setattr(stored_programs, "folder", lambda: None)
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seconds
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def cpu():
    """A CPU as the default device, for tests of layouts or of exact equality."""
    import jax

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the real data sets that the repository does not contain."""
    named = os.environ.get("NRPROB_DATA")
    path = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no real data: NRPROB_DATA is {named!r} and {path} is not a directory")
    return path
