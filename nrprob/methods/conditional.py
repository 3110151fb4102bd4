"""The coordinated conditional information bottleneck: clusters that are new given known ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from nrprob.engines.solve import Hyper, Problem
from nrprob.estimator import TermEstimator
from nrprob.methods.bottleneck import Bottleneck, feature_term
from nrprob.statistics.costs import gaussian
from nrprob.statistics.rows import Rows
from nrprob.statistics.terms import Residual, Term


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
    return Term(one, 0.5 * within, Residual(mean), gaussian, False, scale)


@dataclass(frozen=True)
class ConditionalBottleneck:
    """n H(Y|C,Z) plus a weighted coordination term that makes clusters agree across groups."""

    features: str
    coordination: str
    automatic: bool

    def __call__(self, rows: Rows, hyper: Hyper) -> Problem:
        """Make the problem from the rows, with the weight from the leading curvatures."""
        conditional = feature_term(rows, self.features, by_group=True)
        if self.coordination == "residual":
            coordination = residual_term(rows)
        else:
            coordination = feature_term(rows, self.features, by_group=False)
        given = hyper["coordination_weight"]

        def weigh(curvatures):
            first, second = curvatures
            ratio = jnp.where(second > 0, first / jnp.where(second > 0, second, 1), 0)
            if self.coordination == "residual":
                weight = given * ratio
            elif self.automatic:
                weight = jnp.minimum(0.3, 0.5 * ratio)
            else:
                weight = given
            return jnp.stack([jnp.ones_like(weight), weight])

        return Problem((conditional, coordination), weigh)


class CCIB(TermEstimator):
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
    n_clusters : int, default=2
        Number of clusters.
    coordination : {"auto", "residual", "marginal"}, default="auto"
        What coordinates clusters across known groups. "auto" is marginal for sparse counts, else
        residual.
    coordination_weight : float or "auto", default="auto"
        For residual coordination a number kappa multiplies the ratio of the leading curvatures of
        the two terms ("auto" is 1). For marginal coordination it is lambda itself, and "auto" is
        min(0.3, half that ratio). 0 is the uncoordinated CIB, whose clusters have no common meaning
        across groups.
    multi : {"product"}, default="product"
        How several known labelings combine; "product" conditions on every combination that occurs.
    quench : float or "auto", default="auto"
        As in `IB`, but "auto" is 1 for marginal coordination of a given weight, the thesis's
        algorithm.
    features, binarize, solver, cooling, noise, n_init, max_iter, tol, random_state, verbose
        As in `IB`.

    Attributes
    ----------
    coordination_weight_ : float
        The lambda that was used.
    labels_, membership_, n_clusters_, objective_, objective_trace_, n_iter_, converged_, beta_, \
critical_beta_, linkage_, n_features_in_, classes_
        As in `IB`.

    Notes
    -----
    Without ``known`` this is `IB`. ``y`` holds wanted labels, -1 where unknown.

    References
    ----------
    Gondek (2005), chapter 6: objective (6.1.18), update (6.1.26), sequential Algorithm 6.6 with the
    joint masses corrected, merge cost (C.3.14) with its sign corrected. Residual coordination is
    this package's own.

    Examples
    --------
    >>> from nrprob import CCIB
    >>> from nrprob.datasets import make_binary_partitions
    >>> X, labels = make_binary_partitions(200, (10, 4), random_state=0)
    >>> model = CCIB(2, random_state=0).fit(X, known=labels[:, 0])
    """

    def __init__(
        self,
        n_clusters=2,
        *,
        coordination="auto",
        coordination_weight="auto",
        cooling=1.15,
        noise=1e-3,
        quench="auto",
        features="auto",
        binarize=None,
        solver="anneal",
        multi="product",
        n_init=10,
        max_iter=100,
        tol=1e-4,
        random_state=None,
        verbose=0,
    ):
        self.n_clusters = n_clusters
        self.coordination = coordination
        self.coordination_weight = coordination_weight
        self.cooling = cooling
        self.noise = noise
        self.quench = quench
        self.features = features
        self.binarize = binarize
        self.solver = solver
        self.multi = multi
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    _weight_names = ("", "coordination_weight_")

    def _problem(self, features: str, groups: Any, known: Any) -> Any:
        self._check_choice("coordination", self.coordination, ("auto", "residual", "marginal"))
        self._check_choice("multi", self.multi, ("product",))
        weight = self.coordination_weight
        automatic = isinstance(weight, str)
        if automatic:
            self._check_choice("coordination_weight", weight, ("auto",), "or a number")
            weight = 1.0
        self._check_number("coordination_weight", weight, low=0)
        if known is None:
            return Bottleneck(features), {}
        if weight == 0 and groups.n_groups > 1:
            self._warn_uncoordinated()
        coordination = self.coordination
        if coordination == "auto":
            coordination = "marginal" if self._sparse_counts else "residual"
        self._faithful = coordination == "marginal" and not automatic
        return (
            ConditionalBottleneck(features, coordination, automatic),
            {"coordination_weight": weight},
        )
