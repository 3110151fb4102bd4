"""Growth of the time per annealing step with n, m, k and the number of sparse entries.

IB, ten restarts, float32. The script prints the fitted exponents; no time should grow faster than
linearly.
"""

from __future__ import annotations

from common import arguments, counts, exponents, header, interleave, per_unit, show

# isort: split
import numpy as np
from scipy import sparse
from step import stepper

from nrprob.methods.bottleneck.ib import Bottleneck


def dense(n, m, k):
    x, _ = counts(n, m, k)
    return x / x.sum(1, keepdims=True)


def rows_with(n, m, nonzeros):
    """CSR rows with a fixed number of entries each, in random columns."""
    rng = np.random.default_rng(0)
    # One column from each of m / nonzeros intervals, so that no two are equal.
    width = m // nonzeros
    column = np.arange(nonzeros) * width + rng.integers(width, size=(n, nonzeros))
    start = np.arange(n + 1) * nonzeros
    values = np.full(n * nonzeros, 1 / nonzeros, np.float32)
    values = (values * rng.uniform(0.5, 1.5, values.size)).astype(np.float32)
    return sparse.csr_array(
        (values, column.ravel().astype(np.int32), start.astype(np.int32)), shape=(n, m)
    )


def main(quick: bool) -> None:
    header("growth of one annealing step of IB with ten restarts, float32")
    base = (2000, 40, 5) if quick else (20_000, 100, 10)
    factors = (1, 2, 4)
    n, m, k = base
    sweeps = {
        "n": [(f * n // 2, m, k) for f in factors],
        "m": [(n, f * m // 2, k) for f in factors],
        "k": [(n, m, f * k // 2) for f in factors],
    }
    problems = {
        (axis, size["nmk".index(axis)]): (dense(*size), size[2])
        for axis, sizes in sweeps.items()
        for size in sizes
    }
    wide = 20 * m
    problems |= {("nnz", n * z): (rows_with(n, wide, z), k) for z in (8, 16, 32)}
    few, many = 1, 6
    calls = {}
    for (axis, size), (x, k_) in problems.items():
        run = stepper(x, np.zeros(x.shape[0], int), Bottleneck("multinomial"), {}, k_)
        for count in (few, many):
            calls[axis, size, count] = lambda run=run, count=count: run(count)
    interleave(calls, 1)
    times = interleave(calls, 3)
    table = []
    for axis in ("n", "m", "k", "nnz"):
        sizes = [size for a, size in problems if a == axis]
        each = [per_unit(times[axis, s, few], times[axis, s, many], many - few) for s in sizes]
        table.append(
            (
                axis,
                ", ".join(f"{s:,}" for s in sizes),
                ", ".join(f"{1e3 * t.wall:.3g}" for t in each),
                exponents(sizes, [t.wall for t in each]),
                exponents(sizes, [t.cpu for t in each]),
            )
        )
    show(
        f"about n={n}, m={m}, k={k}; sparse rows with m={wide}",
        ("grows", "sizes", "ms per step", "exponent", "exponent of CPU time"),
        table,
    )


if __name__ == "__main__":
    main(arguments(__doc__).quick)
