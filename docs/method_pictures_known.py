"""Plot the pictures of the pages on methods that take known groups.

``python docs/method_pictures_known.py`` plots all pictures; names of functions as arguments
select some of them.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from picture_style import plot_selected, save, scatter
from sklearn.cluster import KMeans

from nrprob import ConditionalMixture


def unequal_shares() -> tuple[np.ndarray, np.ndarray]:
    """Points of two batches that share two clusters, in shares of 4:1 and 1:4."""
    rng = np.random.default_rng(0)
    batch = np.arange(400) % 2
    cluster = (rng.random(400) < np.array([0.2, 0.8])[batch]).astype(int)
    errors = rng.normal(size=(400, 2)) @ np.array([[1.0, 0.6], [0.0, 0.45]])
    return errors + np.outer(batch, [5.0, -1.0]) + np.outer(cluster, [-1.5, 3.0]), batch


def plot_conditional_mixtures() -> None:
    """Plot batches with unequal cluster shares: known groups, k-means, joint fit."""
    X, batch = unequal_shares()
    means = np.stack([X[batch == z].mean(0) for z in (0, 1)])
    kmeans = KMeans(2, n_init=10, random_state=0).fit_predict(X - means[batch])
    joint = ConditionalMixture(2, random_state=0).fit(X, known=batch)
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained", sharey=True)
    scatter(axes[0], X, batch, batch)
    axes[0].set_title("known: the batch")
    scatter(axes[1], X, kmeans, batch)
    axes[1].set_title("batch means subtracted, then k-means")
    scatter(axes[2], X, joint.labels_, batch)
    axes[2].set_title("ConditionalMixture, given the batch")
    for ax in axes:
        ax.set(xticks=[], yticks=[])
    save(figure, "conditional-mixtures")


if __name__ == "__main__":
    plot_selected(plot_conditional_mixtures)
