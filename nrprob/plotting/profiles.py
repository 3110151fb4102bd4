"""Heat maps of features by group on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.plotting.layout import Grid, Part, Place, beside, grid
from nrprob.plotting.style import extent, ink, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Side = tuple[str, np.ndarray, Sequence[str]]  # title, means (groups, features), names of groups

_SIGNED = "PuOr_r"
_NUMBERED = 8  # groups up to which values are written in a heat map
_FEATURE = 0.26  # inches of a line


def scale(sides: Sequence[Side]) -> float:
    """The scale that heat maps have in common."""
    return max(*(float(np.abs(profiles).max()) for _, profiles, _ in sides), 1e-9)


def profiles_of(sides: Sequence[Side], features: Sequence[str]) -> list[Part]:
    """Heat maps of features by group: beside each other, or one by one where they are wide."""
    top = scale(sides)
    grids = [
        grid(features, names, (0.46 if len(names) <= _NUMBERED else 0.34, _FEATURE), 9, 24)
        for _, _, names in sides
    ]
    parts = [
        _profile(result, profiles, short(head, 44), top)
        for result, (head, profiles, _) in zip(grids, sides, strict=True)
    ]
    return [*parts[:-1], beside(parts[-1], _bar(top, _FEATURE * len(features)))]


def _profile(result: Grid, profiles: np.ndarray, head: str, top: float) -> Part:
    """Heat map, one row per feature and one column per group."""
    above, (across, down) = extent(head, 11)[1] + 0.08, result.body
    # A title that is wider than its heat map widens the part.
    width = max(result.left + across, extent(head, 11)[0])

    def draw(place: Place) -> None:
        place.write(head, width / 2, 0, fontsize=11)
        left = (width - result.left - across) / 2 + result.left
        draw_profile(place.axes(left, above, across, down), result, profiles, top)

    return Part(width, above + down + result.below, draw)


def draw_profile(ax: Axes, result: Grid, profiles: np.ndarray, top: float) -> None:
    """Draw a heat map, with as many numbers as its cells have room for."""
    from matplotlib import colormaps

    ax.imshow(profiles.T, cmap=_SIGNED, vmin=-top, vmax=top, aspect="auto")
    result.label(ax)
    room = np.less_equal(extent("+0.0", 8), result.cell).all()
    for (j, i), value in np.ndenumerate(profiles):
        if len(profiles) <= _NUMBERED and room:
            dye = ink(colormaps[_SIGNED]((value / top + 1) / 2))
            ax.text(j, i, f"{value:+z.1f}", ha="center", va="center", fontsize=8, color=dye)


def draw_bar(figure: Any, top: float, **where: Any) -> None:
    """What colours of heat maps stand for."""
    from matplotlib.cm import ScalarMappable

    colours = ScalarMappable(cmap=_SIGNED)
    colours.set_clim(-top, top)
    bar = figure.colorbar(colours, **where)
    bar.set_label("standard deviations\nfrom the mean", fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _bar(top: float, height: float) -> Part:
    height = max(height, 1.6)

    def draw(place: Place) -> None:
        draw_bar(place.figure, top, cax=place.axes(0, 0.3, 0.18, height))

    return Part(1.1, height + 0.3, draw)
