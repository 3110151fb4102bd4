"""Plot the contingency table of clusters and known groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import check_flag
from nrprob.plotting.groups import check_texts, named_labels
from nrprob.plotting.layout import Grid, fit_label_grid, label_grid
from nrprob.plotting.style import SHARES, check_axes, shorten_text, text_colour, text_extent
from nrprob.statistics.groups import cross_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZES = (10, 9, 8, 7, 6)  # font sizes of numbers, in points
_MAX_WIDTH = 6.5  # maximum width in inches of a table whose columns are as wide as their names


def plot_contingency(
    labels: Any,
    known: Any,
    ax: Axes | None = None,
    *,
    labels_name: str = "clusters",
    known_name: str = "known groups",
    show_share: bool | None = None,
) -> Axes:
    """Plot the contingency table of clusters and known groups as an annotated heat map.

    Parameters
    ----------
    labels : array of shape (n_samples,)
        Clusters: the columns.
    known : array of shape (n_samples,)
        Known groups: the rows.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default in a new figure, whose size depends on names and numbers. In
        small axes, numbers are smaller, have no shares, or are omitted.
    labels_name, known_name : str, default="clusters", "known groups"
        Names of the axes.
    show_share : bool, optional
        Whether to write below every count its share of the known group; by default for small
        tables. If all rows of the table have the same shares, clusters and known groups are
        independent.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. Colours show the share within the known group, and numbers show the count. Long
        names are shortened in the middle.

    See Also
    --------
    nrprob.metrics.contingency : The table as an array.
    nrprob.metrics.independence_test : Test of independence.

    Examples
    --------
    >>> from nrprob.plotting import plot_contingency
    >>> ax = plot_contingency([0, 0, 1, 1, 1], [0, 1, 0, 1, 1])
    >>> ax.images[0].get_array().shape
    (2, 2)
    """
    import matplotlib.pyplot as plt

    check_axes(ax)
    check_texts(labels_name=labels_name, known_name=known_name)
    if show_share is not None:
        check_flag("show_share", show_share)
    table = Table.from_labels(labels, known)
    if ax is None:
        shares = table.counts.size <= 40 if show_share is None else show_share
        grid = table.make_grid(shares)
        width, height = grid.body_size
        height = max(height, 1.0)  # room for the label of the axis
        size = (grid.left + width + 0.5, grid.below + height + 0.6)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    else:
        grid = fit_label_grid(table.rows, table.columns, ax)
        width, height = grid.body_size
    table.draw_on(ax, grid, show_share)
    ax.set_xlabel(shorten_text(labels_name, _max_letters(width)), parse_math=False)
    ax.set_ylabel(shorten_text(known_name, _max_letters(height)), parse_math=False)
    return ax


@dataclass(frozen=True)
class Table:
    """Contingency table of r known groups and c clusters.

    ``rows`` are the names of the groups, ``columns`` the names of the clusters, and ``counts``
    (r, c) the numbers of samples.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    counts: np.ndarray

    @classmethod
    def from_labels(cls, labels: Any, known: Any) -> Table:
        """Count samples by known group (rows) and cluster (columns)."""
        rows, row_codes = named_labels(known, "known")
        columns, column_codes = named_labels(labels, "labels", "cluster", len(row_codes))
        counts = cross_table(row_codes, column_codes, (len(rows), len(columns)))
        return cls(rows, columns, counts)

    @property
    def shares(self) -> np.ndarray:
        """Share (r, c) of every cluster within every known group."""
        return self.counts / self.counts.sum(axis=1, keepdims=True)

    def cell_texts(self, shares: bool) -> np.ndarray:
        """Texts (r, c) of the cells of the table: counts, and also shares if ``shares`` is True."""
        cells = np.empty(self.counts.shape, object)
        for index, count in np.ndenumerate(self.counts):
            share = f"\n{100 * self.shares[index]:.0f} %" if shares else ""
            cells[index] = f"{count}{share}"
        return cells

    def make_grid(self, shares: bool) -> Grid:
        """Make the grid of the table, with cells as large as their texts.

        ``shares`` states whether the texts have shares.
        """
        width, height = _largest_extent(self.cell_texts(shares), _SIZES[0])
        names = max(text_extent(name, 9)[0] for name in self.columns) + 0.12
        # Widen cells for horizontal names, unless the table becomes too wide.
        if names * len(self.columns) <= _MAX_WIDTH:
            width = max(width, names)
        return label_grid(self.rows, self.columns, (max(width + 0.12, 0.5), height + 0.12))

    def draw_on(self, ax: Axes, grid: Grid, show_share: bool | None) -> None:
        """Draw the table with the largest texts that fit into its cells.

        ``grid`` has the size of the cells. See `plot_contingency` for ``show_share``.
        """
        from matplotlib import colormaps

        ax.imshow(self.shares, cmap=SHARES, vmin=0, vmax=1, aspect="auto")
        small = self.counts.size <= 40
        kinds = [*dict.fromkeys([small, False])] if show_share is None else [show_share]
        choices = [(self.cell_texts(kind), size) for kind in kinds for size in _SIZES]
        fitting = (c for c in choices if np.all(np.less_equal(_largest_extent(*c), grid.cell)))
        # If not even counts fit, only colours are shown, unless shares are requested.
        texts, size = next(fitting, choices[-1] if show_share else (self.cell_texts(False), 0))
        for (i, j), share in np.ndenumerate(self.shares):
            if size:
                dye = text_colour(colormaps[SHARES](share))
                ax.text(j, i, texts[i, j], ha="center", va="center", color=dye, fontsize=size)
        grid.add_labels(ax)
        ax.set_xticks(np.arange(1, len(self.columns)) - 0.5, minor=True)
        ax.set_yticks(np.arange(1, len(self.rows)) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=2)
        ax.tick_params(which="minor", length=0)


def _max_letters(width: float) -> int:
    """Maximum number of letters of an axis label that is at most ``width`` inches long."""
    return max(int(width / 0.09), 10)


def _largest_extent(texts: np.ndarray, size: float) -> tuple[float, float]:
    """Width of the widest text and height of the tallest text, in inches.

    ``size`` is the font size in points.
    """
    widths, heights = zip(*(text_extent(text, size) for text in {*texts.ravel()}), strict=True)
    return max(widths), max(heights)
