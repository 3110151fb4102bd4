"""Posterior predictive probabilities and densities, averaged over draws of partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Target, occupied
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.model import NewRows
from nrprob.methods.bayes.six_move_target import log_joint


class _Costs(NamedTuple):
    """Costs of new samples in the clusters of a draw.

    Attributes
    ----------
    cost : (K, b) nats of every new sample in every cluster
    is_occupied : (K,) whether a cluster has samples
    is_new : (K,) mask of the slot of a new cluster; all false if no more clusters are allowed
    """

    cost: jax.Array
    is_occupied: jax.Array
    is_new: jax.Array


def condition(target: Any, draw: Draw) -> Any:
    """Condition a `JointTarget` on the variables of a draw; return other targets unchanged."""
    return target.condition(draw) if isinstance(target, JointTarget) else target


def _class_code(target: Any) -> Any:
    """Return the code of the classes, which is one of the terms of the target."""
    partition = target.partition if isinstance(target, JointTarget) else target
    return next(t.cost for t in partition.terms if getattr(t.cost, "single", False))


def _without_coordination(target: Any) -> Any:
    """Remove the code of clusters pooled over known groups, since it is not part of a density."""
    if isinstance(target, JointTarget):
        return target
    terms = (t for t in target.terms[2:] if getattr(t.cost, "single", False))
    return replace(target, terms=(*target.terms[:2], *terms))


def _feature_costs(target: Any, cells: jax.Array, rows: NewRows) -> jax.Array:
    """Minus the log density (K, b) of the features of new samples in every cluster."""
    if isinstance(target, Target):
        return replace(target, terms=target.terms[:1]).joining(cells, *rows)
    return target.feature_costs(cells, *rows)


def _joining_costs(target: Any, labels: jax.Array, rows: NewRows) -> tuple[_Costs, jax.Array]:
    """Return costs of new samples in the clusters of ``labels`` (n',), and cells of the clusters.

    The cells (groups, K, p) are sums of statistics.
    """
    cells = target.cells(labels)
    is_occupied = occupied(cells)
    k, n_slots = is_occupied.sum(), target.n_slots
    opened = target.sizes[jnp.minimum(k + 1, n_slots)] - target.sizes[k]
    is_new = (jnp.arange(n_slots) == jnp.argmin(is_occupied)) & ~is_occupied & jnp.isfinite(opened)
    cost = target.joining(cells, *rows) + jnp.where(is_new, opened, 0)[:, None]
    return _Costs(cost, is_occupied, is_new), cells


@jit_by_size()
def most_probable_clusters(target: Any, draws: Draw, rows: NewRows) -> jax.Array:
    """Most probable clusters (S, b) of new samples under each draw, without new clusters."""

    def choose_clusters(draw):
        costs, _ = _joining_costs(condition(target, draw), draw["labels"], rows)
        return jnp.where(costs.is_occupied[:, None], costs.cost, jnp.inf).argmin(0)

    return jax.lax.map(choose_clusters, draws)


@jit_by_size("rule")
def class_probabilities(
    target: Any, draws: Draw, n_draws: jax.Array, rows: NewRows, *, rule: str
) -> jax.Array:
    """Probabilities of the classes of new samples, averaged over draws of partitions.

    Parameters
    ----------
    target : Target or JointTarget
        Target with a code of the classes.
    draws : dict of array
        ``labels`` (S, n') and variables sampled jointly with them; the first ``n_draws`` are used.
    rows : NewRows
        New samples.
    rule : {"joint", "cond"}
        "joint" weights draws by p(sample | draw), "cond" does not.

    Returns
    -------
    array of shape (b, C)
    """

    def class_log_p(draw):
        given_draw = condition(target, draw)
        code = _class_code(given_draw)
        costs, cells = _joining_costs(given_draw, draw["labels"], rows)
        possible = (costs.is_occupied | costs.is_new)[:, None]
        cost = jnp.where(possible, costs.cost, jnp.inf)
        least = cost.min(0)
        p = jnp.exp(-code.prepare_join(cells.sum(0).T)) @ jnp.exp(least - cost)
        return jnp.log(p) - least  # (C, b)

    return _average_draws(class_log_p, draws, n_draws, rule).T


@jit_by_size("rule")
def cluster_probabilities(
    target: Any,
    draws: Draw,
    n_draws: jax.Array,
    rows: NewRows,
    reference: jax.Array,
    *,
    rule: str,
) -> jax.Array:
    """Probabilities (b, C) of reference clusters of new samples, averaged over draws.

    ``draws`` have the components ``labels`` (S, n') of the samples, and the ``clusters`` (S, n')
    into which the components are merged; the first ``n_draws`` are used. ``reference`` (n', C) are
    indicators of C reference clusters. The probability of a component is divided among the
    reference clusters, in proportion to the samples that they share with the cluster of the
    component. ``rule`` is as in `class_probabilities`.
    """

    def cluster_log_p(draw):
        labels = draw["labels"]
        costs, _ = _joining_costs(condition(target, draw), labels, rows)
        cost = jnp.where(costs.is_occupied[:, None], costs.cost, jnp.inf)
        least = cost.min(0)
        member = (draw["clusters"] == jnp.arange(target.n_slots)[:, None]) * target.x[:, -1]
        share = member @ reference / jnp.maximum(member.sum(1, keepdims=True), 1)
        cluster_of = jnp.zeros(target.n_slots, labels.dtype).at[labels].set(draw["clusters"])
        share = share[cluster_of]
        p = share.T @ jnp.exp(least - cost)
        return jnp.log(p) - least

    return _average_draws(cluster_log_p, draws, n_draws, rule).T


@jit_by_size("rule")
def mixture_probabilities(
    draws: dict[str, jax.Array], n_draws: jax.Array, x: jax.Array, *, rule: str
) -> jax.Array:
    """Probabilities (b, C) of the classes, averaged over draws of mixtures with their parameters.

    Parameters
    ----------
    draws : dict of array
        Parameters of the draws, along the first axis; the first ``n_draws`` draws are used.
    x : array of shape (b, d)
        Features of new samples.
    rule : {"joint", "cond"}
        As for `class_probabilities`.
    """
    return _average_draws(lambda draw: log_joint(draw, x).T, draws, n_draws, rule).T


@jit_by_size()
def log_densities(target: Any, draws: Draw, n_draws: jax.Array, rows: NewRows) -> jax.Array:
    """Log predictive densities (b,) of new samples; the density is averaged over draws.

    Under a draw, a new sample joins a cluster of the draw or a new cluster, with probabilities from
    the code of the cluster sizes. Under normalised maximum likelihood, the increase of the code
    length of the features replaces minus their log density.
    """

    def log_density(draw):
        given_draw = _without_coordination(condition(target, draw))
        costs, cells = _joining_costs(given_draw, draw["labels"], rows)
        feature_cost = _feature_costs(given_draw, cells, rows)
        possible = (costs.is_occupied | costs.is_new)[:, None]
        log_weight = jnp.where(possible, feature_cost - costs.cost, -jnp.inf)
        log_weight = jax.nn.log_softmax(log_weight, axis=0)
        return jax.nn.logsumexp(log_weight - feature_cost, axis=0)

    result = jax.lax.map(log_density, draws)
    used = jnp.arange(len(result))[:, None] < n_draws
    return jax.nn.logsumexp(jnp.where(used, result, -jnp.inf), axis=0) - jnp.log(n_draws)


def _average_draws(
    log_p_of: Callable[[Any], jax.Array], draws: Any, n_draws: jax.Array, rule: str
) -> jax.Array:
    """Average probabilities (C, b) of C categories of b samples over draws, and normalise them.

    ``log_p_of`` returns the log joint density (C, b) of category and sample under a draw. With the
    ``rule`` "cond", the probabilities are normalised for each draw, before the average.
    """

    def take_draw(s):
        return jax.tree.map(lambda a: a[s], draws)

    shape = jax.eval_shape(log_p_of, take_draw(0)).shape
    # The running maximum of log p avoids overflow and underflow.
    begin = jnp.full(shape[1], -jnp.inf), jnp.zeros(shape)

    def add_draw(s, carry):
        largest, total = carry
        log_p = log_p_of(take_draw(s))
        if rule == "cond":
            log_p = jax.nn.log_softmax(log_p, axis=0)
        new = jnp.maximum(largest, log_p.max(0))
        old = jnp.where(jnp.isfinite(largest), jnp.exp(largest - new), 0)
        return new, total * old + jnp.exp(log_p - new)

    _, total = jax.lax.fori_loop(0, n_draws, add_draw, begin)
    return total / total.sum(0)


@jit_by_size()
def leave_one_out(target: Target, draws: jax.Array) -> jax.Array:
    """Leave-one-out log p(class | features) (n',) of labelled samples; 0 for other samples.

    The draws are conditional on all classes. The importance weights 1 / p(class | draw) remove the
    class of the sample. So the result is the log of a harmonic mean over ``draws`` (S, n') of
    labels.
    """
    code = _class_code(target)

    def class_nats(labels):
        cells = target.cells(labels)[0]
        classes = target.x[:, code.first : code.stop]
        others = (cells[labels] - target.x)[:, code.first : code.stop]
        wide = jnp.zeros((target.x.shape[1], others.shape[0]))
        wide = wide.at[code.first : code.stop].set(others.T)
        log_p = jax.nn.log_softmax(-code.prepare_join(wide), axis=0)
        return -(log_p * classes.T).sum(0)

    costs = jax.lax.map(class_nats, draws)
    return jnp.log(draws.shape[0]) - jax.nn.logsumexp(costs, axis=0)
