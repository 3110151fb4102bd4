"""Plot the hierarchy of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import check_fitted
from nrprob.plotting.style import check_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_hierarchy(model: Any, ax: Axes | None = None) -> Axes:
    """Plot how clusters split, level by level.

    Parameters
    ----------
    model : CrossPartition, or IB or IBSI with ``solver="split"``
        A fitted estimator.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. Every circle is a cluster. The area and the number of a circle show the share of
        the cluster in the total weight of the samples. The darkness of a line is the share of the
        lower cluster that comes from the upper cluster. Labels on the left give the number of
        clusters and the inverse temperature of every level.

    Raises
    ------
    TypeError
        If ``model`` has no ``path_``, or ``ax`` is not an Axes.

    See Also
    --------
    plot_members : Plot the members of clusters of a `CrossPartition`.
    plot_by_n_clusters : Plot the objective of every level.

    Examples
    --------
    >>> from nrprob import CrossPartition
    >>> from nrprob.datasets import make_cross_partition
    >>> from nrprob.plotting import plot_hierarchy
    >>> counts, labels = make_cross_partition(random_state=0)
    >>> model = CrossPartition(3).fit(counts, subsets=labels[:, 1])
    >>> ax = plot_hierarchy(model)
    """
    import matplotlib.pyplot as plt

    check_axes(ax)
    check_fitted("model", model, 'CrossPartition, or IB or IBSI with solver="split"', "path_")
    levels = model.path_
    if ax is None:
        size = (2 + 0.8 * len(levels), 1 + 0.7 * len(levels))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    previous: np.ndarray | None = None
    for depth, level in enumerate(levels):
        centres = np.arange(level.n_clusters, dtype=float)
        if previous is not None:
            # Sort the clusters by the position of their parents, so that few lines cross.
            order = np.lexsort((-level.weights, previous[level.parents]))
            centres[order] = np.arange(level.n_clusters)
        centres -= (level.n_clusters - 1) / 2
        if previous is not None:
            # Draw lines by the share of every lower cluster that comes from every upper cluster.
            upper = levels[depth - 1].membership
            shares = level.membership.T @ upper
            shares /= np.maximum(level.membership.sum(0)[:, None], 1e-300)
            for (c, parent), part in np.ndenumerate(shares):
                if part > 0.01:
                    ends = [previous[parent], centres[c]], [1 - depth, -depth]
                    ax.plot(*ends, color="black", alpha=float(min(part, 1)), lw=1.5, zorder=1)
        ax.scatter(centres, np.full(centres.size, -depth), s=900 * level.weights + 60,
                   color="white", edgecolors="black", zorder=2)  # fmt: skip
        for x, weight in zip(centres, level.weights, strict=True):
            ax.text(x, -depth, f"{100 * weight:.0f}", ha="center", va="center", fontsize=7)
        previous = centres
    names = [
        f"{level.n_clusters} clusters\n$\\beta$ = {level.beta:.3g}" if depth else "1 cluster"
        for depth, level in enumerate(levels)
    ]
    ax.set_yticks([-depth for depth in range(len(levels))], names)
    ax.set_xticks([])
    ax.margins(0.1)
    ax.set_title("percent of the weight of the rows", fontsize=9)
    return ax
