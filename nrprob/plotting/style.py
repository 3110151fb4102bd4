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

# Dark and light colours alternate, each with a contrast ratio of at least 3 to white. All are
# distinguishable with protanopia and deuteranopia. The colours after the first eight maximise the
# smallest distance in CIELAB; distances without a colour deficiency count half.
COLOURS = (
    "#00407a", "#e8590c", "#1f5134", "#c774b2", "#000000", "#7a9a1e", "#4b1196", "#807a70",
    "#3c0f4b", "#f0695a", "#7800d2", "#0096ff", "#694b00", "#3c964b", "#871e5a", "#ff1eff",
    "#0000ff", "#ff4b87", "#5a0000", "#c33cc3",
)  # fmt: skip
SHARES = "cividis"  # colour map of shares from 0 to 1
BAR = "#4c566a"  # colour of bars of a single category
_MARKERS = "osD^vPX*"
_HATCHES = ("", "////", "....", "xxxx", "----", "\\\\\\\\", "++", "oo")
_BELOW = 0.5  # inches between axes and a legend, for ticks and label


def nth_colour(number: int) -> str:
    """Colour of the category with this number; colours repeat after `COLOURS`."""
    return COLOURS[number % len(COLOURS)]


def nth_marker(number: int) -> str:
    """Marker of the category with this number; categories of one colour differ in markers."""
    return _MARKERS[_shifted_index(number)]


def nth_hatch(number: int) -> str:
    """Hatch of the category with this number; categories of one colour differ in hatches."""
    return _HATCHES[_shifted_index(number)]


def _shifted_index(number: int) -> int:
    """Index of a marker or hatch, which differs between categories of one colour.

    Every index occurs with a dark and a light colour among the first 16 categories.
    """
    return (number + number // len(_MARKERS)) % len(_MARKERS)


def contrast_ratio(first: Any, second: Any) -> float:
    """Contrast ratio of two colours, from 1 to 21, as defined by WCAG."""
    from matplotlib.colors import to_rgb

    rgb = np.array([to_rgb(first), to_rgb(second)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    darker, lighter = sorted((linear @ [0.2126, 0.7152, 0.0722] + 0.05).tolist())
    return lighter / darker


def text_colour(background: Any) -> str:
    """Colour of text on a background: black or white, whichever has the larger contrast ratio.

    The ratio is at least 4.5.
    """
    return max(("black", "white"), key=lambda text: contrast_ratio(text, background))


def text_extent(text: str, size: float) -> tuple[float, float]:
    """Width and height in inches of a text with line breaks, for a font size in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    lines = text.splitlines()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that the font lacks are drawn as boxes
        sizes = [text_to_path.get_text_width_height_descent(line, font, False) for line in lines]
    return max((width for width, *_ in sizes), default=0) / 72, 1.25 * size / 72 * len(lines)


def shorten_text(text: Any, width: int = 28, lines: int = 2) -> str:
    """Wrap a text into lines of at most ``width`` letters; omit the middle of long texts.

    A text is long if it does not fit into about ``lines`` lines.
    """
    # Fonts cannot render surrogates, which represent bytes that could not be decoded.
    text = " ".join(str(text).encode(errors="replace").decode().split())
    most = width * lines - (lines - 1) * 4
    if len(text) > most:
        head, tail = text[: most // 2 - 1], text[len(text) - most // 2 + 2 :]
        # Break between words, unless there is a single long word.
        head, tail = head.rpartition(" ")[0] or head, tail.partition(" ")[2] or tail
        text = f"{head} … {tail}"
    return "\n".join(textwrap.wrap(text, width)) if text else ""


def shorten_names(names: Sequence[Any], width: int = 28, lines: int = 2) -> list[str]:
    """Shorten names with `shorten_text`; different names stay different.

    If shortened names are equal, the common beginning of the names is omitted. If they are still
    equal, the names are numbered.
    """
    names = [str(name) for name in names]
    words = [name.split() for name in names]
    for parts, glue in ((words, " "), (names, "")):
        n_common = sum(1 for _ in takewhile(lambda p: len({*p}) == 1, zip(*parts, strict=False)))
        rest = [("… " if n_common else "") + glue.join(part[n_common:]) for part in parts]
        for candidates in (names, rest):
            cut = [shorten_text(text, width, lines) for text in candidates]
            if len({*cut}) == len({*names}):
                return cut
    cut, distinct = (
        [shorten_text(name, width - 5, lines) for name in names],
        [*dict.fromkeys(names)],
    )
    return [f"{text} ({distinct.index(name) + 1})" for text, name in zip(cut, names, strict=True)]


def legend_rows(texts: Sequence[str], width: float) -> tuple[int, float]:
    """Number of columns and height in inches of a legend with the entries ``texts``.

    ``width`` is the width of the axes in inches.
    """
    longest = max(len(line) for text in texts for line in text.splitlines())
    columns = int(np.clip(width / (0.075 * longest + 0.4), 1, len(texts)))
    lines = max(text.count("\n") + 1 for text in texts)
    return columns, 0.15 * lines * -(-len(texts) // columns) + 0.15


def legend_below(ax: Axes, width: float) -> None:
    """Add a legend below axes of ``width`` inches."""
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
        if hasattr(handle, "set_sizes"):  # points may be too small for a legend
            handle.set_sizes([30])


def check_axes(ax: Any, name: str = "ax") -> None:
    """Validate that ``ax`` is None or a matplotlib Axes with Cartesian coordinates.

    Raises
    ------
    TypeError
        If ``ax`` is neither None nor such an Axes.
    ValueError
        If the axes were removed from their figure.
    """
    if ax is None:
        return
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes) or ax.name != "rectilinear":
        got = f"{ax.name} axes" if isinstance(ax, Axes) else short_repr(ax)
        raise TypeError(
            f"{name} must be a matplotlib Axes with Cartesian coordinates; got {got}; pass axes "
            f"of plt.subplots(), or leave {name} out for a new figure"
        )
    if ax.figure is None:
        raise ValueError(
            f"{name} must belong to a figure; got axes that were removed from their figure; pass "
            f"other axes, or leave {name} out for a new figure"
        )


def as_axes(axes: Any, n: int) -> np.ndarray:
    """Validate ``n`` axes, and convert them to an array (n,).

    Raises
    ------
    TypeError
        If an entry is not an Axes.
    ValueError
        If there are not ``n`` axes, or the same Axes occurs twice.
    """
    flat = np.array(axes, dtype=object).ravel()
    if flat.size != n:
        raise ValueError(
            f"axes must be one for every panel; got {flat.size} for {n} panels; pass {n} axes, "
            "or leave axes out"
        )
    for ax in flat:
        if ax is None:
            raise TypeError(
                "axes must be one for every panel; got None in axes; pass an Axes for every panel"
            )
        check_axes(ax, "every entry of axes")
    if len({*flat}) < n:
        raise ValueError(
            "axes must be different for every panel; got the same Axes twice; pass different axes"
        )
    return flat


def make_panels(n: int, per_row: int, size: tuple[float, float]) -> np.ndarray:
    """Create ``n`` axes in a new figure, at most ``per_row`` in a row; return an array (n,).

    ``size`` is the width and height of every panel in inches.
    """
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
