"""Coordinated conditional information bottleneck: new clusters given known groups."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from nrprob.engines.optimise.anneal import FixedWeights, WeightRule
from nrprob.engines.optimise.solve import Problem, Settings
from nrprob.estimator import parameters
from nrprob.estimator.linear import Task
from nrprob.estimator.terms import SOLVERS
from nrprob.exceptions import warn
from nrprob.known import DesignEncoder, read
from nrprob.methods.bottleneck.base import BottleneckEstimator
from nrprob.methods.bottleneck.glm import GLMProblem, potential
from nrprob.methods.bottleneck.ib import Bottleneck
from nrprob.settings import standard
from nrprob.statistics import families
from nrprob.statistics.costs import gaussian_cost
from nrprob.statistics.families import feature_term, half_squares, sum_of_squares
from nrprob.statistics.rows import Dense, Rows, bucket_size
from nrprob.statistics.terms import Residual, Term

_MODELLED = "continuous known structure and multi='additive'"


def residual_term(rows: Rows) -> Term:
    """Half the scatter, within clusters, of the rows' deviations from the mean of their group.

    All features keep their common unit. Dividing each by its own deviation within groups would
    blow up the noise of the features that the known structure explains best, which are the many
    that make it dominant.
    """
    totals = rows.totals()
    mass = totals[:, -1:]
    features = np.arange(rows.x.n_statistics) < rows.x.n_statistics - 1
    mean = totals * features / jnp.maximum(mass, 1e-30)
    within = rows.scatter(mean)[:-1].sum()
    scale = (within + (mass * mean**2).sum()) / mass.sum()
    one = jnp.ones((), mean.dtype)
    return Term(one, 0.5 * within, Residual(mean), gaussian_cost, False, scale)


def _weigh(coordination: str, automatic: bool, given: jax.Array) -> WeightRule:
    """Weights of the conditional term and its coordination, from their leading curvatures."""
    if coordination != "residual" and not automatic:
        return FixedWeights(jnp.stack([jnp.ones_like(given), given]))

    def weigh(curvatures):
        first, second = curvatures
        ratio = jnp.where(second > 0, first / jnp.where(second > 0, second, 1), 0)
        if coordination == "residual":
            weight = given * ratio
        else:
            weight = jnp.minimum(0.3, 0.5 * ratio)
        return jnp.stack([jnp.ones_like(weight), weight])

    return weigh


class ConditionalNumbers(NamedTuple):
    """``weight`` of the coordination: kappa of the residual one, lambda of the marginal one."""

    weight: Any


class ModelNumbers(NamedTuple):
    """The same, and of the models.

    Attributes
    ----------
    ridge : penalty of their coefficients
    design : (B, r, d) their columns
    least_squares : (d, p) coefficients of the rows on these columns
    """

    weight: Any
    ridge: Any
    design: Any
    least_squares: Any


@dataclass(frozen=True)
class ConditionalBottleneck:
    """n H(Y|C,Z) plus a weighted coordination term that makes clusters agree across groups."""

    features: str
    coordination: str
    automatic: bool

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Make the problem from the rows, with the weight from the leading curvatures."""
        conditional = feature_term(rows, self.features, by_group=True)
        if self.coordination == "residual":
            coordination = residual_term(rows)
        else:
            coordination = feature_term(rows, self.features, by_group=False)
        weigh = _weigh(self.coordination, self.automatic, settings.method.weight)
        return Problem((conditional, coordination), weigh)


@dataclass(frozen=True)
class ModelBottleneck(ConditionalBottleneck):
    """The same, with generalised linear models of the features in place of known groups."""

    def __call__(self, rows: Rows, settings: Settings) -> GLMProblem:  # type: ignore[override]
        """Make the problem; residuals are those of least squares on the known structure."""
        numbers, pooled = settings.method, rows
        if self.coordination == "residual":
            assert isinstance(rows.x, Dense)
            scale = sum_of_squares(rows) / rows.mass.sum()
            explained = numbers.design @ numbers.least_squares
            pooled = replace(rows, x=Dense(rows.x.x - explained))
            one = jnp.ones((), rows.mass.dtype)
            coordination = Term(
                one, 0.5 * sum_of_squares(pooled), None, gaussian_cost, False, scale
            )
        else:
            coordination = feature_term(rows, self.features, by_group=False)
        weigh = _weigh(self.coordination, self.automatic, numbers.weight)
        return GLMProblem(
            self.features, numbers.design, numbers.ridge, coordination, pooled, weigh,
            settings.n_clusters,
        )  # fmt: skip


@parameters.constructor
class CCIB(BottleneckEstimator):
    r"""Coordinated conditional information bottleneck: a clustering that is not the known one.

    Minimises, in nats of the whole data set, with known structure Z,

    .. math:: n H(Y|C,Z) + \lambda G(C) + n I(C;X) / \beta

    while annealing beta to infinity. The first term asks for clusters that are informative once Z
    is known; G makes a cluster mean the same in every known group. "residual" coordination takes
    for G half the scatter, within clusters, of the rows' deviations from the mean of their known
    group: Z itself gains nothing by it, however many features it governs. "marginal" is the
    thesis's G = n H(Y|C), which rewards C = Z as soon as Z governs many more features than the
    sought structure.

    Parameters
    ----------
    <n_clusters>
    coordination : {"auto", "residual", "marginal"}, default="auto"
        What coordinates clusters across known groups. "auto" is marginal for sparse counts, else
        residual.
    coordination_weight : float or "auto", default="auto"
        For residual coordination a number kappa multiplies the ratio of the leading curvatures of
        the two terms ("auto" is 1). For marginal coordination it is lambda itself, and "auto" is
        min(0.3, half that ratio); a number is from 0 to 10**6. 0 is the uncoordinated CIB, whose
        clusters have no common meaning across groups.
    multi : {"product", "additive"}, default="product"
        How several known labelings combine. "product" conditions on every combination that occurs;
        "additive" lets their effects on the features add up, in the models below, which need far
        fewer rows where there are many labelings.
    ridge : float, default=0.01
        For those models only: half of it times every squared slope, in nats, is added to the
        objective (on intercepts, a ten-thousandth of that); from 1e-9 to 10**9.
    quench : float or "auto", default="auto"
        As in `IB`, but "auto" is 1 for marginal coordination of a given weight, the thesis's
        algorithm.
    <features>
    <binarize>
    <solver>
    <cooling>
    <noise>
    <n_init>
    <max_iter>
    <tol>
    <random_state>
    <verbose>

    Attributes
    ----------
    coordination_weight_ : float
        The lambda that was used.
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
        If one discrete feature y, such as a boolean column, determines the clusters c, or one of
        three or more clusters: I(c; y) / H(c) above 0.7.

    Notes
    -----
    Without ``known`` this is `IB`. ``y`` holds wanted labels, -1 where unknown.

    A 2-D array of floats for ``known`` is continuous structure. The first term is then minus the
    log likelihood of every feature under a generalised linear model on the standardised columns, of
    which each cluster has its own: with the identity link and the features' common fixed variance
    (gaussian), the logit (bernoulli), or the logarithm (multinomial; proportions as Poisson counts
    with the row's total as offset, a row counting once). Residuals are those of least squares. The
    same models serve ``multi="additive"``, on one column of 0 and 1 per label but the first. They
    take dense rows and ``solver="anneal"``, and `predict` needs ``known``.

    References
    ----------
    Gondek (2005), chapter 6: objective (6.1.18), update (6.1.26), sequential Algorithm 6.6 with the
    joint masses corrected, merge cost (C.3.14) with its sign corrected; models of continuous
    structure (6.2.24) to (6.2.30), with one model per cluster and feature in (6.2.29) and with the
    logarithm and the coordination term that (6.2.30) lacks. Residual coordination is this package's
    own, and so are the ridge and the start of the models' annealing.

    Examples
    --------
    >>> from nrprob import CCIB
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> model = CCIB(2, random_state=0).fit(X, known=labels[:, 0])
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    coordination: Annotated[str, parameters.Choice(("auto", "residual", "marginal"))] = "auto"
    coordination_weight: Annotated[Any, parameters.Number(0, 1e6, words=("auto",))] = "auto"
    cooling: parameters.Cooling = 1.15
    noise: parameters.Noise = 1e-3
    quench: Annotated[float | str, parameters.Number(1, 1e5, words=("auto",))] = "auto"
    features: parameters.Features = "auto"
    binarize: parameters.Threshold = None
    solver: Annotated[str, parameters.Choice(SOLVERS)] = "anneal"
    multi: parameters.Combination = "product"
    ridge: Annotated[float, parameters.Number(1e-9, 1e9)] = 1e-2
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    _weight_names = ("", "coordination_weight_")
    _warns_of_single_feature = True
    # What turns known structure into columns of models, in an estimator that was fitted with them.
    _columns: DesignEncoder | None = field(default=None, init=False)
    # What coordinates, once known; None where nothing is known.
    _coordination: str | None = field(default=None, init=False)
    _faithful = False

    def _grouped(self, X, known, mesh):
        self._columns = None
        if not known.modelled and (known.kind == "nothing" or self.multi == "product"):
            return super()._grouped(X, known, mesh)
        self._check_modelled(X, mesh)
        self._columns = DesignEncoder()
        self._design = self._columns.fit(known, known.n_samples)
        return super()._grouped(X, read(None, known.n_samples), mesh)

    def _check_modelled(self, X, mesh) -> None:
        if self.solver != "anneal":
            raise ValueError(
                f"{_MODELLED} need solver='anneal'; got solver={self.solver!r}; "
                "use that one, or pass labels with multi='product'"
            )
        self._check_dense(X)
        if mesh is not None:
            raise ValueError(
                f"{_MODELLED} cannot shard rows over devices; got several devices; "
                "fit on one of them, or pass labels with multi='product'"
            )

    def _check_dense(self, X) -> None:
        if sparse.issparse(X):
            raise ValueError(
                f"{_MODELLED} need dense X; got a sparse matrix; pass X.toarray() if it is small, "
                "or labels with multi='product'"
            )

    def stored_task(self, survey, fixed):
        """See `BottleneckEstimator.stored_task`."""
        if self.multi == "additive" and survey.known.kind == "labels":
            raise ValueError(
                f"{_MODELLED} need rows in memory; got stored rows; use multi='product'"
            )
        return super().stored_task(survey, fixed)

    @property
    def _separable(self) -> bool:
        return self._coordination != "residual"

    def _problem(self, task):
        features, modelled = self._features.features, self._columns is not None
        self._coordination = None
        if task.known.kind == "nothing" and not modelled:
            return Bottleneck(features), ()
        automatic = isinstance(self.coordination_weight, str)
        weight = 1.0 if automatic else self.coordination_weight
        if weight == 0 and (task.groups.n_groups > 1 or modelled):
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
            # Whether the weight is given matters to marginal coordination only.
            automatic = automatic and coordination == "marginal"
            return ModelBottleneck(features, coordination, automatic), self._models(task, weight)
        return ConditionalBottleneck(features, coordination, automatic), ConditionalNumbers(weight)

    def _models(self, task: Task, weight: float) -> ModelNumbers:
        """Numbers of the models, with their columns laid out."""
        n, d = self._design.shape
        if (d - 1) * self.n_clusters >= n:
            raise ValueError(
                f"known has {d - 1} columns, too many for {n} rows and {self.n_clusters} "
                "clusters, each of which has its own coefficients; got more coefficients than "
                "rows; pass fewer columns"
            )
        x = np.asarray(task.x, np.float64)
        self._least_squares = np.linalg.lstsq(self._design, x, rcond=None)[0]
        # Columns are bucketed, like those of the features; the ridge takes care of empty ones.
        wide = bucket_size(d, 64)
        design = np.pad(self._design, ((0, 0), (0, wide - d))).astype(task.x.dtype)
        explained = np.zeros((wide, task.rows.x.n_statistics))
        explained[:d, : x.shape[1]] = self._least_squares
        del self._design
        return ModelNumbers(weight, self.ridge, task.layout.to_blocks(design), explained)

    def _descent(self):
        return self._free(quench=1.0 if self._faithful else 100.0)

    def _told(self, task):
        return self._columns is not None or super()._told(task)

    def _log_membership(self, X, known) -> np.ndarray:
        if self._columns is None:
            return super()._log_membership(X, known)
        return self._log_prior - self.beta_ * self._model_costs(X, known, self._columns)

    def _row_scores(self, X, known) -> np.ndarray:
        if self._columns is None:
            return super()._row_scores(X, known)
        return self._mix(self._model_costs(X, known, self._columns))

    def _common_cost(self, x, groups):
        cost = super()._common_cost(x, groups)
        if self._coordination == "residual":
            cost += self.coordination_weight_ * half_squares(x)
        elif self._coordination == "marginal":
            cost *= 1 + self.coordination_weight_
        return cost

    def _model_costs(self, X, known, columns: DesignEncoder) -> np.ndarray:
        """Costs (n, k) of new rows under the models of every cluster."""
        check_is_fitted(self)
        self._check_dense(X)
        family, weight = (
            families.get_family(self._features.features, "link"),
            self.coordination_weight_,
        )
        with standard():
            x = np.asarray(self._features(self._validate(X, reset=False)), np.float64)
            design = columns.transform(known, x.shape[0])
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


_cumulant = jax.jit(lambda features, eta: potential(features, eta)[0], static_argnums=0)
