"""Cross-partition clustering: clusters that several subsets of the rows share.

Sizes: n rows of m features, k clusters.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from nrprob.data.labels import list_examples, read_labels
from nrprob.data.validation import check_random_state
from nrprob.engines.optimise import limit_cycles, splitting
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer, Restarts
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.paths import Granularity, path_granularities, path_status, trials_frame
from nrprob.exceptions import short_repr, warn
from nrprob.information import mutual_information
from nrprob.methods.crosspartition.cycle import TERMS, Counts, Cycle, Fields, compute_fields
from nrprob.methods.crosspartition.inputs import (
    Subsets,
    read_counts,
    read_subsets,
    row_masses,
    warn_of_subsets,
)
from nrprob.methods.crosspartition.selection import fit_number
from nrprob.methods.crosspartition.themes import (
    ThemeLabels,
    ThemeRows,
    max_themes,
    sort_labels,
    warn_of_lost_gain,
)
from nrprob.settings import standard
from nrprob.statistics.rows import Layout, make_layout, make_rows, padded_count

# variant -> whether p*(c) enters the step for p*(c|y), and p(c) the step for p(c|x).
VARIANTS = {
    "CP": Cycle(False, False),
    "I": Cycle(True, False),
    "II": Cycle(False, True),
    "III": Cycle(True, True),
}
AUTO = "auto"
_DEFAULT_ETA = 0.6  # value of eta="auto" with a given number of clusters
_START_DOUBT = 0.1  # share of the initial memberships that is spread over all clusters


@dataclass
class SubsetTask:
    """Validated input of one fit.

    Attributes
    ----------
    rows : (n, m) p(y|x), the counts of every row divided by their sum
    mass : (n,) p(x), the weights of the rows
    subsets : subsets of the rows
    counts : input of the cycles: rows in blocks, and parameters
    layout : position of every row in the blocks
    calls : empty; tasks of other estimators list the calls of compiled programs here
    """

    rows: Any
    mass: np.ndarray
    subsets: Subsets
    counts: Counts
    layout: Layout
    calls: tuple = ()

    @property
    def theme_rows(self) -> ThemeRows:
        """Input of the search for themes, in which every row has a single subset.

        The subset is the most probable subset of the row. With probabilities p(w|x), a cluster of a
        single subset would also occur in the other subsets with small weights, and its rows would
        predict themselves.
        """
        codes = np.unique(self.subsets.share.argmax(1), return_inverse=True)[1]
        return ThemeRows(self.rows, self.mass, np.eye(codes.max() + 1)[codes])


@parameters.constructor
class CrossPartition(Clusterer):
    r"""Cross-partition clustering: clusters that several subsets of the rows share.

    Rows are counts from subsets w (corpora, years, sources, batches). CrossPartition finds clusters
    c with the same features y in all subsets, even if the subsets differ more than the clusters.
    One cycle of the update has four steps:

    .. math::
        p(y|c,w) &= \textstyle\sum_x p(x|c,w)\, p(y|x) \\
        p^*(c|y) &\propto \textstyle\prod_w p(y|c,w)^{\eta\, p(w)} \\
        p^*(y|c) &= p(y)\, p^*(c|y) / p^*(c) \\
        p(c|x) &\propto \textstyle\prod_y p^*(y|c)^{\beta\, p(y|x)}

    where x are rows, p(y|x) their normalised counts, p(w) and p(y) the shares of subsets and
    features in all counts, :math:`\eta` is the exponent ``eta`` and :math:`\beta` the inverse
    temperature. The geometric mean over subsets in the second step is small if any factor is small.
    A feature therefore belongs to a cluster only if the feature belongs to this cluster in every
    subset. A feature that is absent from a subset has no factor for this subset.

    Each step lowers one term, but there is no common objective, so the update can oscillate.

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Number of clusters, from 1 to 1000. "auto" selects the number whose clusters in the other
        subsets predict held-out features best, up to a standard error. These clusters are then the
        initial values of the path of solutions.
    variant : {"CP", "I", "II", "III"}, default="CP"
        Priors in the update, which allow for clusters of unequal sizes: none ("CP"), p*(c) in the
        second step ("I"), p(c) in the fourth step ("II"), or both ("III").
    eta : float or "auto", default="auto"
        Exponent of the geometric mean. Raise it for harder memberships of features; halve it if
        clusters vanish. From 1e-3 to 100. "auto" is 0.6. With ``n_clusters="auto"``, it is the
        largest of 1.5, 1, 0.6 and 0.3 with which every subset has rows in every cluster, and with
        which the clusters predict other subsets as well as ``theme_labels_``.
    smoothing : float, default=0
        Weight l of the smoothed rows (1 - l) p(y|x) + l p(y|w), which replace p(y|x). Without
        smoothing, a feature that a cluster lacks in one subset is excluded from the cluster in all
        subsets. Raise it to between 0.1 and 0.3 if rows have few counts and clusters vanish. From 0
        to 1.
    row_weights : {"counts", "equal"}, default="counts"
        Weights p(x): shares of all counts, or equal weights.
    damped : bool, default=False
        Whether to repeat an oscillating update with steps of half the length, down to 1/64. Damped
        steps have the same fixed points. Sufficiently short steps converge if the real part of beta
        times the eigenvalue (see ``trials_``) is below 1.
    growth : float, default=1.07
        Ratio of successive inverse temperatures if a possible split does not occur. Lower it if the
        path misses clusters. From 1.001 to 10.
    n_init : int, default=1
        Number of restarts. The first restart splits along the leading eigenvector and is
        deterministic; all others split at random. At most 10**6.
    max_iter : int, default=3000
        Maximum number of cycles per inverse temperature; at most 10**6.
    tol : float, default=1e-7
        Converged if memberships change by less than ``tol`` in a cycle, from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the splits of all restarts except the first, and with ``n_clusters="auto"`` the
        features that are held out and the starts of the search for themes.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        p(c|x); rows sum to 1. Clusters are sorted by weight; clusters that were not reached are 0.
        With ``n_clusters="auto"``, the number of columns is ``n_clusters_``.
    <n_clusters_>
    cluster_weights_ : ndarray of shape (n_clusters,)
        p(c).
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        p*(y|c); p(y) for a cluster that was not reached.
    subset_cluster_centers_ : ndarray of shape (n_clusters, n_subsets, n_features)
        p(y|c,w), with smoothing; p(y|w) for a cluster that was not reached.
    feature_membership_ : ndarray of shape (n_features, n_clusters)
        p*(c|y); NaN for features without counts.
    subset_membership_ : ndarray of shape (n_subsets, n_clusters)
        p(c|w).
    subsets_ : ndarray of shape (n_subsets,)
        Labels of the subsets.
    eta_ : float
        Exponent that was used.
    theme_scores_ : pandas.DataFrame
        With ``n_clusters="auto"``, the numbers of clusters that were compared: columns
        ``n_clusters``, ``gain`` (mean held-out log-likelihood gain over the subset's profile, in
        nats per count) and ``error`` (standard error of its difference to the largest gain).
    theme_labels_ : ndarray of shape (n_samples,)
        Hard labels of the direct search for themes, at which the path starts with
        ``n_clusters="auto"``. `fit` warns if ``labels_`` predict other subsets significantly less
        well. The attribute is not set for one subset, for more than 20 clusters, if a subset has
        fewer rows than clusters, and if the path ends early.
    empty_cells_ : list of (cluster, subset)
        Pairs of a cluster and a subset that has no rows in the cluster; such a cluster is not
        shared by all subsets.
    path_ : list of Granularity
        Solutions from 1 cluster to ``n_clusters``, each with ``beta``, ``critical_beta``,
        ``membership`` p(c|x), ``weights`` p(c), ``labels``, and ``parents`` (for each cluster, the
        cluster of the previous solution with the largest overlap).
    trials_ : pandas.DataFrame
        One row per inverse temperature at which the path tried to split the largest cluster, which
        is replaced by two copies. The columns are:

        - ``n_clusters``, ``beta``: number of clusters, and inverse temperature
        - ``status``: "split", "merged", "vanished", "oscillating" or "max_iter"
        - ``step``: length of the steps, below 1 if damped
        - ``growth``: factor by which the difference between the copies grows per cycle; NaN for
          clusters that started at the labels of themes
        - ``eigenvalue``: leading eigenvalue of the linearised update. For ``beta`` above
          1 / abs(eigenvalue), the copies separate, or oscillate if the eigenvalue is complex or
          negative; NaN for clusters that started at the labels of themes
        - ``period``, ``width``: period of an oscillation, and largest range of a membership in it
        - ``n_iter``: number of cycles
    status_ : str
        "converged", or the reason for fewer clusters: "oscillating", "vanished", "merged" or
        "max_iter".
    looped_ : bool
        Whether the update oscillated at any inverse temperature.
    objective_ : float
        -n I(C;Y) of the last solution. With ``n_clusters="auto"``, -n times the mean gain of the
        rows from other subsets. The objective ranks restarts with the same number of clusters; the
        update does not minimise the objective.
    objective_trace_ : ndarray of shape (n_solutions,)
        Objective of each solution of ``path_``.
    term_trace_ : pandas.DataFrame
        The four terms in each cycle, up to 4,096, that led to the last solution. Columns "CP1",
        "CP2", "CP*1" and "CP*2" are the terms that the steps for p(c|x), p(y|c,w), p*(c|y) and
        p*(y|c) lower. A step may raise the other terms.
    n_iter_ : int
        Total number of cycles of the best restart.
    converged_ : bool
        False if the path ended at ``max_iter``.
    beta_ : float
        Final inverse temperature.
    critical_beta_ : float
        Critical inverse temperature of the first split, 1 / abs(eigenvalue). If no split occurred,
        the value of the first attempt; infinite if there was no attempt or the eigenvalue is 0.
    restarts_ : xarray.Dataset
        Labels, objective and convergence of all restarts. The objective is infinite for restarts
        with fewer clusters than the best.
    <n_features_in_>
    <feature_names_in_>

    See Also
    --------
    IB : Information bottleneck without subsets; ``solver="split"`` follows the same path.
    CCIB : Clusters conditional on known groups.
    ConditionalMixture : Adjusts continuous features for known groups.

    Notes
    -----
    Algorithm:

    1. Start with one cluster.
    2. Double the largest cluster, and raise :math:`\beta` to the critical value at which a
       difference between the copies grows, computed from the leading eigenvalue of the linearised
       update.
    3. Iterate the cycle until the memberships converge. If they oscillate, or if the copies merge,
       raise :math:`\beta` by ``growth`` and repeat.
    4. Repeat from step 2 until there are ``n_clusters`` clusters. A path that ends earlier sets
       ``status_`` and warns.

    A cycle takes O(nmk) time for n rows, m features and k clusters (nonzero counts instead of nm
    for sparse rows), and O(nk + vmk) memory for v subsets. The computation uses float64 for any
    ``X``, since powers of small probabilities underflow otherwise.

    With ``n_clusters="auto"``, the features are split into five folds at random. For every number
    of clusters and every fold, labels are estimated without the features of the fold, and scored on
    these features. A row is predicted by the profile of its subset, times a power of the geometric
    mean of :math:`p(y|c,v) / p(y|v)` over the other subsets v. Clusters within subsets have no
    gain, since they do not occur in other subsets. The smallest number is selected whose mean gain
    over all folds is within one standard error of the largest mean gain; 1 is selected within three
    standard errors. The search ends after two numbers without an improvement, at 5 clusters at
    least and at 20 clusters at most. Rows with probabilities p(w|x) count in their most probable
    subset.

    The initial labels are k-means clusters in the leading eigenvectors of :math:`R R^\top`. The
    rows of R are :math:`(p(y|x) - p(y|w)) / \sqrt{p(y|w)}`, or :math:`\sqrt{p(y|x)}` minus its mean
    in the subset, and products of two rows of one subset are replaced by 0. Rows are then assigned
    to the cluster of the largest gain until labels repeat. The best of 10 starts is kept. Labels
    from all features are the initial values of the final path: at every number of clusters,
    :math:`\beta` rises until the clusters remain apart. If the final clusters have a significantly
    smaller gain than the labels, the path of splits is followed as well. With a given number of
    clusters, labels of the same search are only compared with the clusters.

    The first split depends only on the product of :math:`\beta` and ``eta``. Features of a single
    subset can form a separate cluster; see ``empty_cells_``. Remove such features rather than
    smooth the counts.

    References
    ----------
    Marx, Z., "Structure-based computational aspects of similarity and analogy in natural language",
    PhD thesis, Hebrew University of Jerusalem, chapter 5, with the signs of its terms corrected.

    Dagan, I., Marx, Z. and Shamir, E. (2002), "Cross-dataset clustering: revealing corresponding
    themes across multiple corpora", Conference on Natural Language Learning (CoNLL). Variant "II".

    Marx, Z., Dagan, I. and Shamir, E. (2003), "Identifying structure across pre-partitioned data",
    Advances in Neural Information Processing Systems 16. Variant "III".

    The search for critical inverse temperatures, the tests for oscillation, damping, and the search
    for themes with the choice of their number are specific to this package.

    Examples
    --------
    >>> from nrprob import CrossPartition, metrics
    >>> from nrprob.datasets import make_cross_partition
    >>> X, labels = make_cross_partition(random_state=0)
    >>> model = CrossPartition(5).fit(X, subsets=labels[:, 1])
    >>> model.n_clusters_, model.status_
    (5, 'converged')
    >>> CrossPartition("auto", random_state=0).fit(X, subsets=labels[:, 1]).n_clusters_
    5
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, labels[:, 0]):.2f}")
    1.00
    """

    n_clusters: parameters.ClustersOrAuto = 2
    _: KW_ONLY
    variant: Annotated[str, parameters.Choice(tuple(VARIANTS))] = "CP"
    eta: Annotated[float | str, parameters.Number(1e-3, 100, words=(AUTO,))] = AUTO
    smoothing: Annotated[float, parameters.Number(0, 1)] = 0.0
    row_weights: Annotated[str, parameters.Choice(("counts", "equal"))] = "counts"
    damped: parameters.Flag = False
    growth: Annotated[float, parameters.Number(1.001, 10)] = 1.07
    n_init: parameters.Count = 1
    max_iter: parameters.Count = 3000
    tol: parameters.Tolerance = 1e-7
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(
        known=("labels", "memberships"),
        known_as="subsets",
        labels=False,
        sparse=True,
        nonnegative=True,
        squares=False,
        alone=True,
        finds_number=True,
    )
    _rarely_finite = ("feature_membership_", "critical_beta_")
    _unit = "the path of splits"
    _start_labels: ClassVar[tuple[np.ndarray, ...]] = ()  # labels of 2, 3, ... themes

    @property
    def _many_clusters(self) -> bool:
        return self.n_clusters == AUTO or self.n_clusters > 2

    # Fitting

    def fit(self, X, y=None, *, subsets=None):  # type: ignore[override]
        """Find clusters that the subsets of the rows share.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            Counts, or other non-negative weights. The computation uses float64.
        y : array-like of shape (n_samples,), optional
            Ignored; present for compatibility with scikit-learn pipelines.
        subsets : array-like of shape (n_samples,) or (n_samples, n_subsets)
            Labels of subsets, of any type, or probabilities p(w|x). None is a single subset, with a
            warning.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data are incompatible with the parameters.
        """
        return self._fit(X, y, subsets=subsets)

    def _fit_samples(self, X, y, **keywords) -> None:
        if self.n_clusters != AUTO:
            super()._fit_samples(X, y, **keywords)
            return
        model = fit_number(self, X, y, keywords.get("subsets"))
        parameters = model.get_params(deep=False)
        for name, value in vars(model).items():
            if name not in parameters:
                setattr(self, name, value)

    def prepare(self, X, y, *, subsets=None) -> SubsetTask:  # type: ignore[override]
        """Validate the input; see `Clusterer.prepare`."""
        X, _ = self._check_input(X, None)
        if y is not None:
            read_labels(y, X.shape[0])
        subset_groups = read_subsets(subsets, X.shape[0])
        rows, totals = read_counts(X)
        if not totals.any():
            raise ValueError("X must hold counts; got zeros only; pass rows with counts")
        mass = row_masses(totals, self.row_weights)
        empty = subset_groups.share.T @ mass == 0
        if empty.any():
            raise ValueError(
                "every subset needs counts; got none in subset "
                f"{subset_groups.names[empty].tolist()[0]!r}; leave its rows out"
            )
        warn_of_subsets(rows, mass, subset_groups, subsets is not None, self.n_clusters)
        design, share = subset_groups.design, subset_groups.design.memberships
        n_groups = padded_count(design.n_groups, rows.size)
        if share is not None:
            share = np.pad(share, ((0, 0), (0, n_groups - design.n_groups)))
        layout = make_layout(design.codes, n_groups if share is None else 1)
        laid_out = make_rows(rows, layout, n_groups, share=share, mass=mass)
        counts = Counts(
            laid_out,
            np.asarray(self._used_eta),
            np.asarray(float(self.smoothing)),
        )
        return SubsetTask(rows, mass, subset_groups, counts, layout)

    def compute(self, task):
        """Follow the path of each restart; see `Clusterer.compute`."""
        random = check_random_state(self.random_state)
        seeds = [None, *(int(random.randint(2**31 - 1)) for _ in range(self.n_init - 1))]
        paths = []
        if self._start_labels:
            paths.append(self._follow_labels(task))
            labels = path_granularities(paths[0], task.layout, task.mass)[0][-1].labels
            if not task.theme_rows.loses_gain(labels, self._start_labels[-1]):
                return paths
        paths += [splitting.follow_path(**self._path_arguments(task, seed)) for seed in seeds]
        return paths

    def _follow_labels(self, task: SubsetTask) -> splitting.Path:
        """Path of solutions, initialised at the labels of 2 themes, of 3 themes, and so on."""
        arguments, data = self._path_arguments(task, None), task.theme_rows

        def log_memberships(labels: np.ndarray, k: int) -> np.ndarray:
            logs = np.full((len(labels), 1, arguments["width"]), -np.inf)
            logs[:, 0, :k] = np.log(_START_DOUBT / k)
            logs[np.arange(len(labels)), 0, labels] = np.log(1 - _START_DOUBT + _START_DOUBT / k)
            return task.layout.to_blocks(logs)

        def mean_gain(log_q: np.ndarray) -> float:
            labels = task.layout.from_blocks(log_q)[:, 0].argmax(1)
            return float(data.mass @ data.shared_gains(labels))

        starts = [log_memberships(labels, k) for k, labels in enumerate(self._start_labels, 2)]
        return splitting.follow_starts(**arguments, starts=starts, score=mean_gain)

    @property
    def _used_eta(self) -> float:
        """Exponent of a fit with a given number of clusters."""
        return _DEFAULT_ETA if self.eta == AUTO else float(self.eta)

    def _path_arguments(self, task: SubsetTask, seed: int | None) -> dict[str, Any]:
        rows = task.counts.rows
        width = padded_count(self.n_clusters, task.layout.n_slots * rows.x.n_statistics)
        schedule = splitting.SplittingSchedule(
            self.n_clusters, float(self.growth), float(self.tol), int(self.max_iter),
            damped=bool(self.damped), seed=seed,
        )  # fmt: skip
        return {
            "make": VARIANTS[self.variant], "data": task.counts, "mass": rows.mass,
            "state": np.zeros((1, width)), "schedule": schedule, "width": width,
            "report": self._report,
        }  # fmt: skip

    def _report(self, trial: splitting.Trial) -> None:
        if self.verbose:
            print(
                f"{trial.n_clusters} clusters at beta={trial.beta:.5g}: {trial.status} after "
                f"{trial.n_iter} cycles"
            )

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        import pandas as pd

        n, k = len(task.mass), self.n_clusters
        read = [path_granularities(path, task.layout, task.mass) for path in result]
        traces = [
            np.array([-n * self._level_gain(task, level) for level in levels]) for levels, _ in read
        ]
        n_levels = max(len(path.levels) for path in result)
        objective = np.array([t[-1] if t.size == n_levels else np.inf for t in traces])
        best = int(np.argmin(objective))
        path, (self.path_, order) = result[best], read[best]
        self.status_, reason = path_status(path)
        active = np.arange(path.levels[-1].carry[1].shape[-1]) < n_levels
        cycle, carry = VARIANTS[self.variant], path.levels[-1].carry
        log_fields = compute_fields(task.counts, active, carry, cycle=cycle)
        self._store_distributions(task, jax.device_get(log_fields), order)
        self.trials_ = trials_frame(path)
        self.looped_ = any(trial.status == limit_cycles.OSCILLATING for trial in path.trials)
        self.term_trace_ = pd.DataFrame(path.levels[-1].values, columns=TERMS)
        self.beta_, self.eta_ = self.path_[-1].beta, self._used_eta
        split = n_levels > 1
        self.critical_beta_ = self.path_[1].critical_beta if split else _first_critical_beta(path)
        membership = np.zeros((n, k))
        membership[:, :n_levels] = self.path_[-1].membership
        self._store_results(
            Restarts(
                np.stack([levels[-1].labels for levels, _ in read]),
                objective,
                np.array([path_status(path)[0] != limit_cycles.UNFINISHED for path in result]),
            ),
            membership=membership,
            trace=traces[best],
            n_iter=max(sum(trial.n_iter for trial in path.trials), 1),
            nothing_left=reason,
        )
        self._warn_of_empty_cells()
        if n_levels == k and not self._start_labels:
            self._compare_with_themes(task)
        return self

    def _compare_with_themes(self, task: SubsetTask) -> None:
        """Search for themes; warn if the fitted clusters have a significantly smaller gain."""
        data, k = task.theme_rows, self.n_clusters
        n, n_subsets = data.share.shape
        if n_subsets == 1 or not 2 <= k <= min(max_themes(data.share), n - 1):
            return
        themes = ThemeLabels(data, k, check_random_state(self.random_state)).find(k)
        self.theme_labels_ = sort_labels(themes, data.mass)
        warn_of_lost_gain(
            data, self.labels_, themes, "the themes of a direct search", "pass n_clusters='auto'"
        )

    def _level_gain(self, task: SubsetTask, level: Granularity) -> float:
        """Quality of the solution ``level`` in nats; ``objective_`` is -n times the quality.

        The quality is I(C;Y), or the mean gain from other subsets if the path starts at the labels
        of themes.
        """
        if not self._start_labels:
            return _cluster_information(task, level.membership)
        return float(task.mass @ task.theme_rows.shared_gains(level.labels))

    def _store_distributions(self, task: SubsetTask, log_fields: Fields, order: np.ndarray) -> None:
        """Set the fitted distributions of the last solution of the path.

        ``log_fields`` are logarithms of distributions, and ``order`` (k,) is the order of the
        clusters in the fitted attributes.
        """
        m, k = task.rows.shape[1], self.n_clusters
        last, share = self.path_[-1], task.subsets.share
        joint = (share * task.mass[:, None]).T @ task.rows
        weights = share.T @ task.mass
        p_y = np.asarray(joint.sum(0)).ravel()
        occurs = p_y > 0
        result = last.n_clusters

        self._log_centroid = np.where(occurs, log_fields.centroid[:m, 0, order].T, -np.inf)
        self._log_prior = np.log(np.maximum(last.weights, 1e-300))
        self.cluster_weights_ = np.pad(last.weights, (0, k - result))
        self._profiles = joint / weights[:, None]
        self.cluster_centers_ = np.tile(p_y, (k, 1))
        self.cluster_centers_[:result] = np.exp(self._log_centroid)
        self.subset_cluster_centers_ = np.tile(self._profiles, (k, 1, 1))
        projected = np.moveaxis(log_fields.projected[: len(weights), :m, 0, order], -1, 1)
        projected = np.where(joint[:, None] > 0, projected, -np.inf)
        self.subset_cluster_centers_[:result] = np.exp(projected).swapaxes(0, 1)
        self.feature_membership_ = np.zeros((m, k))
        self.feature_membership_[:, :result] = np.exp(log_fields.feature[:m, 0, order])
        self.feature_membership_[~occurs] = np.nan
        self.subsets_ = task.subsets.names
        cells = (share * task.mass[:, None]).T @ last.membership / weights[:, None]
        self.subset_membership_ = np.pad(cells, ((0, 0), (0, k - result)))
        self.empty_cells_ = [
            (int(c), self.subsets_.tolist()[w])
            for c, w in np.argwhere(cells.T < splitting.MIN_SHARE)
        ]
        self._feature_weights = p_y
        self._subset_share = share

    def _warn_of_empty_cells(self) -> None:
        if self.empty_cells_:
            c, w = self.empty_cells_[0]
            self._warn_degenerate(
                f"{len(self.empty_cells_)} cell(s) are empty, so clusters are not shared by all "
                f"subsets; cluster {c} has nothing of subset {w!r}; leave out features that "
                "few subsets have, or see path_ for fewer clusters"
            )

    # Reading the result

    def top_samples(self, cluster, subset, n=10):
        """Rows of a subset with the highest membership in a cluster.

        Parameters
        ----------
        cluster : int
            Index of a cluster.
        subset : object
            One of ``subsets_``.
        n : int, default=10
            Maximum number of rows.

        Returns
        -------
        ndarray of shape (at most n,)
            Indices of rows in decreasing order of p(c|x) p(w|x), without rows of p(w|x) = 0.

        Raises
        ------
        ValueError
            If the cluster or the subset does not exist.
        """
        self._check_cluster(cluster, n)
        names = self.subsets_.tolist()
        if not isinstance(subset, Hashable) or subset not in names:
            raise ValueError(
                f"there is no such subset; got {short_repr(subset)}; choose one of "
                f"{list_examples(names)}"
            )
        part = self._subset_share[:, names.index(subset)]
        order = np.argsort(-self.membership_[:, cluster] * part, kind="stable")
        return order[part[order] > 0][:n]

    def top_features(self, cluster, n=10, *, min_share=None):
        """Features with the highest membership in a cluster, over all subsets.

        Parameters
        ----------
        cluster : int
            Index of a cluster.
        n : int, default=10
            Maximum number of features.
        min_share : float, optional
            Minimum share p(y) of all counts, since rare features have extreme memberships. The
            default is half of the mean share.

        Returns
        -------
        ndarray of shape (at most n,)
            Names of features, or column indices without names, in decreasing order of p*(c|y).

        Raises
        ------
        ValueError
            If the cluster does not exist, or ``min_share`` is not from 0 to 1.
        """
        self._check_cluster(cluster, n)
        if min_share is None:
            min_share = 0.5 / (self._feature_weights > 0).sum()
        self._check_number("min_share", min_share, low=0, high=1)
        score = np.nan_to_num(self.feature_membership_[:, cluster], nan=-1)
        enough = (self._feature_weights >= min_share) & (self._feature_weights > 0)
        order = np.argsort(-score, kind="stable")
        order = order[enough[order]][:n]
        names = getattr(self, "feature_names_in_", None)
        return order if names is None else names[order]

    def _check_cluster(self, cluster: Any, n: Any) -> None:
        check_is_fitted(self)
        self._check_number(
            "cluster", cluster, low=0, high=self.cluster_weights_.size - 1, integer=True
        )
        self._check_number("n", n, low=1, high=2**31 - 1, integer=True)

    # New rows

    def _log_membership(self, X, subsets) -> np.ndarray:
        check_is_fitted(self)
        with standard():
            rows, totals = read_counts(self._validate(X, reset=False))
        observed = self._feature_weights > 0
        unseen = np.asarray(rows[:, ~observed].sum(1)).ravel() > 0
        if unseen.any():
            warn(
                f"{unseen.sum()} new row(s) have features without counts in the fit; got "
                f"{(~observed).sum()} such features; they are ignored"
            )
        log_centroid = np.where(observed, self._log_centroid, 0).T
        log_r = rows @ log_centroid
        if self.smoothing:
            smooth = self._profiles_of(subsets, len(totals)) @ log_centroid
            log_r = (1 - self.smoothing) * log_r + self.smoothing * smooth
        log_r = self.beta_ * log_r
        if VARIANTS[self.variant].row_prior:
            log_r = log_r + self._log_prior
        log_r[totals == 0] = self._log_prior
        missing = self.cluster_weights_.size - log_r.shape[1]
        return np.pad(log_r, ((0, 0), (0, missing)), constant_values=-np.inf)

    def _profiles_of(self, subsets: Any, n: int) -> np.ndarray:
        """Profiles p(y|w) (n, m) of the subsets of n new rows; p(y) if a subset is unknown."""
        if subsets is None:
            return np.tile(self._feature_weights, (n, 1))
        new_subsets = read_subsets(subsets, n)
        known = dict(zip(self.subsets_.tolist(), self._profiles, strict=True))
        names = new_subsets.names.tolist()
        return new_subsets.share @ np.stack([known.get(w, self._feature_weights) for w in names])

    def predict(self, X, *, subsets=None):  # type: ignore[override]
        """Assign new rows of any subset to clusters.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        subsets : array-like of shape (n_samples,) or (n_samples, n_subsets), optional
            Subsets of the new rows. Subsets have an effect only with ``smoothing``, which uses
            p(y|w) of the subset, or p(y) if the subset is missing or not in ``subsets_``.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._log_membership(*self._split_known(X, subsets)).argmax(1)

    def predict_proba(self, X, *, subsets=None):  # type: ignore[override]
        """Memberships p(c|x) of new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        subsets : array-like of shape (n_samples,) or (n_samples, n_subsets), optional
            As in `predict`.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return softmax(self._log_membership(*self._split_known(X, subsets)), axis=1)


def _cluster_information(task: SubsetTask, membership: np.ndarray) -> float:
    """Mutual information I(C;Y) of k clusters and features in nats, from p(c|x) (n, k)."""
    joint = (task.mass[:, None] * membership).T @ task.rows
    return mutual_information(joint / joint.sum())


def _first_critical_beta(path: splitting.Path) -> float:
    """Critical inverse temperature of the first attempted split, for paths without a split."""
    sizes = [abs(trial.eigenvalue) for trial in path.trials]
    return 1 / sizes[0] if sizes and sizes[0] > splitting.ROUNDING else np.inf
