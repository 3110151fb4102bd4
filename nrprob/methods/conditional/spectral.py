"""Residual spectral clustering of counts: an ensemble of spectral clusterings and its consensus.

Sizes: n rows, m terms, K clusters, L known groups.
"""

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
from nrprob.estimator.base import Clusterer, Restarts, row_means
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
# Settings (mode, power, rank) of the members, in their order. A single member uses the first.
_SETTINGS = tuple(
    (mode, power, rank)
    for rank, other in ((10, 20), (20, 10))
    for power in (1.0, 1.5, 0.5, 2.0)
    for mode, rank in (("within", rank), ("across", other))
)
_MIN_ROWS = 3  # minimum number of rows of a retained term, and of a known group without warning
_TOL = 1e-2  # relative tolerance of eigenvalues; eigenvectors of noise need not be accurate
_RIDGE = 1e-3  # number that is added to the variances of mixtures


class Member(NamedTuple):
    """Settings of one clustering of the ensemble.

    Attributes
    ----------
    mode : type of the second moments, "within" or "across"
    power : exponent of the inverse document frequency in the term weights
    rank : maximum number of eigenvectors
    start : index among the members with the same mode, power and rank, which differ in their
        initial values
    """

    mode: str
    power: float
    rank: int
    start: int


class View(NamedTuple):
    """Eigenvectors that all members with one mode and power share, and effects of known structure.

    The scores of a row are the inner products of the row with the eigenvectors.

    Attributes
    ----------
    vectors : (m', q) q eigenvectors of the second moments of m' retained terms
    known : (L, q) means of the scores in L known groups, or coefficients of the scores on the
        design matrix
    """

    vectors: np.ndarray
    known: np.ndarray


class Model(NamedTuple):
    """Settings and fitted mixture of one member of the ensemble.

    Attributes
    ----------
    mode, power : settings of the member
    rank : number of eigenvectors, r
    coef, intercept : (K, r) and (K,) coefficients of one linear function of the scores per cluster;
        a row belongs to the cluster whose function has the largest value
    """

    mode: str
    power: float
    rank: int
    coef: np.ndarray
    intercept: np.ndarray


class Ensemble(NamedTuple):
    """Members of the ensemble of one fit, and their consensus.

    Attributes
    ----------
    columns : (n, members) labels of the rows by each member, one column per member
    rows : for every member, its row of the table ``members_``
    models : mixture model of every member
    weights : (members,) weights in the consensus, with mean 1
    agreement : consensus of the members, with its labels
    nothing_left : text of a warning if no structure is left after removing the known structure;
        otherwise empty
    """

    columns: np.ndarray
    rows: list[dict[str, Any]]
    models: list[Model]
    weights: np.ndarray
    agreement: Agreement
    nothing_left: str


@dataclass
class SpectralInput:
    """Checked input of one fit.

    Attributes
    ----------
    x : (n, m) counts of m terms in n rows
    fixed : (n,) cluster of labelled rows, else -1; None without labels
    design : known structure
    members : settings of the members
    weights : (n,) weights of the rows; None if all are 1
    calls : empty; tasks of other estimators list the calls of compiled programs here, which batch
        runs combine
    """

    x: sparse.csr_array
    fixed: np.ndarray | None
    design: Design
    members: list[Member]
    weights: np.ndarray | None = None
    calls: tuple = field(default=())


@parameters.constructor
class ResidualSpectral(WeightedMixin, Clusterer):  # type: ignore[misc]
    r"""Consensus of spectral clusterings of sparse counts, after regression on known structure.

    A count x > 0 becomes 1 + log x, and is multiplied by a power of the inverse document frequency
    of its term. The rows are scaled to unit length; they form the matrix Y. Least squares on the
    known structure D leaves the residuals :math:`R = Y - D (D'D)^+ D'Y`, which are never stored as
    a matrix.

    The ensemble has M members, which are clusterings. A member computes the r leading eigenvectors
    V of a matrix of second moments. There are two such matrices; :math:`R_l` are the rows of known
    group l:

    .. math:: \text{within:} \quad C = R'R - \mathrm{diag}(R'R), \qquad
        \text{across:} \quad \sum_{l \ne k} C_l C_k, \quad C_l = R_l'R_l - \mathrm{diag}(R_l'R_l)

    The diagonal is subtracted because it contains the noise of the counts. "across" contains the
    moments that different groups have in common. The member clusters the rows of RV, scaled to unit
    length, by a Gaussian mixture with a tied covariance: all clusters have the same covariance
    matrix.

    The result is a consensus of the clusterings :math:`S_j` of all members. A member has the weight

    .. math:: w_j \propto \Big[\frac{1}{M-1} \sum_{k \ne j} \mathrm{NMI}(S_j, S_k)\Big]^2

    with mean 1, where NMI is the normalised mutual information. The cluster indicators of member j
    are multiplied by :math:`\sqrt{w_j / M}`. A mixture of K Gaussians with a tied covariance
    clusters the K + 1 leading principal components of all indicators. No setting is tuned to the
    data.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters. For text, no reliable method selects this number.
    damp : {"log", "none"}, default="log"
        "log" replaces a count x > 0 by 1 + log x. "none" uses the counts unchanged. "none" is worse
        for text; it is better if frequent terms determine the clusters, and high counts are not
        repetitions of a term within one document.
    members : int or sequence of (mode, power, rank), default=32
        Members of the ensemble. A sequence lists the settings of every member. A number uses that
        many settings of {"within", "across"} x power {0.5, 1, 1.5, 2} x rank {10, 20}. Without
        known groups, all members are "within". If there are more members than these 16 or 8
        settings, the settings are repeated with new initial values. At most 10,000. ``members=1``
        means ``[("within", 1.0, 10)]``, and is much faster.
    multi : {"product", "additive"}, default="product"
        How several known labelings are combined. With "product", every combination of labels is a
        group. With "additive", the effects of the labelings add up. Prefer "additive" if
        combinations have few rows.
    consensus : {"mixture", "scatter"}, default="mixture"
        Criterion of the consensus. "mixture" is the weighted mixture above. "scatter" minimises the
        within-cluster scatter of the indicators, with equal weights of the members. For n rows and
        a consensus S, the scatter is :math:`\frac{n}{2} \sum_j [H^2(S_j) - I^2(S;S_j)]`. Here
        :math:`H^2` is the quadratic entropy and :math:`I^2` the quadratic mutual information, as in
        `CondEns`. "scatter" was worse in experiments with joined articles. If the ensemble has a
        single member, the consensus is the clustering of this member.
    n_init : int, default=10
        Number of restarts of the consensus; the best one is retained. For "mixture", restarts
        differ in their k-means. For "scatter", they start from the members whose labels have the
        smallest scatter.
    max_iter : int, default=100
        Maximum number of iterations of a mixture, and of the consensus; at most 10**6.
    tol : float, default=1e-3
        A mixture has converged when its mean log likelihood, in nats per sample, increases by less
        than ``tol``. From 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Seed of the initial values of the mixtures.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        Weighted share of the members that assign the row to a cluster. The clusters of every member
        are first matched one-to-one to the clusters of the consensus. If members disagree, the
        cluster with the largest share may differ from ``labels_``.
    agreement_ : ndarray of shape (n_samples,)
        Weighted share of the members that assign the row to its cluster in ``labels_``. Low values
        for all rows indicate that there is little structure.
    <n_clusters_>
    objective_ : float
        The minimised objective of the consensus. For "mixture": minus the log likelihood of the
        mixture, in nats. For "scatter": a sum of squares, to which a row contributes from 0 (all
        members agree) to the number of members. 0 for a single member.
    members_ : pandas.DataFrame
        One row per member, with these columns:

        - ``mode``, ``power``: settings of the member
        - ``rank``: number of eigenvectors with a positive eigenvalue, at most the requested number
        - ``start``: index among the members with the same settings
        - ``objective``: minus the log likelihood of the mixture, in nats; compare it only between
          members with the same settings
        - ``converged``: whether the mixture converged
        - ``weight``: weight in the consensus; the mean weight is 1
        - ``agreement``: normalised mutual information with the consensus
    member_labels_ : ndarray of shape (n_samples, n_members)
        Labels of every member.
    eigenvalues_ : dict of (mode, power) to ndarray
        Eigenvalues of the second moments, descending.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the counts of every cluster; the mean of all rows for an empty cluster.
    member_centers_ : ndarray of shape (n_clusters, n_indicators)
        For every cluster of the consensus, the shares of the clusters of every member; for an empty
        cluster, the shares over all rows. ``n_indicators`` is the number of members times
        ``n_clusters``.
    objective_trace_ : ndarray
        Objective of the best restart of the consensus after every iteration.
    n_iter_ : int
        Number of iterations of the best restart of the consensus.
    converged_ : bool
        Whether the consensus converged. A warning reports members that did not converge.
    restarts_ : xarray.Dataset
        Labels, objective and convergence of all restarts of the consensus.
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    Warns
    -----
    nrprob.exceptions.SingleFeatureWarning
        If one discrete feature y, such as a boolean column, determines the clusters c: the ratio
        I(c; y) / H(c) of mutual information and entropy is above 0.7. With three or more clusters,
        also if y determines one of them.

    See Also
    --------
    ConditionalMixture : Mixture model given known groups, for tables and images.
    CondEns : Ensemble clustering conditional on known structure.
    CCIB : Information bottleneck conditional on known structure.

    Notes
    -----
    The algorithm has these steps:

    1. Transform and weight the counts; leave out terms that occur in fewer than three rows.
    2. For every member, compute eigenvectors by a block Krylov method on sparse products.
    3. Fit the mixture of every member by EM from k-means.
    4. Compute the weights of the members, and fit the mixture of their indicators by EM from
       ``n_init`` initialisations by k-means. For "scatter", move rows to the nearest cluster until
       no row moves, from the labels of ``n_init`` members.

    Eigenvectors take time and memory proportional to the number of entries of X, and no dense array
    of the size of X is formed. An EM step of a mixture costs :math:`O(n r K)` for rank r and K
    clusters. Sparse products run on the CPU, where SciPy was faster than a JAX program. Mixtures
    run on JAX's default device.

    Rows without a retained term have no influence on the mixtures, the weights of the members and
    the consensus. Every member gives them the label of a row of zeros. ``y`` fixes the memberships
    of labelled rows in the mixtures and in the consensus.

    ``known`` may be labels, several labelings, `nrprob.known.Memberships` or continuous covariates.
    "across" members need several groups of labels: there are none for memberships, covariates,
    additive labelings, and a single group. Without ``known``, the mean of all rows is subtracted;
    the method is then ordinary spectral clustering of documents.

    The initial values of a mixture depend on the contents of rows, not on their order. On data
    without a clear structure, the result depends on the seed. If the known structure explains most
    of the variation, the clusters may be meaningless; see ``agreement_``.

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
        known=KINDS, weights=True, sparse=True, nonnegative=True, squares=False, votes=True
    )
    _warns_of_single_feature = _warns_of_single_group = True
    _unit = "the consensus"

    # Input

    def _plan_members(self, grouped: bool) -> list[Member]:
        """Settings of all members, from the parameter ``members``.

        ``grouped`` tells whether there are several known groups, which "across" needs.
        """
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
                    "members must be a number, or a list of (mode, power, rank); got the entry "
                    f"{short_repr(setting)}; pass for example [('within', 1.0, 10)]"
                )
            mode, power, rank = setting
            self._check_choice("the mode of a member", mode, _MODES)
            self._check_number("the power of a member", power, low=0, high=10)
            self._check_number("the rank of a member", rank, low=1, high=10_000, integer=True)
            if mode == "across" and not grouped:
                raise ValueError(
                    "mode 'across' needs at least two known groups, since it compares groups; got "
                    "a member with mode 'across', but no labels of several groups; use 'within'"
                )
            member = mode, float(power), int(rank)
            plan.append(Member(*member, sum(p[:3] == member for p in plan)))
        if not plan:
            raise ValueError("members must not be empty; got an empty list; pass a number")
        return plan

    def prepare(self, X, y, known=None, sample_weight=None) -> SpectralInput:
        """Check the input, encode the known structure, and return the input of `compute`."""
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
                    f"{few.size} known group(s) have two rows, whose residuals about the group "
                    "mean are opposite; got group sizes down to 2; merge small groups, or pass "
                    "multi='additive' if groups are combinations of labels"
                )
        members = self._plan_members(design.kind == "labels" and design.n_groups > 1)
        return SpectralInput(x, fixed, design, members, sample_weight)

    def _validate(self, X, *, reset: bool) -> sparse.csr_array:
        """Check the counts; return a CSR array with sorted and unique entries."""
        X = super()._validate(X, reset=reset)
        raise_where(
            X,
            lambda v: v < 0,
            "ResidualSpectral needs counts, or other non-negative weights of terms",
            "pass raw counts; for other features use ConditionalMixture or CCIB",
        )
        x = sparse.csr_array(X)
        if not x.has_canonical_format or (x.data == 0).any():
            x = x.copy()  # do not modify the input of the caller
            x.sum_duplicates()
            x.eliminate_zeros()
        return x

    # Fitting

    def compute(self, task):
        """Fit all members of the ensemble and their consensus; see `Clusterer.compute`."""
        # 1. Transform the counts; rows without a retained term have mass 0.
        x, dtype, design = task.x, task.x.dtype, task.design
        n = x.shape[0]
        self._weighting = Weighting.from_counts(x, self.damp, _MIN_ROWS, task.weights)
        damped = self._weighting.damp_counts(x)
        present = np.diff(damped.indptr) > 0
        self._check_present(present)
        mass = scale_rows(present.astype(np.float64), task.weights)
        root = np.sqrt(mass)  # factors of the rows in second moments
        divisor = np.where(present, root, 1)[:, None]
        random = check_random_state(self.random_state)
        starts = [random.randint(2**31 - 1) for _ in range(1 + max(m.start for m in task.members))]
        keys = row_keys(x.indptr, x.indices, x.data)
        # 2. Least squares on the known structure. Eigenvectors are computed in float32, which is
        #    more accurate than their tolerance.
        removal, narrow = (
            Projection.of_groups(design.codes, design.n_groups, mass, kind)
            if design.matrix is None
            else Projection.of_design(design.matrix, mass, kind)
            for kind in (dtype, np.float32)
        )
        across = any(m.mode == "across" for m in task.members)
        shared = Shared(damped.astype(np.float32), design.codes) if across else None

        # 3. Members of the same mode and power share their eigenvectors. Fit their mixtures
        #    together.
        views: dict[tuple[str, float], list[int]] = {}
        for j, member in enumerate(task.members):
            views.setdefault((member.mode, member.power), []).append(j)
        columns = np.zeros((n, len(task.members)), np.int64)
        rows, models = {}, {}
        self._views: dict[tuple[str, float], View] = {}
        self.eigenvalues_ = {}
        near = None  # eigenvectors of the previous view, which are similar to the next ones
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
            # Members with a smaller rank have coordinates of 0, so that all use one program.
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
        # 4. Leave out members without an eigenvector, unless no member has an eigenvector.
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
        # 5. Consensus of the members; rows without a retained term do not count.
        counted = task.weights if present.all() else mass
        weights = np.ones(columns.shape[1])
        if self.consensus == "scatter" or columns.shape[1] == 1 or self.n_clusters == 1:
            agreement = find_consensus(
                columns, self.n_clusters, task.fixed, self.n_init, self.max_iter, counted
            )
        else:
            weights = agreement_weights(columns, self.n_clusters, counted)
            seeds = random.randint(2**31 - 1, size=self.n_init).astype(np.uint32)
            agreement = fit_consensus(
                columns, self.n_clusters, task.fixed, weights, mass, keys, seeds,
                reg=_RIDGE, max_iter=self.max_iter, tol=self.tol, dtype=dtype,
            )  # fmt: skip
        rows_left = [rows[j] | {"weight": w} for j, w in zip(informative, weights, strict=True)]
        models_left = [models[j] for j in informative]
        return [Ensemble(columns, rows_left, models_left, weights, agreement, nothing_left)]

    def _check_present(self, present: np.ndarray) -> None:
        """Raise ValueError if no row has a retained term; warn if only some rows have one.

        ``present`` (n,) tells which rows have a retained term.
        """
        if present.all():
            return
        if not present.any():
            raise ValueError(
                f"no term occurs in at least {_MIN_ROWS} rows; got n_samples={present.size}; pass "
                "more rows, or counts of more common terms"
            )
        absent = np.flatnonzero(~present)
        warn(
            f"{absent.size} row(s) have no term that occurs in at least {_MIN_ROWS} rows, and "
            f"carry no information; got row {absent[0]} for example; drop these rows"
        )

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
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
        """Consensus labels (n,) of rows, given the members' labels ``columns`` (n, members)."""
        if self._consensus_model is not None:
            return self._consensus_model.predict(columns)
        x = stack_indicators(columns, [np.arange(self.n_clusters)] * columns.shape[1])
        return centroid_scores(x, self.member_centers_, self._holds_rows).argmax(1)

    def _member_columns(self, X, known) -> np.ndarray:
        """Labels (n, members) that the mixtures of the members assign to n new rows."""
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
        """Predict the cluster of new rows.

        After subtracting the effects of known structure, the mixture of every member assigns the
        rows to clusters of the member. The clusters by all members determine the cluster of the
        consensus: by the mixture of the consensus, or by the nearest centroid if
        ``consensus="scatter"``.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `fit`; required if the model was fitted with it
            If `fit` used columns by name, these columns of a frame ``X`` are the default.

        Returns
        -------
        ndarray of shape (n_samples,)

        Raises
        ------
        ValueError
            If the model was fitted with ``known``, and ``known`` is missing or contains a group
            that did not occur in `fit`.
        """
        X, known = self._split_known(X, known)
        return self._consensus_labels(self._member_columns(X, known))

    def predict_proba(self, X, *, known=None):
        """Weighted shares of the members that assign new rows to the clusters.

        As in ``membership_``, the clusters of the members are matched to the clusters of the
        consensus.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `fit`; required if the model was fitted with it
            If `fit` used columns by name, these columns of a frame ``X`` are the default.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        X, known = self._split_known(X, known)
        return vote_shares(self._member_columns(X, known), self._names, self._weights)
