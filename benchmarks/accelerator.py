"""Fits on JAX's default device, an accelerator, vs the CPU of the same machine.

Seconds are for a second fit, without compilation; in brackets for the first fit. The table also has
the relative improvement of the objective on the accelerator, and the adjusted Rand index of both
partitions. Restarts may be sampled in other chunks there, since memory differs. Chains of small
steps run on the CPU by default; here they run on the accelerator. Without an accelerator both
columns are from the CPU.
"""

from __future__ import annotations

from common import Time, console, counts, header, show, timed

# isort: split
import argparse
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from sklearn.metrics import adjusted_rand_score

import nrprob

_LONG = 30.0  # seconds of a fit of which compilation is a small part


def normal(n: int, d: int, k: int, kind: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """Rows of Gaussian clusters within known groups, and the groups."""
    rng = np.random.default_rng(0)
    cluster, group = rng.integers(k, size=n), rng.integers(4, size=n)
    centres, offsets = 1.5 * rng.normal(size=(k, d)), 3 * rng.normal(size=(4, d))
    return (centres[cluster] + offsets[group] + rng.normal(size=(n, d))).astype(kind), group


def cases(scale: int, kind: type) -> dict[str, tuple[bool, Callable[[], Any]]]:
    """Whether a fit is a chain of small steps, and the fit, by name; for thousands of rows."""
    x, group = normal(1000 * scale, 20, 8, kind)
    words, _ = counts(200 * scale, 1000, 8)
    words = words.astype(kind)
    topic = np.random.default_rng(1).integers(3, size=len(words))
    few, of_few = x[: 50 * scale], group[: 50 * scale]
    small, of_small = x[: 10 * scale], group[: 10 * scale]
    same = {"random_state": 0}
    draws = {"num_warmup": 100, "num_samples": 100, **same}
    return {
        "CMBC, 20 columns": (
            False,
            lambda: nrprob.CMBC(8, binarize=0.0, **same).fit(x, known=group),
        ),
        "CCIB, 20 columns": (False, lambda: nrprob.CCIB(8, **same).fit(x, known=group)),
        "CCIB, 1,000 counts": (False, lambda: nrprob.CCIB(8, **same).fit(words, known=topic)),
        "IB, 1,000 counts": (False, lambda: nrprob.IB(8, **same).fit(words)),
        "ConditionalMixture": (
            False,
            lambda: nrprob.ConditionalMixture(8, **same).fit(x, known=group),
        ),
        "ResidualSpectral": (
            False,
            lambda: nrprob.ResidualSpectral(8, **same).fit(words, known=topic),
        ),
        "MixtureEM": (False, lambda: nrprob.MixtureEM(8, **same).fit(x)),
        "CECIB": (False, lambda: nrprob.CECIB(8, **same).fit(x)),
        "MDLMultiView": (
            False,
            lambda: nrprob.MDLMultiView(8, views=[10, 10], **same).fit(x),
        ),
        "CrossPartition": (
            False,
            lambda: nrprob.CrossPartition(8, **same).fit(
                words[: 20 * scale], subsets=topic[: 20 * scale]
            ),
        ),
        "NACI": (False, lambda: nrprob.NACI(8, **same).fit(few, known=of_few)),
        "DecKMeans": (False, lambda: nrprob.DecKMeans(8, **same).fit(x)),
        "CAMI": (False, lambda: nrprob.CAMI(8, **same).fit(x)),
        "CCIB, sequential": (
            True,
            lambda: nrprob.CCIB(8, solver="sequential", **same).fit(few, known=of_few),
        ),
        "MDLMixture, few rows": (
            True,
            lambda: nrprob.MDLMixture(**draws).fit(small, known=of_small),
        ),
        "MDLMixture": (True, lambda: nrprob.MDLMixture(**draws).fit(few, known=of_few)),
    }


def partition(model: Any) -> np.ndarray:
    """Clusters of the rows; with several views, combinations of the clusters of all views."""
    views = getattr(model, "alternatives_", None)
    if views is None:
        return np.asarray(model.labels_)
    return np.unique(views, axis=0, return_inverse=True)[1]


def twice(fit: Callable[[], Any], device: Any) -> tuple[Any, Time, Time]:
    """A model, and times of the first fit and of another, unless the first was slow."""
    result: list[Any] = []
    with jax.default_device(device):
        first = timed(lambda: result.append(fit()))
        again = first if first.wall > _LONG else timed(lambda: result.append(fit()))
    return result[-1], first, again


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rows")
    parser.add_argument("--scale", type=int, default=100, help="thousands of rows")
    parser.add_argument("--float32", action="store_true", help="rows in single precision")
    parser.add_argument("--seconds", type=float, default=3600, help="after which no fit begins")
    parser.add_argument("--only", nargs="*", help="names of fits, or how they begin")
    options = parser.parse_args()
    header("accelerator")
    device = jax.local_devices()[0]
    cpu = jax.local_devices(backend="cpu")[0]
    console.print(f"default device: {device.device_kind}")
    scale = 2 if options.quick else options.scale
    rows, begun = [], time.perf_counter()
    made = cases(scale, np.float32 if options.float32 else np.float64)
    for name, (stepwise, fit) in made.items():
        if options.only and not name.startswith(tuple(options.only)):
            continue
        if time.perf_counter() > begun + options.seconds:
            break
        try:
            there, first, again = twice(fit, device if stepwise else None)
            here, begin, other = twice(fit, cpu)
        except Exception:
            console.print(name, traceback.format_exc())
            continue
        reached, wanted = float(there.objective_), float(here.objective_)
        rows.append(
            (
                name,
                f"{again.wall:.2f} ({first.wall:.1f})",
                f"{other.wall:.2f} ({begin.wall:.1f})",
                other.wall / again.wall,
                f"{(wanted - reached) / abs(wanted):.1e}",
                f"{adjusted_rand_score(partition(here), partition(there)):.3f}",
            )
        )
        console.print(*rows[-1])
    columns = ("fit", "accelerator s", "CPU s", "times as fast", "objective less", "ARI")
    show(f"{1000 * scale} rows", columns, rows)


if __name__ == "__main__":
    main()
