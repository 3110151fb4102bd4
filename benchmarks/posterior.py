"""Whether the posterior of `MDLMixture` recovers planted clusters and their number, and how fast.

Rows come from Gaussian clusters with a minimum distance of centres, in standard deviations, with
and without known groups whose offsets are larger. For every case, the script prints the probability
of the correct number of clusters, the adjusted Rand index of the reported partition, the largest
R-hat of label-invariant quantities, CPU seconds with compilation, and effective draws of the number
of clusters and of the length per CPU second. The first fifteen cases were fixed before any run: ten
with clusters of similar sizes, and five for the choice of the update of the size concentration. The
last cases are rows of one Gaussian cluster.

    python benchmarks/posterior.py [--unordered 1] [--concentration 1] [--only 0,3]
        [--steps 500,1000]
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import NamedTuple

import arviz
import numpy as np
from sklearn.metrics import adjusted_rand_score

from nrprob import MDLMixture


class Case(NamedTuple):
    """Rows, columns, clusters, known groups, minimum distance of centres, and type of covariance.

    The last field is the factor between the sizes of successive clusters.
    """

    n: int
    d: int
    k: int
    groups: int
    apart: float
    covariance: str
    ratio: float = 1.0


CASES = [
    Case(300, 2, 5, 1, 5.0, "round"),
    Case(300, 4, 3, 1, 4.0, "tied"),
    Case(300, 4, 3, 1, 5.0, "full"),
    Case(1000, 10, 6, 1, 6.0, "round"),
    Case(100, 3, 2, 1, 4.0, "tied"),
    Case(200, 4, 3, 3, 5.0, "tied"),
    Case(500, 8, 4, 4, 5.0, "tied"),
    Case(1000, 3, 2, 2, 4.0, "tied"),
    Case(300, 2, 4, 5, 5.0, "round"),
    Case(150, 6, 3, 2, 6.0, "tied"),
    Case(400, 2, 5, 1, 5.0, "round", 0.5),
    Case(300, 4, 3, 1, 5.0, "tied", 0.25),
    Case(300, 4, 3, 1, 5.0, "full", 0.4),
    Case(500, 8, 4, 4, 5.0, "tied", 0.4),
    Case(1000, 3, 2, 2, 4.0, "tied", 0.03),
    Case(200, 2, 1, 1, 0.0, "round"),
    Case(200, 4, 1, 1, 0.0, "tied"),
    Case(200, 10, 1, 1, 0.0, "round"),
    Case(200, 20, 1, 1, 0.0, "tied"),
    Case(200, 50, 1, 1, 0.0, "round"),
    Case(1000, 10, 1, 1, 0.0, "round"),
    Case(200, 10, 1, 3, 5.0, "round"),
]


def make(case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (n, d), and their planted and known groups."""
    rng = np.random.default_rng(seed)
    truth, known = rng.integers(case.k, size=case.n), rng.integers(case.groups, size=case.n)
    if case.ratio != 1:
        share = case.ratio ** np.arange(case.k)
        truth = rng.choice(case.k, case.n, p=share / share.sum())
    centres = rng.normal(size=(case.k, case.d))
    between = np.linalg.norm(centres[:, None] - centres, axis=2)
    centres *= case.apart / between[~np.eye(case.k, dtype=bool)].min(initial=np.inf)
    turns = np.eye(case.d) + 0.5 * rng.normal(size=(case.k, case.d, case.d)) / case.d**0.5
    turns = {"round": 0 * turns + np.eye(case.d), "tied": 0 * turns + turns[0], "full": turns}[
        case.covariance
    ]
    noise = np.einsum("ni,nij->nj", rng.normal(size=(case.n, case.d)), turns[truth])
    offsets = 2 * case.apart * rng.normal(size=(case.groups, case.d))
    return centres[truth] + offsets[known] * (case.groups > 1) + noise, truth, known


def main() -> None:
    """Print a line for every case."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--unordered", type=lambda text: bool(int(text)), default=None)
    parser.add_argument("--concentration", type=float, default=None)
    parser.add_argument("--only", default=",".join(map(str, range(len(CASES)))))
    parser.add_argument("--steps", default="500,1000")
    given = parser.parse_args()
    warm, kept = map(int, given.steps.split(","))
    settings = {"unordered": given.unordered, "concentration": given.concentration}
    extra = {name: value for name, value in settings.items() if value is not None}
    for which in map(int, given.only.split(",")):
        case = CASES[which]
        X, truth, known = make(case, which)
        begin = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MDLMixture(
                num_warmup=warm, num_samples=kept, merge=None, random_state=0, **extra
            )
            model.fit(X, known=known if case.groups > 1 else None)
        seconds = time.process_time() - begin
        k = model.posterior_["n_clusters"].values
        begin = time.process_time()
        model.extend(kept // 2)  # already compiled, with a third of all draws
        rate = 1 / (3 * (time.process_time() - begin))
        draws = [
            model.posterior_[name].values.astype(float) for name in ("n_clusters", "log_density")
        ]
        ess = [float(arviz.ess(v)) * rate for v in draws]
        print(
            f"{tuple(case)}: P(k) {(k == case.k).mean():.2f}, mean k {k.mean():.1f}, ARI "
            f"{adjusted_rand_score(truth, model.labels_):.2f}, R-hat "
            f"{max(model.diagnostics_['r_hat'].max(), *model.r_hat_.values()):.3f}, "
            f"{seconds:.0f} s, ESS/s {ess[0]:.1f} {ess[1]:.1f}, {model.covariance_}",
            flush=True,
        )


if __name__ == "__main__":
    main()
