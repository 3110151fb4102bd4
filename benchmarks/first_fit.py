"""Seconds of the first fit, without and with a compilation cache.

The fit is ``CCIB(2).fit(X, known=z)`` at n=200, m=8, in new processes after all imports.
"""

from __future__ import annotations

from common import arguments, console, fresh_processes, header, show, verdict

# isort: split
import tempfile

COLD, CACHED = 2.0, 0.5

PROGRAM = """
from nrprob import CCIB
from nrprob.datasets import make_binary_partitions
X, labels = make_binary_partitions(200, (4, 4), random_state=0)
model = CCIB(2)
for repeat in range({fits}):
    timed(lambda: model.fit(X, known=labels[:, 0]))
"""


def main(quick: bool) -> None:
    header("first fit: CCIB(2), n=200, m=8")
    repeats = 1 if quick else 5
    one, four = PROGRAM.format(fits=1), PROGRAM.format(fits=4)
    cold = fresh_processes({"cold": one, "later": four}, repeats)
    with tempfile.TemporaryDirectory() as folder:
        cache = {
            "JAX_COMPILATION_CACHE_DIR": folder,
            # By default, JAX only stores programs that took a second to compile.
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        # The turn that is not counted fills the cache.
        cached = fresh_processes({"hit": one}, repeats, cache)["hit"]
    rows = [
        ("first, no cache", *cold["cold"], *verdict(cold["cold"].wall, COLD)),
        ("first, cache filled by an earlier process", *cached, *verdict(cached.wall, CACHED)),
        ("fourth in the same process", *cold["later"], "", ""),
    ]
    show("best of several processes", ("fit", "wall, s", "CPU, s", "bar", ""), rows)
    console.print("The first array of a process (start of the backend) is part of the first fit.")


if __name__ == "__main__":
    main(arguments(__doc__).quick)
