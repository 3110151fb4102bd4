"""Pictures of a clustering beside the structure that was known.

Every mark that carries a value is also a number or a label, and colour maps are ones that people
with colour-blindness can read. matplotlib is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse

from nrprob.statistics.groups import cross_table, group_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_centroids", "plot_contingency", "plot_hierarchy", "plot_members"]

_COUNTS = "cividis"
_SIGNED = "PuOr_r"
_INK = "gray_r"
_MAX_FEATURES = 24
_MAX_GROUPS = 20


def _groups(
    labels: Any, what: str, prefix: str = "", n_rows: int | None = None
) -> tuple[list[str], np.ndarray]:
    """Names of the distinct labels, and each row's position among them.

    Beyond a legible number the smallest groups are drawn as one. `prefix` goes before bare numbers,
    which say nothing without a word.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(
            f"{what} is one label per row; its shape is {labels.shape}; pass a 1-D array"
        )
    if n_rows is not None and len(labels) != n_rows:
        raise ValueError(
            f"{what} and the rows do not match; {len(labels)} labels for {n_rows} rows; "
            "pass one label per row"
        )
    values, codes = np.unique(labels, return_inverse=True)
    names = [f"{prefix} {v}".strip() if isinstance(v, np.integer) else str(v) for v in values]
    if len(names) > _MAX_GROUPS:
        largest = np.argsort(-np.bincount(codes), kind="stable")[: _MAX_GROUPS - 1]
        kept = np.sort(largest)
        place = np.full(len(names), len(kept))
        place[kept] = np.arange(len(kept))
        rest = f"{len(names) - len(kept)} others"
        names, codes = [*(names[i] for i in kept), rest], place[codes]
    return names, codes


def _with_sizes(names: Sequence[str], codes: np.ndarray) -> list[str]:
    sizes = np.bincount(codes, minlength=len(names))
    return [f"{name}\nn = {size}" for name, size in zip(names, sizes, strict=True)]


def plot_contingency(
    labels: Any,
    known: Any,
    ax: Axes | None = None,
    *,
    labels_name: str = "clusters",
    known_name: str = "known groups",
    show_share: bool | None = None,
) -> Axes:
    """Draw how often each found cluster meets each known group, as an annotated heat map.

    Parameters
    ----------
    labels : array of shape (n_samples,)
        Found clusters; the columns.
    known : array of shape (n_samples,)
        Known groups; the rows.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure when it is None.
    labels_name, known_name : str, default="clusters", "known groups"
        Names of the axes.
    show_share : bool, optional
        Print each count's share of its known group under the count. By default, where the table is
        small enough to stay legible. Rows of equal shares mean that the clustering says nothing
        about the known groups.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on. Colour is the share within the known group, the number is the count.
    """
    import matplotlib.pyplot as plt

    rows, row_codes = _groups(known, "known")
    columns, column_codes = _groups(labels, "labels", "cluster", len(row_codes))
    table = cross_table(row_codes, column_codes, (len(rows), len(columns)))
    share = table / table.sum(axis=1, keepdims=True)
    if show_share is None:
        show_share = table.size <= 40

    if ax is None:
        size = (1.6 + 0.85 * len(columns), 1.4 + 0.6 * len(rows))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    ax.imshow(share, cmap=_COUNTS, vmin=0, vmax=1, aspect="auto")
    font = 10 if table.size <= 60 else 7
    for (i, j), count in np.ndenumerate(table):
        text = f"{count}\n{100 * share[i, j]:.0f} %" if show_share else f"{count}"
        # Cividis is dark below the middle and light above it.
        colour = "white" if share[i, j] < 0.55 else "black"
        ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=font)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    if len(columns) > 5:
        ax.tick_params(axis="x", rotation=45)
    ax.set_xlabel(labels_name)
    ax.set_ylabel(known_name)
    ax.tick_params(length=0)
    ax.set_xticks(np.arange(1, len(columns)) - 0.5, minor=True)
    ax.set_yticks(np.arange(1, len(rows)) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=2)
    ax.tick_params(which="minor", length=0)
    ax.spines[:].set_visible(False)
    return ax


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
            ax.text(j, i, f"{value:+.1f}", ha="center", va="center", fontsize=7, color=colour)
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
    """
    import matplotlib.pyplot as plt

    n_rows, n_features = X.shape
    group_names, group_codes = _groups(known, "known", known_name, n_rows)
    cluster_names, cluster_codes = _groups(labels, "labels", "cluster", n_rows)
    n_groups, n_clusters = len(group_names), len(cluster_names)
    if image_shape is not None and math.prod(image_shape) != n_features:
        raise ValueError(
            f"image_shape does not fit the rows; {tuple(image_shape)} is {math.prod(image_shape)} "
            f"pixels and X has {n_features} columns; pass the height and width of one row"
        )
    if feature_names is not None and len(feature_names) != n_features:
        raise ValueError(
            f"feature_names does not fit X; {len(feature_names)} names for {n_features} columns; "
            "pass one name per column"
        )

    group_sizes = _with_sizes(group_names, group_codes)
    cluster_sizes = _with_sizes(cluster_names, cluster_codes)
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
        names = [f"feature {j}" for j in range(n_features)]
        names = names if feature_names is None else [str(name) for name in feature_names]
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


def plot_members(
    model: Any,
    row_names: Sequence[Any] | None = None,
    *,
    n: int = 5,
    ax: Axes | None = None,
) -> Axes:
    """Draw the members of every cluster in every subset, as a table of names.

    Parameters
    ----------
    model : CrossPartition
        Fitted.
    row_names : sequence of length n_samples, optional
        Names of the rows; their numbers by default.
    n : int, default=5
        Most members in a cell, those of the largest p(c|x) first. Only rows of which the cluster
        has a larger part than any other are listed.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure when it is None.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on. Colour is p(c|w), the number is the same in percent: a theme of all
        subsets has a part in every column.

    Raises
    ------
    ValueError
        If there is not one name for every row.
    """
    import matplotlib.pyplot as plt

    labels, share = model.labels_, model.subset_membership_
    names = np.arange(labels.size) if row_names is None else np.asarray(row_names)
    if names.shape != labels.shape:
        raise ValueError(
            f"row_names does not fit the model; {names.size} names for {labels.size} rows; pass "
            "one name per row"
        )
    subsets = model.subsets_.tolist()
    clusters = np.flatnonzero(model.cluster_weights_ > 0)
    if ax is None:
        size = (1.5 + 1.9 * len(subsets), 1.2 + (0.5 + 0.16 * n) * clusters.size)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    ax.imshow(share[:, clusters].T, cmap=_COUNTS, vmin=0, vmax=1, aspect="auto")
    for i, c in enumerate(clusters.tolist()):
        for j, subset in enumerate(subsets):
            members = model.top_samples(c, subset, labels.size)
            members = members[labels[members] == c]
            listed = [str(names[row]) for row in members[:n]]
            more = ["..."] if members.size > n else []
            colour = "white" if share[j, c] < 0.55 else "black"
            text = "\n".join([f"{100 * share[j, c]:.0f} %", *listed, *more])
            ax.text(j, i, text, ha="center", va="center", color=colour, fontsize=8)
    ax.set_xticks(range(len(subsets)), [str(subset) for subset in subsets])
    ax.set_yticks(range(clusters.size), [f"cluster {c}" for c in clusters])
    ax.set_xlabel("subsets")
    return ax


def plot_hierarchy(model: Any, ax: Axes | None = None) -> Axes:
    """Draw how clusters come out of each other, level by level.

    Parameters
    ----------
    model : CrossPartition, or IB or IBSI with ``solver="split"``
        Fitted.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure when it is None.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on. A circle is a cluster, its area and number the share of the rows' weight;
        a line is as dark as the share of the lower cluster that comes from the upper one. Every
        level says its number of clusters and its inverse temperature.
    """
    import matplotlib.pyplot as plt

    levels = model.path_
    if ax is None:
        size = (2 + 0.8 * len(levels), 1 + 0.7 * len(levels))
        _, ax = plt.subplots(figsize=size, layout="constrained")
    before: np.ndarray | None = None
    for depth, level in enumerate(levels):
        centres = np.arange(level.n_clusters, dtype=float)
        if before is not None:
            # Children lie under their parents, so that lines hardly cross.
            order = np.lexsort((-level.weights, before[level.parents]))
            centres[order] = np.arange(level.n_clusters)
        centres -= (level.n_clusters - 1) / 2
        if before is not None:
            upper = levels[depth - 1].membership
            shares = level.membership.T @ upper
            shares /= np.maximum(level.membership.sum(0)[:, None], 1e-300)
            for (c, parent), part in np.ndenumerate(shares):
                if part > 0.01:
                    ends = [before[parent], centres[c]], [1 - depth, -depth]
                    ax.plot(*ends, color="black", alpha=float(min(part, 1)), lw=1.5, zorder=1)
        ax.scatter(centres, np.full(centres.size, -depth), s=900 * level.weights + 60,
                   color="white", edgecolors="black", zorder=2)  # fmt: skip
        for x, weight in zip(centres, level.weights, strict=True):
            ax.text(x, -depth, f"{100 * weight:.0f}", ha="center", va="center", fontsize=7)
        before = centres
    names = [
        f"{level.n_clusters} clusters\n$\\beta$ = {level.beta:.3g}" if depth else "1 cluster"
        for depth, level in enumerate(levels)
    ]
    ax.set_yticks([-depth for depth in range(len(levels))], names)
    ax.set_xticks([])
    ax.margins(0.1)
    ax.set_title("percent of the weight of the rows", fontsize=9)
    return ax


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
