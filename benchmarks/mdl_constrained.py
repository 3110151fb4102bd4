"""Clustering with correct and wrong pairs: hard, soft, or COP-K-means.

These are the four experiments of Yin (2007), section 5.6: iris and wine, standardised, 80 % for
training, three clusters, with pairs of training rows. A cluster predicts the majority class of its
training rows; new rows are in no pair. The table also has hard constraints without the wrong pairs:
the result of knowing which are wrong.
"""

from __future__ import annotations

from common import arguments, header, show, verdict  # isort: skip

import warnings

import numpy as np
from sklearn.datasets import load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from nrprob import COPKMeans, DegenerateClusterWarning, MDLConstrained
from nrprob.links import draw_pairs

SETTINGS = (
    ("clean", "none", 0.0, 0),
    ("clean", "none", 0.0, 40),
    ("clean", "none", 0.0, 100),
    ("all random", "coin", 1.0, 40),
    ("40 % random", "coin", 0.4, 40),
    ("40 % random", "coin", 0.4, 100),
    ("40 % bias", "bias", 0.4, 40),
    ("40 % bias", "bias", 0.4, 100),
)


def accuracy(labels, y, new_labels, new_y):
    majority = {c: np.bincount(y[labels == c]).argmax() for c in np.unique(labels)}
    said = [np.array([majority.get(c, -1) for c in l]) for l in (labels, new_labels)]
    return float((said[0] == y).mean()), float((said[1] == new_y).mean())


def one_split(load, seed, wrong, share, n_pairs, n_init):
    """Training and test accuracy of the methods; NaN for a failed fit."""
    X, y = load(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    X, new, y, new_y = train_test_split(X, y, test_size=0.2, random_state=seed)
    pairs = draw_pairs(y, n_pairs, wrong=wrong, share=share, random_state=seed)
    link, apart = pairs
    right = link[y[link[:, 0]] == y[link[:, 1]]], apart[y[apart[:, 0]] != y[apart[:, 1]]]
    tries = (
        (MDLConstrained(3, n_init=n_init, random_state=seed), pairs),
        (MDLConstrained(3, n_init=n_init, random_state=seed, constraints="soft"), pairs),
        (MDLConstrained(3, n_init=n_init, random_state=seed), right),
        (COPKMeans(3, n_init=n_init, random_state=seed), pairs),
    )
    result = []
    for model, (must, cannot) in tries:
        try:
            model.fit(X, must_link=must, cannot_link=cannot)
            result.append(accuracy(model.labels_, y, model.predict(new), new_y))
        except ValueError:
            result.append((np.nan, np.nan))
    return result


def cell(result):
    """Mean accuracies over successful fits, and the number of failures."""
    failed = int(np.isnan(result[:, 0]).sum())
    if failed == len(result):
        return "gave up"
    text = " / ".join(f"{v:.3f}" for v in np.nanmean(result, 0))
    return text + (f" (gave up {failed})" if failed else "")


def paired(result, one, two):
    """Mean difference of two methods, and its standard error, where neither failed."""
    difference = result[:, one] - result[:, two]
    difference = difference[~np.isnan(difference[:, 0])]
    n = len(difference)
    if n < 2:
        return n, None, None
    return n, difference.mean(0), difference.std(0, ddof=1) / np.sqrt(n)


def judge(value, error, bar):
    """The threshold, and whether it is reached; a shortfall within two standard errors is a tie."""
    shown, said = verdict(value, bar, at_least=True)
    return shown, "tie" if said != "met" and value + 2 * error >= bar else said


def main(quick: bool) -> None:
    header("constrained clustering")
    warnings.simplefilter("ignore", ConvergenceWarning)
    warnings.simplefilter("ignore", DegenerateClusterWarning)
    n_splits, n_init = (3, 5) if quick else (40, 10)
    bars = {"clean": (-0.03, -0.03), "40 % random": (0, None), "40 % bias": (0, 0)}
    rows, judged = [], []
    for name, load in (("iris", load_iris), ("wine", load_wine)):
        for title, wrong, share, n_pairs in SETTINGS:
            result = np.array(
                [one_split(load, s, wrong, share, n_pairs, n_init) for s in range(n_splits)]
            )
            rows.append((name, title, str(n_pairs), *(cell(result[:, i]) for i in range(4))))
            if not n_pairs or title == "all random":
                continue
            for what, other in (("soft", 1), ("right pairs", 2)):
                n, ahead, error = paired(result, other, 0)
                if ahead is None or (what != "soft" and wrong == "none"):
                    continue
                for i, part in enumerate(("training", "test")):
                    bar = bars[title][i] if what == "soft" else None
                    judged.append(
                        (
                            f"{what}: {name}, {title}, {n_pairs} pairs, {part}",
                            str(n),
                            f"{ahead[i]:+.4f} +- {error[i]:.4f}",
                            *(("", "") if bar is None else judge(ahead[i], error[i], bar)),
                        )
                    )
    show(
        f"accuracy in training / test, means over {n_splits} splits, {n_init} starts",
        ("data", "constraints", "pairs", "hard", "soft", "hard, right pairs only", "COP-K-means"),
        rows,
    )
    # Splits in which the hard search failed have no difference.
    show(
        "less hard with all pairs, where that did not give up",
        ("", "splits", "accuracy", "bar", ""),
        judged,
    )


if __name__ == "__main__":
    main(arguments(__doc__).quick)
