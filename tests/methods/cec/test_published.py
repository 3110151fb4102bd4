"""Cross-entropy clustering with labels, on the data of its paper."""

import cec_reference as reference
import numpy as np
import pytest
from scipy.special import comb
from sklearn.decomposition import PCA

from nrprob import CECIB
from nrprob.batch.splits import sample_labels
from nrprob.datasets import load
from nrprob.metrics import normalized_mutual_information

pytestmark = [pytest.mark.slow, pytest.mark.contract]  # compilation takes longer than computation

# E_1 of the clusters that the paper's authors published with their data, and number of classes.
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
    """They have the published costs, no move improves them, and fits reach them."""
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
    model = CECIB(2 * n_classes, reg=0, n_init=100, random_state=1).fit(X, y)
    assert model.objective_ <= cost + 1e-9 * n
    result = reference.terms(X, model.labels_, y).sum()
    # Without a ridge covariances may be nearly singular.
    np.testing.assert_allclose(model.objective_, result, rtol=1e-6)


# The paper's data sets and the classes of each. Ecoli is five principal components of the rows that
# the paper selects; segmentation, also with five, is its authors' file.
SETS = {
    "ecoli": "class",
    "glass": "type",
    "cecib_authors_iris": "class",
    "cecib_authors_segmentation": "class",
    "user_knowledge": "UNS",
    "vertebral": "class3",
    "wine": "cultivar",
}
# Samples of labels, more for close comparisons; and the share of wrong labels.
DRAWS = {0.0: 3, 0.1: 9, 0.4: 3, 0.5: 3}
PLAIN = 14  # fits without labels


def rows_of(name):
    data = load(name)
    X, classes = data.X, data.labelings[SETS[name]]
    if name == "ecoli":
        kept = data.labelings["in_327"] == 1
        X, classes = PCA(5).fit_transform(X[kept]), classes[kept]
    return X, classes


def best_of_five(objective, score):
    """Mean score of the best of five starts, over all choices of five."""
    others = len(score) - 1 - np.arange(len(score))  # that are worse
    return comb(others, 4) @ score[np.argsort(objective)] / comb(len(score), 5)


@pytest.mark.filterwarnings("ignore:column .* of X is nearly a linear combination")
def test_what_labels_right_and_wrong_do():
    """Claims of the paper, for the mean over its data sets; a fit is the best of five restarts.

    30 % of the rows have a label, of which some are wrong. Without labels the restarts of all fits
    are pooled, since this mean depends most on restarts: a third of those on Vertebral reach the
    better of two optima, so one in eight fits misses it. More restarts would prevent this, but do
    not raise the mean over the data sets (0.529, 0.528, 0.526 for the best of 5, 10, 20).

    Measured: 0.525 without labels; beta 0.269 and 1 with none wrong 0.572 and 0.651, with 10 %
    0.542 and 0.604, with 40 % 0.532 and 0.510, with 50 % 0.516 and 0.481.
    """
    result, plain = {}, []
    for name in SETS:
        X, classes = rows_of(name)
        pooled = []
        wanted = {"labeling": SETS[name], "score": "all", "draw": "rows", "fraction": 0.3}
        told = {
            (wrong, i): sample_labels(classes, wanted | {"wrong": wrong}, (0, i)).y
            for wrong, draws in DRAWS.items()
            for i in range(draws)
        }
        # beta=0 gets labels as well, so that all share one program.
        fits = [(wrong, 0.269, i) for wrong, i in told]
        fits += [(wrong, 1.0, i) for wrong, i in told if i < 3]
        for wrong, beta, i in [*fits, *((0.0, 0.0, i) for i in range(PLAIN))]:
            model = CECIB(2 * np.unique(classes).size, beta=beta, n_init=5, random_state=i)
            model.fit(X, told[wrong, i % DRAWS[wrong]])
            if beta:
                score = normalized_mutual_information(model.labels_, classes)
                result.setdefault((wrong, beta), []).append(score)
                continue
            starts = model.restarts_
            agreement = [normalized_mutual_information(z, classes) for z in starts.labels.values]
            pooled += zip(starts.objective.values, agreement, strict=True)
        plain.append(best_of_five(*np.array(pooled).T))
    nmi = {cell: np.mean(scores) for cell, scores in result.items()}
    plain = np.mean(plain)
    assert plain >= 0.51
    # With correct labels, a larger weight is better. With many wrong labels, a smaller weight is
    # better.
    assert nmi[0.0, 1.0] >= nmi[0.0, 0.269] + 0.04 >= plain + 0.07
    for wrong in (0.4, 0.5):
        assert nmi[wrong, 1.0] < nmi[wrong, 0.269]
    lost = {beta: nmi[0.0, beta] - nmi[0.5, beta] for beta in (0.269, 1.0)}
    assert lost[1.0] >= lost[0.269] + 0.04
    # With a tenth of them wrong, labels are still better than none.
    assert min(nmi[0.1, 0.269], nmi[0.1, 1.0]) >= plain
