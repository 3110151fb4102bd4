"""A sweep in one process vs its fits one by one, in separate processes and in a warm one.

10 settings x 10 data sets of 200 rows, 10 restarts each. The sweep is a run of `nrprob run` in a
new process, including start and compilation; the separate processes include them, too. Neither has
a compilation cache. All use both cores: the processes run two at a time.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import arguments, header, show

SETTINGS = [round(0.5 + 0.1 * i, 1) for i in range(10)]
SPEC = {
    "known": "partition_0",
    "data": {
        "generator": "make_binary_partitions",
        "parameters": {"n_samples": 200, "dims": [10, 4], "n_clusters": 2},
        "repeats": 10,
    },
    "methods": [{"name": "ccib", "n_clusters": 2, "grid": {"coordination_weight": SETTINGS}}],
    "measures": {"precision": {"metric": "matched_accuracy", "labeling": "partition_1"}},
}
ONE = """
import sys
from nrprob import CCIB
from nrprob.datasets import make_binary_partitions
X, labels = make_binary_partitions(200, [10, 4], 2, random_state=int(sys.argv[1]))
CCIB(2, coordination_weight=float(sys.argv[2]), random_state=0).fit(X, known=labels[:, 0])
"""
# Prints the seconds of a first sweep, of a second one, and of the same fits one by one.
WARM = """
import json, sys, tempfile, time
from nrprob import CCIB, batch
from nrprob.batch import modelfile, plan, runner
from nrprob.datasets import make_binary_partitions

spec = json.loads(sys.argv[1])
times = []
for _ in range(2):
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        whole = plan.expand(modelfile.read_model(spec))
        done = runner.run_plan(whole, folder)
    times.append(time.perf_counter() - start)
    print(done.compiled, file=sys.stderr)
cells = [(c.seed, c.parameters) for c in whole.cells]
for _ in range(2):
    start = time.perf_counter()
    for seed, parameters in cells:
        X, labels = make_binary_partitions(200, [10, 4], 2, random_state=seed)
        CCIB(**parameters).fit(X, known=labels[:, 0])
    one_by_one = time.perf_counter() - start
print(json.dumps([*times, one_by_one]))
"""


def fresh(code, *arguments):
    """Seconds of a process without a compilation cache, and its output."""
    environment = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return time.perf_counter() - start, done


def main():
    quick = arguments(__doc__).quick
    header("10 settings x 10 data sets x 10 restarts, n=200")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "sweep.json"
        model.write_text(json.dumps(SPEC))
        run = "import json, sys; from nrprob import batch; "
        run += "batch.run(json.load(open(sys.argv[1])), sys.argv[2])"
        sweep, _ = fresh(run, model, Path(folder) / "out")
    seeds = range(1 if quick else 10)
    jobs = [(seed, weight) for seed in seeds for weight in SETTINGS]
    start = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda job: fresh(ONE, *job), jobs))
    separate = (time.perf_counter() - start) * 100 / len(jobs)
    _, done = fresh(WARM, json.dumps(SPEC))
    first, second, one_by_one = json.loads(done.stdout)
    compiled = done.stderr.split()
    show(
        "seconds for 100 fits",
        ("way", "seconds", "of the sweep"),
        [
            ("sweep in a fresh process", sweep, 1.0),
            (f"{len(jobs)} separate processes" + ", scaled" * quick, separate, separate / sweep),
            (f"sweep in a running process ({compiled[0]} compiled)", first, first / sweep),
            (f"again, warm ({compiled[1]} compiled)", second, second / sweep),
            ("one by one, warm", one_by_one, one_by_one / sweep),
        ],
    )


if __name__ == "__main__":
    main()
