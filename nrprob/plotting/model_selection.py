"""Plot criteria for the number of clusters: paths, merges, held-out likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import MOST, check_number
from nrprob.plotting.style import BAR, check_axes, nth_colour, nth_marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_ANNOTATED = 12  # maximum number of levels of a path with written temperatures


def plot_by_n_clusters(result: Any, ax: Axes | None = None, *, n_clusters: int = 20) -> Axes:
    """Plot a criterion for the number of clusters against the number of clusters.

    Parameters
    ----------
    result : estimator or NumberOfClusters
        One of

        - the result of `nrprob.evidence.n_clusters`, or a `ConditionalMixture` or `MixtureEM`
          fitted with ``n_clusters="auto"``, whose ``number_`` is such a result: the mean held-out
          log-likelihood per sample. Error bars are standard errors of the difference from the best
          number. The chosen number is marked, and the title gives the reason: the highest
          log-likelihood, or no gain of several clusters over a null model;
        - a `CrossPartition`, or an `IB` or `IBSI` with ``solver="split"``: the objective of every
          level of ``path_``, with its inverse temperature;
        - a `NACI` or `COALA`, or an `IB`, `IBSI` or `CCIB` with ``solver="agglomerative"``: the
          cost of the last merges. The merge of k clusters into k - 1 is at k. A number of clusters
          stands out if its cost is high and the costs of larger numbers are low. The number of the
          fit is hatched. The cost is the mean distance of the merged clusters for `COALA`, and the
          decrease of the objective for `NACI`.

    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default in a new figure.
    n_clusters : int, default=20
        Merges of more clusters than this number are not shown. At least 2.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    TypeError
        If ``result`` has another type, or is not fitted.

    See Also
    --------
    nrprob.evidence.n_clusters : Choose the number by held-out log-likelihood.
    plot_hierarchy : Plot the clusters of every level.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import COALA
    >>> from nrprob.plotting import plot_by_n_clusters
    >>> X = np.repeat([[0.0], [5.0], [20.0]], 4, axis=0) + np.arange(12)[:, None] / 10
    >>> ax = plot_by_n_clusters(COALA(3).fit(X, known=np.tile([0, 1], 6)), n_clusters=4)
    >>> [int(round(bar.get_x() + bar.get_width() / 2)) for bar in ax.patches]
    [2, 3, 4]
    """
    import matplotlib.pyplot as plt

    check_axes(ax)
    check_number("n_clusters", n_clusters, low=2, high=MOST, integer=True)
    result = getattr(result, "number_", result)
    merges = _merge_costs(result)
    is_held_out, is_path, has_merges = (
        hasattr(result, "table") and hasattr(result, "tried_"),
        hasattr(result, "path_"),
        merges is not None,
    )
    if not (is_held_out or is_path or has_merges) or isinstance(result, type):
        raise TypeError(
            "result must hold several numbers of clusters: a result of nrprob.evidence.n_clusters, "
            "or a fitted estimator with path_ or linkage_; got "
            f"{type(result).__name__}; pass one of these"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    if is_held_out:
        _draw_held_out(ax, result)
    elif is_path:
        _draw_path(ax, result)
    elif merges is not None:
        _draw_merges(ax, *merges, result.n_clusters, n_clusters)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _draw_held_out(ax: Axes, result: Any) -> None:
    """Plot the held-out log-likelihood by number of clusters, and mark the chosen number.

    ``result`` is a result of `nrprob.evidence.n_clusters`.
    """
    table = result.table
    k, value = table.index.to_numpy(), table["log_likelihood"].to_numpy()
    error = np.nan_to_num(table["standard_error"].to_numpy())
    ax.errorbar(
        k,
        value,
        error,
        color=nth_colour(0),
        marker=nth_marker(0),
        markersize=5,
        linewidth=1.3,
        capsize=3,
    )
    best = k == result.n_clusters_
    ax.plot(
        k[best],
        value[best],
        color=nth_colour(1),
        marker=nth_marker(2),
        markersize=9,
        linestyle="",
        zorder=4,
    )
    # One cluster is chosen if several clusters have a higher log-likelihood, but do not improve on
    # a null model.
    reason = "highest log-likelihood"
    if value[best][0] < value.max():
        reason = "several clusters gain nothing over a null model"
    ax.set_title(f"{result.n_clusters_} chosen: {reason}\nbars: one standard error", fontsize=9)
    ax.set_xlabel("number of clusters")
    ax.set_ylabel("held-out log-likelihood per row (nats)")


def _draw_path(ax: Axes, result: Any) -> None:
    """Plot the objective of every level of ``result.path_``, with the inverse temperature."""
    levels = result.path_
    k = np.array([level.n_clusters for level in levels])
    objective = np.asarray(result.objective_trace_, float)
    ax.plot(k, objective, color=nth_colour(0), marker=nth_marker(0), markersize=6, linewidth=1.3)
    if len(levels) <= _MAX_ANNOTATED:
        for level, x, y in zip(levels[1:], k[1:], objective[1:], strict=True):
            text = f"$\\beta$ = {level.beta:.3g}"
            ax.annotate(text, (x, y), (4, 4), textcoords="offset points", fontsize=8)
    ax.margins(x=0.18, y=0.1)
    ax.set_xlabel("number of clusters")
    ax.set_ylabel("objective of the level (minimised)")


def _merge_costs(result: Any) -> tuple[np.ndarray, np.ndarray, str] | None:
    """Return the merges of an agglomerative fit; None if the fit has no merges.

    Returns the number of clusters before every merge (n_merges,), the costs (n_merges,) of the
    merges, and the axis label of the costs.
    """
    if not hasattr(result, "linkage_"):
        return None
    if hasattr(result, "merge_gains_"):
        costs, label = -np.asarray(result.merge_gains_), "decrease of the objective"
    elif hasattr(result, "merge_distances_"):
        costs, label = np.asarray(result.merge_distances_), "mean distance of merged clusters"
    else:
        costs, label = np.asarray(result.merge_costs_), "cost of the merge (nats)"
    # Clusters of different target classes are never merged, so one cluster per class remains.
    smallest = max(len(getattr(result, "classes_", ())), 1)
    return smallest + np.arange(len(costs), 0, -1), costs, label


def _draw_merges(
    ax: Axes, k: np.ndarray, costs: np.ndarray, label: str, chosen: int, largest: int
) -> None:
    """Plot the costs of merges of at most ``largest`` clusters, and hatch the chosen number.

    ``k``, ``costs`` and ``label`` are from `_merge_costs`.
    """
    shown = np.flatnonzero(k <= largest)[::-1]
    bars = ax.bar(k[shown], costs[shown], color=BAR, edgecolor="white", width=0.8)
    for bar, number in zip(bars, k[shown], strict=True):
        if number == chosen:
            bar.set_hatch("////")
            bar.set_facecolor(nth_colour(1))
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xlabel("number of clusters before the merge")
    ax.set_ylabel(label)
