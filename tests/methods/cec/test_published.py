"""Cross-entropy clustering with labels, on the data of the paper that has it."""

import cec_reference as reference
import numpy as np
import pytest

from nrprob import CECIB
from nrprob.datasets import load

pytestmark = pytest.mark.slow

# E_1 of the clusters that the paper's authors published with their data, and how many classes.
AUTHORS = {
    "iris": (0.897520, 3),
    "segmentation": (4.294939, 7),
    "user": (-0.784144, 4),
    "vertebral": (15.412389, 3),
    "wine": (15.625945, 3),
}


@pytest.fixture(autouse=True)
def real(data_dir, monkeypatch):
    monkeypatch.setenv("NRPROB_DATA", str(data_dir))


@pytest.mark.parametrize("name", AUTHORS)
def test_the_authors_clusters(name):
    """They cost what they do in the paper's units, no move improves them, and we reach them."""
    value, n_classes = AUTHORS[name]
    data = load(f"cecib_authors_{name}")
    X, n = data.X, len(data.X)
    labels = data.labelings["authors_demo_clusters"] - 1
    told = data.labelings["authors_side_information"]
    y = np.where(told == 0, -1, told)
    cost = reference.terms(X, labels, y).sum()
    np.testing.assert_allclose(cost / n, value, rtol=0, atol=1e-6)
    change = reference.improvements(X, labels, y=y)
    assert change.min() > -1e-9 * n
    model = CECIB(2 * n_classes, reg=0, n_init=100, random_state=0).fit(X, y)
    assert model.objective_ <= cost + 1e-9 * n
    found = reference.terms(X, model.labels_, y).sum()
    np.testing.assert_allclose(model.objective_, found, rtol=1e-9, atol=1e-6)
