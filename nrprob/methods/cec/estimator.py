"""Cross-entropy clustering with partial labels (CEC-IB).

Sizes: n rows, k clusters, S restarts.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any

import numpy as np
from scipy import sparse
from scipy.special import softmax
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from nrprob.data.validation import check_random_state
from nrprob.engines import placement
from nrprob.engines.optimise import solve
from nrprob.engines.optimise.descents import PartitionLimits
from nrprob.engines.optimise.local_search import SearchProblem
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer
from nrprob.estimator.calls import collect_restarts, padded_n_clusters, restart_calls
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.unconditional import WeightedUnconditionalMixin
from nrprob.estimator.weights import entries_with_weight
from nrprob.exceptions import warn
from nrprob.methods.cec.critical import estimate_critical_beta
from nrprob.methods.cec.inputs import COVARIANCES, Prepared, check_fixed, prepare_features
from nrprob.methods.cec.search import SearchOutcome, search_partition
from nrprob.methods.cec.solver import (
    Ended,
    Objective,
    make_parameters,
    solve_published,
    term_values,
)
from nrprob.settings import standard
from nrprob.statistics.gaussians import MomentRows, log_normals
from nrprob.statistics.rows import Layout, Rows, bucket_size, make_layout, make_rows

STARTS = ("k-means++", "random")
_REG = 1e-3  # ridge of reg="auto"
_TOLERANCE = 1e-9  # smallest change of the objective that counts, in nats per sample


def _check_init(name: str, value: Any) -> None:
    if isinstance(value, str):
        parameters.Choice(STARTS).check(name, value)
        return
    labels = np.asarray(value)
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise ValueError(
            f"{name} must be one of {STARTS}, or labels; got {value!r:.60}; pass an array of "
            "integers, one per row"
        )


def _check_covariance(name: str, value: Any) -> None:
    if value is not None:
        check_fixed(name, value)


@dataclass
class LabelledTask:
    """Checked input of one fit, its data layout, and its calls of the compiled program.

    Attributes
    ----------
    prepared : scaled rows, and the quantities that convert results to the original units
    fixed : (n,) class of every row, -1 where unlabelled; None without labels
    rows, layout : rows in blocks, and the position of every row in the blocks
    settings : parameters of the objective, and of the published algorithm
    initial : (n,) initial labels; None if ``init`` names a method
    calls : calls of the compiled program; empty unless ``preset="published"``
    """

    prepared: Prepared
    fixed: np.ndarray | None
    rows: Rows
    layout: Layout
    settings: solve.Settings
    initial: np.ndarray | None
    calls: list[solve.SolverCall]


@parameters.constructor
class CECIB(WeightedUnconditionalMixin, Clusterer):  # type: ignore[misc]
    r"""Cross-entropy clustering with partial labels, some of which may be wrong.

    CECIB finds hard clusters with Gaussian densities, and estimates the number of clusters. Each
    cluster has a cost, its part of the entropy of the partition. Clusters that improve the fit by
    less than their cost vanish. Labels are soft information: splitting a class is free, and mixing
    classes costs. With clusters Y, labels Z and n rows of features X, the fit minimises n E(Y) plus
    the ``penalty``, where

    .. math:: E(Y) = H(Y) + \sum_i p_i H(X_i \| \mathcal F) + \beta H(Z|Y)

    Here H(Y) is the entropy of the partition, and :math:`p_i` the share of the rows in cluster i.
    :math:`H(X_i \| \mathcal F)` is the smallest cross-entropy between the rows of cluster i and a
    normal distribution of the covariance family :math:`\mathcal F` (``covariance``). :math:`\beta`
    (``beta``) is the weight of the labels, and H(Z|Y) the entropy of the labels within clusters,
    computed from the labelled rows of each cluster and weighted by :math:`p_i`. Without labels, or
    with ``beta=0``, the method is cross-entropy clustering.

    Parameters
    ----------
    n_clusters : int, default=10
        Initial number of clusters, an upper bound of ``n_clusters_``.
    beta : float or "critical", default=1.0
        Weight of the labels. At 1, correct labels keep their classes apart; use values between 0.3
        and 0.6 if many labels are wrong. "critical" is the smallest weight that keeps all classes
        apart with ``penalty=None``, estimated from the labelled rows and clipped to [0, 1]. A
        critical weight near 1 means that the features do not distinguish some classes; 0 means that
        labels are not needed. The fit uses 1, with a warning, if a class has too few labelled rows;
        5 are always enough. The fit uses 0, with a warning, if fewer than two classes have labels.
        From 0 to 1000.
    covariance : {"full", "diag", "spherical", "fixed"}, default="full"
        Covariance family of the clusters; with "fixed", all clusters have ``fixed_covariance``.
    fixed_covariance : float or array-like of shape (n_features,) or (n_features, n_features)
        Variance, variances or covariance matrix, for ``covariance="fixed"``.
    min_cluster_fraction : float, default=0.05
        Minimum size of a cluster, as a share of all rows. Lower it to detect small clusters. From 0
        to 0.999. A cluster also needs enough rows to estimate its covariance: n_features + 1 for
        "full", 2 for "diag" and "spherical", 1 for "fixed".
    reg : float or "auto", default="auto"
        Ridge: this multiple of the columns' variances is added to the diagonal of the scatter (not
        of the covariance) of every cluster. The ridge keeps covariances regular. "auto" is 0.001.
        With 0, `fit` raises ValueError if the initial clusters have singular covariances. At most
        10**6.
    penalty : {"code", None}, default="code"
        "code" charges every cluster for its parameters: (p + 1)/2 log n nats for n rows and p
        parameters, as a two-part code does. Merging a small cluster into a larger one nearby may
        cost less; covariances with fewer parameters ("diag", "spherical") then keep the two apart.
        With None, the objective is the published one, without a cost of parameters:
        ``n_clusters_`` then is usually ``n_clusters``.
    preset : {None, "published"}, default=None
        "published" runs the published algorithm: random initial clusters (or the labels in
        ``init``), rows that move one after another, and deletion of every cluster that becomes too
        small. "published" sets ``penalty=None``, and ``reg="auto"`` is 0.
    init : {"k-means++", "random"} or array-like of shape (n_samples,), default="k-means++"
        Initial partitions. The first one is a single cluster. The others assign rows to the nearest
        k-means++ centre (on standardised columns), or at random. If ``init`` is an array of labels
        from 0 to ``n_clusters`` - 1, these labels are the only initial partition.
    n_init : int, default=3
        Number of restarts: up to five initial partitions, then perturbations of the best partition.
        Without effect if ``init`` has labels, unless ``preset="published"``.
    max_iter : int, default=1000
        Maximum number of screenings of all moves in each descent, or of sweeps with
        ``preset="published"``; at most 10**6.
    <random_state>
    <verbose>

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of every row; cluster 0 is the largest.
    membership_ : ndarray of shape (n_samples, n_clusters_)
        One-hot form of ``labels_``.
    n_clusters_ : int
        Estimated number of clusters.
    weights_ : ndarray of shape (n_clusters_,)
        Shares of the rows, :math:`p_i`.
    means_ : ndarray of shape (n_clusters_, n_features)
        Cluster means.
    covariances_ : ndarray
        Covariances, with the ridge of ``reg``: (n_clusters_, n_features, n_features) for "full",
        (n_clusters_, n_features) for "diag", (n_clusters_,) for "spherical", (n_features,
        n_features) for "fixed".
    label_counts_ : ndarray of shape (n_clusters_, n_classes)
        Numbers of labelled rows by cluster and class, if ``y`` is given; sums of their weights, if
        the fit has ``sample_weight``.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels, if ``y`` is given. Cluster indices do not correspond to classes.
    beta_ : float
        Weight of the labels that was used.
    critical_beta_ : ndarray of shape (n_classes, n_classes)
        Estimates of the smallest weight at which two classes are not merged, if
        ``beta="critical"``. Values at or below 0 mean that the features alone keep the classes
        apart. If both classes have n_features + 2 labelled rows ("full"; 3 for "diag" and
        "spherical", 2 for "fixed"), the estimate comes from their covariances, which are pooled
        unless they differ significantly; it may exceed 1. Otherwise, if both classes have at least
        5 labelled rows, the estimate is cross-validated and biased towards 1. All other entries and
        the diagonal are NaN.
    critical_beta_se_ : ndarray of shape (n_classes, n_classes)
        Standard errors of the estimates from covariances, under the assumption that the labels are
        independent of the features; NaN for cross-validated estimates.
    critical_beta_set_ : (float, ndarray)
        Estimate of the set of classes that determines ``beta_``, and the classes of this set. The
        set maximises the estimate minus its standard error. If the standard error exceeds 0.25, the
        cross-validated estimate is used instead, and no standard error is subtracted. With few
        labelled rows, ``beta_`` is too large on average, so that labels have more weight than
        necessary: with fewer than 10 rows per class in 5 features, 12 rows in 10 features, or 22
        rows in 20 features.
    critical_beta_reason_ : str
        Reason why ``beta_`` is 1, if a set of classes has no estimate; "" if all sets have one.
    objective_ : float
        n E(Y) with ``reg``, plus the ``penalty``, in nats of the whole data set.
    cost_terms_ : dict
        Terms of ``objective_``: "model", "entropy" (including the penalty) and, with labels,
        "labels", each in nats of the whole data set.
    objective_trace_ : ndarray
        Objective after every step of the search. With ``preset="published"``, the objective may
        increase when a cluster is deleted.
    n_clusters_trace_ : ndarray
        Number of clusters after every step.
    n_iter_ : int
        Number of steps of the search, or sweeps of the best restart.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>

    See Also
    --------
    ConstrainedMixture : Gaussian mixture with labels as hard links.
    PartitionKMeans : k-means with labels as additional features.
    MDLConstrained : Clustering by description length under links.

    Notes
    -----
    The algorithm:

    1. Start from one cluster, and from partitions by ``init``.
    2. Compute for every row the change of the objective by a move to every other cluster. Visit the
       rows with a move that lowers the objective, and move them. Repeat until no move lowers the
       objective.
    3. Merge two clusters or split one cluster if this lowers the objective, and continue with
       step 2.
    4. Improve the best partition by new divisions of the union of two near clusters, dissolutions
       of clusters, chains of moves, and, up to 2,000 rows, splits followed by merges. Continue with
       step 2 after each improvement.

    Every step lowers the objective. At the end, none of these steps lowers the objective, among
    partitions whose clusters all have at least ``min_cluster_fraction`` of the rows.

    If columns were nearly linear combinations of the others, rounding errors would determine the
    clusters. With ``covariance="full"`` and ``reg`` above 0, `fit` therefore drops columns while
    the condition number of the correlations exceeds 10**6, and names them in a warning. `fit`
    models a dropped column by one regression on the retained columns, which is the same for all
    clusters.

    With n rows, m features and k clusters, step 2 costs :math:`O(n k m^2)` for "full" and
    :math:`O(n k m)` otherwise. Memory is :math:`O(n (m + k))`.

    With ``penalty="code"``, two clusters of different classes may merge at ``beta=1``: the merger
    saves (p + 1)/2 log n nats. The clusters stay apart if the merger raises the other terms by
    more. A cluster without labelled rows has no label cost. The label cost of any other cluster is
    proportional to its number of rows, labelled or not. One wrong label in a large cluster with few
    labels therefore has a large effect. All computations are in float64, because float32 does not
    resolve the change of the objective by one row.

    References
    ----------
    M. Śmieja and B. C. Geiger (2017), "Semi-supervised cross-entropy clustering with information
    bottleneck constraint", Information Sciences 421, doi:10.1016/j.ins.2017.07.016. Equation (10)
    is the objective, and theorem 4.2 with equation (14) the critical weight. In this package, a
    move of an unlabelled row changes the weight of its cluster's label entropy; the publication
    neglects this change.

    J. Tabor and P. Spurek (2014), "Cross-entropy clustering", Pattern Recognition 47 (9),
    doi:10.1016/j.patcog.2014.03.006.

    J. A. Hartigan (1975), "Clustering Algorithms", Wiley, chapter 4: moves of single rows.

    B. W. Kernighan and S. Lin (1970), "An efficient heuristic procedure for partitioning graphs",
    Bell System Technical Journal 49 (2), doi:10.1002/j.1538-7305.1970.tb01770.x: chains of moves.

    The search, the ridge, ``penalty="code"``, and the estimates of the critical weight from few
    rows are additions of this package.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import CECIB
    >>> X = np.concatenate([np.random.default_rng(0).normal(c, 1, (50, 2)) for c in (0, 6, 12)])
    >>> y = np.full(150, -1)
    >>> y[:20], y[-20:] = 0, 1
    >>> CECIB(6, random_state=0).fit(X, y).n_clusters_
    3

    Labels that do not depend on the features have a critical weight of about 1, and labels of the
    left and the right part of one normal distribution about 0.27:

    >>> X = np.random.default_rng(0).normal(size=(4000, 2))
    >>> y = np.where(np.arange(4000) < 3000, X[:, 0] > 0, -1)
    >>> print(f"{CECIB(2, beta='critical', random_state=0).fit(X, y).beta_:.1f}")
    0.3
    """

    n_clusters: parameters.Clusters = 10
    _: KW_ONLY
    beta: Annotated[float | str, parameters.Number(0, 1000, words=("critical",))] = 1.0
    covariance: Annotated[str, parameters.Choice(COVARIANCES)] = "full"
    fixed_covariance: Annotated[Any, parameters.Checked(_check_covariance)] = None
    min_cluster_fraction: Annotated[float, parameters.Number(0, 0.999)] = 0.05
    reg: Annotated[float | str, parameters.Number(0, 1e6, words=("auto",))] = "auto"
    penalty: Annotated[str | None, parameters.Choice(("code",), optional=True)] = "code"
    preset: Annotated[str | None, parameters.Choice(("published",), optional=True)] = None
    init: Annotated[Any, parameters.Checked(_check_init)] = "k-means++"
    n_init: parameters.Count = 3
    max_iter: parameters.Count = 1000
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(known=(), weights=True, predicts_classes=False)
    _rarely_finite = ("critical_beta_", "critical_beta_se_")
    _fixes_number = False
    hard_objective = True

    def check_parameters(self):
        """Raise ValueError for parameters that are invalid for all data."""
        super().check_parameters()
        if (self.covariance == "fixed") != (self.fixed_covariance is not None):
            raise ValueError(
                f"covariance='fixed' and fixed_covariance go together; got {self.covariance!r} "
                f"and {self.fixed_covariance!r:.40}; pass both or neither"
            )
        if self.n_clusters * self.min_cluster_fraction > 1 and self.n_clusters > 1:
            raise ValueError(
                "the data cannot hold so many clusters of that size; got n_clusters="
                f"{self.n_clusters} and min_cluster_fraction={self.min_cluster_fraction}; "
                "lower one of them"
            )

    # Fitting

    def fit(self, X, y=None, *, sample_weight=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like, JAX array, frame or AnnData of shape (n_samples, n_features)
            Continuous features, computed in float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. A cluster may hold several classes, and a class
            several clusters.
        sample_weight : array-like of shape (n_samples,), optional
            Frequency weights, from 0 to 1e9: a sample of weight 2 counts as two equal samples. All
            sizes and scatters are sums over weights, including those in ``reg``,
            ``min_cluster_fraction`` and ``label_counts_``. Scale weights that are not frequencies
            to a mean of 1. A sample of weight 0 takes no part in the fit and gets the label of
            `predict`. By default, all weights are 1.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y, sample_weight=sample_weight)

    def objective_of(self, X, labels, y=None) -> float:
        """Objective of a given partition, with the parameters of this estimator.

        With ``penalty=None`` and ``reg=0``, the result is n times the cost E_beta of the
        publication.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Continuous features.
        labels : array-like of shape (n_samples,)
            Clusters of the rows, at most ``n_clusters``.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown.

        Returns
        -------
        float
            In nats; infinite if a cluster is smaller than ``min_cluster_fraction`` allows, or too
            small to estimate its covariance.
        """
        values, codes = np.unique(np.asarray(labels), return_inverse=True)
        if -1 in values.tolist():
            raise ValueError(
                "labels must have the cluster of every row; got -1, which stands for an unknown "
                "label; leave these rows out"
            )
        if len(values) > self.n_clusters or codes.ndim != 1 or len(codes) != len(X):
            raise ValueError(
                f"labels must have one entry per row and at most {self.n_clusters} clusters; got "
                f"shape {codes.shape} and {len(values)} clusters; raise n_clusters, or correct the "
                "labels"
            )
        model = clone(self)
        model.check_parameters()
        with standard():
            return model._objective_at(model.prepare(X, y), codes)

    def prepare(self, X, y, known=None, sample_weight=None) -> LabelledTask:
        """Check the input and lay it out; see `Clusterer.prepare`."""
        X, fixed = self._check_input(X, y)
        n = X.shape[0]
        prepared = prepare_features(
            X,
            self.covariance,
            self.fixed_covariance,
            self._ridge,
            self.n_clusters,
            sample_weight,
        )
        total = float(prepared.mass.sum())
        # Lay out the rows, padded in their columns, followed by the indicators of the classes.
        layout = make_layout(np.zeros(n, int), 1)
        d = prepared.x.shape[1]
        m = bucket_size(d, 64) if n <= 16384 else d
        columns = np.zeros((n, m))
        columns[:, :d] = prepared.x
        if fixed is not None:
            indicators = fixed[:, None] == np.arange(self.classes_.size)
            columns = np.hstack([columns, indicators.astype(float)])
        rows = make_rows(columns, layout, 1, mass=sample_weight)
        rows = replace(rows, x=MomentRows(rows.x.x, m, self.covariance))
        self.beta_ = self._label_weight(prepared, fixed)
        # Smallest cluster that is not deleted.
        needed = {"full": d + 1, "fixed": 1}.get(self.covariance, 2)
        smallest = max(math.ceil(self.min_cluster_fraction * total), needed)
        self._check_total(total, smallest)
        initial = self._initial_labels(n)
        charge = 0.0
        if self.penalty == "code" and self.preset is None:
            charge = 0.5 * (prepared.n_parameters + 1) * math.log(total)
        method = make_parameters(
            ridge=np.r_[prepared.ridge, np.ones(m - d)],
            dimension=d,
            total=total,
            least=0.5 * prepared.mass.min(),
            charge=charge,
            beta=self.beta_,
            smallest=smallest,
            constant=prepared.constant - (0.5 * math.log(total) if charge else 0),
        )
        settings = solve.make_settings(
            np.dtype(np.float64), n_clusters=self.n_clusters, max_iter=self.max_iter,
            method=method, compression=0.0, noise=1e-3, tol=1e-4, cooling=1.15,
        )  # fmt: skip
        calls = []
        if self.preset == "published":
            k = padded_n_clusters(rows, layout, self.n_clusters)
            static = {"build": Objective(self.covariance, fixed is not None), "n_clusters": k}
            calls = restart_calls(
                solve_published, static, rows, layout, initial, [settings], n_init=self.n_init,
                random_state=self.random_state, n_elements=rows.mass.size * k * 5,
            )  # fmt: skip
        return LabelledTask(prepared, fixed, rows, layout, settings, initial, calls)

    def compute(self, task: LabelledTask):
        """Search for the best partition, or run the published algorithm."""
        return super().compute(task) if task.calls else [self._search(task)]

    def _search(self, task: LabelledTask) -> solve.Solution:
        """Run the local search from all initial partitions; see `search_partition`."""
        rows, layout, prepared = task.rows, task.layout, task.prepared
        parameters = task.settings.method
        terms = Objective(self.covariance, task.fixed is not None).terms(rows, parameters)
        total, smallest = float(parameters.total), float(parameters.smallest)
        # The minimum size of a cluster limits the number of clusters.
        most = max(min(self.n_clusters, math.floor(total / smallest)), 1)
        k = padded_n_clusters(rows, layout, most + 1)
        scaled = prepared.x * np.sqrt(prepared.metric)
        mass = layout.to_blocks(prepared.mass).reshape(-1)
        problem = SearchProblem(
            terms=terms,
            rows=rows,
            features=layout.to_blocks(scaled).reshape(len(mass), -1),
            classes=None if task.fixed is None else layout.to_blocks(task.fixed, -1).reshape(-1),
            movable=mass > 0,
            max_clusters=most,
            n_clusters=k,
            limits=PartitionLimits(
                np.float64(smallest), parameters.least, np.float64(_TOLERANCE * total),
                np.int32(self.max_iter),
            ),
        )  # fmt: skip
        constant = float(parameters.constant)

        def report(done, best):
            if self.verbose:
                print(f"restarts {done}/{self.n_init}: objective {best + constant:.6g} nats")

        init = self.init if task.initial is None else layout.to_blocks(task.initial).reshape(-1)
        random = check_random_state(self.random_state)
        with placement.small_steps_on_cpu():
            outcome = search_partition(problem, init, self.n_init, random, report)
            return self._solution(problem, outcome, constant)

    def _solution(
        self, problem: SearchProblem, outcome: SearchOutcome, constant: float
    ) -> solve.Solution:
        """Convert the result of the local search to the record of the compiled solvers.

        ``constant`` is the part of the objective that is the same for all partitions.
        """
        partitions, shape = outcome.partitions, problem.rows.mass.shape
        best = int(np.argmin([p.value for p in partitions]))
        labels = np.stack([p.labels.reshape(shape) for p in partitions], -1)
        values = term_values(
            problem.terms, problem.rows, labels[..., best], n_clusters=problem.n_clusters
        )
        objective = np.array([p.value for p in partitions]) + constant
        return solve.Solution(
            labels,
            np.where(np.isnan(objective), np.inf, objective),
            np.array([p.converged for p in partitions]),
            np.asarray(len(outcome.trace)),
            np.empty(0),  # memberships follow from the labels
            outcome.trace + constant,
            Ended(np.asarray(values), outcome.n_clusters_trace.astype(float)),
        )

    def _objective_at(self, task: LabelledTask, labels: np.ndarray) -> float:
        sizes = np.bincount(labels, task.prepared.mass)
        if (sizes[sizes > 0] < task.settings.method.smallest).any():
            return math.inf
        terms = Objective(self.covariance, task.fixed is not None).terms(
            task.rows, task.settings.method
        )
        blocks = task.layout.to_blocks(labels.astype(np.int32))
        k = padded_n_clusters(task.rows, task.layout, self.n_clusters + 1)
        return float(term_values(terms, task.rows, blocks, n_clusters=k).sum())

    @property
    def _ridge(self) -> float:
        """Ridge of the scatters, as a multiple of the variances of the columns."""
        if not isinstance(self.reg, str):
            return float(self.reg)
        return _REG if self.preset is None else 0.0

    def _check_total(self, total: float, smallest: float) -> None:
        """Raise ValueError if the total weight of the rows is too small for a single cluster."""
        if total < smallest:
            raise ValueError(
                f"a cluster of covariance={self.covariance!r} needs a size of {smallest}; got "
                f"n_samples={total:g} by weight; pass more samples, or weights of mean 1"
            )

    def _initial_labels(self, n: int) -> np.ndarray | None:
        """Initial labels (n,) from the parameter ``init``; None if ``init`` names a method."""
        if isinstance(self.init, str):
            return None
        labels = entries_with_weight(self, np.asarray(self.init))
        if labels.shape != (n,) or labels.min() < 0 or labels.max() >= self.n_clusters:
            raise ValueError(
                f"init must hold a label from 0 to {self.n_clusters - 1} for each of {n} rows; "
                f"got shape {labels.shape}; pass other labels, or raise n_clusters"
            )
        return labels.astype(np.int32)

    def _label_weight(self, prepared: Prepared, fixed: np.ndarray | None) -> float:
        if not isinstance(self.beta, str):
            return float(self.beta)
        if fixed is None or np.unique(fixed[fixed >= 0]).size < 2:
            warn(
                "a critical beta needs labels of two classes; got fewer; the fit ignores labels, "
                "as with beta=0"
            )
            return 0.0
        critical = estimate_critical_beta(
            prepared, fixed, self.covariance, self.classes_, check_random_state(self.random_state)
        )
        critical.warn_if_misleading()
        self.critical_beta_, self.critical_beta_se_ = critical.pairs, critical.errors
        self.critical_beta_set_ = critical.value, self.classes_[critical.classes]
        self.critical_beta_reason_ = critical.reason
        return critical.weight

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        restarts, best = collect_restarts(result, task.layout)
        if not np.isfinite(restarts.objective).any():
            raise ValueError(
                "the initial clusters of every restart have singular covariances; got reg="
                f"{self._ridge:g}; raise reg, lower n_clusters, or leave out columns"
            )
        restarts = restarts._replace(labels=_by_size(restarts.labels, task.prepared.mass))
        labels = restarts.labels[restarts.objective.argmin()]
        k = int(labels.max()) + 1
        terms = ("model", "entropy", "labels")
        values = np.asarray(best.fit.values)
        self.cost_terms_ = {n: float(v) for n, v in zip(terms, values, strict=False)}
        active = np.asarray(best.fit.active)
        self.n_clusters_trace_ = active[~np.isnan(active)].astype(int)
        self._set_parameters(task, labels, k)
        self._store_results(
            restarts,
            membership=np.eye(k)[labels],
            trace=np.asarray(best.trace),
            n_iter=int(best.n_iter),
            nothing_left=task.prepared.nothing,
        )
        return self

    def _set_parameters(self, task: LabelledTask, labels: np.ndarray, k: int) -> None:
        """Set the fitted parameters of the ``k`` clusters, given ``labels`` (n,)."""
        prepared = task.prepared
        member = np.eye(k)[labels] * prepared.mass[:, None]
        sizes = member.sum(0)
        self.weights_ = sizes / sizes.sum()
        means = member.T @ prepared.x / sizes[:, None]
        self._means = means
        self._roots, covariances = prepared.cluster_covariances(labels, means, self.covariance)
        self._prepared = replace(prepared, x=prepared.x[:0], mass=prepared.mass[:0])
        self.means_ = prepared.original_means(means)
        self.covariances_ = prepared.original_covariances(covariances, self.covariance)
        if task.fixed is not None:
            classes = (task.fixed[:, None] == np.arange(self.classes_.size)).astype(float)
            counts = member.T @ classes
            is_whole = (prepared.mass == np.rint(prepared.mass)).all()
            self.label_counts_ = np.rint(counts).astype(int) if is_whole else counts

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        with standard():
            x = self._prepared.transform(self._validate(X, reset=False))
        constant = np.log(self.weights_) + self._prepared.log_density
        return constant + log_normals(x, self._means, self._roots)

    def predict_proba(self, X):  # type: ignore[override]
        """p(cluster given row) of new rows, from the weights and densities of the clusters.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_clusters_)
        """
        return softmax(self._log_membership(*self._split_known(X, None)), axis=1)

    def score(self, X, y=None):
        """Mean over new rows x of the largest log weighted density, max_i log(p_i f_i(x)).

        Cluster i has the weight p_i and the density f_i. The score is minus the mean contribution
        of a new row to the objective without labels.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        float
            In nats per sample; higher is better.
        """
        X, known = self._split_known(X, None)
        log_density = self._log_membership(X, known).max(1)
        with standard():
            dropped = self._prepared.dropped_log_densities(self._validate(X, reset=False))
        return float((log_density + dropped).mean())

    def _validate(self, X, *, reset: bool):
        if sparse.issparse(X):
            raise ValueError(
                "Gaussian clusters need dense X; got a sparse matrix; pass a dense array, or "
                "use MixtureEM with features='multinomial' or 'bernoulli'"
            )
        return super()._validate(X, reset=reset).astype(np.float64)


def _by_size(labels: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Renumber the labels (S, n) of S restarts, with clusters in order of decreasing mass.

    ``mass`` (n,) are the weights of the rows.
    """
    orders = (np.argsort(-np.bincount(row, mass), kind="stable") for row in labels)
    return np.stack([np.argsort(order)[row] for order, row in zip(orders, labels, strict=True)])
