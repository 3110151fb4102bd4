"""Figure layout: parts whose sizes depend on the lengths of names and numbers of items.

A `Part` is a panel of a figure, such as a heat map. A `Grid` has the sizes of the cells and of the
names of a heat map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nrprob.plotting.style import shorten_names, text_extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GAP = 0.3  # inches between parts
_MARGIN = 0.15  # inches around the figure
_MAX_LETTERS = 28  # maximum length of the name of a row or column


@dataclass(frozen=True)
class Position:
    """Position of a part: the figure, and inches from the left and from the top of the figure."""

    figure: Figure
    left: float
    top: float

    def add_axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes; all arguments are in inches, from the upper left corner of the part."""
        across, down = self.figure.get_size_inches()
        low = down - self.top - top - height
        box = ((self.left + left) / across, low / down, width / across, height / down)
        return self.figure.add_axes(box)

    def add_text(self, text: str, left: float, top: float, **style: Any) -> None:
        """Add a text, with the centre of its upper edge at ``left`` and ``top``.

        The position is in inches from the upper left corner of the part. ``style`` has keyword
        arguments of `matplotlib.figure.Figure.text`.
        """
        across, down = self.figure.get_size_inches()
        x, y = (self.left + left) / across, 1 - (self.top + top) / down
        self.figure.text(x, y, text, ha="center", va="top", parse_math=False, **style)


@dataclass(frozen=True)
class Part:
    """Part of a figure: width and height in inches, and the function that draws the part."""

    width: float
    height: float
    draw: Callable[[Position], None]


def compose_figure(
    parts: Sequence[Part], max_width: float, title: str = "", note: str = ""
) -> Figure:
    """Place parts side by side in a new figure, in rows of at most ``max_width`` inches.

    A part that is wider than ``max_width`` has a row of its own. ``note`` is a text below all
    parts.
    """
    import matplotlib.pyplot as plt

    lines: list[list[Part]] = [[]]
    for part in parts:
        if lines[-1] and _line_width([*lines[-1], part]) > max_width:
            lines.append([])
        lines[-1].append(part)
    head, head_size = text_extent(title, 13)
    foot, foot_size = text_extent(note, 9)
    width = max(head, foot, *map(_line_width, lines)) + 2 * _MARGIN
    heights = [max(part.height for part in line) for line in lines]
    top = _MARGIN + (head_size + 0.1 if title else 0)
    bottom = top + sum(heights) + _GAP * (len(lines) - 1) + (0.1 if note else 0)
    height = bottom + foot_size + _MARGIN
    # All positions are fixed, so no layout engine is needed.
    figure = plt.figure(figsize=(width, height), layout="none")
    if title:
        Position(figure, 0, 0).add_text(title, width / 2, _MARGIN, fontsize=13, fontweight="bold")
    for line, tall in zip(lines, heights, strict=True):
        left = (width - _line_width(line)) / 2
        for part in line:
            part.draw(Position(figure, left, top))
            left += part.width + _GAP
        top += tall + _GAP
    if note:
        Position(figure, 0, 0).add_text(note, width / 2, bottom, fontsize=9)
    return figure


def _line_width(line: Sequence[Part]) -> float:
    return sum(part.width for part in line) + _GAP * (len(line) - 1)


@dataclass(frozen=True)
class Grid:
    """Names of the rows and columns of a heat map, and the space that they need.

    Attributes
    ----------
    rows, columns : shortened names
    cell : width and height of a cell in inches
    size : font size of the names in points
    rotated : whether names of columns are rotated, since they are wider than a cell
    left, below : space in inches to the left of the cells, and below the cells
    """

    rows: Sequence[str]
    columns: Sequence[str]
    cell: tuple[float, float]
    size: float
    rotated: bool
    left: float
    below: float

    @property
    def body_size(self) -> tuple[float, float]:
        """Width and height in inches of all cells together."""
        return self.cell[0] * len(self.columns), self.cell[1] * max(len(self.rows), 1)

    def add_labels(self, ax: Axes) -> None:
        """Write the names of rows and columns as tick labels of the axes ``ax``."""
        size = min(self.size, 72 * self.cell[1] / 1.2)
        ax.set_yticks(range(len(self.rows)), self.rows, fontsize=size, parse_math=False)
        across: dict[str, Any] = {"fontsize": self.size}
        if self.rotated:
            across |= {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
            across["fontsize"] = min(self.size, 72 * self.cell[0] / 1.7)
        ax.set_xticks(range(len(self.columns)), self.columns, parse_math=False, **across)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)


def shorten_first_lines(names: Sequence[str], width: int, lines: int) -> list[str]:
    """Shorten the first line of every name with `shorten_names`; other lines stay unchanged.

    The first line is wrapped into about ``lines`` lines of at most ``width`` letters.
    """
    heads, _, ends = zip(*(name.partition("\n") for name in names), strict=True)
    cut = shorten_names(heads, width, lines)
    return [f"{a}\n{b}" if b else a for a, b in zip(cut, ends, strict=True)]


def side_by_side(first: Part, second: Part) -> Part:
    """Join two parts that must be in the same row of a figure into one part."""

    def draw_both(position: Position) -> None:
        first.draw(position)
        second.draw(Position(position.figure, position.left + first.width + _GAP, position.top))

    return Part(_line_width([first, second]), max(first.height, second.height), draw_both)


def label_grid(
    rows: Sequence[str],
    columns: Sequence[str],
    cell: tuple[float, float],
    size: float = 9,
    letters: int = _MAX_LETTERS,
) -> Grid:
    """Make the grid of a heat map from the names of the rows and columns.

    ``cell`` is the width and height of a cell in inches. ``size`` is the font size of the names in
    points, and ``letters`` is the largest length of a name.
    """
    rows, column_names = shorten_names(rows, letters, 1), shorten_first_lines(columns, letters, 1)
    rotated = max(text_extent(name, size)[0] for name in column_names) + 0.08 > cell[0]
    if rotated:
        column_names = [name.replace("\n", ", ") for name in column_names]
    widths, heights = zip(*(text_extent(name, size) for name in column_names), strict=True)
    left = max((text_extent(name, size)[0] + 0.08 for name in rows), default=0.0)
    if not rotated:
        return Grid(rows, column_names, cell, size, False, left, max(heights) + 0.08)
    # Rotated names of the first columns may extend to the left of the cells.
    overhang = max(0.71 * (w + size / 72) - cell[0] * (i + 0.5) for i, w in enumerate(widths))
    return Grid(
        rows,
        column_names,
        cell,
        size,
        True,
        max(left, overhang),
        0.71 * (max(widths) + size / 72) + 0.1,
    )


def fit_label_grid(rows: Sequence[str], columns: Sequence[str], ax: Axes) -> Grid:
    """Make the grid of a heat map whose cells fill existing axes.

    ``rows`` and ``columns`` are the names of rows and columns.
    """
    box, dots = ax.get_window_extent(), ax.figure.dpi
    width, height = box.width / dots, box.height / dots
    for letters in (28, 20, 14, 10):
        grid = label_grid(rows, columns, (width / len(columns), 1.0), 9, letters)
        if grid.left <= width / 2 and grid.below <= height / 2:
            break
    # A layout engine subtracts the space of names from the axes.
    has_layout = ax.figure.get_layout_engine() is not None
    left, below = (grid.left, grid.below) if has_layout else (0.0, 0.0)
    across, down = max(width - left, width / 4), max(height - below, height / 4)
    return label_grid(rows, columns, (across / len(columns), down / max(len(rows), 1)), 9, letters)
