"""Information bottleneck with and without side information.

H is the entropy or conditional entropy in nats, and I the mutual information. There are n rows with
features Y, clusters C, and known groups Z.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from nrprob.engines.optimise.anneal import FixedWeights
from nrprob.engines.optimise.solve import Problem, Settings
from nrprob.estimator import parameters
from nrprob.estimator.capabilities import Capabilities
from nrprob.estimator.paths import SplittingEstimator
from nrprob.estimator.terms import SOLVERS
from nrprob.estimator.unconditional import WeightedUnconditionalMixin
from nrprob.exceptions import warn
from nrprob.methods.bottleneck.base import BottleneckEstimator
from nrprob.statistics.costs import mass_cost
from nrprob.statistics.families import feature_term
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Term
from nrprob.statistics.xlogx import xlogx

_LARGEST_GAMMA = 3.0  # weight of the side information per sample, above which `fit` warns


@dataclass(frozen=True)
class Bottleneck:
    """Objective n H(Y|C), the distortion of the information bottleneck.

    ``features`` is the name of the family of the features.
    """

    features: str

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Build the optimisation problem of the solvers for ``rows``."""
        term = feature_term(rows, self.features, by_group=False)
        return Problem((term,), FixedWeights(jnp.ones(1, rows.mass.dtype)))


class SideInformationParameters(NamedTuple):
    """Penalty weight ``gamma`` of `SideInformation`, which JAX traces."""

    gamma: Any


@dataclass(frozen=True)
class SideInformation:
    """Objective n H(Y|C) + gamma n I(C;Z) with the penalty weight gamma.

    The penalty is I(C;Z) = H(C) + H(Z) - H(C,Z), with a constant H(Z). The other two terms depend
    on the masses of the clusters, in total and by known group. ``features`` is the name of the
    family of the features.
    """

    features: str

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Build the optimisation problem of the solvers for ``rows``."""
        relevant = feature_term(rows, self.features, by_group=False)
        gamma = settings.method.gamma
        unit_weight = jnp.ones_like(gamma)
        sizes = rows.totals()[:, -1].astype(jnp.float64)
        entropy = xlogx(sizes.sum()) - xlogx(sizes).sum()
        zero = jnp.zeros_like(entropy)
        terms = (
            relevant,
            Term(unit_weight, entropy, None, mass_cost, False),
            Term(unit_weight, zero, None, mass_cost, True),
        )
        weights = jnp.stack([unit_weight, gamma, -gamma])
        return Problem(terms, FixedWeights(weights), n_start=1, curvature=gamma)


class SplittingBottleneck(SplittingEstimator, BottleneckEstimator):
    """Base class of information bottlenecks that also have ``solver="split"``."""

    def check_parameters(self):
        """Raise ValueError for parameters that are invalid for all data."""
        super().check_parameters()
        if self.solver == "split" and self.beta is not None:
            raise ValueError(
                f"solver='split' determines the inverse temperatures; got beta={self.beta!r}; "
                "leave it out"
            )


@parameters.constructor
class IB(WeightedUnconditionalMixin, SplittingBottleneck):  # type: ignore[misc]
    r"""Information bottleneck: clusters that preserve the information about the features.

    With rows X of total weight n, IB minimises, in nats of the whole data set,

    .. math:: n H(Y|C) + n \, [\alpha H(C) - H(C|X)] / \beta

    over the memberships p(c|x). C are the clusters, Y the features, :math:`\beta` is the inverse
    temperature and :math:`\alpha` the ``compression``. With :math:`\alpha = 1`, the objective is
    the published Lagrangian I(C;X) - beta I(C;Y), times n / beta, up to the constant n H(Y). With
    :math:`\alpha = 0`, the objective is information distortion. With ``beta=None``, IB anneals
    :math:`\beta` until the labels are hard; then the second term vanishes.

    Parameters
    ----------
    <n_clusters>
    <beta>
    <compression>
    <features>
    <binarize>
    solver : {"anneal", "sequential", "batched", "agglomerative", "split"}, default="anneal"
        Optimiser. "sequential", "batched" and "agglomerative" give hard labels. "split" increases
        the number of clusters one by one, at the inverse temperatures at which the largest cluster
        can be divided, until there are ``n_clusters`` soft clusters. "split" is deterministic, and
        uses ``cooling`` only if a split does not occur at its critical inverse temperature. Use
        "split" to compare with `CrossPartition`.
    <cooling>
    <noise>
    quench : float or "auto", default="auto"
        Spread of the initial temperatures. The first restart begins just below the critical inverse
        temperature of the first split. The other restarts begin at inverse temperatures that
        increase geometrically, up to ``quench`` times the critical inverse temperature. Raise it
        for more diverse restarts; 1 starts all restarts at the same temperature. "auto" is 100.
        From 1 to 10**5.
    <polish>
    <n_init>
    <max_iter>
    <tol>
    <random_state>
    <verbose>

    Attributes
    ----------
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
    path_, trials_, status_ : list, pandas.DataFrame and str
        Solutions by number of clusters, attempted splits, and reason of the end, as in
        `CrossPartition` (``solver="split"`` only).
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    See Also
    --------
    IBSI : Information bottleneck with a penalty on known groups.
    CCIB : Conditional information bottleneck given known structure.
    MixtureEM : Mixture model of the same features.

    Notes
    -----
    The algorithm for ``solver="anneal"``, for every restart:

    1. Start just below the critical inverse temperature of the first split, with nearly equal
       memberships.
    2. Alternate :math:`p(c|x) \propto p(c)^\alpha e^{-\beta d(x, c)}` with updates of p(c) and of
       the cluster statistics, until memberships change by less than ``tol``. The cost d(x, c) is
       the divergence of row x from cluster c.
    3. Multiply :math:`\beta` by ``cooling``, perturb the memberships by ``noise``, and repeat from
       step 2.

    An update takes O(nkm) time for k clusters and m features (nonzero entries instead of nm for
    sparse rows), and O(n_init n k) memory.

    References
    ----------
    Tishby, N., Pereira, F. C. and Bialek, W. (1999), "The information bottleneck method", Allerton
    Conference on Communication, Control and Computing, 368-377, arXiv:physics/0004057.

    Slonim, N. (2002), "The information bottleneck: theory and applications", PhD thesis, Hebrew
    University of Jerusalem. Sequential and agglomerative algorithms.

    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, section 3.5.3.
    Algorithm 3.6 is corrected: it removes a row from its cluster before it reassigns the row.

    Examples
    --------
    >>> from nrprob import IB, metrics
    >>> from nrprob.datasets import make_multinomial_2d
    >>> X, labels = make_multinomial_2d(200, 2, 400, random_state=0)
    >>> model = IB(2, random_state=0).fit(X)
    >>> print(f"{metrics.normalized_mutual_information(model.labels_, labels[:, 1]):.2f}")
    1.00
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    beta: parameters.Temperature = None
    compression: Annotated[float, parameters.Number(0, 1e6)] = 1.0
    features: parameters.Features = "auto"
    binarize: parameters.Threshold = None
    solver: Annotated[str, parameters.Choice((*SOLVERS, "split"))] = "anneal"
    cooling: parameters.Cooling = 1.15
    noise: parameters.Noise = 1e-3
    quench: Annotated[float | str, parameters.Number(1, 1e5, words=("auto",))] = "auto"
    polish: parameters.Flag = True
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    capabilities = Capabilities(known=(), weights=True, sparse=True)

    def score(self, X, y=None):  # type: ignore[override]
        r"""Negative mean cost of new rows under the fitted clusters.

        With the cost d(x, c) of row x in cluster c, the score is

        .. math:: -\frac{1}{n} \sum_i \min_c d(x_i, c) \qquad \text{or} \qquad
            \frac{1}{n} \sum_i \frac{1}{\beta} \log \sum_c p(c) e^{-\beta d(x_i, c)}

        for hard labels and for a finite :math:`\beta`, respectively.

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            New rows, or `nrprob.stored` rows.
        y : ignored

        Returns
        -------
        float
            In nats per sample; higher is better.
        """
        return super().score(X)

    def _problem(self, task):
        return Bottleneck(self._features.features), ()

    def _descent(self):
        return self._make_descent(self.beta, self.compression)


@parameters.constructor
class IBSI(SplittingBottleneck):
    r"""Information bottleneck with side information: a penalty on known groups.

    IBSI minimises, in nats of the whole data set,

    .. math:: n H(Y|C) + \gamma n I(C;Z) + n \, [\alpha H(C) - H(C|X)] / \beta

    over the memberships p(c|x) of the n rows X. C are the clusters, Y the features, Z the known
    groups, :math:`\gamma` is the penalty weight, :math:`\beta` the inverse temperature and
    :math:`\alpha` the ``compression``.

    Parameters
    ----------
    <n_clusters>
    gamma : float
        Penalty weight of I(C;Z). Raise it until the clusters are independent of the known groups.
        The penalty must outweigh the features that the known groups determine, so more of these
        features need a larger ``gamma``. Far too large values keep the labels near their initial
        values; `fit` warns above three times the number of samples. From 0 to 10**9.
    damped : bool, default=True
        Whether to damp the fixed-point iteration. With False, IBSI runs the published iteration,
        which can increase the objective for a large ``gamma``.
    quench : float or "auto", default="auto"
        As in `IB`; "auto" is 1 with ``damped=False``, which is the published algorithm.
    <beta>
    <compression>
    <features>
    <binarize>
    solver : {"anneal", "sequential", "batched", "agglomerative", "split"}, default="anneal"
        Optimiser. "sequential", "batched" and "agglomerative" give hard labels. "split" increases
        the number of clusters one by one, at the inverse temperatures at which the largest cluster
        can be divided, until there are ``n_clusters`` soft clusters. "split" is deterministic, and
        uses ``cooling`` only if a split does not occur at its critical inverse temperature. Use
        "split" to compare with `CrossPartition`.
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
    path_, trials_, status_ : list, pandas.DataFrame and str
        Solutions by number of clusters, attempted splits, and reason of the end, as in
        `CrossPartition` (``solver="split"`` only).
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    See Also
    --------
    IB : Information bottleneck without known groups.
    CCIB : Conditions on the known groups instead, and needs no penalty weight.
    NACI : Penalises quadratic mutual information with known groups.

    Notes
    -----
    The algorithm is the same as in `IB`, with the penalty in the update of the memberships. The
    penalty I(C;Z) is convex in the memberships, and the published update assumes that it is
    concave. Above some ``gamma``, the published update therefore increases the objective. With
    ``damped=True``, every step is multiplied by 1 / (1 + beta gamma), and the objective never
    increases.

    An update takes O(nk(m + r)) time for k clusters, m features and r known groups, and O(n_init n
    k) memory.

    References
    ----------
    Chechik, G. and Tishby, N. (2002), "Extracting relevant structures with side information",
    Advances in Neural Information Processing Systems 15.

    Gondek, D. (2005), "Non-redundant clustering", PhD thesis, Brown University, sections 6.1.1 and
    8.6.1, with the sign of the penalty corrected.

    Examples
    --------
    >>> from nrprob import IBSI, metrics
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (8, 4), random_state=0)
    >>> model = IBSI(2, gamma=10.0, random_state=0).fit(X, known=labels[:, 0])
    >>> print(f"{metrics.matched_accuracy(model.labels_, labels[:, 1]):.2f}")
    0.99
    """

    n_clusters: parameters.Clusters = 2
    _: KW_ONLY
    gamma: Annotated[float, parameters.Number(0, 1e9)]
    damped: parameters.Flag = True
    beta: parameters.Temperature = None
    compression: Annotated[float, parameters.Number(0, 1e6)] = 1.0
    features: parameters.Features = "auto"
    binarize: parameters.Threshold = None
    solver: Annotated[str, parameters.Choice((*SOLVERS, "split"))] = "anneal"
    cooling: parameters.Cooling = 1.15
    noise: parameters.Noise = 1e-3
    quench: Annotated[float | str, parameters.Number(1, 1e5, words=("auto",))] = "auto"
    polish: parameters.Flag = True
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    @property
    def _one_is_few(self) -> bool:  # type: ignore[override]
        return self.solver != "agglomerative"  # merges penalise every single group

    def _problem(self, task):
        share = task.design.memberships
        sizes = np.bincount(task.design.codes) if share is None else share.sum(0)
        self._surprise = np.log(sizes.sum() / np.maximum(sizes, 1e-30))  # -log p(z) of groups z
        return SideInformation(self._features.features), SideInformationParameters(self.gamma)

    def _descent(self):
        quench = 100.0 if self.damped else 1.0
        return self._make_descent(self.beta, self.compression, quench)._replace(
            damped=bool(self.damped)
        )

    def _common_cost(self, x, design):
        z, share = self._surprise, design.memberships
        entropy = z[design.codes] if share is None else share @ z
        return super()._common_cost(x, design) + self.gamma * entropy

    def finish(self, task, result):
        """Set the fitted attributes; see `Clusterer.finish`."""
        super().finish(task, result)
        n = float(len(self.labels_) if task.weights is None else task.weights.sum())
        if self.gamma > _LARGEST_GAMMA * n:
            warn(
                "the penalty of one sample outweighs its features, so labels may stay near their "
                f"initial values; got gamma={self.gamma:g} for {n:g} samples; lower gamma to about "
                f"{0.1 * n:.2g}, and compare"
            )
        return self
