"""Scatter plot of rows in the discriminant plane, marked by one or several labelings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob import metrics
from nrprob.data.design import Design
from nrprob.data.validation import MOST, as_array, check_number, check_random_state
from nrprob.plotting.groups import check_texts, distinct, named, named_known, read_rows, with_sizes
from nrprob.plotting.style import (
    as_axes,
    colour,
    legend_below,
    legend_rows,
    marker,
    panels,
    short,
    shortened,
)
from nrprob.statistics.planes import NOTHING, Plane, discriminant_plane

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LISTED = 6  # clusters whose sizes a title says, and labelings with which it compares
_TITLE = 42  # letters
_JOINED = "\N{NO-BREAK SPACE}"
_AREAS = {"P": 1.5, "X": 1.5, "*": 2.2, "v": 1.2, "^": 1.2}  # marks of little ink are larger
_SPREAD = "no second direction: at random"


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
    """Draw what known groups leave of the rows, marked by these groups and by found clusters.

    Of every row the mean of its known group is taken off. The plane is that of the two leading
    discriminants of the found clusters, the directions in which they are farthest apart for their
    spread. With two clusters there is one, and with one none: principal directions of what is left
    take their place.

    The plane is chosen so that clusters are told apart, which in few rows of many features they are
    in noise as well. Whether they are there, `nrprob.evidence.test` says, and its `Evidence.plot`
    shows rows by fits that have not seen them.

    Parameters
    ----------
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        The data.
    labels : array of shape (n_samples,)
        Found clusters.
    known : array of shape (n_samples,) or (n_samples, n_labelings), optional
        Known groups, or combinations of several labelings; of a frame, also names of its columns.
    axes : sequence of two matplotlib.axes.Axes, optional
        Where to draw; a new figure when it is None.
    labels_name, known_name : str, default="found clusters", "known groups"
        Titles.
    n_points : int, default=2000
        Most rows that are drawn, from 1 on; of more, a sample, of which the titles say the number.
        The plane is that of all rows.
    random_state : int, RandomState instance or None, default=None
        Determines the sample, and the search for principal directions of many features.

    Returns
    -------
    ndarray of two matplotlib.axes.Axes
        The axes drawn on: known groups to the left, found clusters to the right, of more than 20
        the smallest as one, and legends below. Units are standard deviations of what is left.
        Of a single direction, rows are spread at random along the other.

    Raises
    ------
    ValueError
        If shapes do not fit, or what is known is no labels.

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
    _check_labels_known(design)
    n = X.shape[0]
    sides = [named_known(design), named(labels, "labels", "cluster", n)]
    codes = distinct(labels, "labels", n)[1]
    result = _plane(X, codes[:, None], design, random)
    shown = _sample(n, n_points, random)
    legends = [with_sizes(shortened(names), own, ", ") for names, own in sides]
    axes = _axes(axes, legends, 2, (4.4, 3.7))
    heads = (known_name, labels_name)
    for ax, head, names, (_, side) in zip(axes, heads, legends, sides, strict=True):
        _draw(ax, result, names, side, shown, 4.4)
        ax.set_title("\n".join([head, *_sampled(n, shown)]), fontsize=10, parse_math=False)
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
    """Draw alternative clusterings of the same rows, one panel each, in one plane.

    The plane is that of the two directions in which the clusters of all labelings together are
    farthest apart for their spread, after the mean of its known group is taken off every row.

    Parameters
    ----------
    X : array, sparse matrix or frame of shape (n_samples, n_features)
        The data.
    labelings : array of shape (n_samples, n_labelings), mapping, Exploration or estimator
        The clusterings; of a mapping, with their names. Of what `nrprob.explore` returns they are
        ``labels_``, and of a fitted estimator ``alternatives_``.
    known : array of shape (n_samples,) or (n_samples, n_labelings), optional
        Known groups; of a frame, also names of its columns. By default those of the Exploration,
        if it is one.
    axes : sequence of matplotlib.axes.Axes, optional
        Where to draw, one for every labeling; a new figure when it is None.
    n_points : int, default=2000
        Most rows that are drawn, as in `plot_residuals`.
    random_state : int, RandomState instance or None, default=None
        Determines the sample, and the search for principal directions of many features.

    Returns
    -------
    ndarray of matplotlib.axes.Axes
        The axes drawn on, one for every labeling. Titles say the sizes of the clusters, and the
        normalised mutual information (NMI) with what was known and with the other labelings: 0 if
        one says nothing about the other, 1 if they are the same.

    Raises
    ------
    ValueError
        If shapes do not fit, or what is known is no labels.

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
    explored = getattr(labelings, "known_", None)
    if known is None and explored is not None and explored.shape[1]:
        known = explored
    X, design, _ = read_rows(X, known)
    _check_labels_known(design)
    n = X.shape[0]
    columns = _columns(labelings, n)
    codes = {name: distinct(own, name, n)[1] for name, own in columns.items()}
    result = _plane(X, np.column_stack([*codes.values()]), design, random)
    shown = _sample(n, n_points, random)
    sides = [named(own, name, "cluster") for name, own in columns.items()]
    sides = [(shortened(names), side) for names, side in sides]
    axes = _axes(axes, [names for names, _ in sides], 3, (3.6, 3.9))
    for ax, (name, own), (names, side) in zip(axes, codes.items(), sides, strict=True):
        _draw(ax, result, names, side, shown, 3.6)
        lines = [name, _sizes(own), *_agreement(name, codes, design), *_sampled(n, shown)]
        lines = [part for line in lines for part in textwrap.wrap(line, _TITLE)]
        title = "\n".join(lines).replace(_JOINED, " ")
        ax.set_title(title, fontsize=9, parse_math=False)
    return axes


def _check_labels_known(design: Design) -> None:
    if design.kind not in ("nothing", "labels"):
        raise ValueError(
            "known must be labels where rows are marked by them; got "
            f"{design.description}; cut them into groups"
        )


def _plane(X: Any, codes: np.ndarray, design: Design, random: Any) -> Plane:
    """The plane of some labelings; rows of a single direction are spread along the other."""
    result = discriminant_plane(X, codes, design.codes, random)
    if result.kinds[1] == NOTHING:
        result.places[:, 1] = random.uniform(-1, 1, size=len(codes))
    return result


def _columns(labelings: Any, n: int) -> dict[str, np.ndarray]:
    """Labelings (n,) by name."""
    if isinstance(labelings, Mapping):
        columns = {str(name): as_array(own, str(name)) for name, own in labelings.items()}
    else:
        result = getattr(labelings, "alternatives_", getattr(labelings, "labels_", labelings))
        table = as_array(result, "labelings")
        table = table[:, None] if table.ndim == 1 else table
        if table.ndim != 2 or len(table) != n:
            raise ValueError(
                "labelings must be labels or an array of one column per labeling, or have them "
                f"as alternatives_ or labels_; got shape {table.shape} for {n} rows; pass as many "
                "rows as X has"
            )
        columns = {f"clustering {j + 1}": own for j, own in enumerate(table.T)}
    if not columns:
        raise ValueError("labelings must have a labeling; got none; pass at least one column")
    return columns


def _sample(n: int, most: int, random: Any) -> np.ndarray:
    """Rows that are drawn, in ascending order."""
    return np.arange(n) if n <= most else np.sort(random.choice(n, most, replace=False))


def _sampled(n: int, shown: np.ndarray) -> list[str]:
    return [] if len(shown) == n else [f"{len(shown)} of {n} rows, at random"]


def _sizes(codes: np.ndarray) -> str:
    sizes = np.bincount(codes)
    if len(sizes) > _LISTED:
        return f"{len(sizes)} clusters of {sizes.min()} to {sizes.max()} rows"
    return f"sizes {', '.join(map(str, sizes))}"


def _agreement(name: str, codes: Mapping[str, np.ndarray], design: Design) -> list[str]:
    """How much a labeling says about what was known and about the others."""
    several = design.labelings.shape[1] > 1
    known = {
        f"known {j + 1}" if several else "known": own for j, own in enumerate(design.labelings.T)
    }
    others = known | {other: own for other, own in codes.items() if other != name}
    values = {
        other: metrics.normalized_mutual_information(codes[name], own)
        for other, own in others.items()
    }
    if len(values) > _LISTED:
        return [f"NMI at most {max(values.values()):.2f} with {len(values)} labelings"]
    said = [f"{value:.2f} with {short(other, 24, 1)}" for other, value in values.items()]
    return ["NMI " + ", ".join(one.replace(" ", _JOINED) for one in said)] if said else []


def _axes(
    axes: Any, names: Sequence[Sequence[str]], per_row: int, size: tuple[float, float]
) -> np.ndarray:
    """Axes for panels of these names; new ones have this size and room for the longest legend."""
    if axes is not None:
        return as_axes(axes, len(names))
    room = max(legend_rows(own, size[0])[1] for own in names)
    return panels(len(names), per_row, (size[0], size[1] + room))


def _draw(
    ax: Axes,
    result: Plane,
    names: Sequence[str],
    codes: np.ndarray,
    shown: np.ndarray,
    width: float,
) -> None:
    """Points of every group, the largest below the others, and what their marks mean."""
    places, codes = result.places[shown], codes[shown]
    sizes = np.bincount(codes, minlength=len(names))
    below = np.argsort(np.argsort(-sizes, kind="stable"))
    area = float(np.clip(2400 * width / len(shown), 9, 34))
    for group, name in enumerate(names):
        mark = marker(group)
        ax.scatter(
            *places[codes == group].T, s=area * _AREAS.get(mark, 1), color=colour(group),
            marker=mark, edgecolors="white" if len(shown) <= 1000 else "none", linewidths=0.3,
            zorder=2 + below[group] / len(names), label=name,
        )  # fmt: skip
    for axis, name, which in zip(
        (ax.xaxis, ax.yaxis), _directions(result.kinds), "xy", strict=True
    ):
        axis.set_label_text(name, fontsize=9)
        if name == _SPREAD:
            ax.tick_params(axis=which, left=False, labelleft=False)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    legend_below(ax, width)


def _directions(kinds: tuple[str, str]) -> tuple[str, str]:
    """What axes are called."""
    if kinds[0] == kinds[1] != NOTHING:
        return f"{kinds[0]} 1", f"{kinds[0]} 2"
    first = "all rows are alike" if kinds[0] == NOTHING else kinds[0]
    return first, _SPREAD if kinds[1] == NOTHING else f"{kinds[1]} of the rest"
