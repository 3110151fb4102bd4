"""Figure layout: panels sized in inches by their names and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nrprob.plotting.style import extent, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GAP = 0.3  # inches between parts
_MARGIN = 0.15
_NAME = 28  # letters of a row's or a column's name


@dataclass(frozen=True)
class Place:
    """Where a part is drawn: inches from the left and from the top of its figure."""

    figure: Figure
    left: float
    top: float

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes, inches from the corner of the part."""
        across, down = self.figure.get_size_inches()
        low = down - self.top - top - height
        box = ((self.left + left) / across, low / down, width / across, height / down)
        return self.figure.add_axes(box)

    def write(self, text: str, left: float, top: float, **style: Any) -> None:
        """Text, the middle of whose upper edge is inches from the corner of the part."""
        across, down = self.figure.get_size_inches()
        at = (self.left + left) / across, 1 - (self.top + top) / down
        self.figure.text(*at, text, ha="center", va="top", parse_math=False, **style)


@dataclass(frozen=True)
class Part:
    """A part of a figure: its inches, and what draws it."""

    width: float
    height: float
    draw: Callable[[Place], None]


def compose(parts: Sequence[Part], most: float, title: str = "") -> Figure:
    """Place parts in a new figure, in lines of at most so many inches if each fits in them."""
    import matplotlib.pyplot as plt

    lines: list[list[Part]] = [[]]
    for part in parts:
        if lines[-1] and _width([*lines[-1], part]) > most:
            lines.append([])
        lines[-1].append(part)
    head, head_size = extent(title, 13)
    width = max(head, *map(_width, lines)) + 2 * _MARGIN
    heights = [max(part.height for part in line) for line in lines]
    top = _MARGIN + (head_size + 0.1 if title else 0)
    height = top + sum(heights) + _GAP * (len(lines) - 1) + _MARGIN
    # Places are given, so that no layout is sought that names may be too long for.
    figure = plt.figure(figsize=(width, height), layout="none")
    if title:
        Place(figure, 0, 0).write(title, width / 2, _MARGIN, fontsize=13, fontweight="bold")
    for line, tall in zip(lines, heights, strict=True):
        left = (width - _width(line)) / 2
        for part in line:
            part.draw(Place(figure, left, top))
            left += part.width + _GAP
        top += tall + _GAP
    return figure


def _width(line: Sequence[Part]) -> float:
    return sum(part.width for part in line) + _GAP * (len(line) - 1)


@dataclass(frozen=True)
class Grid:
    """Names of the rows and columns of a heat map, and the inches that they take.

    Attributes
    ----------
    rows, columns : names as they are written
    cell : width and height of a cell
    size : of the names, in points
    turned : whether names of columns are written aslant, as they are wider than a cell
    left, below : inches for names of rows, with what slanting ones of columns take to the left of
        the cells, and for those of columns
    """

    rows: Sequence[str]
    columns: Sequence[str]
    cell: tuple[float, float]
    size: float
    turned: bool
    left: float
    below: float

    @property
    def body(self) -> tuple[float, float]:
        """Width and height of all cells."""
        return self.cell[0] * len(self.columns), self.cell[1] * max(len(self.rows), 1)

    def label(self, ax: Axes) -> None:
        """Write the names beside the cells."""
        size = min(self.size, 72 * self.cell[1] / 1.2)
        ax.set_yticks(range(len(self.rows)), self.rows, fontsize=size, parse_math=False)
        across: dict[str, Any] = {"fontsize": self.size}
        if self.turned:
            across |= {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
            across["fontsize"] = min(self.size, 72 * self.cell[0] / 1.7)
        ax.set_xticks(range(len(self.columns)), self.columns, parse_math=False, **across)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)


def above_rest(names: Sequence[str], width: int, lines: int) -> list[str]:
    """Names whose first line is shortened, above what is not."""
    heads, _, ends = zip(*(name.partition("\n") for name in names), strict=True)
    cut = shortened(heads, width, lines)
    return [f"{a}\n{b}" if b else a for a, b in zip(cut, ends, strict=True)]


def beside(one: Part, other: Part) -> Part:
    """Two parts as one, to be in the same line."""

    def draw(place: Place) -> None:
        one.draw(place)
        other.draw(Place(place.figure, place.left + one.width + _GAP, place.top))

    return Part(_width([one, other]), max(one.height, other.height), draw)


def grid(
    rows: Sequence[str],
    columns: Sequence[str],
    cell: tuple[float, float],
    size: float = 9,
    letters: int = _NAME,
) -> Grid:
    """Names of a heat map with cells of a width and a height; see `above_rest` for columns."""
    rows, wide = shortened(rows, letters, 1), above_rest(columns, letters, 1)
    turned = max(extent(name, size)[0] for name in wide) + 0.08 > cell[0]
    if turned:
        wide = [name.replace("\n", ", ") for name in wide]
    widths, heights = zip(*(extent(name, size) for name in wide), strict=True)
    left = max((extent(name, size)[0] + 0.08 for name in rows), default=0.0)
    if not turned:
        return Grid(rows, wide, cell, size, False, left, max(heights) + 0.08)
    out = max(0.71 * (w + size / 72) - cell[0] * (i + 0.5) for i, w in enumerate(widths))
    return Grid(
        rows, wide, cell, size, True, max(left, out), 0.71 * (max(widths) + size / 72) + 0.1
    )


def fitted(rows: Sequence[str], columns: Sequence[str], ax: Axes) -> Grid:
    """Names of a heat map, and cells, that axes have room for."""
    box, dots = ax.get_window_extent(), ax.figure.dpi
    width, height = box.width / dots, box.height / dots
    for letters in (28, 20, 14, 10):
        result = grid(rows, columns, (width / len(columns), 1.0), 9, letters)
        if result.left <= width / 2 and result.below <= height / 2:
            break
    # A layout takes the place of names from the axes.
    managed = ax.figure.get_layout_engine() is not None
    left, below = (result.left, result.below) if managed else (0.0, 0.0)
    across, down = max(width - left, width / 4), max(height - below, height / 4)
    return grid(rows, columns, (across / len(columns), down / max(len(rows), 1)), 9, letters)
