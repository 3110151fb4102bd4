"""Multi-view clustering by minimum description length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.data.validation import CLUSTERS, check_random_state
from nrprob.engines.optimise import solve
from nrprob.estimator import parameters
from nrprob.estimator.base import read_labels
from nrprob.estimator.calls import at_once
from nrprob.exceptions import short_repr
from nrprob.methods.multiview.base import ViewClusterer
from nrprob.methods.multiview.lengths import (
    CELLS,
    Configuration,
    best_cells,
    dependence_gain,
    first_splits,
)
from nrprob.methods.multiview.solver import (
    SMOOTHING,
    Design,
    MultiviewSolution,
    Numbers,
    Runs,
    solve_multiview,
)
from nrprob.methods.multiview.views import View, columns, several, statistics
from nrprob.statistics.rows import (
    Layout,
    Rows,
    active_mask,
    bucket_size,
    make_layout,
    make_rows,
    padded_count,
)

__all__ = ["MDLMultiView"]

GEOMETRIES = ("gaussian", "exp")
SIGMAS = ("view", "cluster")
E_STEPS = ("stochastic", "mean-field")
CENTRE_CODES = ("half_log", "none")
STARTS = (1.0, 0.4, 0.16)  # of the restarts in turn, in units of the temperature of the first split

_END = 0.05  # temperature at which annealing gives way to the best cell of every row


@dataclass
class Views:
    """Checked and laid out input of one fit, and the calls that remain to be made."""

    n: int
    rows: Rows
    layout: Layout
    configurations: list[Configuration] = field(default_factory=list)
    calls: list[solve.SolverCall] = field(default_factory=list)


@parameters.constructor
class MDLMultiView(ViewClusterer):
    r"""Cluster the same rows in several views at once, by description length.

    Every view has clusters of its own. A row is sent as its clusters in all views, and its squared
    distance r to the centre in each. Sending the clusters jointly is short where the views agree,
    so that views inform each other as far as that saves more than it costs in distances. With a
    table of counts n over the cells of all views, and views v of N rows, it minimises, in nats,

    .. math:: L = \log C(\textstyle\prod_v K_v, N) - \sum_{cells} n \log \frac{n}{N}
        + \sum_v \left[w_v \left(N \log s_v + \frac{R_v}{s_v}\right) + PC_v
        + \frac{K_v d_v}{2} \log \frac{N}{2 \pi}\right], \qquad s_v = R_v / N

    Parameters
    ----------
    n_clusters : int, tuple of int or "auto", default=2
        Number of clusters, of all views or of each. "auto" tries all combinations from 1 to
        ``max_clusters``, in one compiled program, and keeps the one of the shortest length.
    views : sequence of int, optional
        Numbers of columns of the views, where `fit` gets one table with the views side by side.
    dependent : bool or "auto", default=True
        Whether the clusters of a row are sent jointly; False clusters every view by itself. "auto"
        does both and keeps the shorter code.
    sigma : {"view", "cluster"}, default="view"
        Whether a view has one scale s, or one for every cluster, which is what the thesis's tables
        were made with. The length has very small clusters for its optima then, and chooses too
        many of them.
    geometry : {"gaussian", "exp"}, default="gaussian"
        "gaussian" codes rows by an isotropic normal density, w = d/2. "exp" codes their squared
        distances by an exponential one, w = 1, as published: the same for two features, and too
        little weight to views of many.
    e_step : {"stochastic", "mean-field"}, default="stochastic"
        Whether annealing draws a cell for every row, as published, or keeps all of them by their
        probabilities. The latter is monotone and nearly free of its start, so that restarts differ
        little.
    max_clusters : int or tuple of int, default=5
        Largest numbers that ``n_clusters="auto"`` tries, at most 256. Every combination has
        ``n_init`` restarts; there are at most 4096 combinations.
    centre_code : {"half_log", "none"}, default="half_log"
        Whether the complete length includes the coordinates of the centres, the last term above.
        Without effect unless numbers of clusters are compared.
    scale_range : tuple of float, default=(1e-3, 10.0)
        Bounds of s, in units of the view's total variance, from 1e-12 to 1e12. Clusters that are
        tighter are coded as if they were not.
    start : "auto" or float or sequence of float, default="auto"
        First temperatures of the restarts, in turn. "auto" is 1, 0.4 and 0.16 times the sum over
        the views of the temperatures at which a view first splits, plus a fifth; a number is from
        1e-9 to 10**9.
    cooling : float, default=1.11
        Ratio of successive temperatures, down to 0.05; from 1.01 to 10**6. Runs with a lower start
        wait there.
    n_steps : int, default=4
        Steps at every temperature, at most 10,000.
    n_init : int, default=10
        Number of restarts, at most 10**6; the one with the shortest complete length is kept.
    max_iter : int, default=100
        Most steps of the descent that ends every restart; at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines starts and draws.
    verbose : int, default=0
        Whether to print progress.

    Attributes
    ----------
    alternatives_ : ndarray of shape (n_samples, n_views)
        Cluster of every row in every view.
    labels_ : ndarray of shape (n_samples,), or (n_samples, n_views) for several views
        The same. From the next release on those of the first view alone: until then it warns where
        there are several.
    membership_ : list of ndarray of shape (n_samples, n_clusters), or one of them
        One-hot form of the labels.
    n_clusters_ : tuple of int, or int
        Numbers of clusters that hold rows.
    dependent_ : bool
        Whether the labels are coded jointly.
    pdl_, cdl_, tdl_ : float
        Length of the labels at their own frequencies, length of the distances without constants
        (``w n log s`` unless a bound of s is active), and their sum: what the thesis's tables give.
    complexity_ : float
        What completes ``tdl_``: parametric complexities, constants and the code of the centres.
    objective_ : float
        ``tdl_ + complexity_``, the complete length in nats. Comparable between numbers of clusters
        and codings of the same rows, at one geometry.
    dependence_gain_ : float
        What joint coding of these labels saves over separate coding, in nats: N times their
        (multi-)information less the additional parametric complexity. Positive where the views
        depend on each other. NaN if a joint table would have too many cells.
    cluster_centers_ : list of ndarray of shape (n_clusters, n_features), or one of them
        Means; that of all rows where a cluster is empty.
    scales_ : list of ndarray of shape (n_clusters,), or one of them
        Scale s of every cluster, a mean squared distance.
    joint_ : ndarray of shape (n_clusters of view 1, n_clusters of view 2, ...) or None
        Shares of the cells; None if coded separately.
    margins_ : list of ndarray of shape (n_clusters,)
        Shares of the clusters of every view.
    selection_ : pandas.DataFrame
        Best run of every combination that was tried: numbers of clusters, coding, and lengths.
    temperatures_ : ndarray
        Temperature of every entry of ``objective_trace_``; 0 during the final descent.
    objective_trace_ : ndarray
        ``tdl_`` of the best restart after every step.
    n_iter_, converged_
        Steps of all restarts side by side; whether the best one came to rest.
    restarts_ : xarray.Dataset
        Labels, lengths and convergence of all restarts of the chosen combination.
    view_sizes_ : tuple of int
        Numbers of features of the views.
    n_features_in_ : int
        Their sum.

    Notes
    -----
    Lengths of "gaussian" leave out the constant ``w N log(2 pi / d)``. The lengths change by
    ``2 w N log(a)`` if a view is multiplied by a, and do not change if it is shifted or rotated.
    Joint tables have at most 4096 cells.

    References
    ----------
    Yin (2007), "Inferring informed clustering problems with minimum description length principle",
    chapter 3: (3.1) to (3.5), (3.10) to (3.13), theorem 3.1. Printed lengths are reproduced by
    ``sigma="cluster", geometry="exp"``: (3.10) is the objective of one scale per view, the updates
    (3.13) and the tables belong to one per cluster. Theorem 3.2 does not hold for drawn cells.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import MDLMultiView
    >>> rng = np.random.default_rng(0)
    >>> z = rng.integers(2, size=100)
    >>> views = [4 * z[:, None] + rng.normal(size=(100, d)) for d in (2, 3)]
    >>> model = MDLMultiView(2, random_state=0).fit(views)
    >>> model.alternatives_.shape, model.matching_rate() > 0.9
    ((100, 2), True)
    """

    _rarely_finite = ("dependence_gain_",)

    n_clusters: Any = 2
    _: KW_ONLY
    views: Any = None
    dependent: bool = True
    sigma: Annotated[str, parameters.Choice(SIGMAS)] = "view"
    geometry: Annotated[str, parameters.Choice(GEOMETRIES)] = "gaussian"
    e_step: Annotated[str, parameters.Choice(E_STEPS)] = "stochastic"
    max_clusters: int = 5
    centre_code: Annotated[str, parameters.Choice(CENTRE_CODES)] = "half_log"
    scale_range: parameters.ScaleRange = (1e-3, 10.0)
    start: str = "auto"
    cooling: parameters.Cooling = 1.11
    n_steps: Annotated[int, parameters.Number(1, 10_000, integer=True)] = 4
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    # Parameters and input

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        super().check_parameters()
        if isinstance(self.dependent, str):
            self._check_choice("dependent", self.dependent, ("auto",), "or True or False")
        elif not isinstance(self.dependent, bool | np.bool_):
            raise TypeError(
                f"dependent must be True, False or 'auto'; got {short_repr(self.dependent)}; "
                "pass one of them"
            )
        if isinstance(self.start, str):
            self._check_choice("start", self.start, ("auto",), "or temperatures")
        else:
            for value in np.ravel(self.start).tolist():
                self._check_number("start", value, low=1e-9, high=1e9)

    def _of_views(self, name: str, value: Any, n_views: int, most: int) -> tuple[int, ...]:
        """Numbers of clusters of all views."""
        if isinstance(value, np.ndarray | list | tuple):
            numbers = tuple(value)
            if len(numbers) != n_views:
                raise ValueError(
                    f"{name} must hold one number per view; got {len(numbers)} for {n_views} "
                    "view(s); pass that many, or one for all"
                )
        else:
            numbers = (value,) * n_views
        for each in numbers:
            self._check_number(name, each, low=1, high=most, integer=True)
        return tuple(int(each) for each in numbers)

    def prepare(self, X, y, known=None) -> Views:
        """Check the input and lay it out; see `Clusterer.prepare`."""
        self.check_parameters()
        self._check_one_device()
        result = self._split(X, reset=True)
        n, n_views = result[0].shape[0], len(result)
        if y is not None:
            read_labels(y, n)
        self._single = n_views == 1 and not several(X) and self.views is None
        self.view_sizes_ = tuple(x.shape[1] for x in result)
        candidates, largest = self._candidates(n, n_views)
        self._views = [View.of(x, f"view {v}") for v, x in enumerate(result)]
        scaled = [view(x) for view, x in zip(self._views, result, strict=True)]
        self._weights = np.asarray(
            [1.0 if self.geometry == "exp" else d / 2 for d in self.view_sizes_]
        )
        layout = make_layout(np.zeros(n, int), 1)
        task = Views(n, make_rows(statistics(scaled), layout, 1), layout)
        starts = self._starts(scaled)
        numbers = self._numbers(task, starts, largest)
        for dependent in self._codings():
            tried = [Configuration(sizes, dependent) for sizes in candidates]
            task.configurations += tried
            task.calls += self._calls(task, tried, largest, numbers, starts)
        return task

    def _codings(self) -> tuple[bool, ...]:
        return (True, False) if self.dependent == "auto" else (bool(self.dependent),)

    def _candidates(self, n: int, n_views: int) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
        """Numbers of clusters to try, and the largest of every view."""
        if isinstance(self.n_clusters, str):
            self._check_choice("n_clusters", self.n_clusters, ("auto",), "or numbers")
            bounds = self._of_views("max_clusters", self.max_clusters, n_views, 256)
            largest = tuple(min(bound, n) for bound in bounds)
            if math.prod(largest) > CELLS:
                raise ValueError(
                    f"at most {CELLS} combinations of numbers of clusters are tried; got "
                    f"{' x '.join(map(str, largest))}; lower max_clusters"
                )
            candidates = list(itertools.product(*(range(1, k + 1) for k in largest)))
        else:
            largest = self._of_views("n_clusters", self.n_clusters, n_views, CLUSTERS)
            candidates = [largest]
        if max(largest) > n:
            raise ValueError(
                f"n_samples={n} should be >= n_clusters={max(largest)}; "
                "lower n_clusters or pass more rows"
            )
        if any(self._codings()) and math.prod(largest) > CELLS:
            raise ValueError(
                f"a joint table may have {CELLS} cells; got {' x '.join(map(str, largest))} "
                "clusters; use fewer, or dependent=False"
            )
        return candidates, largest

    def _numbers(self, task: Views, starts: np.ndarray, largest: Sequence[int]) -> Numbers:
        """Numbers that the solver reads, the same in all runs."""
        dtype = task.rows.mass.dtype
        # Below this, probabilities of the rarest cells are no numbers any more.
        rarest = -math.log(SMOOTHING / (task.n + SMOOTHING * math.prod(largest)))
        end = max(_END, rarest / (80 if dtype == np.float32 else 600))
        top = starts.max()
        levels = max(math.ceil(math.log(top / end) / math.log(self.cooling)), 1)
        low, high = map(float, self.scale_range)
        return Numbers(
            columns=columns(self.view_sizes_, task.rows.x.n_statistics, dtype),
            first=np.cumsum([0, *largest[:-1]], dtype=np.int32),
            weights=self._weights.astype(dtype),
            low=np.asarray(low, dtype),
            high=np.asarray(high, dtype),
            per_cluster=np.asarray(self.sigma == "cluster"),
            cooling=np.asarray(self.cooling, dtype),
            top=np.asarray(top, dtype),
            n_anneal=np.asarray(self.n_steps * levels, np.int32),
            n_steps=np.asarray(self.n_steps, np.int32),
            max_iter=np.asarray(self.max_iter, np.int32),
        )

    def _calls(
        self,
        task: Views,
        tried: list[Configuration],
        largest: tuple[int, ...],
        numbers: Numbers,
        starts: np.ndarray,
    ) -> list[solve.SolverCall]:
        """Calls that make the restarts of one coding."""
        n, dtype, n_init = task.n, task.rows.mass.dtype, self.n_init
        coded = self.view_sizes_ if self.centre_code == "half_log" else None
        total = len(tried) * n_init
        random = check_random_state(self.random_state)
        runs = Runs(
            seed=random.randint(2**31 - 1, size=total).astype(np.uint32),
            active=np.repeat(np.asarray([c.sizes for c in tried], np.int32), n_init, 0),
            start=np.tile(np.resize(starts, n_init), len(tried)).astype(dtype),
            constant=np.repeat([c.constant(n, coded) for c in tried], n_init),
        )
        sizes = self._padded(task, largest) if len(tried) == 1 else largest
        table = math.prod(sizes[:-1]) if tried[0].dependent and len(largest) > 2 else 0
        each = task.rows.mass.size * (6 * sum(sizes) + 2 * table) * dtype.itemsize
        size = at_once(total, each)
        data = sum(a.nbytes for a in jax.tree.leaves(task.rows))
        static = (("design", Design(sizes, tried[0].groups, self.e_step)),)
        return [
            solve.SolverCall(
                solve_multiview,
                (task.rows, numbers, Runs(*(values[first : first + size] for values in runs))),
                static,
                data + each * size,
            )
            for first in range(0, total, size)
        ]

    def _padded(self, task: Views, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of clusters that a program of few rows is compiled for."""
        few, jointly = tuple(padded_count(k, 1) for k in sizes), any(self._codings())
        cells, p = math.prod(few) if jointly else 0, task.rows.x.n_statistics
        each = [task.layout.n_slots * max(p, cells // size) for size in few]
        if all(active_mask(k, e) is not None for k, e in zip(sizes, each, strict=True)):
            return few
        few = tuple(max(bucket_size(k, 64), 2) for k in sizes)
        return sizes if task.n > 16384 or (jointly and math.prod(few) > CELLS) else few

    def _starts(self, scaled: list[np.ndarray]) -> np.ndarray:
        """First temperatures of the restarts."""
        if not isinstance(self.start, str):
            return np.ravel(np.asarray(self.start, float))
        return 1.2 * first_splits(scaled, self._weights) * np.asarray(STARTS)

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        # What scaling the rows took from the lengths of the distances.
        logs = [math.log(view.scale) for view in self._views]
        shift = float(sum(2 * w * task.n * log for w, log in zip(self._weights, logs, strict=True)))
        every: MultiviewSolution = jax.tree.map(lambda *runs: np.concatenate(runs), *result)
        every = every._replace(objective=every.objective + shift, distance=every.distance + shift)
        first = np.arange(len(task.configurations)) * self.n_init
        bests = first + every.objective.reshape(-1, self.n_init).argmin(1)
        chosen = int(every.objective[bests].argmin())
        at, own = int(bests[chosen]), slice(first[chosen], first[chosen] + self.n_init)
        self.selection_ = _table(task.configurations, every, bests)
        starts = np.concatenate([call.arrays[2].start for call in task.calls])
        self._runs = {
            "labels": np.stack([task.layout.from_blocks(labels) for labels in every.labels[own]]),
            "objective": every.objective[own],
            "pdl": every.partition[own],
            "cdl": every.distance[own],
            "converged": every.converged[own],
            "start": starts[own],
        }
        best: MultiviewSolution = jax.tree.map(lambda runs: runs[at], every)
        configuration = task.configurations[chosen]
        self.dependent_ = configuration.dependent
        self.objective_ = float(best.objective)
        self.pdl_, self.cdl_ = float(best.partition), float(best.distance)
        self.tdl_ = self.pdl_ + self.cdl_
        self.complexity_ = self.objective_ - self.tdl_
        self.converged_ = bool(best.converged)
        self.n_iter_ = int(best.n_iter)
        trace = best.trace[~np.isnan(best.trace)].astype(float)
        self.objective_trace_ = trace + shift
        numbers, step = task.calls[0].arrays[1], np.arange(trace.size)
        falling = numbers.top * self.cooling ** -(step // self.n_steps).astype(float)
        falling = np.minimum(falling, starts[at])
        self.temperatures_ = np.where(step < numbers.n_anneal, falling, 0.0)
        self._decode(task, configuration, best)
        self._check_result(configuration)
        return self

    def _decode(self, task: Views, configuration: Configuration, best: MultiviewSolution) -> None:
        """Codes of the best run, in the units of the data."""
        sizes, design = configuration.sizes, dict(task.calls[0].static)["design"]
        labels = task.layout.from_blocks(best.labels).astype(np.int64)
        features = np.split(best.centres, np.cumsum(self.view_sizes_), 1)
        centres, scales, self.margins_ = [], [], []
        for v, (k, view) in enumerate(zip(sizes, self._views, strict=True)):
            own = np.arange(design.clusters(v).start, design.clusters(v).start + k)
            centres.append(view.mean + view.scale * features[v][own])
            scales.append(view.scale**2 * best.scales[own])
            self.margins_.append(best.mass[own] / task.n)
        self.joint_ = None
        if configuration.dependent:
            self.joint_ = np.zeros(sizes)
            np.add.at(self.joint_, tuple(labels.T), 1 / task.n)
        self.dependence_gain_ = dependence_gain(labels, sizes)
        self._present = tuple(np.unique(column).size for column in labels.T)
        membership = [np.eye(k)[z] for k, z in zip(sizes, labels.T, strict=True)]
        one = self._single
        self.alternatives_ = labels
        self.membership_: Any = membership[0] if one else membership
        self.n_clusters_: Any = self._present[0] if one else self._present
        self.cluster_centers_ = centres[0] if one else centres
        self.scales_ = scales[0] if one else scales

    def _check_result(self, configuration: Configuration) -> None:
        for v, (k, wanted) in enumerate(zip(self._present, configuration.sizes, strict=True)):
            if k < wanted:
                self._degenerate(f"found {k} clusters in view {v}, fewer than n_clusters={wanted}")
            self._tell_small(np.bincount(self.alternatives_[:, v]), f" in view {v}")
        self._tell_convergence()

    # New rows

    def predict(self, X):  # type: ignore[override]
        """Clusters of new rows: those in which they cost least under the fitted codes.

        Parameters
        ----------
        X : as in `fit`

        Returns
        -------
        ndarray of shape (n_samples, n_views), or (n_samples,) for a single table
        """
        check_is_fitted(self)
        result = self._split(X, reset=False)
        if tuple(x.shape[1] for x in result) != self.view_sizes_:
            raise ValueError(
                f"views must have the columns of the fit; got {[x.shape[1] for x in result]} for "
                f"{list(self.view_sizes_)}; pass the same views in the same order"
            )
        one = self._single
        centres = [self.cluster_centers_] if one else self.cluster_centers_
        scales = [self.scales_] if one else self.scales_
        costs = []
        for x, c, s, w in zip(result, centres, scales, self._weights, strict=True):
            distance = np.stack([((x.astype(np.float64) - centre) ** 2).sum(1) for centre in c], 1)
            costs.append(w * (distance / s + np.log(s)))
        scores = [-cost for cost in costs]
        with np.errstate(divide="ignore"):
            if self.joint_ is not None:
                labels = best_cells(np.log(self.joint_), scores)
            else:
                margins = map(np.log, self.margins_)
                each = [(t + s).argmax(1) for t, s in zip(margins, scores, strict=True)]
                labels = np.stack(each, 1)
        return labels[:, 0] if one else labels


def _table(tried: Sequence[Configuration], every: MultiviewSolution, bests: np.ndarray) -> Any:
    """Frame with a line for all that was tried, of the best run (configurations,) of each."""
    import pandas as pd

    sizes = np.array([c.sizes for c in tried])
    pdl, cdl = every.partition[bests], every.distance[bests]
    return pd.DataFrame(sizes, columns=[f"n_clusters_{v}" for v in range(sizes.shape[1])]).assign(
        dependent=[c.dependent for c in tried],
        pdl=pdl,
        cdl=cdl,
        tdl=pdl + cdl,
        objective=every.objective[bests],
    )
