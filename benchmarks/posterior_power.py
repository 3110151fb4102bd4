"""Whether anything but the known classes determines the ``likelihood_power`` of `MDLMixture`.

For wine and iris, the script prints the held-out log density (five folds) and the clusters of the
fits, by the power. Then it tests how wine's exact posterior (power 1) splits classes: whether rows
of a class that are adjacent in the file are in one cluster more often than in random order. No fit
uses the order in the file.
"""

from __future__ import annotations

from common import arguments, header, show

# isort: split
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import KFold

from nrprob import MDLMixture

FOLDS, ORDERS = 5, 10_000


def fitted(X: np.ndarray, **settings: Any) -> MDLMixture:
    """Draws of a posterior, without convergence warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MDLMixture(merge=None, random_state=0, **settings).fit(X)


def held_out(X: np.ndarray, **settings: Any) -> tuple[np.ndarray, list[int]]:
    """Mean log density (nats per row) of each fold given the others, and the others' clusters."""
    density, result = [], []
    for rest, fold in KFold(FOLDS, shuffle=True, random_state=0).split(X):
        model = fitted(X[rest], **settings)
        density.append(model.score(X[fold]))
        result.append(model.n_clusters_)
    return np.array(density), result


def together(labels: np.ndarray) -> float:
    """Share of adjacent rows of the file that are in one cluster."""
    return float((labels[1:] == labels[:-1]).mean())


def main(quick: bool) -> None:
    header("the power of a posterior over clusterings")
    short = {"num_warmup": 100, "num_samples": 100} if quick else {"num_samples": 1000}
    rows = []
    for name, load, kind in (("wine", load_wine, "shrunk"), ("iris", load_iris, "full")):
        X, base = load().data, None
        for power in (1.0, 0.8) if quick else (1.0, 0.9, 0.8, 0.7):
            density, result = held_out(X, covariance=kind, likelihood_power=power, **short)
            base = density if base is None else base
            less = density - base
            error = less.std(ddof=1) / FOLDS**0.5
            clusters = " ".join(map(str, result))
            rows.append([name, kind, str(power), f"{density.mean():.3f}",
                         f"{less.mean():.3f} ({error:.3f})", clusters])  # fmt: skip
    show(
        f"rows held out, {FOLDS} folds",
        ("rows", "covariance=", "likelihood_power=", "log density", "less power 1's", "clusters"),
        rows,
    )
    X, truth = load_wine(return_X_y=True)
    random, rows = np.random.default_rng(0), []
    for kind, how in (("shrunk", "identity"), ("shrunk", "yeo-johnson"), ("full", "yeo-johnson")):
        model = fitted(X, covariance=kind, transformation=how, **short)
        right = adjusted_rand_score(truth, model.labels_)
        for c in range(3):
            labels = model.labels_[truth == c]
            if together(labels) == 1:
                continue
            chance = [together(random.permutation(labels)) for _ in range(ORDERS)]
            p = (1 + np.sum(np.array(chance) >= together(labels))) / (1 + ORDERS)
            what = kind, how, str(model.n_clusters_), f"{right:.2f}", str(c)
            rows.append([*what, f"{together(labels):.2f}", f"{np.mean(chance):.2f}", f"{p:.4f}"])
    show(
        "kinds of wine that are cut: neighbours in the file that are in one cluster",
        ("covariance=", "transformation=", "clusters", "ARI", "kind", "share", "by chance", "p"),
        rows,
    )


if __name__ == "__main__":
    main(arguments(__doc__).quick)
