"""Plot criteria for the number of clusters: paths, merges, held-out likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import MOST, check_number
from nrprob.plotting.style import BAR, check_axes, colour, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WRITTEN = 12  # levels that have their temperatures beside them


def plot_by_n_clusters(result: Any, ax: Axes | None = None, *, n_clusters: int = 20) -> Axes:
    """Draw what every number of clusters is worth, as far as a fit or a search has found it.

    Parameters
    ----------
    result : estimator or NumberOfClusters
        One of

        - what `nrprob.evidence.n_clusters` returns, or a `ResidualMixture` or `MixtureEM` fitted
          with ``n_clusters="auto"``, which has the same as ``number_``: the log-likelihood of rows
          held out, the mean per row. Bars are standard errors of the difference to the best, which
          has none, and the chosen number is marked. The title says why it is: its rows are the
          likeliest, or, where it is 1 and they are not, several clusters predict no better when
          they are mixed with one wide cloud than this does alone;
        - a `CrossPartition`, or an `IB` or `IBSI` with ``solver="split"``: the objective of every
          level of ``path_``, with its inverse temperature;
        - a `NACI` or `COALA`, or an `IB`, `IBSI` or `CCIB` with ``solver="agglomerative"``: what
          each merge of two clusters cost, of the last merges. That of k clusters into k - 1 is at
          k, so that a number of clusters before which costs are low stands out. The number of
          the fit is hatched. Of `COALA` it is the mean distance of the merged, and of `NACI` what
          its objective lost; where that is negative, it gained.

    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure when it is None.
    n_clusters : int, default=20
        Largest number of clusters of which a merge is drawn, from 2 on.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on.

    Raises
    ------
    TypeError
        If ``result`` is none of these.

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
    merges = _merges(result)
    kinds = (
        hasattr(result, "table") and hasattr(result, "tried_"),
        hasattr(result, "path_"),
        merges is not None,
    )
    if not any(kinds) or isinstance(result, type):
        raise TypeError(
            "found must hold several numbers of clusters: what nrprob.evidence.n_clusters "
            "returns, or a fitted estimator with a path_ or a linkage_; got "
            f"{type(result).__name__}; pass one of these"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    if kinds[0]:
        _draw_held_out(ax, result)
    elif kinds[1]:
        _draw_path(ax, result)
    elif merges is not None:
        _draw_merges(ax, *merges, result.n_clusters, n_clusters)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _draw_held_out(ax: Axes, result: Any) -> None:
    table = result.table
    k, value = table.index.to_numpy(), table["log_likelihood"].to_numpy()
    error = np.nan_to_num(table["standard_error"].to_numpy())
    ax.errorbar(
        k, value, error, color=colour(0), marker=marker(0), markersize=5, linewidth=1.3, capsize=3
    )
    best = k == result.n_clusters_
    ax.plot(
        k[best],
        value[best],
        color=colour(1),
        marker=marker(2),
        markersize=9,
        linestyle="",
        zorder=4,
    )
    # One cluster may be chosen though several predict better: they have to beat any single cloud.
    why = "rows held out are likeliest"
    if value[best][0] < value.max():
        why = "half-and-half, more clusters gain nothing over one cloud"
    ax.set_title(f"{result.n_clusters_} chosen: {why}\nbars: one standard error", fontsize=9)
    ax.set_xlabel("number of clusters")
    ax.set_ylabel("held-out log-likelihood per row (nats)")


def _draw_path(ax: Axes, result: Any) -> None:
    levels = result.path_
    k = np.array([level.n_clusters for level in levels])
    objective = np.asarray(result.objective_trace_, float)
    ax.plot(k, objective, color=colour(0), marker=marker(0), markersize=6, linewidth=1.3)
    if len(levels) <= _WRITTEN:
        for level, x, y in zip(levels[1:], k[1:], objective[1:], strict=True):
            text = f"$\\beta$ = {level.beta:.3g}"
            ax.annotate(text, (x, y), (4, 4), textcoords="offset points", fontsize=8)
    ax.margins(x=0.18, y=0.1)
    ax.set_xlabel("number of clusters")
    ax.set_ylabel("objective of the level (minimised)")


def _merges(result: Any) -> tuple[np.ndarray, np.ndarray, str] | None:
    """Numbers of clusters before every merge, what it cost, and what that is; None without any."""
    if not hasattr(result, "linkage_"):
        return None
    if hasattr(result, "merge_gains_"):
        costs, what = -np.asarray(result.merge_gains_), "objective lost by the merge"
    elif hasattr(result, "merge_distances_"):
        costs, what = np.asarray(result.merge_distances_), "mean distance of the merged"
    else:
        costs, what = np.asarray(result.merge_costs_), "cost of the merge (nats)"
    # Clusters of different wanted classes are never merged.
    left = max(len(getattr(result, "classes_", ())), 1)
    return left + np.arange(len(costs), 0, -1), costs, what


def _draw_merges(
    ax: Axes, k: np.ndarray, costs: np.ndarray, what: str, chosen: int, most: int
) -> None:
    shown = np.flatnonzero(k <= most)[::-1]
    bars = ax.bar(k[shown], costs[shown], color=BAR, edgecolor="white", width=0.8)
    for bar, number in zip(bars, k[shown], strict=True):
        if number == chosen:
            bar.set_hatch("////")
            bar.set_facecolor(colour(1))
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xlabel("number of clusters before the merge")
    ax.set_ylabel(what)
