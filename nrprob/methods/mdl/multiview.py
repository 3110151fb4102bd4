"""Multi-view clustering by minimum description length."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import DesignEncoder
from nrprob.data.validation import CLUSTERS
from nrprob.estimator import parameters
from nrprob.exceptions import short_repr
from nrprob.methods.mdl.annealed_restarts import AnnealedRestarts
from nrprob.methods.mdl.annealing import MultiviewSolution
from nrprob.methods.mdl.cell_moves import ViewLengths, shorten_description
from nrprob.methods.mdl.configurations import (
    Configuration,
    best_cells,
    dependence_gain,
    row_scores,
    selection_table,
)
from nrprob.methods.mdl.feature_lengths import COVARIANCES
from nrprob.methods.mdl.informed_fit import FEATURES
from nrprob.methods.mdl.informed_length import InformedLength, Target
from nrprob.methods.mdl.informed_views import InformedTask
from nrprob.methods.mdl.label_forests import MAX_CELLS
from nrprob.methods.mdl.posterior import SampledViews
from nrprob.methods.mdl.views import View, Views, is_view_list, view_statistics
from nrprob.statistics.rows import make_layout, make_rows

__all__ = ["MDLMultiView"]

GEOMETRIES = ("gaussian", "exp")
SIGMAS = ("view", "cluster")
E_STEPS = ("stochastic", "mean-field")
CENTRE_CODES = ("half_log", "none")

_FEW_ROWS, _REFINED = 50, 3  # all restarts are refined up to this number of rows, else three


@parameters.constructor
class MDLMultiView(SampledViews, AnnealedRestarts):
    r"""Minimum description length clustering of the same samples in several views.

    Every view has separate clusters, and one description length codes all that is known. The fit
    minimises over the labels :math:`z_v` of the views, in nats,

    .. math:: L = \sum_v F_v(z_v) + W(z_1, ..., z_V) + Y(z_1)

    where :math:`F_v` is the length of the features of view v given its clusters and known groups,
    W is the length of the labels, which are coded jointly, and Y is the length of the classes ``y``
    given the clusters of the first view. Pairs change the words of the first view. Views share
    information as far as that shortens the description.

    Without pairs, and with at most 512 combinations of clusters, W is the code of one table,
    :math:`\log C(\prod_v K_v, N) - \sum_{cells} n \log (n/N)`. N is the number of rows, and n the
    number of rows in a cell, which is a combination of clusters, one of each view. :math:`\log C`
    is the parametric complexity of a multinomial. Otherwise W is the code of a directed forest
    over the views: labels of a root are coded alone, labels of another view given those of its
    parent.

    The features of a view with d features and K clusters have a Gaussian code with one scale
    (``covariance="isotropic"``),

    .. math:: F = w \left(N \log s + \frac{R}{s}\right) + PC + \frac{K d}{2} \log \frac{N}{2 \pi},
        \qquad s = R / N, \quad w = d / 2

    where R is the sum of the squared distances from the cluster centres and PC the parametric
    complexity of s. The last term codes the centres. Other covariances replace the first term by
    the maximum of the Gaussian log likelihood, and charge for their parameters.

    Parameters
    ----------
    n_clusters : int, "auto", or tuple of both, default=2
        Number of clusters, the same for all views or one per view. "auto" selects the number of the
        shortest description, by merges and splits.
    views : sequence of int, optional
        Numbers of columns of the views, if `fit` gets a single table with the views side by side.
    features : {"gaussian", "bernoulli", "multinomial"} or tuple of them, default="gaussian"
        Type of the features, the same for all views or one per view: continuous, binary, or counts.
        Binary features and counts are coded by normalised maximum likelihood in every cluster, or
        in every pair of a cluster and a known group.
    covariance : {"auto", "isotropic", "diagonal", "full", "full_cluster"}, default="auto"
        Covariance of continuous features. "isotropic", "diagonal" and "full" are shared by the
        clusters; "full_cluster" is a full covariance per cluster. A shared covariance divides
        clusters of different shapes, so that "auto" is "full_cluster" where numbers of clusters
        are selected, unless ``sigma`` or ``geometry`` ask for published codes, and "isotropic"
        otherwise.
    constraints : {"hard", "soft"}, default="hard"
        "hard" satisfies every pair or raises InfeasibleConstraints. "soft" retains pairs if that
        shortens the description; use it if pairs may be wrong.
    known_words : {"marginal", "given"}, default="marginal"
        "marginal" codes the clusters of the first view without the known groups, and suits clusters
        that are nearly independent of the groups. "given" codes them given the groups, and suits
        clusters that depend on the groups. If ``known_dependence_`` is clearly positive, try
        "given".
    view_gain : bool, default=False
        Whether to compute ``view_gain_``, which refits twice per view.
    dependent : bool or "auto", default=True
        Whether the clusters of all views are coded jointly; False clusters every view separately.
        "auto" fits both and selects the shorter description.
    sigma : {"view", "cluster"}, default="view"
        Scale s of isotropic clusters: one per view, or one per cluster, as in the tables of Yin
        (2007). With "cluster", the optima of L include very small clusters, and "auto" selects too
        many clusters.
    geometry : {"gaussian", "exp"}, default="gaussian"
        "gaussian" encodes rows by an isotropic normal density, w = d/2. "exp" encodes squared
        distances by an exponential density, w = 1, as published. Both agree for two features;
        "exp" underweights views of more features.
    e_step : {"stochastic", "mean-field"}, default="stochastic"
        E-step of the annealing. "stochastic" samples a cell for every row, as published.
        "mean-field" uses the probabilities of all cells. It never increases the free energy at a
        fixed temperature, and depends little on the initial values, so restarts hardly differ.
    max_clusters : int or tuple of int, default=5
        Largest numbers of clusters for "auto", at most 256.
    centre_code : {"half_log", "none"}, default="half_log"
        Whether L includes the code of the centres of isotropic clusters. It affects only the
        selection of numbers of clusters.
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
        Lengths of the labels and of the features, and their sum. Fits that are not annealed include
        parametric complexities. Annealed fits leave them out, as the tables of Yin (2007) do:
        labels coded by their frequencies, and distances without constants (``w n log s`` unless a
        bound of s is active).
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
        Shares of the cells; None if the labels are not coded by one table.
    margins_ : list of ndarray of shape (n_clusters,)
        Shares of the clusters of every view.
    selection_ : pandas.DataFrame
        Numbers of clusters and joint code of the restarts, with their shortest description lengths.
    forest_ : ndarray of shape (n_views,)
        Parent of every view in the forest of the joint code; -1 for roots, and for a table.
    words_saved_ : ndarray of shape (n_views,)
        Nats by which the joint code of all labels is shorter than the shortest joint code of the
        other views plus a separate code of this view, at the fitted labels.
    view_gain_ : ndarray of shape (n_views,)
        Nats by which the description of all views is shorter than the shortest descriptions of this
        view and of the other views. Only with ``view_gain=True``.
    uninformative_views_ : list of int
        Views with a single cluster.
    unlinked_views_ : list of int
        Views whose labels are shortest when they are coded alone.
    known_dependence_ : float
        Nats by which the labels of the first view are shorter given the known groups. Only with
        ``known``.
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
    With given numbers of clusters, isotropic covariance, a table or separate codes, and nothing
    known, a restart has these steps:

    1. Initialise centres at random rows, with clusters of equal size.
    2. E-step at the current temperature: sample cells, or compute their probabilities.
    3. M-step: frequencies of the cells, centres and scales.
    4. Repeat steps 2 and 3, ``n_steps`` times per temperature; then lower the temperature.
    5. Repeat hard assignments and step 3 until no label changes; a hard assignment gives every row
       the cell of its shortest code.

    The three shortest restarts are then refined by exact description lengths; up to 50 rows, all
    restarts are refined:

    6. Move single rows between cells, in all views at once, while that shortens the description.
    7. Make chains of such moves with locks, which may first lengthen the description; then repeat
       step 6. Chains need at most a million rows times cells.

    If rows times cells exceed 2e7, rows move in single views only, without chains.

    All other fits start at one cluster, at the means of the classes, and at k-means++ centres of
    all views together and of single views. Exact description lengths decide about every step:

    1. Move rows in one view, and in two views or a tree of views at once.
    2. Merge clusters, split them in two or three, divide pairs of near clusters anew, or adopt the
       clusters of another view. Refit the forest after every step.
    3. Improve the three shortest results by chains of moves, and repeat step 2.

    Above 10,000 rows, rows move and clusters merge only. Memory is :math:`O(n \sum_v K_v d_v)`. The
    warning of views that share their errors compares canonical correlations of the residuals
    within clusters; such views are not independent given the clusters, as the code assumes.

    Few labels are worth a few nats each. They decide between descriptions of nearly equal length,
    and never overrule the features. A class may have several clusters.

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
    features: Any = "gaussian"
    covariance: Annotated[str, parameters.Choice(("auto", *COVARIANCES))] = "auto"
    constraints: Annotated[str, parameters.Choice(("hard", "soft"))] = "hard"
    known_words: Annotated[str, parameters.Choice(("marginal", "given"))] = "marginal"
    view_gain: parameters.Flag = False
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

    def prepare(  # type: ignore[override]
        self, X, y, known=None, *, must_link=None, cannot_link=None
    ) -> Views | InformedTask:
        """Check the input and lay it out; see `Clusterer.prepare`."""
        self.check_parameters()
        self._check_one_device()
        tables = self._split_views(X, reset=True)
        n, n_views = tables[0].shape[0], len(tables)
        self._single = n_views == 1 and not is_view_list(X) and self.views is None
        self.view_sizes_ = tuple(x.shape[1] for x in tables)
        sizes, selected = self._cluster_limits(n, n_views)
        self._kinds = self._feature_kinds(n_views)
        self._views = [
            View.from_rows(x, f"view {v}") if kind == "gaussian" else View.from_counts(x, kind, v)
            for v, (x, kind) in enumerate(zip(tables, self._kinds, strict=True))
        ]
        scaled = [view(x) for view, x in zip(self._views, tables, strict=True)]
        self._weights = np.asarray(
            [1.0 if self.geometry == "exp" else d / 2 for d in self.view_sizes_]
        )
        self._encoder = DesignEncoder()
        design = self._encoder.fit(known, n)
        self._check_groups(design)
        if design.memberships is not None:
            raise ValueError(
                "known must hold labels for this estimator; got Memberships; pass the most "
                "probable labels, or use CCIB"
            )
        self._groups, self._groups_count = design.codes, design.n_groups
        self._covariance = self.covariance
        if self.covariance == "auto":
            published = self.sigma == "cluster" or self.geometry == "exp"
            self._covariance = "full_cluster" if any(selected) and not published else "isotropic"
        task = self._informed_task(
            [x.astype(np.float64) for x in scaled], sizes, selected, y, self._groups,
            must_link, cannot_link,
        )  # fmt: skip
        self._check_scales(task)
        plain = self._covariance == "isotropic" and set(self._kinds) == {"gaussian"}
        nothing_known = (
            task.classes is None and not task.groups.any()
            and not len(task.must_link) + len(task.cannot_link)
        )  # fmt: skip
        few = not any(self._coding_choices()) or math.prod(sizes) <= MAX_CELLS
        if any(selected) or not (plain and nothing_known and few) or self.view_gain:
            return task
        return self._annealed_task(scaled, sizes)

    def _annealed_task(self, scaled: list[np.ndarray], sizes: tuple[int, ...]) -> Views:
        """Lay out restarts that are annealed, with given numbers of clusters."""
        n = len(scaled[0])
        layout = make_layout(np.zeros(n, int), 1)
        task = Views(n, scaled, make_rows(view_statistics(scaled), layout, 1), layout)
        starts = self._start_temperatures(scaled)
        settings = self._solver_parameters(task, starts, sizes)
        for dependent in self._coding_choices():
            configurations = [Configuration(sizes, dependent)]
            task.configurations += configurations
            task.calls += self._solver_calls(task, configurations, sizes, settings, starts)
        return task

    def compute(self, task):
        """Run all restarts; see `Clusterer.compute`."""
        if isinstance(task, InformedTask):
            return self._search_informed(task)
        return super().compute(task)

    @property
    def _coded_sizes(self) -> tuple[int, ...] | None:
        """Numbers of features of the views whose centres are coded."""
        return self.view_sizes_ if self.centre_code == "half_log" else None

    def _coding_choices(self) -> tuple[bool, ...]:
        return (True, False) if self.dependent == "auto" else (bool(self.dependent),)

    def _feature_kinds(self, n_views: int) -> tuple[str, ...]:
        kinds = (
            self.features if isinstance(self.features, list | tuple) else (self.features,) * n_views
        )
        if len(kinds) != n_views:
            raise ValueError(
                f"features must be one name, or one per view; got {len(kinds)} for {n_views} "
                "view(s); pass that many"
            )
        for kind in kinds:
            self._check_choice("features", kind, FEATURES)
        return tuple(kinds)

    def _cluster_limits(self, n: int, n_views: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """Largest number of clusters of every view, and whether the number is selected."""
        counts = self.n_clusters
        if not isinstance(counts, np.ndarray | list | tuple):
            counts = (counts,) * n_views
        selected = tuple(isinstance(count, str) for count in counts)
        for number in counts:
            if isinstance(number, str):
                self._check_choice("n_clusters", number, ("auto",), "or numbers")
        bounds = self._sizes_per_view("max_clusters", self.max_clusters, n_views, 256)
        filled = [
            bounds[min(v, n_views - 1)] if isinstance(number, str) else number
            for v, number in enumerate(counts)
        ]
        sizes = self._sizes_per_view("n_clusters", filled, n_views, CLUSTERS)
        sizes = tuple(min(k, n) if auto else k for k, auto in zip(sizes, selected, strict=True))
        if max(sizes) > n:
            raise ValueError(
                f"n_samples={n} should be >= n_clusters={max(sizes)}; "
                "lower n_clusters or pass more rows"
            )
        return sizes, selected

    def _check_scales(self, task: InformedTask) -> None:
        """Raise ValueError for a scale per cluster with options that it does not support."""
        if self.sigma == "cluster" and (task.groups.any() or self._covariance != "isotropic"):
            raise ValueError(
                "sigma='cluster' has isotropic clusters without known groups; got "
                f"covariance={self._covariance!r}; use covariance='full_cluster', or sigma='view'"
            )

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        if isinstance(task, InformedTask):
            self._finish_informed(task, result)
            limits = zip(task.sizes, task.counts_used, strict=True)
            self._check_result(tuple(0 if selected else k for k, selected in limits))
            return self
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
        self._check_result(configuration.sizes)
        self._set_annealed_reports(configuration, best.labels)
        return self

    def _lengths(self, task: Views, configuration: Configuration) -> ViewLengths:
        bounds = float(self.scale_range[0]), float(self.scale_range[1])
        shared = self.sigma == "view"
        return ViewLengths(task.tables, configuration, self._weights, bounds, shared)

    def _objective_at(self, task: Views | InformedTask, labels: np.ndarray) -> float:
        """Description length of labels (n, V), or (n,) for one view."""
        if isinstance(task, InformedTask):
            return self._informed_length_at(task, labels.reshape(len(task.tables[0]), -1))
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

    def _set_annealed_reports(self, configuration: Configuration, labels: np.ndarray) -> None:
        """Set the reports about views, for labels (n, V)."""
        length = InformedLength(
            [], configuration.sizes, (False,) * len(configuration.sizes),
            "table" if configuration.dependent else "independent",
            Target(np.arange(len(labels))),
        )  # fmt: skip
        self._costs = None
        self.forest_ = length.parents
        self._set_reports(length, labels, None)

    def _check_result(self, sizes: tuple[int, ...]) -> None:
        for v, present in enumerate(self._present):
            if present < sizes[v]:
                self._warn_degenerate(
                    f"found {present} clusters in view {v}, fewer than n_clusters={sizes[v]}"
                )
            self._warn_small_clusters(np.bincount(self.alternatives_[:, v]), f" in view {v}")
        self._warn_convergence()

    # New rows

    def predict(self, X, *, known=None):  # type: ignore[override]
        """Predict the clusters of new rows in all views.

        A row gets the combination of clusters with the shortest description under the fitted
        centres, scales and shares.

        Parameters
        ----------
        X : as in `fit`
        known : array-like of shape (n_samples,), optional
            Known group of every row, as in `fit`. A group that did not occur in `fit` has no
            effect.

        Returns
        -------
        ndarray of shape (n_samples, n_views), or (n_samples,) for a single table
        """
        check_is_fitted(self)
        X, known = self._split_known(X, known)
        tables = self._split_views(X, reset=False)
        if tuple(x.shape[1] for x in tables) != self.view_sizes_:
            raise ValueError(
                f"views must have the columns of the fit; got {[x.shape[1] for x in tables]} for "
                f"{list(self.view_sizes_)}; pass the same views in the same order"
            )
        design = self._encoder.transform(known, len(tables[0]), new_groups=known is not None)
        if self._costs is not None:
            known_groups = int(self._groups_count)
            groups = np.where(design.codes < known_groups, design.codes, -1)
            costs = [
                cost(view(x).astype(np.float64), groups)
                for cost, view, x in zip(self._costs, self._views, tables, strict=True)
            ]
            labels = self._shares.predict(costs)
            return labels[:, 0] if self._single else labels
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
