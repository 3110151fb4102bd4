"""Models and targets of `nrprob.methods.bayes` for tests."""

from dataclasses import replace

import numpy as np

from nrprob.methods.bayes.feature_models import BoundedGaussian, FixedGaussian, SampledGaussian
from nrprob.methods.bayes.hyperparameters import Hyperparameters
from nrprob.methods.bayes.model import MixtureModel


def sampled_model(
    covariance, *, concentration=1.0, class_concentration=0.5, unordered=True, **settings
):
    """Model whose hyperparameters are sampled."""
    return MixtureModel(
        features=SampledGaussian(covariance=covariance, **settings),
        concentration=concentration,
        class_concentration=class_concentration,
        unordered=unordered,
    )


def coded_model(energy, *, covariance="diag", unordered=True):
    """Model that samples only the partition."""
    if energy == "nml":
        return MixtureModel(features=BoundedGaussian(floor=0.2), unordered=unordered)
    features = FixedGaussian(covariance=covariance, mean_precision=0.3, shape=2.0, scale=0.5)
    return MixtureModel(
        features=features, concentration=1.0, class_concentration=0.5, unordered=unordered
    )


def with_grid(target, grid):
    """A target whose hyperparameters have other grids, at their first values."""
    update = replace(target.update_of("freedom"), grid=grid)
    return target.with_update(update).with_hyperparameters(Hyperparameters(*(v[0] for v in grid)))


def correlated_rows(n, seed=0):
    """Centred rows (n, 2) with correlated errors; every second row is shifted by 2."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) @ [[1, 0.7], [0, 0.6]] + 2 * (np.arange(n) % 2)[:, None]
    return X - X.mean(0)
