"""Centroids of known groups beside those of found clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse

from nrprob.plotting.contingency import Table
from nrprob.plotting.groups import feature_texts, named, with_sizes
from nrprob.plotting.layout import Grid, Part, Place, above_rest, beside, compose, grid
from nrprob.plotting.style import extent, ink, short, shortened
from nrprob.statistics.groups import group_means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIGNED = "PuOr_r"
_INK = "gray_r"
_MAX_FEATURES = 24
_NUMBERED = 8  # groups of a heat map up to which values are written in it
_WIDTH = 10.0  # inches of a line of the figure, where each part is narrower
_IMAGE, _CELL, _FEATURE = 1.4, 0.85, 0.26  # inches of a mean, of a combination's, of a line


def _images(images: np.ndarray, titles: Sequence[str], head: str, limits: Any) -> Part:
    """Centroids as images, in lines of five."""
    per_row = min(len(images), 5)
    titles = above_rest(titles, 17, 2)
    above = max(extent(title, 9)[1] for title in titles) + 0.06
    top = extent(head, 11)[1] + 0.06
    width = max(_IMAGE * per_row, extent(head, 11)[0])
    high = _IMAGE - 0.1

    def draw(place: Place) -> None:
        place.write(head, width / 2, 0, fontsize=11)
        start = (width - _IMAGE * per_row) / 2 + 0.05
        for at, (image, title) in enumerate(zip(images, titles, strict=True)):
            line, column = divmod(at, per_row)
            down = top + line * (_IMAGE + above) + above
            ax = place.axes(start + column * _IMAGE, down, high, high)
            ax.set_axis_off()
            ax.imshow(image, cmap=_INK, clim=limits, interpolation="bicubic")
            ax.set_title(title, fontsize=9, pad=3, parse_math=False)

    return Part(width, top + math.ceil(len(images) / per_row) * (_IMAGE + above), draw)


def _cells(
    cells: np.ndarray, counts: np.ndarray, rows: Sequence[str], columns: Sequence[str], limits: Any
) -> Part:
    """Means of all combinations of a known group and a cluster, as images."""
    head = "mean of each combination"
    rows, columns = shortened(rows, 20), shortened(columns, 12)
    left = max(extent(name, 9)[0] for name in rows) + 0.08
    top = extent(head, 11)[1] + max(extent(name, 9)[1] for name in columns) + 0.12
    own = _CELL * len(columns)
    width = max(left + own, extent(head, 11)[0])

    def draw(place: Place) -> None:
        place.write(head, width / 2, 0, fontsize=11)
        for i, j in np.ndindex(counts.shape):
            ax = place.axes(left + j * _CELL, top + i * _CELL, 0.95 * _CELL, 0.95 * _CELL)
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
            if counts[i, j]:
                ax.imshow(cells[i, j], cmap=_INK, clim=limits, interpolation="bicubic")
            else:
                ax.text(0.5, 0.5, "no rows", ha="center", va="center", transform=ax.transAxes)
            if i == 0:
                ax.set_title(columns[j], fontsize=9, pad=3, parse_math=False)
            if j == 0:
                ax.set_ylabel(
                    rows[i], fontsize=9, rotation=0, ha="right", va="center", parse_math=False
                )

    return Part(width, top + _CELL * len(rows), draw)


def _profiles(
    sides: Sequence[tuple[str, np.ndarray, Sequence[str]]], features: Sequence[str]
) -> list[Part]:
    """Heat maps of features by group: beside each other, or one by one where they are wide."""
    top = max(*(float(np.abs(profiles).max()) for _, profiles, _ in sides), 1e-9)
    grids = [
        grid(features, names, (0.46 if len(names) <= _NUMBERED else 0.34, _FEATURE), 9, 24)
        for _, _, names in sides
    ]
    parts = [
        _profile(found, profiles, short(head, 44), top)
        for found, (head, profiles, _) in zip(grids, sides, strict=True)
    ]
    return [*parts[:-1], beside(parts[-1], _bar(top, _FEATURE * len(features)))]


def _profile(found: Grid, profiles: np.ndarray, head: str, top: float) -> Part:
    """Heat map, one row per feature and one column per group."""
    above, (across, down) = extent(head, 11)[1] + 0.08, found.body
    # The title is in the middle of the part, which all of it is seen in.
    width = max(found.left + across, extent(head, 11)[0])

    def draw(place: Place) -> None:
        from matplotlib import colormaps

        place.write(head, width / 2, 0, fontsize=11)
        left = (width - found.left - across) / 2 + found.left
        ax = place.axes(left, above, across, down)
        ax.imshow(profiles.T, cmap=_SIGNED, vmin=-top, vmax=top, aspect="auto")
        found.label(ax)
        for (j, i), value in np.ndenumerate(profiles):
            if len(profiles) <= _NUMBERED:
                dye = ink(colormaps[_SIGNED]((value / top + 1) / 2))
                ax.text(j, i, f"{value:+z.1f}", ha="center", va="center", fontsize=8, color=dye)

    return Part(width, above + down + found.below, draw)


def _bar(top: float, height: float) -> Part:
    """What colours of heat maps stand for."""
    height = max(height, 1.6)

    def draw(place: Place) -> None:
        from matplotlib.cm import ScalarMappable

        ax = place.axes(0, 0.3, 0.18, height)
        colours = ScalarMappable(cmap=_SIGNED)
        colours.set_clim(-top, top)
        bar = place.figure.colorbar(colours, cax=ax)
        bar.set_label("standard deviations\nfrom the mean", fontsize=9)
        bar.ax.tick_params(labelsize=8)

    return Part(1.1, height + 0.3, draw)


def _contingency(labels: Any, known: Any, name: str) -> Part:
    """How often clusters meet the groups of a labeling."""
    head = short(f"clusters against {name}", 40)
    table = Table.of(labels, known)
    found = table.grid(table.counts.size <= 40)
    above, (across, down) = extent(head, 11)[1] + 0.08, found.body
    width = max(found.left + across, extent(head, 11)[0])

    def draw(place: Place) -> None:
        place.write(head, width / 2, 0, fontsize=11)
        left = (width - found.left - across) / 2 + found.left
        table.draw(place.axes(left, above, across, down), found, None)

    return Part(width, above + down + found.below, draw)


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
        First known and found centroids on one scale, then the combinations and the contingency
        heat maps, beside or below each other: the figure is as large as names and numbers take,
        and long names are cut in their middle. Of more than 20 groups the smallest are drawn as
        one.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.plotting import plot_centroids
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> plot_centroids(X, [0, 1] * 20, [0, 0, 1, 1] * 10).get_size_inches().shape
    (2,)
    """
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
    heads = (f"known: {known_name}", f"found: {labels_name}")

    if image_shape is not None:
        limits = (min(by_group.min(), by_cluster.min()), max(by_group.max(), by_cluster.max()))
        parts = [
            _images(means.reshape(-1, *image_shape), titles, short(head, 40), limits)
            for head, means, titles in zip(
                heads, (by_group, by_cluster), (group_sizes, cluster_sizes), strict=True
            )
        ]
        if n_groups * n_clusters <= 20 if cells == "auto" else cells:
            codes = group_codes * n_clusters + cluster_codes
            counts = np.bincount(codes, minlength=n_groups * n_clusters)
            with np.errstate(invalid="ignore"):  # an empty combination is 0/0 and is not drawn
                means = group_means(X, codes, n_groups * n_clusters)
            shape = (n_groups, n_clusters)
            parts.append(
                _cells(
                    means.reshape(*shape, *image_shape), counts.reshape(shape), group_names,
                    cluster_names, (np.nanmin(means), np.nanmax(means)),
                )
            )  # fmt: skip
    else:
        centre, spread = _centre_and_spread(X)
        by_group, by_cluster = (by_group - centre) / spread, (by_cluster - centre) / spread
        if n_features > _MAX_FEATURES:
            strongest = np.abs(by_cluster).max(axis=0) + np.abs(by_group).max(axis=0)
            chosen = np.sort(np.argsort(-strongest, kind="stable")[:_MAX_FEATURES])
            by_group, by_cluster = by_group[:, chosen], by_cluster[:, chosen]
            names = [names[j] for j in chosen]
            heads = (heads[0], f"{heads[1]} ({_MAX_FEATURES} of {n_features} features)")
        sides = zip(heads, (by_group, by_cluster), (group_sizes, cluster_sizes), strict=True)
        parts = _profiles([*sides], names)
    labelings = {known_name: known, **(others or {})}
    parts += [_contingency(labels, labeling, name) for name, labeling in labelings.items()]
    return compose(parts, _WIDTH, title or "")


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
