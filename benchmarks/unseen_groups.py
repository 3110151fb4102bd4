"""`ConditionalMixture` on samples of known groups that did not occur in the fit.

Twenty groups of thirty samples are fitted. Shares of the three clusters are uniform on the simplex
in every group. The accuracy on new groups of 1 to 50 samples is compared with three rules: every
sample by itself under the prior of the group effects; the fitted centres about the mean of the new
group; and all parameters known, the effects and shares of the new groups included.
"""

from __future__ import annotations

from common import arguments, console, header, show, verdict  # isort: skip  (pins BLAS before numpy)

import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment
from scipy.stats import multivariate_normal
from sklearn.metrics import confusion_matrix

from nrprob import ConditionalMixture

K, N_GROUPS, SIZE = 3, 20, 30
SIZES = (1, 3, 10, 50)
N_NEW = 40  # new groups of each size
TIMES = 6  # fits by design


class Design(NamedTuple):
    """Numbers and categories, standard deviation of the offsets, and share of missing values."""

    distance: float = 4.0
    offsets: float = 1.0
    categories: int = 0
    missing: float = 0.0


DESIGNS = {
    "numbers, offsets 0.5": (Design(offsets=0.5), (0.921, 0.936, 0.933, 0.959)),
    "numbers, offsets 1.5": (Design(offsets=1.5), (0.756, 0.827, 0.925, 0.959)),
    "numbers and categories": (Design(2.6, 1.0, 4), (0.800, 0.800, 0.865, np.nan)),
    "the same, 20 % missing": (Design(2.6, 1.0, 4, 0.2), (0.700, 0.808, 0.833, np.nan)),
}


class Samples(NamedTuple):
    """A frame, its groups and clusters (n,), and Bayes' labels, which know all parameters."""

    frame: pd.DataFrame
    groups: np.ndarray
    clusters: np.ndarray
    bayes: np.ndarray


class Population:
    """Clusters of which samples of any number of groups can be drawn."""

    def __init__(self, design: Design, seed: int):
        self.design, self.rng = design, np.random.default_rng(seed)
        self.centres = design.distance / np.sqrt(2) * np.eye(K, 4)
        self.odds = 1.2 * self.rng.normal(size=(design.categories, K, 4))

    def draw(self, n_groups: int, size: int) -> Samples:
        """Draw groups of one size with effects and shares of their own."""
        design, rng = self.design, self.rng
        groups = np.repeat(np.arange(n_groups), size)
        share = rng.dirichlet(np.ones(K), n_groups)[groups]
        clusters = _draw(rng, share)
        offsets = design.offsets * rng.normal(size=(n_groups, 4))
        x = self.centres[clusters] + offsets[groups] + rng.normal(size=(len(groups), 4))
        x[rng.random(x.shape) < design.missing] = np.nan
        square = (x[:, None] - offsets[groups][:, None] - self.centres) ** 2
        log_p = np.log(np.maximum(share, 1e-300)) - 0.5 * np.nansum(square, 2)
        frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(4)])
        for j, odds in enumerate(self.odds):
            p = np.exp(odds + 0.7 * rng.normal(size=(n_groups, 1, 4)))[groups]
            p /= p.sum(2, keepdims=True)
            value = _draw(rng, p[np.arange(len(groups)), clusters])
            seen = rng.random(len(groups)) >= design.missing
            log_p += np.where(seen[:, None], np.log(p[np.arange(len(groups)), :, value]), 0)
            frame[f"category{j}"] = np.where(seen, np.array(list("abcd"), object)[value], None)
        return Samples(frame, groups, clusters, log_p.argmax(1))


def _draw(rng: np.random.Generator, p: np.ndarray) -> np.ndarray:
    """One value (n,) from probabilities (n, V)."""
    return (rng.random((len(p), 1)) > p.cumsum(1)[:, :-1]).sum(1)


def about_the_mean(model: ConditionalMixture, samples: Samples) -> np.ndarray:
    """Labels by the fitted centres of the numbers about the mean of the new group."""
    x = samples.frame[[f"x{j}" for j in range(4)]].to_numpy()
    mean = pd.DataFrame(x).groupby(samples.groups).transform("mean").to_numpy()
    residual = np.nan_to_num(x - mean)
    log_p = [
        multivariate_normal.logpdf(residual, centre, model.covariance_) for centre in model.means_
    ]
    return np.argmax(log_p, 0)


def accuracies(design: Design, seed: int) -> np.ndarray:
    """Accuracy (sizes, rules) on new groups: ours, prior, mean of the group, Bayes."""
    population = Population(design, seed)
    training = population.draw(N_GROUPS, SIZE)
    model = ConditionalMixture(K, effects="random", random_state=seed)
    model.fit(training.frame, known=training.groups)
    table = confusion_matrix(model.labels_, training.clusters, labels=range(K))
    names = linear_sum_assignment(-table)[1]
    result = []
    for size in SIZES:
        new = population.draw(N_NEW, size)
        alone = N_GROUPS + np.arange(len(new.groups))
        labels = [
            names[model.predict(new.frame, known=N_GROUPS + new.groups, unseen="estimate")],
            names[model.predict(new.frame, known=alone, unseen="estimate")],
            names[about_the_mean(model, new)],
            new.bayes,
        ]
        result.append([(each == new.clusters).mean() for each in labels])
    return np.array(result)


def main() -> None:
    quick = arguments(__doc__).quick
    header("Unseen groups")
    warnings.simplefilter("ignore")
    for name, (design, bars) in DESIGNS.items():
        result = np.mean([accuracies(design, seed) for seed in range(2 if quick else TIMES)], 0)
        rows = []
        for size, bar, row in zip(SIZES, bars, result, strict=True):
            bound = () if np.isnan(bar) else verdict(row[0], bar - 0.03, at_least=True)
            rows.append((str(size), *map(float, row), *(bound or ("", ""))))
        show(
            f"{name}: accuracy",
            ("samples", "estimated effects", "prior alone", "about the mean", "Bayes", "bar", ""),
            rows,
        )
    console.print("Bars are the accuracies of a prototype of the model, less 0.03.")


if __name__ == "__main__":
    main()
