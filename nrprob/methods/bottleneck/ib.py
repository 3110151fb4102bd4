"""The information bottleneck, without and with side information."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from nrprob.engines.optimise.anneal import FixedWeights
from nrprob.engines.optimise.solve import Problem, Settings
from nrprob.estimator import parameters
from nrprob.estimator.paths import SplittingEstimator
from nrprob.estimator.terms import SOLVERS
from nrprob.estimator.unconditional import UnconditionalMixin
from nrprob.methods.bottleneck.base import BottleneckEstimator
from nrprob.statistics.costs import mass_cost
from nrprob.statistics.families import feature_term
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Term
from nrprob.statistics.xlogx import xlogx


@dataclass(frozen=True)
class Bottleneck:
    """n H(Y|C): the information bottleneck minimises it plus n I(C;X)/beta."""

    features: str

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Make the problem from the rows."""
        term = feature_term(rows, self.features, by_group=False)
        return Problem((term,), FixedWeights(jnp.ones(1, rows.mass.dtype)))


class SideNumbers(NamedTuple):
    """``gamma``, the weight of I(C;Z)."""

    gamma: Any


@dataclass(frozen=True)
class SideInformation:
    """n H(Y|C) + gamma n I(C;Z), with I(C;Z) = H(C) + H(Z) - H(C,Z) as two mass terms."""

    features: str

    def __call__(self, rows: Rows, settings: Settings) -> Problem:
        """Make the problem from the rows."""
        relevant = feature_term(rows, self.features, by_group=False)
        gamma = settings.method.gamma
        one = jnp.ones_like(gamma)
        sizes = rows.totals()[:, -1].astype(jnp.float64)
        entropy = xlogx(sizes.sum()) - xlogx(sizes).sum()
        zero = jnp.zeros_like(entropy)
        terms = (
            relevant,
            Term(one, entropy, None, mass_cost, False),
            Term(one, zero, None, mass_cost, True),
        )
        weights = jnp.stack([one, gamma, -gamma])
        return Problem(terms, FixedWeights(weights), n_start=1, curvature=gamma)


class SplittingBottleneck(SplittingEstimator, BottleneckEstimator):
    """A bottleneck that may be followed from split to split as well."""

    def check_parameters(self):
        """Refuse parameters that are wrong whatever the data."""
        super().check_parameters()
        if self.solver == "split" and self.beta is not None:
            raise ValueError(
                f"solver='split' finds its own inverse temperatures; got beta={self.beta!r}; leave "
                "it out"
            )


@parameters.constructor
class IB(UnconditionalMixin, SplittingBottleneck):  # type: ignore[misc]
    r"""Information bottleneck: clusters that keep what the rows say about the features.

    Minimises, in nats of the whole data set and with every row of equal weight,

    .. math:: n H(Y|C) + n \, [\alpha H(C) - H(C|X)] / \beta

    with :math:`\alpha` the ``compression``. At 1 this is the Lagrangian I(C;X) - beta I(C;Y) of
    Tishby et al. (1999), divided by beta and up to the constant n H(Y); at 0 it is information
    distortion. ``beta=None`` anneals until the labels are hard, where the second term vanishes.

    Parameters
    ----------
    <n_clusters>
    <beta>
    <compression>
    <features>
    <binarize>
    solver : {"anneal", "sequential", "batched", "agglomerative", "split"}, default="anneal"
        How to optimise; "sequential", "batched" and "agglomerative" give hard labels. "split" grows
        the clusters one by one, each at the inverse temperature at which the largest can be
        divided, as `CrossPartition` does, for comparison with it: it ends where there are
        ``n_clusters``, which are soft, uses ``cooling`` only where a split does not come about at
        once, and leaves nothing to chance.
    <cooling>
    <noise>
    quench : float or "auto", default="auto"
        Restarts of an annealing start at inverse temperatures that rise geometrically up to
        ``quench`` times that of the first, which starts just below the first split. 1 anneals all
        of them from there, which makes them nearly equal. "auto" is 100; at most 10**5.
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
        All levels, what was tried, and how it ended, as in `CrossPartition` ("split" only).
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    References
    ----------
    Tishby, Pereira and Bialek (1999); Slonim (2002), sequential and agglomerative forms;
    Gondek (2005), section 3.5.3, with Algorithm 3.6 corrected to draw a row out before it is
    placed.

    Examples
    --------
    >>> from nrprob import IB
    >>> from nrprob.datasets import make_multinomial_2d
    >>> X, labels = make_multinomial_2d(200, 2, 400, random_state=0)
    >>> IB(2, random_state=0).fit(X).labels_.shape
    (200,)
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
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    def score(self, X, y=None):  # type: ignore[override]
        r"""Minus the increase of the objective per new row, under the fitted clusters.

        With the cost d(x, c) of a row in a cluster, which is linear in the row's mass,

        .. math:: -\frac{1}{n} \sum_i \min_c d(x_i, c) \qquad \text{or} \qquad
            \frac{1}{n} \sum_i \frac{1}{\beta} \log \sum_c p(c) e^{-\beta d(x_i, c)}

        for hard labels or at a finite ``beta`` (without p(c) for ``prior=False``).

        Parameters
        ----------
        X : array-like, sparse matrix or JAX array of shape (n_samples, n_features)
            Or `nrprob.stored` rows.
        y : ignored

        Returns
        -------
        float
            In nats per row; higher is better.
        """
        return super().score(X)

    def _problem(self, task):
        return Bottleneck(self._features.features), ()

    def _descent(self):
        return self._free(self.beta, self.compression)


@parameters.constructor
class IBSI(SplittingBottleneck):
    r"""Information bottleneck with side information: a weighted penalty on what is known.

    Minimises, in nats of the whole data set,

    .. math:: n H(Y|C) + \gamma n I(C;Z) + n \, [\alpha H(C) - H(C|X)] / \beta

    with :math:`\alpha` the ``compression``.

    The published fixed-point iteration is not a descent: the penalty is convex where the iteration
    takes it to be concave, and above some ``gamma`` it misses even good partitions. ``damped=True``
    takes the part 1 / (1 + beta gamma) of every step, which never raises the objective.

    Parameters
    ----------
    <n_clusters>
    gamma : float
        Weight of I(C;Z), from 0 to 10**9. It must outweigh the features that carry the known
        structure, so it has to grow with their number. Damped, a hundred times more than that does
        little harm; far beyond, the descent is too stiff to leave its start.
    damped : bool, default=True
        False for the iteration as published.
    quench : float or "auto", default="auto"
        As in `IB`, but "auto" is 1 with ``damped=False``, the published algorithm.
    <beta>
    <compression>
    <features>
    <binarize>
    solver : {"anneal", "sequential", "batched", "agglomerative", "split"}, default="anneal"
        How to optimise; "sequential", "batched" and "agglomerative" give hard labels. "split" grows
        the clusters one by one, each at the inverse temperature at which the largest can be
        divided, as `CrossPartition` does, for comparison with it: it ends where there are
        ``n_clusters``, which are soft, uses ``cooling`` only where a split does not come about at
        once, and leaves nothing to chance.
    <cooling>
    <noise>
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
        All levels, what was tried, and how it ended, as in `CrossPartition` ("split" only).
    <restarts_>
    <n_features_in_>
    <feature_names_in_>
    <classes_>

    References
    ----------
    Chechik and Tishby (2002); Gondek (2005), sections 6.1.1 and 8.6.1, with the sign of the penalty
    corrected.

    Examples
    --------
    >>> from nrprob import IBSI
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (8, 4), random_state=0)
    >>> model = IBSI(2, gamma=10.0, random_state=0).fit(X, known=labels[:, 0])
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
    n_init: parameters.Count = 10
    max_iter: parameters.Count = 100
    tol: parameters.Tolerance = 1e-4
    random_state: Any = None
    verbose: parameters.Verbosity = 0

    @property
    def _one_is_few(self) -> bool:  # type: ignore[override]
        return self.solver != "agglomerative"  # whose merges pay for every group

    def _problem(self, task):
        share = task.groups.share
        sizes = np.bincount(task.groups.codes) if share is None else share.sum(0)
        self._surprise = np.log(sizes.sum() / np.maximum(sizes, 1e-30))  # of every group, -log p(z)
        return SideInformation(self._features.features), SideNumbers(self.gamma)

    def _descent(self):
        quench = 100.0 if self.damped else 1.0
        return self._free(self.beta, self.compression, quench)._replace(damped=bool(self.damped))

    def _common_cost(self, x, groups):
        z, share = self._surprise, groups.share
        entropy = z[groups.codes] if share is None else share @ z
        return super()._common_cost(x, groups) + self.gamma * entropy
