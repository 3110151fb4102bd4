"""Published tables: default settings reach their floors, and published settings match.

A floor is reached if the mean over the data sets plus two standard errors is at least as large.
`NRPROB_SETS` (8) is the number of data sets for the default settings; the figures of the pages use
20.
"""

import os

import numpy as np
import pytest

from nrprob import CCIB, IBSI
from nrprob.datasets import bayes_precision, make_binary_partitions, make_multinomial_2d
from nrprob.metrics import matched_accuracy

ROWS = {2: 200, 3: 450, 4: 800}
DRAWS = {2: 400, 3: 700, 4: 1100}
SETS = range(20)
SOME = range(int(os.environ.get("NRPROB_SETS", "8")))


def precision(make, n_clusters, known=1, sets=SETS, **parameters):
    """Precision to every labeling, shape (sets, labelings), with the first ``known`` ones known."""
    out = []
    for seed in sets:
        X, labels = make(seed)
        z = labels[:, 0] if known == 1 else labels[:, :known]
        model = CCIB(n_clusters, random_state=seed, **parameters).fit(X, known=z)
        out.append([matched_accuracy(model.labels_, c) for c in labels.T])
    return np.array(out)


def reaches(values, floor):
    mean, error = values.mean(), values.std(ddof=1) / np.sqrt(values.size)
    assert mean + 2 * error >= floor, f"{mean:.4f} +- {error:.4f} is below {floor}"


def binary(k, m):
    return lambda seed: make_binary_partitions(ROWS[k], (m, 4), k, random_state=seed)


def plane(k, orthogonality):
    return lambda seed: make_multinomial_2d(
        ROWS[k], k, DRAWS[k], orthogonality=orthogonality, random_state=seed
    )


@pytest.mark.parametrize(
    ("k", "m", "floor"),
    [
        pytest.param(2, 30, 0.965, marks=pytest.mark.slow),
        pytest.param(2, 4, 0.965, marks=pytest.mark.slow),
        pytest.param(2, 10, 0.965, marks=pytest.mark.slow),
        pytest.param(2, 100, 0.96, marks=pytest.mark.slow),
        pytest.param(3, 4, 0.89, marks=pytest.mark.slow),
        pytest.param(3, 30, 0.89, marks=pytest.mark.slow),
        pytest.param(3, 100, 0.88, marks=pytest.mark.slow),
        pytest.param(4, 4, 0.78, marks=pytest.mark.slow),
        pytest.param(4, 100, 0.77, marks=pytest.mark.slow),
    ],
)
def test_binary_partitions_with_the_defaults(k, m, floor):
    # Larger data sets are fewer; the standard error of their mean is part of the threshold.
    result = precision(binary(k, m), k, sets=SOME if k == 2 else SOME[: len(SOME) // 2])[:, 1]
    reaches(result, floor)
    # No method can be better than Bayes' rule with the true model, unless labels leak.
    assert result.mean() < bayes_precision(4, k) + 0.015


@pytest.mark.parametrize(
    ("k", "orthogonality", "floor"),
    [
        (2, 0.5, 0.99),
        pytest.param(2, 1, 0.99, marks=pytest.mark.slow),
        pytest.param(2, 0.75, 0.99, marks=pytest.mark.slow),
        pytest.param(2, 0.25, 0.92, marks=pytest.mark.slow),
        pytest.param(3, 1, 0.99, marks=pytest.mark.slow),
        pytest.param(3, 0.75, 0.99, marks=pytest.mark.slow),
        pytest.param(3, 0.5, 0.98, marks=pytest.mark.slow),
        pytest.param(3, 0.25, 0.90, marks=pytest.mark.slow),
        pytest.param(4, 1, 0.99, marks=pytest.mark.slow),
    ],
)
def test_multinomial_plane_with_the_defaults(k, orthogonality, floor):
    reaches(precision(plane(k, orthogonality), k, sets=SOME)[:, 1], floor)


@pytest.mark.slow
def test_two_known_partitions_by_product():
    def make(seed):
        return make_binary_partitions(200, (8, 8, 4), random_state=seed)

    reaches(precision(make, 2, known=2, sets=SOME)[:, 2], 0.96)


# Means over single restarts of the published algorithm (annealing from the first split, marginal
# coordination with the published weight), including failures: (clusters, orthogonality, to the
# known, to the sought).
PLANE = [
    (2, 1, 0.5325, 1.0),
    (2, 0.75, 0.6422, 0.8492),
    (2, 0.5, 0.9992, 0.5317),
    (2, 0.25, 1.0, 0.5325),
    (3, 1, None, 0.8278),
    (3, 0.5, 0.7659, None),
    (4, 1, 0.4369, 0.6462),
]
BINARY = [(4, 0.5240, 0.9760), (10, 0.5295, 0.9780), (30, 0.9860, 0.5220), (100, 0.99, 0.524)]


@pytest.mark.slow
@pytest.mark.parametrize(("k", "orthogonality", "known", "sought"), PLANE)
def test_published_settings_on_the_plane(k, orthogonality, known, sought):
    result = precision(
        plane(k, orthogonality), k, coordination="marginal", coordination_weight=0.5, n_init=1
    ).mean(0)
    for value, published in zip(result, (known, sought), strict=True):
        if published is not None:
            assert value == pytest.approx(published, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "known", "sought"), BINARY)
def test_published_settings_on_binary_partitions(m, known, sought):
    result = precision(
        binary(2, m), 2, coordination="marginal", coordination_weight=0.3, n_init=1
    ).mean(0)
    np.testing.assert_allclose(result, [known, sought], atol=0.03)


@pytest.mark.slow
def test_published_sequential_settings():
    """One random restart each: the best of ten would be better than the published value."""
    result = precision(
        plane(2, 1),
        2,
        coordination="marginal",
        coordination_weight=0.5,
        solver="sequential",
        n_init=1,
    ).mean(0)
    assert result[1] == pytest.approx(0.8799, abs=0.06)


# Section 8.6.1: the published iteration works in a range of gamma that moves with the number of
# features, so the ranges of the three data sets are disjoint. The damped iteration has no upper
# end.
GAMMAS = (0.1, 1, 4, 10, 40, 100, 400, 1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dims", "published", "damped"),
    [
        ((8, 4), {4}, {4, 10, 40, 100, 400, 1000}),
        ((80, 40), {10, 40}, {40, 100, 400, 1000}),
        ((800, 400), {100, 400}, {400, 1000}),
    ],
)
def test_windows_of_gamma(dims, published, damped):
    X, labels = make_binary_partitions(200, dims, random_state=0)
    for flag, window in ((False, published), (True, damped)):
        good = {
            gamma
            for gamma in GAMMAS
            if matched_accuracy(
                IBSI(2, gamma=gamma, damped=flag, polish=False, n_init=3, random_state=0)
                .fit(X, known=labels[:, 0])
                .labels_,
                labels[:, 1],
            )
            > 0.9
        }
        assert good == window
