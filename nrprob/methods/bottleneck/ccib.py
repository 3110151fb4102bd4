"""Coordinated conditional information bottleneck: clusters conditional on known groups."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from nrprob.data.design import DesignEncoder
from nrprob.engines.optimise.anneal import FixedWeights, WeightRule
from nrprob.engines.optimise.solve import Problem, Settings
from nrprob.estimator import parameters
from nrprob.estimator.capabilities import KINDS, Capabilities
from nrprob.estimator.linear import Task
from nrprob.estimator.terms import SOLVERS
from nrprob.estimator.weights import WeightedMixin
from nrprob.exceptions import warn
from nrprob.methods.bottleneck.base import BottleneckEstimator
from nrprob.methods.bottleneck.glm import GLMProblem, link_potential
from nrprob.methods.bottleneck.ib import Bottleneck
from nrprob.settings import standard
from nrprob.statistics import families
from nrprob.statistics.costs import gaussian_cost
from nrprob.statistics.families import feature_term, half_squares, sum_of_squares
from nrprob.statistics.groups import cross_table, shares_differ
from nrprob.statistics.rows import Dense, Rows, bucket_size
from nrprob.statistics.terms import Residual, Term

_MODELLED = "continuous covariates and multi='additive'"


def residual_term(rows: Rows) -> Term:
    """Coordination term: half the within-cluster scatter of residuals from known-group means.

    The features are not rescaled. Dividing each feature by its within-group standard deviation
    would amplify the noise of the features that the known groups explain best.
    """
    totals = rows.totals()
    mass = totals[:, -1:]
    features = np.arange(rows.x.n_statistics) < rows.x.n_statistics - 1
    mean = totals * features / jnp.maximum(mass, 1e-30)
    within = rows.scatter(mean)[:-1].sum()
    scale = (within + (mass * mean**2).sum()) / mass.sum()
    unit_weight = jnp.ones((), mean.dtype)
    return Term(unit_weight, 0.5 * within, Residual(mean), gaussian_cost, False, scale)


def weight_rule(coordination: str, automatic: bool, weight: jax.Array) -> WeightRule:
    """Function that maps the leading curvatures (2,) of two terms to their weights (2,).

    The two terms are the conditional entropy and the coordination term. The conditional entropy has
    weight 1. If the user sets the weight of the coordination term, and the coordination is
    marginal, this weight is constant. In all other cases, the weight depends on the curvatures.

    Parameters
    ----------
    coordination : "residual" or "marginal"
    automatic : whether the weight of the coordination is "auto"
    weight : the weight that the user sets; 1 for "auto"
    """
    if coordination != "residual" and not automatic:
        return FixedWeights(jnp.stack([jnp.ones_like(weight), weight]))

    def curvature_weights(curvatures):
        first, second = curvatures
        ratio = jnp.where(second > 0, first / jnp.where(second > 0, second, 1), 0)
        if coordination == "residual":
            coordination_weight = weight * ratio
        else:
            coordination_weight = jnp.minimum(0.3, 0.5 * ratio)
        return jnp.stack([jnp.ones_like(ratio), coordination_weight])

    return curvature_weights


class ConditionalParameters(NamedTuple):
    """Parameter ``weight`` of `ConditionalBottleneck`, which JAX traces.

    For marginal coordination, ``weight`` is the weight of the coordination term. For residual
    coordination, the weight of the term is ``weight`` times the ratio of the leading curvatures.
    """

    weight: Any


class GLMParameters(NamedTuple):
    """Parameters of `ModelBottleneck`, which JAX traces.

    Attributes
    ----------
    weight : weight of the coordination, as in `ConditionalParameters`
    ridge : ridge penalty of the coefficients
    design : (B, r, d) design matrix with d columns, for B blocks of r rows
    least_squares : (d, p) least-squares coefficients of the p statistics of a row on the design
    """

    weight: Any
    ridge: Any
    design: Any
    least_squares: Any


@dataclass(frozen=True)
class ConditionalBottleneck:
    """Objective n H(Y|C,Z) plus a weighted coordination term across known groups.

    H(Y|C,Z) is the conditional entropy of the features Y given clusters C and known groups Z, and n
    the number of rows.

    Attributes
    ----------
    features : name of the family of the features
    coordination : "residual" or "marginal"
    automatic : whether the weight of the coordination is "auto"
    """

    features: str
    coordination: str
    automatic: bool

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Build the optimisation problem of the solvers for ``rows``."""
        conditional = feature_term(rows, self.features, by_group=True)
        if self.coordination == "residual":
            coordination = residual_term(rows)
        else:
            coordination = feature_term(rows, self.features, by_group=False)
        rule = weight_rule(self.coordination, self.automatic, settings.method.weight)
        return Problem((conditional, coordination), rule)


@dataclass(frozen=True)
class ModelBottleneck(ConditionalBottleneck):
    """Objective of `ConditionalBottleneck`, with generalised linear models of the features.

    Minus the log likelihood of the models, which have one design matrix, replaces n H(Y|C,Z).
    """

    def __call__(self, rows: Rows, settings: Settings) -> GLMProblem:  # type: ignore[override]
        """Build the optimisation problem of the solvers for ``rows``.

        Residual coordination uses the residuals of a least-squares regression on the design matrix.
        """
        method, pooled = settings.method, rows
        if self.coordination == "residual":
            assert isinstance(rows.x, Dense)
            scale = sum_of_squares(rows) / rows.mass.sum()
            explained = method.design @ method.least_squares
            pooled = replace(rows, x=Dense(rows.x.x - explained))
            half_sum = 0.5 * sum_of_squares(pooled)
            unit_weight = jnp.ones((), rows.mass.dtype)
            coordination = Term(unit_weight, half_sum, None, gaussian_cost, False, scale)
        else:
            coordination = feature_term(rows, self.features, by_group=False)
        rule = weight_rule(self.coordination, self.automatic, method.weight)
        return GLMProblem(
            self.features, method.design, method.ridge, coordination, pooled, rule,
            settings.n_clusters,
        )  # fmt: skip


@parameters.constructor
class CCIB(WeightedMixin, BottleneckEstimator):  # type: ignore[misc]
    r"""Coordinated conditional information bottleneck (CCIB).

    CCIB finds clusters C that are informative about the features Y given the known structure Z.
    CCIB minimises, in nats of the whole data set,

    .. math:: n H(Y|C,Z) + \lambda G(C) + n I(C;X) / \beta

    over the memberships p(c|x) of the rows X, of total weight n, and anneals the inverse
    temperature :math:`\beta` to infinity. H is the conditional entropy under the model of the
    features, or the negative log likelihood per row. The coordination term G, with weight
    :math:`\lambda`, makes a cluster mean the same in all known groups. There are two choices of G:

    * "residual": half the within-cluster scatter of the residuals from the means of the known
      groups. "residual" does not favour clusters that equal the known groups (C = Z), however many
      features Z determines.
    * "marginal": G = n H(Y|C), as published. "marginal" rewards C = Z if Z determines many more
      features than the target clusters.

    Parameters
    ----------
    <n_clusters>
    coordination : {"auto", "residual", "marginal"}, default="auto"
        Coordination term G. "auto" is "marginal" for sparse counts, and else "residual".
    coordination_weight : float or "auto", default="auto"
        Weight of the coordination. For residual coordination, :math:`\lambda` is this number times
        the ratio of the leading curvatures of the two terms; "auto" is 1. For marginal
        coordination, :math:`\lambda` is this number; "auto" is the minimum of 0.3 and half the
        ratio of curvatures. Raise it if the meaning of a cluster differs between known groups. With
        0, the labels of different groups are unrelated. From 0 to 10**6.
    multi : {"product", "additive"}, default="product"
        Combination of several known labelings. "product" conditions on every combination of labels
        that occurs. "additive" models additive effects of the labelings by generalised linear
        models; use it if combinations hold few rows.
    ridge : float, default=0.01
        Ridge penalty of the generalised linear models: every squared coefficient costs ``ridge`` /
        2 nats. Intercepts have 1e-4 times this penalty. Raise it if coefficients diverge. From 1e-9
        to 10**9.
    quench : float or "auto", default="auto"
        As in `IB`; "auto" is 1 for marginal coordination with a given weight, which is the
        published algorithm.
    <features>
    <binarize>
    <solver>
    <cooling>
    <noise>
    <polish>
    <n_init>
    <max_iter>
    <tol>
    <random_state>
    <verbose>

    Attributes
    ----------
    coordination_weight_ : float
        Weight :math:`\lambda` of the fit.
    <labels_>
    <membership_>
    <n_clusters_>
    <objective_>
    <objective_trace_>
    <n_iter_>
    <converged_>
    <beta_>
    <critical_beta_>
    <cluster_centers_>
    <linkage_>
    <merge_costs_>
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
        If the clusters depend strongly on a known covariate, whose effect may not be linear.

    See Also
    --------
    IB : Information bottleneck without known structure.
    IBSI : Penalises the information about the known groups instead of conditioning on them.
    CondEns : Clusters within known groups, and combines the clusterings.
    ConditionalMixture : Gaussian mixture of the residuals from known structure.

    Notes
    -----
    The algorithm for ``solver="anneal"``, for every restart:

    1. Start below the first critical inverse temperature, at which clusters separate, with nearly
       equal memberships.
    2. Alternate the fixed-point update of the memberships, eq. (6.1.26), with the update of the
       statistics of the clusters by known group, until the memberships change by less than ``tol``.
    3. Multiply :math:`\beta` by ``cooling``, perturb the memberships by ``noise``, and repeat from
       step 2 until the labels are hard.

    "sequential" and "batched" reassign rows with hard labels (Algorithm 6.6), and "agglomerative"
    merges clusters (eq. C.3.14). An update takes O(nkm) time for k clusters and m features (the
    nonzero entries instead of nm for sparse rows), and O(n_init n k) memory.

    Continuous covariates: if ``known`` is a 2-D array of floats, the first term is the negative log
    likelihood of every feature under a generalised linear model on the standardised columns. Every
    cluster has separate coefficients. Gaussian features have the identity link and a common fixed
    variance. Bernoulli features have the logit link. Multinomial proportions have the log link, as
    Poisson counts with the total of the row as offset and weight 1 per row. Residuals are
    least-squares residuals. The same models serve ``multi="additive"``, on indicators of all labels
    except the first of each labeling. These models need dense rows and ``solver="anneal"``;
    `predict` needs ``known``.

    Without ``known``, CCIB is `IB`. ``y`` holds target labels, -1 for unknown labels.

    References
    ----------
    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, chapter 6:
    objective (6.1.18), update (6.1.26), Algorithm 6.6 with corrected joint masses, merge cost
    (C.3.14) with a corrected sign, continuous covariates (6.2.24) to (6.2.30), with one model per
    cluster and feature.

    Gondek, D. and Hofmann, T. (2004), "Non-redundant data clustering", IEEE International
    Conference on Data Mining, 75-82, doi:10.1109/ICDM.2004.10104.

    Residual coordination, the ridge and the initial temperature of the generalised linear models
    are specific to this package.

    Examples
    --------
    >>> from nrprob import CCIB, metrics
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> model = CCIB(2, random_state=0).fit(X, known=labels[:, 0])
    >>> print(f"{metrics.matched_accuracy(model.labels_, labels[:, 1]):.2f}")
    0.99
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    coordination: Annotated[str, parameters.Choice(("auto", "residual", "marginal"))] = "auto"
    coordination_weight: Annotated[float | str, parameters.Number(0, 1e6, words=("auto",))] = "auto"
    cooling: parameters.Cooling = 1.15
    noise: parameters.Noise = 1e-3
    quench: Annotated[float | str, parameters.Number(1, 1e5, words=("auto",))] = "auto"
    features: parameters.Features = "auto"
    binarize: parameters.Threshold = None
    solver: Annotated[str, parameters.Choice(SOLVERS)] = "anneal"
    multi: parameters.Combination = "product"
    ridge: Annotated[float, parameters.Number(1e-9, 1e9)] = 1e-2
    polish: parameters.Flag = True
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(known=KINDS, weights=True, sparse=True)
    _weight_names = ("", "coordination_weight_")
    _warns_of_single_feature = _warns_of_single_group = True
    # Least-squares coefficients on the design matrix; None without generalised linear models.
    _least_squares: Any = field(default=None, init=False)
    # Resolved coordination; None without known structure.
    _coordination: str | None = field(default=None, init=False)
    _faithful = False

    def _encode_known(self, X, known, mesh, sample_weight):
        self._encoder = DesignEncoder(self.multi)
        design = self._encoder.fit(known, X.shape[0], sample_weight)
        if design.kind == "soft" and self.multi == "additive":
            raise ValueError(
                "multi='additive' adds effects of labels; got soft Memberships; pass labels, or "
                "use multi='product'"
            )
        if design.columns is not None:
            self._check_modelled(X, mesh)
        return design

    def _check_modelled(self, X, mesh) -> None:
        if self.solver != "anneal":
            raise ValueError(
                f"{_MODELLED} need solver='anneal'; got solver={self.solver!r}; "
                "use that solver, or pass labels with multi='product'"
            )
        self._check_dense(X)
        if mesh is not None:
            raise ValueError(
                f"{_MODELLED} cannot shard rows over devices; got several devices; "
                "fit on one device, or pass labels with multi='product'"
            )

    def _check_dense(self, X) -> None:
        if sparse.issparse(X):
            raise ValueError(
                f"{_MODELLED} need dense X; got a sparse matrix; pass X.toarray() if it is small, "
                "or labels with multi='product'"
            )

    def stored_task(self, survey, fixed):
        """Task of a fit to `nrprob.stored` rows; raises ValueError for additive labelings."""
        if self.multi == "additive" and survey.design.kind == "labels":
            raise ValueError(
                f"{_MODELLED} need rows in memory; got stored rows; use multi='product'"
            )
        return super().stored_task(survey, fixed)

    @property
    def _separable(self) -> bool:
        return self._coordination != "residual"

    def _problem(self, task):
        features, modelled = self._features.features, task.design.columns is not None
        self._coordination = self._least_squares = None
        if task.design.kind == "nothing":
            return Bottleneck(features), ()
        weight = self.coordination_weight
        automatic = isinstance(weight, str)
        if isinstance(weight, str):
            weight = 1.0
        if weight == 0 and task.design.has_structure:
            warn(
                "coordination_weight=0 leaves clusters without a common meaning across known "
                "groups; compare labels within groups only, or raise it"
            )
        coordination = self.coordination
        if coordination == "auto":
            counts = sparse.issparse(task.x) and features == "multinomial"
            coordination = "marginal" if counts else "residual"
        self._faithful = coordination == "marginal" and not automatic
        self._coordination = coordination
        if modelled:
            # Only marginal coordination distinguishes a weight of 1 from "auto".
            automatic = automatic and coordination == "marginal"
            return ModelBottleneck(features, coordination, automatic), self._glm_parameters(
                task, weight
            )
        return ConditionalBottleneck(features, coordination, automatic), ConditionalParameters(
            weight
        )

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        super().finish(task, result)
        design = task.design
        if self._coordination == "residual" and design.kind == "labels" and design.columns is None:
            shape = design.n_groups, self.n_clusters
            if shares_differ(cross_table(design.codes, self.labels_, shape, task.weights)):
                warn(
                    "shares of clusters differ between known groups, so residuals from the group "
                    "means contain a part of the differences between clusters; got residual "
                    "coordination; compare with coordination='marginal', or, for continuous "
                    "features, with ConditionalMixture"
                )
        return self

    def _glm_parameters(self, task: Task, weight: float) -> GLMParameters:
        """Parameters of the generalised linear models, with padded columns of the design matrix.

        ``weight`` is the weight of the coordination, as in `ConditionalParameters`.
        """
        matrix = task.design.matrix
        n, d = matrix.shape
        if (d - 1) * self.n_clusters >= n:
            raise ValueError(
                f"known has {d - 1} columns, too many for {n} rows and {self.n_clusters} "
                "clusters, since every cluster has separate coefficients; got more coefficients "
                "than rows; pass fewer columns"
            )
        x = np.asarray(task.x, np.float64)
        root = np.ones((n, 1)) if task.weights is None else np.sqrt(task.weights)[:, None]
        self._least_squares = np.linalg.lstsq(root * matrix, root * x, rcond=None)[0]
        # Pad the columns, so that designs share compiled programs; the ridge keeps the
        # coefficients of padding columns at 0.
        wide = bucket_size(d, 64)
        design = np.pad(matrix, ((0, 0), (0, wide - d))).astype(task.x.dtype)
        explained = np.zeros((wide, task.rows.x.n_statistics))
        explained[:d, : x.shape[1]] = self._least_squares
        return GLMParameters(weight, self.ridge, task.layout.to_blocks(design), explained)

    def _descent(self):
        return self._make_descent(quench=1.0 if self._faithful else 100.0)

    def _log_membership(self, X, known) -> np.ndarray:
        if self._least_squares is None:
            return super()._log_membership(X, known)
        return self._log_prior - self.beta_ * self._model_costs(X, known)

    def _row_scores(self, X, known) -> np.ndarray:
        if self._least_squares is None:
            return super()._row_scores(X, known)
        return self._mixture_scores(self._model_costs(X, known))

    def _common_cost(self, x, design):
        cost = super()._common_cost(x, design)
        if self._coordination == "residual":
            cost += self.coordination_weight_ * half_squares(x)
        elif self._coordination == "marginal":
            cost *= 1 + self.coordination_weight_
        return cost

    def _model_costs(self, X, known) -> np.ndarray:
        """Costs (n, k) in nats of n new rows in k clusters, under the generalised linear models."""
        check_is_fitted(self)
        self._check_dense(X)
        family, weight = (
            families.get_family(self._features.features, "link"),
            self.coordination_weight_,
        )
        with standard():
            x = np.asarray(self._features(self._validate(X, reset=False)), np.float64)
            design = self._encoder.transform(known, x.shape[0]).matrix
            cost = np.empty((x.shape[0], self.n_clusters))
            for c in range(self.n_clusters):
                eta = design @ self._coef[: design.shape[1], c].astype(np.float64)
                cost[:, c] = (np.asarray(_cumulant(family.name, eta)) - x * eta).sum(1)
            common = np.asarray(family.link.base(x), np.float64)  # type: ignore[union-attr]
        if self._coordination == "residual":
            x = x - design @ self._least_squares
            common = common + weight * half_squares(x)
        else:
            common = common + weight * family.row_constant(x)
        return cost + common[:, None] + x @ self._coef[-1].T + self._intercept[-1]


_cumulant = jax.jit(lambda features, eta: link_potential(features, eta)[0], static_argnums=0)
