"""Plot the features that distinguish clusters, adjusted for the known structure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from nrprob.data.design import Design
from nrprob.data.validation import MOST, check_number
from nrprob.exceptions import short_repr
from nrprob.plotting.groups import distinct, feature_texts, read_rows, texts, with_sizes
from nrprob.plotting.style import BAR, as_axes, panels, short, shortened
from nrprob.statistics.top_features import find_top_features

_CLUSTERS = 12


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
    """Draw, for every cluster, the features by which it differs most from all other rows.

    A difference is the mean of the cluster's rows less that of all others, in pooled standard
    deviations of the two. Before it is taken, what is known is taken off: of every feature its mean
    in every known group, and its least-squares fit to known numbers. The page of ``nrprob fit`` has
    the same differences.

    Clusters were made to differ: no difference is a test of whether they are there.

    Parameters
    ----------
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        The data.
    labels : array of shape (n_samples,)
        Found clusters.
    known : array-like, optional
        What was known: labels, one labeling or several, numbers, or both in a frame; of a frame
        ``X``, also names of its columns.
    feature_names : sequence of str, optional
        Names of the features; by default those of the columns of a frame.
    axes : sequence of matplotlib.axes.Axes, optional
        Where to draw, one for every cluster; a new figure when it is None.
    clusters : sequence of labels, optional
        The clusters to draw; by default all, of more than 12 the largest.
    n_features : int, default=8
        Most features of a cluster, from 1 on. Those that do not differ are left out.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        The axes drawn on, one for every cluster, on one scale: lengths of bars and the numbers
        beside them are the differences, positive ones to the right.

    Raises
    ------
    ValueError
        If shapes do not fit, there are fewer than two clusters, or one of ``clusters`` has no rows.

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
    values, codes = distinct(labels, "labels", n)
    if len(values) < 2:
        raise ValueError(
            f"labels must have two clusters or more to tell apart; got {len(values)}; pass labels "
            "of more"
        )
    chosen = _chosen(values, codes, clusters)
    result = find_top_features(X, codes, chosen, *_adjust_for(design), n_nearest=0)
    titles = with_sizes(texts(values, "cluster"), codes, ", ")
    shown = [result.most_different(place, n_features) for place in range(len(chosen))]

    m = len(chosen)
    if axes is None:
        most = max(len(own) for own in shown)
        axes = panels(m, 3, (4.2, 0.9 + 0.3 * max(most, 3)))
        if clusters is None and m < len(values):
            axes[0].figure.suptitle(f"the {m} largest of {len(values)} clusters", fontsize=11)
    axes = as_axes(axes, m)
    widths = [result.differences[place, own] for place, own in enumerate(shown)]
    sizes = np.abs(np.concatenate(widths))
    top = sizes[np.isfinite(sizes)].max(initial=0) or 1.0
    for ax, cluster, own, width in zip(axes, chosen, shown, widths, strict=True):
        # Where nothing varies within clusters, a difference is infinite, and so is its bar.
        ax.barh(range(len(own)), np.clip(width, -2 * top, 2 * top), color=BAR, height=0.7)
        for at, value in enumerate(width):
            ax.text(1.02, at, _signed(value), va="center", fontsize=8,
                    transform=ax.get_yaxis_transform())  # fmt: skip
        if not own.size:
            ax.text(0.5, 0.5, "no feature differs", ha="center", va="center",
                    transform=ax.transAxes, backgroundcolor="white")  # fmt: skip
        ax.set_yticks(range(len(own)), shortened([names[j] for j in own]), fontsize=8,
                      parse_math=False)  # fmt: skip
        ax.set_ylim(max(len(own), 1) - 0.4, -0.6)
        ax.set_xlim(-1.05 * top, 1.05 * top)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.tick_params(axis="y", length=0)
        ax.tick_params(axis="x", labelsize=8)
        ax.set_title(short(titles[cluster], 40, 1), fontsize=10, parse_math=False)
        ax.set_xlabel("difference (standard deviations)", fontsize=8)
        ax.spines[["top", "right", "left"]].set_visible(False)
    return axes


def _signed(value: float) -> str:
    text = f"{value:+.2f}" if np.isfinite(value) else f"{'+' if value > 0 else '-'}∞"
    return text.replace("-", "\N{MINUS SIGN}")


def _chosen(values: np.ndarray, codes: np.ndarray, clusters: Sequence[Any] | None) -> list[int]:
    """Numbers of the clusters to draw."""
    if clusters is None:
        largest = np.argsort(-np.bincount(codes), kind="stable")[:_CLUSTERS]
        return np.sort(largest).tolist()
    place = {value: number for number, value in enumerate(values.tolist())}
    if not isinstance(clusters, list | tuple | np.ndarray):
        raise TypeError(
            f"clusters must be a list of labels; got {short_repr(clusters)}; leave it out for all"
        )
    given = [*clusters]
    wrong = [own for own in given if not isinstance(own, Hashable) or own not in place]
    if wrong or not given:
        got = short_repr(wrong[0]) if wrong else "none"
        raise ValueError(
            f"clusters must name clusters that have rows; got {got}; leave it out for all"
        )
    return [place[cluster] for cluster in given]


def _adjust_for(design: Design) -> tuple[np.ndarray, np.ndarray | None]:
    """Known groups (n,), and columns (n, q) of covariates and labels, if there are covariates."""
    if design.kind == "soft":
        raise ValueError(
            "features are adjusted for labels or covariates; got soft Memberships; pass hard labels"
        )
    groups = np.unique(design.labelings, axis=0, return_inverse=True)[1].ravel()
    return groups, None if design.matrix is None else design.matrix[:, 1:]
