"""Plot co-clustering probabilities, and the posterior of the number of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.plotting.style import BAR, SHARES, check_axes
from nrprob.posterior.convergence import n_clusters
from nrprob.posterior.draws import as_draws, canonical
from nrprob.posterior.estimates import given_or_estimated
from nrprob.posterior.similarity import similarity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_coclustering", "plot_n_clusters"]

_MAX_NAMES = 20
"""Maximum number of bars with a text."""
_MAX_GRID = 12
"""Maximum number of clusters with grid lines."""
_LINES = 24
"""Number of lines of text that fit along the vertical axis."""


def _order(together: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order of the samples, and order of the clusters, in a heat map.

    ``together`` (n, n) are co-clustering probabilities, and ``codes`` (n,) clusters. Similar
    clusters are adjacent. Within a cluster, the most certain members come first.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    sizes = np.bincount(codes)
    onehot = np.eye(len(sizes))[codes] / sizes
    clusters = np.arange(len(sizes))
    if len(sizes) > 2:
        between = onehot.T @ together @ onehot
        np.fill_diagonal(between, 1.0)
        apart = squareform(1 - (between + between.T) / 2, checks=False)
        clusters = leaves_list(linkage(apart, "average", optimal_ordering=True))
    place = np.argsort(clusters)[codes]
    sureness = (together @ onehot)[np.arange(len(codes)), codes]
    return np.lexsort((-sureness, place)), clusters


def plot_coclustering(
    draws: Any,
    labels: Any = None,
    ax: Axes | None = None,
    *,
    weights: Any = None,
    random_state: Any = None,
) -> Axes:
    """Plot the co-clustering probabilities as a heat map, ordered by a partition.

    Parameters
    ----------
    draws : array of int of shape (chain, draw, observation) or (draw, observation)
        Cluster labels, which may switch between draws.
    labels : array of int of shape (n_samples,), optional
        Partition that orders the samples; `point_estimate` by default.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default in a new figure.
    weights : array of shape (chain, draw) or (draw,), optional
        Weights of the draws, of any scale; equal by default.
    random_state : int, RandomState instance or None, default=None
        Seed of the search for a partition.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. White lines are the boundaries of the clusters (with more than 12 clusters, their
        outlines). Within a cluster, the samples with the most certain membership come first, and
        clusters with high co-clustering probabilities are adjacent. Names that would overlap are
        omitted.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If shapes do not match, or there are more than 20,000 samples.

    Examples
    --------
    >>> from nrprob.posterior import plot_coclustering
    >>> ax = plot_coclustering([[0, 0, 1], [5, 2, 2], [1, 1, 1], [0, 0, 3]], [0, 0, 1])
    >>> ax.images[0].get_array().shape
    (3, 3)
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    check_axes(ax)
    checked = as_draws(draws, weights)
    n = checked.n_samples
    names = given_or_estimated(checked, labels, "labels", random_state)
    codes = canonical(names[None])[0].astype(np.int64)
    own_names = np.empty(codes.max() + 1, dtype=names.dtype)
    own_names[codes] = names
    together = similarity(checked, equal=weights is None)
    rows, clusters = _order(together, codes)

    if ax is None:
        _, ax = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
    # Many samples share a pixel, which shows their mean.
    image = ax.imshow(
        together[np.ix_(rows, rows)],
        cmap=SHARES,
        vmin=0,
        vmax=1,
        interpolation="auto",
        interpolation_stage="data",
    )
    sizes = np.bincount(codes)[clusters]
    ends = np.cumsum(sizes)
    if len(sizes) <= _MAX_GRID:
        for edge in ends[:-1] - 0.5:
            ax.axhline(edge, color="white", linewidth=0.8)
            ax.axvline(edge, color="white", linewidth=0.8)
    else:  # a grid would hide the probabilities between clusters
        for end, size in zip(ends, sizes, strict=True):
            corner = (end - size - 0.5, end - size - 0.5)
            ax.add_patch(Rectangle(corner, size, size, fill=False, ec="white", lw=0.8))
    middles = ends - sizes / 2 - 0.5
    named = [0]
    for i in range(1, len(sizes)):  # names closer than a line of text would overlap
        if (middles[i] - middles[named[-1]]) * _LINES >= n:
            named.append(i)
    texts = [f"cluster {own_names[clusters[i]]} (n = {sizes[i]})" for i in named]
    ax.set_yticks(middles[named], texts, fontsize=8)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.set_xlabel("samples, in the same order")
    ax.spines[:].set_visible(False)
    ax.figure.colorbar(image, ax=ax, label="probability of sharing a cluster", shrink=0.9)
    return ax


def plot_n_clusters(draws: Any, ax: Axes | None = None) -> Axes:
    """Plot the posterior distribution of the number of clusters.

    Parameters
    ----------
    draws : fitted `nrprob.MDLMixture`, or array of int of shape (..., draw, observation)
        A fit, or cluster labels, which may switch between draws. `n_clusters` says which clusters
        count.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes: bars are probabilities, and error bars are two Monte Carlo standard errors on both
        sides.

    Raises
    ------
    TypeError
        If labels are not whole numbers.
    ValueError
        If `draws` has other axes or is empty.

    Examples
    --------
    >>> from nrprob.posterior import plot_n_clusters
    >>> ax = plot_n_clusters([[0, 0, 1], [5, 2, 2], [1, 1, 1], [0, 0, 3]])
    >>> len(ax.patches)
    2
    """
    import matplotlib.pyplot as plt

    check_axes(ax)
    table = n_clusters(draws)
    p = table["probability"].to_numpy()
    k = table.index.to_numpy()
    error = 2 * np.nan_to_num(table["mcse"].to_numpy())
    if ax is None:
        width = max(3.2, 1.4 + 0.55 * (k.max() - k.min() + 1))
        _, ax = plt.subplots(figsize=(min(width, 12.0), 3.2), layout="constrained")
    whiskers = np.array([np.minimum(error, p), np.minimum(error, 1 - p)])
    ax.bar(k, p, width=0.8, color=BAR, yerr=whiskers, ecolor="black", capsize=3)
    if len(k) <= _MAX_NAMES:
        for x, y, up in zip(k, p, whiskers[1], strict=True):
            text = f"{y:.2f}" if y >= 0.005 else "<0.01"
            ax.annotate(text, (x, y + up), (0, 3), textcoords="offset points", ha="center")
        ax.set_xticks(np.arange(k.min(), k.max() + 1) if np.ptp(k) < _MAX_NAMES else k)
    ax.set_ylim(0, max(float((p + whiskers[1]).max()) * 1.15, 0.05))
    ax.set_xlabel("number of clusters")
    ax.set_ylabel("posterior probability")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
