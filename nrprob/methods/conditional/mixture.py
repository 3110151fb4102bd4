"""Residual mixture: clusters after removing group effects, with one covariance."""

from __future__ import annotations

import itertools
import math
from dataclasses import KW_ONLY
from typing import Annotated, Any

import numpy as np
from scipy import sparse
from scipy.linalg import solve_triangular
from scipy.special import gammaln, logsumexp, softmax
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import Design, DesignEncoder
from nrprob.data.labels import factorize
from nrprob.data.storage.stored import Stored, apply_to_pieces, refuse_stored
from nrprob.engines.optimise import solve
from nrprob.engines.placement import device_of, on_cpu
from nrprob.estimator import parameters
from nrprob.estimator.base import Clusterer, Renamed
from nrprob.estimator.calls import at_once, collect_restarts, solution_memberships
from nrprob.estimator.capabilities import KINDS, Capabilities
from nrprob.estimator.linear import ScoreMixin
from nrprob.evidence.model_selection import AutoClustersMixin
from nrprob.exceptions import short_repr, warn
from nrprob.methods.conditional.coordinates import Coordinates
from nrprob.methods.conditional.em import Hyperparameters
from nrprob.methods.conditional.regression import fit_removal
from nrprob.methods.conditional.solver import Fit, adjusted_rand, solve_residuals
from nrprob.methods.conditional.starts import schedule_starts
from nrprob.methods.conditional.task import WEIGHTS, ResidualTask, lay_out, start_from
from nrprob.settings import standard
from nrprob.statistics.groups import cross_table

COVARIANCES = ("tied", "diag", "spherical")
ERRORS = ("gaussian", "t", "auto")
_MIN_MARGIN = 1.0  # difference in nats below which two solutions count as equally good
_ALIKE = 0.9  # adjusted Rand index from which on labels count as one solution


@parameters.constructor
class ResidualMixture(AutoClustersMixin, ScoreMixin, Clusterer):
    r"""Mixture of residuals after regression on known structure, with a common covariance.

    The recommended estimator for tables and images with known structure. It subtracts from every
    row the effects of its known structure, such as the mean of its known group. The effects take L
    of the n degrees of freedom, so that residuals vary less than errors. Therefore :math:`r_i` is
    the residual of row i times :math:`\sqrt{n/(n - L)}`, and it has the weight :math:`(n - L)/n`.
    In nats of the whole data set, minimises

    .. math:: -\frac{n-L}{n} \sum_i \log \sum_c \pi_c\, p(r_i | b_c, \Sigma)
        + \nu_0\, D\left[N(0, s_0 I) \,\|\, N(0, \Sigma)\right]
        + \kappa \frac{n-L}{n} \sum_z n_z D\left[p(c|z) \,\|\, 1/K\right]

    over the centres :math:`b_c` of the K clusters, their common covariance :math:`\Sigma`, the
    variance :math:`s_0` and, if they are free, the weights :math:`\pi_c` (else 1/K). p is a normal
    or t density, and D the Kullback-Leibler divergence. The second term is a ridge, invariant to
    the units of the data; its weight :math:`\nu_0` follows from the intensity of Ledoit and Wolf
    on the residuals. The last term, with the weight :math:`\kappa` (``balance``), favours equal
    cluster shares p(c|z) in every known group z of :math:`n_z` rows.

    The fitted covariance is essential: within groups, the direction of the largest variance (such
    as size) often does not separate clusters, and k-means of residuals follows it.

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Number of clusters, K. "auto" selects the number with the best predictive density on
        held-out rows, by `nrprob.evidence.n_clusters`; known structure then must be labels.
    covariance : {"tied", "diag", "spherical"}, default="tied"
        Form of :math:`\Sigma`: full, diagonal in the columns of X, or a multiple of the identity.
        "diag" and "spherical" need fewer rows.
    errors : {"gaussian", "t", "auto"}, default="gaussian"
        Distribution of the errors: normal, or multivariate t for data with outliers. "auto" fits
        both and selects the smaller objective; it takes about five times as long as "gaussian".
    nu : float, default=8.0
        Degrees of freedom of t errors; lower values tolerate stronger outliers. From 2.001 to
        10**9.
    weights : {"auto", "uniform", "free"}, default="auto"
        Weights of the clusters. "uniform" weights favour clusters of similar size. "free" weights
        detect minority clusters, but may prefer a few outliers to the actual clusters. "auto" fits
        both. It selects free weights if they lower the objective by at least (K - 1)/2 log n nats
        and, in addition, either lower the mean entropy of the memberships by more than log(K)/10
        or leave the clusters almost unchanged (adjusted Rand index above 0.8). The last restart
        with free weights starts from the best solution with equal weights. With ``balance``,
        weights are uniform.
    balance : float, default=0.0
        Weight :math:`\kappa` of equal cluster shares within known groups. Set it if clusters are
        known to be equally frequent in every group; ``np.inf`` makes the shares equal. Not for
        continuous or soft known structure, nor for ``weights="free"``. At most 10**9, or infinite.
    ridge : float, default=3.0
        Factor of the Ledoit-Wolf ridge. Raise it for few rows and many columns; 0 means no ridge.
        At most 10**9.
    whitening_exponents : sequence of float, default=(0, 0.5, 1)
        Initialisation metrics of the k-means that starts a restart. Along each principal axis,
        residuals are divided by their standard deviation to this exponent, from 0 (plain) to 1
        (whitened). "kurtosis" uses the n_clusters - 1 directions of the smallest kurtosis (FOBI).
        At most 100 entries.
    aligned : bool, default=True
        Whether to use initial values from k-means within the known groups as well.
    warm_up : bool, default=True
        Whether to use every initial value a second time, after a warm-up of at most 30 steps with
        exactly balanced groups.
    successive_halving : bool, default=True
        Whether to search large data sets (n x columns x K above 262,144) by successive halving.
        All restarts take ten EM steps in float32 on a sample (4096 rows, or 256 per cluster,
        stratified by known group), after warm-ups of at most ten steps. The best tenth by the
        objective on all rows, at least 3 distinct ones (adjusted Rand index below 0.95), take
        twenty further steps on all rows. The best two run to convergence; the others stop
        unconverged.
    init : array-like of shape (n_samples,), optional
        Initial labels, which replace the first of the other initial values.
    multi : {"product", "additive"}, default="product"
        Combination of several known labelings: every combination of labels is a group, or the
        labelings have additive effects, fitted by least squares. Prefer "additive" if
        combinations have few rows.
    n_init : int, default=60
        Number of restarts per error distribution; the one of the smallest objective is kept. The
        exponents, both types of k-means, and restarts with and without warm-up take turns: 12
        types of restarts by default. At most 10**6.
    max_iter : int, default=300
        Maximum number of EM steps per restart, without its warm-up; at most 10**6.
    tol : float, default=1e-3
        A restart has converged when memberships and objective (in nats) change by less than
        ``tol`` in a step.
    random_state : int, RandomState instance or None, default=None
        Determines the initial values.
    <verbose>

    Attributes
    ----------
    <labels_>
    membership_ : ndarray of shape (n_samples, n_clusters)
        p(cluster given row).
    means_ : ndarray of shape (n_clusters, n_features)
        Centres of the residuals, in the units of X.
    covariances_ : ndarray of shape (n_features, n_features)
        Covariance of the errors; for t errors nu / (nu - 2) :math:`\Sigma`. Singular if residuals
        span fewer directions than X, or were projected.
    effects_ : ndarray of shape (n_groups, n_features)
        Means of the known groups, in the order of their first appearance; or coefficients of the
        linear model of continuous or additive structure, of which the first is the constant.
    objective_ : float
        In nats; ``penalty_ - log_likelihood_``.
    log_likelihood_ : float
        Weighted log likelihood of the residuals.
    penalty_ : float
        Ridge and balance.
    weights_ : ndarray of shape (n_clusters,)
        Weights :math:`\pi_c` of the clusters.
    shrinkage_ : float
        Shrinkage intensity of Ledoit and Wolf on the residuals.
    errors_ : {"gaussian", "t"}
        Error distribution of the selected model.
    n_components_ : int
        Number of directions of the residuals that were used.
    objective_margin_ : float
        Difference in nats between ``objective_`` and the objective of the best restart with
        different clusters (adjusted Rand index below 0.9); infinite if all restarts agree.
    start_table_ : pandas.DataFrame
        Initial values, objective, convergence and steps of every restart, as in ``restarts_``.
    <restarts_>
    <n_clusters_>
    number_ : nrprob.evidence.NumberOfClusters
        Selection of the number of clusters; only for ``n_clusters="auto"``.
    objective_trace_ : ndarray
        Objective of the best restart after every step, without its warm-up; the first 511 steps
        and the last. Non-increasing for finite ``balance``, up to the accuracy of the balancing
        sweeps.
    <n_iter_>
    <converged_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    Warns
    -----
    DegenerateClusterWarning
        If a known group has a single row, or a cluster lies in one known group only.
    nrprob.exceptions.SingleFeatureWarning
        If one discrete feature y, such as a boolean column, determines the clusters c, or one of
        three or more clusters: I(c; y) / H(c) above 0.7.
    UserWarning
        If two solutions with different clusters differ by less than 1 nat.

    See Also
    --------
    ResidualSpectral : Clusters of counts, such as text, after removing known structure.
    MDLMixture : Bayesian mixture with an unknown number of components.
    CCIB : Information bottleneck conditional on known structure.
    nrprob.evidence.test : Significance test of the fitted clusters.

    Notes
    -----
    The algorithm has these steps:

    1. Regress X on the known structure by least squares; inflate the residuals.
    2. Compute coordinates in which the ridged covariance of the residuals is the identity.
    3. Initialise restarts by k-means of all rows and of rows within each known group, in several
       metrics. Clusters of different groups are matched by their centres.
    4. Run EM from every start, some after a balanced warm-up. E-step: memberships, with scaling
       iterations if ``balance`` > 0. M-step: centres, :math:`\Sigma`, :math:`s_0` and weights.
    5. Keep the restart of the smallest objective.

    With p coordinates, an EM step costs :math:`O(n p K + p^3)`, and :math:`O(n p^2)` more for t
    errors; memory is :math:`O(n (p + K))` per parallel restart.

    Units matter for the plain metric and the ridge: standardise columns of different units.
    Residuals with more than (n - L)/2 directions are projected on their first min(30, (n - L)/2)
    principal components (``covariance="tied"``). Known structure may be labels, several labelings,
    `nrprob.known.Memberships` or continuous covariates; new rows need theirs. If it is not labels,
    groups for the alignment are derived from it.

    EM never increases the objective. The objectives of normal and t errors are comparable, because
    both are densities of the same residuals with the same weights.

    References
    ----------
    H. P. Friedman and J. Rubin (1967), "On some invariant criteria for grouping data", Journal of
    the American Statistical Association 62, doi:10.1080/01621459.1967.10500923. The determinant
    criterion is the limit of hard memberships.

    O. Ledoit and M. Wolf (2004), "A well-conditioned estimator for large-dimensional covariance
    matrices", Journal of Multivariate Analysis 88, doi:10.1016/S0047-259X(03)00096-4.

    G. J. McLachlan and D. Peel (1998), "Robust cluster analysis via mixtures of multivariate
    t-distributions", Advances in Pattern Recognition, for t errors.

    L. Chizat, G. Peyré, B. Schmitzer and F.-X. Vialard (2018), "Scaling algorithms for unbalanced
    optimal transport problems", Mathematics of Computation 87, doi:10.1090/mcom/3303, for the
    balance.

    J.-F. Cardoso (1989), "Source separation using higher order moments", IEEE International
    Conference on Acoustics, Speech, and Signal Processing, for FOBI.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import ResidualMixture
    >>> rng = np.random.default_rng(0)
    >>> known, hidden = rng.integers(2, size=(2, 100))
    >>> X = rng.normal(size=(100, 3)) + 5 * np.outer(known, [1, 1, 0])
    >>> X[:, 2] += 6 * hidden
    >>> model = ResidualMixture(2, random_state=0).fit(X, known=known)
    >>> agreement = (model.labels_ == hidden).mean()
    >>> bool(max(agreement, 1 - agreement) > 0.95)
    True
    """

    n_clusters: parameters.ClustersOrAuto = 2
    _: KW_ONLY
    covariance: Annotated[str, parameters.Choice(COVARIANCES)] = "tied"
    errors: Annotated[str, parameters.Choice(ERRORS)] = "gaussian"
    nu: Annotated[float, parameters.Number(2.001, 1e9)] = 8.0
    weights: Annotated[str, parameters.Choice(tuple(WEIGHTS))] = "auto"
    balance: Annotated[float, parameters.Number(0, 1e9, infinite=True)] = 0.0
    ridge: Annotated[float, parameters.Number(0, 1e9)] = 3.0
    whitening_exponents: tuple[float, ...] = (0.0, 0.5, 1.0)
    aligned: parameters.Flag = True
    warm_up: parameters.Flag = True
    successive_halving: parameters.Flag = True
    init: Any = None
    multi: parameters.Combination = "product"
    n_init: parameters.Count = 60
    max_iter: parameters.Count = 300
    tol: parameters.Tolerance = 1e-3
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(known=KINDS, finds_number=True)
    _rarely_finite = ("objective_margin_",)
    _warns_of_single_feature = True
    centers_ = Renamed("means_")
    covariance_ = Renamed("covariances_")

    # Input

    def check_parameters(self):
        """Raise ValueError for parameters that are invalid for all data."""
        super().check_parameters()
        exponents = self.whitening_exponents
        if isinstance(exponents, str) or np.ndim(exponents) != 1 or len(exponents) == 0:
            raise ValueError(
                "whitening_exponents must be a sequence of numbers from 0 to 1; got "
                f"{short_repr(exponents)}; pass for example (0, 0.5, 1)"
            )
        if len(exponents) > 100:
            raise ValueError(
                f"whitening_exponents must be at most 100; got {len(exponents)}; pass fewer"
            )
        for exponent in exponents:
            if exponent == "kurtosis":
                continue
            self._check_number("whitening_exponents", exponent, low=0, high=1)
        if self.balance > 0 and self.weights == "free":
            raise ValueError(
                "balance asks for clusters of equal shares; got "
                f"balance={self.balance} and weights={self.weights!r}; leave one of them out"
            )

    def prepare(self, X, y, known=None) -> ResidualTask:
        """Check the input, remove known structure, and lay out the residuals."""
        X, fixed = self._check_input(X, y)
        n = X.shape[0]
        self._encoder = DesignEncoder(self.multi)
        design = self._encoder.fit(known, n)
        r, self._removal = fit_removal(X, design)
        self._check_groups(design)
        if self.balance > 0 and design.kind not in ("nothing", "labels"):
            raise ValueError(
                f"balance needs known groups; got balance={self.balance} and {design.description}; "
                "set balance=0, or pass labels"
            )
        self._is_balanced = self.balance > 0
        dof = n - self._removal.rank
        self._check_left(
            design, dof, float(np.mean(r**2)), float(np.mean(np.square(X, dtype=np.float64)))
        )
        init = None if self.init is None else start_from(self.init, n, self.n_clusters)
        task = self._lay_out(r, dof, design, fixed, X.dtype, init)
        task.calls = self._solver_calls(task)
        return task

    def _check_left(self, design: Design, dof: int, square: float, before: float) -> None:
        """Raise ValueError if residuals are 0, or if too few degrees of freedom remain.

        ``square`` is the mean square of the residuals, ``before`` the mean square of the rows.
        """
        n, k = design.n_samples, self.n_clusters
        if k > max(dof, 1):
            raise ValueError(
                f"n_clusters={k} is more than the {dof} degrees of freedom that are left; got "
                f"n_samples={n} and known structure of rank {self._removal.rank}; lower "
                "n_clusters, or pass more rows or fewer groups"
            )
        if dof < 1 or square <= 1e-28 * max(before, 1e-300):
            none = design.kind == "nothing"
            what = "all rows are alike" if none else "known explains X completely"
            raise ValueError(
                f"{what}, so there is nothing to cluster; got residuals of 0 for n_samples={n}; "
                "pass other features, or known structure of fewer groups"
            )

    @property
    def _takes_stored(self) -> bool:
        return True

    def _fit_stored(self, rows, y, known=None):
        if self.init is not None:
            raise ValueError("init requires rows in memory; got init and stored rows; leave it out")
        from nrprob.methods.conditional.stored import fit_mixture

        return fit_mixture(self, rows, y, known)

    def _validate(self, X, *, reset: bool):
        if sparse.issparse(X):
            raise TypeError(
                "Sparse input is not supported, since residuals of sparse rows are dense; got a "
                "sparse matrix; pass X.toarray(), or use ResidualSpectral for counts"
            )
        return super()._validate(X, reset=reset)

    def _check_groups(self, design: Design) -> None:
        sizes = np.bincount(design.codes)
        single = int((sizes == 1).sum())
        if design.kind == "labels" and 0 < single < design.n_samples:
            self._warn_degenerate(
                f"{single} known group(s) have a single member, whose residual is 0 without "
                "information; got group sizes down to 1; merge small groups if that matters"
            )
        else:
            super()._check_groups(design)

    def _search_groups(self, design: Design) -> Design:
        """Return groups that align and balance initial values, made from other structure."""
        n = design.n_samples
        if design.memberships is not None:
            return _number_groups(design.memberships.argmax(1))
        if design.columns is None:
            return design
        if design.kind != "labels":
            # Parts of equal size along the first principal component of the columns.
            columns = design.matrix[:, 1:]
            direction = np.linalg.svd(columns - columns.mean(0), full_matrices=False)[2][0]
            rank = (columns @ direction).argsort(kind="stable").argsort(kind="stable")
            parts = int(np.clip(n // (5 * self.n_clusters), 1, 5))
            return _number_groups(rank * parts // n)
        product = _number_groups(design.labelings)
        if self.balance > 0 or product.n_groups * 5 * self.n_clusters <= n:
            return product
        sizes = design.labelings.max(0) + 1
        enough = sizes * 5 * self.n_clusters <= n
        best = int(np.where(enough, sizes, -sizes).argmax())
        return Design.from_groups(design.labelings[:, best], int(sizes[best]))

    def _lay_out(self, r, dof, design, fixed, dtype, init) -> ResidualTask:
        coordinates, y = Coordinates.from_residuals(r, dof, self.covariance, self.ridge)
        self._coordinates = coordinates
        self.shrinkage_ = coordinates.shrinkage
        free = WEIGHTS["uniform" if self.balance > 0 else self.weights]
        groups = self._search_groups(design)
        return lay_out(self, coordinates, y, groups, fixed, np.asarray(free), dtype, init=init)

    def _solver_calls(self, task: ResidualTask) -> list[solve.SolverCall]:
        data = task.data
        k = self.n_clusters if data.active is None else len(data.active)
        # On a CPU one restart at a time keeps to its caches, and waits for no slower one: with ten
        # side by side all took 1.8 times as long.
        slots = data.mass.size
        nbytes = 10 * k * slots * data.y.dtype.itemsize
        side = 1 if on_cpu(data) else at_once(self.n_init, nbytes, device_of(data))
        calls = []
        for errors in ("gaussian", "t"):
            if self.errors not in (errors, "auto"):
                continue
            hyperparameters = task.hyperparameters._replace(
                constant=np.asarray(self._log_constant(task.hyperparameters, errors))
            )
            static = {
                "n_clusters": k, "warm_up": bool(self.warm_up), "covariance": self.covariance,
                "robust": errors == "t", "side_by_side": side,
                "n_leaders": task.n_leaders,
            }  # fmt: skip
            size = 3 * data.y.nbytes + nbytes * side + 16 * slots * self.n_init
            arrays = data, hyperparameters, task.starts, task.warm, task.fixed, task.sample
            calls.append(solve.SolverCall(solve_residuals, arrays, tuple(static.items()), size))
        return calls

    def _log_constant(self, hyperparameters: Hyperparameters, errors: str) -> float:
        """Constant part of the log densities in the objective."""
        d, dof = float(hyperparameters.d), float(hyperparameters.dof)
        normaliser = -d / 2 * math.log(2 * math.pi)
        if errors == "t":
            nu = float(self.nu)
            normaliser = gammaln((nu + d) / 2) - gammaln(nu / 2) - d / 2 * math.log(nu * math.pi)
        return dof * (normaliser - math.log(self.n_clusters))

    # Results

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        restarts, best = collect_restarts(result, task.layout)
        self._store_results(
            restarts,
            membership=solution_memberships(best, task.layout, self.n_clusters),
            trace=best.trace,
            n_iter=best.n_iter,
        )
        kinds = [dict(call.static)["robust"] for call in task.calls]
        robust = kinds[next(i for i, solution in enumerate(result) if solution is best)]
        self._steps = np.concatenate([solution.fit.steps for solution in result])
        self._freed = [bool(solution.fit.free) for solution in result]
        self._set_parameters(best.fit, task.hyperparameters, robust, task.design.n_groups)
        self._warn_doubtful(task)
        return self

    def _set_parameters(
        self, fit: Fit, hyperparameters: Hyperparameters, robust: bool, n_groups: int
    ) -> None:
        """Set the fitted attributes that follow from the parameters of the best restart."""
        self.log_likelihood_, self.penalty_ = float(fit.log_likelihood), float(fit.penalty)
        self.errors_ = "t" if robust else "gaussian"
        log_weights = np.asarray(fit.log_weights[: self.n_clusters], np.float64)
        self.weights_ = np.exp(log_weights - logsumexp(log_weights))
        self._log_weights = log_weights
        coordinates = self._coordinates
        p = coordinates.basis.shape[1]
        self._centres = np.asarray(fit.centres[: self.n_clusters, :p], np.float64)
        sigma = np.asarray(fit.covariance, np.float64)
        self._sigma = sigma[:p, :p] if sigma.ndim == 2 else np.diag(sigma[:p])
        self._offset = np.asarray(fit.offset[: self.n_clusters, :n_groups], np.float64)
        # Common constant of the log densities, including 1/K, in the coordinates of the fit; and
        # the log of the volume of their unit.
        self._common = self._log_constant(hyperparameters, self.errors_) / float(
            hyperparameters.dof
        )
        self._common -= 0.5 * np.linalg.slogdet(self._sigma)[1]
        self._log_unit = 0.5 * float(hyperparameters.log_det)
        self.means_ = self._centres @ coordinates.back / coordinates.inflation
        heavier = self.nu / (self.nu - 2) if robust else 1.0
        self.covariances_ = heavier * coordinates.back.T @ self._sigma @ coordinates.back
        self.effects_ = self._removal.effects
        self.n_components_ = p

    def _warn_doubtful(self, task) -> None:
        """Warn about clusters within one group, and about equally good solutions."""
        if not self._encoder.has_columns_:
            shape = task.design.n_groups, self.n_clusters
            self._warn_single_group(cross_table(task.design.codes, self.labels_, shape))
        self._set_objective_margin(self._restarts.labels)

    def _warn_single_group(self, table: np.ndarray) -> None:
        """Warn if a cluster lies in one known group, by a contingency table (groups, K)."""
        alone = np.flatnonzero((table > 0).sum(0) == 1)
        if min(table.shape) > 1 and alone.size:
            self._warn_degenerate(
                f"{alone.size} cluster(s) lie in one known group only, such as cluster "
                f"{alone[0]}; they may be a part of the known structure"
            )

    def _set_objective_margin(self, labels: np.ndarray) -> None:
        """Set ``objective_margin_`` by labels (restarts, n), and warn if it is small."""
        self.objective_margin_ = np.inf
        order = np.argsort(self._restarts.objective, kind="stable")
        chosen = labels[order[0]]
        shape = self.n_clusters, self.n_clusters
        for i in order[1:]:
            table = cross_table(chosen, labels[i], shape)
            if adjusted_rand(table.astype(float), np) < _ALIKE:
                self.objective_margin_ = float(self._restarts.objective[i] - self.objective_)
                break
        if self.objective_margin_ < _MIN_MARGIN:
            warn(
                "two solutions with different clusters are "
                f"{self.objective_margin_:.2g} nats apart, which the data cannot tell from each "
                "other; see start_table_ and restarts_; raise n_init, lower n_clusters, or look at "
                "both"
            )

    @property
    def start_table_(self):
        """Initial values and results of all restarts: a `pandas.DataFrame`, as ``restarts_``."""
        check_is_fitted(self)
        import pandas as pd

        kinds = ("plain", "aligned") if self.aligned else ("plain",)
        warm = (False, True) if self.warm_up else (False,)
        errors = ("gaussian", "t") if self.errors == "auto" else (self.errors,)
        every = list(itertools.product(warm, kinds, self.whitening_exponents))
        n_each, restarts = schedule_starts(self.n_init, len(every))
        starts = [*np.repeat(np.array(every, object), n_each, 0)[restarts]]
        rows = [(e, kind, metric, w) for e in errors for w, kind, metric in starts]
        if self.init is not None:
            rows[:: len(starts)] = [(e, "init", np.nan, False) for e in errors]
        for i, free in enumerate(self._freed):
            if free and self.weights == "auto":
                rows[(i + 1) * len(starts) - 1] = errors[i], "equal weights", np.nan, False
        table = pd.DataFrame(rows, columns=["errors", "start", "metric", "warmed_up"])
        result = self._restarts
        return table.assign(
            objective=result.objective, converged=result.converged, n_iter=self._steps
        )

    # New rows

    def residuals_of(self, X, *, known=None):
        """Residuals of samples in the coordinates of the fit.

        The effects of the known structure are subtracted. The coordinates are linear in the
        residuals; the ridged covariance of the training residuals is the identity there.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_components)

        See Also
        --------
        log_density_of : Log density in these coordinates.
        nrprob.evidence.test : Significance test that uses them.
        """
        check_is_fitted(self)
        refuse_stored(X, "residuals_of")
        return self._residuals(*self._split_known(X, known))[0]

    def _residuals(self, X, known) -> tuple[np.ndarray, Design]:
        """Residuals (n, p) of new rows in the coordinates of the fit, and their design."""
        check_is_fitted(self)
        with standard():
            X = self._validate(X, reset=False)
        design = self._encoder.transform(known, len(X))
        return self._removal(np.asarray(X, np.float64), design) @ self._coordinates.basis, design

    def _log_densities(self, y) -> np.ndarray:
        """Weighted log densities (n, K) at coordinates, up to a common constant."""
        root = np.linalg.cholesky(self._sigma)
        white = solve_triangular(root, y.T, lower=True).T
        centres = solve_triangular(root, self._centres.T, lower=True).T
        q = ((white[:, None] - centres) ** 2).sum(2)
        if self.errors_ == "gaussian":
            return self._log_weights - 0.5 * q
        return self._log_weights - 0.5 * (self.nu + y.shape[1]) * np.log1p(q / self.nu)

    def log_density_of(self, X, *, known=None, scale=None):
        r"""Log density of samples under the fitted mixture, given their known structure.

        .. math:: \log \sum_c \pi_c\, p(y_i | b_c, \Sigma)

        with the weights :math:`\pi_c`, the centres :math:`b_c` and the covariance :math:`\Sigma` of
        the clusters, and the residual :math:`y_i` in the coordinates of `residuals_of`. The log
        density in units of ``X`` differs by a constant, which `score` includes. The constant
        depends on the training samples, not on ``n_clusters``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        known : as in `predict`
        scale : array-like of shape (n_samples,), optional
            Factors that multiply the residuals before the density is evaluated.

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats.

        See Also
        --------
        score : Mean log likelihood in units of ``X``.
        residuals_of : Samples in the coordinates of the density.
        """
        y = self.residuals_of(X, known=known)
        if scale is not None:
            y = y * np.reshape(scale, (-1, 1))
        return logsumexp(self._log_densities(y), axis=1) + self._common

    def mixture_covariance(self):
        """Covariance of the mixture in the coordinates of `residuals_of`, up to a factor.

        For t errors the scale matrix takes the place of the covariance of the errors.

        Returns
        -------
        ndarray of shape (n_components, n_components)

        See Also
        --------
        log_density_of : Log density in the same coordinates.
        has_flexible_clusters : Which null models the clusters have to beat.
        """
        check_is_fitted(self)
        return self._sigma + (self._centres.T * self.weights_) @ self._centres

    def has_flexible_clusters(self):
        """Whether clusters can adapt to heavy tails or to groups of unequal covariance.

        They can if they need not hold many samples: with free weights or more than two clusters, or
        if one of two clusters holds few samples, as a cluster of outliers does. They can, too, if
        errors follow a t distribution or the covariance is not "tied".

        Returns
        -------
        bool

        See Also
        --------
        mixture_covariance : Covariance of the null model of the same covariance.
        nrprob.evidence.test : Significance test that asks for it.
        """
        check_is_fitted(self)
        k = len(self.weights_)
        few = self.membership_.mean(0).min() < 0.5 / k
        other = self.covariance != "tied" or self.errors_ == "t"
        return bool(few or other or any(self._freed) or k > 2)

    def settings_from_labels(self, labels):
        """Parameters of one fit that starts from labels and from fresh starts.

        Parameters
        ----------
        labels : array-like of shape (n_samples,)

        Returns
        -------
        list of dict
            Settings for `set_params`.

        See Also
        --------
        nrprob.evidence.confidence : Bootstrap confidences, which use these fits.
        has_flexible_clusters : Which null models the clusters have to beat.
        """
        return [{"init": labels}]

    def _log_membership(self, X, known) -> np.ndarray:
        y, design = self._residuals(X, known)
        log_p = self._log_densities(y)
        if not self._is_balanced:
            return log_p
        additive = design.columns is not None
        codes = self._encoder.combine_labelings(design.labelings) if additive else design.codes
        return log_p + self._offset[:, codes].T

    def _row_scores(self, X, known) -> np.ndarray:
        return self.log_density_of(X, known=known) - self._log_unit

    def score(self, X, y=None, *, known=None):
        r"""Mean log likelihood of new rows; higher is better.

        .. math:: \frac{1}{n} \sum_i \log \sum_c \pi_c\, p(r_i | b_c, \Sigma)

        with the residuals r of new rows, by the effects of the fit. For the rows of the fit and
        ``balance=0``, it equals ``log_likelihood_`` divided by the residual degrees of freedom.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or `nrprob.stored` rows
        y : ignored
        known : as in `predict`

        Returns
        -------
        float
            In nats per row.
        """
        return super().score(X, known=known)

    def predict_proba(self, X, *, known=None):
        """p(cluster given row) of new rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), or `nrprob.stored` rows
        known : as in `predict`

        Returns
        -------
        ndarray of shape (n_samples, n_clusters)
        """
        if isinstance(X, Stored):
            known = self._stored_known(known)
            return apply_to_pieces(lambda x, part: self.predict_proba(x, known=part), X, known)
        X, known = self._split_known(X, known)
        return softmax(self._log_membership(X, known), axis=1)


def _number_groups(codes: np.ndarray) -> Design:
    """Groups, numbered in the order in which they first appear."""
    codes, names = factorize(codes)
    return Design.from_groups(codes, len(names))
