"""Clusters of a normal distribution each, with its own mean and covariance integrated out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from nrprob.engines.target import Target
from nrprob.methods.bayes.prior import NumbersOnly, Prior
from nrprob.methods.bayes.tied import SHARED
from nrprob.trees import node


@node
class SeparateTarget(NumbersOnly):
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
        if name in SHARED or name in ("length", "odds"):
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

    def predicting(self, cells: jax.Array) -> tuple[Any, jax.Array]:
        """Code of the features of whole rows, and cells as rows of less weight make them.

        Rows that are predicted are not raised to the power of those that they are predicted from.
        """
        code: Any = self.plain.terms[0].cost
        return replace(code, power=jnp.ones_like(code.power)), code.power * cells

    def features_of(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What the features of single rows (b, p) of groups (b,) add to every cluster: (K, b)."""
        code, cells = self.predicting(cells.sum(0))
        prepared = jax.tree.map(lambda a: a[..., None], code.prepare(cells.T))
        return code.join(prepared, x.T)

    def joining(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What single rows (b, p) add to every cluster: (K, b)."""
        rest = replace(self.plain, terms=self.plain.terms[1:])
        return self.features_of(cells, x, group) + rest.joining(cells, x, group)

    def left_out(self, cells: jax.Array, labels: jax.Array) -> jax.Array:
        """Log density (n',) of the features of every row given the others of its cluster."""
        code, less = self.predicting(cells.sum(0)[labels] - self.plain.x)
        return code(less) - code(less + self.plain.x)

    def for_rows(self, cells: jax.Array, key: jax.Array) -> Target:
        """The distribution itself, which is a sum over clusters."""
        return self.plain
