"""Set-up shared by all tests: a compilation cache, and where optional data lie."""

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
    flag = "--xla_cpu_use_fusion_emitters"
    # The emitters that came before compile in half of the time. XLA aborts on a flag that it does
    # not know, and later releases have no others.
    known = (0, 8) <= _release("jaxlib") < (0, 11)
    if known and flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}=false".strip()


def _share_processors() -> None:
    # NumPy's and scikit-learn's threads wait busily for each other, which takes the time of other
    # workers. They count the processors at their import.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))


_share_processors()
set_environment(seconds=0)  # most of a test run would be compilation
os.environ.setdefault("MPLBACKEND", "Agg")


def pytest_configure(config):
    # A plugin may have imported JAX, and then it is too late.
    if "jax" not in sys.modules:
        _compile_quickly(optimised=config.option.markexpr not in _QUICK)


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


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Directory of the real data sets that are too large, or not ours, to ship."""
    named = os.environ.get("NRPROB_DATA")
    path = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"no real data: NRPROB_DATA is {named!r} and {path} is not a directory")
    return path
