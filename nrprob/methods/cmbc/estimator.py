"""Constrained model-based clustering: Bernoulli mixture with a penalty on I(C;Z).

I(C;Z) is the mutual information of clusters C and known groups Z.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Annotated, Any

import numpy as np
from scipy import sparse

from nrprob.data.design import Design, DesignEncoder
from nrprob.engines.optimise import solve
from nrprob.estimator import parameters
from nrprob.estimator.calls import collect_restarts, restart_calls, solution_memberships
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.linear import LinearClusterer, ScoreMixin, Task
from nrprob.exceptions import warn
from nrprob.known import Memberships
from nrprob.methods.cmbc.penalty import FORMS, make_penalty
from nrprob.methods.cmbc.solver import CAPACITY, CMBCParameters, solve_cmbc
from nrprob.methods.cmbc.updates import UPDATES
from nrprob.metrics import independence_test
from nrprob.statistics.families import fit_features
from nrprob.statistics.features import raise_where
from nrprob.statistics.rows import active_mask

__all__ = ["CMBC", "gamma_to_strength", "strength_to_gamma"]

STRENGTH_GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # candidates of strength="auto"
FALLBACK_STRENGTH = 2.0
_EQUATION_COST = 300  # time of the equations of an M-step per known group, in products


def gamma_to_strength(gamma: float, n_features: int) -> float:
    r"""Convert the published penalty weight gamma to ``strength``.

    .. math:: c = \frac{\gamma}{(1 - \gamma) M^2}

    Here c is the strength, and M the number of features.

    Parameters
    ----------
    gamma : float
        In [0, 1).
    n_features : int
        Number of features M. Use M = 1 for the published values of gamma near 1, since the penalty
        of the publication is not divided by the number of features.
    """
    return gamma / ((1 - gamma) * n_features**2)


def strength_to_gamma(strength: float, n_features: int) -> float:
    r"""Convert ``strength`` to the published penalty weight gamma.

    .. math:: \gamma = \frac{c M^2}{1 + c M^2}

    Here c is the strength, and M the number of features. The function is the inverse of
    `gamma_to_strength`.

    Parameters
    ----------
    strength : float
        At least 0.
    n_features : int
        Number of features M.
    """
    weight = strength * n_features**2
    return weight / (1 + weight)


@parameters.constructor
class CMBC(ScoreMixin, LinearClusterer):
    r"""Constrained model-based clustering (CMBC): penalised Bernoulli mixture.

    CMBC fits a Bernoulli mixture with uniform weights to n rows y of M binary features. CMBC
    minimises, in nats of the whole data set,

    .. math:: -\sum_i \log \frac{1}{K} \sum_k p(y_i|\theta_k) + c\, n M^2 P(\theta), \qquad
        p(y|\theta_k) = \prod_j \theta_{kj}^{y_j} (1 - \theta_{kj})^{1 - y_j},

    where K is the number of clusters, :math:`\theta_{kj}` the probability of feature j in cluster
    k, c the ``strength``, and P a penalty on the mutual information I(C;Z) of clusters C and known
    groups Z. In the model p(c) = 1/K, and p(z|y) is the mean over features of the observed
    p(z|y_j). Therefore :math:`p(z|c_k)` is linear in :math:`\theta_k`.

    Parameters
    ----------
    n_clusters : int, default=2
        Number of clusters, K.
    strength : float or "auto", default=2.0
        Penalty weight c, which has no unit. At c = 1 (with ``form="chi2"``), the correlations of
        the features that Z explains linearly no longer influence the mixture. Raise it if the
        clusters resemble the known groups. 0 is the Bernoulli mixture with uniform weights. "auto"
        fits c = 0.25, 0.5, 1, 2, 4 and 8, and selects the smallest c with K non-empty clusters for
        which a G test at 5 % does not reject independence of Z. If no c qualifies, "auto" is 2,
        with a warning; without known labels, "auto" is also 2. See
        `nrprob.methods.cmbc.estimator.gamma_to_strength` for the published weight. At most 10**6.
    form : {"chi2", "balanced", "pairs", "printed"}, default="chi2"
        Quadratic form P. "chi2" is the second-order expansion of I(C;Z) at independence. The other
        forms replace the entropy by chords. "printed" has the published constants; it rewards a
        common shift of all clusters and fails for many features. "pairs" has the constant for the
        number of pairs (cluster, known group). "balanced" omits the term of the common mean.
    update : {"joint", "batch", "partial", "exact"}, default="joint"
        M-step. "joint" maximises over all parameters jointly. "batch" and "partial" are the
        published coordinate updates (CMBC-bu and CMBC-pm), with one E-step per pass and per
        parameter, respectively. With many features, "batch" and "partial" need many more iterations
        than "joint". Without annealing, their results depend on the initial values. "exact"
        continues from the joint solution by gradient steps with the exact I(C;Z), and keeps the
        better solution.
    anneal : bool, default=True
        Whether to anneal (daCMBC): start from perturbed identical clusters at 1.2 times the
        critical temperature, and halve the temperature down to 1. With False, or if the initial
        temperature is below 1, CMBC starts from random parameters at temperature 1.
    multi : {"product", "additive"}, default="product"
        Combination of several known labelings. "product" penalises the combinations of labels.
        "additive" adds the penalties of the labelings; use it for many labelings.
    binarize : float, optional
        Threshold above which a feature counts as 1. None accepts binary features only.
    n_init : int, default=10
        Number of restarts; the solution with the best objective is kept. At most 10**6.
    max_iter : int, default=200
        Maximum number of EM iterations per temperature, and ten times as many at the last
        temperature.
    tol : float, default=1e-6
        Convergence tolerance of the objective in nats per sample. The last temperature has 1/100 of
        this tolerance.
    random_state : int, RandomState instance or None, default=None
        Determines initial values and perturbations.
    verbose : int, default=0
        Print progress if positive.

    Attributes
    ----------
    means_ : ndarray of shape (n_clusters, n_features)
        Probabilities :math:`\theta`.
    strength_ : float
        Penalty weight c of the fit.
    log_likelihood_ : float
        Log likelihood of the training rows in nats. For a row with a target label, the sum over k
        has the term of its class only.
    penalty_ : float
        P in nats; ``objective_`` is ``strength_ * n * M**2 * penalty_ - log_likelihood_``. For
        "chi2" and "balanced", P is 0 if and only if all clusters have the same p(z|c). For the
        other forms, P is 0 if all clusters have p(z|c) = p(z).
    redundancy_ : nrprob.metrics.IndependenceTest or None
        Mutual information of ``labels_`` and the known labels, and the G test of independence. With
        ``multi="additive"``, the test of the labeling with the smallest p-value, with Bonferroni
        correction. None without known labels.
    critical_temperature_ : float
        Temperature below which identical clusters separate.
    temperatures_ : ndarray of shape (n_steps,)
        Temperature of each entry of ``objective_trace_``.
    strength_path_ : pandas.DataFrame
        With ``strength="auto"``: strength, objective, log likelihood, information and p-value of
        the G test, and number of clusters.
    <labels_>
    <membership_>
    <n_clusters_>
    <objective_>
    objective_trace_ : ndarray of shape (n_steps,)
        Objective of the best restart after each iteration. The objective never increases within a
        temperature, except for the gradient steps of ``update="exact"``.
    <n_iter_>
    <converged_>
    <beta_>
    <critical_beta_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    See Also
    --------
    CCIB : Conditional information bottleneck, for features of any kind.
    MixtureEM : Bernoulli mixture without known groups.
    nrprob.methods.cmbc.estimator.gamma_to_strength : Converts the published penalty weight.

    Notes
    -----
    The algorithm, for every restart:

    1. Start from identical clusters, perturbed, at 1.2 times the critical temperature T.
    2. E-step: memberships proportional to :math:`p(y|\theta_k)^{1/T}`.
    3. M-step: maximise the penalised expected log likelihood by a damped Newton method, whose
       Hessian is diagonal plus a matrix of rank KS for S known groups. Repeat from step 2 until
       convergence.
    4. Halve T, perturb the parameters, and repeat from step 2 until T = 1.

    An iteration takes O(nKM) time for the E-step and O(K^2 S^2 M + K^3 S^3) for the joint M-step,
    and O(n_init n K) memory.

    ``y`` holds target labels, -1 for unknown labels.

    References
    ----------
    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, chapter 5:
    objective (5.1.8), M-step (5.1.39) and appendix B.4, with corrections.

    Gondek, D., Vaithyanathan, S. and Garg, A. (2005), "Clustering with model-level constraints",
    SIAM International Conference on Data Mining, 126-137.

    The joint M-step, the scale of ``strength``, its automatic choice and the forms other than
    "printed" are specific to this package.

    Examples
    --------
    >>> from nrprob import CMBC, metrics
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> model = CMBC(2, random_state=0).fit(X, known=labels[:, 0])
    >>> print(f"{metrics.matched_accuracy(model.labels_, labels[:, 1]):.2f}")
    0.99
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    strength: Annotated[float | str, parameters.Number(0, 1e6, words=("auto",))] = 2.0
    form: Annotated[str, parameters.Choice(FORMS)] = "chi2"
    update: Annotated[str, parameters.Choice(UPDATES)] = "joint"
    anneal: parameters.Flag = True
    multi: parameters.Combination = "product"
    binarize: parameters.Threshold = None
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 200
    tol: parameters.Tolerance = 1e-6
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(sparse=True, squares=False)

    @property
    def _takes_sparse(self) -> bool:
        return self.update != "partial"

    # Parameters and input

    def check_parameters(self):
        """Validate the parameters that do not depend on the data."""
        super().check_parameters()
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

    def _fit_features(self, X, sample_weight):
        return fit_features(X, "bernoulli", self.binarize)

    def prepare(self, X, y, known=None) -> Task:
        """Validate the input and prepare the restarts; see `Clusterer.prepare`."""
        self.check_parameters()
        if isinstance(known, Memberships):
            raise ValueError(
                "CMBC needs known labels; got soft Memberships; pass hard labels instead"
            )
        # Rows keep their order, since known groups enter through tables only.
        task = self._read_task(X, y, None)
        if self.update == "partial" and (sparse.issparse(task.x) or task.mesh is not None):
            raise ValueError(
                "update='partial' needs dense rows on one device; got sparse or sharded rows; "
                "use another update, or pass a dense array"
            )
        task.lay_out()
        n, m = task.x.shape
        task.design = DesignEncoder().fit(known, n)
        task.labelings = self._read_labelings(task.design)
        for codes in task.labelings:
            sizes = np.bincount(codes)
            # Known groups of one row are harmless, unless all groups are.
            if sizes.min() > 1 or sizes.max() == 1 or sizes.size == 1:
                self._check_groups(replace(task.design, codes=codes, n_groups=sizes.size))
        width, n_values = task.rows.x.n_statistics, sum(codes.max() + 1 for codes in task.labelings)
        active = active_mask(
            self.n_clusters, max(task.layout.n_slots * width, n_values * _EQUATION_COST)
        )
        tables = make_penalty(task.x, task.labelings, self.form, self.n_clusters, width, active)
        strengths: tuple[float, ...]
        if isinstance(self.strength, str):
            strengths = STRENGTH_GRID if task.labelings else (FALLBACK_STRENGTH,)
        else:
            strengths = (self.strength,)
        dtype = task.x.dtype
        task.settings = [
            CMBCParameters(
                n_features=np.asarray(m, np.int32),
                max_iter=np.asarray(self.max_iter, np.int32),
                tol=np.asarray(self.tol, dtype),
                anneal=np.asarray(bool(self.anneal)),
                strength=np.asarray(strength, dtype),
                tables=tables.astype(dtype),
            )
            for strength in strengths
        ]
        task.share_among_devices()
        rows, k = task.rows, self.n_clusters if active is None else active.size
        restart_size = 5 * k * rows.mass.size // task.layout.n_shards
        restart_size += (
            12 * k * rows.x.n_statistics + 4 * (k * tables.spread.size) ** 2 + 2 * CAPACITY
        )
        task.calls = restart_calls(
            solve_cmbc, {"n_clusters": k, "update": self.update}, rows, task.layout, task.fixed,
            task.settings, n_init=self.n_init, random_state=self.random_state,
            n_elements=restart_size,
            factorises=True,
        )  # fmt: skip
        return task

    def _read_labelings(self, design: Design) -> list[np.ndarray]:
        """Known labelings that enter the penalty, each as an array (n,) of group indices."""
        n, n_groups = design.n_samples, design.n_groups
        if design.kind == "nothing":
            return []
        if isinstance(design.group_labels[0][0], float) and n / 2 < n_groups < n:
            raise ValueError(
                f"CMBC takes labels or binary columns as known; got {n_groups} different "
                f"numbers in {n} rows; cut them into groups"
            )
        if self.multi != "product":
            return list(design.labelings.T)
        if design.labelings.shape[1] > 1 and n_groups > n / 20:
            warn(
                f"known has {n_groups} combinations of labels in {n} rows, too many to "
                "estimate their probabilities; consider multi='additive'"
            )
        return [design.codes]

    # Results

    def finish(self, task, result):
        """Choose the strength and set the fitted attributes; see `Clusterer.finish`."""
        groups: dict[float, list[solve.Solution]] = {}
        for call, solution in zip(task.calls, result, strict=True):
            groups.setdefault(float(call.arrays[1].strength), []).append(solution)
        self.strength_ = next(iter(groups))
        if len(groups) > 1:
            self.strength_ = self._choose_strength(task, groups)
        restarts, best = collect_restarts(groups[self.strength_], task.layout)
        m, k, fit = task.x.shape[1], self.n_clusters, best.fit
        self._keep_costs(fit.slope[:, :k], np.zeros(k), m, beta=1.0, critical=fit.critical_beta)
        self.log_likelihood_, self.penalty_ = float(fit.log_likelihood), float(fit.penalty)
        self.means_ = np.asarray(fit.theta[:k, :m], np.float64)
        self.temperatures_ = fit.temperature[~np.isnan(fit.temperature)].astype(float)
        self.critical_temperature_ = 1 / self.critical_beta_
        self._store_results(
            restarts,
            membership=solution_memberships(best, task.layout, k),
            trace=best.trace,
            n_iter=best.n_iter,
            nothing_left=self._nothing_left(task.design.has_structure),
        )
        self.redundancy_ = _test_redundancy(self.labels_, task.labelings)
        return self

    def _choose_strength(self, task: Task, groups: dict[float, list[solve.Solution]]) -> float:
        """Return the smallest strength that makes clusters independent of the known labels.

        A strength qualifies if a G test does not reject independence at 5 %, and if no cluster is
        empty. If no strength qualifies, the result is 2, with a warning. ``groups`` maps every
        strength to the solutions of its restarts.
        """
        import pandas as pd

        path = []
        for strength, solutions in groups.items():
            best = min(solutions, key=lambda c: c.objective.min())
            labels = task.layout.from_blocks(best.labels)[:, int(best.objective.argmin())]
            test = _test_redundancy(labels, task.labelings)
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
            "no strength gives clusters that are independent of known, so the structures may be "
            f"correlated; tried {', '.join(f'{c:g}' for c in table.strength)}; "
            f"strength={FALLBACK_STRENGTH:g} is used"
        )
        return FALLBACK_STRENGTH

    # New rows

    def _log_membership(self, X, known) -> np.ndarray:
        return super()._log_membership(X, None)

    def _row_scores(self, X, known) -> np.ndarray:
        return super()._row_scores(X, None)

    def score(self, X, y=None, *, known=None):
        r"""Mean log likelihood of new rows; higher is better.

        .. math:: \frac{1}{n} \sum_i \log \frac{1}{K} \sum_k p(y_i|\theta_k)

        Here :math:`p(y|\theta_k)` is the probability of row y in cluster k of K. For the training
        rows of a fit without target labels, the score equals ``log_likelihood_ / n``. The score
        excludes the penalty, so the score compares numbers of clusters, and not strengths.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        y : ignored
        known : ignored
            Known labels do not enter the posterior probabilities.

        Returns
        -------
        float
            In nats per sample.
        """
        return super().score(X, known=known)

    def predict(self, X, *, known=None):
        """Assign new rows to their most probable clusters.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : ignored
            Known labels do not enter the posterior probabilities.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        return super().predict(X, known=known)

    def predict_proba(self, X, *, known=None):
        """Posterior probabilities of clusters for new rows.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        known : ignored
            Known labels do not enter the posterior probabilities.

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        return super().predict_proba(X, known=known)


def _test_redundancy(labels: np.ndarray, labelings: list[np.ndarray]) -> Any:
    """G test of the clusters and the most dependent known labeling, with Bonferroni correction.

    ``labels`` (n,) are the clusters of n rows. The result is None without known labelings.
    """
    if not labelings:
        return None
    tests = [independence_test(labels, codes, n_permutations=0) for codes in labelings]
    worst = min(tests, key=lambda t: t.p_chi2)
    return worst._replace(p_chi2=min(1.0, worst.p_chi2 * len(tests)))
