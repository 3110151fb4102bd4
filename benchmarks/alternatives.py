"""Merging by tables of pairs against SciPy's average linkage of the same distances.

`NACI` and `COALA` merge n rows of the plane from a table of n x n numbers, as average linkage does
from n (n - 1) / 2. The bar: at most 10 times SciPy's time for the merging of NACI at n=5,000, of
distances that are there. Beside it stand fits from rows to labels, against SciPy's from rows to a
tree, and a fit of 100,000 rows by a sample. Compilation is not counted.
"""

from __future__ import annotations

from common import arguments, console, header, interleave, show, timed, verdict  # isort: skip

import resource
import warnings

import jax
import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from nrprob import COALA, NACI
from nrprob.datasets import make_planar_shapes
from nrprob.methods.alternatives import coala, naci
from nrprob.methods.alternatives.pairs import Padded
from nrprob.metrics import pair_f_measure
from nrprob.settings import standard

BAR = 10.0


def of_size(n: int, dtype: type, repeats: int) -> list[tuple]:
    """A row of the table for every way to merge n rows."""
    X, labels = make_planar_shapes(n, random_state=0)
    X, z = X.astype(dtype), labels[:, 0]
    condensed = pdist(X)
    with standard():
        rows = Padded.of(X / X.std(), z[:, None])
        eta, sigma = np.full(1, 0.2, dtype), np.asarray(0.3, dtype)
        tables, _ = naci._tables(rows, sigma, eta, apart=False)
        merge = {
            "SciPy, merging": lambda: linkage(condensed, "average"),
            "NACI, merging": lambda: jax.block_until_ready(
                naci._join(tables, rows.alive, eta, current=False)
            ),
            "COALA, merging and distances": lambda: jax.block_until_ready(
                coala._join(rows, np.asarray(0.6, dtype))
            ),
        }
        fits = {
            "SciPy, from rows": lambda: linkage(X, "average"),
            "NACI, fit": lambda: NACI().fit(X, known=z),
            "NACI, fit without moves": lambda: NACI(refine=False).fit(X, known=z),
            "COALA, fit": lambda: COALA().fit(X, known=z),
        }
        table = []
        for calls in (merge, fits):
            for call in calls.values():
                call()
            times = interleave(calls, repeats)
            first = next(iter(times.values()))
            for name, time in times.items():
                ratio = time.cpu / first.cpu
                bar = verdict(ratio, BAR) if name == "NACI, merging" and n >= 5000 else ("", "")
                table.append((np.dtype(dtype).name, str(n), name, time.wall, time.cpu, ratio, *bar))
    return table


def main(quick: bool) -> None:
    header("clusterings from tables of pairs")
    sizes = (200,) if quick else (1000, 5000)
    table = [row for n in sizes for t in (np.float32, np.float64) for row in of_size(n, t, 3)]
    show(
        "seconds, and CPU seconds over those of SciPy above",
        ("", "n", "", "wall", "CPU", "ratio", "bar", ""),
        table,
    )
    n = 2000 if quick else 100_000
    X, labels = make_planar_shapes(n, random_state=0)
    model = NACI(approx="subsample", random_state=0)
    time = timed(lambda: model.fit(X, known=labels[:, 0]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    console.print(
        f"NACI of {n} rows by a sample: {time.wall:.1f} s, F with what is sought "
        f"{pair_f_measure(model.labels_, labels[:, 1]):.3f}; peak memory of this process so far "
        f"{peak:.1f} GB"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(arguments(__doc__).quick)
