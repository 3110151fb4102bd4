"""Waiting times with few rows: CPU seconds of first fits, other shapes, and scans.

Data are 150 to 195 rows of iris. Every estimator runs in one thread in a new process after all
imports. The script measures the first fit without a cache and with JAX's compilation cache from an
earlier process, the same fit again, 195 rows, one cluster more, all numbers of clusters from 2 to
10, and all numbers of known groups from 2 to 10. The scans also count the programs that they
compile, including the first fit.
"""

from __future__ import annotations

from common import ROOT, arguments, console, header, show, verdict

# isort: split
import json
import os
import subprocess
import sys
import tempfile

from nrprob.batch.registry import METHODS

PROGRAM = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import jax, numpy as np
from sklearn.datasets import load_iris
from {module} import {name} as Estimator
programs = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: programs.append(event) if event.endswith("compile_duration")
    and "backend" in event else None
)
X = load_iris().data
X = np.concatenate([X, X[::3][:45] + 0.01])
rows = np.arange(len(X))
def fit(n=150, k=3, groups=3):
    given = {{{given!r}: rows[:n] % groups}} if {given!r} else {{}}
    start = time.process_time()
    Estimator(k, random_state=0, **{parameters}).fit({rows}, **given)
    return time.process_time() - start
out = {{"first": fit()}}
if {whole}:
    out |= {{"again": fit(), "rows": fit(n=195), "k": fit(k=4)}}
    out["scan"] = sum(fit(k=k) for k in range(2, 11))
    out["programs"] = len(programs)
    if {given!r}:
        before = len(programs)
        out["groups"] = sum(fit(groups=g) for g in range(2, 11))
        out["more"] = len(programs) - before
print(json.dumps(out))
"""

RIVALS = [  # name, module, parameters
    ("KMeans", "sklearn.cluster", {"n_init": 10}),
    ("GaussianMixture", "sklearn.mixture", {"n_init": 10}),
    ("NrKmeans", "clustpy.alternative", {}),
]
PARAMETERS = {
    "IBSI": {"gamma": 0.5},
    "CMBC": {"binarize": 2.0},
    "MDLMixture": {"num_warmup": 50, "num_samples": 100},  # a tenth of its default
}
ROWS = {"MDLMultiView": "[X[:n, :2], X[:n, 2:]]"}
BARS = {"ConditionalMixture": (4.0, 0.9)}  # of a first fit, cold and cached


def estimators(quick: bool) -> list[tuple[str, str, dict, str]]:
    """Name, module, parameters, and argument of the known structure, of all measured estimators."""
    ours = [
        (
            m.class_name,
            "nrprob",
            PARAMETERS.get(m.class_name, {}),
            m.capabilities.known_as * bool(m.capabilities.known),
        )
        for m in METHODS.values()
    ]
    return [*((*rival, "") for rival in RIVALS), *(ours[:2] if quick else ours)]


def run(name: str, module: str, parameters: dict, given: str, cache: str, whole: bool) -> dict:
    """CPU seconds of an estimator in a separate process."""
    code = PROGRAM.format(
        name=name, module=module, parameters=parameters, given=given, whole=whole,
        rows=ROWS.get(name, "X[:n]"),
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if cache:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(quick: bool) -> None:
    header("waiting: 150 rows of iris, three clusters, three known groups")
    columns = (
        "CPU, s", "first", "cached", "again", "195 rows", "k + 1", "k = 2..10", "programs",
        "L = 2..10", "more", "bars", "",
    )  # fmt: skip
    rows = []
    for name, module, parameters, given in estimators(quick):
        try:
            whole = run(name, module, parameters, given, "", True)
        except subprocess.CalledProcessError as error:
            if "ModuleNotFoundError" not in error.stderr:
                raise
            console.print(f"{name}: {module} is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            run(name, module, parameters, given, folder, False)
            cached = run(name, module, parameters, given, folder, False)["first"]
        limits, met = "", ""
        if name in BARS:
            cold, warm = BARS[name]
            both = verdict(whole["first"], cold), verdict(cached, warm)
            limits, met = (", ".join(part) for part in zip(*both, strict=True))
        rows.append(
            (
                name,
                whole["first"],
                cached,
                whole["again"],
                whole["rows"],
                whole["k"],
                whole["scan"],
                str(whole["programs"]),
                whole.get("groups", ""),
                str(whole.get("more", "")),
                limits,
                met,
            )
        )
    show("CPU seconds", columns, rows)
    console.print("Programs are those of the fits before and the scan of k, and those of L more.")


if __name__ == "__main__":
    main(arguments(__doc__).quick)
