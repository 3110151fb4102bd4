"""Plot docs/idea.png (clusters given batches) and docs/cluster-path.png (clusters by their dip)."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris

from nrprob import ConditionalMixture, MDLMixture, posterior


def plot_batches() -> None:
    """Plot points by batch, by k-means, and by clusters given the batches."""
    random = np.random.default_rng(0)
    batch, kind = random.integers(2, size=(2, 240))
    X = random.normal(size=(240, 2)) * [0.9, 0.5]
    X += np.outer(batch, [5.0, 1.5]) + np.outer(kind, [-1.0, 2.6])
    found = KMeans(2, n_init=10, random_state=0).fit_predict(X)
    told = ConditionalMixture(2, random_state=0).fit(X, known=batch).labels_
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained", sharey=True)
    titles = (
        "known: the batch",
        "k-means, without the batch",
        "ConditionalMixture, given the batch",
    )
    for ax, title, labels in zip(axes, titles, (batch, found, told), strict=True):
        for group, (colour, marker) in enumerate((("#0072b2", "o"), ("#d55e00", "^"))):
            ax.scatter(*X[labels == group].T, s=16, color=colour, marker=marker, alpha=0.75, lw=0)
        ax.set(title=title, xticks=[], yticks=[])
    figure.savefig(Path(__file__).with_name("idea.png"), dpi=130)


def plot_path() -> None:
    """Plot the probabilities of the numbers of clusters of iris, by the dip between clusters."""
    path = posterior.cluster_path(MDLMixture(random_state=0).fit(load_iris().data))
    print(path)
    path.plot().figure.savefig(Path(__file__).with_name("cluster-path.png"), dpi=110)


def main() -> None:
    """Plot both into the folder of this file."""
    plot_batches()
    plot_path()


if __name__ == "__main__":
    main()
