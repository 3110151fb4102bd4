"""Plot the pictures of the pages.

docs/idea.png has clusters given batches, docs/cluster-path.png clusters by their dip, and
docs/posterior-checks.png the parameters of components and replicated data.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from picture_style import save, scatter
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
        scatter(ax, X, labels)
        ax.set(title=title, xticks=[], yticks=[])
    save(figure, "idea", dpi=130)


def plot_path(model: MDLMixture) -> None:
    """Plot the probabilities of the numbers of clusters of iris, by the dip between clusters."""
    path = posterior.cluster_path(model)
    print(path)
    save(path.plot().figure, "cluster-path")


def plot_checks(model: MDLMixture, X: np.ndarray) -> None:
    """Plot components of iris over its clusters, and observed over replicated petal lengths."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    width, length = 3, 2  # columns of the petals
    left.scatter(X[:, length], X[:, width], c=model.labels_, cmap="viridis", s=16)
    parameters = model.sample_parameters(10, random_state=0).stack(
        law=("chain", "draw", "component")
    )
    angle = np.linspace(0, 2 * np.pi, 60)
    plane = [length, width]
    for law in np.flatnonzero(parameters["weights"].values > 0.02):
        mean = parameters["means"].transpose("law", ...).values[law][plane]
        covariance = parameters["covariances"].transpose("law", ...).values[law]
        # The ellipse holds 90 % of a Gaussian distribution in the plane.
        root = np.linalg.cholesky(covariance[np.ix_(plane, plane)]) * np.sqrt(-2 * np.log(0.1))
        left.plot(
            *(mean[:, None] + root @ [np.cos(angle), np.sin(angle)]), "0.3", lw=0.5, alpha=0.4
        )
    left.set(xlabel="petal length (cm)", ylabel="petal width (cm)", title="Clusters and components")
    bins = np.linspace(0, 8, 33)
    replicated = model.posterior_predictive(25, random_state=0)["X"].values[..., length]
    counts = [np.histogram(values, bins)[0] for values in replicated.reshape(-1, len(X))]
    low, high = np.quantile(counts, (0.05, 0.95), axis=0)
    right.stairs(high, bins, baseline=low, fill=True, color="0.8", label="90 % of replicated data")
    right.stairs(np.histogram(X[:, length], bins)[0], bins, color="#d55e00", lw=2, label="observed")
    right.legend()
    right.set(xlabel="petal length (cm)", ylabel="flowers", title="Observed and replicated data")
    save(figure, "posterior-checks")


def main() -> None:
    """Plot all pictures into the folder of this file."""
    plot_batches()
    flowers = load_iris().data
    model = MDLMixture(random_state=0).fit(flowers)
    plot_path(model)
    plot_checks(model, flowers)


if __name__ == "__main__":
    main()
