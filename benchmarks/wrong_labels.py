"""`MDLMixture` with few labels, some of them wrong: error on new rows.

In each of 20 splits of iris and wine, a fifth of the rows has a label and a tenth has none; all
others are classified. Labels are correct, or one or two in ten belong to another class. The
concentration of classes is sampled ("auto"), fixed, or 1e-6, with which every cluster has one
class.
"""

from __future__ import annotations

from common import arguments, header, show

# isort: split
import itertools
import time
import warnings

import numpy as np
from sklearn.datasets import load_iris, load_wine
from sklearn.preprocessing import StandardScaler

from nrprob import MDLMixture


def split(y: np.ndarray, wrong: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fitted rows, their labels (-1 for none), and rows to classify."""
    rng = np.random.default_rng(seed)
    order, n_classes = rng.permutation(len(y)), int(y.max()) + 1
    labelled, fitted = len(y) // 5, 3 * len(y) // 10
    told = np.where(np.arange(fitted) < labelled, y[order[:fitted]], -1)
    other = (told + rng.integers(1, n_classes, fitted)) % n_classes
    false = (told >= 0) & (rng.random(fitted) < wrong)
    return order[:fitted], np.where(false, other, told), order[fitted:]


def main(quick: bool) -> None:
    header("few labels, some of them wrong")
    short = (
        {"num_warmup": 20, "num_samples": 20} if quick else {"num_warmup": 100, "num_samples": 200}
    )
    data = {"iris": load_iris} if quick else {"iris": load_iris, "wine": load_wine}
    rows = []
    for (name, load), wrong in itertools.product(
        data.items(), (0.2,) if quick else (0.0, 0.1, 0.2)
    ):
        X, y = load(return_X_y=True)
        for concentration in ("auto", 0.5, 1e-6):
            begin, errors = time.process_time(), []
            for seed in range(2 if quick else 20):
                fitted, told, test = split(y, wrong, seed)
                scale = StandardScaler().fit(X[fitted])
                model = MDLMixture(
                    8, covariance="tied", class_concentration=concentration, random_state=0, **short
                )
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model.fit(scale.transform(X[fitted]), told)
                errors.append((model.predict(scale.transform(X[test])) != y[test]).mean())
            spent = time.process_time() - begin
            rows.append(
                (name, f"{wrong:g}", str(concentration), np.mean(errors), np.std(errors), spent)
            )
    show(
        "error on rows that were not seen",
        ("rows", "wrong", "class_concentration=", "mean", "sd", "CPU, s"),
        rows,
    )


if __name__ == "__main__":
    main(arguments(__doc__).quick)
