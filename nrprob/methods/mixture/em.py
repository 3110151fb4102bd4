"""Mixture models by annealed EM, unsupervised or semi-supervised.

Sizes: n rows, m features, p sufficient statistics of a row, k components.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from nrprob.data.storage.stored import refuse_stored
from nrprob.engines.optimise.anneal import FixedWeights
from nrprob.engines.optimise.solve import Problem, Settings
from nrprob.estimator import parameters
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.linear import FeatureParameters, ScoreMixin
from nrprob.estimator.terms import Descent, TermEstimator
from nrprob.estimator.unconditional import WeightedUnconditionalMixin
from nrprob.estimator.weights import entries_with_weight
from nrprob.evidence.model_selection import AutoClustersMixin
from nrprob.exceptions import warn
from nrprob.settings import standard
from nrprob.statistics.costs import Cost, bernoulli_cost, mass_cost, multinomial_cost
from nrprob.statistics.families import FeatureMap, missing_property_error
from nrprob.statistics.features import raise_where, warn_of_empty_rows
from nrprob.statistics.gaussians import (
    GaussianCost,
    cluster_volumes,
    common_shape,
    log_normals,
    moment_positions,
    needs_products,
    second_moments,
)
from nrprob.statistics.rows import Rows, cluster_means
from nrprob.statistics.terms import Term
from nrprob.statistics.xlogx import xlogx

_COMPONENTS = ("multinomial", "bernoulli", "gaussian")
_COVARIANCES = ("full", "diag", "spherical", "VEE")
_SAMPLES_PER_FEATURE = 2  # minimum number of samples per cluster and feature of full covariances
_MAX_COUNT = 1e30  # larger counts overflow in float32
_MAX_MOMENT_BYTES = 2e9  # maximum memory of the second moments of all rows


@dataclass(frozen=True)
class MixtureMap:
    """Map from rows to their sufficient statistics: counts, or moments of continuous features.

    Attributes
    ----------
    base : encoding or scaling of the features
    covariance : form of the covariances of gaussian components; None for other components. For
        "full" and "VEE", the products of all pairs of features (upper triangle, by rows) follow the
        features. For "diag", the squares of the features follow, for "spherical" the sum of squares
    """

    base: FeatureMap
    covariance: str | None

    @property
    def features(self) -> str:
        """Distribution of the features: "multinomial", "bernoulli" or "gaussian"."""
        return self.base.features

    def __call__(self, x: Any) -> Any:
        """Return the sufficient statistics (n, p) of rows x (n, m)."""
        if self.features == "multinomial":
            raise_where(
                x, lambda v: v < 0, "features='multinomial' needs non-negative values",
                "pass counts, or set features='gaussian'",
            )  # fmt: skip
            raise_where(
                x, lambda v: v > _MAX_COUNT, f"a mixture needs counts of at most {_MAX_COUNT}",
                "divide the counts, or set features='gaussian'",
            )  # fmt: skip
            warn_of_empty_rows(np.asarray(x.sum(1)))
            return x
        x = self.base(x)
        if self.covariance is None:
            return x
        xp = jnp if isinstance(x, jax.Array) else np
        return xp.concatenate([x, second_moments(x, self.covariance)], 1)


@dataclass(frozen=True)
class SmoothedCost:
    """Cost of a mixture component with pseudo-counts, minus the cost of an empty component.

    The cost with pseudo-counts is the minimum of a penalised negative log likelihood over the
    probabilities of the component. The penalty is minus ``alpha`` times the sum of the log
    probabilities. The cost is a function of the sufficient statistics of the component, which are
    sums over its rows; the last statistic is the mass of the component.

    Attributes
    ----------
    cost : cost of the component without pseudo-counts
    n_features : number of leading statistics that get the pseudo-count ``alpha``
    alpha : pseudo-count of a feature
    to_mass : pseudo-count of the mass
    """

    cost: Cost
    n_features: int
    alpha: float
    to_mass: float

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Costs (...) of components with sufficient statistics ``cell`` (..., p)."""
        return self._smoothed_cost(cell) - self.empty_cost()

    def empty_cost(self) -> jax.Array:
        """Cost with pseudo-counts of a component without rows; `__call__` subtracts this cost."""
        return self._smoothed_cost(jnp.zeros(self.n_features + 1))

    def _smoothed_cost(self, cell: jax.Array) -> jax.Array:
        x, w = cell[..., : self.n_features], cell[..., -1:]
        return self.cost(jnp.concatenate([x + self.alpha, w + self.to_mass], -1))


class MixtureParameters(NamedTuple):
    """Traced parameter of the objective that `Mixture` builds.

    ``constant`` is the log Jacobian of the scaling of the features, in nats per sample.
    """

    constant: Any


@dataclass(frozen=True)
class Mixture:
    """Builder of the EM objective: the expected negative log likelihood of complete data.

    Complete data are the rows and their components. The objective does not include the entropy of
    the memberships.

    Attributes
    ----------
    features : distribution of the components: "multinomial", "bernoulli" or "gaussian"
    covariance : form of the covariances of gaussian components; None for other components
    n_features : number of features
    free_weights : whether the weights of the components are estimated
    reg : ridge that is added to the variances of gaussian components
    alpha : pseudo-count of every count and of the mass of every component
    anneal : whether annealing starts at the critical temperature; if False, plain EM
    """

    features: str
    covariance: str | None
    n_features: int
    free_weights: bool
    reg: float
    alpha: float
    anneal: bool

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Build the optimisation problem for the sufficient statistics ``rows`` and settings."""
        unit_weight = jnp.ones((), rows.mass.dtype)
        k = settings.n_clusters
        total = rows.mass.sum().astype(jnp.float64)
        constant = settings.method.constant.astype(jnp.float64)
        cost: Any = multinomial_cost if self.features == "multinomial" else bernoulli_cost
        if self.covariance is not None:
            cost = GaussianCost(self.covariance, self.n_features, self.reg)
            constant = constant * total
        elif self.alpha:
            cost = SmoothedCost(cost, self.n_features, self.alpha, 2 * self.alpha)
            constant = constant + k * cost.empty_cost()
        scale = jnp.asarray(float(self.n_features), jnp.float64)
        likelihood = Term(unit_weight, constant, None, cost, False, scale)
        if not self.free_weights:
            uniform = replace(likelihood, constant=constant + total * jnp.log(k))
            return Problem((uniform,), FixedWeights(jnp.stack([unit_weight])), anneal=self.anneal)
        weights: Any = mass_cost
        constant = xlogx(total + self.alpha * k)
        if self.alpha:
            weights = SmoothedCost(mass_cost, 0, 0.0, self.alpha)
            constant = constant + k * weights.empty_cost()
        terms = likelihood, Term(unit_weight, constant, None, weights, False)
        unit_weights = FixedWeights(jnp.stack([unit_weight, unit_weight]))
        return Problem(terms, unit_weights, n_start=1, anneal=self.anneal)


@parameters.constructor
class MixtureEM(  # type: ignore[misc]
    WeightedUnconditionalMixin, AutoClustersMixin, FeatureParameters, ScoreMixin, TermEstimator
):
    r"""Finite mixture of Bernoulli, multinomial or Gaussian components by annealed EM.

    MixtureEM minimises the negative log likelihood, in nats of the whole data set,

    .. math:: - \sum_i w_i \log \sum_k \pi_k p(x_i | \theta_k)

    over the weights :math:`\pi_k` and the parameters :math:`\theta_k` of the components k, where
    :math:`x_i` is row i and :math:`w_i` its sample weight, 1 by default. With target labels of some
    rows, MixtureEM is semi-supervised EM: labelled rows stay in the component of their class.

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Number of components. "auto", for gaussian components, selects the number with the best
        held-out log likelihood by `nrprob.evidence.n_clusters`.
    features : {"auto", "multinomial", "bernoulli", "gaussian"}, default="auto"
        Distribution of the components. "auto" selects bernoulli for binary data, multinomial for
        other non-negative integers, and gaussian for all other data. Multinomial rows are not
        normalised, so a long document has more influence than a short one.
    covariance : {"full", "diag", "spherical", "VEE"}, default="full"
        Covariances of gaussian components. "VEE" has a common shape and orientation and a separate
        volume per component; use it for few rows or few labels per component. "full" and "VEE"
        store m (m + 3) / 2 moments per row of m features.
    weights : {"free", "uniform"}, default="free"
        "free" estimates the weights of the components; "uniform" sets them to 1 / ``n_clusters``.
    anneal : bool, default=True
        Whether to start at the temperature at which components first separate, and cool down to 1.
        False is plain EM from ``init``, or by default from random memberships. With target labels,
        plain EM starts from the labelled rows: in all restarts if all components have labelled
        rows, else only in the first restart.
    smoothing : float or "auto", default="auto"
        Pseudo-count of each count of multinomial and bernoulli components, and of the mass of each
        component. Raise ``smoothing`` if rare terms separate components. "auto" is 1 for
        multinomial features with target labels, else 0. At most 10**9.
    reg_covar : float, default=1e-6
        Ridge that is added to the variances of gaussian components, in units of the mean variance
        of the features. Raise ``reg_covar`` if components collapse to few rows. At most 10**6.
    unlabelled_weight : float, default=1.0
        Weight of a row without a target label; a labelled row has weight 1. Lower the weight if
        many unlabelled rows override the labels. From 1e-9 to 1e9.
    init : array-like of shape (n_samples,) or (n_samples, n_clusters), optional
        Initial labels or memberships for ``anneal=False``.
    <binarize>
    <cooling>
    <noise>
    <n_init>
    <max_iter>
    <tol>
    <random_state>
    <verbose>

    Attributes
    ----------
    weights_ : ndarray of shape (n_clusters,)
        Weights of the components.
    means_ : ndarray of shape (n_clusters, n_features)
        Means (gaussian), or probabilities of ones (bernoulli) or of terms (multinomial). An empty
        component has the estimates from all rows.
    covariances_ : ndarray
        Covariances of gaussian components: (n_clusters, n_features, n_features) for "full" and
        "VEE", (n_clusters, n_features) for "diag", (n_clusters,) for "spherical".
    objective_ : float
        Negative log likelihood of all rows, without multinomial coefficients, and with the
        penalties of ``smoothing`` and ``reg_covar``.
    <labels_>
    <membership_>
    <n_clusters_>
    number_ : nrprob.evidence.NumberOfClusters
        Selection of the number of components; only for ``n_clusters="auto"``.
    <objective_trace_>
    <n_iter_>
    <converged_>
    <beta_>
    <critical_beta_>
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    Warns
    -----
    nrprob.exceptions.SingleFeatureWarning
        If one discrete feature y, such as a boolean column, determines the clusters c: the ratio
        I(c; y) / H(c) of mutual information and entropy is above 0.7. With three or more clusters,
        also if y determines one of them.
    UserWarning
        If full covariances have fewer than two samples per cluster and feature.

    See Also
    --------
    ConditionalMixture : Gaussian mixture of the residuals from known structure.
    MDLMixture : Bayesian mixture with an unknown number of components.
    CMBC : Bernoulli mixture with a penalty on known groups.
    IB : Information bottleneck of the same features.

    Notes
    -----
    The algorithm, for every restart:

    1. Start with nearly equal memberships at the critical temperature T.
    2. E-step: memberships proportional to :math:`[\pi_k p(x_i|\theta_k)]^{1/T}`.
    3. M-step: weights and parameters in closed form. Repeat from step 2 until the memberships
       change by less than ``tol``.
    4. Divide T by ``cooling``, perturb the memberships by ``noise``, and repeat from step 2 until T
       = 1.

    For "VEE", the M-step alternates

    .. math:: \lambda_k = \frac{\operatorname{tr}(W_k C^{-1})}{n_k d}, \qquad
        C \propto \sum_k \frac{W_k}{\lambda_k}, \qquad |C| = 1

    until convergence. Here :math:`\lambda_k C` is the covariance of component k, :math:`n_k` its
    mass, :math:`W_k` its scatter (with ``reg_covar``), and d the number of features. The likelihood
    never decreases.

    An iteration takes O(nkm) time for n rows, k components and m features, and O(nkm^2) for "full"
    and "VEE". Memory is O(nm), or O(nm^2) for "full" and "VEE", plus O(n_init n k).

    References
    ----------
    Dempster, A. P., Laird, N. M. and Rubin, D. B. (1977), "Maximum likelihood from incomplete data
    via the EM algorithm", Journal of the Royal Statistical Society B 39, 1-38,
    doi:10.1111/j.2517-6161.1977.tb01600.x.

    Celeux, G. and Govaert, G. (1995), "Gaussian parsimonious clustering models", Pattern
    Recognition 28, 781-793, doi:10.1016/0031-3203(94)00125-6. Model [lambda_k D A D'] is "VEE".

    Ueda, N. and Nakano, R. (1998), "Deterministic annealing EM algorithm", Neural Networks 11,
    271-282, doi:10.1016/S0893-6080(97)00133-0.

    Nigam, K., McCallum, A. K., Thrun, S. and Mitchell, T. (2000), "Text classification from labeled
    and unlabeled documents using EM", Machine Learning 39, 103-134, doi:10.1023/A:1007692713085.

    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, section 3.5.2, with
    the sign of the entropy in (3.5.8) and the logarithm in (3.5.11) corrected.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import MixtureEM
    >>> X = np.concatenate([np.random.default_rng(0).normal(c, 1, (50, 2)) for c in (0, 5)])
    >>> model = MixtureEM(2, covariance="spherical", random_state=0).fit(X)
    >>> model.means_.shape, np.bincount(model.labels_).tolist()
    ((2, 2), [50, 50])
    """

    n_clusters: parameters.ClustersOrAuto = 2
    _: KW_ONLY
    features: parameters.Features = "auto"
    covariance: Annotated[str, parameters.Choice(_COVARIANCES)] = "full"
    weights: Annotated[str, parameters.Choice(("free", "uniform"))] = "free"
    anneal: parameters.Flag = True
    smoothing: Annotated[float | str, parameters.Number(0, 1e9, words=("auto",))] = "auto"
    reg_covar: Annotated[float, parameters.Number(0, 1e6)] = 1e-6
    unlabelled_weight: Annotated[float, parameters.Number(1e-9, 1e9)] = 1.0
    init: Any = None
    binarize: parameters.Threshold = None
    cooling: parameters.Cooling = 1.15
    noise: parameters.Noise = 1e-3
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(known=(), weights=True, finds_number=True)
    _warns_of_single_feature = True

    @property
    def _takes_sparse(self) -> bool:
        return self.features in ("multinomial", "bernoulli")

    def check_parameters(self):
        """Validate the parameters that do not depend on the data."""
        super().check_parameters()
        if self.init is not None and self.anneal:
            raise ValueError(
                "init holds initial values of plain EM, which annealing does not use; got init "
                "with anneal=True; set anneal=False, or leave init out"
            )

    def _fit_features(self, X, sample_weight):
        base = super()._fit_features(X, sample_weight)
        if base.features not in _COMPONENTS:
            raise missing_property_error(base.features, "components", _COMPONENTS)
        if base.features != "gaussian":
            return MixtureMap(base, None)
        if sparse.issparse(X):
            raise ValueError(
                "gaussian components cannot take sparse X; got a sparse matrix; pass a dense "
                "array, or set features='multinomial' or 'bernoulli'"
            )
        n, m = X.shape
        moment_bytes = n * m * (m + 3) / 2 * X.dtype.itemsize
        if needs_products(self.covariance) and moment_bytes > _MAX_MOMENT_BYTES:
            raise ValueError(
                f"covariance={self.covariance!r} stores m (m + 3) / 2 moments per row; got {n} "
                f"rows of {m} features; use covariance='diag', or fewer features"
            )
        return MixtureMap(base, self.covariance)

    def _row_masses(self, task):
        if task.fixed is None or self.unlabelled_weight == 1:
            return task.weights
        mass = np.where(task.fixed >= 0, 1.0, float(self.unlabelled_weight))
        return mass if task.weights is None else mass * task.weights

    def _descent(self):
        # EM is the update without compression at temperature 1.
        return Descent(
            beta=1.0,
            compression=0.0,
            quench=100.0,
            cooling=float(self.cooling),
            noise=float(self.noise),
            tol=float(self.tol),
        )

    def _problem(self, task):
        features, alpha = self._features.features, self.smoothing
        if isinstance(alpha, str):
            alpha = 1.0 if features == "multinomial" and hasattr(self, "classes_") else 0.0
        gaussian = features == "gaussian"
        m = self.n_features_in_
        self._build = Mixture(
            features,
            self.covariance if gaussian else None,
            m,
            self.weights == "free",
            float(self.reg_covar) if gaussian else 0.0,
            float(alpha),
            bool(self.anneal),
        )
        # The likelihood refers to the features in their units, before scaling.
        self._constant = m * math.log(self._features.base.scale) if gaussian else 0.0
        return self._build, MixtureParameters(self._constant)

    def _common_cost(self, x, design):
        cost = self._constant
        if self.weights == "uniform":
            cost += math.log(len(self._log_prior))
        else:
            # Costs of rows are derivatives: they have -log w - 1 instead of -log(w / total).
            cost += math.log(self._total) + 1
        return np.full(x.shape[0], cost)

    def score(self, X, y=None):  # type: ignore[override]
        r"""Mean log likelihood of new rows; higher is better.

        .. math:: \frac{1}{n} \sum_i \log \sum_k \pi_k p(x_i | \theta_k)

        where :math:`x_i` are the n rows. Component k has the weight :math:`\pi_k` and the density
        :math:`p(x | \theta_k)`. The score excludes multinomial coefficients, and includes the
        penalty of ``reg_covar``. Without ``smoothing``, a new row with a term that never occurs in
        a component has almost no probability in this component.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        float
            In nats per sample.
        """
        return super().score(X)

    def clone_for_tests(self):
        """Return an unfitted copy for `nrprob.evidence`.

        Returns
        -------
        MixtureEM

        See Also
        --------
        nrprob.evidence.test : Significance test, which fits such copies to parts of the samples.
        log_density_of : Log density of the fits.
        """
        return clone(self)

    def residuals_of(self, X):
        """Differences of samples from the mean of the training samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_features)

        See Also
        --------
        log_density_of : Log density of the same samples.
        nrprob.evidence.test : Significance test that uses the residuals.
        """
        check_is_fitted(self)
        refuse_stored(X, "residuals_of")
        with standard():
            X = self._validate(X, reset=False)
        return np.asarray(X, np.float64) - self._features.base.centre

    def log_density_of(self, X, *, scale=None):
        r"""Log density of samples under the fitted mixture, for gaussian components.

        .. math:: \log \sum_k \pi_k\, N(x_i; \mu_k, \Sigma_k)

        with the weights :math:`\pi_k`, means :math:`\mu_k` and covariances :math:`\Sigma_k`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        scale : array-like of shape (n_samples,), optional
            Factors that multiply the residuals before the density is evaluated.

        Returns
        -------
        ndarray of shape (n_samples,)
            In nats.

        See Also
        --------
        score : Mean log likelihood, for all distributions of features.
        residuals_of : Residuals of samples, at which the density is evaluated.
        """
        residuals = self.residuals_of(X)
        if scale is not None:
            residuals = residuals * np.reshape(scale, (-1, 1))
        with np.errstate(divide="ignore"):
            constant = np.log(self.weights_) - residuals.shape[1] / 2 * math.log(2 * math.pi)
        centres = self.means_ - self._features.base.centre
        log_p = log_normals(residuals, centres, np.linalg.cholesky(self._full_covariances()))
        return logsumexp(constant + log_p, axis=1)

    def _full_covariances(self) -> np.ndarray:
        """Covariances of k components as matrices (k, m, m), whatever the form ``covariance``."""
        covariances = self.covariances_
        m = self.n_features_in_
        if covariances.ndim == 3:
            return covariances
        return np.reshape(covariances, (len(self.means_), -1, 1)) * np.eye(m)

    def mixture_covariance(self):
        r"""Covariance of the mixture, for gaussian components.

        .. math:: \sum_k \pi_k \left(\Sigma_k + \mu_k \mu_k^\top\right) - \mu \mu^\top,
            \qquad \mu = \sum_k \pi_k \mu_k

        with the weights :math:`\pi_k`, means :math:`\mu_k` and covariances :math:`\Sigma_k` of the
        components.

        Returns
        -------
        ndarray of shape (n_features, n_features)

        See Also
        --------
        log_density_of : Log density of samples.
        has_flexible_clusters : Choice of the null models in the significance test.
        """
        check_is_fitted(self)
        centres = self.means_ - self.weights_ @ self.means_
        within = np.einsum("k,kij->ij", self.weights_, self._full_covariances())
        return within + (centres.T * self.weights_) @ centres

    def has_flexible_clusters(self):
        """Whether the clusters can fit heavy tails, or unequal covariances of known groups.

        With such clusters, the significance test has additional null models that can fit heavy
        tails or unequal covariances. For this estimator, the result is always True.

        Returns
        -------
        bool

        See Also
        --------
        mixture_covariance : Covariance of the null model with one component.
        nrprob.evidence.test : Significance test that calls this method.
        """
        return True

    def settings_from_labels(self, labels):
        """Parameters of two variants of this estimator, for bootstrap fits.

        The first variant has the parameters of this estimator without ``init``. The second variant
        is plain EM from given labels.

        Parameters
        ----------
        labels : array-like of shape (n_samples,)
            Clusters from 0 to ``n_clusters`` - 1, from which plain EM starts.

        Returns
        -------
        list of dict
            Parameters of each variant for `set_params`.

        See Also
        --------
        nrprob.evidence.confidence : Bootstrap confidences, which use these fits.
        has_flexible_clusters : Choice of the null models in the significance test.
        """
        from_labels = {"anneal": False, "init": np.eye(self.n_clusters)[labels], "n_init": 1}
        return [{"init": None}, from_labels]

    def _initial_memberships(self, task, n_clusters):
        if self.init is None:
            return None
        start = task.layout.to_blocks(self._log_init(task.x.shape[0]))
        spare = n_clusters - self.n_clusters
        start = np.pad(start, ((0, 0), (0, 0), (0, spare)), constant_values=-np.inf)
        return start.astype(task.rows.mass.dtype)

    def _log_init(self, n: int) -> np.ndarray:
        """Initial log memberships (n, k) of ``n`` rows in k components, from ``self.init``."""
        init, k = entries_with_weight(self, np.asarray(self.init)), self.n_clusters
        if init.shape == (n,):
            codes = np.unique(init, return_inverse=True)[1]
            if codes.max() >= k:
                raise ValueError(
                    f"init has {codes.max() + 1} labels, more than n_clusters={k}; "
                    "raise n_clusters, or merge labels"
                )
            init = np.eye(k)[codes]
        init = init.astype(float)
        if init.shape != (n, k) or not (init >= 0).all() or not (init.sum(1) > 0).all():
            raise ValueError(
                f"init must be labels ({n},) or memberships ({n}, {k}), non-negative with a "
                f"positive sum in each row; got shape {init.shape}; pass one of these"
            )
        with np.errstate(divide="ignore"):
            return np.log(init)

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        super().finish(task, result)
        x = task.x.toarray() if sparse.issparse(task.x) else np.asarray(task.x, np.float64)
        w = self.membership_
        mass = self._row_masses(task)
        if mass is not None:
            w = w * mass[:, None]
        self._set_component_parameters(w.T @ x, w.sum(0))
        self._warn_of_few_samples(len(w))
        return self

    def _warn_of_few_samples(self, n: int) -> None:
        """Warn if ``n`` samples are too few for full covariances of all components."""
        k, d = self.n_clusters, self.n_features_in_
        is_full = self._build.features == "gaussian" and self.covariance == "full"
        if is_full and k > 1 and n < _SAMPLES_PER_FEATURE * k * d:
            warn(
                "full covariances of all clusters need more samples, and clusters are unreliable; "
                f"got {n} samples for {k} clusters of {d} features; pass covariance='VEE' or "
                "'diag', or use ConditionalMixture, whose clusters have a common covariance"
            )

    def _set_component_parameters(self, sums: np.ndarray, sizes: np.ndarray) -> None:
        """M-step: set the parameters of the components from their sufficient statistics.

        ``sums`` (k, p) are the statistics of k components, sums over the rows weighted by the
        memberships. ``sizes`` (k,) are the masses of the components.
        """
        build = self._build
        alpha, m = build.alpha, self.n_features_in_
        self._total = float((sizes + alpha).sum())
        if self.weights == "uniform":
            self.weights_ = np.full(self.n_clusters, 1 / self.n_clusters)
        else:
            self.weights_ = (sizes + alpha) / self._total
        if build.features == "multinomial":
            self.means_ = cluster_means(sums + alpha, (sums + alpha).sum(1))
            return
        if build.features == "bernoulli":
            self.means_ = cluster_means(sums + alpha, sizes + 2 * alpha)
            return
        # Gaussian components: moments of the scaled features, then means in their units.
        base = self._features.base
        means = cluster_means(sums[:, :m], sizes)
        second = cluster_means(sums[:, m:], sizes)
        self.means_ = means * base.scale + base.centre
        # Covariances by ``covariance``, with ``reg_covar`` on the diagonal.
        if needs_products(self.covariance):
            spread = second[:, moment_positions(m)] - means[:, :, None] * means[:, None, :]
            spread = spread + self.reg_covar * np.eye(m)
            if self.covariance == "VEE":
                shape = common_shape(sizes, spread, self.reg_covar)
                spread = cluster_volumes(spread, shape, self.reg_covar)[:, None, None] * shape
        elif self.covariance == "diag":
            spread = second - means**2 + self.reg_covar
        else:
            spread = (second[:, 0] - (means**2).sum(1)) / m + self.reg_covar
        self.covariances_ = spread * base.scale**2
