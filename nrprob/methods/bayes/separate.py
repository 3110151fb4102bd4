"""Clusters of a normal distribution each, with its own mean and covariance integrated out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from nrprob.engines.sample import Target
from nrprob.methods.bayes.prior import Prior
from nrprob.methods.bayes.tied import SHARED


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SeparateTarget:
    """A distribution over partitions; see `nrprob.methods.bayes.prior.PriorTarget`.

    Attributes
    ----------
    plain : whose first term is of a `nrprob.statistics.codes.NormalWishart`
    prior : the numbers in use
    grid : their grids
    """

    plain: Target
    prior: Prior
    grid: Prior

    def __getattr__(self, name: str) -> Any:
        if name in SHARED or name in ("length", "joining", "odds"):
            return getattr(self.plain, name)
        raise AttributeError(name)

    def at(self, prior: Prior) -> SeparateTarget:
        """The distribution given other numbers."""
        term, *rest = self.plain.terms
        code: Any = term.cost
        code = replace(
            code, kappa=prior.centre_precision, variance=prior.variance, freedom=prior.freedom
        )
        plain = replace(self.plain, terms=(replace(term, cost=code), *rest))
        return replace(self, plain=plain, prior=prior)

    def features(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the marginal likelihood of the features, in nats."""
        return self.plain.terms[0].cost(cells.sum(0)).sum()

    def for_rows(self, cells: jax.Array, key: jax.Array) -> Target:
        """The distribution itself, which is a sum over clusters."""
        return self.plain
