"""Conditional ensembles: the consensus of one clustering per known group."""

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
from nrprob.data.labels import some
from nrprob.data.validation import CLUSTERS, check_random_state
from nrprob.engines.optimise import solve
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer, Renamed, row_means
from nrprob.estimator.bases import check_base, count_name, seeded
from nrprob.estimator.calls import memberships
from nrprob.estimator.capabilities import Capabilities
from nrprob.exceptions import DegenerateClusterWarning
from nrprob.known import Memberships
from nrprob.methods.ensemble.consensus import agree, scatter
from nrprob.settings import few_threads, standard
from nrprob.statistics.ensembles import centroid_scores, stack_indicators
from nrprob.statistics.families import fit_features

_BASES = ("kmeans", "em", "daib")
_ROUNDS = 20  # of adjusting the extension, from each start


@dataclass
class EnsembleInput:
    """Checked input of one fit; the base clusterings are still to be made."""

    raw: Any
    x: Any
    fixed: np.ndarray | None
    design: Design
    names: list[Any]
    sizes: list[int | None]
    calls: tuple[solve.SolverCall, ...] = ()  # bases are not compiled


@parameters.constructor
class CondEns(Clusterer):
    r"""Conditional ensembles: cluster every known group by itself, and agree on one clustering.

    Every known group is clustered by itself, by any clusterer, so that what is known cannot be
    found again; each of these clusterings is extended to all rows; and the clusters are those that
    agree best with all of the extended clusterings C_1, C_2, ..., by quadratic mutual information.
    With n rows it minimises

    .. math:: \frac{n}{2} \sum_j H^2(C_j|C) = \frac{n}{2} \sum_j \left[H^2(C_j) - I^2(C;C_j)\right],
        \qquad H^2(p) = 2 \left(1 - \sum_c p_c^2\right)

    which is the sum of squares, within clusters, of the stacked indicators of the C_j. There is no
    weight to choose. The known groups should be about independent of the clusters sought: each
    group then holds all of them.

    Parameters
    ----------
    <n_clusters>
    base : {"kmeans", "em", "daib"} or clusterer, default="kmeans"
        What clusters the known groups: scikit-learn's `KMeans` (counts are divided by their row
        sums), `MixtureEM` without annealing, `IB`, or a clusterer that has ``fit`` and ``predict``,
        of which every group gets a clone and which sees the rows as they are.
    n_init_base : int, default=10
        Restarts of every base clustering, of which the best by its own objective is kept; at most
        10**6. One is too few: a single group that is clustered badly misleads the consensus. A
        clusterer of your own brings its own number.
    n_clusters_base : int, sequence or mapping, optional
        Number of clusters of the base clusterings: one for all, or one for every known group, as a
        sequence in the order of the sorted labels or as a mapping from labels. None is
        ``n_clusters``, or what a clusterer of your own says itself.
    extension : {"nearest", "adjusted"}, default="nearest"
        How base clusterings reach the rows of other groups. "nearest" is the published way: every
        row goes to the nearest base cluster. "adjusted" first moves the row by the difference of
        the two groups' shifts, which are fitted in turn with the consensus. It needs
        ``base="kmeans"``, or a clusterer of your own for real features, dense rows, and ``known``
        in `predict`.
    features : {"auto", "multinomial", "bernoulli", "gaussian"}, default="auto"
        Model of the features, as in `IB`; without a meaning for a clusterer of your own.
    binarize : float, optional
        Threshold above which a feature counts as 1.
    n_init : int, default=10
        Number of restarts of the consensus, at most 10**6; the best by objective is kept.
    max_iter : int, default=300
        Most iterations of a base clustering, and most sweeps of the consensus; at most 10**6.
    tol : float, default=1e-4
        When a base clustering has converged, in its own terms; from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the starts.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        One-hot: the consensus is hard.
    <n_clusters_>
    objective_ : float
        The minimised sum of squares of the best restart. It is not in nats: a row in a cluster
        where all members agree costs 0, and no row more than the number of members.
    objective_trace_ : ndarray
        Objective of the best restart after every sweep.
    estimators_ : list
        The fitted base clusterers, one per member of the ensemble.
    members_ : list
        Labels of the known groups that took part, in the order of ``estimators_``; a tuple where
        several labelings are known, None where nothing is.
    base_labels_ : ndarray of shape (n_samples, n_members)
        The base clusterings, extended to all rows.
    shifts_ : ndarray of shape (n_groups, n_features)
        What is common to the rows of a known group, whatever their cluster, in the base's units and
        in the order in which the groups first appear; 0 unless ``extension="adjusted"``.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the rows of every cluster; that of all rows for a cluster without rows.
    member_centers_ : ndarray of shape (n_clusters, n_indicators)
        Shares of the base clusters in every cluster: member by member, p(base cluster given
        cluster). Those of all rows for a cluster that holds nothing.
    n_iter_ : int
        Sweeps of the best restart.
    <converged_>
    restarts_ : xarray.Dataset
        Labels and objectives of all restarts of the consensus.
    <n_features_in_>
    <classes_>

    Notes
    -----
    Groups that are too small (fewer rows than base clusters) or that cannot be divided (all rows
    alike) are left out of the ensemble, with a warning; their rows are clustered all the same, by
    the other members. Without ``known`` the ensemble has one member, the base clustering of all
    rows. ``y`` fixes the cluster of rows in the consensus; base clusterings do not see it.

    Where the known structure shifts the same features as the sought one, rows of other groups lie
    nearest to a wrong base cluster, and no number of restarts helps. "adjusted" takes a row for the
    sum of a shift of its group and a centre of its cluster, fits both by least squares with the
    consensus as clusters, extends and agrees again until nothing changes, once from no shifts and
    once from the groups' means, and keeps the round that leaves the least share of the members'
    quadratic entropies. The first of these rounds is "nearest". It is this package's own.

    References
    ----------
    Gondek (2005), Algorithm 7.1, with the consensus (7.2.1); the sum in (3.6.2) runs over clusters,
    not over members, and the cost of the consensus in section 7.3.1 is that of all base clusters
    together. Topchy, Jain and Punch (2003); Mirkin (2001), the sum of squares.

    Examples
    --------
    >>> from nrprob import CondEns
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> model = CondEns(2, random_state=0).fit(X, known=labels[:, 0])
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

    centroids_ = Renamed("member_centers_")

    # Input

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        super().check_parameters()
        base = self.base
        if self.extension == "adjusted" and isinstance(base, str) and base != "kmeans":
            raise ValueError(
                "extension='adjusted' moves rows, and moved counts or zeros and ones mean nothing; "
                f"got base={base!r}; use base='kmeans', or extension='nearest'"
            )
        check_base(base, _BASES, ("fit", "predict"), "place rows of other groups")

    def prepare(self, X, y, known=None) -> EnsembleInput:
        """Check the input; nothing is clustered yet."""
        X, fixed = self._take_in(X, y)
        n_samples = X.shape[0]
        if isinstance(known, Memberships):
            raise ValueError(
                "conditional ensembles need a categorical known clustering; got soft Memberships; "
                "pass labels, such as the most probable group of every row"
            )
        if self.extension == "adjusted" and sparse.issparse(X):
            raise ValueError(
                "extension='adjusted' moves rows, which fills them; got sparse X; "
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
        return EnsembleInput(X, x, fixed, design, names, self._sizes(names))

    def _sizes(self, names: list[Any]) -> list[int | None]:
        """Number of base clusters of every known group; None where the base alone knows."""
        sizes = self.n_clusters_base
        if sizes is None:
            own = None
            if isinstance(self.base, str):
                own = self.n_clusters
            else:
                name = count_name(self.base)
                result = self.base.get_params(deep=False)[name] if name else None
                own = result if isinstance(result, int) else None
            return [own] * len(names)
        if isinstance(sizes, Mapping):
            missing = [name for name in names if name not in sizes]
            if missing:
                raise ValueError(
                    "n_clusters_base must name every known group; "
                    f"got nothing for {missing[0]!r}; add it, or pass one number for all"
                )
            given = [sizes[name] for name in names]
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
            given = [0] * len(names)
            for place, size in zip(order, sizes, strict=True):
                given[place] = size
        else:
            given = [sizes] * len(names)
        for size in given:
            self._check_number("n_clusters_base", size, low=1, high=CLUSTERS, integer=True)
        return [int(size) for size in given]

    # Fitting

    def compute(self, given):
        """Cluster every known group, and find the consensus; see `Clusterer.compute`."""
        codes, x = given.design.codes, given.x
        with few_threads(len(codes)):
            first = self._fit_members(given)
        shifts = np.zeros((given.design.n_groups, x.shape[1]), x.dtype)
        starts = [shifts]
        adjusted = self.extension == "adjusted" and len(shifts) > 1
        if adjusted:
            starts.append(_shifts(x, codes, np.zeros_like(codes)))
        least = np.inf
        for start, shifts in enumerate(starts):
            before = None
            for round_ in range(_ROUNDS):
                columns = first if start + round_ == 0 else self._extend(x, codes, shifts)
                self._classes = [np.unique(column) for column in columns.T]
                restarts, best, slots = agree(
                    columns, self._classes, given.fixed, self.n_clusters,
                    n_init=self.n_init, max_iter=self.max_iter, random_state=self.random_state,
                )  # fmt: skip
                reached = best.objective.min()
                # Members that hardly divide the rows of other groups leave little whatever they
                # mean; so what is left is compared with what there was.
                left = reached / max(scatter(columns), 1e-300)
                if self.verbose:
                    print(f"consensus of {columns.shape[1]}: sum of squares {reached:.6g}")
                if left <= least * (1 + 1e-9):  # of equals the last, whose shifts fit its labels
                    least, kept = left, (columns, shifts, self._classes, restarts, best, slots)
                labels = restarts.labels[restarts.objective.argmin()]
                if not adjusted or (before is not None and (labels == before).all()):
                    break
                shifts, before = _shifts(x, codes, labels), labels
        return [kept]

    def _extend(self, x: Any, codes: np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """Clusters (n, members) that the members find for rows of the known groups ``codes``."""
        columns = []
        with few_threads(len(codes)):
            for member, own in zip(self.estimators_, self._own, strict=True):
                moved = x + (shifts[own] - shifts)[codes] if shifts.any() else x
                # Compiled bases take the type of their fit.
                columns.append(np.asarray(member.predict(moved.astype(self._dtype, copy=False))))
        return np.stack(columns, 1)

    def _fit_members(self, given: EnsembleInput) -> np.ndarray:
        """Fit the members of the ensemble, and extend them to all rows (n, members)."""
        n_groups = len(given.names)
        random = check_random_state(self.random_state)
        seeds = [random.randint(2**31 - 1) for _ in range(n_groups)]
        codes = given.design.codes
        self._dtype = given.x.dtype
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=n_groups))
        self.estimators_, self.members_, self._own, columns = [], [], [], []
        left_out, fewer = [], []
        for g in range(n_groups):
            name, size = given.names[g], given.sizes[g]
            rows = order[ends[g - 1] if g else 0 : ends[g]]
            part = given.x[rows]
            if size == 1 or (rows.size >= (size or 2) and not _alike(part)):
                with warnings.catch_warnings():
                    # Said below, once for all groups.
                    warnings.simplefilter("ignore", DegenerateClusterWarning)
                    warnings.filterwarnings("ignore", ".*has no counts", UserWarning)
                    warnings.filterwarnings(
                        "ignore", "Number of distinct clusters", ConvergenceWarning
                    )
                    member = self._member(size, seeds[g]).fit(part)
                    column = np.asarray(member.predict(given.x))
                n_found = np.unique(column[rows]).size
                if n_found > 1 or size == 1:
                    self.estimators_.append(member)
                    self.members_.append(name)
                    self._own.append(g)
                    columns.append(column)
                    if size is not None and n_found < size:
                        fewer.append(name)
                    if self.verbose:
                        print(f"base clusterings {g + 1}/{n_groups}")
                    continue
            left_out.append(name)
        if not columns:
            what = "X cannot" if given.names == [None] else "no known group can"
            raise ValueError(
                f"{what} be clustered, for want of as many rows as base clusters or of rows that "
                f"differ; got n_samples={given.x.shape[0]} in {n_groups} group(s); pass more rows, "
                "merge small groups, or lower n_clusters_base"
            )
        if left_out:
            self._degenerate(
                f"{len(left_out)} known group(s) take no part in the ensemble, having fewer rows "
                f"than base clusters, or only rows alike; got {some(left_out)}; merge small "
                "groups if that matters"
            )
        if fewer:
            self._degenerate(
                f"{len(fewer)} base clustering(s) have fewer clusters than asked for; "
                f"got {some(fewer)}; lower n_clusters_base if that matters"
            )
        return np.stack(columns, 1)

    def _member(self, size: int | None, seed: int) -> Any:
        """Unfitted base clusterer."""
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

            # Full covariances of groups of few rows would be singular.
            return MixtureEM(
                size, features=features, binarize=self.binarize, covariance="diag", anneal=False,
                **common,
            )  # fmt: skip
        member = seeded(self.base, seed)
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
        self._store(
            restarts,
            membership=memberships(best, layout, self.n_clusters),
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
            labels = self._extend(x, codes, self.shifts_)
        return centroid_scores(
            stack_indicators(labels, self._classes), self.member_centers_, self._holds_rows
        )

    def predict(self, X, *, known=None):
        """Cluster of new rows: the nearest one, as the base clusterings see the rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        known : as in `fit`; ignored unless ``extension="adjusted"``
            The published base clusterings place rows of any group.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)

    def predict_proba(self, X, *, known=None):
        """One-hot form of `predict`.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return super().predict_proba(X, known=known)


def _shifts(x: np.ndarray, codes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Shifts (groups, m) of rows that are a shift of their group, a centre of their cluster, noise.

    Least squares. Only differences of shifts matter; where groups have no cluster in common, they
    are not determined, and the shortest solution is taken.
    """
    wide = x.astype(np.float64)
    z = np.eye(codes.max() + 1)[codes]
    c = (labels[:, None] == np.unique(labels)).astype(float)
    both = z.T @ c
    share = both / c.sum(0)
    left = np.diag(z.sum(0)) - share @ both.T
    right = z.T @ wide - share @ (c.T @ wide)
    return np.linalg.lstsq(left, right, rcond=1e-10)[0].astype(x.dtype)


def _alike(x: Any) -> bool:
    """Whether all rows are equal."""
    if sparse.issparse(x):
        return (x.max(axis=0) != x.min(axis=0)).nnz == 0
    return bool((x == x[:1]).all())
