"""Cross-partition clustering: themes that several subsets of the rows share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import jax
import numpy as np
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from nrprob.data.labels import some
from nrprob.data.validation import check_random_state
from nrprob.engines.optimise import limit_cycles, splitting
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer, Restarts, read_labels
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.paths import granularities, trials_frame, verdict
from nrprob.exceptions import short_repr, warn
from nrprob.information import mutual_information
from nrprob.methods.crosspartition.cycle import TERMS, Counts, Cycle, Fields, fields
from nrprob.methods.crosspartition.inputs import (
    Subsets,
    read_counts,
    read_subsets,
    warn_of_subsets,
)
from nrprob.settings import standard
from nrprob.statistics.rows import Layout, make_layout, make_rows, padded_count

# variant -> whether p*(c) enters the features' step, and p(c) the rows'.
VARIANTS = {
    "CP": Cycle(False, False),
    "I": Cycle(True, False),
    "II": Cycle(False, True),
    "III": Cycle(True, True),
}


@dataclass
class SubsetTask:
    """Checked and laid out input of one fit; nothing of it is compiled ahead.

    Attributes
    ----------
    rows : (n, m) p(y|x)
    mass : (n,) p(x)
    subsets : the given grouping
    counts, layout : the same as the engine takes it, and where each row is there
    """

    rows: Any
    mass: np.ndarray
    subsets: Subsets
    counts: Counts
    layout: Layout
    calls: tuple = ()


@parameters.constructor
class CrossPartition(Clusterer):
    r"""Cross-partition clustering: the themes that several subsets of the rows have in common.

    The rows are counts, and come from subsets w (corpora, years, sources, batches) that differ more
    from each other than their themes do. A cycle of four steps looks for clusters c that are
    carried by the same features y in all subsets:

    .. math::
        p(y|c,w) &= \textstyle\sum_x p(x|c,w)\, p(y|x) \\
        p^*(c|y) &\propto \textstyle\prod_w p(y|c,w)^{\eta\, p(w)} \\
        p^*(y|c) &= p(y)\, p^*(c|y) / p^*(c) \\
        p(c|x) &\propto \textstyle\prod_y p^*(y|c)^{\beta\, p(y|x)}

    A geometric mean is small where one of its factors is: a feature belongs to a cluster only as
    far as it does in every subset. A subset that lacks a feature altogether says nothing about it.

    The path begins with one cluster. The largest is doubled, beta is raised to where a difference
    between the copies grows, and so on until there are ``n_clusters``; ``path_`` has all levels.

    Every step lowers a term of its own, but there is no common objective: the update need not
    converge. Where it loops, no iterate is returned as if it were a solution; beta is raised until
    the clusters split and stay. A path that ends early is reported by ``status_`` and a warning.

    Parameters
    ----------
    <n_clusters>
    variant : {"CP", "I", "II", "III"}, default="CP"
        Where priors enter, which let clusters be of more unequal sizes: in no step, p*(c) in that
        of the features ("I"), p(c) in that of the rows ("II"), or both ("III").
    eta : float, default=0.6
        How sharply features are told apart, from 1e-3 to 100. Too high a value makes clusters
        vanish: halve it where that happens.
    smoothing : float, default=0
        Share l of its subset's profile p(y|w) in every row, from 0 to 1: all p(y|x) above stand for
        (1 - l) p(y|x) + l p(y|w). With none, a feature that a cluster lacks in one subset is kept
        out of it in all, however often it occurs in the others; rows of few counts lack most
        features, and their clusters vanish. Then try 0.1 to 0.3.
    row_weights : {"counts", "equal"}, default="counts"
        Weights p(x) of the rows: their shares of all counts, or the same for all.
    damped : bool, default=False
        Where the update loops, try again with steps of half the length, down to 1/64. They have the
        same fixed points, and reach those that the whole steps only circle: as long as the real
        part of beta times the eigenvalue (see ``trials_``) is below 1, at which copies merge.
        Beyond, there is a loop still, which is reported, and beta is raised.
    growth : float, default=1.07
        Ratio of successive inverse temperatures where a split is possible but does not come about,
        from 1.001 to 10.
    n_init : int, default=1
        Number of restarts, at most 10**6. The first splits along what grows fastest, and leaves
        nothing to chance; the others at random.
    max_iter : int, default=3000
        Most cycles at one inverse temperature; at most 10**6.
    tol : float, default=1e-7
        Change of memberships in a cycle below which it has converged, from 0 to 1.
    random_state : int, RandomState instance or None, default=None
        Determines the splits of all restarts but the first.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        p(c|x); rows sum to 1. Clusters are sorted by weight, and those that were not reached are 0.
    <n_clusters_>
    cluster_weights_ : ndarray of shape (n_clusters,)
        p(c), the weight of the rows of every cluster.
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        p*(y|c); p(y) for a cluster that was not reached.
    subset_cluster_centers_ : ndarray of shape (n_clusters, n_subsets, n_features)
        p(y|c,w), smoothed as the rows are; p(y|w) for a cluster that was not reached.
    feature_membership_ : ndarray of shape (n_features, n_clusters)
        p*(c|y); NaN for features without counts.
    subset_membership_ : ndarray of shape (n_subsets, n_clusters)
        p(c|w).
    subsets_ : ndarray of shape (n_subsets,)
        Names of the subsets.
    empty_cells_ : list of (cluster, subset)
        Clusters that a subset has no part of: they do not cut across.
    path_ : list of Granularity
        Every level from 1 cluster to ``n_clusters``, with its ``beta``, ``critical_beta``,
        ``membership`` p(c|x), ``weights`` p(c), ``labels``, and ``parents`` (of every cluster, the
        one of the level before that it came from).
    trials_ : pandas.DataFrame
        A row for every inverse temperature that was tried: ``n_clusters``, ``beta``, ``status``
        ("split", "merged", "vanished", "oscillating" or "max_iter"), ``step`` (below 1 if damped),
        ``growth`` of a difference of the copies in a cycle, ``eigenvalue`` of the linearised update
        (copies separate, or loop if it is complex or negative, from 1 / abs(eigenvalue) on),
        ``period`` and ``width`` (largest range of a membership) of a loop, and ``n_iter``.
    status_ : str
        "converged", or why there are fewer clusters: "oscillating", "vanished", "merged" or
        "max_iter".
    looped_ : bool
        Whether the update looped at some inverse temperature.
    objective_ : float
        -n I(C;Y) of the last level: a yardstick by which restarts are compared, after their numbers
        of clusters. It is not what the update minimises, for it minimises nothing.
    objective_trace_ : ndarray
        The same of every level.
    term_trace_ : pandas.DataFrame
        The four terms, each of which one step lowers, in every cycle (of at most 4,096) that led to
        the last level. As the others change too, they are not monotone.
    n_iter_ : int
        Cycles, over all levels.
    converged_ : bool
        False if the path ended where ``max_iter`` was reached.
    beta_ : float
        Inverse temperature at the end.
    critical_beta_ : float
        That of the first split, 1 / abs(eigenvalue); infinite where there is nothing to split.
    restarts_ : xarray.Dataset
        Labels, objective and convergence of all restarts; the objective is infinite of those with
        fewer clusters than another.
    <n_features_in_>
    <feature_names_in_>

    Notes
    -----
    All is computed in float64, whatever ``X`` is: tiny probabilities are raised to small powers,
    and those that underflow would decide the result. Only the product of beta and ``eta`` matters
    for the first split.

    Features that occur in one subset only can carry a cluster of their own; see ``empty_cells_``.
    Leave them out rather than smooth the counts.

    References
    ----------
    Marx, PhD thesis, chapter 5, with the signs of its terms corrected; "II" is that of Dagan, Marx
    and Shamir (2002), "III" that of Marx, Dagan and Shamir (2003). The search for critical inverse
    temperatures, the tests for loops, and damping are this package's own.

    Examples
    --------
    >>> from nrprob import CrossPartition
    >>> from nrprob.datasets import make_cross_partition
    >>> X, labels = make_cross_partition(random_state=0)
    >>> model = CrossPartition(5).fit(X, subsets=labels[:, 1])
    >>> model.n_clusters_, model.status_
    (5, 'converged')
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    variant: Annotated[str, parameters.Choice(tuple(VARIANTS))] = "CP"
    eta: Annotated[float, parameters.Number(1e-3, 100)] = 0.6
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
    )
    _rarely_finite = ("feature_membership_", "critical_beta_")
    _unit = "the path of splits"

    # Fitting

    def fit(self, X, y=None, *, subsets=None):  # type: ignore[override]
        """Find the themes that the subsets of the rows share.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            Counts, or other weights that are not negative. All is computed in float64.
        y : array-like of shape (n_samples,), optional
            Present for the sake of pipelines: labels, which are ignored.
        subsets : array-like of shape (n_samples,) or (n_samples, n_subsets)
            Subset of every row, by a label of any type, or probabilities p(w|x). None takes all
            rows as one subset, with a warning.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y, subsets=subsets)

    def prepare(self, X, y, *, subsets=None) -> SubsetTask:  # type: ignore[override]
        """Check the input and lay it out; see `Clusterer.prepare`."""
        X, _ = self._take_in(X, None)
        if y is not None:
            read_labels(y, X.shape[0])
        given = read_subsets(subsets, X.shape[0])
        rows, totals = read_counts(X)
        if not totals.any():
            raise ValueError("X must hold counts; got zeros only; pass rows that have some")
        mass = totals if self.row_weights == "counts" else (totals > 0).astype(float)
        mass = mass / mass.sum()
        empty = given.share.T @ mass == 0
        if empty.any():
            raise ValueError(
                "every subset needs counts; got none in subset "
                f"{given.names[empty].tolist()[0]!r}; leave its rows out"
            )
        warn_of_subsets(rows, mass, given, subsets is not None, self.n_clusters)
        design, share = given.design, given.design.memberships
        n_groups = padded_count(design.n_groups, rows.size)
        if share is not None:
            share = np.pad(share, ((0, 0), (0, n_groups - design.n_groups)))
        layout = make_layout(design.codes, n_groups if share is None else 1)
        laid_out = make_rows(rows, layout, n_groups, share=share, mass=mass)
        counts = Counts(laid_out, np.asarray(float(self.eta)), np.asarray(float(self.smoothing)))
        return SubsetTask(rows, mass, given, counts, layout)

    def compute(self, task):
        """Follow the path from every start; see `Clusterer.compute`."""
        cycle, random = VARIANTS[self.variant], check_random_state(self.random_state)
        rows = task.counts.rows
        width = padded_count(self.n_clusters, task.layout.n_slots * rows.x.n_statistics)
        seeds = [None, *(int(random.randint(2**31 - 1)) for _ in range(self.n_init - 1))]
        return [
            splitting.follow_path(
                cycle,
                task.counts,
                rows.mass,
                np.zeros((1, width)),
                splitting.SplittingSchedule(
                    self.n_clusters, float(self.growth), float(self.tol), int(self.max_iter),
                    damped=bool(self.damped), seed=seed,
                ),
                width,
                self._report,
            )
            for seed in seeds
        ]  # fmt: skip

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
        read = [granularities(path, task.layout, task.mass) for path in result]
        traces = [
            np.array([-n * _information(task, level.membership) for level in levels])
            for levels, _ in read
        ]
        most = max(len(path.levels) for path in result)
        objective = np.array([t[-1] if t.size == most else np.inf for t in traces])
        best = int(np.argmin(objective))
        path, (self.path_, order) = result[best], read[best]
        self.status_, reason = verdict(path)
        active = np.arange(path.levels[-1].carry[1].shape[-1]) < most
        told = fields(task.counts, active, path.levels[-1].carry, cycle=VARIANTS[self.variant])
        self._keep(task, jax.device_get(told), order)
        self.trials_ = trials_frame(path)
        self.looped_ = any(trial.status == limit_cycles.OSCILLATING for trial in path.trials)
        self.term_trace_ = pd.DataFrame(path.levels[-1].values, columns=TERMS)
        self.beta_ = self.path_[-1].beta
        self.critical_beta_ = self.path_[1].critical_beta if most > 1 else _critical(path)
        membership = np.zeros((n, k))
        membership[:, :most] = self.path_[-1].membership
        self._store(
            Restarts(
                np.stack([levels[-1].labels for levels, _ in read]),
                objective,
                np.array([verdict(path)[0] != limit_cycles.UNFINISHED for path in result]),
            ),
            membership=membership,
            trace=traces[best],
            n_iter=max(sum(trial.n_iter for trial in path.trials), 1),
            nothing_left=reason,
        )
        self._tell_empty_cells()
        return self

    def _keep(self, task: SubsetTask, told: Fields, order: np.ndarray) -> None:
        """Keep the distributions of the last level; ``told`` has their logs, for all columns."""
        m, k = task.rows.shape[1], self.n_clusters
        last, share = self.path_[-1], task.subsets.share
        joint = (share * task.mass[:, None]).T @ task.rows
        weights = share.T @ task.mass
        p_y = np.asarray(joint.sum(0)).ravel()
        occurs = p_y > 0
        result = last.n_clusters

        self._log_centroid = np.where(occurs, told.centroid[:m, 0, order].T, -np.inf)
        self._log_prior = np.log(np.maximum(last.weights, 1e-300))
        self.cluster_weights_ = np.pad(last.weights, (0, k - result))
        self._profiles = joint / weights[:, None]
        self.cluster_centers_ = np.tile(p_y, (k, 1))
        self.cluster_centers_[:result] = np.exp(self._log_centroid)
        self.subset_cluster_centers_ = np.tile(self._profiles, (k, 1, 1))
        projected = np.moveaxis(told.projected[: len(weights), :m, 0, order], -1, 1)
        projected = np.where(joint[:, None] > 0, projected, -np.inf)
        self.subset_cluster_centers_[:result] = np.exp(projected).swapaxes(0, 1)
        self.feature_membership_ = np.zeros((m, k))
        self.feature_membership_[:, :result] = np.exp(told.feature[:m, 0, order])
        self.feature_membership_[~occurs] = np.nan
        self.subsets_ = task.subsets.names
        cells = (share * task.mass[:, None]).T @ last.membership / weights[:, None]
        self.subset_membership_ = np.pad(cells, ((0, 0), (0, k - result)))
        self.empty_cells_ = [
            (int(c), self.subsets_.tolist()[w]) for c, w in np.argwhere(cells.T < splitting.NOTHING)
        ]
        self._feature_weights = p_y
        self._subset_share = share

    def _tell_empty_cells(self) -> None:
        if self.empty_cells_:
            c, w = self.empty_cells_[0]
            self._degenerate(
                f"{len(self.empty_cells_)} cell(s) are empty, so that clusters do not cut across "
                f"all subsets; cluster {c} has nothing of subset {w!r}; leave out features that "
                "few subsets have, or see path_ for fewer clusters"
            )

    # Reading the result

    def top_samples(self, cluster, subset, n=10):
        """Rows of one subset that belong most to a cluster.

        Parameters
        ----------
        cluster : int
        subset : object
            One of ``subsets_``.
        n : int, default=10
            Most rows to return.

        Returns
        -------
        ndarray of shape (at most n,)
            Numbers of rows, by falling p(c|x) p(w|x); of soft subsets, only rows with a part in it.

        Raises
        ------
        ValueError
            If there is no such cluster or subset.
        """
        self._check_cluster(cluster, n)
        names = self.subsets_.tolist()
        if not isinstance(subset, Hashable) or subset not in names:
            raise ValueError(
                f"there is no such subset; got {short_repr(subset)}; choose one of {some(names)}"
            )
        part = self._subset_share[:, names.index(subset)]
        order = np.argsort(-self.membership_[:, cluster] * part, kind="stable")
        return order[part[order] > 0][:n]

    def top_features(self, cluster, n=10, *, min_share=None):
        """Features that belong most to a cluster, in all subsets.

        Parameters
        ----------
        cluster : int
        n : int, default=10
            Most features to return.
        min_share : float, optional
            Least share p(y) of all counts: a rare feature belongs to some cluster almost wholly.
            By default, half of what features have on average.

        Returns
        -------
        ndarray of shape (at most n,)
            Names of features if the columns had names, else numbers, by falling p*(c|y).

        Raises
        ------
        ValueError
            If there is no such cluster, or ``min_share`` is no share.
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
        self._check_number("cluster", cluster, low=0, high=self.n_clusters - 1, integer=True)
        self._check_number("n", n, low=1, high=2**31 - 1, integer=True)

    # New rows

    def _log_membership(self, X, subsets) -> np.ndarray:
        check_is_fitted(self)
        with standard():
            rows, totals = read_counts(self._validate(X, reset=False))
        seen = self._feature_weights > 0
        strange = np.asarray(rows[:, ~seen].sum(1)).ravel() > 0
        if strange.any():
            warn(
                f"{strange.sum()} new row(s) have features without counts in the fit; got "
                f"{(~seen).sum()} such features; they are ignored"
            )
        log_centroid = np.where(seen, self._log_centroid, 0).T
        log_r = rows @ log_centroid
        if self.smoothing:
            smooth = self._profiles_of(subsets, len(totals)) @ log_centroid
            log_r = (1 - self.smoothing) * log_r + self.smoothing * smooth
        log_r = self.beta_ * log_r
        if VARIANTS[self.variant].row_prior:
            log_r = log_r + self._log_prior
        log_r[totals == 0] = self._log_prior
        missing = self.n_clusters - log_r.shape[1]
        return np.pad(log_r, ((0, 0), (0, missing)), constant_values=-np.inf)

    def _profiles_of(self, subsets: Any, n: int) -> np.ndarray:
        """p(y|w) of the subsets of new rows, p(y) for those that the fit had not."""
        if subsets is None:
            return np.tile(self._feature_weights, (n, 1))
        given = read_subsets(subsets, n)
        known = dict(zip(self.subsets_.tolist(), self._profiles, strict=True))
        names = given.names.tolist()
        return given.share @ np.stack([known.get(w, self._feature_weights) for w in names])

    def predict(self, X, *, subsets=None):  # type: ignore[override]
        """Cluster of new rows, of whatever subset.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        subsets : array-like of shape (n_samples,) or (n_samples, n_subsets), optional
            Rows are told by their features alone, unless the fit smoothed them: then p(y|w) of
            their subset enters, or p(y) where it is not given or not one of ``subsets_``.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return self._log_membership(*self._take_out(X, subsets)).argmax(1)

    def predict_proba(self, X, *, subsets=None):  # type: ignore[override]
        """p(cluster given row) of new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        subsets : array-like of shape (n_samples,) or (n_samples, n_subsets), optional
            As in `predict`.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return softmax(self._log_membership(*self._take_out(X, subsets)), axis=1)


def _information(task: SubsetTask, membership: np.ndarray) -> float:
    """I(C;Y) in nats."""
    joint = (task.mass[:, None] * membership).T @ task.rows
    return mutual_information(joint / joint.sum())


def _critical(path: splitting.Path) -> float:
    """Inverse temperature of the first split where none was reached."""
    sizes = [abs(trial.eigenvalue) for trial in path.trials]
    return 1 / sizes[0] if sizes and sizes[0] > splitting.ROUNDING else np.inf
