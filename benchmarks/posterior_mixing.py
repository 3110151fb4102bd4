"""How fast `MDLMixture` mixes on iris, penguins and wine: effective draws of its components.

Every fit has 4 chains of 1,000 draws after 500 iterations of warm-up, from dispersed partitions,
on standardised features. For every data set and seed, the script prints the effective number of
draws of the number of components and of the log density, their R-hat, accepted splits and merges
per 1,000 proposals, CPU milliseconds of an iteration of one chain, and CPU seconds of the fit,
which include compilation. Penguins come from the data folder, NRPROB_DATA.

    python benchmarks/posterior_mixing.py [--sets iris,penguins,wine] [--seeds 0,1,2]
        [--steps 500,1000] [--split_merge 10]
"""

from __future__ import annotations

import argparse
import time
import warnings

from common import header, show  # isort: skip  (pins BLAS before numpy)

import arviz
import numpy as np

from nrprob import MDLMixture, datasets


def measure(name: str, seed: int, n_warm: int, n_draws: int, **settings) -> tuple:
    """Fit a data set, and measure effective draws, acceptance and time."""
    X = datasets.load(name).X
    start = time.process_time()
    model = MDLMixture(num_warmup=n_warm, num_samples=n_draws, random_state=seed, **settings)
    model.fit(X)
    fit_seconds = time.process_time() - start
    draws = model.posterior_
    traces = [draws[v].values.astype(float) for v in ("n_components", "log_density")]
    counts = {v: int(model.sample_stats_[v].sum()) for v in ("split", "merge")}
    rates = [
        1000 * int(model.sample_stats_[f"{v}_accepted"].sum()) / max(counts[v], 1) for v in counts
    ]
    start = time.process_time()
    model.extend(n_draws // 2)  # everything is compiled
    milliseconds = 1e3 * (time.process_time() - start) / (n_draws // 2) / len(traces[0])
    return (
        name, model.covariance_, seed, traces[0].mean(), *(float(arviz.ess(t)) for t in traces),
        *(float(arviz.rhat(t)) for t in traces), *rates, milliseconds, fit_seconds,
    )  # fmt: skip


def main() -> None:
    """Print a line for every data set and seed, and means over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", default="iris,penguins,wine")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", default="500,1000")
    parser.add_argument("--split_merge", type=int)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    header("mixing of MDLMixture")
    steps = [int(count) for count in chosen.steps.split(",")]
    settings = {} if chosen.split_merge is None else {"num_split_merge": chosen.split_merge}
    table = []
    for name in chosen.sets.split(","):
        rows = [measure(name, int(seed), *steps, **settings) for seed in chosen.seeds.split(",")]
        means = np.mean([row[3:] for row in rows], 0)
        table += [*rows, (name, rows[0][1], "mean", *means)]
    show(
        "effective draws",
        ("data", "covariance", "seed", "mean k", "ESS k", "ESS log p", "R-hat k", "R-hat log p",
         "splits/1000", "merges/1000", "ms/step", "fit s"),
        table,
    )  # fmt: skip


if __name__ == "__main__":
    main()
