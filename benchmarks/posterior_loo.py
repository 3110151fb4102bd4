"""Leave-one-out cross-validation of `MDLMixture`: Pareto k, importance weights and refits.

The data are three separated Gaussian clusters (120 x 2). The first table compares the estimate with
the log density under the true model and with the log density of the same samples in the fit. The
second table has the estimates from more and more draws of the first data set, with and without
Pareto smoothing. The smallest effective share is the share of draws that the weights of a sample
keep. The third table compares the estimates of all samples with a Pareto k above 0.7 with fits
without the sample.
"""

from __future__ import annotations

from common import arguments, header, show

# isort: split
import warnings
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from nrprob import MDLMixture
from nrprob.posterior.export import import_arviz


def make(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples (120, 2), and their log densities (120,) under the true model."""
    rng = np.random.default_rng(seed)
    centres = np.asarray([[0, 0], [6, 0], [0, 6]])
    X = centres[np.repeat([0, 1, 2], 40)] + rng.normal(size=(120, 2))
    log_p = [multivariate_normal(mean).logpdf(X) for mean in centres]
    return X, logsumexp(log_p, axis=0) - np.log(3)


def loo(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Leave-one-out log density and Pareto k of every sample, by ArviZ."""
    result = import_arviz().loo(data, pointwise=True)
    elpd = getattr(result, "loo_i", getattr(result, "elpd_i", None))
    return np.asarray(elpd), np.asarray(result.pareto_k)


def main(quick: bool) -> None:
    header("leave-one-out cross-validation of partitions")
    length = {"num_samples": 100} if quick else {}
    rows = []
    for seed in range(1 if quick else 3):
        X, truth = make(seed)
        model = MDLMixture(random_state=0, **length).fit(X)
        elpd, k = loo(model.to_arviz())
        inside = model.score_samples(X).sum()
        rows.append([seed, elpd.sum(), truth.sum(), inside, int((k > 0.7).sum())])
    show("Three data sets", ("seed", "elpd", "true model", "in the fit", "k > 0.7"), rows)

    X, rows = make(0)[0], []
    n_draws = 100 if quick else 8000
    data = MDLMixture(num_samples=n_draws, random_state=7).fit(X).to_arviz()
    for part in (n_draws // 32, n_draws // 4, n_draws):
        some = data.isel(draw=slice(0, part))
        elpd, k = loo(some)
        weights = np.exp(-some["log_likelihood"]["X"].values.reshape(-1, len(X)))
        plain = -np.log(weights.mean(0))
        share = weights.mean(0) ** 2 / (weights**2).mean(0)
        rows.append([
            str(len(weights)), int((k > 0.7).sum()), f"{k.max():.2f}", f"{elpd.sum():.2f}",
            f"{np.abs(elpd - plain).max():.4f}", f"{share.min():.2f}",
        ])  # fmt: skip
    columns = "draws", "k > 0.7", "largest k", "elpd", "largest change by smoothing", "share"
    show("More and more draws", columns, rows)

    rows = []
    for i in np.flatnonzero(k > 0.7):
        other = MDLMixture(num_samples=n_draws // 8, random_state=1).fit(np.delete(X, i, 0))
        rows.append([int(i), f"{k[i]:.2f}", f"{elpd[i]:.4f}", f"{other.score(X[[i]]):.4f}"])
    show("Fits without a sample", ("sample", "k", "leave-one-out", "fit without it"), rows)


if __name__ == "__main__":
    options = arguments(__doc__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main(options.quick)
