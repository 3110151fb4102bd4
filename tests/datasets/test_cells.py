"""Simulated cell counts: sizes, moments, and planted structure.

Random checks use a fixed seed and five standard errors.
"""

import numpy as np
import pytest

from nrprob.datasets import make_cell_counts

SIGMAS = 5


def test_shapes_types_and_repetition():
    X, labels = make_cell_counts(60, 40, 3, 2, random_state=0)
    assert X.shape == (60, 40) and X.dtype == np.int64 and X.data.min() > 0
    assert labels.shape == (60, 2)
    assert labels.max(axis=0).tolist() == [1, 2]
    again, same = make_cell_counts(60, 40, 3, 2, random_state=0)
    assert (X != again).nnz == 0 and np.array_equal(labels, same)
    assert make_cell_counts(1, 1, 1, 1, random_state=0)[0].shape == (1, 1)


def test_counts_have_the_stated_mean_and_variance():
    # One type in one batch: rows differ only in their totals, by which they are divided.
    n, dispersion = 4000, 0.3
    X, _ = make_cell_counts(
        n, 5, 1, 1, mean_total=1000, dispersion=dispersion, batch_effect=0, random_state=0
    )
    X = X.toarray()
    mean, variance = X.mean(axis=0), X.var(axis=0)
    assert abs(mean.sum() - 1000) < SIGMAS * np.sqrt(variance.sum() / n)
    # E[x^2] - E[x] = m^2 (1 + dispersion) E[t^2]/E[t]^2, and the totals contribute exp(0.09).
    factor = ((X**2).mean(axis=0) - mean) / mean**2
    error = (X**2).std(axis=0) / np.sqrt(n) / mean**2
    assert np.all(np.abs(factor - (1 + dispersion) * np.exp(0.09)) < SIGMAS * error)


def test_effects_are_where_they_are_planted():
    def shares(X, rows):
        return np.log(X[rows].sum(axis=0) + 1.0)

    still = make_cell_counts(
        3000, 30, 2, 2, type_effect=0, batch_effect=0, mean_total=2e4, random_state=1
    )
    X, labels = still[0].toarray(), still[1]
    for column in range(2):
        a, b = (shares(X, labels[:, column] == g) for g in (0, 1))
        assert np.abs((a - a.mean()) - (b - b.mean())).max() < 0.2
    moved = make_cell_counts(
        3000,
        30,
        2,
        2,
        type_effect=2,
        marker_fraction=0.5,
        batch_effect=0,
        mean_total=2e4,
        random_state=1,
    )
    X, labels = moved[0].toarray(), moved[1]
    by_type, by_batch = (
        np.abs(shares(X, labels[:, c] == 0) - shares(X, labels[:, c] == 1)) for c in (1, 0)
    )
    assert by_type.max() > 1.5 and np.median(by_type) > 3 * np.median(by_batch)


@pytest.mark.parametrize("mixing", [0.0, 1.0])
def test_mixing_sets_how_alike_batches_are(mixing):
    _, labels = make_cell_counts(20000, 2, 3, 4, mixing=mixing, random_state=2)
    shares = np.stack([np.bincount(labels[labels[:, 0] == b, 1], minlength=3) for b in range(4)])
    shares = shares / shares.sum(axis=1, keepdims=True)
    spread = np.ptp(shares, axis=0).max()
    assert spread < 0.05 if mixing else spread > 0.2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_genes": 0}, "n_genes must be at least 1"),
        ({"batch_effect": -1}, "batch_effect must be at least 0 and at most 20"),
        ({"type_effect": 1e300}, "type_effect must be at least 0 and at most 20"),
        ({"dispersion": np.nan}, "dispersion must be at least 0"),
        ({"mixing": 2}, "mixing must lie between"),
        ({"mean_total": 0}, "mean_total must be at least 1e-06"),
    ],
)
def test_bad_sizes_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        make_cell_counts(**parameters)
