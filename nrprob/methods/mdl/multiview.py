"""Multi-view clustering by minimum description length."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Annotated, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import DesignEncoder
from nrprob.data.validation import CLUSTERS
from nrprob.estimator import parameters
from nrprob.exceptions import short_repr
from nrprob.methods.mdl.configurations import Configuration
from nrprob.methods.mdl.feature_lengths import COVARIANCES
from nrprob.methods.mdl.informed_fit import FEATURES, choose_covariance
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


@parameters.constructor
class MDLMultiView(SampledViews):
    r"""Minimum description length clustering of the same samples in several views.

    Every view has separate clusters. One description length covers all views and all side
    information. The fit minimises over the labels :math:`z_v` of the views, in nats,

    .. math:: L = \sum_v F_v(z_v) + W(z_1, ..., z_V) + Y(z_1)

    where :math:`F_v` is the length of the features of view v given its clusters and known groups.
    W is the length of the labels, which are coded jointly. Y is the length of the classes ``y``
    given the clusters of the first view. Must-links and cannot-links change the code words of the
    first view. Views share information as far as that shortens the description.

    Without must-links and cannot-links, and with at most 512 combinations of clusters, W is the
    length of one table, :math:`\log C(\prod_v K_v, N) - \sum_{cells} n \log (n/N)`. N is the number
    of rows, :math:`K_v` the number of clusters of view v, and n the number of rows in a cell. A
    cell is a combination of clusters, one of each view. :math:`\log C` is the parametric complexity
    of a multinomial. In all other cases, W is the length of a code by a directed forest over the
    views: the labels of a root are coded alone, and the labels of every other view given the labels
    of its parent.

    The features of a view with d features and K clusters have a Gaussian code with one scale
    (``covariance="isotropic"``),

    .. math:: F = w \left(N \log s + \frac{R}{s}\right) + PC + \frac{K d}{2} \log \frac{N}{2 \pi},
        \qquad s = R / N, \quad w = d / 2

    where R is the sum of the squared distances from the cluster centres and PC the parametric
    complexity of s. The last term codes the centres. Other covariances replace the first term by
    minus the maximum of the Gaussian log likelihood, and charge for their parameters.

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
        clusters; "full_cluster" is a full covariance per cluster. If clusters have different
        shapes, a shared covariance favours too many clusters. Therefore, "auto" is "full_cluster"
        if a number of clusters is selected, and "isotropic" if all numbers are given. "auto" is
        also "isotropic" if ``sigma`` or ``geometry`` select published codes.
    constraints : {"hard", "soft"}, default="hard"
        "hard" satisfies every must-link and cannot-link or raises InfeasibleConstraints. "soft"
        retains must-links and cannot-links if that shortens the description; use "soft" if pairs
        may be wrong.
    known_words : {"marginal", "given"}, default="marginal"
        "marginal" codes the clusters of the first view without the known groups, and suits clusters
        that are nearly independent of the groups. "given" codes the clusters given the groups, and
        suits clusters that depend on the groups. If ``known_dependence_`` is clearly positive, try
        "given".
    view_gain : bool, default=False
        Whether to compute ``view_gain_``, which takes two additional fits per view.
    dependent : bool or "auto", default=True
        Whether the clusters of all views are coded jointly; False clusters every view separately.
        "auto" fits both and selects the shorter description.
    sigma : {"view", "cluster"}, default="view"
        Scale s of isotropic clusters: one per view, or one per cluster, as in the tables of Yin
        (2007). With "cluster", the optima of L include very small clusters, and "auto" selects too
        many clusters.
    geometry : {"gaussian", "exp"}, default="gaussian"
        "gaussian" encodes rows by an isotropic normal density, w = d/2. "exp" encodes squared
        distances by an exponential density, w = 1, as published. The two codes agree for two
        features; "exp" underweights views of more features.
    e_step : {"stochastic", "mean-field"}, default="stochastic"
        E-step of the annealing. "stochastic" samples a cell for every row, as published.
        "mean-field" uses the probabilities of all cells. "mean-field" never increases the free
        energy at a fixed temperature. Its result depends little on the initial values, so restarts
        hardly differ.
    max_clusters : int or tuple of int, default=5
        Largest numbers of clusters for "auto"; `fit` warns if a largest number is selected. At most
        256.
    centre_code : {"half_log", "none"}, default="half_log"
        Whether L includes the code of the centres of isotropic clusters. The choice affects only
        the selection of numbers of clusters.
    scale_range : tuple of float, default=(1e-3, 10.0)
        Bounds of s, in units of the view's total variance, from 1e-12 to 1e12. Reduce the lower
        bound if clusters are much tighter than the view.
    start : "auto" or float or sequence of float, default="auto"
        Initial temperatures, which the restarts use in a cycle. "auto" is 1.2, 0.48 and 0.192 times
        the sum of the critical temperatures of the views. From 1e-9 to 10**9.
    cooling : float, default=1.11
        Ratio of successive temperatures, down to 0.05. Reduce ``cooling`` to anneal more slowly.
        From 1.01 to 10**6. All restarts share the schedule. A restart with a low initial
        temperature keeps this temperature until the schedule reaches it.
    n_steps : int, default=4
        Number of steps per temperature; at most 10,000.
    n_init : int, default=10
        Number of restarts; the shortest ones are refined, and the shortest description is kept. At
        most 10**6.
    max_iter : int, default=100
        Maximum number of hard assignment steps at the end of an annealed restart. Also the maximum
        number of accepted proposals in a step of a search. A search ends after the pass over all
        views in which the number of accepted steps exceeds ``max_iter``. At most 10**6.
    random_state : int, RandomState instance or None, default=None
        Determines initial values and samples.
    verbose : int, default=0
        Whether to print progress.

    Attributes
    ----------
    alternatives_ : ndarray of shape (n_samples, n_views)
        Cluster of every row in every view.
    labels_ : ndarray of shape (n_samples,)
        Cluster of every row in the first view.
    membership_ : list of ndarray of shape (n_samples, n_clusters), or a single ndarray
        One-hot form of the labels.
    n_clusters_ : tuple of int, or int
        Numbers of non-empty clusters.
    dependent_ : bool
        Whether the labels are coded jointly.
    pdl_, cdl_, tdl_ : float
        Length of the labels, length of the features, and the sum of both lengths. Fits that are not
        annealed include parametric complexities. Annealed fits leave parametric complexities out,
        as the tables of Yin (2007) do. Annealed fits code labels by relative frequencies, and
        features by squared distances without constants: ``w n log s``, unless a bound of s is
        active.
    complexity_ : float
        Remaining terms of L: parametric complexities, constants, and the code of the centres.
    objective_ : float
        ``tdl_ + complexity_``, the description length L in nats. Comparable between numbers of
        clusters and codings of the same rows, at the same ``geometry``.
    approximate_complexity_, approximate_length_ : float
        Parametric complexity of the labels by the approximation in Yin (2007),
        :math:`(K - 1)/2 \log(N / 2\pi)` for K cells of a table of N rows; and the sum of this
        complexity and ``tdl_``. These values reproduce Table 3.3 of Yin (2007); use ``objective_``
        to compare numbers of clusters. NaN if a joint table would have more than 4096 cells.
    dependence_gain_ : float
        Nats by which a joint code of the labels by one table is shorter than separate codes. The
        gain is N times the mutual information of the labelings (the total correlation for three or
        more views), minus the additional parametric complexity. Positive if views depend on each
        other. NaN if the joint table would have more than 4096 cells.
    cluster_centers_ : list of ndarray of shape (n_clusters, n_features), or a single ndarray
        Means of the clusters; the mean of all rows for an empty cluster.
    scales_ : list of ndarray of shape (n_clusters,), or a single ndarray
        Mean squared distance s of every cluster.
    joint_ : ndarray of shape (n_clusters of view 1, n_clusters of view 2, ...) or None
        Shares of the cells; None if the labels are not coded by one table.
    margins_ : list of ndarray of shape (n_clusters,)
        Shares of the clusters of every view.
    selection_ : pandas.DataFrame
        Shortest description length of the restarts, for every combination of numbers of clusters
        and of joint or separate coding of the labels.
    forest_ : ndarray of shape (n_views,)
        Parent of every view in the forest of the joint code; -1 for roots, and for a table.
    words_saved_ : ndarray of shape (n_views,)
        For every view, nats that the joint code of the labels of all views saves, at the fitted
        labels. The alternative is a separate code of this view, plus the shortest joint code of all
        other views.
    view_gain_ : ndarray of shape (n_views,)
        For every view, nats that a common description of all views saves. The alternative is the
        shortest description of this view alone, plus the shortest description of all other views.
        Only with ``view_gain=True``.
    uninformative_views_ : list of int
        Views with a single cluster.
    unlinked_views_ : list of int
        Views without an edge in the shortest forest: joint coding with other views does not shorten
        their labels. All views if the labels are coded separately.
    known_dependence_ : float
        Nats by which the labels of the first view are shorter given the known groups. Only with
        ``known``.
    temperatures_ : ndarray
        Temperature of every entry of ``objective_trace_``; 0 for hard assignments.
    objective_trace_ : ndarray
        For annealed fits, ``tdl_`` of the best restart after every step. For all other fits, the
        description length L after every accepted step.
    n_iter_ : int
        For annealed fits, number of steps, the same for all parallel restarts. For all other fits,
        number of entries of ``objective_trace_``.
    converged_ : bool
        Whether the best restart converged.
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
    A fit is annealed under five conditions: numbers of clusters are given; features are continuous
    with isotropic covariance; labels are coded by a table or separately; there is no side
    information; and ``view_gain`` is False. An annealed restart has these steps:

    1. Initialise centres at random rows, with clusters of equal size.
    2. E-step at the current temperature: sample cells, or compute their probabilities.
    3. M-step: frequencies of the cells, centres and scales.
    4. Repeat steps 2 and 3, ``n_steps`` times per temperature; then lower the temperature.
    5. Repeat hard assignments and step 3 until no label changes; a hard assignment gives every row
       the cell of its shortest code.

    A search with exact description lengths then improves the three shortest restarts; up to 50
    rows, it improves all restarts. With ``dependent="auto"``, it improves one restart per coding:

    6. Move single rows, in one view or between cells, and merge clusters, while that shortens the
       description.
    7. Make chains of such moves with locks, which may first lengthen the description; then repeat
       step 6. Chains of moves between cells are made only if rows times cells are at most 1e6.

    If rows times cells exceed 2e7, rows do not move between cells, but only in single views.

    All other fits start at the means of the classes, and at k-means++ centres of all views together
    and of single views. If a number of clusters is selected, they also start at one cluster. A step
    is accepted if it shortens the exact description length:

    1. Move rows in one view, or jointly in two views, in the cells of a table, or in a tree of
       views.
    2. Merge clusters, split clusters in two or three, redivide pairs of near clusters, or adopt the
       clusters of another view. Refit the forest after every step.
    3. Improve the three shortest results by chains of moves, and repeat step 2; up to 50 rows,
       improve all results.

    Above 10,000 rows, these fits only move rows and merge clusters. Memory is
    :math:`O(n \sum_v K_v d_v)`. `fit` warns of two views that share their errors, if the residuals
    of these views within clusters have a large canonical correlation. Such views are not
    independent given the clusters, but the code assumes independence.

    Partial labels ``y`` are worth a few nats each. Few labels decide between descriptions of nearly
    equal length, and rarely overrule the features. A class may have several clusters.

    Lengths of ``geometry="gaussian"`` exclude the constant ``w N log(2 pi / d)``. If all features
    of a view are multiplied by a, the length changes by ``2 w N log(a)``; shifts and rotations do
    not change the length.

    References
    ----------
    K. Yin (2007), "Inferring Informed Clustering Problems with Minimum Description Length
    Principle", PhD thesis, University at Albany, chapter 3: (3.1) to (3.5), (3.10) to (3.13),
    theorem 3.1. ``sigma="cluster", geometry="exp"`` reproduces the printed lengths: the objective
    (3.10) has one scale per view, whereas the updates (3.13) and the tables have one scale per
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

    _rarely_finite = ("dependence_gain_", "approximate_complexity_", "approximate_length_")
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
    ) -> InformedTask:
        """Check the input, and arrange annealed restarts; see `Clusterer.prepare`."""
        self.check_parameters()
        self._check_one_device()
        tables = self._split_views(X, reset=True)
        n, n_views = tables[0].shape[0], len(tables)
        self._single = n_views == 1 and not is_view_list(X) and self.views is None
        self.view_sizes_ = tuple(x.shape[1] for x in tables)
        sizes, selected = self._cluster_limits(n, n_views)
        self._kinds = self._feature_kinds(n_views)
        self._views = [
            View.from_rows(x, f"view {v}")
            if kind == "gaussian"
            else View.from_counts(x, kind, f"view {v}")
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
        self._group_names = [", ".join(map(str, labels)) for labels in design.group_labels]
        self._covariance = choose_covariance(
            self.covariance,
            self.sigma,
            self.geometry,
            selected=any(selected),
            grouped=bool(design.codes.any()),
        )
        task = self._informed_task(
            [x.astype(np.float64) for x in scaled], sizes, selected, y, self._groups,
            must_link, cannot_link,
        )  # fmt: skip
        plain = self._covariance == "isotropic" and set(self._kinds) == {"gaussian"}
        nothing_known = (
            task.classes is None and not task.groups.any()
            and not len(task.must_link) + len(task.cannot_link)
        )  # fmt: skip
        few = not any(self._coding_choices()) or math.prod(sizes) <= MAX_CELLS
        if plain and nothing_known and few and not any(selected) and not self.view_gain:
            task.annealed = self._annealed_task(scaled, sizes)
            task.calls = task.annealed.calls
        return task

    def _annealed_task(self, scaled: list[np.ndarray], sizes: tuple[int, ...]) -> Views:
        """Make the input of the annealed restarts: statistics of the rows, and solver calls.

        ``scaled`` has the centred and scaled rows (n, d) of every view, and ``sizes`` the numbers
        of clusters of the views.
        """
        n = len(scaled[0])
        layout = make_layout(np.zeros(n, int), 1)
        task = Views(n, make_rows(view_statistics(scaled), layout, 1), layout)
        starts = self._start_temperatures(scaled)
        settings = self._solver_parameters(task, starts, sizes)
        for dependent in self._coding_choices():
            configurations = [Configuration(sizes, dependent)]
            task.configurations += configurations
            task.calls += self._solver_calls(task, configurations, sizes, settings, starts)
        return task

    def compute(self, task):
        """Run all restarts; see `Clusterer.compute`."""
        return super().compute(task) if task.annealed is not None else self._search_informed(task)

    @property
    def _coded_sizes(self) -> tuple[int, ...] | None:
        """Number of features of every view if the centres are coded; None if not."""
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
        """Largest number of clusters of every view, and whether the fit selects the number.

        ``n`` is the number of rows.
        """
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
                f"n_clusters={max(sizes)} is more than the number of rows; got n_samples={n}; "
                "lower n_clusters, or pass more rows"
            )
        return sizes, selected

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        if task.annealed is not None:
            lengths = [self._length(task, c.dependent) for c in task.annealed.configurations]
            result = [(self._improve_annealed(lengths, task.annealed, result), None)]
        self._finish_informed(task, result)
        self._check_result(task)
        return self

    def _objective_at(self, task: InformedTask, labels: np.ndarray) -> float:
        """Description length of labels of shape (n, V) for V views, or (n,) for one view."""
        return self._informed_length_at(task, labels.reshape(len(task.tables[0]), -1))

    def _unit_length(self, n: int) -> float:
        """Description length of ``n`` rows in units of X, minus the length of the scaled rows."""
        logs = np.log([view.scale for view in self._views])
        return float((2 * self._weights * n * logs).sum())

    def _check_result(self, task: InformedTask) -> None:
        for v, (present, limit) in enumerate(zip(self._present, task.sizes, strict=True)):
            if task.counts_used[v]:
                if limit < len(self.alternatives_):
                    self._warn_cluster_limit(present, limit, f" of view {v}")
            elif present < limit:
                self._warn_degenerate(
                    f"found {present} clusters in view {v}, fewer than n_clusters={limit}"
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
        known_groups = int(self._groups_count)
        groups = np.where(design.codes < known_groups, design.codes, -1)
        costs = [
            cost(view(x).astype(np.float64), groups)
            for cost, view, x in zip(self._costs, self._views, tables, strict=True)
        ]
        labels = self._shares.predict(costs)
        return labels[:, 0] if self._single else labels
