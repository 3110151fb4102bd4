"""Plot the features that distinguish clusters, adjusted for the known structure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from nrprob.data.validation import MOST, check_number
from nrprob.exceptions import short_repr
from nrprob.plotting.groups import (
    adjust_for,
    distinct_labels,
    feature_texts,
    label_texts,
    read_rows,
    with_sizes,
)
from nrprob.plotting.style import BAR, as_axes, make_panels, shorten_names, shorten_text
from nrprob.statistics.top_features import find_top_features

_MAX_CLUSTERS = 12


def plot_top_features(
    X: Any,
    labels: Any,
    known: Any = None,
    feature_names: Sequence[Any] | None = None,
    axes: Any = None,
    *,
    clusters: Sequence[Any] | None = None,
    n_features: int = 8,
) -> np.ndarray:
    """Plot, for every cluster, the features that differ most from all other samples.

    The difference is the mean of the cluster minus the mean of all other samples, in pooled
    standard deviations. Features are adjusted for known structure first: the effects of known
    groups and covariates are subtracted. The effects are fitted by least squares together with the
    clusters. The report of ``nrprob fit`` shows the same differences.

    Clusterings maximise such differences, so large differences are not evidence of clusters.

    Parameters
    ----------
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        The data. Text of a frame becomes binary columns, whose means are shares of a value.
    labels : array of shape (n_samples,)
        Clusters.
    known : array-like, optional
        Known structure: one or several labelings, continuous covariates, or both in a frame. For a
        frame ``X``, also names of its columns.
    feature_names : sequence of str, optional
        Names of the features; by default the names of the columns of a frame.
    axes : sequence of matplotlib.axes.Axes, optional
        Axes to draw on, one per cluster; by default in a new figure.
    clusters : sequence of labels, optional
        Clusters to draw; by default the largest 12.
    n_features : int, default=8
        Maximum number of features of a cluster, at least 1. Features without a difference are left
        out.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        The axes, one per cluster, on a common scale. Bars and numbers are differences; bars of
        positive differences point to the right.

    Raises
    ------
    ValueError
        If shapes do not match, if there are fewer than two clusters, or if one of ``clusters`` has
        no samples.

    See Also
    --------
    plot_centroids : Plot all features of clusters and known groups.
    nrprob.describe_clusters : Describe the same differences in sentences.
    nrprob.evidence.test : Test for clusters on held-out samples.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.plotting import plot_top_features
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat([0, 1], 50)
    >>> X = rng.normal(size=(100, 3)) + 4 * np.outer(labels, [0, 1, 0])
    >>> axes = plot_top_features(X, labels, feature_names=["age", "weight", "height"])
    >>> axes[1].get_title(), axes[1].get_yticklabels()[0].get_text()
    ('cluster 1, n = 50', 'weight')
    """
    check_number("n_features", n_features, low=1, high=MOST, integer=True)
    X, design, columns = read_rows(X, known)
    n, p = X.shape
    names = feature_texts(feature_names, columns, p)
    values, codes = distinct_labels(labels, "labels", n)
    if len(values) < 2:
        raise ValueError(
            f"labels must have two clusters or more; got {len(values)}; pass labels of several "
            "clusters"
        )
    chosen = _choose_clusters(values, codes, clusters)
    result = find_top_features(X, codes, chosen, *adjust_for(design), n_nearest=0)
    titles = with_sizes(label_texts(values, "cluster"), codes, ", ")
    features = [result.most_different(i, n_features) for i in range(len(chosen))]

    m = len(chosen)
    if axes is None:
        most = max(map(len, features))
        axes = make_panels(m, 3, (4.2, 0.9 + 0.3 * max(most, 3)))
        if clusters is None and m < len(values):
            axes[0].figure.suptitle(f"the {m} largest of {len(values)} clusters", fontsize=11)
    axes = as_axes(axes, m)
    widths = [result.differences[i, indices] for i, indices in enumerate(features)]
    sizes = np.abs(np.concatenate(widths))
    top = sizes[np.isfinite(sizes)].max(initial=0) or 1.0
    for ax, cluster, indices, width in zip(axes, chosen, features, widths, strict=True):
        # Features without variance within clusters have infinite differences: clip their bars.
        ax.barh(range(len(indices)), np.clip(width, -2 * top, 2 * top), color=BAR, height=0.7)
        for i, value in enumerate(width):
            ax.text(1.02, i, _format_signed(value), va="center", fontsize=8,
                    transform=ax.get_yaxis_transform())  # fmt: skip
        if not indices.size:
            ax.text(0.5, 0.5, "no feature differs", ha="center", va="center",
                    transform=ax.transAxes, backgroundcolor="white")  # fmt: skip
        ax.set_yticks(range(len(indices)), shorten_names([names[j] for j in indices]), fontsize=8,
                      parse_math=False)  # fmt: skip
        ax.set_ylim(max(len(indices), 1) - 0.4, -0.6)
        ax.set_xlim(-1.05 * top, 1.05 * top)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.tick_params(axis="y", length=0)
        ax.tick_params(axis="x", labelsize=8)
        ax.set_title(shorten_text(titles[cluster], 40, 1), fontsize=10, parse_math=False)
        ax.set_xlabel("difference (standard deviations)", fontsize=8)
        ax.spines[["top", "right", "left"]].set_visible(False)
    return axes


def _format_signed(value: float) -> str:
    text = f"{value:+.2f}" if np.isfinite(value) else f"{'+' if value > 0 else '-'}∞"
    return text.replace("-", "\N{MINUS SIGN}")


def _choose_clusters(
    values: np.ndarray, codes: np.ndarray, clusters: Sequence[Any] | None
) -> list[int]:
    """Return the positions, among the sorted labels ``values``, of the clusters to draw.

    ``codes`` (n,) are the clusters of the samples as positions. ``clusters`` are the labels of the
    clusters to draw, or None for the largest clusters.
    """
    if clusters is None:
        largest = np.argsort(-np.bincount(codes), kind="stable")[:_MAX_CLUSTERS]
        return np.sort(largest).tolist()
    codes_by_label = {value: code for code, value in enumerate(values.tolist())}
    if not isinstance(clusters, list | tuple | np.ndarray):
        raise TypeError(
            f"clusters must be a list of labels; got {short_repr(clusters)}; leave clusters out to "
            "draw the largest"
        )
    labels = [*clusters]
    unknown = [v for v in labels if not isinstance(v, Hashable) or v not in codes_by_label]
    if unknown or not labels:
        got = short_repr(unknown[0]) if unknown else "none"
        raise ValueError(
            f"clusters must be labels of clusters with rows; got {got}; leave clusters out to draw "
            "the largest"
        )
    return [codes_by_label[label] for label in labels]
