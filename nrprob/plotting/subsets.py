"""Plot the members of clusters by subset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import MOST, check_fitted, check_number
from nrprob.plotting.groups import check_names
from nrprob.plotting.style import SHARES, check_axes, text_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_members(
    model: Any,
    row_names: Sequence[Any] | None = None,
    *,
    n: int = 5,
    ax: Axes | None = None,
) -> Axes:
    """Plot the members of every cluster in every subset, as a table of names.

    Parameters
    ----------
    model : CrossPartition
        A fitted estimator.
    row_names : sequence of length n_samples, optional
        Names of the samples; by default their indices.
    n : int, default=5
        Maximum number of members in an entry of the table. Members of cluster c are the samples x
        for which c has the largest membership p(c|x). In the table, members are in descending order
        of p(c|x) p(w|x), where p(w|x) is the share of sample x in subset w.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes, with one row per cluster and one column per subset. Colour and number show p(c|w),
        the share of cluster c in subset w. A cluster that all subsets share has members in every
        column.

    Raises
    ------
    TypeError
        If ``model`` is not a fitted CrossPartition, or ``ax`` is not an Axes.
    ValueError
        If there is not one name per sample.

    See Also
    --------
    plot_hierarchy : Plot how clusters split.
    nrprob.CrossPartition : Clusters that subsets share.

    Examples
    --------
    >>> from nrprob import CrossPartition
    >>> from nrprob.datasets import make_cross_partition
    >>> from nrprob.plotting import plot_members
    >>> counts, labels = make_cross_partition(random_state=0)
    >>> model = CrossPartition(3).fit(counts, subsets=labels[:, 1])
    >>> ax = plot_members(model, n=3)
    """
    import matplotlib.pyplot as plt
    from matplotlib import colormaps

    check_axes(ax)
    check_number("n", n, low=0, high=MOST, integer=True)
    check_fitted("model", model, "a CrossPartition", "labels_", "subset_membership_")
    labels, share = model.labels_, model.subset_membership_
    names = np.arange(labels.size) if row_names is None else row_names
    names = check_names(names, "row_names", labels.size, "row")
    subsets = model.subsets_.tolist()
    clusters = np.flatnonzero(model.cluster_weights_ > 0)
    if ax is None:
        size = (1.5 + 1.9 * len(subsets), 1.2 + (0.5 + 0.16 * n) * clusters.size)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    ax.imshow(share[:, clusters].T, cmap=SHARES, vmin=0, vmax=1, aspect="auto")
    for i, c in enumerate(clusters.tolist()):
        for j, subset in enumerate(subsets):
            members = model.top_samples(c, subset, labels.size)
            members = members[labels[members] == c]
            listed = [names[row] for row in members[:n]]
            more = ["..."] if members.size > n else []
            colour = text_colour(colormaps[SHARES](share[j, c]))
            text = "\n".join([f"{100 * share[j, c]:.0f} %", *listed, *more])
            ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=8)
    ax.set_xticks(range(len(subsets)), [str(subset) for subset in subsets])
    ax.set_yticks(range(clusters.size), [f"cluster {c}" for c in clusters])
    ax.set_xlabel("subsets")
    return ax
