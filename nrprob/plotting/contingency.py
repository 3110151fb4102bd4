"""How often found clusters meet known groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.plotting.groups import named
from nrprob.plotting.style import SHARES
from nrprob.statistics.groups import cross_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_contingency(
    labels: Any,
    known: Any,
    ax: Axes | None = None,
    *,
    labels_name: str = "clusters",
    known_name: str = "known groups",
    show_share: bool | None = None,
) -> Axes:
    """Draw how often each found cluster meets each known group, as an annotated heat map.

    Parameters
    ----------
    labels : array of shape (n_samples,)
        Found clusters; the columns.
    known : array of shape (n_samples,)
        Known groups; the rows.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure when it is None.
    labels_name, known_name : str, default="clusters", "known groups"
        Names of the axes.
    show_share : bool, optional
        Print each count's share of its known group under the count. By default, where the table is
        small enough to stay legible. Rows of equal shares mean that the clustering says nothing
        about the known groups.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on. Colour is the share within the known group, the number is the count.

    Examples
    --------
    >>> from nrprob.plotting import plot_contingency
    >>> ax = plot_contingency([0, 0, 1, 1, 1], [0, 1, 0, 1, 1])
    >>> ax.images[0].get_array().shape
    (2, 2)
    """
    import matplotlib.pyplot as plt

    rows, row_codes = named(known, "known")
    columns, column_codes = named(labels, "labels", "cluster", len(row_codes))
    table = cross_table(row_codes, column_codes, (len(rows), len(columns)))
    share = table / table.sum(axis=1, keepdims=True)
    if show_share is None:
        show_share = table.size <= 40

    if ax is None:
        size = (1.6 + 0.85 * len(columns), 1.4 + 0.6 * len(rows))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    ax.imshow(share, cmap=SHARES, vmin=0, vmax=1, aspect="auto")
    font = 10 if table.size <= 60 else 7
    for (i, j), count in np.ndenumerate(table):
        text = f"{count}\n{100 * share[i, j]:.0f} %" if show_share else f"{count}"
        # Cividis is dark below the middle and light above it.
        colour = "white" if share[i, j] < 0.55 else "black"
        ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=font)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    if len(columns) > 5:
        ax.tick_params(axis="x", rotation=45)
    ax.set_xlabel(labels_name)
    ax.set_ylabel(known_name)
    ax.tick_params(length=0)
    ax.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
    ax.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=2)
    ax.tick_params(which="minor", length=0)
    ax.spines[:].set_visible(False)
    return ax
