"""Fewer rows than columns, for all estimators of the family except CECIB."""

import numpy as np
import pytest

from nrprob import (
    ConstrainedMixture,
    PartitionKMeans,
    SemiSupervisedFCM,
    SemiSupervisedSpectral,
)

HALF = np.arange(8) % 2


@pytest.mark.slow
@pytest.mark.contract
@pytest.mark.parametrize(
    "rival", [ConstrainedMixture, PartitionKMeans, SemiSupervisedFCM, SemiSupervisedSpectral]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fewer_rows_than_columns(rival, dtype):
    X = np.random.default_rng(0).normal(size=(8, 20)) + 5 * HALF[:, None]
    y = np.where(np.arange(8) < 3, HALF, -1)
    model = rival(2, n_init=3, random_state=0).fit(X.astype(dtype), y)
    assert (model.labels_ == HALF).all() and (model.predict(X) == HALF).all()
    assert np.isfinite(model.objective_) and np.diff(model.objective_trace_).max(initial=0) < 1e-3
