"""Effect of wrong labels on estimators that trust them: Śmieja and Geiger (2017), figure 5."""

import warnings

import numpy as np
import pytest

from nrprob import ConstrainedMixture, PartitionKMeans, SemiSupervisedFCM
from nrprob.datasets.loaders import load
from nrprob.metrics import normalized_mutual_information

DRAWS = 4
RIVALS = {
    "c-GMM": ConstrainedMixture,
    "k-means": PartitionKMeans,
    "fc-means": SemiSupervisedFCM,
}


def noisy_labels(y, share, wrong, seed):
    """Labels of a share of the rows, a part of them wrong."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(y.size)[: round(share * y.size)]
    z = np.full(y.size, -1)
    z[chosen] = y[chosen]
    others = chosen[: round(wrong * chosen.size)]
    z[others] = (y[others] + rng.integers(1, y.max() + 1, others.size)) % (y.max() + 1)
    return z


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "labeling"),
    [
        # Few rows; compilation takes longer than the fit.
        pytest.param("iris", "species", marks=pytest.mark.contract),
        pytest.param("wine", "cultivar", marks=pytest.mark.contract),
        ("vertebral", "class3"),
    ],
)
def test_where_three_in_ten_labels_are_wrong_they_fall_below_what_they_find_alone(
    name, labeling, request, monkeypatch
):
    if name == "vertebral":
        data_dir = request.getfixturevalue("data_dir")
        monkeypatch.setenv("NRPROB_DATA", str(data_dir))
        if not (data_dir / name).is_dir():
            pytest.skip(f"no data set {name!r} in {data_dir}")
    data = load(name)
    y = np.unique(data.labelings[labeling], return_inverse=True)[1]
    X = np.asarray(data.X, float)

    def score(rival, z):
        model = rival(y.max() + 1, random_state=0).fit(X, z)
        return normalized_mutual_information(model.labels_, y)

    for method, rival in RIVALS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            alone = score(rival, None)
            clean, noisy = (
                np.mean([score(rival, noisy_labels(y, 0.3, wrong, seed)) for seed in range(DRAWS)])
                for wrong in (0.0, 0.3)
            )
        print(f"{name} {method}: {alone:.3f} alone, {clean:.3f} clean, {noisy:.3f} noisy")
        assert noisy < alone - 0.02, method
        assert noisy < clean - 0.05, method
