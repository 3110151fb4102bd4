"""Colours, markers and hatches of all plots, distinguishable in grey as well."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.exceptions import short_repr

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


def contrast(one: Any, other: Any) -> float:
    """Contrast of two colours, from 1 to 21, as the guidelines for content on the web define it."""
    from matplotlib.colors import to_rgb

    rgb = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    darker, lighter = sorted((linear @ [0.2126, 0.7152, 0.0722] + 0.05).tolist())
    return lighter / darker


def ink(background: Any) -> str:
    """Black or white, whichever is read better on a colour: its contrast is at least 4.5."""
    return max(("black", "white"), key=lambda text: contrast(text, background))


def extent(text: str, size: float) -> tuple[float, float]:
    """Width and height in inches of a text of some lines in a font of so many points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    lines = text.splitlines()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks, which are drawn as boxes
        result = [text_to_path.get_text_width_height_descent(one, font, False) for one in lines]
    return max((width for width, *_ in result), default=0) / 72, 1.25 * size / 72 * len(lines)


def short(text: Any, width: int = 28, lines: int = 2) -> str:
    """A name that fits beside others: in so many lines, its middle left out where it is longer."""
    # Fonts take no surrogates, which stand for bytes that could not be decoded.
    text = " ".join(str(text).encode(errors="replace").decode().split())
    most = width * lines - (lines - 1) * 4
    if len(text) > most:
        head, tail = text[: most // 2 - 1], text[len(text) - most // 2 + 2 :]
        # Whole words, unless there is a single long one.
        head, tail = head.rpartition(" ")[0] or head, tail.partition(" ")[2] or tail
        text = f"{head} … {tail}"
    return "\n".join(textwrap.wrap(text, width)) if text else ""


def shortened(names: Sequence[Any], width: int = 28, lines: int = 2) -> list[str]:
    """Names as `short` has them; those that differ stay different.

    Where some would be alike, what all begin with is left out; where they still are, they are
    numbered.
    """
    names = [str(name) for name in names]
    words = [name.split() for name in names]
    for parts, glue in ((words, " "), (names, "")):
        same = sum(1 for _ in takewhile(lambda own: len({*own}) == 1, zip(*parts, strict=False)))
        rest = [("… " if same else "") + glue.join(own[same:]) for own in parts]
        for told in (names, rest):
            cut = [short(text, width, lines) for text in told]
            if len({*cut}) == len({*names}):
                return cut
    cut, distinct = [short(name, width - 5, lines) for name in names], [*dict.fromkeys(names)]
    return [f"{text} ({distinct.index(name) + 1})" for text, name in zip(cut, names, strict=True)]


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


def check_axes(ax: Any, name: str = "ax") -> None:
    """Refuse everything but None and matplotlib Axes with Cartesian coordinates in the plane.

    Raises
    ------
    TypeError
        If ``ax`` is something else.
    ValueError
        If the axes were removed from their figure.
    """
    if ax is None:
        return
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes) or ax.name != "rectilinear":
        got = f"{ax.name} axes" if isinstance(ax, Axes) else short_repr(ax)
        raise TypeError(
            f"{name} must be a matplotlib Axes with Cartesian coordinates; got {got}; pass what "
            "plt.subplots() returns, or leave it out for a new figure"
        )
    if ax.figure is None:
        raise ValueError(
            f"{name} must belong to a figure; got axes that were removed from their figure; pass "
            "other axes, or leave it out for a new figure"
        )


def as_axes(axes: Any, n: int) -> np.ndarray:
    """Axes (n,) out of whatever holds them.

    Raises
    ------
    TypeError
        If something else than axes is among them.
    ValueError
        If there are fewer or more, or the same axes twice.
    """
    flat = np.array(axes, dtype=object).ravel()
    if flat.size != n:
        raise ValueError(
            f"axes must be one for every panel; got {flat.size} for {n}; pass {n}, or leave them "
            "out"
        )
    for ax in flat:
        if ax is None:
            raise TypeError("axes must be one for every panel; got None among them; pass all")
        check_axes(ax, "every entry of axes")
    if len({*flat}) < n:
        raise ValueError("axes must be different for every panel; got the same twice; pass others")
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
