"""Residual spectral clustering of counts, with a consensus over many views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.validation import check_random_state
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer, Renamed, Restarts, row_means
from nrprob.estimator.capabilities import KINDS, Capabilities
from nrprob.estimator.weights import WeightedMixin
from nrprob.exceptions import short_repr, warn
from nrprob.methods.conditional.consensus import (
    Agreement,
    agreement_weights,
    find_consensus,
    fit_consensus,
    match_labels,
    vote_shares,
)
from nrprob.methods.conditional.moments import (
    Projection,
    Shared,
    Weighting,
    leading_eigenvectors,
    moment_across,
    moment_within,
    multiply_rows,
    share_left,
    unit_rows,
)
from nrprob.methods.conditional.regression import predict_effects
from nrprob.methods.conditional.spectral_mixture import fit_mixtures, row_keys
from nrprob.settings import few_threads
from nrprob.statistics.ensembles import centroid_scores, stack_indicators
from nrprob.statistics.features import raise_where
from nrprob.statistics.weighted import scale_rows

_MODES = ("within", "across")
# Settings of the members in their order; a single member takes the first.
_SETTINGS = tuple(
    (mode, power, rank)
    for rank, other in ((10, 20), (20, 10))
    for power in (1.0, 1.5, 0.5, 2.0)
    for mode, rank in (("within", rank), ("across", other))
)
_MIN_ROWS = 3  # minimum number of rows of a retained term, and of a known group without warning
_TOL = 1e-2  # relative tolerance of eigenvalues; directions of pure noise need not be accurate
_RIDGE = 1e-3  # added to the variances of mixtures


class Member(NamedTuple):
    """Settings of one clustering of the ensemble: type of moments, term weights, directions.

    ``start`` is the index among members of the same setting.
    """

    mode: str
    power: float
    rank: int
    start: int


class View(NamedTuple):
    """Directions of one (mode, power), and the effects of the known structure on them."""

    vectors: np.ndarray
    known: np.ndarray


class Model(NamedTuple):
    """The mixture of one member; see `Mixtures`."""

    mode: str
    power: float
    rank: int
    coef: np.ndarray
    intercept: np.ndarray


class Ensemble(NamedTuple):
    """Members of a fit and their consensus.

    Attributes
    ----------
    columns : (n, members) labels
    rows : row of ``members_`` for every member
    models : mixture of every member
    weights : (members,) in the consensus, with mean 1
    agreement : the consensus
    nothing_left : reason why the counts have no structure left; empty if they have
    """

    columns: np.ndarray
    rows: list[dict[str, Any]]
    models: list[Model]
    weights: np.ndarray
    agreement: Agreement
    nothing_left: str


@dataclass
class SpectralInput:
    """Checked input of one fit."""

    x: sparse.csr_array
    fixed: np.ndarray | None
    design: Design
    members: list[Member]
    weights: np.ndarray | None = None
    calls: tuple = field(default=())


@parameters.constructor
class ResidualSpectral(WeightedMixin, Clusterer):  # type: ignore[misc]
    r"""Consensus of spectral clusterings of sparse counts, after regression on known structure.

    Counts n are damped to 1 + log n, multiplied by a power of the inverse document frequency, and
    scaled to rows Y of unit length. Least squares on the known structure D leaves the residuals
    :math:`R = Y - D (D'D)^+ D'Y`, which are never formed. A member of the ensemble takes the r
    leading eigenvectors V of one of two matrices of second moments, whose diagonal is corrected
    for noise,

    .. math:: C = R'R - \mathrm{diag}, \qquad
        \sum_{l \ne k} C_l C_k, \quad C_l = R_l'R_l - \mathrm{diag}

    "within" is the first; "across" is the second, the moments that known groups share, where
    :math:`R_l` are the rows of group l. The member clusters the rows of RV, at unit length, by a
    Gaussian mixture with a tied covariance. The result is a consensus of the clusterings
    :math:`C_j` of all M members, which have the weights

    .. math:: w_j \propto \Big[\frac{1}{M-1} \sum_{k \ne j} \mathrm{NMI}(C_j, C_k)\Big]^2

    with mean 1. The indicators of the members' clusters, times :math:`\sqrt{w_j / M}`, form a
    matrix whose K + 1 leading principal components are clustered by a mixture of K Gaussians with a
    tied covariance. No setting is tuned to the data.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters. No reliable method selects it for text.
    damp : {"log", "none"}, default="log"
        "log" replaces a count n > 0 by 1 + log n. "none" uses counts as they are: better if
        frequent terms carry the signal without bursts, worse for text.
    members : int or sequence of (mode, power, rank), default=32
        Members of the ensemble. A number takes the first settings of {"within", "across"} x power
        {0.5, 1, 1.5, 2} x rank {10, 20}, and repeats the 16 settings with new initial values; at
        most 10,000. Without known groups all are "within". ``members=1`` is
        ``[("within", 1.0, 10)]``, and much faster.
    multi : {"product", "additive"}, default="product"
        Combination of several known labelings: every combination of labels is a group, or the
        labelings have additive effects. Prefer "additive" if combinations have few rows.
    consensus : {"mixture", "scatter"}, default="mixture"
        Criterion of the consensus. "mixture" is the weighted mixture above. "scatter" takes the
        clustering C that minimises :math:`\frac{n}{2} \sum_j [H^2(C_j) - I^2(C;C_j)]` for n rows,
        with the quadratic entropy :math:`H^2` and the quadratic mutual information :math:`I^2`, as
        in `CondEns`. This is the within-cluster scatter of the indicators; members have equal
        weights. Its labels were worse on joined articles. A single member is its own consensus.
    n_init : int, default=10
        Number of starts of the consensus; the best one is kept. A mixture starts from k-means. The
        scatter is minimised from the members with the smallest objective as a consensus.
    max_iter : int, default=100
        Maximum number of iterations of a mixture, and of the consensus; at most 10**6.
    tol : float, default=1e-3
        A mixture has converged when its mean log likelihood, in nats per row, increases by less
        than ``tol``. From 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the initial values of the mixtures.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        Shares of the members that vote for a cluster, after matching the clusters of each member
        to the consensus one to one, with the weights of the members. The largest share may differ
        from ``labels_`` if members disagree.
    agreement_ : ndarray of shape (n_samples,)
        Weighted share of the members that vote for the row's own cluster. Low values for all rows
        indicate that there is little structure.
    <n_clusters_>
    objective_ : float
        The minimised objective of the consensus: minus the log likelihood of its mixture. If
        ``consensus="scatter"``, a sum of squares, to which a row contributes from 0 (all members
        agree) to the number of members. 0 for a single member.
    members_ : pandas.DataFrame
        One row per member: ``mode``, ``power``, ``rank`` (number of directions that exist, at most
        the requested number), ``start``, ``objective`` (minus the log likelihood of its mixture,
        in nats; comparable between starts only), ``converged``, ``weight`` (in the consensus, mean
        1), and ``agreement`` (normalised mutual information with the consensus).
    member_labels_ : ndarray of shape (n_samples, n_members)
        Labels of every member.
    eigenvalues_ : dict of (mode, power) to ndarray
        Eigenvalues of the moments, descending.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the counts of every cluster; the mean of all rows for an empty cluster.
    member_centers_ : ndarray of shape (n_clusters, n_indicators)
        For every member, p(member's cluster given cluster); for an empty cluster, the mean over
        all rows.
    objective_trace_ : ndarray
        Objective of the best start of the consensus after every iteration.
    n_iter_ : int
        Number of iterations of the best start of the consensus.
    converged_ : bool
        Whether the consensus converged. A warning reports members that did not.
    restarts_ : xarray.Dataset
        Labels, objective and convergence of all starts of the consensus.
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    Warns
    -----
    nrprob.exceptions.SingleFeatureWarning
        If one discrete feature y, such as a boolean column, determines the clusters c, or one of
        three or more clusters: I(c; y) / H(c) above 0.7.

    See Also
    --------
    ConditionalMixture : Mixture of residuals, for continuous features.
    CondEns : Ensemble clustering conditional on known structure.
    CCIB : Information bottleneck conditional on known structure.

    Notes
    -----
    The algorithm has these steps:

    1. Damp and weight the counts; terms in fewer than three rows are dropped.
    2. For every member, compute eigenvectors by a block Krylov method on sparse products.
    3. Fit the mixture of every member by EM from k-means.
    4. Weight the members, and fit the mixture of their indicators by EM from ``n_init`` starts; or
       minimise the scatter by moving rows to the nearest cluster, from ``n_init`` members.

    Eigenvectors take time and memory proportional to the entries of X, and no dense array of the
    size of X is formed. An EM step of a mixture costs :math:`O(n r K)` for rank r and K clusters.
    Sparse products run on the CPU, where they were faster than compiled ones; mixtures run on
    JAX's device.

    Rows without a retained term take part in no step, and go where a row of zeros would go.
    ``known`` may be labels, several labelings, `nrprob.known.Memberships` or continuous covariates.
    The last two, additive labelings, and a single group have no "across" members. Without
    ``known`` the mean is removed, which is ordinary spectral clustering of documents. ``y`` fixes
    the memberships of labelled rows in the mixtures and in the consensus.

    The initial values of a mixture depend on the contents of rows, not on their order. On data
    without a clear structure the result depends on the seed. If the known structure explains most
    of the rows, the fit may find nothing; see ``agreement_``.

    References
    ----------
    V. Koltchinskii and E. Giné (2000), "Random matrix approximation of spectra of integral
    operators", Bernoulli 6, doi:10.2307/3318636, for deleting the diagonal of a Gram matrix.

    A. Topchy, A. K. Jain and W. Punch (2003), "Combining multiple weak clusterings", IEEE
    International Conference on Data Mining, for ``consensus="scatter"``. The weighted mixture and
    the combination are additions of this package.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ResidualSpectral
    >>> rng = np.random.default_rng(0)
    >>> known, hidden = rng.integers(2, size=(2, 60))
    >>> rates = np.ones((60, 20))
    >>> rates[np.arange(60), known] += 9
    >>> rates[:, 2:] += 3 * (np.arange(18) % 2 == hidden[:, None])
    >>> model = ResidualSpectral(2, members=4, random_state=0)
    >>> labels = model.fit_predict(rng.poisson(rates), known=known)
    >>> bool(max((labels == hidden).mean(), (labels != hidden).mean()) > 0.9)
    True
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    damp: Annotated[str, parameters.Choice(("log", "none"))] = "log"
    members: int = 32
    multi: parameters.Combination = "product"
    consensus: Annotated[str, parameters.Choice(("mixture", "scatter"))] = "mixture"
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-3
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(
        known=KINDS, weights=True, sparse=True, nonnegative=True, squares=False
    )
    _warns_of_single_feature = True
    centroids_ = Renamed("member_centers_")
    _unit = "the consensus"

    # Input

    def _plan_members(self, grouped: bool) -> list[Member]:
        """Members of the ensemble; ``grouped`` tells whether there are two known groups."""
        if isinstance(self.members, str) or not isinstance(self.members, Sequence):
            self._check_number("members", self.members, low=1, high=10_000, integer=True)
            settings = [s for s in _SETTINGS if grouped or s[0] == "within"]
            return [
                Member(*settings[j % len(settings)], j // len(settings))
                for j in range(int(self.members))
            ]
        plan: list[Member] = []
        for setting in self.members:
            if isinstance(setting, str) or not isinstance(setting, Sequence) or len(setting) != 3:
                raise ValueError(
                    "members must be a number, or a list of (mode, power, rank); "
                    f"got {short_repr(setting)} in it; write ('within', 1.0, 10) for instance"
                )
            mode, power, rank = setting
            self._check_choice("the mode of a member", mode, _MODES)
            self._check_number("the power of a member", power, low=0, high=10)
            self._check_number("the rank of a member", rank, low=1, high=10_000, integer=True)
            if mode == "across" and not grouped:
                raise ValueError(
                    "mode 'across' needs two known groups, since it is what groups share; got "
                    "members with 'across' and no such groups; use 'within'"
                )
            member = mode, float(power), int(rank)
            plan.append(Member(*member, sum(p[:3] == member for p in plan)))
        if not plan:
            raise ValueError("members must hold a member; got an empty list; pass a number")
        return plan

    def prepare(self, X, y, known=None, sample_weight=None) -> SpectralInput:
        """Check the input; nothing is computed yet."""
        x, fixed = self._check_input(X, y)
        n = x.shape[0]
        self._encoder = DesignEncoder(self.multi, min_additive=2)
        design = self._encoder.fit(known, n, sample_weight)
        self._check_groups(design)
        if design.kind == "labels" and design.columns is None:
            few = np.bincount(design.codes)
            few = few[(few > 1) & (few < _MIN_ROWS)]
            if few.size:
                self._warn_degenerate(
                    f"{few.size} known group(s) have two rows, of which their mean leaves one "
                    "direction only; got group sizes down to 2; merge small groups, or pass "
                    "multi='additive' if they are combinations"
                )
        members = self._plan_members(design.kind == "labels" and design.n_groups > 1)
        return SpectralInput(x, fixed, design, members, sample_weight)

    def _validate(self, X, *, reset: bool) -> sparse.csr_array:
        """Checked counts in CSR form, with sorted columns and no entry twice."""
        X = super()._validate(X, reset=reset)
        raise_where(
            X,
            lambda v: v < 0,
            "ResidualSpectral takes counts, or other non-negative weights of terms",
            "pass raw counts; for other features see ConditionalMixture or CCIB",
        )
        x = sparse.csr_array(X)
        if not x.has_canonical_format or (x.data == 0).any():
            x = x.copy()  # do not modify the input of the caller
            x.sum_duplicates()
            x.eliminate_zeros()
        return x

    # Fitting

    def compute(self, task):
        """Cluster by every member of the ensemble; see `Clusterer.compute`."""
        x, dtype, design = task.x, task.x.dtype, task.design
        n = x.shape[0]
        self._weighting = Weighting.from_counts(x, self.damp, _MIN_ROWS, task.weights)
        damped = self._weighting.damp_counts(x)
        present = np.diff(damped.indptr) > 0
        self._check_present(present)
        mass = scale_rows(present.astype(np.float64), task.weights)
        root = np.sqrt(mass)  # of rows that enter second moments
        divisor = np.where(present, root, 1)[:, None]
        random = check_random_state(self.random_state)
        starts = [random.randint(2**31 - 1) for _ in range(1 + max(m.start for m in task.members))]
        keys = row_keys(x.indptr, x.indices, x.data)
        # Directions are looked for in float32: they are known to no more than their tolerance.
        removal, narrow = (
            Projection.of_groups(design.codes, design.n_groups, mass, kind)
            if design.matrix is None
            else Projection.of_design(design.matrix, mass, kind)
            for kind in (dtype, np.float32)
        )
        across = any(m.mode == "across" for m in task.members)
        shared = Shared(damped.astype(np.float32), design.codes) if across else None

        views: dict[tuple[str, float], list[int]] = {}
        for j, member in enumerate(task.members):
            views.setdefault((member.mode, member.power), []).append(j)
        columns = np.zeros((n, len(task.members)), np.int64)
        rows, models = {}, {}
        self._views: dict[tuple[str, float], View] = {}
        self.eigenvalues_ = {}
        near = None  # directions of one power are not far from those of the next
        for done, ((mode, power), which) in enumerate(views.items(), 1):
            members = [task.members[j] for j in which]
            weighted = self._weighting.weigh_terms(damped, power)
            scaled = multiply_rows(weighted, root)
            rough = scaled.astype(np.float32)
            moment = (
                moment_across(rough, narrow, shared)
                if mode == "across" and shared is not None
                else moment_within(rough, narrow)
            )
            rank = max(member.rank for member in members)
            if share_left(scaled, removal) < 1e3 * np.finfo(dtype).eps:
                rank = 0  # the residuals are rounding errors
            with few_threads(n):
                values, near = leading_eigenvectors(
                    moment, weighted.shape[1], rank, np.float32, _TOL, near
                )
            values, vectors = values.astype(dtype), near.astype(dtype)
            del moment, rough
            scores = scaled @ vectors
            self._views[mode, power] = View(vectors, removal.fit_coefficients(scores))
            self.eigenvalues_[mode, power] = values
            scores = removal.remove_known(scores) / divisor.astype(dtype)
            if self.verbose:
                print(f"directions {done}/{len(views)}: {mode}, power {power:g}, {len(values)}")
            ranks = [min(member.rank, values.size) for member in members]
            # Fewer directions are the others with coordinates of 0, so that all share a program.
            stacked = np.zeros((len(which), n, max(rank, 1)), dtype)
            for i, r in enumerate(ranks):
                stacked[i, :, :r] = unit_rows(scores[:, :r])
            seeds = np.asarray([starts[member.start] for member in members], np.uint32)
            result = fit_mixtures(
                stacked, mass, keys, seeds, self.n_clusters, task.fixed,
                reg=_RIDGE, max_iter=self.max_iter, tol=self.tol,
            )  # fmt: skip
            columns[:, which] = result.labels.T
            for i, (j, r) in enumerate(zip(which, ranks, strict=True)):
                models[j] = Model(mode, power, r, result.coef[i][:, :r], result.intercept[i])
                end = {"objective": float(result.objective[i]), "converged": result.converged[i]}
                rows[j] = task.members[j]._asdict() | {"rank": r} | end
        # Leave out members without a direction, unless all members have none.
        informative = [j for j in sorted(rows) if rows[j]["rank"] > 0] or [0]
        nothing_left = ""
        if rows[informative[0]]["rank"] == 0 and self.n_clusters > 1:
            nothing_left = (
                "no structure is left after removing the known structure; got second moments "
                "without a positive eigenvalue; do not interpret the clusters"
            )
            columns = np.zeros((n, 1), int) if task.fixed is None else task.fixed[:, None]
            columns = np.maximum(columns, 0)
        else:
            columns = columns[:, informative]
        weights = np.ones(columns.shape[1])
        if self.consensus == "scatter" or columns.shape[1] == 1 or self.n_clusters == 1:
            agreement = find_consensus(
                columns, self.n_clusters, task.fixed, self.n_init, self.max_iter, task.weights
            )
        else:
            weights = agreement_weights(columns, self.n_clusters, task.weights)
            seeds = random.randint(2**31 - 1, size=self.n_init).astype(np.uint32)
            agreement = fit_consensus(
                columns, self.n_clusters, task.fixed, weights, mass, keys, seeds,
                reg=_RIDGE, max_iter=self.max_iter, tol=self.tol, dtype=dtype,
            )  # fmt: skip
        rows_left = [rows[j] | {"weight": w} for j, w in zip(informative, weights, strict=True)]
        models_left = [models[j] for j in informative]
        return [Ensemble(columns, rows_left, models_left, weights, agreement, nothing_left)]

    def _check_present(self, present: np.ndarray) -> None:
        if present.all():
            return
        if not present.any():
            raise ValueError(
                f"no row has a term that {_MIN_ROWS} rows share; got n_samples={present.size}; "
                "pass more rows, or counts of more common terms"
            )
        absent = np.flatnonzero(~present)
        warn(
            f"row {absent[0]} has no counts of terms that {_MIN_ROWS} rows share; got "
            f"{absent.size} such row(s), which carry no information; drop them"
        )

    def finish(self, task, result):
        """Find the consensus of the members, and set the fitted attributes."""
        import pandas as pd
        from sklearn.metrics import normalized_mutual_info_score

        columns, members, self._models, weights, agreed, nothing_left = result[0]
        self.member_labels_ = columns
        k, fixed = self.n_clusters, task.fixed
        self._weights, self._consensus_model = weights, agreed.model
        self.member_centers_ = agreed.centroids
        if self.verbose:
            least = agreed.objective[agreed.best]
            print(f"consensus of {columns.shape[1]}: objective {least:.6g}")
        labels, n_classes = agreed.labels[agreed.best], 0 if fixed is None else fixed.max() + 1
        self._names = np.stack(
            [match_labels(c, labels, k, int(n_classes), task.weights) for c in columns.T]
        )
        self._store_results(
            Restarts(agreed.labels, agreed.objective, agreed.converged),
            membership=vote_shares(columns, self._names, weights),
            trace=agreed.trace,
            n_iter=agreed.n_iter[agreed.best],
            nothing_left=nothing_left,
        )
        hard = np.eye(k)[self.labels_]
        self.cluster_centers_ = row_means(task.x, scale_rows(hard, task.weights))
        self.agreement_ = self.membership_[np.arange(len(columns)), self.labels_]
        self.members_ = pd.DataFrame(members)
        self.members_["agreement"] = [
            normalized_mutual_info_score(self.labels_, column) for column in columns.T
        ]
        slow = int((~self.members_["converged"]).sum())
        if slow:
            warn(
                f"{slow} of {len(members)} mixtures did not converge; got "
                f"max_iter={self.max_iter}; raise max_iter or tol",
                ConvergenceWarning,
            )
        return self

    # New rows

    def _absent_values(self, X, known) -> dict[str, Any]:
        columns = self._member_columns(X, known)
        rows, labels = np.arange(len(columns)), self._consensus_labels(columns)
        votes = vote_shares(columns, self._names, self._weights)
        return {"member_labels_": columns, "agreement_": votes[rows, labels]}

    def _consensus_labels(self, columns: np.ndarray) -> np.ndarray:
        """Cluster (n,) of rows with the members' labels (n, members)."""
        if self._consensus_model is not None:
            return self._consensus_model.predict(columns)
        x = stack_indicators(columns, [np.arange(self.n_clusters)] * columns.shape[1])
        return centroid_scores(x, self.member_centers_, self._holds_rows).argmax(1)

    def _member_columns(self, X, known) -> np.ndarray:
        """Labels (n, members) of new rows."""
        check_is_fitted(self)
        x = self._validate(X, reset=False)
        n = x.shape[0]
        design = self._encoder.transform(known, n)
        damped = self._weighting.damp_counts(x.astype(self._weighting.idf.dtype))
        present = np.diff(damped.indptr) > 0
        columns = np.zeros((n, len(self._models)), np.int64)
        scores = {}
        for (mode, power), view in self._views.items():
            projected = self._weighting.weigh_terms(damped, power) @ view.vectors
            left = projected - predict_effects(view.known, design)
            scores[mode, power] = np.where(present[:, None], left, 0)
        for j, model in enumerate(self._models):
            s = unit_rows(scores[model.mode, model.power][:, : model.rank])
            columns[:, j] = (s @ model.coef.T + model.intercept).argmax(1)
        return columns

    def predict(self, X, *, known=None):
        """Cluster of new rows by the votes of all members.

        The effects of the known structure are subtracted, and every member assigns the rows by its
        mixture. The mixture of the consensus then assigns the labels of the members, or the nearest
        centroid if ``consensus="scatter"``.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `fit`; required if the model was fitted with it
            If `fit` took columns of a frame ``X`` by name, they are taken from this ``X`` as well.

        Returns
        -------
        ndarray of shape (n_samples,)

        Raises
        ------
        ValueError
            If ``known`` is missing, or contains a group that did not occur in the fit.
        """
        X, known = self._split_known(X, known)
        return self._consensus_labels(self._member_columns(X, known))

    def predict_proba(self, X, *, known=None):
        """Shares of the members that vote for every cluster, as ``membership_`` of new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `fit`; required if the model was fitted with it
            If `fit` took columns of a frame ``X`` by name, they are taken from this ``X`` as well.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        X, known = self._split_known(X, known)
        return vote_shares(self._member_columns(X, known), self._names, self._weights)
