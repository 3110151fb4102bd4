"""Heat maps of the mean features of the groups of labelings, on a common colour scale.

A `Side` is a labeling to plot: the title, the means (groups, features) of the features in every
group, and the names of the groups. The means are called profiles. ``top`` is the end of the colour
scale, which is symmetric around 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.plotting.layout import Grid, Part, Position, label_grid, side_by_side
from nrprob.plotting.style import shorten_text, text_colour, text_extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Side = tuple[str, np.ndarray, Sequence[str]]  # title, means (groups, features), names of groups

_SIGNED = "PuOr_r"  # colour map of positive and negative values
_MAX_NUMBERED = 8  # maximum number of groups of a heat map with written values
_LINE_HEIGHT = 0.26  # height of a feature in inches


def common_scale(sides: Sequence[Side]) -> float:
    """End of the common colour scale of several labelings: their largest absolute mean."""
    return max(*(float(np.abs(profiles).max()) for _, profiles, _ in sides), 1e-9)


def profiles_of(sides: Sequence[Side], features: Sequence[str]) -> list[Part]:
    """Make one figure part per labeling, with a heat map of the features, and the colour bar.

    ``features`` are the names of the features.
    """
    top = common_scale(sides)
    grids = [
        label_grid(
            features, names, (0.46 if len(names) <= _MAX_NUMBERED else 0.34, _LINE_HEIGHT), 9, 24
        )
        for _, _, names in sides
    ]
    parts = [
        _profile_part(grid, profiles, shorten_text(head, 44), top)
        for grid, (head, profiles, _) in zip(grids, sides, strict=True)
    ]
    return [
        *parts[:-1],
        side_by_side(parts[-1], _colour_bar_part(top, _LINE_HEIGHT * len(features))),
    ]


def _profile_part(grid: Grid, profiles: np.ndarray, head: str, top: float) -> Part:
    """Make a figure part with a heat map, one row per feature and one column per group.

    ``grid`` has the size of the cells, ``profiles`` (groups, features) the values, and ``head`` is
    the title.
    """
    above, (across, down) = text_extent(head, 11)[1] + 0.08, grid.body_size
    width = max(grid.left + across, text_extent(head, 11)[0])

    def draw_part(position: Position) -> None:
        position.add_text(head, width / 2, 0, fontsize=11)
        left = (width - grid.left - across) / 2 + grid.left
        draw_profile(position.add_axes(left, above, across, down), grid, profiles, top)

    return Part(width, above + down + grid.below, draw_part)


def draw_profile(ax: Axes, grid: Grid, profiles: np.ndarray, top: float) -> None:
    """Draw a heat map of ``profiles`` (groups, features), with numbers if they fit into the cells.

    ``grid`` has the size of the cells and the names, and ``top`` is the end of the colour scale.
    """
    from matplotlib import colormaps

    ax.imshow(profiles.T, cmap=_SIGNED, vmin=-top, vmax=top, aspect="auto")
    grid.add_labels(ax)
    room = np.less_equal(text_extent("+0.0", 8), grid.cell).all()
    for (j, i), value in np.ndenumerate(profiles):
        if len(profiles) <= _MAX_NUMBERED and room:
            dye = text_colour(colormaps[_SIGNED]((value / top + 1) / 2))
            ax.text(j, i, f"{value:+z.1f}", ha="center", va="center", fontsize=8, color=dye)


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
