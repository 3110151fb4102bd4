"""The description length of a labelled mixture, its predictions, and its leave-one-out score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nrprob.engines.sample import Target, make_target, occupied
from nrprob.methods.bayes.six_move_target import MixtureTarget, log_joint, make_mixture_target
from nrprob.statistics.codes import (
    CountCode,
    code_term,
    count_tables,
    label_code,
    normal_inverse_gamma,
    normal_inverse_wishart,
    normal_nml,
)


@dataclass(frozen=True)
class MixtureCode:
    """How a partition of rows, some with a class, is coded.

    Attributes
    ----------
    energy : "nml" or "conjugate"
    covariance : "diag" or "full"
    floor : smallest standard deviation of a cluster, in units of the feature's (nml)
    concentration : of the sizes of clusters (conjugate)
    class_concentration : of the classes of a cluster (conjugate)
    kappa, shape, scale : of the normal-inverse-gamma prior (conjugate)
    unordered : whether names of clusters are not sent
    """

    energy: str
    covariance: str
    floor: float
    concentration: float
    class_concentration: float
    kappa: float
    shape: float
    scale: float
    unordered: bool

    def statistics(self, X: np.ndarray, codes: np.ndarray, n_classes: int) -> np.ndarray:
        """Statistics (n, p) of rows and of their classes, -1 where unknown."""
        if self.covariance == "full":
            first, second = np.triu_indices(X.shape[1])
            moments = X[:, first] * X[:, second]
        else:
            moments = X * X
        classes = (codes[:, None] == np.arange(n_classes)).astype(float)
        return np.concatenate([X, moments, classes], 1)

    def target(
        self,
        X: np.ndarray,
        codes: np.ndarray,
        n_classes: int,
        max_clusters: int,
    ) -> Target:
        """Distribution over partitions of standardised rows (n, m) with classes (n,).

        The terms are those of the features, of the sizes and, if there are classes, of these.
        """
        n, m = X.shape
        nml = self.energy == "nml"
        room = n + 1  # for a row to come
        if nml:
            width = np.ptp(X, axis=0)
            low = np.minimum(self.floor, 0.4 * width)
            features: Any = normal_nml(room, low, width / 2, width)
        elif self.covariance == "diag":
            features = normal_inverse_gamma(
                room, m, kappa=self.kappa, shape=self.shape, scale=self.scale
            )
        else:
            # The marginal of one feature is the normal-inverse-gamma one of the same parameters.
            nu, scale = 2 * self.shape + m - 1, 2 * self.scale
            features = normal_inverse_wishart(room, m, kappa=self.kappa, nu=nu, scale=scale)
        labels, sizes = label_code(
            n,
            max_clusters,
            concentration=None if nml else self.concentration,
            unordered=self.unordered,
        )
        terms = [code_term(features), code_term(labels)]
        if n_classes:
            tables = count_tables(n_classes, room, None if nml else self.class_concentration)
            width_ = m + (m * (m + 1) // 2 if self.covariance == "full" else m)
            terms.append(code_term(CountCode(*tables, width_, width_ + n_classes, single=True)))
        x = self.statistics(X, codes, n_classes)
        return make_target(terms, sizes, x)

    def mixture_target(
        self, X: np.ndarray, codes: np.ndarray, n_classes: int, max_clusters: int
    ) -> MixtureTarget:
        """Distribution over mixtures, their parameters included; (n, m) rows, (n,) classes.

        Under the conjugate prior it is that of `target`, before parameters are integrated out.
        """
        width = np.ptp(X, axis=0)
        prior: dict[str, Any] = {"low": np.minimum(self.floor, 0.4 * width)}
        if self.energy == "conjugate":
            prior = {
                "kappa": self.kappa,
                "shape": self.shape,
                "scale": self.scale,
                "concentration": self.concentration,
                "class_concentration": self.class_concentration,
            }
        classes = (codes[:, None] == np.arange(n_classes)).astype(float)
        return make_mixture_target(
            X, classes, max_clusters=max_clusters, energy=self.energy,
            unordered=self.unordered, **prior,
        )  # fmt: skip


# Prediction


class _Blocks(NamedTuple):
    """What a draw says of new rows: ``cost`` (K, b) of joining, ``new`` the slot that may open."""

    cost: jax.Array
    here: jax.Array
    new: jax.Array


def _joining(target: Target, labels: jax.Array, x: jax.Array) -> tuple[_Blocks, jax.Array]:
    cells = target.cells(labels)
    here = occupied(cells)
    k, most = here.sum(), target.max_clusters
    opened = target.sizes[jnp.minimum(k + 1, most)] - target.sizes[k]
    new = (jnp.arange(most) == jnp.argmin(here)) & ~here & jnp.isfinite(opened)
    cost = target.joining(cells, x, jnp.zeros(x.shape[0], int))
    cost = cost + jnp.where(new, opened, 0)[:, None]
    return _Blocks(cost, here, new), cells


@partial(jax.jit, static_argnames="rule")
def class_probabilities(
    target: Target, draws: jax.Array, n_draws: jax.Array, x: jax.Array, *, rule: str
) -> jax.Array:
    """p(class | row), averaged over draws of partitions.

    Parameters
    ----------
    target : Target
        With the term of the classes in its last place.
    draws : (S, n') labels, of which the first ``n_draws`` are used
    x : (b, p) statistics of new rows, their class unknown
    rule : "joint" weighs draws by p(row | draw), "cond" does not

    Returns
    -------
    (b, C)
    """
    code: Any = target.terms[-1].cost

    def one(labels):
        blocks, cells = _joining(target, labels, x)
        cost = jnp.where((blocks.here | blocks.new)[:, None], blocks.cost, jnp.inf)
        least = cost.min(0)
        p = jnp.exp(-code.prepare(cells.sum(0).T)) @ jnp.exp(least - cost)
        return jnp.log(p) - least  # (C, b)

    return _average(one, draws, n_draws, rule).T


@partial(jax.jit, static_argnames="rule")
def cluster_probabilities(
    target: Target,
    draws: jax.Array,
    n_draws: jax.Array,
    x: jax.Array,
    reference: jax.Array,
    *,
    rule: str,
) -> jax.Array:
    """p(cluster of a reference partition | row), averaged over draws of partitions.

    A block stands for the clusters in ``reference`` (n', C), one-hot, that its rows lie in.
    """

    def one(labels):
        blocks, cells = _joining(target, labels, x)
        cost = jnp.where(blocks.here[:, None], blocks.cost, jnp.inf)
        least = cost.min(0)
        member = (labels == jnp.arange(target.max_clusters)[:, None]) * target.x[:, -1]
        share = member @ reference / jnp.maximum(cells.sum(0)[:, -1:], 1)
        p = share.T @ jnp.exp(least - cost)
        return jnp.log(p) - least

    return _average(one, draws, n_draws, rule).T


@partial(jax.jit, static_argnames="rule")
def mixture_probabilities(
    draws: dict[str, jax.Array], n_draws: jax.Array, x: jax.Array, *, rule: str
) -> jax.Array:
    """p(class | row), averaged over draws of mixtures with their parameters; (b, C).

    Parameters
    ----------
    draws : arrays with a leading axis of draws, of which the first ``n_draws`` are used
    x : (b, d) features of new rows
    rule : as for `class_probabilities`
    """
    return _average(lambda draw: log_joint(draw, x).T, draws, n_draws, rule).T


@jax.jit
def log_densities(target: Target, draws: jax.Array, n_draws: jax.Array, x: jax.Array) -> jax.Array:
    """Log of p(row), averaged over draws of partitions; (b,), arguments as above.

    Under a draw the row falls into a block, or a new one, as the code of the sizes says. Where the
    features are coded by normalised maximum likelihood, their part is what the row adds to it.
    """
    features = replace(target, terms=target.terms[:1])

    def one(labels):
        blocks, cells = _joining(target, labels, x)
        own = features.joining(cells, x, jnp.zeros(x.shape[0], int))
        real = (blocks.here | blocks.new)[:, None]
        into = jax.nn.log_softmax(jnp.where(real, own - blocks.cost, -jnp.inf), axis=0)
        return jax.nn.logsumexp(into - own, axis=0)

    found = jax.lax.map(one, draws)
    used = jnp.arange(len(found))[:, None] < n_draws
    return jax.nn.logsumexp(jnp.where(used, found, -jnp.inf), axis=0) - jnp.log(n_draws)


def _average(one: Any, draws: Any, n_draws: jax.Array, rule: str) -> jax.Array:
    """Average of ``one(draw)``, log p (C, b) up to a constant of the row, over the draws."""

    def at(s):
        return jax.tree.map(lambda a: a[s], draws)

    shape = jax.eval_shape(one, at(0)).shape
    # The largest log p so far is carried along, so that nothing under- or overflows.
    begin = jnp.full(shape[1], -jnp.inf), jnp.zeros(shape)

    def add(s, carry):
        most, total = carry
        log_p = one(at(s))
        if rule == "cond":
            log_p = jax.nn.log_softmax(log_p, axis=0)
        new = jnp.maximum(most, log_p.max(0))
        old = jnp.where(jnp.isfinite(most), jnp.exp(most - new), 0)
        return new, total * old + jnp.exp(log_p - new)

    _, total = jax.lax.fori_loop(0, n_draws, add, begin)
    return total / total.sum(0)


@jax.jit
def density_of_rows(target: Target, draws: jax.Array) -> jax.Array:
    """Log density (S, n') of every row with its class, given the other rows of its block.

    Normalised for codes that are mixtures over parameters (conjugate), not for NML, where the
    normaliser is that of all rows of the block together.
    """

    def one(labels):
        cells = target.cells(labels)[0]
        mine = cells[labels]
        total = jnp.zeros(labels.shape)
        for term in target.terms[:1] + target.terms[2:]:
            total = total + term.cost(mine - target.x) - term.cost(mine)
        return total

    return jax.lax.map(one, draws)


@jax.jit
def leave_one_out(target: Target, draws: jax.Array) -> jax.Array:
    """Log p(class | features, all else) of every labelled row, (n',); 0 where there is no label.

    Draws given all labels are turned into draws without the row's own by their weights
    1 / p(class | draw): the average is harmonic.
    """
    code: Any = target.terms[-1].cost

    def one(labels):
        cells = target.cells(labels)[0]
        own = target.x[:, code.first : code.stop]
        less = (cells[labels] - target.x)[:, code.first : code.stop]
        wide = jnp.zeros((target.x.shape[1], less.shape[0])).at[code.first : code.stop].set(less.T)
        log_p = jax.nn.log_softmax(-code.prepare(wide), axis=0)
        return -(log_p * own.T).sum(0)

    costs = jax.lax.map(one, draws)
    return jnp.log(draws.shape[0]) - jax.nn.logsumexp(costs, axis=0)
