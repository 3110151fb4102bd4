"""Colours, marks and hatches of all pictures, which are told apart in grey as well."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Dark and light take turns, each with a contrast of at least 3 with white, and no two are alike
# to who lacks a cone for red or for green.
COLOURS = (
    "#00407a", "#e8590c", "#1f5134", "#c774b2", "#000000", "#7a9a1e", "#4b1196", "#807a70"
)  # fmt: skip
SHARES = "cividis"
BAR = "#4c566a"  # where one thing is drawn, which needs no colour
_MARKERS = "osD^vPX*"
_HATCHES = ("", "////", "....", "xxxx", "----", "\\\\\\\\", "++", "oo")
_BELOW = 0.5  # inches between axes and a legend, where their ticks and label are


def colour(number: int) -> str:
    """Colour of a thing by its number."""
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    """Mark of a thing; where colours begin anew, marks are others with them."""
    return _MARKERS[_shifted(number)]


def hatch(number: int) -> str:
    """Hatch of a thing, for bars and areas; where colours begin anew, it is another with them."""
    return _HATCHES[_shifted(number)]


def _shifted(number: int) -> int:
    return (number + number // len(COLOURS)) % len(COLOURS)


def short(text: Any, width: int = 28, lines: int = 2) -> str:
    """A name that fits beside others: in so many lines, its middle left out where it is longer."""
    text = " ".join(str(text).split())
    most = width * lines - (lines - 1) * 4
    if len(text) > most:
        head, tail = text[: most // 2 - 1], text[len(text) - most // 2 + 2 :]
        # Whole words, unless there is a single long one.
        head, tail = head.rpartition(" ")[0] or head, tail.partition(" ")[2] or tail
        text = f"{head} … {tail}"
    return "\n".join(textwrap.wrap(text, width)) if text else ""


def shortened(names: Sequence[Any]) -> list[str]:
    """Names as `short` has them, less the words that all begin with where some would be alike."""
    cut = [short(name) for name in names]
    if len({*cut}) == len({*map(str, names)}):
        return cut
    words = [str(name).split() for name in names]
    same = sum(1 for _ in takewhile(lambda own: len({*own}) == 1, zip(*words, strict=False)))
    lead = "… " if same else ""
    return [short(lead + " ".join(own[same:])) for own in words]


def legend_rows(texts: Sequence[str], width: float) -> tuple[int, float]:
    """Columns of a legend, and its height in inches; ``width`` is that of the axes in inches."""
    longest = max(len(line) for text in texts for line in text.splitlines())
    columns = int(np.clip(width / (0.075 * longest + 0.4), 1, len(texts)))
    lines = max(text.count("\n") + 1 for text in texts)
    return columns, 0.15 * lines * -(-len(texts) // columns) + 0.15


def legend_below(ax: Axes, width: float) -> None:
    """Legend below axes of this width in inches, where it hides nothing."""
    from matplotlib.transforms import ScaledTranslation

    handles, texts = ax.get_legend_handles_labels()
    columns, _ = legend_rows(texts, width)
    down = ScaledTranslation(0, -_BELOW, ax.figure.dpi_scale_trans)
    legend = ax.legend(
        handles, texts, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns,
        bbox_transform=ax.transAxes + down, frameon=False, fontsize=8, handletextpad=0.3,
        columnspacing=1.0, borderaxespad=0.0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    for handle in legend.legend_handles:
        if hasattr(handle, "set_sizes"):  # points in the axes may be small
            handle.set_sizes([30])


def as_axes(axes: Any, n: int) -> np.ndarray:
    """Axes (n,) out of whatever holds them.

    Raises
    ------
    ValueError
        If there are fewer or more.
    """
    flat = np.array(axes, dtype=object).ravel()
    if flat.size != n:
        raise ValueError(
            f"axes must be one for every panel; got {flat.size} for {n}; pass {n}, or leave them "
            "out"
        )
    return flat


def panels(n: int, per_row: int, size: tuple[float, float]) -> np.ndarray:
    """New axes (n,) in rows, each of this width and height."""
    import matplotlib.pyplot as plt

    columns = min(n, per_row)
    lines = -(-n // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(size[0] * columns, size[1] * lines), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    axes: Sequence[Axes] = grid.ravel()
    for ax in axes[n:]:
        ax.remove()
    return np.array(axes[:n], dtype=object)
