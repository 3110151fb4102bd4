"""Scatter plots of samples in a discriminant plane, marked by one or several labelings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from nrprob import metrics
from nrprob.data.design import Design
from nrprob.data.validation import MOST, as_array, check_number, check_random_state
from nrprob.plotting.groups import (
    check_texts,
    distinct_labels,
    named_groups,
    named_labels,
    read_rows,
    with_sizes,
)
from nrprob.plotting.style import (
    as_axes,
    legend_below,
    legend_rows,
    make_panels,
    nth_colour,
    nth_marker,
    shorten_names,
    shorten_text,
)
from nrprob.statistics.discriminants import NOTHING, Plane, discriminant_plane
from nrprob.statistics.groups import observed_means

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_LISTED = 6  # cluster sizes, and agreements with labelings, in a title
_TITLE_WIDTH = 42  # letters
_NO_BREAK = "\N{NO-BREAK SPACE}"
_AREAS = {"P": 1.5, "X": 1.5, "*": 2.2, "v": 1.2, "^": 1.2}  # relative areas of markers
_JITTER = "no second direction: jitter"


def plot_residuals(
    X: Any,
    labels: Any,
    known: Any = None,
    axes: Any = None,
    *,
    labels_name: str = "found clusters",
    known_name: str = "known groups",
    n_points: int = 2000,
    random_state: Any = None,
) -> np.ndarray:
    """Plot residuals after removing group effects, marked by known groups and by clusters.

    The effects of known groups are subtracted. The effects are fitted by least squares together
    with the clusters. The plane is spanned by the two leading linear discriminants of the clusters.
    With fewer than three clusters, principal components of the remaining variance replace missing
    discriminants.

    The plane maximises the separation of the clusters; with few samples of many features, this
    separation is large even for noise. Use `nrprob.evidence.test` to test for clusters;
    `Evidence.plot` shows held-out samples.

    Parameters
    ----------
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        The data.
    labels : array of shape (n_samples,)
        Clusters.
    known : array of shape (n_samples,) or (n_samples, n_labelings), optional
        Known groups, or combinations of several labelings. For a frame ``X``, also names of its
        columns.
    axes : sequence of two matplotlib.axes.Axes, optional
        Axes to draw on; by default in a new figure.
    labels_name, known_name : str, default="found clusters", "known groups"
        Titles of the panels.
    n_points : int, default=2000
        Maximum number of samples to draw, at least 1. If there are more, a random subset is
        plotted. The plane is computed from all samples.
    random_state : int, RandomState instance or None, default=None
        Determines the subset, the jitter, and the randomised search for principal components.

    Returns
    -------
    ndarray of two matplotlib.axes.Axes
        Known groups on the left, clusters on the right. Beyond 20 groups, the smallest are merged.
        Units are standard deviations of the residuals. If there is a single direction, the other
        coordinate is random jitter.

    Raises
    ------
    ValueError
        If shapes do not match, or ``known`` is not labels.

    See Also
    --------
    plot_alternatives : Plot several clusterings in one plane.
    nrprob.evidence.Evidence.plot : Plot held-out samples.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.plotting import plot_residuals
    >>> rng = np.random.default_rng(0)
    >>> known, sought = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 8 * sought
    >>> left, right = plot_residuals(X, sought, known)
    >>> right.get_title(), right.get_xlabel()
    ('found clusters', 'discriminant')
    """
    check_number("n_points", n_points, low=1, high=MOST, integer=True)
    check_texts(labels_name=labels_name, known_name=known_name)
    random = check_random_state(random_state)
    X, design, _ = read_rows(X, known)
    X = _fill_missing(X)
    _check_labels_known(design)
    n = X.shape[0]
    sides = [named_groups(design), named_labels(labels, "labels", "cluster", n)]
    codes = distinct_labels(labels, "labels", n)[1]
    plane = _fit_plane(X, codes[:, None], design, random)
    shown = _sample_rows(n, n_points, random)
    legends = [with_sizes(shorten_names(names), side, ", ") for names, side in sides]
    axes = _make_axes(axes, legends, 2, (4.4, 3.7))
    heads = (known_name, labels_name)
    for ax, head, names, (_, side) in zip(axes, heads, legends, sides, strict=True):
        _draw_points(ax, plane, names, side, shown, 4.4)
        ax.set_title("\n".join([head, *_sample_note(n, shown)]), fontsize=10, parse_math=False)
    return axes


def plot_alternatives(
    X: Any,
    labelings: Any,
    known: Any = None,
    axes: Any = None,
    *,
    n_points: int = 2000,
    random_state: Any = None,
) -> np.ndarray:
    """Plot alternative clusterings of the same samples, one per panel, in a common plane.

    The effects of known groups are subtracted. The effects are fitted by least squares together
    with the clusters of all labelings. The plane is spanned by the two leading linear discriminants
    of these clusters.

    Parameters
    ----------
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        The data.
    labelings : array of shape (n_samples, n_labelings), mapping, Exploration or estimator
        The clusterings; the keys of a mapping are the names of the clusterings. An Exploration has
        the clusterings as ``labels_``, a fitted estimator as ``alternatives_``.
    known : array of shape (n_samples,) or (n_samples, n_labelings), optional
        Known groups. For a frame ``X``, also names of its columns. By default the known groups of
        an Exploration.
    axes : sequence of matplotlib.axes.Axes, optional
        Axes to draw on, one per labeling; by default in a new figure.
    n_points : int, default=2000
        Maximum number of samples to draw, as in `plot_residuals`.
    random_state : int, RandomState instance or None, default=None
        Determines the subset, the jitter, and the randomised search for principal components.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        The axes, one per labeling. Titles give the sizes of the clusters, and the normalised mutual
        information (NMI) with known labelings and with the other labelings. NMI is 0 for
        independent labelings, and 1 for equal labelings.

    Raises
    ------
    ValueError
        If shapes do not match, or ``known`` is not labels.

    See Also
    --------
    plot_residuals : Plot one clustering and the known groups.
    nrprob.metrics.pairwise_agreement : Agreement of several labelings.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob.plotting import plot_alternatives
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> axes = plot_alternatives(X, X > 0)
    >>> print(axes[0].get_title())
    clustering 1
    sizes 19, 21
    NMI 0.01 with clustering 2
    """
    check_number("n_points", n_points, low=1, high=MOST, integer=True)
    random = check_random_state(random_state)
    known_labels = getattr(labelings, "known_", None)
    if known is None and known_labels is not None and known_labels.shape[1]:
        known = known_labels
    X, design, _ = read_rows(X, known)
    X = _fill_missing(X)
    _check_labels_known(design)
    n = X.shape[0]
    columns = _named_labelings(labelings, n)
    codes = {name: distinct_labels(labels, name, n)[1] for name, labels in columns.items()}
    plane = _fit_plane(X, np.column_stack([*codes.values()]), design, random)
    shown = _sample_rows(n, n_points, random)
    sides = [named_labels(labels, name, "cluster") for name, labels in columns.items()]
    sides = [(shorten_names(names), side) for names, side in sides]
    axes = _make_axes(axes, [names for names, _ in sides], 3, (3.6, 3.9))
    for ax, (name, labels), (names, side) in zip(axes, codes.items(), sides, strict=True):
        _draw_points(ax, plane, names, side, shown, 3.6)
        lines = [
            name,
            _describe_sizes(labels),
            *_describe_agreement(name, codes, design),
            *_sample_note(n, shown),
        ]
        lines = [part for line in lines for part in textwrap.wrap(line, _TITLE_WIDTH)]
        title = "\n".join(lines).replace(_NO_BREAK, " ")
        ax.set_title(title, fontsize=9, parse_math=False)
    return axes


def _check_labels_known(design: Design) -> None:
    if design.kind not in ("nothing", "labels"):
        raise ValueError(
            "known must be labels, which mark the rows; got "
            f"{design.description}; cut covariates into groups"
        )


def _fill_missing(X: Any) -> Any:
    """Replace missing values of ``X`` (n, m) by the means of their features."""
    if sparse.issparse(X) or not (missing := np.isnan(X)).any():
        return X
    return np.where(missing, observed_means(X, np.zeros(len(X), int)), X)


def _fit_plane(X: Any, codes: np.ndarray, design: Design, random: Any) -> Plane:
    """Discriminant plane of labelings, with jitter if there is a single direction.

    ``codes`` (n, n_labelings) are the clusters as integers, and ``design`` is the known structure.
    """
    plane = discriminant_plane(X, codes, design.codes, random)
    if plane.kinds[1] == NOTHING:
        plane.places[:, 1] = random.uniform(-1, 1, size=len(codes))
    return plane


def _named_labelings(labelings: Any, n: int) -> dict[str, np.ndarray]:
    """Return clusterings of ``n`` samples as arrays (n,), by name.

    See `plot_alternatives` for ``labelings``.
    """
    if isinstance(labelings, Mapping):
        columns = {str(name): as_array(labels, str(name)) for name, labels in labelings.items()}
    else:
        array = getattr(labelings, "alternatives_", getattr(labelings, "labels_", labelings))
        table = as_array(array, "labelings")
        table = table[:, None] if table.ndim == 1 else table
        if table.ndim != 2 or len(table) != n:
            raise ValueError(
                "labelings must be an array with one column per labeling, or have such an array as "
                f"alternatives_ or labels_; got shape {table.shape} for {n} rows; pass one label "
                "per row of X"
            )
        columns = {f"clustering {j + 1}": column for j, column in enumerate(table.T)}
    if not columns:
        raise ValueError("labelings must not be empty; got none; pass at least one column")
    return columns


def _sample_rows(n: int, n_points: int, random: Any) -> np.ndarray:
    """Indices of the samples to draw, ascending: a random subset if ``n`` exceeds ``n_points``."""
    return np.arange(n) if n <= n_points else np.sort(random.choice(n, n_points, replace=False))


def _sample_note(n: int, shown: np.ndarray) -> list[str]:
    return [] if len(shown) == n else [f"random {len(shown)} of {n} rows"]


def _describe_sizes(codes: np.ndarray) -> str:
    sizes = np.bincount(codes)
    if len(sizes) > _MAX_LISTED:
        return f"{len(sizes)} clusters of {sizes.min()} to {sizes.max()} rows"
    return f"sizes {', '.join(map(str, sizes))}"


def _describe_agreement(name: str, codes: Mapping[str, np.ndarray], design: Design) -> list[str]:
    """Describe the NMI of the labeling ``name`` with known labelings and all other labelings.

    ``codes`` has the labelings by name. Returns a list with one text, which is empty if there is no
    labeling to compare with.
    """
    several = design.labelings.shape[1] > 1
    known = {
        f"known {j + 1}" if several else "known": column
        for j, column in enumerate(design.labelings.T)
    }
    others = known | {other: labels for other, labels in codes.items() if other != name}
    values = {
        other: metrics.normalized_mutual_information(codes[name], labels)
        for other, labels in others.items()
    }
    if len(values) > _MAX_LISTED:
        return [f"NMI at most {max(values.values()):.2f} with {len(values)} labelings"]
    parts = [f"{value:.2f} with {shorten_text(other, 24, 1)}" for other, value in values.items()]
    return ["NMI " + ", ".join(part.replace(" ", _NO_BREAK) for part in parts)] if parts else []


def _make_axes(
    axes: Any, names: Sequence[Sequence[str]], per_row: int, size: tuple[float, float]
) -> np.ndarray:
    """Validate axes, or create axes of this size in inches, with room for the longest legend.

    ``names`` are the entries of the legends, and ``per_row`` is the number of axes in a row.
    """
    if axes is not None:
        return as_axes(axes, len(names))
    legend_height = max(legend_rows(texts, size[0])[1] for texts in names)
    return make_panels(len(names), per_row, (size[0], size[1] + legend_height))


def _draw_points(
    ax: Axes,
    plane: Plane,
    names: Sequence[str],
    codes: np.ndarray,
    shown: np.ndarray,
    width: float,
) -> None:
    """Plot the samples ``shown`` in a plane, large groups behind small ones, with a legend.

    ``codes`` (n,) are the groups of all samples as positions in ``names``. ``width`` is the width
    of the axes in inches.
    """
    points, codes = plane.places[shown], codes[shown]
    sizes = np.bincount(codes, minlength=len(names))
    rank = np.argsort(np.argsort(-sizes, kind="stable"))
    area = float(np.clip(2400 * width / len(shown), 9, 34))
    for group, name in enumerate(names):
        mark = nth_marker(group)
        ax.scatter(
            *points[codes == group].T, s=area * _AREAS.get(mark, 1), color=nth_colour(group),
            marker=mark, edgecolors="white" if len(shown) <= 1000 else "none", linewidths=0.3,
            zorder=2 + rank[group] / len(names), label=name,
        )  # fmt: skip
    for axis, name, which in zip(
        (ax.xaxis, ax.yaxis), _axis_labels(plane.kinds), "xy", strict=True
    ):
        axis.set_label_text(name, fontsize=9)
        if name == _JITTER:
            ax.tick_params(axis=which, left=False, labelleft=False)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    legend_below(ax, width)


def _axis_labels(kinds: tuple[str, str]) -> tuple[str, str]:
    """Labels of the horizontal and vertical axis, from the types of the directions of a `Plane`."""
    if kinds[0] == kinds[1] != NOTHING:
        return f"{kinds[0]} 1", f"{kinds[0]} 2"
    first = "all rows are equal" if kinds[0] == NOTHING else kinds[0]
    return first, _JITTER if kinds[1] == NOTHING else f"{kinds[1]} of the remainder"
