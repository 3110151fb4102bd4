"""Time and peak memory of fits of rows on disk, by number of rows, and of fits in memory.

    python benchmarks/outofcore.py                      # 10^5, 10^6
    python benchmarks/outofcore.py --rows 10000000      # 800 MB of Parquet

Rows of 20 float32 columns in three known groups and five clusters are written as Parquet, in
pieces. Every fit runs in a separate process. "MB" is the peak minus the peak of a fit of 2000 rows
from disk. "us" are microseconds of wall time per row and pass, the difference between a short fit
and a longer one, which excludes compilation and reading. "cpu" is the same for processor time.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

_D, _K, _PIECE = 20, 5, 500_000


def write(path: Path, n: int) -> None:
    """Write rows as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    groups, clusters = 3 * rng.normal(size=(3, _D)), rng.normal(size=(_K, _D))
    writer = None
    for start in range(0, n, _PIECE):
        size = min(_PIECE, n - start)
        known, sought = rng.integers(3, size=size), rng.integers(_K, size=size)
        x = rng.normal(size=(size, _D)) + groups[known] + clusters[sought]
        columns = {f"x{j}": x[:, j].astype(np.float32) for j in range(_D)}
        table = pa.table(columns | {"batch": known.astype(np.int8)})
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()


def fit(path: str, method: str, how: str) -> None:
    """Fit in this process, and print time and memory."""
    import nrprob

    warnings.simplefilter("ignore")
    if how == "memory":
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        names = [f"x{j}" for j in range(_D)]
        X = np.column_stack([table.column(name).to_numpy() for name in names])
        known = table.column("batch").to_numpy()
        del table
    else:
        X, known = nrprob.stored(path, memory=0), "batch"

    def run(passes: int, default: bool = False) -> tuple[float, float, int]:
        wall, cpu = time.perf_counter(), time.process_time()
        if method == "ccib":
            few = {} if default else {"n_init": 1, "cooling": 20.0, "tol": 1e-9, "max_iter": passes}
            model = nrprob.CCIB(_K, random_state=0, **few)
        else:
            few = {} if default else {"n_init": 1, "tol": 1e-9, "max_iter": passes}
            model = nrprob.ConditionalMixture(_K, random_state=0, weights="uniform", **few)
        model.fit(X, known=known)
        return time.perf_counter() - wall, time.process_time() - cpu, model.n_iter_

    if how == "default":
        wall, cpu, passes = run(0, default=True)
        out = {"wall": wall, "passes": passes}
    else:
        run(5)
        short, long = run(5), run(25)
        more = max(long[2] - short[2], 1)
        wall, cpu = ((b - a) / more for a, b in zip(short[:2], long[:2], strict=True))
        out = {"wall": short[0], "passes": short[2], "us": wall, "cpu": cpu}
    out["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(out))


def main() -> None:
    """Write, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--default", action="store_true", help="a default fit from disk as well")
    parser.add_argument("--memory", type=int, default=1_000_000, help="most rows fitted in memory")
    parser.add_argument("--fit", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.fit:
        fit(*chosen.fit)
        return
    names = "rows", "method", "from", "wall s", "passes", "MB", "us", "cpu"
    print("".join(f"{name:>9}" for name in names))
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder, "small.parquet")
        write(small, 2000)
        for method in ("ccib", "mixture"):
            base = alone(small, method, "disk")["MB"]
            for n in chosen.rows:
                path = Path(folder, f"{n}.parquet")
                if not path.exists():
                    write(path, n)
                kinds = ["disk"]
                if n <= chosen.memory:
                    kinds.insert(0, "memory")
                if chosen.default:
                    kinds.append("default")
                for how in kinds:
                    said = alone(path, method, how)
                    each = [f"{1e6 * said[k] / n:.3f}" if k in said else "" for k in ("us", "cpu")]
                    values = (
                        n, method, how, f"{said['wall']:.1f}", said["passes"],
                        f"{said['MB'] - base:.0f}", *each,
                    )  # fmt: skip
                    print("".join(f"{value:>9}" for value in values), flush=True)


def alone(path: Path, method: str, how: str) -> dict[str, float]:
    """Fit in a separate process."""
    command = [sys.executable, __file__, "--fit", str(path), method, how]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
