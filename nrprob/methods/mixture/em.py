"""Mixture models by annealed expectation maximisation, unsupervised or semi-supervised."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted

from nrprob.data.storage.stored import refuse_stored
from nrprob.engines.optimise.anneal import FixedWeights
from nrprob.engines.optimise.solve import Problem, Settings
from nrprob.estimator import parameters
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.linear import FeatureParameters, ScoreMixin
from nrprob.estimator.terms import Descent, TermEstimator
from nrprob.estimator.unconditional import UnconditionalMixin
from nrprob.evidence.model_selection import AutoClustersMixin
from nrprob.settings import standard
from nrprob.statistics.costs import Cost, bernoulli_cost, mass_cost, multinomial_cost
from nrprob.statistics.families import FeatureMap, missing_property_error
from nrprob.statistics.features import raise_where
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
_COUNT = 1e30  # of which sums, times their logarithms, are numbers in float32
_STATISTICS = 2e9  # bytes that the second moments of all rows may take


@dataclass(frozen=True)
class MixtureMap:
    """Raw rows as the statistics of a mixture: counts as they are, and moments of real features.

    ``covariance`` says which second moments follow the first ones: all products of two features
    (the upper triangle, by rows), the squares, or their sum; None for none.
    """

    base: FeatureMap
    covariance: str | None

    @property
    def features(self) -> str:
        """Model of the features."""
        return self.base.features

    def __call__(self, x: Any) -> Any:
        """Return the statistics (n, p) of raw rows."""
        if self.features == "multinomial":
            raise_where(
                x, lambda v: v < 0, "features='multinomial' needs non-negative values",
                "pass counts, or set features='gaussian'",
            )  # fmt: skip
            raise_where(
                x, lambda v: v > _COUNT, f"a mixture needs counts of at most {_COUNT}",
                "divide them, or set features='gaussian'",
            )  # fmt: skip
            return x
        x = self.base(x)
        if self.covariance is None:
            return x
        xp = jnp if isinstance(x, jax.Array) else np
        return xp.concatenate([x, second_moments(x, self.covariance)], 1)


@dataclass(frozen=True)
class Smoothed:
    """Cell cost of counts or masses to which numbers are added, less what an empty cell costs.

    With ``alpha`` for every count, and for every 0 and 1, it is ``-log`` likelihood minus ``alpha``
    times the sum of the log probabilities, at the probabilities that minimise it.

    Attributes
    ----------
    cost : of a cell as it is
    n_features : the first features, which get ``alpha`` each
    alpha, to_mass : what is added to a feature, and to the mass
    """

    cost: Cost
    n_features: int
    alpha: float
    to_mass: float

    def __call__(self, cell: jax.Array) -> jax.Array:
        """Cost of statistics (..., p)."""
        return self._cost(cell) - self.empty()

    def empty(self) -> jax.Array:
        """What `__call__` leaves out."""
        return self._cost(jnp.zeros(self.n_features + 1))

    def _cost(self, cell: jax.Array) -> jax.Array:
        x, w = cell[..., : self.n_features], cell[..., -1:]
        return self.cost(jnp.concatenate([x + self.alpha, w + self.to_mass], -1))


class MixtureNumbers(NamedTuple):
    """``constant``, nats per row that the scaling of the features took from the likelihood."""

    constant: Any


@dataclass(frozen=True)
class Mixture:
    """``-log`` likelihood of a mixture, but for the entropy of the memberships."""

    features: str
    covariance: str | None
    n_features: int
    free: bool
    reg: float
    alpha: float
    anneal: bool

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Make the problem from the rows."""
        one = jnp.ones((), rows.mass.dtype)
        k = settings.n_clusters
        total = rows.mass.sum().astype(jnp.float64)
        constant = settings.method.constant.astype(jnp.float64)
        cost: Any = multinomial_cost if self.features == "multinomial" else bernoulli_cost
        if self.covariance is not None:
            cost = GaussianCost(self.covariance, self.n_features, self.reg)
            constant = constant * total
        elif self.alpha:
            cost = Smoothed(cost, self.n_features, self.alpha, 2 * self.alpha)
            constant = constant + k * cost.empty()
        scale = jnp.asarray(float(self.n_features), jnp.float64)
        likelihood = Term(one, constant, None, cost, False, scale)
        if not self.free:
            uniform = replace(likelihood, constant=constant + total * jnp.log(k))
            return Problem((uniform,), FixedWeights(jnp.stack([one])), anneal=self.anneal)
        weights: Any = mass_cost
        constant = xlogx(total + self.alpha * k)
        if self.alpha:
            weights = Smoothed(mass_cost, 0, 0.0, self.alpha)
            constant = constant + k * weights.empty()
        terms = likelihood, Term(one, constant, None, weights, False)
        return Problem(terms, FixedWeights(jnp.stack([one, one])), n_start=1, anneal=self.anneal)


@parameters.constructor
class MixtureEM(  # type: ignore[misc]
    UnconditionalMixin, AutoClustersMixin, FeatureParameters, ScoreMixin, TermEstimator
):
    r"""Mixture of Bernoulli, multinomial or normal components, by annealed EM.

    Minimises minus the log likelihood, in nats of the whole data set,

    .. math:: - \sum_i \log \sum_k \pi_k p(x_i | \theta_k)

    With labels of some rows it is the semi-supervised EM classifier: labelled rows stay with their
    class, and the others say what they can about it.

    Parameters
    ----------
    n_clusters : int or "auto", default=2
        Number of components. "auto", for gaussian components, takes the one that predicts rows
        best which fits have not seen, by `nrprob.evidence.n_clusters`.
    features : {"auto", "multinomial", "bernoulli", "gaussian"}, default="auto"
        Components. "auto" takes 0/1 data as bernoulli, other non-negative integers as multinomial
        and all else as gaussian. Multinomial rows count as they are: a long document says more
        than a short one.
    covariance : {"full", "diag", "spherical", "VEE"}, default="full"
        Of gaussian components. "VEE" gives all of them one shape and orientation, each at a volume
        of its own: for few rows, or few labels, of each component. It and "full" keep
        m (m + 3) / 2 numbers for each row of m features.
    weights : {"free", "uniform"}, default="free"
        Whether the components' weights are fitted or all equal.
    anneal : bool, default=True
        Start at the temperature at which components first separate, and cool down to 1. False is
        plain EM from random memberships, or from what the labelled rows alone say: in every restart
        if all components have labels, else in the first.
    smoothing : float or "auto", default="auto"
        At most 10**9. Added to every count of multinomial and bernoulli components, and to the mass
        of every component. "auto" is 1 for multinomial features with labels, else 0.
    reg_covar : float, default=1e-6
        Added to the variances of gaussian components, in units of the mean variance of the
        features; at most 10**6.
    unlabelled_weight : float, default=1.0
        What a row without a label counts, beside 1 for one with a label: from 1e-9 to 1e9.
    init : array-like of shape (n_samples,) or (n_samples, n_clusters), optional
        Labels or memberships to start from, for ``anneal=False``.
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
        Means; probabilities of ones (bernoulli) or of terms (multinomial). Those of all rows for a
        component that holds nothing.
    covariances_ : ndarray
        Covariances of gaussian components: (n_clusters, n_features, n_features) for "full" and
        "VEE", (n_clusters, n_features) for "diag", (n_clusters,) for "spherical".
    objective_ : float
        Minus the log likelihood of all rows, without multinomial coefficients; with smoothing or
        ``reg_covar``, with their penalties.
    <labels_>
    <membership_>
    <n_clusters_>
    number_ : nrprob.evidence.NumberOfClusters
        How the number was found; only for ``n_clusters="auto"``.
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
        If one discrete feature y, such as a boolean column, determines the clusters c, or one of
        three or more clusters: I(c; y) / H(c) above 0.7.

    Notes
    -----
    For "VEE", the M-step of components that hold the masses n_k and the scatters W_k (with
    ``reg_covar``) in d dimensions finds the covariances lambda_k C by

    .. math:: \lambda_k = \frac{\operatorname{tr}(W_k C^{-1})}{n_k d}, \qquad
        C \propto \sum_k \frac{W_k}{\lambda_k}, \qquad |C| = 1

    in turns until they settle, of which none lowers the likelihood.

    References
    ----------
    Dempster, Laird and Rubin (1977); Celeux and Govaert (1995), "VEE" as [lambda_k D A D']; Ueda
    and Nakano (1998), the annealing; Nigam et al. (2000), labelled and unlabelled text; Gondek
    (2005), section 3.5.2 with the sign of the entropy in (3.5.8) and the logarithm in (3.5.11)
    corrected.

    Examples
    --------
    >>> import numpy as np
    >>> from nrprob import MixtureEM
    >>> X = np.concatenate([np.random.default_rng(0).normal(c, 1, (50, 2)) for c in (0, 5)])
    >>> MixtureEM(2, random_state=0).fit(X).means_.shape
    (2, 2)
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

    capabilities = Capabilities(known=(), finds_number=True)
    _warns_of_single_feature = True

    @property
    def _takes_sparse(self) -> bool:
        return self.features in ("multinomial", "bernoulli")

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        super().check_parameters()
        if self.init is not None and self.anneal:
            raise ValueError(
                "init is where plain EM starts, and an annealing has no such place; got both; "
                "set anneal=False, or leave init out"
            )

    def _fit_features(self, X):
        base = super()._fit_features(X)
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
        if needs_products(self.covariance) and n * m * (m + 3) / 2 * X.dtype.itemsize > _STATISTICS:
            raise ValueError(
                f"covariance={self.covariance!r} keeps m (m + 3) / 2 numbers of each row; got {n} "
                f"rows of {m} features; use covariance='diag', or fewer features"
            )
        return MixtureMap(base, self.covariance)

    def _mass(self, fixed):
        if fixed is None or self.unlabelled_weight == 1:
            return None
        return np.where(fixed >= 0, 1.0, float(self.unlabelled_weight))

    def _descent(self):
        # EM is the update without compression at the temperature 1.
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
        # The likelihood is that of the features as given, not as scaled.
        self._constant = m * math.log(self._features.base.scale) if gaussian else 0.0
        return self._build, MixtureNumbers(self._constant)

    def _common_cost(self, x, design):
        cost = self._constant
        if self.weights == "uniform":
            cost += math.log(len(self._log_prior))
        else:
            cost += math.log(self._total) + 1  # log mass of a component, and its derivative
        return np.full(x.shape[0], cost)

    def score(self, X, y=None):  # type: ignore[override]
        r"""Mean log likelihood of new rows; higher is better.

        .. math:: \frac{1}{n} \sum_i \log \sum_k \pi_k p(x_i | \theta_k)

        without multinomial coefficients, and with the penalties of ``reg_covar`` as in the
        objective. Where a row has what no row of the fit has in a component, that is hardly
        possible there, but for ``smoothing``.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
        y : ignored

        Returns
        -------
        float
            In nats per row.
        """
        return super().score(X)

    def residuals_of(self, X):
        """Residuals of samples: the mean of the training samples is subtracted.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_features)

        See Also
        --------
        log_density_of : Log density of the same samples.
        nrprob.evidence.test : Significance test that uses them.
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
        score : Mean log likelihood, for all kinds of features.
        residuals_of : Samples in the coordinates of the density.
        """
        residuals = self.residuals_of(X)
        if scale is not None:
            residuals = residuals * np.reshape(scale, (-1, 1))
        with np.errstate(divide="ignore"):
            constant = np.log(self.weights_) - residuals.shape[1] / 2 * math.log(2 * math.pi)
        centres = self.means_ - self._features.base.centre
        log_p = log_normals(residuals, centres, np.linalg.cholesky(self._covariances()))
        return logsumexp(constant + log_p, axis=1)

    def _covariances(self) -> np.ndarray:
        """Covariances (k, m, m), whatever their form."""
        covariances = self.covariances_
        m = self.n_features_in_
        if covariances.ndim == 3:
            return covariances
        return np.reshape(covariances, (len(self.means_), -1, 1)) * np.eye(m)

    def mixture_covariance(self):
        r"""Covariance of the mixture, for gaussian components.

        .. math:: \sum_k \pi_k \left(\Sigma_k + \mu_k \mu_k^\top\right) - \mu \mu^\top,
            \qquad \mu = \sum_k \pi_k \mu_k

        Returns
        -------
        ndarray of shape (n_features, n_features)

        See Also
        --------
        log_density_of : Log density of samples.
        has_flexible_clusters : Which null models the clusters have to beat.
        """
        check_is_fitted(self)
        centres = self.means_ - self.weights_ @ self.means_
        within = np.einsum("k,kij->ij", self.weights_, self._covariances())
        return within + (centres.T * self.weights_) @ centres

    def has_flexible_clusters(self):
        """Whether clusters can adapt to heavy tails or unequal covariances: always true.

        Returns
        -------
        bool

        See Also
        --------
        mixture_covariance : Covariance of the null model of the same covariance.
        nrprob.evidence.test : Significance test that asks for it.
        """
        return True

    def settings_from_labels(self, labels):
        """Parameters of two fits: an annealed fit from fresh starts, and plain EM from labels.

        Parameters
        ----------
        labels : array-like of shape (n_samples,)
            Clusters from 0 to ``n_clusters`` - 1.

        Returns
        -------
        list of dict
            Settings for `set_params`.

        See Also
        --------
        nrprob.evidence.confidence : Bootstrap confidences, which use these fits.
        has_flexible_clusters : Which null models the clusters have to beat.
        """
        from_labels = {"anneal": False, "init": np.eye(self.n_clusters)[labels], "n_init": 1}
        return [{"init": None}, from_labels]

    def _start(self, task, n_clusters):
        if self.init is None:
            return None
        start = task.layout.to_blocks(self._log_init(task.x.shape[0]))
        spare = n_clusters - self.n_clusters
        start = np.pad(start, ((0, 0), (0, 0), (0, spare)), constant_values=-np.inf)
        return start.astype(task.rows.mass.dtype)

    def _log_init(self, n: int) -> np.ndarray:
        """Log memberships (n, k) to start from."""
        init, k = np.asarray(self.init), self.n_clusters
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
                f"init must be labels ({n},) or memberships ({n}, {k}), not negative and with a "
                f"positive sum in every row; got shape {init.shape}; pass one of these"
            )
        with np.errstate(divide="ignore"):
            return np.log(init)

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        super().finish(task, result)
        x = task.x.toarray() if sparse.issparse(task.x) else np.asarray(task.x, np.float64)
        w = self.membership_
        fixed = self._mass(task.fixed)
        if fixed is not None:
            w = w * fixed[:, None]
        self._describe(w.T @ x, w.sum(0))
        return self

    def _describe(self, sums: np.ndarray, sizes: np.ndarray) -> None:
        """Set the components' parameters from their statistics (k, p) and masses (k,)."""
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
        base = self._features.base
        means = cluster_means(sums[:, :m], sizes)
        second = cluster_means(sums[:, m:], sizes)
        self.means_ = means * base.scale + base.centre
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
