"""Plot ten methods on eight data sets of two features.

Markers are the known groups, and colours the clusters. Every panel shows the normalized mutual
information with the sought clusters, and the seconds of a second fit, without compilation.

    python docs/comparison.py
"""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from picture_style import save, scatter
from sklearn.cluster import KMeans

from nrprob import (
    ADFT,
    CCIB,
    COALA,
    IBSI,
    NACI,
    CondEns,
    ConditionalMixture,
    DecKMeans,
    Orthogonalization,
)
from nrprob.datasets import make_planar_shapes
from nrprob.metrics import normalized_mutual_information

N = 300
CENTRES = np.array([[0.0, 0.0], [0.0, 4.0], [3.5, 2.0]])


class Data(NamedTuple):
    """Features (n, 2), known groups (n,), sought clusters (n,) and their number."""

    X: np.ndarray
    known: np.ndarray
    sought: np.ndarray
    k: int


class ResidualKMeans:
    """K-means of the residuals from the means of the known groups."""

    def __init__(self, n_clusters: int):
        self.k = n_clusters

    def fit(self, X: np.ndarray, known: np.ndarray) -> ResidualKMeans:
        """Subtract group means, and run k-means."""
        means = np.stack([X[known == z].mean(0) for z in np.unique(known)])
        self.labels_ = KMeans(self.k, n_init=10, random_state=0).fit_predict(X - means[known])
        return self


def batches(
    shares: list[list[float]], shift: tuple[float, float], errors: np.ndarray, seed: int
) -> Data:
    """Clusters that two or three batches share in ``shares`` (batches, clusters)."""
    rng = np.random.default_rng(seed)
    table = np.array(shares)
    known = np.arange(N) % len(table)
    sought = (rng.random(N)[:, None] > table[known].cumsum(1)[:, :-1]).sum(1)
    X = CENTRES[sought] + rng.normal(size=(N, 2)) @ errors + np.outer(known, shift)
    return Data(X, known, sought, table.shape[1])


def shapes(name: str, shift: tuple[float, float]) -> Data:
    """Clusters of any shape, whose known groups are moved apart."""
    X, labels = make_planar_shapes(N, name, random_state=0)
    return Data(X + np.outer(labels[:, 0], shift), labels[:, 0], labels[:, 1], 2)


ROUND = 0.8 * np.eye(2)
LONG = np.array([[1.6, 0.9], [0.0, 0.45]])
DATA = {
    "equal shares": batches([[0.5, 0.5]] * 2, (6, 1), ROUND, 0),
    "unequal shares": batches([[0.2, 0.8], [0.8, 0.2]], (6, 1), ROUND, 0),
    "long errors": batches([[0.5, 0.5]] * 2, (7, -1), LONG, 0),
    "long errors,\nunequal shares": batches([[0.2, 0.8], [0.8, 0.2]], (7, -1), LONG, 0),
    "a rare cluster": batches([[0.9, 0.1]] * 2, (6, 1), ROUND, 0),
    "three clusters,\nthree batches": batches([[0.4, 0.3, 0.3]] * 3, (7, 2), ROUND, 0),
    "rings": shapes("rings", (1.5, 0.0)),
    "no clusters": batches([[1.0, 0.0]] * 2, (6, 1), ROUND, 0),
}
METHODS: dict[str, Any] = {
    "k-means\nof residuals": lambda k: ResidualKMeans(k),
    "Conditional-\nMixture": lambda k: ConditionalMixture(k, random_state=0),
    "CCIB": lambda k: CCIB(k, random_state=0),
    "IBSI": lambda k: IBSI(k, gamma=10, random_state=0),
    "DecKMeans": lambda k: DecKMeans(k, random_state=0),
    "CondEns": lambda k: CondEns(k, random_state=0),
    "NACI": lambda k: NACI(k),
    "COALA": lambda k: COALA(k),
    "Orthogonal-\nization": lambda k: Orthogonalization(k, random_state=0),
    "ADFT": lambda k: ADFT(k, random_state=0),
}


def main() -> None:
    """Fit all methods to all data sets twice, and plot the clusters."""
    warnings.simplefilter("ignore")
    figure, axes = plt.subplots(
        len(DATA), len(METHODS), figsize=(15, 12), layout="constrained", squeeze=False
    )
    for row, (title, data) in zip(axes, DATA.items(), strict=True):
        row[0].set_ylabel(title, fontsize=9)
        for ax, (name, make) in zip(row, METHODS.items(), strict=True):
            for _ in range(2):
                start = time.perf_counter()
                labels = make(data.k).fit(data.X, known=data.known).labels_
                seconds = time.perf_counter() - start
            scatter(ax, data.X, labels, data.known, size=5)
            ax.set(xticks=[], yticks=[])
            if ax in axes[0]:
                ax.set_title(name, fontsize=10)
            nmi = normalized_mutual_information(labels, data.sought)
            text = f"NMI {nmi:.2f}" if np.ptp(data.sought) else ""
            ax.text(0.02, 0.01, text, transform=ax.transAxes, fontsize=7)
            ax.text(0.98, 0.01, f"{seconds:.2f} s", transform=ax.transAxes, fontsize=7, ha="right")
            ax.margins(0.05, 0.12)
    save(figure, "comparison", dpi=80)


if __name__ == "__main__":
    main()
