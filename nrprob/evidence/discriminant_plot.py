"""Plot held-out discriminant scores of n samples by cluster and known group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nrprob.plotting.groups import check_names
from nrprob.plotting.style import check_axes, legend_below, nth_colour, nth_hatch, shorten_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_GROUPS = 12  # largest number of plotted groups
_N_BINS = 36
_WIDTH = 6.4  # width of the figure in inches
_BAR_HEIGHT = 0.85  # height of the highest bar, relative to the distance between groups


def plot_discriminant_scores(
    score: np.ndarray,
    labels: np.ndarray,
    codes: np.ndarray,
    names: Sequence[str],
    gap_width: float,
    ax: Axes | None,
    cluster_names: Sequence[str] | None = None,
) -> Axes:
    """Draw one histogram of scores per known group, with bars that are divided by cluster.

    At most twelve groups are drawn, the largest ones. A grey band about 0 shows the low-density
    gap between clusters. Samples without a score are left out.

    Parameters
    ----------
    score : (n,) held-out discriminant scores; NaN for samples without a score
    labels : (n,) cluster labels
    codes : (n,) known groups as integers
    names : names of the known groups
    gap_width : width of the low-density gap in units of ``score``; 0 for no band
    ax : axes to draw on; None for a new figure
    cluster_names : one name per cluster; by default, the numbers of the clusters
    """
    import matplotlib.pyplot as plt

    check_axes(ax)
    titles = [f"cluster {c}" for c in range(labels.max() + 1)]
    if cluster_names is not None:
        titles = check_names(cluster_names, "cluster_names", len(titles), "cluster")
    scored = ~np.isnan(score)
    if not scored.any():
        raise ValueError(
            "no sample has a discriminant score; there is one cluster, or no sample has all "
            "numeric features; plot the test of two or more clusters in numeric features"
        )
    n_left_out = scored.size - int(scored.sum())
    score, labels, codes = score[scored], labels[scored], codes[scored]
    # Largest groups, in reverse order: the first group is at the top.
    sizes = np.bincount(codes, minlength=len(names))
    groups = np.sort(np.argsort(-sizes, kind="stable")[:_MAX_GROUPS])[::-1]
    if ax is None:
        height = 1.8 + 0.8 * len(groups)
        _, ax = plt.subplots(figsize=(_WIDTH, height), layout="constrained")
    clusters = np.unique(labels)
    edges = np.linspace(score.min(), score.max() + 1e-9, _N_BINS + 1)
    if gap_width:
        ax.axvspan(-gap_width / 2, gap_width / 2, color="0.9", zorder=0)
    # Stacked bars; the highest bar of every group has the same height.
    for row, g in enumerate(groups):
        counts = np.stack(
            [np.histogram(score[(codes == g) & (labels == c)], edges)[0] for c in clusters]
        )
        scale = _BAR_HEIGHT / max(counts.sum(0).max(), 1)
        bottom = np.full(_N_BINS, float(row))
        for c, heights in zip(clusters, counts * scale, strict=True):
            ax.bar(
                edges[:-1], heights, np.diff(edges), bottom, align="edge",
                color=nth_colour(int(c)), hatch=nth_hatch(int(c)), edgecolor="white", linewidth=0.3,
                label=titles[c] if row == 0 else None,
            )  # fmt: skip
            bottom += heights
        ax.axhline(row, color="black", linewidth=0.6)
    short_names = shorten_names([names[g] for g in groups])
    ticks = [f"{name}\nn = {sizes[g]}" for name, g in zip(short_names, groups, strict=True)]
    ax.set_yticks(np.arange(len(groups)) + 0.4, ticks, fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(-0.05, len(groups) + 0.05)
    if n_left_out:
        subject, verb = ("samples", "are") if n_left_out > 1 else ("sample", "is")
        ax.set_title(f"{n_left_out} {subject} without a score {verb} left out", fontsize=9)
    ax.set_xlabel("held-out discriminant score (standard deviations within clusters)", fontsize=9)
    ax.spines[["top", "right", "left"]].set_visible(False)
    if len(clusters) > 1:
        legend_below(ax, _WIDTH)
    return ax
