"""Plot the trace of the objective, and the final objectives of all restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import check_fitted
from nrprob.plotting.style import check_axes, nth_colour, nth_marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEPS_WIDTH = (
    0.72  # width of the trace, as a share of the axes, if restarts are plotted next to it
)
_MAX_MARKERS = 40  # maximum number of steps, or of restarts, with large markers


def plot_annealing(model: Any, ax: Axes | None = None) -> Axes:
    """Plot the objective after every step of a fit, and the final objectives of all restarts.

    Parameters
    ----------
    model : estimator
        Fitted estimator with the attribute ``objective_trace_``.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default in a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. The trace belongs to the best restart. The title gives the inverse temperatures of
        the first split and of the last step, if the model has them. With several restarts, the
        right part of the axes shows the final objectives of all restarts (``restarts_``) in
        ascending order, on a separate scale. Open markers are restarts that did not converge. The
        trace of `MDLMultiView` has no complexity term.

    Raises
    ------
    TypeError
        If ``model`` has no ``objective_trace_``.

    See Also
    --------
    plot_by_n_clusters : Plot the objective or log-likelihood by number of clusters.
    plot_hierarchy : Plot the clusters of every level of a path.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import IB
    >>> from nrprob.plotting import plot_annealing
    >>> X = np.random.default_rng(0).poisson(np.repeat([[9, 1], [1, 9]], 20, axis=0))
    >>> ax = plot_annealing(IB(2, n_init=3, random_state=0).fit(X))
    >>> ax.get_ylabel(), ax.child_axes[0].get_xlabel()
    ('objective (minimised)', '3 restarts')
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    check_axes(ax)
    check_fitted("model", model, "an estimator with an objective_trace_", "objective_trace_")
    trace = np.asarray(model.objective_trace_, float)
    if ax is None:
        _, ax = plt.subplots(figsize=(6.8, 3.4), layout="constrained")
    # Draw the trace, and mark its last step.
    steps = np.arange(1, len(trace) + 1)
    has_markers = len(trace) <= _MAX_MARKERS
    ax.plot(
        steps, trace, color=nth_colour(0), marker=nth_marker(0) if has_markers else None,
        markersize=4, linewidth=1.5,
    )  # fmt: skip
    ax.plot(
        steps[-1:],
        trace[-1:],
        linestyle="",
        color=nth_colour(1),
        marker=nth_marker(2),
        markersize=7,
    )
    ax.set_xlabel("step")
    ax.set_ylabel("objective (minimised)")
    _mark_temperature_zero(ax, getattr(model, "temperatures_", None), steps)
    ax.set_title(_describe_temperatures(model), fontsize=9, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ticks = MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]).tick_values(1, len(trace))
    ax.set_xticks([tick for tick in ticks if 1 <= tick <= len(trace)])
    # Draw the final objectives of several restarts.
    restarts = getattr(model, "restarts_", None)
    if restarts is not None and "objective" in restarts and restarts["objective"].size > 1:
        _make_room(ax, len(trace))
        _draw_restarts(ax, restarts)
    return ax


def _make_room(ax: Axes, n_steps: int) -> None:
    """Reserve the right part of the axes for the final objectives of the restarts.

    ``n_steps`` is the number of steps of the trace. The restarts are drawn inside the axes, since
    a layout engine reserves no space outside of axes.
    """
    first, last = 1 - 0.04 * n_steps, n_steps + 0.04 * n_steps
    ax.set_xlim(first, first + (last - first) / _STEPS_WIDTH)
    ax.spines["bottom"].set_bounds(first, last)
    ax.xaxis.set_label_coords(_STEPS_WIDTH / 2, -0.12)


def _mark_temperature_zero(ax: Axes, temperatures: Any, steps: np.ndarray) -> None:
    """Mark the first step at temperature 0, if ``temperatures`` has one entry per step."""
    if temperatures is None or len(temperatures) != len(steps):
        return
    cold = np.flatnonzero(np.asarray(temperatures) == 0)
    if cold.size and cold[0]:
        x = steps[cold[0]] - 0.5
        ax.axvline(x, color="0.4", linestyle=":", linewidth=1)
        side = "right" if 2 * x > len(steps) else "left"
        ax.text(x, 0.98, " temperature 0 ", fontsize=8, ha=side, va="top",
                transform=ax.get_xaxis_transform())  # fmt: skip


def _describe_temperatures(model: Any) -> str:
    """Title with the inverse temperatures of the first split and of the last step.

    Temperatures that the model does not have are left out.
    """
    parts = []
    critical, last = getattr(model, "critical_beta_", None), getattr(model, "beta_", None)
    if critical is not None and np.isfinite(critical).any():
        largest = float(np.max(np.asarray(critical)[np.isfinite(critical)]))
        parts.append(f"first split at $\\beta$ = {largest:.3g}")
    if last is not None:
        end = f"{last:.3g}" if np.isfinite(last) else "$\\infty$"
        parts.append(f"at the end $\\beta$ = {end}")
    return ", ".join(parts)


def _draw_restarts(ax: Axes, restarts: Any) -> None:
    """Plot the final objectives of all restarts, in ascending order, in the right part of axes.

    ``restarts`` is the attribute ``restarts_`` of an estimator.
    """
    objective = np.asarray(restarts["objective"], float).ravel()
    order = np.argsort(objective, kind="stable")
    order = order[np.isfinite(objective[order])]
    converged = np.ones(len(objective), bool)
    if "converged" in restarts:
        converged = np.asarray(restarts["converged"], bool).ravel()
    inset = ax.inset_axes([1.05 * _STEPS_WIDTH, 0, 1 - 1.05 * _STEPS_WIDTH, 1])
    faces = [nth_colour(0) if done else "white" for done in converged[order]]
    ranks = np.arange(1, len(order) + 1)
    few = len(order) <= _MAX_MARKERS
    inset.scatter(ranks, objective[order], s=22 if few else 8, c=faces, edgecolors=nth_colour(0),
                  marker=nth_marker(0), linewidths=0.8, zorder=3)  # fmt: skip
    inset.scatter(ranks[:1], objective[order[:1]], s=44, color=nth_colour(1), marker=nth_marker(2),
                   zorder=4)  # fmt: skip
    inset.set_xticks([])
    inset.margins(x=0.12)
    inset.yaxis.tick_right()
    inset.tick_params(axis="y", labelsize=8)
    inset.set_xlabel(f"{len(objective)} restarts")
    if len(order) < len(objective):
        inset.set_title(f"{len(objective) - len(order)} not shown", fontsize=8)
    inset.spines[["top", "left"]].set_visible(False)
