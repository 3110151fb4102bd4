"""Plot the pictures of the pages on bottlenecks, CMBC and conditional ensembles.

``python docs/method_pictures_information.py`` plots all pictures; names of functions as
arguments select some of them.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from picture_style import COLOURS, plot_selected, save, scatter
from sklearn.cluster import KMeans

from nrprob import CCIB, CMBC, IB, IBSI, CondEns, MixtureEM
from nrprob.metrics import matched_accuracy


def binary_table(
    dims: tuple[int, int], n_clusters: int = 2, n: int = 200, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Binary rows: the known group determines dims[0] columns, the sought cluster dims[1].

    A class has ones in its block of columns and zeros in the other blocks; one entry in ten is
    flipped. Returns the rows, the known groups and the sought clusters.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(n_clusters, size=(n, 2))
    blocks = [np.arange(m) * n_clusters // m for m in dims]
    ones = np.hstack([labels[:, [j]] == blocks[j] for j in (0, 1)])
    return (ones ^ (rng.random(ones.shape) < 0.1)).astype(int), labels[:, 0], labels[:, 1]


def draw_table(ax, X: np.ndarray, known: np.ndarray, clusters: np.ndarray, first: int) -> None:
    """Show rows sorted by known group and cluster; a bar at the left shows the cluster.

    ``first`` is the number of columns that the known group determines.
    """
    order = np.lexsort((clusters, known))
    ax.imshow(X[order], cmap="Greys", aspect="auto", interpolation="nearest", vmax=1.6)
    n, m = X.shape
    ax.imshow(
        clusters[order][:, None], cmap=ListedColormap(COLOURS[:2]), aspect="auto",
        interpolation="nearest", extent=(-2.6, -1.0, n - 0.5, -0.5), vmin=0, vmax=1,
    )  # fmt: skip
    border = np.bincount(known)[0] - 0.5
    ax.hlines(border, -2.6, m - 0.5, color="black", lw=1.2)
    ax.axvline(first - 0.5, color="black", lw=1.2, ls=":")
    ax.set(xlim=(-2.7, m - 0.5), ylim=(n - 0.5, -0.5), yticks=[border / 2, (border + n) / 2])
    ax.set_yticklabels(["known\ngroup 0", "known\ngroup 1"], rotation=90, va="center")
    ax.set_xticks(
        [-1.8, (first - 1) / 2, first + (m - first - 1) / 2], ["cluster", "known", "sought"]
    )
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def plot_accuracy(
    ax, weights: np.ndarray, labels: list[np.ndarray], known: np.ndarray, sought: np.ndarray
) -> None:
    """Plot the accuracy of fits against their weights, for known groups and sought clusters."""
    for truth, colour, side in (known, COLOURS[1], 0), (sought, COLOURS[0], -1):
        accuracy = [matched_accuracy(label, truth) for label in labels]
        ax.semilogx(weights, accuracy, "o-", color=colour, ms=4)
        name, align = ("sought", "right") if side else ("known groups", "left")
        ax.annotate(name, (weights[side], 1.04), color=colour, ha=align)
    ax.set(ylabel="matched accuracy", ylim=(0.45, 1.1), yticks=[0.5, 0.6, 0.7, 0.8, 0.9, 1.0])


def plot_information_bottleneck() -> None:
    """Plot a binary table with the clusters of three bottlenecks, and IBSI by its weight."""
    X, known, sought = binary_table((10, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the weight 0
        free = CCIB(2, coordination_weight=0, random_state=1).fit(X, known=known)
    fits = {
        "IB": IB(2, random_state=0).fit(X),
        "CCIB, coordination_weight=0": free,
        "CCIB": CCIB(2, random_state=0).fit(X, known=known),
    }
    figure, axes = plt.subplots(
        1, 4, figsize=(11, 3.8), layout="constrained", width_ratios=[1, 1, 1, 1.25]
    )
    for ax, (name, model) in zip(axes, fits.items(), strict=False):
        labels = model.labels_
        # Cluster 0 has the ones of the first sought class; this only selects colours.
        if labels[known == 0][sought[known == 0] == 0].mean() > 0.5:
            labels = 1 - labels
        draw_table(ax, X, known, labels, 10)
        ax.set_title(name, fontsize=10)
    gammas = np.geomspace(0.1, 100, 13)
    labels = [
        IBSI(2, gamma=g, n_init=4, random_state=0).fit(X, known=known).labels_ for g in gammas
    ]
    plot_accuracy(axes[3], gammas, labels, known, sought)
    axes[3].set(xlabel="penalty weight gamma")
    axes[3].set_title("IBSI", fontsize=10)
    save(figure, "information-bottleneck")


def shifted_groups() -> tuple[np.ndarray, np.ndarray]:
    """Two known groups, shifted mainly along x; clusters along y, in shares of 2:1 and 1:2."""
    rng = np.random.default_rng(0)
    known = np.arange(300) % 2
    sought = (rng.random(300) < np.array([1, 2])[known] / 3).astype(int)
    centres = np.outer(known, [7.0, 1.0]) + np.outer(sought, [0.0, 4.0])
    return centres + rng.normal(size=(300, 2)), known


def in_order(labels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Number two clusters by their mean value, which only selects colours."""
    means = [values[labels == c].mean() for c in (0, 1)]
    return labels if means[0] < means[1] else 1 - labels


def plot_cmbc_and_ensembles() -> None:
    """Plot a binary table with a mixture and CMBC, and a plane with members and consensus."""
    X, known, sought = binary_table((20, 4))
    figure, axes = plt.subplots(2, 3, figsize=(10, 6.6), layout="constrained")
    mixture = MixtureEM(2, features="bernoulli", random_state=0).fit(X)
    model = CMBC(2, random_state=0).fit(X, known=known)
    for ax, labels, name in (
        (axes[0, 0], mixture.labels_, "Bernoulli mixture"),
        (axes[0, 1], model.labels_, "CMBC, given the known groups"),
    ):
        draw_table(ax, X, known, in_order(labels, X[:, 23] + X[:, 19]), 20)
        ax.set_title(name, fontsize=10)
    strengths = np.geomspace(0.03, 30, 13)
    labels = [CMBC(2, strength=c, random_state=0).fit(X, known=known).labels_ for c in strengths]
    plot_accuracy(axes[0, 2], strengths, labels, known, sought)
    axes[0, 2].axvline(2, color="black", lw=0.8, ls=":")
    axes[0, 2].set(xlabel="strength (dotted: default)")
    axes[0, 2].set_title("CMBC", fontsize=10)

    plane, group = shifted_groups()
    kmeans = KMeans(2, n_init=10, random_state=0).fit_predict(plane)
    ensemble = CondEns(2, random_state=0).fit(plane, known=group)
    # Pale colours 5 and 4 stand for the extended clusters 0 and 1.
    member = in_order(ensemble.base_labels_[:, 0], plane[:, 1])
    scatter(axes[1, 0], plane, kmeans, group)
    axes[1, 0].set_title("k-means of all samples", fontsize=10)
    scatter(axes[1, 1], plane[group == 1], 5 - member[group == 1], group[group == 1])
    scatter(axes[1, 1], plane[group == 0], member[group == 0], group[group == 0])
    axes[1, 1].set_title("member: k-means of the circles, extended", fontsize=10)
    scatter(axes[1, 2], plane, in_order(ensemble.labels_, plane[:, 1]), group)
    axes[1, 2].set_title("CondEns: consensus of both members", fontsize=10)
    for ax in axes[1]:
        ax.set(xticks=[], yticks=[])
    save(figure, "cmbc-and-ensembles")


if __name__ == "__main__":
    plot_selected(plot_cmbc_and_ensembles, plot_information_bottleneck)
