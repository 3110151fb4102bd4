"""`MDLMixture` on clusters that are not Gaussian, or have dense covariances.

First, real classes that are not Gaussian (iris, wine), with likelihood exponents from 1 downwards,
and clusters with a shared covariance or shrunk covariances. Second, three planted clusters of 300
rows in 15 columns with dense covariances, equal or different, under every ``covariance``. Third,
three planted clusters with t errors, with and without known groups, under Gaussian and t errors.
Fourth, transformed columns with sampled lambdas: wine and iris, and planted clusters with two
exponentiated columns. Last, three clusters with a distant outlier, with distant known groups, or
with large effects of covariates.
"""

from __future__ import annotations

from common import arguments, header, show

# isort: split
import itertools
import time
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from nrprob import MDLMixture

COLUMNS = ("k", "ARI", "P(3 or 4)", "R-hat", "CPU, s")


def row(
    name: tuple[str, ...], X: np.ndarray, truth: np.ndarray, known: Any = None, **settings: Any
) -> list[Any]:
    """A line of a table: a fit, without convergence warnings."""
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MDLMixture(merge=None, random_state=0, **settings).fit(X, known=known)
    seconds = time.process_time() - begin
    k = model.posterior_["n_clusters"].values
    worst = max(*model.diagnostics_["r_hat"].dropna(), *model.r_hat_.values())
    right = adjusted_rand_score(truth, model.labels_)
    share = np.isin(k, (3, 4)).mean()
    return [*name, model.n_clusters_, f"{right:.3f}", f"{share:.2f}", f"{worst:.3f}", seconds]


def planted(own: bool, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three clusters with a common covariance, or with different ones."""
    rng = np.random.default_rng(seed)
    n, d, k = 300, 15, 3
    common = rng.normal(size=(d, d)) / np.sqrt(d) + np.eye(d)
    truth, centres = rng.integers(k, size=n), 1.2 * rng.normal(size=(k, d))
    X = np.empty((n, d))
    for c, size in enumerate((0.7, 1.0, 1.4)):
        root = np.eye(d)
        if own:
            root = size * (root + 0.5 * rng.normal(size=(d, d)) / np.sqrt(d))
        here = truth == c
        X[here] = (centres[c] + rng.normal(size=(here.sum(), d)) @ root.T) @ common.T
    return X, truth


def tailed(freedom: float, seed: int, grouped: bool) -> tuple[np.ndarray, np.ndarray, Any]:
    """Rows of three clusters five units apart, with t errors, in three groups or in none."""
    rng = np.random.default_rng(seed)
    n, d, k = 300, 4, 3
    truth, group = rng.integers(k, size=n), rng.integers(3, size=n)
    errors = rng.normal(size=(n, d))
    if np.isfinite(freedom):
        errors = errors / np.sqrt(rng.chisquare(freedom, size=(n, 1)) / freedom)
    X = np.linalg.qr(rng.normal(size=(d, d)))[0][truth] * 5 / np.sqrt(2) + errors
    X = X + (4 * rng.normal(size=(3, d))[group] if grouped else 0)
    mix = np.eye(d) + rng.normal(size=(d, d)) / np.sqrt(d)
    return X @ mix, truth, group if grouped else None


def skewed(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of three Gaussian clusters; two columns are exponentiated, one of them reflected."""
    X, truth, _ = tailed(np.inf, seed, False)
    X = (X - X.mean(0)) / X.std(0)
    return np.column_stack([np.exp(X[:, 0]), -np.exp(X[:, 1]), X[:, 2:]]), truth


def apart(what: str, times: float) -> tuple[np.ndarray, np.ndarray, Any]:
    """Rows of three clusters six units apart; an outlier or a known effect is ``times`` as far.

    The outlier is then a separate cluster.
    """
    rng = np.random.default_rng(0)
    truth, X = rng.integers(3, size=300), rng.normal(size=(300, 2))
    X += 6 * np.eye(3)[truth, :2]
    if what == "a row":
        X[0], truth[0] = times, 3
        return X, truth, None
    if what == "groups":
        known = rng.integers(4, size=300)
        return X + times * rng.normal(size=(4, 2))[known], truth, known
    known = rng.normal(size=(300, 2))
    return X + times * known @ rng.normal(size=(2, 2)), truth, known


def main(quick: bool) -> None:
    header("posterior over clusterings, by shape")
    short = {"num_warmup": 100, "num_samples": 100} if quick else {"num_samples": 1000}
    values = (1.0, 0.7) if quick else (1.0, 0.9, 0.8, 0.75, 0.7, 0.65, 0.6)
    rows = []
    for name, load in (("wine", load_wine), ("iris", load_iris)):
        X, truth = load(return_X_y=True)
        for kind in ("tied", "shrunk"):
            rows += [
                row((name, kind, str(v)), X, truth, covariance=kind, likelihood_power=v, **short)
                for v in values
            ]
    show("powers", ("rows", "covariance=", "likelihood_power=", *COLUMNS), rows)
    rows = []
    for own in (True, False):
        X, truth = planted(own)
        what = "of their own" if own else "alike"
        kinds = ("shrunk",) if quick else ("diag", "full", "shrunk", "tied")
        rows += [row((what, kind), X, truth, covariance=kind, **short) for kind in kinds]
    show("300 rows in 15 columns", ("covariances", "covariance=", *COLUMNS), rows)
    rows = []
    for freedom in (3,) if quick else (3, 5, 10, np.inf):
        for seed, grouped in itertools.product(range(1 if quick else 3), (False, True)):
            data = tailed(freedom, seed, grouped)
            what = f"{freedom:g}", str(seed), "groups" if grouped else "nothing"
            rows += [
                row((*what, errors), *data, covariance="tied", errors=errors, **short)
                for errors in ("gaussian", "t")
            ]
    show("300 rows, 4 columns", ("degrees", "set", "known", "errors=", *COLUMNS), rows)
    rows, kinds = [], ("yeo-johnson",) if quick else ("identity", "yeo-johnson")
    real = (("wine", load_wine, "full"), ("iris", load_iris, "full"), ("iris", load_iris, "tied"))
    for (name, load, covariance), power in itertools.product(real, values[:2]):
        X, truth = load(return_X_y=True)
        for errors, how in itertools.product(("gaussian", "t"), kinds):
            settings = {"errors": errors, "likelihood_power": power, "transformation": how}
            what = name, covariance, errors, str(power), how
            rows.append(row(what, X, truth, covariance=covariance, **settings, **short))
    for seed in range(1 if quick else 3):
        X, truth = skewed(seed)
        for how in kinds:
            what = f"set {seed}", "tied", "gaussian", "1", how
            rows.append(row(what, X, truth, covariance="tied", transformation=how, **short))
    named = "covariance=", "errors=", "likelihood_power=", "transformation="
    show("columns transformed", ("rows", *named, *COLUMNS), rows)
    rows, far = [], (1000,) if quick else (10, 100, 1000, 10_000)
    for what in ("a row", "groups", "numbers"):
        kinds = ("tied",) if quick or what != "a row" else ("tied", "full", "diag", "shrunk")
        rows += [
            row((what, str(v), kind), *apart(what, v), covariance=kind, **short)
            for kind, v in itertools.product(kinds, far)
        ]
    show("300 rows, 2 columns", ("far", "units", "covariance=", *COLUMNS), rows)


if __name__ == "__main__":
    main(arguments(__doc__).quick)
