"""Plot the pictures of the pages on bottlenecks, CMBC and conditional ensembles.

``python docs/method_pictures_information.py`` plots all pictures; names of pictures as arguments
select some of them.
"""

from __future__ import annotations

import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from picture_style import COLOURS, save

from nrprob import CCIB, IB, IBSI
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
    for truth, colour, name in (known, COLOURS[1], "known groups"), (sought, COLOURS[0], "sought"):
        accuracy = [matched_accuracy(label, truth) for label in labels]
        axes[3].semilogx(gammas, accuracy, "o-", color=colour, ms=4)
        axes[3].annotate(
            name, (gammas[0 if truth is known else -1], 0.93), color=colour,
            ha="left" if truth is known else "right",
        )  # fmt: skip
    axes[3].set(xlabel="penalty weight gamma", ylabel="matched accuracy", ylim=(0.45, 1.03))
    axes[3].set_title("IBSI", fontsize=10)
    save(figure, "information-bottleneck")


PICTURES = {
    "information-bottleneck": plot_information_bottleneck,
}


def main(names: list[str]) -> None:
    """Plot the pictures with these names, or all."""
    for name in names or PICTURES:
        PICTURES[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
