"""Plot the contingency table of clusters and known groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import check_flag
from nrprob.plotting.groups import check_texts, named
from nrprob.plotting.layout import Grid, fitted, grid
from nrprob.plotting.style import SHARES, check_axes, extent, ink, short
from nrprob.statistics.groups import cross_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZES = (10, 9, 8, 7, 6)  # of numbers, in points
_LEVEL = 6.5  # inches of columns up to which they are made as wide as their names


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
        Where to draw; a new figure of the size that names and numbers take when it is None. In
        smaller axes numbers are smaller, and without shares, and at last left to the colours.
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
        Long names are cut in their middle.

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
    table = Table.of(labels, known)
    if ax is None:
        shares = table.counts.size <= 40 if show_share is None else show_share
        result = table.grid(shares)
        width, height = result.body
        height = max(height, 1.0)  # of which the name beside it has need
        size = (result.left + width + 0.5, result.below + height + 0.6)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    else:
        result = fitted(table.rows, table.columns, ax)
        width, height = result.body
    table.draw(ax, result, show_share)
    ax.set_xlabel(short(labels_name, _letters(width)), parse_math=False)
    ax.set_ylabel(short(known_name, _letters(height)), parse_math=False)
    return ax


@dataclass(frozen=True)
class Table:
    """Numbers of rows by known group and cluster, and what these are called."""

    rows: Sequence[str]
    columns: Sequence[str]
    counts: np.ndarray

    @classmethod
    def of(cls, labels: Any, known: Any) -> Table:
        """Cross found clusters, the columns, with known groups."""
        rows, row_codes = named(known, "known")
        columns, column_codes = named(labels, "labels", "cluster", len(row_codes))
        counts = cross_table(row_codes, column_codes, (len(rows), len(columns)))
        return cls(rows, columns, counts)

    @property
    def shares(self) -> np.ndarray:
        """Shares of every known group."""
        return self.counts / self.counts.sum(axis=1, keepdims=True)

    def texts(self, shares: bool) -> np.ndarray:
        """What is written in the cells: numbers of rows, with or without shares."""
        cells = np.empty(self.counts.shape, object)
        for at, count in np.ndenumerate(self.counts):
            cells[at] = f"{count}\n{100 * self.shares[at]:.0f} %" if shares else f"{count}"
        return cells

    def grid(self, shares: bool) -> Grid:
        """The table with cells as large as what is written in them."""
        width, height = _largest(self.texts(shares), _SIZES[0])
        names = max(extent(name, 9)[0] for name in self.columns) + 0.12
        # Names that are a little wider than numbers are better read when they are level.
        if names * len(self.columns) <= _LEVEL:
            width = max(width, names)
        return grid(self.rows, self.columns, (max(width + 0.12, 0.5), height + 0.12))

    def draw(self, ax: Axes, result: Grid, show_share: bool | None) -> None:
        """Draw the table with as large and as many numbers as its cells have room for."""
        from matplotlib import colormaps

        ax.imshow(self.shares, cmap=SHARES, vmin=0, vmax=1, aspect="auto")
        small = self.counts.size <= 40
        kinds = [*dict.fromkeys([small, False])] if show_share is None else [show_share]
        choices = [(self.texts(kind), size) for kind in kinds for size in _SIZES]
        fitting = (c for c in choices if np.all(np.less_equal(_largest(*c), result.cell)))
        # Where not even counts fit, colours say it alone, unless numbers are asked for.
        texts, size = next(fitting, choices[-1] if show_share else (self.texts(False), 0))
        for (i, j), share in np.ndenumerate(self.shares):
            if size:
                dye = ink(colormaps[SHARES](share))
                ax.text(j, i, texts[i, j], ha="center", va="center", color=dye, fontsize=size)
        result.label(ax)
        ax.set_xticks(np.arange(1, len(self.columns)) - 0.5, minor=True)
        ax.set_yticks(np.arange(1, len(self.rows)) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=2)
        ax.tick_params(which="minor", length=0)


def _letters(room: float) -> int:
    """How many letters of an axis' name have room in so many inches."""
    return max(int(room / 0.09), 10)


def _largest(texts: np.ndarray, size: float) -> tuple[float, float]:
    """Inches of the widest and of the highest text."""
    widths, heights = zip(*(extent(text, size) for text in {*texts.ravel()}), strict=True)
    return max(widths), max(heights)
