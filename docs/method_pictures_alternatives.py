"""Plot the pictures of the pages on alternatives of any shape and on cross-partition clustering.

``python docs/method_pictures_alternatives.py`` plots all pictures; names of functions as
arguments select some of them.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from picture_style import COLOURS, plot_selected, save, scatter
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from nrprob import NACI, CrossPartition, Orthogonalization
from nrprob.datasets import make_cross_partition, make_planar_shapes


def separated_rings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of a disc and a ring, cut into two halves; the halves and the shapes."""
    X, labels = make_planar_shapes(400, "rings", random_state=0)
    half, shape = labels.T
    X[:, 0] += 1.5 * half
    return X, half, shape


def plot_alternatives_of_any_shape() -> None:
    """Plot halves of rings: known groups, a projection, and NACI without and with penalty."""
    X, half, shape = separated_rings()
    projected = Orthogonalization(2, random_state=0).fit(X, known=half)
    free = NACI(2, eta=0).fit(X, known=half)
    model = NACI(2).fit(X, known=half)
    figure, axes = plt.subplots(2, 2, figsize=(7.6, 6.4), layout="constrained")
    panels = {
        "known: left or right half": half,
        "NACI, eta=0": free.labels_,
        "Orthogonalization": projected.labels_,
        "NACI, given the halves": model.labels_,
    }
    for ax, (title, labels) in zip(axes.ravel(), panels.items(), strict=True):
        scatter(ax, X, labels, half)
        if ax is not axes[0, 0]:
            agreement = [adjusted_rand_score(true, labels) + 0.0 for true in (half, shape)]
            print(title, np.round(agreement, 2))
        ax.set(title=title, xticks=[], yticks=[], aspect="equal")
    save(figure, "alternatives-of-any-shape")


def plot_sorted_counts(ax, counts: np.ndarray, labels: np.ndarray, subset: np.ndarray) -> None:
    """Plot counts (n, m) with rows sorted by labels, lines between clusters, and subsets."""
    order = np.lexsort((subset, labels))
    ax.imshow(counts[order], cmap="Greys", aspect="auto", interpolation="nearest")
    for end in np.cumsum(np.bincount(labels))[:-1]:
        ax.axhline(end - 0.5, color=COLOURS[1], lw=1.5)
    ax.axvline(239.5, color="0.4", lw=1)
    ax.set(xticks=[120, 420], yticks=[])
    ax.set_xticklabels(["features\nof themes", "features of clusters\nwithin subsets"])
    ax.tick_params(length=0)
    strip = ax.inset_axes((-0.07, 0, 0.05, 1))
    colours = ListedColormap([COLOURS[0], COLOURS[2], COLOURS[4]])
    strip.imshow(subset[order][:, None], cmap=colours, aspect="auto", interpolation="nearest")
    strip.set(xticks=[], yticks=[])


def plot_cross_partition() -> None:
    """Plot counts of three subsets, sorted by subset, by k-means of residuals and by themes."""
    counts, labels = make_cross_partition(masking_count=1500, random_state=0)
    theme, subset, _ = labels.T
    means = np.stack([counts[subset == w].mean(0) for w in range(3)])
    kmeans = KMeans(5, n_init=10, random_state=0).fit_predict(counts - means[subset])
    model = CrossPartition("auto", random_state=0).fit(counts, subsets=subset)
    figure, axes = plt.subplots(1, 3, figsize=(10, 4.2), layout="constrained")
    panels = {
        "rows by subset": subset,
        "subset means subtracted, then k-means": kmeans,
        "CrossPartition, given the subsets": model.labels_,
    }
    for ax, (title, groups) in zip(axes, panels.items(), strict=True):
        plot_sorted_counts(ax, counts, groups, subset)
        print(title, round(adjusted_rand_score(theme, groups), 2))
        ax.set_title(title, fontsize=11)
    save(figure, "cross-partition")


if __name__ == "__main__":
    plot_selected(plot_alternatives_of_any_shape, plot_cross_partition)
