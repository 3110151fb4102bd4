"""Plot the pictures of the pages on posteriors, description lengths, partial labels and tests.

Every function writes one PNG into the folder of this file. Names of functions given as arguments
select pictures; without arguments, all are plotted.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from picture_style import COLOURS, plot_selected, save, scatter
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from nrprob import (
    CECIB,
    ConditionalMixture,
    MDLConstrained,
    MDLMixture,
    MDLMultiView,
    MixtureEM,
    evidence,
    posterior,
)

PETALS = "petal length (cm)", "petal width (cm)"


def plot_ellipse(ax, mean: np.ndarray, covariance: np.ndarray, **style) -> None:
    """Plot the ellipse that holds 90 % of a Gaussian distribution of two features."""
    angle = np.linspace(0, 2 * np.pi, 80)
    root = np.linalg.cholesky(covariance) * np.sqrt(-2 * np.log(0.1))
    ax.plot(*(mean[:, None] + root @ [np.cos(angle), np.sin(angle)]), **style)


def bayesian_mixtures() -> None:
    """Plot components of a draw, clusters, and their numbers, for petals of iris."""
    petals = load_iris().data[:, 2:]
    model = MDLMixture(random_state=0).fit(petals)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    parameters = model.sample_parameters(1, random_state=0).isel(chain=0, draw=0)
    left.scatter(*petals.T, s=10, color="0.6", lw=0)
    for component in np.flatnonzero(parameters["weights"].values > 0.02):
        law = parameters.isel(component=component)
        plot_ellipse(left, law["means"].values, law["covariances"].values, color="#000000", lw=1.2)
    left.set(title="Components of one draw", xlabel=PETALS[0], ylabel=PETALS[1])
    scatter(middle, petals, model.labels_)
    middle.set(title="Clusters (labels_)", xlabel=PETALS[0], ylabel=PETALS[1])
    for offset, (name, colour) in enumerate((("components", "0.6"), ("labels", "#0072b2"))):
        numbers = posterior.n_clusters(model.posterior_[name])["probability"]
        print(model.covariance_, name, numbers.round(3).to_dict())
        label = "components" if name == "components" else "clusters"
        right.bar(numbers.index + 0.4 * offset - 0.2, numbers, 0.38, color=colour, label=label)
    right.legend()
    right.set(title="Posterior probability", xlabel="number", xticks=range(1, 7), xlim=(0.5, 6.5))
    save(figure, "bayesian-mixtures")


def description_length() -> None:
    """Plot two views of wines, clustered separately and jointly."""
    wine = load_wine()
    X = (wine.data - wine.data.mean(0)) / wine.data.std(0)
    columns = [0, 12], [6, 11]
    views = [X[:, pair] for pair in columns]
    names = "alcohol", "proline", "flavanoids", "absorbance ratio"
    figure, axes = plt.subplots(2, 2, figsize=(8.5, 6), layout="constrained")
    for row, (name, dependent) in zip(axes, (("separate", False), ("joint", True)), strict=True):
        model = MDLMultiView("auto", dependent=dependent, n_init=4, random_state=0).fit(views)
        for v, ax in enumerate(row):
            labels = model.alternatives_[:, v]
            agreement = adjusted_rand_score(wine.target, labels)
            order = np.argsort([wine.target[labels == c].mean() for c in np.unique(labels)])
            labels = np.argsort(order)[labels]  # colours in the order of the cultivars
            scatter(ax, views[v], labels)
            ax.set(
                title=f"View {v + 1}, {name} codes: ARI {agreement:.2f}",
                xlabel=names[2 * v], ylabel=names[2 * v + 1],
            )  # fmt: skip
    save(figure, "description-length", dpi=100)


def semi_supervised() -> None:
    """Plot partial labels of irises, a fifth of which are wrong, and clusters that use them."""
    iris = load_iris()
    petals, species = iris.data[:, 2:], iris.target
    some, y = np.random.default_rng(2).permutation(150)[:30], np.full(150, -1)
    y[some] = species[some]
    wrong = some[:6]
    y[wrong] = (species[wrong] + 1) % 3
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained", sharey=True)
    axes[0].scatter(*petals[y < 0].T, s=8, color="0.75", lw=0)
    scatter(axes[0], petals, y, size=26)
    axes[0].set(title="30 labels, six of them wrong", ylabel=PETALS[1])
    for ax, model in zip(axes[1:], (MixtureEM(3), CECIB(3)), strict=True):
        labels = model.set_params(random_state=0).fit(petals, y).labels_
        agreement = adjusted_rand_score(species, labels)
        order = np.argsort([species[labels == c].mean() for c in np.unique(labels)])
        scatter(ax, petals, np.argsort(order)[labels])
        ax.set(title=f"{type(model).__name__}: ARI {agreement:.2f}")
    for ax in axes:
        ax.scatter(*petals[wrong].T, s=70, facecolor="none", edgecolor="#000000", lw=1)
        ax.set(xlabel=PETALS[0])
    save(figure, "semi-supervised")


def significance() -> None:
    """Plot held-out scores of tests of two clusters of irises, without and with known species."""
    iris = load_iris()
    model = ConditionalMixture(2, n_init=12, random_state=0)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for ax, known in zip(axes, (None, iris.target_names[iris.target]), strict=True):
        result = evidence.test(model, iris.data, known=known, random_state=0)
        print(result)
        result.plot(ax)
        title = "nothing known" if known is None else "species known"
        p = (result.p_structure_, result.p_gap_)
        structure, gap = ("< 0.001" if value < 0.001 else f"= {value:.2f}" for value in p)
        ax.set_title(f"Irises, {title}: p_structure_ {structure}, p_gap_ {gap}", fontsize=10)
        if known is None:
            ax.set_yticks([0.4], ["n = 150"])
    save(figure, "significance", dpi=100)


def number_of_clusters() -> None:
    """Plot held-out log-likelihood, description length and posterior of irises by number."""
    flowers = load_iris().data
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    held_out = evidence.n_clusters(MixtureEM(), flowers, random_state=0)
    table = held_out.table
    print(held_out, table, sep="\n")
    left.errorbar(
        table.index, -table["below_best"], table["standard_error"],
        fmt="o-", color=COLOURS[0], capsize=3,
    )  # fmt: skip
    left.set(
        title="evidence.n_clusters (MixtureEM)", ylabel="held-out log likelihood - best (nats)"
    )
    model = MDLConstrained("auto", random_state=0).fit(flowers)
    lengths = model.selection_.groupby("n_clusters")["objective"].min()
    print(lengths)
    middle.plot(lengths.index, lengths, "o-", color=COLOURS[1])
    middle.set(title='MDLConstrained("auto")', ylabel="description length (nats)")
    sampled = MDLMixture(random_state=0).fit(flowers)
    for offset, (name, colour) in enumerate((("components", "0.6"), ("labels", COLOURS[2]))):
        numbers = posterior.n_clusters(sampled.posterior_[name])["probability"]
        print(sampled.covariance_, name, numbers.round(3).to_dict())
        label = "components" if name == "components" else "clusters"
        right.bar(numbers.index + 0.4 * offset - 0.2, numbers, 0.38, color=colour, label=label)
    right.legend()
    right.set(
        title="posterior.n_clusters (MDLMixture)",
        ylabel="probability",
        xlim=(0.5, 6.5),
        ylim=(0, 1.3),
    )
    right.set_yticks(np.linspace(0, 1, 6))
    for ax in (left, middle, right):
        ax.set(xlabel="number of clusters", xticks=range(1, 11 if ax is middle else 7))
    save(figure, "number-of-clusters")


if __name__ == "__main__":
    plot_selected(
        bayesian_mixtures, description_length, semi_supervised, significance, number_of_clusters
    )
