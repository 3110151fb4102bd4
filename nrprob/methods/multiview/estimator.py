"""Multi-view clustering by minimum description length."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.data.labels import read_labels
from nrprob.data.validation import CLUSTERS, check_random_state
from nrprob.engines.optimise import solve
from nrprob.estimator import parameters
from nrprob.estimator.calls import at_once
from nrprob.exceptions import short_repr
from nrprob.methods.multiview.base import ViewClusterer
from nrprob.methods.multiview.cell_moves import ViewLengths, shorten_description
from nrprob.methods.multiview.lengths import (
    CELLS,
    Configuration,
    best_cells,
    dependence_gain,
    first_splits,
    row_scores,
    selection_table,
)
from nrprob.methods.multiview.solver import (
    SMOOTHING,
    Design,
    MultiviewParameters,
    MultiviewSolution,
    Runs,
    solve_multiview,
)
from nrprob.methods.multiview.views import (
    View,
    Views,
    feature_columns,
    is_view_list,
    view_statistics,
)
from nrprob.statistics.rows import (
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
# Initial temperatures of the restarts in turn, in units of the critical temperature.
STARTS = (1.0, 0.4, 0.16)

_FEW_ROWS, _REFINED = 50, 3  # all restarts are refined up to this number of rows, else three
_END = 0.05  # final temperature of annealing, before hard assignments


@parameters.constructor
class MDLMultiView(ViewClusterer):
    r"""Minimum description length clustering of the same samples in several views.

    Every view has its own clusters. A two-part code describes a row by its clusters in all views,
    and by its squared distance r to the cluster centre in each view. Joint coding of the clusters
    is shorter if views depend on each other, so views share information as far as that shortens the
    description. The fit minimises over labels and centres the description length, in nats,

    .. math:: L = \log C(\textstyle\prod_v K_v, N) - \sum_{cells} n \log \frac{n}{N}
        + \sum_v \left[w_v \left(N \log s_v + \frac{R_v}{s_v}\right) + PC_v
        + \frac{K_v d_v}{2} \log \frac{N}{2 \pi}\right], \qquad s_v = R_v / N

    where N is the number of rows. A cell is a combination of clusters, one of each view, and n is
    its number of rows. :math:`\log C(K, N)` is the parametric complexity of a multinomial with K
    cells. View v has :math:`K_v` clusters, :math:`d_v` features, the sum :math:`R_v` of the squared
    distances r, the mean squared distance :math:`s_v` with its parametric complexity :math:`PC_v`,
    and :math:`w_v = d_v/2`. The last term encodes the centres.

    Parameters
    ----------
    n_clusters : int, tuple of int or "auto", default=2
        Number of clusters, the same for all views or one per view. "auto" tries all combinations
        from 1 to ``max_clusters``, in one compiled program, and selects the combination of the
        shortest description.
    views : sequence of int, optional
        Numbers of columns of the views, if `fit` gets a single table with the views side by side.
    dependent : bool or "auto", default=True
        Whether the clusters of all views are coded jointly; False clusters every view separately.
        "auto" fits both and selects the shorter description.
    sigma : {"view", "cluster"}, default="view"
        Scale s: one per view, or one per cluster, as in the tables of Yin (2007). With "cluster",
        the optima of L include very small clusters, and "auto" selects too many clusters.
    geometry : {"gaussian", "exp"}, default="gaussian"
        "gaussian" encodes rows by an isotropic normal density, w = d/2. "exp" encodes squared
        distances by an exponential density, w = 1, as published. Both agree for two features;
        "exp" underweights views of more features.
    e_step : {"stochastic", "mean-field"}, default="stochastic"
        E-step of the annealing. "stochastic" samples a cell for every row, as published.
        "mean-field" uses the probabilities of all cells. It never increases the free energy at a
        fixed temperature, and depends little on the initial values, so restarts hardly differ.
    max_clusters : int or tuple of int, default=5
        Largest numbers of clusters for ``n_clusters="auto"``, at most 256. There are ``n_init``
        restarts per combination, and at most 4096 combinations.
    centre_code : {"half_log", "none"}, default="half_log"
        Whether L includes the code of the centres. It affects only the selection of numbers of
        clusters.
    scale_range : tuple of float, default=(1e-3, 10.0)
        Bounds of s, in units of the view's total variance, from 1e-12 to 1e12. Lower the first if
        clusters are much tighter than the view.
    start : "auto" or float or sequence of float, default="auto"
        Initial temperatures of the restarts in turn. "auto" is 1, 0.4 and 0.16 times 1.2 times the
        sum over views of their critical temperatures. From 1e-9 to 10**9.
    cooling : float, default=1.11
        Ratio of successive temperatures, down to 0.05. Lower it to anneal more slowly. From 1.01 to
        10**6. Runs with a lower initial temperature stay at it until the schedule reaches it.
    n_steps : int, default=4
        Number of steps per temperature; at most 10,000.
    n_init : int, default=10
        Number of restarts; the shortest ones are refined, and the shortest description is kept. At
        most 10**6.
    max_iter : int, default=100
        Maximum number of hard assignment steps at the end of every restart; at most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines initial values and samples.
    verbose : int, default=0
        Whether to print progress.

    Attributes
    ----------
    alternatives_ : ndarray of shape (n_samples, n_views)
        Cluster of every row in every view.
    labels_ : ndarray of shape (n_samples,), or (n_samples, n_views) for several views
        Same as ``alternatives_``. From the next release on, ``labels_`` will have the clusters of
        the first view only. Until then, access to it raises a FutureWarning if there are several
        views.
    membership_ : list of ndarray of shape (n_samples, n_clusters), or a single ndarray
        One-hot form of the labels.
    n_clusters_ : tuple of int, or int
        Numbers of non-empty clusters.
    dependent_ : bool
        Whether the labels are coded jointly.
    pdl_, cdl_, tdl_ : float
        Partition description length (labels coded by their frequencies), cluster description length
        (distances without constants: ``w n log s`` unless a bound of s is active), and their sum,
        as in the tables of Yin (2007).
    complexity_ : float
        Remaining terms of L: parametric complexities, constants, and the code of the centres.
    objective_ : float
        ``tdl_ + complexity_``, the description length L in nats. Comparable between numbers of
        clusters and codings of the same rows, at the same ``geometry``.
    dependence_gain_ : float
        Code length that joint coding of the labels saves, in nats: N times the mutual information
        of the labelings (the multi-information for three or more views), minus the additional
        parametric complexity. Positive if views depend on each other. NaN if the joint table would
        have more than 4096 cells.
    cluster_centers_ : list of ndarray of shape (n_clusters, n_features), or a single ndarray
        Means of the clusters; the mean of all rows for an empty cluster.
    scales_ : list of ndarray of shape (n_clusters,), or a single ndarray
        Mean squared distance s of every cluster.
    joint_ : ndarray of shape (n_clusters of view 1, n_clusters of view 2, ...) or None
        Shares of the cells; None if labels are coded separately.
    margins_ : list of ndarray of shape (n_clusters,)
        Shares of the clusters of every view.
    selection_ : pandas.DataFrame
        One row per configuration, which consists of the numbers of clusters and of the coding of
        the labels. The columns are the configuration and the description lengths of its best
        restart.
    temperatures_ : ndarray
        Temperature of every entry of ``objective_trace_``; 0 for hard assignments.
    objective_trace_ : ndarray
        ``tdl_`` of the best restart after every step.
    n_iter_, converged_
        Number of steps of all parallel restarts; whether the best restart converged.
    restarts_ : xarray.Dataset
        Labels, lengths and convergence of all restarts of the selected configuration.
    view_sizes_ : tuple of int
        Numbers of features of the views.
    n_features_in_ : int
        Total number of features.

    See Also
    --------
    MDLMixture : Bayesian mixture of a single view with an unknown number of components.
    MDLConstrained : Minimum description length clustering with pairwise constraints.
    nrprob.metrics.matching_rate : Agreement of two labelings.

    Notes
    -----
    A restart has these steps:

    1. Initialise centres at random rows, with clusters of equal size.
    2. E-step at the current temperature: sample cells, or compute their probabilities.
    3. M-step: frequencies of the cells, centres and scales.
    4. Repeat steps 2 and 3, ``n_steps`` times per temperature; then lower the temperature.
    5. Repeat hard assignments and step 3 until no label changes; a hard assignment gives every row
       the cell of its shortest code.

    The three shortest restarts are then refined by exact description lengths; up to 50 rows, all
    restarts are refined, and with "auto" the shortest restart of each combination:

    6. Move single rows between cells, in all views at once, while that shortens the description.
    7. Make chains of such moves with locks, which may first lengthen the description; then repeat
       step 6. Chains need at most a million rows times cells.

    If rows times cells exceed 2e7, rows move in single views only, without chains.

    With n rows, :math:`K_v` clusters and :math:`d_v` features per view, a step costs :math:`O(n
    \sum_v K_v d_v)` plus a product over the joint table. Memory per restart is :math:`O(n \sum_v
    K_v)`. Joint tables have at most 4096 cells.

    Lengths of ``geometry="gaussian"`` exclude the constant ``w N log(2 pi / d)``. Multiplying a
    view by a changes them by ``2 w N log(a)``; shifts and rotations do not change them.

    References
    ----------
    K. Yin (2007), "Inferring Informed Clustering Problems with Minimum Description Length
    Principle", PhD thesis, University at Albany, chapter 3: (3.1) to (3.5), (3.10) to (3.13),
    theorem 3.1. ``sigma="cluster", geometry="exp"`` reproduces the printed lengths: (3.10) is the
    objective with one scale per view, whereas the updates (3.13) and the tables have one per
    cluster. Theorem 3.2 does not hold for sampled cells.

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
    hard_objective = True

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
        """Raise an error for parameters that are invalid for all data."""
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

    def prepare(self, X, y, known=None) -> Views:
        """Check the input and lay it out; see `Clusterer.prepare`."""
        self.check_parameters()
        self._check_one_device()
        tables = self._split_views(X, reset=True)
        n, n_views = tables[0].shape[0], len(tables)
        if y is not None:
            read_labels(y, n)
        self._single = n_views == 1 and not is_view_list(X) and self.views is None
        self.view_sizes_ = tuple(x.shape[1] for x in tables)
        candidates, largest = self._candidate_sizes(n, n_views)
        self._views = [View.from_rows(x, f"view {v}") for v, x in enumerate(tables)]
        scaled = [view(x) for view, x in zip(self._views, tables, strict=True)]
        self._weights = np.asarray(
            [1.0 if self.geometry == "exp" else d / 2 for d in self.view_sizes_]
        )
        layout = make_layout(np.zeros(n, int), 1)
        task = Views(n, scaled, make_rows(view_statistics(scaled), layout, 1), layout)
        starts = self._start_temperatures(scaled)
        settings = self._solver_parameters(task, starts, largest)
        for dependent in self._coding_choices():
            configurations = [Configuration(sizes, dependent) for sizes in candidates]
            task.configurations += configurations
            task.calls += self._solver_calls(task, configurations, largest, settings, starts)
        return task

    @property
    def _coded_sizes(self) -> tuple[int, ...] | None:
        """Numbers of features of the views whose centres are coded."""
        return self.view_sizes_ if self.centre_code == "half_log" else None

    def _coding_choices(self) -> tuple[bool, ...]:
        return (True, False) if self.dependent == "auto" else (bool(self.dependent),)

    def _candidate_sizes(
        self, n: int, n_views: int
    ) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
        """Candidate numbers of clusters, and the largest number of every view."""
        if isinstance(self.n_clusters, str):
            self._check_choice("n_clusters", self.n_clusters, ("auto",), "or numbers")
            bounds = self._sizes_per_view("max_clusters", self.max_clusters, n_views, 256)
            largest = tuple(min(bound, n) for bound in bounds)
            if math.prod(largest) > CELLS:
                raise ValueError(
                    f"n_clusters='auto' tries at most {CELLS} combinations of clusters; got "
                    f"{' x '.join(map(str, largest))}; lower max_clusters"
                )
            candidates = list(itertools.product(*(range(1, k + 1) for k in largest)))
        else:
            largest = self._sizes_per_view("n_clusters", self.n_clusters, n_views, CLUSTERS)
            candidates = [largest]
        if max(largest) > n:
            raise ValueError(
                f"n_samples={n} should be >= n_clusters={max(largest)}; "
                "lower n_clusters or pass more rows"
            )
        if any(self._coding_choices()) and math.prod(largest) > CELLS:
            raise ValueError(
                f"a joint table may have {CELLS} cells; got {' x '.join(map(str, largest))} "
                "clusters; use fewer, or dependent=False"
            )
        return candidates, largest

    def _solver_parameters(
        self, task: Views, starts: np.ndarray, largest: Sequence[int]
    ) -> MultiviewParameters:
        """Settings of the solver that all runs share."""
        dtype = task.rows.mass.dtype
        # At lower temperatures, probabilities of the rarest cells underflow.
        rarest = -math.log(SMOOTHING / (task.n + SMOOTHING * math.prod(largest)))
        end = max(_END, rarest / (80 if dtype == np.float32 else 600))
        top = starts.max()
        levels = max(math.ceil(math.log(top / end) / math.log(self.cooling)), 1)
        low, high = map(float, self.scale_range)
        return MultiviewParameters(
            columns=feature_columns(self.view_sizes_, task.rows.x.n_statistics, dtype),
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

    def _solver_calls(
        self,
        task: Views,
        configurations: list[Configuration],
        largest: tuple[int, ...],
        settings: MultiviewParameters,
        starts: np.ndarray,
    ) -> list[solve.SolverCall]:
        """Calls of the compiled program for all restarts of configurations with the same coding."""
        n, dtype, n_init = task.n, task.rows.mass.dtype, self.n_init
        total = len(configurations) * n_init
        # One run per configuration and restart.
        random = check_random_state(self.random_state)
        runs = Runs(
            seed=random.randint(2**31 - 1, size=total).astype(np.uint32),
            active=np.repeat(np.asarray([c.sizes for c in configurations], np.int32), n_init, 0),
            start=np.tile(np.resize(starts, n_init), len(configurations)).astype(dtype),
            constant=np.repeat(
                [c.constant_length(n, self._coded_sizes) for c in configurations], n_init
            ),
        )
        # Split the runs into calls that fit into memory.
        sizes = self._padded_sizes(task, largest) if len(configurations) == 1 else largest
        table = math.prod(sizes[:-1]) if configurations[0].dependent and len(largest) > 2 else 0
        nbytes = task.rows.mass.size * (6 * sum(sizes) + 2 * table) * dtype.itemsize
        size = at_once(total, nbytes)
        data = sum(a.nbytes for a in jax.tree.leaves(task.rows))
        static = (("design", Design(sizes, configurations[0].view_groups, self.e_step)),)
        return [
            solve.SolverCall(
                solve_multiview,
                (
                    task.rows,
                    settings,
                    Runs(*(values[first : first + size] for values in runs)),
                ),
                static,
                data + nbytes * size,
            )
            for first in range(0, total, size)
        ]

    def _padded_sizes(self, task: Views, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of clusters of all views, padded so that few distinct programs are compiled."""
        few, jointly = tuple(padded_count(k, 1) for k in sizes), any(self._coding_choices())
        cells, p = math.prod(few) if jointly else 0, task.rows.x.n_statistics
        entries = [task.layout.n_slots * max(p, cells // size) for size in few]
        if all(active_mask(k, e) is not None for k, e in zip(sizes, entries, strict=True)):
            return few
        few = tuple(max(bucket_size(k, 64), 2) for k in sizes)
        return sizes if task.n > 16384 or (jointly and math.prod(few) > CELLS) else few

    def _start_temperatures(self, scaled: list[np.ndarray]) -> np.ndarray:
        """Initial temperatures of the restarts."""
        if not isinstance(self.start, str):
            return np.ravel(np.asarray(self.start, float))
        return 1.2 * first_splits(scaled, self._weights) * np.asarray(STARTS)

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        # Lengths in the original units: the scaling of the rows shifts them.
        shift = self._unit_length(task.n)
        every: MultiviewSolution = jax.tree.map(lambda *runs: np.concatenate(runs), *result)
        every = every._replace(
            labels=np.stack([task.layout.from_blocks(z) for z in every.labels]).astype(np.int64),
            objective=every.objective + shift,
            distance=every.distance + shift,
        )
        every = self._refine(task, every, shift)
        # Best run of every configuration, and the best configuration.
        first = np.arange(len(task.configurations)) * self.n_init
        bests = first + every.objective.reshape(-1, self.n_init).argmin(1)
        chosen = int(every.objective[bests].argmin())
        index, restarts = int(bests[chosen]), slice(first[chosen], first[chosen] + self.n_init)
        self.selection_ = selection_table(task.configurations, every, bests)
        # All restarts of the selected configuration.
        starts = np.concatenate([call.arrays[2].start for call in task.calls])
        self._runs = {
            "labels": every.labels[restarts],
            "objective": every.objective[restarts],
            "pdl": every.partition[restarts],
            "cdl": every.distance[restarts],
            "converged": every.converged[restarts],
            "start": starts[restarts],
        }
        # Description lengths of the best run.
        best: MultiviewSolution = jax.tree.map(lambda runs: runs[index], every)
        configuration = task.configurations[chosen]
        self.dependent_ = configuration.dependent
        self.objective_ = float(best.objective)
        self.pdl_, self.cdl_ = float(best.partition), float(best.distance)
        self.tdl_ = self.pdl_ + self.cdl_
        self.complexity_ = self.objective_ - self.tdl_
        self.converged_ = bool(best.converged)
        self.n_iter_ = int(best.n_iter)
        # Trace of the best run, with its temperatures; the refinement is its last step.
        trace = best.trace[~np.isnan(best.trace)].astype(float) + shift
        if self.tdl_ < trace[-1] - 1e-9 * abs(trace[-1]):
            trace = np.append(trace, self.tdl_)
        self.objective_trace_ = trace
        settings, step = task.calls[0].arrays[1], np.arange(trace.size)
        falling = settings.top * self.cooling ** -(step // self.n_steps).astype(float)
        falling = np.minimum(falling, starts[index])
        self.temperatures_ = np.where(step < settings.n_anneal, falling, 0.0)
        self._set_codes(task, configuration, best.labels)
        self._check_result(configuration)
        return self

    def _lengths(self, task: Views, configuration: Configuration) -> ViewLengths:
        bounds = float(self.scale_range[0]), float(self.scale_range[1])
        shared = self.sigma == "view"
        return ViewLengths(task.tables, configuration, self._weights, bounds, shared)

    def _objective_at(self, task: Views, labels: np.ndarray) -> float:
        """Description length of labels (n, V), or (n,) for one view."""
        labels = labels.reshape(task.n, -1)
        used = labels.max(0) + 1
        return min(
            self._lengths(task, c).evaluate(labels).total
            + c.constant_length(task.n, self._coded_sizes)
            for c in task.configurations
            if (used <= c.sizes).all()
        ) + self._unit_length(task.n)

    def _unit_length(self, n: int) -> float:
        """Difference of description lengths of n rows, in units of X and after scaling."""
        logs = np.log([view.scale for view in self._views])
        return float((2 * self._weights * n * logs).sum())

    def _refine(self, task: Views, every: MultiviewSolution, shift: float) -> MultiviewSolution:
        """Move single rows between cells in the best runs of every configuration.

        ``shift`` is the difference of lengths between the units of X and the scaled rows.
        """
        count = self.n_init if task.n <= _FEW_ROWS else _REFINED
        count = 1 if len(task.configurations) > 1 else count
        for i, configuration in enumerate(task.configurations):
            lengths, first = self._lengths(task, configuration), i * self.n_init
            order = np.argsort(every.objective[first : first + self.n_init], kind="stable")
            for run in first + order[:count]:
                labels = shorten_description(lengths, every.labels[run], 1e-9 * task.n)
                result = lengths.evaluate(labels)
                constant = configuration.constant_length(task.n, self._coded_sizes)
                objective = result.total + constant + shift
                if objective < every.objective[run] - 1e-9 * task.n:
                    every.labels[run], every.objective[run] = labels, objective
                    every.partition[run] = result.partition
                    every.distance[run] = result.distance + shift
        return every

    def _set_codes(self, task: Views, configuration: Configuration, labels: np.ndarray) -> None:
        """Set labels (n, V), and centres, scales and shares of their clusters, in units of X."""
        sizes, centres, scales, self.margins_ = configuration.sizes, [], [], []
        clusters = self._lengths(task, configuration).evaluate(labels).views
        for view, result in zip(self._views, clusters, strict=True):
            centres.append(view.mean + view.scale * result.centres)
            scales.append(view.scale**2 * result.scales)
            self.margins_.append(result.size / task.n)
        self.joint_ = None
        if configuration.dependent:
            self.joint_ = np.zeros(sizes)
            np.add.at(self.joint_, tuple(labels.T), 1 / task.n)
        self.dependence_gain_ = dependence_gain(labels, sizes)
        self._present = tuple(np.unique(column).size for column in labels.T)
        membership = [np.eye(k)[z] for k, z in zip(sizes, labels.T, strict=True)]
        single = self._single
        self.alternatives_ = labels
        self.membership_: Any = membership[0] if single else membership
        self.n_clusters_: Any = self._present[0] if single else self._present
        self.cluster_centers_ = centres[0] if single else centres
        self.scales_ = scales[0] if single else scales

    def _check_result(self, configuration: Configuration) -> None:
        for v, (k, expected) in enumerate(zip(self._present, configuration.sizes, strict=True)):
            if k < expected:
                self._warn_degenerate(
                    f"found {k} clusters in view {v}, fewer than n_clusters={expected}"
                )
            self._warn_small_clusters(np.bincount(self.alternatives_[:, v]), f" in view {v}")
        self._warn_convergence()

    # New rows

    def predict(self, X):  # type: ignore[override]
        """Predict the clusters of new rows in all views.

        A row gets the combination of clusters with the shortest description under the fitted
        centres, scales and shares.

        Parameters
        ----------
        X : as in `fit`

        Returns
        -------
        ndarray of shape (n_samples, n_views), or (n_samples,) for a single table
        """
        check_is_fitted(self)
        tables = self._split_views(X, reset=False)
        if tuple(x.shape[1] for x in tables) != self.view_sizes_:
            raise ValueError(
                f"views must have the columns of the fit; got {[x.shape[1] for x in tables]} for "
                f"{list(self.view_sizes_)}; pass the same views in the same order"
            )
        single = self._single
        centres: Any = [self.cluster_centers_] if single else self.cluster_centers_
        scales: Any = [self.scales_] if single else self.scales_
        scores = row_scores(tables, centres, scales, self._weights)
        # Cell of the largest log frequency plus log density.
        with np.errstate(divide="ignore"):
            if self.joint_ is not None:
                labels = best_cells(np.log(self.joint_), scores)
            else:
                margins = map(np.log, self.margins_)
                parts = [(t + s).argmax(1) for t, s in zip(margins, scores, strict=True)]
                labels = np.stack(parts, 1)
        return labels[:, 0] if single else labels
