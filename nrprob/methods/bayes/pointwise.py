r"""Pointwise log likelihood of sampled partitions, for leave-one-out cross-validation.

With z the labels of a draw, h its hyperparameters, and -i for "without sample i",

    ell_i = log p(x_i, y_i | x_-i, y_-i, z_-i, h)
          = log sum_c p(c | z_-i, h) p(x_i | x_-i, z_-i, c, h) p(y_i | y_-i, z_-i, c, h),

where c runs over the components that hold other samples and over a new one. The last factor is 1 if
sample i has no class.

The label of sample i itself is summed out. Otherwise the log likelihood would be conditional on the
label. In the draws, a sample of a separated cluster never has a label for which its importance
weight 1 / p(x_i | ...) in leave-one-out cross-validation is large. The average of the weights would
then have no variance, and be wrong.
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


def unavailable(model: MixtureModel) -> str:
    """Reason why there is no pointwise log likelihood, with the setting; "" if there is one."""
    missing = "it is not implemented for {}"
    tempered = "importance weights need the powered density and the score needs the plain density"
    features = model.features
    unnormalised = "exponentiated code lengths are not normalised"
    needs = (
        ("features", features.name, ("gaussian",), missing.format("counts and binary features")),
        ("energy", features.energy, ("conjugate",), unnormalised),
        ("covariance", features.covariance, ("diag", "full"), missing.format("shared covariances")),
        ("likelihood_power", features.power, (1,), tempered),
        ("errors", features.errors, ("gaussian",), missing.format("t-distributed errors")),
        (
            "transformation", features.transformation, ("identity",),
            missing.format("transformations"),
        ),
    )  # fmt: skip
    for name, used, allowed, reason in needs:
        if used not in allowed:
            return f"{reason}; got {name}={used!r}"
    return ""


@jit_by_size()
def pointwise_log_likelihood(target: Any, draws: Draw) -> jax.Array:
    """Log likelihood (S, n') of every sample under every draw, summed over the sample's label.

    Parameters
    ----------
    target : Target or JointTarget
        The code length of the features must be a sum over clusters of conjugate marginal
        likelihoods, with a likelihood power of 1.
    draws : ``labels`` (S, n') of the draws, and their hyperparameters
    """

    def log_likelihood(draw):
        given_draw = condition(target, draw)
        if isinstance(given_draw, JointTarget):
            given_draw = given_draw.conditional()
        return log_likelihood_of_draw(given_draw, draw["labels"])

    return jax.lax.map(log_likelihood, draws)


def log_likelihood_of_draw(target: Target, labels: jax.Array) -> jax.Array:
    """Log likelihood (n',) under one draw.

    Terms of the target are the code lengths of the features, of the labels and, if there are
    classes, of the classes.
    """
    label_target = replace(target, terms=target.terms[1:2])
    cells = target.cells(labels)
    is_occupied = occupied(cells)
    k, slots = is_occupied.sum(), jnp.arange(target.n_slots)[:, None]
    free = (slots == jnp.argmin(is_occupied)) & ~is_occupied[:, None]

    def evaluate_block(block):
        x, label = block
        own_cell = cells[0, label]
        alone = own_cell[:, -1] < 1.5
        is_own = slots == label
        # Components without the sample. If its component has no other sample, this component is the
        # new one.
        others = k - alone
        opens = (is_own & alone) | (free & ~alone)
        number = target.sizes[others + opens]
        possible = (is_occupied[:, None] | opens) & jnp.isfinite(number)

        def log_sum(part):
            # Nats by which a component gains the sample; its current component already contains it.
            joins = part.joining(cells, x, jnp.zeros(len(x), jnp.int32))
            stays = sum(term.cost(own_cell) - term.cost(own_cell - x) for term in part.terms)
            nats = jnp.where(is_own, stays, joins) + number
            return jax.nn.logsumexp(jnp.where(possible, -nats, -jnp.inf), axis=0)

        return log_sum(target) - log_sum(label_target)

    n = len(labels)
    size = min(n, _BLOCK)
    blocks = jax.tree.map(
        lambda a: jnp.pad(a, ((0, -n % size), *[(0, 0)] * (a.ndim - 1))).reshape(
            -1, size, *a.shape[1:]
        ),
        (target.x, labels),
    )
    return jax.lax.map(evaluate_block, blocks).reshape(-1)[:n]
