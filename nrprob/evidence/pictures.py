"""Plot samples along the discriminant direction of a cluster, by known group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nrprob.plotting.style import check_axes, colour, hatch, legend_below, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 12  # groups that are drawn
_BINS = 36
_WIDTH = 6.4
_HIGH = 0.85  # of the distance between groups


def draw_rows(
    place: np.ndarray,
    labels: np.ndarray,
    codes: np.ndarray,
    names: Sequence[str],
    valley: float,
    ax: Axes | None,
) -> Axes:
    """Draw a histogram of every group, its bars divided by cluster; the largest groups only.

    A valley of this width about 0 is grey.
    """
    import matplotlib.pyplot as plt

    check_axes(ax)
    sizes = np.bincount(codes)
    drawn = np.sort(np.argsort(-sizes, kind="stable")[:_MOST])
    if ax is None:
        height = 1.8 + 0.8 * len(drawn)
        _, ax = plt.subplots(figsize=(_WIDTH, height), layout="constrained")
    clusters = np.unique(labels)
    edges = np.linspace(place.min(), place.max() + 1e-9, _BINS + 1)
    if valley:
        ax.axvspan(-valley / 2, valley / 2, color="0.9", zorder=0)
    for row, g in enumerate(drawn[::-1]):
        counts = np.stack(
            [np.histogram(place[(codes == g) & (labels == c)], edges)[0] for c in clusters]
        )
        scale = _HIGH / max(counts.sum(0).max(), 1)
        bottom = np.full(_BINS, float(row))
        for c, own in zip(clusters, counts, strict=True):
            ax.bar(
                edges[:-1], own * scale, np.diff(edges), bottom, align="edge",
                color=colour(int(c)), hatch=hatch(int(c)), edgecolor="white", linewidth=0.3,
                label=f"cluster {c}" if row == 0 else None,
            )  # fmt: skip
            bottom += own * scale
        ax.axhline(row, color="black", linewidth=0.6)
    called = shortened([names[g] for g in drawn[::-1]])
    ticks = [f"{name}\nn = {sizes[g]}" for name, g in zip(called, drawn[::-1], strict=True)]
    ax.set_yticks(np.arange(len(drawn)) + 0.4, ticks, fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-0.05, len(drawn) + 0.05)
    ax.set_xlabel("place of rows held out, in standard deviations within clusters", fontsize=9)
    ax.spines[["top", "right", "left"]].set_visible(False)
    if len(clusters) > 1:
        legend_below(ax, _WIDTH)
    return ax
