"""Constrained model-based clustering: a Bernoulli mixture with a penalty on I(C;Z)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Annotated, Any

import numpy as np
from scipy import sparse

from nrprob.engines.optimise import solve
from nrprob.estimator import parameters
from nrprob.estimator.base import Renamed
from nrprob.estimator.calls import collect, memberships, restart_calls
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.linear import LinearClusterer, ScoreMixin, Task
from nrprob.exceptions import warn
from nrprob.known import Groups, Known, Memberships, read
from nrprob.methods.cmbc.penalty import FORMS, make_penalty
from nrprob.methods.cmbc.solver import CAPACITY, Numbers, solve_cmbc
from nrprob.methods.cmbc.updates import UPDATES
from nrprob.metrics import independence_test
from nrprob.statistics.families import fit_features
from nrprob.statistics.features import raise_where
from nrprob.statistics.rows import active_mask

__all__ = ["CMBC", "gamma_to_strength", "strength_to_gamma"]

GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of strength="auto"
FALLBACK = 2.0
_SYSTEM = 300  # products that a value of what is known counts as, in systems of K S equations


def gamma_to_strength(gamma: float, n_features: int) -> float:
    r"""Strength that equals the thesis's weight gamma of the penalty.

    .. math:: c = \frac{\gamma}{(1 - \gamma) M^2}

    Parameters
    ----------
    gamma : float
        In [0, 1).
    n_features : int
        M. The values of gamma near 1 that are in print suit M = 1, whatever the data: they belong
        to a penalty whose sum over features was not divided by their number.
    """
    return gamma / ((1 - gamma) * n_features**2)


def strength_to_gamma(strength: float, n_features: int) -> float:
    r"""Invert `gamma_to_strength`.

    .. math:: \gamma = \frac{c M^2}{1 + c M^2}
    """
    weight = strength * n_features**2
    return weight / (1 + weight)


@parameters.constructor
class CMBC(ScoreMixin, LinearClusterer):
    r"""Constrained model-based clustering: a Bernoulli mixture that is not the known structure.

    Minimises, in nats of the whole data set of n rows with M binary features,

    .. math:: -\sum_i \log \frac{1}{K} \sum_k p(y_i|\theta_k) + c\, n M^2 P(\theta), \qquad
        p(y|\theta_k) = \prod_j \theta_{kj}^{y_j} (1 - \theta_{kj})^{1 - y_j}

    where the penalty P stands for the information I(C;Z), in nats, that the clusters carry about
    the known structure Z. In the model p(c) = 1/K and p(z|y) is the mean over features of the
    observed p(z|y_j), so that p(z|c_k) is linear in theta_k.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, K.
    strength : float or "auto", default=2.0
        The weight c, at most 10**6. It has no unit: whatever M, n and K, c = 1 is where the part of
        the features' correlations that Z explains linearly drops out of the mixture's own dynamics
        (with form="chi2"), and larger values push clusters actively away from Z. 0 is the Bernoulli
        mixture with uniform weights. The thesis's gamma is c M^2 / (1 + c M^2), see
        `gamma_to_strength`. "auto" fits c = 0.25, 0.5, 1, 2, 4, 8 and takes the smallest that
        leaves K clusters which a G test at 5 % cannot tell from independent of Z, else 2 with a
        warning.
    form : {"chi2", "balanced", "pairs", "printed"}, default="chi2"
        The quadratic form P. "chi2" is the second-order expansion of I(C;Z) at independence.
        The others follow from chords of the entropy: "printed" with the thesis's constants, which
        reward a common mean of the clusters that is away from the data's and fail with many
        features; "pairs" with the constant that suits the number of (cluster, z) cells; "balanced"
        without the part that depends on the common mean.
    update : {"joint", "batch", "partial", "exact"}, default="joint"
        M-step. "joint" solves for all parameters at once. "batch" and "partial" are the thesis's
        coordinate updates (CMBC-bu, CMBC-pm), one pass over the parameters per E-step and one
        E-step per parameter; with many features they take many more iterations, and without
        annealing they depend on the start. "exact" goes on from the joint solution with I(C;Z)
        itself for P, by gradient steps, and keeps the better of the two.
    anneal : bool, default=True
        Start from identical clusters, but for a perturbation, at 1.2 times the critical
        temperature, and halve it until 1 (daCMBC). Else, or where the critical temperature is so
        low that this is below 1, start from random parameters at 1.
    multi : {"product", "additive"}, default="product"
        How several known labelings combine: "product" avoids every combination that occurs,
        "additive" adds the penalties of the labelings and suits many of them.
    binarize : float, optional
        Threshold above which a feature counts as 1. None takes features 0 and 1 only.
    n_init : int, default=10
        Number of restarts, at most 10**6; the best by objective is kept.
    max_iter : int, default=200
        Most EM iterations per temperature; ten times as many at the last.
    tol : float, default=1e-6
        Change of the objective, in nats per row, below which a temperature has converged; a
        hundredth of it at the last.
    random_state : int, RandomState instance or None, default=None
        Determines starts and perturbations.
    verbose : int, default=0
        Whether to print progress.

    Attributes
    ----------
    means_ : ndarray of shape (n_clusters, n_features)
        Probability of a 1.
    strength_ : float
        The c that was used.
    log_likelihood_ : float
        Of all rows, in nats.
    penalty_ : float
        P, in nats; ``objective_`` is ``strength_ * n * M**2 * penalty_ - log_likelihood_``. With
        form="chi2" or "balanced" it is 0 exactly where all clusters have the same p(z|c), with the
        others where they all have p(z).
    redundancy_ : nrprob.metrics.IndependenceTest or None
        Information between ``labels_`` and the known structure, and the G test of independence.
        With multi="additive" that of the labeling with the smallest p-value, which is multiplied by
        the number of labelings. None without known structure.
    critical_temperature_ : float
        Temperature below which identical clusters separate.
    temperatures_ : ndarray
        Temperature of every entry of ``objective_trace_``.
    strength_path_ : pandas.DataFrame
        With strength="auto": strength, objective, log-likelihood, information and p-value of the
        G test, and number of clusters.
    <labels_>
    <membership_>
    <n_clusters_>
    <objective_>
    objective_trace_ : ndarray
        Objective of the best restart after every step. Within one temperature it never rises, but
        for update="exact", whose trace is that of the gradient steps.
    <n_iter_>
    <converged_>
    <beta_>
    <critical_beta_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    References
    ----------
    Gondek (2005), "Non-redundant clustering", chapter 5: objective (5.1.8), M-step (5.1.39) and
    appendix B.4, with their errata corrected. The joint M-step, the scale of ``strength``, its
    automatic choice and the forms other than "printed" are this package's own.

    Examples
    --------
    >>> from nrprob.datasets import make_binary_partitions
    >>> from nrprob import CMBC
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> model = CMBC(2, random_state=0).fit(X, known=labels[:, 0])
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    strength: Annotated[Any, parameters.Number(0, 1e6, words=("auto",))] = 2.0
    form: Annotated[str, parameters.Choice(FORMS)] = "chi2"
    update: Annotated[str, parameters.Choice(UPDATES)] = "joint"
    anneal: parameters.Flag = True
    multi: Annotated[str, parameters.Choice(("product", "additive", "sum"))] = "product"
    binarize: parameters.Threshold = None
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 200
    tol: parameters.Tolerance = 1e-6
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(sparse=True)
    theta_ = Renamed("means_")

    @property
    def _takes_sparse(self) -> bool:
        return self.update != "partial"

    # Parameters and input

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        super().check_parameters()
        if self.multi == "sum":
            warn("multi='sum' is called 'additive' now; the old word goes", FutureWarning)
        if self.form == "printed" and self.update in ("joint", "exact"):
            raise ValueError(
                "form='printed' is not concave in all parameters together; got "
                f"update={self.update!r}; use update='batch' or 'partial', or another form"
            )

    def _validate(self, X, *, reset: bool):
        X = super()._validate(X, reset=reset)
        if self.binarize is None:
            raise_where(
                X,
                lambda v: (v != 0) & (v != 1),
                "CMBC needs binary features",
                "set binarize= to a threshold, or use another estimator",
            )
        return X

    def _fit_features(self, X):
        return fit_features(X, "bernoulli", self.binarize)

    def prepare(self, X, y, known=None) -> Task:
        """Check the input and lay it out; see `Clusterer.prepare`."""
        self.check_parameters()
        if isinstance(known, Memberships):
            raise ValueError(
                "CMBC needs known labels; got soft Memberships; pass hard labels instead"
            )
        # The rows need no order: the known structure enters through tables only.
        task = self._read(X, y, None)
        if self.update == "partial" and (sparse.issparse(task.x) or task.mesh is not None):
            raise ValueError(
                "update='partial' walks through the columns of X; got sparse or sharded rows; "
                "use another update, or pass a dense array"
            )
        task.lay_out()
        n, m = task.x.shape
        task.known = read(known, n)
        task.groups = task.known.groups
        task.labelings = self._labelings(task.known)
        for codes in task.labelings:
            sizes = np.bincount(codes)
            # Single rows are no trouble here, unless all are.
            if sizes.min() > 1 or sizes.max() == 1 or sizes.size == 1:
                self._check_groups(Groups(codes, sizes.size), task.known)
        width, n_values = task.rows.x.n_statistics, sum(codes.max() + 1 for codes in task.labelings)
        active = active_mask(self.n_clusters, max(task.layout.n_slots * width, n_values * _SYSTEM))
        tables = make_penalty(task.x, task.labelings, self.form, self.n_clusters, width, active)
        strengths: tuple[float, ...] = (self.strength,)
        if self.strength == "auto":
            strengths = GRID if task.labelings else (FALLBACK,)
        dtype = task.x.dtype
        task.settings = [
            Numbers(
                n_features=np.asarray(m, np.int32),
                max_iter=np.asarray(self.max_iter, np.int32),
                tol=np.asarray(self.tol, dtype),
                anneal=np.asarray(bool(self.anneal)),
                strength=np.asarray(strength, dtype),
                tables=tables.astype(dtype),
            )
            for strength in strengths
        ]
        task.share()
        rows, k = task.rows, self.n_clusters if active is None else active.size
        each = 5 * k * rows.mass.size // task.layout.n_shards
        each += 12 * k * rows.x.n_statistics + 4 * (k * tables.spread.size) ** 2 + 2 * CAPACITY
        task.calls = restart_calls(
            solve_cmbc, {"n_clusters": k, "update": self.update}, rows, task.layout, task.fixed,
            task.settings, n_init=self.n_init, random_state=self.random_state, each=each,
            factorises=True,
        )  # fmt: skip
        return task

    def _labelings(self, known: Known) -> list[np.ndarray]:
        """Codes of what is to be avoided."""
        groups, n = known.groups, known.n_samples
        if known.kind == "nothing":
            return []
        if np.asarray(known.given).dtype.kind == "f" and n / 2 < groups.n_groups < n:
            raise ValueError(
                f"CMBC takes labels or binary columns as known; got {groups.n_groups} different "
                f"numbers in {n} rows; cut them into groups"
            )
        if self.multi != "product":
            return list(known.labelings.T)
        if known.labelings.shape[1] > 1 and groups.n_groups > n / 20:
            warn(
                f"known has {groups.n_groups} combinations of labels in {n} rows, too many for "
                "their probabilities to be known; consider multi='additive'"
            )
        return [groups.codes]

    # Results

    def finish(self, task, result):
        """Choose the strength and set the fitted attributes; see `Clusterer.finish`."""
        groups: dict[float, list[solve.Solution]] = {}
        for call, solution in zip(task.calls, result, strict=True):
            groups.setdefault(float(call.arrays[1].strength), []).append(solution)
        self.strength_ = next(iter(groups))
        if len(groups) > 1:
            self.strength_ = self._choose(task, groups)
        restarts, best = collect(groups[self.strength_], task.layout)
        m, k, fit = task.x.shape[1], self.n_clusters, best.fit
        self._keep_costs(fit.slope[:, :k], np.zeros(k), m, beta=1.0, critical=fit.critical_beta)
        self.log_likelihood_, self.penalty_ = float(fit.log_likelihood), float(fit.penalty)
        self.means_ = np.asarray(fit.theta[:k, :m], np.float64)
        self.temperatures_ = fit.temperature[~np.isnan(fit.temperature)].astype(float)
        self.critical_temperature_ = 1 / self.critical_beta_
        self._store(
            restarts,
            membership=memberships(best, task.layout, k),
            trace=best.trace,
            n_iter=best.n_iter,
            nothing_left=self._nothing_left(task.groups.n_groups > 1),
        )
        self.redundancy_ = _redundancy(self.labels_, task.labelings)
        return self

    def _choose(self, task: Task, groups: dict[float, list[solve.Solution]]) -> float:
        """Return the smallest strength whose labels are independent of what is known."""
        import pandas as pd

        path = []
        for strength, solutions in groups.items():
            best = min(solutions, key=lambda c: c.objective.min())
            labels = task.layout.from_blocks(best.labels)[:, int(best.objective.argmin())]
            test = _redundancy(labels, task.labelings)
            path.append(
                {
                    "strength": strength,
                    "objective": float(best.objective.min()),
                    "log_likelihood": float(best.fit.log_likelihood),
                    "information": test.information,
                    "p_value": test.p_chi2,
                    "n_clusters": np.unique(labels).size,
                }
            )
        self.strength_path_ = pd.DataFrame(path)
        table = self.strength_path_
        passed = table[(table.p_value >= 0.05) & (table.n_clusters == self.n_clusters)]
        if len(passed):
            return float(passed.strength.iloc[0])
        warn(
            "no strength gave clusters that are independent of known, so the structures may be "
            f"correlated; tried {', '.join(f'{c:g}' for c in table.strength)}; "
            f"strength={FALLBACK:g} is used"
        )
        return FALLBACK

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        return super()._log_membership(X, None)

    def _row_scores(self, X, known) -> np.ndarray:
        return super()._row_scores(X, None)

    def score(self, X, y=None, *, known=None):
        r"""Mean log likelihood of new rows; higher is better.

        .. math:: \frac{1}{n} \sum_i \log \frac{1}{K} \sum_k p(y_i|\theta_k)

        ``log_likelihood_ / n`` of the rows of the fit. It says nothing about the penalty, so it
        compares numbers of clusters, but not strengths.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        y : ignored
        known : ignored
            The clusters of this model say nothing about the known structure.

        Returns
        -------
        float
            In nats per row.
        """
        return super().score(X, known=known)

    def predict(self, X, *, known=None):
        """Cluster of new rows: the one under which they are most probable.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : ignored
            The clusters of this model say nothing about the known structure.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)

    def predict_proba(self, X, *, known=None):
        """p(cluster given row) of new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : ignored
            The clusters of this model say nothing about the known structure.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return super().predict_proba(X, known=known)


def _redundancy(labels: np.ndarray, labelings: list[np.ndarray]) -> Any:
    """Test of independence of the most dependent of the labelings, corrected for their number."""
    if not labelings:
        return None
    tests = [independence_test(labels, codes, n_permutations=0) for codes in labelings]
    worst = min(tests, key=lambda t: t.p_chi2)
    return worst._replace(p_chi2=min(1.0, worst.p_chi2 * len(tests)))
