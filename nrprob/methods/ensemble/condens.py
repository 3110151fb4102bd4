"""Conditional ensembles: consensus of one clustering per known group.

Sizes: n rows of m features.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.labels import list_examples
from nrprob.data.validation import CLUSTERS, check_random_state
from nrprob.engines.optimise import solve
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer, row_means
from nrprob.estimator.bases import check_base, clone_with_seed, count_name
from nrprob.estimator.calls import solution_memberships
from nrprob.estimator.capabilities import Capabilities
from nrprob.exceptions import DegenerateClusterWarning
from nrprob.known import Memberships
from nrprob.methods.ensemble.consensus import find_consensus, total_scatter
from nrprob.settings import few_threads, standard
from nrprob.statistics.ensembles import centroid_scores, stack_indicators
from nrprob.statistics.families import fit_features

_BASES = ("kmeans", "em", "daib")
_ROUNDS = 20  # maximum number of iterations of extension="adjusted" from one start


@dataclass
class EnsembleInput:
    """Validated input of one fit of `CondEns`.

    Attributes
    ----------
    raw : (n, m) rows as the user passed them
    x : (n, m) rows in the form that the base clusterers take
    fixed : (n,) class of every labelled row, -1 for unlabelled rows; None without labels
    design : known structure
    names : for every known group, its label, or the tuple of its labels for several known
        labelings; [None] without ``known``
    sizes : for every known group, its number of base clusters; None if the base determines the
        number
    calls : empty; tasks of other estimators list the calls of compiled programs here
    """

    raw: Any
    x: Any
    fixed: np.ndarray | None
    design: Design
    names: list[Any]
    sizes: list[int | None]
    calls: tuple[solve.SolverCall, ...] = ()


@parameters.constructor
class CondEns(Clusterer):
    r"""Conditional ensembles: consensus of separate clusterings of the known groups (CondEns).

    CondEns clusters each known group separately, so no base clustering can reproduce the known
    groups. CondEns extends each base clustering :math:`C_j` to all n rows, and computes the
    consensus C that minimises

    .. math:: \frac{n}{2} \sum_j H^2(C_j|C) = \frac{n}{2} \sum_j \left[H^2(C_j) - I^2(C;C_j)\right],
        \qquad H^2(p) = 2 \left(1 - \sum_c p_c^2\right),

    where :math:`H^2` is the quadratic entropy of shares :math:`p_c`, and :math:`I^2` the quadratic
    mutual information. The objective equals the within-cluster sum of squares of the stacked
    indicators of the :math:`C_j`. An indicator is 1 for the rows of a base cluster and 0 elsewhere.
    There is no penalty weight. The target clusters should be nearly independent of the known
    groups, so that each group contains all clusters.

    Parameters
    ----------
    <n_clusters>
    base : {"kmeans", "em", "daib"} or clusterer, default="kmeans"
        Base clusterer of the known groups. "kmeans" is scikit-learn's `KMeans` (counts are divided
        by their row sums), "em" is `MixtureEM` without annealing, and "daib" is `IB`. CondEns
        clones any other clusterer with ``fit`` and ``predict`` for each group, and fits it to the
        rows without transformation.
    n_init_base : int, default=10
        Number of restarts of each base clustering; the solution with the best objective is kept.
        One restart is too few: a single bad base clustering misleads the consensus. If ``base`` is
        a clusterer, its own number of restarts is used instead. At most 10**6.
    n_clusters_base : int, sequence or mapping, optional
        Number of clusters of the base clusterings: one number for all, or one number per known
        group. Numbers per group are a sequence in the order of the sorted labels, or a mapping from
        labels to numbers. None is ``n_clusters``; if ``base`` is a clusterer, None is its own
        number of clusters.
    extension : {"nearest", "adjusted"}, default="nearest"
        How a base clustering of one group assigns the rows of other groups. "nearest" assigns a row
        to the nearest base cluster, as published. "adjusted" models a shift of the features by each
        known group. "adjusted" moves the row by the difference of the shifts of the two groups
        before the assignment, and fits the shifts alternately with the consensus. Use "adjusted" if
        the known groups shift the features of the target clusters. "adjusted" needs
        ``base="kmeans"`` or a clusterer of continuous features as ``base``, dense rows, and
        ``known`` in `predict`.
    features : {"auto", "multinomial", "bernoulli", "gaussian"}, default="auto"
        Model of the features, as in `IB`; ignored for a base that you pass.
    binarize : float, optional
        Threshold above which a feature counts as 1.
    n_init : int, default=10
        Number of restarts of the consensus; the solution with the best objective is kept. At most
        10**6.
    max_iter : int, default=300
        Maximum number of iterations of a base clustering, and of sweeps of the consensus; at most
        10**6.
    tol : float, default=1e-4
        Convergence tolerance of the base clusterings, as the base defines it; from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the initial values.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot, since the consensus is hard.
    <n_clusters_>
    objective_ : float
        Objective of the best restart, not in nats. ``objective_`` / n is between 0 and the number
        of members of the ensemble; 0 if all rows of a cluster have equal base labels.
    objective_trace_ : ndarray of shape (n_sweeps,)
        Objective of the best restart after each sweep.
    estimators_ : list
        Fitted base clusterers, one per member of the ensemble.
    members_ : list
        Labels of the known groups of ``estimators_``: tuples for several known labelings, None
        without ``known``.
    base_labels_ : ndarray of shape (n_samples, n_members)
        Base clusterings, extended to all rows.
    shifts_ : ndarray of shape (n_groups, n_features)
        Shifts of the known groups, in the units of the rows that the base takes. Groups are in the
        order of their first occurrence. Shifts are 0 unless ``extension="adjusted"``.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the rows of each cluster; the mean of all rows for an empty cluster.
    member_centers_ : ndarray of shape (n_clusters, n_indicators)
        Share of the rows of each cluster in each base cluster, for the stacked base clusters of all
        members. An empty cluster has the shares of all rows.
    n_iter_ : int
        Sweeps of the best restart.
    <converged_>
    restarts_ : xarray.Dataset
        Labels and objectives of all restarts of the consensus.
    <n_features_in_>
    <classes_>

    See Also
    --------
    CCIB : Conditions on the known groups in one objective.
    ConditionalMixture : Gaussian mixture of the residuals from known structure.
    IB : Base clusterer "daib".
    MixtureEM : Base clusterer "em".

    Notes
    -----
    Algorithm:

    1. Fit the base clusterer to each known group.
    2. Assign all rows to the clusters of each base clustering.
    3. Merge rows with equal base labels, and minimise the objective by sequential reassignment from
       ``n_init`` random partitions.
    4. For "adjusted": fit the model row = group shift + cluster centre by least squares, and extend
       the base clusterings with these shifts. Repeat from step 3 until the labels are stable. The
       alternation runs once from shifts of 0 and once from the group means. The result with the
       smallest objective relative to the total scatter is kept.

    A sweep takes O(r k b) time for r distinct patterns of base labels, k clusters and b base
    clusters in total. The consensus needs O(n_members n) memory, in addition to the base.

    CondEns omits the base clusterings of groups with fewer rows than base clusters and of groups of
    equal rows, with a warning; the other members of the ensemble assign the rows of these groups.
    Without ``known``, the ensemble has a single member. Target labels ``y`` fix the clusters of
    rows in the consensus; base clusterings do not use ``y``.

    References
    ----------
    Gondek, D. and Hofmann, T. (2005), "Non-redundant clustering with conditional ensembles", ACM
    SIGKDD, 70-77, doi:10.1145/1081870.1081882.

    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, Algorithm 7.1 and
    consensus (7.2.1). The sum in (3.6.2) is corrected to run over clusters.

    Topchy, A., Jain, A. K. and Punch, W. (2003), "Combining multiple weak clusterings", IEEE
    International Conference on Data Mining, 331-338. Consensus by quadratic mutual information.

    ``extension="adjusted"`` is specific to this package.

    Examples
    --------
    >>> from nrprob import CondEns, metrics
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> model = CondEns(2, random_state=0).fit(X, known=labels[:, 0])
    >>> print(f"{metrics.matched_accuracy(model.labels_, labels[:, 1]):.2f}")
    0.99
    >>> model.base_labels_.shape
    (200, 2)
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    base: Any = "kmeans"
    n_init_base: parameters.Count = 10
    n_clusters_base: Any = None
    extension: Annotated[str, parameters.Choice(("nearest", "adjusted"))] = "nearest"
    features: parameters.Features = "auto"
    binarize: parameters.Threshold = None
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 300
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(sparse=True)

    @property
    def _takes_sparse(self) -> bool:
        base = self.base
        if isinstance(base, str):
            base_takes = base != "em" or self.features in ("multinomial", "bernoulli")
        else:
            base_takes = hasattr(base, "__sklearn_tags__") and get_tags(base).input_tags.sparse
        return self.extension == "nearest" and bool(base_takes)

    # Input

    def check_parameters(self):
        """Validate the parameters that do not depend on the data."""
        super().check_parameters()
        base = self.base
        if self.extension == "adjusted" and isinstance(base, str) and base != "kmeans":
            raise ValueError(
                "extension='adjusted' shifts continuous rows, and base models counts or binary "
                f"data; got base={base!r}; use base='kmeans', or extension='nearest'"
            )
        check_base(base, _BASES, ("fit", "predict"), "assign rows of other groups")

    def prepare(self, X, y, known=None) -> EnsembleInput:
        """Validate the input; see `Clusterer.prepare`."""
        X, fixed = self._check_input(X, y)
        n_samples = X.shape[0]
        if isinstance(known, Memberships):
            raise ValueError(
                "conditional ensembles need known labels; got soft Memberships; "
                "pass labels, such as the most probable group of each row"
            )
        if self.extension == "adjusted" and sparse.issparse(X):
            raise ValueError(
                "extension='adjusted' shifts rows, which needs dense X; got sparse X; "
                "use extension='nearest', or pass a dense array"
            )
        self._encoder = DesignEncoder()
        design = self._encoder.fit(known, n_samples)
        if design.n_groups == 1 and n_samples > 1:
            self._check_groups(design)
        names = [labels[0] if len(labels) == 1 else labels for labels in design.group_labels]
        names = names or [None]
        self._features = fit_features(X, self.features, self.binarize)
        x = X if self.base == "em" or not isinstance(self.base, str) else self._features(X)
        return EnsembleInput(X, x, fixed, design, names, self._base_sizes(names))

    def _base_sizes(self, names: list[Any]) -> list[int | None]:
        """Number of base clusters of each known group, from the parameter ``n_clusters_base``.

        ``names`` are the labels of the groups. The number is None if only the base determines it.
        """
        sizes = self.n_clusters_base
        if sizes is None:
            default_size = None
            if isinstance(self.base, str):
                default_size = self.n_clusters
            else:
                name = count_name(self.base)
                result = self.base.get_params(deep=False)[name] if name else None
                default_size = result if isinstance(result, int) else None
            return [default_size] * len(names)
        if isinstance(sizes, Mapping):
            missing = [name for name in names if name not in sizes]
            if missing:
                raise ValueError(
                    "n_clusters_base must contain every known group; "
                    f"got no entry for {missing[0]!r}; add it, or pass one number for all"
                )
            group_sizes = [sizes[name] for name in names]
        elif np.ndim(sizes) == 1:
            if len(sizes) != len(names):
                raise ValueError(
                    "n_clusters_base must hold one number per known group; "
                    f"got {len(sizes)} for {len(names)} groups; pass that many, or one for all"
                )
            try:
                order = sorted(range(len(names)), key=names.__getitem__)
            except TypeError:
                raise ValueError(
                    "n_clusters_base cannot be a sequence, since the known labels have no order; "
                    f"got labels {names[:5]!r}; pass a mapping from labels"
                ) from None
            group_sizes = [0] * len(names)
            for position, size in zip(order, sizes, strict=True):
                group_sizes[position] = size
        else:
            group_sizes = [sizes] * len(names)
        for size in group_sizes:
            self._check_number("n_clusters_base", size, low=1, high=CLUSTERS, integer=True)
        return [int(size) for size in group_sizes]

    # Fitting

    def compute(self, task):
        """Cluster each known group and compute the consensus; see `Clusterer.compute`."""
        codes, x = task.design.codes, task.x
        with few_threads(len(codes)):
            first = self._fit_members(task)
        shifts = np.zeros((task.design.n_groups, x.shape[1]), x.dtype)
        starts = [shifts]
        adjusted = self.extension == "adjusted" and len(shifts) > 1
        if adjusted:
            starts.append(_fit_shifts(x, codes, np.zeros_like(codes)))
        lowest = np.inf
        for start, shifts in enumerate(starts):
            before = None
            for round_ in range(_ROUNDS):
                columns = first if start + round_ == 0 else self._extend_members(x, codes, shifts)
                self._classes = [np.unique(column) for column in columns.T]
                restarts, best, slots = find_consensus(
                    columns, self._classes, task.fixed, self.n_clusters,
                    n_init=self.n_init, max_iter=self.max_iter, random_state=self.random_state,
                )  # fmt: skip
                objective = best.objective.min()
                # Compare iterations relative to the scatter of their members: members that assign
                # almost all rows to one cluster have a small objective without a consensus.
                relative_objective = objective / max(total_scatter(columns), 1e-300)
                if self.verbose:
                    print(f"consensus of {columns.shape[1]}: sum of squares {objective:.6g}")
                # Ties go to the last iteration, in which the shifts fit the labels.
                if relative_objective <= lowest * (1 + 1e-9):
                    lowest = relative_objective
                    best_result = columns, shifts, self._classes, restarts, best, slots
                labels = restarts.labels[restarts.objective.argmin()]
                if not adjusted or (before is not None and (labels == before).all()):
                    break
                # Fit the shifts to the consensus, and repeat.
                shifts, before = _fit_shifts(x, codes, labels), labels
        return [best_result]

    def _extend_members(self, x: Any, codes: np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """Clusters (n, members) to which the members of the ensemble assign rows.

        ``codes`` (n,) are the known groups of the rows ``x`` (n, m), and ``shifts`` (groups, m) are
        the shifts of the groups. A row of another group is first moved to the group of the member,
        by the difference of the two shifts.
        """
        columns = []
        with few_threads(len(codes)):
            for member, group in zip(self.estimators_, self._member_groups, strict=True):
                moved = x + (shifts[group] - shifts)[codes] if shifts.any() else x
                # Compiled bases need the dtype of their fit.
                columns.append(np.asarray(member.predict(moved.astype(self._dtype, copy=False))))
        return np.stack(columns, 1)

    def _fit_members(self, task: EnsembleInput) -> np.ndarray:
        """Fit a base clusterer to every known group; return the clusters (n, members) of all rows.

        The fitted base clusterers are the members of the ensemble. Every member assigns the rows of
        all groups to its clusters.
        """
        n_groups = len(task.names)
        random = check_random_state(self.random_state)
        seeds = [random.randint(2**31 - 1) for _ in range(n_groups)]
        codes = task.design.codes
        self._dtype = task.x.dtype
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=n_groups))
        self.estimators_, self.members_, self._member_groups, columns = [], [], [], []
        left_out, with_fewer = [], []
        for g in range(n_groups):
            name, size = task.names[g], task.sizes[g]
            rows = order[ends[g - 1] if g else 0 : ends[g]]
            group_rows = task.x[rows]
            if size == 1 or (rows.size >= (size or 2) and not _all_rows_equal(group_rows)):
                with warnings.catch_warnings():
                    # One warning for all groups follows below.
                    warnings.simplefilter("ignore", DegenerateClusterWarning)
                    warnings.filterwarnings("ignore", ".*has no counts", UserWarning)
                    warnings.filterwarnings(
                        "ignore", "Number of distinct clusters", ConvergenceWarning
                    )
                    member = self._make_member(size, seeds[g]).fit(group_rows)
                    column = np.asarray(member.predict(task.x))
                n_found = np.unique(column[rows]).size
                if n_found > 1 or size == 1:
                    self.estimators_.append(member)
                    self.members_.append(name)
                    self._member_groups.append(g)
                    columns.append(column)
                    if size is not None and n_found < size:
                        with_fewer.append(name)
                    if self.verbose:
                        print(f"base clusterings {g + 1}/{n_groups}")
                    continue
            left_out.append(name)
        if not columns:
            what = "X cannot" if task.names == [None] else "no known group can"
            raise ValueError(
                f"{what} be clustered, for lack of rows or of rows that "
                f"differ; got n_samples={task.x.shape[0]} in {n_groups} group(s); pass more rows, "
                "merge small groups, or lower n_clusters_base"
            )
        if left_out:
            self._warn_degenerate(
                f"{len(left_out)} known group(s) take no part in the ensemble, since they have "
                f"fewer rows than base clusters, or only equal rows; got "
                f"{list_examples(left_out)}; merge small groups if that matters"
            )
        if with_fewer:
            self._warn_degenerate(
                f"{len(with_fewer)} base clustering(s) have fewer clusters than requested; "
                f"got {list_examples(with_fewer)}; lower n_clusters_base if that matters"
            )
        return np.stack(columns, 1)

    def _make_member(self, size: int | None, seed: int) -> Any:
        """Return an unfitted base clusterer with ``size`` clusters and the random seed ``seed``."""
        common: dict[str, Any] = {
            "n_init": self.n_init_base,
            "max_iter": self.max_iter,
            "tol": self.tol,
            "random_state": seed,
        }
        features = self._features.features
        if self.base == "kmeans":
            from sklearn.cluster import KMeans

            return KMeans(size, **common)
        if self.base == "daib":
            from nrprob.methods.bottleneck.ib import IB

            return IB(size, features=features, **common)
        if self.base == "em":
            from nrprob.methods.mixture.em import MixtureEM

            # Full covariances of small groups would be singular.
            return MixtureEM(
                size, features=features, binarize=self.binarize, covariance="diag", anneal=False,
                **common,
            )  # fmt: skip
        member = clone_with_seed(self.base, seed)
        if self.n_clusters_base is not None:
            name = count_name(member)
            if name is None:
                raise ValueError(
                    f"{type(member).__name__} has no parameter for its number of clusters; "
                    f"got n_clusters_base={self.n_clusters_base!r}; leave it out"
                )
            member.set_params(**{name: size})
        return member

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        self.base_labels_, self.shifts_, self._classes, restarts, best, layout = result[0]
        alike = np.isinf(best.fit.critical_beta)
        self._store_results(
            restarts,
            membership=solution_memberships(best, layout, self.n_clusters),
            trace=best.trace,
            n_iter=best.n_iter,
            nothing_left="there is no structure left in X; all rows are alike" if alike else "",
        )
        self.objective_ = max(self.objective_, 0.0)  # up to rounding
        x = stack_indicators(self.base_labels_, self._classes)
        self.member_centers_ = row_means(x, self.membership_)
        self.cluster_centers_ = row_means(task.raw, self.membership_)
        return self

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        X = self._validate(X, reset=False)
        with standard(), warnings.catch_warnings():
            x = X if self.base == "em" or not isinstance(self.base, str) else self._features(X)
            warnings.filterwarnings("ignore", ".*has no counts", UserWarning)
            codes = np.zeros(x.shape[0], int)
            if self.extension == "adjusted":
                codes = self._encoder.transform(known, x.shape[0]).codes
            labels = self._extend_members(x, codes, self.shifts_)
        return centroid_scores(
            stack_indicators(labels, self._classes), self.member_centers_, self._holds_rows
        )

    def predict(self, X, *, known=None):
        """Assign new rows to the consensus clusters by their base clusters.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        known : as in `fit`; ignored unless ``extension="adjusted"``
            With ``extension="nearest"``, base clusterings assign rows of any group.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)

    def predict_proba(self, X, *, known=None):
        """One-hot encoding of the labels that `predict` returns.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return super().predict_proba(X, known=known)


def _fit_shifts(x: np.ndarray, codes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Least-squares shifts (groups, m) in the model row = group shift + cluster centre + noise.

    ``x`` (n, m) are the rows, ``codes`` (n,) their known groups, and ``labels`` (n,) their
    clusters. Only differences of shifts are identified. Groups without a common cluster get the
    solution of minimum norm.
    """
    # Normal equations of the shifts, after elimination of the cluster centres.
    float64_rows = x.astype(np.float64)
    groups = np.eye(codes.max() + 1)[codes]
    clusters = (labels[:, None] == np.unique(labels)).astype(float)
    joint = groups.T @ clusters
    share = joint / clusters.sum(0)
    normal_matrix = np.diag(groups.sum(0)) - share @ joint.T
    moments = groups.T @ float64_rows - share @ (clusters.T @ float64_rows)
    return np.linalg.lstsq(normal_matrix, moments, rcond=1e-10)[0].astype(x.dtype)


def _all_rows_equal(x: Any) -> bool:
    """Whether all rows of an array or sparse matrix x (n, m) are equal."""
    if sparse.issparse(x):
        return (x.max(axis=0) != x.min(axis=0)).nnz == 0
    return bool((x == x[:1]).all())
