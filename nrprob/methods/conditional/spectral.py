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
from nrprob.exceptions import short_repr, warn
from nrprob.methods.conditional.consensus import agree, match, votes
from nrprob.methods.conditional.moments import (
    Projection,
    Shared,
    Weighting,
    leading,
    moment_across,
    moment_within,
    share_left,
    unit_rows,
)
from nrprob.methods.conditional.regression import predict_effects
from nrprob.methods.conditional.spectral_mixture import fit_mixtures, row_keys
from nrprob.settings import few_threads
from nrprob.statistics.ensembles import centroid_scores, stack_indicators
from nrprob.statistics.features import raise_where

_MODES = ("within", "across")
# Settings in the order in which they are used up: the one to take alone comes first.
_SETTINGS = tuple(
    (mode, power, rank)
    for rank, other in ((10, 20), (20, 10))
    for power in (1.0, 1.5, 0.5, 2.0)
    for mode, rank in (("within", rank), ("across", other))
)
_MIN_ROWS = 3  # rows that a term is found in, and rows of a known group below which it is warned of
_TOL = 1e-2  # of eigenvalues, relative; directions of pure noise need not be sharp
_RIDGE = 1e-3  # added to the variances of mixtures


class Member(NamedTuple):
    """One clustering of the ensemble: which moments, which weights of terms, how many directions.

    ``start`` numbers the starts of one setting.
    """

    mode: str
    power: float
    rank: int
    start: int


class View(NamedTuple):
    """Directions of one (mode, power), and the coefficients of the known structure in them."""

    vectors: np.ndarray
    known: np.ndarray


class Model(NamedTuple):
    """The mixture of one member; see `Mixtures`."""

    mode: str
    power: float
    rank: int
    coef: np.ndarray
    intercept: np.ndarray


@dataclass
class SpectralInput:
    """Checked input of one fit."""

    x: sparse.csr_array
    fixed: np.ndarray | None
    design: Design
    members: list[Member]
    calls: tuple = field(default=())


@parameters.constructor
class ResidualSpectral(Clusterer):
    r"""Consensus of spectral clusterings of what known structure leaves of sparse counts.

    Counts n are damped to 1 + log n, weighted by powers w of the inverse document frequency, and
    brought to unit length: rows Y. What the known structure D explains by least squares is taken
    away, R = Y - D (D'D)^+ D'Y, and never formed. A member of the ensemble takes the leading r
    eigenvectors V of one of two matrices of second moments without the noise on their diagonal,

    .. math:: C = R'R - \mathrm{diag}, \qquad
        \sum_{l \ne k} C_l C_k, \quad C_l = R_l'R_l - \mathrm{diag}

    "within", and "across", which is what two known groups share (R_l are the rows of group l). It
    clusters the rows of RV, at unit length, by a mixture of normals with one covariance. The result
    is the clustering that agrees best with all members, by quadratic mutual information: it
    minimises

    .. math:: \frac{n}{2} \sum_j \left[H^2(C_j) - I^2(C;C_j)\right]

    as in `CondEns`. Nothing is tuned to the data.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters. There is no way to choose it from text that can be trusted.
    damp : {"log", "none"}, default="log"
        "log" takes 1 + log n for a count of n > 0. "none" takes counts as they are: better where
        frequent terms carry the signal and do not come in bursts, as counts of draws from one
        distribution per row do; worse for text.
    members : int or sequence of (mode, power, rank), default=32
        Clusterings that are brought to agree. A number takes so many of the 16 settings
        {"within", "across"} x power {.5, 1, 1.5, 2} x rank {10, 20}, again with new starts when
        they are used up, at most 10,000; without known groups all are "within". ``members=1`` is
        ``[("within", 1.0, 10)]``, and far faster.
    multi : {"product", "additive"}, default="product"
        How several known labelings combine: to all combinations that occur, or as effects that add
        up, for many labelings or combinations of few rows.
    n_init : int, default=10
        Starts of the consensus, of which the best is kept. They are the members that come nearest
        to it by themselves.
    max_iter : int, default=100
        Most iterations of a mixture, and of the consensus; at most 10**6.
    tol : float, default=1e-3
        A mixture has converged when its mean log likelihood, in nats per row, gains less; from 0 to
        1.
    random_state : int, RandomState instance or None, default=None
        Determines the starts of the mixtures; there is no other randomness.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        Shares of the members that vote for a cluster, once each member's clusters have been matched
        one to one with those of the consensus. A row's largest share may be another cluster's than
        its own where members are divided.
    agreement_ : ndarray of shape (n_samples,)
        Share of the members that vote for the row's own cluster: how sure the row is. Low values
        everywhere mean that there is little to be found.
    <n_clusters_>
    objective_ : float
        The minimised sum of squares of the consensus. It is not in nats: a row where all members
        agree costs 0, and no row more than the number of members. 0 for a single member.
    members_ : pandas.DataFrame
        A row for every member: ``mode``, ``power``, ``rank`` (directions that were there; at most
        those asked for), ``start``, ``objective`` (minus the log likelihood of its mixture, in
        nats; comparable between starts only), ``converged``, and ``agreement`` (NMI with the
        consensus).
    member_labels_ : ndarray of shape (n_samples, n_members)
        Labels of every member.
    eigenvalues_ : dict of (mode, power) to ndarray
        Of the moments, descending.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the counts of every cluster; that of all rows for a cluster without rows.
    member_centers_ : ndarray of shape (n_clusters, n_indicators)
        Member by member, p(member's cluster given cluster); that of all rows for a cluster that
        holds nothing.
    objective_trace_ : ndarray
        Objective of the best start of the consensus at every iteration.
    n_iter_ : int
        Iterations of the best start of the consensus.
    converged_ : bool
        Whether it converged. Members that did not are warned of.
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

    Notes
    -----
    Terms found in fewer than three rows are dropped. Rows that are left without a term take no part
    in anything, and go where a row would go that tells nothing. ``known`` may be labels, several
    labelings, `nrprob.known.Memberships` or a 2-D array of floats; without groups (the last two,
    and additive labelings) or with one group only, there is no "across". Without ``known`` the mean
    is removed: ordinary spectral clustering of documents. ``y`` fixes the memberships of rows in
    the mixtures and in the consensus.

    Memory and time follow the entries of `X`: nothing of the size of `X` is made dense. Sparse
    products run on the CPU, where they were faster than their compiled forms; mixtures and
    consensus are compiled, and run where JAX does.

    The starts of a mixture depend on what rows hold, and not on their order. On data without a
    clear structure the result still depends on the seed.

    On text, more than half of what this gains over k-means of the singular vectors of tf-idf rows
    is gained by damping alone (``benchmarks/residual_spectral.py``). Where the known structure
    makes up most of a row, nothing may be found; see ``agreement_``.

    References
    ----------
    Deleting the diagonal of a Gram matrix against noise: Koltchinskii and Giné (2000). Consensus:
    Topchy, Jain and Punch (2003). The combination is this package's own.

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
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-3
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(known=KINDS, sparse=True, nonnegative=True, squares=False)
    _warns_of_single_feature = True
    centroids_ = Renamed("member_centers_")
    _unit = "the consensus"

    # Input

    def _plan(self, grouped: bool) -> list[Member]:
        """Members of the ensemble; ``grouped`` says whether there are two known groups."""
        if isinstance(self.members, str) or not isinstance(self.members, Sequence):
            self._check_number("members", self.members, low=1, high=10_000, integer=True)
            settings = [s for s in _SETTINGS if grouped or s[0] == "within"]
            return [
                Member(*settings[j % len(settings)], j // len(settings))
                for j in range(int(self.members))
            ]
        plan: list[Member] = []
        for one in self.members:
            if isinstance(one, str) or not isinstance(one, Sequence) or len(one) != 3:
                raise ValueError(
                    "members must be a number, or a list of (mode, power, rank); "
                    f"got {short_repr(one)} in it; write ('within', 1.0, 10) for instance"
                )
            mode, power, rank = one
            self._check_choice("the mode of a member", mode, _MODES)
            self._check_number("the power of a member", power, low=0, high=10)
            self._check_number("the rank of a member", rank, low=1, high=10_000, integer=True)
            if mode == "across" and not grouped:
                raise ValueError(
                    "mode 'across' needs two known groups, since it is what groups share; got "
                    "members with 'across' and no such groups; use 'within'"
                )
            setting = mode, float(power), int(rank)
            plan.append(Member(*setting, sum(p[:3] == setting for p in plan)))
        if not plan:
            raise ValueError("members must hold a member; got an empty list; pass a number")
        return plan

    def prepare(self, X, y, known=None) -> SpectralInput:
        """Check the input; nothing is computed yet."""
        x, fixed = self._take_in(X, y)
        n = x.shape[0]
        self._encoder = DesignEncoder(self.multi, min_additive=2)
        design = self._encoder.fit(known, n)
        self._check_groups(design)
        if design.kind == "labels" and design.columns is None:
            few = np.bincount(design.codes)
            few = few[(few > 1) & (few < _MIN_ROWS)]
            if few.size:
                self._degenerate(
                    f"{few.size} known group(s) have two rows, of which their mean leaves one "
                    "direction only; got group sizes down to 2; merge small groups, or pass "
                    "multi='additive' if they are combinations"
                )
        members = self._plan(design.kind == "labels" and design.n_groups > 1)
        return SpectralInput(x, fixed, design, members)

    def _validate(self, X, *, reset: bool) -> sparse.csr_array:
        """Checked counts in CSR form, with sorted columns and no entry twice."""
        X = super()._validate(X, reset=reset)
        raise_where(
            X,
            lambda v: v < 0,
            "ResidualSpectral takes counts, or other non-negative weights of terms",
            "pass raw counts; for other features see ResidualMixture or CCIB",
        )
        x = sparse.csr_array(X)
        if not x.has_canonical_format or (x.data == 0).any():
            x = x.copy()  # what it was made of belongs to the caller
            x.sum_duplicates()
            x.eliminate_zeros()
        return x

    # Fitting

    def compute(self, given):
        """Cluster by every member of the ensemble; see `Clusterer.compute`."""
        x, dtype, design = given.x, given.x.dtype, given.design
        n = x.shape[0]
        self._weighting = Weighting.learn(x, self.damp, _MIN_ROWS)
        damped = self._weighting.damped(x)
        present = np.diff(damped.indptr) > 0
        self._check_present(present)
        random = check_random_state(self.random_state)
        starts = [random.randint(2**31 - 1) for _ in range(1 + max(m.start for m in given.members))]
        keys = row_keys(x.indptr, x.indices, x.data)
        # Directions are looked for in float32: they are known to no more than their tolerance.
        removal, narrow = (
            Projection.of_groups(design.codes, design.n_groups, present, kind)
            if design.matrix is None
            else Projection.of_design(design.matrix, present, kind)
            for kind in (dtype, np.float32)
        )
        across = any(m.mode == "across" for m in given.members)
        shared = Shared(damped.astype(np.float32), design.codes) if across else None

        views: dict[tuple[str, float], list[int]] = {}
        for j, member in enumerate(given.members):
            views.setdefault((member.mode, member.power), []).append(j)
        columns = np.zeros((n, len(given.members)), np.int64)
        rows, models = {}, {}
        self._views: dict[tuple[str, float], View] = {}
        self.eigenvalues_ = {}
        near = None  # directions of one power are not far from those of the next
        for done, ((mode, power), which) in enumerate(views.items(), 1):
            members = [given.members[j] for j in which]
            weighted = self._weighting.weighted(damped, power)
            rough = weighted.astype(np.float32)
            moment = (
                moment_across(rough, narrow, shared)
                if mode == "across" and shared is not None
                else moment_within(rough, narrow)
            )
            rank = max(member.rank for member in members)
            if share_left(weighted, removal) < 1e3 * np.finfo(dtype).eps:
                rank = 0  # what is left is rounding
            with few_threads(n):
                values, near = leading(moment, weighted.shape[1], rank, np.float32, _TOL, near)
            values, vectors = values.astype(dtype), near.astype(dtype)
            del moment, rough
            scores = weighted @ vectors
            self._views[mode, power] = View(vectors, removal.coefficients(scores))
            self.eigenvalues_[mode, power] = values
            scores = removal.remove(scores)
            if self.verbose:
                print(f"directions {done}/{len(views)}: {mode}, power {power:g}, {len(values)}")
            ranks = [min(member.rank, values.size) for member in members]
            # Fewer directions are the others with coordinates of 0, so that all share a program.
            stacked = np.zeros((len(which), n, max(rank, 1)), dtype)
            for at, r in enumerate(ranks):
                stacked[at, :, :r] = unit_rows(scores[:, :r])
            seeds = np.asarray([starts[member.start] for member in members], np.uint32)
            result = fit_mixtures(
                stacked, present, keys, seeds, self.n_clusters, given.fixed,
                reg=_RIDGE, max_iter=self.max_iter, tol=self.tol,
            )  # fmt: skip
            columns[:, which] = result.labels.T
            for at, (j, r) in enumerate(zip(which, ranks, strict=True)):
                models[j] = Model(mode, power, r, result.coef[at][:, :r], result.intercept[at])
                end = {"objective": float(result.objective[at]), "converged": result.converged[at]}
                rows[j] = given.members[j]._asdict() | {"rank": r} | end
        return [(columns, rows, models)]

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
            f"row {absent[0]} has no counts of terms that {_MIN_ROWS} rows share; found "
            f"{absent.size} such row(s), which say nothing about any cluster; drop them"
        )

    def finish(self, task, result):
        """Find the consensus of the members, and set the fitted attributes."""
        import pandas as pd
        from sklearn.metrics import normalized_mutual_info_score

        (columns, rows, models), fixed = result[0], task.fixed
        # A member without a direction has nothing to say, unless none has.
        told = [j for j in sorted(rows) if rows[j]["rank"] > 0] or [0]
        nothing_left = ""
        if rows[told[0]]["rank"] == 0 and self.n_clusters > 1:
            nothing_left = (
                "no structure is left once the known one is accounted for; got second moments "
                "without a positive eigenvalue; expect no meaning of the clusters"
            )
            columns = np.zeros((len(columns), 1), int) if fixed is None else fixed[:, None]
            columns = np.maximum(columns, 0)
        else:
            columns = columns[:, told]
        self.member_labels_ = columns
        self._models = [models[j] for j in told]
        k = self.n_clusters
        agreed = agree(columns, k, fixed, self.n_init, self.max_iter)
        self.member_centers_ = agreed.centroids
        if self.verbose:
            least = agreed.objective[agreed.best]
            print(f"consensus of {columns.shape[1]}: sum of squares {least:.6g}")
        labels, n_classes = agreed.labels[agreed.best], 0 if fixed is None else fixed.max() + 1
        self._names = np.stack([match(c, labels, k, int(n_classes)) for c in columns.T])
        self._store(
            Restarts(agreed.labels, agreed.objective, agreed.converged),
            membership=votes(columns, self._names),
            trace=agreed.trace,
            n_iter=agreed.n_iter[agreed.best],
            nothing_left=nothing_left,
        )
        hard = np.eye(k)[self.labels_]
        self.cluster_centers_ = row_means(task.x, hard)
        self.agreement_ = self.membership_[np.arange(len(columns)), self.labels_]
        self.members_ = pd.DataFrame([rows[j] for j in told])
        self.members_["agreement"] = [
            normalized_mutual_info_score(self.labels_, column) for column in columns.T
        ]
        slow = int((~self.members_["converged"]).sum())
        if slow:
            warn(
                f"{slow} of {len(told)} mixtures did not converge; got max_iter={self.max_iter}; "
                "raise max_iter or tol",
                ConvergenceWarning,
            )
        return self

    # New rows

    def _columns(self, X, known) -> np.ndarray:
        """Labels (n, members) of new rows."""
        check_is_fitted(self)
        x = self._validate(X, reset=False)
        n = x.shape[0]
        design = self._encoder.transform(known, n)
        damped = self._weighting.damped(x.astype(self._weighting.idf.dtype))
        present = np.diff(damped.indptr) > 0
        columns = np.zeros((n, len(self._models)), np.int64)
        scores = {}
        for (mode, power), view in self._views.items():
            projected = self._weighting.weighted(damped, power) @ view.vectors
            left = projected - predict_effects(view.known, design)
            scores[mode, power] = np.where(present[:, None], left, 0)
        for j, model in enumerate(self._models):
            s = unit_rows(scores[model.mode, model.power][:, : model.rank])
            columns[:, j] = (s @ model.coef.T + model.intercept).argmax(1)
        return columns

    def predict(self, X, *, known=None):
        """Cluster of new rows: the one whose rows get the most similar labels from the members.

        What the fit found in the known groups is removed from the rows, every member places them
        by its mixture, and of the consensus the nearest cluster is taken.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `fit`; required if the model was fitted with it
            Columns that `fit` took by name are taken from a frame ``X`` by themselves.

        Returns
        -------
        ndarray of shape (n_samples,)

        Raises
        ------
        ValueError
            If ``known`` is missing, or holds a group that did not occur in the fit.
        """
        X, known = self._take_out(X, known)
        columns = self._columns(X, known)
        x = stack_indicators(columns, [np.arange(self.n_clusters)] * columns.shape[1])
        return centroid_scores(x, self.member_centers_, self._holds_rows).argmax(1)

    def predict_proba(self, X, *, known=None):
        """Shares of the members that vote for every cluster, as ``membership_`` of new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : as in `fit`; required if the model was fitted with it
            Columns that `fit` took by name are taken from a frame ``X`` by themselves.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        X, known = self._take_out(X, known)
        return votes(self._columns(X, known), self._names)
