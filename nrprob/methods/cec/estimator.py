"""Cross-entropy clustering with partial labels (CEC-IB)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any

import numpy as np
from scipy import sparse
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from nrprob.engines.optimise import solve
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer
from nrprob.estimator.calls import collect, padded, restart_calls
from nrprob.estimator.unconditional import UnconditionalMixin
from nrprob.exceptions import warn
from nrprob.methods.cec.critical import critical_betas
from nrprob.methods.cec.inputs import COVARIANCES, Prepared, check_fixed, prepare_features
from nrprob.methods.cec.solver import STARTS, Objective, numbers_of, solve_cec
from nrprob.settings import standard
from nrprob.statistics.gaussians import Moments, log_normals
from nrprob.statistics.rows import Layout, Rows, arrange, bucket, make_rows

DELETIONS = ("sparing", "always")
SOLVERS = ("batched", "sequential", "anneal")


def _check_init(name: str, value: Any) -> None:
    if isinstance(value, str):
        parameters.Choice(STARTS).check(name, value)
        return
    labels = np.asarray(value)
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise ValueError(
            f"{name} must be one of {STARTS}, or labels; got {value!r:.60}; pass an array of "
            "integers, one for every row"
        )


def _check_covariance(name: str, value: Any) -> None:
    if value is not None:
        check_fixed(name, value)


@dataclass
class LabelledTask:
    """Checked and laid out input of one fit, and its runs.

    Attributes
    ----------
    prepared : the rows as the program takes them, and what was done to them
    fixed : (n,) class of every labelled row as a number, else -1; None where there is no label
    rows, layout : the same as engines take them, and where each of them is there
    calls : the runs
    """

    prepared: Prepared
    fixed: np.ndarray | None
    rows: Rows
    layout: Layout
    calls: list[solve.SolverCall]


@parameters.constructor
class CECIB(UnconditionalMixin, Clusterer):  # type: ignore[misc]
    r"""Cross-entropy clustering with a bottleneck for labels of some rows, some of them wrong.

    Hard normal clusters, of which there need to be but enough to begin with: a cluster costs its
    share of the entropy of the partition Y, and those that do not pay for it, or become too small,
    go. Labels Z steer the clusters without being tied to them: to split a class costs nothing, to
    mix classes does,

    .. math:: E(Y) = H(Y) + \sum_i p_i H(X_i \| \mathcal F) + \beta H(Z|Y)

    with the weights p_i of the clusters among all rows, the least cross-entropy of a cluster with
    a normal distribution of the family F, and the entropy of the labels within clusters, of
    labelled rows alone. Without labels, or with ``beta=0``, it is cross-entropy clustering.

    Parameters
    ----------
    n_clusters : int, default=10
        Number of clusters to begin with; ``n_clusters_`` of them are left.
    beta : float or "critical", default=1.0
        Weight of the labels, from 0 to 1000. At 1, labels that are right keep classes apart; 0.3 to
        0.6 is wiser if many are wrong. "critical" takes the largest that any two classes need in
        order not to be merged, as their labelled rows have it (the source's theorem 4.2), from 0
        to 1.
    covariance : {"full", "diag", "spherical", "fixed"}, default="full"
        Of the clusters; "fixed" is ``fixed_covariance`` for all of them.
    fixed_covariance : float or array-like of shape (n_features,) or (n_features, n_features)
        Variance, variances or covariance, for ``covariance="fixed"``.
    min_cluster_fraction : float, default=0.05
        Share of the rows below which a cluster is given up, from 0 to 0.999. So is one with fewer
        rows than its covariance needs: one more than columns for "full", 2 for "diag" and
        "spherical", 1 for "fixed".
    deletion : {"sparing", "always"}, default="sparing"
        "always" gives up every cluster that is too small, as the source does. "sparing" keeps one
        whose rows would ruin the clusters that take them in, as a few rows do that alone differ in
        a column: they leave it, become too small in turn, and at last all rows are one cluster. It
        counts as ruin if the rows cost the others more than they would in a single cluster of all,
        by two nats for each row of a cluster of average size.
    reg : float, default=1e-3
        Part of the columns' variances that is added to the scatter (not the covariance) of every
        cluster, at most 10**6; it keeps covariances regular. With 0, a start whose clusters are
        singular is an error.
    penalty : {None, "mdl"}, default=None
        "mdl" charges the parameters: half of a logarithm of the rows that each is estimated from.
        Then two clusters also become one where that pays, and there are fewer of them.
    init : {"k-means++", "random"} or array-like of shape (n_samples,), default="k-means++"
        Clusters to start from: those around rows that are far from each other (in units of the
        columns' standard deviations), random ones, or labels from 0 to ``n_clusters`` - 1.
    solver : {"batched", "sequential", "anneal"}, default="batched"
        "batched" moves many rows at once, "sequential" one after the other as the source does;
        both end where no single row would lower the objective. "anneal" begins with a soft
        partition that is cooled down, and goes on as "batched".
    <n_init>
    max_iter : int, default=1000
        Most steps ("batched") or sweeps ("sequential"), or updates at one temperature; at most
        10**6.
    <random_state>
    <verbose>

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of every row, the largest being 0.
    membership_ : ndarray of shape (n_samples, n_clusters_)
        The same as indicators.
    n_clusters_ : int
        Number of clusters found.
    weights_ : ndarray of shape (n_clusters_,)
        Shares of the rows.
    means_ : ndarray of shape (n_clusters_, n_features)
        Means.
    covariances_ : ndarray
        Covariances, with the ridge of ``reg``: (n_clusters_, n_features, n_features) for "full",
        (n_clusters_, n_features), (n_clusters_,) or (n_features, n_features) for "fixed".
    label_counts_ : ndarray of shape (n_clusters_, n_classes)
        Labelled rows of every cluster by class, if there were labels.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels, if there were any. Clusters are not tied to them.
    beta_ : float
        Weight of the labels.
    critical_beta_ : ndarray of shape (n_classes, n_classes)
        Smallest weight at which two classes are not merged, before it is clipped to [0, 1], if
        ``beta="critical"``: below 0 where the features alone keep them apart. NaN on the diagonal.
    objective_ : float
        n E(Y) with ``reg`` and ``penalty``, in nats of the whole data set.
    cost_terms_ : dict
        What it is made of: "model", "entropy" (with the penalty) and, if there were labels,
        "labels", each in nats of the whole data set.
    objective_trace_ : ndarray
        Objective after every step. It rises only where a cluster was given up.
    n_clusters_trace_ : ndarray
        Number of clusters after every step.
    n_iter_ : int
        Steps or sweeps of the best restart.
    <converged_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>

    Notes
    -----
    Nothing charges parameters unless ``penalty`` does: with many restarts, and few rows for each
    cluster, the objective prefers more clusters than there are.

    A cluster without labelled rows pays nothing for labels, and the others by all of their rows:
    one wrong label in a large cluster of few labels weighs much.

    All is computed in float64: what a row changes is too small a part of the objective for float32.

    References
    ----------
    Smieja and Geiger (2017), eq. (4), (10) and theorem 4.2 (14), with a row without a label leaving
    its cluster's entropy to be weighed anew; Tabor and Spurek (2014). Moving many rows at once, the
    ridge, the penalty, the sparing and the annealing are this package's own.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import CECIB
    >>> X = np.concatenate([np.random.default_rng(0).normal(c, 1, (50, 2)) for c in (0, 6, 12)])
    >>> y = np.full(150, -1)
    >>> y[:20], y[-20:] = 0, 1
    >>> CECIB(6, random_state=0).fit(X, y).n_clusters_
    3
    """

    n_clusters: parameters.Clusters = 10
    _: KW_ONLY
    beta: Annotated[float | str, parameters.Number(0, 1000, words=("critical",))] = 1.0
    covariance: Annotated[str, parameters.Choice(COVARIANCES)] = "full"
    fixed_covariance: Annotated[Any, parameters.Checked(_check_covariance)] = None
    min_cluster_fraction: Annotated[float, parameters.Number(0, 0.999)] = 0.05
    deletion: Annotated[str, parameters.Choice(DELETIONS)] = "sparing"
    reg: Annotated[float, parameters.Number(0, 1e6)] = 1e-3
    penalty: Annotated[str | None, parameters.Choice(("mdl",), optional=True)] = None
    init: Annotated[Any, parameters.Checked(_check_init)] = "k-means++"
    solver: Annotated[str, parameters.Choice(SOLVERS)] = "batched"
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 1000
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    _rarely_finite = ("critical_beta_",)
    _fixes_number = False

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        super().check_parameters()
        if (self.covariance == "fixed") != (self.fixed_covariance is not None):
            raise ValueError(
                f"covariance='fixed' and fixed_covariance go together; got {self.covariance!r} and "
                f"{self.fixed_covariance!r:.40}; give both or none"
            )
        if not isinstance(self.init, str) and self.solver == "anneal":
            raise ValueError(
                "an annealing has no place to start from; got solver='anneal' and labels in init; "
                "use solver='batched', or leave init out"
            )
        if self.n_clusters * self.min_cluster_fraction > 1 and self.n_clusters > 1:
            raise ValueError(
                "so many clusters of that size do not fit; got n_clusters="
                f"{self.n_clusters} and min_cluster_fraction={self.min_cluster_fraction}; lower one"
            )

    # Fitting

    def fit(self, X, y=None):  # type: ignore[override]
        """Cluster the rows of ``X``.

        Parameters
        ----------
        X : array-like, JAX array, frame or AnnData of shape (n_samples, n_features)
            All is computed in float64.
        y : array-like of shape (n_samples,), optional
            Partial labels, -1 where unknown. Clusters are not tied to them: a cluster may hold
            several classes, and a class several clusters.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If the data do not fit the parameters; the message says what to change.
        """
        return self._fit(X, y)

    def prepare(self, X, y, known=None) -> LabelledTask:
        """Check the input and lay it out; see `Clusterer.prepare`."""
        X, fixed = self._take_in(X, y)
        n = X.shape[0]
        prepared = prepare_features(
            X, self.covariance, self.fixed_covariance, float(self.reg), self.n_clusters
        )
        layout = arrange(np.zeros(n, int), 1)
        d = prepared.x.shape[1]
        m = bucket(d, 64) if n <= 16384 else d
        columns = np.zeros((n, m))
        columns[:, :d] = prepared.x
        if fixed is not None:
            indicators = fixed[:, None] == np.arange(self.classes_.size)
            columns = np.hstack([columns, indicators.astype(float)])
        rows = make_rows(columns, layout, 1)
        rows = replace(rows, x=Moments(rows.x.x, m, self.covariance))
        self.beta_ = self._beta_of(prepared, fixed)
        needed = {"full": d + 1, "fixed": 1}.get(self.covariance, 2)
        smallest = max(math.ceil(self.min_cluster_fraction * n), needed)
        charged = self.penalty == "mdl"
        given = self._given(n, layout)
        numbers = numbers_of(
            ridge=np.r_[prepared.ridge, np.ones(m - d)],
            dimension=d,
            metric=np.r_[prepared.metric, np.zeros(m - d)],
            total=n,
            parameters=prepared.n_parameters if charged else 0,
            beta=self.beta_,
            smallest=smallest,
            sparing=self.deletion == "sparing",
            joining=charged,
            constant=prepared.constant - (0.5 * math.log(n) if charged else 0),
        )
        settings = solve.make_settings(
            np.dtype(np.float64), n_clusters=self.n_clusters, max_iter=self.max_iter,
            method=numbers, compression=0.0, noise=1e-3, tol=1e-4, cooling=1.15,
        )  # fmt: skip
        k = padded(rows, layout, self.n_clusters)
        static = {
            "build": Objective(self.covariance, fixed is not None),
            "n_clusters": k,
            "solver": self.solver,
            "init": self.init if isinstance(self.init, str) else STARTS[0],
        }
        each = rows.mass.size * k * (12 if self.solver == "anneal" else 5)
        calls = restart_calls(
            solve_cec, static, rows, layout, given, [settings],
            n_init=self.n_init, random_state=self.random_state, each=each,
        )  # fmt: skip
        return LabelledTask(prepared, fixed, rows, layout, calls)

    def _given(self, n: int, layout: Layout) -> np.ndarray | None:
        """Labels (n,) to start from."""
        if isinstance(self.init, str):
            return None
        labels = np.asarray(self.init)
        if labels.shape != (n,) or labels.min() < 0 or labels.max() >= self.n_clusters:
            raise ValueError(
                f"init must hold a label from 0 to {self.n_clusters - 1} for each of {n} rows; "
                f"got shape {labels.shape}; pass other labels, or raise n_clusters"
            )
        return labels.astype(np.int32)

    def _beta_of(self, prepared: Prepared, fixed: np.ndarray | None) -> float:
        if not isinstance(self.beta, str):
            return float(self.beta)
        if fixed is None or np.unique(fixed[fixed >= 0]).size < 2:
            warn(
                "a critical beta needs labels of two classes; got fewer; labels have no say, as "
                "with beta=0"
            )
            return 0.0
        self.critical_beta_ = critical_betas(prepared, fixed, self.covariance)
        largest = float(np.nanmax(self.critical_beta_))
        if largest <= 0:
            warn(
                "the features keep all classes apart by themselves, so that labels have no say; "
                f"got a largest critical beta of {largest:.3g}; set beta to a number to use them"
            )
        return float(np.clip(largest, 0, 1))

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        restarts, best = collect(result, task.layout)
        if not np.isfinite(restarts.objective).any():
            raise ValueError(
                "the clusters of every start are singular; got reg="
                f"{self.reg}; raise reg, lower n_clusters, or leave out columns"
            )
        restarts = restarts._replace(labels=_by_size(restarts.labels))
        labels = restarts.labels[restarts.objective.argmin()]
        k = int(labels.max()) + 1
        terms = ("model", "entropy", "labels")
        values = np.asarray(best.fit.values)
        self.cost_terms_ = {n: float(v) for n, v in zip(terms, values, strict=False)}
        active = np.asarray(best.fit.active)
        self.n_clusters_trace_ = active[~np.isnan(active)].astype(int)
        self._describe(task, labels, k)
        self._store(
            restarts,
            membership=np.eye(k)[labels],
            trace=np.asarray(best.trace),
            n_iter=int(best.n_iter),
            nothing_left=task.prepared.nothing,
        )
        return self

    def _describe(self, task: LabelledTask, labels: np.ndarray, k: int) -> None:
        """Set the clusters' parameters."""
        prepared, member = task.prepared, np.eye(k)[labels]
        sizes = member.sum(0)
        self.weights_ = sizes / sizes.sum()
        means = member.T @ prepared.x / sizes[:, None]
        self._means = means
        self._roots, covariances = prepared.spreads(labels, means, self.covariance)
        self._prepared = replace(prepared, x=prepared.x[:0])
        self.means_ = prepared.means(means)
        self.covariances_ = prepared.covariances(covariances, self.covariance)
        if task.fixed is not None:
            classes = (task.fixed[:, None] == np.arange(self.classes_.size)).astype(float)
            self.label_counts_ = (member.T @ classes).astype(int)

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        check_is_fitted(self)
        with standard():
            x = self._prepared.transform(self._validate(X, reset=False))
        constant = np.log(self.weights_) + self._prepared.log_density
        return constant + log_normals(x, self._means, self._roots)

    def predict_proba(self, X):  # type: ignore[override]
        """p(cluster given row) of new rows, by the weights and densities of the clusters.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_clusters_)
        """
        return softmax(self._log_membership(*self._take_out(X, None)), axis=1)

    def score(self, X, y=None):
        r"""Mean over new rows of the largest ``log p_i f_i(x)``: minus what they add to E, per row.

        Parameters
        ----------
        X : array-like or JAX array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        float
            In nats per row; higher is better.
        """
        return float(self._log_membership(*self._take_out(X, None)).max(1).mean())

    def _validate(self, X, *, reset: bool):
        if sparse.issparse(X):
            raise ValueError(
                "normal clusters cannot take sparse X; got a sparse matrix; pass a dense array, or "
                "use MixtureEM with features='multinomial' or 'bernoulli'"
            )
        return super()._validate(X, reset=reset).astype(np.float64)


def _by_size(labels: np.ndarray) -> np.ndarray:
    """Labels (S, n) in which every restart's clusters are numbered by falling size."""
    orders = (np.argsort(-np.bincount(one), kind="stable") for one in labels)
    return np.stack([np.argsort(order)[one] for order, one in zip(orders, labels, strict=True)])
