"""Critical weight of the labels of `CECIB`, estimated from few samples.

Two classes have labels without relation to the features, or means at a distance of 3 or 6 standard
deviations. The population values are 1, 0.15 and -0.66. Five classes at equal distances of 3 have a
population value of 0.20, and "beta" is then the weight that `CECIB(beta="critical")` uses.
"""

from __future__ import annotations

from common import header, show

# isort: split
import argparse
import math

import numpy as np

from nrprob.methods.cec.critical import MomentEstimates, estimate_critical_beta
from nrprob.methods.cec.held_out import HeldOutGains
from nrprob.methods.cec.inputs import prepare_features

PAIR = np.ones((1, 2), bool)


def simplex(n_classes: int, distance: float) -> np.ndarray:
    """Means (k, k - 1) of classes at equal distances."""
    vectors, sizes, _ = np.linalg.svd(np.eye(n_classes) - 1 / n_classes)
    return (vectors * sizes)[:, :-1] * distance / math.sqrt(2)


def pair_estimates(
    rng: np.random.Generator, d: int, n: int, distance: float, n_sets: int
) -> np.ndarray:
    """Estimates by moments, their errors, and cross-validated ones (n_sets, 3) of two classes."""
    codes, mass, out = np.repeat([0, 1], n), np.ones(2 * n), []
    for i in range(n_sets):
        x = rng.normal(size=(2 * n, d))
        x[n:, 0] += distance
        value = error = [np.nan]
        if n >= d + 2:
            value, error = MomentEstimates(x, mass, codes, 2, "full")(PAIR)
        gains = HeldOutGains(x, mass, codes, "full", np.random.RandomState(i))
        out.append((value[0], error[0], gains.estimate(PAIR)[0]))
    return np.array(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few sets")
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    header("critical weight of labels")
    n_sets = 10 if options.quick else 200
    rows = []
    for d, n in ((5, 5), (5, 7), (5, 10), (10, 10), (10, 12), (10, 30), (20, 22), (20, 30),
                 (30, 10), (30, 32), (30, 60)):  # fmt: skip
        rng = np.random.default_rng([options.seed, d, n])
        noise = pair_estimates(rng, d, n, 0, n_sets)
        near, far = (pair_estimates(rng, d, n, shift, n_sets // 5) for shift in (3, 6))
        inside = np.abs(noise[:, 0] - 1) <= 3 * noise[:, 1]
        has = n >= d + 2
        rows.append(
            (
                d, n, *(f"{v:.2f}" if has else "" for v in (
                    noise[:, 0].mean(), noise[:, 0].std(), noise[:, 1].mean())),
                f"{inside.mean():.1%}" if has else "",
                *(f"{part[:, 0].mean():.2f}" if has else "" for part in (near, far)),
                *(f"{part[:, 2].mean():.2f}" for part in (noise, near, far)),
            )
        )  # fmt: skip
    columns = ("features", "per class", "noise", "sd", "se", "in 3 se", "3 sd", "6 sd",
               "noise, cv", "3 sd, cv", "6 sd, cv")  # fmt: skip
    show("Two classes: means of estimates by moments and by cross-validation", columns, rows)

    rows = []
    for d in (5, 10, 20):
        means = simplex(5, 3.0) @ np.eye(4, d)
        for n in sorted({d // 2 + 3, d + 2, d + 3, d + 5, 2 * d, 3 * d}):
            rng = np.random.default_rng([options.seed, d, n])
            codes, weights = np.repeat(np.arange(5), n), []
            for i in range(n_sets // 5):
                x = prepare_features(rng.normal(size=(5 * n, d)) + means[codes], "full", None, 0, 1)
                result = estimate_critical_beta(
                    x, codes, "full", np.arange(5), np.random.RandomState(i)
                )
                weights.append(result.weight)
            rows.append(
                (
                    d,
                    n,
                    f"{np.mean(weights):.2f}",
                    f"{np.min(weights):.2f}",
                    f"{np.max(weights):.2f}",
                )
            )
    columns = ("features", "per class", "mean beta", "smallest", "largest")
    show("Five classes at equal distances of 3 standard deviations", columns, rows)


if __name__ == "__main__":
    main()
