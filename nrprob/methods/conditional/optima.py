"""Restarts of a fitted conditional mixture: initial values, distinct optima, objective margin.

Labels of several restarts have the shape (restarts, n) for n samples.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.estimator.base import Clusterer, Restarts
from nrprob.exceptions import warn
from nrprob.methods.conditional.solver import adjusted_rand
from nrprob.methods.conditional.starts import schedule_starts
from nrprob.statistics.groups import cross_table

_MIN_MARGIN = 1.0  # difference in nats below which two solutions count as equally good
SAME_OPTIMUM = 0.8  # adjusted Rand index from which on two restarts count as the same optimum
_MOST = 10  # largest number of optima that are reported


def distinct_optima(
    labels: np.ndarray, objective: np.ndarray, n_clusters: int, alike: float, most: int
) -> list[int]:
    """Indices of restarts with distinct clusters, the best restart first.

    Parameters
    ----------
    labels : (restarts, n) labels below ``n_clusters``
    objective : (restarts,) minimised objectives
    n_clusters : number of clusters
    alike : a restart is left out if its adjusted Rand index to a better restart of the result is at
        least ``alike``
    most : maximum number of restarts in the result
    """
    shape = n_clusters, n_clusters
    optima: list[int] = []
    for i in np.argsort(objective, kind="stable").tolist():
        tables = (cross_table(labels[j], labels[i], shape).astype(float) for j in optima)
        if all(adjusted_rand(table, np) < alike for table in tables):
            optima.append(i)
        if len(optima) == most:
            break
    return optima


class OptimaMixin(Clusterer):
    """Mixin of `ConditionalMixture` for the restarts of a fit and their distinct optima."""

    # Parameters and fitted state of the estimator.
    aligned: bool
    errors: str
    init: Any
    n_clusters: Any
    n_init: Any
    warm_up: bool
    weights: str
    whitening_exponents: Any
    objective_margin_: float
    _freed: list[bool]
    _n_restarts: Any
    _search_restarts: Restarts
    _start_kinds: list[tuple[str, str, float]] | None  # None for complete numeric tables
    _steps: np.ndarray
    _compared: np.ndarray  # labels of the restarts; of a subsample if the rows are stored

    def _set_objective_margin(self, labels: np.ndarray) -> None:
        """Set ``objective_margin_`` to the objective difference of the two best distinct optima.

        The margin is infinite if there is one optimum. ``labels`` (restarts, n) are the labels of
        the restarts. The method warns if the margin is below 1 nat.
        """
        objective = self._restarts.objective
        self._compared = labels
        optima = distinct_optima(labels, objective, self.n_clusters, SAME_OPTIMUM, 2)
        gap = np.diff(objective[optima])
        self._keep_margin(float(gap[0]) if gap.size else np.inf)

    def _keep_margin(self, margin: float) -> None:
        """Set ``objective_margin_`` to ``margin`` (nats), and warn if the margin is below 1 nat."""
        self.objective_margin_ = margin
        if self.objective_margin_ < _MIN_MARGIN:
            warn(
                "two solutions with different clusters are almost equally good; got a difference "
                f"of {self.objective_margin_:.2g} nats; compare both in optima_, raise n_init, or "
                "lower n_clusters"
            )

    @property
    def optima_(self):
        """Distinct optima among the restarts, the best first, as an `xarray.Dataset`."""
        check_is_fitted(self)
        restarts, k = self._restarts, self.n_clusters
        optima = distinct_optima(self._compared, restarts.objective, k, SAME_OPTIMUM, _MOST)
        import xarray

        objective = restarts.objective[optima]
        columns: dict[str, Any] = {
            "objective": ("optimum", objective),
            "gap": ("optimum", objective - objective[0]),
        }
        if restarts.labels is not None:
            labels = restarts.labels[optima]
            # Samples of weight 0 have the label -1.
            sizes = np.stack([np.bincount(row[row >= 0], minlength=k) for row in labels])
            columns["cluster_sizes"] = ("optimum", "cluster"), sizes
            columns["labels"] = ("optimum", "sample"), labels
        return xarray.Dataset(columns)

    @property
    def start_table_(self):
        """Initial values and results of all restarts, as a `pandas.DataFrame`."""
        check_is_fitted(self)
        import pandas as pd

        if self._start_kinds is not None:
            return self._table_starts(self._start_kinds)
        kinds = ("plain", "aligned") if self.aligned else ("plain",)
        warm = (False, True) if self.warm_up else (False,)
        errors = ("gaussian", "t") if self.errors == "auto" else (self.errors,)
        every = list(itertools.product(warm, kinds, self.whitening_exponents))
        n_each, restarts = schedule_starts(self._n_restarts, len(every))
        starts = [*np.repeat(np.array(every, object), n_each, 0)[restarts]]
        rows = [(e, kind, metric, w) for e in errors for w, kind, metric in starts]
        if self.init is not None:
            rows[:: len(starts)] = [(e, "init", np.nan, False) for e in errors]
        for i, free in enumerate(self._freed):
            if free and self.weights == "auto":
                rows[(i + 1) * len(starts) - 1] = errors[i], "equal weights", np.nan, False
        table = pd.DataFrame(rows, columns=["errors", "start", "metric", "warmed_up"])
        result = self._search_restarts
        return table.assign(
            objective=result.objective, converged=result.converged, n_iter=self._steps
        )

    def _table_starts(self, kinds: list[tuple[str, str, float]]) -> Any:
        """Value of `start_table_` for a mixed or incomplete table.

        ``kinds`` are the types of initial labels from `start_kinds`.
        """
        import pandas as pd

        result = self._search_restarts
        n = len(result.objective)
        every = [(*kind, warm) for warm in (False, True) for kind in kinds]
        rows = list(itertools.islice(itertools.cycle(every), n))
        if n < self._n_restarts:
            # Successive halving: only the best restarts on a subsample continued.
            rows = [("sample", "sample", np.nan, False)] * n
        elif self.init is not None:
            rows[0] = "init", "init", np.nan, False
        table = pd.DataFrame(rows, columns=["coordinates", "start", "metric", "warmed_up"])
        return table.assign(
            objective=result.objective, converged=result.converged, n_iter=self._steps
        )
