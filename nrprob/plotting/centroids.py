"""Centroids of known groups beside those of found clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse

from nrprob.plotting.contingency import plot_contingency
from nrprob.plotting.groups import feature_texts, named, with_sizes
from nrprob.statistics.groups import group_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIGNED = "PuOr_r"
_INK = "gray_r"
_MAX_FEATURES = 24


def _draw_images(subfigure: Any, images: np.ndarray, titles: Sequence[str], limits: Any) -> None:
    per_row = min(len(images), 5)
    axes = subfigure.subplots(math.ceil(len(images) / per_row), per_row, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, image, title in zip(axes.flat, images, titles, strict=False):
        ax.imshow(image, cmap=_INK, clim=limits, interpolation="bicubic")
        ax.set_title(title, fontsize=9)


def _draw_cells(
    subfigure: Any, cells: np.ndarray, counts: np.ndarray, rows: Any, columns: Any, limits: Any
) -> None:
    axes = subfigure.subplots(len(rows), len(columns), squeeze=False)
    for i, j in np.ndindex(len(rows), len(columns)):
        ax = axes[i, j]
        ax.set_xticks([])
        ax.set_yticks([])
        ax.spines[:].set_visible(False)
        if counts[i, j]:
            ax.imshow(cells[i, j], cmap=_INK, clim=limits, interpolation="bicubic")
        else:
            ax.text(0.5, 0.5, "no rows", ha="center", va="center", transform=ax.transAxes)
        if i == 0:
            ax.set_title(columns[j], fontsize=9)
        if j == 0:
            ax.set_ylabel(rows[i], fontsize=9)


def _draw_profiles(
    ax: Axes, profiles: np.ndarray, names: Sequence[str], features: Sequence[str] | None, top: float
) -> Any:
    """Heat map, one row per feature and one column per group; `features` None hides their names."""
    image = ax.imshow(profiles.T, cmap=_SIGNED, vmin=-top, vmax=top, aspect="auto")
    ax.set_xticks(range(len(names)), names, fontsize=9)
    if len(names) > 4:
        ax.tick_params(axis="x", rotation=45)
    shown = [] if features is None else list(features)
    ax.set_yticks(range(len(shown)), shown, fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if profiles.shape[0] <= 8:
        for (j, i), value in np.ndenumerate(profiles):
            colour = "white" if abs(value) > 0.6 * top else "black"
            ax.text(j, i, f"{value:+z.1f}", ha="center", va="center", fontsize=7, color=colour)
    return image


def plot_centroids(
    X: Any,
    labels: Any,
    known: Any,
    image_shape: tuple[int, int] | None = None,
    feature_names: Sequence[str] | None = None,
    *,
    labels_name: str = "clusters",
    known_name: str = "groups",
    others: Mapping[str, Any] | None = None,
    cells: bool | Literal["auto"] = "auto",
    title: str | None = None,
) -> Figure:
    """Draw the known groups' centroids beside the found clusters' centroids.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_samples, n_features)
        The data.
    labels : array of shape (n_samples,)
        Found clusters.
    known : array of shape (n_samples,)
        Known groups.
    image_shape : (int, int), optional
        Height and width of the image that a row is. Without it, centroids are drawn as a heat map
        of features in standard deviations from the mean over all rows.
    feature_names : sequence of str, optional
        Names for the heat map; used when `image_shape` is None.
    labels_name, known_name : str, default="clusters", "groups"
        Names of the two labelings.
    others : mapping of str to array of shape (n_samples,), optional
        Further labelings; each gets a contingency heat map after that of `known`.
    cells : bool or "auto", default="auto"
        For images, also draw the mean of every combination of a known group and a found cluster;
        "auto" does where there are at most 20.
    title : str, optional
        Title of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Above, known and found centroids side by side on one scale; below, the combinations and the
        contingency heat maps. Of more than 20 groups the smallest are drawn as one.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.plotting import plot_centroids
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> plot_centroids(X, [0, 1] * 20, [0, 0, 1, 1] * 10).get_size_inches().shape
    (2,)
    """
    import matplotlib.pyplot as plt

    n_rows, n_features = X.shape
    group_names, group_codes = named(known, "known", known_name, n_rows)
    cluster_names, cluster_codes = named(labels, "labels", "cluster", n_rows)
    n_groups, n_clusters = len(group_names), len(cluster_names)
    if image_shape is not None and math.prod(image_shape) != n_features:
        raise ValueError(
            f"image_shape does not fit the rows; {tuple(image_shape)} is {math.prod(image_shape)} "
            f"pixels and X has {n_features} columns; pass the height and width of one row"
        )
    names = feature_texts(feature_names, None, n_features)

    group_sizes = with_sizes(group_names, group_codes)
    cluster_sizes = with_sizes(cluster_names, cluster_codes)
    by_group = group_means(X, group_codes, n_groups)
    by_cluster = group_means(X, cluster_codes, n_clusters)
    labelings = {known_name: known, **(others or {})}
    draw_cells = image_shape is not None and (
        n_groups * n_clusters <= 20 if cells == "auto" else bool(cells)
    )

    lines = 1
    if image_shape is not None:
        lines = math.ceil(max(n_groups, n_clusters) / 5)
        upper = 0.6 + 1.55 * lines
    else:
        upper = 0.9 + 0.26 * min(n_features, _MAX_FEATURES)
    lower = max(2.3, 0.9 + 0.45 * n_groups, 0.9 + 0.8 * n_groups if draw_cells else 0)
    panels = len(labelings) + draw_cells
    figure = plt.figure(figsize=(max(8.0, 2.9 * panels), upper + lower), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=13, fontweight="bold")
    above, below = figure.subfigures(2, 1, height_ratios=[upper, lower])
    heads = (f"known: {known_name}", f"found: {labels_name}")

    if image_shape is not None:
        widths = [min(n_groups, 5), min(n_clusters, 5)]
        limits = (min(by_group.min(), by_cluster.min()), max(by_group.max(), by_cluster.max()))
        sides = above.subfigures(1, 2, width_ratios=widths, wspace=0.04)
        for side, head, means, titles in zip(
            sides, heads, (by_group, by_cluster), (group_sizes, cluster_sizes), strict=True
        ):
            side.suptitle(head, fontsize=11)
            _draw_images(side, means.reshape(-1, *image_shape), titles, limits)
    else:
        centre, spread = _centre_and_spread(X)
        by_group, by_cluster = (by_group - centre) / spread, (by_cluster - centre) / spread
        if n_features > _MAX_FEATURES:
            strongest = np.abs(by_cluster).max(axis=0) + np.abs(by_group).max(axis=0)
            chosen = np.sort(np.argsort(-strongest, kind="stable")[:_MAX_FEATURES])
            by_group, by_cluster = by_group[:, chosen], by_cluster[:, chosen]
            names = [names[j] for j in chosen]
            heads = (heads[0], f"{heads[1]} ({_MAX_FEATURES} of {n_features} features)")
        top = max(np.abs(by_group).max(), np.abs(by_cluster).max(), 1e-9)
        axes = above.subplots(1, 2, width_ratios=[n_groups, n_clusters])
        _draw_profiles(axes[0], by_group, group_sizes, names, top)
        image = _draw_profiles(axes[1], by_cluster, cluster_sizes, None, top)
        for ax, head in zip(axes, heads, strict=True):
            ax.set_title(head, fontsize=11)
        above.colorbar(image, ax=list(axes), label="standard deviations\nfrom the mean", shrink=0.9)

    # Blank margins keep a few narrow tables from being stretched over the whole width.
    margin = max(figure.get_figwidth() - panels * max(2.9, 1.3 + 0.8 * n_clusters), 0.02) / 2
    panel = (figure.get_figwidth() - 2 * margin) / panels
    ratios = [margin, *[panel] * panels, margin]
    parts = below.subfigures(1, panels + 2, width_ratios=ratios, wspace=0.04)[1:-1]
    if draw_cells:
        assert image_shape is not None
        codes = group_codes * n_clusters + cluster_codes
        counts = np.bincount(codes, minlength=n_groups * n_clusters)
        with np.errstate(invalid="ignore"):  # an empty combination is 0/0 and is not drawn
            means = group_means(X, codes, n_groups * n_clusters)
        shape = (n_groups, n_clusters)
        parts[0].suptitle("mean of each combination", fontsize=11)
        cell_limits = (np.nanmin(means), np.nanmax(means))
        _draw_cells(
            parts[0],
            means.reshape(*shape, *image_shape),
            counts.reshape(shape),
            group_names,
            cluster_names,
            cell_limits,
        )
    for part, (name, labeling) in zip(parts[int(draw_cells) :], labelings.items(), strict=True):
        part.suptitle(f"clusters against {name}", fontsize=11)
        plot_contingency(labels, labeling, part.subplots(), labels_name="", known_name=name)
    return figure


def _centre_and_spread(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Column means and standard deviations; constant columns get spread 1."""
    if scipy.sparse.issparse(X):
        centre = np.asarray(X.mean(axis=0)).ravel()
        square = np.asarray(X.multiply(X).mean(axis=0)).ravel()
        spread = np.sqrt(np.maximum(square - centre**2, 0))
    else:
        values = np.asarray(X, dtype=float)
        centre, spread = values.mean(axis=0), values.std(axis=0)
    return centre, np.where(spread > 0, spread, 1.0)
