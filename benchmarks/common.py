"""Shared parts of the benchmarks: data, interleaved timing, tables and the header.

Import this before numpy: it sets BLAS to one thread, as the thresholds require. XLA has a separate
thread pool and uses all cores.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import importlib.metadata
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a source folder that was never installed is measured as it is

# Many fits are stopped before they converge, on purpose.
warnings.filterwarnings("ignore", category=UserWarning)

# Beginning of programs in separate processes; it must not import the measured modules.
_TIMED = """
import time
def timed(call):
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    print(time.perf_counter() - wall, time.process_time() - cpu)
"""
_PACKAGES = ("nrprob", "jax", "jaxlib", "numpy", "scipy", "scikit-learn", "sib-clustering")
# Wide enough for the longest row, since output to a file must not be truncated.
console = Console(width=132, highlight=False)


class Time(NamedTuple):
    """Seconds of one call: wall clock, and CPU of this process over all its threads."""

    wall: float
    cpu: float


def arguments(doc: str) -> argparse.Namespace:
    """Parse the option that every benchmark has."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats")
    return parser.parse_args()


def header(title: str) -> None:
    """Print machine and versions, without which figures are meaningless."""
    versions = []
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} -")
    console.rule(title)
    console.print(f"{_processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    console.print(f"Python {platform.python_version()}, " + ", ".join(versions))


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def timed(call: Callable[[], object]) -> Time:
    """Time one call."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return Time(time.perf_counter() - wall, time.process_time() - cpu)


def interleave(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, Time]:
    """Best times of calls that run in turns, so that other processes affect all of them equally."""
    times: dict[str, list[Time]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(timed(call))
    return {name: _best(result) for name, result in times.items()}


def _best(times: Sequence[Time]) -> Time:
    return Time(min(t.wall for t in times), min(t.cpu for t in times))


def per_unit(few: Time, many: Time, units: int) -> Time:
    """Time of one unit of work, from two runs that differ by ``units`` units."""
    return Time((many.wall - few.wall) / units, (many.cpu - few.cpu) / units)


def fresh_processes(
    codes: dict[str, str], repeats: int, environment: dict[str, str] | None = None
) -> dict[str, Time]:
    """Best times of programs that call ``timed`` themselves and print its result.

    Every run is a separate process, and the programs run in turns. A first turn, which is not
    counted, writes bytecode, as an installation does.
    """
    times: dict[str, list[Time]] = {name: [] for name in codes}
    with tempfile.TemporaryDirectory() as bytecode:
        full = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": bytecode,
            **(environment or {}),
        }
        for turn in range(repeats + 1):
            for name, code in codes.items():
                out = subprocess.run(
                    [sys.executable, "-c", _TIMED + code],
                    cwd=ROOT,
                    env=full,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                wall, cpu = out.stdout.split()[-2:]
                if turn:
                    times[name].append(Time(float(wall), float(cpu)))
    return {name: _best(result) for name, result in times.items()}


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row))
    console.print(table)


def verdict(value: float, bar: float, *, at_least: bool = False) -> tuple[str, str]:
    """Return the threshold, and whether the value reaches it."""
    met = value >= bar if at_least else value <= bar
    return f"{'>=' if at_least else '<='} {bar:g}", "met" if met else "MISSED"


def counts(
    n: int, m: int, k: int, *, draws: int = 48, concentration: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Multinomial rows around k random profiles, with their labels, as float32.

    With the default settings and m=100 a third of the entries is non-zero.
    """
    rng = np.random.default_rng(seed)
    profile = rng.dirichlet(np.full(m, concentration), k)
    labels = rng.integers(k, size=n)
    x = np.empty((n, m), np.float32)
    for c in range(k):
        member = np.flatnonzero(labels == c)
        x[member] = rng.multinomial(draws, profile[c], size=member.size)
    return x, labels


def binary(n: int, dims: tuple[int, int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Binary rows with two independent partitions; returns the labels of the more prominent one."""
    from nrprob.datasets import make_binary_partitions

    x, labels = make_binary_partitions(n, dims, random_state=seed)
    return x.astype(np.float64), labels[:, 0]


def exponents(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of log time over log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
