"""Plot the trace of the objective, and the final objectives of all restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nrprob.data.validation import check_fitted
from nrprob.plotting.style import check_axes, colour, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OWN = 0.72  # of the axes for the steps, where restarts are beside them
_MARKED = 40  # steps that have marks of their own


def plot_annealing(model: Any, ax: Axes | None = None) -> Axes:
    """Draw the objective after every step of a fit, and the ends of all of its restarts.

    Parameters
    ----------
    model : estimator
        Fitted, with an ``objective_trace_``.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure when it is None.

    Returns
    -------
    matplotlib.axes.Axes
        The axes drawn on: ``objective_trace_`` of the best restart, with the inverse temperature at
        the end and that of the first split where there are such. Where there were several restarts,
        the right of the axes has their last objectives (``restarts_``) on a scale of its own,
        in ascending order: the first is the best. An open mark is of a restart that did not
        converge. Of `MDLMultiView` the trace leaves out what the objective has for complexity.

    Raises
    ------
    TypeError
        If ``model`` has no ``objective_trace_``.

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
    steps = np.arange(1, len(trace) + 1)
    ax.plot(
        steps, trace, color=colour(0), marker=marker(0) if len(trace) <= _MARKED else None,
        markersize=4, linewidth=1.5,
    )  # fmt: skip
    ax.plot(steps[-1:], trace[-1:], linestyle="", color=colour(1), marker=marker(2), markersize=7)
    ax.set_xlabel("step")
    ax.set_ylabel("objective (minimised)")
    _cooled(ax, getattr(model, "temperatures_", None), steps)
    ax.set_title(_temperatures(model), fontsize=9, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    ticks = MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]).tick_values(1, len(trace))
    ax.set_xticks([tick for tick in ticks if 1 <= tick <= len(trace)])
    restarts = getattr(model, "restarts_", None)
    if restarts is not None and "objective" in restarts and restarts["objective"].size > 1:
        _make_room(ax, len(trace))
        _draw_restarts(ax, restarts)
    return ax


def _make_room(ax: Axes, n_steps: int) -> None:
    """Leave the right of the axes free: no layout knows what lies beyond axes."""
    first, last = 1 - 0.04 * n_steps, n_steps + 0.04 * n_steps
    ax.set_xlim(first, first + (last - first) / _OWN)
    ax.spines["bottom"].set_bounds(first, last)
    ax.xaxis.set_label_coords(_OWN / 2, -0.12)


def _cooled(ax: Axes, temperatures: Any, steps: np.ndarray) -> None:
    """Say from where on there is no noise left, if every step has a temperature."""
    if temperatures is None or len(temperatures) != len(steps):
        return
    cold = np.flatnonzero(np.asarray(temperatures) == 0)
    if cold.size and cold[0]:
        at = steps[cold[0]] - 0.5
        ax.axvline(at, color="0.4", linestyle=":", linewidth=1)
        side = "right" if 2 * at > len(steps) else "left"
        ax.text(at, 0.98, " temperature 0 ", fontsize=8, ha=side, va="top",
                transform=ax.get_xaxis_transform())  # fmt: skip


def _temperatures(model: Any) -> str:
    """What is known of inverse temperatures."""
    said = []
    critical, last = getattr(model, "critical_beta_", None), getattr(model, "beta_", None)
    if critical is not None and np.isfinite(critical).any():
        largest = float(np.max(np.asarray(critical)[np.isfinite(critical)]))
        said.append(f"first split at $\\beta$ = {largest:.3g}")
    if last is not None:
        end = f"{last:.3g}" if np.isfinite(last) else "$\\infty$"
        said.append(f"at the end $\\beta$ = {end}")
    return ", ".join(said)


def _draw_restarts(ax: Axes, restarts: Any) -> None:
    objective = np.asarray(restarts["objective"], float).ravel()
    order = np.argsort(objective, kind="stable")
    order = order[np.isfinite(objective[order])]
    converged = np.ones(len(objective), bool)
    if "converged" in restarts:
        converged = np.asarray(restarts["converged"], bool).ravel()
    beside = ax.inset_axes([1.05 * _OWN, 0, 1 - 1.05 * _OWN, 1])
    faces = [colour(0) if done else "white" for done in converged[order]]
    ranks = np.arange(1, len(order) + 1)
    few = len(order) <= _MARKED
    beside.scatter(ranks, objective[order], s=22 if few else 8, c=faces, edgecolors=colour(0),
                   marker=marker(0), linewidths=0.8, zorder=3)  # fmt: skip
    beside.scatter(ranks[:1], objective[order[:1]], s=44, color=colour(1), marker=marker(2),
                   zorder=4)  # fmt: skip
    beside.set_xticks([])
    beside.margins(x=0.12)
    beside.yaxis.tick_right()
    beside.tick_params(axis="y", labelsize=8)
    beside.set_xlabel(f"{len(objective)} restarts")
    if len(order) < len(objective):
        beside.set_title(f"{len(objective) - len(order)} not shown", fontsize=8)
    beside.spines[["top", "left"]].set_visible(False)
