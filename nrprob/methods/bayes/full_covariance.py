"""Gaussian clusters with their own means and covariances, integrated out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample.target import Target, by_parts, occupied
from nrprob.engines.sample.uniforms import normal
from nrprob.methods.bayes.hyperparameters import NumbersOnly, Prior
from nrprob.methods.bayes.shared_covariance import SHARED, wishart_root
from nrprob.methods.bayes.six_move_draws import log_gamma_variate
from nrprob.methods.bayes.weights import reweighted, unweighted
from nrprob.statistics.matrices import whitener
from nrprob.trees import node


def moments(rows: Any, full: bool = True) -> jax.Array:
    """First and second moments of rows (n, m), as columns; of pairs of columns if ``full``."""
    if not full:
        return jnp.concatenate([rows, rows * rows], 1)
    first, second = np.triu_indices(rows.shape[1])
    return jnp.concatenate([rows, rows[:, first] * rows[:, second]], 1)


@node
class SeparateTarget(NumbersOnly):
    """A distribution over partitions; see `nrprob.methods.bayes.hyperparameters.PriorTarget`.

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
        if name in SHARED or name in ("length", "odds", "additive"):
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

    def with_room(self, n_slots: int) -> SeparateTarget:
        """The distribution of those partitions that have ``n_slots`` clusters at most."""
        return replace(self, plain=self.plain.with_room(n_slots))

    @property
    def without_features(self) -> Target:
        """Distribution of labels and classes alone."""
        return replace(self.plain, terms=self.plain.terms[1:])

    def features(self, cells: jax.Array) -> jax.Array:
        """Minus the log of the marginal likelihood of the features, in nats."""
        each = by_parts(lambda part: self.plain.terms[0].cost(part.sum(0)), cells, occupied(cells))
        return each.sum()

    def predicting(self, cells: jax.Array) -> tuple[Any, jax.Array]:
        """Code of the features of whole rows, and cells as rows of less weight make them.

        Rows that are predicted are not raised to the power of those that they are predicted from.
        """
        code: Any = self.plain.terms[0].cost
        return replace(code, power=jnp.ones_like(code.power)), code.power * cells

    def features_of(
        self, cells: jax.Array, x: jax.Array, group: jax.Array, weights: jax.Array | None = None
    ) -> jax.Array:
        """What the features of single rows (b, p) of groups (b,) add to every cluster: (K, b).

        With ``weights`` (G,), what rows of weight 1 add when they count so much: (K, G, b).
        """
        code, cells = self.predicting(cells.sum(0))
        prepared = jax.tree.map(lambda a: a[..., None], code.prepare_join(cells.T))
        if weights is not None:
            return code.weighted_join_costs(prepared, x.T, weights)
        return code.join_costs(prepared, x.T)

    def joining(self, cells: jax.Array, x: jax.Array, group: jax.Array) -> jax.Array:
        """What single rows (b, p) add to every cluster: (K, b)."""
        return self.features_of(cells, x, group) + self.without_features.joining(cells, x, group)

    def left_out(self, cells: jax.Array, labels: jax.Array, weight: Any = None) -> jax.Array:
        """Log density (..., n') of every row, of weights (..., 1), given others of its cluster."""
        code, less = self.predicting(cells.sum(0)[labels] - self.plain.x)
        if weight is None:
            return code(less) - code(less + self.plain.x)

        def of(w):
            return code(less) - code(less + self.reweighted(w).plain.x)

        rows = jnp.broadcast_to(weight, (*weight.shape[:-1], len(less)))
        return jax.lax.map(of, rows * self.plain.x[:, -1])

    def for_rows(self, cells: jax.Array, key: jax.Array) -> Target:
        """The distribution itself, which is a sum over clusters."""
        return self.plain

    # Other rows

    def restated(self, x: jax.Array, rows: jax.Array) -> jax.Array:
        """Statistics (b, p) of other features (b, m)."""
        code: Any = self.plain.terms[0].cost
        own = moments(rows, code.full)
        if not code.weighted:
            return jnp.concatenate([own * x[:, -1:], x[:, own.shape[1] :]], 1)
        rest = x[:, own.shape[1] :]
        return jnp.concatenate([own * rest[:, :1], rest], 1)

    def with_rows(self, rows: jax.Array) -> Any:
        """The distribution of rows (n', m) in place of its own."""
        return replace(self, plain=replace(self.plain, x=self.restated(self.plain.x, rows)))

    # Rows of different weights: see `nrprob.statistics.codes.NormalWishart`

    def _width(self) -> int:
        """Columns of features and of their weight."""
        code: Any = self.plain.terms[0].cost
        m = code.n_features
        return m + (m * (m + 1) // 2 if code.full else m) + 1

    def reweighted(self, weight: jax.Array) -> Any:
        """The distribution under other weights (n',) of its rows."""
        x = reweighted(self.plain.x, weight, self._width())
        return replace(self, plain=replace(self.plain, x=x))

    def left_uncoded(self, x: jax.Array) -> jax.Array:
        """Nats (n',) of rows of weight 1 that the code of `for_rows` leaves out."""
        return jnp.zeros(len(x))

    def _roots(self, cells: jax.Array, key: jax.Array) -> jax.Array:
        """Roots of drawn precisions: ``root root'`` (K, m, m), or columns' own (K, m)."""
        code, total = self.predicting(cells.sum(0))
        freedom = (code.n_features if code.full else 1) + 1 + code.freedom + total[:, -1:]
        if not code.full:
            scatter = code.scatter(total)
            shape = jnp.broadcast_to(0.5 * freedom, scatter.shape)
            return jnp.exp(0.5 * log_gamma_variate(key, shape)) / jnp.sqrt(0.5 * scatter)
        white = whitener(code.scatter(total))[0]
        return wishart_root(key, white, freedom[:, 0])

    def distances(self, cells: jax.Array, labels: jax.Array, key: jax.Array) -> jax.Array:
        """Squares (n',) of distances from centres, by covariances; all of these are drawn."""
        root_key, centre_key = jax.random.split(key)
        roots, (code, total) = self._roots(cells, root_key), self.predicting(cells.sum(0))
        m, width = code.n_features, self._width()
        precision = code.kappa + total[:, width - 1 : width]
        means = total[:, :m] / precision
        noise = normal(centre_key, means.shape) / jnp.sqrt(precision)
        rows = unweighted(self.plain.x[:, :m], self.plain.x[:, width - 1])

        def of(k, result):
            away = rows - means[k]
            away = (away @ roots[k] if code.full else away * roots[k]) - noise[k]
            return jnp.where(labels == k, jnp.square(away).sum(1), result)

        return jax.lax.fori_loop(0, len(means), of, jnp.zeros(len(rows)))
