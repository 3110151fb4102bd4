"""Set-up shared by all tests: a compilation cache, and where optional data lie."""

import gc
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from nrprob.caching import set_environment


def _release(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version(package).split(".")[:2])


# What is chosen by these expressions looks at what is accepted, refused, and exact: programs that
# run once for a few milliseconds, and are worth no optimisation.
_QUICK = ("not slow", "smoke", "slow and contract")


def _compile_quickly(optimised: bool) -> None:
    # Much of the time of all tests is XLA's. JAX reads these variables at its import, too.
    if not optimised:
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    # The emitters that came before compile in half of the time, and a program that is cut in parts
    # takes longer where another worker has the other processor. XLA aborts on a flag that it does
    # not know, and later releases have no other emitters, nor gain from larger parts.
    flags = {
        "--xla_cpu_use_fusion_emitters": "false",
        "--xla_cpu_parallel_codegen_split_count": "1",
    }
    if (0, 8) <= _release("jaxlib") < (0, 11):
        given = os.environ.get("XLA_FLAGS", "")
        new = [f"{flag}={value}" for flag, value in flags.items() if flag not in given]
        os.environ["XLA_FLAGS"] = " ".join([*given.split(), *new])


def _share_processors() -> None:
    # NumPy's and scikit-learn's threads wait busily for each other, which takes the time of other
    # workers. They count the processors at their import.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


_share_processors()
set_environment(seconds=0.1)  # most of a test run would be compilation; less is not worth a file
os.environ.setdefault("MPLBACKEND", "Agg")


def pytest_configure(config):
    # A plugin may have imported JAX, and then it is too late.
    if "jax" not in sys.modules:
        _compile_quickly(optimised=config.option.markexpr not in _QUICK)


def pytest_collection_finish():
    # Tracing makes objects by the million, and few of them are garbage: collections took a tenth of
    # the time, and most of that to look at modules and tests again, which stay.
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Let the programs of a file go when it is done.

    Each holds dozens of memory maps, of which Linux allows a process 65,530 by default: beyond, XLA
    aborts the whole run.
    """
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    if "nrprob.engines.batching" in sys.modules:
        sys.modules["nrprob.engines.batching"]._PROGRAMS.clear()


@pytest.fixture
def cpu():
    """A CPU as the default: for what is laid out as it is there, or the same to the last digit."""
    import jax

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Directory of the real data sets that are too large, or not ours, to ship."""
    named = os.environ.get("NRPROB_DATA")
    path = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no real data: NRPROB_DATA is {named!r} and {path} is not a directory")
    return path
