"""Plot centroids of known groups and of clusters.

A figure consists of panels (`nrprob.plotting.layout.Part`). ``sides`` are the labelings to plot
(`nrprob.plotting.profiles.Side`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import scipy.sparse

from nrprob.data.validation import check_choice
from nrprob.exceptions import short_repr
from nrprob.plotting.contingency import Table, plot_contingency
from nrprob.plotting.groups import check_texts, feature_texts, named_labels, read_rows, with_sizes
from nrprob.plotting.layout import (
    Part,
    Position,
    compose_figure,
    fit_label_grid,
    shorten_first_lines,
)
from nrprob.plotting.profiles import Side, common_scale, draw_bar, draw_profile, profiles_of
from nrprob.plotting.style import as_axes, shorten_names, shorten_text, text_extent
from nrprob.statistics.groups import observed_means
from nrprob.statistics.table_units import TableUnits
from nrprob.statistics.top_features import features_in_turn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "gray_r"  # colour map of images
_MAX_FEATURES = 24  # maximum number of features of a heat map
_WIDTH = 10.0  # maximum width of a row of several parts of the figure, in inches
# Width in inches of the image of a group or cluster, and of a combination of both.
_IMAGE, _CELL = 1.4, 0.85


def _image_part(images: np.ndarray, titles: Sequence[str], head: str, limits: Any) -> Part:
    """Make a figure part with centroids as images, five in a row, under the heading ``head``.

    ``images`` has the shape (n_images, height, width), and ``titles`` are the titles of the images.
    ``limits`` are the limits of the colour scale.
    """
    per_row = min(len(images), 5)
    titles = shorten_first_lines(titles, 17, 2)
    above = max(text_extent(title, 9)[1] for title in titles) + 0.06
    top = text_extent(head, 11)[1] + 0.06
    width = max(_IMAGE * per_row, text_extent(head, 11)[0])
    high = _IMAGE - 0.1

    def draw_part(position: Position) -> None:
        position.add_text(head, width / 2, 0, fontsize=11)
        start = (width - _IMAGE * per_row) / 2 + 0.05
        for i, (image, title) in enumerate(zip(images, titles, strict=True)):
            line, column = divmod(i, per_row)
            down = top + line * (_IMAGE + above) + above
            ax = position.add_axes(start + column * _IMAGE, down, high, high)
            ax.set_axis_off()
            ax.imshow(image, cmap=_INK, clim=limits, interpolation="bicubic")
            ax.set_title(title, fontsize=9, pad=3, parse_math=False)

    return Part(width, top + math.ceil(len(images) / per_row) * (_IMAGE + above), draw_part)


def _combination_part(
    cells: np.ndarray, counts: np.ndarray, rows: Sequence[str], columns: Sequence[str], limits: Any
) -> Part:
    """Make a figure part with the mean image of every combination of known group and cluster.

    ``cells`` (r, c, height, width) are the mean images and ``counts`` (r, c) the numbers of samples
    of the combinations. ``rows`` are the names of the r groups, and ``columns`` of the c clusters.
    ``limits`` are the limits of the colour scale.
    """
    head = "mean of each combination"
    rows, columns = shorten_names(rows, 20), shorten_names(columns, 12)
    left = max(text_extent(name, 9)[0] for name in rows) + 0.08
    top = text_extent(head, 11)[1] + max(text_extent(name, 9)[1] for name in columns) + 0.12
    width = max(left + _CELL * len(columns), text_extent(head, 11)[0])

    def draw_part(position: Position) -> None:
        position.add_text(head, width / 2, 0, fontsize=11)
        for i, j in np.ndindex(counts.shape):
            ax = position.add_axes(left + j * _CELL, top + i * _CELL, 0.95 * _CELL, 0.95 * _CELL)
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

    return Part(width, top + _CELL * len(rows), draw_part)


def _draw_profiles(axes: np.ndarray, sides: Sequence[Side], features: Sequence[str]) -> None:
    """Draw the centroids of two labelings as heat maps into existing axes, with a colour bar.

    ``features`` are the names of the features.
    """
    top = common_scale(sides)
    draw_bar(axes[1].figure, top, ax=axes[1])
    for ax, side in zip(axes, sides, strict=True):
        draw_profile(ax, fit_label_grid(features, side.names, ax), side, top)


def _finish_axes(
    axes: np.ndarray, heads: Sequence[str], labels: Any, labelings: Mapping[str, Any]
) -> np.ndarray:
    """Set the titles of the axes with centroids; draw contingency tables into the other axes.

    ``heads`` are the titles. ``labelings`` are compared with the clusters ``labels``, by name.
    """
    for ax, head in zip(axes, heads, strict=False):
        ax.set_title(shorten_text(head, 28), fontsize=10, parse_math=False)
    for ax, (name, labeling) in zip(axes[2:], labelings.items(), strict=True):
        plot_contingency(labels, labeling, ax, labels_name="", known_name="")
        ax.set_title(shorten_text(f"clusters against {name}", 28), fontsize=10, parse_math=False)
    return axes


def _draw_images(ax: Axes, images: np.ndarray, titles: Sequence[str], limits: Any) -> None:
    """Draw centroids as images with titles, five in a row, into existing axes.

    ``images`` has the shape (n_images, height, width). ``limits`` are the limits of the colours.
    """
    per_row = min(len(images), 5)
    high = images.shape[1] / images.shape[2]
    step = 1.1, high + 0.35  # images are one unit wide
    for i, (image, title) in enumerate(zip(images, titles, strict=True)):
        line, column = divmod(i, per_row)
        left, top = column * step[0], line * step[1]
        ax.imshow(
            image, cmap=_INK, clim=limits, interpolation="bicubic",
            extent=(left, left + 1, top + high, top),
        )  # fmt: skip
        ax.text(
            left + 0.5, top - 0.04, title, ha="center", va="bottom", fontsize=8, parse_math=False
        )
    ax.set_xlim(0, per_row * step[0] - 0.1)
    ax.set_ylim(math.ceil(len(images) / per_row) * step[1] - 0.35, -0.3)
    ax.set_axis_off()


def _contingency_part(labels: Any, known: Any, name: str) -> Part:
    """Make a figure part with the contingency table of clusters and the labeling ``name``."""
    head = shorten_text(f"clusters against {name}", 40)
    table = Table.from_labels(labels, known)
    grid = table.make_grid(table.counts.size <= 40)
    above, (across, down) = text_extent(head, 11)[1] + 0.08, grid.body_size
    width = max(grid.left + across, text_extent(head, 11)[0])

    def draw_part(position: Position) -> None:
        position.add_text(head, width / 2, 0, fontsize=11)
        left = (width - grid.left - across) / 2 + grid.left
        table.draw_on(position.add_axes(left, above, across, down), grid, None)

    return Part(width, above + down + grid.below, draw_part)


@overload
def plot_centroids(
    X: Any,
    labels: Any,
    known: Any,
    image_shape: tuple[int, int] | None = None,
    feature_names: Sequence[str] | None = None,
    *,
    axes: None = None,
    labels_name: str = ...,
    known_name: str = ...,
    others: Mapping[str, Any] | None = ...,
    cells: bool | Literal["auto"] = ...,
    title: str | None = ...,
) -> Figure: ...


@overload
def plot_centroids(
    X: Any,
    labels: Any,
    known: Any,
    image_shape: tuple[int, int] | None = None,
    feature_names: Sequence[str] | None = None,
    *,
    axes: Any,
    labels_name: str = ...,
    known_name: str = ...,
    others: Mapping[str, Any] | None = ...,
    cells: bool | Literal["auto"] = ...,
    title: str | None = ...,
) -> np.ndarray: ...


def plot_centroids(
    X: Any,
    labels: Any,
    known: Any,
    image_shape: tuple[int, int] | None = None,
    feature_names: Sequence[str] | None = None,
    *,
    axes: Any = None,
    labels_name: str = "clusters",
    known_name: str = "groups",
    others: Mapping[str, Any] | None = None,
    cells: bool | Literal["auto"] = "auto",
    title: str | None = None,
) -> Figure | np.ndarray:
    """Plot centroids of known groups and of clusters, and their contingency tables.

    Parameters
    ----------
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        The data. Text of a frame becomes binary columns. Means ignore missing values.
    labels : array of shape (n_samples,)
        Clusters. Categories of pandas keep their order.
    known : array of shape (n_samples,)
        Known groups.
    image_shape : (int, int), optional
        Height and width if samples are images. By default, centroids are a heat map of features, in
        standard deviations from the mean of all samples.
    feature_names : sequence of str, optional
        Names for the heat map; used when `image_shape` is None.
    axes : sequence of matplotlib.axes.Axes, optional
        Axes for the centroids of known groups, the centroids of clusters, and the contingency table
        of every labeling, in this order. By default, the function makes a new figure. A new figure
        of images also shows the means of combinations, see ``cells``.
    labels_name, known_name : str, default="clusters", "groups"
        Names of the two labelings.
    others : mapping of str to array of shape (n_samples,), optional
        Further labelings, each with a contingency table.
    cells : bool or "auto", default="auto"
        For images, whether to plot the mean of every combination of a known group and a cluster;
        "auto" does so for at most 20 combinations.
    title : str, optional
        Title of a new figure.

    Returns
    -------
    matplotlib.figure.Figure, or ndarray of matplotlib.axes.Axes if `axes` are passed
        Centroids on a common scale, then combinations and contingency tables. The size of a new
        figure depends on names and numbers. Long names are shortened in the middle. Beyond 20
        groups, the smallest are merged.

    See Also
    --------
    plot_contingency : Plot one contingency table.
    plot_top_features : Plot the features that distinguish clusters.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.plotting import plot_centroids
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> plot_centroids(X, [0, 1] * 20, [0, 0, 1, 1] * 10).get_size_inches().shape
    (2,)
    """
    return draw_centroids(
        X, labels, known, image_shape, feature_names, axes=axes, labels_name=labels_name,
        known_name=known_name, others=others, cells=cells, title=title,
    )  # fmt: skip


def draw_centroids(
    X: Any,
    labels: Any,
    known: Any,
    image_shape: tuple[int, int] | None = None,
    feature_names: Sequence[str] | None = None,
    *,
    axes: Any = None,
    labels_name: str = "clusters",
    known_name: str = "groups",
    others: Mapping[str, Any] | None = None,
    cells: bool | Literal["auto"] = "auto",
    title: str | None = None,
    units: TableUnits | None = None,
) -> Figure | np.ndarray:
    """Plot centroids as `plot_centroids` does, on request in the units of a table.

    With ``units``, the cells of the heat map have the means in the units of the table, and names of
    columns replace names of logarithms. A note below the figure explains the units and the means of
    logarithms.
    """
    check_texts(
        labels_name=labels_name, known_name=known_name, title="" if title is None else title
    )
    if not isinstance(cells, bool):
        check_choice("cells", cells, ("auto",), "or True or False")
    X, _, columns = read_rows(X, None)
    n_rows, n_features = X.shape
    group_names, group_codes = named_labels(known, "known", known_name, n_rows)
    cluster_names, cluster_codes = named_labels(labels, "labels", "cluster", n_rows)
    n_groups, n_clusters = len(group_names), len(cluster_names)
    if image_shape is not None:
        image_shape = _check_image_shape(image_shape, n_features)
    names = feature_texts(feature_names, columns, n_features)

    if others is not None and not isinstance(others, Mapping):
        raise TypeError(
            "others must be a mapping from names to labelings; got "
            f"{short_repr(others)}; pass a dict"
        )
    labelings = {known_name: known} | {str(name): other for name, other in (others or {}).items()}
    panels = None if axes is None else as_axes(axes, 2 + len(labelings))

    group_sizes = with_sizes(group_names, group_codes)
    cluster_sizes = with_sizes(cluster_names, cluster_codes)
    by_group = observed_means(X, group_codes, n_groups)
    by_cluster = observed_means(X, cluster_codes, n_clusters)
    heads, note = (f"known: {known_name}", f"fitted: {labels_name}"), ""

    if image_shape is not None:
        limits = (min(by_group.min(), by_cluster.min()), max(by_group.max(), by_cluster.max()))
        if panels is not None:
            for ax, means, titles in zip(
                panels, (by_group, by_cluster), (group_names, cluster_names), strict=False
            ):
                short_titles = shorten_names(titles, 12, 1)
                _draw_images(ax, means.reshape(-1, *image_shape), short_titles, limits)
            return _finish_axes(panels, heads, labels, labelings)
        parts = [
            _image_part(means.reshape(-1, *image_shape), titles, shorten_text(head, 40), limits)
            for head, means, titles in zip(
                heads, (by_group, by_cluster), (group_sizes, cluster_sizes), strict=True
            )
        ]
        if n_groups * n_clusters <= 20 if cells == "auto" else cells:
            codes = group_codes * n_clusters + cluster_codes
            counts = np.bincount(codes, minlength=n_groups * n_clusters)
            with np.errstate(invalid="ignore"):  # empty combinations are NaN and not plotted
                means = observed_means(X, codes, n_groups * n_clusters)
            shape = (n_groups, n_clusters)
            parts.append(
                _combination_part(
                    means.reshape(*shape, *image_shape), counts.reshape(shape), group_names,
                    cluster_names, (np.nanmin(means), np.nanmax(means)),
                )
            )  # fmt: skip
    else:
        centre, spread = _centre_and_spread(X)
        raw_means = np.vstack([by_group, by_cluster])
        by_group, by_cluster = (
            np.nan_to_num((means - centre) / spread) for means in (by_group, by_cluster)
        )
        chosen = np.arange(n_features)
        if n_features > _MAX_FEATURES:
            # Show the features with the largest deviations from the mean in each cluster, in turn.
            # For a single cluster, use the deviations in the known groups.
            deviation = np.abs(by_cluster if n_clusters > 1 else by_group)
            chosen = np.sort(features_in_turn(deviation, _MAX_FEATURES))
            if chosen.size < _MAX_FEATURES:  # all other features have no deviation
                rest = np.setdiff1d(np.arange(n_features), chosen)
                chosen = np.sort(np.append(chosen, rest[: _MAX_FEATURES - chosen.size]))
            by_group, by_cluster = by_group[:, chosen], by_cluster[:, chosen]
            heads = (heads[0], f"{heads[1]} ({_MAX_FEATURES} of {n_features} features)")
        names = [names[j] for j in chosen]
        texts = np.char.mod("%+.1f", np.round(np.vstack([by_group, by_cluster]), 1) + 0.0)
        if units is not None:
            by_feature = zip(names, raw_means[:, chosen].T.tolist(), strict=True)
            texts = np.array([units.format_means(name, means) for name, means in by_feature]).T
            starred = [name in units.logarithms for name in names]
            names = [units.label(x) + "*" * star for x, star in zip(names, starred, strict=True)]
        sides = [
            Side(heads[0], by_group, group_sizes, texts[:n_groups]),
            Side(heads[1], by_cluster, cluster_sizes, texts[n_groups:]),
        ]
        if panels is not None:
            _draw_profiles(panels[:2], sides, names)
            return _finish_axes(panels, heads, labels, labelings)
        parts = profiles_of(sides, names)
        if units is not None:
            note = _note_on_units(any(side.is_numbered for side in sides), any(starred))
    parts += [_contingency_part(labels, labeling, name) for name, labeling in labelings.items()]
    return compose_figure(parts, _WIDTH, title or "", note)


def _note_on_units(has_numbers: bool, has_logarithms: bool) -> str:
    """Note below heat maps in the units of a table; empty if there is nothing to explain."""
    lines = ["Numbers are means or shares, in the units of the table."] * has_numbers
    if has_logarithms:
        about_means = ", and the numbers are geometric means" * has_numbers
        lines.append(f"* The colours show logarithms{about_means}.")
    return "\n".join(lines)


def _check_image_shape(shape: Any, n_features: int) -> tuple[int, int]:
    """Validate the height and width of images with ``n_features`` pixels; return both."""
    sides = [*shape] if isinstance(shape, list | tuple | np.ndarray) else []
    positive = all(isinstance(side, int | np.integer) and side > 0 for side in sides)
    if len(sides) != 2 or not positive or math.prod(map(int, sides)) != n_features:
        raise ValueError(
            f"image_shape must be the height and width of a row of {n_features} pixels; got "
            f"{short_repr(shape)}; pass two integers whose product is {n_features}"
        )
    return int(sides[0]), int(sides[1])


def _centre_and_spread(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations (n_features,) of features; 1 for constant features."""
    if scipy.sparse.issparse(X):
        centre = np.asarray(X.mean(axis=0)).ravel()
        square = np.asarray(X.multiply(X).mean(axis=0)).ravel()
        spread = np.sqrt(np.maximum(square - centre**2, 0))
    else:
        values = np.asarray(X, dtype=float)
        values = np.ma.masked_invalid(values) if np.isnan(values).any() else values
        centre, spread = np.asarray(values.mean(axis=0)), np.asarray(values.std(axis=0))
    return centre, np.where(spread > 0, spread, 1.0)
