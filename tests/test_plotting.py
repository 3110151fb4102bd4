"""Figures: their content and their labels."""

import doctest
import importlib
import inspect
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from slowly import slowly

from nrprob import metrics, plotting
from nrprob.estimator.paths import Granularity
from nrprob.evidence.discriminant_plot import plot_discriminant_scores
from nrprob.evidence.model_selection import NumberOfClusters
from nrprob.known import Memberships
from nrprob.plotting import (
    plot_alternatives,
    plot_annealing,
    plot_by_n_clusters,
    plot_centroids,
    plot_contingency,
    plot_hierarchy,
    plot_members,
    plot_residuals,
    plot_top_features,
    style,
)
from nrprob.statistics.discriminants import discriminant_plane
from nrprob.successive import Exploration


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
    labels[:20] = 0  # all members of "a"
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


@pytest.mark.filterwarnings("error")
def test_centroids_are_drawn_on_the_axes_passed(labelings):
    labels, known = labelings
    X = np.random.default_rng(0).normal(5, 2, size=(60, 4))
    other = np.where(labels == 0, "left", "right")
    figure, given = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    drawn = plot_centroids(X, labels, known, None, [*"wxyz"], axes=given, others={"side": other})
    assert all(one is ax for one, ax in zip(drawn, given.ravel(), strict=True))
    assert len(plt.get_fignums()) == 1
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    for ax, of, names in ((drawn[0], known, "abc"), (drawn[1], labels, (0, 1))):
        expected = np.array([Z[of == name].mean(axis=0) for name in names]).T
        np.testing.assert_allclose(ax.images[0].get_array(), expected)
        assert [tick.get_text() for tick in ax.get_yticklabels()] == [*"wxyz"]
    assert [len(ax.texts) for ax in drawn[2:]] == [6, 4]
    assert not cut_or_on_each_other(figure)
    with pytest.raises(ValueError, match="axes must be one for every panel; got 2 for 3"):
        plot_centroids(X, labels, known, axes=given[0])


@pytest.mark.filterwarnings("error")
def test_images_are_drawn_where_they_are_told(labelings):
    labels, known = labelings
    X = np.random.default_rng(0).random((60, 6))
    many = np.arange(60) % 7
    figure, given = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    drawn = plot_centroids(X, many, known, (2, 3), axes=given, others={"side": labels})
    assert all(one is ax for one, ax in zip(drawn, given.ravel(), strict=True))
    for ax, of, names in ((drawn[0], known, [*"abc"]), (drawn[1], many, range(7))):
        means = np.array([X[of == name].mean(axis=0).reshape(2, 3) for name in names])
        np.testing.assert_allclose([image.get_array() for image in ax.images], means)
        assert len({image.get_clim() for image in [*drawn[0].images, *drawn[1].images]}) == 1
        assert len(ax.texts) == len(names)
    assert [ax.get_title() for ax in drawn[:2]] == ["known: groups", "fitted: clusters"]
    assert [len(ax.texts) for ax in drawn[2:]] == [21, 14]
    assert not cut_or_on_each_other(figure)


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
        ({"image_shape": (3, 3)}, r"image_shape must be .* of 4 pixels; got \(3, 3\)"),
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
    """Attributes that plots of a hierarchy read: two clusters of four rows in two subsets."""

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
    with pytest.raises(ValueError, match="row_names must have one name per row; got 3 names for 4"):
        plot_members(Split(), ["w", "x", "y"])


def test_a_hierarchy_has_every_level_and_weight():
    ax = plot_hierarchy(Split())
    assert [t.get_text() for t in ax.texts] == ["100", "60", "40"]
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "1 cluster",
        "2 clusters\n$\\beta$ = 3.5",
    ]
    assert len(ax.lines) == 2


# Names of any length


LONG = [f"Experiment_2010_site_Freiburg_batch_number_{i}" for i in range(12)]
TYPES = ["CD14+ Monocyte", "CD4+/CD45RA+/CD25- Naive T", "CD8+/CD45RA+ Naive Cytotoxic"]


def cut_or_on_each_other(figure):
    """Truncated texts of a figure, and pairs of overlapping texts."""
    figure.canvas.draw()
    renderer, result = figure.canvas.get_renderer(), []
    bare = [ax for ax in axes_of(figure) if not ax.axison]
    # Ticks beyond the ends of a scale are not shown.
    bars = [ax for ax in axes_of(figure) if ax.get_label() == "<colorbar>"]
    off = {t for ax in bars for t in ax.get_yticklabels()}
    off |= {t for ax in bare for axis in (ax.xaxis, ax.yaxis) for t in axis.findobj(plt.Text)}
    for text in figure.findobj(plt.Text):
        if text.get_text().strip() and text.get_visible() and text not in off:
            # Rotated names are near each other's corners: compare their lines, not their boxes.
            angle, box = np.deg2rad(text.get_rotation()), text.get_window_extent(renderer)
            if angle and text.get_rotation() != 90:
                turned, text = text, plt.Text(text=text.get_text(), fontsize=text.get_fontsize())
                text.figure = figure
                own = text.get_window_extent(renderer)
                end = turned.get_transform().transform(turned.get_position())
                along = np.linspace(0, own.width, 60)[:, None]
                middle = end - along * [np.cos(angle), np.sin(angle)]
                pad = own.height * 0.3
                boxes = [(*(at - pad), *(at + pad)) for at in middle]
            else:
                boxes = [(box.x0 + 1, box.y0 + 1, box.x1 - 1, box.y1 - 1)]
            result.append((text.get_text(), np.array(boxes), box))
    edge = figure.bbox
    wrong = [
        (text,)
        for text, _, box in result
        if box.x0 < edge.x0 or box.y0 < edge.y0 or box.x1 > edge.x1 or box.y1 > edge.y1
    ]
    for i, (text, own, _) in enumerate(result):
        for other, theirs, _ in result[:i]:
            apart = (own[:, None, :2] >= theirs[:, 2:]) | (theirs[:, :2] >= own[:, None, 2:])
            if not apart.any(2).all():
                wrong.append((text, other))
    return wrong


@pytest.mark.parametrize(
    ("groups", "n_clusters"),
    [(TYPES, 12), *slowly((LONG, 4), (["a"], 3), ([f"{i}, {TYPES[2]}" for i in range(30)], 2))],
)
@pytest.mark.filterwarnings("error")
def test_names_of_any_length_are_whole_or_cut_and_apart(groups, n_clusters):
    known, labels = np.array(groups * 20), np.arange(20 * len(groups)) % n_clusters
    other = np.array(TYPES)[np.arange(len(known)) % 3]
    X = np.random.default_rng(0).normal(size=(len(known), 4))
    names = [f"{'very_' * 12}long_{i}" for i in range(4)]
    far = "batch " * 20
    figures = [
        plot_contingency(labels, known, known_name=far, labels_name=far).figure,
        plot_centroids(X, labels, known, None, names, others={"type": other}, title="It"),
    ]
    if len(groups) < 20:
        more = {"others": {far: other}, "known_name": far, "labels_name": far}
        figures.append(plot_centroids(X, labels, known, (2, 2), **more))
    for figure in figures:
        assert not cut_or_on_each_other(figure)
    ticks = [tick.get_text() for tick in figures[0].axes[0].get_yticklabels()]
    assert len({*ticks}) == min(len(groups), 20)


@pytest.mark.filterwarnings("error")
def test_small_axes_have_smaller_numbers_or_none():
    known = np.array(LONG * 20)
    _, ((small, wide), (tiny, _)) = plt.subplots(2, 2, figsize=(7, 5), layout="constrained")
    plot_contingency(np.arange(240) % 3, known, small, labels_name="", known_name="")
    plot_contingency(np.arange(240) % 4, known[:3].repeat(80), wide)
    plot_contingency(np.arange(240) % 19, np.arange(240) % 20, tiny, labels_name="")
    assert {text.get_text().count("\n") for text in small.texts} == {0}  # without shares
    assert {text.get_text().count("\n") for text in wide.texts} == {1}
    assert not tiny.texts
    tiny.set_xticks([])
    tiny.set_yticks([])
    assert not cut_or_on_each_other(small.figure)
    ax = plot_contingency(np.arange(240) % 19, np.arange(240) % 20, tiny, show_share=True)
    assert len(ax.texts) == 380  # as requested


# Rows in a plane


@pytest.fixture
def blobs():
    """Rows (90, 4) of 3 known groups, "a" to "c", and 3 clusters."""
    rng = np.random.default_rng(0)
    known, sought = rng.integers(3, size=(2, 90))
    X = rng.normal(size=(90, 4)) + 5 * rng.normal(size=(3, 4))[sought]
    return X + 20 * rng.normal(size=(3, 4))[known], sought, np.array(["a", "b", "c"])[known]


def points(ax):
    """Positions of the markers of axes, by name in the legend."""
    return {result.get_label(): np.asarray(result.get_offsets()) for result in ax.collections}


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def expected_places(X, labelings, known):
    groups = np.unique(known, return_inverse=True)[1]
    return discriminant_plane(X, labelings, groups, np.random.RandomState(0)).places


def test_residuals_are_drawn_by_group_and_by_cluster(blobs):
    X, sought, known = blobs
    left, right = plot_residuals(X, sought, known)
    places = expected_places(X, sought[:, None], known)
    for ax, labels, word in ((left, known, ""), (right, sought, "cluster ")):
        drawn = points(ax)
        values, sizes = np.unique(labels, return_counts=True)
        names = [f"{word}{v}, n = {n}" for v, n in zip(values, sizes, strict=True)]
        assert [*drawn] == legend(ax) == names
        for value, own in zip(values, drawn.values(), strict=True):
            np.testing.assert_allclose(own, places[labels == value])
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("discriminant 1", "discriminant 2")
    assert (left.get_title(), right.get_title()) == ("known groups", "found clusters")


def test_residuals_are_drawn_on_the_axes_passed(blobs):
    _, axes = plt.subplots(1, 2)
    drawn = plot_residuals(*blobs, axes, known_name="site", labels_name="types")
    assert drawn[0] is axes[0] and drawn[1] is axes[1]
    assert [ax.get_title() for ax in axes] == ["site", "types"]


def test_of_many_rows_a_sample_is_drawn_and_said_so(blobs):
    X, sought, known = blobs
    axes = plot_residuals(X, sought, known, n_points=30, random_state=1)
    again = plot_residuals(X, sought, known, n_points=30, random_state=1)
    places = expected_places(X, sought[:, None], known)
    for ax, same in zip(axes, again, strict=True):
        assert "30 of 90 rows" in ax.get_title()
        drawn, twice = np.concatenate([*points(ax).values()]), [*points(same).values()]
        np.testing.assert_array_equal(drawn, np.concatenate(twice))
        nearest = np.abs(drawn[:, None] - places).sum(2)
        assert (nearest.min(1) < 1e-9).all() and len(set(nearest.argmin(1))) == 30
        counts = [len(own) for own in points(ax).values()]
        of = (known if ax is axes[0] else sought)[nearest.argmin(1)]
        assert (np.repeat(np.unique(of), counts) == of).all()


def test_residuals_of_what_else_may_be_known(blobs):
    X, sought, known = blobs
    frame = pd.DataFrame(X, columns=["w", "x", "y", "$z$"]).assign(site=known, even=sought % 2)
    left, _ = plot_residuals(frame, sought, ["site", "even"])
    assert {name.split(", n")[0] for name in legend(left)} == {
        f"{site}, {even}" for site in "abc" for even in (0, 1)
    }
    left, _ = plot_residuals(X, sought)
    assert legend(left) == ["all rows, n = 90"]
    left, _ = plot_residuals(scipy.sparse.csr_array(X), sought, known)
    dense, _ = plot_residuals(X, sought, known)
    for one, other in zip(points(left).values(), points(dense).values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_rows_of_one_direction_are_spread_along_the_other(blobs):
    X, sought, known = blobs
    for rows in (slice(90), slice(3)):
        _, right = plot_residuals(X[rows, :1], sought[rows], known[rows], random_state=0)
        assert "jitter" in right.get_ylabel()
        right.figure.canvas.draw()


def test_alternatives_have_a_panel_each_in_one_plane(blobs):
    X, sought, known = blobs
    other = np.arange(90) % 2
    axes = plot_alternatives(X, {"types": sought, "a rival": other}, known)
    places = expected_places(X, np.column_stack([sought, other]), known)
    for ax, own, name, rival in zip(
        axes, (sought, other), ("types", "a rival"), (other, sought), strict=True
    ):
        for c, drawn in enumerate(points(ax).values()):
            np.testing.assert_allclose(drawn, places[own == c])
        nmi = [metrics.normalized_mutual_information(own, against) for against in (known, rival)]
        title = ax.get_title().replace("\n", " ")
        assert title.startswith(f"{name} sizes {', '.join(map(str, np.bincount(own)))} NMI")
        assert f"{nmi[0]:.2f} with known, {nmi[1]:.2f} with " in title
        assert legend(ax) == [f"cluster {c}" for c in range(own.max() + 1)]


def test_alternatives_of_what_was_fitted(blobs):
    X, sought, known = blobs
    labels = np.column_stack([sought, np.arange(90) % 4, np.arange(90) % 9])
    codes = np.unique(known, return_inverse=True)[1]
    explored = plot_alternatives(X, Exploration(labels, [], codes[:, None]))
    fitted = plot_alternatives(X, SimpleNamespace(alternatives_=labels, labels_=sought))
    _, given = plt.subplots(1, 3)
    passed = plot_alternatives(X, labels, axes=given)
    assert [len(axes) for axes in (explored, fitted, passed)] == [3, 3, 3]
    assert all(one is other for one, other in zip(passed, given, strict=True))
    assert "with known" in explored[0].get_title() and "known" not in fitted[0].get_title()
    assert fitted[2].get_title().splitlines()[:2] == ["clustering 3", "9 clusters of 10 to 10 rows"]
    alone = plot_alternatives(X, SimpleNamespace(labels_=sought))
    assert len(alone) == 1 and "NMI" not in alone[0].get_title()
    many = plot_alternatives(X, np.column_stack([labels] * 3))
    assert "NMI at most 1.00 with 8 labelings" in many[0].get_title()


# Features


def bars(ax):
    """Names, lengths and numbers of the bars of axes, from the top."""
    names = [text.get_text() for text in ax.get_yticklabels()]
    widths = [bar.get_width() for bar in ax.patches]
    texts = [text.get_text().replace("\N{MINUS SIGN}", "-") for text in ax.texts]
    return names, widths, texts


@pytest.mark.parametrize("kind", ["nothing", "labels", "numbers", "both", "all"])
def test_bars_are_effects_after_removing_known_effects(blobs, kind):
    X, sought, site = blobs
    age = np.random.default_rng(1).normal(size=90)
    X = X + np.outer(age, [0, 3, 0, -3])
    even = np.arange(90) % 2
    frame = pd.DataFrame(X, columns=[*"wxyz"]).assign(site=site, even=even, age=age)
    known = {
        "nothing": [],
        "labels": ["site"],
        "numbers": ["age"],
        "both": ["site", "age"],
        "all": ["site", "even", "age"],
    }[kind]
    frame = frame.drop(columns={"site", "even", "age"} - set(known))
    design = np.ones((90, 1))
    if "site" in known:
        groups = np.unique(site, return_inverse=True)[1] + 3 * even * ("even" in known)
        design = np.eye(6)[groups]
    if "age" in known:
        design = np.column_stack([design, age])
    both = np.column_stack([design, np.eye(3)[sought]])
    rest = X - design @ np.linalg.lstsq(both, X, rcond=None)[0][: design.shape[1]]
    axes = plot_top_features(frame, sought, known or None, n_features=3)
    assert len(axes) == 3
    for c, ax in enumerate(axes):
        ours, theirs = rest[sought == c], rest[sought != c]
        pooled = (ours.var(0) * len(ours) + theirs.var(0) * len(theirs)) / 88
        effects = (ours.mean(0) - theirs.mean(0)) / np.sqrt(pooled)
        order = np.argsort(-np.abs(effects))[:3]
        names, widths, texts = bars(ax)
        assert names == ["wxyz"[j] for j in order]
        np.testing.assert_allclose(widths, effects[order])
        assert texts == [f"{effect:+.2f}" for effect in effects[order]]
        assert ax.get_title() == f"cluster {c}, n = {len(ours)}"
        assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the largest at the top
    assert len({ax.get_xlim() for ax in axes}) == 1


def test_top_features_of_some_clusters_and_of_many(blobs):
    X, sought, _ = blobs
    words = np.array(["one", "two", "three"])[sought]
    _, own = plt.subplots(1, 2)
    axes = plot_top_features(X, words, axes=own, clusters=["two", "one"], feature_names=[*"abc$"])
    assert axes[0] is own[0] and axes[0].get_title().startswith("two, n = ")
    assert set(bars(axes[0])[0]) == set("abc$")
    axes = plot_top_features(X, np.arange(90) % 30, n_features=1)
    assert len(axes) == 12
    assert "the 12 largest of 30 clusters" in texts(axes[0].figure)


def test_effects_without_spread_have_bars_as_well():
    X = np.array([[0, 0, 0.0], [0, 0, 1], [1, 0, 0], [1, 0, 1]])
    (first, second) = plot_top_features(X, [0, 0, 1, 1])
    assert bars(first)[2] == ["-∞"] and bars(second)[2] == ["+∞"]
    assert np.isfinite(bars(first)[1]).all()
    nothing = plot_top_features(X[:, 1:2], [0, 0, 1, 1])
    assert bars(nothing[0]) == ([], [], ["no feature differs"])


# Paths


def test_annealing_is_the_trace_and_the_ends_of_restarts():
    model = SimpleNamespace(
        objective_trace_=np.array([5.0, 3.0, 2.0]),
        beta_=np.inf,
        critical_beta_=1.25,
        restarts_={
            "objective": np.array([4.0, 2.0, np.inf, 3.0]),
            "converged": np.array([False, True, True, True]),
        },
    )
    _, own = plt.subplots()
    ax = plot_annealing(model, own)
    assert ax is own
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[1, 5], [2, 3], [3, 2]])
    assert (
        ax.get_title(loc="left") == r"first split at $\beta$ = 1.25, at the end $\beta$ = $\infty$"
    )
    assert ax.get_ylabel() == "objective (minimised)"
    (inset,) = ax.child_axes
    restarts, best = inset.collections
    np.testing.assert_array_equal(restarts.get_offsets(), [[1, 2], [2, 3], [3, 4]])
    np.testing.assert_array_equal(best.get_offsets(), [[1, 2]])
    open_marks = (restarts.get_facecolors()[:, :3] == 1).all(1)
    assert open_marks.tolist() == [False, False, True]
    assert inset.get_xlabel() == "4 restarts" and inset.get_title() == "1 not shown"
    # The trace of a fit ends where the panel of restarts begins.
    share = ax.transLimits.transform([[3, 2]])[0, 0]
    assert share < inset.get_position().x0


def test_annealing_of_one_restart_and_of_temperatures():
    trace = np.array([5.0, 3.0, 2.0, 1.0])
    one = {"objective": np.array([1.0])}
    ax = plot_annealing(
        SimpleNamespace(objective_trace_=trace, temperatures_=[2, 1, 0, 0], restarts_=one)
    )
    assert not ax.child_axes and not ax.get_title(loc="left")
    assert ax.lines[-1].get_xdata()[0] == 2.5 and ax.texts[0].get_text() == " temperature 0 "
    assert all(tick == int(tick) for tick in ax.get_xticks())
    long = plot_annealing(SimpleNamespace(objective_trace_=np.arange(1000.0)))
    assert long.lines[0].get_marker() in (None, "None")


def test_held_out_likelihood_by_number_of_clusters():
    values = np.array([[1.0, 2, 3], [2, 4, 3], [1, 1, 2]])
    result = NumberOfClusters(3, np.array([2, 3, 5]), values, None, np.arange(3))
    _, own = plt.subplots()
    ax = plot_by_n_clusters(result, own)
    assert ax is own and "3 chosen: highest log-likelihood" in ax.get_title()
    single = NumberOfClusters(1, np.array([1, 2, 3]), values[[2, 1, 0]], None, np.arange(3))
    assert "1 chosen: several clusters gain nothing over a null model" in (
        plot_by_n_clusters(single).get_title()
    )
    container = ax.containers[0]
    np.testing.assert_allclose(container.lines[0].get_xydata(), [[2, 2], [3, 3], [5, 4 / 3]])
    below = values[1] - values
    error = below.std(1, ddof=1) / np.sqrt(3)
    whiskers = [segment[:, 1] for segment in container.lines[2][0].get_segments()]
    np.testing.assert_allclose(np.diff(whiskers, axis=1)[:, 0], 2 * error, atol=1e-12)
    np.testing.assert_allclose(ax.lines[-1].get_xydata(), [[3, 3]])
    automatic = plot_by_n_clusters(SimpleNamespace(number_=result, labels_=np.zeros(3)))
    assert automatic.get_ylabel() == ax.get_ylabel()


def test_objective_by_level_of_a_path():
    model = Split()
    model.objective_trace_ = np.array([4.0, 1.5])
    ax = plot_by_n_clusters(model)
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[1, 4], [2, 1.5]])
    assert [t.get_text() for t in ax.texts] == ["$\\beta$ = 3.5"]


@pytest.mark.parametrize(
    ("kind", "sign", "label"),
    [
        ("merge_costs_", 1, "cost of the merge (nats)"),
        ("merge_gains_", -1, "decrease of the objective"),
        ("merge_distances_", 1, "mean distance of merged clusters"),
    ],
)
def test_cost_of_every_merge(kind, sign, label):
    costs = np.array([0.5, 1, 2, 7])  # from 5 clusters to 4, and so on
    model = SimpleNamespace(linkage_=np.zeros((4, 4)), n_clusters=3, **{kind: sign * costs})
    ax = plot_by_n_clusters(model, n_clusters=4)
    middles = [bar.get_x() + bar.get_width() / 2 for bar in ax.patches]
    np.testing.assert_allclose(middles, [2, 3, 4])
    assert [bar.get_height() for bar in ax.patches] == [7, 2, 1]
    assert [bool(bar.get_hatch()) for bar in ax.patches] == [False, True, False]
    assert ax.get_ylabel() == label
    model.classes_ = np.array(["u", "v"])  # which remain apart
    ax = plot_by_n_clusters(model)
    assert ax.patches[0].get_x() + 0.4 == pytest.approx(3)


# Common parts of all plots


def test_groups_differ_by_marks_and_hatches_of_the_same_colour():
    for other in (style.nth_marker, style.nth_hatch):
        assert len({(style.nth_colour(i), other(i)) for i in range(60)}) == 60
        assert len({other(i) for i in range(8)}) == 8
        assert len({(i % 2, other(i)) for i in range(16)}) == 16  # in grey


@pytest.mark.parametrize("shades", [style.SHARES, "PuOr_r"])
def test_numbers_are_read_on_every_shade(shades):
    colours = plt.get_cmap(shades)(np.linspace(0, 1, 257))
    inks = [style.text_colour(colour) for colour in colours]
    # Of the definition: (lighter + 0.05) / (darker + 0.05), of relative luminances.
    rgb = colours[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    light = linear @ [0.2126, 0.7152, 0.0722] + 0.05
    ratio = np.where(np.array(inks) == "white", 1.05 / light, light / 0.05)
    assert ratio.min() >= 4.5
    np.testing.assert_allclose(
        [style.contrast_ratio(*pair) for pair in zip(inks, colours, strict=True)], ratio
    )
    assert {*inks} == {"black", "white"}


@pytest.mark.filterwarnings("error")
def test_numbers_in_pictures_are_in_that_ink():
    known = np.repeat(np.arange(12), 50)
    labels = np.concatenate([np.arange(50) < 4 * i for i in range(12)]).astype(int)
    X = np.linspace(-1, 1, 8)[known % 8][:, None] * [1, -1, 0.3, 0.6]
    split = Split()
    split.subset_membership_ = np.array([[0.5, 0.5, 0], [0.52, 0.48, 0]])
    figures = [
        plot_contingency(labels, known).figure,
        plot_centroids(X, known % 8, labels),
        plot_members(split).figure,
    ]
    n_numbers = 0
    for ax in (ax for figure in figures for ax in figure.axes if ax.images):
        (image,) = ax.images
        shades = image.to_rgba(image.get_array())
        for text in ax.texts:
            column, row = text.get_position()
            assert style.contrast_ratio(text.get_color(), shades[row, column]) >= 4.5
            n_numbers += 1
    assert n_numbers == 24 + 8 * 4 + 2 * 4 + 2 * 8 + 4


# Machado, Oliveira and Fernandes (2009): linear red, green and blue with colour blindness.
SEEN = {
    "with all cones": np.eye(3),
    "without red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "without green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}


@pytest.mark.parametrize("cones", SEEN)
def test_colours_differ_from_paper_from_each_other_and_in_grey(cones):
    colours = np.array([to_rgb(colour) for colour in style.COLOURS])
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    linear = np.clip(linear @ np.transpose(SEEN[cones]), 0, 1)
    red, green, blue = linear.T
    white = np.array([0.9505, 1, 1.089])[:, None]
    xyz = np.array([
        0.4124 * red + 0.3576 * green + 0.1805 * blue,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        0.0193 * red + 0.1192 * green + 0.9505 * blue,
    ])  # fmt: skip
    x, y, z = np.where(xyz / white > 0.008856, np.cbrt(xyz / white), 7.787 * xyz / white + 4 / 29)
    light = 116 * y - 16
    if cones == "with all cones":
        assert (1.05 / (xyz[1] + 0.05) >= 3).all()
        assert np.abs(np.diff(light, append=light[0])).min() > 20
    lab = np.stack([light, 500 * (x - y), 200 * (y - z)], 1)
    apart = np.linalg.norm(lab[:, None] - lab, axis=2)
    assert len(colours) >= 20  # the largest number of groups in a legend
    least = 25 if cones == "with all cones" else 12
    assert apart[np.triu_indices(len(colours), 1)].min() > least


def test_long_names_are_cut_in_their_middle():
    name = f"a very long name {'of a group ' * 9}in the west"
    cut = style.shorten_text(name)
    assert max(map(len, cut.splitlines())) <= 28 and cut.count("\n") == 1
    assert cut.startswith("a very long name") and cut.endswith("in the west")
    assert style.shorten_text("a short one") == "a short one"
    alike = [f"{name} and {i} more of what is to be told apart" for i in range(3)]
    assert len({*style.shorten_names(alike)}) == 3
    assert len({*style.shorten_names([f"{name}, the {i}th, {name}" for i in range(3)])}) == 3
    assert style.shorten_names(["a short one", name]) == ["a short one", cut]
    words = ["".join(map(chr, np.random.default_rng(0).integers(97, 99, 60))) for _ in range(3)]
    inside = [f"{words[0]}{i}{words[1]}" for i in range(3)]
    assert len({*style.shorten_names(inside, 20, 1)}) == 3
    inside = [f"b{i} {words[0]}{'xy'[i // 4]}{words[1]} {i % 4}" for i in (0, 1, 5, 0)]
    cut = style.shorten_names([*inside, "", f"b0 {words[0]} and {words[1]} 0"], 12, 1)
    assert len({*cut}) == 5 and cut[0] == cut[3] and max(map(len, cut)) <= 12


def test_evidence_is_told_apart_without_colours():
    place = np.linspace(-2, 2, 60)
    ax = plot_discriminant_scores(
        place, (place > 0).astype(int) * 4, np.zeros(60, int), ["g"], 0.5, None
    )
    assert legend(ax) == ["cluster 0", "cluster 4"]
    patches = ax.get_legend().get_patches()
    assert len({patch.get_hatch() for patch in patches}) == 2
    # A cluster keeps its colour if earlier clusters have no samples.
    colours = [to_hex(patch.get_facecolor()) for patch in patches]
    assert colours == [style.nth_colour(0), style.nth_colour(4)]


SOFT = Memberships(np.full((90, 2), 0.5))
WRONG = [
    (
        plot_residuals,
        {"known": np.random.default_rng(0).normal(size=(90, 2))},
        "known must be labels.*got a 2-D array of floats",
    ),
    (plot_residuals, {"known": SOFT}, "known must be labels.*got soft memberships"),
    (plot_residuals, {"labels": np.zeros(3, int)}, "3 labels for 90 rows"),
    (plot_residuals, {"labels": [None] * 90}, "labels must not have missing labels"),
    (plot_residuals, {"axes": [None]}, "axes must be one for every panel; got 1 for 2"),
    (plot_residuals, {"n_points": 0}, "n_points must be at least 1"),
    (plot_residuals, {"X": np.zeros(90)}, "X must be a table of rows in memory; got a ndarray"),
    (plot_alternatives, {"labelings": np.zeros((3, 2), int)}, r"got shape \(3, 2\) for 90 rows"),
    (plot_alternatives, {"labelings": {}}, "labelings must not be empty; got none"),
    (plot_alternatives, {"labelings": {"one": [1]}}, "one must be one label per row; got 1 labels"),
    (plot_top_features, {"labels": [0] * 90}, "labels must have two clusters.*got 1"),
    (plot_top_features, {"clusters": [5]}, "clusters must be labels of clusters with rows; got 5"),
    (plot_top_features, {"clusters": []}, "clusters must be labels of clusters .* got none"),
    (plot_top_features, {"feature_names": ["a"]}, "1 names for 4 columns"),
    (plot_top_features, {"n_features": 0}, "n_features must be at least 1"),
    (plot_top_features, {"known": SOFT}, "soft Memberships"),
    (plot_by_n_clusters, {"n_clusters": 1}, "n_clusters must be at least 2"),
]


@pytest.mark.parametrize(("draw", "wrong", "message"), WRONG)
def test_what_does_not_fit_is_refused(blobs, draw, wrong, message):
    X, sought, _ = blobs
    good = {
        plot_residuals: {"X": X, "labels": sought},
        plot_alternatives: {"X": X, "labelings": sought},
        plot_top_features: {"X": X, "labels": sought},
        plot_by_n_clusters: {"result": Split()},
    }[draw]
    with pytest.raises(ValueError, match=message):
        draw(**good | wrong)
    assert not plt.get_fignums()


@pytest.mark.parametrize("draw", [plot_annealing, plot_by_n_clusters])
def test_what_is_no_fit_is_refused(draw):
    with pytest.raises(TypeError, match="got SimpleNamespace"):
        draw(SimpleNamespace(labels_=[0]))


@pytest.mark.parametrize("name", ["annealing", "features", "model_selection", "scatter"])
def test_examples_are_so(name):
    module = importlib.import_module(f"nrprob.plotting.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 4 and not result.failed


def test_every_picture_is_documented():
    for name in plotting.__all__:
        doc = inspect.getdoc(getattr(plotting, name))
        assert all(f"{section}\n---" in doc for section in ("Parameters", "Returns"))


def test_text_and_missing_values_are_plotted():
    rng = np.random.default_rng(0)
    labels, known = rng.integers(2, size=(2, 90))
    frame = pd.DataFrame({"size": rng.normal(size=90) + 3 * labels, "noise": rng.normal(size=90)})
    frame["colour"] = np.where(rng.random(90) < 0.1 + 0.8 * labels, "red", "blue")
    frame["site"] = rng.choice([f"s{i:02}" for i in range(30)], 90)
    frame.loc[:9, "size"] = frame.loc[5:20, "colour"] = np.nan
    first, _ = plot_top_features(frame, labels, known, n_features=2)
    assert {text.get_text() for text in first.get_yticklabels()} == {"size", "colour=red"}
    axes = plot_centroids(frame, labels, known, axes=plt.subplots(1, 3)[1])
    names = [text.get_text() for text in axes[0].get_yticklabels()]
    assert "colour=red" in names and "site … es)" in names and len(names) <= 24
    plot_residuals(frame, labels, known, random_state=0)
    plot_alternatives(frame.assign(site=1.0), {"one": labels, "two": known}, random_state=0)
