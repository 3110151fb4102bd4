r"""Pointwise log likelihood of sampled partitions, for leave-one-out cross-validation.

A draw has labels z and hyperparameters h; x are features and y classes. With -i for "all samples
but i", the log likelihood of sample i under the draw is

    ell_i = log p(x_i, y_i | x_-i, y_-i, z_-i, h)
          = log sum_c p(c | z_-i, h) p(x_i | x_-i, z_-i, c, h) p(y_i | y_-i, z_-i, c, h),

where c runs over the components of the other samples and over a new component. The last factor is 1
if sample i has no class.

The label z_i itself is summed out. A log likelihood given z_i would mislead leave-one-out
cross-validation, which averages the importance weights 1 / p(x_i | z_i, ...) over draws: z_i is
almost never a label for which the weight is large. So the average would hardly vary, and would be
wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from nrprob.engines.programs import jit_by_size
from nrprob.engines.sample.chains import Draw
from nrprob.engines.sample.target import Target, occupied
from nrprob.methods.bayes.joint_target import JointTarget
from nrprob.methods.bayes.model import MixtureModel
from nrprob.methods.bayes.predictive import condition

_BLOCK = 1024  # samples at a time, to bound memory


def unavailable(model: MixtureModel, n_groups: int = 1) -> str:
    """Reason why a model has no pointwise log likelihood; empty if the model has one.

    The reason names the setting of the model that causes it.

    Parameters
    ----------
    model : model of the samples
    n_groups : number of known groups
    """
    features = model.features
    if features.energy == "nml":
        return "exponentiated code lengths are not normalised; got energy='nml'"
    if features.power != 1:
        return (
            "importance weights need the powered density and the score needs the plain density; "
            f"got likelihood_power={features.power!r}"
        )
    weight = getattr(features, "coordination", 0)
    if n_groups > 1 and weight != 0:
        weight = "auto" if weight is None else weight
        return (
            "the code of clusters across known groups is no density; got coordination_weight="
            f"{weight!r}; pass coordination_weight=0"
        )
    return ""


@jit_by_size()
def pointwise_log_likelihood(target: Any, draws: Draw) -> jax.Array:
    """Log likelihood (S, n') of every sample under every draw.

    The label of the sample is summed out.

    The log likelihood is conditional on all other samples; see the module docstring.

    Parameters
    ----------
    target : Target or JointTarget
        The code length of the features must be minus a log marginal likelihood without tempering.
    draws : ``labels`` (S, n') of the draws, and their hyperparameters
    """
    return jax.lax.map(
        lambda draw: log_likelihood_of_draw(condition(target, draw), draw["labels"]), draws
    )


def log_likelihood_of_draw(target: Any, labels: jax.Array) -> jax.Array:
    """Log likelihood (n',) of every sample under one draw with labels (n',).

    The terms of a `Target` are the codes of the features, of the labels and, if there are classes,
    of the classes. A `JointTarget` has a likelihood instead of the first term.
    """
    joint = isinstance(target, JointTarget)
    partition = target.partition if joint else replace(target, terms=target.terms[1:])
    label_target = replace(partition, terms=partition.terms[:1])
    cells = target.cells(labels)
    is_occupied = occupied(cells)
    k, slots = is_occupied.sum(), jnp.arange(target.n_slots)[:, None]
    free = (slots == jnp.argmin(is_occupied)) & ~is_occupied[:, None]

    def evaluate_block(block):
        x, group, label, rows = block
        samples = replace(partition, x=x, group=group)
        alone = cells.sum(0)[label, -1] < 1.5
        is_own = slots == label
        # Number of components of the other samples. If the component of the sample has no other
        # sample, it is the new component.
        others = k - alone
        opens = (is_own & alone) | (free & ~alone)
        number = target.sizes[others + opens]
        possible = (is_occupied[:, None] | opens) & jnp.isfinite(number)
        if joint:
            features = replace(target, partition=samples, rows=rows).left_out_costs(cells, label)
        else:
            features = left_out_costs(replace(samples, terms=target.terms[:1]), cells, label)

        def log_sum(nats):
            return jax.nn.logsumexp(jnp.where(possible, -nats - number, -jnp.inf), axis=0)

        of_labels = left_out_costs(replace(label_target, x=x, group=group), cells, label)
        of_partition = left_out_costs(samples, cells, label)
        return log_sum(features + of_partition) - log_sum(of_labels)

    n = len(labels)
    size = min(n, _BLOCK)
    rows = target.rows if joint else target.x  # not used without a likelihood
    blocks = jax.tree.map(
        lambda a: jnp.pad(a, ((0, -n % size), *[(0, 0)] * (a.ndim - 1))).reshape(
            -1, size, *a.shape[1:]
        ),
        (partition.x, partition.group, labels, rows),
    )
    return jax.lax.map(evaluate_block, blocks).reshape(-1)[:n]


def left_out_costs(target: Target, cells: jax.Array, labels: jax.Array) -> jax.Array:
    """Increase (K, b) of the code length if a sample joins each cluster of the other samples.

    The code length is the sum of the terms of the target, without A(k).

    Parameters
    ----------
    target : target whose ``x`` (b, p) and ``group`` (b,) belong to the b samples
    cells : (groups, K, p) statistics of all samples
    labels : (b,) clusters of the samples
    """
    x, group = target.x, target.group
    stays = jnp.zeros(len(x))
    for term in target.terms:
        by_group = term.by_group and target.n_groups > 1
        joined = cells[group, labels] if by_group else cells.sum(0)[labels]
        stays = stays + term.weight * (term.cost(joined) - term.cost(joined - x))
    is_own = jnp.arange(cells.shape[1])[:, None] == labels
    return jnp.where(is_own, stays, target.joining(cells, x, group))
