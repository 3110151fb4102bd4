"""Figures: what they show and how they are labelled."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.sparse
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nrprob.estimator.paths import Granularity
from nrprob.plotting import plot_centroids, plot_contingency, plot_hierarchy, plot_members


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture
def labelings():
    known = np.repeat(["a", "b", "c"], 20)
    labels = np.tile([0, 1], 30)
    return labels, known


def texts(figure):
    """All non-empty texts of a figure, subfigures included."""
    return [t.get_text() for t in figure.findobj(plt.Text) if t.get_text()]


def test_contingency_counts_and_labels(labelings):
    labels, known = labelings
    labels = labels.copy()
    labels[:20] = 0  # all of "a"
    ax = plot_contingency(labels, known, known_name="species")
    assert isinstance(ax, Axes)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b", "c"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["cluster 0", "cluster 1"]
    assert ax.get_ylabel() == "species"
    cells = [t.get_text() for t in ax.texts]
    assert cells == ["20\n100 %", "0\n0 %", "10\n50 %", "10\n50 %", "10\n50 %", "10\n50 %"]


def test_contingency_draws_where_it_is_told(labelings):
    _, ax = plt.subplots()
    assert plot_contingency(*labelings, ax) is ax


def test_contingency_without_shares(labelings):
    ax = plot_contingency(*labelings, show_share=False)
    assert {t.get_text() for t in ax.texts} == {"10"}


def images(figure):
    return [im for ax in axes_of(figure) for im in ax.get_images()]


def axes_of(figure):
    return figure.findobj(Axes)


@pytest.mark.smoke
def test_centroids_as_images(labelings):
    labels, known = labelings
    X = np.random.default_rng(0).random((60, 6))
    figure = plot_centroids(X, labels, known, image_shape=(2, 3), title="A title")
    assert isinstance(figure, Figure)
    drawn = [im.get_array() for im in images(figure)]
    for group in "abc":
        mean = X[known == group].mean(axis=0).reshape(2, 3)
        assert any(d.shape == mean.shape and np.allclose(d, mean) for d in drawn)
    for cluster in (0, 1):
        mean = X[labels == cluster].mean(axis=0).reshape(2, 3)
        assert any(d.shape == mean.shape and np.allclose(d, mean) for d in drawn)
        mean = X[(labels == cluster) & (known == "b")].mean(axis=0).reshape(2, 3)
        assert any(d.shape == mean.shape and np.allclose(d, mean) for d in drawn)
    written = texts(figure)
    assert "A title" in written
    assert "cluster 1\nn = 30" in written
    assert "b\nn = 20" in written


def test_centroids_as_a_heat_map(labelings):
    labels, known = labelings
    X = np.random.default_rng(0).normal(5, 2, size=(60, 4))
    figure = plot_centroids(X, labels, known, feature_names=["w", "x", "y", "z"])
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    expected = np.array([Z[labels == c].mean(axis=0) for c in (0, 1)]).T
    drawn = [im.get_array() for im in images(figure)]
    assert any(d.shape == (4, 2) and np.allclose(d, expected) for d in drawn)
    assert {"w", "x", "y", "z"} <= set(texts(figure))


def test_many_features_are_cut_and_said_so(labelings):
    X = np.random.default_rng(0).normal(size=(60, 40))
    figure = plot_centroids(X, *labelings)
    assert any("24 of 40 features" in t for t in texts(figure))


def test_sparse_equals_dense(labelings):
    X = np.random.default_rng(0).poisson(0.5, size=(60, 8)).astype(float)
    dense = plot_centroids(X, *labelings)
    sparse = plot_centroids(scipy.sparse.csr_array(X), *labelings)
    for a, b in zip(images(dense), images(sparse), strict=True):
        np.testing.assert_allclose(a.get_array(), b.get_array(), atol=1e-12)


def test_other_labelings_get_a_table(labelings):
    labels, known = labelings
    other = np.where(labels == 0, "left", "right")
    figure = plot_centroids(np.ones((60, 4)), labels, known, (2, 2), others={"side": other})
    assert any(t == "clusters against side" for t in texts(figure))
    assert {"left", "right"} <= set(texts(figure))


def test_empty_combination_is_written_not_drawn(labelings):
    labels, known = labelings
    labels = np.where(known == "a", 0, labels)
    figure = plot_centroids(np.random.default_rng(0).random((60, 4)), labels, known, (2, 2))
    assert "no rows" in texts(figure)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_shape": (3, 3)}, r"image_shape.*\(3, 3\) is 9 pixels and X has 4"),
        ({"feature_names": ["a"]}, "feature_names.*1 names for 4 columns"),
    ],
)
def test_arguments_that_do_not_fit(labelings, arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_centroids(np.ones((60, 4)), *labelings, **arguments)


def test_the_smallest_of_too_many_groups_are_joined():
    known = np.repeat(np.arange(50), np.arange(50, 0, -1))
    ax = plot_contingency(known % 2, known)
    ticks = [t.get_text() for t in ax.get_yticklabels()]
    assert ticks == [*(str(i) for i in range(19)), "31 others"]
    counts = [int(t.get_text().split()[0]) for t in ax.texts]
    assert sum(counts) == len(known)


def test_labels_of_another_length(labelings):
    labels, known = labelings
    with pytest.raises(ValueError, match="59 labels for 60 rows"):
        plot_contingency(labels[:-1], known)


def test_drawing_twice_is_the_same_and_saves(labelings, tmp_path):
    X = np.random.default_rng(0).random((60, 6))
    figure = plot_centroids(X, *labelings, image_shape=(2, 3))
    path = tmp_path / "figure.png"
    figure.savefig(path)
    assert path.stat().st_size > 5_000


class Split:
    """What the pictures of a hierarchy look at: two clusters of four rows in two subsets."""

    labels_ = np.array([0, 0, 1, 1])
    cluster_weights_ = np.array([0.6, 0.4, 0.0])
    subsets_ = np.array(["a", "b"])
    subset_membership_ = np.array([[1.0, 0.0, 0.0], [0.2, 0.8, 0.0]])
    membership_ = np.array([[0.9, 0.1, 0], [0.8, 0.2, 0], [0.3, 0.7, 0], [0, 1.0, 0]])

    def __init__(self):
        top = self.membership_[:, :2]
        parents = np.zeros(2, int)
        self.path_ = [
            Granularity(1, 1.0, 0.0, np.ones((4, 1)), np.ones(1), np.zeros(1, int)),
            Granularity(2, 3.5, 3.0, top, np.array([0.6, 0.4]), parents),
        ]

    def top_samples(self, cluster, subset, n):
        return np.argsort(-self.membership_[:, cluster])[subset == "b" :][:n]


def test_members_are_listed_by_cluster_and_subset():
    ax = plot_members(Split(), ["w", "x", "y", "z"], n=1)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["cluster 0", "cluster 1"]
    assert ax.texts[0].get_text() == "100 %\nw\n..." and ax.texts[1].get_text() == "20 %\nx"
    with pytest.raises(ValueError, match="row_names does not fit the model; 3 names for 4 rows"):
        plot_members(Split(), ["w", "x", "y"])


def test_a_hierarchy_has_every_level_and_weight():
    ax = plot_hierarchy(Split())
    assert [t.get_text() for t in ax.texts] == ["100", "60", "40"]
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "1 cluster",
        "2 clusters\n$\\beta$ = 3.5",
    ]
    assert len(ax.lines) == 2
