"""Heat maps of the mean features of the groups of labelings, on a common colour scale.

The means of a group are called its profile. ``top`` is the end of the colour scale, which is
symmetric around 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nrprob.plotting.layout import Grid, Part, Position, label_grid, side_by_side
from nrprob.plotting.style import shorten_text, text_colour, text_extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIGNED = "PuOr_r"  # colour map of positive and negative values
_MAX_NUMBERED = 8  # maximum number of groups of a heat map with written values
_LINE_HEIGHT = 0.26  # height of a feature in inches
_TEXT_SIZE = 8  # font size of written values in points


class Side(NamedTuple):
    """A labeling to plot.

    Attributes
    ----------
    title : title of the heat map
    profiles : (groups, features) means in standard deviations, which determine the colours
    names : names of the groups
    texts : (groups, features) texts of the means, which are written into the cells
    """

    title: str
    profiles: np.ndarray
    names: Sequence[str]
    texts: np.ndarray

    @property
    def is_numbered(self) -> bool:
        """Whether the groups are few enough for written values."""
        return len(self.names) <= _MAX_NUMBERED

    @property
    def text_size(self) -> np.ndarray:
        """Width and height in inches of the widest text."""
        sizes = [text_extent(text, _TEXT_SIZE) for text in {*self.texts.ravel().tolist()}]
        return np.max(sizes, axis=0, initial=0)


def common_scale(sides: Sequence[Side]) -> float:
    """End of the common colour scale of several labelings: their largest absolute mean."""
    return max(*(float(np.abs(side.profiles).max()) for side in sides), 1e-9)


def profiles_of(sides: Sequence[Side], features: Sequence[str]) -> list[Part]:
    """Make one figure part per labeling, with a heat map of the features, and the colour bar.

    ``features`` are the names of the features.
    """
    top = common_scale(sides)
    parts = []
    for side in sides:
        width = max(0.46, side.text_size[0] + 0.1) if side.is_numbered else 0.34
        grid = label_grid(features, side.names, (width, _LINE_HEIGHT), 9, 24)
        parts.append(_profile_part(grid, side, top))
    return [
        *parts[:-1],
        side_by_side(parts[-1], _colour_bar_part(top, _LINE_HEIGHT * len(features))),
    ]


def _profile_part(grid: Grid, side: Side, top: float) -> Part:
    """Make a figure part with a heat map, one row per feature and one column per group.

    ``grid`` has the size of the cells.
    """
    head = shorten_text(side.title, 44)
    above, (across, down) = text_extent(head, 11)[1] + 0.08, grid.body_size
    width = max(grid.left + across, text_extent(head, 11)[0])

    def draw_part(position: Position) -> None:
        position.add_text(head, width / 2, 0, fontsize=11)
        left = (width - grid.left - across) / 2 + grid.left
        draw_profile(position.add_axes(left, above, across, down), grid, side, top)

    return Part(width, above + down + grid.below, draw_part)


def draw_profile(ax: Axes, grid: Grid, side: Side, top: float) -> None:
    """Draw a heat map of the profiles, with the texts of the means if they fit into the cells.

    ``grid`` has the size of the cells and the names, and ``top`` is the end of the colour scale.
    """
    from matplotlib import colormaps

    ax.imshow(side.profiles.T, cmap=_SIGNED, vmin=-top, vmax=top, aspect="auto")
    grid.add_labels(ax)
    if not side.is_numbered or not np.less_equal(side.text_size, grid.cell).all():
        return
    for (j, i), value in np.ndenumerate(side.profiles):
        dye = text_colour(colormaps[_SIGNED]((value / top + 1) / 2))
        ax.text(
            j, i, side.texts[j, i], ha="center", va="center", fontsize=_TEXT_SIZE, color=dye,
            parse_math=False,
        )  # fmt: skip


def draw_bar(figure: Any, top: float, **position: Any) -> None:
    """Draw the colour bar of the heat maps, from ``-top`` to ``top``.

    ``position`` has the keyword arguments of `matplotlib.figure.Figure.colorbar` for the axes.
    """
    from matplotlib.cm import ScalarMappable

    colours = ScalarMappable(cmap=_SIGNED)
    colours.set_clim(-top, top)
    bar = figure.colorbar(colours, **position)
    bar.set_label("standard deviations\nfrom the mean", fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _colour_bar_part(top: float, height: float) -> Part:
    height = max(height, 1.6)

    def draw_part(position: Position) -> None:
        draw_bar(position.figure, top, cax=position.add_axes(0, 0.3, 0.18, height))

    return Part(1.1, height + 0.3, draw_part)
